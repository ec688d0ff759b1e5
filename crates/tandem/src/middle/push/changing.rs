//! The reply to a request that may change the resources of its origin (RFC 9111 section 4.4).
//!
//! A fetch can begin while the request is under way, and get the resource as it was before. The
//! machine therefore learns of the request, of its response, and of the end. The response may also
//! change cookies that early requests carry.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tandem_http::RequestHead;
use tandem_push::gateway::Gateway;

use super::session::{PushSession, now};
use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply};

/// A reply to a request with an unsafe method. Dropping it counts as its end.
pub(super) struct Changing {
    session: Rc<PushSession>,
    request: Arc<RequestHead>,
    reply: Reply,
    ended: bool,
}

impl Changing {
    /// Sends an exchange on.
    pub(super) fn reply(session: &Rc<PushSession>, exchange: Exchange) -> Reply {
        invalidate(session);
        session.handle_change(|machine| machine.begin_change(now(), &exchange.request));
        Reply::new(Self {
            session: Rc::clone(session),
            request: Arc::clone(&exchange.request),
            reply: session.next().call(exchange),
            ended: false,
        })
    }

    fn end(&mut self) {
        self.ended = true;
        invalidate(&self.session);
        self.session
            .handle_change(|machine| machine.end_change(now()));
    }
}

/// Tells the machine that earlier responses may be out of date.
fn invalidate(session: &PushSession) {
    session.handle_change(Gateway::handle_unsafe_request);
}

impl Parts for Changing {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = ready!(self.reply.poll_part(cx));
        match &part {
            Some(Ok(Part::Head(head))) => {
                invalidate(&self.session);
                let request = &self.request;
                self.session
                    .handle_change(|machine| machine.handle_unsafe_head(now(), request, head));
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None if !self.ended => self.end(),
            Some(Err(_)) | None => {}
        }
        Poll::Ready(part)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if !self.ended {
            self.end();
        }
    }
}
