//! Online learning of probabilities: running rates, logistic mixing, and calibration of mixed
//! probabilities against outcomes.

/// Probabilities beyond these are not told from them.
const LEAST: f32 = 0.0005;
const MOST: f32 = 0.9995;

/// Returns the log-odds of a probability, within the range that a float can invert.
#[must_use]
#[inline]
pub fn stretch(p: f32) -> f32 {
    let p = if p > LEAST { p } else { LEAST };
    let p = if p < MOST { p } else { MOST };
    logarithm(p / (1.0 - p))
}

/// Log-odds of many probabilities.
pub(super) fn stretch_all(list: &mut [f32]) {
    for p in list {
        *p = stretch(*p);
    }
}

/// Probability of log-odds.
#[must_use]
#[inline]
pub fn squash(x: f32) -> f32 {
    1.0 / (1.0 + exponential(-x.clamp(-12.0, 12.0)))
}

/// Returns the natural logarithm of a positive, normal number, to about 1e-6. It uses the exponent
/// and a series in the remainder, so the result is the same on every machine and the function can
/// be inlined.
#[inline]
fn logarithm(x: f32) -> f32 {
    /// The bits of the square root of one half: the remainder lies around 1.
    const HALF_ROOT: u32 = 0x3f35_04f3;
    let scaled = x.to_bits().wrapping_sub(HALF_ROOT);
    let exponent = (scaled as i32 >> 23) as f32;
    let rest = f32::from_bits((scaled & 0x7f_ffff) + HALF_ROOT);
    let s = (rest - 1.0) / (rest + 1.0);
    let square = s * s;
    exponent * std::f32::consts::LN_2
        + 2.0 * s * (1.0 + square * (1.0 / 3.0 + square * (0.2 + square / 7.0)))
}

/// The exponential function for moderate numbers, to about 1e-6.
#[inline]
fn exponential(x: f32) -> f32 {
    let scaled = x * std::f32::consts::LOG2_E;
    let whole = (scaled + 128.5) as i32 - 128;
    let r = (scaled - whole as f32) * std::f32::consts::LN_2;
    let series =
        1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0)))));
    f32::from_bits(((whole + 127) as u32) << 23) * series
}

/// A probability learned from outcomes: a running mean at first, forgetting slowly later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Current estimate.
    pub p: f32,
    /// Outcomes behind it, up to the limit of its memory.
    pub n: f32,
}

impl Rate {
    /// An estimate before any outcome.
    #[must_use]
    pub const fn prior(p: f32) -> Self {
        Self { p, n: 0.0 }
    }

    /// Takes in an outcome between 0 and 1. The prior weighs as much as `weight` outcomes; about
    /// `memory` outcomes are remembered.
    pub fn learn(&mut self, outcome: f32, weight: f32, memory: f32) {
        self.p += (outcome - self.p) / (self.n + 1.0 + weight);
        self.n = (self.n + 1.0).min(memory);
    }

    /// Log-odds by which this rate differs from `base`, less the fewer outcomes it has.
    #[must_use]
    pub fn excess(self, base: f32) -> f32 {
        (stretch(self.p) - base) * (self.n / (self.n + 1.0))
    }

    /// The rate that both sets of outcomes make together.
    #[must_use]
    pub fn merged(self, other: Self, memory: f32) -> Self {
        let n = self.n + other.n;
        if n <= 0.0 {
            return self;
        }
        Self {
            p: (self.p * self.n + other.p * other.n) / n,
            n: n.min(memory),
        }
    }
}

/// Mixes log-odds into one, by weights that are chosen by small contexts and averaged.
///
/// The weights are drawn towards their start, so that a run of equal outcomes early on does not
/// turn them over.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixer<const INPUTS: usize> {
    start: [f32; INPUTS],
    /// All sets of weights.
    pub(super) weights: Vec<[f32; INPUTS]>,
    /// How often each set has learned.
    pub(super) seen: Vec<f32>,
}

/// First step size; it falls to a fourteenth of this as a set learns.
const STEP: f32 = 0.01;
/// Pull towards the start.
const ANCHOR: f32 = 0.003;

impl<const INPUTS: usize> Mixer<INPUTS> {
    /// `sets` copies of the weights to start from.
    #[must_use]
    pub fn new(sets: usize, start: [f32; INPUTS]) -> Self {
        Self {
            start,
            weights: vec![start; sets],
            seen: vec![0.0; sets],
        }
    }

    /// The mixed log-odds for the chosen sets.
    #[must_use]
    #[inline(always)]
    pub fn mix<const SETS: usize>(&self, inputs: &[f32; INPUTS], sets: &[usize; SETS]) -> f32 {
        let mut sum = 0.0;
        for &set in sets {
            sum += dot(&self.weights[set], inputs);
        }
        sum / SETS as f32
    }

    /// Moves the chosen sets by `error`, outcome minus mixed probability.
    pub fn learn<const SETS: usize>(
        &mut self,
        inputs: &[f32; INPUTS],
        sets: &[usize; SETS],
        error: f32,
    ) {
        // Separate loops can be vectorised over all sets or inputs.
        let (mut steps, mut pulls) = ([0.0; SETS], [0.0; INPUTS]);
        for (step, &set) in steps.iter_mut().zip(sets) {
            *step = self.seen[set];
        }
        for step in &mut steps {
            *step = STEP * (0.07 + 1.0 / (1.0 + *step / 200.0).sqrt());
        }
        for (pull, input) in pulls.iter_mut().zip(inputs) {
            *pull = error * input;
        }
        for (&set, step) in sets.iter().zip(steps) {
            self.seen[set] += 1.0;
            let weights = &mut self.weights[set];
            for at in 0..INPUTS {
                weights[at] += step * (pulls[at] - ANCHOR * (weights[at] - self.start[at]));
            }
        }
    }

    /// Averages in another mixer's sets, each by how much it has learned.
    pub fn merge(&mut self, other: &Self) {
        for set in 0..self.weights.len().min(other.weights.len()) {
            let total = self.seen[set] + other.seen[set];
            if total > 0.0 {
                let share = other.seen[set] / total;
                for (weight, theirs) in self.weights[set].iter_mut().zip(&other.weights[set]) {
                    *weight += (theirs - *weight) * share;
                }
                self.seen[set] = total;
            }
        }
    }
}

#[inline(always)]
fn dot<const INPUTS: usize>(weights: &[f32; INPUTS], inputs: &[f32; INPUTS]) -> f32 {
    let mut sum = 0.0;
    for at in 0..INPUTS {
        sum += weights[at] * inputs[at];
    }
    sum
}

/// The observed frequency of predicted events, along the scale of log-odds.
///
/// It learns once per page load and not per candidate, since the twenty scripts of a page are
/// requested together or not at all.
#[derive(Debug, Clone, PartialEq)]
pub struct Reliability {
    /// Rates at log-odds -5 to 5 in steps of a half.
    pub(super) points: [Rate; Self::POINTS],
}

/// The probability at which the scale ends before anything was learned.
const MOST_TRUSTED: f32 = 0.85;

/// The outcome of a page load for a [`Reliability`].
#[derive(Debug, Default, Clone)]
pub struct Evidence {
    sums: [(f32, f32); Reliability::POINTS],
}

impl Reliability {
    /// Number of points on the scale.
    pub const POINTS: usize = 21;

    fn place(x: f32) -> (usize, f32) {
        let at = (x * 2.0 + 10.0).clamp(0.0, Self::POINTS as f32 - 1.001);
        (at as usize, at - (at as usize) as f32)
    }

    /// The probability that log-odds `x` have meant so far.
    #[must_use]
    pub fn check(&self, x: f32) -> f32 {
        let (at, part) = Self::place(x);
        self.points[at].p * (1.0 - part) + self.points[at + 1].p * part
    }

    /// Log-odds below which no probability, half of it the mixed and half the checked one, reaches
    /// `least`.
    #[must_use]
    pub fn hopeless(&self, least: f32) -> f32 {
        /// A bound above the possible rounding error.
        const MARGIN: f32 = 0.001;
        let step = |at: usize| (at as f32 - 10.0) / 2.0;
        let reaches = |at: &usize| {
            let mixed = if at + 2 == Self::POINTS {
                1.0
            } else {
                squash(step(at + 1))
            };
            0.5 * (mixed + self.points[*at].p.max(self.points[at + 1].p)) + MARGIN >= least
        };
        match (0..Self::POINTS - 1).find(reaches) {
            Some(0) => f32::NEG_INFINITY,
            Some(at) => step(at) - MARGIN,
            None => f32::INFINITY,
        }
    }

    /// Learns from a page load.
    pub fn learn(&mut self, evidence: &Evidence) {
        for (point, (hits, weight)) in self.points.iter_mut().zip(evidence.sums) {
            if weight > 0.5 {
                point.learn(hits / weight, 12.0, 255.0);
            }
        }
    }
}

impl Reliability {
    /// Merges the knowledge of another table.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.points.iter_mut().zip(&other.points) {
            *mine = mine.merged(*theirs, 255.0);
        }
    }
}

impl Default for Reliability {
    fn default() -> Self {
        // Certainty is not believed before it is seen.
        Self {
            points: std::array::from_fn(|at| {
                Rate::prior(squash((at as f32 - 10.0) / 2.0).min(MOST_TRUSTED))
            }),
        }
    }
}

impl Evidence {
    /// Notes that log-odds `x` came true or not.
    pub fn note(&mut self, x: f32, outcome: bool) {
        let (at, part) = Reliability::place(x);
        let hit = f32::from(u8::from(outcome));
        for (point, weight) in [(at, 1.0 - part), (at + 1, part)] {
            self.sums[point].0 += hit * weight;
            self.sums[point].1 += weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_odds_and_back() {
        for p in [0.001, 0.2, 0.5, 0.97] {
            assert!((squash(stretch(p)) - p).abs() < 1e-5);
        }
    }

    #[test]
    fn series_are_close() {
        for step in -1199..1200 {
            let x = step as f32 / 100.0;
            assert!((exponential(x) / x.exp() - 1.0).abs() < 1e-5, "exp {x}");
            assert!((logarithm(x.exp()) - x).abs() < 1e-5, "ln of exp {x}");
        }
    }

    #[test]
    fn a_rate_forgets() {
        let mut rate = Rate::prior(0.5);
        for _ in 0..1000 {
            rate.learn(1.0, 1.0, 30.0);
        }
        assert!(rate.p > 0.99);
        for _ in 0..60 {
            rate.learn(0.0, 1.0, 30.0);
        }
        assert!(rate.p < 0.2, "{}", rate.p);
    }

    #[test]
    fn a_mixer_finds_the_input_that_tells() {
        let mut mixer = Mixer::new(1, [0.5, 0.5]);
        for round in 0..20_000 {
            let outcome = round % 3 == 0;
            let inputs = [
                if outcome { 2.0 } else { -2.0 },
                if round % 2 == 0 { 2.0 } else { -2.0 },
            ];
            let p = squash(mixer.mix(&inputs, &[0]));
            mixer.learn(&inputs, &[0], f32::from(u8::from(outcome)) - p);
        }
        assert!(squash(mixer.mix(&[2.0, -2.0], &[0])) > 0.8);
        assert!(squash(mixer.mix(&[-2.0, 2.0], &[0])) < 0.2);
    }

    #[test]
    fn overconfidence_is_noticed() {
        let mut reliability = Reliability::default();
        for _ in 0..200 {
            let mut evidence = Evidence::default();
            evidence.note(3.0, false);
            reliability.learn(&evidence);
        }
        assert!(reliability.check(3.0) < 0.1);
        assert!(reliability.check(-3.0) < 0.06);
    }
}
