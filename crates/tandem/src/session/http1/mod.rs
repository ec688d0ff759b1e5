//! HTTP/1.1 (RFC 9112) as a session protocol with one exchange at a time per connection.

mod buffers;
mod client;
mod connection;
mod content;
mod decode;
mod half_closed;
mod pipeline;
mod response;
mod server;
mod shared_path;
mod small_body;
mod tunnel;
mod writer;

use std::rc::Rc;
use std::time::Duration;

use tandem_http::h1::{Form, Limits};
use tandem_http::{ResponseHead, Scheme};

pub use client::Http1Client;
pub use pipeline::{ConnectionFate, DEPTH, Traits, is_pipelinable};
pub use server::{Http1Server, OriginForm};
pub(crate) use tunnel::{Patience, tunnel};

use super::{Connect, Connected, Drain, Serve, Timeouts};
use crate::carrier::{Carrier, CarrierFuture, LocalBoxFuture};
use crate::error::Error;
use crate::exchange::Peer;
use crate::role_name::RoleName;
use crate::stage::Stage;

pub(in crate::session) use crate::exchange::UPGRADE_DECLINED as DECLINED;

/// The status of a response that did not agree to an upgrade, between client and gateway.
const DECLINED_STATUS: u16 = 501;

/// Marks a success response that did not agree to an upgrade.
fn decline(head: &mut ResponseHead) {
    head.fields.set(DECLINED, head.status.to_string());
    head.status = DECLINED_STATUS;
}

/// Removes the mark of [`decline`], and restores the status. Returns whether there was a mark. One
/// of another status counts for nothing.
fn restore_declined(head: &mut ResponseHead) -> bool {
    let is_possible = matches!(head.status, DECLINED_STATUS | 200..300);
    let mark = head.fields.get(DECLINED).filter(|_| is_possible);
    let status = mark.map(|value| match value {
        [b'2', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            200 + u16::from(tens - b'0') * 10 + u16::from(ones - b'0')
        }
        _ => head.status,
    });
    head.fields.remove(DECLINED);
    head.status = status.unwrap_or(head.status);
    status.is_some()
}

/// HTTP/1.1 as a session protocol.
#[derive(Clone, Debug)]
pub struct Http1Session {
    /// The form of request targets: origin-form towards an origin, absolute-form towards a proxy.
    pub form: Form,
    /// The bounds of the heads of requests.
    pub limits: Limits,
    /// The bounds of the heads of responses.
    pub response_limits: Limits,
    /// The time limits.
    pub timeouts: Timeouts,
    /// The time for the head of a response, and for the pause between two pieces of its body.
    pub response_timeout: Duration,
    /// The role of this proxy, which its own responses name.
    pub who: RoleName,
    /// The scheme of received requests whose target names none. It is `https` behind TLS (RFC 9112
    /// section 3.3).
    pub scheme: Scheme,
    /// The origin-form requests that are served.
    pub origin_form: OriginForm,
    /// True if a drain ends a connection without a complete request at once, because the former
    /// configuration would serve that request. Otherwise a new connection may still send a first
    /// one.
    pub ends_unasked: bool,
    /// True if each exchange has a byte stream of its own, and both ends are proxies of this
    /// program. Trailers may then follow content of known length, as a last chunk.
    pub one_exchange: bool,
}

impl Http1Session {
    /// Creates a protocol for plain HTTP with the default bounds and time limits. A response may
    /// pause for a minute, and all origin-form requests are served. `who` is the role of this
    /// proxy.
    pub fn new(form: Form, who: RoleName) -> Self {
        Self {
            form,
            limits: Limits::default(),
            response_limits: Limits::RESPONSE,
            timeouts: Timeouts::default(),
            response_timeout: Duration::from_secs(60),
            who,
            scheme: Scheme::Http,
            origin_form: OriginForm::Any,
            ends_unasked: false,
            one_exchange: false,
        }
    }
}

impl Connect for Http1Session {
    fn connect(&self, dial: CarrierFuture<'static>) -> Rc<dyn Connected> {
        Rc::new(Http1Client::connect(self.clone(), dial))
    }
}

impl Serve for Http1Session {
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
