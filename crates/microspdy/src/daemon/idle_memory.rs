//! The memory of idle sessions: the times at which a session frees its compression contexts, and a
//! daemon returns free memory to the system.

use std::time::{Duration, Instant};

/// The time without input or output after which a session frees its compression contexts. A session
/// that was without them for this time frees new ones as soon as it is idle.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// The state of a session's compression contexts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleContexts {
    /// The time since which the session may hold them.
    awake: Option<Instant>,
    /// The time at which they were freed.
    freed: Option<Instant>,
}

impl IdleContexts {
    /// Notes input, which may build the contexts.
    pub(super) fn wake(&mut self, now: Instant) {
        self.awake.get_or_insert(now);
    }

    /// Returns true if the session has had input.
    pub(super) fn has_begun(&self) -> bool {
        self.awake.is_some() || self.freed.is_some()
    }

    /// Returns the time at which the contexts of an idle session should be freed.
    pub(super) fn due(&self, last_activity: Instant) -> Option<Instant> {
        self.awake.map(|_| last_activity + IDLE_TIME)
    }

    /// Returns true if exchanges on the session are rare: the contexts need not wait for the next.
    pub(super) fn is_rare(&self) -> bool {
        let rare = |awake| self.freed.is_none_or(|freed| freed + IDLE_TIME <= awake);
        self.awake.is_some_and(rare)
    }

    /// Notes the end of an attempt, and its time if it succeeded. The next attempt follows the next
    /// input.
    pub(super) fn end(&mut self, freed: Option<Instant>) {
        self.freed = freed.or(self.freed);
        self.awake = None;
    }
}

/// The times at which a daemon returns memory to the system: not more often than once in
/// [`IDLE_TIME`], since the allocator walks through all free memory.
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
            .then(|| self.last.map_or(now, |last| last + IDLE_TIME))
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
    fn contexts_stay_while_exchanges_are_frequent() {
        let start = Instant::now();
        let mut contexts = IdleContexts::default();
        assert!(!contexts.is_rare() && !contexts.has_begun());
        assert_eq!(contexts.due(start), None);
        contexts.wake(start);
        assert!(contexts.is_rare());
        contexts.end(Some(start));
        assert!(contexts.has_begun());
        contexts.wake(start + IDLE_TIME / 2);
        assert!(!contexts.is_rare());
        assert_eq!(contexts.due(start), Some(start + IDLE_TIME));
        contexts.end(None);
        contexts.wake(start + IDLE_TIME);
        assert!(contexts.is_rare());
    }

    #[test]
    fn trim_runs_once_in_an_idle_time() {
        let start = Instant::now();
        let mut trim = Trim::default();
        assert_eq!(trim.due(start), None);
        trim.want();
        assert_eq!(trim.due(start), Some(start));
        trim.check(start);
        trim.want();
        trim.check(start);
        assert_eq!(trim.due(start), Some(start + IDLE_TIME));
        trim.check(start + IDLE_TIME);
        assert_eq!(trim.due(start), None);
    }
}
