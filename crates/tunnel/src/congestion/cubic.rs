//! CUBIC (RFC 9438) in bytes, with the slow start of HyStart++ (RFC 9406).

use std::time::Duration;

use tandem_resume::Reduced;

use super::AckSample;

/// The factor of multiplicative decrease (RFC 9438, section 4.6).
const BETA: f64 = 0.7;
/// The constant of cubic growth in segments per second cubed (section 5).
const C: f64 = 0.4;
/// The additive increase that matches Reno's average rate (section 4.3).
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// The number of round-trip samples with which HyStart++ judges a round (RFC 9406, section 4.3).
const ROUND_SAMPLES: u32 = 8;
/// The rounds of conservative slow start (section 4.3).
const CONSERVATIVE_ROUNDS: u32 = 5;
/// The factor by which conservative slow start grows more slowly.
const CONSERVATIVE_DIVISOR: u64 = 4;
const MIN_THRESHOLD: Duration = Duration::from_millis(4);
const MAX_THRESHOLD: Duration = Duration::from_millis(16);

/// A CUBIC controller. Sizes are bytes.
#[derive(Clone, Debug)]
pub struct Cubic {
    segment: u64,
    state: State,
    slow_start: SlowStart,
    /// The state before the last episode of losses, which [`Self::undo`] restores.
    before: Option<State>,
}

/// The part that an undo restores.
#[derive(Clone, Copy, Debug)]
struct State {
    window: f64,
    threshold: f64,
    /// The window at the last loss.
    max_window: f64,
    /// The start of the present stage of growth, and the window then.
    epoch: Option<(Duration, f64)>,
    /// The window that Reno would have.
    reno: f64,
}

/// The rounds of HyStart++.
#[derive(Clone, Copy, Debug, Default)]
struct SlowStart {
    last_min: Option<Duration>,
    current_min: Option<Duration>,
    samples: u32,
    /// The baseline and the rounds left of conservative slow start.
    conservative: Option<(Duration, u32)>,
}

impl Cubic {
    pub(crate) fn new(initial_window: u64, segment: u64) -> Self {
        Self {
            segment,
            state: State {
                window: initial_window as f64,
                threshold: f64::INFINITY,
                max_window: 0.0,
                epoch: None,
                reno: 0.0,
            },
            slow_start: SlowStart::default(),
            before: None,
        }
    }

    /// Creates a controller that was reduced to `window`, and leaves slow start at `threshold`.
    pub(crate) fn reduced(to: Reduced, segment: u64) -> Self {
        let mut cubic = Self::new(to.window, segment);
        cubic.state.threshold = to.threshold as f64;
        cubic.state.max_window = to.threshold as f64 / BETA;
        cubic
    }

    pub(crate) fn window(&self) -> u64 {
        self.state.window as u64
    }

    /// Returns the window at which slow start ends, if that is known.
    pub(crate) fn threshold(&self) -> Option<u64> {
        let threshold = self.state.threshold;
        threshold.is_finite().then_some(threshold as u64)
    }

    /// Returns the pacing rate: twice the window for each round trip in slow start, so that pacing
    /// does not hold it back, and 1.2 times the window afterwards.
    pub(crate) fn pacing_rate(&self, smoothed_rtt: Duration) -> Option<u64> {
        let factor = if self.in_slow_start() { 2.0 } else { 1.2 };
        Some((factor * self.state.window / smoothed_rtt.as_secs_f64().max(1e-4)) as u64)
    }

    pub(crate) fn set_segment(&mut self, segment: u64) {
        self.segment = segment;
    }

    fn in_slow_start(&self) -> bool {
        self.state.window < self.state.threshold
    }

    pub(crate) fn on_ack(&mut self, sample: &AckSample) {
        if self.in_slow_start() {
            self.grow_in_slow_start(sample);
        } else if sample.round_limited {
            self.grow_in_avoidance(sample);
        }
    }

    fn grow_in_slow_start(&mut self, sample: &AckSample) {
        if sample.round_start {
            self.begin_round();
        }
        // A single segment may have waited for the delayed acknowledgement. Paced segments all wait
        // while they are far apart, and the round trip only seems to have grown.
        if let Some(rtt) = sample.rtt
            && sample.acked > self.segment
        {
            self.judge_round(rtt);
        }
        if sample.round_limited {
            let divisor = match self.slow_start.conservative {
                Some(_) => CONSERVATIVE_DIVISOR,
                None => 1,
            };
            self.state.window += (sample.acked / divisor) as f64;
        }
    }

    fn begin_round(&mut self) {
        let slow = &mut self.slow_start;
        slow.last_min = slow.current_min.take();
        slow.samples = 0;
        if let Some((_, rounds)) = &mut slow.conservative {
            *rounds -= 1;
            if *rounds == 0 {
                slow.conservative = None;
                self.state.threshold = self.state.window;
            }
        }
    }

    /// Ends slow start once the round trip has grown, unless it falls again (RFC 9406, section
    /// 4.2).
    fn judge_round(&mut self, rtt: Duration) {
        let slow = &mut self.slow_start;
        slow.samples += 1;
        let current = slow.current_min.map_or(rtt, |min| min.min(rtt));
        slow.current_min = Some(current);
        if slow.samples < ROUND_SAMPLES {
            return;
        }
        match (slow.conservative, slow.last_min) {
            (Some((baseline, _)), _) if current < baseline => slow.conservative = None,
            (None, Some(last)) => {
                let threshold = (last / 8).clamp(MIN_THRESHOLD, MAX_THRESHOLD);
                if current >= last + threshold {
                    slow.conservative = Some((current, CONSERVATIVE_ROUNDS));
                }
            }
            _ => {}
        }
    }

    /// Grows the window in congestion avoidance (RFC 9438, sections 4.2 to 4.5).
    fn grow_in_avoidance(&mut self, sample: &AckSample) {
        let segment = self.segment as f64;
        let state = &mut self.state;
        let (epoch, start) = *state.epoch.get_or_insert_with(|| {
            state.reno = state.window;
            state.max_window = state.max_window.max(state.window);
            (sample.now, state.window)
        });
        let acked = sample.acked as f64;
        let alpha = if state.reno < state.max_window {
            RENO_ALPHA
        } else {
            1.0
        };
        state.reno += alpha * segment * acked / state.window;
        // The window that the curve wants one round trip from now.
        let t = (sample.now.saturating_sub(epoch) + sample.smoothed_rtt).as_secs_f64();
        let k = ((state.max_window - start) / segment / C).cbrt();
        let curve = C * (t - k).powi(3) * segment + state.max_window;
        let target = curve.clamp(state.window, state.window * 1.5);
        state.window += (target - state.window) * acked / state.window;
        state.window = state.window.max(state.reno);
    }

    pub(crate) fn on_congestion(&mut self, _now: Duration) {
        self.before = Some(self.state);
        let state = &mut self.state;
        // Fast convergence (section 4.7): a window that stays below the last one gives room.
        state.max_window = if state.window < state.max_window {
            state.window * (1.0 + BETA) / 2.0
        } else {
            state.window
        };
        state.window = (state.window * BETA).max(2.0 * self.segment as f64);
        state.threshold = state.window;
        state.epoch = None;
        self.slow_start = SlowStart::default();
    }

    pub(crate) fn on_timeout(&mut self, now: Duration) {
        let before = self.state;
        self.on_congestion(now);
        self.before = Some(before);
        self.state.window = 2.0 * self.segment as f64;
    }

    pub(crate) fn undo(&mut self) {
        if let Some(before) = self.before.take() {
            let grown = self.state.window.max(before.window);
            self.state = before;
            self.state.window = grown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SEGMENT: u64 = 1000;

    fn ack(now: Duration, acked: u64, rtt: Duration, round_start: bool) -> AckSample {
        AckSample {
            now,
            acked,
            in_flight: 0,
            rtt: Some(rtt),
            min_rtt: 100 * MS,
            smoothed_rtt: 100 * MS,
            rate: None,
            round_start,
            after_idle: false,
            window_limited: true,
            round_limited: true,
        }
    }

    #[test]
    fn cubic_slow_start_doubles_each_round() {
        let mut cubic = Cubic::new(10 * SEGMENT, SEGMENT);
        for _ in 0..10 {
            cubic.on_ack(&ack(MS, SEGMENT, 100 * MS, false));
        }
        assert_eq!(cubic.window(), 20 * SEGMENT);
    }

    #[test]
    fn cubic_grows_to_the_threshold_after_a_retreat() {
        let to = Reduced {
            window: 10 * SEGMENT,
            threshold: 14 * SEGMENT,
        };
        let mut cubic = Cubic::reduced(to, SEGMENT);
        (0..4).for_each(|_| cubic.on_ack(&ack(MS, SEGMENT, 100 * MS, false)));
        assert_eq!(cubic.window(), 14 * SEGMENT);
        assert!(!cubic.in_slow_start(), "{cubic:?}");
    }

    /// Three rounds of 100 ms and nine of 130 ms, whose acknowledgements cover `acked` bytes.
    fn delayed(acked: u64) -> Cubic {
        let mut cubic = Cubic::new(10 * SEGMENT, SEGMENT);
        for round in 0..12u32 {
            let rtt = if round < 3 { 100 * MS } else { 130 * MS };
            for i in 0..10 {
                cubic.on_ack(&ack(MS * (round * 100), acked, rtt, i == 0));
            }
        }
        cubic
    }

    #[test]
    fn cubic_leaves_slow_start_when_delay_grows() {
        let cubic = delayed(2 * SEGMENT);
        assert!(!cubic.in_slow_start(), "{cubic:?}");
    }

    #[test]
    fn cubic_ignores_delays_of_acks_for_one_segment() {
        let cubic = delayed(SEGMENT);
        assert!(cubic.in_slow_start(), "{cubic:?}");
    }

    #[test]
    fn cubic_returns_to_its_maximum_along_the_curve() {
        let mut cubic = Cubic::new(100 * SEGMENT, SEGMENT);
        cubic.on_congestion(Duration::ZERO);
        assert_eq!(cubic.window(), 70 * SEGMENT);
        // K = cbrt(30 / 0.4) = 4.2 s to the plateau.
        let mut now = Duration::ZERO;
        while now < Duration::from_millis(4200) {
            let acks = cubic.window() / SEGMENT;
            for _ in 0..acks {
                cubic.on_ack(&ack(now, SEGMENT, 100 * MS, false));
            }
            now += 100 * MS;
        }
        let window = cubic.window() / SEGMENT;
        assert!((97..=106).contains(&window), "{window}");
    }

    #[test]
    fn cubic_undo_restores_the_window() {
        let mut cubic = Cubic::new(50 * SEGMENT, SEGMENT);
        cubic.on_congestion(Duration::ZERO);
        cubic.undo();
        assert_eq!(cubic.window(), 50 * SEGMENT);
        cubic.on_timeout(Duration::ZERO);
        assert_eq!(cubic.window(), 2 * SEGMENT);
        cubic.undo();
        assert_eq!(cubic.window(), 50 * SEGMENT);
        cubic.undo();
        assert_eq!(cubic.window(), 50 * SEGMENT, "an undo counts once");
    }

    #[test]
    fn cubic_does_not_grow_while_the_application_limits() {
        let mut cubic = Cubic::new(10 * SEGMENT, SEGMENT);
        let mut sample = ack(MS, SEGMENT, 100 * MS, false);
        (sample.window_limited, sample.round_limited) = (false, false);
        (0..100).for_each(|_| cubic.on_ack(&sample));
        assert_eq!(cubic.window(), 10 * SEGMENT);
    }
}
