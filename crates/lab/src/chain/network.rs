//! The nodes and the links of a chain experiment, in network namespaces.

use std::net::Ipv4Addr;

use tandem_link::LinkConfig;
use tandem_net::emulator::network::{self, Setup as NetworkSetup};
use tandem_net::emulator::rtnl::TcpMetrics;
use tandem_net::emulator::topology::{HostPlan, LinkPlan, Topology};
use tandem_net::emulator::{Emulator, EmulatorError};
use tandem_net::netns::Netns;

use super::file::{self, LinkOptions, Network};
use super::trial::ChainTrial;
use crate::bench::BenchError;
use crate::experiment::ExperimentError;

/// A node and the next one on the way to the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainNode {
    /// The name, such as `c1` or `r1`.
    pub name: String,
    /// The address.
    pub address: Ipv4Addr,
    /// The number of the next node; `None` for the gateway.
    pub next: Option<usize>,
}

/// The nodes of a network: the relays from the gateway on, and then the clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainLayout {
    /// The nodes. Each stands behind its next node.
    pub nodes: Vec<ChainNode>,
    /// The number of relays, the gateway included.
    pub relays: usize,
    /// The number of clients that transfer in bulk. The other clients send stamps.
    pub bulk: usize,
    /// The node that sends over the shared link.
    shared: usize,
}

impl ChainLayout {
    /// Returns the nodes of a network.
    pub fn of(network: Network) -> Self {
        let (relays, first_hops, clients, bulk) = match network {
            Network::Splay => (6, 4, 8, 6),
            Network::Line => (3, 1, 2, 1),
            Network::Short => (2, 1, 2, 1),
        };
        let mut nodes: Vec<ChainNode> = Vec::new();
        let mut add = |name: String, next| {
            let address = Ipv4Addr::new(10, 78, 0, nodes.len() as u8 + 1);
            nodes.push(ChainNode {
                name,
                address,
                next,
            });
            nodes.len() - 1
        };
        // The relays of the shared part stand in a line before the gateway.
        let mut last = add(format!("r{relays}"), None);
        for number in (first_hops + 1..relays).rev() {
            last = add(format!("r{number}"), Some(last));
        }
        let first: Vec<_> = (1..=first_hops)
            .map(|number| add(format!("r{number}"), Some(last)))
            .collect();
        for number in 0..clients {
            add(format!("c{}", number + 1), Some(first[number % first_hops]));
        }
        Self {
            nodes,
            relays,
            bulk,
            // The relay next to the gateway.
            shared: 1,
        }
    }

    /// Returns the clients: first those that transfer in bulk.
    pub fn clients(&self) -> &[ChainNode] {
        &self.nodes[self.relays..]
    }

    /// Returns the topology, where each link leads from the next node to a node.
    fn topology(&self, trial: &ChainTrial) -> Result<Topology, ExperimentError> {
        let host = |node: &ChainNode| HostPlan {
            name: node.name.clone(),
            addresses: vec![node.address.into()],
            networks: Vec::new(),
            run: None,
        };
        let no_traces = |_: &str| Err(std::io::ErrorKind::Unsupported.into());
        let directions = |name: &str, changes: &LinkOptions| {
            let text = file::link(name, &[&trial.link, changes])?;
            let both = text.directions(name, &no_traces);
            both.map_err(|error| ExperimentError::Bench(BenchError::Network(error.into())))
        };
        let mut links = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(next) = node.next else { continue };
            let changes = if number == self.shared {
                &trial.cell.shared
            } else {
                &trial.cell.remaining
            };
            let directions: [LinkConfig; 2] = directions(&node.name, changes)?;
            links.push(LinkPlan {
                between: [node.name.clone(), self.nodes[next].name.clone()],
                directions,
            });
        }
        Ok(Topology {
            seed: trial.seed,
            hosts: self.nodes.iter().map(host).collect(),
            routers: Vec::new(),
            links,
        })
    }

    /// Makes the network: a namespace for each node, and the links between them.
    ///
    /// # Errors
    /// Fails if a link is not valid, or if the system refuses a namespace or device.
    pub fn set_up(&self, trial: &ChainTrial) -> Result<(Vec<Netns>, Emulator), ExperimentError> {
        let topology = self.topology(trial)?;
        let failed = |error| ExperimentError::Bench(BenchError::Network(error));
        let make =
            |_: &ChainNode| Netns::unnamed().map_err(EmulatorError::of("make a network namespace"));
        let namespaces: Result<Vec<_>, _> = self.nodes.iter().map(make).collect();
        let namespaces = namespaces.map_err(|error| failed(error.into()))?;
        let setup = NetworkSetup {
            tcp: TcpMetrics {
                congestion: Some(trial.setup.congestion.clone()),
                initial_window: None,
            },
            ..NetworkSetup::default()
        };
        let emulator = network::set_up(&topology, &namespaces, &setup).map_err(failed)?;
        Ok((namespaces, emulator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splay_is_the_network_of_the_document() {
        let layout = ChainLayout::of(Network::Splay);
        let name = |number: usize| layout.nodes[number].name.as_str();
        let hops: Vec<_> = layout
            .nodes
            .iter()
            .map(|node| format!("{} {}", node.name, node.next.map_or("-", name)))
            .collect();
        assert_eq!(
            hops,
            [
                "r6 -", "r5 r6", "r1 r5", "r2 r5", "r3 r5", "r4 r5", "c1 r1", "c2 r2", "c3 r3",
                "c4 r4", "c5 r1", "c6 r2", "c7 r3", "c8 r4"
            ]
        );
        assert_eq!((layout.clients().len(), layout.bulk), (8, 6));
        assert_eq!(name(layout.shared), "r5");
    }

    #[test]
    fn line_is_one_circuit_of_three_relays() {
        let layout = ChainLayout::of(Network::Line);
        let names: Vec<_> = layout.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["r3", "r2", "r1", "c1", "c2"]);
        assert_eq!(layout.nodes[2].next, Some(1));
        let short = ChainLayout::of(Network::Short);
        assert_eq!((short.relays, short.clients().len()), (2, 2));
        assert_eq!(short.nodes[1].next, Some(0));
    }
}
