//! Hands the address of a UDP socket over to the next process, while its connections go on here.
//!
//! A TCP listener closes at the end of the accepting, and its connections have sockets of their
//! own. Over UDP, all connections of a listener share its socket. At the end of the accepting, each
//! connection gets a socket that is bound to the same address and connected to its peer. The kernel
//! prefers connected sockets, and passes all other datagrams to the socket of the next process:
//!
//! ```text
//!  from a peer of this process ──▶ its connected socket       (this process)
//!  from any other address      ──▶ a socket without a peer    (the next process, or a refusal)
//! ```
//!
//! Two sockets may have one address only with `SO_REUSEPORT`, and only if they belong to the same
//! user. A listener has the option while it takes over an address and from its own handover on, and
//! not between. Two processes that both accept can therefore not share an address.
//!
//! A listener that takes over an address looks at the other sockets there before it drops the
//! option. If one of them has no peer, the handover is under way: without the option, the remaining
//! connections would get no sockets, and the new listener would get their datagrams. On IPv6, the
//! other one may also accept, since Linux compares a new socket with one other only.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use socket2::{Domain, SockRef, Type};

/// The ends of a connection that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The address of this machine at which the peer's datagrams arrive, if it is known.
    pub own: Option<IpAddr>,
    /// The address of the peer.
    pub peer: SocketAddr,
}

/// The attempts to take over an address while its handover is under way, and the time between two.
/// A handover takes some milliseconds.
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// Creates a UDP socket for a listener. Its address may be one that was handed over. Waits for half
/// a second at most if the handover is under way.
///
/// # Errors
/// The error of the system, `AddrInUse` while another process accepts at this address.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    for _ in 0..ATTEMPTS {
        if let Some(socket) = bind_after_handover(address)? {
            return Ok(socket);
        }
        std::thread::sleep(PAUSE);
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Creates the socket, or returns `None` while another one without a peer shares the address.
fn bind_after_handover(address: SocketAddr) -> io::Result<Option<UdpSocket>> {
    match bind_with(address, false) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let socket = UdpSocket::from(bind_with(address, true)?);
            // Without the kernel's table, an address of IPv6 counts as taken.
            if has_other(&socket).unwrap_or_else(|_| address.is_ipv6()) {
                return Ok(None);
            }
            SockRef::from(&socket).set_reuse_port(false)?;
            Ok(Some(socket))
        }
        bound => bound.map(|socket| Some(socket.into())),
    }
}

/// Returns true if another socket without a peer has the address of this socket.
fn has_other(socket: &UdpSocket) -> io::Result<bool> {
    let own = format!("/proc/self/fd/{}", socket.as_raw_fd());
    let (inode, address) = (std::fs::metadata(own)?.ino(), socket.local_addr()?);
    let table = std::fs::read_to_string(match address {
        SocketAddr::V4(_) => "/proc/self/net/udp",
        SocketAddr::V6(_) => "/proc/self/net/udp6",
    })?;
    let mut entries = table.lines().skip(1).filter_map(entry);
    Ok(entries.any(|(other, number)| {
        let overlaps = other.ip() == address.ip()
            || other.ip().is_unspecified()
            || address.ip().is_unspecified();
        number != inode && other.port() == address.port() && overlaps
    }))
}

/// Returns the address and the number of a socket without a peer, from the kernel's table.
fn entry(line: &str) -> Option<(SocketAddr, u64)> {
    /// The state of a socket that is not connected.
    const UNCONNECTED: &str = "07";
    let mut columns = line.split_ascii_whitespace().skip(1);
    let (ip, port) = columns.next()?.split_once(':')?;
    let state = columns.nth(1)?;
    let inode = columns.nth(5)?.parse().ok()?;
    let mut octets = [0; 16];
    for (at, word) in octets.chunks_exact_mut(4).take(ip.len() / 8).enumerate() {
        let digits = ip.get(8 * at..8 * at + 8)?;
        word.copy_from_slice(&u32::from_str_radix(digits, 16).ok()?.to_ne_bytes());
    }
    let ip = match (ip.len(), octets) {
        (8, [a, b, c, d, ..]) => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(octets),
    };
    let address = SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?);
    (state == UNCONNECTED).then_some((address, inode))
}

/// Binds a socket. If it is `shared`, others of this user may have the address too.
fn bind_with(address: SocketAddr, shared: bool) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Hands the address of `listener` over. Returns the sockets of the connections, in order, `None`
/// for those that get no datagrams any more. The listener still sends to any address, and receives
/// only the datagrams that have arrived before.
///
/// # Errors
/// The error of the system, such as a lack of descriptors or of the right to bind the port. The
/// listener is then unchanged, and its address is free only after it is closed.
pub fn hand_over(listener: &UdpSocket, flows: &[Flow]) -> io::Result<Vec<Option<UdpSocket>>> {
    let option = SockRef::from(listener);
    let local = listener.local_addr()?;
    option.set_reuse_port(true)?;
    let connect = || {
        let sockets = flows.iter().map(|flow| connected(local, flow));
        let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
        listener.connect(itself(local))?;
        Ok(sockets)
    };
    let handed = connect();
    if handed.is_err() {
        // The next process must not get a part of the datagrams.
        option.set_reuse_port(false)?;
    }
    handed
}

/// Checks that the address of a socket was not handed over: a listener would receive nothing.
///
/// # Errors
/// `AddrInUse` if it was.
pub fn check(socket: &UdpSocket) -> io::Result<()> {
    match socket.peer_addr() {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(_) => Ok(()),
    }
}

/// Returns a socket for one connection, or `None` if its peer cannot be reached any more, or if the
/// next process has the address already.
///
/// # Errors
/// See [`hand_over`].
pub fn connected(local: SocketAddr, flow: &Flow) -> io::Result<Option<UdpSocket>> {
    let mut own = local;
    own.set_ip(flow.own.unwrap_or_else(|| local.ip()));
    if let (SocketAddr::V6(own), SocketAddr::V6(peer)) = (&mut own, flow.peer) {
        own.set_scope_id(peer.scope_id());
    }
    match bind_with(own, true) {
        Ok(socket) => Ok(socket
            .connect(&flow.peer.into())
            .ok()
            .map(|()| socket.into())),
        // A process that has begun during the handover gets the datagrams of the remaining peers.
        // The others keep their sockets, whereas a failure would end all of them.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the address of a listener from its own machine. Nothing sends from there.
fn itself(local: SocketAddr) -> SocketAddr {
    let mut itself = local;
    if local.ip().is_unspecified() {
        itself.set_ip(match local.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    itself
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn client(gateway: SocketAddr) -> UdpSocket {
        let socket = UdpSocket::bind((gateway.ip(), 0)).expect("a port");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.connect(gateway).expect("a route");
        socket
    }

    /// Reads the next datagram of a socket.
    fn next(socket: &UdpSocket) -> Vec<u8> {
        socket.set_nonblocking(false).expect("the mode");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut bytes = vec![0; 100];
        let size = socket.recv(&mut bytes).expect("a datagram");
        bytes.truncate(size);
        bytes
    }

    /// Returns true if the socket has no datagram.
    fn is_empty(socket: &UdpSocket) -> bool {
        socket.set_nonblocking(true).expect("the mode");
        socket.recv(&mut [0; 100]).is_err()
    }

    /// Binds to a free port of `ip`, and hands that over with one connection. Returns all ends.
    fn handed_over(ip: IpAddr, reached: IpAddr) -> (UdpSocket, UdpSocket, UdpSocket) {
        let listener = bind(SocketAddr::new(ip, 0)).expect("a port");
        let local = listener.local_addr().expect("bound");
        let client = client(SocketAddr::new(reached, local.port()));
        client.send(b"before").expect("sent");
        let flow = Flow {
            own: Some(reached),
            peer: client.local_addr().expect("bound"),
        };
        assert!(bind(local).is_err(), "the first one accepts");
        let mut sockets = hand_over(&listener, &[flow]).expect("handed over");
        let own = sockets.pop().flatten().expect("a socket");
        (listener, own, client)
    }

    #[test]
    fn next_listener_gets_the_datagrams_of_new_peers_only() {
        let (any4, local4) = (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into());
        let (any6, local6) = (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into());
        for (ip, reached) in [
            (local4, local4),
            (any4, local4),
            (any4, Ipv4Addr::new(127, 0, 0, 2).into()),
            (local6, local6),
            (any6, local6),
        ] {
            let (old, own, known) = handed_over(ip, reached);
            let port = own.local_addr().expect("bound").port();
            let successor = bind(SocketAddr::new(ip, port)).expect("the address is free");
            assert!(bind(SocketAddr::new(ip, port)).is_err(), "for one only");
            let new = client(SocketAddr::new(reached, port));
            for count in 0..20 {
                known.send(&[b'k', count]).expect("sent");
                new.send(&[b'n', count]).expect("sent");
                assert_eq!(next(&own), [b'k', count]);
                assert_eq!(next(&successor), [b'n', count]);
            }
            assert_eq!(next(&old), b"before");
            assert!(is_empty(&old) && is_empty(&own) && is_empty(&successor));
            // The old socket answers the datagrams that came before. A connected client gets only
            // those from the address that it knows.
            if !ip.is_unspecified() {
                old.send_to(b"answer", known.local_addr().expect("bound"))
                    .expect("sent");
                assert_eq!(next(&known), b"answer");
            }
            own.send(b"own").expect("sent");
            assert_eq!(next(&known), b"own");
        }
    }

    #[test]
    fn address_without_a_next_listener_refuses_new_peers() {
        let local = Ipv4Addr::LOCALHOST.into();
        let (_old, own, _known) = handed_over(local, local);
        let new = client(own.local_addr().expect("bound"));
        new.send(b"hello").expect("sent");
        let refused = new.recv(&mut [0; 100]).expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn failed_handover_keeps_the_address() {
        let listener = bind((Ipv6Addr::LOCALHOST, 0).into()).expect("a port");
        let local = listener.local_addr().expect("bound");
        // A link-local address cannot be bound without its interface.
        let flow = Flow {
            own: Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into()),
            peer: SocketAddr::from((Ipv6Addr::LOCALHOST, 9)),
        };
        assert!(hand_over(&listener, &[flow]).is_err());
        assert!(check(&listener).is_ok());
        assert!(bind(local).is_err(), "its datagrams would be shared");
        assert!(hand_over(&listener, &[]).is_ok() && check(&listener).is_err());
        assert!(bind(local).is_ok());
    }

    /// The next process tries again, and the connections of this one get their sockets meanwhile.
    #[test]
    fn listener_takes_no_address_during_a_handover() {
        let (any4, local4) = (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into());
        let (any6, local6) = (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into());
        for (ip, reached) in [
            (local4, local4),
            (any4, local4),
            (local6, local6),
            (any6, local6),
        ] {
            let listener = bind(SocketAddr::new(ip, 0)).expect("a port");
            let local = listener.local_addr().expect("bound");
            let option = SockRef::from(&listener);
            option.set_reuse_port(true).expect("set");
            let mut connections = Vec::new();
            for _ in 0..2 {
                let taken = bind_after_handover(local).expect("it is shared");
                assert!(taken.is_none(), "it would get their datagrams");
                let client = client(SocketAddr::new(reached, local.port()));
                let flow = Flow {
                    own: Some(reached),
                    peer: client.local_addr().expect("bound"),
                };
                let own = connected(local, &flow).expect("bound").expect("a socket");
                client.send(b"data").expect("sent");
                assert_eq!(next(&own), b"data");
                connections.push((client, own));
            }
            let waiting = std::thread::spawn(move || bind(local));
            hand_over(&listener, &[]).expect("handed over");
            drop(listener);
            assert!(waiting.join().expect("no panic").is_ok(), "it is over");
        }
    }

    /// A process of an earlier version begins without a look at the other sockets.
    #[test]
    fn handover_goes_on_if_the_next_process_has_begun() {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        let local = listener.local_addr().expect("bound");
        let clients = [client(local), client(local)];
        let [first, second] = clients.each_ref().map(|client| Flow {
            own: None,
            peer: client.local_addr().expect("bound"),
        });
        SockRef::from(&listener).set_reuse_port(true).expect("set");
        let own = connected(local, &first).expect("bound").expect("a socket");
        let successor = UdpSocket::from(bind_with(local, true).expect("a shared address"));
        let option = SockRef::from(&successor);
        option.set_reuse_port(false).expect("set");
        let sockets = hand_over(&listener, &[second]).expect("handed over");
        assert!(sockets[0].is_none(), "the next process has its datagrams");
        for client in &clients {
            client.send(b"data").expect("sent");
        }
        assert_eq!(
            (next(&own), next(&successor)),
            (b"data".to_vec(), b"data".to_vec())
        );
        assert!(is_empty(&listener) && bind(local).is_err());
    }

    #[test]
    fn handover_leaves_out_peers_that_are_out_of_reach() {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        // Loopback addresses reach no others, and the second address is not of this machine.
        let [peer, gone] =
            [[198, 51, 100, 1], [198, 51, 100, 2]].map(|ip| SocketAddr::from((ip, 9)));
        let flows = [None, Some(gone.ip())].map(|own| Flow { own, peer });
        let sockets = hand_over(&listener, &flows).expect("handed over");
        assert!(sockets.iter().all(Option::is_none), "{sockets:?}");
    }
}
