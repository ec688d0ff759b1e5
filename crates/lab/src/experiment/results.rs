//! The file of results: JSON lines, appended one by one. A line is either a run (command, versions,
//! seed, machine) or a page load of the run above it, so that a later run need not repeat it.

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ExperimentError;
use super::point::Point;
use tandem_net::emulator::report::Traffic;

/// Name of the file of results in its directory.
pub const RESULTS: &str = "results.jsonl";
/// Name of the experiment's copy beside it.
pub const EXPERIMENT: &str = "experiment.toml";
/// Largest file of results.
const LARGEST: u64 = 1 << 30;

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// How the loads below came about, as [`tandem_web::measure::Run`].
    Run(Value),
    /// A page load.
    Load(Box<Record>),
}

/// A page load and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The identity of the trial ([`super::plan::Trial::key`]).
    pub key: String,
    /// The point of the trial.
    pub point: Point,
    /// Name of the set-up.
    pub setup: String,
    /// The pass, from 0.
    pub pass: usize,
    /// Seconds that it took with everything around it.
    pub took_s: f64,
    /// The outcome of the trial.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a page load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The page.
    Measured(Box<Measured>),
    /// Why there is no page. It is tried again when the experiment is run again.
    Failed(String),
}

/// A page that was loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// From the start of the first connection to the last byte.
    pub page_load_ms: f64,
    /// From the first byte sent to the last byte.
    pub time_on_wire_ms: f64,
    /// First byte of the document.
    pub first_byte_ms: f64,
    /// Connections of the loader.
    pub connections: usize,
    /// Requests of the loader.
    pub requests: usize,
    /// Bytes of bodies that it received.
    pub body_bytes: u64,
    /// Bytes of bodies that the origins served, including unrequested ones.
    #[serde(default)]
    pub served_bytes: u64,
    /// Requests that the origins received, including those of pushes.
    #[serde(default)]
    pub served_requests: u64,
    /// From the near side into the link.
    pub up: Traffic,
    /// From the link to the near side.
    pub down: Traffic,
    /// Packets that the link lost or had no room for.
    pub lost: u64,
    /// How much later than due the emulator handed packets over, 99th percentile.
    pub late_ms: f64,
    /// The reason to distrust the result, if there is one.
    pub trouble: Option<String>,
    /// The rate of all downloads beside the page in Mbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk_mbit: Option<f64>,
    /// Our pair with push.
    pub push: Option<Push>,
}

/// Bytes of pushed bodies at the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    /// The total.
    pub received: u64,
    /// Bytes of bodies that had answered a request by the end; the rest is kept for later requests,
    /// for a while.
    pub used: u64,
}

/// Takes the file for this run. A program that another thread is just starting has all open files,
/// for a moment.
fn lock(file: &File, directory: &Path, path: &Path) -> Result<(), ExperimentError> {
    for _ in 0..20 {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
            Err(TryLockError::Error(source)) => {
                return Err(ExperimentError::file("lock", path)(source));
            }
        }
    }
    Err(ExperimentError::Busy(directory.display().to_string()))
}

/// Checks that a directory has no results of another experiment. A report would mix them with loads
/// of set-ups of the same name.
pub fn check_name(directory: &Path, experiment: &str) -> Result<(), ExperimentError> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let name = |text: &str| toml::from_str::<Named>(text).ok().map(|it| it.name);
    let present = std::fs::read_to_string(directory.join(EXPERIMENT));
    match (present.ok().and_then(|text| name(&text)), name(experiment)) {
        (Some(present), Some(own)) if present != own => Err(ExperimentError::Other {
            directory: directory.display().to_string(),
            name: present,
        }),
        _ => Ok(()),
    }
}

/// A directory of results, open for one run.
#[derive(Debug)]
pub struct Results {
    file: File,
    path: PathBuf,
    done: HashSet<String>,
}

impl Results {
    /// Opens a directory, makes it if need be, and writes the experiment's text into it. A line
    /// that a killed run began is taken away.
    pub fn open(directory: &Path, experiment: &str) -> Result<Self, ExperimentError> {
        std::fs::create_dir_all(directory)
            .map_err(ExperimentError::file("make directory", directory))?;
        let path = directory.join(RESULTS);
        let mut options = OpenOptions::new();
        let opened = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mut file = opened.map_err(ExperimentError::file("open", &path))?;
        lock(&file, directory, &path)?;
        let copy = directory.join(EXPERIMENT);
        check_name(directory, experiment)?;
        std::fs::write(&copy, experiment).map_err(ExperimentError::file("write", &copy))?;
        let text = contents(&mut file, &path)?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let cut = || -> io::Result<()> {
            file.set_len(whole as u64)?;
            (&file).seek(SeekFrom::End(0)).map(drop)
        };
        cut().map_err(ExperimentError::file("write", &path))?;
        let lines = parse(&text[..whole], &path)?;
        let done = lines.into_iter().filter_map(|line| match line {
            Line::Load(record) if matches!(record.outcome, Outcome::Measured(_)) => {
                Some(record.key)
            }
            _ => None,
        });
        Ok(Self {
            file,
            path: path.clone(),
            done: done.collect(),
        })
    }

    /// Returns true if a trial has a result.
    pub fn has(&self, key: &str) -> bool {
        self.done.contains(key)
    }

    /// Adds a line, whole or not at all.
    pub fn append(&mut self, line: &Line) -> Result<(), ExperimentError> {
        let write = || -> io::Result<()> {
            let mut text = serde_json::to_string(line)?;
            text.push('\n');
            let end = (&self.file).stream_position()?;
            (&self.file).write_all(text.as_bytes()).inspect_err(|_| {
                // A full disk may have taken a part of it; the rest of the file is still good.
                let _ = self.file.set_len(end);
            })
        };
        write().map_err(ExperimentError::file("write", &self.path))?;
        if let Line::Load(record) = line {
            self.done.insert(record.key.clone());
        }
        Ok(())
    }
}

/// All lines of a directory's results.
pub fn read(directory: &Path) -> Result<Vec<Line>, ExperimentError> {
    let path = directory.join(RESULTS);
    let mut file = File::open(&path).map_err(ExperimentError::file("open", &path))?;
    let text = contents(&mut file, &path)?;
    // Bytes after the last line end are a line that is still being written.
    parse(&text[..text.rfind('\n').map_or(0, |at| at + 1)], &path)
}

fn contents(file: &mut File, path: &Path) -> Result<String, ExperimentError> {
    let mut text = String::new();
    let read = file.take(LARGEST).read_to_string(&mut text);
    read.map_err(ExperimentError::file("read", path))?;
    Ok(text)
}

fn parse(text: &str, path: &Path) -> Result<Vec<Line>, ExperimentError> {
    let line = |(index, line): (usize, &str)| {
        let wrong = |source| ExperimentError::Line {
            path: path.display().to_string(),
            line: index + 1,
            source,
        };
        serde_json::from_str(line).map_err(wrong)
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(line)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(key: &str, outcome: Outcome) -> Line {
        let record = Record {
            key: key.into(),
            point: Point::default(),
            setup: "a".into(),
            pass: 0,
            took_s: 1.0,
            outcome,
        };
        Line::Load(Box::new(record))
    }

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("tandem-results-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn resumes_after_a_broken_line() {
        let directory = scratch("resume");
        let mut results = Results::open(&directory, "name = 'x'").expect("a new directory");
        results
            .append(&Line::Run(serde_json::json!({ "seed": 1 })))
            .expect("room");
        results
            .append(&load("one", Outcome::Measured(Box::default())))
            .expect("room");
        results
            .append(&load("two", Outcome::Failed("no".into())))
            .expect("room");
        assert!(matches!(
            Results::open(&directory, ""),
            Err(ExperimentError::Busy(_))
        ));
        drop(results);
        let path = directory.join(RESULTS);
        let mut text = std::fs::read_to_string(&path).expect("there");
        text.push_str("{\"load\":{\"key\":\"thr");
        std::fs::write(&path, text).expect("room");
        assert_eq!(read(&directory).expect("whole lines").len(), 3);
        let error = Results::open(&directory, "name = 'y'").expect_err("of another one");
        assert!(error.to_string().contains("experiment x: name another"));
        let edited = "name = 'x'\npasses = 3";
        let mut results = Results::open(&directory, edited).expect("the same directory");
        assert!(results.has("one") && !results.has("two") && !results.has("three"));
        results
            .append(&load("three", Outcome::Measured(Box::default())))
            .expect("room");
        assert_eq!(read(&directory).expect("whole lines").len(), 4);
        assert_eq!(
            std::fs::read_to_string(directory.join(EXPERIMENT)).expect("there"),
            edited
        );
        std::fs::remove_dir_all(directory).expect("ours");
    }

    #[test]
    fn errors_say_where() {
        let directory = scratch("errors");
        drop(Results::open(&directory, "").expect("a new directory"));
        std::fs::write(directory.join(RESULTS), "{\"run\":{}}\n{\"load\":7}\n").expect("room");
        let error = Results::open(&directory, "")
            .expect_err("not a result")
            .to_string();
        assert!(error.contains("results.jsonl, line 2"), "{error}");
        let error = Results::open(&directory.join(RESULTS), "")
            .expect_err("a file")
            .to_string();
        assert!(error.contains("cannot make directory"), "{error}");
        std::fs::remove_dir_all(directory).expect("ours");
    }

    /// Every write to this device fails as one to a full disk does.
    #[test]
    fn a_full_disk_is_said() {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/full")
            .expect("Linux has it");
        let mut results = Results {
            file,
            path: "/dev/full".into(),
            done: HashSet::new(),
        };
        let error = results
            .append(&load("one", Outcome::Failed("no".into())))
            .expect_err("no room")
            .to_string();
        assert!(
            error.contains("cannot write /dev/full") && error.contains("No space"),
            "{error}"
        );
        assert!(!results.has("one"));
    }
}
