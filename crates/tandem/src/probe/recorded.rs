//! The values of one point: their number, range and mean exactly, and their distribution to within
//! a thousandth.

use hdrhistogram::Histogram;

/// The greatest value that the distribution holds: 18 minutes in nanoseconds, or a tebibyte.
/// Greater values count as this one.
const MAX_VALUE: u64 = 1 << 40;

/// The number of significant decimal digits of a value in the distribution.
const DIGITS: u8 = 3;

/// The values that a point has recorded since it was switched on.
#[derive(Clone, Debug)]
pub struct Recorded {
    sum: u128,
    min: u64,
    max: u64,
    histogram: Histogram<u64>,
}

impl Recorded {
    /// Returns an empty record. It takes 250 kB.
    pub fn new() -> Self {
        Self {
            sum: 0,
            min: u64::MAX,
            max: 0,
            histogram: Histogram::new_with_max(MAX_VALUE, DIGITS)
                .expect("the digits and the maximum are in the permitted range"),
        }
    }

    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.histogram.saturating_record(value);
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the smallest and the largest value.
    pub fn range(&self) -> Option<(u64, u64)> {
        (self.count() > 0).then_some((self.min, self.max))
    }

    /// Returns the mean.
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum as f64 / self.count() as f64)
    }

    /// Returns the cumulative distribution: values with the share of values up to each, rising to
    /// 1. Values that agree in the first three digits are one step.
    pub fn distribution(&self) -> Vec<(u64, f64)> {
        let mut up_to = 0;
        let mut steps: Vec<_> = self
            .histogram
            .iter_recorded()
            .map(|step| {
                up_to += step.count_at_value();
                let share = up_to as f64 / self.count() as f64;
                (step.value_iterated_to(), share)
            })
            .collect();
        if let Some(last) = steps.last_mut() {
            last.0 = self.max;
        }
        steps
    }
}

impl Default for Recorded {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the smallest value with at least `share` (0 to 1) of the values at or below it.
pub fn quantile(distribution: &[(u64, f64)], share: f64) -> Option<u64> {
    let at = distribution.partition_point(|(_, up_to)| *up_to < share);
    distribution
        .get(at)
        .or_else(|| distribution.last())
        .map(|(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_keeps_small_values_exactly() {
        let mut kept = Recorded::new();
        assert_eq!(
            (kept.range(), kept.mean(), kept.distribution()),
            (None, None, Vec::new())
        );
        assert_eq!(quantile(&[], 0.5), None);
        for value in [5, 1, 5, 9] {
            kept.add(value);
        }
        assert_eq!(
            (kept.count(), kept.range(), kept.mean()),
            (4, Some((1, 9)), Some(5.0))
        );
        let distribution = kept.distribution();
        assert_eq!(distribution, [(1, 0.25), (5, 0.75), (9, 1.0)]);
        let quantiles =
            [0.0, 0.25, 0.26, 0.75, 0.76, 1.0].map(|share| quantile(&distribution, share));
        assert_eq!(quantiles, [1, 1, 5, 5, 9, 9].map(Some));
    }

    #[test]
    fn recorded_takes_extremes_without_overflow() {
        let mut kept = Recorded::new();
        (0..3).for_each(|_| kept.add(u64::MAX));
        kept.add(0);
        assert_eq!(kept.range(), Some((0, u64::MAX)));
        assert_eq!(kept.mean(), Some(u64::MAX as f64 * 0.75));
        assert_eq!(kept.distribution(), [(0, 0.25), (u64::MAX, 1.0)]);
    }

    /// The tail of many values is as exact as the middle, which no sample of bounded size offers.
    #[test]
    fn recorded_keeps_the_tail_of_many_values() {
        let mut kept = Recorded::new();
        (0..1_000_000).for_each(|value| kept.add(value * 1000));
        let distribution = kept.distribution();
        for share in [0.001, 0.5, 0.9, 0.999, 0.99999] {
            let value = quantile(&distribution, share).expect("values");
            let exact = share * 1e9;
            assert!(
                (value as f64 / exact - 1.0).abs() < 0.002,
                "{share}: {value}"
            );
        }
        assert!(
            distribution
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1)
        );
    }
}
