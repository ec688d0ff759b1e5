//! Bounds frames that cost us work and the peer nothing: pings, settings, resets, empty and unknown
//! frames.

use std::time::{Duration, Instant};

/// Frames in a burst: a browser that leaves a page cancels a few hundred streams at once.
const BURST: u32 = 4000;
/// Time in which another becomes free.
const REFILL: Duration = Duration::from_millis(4);

/// Counts such frames, and forgets them with time.
#[derive(Debug)]
pub(super) struct FloodGuard {
    left: u32,
    since: Option<Instant>,
}

impl Default for FloodGuard {
    fn default() -> Self {
        Self {
            left: BURST,
            since: None,
        }
    }
}

impl FloodGuard {
    /// Frees what the time since the last call allows.
    pub(super) fn advance(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let steps = now.saturating_duration_since(since).as_millis() / REFILL.as_millis();
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        if steps >= BURST - self.left {
            self.left = BURST;
            self.since = Some(now);
        } else if steps > 0 {
            self.left += steps;
            self.since = Some(since + REFILL * steps);
        }
    }

    /// Counts one; false when there were too many.
    pub(super) const fn charge(&mut self) -> bool {
        let Some(left) = self.left.checked_sub(1) else {
            return false;
        };
        self.left = left;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_one_by_one() {
        let start = Instant::now();
        let mut guard = FloodGuard::default();
        guard.advance(start);
        assert!((0..BURST).all(|_| guard.charge()));
        assert!(!guard.charge());
        guard.advance(start + REFILL * 2 + REFILL / 2);
        assert!(guard.charge() && guard.charge());
        assert!(!guard.charge());
        guard.advance(start + REFILL * 3);
        assert!(guard.charge());
        guard.advance(start + Duration::from_secs(1000));
        assert!((0..BURST).all(|_| guard.charge()));
    }
}
