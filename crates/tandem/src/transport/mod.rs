//! What carries sessions: plain TCP ([`tcp`]), TLS over it ([`tls`]), both through a SOCKS5 proxy
//! ([`socks`]) or a Tor client that can be asked questions ([`tor`]).
//!
//! A transport dials its target under an isolation key; accepting is the affair of `front`.

pub mod socks;
pub mod tcp;
pub mod tls;
pub mod tor;

use std::future::Future;
use std::pin::Pin;

use crate::error::Error;
use crate::exchange::Isolation;
use crate::path::Path;

/// A future that need not move between threads.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// `host:port` to connect to; what resolves the host is the transport's affair.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Name or address without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Shows nothing: where someone goes is private.
impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Target")
    }
}

/// Opens paths. The path may be returned before the other end has answered, so that the first bytes
/// leave with the handshake; failure then shows when it is read.
pub trait Transport {
    /// Connects to `target`. Paths of different isolation keys share nothing that the transport can
    /// keep apart.
    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>>;

    /// Does ahead what dialling `target` would take, where that is worth it. Whatever fails,
    /// dialling tries again.
    fn get_ready<'a>(&'a self, _target: &'a Target) -> LocalBoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// A path that this transport gave failed before anything came back on it: where there is a
    /// choice, the next dial should take another way.
    fn failed(&self) {}
}
