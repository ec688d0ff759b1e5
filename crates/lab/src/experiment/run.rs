//! Runs an experiment: every trial that has no result yet, in order.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::plan::{self, Selection, Trial};
use super::point::{Axis, Point};
use super::results::{Line, Outcome, Record, Results};
use super::trial_network::{self, TrialContext};
use super::{Experiment, ExperimentError, trial};
use crate::bench::{BenchError, testbed};
use tandem_net::emulator::topology::LinkText;
use tandem_web::measure::Run;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The program under test.
    pub tandem: PathBuf,
    /// Directory of results.
    pub out: PathBuf,
    /// Directory for the requests and packets of each load, if they are to be kept.
    pub traces: Option<PathBuf>,
    /// The selected part of the experiment.
    pub selection: Selection,
}

/// A progress event.
#[derive(Debug)]
pub enum Event<'a> {
    /// Something to know.
    Note(&'a str),
    /// A trial begins.
    Begin {
        /// Trials that have a result.
        done: usize,
        /// The total.
        total: usize,
        /// Time for the rest, as far as known.
        left: Option<Duration>,
        /// The set-up.
        setup: &'a str,
        /// The point, without the values that all points share.
        point: &'a str,
    },
    /// It has ended.
    End(&'a Record),
    /// No load of a set-up is made, since a program of other people is missing.
    LeftOut {
        /// The set-up.
        setup: &'a str,
        /// The missing program.
        missing: &'a BenchError,
    },
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTally {
    /// Trials that had results before.
    pub before: usize,
    /// Measured now.
    pub measured: usize,
    /// Failed now.
    pub failed: usize,
    /// Left out, since a program of other people is missing.
    pub left_out: usize,
}

/// Page files of a directory, in order of their names.
pub fn pages_of(directory: &Path) -> Result<Vec<String>, ExperimentError> {
    let failed = || ExperimentError::file("read directory", directory);
    let entries = std::fs::read_dir(directory).map_err(failed())?;
    let files = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed())?;
    let kinds = ["json", "har"];
    let is_page = |file: &PathBuf| {
        file.extension()
            .is_some_and(|kind| kinds.iter().any(|known| kind == *known))
    };
    let mut pages: Vec<String> = files
        .into_iter()
        .filter(is_page)
        .map(|file| file.display().to_string())
        .collect();
    pages.sort();
    if pages.is_empty() {
        return Err(ExperimentError::value(
            "--pages",
            format!("no .json or .har in {}", directory.display()),
        ));
    }
    Ok(pages)
}

/// Runs the trials that have no result yet. `text` is the experiment's file, to be kept beside the
/// results.
pub fn run(
    experiment: &Experiment,
    text: &str,
    options: &RunOptions,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<RunTally, ExperimentError> {
    let mut trials = plan::trials(experiment, &options.selection)?;
    let all = trials.len();
    for (index, setup) in experiment.setups.iter().enumerate() {
        if !trials.iter().any(|trial| trial.setup == index) {
            continue;
        }
        match trial_network::check(setup, &options.tandem) {
            Err(missing @ BenchError::NotFound { .. }) => {
                tell(Event::LeftOut {
                    setup: setup.label(),
                    missing: &missing,
                });
                trials.retain(|trial| trial.setup != index);
            }
            checked => checked?,
        }
    }
    check_pages(experiment, &trials)?;
    check_traces(experiment, &trials)?;
    let mut results = Results::open(&options.out, text)?;
    let left: Vec<&Trial> = trials
        .iter()
        .filter(|trial| !results.has(&trial.key))
        .collect();
    let mut tally = RunTally {
        before: trials.len() - left.len(),
        left_out: all - trials.len(),
        ..RunTally::default()
    };
    if left.is_empty() {
        return Ok(tally);
    }
    if !testbed::raise_priority() {
        tell(Event::Note(
            "without root, other programs on this machine disturb the times",
        ));
    }
    let context = TrialContext::open(options.tandem.clone(), options.traces.clone())?;
    results.append(&Line::Run(header(experiment, options)))?;
    let mut pace = Pace::default();
    for (at, trial) in left.iter().enumerate() {
        let setup = &experiment.setups[trial.setup];
        tell(Event::Begin {
            done: tally.before + at,
            total: trials.len(),
            left: pace.left(&left[at..]),
            setup: setup.label(),
            point: &varied(experiment, &trial.point).to_string(),
        });
        let began = Instant::now();
        let record =
            trial::run(&context, experiment, trial).inspect_err(|_| context.testbed.clear())?;
        context.testbed.clear();
        pace.note(trial, began.elapsed());
        match &record.outcome {
            Outcome::Measured(_) => tally.measured += 1,
            Outcome::Failed(_) => tally.failed += 1,
        }
        tell(Event::End(&record));
        results.append(&Line::Load(Box::new(record)))?;
    }
    Ok(tally)
}

fn check_pages(experiment: &Experiment, trials: &[Trial]) -> Result<(), ExperimentError> {
    let names: BTreeSet<&str> = trials
        .iter()
        .filter_map(|trial| trial.point.get(Axis::Page))
        .collect();
    for name in names {
        let key = || format!("page {name:?}");
        experiment
            .page(name)
            .map_err(|source| ExperimentError::Page { key: key(), source })?;
    }
    Ok(())
}

/// Checks that the rate traces of trials can be read.
///
/// # Errors
/// Fails if one cannot, and names the rate.
pub fn check_traces(experiment: &Experiment, trials: &[Trial]) -> Result<(), ExperimentError> {
    let rates: BTreeSet<&str> = trials
        .iter()
        .filter_map(|trial| trial.point.get(Axis::Rate))
        .collect();
    for rate in rates {
        let key = format!("rate {rate:?}");
        let link = LinkText {
            rate: Some(rate.to_owned()),
            ..LinkText::default()
        };
        link.directions(&key, &|name| experiment.trace(name))
            .map_err(|error| ExperimentError::value(&key, error.to_string()))?;
    }
    Ok(())
}

/// Returns the values of the point that differ between points of the experiment.
pub fn varied(experiment: &Experiment, point: &Point) -> Point {
    let constant = |axis: &Axis| {
        let varies = |sweep: &super::Sweep| {
            sweep
                .axes
                .iter()
                .chain(&sweep.full)
                .any(|(own, _)| own == axis)
        };
        let same = experiment
            .sweeps
            .windows(2)
            .all(|two| two[0].base.get(*axis) == two[1].base.get(*axis));
        same && !experiment.sweeps.iter().any(varies)
    };
    point.without(&Axis::ALL.into_iter().filter(constant).collect::<Vec<_>>())
}

fn header(experiment: &Experiment, options: &RunOptions) -> serde_json::Value {
    let mut run = Run::here(experiment.seed);
    let mut version = std::process::Command::new(&options.tandem);
    let said = version
        .arg("--version")
        .output()
        .map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned());
    run.programs
        .extend(said.ok().filter(|said| !said.is_empty()));
    if experiment
        .setups
        .iter()
        .any(|setup| setup.way == super::Way::Nghttpx)
    {
        let said = std::process::Command::new("nghttpx")
            .arg("--version")
            .output();
        run.programs.extend(
            said.ok()
                .map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned()),
        );
    }
    serde_json::to_value(run).unwrap_or_default()
}

/// An estimate of the remaining time from the duration of trials.
#[derive(Default)]
struct Pace {
    exact: HashMap<(Point, usize), f64>,
    by_setup: HashMap<usize, (f64, usize)>,
    all: (f64, usize),
}

impl Pace {
    fn note(&mut self, trial: &Trial, took: Duration) {
        let took = took.as_secs_f64();
        self.exact.insert((trial.point.clone(), trial.setup), took);
        let own = self.by_setup.entry(trial.setup).or_default();
        for (sum, count) in [own, &mut self.all] {
            *sum += took;
            *count += 1;
        }
    }

    /// As long as in the last pass where there was one; else as other points of the set-up, else as
    /// anything.
    fn left(&self, trials: &[&Trial]) -> Option<Duration> {
        let mean = |(sum, count): (f64, usize)| sum / count as f64;
        let guess = |trial: &&Trial| {
            let exact = self.exact.get(&(trial.point.clone(), trial.setup)).copied();
            exact
                .or_else(|| self.by_setup.get(&trial.setup).map(|own| mean(*own)))
                .unwrap_or_else(|| mean(self.all))
        };
        (self.all.1 > 0).then(|| Duration::from_secs_f64(trials.iter().map(guess).sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_what_was_seen() {
        let trial = |rtt: &str, setup| Trial {
            point: Point::default().with(Axis::Rtt, rtt),
            setup,
            pass: 0,
            key: String::new(),
        };
        let (near, far, other) = (trial("1ms", 0), trial("2ms", 0), trial("1ms", 1));
        let mut pace = Pace::default();
        assert_eq!(pace.left(&[&near]), None);
        pace.note(&near, Duration::from_secs(2));
        pace.note(&far, Duration::from_secs(4));
        assert_eq!(pace.left(&[&near, &far]), Some(Duration::from_secs(6)));
        assert_eq!(
            pace.left(&[&trial("3ms", 0), &other]),
            Some(Duration::from_secs(6))
        );
    }
}
