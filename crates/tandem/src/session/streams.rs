//! HTTP/1.1 with a stream for each exchange, over a carrier with many streams.
//!
//! ```text
//!  exchange ─▶ request or CONNECT (RFC 9112) ─▶ stream ─▶ gateway: an HTTP/1.1 server per stream
//! ```
//!
//! A lost packet or a slow reader of one stream never delays another. The client tells the urgency
//! of an exchange (RFC 9218) in the field `tandem-urgency`, which orders the streams of the
//! gateway. The session carries no pushes, and its heads are not compressed.
//!
//! Trailers of a response with a length follow its content, as a last chunk without a size. Only a
//! client that asks for trailers (`te: trailers`) reads beyond the content.
//!
//! HTTP/1.1 has no pings, so the carrier probes the path ([`Streams::probe`]).

mod io;

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tandem_http::Priority;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::admission::ClientAdmission;
use super::http1::{Http1Client, Http1Server, Http1Session};
use super::idle_check::{IdleCheck, InputTime};
use super::path_watch::{PathWaiter, PathWatch, WatchedPath, datagrams_received};
use super::{
    Connect, Connected, Drain, Probing, Serve, SessionEvents, SessionState, Task, header_list,
};
use crate::carrier::{
    Carrier, CarrierFuture, CarrierStream, Code, Direction, LocalBoxFuture, Streams,
};
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Exchange, Part, Peer, Reply, SessionMark, Sink};
use crate::path::{Facts, Path};
use crate::priority::Precedence;
use crate::renewal::Renewable;
use crate::stage::Stage;
use io::{Handle, into_path};

/// The code of a stream that was not processed, which HTTP/3 calls H3_REQUEST_REJECTED.
const REJECTED: Code = Code(0x10b);
/// The field that carries the urgency of an exchange.
const URGENCY: &str = "tandem-urgency";
/// The bytes that a field uses at least. HTTP/2 counts as many for its structure (RFC 9113 section
/// 6.5.2), so that heads which another session has carried are not refused here.
const LEAST_FIELD: usize = 32;
/// The time that a request waits for a stream if the carrier permits no more at present.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a gateway refuses requests before it closes the carrier. Their client did not
/// know of the end, and repeats a refused request on another session.
const FAREWELL: Duration = Duration::from_secs(1);

/// The session protocol.
#[derive(Clone, Debug)]
pub struct StreamsSession {
    http1: Http1Session,
    /// The access token that the client sends until the gateway has accepted it.
    token: Option<Arc<Renewable<String>>>,
}

impl StreamsSession {
    /// Creates the protocol from that of its streams. A client sends `token` with its requests
    /// until the gateway has accepted one of them.
    pub const fn new(mut http1: Http1Session, token: Option<Arc<Renewable<String>>>) -> Self {
        http1.limits.fields = http1.limits.head / LEAST_FIELD;
        http1.response_limits.head = header_list(http1.response_limits.head);
        http1.response_limits.fields = http1.response_limits.head / LEAST_FIELD;
        http1.one_exchange = true;
        Self { http1, token }
    }
}

impl Connect for StreamsSession {
    fn connect(&self, dial: CarrierFuture<'static>) -> Rc<dyn Connected> {
        let state = Rc::new(StreamsState::default());
        let shared = Rc::clone(&state);
        let idle = self.http1.timeouts.idle;
        let task = Task::spawn(async move {
            let ended = shared.watch(dial, idle).await;
            shared.ended.get_or_init(|| ended);
            shared.changed.notify_waiters();
        });
        Rc::new(StreamsClient {
            http1: self.http1.clone(),
            admission: ClientAdmission::new(self.token.clone()),
            idle_check: IdleCheck::new(&self.http1.timeouts),
            path_watch: PathWatch::new(Rc::clone(&state) as _),
            state,
            _task: task,
        })
    }
}

impl Serve for StreamsSession {
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
            let server = StreamsServer {
                http1,
                peer,
                stage,
                active: Rc::new(Active::default()),
            };
            server.run(&*streams, drain).await
        })
    }
}

/// The exchanges under way.
#[derive(Default)]
struct Active {
    count: Cell<usize>,
    changed: Notify,
}

/// An exchange under way, until it is dropped.
struct ActiveGuard(Rc<Active>);

impl ActiveGuard {
    fn new(active: &Rc<Active>) -> Self {
        active.count.set(active.count.get() + 1);
        active.changed.notify_waiters();
        Self(Rc::clone(active))
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.changed.notify_waiters();
    }
}

impl Active {
    /// Resolves when no exchange is under way.
    async fn none(&self) {
        loop {
            let changed = self.changed.notified();
            if self.count.get() == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Resolves when no exchange has been under way for `limit`.
    async fn idle_for(&self, limit: Duration) {
        loop {
            self.none().await;
            let changed = self.changed.notified();
            if tokio::time::timeout(limit, changed).await.is_err() {
                return;
            }
        }
    }
}

/// The gateway's end of one carrier.
struct StreamsServer {
    http1: Http1Session,
    peer: Peer,
    stage: Rc<dyn Stage>,
    active: Rc<Active>,
}

impl StreamsServer {
    /// Serves each stream that the client opens, until the carrier ends, or a drain began and the
    /// last exchange has ended.
    async fn run(&self, streams: &dyn Streams, drain: Drain) -> Result<(), Error> {
        let idle = self.http1.timeouts.idle;
        let end = async {
            tokio::select! {
                () = self.active.idle_for(idle) => {}
                () = async {
                    drain.begun().await;
                    self.active.none().await;
                } => {}
            }
        };
        let mut end = std::pin::pin!(end);
        loop {
            let stream = tokio::select! {
                biased;
                stream = poll_fn(|cx| streams.poll_accept(cx)) => stream?,
                () = &mut end => break,
            };
            let Some(stream) = stream else { return Ok(()) };
            if drain.has_begun() {
                refuse(stream);
            } else {
                self.serve_stream(stream, streams.facts());
            }
        }
        // An error means that the carrier has ended, as the session is about to.
        let _ = tokio::time::timeout(FAREWELL, refuse_all(streams)).await;
        streams.close(Code(0), "the session has ended");
        Ok(())
    }

    fn serve_stream(&self, stream: CarrierStream, facts: &Rc<dyn Facts>) {
        let Some((path, handle)) = into_path(stream, facts) else {
            return;
        };
        let (next, stream) = (Rc::clone(&self.stage), handle.clone());
        let stage = move |mut exchange: Exchange| {
            if let Some(urgency) = urgency(&exchange) {
                exchange.request_mut().fields.remove(URGENCY);
                handle.set_priority(urgency);
                exchange.priority.set(Precedence::request(urgency));
            }
            next.call(exchange)
        };
        let server = Http1Server::new(self.http1.clone(), path, self.peer, Rc::new(stage));
        let guard = ActiveGuard::new(&self.active);
        tokio::task::spawn_local(async move {
            let _guard = guard;
            // Each stream carries one exchange, and ends after it.
            let once = Drain::new();
            once.begin();
            if let Err(error) = server.run(once).await {
                tracing::trace!(%error, "stream ended");
            }
            // The end of the session would throw away bytes that are still on their way.
            stream.delivered().await;
        });
    }
}

/// Resets a stream as one that was not processed.
fn refuse(mut stream: CarrierStream) {
    if let Some(receive) = &mut stream.receive {
        receive.stop(REJECTED);
    }
    if let Some(send) = &mut stream.send {
        send.reset(REJECTED);
    }
}

/// Refuses all streams that the peer opens, until the carrier ends.
async fn refuse_all(streams: &dyn Streams) -> Result<(), Error> {
    while let Some(stream) = poll_fn(|cx| streams.poll_accept(cx)).await? {
        refuse(stream);
    }
    Ok(())
}

fn urgency(exchange: &Exchange) -> Option<Priority> {
    match exchange.request.fields.get(URGENCY)? {
        [digit @ b'0'..=b'7'] => Some(Priority(digit - b'0')),
        _ => None,
    }
}

/// The state of a client's session.
#[derive(Default)]
struct StreamsState {
    /// The carrier, once it is connected.
    connected: OnceCell<Rc<dyn Streams>>,
    /// The reason of the end.
    ended: OnceCell<Error>,
    changed: Notify,
    active: Rc<Active>,
    draining: Cell<bool>,
    established: Cell<bool>,
    /// True if this end closed the session.
    closed_here: Cell<bool>,
    answered_in: Cell<Option<Duration>>,
    /// The time of the last input of the other end.
    heard: Cell<Option<InputTime>>,
}

impl StreamsState {
    /// Dials, and watches the carrier until it ends, with the reason.
    async fn watch(&self, dial: CarrierFuture<'static>, idle: Duration) -> Error {
        let begun = Instant::now();
        let streams = match dial.await.and_then(Carrier::into_streams) {
            Ok(streams) => streams,
            Err(error) => return error,
        };
        self.answered_in.set(Some(begun.elapsed()));
        self.established.set(true);
        self.hear();
        let streams = self.connected.get_or_init(|| streams);
        self.changed.notify_waiters();
        tokio::select! {
            // A gateway opens no streams.
            ended = refuse_all(&**streams) => ended.err().unwrap_or_else(closed),
            () = self.active.idle_for(idle) => self.close(&**streams),
            () = self.drained() => self.close(&**streams),
        }
    }

    fn close(&self, streams: &dyn Streams) -> Error {
        self.closed_here.set(true);
        streams.close(Code(0), "the session has ended");
        closed()
    }

    /// Resolves when the session drains and its last exchange has ended.
    async fn drained(&self) {
        loop {
            let changed = self.changed.notified();
            if self.draining.get() {
                return self.active.none().await;
            }
            changed.await;
        }
    }

    /// Returns the carrier once it is connected.
    async fn streams(&self) -> Result<Rc<dyn Streams>, Error> {
        loop {
            let changed = self.changed.notified();
            match (self.ended.get(), self.connected.get()) {
                (Some(error), _) => return Err(error.clone()),
                (None, Some(streams)) => return Ok(Rc::clone(streams)),
                (None, None) => {}
            }
            changed.await;
        }
    }

    fn drain(&self) {
        self.draining.set(true);
        self.changed.notify_waiters();
    }

    /// Notes input of the other end.
    fn hear(&self) {
        let now = std::time::Instant::now();
        self.heard.set(Some(InputTime::at(now)));
    }
}

impl WatchedPath for StreamsState {
    fn facts(&self) -> Option<Rc<dyn Facts>> {
        match self.ended.get() {
            Some(_) => None,
            None => (self.connected.get()).map(|streams| Rc::clone(streams.facts())),
        }
    }

    fn ended(&self) -> Option<Error> {
        self.ended.get().cloned()
    }

    fn heard(&self) -> Option<InputTime> {
        self.heard.get()
    }

    fn answered_in(&self) -> Duration {
        self.answered_in.get().unwrap_or_default()
    }

    fn probe(&self) -> bool {
        (self.connected.get()).is_some_and(|streams| streams.probe())
    }

    /// Does nothing: the carrier itself finds out that its path is lost.
    fn give_up(&self) {}
}

fn closed() -> Error {
    Error::new(Kind::Reset, Side::Peer, "the session was closed").with_retry(Retry::IfIdempotent)
}

/// The client's end of a session. Dropping it ends the session.
struct StreamsClient {
    http1: Http1Session,
    admission: ClientAdmission,
    /// The times without input, for [`SessionEvents::lost`].
    idle_check: IdleCheck,
    /// The observation of the path, for [`SessionEvents::silent`].
    path_watch: Rc<PathWatch>,
    state: Rc<StreamsState>,
    _task: Task,
}

impl StreamsClient {
    async fn open(&self, exchange: &Exchange) -> Result<(Path, Handle), Error> {
        // No byte of the request has been sent yet.
        let unsent = |error: Error| error.with_retry(Retry::Safe);
        let streams = self.state.streams().await.map_err(unsent)?;
        let opening = poll_fn(|cx| streams.poll_open(Direction::Bidirectional, cx));
        let stream = match tokio::time::timeout(STREAM_TIMEOUT, opening).await {
            Ok(stream) => stream.map_err(unsent)?,
            Err(_) => {
                let detail = "the session has as many streams as its carrier permits";
                return Err(unsent(Error::new(Kind::Full, Side::Peer, detail)));
            }
        };
        let facts = Rc::clone(streams.facts());
        let (path, handle) = into_path(stream, &facts).ok_or_else(|| {
            Error::new(Kind::Internal, Side::Local, "the stream lacks a direction")
        })?;
        handle.set_priority(exchange.priority.get().priority);
        Ok((path, handle))
    }

    /// Returns the exchange as it is sent, with the fields for the gateway.
    fn for_gateway(&self, exchange: &Exchange) -> Exchange {
        let mut request = Arc::clone(&exchange.request);
        if let Some(field) = self.admission.field() {
            let fields = &mut Arc::make_mut(&mut request).fields;
            fields.push("proxy-authorization", field);
        }
        let Priority(urgency) = exchange.priority.get().priority;
        if urgency != Priority::default().0 {
            let fields = &mut Arc::make_mut(&mut request).fields;
            fields.push(URGENCY, urgency.to_string());
        }
        Exchange {
            request,
            body: exchange.body.share(),
            isolation: exchange.isolation.clone(),
            peer: exchange.peer,
            priority: exchange.priority.clone(),
        }
    }

    /// Decides on the retry of an exchange that failed on its stream.
    fn failed(&self, error: Error, handle: &Handle) -> Error {
        // The body of the request comes from the client. Its failure is none of the gateway.
        let error = match error.side {
            Side::Client => error,
            _ => error.at(Side::Peer),
        };
        if handle.is_rejected() {
            // The gateway drains: the next exchange needs another session.
            self.state.drain();
            return error.with_retry(Retry::Safe);
        }
        error
    }
}

impl Connected for StreamsClient {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let _guard = ActiveGuard::new(&self.state.active);
            let (path, handle) = self.open(exchange).await?;
            let mut sent = self.for_gateway(exchange);
            let client = Http1Client::over(self.http1.clone(), path);
            let mut reply = Reply::generate(|mut parts| async move {
                let ran = client.run(&mut sent, &mut parts).await;
                drop(client);
                ran
            });
            while let Some(part) = reply.part().await {
                let part = part.map_err(|error| self.failed(error, &handle))?;
                self.state.hear();
                if let Part::Head(head) = &part {
                    self.admission.note(head)?;
                }
                sink.send(part).await;
            }
            Ok(())
        })
    }

    fn drain(&self) {
        self.state.drain();
    }

    fn replaced(&self) {
        self.drain();
    }

    fn give_up(&self) {
        self.drain();
    }
}

impl SessionState for StreamsClient {
    fn is_ready(&self) -> bool {
        !self.is_closed()
    }

    /// An exchange waits for its stream for a while only, and then gets another session.
    fn has_room(&self) -> bool {
        self.is_ready()
    }

    fn is_closed(&self) -> bool {
        // A failed stream may repeat its exchange before the task has seen the carrier's end.
        self.state.draining.get()
            || self.state.ended.get().is_some()
            || (self.state.connected.get()).is_some_and(|streams| streams.has_ended())
    }

    fn is_established(&self) -> bool {
        self.state.established.get()
    }

    fn active(&self) -> usize {
        self.state.active.count.get()
    }

    fn facts(&self) -> Option<Rc<dyn Facts>> {
        WatchedPath::facts(&*self.state)
    }

    fn was_idle(&self) -> bool {
        self.idle_check.is_due(self.state.heard.get())
    }

    /// The session carries no pushes.
    fn mark(&self) -> Option<Rc<SessionMark>> {
        None
    }

    fn admission(&self) -> Option<bool> {
        self.admission.decision()
    }

    fn answered_in(&self) -> Option<Duration> {
        self.state.answered_in.get()
    }
}

impl SessionEvents for StreamsClient {
    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async { self.state.streams().await.map(drop) })
    }

    /// The session sends no early data.
    fn takes_early<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        self.established()
    }

    fn ended(&self) -> LocalBoxFuture<'static, Option<Error>> {
        let state = Rc::clone(&self.state);
        Box::pin(async move {
            loop {
                let changed = state.changed.notified();
                if let Some(error) = state.ended.get() {
                    return (!state.closed_here.get()).then(|| error.clone());
                }
                changed.await;
            }
        })
    }

    fn lost<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.idle_check.until_lost(&*self.state))
    }

    /// A carrier that counts no datagrams cannot be asked again.
    fn answers<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async {
            if !self.is_established() || datagrams_received(&*self.state).is_none() {
                return self.established().await;
            }
            self.path_watch.until_answered().await
        })
    }

    fn watch_path(&self, probing: Probing) -> Option<PathWaiter> {
        self.path_watch.expect(probing)
    }

    fn silent<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.path_watch.until_silent())
    }

    fn dies<'a>(&'a self) -> LocalBoxFuture<'a, bool> {
        Box::pin(async { !self.is_established() || self.path_watch.until_dead().await })
    }

    fn recovers<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.path_watch.until_alive())
    }
}
