//! Spares the kernel's BBR needless measurements of the round trip (`PROBE_RTT`).
//!
//! Once its shortest round trip is ten seconds old, BBR limits itself to four packets for a round
//! trip and 200 ms. On a path of 490 ms this costs 7 % of the rate. While the round trips are
//! nearly as short as ever, there is no queue to drain, and the measurement finds nothing. A
//! restart of the congestion control (the *control*) avoids it: BBR then takes the shortest round
//! trip of the connection, which is valid for ten more seconds.
//!
//! Every sixth measurement takes place, because the path may have become longer.
//!
//! A restarted control does not try a higher rate during its start, which takes four round trips.
//! It therefore restarts again only after a cycle of `PROBE_BW`, and not while its rate grows.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::path::{BbrPhase, BbrState, Facts};

/// The age of the shortest round trip after which the control may restart.
const FROM: Duration = Duration::from_secs(7);

/// The age after which BBR has surely measured again. The first age counts from the first write,
/// although the handshakes before it took some round trips.
const UNTIL: Duration = Duration::from_secs(11);

/// The length of a cycle of `PROBE_BW`, in shortest round trips. The control tries a higher rate in
/// one phase of a cycle, and never begins with the phase after that. Each cycle thus shows the
/// result.
const CYCLE: u32 = 8;

/// The time between two looks at the control.
const LOOK: Duration = Duration::from_millis(200);

/// A pause between two looks in which the path may have changed. Only writes lead to looks. While
/// the queue of the start-up drains, a busy session pauses for up to a second.
const PAUSE: Duration = Duration::from_secs(2);

/// The range of round trips in which a restart pays. With shorter ones, a measurement costs too
/// little. With longer ones, the start and a cycle of `PROBE_BW` take ten seconds, and a
/// measurement delays the cycle.
const ROUND_TRIPS: RangeInclusive<Duration> =
    Duration::from_millis(80)..=Duration::from_millis(800);

/// The number of measurements in a row that are spared.
const SPARED: u32 = 5;

/// The watch over the control of one session's socket.
#[derive(Debug)]
pub(super) struct ProbeRtt {
    /// True if the congestion control may be the kernel's BBR of version 1.
    possible: bool,
    /// The time since which BBR has its shortest round trip, as far as this is known.
    since: Instant,
    /// The time of the last look.
    looked: Instant,
    /// The number of measurements that were spared since the last one.
    spared: u32,
    /// True while the rate is limited after a restart.
    limited: bool,
    /// The bandwidth that the control knows, in bytes per second.
    bandwidth: u64,
    /// The start of the cycle of `PROBE_BW` that will show whether there is more bandwidth.
    tries: Instant,
    /// The numbers of segments sent and retransmitted before `since`.
    sent: u32,
    sent_again: u32,
}

/// The next action on the control.
#[derive(Debug, PartialEq)]
enum Step {
    Wait,
    /// Restarts it with a limit in bytes per second.
    Restart(u64),
    Lift,
}

impl ProbeRtt {
    /// Starts with the first write to a path.
    pub(super) fn of(path: &dyn Facts) -> Self {
        let possible = path.is_over_bbr() && path.kernel_bbr().is_some();
        Self::starting_at(possible, Instant::now())
    }

    const fn starting_at(possible: bool, now: Instant) -> Self {
        Self {
            possible,
            since: now,
            looked: now,
            spared: 0,
            limited: false,
            bandwidth: 0,
            tries: now,
            sent: 0,
            sent_again: 0,
        }
    }

    /// Notes that the path has accepted bytes, and restarts the control when that is due.
    pub(super) fn wrote(&mut self, path: &dyn Facts) {
        if !self.possible {
            return;
        }
        self.wrote_at(path, Instant::now());
    }

    fn wrote_at(&mut self, path: &dyn Facts, now: Instant) {
        if !self.looks(now) {
            return;
        }
        let Some(control) = path.kernel_bbr() else {
            self.possible = false;
            return;
        };
        let Some(state) = control.state() else {
            // Another process can have changed the control. The limit would then last.
            if std::mem::take(&mut self.limited) {
                control.lift();
            }
            self.possible = false;
            return;
        };
        match self.step(&state, now) {
            Step::Wait => {}
            Step::Restart(rate) => self.possible = control.restart(rate),
            Step::Lift => control.lift(),
        }
    }

    /// Returns true if the control is to be looked at after a write.
    fn looks(&mut self, now: Instant) -> bool {
        let pause = now.saturating_duration_since(self.looked);
        if pause < LOOK {
            return false;
        }
        if pause > PAUSE {
            self.tries = now;
        }
        self.looked = now;
        true
    }

    /// Decides by the state of the control.
    fn step(&mut self, state: &BbrState, now: Instant) -> Step {
        let measures = state.phase == BbrPhase::ProbingRoundTrip;
        if measures || self.age(now) >= UNTIL {
            self.spared = 0;
            self.renewed(state, now);
        }
        self.notes_growth(state, now);
        if self.limited {
            // STARTUP needs the limit. This phase lasts while the application has few data, and
            // goes on after a PROBE_RTT that interrupts it.
            self.limited = state.phase != BbrPhase::Steady;
            return if self.limited { Step::Wait } else { Step::Lift };
        }
        if self.spared == SPARED || self.age(now) < FROM || !self.is_needless(state, now) {
            return Step::Wait;
        }
        self.spared += 1;
        self.limited = true;
        self.bandwidth = 0;
        self.renewed(state, now);
        Step::Restart(state.bandwidth)
    }

    /// Notes the bandwidth, and the start of the cycle of `PROBE_BW` that will show whether there
    /// is more.
    fn notes_growth(&mut self, state: &BbrState, now: Instant) {
        let starts = state.phase == BbrPhase::Starting;
        // A single try raises the rate by a quarter. Less is noise.
        let grows = state.bandwidth / 11 > self.bandwidth / 10;
        // STARTUP without a limit finds the bandwidth by itself.
        if (starts && self.limited) || (!starts && grows) {
            self.tries = now;
        }
        self.bandwidth = match starts || grows {
            true => state.bandwidth,
            false => self.bandwidth.min(state.bandwidth),
        };
    }

    /// Notes that the control has a new shortest round trip.
    const fn renewed(&mut self, state: &BbrState, now: Instant) {
        self.since = now;
        (self.sent, self.sent_again) = (state.sent, state.sent_again);
    }

    /// Returns true if a measurement would cost much and find nothing.
    fn is_needless(&self, state: &BbrState, now: Instant) -> bool {
        // At a restart, a control forgets that it has met a policer. Frequent losses are a sign of
        // a policer.
        let again = u64::from(state.sent_again.wrapping_sub(self.sent_again));
        let few_losses = again * 50 <= u64::from(state.sent.wrapping_sub(self.sent));
        state.phase == BbrPhase::Steady
            && state.intact
            && !state.starved
            && !state.limited
            && few_losses
            && state.bandwidth > 0
            && ROUND_TRIPS.contains(&state.least_round_trip)
            && state.round_trip * 4 <= state.least_round_trip * 5
            && now.saturating_duration_since(self.tries) >= state.least_round_trip * CYCLE
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::path::KernelBbr;

    /// The state of a busy connection without a queue.
    fn steady() -> BbrState {
        BbrState {
            phase: BbrPhase::Steady,
            bandwidth: 120_000,
            round_trip: Duration::from_millis(540),
            least_round_trip: Duration::from_millis(490),
            starved: false,
            intact: true,
            limited: false,
            sent: 1000,
            sent_again: 20,
        }
    }

    /// Writes each 10 ms for some seconds, and returns the steps with their times in milliseconds.
    fn steps_within(
        probe: &mut ProbeRtt,
        begin: Instant,
        seconds: std::ops::Range<u64>,
        state: impl Fn(&ProbeRtt, u64) -> BbrState,
    ) -> Vec<(u64, Step)> {
        let times = (seconds.start * 100..seconds.end * 100).map(|time| time * 10);
        let step = |at: u64| {
            let now = begin + Duration::from_millis(at);
            let looks = probe.looks(now);
            let state = looks.then(|| state(probe, at))?;
            Some((at, probe.step(&state, now))).filter(|(_, step)| *step != Step::Wait)
        };
        times.filter_map(step).collect()
    }

    /// Returns the states of a control that starts after each restart, at most until a time.
    fn starting_until(end: u64) -> impl Fn(&ProbeRtt, u64) -> BbrState {
        move |probe, at| BbrState {
            phase: match probe.limited && at < end {
                true => BbrPhase::Starting,
                false => BbrPhase::Steady,
            },
            ..steady()
        }
    }

    /// Returns the steps of twelve seconds in one state.
    fn steps_in(state: BbrState) -> Vec<(u64, Step)> {
        let now = Instant::now();
        let mut probe = ProbeRtt::starting_at(true, now);
        steps_within(&mut probe, now, 0..12, |_, _| state)
    }

    #[test]
    fn control_restarts_before_it_measures_an_empty_path() {
        let steps = steps_in(steady());
        let expected = [(7000, Step::Restart(120_000)), (7200, Step::Lift)];
        assert_eq!(steps, expected);
    }

    #[test]
    fn measurement_takes_place_where_it_finds_something() {
        let unlike = |change: fn(&mut BbrState)| {
            let mut state = steady();
            change(&mut state);
            steps_in(state)
        };
        let queue = unlike(|state| state.round_trip = Duration::from_millis(620));
        assert_eq!(queue, [], "a queue or a longer path");
        let short = unlike(|state| {
            state.round_trip = Duration::from_millis(79);
            state.least_round_trip = Duration::from_millis(79);
        });
        assert_eq!(short, [], "a short path");
        let long = unlike(|state| {
            state.round_trip = Duration::from_millis(810);
            state.least_round_trip = Duration::from_millis(810);
        });
        assert_eq!(long, [], "a long path");
        let lossy = unlike(|state| state.sent_again = 21);
        assert_eq!(lossy, [], "more than 2 % of loss");
        assert_eq!(unlike(|state| state.intact = false), [], "a loss");
        assert_eq!(unlike(|state| state.starved = true), [], "few data");
        assert_eq!(unlike(|state| state.bandwidth = 0), [], "no rate");
        let limited = unlike(|state| state.limited = true);
        assert_eq!(limited, [], "another program's limit");
        let starting = unlike(|state| state.phase = BbrPhase::Starting);
        assert_eq!(starting, []);
    }

    #[test]
    fn losses_count_since_the_last_measurement() {
        let now = Instant::now();
        let mut probe = ProbeRtt::starting_at(true, now);
        let state = BbrState {
            sent_again: 500,
            ..steady()
        };
        let steps = steps_within(&mut probe, now, 0..19, |_, _| state);
        let expected = [(18_000, Step::Restart(120_000)), (18_200, Step::Lift)];
        assert_eq!(steps, expected, "the losses of the first seconds are past");
    }

    #[test]
    fn rate_is_limited_until_the_control_has_started() {
        let now = Instant::now();
        let mut probe = ProbeRtt::starting_at(true, now);
        let steps = steps_within(&mut probe, now, 0..12, starting_until(9500));
        let expected = [(7000, Step::Restart(120_000)), (9600, Step::Lift)];
        assert_eq!(steps, expected);
    }

    #[test]
    fn limit_outlasts_a_measurement_within_the_start() {
        let now = Instant::now();
        let mut probe = ProbeRtt::starting_at(true, now);
        let steps = steps_within(&mut probe, now, 0..22, |probe, at| BbrState {
            phase: match at {
                17_000..18_000 => BbrPhase::ProbingRoundTrip,
                18_000..20_000 => BbrPhase::Starting,
                _ if probe.limited && at < 17_000 => BbrPhase::Starting,
                _ => BbrPhase::Steady,
            },
            ..steady()
        });
        let expected = [(7000, Step::Restart(120_000)), (20_000, Step::Lift)];
        assert_eq!(steps, expected);
    }

    /// A socket whose BBR an operator can replace.
    struct Socket {
        state: Cell<Option<BbrState>>,
        limit: Cell<Option<u64>>,
    }

    impl Facts for Socket {
        fn below(&self) -> Option<&dyn Facts> {
            None
        }

        fn kernel_bbr(&self) -> Option<&dyn KernelBbr> {
            Some(self)
        }
    }

    impl KernelBbr for Socket {
        fn state(&self) -> Option<BbrState> {
            self.state.get()
        }

        fn restart(&self, rate: u64) -> bool {
            self.limit.set(Some(rate));
            true
        }

        fn lift(&self) {
            self.limit.set(None);
        }
    }

    #[test]
    fn limit_ends_with_the_control_of_the_kernel() {
        let begin = Instant::now();
        let mut probe = ProbeRtt::starting_at(true, begin);
        let socket = Socket {
            state: Cell::new(Some(steady())),
            limit: Cell::default(),
        };
        let mut write = |at| probe.wrote_at(&socket, begin + Duration::from_millis(at));
        (0..=7000).step_by(500).for_each(&mut write);
        assert_eq!(socket.limit.get(), Some(120_000));
        socket.state.set(None);
        write(7500);
        assert_eq!(socket.limit.get(), None);
        assert!(!probe.possible);
    }

    #[test]
    fn one_measurement_of_six_takes_place() {
        let now = Instant::now();
        let mut probe = ProbeRtt::starting_at(true, now);
        let steps = steps_within(&mut probe, now, 0..60, |_, _| steady());
        let restarts = steps.iter().filter(|(_, step)| *step != Step::Lift);
        let times: Vec<u64> = restarts.map(|(at, _)| *at).collect();
        assert_eq!(times, [7000, 14_000, 21_000, 28_000, 35_000, 53_000]);
    }

    #[test]
    fn measurement_that_is_seen_begins_the_count() {
        let now = Instant::now();
        let mut probe = ProbeRtt::starting_at(true, now);
        let steps = steps_within(&mut probe, now, 0..18, |_, at| BbrState {
            phase: match at < 2500 {
                true => BbrPhase::ProbingRoundTrip,
                false => BbrPhase::Steady,
            },
            ..steady()
        });
        assert_eq!(steps[0], (9400, Step::Restart(120_000)));
    }

    #[test]
    fn growth_puts_the_restart_off() {
        let restart = |state: fn(u64) -> BbrState| {
            let now = Instant::now();
            let mut probe = ProbeRtt::starting_at(true, now);
            let mut steps = steps_within(&mut probe, now, 0..11, |_, at| state(at)).into_iter();
            steps.next()
        };
        let late = restart(|at| BbrState {
            phase: match at < 6500 {
                true => BbrPhase::Starting,
                false => BbrPhase::Steady,
            },
            bandwidth: if at < 6500 { at * 10 } else { 70_000 },
            ..steady()
        });
        assert_eq!(late, Some((7000, Step::Restart(70_000))), "it tried");
        let grown = restart(|at| BbrState {
            bandwidth: if at < 6000 { 120_000 } else { 150_000 },
            ..steady()
        });
        assert_eq!(grown, Some((10_000, Step::Restart(150_000))));
        let regrown = restart(|at| BbrState {
            bandwidth: if (3000..6000).contains(&at) {
                90_000
            } else {
                120_000
            },
            ..steady()
        });
        assert_eq!(regrown, Some((10_000, Step::Restart(120_000))));
        let noisy = restart(|at| BbrState {
            bandwidth: if at < 6000 { 120_000 } else { 130_000 },
            ..steady()
        });
        assert_eq!(noisy, Some((7000, Step::Restart(130_000))));
        let growing = restart(|at| BbrState {
            bandwidth: 100_000 + at * 10,
            ..steady()
        });
        assert_eq!(growing, None);
    }

    #[test]
    fn control_tries_a_higher_rate_between_two_restarts() {
        let now = Instant::now();
        let mut probe = ProbeRtt::starting_at(true, now);
        let steps = steps_within(&mut probe, now, 0..16, starting_until(12_000));
        // The last look at the start is at 11.8 s, and a cycle takes 3.92 s.
        let [first, second] = [7000, 15_800].map(|at| (at, Step::Restart(120_000)));
        assert_eq!(steps, [first, (12_000, Step::Lift), second]);
    }

    #[test]
    fn pause_puts_the_restart_off() {
        let now = Instant::now();
        let mut probe = ProbeRtt::starting_at(true, now);
        let quiet = steps_within(&mut probe, now, 0..3, |_, _| steady());
        assert_eq!(quiet, []);
        let steps = steps_within(&mut probe, now, 6..11, |_, _| steady());
        assert_eq!(steps[0], (10_000, Step::Restart(120_000)));
        let steps = steps_within(&mut probe, now, 60..68, |_, _| steady());
        assert_eq!(steps[0].0, 67_000, "an idle path is measured by itself");
    }
}
