//! BBR: congestion control by a model of the path, its bandwidth and its round trip
//! (draft-ietf-ccwg-bbr; the states and gains of its section 5).
//!
//! The rate follows the largest delivery rate of the last ten round trips, and the window is twice
//! the product of rate and shortest round trip. Random loss changes neither. Loss of more than
//! [`LOSS_THRESHOLD`] of a round is congestion, and so is each mark of a router (ECN, RFC 9002
//! section 7.1). It ends start-up and lowers the bound of the data in flight, which later rounds
//! raise again.
//!
//! The estimate of a path that becomes slower falls only after ten rounds. A queue together with a
//! low rate of delivery shows this earlier, and the window is smaller then ([`FALLEN_GAIN`]).

use std::collections::VecDeque;
use std::time::Duration;

use tandem_resume::Reduced;

use super::AckSample;

/// The gain of start-up: the least that doubles the rate each round (section 5.3.1).
const STARTUP_GAIN: f64 = 2.77;
/// The gain that drains the queue of start-up (section 5.3.2).
const DRAIN_GAIN: f64 = 0.35;
/// The factor of the window over the bandwidth-delay product.
const WINDOW_GAIN: f64 = 2.0;
/// The same factor while a queue shows that the rate of the path has fallen. The bandwidth is still
/// that of the rounds before, and all data beyond the path's product only wait or are lost.
const FALLEN_GAIN: f64 = 1.25;
/// The share of the bandwidth below which all rates of a round show that it has fallen.
const FALLEN_SHARE: f64 = 0.75;
/// The factor of the window over the bandwidth-delay product in start-up, without a pacing rate.
const UNPACED_STARTUP: f64 = 2.0;
/// The same factor after start-up. Its excess over one covers delayed acknowledgements, and lost
/// data, which stays in flight for longer than a round trip.
const UNPACED_CRUISE: f64 = 1.1;
/// The pacing gains of one cycle of bandwidth probing, one each round trip.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// The share of a probe's excess by which the bandwidth grows at least if the probe has found some.
/// A delivery rate covers a round trip, and so part of the time before the probe.
const FOUND_SHARE: f64 = 0.6;
/// The phase after start-up: a round trip later, bandwidth is probed. The rate of a mobile link may
/// have grown since the rounds that ended start-up.
const FIRST_PHASE: usize = 7;
/// The phase at whose end all of the probe's acknowledgements have arrived.
const JUDGED_PHASE: usize = 2;
/// A margin below the estimated rate, which keeps the queue short (section 2.5).
const MARGIN: f64 = 0.99;
/// The rounds over which the bandwidth is a maximum.
const BANDWIDTH_ROUNDS: u64 = 10;
/// The growth of the bandwidth in a round that keeps start-up going.
const STARTUP_GROWTH: f64 = 1.25;
/// The rounds without such growth after which the pipe is full.
const FULL_ROUNDS: u32 = 3;
/// The growth of the round trip that shows a queue in start-up: an eighth of the shortest one, and
/// more than an acknowledgement is delayed. With a queue, the window keeps to [`WINDOW_GAIN`], so
/// that start-up ends before it overruns a buffer of one bandwidth-delay product.
const QUEUE_SHARE: u32 = 8;
const QUEUE_LEAST: Duration = Duration::from_millis(30);
/// The age of the shortest round trip after which it is measured again.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// The time that measuring it takes.
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// The share of a round's bytes whose loss is congestion. Random loss of up to 2 % stays below it
/// also in small rounds.
const LOSS_THRESHOLD: f64 = 0.08;
/// The segments of a round that must be lost at least: fewer are too few to judge.
const LOSS_SEGMENTS: u64 = 6;
/// The factor by which such a loss lowers the bound of bytes in flight.
const LOSS_FACTOR: f64 = 0.7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    /// Bandwidth is probed; the index into [`CYCLE`] and the start of this phase.
    Cruise {
        phase: usize,
        since: Duration,
    },
    /// The round trip is measured with little in flight, until this time.
    ProbeRtt {
        until: Option<Duration>,
    },
}

/// A BBR controller. Sizes are bytes.
#[derive(Clone, Debug)]
pub struct Bbr {
    segment: u64,
    initial_window: u64,
    state: State,
    window: u64,
    rounds: u64,
    /// Candidates for the largest bandwidth: round and bytes per second, falling.
    bandwidths: VecDeque<(u64, u64)>,
    min_rtt: Option<(Duration, Duration)>,
    full_bandwidth: u64,
    full_rounds: u32,
    is_full: bool,
    /// Bytes that were delivered and lost in this round.
    delivered: u64,
    lost: u64,
    /// The largest delivery rate of this round, and whether the sender limited one of its rates.
    latest: u64,
    is_limited: bool,
    /// True if the round before delivered much less than the bandwidth.
    has_fallen: bool,
    /// The window since such a round, while it is below the usual one. A sender that paces by its
    /// window does not use it, since its window is small enough.
    fallen: Option<u64>,
    /// True if a router has marked a packet in this round.
    is_marked: bool,
    /// The most bytes in flight that the path took without much loss.
    bound: Option<u64>,
    /// The largest window of the start-up after a retreat.
    ceiling: Option<u64>,
    before: Option<Option<u64>>,
    restored_window: u64,
    /// The bandwidth before the latest probe.
    probed: Option<u64>,
}

impl Bbr {
    /// Creates a controller in start-up.
    pub(crate) const fn new(initial_window: u64, segment: u64) -> Self {
        Self {
            segment,
            initial_window,
            state: State::Startup,
            window: initial_window,
            rounds: 0,
            bandwidths: VecDeque::new(),
            min_rtt: None,
            full_bandwidth: 0,
            full_rounds: 0,
            is_full: false,
            delivered: 0,
            lost: 0,
            latest: 0,
            is_limited: false,
            has_fallen: false,
            fallen: None,
            is_marked: false,
            bound: None,
            ceiling: None,
            before: None,
            restored_window: 0,
            probed: None,
        }
    }

    /// Returns the bytes that may be in flight, for a sender that paces as [`Self::pacing_rate`]
    /// says.
    pub(crate) fn window(&self) -> u64 {
        let window = self.bounded_window();
        window.min(self.fallen.unwrap_or(u64::MAX).max(self.minimum()))
    }

    /// Returns the bytes that may be in flight, whether the rate has fallen or not.
    fn bounded_window(&self) -> u64 {
        let bounded = self
            .bound
            .map_or(self.window, |bound| self.window.min(bound));
        let probing = matches!(self.state, State::ProbeRtt { .. });
        let most = if probing {
            (self.product(0.5)).max(self.minimum())
        } else {
            u64::MAX
        };
        bounded.min(most).max(self.minimum())
    }

    /// Returns the bytes that may be in flight, for a sender that paces at a multiple of its window
    /// over the round trip. Here the window alone makes the states: it holds the gain of each.
    pub(crate) fn unpaced_window(&self) -> u64 {
        let gain = match self.state {
            State::Startup => UNPACED_STARTUP,
            State::Drain => 1.0,
            State::Cruise { phase, .. } => CYCLE[phase].max(1.0) * UNPACED_CRUISE,
            State::ProbeRtt { .. } => return self.bounded_window(),
        };
        if self.bandwidth() == 0 {
            return self.bounded_window();
        }
        let least = if self.is_full {
            0
        } else {
            self.least_of_startup()
        };
        let target = self.product(gain) + 3 * self.segment;
        let window = self.bounded_window();
        window.min(target.max(least)).max(self.minimum())
    }

    /// Begins with this initial window.
    pub(crate) fn begin(&mut self, initial_window: u64) {
        self.initial_window = initial_window;
        self.raise(initial_window);
    }

    /// Raises the window to at least this size.
    pub(crate) fn raise(&mut self, window: u64) {
        self.window = self.window.max(window);
    }

    /// Drains the path, and then starts up again from a smaller window (RFC 9959, appendix on BBR).
    /// The bandwidth is not known any more: the flow gives no rates that it measured before.
    pub(crate) fn reduce(&mut self, to: Reduced) {
        let rate = |(_, rtt): (_, Duration)| to.window as f64 / rtt.as_secs_f64().max(1e-4);
        let rate = self.min_rtt.map(|least| (self.rounds, rate(least) as u64));
        *self = Self {
            state: State::Drain,
            rounds: self.rounds,
            bandwidths: rate.into_iter().collect(),
            min_rtt: self.min_rtt,
            window: to.window,
            ceiling: Some(to.threshold),
            ..Self::new(self.initial_window, self.segment)
        };
    }

    /// Returns the rate at which segments leave, in bytes per second; `None` before the first
    /// measurement.
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        let gain = match self.state {
            State::Startup => STARTUP_GAIN,
            State::Drain => DRAIN_GAIN,
            State::Cruise { phase, .. } => CYCLE[phase],
            State::ProbeRtt { .. } => 1.0,
        };
        let bandwidth = self.bandwidth();
        if bandwidth == 0 {
            return None;
        }
        Some((gain * MARGIN * bandwidth.max(self.least_bandwidth()) as f64) as u64)
    }

    /// Sets the size of segments.
    pub(crate) const fn set_segment(&mut self, segment: u64) {
        self.segment = segment;
    }

    /// Returns the bandwidth by which start-up paces at least: the initial window in each round
    /// trip (section 5.6.2). The first acknowledgements show less, since few have arrived.
    fn least_bandwidth(&self) -> u64 {
        match (self.state, self.min_rtt) {
            (State::Startup, Some((_, rtt))) => {
                (self.initial_window as f64 / rtt.as_secs_f64().max(1e-4)) as u64
            }
            _ => 0,
        }
    }

    fn minimum(&self) -> u64 {
        4 * self.segment
    }

    fn bandwidth(&self) -> u64 {
        self.bandwidths.front().map_or(0, |(_, rate)| *rate)
    }

    /// Returns the bandwidth-delay product times `gain`.
    fn product(&self, gain: f64) -> u64 {
        let Some((_, rtt)) = self.min_rtt else {
            return self.initial_window;
        };
        (gain * self.bandwidth() as f64 * rtt.as_secs_f64()) as u64
    }

    /// Notes lost bytes.
    pub(crate) const fn on_lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// Notes the beginning of an episode of losses.
    pub(crate) const fn on_congestion(&mut self) {
        self.before = Some(self.bound);
    }

    /// Notes that a router has marked a packet instead of dropping it.
    pub(crate) const fn on_mark(&mut self) {
        self.is_marked = true;
    }

    /// Notes that no segment was acknowledged for a whole retransmission timeout.
    pub(crate) fn on_timeout(&mut self) {
        self.before = Some(self.bound);
        self.restored_window = self.window;
        self.window = self.minimum();
    }

    /// Restores the state before the episode, because its losses were spurious.
    pub(crate) fn undo(&mut self) {
        if let Some(bound) = self.before.take() {
            self.bound = bound;
            self.window = self.window.max(self.restored_window);
        }
    }

    /// Takes the acknowledgements that arrived together.
    pub(crate) fn on_ack(&mut self, sample: &AckSample) {
        self.delivered += sample.acked;
        if sample.round_start {
            self.rounds += 1;
            self.judge_rate();
            self.judge_losses(sample.in_flight);
        }
        self.measure(sample);
        if sample.round_start {
            self.judge_bandwidth(sample);
        }
        self.advance(sample);
        self.grow(sample);
    }

    fn measure(&mut self, sample: &AckSample) {
        if let Some(rate) = sample.rate {
            self.latest = self.latest.max(rate.bytes_per_second);
            self.is_limited |= rate.app_limited;
        }
        // A probe of the round trip lowers the rate by itself.
        self.is_limited |= matches!(self.state, State::ProbeRtt { .. });
        if let Some(rate) = sample.rate
            && (!rate.app_limited || rate.bytes_per_second > self.bandwidth())
        {
            let rate = rate.bytes_per_second;
            while self.bandwidths.back().is_some_and(|(_, b)| *b <= rate) {
                self.bandwidths.pop_back();
            }
            // A lower one of the same round would never be the maximum.
            if self
                .bandwidths
                .back()
                .is_none_or(|(round, _)| *round < self.rounds)
            {
                self.bandwidths.push_back((self.rounds, rate));
            }
        }
        while self.bandwidths.len() > 1 && self.bandwidths[0].0 + BANDWIDTH_ROUNDS < self.rounds {
            self.bandwidths.pop_front();
        }
        if let Some(rtt) = sample.rtt
            && self.min_rtt.is_none_or(|(_, min)| rtt <= min)
        {
            self.min_rtt = Some((sample.now, rtt));
        }
    }

    /// Judges by the rates of the round that has ended whether the path has become slower.
    fn judge_rate(&mut self) {
        let latest = std::mem::take(&mut self.latest);
        let is_limited = std::mem::take(&mut self.is_limited);
        let least = FALLEN_SHARE * self.bandwidth() as f64;
        let is_known = self.is_full && !is_limited && latest > 0;
        self.has_fallen = is_known && (latest as f64) < least;
    }

    /// Judges the losses and the marks of the round that has ended.
    fn judge_losses(&mut self, in_flight: u64) {
        let (delivered, lost) = (
            std::mem::take(&mut self.delivered),
            std::mem::take(&mut self.lost),
        );
        let total = delivered + lost;
        let is_marked = std::mem::take(&mut self.is_marked);
        let is_lossy = lost >= LOSS_SEGMENTS * self.segment;
        if is_marked || (is_lossy && lost as f64 > LOSS_THRESHOLD * total as f64) {
            self.is_full = true;
            // A mark shows the queue that the bytes in flight have now.
            let most = in_flight + if is_marked { 0 } else { total };
            let reference = self.bound.unwrap_or(u64::MAX).min(most);
            let floor = self.product(1.0).max(self.minimum());
            self.bound = Some(((reference as f64 * LOSS_FACTOR) as u64).max(floor));
        } else if let Some(bound) = self.bound {
            // A quarter of a window each round finds the true bound again within a few.
            let raised = bound + (bound / 4).max(self.segment);
            self.bound = (raised < self.product(WINDOW_GAIN)).then_some(raised);
        }
    }

    /// Decides at the end of a round whether start-up has found the bandwidth (section 5.3.1.2).
    fn judge_bandwidth(&mut self, sample: &AckSample) {
        let is_draining = self.state == State::Drain;
        if self.is_full || is_draining || sample.rate.is_some_and(|rate| rate.app_limited) {
            return;
        }
        let bandwidth = self.bandwidth();
        if bandwidth as f64 >= self.full_bandwidth as f64 * STARTUP_GROWTH {
            self.full_bandwidth = bandwidth;
            self.full_rounds = 0;
        } else {
            self.full_rounds += 1;
            self.is_full = self.full_rounds >= FULL_ROUNDS;
        }
    }

    fn advance(&mut self, sample: &AckSample) {
        let now = sample.now;
        match self.state {
            State::Startup if self.is_full => self.state = State::Drain,
            State::Drain if sample.in_flight <= self.product(1.0) => {
                if self.is_full {
                    self.cruise(now, FIRST_PHASE);
                } else {
                    self.state = State::Startup;
                }
            }
            State::Cruise { phase, since } => {
                let rtt = self.min_rtt.map_or(sample.smoothed_rtt, |(_, rtt)| rtt);
                let over = now.saturating_sub(since) >= rtt;
                let drained = CYCLE[phase] < 1.0 && sample.in_flight <= self.product(1.0);
                if over || drained {
                    self.end_phase(phase, sample);
                }
            }
            State::Startup | State::Drain | State::ProbeRtt { .. } => {}
        }
        self.probe_rtt(sample);
    }

    /// Begins the next phase of the cycle. A probe that has found bandwidth without a queue is
    /// repeated at once, since the rate of a mobile link may grow several times in a second. The
    /// draft goes on with its probe then (section 5.3.3). Larger gains for the repeated probes were
    /// tried: they carried 1 % more over a trace of LTE, with a queue of 87 in place of 62 ms.
    fn end_phase(&mut self, phase: usize, sample: &AckSample) {
        let mut next = (phase + 1) % CYCLE.len();
        if phase == JUDGED_PHASE
            && let Some(before) = self.probed.take()
        {
            let least = before as f64 * (1.0 + FOUND_SHARE * (CYCLE[0] - 1.0));
            if self.bandwidth() as f64 >= least && !has_queue(sample) {
                next = 0;
            }
        }
        if next == 0 {
            self.probed = Some(self.bandwidth());
        }
        self.cruise(sample.now, next);
    }

    fn cruise(&mut self, since: Duration, phase: usize) {
        self.state = State::Cruise { phase, since };
    }

    /// Measures the shortest round trip again when it is old (section 5.3.4).
    fn probe_rtt(&mut self, sample: &AckSample) {
        let now = sample.now;
        if let State::ProbeRtt { until } = self.state {
            let low = sample.in_flight <= self.window();
            let until = until.or_else(|| low.then(|| now + PROBE_RTT_TIME));
            self.state = State::ProbeRtt { until };
            if until.is_some_and(|until| now >= until) {
                self.min_rtt = Some((now, self.min_rtt.map_or(sample.min_rtt, |(_, rtt)| rtt)));
                self.probed = None;
                if self.is_full {
                    self.cruise(now, 2);
                } else {
                    self.state = State::Startup;
                }
            }
        } else if let Some((at, _)) = self.min_rtt
            && now.saturating_sub(at) > PROBE_RTT_INTERVAL
        {
            self.min_rtt = sample.rtt.map(|rtt| (now, rtt)).or(self.min_rtt);
            // An idle path has measured itself: nothing of ours was queued (section 5.3.4.3).
            if sample.in_flight > self.minimum() && !sample.after_idle {
                self.state = State::ProbeRtt { until: None };
            }
        }
    }

    /// Returns the window in bytes that start-up may reach whatever the measured bandwidth is. The
    /// first acknowledgements of an initial window raise the window even if the application sends
    /// little (draft-ietf-ccwg-bbr, the condition on `C.delivered` in BBRSetCwnd).
    const fn least_of_startup(&self) -> u64 {
        2 * self.initial_window
    }

    fn grow(&mut self, sample: &AckSample) {
        let has_queue = has_queue(sample);
        let before = self.window;
        let target = self.product(if self.is_full || has_queue {
            WINDOW_GAIN
        } else {
            STARTUP_GAIN
        });
        // Acknowledgements arrive in bursts: room for two segments of each more.
        let target = target + 2 * self.segment;
        self.window += sample.acked;
        if self.is_full {
            self.window = self.window.min(target);
        } else if self.bandwidth() > 0 && sample.window_limited && !has_queue {
            self.window = self.window.max(self.initial_window);
        } else {
            let least = if has_queue {
                self.initial_window
            } else {
                self.least_of_startup()
            };
            self.window = self.window.min(target.max(least));
        }
        if let Some(ceiling) = self.ceiling
            && !self.is_full
        {
            self.window = self.window.min(ceiling);
        }
        self.window = self.window.max(self.minimum());
        self.follow_fall(sample, has_queue, before);
    }

    /// Sets the window after a fall of the rate. Once the queue is gone, or the estimate has
    /// followed, it grows to the usual window again.
    fn follow_fall(&mut self, sample: &AckSample, has_queue: bool, before: u64) {
        let is_low = self.is_full && self.has_fallen && has_queue;
        if !is_low && self.fallen.is_none() {
            return;
        }
        let grown = self.fallen.unwrap_or(before) + sample.acked;
        let most = match is_low {
            true => self.product(FALLEN_GAIN) + 2 * self.segment,
            false => u64::MAX,
        };
        self.fallen = Some(grown.min(most)).filter(|window| *window < self.window);
    }
}

/// Returns true if the newest round trip shows a queue.
fn has_queue(sample: &AckSample) -> bool {
    let least = sample.min_rtt + (sample.min_rtt / QUEUE_SHARE).max(QUEUE_LEAST);
    sample.rtt.is_some_and(|rtt| rtt > least)
}

#[cfg(test)]
mod tests;
