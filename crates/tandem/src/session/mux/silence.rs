//! The detection of a path that delivers nothing while exchanges are under way: pure, with time as
//! an argument.
//!
//! If the network drops all datagrams, a session over them gets no error. An exchange therefore
//! probes a path on which nothing arrives. If nothing arrives after the probe either, the path
//! counts as silent. Each answered probe doubles the time before the next one, so that a long poll
//! costs little.

use std::time::{Duration, Instant};

/// The shortest silence before a probe, and the shortest wait for its answer.
const LEAST: Duration = Duration::from_millis(300);
/// The longest time before a probe.
const MOST: Duration = Duration::from_secs(20);

/// The next step of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Look again after this time.
    Wait(Duration),
    /// Probe the path, and look again after this time.
    Probe(Duration),
    /// The path is silent: use another one.
    Silent,
}

/// The observation of one path, which all exchanges of a session share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// The datagrams that had arrived at the last look.
    count: u64,
    /// The time at which the count last changed.
    since: Instant,
    looked_at: Instant,
    probed_at: Option<Instant>,
    /// The time without a datagram before the next probe.
    quiet: Duration,
}

impl Silence {
    /// Begins an observation.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            count: 0,
            since: now,
            looked_at: now,
            probed_at: None,
            quiet: LEAST,
        }
    }

    /// Looks at the path. `count` is the number of datagrams that have arrived so far.
    pub(super) fn look(&mut self, now: Instant, count: u64, round_trip: Duration) -> Step {
        let least = LEAST.max(2 * round_trip);
        // No exchange was under way for a while.
        let rested = now.saturating_duration_since(self.looked_at) > 2 * self.quiet.max(least);
        self.looked_at = now;
        if count != self.count || rested {
            let answered = self.probed_at.take().is_some() && !rested;
            self.quiet = if answered {
                (2 * self.quiet).clamp(least, MOST)
            } else {
                least
            };
            (self.count, self.since) = (count, now);
        }
        self.quiet = self.quiet.max(least);
        match self.probed_at {
            Some(at) if now >= at + least => Step::Silent,
            Some(at) => Step::Wait(at + least - now),
            None if now >= self.since + self.quiet => {
                self.probed_at = Some(now);
                Step::Probe(least)
            }
            None => Step::Wait((self.since + self.quiet - now).min(self.quiet / 2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path in virtual time, with one exchange under way.
    struct Scene {
        silence: Silence,
        now: Instant,
        count: u64,
        round_trip: Duration,
        probes: usize,
    }

    impl Scene {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                silence: Silence::new(now),
                now,
                count: 0,
                round_trip: Duration::from_millis(100),
                probes: 0,
            }
        }

        /// Lets time pass. Returns the time of silence if the path counts as silent.
        fn pass(&mut self, time: Duration, mut probed: impl FnMut(&mut u64)) -> Option<Duration> {
            let begun = self.now;
            while self.now < begun + time {
                match self.silence.look(self.now, self.count, self.round_trip) {
                    Step::Wait(wait) => self.now += wait.max(Duration::from_millis(1)),
                    Step::Probe(wait) => {
                        self.probes += 1;
                        probed(&mut self.count);
                        self.now += wait;
                    }
                    Step::Silent => return Some(self.now - begun),
                }
            }
            None
        }
    }

    #[test]
    fn dead_path_is_silent_after_a_probe_without_answer() {
        let mut scene = Scene::new();
        let took = scene.pass(Duration::from_secs(10), |_| {});
        assert_eq!((took, scene.probes), (Some(2 * LEAST), 1));
        let mut scene = Scene::new();
        scene.round_trip = Duration::from_millis(600);
        let took = scene.pass(Duration::from_secs(10), |_| {});
        assert_eq!(took, Some(4 * scene.round_trip));
    }

    #[test]
    fn long_poll_over_a_live_path_costs_few_probes() {
        let mut scene = Scene::new();
        assert_eq!(
            scene.pass(Duration::from_secs(600), |count| *count += 1),
            None
        );
        assert!((20..60).contains(&scene.probes), "{}", scene.probes);
    }

    #[test]
    fn data_without_probes_keeps_the_path() {
        let mut scene = Scene::new();
        for _ in 0..100 {
            scene.count += 3;
            assert_eq!(scene.pass(Duration::from_millis(100), |_| {}), None);
        }
        assert_eq!(scene.probes, 0);
        let took = scene
            .pass(Duration::from_secs(10), |_| {})
            .expect("silence");
        assert!(took <= 3 * LEAST, "{took:?}");
    }

    #[test]
    fn rest_without_exchanges_is_no_silence() {
        let mut scene = Scene::new();
        assert_eq!(scene.pass(Duration::from_millis(350), |_| {}), None);
        assert_eq!(scene.probes, 1);
        // The exchange has ended, and the next one comes after a minute.
        scene.now += Duration::from_secs(60);
        let step = scene.silence.look(scene.now, scene.count, scene.round_trip);
        assert!(matches!(step, Step::Wait(_)), "{step:?}");
    }
}
