//! Compression of response bodies between the two proxies (zstd, RFC 8878), without I/O.
//!
//! ```text
//!  gateway                                              client
//!  Accepts ◀──────── tandem-accept: zstd ─────────────  request
//!  rule ─▶ wire ───▶ tandem-coded, tandem-length ─────▶ wire ─▶ original head
//!  body ─▶ Encoder ─▶ one zstd frame ─────────────────▶ Decoder ─▶ original body
//! ```
//!
//! - [`rule`]: the responses that may be compressed, and the reason why others may not.
//! - [`wire`]: the fields with which the two proxies agree.
//! - [`level`]: the effort of the encoder by the rate of the path.
//! - [`encoder`], [`decoder`]: one body each, in pieces of bounded size.
//! - [`recode`], [`gunzip`]: bodies with gzip, which cross the path as zstd.
//! - [`dictionary`]: former versions of bodies, so that only the difference travels.
//! - [`budget`]: the memory that the coders of a process, and of a session, may use.
//!
//! The coding belongs to the hop between the two proxies, like a transfer coding. The client
//! restores each byte of the body and each field of the head that the gateway had. The gateway may
//! decode a body with gzip first, and change its head accordingly. Nothing here opens a socket,
//! reads a clock or starts a thread.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod budget;
pub mod decoder;
pub mod dictionary;
pub mod encoder;
pub mod gunzip;
pub mod level;
pub mod recode;
pub mod rule;
pub mod wire;

pub use budget::{Budget, Reservation};
pub use decoder::Decoder;
pub use dictionary::{Dictionaries, Dictionary, Name};
pub use encoder::Encoder;
pub use gunzip::Gunzip;
pub use level::LEVELS;

/// The window that a frame may ask for, as a power of two in bytes: 512 KiB.
pub const MAX_WINDOW_LOG: u32 = 19;

/// The reason why a body cannot be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodingError {
    /// The encoder failed.
    #[error("the body could not be compressed: {0}")]
    Encode(String),
    /// The body is no zstd frame, or needs more memory than allowed.
    #[error("the compressed body is malformed: {0}")]
    Malformed(String),
    /// The body ended within its frame.
    #[error("the compressed body ended early")]
    Truncated,
    /// Data follow the frame.
    #[error("data follow the compressed body")]
    Trailing,
    /// The body does not have the length that its head states.
    #[error("the compressed body has another length than its head states")]
    Length,
    /// The body was coded with a dictionary that this end does not hold.
    #[error("the compressed body needs an unknown dictionary")]
    Dictionary,
    /// The head states an unknown coding or a malformed length.
    #[error("the head of a compressed body is malformed")]
    Head,
}
