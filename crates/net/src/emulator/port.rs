//! A host's way into the emulated network: a TUN device in its namespace, with addresses and a
//! default route.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::rtnl::{Rtnl, TcpMetrics};
use super::{EmulatorError, sys};
use crate::netns::Netns;

/// Packets that the device may hold before the emulator reads them; the kernel's 500 would drop
/// silently in a burst.
const DEVICE_QUEUE: u32 = 10_000;

/// A TUN device in some namespace.
#[derive(Debug)]
pub struct Port {
    pub(crate) tun: File,
    rtnl: Rtnl,
    index: u32,
}

/// The connection between a host and the emulated network.
#[derive(Clone, Debug)]
pub struct Wiring<'a> {
    /// Name of the device in its namespace.
    pub device: &'a str,
    /// Addresses of the host; the first is the one it sends from.
    pub addresses: &'a [IpAddr],
    /// The only addresses behind the device, with the bits that count; everything is, unless given.
    /// A namespace with this is somebody else's.
    pub peers: Option<&'a [(IpAddr, u8)]>,
    /// Largest packet.
    pub mtu: u32,
    /// TCP over the routes made.
    pub tcp: &'a TcpMetrics,
}

impl Port {
    /// Makes the device in a namespace and wires it. The namespace's loopback interface is switched
    /// on too.
    pub fn open(netns: &Netns, wiring: &Wiring<'_>) -> Result<Self, EmulatorError> {
        let device = wiring.device;
        netns
            .run(|| Self::open_here(wiring))
            .map_err(EmulatorError::of(format!("set up TUN device {device}")))
    }

    fn open_here(wiring: &Wiring<'_>) -> io::Result<Self> {
        let tun = sys::open_tun(wiring.device)?;
        let mut rtnl = Rtnl::open()?;
        let index = rtnl.index(wiring.device)?;
        quieten_device(wiring.device);
        if wiring.peers.is_none() {
            quieten_namespace();
        }
        let loopback = rtnl.index("lo")?;
        rtnl.bring_up(loopback, None, None)?;
        for &address in wiring.addresses {
            rtnl.add_address(index, address)?;
        }
        rtnl.bring_up(index, Some(wiring.mtu), Some(DEVICE_QUEUE))?;
        let routes = wiring
            .peers
            .map_or_else(|| default_routes(wiring.addresses), <[_]>::to_vec);
        for (destination, bits) in routes {
            rtnl.replace_route(destination, bits, index, wiring.tcp)
                .map_err(|error| explain(error, wiring.tcp))?;
        }
        Ok(Self { tun, rtnl, index })
    }

    /// Packets that the device dropped before the emulator could read them.
    pub fn dropped(&mut self) -> u64 {
        self.rtnl.dropped(self.index).unwrap_or(0)
    }
}

/// Everything, for the kinds of address that the host has.
fn default_routes(addresses: &[IpAddr]) -> Vec<(IpAddr, u8)> {
    let anywhere: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let has = |all: &IpAddr| {
        addresses
            .iter()
            .any(|address| address.is_ipv4() == all.is_ipv4())
    };
    anywhere
        .into_iter()
        .filter(has)
        .map(|all| (all, 0))
        .collect()
}

/// The kernel only says that an argument is invalid.
fn explain(error: io::Error, tcp: &TcpMetrics) -> io::Error {
    match &tcp.congestion {
        Some(name) if error.raw_os_error() == Some(libc::EINVAL) => {
            let available =
                std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            let available = available.unwrap_or_default();
            io::Error::other(format!(
                "no congestion control {name:?}; there are: {}",
                available.trim()
            ))
        }
        _ => error,
    }
}

/// Keeps the kernel from sending unsolicited packets (router solicitations, multicast reports). A
/// setting that does not exist needs no change.
fn quieten_device(device: &str) {
    let _ = std::fs::write(
        format!("/proc/sys/net/ipv6/conf/{device}/addr_gen_mode"),
        "1",
    );
    let _ = std::fs::write(
        format!("/proc/sys/net/ipv6/conf/{device}/router_solicitations"),
        "0",
    );
}

/// Keeps TCP from using metrics of earlier connections. Also permits ping without privileges, which
/// a new namespace forbids, for the groups of this user.
fn quieten_namespace() {
    let _ = std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
    if std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").is_err() {
        let _ = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0");
    }
}
