//! Experiments: benchmarks, a private Tor network, timing, push prediction on logs, and reports.

pub mod bench;
pub mod experiment;
pub mod predict;
pub mod timing;
pub mod tornet;
