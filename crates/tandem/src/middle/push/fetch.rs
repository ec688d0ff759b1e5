//! The reply of a push: it makes the request when its turn comes, and passes the response on.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tandem_http::ResponseHead;
use tandem_push::gateway::{FetchId, Order, Promise, PushError};

use super::ExchangeContext;
use super::session::{FetchOrder, PushSession, now};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Exchange, Part, Parts, PushedPart, Reply};
use crate::metrics::METRICS;
use crate::priority::{PriorityWatch, SharedPriority};

/// The bytes of a body that are read while the head waits for a request. A short body then holds no
/// connection to its origin.
const READ_AHEAD: usize = 16 << 10;

/// A push on its way.
pub(super) struct Fetch {
    session: Rc<PushSession>,
    id: FetchId,
    context: ExchangeContext,
    priority: PriorityWatch,
    /// True if the fetch waits for its turn or has begun.
    queued: bool,
    /// True if the request was made.
    begun: bool,
    reply: Option<Reply>,
    /// The part that follows promises of the companion, or the head that waits for a request.
    held: Option<Part>,
    /// The parts that were read while the head waited.
    ahead: VecDeque<Result<Part, Error>>,
    /// The bytes of data in `ahead` so far.
    ahead_bytes: usize,
    ended: bool,
}

impl Fetch {
    /// Returns the part that carries a promise.
    pub(super) fn promise(
        session: &Rc<PushSession>,
        (promise, priority): (Promise, SharedPriority),
        context: &ExchangeContext,
    ) -> Part {
        let push = Self {
            session: Rc::clone(session),
            id: promise.fetch,
            context: context.clone(),
            priority: priority.watch(),
            queued: false,
            begun: false,
            reply: None,
            held: None,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            ended: false,
        };
        Part::Pushed(Box::new(PushedPart {
            request: promise.request,
            reply: Reply::new(push),
            priority,
            session: None,
        }))
    }

    /// Makes the request when the state machine decides so.
    fn poll_begin(&mut self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let id = self.id;
        if !std::mem::replace(&mut self.queued, true) {
            self.session
                .handle(|machine| machine.queue_fetch(now(), id));
            // A held fetch is given up after a while.
            self.session.set_timer();
        }
        match self.session.poll_fetch(id, cx) {
            None if !self.begun => Poll::Pending,
            None => Poll::Ready(Ok(())),
            Some(FetchOrder::Cancel) => Poll::Ready(Err(Error::new(
                Kind::Reset,
                Side::Client,
                "the browser has left the page, or has the resource",
            ))),
            Some(FetchOrder::Begin(request)) => {
                let exchange = Exchange {
                    request: Arc::new(request),
                    body: Body::empty(),
                    isolation: self.context.isolation.clone(),
                    peer: self.context.peer,
                    priority: self.priority.shared().clone(),
                };
                self.begun = true;
                self.reply = Some(self.session.next().call(exchange));
                self.session.set_timer();
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Raises the fetch when a request has joined it.
    fn follow_priority(&mut self, cx: &mut Context<'_>) {
        if let Poll::Ready(precedence) = self.priority.poll_changed(cx)
            && !precedence.push
        {
            let id = self.id;
            self.session
                .handle(|machine| machine.raise_fetch(now(), id));
            self.session.set_timer();
        }
    }

    fn on_part(&mut self, part: &mut Part) -> Result<Order, Error> {
        match part {
            Part::Head(head) => self.on_head(head),
            Part::Data(data) => self.on_data(data),
            _ => Ok(Order::Now),
        }
    }

    fn on_head(&mut self, head: &mut ResponseHead) -> Result<Order, Error> {
        let id = self.id;
        let order = self.session.handle_learning(|machine, predictor| {
            machine.handle_fetch_head(now(), id, head, predictor)
        });
        order.map_err(refused)
    }

    fn on_data(&mut self, data: &Bytes) -> Result<Order, Error> {
        METRICS.push_bytes_sent.add(data.len() as u64);
        let id = self.id;
        let order = self
            .session
            .handle(|machine| machine.handle_fetch_data(now(), id, data));
        order.map_err(refused)
    }

    fn end(&mut self) {
        self.ended = true;
        self.reply = None;
        let id = self.id;
        self.session
            .handle(|machine| machine.handle_fetch_end(now(), id));
    }
}

impl Parts for Fetch {
    fn below(&self) -> Option<&Reply> {
        self.reply.as_ref()
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        self.follow_priority(cx);
        if self.ended {
            return Poll::Ready(None);
        }
        if let Err(error) = ready!(self.poll_begin(cx)) {
            self.end();
            return Poll::Ready(Some(Err(error)));
        }
        let id = self.id;
        if self.session.handle(|machine| machine.holds_head(id)) {
            self.session.set_timer();
            self.read_ahead(cx);
            return Poll::Pending;
        }
        if let Some(part) = self.held.take() {
            return Poll::Ready(Some(Ok(part)));
        }
        loop {
            if self.session.handle(|machine| machine.holds_body(id)) {
                self.session.set_timer();
                return Poll::Pending;
            }
            let mut part = match ready!(self.poll_reply(cx)) {
                Some(Ok(Part::Hints(_) | Part::Pushed(_))) => continue,
                Some(Ok(part)) => part,
                end => {
                    self.end();
                    return Poll::Ready(end);
                }
            };
            let order = self.on_part(&mut part);
            let is_head_held = self.session.handle(|machine| machine.holds_head(id));
            match order {
                Ok(_) if is_head_held => {
                    self.held = Some(part);
                    self.session.set_timer();
                    self.read_ahead(cx);
                    return Poll::Pending;
                }
                Ok(Order::Now) => return Poll::Ready(Some(Ok(part))),
                Ok(Order::AfterPromises) => {
                    // The companion was woken, and goes first.
                    self.held = Some(part);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Err(error) => {
                    self.end();
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl Fetch {
    /// Polls for the next part of the response. The reply is dropped at its end.
    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if let Some(part) = self.ahead.pop_front() {
            return Poll::Ready(Some(part));
        }
        let Some(reply) = &mut self.reply else {
            return Poll::Ready(None);
        };
        let part = ready!(reply.poll_part(cx));
        if !matches!(part, Some(Ok(_))) {
            self.reply = None;
        }
        Poll::Ready(part)
    }

    /// Reads the first bytes of the body while the head waits for a request.
    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        let mut read = std::mem::take(&mut self.ahead);
        while self.ahead_bytes < READ_AHEAD
            && let Poll::Ready(Some(part)) = self.poll_reply(cx)
        {
            if let Ok(Part::Data(data)) = &part {
                self.ahead_bytes += data.len();
            }
            read.push_back(part);
        }
        self.ahead = read;
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.session.release_fetch(self.id);
    }
}

/// Returns the error that ends the stream of a push.
fn refused(error: PushError) -> Error {
    match error {
        PushError::Forbidden => Error::new(
            Kind::Forbidden,
            Side::Local,
            "the answer must not be pushed",
        ),
        PushError::TooLong => {
            Error::new(Kind::TooLarge, Side::Local, "the pushed body is too long")
        }
    }
}
