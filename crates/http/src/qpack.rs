//! QPACK: field compression for HTTP/3 (RFC 9204), without I/O. Integers, strings, the Huffman code
//! and the dynamic table are those of [`crate::hpack`].
//!
//! ```text
//!              section of a request stream
//!   Encoder ─────────────────────────────────▶ Decoder
//!      │       encoder stream: insertions ────▶   │
//!      └◀───── decoder stream: acknowledgements ──┘
//! ```
//!
//! Streams arrive in any order, so a section may refer to insertions that are still on their way.
//! The encoder avoids this unless it is told to take the risk, and a decoder bounds the number of
//! streams that wait. An idle encoder or decoder allocates nothing.

mod decoder;
mod encoder;
mod static_table;

pub use decoder::{Decoded, Decoder, QpackError};
pub use encoder::{DecoderStreamError, Encoder, Section};

/// The largest dynamic table that an [`Encoder`] uses, in bytes, whatever the peer permits. It is
/// also the limit that a session announces to the peer's encoder.
pub const TABLE_SIZE: usize = 4096;
