//! The pair as its users meet it: real sockets, real bytes, in one test binary (one link instead of many).

mod admission;
mod carrying;
mod faults;
mod harness;
mod isolation;
mod process;
mod roundtrips;
mod tunnels;
