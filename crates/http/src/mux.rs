//! The interface between a multiplexed session core and the task that drives it. The cores are
//! HTTP/2 ([`crate::h2`]), SPDY/3 and SPDY/3.1 (crate `tandem-spdy`), which use one byte stream,
//! and HTTP/3 ([`crate::h3`]), which uses many streams.
//!
//! ```text
//!            handle_input(bytes)      poll_event() -> Request · Response · Data · …
//!  socket ─────────────────────▶  core  ─────────────────────────────────────────────▶ exchanges
//!         ◀─────────────────────        ◀─────────────────────────────────────────────
//!    poll_output(buffer, limit)       open · respond · send_data · send_trailers · reset · release
//! ```
//!
//! After any input or command, drain [`Mux::poll_event`]. Then call [`ByteMux::poll_output`]
//! whenever the socket takes bytes. A small `limit` lets the core choose the next stream as late as
//! possible. A server passes no more input while [`Mux::backlog`] is large, that is, while requests
//! arrive faster than responses leave.

use std::time::Instant;

use bytes::Bytes;

use crate::{Fields, RequestHead, ResponseHead, SendBuf};

/// Number of a stream within its session.
pub type StreamId = u32;

/// Which end of a session this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens streams with requests.
    Client,
    /// Answers them, and may push.
    Server,
}

/// The reason for which a stream or session ended. Each protocol maps it to an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are RFC 9113 section 7's")]
pub enum Reason {
    NoError,
    Protocol,
    Internal,
    FlowControl,
    SettingsTimeout,
    StreamClosed,
    FrameSize,
    /// The request was not processed, so it may be sent again.
    Refused,
    Cancel,
    Compression,
    Connect,
    EnhanceYourCalm,
    InadequateSecurity,
    Http11Required,
    Other(u32),
}

/// A fatal error of a session. The output ends with a GOAWAY frame: the caller flushes the output
/// and closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("session error {reason:?}: {detail}")]
pub struct SessionError {
    /// The reason sent to the peer.
    pub reason: Reason,
    /// The peer's fault, in a few words.
    pub detail: &'static str,
}

/// Sending order: urgency 0 (first) to 7 (RFC 9218; SPDY's priorities are the same scale). Default
/// 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(pub u8);

/// The number of sent bytes, 1 MiB, after which a message no longer precedes ordinary ones.
const LONG_TRANSFER: u64 = 1 << 20;

impl Priority {
    /// Returns the priority of a stream that has sent this number of bytes. Browsers request a
    /// download as urgently as a page. By urgency alone it would stop all other streams until its
    /// end, so a long transfer ranks with requests of the default urgency.
    pub fn after(self, attained: u64) -> Self {
        if attained < LONG_TRANSFER {
            self
        } else {
            self.max(Self::default())
        }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(3)
    }
}

/// An event in the input from the peer.
#[derive(Debug)]
pub enum Event {
    /// Server: a request began. `end`: it has no body.
    Request {
        /// The stream identifier.
        id: StreamId,
        /// The request head.
        head: RequestHead,
        /// No data or trailers follow.
        end: bool,
        /// The priority that the peer requested.
        priority: Priority,
    },
    /// Client: an interim response (1xx).
    Informational {
        /// The stream identifier.
        id: StreamId,
        /// Status 100 to 199 and fields.
        head: ResponseHead,
    },
    /// Client: the final response began, of a request or of a push.
    Response {
        /// The stream identifier.
        id: StreamId,
        /// Status and fields.
        head: ResponseHead,
        /// No data or trailers follow.
        end: bool,
    },
    /// Client: the peer will push the answer to `request` on stream `id`.
    Push {
        /// The stream of the request that caused the push.
        parent: StreamId,
        /// The pushed stream.
        id: StreamId,
        /// The request that the push responds to.
        request: RequestHead,
    },
    /// Part of a body. Give its credit back with [`Mux::release`].
    Data {
        /// The stream identifier.
        id: StreamId,
        /// The bytes; may be empty when `end`.
        data: Bytes,
        /// The peer's last.
        end: bool,
    },
    /// Trailers: the peer's last.
    Trailers {
        /// The stream identifier.
        id: StreamId,
        /// The fields.
        fields: Fields,
    },
    /// The stream is gone: reset by the peer, or by the core because the peer broke a rule.
    Reset {
        /// The stream.
        id: StreamId,
        /// Why. [`Reason::Refused`] means surely not processed.
        reason: Reason,
    },
    /// The stream's send buffer fell below half its limit after [`Mux::send_room`] was 0.
    Writable {
        /// The stream.
        id: StreamId,
    },
    /// Server: the peer changed the priority of a response (HTTP/2 only; the core applies it).
    Priority {
        /// The stream identifier.
        id: StreamId,
        /// The new priority.
        priority: Priority,
    },
    /// The peer's first SETTINGS arrived (HTTP/2 only; SPDY servers may send none).
    Settings,
    /// The peer opens and accepts no more streams. Each own stream above `last` without the start
    /// of a response also gets a `Reset` with [`Reason::Refused`].
    GoAway {
        /// Highest own stream that the peer may have processed.
        last: StreamId,
        /// Why.
        reason: Reason,
    },
    /// An answer to [`Mux::ping`].
    Pong {
        /// The payload passed to [`Mux::ping`].
        payload: u32,
    },
}

/// Why [`Mux::open`] or [`Mux::push`] opened nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// As many streams as the peer allows are open: try again when one has closed.
    #[error("the peer allows no more streams at once")]
    Busy,
    /// The session is ending or out of stream numbers: use another one.
    #[error("the session takes no new streams")]
    Closing,
    /// The peer does not take pushes, or the parent is gone.
    #[error("the peer takes no push here")]
    NoPush,
    /// The head cannot be written in this protocol, or is larger than the limit.
    #[error("the head cannot be sent in this session")]
    BadHead,
}

/// The part of a stream's body that waits in the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Bytes queued.
    pub bytes: usize,
    /// The flow-control window that blocks these bytes. `None` if no bytes are queued, or if they
    /// only wait for other streams.
    pub shut: Option<Window>,
}

/// The kind of a flow-control window (RFC 9113 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The stream's own.
    Stream,
    /// The whole session's.
    Session,
}

impl Unsent {
    /// `bytes` queued, with `stream` and `session` bytes of room in the windows.
    pub const fn new(bytes: usize, stream: usize, session: usize) -> Self {
        let shut = match (bytes, stream, session) {
            (0, _, _) => None,
            (_, 0, _) => Some(Window::Stream),
            (_, _, 0) => Some(Window::Session),
            _ => None,
        };
        Self { bytes, shut }
    }
}

/// Limits of a session core. Defaults suit 100 Mbit/s at 400 ms.
#[derive(Clone, Debug)]
pub struct MuxConfig {
    /// The role of this end.
    pub role: Role,
    /// Bytes that the peer may send on one stream unasked. Below [`LEAST_WINDOW`] credit has to be
    /// given so often that it looks like a flood to a peer that bounds idle frames, as ours does.
    /// Default 8 MiB: 1.6 times the product of 100 Mbit/s and 400 ms.
    ///
    /// [`LEAST_WINDOW`]: crate::flood::LEAST_WINDOW
    pub stream_window: u32,
    /// The receive window of the session in bytes. While less than `receive_budget` is held, credit
    /// returns when data arrives, so an unread stream does not block others. The default is 16 MiB.
    pub session_window: u32,
    /// Bytes held unreleased in the whole session above which session credit waits for
    /// [`Mux::release`]. Default 64 MiB.
    pub receive_budget: usize,
    /// Streams that the peer may have open at once. Default 256.
    pub max_streams: u32,
    /// Bytes of a header list (names, values and 32 for each field). Default 64 KiB.
    pub max_header_list: usize,
    /// Unsent bytes a stream may hold before [`Mux::send_room`] is 0. Default 64 KiB.
    pub send_buffer: usize,
    /// Client: take pushes. Default false.
    pub push: bool,
    /// Server: tell the peer that extended CONNECT works (RFC 8441). Default true.
    pub extended_connect: bool,
    /// HTTP/2 server: send nothing before the client's SETTINGS, announce the default stream
    /// window, and widen the window of each request by WINDOW_UPDATE. Firefox 153 loses the bytes
    /// that a proxy sends before its first request. It does not apply our SETTINGS to a tunnel that
    /// it opened before them either (RFC 9113 section 6.9.2). Both would leave windows of 65,535
    /// bytes for good. Default false.
    pub widens_streams: bool,
}

impl MuxConfig {
    /// The defaults for one end.
    pub const fn new(role: Role) -> Self {
        Self {
            role,
            stream_window: 8 << 20,
            session_window: 16 << 20,
            receive_budget: 64 << 20,
            max_streams: 256,
            max_header_list: 64 << 10,
            send_buffer: 64 << 10,
            push: false,
            extended_connect: true,
            widens_streams: false,
        }
    }
}

/// The events and commands of a multiplexed session core. All commands take effect in the output;
/// none blocks. Commands on a stream that no longer exists are ignored.
pub trait Mux {
    /// Handles the passage of time. The caller calls it at the time of [`Mux::poll_timeout`].
    fn handle_timeout(&mut self, now: Instant);

    /// Returns the time at which [`Mux::handle_timeout`] must be called, or `None`.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Returns the next event of the input, in wire order.
    fn poll_event(&mut self) -> Option<Event>;

    /// Returns true if the core has bytes that should leave now. Credit and acknowledgements that
    /// can go along with later frames do not count until they are urgent.
    fn wants_output(&self) -> bool;

    /// Client: starts an exchange. `end`: no body follows.
    fn open(
        &mut self,
        head: &RequestHead,
        end: bool,
        priority: Priority,
    ) -> Result<StreamId, OpenError>;

    /// Server: an interim response (1xx) before [`Mux::respond`]. Protocols without interim
    /// responses drop it.
    fn inform(&mut self, id: StreamId, head: &ResponseHead);

    /// Returns true if the protocol has interim responses.
    fn has_interim(&self) -> bool {
        true
    }

    /// Server: the response head. `end`: no body follows.
    fn respond(&mut self, id: StreamId, head: &ResponseHead, end: bool);

    /// Server: announces the push of a response to `request`, before the data of `parent` that
    /// mentions it. The response follows with [`Mux::respond`] and [`Mux::send_data`] on the new
    /// stream.
    fn push(
        &mut self,
        parent: StreamId,
        request: &RequestHead,
        priority: Priority,
    ) -> Result<StreamId, OpenError>;

    /// Appends `data` to the stream's body, and ends the body if `end` is true. The core queues all
    /// of it, so the caller asks [`Mux::send_room`] first.
    fn send_data(&mut self, id: StreamId, data: Bytes, end: bool);

    /// Ends the stream's body with trailers, after all its data.
    fn send_trailers(&mut self, id: StreamId, fields: &Fields);

    /// Returns the number of bytes that the stream accepts now. Returns 0 while its send buffer is
    /// full, and for an unknown stream.
    fn send_room(&self, id: StreamId) -> usize;

    /// Returns the unsent part of the stream's body, and whether a window holds it; zero if the
    /// stream no longer exists.
    fn unsent(&self, id: StreamId) -> Unsent;

    /// Returns the number of queued bytes of heads, resets and credit. No window bounds them.
    fn backlog(&self) -> usize;

    /// Changes the sending order of a stream.
    fn set_priority(&mut self, id: StreamId, priority: Priority);

    /// Ends the stream at once, both ways, and drops its queued data.
    fn reset(&mut self, id: StreamId, reason: Reason);

    /// Resets the stream after the queued body was sent, so that the peer gets the beginning of an
    /// incomplete response.
    fn reset_after_data(&mut self, id: StreamId, reason: Reason);

    /// Reports that `count` bytes of the stream's data were used: the peer may send as many more.
    fn release(&mut self, id: StreamId, count: usize);

    /// Sends a ping, which the peer answers with [`Event::Pong`]. Returns false if the protocol has
    /// no pings. HTTP/3 then sends a frame that only its carrier acknowledges.
    fn ping(&mut self, payload: u32) -> bool;

    /// Stops opening and accepting streams. Open streams continue to their end. Further calls have
    /// no effect.
    fn go_away(&mut self, reason: Reason);

    /// Returns the number of open streams, whichever end has opened them.
    fn active(&self) -> usize;

    /// Returns true if [`Mux::open`] could succeed now, or after a stream closes; false once the
    /// session is ending.
    fn is_open(&self) -> bool;

    /// Makes a request wait until the handshake of the carrier is over. Has no effect if the
    /// request was sent, or the handshake is over. A core over one byte stream has no such wait,
    /// since its carrier sends no early data.
    fn hold(&mut self, id: StreamId);

    /// Returns true if the peer permits one more stream of this end now.
    fn has_room(&self) -> bool;

    /// Returns true if the peer's settings permit [`Mux::push`].
    fn peer_takes_pushes(&self) -> bool;

    /// Returns true if the peer announced extended CONNECT (RFC 8441); `None` until its settings
    /// arrive.
    fn peer_extended_connect(&self) -> Option<bool>;
}

/// A session core over one byte stream.
pub trait ByteMux: Mux {
    /// Handles bytes from the peer, split at any position. After an error, the core ignores input,
    /// and its output ends with GOAWAY.
    fn handle_input(&mut self, now: Instant, bytes: &[u8]) -> Result<(), SessionError>;

    /// Appends frames to `out` until it holds about `limit` bytes or no frame may be sent now; a
    /// frame is never cut. Control frames go first, then streams in the order of [`crate::sched`].
    /// A client's preface, settings and first request leave together, without waiting for the peer.
    fn poll_output(&mut self, out: &mut SendBuf, limit: usize);
}
