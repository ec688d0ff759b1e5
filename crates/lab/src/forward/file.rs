//! The files of forwarding studies.
//!
//! ```toml
//! kind = "forwarding"                # distinguishes these files from other experiments
//! name = "forwarding"
//! title = "Termination at relays"
//! source = "001 section 8.1.8"
//! passes = 3                         # seeds of each set-up in each cell
//! hops = 3
//! circuits = 4                       # downloads, beside one circuit that sends stamps
//! times = { warm-up = "10s", measured = "30s" }
//! link = { delay = "50ms", rate = "20mbit", queue = "167" }
//!
//! [[setups]]
//! name = "hop"
//! termination = "hop"                # a tunnel for each hop; end: one tunnel for all
//! algorithm = "cubic"
//! coupling = "all"                   # stream: a congestion window for each stream
//!
//! [[cells]]
//! name = "loss"
//! hop = 2                            # the hop that differs, from 1
//! change = { loss = "1%" }
//! ```

use std::time::Duration;

use serde::Deserialize;
use tandem_link::{LinkConfig, text};
use tandem_tunnel::{Algorithm, Config, Coupling};

use crate::chain::file::{LinkOptions, link};
use crate::experiment::{ExperimentError, label_or_name};

/// The bytes that each stream may hold in a relay or at an end. More only take longer to fill.
const SEND_BUFFER: u64 = 512 << 10;
/// The most hops and circuits.
const MOST_HOPS: usize = 16;
const MOST_CIRCUITS: usize = 64;

/// A study.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ForwardStudy {
    /// The kind of the file.
    pub kind: ForwardKind,
    /// The name of the study.
    pub name: String,
    /// The headline of its table.
    pub title: String,
    /// The place in the documents that describes it.
    pub source: String,
    /// The subject of the study.
    #[serde(default)]
    pub about: String,
    /// The seed of the first pass.
    #[serde(default)]
    pub seed: u64,
    /// The seeds of each set-up in each cell.
    pub passes: u64,
    /// The number of hops.
    pub hops: usize,
    /// The number of downloads.
    pub circuits: usize,
    /// The phases of a measurement.
    pub times: ForwardTimes,
    /// The properties of all links.
    pub link: LinkOptions,
    /// The set-ups.
    pub setups: Vec<ForwardSetup>,
    /// The networks.
    pub cells: Vec<ForwardCell>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForwardKind {
    /// Forwarding at relays.
    Forwarding,
}

/// The phases of a measurement, as texts with units.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ForwardTimes {
    /// The time before the measurement.
    pub warm_up: String,
    /// The measured time.
    pub measured: String,
}

/// A transport.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ForwardSetup {
    /// The name in this study.
    pub name: String,
    /// The label in the table.
    #[serde(default)]
    pub label: String,
    /// The places where tunnels end.
    pub termination: Termination,
    /// The congestion control.
    pub algorithm: CongestionControl,
    /// The streams that share a congestion window.
    #[serde(default)]
    pub coupling: Shared,
}

/// The places where tunnels end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Termination {
    /// At both ends of each hop.
    Hop,
    /// At the ends of the chain.
    End,
}

/// A congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionControl {
    /// CUBIC.
    Cubic,
    /// BBR.
    Bbr,
}

/// The streams that share a congestion window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shared {
    /// All streams of a tunnel.
    #[default]
    All,
    /// No streams, each of which has a window.
    Stream,
}

/// A chain with one hop that differs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ForwardCell {
    /// The name in this study.
    pub name: String,
    /// The label in the table.
    #[serde(default)]
    pub label: String,
    /// The hop that differs, from 1.
    #[serde(default = "first")]
    pub hop: usize,
    /// The changes of that hop.
    #[serde(default)]
    pub change: LinkOptions,
}

const fn first() -> usize {
    1
}

impl ForwardSetup {
    /// Returns the label in the table.
    pub fn label(&self) -> &str {
        label_or_name(&self.label, &self.name)
    }

    /// Returns the settings of its tunnels.
    pub fn config(&self) -> Config {
        Config {
            algorithm: match self.algorithm {
                CongestionControl::Cubic => Algorithm::Cubic,
                CongestionControl::Bbr => Algorithm::Bbr,
            },
            coupling: match self.coupling {
                Shared::All => Coupling::Coupled,
                Shared::Stream => Coupling::PerStream,
            },
            send_buffer: SEND_BUFFER,
            ..Config::default()
        }
    }
}

impl ForwardCell {
    /// Returns the label in the table.
    pub fn label(&self) -> &str {
        label_or_name(&self.label, &self.name)
    }
}

/// Returns true if the text of an experiment's file describes a study of forwarding.
pub fn is_forwarding(text: &str) -> bool {
    let table: Result<toml::Table, _> = text.parse();
    let kind = table.ok().and_then(|mut table| table.remove("kind"));
    kind.is_some_and(|kind| kind.as_str() == Some("forwarding"))
}

impl ForwardStudy {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Fails if a key or value is wrong, and names the key.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        let study: Self = toml::from_str(text)?;
        let wrong = |key: &str, what: &str| Err(ExperimentError::value(key, what));
        if !(1..=MOST_HOPS).contains(&study.hops) {
            return wrong("hops", "not from 1 to 16");
        }
        if !(1..=MOST_CIRCUITS).contains(&study.circuits) {
            return wrong("circuits", "not from 1 to 64");
        }
        if study.passes == 0 {
            return wrong("passes", "must be at least 1");
        }
        study.times()?;
        for cell in &study.cells {
            study.links(cell)?;
        }
        Ok(study)
    }

    /// Returns the time before the measurement, and the measured time.
    ///
    /// # Errors
    /// Fails if a text is no time.
    pub fn times(&self) -> Result<[Duration; 2], ExperimentError> {
        let read = |key: &str, value: &str| {
            let time = text::duration(value);
            time.map_err(|error| ExperimentError::value(key, error.to_string()))
        };
        Ok([
            read("times.warm-up", &self.times.warm_up)?,
            read("times.measured", &self.times.measured)?,
        ])
    }

    /// Returns the two directions of each hop in a cell.
    ///
    /// # Errors
    /// Fails if a property of a link is not valid.
    pub fn links(&self, cell: &ForwardCell) -> Result<Vec<[LinkConfig; 2]>, ExperimentError> {
        let key = format!("cells.{}", cell.name);
        if !(1..=self.hops).contains(&cell.hop) {
            return Err(ExperimentError::value(
                format!("{key}.hop"),
                format!("not from 1 to {}", self.hops),
            ));
        }
        let no_traces = |_: &str| Err(std::io::ErrorKind::Unsupported.into());
        let hop = |number: usize| {
            let changes = [&self.link, &cell.change];
            let changes = &changes[..if number == cell.hop { 2 } else { 1 }];
            let read = link(&key, changes)?.directions(&key, &no_traces);
            read.map_err(|error| ExperimentError::value(&key, error.to_string()))
        };
        (1..=self.hops).map(hop).collect()
    }
}
