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

pub use self::programs::{Load, Peer, Times, Version};
pub use self::report::{Against, Report, Row};
use super::programs::Origin;
use super::testbed::{self, Program, Testbed};
use super::{BenchError, turns};

/// The addresses of both hosts of the emulated link.
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program under test.
    pub tandem: PathBuf,
    /// The loads.
    pub loads: Vec<Load>,
    /// Turns that each proxy and pair of protocols gets.
    pub passes: usize,
    /// Proxies to compare with.
    pub peers: Vec<Peer>,
    /// The round-trip time between the proxy and the origin; without it, all is on loopback.
    pub rtt: Option<Duration>,
}

/// A proxy between two protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    peer: Peer,
    front: Version,
    back: Version,
}

/// A proxy that runs, and its measured times for each load.
struct Running {
    cell: Cell,
    address: SocketAddr,
    times: Vec<Vec<Times>>,
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

    /// Returns two addresses for the origin.
    fn origins(&self) -> Result<[SocketAddr; 2], BenchError> {
        match &self.0 {
            None => testbed::free_addresses(),
            Some(_) => Ok([8081, 8082].map(|port| SocketAddr::new(IpAddr::V4(HOSTS[1]), port))),
        }
    }
}

/// Runs the measurement; `say` receives progress messages.
pub fn run(plan: &Plan, say: &mut dyn FnMut(&str)) -> Result<Report, BenchError> {
    if !testbed::raise_priority() {
        say("without root, other programs on this machine disturb the times");
    }
    let testbed = Testbed::open()?;
    let hosts = Hosts::set_up(plan.rtt)?;
    let (own_core, rest) = testbed::cores();
    let [http1, h2] = hosts.origins()?;
    let origin = Origin {
        address: http1,
        lines: format!("listen {h2} http2;\n    location / {{ return 200 \"accepted\\n\"; }}"),
        root: testbed.directory().to_owned(),
    };
    origin.start(&testbed, rest, hosts.far())?;
    let body = testbed.write("body", programs::BODY)?;
    let mut running = Vec::new();
    for cell in cells(&plan.peers) {
        let back = match cell.back {
            Version::Http1 => http1,
            Version::H2 => h2,
        };
        let address = testbed::free_address()?;
        let name = cell.name();
        let pid = testbed.start(Program {
            name: &name,
            command: programs::command(cell, &testbed, &plan.tandem, address, back)?,
            core: own_core,
            network: hosts.near(),
        })?;
        testbed.wait_for(pid, &name, address, hosts.near())?;
        running.push(Running {
            cell,
            address,
            times: vec![Vec::new(); plan.loads.len()],
        });
    }
    let turn = |one: &Running, load: Load| {
        let command = programs::h2load(one.cell.front, load, &body, one.address)?;
        let text = testbed.run(Program {
            name: "h2load",
            command,
            core: rest,
            network: hosts.near(),
        })?;
        programs::times(&text, load).ok_or_else(|| BenchError::Program {
            program: "h2load".into(),
            problem: format!("did not get all responses of {}", one.cell.name()),
            log: text,
        })
    };
    for one in &running {
        turn(one, Load::WARM_UP)?;
    }
    for pass in 0..plan.passes {
        say(&format!("pass {} of {}", pass + 1, plan.passes));
        for (at, load) in plan.loads.iter().enumerate() {
            for number in turns(pass, running.len()) {
                let times = turn(&running[number], *load)?;
                running[number].times[at].push(times);
            }
        }
    }
    if let Some(hosts) = hosts.0 {
        testbed.clear();
        let (_, ended) = hosts.emulator.stop();
        ended.map_err(|source: io::Error| BenchError::System {
            action: "run the emulated link".into(),
            source,
        })?;
    }
    report::of(plan, &running)
}

/// Returns every proxy with each pair of protocols that it has, ours first.
fn cells(peers: &[Peer]) -> Vec<Cell> {
    let versions = [Version::Http1, Version::H2];
    let pairs = versions
        .into_iter()
        .flat_map(|front| versions.map(|back| (front, back)));
    let all = [Peer::Tandem].into_iter().chain(peers.iter().copied());
    all.flat_map(|peer| {
        let cell = move |(front, back)| Cell { peer, front, back };
        pairs.clone().map(cell)
    })
    .filter(|cell| cell.peer.speaks(cell.back))
    .collect()
}

impl Cell {
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
        let names: Vec<_> = cells(&[Peer::Nginx]).into_iter().map(Cell::name).collect();
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
