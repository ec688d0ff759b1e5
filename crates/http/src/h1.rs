//! HTTP/1.1 message syntax without I/O: RFC 9112, with the necessary semantics of RFC 9110.
//!
//! ```text
//!  bytes ──▶ parse_request / parse_response ──▶ head, framing of the body
//!        ──▶ Decoder ─────────────────────────▶ body, trailers
//!  head  ──▶ write_request / write_response ──▶ bytes (hop-by-hop fields are made here)
//! ```
//!
//! Parsed messages are forwarded to another hop. A request that two readers could understand
//! differently is therefore refused rather than repaired (RFC 9112 section 11.2).
//!
//! Old servers send responses that break the rules, and browsers show them. Such a response is read
//! as browsers read it, and passed on without ambiguity. If its framing was open to doubt,
//! [`Response::is_repaired`] is set: its connection ends, and nothing stores it.
//!
//! | response | reading | `is_repaired` |
//! |---|---|---|
//! | `Content-Length` beside `chunked` | chunked, without the length (section 6.3) | yes |
//! | `identity`, or `chunked` twice | no coding, and chunked | yes |
//! | empty lines before the head | skipped | yes |
//! | a line without a valid name or colon | left out | if it resembles framing or caching |
//! | white space before a colon, folded lines | removed, joined (section 5) | for framing fields |
//! | lines that end with LF alone | as with CR LF (section 2.2) | no |
//! | `HTTP/1 200`, more white space | HTTP/1.0, ignored | no |
//!
//! Lengths that differ, other codings, NUL and CR in lines, and chunks in HTTP/1.0 are refused.
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

/// Bounds of a head. The defaults are for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of start line, fields and the empty line. Default 64 KiB; more than 16 MiB counts as
    /// 16 MiB.
    pub head: usize,
    /// Number of fields. Default 200.
    pub fields: usize,
}

impl Limits {
    /// The bounds of responses: 256 KiB, which is the limit of Chromium, and 1000 fields.
    pub const RESPONSE: Self = Self {
        head: 256 << 10,
        fields: 1000,
    };
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
