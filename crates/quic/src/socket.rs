//! The UDP sockets: those of clients are connected to their gateway, and note the errors that quinn
//! drops.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::SockRef;
use tokio::io::Interest;

use crate::guard::Watch;

/// The size of the buffers in bytes, where the kernel permits it: several windows of a fast path
/// arrive at once.
const BUFFER: usize = 4 << 20;

/// Enlarges the buffers as far as the kernel permits.
pub(crate) fn enlarge(socket: &UdpSocket) {
    // Smaller buffers only make bursts more likely to be lost.
    let _ = SockRef::from(socket).set_recv_buffer_size(BUFFER);
    let _ = SockRef::from(socket).set_send_buffer_size(BUFFER);
}

/// Creates a socket that is connected to `remote`. The system chooses its address, and sends
/// nothing.
fn connect(remote: SocketAddr) -> io::Result<UdpSocket> {
    let any = if remote.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    Ok(socket)
}

/// The socket of a client's connection.
pub(crate) struct ClientSocket {
    io: tokio::net::UdpSocket,
    state: UdpSocketState,
    watch: Arc<Watch>,
}

impl fmt::Debug for ClientSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientSocket").field(&self.io).finish()
    }
}

impl ClientSocket {
    /// Creates a socket that is connected to `remote`, in the context of the I/O thread's runtime.
    pub(crate) fn connect(remote: SocketAddr, watch: &Arc<Watch>) -> io::Result<Arc<Self>> {
        Self::new(connect(remote)?, watch)
    }

    /// Takes a connected socket.
    pub(crate) fn new(socket: UdpSocket, watch: &Arc<Watch>) -> io::Result<Arc<Self>> {
        socket.set_nonblocking(true)?;
        enlarge(&socket);
        Ok(Arc::new(Self {
            state: UdpSocketState::new((&socket).into())?,
            io: tokio::net::UdpSocket::from_std(socket)?,
            watch: Arc::clone(watch),
        }))
    }

    /// Notes the errors that arrive while nothing is sent or received, for ever.
    pub(crate) async fn note_errors(&self) {
        while self.io.ready(Interest::ERROR).await.is_ok() {
            let error = self.io.try_io(Interest::ERROR, || {
                // Without an error, the socket is no longer ready.
                let none = || Err(io::ErrorKind::WouldBlock.into());
                self.io.take_error()?.map_or_else(none, Ok)
            });
            if let Ok(error) = error {
                self.watch.failed(&error);
            }
        }
        std::future::pending().await
    }
}

/// Waits until a socket takes datagrams. The one connection of the socket uses it.
#[derive(Debug)]
struct Writable(Arc<ClientSocket>);

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.io.poll_send_ready(cx)
    }
}

impl AsyncUdpSocket for ClientSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let send = || {
            self.io.try_io(Interest::WRITABLE, || {
                self.state.try_send((&self.io).into(), transmit)
            })
        };
        self.watch.sent(transmit.contents.len());
        match send() {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // The error is that of an earlier datagram, and this one was not sent.
                self.watch.failed(&error);
                match send() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
                    _ => Ok(()),
                }
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // The datagram counts as lost. An invalid call with segments only shows that the
                // interface cannot cut them.
                if error.kind() != io::ErrorKind::InvalidInput || transmit.segment_size.is_none() {
                    self.watch.failed(&error);
                }
                Ok(())
            }
            sent => sent,
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let read = self.io.try_io(Interest::READABLE, || {
                self.state.recv((&self.io).into(), bufs, meta)
            });
            match read {
                Ok(count) => {
                    let bytes = meta.iter().take(count).map(|it| it.len).sum();
                    self.watch.heard(bytes);
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    self.watch.failed(&error);
                }
                Err(_) => {}
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }
}
