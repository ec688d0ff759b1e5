//! The check of a session that was idle: a probe finds out whether its path was lost meanwhile.

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
pub(super) struct InputTime(Instant, SystemTime);

impl InputTime {
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

/// The checks of one session.
#[derive(Debug)]
pub(super) struct IdleCheck {
    /// The time without input after which the next request also probes the session.
    after: Duration,
    /// The latest probe. Each silence is probed once.
    probed: Cell<Option<Probed>>,
    /// The time at which the path was seen to deliver datagrams, in response to a probe.
    answered: Cell<Option<InputTime>>,
}

/// A probe of a session.
#[derive(Clone, Copy, Debug)]
struct Probed {
    /// The last input before it.
    after: InputTime,
    /// The datagrams that had arrived before it.
    arrived: Option<u64>,
}

impl IdleCheck {
    pub(super) fn new(timeouts: &Timeouts) -> Self {
        Self {
            after: timeouts.probe_after / 2,
            probed: Cell::default(),
            answered: Cell::default(),
        }
    }

    /// Returns true if the last input came so long ago that the path may be lost.
    pub(super) fn is_due(&self, heard: Option<InputTime>) -> bool {
        let heard = self.last(heard);
        heard.is_some_and(|heard| heard.elapsed() >= self.after)
    }

    /// Returns the later one of the last input and the last reply to a probe.
    fn last(&self, heard: Option<InputTime>) -> Option<InputTime> {
        let both = heard.into_iter().chain(self.answered.get());
        both.max_by_key(|heard| heard.instant())
    }

    /// Probes a path once in a silence. Returns the datagrams that had arrived before the probe, or
    /// `None` if the path has no probes.
    fn probe(&self, path: &dyn WatchedPath, after: InputTime) -> Option<Probed> {
        let earlier = self.probed.get().filter(|probed| probed.after == after);
        let probed = earlier.or_else(|| {
            let arrived = datagrams_received(path);
            path.probe().then_some(Probed { after, arrived })
        });
        self.probed.set(probed);
        probed
    }

    /// Probes a session that was idle, and resolves if no reply arrives soon. Otherwise it never
    /// resolves.
    pub(super) async fn until_lost(&self, path: &dyn WatchedPath) {
        let heard = self.last(path.heard());
        let heard = heard.filter(|heard| heard.elapsed() >= self.after);
        if let Some(probed) = heard.and_then(|heard| self.probe(path, heard)) {
            tokio::time::sleep(PROBE_TIMEOUT.over(Some(path.answered_in()))).await;
            // Over a carrier with datagrams, an acknowledgement of the probe suffices.
            if datagrams_received(path) != probed.arrived {
                self.answered.set(Some(InputTime::at(Instant::now())));
            } else if self.last(path.heard()) == Some(probed.after) {
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

    /// An idle path. Without datagrams, its other end never answers.
    struct IdlePath {
        heard: InputTime,
        has_probes: bool,
        probes: Cell<u32>,
        /// The datagrams that have arrived: one in response to each probe.
        datagrams: Option<Rc<Datagrams>>,
    }

    #[derive(Debug, Default)]
    struct Datagrams(Cell<u64>);

    impl Facts for Datagrams {
        fn below(&self) -> Option<&dyn Facts> {
            None
        }

        fn datagrams_received(&self) -> Option<u64> {
            Some(self.0.get())
        }
    }

    impl IdlePath {
        fn new(has_probes: bool) -> Self {
            let earlier = SystemTime::now() - Duration::from_secs(3600);
            Self {
                heard: InputTime(Instant::now(), earlier),
                has_probes,
                probes: Cell::new(0),
                datagrams: None,
            }
        }
    }

    impl WatchedPath for IdlePath {
        fn facts(&self) -> Option<Rc<dyn Facts>> {
            Some(Rc::clone(self.datagrams.as_ref()?) as Rc<dyn Facts>)
        }

        fn ended(&self) -> Option<Error> {
            None
        }

        fn heard(&self) -> Option<InputTime> {
            Some(self.heard)
        }

        fn answered_in(&self) -> Duration {
            Duration::ZERO
        }

        fn probe(&self) -> bool {
            self.probes.set(self.probes.get() + 1);
            if let Some(datagrams) = &self.datagrams {
                datagrams.0.set(datagrams.0.get() + 1);
            }
            self.has_probes
        }

        fn give_up(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn silence_without_a_probe_shows_no_loss() {
        let minute = Duration::from_secs(60);
        for has_probes in [true, false] {
            let (path, check) = (
                IdlePath::new(has_probes),
                IdleCheck::new(&Timeouts::default()),
            );
            assert!(check.is_due(path.heard()));
            let both = async { tokio::join!(check.until_lost(&path), check.until_lost(&path)) };
            let lost = tokio::time::timeout(minute, both).await.is_ok();
            assert_eq!(lost, has_probes);
            assert!(!has_probes || path.probes.get() == 1, "one probe suffices");
        }
    }

    /// The reply to a probe is no input of the session. It ends the silence nevertheless.
    #[tokio::test(start_paused = true)]
    async fn request_after_an_answered_probe_finds_no_loss() {
        let mut path = IdlePath::new(true);
        path.datagrams = Some(Rc::default());
        let check = IdleCheck::new(&Timeouts::default());
        let lost = async || {
            let lost = check.until_lost(&path);
            tokio::time::timeout(Duration::from_secs(60), lost).await
        };
        let both = async { tokio::join!(lost(), lost()) };
        let (first, second) = both.await;
        assert!(first.is_err() && second.is_err());
        assert!(!check.is_due(path.heard()));
        assert!(lost().await.is_err());
        assert_eq!(path.probes.get(), 1);
    }

    #[test]
    fn silence_counts_by_the_clock_that_shows_more() {
        let (now, today) = (Instant::now(), SystemTime::now());
        let hour = Duration::from_secs(3600);
        assert!(
            InputTime(now, today - hour).elapsed() >= hour,
            "the machine slept"
        );
        let second = Duration::from_secs(1);
        let earlier = now
            .checked_sub(second)
            .expect("the machine has run for a second");
        assert!(
            (second..hour).contains(&InputTime(earlier, today + hour).elapsed()),
            "the time was set back"
        );
    }
}
