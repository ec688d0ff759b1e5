//! Push: the gateway finds out what a page will need, fetches it, and sends it before the browser asks.
//!
//! ```text
//!  answer to a GET ──┬─ its head: Link, X-Associated-Content ([`named`])      ┐
//!                    ├─ its body: HTML and CSS as they pass ([`document`])    ├─▶ one list per page ([`page`]) ─▶ promises
//!                    └─ what others needed with it ([`crate::learned`])       ┘   fetched in order ([`gate`])
//! ```
//!
//! A promise leaves before the bytes that mention the resource, so that the client never asks for what is on its way; its
//! data leaves after everything that was asked for. Fetches go down the same pipeline as requests, so the same limits and the
//! same policy hold for them. Cookies go to the page's own origin only. A push that comes too late for its page's
//! stream goes with the session's companion ([`crate::companion`]).

mod companion;
mod document;
mod fetch;
mod gate;
pub(crate) mod named;
mod page;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tandem_http::message::content_length;
use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_predict::auto::url::Kind as Learnt;
use tandem_predict::scan::{Kind, Need};
use tandem_predict::{Candidate, Exchange as Seen};

use crate::companion::{FIELD, Treatment, asks_for_page, is_companion, is_reserved, url_hash};
use crate::error::{Error, Kind as Fault, Side};
use crate::exchange::{Exchange, Part, Parts, Peer, Reply};
use crate::learned::Learned;
use crate::metrics::METRICS;
use crate::stage::Stage;
use document::Document;
use fetch::redirect;
use gate::Gate;
use page::{Page, url_of};

/// What a gateway pushes.
#[derive(Clone, Debug)]
pub struct Pushing {
    /// What was learned; `None`: nothing is learned, and only what a page itself says is pushed.
    pub learned: Option<Arc<Learned>>,
    /// Share of page loads for which nothing is pushed, to see what difference it makes: 0 to 1.
    pub hold_out: f64,
    /// Only resources of the page's own origin: the gateway stands for no other.
    pub own_origin_only: bool,
}

/// Bounds of what is pushed.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Resources for one page.
    page_pushes: usize,
    /// Bytes of bodies for one page.
    page_bytes: u64,
    /// Bytes of one body.
    asset_bytes: u64,
    /// Pushes of a session whose end the client has not reported.
    session_pushes: usize,
    /// Pushes of a session that are fetched at once.
    fetches: usize,
    own_origin_only: bool,
}

/// The stage of one session.
pub struct Push {
    session: Rc<SessionState>,
    next: Rc<dyn Stage>,
}

impl Push {
    /// A stage for the session of `peer`.
    pub fn new(pushing: &Rc<Pushing>, peer: Peer, next: Rc<dyn Stage>) -> Self {
        let limits = Limits::new(pushing.own_origin_only);
        let session = SessionState {
            peer,
            user: pushing.learned.as_ref().map_or(0, |learned| learned.user(peer.session, peer.address)),
            pushing: Rc::clone(pushing),
            limits,
            gate: Gate::new(limits.fetches),
            given: RefCell::default(),
            held: RefCell::default(),
            promised: RefCell::default(),
            later: RefCell::default(),
            closed: Cell::new(false),
            page: RefCell::default(),
            companion: Cell::new(false),
            carried: Cell::new(0),
            last: RefCell::default(),
        };
        Self { session: Rc::new(session), next }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        // Both hold pages, which hold the session in turn.
        self.session.closed.set(true);
        self.session.last.take();
        let later = self.session.later.take();
        drop(later);
    }
}

/// The stage of a session for which nothing is pushed: it knows no companion, and asks nobody else for one.
pub struct NoPush {
    /// Where exchanges go on.
    pub next: Rc<dyn Stage>,
}

impl Stage for NoPush {
    fn call(&self, exchange: Exchange) -> Reply {
        if is_reserved(&exchange.request.authority) { unknown() } else { self.next.call(exchange) }
    }
}

/// What a name is answered with that is nobody's.
fn unknown() -> Reply {
    Reply::fail(Error::new(Fault::Dns, Side::Origin, "no origin has this name"))
}

impl Stage for Push {
    fn call(&self, exchange: Exchange) -> Reply {
        if is_companion(&exchange.request) {
            return companion::answer(&self.session, exchange);
        }
        if is_reserved(&exchange.request.authority) {
            return unknown();
        }
        if exchange.request.method != Method::Get || exchange.request.protocol.is_some() {
            return self.next.call(exchange);
        }
        let page = Page::new(&self.session, &exchange, &self.next);
        let (request, push) = (exchange.request.clone(), exchange.peer.push);
        if let Some(page) = &page {
            self.session.note_asked(page.url(), &request);
        }
        let reply = self.next.call(exchange);
        match page {
            Some(page) => Reply::new(Watched {
                page,
                request,
                push,
                reply,
                document: None,
                ready: VecDeque::new(),
                unsized_body: None,
                over: false,
            }),
            None => reply,
        }
    }
}

/// What a session's pages share.
struct SessionState {
    peer: Peer,
    user: u64,
    pushing: Rc<Pushing>,
    limits: Limits,
    gate: Rc<Gate>,
    given: RefCell<Given>,
    /// What the client said that it holds from earlier sessions, by [`url_hash`].
    held: RefCell<HashSet<u32>>,
    /// URLs of pushes whose end has not been reported, by [`url_hash`].
    promised: RefCell<HashMap<u32, String>>,
    /// Pushes that wait for the companion.
    later: RefCell<Later>,
    /// A companion is open.
    companion: Cell<bool>,
    /// Promises handed to an open companion so far.
    carried: Cell<u64>,
    /// The session is over.
    closed: Cell<bool>,
    /// The page loaded last: its URL, when, and whether it was held out.
    page: RefCell<Option<(String, Instant, Treatment)>>,
    /// The last page, while it did without something that the client was thought to have.
    last: RefCell<Option<Rc<Page>>>,
}

#[derive(Default)]
struct Later {
    ready: VecDeque<Part>,
    waker: Option<Waker>,
}

/// URLs that the client was given and keeps, the older half forgotten now and then: whether it can use them again without
/// asking.
#[derive(Default)]
struct Given {
    recent: HashMap<String, bool>,
    before: HashMap<String, bool>,
}

/// A page of which another names itself the cause so soon is part of it.
const FRAMES: Duration = Duration::from_secs(4);

/// URLs of each half.
const GIVEN: usize = 4096;

impl Given {
    fn get(&self, url: &str) -> Option<bool> {
        self.recent.get(url).or_else(|| self.before.get(url)).copied()
    }

    fn insert(&mut self, url: String, reusable: bool) {
        if self.recent.len() >= GIVEN {
            self.before = std::mem::take(&mut self.recent);
        }
        self.recent.insert(url, reusable);
    }

    fn remove(&mut self, url: &str) {
        self.recent.remove(url);
        self.before.remove(url);
    }
}

impl SessionState {
    fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether the client has it already.
    fn has(&self, url: &str, request: &RequestHead) -> bool {
        self.given.borrow().get(url) == Some(true) || self.held.borrow().contains(&url_hash(request))
    }

    /// Whether one more may be promised; notes it if so.
    fn admits(&self, request: &RequestHead) -> bool {
        let url = url_of(request);
        let mut promised = self.promised.borrow_mut();
        if promised.len() >= self.limits.session_pushes {
            return false;
        }
        self.given.borrow_mut().insert(url.clone(), true);
        promised.insert(url_hash(request), url);
        true
    }

    /// A promise came to nothing.
    fn withdraw(&self, hash: u32, url: &str) {
        self.promised.borrow_mut().remove(&hash);
        self.given.borrow_mut().remove(url);
    }

    /// The client gets the answer with this head: whether it can use it again decides if it may be given it again.
    fn note_given(&self, url: &str, head: &ResponseHead) {
        let mut given = self.given.borrow_mut();
        let reusable = is_reusable(head);
        if reusable || is_kept(head) {
            given.insert(url.to_owned(), reusable);
        } else {
            given.remove(url);
        }
    }

    /// A request is here. Who asks for what he was given, as if he had never seen it, has lost what he had (a new profile,
    /// an emptied cache, another browser): it is his to get again, what the last page did without as well.
    fn note_asked(&self, url: &str, request: &RequestHead) {
        let checks = ["if-none-match", "if-modified-since"].iter().any(|name| request.fields.contains(name))
            || ["no-cache", "max-age=0"].iter().any(|word| request.fields.has_token("cache-control", word));
        let had = self.given.borrow().get(url).is_some() || self.held.borrow().contains(&url_hash(request));
        if checks || !had {
            return;
        }
        self.given.take();
        self.held.take();
        let last = self.last.take();
        if let Some(page) = last {
            page.promise_skipped(url);
        }
    }

    /// A promise without a stream of its page's: it goes with the companion, while there is one or may be one soon.
    fn promise_later(&self, promise: Part) {
        let mut later = self.later.borrow_mut();
        if self.closed.get() || later.ready.len() >= self.limits.page_pushes {
            // What is in it looks at the session as it goes.
            drop(later);
            drop(promise);
            return;
        }
        later.ready.push_back(promise);
        self.carried.set(self.carried.get() + u64::from(self.companion.get()));
        if let Some(waker) = later.waker.take() {
            waker.wake();
        }
    }

    /// A page is about to be sent: whether anything is pushed with it. What belongs to a page that was just sent, as a frame
    /// does, shares its treatment, and the client is told nothing new.
    fn treat(&self, url: &str, request: &RequestHead) -> (Treatment, bool) {
        let referer = request.fields.get("referer").unwrap_or_default();
        if let Some((page, at, treatment)) = &*self.page.borrow()
            && page.as_bytes() == referer
            && at.elapsed() < FRAMES
        {
            return (*treatment, false);
        }
        let held_out = self.pushing.hold_out > 0.0 && random() < self.pushing.hold_out;
        let (treatment, count) = match held_out {
            true => (Treatment::HeldOut, &METRICS.pages_held_out),
            false => (Treatment::Pushed, &METRICS.pages_pushed),
        };
        count.add(1);
        self.page.replace(Some((url.to_owned(), Instant::now(), treatment)));
        (treatment, true)
    }

    /// Whether what a request asks for belongs to a page that gets no pushes.
    fn is_held_out(&self) -> bool {
        self.page.borrow().as_ref().is_some_and(|(_, _, treatment)| *treatment == Treatment::HeldOut)
    }

    /// Tells the predictor of an answer and asks what will be needed with it.
    fn learn(&self, url: &str, request: &RequestHead, head: &ResponseHead) -> Vec<Candidate> {
        let Some(learned) = &self.pushing.learned else { return Vec::new() };
        // What only a login shows is nobody else's.
        if request.fields.contains("authorization") {
            return Vec::new();
        }
        let text = |fields: &tandem_http::Fields, name: &str| {
            fields.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
        };
        let (referer, agent) = (text(&request.fields, "referer"), text(&request.fields, "user-agent"));
        let (destination, accept) = (text(&request.fields, "sec-fetch-dest"), text(&request.fields, "accept"));
        let content_type = text(&head.fields, "content-type");
        learned.sending(&Seen {
            session: self.peer.session,
            user: self.user,
            now: 0,
            url,
            get: true,
            status: head.status,
            size: content_length(&head.fields).ok().flatten().unwrap_or(0),
            referer: referer.as_deref(),
            agent: agent.as_deref(),
            content_type: content_type.as_deref(),
            destination: destination.as_deref(),
            accept: accept.as_deref(),
        })
    }
}

impl Drop for SessionState {
    fn drop(&mut self) {
        METRICS.pushes_wasted.add(self.promised.borrow().len() as u64);
        if let Some(learned) = &self.pushing.learned {
            learned.session_closed(self.peer.session);
        }
    }
}

/// Whether the browser's cache will hold an answer for a while (RFC 9111 section 4.2, the heuristic included).
fn is_reusable(head: &ResponseHead) -> bool {
    let fields = &head.fields;
    let never = ["no-store", "no-cache", "max-age=0"].iter().any(|word| fields.has_token("cache-control", word));
    let says = fields.get("cache-control").is_some_and(|value| value.windows(7).any(|part| part == b"max-age"));
    !never && (says || fields.contains("expires") || fields.contains("last-modified"))
}

/// Whether the browser's cache will hold it at least to check it (RFC 9111 section 4.3).
fn is_kept(head: &ResponseHead) -> bool {
    !head.fields.has_token("cache-control", "no-store")
        && (head.fields.contains("etag") || head.fields.contains("last-modified"))
}

/// From 0 to 1; whoever could guess it would learn nothing.
fn random() -> f64 {
    use std::hash::BuildHasher;
    let bits = std::hash::RandomState::new().hash_one(0);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// An answer on its way, watched for what it needs.
struct Watched {
    page: Rc<Page>,
    request: RequestHead,
    push: bool,
    reply: Reply,
    document: Option<Document>,
    ready: VecDeque<Part>,
    /// Bytes of the body so far, where its head did not say how many there are.
    unsized_body: Option<u64>,
    over: bool,
}

impl Parts for Watched {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        loop {
            // Promises go first: what mentions them comes after them.
            if !self.over
                && let Poll::Ready(promise) = self.page.poll_promise(cx)
            {
                return Poll::Ready(Some(Ok(promise)));
            }
            if let Some(part) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(part)));
            }
            match std::task::ready!(self.reply.poll_part(cx)) {
                Some(Ok(Part::Head(mut head))) => {
                    self.on_head(&mut head);
                    self.ready.push_back(Part::Head(head));
                }
                Some(Ok(part)) => {
                    if let Part::Data(data) = &part {
                        self.unsized_body = self.unsized_body.map(|size| size + data.len() as u64);
                        self.page.read(&mut self.document, data);
                    }
                    self.ready.push_back(part);
                }
                end => {
                    if let (None, Some(size), Some(learned)) =
                        (&end, self.unsized_body, &self.page.session.pushing.learned)
                    {
                        learned.body_sent(self.page.url(), size);
                    }
                    self.page.end_document(&mut self.document);
                    self.over = true;
                    self.page.end();
                    return Poll::Ready(end);
                }
            }
        }
    }
}

impl Watched {
    fn on_head(&mut self, head: &mut ResponseHead) {
        let session = Rc::clone(&self.page.session);
        // It is ours to say, not an origin's.
        head.fields.remove(FIELD);
        let mut needs = named::named(self.page.url(), head);
        if head.status == 200 {
            session.note_given(self.page.url(), head);
        }
        let candidates = session.learn(self.page.url(), &self.request, head);
        self.unsized_body = (head.status == 200 && !head.fields.contains("content-length")).then_some(0);
        if !self.push {
            return;
        }
        self.page.mind_referrer(head);
        let document = if head.status == 200 { self.page.document(self.page.url(), head) } else { None };
        let target = redirect(self.page.url(), head);
        if (document.is_some() && is_page(head)) || (target.is_some() && asks_for_page(&self.request)) {
            let (treatment, new) = session.treat(self.page.url(), &self.request);
            if new {
                head.fields.set(FIELD, treatment.as_str());
            }
        }
        // A page that the browser only checks, or loads again, comes with what its cache has, or with nothing from ours.
        let known = ["if-none-match", "if-modified-since"].iter().any(|name| self.request.fields.contains(name))
            || self.request.fields.has_token("cache-control", "no-cache");
        if session.is_held_out() || known {
            return;
        }
        if head.status != 200 {
            needs.clear();
        }
        needs.extend(target);
        self.document = document;
        self.page.promise(needs);
        self.page.promise_learned(candidates.iter().filter_map(learned_need).collect());
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.over {
            self.page.abandon();
        }
    }
}

fn is_page(head: &ResponseHead) -> bool {
    !head.fields.get("content-type").is_some_and(|value| value.to_ascii_lowercase().starts_with(b"text/css"))
}

/// What others needed, as a need.
fn learned_need(candidate: &Candidate) -> Option<Need> {
    let (kind, urgency) = match candidate.kind {
        Learnt::Style => (Kind::Style, 1),
        Learnt::Script => (Kind::Script, 2),
        Learnt::Font => (Kind::Font, 3),
        Learnt::Data => (Kind::Fetch, 3),
        Learnt::Image => (Kind::Image, 4),
        Learnt::Open => (Kind::Other, 4),
        Learnt::Page | Learnt::Download => return None,
    };
    Some(Need { url: candidate.url.to_string(), kind, urgency, anonymous: false })
}
