//! A relay to the outer network, for a link that may not change it: without root, no device can be
//! added to the namespace in which the program was started. The link then ends in a new namespace,
//! where every address is local. This relay carries the traffic on through ordinary sockets of the
//! outer namespace.
//!
//! A TCP connection to the stand-in's own address goes to the loopback address of the machine,
//! others to their original destination. Sockets are opened when the first packet to them is about
//! to be delivered.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::rtnl::Rtnl;
use super::{EmulatorError, sys};
use crate::netns::Netns;

/// TCP ports listened on at once, and as many UDP flows: enough for programs, bounded for port
/// scans.
const MOST: usize = 1024;

/// Silence after which a UDP flow is forgotten.
const UDP_IDLE: Duration = Duration::from_secs(120);

/// The time limit of a connection to the outer network.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

/// Sees every packet before it is delivered to the stand-in.
#[derive(Debug)]
pub struct Doorkeeper {
    netns: Netns,
    entered: bool,
    peer: Ipv4Addr,
    ports: HashSet<u16>,
    flows: Arc<Mutex<HashSet<Flow>>>,
    opened: UnboundedSender<Opened>,
}

/// A UDP flow: from the command's socket, to wherever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flow {
    from: SocketAddr,
    to: SocketAddr,
}

enum Opened {
    Tcp(std::net::TcpListener),
    Udp(std::net::UdpSocket, Flow),
}

/// Starts a relay for a stand-in with this address; its thread ends with the doorkeeper.
pub fn start(netns: Netns, peer: Ipv4Addr) -> Result<Doorkeeper, EmulatorError> {
    let of = || EmulatorError::of("start the relay to the network around");
    netns.run(make_everything_local).map_err(of())?;
    let (opened, incoming) = unbounded_channel();
    let flows = Arc::new(Mutex::new(HashSet::new()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(of())?;
    let served = flows.clone();
    let run = move || runtime.block_on(serve(incoming, peer, served));
    thread::Builder::new()
        .name("relay".into())
        .spawn(run)
        .map_err(of())?;
    Ok(Doorkeeper {
        netns,
        entered: false,
        peer,
        ports: HashSet::new(),
        flows,
        opened,
    })
}

/// Lets the stand-in take packets to every address; the way back to the command is a longer match.
fn make_everything_local() -> io::Result<()> {
    let mut rtnl = Rtnl::open()?;
    let loopback = rtnl.index("lo")?;
    rtnl.bring_up(loopback, None, None)?;
    rtnl.add_local_default(loopback)
}

impl Doorkeeper {
    /// Returns true if the packet may be delivered, and opens the socket that it needs.
    pub fn admit(&mut self, packet: &[u8]) -> bool {
        let Some(header) = Header::read(packet) else {
            return false;
        };
        match header.protocol {
            TCP => header
                .starts_connection
                .is_none_or(|port| self.listen(port)),
            UDP => header.flow.is_some_and(|flow| self.open_flow(flow)),
            // Among the packets that cannot be relayed, only an echo of the stand-in's own address
            // gives a true answer.
            ICMP => header.to == self.peer,
            _ => false,
        }
    }

    fn listen(&mut self, port: u16) -> bool {
        if self.ports.contains(&port) {
            return true;
        }
        if self.ports.len() >= MOST {
            return false;
        }
        let listener = self.enter().and_then(|()| {
            let socket = Socket::new(
                Domain::IPV4,
                Type::STREAM.nonblocking(),
                Some(Protocol::TCP),
            )?;
            socket.set_reuse_address(true)?;
            socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
            socket.listen(1024)?;
            Ok(Opened::Tcp(socket.into()))
        });
        self.ports.insert(port);
        listener.is_ok_and(|listener| self.opened.send(listener).is_ok())
    }

    fn open_flow(&mut self, flow: Flow) -> bool {
        {
            let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
            if flows.contains(&flow) {
                return true;
            }
            if flows.len() >= MOST {
                return false;
            }
            flows.insert(flow);
        }
        let socket = self.enter().and_then(|()| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
            socket.set_freebind_v4(true)?;
            socket.set_reuse_address(true)?;
            socket.bind(&flow.to.into())?;
            socket.connect(&flow.from.into())?;
            Ok(Opened::Udp(socket.into(), flow))
        });
        socket.is_ok_and(|socket| self.opened.send(socket).is_ok())
    }

    /// Enters the outer namespace. The calling thread is the emulator's, which no longer needs its
    /// namespace: its devices are open already.
    fn enter(&mut self) -> io::Result<()> {
        if !self.entered {
            sys::enter_network(self.netns.as_fd())?;
            self.entered = true;
        }
        Ok(())
    }
}

/// The fields of a packet that the doorkeeper needs.
struct Header {
    protocol: u8,
    to: Ipv4Addr,
    /// Port, of a segment that opens a TCP connection.
    starts_connection: Option<u16>,
    flow: Option<Flow>,
}

impl Header {
    fn read(packet: &[u8]) -> Option<Self> {
        const SYN_WITHOUT_ACK: u8 = 0x02;
        let address = |at: usize| {
            packet
                .get(at..at + 4)
                .and_then(|b| <[u8; 4]>::try_from(b).ok())
                .map(Ipv4Addr::from)
        };
        let header = usize::from(*packet.first()? & 15) * 4;
        if packet[0] >> 4 != 4 || header < 20 {
            return None;
        }
        let (protocol, from, to) = (*packet.get(9)?, address(12)?, address(16)?);
        let port = |at: usize| {
            packet
                .get(header + at..header + at + 2)
                .map(|b| u16::from_be_bytes([b[0], b[1]]))
        };
        let first_fragment = packet[6] & 0x1f == 0 && packet[7] == 0;
        let ports = if first_fragment {
            port(0).zip(port(2))
        } else {
            None
        };
        let opens = packet
            .get(header + 13)
            .is_some_and(|flags| flags & 0x12 == SYN_WITHOUT_ACK);
        let flow = ports.map(|(source, destination)| Flow {
            from: SocketAddr::new(IpAddr::V4(from), source),
            to: SocketAddr::new(IpAddr::V4(to), destination),
        });
        let starts_connection = ports
            .filter(|_| protocol == TCP && opens)
            .map(|(_, destination)| destination);
        Some(Self {
            protocol,
            to,
            starts_connection,
            flow,
        })
    }
}

async fn serve(
    mut opened: UnboundedReceiver<Opened>,
    peer: Ipv4Addr,
    flows: Arc<Mutex<HashSet<Flow>>>,
) {
    while let Some(socket) = opened.recv().await {
        match socket {
            Opened::Tcp(listener) => drop(tokio::spawn(async move {
                // A listener that cannot be used leaves connections to time out, as a silent host
                // would.
                if let Ok(listener) = TcpListener::from_std(listener) {
                    accept_all(listener, peer).await;
                }
            })),
            Opened::Udp(socket, flow) => {
                let flows = flows.clone();
                drop(tokio::spawn(async move {
                    let _ = carry_flow(socket, around(flow.to, peer)).await;
                    flows
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .remove(&flow);
                }));
            }
        }
    }
}

/// Returns the address in the outer namespace for a connection to `target`.
fn around(target: SocketAddr, peer: Ipv4Addr) -> SocketAddr {
    if target.ip() == IpAddr::V4(peer) {
        (Ipv4Addr::LOCALHOST, target.port()).into()
    } else {
        target
    }
}

async fn accept_all(listener: TcpListener, peer: Ipv4Addr) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(carry_connection(stream, peer))),
            // For lack of descriptors, most likely: trying at once would only burn time.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn carry_connection(mut inner: TcpStream, peer: Ipv4Addr) {
    let Ok(target) = inner.local_addr() else {
        return;
    };
    let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(around(target, peer))).await;
    let Ok(Ok(mut outer)) = connected else {
        // The nearest thing to a refusal that is left: a reset.
        let _ = inner.set_zero_linger();
        return;
    };
    let _ = inner.set_nodelay(true);
    let _ = outer.set_nodelay(true);
    let _ = copy_bidirectional(&mut inner, &mut outer).await;
}

async fn carry_flow(inner: std::net::UdpSocket, target: SocketAddr) -> io::Result<()> {
    let inner = UdpSocket::from_std(inner)?;
    let outer = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    outer.connect(target).await?;
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        let step = async {
            tokio::select! {
                len = inner.recv(&mut up) => outer.send(&up[..len?]).await,
                len = outer.recv(&mut down) => inner.send(&down[..len?]).await,
            }
        };
        timeout(UDP_IDLE, step).await??;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(protocol: u8, flags: u8) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x45;
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&[100, 64, 0, 3]);
        packet[16..20].copy_from_slice(&[100, 64, 0, 2]);
        packet[20..24].copy_from_slice(&[0x30, 0x39, 0, 80]);
        packet[33] = flags;
        packet
    }

    #[test]
    fn only_openings_need_a_listener() {
        let port = |flags| {
            Header::read(&packet(TCP, flags))
                .expect("whole")
                .starts_connection
        };
        assert_eq!(
            (port(0x02), port(0x12), port(0x10), port(0x42)),
            (Some(80), None, None, Some(80))
        );
        let flow = Header::read(&packet(UDP, 0))
            .expect("whole")
            .flow
            .expect("has ports");
        assert_eq!(flow.from, "100.64.0.3:12345".parse().expect("an address"));
        assert_eq!(flow.to, "100.64.0.2:80".parse().expect("an address"));
    }

    #[test]
    fn pieces_of_packets_are_not_misread() {
        let whole = packet(TCP, 0x02);
        assert!((0..20).all(|len| Header::read(&whole[..len]).is_none()));
        assert!((20..24).all(|len| {
            Header::read(&whole[..len])
                .expect("a header")
                .starts_connection
                .is_none()
        }));
        let mut fragment = whole;
        fragment[7] = 1;
        assert!(Header::read(&fragment).expect("a header").flow.is_none());
    }

    #[test]
    fn the_stand_in_is_this_machine() {
        let peer = Ipv4Addr::new(100, 64, 0, 2);
        assert_eq!(
            around((peer, 80).into(), peer),
            (Ipv4Addr::LOCALHOST, 80).into()
        );
        let other: SocketAddr = "198.51.100.1:53".parse().expect("an address");
        assert_eq!(around(other, peer), other);
    }
}
