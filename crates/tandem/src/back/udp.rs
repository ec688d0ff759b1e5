//! Tunnels of UDP datagrams at the gateway (CONNECT-UDP, RFC 9298): a connected socket for each
//! tunnel, and the destination policy of all other connections.
//!
//! ```text
//!  body ─▶ CapsuleReader ─▶ socket ─▶ origin
//!  reply ◀── put_datagram ◀── socket ◀── origin
//! ```
//!
//! All sessions of a thread share its tunnels (`sharing`).

mod sharing;

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tandem_http::ResponseHead;
use tandem_http::connect_udp::{self, CapsuleReader, MAX_PAYLOAD, MalformedCapsule, put_datagram};
use tokio::net::UdpSocket;
use tokio::time::Instant;

use self::sharing::{SessionTunnels, Shared, TunnelPlace, full};
use super::policy::{Direct, first_to_answer};
use crate::descriptors;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk, Exchange, Part, Reply, Sink};
use crate::metrics::METRICS;
use crate::stage::Stage;
use crate::transport::Target;
use crate::transport::registry::Protocol;

/// The time without a datagram after which a tunnel ends: at least two minutes (RFC 9298 section
/// 3.1).
const IDLE: Duration = Duration::from_secs(120);

/// The bytes of datagrams that are sent to the client in one piece.
const BATCH: usize = 16 << 10;

/// The UDP tunnels of all sessions of a thread.
pub struct UdpTunnels {
    direct: Rc<Direct>,
    shared: Rc<Shared>,
    /// Holds one datagram of an origin, so that no tunnel needs a buffer.
    scratch: Cell<Vec<u8>>,
}

impl UdpTunnels {
    /// Creates the tunnels of a thread, at most `most` at a time. `direct` resolves and permits
    /// destinations.
    pub fn new(direct: &Rc<Direct>, most: usize) -> Rc<Self> {
        Rc::new(Self {
            direct: Rc::clone(direct),
            shared: Rc::new(Shared::new(most)),
            scratch: Cell::default(),
        })
    }

    /// Opens a socket for a session that is connected to the target.
    async fn connect(&self, session: u64, target: &Target) -> Result<UdpSocket, Error> {
        let addresses = self.direct.addresses(Protocol::Udp, session, target);
        let addresses = addresses.await?;
        let timeout = self.direct.options.connect_timeout;
        first_to_answer(&addresses, timeout, async |address, _| {
            let any: SocketAddr = match address {
                SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let connected = async {
                let socket = descriptors::open(|| UdpSocket::bind(any)).await?;
                forbid_fragments(&socket, address)?;
                socket.connect(address).await?;
                Ok(socket)
            };
            let connected: std::io::Result<UdpSocket> = connected.await;
            connected.map_err(|error| Error::io(&error, Side::Origin))
        })
        .await
    }

    async fn carry(
        &self,
        exchange: &Exchange,
        place: &TunnelPlace,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let (host, port) = connect_udp::target(&exchange.request.path).ok_or_else(|| {
            let detail = "the path names no host and port for UDP";
            Error::new(Kind::BadRequest, Side::Client, detail)
        })?;
        let session = exchange.peer.session;
        let socket = self.connect(session, &Target::new(host, port)).await?;
        METRICS.udp_flows.add(1);
        let mut head = ResponseHead::new(200);
        let (name, value) = connect_udp::CAPSULE_PROTOCOL;
        head.fields.push(name, value);
        place.state.is_agreed.set(true);
        sink.send(Part::Head(head)).await;
        let used = &place.state.used;
        used.set(Instant::now());
        tokio::select! {
            biased;
            ended = send(&socket, exchange.body.share(), &place.session, used) => ended,
            ended = self.receive(&socket, sink, used) => ended,
            () = until_idle(used) => Ok(()),
        }
    }

    /// Passes the origin's datagrams to the client.
    async fn receive(
        &self,
        socket: &UdpSocket,
        sink: &mut Sink,
        used: &Cell<Instant>,
    ) -> Result<(), Error> {
        loop {
            let ready = socket.readable().await;
            ready.map_err(|error| Error::io(&error, Side::Origin))?;
            let out = self.take(socket)?;
            if !out.is_empty() {
                used.set(Instant::now());
                sink.send(Part::Data(out.into())).await;
            }
        }
    }

    /// Returns the datagrams that have arrived, as capsules.
    fn take(&self, socket: &UdpSocket) -> Result<Vec<u8>, Error> {
        let mut scratch = self.scratch.take();
        // It is empty at the first use.
        scratch.resize(MAX_PAYLOAD + 1, 0);
        let mut out = Vec::new();
        let taken = loop {
            if out.len() >= BATCH {
                break Ok(out);
            }
            match socket.try_recv(&mut scratch) {
                Ok(count) if count <= MAX_PAYLOAD => put_datagram(&mut out, &scratch[..count]),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(out),
                Err(error) if is_loss(&error) => break Ok(out),
                Err(error) => break Err(Error::io(&error, Side::Origin)),
            }
        };
        self.scratch.set(scratch);
        taken
    }
}

/// Makes the system send each datagram in one packet, or not at all: a proxy fragments none (RFC
/// 9298 section 3.1). A larger one is dropped, as the RFC demands.
#[cfg(target_os = "linux")]
fn forbid_fragments(socket: &UdpSocket, address: SocketAddr) -> std::io::Result<()> {
    use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

    match address {
        SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DO)?,
        SocketAddr::V6(_) => sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DO)?,
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
const fn forbid_fragments(_: &UdpSocket, _: SocketAddr) -> std::io::Result<()> {
    Ok(())
}

/// Returns whether an error of a socket counts as the loss of a datagram, which a program that uses
/// UDP expects. After any other error, such as an unreachable host, the tunnel ends (RFC 9298
/// section 3.1).
fn is_loss(error: &std::io::Error) -> bool {
    // Nothing listens at the port, or a firewall drops the datagram.
    let is_refused = matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied
    );
    // The datagram does not fit into a packet, or the system has no memory for it.
    let is_dropped = [libc::EMSGSIZE, libc::ENOBUFS, libc::ENOMEM].map(Some);
    is_refused || is_dropped.contains(&error.raw_os_error())
}

/// Sends the client's datagrams to the origin, until the client ends the tunnel. An end inside a
/// capsule is an error (RFC 9297 section 3.3).
async fn send(
    socket: &UdpSocket,
    mut body: Body,
    session: &SessionTunnels,
    used: &Cell<Instant>,
) -> Result<(), Error> {
    let mut reader = CapsuleReader::default();
    while let Some(chunk) = std::future::poll_fn(|cx| body.poll_chunk(cx)).await {
        let Chunk::Data(data) = chunk? else { continue };
        reader.push(&data);
        while let Some(payload) = reader.datagram().map_err(malformed)? {
            let now = Instant::now();
            used.set(now);
            if !session.packets.take(now) {
                continue;
            }
            match socket.send(&payload).await {
                Err(error) if !is_loss(&error) => return Err(Error::io(&error, Side::Origin)),
                _ => {}
            }
        }
    }
    reader.finish().map_err(malformed)
}

fn malformed(bad: MalformedCapsule) -> Error {
    Error::new(Kind::BadRequest, Side::Client, bad.to_string())
}

/// Waits until no datagram has passed for [`IDLE`].
async fn until_idle(used: &Cell<Instant>) {
    loop {
        let end = used.get() + IDLE;
        if end <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(end).await;
    }
}

/// The stage of one session that opens UDP tunnels.
pub struct Udp {
    tunnels: Rc<UdpTunnels>,
    session: Rc<SessionTunnels>,
    next: Rc<dyn Stage>,
}

impl Udp {
    /// Creates the stage of a session.
    pub fn new(tunnels: &Rc<UdpTunnels>, next: Rc<dyn Stage>) -> Self {
        Self {
            tunnels: Rc::clone(tunnels),
            session: tunnels.shared.session(Instant::now()),
            next,
        }
    }
}

impl Stage for Udp {
    fn call(&self, exchange: Exchange) -> Reply {
        if !connect_udp::is_request(&exchange.request) {
            return self.next.call(exchange);
        }
        let tunnels = Rc::clone(&self.tunnels);
        Reply::generate(|mut sink| {
            let place = TunnelPlace::take(&tunnels.shared, &self.session, sink.canceller());
            async move {
                let place = place.ok_or_else(full)?;
                tunnels.carry(&exchange, &place, &mut sink).await
            }
        })
    }
}

/// The stage of a proxy that carries no UDP.
pub struct NoUdp {
    /// The reason that a refusal names.
    pub reason: &'static str,
    /// The stage that other exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for NoUdp {
    fn call(&self, exchange: Exchange) -> Reply {
        match connect_udp::is_request(&exchange.request) {
            true => Reply::fail(Error::new(Kind::Forbidden, Side::Local, self.reason)),
            false => self.next.call(exchange),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use tandem_http::{RequestHead, Scheme};

    use super::*;
    use crate::back::own::OwnListeners;
    use crate::back::policy::Policy;
    use crate::exchange::Chunks;
    use crate::transport::tcp::SocketOptions;

    fn tunnels(most: usize) -> Rc<UdpTunnels> {
        let direct = Direct {
            policy: Policy::default(),
            named: None,
            own: OwnListeners::default(),
            options: SocketOptions::default(),
        };
        UdpTunnels::new(&Rc::new(direct), most)
    }

    fn reply_to(udp: &dyn Stage, request: RequestHead) -> Result<u16, Kind> {
        let mut reply = udp.call(Exchange {
            request: Arc::new(request),
            ..Exchange::internal(RequestHead::connect("a.test:1"))
        });
        match reply.poll_part(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(Part::Head(head)))) => Ok(head.status),
            Poll::Ready(Some(Err(error))) => Err(error.kind),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn udp_is_refused_without_tunnels() {
        let next = |_: Exchange| Reply::ready(ResponseHead::new(204), bytes::Bytes::new());
        let udp = NoUdp {
            reason: "no UDP here",
            next: Rc::new(next),
        };
        let request = connect_udp::request("192.0.2.1", 443);
        assert_eq!(reply_to(&udp, request), Err(Kind::Forbidden));
        let other = RequestHead::get(Scheme::Http, "a.test", "/");
        assert_eq!(reply_to(&udp, other), Ok(204));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn tunnels_send_no_fragments() {
        use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

        for address in ["127.0.0.1:9", "[::1]:9"] {
            let address: SocketAddr = address.parse().expect("an address");
            let mut tunnels = Rc::into_inner(tunnels(1)).expect("no other owner");
            let direct = Rc::get_mut(&mut tunnels.direct).expect("no other owner");
            direct.policy.allow = vec![address.ip().to_string().parse().expect("a rule")];
            let target = Target::new(address.ip().to_string(), address.port());
            let socket = tunnels.connect(0, &target).await.expect("a socket");
            let is_forbidden = match address {
                SocketAddr::V4(_) => {
                    sockopt::ip_mtu_discover(&socket).expect("an option")
                        == Ipv4PathMtuDiscovery::DO
                }
                SocketAddr::V6(_) => {
                    sockopt::ipv6_mtu_discover(&socket).expect("an option")
                        == Ipv6PathMtuDiscovery::DO
                }
            };
            assert!(is_forbidden, "{address}");
        }
    }

    #[test]
    fn socket_errors_are_losses_or_ends() {
        let error = std::io::Error::from_raw_os_error;
        for lost in [
            libc::ECONNREFUSED,
            libc::EMSGSIZE,
            libc::ENOBUFS,
            libc::EPERM,
        ] {
            assert!(is_loss(&error(lost)), "{lost}");
        }
        for ended in [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EBADF] {
            assert!(!is_loss(&error(ended)), "{ended}");
        }
    }

    /// The body of a client that sends 40,000 empty datagrams at once.
    struct Flood(usize);

    impl Chunks for Flood {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            let left = self.0;
            self.0 = left.saturating_sub(1);
            let capsules = [0, 1, 0].repeat(1000);
            Poll::Ready((left > 0).then(|| Ok(Chunk::Data(capsules.into()))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn session_sends_a_bounded_rate_of_packets() {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = server.local_addr().expect("an address");
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        socket.connect(address).await.expect("a socket");
        // An empty datagram is one of the flood, and any other one is its end.
        let counting = std::thread::spawn(move || {
            std::iter::from_fn(|| server.recv(&mut [0; 8]).ok())
                .take_while(|len| *len == 0)
                .count()
        });
        let session = Shared::new(1).session(Instant::now());
        let used = Cell::new(Instant::now());
        let body = Body::new(Flood(40), None);
        let sent = send(&socket, body, &session, &used).await;
        assert_eq!(sent, Ok(()));
        while !counting.is_finished() {
            // An error means that the receiver has ended.
            let _ = socket.send(b"end").await;
            std::thread::yield_now();
        }
        let count = counting.join().expect("a count");
        assert!(
            (1..=sharing::PACKETS.1 as usize).contains(&count),
            "{count}"
        );
    }

    #[test]
    fn stage_reports_a_full_thread_as_busy() {
        let next = |_: Exchange| Reply::ready(ResponseHead::new(204), bytes::Bytes::new());
        let udp = Udp::new(&tunnels(0), Rc::new(next));
        let request = connect_udp::request("192.0.2.1", 443);
        assert_eq!(reply_to(&udp, request), Err(Kind::Busy));
    }
}
