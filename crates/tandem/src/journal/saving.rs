//! The time that push saves a page load, from the loads that a gateway held out.
//!
//! Routes differ in speed and in the share of loads that are held out. A difference of means over
//! all routes would therefore measure the routes. The loads of each way are compared among
//! themselves, and the differences are weighted by the number of loads with push (stratification).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The time that push saves a page load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    /// The number of page loads with push.
    pub loads_pushed: u64,
    /// The number of page loads without push, for comparison.
    pub loads_held_out: u64,
    /// The mean time of the former in seconds.
    pub mean_pushed: Option<f64>,
    /// The mean time of the latter in seconds, with the routes in the same proportions.
    pub mean_held_out: Option<f64>,
    /// The difference in seconds with its 95 % confidence interval, from two loads of each kind on
    /// one route on.
    pub seconds: Option<Interval>,
    /// The result as a sentence.
    pub summary: String,
}

/// An estimate with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate.
    pub estimate: f64,
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

/// The times of the page loads on one way.
#[derive(Debug, Default)]
pub struct LoadTimes {
    samples: Mutex<Samples>,
}

impl LoadTimes {
    /// Adds a page load with push, or one that was held out.
    pub fn note(&self, is_pushed: bool, took: Duration) {
        let mut samples = self.lock();
        let sample = match is_pushed {
            true => &mut samples.pushed,
            false => &mut samples.held_out,
        };
        sample.add(took.as_secs_f64());
    }

    fn lock(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The page loads of both kinds on one way.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    pushed: Sample,
    held_out: Sample,
}

/// The number of page loads of one kind, with the sums of their seconds and of the squares.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Sample {
    fn add(&mut self, seconds: f64) {
        self.count += 1;
        self.sum += seconds;
        self.squares += seconds * seconds;
    }

    fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Returns the squared standard error of the mean.
    fn squared_error(self) -> Option<f64> {
        let n = self.count as f64;
        let spread = self.squares - self.sum * self.sum / n;
        (self.count > 1).then(|| (spread / (n - 1.0)).max(0.0) / n)
    }
}

/// The quantiles 0.975 of Student's t distribution for 1 to 30 degrees of freedom.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

impl Saving {
    /// Returns the saving over all ways.
    pub(super) fn of<'a>(ways: impl IntoIterator<Item = &'a LoadTimes>) -> Self {
        Self::of_samples(ways.into_iter().map(|times| *times.lock()).collect())
    }

    fn of_samples(mut ways: Vec<Samples>) -> Self {
        let loads_pushed = ways.iter().map(|way| way.pushed.count).sum();
        let loads_held_out = ways.iter().map(|way| way.held_out.count).sum();
        ways.retain(|way| way.pushed.count + way.held_out.count > 0);
        let seconds = difference(&ways);
        if seconds.is_some() {
            ways.retain(|way| variances(way).is_some());
        }
        // Without a comparison, only the means of a single way say something.
        let is_shown = seconds.is_some() || ways.len() == 1;
        let mean = |of: fn(&Samples) -> Option<f64>| {
            let total: u64 = ways.iter().map(|way| way.pushed.count.max(1)).sum();
            let share = |way: &Samples| way.pushed.count.max(1) as f64 / total as f64;
            let terms = ways.iter().map(|way| Some(share(way) * of(way)?));
            terms.sum::<Option<f64>>().filter(|_| is_shown)
        };
        Self {
            loads_pushed,
            loads_held_out,
            mean_pushed: mean(|way| way.pushed.mean()),
            mean_held_out: mean(|way| way.held_out.mean()),
            seconds,
            summary: summary(seconds),
        }
    }
}

/// Returns the squared standard errors of both means of a way.
fn variances(way: &Samples) -> Option<(f64, f64)> {
    Some((way.pushed.squared_error()?, way.held_out.squared_error()?))
}

/// Returns the mean difference between loads without and with push, each way weighted by its loads
/// with push. The interval is Welch's for unequal variances.
fn difference(ways: &[Samples]) -> Option<Interval> {
    let usable: Vec<_> = ways
        .iter()
        .filter_map(|way| Some((way, variances(way)?)))
        .collect();
    let total: u64 = usable.iter().map(|(way, _)| way.pushed.count).sum();
    if total == 0 {
        return None;
    }
    let (mut estimate, mut variance, mut terms) = (0.0, 0.0, 0.0);
    for (way, (pushed, held_out)) in usable {
        let share = way.pushed.count as f64 / total as f64;
        estimate += share * (way.held_out.mean()? - way.pushed.mean()?);
        for (error, count) in [(pushed, way.pushed.count), (held_out, way.held_out.count)] {
            let part = share * share * error;
            variance += part;
            terms += part * part / (count - 1) as f64;
        }
    }
    let reach = if variance > 0.0 {
        let freedom = (variance * variance / terms).max(1.0) as usize;
        // Beyond the table, the normal distribution's value plus its first correction is exact to
        // three digits.
        let t = STUDENT_T.get(freedom - 1).copied();
        t.unwrap_or_else(|| 1.960 + 2.4 / freedom as f64) * variance.sqrt()
    } else {
        0.0
    };
    Some(Interval {
        estimate,
        low: estimate - reach,
        high: estimate + reach,
    })
}

/// Returns a sentence about the saving, which claims no more than the interval shows.
fn summary(seconds: Option<Interval>) -> String {
    let Some(Interval {
        estimate,
        low,
        high,
    }) = seconds
    else {
        return "There are too few page loads of both kinds to estimate the time that push saves."
            .into();
    };
    if low > 0.0 {
        format!(
            "Push saves a page load {estimate:.2} s (95 % confidence: {low:.2} to {high:.2} s)."
        )
    } else if high < 0.0 {
        let (estimate, low, high) = (-estimate, -high, -low);
        format!(
            "Push slows a page load by {estimate:.2} s (95 % confidence: {low:.2} to {high:.2} s)."
        )
    } else {
        let low = -low;
        format!(
            "No effect of push is certain yet (95 % confidence: a page load is between {low:.2} s \
             slower and {high:.2} s faster)."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(pushed: &[f64], held_out: &[f64]) -> LoadTimes {
        let times = LoadTimes::default();
        for (is_pushed, seconds) in [(true, pushed), (false, held_out)] {
            for seconds in seconds {
                times.note(is_pushed, Duration::from_secs_f64(*seconds));
            }
        }
        times
    }

    #[test]
    fn saving_has_a_confidence_interval() {
        let way = times(&[0.9, 1.0, 1.1, 1.0], &[2.9, 3.0, 3.1]);
        let saving = Saving::of([&way]);
        let seconds = saving.seconds.expect("an interval");
        assert!((seconds.estimate - 2.0).abs() < 1e-9);
        // Welch: the standard error is 0.0707, with 3.94 degrees of freedom, so 3 of the table.
        assert!((seconds.high - 2.2250).abs() < 1e-3, "{seconds:?}");
        assert!((seconds.low - 1.7750).abs() < 1e-3, "{seconds:?}");
        assert_eq!((saving.loads_pushed, saving.loads_held_out), (4, 3));
        let start = "Push saves a page load 2.00 s (95 % confidence: 1.7";
        assert!(saving.summary.starts_with(start), "{}", saving.summary);
    }

    #[test]
    fn saving_of_few_loads_is_unknown() {
        assert_eq!(Saving::of([]).mean_pushed, None);
        let one = times(&[0.5], &[0.6, 0.7]);
        let saving = Saving::of([&one]);
        assert_eq!((saving.mean_pushed, saving.seconds), (Some(0.5), None));
        assert!(saving.summary.contains("too few"));
        let other = times(&[9.0], &[]);
        assert_eq!(Saving::of([&one, &other]).mean_pushed, None, "two ways");
        let equal = times(&[0.5, 0.5], &[0.5, 0.5]);
        let saving = Saving::of([&equal]);
        let seconds = saving.seconds.expect("an interval");
        assert_eq!((seconds.low, seconds.high), (0.0, 0.0));
    }

    /// Push saves nothing on either way, but most of the slow loads are held out (Simpson's
    /// paradox).
    #[test]
    fn saving_compares_loads_of_one_way() {
        let fast: Vec<_> = (0..40).map(|n| 1.0 + 0.01 * f64::from(n % 4)).collect();
        let slow: Vec<_> = fast.iter().map(|seconds| seconds + 9.0).collect();
        let ways = [times(&fast, &fast[..4]), times(&slow[..8], &slow)];
        let saving = Saving::of(&ways);
        let seconds = saving.seconds.expect("an interval");
        assert!(seconds.estimate.abs() < 1e-9, "{seconds:?}");
        assert!(seconds.low < 0.0 && seconds.high < 0.1, "{seconds:?}");
        let means = saving.mean_held_out.zip(saving.mean_pushed);
        let (held_out, pushed) = means.expect("both");
        assert!((held_out - pushed - seconds.estimate).abs() < 1e-9);
        assert!(saving.summary.starts_with("No effect of push is certain"));
    }

    #[test]
    fn summary_names_the_sign_of_the_effect() {
        let slower = times(&[2.0, 2.1, 2.2], &[1.0, 1.1, 1.2]);
        let summary = Saving::of([&slower]).summary;
        assert!(
            summary.starts_with("Push slows a page load by 1.00 s"),
            "{summary}"
        );
        let unsure = times(&[1.0, 3.0], &[1.1, 2.9]);
        let summary = Saving::of([&unsure]).summary;
        assert!(summary.contains("s slower and"), "{summary}");
        assert!(!summary.contains('-'), "{summary}");
    }
}
