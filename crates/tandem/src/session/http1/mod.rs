//! HTTP/1.1 (RFC 9112) as a session like the others: one exchange at a time on a connection.

mod buffers;
mod client;
mod connection;
mod decode;
mod half_closed;
mod server;
mod writer;

use std::rc::Rc;
use std::time::Duration;

use tandem_http::h1::{Form, Limits};

pub use client::Http1Client;
pub(crate) use client::tunnel;
pub use server::{Http1Server, OriginForm};

use super::{Connected, Drain, Session, Timeouts};
use crate::carrier::Carrier;
use crate::carrier::LocalBoxFuture;
use crate::error::Error;
use crate::exchange::Peer;
use crate::stage::Stage;

/// Marks, between the pair, a successful answer to an upgrade that was not agreed to.
pub(in crate::session) const DECLINED: &str = "upgrade-declined";

/// HTTP/1.1 as a session protocol.
#[derive(Clone, Debug)]
pub struct Http1Session {
    /// How requests are written: origin-form towards an origin, absolute-form towards a proxy.
    pub form: Form,
    /// Bounds of heads.
    pub limits: Limits,
    /// Time limits.
    pub timeouts: Timeouts,
    /// The other end's time for the head of a response, and between two pieces of its body.
    pub response_timeout: Duration,
    /// What this proxy calls itself in its own answers: `client` or `gateway`.
    pub who: &'static str,
    /// Which origin-form requests are served.
    pub origin_form: OriginForm,
}

impl Session for Http1Session {
    fn connect(&self, dial: LocalBoxFuture<'static, Result<Carrier, Error>>) -> Rc<dyn Connected> {
        Rc::new(Http1Client::connect(self.clone(), dial))
    }

    fn serve(
        &self,
        carrier: Carrier,
        peer: Peer,
        stage: Rc<dyn Stage>,
        drain: Drain,
    ) -> LocalBoxFuture<'static, Result<(), Error>> {
        match carrier.into_bytes() {
            Ok(path) => Box::pin(Http1Server::new(self.clone(), path, peer, stage).run(drain)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}
