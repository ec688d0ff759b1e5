//! The description of a run: everything that is needed to repeat it, before its counters.

use serde::Serialize;
use tandem_net::emulator::Snapshot;
use tandem_net::emulator::topology::Topology;

use crate::options::RunArguments;

/// The content of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    run: Run,
    #[serde(flatten)]
    counters: Snapshot,
}

#[derive(Debug, Serialize)]
struct Run {
    command: Vec<String>,
    version: &'static str,
    seed: u64,
    mtu: u32,
    /// Congestion control of TCP over the link; the kernel's own unless given.
    congestion: String,
    /// Initial window in segments; none is the kernel's own.
    initial_window: Option<u32>,
    links: Vec<Link>,
    machine: Machine,
}

#[derive(Debug, Serialize)]
struct Link {
    between: [String; 2],
    /// The directions: first to second, second to first.
    directions: [String; 2],
}

#[derive(Debug, Serialize)]
struct Machine {
    kernel: String,
    processors: usize,
}

impl Record {
    pub(crate) fn new(topology: &Topology, arguments: &RunArguments, counters: Snapshot) -> Self {
        let tcp = arguments.tcp();
        let links = topology.links.iter().map(|link| Link {
            between: link.between.clone(),
            directions: link.directions.each_ref().map(ToString::to_string),
        });
        let run = Run {
            command: std::env::args_os()
                .map(|part| part.to_string_lossy().into_owned())
                .collect(),
            version: env!("CARGO_PKG_VERSION"),
            seed: topology.seed,
            mtu: arguments.mtu,
            congestion: tcp
                .congestion
                .unwrap_or_else(|| kernel("net/ipv4/tcp_congestion_control")),
            initial_window: tcp.initial_window,
            links: links.collect(),
            machine: Machine {
                kernel: kernel("kernel/osrelease"),
                processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            },
        };
        Self { run, counters }
    }
}

/// A setting of the kernel; empty where it has none.
fn kernel(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/{name}"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}
