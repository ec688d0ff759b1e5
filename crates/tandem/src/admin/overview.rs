//! The overview of the process for its local user: status, page loads, savings and problems. The
//! dashboard and `tandem top` show it.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::journal::{Changes, Journal, PageLoad, RouteEntry};
use crate::metrics::METRICS;
use crate::status::{Status, StatusSource};

/// The overview.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// the role of the process: `client`, `gateway` or `relay`.
    pub role: String,
    /// The version of the program.
    pub version: String,
    /// The sessions and counters.
    pub status: Status,
    /// The present problems, one sentence each.
    pub problems: Vec<String>,
    /// The routes of a client, most specific first.
    pub routes: Vec<RouteEntry>,
    /// The time that push saves.
    pub saving: Saving,
    /// The number of changes to the page loads.
    pub revision: u64,
    /// The numbers of the recent page loads, newest first.
    pub kept: Vec<u64>,
    /// The page loads that changed since the reader's revision, newest first.
    pub loads: Vec<PageLoad>,
}

/// The time that push saves a page load, from the loads that the gateway held out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    /// The number of page loads with push.
    pub loads_pushed: u64,
    /// The number of page loads without push, for comparison.
    pub loads_held_out: u64,
    /// The mean of the former, in seconds.
    pub mean_pushed: Option<f64>,
    /// The mean of the latter, in seconds.
    pub mean_held_out: Option<f64>,
    /// The difference in seconds with its 95 % confidence interval, from two loads of each kind
    /// on.
    pub seconds: Option<Interval>,
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

/// The number of page loads of one kind, with the sums of their milliseconds and of the squares.
#[derive(Clone, Copy, Debug)]
struct Sample {
    count: u64,
    sum: u64,
    squares: u64,
}

impl Sample {
    fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / 1e3 / self.count as f64)
    }

    /// Returns the squared standard error of the mean.
    fn squared_error(self) -> Option<f64> {
        let (n, sum) = (self.count as f64, self.sum as f64 / 1e3);
        let squares = self.squares as f64 / 1e6;
        (self.count > 1).then(|| ((squares - sum * sum / n) / (n - 1.0)).max(0.0) / n)
    }
}

/// The quantiles 0.975 of Student's t distribution for 1 to 30 degrees of freedom.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

impl Saving {
    fn measured() -> Self {
        let pushed = Sample {
            count: METRICS.loads_pushed.value(),
            sum: METRICS.loads_pushed_ms.value(),
            squares: METRICS.loads_pushed_ms_squared.value(),
        };
        let held_out = Sample {
            count: METRICS.loads_held_out.value(),
            sum: METRICS.loads_held_out_ms.value(),
            squares: METRICS.loads_held_out_ms_squared.value(),
        };
        Self::of(pushed, held_out)
    }

    fn of(pushed: Sample, held_out: Sample) -> Self {
        Self {
            loads_pushed: pushed.count,
            loads_held_out: held_out.count,
            mean_pushed: pushed.mean(),
            mean_held_out: held_out.mean(),
            seconds: difference(held_out, pushed),
        }
    }
}

/// Returns the difference of two means with Welch's interval for unequal variances.
fn difference(slow: Sample, fast: Sample) -> Option<Interval> {
    let estimate = slow.mean()? - fast.mean()?;
    let (a, b) = (slow.squared_error()?, fast.squared_error()?);
    let terms = a * a / (slow.count - 1) as f64 + b * b / (fast.count - 1) as f64;
    let reach = if a + b > 0.0 {
        let freedom = ((a + b).powi(2) / terms).max(1.0) as usize;
        // Beyond the table, the normal distribution's value plus its first correction is exact to
        // three digits.
        let t = STUDENT_T.get(freedom - 1).copied();
        t.unwrap_or_else(|| 1.960 + 2.4 / freedom as f64) * (a + b).sqrt()
    } else {
        0.0
    };
    Some(Interval {
        estimate,
        low: estimate - reach,
        high: estimate + reach,
    })
}

/// Takes overviews.
#[derive(Clone, Debug)]
pub struct OverviewSource {
    role: &'static str,
    status: StatusSource,
    journal: Arc<Journal>,
}

impl OverviewSource {
    /// Creates a source for a process of this role.
    pub const fn new(role: &'static str, status: StatusSource, journal: Arc<Journal>) -> Self {
        Self {
            role,
            status,
            journal,
        }
    }

    /// Returns the source of the status alone.
    pub const fn status(&self) -> &StatusSource {
        &self.status
    }

    /// Takes an overview with the page loads that changed after the revision `known`; 0 is before
    /// all of them.
    pub async fn take(&self, known: u64) -> Overview {
        let status = self.status.snapshot().await;
        let mut problems = self.journal.problems();
        problems.extend(refusals(&status));
        let Changes {
            revision,
            kept,
            loads,
        } = self.journal.changes(known, Instant::now());
        Overview {
            role: self.role.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            status,
            problems,
            routes: self.journal.routes(),
            saving: Saving::measured(),
            revision,
            kept,
            loads,
        }
    }
}

/// Returns the problems that the counters show.
fn refusals(status: &Status) -> Vec<String> {
    let count = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    let mut problems = Vec::new();
    if let refused @ 1.. = count("connections_refused") {
        problems.push(format!(
            "{refused} connection(s) were refused since the start because too many were open: \
             raise max-connections"
        ));
    }
    if let unauthorized @ 1.. = count("unauthorized") {
        problems.push(format!(
            "{unauthorized} request(s) since the start showed no valid access token: if a client \
             of yours fails, compare the first lines of both token files"
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(times_ms: &[u64]) -> Sample {
        Sample {
            count: times_ms.len() as u64,
            sum: times_ms.iter().sum(),
            squares: times_ms.iter().map(|ms| ms * ms).sum(),
        }
    }

    #[test]
    fn saving_has_a_confidence_interval() {
        let fast = sample(&[900, 1000, 1100, 1000]);
        let slow = sample(&[2900, 3000, 3100]);
        let saving = Saving::of(fast, slow);
        let seconds = saving.seconds.expect("an interval");
        assert!((seconds.estimate - 2.0).abs() < 1e-9);
        // Welch: the standard error is 0.0707, with 3.94 degrees of freedom, so 3 of the table.
        assert!((seconds.high - 2.2250).abs() < 1e-3, "{seconds:?}");
        assert!((seconds.low - 1.7750).abs() < 1e-3, "{seconds:?}");
        assert_eq!((saving.loads_pushed, saving.loads_held_out), (4, 3));
    }

    #[test]
    fn saving_of_few_loads_is_unknown() {
        let (none, one) = (sample(&[]), sample(&[500]));
        assert_eq!(Saving::of(none, none).mean_pushed, None);
        let saving = Saving::of(one, sample(&[600, 700]));
        assert_eq!((saving.mean_pushed, saving.seconds), (Some(0.5), None));
        let equal = sample(&[500, 500]);
        let seconds = Saving::of(equal, equal).seconds.expect("an interval");
        assert_eq!((seconds.low, seconds.high), (0.0, 0.0));
    }

    #[tokio::test]
    async fn overview_leaves_out_known_loads() {
        let journal = Arc::<Journal>::default();
        let status = StatusSource::new(Vec::new);
        let source = OverviewSource::new("client", status, Arc::clone(&journal));
        journal.open_load("http://a/", Instant::now());
        journal.set_warnings(vec!["the certificate expires".into()]);
        let overview = source.take(0).await;
        assert_eq!((overview.kept.len(), overview.loads.len()), (1, 1));
        assert_eq!(overview.problems, ["the certificate expires"]);
        let again = source.take(overview.revision).await;
        assert_eq!((again.kept.len(), again.loads.len()), (1, 0));
        journal.open_load("http://b/", Instant::now());
        let changed = source.take(overview.revision).await;
        assert_eq!((changed.kept.len(), changed.loads.len()), (2, 1));
        let text = serde_json::to_string(&overview).expect("plain values");
        let read: Overview = serde_json::from_str(&text).expect("its own form");
        assert_eq!(read.problems, overview.problems);
    }
}
