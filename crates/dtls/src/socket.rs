//! The socket of an association: that of a client, or a share of a listener's socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::inbox::Reader;
use crate::port::{Arrived, Port};

/// The time between two changes of a client's socket.
const MOVE_AGAIN: Duration = Duration::from_secs(1);

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

/// The socket of an association.
#[derive(Debug)]
pub(crate) enum Socket {
    /// The socket of a client, which is connected to its gateway: the kernel passes no datagrams of
    /// others on. All datagrams are sent to `remote`.
    Own {
        port: Port,
        remote: SocketAddr,
        moved: Option<Instant>,
    },
    /// The socket of a listener, and the queue of datagrams for this association.
    Shared {
        port: Rc<Port>,
        reader: Reader,
        /// The socket that receives the datagrams after the address was handed over.
        separate: Option<Port>,
    },
}

/// Creates the socket of a client, which is connected to `remote`. The system chooses its address,
/// and sends nothing.
fn connect(remote: SocketAddr) -> io::Result<Port> {
    let any = if remote.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    Port::new(socket)
}

impl Socket {
    /// Creates the socket of a client.
    pub(crate) fn connect(remote: SocketAddr) -> io::Result<Self> {
        Ok(Self::Own {
            port: connect(remote)?,
            remote,
            moved: None,
        })
    }

    fn port(&self) -> (&Port, Option<SocketAddr>) {
        match self {
            Self::Own { port, remote, .. } => (port, Some(*remote)),
            Self::Shared { port, .. } => (port, None),
        }
    }

    /// Returns the IP address of this machine at a client's socket.
    pub(crate) fn own_address(&self) -> Option<IpAddr> {
        match self {
            Self::Own { port, .. } => port.own_address().ok(),
            Self::Shared { .. } => None,
        }
    }

    /// Sends datagrams, and waits while the socket is full.
    ///
    /// # Errors
    /// See [`Batch::send`].
    pub(crate) async fn send(&self, batch: &mut Batch) -> io::Result<()> {
        let (port, only) = self.port();
        port.send(batch, only).await
    }

    /// Sends datagrams. Those that the socket does not take now are lost.
    pub(crate) fn send_now(&self, batch: &mut Batch) {
        let (port, only) = self.port();
        port.send_now(batch, only);
    }

    /// Waits until datagrams have arrived. The future can be dropped without a loss.
    pub(crate) async fn arrived(&self) -> io::Result<()> {
        match self {
            Self::Own { port, .. } => port.readable().await,
            Self::Shared {
                reader,
                separate: None,
                ..
            } => {
                reader.inbox.arrived().await;
                Ok(())
            }
            Self::Shared {
                reader,
                separate: Some(port),
                ..
            } => {
                tokio::select! {
                    biased;
                    () = reader.inbox.arrived() => Ok(()),
                    ready = port.readable() => ready,
                }
            }
        }
    }

    /// Passes datagrams that have arrived to `take`.
    ///
    /// # Errors
    /// The error of the socket, `WouldBlock` if no datagram has arrived.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(&Arrived<'_>)) -> io::Result<()> {
        match self {
            Self::Own { port, remote, .. } => port.receive(|arrived| {
                take(&Arrived {
                    from: (*remote).into(),
                    ..*arrived
                });
            }),
            Self::Shared {
                reader, separate, ..
            } => {
                reader.receive(&mut take);
                if let Some(socket) = reader.inbox.take_separate() {
                    *separate = Some(Port::new(socket)?);
                }
                separate.as_ref().map_or(Ok(()), |port| port.receive(take))
            }
        }
    }

    /// Notes that the peer has the address `peer` now.
    pub(crate) fn follow(&self, peer: SocketAddr) {
        if let Self::Shared { reader, .. } = self {
            reader.inbox.follow(peer);
        }
    }

    /// Notes that the handshake is over.
    pub(crate) fn connected(&self) {
        if let Self::Shared { reader, .. } = self {
            reader.inbox.widen();
        }
    }

    /// Replaces the socket of a client if its machine would send from another address now. Returns
    /// true if it was replaced.
    ///
    /// A socket keeps its address while the machine has that, even after another network has become
    /// the default. Its datagrams leave by that network then, which drops foreign addresses.
    pub(crate) fn follow_route(&mut self) -> bool {
        let Self::Own {
            port,
            remote,
            moved,
        } = self
        else {
            return false;
        };
        let Ok(new) = connect(*remote) else {
            return false;
        };
        let (Ok(present), Ok(own)) = (new.own_address(), port.own_address()) else {
            return false;
        };
        let has_changed = present != own;
        if has_changed {
            (*port, *moved) = (new, Some(Instant::now()));
        }
        has_changed
    }

    /// Decides on an error of the socket. If the network of a client has changed, its socket is
    /// replaced.
    pub(crate) fn after(&mut self, error: &io::Error) -> After {
        use io::ErrorKind as Kind;
        let Self::Own {
            port,
            remote,
            moved,
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
                        *port = new;
                        After::Moved
                    }
                    Err(_) => After::Ignore,
                }
            }
            _ => After::Ignore,
        }
    }
}
