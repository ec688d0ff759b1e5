//! Plain TCP, and the socket options that a slow path wants: no delay of small writes, little
//! unsent data in the kernel, keep-alive probes, and a congestion control that does not take every
//! loss for congestion.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

mod info;
mod socket;

pub use socket::path;

use super::registry::{DialContext, ListenContext, Provider, Socket, TransportError};
use super::{Incoming, Listener, LocalBoxFuture, Target, Transport};
use crate::endpoint::{BadEndpoint, Endpoint, literal_ip};
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::Isolation;
use crate::path::Path;

/// The time to connect within, unless told otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

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
            connect_timeout: CONNECT_TIMEOUT,
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

/// TCP. It dials addresses only: a name is an error, because the client resolves none.
#[derive(Debug)]
pub struct Tcp {
    /// The options of sockets that face the slow path. Sockets of this machine only have small
    /// writes sent without delay, so that answers do not wait for acknowledgements.
    pub options: Option<SocketOptions>,
    /// The address to use for the target's name, given by the user; nothing else is ever dialled.
    pub pinned: Option<SocketAddr>,
}

/// Applies options to a connected socket.
fn set_up(options: Option<&SocketOptions>, stream: &TcpStream) {
    match options {
        Some(options) => options.apply(stream),
        None => drop(stream.set_nodelay(true)),
    }
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
            let options = self.options.as_ref();
            let timeout = options.map_or(CONNECT_TIMEOUT, |options| options.connect_timeout);
            let stream = connect(address, timeout, Side::Peer)
                .await
                .map_err(|error| error.with_address(address))?;
            set_up(options, &stream);
            Ok(path(stream))
        })
    }

    fn listen(&self, socket: Socket) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(TcpAccepting {
            listener: tokio::net::TcpListener::from_std(socket.into_tcp()?)?,
            options: self.options.clone(),
        }))
    }
}

/// Accepts TCP connections.
struct TcpAccepting {
    listener: tokio::net::TcpListener,
    options: Option<SocketOptions>,
}

impl Listener for TcpAccepting {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Incoming>> {
        let (stream, address) = ready!(self.listener.poll_accept(cx))?;
        set_up(self.options.as_ref(), &stream);
        Poll::Ready(Ok(Incoming {
            address,
            carrier: Box::pin(std::future::ready(Ok(path(stream).into()))),
        }))
    }
}

/// The transport `tcp` of endpoints.
#[derive(Debug)]
pub struct TcpProvider;

impl Provider for TcpProvider {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn check_listener(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        if endpoint.option("cert").is_some() || endpoint.option("key").is_some() {
            return Err(endpoint.bad("cert and key need +tls"));
        }
        endpoint.options(&[]).map(drop)
    }

    fn dialling(
        &self,
        _: &Endpoint,
        context: DialContext,
    ) -> Result<Rc<dyn Transport>, TransportError> {
        Ok(context.streams)
    }

    fn listening(
        &self,
        _: &Endpoint,
        context: ListenContext<'_>,
    ) -> Result<Rc<dyn Transport>, TransportError> {
        Ok(Rc::new(Tcp {
            options: context.socket,
            pinned: None,
        }))
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
