//! What was measured: a row per page, way and setup, compared with plain HTTP/1.1 in the same run.

use std::fmt::Write as _;

use serde::Serialize;

use super::load::Loaded;
use super::{Plan, Setup, Subject, Way};
use crate::loader::Discovery;
use crate::stats::{Summary, median};

/// A whole measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// One per page, way and setup.
    pub rows: Vec<Row>,
    /// What tor moves over the client's link by itself; it is in all numbers of the link.
    pub background: Background,
    /// Turns that each setup had.
    pub passes: usize,
    /// Whether circuit and session had carried the page before.
    pub warm: bool,
    /// Why the numbers should not be believed.
    pub trouble: Option<String>,
}

/// Traffic of an idle network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Background {
    /// Both ways together.
    pub bytes_per_s: f64,
}

/// A setup's loads of a page: medians over those that succeeded.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The page.
    pub page: String,
    /// Through the exit or from the onion service.
    pub way: Way,
    /// How.
    pub setup: String,
    /// What the loader knew from the start.
    pub known: &'static str,
    /// Median, spread and the like; none if every load failed.
    pub time_s: Option<Summary>,
    /// Time as a share of plain HTTP/1.1's.
    pub ratio_time: Option<f64>,
    /// IP bytes up the client's link.
    pub bytes_up: Option<f64>,
    /// And down.
    pub bytes_down: Option<f64>,
    /// Their sum as a share of plain HTTP/1.1's.
    pub ratio_bytes: Option<f64>,
    /// IP packets up the client's link.
    pub packets_up: Option<f64>,
    /// And down.
    pub packets_down: Option<f64>,
    /// Bytes that the loader wrote.
    pub loader_up: Option<f64>,
    /// Bytes that it read.
    pub loader_down: Option<f64>,
    /// Every load that succeeded, in order.
    pub loads: Vec<Loaded>,
    /// What the others said.
    pub failures: Vec<String>,
}

/// Compares. `loads` by subject, setup and pass.
pub(super) fn report(
    plan: &Plan,
    subjects: &[Subject],
    loads: Vec<Vec<Vec<Result<Loaded, String>>>>,
    background: Background,
    trouble: Option<String>,
) -> Report {
    let mut rows = Vec::new();
    for (subject, loads) in subjects.iter().zip(loads) {
        let own: Vec<Row> =
            subject.setups.iter().zip(loads).map(|(&setup, loads)| row(subject, setup, loads)).collect();
        let plain = own.first().cloned();
        rows.extend(own.into_iter().map(|row| match &plain {
            Some(plain) => row.beside(plain),
            None => row,
        }));
    }
    Report { rows, background, passes: plan.passes, warm: plan.warm, trouble }
}

fn row(subject: &Subject, setup: Setup, loads: Vec<Result<Loaded, String>>) -> Row {
    let (mut good, mut failures) = (Vec::new(), Vec::new());
    for load in loads {
        match load {
            Ok(load) => good.push(load),
            Err(error) => failures.push(error),
        }
    }
    let each = |value: fn(&Loaded) -> f64| good.iter().map(value).collect::<Vec<_>>();
    let middle = |value: fn(&Loaded) -> f64| median(&each(value));
    Row {
        page: subject.page.clone(),
        way: subject.way,
        setup: setup.to_string(),
        known: match subject.discovery {
            Discovery::List => "everything",
            Discovery::Triggers => "the document",
        },
        time_s: Summary::of(&each(|load| load.time_s)),
        ratio_time: None,
        bytes_up: middle(|load| load.bytes_up as f64),
        bytes_down: middle(|load| load.bytes_down as f64),
        ratio_bytes: None,
        packets_up: middle(|load| load.packets_up as f64),
        packets_down: middle(|load| load.packets_down as f64),
        loader_up: middle(|load| load.loader_up as f64),
        loader_down: middle(|load| load.loader_down as f64),
        loads: good,
        failures,
    }
}

impl Row {
    fn bytes(&self) -> Option<f64> {
        Some(self.bytes_up? + self.bytes_down?)
    }

    fn beside(mut self, plain: &Self) -> Self {
        let ratio = |own: Option<f64>, other: Option<f64>| Some(own? / other.filter(|other| *other > 0.0)?);
        self.ratio_time = ratio(self.time_s.map(|time| time.median), plain.time_s.map(|time| time.median));
        self.ratio_bytes = ratio(self.bytes(), plain.bytes());
        self
    }

    fn line(&self) -> String {
        let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.0}"));
        let share = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{:.1}", value * 100.0));
        let (seconds, spread) = self.time_s.map_or_else(
            || ("-".into(), "-".into()),
            |time| (format!("{:.2}", time.median), format!("{:.2}-{:.2}", time.min, time.max)),
        );
        let failed = if self.failures.is_empty() { String::new() } else { format!("  {} failed", self.failures.len()) };
        format!(
            "{:<18} {:<5} {:<13} {seconds:>7} {spread:>13} {:>6} {:>9} {:>10} {:>7} {:>8} {:>8} {:>9} {:>10}{failed}",
            self.page,
            self.way.to_string(),
            self.setup,
            share(self.ratio_time),
            number(self.bytes_up),
            number(self.bytes_down),
            share(self.ratio_bytes),
            number(self.packets_up),
            number(self.packets_down),
            number(self.loader_up),
            number(self.loader_down),
        )
    }
}

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<18} {:<5} {:<13} {:>7} {:>13} {:>6} {:>9} {:>10} {:>7} {:>8} {:>8} {:>9} {:>10}\n",
            "page",
            "way",
            "setup",
            "seconds",
            "min-max",
            "% time",
            "bytes up",
            "down",
            "% bytes",
            "packets",
            "down",
            "loader up",
            "down"
        );
        for row in &self.rows {
            out += &row.line();
            out.push('\n');
        }
        let mut known: Vec<_> = self.rows.iter().map(|row| (row.page.as_str(), row.known)).collect();
        known.dedup();
        for (page, known) in known {
            let _ = writeln!(out, "{page}: the loader knows {known} from the start");
        }
        let state = if self.warm { "the page once before" } else { "nothing before: new circuit, new session" };
        let rate = self.background.bytes_per_s;
        let _ =
            writeln!(out, "medians of {} passes; {state}; tor's own traffic {rate:.0} B/s on the link", self.passes);
        for row in &self.rows {
            for failure in &row.failures {
                let _ = writeln!(out, "failed: {} ({}), {}: {failure}", row.page, row.way, row.setup);
            }
        }
        if let Some(trouble) = &self.trouble {
            let _ = writeln!(out, "caution: {trouble}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(time_s: f64, bytes: u64) -> Loaded {
        Loaded {
            time_s,
            bytes_up: bytes,
            bytes_down: bytes * 3,
            packets_up: 5,
            packets_down: 7,
            loader_up: 1,
            loader_down: 2,
            connections: 6,
            requests: 101,
        }
    }

    fn plan() -> Plan {
        Plan {
            instance: "t".into(),
            tandem: "tandem".into(),
            pages: vec!["p".into()],
            ways: vec![Way::Exit],
            sessions: vec!["h2".parse().expect("spoken")],
            in_flight: vec![100],
            passes: 3,
            discovery: None,
            warm: false,
            optimistic: false,
            client_arguments: Vec::new(),
        }
    }

    #[test]
    fn compares_medians_and_tells_failures() {
        let pair = Setup::Pair { session: "h2".parse().expect("spoken"), in_flight: 100 };
        let setups = vec![Setup::Plain, pair];
        let subject = Subject { page: "p".into(), way: Way::Exit, discovery: Discovery::List, setups };
        let plain = vec![Ok(loaded(10.0, 100)), Ok(loaded(8.0, 100)), Ok(loaded(30.0, 100))];
        let ours = vec![Ok(loaded(1.0, 70)), Err("no answer".to_owned()), Ok(loaded(2.0, 70))];
        let background = Background { bytes_per_s: 12.0 };
        let report = report(&plan(), &[subject], vec![vec![plain, ours]], background, None);
        assert_eq!(report.rows[0].ratio_time, Some(1.0));
        assert_eq!(report.rows[1].time_s.expect("two loads").median, 1.5);
        assert_eq!(report.rows[1].ratio_time, Some(0.15));
        assert_eq!(report.rows[1].ratio_bytes, Some(0.7));
        let table = report.table();
        assert!(table.contains("15.0") && table.contains("70.0") && table.contains("1 failed"), "{table}");
        assert!(table.contains("failed: p (exit), h2 x100: no answer"), "{table}");
    }

    #[test]
    fn nothing_loaded_is_no_number() {
        let subject =
            Subject { page: "p".into(), way: Way::Onion, discovery: Discovery::Triggers, setups: vec![Setup::Plain] };
        let background = Background { bytes_per_s: 0.0 };
        let report = report(&plan(), &[subject], vec![vec![vec![Err("down".to_owned())]]], background, None);
        assert!(report.rows[0].time_s.is_none() && report.rows[0].ratio_time.is_none());
        assert!(report.table().contains("failed: p (onion), HTTP/1.1 x6: down"));
    }
}
