//! The transports that carry sessions: TCP ([`tcp`]), TLS over another transport ([`tls`]), a
//! SOCKS5 proxy on the way ([`socks`]), a Tor client with its control port ([`tor`]), and tunnels
//! through the pipeline of this process ([`connect`]). A gateway without a proxy on the way is
//! dialled at the addresses that the user gave or permits to look up ([`addresses`], [`names`]).
//!
//! A transport has two ends. [`Dial`] opens paths to a target under an isolation key. [`Listen`]
//! accepts them. A layer holds the same end of the transport below. Users name transports in
//! endpoints, and the [`registry`] holds the ends that each name has. [`handover`] gives the
//! address of a UDP socket to the next process. A client may know a gateway from [`earlier`]
//! connections.

pub mod addresses;
pub mod connect;
#[cfg(test)]
pub(crate) mod doubles;
pub mod earlier;
pub mod handover;
pub mod names;
pub mod registry;
pub mod socks;
pub mod tcp;
pub mod tls;
pub mod tor;

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

pub use crate::carrier::{CarrierFuture, LocalBoxFuture};

use crate::endpoint::literal_ip;
use crate::error::{Error, Kind, Side};
use crate::exchange::Isolation;
use crate::path::Path;
use registry::Socket;

/// The `host:port` to connect to. The transport decides where the host is resolved, unless the
/// address is known.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host name, or the address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The address of the host, if this machine connects to it directly and knows it. The host is
    /// then a name for certificates only.
    pub address: Option<SocketAddr>,
}

impl Target {
    /// Creates a target without a known address.
    pub const fn new(host: String, port: u16) -> Self {
        Self {
            host,
            port,
            address: None,
        }
    }

    /// Returns the address to connect to. Names are not resolved.
    pub fn direct_address(&self) -> Option<SocketAddr> {
        let literal = || Some(SocketAddr::new(literal_ip(&self.host)?, self.port));
        self.address.or_else(literal)
    }
}

/// Shows no field, because a destination is private.
impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Target")
    }
}

/// Returns the address to which a transport sends datagrams.
///
/// # Errors
/// Fails if the address is not known, as that of a name behind a proxy.
pub fn datagram_address(target: &Target) -> Result<SocketAddr, Error> {
    target.direct_address().ok_or_else(|| {
        let detail = "datagrams cannot go through a proxy";
        Error::new(Kind::Unsupported, Side::Local, detail)
    })
}

/// The dialling end of a transport.
///
/// [`Dial::get_ready`], [`Dial::failed`] and [`Dial::forget`] ask the layer below by default.
pub trait Dial {
    /// Returns the transport that this layer dials through, or `None` at the lowest layer.
    fn below(&self) -> Option<&dyn Dial>;

    /// Opens a byte stream to `target`. Paths of different isolation keys share no state that the
    /// transport can keep apart. The path may be returned before the other end has answered, so
    /// that the first bytes leave with the handshake. A later failure is reported by a read.
    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>>;

    /// Opens the carrier of a session: the byte stream of [`Dial::dial`], unless the transport has
    /// many streams.
    fn carrier<'a>(&'a self, target: &'a Target, isolation: &'a Isolation) -> CarrierFuture<'a> {
        Box::pin(async move { Ok(self.dial(target, isolation).await?.into()) })
    }

    /// Forgets the knowledge of earlier connections of an isolation key, which is no longer used.
    fn forget(&self, isolation: &Isolation) {
        if let Some(below) = self.below() {
            below.forget(isolation);
        }
    }

    /// Prepares for dialling `target`, if that saves time. A dial after a failure prepares again.
    fn get_ready<'a>(&'a self, target: &'a Target) -> LocalBoxFuture<'a, ()> {
        match self.below() {
            Some(below) => below.get_ready(target),
            None => Box::pin(std::future::ready(())),
        }
    }

    /// Notes that a path of this transport failed before it carried any input. The next dial of the
    /// isolation key takes another way, if there is a choice.
    fn failed(&self, isolation: &Isolation) {
        if let Some(below) = self.below() {
            below.failed(isolation);
        }
    }

    /// Notes that the paths of several isolation keys failed in a row. The next dial of a new key
    /// takes another way, if there is a choice.
    fn failed_for_all(&self) {
        if let Some(below) = self.below() {
            below.failed_for_all();
        }
    }
}

/// The listening end of a transport.
pub trait Listen {
    /// Accepts carriers from a bound socket.
    fn listen(&self, socket: Socket) -> io::Result<Box<dyn Listener>>;
}

/// Accepts connections on one thread.
pub trait Listener {
    /// Returns the next connection, before its handshake. An error concerns the listener, which may
    /// recover from it.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Incoming>>;
}

/// An accepted connection.
pub struct Incoming {
    /// The address of the other end.
    pub address: SocketAddr,
    /// The handshake. Dropping it refuses the connection.
    pub carrier: CarrierFuture<'static>,
}
