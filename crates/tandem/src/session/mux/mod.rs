//! Multiplexed sessions: one task that drives a sans-IO core ([`tandem_http::Mux`]) on a carrier.
//!
//! HTTP/2 and SPDY use one byte stream, by the module `driver`. HTTP/3 uses many streams, by the
//! module `over_streams`. Exchanges see no difference.
//!
//! ```text
//!            ┌───────── Driver (one task) ─────────┐
//!   Path ◀──▶│ read → core → events → streams      │◀── exchanges put commands into the core,
//!            │ core.poll_output → vectored write   │    wake the driver, wait for input
//!            └─────────────────────────────────────┘
//! ```
//!
//! The picture shows the driver of one byte stream. The driver of many streams has the same
//! outline: its task also checks the time limits, moves input and output, and delivers events. It
//! reads and writes each stream of the carrier separately. It has no limit for a silent or blocked
//! path, because the carrier has one.
//!
//! Each driver asks the core for output only when its path or carrier has room, and for a little at
//! a time. The core thus chooses the next stream as late as possible. A *turn* is one run of a
//! driver's task: all exchanges that ran before it share its write.

mod client;
mod clock;
mod core;
mod datagrams;
mod driver;
mod early;
mod halves;
mod leaving;
mod mismatch;
mod order;
mod over_streams;
mod ping;
mod probe_rtt;
mod pushed_heads;
mod refused;
mod scratch;
mod server;
mod stream;
mod streams_clock;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_over_paths;
mod unread;
mod unsent;
mod upload;
mod watch;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tandem_http::h1::Limits;
use tandem_http::{Event, Mux, MuxConfig, Priority, Reason, Role, StreamId};

use early::Early;
use pushed_heads::PushedHeads;
use refused::reset_error;
use stream::{Inbound, Stream, StreamTable};
use watch::Watch;

pub use client::MuxClient;
pub use tandem_spdy::HeaderCompression;
use tandem_spdy::Version;

use super::{Connect, Connected, Drain, Serve, Timeouts};
use crate::carrier::{Carrier, CarrierFuture, LocalBoxFuture};
use crate::endpoint::SessionKind;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Peer, SessionMark};
use crate::path::Facts;
use crate::probe::points::QUEUE_FULL;
use crate::renewal::Renewable;
use crate::role_name::RoleName;
use crate::session::header_list;
use crate::session::idle_check::InputTime;
use crate::stage::Stage;
use crate::wakers::{WakerCell, WakerQueue};

/// A multiplexed protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiplexed {
    /// HTTP/2.
    H2,
    /// HTTP/3, over a carrier with many streams.
    H3,
    /// SPDY/3 or SPDY/3.1.
    Spdy(Version),
}

impl Multiplexed {
    /// Returns the protocol of an endpoint's session kind, or `None` for a kind that is not
    /// multiplexed.
    pub const fn of(kind: SessionKind) -> Option<Self> {
        match kind {
            SessionKind::H2 => Some(Self::H2),
            SessionKind::H3 => Some(Self::H3),
            SessionKind::Spdy3 => Some(Self::Spdy(Version::V3)),
            SessionKind::Spdy31 => Some(Self::Spdy(Version::V31)),
            SessionKind::Http | SessionKind::Socks5 => None,
        }
    }
}

/// Returns the other end of a session, as the errors of this end name it.
const fn other_end(role: Role) -> Side {
    match role {
        Role::Client => Side::Peer,
        Role::Server => Side::Client,
    }
}

/// HTTP/2, HTTP/3 or SPDY as a session protocol.
#[derive(Clone, Debug)]
pub struct MuxSession {
    /// The protocol that the session speaks.
    pub protocol: Multiplexed,
    /// The windows and limits. The `role` in it is ignored. `max_header_list` is for requests.
    pub config: MuxConfig,
    /// The limit in bytes of the header list of a response or of a promised request.
    pub response_list: usize,
    /// The time limits.
    pub timeouts: Timeouts,
    /// The number of bytes taken from the core at a time. A late, urgent response waits for at most
    /// this many bytes.
    pub write_limit: usize,
    /// SPDY only: the parts of header blocks that are compressed.
    pub header_compression: HeaderCompression,
    /// The access token that the client sends until the gateway has accepted it.
    pub token: Option<Arc<Renewable<String>>>,
    /// The role of this proxy, which its own responses name.
    pub who: RoleName,
}

impl MuxSession {
    /// Creates a protocol with the default time limits, which writes 16 KiB at a time, compresses
    /// SPDY's headers safely and sends no token. `who` is the role of this proxy.
    pub fn new(protocol: Multiplexed, config: MuxConfig, who: RoleName) -> Self {
        Self {
            protocol,
            config,
            response_list: header_list(Limits::RESPONSE.head),
            timeouts: Timeouts::default(),
            write_limit: 16 << 10,
            header_compression: HeaderCompression::Safe,
            token: None,
            who,
        }
    }
}

impl Connect for MuxSession {
    fn connect(&self, dial: CarrierFuture<'static>) -> Rc<dyn Connected> {
        Rc::new(MuxClient::connect(self, dial))
    }
}

impl Serve for MuxSession {
    fn serve(
        &self,
        carrier: Carrier,
        peer: Peer,
        stage: Rc<dyn Stage>,
        drain: Drain,
    ) -> LocalBoxFuture<'static, Result<(), Error>> {
        server::serve(self, carrier, peer, stage, drain)
    }
}

/// The state that the driver and the exchanges of a session share. All of them run on one thread.
/// No borrow is held across an await.
struct Shared {
    core: Rc<RefCell<dyn Mux>>,
    streams: RefCell<StreamTable>,
    /// The heads of pushes that wait for their readers.
    pushed_heads: PushedHeads,
    /// The driver's task.
    driver: WakerCell,
    /// Tasks that wait until the peer allows another stream, or the session ends.
    waiting: WakerQueue,
    /// The reason for which the session is over.
    ended: OnceCell<Error>,
    /// True once input of the other end has arrived.
    established: Cell<bool>,
    /// The time of the last input of the other end.
    heard: Cell<Option<InputTime>>,
    /// The time from the start of the path to its first input: at least one round trip.
    answered_in: Cell<Duration>,
    /// The start of the dial, at a client over many streams.
    dialled: Cell<Option<Instant>>,
    /// The state of the carrier's handshake. Before its end, only some requests may be sent.
    early: Early,
    /// True once this end accepts no more exchanges: the session ends with those under way.
    draining: Cell<bool>,
    /// True if this end closed the session because the session was idle.
    idled_out: Cell<bool>,
    /// The number of answers of the other end to [`ping::QUESTION`].
    answers: Cell<u64>,
    /// True once the session is given up, because its path is lost.
    is_lost: Cell<bool>,
    /// The task that waits for the end of the session, if any.
    observer: WakerCell,
    /// The measurements for the observation points.
    watch: Watch,
    /// The identity of the session, which marks its pushes.
    mark: Rc<SessionMark>,
    /// The facts about the path, once it is connected.
    facts: OnceCell<Weak<dyn Facts>>,
}

impl Shared {
    fn new(core: Rc<RefCell<dyn Mux>>, protocol: Multiplexed) -> Rc<Self> {
        let mark = SessionMark::new(matches!(protocol, Multiplexed::H2 | Multiplexed::H3));
        Rc::new(Self {
            mark: Rc::new(mark),
            core,
            streams: RefCell::default(),
            pushed_heads: PushedHeads::default(),
            driver: WakerCell::default(),
            waiting: WakerQueue::default(),
            ended: OnceCell::new(),
            established: Cell::new(false),
            heard: Cell::default(),
            answered_in: Cell::default(),
            dialled: Cell::default(),
            early: Early::default(),
            draining: Cell::new(false),
            idled_out: Cell::new(false),
            answers: Cell::new(0),
            is_lost: Cell::new(false),
            observer: WakerCell::default(),
            watch: Watch::default(),
            facts: OnceCell::new(),
        })
    }

    /// Wakes the driver, so that it writes new output of the core.
    fn wake_driver(&self) {
        self.driver.wake();
    }

    /// Changes the priority of a stream's data. On the client, the core also tells the server.
    fn set_priority(&self, id: StreamId, priority: Priority) {
        self.core.borrow_mut().set_priority(id, priority);
        self.wake_driver();
    }

    /// Notes that the handshake of a carrier with many streams is over. Its end counts as input.
    fn establish(&self) {
        let now = Instant::now();
        self.heard.set(Some(InputTime::at(now)));
        if let Some(dialled) = self.dialled.get() {
            self.answered_in.set(now - dialled);
        }
        self.established.set(true);
        self.waiting.wake_all();
        self.watch.established();
    }

    /// Ends the session and fails its unfinished exchanges with `error`. Only the first call
    /// counts.
    fn end(&self, error: &Error) {
        if self.ended.set(error.clone()).is_err() {
            return;
        }
        for stream in self.streams.borrow_mut().values_mut() {
            if stream.complete {
                stream.reader.wake();
                stream.writer.wake();
            } else {
                stream.fail(error.clone());
            }
        }
        self.waiting.wake_all();
        self.observer.wake();
        self.wake_driver();
    }

    /// Delivers an event to its stream. Returns the event if no open stream takes it: a request, or
    /// an event of the whole session. `role` is that of this end.
    fn dispatch(&self, event: Event, role: Role) -> Option<Event> {
        let (id, inbound, end) = match event {
            Event::Informational { id, head } => (id, Some(Inbound::Informational(head)), false),
            Event::Response { id, head, end } => (id, Some(Inbound::Response(head)), end),
            Event::Data { id, data, end } => {
                (id, (!data.is_empty()).then_some(Inbound::Data(data)), end)
            }
            Event::Trailers { id, fields } => (id, Some(Inbound::Trailers(fields)), true),
            Event::Push {
                parent,
                id,
                request,
            } => {
                let promise = Inbound::Pushed { id, request };
                if !self.accept_push(parent, id, promise.pushed_weight(parent)) {
                    return None;
                }
                (parent, Some(promise), false)
            }
            Event::Reset { id, reason } => {
                self.handle_reset(id, reason, role);
                return None;
            }
            Event::Writable { id } => {
                if let Some(stream) = self.streams.borrow_mut().get_mut(&id) {
                    stream.writer.wake();
                }
                return None;
            }
            Event::Priority { id, priority } => {
                if let Some(stream) = self.streams.borrow_mut().get_mut(&id) {
                    stream.priority = Some(priority);
                    stream.writer.wake();
                }
                return None;
            }
            other @ (Event::Request { .. }
            | Event::Settings
            | Event::GoAway { .. }
            | Event::Pong { .. }) => {
                return Some(other);
            }
        };
        self.deliver(id, inbound, end, other_end(role));
        None
    }

    /// Gives a push its stream. If the parent's exchange has ended, or too many pushes wait for
    /// their readers, the method resets the push and returns false.
    fn accept_push(&self, parent: StreamId, id: StreamId, weight: usize) -> bool {
        let mut streams = self.streams.borrow_mut();
        let refusal = if streams.get(&parent).is_none_or(|stream| stream.failed) {
            Some(Reason::Cancel)
        } else {
            (!self.pushed_heads.admit(weight)).then_some(Reason::Refused)
        };
        if let Some(reason) = refusal {
            drop(streams);
            self.core.borrow_mut().reset(id, reason);
            return false;
        }
        streams.insert(id, Stream::default());
        true
    }

    /// Ends the exchange of a stream that the other end has reset.
    fn handle_reset(&self, id: StreamId, reason: Reason, role: Role) {
        self.watch.forget(id);
        self.waiting.wake_all();
        if let Some(stream) = self.streams.borrow_mut().get_mut(&id) {
            if stream.complete && role == Role::Client {
                // The response is complete. The server only rejects the rest of the request
                // (RFC 9113 section 8.1).
                stream.writer.wake();
            } else {
                stream.fail(reset_error(reason, other_end(role)));
            }
        }
    }

    /// Puts input into its stream. If `end` is true, it is the last input of the stream. Data for a
    /// stream that has ended is dropped, and its bytes return to the peer's flow-control window.
    fn deliver(&self, id: StreamId, inbound: Option<Inbound>, end: bool, other_end: Side) {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.get_mut(&id).filter(|stream| !stream.failed) else {
            drop(streams);
            if let Some(Inbound::Data(data)) = inbound {
                self.core.borrow_mut().release(id, data.len());
            }
            return;
        };
        if let Some(Inbound::Informational(head)) = &inbound
            && let Err(error) = stream.interim.add(head.fields.text_len(), other_end)
        {
            stream.fail(error);
            drop(streams);
            return self.give_up_stream(id, Reason::EnhanceYourCalm);
        }
        // A promise was admitted with its stream.
        let weight = match &inbound {
            None | Some(Inbound::Pushed { .. }) => 0,
            Some(inbound) => inbound.pushed_weight(id),
        };
        if weight > 0 && !self.pushed_heads.admit(weight) {
            let detail = "too many pushes wait for their readers";
            stream.fail(Error::new(Kind::Reset, Side::Local, detail));
            drop(streams);
            return self.give_up_stream(id, Reason::Cancel);
        }
        if end {
            stream.complete = true;
        }
        match inbound {
            Some(inbound) => stream.put(inbound),
            None => stream.reader.wake(),
        }
    }

    /// Resets a stream whose exchange has failed.
    fn give_up_stream(&self, id: StreamId, reason: Reason) {
        self.core.borrow_mut().reset(id, reason);
        self.watch.forget(id);
        self.waiting.wake_all();
    }

    /// Returns the next input of a stream, or `None` at its end. Taking data returns its bytes to
    /// the peer's flow-control window.
    fn poll_inbound(&self, id: StreamId, waker: &Waker) -> Poll<Option<Inbound>> {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.get_mut(&id) else {
            return Poll::Ready(None);
        };
        let Some(inbound) = stream.inbound.pop_front() else {
            if stream.complete {
                return Poll::Ready(None);
            }
            stream.reader.set(waker);
            return Poll::Pending;
        };
        stream.arrivals.take(id);
        drop(streams);
        self.pushed_heads.take(inbound.pushed_weight(id));
        if let Inbound::Data(data) = &inbound {
            let mut core = self.core.borrow_mut();
            core.release(id, data.len());
            if core.wants_output() {
                drop(core);
                self.wake_driver();
            }
        }
        Poll::Ready(Some(inbound))
    }

    /// Returns the number of bytes that the stream can queue, once it is above 0. Returns `Err` if
    /// the stream is gone.
    fn poll_room(&self, id: StreamId, waker: &Waker) -> Poll<Result<usize, ()>> {
        if self.ended.get().is_some() {
            return Poll::Ready(Err(()));
        }
        let room = self.core.borrow().send_room(id);
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.get_mut(&id) else {
            return Poll::Ready(Err(()));
        };
        if stream.failed {
            return Poll::Ready(Err(()));
        }
        if room == 0 {
            if stream.full.is_none() {
                stream.full = QUEUE_FULL.start();
            }
            stream.writer.set(waker);
            return Poll::Pending;
        }
        QUEUE_FULL.stop(stream.full.take(), id);
        Poll::Ready(Ok(room))
    }

    /// Frees the memory of streams after the last one has ended.
    fn free_unused(&self) {
        let mut streams = self.streams.borrow_mut();
        if streams.is_empty() {
            *streams = StreamTable::default();
        }
    }

    /// Removes a stream that its owner no longer uses, after a reset with `reason` if there is one.
    fn forget(&self, id: StreamId, reason: Option<Reason>) {
        let mut streams = self.streams.borrow_mut();
        let mut core = self.core.borrow_mut();
        if let Some(reason) = reason {
            core.reset(id, reason);
            self.watch.forget(id);
        }
        // Pushes that were never taken are cancelled with the stream that announced them. The same
        // holds for pushes that arrived on those pushes.
        let (mut next, mut unwanted) = (Some(id), Vec::new());
        while let Some(id) = next.take().or_else(|| unwanted.pop()) {
            for inbound in streams
                .remove(&id)
                .into_iter()
                .flat_map(|stream| stream.inbound)
            {
                self.pushed_heads.take(inbound.pushed_weight(id));
                match inbound {
                    Inbound::Data(data) => core.release(id, data.len()),
                    Inbound::Pushed { id, .. } => {
                        core.reset(id, Reason::Cancel);
                        unwanted.push(id);
                    }
                    _ => {}
                }
            }
        }
        if streams.is_empty() && streams.capacity() <= FEW_STREAMS {
            *streams = StreamTable::default();
        }
        drop((streams, core));
        self.waiting.wake_all();
        self.wake_driver();
    }
}

/// The capacity of a table of streams that is freed with its last stream. A larger table is freed
/// at the next timeout only, because the session may soon have as many streams again.
const FEW_STREAMS: usize = 8;
