//! Plain TCP, and the socket options for a slow path. They send small writes without delay, limit
//! unsent data in the kernel and probe idle connections. They also select a congestion control that
//! does not treat every loss as congestion.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

#[cfg(target_os = "linux")]
mod bbr;
#[cfg(target_os = "linux")]
mod cached;
mod info;
mod socket;

#[cfg(all(test, target_os = "linux"))]
pub(crate) use info::unsent;
pub use socket::path;

use super::registry::{
    DialContext, Dials, ListenContext, Listens, Provider, Socket, TransportError,
};
use super::{Dial, Incoming, Listen, Listener, LocalBoxFuture, Target};
use crate::descriptors;
use crate::endpoint::{BadEndpoint, Endpoint};
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::Isolation;
use crate::path::Path;

/// The default time for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The options of sockets that carry sessions.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// The most unsent bytes that the kernel holds before it reports the socket full
    /// (`TCP_NOTSENT_LOWAT`). Urgent data can overtake data in the session, but not data in the
    /// kernel. With 0 the kernel's default applies.
    pub notsent_lowat: u32,
    /// The congestion control to use if the kernel has it. If empty, the kernel's default applies.
    /// BBR does not treat single losses as congestion: a connection with 1 % loss carries ten times
    /// as much as with CUBIC.
    pub congestion: String,
    /// The time for connecting.
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
    /// Returns the reason for which sessions cannot use the configured congestion control, if any.
    /// It is tried on an unused socket.
    pub fn congestion_refused(&self) -> Option<std::io::Error> {
        if self.congestion.is_empty() {
            return None;
        }
        let trial = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        trial
            .and_then(|socket| socket.set_tcp_congestion(self.congestion.as_bytes()))
            .err()
    }

    /// Applies the options to a session's socket. Options that the kernel rejects stay unchanged,
    /// because they affect only speed.
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

/// The send buffer requested for a session, in bytes. The kernel limits it to `net.core.wmem_max`.
const SEND_BUFFER: usize = 16 << 20;

/// Returns the size in bytes up to which the kernel grows a send buffer automatically.
fn largest_own_buffer() -> usize {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").ok();
    let largest = text.and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
    // Without access to /proc, as in a restricted service, the kernel's default is assumed.
    largest.unwrap_or(4 << 20)
}

/// Enlarges the send buffer so that it does not limit the data in flight, if the kernel allows more
/// than its automatic size. BBR cannot distinguish a full buffer from an application without data,
/// and then never learns the path's rate. `TCP_NOTSENT_LOWAT` still limits unsent data. A buffer
/// whose size was set no longer grows automatically, so the allowed size is tried on an unused
/// socket.
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
    let connected = descriptors::open(|| TcpStream::connect(address));
    match tokio::time::timeout(timeout, connected).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(Error::io(&error, side).with_retry(Retry::Safe)),
        Err(_) => Err(
            Error::new(Kind::Timeout, side, "no answer to the connection in time")
                .with_retry(Retry::Safe),
        ),
    }
}

/// The TCP transport. It dials addresses only: a name without a known address is an error.
#[derive(Debug, Default)]
pub struct Tcp {
    /// The options of sockets that face the slow path. With `None`, small writes are only sent
    /// without delay, so that they do not wait for acknowledgements.
    pub options: Option<SocketOptions>,
    /// The address to dial for every target, such as that of a proxy. If set, no other address is
    /// ever dialled.
    pub pinned: Option<SocketAddr>,
}

/// Applies options to a connected socket.
fn set_up(options: Option<&SocketOptions>, stream: &TcpStream) {
    match options {
        Some(options) => options.apply(stream),
        None => drop(stream.set_nodelay(true)),
    }
}

impl Dial for Tcp {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let address = self.pinned.or_else(|| target.direct_address());
            let address = address.ok_or_else(|| {
                Error::new(Kind::Dns, Side::Local, "the client resolves no names")
            })?;
            let options = self.options.as_ref();
            let timeout = options.map_or(CONNECT_TIMEOUT, |options| options.connect_timeout);
            let stream = connect(address, timeout, Side::Peer)
                .await
                .map_err(|error| error.with_address(address))?;
            set_up(options, &stream);
            Ok(path(stream))
        })
    }
}

impl Listen for Tcp {
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
}

impl Dials for TcpProvider {
    fn dialling(&self, _: &Endpoint, context: DialContext) -> Result<Rc<dyn Dial>, TransportError> {
        Ok(context.streams)
    }
}

impl Listens for TcpProvider {
    fn check_listener(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        if endpoint.option("cert").is_some() || endpoint.option("key").is_some() {
            return Err(endpoint.bad("cert and key need +tls"));
        }
        endpoint.options(&[]).map(drop)
    }

    fn listening(
        &self,
        _: &Endpoint,
        context: ListenContext<'_>,
    ) -> Result<Box<dyn Listen>, TransportError> {
        Ok(Box::new(Tcp {
            options: context.socket,
            pinned: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_reports_missing_congestion_control() {
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
