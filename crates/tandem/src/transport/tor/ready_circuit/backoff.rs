//! The time limits of the circuit that is kept ready, and the pauses before the next is built.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use super::super::random;

/// The time limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimits {
    /// The time between two checks of a circuit that is being built or was just given away. Events
    /// usually come first.
    pub(super) look: Duration,
    /// The time between two checks of a circuit that is ready.
    pub(super) watch: Duration,
    /// The time for a circuit to be built. Tor gives up most circuits long before.
    pub(super) build: Duration,
    /// The time for a stream to use a circuit that was given away.
    pub(super) unused: Duration,
    /// The mean age at which a circuit that no dial has used is replaced.
    pub(super) age: Duration,
    /// The time without a dial after which no circuit is kept.
    pub(super) idle: Duration,
    /// The mean of the pause before the next circuit. Each pause is chosen at random.
    pub(super) rest: Duration,
    /// The pauses after failures, doubled from the first to the last.
    pub(super) pauses: (Duration, Duration),
}

impl TimeLimits {
    /// Tor itself builds circuits ahead, and keeps unused ones for half an hour to an hour after
    /// the last use.
    pub(crate) const USUAL: Self = Self {
        look: Duration::from_secs(2),
        watch: Duration::from_secs(15),
        build: Duration::from_secs(60),
        unused: Duration::from_secs(1),
        age: Duration::from_secs(20 * 60),
        idle: Duration::from_secs(60 * 60),
        rest: Duration::from_secs(10),
        pauses: (Duration::from_secs(2), Duration::from_secs(10 * 60)),
    };
}

/// The end of a circuit.
pub(super) enum Outcome {
    /// A stream uses the circuit, or it has grown old without a fault.
    Good,
    /// The circuit was given away, but the stream used another.
    Unused,
    /// The circuit could not be built, or failed.
    Failed,
}

/// The pause before the next circuit. It outlives exits and connections to the control port.
#[derive(Debug)]
pub(crate) struct Backoff {
    pub(super) times: TimeLimits,
    failures: Cell<u32>,
    last: Cell<Option<Instant>>,
    until: Cell<Option<Instant>>,
}

impl Backoff {
    /// Creates a backoff without failures.
    pub(crate) const fn new(times: TimeLimits) -> Self {
        Self {
            times,
            failures: Cell::new(0),
            last: Cell::new(None),
            until: Cell::new(None),
        }
    }

    /// Counts a failure. Failures are forgotten after the longest pause without another one. A
    /// stream that begins does not clear them, since it does not prove that the exit works.
    pub(crate) fn lose(&self) {
        let now = Instant::now();
        let before = self
            .last
            .replace(Some(now))
            .filter(|last| now - *last <= self.times.pauses.1 + self.pause());
        self.failures
            .set(before.map_or(0, |_| self.failures.get()).saturating_add(1));
        self.extend(self.after_failures());
    }

    /// Returns the pause after the failures so far.
    pub(super) fn after_failures(&self) -> Duration {
        let (first, last) = self.times.pauses;
        let doublings = self.failures.get().checked_sub(1);
        doublings.map_or(Duration::ZERO, |n| {
            first.saturating_mul(1 << n.min(16)).min(last)
        })
    }

    /// Begins the pause after a circuit.
    pub(super) fn note(&self, outcome: Outcome) {
        match outcome {
            Outcome::Failed => self.lose(),
            Outcome::Unused => self.extend(self.times.pauses.0),
            // The exit sees circuits come and go. A circuit that always follows another at once
            // would show that both belong to one user.
            Outcome::Good => self.extend(at_random(self.times.rest)),
        }
    }

    /// Lets the pause last for at least `time` from now. The task of a circuit can report a stream
    /// after the dial has reported that the gateway does not answer, so no report shortens a pause.
    fn extend(&self, time: Duration) {
        let until = Instant::now() + time;
        self.until.set(self.until.get().max(Some(until)));
    }

    /// Returns the rest of the pause.
    pub(crate) fn pause(&self) -> Duration {
        self.until.get().map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        })
    }
}

/// Returns an exponentially distributed time with this mean. The part that has passed then says
/// nothing about the rest.
pub(super) fn at_random(mean: Duration) -> Duration {
    // Above 0, and at most 1.
    let share = ((random() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    mean.mul_f64(-share.ln())
}
