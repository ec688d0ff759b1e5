//! The reply to a request, with the promises that it carries.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tandem_push::gateway::{Interest, PromiseStream, ResponseId};
use tandem_push::wire::ASKED_AGAIN_FIELD;

use super::ExchangeContext;
use super::fetch::Fetch;
use super::session::{PushSession, now};
use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply};

/// A reply on its way, with the promises of its page.
pub(super) struct PromisingReply {
    session: Rc<PushSession>,
    id: ResponseId,
    context: ExchangeContext,
    reply: Reply,
    interest: Interest,
    /// The part that follows the promises that are ready.
    held: Option<Part>,
    ended: bool,
}

impl PromisingReply {
    /// Sends an exchange on, and watches its reply if that may be a page or a part of one.
    pub(super) fn start(session: &Rc<PushSession>, mut exchange: Exchange) -> Reply {
        let takes_pushes = exchange.peer.push;
        if takes_pushes
            && exchange.body.is_empty()
            && let Some(reference) = session.refer(&exchange.request)
        {
            return Reply::ready(reference, Bytes::new());
        }
        let may_repeat = takes_pushes && exchange.body.is_empty();
        let hand_over = || session.hand_over(&exchange.request);
        let handed_over = may_repeat.then(hand_over).flatten();
        // Only now, since a client that has refused the push gets its response in no other way.
        if exchange.request.fields.contains(ASKED_AGAIN_FIELD) {
            exchange.request_mut().fields.remove(ASKED_AGAIN_FIELD);
        }
        let request = &exchange.request;
        let round_trip = session.round_trip();
        let id = session.handle(|machine| {
            if let Some(round_trip) = round_trip {
                machine.note_round_trip(round_trip);
            }
            machine.handle_request(now(), request, takes_pushes)
        });
        session.set_timer();
        let context = ExchangeContext::of(&exchange);
        let repeat = || session.handle(|machine| machine.repeat(now(), request));
        let is_repeatable = may_repeat && handed_over.is_none();
        let repeated = is_repeatable.then(repeat).flatten();
        let reply = match (handed_over, repeated) {
            (Some(reply), _) => reply,
            (None, Some((head, body))) => Reply::ready(head, body.into()),
            (None, None) => session.next().call(exchange),
        };
        if let Some((id, stale)) = id.zip(reply.stale_response()) {
            session.handle(|machine| {
                machine.handle_stale_page(now(), id, &stale.head, stale.body, &stale.is_fresh)
            });
            session.set_timer();
        }
        match id {
            None => reply,
            Some(id) => Reply::new(Self {
                interest: session.interest_in(id),
                session: Rc::clone(session),
                id,
                context,
                reply,
                held: None,
                ended: false,
            }),
        }
    }

    /// Passes a part to the state machine as an event.
    fn note(&mut self, part: &mut Part) {
        let id = self.id;
        match part {
            Part::Head(head) => {
                self.interest = self.session.handle_learning(|machine, predictor| {
                    machine.handle_head(now(), id, head, predictor)
                });
                // The head may begin fetches, which have deadlines.
                self.session.set_timer();
            }
            Part::Data(data) if self.interest.body => {
                self.session.handle(|machine| machine.handle_data(id, data));
            }
            _ => {}
        }
    }

    fn end(&mut self, complete: bool) {
        self.ended = true;
        let id = self.id;
        self.session
            .handle_learning(|machine, predictor| machine.handle_end(id, complete, predictor));
    }
}

impl Parts for PromisingReply {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let stream = PromiseStream::Response(self.id);
        loop {
            // Promises go before the bytes that mention their resources.
            if self.interest.promises
                && !self.ended
                && let Some(promise) = self.session.poll_promise(stream, cx)
            {
                let part = Fetch::promise(&self.session, promise, &self.context);
                return Poll::Ready(Some(Ok(part)));
            }
            if let Some(part) = self.held.take() {
                return Poll::Ready(Some(Ok(part)));
            }
            let mut part = match ready!(self.reply.poll_part(cx)) {
                Some(Ok(part)) => part,
                end => {
                    self.end(end.is_none());
                    return Poll::Ready(end);
                }
            };
            self.note(&mut part);
            if !self.interest.promises {
                return Poll::Ready(Some(Ok(part)));
            }
            self.held = Some(part);
        }
    }
}

impl Drop for PromisingReply {
    fn drop(&mut self) {
        self.session.forget_stream(PromiseStream::Response(self.id));
        self.session
            .handle(|machine| machine.release_response(now(), self.id));
    }
}
