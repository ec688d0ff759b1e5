//! A carrier of many streams within the process, a session over it, and a pair of proxies composed
//! of both: they show that the carrier interface fits QUIC and DTLS as well as TCP.
//!
//! The session is HTTP/1.1 with one exchange on each stream.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tandem::back::announce::Announcer;
use tandem::back::gateways::{Gateway, Gateways, PoolLimits, ToGateway};
use tandem::back::origin::{Limits as OriginLimits, Mode, Origin, ToOrigin};
use tandem::back::policy::{Direct, Policy};
use tandem::carrier::{
    Carrier, CarrierStream, Code, Direction, ReceiveStream, SendStream, StreamReset, StreamStopped,
    Streams,
};
use tandem::config::ConfigError;
use tandem::connections::{ConnectionLimits, Connections};
use tandem::endpoint::{BadEndpoint, Endpoint};
use tandem::error::{Error, Kind, Retry, Side};
use tandem::exchange::{Exchange, Isolation, Peer, Sink};
use tandem::front::{Front, Protocol as FrontProtocol};
use tandem::path::{Facts, Path};
use tandem::roles::{Built, Role};
use tandem::runtime::Running;
use tandem::services::Services;
use tandem::session::http1::{Http1Client, Http1Server, Http1Session, OriginForm};
use tandem::session::mux::{HeaderCompression, Multiplexed, MuxSession};
use tandem::session::{Connected, Drain, Session, SessionEvents, SessionState, Timeouts};
use tandem::stage::Stage;
use tandem::transport::registry::{
    DialContext, ListenContext, Protocol, Provider, Socket, TransportError, Transports,
};
use tandem::transport::tcp::{SocketOptions, Tcp};
use tandem::transport::tls::ClientTls;
use tandem::transport::{Incoming, Listener, LocalBoxFuture, Target, Transport};
use tandem_http::h1::{Form, Limits};
use tandem_http::{MuxConfig, Priority, Role as End, Scheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::{Notify, mpsc};

use crate::harness::{Pair, block_on, endpoint};

/// The capacity of one direction of a stream, in bytes.
const ROOM: usize = 32 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics while it holds this")
}

/// The state of one direction of a stream.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    finished: bool,
    reset: Option<Code>,
    stopped: Option<Code>,
    priority: Option<Priority>,
    wakers: Vec<Waker>,
}

impl Pipe {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

struct Sending {
    pipe: Arc<Mutex<Pipe>>,
}

impl AsyncWrite for Sending {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut pipe = lock(&self.pipe);
        if let Some(code) = pipe.stopped {
            return Poll::Ready(Err(StreamStopped(code).into()));
        }
        let count = buf.len().min(ROOM - pipe.bytes.len());
        if count == 0 && !buf.is_empty() {
            pipe.wakers.push(cx.waker().clone());
            return Poll::Pending;
        }
        pipe.bytes.extend(&buf[..count]);
        pipe.wake();
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = lock(&self.pipe);
        pipe.finished = true;
        pipe.wake();
        Poll::Ready(Ok(()))
    }
}

impl SendStream for Sending {
    fn set_priority(&mut self, priority: Priority) {
        lock(&self.pipe).priority = Some(priority);
    }

    fn reset(&mut self, code: Code) {
        let mut pipe = lock(&self.pipe);
        if !pipe.finished {
            pipe.reset.get_or_insert(code);
        }
        pipe.wake();
    }

    fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Option<Code>> {
        let mut pipe = lock(&self.pipe);
        if pipe.stopped.is_some() || (pipe.finished && pipe.bytes.is_empty()) {
            return Poll::Ready(pipe.stopped);
        }
        pipe.wakers.push(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.reset(Code(0));
    }
}

struct Receiving {
    pipe: Arc<Mutex<Pipe>>,
}

impl AsyncRead for Receiving {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut pipe = lock(&self.pipe);
        if let Some(code) = pipe.reset {
            return Poll::Ready(Err(StreamReset(code).into()));
        }
        if pipe.bytes.is_empty() && !pipe.finished {
            pipe.wakers.push(cx.waker().clone());
            return Poll::Pending;
        }
        let count = pipe.bytes.len().min(buf.remaining());
        let bytes: Vec<u8> = pipe.bytes.drain(..count).collect();
        buf.put_slice(&bytes);
        pipe.wake();
        Poll::Ready(Ok(()))
    }
}

impl ReceiveStream for Receiving {
    fn stop(&mut self, code: Code) {
        let mut pipe = lock(&self.pipe);
        if !pipe.finished {
            pipe.stopped.get_or_insert(code);
        }
        pipe.wake();
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.stop(Code(0));
    }
}

/// A stream that the other end has opened and this end has not accepted yet.
struct Arriving {
    id: u64,
    send: Option<Sending>,
    receive: Option<Receiving>,
}

impl Arriving {
    fn arrive(self) -> CarrierStream {
        CarrierStream {
            id: self.id,
            send: self.send.map(|half| Box::new(half) as _),
            receive: self.receive.map(|half| Box::new(half) as _),
        }
    }
}

/// The streams and datagrams that wait for one end of a connection.
#[derive(Default)]
struct Inbox {
    streams: VecDeque<Arriving>,
    datagrams: VecDeque<Bytes>,
    closed: Option<Code>,
    wakers: Vec<Waker>,
}

/// Both inboxes of a connection, and the index of this end's inbox.
struct Connection {
    inboxes: Arc<[Mutex<Inbox>; 2]>,
    own: usize,
}

impl Connection {
    fn pair() -> (Self, Self) {
        let inboxes = Arc::<[Mutex<Inbox>; 2]>::default();
        let end = |own| Self {
            inboxes: Arc::clone(&inboxes),
            own,
        };
        (end(0), end(1))
    }

    fn give(&self, change: impl FnOnce(&mut Inbox)) {
        let mut inbox = lock(&self.inboxes[1 - self.own]);
        change(&mut inbox);
        inbox.wakers.drain(..).for_each(Waker::wake);
    }

    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut Inbox) -> Option<T>,
    ) -> Poll<Option<T>> {
        let mut inbox = lock(&self.inboxes[self.own]);
        let taken = take(&mut inbox);
        if taken.is_some() || inbox.closed.is_some() {
            return Poll::Ready(taken);
        }
        inbox.wakers.push(cx.waker().clone());
        Poll::Pending
    }
}

struct NoFacts;

impl Facts for NoFacts {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }
}

/// A connection as seen by one of its ends.
struct MemoryStreams {
    connection: Connection,
    next: Cell<u64>,
    facts: Rc<dyn Facts>,
}

impl MemoryStreams {
    fn new(connection: Connection) -> Rc<Self> {
        Rc::new(Self {
            next: Cell::new(connection.own as u64),
            connection,
            facts: Rc::new(NoFacts),
        })
    }
}

impl Streams for MemoryStreams {
    fn facts(&self) -> &Rc<dyn Facts> {
        &self.facts
    }

    fn poll_open(
        &self,
        direction: Direction,
        _: &mut Context<'_>,
    ) -> Poll<Result<CarrierStream, Error>> {
        if lock(&self.connection.inboxes[self.connection.own])
            .closed
            .is_some()
        {
            let error = Error::new(Kind::Reset, Side::Peer, "the connection is closed");
            return Poll::Ready(Err(error.with_retry(Retry::Safe)));
        }
        let id = self.next.replace(self.next.get() + 2);
        let (out, back) = (Arc::<Mutex<Pipe>>::default(), Arc::default());
        let both = direction == Direction::Bidirectional;
        let near = Arriving {
            id,
            send: Some(Sending {
                pipe: Arc::clone(&out),
            }),
            receive: both.then(|| Receiving {
                pipe: Arc::clone(&back),
            }),
        };
        let far = Arriving {
            id,
            send: both.then_some(Sending { pipe: back }),
            receive: Some(Receiving { pipe: out }),
        };
        self.connection.give(|inbox| inbox.streams.push_back(far));
        Poll::Ready(Ok(near.arrive()))
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Option<CarrierStream>, Error>> {
        self.connection
            .poll(cx, |inbox| inbox.streams.pop_front())
            .map(|stream| Ok(stream.map(Arriving::arrive)))
    }

    fn close(&self, code: Code, _: &str) {
        self.connection.give(|inbox| inbox.closed = Some(code));
    }

    fn max_datagram(&self) -> Option<usize> {
        Some(1200)
    }

    fn send_datagram(&self, datagram: Bytes) -> bool {
        let fits = datagram.len() <= 1200;
        if fits {
            self.connection
                .give(|inbox| inbox.datagrams.push_back(datagram));
        }
        fits
    }

    fn poll_datagram(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.connection
            .poll(cx, |inbox| inbox.datagrams.pop_front())
    }
}

impl Drop for MemoryStreams {
    fn drop(&mut self) {
        self.close(Code(0), "");
    }
}

/// The network between dialling and listening ends, which may be on any threads.
#[derive(Clone)]
struct Network {
    dialled: mpsc::UnboundedSender<Connection>,
    accepted: Arc<Mutex<Option<mpsc::UnboundedReceiver<Connection>>>>,
}

impl Network {
    fn new() -> Self {
        let (dialled, accepted) = mpsc::unbounded_channel();
        Self {
            dialled,
            accepted: Arc::new(Mutex::new(Some(accepted))),
        }
    }
}

impl Transport for Network {
    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let streams = self.carrier(target, isolation).await?.into_streams()?;
            let stream = poll_fn(|cx| streams.poll_open(Direction::Bidirectional, cx)).await?;
            Ok(stream.into_path(streams.facts()).expect("both halves"))
        })
    }

    fn carrier<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Carrier, Error>> {
        let (near, far) = Connection::pair();
        let unreachable = |_| Error::new(Kind::Unreachable, Side::Peer, "nobody listens");
        let sent = self.dialled.send(far).map_err(unreachable);
        Box::pin(async move { sent.map(|()| Carrier::Streams(MemoryStreams::new(near))) })
    }

    fn listen(&self, socket: Socket) -> io::Result<Box<dyn Listener>> {
        // A transport over datagrams would need a UDP socket too.
        socket.into_udp()?;
        let accepted = lock(&self.accepted).take().expect("one listener");
        Ok(Box::new(Accepting(accepted)))
    }
}

struct Accepting(mpsc::UnboundedReceiver<Connection>);

impl Listener for Accepting {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Incoming>> {
        self.0.poll_recv(cx).map(|connection| {
            let connection = connection.ok_or(io::ErrorKind::BrokenPipe)?;
            let streams = MemoryStreams::new(connection);
            Ok(Incoming {
                address: SocketAddr::from(([127, 0, 0, 1], 1)),
                carrier: Box::pin(std::future::ready(Ok(Carrier::Streams(streams)))),
            })
        })
    }
}

impl Provider for Network {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn protocol(&self) -> Protocol {
        Protocol::Udp
    }

    fn check_dial(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        endpoint.options(&[]).map(drop)
    }

    fn dialling(&self, _: &Endpoint, _: DialContext) -> Result<Rc<dyn Transport>, TransportError> {
        Ok(Rc::new(self.clone()))
    }

    fn listening(
        &self,
        _: &Endpoint,
        _: ListenContext<'_>,
    ) -> Result<Rc<dyn Transport>, TransportError> {
        Ok(Rc::new(self.clone()))
    }
}

/// HTTP/1.1 with one exchange on each stream.
#[derive(Clone)]
struct StreamSession {
    http1: Http1Session,
}

impl Session for StreamSession {
    fn connect(&self, dial: LocalBoxFuture<'static, Result<Carrier, Error>>) -> Rc<dyn Connected> {
        let asking = Rc::new(Asking {
            http1: self.http1.clone(),
            carrier: RefCell::new(None),
            dialled: Notify::new(),
            active: Cell::new(0),
        });
        let this = Rc::clone(&asking);
        tokio::task::spawn_local(async move {
            let streams = dial.await.and_then(Carrier::into_streams);
            *this.carrier.borrow_mut() = Some(streams);
            this.dialled.notify_waiters();
        });
        asking
    }

    fn serve(
        &self,
        carrier: Carrier,
        peer: Peer,
        stage: Rc<dyn Stage>,
        drain: Drain,
    ) -> LocalBoxFuture<'static, Result<(), Error>> {
        let http1 = self.http1.clone();
        Box::pin(async move {
            let streams = carrier.into_streams()?;
            let mut draining = std::pin::pin!(drain.begun());
            loop {
                let stream = tokio::select! {
                    () = &mut draining => return Ok(()),
                    stream = poll_fn(|cx| streams.poll_accept(cx)) => stream?,
                };
                let Some(stream) = stream else { return Ok(()) };
                let path = stream.into_path(streams.facts()).expect("both halves");
                let server = Http1Server::new(http1.clone(), path, peer, Rc::clone(&stage));
                let drain = drain.clone();
                // The failure of one stream does not affect the others.
                tokio::task::spawn_local(async move { drop(server.run(drain).await) });
            }
        })
    }
}

struct Asking {
    http1: Http1Session,
    carrier: RefCell<Option<Result<Rc<dyn Streams>, Error>>>,
    dialled: Notify,
    active: Cell<usize>,
}

impl Asking {
    async fn streams(&self) -> Result<Rc<dyn Streams>, Error> {
        loop {
            let dialled = self.dialled.notified();
            if let Some(streams) = &*self.carrier.borrow() {
                return streams.clone();
            }
            dialled.await;
        }
    }
}

impl Connected for Asking {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let streams = self.streams().await?;
            let mut stream = poll_fn(|cx| streams.poll_open(Direction::Bidirectional, cx)).await?;
            let send = stream.send.as_mut().expect("both halves");
            send.set_priority(exchange.priority.get().priority);
            let path = stream.into_path(streams.facts()).expect("both halves");
            self.active.set(self.active.get() + 1);
            let result = Http1Client::over(self.http1.clone(), path)
                .run(exchange, sink)
                .await;
            self.active.set(self.active.get() - 1);
            result.map_err(|error| error.at(Side::Peer))
        })
    }

    fn drain(&self) {}
}

impl SessionState for Asking {
    fn is_ready(&self) -> bool {
        !self.is_closed()
    }

    fn is_closed(&self) -> bool {
        matches!(&*self.carrier.borrow(), Some(Err(_)))
    }

    fn is_established(&self) -> bool {
        matches!(&*self.carrier.borrow(), Some(Ok(_)))
    }

    fn active(&self) -> usize {
        self.active.get()
    }
}

impl SessionEvents for Asking {
    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async { self.streams().await.map(drop) })
    }
}

fn http1(form: Form, who: &'static str) -> Http1Session {
    Http1Session {
        form,
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        response_timeout: Duration::from_secs(20),
        who,
        scheme: Scheme::Http,
        origin_form: OriginForm::Any,
    }
}

fn connections() -> Rc<Connections> {
    Connections::new(ConnectionLimits {
        total: 100,
        per_client: 100,
        listeners: 1,
        head: Duration::from_secs(30),
    })
}

/// The parts of a proxy on one thread.
struct Parts {
    stage: Rc<dyn Stage>,
    session: Rc<dyn Session>,
}

/// A client or a gateway with a session over the network in memory.
struct Proxy {
    listen: Vec<Endpoint>,
    transports: Transports,
    network: Network,
    compose: fn(&Network) -> Parts,
}

impl Role for Proxy {
    fn listen(&self) -> &[Endpoint] {
        &self.listen
    }

    fn transports(&self) -> &Transports {
        &self.transports
    }

    fn workers(&self) -> usize {
        1
    }

    fn build(&self, _: &Services, _: &[SocketAddr], drain: &Drain) -> Result<Built, ConfigError> {
        let Parts { stage, session } = (self.compose)(&self.network);
        let connections = connections();
        let context = ListenContext {
            socket: None,
            client_ca: None,
            optional_certificate: false,
            timeout: Duration::from_secs(20),
        };
        let listen = &self.listen[0];
        let front = Front {
            protocol: FrontProtocol::Session(session),
            transport: self.transports.of(listen)?.listening(listen, context)?,
            new_stage: Rc::new(move |_, _, _| Rc::clone(&stage)),
            listener: 0,
            connections: Rc::clone(&connections),
            drain: drain.clone(),
        };
        Ok(Built {
            fronts: vec![Rc::new(front)],
            connections,
            dialled: Box::new(Vec::new),
            on_drain: Box::new(|| {}),
        })
    }
}

fn client(network: &Network) -> Parts {
    let gateway = Gateway {
        announcer: Announcer::new("gateway.example:1".into(), "streams".into()),
        has_token: false,
        target: Target {
            host: "gateway".into(),
            port: 1,
        },
        transport: Rc::new(network.clone()),
        session: Rc::new(StreamSession {
            http1: http1(Form::Absolute, "client"),
        }),
        blamed: Cell::default(),
    };
    let limits = PoolLimits {
        reconnect: false,
        max_age: None,
        max_sessions: 10,
    };
    let pool = Gateways::new(vec![gateway], limits, None);
    let front = http1(Form::Absolute, "client");
    Parts {
        stage: Rc::new(ToGateway(pool)),
        session: Rc::new(front),
    }
}

fn gateway(_: &Network) -> Parts {
    let policy = Policy {
        allow: vec!["127.0.0.0/8".parse().expect("a network")],
        ..Policy::default()
    };
    let direct = Direct {
        policy,
        named: None,
        options: SocketOptions::default(),
    };
    let h2 = MuxSession {
        protocol: Multiplexed::H2,
        config: MuxConfig::new(End::Client),
        timeouts: Timeouts::default(),
        write_limit: 16 << 10,
        header_compression: HeaderCompression::Safe,
        token: None,
    };
    let origin = Origin::new(
        Mode::Forward,
        Rc::new(direct),
        ClientTls::default()
            .connector()
            .expect("public authorities"),
        http1(Form::Origin, "gateway"),
        Rc::new(h2),
        Duration::from_secs(20),
        OriginLimits::default(),
    );
    let session = StreamSession {
        http1: http1(Form::Origin, "gateway"),
    };
    Parts {
        stage: Rc::new(ToOrigin(origin)),
        session: Rc::new(session),
    }
}

/// Starts a client and a gateway with a session over a carrier of many streams.
pub(crate) fn pair() -> Pair {
    let network = Network::new();
    let mut transports = Transports::default();
    transports.add(network.clone());
    let proxy = |listen: &str, compose| {
        let proxy = Proxy {
            listen: vec![endpoint(listen)],
            transports: transports.clone(),
            network: network.clone(),
            compose,
        };
        block_on(Running::start(Arc::new(proxy))).expect("starts")
    };
    let gateway = proxy("http+memory://127.0.0.1:0", gateway);
    let client = proxy("http://127.0.0.1:0", client);
    let address = client.address(&endpoint("http://127.0.0.1:0"));
    Pair::of(client, gateway, address.expect("listens"))
}

fn connected() -> (Rc<MemoryStreams>, Rc<MemoryStreams>) {
    let (near, far) = Connection::pair();
    (MemoryStreams::new(near), MemoryStreams::new(far))
}

async fn open(streams: &MemoryStreams, direction: Direction) -> CarrierStream {
    poll_fn(|cx| streams.poll_open(direction, cx))
        .await
        .unwrap()
}

async fn accept(streams: &MemoryStreams) -> Option<CarrierStream> {
    poll_fn(|cx| streams.poll_accept(cx)).await.unwrap()
}

#[test]
fn carrier_streams_flow_and_end_independently() {
    block_on(async {
        let (near, far) = connected();
        let blocked = open(&near, Direction::Unidirectional).await;
        let mut quick = open(&near, Direction::Bidirectional).await;
        assert!(blocked.receive.is_none() && blocked.id != quick.id);
        let mut full = blocked.send.unwrap();
        full.write_all(&[0; ROOM]).await.unwrap();
        let send = quick.send.as_mut().unwrap();
        send.write_all(b"asked").await.unwrap();
        send.shutdown().await.unwrap();
        let (first, second) = (accept(&far).await.unwrap(), accept(&far).await.unwrap());
        assert!(first.send.is_none() && second.id == quick.id);
        let mut text = String::new();
        let read = second.receive.unwrap().read_to_string(&mut text).await;
        assert_eq!((read.unwrap(), text.as_str()), (5, "asked"));
        first.receive.unwrap().stop(Code(7));
        let error = full.write_all(b"more").await.unwrap_err();
        let stopped = error.get_ref().and_then(|inner| inner.downcast_ref());
        assert_eq!(stopped, Some(&StreamStopped(Code(7))));
        assert_eq!(poll_fn(|cx| full.poll_stopped(cx)).await, Some(Code(7)));
    });
}

#[test]
fn carrier_resets_stream_dropped_before_its_end() {
    block_on(async {
        let (near, far) = connected();
        let mut half = open(&near, Direction::Bidirectional).await;
        half.send
            .as_mut()
            .unwrap()
            .write_all(b"half")
            .await
            .unwrap();
        let path = half.into_path(near.facts()).unwrap();
        path.facts().reset_on_close();
        let mut arrived = accept(&far).await.unwrap().receive.unwrap();
        drop(path);
        let error = arrived.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(Error::io(&error, Side::Peer).kind, Kind::Reset);
        drop(near);
        assert!(accept(&far).await.is_none(), "the connection has ended");
    });
}

#[test]
fn carrier_passes_datagrams() {
    block_on(async {
        let (near, far) = connected();
        assert!(!near.send_datagram(Bytes::from(vec![0; 1201])));
        assert!(near.send_datagram(Bytes::from_static(b"datagram")));
        let datagram = poll_fn(|cx| far.poll_datagram(cx)).await;
        assert_eq!(datagram.as_deref(), Some(&b"datagram"[..]));
    });
}

#[test]
fn session_refuses_the_other_kind_of_carrier() {
    block_on(async {
        let (near, _far) = connected();
        let error = Carrier::Streams(near).into_bytes().unwrap_err();
        assert!(error.detail.contains("one byte stream"), "{error}");
        let path = Path::pair(1).0;
        let error = Carrier::Bytes(path).into_streams().unwrap_err();
        assert!(error.detail.contains("many streams"), "{error}");
    });
}

/// A transport of another crate: TCP with inverted bytes.
struct Inverting {
    below: Rc<dyn Transport>,
}

struct Inverted(Path);

impl AsyncRead for Inverted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let from = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.0).poll_read(cx, buf))?;
        buf.filled_mut()[from..]
            .iter_mut()
            .for_each(|byte| *byte = !*byte);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Inverted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let inverted: Vec<u8> = buf.iter().map(|byte| !byte).collect();
        Pin::new(&mut self.0).poll_write(cx, &inverted)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn inverted(path: Path) -> Path {
    let facts = Rc::clone(path.facts());
    Path::new(Inverted(path), facts)
}

impl Transport for Inverting {
    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move { Ok(inverted(self.below.dial(target, isolation).await?)) })
    }

    fn listen(&self, socket: Socket) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(InvertingListener(self.below.listen(socket)?)))
    }
}

struct InvertingListener(Box<dyn Listener>);

impl Listener for InvertingListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Incoming>> {
        self.0.poll_accept(cx).map_ok(|incoming| Incoming {
            address: incoming.address,
            carrier: Box::pin(
                async move { Ok(inverted(incoming.carrier.await?.into_bytes()?).into()) },
            ),
        })
    }
}

struct InvertingProvider;

impl Provider for InvertingProvider {
    fn name(&self) -> &'static str {
        "inverted"
    }

    fn dialling(
        &self,
        _: &Endpoint,
        context: DialContext,
    ) -> Result<Rc<dyn Transport>, TransportError> {
        Ok(Rc::new(Inverting {
            below: context.streams,
        }))
    }

    fn listening(
        &self,
        _: &Endpoint,
        context: ListenContext<'_>,
    ) -> Result<Rc<dyn Transport>, TransportError> {
        let below = Rc::new(Tcp {
            options: context.socket,
            pinned: None,
        });
        Ok(Rc::new(Inverting { below }))
    }
}

#[test]
fn registry_carries_a_transport_from_outside() {
    use crate::harness::{Client, Scene, client_options, gateway_options};
    let mut transports = Transports::default();
    let listen = endpoint("h2+inverted://127.0.0.1:0");
    let mut options = gateway_options();
    options.listen = vec![listen.clone()];
    let error = options
        .clone()
        .typed_with(&transports)
        .unwrap_err()
        .to_string();
    assert!(error.contains("unknown transport \"inverted\""), "{error}");
    transports.add(InvertingProvider);
    let config = options.typed_with(&transports).unwrap();
    let gateway = block_on(Running::start(Arc::new(config))).unwrap();
    let address = gateway.address(&listen).unwrap();
    let http = endpoint("http://127.0.0.1:0");
    let mut options = client_options(&format!("h2+inverted://{address}"));
    options.listen = vec![http.clone()];
    let config = options.typed_with(&transports).unwrap();
    let client = block_on(Running::start(Arc::new(config))).unwrap();
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let answer = Client::to(client.address(&http).unwrap()).get(&origin.url("/"));
    assert_eq!((answer.status, &answer.body[..]), (200, &b"ok"[..]));
    for running in [client, gateway] {
        block_on(running.drain(Duration::ZERO));
    }
}
