//! The owner of a session's state machine: it passes events in, carries decisions out, and wakes
//! the affected replies.
//!
//! All mutable state is in one cell. It is borrowed during one event only, while no foreign code
//! runs. Replies take their decisions when they are polled. A session whose client takes no pushes
//! has no state between its exchanges.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tandem_http::{RequestHead, ResponseHead};
use tandem_predict::ids::IdMap;
use tandem_push::gateway::{
    Clock, Config, Counts, FetchId, Gateway, Interest, Output, Predictor, Promise, PromiseStream,
    ResponseId, teaches_alone,
};

use super::Pushing;
use super::fetched_response::FetchedResponse;
use super::predictor::SessionPredictor;
use crate::exchange::{Peer, Reply};
use crate::learned::Learned;
use crate::metrics::METRICS;
use crate::path::Facts;
use crate::path_speed::PathSpeed;
use crate::priority::{Precedence, SharedPriority};
use crate::stage::Stage;

/// The push state of one session at the gateway.
pub(super) struct PushSession {
    /// `None` if a new machine knows as much as the last one did.
    state: RefCell<Option<Box<PushState>>>,
    /// The random number for the choice of pages that are held out.
    seed: u64,
    session: u64,
    user: u64,
    pushing: Rc<Pushing>,
    /// The speed of the session's path, if that is to decide which pushes pay.
    speed: Option<PathSpeed>,
    /// The speed of the session's path, if the path leaves this machine.
    path: Option<PathSpeed>,
    next: Rc<dyn Stage>,
}

/// The machine, and the replies that its decisions concern.
struct PushState {
    machine: Gateway,
    promise_streams: IdMap<PromiseStream, Waker>,
    fetches: IdMap<FetchId, FetchReply>,
    /// The time for which the earliest timer is set.
    timer: Option<Instant>,
}

/// The decisions on a push that its reply has not carried out.
struct FetchReply {
    priority: SharedPriority,
    /// The request to make.
    request: Option<RequestHead>,
    /// The response, while its head waits for a request.
    withheld: Option<Box<FetchedResponse>>,
    cancelled: bool,
    waker: Option<Waker>,
}

/// A decision for the reply of a push.
pub(super) enum FetchOrder {
    /// The request is to be made.
    Begin(RequestHead),
    /// The stream is to be reset.
    Cancel,
}

impl PushSession {
    pub(super) fn new(
        pushing: &Rc<Pushing>,
        path: Option<&Rc<dyn Facts>>,
        peer: Peer,
        next: Rc<dyn Stage>,
    ) -> Rc<Self> {
        let learned = pushing.learned.as_ref();
        let speed = learned.filter(|_| pushing.by_path);
        Rc::new(Self {
            state: RefCell::default(),
            seed: if pushing.hold_out > 0.0 {
                random_seed()
            } else {
                0
            },
            session: peer.session,
            user: learned.map_or(0, |learned| learned.user(peer.session, peer.address)),
            speed: speed.and_then(|_| PathSpeed::of(path?)),
            path: path.and_then(PathSpeed::of),
            pushing: Rc::clone(pushing),
            next,
        })
    }

    /// Returns the stage behind.
    pub(super) fn next(&self) -> &Rc<dyn Stage> {
        &self.next
    }

    /// Passes an event to the machine, and carries its decisions out.
    pub(super) fn handle<T>(&self, event: impl FnOnce(&mut Gateway) -> T) -> T {
        let mut slot = self.state.borrow_mut();
        let state = slot.get_or_insert_with(|| self.new_state());
        let result = event(&mut state.machine);
        let wakers = state.carry_out(self.pushing.learned.as_deref());
        if state.machine.is_dispensable() && state.timer.is_none() {
            *slot = None;
        }
        drop(slot);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Passes an event to the machine that means nothing to a new one, if there is a machine.
    pub(super) fn handle_change(&self, event: impl FnOnce(&mut Gateway)) {
        if self.state.borrow().is_some() {
            self.handle(event);
        }
    }

    fn new_state(&self) -> Box<PushState> {
        let pushing = &self.pushing;
        let (early, usual) = (pushing.early, Config::default());
        let config = Config {
            audience: pushing.audience(),
            own_origin_only: pushing.own_origin_only,
            caches_are_new: early.is_some_and(|limits| limits.caches_are_new),
            hosts: early.map_or(usize::MAX, |limits| limits.hosts),
            hold_out: pushing.hold_out,
            fetches: early.map_or(usual.fetches, |limits| limits.requests),
            first_fetches: early.map_or(usual.first_fetches, |limits| limits.first_requests),
            named_by_scripts: pushing.named_by_scripts,
            seed: self.seed,
            ..usual
        };
        let mut machine = Gateway::new(config, clock());
        if let Some(visits) = &pushing.visits {
            machine.share_visits(visits.clone());
        }
        Box::new(PushState {
            machine,
            promise_streams: IdMap::default(),
            fetches: IdMap::default(),
            timer: None,
        })
    }

    /// Returns the round trip of the session's path, if the path leaves this machine.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.path.as_ref()?.round_trip()
    }

    /// Returns the reference that answers a request, if it has crossed the promise of its resource.
    pub(super) fn refer(self: &Rc<Self>, request: &RequestHead) -> Option<ResponseHead> {
        if self.state.borrow().is_none() {
            return None;
        }
        let round_trip = self.round_trip()?;
        let reference = self.handle(|machine| machine.refer(now(), request, round_trip));
        if reference.is_some() {
            self.set_timer();
        }
        reference
    }

    /// Returns the response to a request, if a push has brought it and waits for that request.
    pub(super) fn hand_over(&self, request: &RequestHead) -> Option<Reply> {
        if self.state.borrow().is_none() {
            return None;
        }
        let fetch = self.handle(|machine| machine.hand_over(now(), request))?;
        let response = self.take_withheld(fetch)?;
        // The origin may answer once more.
        (!response.has_failed()).then(|| Reply::new(*response))
    }

    /// Keeps the response of a push whose head waits for a request.
    pub(super) fn withhold(&self, fetch: FetchId, response: Box<FetchedResponse>) {
        if let Some(state) = &mut *self.state.borrow_mut()
            && let Some(reply) = state.fetches.get_mut(&fetch)
        {
            reply.withheld = Some(response);
        }
    }

    /// Takes the response of a push whose head waits for a request.
    pub(super) fn take_withheld(&self, fetch: FetchId) -> Option<Box<FetchedResponse>> {
        let mut slot = self.state.borrow_mut();
        slot.as_mut()?.fetches.get_mut(&fetch)?.withheld.take()
    }

    /// Returns the events of a response that matter.
    pub(super) fn interest_in(&self, response: ResponseId) -> Interest {
        let state = self.state.borrow();
        let interest = |state: &PushState| state.machine.interest_in(response);
        state.as_deref().map(interest).unwrap_or_default()
    }

    /// Returns the predictor as this session uses it, if there is one.
    pub(super) fn predictor(&self) -> Option<SessionPredictor<'_>> {
        let learned = self.pushing.learned.as_ref()?;
        Some(SessionPredictor {
            learned,
            session: self.session,
            user: self.user,
            speed: self.speed.as_ref(),
        })
    }

    /// Returns whether a new machine would teach the predictor the response to a request, and do
    /// nothing else. The client takes no pushes.
    pub(super) fn only_learns_from(&self, request: &RequestHead) -> bool {
        self.state.borrow().is_none() && self.pushing.early.is_none() && teaches_alone(request)
    }

    /// Passes an event with the predictor to the machine, and carries its decisions out.
    pub(super) fn handle_learning<T>(
        &self,
        event: impl FnOnce(&mut Gateway, Option<&mut dyn Predictor>) -> T,
    ) -> T {
        let mut predictor = self.predictor();
        let predictor = predictor
            .as_mut()
            .map(|predictor| predictor as &mut dyn Predictor);
        self.handle(|machine| event(machine, predictor))
    }

    /// Sets a timer for the next deadline of the machine. The caller is the poll of a reply, where
    /// a task may be spawned.
    pub(super) fn set_timer(self: &Rc<Self>) {
        let mut slot = self.state.borrow_mut();
        let Some(state) = &mut *slot else { return };
        let Some(at) = state.machine.poll_timeout() else {
            return;
        };
        if state.timer.is_some_and(|set| set <= at) {
            return;
        }
        state.timer = Some(at);
        drop(slot);
        let session = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep_until(at.into()).await;
            expire(&session, at);
        });
    }

    /// Returns the next promise for a stream, with the priority that it shares with its push. The
    /// stream is polled again when there is one.
    pub(super) fn poll_promise(
        &self,
        stream: PromiseStream,
        cx: &Context<'_>,
    ) -> Option<(Promise, SharedPriority)> {
        let mut slot = self.state.borrow_mut();
        let state = slot.as_mut()?;
        let Some(promise) = state.machine.take_promise(stream) else {
            state.promise_streams.insert(stream, cx.waker().clone());
            return None;
        };
        let priority = SharedPriority::new(Precedence::push(promise.priority));
        let reply = FetchReply {
            priority: priority.clone(),
            request: None,
            withheld: None,
            cancelled: false,
            waker: None,
        };
        state.fetches.insert(promise.fetch, reply);
        Some((promise, priority))
    }

    /// Forgets the waker of a stream that is closed.
    pub(super) fn forget_stream(&self, stream: PromiseStream) {
        if let Some(state) = &mut *self.state.borrow_mut() {
            state.promise_streams.remove(&stream);
        }
    }

    /// Returns the next decision on a push. Its reply is polled again when there is one.
    pub(super) fn poll_fetch(&self, fetch: FetchId, cx: &Context<'_>) -> Option<FetchOrder> {
        let mut slot = self.state.borrow_mut();
        let reply = slot.as_mut()?.fetches.get_mut(&fetch)?;
        if reply.cancelled {
            return Some(FetchOrder::Cancel);
        }
        if let Some(request) = reply.request.take() {
            return Some(FetchOrder::Begin(request));
        }
        reply.waker = Some(cx.waker().clone());
        None
    }

    /// Forgets a push after its reply was dropped.
    pub(super) fn release_fetch(&self, fetch: FetchId) {
        // A response that it holds runs code of other stages when it is dropped.
        let mut slot = self.state.borrow_mut();
        let released = slot.as_mut().and_then(|state| state.fetches.remove(&fetch));
        drop(slot);
        drop(released);
        self.handle(|machine| machine.release_fetch(now(), fetch));
    }

    /// Ends the session.
    pub(super) fn close(&self) {
        self.handle_change(Gateway::close);
    }
}

impl Drop for PushSession {
    fn drop(&mut self) {
        if let Some(learned) = &self.pushing.learned {
            learned.session_closed(self.session);
        }
    }
}

impl PushState {
    /// Hands the machine's decisions to the affected replies, and returns their wakers.
    fn carry_out(&mut self, learned: Option<&Learned>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Promise(stream) => wakers.extend(self.promise_streams.remove(&stream)),
                Output::Fetch { fetch, request } => {
                    METRICS.push_requests.add(1);
                    if let Some(reply) = self.fetches.get_mut(&fetch) {
                        reply.request = Some(request);
                        wakers.extend(reply.waker.take());
                    }
                }
                Output::Body { fetch } => {
                    if let Some(reply) = self.fetches.get_mut(&fetch) {
                        wakers.extend(reply.waker.take());
                    }
                }
                Output::Cancel { fetch } => {
                    if let Some(reply) = self.fetches.get_mut(&fetch) {
                        reply.cancelled = true;
                        wakers.extend(reply.waker.take());
                    }
                }
                Output::Raise { fetch } => {
                    if let Some(reply) = self.fetches.get(&fetch) {
                        reply.priority.set(Precedence::default());
                    }
                }
            }
        }
        let counts = self.machine.take_counts();
        if counts != Counts::default() {
            count(&counts);
            if let Some(learned) = learned {
                learned.note_counts(&counts);
            }
        }
        wakers
    }
}

/// Adds the machine's counts to those of the process.
fn count(counts: &Counts) {
    METRICS.pushes_promised.add(counts.promised);
    METRICS.pushes_used.add(counts.used);
    METRICS.pushes_late.add(counts.late);
    METRICS.pushes_wasted.add(counts.wasted);
    METRICS.pushes_cancelled.add(counts.cancelled);
    METRICS.pushes_validated.add(counts.validated);
    METRICS.pushes_withheld.add(counts.withheld);
    METRICS.pushes_repeated.add(counts.repeated);
    METRICS.push_bytes_wasted.add(counts.wasted_bytes);
    METRICS.origin_extra_requests.add(counts.extra_requests);
    METRICS.pages_returning.add(counts.pages_returning);
    METRICS.pages_pushed.add(counts.pages_pushed);
    METRICS.pages_held_out.add(counts.pages_held_out);
    METRICS.next_pages_promised.add(counts.next_promised);
    METRICS.next_pages_used.add(counts.next_used);
    METRICS.next_page_bytes_wasted.add(counts.next_wasted_bytes);
}

/// Runs the due work when a timer expires, and sets the next timer.
fn expire(session: &Weak<PushSession>, at: Instant) {
    let Some(session) = session.upgrade() else {
        return;
    };
    let mut slot = session.state.borrow_mut();
    let Some(state) = &mut *slot else { return };
    if state.timer == Some(at) {
        state.timer = None;
    }
    drop(slot);
    session.handle(|machine| machine.handle_timeout(now()));
    session.set_timer();
}

/// Returns the time of events, which tests may freeze. Events that need no time do without the
/// clock, whose readings cost more than most events.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn clock() -> Clock {
    Clock {
        instant: now(),
        unix_time: unix_time(),
    }
}

/// Returns the seconds since 1970. A clock before 1970 is not set, and with time zero no date is in
/// the past.
pub(super) fn unix_time() -> u64 {
    let unix_time = SystemTime::now().duration_since(UNIX_EPOCH);
    unix_time.map_or(0, |time| time.as_secs())
}

/// Returns a random number for the choice of pages that are held out.
fn random_seed() -> u64 {
    let mut seed = [0; 8];
    let provider = rustls::crypto::ring::default_provider();
    if provider.secure_random.fill(&mut seed).is_err() {
        tracing::warn!("the system has no random numbers: held-out pages can be guessed");
    }
    u64::from_ne_bytes(seed)
}
