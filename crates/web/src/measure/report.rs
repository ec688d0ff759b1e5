//! Repeated loads and their statistics, as JSON, CSV and text.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Outcome, Run};
use tandem_net::stats::Summary;

/// Loads of one page in one way.
#[derive(Clone, Debug)]
pub struct Report {
    /// The run that made them.
    pub run: Run,
    /// The page.
    pub page: String,
    /// The loads in order.
    pub loads: Vec<Outcome>,
}

/// A figure of a load: its name, its unit included, and how to take it.
pub type Metric = (&'static str, fn(&Outcome) -> Option<f64>);

/// Every figure of a load.
pub const METRICS: [Metric; 27] = [
    ("time_on_wire_ms", |o| Some(o.time_on_wire_ms)),
    ("page_load_ms", |o| Some(o.page_load_ms)),
    ("dom_content_loaded_ms", |o| o.dom_content_loaded_ms),
    ("first_paint_ms", |o| o.first_paint_ms),
    ("first_byte_ms", |o| Some(o.first_byte_ms)),
    ("requests", |o| Some(o.requests as f64)),
    ("failed", |o| Some(o.failed as f64)),
    ("missing", |o| Some(o.missing as f64)),
    ("images", |o| o.images.map(|(all, _)| all as f64)),
    ("images_decoded", |o| {
        o.images.map(|(_, decoded)| decoded as f64)
    }),
    ("connections", |o| Some(o.connections as f64)),
    ("body_bytes", |o| Some(o.body_bytes as f64)),
    ("bytes_up", |o| o.bytes_up.map(|n| n as f64)),
    ("bytes_down", |o| o.bytes_down.map(|n| n as f64)),
    ("wire_packets_up", |o| o.wire.map(|w| w.up.packets as f64)),
    ("wire_bytes_up", |o| o.wire.map(|w| w.up.bytes as f64)),
    ("wire_packets_down", |o| {
        o.wire.map(|w| w.down.packets as f64)
    }),
    ("wire_bytes_down", |o| o.wire.map(|w| w.down.bytes as f64)),
    ("wire_lost", |o| o.wire.map(|w| w.lost as f64)),
    ("blocked_ms", |o| o.phases.blocked),
    ("dns_ms", |o| o.phases.dns),
    ("connect_ms", |o| o.phases.connect),
    ("ssl_ms", |o| o.phases.ssl),
    ("send_ms", |o| o.phases.send),
    ("wait_ms", |o| o.phases.wait),
    ("receive_ms", |o| o.phases.receive),
    ("complete", |o| Some(f64::from(u8::from(o.is_complete())))),
];

impl Report {
    /// An empty report.
    pub const fn new(run: Run, page: String) -> Self {
        Self {
            run,
            page,
            loads: Vec::new(),
        }
    }

    /// Adds a load.
    pub fn add(&mut self, outcome: Outcome) {
        if !self.run.programs.contains(&outcome.client) {
            self.run.programs.push(outcome.client.clone());
        }
        self.loads.push(outcome);
    }

    /// Returns the statistics of a figure over all loads.
    pub fn summary(&self, metric: Metric) -> Option<Summary> {
        Summary::of(&self.loads.iter().filter_map(metric.1).collect::<Vec<_>>())
    }

    /// Everything.
    pub fn json(&self) -> Value {
        let summary = METRICS
            .iter()
            .filter_map(|metric| Some((metric.0, self.summary(*metric)?)));
        let summary: serde_json::Map<String, Value> = summary
            .map(|(name, s)| (name.to_owned(), json!(s)))
            .collect();
        json!({ "run": self.run, "page": self.page, "loads": self.loads, "summary": summary })
    }

    /// A line for each load, after lines of comment and one of names.
    pub fn csv(&self) -> String {
        let mut text = self.run.comment();
        let names: Vec<&str> = METRICS.iter().map(|metric| metric.0).collect();
        let _ = writeln!(text, "page,client,load,{}", names.join(","));
        for (number, load) in self.loads.iter().enumerate() {
            let _ = write!(
                text,
                "{},{},{}",
                quoted(&self.page),
                quoted(&load.client),
                number + 1
            );
            for (_, take) in METRICS {
                text.push(',');
                if let Some(value) = take(load) {
                    let _ = write!(text, "{}", rounded(value));
                }
            }
            text.push('\n');
        }
        text
    }

    /// A few lines for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} by {}, {} loads\n",
            self.page,
            self.run.programs.join(", "),
            self.loads.len()
        );
        for metric in METRICS {
            let Some(Summary {
                median,
                mean,
                interval,
                min,
                max,
                ..
            }) = self.summary(metric)
            else {
                continue;
            };
            let _ = write!(text, "{:>22}  {:>12}", metric.0, rounded(median));
            if min < max {
                let _ = write!(
                    text,
                    "  {}..{}, mean {} +- {}",
                    rounded(min),
                    rounded(max),
                    rounded(mean),
                    rounded(interval)
                );
            }
            text.push('\n');
        }
        for fault in self.loads.iter().flat_map(|load| &load.faults) {
            let _ = writeln!(text, "caution: {fault}");
        }
        text
    }
}

/// Three digits behind the point at most.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// A field as RFC 4180 section 2 writes it.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
