//! The sessions that rest: a path that was lost meanwhile is found by a probe.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

use super::Timeouts;
use super::path_timeout::PathTimeout;
use super::path_watch::{WatchedPath, datagrams_received};

/// The wait for a reply to the probe of a silent session, by the session's first round trip.
const PROBE_TIMEOUT: PathTimeout = PathTimeout {
    round_trips: 3,
    least: Duration::from_secs(2),
    most: Duration::from_secs(10),
};

/// A moment on the monotonic clock and on the system clock. The monotonic clock may stop while the
/// machine sleeps, and the system clock may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard(Instant, SystemTime);

impl Heard {
    pub(super) fn at(now: Instant) -> Self {
        Self(now, SystemTime::now())
    }

    /// Returns the time on the monotonic clock.
    pub(super) const fn instant(self) -> Instant {
        self.0
    }

    /// Returns the time since then, by the clock that shows more of it.
    fn elapsed(self) -> Duration {
        self.0.elapsed().max(self.1.elapsed().unwrap_or_default())
    }
}

/// The rests of one session.
#[derive(Debug)]
pub(super) struct Rests {
    /// The time without input after which the next request also probes the session.
    after: Duration,
    /// The last input before the latest probe. Each silence is probed once.
    probed_after: Cell<Option<Heard>>,
}

impl Rests {
    pub(super) fn new(timeouts: &Timeouts) -> Self {
        Self {
            after: timeouts.probe_after / 2,
            probed_after: Cell::default(),
        }
    }

    /// Returns true if the last input came so long ago that the path may be lost.
    pub(super) fn has_begun(&self, heard: Option<Heard>) -> bool {
        heard.is_some_and(|heard| heard.elapsed() >= self.after)
    }

    /// Probes a session that rests, and resolves if no reply arrives soon. Otherwise it never
    /// resolves.
    pub(super) async fn until_lost(&self, path: &dyn WatchedPath) {
        let heard = path.heard().filter(|heard| self.has_begun(Some(*heard)));
        let is_probed = |heard| self.probed_after.get() == Some(heard) || path.probe();
        if let Some(heard) = heard.filter(|heard| is_probed(*heard)) {
            self.probed_after.set(Some(heard));
            // Over a carrier with datagrams, an acknowledgement of the probe suffices.
            let arrived = datagrams_received(path);
            tokio::time::sleep(PROBE_TIMEOUT.over(Some(path.answered_in()))).await;
            if path.heard() == Some(heard) && datagrams_received(path) == arrived {
                return;
            }
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::error::Error;
    use crate::path::Facts;

    /// A path without datagrams, which rests, and whose other end never answers.
    struct Resting {
        heard: Heard,
        has_probes: bool,
        probes: Cell<u32>,
    }

    impl Resting {
        fn new(has_probes: bool) -> Self {
            let earlier = SystemTime::now() - Duration::from_secs(3600);
            Self {
                heard: Heard(Instant::now(), earlier),
                has_probes,
                probes: Cell::new(0),
            }
        }
    }

    impl WatchedPath for Resting {
        fn facts(&self) -> Option<Rc<dyn Facts>> {
            None
        }

        fn ended(&self) -> Option<Error> {
            None
        }

        fn heard(&self) -> Option<Heard> {
            Some(self.heard)
        }

        fn answered_in(&self) -> Duration {
            Duration::ZERO
        }

        fn probe(&self) -> bool {
            self.probes.set(self.probes.get() + 1);
            self.has_probes
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_without_a_probe_shows_no_loss() {
        let minute = Duration::from_secs(60);
        for has_probes in [true, false] {
            let (path, rests) = (Resting::new(has_probes), Rests::new(&Timeouts::default()));
            assert!(rests.has_begun(path.heard()));
            let both = async { tokio::join!(rests.until_lost(&path), rests.until_lost(&path)) };
            let lost = tokio::time::timeout(minute, both).await.is_ok();
            assert_eq!(lost, has_probes);
            assert!(!has_probes || path.probes.get() == 1, "one probe suffices");
        }
    }

    #[test]
    fn silence_counts_by_the_clock_that_shows_more() {
        let (now, today) = (Instant::now(), SystemTime::now());
        let hour = Duration::from_secs(3600);
        assert!(
            Heard(now, today - hour).elapsed() >= hour,
            "the machine slept"
        );
        let second = Duration::from_secs(1);
        let earlier = now
            .checked_sub(second)
            .expect("the machine has run for a second");
        assert!(
            (second..hour).contains(&Heard(earlier, today + hour).elapsed()),
            "the time was set back"
        );
    }
}
