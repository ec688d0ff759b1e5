//! HTTP/2 without I/O: [`Connection`] is one end of a session (RFC 9113), with extended CONNECT
//! (RFC 8441) and the urgency of extensible priorities (RFC 9218). Header lists go through
//! [`crate::hpack`].
//!
//! ```text
//!  bytes ──▶ input (cut into frames) ──▶ recv ─┐                      ┌─▶ events
//!                                              ├─▶ Connection, Stream ┤
//!  calls of the trait Mux ─────────────▶ send ─┘  (state, windows)    └─▶ queue, ready ──▶ bytes
//! ```

mod blocks;
mod connection;
mod control;
mod flow;
mod frame;
mod input;
mod recv;
mod send;
mod settings;
mod stream;

pub use connection::Connection;
