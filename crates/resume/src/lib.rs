//! Careful resume (RFC 9959): a new connection begins with the speed that an earlier connection
//! observed on the same path, without sockets, clocks or threads.
//!
//! - [`Capacity`] observes the rate that a connection delivers.
//! - [`CarefulResume`] holds the phases in which a sender enters a saved rate, checks it, and
//!   retreats from it. Without a saved rate, it tries the one that the first packets show.
//! - [`Trial`] tells the owner of a saved speed the result.
//!
//! A transport owns one [`CarefulResume`] beside its congestion controller, which keeps control in
//! all normal phases. Times are measured from one start of the caller's choice.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod capacity;
mod careful;
mod train;
mod trial;

use std::time::Duration;

pub use capacity::Capacity;
pub use careful::{CarefulResume, Reaction, Reduced, Restart};
pub use trial::{Outcome, Trial};

/// The speed of a path, which a connection saves for a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedSpeed {
    /// The rate of delivery in bytes per second.
    pub rate: u64,
    /// The shortest round trip.
    pub round_trip: Duration,
}

impl SavedSpeed {
    /// Returns the bandwidth-delay product in bytes.
    pub fn window(self) -> u64 {
        (self.rate as f64 * self.round_trip.as_secs_f64()) as u64
    }
}
