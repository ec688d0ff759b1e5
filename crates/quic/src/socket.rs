//! The UDP sockets: those of clients are connected to their gateway.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use socket2::SockRef;
use tokio::io::Interest;

/// The size of the buffers in bytes, where the kernel permits it: several windows of a fast path
/// arrive at once.
const BUFFER: usize = 4 << 20;

/// Enlarges the buffers as far as the kernel permits.
pub(crate) fn enlarge(socket: &UdpSocket) {
    // Smaller buffers only make bursts more likely to be lost.
    let _ = SockRef::from(socket).set_recv_buffer_size(BUFFER);
    let _ = SockRef::from(socket).set_send_buffer_size(BUFFER);
}

/// Creates a socket that is connected to `remote`.
pub(crate) fn connect(remote: SocketAddr) -> io::Result<UdpSocket> {
    let any = if remote.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    socket.set_nonblocking(true)?;
    enlarge(&socket);
    Ok(socket)
}

/// Watches the errors of a connected socket, which quinn drops.
pub(crate) struct Errors(tokio::net::UdpSocket);

impl Errors {
    /// Begins to watch a socket.
    pub(crate) fn of(socket: &UdpSocket) -> io::Result<Self> {
        Ok(Self(tokio::net::UdpSocket::from_std(socket.try_clone()?)?))
    }

    /// Resolves once the peer's system reports that no program listens there.
    pub(crate) async fn refused(&self) {
        let ready = self.0.ready(Interest::ERROR).await;
        let error = ready.and_then(|_| self.0.take_error());
        match error {
            Ok(Some(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            // A datagram that was not sent for another reason counts as lost.
            _ => std::future::pending().await,
        }
    }
}
