//! Gaps in which nothing leaves, as while a user of satellites in low orbit changes the satellite.
//! Packets wait for the end of a gap in the queue, or on a link without a rate on the line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::config::{ConfigError, MAX_DELAY};
use crate::random::{Purpose, Random};
use crate::text;

/// The shortest time from the beginning of one gap to the next one.
const LEAST_PERIOD: Duration = Duration::from_millis(100);

/// The gaps of one direction. As text: `15s:100ms-500ms`, or `15s:100ms-500ms:2s` with the time of
/// the first gap, which is otherwise one period after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gaps {
    /// The time from the beginning of one gap to the next one.
    pub every: Duration,
    /// The shortest gap.
    pub shortest: Duration,
    /// The longest gap. The lengths are uniform between the two.
    pub longest: Duration,
    /// The beginning of the first gap.
    pub first: Duration,
}

impl Gaps {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.every < LEAST_PERIOD || self.every > MAX_DELAY || self.first > MAX_DELAY {
            return Err(ConfigError::Range {
                what: "time between gaps",
                limits: "100ms to an hour",
            });
        }
        if self.shortest > self.longest || self.longest > self.every / 2 {
            return Err(ConfigError::Range {
                what: "length of gaps",
                limits: "at most half of the time between them, the shortest first",
            });
        }
        Ok(())
    }
}

impl fmt::Display for Gaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [every, shortest, longest, first] =
            [self.every, self.shortest, self.longest, self.first].map(text::Time);
        write!(f, "{every}:{shortest}-{longest}:{first}")
    }
}

impl FromStr for Gaps {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::Text {
            what: "gaps",
            text: text.into(),
            expected: "EVERY:SHORTEST-LONGEST[:FIRST], e.g. 15s:100ms-500ms",
        };
        let (every, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (lengths, first) = match rest.split_once(':') {
            Some((lengths, first)) => (lengths, first),
            None => (rest, every),
        };
        let (shortest, longest) = lengths.split_once('-').ok_or_else(wrong)?;
        let gaps = Self {
            every: text::duration(every)?,
            shortest: text::duration(shortest)?,
            longest: text::duration(longest)?,
            first: text::duration(first)?,
        };
        gaps.check()?;
        Ok(gaps)
    }
}

/// The times of the gaps, of which each has a number from 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    gaps: Gaps,
    seed: u64,
}

impl Schedule {
    pub(crate) const fn new(gaps: Gaps, seed: u64) -> Self {
        Self { gaps, seed }
    }

    /// Returns the earliest time from `at` on that lies in no gap.
    pub(crate) fn open_at(&self, at: Duration) -> Duration {
        self.last_begun(at)
            .map_or(at, |number| at.max(self.end(number)))
    }

    /// Returns the end of work that begins at `start`, outside of gaps, and would end at `done`
    /// without them.
    pub(crate) fn stretch(&self, start: Duration, mut done: Duration) -> Duration {
        let mut number = self.last_begun(start).map_or(0, |number| number + 1);
        while self.begin(number) < done {
            done += self.length(number);
            number += 1;
        }
        done
    }

    /// Returns the number of the last gap that has begun at a time.
    fn last_begun(&self, at: Duration) -> Option<u64> {
        let since = at.checked_sub(self.gaps.first)?;
        u64::try_from(since.as_nanos() / self.gaps.every.as_nanos()).ok()
    }

    fn begin(&self, number: u64) -> Duration {
        let after = self.gaps.every.as_nanos() * u128::from(number);
        let after = Duration::from_nanos(u64::try_from(after).unwrap_or(u64::MAX));
        self.gaps.first.saturating_add(after)
    }

    fn end(&self, number: u64) -> Duration {
        self.begin(number).saturating_add(self.length(number))
    }

    fn length(&self, number: u64) -> Duration {
        let share = Random::of(self.seed, Purpose::Gap, number).unit();
        let Gaps {
            shortest, longest, ..
        } = self.gaps;
        shortest + (longest - shortest).mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn gaps_are_read_and_checked() {
        let gaps: Gaps = "15s:100ms-500ms".parse().expect("valid");
        assert_eq!((gaps.every, gaps.first), (15_000 * MS, 15_000 * MS));
        assert_eq!((gaps.shortest, gaps.longest), (100 * MS, 500 * MS));
        let gaps: Gaps = "1s:0-500ms:250ms".parse().expect("valid");
        assert_eq!(gaps.first, 250 * MS);
        assert_eq!(gaps.to_string().parse(), Ok(gaps));
        for text in [
            "15s",
            "15s:100ms",
            "15s:500ms-100ms",
            "1s:100ms-600ms",
            "10ms:1ms-2ms",
            "1s:0-1ms:2h",
            "x:0-1ms",
        ] {
            text.parse::<Gaps>().expect_err(text);
        }
    }

    prop_compose! {
        fn schedules()(
            every in 100u32..2000,
            first in 0u32..3000,
            halves in (0.0f64..=1.0, 0.0f64..=1.0),
            seed: u64,
        ) -> Schedule {
            let longest = (MS * every / 2).mul_f64(halves.0);
            let shortest = longest.mul_f64(halves.1);
            let gaps = Gaps { every: MS * every, shortest, longest, first: MS * first };
            gaps.check().expect("valid");
            Schedule::new(gaps, seed)
        }
    }

    /// Returns the beginnings and ends of the gaps before a time.
    fn until(schedule: &Schedule, end: Duration) -> Vec<(Duration, Duration)> {
        (0..)
            .map(|number| (schedule.begin(number), schedule.end(number)))
            .take_while(|(begin, _)| *begin < end)
            .collect()
    }

    proptest! {
        #[test]
        fn no_time_that_is_open_lies_in_a_gap(schedule in schedules(), at in 0u32..20_000) {
            let at = MS * at;
            let open = schedule.open_at(at);
            prop_assert!(open >= at);
            let all = until(&schedule, open + MS);
            prop_assert!(all.iter().all(|(begin, end)| open < *begin || open >= *end));
            // Nothing but gaps lies between the two.
            let waits = all.iter().any(|(begin, end)| *begin <= at && *end == open);
            prop_assert!(open == at || waits);
        }

        #[test]
        fn work_takes_its_time_outside_of_gaps(
            schedule in schedules(),
            start in 0u32..5000,
            micros in 0u64..10_000_000,
        ) {
            let start = schedule.open_at(MS * start);
            let work = Duration::from_micros(micros);
            let done = schedule.stretch(start, start + work);
            let within: Duration = until(&schedule, done)
                .iter()
                .filter(|(begin, _)| *begin >= start)
                .map(|(begin, end)| *end - *begin)
                .sum();
            prop_assert_eq!(done, start + work + within);
            // The end is no part of a gap, save for its first moment.
            let all = until(&schedule, done + MS);
            prop_assert!(all.iter().all(|(begin, end)| done <= *begin || done >= *end));
        }
    }
}
