//! A pair over UDP under attack: its gateway is the victim, and an honest user downloads through
//! its client at a fixed rate.
//!
//! ```text
//!  download ─▶ client ─▶ [`Forwarder`] ─▶ gateway ─▶ origin
//!                          (reads and keeps datagrams, as a system on the way can)
//! ```

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::BenchError;
use crate::bench::steady::{Download, SteadyOrigin};
use crate::bench::testbed::{Testbed, free_addresses};

/// The rate of the honest download in bytes per second. It leaves processor time for the attacker
/// even if the programs are built without optimisation.
const RATE: u64 = 2_000_000;
/// The first datagrams of the client that are kept.
const FIRST: usize = 8;
/// The last datagrams of the client that are kept.
const LAST: usize = 64;
/// The time that a datagram travels in each direction: that of a path for which the pair is made.
const DELAY: Duration = Duration::from_millis(20);
/// The datagrams on their way in each direction at most.
const QUEUE: usize = 1024;
/// The time in which a forwarder notices its end.
const POLL: Duration = Duration::from_millis(50);
/// The time before the download counts: its window has opened then.
const SETTLE: Duration = Duration::from_secs(1);

/// Datagrams of the client.
#[derive(Debug, Default)]
struct Seen {
    first: Vec<Vec<u8>>,
    last: VecDeque<Vec<u8>>,
}

/// A system on the way between client and gateway, which reads the datagrams that it forwards.
#[derive(Debug)]
pub struct Forwarder {
    /// The address for the client.
    address: SocketAddr,
    /// The socket whose address is the client's for the gateway.
    far: UdpSocket,
    seen: Arc<Mutex<Seen>>,
    ended: Arc<AtomicBool>,
}

impl Forwarder {
    /// Starts to forward datagrams to the gateway and back.
    fn start(gateway: SocketAddr) -> io::Result<Self> {
        let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        far.connect(gateway)?;
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(POLL))?;
        }
        let this = Self {
            address: near.local_addr()?,
            far: far.try_clone()?,
            seen: Arc::default(),
            ended: Arc::default(),
        };
        let client = Arc::new(Mutex::new(None));
        let from = Arc::clone(&client);
        let (seen, stop) = (Arc::clone(&this.seen), Arc::clone(&this.ended));
        let (up, out) = (near.try_clone()?, far.try_clone()?);
        thread::spawn(move || {
            let later = delayed(move |datagram| out.send(datagram));
            forward(&up, &stop, |datagram, address| {
                *locked(&from) = Some(address);
                note(&mut locked(&seen), datagram);
                later(datagram);
            });
        });
        let stop = Arc::clone(&this.ended);
        thread::spawn(move || {
            let later = delayed(move |datagram| match *locked(&client) {
                Some(client) => near.send_to(datagram, client),
                None => Ok(0),
            });
            forward(&far, &stop, |datagram, _| later(datagram));
        });
        Ok(this)
    }

    /// Returns the view of a system on the way.
    pub fn view(&self) -> io::Result<PathView> {
        Ok(PathView {
            own: self.far.try_clone()?,
            seen: Arc::clone(&self.seen),
        })
    }
}

/// The datagrams that a system on the way sees, and the client's address that it can forge.
#[derive(Debug)]
pub struct PathView {
    /// The socket whose datagrams have the client's address.
    pub own: UdpSocket,
    seen: Arc<Mutex<Seen>>,
}

impl PathView {
    /// Returns the first datagrams of the client.
    pub fn first(&self) -> Vec<Vec<u8>> {
        locked(&self.seen).first.clone()
    }

    /// Returns the last datagrams of the client.
    pub fn last(&self) -> Vec<Vec<u8>> {
        locked(&self.seen).last.iter().cloned().collect()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(seen: &mut Seen, datagram: &[u8]) {
    if seen.first.len() < FIRST {
        seen.first.push(datagram.to_vec());
    }
    if seen.last.len() == LAST {
        seen.last.pop_front();
    }
    seen.last.push_back(datagram.to_vec());
}

/// Returns a function that sends each datagram after [`DELAY`].
fn delayed(send: impl Fn(&[u8]) -> io::Result<usize> + Send + 'static) -> impl Fn(&[u8]) {
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(QUEUE);
    thread::spawn(move || {
        for (due, datagram) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // A datagram that is not sent counts as lost.
            let _ = send(&datagram);
        }
    });
    move |datagram| {
        // A full queue drops datagrams, as a router does.
        let _ = sender.try_send((Instant::now() + DELAY, datagram.to_vec()));
    }
}

fn forward(socket: &UdpSocket, ended: &AtomicBool, mut pass: impl FnMut(&[u8], SocketAddr)) {
    let mut buf = [0; 4096];
    while !ended.load(Ordering::Relaxed) {
        // Without a datagram, the loop looks whether it has ended.
        if let Ok((size, from)) = socket.recv_from(&mut buf) {
            pass(&buf[..size], from);
        }
    }
}

/// The pair, and the download.
#[derive(Debug)]
pub struct AttackedPair {
    /// The process id of the gateway.
    pub pid: u32,
    /// The UDP listener of the gateway.
    pub gateway: SocketAddr,
    /// The system on the way.
    pub forwarder: Forwarder,
    download: Download,
    _origin: SteadyOrigin,
}

impl AttackedPair {
    /// Starts both programs with a session of this name between them, and the download.
    pub fn start(testbed: &Testbed, tandem: &Path, way: &str) -> Result<Self, BenchError> {
        let [ready, gateway, http] = free_addresses()?;
        let made = rcgen::generate_simple_self_signed(vec![Ipv4Addr::LOCALHOST.to_string()])
            .map_err(|error| BenchError::Value(format!("cannot make a certificate: {error}")))?;
        let cert = testbed.write("gw.pem", made.cert.pem())?;
        let key = testbed.write("gw.key", made.signing_key.serialize_pem())?;
        let (cert, key) = (cert.display(), key.display());
        let mut command = Command::new(tandem);
        command
            .args(["gateway", "--workers", "2", "--predict=false", "--open"])
            .args(["--allow-dest", "127.0.0.0/8"])
            .args(["--listen", &format!("h2+tcp://{ready}")])
            .args([
                "--listen",
                &format!("{way}://{gateway}?cert={cert}&key={key}"),
            ]);
        let pid = testbed.start_listening("gateway", command, ready)?;
        let forwarder =
            Forwarder::start(gateway).map_err(BenchError::system("forward datagrams"))?;
        let near = forwarder.address;
        let mut command = Command::new(tandem);
        command
            .args(["client", "--listen", &format!("http://{http}")])
            .args(["--gateway", &format!("{way}://{near}?ca={cert}")]);
        testbed.start_listening("client", command, http)?;
        let begin = || {
            let origin = SteadyOrigin::start(Some(RATE))?;
            let download = Download::start(http, origin.address)?;
            Ok((origin, download))
        };
        let (origin, download) =
            begin().map_err(BenchError::system("download through the pair"))?;
        thread::sleep(SETTLE);
        Ok(Self {
            pid,
            gateway,
            forwarder,
            download,
            _origin: origin,
        })
    }

    /// Returns the bytes per second of the download while `during` runs.
    pub fn goodput<T>(&self, during: impl FnOnce() -> T) -> (f64, T) {
        let (before, begun) = (self.download.received(), Instant::now());
        let done = during();
        let bytes = self.download.received() - before;
        (bytes as f64 / begun.elapsed().as_secs_f64(), done)
    }

    /// Ends the download.
    ///
    /// # Errors
    /// It had failed before.
    pub fn end(self) -> io::Result<()> {
        self.download.end()
    }
}
