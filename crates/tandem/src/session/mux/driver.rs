//! The task that moves bytes between the path of a session and its sans-IO core.
//!
//! The [module above](super) shows its place. Each turn writes pending output, reads input, checks
//! the time limits and writes again.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Buf;
use tandem_http::{ByteMux, Event, Reason, Role, SendBuf};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::clock::Clock;
use super::probe_rtt::ProbeRtt;
use super::scratch::with_buffer;
use super::unsent::Unsent;
use super::{InputTime, Shared, mismatch, other_end, ping};
use crate::error::{Error, Kind, Retry, Side};
use crate::moment;
use crate::path::Path;
use crate::probe::Stamp;
use crate::probe::points::{HEADERS_DECODE, SOCKET_READ, SOCKET_WAIT, SOCKET_WRITE};
use crate::session::{Drain, Timeouts};

/// The most bytes taken from the core at a time while the socket accepts every write whole. The
/// socket queue is then short, so a larger write delays no urgent data, and fewer writes cost less.
const FAST_WRITE: usize = 128 << 10;

/// The time that a session which has ended waits for the other end to close.
const LINGER: std::time::Duration = std::time::Duration::from_secs(1);

/// The number of consecutive reads before the exchanges run.
const READS_PER_TURN: usize = 8;

/// The size in bytes of the core's control output (heads, resets, credit) at which a server stops
/// reading. Flow control does not bound this output, so a client that sends requests without
/// reading could grow it for ever.
const BACKLOG: usize = 1 << 20;

thread_local! {
    /// An empty buffer with the memory of the last write, for the next session that writes. An
    /// idle session holds no memory for its output, and a busy one allocates none.
    static SPARE: Cell<SendBuf> = Cell::new(SendBuf::new());
}

/// Handles the events that do not belong to an open stream. The server starts an exchange for each
/// request. The client wakes the exchanges that wait for a stream.
pub(super) trait Owner {
    /// Handles one such event.
    fn handle_event(&mut self, event: Event);
    /// Returns true if the session ends as soon as no exchange is open.
    fn ends_when_idle(&self) -> bool;
}

/// The limits of a driver.
pub(super) struct Pace {
    pub(super) timeouts: Timeouts,
    /// The number of bytes taken from the core at a time.
    pub(super) write_limit: usize,
}

/// Drives one session over its path. [`Driver::run`] resolves when the session is over.
pub(super) struct Driver<O> {
    shared: Rc<Shared>,
    core: Rc<RefCell<dyn ByteMux>>,
    path: Path,
    owner: O,
    role: Role,
    /// The other end, as errors name it.
    other_end: Side,
    write_limit: usize,
    drain: Option<Pin<Box<dyn Future<Output = ()>>>>,
    out: SendBuf,
    /// The limit on unsent data in the kernel. It is `None` until the first write, because the path
    /// may not be connected before that.
    unsent: Option<Unsent>,
    /// The watch over the kernel's BBR, which is `None` until the first write as well.
    probe_rtt: Option<ProbeRtt>,
    /// True while at least [`BACKLOG`] bytes of control output wait. The driver then reads no input
    /// until the client has taken some of them.
    deaf: bool,
    /// The number of consecutive writes that emptied `out`.
    whole_writes: u32,
    clock: Clock,
    /// The time at which `out` was last filled, for the observation points.
    filled: Stamp,
    /// The result of the session, set when it ends and returned once `out` is written.
    ending: Option<Result<(), Error>>,
    /// The error of a failed write, kept while the rest of the input is read.
    failed_write: Option<Error>,
}

impl<O: Owner> Driver<O> {
    pub(super) fn new(
        shared: Rc<Shared>,
        core: Rc<RefCell<dyn ByteMux>>,
        path: Path,
        owner: O,
        role: Role,
        pace: Pace,
        drain: Option<Drain>,
    ) -> Self {
        let now = Instant::now();
        let Pace {
            timeouts,
            write_limit,
        } = pace;
        // The core learns the time here, so that it can set a timer before any input arrives.
        shared.core.borrow_mut().handle_timeout(now);
        Self {
            shared,
            core,
            path,
            owner,
            role,
            other_end: other_end(role),
            write_limit,
            drain: drain.map(|drain| Box::pin(drain.begun()) as _),
            out: SendBuf::new(),
            unsent: None,
            probe_rtt: None,
            deaf: false,
            whole_writes: 0,
            clock: Clock::new(timeouts, role == Role::Server, now),
            filled: Stamp::default(),
            ending: None,
            failed_write: None,
        }
    }

    /// Drives the session to its end.
    ///
    /// The method borrows the driver, because the future of an `async fn` that takes `self` stores
    /// it twice.
    pub(super) async fn run(&mut self) -> Result<(), Error> {
        let poll = |cx: &mut Context<'_>| moment::shared_by(|| self.poll(cx));
        let result = std::future::poll_fn(poll).await;
        let error = match &result {
            Ok(()) => {
                let detail = if self.shared.established.get() {
                    "the session has ended"
                } else {
                    mismatch::CLOSED
                };
                Error::new(Kind::Reset, self.other_end, detail).with_retry(Retry::Safe)
            }
            Err(error) => error.clone(),
        };
        self.shared.end(&error);
        if result.is_ok() {
            // The box keeps the timers of the end out of the future of the open session.
            Box::pin(self.close()).await;
        }
        result
    }

    /// Closes this side of the path, and waits for the other end to close.
    async fn close(&mut self) {
        let shut = std::future::poll_fn(|cx| Pin::new(&mut self.path).poll_shutdown(cx));
        if let Ok(Ok(())) = tokio::time::timeout(self.clock.limits.head, shut).await {
            let linger = std::future::poll_fn(|cx| self.poll_linger(cx));
            // A peer that does not close is disconnected.
            let _ = tokio::time::timeout(LINGER, linger).await;
        }
    }

    /// Reads and drops input until the other end has closed. Closing a socket with unread input
    /// resets the connection, and the reset can destroy data that the other end has not read yet
    /// (RFC 9112 section 9.6).
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        with_buffer(|scratch| {
            loop {
                let mut buf = ReadBuf::new(scratch);
                match ready!(Pin::new(&mut self.path).poll_read(cx, &mut buf)) {
                    Ok(()) if !buf.filled().is_empty() => {}
                    _ => return Poll::Ready(()),
                }
            }
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.driver.set(cx.waker());
        if self.shared.is_lost.get() {
            return Poll::Ready(Err(self.lost()));
        }
        if self.failed_write.is_some() {
            return self.poll_read_out(cx);
        }
        if let Some(drain) = &mut self.drain
            && drain.as_mut().poll(cx).is_ready()
        {
            self.drain = None;
            self.shared.draining.set(true);
        }
        if self.shared.draining.get() {
            self.shared.core.borrow_mut().go_away(Reason::NoError);
        }
        // Write before reading: a client's first bytes must not wait for input. At its start, a
        // server reads first, so that its settings and the acknowledgement of the client's settings
        // share a packet.
        let writes_first = !self.is_server() || self.shared.established.get();
        if writes_first && let Err(error) = self.poll_write(cx) {
            return self.fail_write(cx, error);
        }
        if self.ending.is_none() {
            if let Err(error) = self.poll_read(cx) {
                self.ending = Some(Err(error));
            }
            if let Err(error) = self.poll_clock(cx) {
                self.ending = Some(Err(error));
            }
            self.end_if_idle();
        }
        if let Err(error) = self.poll_write(cx) {
            return self.fail_write(cx, error);
        }
        // Reading had stopped, and the last write has shortened the backlog: another turn must
        // resume reading. While the backlog is too long, the socket wakes this task when it accepts
        // more bytes.
        if self.deaf && self.ending.is_none() && !self.has_backlog() {
            cx.waker().wake_by_ref();
        }
        match &self.ending {
            Some(_) if self.out.is_empty() => Poll::Ready(self.ending.take().unwrap_or(Ok(()))),
            Some(_) => {
                // The last bytes are dropped if the other end does not take them in time.
                ready!(self.clock.sleep.as_mut().poll(cx));
                Poll::Ready(self.ending.take().unwrap_or(Ok(())))
            }
            None => {
                let deadline = self.core.borrow().poll_timeout();
                self.clock.hasten(deadline, cx);
                Poll::Pending
            }
        }
    }

    /// Returns the error of a session that is given up. Its unsent bytes are dropped, since the
    /// kernel would repeat them on the new network.
    fn lost(&self) -> Error {
        self.path.facts().reset_on_close();
        let detail = "the session's path is lost";
        Error::new(Kind::Timeout, self.other_end, detail).with_retry(Retry::IfIdempotent)
    }

    fn end_if_idle(&mut self) {
        let draining = self.shared.draining.get() || self.owner.ends_when_idle();
        if draining && self.ending.is_none() && self.shared.core.borrow().active() == 0 {
            self.shared.core.borrow_mut().go_away(Reason::NoError);
            self.ending = Some(Ok(()));
        }
    }

    /// Returns true if this end is the server.
    fn is_server(&self) -> bool {
        self.role == Role::Server
    }

    /// Returns true if the server should stop reading until its queue shrinks. Only the server does
    /// this: if both ends did, each could wait for the other for ever.
    fn has_backlog(&self) -> bool {
        self.is_server() && self.shared.core.borrow().backlog() >= BACKLOG
    }

    /// Handles a write error. A server ends the session at once, since it can send no more
    /// responses. A client first reads the responses that arrived before the path failed.
    fn fail_write(&mut self, cx: &mut Context<'_>, error: Error) -> Poll<Result<(), Error>> {
        if self.is_server() || self.ending.is_some() {
            return Poll::Ready(self.ending.take().unwrap_or(Err(error)));
        }
        self.failed_write = Some(error);
        let until = tokio::time::Instant::now() + LINGER;
        self.clock.sleep.as_mut().reset(until);
        self.poll_read_out(cx)
    }

    /// Reads the input that arrived before the path failed. For example, a server may respond, send
    /// GOAWAY and close. The client's next write then fails, although the response is still in the
    /// socket.
    fn poll_read_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            match self.read_once(cx) {
                Ok(Some(1..)) => {}
                // The socket may hold input that the event loop has not reported yet.
                Ok(None) => {
                    ready!(self.clock.sleep.as_mut().poll(cx));
                    break;
                }
                // The first bytes may show that the other end speaks another protocol.
                Err(error) if !self.shared.established.get() => {
                    self.failed_write = Some(error);
                    break;
                }
                Ok(_) | Err(_) => break,
            }
        }
        let failed = self.failed_write.take().map_or(Ok(()), Err);
        Poll::Ready(self.ending.take().unwrap_or(failed))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        if self.shared.pushed_heads.begin_turn() {
            cx.waker().wake_by_ref();
            return Ok(());
        }
        for turn in 0..READS_PER_TURN {
            self.deaf = self.has_backlog();
            if self.deaf {
                // The reply to a probe cannot be read now, so the probe must not time out. The
                // write limit detects a dead peer instead.
                self.clock.probed_at = None;
                return Ok(());
            }
            if !matches!(self.read_once(cx)?, Some(1..)) {
                return Ok(());
            }
            if turn + 1 == READS_PER_TURN || self.shared.pushed_heads.ends_turn() {
                cx.waker().wake_by_ref();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads once and dispatches the events. Returns the number of bytes read, 0 at the end of the
    /// connection, or `None` if no input is ready.
    fn read_once(&mut self, cx: &mut Context<'_>) -> Result<Option<usize>, Error> {
        let mut took = None;
        let read = with_buffer(|scratch| {
            let mut buf = ReadBuf::new(scratch);
            match Pin::new(&mut self.path).poll_read(cx, &mut buf) {
                Poll::Pending => Ok(None),
                Poll::Ready(Err(error)) => Err(Error::io(&error, self.other_end)),
                Poll::Ready(Ok(())) if buf.filled().is_empty() => Ok(Some(0)),
                Poll::Ready(Ok(())) => {
                    let decoding = HEADERS_DECODE.start();
                    let taken = self.take_in(buf.filled());
                    took = decoding.elapsed();
                    taken.map(|()| Some(buf.filled().len()))
                }
            }
        });
        match read {
            // Events from input before the error are still delivered.
            Err(error) => {
                self.dispatch();
                return Err(error);
            }
            Ok(None) => {}
            Ok(Some(0)) => self.peer_closed()?,
            Ok(Some(_)) => {
                if !self.shared.established.replace(true) {
                    self.shared.waiting.wake_all();
                    self.shared.watch.established();
                }
                if self.dispatch()
                    && let Some(time) = took
                {
                    HEADERS_DECODE.note_time(time, 0);
                }
            }
        }
        read
    }

    /// Passes input to the core and notes the time of its arrival.
    fn take_in(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if !self.is_server() && !self.shared.established.get() && mismatch::is_other_protocol(bytes)
        {
            return Err(mismatch::error(bytes));
        }
        let now = Instant::now();
        if self
            .shared
            .heard
            .replace(Some(InputTime::at(now)))
            .is_none()
        {
            self.shared.answered_in.set(now - self.clock.read_at);
        }
        self.clock.read_at = now;
        self.clock.probed_at = None;
        SOCKET_READ.note(bytes.len() as u64, 0);
        let mut core = self.core.borrow_mut();
        core.handle_input(now, bytes).map_err(|error| {
            Error::new(Kind::Protocol, self.other_end, error.to_string())
                .with_retry(Retry::IfIdempotent)
        })
    }

    /// Ends the session after the other end closed it. This is an error while an exchange is open.
    fn peer_closed(&mut self) -> Result<(), Error> {
        if self.shared.core.borrow().active() == 0 {
            self.ending = Some(Ok(()));
            return Ok(());
        }
        let detail = if self.shared.established.get() {
            "the session's connection was closed"
        } else {
            mismatch::CLOSED
        };
        let error = Error::new(Kind::Truncated, self.other_end, detail);
        Err(error.with_retry(Retry::IfIdempotent))
    }

    /// Delivers all events of the core. Returns true if a request, response or push head was among
    /// them.
    fn dispatch(&mut self) -> bool {
        let mut heads = false;
        loop {
            let event = self.shared.core.borrow_mut().poll_event();
            let Some(event) = event else { return heads };
            if matches!(event, Event::Request { .. }) {
                self.clock.unasked_since = None;
            }
            heads |= matches!(
                event,
                Event::Request { .. } | Event::Response { .. } | Event::Push { .. }
            );
            if let Some(event) = self.shared.dispatch(event, self.role) {
                self.owner.handle_event(event);
            }
        }
    }

    /// Writes until the path accepts no more, or no output is left.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if self.out.is_empty() {
                if self.take_output(cx).is_pending() {
                    self.whole_writes = 0;
                    self.clock.stuck_since.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                // Streams with room for more data wake their writers here, so that the data can
                // leave in the same turn.
                self.dispatch();
            }
            if self.out.is_empty() {
                self.out.shrink();
                self.clock.stuck_since = None;
                return match Pin::new(&mut self.path).poll_flush(cx) {
                    Poll::Ready(Err(error)) => Err(Error::io(&error, self.other_end)),
                    _ => Ok(()),
                };
            }
            match self.poll_write_once(cx) {
                Poll::Pending => {
                    self.whole_writes = 0;
                    self.clock.stuck_since.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                Poll::Ready(Ok(0)) => {
                    let detail = "the session's connection takes no bytes";
                    return Err(Error::new(Kind::Reset, self.other_end, detail));
                }
                Poll::Ready(Ok(written)) => self.wrote(written),
                Poll::Ready(Err(error)) => return Err(Error::io(&error, self.other_end)),
            }
        }
    }

    /// Takes the next output of the core, if there is any. The method waits until the path has room
    /// for the output, so that the core chooses late. The output of a session that ends does not
    /// wait.
    fn take_output(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut core = self.core.borrow_mut();
        self.shared.watch.look(&*core);
        if !core.wants_output() {
            return Poll::Ready(());
        }
        let room = match &mut self.unsent {
            Some(unsent) if self.ending.is_none() => {
                ready!(unsent.poll_room(&**self.path.facts(), cx))
            }
            _ => usize::MAX,
        };
        let limit = if self.whole_writes >= 3 {
            FAST_WRITE.max(self.write_limit)
        } else {
            self.write_limit
        };
        self.out = SPARE.take();
        core.poll_output(&mut self.out, limit.min(room));
        self.filled = SOCKET_WAIT.start();
        self.shared.watch.look(&*core);
        Poll::Ready(())
    }

    /// Offers the output to the path once. Returns the number of bytes that it has accepted.
    fn poll_write_once(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); 32];
        let count = self.out.chunks_vectored(&mut slices);
        let path = Pin::new(&mut self.path);
        if count == 1 || !path.is_write_vectored() {
            path.poll_write(cx, self.out.chunk())
        } else {
            path.poll_write_vectored(cx, &slices[..count])
        }
    }

    /// Drops the output that the path has accepted, and adapts the sizes of the next writes.
    fn wrote(&mut self, written: usize) {
        self.out.advance(written);
        SOCKET_WRITE.note(written as u64, 0);
        if self.out.is_empty() {
            SOCKET_WAIT.stop(self.filled.take(), 0);
            SPARE.set(std::mem::take(&mut self.out));
        }
        let facts = &**self.path.facts();
        let unsent = self.unsent.get_or_insert_with(|| Unsent::of(facts));
        let refused = self.clock.stuck_since.take();
        let refused = refused.map_or(Duration::ZERO, |since| since.elapsed());
        unsent.wrote(facts, written, refused);
        let probe_rtt = self.probe_rtt.get_or_insert_with(|| ProbeRtt::of(facts));
        probe_rtt.wrote(facts);
        self.whole_writes = if self.out.is_empty() {
            self.whole_writes.saturating_add(1)
        } else {
            0
        };
    }

    /// Enforces the session's time limits. It closes idle sessions and those without a first
    /// request, probes silent ones and disconnects those that take no bytes.
    fn poll_clock(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        while self.clock.sleep.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let mut core = self.shared.core.borrow_mut();
            core.handle_timeout(now);
            self.shared.free_unused();
            let active = core.active() > 0 || !self.shared.waiting.is_empty();
            if active {
                self.clock.used_at = now;
            }
            self.clock.check(now, self.other_end)?;
            if active && !self.deaf && self.clock.is_probe_due(now) {
                self.clock.probed_at = core.ping(ping::DURING_EXCHANGE).then_some(now);
            }
            let established = self.shared.established.get();
            let for_request = self.clock.time_for_request(now, established);
            let idle = !active && self.clock.is_idle_too_long(now);
            if idle || for_request.is_some_and(|left| left.is_zero()) {
                core.go_away(Reason::NoError);
                self.shared.idled_out.set(true);
                self.ending = Some(Ok(()));
            }
            let of_core = core.poll_timeout();
            let of_core = of_core.map(|at| at.saturating_duration_since(now));
            self.clock.wait([for_request, of_core]);
        }
        Ok(())
    }
}

impl<O> Drop for Driver<O> {
    /// Fails the exchanges of a session that is dropped before its end.
    fn drop(&mut self) {
        self.shared.end_dropped(self.other_end);
    }
}
