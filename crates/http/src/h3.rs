//! HTTP/3 without I/O: [`Connection`] is one end of a session (RFC 9114) with server push, extended
//! CONNECT (RFC 9220), datagrams (RFC 9297) and the urgency of extensible priorities (RFC 9218).
//! Field sections go through [`crate::qpack`], and messages obey the same rules as those of HTTP/2.
//!
//! ```text
//!   streams of a carrier            handle_input(stream, bytes)        poll_event() ──▶ events
//!     control, QPACK  ◀──────────▶                              core
//!     requests, pushes             poll_ready, poll_output(stream)     calls of Mux ◀── exchanges
//! ```
//!
//! The interface is stream-wise: each stream of the carrier has separate input and output, so a
//! stream that waits delays no other. The caller opens a stream when [`Connection::wants_stream`]
//! asks for one, passes on the input, executes [`Connection::poll_command`], and writes the
//! output of the streams that [`Connection::poll_ready`] returns. Flow control is the carrier's:
//! the caller reads a stream only while [`Connection::wants_input`] permits it.
//!
//! The carrier numbers its streams as QUIC does (RFC 9000 section 2.1).

mod arriving;
mod code;
mod connection;
mod control;
mod datagram;
mod early;
mod frame;
mod incoming;
mod message;
mod opening;
mod push;
mod send;
mod settings;
mod stream;
pub(crate) mod varint;

pub use code::Code;
pub use connection::Connection;
pub use early::may_be_early;

/// The directions of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Both ends send.
    Bidirectional,
    /// Only the end that opens the stream sends.
    Unidirectional,
}

/// A change of one stream of the carrier, from [`Connection::poll_command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Ends our sending at once. Unsent data is dropped.
    Reset {
        /// The stream.
        stream: u64,
        /// The reason.
        code: Code,
    },
    /// Asks the peer to stop sending. The stream is read no more.
    Stop {
        /// The stream.
        stream: u64,
        /// The reason.
        code: Code,
    },
    /// Sets the order of our sending.
    Prioritise {
        /// The stream.
        stream: u64,
        /// The urgency.
        priority: crate::Priority,
    },
}
