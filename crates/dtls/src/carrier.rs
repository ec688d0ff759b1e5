//! A DTLS association as a carrier of many streams: the task that moves its datagrams, and the
//! streams that sessions use.
//!
//! All of it is on one thread. A stream's call changes the tunnel and wakes the task, which sends
//! the datagrams that are due and wakes the streams that can go on.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tandem::carrier::{CarrierStream, Code, Direction, Streams};
use tandem::error::{Error, Kind, Retry, Side};
use tandem::metrics::METRICS;
use tandem::path::Facts;
use tandem_http::flood::FloodBudget;
use tandem_tunnel::{Closed, Event, StreamId};
use tokio::sync::Notify;

use crate::association::{Association, AssociationError};
use crate::certificates::refusal_of;
use crate::socket::{After, Socket};
use crate::stream::{Receiving, Sending};

/// The datagrams that are sent or received before other tasks of the thread run.
const BATCH: usize = 64;
/// The code that ends an association for too much work, as in HTTP/3 (RFC 9114, section 8.1).
const EXCESSIVE_LOAD: u32 = 0x107;
/// The time that streams have to end after the carrier was dropped.
const LINGER: Duration = Duration::from_secs(3);
/// The failures of the socket in a row, without a datagram between them, that end an association.
const MAX_FAILURES: u32 = 3;

/// The state of one stream that the application uses.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) read: Option<Waker>,
    pub(crate) write: Option<Waker>,
    pub(crate) stopped: Option<Waker>,
    /// The code with which the peer reset the stream.
    pub(crate) reset: Option<u32>,
    /// True once the peer has everything.
    pub(crate) finished: bool,
    /// True if input is thrown away, since the application no longer reads.
    pub(crate) discard: bool,
    /// True once the application has read the end of the peer's data.
    pub(crate) ended: bool,
    /// The halves that the application holds.
    pub(crate) halves: u8,
}

impl Entry {
    fn wake(&mut self) {
        let wakers = [self.read.take(), self.write.take(), self.stopped.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// The association and everything around it.
pub(crate) struct Shared {
    pub(crate) association: RefCell<Association>,
    pub(crate) streams: RefCell<HashMap<StreamId, Entry>>,
    opened: RefCell<VecDeque<StreamId>>,
    waiting: RefCell<Vec<Waker>>,
    ended: RefCell<Option<Error>>,
    /// True if this end or the peer has closed the association regularly.
    regular: Cell<bool>,
    /// True once the carrier was dropped.
    dropped: Cell<bool>,
    pub(crate) work: Notify,
    /// The resets that a client may cause (RFC 9114, section 10.5).
    flood: RefCell<FloodBudget>,
    facts: Rc<dyn Facts>,
    side: Side,
    /// The streams that this end may have open.
    max_streams: usize,
}

/// The facts about an association.
#[derive(Debug)]
struct AssociationFacts {
    peer: Cell<SocketAddr>,
    has_peer_certificate: Cell<bool>,
}

impl Facts for AssociationFacts {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        Some(self.peer.get())
    }

    fn has_peer_certificate(&self) -> bool {
        self.has_peer_certificate.get()
    }
}

impl Shared {
    /// Returns true once the association has ended. No call of its tunnel then wakes a stream.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Returns the error of the streams once the association has ended.
    pub(crate) fn error(&self) -> io::Error {
        let error = self.ended.borrow().clone();
        error
            .unwrap_or_else(|| Error::new(Kind::Reset, self.side, "the stream has ended"))
            .into_io()
    }

    fn end(&self, error: &AssociationError) {
        if self.ended.borrow().is_some() {
            return;
        }
        if let Some(problem) = tls_error(error) {
            return self.fail(Error::io(&io::Error::other(problem), self.side));
        }
        let kind = match error {
            AssociationError::Certificate(_) | AssociationError::Dtls(_) => Kind::Tls,
            AssociationError::Closed(Closed::TimedOut) => Kind::Timeout,
            AssociationError::Closed(_) | AssociationError::Unknown => Kind::Reset,
        };
        let regular = matches!(
            error,
            AssociationError::Closed(Closed::Local | Closed::Peer(0))
        );
        self.regular.set(regular);
        self.fail(Error::new(kind, self.side, error.to_string()));
    }

    fn fail(&self, error: Error) {
        let error = error.with_retry(Retry::IfIdempotent);
        self.ended.borrow_mut().get_or_insert(error);
        self.streams.borrow_mut().values_mut().for_each(Entry::wake);
        self.wake_waiting();
    }

    /// Wakes the tasks that wait for a stream or for the handshake.
    pub(crate) fn wake_waiting(&self) {
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    fn wait(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    /// Passes the tunnel's events on.
    fn dispatch(&self) {
        loop {
            let event = self.association.borrow_mut().tunnel().poll_event();
            let Some(event) = event else { return };
            match event {
                Event::Opened(id) => {
                    self.opened.borrow_mut().push_back(id);
                    self.wake_waiting();
                }
                Event::Readable(id) => self.on_readable(id),
                Event::Writable(id) => self.with_entry(id, |entry| {
                    if let Some(waker) = entry.write.take() {
                        waker.wake();
                    }
                }),
                Event::Finished(id) => {
                    self.flood.borrow_mut().credit_exchange();
                    self.with_entry(id, |entry| {
                        entry.finished = true;
                        if let Some(waker) = entry.stopped.take() {
                            waker.wake();
                        }
                    });
                }
                Event::Reset(id, code) => {
                    self.with_entry(id, |entry| {
                        entry.reset = Some(code);
                        entry.wake();
                    });
                    self.charge_reset();
                }
                // `Association::ended` tells the reason.
                Event::Closed(_) => {}
            }
        }
    }

    /// Ends the association of a client that resets too many streams.
    fn charge_reset(&self) {
        let mut association = self.association.borrow_mut();
        if association.side() == tandem_tunnel::Side::Client {
            return;
        }
        let mut flood = self.flood.borrow_mut();
        flood.advance(Instant::now());
        flood.charge_reset();
        if flood.check().is_err() {
            association.close(EXCESSIVE_LOAD);
        }
    }

    fn with_entry(&self, id: StreamId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.streams.borrow_mut().get_mut(&id) {
            change(entry);
        }
    }

    fn on_readable(&self, id: StreamId) {
        let discard = match self.streams.borrow_mut().get_mut(&id) {
            Some(entry) if !entry.discard => {
                if let Some(waker) = entry.read.take() {
                    waker.wake();
                }
                false
            }
            Some(_) => true,
            // The stream waits to be accepted, or both halves were dropped.
            None => !self.opened.borrow().contains(&id),
        };
        if discard {
            self.discard(id);
        }
    }

    /// Throws the input of a stream away.
    pub(crate) fn discard(&self, id: StreamId) {
        let mut association = self.association.borrow_mut();
        let now = association.tunnel_time(Instant::now());
        let tunnel = association.tunnel();
        while let Ok(tandem_tunnel::Read::Data(_)) = tunnel.read(now, id, usize::MAX) {}
    }

    /// Returns the halves of a stream.
    fn halves(self: &Rc<Self>, id: StreamId) -> CarrierStream {
        let entry = Entry {
            halves: 2,
            ..Entry::default()
        };
        self.streams.borrow_mut().insert(id, entry);
        CarrierStream {
            id: u64::from(id.get()),
            send: Some(Box::new(Sending::new(Rc::clone(self), id))),
            receive: Some(Box::new(Receiving::new(Rc::clone(self), id))),
        }
    }

    /// Returns true if nothing is left to send after the carrier was dropped.
    fn is_done(&self, dropped_at: &mut Option<Instant>, now: Instant) -> bool {
        if !self.dropped.get() || !self.streams.borrow().is_empty() {
            return false;
        }
        let since = *dropped_at.get_or_insert(now);
        let mut association = self.association.borrow_mut();
        !association.is_connected()
            || association.tunnel().open_streams() == 0
            || now.saturating_duration_since(since) >= LINGER
    }
}

/// Returns the error of TLS that the end of an association is equal to, which has the words and
/// remedies of the transport `tls`.
fn tls_error(error: &AssociationError) -> Option<rustls::Error> {
    match error {
        AssociationError::Certificate(problem) => Some(problem.clone()),
        AssociationError::Closed(Closed::Peer(code)) => {
            refusal_of(*code).map(rustls::Error::AlertReceived)
        }
        _ => None,
    }
}

/// The carrier, which ends with its streams once it is dropped.
pub(crate) struct Carried(Rc<Shared>);

impl Carried {
    /// Begins to move the datagrams of an association over a socket. `side` is at fault for its
    /// errors. This end may have `max_streams` streams open.
    pub(crate) fn new(
        association: Association,
        socket: Socket,
        side: Side,
        max_streams: usize,
        alive: impl Sized + 'static,
    ) -> Self {
        let facts = Rc::new(AssociationFacts {
            peer: Cell::new(association.remote()),
            has_peer_certificate: Cell::new(false),
        });
        let shared = Rc::new(Shared {
            association: RefCell::new(association),
            streams: RefCell::default(),
            opened: RefCell::default(),
            waiting: RefCell::default(),
            ended: RefCell::default(),
            regular: Cell::new(false),
            dropped: Cell::new(false),
            work: Notify::new(),
            flood: RefCell::new(FloodBudget::new()),
            facts: Rc::clone(&facts) as _,
            side,
            max_streams,
        });
        let driver = Driver {
            shared: Rc::clone(&shared),
            socket,
            facts,
            announced: false,
            dropped_at: None,
            failures: 0,
            out: Vec::new(),
        };
        tokio::task::spawn_local(async move {
            let _alive = alive;
            driver.run().await;
        });
        Self(shared)
    }

    /// Waits for the end of the handshake. A peer that closes the association right after it, for
    /// example because it drains, was still reached.
    pub(crate) async fn connected(&self) -> Result<(), Error> {
        poll_fn(|cx| {
            let association = self.0.association.borrow();
            if let Some(error) = association.refused() {
                let error = Error::new(Kind::Tls, self.0.side, error.to_string());
                return Poll::Ready(Err(error));
            }
            if association.is_connected() {
                return Poll::Ready(Ok(()));
            }
            drop(association);
            if let Some(error) = &*self.0.ended.borrow() {
                return Poll::Ready(Err(error.clone().with_retry(Retry::Safe)));
            }
            self.0.wait(cx);
            Poll::Pending
        })
        .await
    }
}

impl Streams for Carried {
    fn facts(&self) -> &Rc<dyn Facts> {
        &self.0.facts
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    fn poll_open(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
    ) -> Poll<Result<CarrierStream, Error>> {
        if let Some(error) = &*self.0.ended.borrow() {
            return Poll::Ready(Err(error.clone().with_retry(Retry::Safe)));
        }
        if direction == Direction::Unidirectional {
            let detail = "the streams of dtls have both directions";
            return Poll::Ready(Err(Error::new(Kind::Internal, Side::Local, detail)));
        }
        if self.0.streams.borrow().len() >= self.0.max_streams {
            self.0.wait(cx);
            return Poll::Pending;
        }
        let mut association = self.0.association.borrow_mut();
        let now = association.tunnel_time(Instant::now());
        let opened = association.tunnel().open(now);
        drop(association);
        Poll::Ready(match opened {
            Ok(id) => Ok(self.0.halves(id)),
            Err(error) => {
                let error = Error::new(Kind::Full, self.0.side, error.to_string());
                Err(error.with_retry(Retry::Safe))
            }
        })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Option<CarrierStream>, Error>> {
        if let Some(error) = &*self.0.ended.borrow() {
            return Poll::Ready(if self.0.regular.get() {
                Ok(None)
            } else {
                Err(error.clone())
            });
        }
        let id = self.0.opened.borrow_mut().pop_front();
        match id {
            Some(id) => Poll::Ready(Ok(Some(self.0.halves(id)))),
            None => {
                self.0.wait(cx);
                Poll::Pending
            }
        }
    }

    fn close(&self, code: Code, _: &str) {
        let code = u32::try_from(code.0).unwrap_or(u32::MAX);
        self.0.association.borrow_mut().close(code);
        self.0.work.notify_one();
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.dropped.set(true);
        self.0.work.notify_one();
    }
}

impl Drop for Driver {
    /// Tells the peer if the task ends with its thread.
    fn drop(&mut self) {
        let mut association = self.shared.association.borrow_mut();
        association.close(0);
        for _ in 0..BATCH {
            let to = association.poll_output(Instant::now(), &mut self.out);
            let Some(to) = to else { return };
            self.socket.try_send(to, &self.out);
        }
    }
}

/// Moves the datagrams of one association.
struct Driver {
    shared: Rc<Shared>,
    socket: Socket,
    facts: Rc<AssociationFacts>,
    /// True once the tasks that wait for the handshake were woken.
    announced: bool,
    dropped_at: Option<Instant>,
    failures: u32,
    out: Vec<u8>,
}

impl Driver {
    async fn run(mut self) {
        METRICS.dtls_associations.add(1);
        loop {
            let all = self.send().await;
            self.shared.dispatch();
            let (ended, wake_at, remote, connected, certified) = {
                let association = self.shared.association.borrow();
                if let Some(error) = association.ended() {
                    self.shared.end(error);
                }
                let ended = association.ended().is_some();
                let (remote, connected) = (association.remote(), association.is_connected());
                let certified = connected && association.has_peer_certificate();
                (
                    ended,
                    association.poll_timeout(),
                    remote,
                    connected,
                    certified,
                )
            };
            self.facts.peer.set(remote);
            self.facts.has_peer_certificate.set(certified);
            if connected && !self.announced {
                self.announced = true;
                self.shared.wake_waiting();
            }
            if ended || self.shared.ended.borrow().is_some() {
                break;
            }
            let now = Instant::now();
            if self.shared.is_done(&mut self.dropped_at, now) {
                let mut association = self.shared.association.borrow_mut();
                if !association.is_connected() {
                    drop(association);
                    let detail = "the handshake was given up";
                    self.shared
                        .fail(Error::new(Kind::Reset, self.shared.side, detail));
                    break;
                }
                association.close(0);
                continue;
            }
            self.wait(all, wake_at).await;
        }
        METRICS.dtls_associations.sub(1);
    }

    /// Sends the datagrams that are due. Returns false if more of them wait.
    async fn send(&mut self) -> bool {
        for _ in 0..BATCH {
            let now = Instant::now();
            let mut out = std::mem::take(&mut self.out);
            let to = self
                .shared
                .association
                .borrow_mut()
                .poll_output(now, &mut out);
            self.out = out;
            let Some(to) = to else { return true };
            match self.socket.send(to, &self.out).await {
                Ok(()) => METRICS.dtls_datagrams_sent.add(1),
                Err(error) => self.on_failure(&error),
            }
        }
        false
    }

    /// Acts on an error of the socket. A datagram that could not be sent counts as lost.
    fn on_failure(&mut self, error: &io::Error) {
        match self.socket.after(error) {
            After::Ignore => {}
            After::Moved => {
                let mut association = self.shared.association.borrow_mut();
                let now = association.tunnel_time(Instant::now());
                association.tunnel().path_changed(now);
            }
            After::Refused => {
                self.failures += 1;
                let connected = self.shared.association.borrow().is_connected();
                if !connected || self.failures >= MAX_FAILURES {
                    self.shared.fail(Error::io(error, self.shared.side));
                }
            }
        }
    }

    /// Waits for a datagram, a call of a stream or a timer.
    async fn wait(&mut self, all_sent: bool, wake_at: Option<Instant>) {
        if !all_sent {
            tokio::task::yield_now().await;
        }
        let linger = self.dropped_at.map(|at| at + LINGER);
        let wake_at = if all_sent {
            wake_at.into_iter().chain(linger).min()
        } else {
            Some(Instant::now())
        };
        let timer = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let shared = Rc::clone(&self.shared);
        let received = tokio::select! {
            biased;
            received = self.socket.receive() => Some(received),
            () = shared.work.notified() => None,
            () = timer => None,
        };
        if let Some(received) = received {
            self.take(received);
            // More datagrams are often there already.
            for _ in 1..BATCH {
                match self.socket.try_receive() {
                    Some(received) => self.take(received),
                    None => break,
                }
            }
        }
        shared
            .association
            .borrow_mut()
            .handle_timeout(Instant::now());
    }

    fn take(&mut self, received: io::Result<(SocketAddr, Vec<u8>)>) {
        match received {
            Ok((from, datagram)) => {
                METRICS.dtls_datagrams_received.add(1);
                self.failures = 0;
                let now = Instant::now();
                let mut association = self.shared.association.borrow_mut();
                association.handle_datagram(now, from, &datagram);
            }
            Err(error) => self.on_failure(&error),
        }
    }
}
