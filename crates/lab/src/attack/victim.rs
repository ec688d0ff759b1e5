//! The programs under attack, and an honest user that measures the service.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::wire::{Wire, WireProtocol, frame, h2, literal, request_block};
use crate::bench::testbed::{Testbed, free_address, free_addresses};
use crate::bench::{BenchError, usage};

/// The number of requests in one session of an honest user.
const REQUESTS: u32 = 10;
/// The pause of an honest user between two requests.
const PAUSE: Duration = Duration::from_millis(20);
/// The time after which an honest user gives up.
const IO_TIMEOUT: Duration = Duration::from_secs(60);

/// A gateway that forwards to loopback, with a listener for each protocol.
#[derive(Clone, Copy, Debug)]
pub struct VictimGateway {
    /// The process id.
    pub pid: u32,
    /// The listener for HTTP/2.
    pub h2: SocketAddr,
    /// The listener for SPDY/3.1.
    pub spdy: SocketAddr,
}

/// The access token of [`VictimGateway::start_with_token`].
const TOKEN: &str = "correct-horse-battery-staple";
/// The number of connections that [`VictimGateway::start_with_token`] permits.
pub const FEW: usize = 50;

impl VictimGateway {
    /// Starts the program without authentication, and waits until it listens.
    pub fn start(testbed: &Testbed, tandem: &Path) -> Result<Self, BenchError> {
        Self::start_with(testbed, tandem, &["--open".into()])
    }

    /// Starts the program with an access token and [`FEW`] connections, and waits until it listens.
    pub fn start_with_token(testbed: &Testbed, tandem: &Path) -> Result<Self, BenchError> {
        let token = testbed.write("token", TOKEN)?;
        let (auth, few) = (format!("token-file={}", token.display()), FEW.to_string());
        let most = [
            "--max-connections",
            &few,
            "--max-connections-per-client",
            &few,
        ];
        let arguments = ["--auth", &auth].into_iter().chain(most);
        let arguments: Vec<String> = arguments.map(str::to_owned).collect();
        Self::start_with(testbed, tandem, &arguments)
    }

    fn start_with(
        testbed: &Testbed,
        tandem: &Path,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        let [h2, spdy] = free_addresses()?;
        let mut command = Command::new(tandem);
        command
            .args(["gateway", "--workers", "2", "--predict=false"])
            .args(arguments)
            .args(["--allow-dest", "127.0.0.0/8"])
            .args(["--listen", &format!("h2+tcp://{h2}")])
            .args(["--listen", &format!("spdy3.1+tcp://{spdy}")]);
        let pid = testbed.start_listening("gateway", command, spdy)?;
        testbed.wait_for(pid, "gateway", h2, None)?;
        Ok(Self { pid, h2, spdy })
    }

    /// The listener for a protocol.
    pub const fn address(&self, protocol: WireProtocol) -> SocketAddr {
        match protocol {
            WireProtocol::H2 => self.h2,
            WireProtocol::Spdy | WireProtocol::Spdy3 => self.spdy,
        }
    }
}

/// A client with a gateway that this process plays.
#[derive(Clone, Copy, Debug)]
pub struct VictimClient {
    /// The process id.
    pub pid: u32,
    /// The HTTP listener.
    pub http: SocketAddr,
}

impl VictimClient {
    /// Starts the program and waits until it listens. Requests for loopback go to the `near`
    /// gateway, and all others to the gateway that this process plays.
    pub fn start(
        testbed: &Testbed,
        tandem: &Path,
        protocol: WireProtocol,
        gateway: SocketAddr,
        near: VictimGateway,
    ) -> Result<Self, BenchError> {
        let http = free_address()?;
        let scheme = match protocol {
            WireProtocol::H2 => "h2+tcp",
            WireProtocol::Spdy => "spdy3.1+tcp",
            WireProtocol::Spdy3 => "spdy3+tcp",
        };
        let mut command = Command::new(tandem);
        command
            .args(["client", "--preconnect=false", "--warm-up", "0B"])
            .args(["--listen", &format!("http://{http}")])
            .args(["--gateway", &format!("{scheme}://{gateway}")])
            .args(["--route", &format!("127.0.0.1=h2+tcp://{}", near.h2)]);
        let pid = testbed.start_listening("client", command, http)?;
        Ok(Self { pid, http })
    }
}

/// The resources that a process has used.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Bytes resident now.
    pub resident: u64,
    /// The largest number of bytes that were ever resident.
    pub peak: u64,
    /// Processor time.
    pub cpu: Duration,
}

impl Usage {
    /// Reads the kernel's account of a process.
    pub fn of(pid: u32) -> Result<Self, BenchError> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .map_err(BenchError::system("read the memory of the victim"))?;
        let line = |name: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(name));
            let number = rest.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok());
            number.map_or(0, |kilobytes: u64| kilobytes << 10)
        };
        Ok(Self {
            resident: line("VmRSS:"),
            peak: line("VmHWM:"),
            cpu: usage::cpu_time(pid)?,
        })
    }
}

/// The service that an honest user has had.
#[derive(Clone, Debug, Default)]
pub struct Service {
    /// Requests that were answered.
    pub answered: u32,
    /// Requests that failed.
    pub failed: u32,
    /// The longest time that an answer took, without the time that `stalled` counts.
    pub slowest: Duration,
    /// The part of all answers' time in which threads of the victim or of this process were ready
    /// to run, and the machine was busy with others.
    pub stalled: Duration,
    /// The reason of the first failure.
    pub problem: Option<String>,
}

/// A user on a thread that sends one request after the other while an attack runs.
#[derive(Debug)]
pub struct HonestUser {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Service>,
}

impl HonestUser {
    /// Asks a gateway for the origin's answer, in one HTTP/2 session after the other. Returns once
    /// the first request has been answered.
    pub fn of_gateway(gateway: VictimGateway, origin: SocketAddr) -> io::Result<Self> {
        Self::of_sessions(
            gateway,
            &request_block("GET", &origin.to_string(), "/"),
            REQUESTS,
        )
    }

    /// Asks a gateway that requires the token, with one session for each request.
    pub fn with_token(gateway: VictimGateway, origin: SocketAddr) -> io::Result<Self> {
        let token = literal(0, "proxy-authorization", &format!("Bearer {TOKEN}"));
        let request = [request_block("GET", &origin.to_string(), "/"), token].concat();
        Self::of_sessions(gateway, &request, 1)
    }

    /// Sends a request `most` times in each session.
    fn of_sessions(gateway: VictimGateway, request: &[u8], most: u32) -> io::Result<Self> {
        let request = request.to_vec();
        let mut wire = Wire::connect(gateway.h2, WireProtocol::H2)?;
        ask(&mut wire, 1, &request)?;
        let mut asked = 1;
        Ok(Self::start([gateway.pid], move || {
            if asked == most {
                wire = Wire::connect(gateway.h2, WireProtocol::H2)?;
                asked = 0;
            }
            asked += 1;
            // A session with a failed request is not used again.
            ask(&mut wire, 2 * asked - 1, &request).inspect_err(|_| asked = most)
        }))
    }

    /// Asks a client for the origin's answer, each time over a new connection, with an isolation
    /// key and a route of its own.
    pub fn of_client(client: VictimClient, near: VictimGateway, origin: SocketAddr) -> Self {
        let http = client.http;
        Self::start([client.pid, near.pid], move || {
            let mut stream = TcpStream::connect_timeout(&http, IO_TIMEOUT)?;
            stream.set_read_timeout(Some(IO_TIMEOUT))?;
            write!(
                stream,
                "GET http://{origin}/ HTTP/1.1\r\nHost: {origin}\r\n\
                 Proxy-Authorization: Basic b3RoZXI6eA==\r\nConnection: close\r\n\r\n"
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            if answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok") {
                return Ok(());
            }
            Err(io::Error::other(format!("the response was {answer:.200?}")))
        })
    }

    fn start<const N: usize>(
        victims: [u32; N],
        mut ask: impl FnMut() -> io::Result<()> + Send + 'static,
    ) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            let mut service = Service::default();
            while !stop.load(Ordering::Relaxed) {
                let (asked, waited) = (Instant::now(), waiting(&victims));
                match ask() {
                    Ok(()) => service.answered += 1,
                    Err(error) => {
                        service.failed += 1;
                        service.problem.get_or_insert_with(|| error.to_string());
                    }
                }
                let took = asked.elapsed();
                let stalled = waiting(&victims).saturating_sub(waited).min(took);
                service.slowest = service.slowest.max(took - stalled);
                service.stalled += stalled;
                thread::sleep(PAUSE);
            }
            service
        });
        Self { ended, thread }
    }

    /// Ends the user's requests and returns the service that the user has had.
    pub fn end(self) -> Service {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Service {
            failed: 1,
            ..Service::default()
        })
    }
}

/// Returns the time for which the victims and this process, in which the user and the origin are
/// threads, have waited for a processor.
fn waiting(victims: &[u32]) -> Duration {
    let own = std::process::id();
    victims
        .iter()
        .chain([&own])
        // A victim that has ended does not wait.
        .map(|pid| usage::waiting_time(*pid).unwrap_or_default())
        .sum()
}

/// Sends a request on an HTTP/2 session, and expects the response `ok`.
fn ask(wire: &mut Wire, id: u32, block: &[u8]) -> io::Result<()> {
    wire.send(&frame(
        h2::HEADERS,
        h2::END_HEADERS | h2::END_STREAM,
        id,
        block,
    ))?;
    let mut body = Vec::new();
    while let Some(arrived) = wire.receive()? {
        if arrived.id != id {
            continue;
        }
        match arrived.kind as u8 {
            h2::DATA => body.extend_from_slice(&arrived.payload),
            h2::HEADERS => {}
            kind => {
                let problem = format!("frame of type {kind}: {:?}", arrived.payload);
                return Err(io::Error::other(problem));
            }
        }
        if arrived.flags & h2::END_STREAM != 0 {
            if body == b"ok" {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&body);
            return Err(io::Error::other(format!("the response was {text:.200?}")));
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}
