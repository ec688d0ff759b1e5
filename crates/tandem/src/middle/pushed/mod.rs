//! The client's stage of push: it takes the pushes out of the replies that pass, and answers
//! requests with them.
//!
//! ```text
//!  request ─▶ Pushed ─┬─ a push fits ──▶ reply from the session's store
//!                     └─ none does ────▶ next stage ─▶ gateways
//!             Pushed ◀── reply with Part::Pushed ──────────┘
//!               └─▶ one task per push reads it into the store
//! ```
//!
//! The decisions are those of [`tandem_push::client`]. This stage moves the data, keeps the clock,
//! and runs the tasks. A relay has no such stage, and the pushes travel on.

mod companion;
mod crossing;
mod digests;
mod session;
mod tunnels;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tandem_http::cache::{SiteData, clears, is_safe};
use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_push::client::{StoreLimits, preload_link};
use tandem_push::fetch_standard::is_navigation;
use tandem_push::wire::{CROSSED_FIELD, NextPush, PUSH_FIELD, Treatment};
use tokio::time::Instant;

use self::crossing::{Crossing, Crossings};
use self::digests::Digests;
use self::session::{Serving, SessionPushes};
use crate::digest_file::SharedDigest;
use crate::error::{Error, Kind, Side};
use crate::exchange::{
    Exchange, Isolation, Part, Parts, PushedPart, Reply, SessionMark, Sink, Supply,
};
use crate::stage::{SessionPool, Stage, refuse_reserved};

/// The number of pushes that a reply takes in before other tasks get their turn. A gateway may send
/// many that need few bytes.
const PUSHES_PER_TURN: usize = 16;

/// The largest number of resources that the hints of one page announce to the browser.
const MAX_HINTS: usize = 24;

/// The options of the stage.
#[derive(Clone, Copy, Debug)]
pub struct PushOptions {
    /// The limits and the behaviour of each session's store. Memory 0 refuses all pushes.
    pub store: StoreLimits,
    /// Announces pushes that come before a page's head to the browser (`Link: rel=preload`).
    pub early_hints: bool,
    /// Adds a field to pushed responses that says so (`Cache-Status`, RFC 9211).
    pub cache_status: bool,
    /// Reports to the next session's gateway which answers the browser received on the last
    /// session.
    pub digest: bool,
    /// The documents for the next page that the gateway may push.
    pub next: NextPush,
    /// The gateway's half of push is in this process.
    pub is_gateway_local: bool,
    /// The largest number of isolation keys with a stored digest.
    pub max_keys: usize,
}

/// The client's stage of push.
pub struct Pushed {
    shared: Rc<PushedShared>,
}

/// The state of the stage that outlives a call.
struct PushedShared {
    options: PushOptions,
    pool: Rc<dyn SessionPool>,
    next: Rc<dyn Stage>,
    sessions: RefCell<HashMap<Isolation, Vec<Rc<SessionPushes>>>>,
    digests: RefCell<Digests>,
    crossings: Rc<Crossings>,
}

impl Pushed {
    /// Creates a stage before `next` for the sessions of `pool`.
    pub fn new(options: PushOptions, pool: Rc<dyn SessionPool>, next: Rc<dyn Stage>) -> Self {
        Self {
            shared: Rc::new(PushedShared {
                digests: RefCell::new(Digests::new(options.max_keys)),
                options,
                pool,
                next,
                sessions: RefCell::default(),
                crossings: Rc::default(),
            }),
        }
    }
}

impl Pushed {
    /// Uses `digest` for requests without an isolation key. A file keeps it.
    #[must_use]
    pub fn with_digest(self, digest: SharedDigest) -> Self {
        self.shared.digests.borrow_mut().keep_in_file(digest);
        self
    }

    /// Forgets what the browser has received, for the parts of isolation keys that belong to a
    /// connection.
    pub fn end_parts_of(&self, connection: u64) {
        self.shared.digests.borrow_mut().end_parts_of(connection);
    }
}

impl Drop for Pushed {
    /// Ends the pushes of all sessions, so that those without a request count as wasted.
    fn drop(&mut self) {
        for pushes in self.shared.sessions.take().into_values().flatten() {
            pushes.close();
        }
    }
}

impl Stage for Pushed {
    fn call(&self, exchange: Exchange) -> Reply {
        let shared = &self.shared;
        let request = &exchange.request;
        if let Some(refusal) = refuse_reserved(request) {
            return refusal;
        }
        if !shared.takes_pushes() {
            return shared.next.call(exchange);
        }
        if request.is_connect() || request.protocol.is_some() {
            return tunnels::forward(shared, exchange);
        }
        if !is_safe(&request.method) {
            shared.note_unsafe_request(&exchange.isolation, request);
        }
        let Some(serving) = shared.answer(&exchange) else {
            return Crossing::reply(shared, exchange);
        };
        let shared = Rc::clone(shared);
        if is_navigation(&exchange.request)
            && let Some(current) = shared.pool.current(&exchange.isolation)
        {
            // The gateway pushes the resources of the page when it hears of the request.
            shared.open_companion(&exchange.isolation, current.mark);
        }
        Reply::generate(|mut sink| async move {
            sink.set_supply(serving.supply());
            let passed = pass(Reply::new(serving), &mut sink).await;
            // A push that broke off before its first byte was passed on is ignored.
            if passed.is_ok() || sink.is_used() {
                return passed;
            }
            sink.set_supply(Supply::Requested);
            // This request may cross a later promise of the same resource.
            pass(Crossing::reply(&shared, exchange), &mut sink).await
        })
    }
}

async fn pass(mut reply: Reply, sink: &mut Sink) -> Result<(), Error> {
    while let Some(part) = reply.part().await {
        sink.send(part?).await;
    }
    Ok(())
}

impl PushedShared {
    const fn takes_pushes(&self) -> bool {
        self.options.store.memory > 0
    }

    /// Returns the answer to a request from the store of its session.
    fn answer(&self, exchange: &Exchange) -> Option<Serving> {
        if exchange.request.method != Method::Get || !exchange.body.is_empty() {
            return None;
        }
        let current = self.pool.current(&exchange.isolation)?;
        let pushes = self.find(&exchange.isolation, &current.mark)?;
        // An idle session may be lost, so it is unknown whether more of the push will arrive.
        pushes.answer(
            &exchange.request,
            current.was_idle,
            self.options.cache_status,
            false,
        )
    }

    /// Sends an exchange on, and takes the pushes out of its reply. The reply may be a reference to
    /// a push only if `takes_reference` is true.
    fn forward(self: &Rc<Self>, exchange: Exchange, takes_reference: bool) -> Reply {
        let (isolation, request) = (exchange.isolation.clone(), &exchange.request);
        // The companion is sent together with a page's request. A push that is found late, or
        // behind a redirect, then does not wait for a round trip.
        if request.method == Method::Get
            && is_navigation(request)
            && let Some(mark) = self.pool.open(&isolation)
        {
            self.open_companion(&isolation, mark);
        }
        Reply::new(Observed {
            sent: Instant::now(),
            request: Some(Arc::clone(request)),
            hints: Vec::new(),
            takes_reference,
            reply: self.next.call(exchange),
            shared: Rc::clone(self),
            isolation,
        })
    }

    /// Drops the stored answers that a request with an unsafe method may change.
    fn note_unsafe_request(&self, isolation: &Isolation, request: &RequestHead) {
        self.for_each_session(isolation, |pushes| pushes.note_unsafe_request(request));
    }

    /// Drops the stored data that a page may change by the bytes of a tunnel.
    fn note_hidden_change(&self, isolation: &Isolation) {
        let is_awaited = {
            let sessions = self.sessions.borrow();
            let mut of_key = sessions.get(isolation).into_iter().flatten();
            of_key.any(|pushes| pushes.awaits_hidden_change())
        };
        if is_awaited {
            self.for_each_session(isolation, SessionPushes::note_hidden_change);
        }
    }

    /// Drops a stored answer that is older than a response to a request, which left at `sent`.
    fn note_newer_response(
        &self,
        isolation: &Isolation,
        sent: Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) {
        let note = |pushes: &SessionPushes| {
            pushes.note_newer_response(sent.into_std(), request, head);
        };
        self.for_each_session(isolation, note);
    }

    /// Drops all stored answers of the request's origin.
    fn clear_origin(&self, isolation: &Isolation, request: &RequestHead) {
        self.for_each_session(isolation, |pushes| pushes.clear_origin(request));
    }

    /// Notes a response that the browser gets, for the pushes of its session.
    fn note_response(&self, isolation: &Isolation, request: &RequestHead, head: &ResponseHead) {
        let current = self.pool.current(isolation);
        let pushes = current.and_then(|current| self.find(isolation, &current.mark));
        if let Some(pushes) = pushes {
            pushes.note_response(request, head);
        }
    }

    /// Drops the copies of pushes that wait for a request like this one.
    fn drop_copy(&self, isolation: &Isolation, request: &RequestHead) {
        self.for_each_session(isolation, |pushes| pushes.drop_copy(request));
    }

    /// Calls a function with the pushes of each session of a key.
    fn for_each_session(&self, isolation: &Isolation, call: impl Fn(&SessionPushes)) {
        let sessions = self.sessions.borrow().get(isolation).cloned();
        for pushes in sessions.unwrap_or_default() {
            call(&pushes);
        }
    }

    fn find(&self, isolation: &Isolation, mark: &Rc<SessionMark>) -> Option<Rc<SessionPushes>> {
        let sessions = self.sessions.borrow();
        let mut found = sessions.get(isolation)?.iter();
        found.find(|pushes| pushes.is_of(mark)).cloned()
    }

    /// Returns the pushes of a session, and creates them if the session has none yet.
    fn pushes(&self, isolation: &Isolation, mark: Rc<SessionMark>) -> Rc<SessionPushes> {
        if let Some(pushes) = self.find(isolation, &mark) {
            return pushes;
        }
        self.forget_ended();
        let digest = self.options.digest.then(|| self.digest(isolation));
        let (pool, key) = (Rc::clone(&self.pool), isolation.clone());
        let is_current = move |mark: &Rc<SessionMark>| pool.is_current(&key, mark);
        let store = self.options.store;
        let local = self.options.is_gateway_local;
        let crossings = Rc::clone(&self.crossings);
        let is_current = Box::new(is_current);
        let pushes = SessionPushes::new(store, local, mark, digest, crossings, is_current);
        let mut sessions = self.sessions.borrow_mut();
        let of_key = sessions.entry(isolation.clone()).or_default();
        of_key.push(Rc::clone(&pushes));
        pushes
    }

    /// Forgets the pushes of sessions that have ended. They can serve no request any more.
    fn forget_ended(&self) {
        let mut ended = Vec::new();
        self.sessions.borrow_mut().retain(|isolation, sessions| {
            let is_current =
                |pushes: &Rc<SessionPushes>| self.pool.is_current(isolation, pushes.mark());
            ended.extend(sessions.extract_if(.., |pushes| !is_current(pushes)));
            !sessions.is_empty()
        });
        for pushes in ended {
            pushes.close();
        }
    }

    /// Returns the digest of a key.
    fn digest(&self, isolation: &Isolation) -> SharedDigest {
        self.digests.borrow_mut().of(isolation)
    }

    fn open_companion(self: &Rc<Self>, isolation: &Isolation, mark: Rc<SessionMark>) {
        let pushes = self.pushes(isolation, mark);
        if pushes.open_companion() {
            let accompany = companion::accompany(Rc::clone(self), pushes, isolation.clone());
            tokio::task::spawn_local(accompany);
        }
    }
}

/// A reply on its way to the browser.
struct Observed {
    reply: Reply,
    shared: Rc<PushedShared>,
    isolation: Isolation,
    /// The time at which the request left.
    sent: Instant,
    /// The request, unless it is the companion's.
    request: Option<Arc<RequestHead>>,
    /// The promises before the head, as fields for the browser.
    hints: Vec<String>,
    /// The receiver of the reply resolves references.
    takes_reference: bool,
}

impl Parts for Observed {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        for _ in 0..PUSHES_PER_TURN {
            let mut part = std::task::ready!(self.reply.poll_part(cx));
            match &mut part {
                Some(Ok(Part::Pushed(_))) => {
                    if let Some(Ok(Part::Pushed(pushed))) = part {
                        self.on_pushed(*pushed);
                    }
                    continue;
                }
                Some(Ok(Part::Head(head)))
                    if head.fields.contains(CROSSED_FIELD) && !self.takes_reference =>
                {
                    // The browser would take the reference for an empty response.
                    let error = Error::new(Kind::Protocol, Side::Peer, "a push is missing");
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(Part::Head(head))) => self.on_head(head),
                // The origin may have got the request.
                Some(Err(_)) => self.note_change(),
                _ => {}
            }
            return Poll::Ready(part);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Observed {
    /// Drops the stored answers that an unsafe request may change. A push that was under way
    /// during the request precedes its answer and may be stale, whatever the answer says.
    fn note_change(&self) {
        if let Some(request) = &self.request
            && !is_safe(&request.method)
        {
            self.shared.note_unsafe_request(&self.isolation, request);
        }
    }

    fn on_pushed(&mut self, pushed: PushedPart) {
        let PushedPart {
            request,
            reply,
            priority,
            session: Some(mark),
        } = pushed
        else {
            return;
        };
        // A promise of SPDY does not tell whether its request has a `Referer`.
        let may_hint = self.shared.options.early_hints && mark.promises_have_fields;
        if may_hint && self.hints.len() < MAX_HINTS {
            self.hints
                .extend(preload_link(self.request.as_deref(), &request));
        }
        // A push on a session that has been replaced would serve no request.
        if !self.shared.pool.is_current(&self.isolation, &mark) {
            return;
        }
        let pushes = self.shared.pushes(&self.isolation, mark);
        pushes.take_in(request, reply, priority);
    }

    fn on_head(&mut self, head: &mut ResponseHead) {
        let shared = &self.shared;
        if let Some(request) = &self.request {
            if head.fields.contains("set-cookie") {
                shared.note_response(&self.isolation, request, head);
            }
            if shared.options.digest {
                let digest = shared.digest(&self.isolation);
                let now = Instant::now().into_std();
                digest.note(now, request, head);
            }
            // A reference names a push, and is no response of the origin.
            if !head.fields.contains(CROSSED_FIELD) {
                shared.note_newer_response(&self.isolation, self.sent, request, head);
            }
            if clears(SiteData::Cache, request, head) {
                shared.clear_origin(&self.isolation, request);
            }
        }
        self.note_change();
        let treatment = head.fields.get(PUSH_FIELD).and_then(Treatment::parse);
        if treatment.is_none() {
            return;
        }
        for link in std::mem::take(&mut self.hints) {
            head.fields.push("link", link);
        }
        if treatment == Some(Treatment::Pushed)
            && let Some(current) = shared.pool.current(&self.isolation)
        {
            shared.open_companion(&self.isolation, current.mark);
        }
    }
}
