//! Circuits over a chain of relays: the network of Reardon's thesis (2008, figure 5.21), made of
//! our programs in network namespaces.
//!
//! ```text
//!   c1 c5 ─▶ r1 ─┐
//!   c2 c6 ─▶ r2 ─┤            shared link
//!   c3 c7 ─▶ r3 ─┼─▶ r5 ══════════════════▶ r6 ─▶ timing server
//!   c4 c8 ─▶ r4 ─┘   relay                  gateway
//! ```
//!
//! Each circuit is a tunnel of a client. On a link between two relays, the tunnels of all clients
//! share one session over one transport. The experiments compare these transports. Some clients
//! transfer in bulk, and the others send single stamps and measure their delay.
//!
//! - [`mod@file`]: the experiments' files. [`network`]: the nodes and the links. [`trial`]: one
//!   measurement. [`run`]: all of them, with their results as JSON lines. [`report`]: the tables of
//!   the thesis with the measured figures beside them.

pub mod file;
pub mod network;
pub mod report;
pub mod run;
pub mod trial;

pub use file::ChainStudy;
