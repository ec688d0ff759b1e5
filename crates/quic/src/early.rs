//! The time before the end of a handshake, in which a client may send early data (0-RTT).
//!
//! A client keeps the bytes that it sends in this time, stream by stream. quinn drops the streams
//! if the server rejects early data (RFC 9001 section 4.6.2). They are then opened again in the
//! same order, so that each keeps its number, and the bytes are sent again. The session above sees
//! no difference. The other tickets from before the connection are forgotten, since the server may
//! have restarted or changed its limits.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use quinn::{Connection, RecvStream, SendStream, VarInt, ZeroRttAccepted};
use tandem::carrier::{Code, Direction};
use tandem::error::{Error, Kind, Retry, Side};
use tandem::metrics::METRICS;

use crate::failure;
use crate::stream::number;
use crate::tickets::Tickets;

/// The bytes that a client sends before the handshake is over. Others wait.
const MOST: usize = 64 << 10;

/// A future that resolves with the reason to give a handshake up.
pub(crate) type Limit = Pin<Box<dyn Future<Output = Error>>>;

/// The time before the end of the handshake of one connection.
pub(crate) struct Early {
    /// The result of the handshake, once it is over.
    over: RefCell<Option<Result<(), Error>>>,
    accepted: RefCell<ZeroRttAccepted>,
    limit: RefCell<Limit>,
    /// Client: the streams of this time, in the order in which they were opened.
    streams: RefCell<Vec<Rc<EarlyStream>>>,
    /// Client: the bytes that may still be sent.
    room: Rc<Cell<usize>>,
    /// Client: the tickets, and the mark of those from before the connection.
    tickets: Option<(Arc<Tickets>, u64)>,
    /// A value that is dropped at the end of this time.
    held: RefCell<Option<Box<dyn std::any::Any>>>,
}

impl Early {
    /// Begins with the result of the handshake, and a reason to give it up.
    pub(crate) fn new(accepted: ZeroRttAccepted, limit: Limit) -> Self {
        Self {
            over: RefCell::new(None),
            accepted: RefCell::new(accepted),
            limit: RefCell::new(limit),
            streams: RefCell::default(),
            room: Rc::new(Cell::new(MOST)),
            tickets: None,
            held: RefCell::default(),
        }
    }

    /// Client: forgets the tickets before `mark` if the server rejects early data.
    pub(crate) fn showing(mut self, tickets: Arc<Tickets>, mark: u64) -> Self {
        self.tickets = Some((tickets, mark));
        self
    }

    /// Keeps a value until the handshake is over.
    pub(crate) fn hold(&self, value: impl std::any::Any) {
        self.held.replace(Some(Box::new(value)));
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Resolves once the handshake is over, or has failed.
    pub(crate) fn poll(
        &self,
        connection: &Connection,
        side: Side,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        if let Some(over) = &*self.over.borrow() {
            return Poll::Ready(over.clone());
        }
        let accepted = Pin::new(&mut *self.accepted.borrow_mut()).poll(cx);
        let over = match accepted {
            Poll::Ready(accepted) => self.end(connection, side, accepted),
            Poll::Pending => Err(ready!(self.limit.borrow_mut().as_mut().poll(cx))),
        };
        if over.is_err() {
            connection.close(VarInt::from_u32(0), b"the handshake has failed");
        }
        // Their sockets and places are free now.
        self.held.take();
        drop(self.limit.replace(Box::pin(pending())));
        self.over.replace(Some(over.clone()));
        Poll::Ready(over)
    }

    /// Acts on the end of the handshake. A client learns if its early data was accepted.
    fn end(&self, connection: &Connection, side: Side, accepted: bool) -> Result<(), Error> {
        if let Some(error) = connection.close_reason() {
            return Err(failure::of_connection(&error, side));
        }
        let streams = self.streams.take();
        if side == Side::Client {
            // This end is the server.
            return Ok(());
        }
        if accepted {
            METRICS.early_data_accepted.add(1);
            streams.iter().for_each(|stream| stream.keep());
            return Ok(());
        }
        METRICS.early_data_rejected.add(1);
        if let Some((tickets, mark)) = &self.tickets {
            tickets.forget_before(*mark);
        }
        repeat(connection, &streams)
    }

    /// Notes a stream that the client has opened.
    pub(crate) fn add(&self, id: u64, direction: Direction) -> Rc<EarlyStream> {
        let stream = Rc::new(EarlyStream {
            id,
            direction,
            room: Rc::clone(&self.room),
            state: RefCell::new(State::Recording(Recording::default())),
            waiting: RefCell::default(),
        });
        self.streams.borrow_mut().push(Rc::clone(&stream));
        stream
    }
}

/// Opens the streams again, and sends their bytes.
fn repeat(connection: &Connection, streams: &[Rc<EarlyStream>]) -> Result<(), Error> {
    let mut opened = Vec::new();
    for stream in streams {
        let again = open(connection, stream.direction).ok_or_else(not_sent_again)?;
        // A stream that was opened after the rejection has taken the number of an earlier one.
        if VarInt::from(again.0.id()).into_inner() != stream.id {
            return Err(not_sent_again());
        }
        opened.push(again);
    }
    for (stream, (send, receive)) in streams.iter().zip(opened) {
        stream.replace(send, receive)?;
    }
    Ok(())
}

/// The server has rejected all bytes so far, and takes fewer streams or bytes than before. Another
/// connection, without early data, may carry the requests.
fn not_sent_again() -> Error {
    let detail = "the gateway rejected early data, which could not be sent again";
    Error::new(Kind::Full, Side::Peer, detail).with_retry(Retry::Safe)
}

/// Opens a stream, if the server permits it now.
fn open(connection: &Connection, direction: Direction) -> Option<(SendStream, Option<RecvStream>)> {
    let mut cx = Context::from_waker(Waker::noop());
    match direction {
        Direction::Bidirectional => match pin!(connection.open_bi()).poll(&mut cx) {
            Poll::Ready(Ok((send, receive))) => Some((send, Some(receive))),
            _ => None,
        },
        Direction::Unidirectional => match pin!(connection.open_uni()).poll(&mut cx) {
            Poll::Ready(Ok(send)) => Some((send, None)),
            _ => None,
        },
    }
}

/// A stream that a client opened before the handshake was over.
pub(crate) struct EarlyStream {
    id: u64,
    direction: Direction,
    room: Rc<Cell<usize>>,
    state: RefCell<State>,
    /// The tasks that wait for the end of the handshake.
    waiting: RefCell<Vec<Waker>>,
}

enum State {
    /// The handshake is not over.
    Recording(Recording),
    /// The server has accepted early data.
    Kept,
    /// The server has rejected early data: the halves of the new stream, until they are taken.
    Replaced(Option<SendStream>, Option<RecvStream>),
}

#[derive(Default)]
struct Recording {
    bytes: Vec<u8>,
    priority: Option<i32>,
    end: Option<End>,
    stopped: Option<Code>,
}

/// The end of the sending half.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Regular,
    Reset(Code),
}

/// The state of a half.
pub(crate) enum Settled<T> {
    /// The handshake is not over.
    NotYet,
    /// The half stays, or this one replaces it.
    Over(Option<T>),
}

impl EarlyStream {
    /// Returns the number of bytes that may be sent now.
    pub(crate) fn room(&self) -> usize {
        self.room.get()
    }

    fn change(&self, change: impl FnOnce(&mut Recording)) {
        if let State::Recording(recording) = &mut *self.state.borrow_mut() {
            change(recording);
        }
    }

    /// Notes sent bytes.
    pub(crate) fn sent(&self, bytes: &[u8]) {
        self.room.set(self.room.get().saturating_sub(bytes.len()));
        self.change(|recording| recording.bytes.extend_from_slice(bytes));
    }

    pub(crate) fn ended(&self, end: End) {
        self.change(|recording| recording.end = Some(end));
    }

    pub(crate) fn stopped(&self, code: Code) {
        self.change(|recording| recording.stopped = Some(code));
    }

    pub(crate) fn prioritised(&self, priority: i32) {
        self.change(|recording| recording.priority = Some(priority));
    }

    /// Wakes a task once the handshake is over.
    pub(crate) fn wait(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    pub(crate) fn settle_send(&self) -> Settled<SendStream> {
        match &mut *self.state.borrow_mut() {
            State::Recording(_) => Settled::NotYet,
            State::Kept => Settled::Over(None),
            State::Replaced(send, _) => Settled::Over(send.take()),
        }
    }

    pub(crate) fn settle_receive(&self) -> Settled<RecvStream> {
        match &mut *self.state.borrow_mut() {
            State::Recording(_) => Settled::NotYet,
            State::Kept => Settled::Over(None),
            State::Replaced(_, receive) => Settled::Over(receive.take()),
        }
    }

    fn keep(&self) {
        self.state.replace(State::Kept);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Sends the bytes on a new stream, which has room for all of them.
    fn replace(&self, mut send: SendStream, mut receive: Option<RecvStream>) -> Result<(), Error> {
        let State::Recording(recording) = self.state.replace(State::Kept) else {
            return Ok(());
        };
        let mut rest = &recording.bytes[..];
        let mut cx = Context::from_waker(Waker::noop());
        let _ = recording.priority.map(|it| send.set_priority(it));
        while !rest.is_empty() {
            match Pin::new(&mut send).poll_write(&mut cx, rest) {
                Poll::Ready(Ok(count)) => rest = &rest[count..],
                _ => return Err(not_sent_again().with_retry(Retry::IfIdempotent)),
            }
        }
        // The halves of a stream that was closed before are dropped.
        let _ = match recording.end {
            None => Ok(()),
            Some(End::Regular) => send.finish(),
            Some(End::Reset(code)) => send.reset(number(code)),
        };
        if let (Some(code), Some(receive)) = (recording.stopped, &mut receive) {
            let _ = receive.stop(number(code));
        }
        self.state.replace(State::Replaced(Some(send), receive));
        self.waiting.take().into_iter().for_each(Waker::wake);
        Ok(())
    }
}
