//! A connection as a carrier of many streams.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::congestion::Controller as _;
use quinn::{Connection, ConnectionError, RecvStream, VarInt};
use rustls::pki_types::CertificateDer;
use tandem::carrier::{CarrierStream, Code, Direction, Streams};
use tandem::error::{Error, Retry, Side};
use tandem::path::{Facts, Measure};
use tandem_resume::{SavedSpeed, Trial};
use tokio::time::Sleep;

use crate::congestion::Resuming;
use crate::early::Early;
use crate::failure;
use crate::guard::Watch;
use crate::settings::DATAGRAMS_UNSENT;
use crate::share::{Counters, Share};
use crate::stream::{Receiving, Sending, number};
use crate::wakers::Wakers;
use crate::window::{ADMITTED, CLIENT, NEWCOMER, Window};

/// The time between two changes of the send window.
const ADAPT: Duration = Duration::from_millis(5);
/// The least bytes that a connection may hold for sending.
const LEAST_SEND_WINDOW: u64 = 128 << 10;
/// The most bytes that a connection may hold for sending.
const MOST_SEND_WINDOW: u64 = 16 << 20;
/// The time after which a datagram that waits for its share looks again.
const SHARE_WAIT: Duration = Duration::from_millis(1);
/// The round trips after which a session that waits for room asks again, and the least time.
const ASK_AGAIN: (u32, Duration) = (3, Duration::from_millis(100));

type Opened = Result<(quinn::SendStream, Option<RecvStream>), ConnectionError>;
type Accepted = Result<(Option<quinn::SendStream>, RecvStream), ConnectionError>;

/// A future that several tasks may poll.
struct Waiting<T> {
    future: RefCell<Option<Pin<Box<dyn Future<Output = T>>>>>,
    wakers: Arc<Wakers>,
}

impl<T> Waiting<T> {
    fn new() -> Self {
        Self {
            future: RefCell::new(None),
            wakers: Arc::default(),
        }
    }

    fn is_idle(&self) -> bool {
        self.future.borrow().is_none()
    }

    /// Polls the future, which `begin` creates if there is none.
    fn poll<F: Future<Output = T> + 'static>(
        &self,
        cx: &Context<'_>,
        begin: impl FnOnce() -> F,
    ) -> Poll<T> {
        let waker = self.wakers.join(cx);
        let mut slot = self.future.borrow_mut();
        let future = slot.get_or_insert_with(|| Box::pin(begin()));
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            *slot = None;
            drop(slot);
            // The other tasks wait for the next stream.
            waker.wake();
        }
        polled
    }
}

/// The state that the streams of a connection share.
pub(crate) struct Shared {
    connection: Connection,
    side: Side,
    adapted: Cell<Option<Instant>>,
    share: RefCell<Share>,
    window: Rc<RefCell<Window>>,
    /// The time before the end of the handshake, if the connection began with it.
    early: Option<Early>,
    /// The watch over the sockets of a client.
    watch: OnceCell<Arc<Watch>>,
}

impl Shared {
    /// Returns the time before the end of the handshake, while it lasts.
    fn early(&self) -> Option<&Early> {
        self.early.as_ref().filter(|early| !early.is_over())
    }

    /// Notes bytes that were read from a stream.
    pub(crate) fn note_read(&self, bytes: usize) {
        self.window.borrow_mut().note_read(bytes);
    }

    fn resize_window(&self, size: u32) {
        self.connection.set_receive_window(VarInt::from_u32(size));
    }

    /// Returns the error of a connection that has ended.
    pub(crate) fn error(&self, error: &ConnectionError) -> Error {
        if self.is_refused(error) {
            let refused = io::ErrorKind::ConnectionRefused.into();
            return Error::io(&refused, self.side).with_retry(Retry::IfIdempotent);
        }
        failure::of_connection(error, self.side)
    }

    /// Returns true if this end has closed the connection because no program listens at the peer.
    fn is_refused(&self, error: &ConnectionError) -> bool {
        *error == ConnectionError::LocallyClosed
            && self.watch.get().is_some_and(|watch| watch.has_ended())
    }

    fn is_regular(&self, error: &ConnectionError) -> bool {
        failure::is_regular(error) && !self.is_refused(error)
    }

    /// Calls `write` with the bytes that it offers to the connection, and counts those that the
    /// connection takes.
    pub(crate) fn count<E>(
        &self,
        bytes: usize,
        write: impl FnOnce() -> Poll<Result<usize, E>>,
    ) -> Poll<Result<usize, E>> {
        let controller = Resuming::of(&self.connection);
        let count = |count: fn(&Resuming, usize), bytes| {
            if let Some(controller) = controller.as_ref().filter(|_| bytes > 0) {
                count(controller, bytes);
            }
        };
        count(Resuming::accept, bytes);
        let written = write();
        let taken = match &written {
            Poll::Ready(Ok(taken)) => *taken,
            _ => 0,
        };
        count(Resuming::retract, bytes - taken.min(bytes));
        if taken > 0 {
            self.accept(taken);
        }
        written
    }

    fn accept(&self, bytes: usize) {
        self.share.borrow_mut().accept(bytes, || {
            let room = self.connection.datagram_send_buffer_space();
            (self.counters(), DATAGRAMS_UNSENT.saturating_sub(room))
        });
    }

    /// Returns true if datagrams have a share in the bytes of the connection now.
    fn permits_datagram(&self) -> bool {
        let permitted = self.share.borrow_mut().permits(|| self.counters());
        permitted || self.connection.close_reason().is_some()
    }

    fn counters(&self) -> Counters {
        let stats = self.connection.stats();
        Counters {
            sent: stats.udp_tx.bytes,
            lost: stats.path.lost_bytes,
            idle: Resuming::of(&self.connection).map_or(0, |controller| controller.idle()),
        }
    }

    /// Keeps the bytes that the connection holds near those that are on their way, so that no
    /// stream takes the whole buffer. [`crate::unsent`] limits the unsent ones of a session.
    pub(crate) fn adapt_send_window(&self) {
        let now = Instant::now();
        if self.adapted.get().is_some_and(|at| now - at < ADAPT) {
            return;
        }
        self.adapted.set(Some(now));
        let window = self.connection.stats().path.cwnd;
        self.connection.set_send_window(send_window(window));
    }
}

/// Returns the bytes that a connection with this congestion window may hold for sending.
fn send_window(window: u64) -> u64 {
    // Bytes behind a lost packet stay in the buffer for another round trip.
    let room = window.saturating_mul(3).saturating_add(LEAST_SEND_WINDOW);
    room.min(MOST_SEND_WINDOW)
}

/// The facts about a connection.
struct ConnectionFacts {
    connection: Connection,
    alpn: Vec<u8>,
    window: Rc<RefCell<Window>>,
    /// The hash of the peer's certificate, which is known once the handshake is over.
    certificate: OnceCell<[u8; 32]>,
}

impl ConnectionFacts {
    fn new(connection: &Connection, alpn: &[u8], window: &Rc<RefCell<Window>>) -> Self {
        Self {
            connection: connection.clone(),
            alpn: alpn.to_vec(),
            window: Rc::clone(window),
            certificate: OnceCell::new(),
        }
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    hash
}

impl Facts for ConnectionFacts {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        Some(self.connection.remote_address())
    }

    fn measure(&self) -> Option<Measure> {
        let round_trip = self.connection.min_rtt().as_secs_f64();
        let window = self.connection.stats().path.cwnd;
        (round_trip > 0.0).then(|| Measure {
            round_trip,
            rate: window as f64 / self.connection.rtt().as_secs_f64().max(round_trip),
        })
    }

    fn smoothed_round_trip(&self) -> Option<Duration> {
        Some(self.connection.rtt())
    }

    fn is_over_bbr(&self) -> bool {
        Resuming::of(&self.connection).is_some_and(|controller| controller.is_bbr())
    }

    fn speed(&self) -> Option<SavedSpeed> {
        Resuming::of(&self.connection)?.speed()
    }

    fn resume(&self, saved: SavedSpeed) -> Option<Trial> {
        let controller = Resuming::of(&self.connection)?;
        let trial = controller.offer(Instant::now(), saved)?;
        // This also wakes the connection, which may send more now.
        let window = send_window(controller.window());
        self.connection.set_send_window(window);
        Some(trial)
    }

    fn alpn(&self) -> Option<&[u8]> {
        Some(&self.alpn)
    }

    fn datagrams_received(&self) -> Option<u64> {
        Some(self.connection.stats().udp_rx.datagrams)
    }

    fn bytes_received(&self) -> Option<u64> {
        Some(self.connection.stats().udp_rx.bytes)
    }

    fn acknowledgements(&self) -> Option<u64> {
        Some(self.connection.stats().frame_rx.acks)
    }

    fn admitted(&self) {
        let size = self.window.borrow_mut().widen(ADMITTED);
        self.connection.set_receive_window(VarInt::from_u32(size));
    }

    fn has_peer_certificate(&self) -> bool {
        self.peer_certificate().is_some()
    }

    fn peer_certificate(&self) -> Option<[u8; 32]> {
        if let Some(known) = self.certificate.get() {
            return Some(*known);
        }
        let identity = self.connection.peer_identity()?;
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        let hash = chain.first().map(|it| sha256(it))?;
        Some(*self.certificate.get_or_init(|| hash))
    }
}

/// A connection that takes streams. It ends when this and all its streams are dropped.
pub(crate) struct QuicCarrier {
    shared: Rc<Shared>,
    facts: Rc<dyn Facts>,
    opening: [Waiting<Opened>; 2],
    accepting: [Waiting<Accepted>; 2],
    /// A stream that the other end opened before the handshake was over.
    first: RefCell<Option<CarrierStream>>,
    datagrams: Waiting<Option<Bytes>>,
    /// The datagram that waits until the connection takes it.
    unsent: RefCell<Option<Bytes>>,
    sending: Waiting<()>,
    /// The time at which a session that waits for room asks again.
    asks_again: RefCell<Option<Pin<Box<Sleep>>>>,
    /// Values that live as long as the connection.
    _alive: Box<dyn std::any::Any>,
}

impl QuicCarrier {
    /// Takes a connection to `side`.
    pub(crate) fn new(
        connection: Connection,
        alpn: &[u8],
        side: Side,
        early: Option<Early>,
        alive: impl std::any::Any,
    ) -> Self {
        let bounds = match side {
            Side::Client => NEWCOMER,
            _ => CLIENT,
        };
        let window = Rc::new(RefCell::new(Window::new(bounds)));
        Self {
            facts: Rc::new(ConnectionFacts::new(&connection, alpn, &window)),
            shared: Rc::new(Shared {
                connection,
                side,
                adapted: Cell::new(None),
                share: RefCell::default(),
                window,
                early,
                watch: OnceCell::new(),
            }),
            opening: [Waiting::new(), Waiting::new()],
            accepting: [Waiting::new(), Waiting::new()],
            first: RefCell::new(None),
            datagrams: Waiting::new(),
            unsent: RefCell::new(None),
            sending: Waiting::new(),
            asks_again: RefCell::new(None),
            _alive: Box::new(alive),
        }
    }

    /// Takes the watch over the sockets of a client, which tells why the connection has ended.
    pub(crate) fn watched_by(self, watch: Arc<Watch>) -> Self {
        watch.control(&self.shared.connection);
        self.shared.watch.get_or_init(|| watch);
        self
    }

    /// Resolves once the handshake is over, or the other end has sent early data.
    pub(crate) async fn begun(&self) -> Result<(), Error> {
        poll_fn(|cx| {
            if let Poll::Ready(over) = self.poll_confirmed(cx) {
                return Poll::Ready(over);
            }
            if let Poll::Ready(Ok(Some(stream))) = self.poll_accept(cx) {
                self.first.replace(Some(stream));
                return Poll::Ready(Ok(()));
            }
            Poll::Pending
        })
        .await
    }

    /// Keeps a value until the handshake is over.
    pub(crate) fn hold_while_early(&self, value: impl std::any::Any) {
        if let Some(early) = self.shared.early() {
            early.hold(value);
        }
    }

    /// Returns a stream of this connection, which this end opens in `opened`.
    fn stream(
        &self,
        send: Option<quinn::SendStream>,
        receive: Option<RecvStream>,
        opened: Option<Direction>,
    ) -> CarrierStream {
        let id = send.as_ref().map(|stream| stream.id());
        let id = id.or_else(|| receive.as_ref().map(|stream| stream.id()));
        let id = id.map_or(0, |id| VarInt::from(id).into_inner());
        // A server sends nothing that its client could reject.
        let is_client = self.shared.side != Side::Client;
        let early = opened
            .filter(|_| is_client)
            .and_then(|direction| Some(self.shared.early()?.add(id, direction)));
        let shared = || (Rc::clone(&self.shared), early.clone());
        let sending = |stream| {
            let (shared, early) = shared();
            Box::new(Sending::new(stream, shared, early)) as _
        };
        let receiving = |stream| {
            let (shared, early) = shared();
            Box::new(Receiving::new(stream, shared, early)) as _
        };
        CarrierStream {
            id,
            send: send.map(sending),
            receive: receive.map(receiving),
        }
    }
}

impl Streams for QuicCarrier {
    fn facts(&self) -> &Rc<dyn Facts> {
        &self.facts
    }

    fn is_confirmed(&self) -> bool {
        self.shared.early().is_none()
    }

    fn poll_confirmed(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let shared = &self.shared;
        let early = shared.early.as_ref();
        early.map_or(Poll::Ready(Ok(())), |early| {
            early.poll(&shared.connection, shared.side, cx)
        })
    }

    fn has_ended(&self) -> bool {
        self.shared.connection.close_reason().is_some()
    }

    fn poll_open(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
    ) -> Poll<Result<CarrierStream, Error>> {
        // After a rejection, the streams so far are opened again before others.
        if let Poll::Ready(Err(error)) = self.poll_confirmed(cx) {
            return Poll::Ready(Err(error));
        }
        let connection = self.shared.connection.clone();
        let both = direction == Direction::Bidirectional;
        let opened = self.opening[direction as usize].poll(cx, || async move {
            if both {
                let (send, receive) = connection.open_bi().await?;
                Ok((send, Some(receive)))
            } else {
                Ok((connection.open_uni().await?, None))
            }
        });
        opened.map(|opened| match opened {
            Ok((send, receive)) => Ok(self.stream(Some(send), receive, Some(direction))),
            Err(error) => Err(self.shared.error(&error).with_retry(Retry::Safe)),
        })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Option<CarrierStream>, Error>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Ok(Some(first)));
        }
        // The control streams come first, since requests depend on them.
        for direction in [Direction::Unidirectional, Direction::Bidirectional] {
            let connection = self.shared.connection.clone();
            let both = direction == Direction::Bidirectional;
            let accepted = self.accepting[direction as usize].poll(cx, || async move {
                if both {
                    let (send, receive) = connection.accept_bi().await?;
                    Ok((Some(send), receive))
                } else {
                    Ok((None, connection.accept_uni().await?))
                }
            });
            if let Poll::Ready(accepted) = accepted {
                return Poll::Ready(match accepted {
                    Ok((send, receive)) => Ok(Some(self.stream(send, Some(receive), None))),
                    Err(error) if self.shared.is_regular(&error) => Ok(None),
                    Err(error) => Err(self.shared.error(&error)),
                });
            }
        }
        Poll::Pending
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let connection = &self.shared.connection;
        let controller = Resuming::of(connection).filter(|_| !self.has_ended());
        let room = controller.map_or(Poll::Ready(()), |controller| controller.poll_room(cx));
        let mut asks_again = self.asks_again.borrow_mut();
        if room.is_ready() {
            *asks_again = None;
            return room;
        }
        // quinn keeps the controller of a path that the peer has left, and it wakes nobody. The
        // controller of the new path answers the next call.
        let (round_trips, least) = ASK_AGAIN;
        let at = tokio::time::Instant::now() + least.max(connection.rtt() * round_trips);
        let sleep = asks_again.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        sleep.as_mut().reset(at);
        // The time is not over yet.
        let _ = sleep.as_mut().poll(cx);
        Poll::Pending
    }

    fn hold_unread(&self, streams: usize) -> bool {
        let reports = self.shared.connection.stats().frame_rx.data_blocked;
        let held = self.shared.window.borrow_mut().hold(streams, reports);
        if let Some(size) = held.size {
            self.shared.resize_window(size);
        }
        if held.announces {
            // quinn announces all credit when the window grows.
            let size = self.shared.window.borrow().size();
            self.shared.resize_window(size - 1);
            self.shared.resize_window(size);
        }
        held.is_full
    }

    fn max_datagram(&self) -> Option<usize> {
        self.shared.connection.max_datagram_size()
    }

    fn poll_datagram_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let unsent = self.unsent.take();
        if self.sending.is_idle() && unsent.is_none() && self.shared.permits_datagram() {
            return Poll::Ready(());
        }
        let shared = Rc::clone(&self.shared);
        self.sending.poll(cx, || async move {
            if let Some(datagram) = unsent {
                let bytes = datagram.len();
                let sent = shared.connection.send_datagram_wait(datagram).await;
                // It is lost if the path has become narrower, or with the connection.
                if sent.is_err()
                    && let Some(controller) = Resuming::of(&shared.connection)
                {
                    controller.retract_datagram(bytes);
                }
            }
            while !shared.permits_datagram() {
                tokio::time::sleep(SHARE_WAIT).await;
            }
        })
    }

    fn send_datagram(&self, datagram: Bytes) -> bool {
        let connection = &self.shared.connection;
        self.shared.share.borrow_mut().charge(datagram.len());
        let bytes = datagram.len();
        let controller = Resuming::of(connection);
        if let Some(controller) = &controller {
            controller.accept_datagram(bytes);
        }
        let taken = if connection.datagram_send_buffer_space() >= bytes {
            connection.send_datagram(datagram).is_ok()
        } else {
            self.unsent.replace(Some(datagram)).is_none()
        };
        if let Some(controller) = controller.filter(|_| !taken) {
            controller.retract_datagram(bytes);
        }
        taken
    }

    fn poll_datagram(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let connection = self.shared.connection.clone();
        let next = || async move { connection.read_datagram().await.ok() };
        self.datagrams.poll(cx, next)
    }

    /// quinn sends no PING frame on request. HTTP/3 sends one of its own frames.
    fn probe(&self) -> bool {
        false
    }

    fn close(&self, code: Code, reason: &str) {
        self.shared
            .connection
            .close(number(code), reason.as_bytes());
    }
}
