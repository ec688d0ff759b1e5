//! The reply to the client's companion (see [`tandem_push::wire`]). It carries the promises of
//! pages whose response stream has ended, and reads the client's reports. It ends when the client
//! ends its body.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tandem_http::ResponseHead;
use tandem_push::gateway::PromiseStream;
use tandem_push::wire::{
    NextPush, takes_checks, takes_conditional_checks, takes_references, takes_second_references,
};

use super::ExchangeContext;
use super::fetch::Fetch;
use super::session::{PushSession, now};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk, Exchange, Part, Parts, Reply};

/// The companion of a session.
pub(super) struct Companion {
    session: Rc<PushSession>,
    context: ExchangeContext,
    body: Body,
    head_sent: bool,
}

impl Companion {
    /// Answers the request for a companion. A session has one at a time.
    pub(super) fn answer(session: &Rc<PushSession>, exchange: Exchange) -> Reply {
        let takes_checks = takes_checks(&exchange.request);
        if !session.handle(|machine| machine.open_companion(takes_checks)) {
            return Reply::fail(Error::new(
                Kind::Busy,
                Side::Client,
                "the session has a companion already",
            ));
        }
        let next = NextPush::of_companion(&exchange.request);
        session.handle(|machine| machine.allow_next_pages(next));
        if takes_conditional_checks(&exchange.request) {
            session.handle(|machine| machine.allow_conditional_checks());
        }
        if takes_references(&exchange.request) {
            session.handle(|machine| machine.allow_references());
        }
        if takes_second_references(&exchange.request) {
            session.handle(|machine| machine.allow_second_references());
        }
        Reply::new(Self {
            session: Rc::clone(session),
            context: ExchangeContext::of(&exchange),
            body: exchange.body,
            head_sent: false,
        })
    }
}

impl Parts for Companion {
    fn below(&self) -> Option<&Reply> {
        None
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if !std::mem::replace(&mut self.head_sent, true) {
            return Poll::Ready(Some(Ok(Part::Head(ResponseHead::new(200)))));
        }
        loop {
            if let Some(promise) = self.session.poll_promise(PromiseStream::Companion, cx) {
                let part = Fetch::promise(&self.session, promise, &self.context);
                return Poll::Ready(Some(Ok(part)));
            }
            match ready!(self.body.poll_chunk(cx)) {
                Some(Ok(Chunk::Data(data))) => {
                    self.session.handle_learning(|machine, predictor| {
                        machine.handle_reports(now(), &data, predictor);
                    });
                    self.session.set_timer();
                }
                Some(Ok(Chunk::Trailers(_))) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.session.forget_stream(PromiseStream::Companion);
        self.session.handle(|machine| machine.close_companion());
    }
}
