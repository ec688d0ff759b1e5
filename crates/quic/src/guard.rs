//! The watch over a client's connection, for events of the network that quinn does not act on.
//!
//! ```text
//!  socket ─▶ [`Watch`] ─▶ [`Guard`], a task of the I/O thread
//!                           ├─ no answer: a probe, then a new socket
//!                           ├─ no route: a new socket, once there is a route
//!                           ├─ no answer, and the route has changed: a new socket
//!                           └─ refused three times: the end of the connection
//! ```
//!
//! quinn doubles the time between its probes without a bound. A path that is back after half a
//! minute would be found after a whole one, when the connection is lost. A client that only reads
//! sends no probes at all, so it would notice a new address of a translator with the next
//! keep-alive only. With a new socket the connection moves to another path of the client (RFC 9000
//! section 9), and the gateway sends there at once.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use quinn::{AsyncUdpSocket, Endpoint, VarInt};
use tokio::sync::{Notify, oneshot};

use crate::congestion::Resuming;
use crate::socket::ClientSocket;

/// The times without an answer before the first probe, and before each further one.
const WAITS: [Duration; 3] = [
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];
/// The time between two attempts to create a socket while the machine has no route.
const MOVE_AGAIN: Duration = Duration::from_secs(1);
/// The refusals in a row, without a datagram between them, that end a connection.
const MAX_REFUSALS: u32 = 3;
/// The least time between two of these refusals. A gateway that restarts refuses datagrams for a
/// moment, in which quinn may repeat a probe several times.
const REFUSE_AGAIN: Duration = Duration::from_secs(1);
/// The least time without an answer after which the guard looks whether the machine would send from
/// another address now, and the time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two moves after looks without an answer between them. A machine with
/// several paths may choose another address each time.
const FOLLOW_AGAIN: Duration = Duration::from_secs(8);
/// The most bytes of a datagram that only acknowledges.
const SMALL: usize = 64;
/// The most bytes that answer a probe.
const TRAFFIC: u64 = 1000;

/// The events of the sockets of one connection.
#[derive(Debug)]
pub(crate) struct Watch {
    start: Instant,
    /// The time at which the first datagram was sent since one has arrived, in nanoseconds after
    /// `start`, plus one. It is 0 if none was sent.
    asked: AtomicU64,
    /// The bytes that have arrived since the last probe.
    traffic: AtomicU64,
    has_asked: Notify,
    refusals: AtomicU32,
    /// The time of the last refusal that counts, in milliseconds after `start`, plus one. It is 0
    /// if a datagram has arrived since.
    refused_at: AtomicU64,
    refused: Notify,
    /// True if the machine had no route for a datagram.
    is_lost: AtomicBool,
    failed: Notify,
    /// True if the connection has ended because the peer's system refuses datagrams.
    has_ended: AtomicBool,
    /// The congestion controller of the connection, once that exists.
    controller: OnceLock<Resuming>,
}

impl Watch {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            asked: AtomicU64::new(0),
            traffic: AtomicU64::new(0),
            has_asked: Notify::new(),
            refusals: AtomicU32::new(0),
            refused_at: AtomicU64::new(0),
            refused: Notify::new(),
            is_lost: AtomicBool::new(false),
            failed: Notify::new(),
            has_ended: AtomicBool::new(false),
            controller: OnceLock::new(),
        })
    }

    /// Returns the smoothed round trip of the connection, or zero if it is unknown.
    fn round_trip(&self) -> Duration {
        let controller = self.controller.get();
        controller.map_or(Duration::ZERO, Resuming::round_trip)
    }

    /// Takes the controller of the connection.
    pub(crate) fn control(&self, connection: &quinn::Connection) {
        if let Some(controller) = Resuming::of(connection) {
            self.controller.get_or_init(|| controller);
        }
    }

    /// Notes that `bytes` are sent. A small datagram asks for nothing, since it may acknowledge
    /// the answer to a probe. After other traffic, the peer may have more to send.
    pub(crate) fn sent(&self, bytes: usize) {
        let asks = || bytes > SMALL || self.traffic.load(Ordering::Relaxed) > TRAFFIC;
        if self.asked.load(Ordering::Relaxed) == 0 && asks() {
            let elapsed = u64::try_from(self.start.elapsed().as_nanos());
            let at = elapsed.unwrap_or(u64::MAX - 1) + 1;
            self.asked.store(at, Ordering::Relaxed);
            self.has_asked.notify_one();
        }
    }

    /// Notes that datagrams with this many bytes have arrived.
    pub(crate) fn heard(&self, bytes: usize) {
        self.traffic.fetch_add(bytes as u64, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        self.refusals.store(0, Ordering::Relaxed);
        self.refused_at.store(0, Ordering::Relaxed);
    }

    /// Counts a refusal at a time after `start`, unless another one came shortly before.
    fn note_refusal(&self, at: Duration) {
        let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX - 1) + 1;
        let last = self.refused_at.load(Ordering::Relaxed);
        let since = Duration::from_millis(at.saturating_sub(last));
        if last == 0 || since >= REFUSE_AGAIN {
            self.refused_at.store(at, Ordering::Relaxed);
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes an error of a socket. A datagram that was not sent for another reason counts as lost.
    pub(crate) fn failed(&self, error: &io::Error) {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused => {
                self.note_refusal(self.start.elapsed());
                self.refused.notify_one();
            }
            Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::AddrNotAvailable
            | Kind::InvalidInput => self.is_lost.store(true, Ordering::Relaxed),
            _ => return,
        }
        self.failed.notify_one();
    }

    /// Resolves once the peer's system has reported that no program listens there.
    pub(crate) async fn refused(&self) {
        while self.refusals.load(Ordering::Relaxed) == 0 {
            self.refused.notified().await;
        }
    }

    /// Returns true if the connection has ended because the peer's system refuses datagrams.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    fn asked(&self) -> Option<Instant> {
        let at = self.asked.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.start + Duration::from_nanos(at))
    }
}

/// The probes of a path without an answer.
#[derive(Debug, Default)]
struct Silence {
    /// The last probe, and the number of them since a datagram has arrived.
    probed: Option<(Instant, usize)>,
}

impl Silence {
    /// Returns the time of the next probe, if a datagram was sent at `asked` and none has arrived
    /// since.
    fn due(&mut self, asked: Option<Instant>) -> Option<Instant> {
        let asked = asked?;
        if self.probed.is_some_and(|(at, _)| at < asked) {
            self.probed = None;
        }
        let (since, count) = self.probed.unwrap_or((asked, 0));
        Some(since + WAITS[count.min(WAITS.len() - 1)])
    }

    /// Notes a probe. Returns true if it should leave from a new socket.
    fn probe(&mut self, now: Instant) -> bool {
        let count = self.probed.map_or(0, |(_, count)| count);
        self.probed = Some((now, count + 1));
        count > 0
    }
}

/// The looks whether the machine would send from another address.
#[derive(Debug, Default)]
struct Looks {
    last: Option<Instant>,
    /// The last look after which the connection moved.
    moved: Option<Instant>,
}

impl Looks {
    /// Returns the time of the next look, if a datagram was sent at `asked` and none has arrived
    /// since. An answer takes a round trip.
    fn due(&self, asked: Option<Instant>, round_trip: Duration) -> Option<Instant> {
        let asked = asked?;
        let next = self.last.map_or(asked, |at| at.max(asked)) + LOOK.max(2 * round_trip);
        let unconfirmed = self.moved.filter(|at| asked <= *at);
        Some(unconfirmed.map_or(next, |at| next.max(at + FOLLOW_AGAIN)))
    }
}

/// The task that watches one connection.
pub(crate) struct Guard {
    pub(crate) watch: Arc<Watch>,
    pub(crate) endpoint: Endpoint,
    pub(crate) socket: Arc<ClientSocket>,
    pub(crate) remote: SocketAddr,
    /// True if silence may move the connection to a new socket.
    pub(crate) may_move: bool,
    /// Resolves at the end of the handshake. A client may not move before.
    pub(crate) confirmed: oneshot::Receiver<()>,
}

impl Guard {
    /// Watches until the connection has ended.
    pub(crate) async fn run(mut self) {
        let watch = Arc::clone(&self.watch);
        tokio::select! {
            biased;
            () = self.endpoint.wait_idle() => return,
            () = self.socket.note_errors() => {}
            _ = &mut self.confirmed => {}
        }
        let (mut silence, mut move_at, mut moved) = (Silence::default(), None, None);
        let (mut looks, mut next) = (Looks::default(), None);
        loop {
            if watch.refusals.load(Ordering::Relaxed) >= MAX_REFUSALS {
                watch.has_ended.store(true, Ordering::Relaxed);
                self.endpoint.close(VarInt::from_u32(0), b"");
                return;
            }
            if watch.is_lost.swap(false, Ordering::Relaxed) {
                let earliest = moved.map(|at: Instant| at + MOVE_AGAIN);
                move_at = move_at.or(earliest).or_else(|| Some(Instant::now()));
            }
            let asked = silence.due(watch.asked());
            let round_trip = watch.round_trip();
            let look = looks.due(watch.asked(), round_trip);
            let look = look.filter(|_| self.may_move);
            let due = [asked, look, move_at].into_iter().flatten().min();
            tokio::select! {
                biased;
                () = self.endpoint.wait_idle() => return,
                () = self.socket.note_errors() => {}
                () = watch.failed.notified() => continue,
                () = watch.has_asked.notified(), if asked.is_none() => continue,
                () = sleep_until(due) => {}
            }
            let now = Instant::now();
            // An answer may have come since, and another datagram may have left.
            let look = looks.due(watch.asked(), round_trip);
            if self.may_move && look.is_some_and(|at| at <= now) {
                looks.last = Some(now);
                next = self.at_another_address();
                if next.is_some() {
                    (looks.moved, move_at) = (Some(now), Some(now));
                }
            }
            let is_silent = silence.due(watch.asked()).is_some_and(|at| at <= now);
            let moves = move_at.is_some_and(|at| at <= now);
            if is_silent || moves {
                watch.traffic.store(0, Ordering::Relaxed);
            }
            let stays = is_silent && !(silence.probe(now) && self.may_move);
            if stays && !moves {
                // A change of the socket, even to the same one, sends a probe.
                self.rebind(Arc::clone(&self.socket));
            } else if is_silent || moves {
                moved = Some(now);
                move_at = match next.take().map_or_else(|| self.connect(), Ok) {
                    Ok(new) => {
                        self.rebind(new);
                        None
                    }
                    Err(_) => Some(now + MOVE_AGAIN),
                };
            }
        }
    }

    fn connect(&self) -> io::Result<Arc<ClientSocket>> {
        ClientSocket::connect(self.remote, &self.watch)
    }

    /// Returns a new socket if that has another address than the present one. A socket keeps its
    /// address while the machine has that, even after another network has become the default. Its
    /// datagrams leave by that network then, which drops foreign addresses.
    fn at_another_address(&self) -> Option<Arc<ClientSocket>> {
        let new = self.connect().ok()?;
        let [own, present] = [&self.socket, &new].map(|it| it.local_addr());
        (own.ok()?.ip() != present.ok()?.ip()).then_some(new)
    }

    /// Gives the connection a socket, which sends a probe. Bytes that wait for acknowledgements may
    /// fill the window of congestion control meanwhile.
    fn rebind(&mut self, socket: Arc<ClientSocket>) {
        if let Some(controller) = self.watch.controller.get() {
            controller.permit_probe();
        }
        if let Err(error) = self.endpoint.rebind_abstract(Arc::clone(&socket) as _) {
            // The old socket stays.
            tracing::debug!(%error, "cannot use another socket");
            return;
        }
        self.socket = socket;
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};

    use quinn::congestion::{Controller, ControllerFactory};
    use tandem::error::Side;
    use tandem_tunnel::Algorithm;

    use super::*;
    use crate::carrier::QuicCarrier;
    use crate::congestion::Factory;

    const SECOND: Duration = Duration::from_secs(1);
    /// More bytes than a fresh window has room for.
    const FLIGHT: u64 = 1 << 20;

    #[test]
    fn probes_follow_each_other_at_bounded_times() {
        let begun = Instant::now();
        let (mut silence, mut probes) = (Silence::default(), Vec::new());
        assert_eq!(silence.due(None), None, "nothing was sent");
        while let Some(at) = silence
            .due(Some(begun))
            .filter(|at| *at < begun + 50 * SECOND)
        {
            probes.push(((at - begun).as_secs(), silence.probe(at)));
        }
        let (first, new) = (probes[0], &probes[1..]);
        assert_eq!(
            first,
            (2, false),
            "the first probe leaves from the same socket"
        );
        assert!(new.iter().all(|(_, is_new)| *is_new));
        let times: Vec<_> = new.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [6, 14, 22, 30, 38, 46]);
        // An answer has arrived, and another datagram was sent.
        let asked = begun + 60 * SECOND;
        assert_eq!(silence.due(Some(asked)), Some(asked + 2 * SECOND));
        assert!(!silence.probe(asked + 2 * SECOND));
    }

    #[test]
    fn watch_counts_refusals_in_a_row() {
        let watch = Watch::new();
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        watch.sent(1200);
        watch.failed(&refused);
        // Those of one moment count once.
        for (millis, count) in [(10, 1), (500, 1), (1900, 2), (2000, 2), (3500, 3)] {
            watch.note_refusal(Duration::from_millis(millis));
            assert_eq!(watch.refusals.load(Ordering::Relaxed), count, "{millis} ms");
        }
        assert!(watch.asked().is_some());
        watch.heard(100);
        assert_eq!(watch.refusals.load(Ordering::Relaxed), 0);
        assert!(watch.asked().is_none() && !watch.is_lost.load(Ordering::Relaxed));
        watch.failed(&io::ErrorKind::NetworkUnreachable.into());
        assert!(watch.is_lost.load(Ordering::Relaxed));
    }

    #[test]
    fn looks_move_an_unconfirmed_connection_seldom() {
        let begun = Instant::now();
        let mut looks = Looks::default();
        assert_eq!(looks.due(None, SECOND / 3), None, "nothing was sent");
        assert_eq!(looks.due(Some(begun), SECOND / 3), Some(begun + LOOK));
        looks.last = Some(begun + LOOK);
        assert_eq!(looks.due(Some(begun), SECOND / 3), Some(begun + 2 * LOOK));
        looks.moved = Some(begun + LOOK);
        assert_eq!(
            looks.due(Some(begun), SECOND / 3),
            Some(begun + LOOK + FOLLOW_AGAIN)
        );
        // An answer has arrived, and another datagram was sent.
        let asked = begun + 2 * SECOND;
        assert_eq!(looks.due(Some(asked), SECOND / 3), Some(asked + LOOK));
        assert_eq!(looks.due(Some(asked), SECOND), Some(asked + 2 * SECOND));
    }

    fn trusting(root: rustls::pki_types::CertificateDer<'static>) -> quinn::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(root).expect("a root");
        let config = quinn::ClientConfig::with_root_certificates(Arc::new(roots));
        config.expect("a configuration")
    }

    /// Returns the guard of a connection that waits for a mute gateway. Its machine has the address
    /// 127.0.0.2 still, but would send from another one now.
    fn guard(gateway: &UdpSocket, may_move: bool) -> (Guard, quinn::Connecting) {
        let (watch, remote) = (Watch::new(), gateway.local_addr().expect("an address"));
        let earlier = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).expect("a port");
        earlier.connect(remote).expect("a route");
        let socket = ClientSocket::new(earlier, &watch).expect("a socket");
        let runtime = Arc::new(quinn::TokioRuntime);
        let endpoint = Endpoint::new_with_abstract_socket(
            quinn::EndpointConfig::default(),
            None,
            Arc::clone(&socket) as _,
            runtime,
        );
        let endpoint = endpoint.expect("an endpoint");
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
        let config = trusting(own.expect("a certificate").cert.der().clone());
        let connecting = endpoint.connect_with(config, remote, "localhost");
        let (confirm, confirmed) = oneshot::channel();
        confirm.send(()).expect("a guard");
        let guard = Guard {
            watch,
            endpoint,
            socket,
            remote,
            may_move,
            confirmed,
        };
        (guard, connecting.expect("a connection"))
    }

    fn gateway() -> UdpSocket {
        let gateway = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        gateway.set_nonblocking(true).expect("the mode");
        gateway
    }

    /// Returns the sources of the datagrams that wait at a gateway.
    fn sources(gateway: &UdpSocket) -> Vec<IpAddr> {
        let next = || gateway.recv_from(&mut [0; 2000]).ok();
        let from = std::iter::from_fn(next).map(|(_, from)| from.ip());
        from.collect()
    }

    /// Returns the time after which a datagram comes from the present address, if one does within
    /// three seconds. `each` runs about once in 50 ms.
    async fn moved_after(gateway: &UdpSocket, guard: Guard, each: impl Fn()) -> Option<Duration> {
        let begun = Instant::now();
        let (task, mut heard) = (tokio::spawn(guard.run()), 0);
        let mut moved = None;
        while moved.is_none() && begun.elapsed() < 3 * SECOND {
            each();
            tokio::time::sleep(Duration::from_millis(50)).await;
            let from = sources(gateway);
            heard += from.len();
            let has_moved = from.contains(&Ipv4Addr::LOCALHOST.into());
            moved = has_moved.then(|| begun.elapsed());
        }
        task.abort();
        assert!(heard > 0, "nothing was sent");
        moved
    }

    /// Silence alone moves a connection after six seconds.
    #[tokio::test]
    async fn guard_moves_a_silent_connection_along_its_route() {
        let gateway = gateway();
        let (guard, _connecting) = guard(&gateway, true);
        let factory = Arc::new(Factory(Algorithm::Cubic));
        let mut controller = factory.build(Instant::now(), 1200);
        controller.on_sent(Instant::now(), FLIGHT, 0);
        let copy = Resuming::from(controller.clone_box()).expect("our controller");
        guard.watch.controller.get_or_init(|| copy);
        assert!(controller.window() < FLIGHT);
        let moved = moved_after(&gateway, guard, || {}).await.expect("a move");
        assert!(moved >= LOOK, "an answer might have come: {moved:?}");
        assert!(controller.window() > FLIGHT, "no probe is permitted");
    }

    /// The connection of another program's socket is such a one (RFC 9000, section 9).
    #[tokio::test]
    async fn guard_leaves_a_connection_that_may_not_move() {
        let gateway = gateway();
        let (guard, _connecting) = guard(&gateway, false);
        assert_eq!(moved_after(&gateway, guard, || {}).await, None);
    }

    /// The addresses of a healthy connection may differ, as with two equal routes. A stall of the
    /// test itself looks like missing answers, so such a turn does not count.
    #[tokio::test]
    async fn guard_leaves_a_connection_whose_answers_arrive() {
        for _ in 0..5 {
            let gateway = gateway();
            let (guard, _connecting) = guard(&gateway, true);
            let watch = Arc::clone(&guard.watch);
            let (last, longest) = (Cell::new(Instant::now()), Cell::new(Duration::ZERO));
            let answer = || {
                longest.set(longest.get().max(last.replace(Instant::now()).elapsed()));
                watch.heard(100);
                watch.sent(1200);
            };
            let moved = moved_after(&gateway, guard, answer).await;
            if longest.get() < SECOND / 2 {
                assert_eq!(moved, None);
                return;
            }
        }
        panic!("the machine is too busy for this test");
    }

    /// Without it, no probe of the guard would leave beside a full window.
    #[tokio::test]
    async fn watch_of_a_carrier_has_its_controller() {
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
        let own = own.expect("a certificate");
        let (root, key) = (own.cert.der().clone(), own.signing_key.serialize_der());
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key);
        let server = quinn::ServerConfig::with_single_cert(vec![root.clone()], key.into());
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let server = Endpoint::server(server.expect("a configuration"), any).expect("a port");
        let client = Endpoint::client(any).expect("a port");
        let mut config = trusting(root);
        let mut transport = quinn::TransportConfig::default();
        transport.congestion_controller_factory(Arc::new(Factory(Algorithm::Cubic)));
        config.transport_config(Arc::new(transport));
        let address = server.local_addr().expect("bound");
        let connecting = client.connect_with(config, address, "localhost");
        let accepting = async { server.accept().await.expect("a client").await };
        let (near, far) = tokio::join!(connecting.expect("a configuration"), accepting);
        let (near, _far) = (near.expect("a connection"), far.expect("a connection"));
        let watch = Watch::new();
        let carrier = QuicCarrier::new(near.clone(), b"h3", Side::Peer, None, ());
        let _carrier = carrier.watched_by(Arc::clone(&watch));
        let mut same = Resuming::of(&near).expect("our controller");
        same.on_sent(Instant::now(), FLIGHT, 0);
        assert!(same.window() < FLIGHT);
        watch.controller.get().expect("a controller").permit_probe();
        assert!(same.window() > FLIGHT);
    }

    /// Otherwise each probe would cause another one, as long as nobody uses the connection.
    #[test]
    fn answer_to_a_probe_is_the_last_of_a_pause() {
        let watch = Watch::new();
        watch.heard(200);
        watch.sent(40);
        assert_eq!(watch.asked(), None);
        watch.heard(1200);
        watch.sent(40);
        assert!(watch.asked().is_some(), "the end of a download");
        watch.traffic.store(0, Ordering::Relaxed);
        watch.heard(200);
        watch.sent(100);
        assert!(watch.asked().is_some(), "a request");
    }
}
