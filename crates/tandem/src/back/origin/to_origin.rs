//! The pool of connections to origins as a stage, which measures the time until each head.

use std::rc::Rc;
use std::task::{Context, Poll};

use super::Origin;
use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::probe::Stamp;
use crate::probe::points::ORIGIN_HEAD;
use crate::stage::Stage;

/// An [`Origin`] as a stage of the pipeline.
pub struct ToOrigin(pub Rc<Origin>);

impl Stage for ToOrigin {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let (origin, asked) = (Rc::clone(&self.0), ORIGIN_HEAD.start());
        let reply =
            Reply::generate(
                |mut sink| async move { origin.answer(&mut exchange, &mut sink).await },
            );
        if asked.is_none() {
            reply
        } else {
            Reply::new(TimedReply { reply, asked })
        }
    }
}

/// A reply that measures the time until its head.
struct TimedReply {
    reply: Reply,
    asked: Stamp,
}

impl Parts for TimedReply {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = self.reply.poll_part(cx);
        if matches!(part, Poll::Ready(Some(Ok(Part::Head(_))))) {
            ORIGIN_HEAD.stop(self.asked.take(), 0);
        }
        part
    }
}
