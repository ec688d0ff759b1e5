//! The time for which a session waits for input or an acknowledgement of the other end. It follows
//! the round trip.

use std::time::Duration;

use crate::path::Facts;

/// A wait of some round trips, within bounds.
pub(super) struct PathTimeout {
    /// The wait as a multiple of the round trip.
    pub(super) round_trips: u32,
    /// The shortest wait. It also holds while the round trip is unknown.
    pub(super) least: Duration,
    /// The longest wait.
    pub(super) most: Duration,
}

impl PathTimeout {
    /// Returns the wait for a path with this round trip.
    pub(super) fn over(&self, round_trip: Option<Duration>) -> Duration {
        let wait = round_trip
            .unwrap_or_default()
            .saturating_mul(self.round_trips);
        wait.clamp(self.least, self.most)
    }
}

/// Returns the round trip that the path has measured.
pub(super) fn measured_round_trip(facts: &dyn Facts) -> Option<Duration> {
    Duration::try_from_secs_f64(facts.measure()?.round_trip).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_timeout_follows_the_round_trip_in_bounds() {
        let limit = PathTimeout {
            round_trips: 3,
            least: Duration::from_secs(2),
            most: Duration::from_secs(10),
        };
        let over = |millis| limit.over(Some(Duration::from_millis(millis)));
        assert_eq!(limit.over(None), limit.least);
        assert_eq!(over(100), limit.least);
        assert_eq!(over(1500), Duration::from_millis(4500));
        assert_eq!(over(u64::MAX), limit.most);
    }
}
