//! A path with a delay, which can record the first flight of a client.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Passes datagrams between clients and a gateway. Each takes `delay` in each direction.
pub(crate) struct SlowPath {
    pub(crate) address: SocketAddr,
    gateway: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    stop: AtomicBool,
    /// The clients so far. Each connection has an address of its own.
    clients: AtomicUsize,
    /// The first flight of the next client, while it is recorded.
    flight: Mutex<Option<Flight>>,
    /// The first flight of the next client, while it is lost.
    lost: Mutex<Option<Lost>>,
}

/// The client whose first flight is lost, and the time of its first datagram.
#[derive(Default)]
struct Lost(Option<(SocketAddr, Instant)>);

#[derive(Default)]
struct Flight {
    of: Option<SocketAddr>,
    datagrams: Vec<Vec<u8>>,
    over: bool,
}

impl SlowPath {
    pub(crate) fn to(gateway: SocketAddr, delay: Duration) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let state = Arc::<State>::default();
        let this = Self {
            address: near.local_addr().unwrap(),
            gateway,
            state: Arc::clone(&state),
        };
        std::thread::spawn(move || {
            let mut outer = HashMap::new();
            receive(&near, &state, |datagram, from| {
                note(&state, datagram, from);
                if is_lost(&state, from) {
                    return;
                }
                let outer = outer.entry(from).or_insert_with(|| {
                    state.clients.fetch_add(1, Ordering::SeqCst);
                    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
                    far.connect(gateway).unwrap();
                    back(&near, &far, from, delay, &state);
                    later(delay, move |datagram| drop(far.send(datagram)))
                });
                outer(datagram);
            });
        });
        this
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.clients.load(Ordering::SeqCst)
    }

    /// Records the first flight of the next client.
    pub(crate) fn record(&self) {
        *self.state.flight.lock().unwrap() = Some(Flight::default());
    }

    /// Loses the first flight of the next client.
    pub(crate) fn lose_first_flight(&self) {
        *self.state.lost.lock().unwrap() = Some(Lost::default());
    }

    /// Returns the datagrams that the client sent before it received one.
    pub(crate) fn first_flight(&self) -> Vec<Vec<u8>> {
        self.state.flight.lock().unwrap().take().unwrap().datagrams
    }

    /// Sends datagrams to the gateway from a new address.
    pub(crate) fn send_as_another(&self, datagrams: &[Vec<u8>]) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in datagrams {
            socket.send_to(datagram, self.gateway).unwrap();
        }
    }
}

impl Drop for SlowPath {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
    }
}

/// Records a datagram of the client whose flight is wanted.
fn note(state: &State, datagram: &[u8], from: SocketAddr) {
    if let Some(flight) = &mut *state.flight.lock().unwrap()
        && !flight.over
        && *flight.of.get_or_insert(from) == from
    {
        flight.datagrams.push(datagram.to_vec());
    }
}

/// Returns true if a datagram is of the flight that is lost.
fn is_lost(state: &State, from: SocketAddr) -> bool {
    const FLIGHT: Duration = Duration::from_millis(50);
    let (mut lost, now) = (state.lost.lock().unwrap(), Instant::now());
    lost.as_mut().is_some_and(|lost| {
        let (of, begun) = *lost.0.get_or_insert((from, now));
        of == from && now < begun + FLIGHT
    })
}

/// Passes the datagrams of the gateway back to a client.
fn back(
    near: &UdpSocket,
    far: &UdpSocket,
    client: SocketAddr,
    delay: Duration,
    state: &Arc<State>,
) {
    let (near, far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let state = Arc::clone(state);
    let ended = Arc::clone(&state);
    let pass = later(delay, move |datagram| {
        if let Some(flight) = &mut *ended.flight.lock().unwrap()
            && flight.of == Some(client)
        {
            flight.over = true;
        }
        // The client may have ended.
        let _ = near.send_to(datagram, client);
    });
    std::thread::spawn(move || receive(&far, &state, |datagram, _| pass(datagram)));
}

/// Returns a function that passes on each datagram after `delay`, in order.
fn later(
    delay: Duration,
    pass: impl Fn(&[u8]) + Send + 'static,
) -> impl Fn(&[u8]) + Send + 'static {
    let (sender, waiting) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        for (due, datagram) in waiting {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            pass(&datagram);
        }
    });
    move |datagram| drop(sender.send((Instant::now() + delay, datagram.to_vec())))
}

/// Takes each datagram, until the path ends.
fn receive(socket: &UdpSocket, state: &State, mut take: impl FnMut(&[u8], SocketAddr)) {
    let mut buf = [0; 2048];
    let wait = Some(Duration::from_millis(20));
    socket.set_read_timeout(wait).unwrap();
    while !state.stop.load(Ordering::SeqCst) {
        if let Ok((size, from)) = socket.recv_from(&mut buf) {
            take(&buf[..size], from);
        }
    }
}
