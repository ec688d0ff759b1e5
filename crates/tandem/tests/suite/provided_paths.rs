//! Paths that lose every datagram from some moment on.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::NAME;
use crate::certificates::Certificates;
use crate::harness::{Client, Scene};
use crate::provided::{OK, start_client, start_gateway, stop};

/// The outer sockets of a forwarder by the address of the client.
type Outer = Arc<Mutex<HashMap<SocketAddr, (UdpSocket, Arc<AtomicBool>)>>>;

/// Passes datagrams between clients and a gateway. Each client has an outer socket.
pub(crate) struct Forwarder {
    pub(crate) address: SocketAddr,
    outer: Outer,
    /// True while the datagrams of all clients are dropped.
    pub(crate) blocked: Arc<AtomicBool>,
    /// The sizes of the datagrams that were dropped for that reason.
    pub(crate) dropped: Arc<Mutex<Vec<usize>>>,
    /// The bytes that a client gets in a second, or 0 for no limit. The others are dropped.
    pub(crate) policed: Arc<AtomicUsize>,
    /// The bytes that all clients have got.
    pub(crate) passed: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Forwarder {
    pub(crate) fn to(gateway: SocketAddr) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (outer, stop) = (Outer::default(), Arc::<AtomicBool>::default());
        let this = Self {
            address: near.local_addr().unwrap(),
            outer: Arc::clone(&outer),
            blocked: Arc::default(),
            dropped: Arc::default(),
            policed: Arc::default(),
            passed: Arc::default(),
            stop: Arc::clone(&stop),
        };
        let (blocked, policed) = (Arc::clone(&this.blocked), Arc::clone(&this.policed));
        let (dropped, passed) = (Arc::clone(&this.dropped), Arc::clone(&this.passed));
        std::thread::spawn(move || {
            let mut buf = [0; 2048];
            receive(&near, &stop, &mut buf, |datagram, from| {
                if blocked.load(Ordering::SeqCst) {
                    dropped.lock().unwrap().push(datagram.len());
                    return;
                }
                let mut outer = outer.lock().unwrap();
                let entry = outer
                    .entry(from)
                    .or_insert_with(|| back(&near, gateway, from, &stop, (&policed, &passed)));
                if !entry.1.load(Ordering::SeqCst) {
                    // The gateway may have ended.
                    let _ = entry.0.send(datagram);
                }
            });
        });
        this
    }

    /// Drops all datagrams of the present clients.
    pub(crate) fn mute(&self) {
        self.set_muted(true);
    }

    /// Passes the datagrams of the present clients again.
    pub(crate) fn unmute(&self) {
        self.set_muted(false);
    }

    fn set_muted(&self, is_muted: bool) {
        for (_, muted) in self.outer.lock().unwrap().values() {
            muted.store(is_muted, Ordering::SeqCst);
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Creates the outer socket of a client, and passes its datagrams back.
fn back(
    near: &UdpSocket,
    gateway: SocketAddr,
    client: SocketAddr,
    stop: &Arc<AtomicBool>,
    (policed, passed): (&Arc<AtomicUsize>, &Arc<AtomicUsize>),
) -> (UdpSocket, Arc<AtomicBool>) {
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.connect(gateway).unwrap();
    let (near, muted, stop) = (
        near.try_clone().unwrap(),
        Arc::<AtomicBool>::default(),
        Arc::clone(stop),
    );
    let (reader, is_muted) = (far.try_clone().unwrap(), Arc::clone(&muted));
    let mut policer = Policer::new(Arc::clone(policed));
    let passed = Arc::clone(passed);
    std::thread::spawn(move || {
        let mut buf = [0; 2048];
        receive(&reader, &stop, &mut buf, |datagram, _| {
            if !is_muted.load(Ordering::SeqCst) && policer.passes(datagram.len()) {
                passed.fetch_add(datagram.len(), Ordering::SeqCst);
                // The client may have ended.
                let _ = near.send_to(datagram, client);
            }
        });
    });
    (far, muted)
}

/// Drops the datagrams above a rate, without a queue.
struct Policer {
    rate: Arc<AtomicUsize>,
    tokens: f64,
    at: Instant,
}

impl Policer {
    /// The bytes that pass at once.
    const BURST: f64 = 20e3;

    fn new(rate: Arc<AtomicUsize>) -> Self {
        Self {
            rate,
            tokens: Self::BURST,
            at: Instant::now(),
        }
    }

    fn passes(&mut self, bytes: usize) -> bool {
        let rate = self.rate.load(Ordering::SeqCst);
        let since = std::mem::replace(&mut self.at, Instant::now()).elapsed();
        self.tokens += rate as f64 * since.as_secs_f64();
        self.tokens = self.tokens.min(Self::BURST);
        let passes = rate == 0 || self.tokens >= bytes as f64;
        if passes {
            self.tokens -= bytes as f64;
        }
        passes
    }
}

/// Passes on each datagram, until `stop`.
fn receive(
    socket: &UdpSocket,
    stop: &AtomicBool,
    buf: &mut [u8],
    mut pass: impl FnMut(&[u8], SocketAddr),
) {
    let wait = Some(Duration::from_millis(20));
    socket.set_read_timeout(wait).unwrap();
    while !stop.load(Ordering::SeqCst) {
        if let Ok((size, from)) = socket.recv_from(buf) {
            pass(&buf[..size], from);
        }
    }
}

#[test]
fn client_leaves_a_path_that_died_while_it_was_idle() {
    let certificates = Certificates::new(&format!("{NAME}-silent"));
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let forwarder = Forwarder::to(address);
    let (client, http) = start_client(&certificates, forwarder.address, |options| {
        options.probe_after = Some("1s".parse().unwrap());
    });
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    forwarder.mute();
    // A session counts as idle after half of the limit.
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    stop([client, gateway]);
}
