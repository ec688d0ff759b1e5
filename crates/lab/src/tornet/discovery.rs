//! Loads pages of onion services by a client that discovers their gateways, by a client that does
//! not, and by tor alone, in alternation (`docs/src/discovery.md`).
//!
//! - [`DiscoveryPlan`] has the settings, and [`run`] takes turns. Each visit has a new client and
//!   new isolation keys, one for each site, as Tor Browser has.
//! - `visit`: the findings of a visit. `streams`: the circuits of each stream, by the events of
//!   `tor`. `fence`: the packets that left the client. `report`: the times.
//!
//! A visit must have no fault. These are faults: a packet of the client to anything but the SOCKS
//! port, a stream to anything that the visited site does not own, and two sites that share a
//! circuit.

mod fence;
mod report;
mod streams;
mod visit;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::TornetError;
use super::client::{Client, Ground, counter, load_page};
use super::control::Control;
use super::state::OnionEndpoint;
use fence::{Fence, GROUP};
use streams::Streams;
use tandem_web::loader::{Loader, Via};
use tandem_web::page::{Page, PageError, Site};

pub use fence::Packets;
pub use report::{DiscoveryReport, DiscoveryRow, Shares};
pub use visit::{PageLoad, Visit};

/// Time that a page may take.
const DEADLINE: Duration = Duration::from_secs(150);

/// Attempts to load a page.
const ATTEMPTS: usize = 3;

/// The counter of requests through discovered gateways.
const DISCOVERED: &str = "tandem_discovered_exchanges_total";

/// Time until a page must come through its site's gateway. A gateway is suspended for 30 s if its
/// first trial fails.
const TRIALS: Duration = Duration::from_secs(240);

/// The pause before a page of a site is loaded again.
const READING: Duration = Duration::from_secs(2);

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct DiscoveryPlan {
    /// A network that is up, with onion services.
    pub instance: String,
    /// The program with the measured `client` command.
    pub tandem: PathBuf,
    /// Visits of each kind. With 0, one visit with discovery checks the connections. It loads all
    /// sites at once, and then the sites with a gateway again.
    pub passes: usize,
    /// Further arguments of the client.
    pub client_arguments: Vec<String>,
}

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// The network.
    #[error(transparent)]
    Tornet(#[from] TornetError),
    /// A page.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The network has no onion services with pages.
    #[error("{0} has no onion services with pages: bring it up with --onions and --onion-gateways")]
    NoOnions(String),
    /// A load failed.
    #[error("the page of site {site} failed: {reason}")]
    Load {
        /// The number of the site, from 1.
        site: usize,
        /// The cause, and the end of the client's log.
        reason: String,
    },
}

/// The programs between the loader and the sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Approach {
    /// A client that discovers gateways.
    #[default]
    Discovering,
    /// A client that does not.
    Solo,
    /// `tor` alone.
    Tor,
}

impl Approach {
    const ALL: [Self; 3] = [Self::Discovering, Self::Solo, Self::Tor];
}

/// Measures; `progress` gets a line per visit.
pub fn run(
    plan: &DiscoveryPlan,
    progress: &mut dyn FnMut(&str),
) -> Result<DiscoveryReport, DiscoveryError> {
    let bench = DiscoveryBench::open(plan)?;
    let mut visits = Vec::new();
    if plan.passes == 0 {
        visits.push(bench.visit(Approach::Discovering, |turn| turn.together())?);
    }
    for pass in 0..plan.passes {
        for turn in crate::bench::turns(pass, Approach::ALL.len()) {
            let visit = bench.visit(Approach::ALL[turn], |turn| turn.in_order())?;
            progress(&visit.line());
            visits.push(visit);
        }
    }
    let gateways: Vec<bool> = bench.sites().iter().map(|site| site.has_gateway).collect();
    Ok(DiscoveryReport::of(&gateways, visits))
}

/// The network and the client's place in it.
struct DiscoveryBench<'a> {
    plan: &'a DiscoveryPlan,
    ground: Ground,
}

impl<'a> DiscoveryBench<'a> {
    fn open(plan: &'a DiscoveryPlan) -> Result<Self, DiscoveryError> {
        let ground = Ground::open(&plan.instance)?;
        match ground.state.endpoints.onions.is_empty() {
            true => Err(DiscoveryError::NoOnions(plan.instance.clone())),
            false => Ok(Self { plan, ground }),
        }
    }

    fn sites(&self) -> &[OnionEndpoint] {
        &self.ground.state.endpoints.onions
    }

    /// Loads pages of all sites with a new client. `load` takes the order.
    fn visit(
        &self,
        approach: Approach,
        load: impl FnOnce(&Turn<'_>) -> Result<Vec<Vec<PageLoad>>, DiscoveryError>,
    ) -> Result<Visit, DiscoveryError> {
        let ends = &self.ground.state.endpoints;
        let port = ends.socks.rsplit(':').next().unwrap_or_default();
        let fence = Fence::new(&self.ground.network, port)?;
        let mut control = Control::connect(&ends.control_socket)?;
        // No circuit of an earlier visit is used.
        control.new_identity()?;
        control.subscribe("STREAM CIRC")?;
        let client = match approach {
            Approach::Tor => None,
            _ => Some(self.start_client(approach == Approach::Discovering)?),
        };
        let turn = Turn {
            bench: self,
            approach,
            client,
        };
        let sites = load(&turn)?;
        drop(turn);
        let mut visit = Visit {
            approach,
            sites,
            packets: fence.packets()?,
            ..Visit::default()
        };
        visit.examine(&Streams::of(&control.events()?), self.sites());
        Ok(visit)
    }

    fn start_client(&self, discovers: bool) -> Result<Client, TornetError> {
        let via = format!("socks5://{}", self.ground.state.endpoints.socks);
        let discover = format!("--discover={discovers}");
        let mut arguments = ["--solo", "--via", &via, &discover]
            .map(str::to_owned)
            .to_vec();
        arguments.extend(self.plan.client_arguments.iter().cloned());
        let log = self.ground.directory.path().join("discovery-client.log");
        let program = &self.plan.tandem;
        Client::start(&self.ground.network, program, &arguments, Some(GROUP), log)
            .map_err(TornetError::of("start the client"))
    }
}

/// A visit under way.
struct Turn<'a> {
    bench: &'a DiscoveryBench<'a>,
    approach: Approach,
    /// The client, unless tor is alone.
    client: Option<Client>,
}

impl Turn<'_> {
    /// Loads two pages of each site, a site after the other.
    fn in_order(&self) -> Result<Vec<Vec<PageLoad>>, DiscoveryError> {
        let sites = self.bench.sites().iter().enumerate();
        let load = |(index, site): (usize, &OnionEndpoint)| {
            let loads = self.load_once(site).and_then(|first| {
                thread::sleep(READING);
                Ok(vec![first, self.load_next(site)?])
            });
            loads.map_err(|reason| self.failed(index, &reason))
        };
        sites.map(load).collect()
    }

    /// Loads a page of all sites at once, and then a page of each site with a gateway. The
    /// requests through gateways count for the latter only, since the counter is that of all sites.
    fn together(&self) -> Result<Vec<Vec<PageLoad>>, DiscoveryError> {
        let sites = self.bench.sites();
        let first: Vec<_> = thread::scope(|scope| {
            let loads = sites
                .iter()
                .map(|site| scope.spawn(move || self.load_once(site)));
            let loads: Vec<_> = loads.collect();
            loads
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        let mut loads = Vec::new();
        for (index, (first, site)) in first.into_iter().zip(sites).enumerate() {
            let first = first.unwrap_or_else(|_| Err("its thread panicked".into()));
            let failed = |reason: String| self.failed(index, &reason);
            let first = first.map_err(failed)?;
            let first = PageLoad {
                through_gateway: 0,
                ..first
            };
            loads.push(match site.has_gateway {
                true => vec![first, self.load_next(site).map_err(failed)?],
                false => vec![first],
            });
        }
        Ok(loads)
    }

    fn failed(&self, index: usize, reason: &str) -> DiscoveryError {
        let last_words = self.client.as_ref().map(Client::last_words);
        DiscoveryError::Load {
            site: index + 1,
            reason: format!("{reason}{}", last_words.unwrap_or_default()),
        }
    }

    /// Loads another page of a site. If the site has a gateway, all requests must go there once the
    /// client has discovered it.
    fn load_next(&self, site: &OnionEndpoint) -> Result<PageLoad, String> {
        let end = Instant::now() + TRIALS;
        let discovers = self.approach == Approach::Discovering && site.has_gateway;
        loop {
            let load = self.load_once(site)?;
            if !discovers || load.through_gateway == load.requests as u64 {
                return Ok(load);
            }
            if Instant::now() > end {
                return Err(format!("not all requests went to the gateway: {load:?}"));
            }
            thread::sleep(READING);
        }
    }

    /// Loads a page. It gets several attempts, since a circuit to an onion service may fail.
    fn load_once(&self, site: &OnionEndpoint) -> Result<PageLoad, String> {
        let mut attempts = ATTEMPTS;
        loop {
            attempts -= 1;
            match self.load(site) {
                Err(_) if attempts > 0 => {}
                result => return result,
            }
        }
    }

    /// Loads a page over a SOCKS proxy, with the site's isolation key.
    fn load(&self, site: &OnionEndpoint) -> Result<PageLoad, String> {
        let page = Page::open(&site.page).map_err(|error| error.to_string())?;
        let hosts = [site.host.as_str()];
        let page = Site::new(page, &hosts).map_err(|error| error.to_string())?;
        let ground = &self.bench.ground;
        let proxy = match &self.client {
            Some(client) => client.socks.to_string(),
            None => ground.state.endpoints.socks.clone(),
        };
        let loader = Loader {
            deadline: DEADLINE,
            ..Loader::new(Via::Socks5 {
                proxy,
                credentials: Some((site.host.clone(), "0".to_owned())),
            })
        };
        let before = self.through_gateways()?;
        let load = load_page(&ground.network, &loader, &page)?;
        Ok(PageLoad {
            time_s: load.time.as_secs_f64(),
            requests: load.requests.len(),
            through_gateway: self.through_gateways()? - before,
        })
    }

    /// Returns the number of requests that the client sent to discovered gateways so far.
    fn through_gateways(&self) -> Result<u64, String> {
        let Some(client) = &self.client else {
            return Ok(0);
        };
        let text = client.metrics(&self.bench.ground.network);
        let text = text.map_err(|error| error.to_string())?;
        Ok(counter(&text, DISCOVERED))
    }
}
