//! Replies that an async function generates: the future sends parts to a [`Sink`], and the reader
//! of the [`Reply`](super::Reply) takes them one at a time.
//!
//! ```text
//!   future ──Sink::send──▶ Slot ──Generator::poll_part──▶ reader
//!      ▲                     ▲
//!      └─────── drops ── Canceller::{fail, end} ── wakes ──▶ reader
//! ```

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use super::{Carrying, Part, Supply};
use crate::error::Error;
use crate::wakers::WakerCell;

/// The state shared by a generator, its reader and its [`Canceller`].
#[derive(Default)]
struct Slot {
    /// The future that sends the parts, except while it is polled. It holds the slot in turn:
    /// [`Generator::drop`] takes it out.
    future: Cell<Option<SendFuture>>,
    part: Cell<Option<Part>>,
    /// True while `part` waits for the reader.
    full: Cell<bool>,
    /// True once a part has been sent.
    used: Cell<bool>,
    /// The way on which the parts come.
    supply: Cell<Supply>,
    /// The session that the parts come from, if a stage needs it.
    carrying: Cell<Option<Carrying>>,
    /// True if the reader has polled since [`Canceller::take_polled`].
    polled: Cell<bool>,
    /// The reader of a reply that has a canceller.
    reader: WakerCell,
    /// The error of a cancelled reply, or of one that failed behind its last part, until the reader
    /// takes it.
    failure: Cell<Option<Box<Error>>>,
    /// The state of a move to another session.
    moving: Cell<Moving>,
}

/// A reader's right to request the rest on another session, and the proposal to do so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Moving {
    /// The parts so far bind the reply to its session.
    #[default]
    Bound,
    /// The reader can request the rest elsewhere.
    Permitted,
    /// A stage behind proposes that. The reader may permit another proposal.
    Proposed,
}

/// Receives the parts of [`Reply::generate`](super::Reply::generate).
pub struct Sink {
    slot: Rc<Slot>,
}

impl Sink {
    /// Returns true once a part has been sent, except `100 Continue`. The exchange can then not be
    /// sent again.
    pub fn is_used(&self) -> bool {
        self.slot.used.get()
    }

    /// Returns a function that calls [`Sink::is_used`] while another owner holds the sink.
    pub fn usage(&self) -> impl Fn() -> bool + 'static {
        let slot = Rc::clone(&self.slot);
        move || slot.used.get()
    }

    /// Returns a function that tells whether the parts so far bind the reply to the session that
    /// they came from: one has been sent, and no call of
    /// [`Reply::permit_move`](super::Reply::permit_move) has followed since the last proposal.
    pub fn binding(&self) -> impl Fn() -> bool + 'static {
        let slot = Rc::clone(&self.slot);
        move || slot.used.get() && slot.moving.get() != Moving::Permitted
    }

    /// Returns a function that proposes to the reader to request the rest elsewhere. The reply is
    /// bound again then. The reader must be polling the reply.
    pub fn proposal(&self) -> impl Fn() + 'static {
        let slot = Rc::clone(&self.slot);
        move || slot.moving.set(Moving::Proposed)
    }

    /// Returns a function that tells whether a part waits for the reader.
    pub fn fullness(&self) -> impl Fn() -> bool + 'static {
        let slot = Rc::clone(&self.slot);
        move || slot.full.get()
    }

    /// Returns a handle that can end the reply.
    pub fn canceller(&self) -> Canceller {
        Canceller(Rc::downgrade(&self.slot))
    }

    /// Sets the way on which the parts to come have come.
    pub fn set_supply(&self, supply: Supply) {
        self.slot.supply.set(supply);
    }

    /// Sets the session that the parts to come have come from.
    pub fn set_carrying(&self, carrying: Option<Carrying>) {
        self.slot.carrying.set(carrying);
    }

    /// Sends one part. The future resolves when the reader polls for the next part. It does not
    /// hold the part, since most exchanges contain several of these futures.
    pub fn send(&mut self, part: Part) -> impl Future<Output = ()> + '_ {
        // A client may get several interim responses, and its body can be sent again.
        let is_continue = matches!(&part, Part::Hints(head) if head.status == 100);
        self.slot.used.set(self.slot.used.get() || !is_continue);
        self.slot.full.set(true);
        self.slot.part.set(Some(part));
        // The generator takes the part before it polls this future again, so one pending poll is
        // enough.
        std::future::poll_fn(|_| match self.slot.full.get() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink")
            .field("used", &self.is_used())
            .finish_non_exhaustive()
    }
}

/// A future that sends the parts of a reply.
type SendFuture = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// A handle that ends a generated reply whose reader may not poll it for long.
#[derive(Clone, Debug, Default)]
pub struct Canceller(Weak<Slot>);

impl Canceller {
    /// Drops the future that sends the parts, with the connections that it holds. The reader gets
    /// `error` next. A reply that has ended, or is being polled, stays as it is.
    pub fn fail(&self, error: Error) {
        self.stop(Some(error));
    }

    /// Ends the reply as [`Canceller::fail`] does, but regularly. The reply has sent its head.
    pub fn end(&self) {
        self.stop(None);
    }

    fn stop(&self, failure: Option<Error>) {
        let Some(slot) = self.0.upgrade() else { return };
        let Some(future) = slot.future.take() else {
            return;
        };
        drop(future);
        slot.failure.set(failure.map(Box::new));
        slot.reader.wake();
    }

    /// Returns whether the reader has polled the reply since the last call.
    pub fn take_polled(&self) -> bool {
        let slot = self.0.upgrade();
        slot.is_some_and(|slot| slot.polled.take())
    }
}

/// The parts that a future sends. It is no
/// [`Parts`](super::Parts), because a second box would cost an allocation
/// for each exchange.
pub(super) struct Generator {
    slot: Rc<Slot>,
}

impl Generator {
    pub(super) fn new<F>(story: impl FnOnce(Sink) -> F) -> Self
    where
        F: Future<Output = Result<(), Error>> + 'static,
    {
        let slot = Rc::new(Slot::default());
        // The box is there first, so that the future is built in it and not moved.
        let place = Box::new_uninit();
        let sink = Sink {
            slot: Rc::clone(&slot),
        };
        let future = Box::write(place, story(sink));
        slot.future.set(Some(Box::into_pin(future)));
        Self { slot }
    }

    pub(super) fn supply(&self) -> Supply {
        self.slot.supply.get()
    }

    pub(super) fn take_carrying(&self) -> Option<Carrying> {
        self.slot.carrying.take()
    }

    pub(super) fn permit_move(&self) {
        self.slot.moving.set(Moving::Permitted);
    }

    pub(super) fn proposes_move(&self) -> bool {
        self.slot.moving.get() == Moving::Proposed
    }

    pub(super) fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let slot = &*self.slot;
        slot.polled.set(true);
        let Some(mut future) = slot.future.take() else {
            return Poll::Ready(slot.failure.take().map(|error| Err(*error)));
        };
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            slot.future.set(Some(future));
        } else {
            drop(future);
        }
        if slot.full.take()
            && let Some(part) = slot.part.take()
        {
            // The future may fail in the same turn, as when it watches a session beside.
            if let Poll::Ready(Err(error)) = polled {
                slot.failure.set(Some(Box::new(error)));
            }
            return Poll::Ready(Some(Ok(part)));
        }
        match polled {
            Poll::Pending => {
                if Rc::weak_count(&self.slot) > 0 {
                    slot.reader.set(cx.waker());
                }
                Poll::Pending
            }
            Poll::Ready(Ok(())) => Poll::Ready(None),
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("used", &self.used.get())
            .finish_non_exhaustive()
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        let future = self.slot.future.take();
        drop(future);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Wake, Waker};

    use bytes::Bytes;
    use tandem_http::ResponseHead;

    use super::super::Reply;
    use super::super::tests::now;
    use super::*;

    #[test]
    fn reply_generates_parts_in_order() {
        let mut reply = Reply::generate(|mut sink| async move {
            sink.send(Part::Head(ResponseHead::new(200))).await;
            sink.send(Part::Data(Bytes::from_static(b"x"))).await;
            Err(Error::new(
                crate::error::Kind::Reset,
                crate::error::Side::Origin,
                "gone",
            ))
        });
        assert!(matches!(now(reply.part()), Some(Ok(Part::Head(_)))));
        assert!(matches!(now(reply.part()), Some(Ok(Part::Data(_)))));
        assert!(matches!(now(reply.part()), Some(Err(_))));
        assert!(now(reply.part()).is_none());
    }

    /// A reply that watches its session may fail while its last part waits for the reader.
    #[test]
    fn failure_follows_a_part_of_the_same_turn() {
        let error = Error::new(
            crate::error::Kind::Timeout,
            crate::error::Side::Peer,
            "silent",
        );
        let failure = error.clone();
        let mut reply = Reply::generate(|mut sink| async move {
            let sending = sink.send(Part::Head(ResponseHead::new(200)));
            let watching = std::future::ready(failure);
            tokio::select! {
                biased;
                () = sending => Ok(()),
                failure = watching => Err(failure),
            }
        });
        assert!(matches!(now(reply.part()), Some(Ok(Part::Head(_)))));
        assert_eq!(
            now(reply.part()).map(|part| part.map(drop)),
            Some(Err(error))
        );
        assert!(now(reply.part()).is_none());
    }

    #[test]
    fn reply_is_bound_unless_its_reader_permits_a_move() {
        type Functions = (Box<dyn Fn() -> bool>, Box<dyn Fn()>);
        let mut functions: Option<Functions> = None;
        let reply = Reply::generate(|mut sink| {
            functions = Some((Box::new(sink.binding()), Box::new(sink.proposal())));
            async move {
                sink.send(Part::Head(ResponseHead::new(200))).await;
                Ok(())
            }
        });
        let (is_bound, propose) = functions.expect("the closure ran");
        let mut reply = reply.edited(|_| {}).edited(|_| {});
        assert!(!is_bound(), "no part was sent");
        assert!(matches!(now(reply.part()), Some(Ok(Part::Head(_)))));
        assert!(is_bound());
        for _ in 0..2 {
            reply.permit_move();
            assert!(!is_bound() && !reply.proposes_move());
            propose();
            assert!(is_bound() && reply.proposes_move(), "until the next permit");
        }
    }

    #[test]
    fn cancelled_reply_frees_its_future_and_fails() {
        let (held, canceller) = (Rc::new(()), Cell::new(Canceller::default()));
        let inside = Rc::clone(&held);
        let mut reply = Reply::generate(|mut sink| {
            canceller.set(sink.canceller());
            async move {
                sink.send(Part::Head(ResponseHead::new(200))).await;
                let _inside = inside;
                std::future::pending().await
            }
        });
        let canceller = canceller.into_inner();
        assert!(!canceller.take_polled());
        assert!(matches!(now(reply.part()), Some(Ok(Part::Head(_)))));
        assert!(canceller.take_polled() && !canceller.take_polled());
        let reader = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&reader));
        let polled = reply.poll_part(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let error = Error::new(
            crate::error::Kind::Busy,
            crate::error::Side::Local,
            "cancelled",
        );
        canceller.fail(error.clone());
        assert_eq!(Rc::strong_count(&held), 1, "the future is gone");
        assert!(reader.0.load(Ordering::Relaxed));
        assert!(matches!(now(reply.part()), Some(Err(failed)) if failed == error));
        assert!(now(reply.part()).is_none());
        canceller.fail(error.clone());
        assert!(now(reply.part()).is_none(), "the reply had ended");
        drop(reply);
        canceller.fail(error);
    }

    #[test]
    fn dropped_reply_frees_its_future() {
        let held = Rc::new(());
        let inside = Rc::clone(&held);
        let mut reply = Reply::generate(|sink| async move {
            let _inside = (inside, sink);
            std::future::pending().await
        });
        let waker = Waker::noop();
        assert!(
            reply
                .poll_part(&mut Context::from_waker(waker))
                .is_pending()
        );
        drop(reply);
        assert_eq!(Rc::strong_count(&held), 1);
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
