//! Configuration files of `tor` for each role.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::keys::Identities;
use super::layout::{DOMAIN, GATEWAY_PORTS, Layout, MARKER, Node, Role};
use super::onions::OnionSites;

/// Port on which relays take circuits.
pub const OR_PORT: u16 = 5001;
/// Port on which authorities serve the directory.
pub const DIR_PORT: u16 = 7001;
/// The client's SOCKS port, on its loopback address.
pub const SOCKS_PORT: u16 = 9050;
/// The client's control port, on its loopback address, without authentication.
pub const CONTROL_PORT: u16 = 9051;
/// The client's HTTP CONNECT port, on its loopback address.
pub const HTTP_TUNNEL_PORT: u16 = 9052;
/// The client's DNS port, on its loopback address.
pub const DNS_PORT: u16 = 9053;

/// The interval between consensuses, in seconds. Relays publish new descriptors several times in
/// their first minutes, and directory caches learn of them only with the next consensus. With a
/// long interval a client that requests full descriptors gets none until then.
const VOTING_INTERVAL_S: u32 = 20;

/// The settings that differ between runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// Switches Conflux off at the client, so that optimistic data is sent early on exit circuits.
    pub no_conflux: bool,
    /// The onion services besides the first one.
    pub onions: OnionSites,
}

/// A node's own directory.
pub fn node_directory(root: &Path, node: &Node) -> PathBuf {
    root.join(&node.name)
}

/// Returns the directory in which the node's `tor` keeps its keys and caches.
pub fn data_directory(root: &Path, node: &Node) -> PathBuf {
    node_directory(root, node).join("data")
}

/// Returns the path of the node's control socket, which every namespace can use.
pub fn control_socket(root: &Path, node: &Node) -> PathBuf {
    node_directory(root, node).join("control")
}

/// The client's SOCKS socket, which can be reached from every namespace.
pub fn socks_socket(root: &Path, node: &Node) -> PathBuf {
    node_directory(root, node).join("socks")
}

/// The directory of the onion service.
pub fn service_directory(root: &Path, node: &Node) -> PathBuf {
    node_directory(root, node).join("service")
}

/// Names and addresses that `tor` resolves by.
pub fn resolver_file(root: &Path) -> PathBuf {
    root.join("resolv.conf")
}

/// The measured bandwidths that authorities vote with.
pub fn bandwidths_file(root: &Path) -> PathBuf {
    root.join("bandwidths")
}

/// The configuration of one node.
pub fn torrc(
    layout: &Layout,
    identities: &Identities,
    root: &Path,
    node: &Node,
    variant: &Variant,
) -> String {
    let mut out = common(layout, identities, root, node);
    match node.role {
        Role::Authority => {
            out.push_str(&(relay(node) + &authority(layout, identities, root, node)))
        }
        Role::Relay => out.push_str(&(relay(node) + "ExitPolicy reject *:*\n")),
        Role::Exit => out.push_str(&(relay(node) + &exit(true))),
        Role::PlainExit => out.push_str(&(relay(node) + &exit(false))),
        Role::Onion => out.push_str(&(onion(root, node) + &variant.onions.torrc(root, node))),
        Role::Client => out.push_str(&client(root, node, variant)),
        Role::Web => {}
    }
    out
}

/// Formats equal weights for all relays, without a measurement.
pub fn bandwidths(identities: &Identities, now: u64) -> String {
    let mut lines: Vec<String> = identities
        .fingerprints
        .iter()
        .map(|(name, fingerprint)| format!("node_id=${fingerprint} bw=1000 nick={name}\n"))
        .collect();
    lines.sort();
    format!("{now}\n{}", lines.concat())
}

fn common(layout: &Layout, identities: &Identities, root: &Path, node: &Node) -> String {
    let mut out = String::new();
    for authority in layout
        .nodes
        .iter()
        .filter(|node| node.role == Role::Authority)
    {
        let (name, address) = (&authority.name, authority.address);
        let of = |map: &std::collections::HashMap<String, String>| {
            map.get(name).cloned().unwrap_or_default()
        };
        let (v3, fingerprint) = (of(&identities.v3), of(&identities.fingerprints));
        let _ = writeln!(
            out,
            "DirAuthority {name} orport={OR_PORT} no-v2 v3ident={v3} {address}:{DIR_PORT} {fingerprint}"
        );
    }
    let _ = writeln!(
        out,
        "TestingTorNetwork 1\n\
         DataDirectory {data}\n\
         ShutdownWaitLength 0\n\
         SafeLogging 0\n\
         LogTimeGranularity 1\n\
         Log notice file {log}\n\
         PathsNeededToBuildCircuits 0.67\n\
         ServerDNSResolvConfFile {resolver}\n\
         ServerDNSDetectHijacking 0\n\
         ServerDNSAllowBrokenConfig 1\n\
         ServerDNSTestAddresses site1.{DOMAIN}\n\
         ServerDNSRandomizeCase 0\n\
         ControlSocket unix:{control} RelaxDirModeCheck",
        data = data_directory(root, node).display(),
        log = node_directory(root, node).join("log").display(),
        resolver = resolver_file(root).display(),
        control = control_socket(root, node).display(),
    );
    out
}

fn relay(node: &Node) -> String {
    let (name, address) = (&node.name, node.address);
    format!(
        "Nickname {name}\nAddress {address}\nORPort {address}:{OR_PORT}\nAssumeReachable 1\nContactInfo x@invalid\nSocksPort 0\n"
    )
}

fn authority(layout: &Layout, identities: &Identities, root: &Path, node: &Node) -> String {
    let exits: Vec<String> = layout
        .nodes
        .iter()
        .filter(|node| matches!(node.role, Role::Exit | Role::PlainExit))
        .filter_map(|node| {
            identities
                .fingerprints
                .get(&node.name)
                .map(|hex| format!("${hex}"))
        })
        .collect();
    format!(
        "AuthoritativeDirectory 1\n\
         V3AuthoritativeDirectory 1\n\
         DirPort {address}:{DIR_PORT}\n\
         ExitPolicy reject *:*\n\
         TestingV3AuthInitialVotingInterval 20\n\
         TestingV3AuthInitialVoteDelay 4\n\
         TestingV3AuthInitialDistDelay 4\n\
         V3AuthVotingInterval {interval}\n\
         V3AuthVoteDelay 4\n\
         V3AuthDistDelay 4\n\
         V3AuthNIntervalsValid 3\n\
         TestingDirAuthVoteExit {exits}\n\
         TestingDirAuthVoteGuard *\n\
         TestingDirAuthVoteHSDir *\n\
         TestingMinExitFlagThreshold 0\n\
         MinUptimeHidServDirectoryV2 0\n\
         V3BandwidthsFile {bandwidths}\n\
         ConsensusParams hsdir_interval=120\n",
        address = node.address,
        interval = VOTING_INTERVAL_S,
        exits = exits.join(","),
        bandwidths = bandwidths_file(root).display(),
    )
}

fn exit(with_gateway: bool) -> String {
    let announce = |(_, port)| format!("ExitPolicy accept {MARKER}:{port}\n");
    let gateway = if with_gateway {
        GATEWAY_PORTS.map(announce).concat()
    } else {
        String::new()
    };
    format!(
        "ExitRelay 1\nIPv6Exit 0\n{gateway}ExitPolicy accept *:80\nExitPolicy accept *:443\nExitPolicy reject *:*\n"
    )
}

fn onion(root: &Path, node: &Node) -> String {
    let gateways = GATEWAY_PORTS
        .map(|(_, port)| format!("HiddenServicePort {port} 127.0.0.1:{port}\n"))
        .concat();
    let directory = service_directory(root, node);
    // An onion service that starts with half a network fails at its introductions, and does not
    // retry for minutes. Each of many services needs several circuits at once.
    format!(
        "DisableNetwork 1\nSocksPort 0\nMaxClientCircuitsPending 256\nHiddenServiceDir {}\nHiddenServicePort 80 127.0.0.1:80\n{gateways}",
        directory.display()
    )
}

fn client(root: &Path, node: &Node, variant: &Variant) -> String {
    let conflux = if variant.no_conflux {
        "ConfluxEnabled 0\n"
    } else {
        ""
    };
    format!(
        "ClientOnly 1\n\
         SocksPort 127.0.0.1:{SOCKS_PORT}\n\
         SocksPort unix:{} RelaxDirModeCheck\n\
         ControlPort 127.0.0.1:{CONTROL_PORT}\n\
         HTTPTunnelPort 127.0.0.1:{HTTP_TUNNEL_PORT}\n\
         DNSPort 127.0.0.1:{DNS_PORT}\n{conflux}",
        socks_socket(root, node).display()
    )
}
