//! The transport `quic` of endpoints: QUIC (RFC 9000) by quinn, for sessions of HTTP/3.
//!
//! ```text
//!  worker threads                                       I/O thread
//!   h3 session ─▶ carrier, stream ──▶ quinn connection ─▶ endpoint ─▶ UDP socket
//!                 transport ◀── listeners ◀── incoming connections
//! ```
//!
//! A single thread moves the datagrams of all connections of a process, since the datagrams of a
//! connection may come from any address. The sessions stay on the worker threads, and use the
//! streams of their connection as a [`Carrier`](tandem::carrier::Carrier).
//!
//! A client opens a socket for each connection, connected to the gateway. The kernel sends no
//! datagram to another address, and accepts none from another address. `guard` watches it: the
//! connection moves to a new socket when its path is silent or the machine has changed its network,
//! and ends when the gateway's system refuses datagrams.
//!
//! `resets` lets a gateway that was restarted end the connections of the process before it.
//!
//! A client that returns may send early data (0-RTT). `tickets` is its knowledge of earlier
//! connections, and `issued` that of a gateway. `early` keeps the early data until the gateway has
//! accepted it.
//!
//! `window` makes room for streams that are not read.
//!
//! `congestion` has the controllers of the tunnel, with careful resume (RFC 9959). `share` keeps
//! datagrams of programs from taking all the bytes of a connection.

mod carrier;
mod congestion;
mod early;
mod failure;
mod guard;
mod io_thread;
mod issued;
mod listener;
mod listener_socket;
mod resets;
mod settings;
mod share;
mod socket;
mod stream;
mod tickets;
mod transport;
mod unsent;
mod wakers;
mod window;

pub use transport::QuicProvider;
