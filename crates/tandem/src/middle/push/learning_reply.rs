//! The reply to a client that takes no pushes. It teaches the predictor, without a machine of the
//! session.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tandem_http::{RequestHead, ResponseHead};
use tandem_push::gateway::{Predictor as _, may_teach, teach};

use super::session::{PushSession, unix_time};
use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply};

/// A reply from which the predictor learns.
pub(super) struct LearningReply {
    session: Rc<PushSession>,
    request: Arc<RequestHead>,
    reply: Reply,
    /// The URL and the length of the body so far, if its head does not give the length.
    unsized_body: Option<(String, u64)>,
}

impl LearningReply {
    /// Sends an exchange on, and learns from its reply if that may be of use for other users.
    pub(super) fn start(session: &Rc<PushSession>, exchange: Exchange) -> Reply {
        if !may_teach(&exchange.request) {
            return session.next().call(exchange);
        }
        Reply::new(Self {
            session: Rc::clone(session),
            request: Arc::clone(&exchange.request),
            reply: session.next().call(exchange),
            unsized_body: None,
        })
    }

    fn note_head(&mut self, head: &mut ResponseHead) {
        if let Some(mut predictor) = self.session.predictor() {
            let url = teach(&self.request, head, unix_time(), &mut predictor);
            self.unsized_body = url.map(|url| (url, 0));
        }
    }

    fn note_end(&mut self) {
        if let Some((url, size)) = self.unsized_body.take()
            && let Some(mut predictor) = self.session.predictor()
        {
            predictor.body_sent(&url, size);
        }
    }
}

impl Parts for LearningReply {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut polled = self.reply.poll_part(cx);
        match &mut polled {
            Poll::Ready(Some(Ok(Part::Head(head)))) => self.note_head(head),
            Poll::Ready(Some(Ok(Part::Data(data)))) => {
                if let Some((_, size)) = &mut self.unsized_body {
                    *size += data.len() as u64;
                }
            }
            Poll::Ready(None) => self.note_end(),
            _ => {}
        }
        polled
    }
}
