//! Early agreement to tunnels: a browser's CONNECT is answered before the gateway has answered it,
//! so that the TLS handshake leaves with the request and saves a round trip over the slow path.
//!
//! Only where the session stands and only for port 443; should the far end fail after all, the
//! tunnel is reset.

use std::rc::Rc;

use tandem_http::ResponseHead;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Reply};
use crate::stage::{SessionPool, Stage};

/// The stage.
pub struct EarlyConnect {
    /// The pool that knows the sessions.
    pub sessions: Rc<dyn SessionPool>,
    /// Where the exchanges go on.
    pub next: Rc<dyn Stage>,
}

impl Stage for EarlyConnect {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let early = request.is_connect()
            && request.protocol.is_none()
            && request.authority.ends_with(":443")
            && self.sessions.is_live(&exchange.isolation);
        if early {
            agree(self.next.call(exchange))
        } else {
            self.next.call(exchange)
        }
    }
}

/// Puts an agreement before the reply to a CONNECT and drops the far end's own.
pub fn agree(mut reply: Reply) -> Reply {
    Reply::generate(|mut sink| async move {
        sink.send(Part::Head(ResponseHead::new(200))).await;
        while let Some(part) = reply.part().await {
            match part? {
                Part::Head(head) if (200..300).contains(&head.status) => {}
                Part::Head(_) => {
                    return Err(Error::new(
                        Kind::Reset,
                        Side::Peer,
                        "the gateway refused the tunnel",
                    ));
                }
                Part::Hints(_) => {}
                part => sink.send(part).await,
            }
        }
        Ok(())
    })
}
