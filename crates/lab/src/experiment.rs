//! Experiments as files: pages, links and set-ups, for runs that anyone can repeat, with a report.
//!
//! ```text
//!  experiments/*.toml ──▶ Experiment ──▶ plan: trials ──▶ run: a network for each ──▶ Results
//!                              │                                                          │
//!                              └── documents' figures, reasons ──▶ report (one HTML file) ◀┘
//! ```
//!
//! - [`mod@file`]: the files. [`point`]: the fixed values of a measurement. [`plan`]: the trials
//!   and their order.
//! - [`trial_network`]: two network namespaces, the emulated link between them and the programs of
//!   one set-up. [`trial`]: one page load on it. [`run`]: all trials that have no result yet, with
//!   the set-ups taking turns at each point. [`download`]: downloads beside a page and before it.
//! - [`results`]: the file of results. [`summary`]: their statistics. [`report`]: the same for
//!   readers.

pub mod download;
pub mod file;
pub mod plan;
pub mod point;
pub mod report;
pub mod results;
pub mod run;
pub mod summary;
pub mod trial;
pub mod trial_network;

use std::io;

pub use file::{Experiment, Setup, Sweep, Way};
pub use point::{Axis, Point};

use crate::bench::BenchError;
use tandem_web::page::PageError;

/// Why an experiment cannot be read, run or reported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// Not TOML, or a key that is missing, unknown or of the wrong type.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A value that cannot be.
    #[error("{key}: {what}")]
    Value {
        /// The key of the value.
        key: String,
        /// The error in the value.
        what: String,
    },
    /// A page that is not there.
    #[error("{key}: {source}")]
    Page {
        /// The key that names the page.
        key: String,
        /// The error in the page.
        source: PageError,
    },
    /// A file that cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// A line of a file of results is none.
    #[error("{path}, line {line}: {source}")]
    Line {
        /// The file.
        path: String,
        /// Which line.
        line: usize,
        /// The error in the line.
        source: serde_json::Error,
    },
    /// The directory is that of another experiment.
    #[error("{directory} has results of the experiment {name}: name another directory with --out")]
    Other {
        /// The directory of results.
        directory: String,
        /// The name of its experiment.
        name: String,
    },
    /// Another run writes to the same directory.
    #[error("{0} is in use by another run")]
    Busy(String),
    /// Network or programs.
    #[error(transparent)]
    Bench(#[from] BenchError),
}

/// Returns the label in reports of something with this name: the label of its file, or the name.
pub(crate) fn label_or_name<'a>(label: &'a str, name: &'a str) -> &'a str {
    if label.is_empty() { name } else { label }
}

impl ExperimentError {
    pub(crate) fn value(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Value {
            key: key.into(),
            what: what.into(),
        }
    }

    /// Returns the error for a name that cannot be part of a file's name.
    pub(crate) fn bad_name(key: impl Into<String>, name: &str) -> Self {
        Self::value(key, format!("{name:?} is not letters, digits, - and _"))
    }

    /// Returns a conversion for `map_err`.
    pub fn file(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}
