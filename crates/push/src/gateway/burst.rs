//! The requests that a host gets from a session in a short time.
//!
//! A host may refuse requests because pushes come in larger numbers than a browser's own requests.
//! Without the pushes, the browser would get a response. A refusal is passed on only if the host
//! got no more requests than a browser makes at once.

use std::time::{Duration, Instant};

/// The number of requests that a browser makes at once over HTTP/1.1.
const OF_BROWSER: u16 = 6;

/// The time in which requests count together. Limits of rates often hold for a second.
const PERIOD: Duration = Duration::from_secs(1);

/// The requests to a host of the last period and of the one before.
#[derive(Clone, Copy, Default)]
pub(super) struct Burst {
    /// The time of the first request of the period.
    began: Option<Instant>,
    requests: u16,
    before: u16,
}

impl Burst {
    /// Notes a request, which begins now.
    pub(super) fn note(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let age = now.saturating_duration_since(began);
        if age >= PERIOD {
            self.before = if age < 2 * PERIOD { self.requests } else { 0 };
            self.requests = 0;
            self.began = Some(now);
        }
        self.requests = self.requests.saturating_add(1);
    }

    /// Returns whether there were no more requests than a browser makes at once.
    pub(super) const fn is_small(self) -> bool {
        self.requests.saturating_add(self.before) <= OF_BROWSER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_burst_are_counted_for_a_while() {
        let (mut burst, start) = (Burst::default(), Instant::now());
        for at in 0..OF_BROWSER {
            burst.note(start);
            assert!(burst.is_small(), "{at}");
        }
        burst.note(start + PERIOD);
        assert!(!burst.is_small(), "the requests before count too");
        burst.note(start + 3 * PERIOD);
        assert!(burst.is_small());
    }
}
