//! The sockets of associations: one for each client's association, and one for all those of a
//! gateway's listener.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use crate::envelope::LARGEST;

/// The size of receive buffers in bytes, where the kernel permits it: several windows of a fast
/// path arrive at once.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The time between two changes of a client's socket.
const MOVE_AGAIN: Duration = Duration::from_secs(1);

/// A datagram and its source.
pub(crate) type Datagram = (SocketAddr, Vec<u8>);

/// The action after an error of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The datagram counts as lost.
    Ignore,
    /// The peer's system has said that nothing listens there.
    Refused,
    /// The machine has changed its network, and the socket was replaced.
    Moved,
}

/// The way of an association's datagrams.
#[derive(Debug)]
pub(crate) enum Socket {
    /// The socket of a client, which is connected to its gateway: the kernel passes no datagrams of
    /// others on, and sends none to others.
    Own {
        socket: UdpSocket,
        remote: SocketAddr,
        moved: Option<Instant>,
        buf: Vec<u8>,
    },
    /// The socket of a listener, and the queue of datagrams for this association.
    Shared {
        socket: Rc<UdpSocket>,
        inbox: mpsc::Receiver<Datagram>,
    },
}

/// Creates a socket that is connected to `remote`.
fn connect(remote: SocketAddr) -> io::Result<UdpSocket> {
    let any = if remote.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(remote)?;
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    enlarge(&socket);
    Ok(socket)
}

/// Enlarges the receive buffer as far as the kernel permits.
pub(crate) fn enlarge(socket: &UdpSocket) {
    // A smaller buffer only makes bursts more likely to be lost.
    let _ = SockRef::from(socket).set_recv_buffer_size(RECEIVE_BUFFER);
}

impl Socket {
    /// Creates the socket of a client.
    pub(crate) fn connect(remote: SocketAddr) -> io::Result<Self> {
        Ok(Self::Own {
            socket: connect(remote)?,
            remote,
            moved: None,
            buf: vec![0; LARGEST],
        })
    }

    /// Sends a datagram, and waits while the socket is full.
    pub(crate) async fn send(&self, to: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        match self {
            Self::Own { socket, .. } => socket.send(datagram).await.map(drop),
            Self::Shared { socket, .. } => socket.send_to(datagram, to).await.map(drop),
        }
    }

    /// Sends a datagram, which is lost if the socket is full.
    pub(crate) fn try_send(&self, to: SocketAddr, datagram: &[u8]) {
        let _ = match self {
            Self::Own { socket, .. } => socket.try_send(datagram),
            Self::Shared { socket, .. } => socket.try_send_to(datagram, to),
        };
    }

    /// Returns the next datagram. The future can be dropped without a loss.
    pub(crate) async fn receive(&mut self) -> io::Result<Datagram> {
        match self {
            Self::Own {
                socket,
                remote,
                buf,
                ..
            } => {
                let size = socket.recv(buf).await?;
                Ok((*remote, buf[..size].to_vec()))
            }
            Self::Shared { inbox, .. } => match inbox.recv().await {
                Some(datagram) => Ok(datagram),
                None => std::future::pending().await,
            },
        }
    }

    /// Returns a datagram that has arrived already, if there is one.
    pub(crate) fn try_receive(&mut self) -> Option<io::Result<Datagram>> {
        match self {
            Self::Own {
                socket,
                remote,
                buf,
                ..
            } => match socket.try_recv(buf) {
                Ok(size) => Some(Ok((*remote, buf[..size].to_vec()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                Err(error) => Some(Err(error)),
            },
            Self::Shared { inbox, .. } => inbox.try_recv().ok().map(Ok),
        }
    }

    /// Decides on an error of the socket. If the network of a client has changed, its socket is
    /// replaced.
    pub(crate) fn after(&mut self, error: &io::Error) -> After {
        use io::ErrorKind as Kind;
        let Self::Own {
            socket,
            remote,
            moved,
            ..
        } = self
        else {
            return After::Ignore;
        };
        match error.kind() {
            Kind::ConnectionRefused => After::Refused,
            Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::AddrNotAvailable
            | Kind::InvalidInput => {
                if moved.is_some_and(|at| at.elapsed() < MOVE_AGAIN) {
                    return After::Ignore;
                }
                *moved = Some(Instant::now());
                match connect(*remote) {
                    Ok(new) => {
                        *socket = new;
                        After::Moved
                    }
                    Err(_) => After::Ignore,
                }
            }
            _ => After::Ignore,
        }
    }
}
