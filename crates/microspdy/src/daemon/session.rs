//! A session: its socket, its core and the responses under way. Nothing here calls the program;
//! the results are notices for `run`.

mod events;

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use socket2::Socket;
use tandem_http::{
    ByteMux as _, Mux as _, MuxConfig, Priority, Reason, RequestHead, Role, SendBuf,
};
use tandem_http::{StreamId, mux};
use tandem_spdy::frame::Settings as SettingsFrame;
use tandem_spdy::{Config, Connection, Version};

use super::delivery::{Deliveries, Pull};
use super::idle_memory::IdleContexts;
use super::requests::Requests;
use super::run::Notice;
use super::{Daemon, Queued, RequestEntry, SessionId};
use crate::ffi::callbacks::{Block, Outcome, PingCallback};
use crate::handles::{self, Handle};
use crate::transport::{Received, Transport};

/// Streams that a client may have open at once.
pub(crate) const MAX_STREAMS: u32 = 256;
/// Bytes that a client may send unasked, on a stream and on a session. A callback takes data at
/// once, so this bounds no memory. Some clients (spdystream) count no windows: a small one would
/// end their uploads while credit waits behind a response that they have not read.
const WINDOW: u32 = 1 << 30;
/// Bytes of a body that wait in the core: two blocks, since callbacks are called late.
const SEND_BUFFER: usize = 16 << 10;
/// A session reads no more while this many bytes of control frames wait for the client.
const MAX_BACKLOG: usize = 64 << 10;
/// A frame of the largest size, in bytes.
const FRAME: usize = 8192 + 8;
/// Reads of one run.
const MAX_READS: usize = 16;
/// The time that a closing session has for its last frames.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// The life of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Only the bytes in the output buffer still leave, until this time.
    Closing(Instant),
    Over {
        by_client: bool,
    },
}

/// A ping that waits for its answer.
#[derive(Debug)]
struct Ping {
    payload: u32,
    sent: Instant,
    callback: Option<PingCallback>,
}

/// Pings that wait for their answers, at most.
const MAX_PINGS: usize = 64;

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    handle: Handle,
    daemon: Weak<Daemon>,
    socket: Socket,
    transport: Transport,
    core: Connection,
    version: Version,
    /// The handshake has ended, and the core has the right version.
    started: bool,
    out: SendBuf,
    /// Bytes that the core gave out, and that left `out`.
    put: u64,
    sent: u64,
    /// The socket took less than it was given.
    blocked: bool,
    /// The last read may have left something behind.
    more_input: bool,
    deliveries: Deliveries,
    requests: Requests,
    pings: Vec<Ping>,
    next_ping: u32,
    last_activity: Instant,
    contexts: IdleContexts,
    phase: Phase,
}

/// A new connection.
pub(super) struct Origin {
    pub(super) id: SessionId,
    pub(super) handle: Handle,
    pub(super) daemon: Weak<Daemon>,
    pub(super) socket: Socket,
    pub(super) transport: Transport,
    pub(super) v31: bool,
}

fn core(version: Version) -> Connection {
    let mut mux = MuxConfig::new(Role::Server);
    mux.stream_window = WINDOW;
    mux.session_window = WINDOW;
    mux.max_streams = MAX_STREAMS;
    mux.send_buffer = SEND_BUFFER;
    let mut config = Config::new(mux, version);
    config.literal_requests = true;
    config.keeps_released_text = true;
    Connection::new(config)
}

impl Session {
    pub(super) fn new(origin: Origin, now: Instant) -> Self {
        let version = if origin.v31 {
            Version::V31
        } else {
            Version::V3
        };
        Self {
            id: origin.id,
            handle: origin.handle,
            daemon: origin.daemon,
            socket: origin.socket,
            transport: origin.transport,
            core: core(version),
            version,
            started: false,
            out: SendBuf::new(),
            put: 0,
            sent: 0,
            blocked: false,
            more_input: false,
            deliveries: Deliveries::default(),
            requests: Requests::default(),
            pings: Vec::new(),
            next_ping: 0,
            last_activity: now,
            contexts: IdleContexts::default(),
            phase: Phase::Open,
        }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Returns `Some(by_client)` once the session has ended.
    pub(super) fn ended(&self) -> Option<bool> {
        match self.phase {
            Phase::Over { by_client } => Some(by_client),
            _ => None,
        }
    }

    pub(super) fn wants_read(&self) -> bool {
        self.is_open() && self.core.backlog() < MAX_BACKLOG
    }

    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn has_buffered_input(&self) -> bool {
        self.more_input && self.wants_read()
    }

    /// Returns true if a run would write, or call the program.
    pub(super) fn has_work(&self) -> bool {
        if !self.out.is_empty() || self.transport.wants_write() || self.has_buffered_input() {
            return true;
        }
        match self.phase {
            Phase::Open => {
                self.transport.is_ready()
                    && (self.core.wants_output() || self.deliveries.has_work(&self.core))
            }
            Phase::Closing(_) | Phase::Over { .. } => true,
        }
    }

    /// Returns the time of the next timeout.
    pub(super) fn deadline(&self, session_timeout: Option<Duration>) -> Option<Instant> {
        match self.phase {
            Phase::Open => {
                let silence = session_timeout.map(|timeout| self.last_activity + timeout);
                let times = [silence, self.core.poll_timeout(), self.release_time()];
                times.into_iter().flatten().min()
            }
            Phase::Closing(until) => Some(until),
            Phase::Over { .. } => None,
        }
    }

    /// Handles the timeouts that are due. Returns true if the session has freed memory.
    pub(super) fn check_time(&mut self, session_timeout: Option<Duration>, now: Instant) -> bool {
        match self.phase {
            Phase::Open => {
                let silent = session_timeout.is_some_and(|time| self.last_activity + time <= now);
                if silent {
                    self.close(now);
                } else if self.core.poll_timeout().is_some_and(|time| time <= now) {
                    self.core.handle_timeout(now);
                }
                let is_due = self.release_time().is_some_and(|time| time <= now);
                if is_due {
                    self.free_contexts(now);
                }
                return is_due;
            }
            Phase::Closing(until) if until <= now => self.phase = Phase::Over { by_client: false },
            _ => {}
        }
        false
    }

    /// Begins the end: GOAWAY leaves, and nothing after it.
    pub(super) fn close(&mut self, now: Instant) {
        if self.is_open() {
            self.core.go_away(Reason::NoError);
            self.begin_closing(now);
        }
    }

    /// Takes the control frames out of the core; data that waits is given up.
    fn begin_closing(&mut self, now: Instant) {
        if self.transport.is_ready() {
            while self.core.backlog() > 0 {
                let limit = self.out.len() + self.core.backlog();
                self.core.poll_output(&mut self.out, limit);
            }
        }
        self.phase = Phase::Closing(now + FLUSH_TIME);
    }

    /// Reads and handles the received bytes.
    pub(super) fn receive(&mut self, buffer: &mut [u8], now: Instant) -> Vec<Notice> {
        let mut notices = Vec::new();
        for _ in 0..MAX_READS {
            if !self.wants_read() {
                break;
            }
            match self.transport.receive(&self.socket, buffer) {
                Ok(Received::Bytes(count)) => {
                    self.more_input = count == buffer.len() || self.transport.holds_input();
                    self.last_activity = now;
                    self.contexts.wake(now);
                    self.start();
                    if self.core.handle_input(now, &buffer[..count]).is_err() {
                        self.collect(&mut notices);
                        self.begin_closing(now);
                    }
                    self.collect(&mut notices);
                    if !self.more_input {
                        break;
                    }
                }
                Ok(Received::Nothing) => {
                    self.more_input = false;
                    self.start();
                    break;
                }
                Ok(Received::Closed) => {
                    self.phase = Phase::Over { by_client: true };
                }
                Err(error) => self.fail(&error),
            }
        }
        notices
    }

    /// The connection broke. A reset is the client's doing.
    fn fail(&mut self, error: &io::Error) {
        let by_client = matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        );
        self.phase = Phase::Over { by_client };
    }

    /// Chooses the version once the handshake has ended.
    fn start(&mut self) {
        if self.started || !self.transport.is_ready() {
            return;
        }
        self.started = true;
        if let Some(version) = self.transport.version()
            && version != self.version
        {
            self.version = version;
            self.core = core(version);
        }
    }

    /// Returns true if requests and their bodies still go to the program.
    pub(super) fn takes_requests(&self) -> bool {
        self.is_open()
    }

    /// Refuses a request that the program has no callback for.
    pub(super) fn refuse(&mut self, stream: StreamId) {
        self.requests.end(stream);
        self.core.reset(stream, Reason::Refused);
    }

    /// Keeps an ended request for a program that may still use it. A session with too many of them
    /// closes.
    pub(super) fn keep(&mut self, request: Handle, now: Instant) {
        if !self.requests.keep(request) {
            self.close(now);
        }
    }

    /// Gives the client credit for data that the program has taken.
    pub(super) fn release(&mut self, stream: StreamId, count: usize) {
        self.core.release(stream, count);
    }

    /// Queues a response. False if the stream or the session can send no more.
    pub(super) fn queue(
        &mut self,
        stream: StreamId,
        request: &Arc<RequestEntry>,
        queued: Queued,
        priority: Option<Priority>,
    ) -> bool {
        let sends =
            self.is_open() && self.core.may_send(stream) && !self.deliveries.will_close(stream);
        let Some(handle) = request.handle().filter(|_| sends) else {
            return false;
        };
        if let Some(priority) = priority {
            self.core.set_priority(stream, priority);
        }
        if queued.close {
            self.requests.answer(stream);
        }
        self.deliveries.push(stream, handle, queued);
        true
    }

    /// Announces a push.
    pub(super) fn announce(
        &mut self,
        parent: StreamId,
        head: &RequestHead,
        priority: Priority,
    ) -> Option<StreamId> {
        if !self.is_open() {
            return None;
        }
        let pushed: Result<_, mux::OpenError> = self.core.push(parent, head, priority);
        pushed.ok()
    }

    /// Withdraws a push.
    pub(super) fn give_up(&mut self, stream: StreamId) {
        self.core.reset(stream, Reason::Cancel);
    }

    pub(super) fn set_priority(&mut self, stream: StreamId, priority: Priority) -> bool {
        let open = self.is_open() && self.core.may_send(stream);
        if open {
            self.core.set_priority(stream, priority);
        }
        open
    }

    pub(super) fn takes_push(&self) -> bool {
        self.is_open() && self.transport.is_ready() && self.core.peer_takes_pushes()
    }

    /// The version, once it is known.
    pub(super) fn version(&self) -> Option<Version> {
        self.transport.is_ready().then_some(self.version)
    }

    pub(super) fn send_settings(&mut self, frame: &SettingsFrame) -> bool {
        let open = self.is_open() && self.transport.is_ready();
        if open {
            self.core.send_settings(frame);
        }
        open
    }

    pub(super) fn send_ping(&mut self, callback: Option<PingCallback>, now: Instant) -> bool {
        let open = self.is_open() && self.transport.is_ready() && self.pings.len() < MAX_PINGS;
        if open {
            let payload = self.next_ping;
            self.next_ping = payload.wrapping_add(1);
            self.core.ping(payload);
            self.pings.push(Ping {
                payload,
                sent: now,
                callback,
            });
        }
        open
    }

    /// Begins a round of sending.
    pub(super) fn begin_round(&mut self) {
        self.deliveries.resume();
    }

    /// Lists the callbacks that should produce a block now.
    pub(super) fn pulls(&mut self) -> Vec<Pull> {
        if !self.is_open() || !self.transport.is_ready() || !self.out.is_empty() {
            return Vec::new();
        }
        self.deliveries.start(&mut self.core);
        self.deliveries.pulls(&self.core)
    }

    /// Takes a block of a callback.
    pub(super) fn fill(&mut self, stream: StreamId, block: Block) -> Vec<Notice> {
        if !self.is_open() || self.deliveries.fill(&mut self.core, stream, block) {
            Vec::new()
        } else {
            self.end_stream(stream)
        }
    }

    /// Writes at most `frames` frames, and subtracts those that were written. Returns notices, and
    /// whether more may be written at once.
    pub(super) fn transmit(&mut self, frames: &mut usize, now: Instant) -> (Vec<Notice>, bool) {
        let mut moved = false;
        while *frames > 0 {
            if self.out.is_empty() && self.is_open() && self.transport.is_ready() {
                self.start();
                self.deliveries.start(&mut self.core);
                self.core
                    .poll_output(&mut self.out, frames.saturating_mul(FRAME));
                self.put += self.out.len() as u64;
                self.deliveries.mark(&self.core, self.put);
            }
            if self.out.is_empty() && !self.transport.wants_write() {
                break;
            }
            match self.transport.send(&self.socket, &mut self.out) {
                Ok(count) => {
                    self.sent += count as u64;
                    *frames = frames.saturating_sub(count.div_ceil(FRAME));
                    moved |= count > 0;
                    // The SETTINGS of this end do not show that the client is active.
                    if count > 0 && self.contexts.has_begun() {
                        self.last_activity = now;
                    }
                    self.blocked = !self.out.is_empty() || self.transport.wants_write();
                    if self.blocked || count == 0 {
                        break;
                    }
                }
                Err(error) => {
                    self.fail(&error);
                    break;
                }
            }
        }
        let mut notices = Vec::new();
        if self.is_open() {
            self.collect(&mut notices);
        }
        if !self.transport.wants_write() {
            notices.extend(self.deliveries.finish(self.sent));
        }
        if self.out.is_empty() {
            self.out.shrink();
        }
        self.finish_closing();
        if self.contexts.is_rare() && self.is_idle() {
            self.free_contexts(now);
        }
        (notices, moved && !self.blocked && *frames > 0)
    }

    fn is_idle(&self) -> bool {
        self.is_open() && self.core.active() == 0 && self.out.is_empty()
    }

    /// Returns the time at which an idle session frees its compression contexts.
    fn release_time(&self) -> Option<Instant> {
        self.contexts
            .due(self.last_activity)
            .filter(|_| self.is_idle())
    }

    /// Frees the compression contexts.
    fn free_contexts(&mut self, now: Instant) {
        let freed = self.core.release_contexts();
        self.contexts.end(freed.then_some(now));
    }

    /// Ends a closing session once its last frames have left.
    fn finish_closing(&mut self) {
        let Phase::Closing(_) = self.phase else {
            return;
        };
        if self.out.is_empty() && !self.transport.wants_write() {
            self.transport.close();
            // The end of TLS is a courtesy: the session ends without it if the socket is full.
            let _ = self.transport.send(&self.socket, &mut self.out);
            self.phase = Phase::Over { by_client: false };
        }
    }

    /// Ends the session. Returns its socket, and notices of its unfinished responses and of its
    /// requests without one.
    pub(super) fn end(mut self) -> (Socket, Vec<Notice>) {
        let mut unanswered = self.requests.end_all();
        unanswered.retain(|(stream, _)| !stream.is_some_and(|id| self.deliveries.reports(id)));
        let mut notices = self.deliveries.cancel_all();
        notices.extend(unanswered.into_iter().map(|(_, request)| Notice::Ended {
            request,
            outcome: Outcome::SessionClosed,
        }));
        (self.socket, notices)
    }
}

impl RequestEntry {
    /// Returns the handle, unless the program has destroyed the request.
    fn handle(self: &Arc<Self>) -> Option<Handle> {
        let handle = *self.handle.get()?;
        handles::get::<Self>(handle).map(|_| handle)
    }
}
