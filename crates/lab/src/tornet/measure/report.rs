//! The results: a row per page, way and setup, compared with plain HTTP/1.1 and with the pair
//! without push in the same run.

use std::fmt::Write as _;

use serde::Serialize;

use super::load::{ExitLink, LoadedPage};
use super::pushes::Pushes;
use super::verdict::{MeasureVerdict, verdicts};
use super::{MeasurePlan, MeasureSetup, MeasuredLoads, MeasuredPage, PagePlace};
use tandem_net::stats::{Summary, median};
use tandem_web::loader::Discovery;

/// A whole measurement.
#[derive(Clone, Debug, Serialize)]
pub struct MeasureReport {
    /// A row per page, way and setup.
    pub rows: Vec<MeasureRow>,
    /// The verdicts on push, by setup.
    pub verdicts: Vec<MeasureVerdict>,
    /// The background traffic of tor on the client's link; it is part of all figures of the link.
    pub background: Background,
    /// Turns that each setup had.
    pub passes: usize,
    /// Visits of other users before the first load of a visited site.
    pub visits: usize,
    /// True if circuit and session had carried the page before.
    pub warm: bool,
    /// The resources that the loader knew from the start.
    pub known: &'static str,
    /// Further arguments of the client.
    pub client_arguments: Vec<String>,
    /// The reason to distrust the figures.
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
pub struct MeasureRow {
    /// The page.
    pub page: String,
    /// Through the exit or from the onion service.
    pub way: PagePlace,
    /// The setup.
    pub setup: String,
    /// With push: the setup that differs by it alone.
    pub without_push: Option<String>,
    /// Median, spread and the like; none if every load failed.
    pub time_s: Option<Summary>,
    /// Median time to the first byte of the first answer.
    pub first_byte_s: Option<f64>,
    /// Time as a share of plain HTTP/1.1's.
    pub ratio_time: Option<f64>,
    /// With push: time as a share of the same without.
    pub ratio_without_push: Option<f64>,
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
    /// IP bytes from middle relay to exit.
    pub exit_bytes_up: Option<f64>,
    /// And back.
    pub exit_bytes_down: Option<f64>,
    /// IP packets from middle relay to exit.
    pub exit_packets_up: Option<f64>,
    /// And back.
    pub exit_packets_down: Option<f64>,
    /// Bytes that the loader wrote.
    pub loader_up: Option<f64>,
    /// Bytes that it read.
    pub loader_down: Option<f64>,
    /// Pushes that were there when they were asked for.
    pub used: Option<f64>,
    /// Pushes that were still arriving when they were requested.
    pub late: Option<f64>,
    /// Pushes, or early requests of a client without a gateway, that no request took.
    pub unused: Option<f64>,
    /// Bytes of unrequested bodies, as a share of all received bytes.
    pub waste: Option<f64>,
    /// Every load that succeeded, in order.
    pub loads: Vec<LoadedPage>,
    /// The errors of the loads that failed.
    pub failures: Vec<String>,
}

/// Compares. `loads` by subject, setup and pass.
pub(super) fn report(
    plan: &MeasurePlan,
    subjects: &[MeasuredPage],
    loads: Vec<MeasuredLoads>,
    background: Background,
    trouble: Option<String>,
) -> MeasureReport {
    let mut rows = Vec::new();
    for (subject, loads) in subjects.iter().zip(loads) {
        let own: Vec<MeasureRow> = subject
            .setups
            .iter()
            .zip(loads)
            .map(|(&setup, loads)| row(subject, setup, loads))
            .collect();
        let compared = own.iter().map(|row| row.clone().beside(&own));
        rows.extend(compared);
    }
    MeasureReport {
        verdicts: verdicts(&rows),
        rows,
        background,
        passes: plan.passes,
        visits: plan.visits,
        warm: plan.warm,
        known: match plan.discovery {
            Discovery::List => "everything",
            Discovery::Triggers => "the document",
        },
        client_arguments: plan.client_arguments.clone(),
        trouble,
    }
}

fn row(
    subject: &MeasuredPage,
    setup: MeasureSetup,
    loads: Vec<Result<LoadedPage, String>>,
) -> MeasureRow {
    let (mut good, mut failures) = (Vec::new(), Vec::new());
    for load in loads {
        match load {
            Ok(load) => good.push(load),
            Err(error) => failures.push(error),
        }
    }
    let middle =
        |value: fn(&LoadedPage) -> f64| median(&good.iter().map(value).collect::<Vec<_>>());
    let exit = |value: fn(ExitLink) -> u64| {
        median(
            &good
                .iter()
                .filter_map(|load| Some(value(load.exit?) as f64))
                .collect::<Vec<_>>(),
        )
    };
    let is_early = setup.is_early();
    let without_push = setup.without_push().filter(|_| is_early);
    let pushes = |value: fn(Pushes) -> f64| {
        median(
            &good
                .iter()
                .filter_map(|load| load.pushes.filter(|_| is_early).map(value))
                .collect::<Vec<_>>(),
        )
    };
    MeasureRow {
        page: subject.name.clone(),
        way: subject.way,
        setup: setup.to_string(),
        without_push: without_push.map(|setup| setup.to_string()),
        time_s: Summary::of(&good.iter().map(|load| load.time_s).collect::<Vec<_>>()),
        first_byte_s: middle(|load| load.first_byte_s),
        ratio_time: None,
        ratio_without_push: None,
        bytes_up: middle(|load| load.bytes_up as f64),
        bytes_down: middle(|load| load.bytes_down as f64),
        ratio_bytes: None,
        packets_up: middle(|load| load.packets_up as f64),
        packets_down: middle(|load| load.packets_down as f64),
        exit_bytes_up: exit(|link| link.bytes_up),
        exit_bytes_down: exit(|link| link.bytes_down),
        exit_packets_up: exit(|link| link.packets_up),
        exit_packets_down: exit(|link| link.packets_down),
        loader_up: middle(|load| load.loader_up as f64),
        loader_down: middle(|load| load.loader_down as f64),
        used: pushes(|pushes| pushes.used as f64),
        late: pushes(|pushes| pushes.late as f64),
        unused: pushes(|pushes| pushes.unused() as f64),
        waste: pushes(Pushes::waste),
        loads: good,
        failures,
    }
}

/// A column: its heading, its width and the function that formats a cell.
type Column = (&'static str, usize, fn(&MeasureRow) -> String);

const COLUMNS: [Column; 17] = [
    ("seconds", 7, |row| {
        row.time_s
            .map_or_else(nothing, |time| format!("{:.2}", time.median))
    }),
    ("min-max", 13, |row| {
        row.time_s
            .map_or_else(nothing, |time| format!("{:.2}-{:.2}", time.min, time.max))
    }),
    ("first", 5, |row| {
        row.first_byte_s
            .map_or_else(nothing, |time| format!("{time:.2}"))
    }),
    ("% HTTP", 6, |row| share(row.ratio_time)),
    ("% pair", 6, |row| share(row.ratio_without_push)),
    ("bytes up", 9, |row| number(row.bytes_up)),
    ("down", 10, |row| number(row.bytes_down)),
    ("% bytes", 7, |row| share(row.ratio_bytes)),
    ("packets", 7, |row| number(row.packets_up)),
    ("down", 7, |row| number(row.packets_down)),
    ("exit up", 9, |row| number(row.exit_bytes_up)),
    ("down", 10, |row| number(row.exit_bytes_down)),
    ("packets", 7, |row| number(row.exit_packets_up)),
    ("down", 7, |row| number(row.exit_packets_down)),
    ("used+late", 10, |row| match row.used.zip(row.late) {
        Some((used, late)) => format!("{used:.0}+{late:.0}"),
        None => nothing(),
    }),
    ("unused", 6, |row| number(row.unused)),
    ("% waste", 7, |row| share(row.waste)),
];

fn nothing() -> String {
    "-".into()
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(nothing, |value| format!("{value:.0}"))
}

fn share(value: Option<f64>) -> String {
    value.map_or_else(nothing, |value| format!("{:.1}", value * 100.0))
}

impl MeasureRow {
    fn bytes(&self) -> Option<f64> {
        Some(self.bytes_up? + self.bytes_down?)
    }

    fn seconds(&self) -> Option<f64> {
        self.time_s.map(|time| time.median)
    }

    /// Compares it with other rows of the same page, the first of which is plain HTTP/1.1.
    fn beside(mut self, rows: &[Self]) -> Self {
        let ratio =
            |own: Option<f64>, other: Option<f64>| Some(own? / other.filter(|other| *other > 0.0)?);
        let base = rows
            .iter()
            .find(|row| Some(&row.setup) == self.without_push.as_ref());
        self.ratio_without_push = ratio(self.seconds(), base.and_then(Self::seconds));
        if let Some(plain) = rows.first() {
            self.ratio_time = ratio(self.seconds(), plain.seconds());
            self.ratio_bytes = ratio(self.bytes(), plain.bytes());
        }
        self
    }

    fn line(&self) -> String {
        let mut line = format!(
            "{:<24} {:<5} {:<22}",
            self.page,
            self.way.to_string(),
            self.setup
        );
        for (_, width, value) in COLUMNS {
            let _ = write!(line, " {:>width$}", value(self));
        }
        if !self.failures.is_empty() {
            let _ = write!(line, "  {} failed", self.failures.len());
        }
        line
    }
}

impl MeasureReport {
    /// Formats the results as text.
    pub fn table(&self) -> String {
        let mut out = format!("{:<24} {:<5} {:<22}", "page", "way", "setup");
        for (heading, width, _) in COLUMNS {
            let _ = write!(out, " {heading:>width$}");
        }
        out.push('\n');
        for row in &self.rows {
            out += &row.line();
            out.push('\n');
        }
        let state = if self.warm {
            "the page once before"
        } else {
            "nothing before: new circuit, new session"
        };
        let Self {
            passes,
            visits,
            known,
            ..
        } = self;
        let rate = self.background.bytes_per_s;
        let _ = writeln!(
            out,
            "medians of {passes} passes; {state}; \"first\": the first byte; the loader knows {known} from the start; \"visited\": by at least \
             {visits} other users before; tor's own traffic {rate:.0} B/s on the link"
        );
        for verdict in &self.verdicts {
            out += &verdict.text();
        }
        for row in &self.rows {
            for failure in &row.failures {
                let _ = writeln!(
                    out,
                    "failed: {} ({}), {}: {failure}",
                    row.page, row.way, row.setup
                );
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
    use super::super::{PushMode, SoloVisit};
    use super::*;

    fn loaded(time_s: f64, bytes: u64) -> LoadedPage {
        LoadedPage {
            time_s,
            first_byte_s: time_s / 4.0,
            bytes_up: bytes,
            bytes_down: bytes * 3,
            packets_up: 5,
            packets_down: 7,
            exit: Some(ExitLink {
                bytes_up: bytes + 1,
                bytes_down: bytes * 4,
                packets_up: 6,
                packets_down: 8,
            }),
            loader_up: 1,
            loader_down: 2,
            connections: 6,
            requests: 101,
            pushes: None,
        }
    }

    fn pushed(time_s: f64, wasted: u64) -> LoadedPage {
        let pushes = Pushes {
            visits_before: 4,
            received: 30,
            used: 20,
            late: 5,
            bytes_received: 500 + wasted,
            bytes_used: 500,
            body_bytes: 1000,
        };
        LoadedPage {
            pushes: Some(pushes),
            ..loaded(time_s, 70)
        }
    }

    fn plan() -> MeasurePlan {
        MeasurePlan {
            instance: "t".into(),
            tandem: "tandem".into(),
            pages: vec!["p".into()],
            ways: vec![PagePlace::Exit],
            sessions: vec!["h2".parse().expect("spoken")],
            in_flight: vec![6],
            pushes: vec![PushMode::Off, PushMode::Visited],
            solo: Vec::new(),
            bounds: Vec::new(),
            bound_connections: 64,
            visits: 4,
            passes: 3,
            discovery: Discovery::Triggers,
            warm: false,
            optimistic: false,
            har: None,
            client_arguments: Vec::new(),
        }
    }

    fn pair(push: PushMode) -> MeasureSetup {
        MeasureSetup::Pair {
            session: "h2".parse().expect("spoken"),
            in_flight: 6,
            push,
        }
    }

    fn subject(name: &str, setups: Vec<MeasureSetup>) -> MeasuredPage {
        MeasuredPage {
            page: "/x/p.json".into(),
            name: name.into(),
            way: PagePlace::Exit,
            discovery: Discovery::Triggers,
            setups,
        }
    }

    const QUIET: Background = Background { bytes_per_s: 12.0 };

    #[test]
    fn compares_medians_and_tells_failures() {
        let subject = subject("p", vec![MeasureSetup::Plain, pair(PushMode::Off)]);
        let plain = vec![
            Ok(loaded(10.0, 100)),
            Ok(loaded(8.0, 100)),
            Ok(loaded(30.0, 100)),
        ];
        let ours = vec![
            Ok(loaded(1.0, 70)),
            Err("no answer".to_owned()),
            Ok(loaded(2.0, 70)),
        ];
        let report = report(&plan(), &[subject], vec![vec![plain, ours]], QUIET, None);
        assert_eq!(report.rows[0].ratio_time, Some(1.0));
        assert_eq!(report.rows[1].time_s.expect("two loads").median, 1.5);
        assert_eq!(
            (report.rows[1].ratio_time, report.rows[1].first_byte_s),
            (Some(0.15), Some(0.375))
        );
        assert_eq!(report.rows[1].ratio_bytes, Some(0.7));
        assert_eq!(
            (
                report.rows[1].exit_bytes_up,
                report.rows[1].exit_packets_down
            ),
            (Some(71.0), Some(8.0))
        );
        assert_eq!(
            (report.rows[1].waste, report.rows[1].ratio_without_push),
            (None, None)
        );
        let table = report.table();
        assert!(
            table.contains("15.0") && table.contains("70.0") && table.contains("1 failed"),
            "{table}"
        );
        assert!(
            table.contains("failed: p (exit), h2 x6: no answer"),
            "{table}"
        );
        assert!(report.verdicts.is_empty());
    }

    #[test]
    fn push_is_judged_beside_the_pair_without_it() {
        let setups = vec![
            MeasureSetup::Plain,
            pair(PushMode::Off),
            pair(PushMode::Visited),
        ];
        let subjects = [subject("fast", setups.clone()), subject("slow", setups)];
        let fast = vec![
            vec![Ok(loaded(10.0, 9))],
            vec![Ok(loaded(4.0, 9)), Ok(loaded(4.0, 9))],
            vec![Ok(pushed(2.0, 0))],
        ];
        let slow = vec![
            vec![Ok(loaded(10.0, 9))],
            vec![Ok(loaded(2.0, 9)), Ok(loaded(4.0, 9))],
            vec![Ok(pushed(4.5, 1000))],
        ];
        let report = report(&plan(), &subjects, vec![fast, slow], QUIET, None);
        assert_eq!(report.rows[2].ratio_without_push, Some(0.5));
        assert_eq!(
            (report.rows[5].ratio_without_push, report.rows[5].waste),
            (Some(1.5), Some(0.5))
        );
        let verdict = &report.verdicts[0];
        assert_eq!(
            (verdict.setup.as_str(), verdict.pages),
            ("h2 x6 push, visited", 2)
        );
        assert_eq!(
            (verdict.ratio_without_push, verdict.ratio_plain),
            (Some(1.0), Some(0.325))
        );
        assert!((verdict.waste - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(
            (&verdict.slower, &verdict.wasteful),
            (
                &vec!["slow (exit)".to_owned()],
                &vec!["slow (exit)".to_owned()]
            )
        );
        let table = report.table();
        assert!(
            table.contains("20+5") && table.contains("slower than without push: slow (exit)"),
            "{table}"
        );
    }

    #[test]
    fn solo_is_judged_beside_plain_http() {
        let visit = SoloVisit::First;
        let subject = subject("p", vec![MeasureSetup::Plain, MeasureSetup::Solo { visit }]);
        let loads = vec![vec![Ok(loaded(10.0, 9))], vec![Ok(pushed(4.0, 0))]];
        let report = report(&plan(), &[subject], vec![loads], QUIET, None);
        let row = &report.rows[1];
        assert_eq!((row.unused, row.ratio_time), (Some(5.0), Some(0.4)));
        assert_eq!((&row.without_push, row.ratio_without_push), (&None, None));
        let verdict = &report.verdicts[0];
        assert_eq!(
            (verdict.setup.as_str(), verdict.ratio_plain),
            ("solo, first", Some(0.4))
        );
        let table = report.table();
        assert!(
            table.contains("solo, first, medians over 1 pages: - of the time without push"),
            "{table}"
        );
    }

    #[test]
    fn a_page_within_the_spread_is_not_slower() {
        let subject = subject(
            "p",
            vec![
                MeasureSetup::Plain,
                pair(PushMode::Off),
                pair(PushMode::First),
            ],
        );
        let without = vec![Ok(loaded(2.0, 9)), Ok(loaded(4.0, 9))];
        let with = vec![Ok(pushed(3.5, 0)), Ok(pushed(6.0, 0))];
        let report = report(
            &plan(),
            &[subject],
            vec![vec![Vec::new(), without, with]],
            QUIET,
            None,
        );
        assert!(report.rows[2].ratio_without_push.expect("both have times") > 1.5);
        assert!(report.verdicts[0].slower.is_empty());
    }

    #[test]
    fn nothing_loaded_is_no_number() {
        let subject = MeasuredPage {
            way: PagePlace::Onion,
            ..subject("p", vec![MeasureSetup::Plain])
        };
        let report = report(
            &plan(),
            &[subject],
            vec![vec![vec![Err("down".to_owned())]]],
            QUIET,
            None,
        );
        assert!(report.rows[0].time_s.is_none() && report.rows[0].ratio_time.is_none());
        assert!(
            report
                .table()
                .contains("failed: p (onion), HTTP/1.1 x6: down")
        );
    }
}
