//! The forwarding of packets: hosts and routers joined by links, without I/O and in virtual time.
//!
//! Hosts are the ends, with addresses; routers only forward. A packet takes the path with the
//! fewest links from host to host and is subject to each of them, so that two paths can share a
//! bottleneck.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tandem_link::Link;

/// A host or a router, in the order in which they were added.
pub type NodeId = usize;

/// Addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The lowest of them.
    pub base: Ipv4Addr,
    /// The length of the prefix in bits.
    pub bits: u8,
}

impl Prefix {
    /// Returns true if the prefix contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let mask = u32::MAX
            .checked_shl(32 - u32::from(self.bits.min(32)))
            .unwrap_or(0);
        matches!(address, IpAddr::V4(v4) if v4.to_bits() & mask == self.base.to_bits() & mask)
    }
}

/// A direction of a link between two nodes.
#[derive(Debug)]
pub struct Edge {
    /// The node that packets come from.
    pub from: NodeId,
    /// The node that packets go to.
    pub to: NodeId,
    /// The link's effect on the packets.
    pub link: Link,
}

#[derive(Debug)]
struct Node {
    name: String,
    is_host: bool,
}

/// A network under construction: nodes, links, addresses.
#[derive(Debug, Default)]
pub struct Plan {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    addresses: HashMap<IpAddr, NodeId>,
    networks: Vec<(Prefix, NodeId)>,
    outside: Option<NodeId>,
}

impl Plan {
    /// Adds an end of the network with its addresses.
    pub fn host(&mut self, name: &str, addresses: &[IpAddr]) -> NodeId {
        let id = self.add(name, true);
        self.addresses
            .extend(addresses.iter().map(|address| (*address, id)));
        id
    }

    /// Makes a host the way to addresses that no host has itself.
    pub fn route(&mut self, network: Prefix, host: NodeId) {
        self.networks.push((network, host));
    }

    /// Adds a node that only passes packets on.
    pub fn router(&mut self, name: &str) -> NodeId {
        self.add(name, false)
    }

    /// Makes a host the way to every address that no host has.
    pub fn set_outside(&mut self, host: NodeId) {
        self.outside = Some(host);
    }

    /// Joins two nodes by a link for each direction.
    pub fn join(&mut self, a: NodeId, b: NodeId, a_to_b: Link, b_to_a: Link) {
        self.edges.push(Edge {
            from: a,
            to: b,
            link: a_to_b,
        });
        self.edges.push(Edge {
            from: b,
            to: a,
            link: b_to_a,
        });
    }

    fn add(&mut self, name: &str, is_host: bool) -> NodeId {
        self.nodes.push(Node {
            name: name.into(),
            is_host,
        });
        self.nodes.len() - 1
    }

    /// Computes the paths.
    pub fn build(self) -> Router {
        let next = (0..self.nodes.len())
            .map(|target| self.first_edges_towards(target))
            .collect();
        let Self {
            nodes,
            edges,
            addresses,
            networks,
            outside,
        } = self;
        Router {
            nodes,
            edges,
            addresses,
            networks,
            outside,
            next,
            arrived: VecDeque::new(),
            unroutable: 0,
        }
    }

    /// For every node the edge to take towards `target`, by breadth-first search from there. Hosts
    /// pass nothing on.
    fn first_edges_towards(&self, target: NodeId) -> Vec<Option<usize>> {
        let mut first = vec![None; self.nodes.len()];
        let mut frontier = VecDeque::from([target]);
        while let Some(node) = frontier.pop_front() {
            if node != target && self.nodes[node].is_host {
                continue;
            }
            for (index, edge) in self.edges.iter().enumerate() {
                if edge.to == node && edge.from != target && first[edge.from].is_none() {
                    first[edge.from] = Some(index);
                    frontier.push_back(edge.from);
                }
            }
        }
        first
    }
}

/// A packet that has reached a host.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The host that the packet has reached.
    pub host: NodeId,
    /// The time at which it was due.
    pub due: Duration,
    /// The packet.
    pub packet: Vec<u8>,
}

/// The running network.
#[derive(Debug)]
pub struct Router {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    addresses: HashMap<IpAddr, NodeId>,
    networks: Vec<(Prefix, NodeId)>,
    outside: Option<NodeId>,
    /// Edge to take, by target and by node.
    next: Vec<Vec<Option<usize>>>,
    arrived: VecDeque<Arrival>,
    unroutable: u64,
}

impl Router {
    /// A packet leaves a host.
    pub fn ingress(&mut self, now: Duration, host: NodeId, packet: Vec<u8>) {
        self.forward(now, host, packet);
    }

    /// Returns the time of the next event.
    pub fn next_due(&self) -> Option<Duration> {
        self.edges
            .iter()
            .filter_map(|edge| edge.link.next_due())
            .min()
    }

    /// A packet that has reached a host by `now`; `None` when there are no more.
    pub fn pop_due(&mut self, now: Duration) -> Option<Arrival> {
        while self.arrived.is_empty() {
            let due = self.next_due().filter(|due| *due <= now)?;
            self.pass_on(due);
        }
        self.arrived.pop_front()
    }

    /// Links, both directions of each in a row.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Name of a node.
    pub fn name(&self, node: NodeId) -> &str {
        &self.nodes[node].name
    }

    /// Packets for which there was no way: other protocols, unknown addresses.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// Moves whatever has reached the end of a link by `now` to the next link or the host there.
    fn pass_on(&mut self, now: Duration) {
        for index in 0..self.edges.len() {
            while let Some((due, packet)) = self.edges[index].link.pop_due(now) {
                let node = self.edges[index].to;
                if self.nodes[node].is_host {
                    self.arrived.push_back(Arrival {
                        host: node,
                        due,
                        packet,
                    });
                } else {
                    self.forward(due, node, packet);
                }
            }
        }
    }

    fn forward(&mut self, now: Duration, node: NodeId, packet: Vec<u8>) {
        match self
            .target(&packet)
            .and_then(|target| self.next[target][node])
        {
            Some(edge) => self.edges[edge].link.ingress(now, packet),
            None => self.unroutable += 1,
        }
    }

    fn target(&self, packet: &[u8]) -> Option<NodeId> {
        let address = destination(packet)?;
        let network = || {
            self.networks
                .iter()
                .find(|(network, _)| network.contains(address))
                .map(|(_, host)| *host)
        };
        self.addresses
            .get(&address)
            .copied()
            .or_else(network)
            .or(self.outside)
    }
}

/// Destination of an IP packet.
pub fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet
            .get(16..20)
            .and_then(|b| <[u8; 4]>::try_from(b).ok())
            .map(|b| Ipv4Addr::from(b).into()),
        6 => packet
            .get(24..40)
            .and_then(|b| <[u8; 16]>::try_from(b).ok())
            .map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tandem_link::LinkConfig;
    use tandem_link::rate::Rate;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn packet_to(last: u8, len: usize) -> Vec<u8> {
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[10, 0, 0, last]);
        packet
    }

    fn delayed(ms: u32) -> Link {
        Link::new(
            LinkConfig {
                delay: MS * ms,
                ..LinkConfig::default()
            },
            1,
        )
        .expect("valid")
    }

    fn drain(router: &mut Router) -> Vec<(NodeId, Duration)> {
        std::iter::from_fn(|| router.pop_due(Duration::MAX))
            .map(|a| (a.host, a.due))
            .collect()
    }

    #[test]
    fn delays_add_up_along_the_path_in_each_direction() {
        let mut plan = Plan::default();
        let (a, b) = (plan.host("a", &[address(1)]), plan.host("b", &[address(2)]));
        let core = plan.router("core");
        plan.join(a, core, delayed(10), delayed(1));
        plan.join(core, b, delayed(20), delayed(2));
        let mut router = plan.build();
        router.ingress(MS, a, packet_to(2, 100));
        assert_eq!(router.next_due(), Some(11 * MS));
        assert!(router.pop_due(30 * MS).is_none());
        assert_eq!(router.next_due(), Some(31 * MS));
        assert_eq!(drain(&mut router), [(b, 31 * MS)]);
        router.ingress(40 * MS, b, packet_to(1, 100));
        assert_eq!(drain(&mut router), [(a, 43 * MS)]);
    }

    #[test]
    fn paths_share_a_bottleneck() {
        let mut plan = Plan::default();
        let senders = [plan.host("a", &[address(1)]), plan.host("b", &[address(2)])];
        let (left, right) = (plan.router("left"), plan.router("right"));
        let sink = plan.host("sink", &[address(9)]);
        senders
            .iter()
            .for_each(|&s| plan.join(s, left, delayed(0), delayed(0)));
        let narrow = || LinkConfig {
            rate: Rate::Constant(1_000_000),
            ..LinkConfig::default()
        };
        plan.join(
            left,
            right,
            Link::new(narrow(), 1).expect("valid"),
            Link::new(narrow(), 2).expect("valid"),
        );
        plan.join(right, sink, delayed(0), delayed(0));
        let mut router = plan.build();
        senders
            .iter()
            .for_each(|&s| router.ingress(Duration::ZERO, s, packet_to(9, 1500)));
        assert_eq!(drain(&mut router), [(sink, 12 * MS), (sink, 24 * MS)]);
    }

    #[test]
    fn hosts_pass_nothing_on_and_strangers_go_outside() {
        let mut plan = Plan::default();
        let ids: Vec<NodeId> = (1..=3).map(|n| plan.host("h", &[address(n)])).collect();
        plan.join(ids[0], ids[1], delayed(1), delayed(1));
        plan.join(ids[1], ids[2], delayed(1), delayed(1));
        plan.set_outside(ids[1]);
        let mut router = plan.build();
        router.ingress(Duration::ZERO, ids[0], packet_to(3, 100));
        assert_eq!((drain(&mut router), router.unroutable()), (vec![], 1));
        router.ingress(Duration::ZERO, ids[0], packet_to(77, 100));
        assert_eq!(drain(&mut router), [(ids[1], MS)]);
        router.ingress(MS, ids[1], packet_to(77, 100));
        router.ingress(MS, ids[1], vec![0x45; 10]);
        router.ingress(MS, ids[1], Vec::new());
        assert_eq!((drain(&mut router), router.unroutable()), (vec![], 4));
    }

    #[test]
    fn networks_lie_behind_hosts() {
        let mut plan = Plan::default();
        let (a, b) = (plan.host("a", &[address(1)]), plan.host("b", &[address(2)]));
        plan.join(a, b, delayed(1), delayed(1));
        plan.route(
            Prefix {
                base: Ipv4Addr::new(10, 0, 0, 16),
                bits: 28,
            },
            b,
        );
        let mut router = plan.build();
        [16, 31, 15, 32]
            .iter()
            .for_each(|&last| router.ingress(Duration::ZERO, a, packet_to(last, 100)));
        assert_eq!(
            (drain(&mut router), router.unroutable()),
            (vec![(b, MS), (b, MS)], 2)
        );
        let everything = Prefix {
            base: Ipv4Addr::UNSPECIFIED,
            bits: 0,
        };
        assert!(
            everything.contains(address(9)) && !everything.contains(Ipv6Addr::LOCALHOST.into())
        );
    }

    #[test]
    fn reads_both_kinds_of_address() {
        let mut v6 = vec![0; 40];
        v6[0] = 0x60;
        v6[39] = 1;
        assert_eq!(destination(&v6), Some(IpAddr::from(Ipv6Addr::LOCALHOST)));
        assert_eq!(destination(&packet_to(5, 20)), Some(address(5)));
        assert_eq!(destination(&v6[..39]), None);
    }
}
