//! The transport `dtls`: many streams inside one flow of DTLS 1.3 datagrams, after the thesis that
//! [`tandem_tunnel`] cites.
//!
//! ```text
//!  streams ─▶ `stream` ─▶ tunnel (user-level TCP) ─▶ DTLS 1.3 (RFC 9147) ─▶ [`envelope`] ─▶ UDP
//! ```
//!
//! - [`envelope`], [`cookie`]: the datagrams around DTLS, and the proof of a client's address.
//! - [`token`], `kept`: the proof of a client that returns, and the client's memory of such proofs.
//! - [`association`], `wrap`, `settings`: DTLS and tunnel of one peer, without sockets or clocks.
//! - `waits`, `repeats`: the round trip of a handshake, and the time after which that is repeated.
//! - `crypto`, `certificates`: the cryptography of DTLS by ring, and the certificates of both ends.
//! - [`ends`]: the two addresses of an association's path.
//! - `port`, `batch`: system calls that carry many datagrams, with marks of congestion.
//! - `socket`, `hub`, `inbox`: the sockets of clients and gateways, and the queues between threads.
//! - `carrier`, `facts`, `stream`, `driver`: the association as a carrier of streams, and its task.
//! - [`transport`]: the transport that endpoints name.

pub mod association;
pub mod cookie;
pub mod ends;
pub mod envelope;
pub mod token;
pub mod transport;
mod unknown;

mod batch;
mod carrier;
mod certificates;
mod crypto;
mod driver;
mod facts;
mod hub;
mod inbox;
mod kept;
mod port;
mod repeats;
mod settings;
mod socket;
mod stream;
mod waits;
mod wrap;

pub use certificates::anonymous;
pub use transport::DtlsProvider;
