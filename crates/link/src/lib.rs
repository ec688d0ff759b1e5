//! Model of a slow link in virtual time: packets go in, and come out later, damaged, or not at all.
//!
//! - [`link`]: one direction of a link, the object that simulations and the emulator share.
//! - [`config`]: the checked configuration of such a direction.
//! - [`delay`]: fixed delay and jitter, in order (a correlated process) or reordering
//!   (independent).
//! - [`loss`]: independent, bursty (Gilbert-Elliott), every n-th, exponential gaps.
//! - [`rate`]: constant rates, traces of delivery opportunities, and steps of rates.
//! - [`gaps`]: times in which nothing leaves.
//! - [`queue`]: packets that wait for the rate: drop-tail and CoDel (RFC 8289).
//! - [`damage`]: corruption and injected TCP resets.
//! - [`stats`]: counters and histograms.
//! - [`profile`]: well-known links by name.
//! - [`text`]: the notation of quantities.
//!
//! The crate opens no socket, reads no clock and starts no thread. Times are
//! [`std::time::Duration`]s since a start of the caller's choice and must not run backwards. The
//! fate of the n-th packet is a function of the seed and of n, so one seed gives the same fate to
//! the same packets at any timing.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod config;
pub mod damage;
pub mod delay;
pub mod gaps;
pub mod link;
pub mod loss;
pub mod profile;
pub mod queue;
pub mod random;
pub mod rate;
pub mod stats;
pub mod text;

pub use config::{ConfigError, LinkConfig};
pub use link::Link;
pub use stats::{Count, Histogram, Stats};
