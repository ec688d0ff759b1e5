//! HTTP without I/O: messages ([`message`], [`fields`]), HTTP/1.1 ([`h1`]), HTTP/2 ([`h2`],
//! [`hpack`]), HTTP/3 ([`h3`], [`qpack`]), the parts that all multiplexed session cores share
//! ([`mux`], [`sched`], [`sendbuf`], [`flood`], [`expected`], [`pushed`], [`threshold`]), the rules
//! of caching ([`cache`]), tunnels of UDP ([`connect_udp`]), changes of protocol ([`upgrade`]),
//! SOCKS5 ([`socks`]), and the names of onion services ([`onion`]).
//!
//! The crate opens no socket, reads no clock and starts no thread: the caller passes bytes and
//! times in, and takes bytes and events out.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cache;
pub mod connect_udp;
pub mod expected;
pub mod fields;
pub mod flood;
pub mod h1;
pub mod h2;
pub mod h3;
mod head;
pub mod hpack;
pub mod message;
pub mod mux;
pub mod onion;
mod outgoing;
pub mod pushed;
pub mod qpack;
pub mod sched;
pub mod sendbuf;
pub mod socks;
pub mod target;
pub mod threshold;
pub mod upgrade;

pub use bytes::Bytes;
pub use fields::Fields;
pub use message::{Method, RequestHead, ResponseHead, Scheme};
pub use mux::{ByteMux, Event, Mux, MuxConfig, Priority, Reason, Role, SessionError, StreamId};
pub use sendbuf::SendBuf;
