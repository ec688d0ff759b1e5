//! Records that are due one after another.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time in which requests that browsers make together arrive. A decision that they may change
/// waits that long after the first one.
pub(super) const GATHER_PERIOD: Duration = Duration::from_millis(10);

/// Records, each with the time at which it is due. All are added with the same period, so that the
/// first one is due first.
pub(super) struct Deadlines<T>(VecDeque<(Instant, T)>);

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Deadlines<T> {
    /// Adds a record that is due at `at`.
    pub(super) fn add(&mut self, at: Instant, record: T) {
        self.0.push_back((at, record));
    }

    /// Returns the time at which the first record is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().map(|(at, _)| *at)
    }

    /// Returns the time at which the first record is due that is still wanted, and drops those
    /// before it.
    pub(super) fn next_wanted(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<Instant> {
        while self
            .0
            .pop_front_if(|(_, record)| !is_wanted(record))
            .is_some()
        {}
        self.next()
    }

    /// Takes the first record if it is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<T> {
        let (_, record) = self.0.pop_front_if(|(at, _)| *at <= now)?;
        Some(record)
    }

    /// Takes all records.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.0)
            .into_iter()
            .map(|(_, record)| record)
    }

    /// Drops all records.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn deadlines(start: Instant) -> Deadlines<u32> {
        let mut deadlines = Deadlines::default();
        for number in 0..4 {
            deadlines.add(start + number * SECOND, number);
        }
        deadlines
    }

    #[test]
    fn deadlines_return_records_once_due() {
        let start = Instant::now();
        let mut deadlines = deadlines(start);
        assert_eq!(deadlines.next(), Some(start));
        assert_eq!(deadlines.take_due(start + SECOND), Some(0));
        assert_eq!(deadlines.take_due(start + SECOND), Some(1), "at its time");
        assert_eq!(deadlines.take_due(start + SECOND), None);
        assert_eq!(deadlines.take_all().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(deadlines.next(), None);
    }

    #[test]
    fn deadlines_skip_unwanted_records() {
        let start = Instant::now();
        let mut deadlines = deadlines(start);
        let next = deadlines.next_wanted(|number| number % 3 == 2);
        assert_eq!(next, Some(start + 2 * SECOND));
        assert_eq!(deadlines.take_due(start + 9 * SECOND), Some(2));
        assert_eq!(deadlines.next_wanted(|_| false), None);
        let mut deadlines = self::deadlines(start);
        deadlines.clear();
        assert_eq!(deadlines.next(), None);
    }
}
