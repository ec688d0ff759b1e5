//! A carrier of many streams within the process, and the network that connects both ends.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tandem::carrier::{
    Carrier, CarrierStream, Code, Direction, ReceiveStream, SendStream, StreamReset, StreamStopped,
    Streams,
};
use tandem::endpoint::{BadEndpoint, Endpoint, SessionKind};
use tandem::error::{Error, Kind, Retry, Side};
use tandem::exchange::Isolation;
use tandem::path::{Facts, Path};
use tandem::transport::registry::{
    DialContext, Dials, ListenContext, Listens, Protocol, Provider, Socket, TransportError,
};
use tandem::transport::{CarrierFuture, Dial, Incoming, Listen, Listener, LocalBoxFuture, Target};
use tandem_http::Priority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

/// The capacity of one direction of a stream, in bytes.
pub(crate) const ROOM: usize = 32 << 10;

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
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }

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
            pipe.wait(cx);
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
        pipe.wait(cx);
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
            pipe.wait(cx);
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
        if pipe.finished {
            pipe.bytes.clear();
        } else {
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
pub(crate) struct Connection {
    inboxes: Arc<[Mutex<Inbox>; 2]>,
    own: usize,
}

impl Connection {
    pub(crate) fn pair() -> (Self, Self) {
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

/// The facts that a test sets.
#[derive(Default)]
pub(crate) struct MemoryFacts {
    pub(crate) acknowledgements: Cell<u64>,
}

impl Facts for MemoryFacts {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn acknowledgements(&self) -> Option<u64> {
        Some(self.acknowledgements.get())
    }
}

/// A connection as seen by one of its ends.
pub(crate) struct MemoryStreams {
    connection: Connection,
    /// The streams that this end has opened, by direction.
    opened: [Cell<u64>; 2],
    facts: Rc<dyn Facts>,
    /// The bidirectional streams that may still be opened.
    permitted: u64,
}

impl MemoryStreams {
    pub(crate) fn new(connection: Connection) -> Rc<Self> {
        Rc::new(Self::with(connection, u64::MAX, Rc::default()))
    }

    /// Creates an end that may open `permitted` bidirectional streams.
    pub(crate) fn with(connection: Connection, permitted: u64, facts: Rc<MemoryFacts>) -> Self {
        Self {
            opened: Default::default(),
            connection,
            facts,
            permitted,
        }
    }
}

impl Streams for MemoryStreams {
    fn facts(&self) -> &Rc<dyn Facts> {
        &self.facts
    }

    fn has_ended(&self) -> bool {
        let own = lock(&self.connection.inboxes[self.connection.own]);
        own.closed.is_some()
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
        // The numbers are those of QUIC (RFC 9000 section 2.1).
        let opened = &self.opened[direction as usize];
        if direction == Direction::Bidirectional && opened.get() >= self.permitted {
            return Poll::Pending;
        }
        let number = opened.replace(opened.get() + 1);
        let id = 4 * number + 2 * direction as u64 + self.connection.own as u64;
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

    /// Returns false: nothing is lost in memory.
    fn probe(&self) -> bool {
        false
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
pub(crate) struct Network {
    dialled: mpsc::UnboundedSender<Connection>,
    accepted: Arc<Mutex<Option<mpsc::UnboundedReceiver<Connection>>>>,
}

impl Network {
    pub(crate) fn new() -> Self {
        let (dialled, accepted) = mpsc::unbounded_channel();
        Self {
            dialled,
            accepted: Arc::new(Mutex::new(Some(accepted))),
        }
    }
}

impl Dial for Network {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

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

    fn carrier<'a>(&'a self, _: &'a Target, _: &'a Isolation) -> CarrierFuture<'a> {
        let (near, far) = Connection::pair();
        let unreachable = |_| Error::new(Kind::Unreachable, Side::Peer, "nobody listens");
        let sent = self.dialled.send(far).map_err(unreachable);
        Box::pin(async move { sent.map(|()| Carrier::Streams(MemoryStreams::new(near))) })
    }
}

impl Listen for Network {
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

    fn has_streams(&self) -> bool {
        true
    }

    fn sessions(&self) -> &'static [SessionKind] {
        &[SessionKind::Http, SessionKind::H3]
    }
}

impl Dials for Network {
    fn check_dial(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        endpoint.options(&[]).map(drop)
    }

    fn dialling(&self, _: &Endpoint, _: DialContext) -> Result<Rc<dyn Dial>, TransportError> {
        Ok(Rc::new(self.clone()))
    }
}

impl Listens for Network {
    fn listening(
        &self,
        _: &Endpoint,
        _: ListenContext<'_>,
    ) -> Result<Box<dyn Listen>, TransportError> {
        Ok(Box::new(self.clone()))
    }
}
