//! `tandem predict live`: the results of push in a running client or gateway, from its metrics,
//! with confidence intervals.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tandem_net::stats::student_t_95;

use super::PredictError;

/// Longest answer that is read.
const MAX_ANSWER: u64 = 1 << 20;

/// Arguments of `predict live`.
#[derive(Debug, Args)]
pub struct LiveArgs {
    /// Address at which the client or gateway serves its metrics (its --metrics)
    #[arg(value_name = "ADDRESS")]
    metrics: SocketAddr,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The outcomes of pushes, and their value.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Account {
    promised: u64,
    received: u64,
    used: u64,
    late: u64,
    wasted: u64,
    cancelled: u64,
    withheld: u64,
    bytes_used: u64,
    bytes_wasted: u64,
    extra_requests: u64,
    pages_new: u64,
    pages_returning: u64,
    next_promised: u64,
    next_used: u64,
    next_bytes_wasted: u64,
    round_trips_saved: u64,
    with_push: LiveLoads,
    held_out: LiveLoads,
    /// Seconds that push saves a page load: estimate and 95 % interval (Welch).
    saved_s: Option<Interval>,
}

/// Page loads of one kind.
#[derive(Debug, Default, PartialEq, Serialize)]
struct LiveLoads {
    count: u64,
    mean_s: Option<f64>,
    #[serde(skip)]
    variance: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Interval {
    estimate: f64,
    low: f64,
    high: f64,
}

/// Prints the account of the process behind `args`.
pub(super) fn run(args: &LiveArgs) -> Result<(), PredictError> {
    let text = fetch(args.metrics).map_err(|source| PredictError::Live {
        address: args.metrics,
        source,
    })?;
    let account = Account::read(&text);
    let text = if args.json {
        serde_json::to_string_pretty(&account).map_err(std::io::Error::from)? + "\n"
    } else {
        account.table()
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(PredictError::Print)
}

fn fetch(address: SocketAddr) -> std::io::Result<String> {
    if !address.ip().is_loopback() {
        return Err(std::io::Error::other(
            "metrics are served on loopback addresses only",
        ));
    }
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    if !answer.starts_with("HTTP/1.1 200") || !answer.contains("tandem_pushes_used_total") {
        return Err(std::io::Error::other(
            "these are not the metrics of a tandem client or gateway",
        ));
    }
    Ok(answer)
}

impl Account {
    fn read(text: &str) -> Self {
        let values: HashMap<&str, f64> = text
            .lines()
            .filter_map(|line| line.strip_prefix("tandem_")?.split_once(' '))
            .filter_map(|(name, value)| {
                Some((name.trim_end_matches("_total"), value.trim().parse().ok()?))
            })
            .collect();
        let scaled = |name: &str, parts: f64| {
            let value = values.get(name).copied().unwrap_or(0.0);
            (value * parts).round() as u64
        };
        let value = |name: &str| scaled(name, 1.0);
        let loads = |kind: &str| {
            LiveLoads::of(
                value(&format!("loads_{kind}")),
                scaled(&format!("loads_{kind}_seconds"), 1e3),
                scaled(&format!("loads_{kind}_seconds_squared"), 1e6),
            )
        };
        let (with_push, held_out) = (loads("pushed"), loads("held_out"));
        Self {
            promised: value("pushes_promised"),
            received: value("pushes_received"),
            used: value("pushes_used"),
            late: value("pushes_late"),
            wasted: value("pushes_wasted"),
            cancelled: value("pushes_cancelled"),
            withheld: value("pushes_withheld"),
            bytes_used: value("push_bytes_used"),
            bytes_wasted: value("push_bytes_wasted"),
            extra_requests: value("origin_extra_requests"),
            pages_new: value("pages_pushed").saturating_sub(value("pages_returning")),
            pages_returning: value("pages_returning"),
            next_promised: value("next_pages_promised"),
            next_used: value("next_pages_used"),
            next_bytes_wasted: value("next_page_bytes_wasted"),
            round_trips_saved: value("round_trips_saved"),
            saved_s: Interval::between(&held_out, &with_push),
            with_push,
            held_out,
        }
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let rows = [
            ("promised", self.promised),
            ("received", self.received),
            ("complete when requested", self.used),
            ("requested in transit", self.late),
            ("wasted", self.wasted),
            ("cancelled", self.cancelled),
            ("promised without a body", self.withheld),
            ("bytes used", self.bytes_used),
            ("bytes wasted", self.bytes_wasted),
            ("extra origin requests", self.extra_requests),
            ("pages, new visitors", self.pages_new),
            ("pages, returning visitors", self.pages_returning),
            ("next pages promised", self.next_promised),
            ("next pages used", self.next_used),
            ("bytes of next pages wasted", self.next_bytes_wasted),
            ("round trips saved", self.round_trips_saved),
        ];
        // Writing to a string cannot fail.
        for (name, value) in rows {
            let _ = writeln!(text, "{name:<25}{value:>14}");
        }
        for (name, loads) in [
            ("page loads with push", &self.with_push),
            ("held out", &self.held_out),
        ] {
            let mean = loads
                .mean_s
                .map_or_else(String::new, |mean| format!("   mean {mean:.2} s"));
            let _ = writeln!(text, "{name:<25}{:>14}{mean}", loads.count);
        }
        let _ = match &self.saved_s {
            Some(Interval {
                estimate,
                low,
                high,
            }) => {
                writeln!(
                    text,
                    "push saves a page load {estimate:.2} s, 95 % between {low:.2} and {high:.2} s"
                )
            }
            None => writeln!(
                text,
                "too few page loads of both kinds to estimate the savings of push"
            ),
        };
        text
    }
}

impl LiveLoads {
    /// From count, sum and sum of squares, in milliseconds.
    fn of(count: u64, sum: u64, squares: u64) -> Self {
        let (n, sum, squares) = (count as f64, sum as f64 / 1e3, squares as f64 / 1e6);
        let mean = (count > 0).then(|| sum / n);
        let variance = (count > 1).then(|| ((squares - sum * sum / n) / (n - 1.0)).max(0.0));
        Self {
            count,
            mean_s: mean,
            variance,
        }
    }
}

impl Interval {
    /// How much more `slow` takes than `fast`: Welch's unequal variances t-interval of 95 %.
    fn between(slow: &LiveLoads, fast: &LiveLoads) -> Option<Self> {
        let part = |loads: &LiveLoads| {
            Some((
                loads.mean_s?,
                loads.variance? / loads.count as f64,
                loads.count as f64,
            ))
        };
        let ((slow_mean, a, n), (fast_mean, b, m)) = (part(slow)?, part(fast)?);
        let freedom = (a + b).powi(2) / (a * a / (n - 1.0) + b * b / (m - 1.0));
        let reach = if a + b > 0.0 {
            student_t_95(freedom.max(1.0) as usize) * (a + b).sqrt()
        } else {
            0.0
        };
        let estimate = slow_mean - fast_mean;
        Some(Self {
            estimate,
            low: estimate - reach,
            high: estimate + reach,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_from_metrics() {
        let text = "# HELP x y\n\
            tandem_pushes_used_total 7\ntandem_pushes_late_total 2\n\
            tandem_loads_pushed_total 2\n\
            tandem_loads_pushed_seconds_total 2\n\
            tandem_loads_pushed_seconds_squared_total 2.02\n\
            tandem_loads_held_out_total 3\ntandem_loads_held_out_seconds_total 9\n\
            tandem_loads_held_out_seconds_squared_total 27.02\n\
            tandem_pages_pushed_total 9\ntandem_pages_returning_total 4\n\
            tandem_pushes_withheld_total 5\n\
            tandem_next_pages_promised_total 6\ntandem_next_pages_used_total 4\n\
            tandem_next_page_bytes_wasted_total 9\n\
            tandem_origin_extra_requests_total 3\ntandem_push_bytes_wasted_total 70\n";
        let account = Account::read(text);
        assert_eq!((account.used, account.late, account.wasted), (7, 2, 0));
        assert_eq!((account.pages_new, account.pages_returning), (5, 4));
        assert_eq!((account.withheld, account.extra_requests), (5, 3));
        assert_eq!(account.bytes_wasted, 70);
        assert_eq!((account.next_promised, account.next_used), (6, 4));
        assert_eq!(account.next_bytes_wasted, 9);
        let saved = account.saved_s.as_ref().unwrap();
        // One degree of freedom: 12.706 standard errors of 0.1155 s.
        assert!(
            (saved.estimate - 2.0).abs() < 1e-9 && (saved.low - 0.533).abs() < 1e-3,
            "{saved:?}"
        );
        assert!(account.table().contains("push saves a page load 2.00 s"));
        assert_eq!(Account::read("").saved_s, None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text: String) {
            let _ = Account::read(&text).table();
        }
    }
}
