//! The files of chain experiments.
//!
//! ```toml
//! kind = "chain"                     # distinguishes these files from experiments with pages
//! name = "reardon"
//! title = "Circuits that share a link"
//! source = "001 chapters 5 and 7"
//! passes = 2                         # runs of each set-up in each cell; `full-passes` with --full
//! link = { delay = "50ms", rate = "8mbit", queue = "67" }
//! times = { base = "5s", warm-up = "8s", measured = "15s" }
//!
//! [[setups]]
//! name = "tcp"
//! scheme = "h2+tls"                  # session and transport of every hop
//! congestion = "cubic"
//!
//! [[cells]]
//! name = "loss-shared"
//! network = "splay"                  # figure 5.21; line: two clients and one circuit
//! shared = { loss = "0.1%" }         # changes of the link, there and back as in `tandem-link`
//!
//! [[tables]]
//! title = "Dropped packets"
//! cells = ["none", "loss-shared"]
//! documents = [{ what = "TCP Tor", cell = "none", setup = "tcp", throughput = 221, delay = 933 }]
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_link::text;
use tandem_net::emulator::topology::LinkText;

use crate::experiment::{ExperimentError, label_or_name};

/// The properties of a link by the names of the options of `tandem-link`.
pub type LinkOptions = BTreeMap<String, String>;

/// An experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ChainStudy {
    /// The kind of the file.
    pub kind: ChainKind,
    /// The name of the experiment and of its directory of results.
    pub name: String,
    /// The headline of the report.
    pub title: String,
    /// The place in the documents that describes it.
    pub source: String,
    /// The subject of the experiment.
    #[serde(default)]
    pub about: String,
    /// The seed of all packet losses.
    #[serde(default)]
    pub seed: u64,
    /// The runs of each set-up in each cell.
    pub passes: usize,
    /// The same with `--full`.
    pub full_passes: usize,
    /// The phases of a measurement.
    pub times: ChainTimes,
    /// The same with `--full`.
    pub full_times: ChainTimes,
    /// The properties of all links.
    pub link: LinkOptions,
    /// The set-ups.
    pub setups: Vec<ChainSetup>,
    /// The networks.
    pub cells: Vec<ChainCell>,
    /// The tables of the report.
    pub tables: Vec<StudyTable>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainKind {
    /// Circuits over a chain of relays.
    Chain,
}

/// The phases of a measurement, as texts with units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ChainTimes {
    /// The time of stamps without bulk.
    pub base: String,
    /// The time of bulk before the measurement.
    pub warm_up: String,
    /// The measured time.
    pub measured: String,
}

impl ChainTimes {
    /// Returns the time without bulk, the time before the measurement, and the measured time.
    ///
    /// # Errors
    /// Fails if a text is no time.
    pub fn durations(&self) -> Result<[Duration; 3], ExperimentError> {
        let read = |key: &str, value: &str| {
            let bad =
                |error: tandem_link::ConfigError| ExperimentError::value(key, error.to_string());
            text::duration(value).map_err(bad)
        };
        Ok([
            read("times.base", &self.base)?,
            read("times.warm-up", &self.warm_up)?,
            read("times.measured", &self.measured)?,
        ])
    }
}

/// The session and transport of every hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ChainSetup {
    /// The name in this experiment.
    pub name: String,
    /// The label in reports.
    #[serde(default)]
    pub label: String,
    /// The scheme of the endpoints, such as `h2+tls`.
    pub scheme: String,
    /// The congestion control of the programs and of the kernel's routes.
    pub congestion: String,
    /// Further options of both ends of each hop, such as `coupling=stream`.
    #[serde(default)]
    pub options: Vec<String>,
}

impl ChainSetup {
    /// Returns the label in reports.
    pub fn label(&self) -> &str {
        label_or_name(&self.label, &self.name)
    }

    /// Returns true if the hops are TCP connections.
    pub fn is_over_tcp(&self) -> bool {
        self.scheme.ends_with("+tls") || self.scheme.ends_with("+tcp")
    }
}

/// A network and its disturbances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ChainCell {
    /// The name in this experiment.
    pub name: String,
    /// The label in reports.
    #[serde(default)]
    pub label: String,
    /// The nodes.
    pub network: Network,
    /// Changes of the link that all circuits share.
    #[serde(default)]
    pub shared: LinkOptions,
    /// Changes of all other links.
    #[serde(default)]
    pub remaining: LinkOptions,
}

impl ChainCell {
    /// Returns the label in reports.
    pub fn label(&self) -> &str {
        label_or_name(&self.label, &self.name)
    }
}

/// The nodes of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Figure 5.21: eight clients and six relays. Six transfer in bulk, and two send stamps.
    Splay,
    /// Experiment 11: two clients and one circuit of three relays. One client transfers in bulk.
    Line,
    /// Two clients and two relays, for tests.
    Short,
}

/// A table of the report.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StudyTable {
    /// The headline.
    pub title: String,
    /// The subject of the table.
    #[serde(default)]
    pub about: String,
    /// The names of its cells. The first is the one that others are compared with.
    pub cells: Vec<String>,
    /// The figures of the document.
    #[serde(default)]
    pub documents: Vec<Figures>,
}

/// A row of a document's table, with the set-up that corresponds to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Figures {
    /// The name of the system in the document.
    pub what: String,
    /// The name of the cell.
    pub cell: String,
    /// The name of the set-up.
    pub setup: String,
    /// The throughput of all circuits in kB/s.
    pub throughput: Option<f64>,
    /// The mean delay beside bulk in milliseconds.
    pub delay: Option<f64>,
    /// The mean delay without bulk in milliseconds.
    pub base: Option<f64>,
}

/// Returns true if the text of an experiment's file describes a chain.
pub fn is_chain(text: &str) -> bool {
    let table: Result<toml::Table, _> = text.parse();
    let kind = table.ok().and_then(|mut table| table.remove("kind"));
    kind.is_some_and(|kind| kind.as_str() != Some("forwarding"))
}

/// The options of `tandem-link` that a link may have.
const LINK_OPTIONS: [&str; 7] = ["delay", "jitter", "loss", "rate", "queue", "reset", "rtt"];

/// Returns the link with these options, of which later ones replace earlier ones.
///
/// # Errors
/// Fails if an option is not known or not valid.
pub fn link(name: &str, options: &[&LinkOptions]) -> Result<LinkText, ExperimentError> {
    let mut link = LinkText::default();
    for (key, value) in options.iter().flat_map(|options| options.iter()) {
        let place = match key.as_str() {
            "delay" => &mut link.delay,
            "jitter" => &mut link.jitter,
            "loss" => &mut link.loss,
            "rate" => &mut link.rate,
            "queue" => &mut link.queue,
            "reset" => &mut link.reset,
            "rtt" => &mut link.rtt,
            _ => {
                let known = LINK_OPTIONS.join(", ");
                let what = format!("unknown key {key:?}; the keys are: {known}");
                return Err(ExperimentError::value(name, what));
            }
        };
        *place = Some(value.clone());
    }
    Ok(link)
}

impl ChainStudy {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Fails if a key or value is wrong, and names the key.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        let study: Self = toml::from_str(text)?;
        study.check()?;
        Ok(study)
    }

    fn check(&self) -> Result<(), ExperimentError> {
        let is_name = |name: &str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            !name.is_empty() && name.chars().all(is_plain)
        };
        let setups = self.setups.iter().map(|setup| &setup.name);
        let cells = self.cells.iter().map(|cell| &cell.name);
        for name in setups.chain(cells).chain([&self.name]) {
            if !is_name(name) {
                return Err(ExperimentError::bad_name("name", name));
            }
        }
        if self.passes == 0 || self.full_passes == 0 {
            return Err(ExperimentError::value("passes", "must be at least 1"));
        }
        self.times.durations()?;
        self.full_times.durations()?;
        for cell in &self.cells {
            for changes in [&cell.shared, &cell.remaining] {
                let no_traces = |_: &str| Err(std::io::ErrorKind::Unsupported.into());
                let key = format!("cells.{}", cell.name);
                let text = link(&key, &[&self.link, changes])?;
                let checked = text.directions(&key, &no_traces);
                checked.map_err(|error| ExperimentError::value(key, error.to_string()))?;
            }
        }
        for table in &self.tables {
            let named = table.documents.iter().map(|it| &it.cell);
            for cell in table.cells.iter().chain(named) {
                if !table.cells.contains(cell) || !self.cells.iter().any(|it| it.name == *cell) {
                    let what = format!("there is no cell {cell:?}");
                    return Err(ExperimentError::value(
                        format!("tables {:?}", table.title),
                        what,
                    ));
                }
            }
            for figures in &table.documents {
                if !self.setups.iter().any(|it| it.name == figures.setup) {
                    let what = format!("there is no set-up {:?}", figures.setup);
                    return Err(ExperimentError::value(
                        format!("tables {:?}", table.title),
                        what,
                    ));
                }
            }
        }
        Ok(())
    }
}
