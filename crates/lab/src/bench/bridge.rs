//! `tandem-lab bench bridge`: the bridge between HTTP/1.1 and HTTP/2 beside other proxies, under
//! the loads of a study of 2016. The report repeats its table 5.2.
//!
//! ```text
//!   h2load ──front──▶ bridge, nghttpx or nginx ──back──▶ nginx
//!          POST, 27 bytes                     (emulated delay)
//! ```
//!
//! All proxies and pairs of protocols take turns within each pass. Each figure of a pass is divided
//! by that of HTTP/1.1 on both sides, and by that of each peer with the same protocols.

mod programs;
mod report;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tandem_link::LinkConfig;
use tandem_net::emulator::network::{Setup, TwoHosts};
use tandem_net::netns::Netns;

pub use self::programs::{BridgeLoad, BridgeTimes, Peer, Version};
pub use self::report::{Against, BridgeReport, BridgeRow};
use super::programs::Origin;
use super::testbed::{self, Program, Testbed};
use super::{BenchError, turns};

/// The addresses of both hosts of the emulated link.
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct BridgePlan {
    /// The program under test.
    pub tandem: PathBuf,
    /// The loads.
    pub loads: Vec<BridgeLoad>,
    /// Turns that each proxy and pair of protocols gets.
    pub passes: usize,
    /// Proxies to compare with.
    pub peers: Vec<Peer>,
    /// The round-trip time between the proxy and the origin; without it, all is on loopback.
    pub rtt: Option<Duration>,
}

/// A proxy between two protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BridgeCell {
    peer: Peer,
    front: Version,
    back: Version,
}

/// A proxy that runs, and its measured times for each load.
struct RunningProxy {
    cell: BridgeCell,
    address: SocketAddr,
    times: Vec<Vec<BridgeTimes>>,
}

/// The hosts of a measurement.
struct Hosts(Option<TwoHosts>);

impl Hosts {
    fn set_up(rtt: Option<Duration>) -> Result<Self, BenchError> {
        let Some(rtt) = rtt else {
            return Ok(Self(None));
        };
        let direction = LinkConfig {
            delay: rtt / 2,
            ..LinkConfig::default()
        };
        let links = [direction.clone(), direction];
        let hosts = TwoHosts::set_up(HOSTS, links, 1, &Setup::default())?;
        Ok(Self(Some(hosts)))
    }

    fn near(&self) -> Option<&Netns> {
        self.0.as_ref().map(|hosts| &hosts.near)
    }

    fn far(&self) -> Option<&Netns> {
        self.0.as_ref().map(|hosts| &hosts.far)
    }

    /// Ends the programs of the measurement, and then the emulated link.
    fn stop(self, testbed: &Testbed) -> Result<(), BenchError> {
        let Some(hosts) = self.0 else { return Ok(()) };
        testbed.clear();
        let (_, ended) = hosts.emulator.stop();
        ended.map_err(|source: io::Error| BenchError::System {
            action: "run the emulated link".into(),
            source,
        })
    }

    /// Returns two addresses for the origin.
    fn origins(&self) -> Result<[SocketAddr; 2], BenchError> {
        match &self.0 {
            None => testbed::free_addresses(),
            Some(_) => Ok([8081, 8082].map(|port| SocketAddr::new(IpAddr::V4(HOSTS[1]), port))),
        }
    }
}

/// Runs the measurement; `say` receives progress messages.
pub fn run(plan: &BridgePlan, say: &mut dyn FnMut(&str)) -> Result<BridgeReport, BenchError> {
    if !testbed::raise_priority() {
        say("without root, other programs on this machine disturb the times");
    }
    let testbed = Testbed::open()?;
    let hosts = Hosts::set_up(plan.rtt)?;
    let mut running = start(plan, &testbed, &hosts)?;
    let load_test = LoadTest {
        body: testbed.write("body", programs::BODY)?,
        core: testbed::cores().1,
        testbed: &testbed,
        hosts: &hosts,
    };
    for one in &running {
        load_test.run(one, BridgeLoad::WARM_UP)?;
    }
    for pass in 0..plan.passes {
        say(&format!("pass {} of {}", pass + 1, plan.passes));
        for (at, load) in plan.loads.iter().enumerate() {
            for number in turns(pass, running.len()) {
                let times = load_test.run(&running[number], *load)?;
                running[number].times[at].push(times);
            }
        }
    }
    hosts.stop(&testbed)?;
    report::of(plan, &running)
}

/// Starts the origin and all proxies.
fn start(
    plan: &BridgePlan,
    testbed: &Testbed,
    hosts: &Hosts,
) -> Result<Vec<RunningProxy>, BenchError> {
    let (own_core, rest) = testbed::cores();
    let [http1, h2] = hosts.origins()?;
    let origin = Origin {
        address: http1,
        lines: format!("listen {h2} http2;\n    location / {{ return 200 \"accepted\\n\"; }}"),
        root: testbed.directory().to_owned(),
    };
    origin.start(testbed, rest, hosts.far())?;
    let started = cells(&plan.peers).into_iter().map(|cell| {
        let back = match cell.back {
            Version::Http1 => http1,
            Version::H2 => h2,
        };
        let address = testbed::free_address()?;
        let name = cell.name();
        let pid = testbed.start(Program {
            name: &name,
            command: programs::command(cell, testbed, &plan.tandem, address, back)?,
            core: own_core,
            network: hosts.near(),
        })?;
        testbed.wait_for(pid, &name, address, hosts.near())?;
        Ok(RunningProxy {
            cell,
            address,
            times: vec![Vec::new(); plan.loads.len()],
        })
    });
    started.collect()
}

/// The program that makes the requests.
struct LoadTest<'a> {
    /// The file with the body of all requests.
    body: PathBuf,
    core: Option<usize>,
    testbed: &'a Testbed,
    hosts: &'a Hosts,
}

impl LoadTest<'_> {
    /// Measures one proxy under one load.
    fn run(&self, proxy: &RunningProxy, load: BridgeLoad) -> Result<BridgeTimes, BenchError> {
        let command = programs::h2load(proxy.cell.front, load, &self.body, proxy.address)?;
        let text = self.testbed.run(Program {
            name: "h2load",
            command,
            core: self.core,
            network: self.hosts.near(),
        })?;
        programs::times(&text, load).ok_or_else(|| BenchError::Program {
            program: "h2load".into(),
            problem: format!("did not get all responses of {}", proxy.cell.name()),
            log: text,
        })
    }
}

/// Returns every proxy with each pair of protocols that it has, ours first.
fn cells(peers: &[Peer]) -> Vec<BridgeCell> {
    let versions = [Version::Http1, Version::H2];
    let pairs = versions
        .into_iter()
        .flat_map(|front| versions.map(|back| (front, back)));
    let all = [Peer::Tandem].into_iter().chain(peers.iter().copied());
    all.flat_map(|peer| {
        let cell = move |(front, back)| BridgeCell { peer, front, back };
        pairs.clone().map(cell)
    })
    .filter(|cell| cell.peer.speaks(cell.back))
    .collect()
}

impl BridgeCell {
    fn name(self) -> String {
        let (front, back) = (self.front.name(), self.back.name());
        format!("{}-{front}-{back}", self.peer.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_those_that_each_proxy_speaks() {
        let names: Vec<_> = cells(&[Peer::Nginx])
            .into_iter()
            .map(BridgeCell::name)
            .collect();
        assert_eq!(
            names,
            [
                "tandem-http1-http1",
                "tandem-http1-h2",
                "tandem-h2-http1",
                "tandem-h2-h2",
                "nginx-http1-http1",
                "nginx-h2-http1"
            ]
        );
    }
}
