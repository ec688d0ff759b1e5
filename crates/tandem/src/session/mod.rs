//! Session protocols: HTTP/1.1 ([`http1`]) and the multiplexed ones ([`mux`]: HTTP/2, SPDY), all
//! behind one trait.
//!
//! A session runs over a [`Carrier`] and meets the rest of the program as exchanges only:
//! [`Session::serve`] reads them off a carrier and hands them to a stage, [`Connected::run`] sends one
//! over a session that was opened.

pub mod http1;
pub mod mux;

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use crate::carrier::Carrier;
use crate::carrier::LocalBoxFuture;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Peer, SessionMark, Sink};
use crate::path::Facts;
use crate::stage::Stage;

/// A session protocol, ready to be spoken at either end of a carrier.
pub trait Session {
    /// Begins a session over the carrier that `dial` will yield, and returns at once: exchanges given
    /// before the carrier stands leave with its first bytes.
    fn connect(&self, dial: LocalBoxFuture<'static, Result<Carrier, Error>>) -> Rc<dyn Connected>;

    /// Serves a carrier until it ends: each request becomes an exchange for `stage`. `drain` ends it
    /// gently.
    fn serve(
        &self,
        carrier: Carrier,
        peer: Peer,
        stage: Rc<dyn Stage>,
        drain: Drain,
    ) -> LocalBoxFuture<'static, Result<(), Error>>;
}

/// The asking end of a session.
pub trait Connected {
    /// Sends one exchange and hands the parts of its answer to `sink`. The exchange stays the
    /// caller's, who may send it again where the error allows it and no part was handed over.
    /// Dropping the future cancels the exchange.
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Whether it takes another exchange now.
    fn is_ready(&self) -> bool;

    /// Whether it can never take another.
    fn is_closed(&self) -> bool;

    /// Whether bytes from the other end have arrived: the path stands.
    fn is_established(&self) -> bool;

    /// Exchanges under way.
    fn active(&self) -> usize;

    /// The facts about the path, as long as the session knows it.
    fn facts(&self) -> Option<Rc<dyn Facts>> {
        None
    }

    /// Whether nothing has been heard on it for so long that its path may have been lost: see
    /// [`Connected::lost`].
    fn has_rested(&self) -> bool {
        false
    }

    /// Returns the identity of the session for its pushes; `None` for one that carries none.
    fn mark(&self) -> Option<Rc<SessionMark>> {
        None
    }

    /// Says whether the other end lets this one in: `None` until it has answered a request, false
    /// while it refuses the access token.
    fn admission(&self) -> Option<bool> {
        None
    }

    /// Returns the time from the path's beginning to the other end's first bytes: a round trip at
    /// least.
    fn answered_in(&self) -> Option<Duration> {
        None
    }

    /// Resolves when the session is over, with the reason, or with `None` if this end closed it.
    /// The future does not keep the session open. One at a time can wait.
    fn ended(&self) -> LocalBoxFuture<'static, Option<Error>> {
        Box::pin(std::future::pending())
    }

    /// Takes no new exchanges, lets those under way end, then closes.
    fn drain(&self);

    /// Resolves once the other end has answered anything, or the session has failed.
    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Asks a session that has long been silent for a sign of life, and resolves if none comes
    /// soon: its path was lost while it rested, as happens when a machine sleeps or changes its
    /// network. Never resolves otherwise.
    fn lost<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}

/// Time limits of a session's own.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// A session with no exchange for so long is closed, one that never had any this long after its
    /// beginning.
    pub idle: Duration,
    /// A head must arrive whole within this time of its first byte, a handshake and a session's
    /// first bytes within this time of the connection.
    pub head: Duration,
    /// With exchanges open and nothing received for so long, the other end is asked for a sign of
    /// life.
    pub probe_after: Duration,
    /// No sign of life for so long: the session is dead.
    pub probe_timeout: Duration,
    /// A peer that takes none of the bytes that wait for it for so long is cut off.
    pub write: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(600),
            head: Duration::from_secs(30),
            probe_after: Duration::from_secs(20),
            probe_timeout: Duration::from_secs(30),
            write: Duration::from_secs(60),
        }
    }
}

/// Tells everything that serves to come to an end gently. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Drain(Rc<RefCell<DrainState>>);

#[derive(Debug, Default)]
struct DrainState {
    begun: bool,
    notify: Rc<tokio::sync::Notify>,
}

impl Drain {
    /// One that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the end.
    pub fn begin(&self) {
        let mut state = self.0.borrow_mut();
        state.begun = true;
        state.notify.notify_waiters();
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.0.borrow().begun
    }

    /// Resolves when it begins.
    pub fn begun(&self) -> impl Future<Output = ()> + 'static {
        let notify = Rc::clone(&self.0.borrow().notify);
        let this = self.clone();
        async move {
            loop {
                let notified = notify.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                if this.has_begun() {
                    return;
                }
                notified.await;
            }
        }
    }
}

/// What an exchange has had of interim responses. They are handed on as they come, ahead of what
/// slow readers hold back.
#[derive(Debug, Default)]
struct Interim {
    heads: usize,
    bytes: usize,
}

impl Interim {
    /// Far more than hints and continuations of one answer need.
    const MOST: Self = Self {
        heads: 64,
        bytes: 256 << 10,
    };

    /// Counts another; `Err` where it is one too many.
    fn add(&mut self, bytes: usize, side: Side) -> Result<(), Error> {
        self.heads += 1;
        self.bytes += bytes;
        if self.heads > Self::MOST.heads || self.bytes > Self::MOST.bytes {
            return Err(Error::new(
                Kind::Protocol,
                side,
                "interim responses without end",
            ));
        }
        Ok(())
    }
}

/// A task of this thread that ends with its handle.
#[derive(Debug)]
pub struct Task(tokio::task::JoinHandle<()>);

impl Task {
    /// Starts it.
    pub fn spawn(future: impl Future<Output = ()> + 'static) -> Self {
        Self(tokio::task::spawn_local(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
