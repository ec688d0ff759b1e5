//! Which nodes there are, where they are, and the links between them.
//!
//! ```text
//!  auth1..3, relay1..3, plain exits, onion, client ── half the delay ── core ── half the delay ── edge ── exit
//!                                                                                                  └─ web delay ─ web
//! ```
//!
//! Any two Tor nodes are one `delay` apart, and the exit is one `web delay` from the web host.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use tandem_net::emulator::topology::{HostPlan, LinkPlan, Topology, delayed};

/// The listening address of the gateway beside the exit: an address reserved for documentation, on
/// the exit's loopback interface.
pub const MARKER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);

/// Port of gateways.
pub const GATEWAY_PORT: u16 = 9980;

/// The session protocols of gateways, each with its port.
pub const GATEWAY_PORTS: [(&str, u16); 3] =
    [("h2", GATEWAY_PORT), ("spdy3.1", 9981), ("spdy3", 9982)];

/// The domain of the web host's names.
pub const DOMAIN: &str = "test";

/// The largest number of sites of the web host. Each has a separate address: `site1.test`,
/// `site2.test`, …
pub const MOST_SITES: u8 = 64;

/// The name of the n-th site, from 1.
pub fn site_name(n: u8) -> String {
    format!("site{n}.{DOMAIN}")
}

/// The address of the n-th site on a web host.
pub fn site_address(web: Ipv4Addr, n: u8) -> Ipv4Addr {
    let [a, b, c, _] = web.octets();
    Ipv4Addr::new(a, b, c, n)
}

/// Which site a name belongs to, itself or below it: other names in the domain lead to the first.
pub fn site_number(name: &str) -> u8 {
    let labels = name
        .strip_suffix(DOMAIN)
        .and_then(|rest| rest.strip_suffix('.'));
    let number = labels
        .and_then(|labels| labels.rsplit('.').next())
        .and_then(|label| label.strip_prefix("site"));
    number
        .and_then(|n| n.parse().ok())
        .filter(|n| (1..=MOST_SITES).contains(n))
        .unwrap_or(1)
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Votes on the consensus.
    Authority,
    /// Passes on.
    Relay,
    /// Lets traffic out, and has a gateway beside it.
    Exit,
    /// Lets traffic out to ports 80 and 443 only.
    PlainExit,
    /// Publishes the onion service.
    Onion,
    /// The host of users.
    Client,
    /// The origin.
    Web,
}

/// A host of the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The node's name, which is also tor's nickname.
    pub name: String,
    /// The node's role.
    pub role: Role,
    /// The node's address.
    pub address: Ipv4Addr,
    /// The node's namespace, for `ip netns exec`.
    pub namespace: String,
}

impl Node {
    /// Returns true if a `tor` runs on the node.
    pub fn runs_tor(&self) -> bool {
        self.role != Role::Web
    }

    /// Returns true if that `tor` is in the consensus.
    pub fn is_relay(&self) -> bool {
        matches!(
            self.role,
            Role::Authority | Role::Relay | Role::Exit | Role::PlainExit
        )
    }
}

/// All nodes and delays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The hosts.
    pub nodes: Vec<Node>,
    /// The one-way delay between two Tor nodes.
    pub delay: Duration,
    /// The one-way delay between exit and web host.
    pub web_delay: Duration,
}

impl Layout {
    /// The usual network: 3 authorities, 3 relays, an exit with a gateway, and as many exits
    /// without one as wanted.
    pub fn new(instance: &str, plain_exits: u8, delay: Duration, web_delay: Duration) -> Self {
        let node = |name: String, role, subnet| Node {
            namespace: format!("{}{name}", prefix(instance)),
            address: Ipv4Addr::new(198, 18, subnet, 1),
            name,
            role,
        };
        let mut nodes: Vec<Node> = (1..=3)
            .map(|n| node(format!("auth{n}"), Role::Authority, n))
            .collect();
        nodes.extend((1..=3).map(|n| node(format!("relay{n}"), Role::Relay, 10 + n)));
        nodes.push(node("exit".into(), Role::Exit, 20));
        nodes.extend(
            (1..=plain_exits.min(9))
                .map(|n| node(format!("plainexit{n}"), Role::PlainExit, 20 + n)),
        );
        nodes.push(node("onion".into(), Role::Onion, 30));
        nodes.push(node("client".into(), Role::Client, 40));
        nodes.push(node("web".into(), Role::Web, 50));
        Self {
            nodes,
            delay,
            web_delay,
        }
    }

    /// The first node with this role; every layout has one of each but plain exits.
    pub fn node(&self, role: Role) -> &Node {
        let found = self.nodes.iter().find(|node| node.role == role);
        found.expect("Layout::new makes one node of every role that is asked for")
    }

    /// The emulated network.
    pub fn topology(&self, seed: u64) -> Topology {
        let host = |node: &Node| HostPlan {
            name: node.name.clone(),
            addresses: addresses(node),
            networks: Vec::new(),
            run: None,
        };
        let link = |a: &str, b: &str, delay| LinkPlan {
            between: [a.into(), b.into()],
            directions: delayed(delay),
        };
        let half = self.delay / 2;
        let mut links = vec![link("edge", "core", half)];
        links.extend(self.nodes.iter().map(|node| match node.role {
            Role::Exit => link(&node.name, "edge", Duration::ZERO),
            Role::Web => link(&node.name, "edge", self.web_delay),
            _ => link(&node.name, "core", half),
        }));
        let routers = vec!["core".into(), "edge".into()];
        Topology {
            seed,
            hosts: self.nodes.iter().map(host).collect(),
            routers,
            links,
        }
    }
}

/// Returns the prefix of the names of an instance's namespaces.
pub fn prefix(instance: &str) -> String {
    format!("tandem-{instance}-")
}

fn addresses(node: &Node) -> Vec<IpAddr> {
    match node.role {
        Role::Web => (1..=MOST_SITES)
            .map(|n| site_address(node.address, n).into())
            .collect(),
        _ => vec![node.address.into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delay of a packet between two nodes of a layout.
    fn one_way(layout: &Layout, from: Role, to: Role) -> Duration {
        let (plan, ids) = layout.topology(1).plan().expect("valid");
        let index = |role| {
            layout
                .nodes
                .iter()
                .position(|n| n.role == role)
                .expect("present")
        };
        let mut router = plan.build();
        let mut packet = vec![0x45; 20];
        packet[16..20].copy_from_slice(&layout.nodes[index(to)].address.octets());
        router.ingress(Duration::ZERO, ids[index(from)], packet);
        let arrival = router.pop_due(Duration::MAX).expect("arrives");
        assert_eq!(arrival.host, ids[index(to)]);
        arrival.due
    }

    #[test]
    fn distances_are_as_promised() {
        const MS: Duration = Duration::from_millis(1);
        let layout = Layout::new("t", 1, 40 * MS, 10 * MS);
        for (from, to) in [
            (Role::Client, Role::Relay),
            (Role::Relay, Role::Exit),
            (Role::Exit, Role::Authority),
        ] {
            assert_eq!(one_way(&layout, from, to), 40 * MS);
            assert_eq!(one_way(&layout, to, from), 40 * MS);
        }
        assert_eq!(one_way(&layout, Role::Exit, Role::Web), 10 * MS);
        assert_eq!(one_way(&layout, Role::Web, Role::Exit), 10 * MS);
        assert_eq!(one_way(&layout, Role::PlainExit, Role::Web), 50 * MS);
    }

    #[test]
    fn sites_have_names_and_addresses() {
        let web = Ipv4Addr::new(198, 18, 50, 1);
        for n in 1..=MOST_SITES {
            assert_eq!(site_number(&site_name(n)), n);
            assert_eq!(site_address(web, n), Ipv4Addr::new(198, 18, 50, n));
        }
        for other in [
            "test",
            "www.test",
            "site65.test",
            "site0.test",
            "site2.www.test",
            "site2",
        ] {
            assert_eq!(site_number(other), 1, "{other}");
        }
        assert_eq!(
            site_number("some.name.site2.test"),
            2,
            "names below a site's are the site's"
        );
    }

    #[test]
    fn every_node_has_its_own_subnet_and_namespace() {
        let layout = Layout::new("x", 9, Duration::ZERO, Duration::ZERO);
        let subnets: std::collections::HashSet<_> =
            layout.nodes.iter().map(|n| n.address.octets()[2]).collect();
        assert_eq!(subnets.len(), layout.nodes.len());
        assert!(
            layout
                .nodes
                .iter()
                .all(|n| n.namespace == format!("tandem-x-{}", n.name))
        );
    }
}
