//! HPACK: header compression for HTTP/2 (RFC 7541), without I/O.
//!
//! [`Encoder`] and [`Decoder`] are the two halves of one direction of a session; each keeps a
//! dynamic table that must see every header block in wire order. Both hold a few kB at most and
//! allocate nothing until the first entry.

mod decoder;
mod encoder;
pub mod huffman;
pub(crate) mod index;
pub(crate) mod integer;
pub(crate) mod string;
pub(crate) mod table;

pub use decoder::{Decoder, HpackError};
pub use encoder::Encoder;

/// Bytes of the dynamic table that each end has before any SETTINGS (RFC 7541 section 4.2, RFC 9113
/// section 6.5.2). It is also the largest that an [`Encoder`] uses, whatever the peer allows.
pub const DEFAULT_TABLE_SIZE: usize = 4096;
