//! What the gateway has pushed on one session, kept in memory for the request that the browser will
//! make.
//!
//! One store for each session, so it knows one isolation key only and is gone with the session. An
//! answer is given once; a request that comes while the push is still under way joins it. What does
//! not fit, or may not be kept, is read to its end and thrown away: a cancelled push would tell
//! what the client has (unless it was asked for by `--cancel-pushes`). What became of each is
//! counted, and told to the gateway by [`super::reports`].

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tandem_http::cache::{CacheRules, Receipt, RequestPolicy, ResponsePolicy};
use tandem_http::{Fields, Method, RequestHead, ResponseHead, Scheme};
use tandem_push::answer::is_pushable_status;
use tandem_push::client::matching::{Mismatch, PushFacts, check_request};
use tandem_push::wire::{ASKED_FIELD, Fate, RequestHashes, url_hash};
use tokio::time::Instant;

use super::reports::{Digest, Reporter};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::metrics::METRICS;
use crate::priority::{Precedence, SharedPriority};

/// How long a pushed answer may wait for its request, however fresh it stays.
const KEEP_FOR: Duration = Duration::from_secs(300);

/// How long one may that says nothing of its freshness, or that it must be checked. The latter
/// counts as checked when it arrives (RFC 9113 section 8.4.2), but not beyond the page load that it
/// came for.
const KEEP_UNSAID: Duration = Duration::from_secs(30);

/// A page load is over once nothing has been asked for or pushed for so long.
const LULL: Duration = Duration::from_secs(3);

/// How long a request waits for a push of which nothing has come, before it goes its own way.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often the store is searched for answers that waited too long.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// Answers kept at once, whatever their size: also what the gateway may have under way.
pub const MAX_ENTRIES: u32 = 4096;

/// The bytes that a push is counted with beside its fields and its body: its entry, its task and
/// its stream.
const ENTRY_OVERHEAD: usize = 1024;

/// The bytes that a field is counted with beside its text.
const FIELD_OVERHEAD: usize = 16;

/// The bytes that fields hold.
fn size_of_fields(fields: &Fields) -> usize {
    fields.text_len() + fields.len() * FIELD_OVERHEAD
}

/// The pushed answers of one session.
pub struct PushStore {
    entries: RefCell<HashMap<Key, Rc<Pushed>>>,
    /// Body bytes held in all.
    held: Rc<Cell<usize>>,
    limit: usize,
    cancel: bool,
    status: bool,
    swept: Cell<Instant>,
    /// Somebody sees to it that it is searched.
    sweeping: Cell<bool>,
    load: Rc<Load>,
    /// What the gateway is told.
    pub reporter: Rc<Reporter>,
}

/// When the page load under way began, as far as it can be seen.
struct Load {
    began: Cell<Instant>,
    last: Cell<Instant>,
}

impl Load {
    /// Something happens.
    fn note(&self) {
        let now = Instant::now();
        if now - self.last.replace(now) > LULL {
            self.began.set(now);
        }
    }

    /// Whether what came then came for a load that is over.
    fn is_after(&self, at: Instant) -> bool {
        at < self.began.get() || self.last.get().elapsed() > LULL
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    scheme: Scheme,
    authority: String,
    path: String,
}

impl Key {
    fn of(request: &RequestHead) -> Self {
        Self {
            scheme: request.scheme,
            authority: request.authority.to_ascii_lowercase(),
            path: request.path.clone(),
        }
    }
}

/// One pushed answer, whole or still coming.
struct Pushed {
    /// The promised request; an empty one where the push is only read to its end.
    request: RequestHead,
    /// The number of its URL in reports.
    url: u32,
    /// Its fields are those that it was asked with; else only its head may tell.
    said: bool,
    since: Instant,
    state: RefCell<State>,
    held: Rc<Cell<usize>>,
    load: Rc<Load>,
    reporter: Rc<Reporter>,
    /// The place of its stream in the gateway's order of sending.
    priority: SharedPriority,
}

#[derive(Default)]
struct State {
    head: Option<ResponseHead>,
    body: VecDeque<Bytes>,
    trailers: Option<Fields>,
    /// Bytes held now.
    bytes: usize,
    /// Bytes of the body that came in all.
    received: usize,
    /// Those of them that answered a request.
    used: usize,
    /// What it was asked with, as the gateway says.
    asked: Option<RequestHashes>,
    /// When its head came, and how long it may be used.
    came: Option<(Instant, Fresh)>,
    /// Nothing more will come.
    done: bool,
    /// It must not be used.
    unusable: bool,
    /// What became of it has been told.
    told: bool,
    /// The request that it answers, once there is one: from then on it flows as it is
    /// read.
    joined: Option<RequestHead>,
    waiter: Option<Waker>,
    filler: Option<Waker>,
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waiter.take() {
            waker.wake();
        }
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        self.held.set(self.held.get() - state.bytes);
        let fate = if state.unusable {
            Fate::Cancelled
        } else {
            Fate::Wasted
        };
        self.tell(&mut state, fate);
        METRICS
            .push_bytes_wasted
            .add((state.received - state.used) as u64);
    }
}

impl PushStore {
    /// A store of at most `limit` bytes of bodies. `cancel`: what is of no use is cancelled instead
    /// of thrown away. `status`: answers say that they were pushed. `digest`: what the gateway is
    /// told of earlier sessions.
    pub fn new(limit: usize, cancel: bool, status: bool, digest: Option<Rc<Digest>>) -> Rc<Self> {
        let now = Instant::now();
        Rc::new(Self {
            entries: RefCell::default(),
            held: Rc::default(),
            limit,
            cancel,
            status,
            swept: Cell::new(now),
            sweeping: Cell::new(false),
            load: Rc::new(Load {
                began: Cell::new(now),
                last: Cell::new(now),
            }),
            reporter: Rc::new(Reporter::new(digest)),
        })
    }

    /// Whether there is any room for pushes.
    pub const fn takes_pushes(&self) -> bool {
        self.limit > 0
    }

    /// Takes in a push: reads it to its end in a task of its own. One that nobody has asked for yet
    /// makes way for another of the same: for another page, as a gateway has reason to. `said`: the
    /// promise says what fields it was asked with.
    pub fn take_in(
        self: &Rc<Self>,
        request: RequestHead,
        reply: Reply,
        priority: SharedPriority,
        said: bool,
    ) {
        METRICS.pushes_received.add(1);
        let key = Key::of(&request);
        self.load.note();
        self.sweep();
        let replaced = self.entries.borrow_mut().remove(&key);
        if let Some(replaced) = replaced {
            replaced.make_way();
        }
        let size = size_of_fields(&request.fields)
            + request.authority.len()
            + request.path.len()
            + ENTRY_OVERHEAD;
        let wanted = request.method == Method::Get
            && self.entries.borrow().len() < MAX_ENTRIES as usize
            && self.held.get() + size <= self.limit;
        let pushed = Rc::new(Pushed {
            said: said && !request.fields.is_empty(),
            url: url_hash(&request),
            request: match wanted {
                true => request,
                false => RequestHead::get(Scheme::Http, "", ""),
            },
            since: Instant::now(),
            state: RefCell::new(State {
                unusable: !wanted,
                ..State::default()
            }),
            held: Rc::clone(&self.held),
            load: Rc::clone(&self.load),
            reporter: Rc::clone(&self.reporter),
            priority,
        });
        if !wanted && self.cancel {
            return;
        }
        if wanted {
            pushed.hold(&mut pushed.state.borrow_mut(), size);
            if !self.sweeping.replace(true) {
                tokio::task::spawn_local(keep_swept(Rc::downgrade(self)));
            }
            self.entries
                .borrow_mut()
                .insert(key.clone(), Rc::clone(&pushed));
        }
        let (store, limit, cancel) = (Rc::downgrade(self), self.limit, self.cancel);
        tokio::task::spawn_local(async move {
            fill(limit, cancel, &pushed, reply).await;
            if let Some(store) = store.upgrade().filter(|_| pushed.state.borrow().unusable) {
                store.forget(&key, &pushed);
            }
        });
    }

    /// A push that came to nothing makes room for another.
    fn forget(&self, key: &Key, pushed: &Rc<Pushed>) {
        let mut entries = self.entries.borrow_mut();
        let removed = if entries
            .get(key)
            .is_some_and(|entry| Rc::ptr_eq(entry, pushed))
        {
            entries.remove(key)
        } else {
            None
        };
        drop(entries);
        drop(removed);
    }

    fn sweep(&self) {
        let now = Instant::now();
        if now - self.swept.get() < SWEEP_EVERY {
            return;
        }
        self.swept.set(now);
        self.entries
            .borrow_mut()
            .retain(|_, pushed| !pushed.is_over());
    }

    /// Something of this origin's may have been changed: what was fetched before does not tell (RFC
    /// 9111 section 4.4).
    pub fn forget_origin(&self, request: &RequestHead) {
        let of = Key::of(request);
        let same = |key: &Key| key.scheme == of.scheme && key.authority == of.authority;
        self.entries.borrow_mut().retain(|key, _| !same(key));
    }

    /// The answer to a request, if it was pushed and the request asks for just that.
    /// `whole`: only if all of it is here, because nobody knows whether more will come.
    pub fn answer(&self, exchange: &Exchange, whole: bool) -> Option<Reply> {
        let request = &exchange.request;
        self.load.note();
        if self.entries.borrow().is_empty() {
            return None;
        }
        if !exchange.body.is_empty() || check_request(request).is_err() {
            return None;
        }
        let asks = RequestPolicy::of(&request.fields);
        let key = Key::of(request);
        let pushed = self.entries.borrow().get(&key).cloned()?;
        if pushed.is_over()
            || (asks.wants_validation() && pushed.is_of_earlier_load())
            || !pushed.fits(request)
            || (whole && !pushed.state.borrow().done)
        {
            return None;
        }
        self.entries.borrow_mut().remove(&key);
        let fate = pushed.join(request);
        // RFC 9211 sections 2.1 and 2.5: a stored answer, or one that another request was under way
        // for.
        let status = self.status.then_some(match fate {
            Fate::Used => "tandem; hit; detail=pushed",
            _ => "tandem; hit; collapsed; detail=pushed",
        });
        Some(Reply::new(Serving {
            pushed,
            status,
            stage: Stage::Head,
        }))
    }
}

impl Pushed {
    /// Whether it is of no use any more.
    fn is_over(&self) -> bool {
        let state = self.state.borrow();
        let stale = match state.came {
            None => self.since.elapsed() >= KEEP_FOR,
            Some((at, Fresh::For(time))) => at.elapsed() >= time.min(KEEP_FOR),
            Some((at, Fresh::Unsaid)) => at.elapsed() >= KEEP_UNSAID,
            Some((at, Fresh::Never)) => at.elapsed() >= KEEP_UNSAID || self.load.is_after(at),
        };
        state.unusable || stale
    }

    /// Whether it came for an earlier page load than the one under way.
    fn is_of_earlier_load(&self) -> bool {
        let came = self.state.borrow().came;
        came.is_some_and(|(at, _)| self.load.is_after(at))
    }

    /// Whether it answers this request: kept, usable, and alike in what the answer varies on. Of
    /// one that has not come that is found out when it does.
    fn fits(&self, request: &RequestHead) -> bool {
        let state = self.state.borrow();
        if state.unusable || (state.head.is_none() && self.since.elapsed() > PATIENCE) {
            return false;
        }
        self.check(&state, request).is_ok()
    }

    fn check(&self, state: &State, request: &RequestHead) -> Result<(), Mismatch> {
        let facts = PushFacts {
            request: &self.request,
            has_own_fields: self.said,
            hashes: state.asked,
            head: state.head.as_ref(),
        };
        facts.check(request)
    }

    fn join(&self, request: &RequestHead) -> Fate {
        let mut state = self.state.borrow_mut();
        state.joined = Some(request.clone());
        let fate = if state.done {
            METRICS.round_trips_saved.add(1);
            Fate::Used
        } else {
            Fate::Late
        };
        self.tell(&mut state, fate);
        if !state.done {
            self.priority.set(Precedence::default());
            if let Some(waker) = state.filler.take() {
                waker.wake();
            }
        }
        fate
    }

    /// Another is there in its place. The gateway knows: what it were told would be taken to be
    /// said of the other.
    fn make_way(&self) {
        let mut state = self.state.borrow_mut();
        if !std::mem::replace(&mut state.told, true) {
            METRICS.pushes_wasted.add(1);
        }
        self.discard(&mut state);
    }

    /// What came of it is thrown away, and what comes.
    fn discard(&self, state: &mut State) {
        state.unusable = true;
        state.head = None;
        state.trailers = None;
        state.body.clear();
        self.held
            .set(self.held.get() - std::mem::take(&mut state.bytes));
        if let Some(waker) = state.filler.take() {
            waker.wake();
        }
    }

    /// Counts what became of it, and tells the gateway; once.
    fn tell(&self, state: &mut State, fate: Fate) {
        if std::mem::replace(&mut state.told, true) {
            return;
        }
        match fate {
            Fate::Used => METRICS.pushes_used.add(1),
            Fate::Late => METRICS.pushes_late.add(1),
            Fate::Wasted => METRICS.pushes_wasted.add(1),
            Fate::Cancelled => METRICS.pushes_cancelled.add(1),
        }
        self.reporter.report(fate, self.url);
    }
}

/// Reads a push to its end, as fast as there is room.
async fn fill(limit: usize, cancel: bool, pushed: &Pushed, mut reply: Reply) {
    loop {
        let part = std::future::poll_fn(|cx| {
            // Who reads it sets the pace once there is no room to run ahead.
            std::task::ready!(pushed.poll_room(limit, cx));
            reply.poll_part(cx)
        })
        .await;
        let Some(part) = part else { break };
        let broken = part.is_err();
        pushed.put(part, limit);
        if broken || (pushed.state.borrow().unusable && cancel) {
            break;
        }
    }
    let mut state = pushed.state.borrow_mut();
    state.unusable |= state.head.is_none();
    state.done = true;
    state.wake();
}

impl Pushed {
    fn poll_room(&self, limit: usize, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        state.filler = Some(cx.waker().clone());
        if state.joined.is_none() || state.body.is_empty() || self.held.get() < limit {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn put(&self, part: Result<Part, Error>, limit: usize) {
        let mut state = self.state.borrow_mut();
        match part {
            Ok(Part::Head(mut head)) => {
                state.unusable |= !may_be_kept(&head);
                state.asked = head.fields.get(ASKED_FIELD).and_then(RequestHashes::parse);
                head.fields.remove(ASKED_FIELD);
                self.load.note();
                state.came = Some((Instant::now(), Fresh::of(&head)));
                let size = size_of_fields(&head.fields);
                let is_full = state.joined.is_none() && self.held.get() + size > limit;
                if state.unusable || is_full {
                    self.discard(&mut state);
                    return;
                }
                self.hold(&mut state, size);
                state.head = Some(head);
                if let Some(request) = state.joined.take() {
                    state.unusable |= self.check(&state, &request).is_err();
                    state.joined = Some(request);
                }
            }
            Ok(Part::Data(data)) => {
                self.load.note();
                state.received += data.len();
                METRICS.push_bytes_received.add(data.len() as u64);
                if state.unusable {
                    return;
                }
                if state.joined.is_none() && self.held.get() + data.len() > limit {
                    self.discard(&mut state);
                } else {
                    self.hold(&mut state, data.len());
                    state.body.push_back(data);
                }
            }
            Ok(Part::Trailers(fields)) => {
                let size = size_of_fields(&fields);
                let is_full = state.joined.is_none() && self.held.get() + size > limit;
                if state.unusable || is_full {
                    self.discard(&mut state);
                    return;
                }
                self.hold(&mut state, size);
                state.trailers = Some(fields);
            }
            Ok(Part::Hints(_) | Part::Pushed { .. } | Part::Closed) => {}
            Err(_) => state.unusable = true,
        }
        state.wake();
    }

    fn hold(&self, state: &mut State, bytes: usize) {
        state.bytes += bytes;
        self.held.set(self.held.get() + bytes);
    }
}

/// The use that a pushed answer permits without asking its origin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fresh {
    /// It may be used for this time after it came.
    For(Duration),
    /// It must be validated before each use.
    Never,
    /// It names no lifetime.
    Unsaid,
}

impl Fresh {
    fn of(head: &ResponseHead) -> Self {
        let policy = ResponsePolicy::of(head);
        // The clock of the client may be wrong: only the times in the answer count.
        let freshness = policy.freshness(CacheRules::PRIVATE, Receipt::default());
        match freshness.remaining(Duration::ZERO) {
            _ if policy.needs_validation() => Self::Never,
            None => Self::Unsaid,
            Some(Duration::ZERO) => Self::Never,
            Some(time) => Self::For(time),
        }
    }
}

/// Whether an answer may wait a moment for its request. Its status may be one that no cache keeps,
/// since a push answers a request that is about to come (RFC 9113 section 8.4.2).
fn may_be_kept(head: &ResponseHead) -> bool {
    is_pushable_status(head.status) && !ResponsePolicy::of(head).forbids_storage()
}

/// Returns the time for which a browser's cache can use an answer without asking, where its origin
/// names one.
pub fn fresh_for(head: &ResponseHead) -> Option<Duration> {
    match Fresh::of(head) {
        Fresh::For(time) if head.status == 200 && may_be_kept(head) => Some(time),
        _ => None,
    }
}

/// Forgets what waited too long, while there is anything.
async fn keep_swept(store: Weak<PushStore>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY * 2).await;
        let Some(store) = store.upgrade() else { return };
        store.sweep();
        if store.entries.borrow().is_empty() {
            store.sweeping.set(false);
            return;
        }
    }
}

/// A pushed answer on its way to the browser.
struct Serving {
    pushed: Rc<Pushed>,
    status: Option<&'static str>,
    stage: Stage,
}

enum Stage {
    Head,
    Body,
    Over,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Nobody reads on: what still comes is thrown away.
        let mut state = self.pushed.state.borrow_mut();
        if !state.done {
            self.pushed.discard(&mut state);
        }
    }
}

impl Parts for Serving {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut state = self.pushed.state.borrow_mut();
        // Something may have been passed on already: what broke off must not look whole.
        if state.unusable {
            self.stage = Stage::Over;
            let error = Error::new(Kind::Truncated, Side::Peer, "a pushed answer broke off");
            return Poll::Ready(Some(Err(
                error.with_retry(crate::error::Retry::IfIdempotent)
            )));
        }
        match self.stage {
            Stage::Head => {
                if let Some(head) = &state.head {
                    self.stage = Stage::Body;
                    let mut head = head.clone();
                    self.pushed.reporter.note_given(&self.pushed.request, &head);
                    // While its page loads, a push is as good as an answer (RFC 9113 section
                    // 8.4.2); after that it is a stored one.
                    let waited = self.pushed.since.elapsed();
                    if waited > KEEP_UNSAID {
                        let age =
                            |age: &[u8]| String::from_utf8_lossy(age).trim().parse::<u64>().ok();
                        let age = head.fields.get("age").and_then(age).unwrap_or(0);
                        head.fields
                            .set("age", age.saturating_add(waited.as_secs()).to_string());
                    }
                    if let Some(status) = self.status {
                        head.fields.push("cache-status", status);
                    }
                    return Poll::Ready(Some(Ok(Part::Head(head))));
                }
            }
            Stage::Body => {
                if let Some(piece) = state.body.pop_front() {
                    state.bytes -= piece.len();
                    state.used += piece.len();
                    METRICS.push_bytes_used.add(piece.len() as u64);
                    self.pushed.held.set(self.pushed.held.get() - piece.len());
                    if let Some(waker) = state.filler.take() {
                        waker.wake();
                    }
                    return Poll::Ready(Some(Ok(Part::Data(piece))));
                }
                if state.done {
                    self.stage = Stage::Over;
                    return Poll::Ready(
                        state
                            .trailers
                            .take()
                            .map(|fields| Ok(Part::Trailers(fields))),
                    );
                }
            }
            Stage::Over => return Poll::Ready(None),
        }
        state.waiter = Some(cx.waker().clone());
        Poll::Pending
    }
}
