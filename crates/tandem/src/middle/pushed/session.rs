//! The pushes of one session: the tasks that read them, and the replies that they become.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use tandem_http::{RequestHead, ResponseHead};
use tandem_push::client::{
    Intake, Output, Piece, PushId, PushStore, ReportQueue, ReportStep, StoreLimits,
};
use tandem_push::wire::Fate;
use tokio::time::Instant;

use super::crossing::Crossings;
use crate::digest_file::SharedDigest;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Part, Parts, Reply, SessionMark, Supply};
use crate::metrics::METRICS;
use crate::priority::{Precedence, SharedPriority};
use crate::wakers::WakerCell;

/// The test whether the pool still gives requests to a session.
type CurrencyCheck = Box<dyn Fn(&Rc<SessionMark>) -> bool>;

/// The pushes of one session.
pub(super) struct SessionPushes {
    mark: Rc<SessionMark>,
    is_gateway_local: bool,
    state: RefCell<PushedState>,
    /// The waker of the companion's body, while it waits.
    report_waker: WakerCell,
    digest: Option<SharedDigest>,
    /// The requests that may take a push that arrives.
    crossings: Rc<Crossings>,
    is_current: CurrencyCheck,
    /// True if a task waits for the store's next timeout.
    is_swept: Cell<bool>,
}

/// The state that events change.
struct PushedState {
    store: PushStore,
    reports: ReportQueue,
    tasks: HashMap<PushId, PushTasks>,
}

/// The tasks of one push.
struct PushTasks {
    priority: SharedPriority,
    is_cancelled: bool,
    /// The waker of the task that reads the push from the session.
    arrival: WakerCell,
    /// The waker of the reply to the browser.
    reader: WakerCell,
}

impl PushTasks {
    fn new(priority: SharedPriority) -> Self {
        Self {
            priority,
            is_cancelled: false,
            arrival: WakerCell::default(),
            reader: WakerCell::default(),
        }
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Returns the seconds since 1970, UTC. With time zero, no date is in the past.
fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

impl SessionPushes {
    pub(super) fn new(
        limits: StoreLimits,
        is_gateway_local: bool,
        mark: Rc<SessionMark>,
        digest: Option<SharedDigest>,
        crossings: Rc<Crossings>,
        is_current: CurrencyCheck,
    ) -> Rc<Self> {
        let mut reports = Vec::new();
        if let Some(digest) = &digest {
            digest.encode(now(), &mut reports);
        }
        let mut store = PushStore::new(limits, now());
        if is_gateway_local {
            store = store.with_local_gateway();
        }
        Rc::new(Self {
            mark,
            is_gateway_local,
            state: RefCell::new(PushedState {
                store,
                reports: ReportQueue::new(reports),
                tasks: HashMap::new(),
            }),
            report_waker: WakerCell::default(),
            digest,
            crossings,
            is_current,
            is_swept: Cell::default(),
        })
    }

    pub(super) fn mark(&self) -> &Rc<SessionMark> {
        &self.mark
    }

    pub(super) fn is_of(&self, mark: &Rc<SessionMark>) -> bool {
        Rc::ptr_eq(&self.mark, mark)
    }

    /// Runs an event through the store, and carries out its decisions.
    fn with_store<T>(&self, event: impl FnOnce(&mut PushStore) -> T) -> T {
        let state = &mut *self.state.borrow_mut();
        let result = event(&mut state.store);
        while let Some(output) = state.store.poll_output() {
            self.carry_out(state, output);
        }
        result
    }

    fn carry_out(&self, state: &mut PushedState, output: Output) {
        let tasks = &mut state.tasks;
        match output {
            Output::Raise(id) => {
                if let Some(task) = tasks.get(&id) {
                    task.priority.set(Precedence::default());
                }
            }
            Output::Cancel(id) => {
                if let Some(task) = tasks.get_mut(&id) {
                    task.is_cancelled = true;
                    task.arrival.wake();
                }
            }
            Output::WakeReader(id) => {
                if let Some(task) = tasks.get(&id) {
                    task.reader.wake();
                }
            }
            Output::WakeArrival(id) => {
                if let Some(task) = tasks.get(&id) {
                    task.arrival.wake();
                }
            }
            Output::Copied { push, of } => {
                let priority = tasks.get(&of).map(|task| task.priority.clone());
                let task = PushTasks::new(priority.unwrap_or_default());
                tasks.insert(push, task);
            }
            Output::Arrives { url } => self.crossings.note_arrival(url),
            Output::Became {
                fate,
                url,
                tell_gateway,
                cookies,
            } => {
                // A gateway in this process counts the fates by their reports.
                if !self.is_gateway_local {
                    count(fate);
                }
                if tell_gateway {
                    state.reports.push(fate, url, cookies);
                    if self.is_gateway_local {
                        // Each report costs nothing here, and the end of the process loses none.
                        state.reports.hurry();
                    }
                    if state.reports.is_urgent() {
                        self.report_waker.wake();
                    }
                }
            }
            Output::HurryReports => {
                state.reports.hurry();
                self.report_waker.wake();
            }
            Output::Ended { push, wasted } => {
                if !self.is_gateway_local {
                    METRICS.push_bytes_wasted.add(wasted);
                }
                tasks.remove(&push);
            }
        }
    }

    /// Takes a push in, and spawns the task that reads it.
    pub(super) fn take_in(
        self: &Rc<Self>,
        request: RequestHead,
        reply: Reply,
        priority: SharedPriority,
    ) {
        METRICS.pushes_received.add(1);
        let has_own_fields = self.mark.promises_have_fields;
        let intake = self.with_store(|store| store.on_promise(now(), request, has_own_fields));
        let Intake::Read(id) = intake else { return };
        let tasks = PushTasks::new(priority);
        self.state.borrow_mut().tasks.insert(id, tasks);
        tokio::task::spawn_local(read(Rc::clone(self), id, reply));
        self.keep_swept();
    }

    /// Keeps a task running that carries out the store's timeouts, while the store has any.
    fn keep_swept(self: &Rc<Self>) {
        let is_needed = self.state.borrow().store.next_timeout().is_some();
        if !is_needed || self.is_swept.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            loop {
                let at = this.state.borrow().store.next_timeout();
                let Some(at) = at else { break };
                tokio::time::sleep_until(at.into()).await;
                if (this.is_current)(&this.mark) {
                    this.with_store(|store| store.handle_timeout(now()));
                } else {
                    this.close();
                    break;
                }
            }
            this.is_swept.set(false);
        });
    }

    /// Returns the answer to a request, if a push matches. If `is_shared` is true, another request
    /// of the same kind waits for it.
    pub(super) fn answer(
        self: &Rc<Self>,
        request: &RequestHead,
        complete_only: bool,
        cache_status: bool,
        is_shared: bool,
    ) -> Option<Serving> {
        let serve = self.with_store(|store| {
            let serve = store.on_request(now(), request, complete_only)?;
            if is_shared {
                store.share(serve.push);
            }
            Some(serve)
        })?;
        if serve.is_complete {
            METRICS.round_trips_saved.add(1);
        }
        // RFC 9211 sections 2.1 and 2.5: a stored answer, or one to a request under way.
        let status = match serve.is_complete {
            true => "tandem; hit; detail=pushed",
            false => "tandem; hit; collapsed; detail=pushed",
        };
        Some(Serving {
            pushes: Rc::clone(self),
            id: serve.push,
            supply: if serve.is_complete {
                Supply::Pushed
            } else {
                Supply::Joined
            },
            status: cache_status.then_some(status),
            is_over: false,
        })
    }

    pub(super) fn note_unsafe_request(&self, request: &RequestHead) {
        self.with_store(|store| store.note_unsafe_request(request));
    }

    pub(super) fn awaits_hidden_change(&self) -> bool {
        self.state.borrow().store.awaits_hidden_change()
    }

    pub(super) fn note_hidden_change(&self) {
        self.with_store(PushStore::note_hidden_change);
    }

    pub(super) fn clear_origin(&self, request: &RequestHead) {
        self.with_store(|store| store.clear_origin(request));
    }

    pub(super) fn drop_copy(&self, request: &RequestHead) {
        self.with_store(|store| store.drop_copy(request));
    }

    /// Ends the waiting pushes after the end of their session.
    pub(super) fn close(&self) {
        self.with_store(PushStore::close);
    }

    pub(super) fn open_companion(&self) -> bool {
        self.state.borrow_mut().reports.open_companion(now())
    }

    pub(super) fn on_companion_end(&self, was_accepted: bool) {
        let mut state = self.state.borrow_mut();
        state.reports.on_companion_end(was_accepted);
    }

    pub(super) fn is_companion_overdue(&self) -> bool {
        self.state.borrow().reports.is_response_overdue(now())
    }

    /// Returns the next step of the companion's body. An urgent report wakes the task of `cx`.
    pub(super) fn report_step(&self, is_busy: bool, is_over: bool, cx: &Context<'_>) -> ReportStep {
        self.report_waker.set(cx.waker());
        let mut state = self.state.borrow_mut();
        state.reports.step(now(), is_busy, is_over)
    }

    fn note_received(&self, id: PushId, head: &ResponseHead) {
        let state = &mut *self.state.borrow_mut();
        let Some(request) = state.store.claimed_request(id) else {
            return;
        };
        if let Some(digest) = &self.digest {
            digest.note(now(), request, head);
        }
        if head.fields.contains("set-cookie") {
            let request = request.clone();
            state.store.note_response(&request, head, unix_time());
        }
    }

    /// Notes a response to a request that left at `sent`.
    pub(super) fn note_newer_response(
        &self,
        sent: std::time::Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) {
        self.with_store(|store| store.note_newer_response(sent, request, head));
    }

    /// Notes a response to the browser that is no push.
    pub(super) fn note_response(&self, request: &RequestHead, head: &ResponseHead) {
        let store = &mut self.state.borrow_mut().store;
        store.note_response(request, head, unix_time());
    }
}

fn count(fate: Fate) {
    match fate {
        Fate::Used => METRICS.pushes_used.add(1),
        Fate::Late => METRICS.pushes_late.add(1),
        Fate::Wasted => METRICS.pushes_wasted.add(1),
        Fate::Cancelled => METRICS.pushes_cancelled.add(1),
        Fate::Validated => METRICS.pushes_validated.add(1),
    }
}

/// Reads a push to its end, as fast as the store has room.
async fn read(pushes: Rc<SessionPushes>, id: PushId, mut reply: Reply) {
    loop {
        let part = std::future::poll_fn(|cx| pushes.poll_arrival(id, &mut reply, cx)).await;
        match part {
            Some(Ok(part)) => pushes.on_part(id, part),
            end => return pushes.with_store(|store| store.on_end(id, end.is_none())),
        }
    }
}

impl SessionPushes {
    /// Polls for the next part of an arriving push, unless its reader must run first.
    fn poll_arrival(
        &self,
        id: PushId,
        reply: &mut Reply,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Part, Error>>> {
        let state = self.state.borrow();
        if let Some(task) = state.tasks.get(&id) {
            if task.is_cancelled {
                let error = Error::new(Kind::Reset, Side::Local, "the push is of no use");
                return Poll::Ready(Some(Err(error)));
            }
            task.arrival.set(cx.waker());
        }
        if !state.store.has_room(id) {
            return Poll::Pending;
        }
        drop(state);
        reply.poll_part(cx)
    }

    fn on_part(&self, id: PushId, part: Part) {
        match part {
            Part::Head(head) => self.with_store(|store| store.on_head(now(), id, head)),
            Part::Data(data) => {
                METRICS.push_bytes_received.add(data.len() as u64);
                self.with_store(|store| store.on_data(now(), id, data));
            }
            Part::Trailers(fields) => self.with_store(|store| store.on_trailers(id, fields)),
            Part::Hints(_) | Part::Pushed(_) | Part::Closed => {}
        }
    }
}

/// A push on its way to the browser.
pub(super) struct Serving {
    pushes: Rc<SessionPushes>,
    id: PushId,
    supply: Supply,
    status: Option<&'static str>,
    is_over: bool,
}

impl Parts for Serving {
    fn below(&self) -> Option<&Reply> {
        None
    }

    fn supply(&self) -> Supply {
        self.supply
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let piece = self
            .pushes
            .with_store(|store| store.take_piece(now(), self.id));
        Poll::Ready(Some(Ok(match piece {
            Piece::Head(mut head) => {
                self.pushes.note_received(self.id, &head);
                if let Some(status) = self.status {
                    head.fields.push("cache-status", status);
                }
                Part::Head(head)
            }
            Piece::Data(data) => {
                METRICS.push_bytes_used.add(data.len() as u64);
                Part::Data(data)
            }
            Piece::Trailers(fields) => Part::Trailers(fields),
            Piece::End => {
                self.is_over = true;
                return Poll::Ready(None);
            }
            // A part may have been passed on already, so the response must not look complete.
            Piece::Broken => {
                self.is_over = true;
                let error = Error::new(Kind::Truncated, Side::Peer, "a pushed answer broke off");
                return Poll::Ready(Some(Err(error.with_retry(Retry::IfIdempotent))));
            }
            Piece::Pending => {
                if let Some(task) = self.pushes.state.borrow().tasks.get(&self.id) {
                    task.reader.set(cx.waker());
                }
                return Poll::Pending;
            }
        })))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.pushes
            .with_store(|store| store.on_reader_gone(self.id));
    }
}
