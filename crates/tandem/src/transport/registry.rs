//! The transports that endpoints can name, and the sockets that they listen on.
//!
//! The standard transports are `tcp` and `tls`. A program adds others before it reads its
//! configuration, so that a transport can live in a separate crate. The registry keeps the two ends
//! of a transport apart, because some transports only dial.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Type};
use tandem_http::Scheme;

use super::handover;
use super::tcp::{SocketOptions, TcpProvider};
use super::tls::{TlsError, TlsProvider};
use super::{Dial, Listen};
use crate::endpoint::{BadEndpoint, Endpoint, SessionKind};
use crate::renewal::Renewals;

/// The protocol of a listening socket. Together with the address it identifies a listener, so that
/// TCP and UDP can share a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A bound socket, which all threads of the process share and a reload keeps.
#[derive(Debug)]
pub enum Socket {
    /// A listening TCP socket.
    Tcp(TcpListener),
    /// A bound UDP socket.
    Udp(UdpSocket),
}

/// The number of connections that may wait to be accepted. The kernel limits it to
/// `net.core.somaxconn`, which is 4096 by default. Above it, a client repeats its SYN only after a
/// second.
const BACKLOG: i32 = 4096;

impl Socket {
    /// Binds `address`, and listens if the protocol has connections. IPv6 sockets accept no IPv4
    /// connections. The address of a UDP socket may be one that another process has handed over.
    pub fn bind(protocol: Protocol, address: SocketAddr) -> io::Result<Self> {
        if protocol == Protocol::Udp {
            return handover::bind(address).map(Self::Udp);
        }
        let (domain, kind) = (Domain::for_address(address), Type::STREAM);
        let socket = socket2::Socket::new(domain, kind, None)?;
        socket.set_nonblocking(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self::Tcp(socket.into()))
    }

    /// Returns another handle to the same socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(socket) => Self::Tcp(socket.try_clone()?),
            Self::Udp(socket) => Self::Udp(socket.try_clone()?),
        })
    }

    /// Returns the address that the socket is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        }
    }

    /// Returns the TCP socket. Fails for a UDP socket, since the transport listens on TCP.
    pub fn into_tcp(self) -> io::Result<TcpListener> {
        match self {
            Self::Tcp(socket) => Ok(socket),
            Self::Udp(_) => Err(io::Error::other("the transport listens on a TCP socket")),
        }
    }

    /// Returns the UDP socket. Fails for a TCP socket, since the transport listens on UDP.
    pub fn into_udp(self) -> io::Result<UdpSocket> {
        match self {
            Self::Udp(socket) => Ok(socket),
            Self::Tcp(_) => Err(io::Error::other("the transport listens on a UDP socket")),
        }
    }
}

/// The way to an endpoint that is dialled.
pub struct DialContext {
    /// Opens byte streams to the endpoint: directly, through a SOCKS proxy, or through Tor. Each
    /// target has the address to connect to, except behind a proxy, which carries no datagrams.
    pub streams: Rc<dyn Dial>,
    /// The congestion control of a transport that has its own, as for TCP: `bbr`, `cubic` or the
    /// transport's default if it is empty or not known there.
    pub congestion: String,
    /// The bytes of one stream that the other end may send before they are read. A transport with
    /// many streams has no larger windows than this.
    pub stream_window: u32,
    /// True if the transport may resume an earlier connection of the same isolation key. Its
    /// handshake then takes less time, or safe requests leave before the end of that.
    pub early_data: bool,
    /// True if a silent connection may move to another port of this machine. A gateway permits
    /// that, and an origin may not (RFC 9000 section 9).
    pub may_move: bool,
    /// The time for the handshake.
    pub timeout: Duration,
    /// The list to which certificates that follow their files belong.
    pub renewals: Renewals,
}

/// The settings of a listener.
pub struct ListenContext<'a> {
    /// The options of sockets that face the slow path; `None` for those of this machine.
    pub socket: Option<SocketOptions>,
    /// The PEM file of the authorities whose clients are accepted.
    pub client_ca: Option<&'a str>,
    /// True if clients without a certificate may connect and send a token instead.
    pub optional_certificate: bool,
    /// The protocols to accept (ALPN), best first; `None` for the endpoint's own.
    pub alpn: Option<&'a [&'a [u8]]>,
    /// The requests that a client may have under way.
    pub max_streams: u32,
    /// The directory of the local authority, which certifies an endpoint without a certificate.
    pub authority: Option<&'a Path>,
    /// True if clients that return may send requests before the handshake is over, or save a part
    /// of it.
    pub early_data: bool,
    /// The time for the handshake.
    pub timeout: Duration,
    /// The list to which certificates that follow their files belong.
    pub renewals: &'a Renewals,
}

impl<'a> ListenContext<'a> {
    /// Creates the settings of a listener on this machine, which accepts all clients and the
    /// protocols of its endpoint.
    pub const fn new(max_streams: u32, timeout: Duration, renewals: &'a Renewals) -> Self {
        Self {
            socket: None,
            client_ca: None,
            optional_certificate: false,
            alpn: None,
            max_streams,
            authority: None,
            early_data: false,
            timeout,
            renewals,
        }
    }
}

/// The reason for which an endpoint's transport cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The endpoint is not valid.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The facts about a transport that both of its ends have in common. All threads share it.
pub trait Provider: Send + Sync {
    /// Returns the name in endpoints, after the `+`.
    fn name(&self) -> &'static str;

    /// Returns the protocol of its listening sockets.
    fn protocol(&self) -> Protocol {
        Protocol::Tcp
    }

    /// Returns the scheme of requests that a listener receives without one in their target: `https`
    /// if the transport encrypts (RFC 9112 section 3.3).
    fn scheme(&self) -> Scheme {
        Scheme::Http
    }

    /// Returns true if its carriers have many streams. The session `http` then has a stream for
    /// each exchange.
    fn has_streams(&self) -> bool {
        false
    }

    /// Returns the sessions of a transport with many streams.
    fn sessions(&self) -> &'static [SessionKind] {
        &[SessionKind::Http]
    }

    /// Checks that the endpoint's session fits the carriers of the transport.
    fn check_session(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        let name = self.name();
        if self.has_streams() && !self.sessions().contains(&endpoint.session) {
            let possible = self.sessions().iter();
            let possible: Vec<_> = possible
                .map(|kind| format!("{}+{name}", kind.as_str()))
                .collect();
            return Err(endpoint.bad(format!(
                "this transport has many streams, so its session is {}",
                possible.join(" or ")
            )));
        }
        if !self.has_streams() && endpoint.session == SessionKind::H3 {
            let problem = format!(
                "HTTP/3 needs a transport with many streams, and {name} has one: use h3+quic or \
                 h3+dtls"
            );
            return Err(endpoint.bad(problem));
        }
        Ok(())
    }
}

/// Creates the dialling ends of the endpoints that name the transport.
pub trait Dials: Provider {
    /// Returns the names of the options of an endpoint to dial, except those for the way to it.
    fn dial_options(&self) -> &'static [&'static str] {
        &[]
    }

    /// Checks an endpoint to dial, whose options are known, without access to files or the network.
    fn check_dial(&self, _endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        Ok(())
    }

    /// Creates the dialling end of an endpoint.
    fn dialling(
        &self,
        endpoint: &Endpoint,
        context: DialContext,
    ) -> Result<Rc<dyn Dial>, TransportError>;
}

/// Creates the listening ends of the endpoints that name the transport.
pub trait Listens: Provider {
    /// Returns true if a listener can request certificates of its clients.
    fn has_client_certificates(&self) -> bool {
        false
    }

    /// Checks an endpoint to listen on, without access to files or the network.
    fn check_listener(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        endpoint.options(&[]).map(drop)
    }

    /// Returns the socket that connections of an earlier listener still use, if one is bound to the
    /// address and could not be handed over. A reload then listens on it again.
    fn bound(&self, _address: SocketAddr) -> Option<Socket> {
        None
    }

    /// Creates the listening end of an endpoint.
    fn listening(
        &self,
        endpoint: &Endpoint,
        context: ListenContext<'_>,
    ) -> Result<Box<dyn Listen>, TransportError>;
}

/// The transports by name. Clones share them.
#[derive(Clone)]
pub struct Transports {
    dialling: BTreeMap<&'static str, Arc<dyn Dials>>,
    listening: BTreeMap<&'static str, Arc<dyn Listens>>,
}

impl Default for Transports {
    /// Creates the registry of the standard transports.
    fn default() -> Self {
        let mut transports = Self {
            dialling: BTreeMap::new(),
            listening: BTreeMap::new(),
        };
        transports.add(TcpProvider);
        transports.add(TlsProvider);
        transports
    }
}

impl Transports {
    /// Adds a transport with both ends, or replaces the one of that name.
    pub fn add(&mut self, provider: impl Dials + Listens + 'static) {
        let (name, provider) = (provider.name(), Arc::new(provider));
        self.dialling.insert(name, Arc::clone(&provider) as _);
        self.listening.insert(name, provider);
    }

    /// Adds a transport that only dials, or replaces the one of that name.
    pub fn add_dialling(&mut self, provider: impl Dials + 'static) {
        self.listening.remove(provider.name());
        self.dialling.insert(provider.name(), Arc::new(provider));
    }

    /// Returns the transport of an endpoint to dial.
    pub fn to_dial(&self, endpoint: &Endpoint) -> Result<&dyn Dials, BadEndpoint> {
        let found = self.dialling.get(endpoint.transport.as_str());
        let unknown = || unknown(endpoint, self.dialling.keys());
        found.map(|provider| &**provider).ok_or_else(unknown)
    }

    /// Returns the transport of an endpoint to listen on.
    pub fn to_listen(&self, endpoint: &Endpoint) -> Result<&dyn Listens, BadEndpoint> {
        let name = endpoint.transport.as_str();
        let missing = || match self.dialling.contains_key(name) {
            true => endpoint.bad(format!("the transport {name} only dials")),
            false => unknown(endpoint, self.listening.keys()),
        };
        let found = self.listening.get(name);
        found.map(|provider| &**provider).ok_or_else(missing)
    }
}

/// Returns the error for a transport that the registry does not have. It has those with `names`.
fn unknown<'a>(endpoint: &Endpoint, names: impl Iterator<Item = &'a &'static str>) -> BadEndpoint {
    let names: Vec<_> = names.copied().collect();
    endpoint.bad(format!(
        "unknown transport {:?}; it may be {}",
        endpoint.transport,
        names.join(", ")
    ))
}

impl fmt::Debug for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.dialling.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_names_the_transports_that_it_has() {
        let transports = Transports::default();
        let of = |text: &str| {
            transports
                .to_dial(&text.parse().expect("an endpoint"))
                .map(|provider| provider.name())
        };
        assert_eq!(of("h2+tls://gw.example:443"), Ok("tls"));
        assert_eq!(of("http://127.0.0.1:80"), Ok("tcp"));
        let scheme = |text: &str| {
            let endpoint = text.parse().expect("an endpoint");
            transports.to_listen(&endpoint).map(|it| it.scheme())
        };
        assert_eq!(scheme("http+tls://gw.example:443"), Ok(Scheme::Https));
        assert_eq!(scheme("http://127.0.0.1:80"), Ok(Scheme::Http));
        let error = of("h2+sctp://gw.example:1")
            .expect_err("unknown")
            .to_string();
        assert!(
            error.contains("unknown transport \"sctp\"; it may be tcp, tls"),
            "{error}"
        );
    }

    /// A transport that has no listening end, and a TLS that only dials.
    struct Dialling(&'static str);

    impl Provider for Dialling {
        fn name(&self) -> &'static str {
            self.0
        }
    }

    impl Dials for Dialling {
        fn dialling(
            &self,
            _: &Endpoint,
            context: DialContext,
        ) -> Result<Rc<dyn Dial>, TransportError> {
            Ok(context.streams)
        }
    }

    #[test]
    fn transport_that_only_dials_has_no_listener() {
        let mut transports = Transports::default();
        for name in ["outward", "tls"] {
            transports.add_dialling(Dialling(name));
            let endpoint = format!("h2+{name}://127.0.0.1:1");
            let endpoint = endpoint.parse().expect("an endpoint");
            assert!(transports.to_dial(&endpoint).is_ok());
            let error = transports.to_listen(&endpoint).err().expect("no listener");
            let problem = format!("the transport {name} only dials");
            assert!(error.to_string().contains(&problem), "{error}");
        }
    }

    #[test]
    fn tcp_and_udp_sockets_share_a_port() {
        let any = "127.0.0.1:0".parse().expect("an address");
        let tcp = Socket::bind(Protocol::Tcp, any).expect("a port");
        let address = tcp.local_addr().expect("bound");
        let udp = Socket::bind(Protocol::Udp, address).expect("the other protocol is free");
        assert_eq!(udp.local_addr().expect("bound"), address);
        assert!(Socket::bind(Protocol::Tcp, address).is_err());
        assert!(udp.try_clone().expect("a handle").into_tcp().is_err());
        assert!(udp.into_udp().is_ok() && tcp.into_tcp().is_ok());
    }
}
