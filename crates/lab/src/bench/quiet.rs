//! `tandem-lab bench quiet`: how much longer a small answer takes while large ones share the
//! session.
//!
//! ```text
//!   near                                             far
//!   8 downloads ─┐                 emulated link
//!                ├─▶ client ═══════ one session ═══════▶ gateway ─▶ origin
//!   quiet GETs ──┘   (or two nghttpx in their places)
//! ```
//!
//! Quiet requests leave at fixed times, whether earlier ones were answered or not (open loop). Each
//! set-up gets fresh namespaces, so that no kernel remembers anything, and the same packets are
//! lost in each.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tandem_link::{LinkConfig, rate::Rate};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::programs::{self, Origin};
use super::testbed::{self, Program, Testbed};
use super::{BenchError, Size, turns};
use tandem_net::emulator::network::{NetworkError, Setup, TwoHosts};
use tandem_net::emulator::rtnl::TcpMetrics;
use tandem_net::emulator::topology::LinkText;
use tandem_net::stats;

/// Downloads beside the quiet requests.
const BULK: usize = 8;

/// Body of a quiet answer.
const QUIET_SIZE: usize = 512;

/// Time between two quiet requests.
const INTERVAL: Duration = Duration::from_millis(50);

/// Quiet requests alone.
const BASE: Duration = Duration::from_secs(4);

/// Bulk before anything counts.
const SETTLE: Duration = Duration::from_secs(4);

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8118);
const GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(FAR), 9980);
const ORIGIN: SocketAddr = SocketAddr::new(IpAddr::V4(FAR), 8080);

/// Two proxies and how they are set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "pair", rename_all = "kebab-case")]
pub enum Pair {
    /// Ours.
    Tandem {
        /// Congestion control of its sessions.
        congestion: String,
        /// Unsent bytes in the kernel, where not as by default.
        notsent_lowat: Option<String>,
    },
    /// Ours over DTLS, with a stream for each exchange.
    TandemDtls {
        /// Congestion control of its tunnel.
        congestion: String,
    },
    /// Ours over QUIC, with HTTP/3.
    TandemQuic {
        /// Congestion control of its connection.
        congestion: String,
    },
    /// Two nghttpx with windows that never limit: a multiplexer that does nothing special.
    Nghttpx {
        /// Congestion control of its connection.
        congestion: String,
    },
}

impl Pair {
    fn congestion(&self) -> &str {
        match self {
            Self::Tandem { congestion, .. }
            | Self::TandemDtls { congestion }
            | Self::TandemQuic { congestion }
            | Self::Nghttpx { congestion } => congestion,
        }
    }

    fn label(&self) -> String {
        match self {
            Self::Tandem {
                congestion,
                notsent_lowat: None,
            } => format!("tandem {congestion}"),
            Self::Tandem {
                congestion,
                notsent_lowat: Some(lowat),
            } => format!("tandem {congestion} lowat {lowat}"),
            Self::TandemDtls { congestion } => format!("tandem dtls {congestion}"),
            Self::TandemQuic { congestion } => format!("tandem quic {congestion}"),
            Self::Nghttpx { congestion } => format!("nghttpx {congestion}"),
        }
    }
}

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct QuietPlan {
    /// The program under test.
    pub tandem: PathBuf,
    /// The link; its queue is one product of rate and round trip unless it says otherwise.
    pub link: LinkText,
    /// The pairs.
    pub pairs: Vec<Pair>,
    /// Time that counts, with bulk.
    pub time: Duration,
    /// The number of turns of each pair; each pass has different losses.
    pub passes: usize,
}

/// The results of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct QuietReport {
    /// A run for each pair and pass.
    pub runs: Vec<Run>,
}

/// The results of a pair in one pass.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The pair.
    #[serde(flatten)]
    pub pair: Pair,
    /// Pass, from 0.
    pub pass: usize,
    /// Quiet requests alone.
    pub base: QuietDelays,
    /// Quiet requests beside bulk.
    pub beside: QuietDelays,
    /// The ratio of the medians.
    pub ratio_p50: f64,
    /// The ratio of the 99th percentiles.
    pub ratio_p99: f64,
    /// Bytes of the downloads' bodies in megabits per second.
    pub goodput_mbit: f64,
    /// Packets that found the queue full, towards the near side.
    pub overflowed: u64,
    /// Packets that the link lost, towards the near side.
    pub lost: u64,
    /// Median time in the link's queue towards the near side, in milliseconds.
    pub queue_ms: f64,
    /// How much later than due the emulator handed packets over, 99th percentile in milliseconds; a
    /// run with more than a few says more about the machine than about the pair.
    pub late_ms: f64,
}

/// Times from a quiet request's moment to the end of its answer, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QuietDelays {
    /// Requests.
    pub count: usize,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Without an answer at the end; they count with the time that they had waited.
    pub unanswered: usize,
}

/// Runs the measurement; `say` receives progress messages.
pub fn run(plan: &QuietPlan, say: &mut dyn FnMut(&str)) -> Result<QuietReport, BenchError> {
    if !testbed::raise_priority() {
        say("without root, other programs on this machine disturb the times");
    }
    let testbed = Testbed::open()?;
    let mut runs = Vec::new();
    for pass in 0..plan.passes {
        for at in turns(pass, plan.pairs.len()) {
            let pair = &plan.pairs[at];
            say(&format!(
                "pass {} of {}: {}",
                pass + 1,
                plan.passes,
                pair.label()
            ));
            runs.push(one_run(plan, &testbed, pair, pass)?);
            testbed.clear();
        }
    }
    Ok(QuietReport { runs })
}

fn one_run(
    plan: &QuietPlan,
    testbed: &Testbed,
    pair: &Pair,
    pass: usize,
) -> Result<Run, BenchError> {
    let network = network(&plan.link, pair.congestion(), pass as u64 + 1)?;
    let root = programs::write_files(testbed, &[Size(QUIET_SIZE)])?;
    let bulk = std::fs::File::create(root.join("bulk")).and_then(|file| file.set_len(1 << 33));
    bulk.map_err(BenchError::system("make a large file"))?;
    Origin {
        address: ORIGIN,
        lines: String::new(),
        root,
    }
    .start(testbed, None, Some(&network.far))?;
    start_pair(plan, testbed, pair, &network)?;
    let time = plan.time;
    let measured = network.near.run(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        LocalSet::new().block_on(&runtime, measure(time))
    });
    let measured = measured.map_err(BenchError::system("measure through the pair"))?;
    let (snapshot, ended) = network.emulator.stop();
    ended.map_err(BenchError::system("run the emulated link"))?;
    let down = snapshot.links.iter().find(|link| link.from == "far");
    let delays = |samples: &[f64], unanswered| {
        let at = |percent| stats::percentile(samples, percent);
        let all = at(50.0).zip(at(99.0)).map(|(p50, p99)| QuietDelays {
            count: samples.len(),
            p50,
            p99,
            unanswered,
        });
        all.ok_or_else(|| BenchError::Value("no quiet request was answered".into()))
    };
    let base = delays(&measured.base.answered, measured.base.unanswered)?;
    let beside = delays(&measured.beside.answered, measured.beside.unanswered)?;
    Ok(Run {
        pair: pair.clone(),
        pass,
        base,
        beside,
        ratio_p50: beside.p50 / base.p50,
        ratio_p99: beside.p99 / base.p99,
        goodput_mbit: measured.goodput_mbit,
        overflowed: down.map_or(0, |link| link.overflowed),
        lost: down.map_or(0, |link| link.lost),
        queue_ms: down.map_or(0.0, |link| link.queue_delay.p50_ms),
        late_ms: snapshot.lateness.p99_ms,
    })
}

fn network(link: &LinkText, congestion: &str, seed: u64) -> Result<TwoHosts, BenchError> {
    let no_traces = |path: &str| Err(io::Error::new(io::ErrorKind::Unsupported, path.to_owned()));
    let mut directions = link
        .directions("link", &no_traces)
        .map_err(NetworkError::from)?;
    if link.queue.is_none() {
        let round_trip = directions[0].delay + directions[1].delay;
        directions
            .iter_mut()
            .for_each(|direction| queue_one_product(direction, round_trip));
    }
    let congestion = Some(congestion.to_owned()).filter(|name| !name.is_empty());
    let setup = Setup {
        tcp: TcpMetrics {
            congestion,
            initial_window: None,
        },
        ..Setup::default()
    };
    Ok(TwoHosts::set_up([NEAR, FAR], directions, seed, &setup)?)
}

/// Sets a drop-tail queue of one bandwidth-delay product.
fn queue_one_product(direction: &mut LinkConfig, round_trip: Duration) {
    if let Rate::Constant(bits) = direction.rate {
        let packets = bits as f64 / 8.0 * round_trip.as_secs_f64() / 1500.0;
        direction.queue = tandem_link::queue::QueueLimits {
            packets: Some((packets as usize).max(1)),
            bytes: None,
            codel: None,
        };
    }
}

/// Returns the commands of the client and the gateway of a pair.
fn commands(
    plan: &QuietPlan,
    testbed: &Testbed,
    pair: &Pair,
) -> Result<(Command, Command), BenchError> {
    Ok(match pair {
        Pair::Tandem {
            congestion,
            notsent_lowat,
        } => {
            let options = |command: &mut Command| {
                command.arg(format!("--congestion={congestion}"));
                command.args(
                    notsent_lowat
                        .iter()
                        .map(|lowat| format!("--notsent-lowat={lowat}")),
                );
            };
            let mut gateway =
                programs::gateway(&plan.tandem, &format!("h2+tcp://{GATEWAY}"), ORIGIN);
            let mut client = Command::new(&plan.tandem);
            client.args([
                "client",
                "--listen",
                &format!("http://{PROXY}"),
                "--gateway",
                &format!("h2+tcp://{GATEWAY}"),
            ]);
            options(&mut gateway);
            options(&mut client);
            (client, gateway)
        }
        Pair::TandemDtls { congestion } => {
            let mut pair = udp_pair(plan, testbed, "http+dtls", "")?;
            for command in [&mut pair.0, &mut pair.1] {
                command.arg(format!("--congestion={congestion}"));
            }
            pair
        }
        Pair::TandemQuic { congestion } => {
            let options = format!("&congestion={congestion}");
            udp_pair(plan, testbed, "h3+quic", &options)?
        }
        Pair::Nghttpx { .. } => {
            let mut gateway =
                programs::nghttpx(&front(GATEWAY), &programs::backend(ORIGIN), testbed)?;
            gateway.args([
                "--frontend-http2-window-size=8M",
                "--frontend-http2-connection-window-size=16M",
            ]);
            let backend = format!("{};;proto=h2", programs::backend(GATEWAY));
            let mut client = programs::nghttpx(&front(PROXY), &backend, testbed)?;
            client.args(["--http2-proxy", "--backend-http2-window-size=8M"]);
            client.arg("--backend-http2-connection-window-size=16M");
            (client, gateway)
        }
    })
}

fn start_pair(
    plan: &QuietPlan,
    testbed: &Testbed,
    pair: &Pair,
    network: &TwoHosts,
) -> Result<(), BenchError> {
    let (client, gateway) = commands(plan, testbed, pair)?;
    let pid = testbed.start(Program {
        name: "gateway",
        command: gateway,
        core: None,
        network: Some(&network.far),
    })?;
    testbed.wait_for(pid, "gateway", GATEWAY, Some(&network.far))?;
    let pid = testbed.start(Program {
        name: "client",
        command: client,
        core: None,
        network: Some(&network.near),
    })?;
    testbed.wait_for(pid, "client", PROXY, Some(&network.near))
}

/// Our pair over UDP. The gateway also listens on TCP at the same port, which tells when it is up.
/// `options` are those of both endpoints.
fn udp_pair(
    plan: &QuietPlan,
    testbed: &Testbed,
    scheme: &str,
    options: &str,
) -> Result<(Command, Command), BenchError> {
    let made = rcgen::generate_simple_self_signed(vec![FAR.to_string()])
        .map_err(|error| BenchError::Value(format!("cannot make a certificate: {error}")))?;
    let cert = testbed.write("gw.pem", made.cert.pem())?;
    let key = testbed.write("gw.key", made.signing_key.serialize_pem())?;
    let (cert, key) = (cert.display(), key.display());
    let mut gateway = programs::gateway(&plan.tandem, &format!("h2+tcp://{GATEWAY}"), ORIGIN);
    gateway.args([
        "--listen",
        &format!("{scheme}://{GATEWAY}?cert={cert}&key={key}{options}"),
    ]);
    let mut client = Command::new(&plan.tandem);
    client.args(["client", "--listen", &format!("http://{PROXY}")]);
    let dialled = format!("{scheme}://{GATEWAY}?ca={cert}{options}");
    client.args(["--gateway", &dialled]);
    Ok((client, gateway))
}

fn front(address: SocketAddr) -> String {
    format!("{},{};no-tls", address.ip(), address.port())
}

struct QuietFigures {
    base: Quiet,
    beside: Quiet,
    goodput_mbit: f64,
}

async fn measure(time: Duration) -> io::Result<QuietFigures> {
    // Opens the session, so that the base has no handshake in it.
    get(&mut None).await?;
    let base = quiet(BASE).await?;
    let received = Rc::new(Cell::new(0));
    let failed = Rc::new(RefCell::new(None));
    for _ in 0..BULK {
        let (received, failed) = (Rc::clone(&received), Rc::clone(&failed));
        tokio::task::spawn_local(async move {
            if let Err(error) = download(&received).await {
                failed.borrow_mut().get_or_insert(error);
            }
        });
    }
    tokio::time::sleep(SETTLE).await;
    let (before, start) = (received.get(), Instant::now());
    let beside = quiet(time).await?;
    let goodput_mbit = (received.get() - before) as f64 * 8.0 / 1e6 / start.elapsed().as_secs_f64();
    match failed.take() {
        Some(error) => Err(error),
        None => Ok(QuietFigures {
            base,
            beside,
            goodput_mbit,
        }),
    }
}

/// Downloads one large body until dropped.
async fn download(received: &Cell<u64>) -> io::Result<()> {
    let mut stream = TcpStream::connect(PROXY).await?;
    stream.write_all(&request("/bulk")).await?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match stream.read(&mut buffer).await? {
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "a download ended",
                ));
            }
            count => received.set(received.get() + count as u64),
        }
    }
}

#[derive(Default)]
struct Quiet {
    /// Milliseconds, those that had to be given up too.
    answered: Vec<f64>,
    unanswered: usize,
}

/// Quiet requests at their times, for a while and until the last is answered or has waited for a
/// second.
async fn quiet(time: Duration) -> io::Result<Quiet> {
    let delays = Rc::new(RefCell::new(Vec::<Option<f64>>::new()));
    let kept = Rc::new(RefCell::new(Vec::new()));
    let failed = Rc::new(RefCell::new(None));
    let start = Instant::now();
    let count = (time.as_secs_f64() / INTERVAL.as_secs_f64()) as u32;
    for number in 0..count {
        tokio::time::sleep_until(start + INTERVAL * number).await;
        delays.borrow_mut().push(None);
        let (delays, kept, failed) = (Rc::clone(&delays), Rc::clone(&kept), Rc::clone(&failed));
        tokio::task::spawn_local(async move {
            let mut connection = kept.borrow_mut().pop();
            let result = get(&mut connection).await;
            let due = start + INTERVAL * number;
            match result {
                Ok(()) => {
                    delays.borrow_mut()[number as usize] = Some(due.elapsed().as_secs_f64() * 1e3)
                }
                Err(error) => *failed.borrow_mut() = Some(error),
            }
            kept.borrow_mut().extend(connection);
        });
    }
    let end = start + time + Duration::from_secs(1);
    while delays.borrow().contains(&None) && failed.borrow().is_none() && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    if let Some(error) = failed.take() {
        return Err(error);
    }
    let delays = delays.take();
    let waited = |number: usize| (start + INTERVAL * number as u32).elapsed().as_secs_f64() * 1e3;
    let unanswered = delays.iter().filter(|delay| delay.is_none()).count();
    let answered = delays
        .iter()
        .enumerate()
        .map(|(number, delay)| delay.unwrap_or_else(|| waited(number)))
        .collect();
    Ok(Quiet {
        answered,
        unanswered,
    })
}

/// Makes a quiet exchange, on a kept connection to the proxy or a new one.
async fn get(connection: &mut Option<TcpStream>) -> io::Result<()> {
    let mut stream = match connection.take() {
        Some(stream) => stream,
        None => TcpStream::connect(PROXY).await?,
    };
    stream
        .write_all(&request(&format!("/{QUIET_SIZE}")))
        .await?;
    let mut input = Vec::new();
    loop {
        if stream.read_buf(&mut input).await? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "no quiet answer",
            ));
        }
        let head = input.windows(4).position(|four| four == b"\r\n\r\n");
        if head.is_some_and(|head| input.len() >= head + 4 + QUIET_SIZE) {
            break;
        }
    }
    if !input.starts_with(b"HTTP/1.1 200") {
        let line = String::from_utf8_lossy(&input)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        return Err(io::Error::other(line));
    }
    *connection = Some(stream);
    Ok(())
}

fn request(path: &str) -> Vec<u8> {
    format!("GET http://{ORIGIN}{path} HTTP/1.1\r\nHost: {ORIGIN}\r\n\r\n").into_bytes()
}

impl QuietReport {
    /// Formats the results as text.
    pub fn table(&self) -> String {
        let mut out = String::from(
            "pair                     pass  base p50/p99 ms   beside p50/p99 ms   ratio p50   p99  Mbit/s  unanswered\n",
        );
        for run in &self.runs {
            let _ = writeln!(
                out,
                "{:<24} {:>4}  {:>7.1} / {:<7.1} {:>8.1} / {:<8.1} {:>9.2} {:>6.2} {:>6.1} {:>8}   (queue {:.0} ms, {} overflowed, {} lost, {:.1} ms late)",
                run.pair.label(),
                run.pass + 1,
                run.base.p50,
                run.base.p99,
                run.beside.p50,
                run.beside.p99,
                run.ratio_p50,
                run.ratio_p99,
                run.goodput_mbit,
                run.beside.unanswered,
                run.queue_ms,
                run.overflowed,
                run.lost,
                run.late_ms,
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_holds_one_round_trip() {
        let mut direction = LinkConfig {
            rate: Rate::Constant(100_000_000),
            ..LinkConfig::default()
        };
        queue_one_product(&mut direction, Duration::from_millis(100));
        assert_eq!(direction.queue.packets, Some(833));
    }
}
