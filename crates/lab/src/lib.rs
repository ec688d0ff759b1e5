//! Experiments: benchmarks, attacks, chains of relays, forwarding in virtual time, a private Tor
//! network, timing, header studies, push prediction on logs, and reports.

pub mod attack;
pub mod bench;
pub mod chain;
pub mod coding;
pub mod experiment;
pub mod forward;
pub mod headers;
pub mod predict;
pub mod soak;
pub mod timing;
pub mod tornet;
