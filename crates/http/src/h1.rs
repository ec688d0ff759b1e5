//! HTTP/1.1 message syntax without I/O: RFC 9112, with the necessary semantics of RFC 9110.
//!
//! ```text
//!  bytes ──▶ parse_request / parse_response ──▶ head, framing of the body
//!        ──▶ Decoder ─────────────────────────▶ body, trailers
//!  head  ──▶ write_request / write_response ──▶ bytes (hop-by-hop fields are made here)
//! ```
//!
//! Parsed messages are forwarded to another hop. A message that two readers could understand
//! differently is therefore refused rather than repaired (RFC 9112 section 11.2). Responses are
//! repaired only where section 5 demands it of proxies: folded lines and white space before a
//! colon.
//!
//! Each part of the RFC has a file: `head` the lines, `target` the request target, `request`,
//! `response`, `hop` the fields of a single connection, `body`, `write`.

mod body;
mod head;
mod hop;
mod request;
mod response;
mod target;
mod write;

pub use body::{BadBody, Decoded, Decoder};
pub use head::BadHead;
pub use hop::strip_hop_by_hop;
pub use request::{BadRequest, Request, parse_request};
pub use response::{BadResponse, Response, parse_response, response_framing};
pub use target::{Authority, Form};
pub use write::{reason_phrase, write_chunk_head, write_last_chunk, write_request, write_response};

/// Bounds of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of start line, fields and the empty line. Default 64 KiB; more than 16 MiB counts as
    /// 16 MiB.
    pub head: usize,
    /// Number of fields. Default 200.
    pub fields: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: 64 << 10,
            fields: 200,
        }
    }
}

/// Protocol version (RFC 9112 section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0: no transfer codings, connections close unless asked otherwise.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// How a body is delimited (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The message has no body.
    None,
    /// A body of this length in bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// Everything up to the end of the connection; responses only.
    UntilClose,
}
