//! The exchange that accompanies a session. Its body reports the outcomes of pushes, and its
//! response carries the pushes of complete pages (see [`tandem_push::wire`]).

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tandem_http::Priority;
use tandem_push::client::{ReportQueue, ReportStep};
use tandem_push::wire::companion_request;
use tokio::time::{Instant, Sleep};

use super::session::SessionPushes;
use super::{Observed, PushedShared};
use crate::error::Error;
use crate::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Reply};
use crate::priority::{Precedence, SharedPriority};

/// Keeps a companion open while the session is in use.
pub(super) async fn accompany(
    shared: Rc<PushedShared>,
    pushes: Rc<SessionPushes>,
    isolation: Isolation,
) {
    let reports = ReportBody {
        shared: Rc::clone(&shared),
        pushes: Rc::clone(&pushes),
        isolation: isolation.clone(),
        wait: Box::pin(tokio::time::sleep_until(Instant::now())),
    };
    let exchange = Exchange {
        body: Body::new(reports, None),
        isolation: isolation.clone(),
        // The gateway decides on the pushes of a page by the companion. It should arrive first.
        priority: SharedPriority::new(Precedence::request(Priority(0))),
        ..Exchange::internal(companion_request(
            pushes.mark().promises_have_fields,
            shared.options.next,
        ))
    };
    let stage = Rc::clone(&shared);
    let mut reply = Reply::new(Observed {
        sent: Instant::now(),
        reply: shared.next.call(exchange),
        request: None,
        hints: Vec::new(),
        takes_reference: false,
        shared,
        isolation,
    });
    let mut was_accepted = false;
    loop {
        match tokio::time::timeout(ReportQueue::response_timeout(), reply.part()).await {
            Ok(Some(Ok(Part::Head(head)))) => was_accepted = head.status == 200,
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(error))) => tracing::debug!(%error, "the session's companion ended"),
            Ok(None) => break,
            // A gateway that does not end its response after the last report cannot keep the
            // session open.
            Err(_) if pushes.is_companion_overdue() => break,
            Err(_) => {}
        }
    }
    pushes.on_companion_end(was_accepted);
    stage.forget_ended();
}

/// The body of a companion.
struct ReportBody {
    shared: Rc<PushedShared>,
    pushes: Rc<SessionPushes>,
    isolation: Isolation,
    wait: Pin<Box<Sleep>>,
}

impl Chunks for ReportBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        loop {
            let pool = &self.shared.pool;
            let is_over = !pool.is_current(&self.isolation, self.pushes.mark());
            let current = pool.current(&self.isolation);
            // The companion is one of the session's exchanges.
            let is_busy = current.is_some_and(|current| current.active > 1);
            match self.pushes.report_step(is_busy, is_over, cx) {
                ReportStep::Send(reports) => {
                    return Poll::Ready(Some(Ok(Chunk::Data(Bytes::from(reports)))));
                }
                ReportStep::Finish => return Poll::Ready(None),
                ReportStep::Wait(until) => {
                    self.wait.as_mut().reset(until.into());
                    std::task::ready!(self.wait.as_mut().poll(cx));
                }
            }
        }
    }
}
