//! Statistics of results: each set-up at each point, the gain of one over another, and the points
//! at which ours wins.

use std::collections::{BTreeMap, BTreeSet};

use super::file::{Experiment, Figure, Measure, Sweep};
use super::plan;
use super::point::Point;
use super::results::{Line, Measured, Outcome};
use tandem_net::stats::Summary;

/// Differences below this share are none.
const EVEN: f64 = 0.01;

/// All results of an experiment as it is now.
#[derive(Debug)]
pub struct Cells {
    cells: BTreeMap<(Point, usize), Cell>,
    /// Results of another version of the experiment's file, which count no more.
    pub stale: usize,
}

/// The results of a set-up at one point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The measurements, by pass.
    pub passes: BTreeMap<usize, Measured>,
    /// The errors of the passes that failed.
    pub failed: Vec<String>,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Our set-up is faster in all passes.
    Wins,
    /// Passes differ, or the difference is less than one percent.
    Even,
    /// The other is faster in all passes.
    Loses,
}

/// How far the passes of one set-up at one point differ.
#[derive(Clone, Debug)]
pub struct Spread {
    /// The point.
    pub point: Point,
    /// The set-up, as an index.
    pub setup: usize,
    /// Passes, two at least; those on a busy machine do not count.
    pub passes: usize,
    /// Difference between the longest and the shortest page load, as a share of the shortest.
    pub share: f64,
}

/// Our best set-up at a point beside the baseline.
#[derive(Clone, Debug)]
pub struct Contest {
    /// The point.
    pub point: Point,
    /// Our best set-up, as an index.
    pub best: usize,
    /// The savings of the baseline's time; shares, pass by pass.
    pub gain: Summary,
    /// The result of the comparison.
    pub verdict: Verdict,
}

impl Cells {
    /// Sorts results; the last of each trial counts.
    pub fn of(experiment: &Experiment, lines: &[Line]) -> Self {
        let mut cells: BTreeMap<(Point, usize), Cell> = BTreeMap::new();
        let mut stale = 0;
        let mut failed = BTreeMap::new();
        for line in lines {
            let Line::Load(record) = line else { continue };
            let setup = experiment
                .setups
                .iter()
                .position(|setup| setup.name == record.setup);
            let current = |at: &usize| {
                plan::trial(experiment, &record.point, *at, record.pass).key == record.key
            };
            let Some(setup) = setup.filter(current) else {
                stale += 1;
                continue;
            };
            let place = (record.point.clone(), setup);
            match &record.outcome {
                Outcome::Measured(measured) => {
                    cells
                        .entry(place)
                        .or_default()
                        .passes
                        .insert(record.pass, (**measured).clone());
                }
                Outcome::Failed(why) => drop(failed.insert((place, record.pass), why.clone())),
            }
        }
        for ((place, pass), why) in failed {
            let cell = cells.entry(place).or_default();
            if !cell.passes.contains_key(&pass) {
                cell.failed.push(why);
            }
        }
        Self { cells, stale }
    }

    /// Returns the results of a set-up at one point.
    pub fn at(&self, point: &Point, setup: usize) -> Option<&Cell> {
        self.cells.get(&(point.clone(), setup))
    }

    /// Returns the points of a sweep that have a measurement or a failure. They are those of the
    /// full grid if the sweep has a point that is in no small grid. Otherwise they are those of the
    /// small grid, since other sweeps may have left points of the full one.
    pub fn points(&self, experiment: &Experiment, sweep: &Sweep) -> Vec<Point> {
        let seen = |point: &Point| {
            sweep
                .setups
                .iter()
                .any(|&setup| self.at(point, setup).is_some())
        };
        let full: Vec<Point> = plan::points(sweep, true).into_iter().filter(seen).collect();
        let small: BTreeSet<Point> = experiment
            .sweeps
            .iter()
            .flat_map(|sweep| plan::points(sweep, false))
            .collect();
        let own = plan::points(sweep, false).into_iter().filter(seen);
        if full.iter().all(|point| small.contains(point)) {
            return own.collect();
        }
        let further: Vec<Point> = own.filter(|point| !full.contains(point)).collect();
        full.into_iter().chain(further).collect()
    }

    /// How far passes differ, of everything that has several, in order of the points.
    pub fn spreads(&self) -> Vec<Spread> {
        let of = |((point, setup), cell): (&(Point, usize), &Cell)| {
            let idle = cell
                .passes
                .values()
                .filter(|measured| measured.trouble.is_none());
            let seconds = Summary::of(
                &idle
                    .map(|measured| measured.page_load_ms / 1e3)
                    .collect::<Vec<_>>(),
            );
            let seconds = seconds.filter(|seconds| seconds.count > 1 && seconds.min > 0.0)?;
            let share = seconds.max / seconds.min - 1.0;
            Some(Spread {
                point: point.clone(),
                setup: *setup,
                passes: seconds.count,
                share,
            })
        };
        self.cells.iter().filter_map(of).collect()
    }

    /// Returns the saved share of the other set-up's time, pass by pass.
    pub fn gain(&self, point: &Point, setup: usize, against: usize) -> Option<Summary> {
        let (own, other) = (self.at(point, setup)?, self.at(point, against)?);
        own.compare(other, |own, other| {
            1.0 - own.page_load_ms / other.page_load_ms
        })
    }

    /// Compares our best set-up at a point, by the median of its times, with the baseline.
    pub fn contest(
        &self,
        experiment: &Experiment,
        sweep: &Sweep,
        point: &Point,
    ) -> Option<Contest> {
        self.contest_with(experiment, sweep, point, experiment.baseline)
    }

    /// Compares our best set-up at a point, by the median of its times, with set-up `peer`.
    pub fn contest_with(
        &self,
        experiment: &Experiment,
        sweep: &Sweep,
        point: &Point,
        peer: usize,
    ) -> Option<Contest> {
        let ours = sweep
            .setups
            .iter()
            .copied()
            .filter(|&at| experiment.setups[at].is_ours());
        let timed = ours.filter_map(|at| Some((at, self.at(point, at)?.seconds()?.median)));
        let (best, _) = timed.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let gain = self.gain(point, best, peer)?;
        Some(Contest {
            point: point.clone(),
            best,
            gain,
            verdict: Verdict::of(&gain),
        })
    }

    /// Our figure for one of a document, over all points that correspond: median, least, most.
    pub fn figure(
        &self,
        experiment: &Experiment,
        sweep: &Sweep,
        figure: &Figure,
    ) -> Option<Summary> {
        let value = |point: &Point| {
            let own = self.at(point, figure.setup)?;
            if figure.measure == Measure::Time {
                return Some(own.seconds()?.median);
            }
            let compare = |take: fn(&Measured) -> f64| {
                let other = self.at(point, figure.against)?;
                Some(
                    own.compare(other, |own, other| take(own) / take(other) * 100.0)?
                        .median,
                )
            };
            match figure.measure {
                Measure::Time | Measure::Ratio => compare(|m| m.page_load_ms),
                Measure::Gain => Some(100.0 - compare(|m| m.page_load_ms)?),
                Measure::Bytes => compare(|m| m.bytes() as f64),
                Measure::Packets => compare(|m| m.packets() as f64),
            }
        };
        let points = self.points(experiment, sweep);
        let values: Vec<f64> = points
            .iter()
            .filter(|point| point.lies_in(&figure.at))
            .filter_map(value)
            .collect();
        Summary::of(&values)
    }
}

impl Cell {
    /// Seconds for the page.
    pub fn seconds(&self) -> Option<Summary> {
        self.summary(|measured| measured.page_load_ms / 1e3)
    }

    /// A figure over all passes.
    pub fn summary(&self, take: impl Fn(&Measured) -> f64) -> Option<Summary> {
        Summary::of(&self.passes.values().map(take).collect::<Vec<_>>())
    }

    /// Compares pass by pass, over the passes that both have, since a disturbance of a pass affects
    /// both.
    pub fn compare(
        &self,
        other: &Self,
        take: impl Fn(&Measured, &Measured) -> f64,
    ) -> Option<Summary> {
        let both = self
            .passes
            .iter()
            .filter_map(|(pass, own)| Some(take(own, other.passes.get(pass)?)));
        Summary::of(&both.collect::<Vec<_>>())
    }
}

impl Measured {
    /// Bytes on the wire, both ways.
    pub const fn bytes(&self) -> u64 {
        self.up.bytes + self.down.bytes
    }

    /// Packets, both ways.
    pub const fn packets(&self) -> u64 {
        self.up.packets + self.down.packets
    }
}

impl Verdict {
    fn of(gain: &Summary) -> Self {
        if gain.min > 0.0 && gain.median >= EVEN {
            Self::Wins
        } else if gain.max < 0.0 && gain.median <= -EVEN {
            Self::Loses
        } else {
            Self::Even
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::Record;
    use super::*;

    const FILE: &str = "
        name = 'x'\ntitle = 'X'\nbaseline = 'https6'\npasses = 2\nbase = { page = 'demo', loss = '0' }\n
        [[setups]]\nname = 'https6'\nway = 'https'\nparallel = 6\n
        [[setups]]\nname = 'cold'\nway = 'pair'\nparallel = 6\n
        [[setups]]\nname = 'warm'\nway = 'pair'\nparallel = 6\nwarm = true\n
        [[sweeps]]\nname = 'rtt'\nx = 'rtt'\naxes = { rtt = ['10ms', '20ms'] }\n
        documents = [{ what = 'SPDY', setup = 'warm', measure = 'gain', value = 20 }]";

    fn line(experiment: &Experiment, point: &Point, setup: usize, pass: usize, ms: f64) -> Line {
        let trial = plan::trial(experiment, point, setup, pass);
        let measured = Measured {
            page_load_ms: ms,
            ..Measured::default()
        };
        Line::Load(Box::new(Record {
            key: trial.key,
            point: trial.point,
            setup: experiment.setups[setup].name.clone(),
            pass,
            took_s: 0.0,
            outcome: Outcome::Measured(Box::new(measured)),
        }))
    }

    #[test]
    fn contest_compares_our_best_with_the_baseline() {
        let experiment = Experiment::parse(FILE).expect("valid");
        let sweep = &experiment.sweeps[0];
        let points = plan::points(sweep, false);
        let mut lines = Vec::new();
        for (setup, times) in [(0, [100.0, 200.0]), (1, [90.0, 180.0]), (2, [80.0, 150.0])] {
            lines.extend(
                times
                    .iter()
                    .enumerate()
                    .map(|(pass, ms)| line(&experiment, &points[0], setup, pass, *ms)),
            );
        }
        for (setup, times) in [(0, [100.0, 100.0]), (1, [110.0, 120.0]), (2, [101.0, 99.0])] {
            lines.extend(
                times
                    .iter()
                    .enumerate()
                    .map(|(pass, ms)| line(&experiment, &points[1], setup, pass, *ms)),
            );
        }
        let cells = Cells::of(&experiment, &lines);
        let spreads = cells.spreads();
        assert_eq!((spreads.len(), spreads[0].passes), (6, 2));
        let widest = spreads
            .iter()
            .map(|spread| spread.share)
            .fold(0.0, f64::max);
        assert!((widest - 1.0).abs() < 1e-9, "100 and 200 ms: {widest}");
        let contest = cells
            .contest(&experiment, sweep, &points[0])
            .expect("measured");
        assert_eq!((contest.best, contest.verdict), (2, Verdict::Wins));
        assert!((contest.gain.min - 0.2).abs() < 1e-9 && (contest.gain.max - 0.25).abs() < 1e-9);
        assert_eq!(
            cells
                .contest(&experiment, sweep, &points[1])
                .expect("measured")
                .verdict,
            Verdict::Even
        );
        let figure = cells
            .figure(&experiment, sweep, &sweep.documents[0])
            .expect("measured");
        assert_eq!((figure.count, figure.max), (2, 22.5));
        assert_eq!(cells.stale, 0);
    }

    #[test]
    fn grid_ignores_points_of_other_sweeps() {
        let more = "full = { rtt = ['10ms', '30ms', '40ms'] }\n[[sweeps]]\nname = 'far'\nx = 'rtt'\naxes = { rtt = ['30ms'] }\n";
        let experiment =
            Experiment::parse(&FILE.replace("documents =", &format!("{more}documents =")))
                .expect("valid");
        let sweep = &experiment.sweeps[0];
        let rtts = |cells: &Cells| {
            let points = cells.points(&experiment, sweep);
            points
                .iter()
                .filter_map(|point| point.get(super::super::Axis::Rtt))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let at = |rtt: &str| {
            line(
                &experiment,
                &sweep.base.with(super::super::Axis::Rtt, rtt),
                0,
                0,
                1.0,
            )
        };
        let mut lines = vec![at("10ms"), at("20ms"), at("30ms")];
        assert_eq!(rtts(&Cells::of(&experiment, &lines)), "10ms 20ms");
        lines.push(at("40ms"));
        assert_eq!(rtts(&Cells::of(&experiment, &lines)), "10ms 30ms 40ms 20ms");
    }

    #[test]
    fn results_drop_old_versions_and_mended_failures() {
        let experiment = Experiment::parse(FILE).expect("valid");
        let point = plan::points(&experiment.sweeps[0], false).remove(0);
        let mut failed = line(&experiment, &point, 1, 0, 0.0);
        if let Line::Load(record) = &mut failed {
            record.outcome = Outcome::Failed("deadline".into());
        }
        let changed =
            Experiment::parse(&FILE.replace("warm = true", "push = true")).expect("valid");
        let lines = [failed.clone(), line(&changed, &point, 2, 0, 1.0)];
        let cells = Cells::of(&experiment, &lines);
        assert_eq!((cells.stale, cells.at(&point, 2)), (1, None));
        assert_eq!(cells.at(&point, 1).expect("failed").failed, ["deadline"]);
        let cells = Cells::of(&experiment, &[failed, line(&experiment, &point, 1, 0, 5.0)]);
        let cell = cells.at(&point, 1).expect("measured");
        assert!(cell.failed.is_empty() && cell.passes.len() == 1);
    }
}
