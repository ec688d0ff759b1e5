//! The listening end: the endpoint of each listening socket, and the listeners of the threads.
//!
//! The connections of a socket are shared among the listeners in turn. A connection from an address
//! that was not validated begins its handshake at once, as long as few of them wait. Beyond that
//! number the client has to prove its address first, by a Retry packet (RFC 9000 section 8.1).
//!
//! After the last listener, the address is handed over to the next process
//! ([`tandem::transport::handover`]), and the connections that go on get sockets of their own.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, Endpoint, ServerConfig};
use tandem::carrier::{Carrier, Streams};
use tandem::error::{Error, Kind, Side};
use tandem::transport::handover::{self, Flow, connected, hand_over};
use tandem::transport::{Incoming, Listener};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::carrier::QuicCarrier;
use crate::early::Early;
use crate::failure;
use crate::io_thread::IoThread;
use crate::listener_socket::ListenerSocket;
use crate::resets::Resets;
use crate::socket::enlarge;

/// The handshakes with addresses that were not validated, above which clients have to prove their
/// address first. Each of them costs the gateway a signature and some kilobytes.
const MAX_HALF_OPEN: usize = 64;
/// The time for which a connection that has ended keeps its socket.
const CLOSING: Duration = Duration::from_secs(3);
/// The new connections that may wait for a thread.
const QUEUE: usize = 64;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hubs by the addresses of their sockets.
#[derive(Debug, Default)]
pub(crate) struct Hubs(Mutex<HashMap<SocketAddr, Weak<Hub>>>);

/// The endpoint of one listening socket.
#[derive(Debug)]
pub(crate) struct Hub {
    listeners: Mutex<Listeners>,
    half_open: Arc<AtomicUsize>,
    stop: Arc<Notify>,
    /// The address of the socket before it was handed over.
    address: SocketAddr,
    /// The socket, which is handed over after the last listener.
    bound: UdpSocket,
    /// The socket as the endpoint uses it.
    socket: Arc<ListenerSocket>,
    /// The thread that moves the datagrams of the endpoint.
    io: Arc<IoThread>,
}

#[derive(Debug, Default)]
struct Listeners {
    senders: Vec<(u64, mpsc::Sender<Newcomer>)>,
    next: usize,
    next_number: u64,
    connections: HashMap<u64, Connected>,
    next_connection: u64,
    /// True once the address of the socket was handed over.
    handed_over: bool,
}

/// A connection of a hub.
#[derive(Debug)]
enum Connected {
    /// A connection whose handshake is not over.
    Begins(Flow),
    /// A connection that may move to another address.
    Runs(Connection),
}

impl Connected {
    /// Returns the ends between which the datagrams travel.
    fn flow(&self) -> Flow {
        match self {
            Self::Begins(flow) => *flow,
            Self::Runs(connection) => Flow {
                own: connection.local_ip(),
                peer: connection.remote_address(),
            },
        }
    }
}

/// The entry of a connection in its hub. Dropping it removes the entry.
#[derive(Debug)]
struct Member {
    hub: Arc<Hub>,
    number: u64,
}

impl Member {
    /// Notes that the connection runs.
    fn runs(&self, connection: &Connection) {
        let entry = Connected::Runs(connection.clone());
        let mut listeners = lock(&self.hub.listeners);
        listeners.connections.insert(self.number, entry);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut listeners = lock(&self.hub.listeners);
        let connection = listeners.connections.remove(&self.number);
        let has_socket = listeners.handed_over;
        drop(listeners);
        // The last handle of a connection may close it.
        drop(connection);
        if has_socket {
            // The next process would answer the client before the last packet leaves. The client
            // would then lose its unread data.
            let (socket, number) = (Arc::clone(&self.hub.socket), self.number);
            self.hub.io.handle().spawn(async move {
                tokio::time::sleep(CLOSING).await;
                socket.remove(number);
            });
        }
    }
}

/// A connection that begins.
#[derive(Debug)]
struct Newcomer {
    incoming: quinn::Incoming,
    /// Present if the address was not validated.
    half_open: Option<HalfOpen>,
}

/// Counts a handshake with an address that was not validated.
#[derive(Debug)]
struct HalfOpen(Arc<AtomicUsize>);

impl HalfOpen {
    /// Returns `None` if too many wait already.
    fn begin(count: &Arc<AtomicUsize>) -> Option<Self> {
        let one = Self(Arc::clone(count));
        let before = count.fetch_add(1, Ordering::AcqRel);
        (before < MAX_HALF_OPEN).then_some(one)
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Hubs {
    /// Returns the hub of a socket, and starts it if there is none or its address was handed over.
    fn of(
        &self,
        socket: UdpSocket,
        settings: &Handshakes,
        io: &Arc<IoThread>,
    ) -> io::Result<Arc<Hub>> {
        let address = socket.local_addr()?;
        let mut hubs = lock(&self.0);
        let present = hubs.get(&address).and_then(Weak::upgrade);
        if let Some(hub) = present.filter(|hub| !lock(&hub.listeners).handed_over) {
            return Ok(hub);
        }
        handover::check(&socket)?;
        hubs.retain(|_, hub| hub.strong_count() > 0);
        enlarge(&socket);
        let bound = socket.try_clone()?;
        let runtime = io.runtime();
        let socket = Arc::new(ListenerSocket::new(runtime.wrap_udp_socket(socket)?));
        let endpoint = Endpoint::new_with_abstract_socket(
            settings.resets.endpoint(address),
            // Each listener accepts with its present parameters. The keys of tokens stay.
            Some(ServerConfig::clone(&settings.config)),
            Arc::clone(&socket) as _,
            runtime,
        )?;
        let hub = Arc::new(Hub {
            listeners: Mutex::default(),
            half_open: Arc::default(),
            stop: Arc::default(),
            address,
            bound,
            socket,
            io: Arc::clone(io),
        });
        let (stop, weak) = (Arc::clone(&hub.stop), Arc::downgrade(&hub));
        io.handle().spawn(distribute(endpoint, weak, stop));
        hubs.insert(address, Arc::downgrade(&hub));
        Ok(hub)
    }
}

impl Hubs {
    /// Returns the socket of the hub with this address, if it has one.
    pub(crate) fn bound(&self, address: SocketAddr) -> Option<UdpSocket> {
        let hub = lock(&self.0).get(&address).and_then(Weak::upgrade)?;
        let is_free = lock(&hub.listeners).handed_over;
        (!is_free).then(|| hub.bound.try_clone().ok()).flatten()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

/// Shares new connections among the listeners, until `stop`.
async fn distribute(endpoint: Endpoint, hub: Weak<Hub>, stop: Arc<Notify>) {
    loop {
        let incoming = tokio::select! {
            biased;
            () = stop.notified() => return,
            incoming = endpoint.accept() => incoming,
        };
        let (Some(incoming), Some(hub)) = (incoming, hub.upgrade()) else {
            return;
        };
        hub.admit(incoming);
    }
}

impl Hub {
    fn admit(&self, incoming: quinn::Incoming) {
        let (is_empty, has_begun) = {
            let listeners = lock(&self.listeners);
            (listeners.senders.is_empty(), listeners.next_number > 0)
        };
        if is_empty && has_begun {
            // A drain or a reload has ended the accepting. The reply is shorter than the datagram,
            // as for a port that is closed.
            incoming.refuse();
            return;
        }
        if is_empty {
            // It is sent again when the listener has begun.
            incoming.ignore();
            return;
        }
        let validated = incoming.remote_address_validated();
        let half_open = (!validated).then(|| HalfOpen::begin(&self.half_open));
        let half_open = match half_open {
            None => None,
            Some(Some(half_open)) => Some(half_open),
            Some(None) => {
                // An address that was not validated may always get a Retry.
                let _ = incoming.retry();
                return;
            }
        };
        let newcomer = Newcomer {
            incoming,
            half_open,
        };
        if let Some(newcomer) = lock(&self.listeners).give(newcomer) {
            // A spoofed address would get an answer for each datagram.
            newcomer.incoming.ignore();
        }
    }
}

impl Hub {
    /// Adds a connection, which keeps its datagrams when the address is handed over.
    fn join(self: &Arc<Self>, incoming: &quinn::Incoming) -> Member {
        let flow = Flow {
            own: incoming.local_ip(),
            peer: incoming.remote_address(),
        };
        let mut listeners = lock(&self.listeners);
        let number = listeners.next_connection;
        listeners.next_connection += 1;
        if listeners.handed_over
            && let Ok(Some(socket)) = connected(self.address, &flow)
        {
            self.separate(number, socket);
        }
        let entry = Connected::Begins(flow);
        listeners.connections.insert(number, entry);
        drop(listeners);
        Member {
            hub: Arc::clone(self),
            number,
        }
    }

    fn separate(&self, number: u64, socket: UdpSocket) {
        enlarge(&socket);
        match self.io.runtime().wrap_udp_socket(socket) {
            Ok(socket) => self.socket.add(number, socket),
            Err(error) => tracing::debug!(%error, "a connection loses its socket"),
        }
    }

    /// Frees the address for the next process.
    fn hand_over(&self, listeners: &mut Listeners) {
        let connections = listeners.connections.iter();
        let (numbers, flows): (Vec<_>, Vec<_>) =
            connections.map(|(number, it)| (*number, it.flow())).unzip();
        match hand_over(&self.bound, &flows) {
            Ok(sockets) => {
                for (number, socket) in numbers.into_iter().zip(sockets) {
                    if let Some(socket) = socket {
                        self.separate(number, socket);
                    }
                }
                listeners.handed_over = true;
            }
            Err(error) => {
                tracing::warn!(%error, "the UDP address is taken until the last connection ends");
            }
        }
    }
}

impl Listeners {
    /// Gives a connection to the next listener with room. Returns it if there is none.
    fn give(&mut self, mut newcomer: Newcomer) -> Option<Newcomer> {
        for _ in 0..self.senders.len() {
            self.next = (self.next + 1) % self.senders.len();
            match self.senders[self.next].1.try_send(newcomer) {
                Ok(()) => return None,
                Err(error) => newcomer = error.into_inner(),
            }
        }
        Some(newcomer)
    }
}

/// Accepts connections on one thread.
pub(crate) struct Accepting {
    hub: Arc<Hub>,
    number: u64,
    newcomers: mpsc::Receiver<Newcomer>,
    settings: Handshakes,
    /// Handshakes with addresses that were not validated. They take no place from others.
    handshakes: JoinSet<Option<(SocketAddr, QuicCarrier)>>,
}

/// The settings of the handshakes of one listener.
#[derive(Clone)]
pub(crate) struct Handshakes {
    pub(crate) config: Arc<ServerConfig>,
    /// The secret of the socket's first listener stays in use.
    pub(crate) resets: Resets,
    /// True if clients may send early data.
    pub(crate) takes_early: bool,
    pub(crate) alpn: &'static [u8],
    pub(crate) timeout: Duration,
}

impl Accepting {
    /// Begins to accept connections of `socket`, with these parameters.
    pub(crate) fn new(
        hubs: &Hubs,
        socket: UdpSocket,
        io: &Arc<IoThread>,
        settings: Handshakes,
    ) -> io::Result<Self> {
        let hub = hubs.of(socket, &settings, io)?;
        let (sender, newcomers) = mpsc::channel(QUEUE);
        let mut listeners = lock(&hub.listeners);
        let number = listeners.next_number;
        listeners.next_number += 1;
        listeners.senders.push((number, sender));
        drop(listeners);
        Ok(Self {
            hub,
            number,
            newcomers,
            settings,
            handshakes: JoinSet::new(),
        })
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        let mut listeners = lock(&self.hub.listeners);
        listeners
            .senders
            .retain(|(number, _)| *number != self.number);
        if listeners.senders.is_empty() && !listeners.handed_over {
            self.hub.hand_over(&mut listeners);
        }
    }
}

impl Handshakes {
    /// Completes a handshake, or begins a session if the client sends early data. `half_open` is
    /// kept until the handshake is over.
    async fn run(
        self,
        incoming: quinn::Incoming,
        hub: Arc<Hub>,
        half_open: Option<HalfOpen>,
    ) -> Result<QuicCarrier, Error> {
        let failed = |error| failure::of_connection(&error, Side::Client);
        let member = hub.join(&incoming);
        let mut connecting = incoming.accept_with(self.config).map_err(failed)?;
        if self.takes_early {
            connecting = match connecting.into_0rtt() {
                Ok((connection, accepted)) => {
                    let early = Early::new(accepted, Box::pin(out_of_time(self.timeout)));
                    member.runs(&connection);
                    let early = Some(early);
                    let carried =
                        QuicCarrier::new(connection, self.alpn, Side::Client, early, member);
                    carried.begun().await?;
                    carried.hold_while_early(half_open);
                    return Ok(carried);
                }
                Err(connecting) => connecting,
            };
        }
        tokio::select! {
            connected = connecting => {
                let connection = connected.map_err(failed)?;
                member.runs(&connection);
                Ok(QuicCarrier::new(connection, self.alpn, Side::Client, None, member))
            }
            error = out_of_time(self.timeout) => Err(error),
        }
    }
}

async fn out_of_time(timeout: Duration) -> Error {
    tokio::time::sleep(timeout).await;
    let detail = "the QUIC handshake did not end in time";
    Error::new(Kind::Timeout, Side::Client, detail)
}

fn carrier(carried: QuicCarrier) -> Carrier {
    Carrier::Streams(Rc::new(carried) as Rc<dyn Streams>)
}

impl Listener for Accepting {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Incoming>> {
        loop {
            while let Poll::Ready(Some(ended)) = self.handshakes.poll_join_next(cx) {
                if let Ok(Some((address, carried))) = ended {
                    let carrier = Box::pin(std::future::ready(Ok(carrier(carried))));
                    return Poll::Ready(Ok(Incoming { address, carrier }));
                }
            }
            let Poll::Ready(Some(newcomer)) = self.newcomers.poll_recv(cx) else {
                return Poll::Pending;
            };
            let Newcomer {
                incoming,
                half_open,
            } = newcomer;
            let address = incoming.remote_address();
            let (settings, hub) = (self.settings.clone(), Arc::clone(&self.hub));
            if half_open.is_none() {
                let shaking = settings.run(incoming, hub, None);
                let carrier = Box::pin(async move { Ok(carrier(shaking.await?)) });
                return Poll::Ready(Ok(Incoming { address, carrier }));
            }
            self.handshakes.spawn_local(async move {
                match settings.run(incoming, hub, half_open).await {
                    Ok(carried) => Some((address, carried)),
                    Err(error) => {
                        tracing::debug!(%error, "handshake failed");
                        None
                    }
                }
            });
        }
    }
}
