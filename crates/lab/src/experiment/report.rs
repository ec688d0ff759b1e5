//! Reports: one HTML file without scripts, readable as XML too. Plots are SVG within it.
//!
//! - `contest`: the pair against its peers. `spreads`: the difference between passes. `tornet`: the
//!   results of another measurement.
//! - `plot`: lines with the spread of passes, and heat maps. `table`: rows and cells. `text`:
//!   escaping and numbers.

mod contest;
mod plot;
mod spreads;
pub(crate) mod table;
pub(crate) mod text;
mod tornet;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use self::plot::{Heat, Plot, PlotLine as Curve};
use self::table::Table;
use self::text::{escaped, number, percent, signed, spread};
use super::ExperimentError;
use super::file::{Experiment, Measure, Sweep};
use super::point::{Axis, Point};
use super::results::{self, Line, Measured};
use super::summary::{Cells, Spread};
use tandem_net::stats::{self, Summary};

/// Other results that a report takes in, if they lie beside its own: the corpus over the private
/// Tor network.
pub const TORNET: &str = "tornet.json";

/// The style sheet of reports.
pub(crate) const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:.8em 0}td,th{padding:.2em .6em;border-bottom:1px solid #ddd;text-align:right;\
    vertical-align:top;white-space:nowrap}td:first-child,th,td.t{white-space:normal}td:first-child,th:first-child,td.t,th.t{text-align:left}svg{margin:.4em 1em .4em 0;vertical-align:top}\
    .wins{color:#116611}.loses{color:#aa1111}.even{color:#666}code{background:#f3f3f3}small{color:#555}";

/// Returns a report of the results in a directory.
pub fn of_directory(directory: &Path) -> Result<String, ExperimentError> {
    let file = directory.join(results::EXPERIMENT);
    let (experiment, _) = Experiment::open(&file)?;
    let lines = results::read(directory)?;
    let tornet = directory.join(TORNET);
    let tornet = if tornet.is_file() {
        let text =
            std::fs::read_to_string(&tornet).map_err(ExperimentError::file("read", &tornet))?;
        let wrong = |source| ExperimentError::Line {
            path: tornet.display().to_string(),
            line: 1,
            source,
        };
        Some(serde_json::from_str(&text).map_err(wrong)?)
    } else {
        None
    };
    Ok(html(&experiment, &lines, tornet.as_ref()))
}

/// A report of an experiment's results.
pub fn html(experiment: &Experiment, lines: &[Line], tornet: Option<&Value>) -> String {
    let report = ExperimentReport {
        experiment,
        cells: Cells::of(experiment, lines),
    };
    let title = escaped(&experiment.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>{title}</title><style>{STYLE}</style></head><body>\n\
         <h1>{title}</h1>\n"
    );
    let _ = writeln!(
        out,
        "<p>After {}. {}</p>",
        escaped(&experiment.source),
        escaped(&experiment.about)
    );
    out += &report.contest();
    for sweep in &experiment.sweeps {
        out += &report.sweep(sweep);
    }
    out += &report.spreads();
    out += &tornet.map_or_else(String::new, tornet::tor);
    out += &report.runs(lines);
    out + "</body></html>\n"
}

struct ExperimentReport<'a> {
    experiment: &'a Experiment,
    cells: Cells,
}

impl ExperimentReport<'_> {
    fn sweep(&self, sweep: &Sweep) -> String {
        let points = self.cells.points(self.experiment, sweep);
        if points.is_empty() && sweep.documents.is_empty() {
            return String::new();
        }
        let mut out = format!("<h2>{}</h2>\n", escaped(&sweep.title));
        if !sweep.about.is_empty() {
            let _ = writeln!(out, "<p>{}</p>", escaped(&sweep.about));
        }
        if points.is_empty() {
            return out + "<p>Not measured yet.</p>\n";
        }
        let common = common(&points);
        let _ = writeln!(
            out,
            "<p><small>At all points: {}.</small></p>",
            escaped(&shortened(&common).to_string())
        );
        out += &self.plots(sweep, &points);
        out += &self.times(sweep, &points, &common);
        out += &self.overall(sweep, &points);
        out += &self.traffic(sweep, &points, &common);
        out += &self.pushes(sweep, &points, &common);
        out + &self.documents(sweep)
    }

    /// Draws a plot, or heat map, for each combination of values of the axes that are neither x nor
    /// y.
    fn plots(&self, sweep: &Sweep, points: &[Point]) -> String {
        let inner: Vec<Axis> = [Some(sweep.x), sweep.y].into_iter().flatten().collect();
        let common = common(points);
        let panels: Vec<Point> = unique(points.iter().map(|point| point.without(&inner)));
        let mut out = String::new();
        for panel in panels {
            let own: Vec<&Point> = points
                .iter()
                .filter(|point| point.without(&inner) == panel)
                .collect();
            let differs = Axis::ALL
                .into_iter()
                .filter(|axis| common.get(*axis).is_none())
                .collect::<Vec<_>>();
            let title = shortened(&panel.only(&differs)).to_string();
            out += &match sweep.y {
                Some(y) => self.heat(sweep, y, &own, &title),
                None => self.lines(sweep, &own, &title),
            };
        }
        out + "\n"
    }

    fn lines(&self, sweep: &Sweep, points: &[&Point], title: &str) -> String {
        let label = |point: &&Point| shortened(point).get(sweep.x).unwrap_or_default().to_owned();
        let labels = unique(points.iter().map(label));
        let curve = |&setup: &usize| {
            let at = |point: &&Point| {
                let place = labels.iter().position(|own| *own == label(point))?;
                Some((place, self.cells.at(point, setup)?.seconds()?))
            };
            let points: Vec<(usize, Summary)> = points.iter().filter_map(at).collect();
            let name = self.experiment.setups[setup].label().to_owned();
            (!points.is_empty()).then_some(Curve {
                name,
                colour: setup,
                points,
            })
        };
        let curves = sweep.setups.iter().filter_map(curve).collect();
        Plot {
            title,
            x: sweep.x,
            labels,
            curves,
        }
        .svg()
    }

    fn heat(&self, sweep: &Sweep, y: Axis, points: &[&Point], title: &str) -> String {
        let label = |point: &Point, axis| shortened(point).get(axis).unwrap_or_default().to_owned();
        let columns = unique(points.iter().map(|point| label(point, sweep.x)));
        let rows = unique(points.iter().map(|point| label(point, y)));
        let mut cells = vec![vec![None; columns.len()]; rows.len()];
        for point in points {
            let place = (
                rows.iter().position(|row| *row == label(point, y)),
                columns
                    .iter()
                    .position(|column| *column == label(point, sweep.x)),
            );
            if let ((Some(row), Some(column)), Some(contest)) =
                (place, self.cells.contest(self.experiment, sweep, point))
            {
                cells[row][column] = Some(contest.gain.median * 100.0);
            }
        }
        Heat {
            title,
            x: sweep.x,
            y,
            columns,
            rows,
            cells,
        }
        .svg()
    }

    /// Seconds of every set-up at every point.
    fn times(&self, sweep: &Sweep, points: &[Point], common: &Point) -> String {
        let baseline = self.experiment.baseline;
        let mut table = Table::new(&self.heads("point", sweep));
        for point in points {
            let mut row = vec![name_of(point, common)];
            row.extend(
                sweep
                    .setups
                    .iter()
                    .map(|&setup| self.time(point, setup, baseline)),
            );
            table.row(row);
        }
        format!(
            "<h3>Seconds</h3>\n<p><small>Median of the passes (least–greatest), ± the 95 % interval of the mean where there are three \
             passes or more; then percent of {}, pass by pass.</small></p>\n{}",
            escaped(self.experiment.setups[baseline].label()),
            table.html()
        )
    }

    fn time(&self, point: &Point, setup: usize, baseline: usize) -> String {
        let Some(cell) = self.cells.at(point, setup) else {
            return "–".into();
        };
        let mut out = cell
            .seconds()
            .map_or_else(String::new, |seconds| spread(&seconds));
        if setup != baseline
            && let Some(gain) = self.cells.gain(point, setup, baseline)
        {
            let _ = write!(out, "<br/>{}", percent((1.0 - gain.median) * 100.0));
        }
        let troubled = cell
            .passes
            .values()
            .filter(|measured| measured.trouble.is_some())
            .count();
        if troubled > 0 {
            let _ = write!(out, "<br/><small>busy machine: {troubled}</small>");
        }
        if let Some(why) = cell.failed.first() {
            let _ = write!(
                out,
                "<br/><span class=\"loses\" title=\"{}\">{} failed</span>",
                escaped(why),
                cell.failed.len()
            );
        }
        out
    }

    fn heads(&self, first: &str, sweep: &Sweep) -> Vec<String> {
        let labels = sweep
            .setups
            .iter()
            .map(|&setup| escaped(self.experiment.setups[setup].label()));
        std::iter::once(first.to_owned()).chain(labels).collect()
    }

    /// Ratios to the baseline over all points.
    fn overall(&self, sweep: &Sweep, points: &[Point]) -> String {
        let baseline = self.experiment.baseline;
        let mut table = Table::new(&[
            "set-up",
            "points",
            "time: median",
            "least",
            "greatest",
            "points faster",
        ]);
        for &setup in sweep.setups.iter().filter(|&&setup| setup != baseline) {
            let gains = points
                .iter()
                .filter_map(|point| self.cells.gain(point, setup, baseline));
            let ratios: Vec<f64> = gains.map(|gain| (1.0 - gain.median) * 100.0).collect();
            let Some(all) = Summary::of(&ratios) else {
                continue;
            };
            let faster = ratios.iter().filter(|ratio| **ratio < 100.0).count();
            table.row(vec![
                escaped(self.experiment.setups[setup].label()),
                all.count.to_string(),
                percent(all.median),
                percent(all.min),
                percent(all.max),
                format!("{faster} of {}", all.count),
            ]);
        }
        if table.is_empty() {
            return String::new();
        }
        let baseline = escaped(self.experiment.setups[baseline].label());
        format!(
            "<h3>All points together, in percent of {baseline}</h3>\n{}",
            table.html()
        )
    }

    /// Bytes and packets on the link.
    fn traffic(&self, sweep: &Sweep, points: &[Point], common: &Point) -> String {
        let mut table = Table::new(&self.heads("point", sweep));
        for point in points {
            let mut row = vec![name_of(point, common)];
            row.extend(sweep.setups.iter().map(|&setup| {
                let cell = self.cells.at(point, setup);
                let median = |take: fn(&Measured) -> f64| cell?.summary(take).map(|all| all.median);
                let bytes = median(|m| m.bytes() as f64).map(|bytes| number(bytes / 1e3));
                let packets = median(|m| m.packets() as f64).map(|packets| format!("{packets:.0}"));
                let lost = median(|m| m.lost as f64).filter(|lost| *lost > 0.0);
                let lost = lost.map_or_else(String::new, |lost| format!(", {lost:.0} lost"));
                bytes.zip(packets).map_or_else(
                    || "–".into(),
                    |(b, p)| format!("{b} kB<br/>{p} packets{lost}"),
                )
            }));
            table.row(row);
        }
        format!("<h3>On the link, both ways</h3>\n{}", table.html())
    }

    /// Describes the share of pushed bodies that were requested, and the bytes that origins sent
    /// for unused pushes, which are the cost of push.
    fn pushes(&self, sweep: &Sweep, points: &[Point], common: &Point) -> String {
        let heads = [
            "point",
            "set-up",
            "bytes of the page",
            "pushed",
            "requested",
            "served unrequested",
            "extra requests at origins",
        ];
        let mut table = Table::new(&heads).text_columns(&[1]);
        for point in points {
            for &setup in &sweep.setups {
                let Some(cell) = self.cells.at(point, setup) else {
                    continue;
                };
                let pushed: Vec<&Measured> = cell
                    .passes
                    .values()
                    .filter(|measured| measured.push.is_some())
                    .collect();
                let median = |take: fn(&Measured) -> u64| {
                    stats::median(
                        &pushed
                            .iter()
                            .map(|measured| take(measured) as f64)
                            .collect::<Vec<_>>(),
                    )
                };
                let Some(body) = median(|m| m.body_bytes).filter(|body| *body > 0.0) else {
                    continue;
                };
                let part = |take| {
                    let bytes = median(take).unwrap_or_default();
                    format!("{bytes:.0} ({})", percent(bytes / body * 100.0))
                };
                table.row(vec![
                    name_of(point, common),
                    escaped(self.experiment.setups[setup].label()),
                    format!("{body:.0}"),
                    part(|m| m.push.unwrap_or_default().received),
                    part(|m| m.push.unwrap_or_default().used),
                    part(|m| m.served_bytes.saturating_sub(m.body_bytes)),
                    extra_requests(&pushed),
                ]);
            }
        }
        if table.is_empty() {
            return String::new();
        }
        format!(
            "<h3>Pushed bodies, bytes and percent of the page</h3>\n<p><small>Requested bytes by the client's count at the end; unrequested \
             bytes by the origins' count.</small></p>\n{}",
            table.html()
        )
    }

    /// The documents' figures and ours.
    fn documents(&self, sweep: &Sweep) -> String {
        if sweep.documents.is_empty() {
            return String::new();
        }
        let heads = ["figure", "source", "theirs", "ours", "our set-up", "at"];
        let mut table = Table::new(&heads).text_columns(&[1, 4, 5]);
        for figure in &sweep.documents {
            let unit = |value: f64| match figure.measure {
                Measure::Time => format!("{} s", number(value)),
                Measure::Gain => signed(value),
                _ => percent(value),
            };
            let ours = self
                .cells
                .figure(self.experiment, sweep, figure)
                .map_or_else(
                    || "not measured".to_owned(),
                    |ours| match ours.count {
                        1 => unit(ours.median),
                        count => format!(
                            "{} ({}–{}, {count} points)",
                            unit(ours.median),
                            unit(ours.min),
                            unit(ours.max)
                        ),
                    },
                );
            let (own, other) = (
                &self.experiment.setups[figure.setup],
                self.experiment.setups[figure.against].label(),
            );
            let compared = match figure.measure {
                Measure::Time => "seconds".to_owned(),
                Measure::Bytes => format!("bytes in % of {other}"),
                Measure::Packets => format!("packets in % of {other}"),
                Measure::Ratio => format!("time in % of {other}"),
                Measure::Gain => format!("gain over {other}"),
            };
            table.row(vec![
                escaped(&figure.what),
                escaped(&figure.source),
                unit(figure.value),
                ours,
                escaped(&format!("{}: {compared}", own.label())),
                escaped(&figure.at.to_string()),
            ]);
        }
        format!(
            "<h3>The documents' figures beside ours</h3>\n{}",
            table.html()
        )
    }

    /// Describes the runs of the results.
    fn runs(&self, lines: &[Line]) -> String {
        let mut out = String::from("<h2>How this came about</h2>\n<ul>\n");
        for line in lines {
            let Line::Run(run) = line else { continue };
            let text = |path: &str| match run.pointer(path) {
                Some(Value::String(text)) => escaped(text),
                Some(Value::Array(parts)) => {
                    let parts: Vec<&str> = parts.iter().filter_map(Value::as_str).collect();
                    escaped(&parts.join(if path == "/command" { " " } else { ", " }))
                }
                Some(value) => escaped(&value.to_string()),
                None => "?".into(),
            };
            let _ = writeln!(
                out,
                "<li><code>{}</code>, {}, tandem-lab {}, {}, seed {}; Linux {}, {} × {}, {} MiB, load {} at the start</li>",
                text("/command"),
                text("/started"),
                text("/version"),
                text("/programs"),
                text("/seed"),
                text("/machine/kernel"),
                text("/machine/processors"),
                text("/machine/processor"),
                text("/machine/memory_mib"),
                text("/machine/load"),
            );
        }
        out += "</ul>\n";
        let loads = lines.iter().filter_map(|line| match line {
            Line::Load(record) => match &record.outcome {
                results::Outcome::Measured(measured) => Some(measured),
                results::Outcome::Failed(_) => None,
            },
            Line::Run(_) => None,
        });
        let late: Vec<f64> = loads.map(|measured| measured.late_ms).collect();
        if let Some(late) = Summary::of(&late) {
            let _ = writeln!(
                out,
                "<p>{} page loads; the emulator delivered packets {} ms late at the 99th percentile of the worst load, {} \
                 ms at that of the median load.</p>",
                late.count,
                number(late.max),
                number(late.median)
            );
        }
        if self.cells.stale > 0 {
            let _ = writeln!(
                out,
                "<p>{} results are of other versions of the experiment's file and do not count.</p>",
                self.cells.stale
            );
        }
        out
    }
}

/// Describes the median and the maximum, and counts the spreads within the tolerance of repeated
/// runs.
pub fn spread_in_total(spreads: &[Spread]) -> Option<String> {
    /// The limit on an idle machine, with one seed.
    const LIMIT: f64 = 0.05;
    let shares: Vec<f64> = spreads.iter().map(|spread| spread.share).collect();
    let all = Summary::of(&shares)?;
    let within = shares.iter().filter(|share| **share < LIMIT).count();
    let fewest = spreads.iter().map(|spread| spread.passes).min()?;
    let most = spreads.iter().map(|spread| spread.passes).max()?;
    let passes = if fewest == most {
        fewest.to_string()
    } else {
        format!("{fewest} to {most}")
    };
    Some(format!(
        "{} set-ups at points, {passes} passes each; the longest load exceeds the shortest by {} \
         in the median and {} at most; by less than {} in {within} of {}",
        all.count,
        percent(all.median * 100.0),
        percent(all.max * 100.0),
        percent(LIMIT * 100.0),
        all.count
    ))
}

/// Returns the values that all points share.
fn common(points: &[Point]) -> Point {
    let differs = |axis: &Axis| {
        points
            .windows(2)
            .any(|two| two[0].get(*axis) != two[1].get(*axis))
    };
    points
        .first()
        .map(|point| point.without(&Axis::ALL.into_iter().filter(differs).collect::<Vec<_>>()))
        .unwrap_or_default()
}

/// Formats the values of a point that are not shared.
fn name_of(point: &Point, common: &Point) -> String {
    let own: Vec<Axis> = Axis::ALL
        .into_iter()
        .filter(|axis| common.get(*axis).is_none())
        .collect();
    let own = shortened(point).only(&own).to_string();
    if own.is_empty() {
        "all".into()
    } else {
        escaped(&own)
    }
}

/// Returns a point with the names of page files instead of their paths.
fn shortened(point: &Point) -> Point {
    match point.get(Axis::Page).map(Path::new) {
        Some(page) if page.extension().is_some() => {
            let name = page
                .file_stem()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            point.with(Axis::Page, &name)
        }
        _ => point.clone(),
    }
}

fn unique<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

/// The requests that origins received beyond those of the loader, and their share, as medians.
fn extra_requests(pushed: &[&Measured]) -> String {
    let median = |take: fn(&Measured) -> f64| {
        stats::median(
            &pushed
                .iter()
                .map(|measured| take(measured))
                .collect::<Vec<_>>(),
        )
        .unwrap_or_default()
    };
    let extra = median(|m| m.served_requests as f64 - m.requests as f64);
    let requests = median(|m| m.requests as f64).max(1.0);
    format!("{extra:.0} ({})", percent(extra / requests * 100.0))
}
