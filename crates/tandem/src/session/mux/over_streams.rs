//! The task that moves bytes between the streams of a carrier and the core of HTTP/3 (RFC 9114).
//!
//! ```text
//!   Carrier::Streams ◀──▶ StreamsDriver (one task) ◀──▶ h3::Connection ◀──▶ exchanges
//! ```
//!
//! The [module above](super) shows its place. A stream that becomes readable or writable puts
//! itself on a list, and a turn looks at the streams of that list only. The module
//! [`order`](super::order) chooses the stream that writes next.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tandem_http::h3::{self, Command, Connection};
use tandem_http::{Event, Mux, Reason, Role, SessionError, StreamId};
use tokio::io::ReadBuf;
use tokio::time::Sleep;

use super::driver::{Owner, Pace};
use super::halves::{AwakeStreams, Read, StreamHalves, Written};
use super::order::{HeldStreams, Pause};
use super::refused::{STREAM_TIMEOUT, full};
use super::scratch::with_buffer;
use super::streams_clock::StreamsClock;
use super::unread::Looks;
use super::{InputTime, Shared, other_end};
use crate::carrier::{CarrierStream, Code, Direction, Streams};
use crate::error::{Error, Kind, Retry, Side};
use crate::session::Drain;

/// The number of consecutive reads of a stream before other streams are read.
const READS_PER_STREAM: usize = 4;
/// The number of rounds of reads and writes before the exchanges run.
const ROUNDS_PER_TURN: usize = 8;

/// Drives one session over its carrier. [`StreamsDriver::run`] resolves when the session is over.
pub(super) struct StreamsDriver<O> {
    pub(super) shared: Rc<Shared>,
    pub(super) core: Rc<RefCell<Connection>>,
    pub(super) carrier: Rc<dyn Streams>,
    owner: O,
    role: Role,
    /// The other end, as errors name it.
    other_end: Side,
    pub(super) pace: Pace,
    drain: Option<Pin<Box<dyn Future<Output = ()>>>>,
    pub(super) streams: HashMap<u64, StreamHalves>,
    /// The streams that hold output and may go on writing.
    pub(super) held: HeldStreams,
    /// True while the carrier cannot open another unidirectional stream.
    opens_later: bool,
    awake: Arc<AwakeStreams>,
    pub(super) clock: StreamsClock,
    /// The end of the carrier, once it was noticed: an error, or `Some(None)` after a regular end.
    pub(super) carrier_ended: Option<Option<Error>>,
    /// The timer of requests that wait because the peer permits no more streams.
    stream_timer: Option<Pin<Box<Sleep>>>,
    pub(super) looks: Looks,
}

impl<O: Owner> StreamsDriver<O> {
    pub(super) fn new(
        shared: Rc<Shared>,
        core: Rc<RefCell<Connection>>,
        carrier: Rc<dyn Streams>,
        owner: O,
        role: Role,
        pace: Pace,
        drain: Option<Drain>,
    ) -> Self {
        let now = Instant::now();
        core.borrow_mut().handle_timeout(now);
        if carrier.max_datagram().is_some() {
            core.borrow_mut().permit_datagrams();
        }
        let clock = StreamsClock::new(&pace.timeouts, role == Role::Server, now);
        let this = Self {
            shared,
            core,
            carrier,
            owner,
            role,
            other_end: other_end(role),
            pace,
            drain: drain.map(|drain| Box::pin(drain.begun()) as _),
            streams: HashMap::new(),
            held: HeldStreams::default(),
            opens_later: false,
            awake: Arc::default(),
            clock,
            carrier_ended: None,
            stream_timer: None,
            looks: Looks::default(),
        };
        this.begin();
        this
    }

    /// Drives the session to its end, and closes the carrier.
    pub(super) async fn run(&mut self) -> Result<(), Error> {
        let result = std::future::poll_fn(|cx| self.poll(cx)).await;
        let error = match &result {
            Ok(()) => {
                let detail = "the session has ended";
                Error::new(Kind::Reset, self.other_end, detail).with_retry(Retry::Safe)
            }
            Err(error) => error.clone(),
        };
        self.fail_unsent(&error);
        self.shared.end(&error);
        if result.is_ok() {
            Box::pin(self.leave()).await;
        }
        let (code, reason) = self
            .core
            .borrow()
            .failure()
            .unwrap_or((h3::Code::NO_ERROR, "the session has ended"));
        self.carrier.close(Code(code.0), reason);
        result
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.register(cx);
        if let Some(drain) = &mut self.drain
            && drain.as_mut().poll(cx).is_ready()
        {
            self.drain = None;
            self.shared.draining.set(true);
        }
        if self.shared.draining.get() {
            self.core.borrow_mut().go_away(Reason::NoError);
        }
        self.poll_early(cx)?;
        let more = self.turn(cx)?;
        let ended_well = matches!(self.carrier_ended, Some(None));
        if ended_well && !self.is_server() && (more || self.fail_all_but_unread()) {
            return Poll::Pending;
        }
        if let Some(end) = self.carrier_ended.take() {
            return Poll::Ready(self.after_carrier(end));
        }
        self.poll_stream_timer(cx);
        self.poll_unread(cx);
        let over = self.poll_clock(cx) || self.is_over();
        if over {
            self.core.borrow_mut().go_away(Reason::NoError);
            self.turn(cx)?;
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Returns true if this end is the server.
    pub(super) fn is_server(&self) -> bool {
        self.role == Role::Server
    }

    /// Registers the task that drives the session, so that streams and exchanges can wake it.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.shared.driver.set(cx.waker());
        self.awake.set_task(cx.waker());
    }

    /// Returns true if the session ends because no exchange is open.
    fn is_over(&self) -> bool {
        let draining = self.shared.draining.get() || self.owner.ends_when_idle();
        draining && self.core.borrow().active() == 0
    }

    /// Returns the result of a session whose carrier has ended.
    fn after_carrier(&self, end: Option<Error>) -> Result<(), Error> {
        if self.core.borrow().active() == 0 && end.is_none() {
            return Ok(());
        }
        Err(end.unwrap_or_else(|| self.truncated()))
    }

    fn truncated(&self) -> Error {
        let detail = "the session's connection was closed";
        let error = Error::new(Kind::Truncated, self.other_end, detail);
        error.with_retry(Retry::IfIdempotent)
    }

    /// Fails all exchanges except those whose responses arrived before the carrier ended and wait
    /// for their readers. Returns true if there are any. No new exchanges begin.
    fn fail_all_but_unread(&self) -> bool {
        let mut unread = self.core.borrow().unread();
        unread.retain(|(stream, _)| {
            let stream = self.streams.get(stream);
            stream.is_some_and(StreamHalves::is_receiving)
        });
        if unread.is_empty() {
            return false;
        }
        self.fail_unsent(&self.truncated());
        self.core.borrow_mut().go_away(Reason::NoError);
        let is_unread = |id| unread.iter().any(|(_, unread)| *unread == id);
        self.shared.fail_unless(is_unread, &self.truncated());
        true
    }

    /// Moves bytes until there is nothing to do. Returns true if it stopped before that, and the
    /// task runs again.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let waits_for_readers = self.shared.pushed_heads.begin_turn();
        for _ in 0..ROUNDS_PER_TURN {
            self.accept(cx)?;
            self.open(cx)?;
            self.datagrams(cx)?;
            if !waits_for_readers {
                self.serve_awake()?;
            }
            self.dispatch();
            self.execute();
            let writes_on = match self.write_in_order(cx)? {
                Pause::Done => true,
                Pause::NoRoom => false,
                Pause::GivesWay => {
                    self.dispatch();
                    break;
                }
            };
            self.dispatch();
            self.execute();
            // If the carrier cannot open a stream yet, it wakes the task later.
            let writes_on = writes_on && self.wants_room();
            if waits_for_readers || self.shared.pushed_heads.ends_turn() {
                break;
            }
            if self.awake.is_empty() && !self.core.borrow().wants_round() && !writes_on {
                return Ok(false);
            }
        }
        cx.waker().wake_by_ref();
        Ok(true)
    }

    fn accept(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        while self.carrier_ended.is_none() {
            match self.carrier.poll_accept(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(Some(stream))) => {
                    let direction = if stream.send.is_some() {
                        h3::Direction::Bidirectional
                    } else {
                        h3::Direction::Unidirectional
                    };
                    let id = stream.id;
                    self.insert(stream);
                    let accepted = self.core.borrow_mut().handle_accepted(id, direction);
                    accepted.map_err(|error| self.broken(&error))?;
                }
                Poll::Ready(Ok(None)) => self.carrier_ended = Some(None),
                Poll::Ready(Err(error)) => self.carrier_ended = Some(Some(error)),
            }
        }
        if self.carrier_ended.is_some() {
            // Input that arrived before the end is still in the streams.
            self.streams.keys().for_each(|id| self.awake.add(*id));
        }
        Ok(())
    }

    fn insert(&mut self, stream: CarrierStream) {
        let id = stream.id;
        self.streams
            .insert(id, StreamHalves::new(stream, &self.awake));
        self.awake.add(id);
    }

    /// Opens the streams that the core wants.
    pub(super) fn open(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        self.opens_later = false;
        let directions = [
            (h3::Direction::Unidirectional, Direction::Unidirectional),
            (h3::Direction::Bidirectional, Direction::Bidirectional),
        ];
        for (wanted, direction) in directions {
            let is_request = direction == Direction::Bidirectional;
            let mut opened = false;
            while self.core.borrow_mut().wants_stream(wanted) {
                match self.carrier.poll_open(direction, cx) {
                    Poll::Pending => {
                        if is_request {
                            self.core.borrow_mut().set_blocked(true);
                            self.stream_timer.get_or_insert_with(|| {
                                Box::pin(tokio::time::sleep(STREAM_TIMEOUT))
                            });
                        } else {
                            self.opens_later = true;
                        }
                        break;
                    }
                    Poll::Ready(Ok(stream)) => {
                        let id = stream.id;
                        self.insert(stream);
                        self.core.borrow_mut().handle_opened(wanted, id);
                        opened = true;
                        if is_request {
                            self.stream_timer = None;
                        }
                    }
                    // `accept` reports the end of the carrier with its reason, unless the handshake
                    // has just failed.
                    Poll::Ready(Err(_)) if self.carrier.has_ended() => {
                        self.poll_early(cx)?;
                        break;
                    }
                    Poll::Ready(Err(error)) => return Err(error),
                }
            }
            if is_request && !self.core.borrow_mut().wants_stream(wanted) {
                self.core.borrow_mut().set_blocked(false);
                self.stream_timer = None;
            }
            if is_request && opened {
                self.shared.waiting.wake_all();
            }
        }
        self.execute();
        Ok(())
    }

    /// Returns true if the core wants another unidirectional stream that the carrier may be able to
    /// open.
    pub(super) fn wants_to_open(&self) -> bool {
        let direction = h3::Direction::Unidirectional;
        !self.opens_later && self.core.borrow_mut().wants_stream(direction)
    }

    /// Refuses the requests for which the peer has permitted no stream in time.
    fn poll_stream_timer(&mut self, cx: &mut Context<'_>) {
        let stream_timer = self.stream_timer.as_mut();
        if stream_timer.is_none_or(|stream_timer| stream_timer.as_mut().poll(cx).is_pending()) {
            return;
        }
        self.stream_timer = None;
        let refused = self.core.borrow_mut().take_unopened();
        for id in refused {
            self.shared.watch.forget(id);
            if let Some(stream) = self.shared.streams.borrow_mut().get_mut(&id) {
                stream.fail(full());
            }
        }
        self.shared.waiting.wake_all();
    }

    /// Looks at the streams that may have become readable or writable.
    fn serve_awake(&mut self) -> Result<(), Error> {
        let mut awake = self.awake.take();
        while let Some(id) = self.core.borrow_mut().poll_resumed() {
            awake.push(id);
        }
        // The control streams come first, since a request may depend on a setting.
        awake.sort_unstable_by_key(|id| (!is_unidirectional(*id), *id));
        awake.dedup();
        for id in awake {
            if self.shared.pushed_heads.ends_turn() {
                // The readers go on first.
                self.awake.add(id);
            } else if let Some(stream) = self.streams.get_mut(&id) {
                stream.taken_from_list();
                self.serve(id)?;
                if !self.is_server() {
                    self.dispatch();
                }
            }
        }
        Ok(())
    }

    /// Reads one stream, and lets it go on writing.
    fn serve(&mut self, id: u64) -> Result<(), Error> {
        let stopped = self
            .streams
            .get_mut(&id)
            .and_then(StreamHalves::poll_stopped);
        match stopped {
            Some(code) => self.stopped(id, code)?,
            None => match self.streams.get(&id).filter(|it| it.holds_output()) {
                Some(stream) if stream.is_critical => self.write(id)?,
                Some(stream) => self.held.add(id, stream),
                None => {}
            },
        }
        self.read(id)?;
        if self.streams.get(&id).is_some_and(StreamHalves::is_over) {
            self.streams.remove(&id);
        }
        Ok(())
    }

    fn read(&mut self, id: u64) -> Result<(), Error> {
        for turn in 0..READS_PER_STREAM {
            let Some(stream) = self.streams.get_mut(&id) else {
                return Ok(());
            };
            if !self.core.borrow().wants_input(id) {
                if stream.is_receiving() {
                    self.looks.begin();
                }
                return Ok(());
            }
            let now = Instant::now();
            let core = &self.core;
            let (more, result) = with_buffer(|scratch| {
                let mut buf = ReadBuf::new(scratch);
                let read = stream.read(&mut buf);
                let mut core = core.borrow_mut();
                match read {
                    Read::Nothing | Read::Failed => (false, Ok(())),
                    Read::Bytes => (true, core.handle_input(now, id, buf.filled(), false)),
                    Read::End => (false, core.handle_input(now, id, &[], true)),
                    Read::Reset(code) => (false, core.handle_reset(now, id, h3::Code(code.0))),
                }
            });
            if more {
                self.shared.heard.set(Some(InputTime::at(now)));
            }
            if let Err(error) = result {
                // Events from input before the error are still delivered.
                self.dispatch();
                return Err(self.broken(&error));
            }
            if !more {
                return Ok(());
            }
            if turn + 1 == READS_PER_STREAM {
                self.awake.add(id);
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, id: u64) -> Result<(), Error> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        match stream.write() {
            Written::Blocked => {}
            Written::All { was_waiting } => {
                if was_waiting {
                    self.core.borrow_mut().handle_written(id);
                }
                // The carrier reports when the peer has received all of an ended stream.
                if let Some(code) = self
                    .streams
                    .get_mut(&id)
                    .and_then(StreamHalves::poll_stopped)
                {
                    self.stopped(id, code)?;
                }
            }
            Written::Stopped(code) => self.stopped(id, code)?,
            // `accept` reports the end of the carrier with its reason.
            Written::Failed => stream.drop_sending(),
        }
        Ok(())
    }

    /// Acts on a stream that the peer has stopped.
    fn stopped(&mut self, id: u64, code: Code) -> Result<(), Error> {
        let now = Instant::now();
        let handled = self
            .core
            .borrow_mut()
            .handle_stopped(now, id, h3::Code(code.0));
        handled.map_err(|error| self.broken(&error))?;
        self.execute();
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.drop_sending();
        }
        Ok(())
    }

    /// Executes the changes of streams that the core asks for.
    pub(super) fn execute(&mut self) {
        loop {
            let command = self.core.borrow_mut().poll_command();
            let Some(command) = command else { return };
            let (Command::Reset { stream: id, .. }
            | Command::Stop { stream: id, .. }
            | Command::Prioritise { stream: id, .. }) = command;
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            match command {
                Command::Reset { code, .. } => stream.reset(Code(code.0)),
                Command::Stop { code, .. } => stream.stop(Code(code.0)),
                Command::Prioritise { priority, .. } => {
                    let change = |stream: &mut StreamHalves| stream.set_priority(priority);
                    self.held.update(id, stream, change);
                }
            }
            if stream.is_over() {
                self.streams.remove(&id);
            }
        }
    }

    /// Delivers the events of the core. A server delivers no request before the client's SETTINGS
    /// frame. The client sends the frame first, but on another stream, so it may arrive later.
    fn dispatch(&mut self) {
        if self.is_server() && self.core.borrow().peer_extended_connect().is_none() {
            return;
        }
        loop {
            let event = self.core.borrow_mut().poll_event();
            let Some(event) = event else { return };
            if matches!(event, Event::Request { .. }) {
                self.clock.unasked_since = None;
            }
            if let Some(event) = self.shared.dispatch(event, self.role) {
                self.owner.handle_event(event);
            }
        }
    }

    pub(super) fn broken(&self, error: &SessionError) -> Error {
        let error = Error::new(Kind::Protocol, self.other_end, error.to_string());
        error.with_retry(Retry::IfIdempotent)
    }
}

impl Shared {
    /// Ends a session whose driver was dropped. A session that has ended keeps its reason.
    pub(super) fn end_dropped(&self, other_end: Side) {
        let error = Error::new(Kind::Reset, other_end, "the session was dropped");
        self.end(&error.with_retry(Retry::IfIdempotent));
    }

    /// Fails the unfinished exchanges except those for which `keep` returns true. Requests that
    /// wait for a stream look at the session again.
    fn fail_unless(&self, keep: impl Fn(StreamId) -> bool, error: &Error) {
        for (id, stream) in self.streams.borrow_mut().iter_mut() {
            if !stream.complete && !keep(*id) {
                stream.fail(error.clone());
            }
        }
        self.waiting.wake_all();
    }
}

impl<O> Drop for StreamsDriver<O> {
    /// Fails the exchanges of a session that is dropped before its end.
    fn drop(&mut self) {
        self.shared.end_dropped(self.other_end);
        self.carrier
            .close(Code(h3::Code::NO_ERROR.0), "the session was dropped");
    }
}

/// Returns true if only one end sends on a stream (RFC 9000 section 2.1).
const fn is_unidirectional(id: u64) -> bool {
    id & 2 != 0
}
