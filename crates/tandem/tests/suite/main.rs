//! The pair as its users meet it: real sockets, real bytes, in one test binary (one link instead of
//! many).

#![expect(
    clippy::unwrap_used,
    reason = "a scene that cannot be set up has failed"
)]

mod admission;
mod carrying;
mod certificates;
mod edges;
mod faults;
mod harness;
mod isolation;
mod learning;
mod limits;
mod many_streams;
mod origins;
mod parsers;
mod preconnect;
mod priorities;
mod push_matrix;
mod pushes;
mod roundtrips;
mod spdy;
mod tunnels;
