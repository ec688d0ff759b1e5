//! Parts of a private network before it runs: its state, the arguments of its programs, its files.

use super::super::TornetError;
use super::super::control::Control;
use super::super::layout::{
    GATEWAY_PORT, GATEWAY_PORTS, Layout, MARKER, MOST_SITES, Node, Role, site_address, site_name,
};
use super::super::state::{Endpoints, Phase, Process, RunDirectory, SiteEndpoint, State};
use super::super::torrc::{self};
use super::*;
use std::fs::{self};
use std::io::{self};
use std::net::Ipv4Addr;
use std::path::Path;
use tandem_net::emulator::rtnl::Rtnl;

pub(super) fn new_state(request: &Request, layout: &Layout, directory: &RunDirectory) -> State {
    let client = layout.node(Role::Client);
    let local = |port: u16| format!("127.0.0.1:{port}");
    State {
        instance: request.instance.clone(),
        phase: Phase::Starting,
        supervisor: Process::new("supervisor", "", std::process::id()),
        nodes: layout.nodes.clone(),
        processes: Vec::new(),
        endpoints: Endpoints {
            client_namespace: client.namespace.clone(),
            socks: local(torrc::SOCKS_PORT),
            socks_socket: torrc::socks_socket(directory.path(), client),
            control: local(torrc::CONTROL_PORT),
            control_socket: torrc::control_socket(directory.path(), client),
            http_tunnel: local(torrc::HTTP_TUNNEL_PORT),
            exit_gateway: request
                .gateway
                .as_ref()
                .map(|_| format!("{MARKER}:{GATEWAY_PORT}")),
            exit_fingerprint: String::new(),
            onion: None,
            onions: Vec::new(),
            sites: sites(&request.origin, layout.node(Role::Web).address),
        },
        delay_ms: request.delay.as_millis() as u64,
        web_delay_ms: request.web_delay.as_millis() as u64,
        conflux: !request.variant.no_conflux,
    }
}

pub(super) fn sites(origin: &TornetOrigin, web: Ipv4Addr) -> Vec<SiteEndpoint> {
    let pages = match origin {
        TornetOrigin::None => Vec::new(),
        TornetOrigin::Shell(line) => vec![line.clone()],
        TornetOrigin::Pages(_, pages) => pages.clone(),
    };
    let site = |(n, page)| SiteEndpoint {
        host: site_name(n),
        address: site_address(web, n),
        page,
    };
    (1..=MOST_SITES).zip(pages).map(site).collect()
}

pub(super) fn origin_arguments<'a>(
    listen: &'a str,
    page: &'a str,
    authority: &'a str,
) -> [&'a std::ffi::OsStr; 7] {
    [
        "origin",
        "--listen",
        listen,
        "--page",
        page,
        "--authority",
        authority,
    ]
    .map(AsRef::as_ref)
}

/// The gateway's command line on the nodes that have one.
pub(super) fn gateway_arguments(layout: &Layout, node: &Node) -> Option<Vec<String>> {
    let listen = |address| {
        GATEWAY_PORTS
            .map(|(name, port)| format!(" --listen {name}+tcp://{address}:{port}"))
            .concat()
    };
    let line = match node.role {
        Role::Exit => {
            let [a, b, c, _] = layout.node(Role::Web).address.octets();
            format!(
                "gateway --mode forward --open --hold-out 0 --allow-dest {a}.{b}.{c}.0/24{}",
                listen(MARKER)
            )
        }
        Role::Onion => {
            format!(
                "gateway --mode reverse=http://127.0.0.1:80 --open --hold-out 0{}",
                listen(Ipv4Addr::LOCALHOST)
            )
        }
        _ => return None,
    };
    Some(line.split(' ').map(str::to_owned).collect())
}

pub(super) fn add_marker() -> io::Result<()> {
    let mut rtnl = Rtnl::open()?;
    let loopback = rtnl.index("lo")?;
    rtnl.add_address(loopback, MARKER.into())
}

pub(super) fn relays_known(socket: &Path) -> usize {
    let all = Control::connect(socket).and_then(|mut control| control.info("ns/all"));
    all.map_or(0, |all| {
        all.lines().filter(|line| line.starts_with("r ")).count()
    })
}

pub(super) fn bootstrap(socket: &Path) -> u8 {
    Control::connect(socket)
        .and_then(|mut control| control.bootstrap())
        .unwrap_or(0)
}

pub(super) fn make_private(directory: &Path) -> Result<(), TornetError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(TornetError::of(format!("make {}", directory.display())))
}

pub(super) fn write(file: &Path, text: &str) -> Result<(), TornetError> {
    fs::write(file, text).map_err(TornetError::of(format!("write {}", file.display())))
}
