//! Experiment files.
//!
//! ```toml
//! name = "loss"
//! title = "What loss does to one connection and to six"
//! source = "002 section 4"
//! baseline = "https6"               # the set-up that others are compared with
//! passes = 3                        # turns of every set-up at every point; `full-passes` with --full
//! same-seed = true                  # the same packets are lost in all passes, which then differ by the machine alone
//! base = { page = "imgur", rtt = "150ms", rate = "1mbit", queue = "256" }
//! pages = ["demo", "shop.json"]     # instead of the pages that sweeps name
//!
//! [[setups]]
//! name = "https6"
//! way = "https"                     # http, https, h2: straight; pair, solo; nghttpx, other: pairs
//! parallel = 6                      # connections; open: the point's
//! ahead = "none"                    # connections before requests need them: page, all
//!
//! [[setups]]
//! name = "pair"
//! way = "pair"
//!
//! [[sweeps]]
//! name = "loss"
//! x = "loss"                        # `y` too makes a heat map
//! axes = { loss = ["0", "1%"], page = ["twitter", "imgur"] }
//! full = { loss = ["0", "0.5%", "1%", "2%", "3%"] }
//! documents = [{ what = "SPDY", setup = "pair", at = { loss = "1%" }, measure = "gain", against = "https6", value = -20 }]
//!
//! [[why]]
//! at = { loss = "1%" }
//! text = "one connection halves its window where six lose a twelfth of theirs"
//! ```

mod raw;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_link::text;

use super::point::{Axis, Point};
use super::{ExperimentError, label_or_name, plan};
use raw::*;
use tandem_web::loader::Ahead;
use tandem_web::page::{Page, PageError};

/// Most set-ups or sweeps.
const MOST: usize = 100;

/// An experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Name, also of its directory of results.
    pub name: String,
    /// Headline of its report.
    pub title: String,
    /// The place in the documents that describes it.
    pub source: String,
    /// The subject of the experiment.
    pub about: String,
    /// The seed of all random choices.
    pub seed: u64,
    /// True if all passes have that seed; otherwise each has a different one.
    pub same_seed: bool,
    /// Time for one page load.
    pub deadline: Duration,
    /// True if all resources are known at the start, instead of when their references have arrived.
    pub list: bool,
    /// Set-ups.
    pub setups: Vec<Setup>,
    /// The set-up that the others are compared with, as an index.
    pub baseline: usize,
    /// Sweeps.
    pub sweeps: Vec<Sweep>,
    /// Reasons for unexpected results.
    pub why: Vec<Why>,
    /// The directory of the experiment's file, to which names of page files are relative.
    pub directory: PathBuf,
}

/// The way to load a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Setup {
    /// Name in this experiment.
    pub name: String,
    /// The label in reports; the name unless given.
    #[serde(default, skip_serializing)]
    pub label: String,
    /// The way to the origins.
    pub way: Way,
    /// Requests in flight to one origin; the point's unless given.
    #[serde(default)]
    pub parallel: Option<usize>,
    /// Straight over HTTP/1.1: connections that exist before requests need them.
    #[serde(default)]
    pub ahead: Ahead,
    /// Our pair: its session.
    #[serde(default)]
    pub session: SessionProtocol,
    /// Pairs: their session is over TLS.
    #[serde(default)]
    pub tls: bool,
    /// True if our pair pushes the resources that pages need.
    #[serde(default)]
    pub push: bool,
    /// Pairs: the session is open and has carried something before the page is loaded.
    #[serde(default)]
    pub warm: bool,
    /// Our pair: the client was connected to this gateway before, and downloaded something. Its
    /// session has ended. The next one begins with the load, shows the speed of the path (careful
    /// resume) and sends its first requests early.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resume: bool,
    /// The number of users of our pair that load the page first, each with a separate client. Our
    /// client alone loads the page itself that often before, with an empty cache.
    #[serde(default)]
    pub visits: usize,
    /// Hours since an earlier visit of the browser that loads the page. Its cache holds the page as
    /// far as the caching fields permit. A browser without an earlier visit has an empty cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revisit_hours: Option<u32>,
    /// Other programs: the shell commands that start the proxy at each side. They find the address
    /// of the far one in `$GATEWAY`, that of the near one (an HTTP proxy) in `$PROXY`, and a
    /// certificate in the files `$CERT` and `$KEY`. The far one accepts TCP at `$READY` once it is
    /// up.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub near: String,
    /// See `near`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub far: String,
    /// Other programs: the shell command that builds or installs them. It is not run. The lab names
    /// it if a program is missing, and makes the loads of the other set-ups.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub install: String,
    /// Further options of both ends' endpoints, such as `congestion=bbr`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoint_options: Vec<String>,
    /// Further options of `tandem client`.
    #[serde(default)]
    pub client_options: Vec<String>,
    /// Further options of `tandem gateway`.
    #[serde(default)]
    pub gateway_options: Vec<String>,
}

/// The way from loader to origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// HTTP/1.1, straight.
    Http,
    /// HTTP/1.1 over TLS, straight.
    Https,
    /// HTTP/2 over TLS, straight, one session for each origin.
    H2,
    /// Our pair.
    Pair,
    /// A pair of nghttpx with one HTTP/2 session.
    Nghttpx,
    /// Our client without a gateway.
    Solo,
    /// Two programs of other people, by the commands of the set-up.
    Other,
}

/// Protocol between our proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionProtocol {
    /// HTTP/2.
    #[default]
    #[serde(rename = "h2")]
    H2,
    /// SPDY/3.
    #[serde(rename = "spdy3")]
    Spdy3,
    /// SPDY/3.1.
    #[serde(rename = "spdy3.1")]
    Spdy31,
    /// HTTP/3 over QUIC.
    #[serde(rename = "h3+quic")]
    H3Quic,
    /// HTTP/3 over user-level TCP in DTLS.
    #[serde(rename = "h3+dtls")]
    H3Dtls,
}

impl SessionProtocol {
    /// Returns the scheme of the proxies' endpoints.
    pub const fn scheme(self, tls: bool) -> &'static str {
        match (self, tls) {
            (Self::H2, false) => "h2+tcp",
            (Self::H2, true) => "h2+tls",
            (Self::Spdy3, false) => "spdy3+tcp",
            (Self::Spdy3, true) => "spdy3+tls",
            (Self::Spdy31, false) => "spdy3.1+tcp",
            (Self::Spdy31, true) => "spdy3.1+tls",
            (Self::H3Quic, _) => "h3+quic",
            (Self::H3Dtls, _) => "h3+dtls",
        }
    }

    /// Returns true if the proxies exchange datagrams. Their encryption is then part of the
    /// transport.
    pub const fn is_over_udp(self) -> bool {
        matches!(self, Self::H3Quic | Self::H3Dtls)
    }
}

/// Points that vary one or more quantities.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Name in this experiment.
    pub name: String,
    /// Headline in reports.
    pub title: String,
    /// The subject of the sweep.
    pub about: String,
    /// The quantity along a plot.
    pub x: Axis,
    /// The other one of a heat map.
    pub y: Option<Axis>,
    /// The values that all points share.
    pub base: Point,
    /// The axes and their values.
    pub axes: Vec<(Axis, Vec<String>)>,
    /// The same with `--full`.
    pub full: Vec<(Axis, Vec<String>)>,
    /// Turns of every set-up at every point.
    pub passes: usize,
    /// The same with `--full`.
    pub full_passes: usize,
    /// Set-ups that take part, as indices.
    pub setups: Vec<usize>,
    /// Figures of the documents.
    pub documents: Vec<Figure>,
}

/// A figure of a document, to stand beside ours.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The document's description of the figure.
    pub what: String,
    /// The place in the documents; the experiment's source unless given.
    pub source: String,
    /// Our set-up that corresponds, as an index.
    pub setup: usize,
    /// The one that it is compared with, as an index.
    pub against: usize,
    /// The points that correspond.
    pub at: Point,
    /// The measure to compare.
    pub measure: Measure,
    /// The document's figure.
    pub value: f64,
}

/// The meaning of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Seconds for the page.
    Time,
    /// The same in percent of the other set-up's.
    Ratio,
    /// The percentage of the other set-up's time that is saved.
    Gain,
    /// Bytes on the wire, both ways, in percent of the other set-up's.
    Bytes,
    /// Packets, both ways, in percent of the other set-up's.
    Packets,
}

/// A reason for results at some points.
#[derive(Clone, Debug)]
pub struct Why {
    /// The sweep; any unless given.
    pub sweep: Option<String>,
    /// The points.
    pub at: Point,
    /// The reason.
    pub text: String,
}

/// Returns the time limit of a trial.
fn deadline(text: Option<&str>) -> Result<Duration, ExperimentError> {
    let Some(text) = text else {
        return Ok(Duration::from_secs(300));
    };
    text::duration(text).map_err(|error| ExperimentError::value("deadline", error.to_string()))
}

impl Experiment {
    /// Reads a file's text. Errors name the key.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        let raw: RawExperiment = toml::from_str(text)?;
        let deadline = deadline(raw.deadline.as_deref())?;
        if !is_name(&raw.name) {
            return Err(ExperimentError::bad_name("name", &raw.name));
        }
        let setups = checked_setups(raw.setups)?;
        let baseline = index_of(&setups, "baseline", &raw.baseline)?;
        let base = point("base", &raw.base)?;
        let defaults = Defaults {
            setups: &setups,
            baseline,
            source: &raw.source,
            base: &base,
            passes: raw.passes,
            full_passes: raw.full_passes.unwrap_or(raw.passes),
        };
        let sweeps = raw
            .sweeps
            .into_iter()
            .map(|sweep| defaults.sweep(sweep))
            .collect::<Result<Vec<_>, _>>()?;
        check_names("sweeps", sweeps.iter().map(|sweep| sweep.name.as_str()))?;
        let why = raw
            .why
            .into_iter()
            .enumerate()
            .map(|(at, why)| reason(at, why, &sweeps));
        let why = why.collect::<Result<_, _>>()?;
        let RawExperiment {
            name,
            title,
            source,
            about,
            seed,
            same_seed,
            list,
            pages,
            ..
        } = raw;
        let directory = PathBuf::new();
        let mut experiment = Self {
            name,
            title,
            source,
            about,
            seed,
            same_seed,
            deadline,
            list,
            setups,
            baseline,
            sweeps,
            why,
            directory,
        };
        if let Some(pages) = pages {
            experiment.replace_pages(&pages)?;
        }
        plan::check(&experiment)?;
        Ok(experiment)
    }

    /// Reads a file.
    pub fn open(path: &Path) -> Result<(Self, String), ExperimentError> {
        let text = std::fs::read_to_string(path).map_err(ExperimentError::file("read", path))?;
        let experiment = Self::parse(&text)?;
        Ok((experiment.at(path), text))
    }

    /// The same, beside a file.
    pub fn at(self, path: &Path) -> Self {
        Self {
            directory: path.parent().map(Path::to_owned).unwrap_or_default(),
            ..self
        }
    }

    /// Lets all sweeps load these pages instead of their own.
    fn replace_pages(&mut self, pages: &[String]) -> Result<(), ExperimentError> {
        if pages.is_empty() {
            return Err(ExperimentError::value("pages", "no values"));
        }
        for sweep in &mut self.sweeps {
            for (axis, values) in sweep.axes.iter_mut().chain(&mut sweep.full) {
                if *axis == Axis::Page {
                    *values = pages.to_vec();
                }
            }
            // A sweep of one page loads all of these.
            if !sweep.axes.iter().any(|(axis, _)| *axis == Axis::Page) {
                sweep.axes.push((Axis::Page, pages.to_vec()));
            }
        }
        Ok(())
    }

    /// A page by the name that points have for it.
    pub fn page(&self, name: &str) -> Result<Page, PageError> {
        let file = self.directory.join(name);
        if file.is_file() {
            Page::read(&file)
        } else {
            Page::open(name)
        }
    }

    /// Returns the text of a rate trace by the name that points have for it.
    pub fn trace(&self, name: &str) -> io::Result<String> {
        std::fs::read_to_string(self.directory.join(name))
    }

    /// The reason given for results at a point, the first that fits.
    pub fn reason(&self, sweep: &str, point: &Point) -> Option<&str> {
        let fits = |why: &&Why| {
            why.sweep.as_deref().is_none_or(|name| name == sweep) && point.lies_in(&why.at)
        };
        self.why.iter().find(fits).map(|why| why.text.as_str())
    }
}

impl Setup {
    /// Returns the label in reports.
    pub fn label(&self) -> &str {
        label_or_name(&self.label, &self.name)
    }

    /// Returns true if the origins speak TLS.
    pub const fn is_secure(&self) -> bool {
        matches!(self.way, Way::Https | Way::H2)
    }

    /// Returns true if it is our pair, or our client alone.
    pub fn is_ours(&self) -> bool {
        matches!(self.way, Way::Pair | Way::Solo)
    }
}

impl Sweep {
    /// The values of each axis.
    pub fn axes(&self, full: bool) -> Vec<(Axis, &[String])> {
        let mut axes: Vec<(Axis, &[String])> = self
            .axes
            .iter()
            .map(|(axis, values)| (*axis, &values[..]))
            .collect();
        for (axis, values) in self.full.iter().filter(|_| full) {
            match axes.iter_mut().find(|(own, _)| own == axis) {
                Some((_, own)) => *own = values,
                None => axes.push((*axis, values)),
            }
        }
        axes
    }

    /// Turns.
    pub const fn passes(&self, full: bool) -> usize {
        if full { self.full_passes } else { self.passes }
    }
}
