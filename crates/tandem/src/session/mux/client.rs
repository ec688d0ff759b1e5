//! The client end of a multiplexed session.

use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tandem_http::mux::OpenError;
use tandem_http::pushed::is_pushed;
use tandem_http::{Event, Priority, Reason, RequestHead, ResponseHead, Role, StreamId};

use super::core::Core;
use super::driver::{Driver, Owner, Pace};
use super::over_streams::StreamsDriver;
use super::refused::{STREAM_TIMEOUT, full};
use super::upload::{Uploaded, upload};
use super::{Inbound, MuxSession, Shared, ping};
use crate::carrier::{CarrierFuture, LocalBoxFuture};
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Exchange, Part, Parts, PushedPart, Reply, SessionMark, Sink};
use crate::path::Facts;
use crate::priority::{Precedence, PriorityWatch, SharedPriority};
use crate::probe::Stamp;
use crate::probe::points::{HEADERS_ENCODE, SESSION_DIAL, SESSION_STREAM};
use crate::session::admission::{ClientAdmission, foreign_challenge};
use crate::session::http1::DECLINED;
use crate::session::idle_check::{IdleCheck, InputTime};
use crate::session::path_watch::{PathWaiter, PathWatch, WatchedPath, datagrams_received};
use crate::session::{
    Connected, Probing, SessionEvents, SessionState, Task, check_protocol, may_be_early,
};

/// A multiplexed session that is open or being opened. Dropping it drains and closes the session.
pub struct MuxClient {
    pub(super) shared: Rc<Shared>,
    /// The access token. Requests carry it until the gateway has responded to one of them.
    admission: ClientAdmission,
    /// The times without input, for [`SessionEvents::lost`].
    idle_check: IdleCheck,
    /// The observation of the path, for [`SessionEvents::silent`].
    path_watch: Rc<PathWatch>,
}

impl std::fmt::Debug for MuxClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MuxClient")
            .field("active", &self.shared.core.borrow().active())
            .finish_non_exhaustive()
    }
}

impl MuxClient {
    /// Begins a session. The core queues requests while `dial` is under way.
    pub fn connect(session: &MuxSession, dial: CarrierFuture<'static>) -> Self {
        let core = session.new_core(Role::Client);
        let shared = Shared::new(core.mux(), session.protocol);
        let task_shared = Rc::clone(&shared);
        let pace = Pace {
            timeouts: session.timeouts.clone(),
            write_limit: session.write_limit,
        };
        let dialling = shared.watch.begin();
        tokio::task::spawn_local(drive(task_shared, core, dial, pace, dialling));
        Self {
            path_watch: PathWatch::new(Rc::clone(&shared) as _),
            shared,
            admission: ClientAdmission::new(session.token.clone()),
            idle_check: IdleCheck::new(&session.timeouts),
        }
    }

    /// Opens a stream for the request. Waits while the peer allows no more streams.
    async fn open(&self, exchange: &Exchange) -> Result<StreamId, Error> {
        let shown;
        let mut request = &*exchange.request;
        if let Some(field) = self.admission.field() {
            let mut with_token = RequestHead::clone(request);
            with_token.fields.push("proxy-authorization", field);
            shown = with_token;
            request = &shown;
        }
        let opening = std::future::poll_fn(|cx| self.poll_open(request, exchange, cx.waker()));
        let waited = async {
            let _ = self.established().await;
            tokio::time::sleep(STREAM_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            opened = opening => opened,
            () = waited => Err(full()),
        }
    }

    fn poll_open(
        &self,
        request: &RequestHead,
        exchange: &Exchange,
        waker: &std::task::Waker,
    ) -> Poll<Result<StreamId, Error>> {
        if let Some(error) = self.shared.ended.get() {
            // No byte of this request has been sent.
            return Poll::Ready(Err(error.clone().with_retry(Retry::Safe)));
        }
        let extended_connect = self.shared.core.borrow().peer_extended_connect();
        if let Err(error) = check_protocol(request) {
            return Poll::Ready(Err(error));
        }
        if request.protocol.is_some() && extended_connect != Some(true) {
            if extended_connect.is_some() {
                let detail = "the session carries no upgrades: use HTTP/2";
                return Poll::Ready(Err(Error::new(Kind::BadRequest, Side::Client, detail)));
            }
            // Extended CONNECT must wait for the peer's SETTINGS (RFC 8441 section 3).
            self.shared.waiting.add(waker);
            return Poll::Pending;
        }
        let encoding = HEADERS_ENCODE.start();
        let opened = self.begin(request, exchange);
        match opened {
            Ok(id) => {
                HEADERS_ENCODE.stop(encoding, id);
                self.shared
                    .streams
                    .borrow_mut()
                    .insert(id, super::Stream::default());
                self.shared.wake_driver();
                Poll::Ready(Ok(id))
            }
            Err(OpenError::Busy) => {
                self.shared.waiting.add(waker);
                Poll::Pending
            }
            Err(OpenError::Closing) => {
                let error = Error::new(Kind::Full, Side::Peer, "the session takes no new requests");
                Poll::Ready(Err(error.with_retry(Retry::Safe)))
            }
            Err(error) => Poll::Ready(Err(Error::new(
                Kind::BadRequest,
                Side::Client,
                error.to_string(),
            ))),
        }
    }
}

impl MuxClient {
    fn begin(&self, request: &RequestHead, exchange: &Exchange) -> Result<StreamId, OpenError> {
        let mut core = self.shared.core.borrow_mut();
        let priority = exchange.priority.get().priority;
        let id = core.open(request, exchange.body.is_empty(), priority)?;
        if !may_be_early(exchange) {
            core.hold(id);
        }
        Ok(id)
    }
}

/// Returns true if the body waits for an interim response (RFC 9110 section 10.1.1).
fn expects_continue(exchange: &Exchange) -> bool {
    let fields = &exchange.request.fields;
    !exchange.body.is_empty() && fields.has_token("expect", "100-continue")
}

/// Dials, and drives the session to its end.
async fn drive(
    shared: Rc<Shared>,
    core: Core,
    dial: CarrierFuture<'static>,
    pace: Pace,
    dialling: Stamp,
) {
    shared.dialled.set(Some(Instant::now()));
    let carrier = match dial.await {
        Ok(carrier) => carrier,
        Err(error) => return shared.end(&error),
    };
    SESSION_DIAL.stop(dialling, 0);
    let _ = shared.facts.set(Rc::downgrade(carrier.facts()));
    let owner = ClientOwner {
        shared: Rc::clone(&shared),
    };
    let role = Role::Client;
    let ended = match core {
        Core::Bytes(core) => match carrier.into_bytes() {
            Ok(path) => {
                let mut driver = Driver::new(shared, core, path, owner, role, pace, None);
                driver.run().await
            }
            Err(error) => return shared.end(&error),
        },
        Core::Streams(core) => match carrier.into_streams() {
            Ok(streams) => {
                let mut driver = StreamsDriver::new(shared, core, streams, owner, role, pace, None);
                driver.run().await
            }
            Err(error) => return shared.end(&error),
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "session ended");
    }
}

impl Connected for MuxClient {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if !exchange.request.is_connect() {
                exchange.body.settle()?;
            }
            let waiting = SESSION_STREAM.start();
            let id = self.open(exchange).await?;
            SESSION_STREAM.stop(waiting, id);
            self.shared
                .watch
                .exchange(id, self.shared.established.get());
            let uploaded = Rc::new(Uploaded::default());
            let mut stream = OwnStream {
                shared: Rc::clone(&self.shared),
                id,
                done: false,
                uploaded: Rc::clone(&uploaded),
                priority: exchange.priority.watch(),
            };
            let uploading = self.start_upload(id, exchange, &uploaded);
            if expects_continue(exchange) && !self.shared.core.borrow().has_interim() {
                // No 100 can come from the other end, and the sender of the body would wait.
                sink.send(Part::Hints(ResponseHead::new(100))).await;
            }
            let mut agreed = false;
            loop {
                let part = std::future::poll_fn(|cx| stream.poll_part(cx)).await;
                match part {
                    None => {
                        if agreed {
                            sink.send(Part::Closed).await;
                            uploaded.until_over().await;
                        } else if exchange.request.is_connect() {
                            drop(uploading);
                            stream.end_upload();
                        }
                        return Ok(());
                    }
                    Some(Ok(part)) => {
                        if let Part::Head(head) = &part {
                            self.admission.note(head)?;
                            agreed = exchange.request.is_connect()
                                && (200..300).contains(&head.status)
                                && !head.fields.contains(DECLINED);
                        }
                        sink.send(part).await;
                    }
                    Some(Err(error)) => return Err(error),
                }
            }
        })
    }

    fn drain(&self) {
        self.shared.draining.set(true);
        self.shared.wake_driver();
    }

    fn replaced(&self) {
        self.path_watch.replaced();
        self.drain();
    }

    fn give_up(&self) {
        self.path_watch.give_up();
    }
}

impl SessionState for MuxClient {
    fn is_ready(&self) -> bool {
        !self.is_closed()
    }

    fn has_room(&self) -> bool {
        self.is_ready() && self.shared.core.borrow().has_room()
    }

    fn is_closed(&self) -> bool {
        self.shared.ended.get().is_some()
            || self.shared.draining.get()
            || !self.shared.core.borrow().is_open()
    }

    fn is_established(&self) -> bool {
        self.shared.established.get()
    }

    fn active(&self) -> usize {
        self.shared.core.borrow().active()
    }

    fn facts(&self) -> Option<Rc<dyn Facts>> {
        self.shared.facts.get()?.upgrade()
    }

    fn was_idle(&self) -> bool {
        self.idle_check.is_due(self.shared.heard.get())
    }

    fn mark(&self) -> Option<Rc<SessionMark>> {
        Some(Rc::clone(&self.shared.mark))
    }

    fn admission(&self) -> Option<bool> {
        self.admission.decision()
    }

    fn answered_in(&self) -> Option<Duration> {
        let shared = &self.shared;
        shared.heard.get().map(|_| shared.answered_in.get())
    }
}

impl SessionEvents for MuxClient {
    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(self.until(|shared| shared.established.get()))
    }

    fn takes_early<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(self.until(|shared| shared.established.get() || shared.early.lasts()))
    }

    fn ended(&self) -> LocalBoxFuture<'static, Option<Error>> {
        let shared = Rc::clone(&self.shared);
        Box::pin(std::future::poll_fn(move |cx| {
            if let Some(error) = shared.ended.get() {
                let by_this_end = shared.draining.get() || shared.idled_out.get();
                return Poll::Ready((!by_this_end).then(|| error.clone()));
            }
            shared.observer.set(cx.waker());
            Poll::Pending
        }))
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

    fn answers<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async {
            if !self.is_established() {
                return self.established().await;
            }
            if datagrams_received(&*self.shared).is_some() {
                return self.path_watch.until_answered().await;
            }
            let before = self.shared.answers.get();
            self.shared.core.borrow_mut().ping(ping::QUESTION);
            self.shared.wake_driver();
            self.until(|shared| shared.answers.get() != before).await
        })
    }

    fn lost<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.idle_check.until_lost(&*self.shared))
    }
}

impl WatchedPath for Shared {
    fn facts(&self) -> Option<Rc<dyn Facts>> {
        match self.ended.get() {
            Some(_) => None,
            None => self.facts.get()?.upgrade(),
        }
    }

    fn ended(&self) -> Option<Error> {
        self.ended.get().cloned()
    }

    fn heard(&self) -> Option<InputTime> {
        self.heard.get()
    }

    fn answered_in(&self) -> Duration {
        self.answered_in.get()
    }

    /// Sends a ping. Returns whether this end can notice the answer: the ping of HTTP/3 is
    /// acknowledged by its carrier only, which must then count datagrams.
    fn probe(&self) -> bool {
        let is_answered = self.core.borrow_mut().ping(ping::AFTER_SILENCE);
        self.wake_driver();
        is_answered || datagrams_received(self).is_some()
    }

    fn give_up(&self) {
        self.is_lost.set(true);
        self.wake_driver();
    }
}

impl MuxClient {
    /// Starts the task that sends the body of a request, if it has one.
    fn start_upload(
        &self,
        id: StreamId,
        exchange: &mut Exchange,
        uploaded: &Rc<Uploaded>,
    ) -> Option<Task> {
        if exchange.body.is_empty() {
            uploaded.done.set(true);
            return None;
        }
        let (shared, body) = (Rc::clone(&self.shared), exchange.body.share());
        let uploaded = Rc::clone(uploaded);
        Some(Task::spawn(async move {
            upload(shared, id, body, &uploaded).await;
            uploaded.finish();
        }))
    }

    /// Resolves once `condition` holds, or the session has failed.
    async fn until(&self, condition: impl Fn(&Shared) -> bool) -> Result<(), Error> {
        std::future::poll_fn(|cx| {
            if let Some(error) = self.shared.ended.get() {
                return Poll::Ready(Err(error.clone()));
            }
            if condition(&self.shared) {
                return Poll::Ready(Ok(()));
            }
            self.shared.waiting.add(cx.waker());
            Poll::Pending
        })
        .await
    }
}

impl Drop for MuxClient {
    fn drop(&mut self) {
        self.drain();
    }
}

/// A stream that this end opened, or that the peer pushed. A drop resets the stream unless both of
/// its directions have ended.
struct OwnStream {
    shared: Rc<Shared>,
    id: StreamId,
    done: bool,
    /// The progress of the request's body.
    uploaded: Rc<Uploaded>,
    priority: PriorityWatch,
}

impl OwnStream {
    /// Ends the body of a tunnel that was refused. The peer counts a reset as a fault of this end.
    /// A reset is not needed, since the response is complete and the peer ignores the rest of the
    /// body.
    fn end_upload(&self) {
        if !self.uploaded.done.replace(true) {
            let mut core = self.shared.core.borrow_mut();
            core.send_data(self.id, Bytes::new(), true);
            drop(core);
            self.shared.wake_driver();
        }
    }
}

impl Parts for OwnStream {
    fn below(&self) -> Option<&Reply> {
        None
    }

    fn poll_part(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if self.done {
            return Poll::Ready(None);
        }
        if let Poll::Ready(precedence) = self.priority.poll_changed(cx) {
            self.shared.set_priority(self.id, precedence.priority);
        }
        let inbound = std::task::ready!(self.shared.poll_inbound(self.id, cx.waker()));
        Poll::Ready(match inbound {
            Some(Inbound::Informational(head)) => Some(Ok(Part::Hints(head))),
            Some(Inbound::Response(head)) if is_pushed(self.id) && head.status == 407 => {
                Some(Err(foreign_challenge()))
            }
            Some(Inbound::Response(head)) => Some(Ok(Part::Head(head))),
            Some(Inbound::Data(data)) => Some(Ok(Part::Data(data))),
            Some(Inbound::Trailers(fields)) => Some(Ok(Part::Trailers(fields))),
            Some(Inbound::Pushed { id, request }) => {
                let priority = SharedPriority::new(Precedence::push(push_priority(&request)));
                let reply = Reply::new(Self {
                    shared: Rc::clone(&self.shared),
                    id,
                    done: false,
                    uploaded: Rc::new(Uploaded::none()),
                    priority: priority.watch(),
                });
                Some(Ok(Part::Pushed(Box::new(PushedPart {
                    request,
                    reply,
                    priority,
                    session: Some(Rc::clone(&self.shared.mark)),
                }))))
            }
            Some(Inbound::Failed(error)) => {
                self.done = true;
                self.shared.forget(self.id, None);
                Some(Err(error))
            }
            None => None,
        })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if !self.done {
            let complete = self
                .shared
                .streams
                .borrow()
                .get(&self.id)
                .is_none_or(|s| s.complete && s.inbound.is_empty());
            let ended = complete && self.uploaded.done.get();
            self.shared
                .forget(self.id, (!ended).then_some(Reason::Cancel));
        }
    }
}

/// Returns the priority with which a relay passes a push on: behind all requests, and by the kind
/// of resource among pushes. A promise carries no urgency.
fn push_priority(request: &RequestHead) -> Priority {
    Priority(match request.fields.get("sec-fetch-dest") {
        Some(b"style" | b"script" | b"font") => 4,
        Some(b"image" | b"audio" | b"video") => 6,
        _ => 5,
    })
}

/// The client end as its driver sees it.
struct ClientOwner {
    shared: Rc<Shared>,
}

impl Owner for ClientOwner {
    fn handle_event(&mut self, event: Event) {
        if let Event::Pong { payload } = event
            && payload == ping::QUESTION
        {
            self.shared.answers.update(|answers| answers + 1);
        }
        match event {
            Event::Settings | Event::GoAway { .. } | Event::Pong { .. } => {
                self.shared.waiting.wake_all();
            }
            _ => {}
        }
    }

    fn ends_when_idle(&self) -> bool {
        !self.shared.core.borrow().is_open()
    }
}
