//! The transport `quic` of endpoints: dialling a gateway, and listening for clients.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{AsyncUdpSocket, Endpoint as QuicEndpoint, EndpointConfig, ServerConfig};
use rustls::pki_types::ServerName;
use tandem::carrier::{Carrier, open_path};
use tandem::endpoint::{BadEndpoint, Endpoint, SessionKind};
use tandem::error::{Error, Kind, Retry, Side};
use tandem::exchange::Isolation;
use tandem::path::Path;
use tandem::transport::registry::{
    DialContext, Dials, ListenContext, Listens, Protocol, Provider, Socket, TransportError,
};
use tandem::transport::{
    CarrierFuture, Dial, Listen, Listener, LocalBoxFuture, Target, datagram_address,
};
use tandem_http::Scheme;
use tokio::sync::oneshot;

use crate::carrier::QuicCarrier;
use crate::early::Early;
use crate::failure;
use crate::guard::{Guard, Watch};
use crate::io_thread::IoThread;
use crate::issued::Issued;
use crate::listener::{Accepting, Handshakes, Hubs};
use crate::resets::Resets;
use crate::settings::{self, CONGESTION, ClientSettings};
use crate::socket::ClientSocket;
use crate::tickets::{Measured, Memory, Tickets};

/// The transport `quic`. All threads share it.
#[derive(Debug, Default)]
pub struct QuicProvider {
    state: Arc<State>,
}

/// The parts that all connections of the process share.
#[derive(Debug, Default)]
struct State {
    hubs: Hubs,
    issued: Arc<Issued>,
    /// The thread that moves the datagrams, once it is needed.
    io: Mutex<Option<Arc<IoThread>>>,
}

impl State {
    fn io(&self) -> io::Result<Arc<IoThread>> {
        let mut present = self.io.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(io) = &*present {
            return Ok(Arc::clone(io));
        }
        let io = IoThread::start()?;
        *present = Some(Arc::clone(&io));
        Ok(io)
    }
}

impl Provider for QuicProvider {
    fn name(&self) -> &'static str {
        "quic"
    }

    fn protocol(&self) -> Protocol {
        Protocol::Udp
    }

    fn scheme(&self) -> Scheme {
        Scheme::Https
    }

    fn has_streams(&self) -> bool {
        true
    }

    fn sessions(&self) -> &'static [SessionKind] {
        &[SessionKind::H3]
    }
}

impl Dials for QuicProvider {
    fn dial_options(&self) -> &'static [&'static str] {
        &["ca", "cert", "key", "sni", CONGESTION]
    }

    fn check_dial(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        endpoint.identity_files()?;
        settings::check(endpoint)
    }

    fn dialling(
        &self,
        endpoint: &Endpoint,
        context: DialContext,
    ) -> Result<Rc<dyn Dial>, TransportError> {
        let name = endpoint.option("sni").unwrap_or(&endpoint.host).to_owned();
        ServerName::try_from(name.as_str())
            .map_err(|_| endpoint.bad("its host name cannot stand in a certificate"))?;
        let config = settings::client(
            endpoint,
            &context.congestion,
            context.stream_window,
            &context.renewals,
        )?;
        Ok(Rc::new(Dialling {
            state: Arc::clone(&self.state),
            name,
            takes_early: context.early_data && !config.has_certificate,
            may_move: context.may_move,
            config,
            memory: RefCell::default(),
            alpn: endpoint.session.alpn(),
            timeout: context.timeout,
        }))
    }
}

impl Listens for QuicProvider {
    fn has_client_certificates(&self) -> bool {
        true
    }

    fn check_listener(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        endpoint.options(&["cert", "key", CONGESTION])?;
        endpoint.certificate_files()?;
        settings::check(endpoint)
    }

    fn bound(&self, address: SocketAddr) -> Option<Socket> {
        self.state.hubs.bound(address).map(Socket::Udp)
    }

    fn listening(
        &self,
        endpoint: &Endpoint,
        context: ListenContext<'_>,
    ) -> Result<Box<dyn Listen>, TransportError> {
        // Early data shows no certificate.
        let takes_early = context.early_data && context.client_ca.is_none();
        let issued = takes_early.then_some(&self.state.issued);
        let timeout = context.timeout;
        let resets = settings::resets(endpoint)?;
        let config = settings::server(endpoint, context, issued)?;
        Ok(Box::new(Listening {
            state: Arc::clone(&self.state),
            config: Arc::new(config),
            resets,
            takes_early,
            alpn: endpoint.session.alpn(),
            timeout,
        }))
    }
}

/// The dialling end.
struct Dialling {
    state: Arc<State>,
    name: String,
    config: ClientSettings,
    takes_early: bool,
    may_move: bool,
    memory: RefCell<Memory>,
    alpn: &'static [u8],
    timeout: Duration,
}

impl Dialling {
    /// Opens a connection, over a socket that no other connection uses. With an isolation key, it
    /// may send early data, unless those of another connection have no answer yet.
    async fn connect(
        &self,
        target: &Target,
        isolation: Option<&Isolation>,
    ) -> Result<QuicCarrier, Error> {
        let address = datagram_address(target)?;
        let opened = self.open(address, isolation).await;
        opened.map_err(|error| error.with_retry(Retry::Safe).with_address(address))
    }

    async fn open(
        &self,
        address: SocketAddr,
        isolation: Option<&Isolation>,
    ) -> Result<QuicCarrier, Error> {
        let failed = |error: io::Error| Error::io(&error, Side::Peer);
        let io = self.state.io().map_err(failed)?;
        let watch = Watch::new();
        let socket = {
            let _context = io.handle().enter();
            ClientSocket::connect(address, &watch).map_err(failed)?
        };
        let isolation = isolation.filter(|_| self.takes_early);
        let own = AsyncUdpSocket::local_addr(&*socket).map_err(failed)?.ip();
        let tickets = isolation.map(|isolation| self.memory.borrow_mut().of(isolation, own));
        let mark = tickets.as_ref().map(|tickets| tickets.mark());
        let config = match &tickets {
            Some(tickets) => self.config.with(tickets),
            None => self.config.plain(),
        };
        let endpoint = QuicEndpoint::new_with_abstract_socket(
            EndpointConfig::default(),
            None,
            Arc::clone(&socket) as _,
            io.runtime(),
        );
        let endpoint = endpoint.map_err(failed)?;
        let connecting = endpoint
            .connect_with(config, address, &self.name)
            .map_err(|error| Error::new(Kind::Internal, Side::Local, error.to_string()))?;
        let (confirm, confirmed) = oneshot::channel();
        let guard = Guard {
            watch: Arc::clone(&watch),
            endpoint,
            socket,
            remote: address,
            may_move: self.may_move,
            confirmed,
        };
        io.handle().spawn(guard.run());
        let shown = tickets.clone().zip(mark);
        let measuring = tickets.clone();
        let alive = Alive::new(tickets, io);
        let mut limit = Box::pin(no_answer(self.timeout, Arc::clone(&watch)));
        let waits = |of: &Isolation| self.memory.borrow().are_unanswered(of);
        let early = match isolation.is_some_and(waits) {
            true => Err(connecting),
            false => connecting.into_0rtt(),
        };
        let connecting = match early {
            Ok((connection, accepted)) => {
                let unanswered = shown.as_ref().map(|(tickets, _)| tickets.unanswered());
                let measured = shown.as_ref().map(|(tickets, _)| Measured {
                    tickets: Arc::clone(tickets),
                    connection: connection.clone(),
                });
                let mut early = Early::new(accepted, limit);
                if let Some((tickets, mark)) = shown {
                    early = early.showing(tickets, mark);
                }
                let carried =
                    QuicCarrier::new(connection, self.alpn, Side::Peer, Some(early), alive);
                carried.hold_while_early((confirm, unanswered, measured));
                return Ok(carried.watched_by(watch));
            }
            Err(connecting) => connecting,
        };
        tokio::select! {
            connected = connecting => match connected {
                Ok(connection) => {
                    drop(confirm);
                    if let Some(tickets) = measuring {
                        tickets.measured(&connection);
                    }
                    let carried = QuicCarrier::new(connection, self.alpn, Side::Peer, None, alive);
                    Ok(carried.watched_by(watch))
                }
                Err(error) => Err(failure::of_connection(&error, Side::Peer)),
            },
            error = &mut limit => Err(error),
        }
    }
}

/// Resolves with an error if the gateway has not answered in time, or refuses datagrams.
async fn no_answer(timeout: Duration, watch: Arc<Watch>) -> Error {
    tokio::select! {
        () = tokio::time::sleep(timeout) => {
            let detail = "no answer to the QUIC handshake in time: UDP may be blocked on the way, \
                          then use h2+tls";
            Error::new(Kind::Timeout, Side::Peer, detail)
        }
        () = watch.refused() => Error::io(&io::ErrorKind::ConnectionRefused.into(), Side::Peer),
    }
}

/// The parts that a connection of a client keeps.
struct Alive {
    tickets: Option<Arc<Tickets>>,
    _io: Arc<IoThread>,
}

impl Alive {
    fn new(tickets: Option<Arc<Tickets>>, io: Arc<IoThread>) -> Self {
        if let Some(tickets) = &tickets {
            tickets.begun();
        }
        Self { tickets, _io: io }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(tickets) = &self.tickets {
            tickets.ended();
        }
    }
}

impl Dial for Dialling {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move { open_path(&self.connect(target, None).await?).await })
    }

    fn carrier<'a>(&'a self, target: &'a Target, isolation: &'a Isolation) -> CarrierFuture<'a> {
        Box::pin(async move {
            let connected = self.connect(target, Some(isolation)).await?;
            Ok(Carrier::Streams(Rc::new(connected)))
        })
    }

    fn forget(&self, isolation: &Isolation) {
        self.memory.borrow_mut().forget(isolation);
    }
}

/// The listening end.
struct Listening {
    state: Arc<State>,
    config: Arc<ServerConfig>,
    resets: Resets,
    takes_early: bool,
    alpn: &'static [u8],
    timeout: Duration,
}

impl Listen for Listening {
    fn listen(&self, socket: Socket) -> io::Result<Box<dyn Listener>> {
        let (socket, io) = (socket.into_udp()?, self.state.io()?);
        let accepting = Accepting::new(
            &self.state.hubs,
            socket,
            &io,
            Handshakes {
                config: Arc::clone(&self.config),
                resets: self.resets.clone(),
                takes_early: self.takes_early,
                alpn: self.alpn,
                timeout: self.timeout,
            },
        )?;
        Ok(Box::new(accepting))
    }
}
