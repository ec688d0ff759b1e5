//! Runs a chain experiment: every trial that has no result yet, with the set-ups taking turns.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tandem_web::measure::Run;

use super::file::ChainStudy;
use super::trial::{self, ChainFigures, ChainTrial};
use crate::bench::testbed::{self, Testbed};
use crate::bench::turns;
use crate::experiment::ExperimentError;
use crate::experiment::results::{EXPERIMENT, RESULTS, check_name};

/// A line of the file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainLine {
    /// The description of the run that the trials below belong to.
    Run(Value),
    /// A trial and its result.
    Trial(Box<ChainRecord>),
}

/// A trial and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainRecord {
    /// The trial.
    pub trial: ChainTrial,
    /// The result.
    #[serde(flatten)]
    pub outcome: ChainOutcome,
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainOutcome {
    /// The figures.
    Measured(ChainFigures),
    /// The reason why there are none. The trial is repeated when the experiment is run again.
    Failed(String),
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct ChainOptions {
    /// The program under test.
    pub tandem: PathBuf,
    /// The directory of results.
    pub out: PathBuf,
    /// True for the larger number of passes and the longer times.
    pub full: bool,
    /// The number of passes, instead of the experiment's.
    pub passes: Option<usize>,
    /// The names of set-ups and cells to which the run is restricted.
    pub only: Vec<String>,
}

/// Returns the trials of an experiment in their order.
///
/// # Errors
/// Fails if a name of `only` is neither a set-up nor a cell.
pub fn trials(
    study: &ChainStudy,
    options: &ChainOptions,
) -> Result<Vec<ChainTrial>, ExperimentError> {
    let (setups, cells) = (&study.setups, &study.cells);
    let is_setup = |name: &String| setups.iter().any(|it| it.name == *name);
    let is_cell = |name: &String| cells.iter().any(|it| it.name == *name);
    for name in &options.only {
        if !is_setup(name) && !is_cell(name) {
            let what = format!("{name:?} is neither a set-up nor a cell of the experiment");
            return Err(ExperimentError::value("--only", what));
        }
    }
    let names_setups = options.only.iter().any(is_setup);
    let names_cells = options.only.iter().any(is_cell);
    let (passes, times) = if options.full {
        (study.full_passes, &study.full_times)
    } else {
        (study.passes, &study.times)
    };
    let mut trials = Vec::new();
    for pass in 0..options.passes.unwrap_or(passes) {
        for cell in cells {
            if names_cells && !options.only.contains(&cell.name) {
                continue;
            }
            for at in turns(pass, setups.len()) {
                let setup = &setups[at];
                if names_setups && !options.only.contains(&setup.name) {
                    continue;
                }
                trials.push(ChainTrial {
                    setup: setup.clone(),
                    cell: cell.clone(),
                    link: study.link.clone(),
                    times: times.clone(),
                    pass,
                    // Each pass has other losses, and all set-ups of a pass have the same.
                    seed: study.seed.wrapping_add(pass as u64),
                });
            }
        }
    }
    Ok(trials)
}

/// Runs the trials that have no result yet, and returns the number of those that failed. `text` is
/// the experiment's file, of which a copy stays beside the results. `say` receives progress.
///
/// # Errors
/// Fails if the results cannot be read or written, or if the testbed cannot be opened.
pub fn run(
    study: &ChainStudy,
    text: &str,
    options: &ChainOptions,
    say: &mut dyn FnMut(&str),
) -> Result<usize, ExperimentError> {
    let trials = trials(study, options)?;
    let mut results = ChainResults::open(&options.out, text)?;
    let is_new = |trial: &&ChainTrial| !results.has(trial);
    let left: Vec<ChainTrial> = trials.iter().filter(is_new).cloned().collect();
    if left.is_empty() {
        return Ok(0);
    }
    if !testbed::raise_priority() {
        say("without root, other programs on this machine disturb the times");
    }
    let testbed = Testbed::open()?;
    let run = serde_json::to_value(Run::here(study.seed)).unwrap_or_default();
    results.append(&ChainLine::Run(run))?;
    let mut failed = 0;
    for (number, trial) in left.iter().enumerate() {
        let (setup, cell) = (trial.setup.label(), trial.cell.label());
        let head = format!("{}/{} {cell}, {setup}", number + 1, left.len());
        let result = trial::run(&testbed, &options.tandem, trial);
        testbed.clear();
        let outcome = match result {
            Ok(measured) => {
                let mean = |delays: trial::ChainDelays| format!("{:.0} ms", delays.mean);
                let beside = measured.beside.map_or_else(|| "no stamps".into(), mean);
                say(&format!(
                    "{head}: {:.0} kB/s on {} of {} circuits, {beside}",
                    measured.throughput(),
                    measured.alive(),
                    measured.circuits.len(),
                ));
                ChainOutcome::Measured(measured)
            }
            Err(error) => {
                failed += 1;
                say(&format!("{head}: failed: {error}"));
                ChainOutcome::Failed(error.to_string())
            }
        };
        let trial = trial.clone();
        results.append(&ChainLine::Trial(Box::new(ChainRecord { trial, outcome })))?;
    }
    Ok(failed)
}

/// The file of results, which no other run uses at the same time.
struct ChainResults {
    file: File,
    path: PathBuf,
    done: Vec<ChainTrial>,
}

impl ChainResults {
    fn open(directory: &Path, experiment: &str) -> Result<Self, ExperimentError> {
        let made = std::fs::create_dir_all(directory);
        made.map_err(ExperimentError::file("make directory", directory))?;
        let path = directory.join(RESULTS);
        let mut options = OpenOptions::new();
        let opened = options.create(true).read(true).append(true).open(&path);
        let file = opened.map_err(ExperimentError::file("open", &path))?;
        if file.try_lock().is_err() {
            return Err(ExperimentError::Busy(directory.display().to_string()));
        }
        check_name(directory, experiment)?;
        let copy = directory.join(EXPERIMENT);
        let written = std::fs::write(&copy, experiment);
        written.map_err(ExperimentError::file("write", &copy))?;
        let lines = read(directory)?;
        let done = lines.into_iter().filter_map(|line| match line {
            ChainLine::Trial(record) if matches!(record.outcome, ChainOutcome::Measured(_)) => {
                Some(record.trial)
            }
            _ => None,
        });
        let done = done.collect();
        let results = Self { file, path, done };
        results.cut()?;
        Ok(results)
    }

    /// Cuts off a line that a killed run has left incomplete.
    fn cut(&self) -> Result<(), ExperimentError> {
        let cut = || {
            let mut text = String::new();
            (&self.file).seek(SeekFrom::Start(0))?;
            (&self.file).read_to_string(&mut text)?;
            let whole = text.rfind('\n').map_or(0, |at| at + 1);
            self.file.set_len(whole as u64)
        };
        cut().map_err(ExperimentError::file("write", &self.path))
    }

    fn has(&self, trial: &ChainTrial) -> bool {
        self.done.contains(trial)
    }

    fn append(&mut self, line: &ChainLine) -> Result<(), ExperimentError> {
        let write = || {
            let mut text = serde_json::to_string(line)?;
            text.push('\n');
            (&self.file).write_all(text.as_bytes())
        };
        write().map_err(ExperimentError::file("write", &self.path))
    }
}

/// Returns the results in a directory. A line that is still being written does not count.
///
/// # Errors
/// Fails if the file cannot be read, and names a line that is no result.
pub fn read(directory: &Path) -> Result<Vec<ChainLine>, ExperimentError> {
    let path = directory.join(RESULTS);
    let text = std::fs::read_to_string(&path).map_err(ExperimentError::file("read", &path))?;
    let whole = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
    let line = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| ExperimentError::Line {
            path: path.display().to_string(),
            line: index + 1,
            source,
        })
    };
    whole.lines().enumerate().map(line).collect()
}
