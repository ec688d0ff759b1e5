//! The report of a chain experiment: one HTML file without scripts, with the tables of the document
//! beside the measured ones. The charts are SVG within it.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use tandem_net::stats::Summary;

use super::file::{ChainStudy, ChainTimes, Figures, StudyTable as TableOfStudy};
use super::run::{self, ChainLine, ChainOutcome};
use super::trial::ChainFigures;
use crate::experiment::ExperimentError;
use crate::experiment::report::STYLE;
use crate::experiment::report::table::Table;
use crate::experiment::report::text::{escaped, number, signed};
use crate::experiment::results::EXPERIMENT;

/// The colours of set-ups in charts.
const COLOURS: [&str; 6] = [
    "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377",
];

/// Returns the report of the results in a directory.
///
/// # Errors
/// Fails if a file cannot be read or does not fit.
pub fn of_directory(directory: &Path) -> Result<String, ExperimentError> {
    let file = directory.join(EXPERIMENT);
    let text = std::fs::read_to_string(&file).map_err(ExperimentError::file("read", &file))?;
    let study = ChainStudy::parse(&text)?;
    Ok(html(&study, &run::read(directory)?))
}

/// Returns the report of an experiment's results.
pub fn html(study: &ChainStudy, lines: &[ChainLine]) -> String {
    let is_full = |line: &ChainLine| matches!(line, ChainLine::Trial(record) if record.trial.times == study.full_times);
    let times = if lines.iter().any(is_full) {
        &study.full_times
    } else {
        &study.times
    };
    let report = ChainReport {
        study,
        times,
        lines,
    };
    let title = escaped(&study.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>{title}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<p>After {}. {}</p>\n",
        escaped(&study.source),
        escaped(&study.about)
    );
    for table in &study.tables {
        out += &report.table(table);
    }
    out += &report.runs();
    out + "</body></html>\n"
}

struct ChainReport<'a> {
    study: &'a ChainStudy,
    /// The phases of the trials that count: the longer ones if there are any.
    times: &'a ChainTimes,
    lines: &'a [ChainLine],
}

/// The figures of a set-up in a cell over all passes.
struct ReportFigure {
    throughput: Option<Summary>,
    delay: Option<Summary>,
    base: Option<Summary>,
    /// The means of the medians and of the 99th percentiles.
    p50: Option<f64>,
    p99: Option<f64>,
    /// The mean share of dropped packets.
    dropped: f64,
    /// The circuits that carried data until the end, and all circuits.
    alive: (usize, usize),
    failed: usize,
}

impl ReportFigure {
    fn of(measured: &[&ChainFigures], failed: usize) -> Self {
        let summary = |pick: &dyn Fn(&ChainFigures) -> Option<f64>| {
            let values: Vec<f64> = measured.iter().filter_map(|it| pick(it)).collect();
            Summary::of(&values)
        };
        let beside = |pick: fn(&super::trial::ChainDelays) -> f64| {
            summary(&|it| it.beside.as_ref().map(pick)).map(|all| all.mean)
        };
        Self {
            throughput: summary(&|it| Some(it.throughput())),
            delay: summary(&|it| it.beside.map(|delays| delays.mean)),
            base: summary(&|it| it.base.map(|delays| delays.mean)),
            p50: beside(|delays| delays.p50),
            p99: beside(|delays| delays.p99),
            dropped: summary(&|it| Some(it.dropped)).map_or(0.0, |all| all.mean),
            alive: (
                measured.iter().map(|it| it.alive()).sum(),
                measured.iter().map(|it| it.circuits.len()).sum(),
            ),
            failed,
        }
    }
}

impl ChainReport<'_> {
    /// Returns the figures of a set-up in a cell. Results of other versions of either do not count.
    fn figure(&self, setup: &str, cell: &str) -> ReportFigure {
        let (mut measured, mut failed) = (Vec::new(), 0);
        for line in self.lines {
            let ChainLine::Trial(record) = line else {
                continue;
            };
            let trial = &record.trial;
            let is_current = trial.setup.name == setup
                && trial.cell.name == cell
                && trial.link == self.study.link
                && trial.times == *self.times
                && self.study.setups.contains(&trial.setup)
                && self.study.cells.contains(&trial.cell);
            match &record.outcome {
                _ if !is_current => {}
                ChainOutcome::Measured(figures) => measured.push(figures),
                ChainOutcome::Failed(_) => failed += 1,
            }
        }
        ReportFigure::of(&measured, failed)
    }

    fn table(&self, table: &TableOfStudy) -> String {
        let mut out = format!("<h2>{}</h2>\n", escaped(&table.title));
        if !table.about.is_empty() {
            let _ = writeln!(out, "<p>{}</p>", escaped(&table.about));
        }
        out += &self.charts(table);
        let heads = [
            "network",
            "set-up",
            "throughput, kB/s",
            "change",
            "delay, ms",
            "median / 99 %",
            "change",
            "delay without bulk",
            "circuits to the end",
            "dropped",
        ];
        let mut rows = Table::new(&heads).text_columns(&[1]);
        for cell in &table.cells {
            for setup in &self.study.setups {
                let own = self.figure(&setup.name, cell);
                let first = self.figure(&setup.name, &table.cells[0]);
                rows.row(vec![
                    escaped(self.label(cell)),
                    escaped(setup.label()),
                    mean(own.throughput),
                    change(own.throughput, first.throughput),
                    mean(own.delay),
                    own.p50.zip(own.p99).map_or_else(
                        || "–".into(),
                        |(p50, p99)| format!("{} / {}", number(p50), number(p99)),
                    ),
                    change(own.delay, first.delay),
                    mean(own.base),
                    circuits(&own),
                    format!("{:.3} %", own.dropped * 100.0),
                ]);
            }
        }
        let _ = writeln!(
            out,
            "<p><small>Means of the passes, ± the 95 % interval where there are several. Changes are \
             from “{}”.</small></p>\n{}",
            escaped(self.label(&table.cells[0])),
            rows.html()
        );
        out + &self.documents(table)
    }

    /// Returns the figures of the document beside those of the set-ups that correspond.
    fn documents(&self, table: &TableOfStudy) -> String {
        if table.documents.is_empty() {
            return String::new();
        }
        let heads = [
            "document",
            "network",
            "throughput, kB/s",
            "change",
            "delay, ms",
            "change",
            "without bulk",
            "our set-up",
            "throughput",
            "change",
            "delay",
            "change",
            "without bulk",
        ];
        let mut rows = Table::new(&heads).text_columns(&[1, 7]);
        for figures in &table.documents {
            let first = |it: &&Figures| it.what == figures.what && it.cell == table.cells[0];
            let first = table.documents.iter().find(first);
            let theirs = |pick: fn(&Figures) -> Option<f64>| {
                let own = pick(figures);
                let ratio = own
                    .zip(first.and_then(pick))
                    .map(|(own, first)| own / first);
                let change = ratio.filter(|_| figures.cell != table.cells[0]);
                [
                    own.map_or_else(|| "–".into(), number),
                    change.map_or_else(|| "–".into(), |it| signed((it - 1.0) * 100.0)),
                ]
            };
            let own = self.figure(&figures.setup, &figures.cell);
            let base = self.figure(&figures.setup, &table.cells[0]);
            let label = self.study.setups.iter().find(|it| it.name == figures.setup);
            let [throughput, throughput_change] = theirs(|it| it.throughput);
            let [delay, delay_change] = theirs(|it| it.delay);
            let [without, _] = theirs(|it| it.base);
            rows.row(vec![
                escaped(&figures.what),
                escaped(self.label(&figures.cell)),
                throughput,
                throughput_change,
                delay,
                delay_change,
                without,
                escaped(label.map_or("", |it| it.label())),
                mean(own.throughput),
                change(own.throughput, base.throughput),
                mean(own.delay),
                change(own.delay, base.delay),
                mean(own.base),
            ]);
        }
        format!(
            "<h3>The document's figures beside ours</h3>\n{}",
            rows.html()
        )
    }

    fn label<'b>(&'b self, cell: &'b str) -> &'b str {
        let found = self.study.cells.iter().find(|it| it.name == cell);
        found.map_or(cell, |it| it.label())
    }

    fn charts(&self, table: &TableOfStudy) -> String {
        let chart = |title: &str, pick: fn(&ReportFigure) -> Option<Summary>| {
            let row = |cell: &String| {
                let bar = |setup: &super::file::ChainSetup| {
                    pick(&self.figure(&setup.name, cell)).map(|all| all.mean)
                };
                let bars = self.study.setups.iter().map(bar).collect();
                (self.label(cell).to_owned(), bars)
            };
            let rows: Vec<_> = table.cells.iter().map(row).collect();
            let labels: Vec<_> = self.study.setups.iter().map(|it| it.label()).collect();
            bars(title, &labels, &rows)
        };
        chart("Throughput of all circuits, kB/s", |it| it.throughput)
            + &chart("Mean delay beside bulk, ms", |it| it.delay)
    }

    /// Describes the runs of the results, and the state of the machine.
    fn runs(&self) -> String {
        let mut out = String::from("<h2>How this came about</h2>\n<ul>\n");
        for line in self.lines {
            let ChainLine::Run(run) = line else { continue };
            let text = |path: &str| match run.pointer(path) {
                Some(Value::String(text)) => escaped(text),
                Some(Value::Array(parts)) => {
                    let parts: Vec<&str> = parts.iter().filter_map(Value::as_str).collect();
                    escaped(&parts.join(" "))
                }
                Some(value) => escaped(&value.to_string()),
                None => "?".into(),
            };
            let _ = writeln!(
                out,
                "<li><code>{}</code>, {}, tandem-lab {}, seed {}; Linux {}, {} × {}, load {} at the \
                 start</li>",
                text("/command"),
                text("/started"),
                text("/version"),
                text("/seed"),
                text("/machine/kernel"),
                text("/machine/processors"),
                text("/machine/processor"),
                text("/machine/load"),
            );
        }
        out += "</ul>\n";
        let measured = self.lines.iter().filter_map(|line| match line {
            ChainLine::Trial(record) => match &record.outcome {
                ChainOutcome::Measured(measured) => Some(measured),
                ChainOutcome::Failed(_) => None,
            },
            ChainLine::Run(_) => None,
        });
        let (late, load): (Vec<f64>, Vec<f64>) = measured.map(|it| (it.late_ms, it.load)).unzip();
        if let Some((late, load)) = Summary::of(&late).zip(Summary::of(&load)) {
            let _ = writeln!(
                out,
                "<p>{} measurements. The emulator was {} ms late at the 99th percentile of the median \
                 measurement, and {} ms at that of the worst. The load of the machine was {} to \
                 {}.</p>",
                late.count,
                number(late.median),
                number(late.max),
                number(load.min),
                number(load.max),
            );
        }
        out
    }
}

fn mean(all: Option<Summary>) -> String {
    match all {
        None => "–".into(),
        Some(all) if all.count > 1 => format!("{} ± {}", number(all.mean), number(all.interval)),
        Some(all) => number(all.mean),
    }
}

fn change(own: Option<Summary>, first: Option<Summary>) -> String {
    let ratio = own.zip(first).map(|(own, first)| own.mean / first.mean);
    let ratio = ratio.filter(|ratio| ratio.is_finite());
    ratio.map_or_else(|| "–".into(), |ratio| signed((ratio - 1.0) * 100.0))
}

fn circuits(figure: &ReportFigure) -> String {
    let (alive, all) = figure.alive;
    let mut out = format!("{alive} of {all}");
    if figure.failed > 0 {
        let failed = figure.failed;
        let _ = write!(out, "<br/><span class=\"loses\">{failed} failed</span>");
    }
    out
}

/// Draws horizontal bars: a group for each row, and a bar for each label.
fn bars(title: &str, labels: &[&str], rows: &[(String, Vec<Option<f64>>)]) -> String {
    const LEFT: f64 = 190.0;
    const WIDTH: f64 = 300.0;
    const BAR: usize = 14;
    let values = rows.iter().flat_map(|(_, values)| values.iter().flatten());
    let most = values.copied().fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let group = labels.len() * BAR + 10;
    let height = 24 + rows.len() * group + labels.len() * 16;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"560\" height=\"{height}\" \
         font-size=\"12\" font-family=\"sans-serif\"><text x=\"0\" y=\"14\">{}</text>\n",
        escaped(title)
    );
    for (number_of_row, (label, values)) in rows.iter().enumerate() {
        let top = 24 + number_of_row * group;
        let _ = writeln!(
            out,
            "<text x=\"0\" y=\"{}\">{}</text>",
            top + 12,
            escaped(label)
        );
        for (at, value) in values.iter().enumerate() {
            let Some(value) = value else { continue };
            let (y, width) = (top + at * BAR, value / most * WIDTH);
            let colour = COLOURS[at % COLOURS.len()];
            let _ = writeln!(
                out,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" font-size=\"10\">{}</text>",
                BAR - 2,
                LEFT + width + 4.0,
                y + 10,
                number(*value)
            );
        }
    }
    for (at, label) in labels.iter().enumerate() {
        let y = 24 + rows.len() * group + at * 16;
        let colour = COLOURS[at % COLOURS.len()];
        let _ = writeln!(
            out,
            "<rect x=\"0\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"16\" \
             y=\"{}\">{}</text>",
            y + 10,
            escaped(label)
        );
    }
    out + "</svg>\n"
}
