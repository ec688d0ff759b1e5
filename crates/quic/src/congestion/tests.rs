//! Downloads over QUIC connections on emulated links, in virtual time.

mod first_flight;
mod late;
mod moved;
mod probes;
mod rates;

use std::net::{Ipv6Addr, SocketAddr};
use std::task::Waker;
use std::time::Duration;

use bytes::BytesMut;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint,
    EndpointConfig, ReadableError, ServerConfig, StreamId, Transmit, TransportConfig, VarInt,
};
use rustls::RootCertStore;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tandem_link::queue::QueueLimits;
use tandem_link::{Link, LinkConfig};
use tandem_resume::Outcome;

use super::*;

const MS: Duration = Duration::from_millis(1);
const ROUND: Duration = Duration::from_millis(600);
/// A rate in bits per second.
const MEGA: u64 = 1_000_000;

/// A link with this round trip, and a queue of one bandwidth-delay product.
fn link(rate: u64, round_trip: Duration) -> LinkConfig {
    let product = rate as f64 / 8.0 * round_trip.as_secs_f64();
    LinkConfig {
        delay: round_trip / 2,
        rate: format!("{}kbit", rate / 1000).parse().expect("a rate"),
        queue: QueueLimits {
            packets: Some((product / 1500.0).ceil() as usize),
            ..QueueLimits::default()
        },
        ..LinkConfig::default()
    }
}

/// An end of the connection, with the link that leaves it.
struct End {
    endpoint: Endpoint,
    accepts: Option<Arc<ServerConfig>>,
    connection: Option<(ConnectionHandle, Connection)>,
    address: SocketAddr,
    out: Link,
    /// The datagrams that may leave with one call.
    max_datagrams: usize,
}

impl End {
    fn new(accepts: Option<ServerConfig>, port: u16, out: &LinkConfig) -> Self {
        let accepts = accepts.map(Arc::new);
        let config = Arc::new(EndpointConfig::default());
        Self {
            endpoint: Endpoint::new(config, accepts.clone(), true, Some([port as u8; 32])),
            accepts,
            connection: None,
            address: (Ipv6Addr::LOCALHOST, port).into(),
            out: Link::new(out.clone(), u64::from(port)).expect("a valid link"),
            max_datagrams: 1,
        }
    }

    fn transmit(&mut self, at: Duration, transmit: &Transmit, bytes: &[u8]) {
        let segment = transmit.segment_size.unwrap_or(transmit.size);
        for datagram in bytes[..transmit.size].chunks(segment) {
            self.out.ingress(at, datagram.to_vec());
        }
    }

    /// Takes a datagram from the other end, which a router may have marked.
    fn take(&mut self, (now, at): (Instant, Duration), from: SocketAddr, datagram: (&[u8], bool)) {
        let (datagram, is_marked) = datagram;
        let ecn = match is_marked {
            true => EcnCodepoint::Ce,
            false => EcnCodepoint::Ect0,
        };
        let mut bytes = Vec::new();
        let data = BytesMut::from(datagram);
        match self
            .endpoint
            .handle(now, from, None, Some(ecn), data, &mut bytes)
        {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepts = self.accepts.clone();
                let accepted = self.endpoint.accept(incoming, now, &mut bytes, accepts);
                self.connection = Some(accepted.expect("a connection"));
            }
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                let (_, connection) = self.connection.as_mut().expect("a connection");
                connection.handle_event(event);
            }
            Some(DatagramEvent::Response(transmit)) => self.transmit(at, &transmit, &bytes),
            None => {}
        }
    }

    /// Fires timers, and sends everything that may leave.
    fn drive(&mut self, now: Instant, at: Duration) {
        let Some((handle, mut connection)) = self.connection.take() else {
            return;
        };
        if connection.poll_timeout().is_some_and(|due| due <= now) {
            connection.handle_timeout(now);
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                connection.handle_event(event);
            }
        }
        let mut bytes = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, self.max_datagrams, &mut bytes) {
            self.transmit(at, &transmit, &bytes);
            bytes.clear();
        }
        while connection.poll().is_some() {}
        self.connection = Some((handle, connection));
    }

    fn connection(&mut self) -> &mut Connection {
        &mut self.connection.as_mut().expect("a connection").1
    }
}

fn configs(algorithm: Algorithm) -> (ClientConfig, ServerConfig) {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
    let own = own.expect("a certificate");
    let der = own.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let mut roots = RootCertStore::empty();
    roots.add(der.clone()).expect("a certificate");
    let client = ClientConfig::with_root_certificates(Arc::new(roots));
    let mut client = client.expect("a root");
    let server = ServerConfig::with_single_cert(vec![der], key.into());
    let mut server = server.expect("a certificate and its key");
    let mut transport = TransportConfig::default();
    transport
        .receive_window(VarInt::from_u32(64 << 20))
        .stream_receive_window(VarInt::from_u32(64 << 20))
        .send_window(16 << 20)
        .congestion_controller_factory(Arc::new(Factory(algorithm)));
    let transport = Arc::new(transport);
    client.transport_config(Arc::clone(&transport));
    server.transport_config(transport);
    (client, server)
}

/// A download from a server that always has something to send.
struct Download {
    start: Instant,
    at: Duration,
    server: End,
    client: End,
    stream: Option<StreamId>,
    received: u64,
    /// The bytes that the connection has taken, if the server writes only while few are unsent.
    accepted: Option<u64>,
    /// True once the server writes no more.
    is_paused: bool,
    /// True while the path drops every datagram of the server.
    is_cut: bool,
    /// True while the path marks every datagram of the server.
    marks: bool,
}

impl Download {
    /// Completes the handshake over CUBIC, and then offers the saved speed.
    fn begin(link: &LinkConfig, saved: Option<SavedSpeed>) -> Self {
        Self::over(Algorithm::Cubic, link, saved)
    }

    /// Does the same over this algorithm.
    fn over(algorithm: Algorithm, link: &LinkConfig, saved: Option<SavedSpeed>) -> Self {
        Self::from_sender(None, algorithm, link, saved)
    }

    fn from_sender(
        accepted: Option<u64>,
        algorithm: Algorithm,
        link: &LinkConfig,
        saved: Option<SavedSpeed>,
    ) -> Self {
        let (client_config, server_config) = configs(algorithm);
        let mut download = Self {
            start: Instant::now(),
            at: Duration::ZERO,
            server: End::new(Some(server_config), 4433, link),
            client: End::new(None, 1000, link),
            stream: None,
            received: 0,
            accepted,
            is_paused: false,
            is_cut: false,
            marks: false,
        };
        let to = download.server.address;
        let connecting =
            download
                .client
                .endpoint
                .connect(download.start, client_config, to, "localhost");
        download.client.connection = Some(connecting.expect("a connection"));
        while download
            .server
            .connection
            .as_ref()
            .is_none_or(|(_, connection)| connection.is_handshaking())
        {
            let goes_on = download.step(Duration::from_secs(20));
            assert!(goes_on, "no handshake");
        }
        if let Some(saved) = saved {
            let now = download.start + download.at;
            download.controller().offer(now, saved);
        }
        download
    }

    fn controller(&mut self) -> Resuming {
        let controller = self.server.connection().congestion_state().clone_box();
        Resuming::from(controller).expect("our controller")
    }

    /// Advances to the next event, at most to `until`. Returns false if that is reached.
    fn step(&mut self, until: Duration) -> bool {
        let now = self.start + self.at;
        while let Some((_, datagram)) = self.client.out.pop_due(self.at) {
            let from = self.client.address;
            self.server.take((now, self.at), from, (&datagram, false));
        }
        while let Some((_, datagram)) = self.server.out.pop_due(self.at) {
            let from = self.server.address;
            if !self.is_cut {
                let datagram = (&*datagram, self.marks);
                self.client.take((now, self.at), from, datagram);
            }
        }
        self.write();
        self.read();
        self.server.drive(now, self.at);
        self.client.drive(now, self.at);
        let mut due: Vec<Duration> = Vec::new();
        for end in [&mut self.server, &mut self.client] {
            due.extend(end.out.next_due());
            if let Some((_, connection)) = &mut end.connection {
                let timer = connection.poll_timeout();
                due.extend(timer.map(|at| at.saturating_duration_since(self.start)));
            }
        }
        let next = due.into_iter().min().unwrap_or(until);
        let is_over = next >= until;
        self.at = next.clamp(self.at, until);
        !is_over
    }

    fn write(&mut self) {
        let Some((_, connection)) = &mut self.server.connection else {
            return;
        };
        if connection.is_handshaking() || self.is_paused {
            return;
        }
        if self.stream.is_none() {
            self.stream = connection.streams().open(Dir::Uni);
        }
        let Some(stream) = self.stream else { return };
        let controller = Resuming::from(connection.congestion_state().clone_box());
        let controller = controller.expect("our controller");
        let mut stream = connection.send_stream(stream);
        let Some(accepted) = &mut self.accepted else {
            while stream.write(&[7; 64 << 10]).is_ok_and(|count| count > 0) {}
            return;
        };
        let cx = Context::from_waker(Waker::noop());
        while controller.poll_room(&cx).is_ready()
            && let Ok(count) = stream.write(&[7; 16 << 10])
        {
            controller.accept(count);
            *accepted += count as u64;
        }
    }

    fn read(&mut self) {
        let Some((_, connection)) = &mut self.client.connection else {
            return;
        };
        while connection.streams().accept(Dir::Uni).is_some() {}
        let Some(stream) = self.stream else { return };
        let mut stream = connection.recv_stream(stream);
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream) => return,
            Err(other) => panic!("{other}"),
        };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            self.received += chunk.bytes.len() as u64;
        }
        let _ = chunks.finalize();
    }

    /// Runs for `time`. Returns the bytes that arrived.
    fn run(&mut self, time: Duration) -> u64 {
        let (until, before) = (self.at + time, self.received);
        while self.step(until) {}
        self.received - before
    }

    /// Returns the time for the first `bytes` of the download.
    fn time_for(&mut self, bytes: u64) -> Duration {
        let begun = self.at;
        while self.received < bytes {
            let goes_on = self.step(begun + 100 * ROUND);
            assert!(goes_on, "{} bytes arrived", self.received);
        }
        self.at - begun
    }

    fn lost(&mut self) -> u64 {
        self.server.connection().stats().path.lost_packets
    }

    /// Returns the number of round trips before the one that carries 0.7 of the rate.
    fn rounds_to_fill(&mut self, rate: u64) -> u32 {
        let full = (rate as f64 / 8.0 * ROUND.as_secs_f64()) as u64;
        // The first half of a round trip brings no data.
        self.run(ROUND / 2);
        let mut rounds = 0..40;
        let found = rounds.find(|_| self.run(ROUND) * 10 >= full * 7);
        found.expect("the path is filled")
    }
}

/// The speed that a download has shown.
fn learned(link: &LinkConfig) -> SavedSpeed {
    let mut first = Download::begin(link, None);
    first.run(20 * ROUND);
    first.controller().speed().expect("a speed")
}

#[test]
fn controller_learns_rate_and_round_trip() {
    let speed = learned(&link(20 * MEGA, ROUND));
    assert!((2_200_000..2_600_000).contains(&speed.rate), "{speed:?}");
    let round_trips = ROUND..ROUND + 20 * MS;
    assert!(round_trips.contains(&speed.round_trip), "{speed:?}");
}

#[test]
fn resume_fills_a_long_path_in_one_round_trip() {
    let link = link(20 * MEGA, ROUND);
    let saved = learned(&link);
    let cold = Download::begin(&link, None).rounds_to_fill(20 * MEGA);
    let mut resumed = Download::begin(&link, Some(saved));
    let warm = resumed.rounds_to_fill(20 * MEGA);
    // The handshake has measured the path already.
    assert!(warm <= 1 && cold >= 5, "{warm} and {cold}");
    assert_eq!(resumed.lost(), 0);
}

#[test]
fn resume_halves_the_time_of_a_page() {
    let link = link(20 * MEGA, ROUND);
    let saved = learned(&link);
    for bytes in [300_000, 1_000_000, 3_000_000] {
        let [cold, resumed] = [None, Some(saved)].map(|saved| {
            let mut download = Download::begin(&link, saved);
            download.time_for(bytes)
        });
        assert!(2 * resumed <= cold, "{bytes}: {resumed:?} and {cold:?}");
    }
}

#[test]
fn resume_on_a_tenth_of_the_rate_retreats() {
    let saved = learned(&link(20 * MEGA, ROUND));
    let narrow = link(2 * MEGA, ROUND);
    let mut cold = Download::begin(&narrow, None);
    let mut resumed = Download::begin(&narrow, Some(saved));
    let (began, begun) = (cold.run(12 * ROUND), resumed.run(12 * ROUND));
    // At most the unvalidated packets are lost beside those of a cold start.
    let most = cold.lost() + saved.window() / 2 / 1200;
    assert!(resumed.lost() <= most, "{} of {most}", resumed.lost());
    assert!(begun * 10 >= began * 8, "{begun} and {began} bytes");
    // Lost data holds back the data behind it, so only the sums are comparable.
    let (all, resumed_all) = (
        began + cold.run(20 * ROUND),
        begun + resumed.run(20 * ROUND),
    );
    assert!(resumed_all * 10 >= all * 8, "{resumed_all} and {all} bytes");
}

#[test]
fn resume_with_another_round_trip_changes_nothing() {
    let mut download = Download::begin(&link(20 * MEGA, 100 * MS), None);
    let before = download.controller().window();
    let saved = SavedSpeed {
        rate: 2_500_000,
        round_trip: ROUND,
    };
    let now = download.start + download.at;
    assert!(download.controller().offer(now, saved).is_none());
    assert_eq!(download.controller().window(), before);
}

/// Begins a download that tries a saved speed.
fn tried(link: &LinkConfig, saved: SavedSpeed) -> (Download, Trial) {
    let mut download = Download::begin(link, None);
    let now = download.start + download.at;
    let trial = download.controller().offer(now, saved);
    (download, trial.expect("a trial"))
}

#[test]
fn window_does_not_grow_during_a_retreat() {
    let link = link(20 * MEGA, ROUND);
    let saved = learned(&link);
    let (mut download, trial) = tried(&link, saved);
    // A few packets in the first half of the jump are lost. They take half a round trip.
    download.run(ROUND * 4 / 5);
    download.is_cut = true;
    download.run(10 * MS);
    download.is_cut = false;
    let until = download.at + 2 * ROUND;
    while trial.outcome() != Outcome::Failed {
        assert!(download.step(until), "no retreat");
    }
    let window = download.controller().window();
    assert!(window < saved.window() / 4, "{window}");
    while download.controller().window() == window {
        assert!(download.step(until), "the retreat goes on");
    }
    // Slow start goes on up to a share of the bytes that have arrived.
    let after = download.controller().window();
    assert!(after <= window + 10_000, "{after} and {window}");
    let threshold = download.controller().state().inner.threshold();
    let threshold = threshold.expect("a threshold");
    let expected = window * 5 / 4..saved.window() / 2;
    assert!(expected.contains(&threshold), "{threshold} in {expected:?}");
}

#[test]
fn tail_loss_of_the_jump_retreats() {
    let link = link(20 * MEGA, ROUND);
    let saved = learned(&link);
    let (mut download, trial) = tried(&link, saved);
    // The jump arrives from 0.5 to 1.3 round trips, and the packets behind it from 1.5 on.
    download.run(ROUND * 11 / 10);
    assert_eq!(trial.outcome(), Outcome::Pending);
    download.is_cut = true;
    download.run(ROUND * 9 / 20);
    download.is_cut = false;
    while download.lost() == 0 {
        download.run(20 * MS);
    }
    assert_eq!(trial.outcome(), Outcome::Failed);
    assert!(download.controller().window() < saved.window() / 2);
}
