//! Requests before the handshake of a carrier is over (early data: RFC 8470).
//!
//! During the handshake, a client sends only safe requests. A server passes these on with the field
//! `Early-Data: 1`, so that an origin can refuse them with 425 (Too Early). The server repeats a
//! refused request once, after the handshake. All other requests wait at the server for the end of
//! the handshake.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::Notify;

use super::Shared;
use super::driver::Owner;
use super::over_streams::StreamsDriver;
use crate::error::{Error, Retry};
use crate::exchange::{Body, Exchange, Part, Reply, Sink};
use crate::metrics::METRICS;
use crate::session::may_be_early;
use crate::stage::Stage;

/// The field of a request that an intermediary received before the end of a handshake.
const EARLY_DATA: &str = "early-data";
/// The status of a response that asks for a repetition after the handshake.
const TOO_EARLY: u16 = 425;

/// The state of a carrier's handshake.
#[derive(Default)]
pub(super) struct Early {
    lasts: Cell<bool>,
    over: Notify,
}

impl Early {
    /// Returns true until the handshake is over.
    pub(super) fn lasts(&self) -> bool {
        self.lasts.get()
    }

    fn end(&self) {
        self.lasts.set(false);
        self.over.notify_waiters();
    }

    /// Resolves once the handshake is over.
    async fn over(&self) {
        loop {
            let over = self.over.notified();
            if !self.lasts.get() {
                return;
            }
            over.await;
        }
    }
}

impl<O: Owner> StreamsDriver<O> {
    /// Begins the session, whose handshake may not be over.
    pub(super) fn begin(&self) {
        if self.carrier.is_confirmed() {
            return self.shared.establish();
        }
        self.shared.early.lasts.set(true);
        self.core.borrow_mut().begin_early();
        if self.is_server() {
            self.shared.establish();
        }
        self.shared.waiting.wake_all();
    }

    /// Checks whether the handshake has ended.
    pub(super) fn poll_early(&self, cx: &mut Context<'_>) -> Result<(), Error> {
        if !self.shared.early.lasts() {
            return Ok(());
        }
        if let Poll::Ready(confirmed) = self.carrier.poll_confirmed(cx) {
            confirmed?;
            self.core.borrow_mut().confirm();
            self.shared.early.end();
            if !self.is_server() {
                self.shared.establish();
            }
        }
        Ok(())
    }

    /// Fails the requests that have no stream of the carrier. The other end has seen none of them.
    pub(super) fn fail_unsent(&self, error: &Error) {
        let unsent = self.core.borrow_mut().take_unopened();
        let error = error.clone().with_retry(Retry::Safe);
        for id in unsent {
            if let Some(stream) = self.shared.streams.borrow_mut().get_mut(&id) {
                stream.fail(error.clone());
            }
        }
    }
}

/// Passes a request to `stage`, as far as the state of the handshake permits.
pub(super) fn call(stage: &Rc<dyn Stage>, shared: &Rc<Shared>, exchange: Exchange) -> Reply {
    if !shared.early.lasts() {
        return stage.call(exchange);
    }
    METRICS.early_requests.add(1);
    let (stage, shared) = (Rc::clone(stage), Rc::clone(shared));
    Reply::generate(move |mut sink| async move {
        if may_be_early(&exchange) {
            return run_early(&*stage, &shared.early, exchange, &mut sink).await;
        }
        shared.early.over().await;
        pass(stage.call(exchange), &mut sink).await
    })
}

/// Runs a safe request before the end of the handshake.
async fn run_early(
    stage: &dyn Stage,
    early: &Early,
    mut exchange: Exchange,
    sink: &mut Sink,
) -> Result<(), Error> {
    if exchange.request.fields.contains(EARLY_DATA) {
        // Only the intermediary that has added the field may repeat the request.
        return pass(stage.call(exchange), sink).await;
    }
    let again = Exchange {
        request: Arc::clone(&exchange.request),
        body: Body::empty(),
        isolation: exchange.isolation.clone(),
        peer: exchange.peer,
        priority: exchange.priority.clone(),
    };
    exchange.request_mut().fields.push(EARLY_DATA, "1");
    let mut reply = stage.call(exchange);
    while let Some(part) = reply.part().await {
        let part = part?;
        if matches!(&part, Part::Head(head) if head.status == TOO_EARLY) {
            drop((part, reply));
            METRICS.early_requests_repeated.add(1);
            early.over().await;
            return pass(stage.call(again), sink).await;
        }
        sink.send(part).await;
    }
    Ok(())
}

async fn pass(mut reply: Reply, sink: &mut Sink) -> Result<(), Error> {
    while let Some(part) = reply.part().await {
        sink.send(part?).await;
    }
    Ok(())
}
