//! The detection of a TCP connection that makes no progress while exchanges are under way: pure,
//! with time as an argument.
//!
//! ```text
//!  request or PING ─▶ no acknowledgement ─▶ stalled: another session is dialled beside this one
//!  bytes, or an acknowledgement: progress ─▶ the time before the next PING doubles
//! ```
//!
//! If the address of this machine has changed, or a translator has forgotten the connection, TCP
//! repeats its segments for many minutes and reports nothing. The other end's kernel acknowledges
//! each byte, whether its program answers or not. So bytes that stay without an acknowledgement for
//! some round trips show that the path delivers nothing. The kernel has repeated them several times
//! by then.
//!
//! The kernel counts the progress: the bytes that have arrived, and those that the other end has
//! acknowledged. A request is the first probe, if it has been sent: one that waits for a stream
//! shows nothing. A connection that only waits gets ever fewer PINGs. The session itself probes
//! after the last of these times, and this module only looks for the acknowledgement then.

use std::time::{Duration, Instant};

use super::path_timeout::PathTimeout;

/// The time without progress before a probe, while data arrives or a request has just been taken.
const LEAST: Duration = Duration::from_secs(2);
/// The longest time before a probe. The session itself probes after this time, within half of it.
const MOST: Duration = Duration::from_secs(20);
/// The time between two looks for a probe of the session.
const LOOK: Duration = Duration::from_secs(5);
/// The most bytes of a probe by either end and of its answer, within TLS. They show no other
/// traffic.
const FEW: u64 = 256;
/// The time for the acknowledgement of a probe: three times that of the other end's first answer,
/// which contains a handshake. A cell or a satellite may be gone for two seconds.
const ANSWER: PathTimeout = PathTimeout {
    round_trips: 3,
    least: Duration::from_secs(3),
    most: Duration::from_secs(10),
};
/// The time between two looks at a connection that has stalled.
const AGAIN: Duration = Duration::from_millis(250);
/// The longest delay of a look. After a longer one, this process did not run, and may have bytes to
/// read.
const LATE: Duration = Duration::from_secs(1);

/// The result of a look at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) is_stalled: bool,
    /// True if the caller sends a probe now.
    pub(super) probe: bool,
    /// The time before the next look.
    pub(super) wait: Duration,
}

/// The observation of one connection, which all exchanges of a session share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// The bytes that had arrived and were acknowledged at the last look.
    count: u64,
    /// The time at which the count last changed.
    since: Instant,
    /// The time of the next look.
    due: Instant,
    /// The time without progress before a probe.
    quiet: Duration,
    probed: Option<Probed>,
}

/// Bytes that wait for an acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Probed {
    at: Instant,
    /// True for a PING, and false for a request.
    is_extra: bool,
}

impl Stall {
    /// Begins an observation.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            count: 0,
            since: now,
            due: now,
            quiet: LEAST,
            probed: None,
        }
    }

    /// Notes that a request is sent after `count` bytes. Requests beside others do not delay the
    /// verdict.
    pub(super) fn expect(&mut self, now: Instant, count: u64) {
        if count != self.count || self.missed_a_look(now) {
            (self.count, self.since, self.probed) = (count, now, None);
        }
        self.quiet = LEAST;
        self.due = now;
        self.probed.get_or_insert(Probed {
            at: now,
            is_extra: false,
        });
    }

    /// Looks at the connection. `count` is the number of bytes that have arrived or were
    /// acknowledged so far. `waits` is true if bytes wait for an acknowledgement. `answer` is the
    /// time until the other end's first bytes.
    pub(super) fn look(&mut self, now: Instant, count: u64, waits: bool, answer: Duration) -> Look {
        let limit = ANSWER.over(Some(answer));
        let missed_a_look = self.missed_a_look(now);
        if count != self.count || missed_a_look {
            let few = count.wrapping_sub(self.count) <= FEW;
            self.quiet = match self.probed {
                _ if missed_a_look => LEAST,
                Some(Probed { is_extra: true, .. }) => (2 * self.quiet).min(MOST),
                None if few => self.quiet,
                _ => LEAST,
            };
            (self.count, self.since, self.probed) = (count, now, None);
        }
        if let Some(probed) = self.probed
            && now >= probed.at + limit
            && !waits
        {
            // Nothing was sent. A PING follows a request that waits, and nothing such a PING.
            self.probed = None;
            if probed.is_extra {
                (self.since, self.quiet) = (now, (2 * self.quiet).min(MOST));
            }
        }
        let mut probe = false;
        if self.probed.is_none() && now >= self.since + self.quiet {
            // The session probes too in the end.
            let is_late = self.quiet < MOST || now >= self.since + 2 * self.quiet;
            probe = !waits && is_late;
            if waits || probe {
                let is_extra = true;
                self.probed = Some(Probed { at: now, is_extra });
            }
        }
        let verdict = self.probed.map(|probed| probed.at + limit);
        let is_stalled = verdict.is_some_and(|at| now >= at);
        let next = match verdict {
            Some(_) if is_stalled => now + AGAIN,
            Some(at) => at,
            None if now >= self.since + self.quiet => now + LOOK,
            None => self.since + self.quiet,
        };
        let mut wait = next.saturating_duration_since(now);
        // A download notices its progress late by half of this time at most. An idle tunnel wakes
        // little for that.
        if self.quiet == LEAST {
            wait = wait.min(LEAST / 2);
        }
        self.due = now + wait;
        Look {
            is_stalled,
            probe,
            wait,
        }
    }

    /// Returns true if a connection that has stalled is lost, while another one to the same end
    /// works since `replaced`. The kernel doubles the time between its repetitions. So at least one
    /// of them has had time for an acknowledgement since then.
    pub(super) fn is_lost(&self, now: Instant, replaced: Instant) -> bool {
        let Some(probed) = self.probed else {
            return false;
        };
        let age = replaced.saturating_duration_since(probed.at);
        now >= replaced + 2 * age.max(ANSWER.least)
    }

    /// Returns true if nothing looked when it was due: no exchange was under way, or this process
    /// did not run.
    fn missed_a_look(&self, now: Instant) -> bool {
        now > self.due + LATE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const ROUND_TRIP: Duration = Duration::from_millis(100);

    /// A connection in virtual time.
    struct Scene {
        stall: Stall,
        now: Instant,
        count: u64,
        /// The bytes that arrive in each second.
        flow: u64,
        /// True while the other end acknowledges probes.
        answers: bool,
        /// True while bytes wait for an acknowledgement.
        waits: bool,
        probes: usize,
    }

    impl Scene {
        /// Begins with a request.
        fn new() -> Self {
            let now = Instant::now();
            let mut stall = Stall::new(now);
            stall.expect(now, 0);
            Self {
                stall,
                now,
                count: 0,
                flow: 0,
                answers: true,
                waits: true,
                probes: 0,
            }
        }

        /// Acknowledges the request.
        fn answer(&mut self) {
            self.count += 1;
            self.waits = false;
        }

        fn look(&mut self) -> Look {
            let (now, count) = (self.now, self.count);
            self.stall.look(now, count, self.waits, ROUND_TRIP)
        }

        /// Passes time, and returns the time until the connection has stalled.
        fn pass(&mut self, time: Duration) -> Option<Duration> {
            let begun = self.now;
            while self.now < begun + time {
                let look = self.look();
                if look.is_stalled {
                    return Some(self.now - begun);
                }
                if look.probe {
                    self.probes += 1;
                    self.count += u64::from(self.answers);
                    self.waits |= !self.answers;
                }
                self.now += look.wait;
                self.count += look.wait.as_millis() as u64 * self.flow / 1000;
            }
            None
        }
    }

    #[test]
    fn request_without_an_acknowledgement_stalls() {
        let mut scene = Scene::new();
        assert_eq!(scene.pass(20 * SECOND), Some(ANSWER.least));
        assert_eq!(scene.probes, 0, "the request is the probe");
        // Other requests do not delay it.
        scene.stall.expect(scene.now, scene.count);
        assert!(scene.look().is_stalled);
        // The path is back.
        scene.answer();
        scene.stall.expect(scene.now, scene.count);
        let look = scene.look();
        assert!(!look.is_stalled && !look.probe);
    }

    #[test]
    fn slow_path_has_time_for_an_acknowledgement() {
        for (answer, expected) in [(600, 3000), (1800, 5400), (8000, 10_000)] {
            let mut stall = Scene::new().stall;
            let (begun, answer) = (stall.since, Duration::from_millis(answer));
            let mut now = begun;
            let stalled_in = loop {
                let look = stall.look(now, 0, true, answer);
                if look.is_stalled {
                    break now - begun;
                }
                now += look.wait;
            };
            assert_eq!(stalled_in, Duration::from_millis(expected));
        }
    }

    #[test]
    fn download_that_breaks_off_stalls_after_one_probe() {
        let mut scene = Scene::new();
        scene.answer();
        scene.flow = 10_000;
        assert_eq!(scene.pass(60 * SECOND), None);
        assert_eq!(scene.probes, 0);
        (scene.flow, scene.answers) = (0, false);
        let stalled_in = scene.pass(60 * SECOND).expect("it stalls");
        assert!(stalled_in <= 2 * LEAST + ANSWER.least, "{stalled_in:?}");
        assert_eq!(scene.probes, 1);
    }

    #[test]
    fn long_poll_costs_few_probes() {
        let mut scene = Scene::new();
        scene.answer();
        assert_eq!(scene.pass(40 * SECOND), None);
        assert!(scene.probes <= 4, "{}", scene.probes);
        // The session itself probes after 20 to 30 seconds.
        for _ in 0..100 {
            assert_eq!(scene.pass(27 * SECOND), None);
            scene.count += 2 * 39;
        }
        assert!(scene.probes <= 5, "{}", scene.probes);
        // One of its probes gets no acknowledgement.
        assert_eq!(scene.pass(27 * SECOND), None);
        scene.waits = true;
        let stalled_in = scene.pass(60 * SECOND).expect("it stalls");
        assert!(stalled_in <= LOOK + ANSWER.least, "{stalled_in:?}");
        assert!(scene.probes <= 5, "{}", scene.probes);
    }

    #[test]
    fn long_poll_without_probes_of_the_session_is_probed() {
        let mut scene = Scene::new();
        scene.answer();
        assert_eq!(scene.pass(60 * SECOND), None);
        scene.answers = false;
        assert!(scene.pass(60 * SECOND).is_some());
    }

    #[test]
    fn request_that_was_not_sent_does_not_stall() {
        let mut scene = Scene::new();
        (scene.waits, scene.answers) = (false, true);
        assert_eq!(scene.pass(60 * SECOND), None);
        assert!((1..=6).contains(&scene.probes), "{}", scene.probes);
        assert_eq!(scene.count, scene.probes as u64);
    }

    /// The kernel doubles the time between its repetitions.
    #[test]
    fn connection_is_lost_after_another_repetition() {
        for (replaced, expected) in [(3, 9), (4, 12), (20, 60)] {
            let mut scene = Scene::new();
            let begun = scene.now;
            assert!(scene.pass(10 * SECOND).is_some());
            let replaced = begun + replaced * SECOND;
            let is_lost = |seconds| scene.stall.is_lost(begun + seconds * SECOND, replaced);
            assert!(!is_lost(expected - 1) && is_lost(expected));
            scene.answer();
            scene.look();
            assert!(!scene.stall.is_lost(begun + 600 * SECOND, replaced));
        }
    }

    #[test]
    fn process_that_did_not_run_looks_again() {
        let mut scene = Scene::new();
        scene.answers = false;
        assert_eq!(scene.pass(2 * SECOND), None);
        scene.now += 60 * SECOND;
        let look = scene.look();
        assert!(!look.is_stalled && !look.probe);
        assert!(scene.pass(60 * SECOND).is_some());
    }
}
