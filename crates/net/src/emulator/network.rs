//! A topology made real: a device in every host's namespace, and the emulator between them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use super::capture::Capture;
use super::port::{Port, Wiring};
use super::relay::{self, Doorkeeper};
use super::router::NodeId;
use super::rtnl::TcpMetrics;
use super::topology::{HostPlan, LinkPlan, OUTSIDE, Topology, TopologyError};
use super::{Emulator, EmulatorError, Options};
use crate::netns::Netns;
use tandem_link::LinkConfig;

/// An error in the setup of a network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The description of the network is wrong.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The system refused something.
    #[error(transparent)]
    System(#[from] EmulatorError),
    /// A host that is asked for by name is not there.
    #[error("no host {0:?} in this topology")]
    NoHost(String),
}

/// The settings of a network besides its topology.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Keep the emulator to ordinary priority.
    pub no_realtime: bool,
    /// Largest packet.
    pub mtu: u32,
    /// TCP over every route made.
    pub tcp: TcpMetrics,
    /// The hosts that have their packets written to files.
    pub captures: Vec<(String, PathBuf)>,
    /// The device name of the host [`OUTSIDE`]: its namespace has other devices too.
    pub outside_device: String,
    /// The namespace given for [`OUTSIDE`] is not the one around but stands for it; it needs an
    /// IPv4 address.
    pub relay_outside: bool,
}

impl Default for Setup {
    /// Ethernet's packets, the kernel's own TCP, nothing kept, nothing outside.
    fn default() -> Self {
        Self {
            no_realtime: false,
            mtu: 1500,
            tcp: TcpMetrics::default(),
            captures: Vec::new(),
            outside_device: String::new(),
            relay_outside: false,
        }
    }
}

/// A near and a far host in namespaces of their own, and one link between them.
#[derive(Debug)]
pub struct TwoHosts {
    /// The namespace of the user.
    pub near: Netns,
    /// The namespace of the servers.
    pub far: Netns,
    /// The link.
    pub emulator: Emulator,
}

/// Their names, in counters and for captures.
pub const NEAR: &str = "near";
/// See [`NEAR`].
pub const FAR: &str = "far";

impl TwoHosts {
    /// Sets them up at these addresses, near and far. The first direction is towards the near one,
    /// as on the command line of `tandem-link`.
    pub fn set_up(
        [near, far]: [Ipv4Addr; 2],
        directions: [LinkConfig; 2],
        seed: u64,
        setup: &Setup,
    ) -> Result<Self, NetworkError> {
        let host = |name: &str, address: Ipv4Addr| HostPlan {
            name: name.into(),
            addresses: vec![address.into()],
            networks: Vec::new(),
            run: None,
        };
        let topology = Topology {
            seed,
            hosts: vec![host(NEAR, near), host(FAR, far)],
            routers: Vec::new(),
            links: vec![LinkPlan {
                between: [FAR.into(), NEAR.into()],
                directions,
            }],
        };
        let make = || Netns::unnamed().map_err(EmulatorError::of("make a network namespace"));
        let namespaces = [make()?, make()?];
        let emulator = set_up(&topology, &namespaces, setup)?;
        let [near, far] = namespaces;
        Ok(Self {
            near,
            far,
            emulator,
        })
    }
}

/// Name of the device in hosts' own namespaces.
pub const DEVICE: &str = "tandem0";

/// Sets a network up in these namespaces, one per host and in the order of the topology's hosts.
pub fn set_up(
    topology: &Topology,
    namespaces: &[Netns],
    setup: &Setup,
) -> Result<Emulator, NetworkError> {
    let (plan, nodes) = topology.plan()?;
    let inside: Vec<(IpAddr, u8)> = topology
        .hosts
        .iter()
        .filter(|host| host.name != OUTSIDE)
        .flat_map(reached)
        .collect();
    let mut ports = Vec::new();
    for ((host, namespace), node) in topology.hosts.iter().zip(namespaces).zip(&nodes) {
        let outside = host.name == OUTSIDE;
        let wiring = Wiring {
            device: if outside {
                &setup.outside_device
            } else {
                DEVICE
            },
            addresses: &host.addresses,
            peers: outside.then_some(&inside[..]),
            mtu: setup.mtu,
            tcp: &setup.tcp,
        };
        ports.push((*node, Port::open(namespace, &wiring)?));
    }
    let captures = setup.captures.iter().map(|(name, path)| {
        let host = topology.hosts.iter().position(|host| host.name == *name);
        let node = nodes[host.ok_or_else(|| NetworkError::NoHost(name.clone()))?];
        let action = format!("write capture {}", path.display());
        Ok((
            node,
            Capture::create(path).map_err(EmulatorError::of(action))?,
        ))
    });
    let captures = captures.collect::<Result<_, NetworkError>>()?;
    let relayed = if setup.relay_outside {
        relay_outside(topology, namespaces, &nodes)?
    } else {
        None
    };
    Ok(Emulator::start(
        plan.build(),
        ports,
        Options {
            no_realtime: setup.no_realtime,
            captures,
            relayed,
        },
    )?)
}

/// Everything to be found at or behind a host.
fn reached(host: &HostPlan) -> Vec<(IpAddr, u8)> {
    let own = host
        .addresses
        .iter()
        .map(|address| (*address, if address.is_ipv4() { 32 } else { 128 }));
    own.chain(
        host.networks
            .iter()
            .map(|network| (network.base.into(), network.bits)),
    )
    .collect()
}

fn relay_outside(
    topology: &Topology,
    namespaces: &[Netns],
    nodes: &[NodeId],
) -> Result<Option<(NodeId, Doorkeeper)>, EmulatorError> {
    let Some(index) = topology.hosts.iter().position(|host| host.name == OUTSIDE) else {
        return Ok(None);
    };
    let Some(IpAddr::V4(peer)) = topology.hosts[index].addresses.first() else {
        return Ok(None);
    };
    let netns = namespaces[index]
        .try_clone()
        .map_err(EmulatorError::of("keep a namespace open"))?;
    Ok(Some((nodes[index], relay::start(netns, *peer)?)))
}
