//! The network of a trial: two network namespaces, the emulated link between them, the origins at
//! the far side and the proxies of one set-up. Namespaces have no names and vanish with the
//! network; programs end with it.
//!
//! ```text
//!   near                                       far (10.77.0.2)
//!   loader ──────────────┐  emulated link  ┌──▶ origins :8080…, with TLS :8480…
//!      └──▶ client :8118 ┴═════════════════┴▶ gateway :9980 ──▶ origins
//!                  └─────═════════════════────▶ origins      (solo, without a gateway)
//! ```

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::download;
use super::file::{Setup, Way};
use super::point::{Conditions, Origins};
use crate::bench::testbed::{Program, Testbed};
use crate::bench::{BenchError, programs};
use tandem_net::emulator::network::{self, NetworkError, Setup as NetworkSetup, TwoHosts};
use tandem_net::emulator::report::Traffic;
use tandem_net::emulator::rtnl::TcpMetrics;
use tandem_net::emulator::topology::ReadTrace;
use tandem_net::emulator::{Emulator, Snapshot};
use tandem_net::netns::Netns;
use tandem_web::origin::{Counts, Origin, Running};
use tandem_web::page::Page;

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The address of the origins and of the gateway.
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The address at which the loader finds the client.
pub const PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8118);
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8119);
const GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(FAR), 9980);
/// The listener over TCP that shows that a gateway over UDP is up.
const READY: SocketAddr = SocketAddr::new(IpAddr::V4(FAR), 9981);
/// The gateway's name in its certificate, for clients that do not check addresses in it.
const NAME: &str = "gateway.test";
/// The file with the names of the far host.
const HOSTS: &str = "hosts";
/// First ports of the origins.
const PLAIN: u16 = 8080;
const SECURE: u16 = 8480;

/// The link's counters are this old at most, twice over.
const COUNTERS: Duration = Duration::from_millis(220);
/// The longest wait for remaining traffic after a load.
const SETTLE: Duration = Duration::from_secs(10);
/// The time limit of one exchange beside a load.
const EXCHANGE: Duration = Duration::from_secs(60);

/// The settings that all trials of an experiment share.
#[derive(Debug)]
pub struct TrialContext {
    /// Programs and their files.
    pub testbed: Testbed,
    /// The program under test.
    pub tandem: PathBuf,
    /// The runtime of the origins.
    pub runtime: Runtime,
    /// Directory for the requests and packets of each load.
    pub traces: Option<PathBuf>,
}

/// A network with origins at its far side.
#[derive(Debug)]
pub struct TrialNetwork<'a> {
    context: &'a TrialContext,
    near: Netns,
    far: Netns,
    emulator: Emulator,
    origins: Vec<Running>,
}

/// The traffic that the link has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Carried {
    /// The traffic from the near side.
    pub up: Traffic,
    /// The traffic to the near side.
    pub down: Traffic,
    /// Lost, or without room in the queue.
    pub lost: u64,
}

impl TrialContext {
    /// Opens it. To be called before any thread is started: signals end everything from here on.
    pub fn open(tandem: PathBuf, traces: Option<PathBuf>) -> Result<Self, BenchError> {
        let testbed = Testbed::open()?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(BenchError::system("start a runtime"))?;
        certificate(&testbed)?;
        if let Some(directory) = &traces {
            std::fs::create_dir_all(directory).map_err(BenchError::system(format!(
                "create {}",
                directory.display()
            )))?;
        }
        Ok(Self {
            testbed,
            tandem,
            runtime,
            traces,
        })
    }
}

impl<'a> TrialNetwork<'a> {
    /// Sets up the network; the seed decides each packet's fate. `read_trace` reads the traces that
    /// the conditions name. The packets at the near host are written to `capture`.
    pub fn set_up(
        context: &'a TrialContext,
        conditions: &Conditions,
        read_trace: ReadTrace<'_>,
        seed: u64,
        capture: Option<PathBuf>,
    ) -> Result<Self, BenchError> {
        let directions = conditions
            .link
            .directions("link", read_trace)
            .map_err(NetworkError::from)?;
        let tcp = TcpMetrics {
            congestion: conditions.congestion.clone(),
            initial_window: conditions.initial_window,
        };
        let captures = capture.map(|path| (network::NEAR.to_owned(), path));
        let setup = NetworkSetup {
            tcp,
            captures: captures.into_iter().collect(),
            ..NetworkSetup::default()
        };
        let TwoHosts {
            near,
            far,
            emulator,
        } = TwoHosts::set_up([NEAR, FAR], directions, seed, &setup)?;
        Ok(Self {
            context,
            near,
            far,
            emulator,
            origins: Vec::new(),
        })
    }

    /// Authorities of the origins of a page.
    pub fn authorities(origins: Origins, page: &Page, secure: bool) -> Vec<String> {
        let first = if secure { SECURE } else { PLAIN };
        match origins {
            Origins::Shards(shards) => (first..)
                .take(shards.max(1))
                .map(|port| format!("{FAR}:{port}"))
                .collect(),
            Origins::Recorded => page
                .hosts
                .iter()
                .map(|host| format!("{}:{first}", name_of(host)))
                .collect(),
        }
    }

    /// Serves a site at its authorities. Names are those of the far host.
    pub fn serve(&mut self, origin: &Origin) -> Result<(), BenchError> {
        let failed = || BenchError::system("listen at the far side");
        let ports = origin.site().authorities().iter().filter_map(|authority| {
            let (_, port) = authority.rsplit_once(':')?;
            port.parse::<u16>().ok()
        });
        let addresses: BTreeSet<SocketAddr> = ports
            .map(|port| SocketAddr::new(FAR.into(), port))
            .collect();
        let mut hosts = String::from("127.0.0.1 localhost\n");
        for authority in origin.site().authorities() {
            hosts.push_str(&format!("{FAR} {}\n", name_of(authority)));
        }
        self.context.testbed.write(HOSTS, hosts)?;
        let bind = || {
            addresses
                .iter()
                .map(TcpListener::bind)
                .collect::<io::Result<Vec<_>>>()
        };
        let _inside = self.context.runtime.enter();
        for listener in self.far.run(bind).map_err(failed())? {
            listener.set_nonblocking(true).map_err(failed())?;
            let listener = tokio::net::TcpListener::from_std(listener).map_err(failed())?;
            self.origins.push(origin.spawn(listener).map_err(failed())?);
        }
        Ok(())
    }

    /// Starts the far proxy of a set-up; nothing where it has none.
    pub fn start_gateway(&self, setup: &Setup) -> Result<(), BenchError> {
        let command = match setup.way {
            Way::Http | Way::Https | Way::H2 | Way::Solo => return Ok(()),
            Way::Pair => self.gateway(setup),
            Way::Other => self.other(&setup.far),
            Way::Nghttpx => {
                let origin = SocketAddr::new(FAR.into(), PLAIN);
                let testbed = &self.context.testbed;
                let front = if setup.tls {
                    tls_front(GATEWAY)
                } else {
                    front(GATEWAY)
                };
                let mut command = programs::nghttpx(&front, &programs::backend(origin), testbed)?;
                command.args([
                    "--frontend-http2-window-size=8M",
                    "--frontend-http2-connection-window-size=16M",
                ]);
                command.args([
                    "--no-location-rewrite",
                    "--frontend-http2-max-concurrent-streams=2000",
                ]);
                if setup.tls {
                    command
                        .args(["key.pem", "cert.pem"].map(|file| testbed.directory().join(file)));
                }
                command
            }
        };
        let ready = if setup.session.is_over_udp() || setup.way == Way::Other {
            READY
        } else {
            GATEWAY
        };
        self.start("gateway", command, ready, &self.far).map(drop)
    }

    fn gateway(&self, setup: &Setup) -> Command {
        let files = self.context.testbed.directory();
        let directory = files.display();
        let own = format!("cert={directory}/cert.pem&key={directory}/key.pem");
        let listen = endpoint(setup, &own);
        let mut command = self.with_names();
        command.args([
            "gateway",
            "--workers=1",
            "--open",
            "--listen",
            &listen,
            "--hold-out=0",
        ]);
        if setup.session.is_over_udp() {
            command.arg(format!("--listen=h2+tcp://{READY}"));
        }
        command
            .arg(format!("--allow-dest={FAR}/32"))
            .arg(format!("--metrics={METRICS}"))
            .arg("--max-streams=2000");
        command
            .arg(format!("--push={}", setup.push))
            .args(&setup.gateway_options);
        command
    }

    /// Starts the near proxy of a set-up, and says its process; nothing where it has none.
    pub fn start_client(&self, setup: &Setup) -> Result<Option<u32>, BenchError> {
        let command = match setup.way {
            Way::Http | Way::Https | Way::H2 => return Ok(None),
            Way::Pair => self.client(setup),
            Way::Solo => self.solo(setup),
            Way::Other => self.other(&setup.near),
            Way::Nghttpx => {
                let tls = if setup.tls {
                    format!(";tls;sni={NAME}")
                } else {
                    String::new()
                };
                let backend = format!("{};;proto=h2{tls}", programs::backend(GATEWAY));
                let mut command =
                    programs::nghttpx(&front(PROXY), &backend, &self.context.testbed)?;
                command.args(["--http2-proxy", "--backend-http2-window-size=8M"]);
                command.arg("--backend-http2-connection-window-size=16M");
                if setup.tls {
                    command.arg(format!(
                        "--cacert={}/cert.pem",
                        self.context.testbed.directory().display()
                    ));
                }
                command
            }
        };
        self.start("client", command, PROXY, &self.near).map(Some)
    }

    fn client(&self, setup: &Setup) -> Command {
        let directory = self.context.testbed.directory().display();
        let gateway = endpoint(setup, &format!("ca={directory}/cert.pem"));
        let mut command = Command::new(&self.context.tandem);
        command.args([
            "client",
            "--listen",
            &format!("http://{PROXY}"),
            "--gateway",
            &gateway,
        ]);
        command
            .arg(format!("--metrics={METRICS}"))
            .arg("--max-connections=4000");
        // Without it the session begins with the load, as a browser's own connections do.
        command.arg(format!("--preconnect={}", setup.warm));
        if setup.resume {
            let idle = download::IDLE.as_secs();
            command.arg(format!("--idle-timeout={idle}s"));
        }
        command
            .arg(format!("--push={}", setup.push))
            .args(programs::without_compression(&setup.client_options))
            .args(&setup.client_options);
        command
    }

    /// Returns a command of other programs.
    fn other(&self, script: &str) -> Command {
        let files = self.context.testbed.directory();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("exec {script}")]);
        command
            .env("GATEWAY", GATEWAY.to_string())
            .env("READY", READY.to_string())
            .env("PROXY", PROXY.to_string())
            .env("CERT", files.join("cert.pem"))
            .env("KEY", files.join("key.pem"));
        command
    }

    /// Returns a command of the program under test that alone knows the far host's names.
    fn with_names(&self) -> Command {
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        command.args(["--mount", "/bin/sh", "-c", script]);
        let files = self.context.testbed.directory();
        command.arg(files.join(HOSTS)).arg(&self.context.tandem);
        command
    }

    /// Returns the command of a client without a gateway.
    fn solo(&self, setup: &Setup) -> Command {
        let mut command = self.with_names();
        command.args(["client", "--solo=direct", "--solo-hold-out=0"]);
        command
            .arg(format!("--listen=http://{PROXY}"))
            .arg(format!("--solo-allow-dest={FAR}/32"))
            .arg(format!("--metrics={METRICS}"))
            .arg("--max-connections=4000")
            .args(&setup.client_options);
        command
    }

    fn start(
        &self,
        name: &str,
        command: Command,
        address: SocketAddr,
        at: &Netns,
    ) -> Result<u32, BenchError> {
        let testbed = &self.context.testbed;
        let pid = testbed.start(Program {
            name,
            command,
            core: None,
            network: Some(at),
        })?;
        testbed.wait_for(pid, name, address, Some(at))?;
        Ok(pid)
    }

    /// Ends a program as its user does, so that it closes its sessions.
    pub fn stop(&self, pid: Option<u32>) {
        if let Some(pid) = pid {
            self.context.testbed.stop(pid);
        }
    }

    /// Runs a future at the near side, on a new thread with a separate runtime.
    pub fn near<R: Send>(&self, work: impl AsyncFnOnce() -> R + Send) -> io::Result<R> {
        self.near.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            Ok(runtime.block_on(work()))
        })
    }

    /// Opens the session of a pair by one small exchange with an origin.
    pub fn warm_up(&self) -> Result<(), BenchError> {
        let origin = SocketAddr::new(FAR.into(), PLAIN);
        self.get(
            PROXY,
            &format!("http://{origin}/bytes/1000"),
            &origin.to_string(),
        )
        .map(drop)
    }

    /// Returns the counters of our client.
    pub fn metrics(&self) -> Result<String, BenchError> {
        Self::metrics_at(&self.near)
    }

    /// Returns the counters of our gateway.
    pub fn gateway_metrics(&self) -> Result<String, BenchError> {
        Self::metrics_at(&self.far)
    }

    fn metrics_at(side: &Netns) -> Result<String, BenchError> {
        let text = Self::ask(side, METRICS, "/metrics", &METRICS.to_string())?;
        String::from_utf8(text).map_err(|_| BenchError::Value("the counters are no text".into()))
    }

    /// Returns a connection by the way of a set-up, and the request for a target of the origin.
    pub fn request(&self, setup: &Setup, target: &str) -> io::Result<(TcpStream, String)> {
        let origin = SocketAddr::new(FAR.into(), PLAIN);
        let (to, before) = match setup.way {
            Way::Http | Way::Https | Way::H2 => (origin, String::new()),
            _ => (PROXY, format!("http://{origin}")),
        };
        let socket = self.near.run(|| TcpStream::connect(to))?;
        let request = format!("GET {before}{target} HTTP/1.1\r\nHost: {origin}\r\n\r\n");
        Ok((socket, request))
    }

    fn get(&self, to: SocketAddr, target: &str, host: &str) -> Result<Vec<u8>, BenchError> {
        Self::ask(&self.near, to, target, host)
    }

    /// Returns the body of a response with status 200.
    fn ask(side: &Netns, to: SocketAddr, target: &str, host: &str) -> Result<Vec<u8>, BenchError> {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let ask = || -> io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect(to)?;
            stream.set_read_timeout(Some(EXCHANGE))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = Vec::new();
            stream.take(1 << 20).read_to_end(&mut answer)?;
            Ok(answer)
        };
        let mut answer = side
            .run(ask)
            .map_err(BenchError::system(format!("ask for {target}")))?;
        let head = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap_or(answer.len());
        let status = answer[..head].split(|byte| *byte == b' ').nth(1);
        if status == Some(b"200") {
            Ok(answer.split_off((head + 4).min(answer.len())))
        } else {
            let head = String::from_utf8_lossy(&answer[..head]);
            let line = head.lines().next().unwrap_or("no answer");
            Err(BenchError::Value(format!("{target}: {line}")))
        }
    }

    /// The requests and bytes that the origins have served.
    pub fn served(&self) -> Counts {
        // They count together.
        self.origins
            .first()
            .map_or_else(Counts::default, |running| running.origin.counts())
    }

    /// Waits until the link is idle, and returns its traffic. Traffic that was in flight when a
    /// load ended belongs to it, including unused pushes.
    pub fn until_quiet(&self) -> Carried {
        let limit = Instant::now() + SETTLE;
        let mut last = None;
        loop {
            thread::sleep(COUNTERS);
            let snapshot = self.emulator.snapshot();
            let now = carried(&snapshot);
            if (last == Some(now) && !in_flight(&snapshot)) || Instant::now() > limit {
                return now;
            }
            last = Some(now);
        }
    }

    /// Takes everything down; the last state of the network.
    pub fn take_down(self) -> Result<Snapshot, BenchError> {
        self.context.testbed.clear();
        let (snapshot, ended) = self.emulator.stop();
        ended.map_err(BenchError::system("run the emulated link"))?;
        Ok(snapshot)
    }
}

impl Carried {
    /// Returns the traffic since an earlier moment.
    pub fn since(self, before: Self) -> Self {
        let less = |now: Traffic, then: Traffic| Traffic {
            packets: now.packets.saturating_sub(then.packets),
            bytes: now.bytes.saturating_sub(then.bytes),
        };
        let lost = self.lost.saturating_sub(before.lost);
        Self {
            up: less(self.up, before.up),
            down: less(self.down, before.down),
            lost,
        }
    }
}

/// The name of a host, without its port.
fn name_of(host: &str) -> &str {
    host.rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|digit| digit.is_ascii_digit()))
        .map_or(host, |(name, _)| name)
}

fn carried(snapshot: &Snapshot) -> Carried {
    let port = snapshot.port("near").cloned().unwrap_or_default();
    let lost = snapshot
        .links
        .iter()
        .map(|link| link.lost + link.overflowed + link.managed)
        .sum();
    Carried {
        up: port.sent,
        down: port.received,
        lost,
    }
}

fn in_flight(snapshot: &Snapshot) -> bool {
    let gone = |link: &tandem_net::emulator::report::LinkReport| {
        link.lost + link.overflowed + link.managed
    };
    snapshot
        .links
        .iter()
        .any(|link| link.received.packets + link.duplicated > link.delivered.packets + gone(link))
}

/// Returns the endpoint of our pair's session, with the options of this end.
fn endpoint(setup: &Setup, own: &str) -> String {
    let scheme = setup.session.scheme(setup.tls);
    let has_tls = !scheme.ends_with("+tcp");
    let given = setup.endpoint_options.iter().map(String::as_str);
    let options: Vec<&str> = has_tls.then_some(own).into_iter().chain(given).collect();
    let mark = if options.is_empty() { "" } else { "?" };
    format!("{scheme}://{GATEWAY}{mark}{}", options.join("&"))
}

fn front(address: SocketAddr) -> String {
    format!("{},{};no-tls", address.ip(), address.port())
}

fn tls_front(address: SocketAddr) -> String {
    format!("{},{}", address.ip(), address.port())
}

/// A certificate for the gateway, and the key to it.
fn certificate(testbed: &Testbed) -> Result<PathBuf, BenchError> {
    let made = rcgen::generate_simple_self_signed(vec![FAR.to_string(), NAME.into()]);
    let made =
        made.map_err(|error| BenchError::Value(format!("cannot make a certificate: {error}")))?;
    testbed.write("key.pem", made.signing_key.serialize_pem())?;
    testbed.write("cert.pem", made.cert.pem())
}

/// Checks that this machine has the programs that a set-up needs.
pub fn check(setup: &Setup, tandem: &Path) -> Result<(), BenchError> {
    match setup.way {
        Way::Nghttpx => programs::find("nghttpx", "nghttp2-proxy").map(drop),
        Way::Pair | Way::Solo if !tandem.is_file() => {
            Err(BenchError::NoTandem(tandem.display().to_string()))
        }
        Way::Other => [&setup.near, &setup.far]
            .into_iter()
            .try_for_each(|command| programs::find_command(command, &setup.install)),
        _ => Ok(()),
    }
}
