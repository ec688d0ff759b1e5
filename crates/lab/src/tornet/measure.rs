//! A page over the private Tor network: plain HTTP/1.1, the pair with and without push, and a
//! client without a gateway, in alternation through the same Tor client.
//!
//! - [`MeasurePlan`] has the pages and settings; [`run`] takes turns, and every load has a new
//!   client, session and circuit.
//! - `setup`: the ways to load a page. `load`: one load, with its traffic.
//! - `pushes`: the counters of a client around a load.
//! - `report`: a row per setup. `verdict`: the effect of push according to the rows, over all
//!   pages.
//!
//! Every load requests the page under a different name, so that the gateway sees an unvisited site.
//! Only [`PushMode::Visited`] loads share a name, which other users have visited before. Each of
//! those users has a session from an address that many share, so the gateway counts each as a user.
//!
//! Before each load from an onion service, tor forgets the descriptors of all services. So each
//! load pays for the descriptor, as a user's first visit does. The directory and the connections to
//! relays are warm, and so are the circuits that tor builds before it knows their use.
//!
//! Bytes and packets are those of the client's interface, as the emulator counted them. They are
//! TLS records full of cells, TCP acknowledgements, and the small background traffic of tor (also
//! measured, on an idle network). Those between middle relay and exit are counted on the link
//! between the exit's side and the other relays.

mod load;
mod pushes;
mod report;
mod setup;
mod verdict;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

pub use load::{ExitLink, LoadedPage};
pub use pushes::Pushes;
pub use report::{Background, MeasureReport, MeasureRow};
pub use setup::{
    BROWSER_CONNECTIONS, BoundKnowledge, GatewayProtocol, MeasureSetup, PagePlace, PushMode,
    SoloVisit,
};
pub use verdict::MeasureVerdict;

use super::{State, TornetError};
use load::LoadBench;
use tandem_web::loader::Discovery;
use tandem_web::page::PageError;

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct MeasurePlan {
    /// Network that is up.
    pub instance: String,
    /// The program with the measured `client` command.
    pub tandem: PathBuf,
    /// Pages, each of which a site of the network serves.
    pub pages: Vec<String>,
    /// Through the exit, the onion service, or both.
    pub ways: Vec<PagePlace>,
    /// Session protocols of the pair.
    pub sessions: Vec<GatewayProtocol>,
    /// Requests in flight at the pair's local proxy, one setup for each.
    pub in_flight: Vec<usize>,
    /// The permitted pushes of the gateway, with a setup for each.
    pub pushes: Vec<PushMode>,
    /// The visits through a client without a gateway, with a setup for each.
    pub solo: Vec<SoloVisit>,
    /// The loads over [`Self::bound_connections`] connections, with a setup for each.
    pub bounds: Vec<BoundKnowledge>,
    /// The connections of these loads.
    pub bound_connections: usize,
    /// Visits of other users before the first load with [`PushMode::Visited`]; that load is one
    /// more for those after it.
    pub visits: usize,
    /// Turns that each setup gets.
    pub passes: usize,
    /// The time at which the loader knows of resources.
    pub discovery: Discovery,
    /// Use circuit and session once before the page.
    pub warm: bool,
    /// The plain loader sends its first requests with the SOCKS handshake, as no browser does.
    pub optimistic: bool,
    /// The directory for a HAR file of every load, and the counters of the client.
    pub har: Option<PathBuf>,
    /// Further arguments of the client.
    pub client_arguments: Vec<String>,
}

/// An error of a measurement.
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
        /// The pages that it serves.
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
struct MeasuredPage {
    /// The name of the page in the network.
    page: String,
    /// The name of the page in reports.
    name: String,
    way: PagePlace,
    discovery: Discovery,
    setups: Vec<MeasureSetup>,
}

/// Loads of one subject, by setup and pass.
type MeasuredLoads = Vec<Vec<Result<LoadedPage, String>>>;

/// Measures; `progress` gets a line per load.
pub fn run(
    plan: &MeasurePlan,
    progress: &mut dyn FnMut(&str),
) -> Result<MeasureReport, MeasureError> {
    let bench = LoadBench::open(plan)?;
    let subjects = subjects(plan, bench.state())?;
    let mut setups = subjects.iter().flat_map(|subject| &subject.setups);
    if plan.ways.contains(&PagePlace::Exit) && setups.any(|setup| setup.push().is_some()) {
        bench.find_gateways()?;
    }
    let background = bench.background()?;
    let mut loads: Vec<MeasuredLoads> = subjects
        .iter()
        .map(|subject| vec![Vec::new(); subject.setups.len()])
        .collect();
    let mut visits = vec![0; subjects.len()];
    for pass in 0..plan.passes {
        for ((subject, loads), visits) in subjects.iter().zip(&mut loads).zip(&mut visits) {
            for turn in crate::bench::turns(pass, subject.setups.len()) {
                let setup = subject.setups[turn];
                if setup.push() == Some(PushMode::Visited) {
                    bench.visit(subject, setup, visits, progress)?;
                }
                let loaded = bench.load(subject, setup, *visits)?;
                *visits += usize::from(setup.push() == Some(PushMode::Visited));
                progress(&line(
                    subject,
                    setup,
                    &format!("pass {}", pass + 1),
                    &loaded,
                ));
                loads[turn].push(loaded);
            }
        }
    }
    Ok(report::report(
        plan,
        &subjects,
        loads,
        background,
        bench.trouble(),
    ))
}

fn line(
    subject: &MeasuredPage,
    setup: MeasureSetup,
    when: &str,
    loaded: &Result<LoadedPage, String>,
) -> String {
    let what = format!("{when}, {} ({}), {setup}", subject.name, subject.way);
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return format!("{what}: failed: {error}"),
    };
    let pushes = loaded
        .pushes
        .filter(|pushes| pushes.received > 0)
        .map_or_else(String::new, |pushes| {
            let Pushes {
                received,
                used,
                late,
                ..
            } = pushes;
            format!(
                ", {received} pushes: {used} used, {late} late, {:.1} % of bytes wasted",
                pushes.waste() * 100.0
            )
        });
    format!("{what}: {:.2} s{pushes}", loaded.time_s)
}

/// Every page on every way that has it. The first onion service has a gateway, and the page of the
/// first site.
fn subjects(plan: &MeasurePlan, state: &State) -> Result<Vec<MeasuredPage>, MeasureError> {
    let sites = &state.endpoints.sites;
    let setups = setups(plan);
    let has_pair = setups.iter().any(|setup| setup.push().is_some());
    if has_pair && state.endpoints.exit_gateway.is_none() {
        return Err(MeasureError::NoGateways(plan.instance.clone()));
    }
    let mut subjects = Vec::new();
    for page in &plan.pages {
        let at = sites
            .iter()
            .position(|site| site.page == *page)
            .ok_or_else(|| MeasureError::NotServed {
                instance: plan.instance.clone(),
                page: page.clone(),
                served: sites
                    .iter()
                    .map(|site| site.page.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
        let has_onion = at == 0 || (!has_pair && state.endpoints.onion_of(page).is_some());
        let ways = plan.ways.iter();
        let ways = ways.filter(|way| **way == PagePlace::Exit || has_onion);
        subjects.extend(ways.map(|&way| {
            MeasuredPage {
                page: page.clone(),
                name: name(page),
                way,
                discovery: plan.discovery,
                // An onion service has one name: once visited, it is known.
                setups: setups
                    .iter()
                    .copied()
                    .filter(|s| way == PagePlace::Exit || s.push() != Some(PushMode::First))
                    .collect(),
            }
        }));
    }
    Ok(subjects)
}

fn setups(plan: &MeasurePlan) -> Vec<MeasureSetup> {
    let mut setups = vec![MeasureSetup::Plain];
    for &session in &plan.sessions {
        for &in_flight in &plan.in_flight {
            setups.extend(plan.pushes.iter().map(|&push| MeasureSetup::Pair {
                session,
                in_flight,
                push,
            }));
        }
    }
    setups.extend(plan.bounds.iter().map(|&knows| MeasureSetup::Bound {
        connections: plan.bound_connections,
        knows,
    }));
    setups.extend(plan.solo.iter().map(|&visit| MeasureSetup::Solo { visit }));
    setups
}

/// A file by its name alone.
fn name(page: &str) -> String {
    let stem = Path::new(page).file_stem().filter(|_| page.contains('/'));
    stem.map_or_else(
        || page.to_owned(),
        |stem| stem.to_string_lossy().into_owned(),
    )
}

impl LoadBench<'_> {
    /// As many visits as are still to come before others.
    fn visit(
        &self,
        subject: &MeasuredPage,
        setup: MeasureSetup,
        visits: &mut usize,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), MeasureError> {
        while *visits < self.plan().visits {
            let loaded = self.load(subject, setup, *visits)?;
            *visits += 1;
            progress(&line(subject, setup, &format!("visit {visits}"), &loaded));
        }
        Ok(())
    }

    /// Measures the traffic of an idle network.
    fn background(&self) -> Result<Background, MeasureError> {
        const TIME: Duration = Duration::from_secs(10);
        let before = self.counters()?;
        thread::sleep(TIME);
        let moved = self.counters()? - before;
        Ok(Background {
            bytes_per_s: moved.bytes() as f64 / TIME.as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_short_names() {
        assert_eq!(name("/some/where/wikipedia-en.json"), "wikipedia-en");
        assert_eq!(name("gallery:100x2000"), "gallery:100x2000");
    }
}
