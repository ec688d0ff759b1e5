//! Sans-IO SPDY/3 and SPDY/3.1 (draft-mbelshe-httpbis-spdy-00 and its successor 3.1): both ends,
//! push, flow control.
//!
//! * [`Connection`]: a session, driven through [`tandem_http::Mux`] (`connection/`: receive,
//!   command, output).
//! * [`frame`]: frames on the wire, one file each, and the reader that splits the byte stream into
//!   them.
//! * [`header_block`]: lists of names and values in one zlib stream per direction.
//! * `deflate`, `inflate`: the compressor, which never matches a secret, and the inflater.
//! * `secrets`: the parts of a list that the compressor must not match.
//! * `http`: requests, responses and pushes as header blocks.
//! * `stream`, `flow`: states and windows.
//! * [`status`]: numbers of RST_STREAM and GOAWAY.
//!
//! The crate uses no socket, clock or thread: the caller passes bytes and times in, and takes bytes
//! and events out.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod connection;
mod deflate;
mod flow;
pub mod frame;
pub mod header_block;
mod http;
mod inflate;
mod secrets;
pub mod status;
mod stream;

pub use connection::{Config, Connection};
pub use header_block::HeaderCompression;

/// Which draft is spoken. Frames look the same, so this is known from negotiation or configuration
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// SPDY/3.
    V3,
    /// SPDY/3.1: adds flow control of the whole session.
    V31,
}

impl Version {
    /// Returns the protocol name in ALPN and NPN.
    pub const fn alpn(self) -> &'static str {
        match self {
            Self::V3 => "spdy/3",
            Self::V31 => "spdy/3.1",
        }
    }
}
