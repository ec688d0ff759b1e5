//! A measurement. It sets up a network, starts the programs on its nodes, and runs the stamps and
//! transfers of the clients.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_net::netns::Netns;
use tandem_web::loader::Via;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::file::{ChainCell, ChainSetup, ChainTimes, LinkOptions};
use super::network::{ChainLayout, ChainNode};
use crate::bench::BenchError;
use crate::bench::testbed::{Program, Testbed};
use crate::experiment::ExperimentError;
use crate::timing::client::{self, Direction, TimingPlan, WarmUp};
use crate::timing::report::TimingReport;
use crate::timing::server::TimingServer;

/// The port of the relays.
const PORT: u16 = 9980;
/// The port that tells when a relay over UDP is up.
const READY_PORT: u16 = 9981;
/// The HTTP proxy of a client.
const PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8118);
/// The timing server, on the node of the gateway.
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7000);
/// The longest wait for a reply that is missing, a little longer than that of the timing client.
const REPLY_TIMEOUT: Duration = Duration::from_secs(12);
/// The time between two stamps.
const INTERVAL: Duration = Duration::from_millis(200);

/// A set-up in a cell, and everything else that decides about its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainTrial {
    /// The set-up.
    pub setup: ChainSetup,
    /// The cell.
    pub cell: ChainCell,
    /// The properties of all links.
    pub link: LinkOptions,
    /// The phases.
    pub times: ChainTimes,
    /// The number of the run, from 0.
    pub pass: usize,
    /// The seed of packet losses.
    pub seed: u64,
}

/// The figures of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChainFigures {
    /// The circuits with bulk.
    pub circuits: Vec<Circuit>,
    /// The stamps without bulk.
    pub base: Option<ChainDelays>,
    /// The stamps beside bulk.
    pub beside: Option<ChainDelays>,
    /// The packets that the links dropped by chance, as a share of all packets.
    pub dropped: f64,
    /// The packets that found a queue full.
    pub overflowed: u64,
    /// The segments that became resets.
    pub resets: u64,
    /// The lateness of the emulator in milliseconds, 99th percentile.
    pub late_ms: f64,
    /// The load of the machine at the end, over one minute.
    pub load: f64,
}

/// A circuit with bulk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Circuit {
    /// The mean throughput over the measured time, in kB/s; 0 for a circuit that broke.
    pub kbytes_per_second: f64,
    /// True if data arrived in the last second.
    pub is_alive: bool,
    /// The reason why the circuit broke.
    pub error: Option<String>,
}

/// The round trips of stamps, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChainDelays {
    /// The number of stamps.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The number of stamps that had no reply at the end. They count with their wait.
    pub unanswered: usize,
}

impl ChainFigures {
    /// Returns the throughput of all circuits in kB/s.
    pub fn throughput(&self) -> f64 {
        let rates = self.circuits.iter().map(|it| it.kbytes_per_second);
        rates.sum()
    }

    /// Returns the number of circuits that carried data until the end.
    pub fn alive(&self) -> usize {
        self.circuits.iter().filter(|it| it.is_alive).count()
    }
}

impl ChainDelays {
    /// Returns the mean of several clients' delays.
    fn of_all(all: &[Self]) -> Option<Self> {
        let count = all.len() as f64;
        let mean = |pick: fn(&Self) -> f64| all.iter().map(pick).sum::<f64>() / count;
        (!all.is_empty()).then(|| Self {
            count: all.iter().map(|it| it.count).sum(),
            mean: mean(|it| it.mean),
            p50: mean(|it| it.p50),
            p99: mean(|it| it.p99),
            unanswered: all.iter().map(|it| it.unanswered).sum(),
        })
    }
}

impl From<&TimingReport> for ChainDelays {
    fn from(report: &TimingReport) -> Self {
        let trip = &report.measured.round_trip;
        Self {
            count: trip.count,
            mean: trip.mean,
            p50: trip.p50,
            p99: trip.p99,
            unanswered: trip.unanswered,
        }
    }
}

/// Runs a measurement. The programs run until the testbed is cleared.
///
/// # Errors
/// Fails if the network or the programs cannot be set up. A circuit that breaks is a figure.
pub fn run(
    testbed: &Testbed,
    tandem: &Path,
    trial: &ChainTrial,
) -> Result<ChainFigures, ExperimentError> {
    let times = trial.times.durations()?;
    let layout = ChainLayout::of(trial.cell.network);
    let (namespaces, emulator) = layout.set_up(trial)?;
    start_programs(testbed, tandem, trial, &layout, &namespaces)?;
    let clients = measure(&layout, &namespaces, times)
        .map_err(BenchError::system("measure through the chain"))?;
    let (snapshot, ended) = emulator.stop();
    ended.map_err(BenchError::system("run the emulated network"))?;
    let sum = |pick: fn(&tandem_net::emulator::report::LinkReport) -> u64| -> u64 {
        snapshot.links.iter().map(pick).sum()
    };
    let mut measured = ChainFigures {
        dropped: sum(|link| link.lost) as f64 / sum(|link| link.received.packets).max(1) as f64,
        overflowed: sum(|link| link.overflowed),
        resets: sum(|link| link.reset),
        late_ms: snapshot.lateness.p99_ms,
        load: load(),
        ..ChainFigures::default()
    };
    let (mut base, mut beside) = (Vec::new(), Vec::new());
    for client in clients {
        match client {
            ClientResult::Bulk(circuit) => measured.circuits.push(circuit),
            ClientResult::Stamps(before, during) => {
                base.extend(before);
                beside.extend(during);
            }
        }
    }
    measured.base = ChainDelays::of_all(&base);
    measured.beside = ChainDelays::of_all(&beside);
    Ok(measured)
}

/// Returns the load of the machine over one minute, or 0 if the system does not tell it.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().and_then(|text| text.parse().ok());
    first.unwrap_or(0.0)
}

/// Starts the gateway, the relays and the clients, each after its next node.
fn start_programs(
    testbed: &Testbed,
    tandem: &Path,
    trial: &ChainTrial,
    layout: &ChainLayout,
    namespaces: &[Netns],
) -> Result<(), ExperimentError> {
    let addresses = layout.nodes.iter().map(|node| node.address.to_string());
    let made = rcgen::generate_simple_self_signed(addresses.collect::<Vec<_>>())
        .map_err(|error| BenchError::Value(format!("cannot make a certificate: {error}")))?;
    let cert = testbed.write("chain.pem", made.cert.pem())?;
    let key = testbed.write("chain.key", made.signing_key.serialize_pem())?;
    let hop = Hop {
        setup: &trial.setup,
        listening: format!("cert={}&key={}", cert.display(), key.display()),
        dialling: format!("ca={}", cert.display()),
    };
    for (number, node) in layout.nodes.iter().enumerate() {
        let mut command = Command::new(tandem);
        let next = node.next.map(|next| &layout.nodes[next]);
        let is_client = number >= layout.relays;
        if is_client {
            command.args(["client", "--listen", &format!("http://{PROXY}")]);
        } else {
            let role = if next.is_some() { "relay" } else { "gateway" };
            command.args([role, "--workers=1", "--open", "--listen", &hop.listen(node)]);
            if !trial.setup.is_over_tcp() {
                let ready = format!("h2+tcp://{}:{READY_PORT}", node.address);
                command.args(["--listen", &ready]);
            }
        }
        match next {
            None => command.arg(format!("--allow-dest={SERVER}")),
            Some(next) => command.args(["--gateway", &hop.dial(next)]),
        };
        if next.is_some() && !is_client {
            command.arg("--share-tunnels");
        }
        command.arg(format!("--congestion={}", trial.setup.congestion));
        let network = Some(&namespaces[number]);
        let pid = testbed.start(Program {
            name: &node.name,
            command,
            core: None,
            network,
        })?;
        let address = match is_client {
            true => PROXY,
            false if trial.setup.is_over_tcp() => (node.address, PORT).into(),
            false => (node.address, READY_PORT).into(),
        };
        testbed.wait_for(pid, &node.name, address, network)?;
    }
    Ok(())
}

/// The endpoints of a hop.
struct Hop<'a> {
    setup: &'a ChainSetup,
    /// The options of a listener's certificate.
    listening: String,
    /// The options of the end that dials.
    dialling: String,
}

impl Hop<'_> {
    fn listen(&self, node: &ChainNode) -> String {
        self.endpoint(node, &self.listening)
    }

    fn dial(&self, next: &ChainNode) -> String {
        self.endpoint(next, &self.dialling)
    }

    fn endpoint(&self, node: &ChainNode, options: &str) -> String {
        let scheme = &self.setup.scheme;
        let mut text = format!("{scheme}://{}:{PORT}", node.address);
        if !scheme.ends_with("+tcp") {
            // Writing to a string cannot fail.
            let _ = write!(text, "?{options}");
            for option in &self.setup.options {
                let _ = write!(text, "&{option}");
            }
        }
        text
    }
}

/// The result of a client.
enum ClientResult {
    Bulk(Circuit),
    /// The delays without bulk and beside it. Either is absent if its connection broke.
    Stamps(Option<ChainDelays>, Option<ChainDelays>),
}

/// Runs the timing server and all clients, each in its namespace.
fn measure(
    layout: &ChainLayout,
    namespaces: &[Netns],
    times: [Duration; 3],
) -> io::Result<Vec<ClientResult>> {
    thread::scope(|scope| {
        let (ready, is_ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let gateway = &namespaces[0];
        let server = scope.spawn(move || {
            gateway.run(|| {
                let serve = async move {
                    let bound = TimingServer::bind(SERVER).await;
                    let server = bound.map_err(io::Error::other)?;
                    let _ = ready.send(());
                    tokio::select! {
                        () = server.run() => {}
                        _ = stopped => {}
                    }
                    Ok(())
                };
                block_on(serve)?
            })
        });
        let joined = || io::Error::other("a thread of the measurement panicked");
        if is_ready.recv().is_err() {
            server.join().map_err(|_| joined())??;
            return Err(io::Error::other("the timing server has ended"));
        }
        let clients = namespaces[layout.relays..].iter().enumerate();
        let running: Vec<_> = clients
            .map(|(number, namespace)| {
                let is_bulk = number < layout.bulk;
                scope.spawn(move || namespace.run(|| block_on(client(is_bulk, times))))
            })
            .collect();
        let results = running
            .into_iter()
            .map(|it| it.join().map_err(|_| joined())?);
        let results: io::Result<Vec<_>> = results.collect();
        drop(stop);
        server.join().map_err(|_| joined())??;
        results
    })
}

fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build()?;
    Ok(LocalSet::new().block_on(&runtime, future))
}

/// Runs one client through all phases.
async fn client(is_bulk: bool, [base, warm_up, measured]: [Duration; 3]) -> ClientResult {
    let start = Instant::now();
    if is_bulk {
        tokio::time::sleep(base).await;
        return ClientResult::Bulk(circuit(timing(1, warm_up, measured).await));
    }
    let stamps = |time| timing(0, Duration::ZERO, time);
    let before = stamps(base).await;
    tokio::time::sleep_until(start + base + warm_up).await;
    let during = stamps(measured).await;
    let delays = |result: Result<TimingReport, String>| result.ok().as_ref().map(ChainDelays::from);
    ClientResult::Stamps(delays(before), delays(during))
}

fn circuit(result: Result<TimingReport, String>) -> Circuit {
    match result {
        Ok(report) => Circuit {
            kbytes_per_second: report.throughput_mbit.map_or(0.0, |it| it.mean * 125.0),
            is_alive: report.seconds.last().is_some_and(|it| it.mbit > 0.0),
            error: None,
        },
        Err(error) => Circuit {
            error: Some(error),
            ..Circuit::default()
        },
    }
}

/// Runs a timing client. A circuit without a reply for [`REPLY_TIMEOUT`] has broken.
async fn timing(streams: usize, warm_up: Duration, time: Duration) -> Result<TimingReport, String> {
    let plan = TimingPlan {
        server: SERVER.to_string(),
        via: Via::Http {
            proxy: PROXY.to_string(),
        },
        streams,
        direction: Direction::Down,
        interval: INTERVAL,
        fresh: None,
        base: Duration::ZERO,
        warm_up: WarmUp::For(warm_up),
        time,
    };
    let running = client::run(&plan, |_| {});
    match tokio::time::timeout(warm_up + time + REPLY_TIMEOUT, running).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("no reply came back".to_owned()),
    }
}
