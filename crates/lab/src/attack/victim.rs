//! The programs under attack, an honest origin, and an honest user that measures the service.

use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::wire::{Protocol, Wire, frame, h2, request_block};
use crate::bench::workshop::{Program, Workshop, free_address};
use crate::bench::{BenchError, usage};

/// The size of the origin's large answer, which slow readers ask for as `/large`.
pub const LARGE: usize = 4 << 20;
/// The pause of an honest user between two requests.
const PAUSE: Duration = Duration::from_millis(20);
/// The time after which an honest user gives up.
const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway that forwards to loopback, with a listener for each protocol.
#[derive(Clone, Copy, Debug)]
pub struct Gateway {
    /// The process id.
    pub pid: u32,
    /// The listener for HTTP/2.
    pub h2: SocketAddr,
    /// The listener for SPDY/3.1.
    pub spdy: SocketAddr,
}

impl Gateway {
    /// Starts the program and waits until it listens.
    pub fn start(workshop: &Workshop, tandem: &Path) -> Result<Self, BenchError> {
        let (h2, spdy) = (free_address()?, free_address()?);
        let mut command = Command::new(tandem);
        command
            .args(["gateway", "--open", "--workers", "2", "--predict=false"])
            .args(["--allow-dest", "127.0.0.0/8"])
            .args(["--listen", &format!("h2+tcp://{h2}")])
            .args(["--listen", &format!("spdy3.1+tcp://{spdy}")]);
        let pid = start(workshop, "gateway", command, spdy)?;
        workshop.wait_for(pid, "gateway", h2, None)?;
        Ok(Self { pid, h2, spdy })
    }

    /// The listener for a protocol.
    pub const fn address(&self, protocol: Protocol) -> SocketAddr {
        match protocol {
            Protocol::H2 => self.h2,
            Protocol::Spdy => self.spdy,
        }
    }
}

/// A client with a gateway that this process plays.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The process id.
    pub pid: u32,
    /// The HTTP listener.
    pub http: SocketAddr,
}

impl Client {
    /// Starts the program and waits until it listens.
    pub fn start(
        workshop: &Workshop,
        tandem: &Path,
        protocol: Protocol,
        gateway: SocketAddr,
    ) -> Result<Self, BenchError> {
        let http = free_address()?;
        let scheme = match protocol {
            Protocol::H2 => "h2+tcp",
            Protocol::Spdy => "spdy3.1+tcp",
        };
        let mut command = Command::new(tandem);
        command
            .args(["client", "--preconnect=false", "--warm-up", "0B"])
            .args(["--listen", &format!("http://{http}")])
            .args(["--gateway", &format!("{scheme}://{gateway}")]);
        let pid = start(workshop, "client", command, http)?;
        Ok(Self { pid, http })
    }
}

fn start(
    workshop: &Workshop,
    name: &str,
    command: Command,
    listens: SocketAddr,
) -> Result<u32, BenchError> {
    let pid = workshop.start(Program {
        name,
        command,
        core: None,
        network: None,
    })?;
    workshop.wait_for(pid, name, listens, None)?;
    Ok(pid)
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

/// Accepts connections on a thread for each until it is dropped.
#[derive(Debug)]
pub struct Server {
    /// The address on which it listens.
    pub address: SocketAddr,
    ended: Arc<AtomicBool>,
}

/// The largest number of threads of one server at once.
const MAX_THREADS: usize = 512;

impl Server {
    /// Starts a server that handles each connection by `serve`.
    pub fn start(
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<Self, BenchError> {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(BenchError::system("listen"))?;
        let ended = Arc::new(AtomicBool::new(false));
        let (serve, stop) = (Arc::new(serve), Arc::clone(&ended));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if Arc::strong_count(&serve) <= MAX_THREADS {
                    let serve = Arc::clone(&serve);
                    // An error is the end of a connection, which is the victim's right.
                    thread::spawn(move || drop(serve(stream)));
                }
            }
        });
        Ok(Self { address, ended })
    }

    /// Starts an HTTP/1.1 origin that answers `ok`, and many bytes at `/large`.
    pub fn origin() -> Result<Self, BenchError> {
        Self::start(serve_origin)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

fn serve_origin(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some(head) = read_head(&mut reader)? {
        let body = if head.starts_with("GET /large ") {
            vec![b'l'; LARGE]
        } else {
            b"ok".to_vec()
        };
        write!(
            writer,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )?;
        writer.write_all(&body)?;
    }
    Ok(())
}

/// Reads a request's head; `None` at the end of the connection. Bodies of attacks never end here.
pub fn read_head(reader: &mut impl io::BufRead) -> io::Result<Option<String>> {
    let mut head = String::new();
    loop {
        let before = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        if &head[before..] == "\r\n" {
            return Ok(Some(head));
        }
    }
}

/// The service that an honest user has had.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service {
    /// Requests that were answered.
    pub answered: u32,
    /// Requests that failed.
    pub failed: u32,
    /// The longest time that an answer took.
    pub slowest: Duration,
}

/// A user on a thread that sends one request after the other while an attack runs.
#[derive(Debug)]
pub struct HonestUser {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Service>,
}

impl HonestUser {
    /// Asks a gateway for the origin's answer, in one HTTP/2 session.
    pub fn of_gateway(gateway: SocketAddr, origin: SocketAddr) -> io::Result<Self> {
        let mut wire = Wire::connect(gateway, Protocol::H2)?;
        let mut id = 1;
        Ok(Self::start(move || {
            id += 2;
            ask(&mut wire, id - 2, origin)
        }))
    }

    /// Asks a client for its `/proxy.pac`, each time over a new connection.
    pub fn of_client(http: SocketAddr) -> Self {
        Self::start(move || {
            let mut stream = TcpStream::connect_timeout(&http, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(
                stream,
                "GET /proxy.pac HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n"
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            check(answer.contains("FindProxyForURL"))
        })
    }

    fn start(mut ask: impl FnMut() -> io::Result<()> + Send + 'static) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            let mut service = Service::default();
            while !stop.load(Ordering::Relaxed) {
                let asked = Instant::now();
                match ask() {
                    Ok(()) => service.answered += 1,
                    Err(_) => service.failed += 1,
                }
                service.slowest = service.slowest.max(asked.elapsed());
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

fn check(right: bool) -> io::Result<()> {
    if right {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Sends a request on an HTTP/2 session, and expects the response `ok`.
fn ask(wire: &mut Wire, id: u32, origin: SocketAddr) -> io::Result<()> {
    let block = request_block("GET", &origin.to_string(), "/");
    wire.send(&frame(
        h2::HEADERS,
        h2::END_HEADERS | h2::END_STREAM,
        id,
        &block,
    ))?;
    let mut body = Vec::new();
    while let Some(arrived) = wire.receive()? {
        if arrived.id != id {
            continue;
        }
        match arrived.kind as u8 {
            h2::DATA => body.extend_from_slice(&arrived.payload),
            h2::HEADERS => {}
            _ => return check(false),
        }
        if arrived.flags & h2::END_STREAM != 0 {
            return check(body == b"ok");
        }
    }
    check(false)
}
