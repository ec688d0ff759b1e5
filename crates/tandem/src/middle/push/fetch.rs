//! The reply of a push: it makes the request when its turn comes, and passes the response on.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tandem_http::ResponseHead;
use tandem_push::gateway::{FetchId, Order, Promise, PushError};

use super::ExchangeContext;
use super::fetched_response::FetchedResponse;
use super::session::{FetchOrder, PushSession, now};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Exchange, Part, Parts, PushedPart, Reply};
use crate::metrics::METRICS;
use crate::priority::{PriorityWatch, SharedPriority};

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
    /// The response. While its head waits for a request, the session has it.
    response: Option<Box<FetchedResponse>>,
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
            response: None,
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
                let reply = self.session.next().call(exchange);
                self.response = Some(Box::new(FetchedResponse::new(reply)));
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
        self.response = None;
        let id = self.id;
        self.session
            .handle(|machine| machine.handle_fetch_end(now(), id));
    }
}

impl Parts for Fetch {
    fn below(&self) -> Option<&Reply> {
        self.response.as_ref()?.below()
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
        if self.response.is_none() {
            self.response = self.session.take_withheld(id);
        }
        if self.session.handle(|machine| machine.holds_head(id)) {
            return self.withhold(cx);
        }
        if let Some(part) = self.response.as_mut().and_then(|it| it.take_held()) {
            return Poll::Ready(Some(Ok(part)));
        }
        if self.session.handle(|machine| machine.holds_body(id)) {
            self.session.set_timer();
            return Poll::Pending;
        }
        let next = match &mut self.response {
            Some(response) => ready!(response.poll_next(cx)),
            None => None,
        };
        let mut part = match next {
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
                self.hold(part);
                self.withhold(cx)
            }
            Ok(Order::Now) => Poll::Ready(Some(Ok(part))),
            Ok(Order::AfterPromises) => {
                // The companion was woken, and goes first.
                self.hold(part);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Err(error) => {
                self.end();
                Poll::Ready(Some(Err(error)))
            }
        }
    }
}

impl Fetch {
    /// Holds a part of the response back.
    fn hold(&mut self, part: Part) {
        if let Some(response) = &mut self.response {
            response.hold(part);
        }
    }

    /// Leaves the response to the session while its head waits for a request.
    fn withhold(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if let Some(mut response) = self.response.take() {
            response.read_ahead(cx);
            self.session.withhold(self.id, response);
        }
        self.session.set_timer();
        Poll::Pending
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
