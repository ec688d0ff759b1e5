//! User-level TCP without sockets, clocks or threads: many reliable streams in one flow of
//! datagrams.
//!
//! A thesis gives each stream its own user-level TCP inside one DTLS connection (Joel Reardon,
//! *Improving Tor using a TCP-over-DTLS Tunnel*, University of Waterloo, 2008). A lost packet or a
//! bulk download of one stream thus never delays another. This crate is that transport, for any
//! carrier of datagrams that authenticates its peer:
//!
//! - [`wire`]: the segments, after the compressed header of the thesis.
//! - [`Tunnel`]: one end; streams on one side, datagrams on the other.
//! - `send`, `recv`: the halves of a stream: scoreboard (RFC 6675), reassembly, windows.
//! - `recovery`: loss detection over all streams (RACK-TLP, RFC 8985).
//! - `offers`: windows for streams that the peer will open.
//! - `flow`, `congestion`: CUBIC (RFC 9438) or BBR, for the tunnel as a whole or for each stream.
//! - `pmtu`: the path's largest datagram (RFC 8899); `ecn`: congestion marks on it (RFC 3168).
//!
//! The tunnel has no handshake: the carrier has proved the peer, so a stream begins with its first
//! data. The end that opens a stream tells its window there. The other end tells its own window in
//! advance by an offer, or else with its first acknowledgement, a round trip later.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod congestion;
pub mod wire;

mod ecn;
mod flow;
mod offers;
mod pmtu;
mod pool;
mod ranges;
mod recovery;
mod recv;
mod rtt;
mod send;
mod stream;
mod tunnel;
mod turns;
mod unsent;

pub use congestion::Algorithm;
pub use stream::{Side, StreamId};
pub use tunnel::{
    Closed, Config, Coupling, Event, FORGOTTEN, InputError, REFUSED, Read, Stats, StreamError,
    Tunnel,
};
pub use unsent::unsent_limit;
