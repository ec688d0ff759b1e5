//! Session protocols behind one trait: HTTP/1.1 ([`http1`]), the multiplexed HTTP/2, HTTP/3 and
//! SPDY ([`mux`]), and HTTP/1.1 over carriers with many streams ([`streams`]).
//!
//! A session runs over a [`Carrier`] and carries [`Exchange`]s. [`Serve::serve`] reads them from a
//! carrier and passes them to a stage. [`Connect::connect`] begins a session at the other end, and
//! [`Connected::run`] sends an exchange over it.
mod admission;
#[cfg(test)]
pub(crate) mod doubles;
pub mod http1;
mod idle_check;
pub mod mux;
mod path_timeout;
mod path_watch;
mod silence;
mod stall;
pub mod streams;

pub use path_watch::PathWaiter;
pub use silence::Probing;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tandem_http::{RequestHead, h3, upgrade};
use tandem_push::wire::is_reserved;

use crate::carrier::{Carrier, CarrierFuture, LocalBoxFuture};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Peer, SessionMark, Sink};
use crate::path::Facts;
use crate::stage::Stage;

/// The bytes that a header list may have beyond the size of the head that it carries: 32 for the
/// structure of each field (RFC 9113 section 6.5.2), and those of the fields of a pair.
const LIST_OVERHEAD: usize = 64 << 10;

/// Returns the limit of a header list that holds each head of HTTP/1.1 of up to `head` bytes.
pub(crate) const fn header_list(head: usize) -> usize {
    head + LIST_OVERHEAD
}

/// Refuses an extended CONNECT of a protocol that proxies do not pass on (RFC 9220 section 3). The
/// servers of all multiplexed sessions call this before any stage, and the client ends call it for
/// requests of other sources. The server of HTTP/1.1 ignores such an offer.
fn check_protocol(request: &RequestHead) -> Result<(), Error> {
    match &request.protocol {
        Some(protocol) if !upgrade::is_passed_on(protocol) => {
            let detail =
                "no upgrade to this protocol: the proxy passes on websocket and connect-udp";
            Err(Error::new(Kind::Unsupported, Side::Client, detail))
        }
        _ => Ok(()),
    }
}

/// The connecting half of a session protocol.
pub trait Connect {
    /// Begins a session over the carrier that `dial` will yield, and returns at once. Exchanges
    /// that are given before the carrier is connected leave with its first bytes.
    fn connect(&self, dial: CarrierFuture<'static>) -> Rc<dyn Connected>;
}

/// The serving half of a session protocol.
pub trait Serve {
    /// Serves a carrier until it ends. Each request becomes an exchange for `stage`. `drain` ends
    /// the session gracefully.
    fn serve(
        &self,
        carrier: Carrier,
        peer: Peer,
        stage: Rc<dyn Stage>,
        drain: Drain,
    ) -> LocalBoxFuture<'static, Result<(), Error>>;
}

/// The client end of a session: it sends exchanges, shows its state, and announces its events.
pub trait Connected: SessionState + SessionEvents {
    /// Sends one exchange and passes the parts of its response to `sink`. The caller keeps the
    /// exchange, and may send it again if the error allows a retry and no part was passed on. A
    /// session is no [`Stage`], since a stage takes the exchange. Dropping the future cancels the
    /// exchange.
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Closes the session after the exchanges under way. It accepts none from now on.
    fn drain(&self);

    /// Drains a session whose path is silent, because another session by the same way works. It is
    /// given up if its path stays silent.
    fn replaced(&self);

    /// Ends the session, because its path is lost. Exchanges that wait for
    /// [`SessionEvents::silent`] can leave it before. The others fail.
    fn give_up(&self);
}

/// The state of a session, which can be read at any time.
///
/// No method has a default. A session that lacks a feature says so, since the pool acts on it.
pub trait SessionState {
    /// Returns true if the session accepts another exchange now.
    fn is_ready(&self) -> bool;

    /// Returns true if an exchange could begin now, without a wait for another one's end.
    fn has_room(&self) -> bool;

    /// Returns true if the session will never accept another exchange.
    fn is_closed(&self) -> bool;

    /// Returns true once input from the other end has arrived.
    fn is_established(&self) -> bool;

    /// Returns the number of exchanges under way.
    fn active(&self) -> usize;

    /// Returns the facts about the path, as long as the session knows them.
    fn facts(&self) -> Option<Rc<dyn Facts>>;

    /// Returns true if the session has been silent for so long that its path may be lost; see
    /// [`SessionEvents::lost`].
    fn was_idle(&self) -> bool;

    /// Returns the identity of the session for its pushes, or `None` if it carries no pushes.
    fn mark(&self) -> Option<Rc<SessionMark>>;

    /// Returns true if the other end accepts this one, and false while it refuses the access token.
    /// Returns `None` until it has responded to a request.
    fn admission(&self) -> Option<bool>;

    /// Returns the time from the start of the path to the other end's first bytes: at least one
    /// round trip.
    fn answered_in(&self) -> Option<Duration>;
}

/// The events in the life of a session, as futures. No method has a default, as in
/// [`SessionState`].
pub trait SessionEvents {
    /// Resolves once the first input of the other end has arrived, or the session has failed.
    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Resolves once the session can send requests that [`may_be_early`] permits, or has failed.
    /// This is the same as [`SessionEvents::established`] without early data.
    fn takes_early<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Resolves when the session is over, with the reason, or with `None` if this end closed it.
    /// The future does not keep the session open. Only one task can wait at a time.
    fn ended(&self) -> LocalBoxFuture<'static, Option<Error>>;

    /// Probes a session that has long been silent, and resolves if no reply arrives soon. Its path
    /// was then lost while it was idle, for example because the machine slept or changed its
    /// network. Otherwise the future never resolves.
    fn lost<'a>(&'a self) -> LocalBoxFuture<'a, ()>;

    /// Resolves once the other end has answered: the first time, or again after a probe that this
    /// call sends. Input that is no answer to this probe does not count over TCP, since it may have
    /// been on its way. Fails with the session.
    fn answers<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Watches the path for an exchange whose request is sent now, until the value is dropped.
    /// Returns `None` if the path counts nothing that arrives.
    fn watch_path(&self, probing: Probing) -> Option<PathWaiter>;

    /// Resolves if the other end falls silent while an exchange waits. Over datagrams, none
    /// arrives, not even after probes: another way may be needed, and [`SessionEvents::dies`] tells
    /// whether it is. Over TCP, bytes that were sent had no acknowledgement for some round trips.
    /// Never resolves if nothing is counted.
    fn silent<'a>(&'a self) -> LocalBoxFuture<'a, ()>;

    /// Resolves after [`SessionEvents::silent`]: to true once enough probes have had no answer, and
    /// to false if a datagram has arrived.
    fn dies<'a>(&'a self) -> LocalBoxFuture<'a, bool>;

    /// Resolves after [`SessionEvents::silent`], once the path delivers again.
    fn recovers<'a>(&'a self) -> LocalBoxFuture<'a, ()>;
}

/// Returns true if a session may send the request before the handshake of its carrier is over. An
/// attacker can repeat such a request, so it must be safe (RFC 8470 section 3). Requests of the
/// proxies to each other wait.
pub fn may_be_early(exchange: &Exchange) -> bool {
    exchange.body.is_empty()
        && h3::may_be_early(&exchange.request)
        && !is_reserved(&exchange.request.authority)
}

/// The time limits of a session.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// The time without an exchange after which a session is closed. It counts from the beginning
    /// of a session that never had one.
    pub idle: Duration,
    /// The time for a whole head, counted from its first byte. It is also the time for a handshake
    /// and for a session's first bytes, counted from the connection.
    pub head: Duration,
    /// The time without input, with exchanges open, after which the other end is probed.
    pub probe_after: Duration,
    /// The time for the reply to a probe, after which the session is given up.
    pub probe_timeout: Duration,
    /// The time for which a peer may accept none of the bytes that wait for it.
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

/// Ends all servers of the process gracefully. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    own: Rc<DrainState>,
    /// The drain of the whole, if this one is the drain of a part.
    parent: Option<Rc<DrainState>>,
}

#[derive(Debug, Default)]
struct DrainState {
    begun: Cell<bool>,
    notify: tokio::sync::Notify,
}

impl Drain {
    /// Returns a drain that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a drain that begins with this one, or earlier on its own.
    pub fn child(&self) -> Self {
        Self {
            own: Rc::default(),
            parent: Some(Rc::clone(&self.own)),
        }
    }

    /// Begins the drain.
    pub fn begin(&self) {
        self.own.begun.set(true);
        self.own.notify.notify_waiters();
    }

    /// Returns true if the drain has begun.
    pub fn has_begun(&self) -> bool {
        let parent = self.parent.iter();
        parent.chain([&self.own]).any(|state| state.begun.get())
    }

    /// Resolves when the drain begins.
    pub fn begun(&self) -> impl Future<Output = ()> + 'static {
        let this = self.clone();
        async move {
            match &this.parent {
                None => this.own.begun().await,
                Some(parent) => tokio::select! {
                    () = this.own.begun() => {}
                    () = parent.begun() => {}
                },
            }
        }
    }
}

impl DrainState {
    async fn begun(&self) {
        loop {
            let notified = self.notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.begun.get() {
                return;
            }
            notified.await;
        }
    }
}

/// The interim responses that an exchange has received. They are passed on as they arrive, ahead of
/// data that a slow reader holds back.
#[derive(Debug, Default)]
struct Interim {
    heads: usize,
    bytes: usize,
}

impl Interim {
    /// The limit for one response, which is far above the needs of hints and continuations.
    const MOST: Self = Self {
        heads: 64,
        bytes: 256 << 10,
    };

    /// Counts an interim response. Returns an error if it exceeds the limit.
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

/// A task of this thread that is aborted when its handle is dropped.
#[derive(Debug)]
pub struct Task(tokio::task::JoinHandle<()>);

impl Task {
    /// Starts the task.
    pub fn spawn(future: impl Future<Output = ()> + 'static) -> Self {
        Self(tokio::task::spawn_local(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
