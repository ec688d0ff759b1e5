//! The memory of idle sessions: the times at which a session frees its compression contexts, and a
//! daemon returns free memory to the system.

use std::time::{Duration, Instant};

/// The time without input or output after which a session frees its compression contexts. A session
/// that was without them for this time frees new ones as soon as it is idle.
const REST_TIME: Duration = Duration::from_secs(1);

/// The state of a session's compression contexts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    /// The time since which the session may hold them.
    awake: Option<Instant>,
    /// The time at which they were freed.
    rested: Option<Instant>,
}

impl Rest {
    /// Notes input, which may build the contexts.
    pub(super) fn wake(&mut self, now: Instant) {
        self.awake.get_or_insert(now);
    }

    /// Returns true if the session has had input.
    pub(super) fn has_begun(&self) -> bool {
        self.awake.is_some() || self.rested.is_some()
    }

    /// Returns the time at which the contexts of an idle session should be freed.
    pub(super) fn due(&self, last_activity: Instant) -> Option<Instant> {
        self.awake.map(|_| last_activity + REST_TIME)
    }

    /// Returns true if exchanges on the session are rare: the contexts need not wait for the next.
    pub(super) fn is_rare(&self) -> bool {
        let rare = |awake| self.rested.is_none_or(|rested| rested + REST_TIME <= awake);
        self.awake.is_some_and(rare)
    }

    /// Notes the end of an attempt, and its time if it succeeded. The next attempt follows the next
    /// input.
    pub(super) fn end(&mut self, rested: Option<Instant>) {
        self.rested = rested.or(self.rested);
        self.awake = None;
    }
}

/// The times at which a daemon returns memory to the system: not more often than once in
/// [`REST_TIME`], since the allocator walks through all free memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trim {
    last: Option<Instant>,
    wanted: bool,
}

impl Trim {
    /// Notes that sessions have freed memory.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Returns the time of the next trim.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.wanted
            .then(|| self.last.map_or(now, |last| last + REST_TIME))
    }

    /// Trims if it is time.
    pub(super) fn check(&mut self, now: Instant) {
        if self.due(now).is_some_and(|time| time <= now) {
            self.wanted = false;
            self.last = Some(now);
            crate::sys::trim_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_waits_while_exchanges_are_frequent() {
        let start = Instant::now();
        let mut rest = Rest::default();
        assert!(!rest.is_rare() && !rest.has_begun());
        assert_eq!(rest.due(start), None);
        rest.wake(start);
        assert!(rest.is_rare());
        rest.end(Some(start));
        assert!(rest.has_begun());
        rest.wake(start + REST_TIME / 2);
        assert!(!rest.is_rare());
        assert_eq!(rest.due(start), Some(start + REST_TIME));
        rest.end(None);
        rest.wake(start + REST_TIME);
        assert!(rest.is_rare());
    }

    #[test]
    fn trim_runs_once_in_a_rest_time() {
        let start = Instant::now();
        let mut trim = Trim::default();
        assert_eq!(trim.due(start), None);
        trim.want();
        assert_eq!(trim.due(start), Some(start));
        trim.check(start);
        trim.want();
        trim.check(start);
        assert_eq!(trim.due(start), Some(start + REST_TIME));
        trim.check(start + REST_TIME);
        assert_eq!(trim.due(start), None);
    }
}
