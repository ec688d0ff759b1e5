//! A token bucket: a limit on a rate that permits short bursts.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// Limits events to a rate, and permits a burst after a pause.
#[derive(Debug)]
pub struct TokenBucket {
    /// The time in which one token returns.
    interval: Duration,
    /// The time in which an empty bucket fills.
    whole: Duration,
    /// The time at which the bucket is full again.
    full: Cell<Instant>,
}

impl TokenBucket {
    /// Creates a full bucket of `burst` tokens, of which `rate` return in a second. Both are at
    /// least 1.
    pub fn new(rate: u32, burst: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / rate.max(1);
        Self {
            interval,
            whole: interval * burst.max(1),
            full: Cell::new(now),
        }
    }

    /// Takes a token. Returns false if there is none.
    pub fn take(&self, now: Instant) -> bool {
        let full = self.full.get().max(now) + self.interval;
        let is_permitted = full - now <= self.whole;
        if is_permitted {
            self.full.set(full);
        }
        is_permitted
    }

    /// Returns whether all tokens have returned.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full.get() <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_permits_a_burst_and_then_the_rate() {
        let start = Instant::now();
        let bucket = TokenBucket::new(4, 10, start);
        let taken = |millis: u64| {
            let now = start + Duration::from_millis(millis);
            let count = (0..100).filter(|_| bucket.take(now)).count();
            (count, bucket.is_full(now))
        };
        assert_eq!(taken(0), (10, false));
        assert_eq!(taken(249), (0, false));
        assert_eq!(taken(250), (1, false));
        assert_eq!(taken(1250), (4, false));
        assert_eq!(taken(60_000), (10, false));
        assert!(!bucket.is_full(start + Duration::from_millis(62_499)));
        assert!(bucket.is_full(start + Duration::from_millis(62_500)));
    }
}
