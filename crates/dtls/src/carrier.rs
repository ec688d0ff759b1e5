//! A DTLS association as a carrier of many streams, which sessions use.
//!
//! All of it is on one thread. A stream's call changes the tunnel and wakes the task, which sends
//! the datagrams that are due and wakes the streams that can go on.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tandem::carrier::{CarrierStream, Code, Direction, Streams};
use tandem::error::{Error, Kind, Retry, Side};
use tandem::path::Facts;
use tandem_http::flood::FloodBudget;
use tandem_tunnel::{Closed, Event, REFUSED, Read, StreamError, StreamId, Tunnel};
use tokio::sync::Notify;

use crate::association::{Association, AssociationError};
use crate::certificates::refusal_of;
use crate::driver::Driver;
use crate::facts::AssociationFacts;
use crate::socket::Socket;
use crate::stream::{Receiving, Sending};
use crate::unknown::Unknown;

/// The code that ends an association for too much work, as in HTTP/3 (RFC 9114, section 8.1).
const EXCESSIVE_LOAD: u32 = 0x107;
/// The code with which HTTP/3 closes a session without an error (RFC 9114, section 8.1).
const H3_NO_ERROR: u32 = 0x100;
/// The kinds of streams: the first byte of each. Both ends send, or only the end that opened it.
const BOTH_WAYS: u8 = 0;
const ONE_WAY: u8 = 1;
/// The code of a stream that was not processed, as in HTTP/3 (RFC 9114, section 8.1).
const REQUEST_REJECTED: u32 = 0x10b;
/// The code that resets a stream of another kind, as in HTTP/3 (RFC 9114, section 8.1).
const CREATION_ERROR: u32 = 0x103;
/// The time that streams have to end after the carrier was dropped.
pub(crate) const LINGER: Duration = Duration::from_secs(3);

/// The state of one stream that the application uses.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) read: Option<Waker>,
    pub(crate) write: Option<Waker>,
    pub(crate) stopped: Option<Waker>,
    /// The code with which the peer reset the stream.
    pub(crate) reset: Option<u32>,
    /// True once the peer has everything.
    pub(crate) finished: bool,
    /// True if input is thrown away, since the application no longer reads.
    pub(crate) discard: bool,
    /// True once the application has read the end of the peer's data.
    pub(crate) ended: bool,
    /// The halves that the application holds.
    pub(crate) halves: u8,
    /// True if only the end that opened the stream sends.
    pub(crate) one_way: bool,
}

impl Entry {
    fn wake(&mut self) {
        let wakers = [self.read.take(), self.write.take(), self.stopped.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// A stream of the peer that waits to be accepted.
#[derive(Clone, Copy, Debug)]
struct Opened {
    id: StreamId,
    direction: Direction,
    /// The code with which the peer has reset the stream since.
    reset: Option<u32>,
}

/// The association, with its streams and the tasks that wait for it.
pub(crate) struct Shared {
    pub(crate) association: RefCell<Association>,
    pub(crate) streams: RefCell<HashMap<StreamId, Entry>>,
    /// The streams of the peer whose first byte, the kind, has not arrived yet.
    pub(crate) unknown: RefCell<Unknown>,
    /// The streams of the peer that wait to be accepted.
    opened: RefCell<VecDeque<Opened>>,
    waiting: RefCell<Vec<Waker>>,
    /// The task that waits until few bytes are unsent.
    room: RefCell<Option<Waker>>,
    pub(crate) ended: RefCell<Option<Error>>,
    /// True if this end or the peer has closed the association regularly.
    regular: Cell<bool>,
    /// True once the carrier was dropped.
    dropped: Cell<bool>,
    pub(crate) work: Notify,
    /// The resets that a client may cause (RFC 9114, section 10.5).
    flood: RefCell<FloodBudget>,
    facts: Rc<dyn Facts>,
    pub(crate) side: Side,
    /// The streams that this end may have open.
    max_streams: usize,
}

impl Shared {
    /// Returns true once the association has ended. No call of its tunnel then wakes a stream.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Returns the error of the streams once the association has ended.
    pub(crate) fn error(&self) -> io::Error {
        let error = self.ended.borrow().clone();
        error
            .unwrap_or_else(|| Error::new(Kind::Reset, self.side, "the stream has ended"))
            .into_io()
    }

    pub(crate) fn end(&self, error: &AssociationError) {
        if self.ended.borrow().is_some() {
            return;
        }
        if let Some(problem) = tls_error(error) {
            return self.fail(Error::io(&io::Error::other(problem), self.side));
        }
        let kind = match error {
            AssociationError::Certificate(_) | AssociationError::Dtls(_) => Kind::Tls,
            AssociationError::Closed(Closed::TimedOut) => Kind::Timeout,
            AssociationError::Closed(_) | AssociationError::Unknown => Kind::Reset,
        };
        let regular = matches!(
            error,
            AssociationError::Closed(Closed::Local | Closed::Peer(0 | H3_NO_ERROR))
        );
        self.regular.set(regular);
        self.fail(Error::new(kind, self.side, words(error, self.side)));
    }

    pub(crate) fn fail(&self, error: Error) {
        let error = error.with_retry(Retry::IfIdempotent);
        self.ended.borrow_mut().get_or_insert(error);
        self.streams.borrow_mut().values_mut().for_each(Entry::wake);
        self.room.take().into_iter().for_each(Waker::wake);
        self.wake_waiting();
    }

    /// Wakes the tasks that wait for a stream or for the handshake.
    pub(crate) fn wake_waiting(&self) {
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    fn wait(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    /// Passes the tunnel's events on, and tells of room for more bytes.
    pub(crate) fn dispatch(&self) {
        if self.room.borrow().is_some()
            && self.association.borrow_mut().tunnel().has_few_unsent()
            && let Some(waker) = self.room.take()
        {
            waker.wake();
        }
        loop {
            let event = self.association.borrow_mut().tunnel().poll_event();
            let Some(event) = event else { return };
            match event {
                Event::Opened(id) => {
                    self.unknown.borrow_mut().insert(id, Instant::now());
                    self.read_kind(id);
                }
                Event::Readable(id) if self.unknown.borrow().contains(id) => self.read_kind(id),
                Event::Readable(id) => self.on_readable(id),
                Event::Writable(id) => self.with_entry(id, |entry| {
                    if let Some(waker) = entry.write.take() {
                        waker.wake();
                    }
                }),
                Event::Finished(id) => {
                    self.with_entry(id, |entry| {
                        if !entry.one_way {
                            self.flood.borrow_mut().credit_exchange();
                        }
                        entry.finished = true;
                        if let Some(waker) = entry.stopped.take() {
                            waker.wake();
                        }
                    });
                }
                Event::Reset(id, code) => {
                    // The peer's tunnel had too many streams.
                    let code = if code == REFUSED {
                        REQUEST_REJECTED
                    } else {
                        code
                    };
                    self.unknown.borrow_mut().remove(id);
                    let mut opened = self.opened.borrow_mut();
                    let waiting = opened.iter_mut().filter(|opened| opened.id == id);
                    waiting.for_each(|opened| opened.reset = Some(code));
                    drop(opened);
                    self.with_entry(id, |entry| {
                        entry.reset = Some(code);
                        entry.wake();
                    });
                    self.charge_reset();
                }
                Event::Refused(_) => self.charge_reset(),
                // `Association::ended` tells the reason.
                Event::Closed(_) => {}
            }
        }
    }

    /// Ends the association of a client that resets too many streams.
    fn charge_reset(&self) {
        let mut association = self.association.borrow_mut();
        if association.side() == tandem_tunnel::Side::Client {
            return;
        }
        let mut flood = self.flood.borrow_mut();
        flood.advance(Instant::now());
        flood.charge_reset();
        if flood.check().is_err() {
            association.close(EXCESSIVE_LOAD);
        }
    }

    /// Returns the time at which [`Self::expire_unknown`] must be called, if any.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.unknown.borrow().next_expiry()
    }

    /// Resets the streams whose kind has not arrived in time.
    pub(crate) fn expire_unknown(&self, now: Instant) {
        let late = self.unknown.borrow_mut().take_late(now);
        for id in late {
            // A stream that has ended already needs no reset.
            let _ = self.with_tunnel(|tunnel, _| tunnel.reset(id, CREATION_ERROR));
            self.charge_reset();
        }
    }

    fn with_entry(&self, id: StreamId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.streams.borrow_mut().get_mut(&id) {
            change(entry);
        }
    }

    /// Reads the kind of a stream that the peer opened. The end that does not send on a stream ends
    /// its direction at once.
    fn read_kind(&self, id: StreamId) {
        let mut association = self.association.borrow_mut();
        let now = association.tunnel_time(Instant::now());
        let tunnel = association.tunnel();
        let kind = match tunnel.read(now, id, 1) {
            Ok(Read::Blocked) => return,
            Ok(Read::Data(kind)) => kind.first().copied(),
            Ok(Read::End) | Err(_) => None,
        };
        self.unknown.borrow_mut().remove(id);
        let direction = match kind {
            Some(BOTH_WAYS) => Direction::Bidirectional,
            Some(ONE_WAY) if tunnel.finish(id).is_ok() => Direction::Unidirectional,
            _ => {
                // A stream that has ended already needs no reset.
                let _ = tunnel.reset(id, CREATION_ERROR);
                drop(association);
                return self.charge_reset();
            }
        };
        self.opened.borrow_mut().push_back(Opened {
            id,
            direction,
            reset: None,
        });
        drop(association);
        self.wake_waiting();
    }

    fn on_readable(&self, id: StreamId) {
        let discard = match self.streams.borrow_mut().get_mut(&id) {
            Some(entry) if !entry.discard => {
                if let Some(waker) = entry.read.take() {
                    waker.wake();
                }
                false
            }
            Some(_) => true,
            // The stream waits to be accepted, or both halves were dropped.
            None => !self.opened.borrow().iter().any(|opened| opened.id == id),
        };
        if discard {
            self.discard(id);
        }
    }

    /// Throws the input of a stream away.
    pub(crate) fn discard(&self, id: StreamId) {
        let mut association = self.association.borrow_mut();
        let now = association.tunnel_time(Instant::now());
        let tunnel = association.tunnel();
        while let Ok(tandem_tunnel::Read::Data(_)) = tunnel.read(now, id, usize::MAX) {}
    }

    /// Returns the halves of a stream that this end has.
    fn halves(self: &Rc<Self>, stream: Opened) -> CarrierStream {
        let Opened {
            id,
            direction,
            reset,
        } = stream;
        let one_way = direction == Direction::Unidirectional;
        let is_own = self.association.borrow().side() == id.opener();
        let (sends, receives) = (!one_way || is_own, !one_way || !is_own);
        let entry = Entry {
            halves: u8::from(sends) + u8::from(receives),
            one_way,
            discard: !receives,
            ended: !receives,
            reset,
            ..Entry::default()
        };
        self.streams.borrow_mut().insert(id, entry);
        CarrierStream {
            id: number(id, direction),
            send: sends.then(|| Box::new(Sending::new(Rc::clone(self), id)) as _),
            receive: receives.then(|| Box::new(Receiving::new(Rc::clone(self), id)) as _),
        }
    }

    /// Returns true if nothing is left to send after the carrier was dropped.
    pub(crate) fn is_done(&self, dropped_at: &mut Option<Instant>, now: Instant) -> bool {
        if !self.dropped.get() || !self.streams.borrow().is_empty() {
            return false;
        }
        let since = *dropped_at.get_or_insert(now);
        let mut association = self.association.borrow_mut();
        !association.is_connected()
            || association.tunnel().open_streams() == 0
            || now.saturating_duration_since(since) >= LINGER
    }
}

/// The codes of HTTP/3 with which a listener ends a session that is none of HTTP/3 (RFC 9114
/// section 8.1): errors of stream creation, critical streams, frames, settings.
const H3_MISMATCH: [u32; 5] = [0x103, 0x104, 0x105, 0x106, 0x10a];

/// Describes the end of an association to `side`.
fn words(error: &AssociationError, side: Side) -> String {
    match error {
        AssociationError::Closed(Closed::Peer(code))
            if side == Side::Peer && H3_MISMATCH.contains(code) =>
        {
            format!(
                "{error}: the gateway may speak another session protocol over DTLS (http or h3): \
                 compare its --listen"
            )
        }
        _ => error.to_string(),
    }
}

/// Returns the error of TLS that the end of an association is equal to, which has the words and
/// remedies of the transport `tls`.
fn tls_error(error: &AssociationError) -> Option<rustls::Error> {
    match error {
        AssociationError::Certificate(problem) => Some(problem.clone()),
        AssociationError::Closed(Closed::Peer(code)) => {
            refusal_of(*code).map(rustls::Error::AlertReceived)
        }
        _ => None,
    }
}

/// Returns the task that moves the datagrams of an association over a socket, with the parts of its
/// carrier. `side` is at fault for its errors. This end may have `max_streams` streams open.
pub(crate) fn driver(
    association: Association,
    socket: Socket,
    side: Side,
    max_streams: usize,
) -> Driver {
    let facts = Rc::new(AssociationFacts {
        peer: Cell::new(association.remote()),
        has_peer_certificate: Cell::new(false),
        received: Cell::new(0),
        received_bytes: Cell::new(0),
        association: OnceCell::new(),
    });
    let shared = Rc::new(Shared {
        association: RefCell::new(association),
        streams: RefCell::default(),
        unknown: RefCell::default(),
        opened: RefCell::default(),
        waiting: RefCell::default(),
        room: RefCell::default(),
        ended: RefCell::default(),
        regular: Cell::new(false),
        dropped: Cell::new(false),
        work: Notify::new(),
        flood: RefCell::new(FloodBudget::new()),
        facts: Rc::clone(&facts) as _,
        side,
        max_streams,
    });
    // The facts are new, so their cell is empty.
    let _ = facts.association.set(Rc::downgrade(&shared));
    Driver {
        shared,
        socket,
        facts,
        announced: false,
        dropped_at: None,
        failures: 0,
        looked_at: None,
        followed_at: None,
        keeping: None,
    }
}

/// The carrier, which ends with its streams once it is dropped.
pub(crate) struct DtlsCarrier(Rc<Shared>);

impl DtlsCarrier {
    /// Begins to move the datagrams of an association. `alive` lives as long as that.
    pub(crate) fn new(driver: Driver, alive: impl Sized + 'static) -> Self {
        let shared = Rc::clone(&driver.shared);
        tokio::task::spawn_local(async move {
            let _alive = alive;
            driver.run().await;
        });
        Self(shared)
    }

    /// Waits for the end of the handshake. A peer that closes the association right after it, for
    /// example because it drains, was still reached.
    pub(crate) async fn connected(&self) -> Result<(), Error> {
        poll_fn(|cx| {
            let association = self.0.association.borrow();
            if let Some(error) = association.refused() {
                let error = Error::new(Kind::Tls, self.0.side, error.to_string());
                return Poll::Ready(Err(error));
            }
            if association.is_connected() {
                return Poll::Ready(Ok(()));
            }
            drop(association);
            if let Some(error) = &*self.0.ended.borrow() {
                return Poll::Ready(Err(error.clone().with_retry(Retry::Safe)));
            }
            self.0.wait(cx);
            Poll::Pending
        })
        .await
    }
}

/// Returns the number of a stream as in QUIC (RFC 9000 section 2.1), which HTTP/3 uses. Both ends
/// derive the same number.
fn number(id: StreamId, direction: Direction) -> u64 {
    let id = u64::from(id.get());
    let one_way = u64::from(direction == Direction::Unidirectional);
    4 * (id >> 1) + 2 * one_way + (id & 1)
}

/// Opens a stream and writes its kind, which the first segment carries with the data.
fn open(tunnel: &mut Tunnel, now: Duration, direction: Direction) -> Result<StreamId, StreamError> {
    let kind: &[u8] = match direction {
        Direction::Bidirectional => &[BOTH_WAYS],
        Direction::Unidirectional => &[ONE_WAY],
    };
    let id = tunnel.open(now)?;
    let mut kind = Bytes::from_static(kind);
    tunnel.write(id, &mut kind)?;
    if kind.is_empty() {
        return Ok(id);
    }
    tunnel.reset(id, CREATION_ERROR)?;
    Err(StreamError::Exhausted)
}

impl Streams for DtlsCarrier {
    fn facts(&self) -> &Rc<dyn Facts> {
        &self.0.facts
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    fn poll_open(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
    ) -> Poll<Result<CarrierStream, Error>> {
        if let Some(error) = &*self.0.ended.borrow() {
            return Poll::Ready(Err(error.clone().with_retry(Retry::Safe)));
        }
        let side = self.0.association.borrow().side();
        let streams = self.0.streams.borrow();
        let own = streams.keys().filter(|id| id.opener() == side).count();
        drop(streams);
        if own >= self.0.max_streams {
            self.0.wait(cx);
            return Poll::Pending;
        }
        let mut association = self.0.association.borrow_mut();
        let now = association.tunnel_time(Instant::now());
        let opened = open(association.tunnel(), now, direction);
        drop(association);
        Poll::Ready(match opened {
            Ok(id) => Ok(self.0.halves(Opened {
                id,
                direction,
                reset: None,
            })),
            Err(error) => {
                let error = Error::new(Kind::Full, self.0.side, error.to_string());
                Err(error.with_retry(Retry::Safe))
            }
        })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Option<CarrierStream>, Error>> {
        if let Some(error) = &*self.0.ended.borrow() {
            return Poll::Ready(if self.0.regular.get() {
                Ok(None)
            } else {
                Err(error.clone())
            });
        }
        let id = self.0.opened.borrow_mut().pop_front();
        match id {
            Some(stream) => Poll::Ready(Ok(Some(self.0.halves(stream)))),
            None => {
                self.0.wait(cx);
                Poll::Pending
            }
        }
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.association.borrow_mut().tunnel().has_room() {
            return Poll::Ready(());
        }
        self.0.room.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    fn probe(&self) -> bool {
        self.0.association.borrow_mut().tunnel().probe();
        self.0.work.notify_one();
        true
    }

    fn close(&self, code: Code, _: &str) {
        let code = u32::try_from(code.0).unwrap_or(u32::MAX);
        self.0.association.borrow_mut().close(code);
        self.0.work.notify_one();
    }
}

impl Drop for DtlsCarrier {
    fn drop(&mut self) {
        self.0.dropped.set(true);
        self.0.work.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_of_another_protocol_has_a_remedy() {
        let closed = |code| AssociationError::Closed(Closed::Peer(code));
        let told = words(&closed(0x104), Side::Peer);
        assert!(told.ends_with("compare its --listen"), "{told}");
        for (code, side) in [(0x104, Side::Client), (0x102, Side::Peer), (7, Side::Peer)] {
            assert!(!words(&closed(code), side).contains("--listen"), "{code}");
        }
    }
}
