//! The gateway's end: it takes HTTPS of opened hosts only if its operator permits it.

use std::rc::Rc;

use tandem_http::{Fields, ResponseHead, Scheme};
use tandem_push::wire::OPENED_FIELD;

use super::{MARK, is_probe};
use crate::carrier::LocalBoxFuture;
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Part, Reply};
use crate::stage::Stage;

/// Connects to an origin (host and port) for the exchanges of a session, and verifies its
/// certificate.
pub type Verify =
    Rc<dyn Fn(u64, Isolation, (String, u16)) -> LocalBoxFuture<'static, Result<(), Error>>>;

/// The check of origins, or the reason for which this proxy takes no HTTPS of opened hosts.
pub type Permission = Result<Verify, &'static str>;

/// The stage that refuses or admits requests for opened hosts. Its sessions are authenticated.
pub struct Consent {
    /// The permission of the operator.
    pub permission: Permission,
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for Consent {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        if !request.fields.contains(OPENED_FIELD) {
            return self.next.call(exchange);
        }
        let verify = match &self.permission {
            Ok(verify) => Rc::clone(verify),
            Err(reason) => {
                return Reply::fail(Error::new(Kind::Forbidden, Side::Local, *reason));
            }
        };
        if !is_probe(request) {
            return self.next.call(exchange).edited(mark);
        }
        let default = Some(Scheme::Https.default_port());
        let target = match split_authority(&request.authority, default) {
            Ok(target) if request.scheme == Scheme::Https => target,
            _ => {
                let detail = "only the certificates of HTTPS origins can be verified";
                return Reply::fail(Error::new(Kind::BadRequest, Side::Client, detail));
            }
        };
        let verified = verify(exchange.peer.session, exchange.isolation.clone(), target);
        Reply::generate(|mut sink| async move {
            verified.await?;
            let mut head = ResponseHead::new(200);
            head.fields.push("content-length", "0");
            mark(&mut head.fields);
            sink.send(Part::Head(head)).await;
            Ok(())
        })
    }
}

/// Marks a response as one that no proxy has made.
fn mark(fields: &mut Fields) {
    fields.set(OPENED_FIELD, MARK);
}
