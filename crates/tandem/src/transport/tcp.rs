//! Plain TCP, and the socket options that a slow path wants: no delay of small writes, little
//! unsent data in the kernel, keep-alive probes, and a congestion control that does not take every
//! loss for congestion.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

mod info;
mod socket;

pub use socket::path;

use super::{LocalBoxFuture, Target, Transport};
use crate::endpoint::literal_ip;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::Isolation;
use crate::path::Path;

/// How sockets that carry sessions are set up.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Unsent bytes that the kernel holds at most before it says that the socket is full
    /// (`TCP_NOTSENT_LOWAT`): what waits in the session can still be overtaken, what waits in the
    /// kernel cannot. 0 leaves the kernel's default.
    pub notsent_lowat: u32,
    /// Congestion control to ask for where the kernel has it; empty leaves the kernel's default.
    /// BBR does not take single losses for congestion: one connection at 1 % loss carries ten times
    /// as much as with CUBIC.
    pub congestion: String,
    /// Time to connect within.
    pub connect_timeout: Duration,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            notsent_lowat: 16 << 10,
            congestion: "bbr".into(),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

impl SocketOptions {
    /// Why sessions will run over the kernel's own congestion control, if they will: found out on a
    /// socket that nobody uses.
    pub fn congestion_refused(&self) -> Option<std::io::Error> {
        if self.congestion.is_empty() {
            return None;
        }
        let trial = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        trial
            .and_then(|socket| socket.set_tcp_congestion(self.congestion.as_bytes()))
            .err()
    }

    /// Applies what applies to every session's socket. Options that the kernel refuses are left as
    /// they were: they make a session faster, not correct.
    pub fn apply(&self, stream: &TcpStream) {
        let socket = SockRef::from(stream);
        let _ = socket.set_tcp_nodelay(true);
        enlarge_send_buffer(&socket);
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(60))
            .with_interval(Duration::from_secs(20));
        let _ = socket.set_tcp_keepalive(&keepalive);
        if self.notsent_lowat > 0 {
            let _ = socket.set_tcp_notsent_lowat(self.notsent_lowat);
        }
        if !self.congestion.is_empty()
            && let Err(error) = socket.set_tcp_congestion(self.congestion.as_bytes())
        {
            tracing::debug!(congestion = self.congestion, %error, "the kernel keeps its own congestion control");
        }
    }
}

/// Bytes asked for what is under way on one session, before the kernel's own limit
/// (`net.core.wmem_max`).
const SEND_BUFFER: usize = 16 << 20;

/// Most bytes that the kernel lets a send buffer grow to by itself, where it says so.
fn largest_own_buffer() -> usize {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").ok();
    let largest = text.and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
    // Where it cannot be seen, as in a service that is kept from /proc: the kernel's default.
    largest.unwrap_or(4 << 20)
}

/// Sees to it that the send buffer does not limit what is under way, where the kernel allows a
/// larger one than it would take by itself: BBR cannot tell a full buffer from an application
/// without data, and so never learns how fast the path is. What waits unsent is limited by
/// `TCP_NOTSENT_LOWAT`, not by this. A buffer size that is set once no longer grows by itself, so
/// what may be set is tried out on a socket that nobody uses.
fn enlarge_send_buffer(socket: &SockRef<'_>) {
    static ALLOWED: OnceLock<Option<usize>> = OnceLock::new();
    let allowed = ALLOWED.get_or_init(|| {
        let trial =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).ok()?;
        trial.set_send_buffer_size(SEND_BUFFER).ok()?;
        let size = trial.send_buffer_size().ok()?;
        (size > largest_own_buffer()).then_some(SEND_BUFFER)
    });
    if let Some(size) = allowed {
        let _ = socket.set_send_buffer_size(*size);
    }
}

/// Connects to an address.
pub async fn connect(
    address: SocketAddr,
    timeout: Duration,
    side: Side,
) -> Result<TcpStream, Error> {
    match tokio::time::timeout(timeout, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(Error::io(&error, side).with_retry(Retry::Safe)),
        Err(_) => Err(
            Error::new(Kind::Timeout, side, "no answer to the connection in time")
                .with_retry(Retry::Safe),
        ),
    }
}

/// Dials addresses only: a name is an error, because the client resolves none.
#[derive(Debug)]
pub struct Tcp {
    /// Socket set-up.
    pub options: SocketOptions,
    /// The address to use for the target's name, given by the user; nothing else is ever dialled.
    pub pinned: Option<SocketAddr>,
}

impl Transport for Tcp {
    fn dial<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let address = match self.pinned {
                Some(address) => address,
                None => SocketAddr::new(
                    literal_ip(&target.host).ok_or_else(|| {
                        Error::new(Kind::Dns, Side::Local, "the client resolves no names")
                    })?,
                    target.port,
                ),
            };
            let stream = connect(address, self.options.connect_timeout, Side::Peer).await?;
            self.options.apply(&stream);
            Ok(path(stream))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lacks_is_found_out() {
        let with = |congestion: &str| SocketOptions {
            congestion: congestion.into(),
            ..SocketOptions::default()
        };
        assert!(with("no-such-control").congestion_refused().is_some());
        assert!(
            with("").congestion_refused().is_none(),
            "nothing was asked for"
        );
        assert!(
            with("reno").congestion_refused().is_none(),
            "every kernel has it"
        );
    }
}
