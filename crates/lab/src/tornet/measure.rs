//! A page over the private Tor network: plain HTTP/1.1 and the pair, in alternation through the same Tor client.
//!
//! - [`Plan`] says what to load and how; [`run`] takes turns, every load on a circuit of its own.
//! - `load`: one load, with what it moved over the client's link. `report`: the table.
//!
//! Bytes and packets are those of the client's interface, as the emulator counted them: TLS records full of cells, TCP
//! acknowledgements, and the little that tor says on its own account (measured too, on an idle network).

mod load;
mod report;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

pub use load::Loaded;
pub use report::{Background, Report, Row};

use super::{State, TornetError};
use crate::loader::Discovery;
use crate::page::PageError;
use load::Bench;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Network that is up.
    pub instance: String,
    /// The program whose `client` command is measured.
    pub tandem: PathBuf,
    /// Pages, each of which a site of the network serves.
    pub pages: Vec<String>,
    /// Through the exit, the onion service, or both.
    pub ways: Vec<Way>,
    /// Session protocols of the pair.
    pub sessions: Vec<Protocol>,
    /// Requests in flight at the pair's local proxy, one setup for each.
    pub in_flight: Vec<usize>,
    /// Turns that each setup gets.
    pub passes: usize,
    /// When the loader knows of resources; by page unless given.
    pub discovery: Option<Discovery>,
    /// Use circuit and session once before the page.
    pub warm: bool,
    /// The plain loader sends its first requests with the SOCKS handshake, as no browser does.
    pub optimistic: bool,
    /// Further arguments of the client.
    pub client_arguments: Vec<String>,
}

/// Where the page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// On the web host, through an exit.
    Exit,
    /// Behind the onion service.
    Onion,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exit => "exit",
            Self::Onion => "onion",
        })
    }
}

/// A session protocol that the network's gateways speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol {
    /// As in endpoint URLs.
    pub name: &'static str,
    /// Port of the gateways that speak it.
    pub port: u16,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        use super::layout::GATEWAY_PORTS;
        let found = GATEWAY_PORTS.iter().find(|(name, _)| *name == text);
        let names = || GATEWAY_PORTS.map(|(name, _)| name).join(", ");
        found.map(|&(name, port)| Self { name, port }).ok_or_else(|| format!("not one of {}", names()))
    }
}

/// How a page is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setup {
    /// HTTP/1.1 on six connections through the SOCKS port.
    Plain,
    /// Through the pair.
    Pair {
        /// Between client and gateway.
        session: Protocol,
        /// Requests that the loader has in flight.
        in_flight: usize,
    },
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("HTTP/1.1 x6"),
            Self::Pair { session, in_flight } => write!(f, "{} x{in_flight}", session.name),
        }
    }
}

/// Connections that browsers open to one host.
pub const BROWSER_CONNECTIONS: usize = 6;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The network.
    #[error(transparent)]
    Tornet(#[from] TornetError),
    /// A page.
    #[error(transparent)]
    Page(#[from] PageError),
    /// No site of the network serves the page.
    #[error("no site of {instance} serves {page:?}; it serves {served}")]
    NotServed {
        /// The network.
        instance: String,
        /// The page.
        page: String,
        /// What is there.
        served: String,
    },
    /// The exit's gateway is not found.
    #[error("no gateway is found at an exit: {0}")]
    NotFound(String),
    /// The network has no gateways.
    #[error("{0} was brought up without gateways")]
    NoGateways(String),
}

/// A page on a way, and the setups that it is loaded with.
struct Subject {
    page: String,
    way: Way,
    discovery: Discovery,
    setups: Vec<Setup>,
}

/// Measures; `progress` gets a line per load.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Report, MeasureError> {
    let bench = Bench::open(plan)?;
    let subjects = subjects(plan, bench.state())?;
    if plan.ways.contains(&Way::Exit) && !(plan.sessions.is_empty() || plan.in_flight.is_empty()) {
        bench.find_gateways()?;
    }
    let background = bench.background()?;
    let mut loads: Vec<Vec<Vec<Result<Loaded, String>>>> =
        subjects.iter().map(|subject| vec![Vec::new(); subject.setups.len()]).collect();
    for pass in 0..plan.passes {
        for (subject, loads) in subjects.iter().zip(&mut loads) {
            for turn in crate::bench::turns(pass, subject.setups.len()) {
                let setup = subject.setups[turn];
                bench.settle()?;
                let loaded = bench.load(subject, setup, pass)?;
                progress(&line(subject, setup, pass + 1, &loaded));
                loads[turn].push(loaded);
            }
        }
    }
    Ok(report::report(plan, &subjects, loads, background, bench.trouble()))
}

fn line(subject: &Subject, setup: Setup, pass: usize, loaded: &Result<Loaded, String>) -> String {
    let what = format!("pass {pass}, {} ({}), {setup}", subject.page, subject.way);
    match loaded {
        Ok(loaded) => format!("{what}: {:.2} s", loaded.time_s),
        Err(error) => format!("{what}: failed: {error}"),
    }
}

/// Every page on every way that has it: the onion service has the first site's.
fn subjects(plan: &Plan, state: &State) -> Result<Vec<Subject>, MeasureError> {
    let sites = &state.endpoints.sites;
    let mut setups = vec![Setup::Plain];
    for &session in &plan.sessions {
        setups.extend(plan.in_flight.iter().map(|&in_flight| Setup::Pair { session, in_flight }));
    }
    if setups.len() > 1 && state.endpoints.exit_gateway.is_none() {
        return Err(MeasureError::NoGateways(plan.instance.clone()));
    }
    let mut subjects = Vec::new();
    for page in &plan.pages {
        let at = sites.iter().position(|site| site.page == *page).ok_or_else(|| MeasureError::NotServed {
            instance: plan.instance.clone(),
            page: page.clone(),
            served: sites.iter().map(|site| site.page.as_str()).collect::<Vec<_>>().join(", "),
        })?;
        let ways = plan.ways.iter().filter(|way| **way == Way::Exit || at == 0);
        // The thesis' loader knew all addresses beforehand.
        let usual = if page == "thesis" { Discovery::List } else { Discovery::Triggers };
        let discovery = plan.discovery.unwrap_or(usual);
        subjects.extend(ways.map(|&way| Subject { page: page.clone(), way, discovery, setups: setups.clone() }));
    }
    Ok(subjects)
}

/// What the link may carry in a quiet second.
const QUIET_BYTES: u64 = 4_000;

impl Bench<'_> {
    /// Waits until what went before has ebbed away and tor has fetched what it wanted, for ten seconds at most.
    fn settle(&self) -> Result<(), MeasureError> {
        for _ in 0..10 {
            let before = self.counters()?;
            thread::sleep(Duration::from_secs(1));
            if (self.counters()? - before).bytes() < QUIET_BYTES {
                break;
            }
        }
        Ok(())
    }

    /// What an idle network carries.
    fn background(&self) -> Result<Background, MeasureError> {
        const TIME: Duration = Duration::from_secs(10);
        let before = self.counters()?;
        thread::sleep(TIME);
        let moved = self.counters()? - before;
        Ok(Background { bytes_per_s: moved.bytes() as f64 / TIME.as_secs_f64() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_by_name() {
        assert_eq!("h2".parse::<Protocol>().expect("spoken").port, 9980);
        assert_eq!("spdy3.1".parse::<Protocol>().expect("spoken").name, "spdy3.1");
        assert!("http".parse::<Protocol>().expect_err("no session of many").contains("h2"));
    }

    #[test]
    fn setups_have_names() {
        let session = "h2".parse().expect("spoken");
        assert_eq!(Setup::Pair { session, in_flight: 32 }.to_string(), "h2 x32");
        assert_eq!(Setup::Plain.to_string(), "HTTP/1.1 x6");
    }
}
