//! Push: the gateway finds out what a page will need, fetches it, and sends it before the browser
//! asks.
//!
//! ```text
//!  answer to a GET ──┬─ its head: Link, X-Associated-Content ([`named`])         ┐
//!                    ├─ its body: HTML, CSS, imports as they pass ([`document`]) ├─▶ one list per page ([`page`]) ─▶ promises
//!                    └─ what others needed with it ([`crate::learned`])          ┘   fetched in order ([`gate`])
//! ```
//!
//! A promise leaves before the bytes that mention the resource, so that the client never asks for
//! what is on its way; its data leaves after everything that was asked for. Fetches go down the
//! same pipeline as requests, so the same limits and the same policy hold for them. Cookies go to
//! the page's own origin only. A push that comes too late for its page's stream goes with the
//! session's companion ([`tandem_push::wire`]).

mod companion;
mod document;
mod fetch;
mod gate;
mod hosts;
pub(crate) mod named;
mod page;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use tandem_http::cache::{CacheRules, Receipt, RequestPolicy, ResponsePolicy, validation};
use tandem_http::message::content_length;
use tandem_http::{Method, RequestHead, ResponseHead, Scheme};
use tandem_predict::auto::url::{Kind as Learnt, parts};
use tandem_predict::{Candidate, Exchange as Seen, Worth};
use tandem_preload::{Kind, Need, resolve, split};
use tandem_push::fetch_standard::{
    has_only_browser_fields, is_navigation, target_origin, wants_one_format,
};
use tandem_push::wire::{
    PUSH_FIELD, RequestHashes, Treatment, is_companion, is_reserved, url_hash,
};

use crate::error::{Error, Kind as Fault, Side};
use crate::exchange::{Exchange, Isolation, Part, Parts, Peer, Reply};
use crate::gauge::{Gauge, Measure};
use crate::learned::Learned;
use crate::metrics::METRICS;
use crate::path::Facts;
use crate::priority::SharedPriority;
use crate::stage::Stage;
use document::{Document, Sort, Use};
use fetch::redirect;
use gate::Gate;
use hosts::Hosts;
use page::{Page, url_of};

/// What a gateway pushes.
#[derive(Clone, Debug)]
pub struct Pushing {
    /// What was learned; `None`: nothing is learned, and only what a page itself says is pushed.
    pub learned: Option<Arc<Learned>>,
    /// What pays is judged by the session's path, where that can be measured.
    pub by_path: bool,
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
    /// Of the session's path; what else may outlive the session must not keep its connection.
    _gauge: Option<Rc<Gauge>>,
    next: Rc<dyn Stage>,
}

impl Push {
    /// A stage for the session of `peer` on `path`.
    pub fn new(
        pushing: &Rc<Pushing>,
        path: &Rc<dyn Facts>,
        peer: Peer,
        next: Rc<dyn Stage>,
    ) -> Self {
        let limits = Limits::new(pushing.own_origin_only);
        let gauge = if pushing.by_path && pushing.learned.is_some() {
            Gauge::of(path).map(Rc::new)
        } else {
            None
        };
        let session = SessionState {
            peer,
            user: pushing
                .learned
                .as_ref()
                .map_or(0, |learned| learned.user(peer.session, peer.address)),
            pushing: Rc::clone(pushing),
            limits,
            gauge: gauge.as_ref().map(Rc::downgrade),
            gate: Gate::new(limits.fetches),
            given: RefCell::default(),
            held: RefCell::default(),
            asking: RefCell::default(),
            promised: RefCell::default(),
            later: RefCell::default(),
            closed: Cell::new(false),
            page: RefCell::default(),
            companion: Cell::new(false),
            carried: Cell::new(0),
            hosts: RefCell::default(),
            last: RefCell::default(),
        };
        Self {
            session: Rc::new(session),
            _gauge: gauge,
            next,
        }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        // All of them hold pages, which hold the session in turn.
        self.session.closed.set(true);
        self.session.last.take();
        drop(self.session.hosts.take());
        let later = self.session.later.take();
        drop(later);
    }
}

/// The stage of a session for which nothing is pushed: it knows no companion, and asks nobody else
/// for one.
pub struct NoPush {
    /// Where exchanges go on.
    pub next: Rc<dyn Stage>,
}

impl Stage for NoPush {
    fn call(&self, exchange: Exchange) -> Reply {
        if is_reserved(&exchange.request.authority) {
            unknown()
        } else {
            self.next.call(exchange)
        }
    }
}

/// What a name is answered with that is nobody's.
fn unknown() -> Reply {
    Reply::fail(Error::new(
        Fault::Dns,
        Side::Origin,
        "no origin has this name",
    ))
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
        if !exchange.peer.push && self.session.pushing.learned.is_none() {
            return self.next.call(exchange);
        }
        let Some(asked) = Request::of(&exchange, &self.next) else {
            return self.next.call(exchange);
        };
        self.session.note_asked(&asked);
        let reply = self.next.call(exchange);
        let (session, asked) = (Rc::clone(&self.session), Rc::new(asked));
        let watched = Watched {
            session,
            asked,
            page: None,
            reply,
            document: None,
            held: None,
            unsized_body: None,
            over: false,
        };
        Reply::new(watched)
    }
}

/// A request that passed, and all that those need which are made for its sake.
struct Request {
    head: RequestHead,
    url: String,
    /// Its [`url_hash`].
    hash: u32,
    peer: Peer,
    isolation: Isolation,
    next: Rc<dyn Stage>,
}

impl Request {
    fn of(exchange: &Exchange, next: &Rc<dyn Stage>) -> Option<Self> {
        let url = resolve(&url_of(&exchange.request), "")?;
        let (head, isolation) = (exchange.request.clone(), exchange.isolation.clone());
        Some(Self {
            hash: url_hash(&head),
            head,
            url,
            peer: exchange.peer,
            isolation,
            next: Rc::clone(next),
        })
    }
}

/// What a session's pages share.
struct SessionState {
    peer: Peer,
    user: u64,
    pushing: Rc<Pushing>,
    limits: Limits,
    gauge: Option<Weak<Gauge>>,
    gate: Rc<Gate>,
    given: RefCell<AllGiven>,
    /// What the client said that it holds from earlier sessions, by [`url_hash`].
    held: RefCell<HashSet<u32>>,
    /// What the client asks for just now, by [`url_hash`].
    asking: RefCell<Vec<u32>>,
    /// Pushes whose end has not been reported, by [`url_hash`].
    promised: RefCell<HashMap<u32, Promised>>,
    /// Pushes that wait for the companion.
    later: RefCell<Later>,
    /// A companion is open.
    companion: Cell<bool>,
    /// Promises handed to an open companion so far.
    carried: Cell<u64>,
    /// The session is over.
    closed: Cell<bool>,
    /// The page loaded last: its URL, when, and whether it was held out.
    page: RefCell<Option<Shown>>,
    /// Which hosts the client asks, and what waits until it does.
    hosts: RefCell<Hosts>,
    /// The last page, while it did without something that the client was thought to have.
    last: RefCell<Option<Rc<Page>>>,
}

/// A page that the reader looks at.
struct Shown {
    url: String,
    at: Instant,
    treatment: Treatment,
    /// Pages that are part of it.
    frames: Vec<String>,
}

impl Shown {
    /// Whether a request for a page that names `referer` its cause, so soon, is for a part of this
    /// one.
    fn is_cause(&self, referer: &[u8]) -> bool {
        let is = |url: &String| url.as_bytes() == referer;
        self.at.elapsed() < FRAMES && (is(&self.url) || self.frames.iter().any(is))
    }
}

/// What a push is for.
struct Target {
    url: String,
    /// Its [`url_hash`].
    hash: u32,
    /// What it is asked with.
    asked: RequestHashes,
}

/// A push whose end has not been reported.
struct Promised {
    url: String,
    /// The request for its page.
    page: Rc<Request>,
    priority: SharedPriority,
    /// What it is asked with.
    asked: RequestHashes,
}

#[derive(Default)]
struct Later {
    ready: VecDeque<Part>,
    waker: Option<Waker>,
}

/// How a client has what it was given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    /// To use again without asking.
    Reusable,
    /// To use again once it has asked.
    Kept,
    /// It did not take it: it had it before, or never wanted it.
    Unsure,
}

/// URLs that the client was given, the older half forgotten now and then.
#[derive(Default)]
struct AllGiven {
    recent: HashMap<String, Given>,
    before: HashMap<String, Given>,
}

/// A page of which another names itself the cause so soon is part of it.
const FRAMES: Duration = Duration::from_secs(4);

/// Frames of a page that are remembered; those that these name are taken for pages.
const MAX_FRAMES: usize = 64;

/// URLs of each half.
const GIVEN: usize = 4096;

impl AllGiven {
    fn is_empty(&self) -> bool {
        self.recent.is_empty() && self.before.is_empty()
    }

    fn get(&self, url: &str) -> Option<Given> {
        self.recent
            .get(url)
            .or_else(|| self.before.get(url))
            .copied()
    }

    fn insert(&mut self, url: String, given: Given) {
        if self.recent.len() >= GIVEN {
            self.before = std::mem::take(&mut self.recent);
        }
        self.recent.insert(url, given);
    }

    /// What was given has not been taken.
    fn doubt(&mut self, url: &str) {
        if self.get(url).is_some() {
            self.insert(url.to_owned(), Given::Unsure);
        }
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

    /// Whether the client has it already: to use again, or as a push whose end it has not reported.
    /// The latter is of use to the page that it was made for, and to its own origin's.
    fn has(&self, target: &Target, request: &RequestHead) -> bool {
        let Target { url, hash, asked } = target;
        if let Some(push) = self
            .promised
            .borrow()
            .get(hash)
            .filter(|push| push.url == *url)
        {
            return push.asked.fits_referrer(*asked, &target_origin(request));
        }
        let given = self.given.borrow().get(url);
        matches!(given, Some(Given::Reusable | Given::Unsure)) || self.held.borrow().contains(hash)
    }

    /// Whether one more may be promised; notes it if so.
    fn admits(&self, target: &Target, page: &Rc<Request>, priority: &SharedPriority) -> bool {
        let mut promised = self.promised.borrow_mut();
        if promised.len() >= self.limits.session_pushes {
            return false;
        }
        let Target { url, hash, asked } = target;
        self.given.borrow_mut().insert(url.clone(), Given::Reusable);
        let push = Promised {
            asked: *asked,
            url: url.clone(),
            page: Rc::clone(page),
            priority: priority.clone(),
        };
        if promised.insert(*hash, push).is_some() {
            // The client lets go of it without a word.
            METRICS.pushes_wasted.add(1);
        }
        true
    }

    /// Whether the client asks for it just now: then a push comes too late.
    fn is_asked(&self, target: &Target) -> bool {
        self.asking.borrow().contains(&target.hash)
    }

    /// The page that a push was made for, until its end has been reported.
    fn page_of_push(&self, url: &str) -> Option<Rc<Request>> {
        let promised = self.promised.borrow();
        if promised.is_empty() {
            return None;
        }
        let (scheme, authority, path) = split(url)?;
        let request = RequestHead::get(Scheme::parse(scheme.as_bytes())?, authority, path);
        let push = promised
            .get(&url_hash(&request))
            .filter(|push| push.url == url)?;
        Some(Rc::clone(&push.page))
    }

    /// A promise came to nothing.
    fn withdraw(&self, target: &Target, priority: &SharedPriority) {
        let mut promised = self.promised.borrow_mut();
        // Another may have been promised since, for another page.
        if promised
            .get(&target.hash)
            .is_none_or(|push| push.priority.is_same(priority))
        {
            promised.remove(&target.hash);
            self.forget_given(target);
        }
    }

    fn forget_given(&self, target: &Target) {
        self.given.borrow_mut().remove(&target.url);
    }

    /// The client gets the answer with this head: whether it can use it again decides if it may be
    /// given it again.
    fn note_given(&self, url: &str, head: &ResponseHead) {
        let mut given = self.given.borrow_mut();
        match () {
            () if is_reusable(head) => given.insert(url.to_owned(), Given::Reusable),
            () if is_kept(head) => given.insert(url.to_owned(), Given::Kept),
            () => given.remove(url),
        }
    }

    /// A request is here. Who asks for what he was given, as if he had never seen it, has lost what
    /// he had (a new profile, an emptied cache, another browser): it is his to get again, what the
    /// last page did without as well.
    fn note_asked(self: &Rc<Self>, asked: &Request) {
        let Request {
            head: request, url, ..
        } = asked;
        self.asking.borrow_mut().push(asked.hash);
        self.note_host(url);
        if self.given.borrow().is_empty() && self.held.borrow().is_empty() {
            return;
        }
        let checks = validation::is_conditional(&request.fields)
            || RequestPolicy::of(&request.fields).wants_validation();
        let given = self
            .given
            .borrow()
            .get(url)
            .is_some_and(|given| given != Given::Unsure);
        let had = given || self.held.borrow().contains(&asked.hash);
        if checks || !had {
            return;
        }
        // A push whose end has not been reported has come to nothing, as one of a redirect does
        // over SPDY: only it was lost.
        if self.promised.borrow_mut().remove(&asked.hash).is_some() {
            self.given.borrow_mut().remove(url);
            return;
        }
        self.given.take();
        self.held.take();
        let last = self.last.take();
        if let Some(page) = last {
            page.promise_skipped(url);
        }
    }

    /// A promise without a stream of its page's: it goes with the companion, while there is one or
    /// may be one soon.
    fn promise_later(&self, promise: Part) {
        let mut later = self.later.borrow_mut();
        if self.closed.get() || later.ready.len() >= self.limits.page_pushes {
            // What is in it looks at the session as it goes.
            drop(later);
            drop(promise);
            return;
        }
        later.ready.push_back(promise);
        self.carried
            .set(self.carried.get() + u64::from(self.companion.get()));
        if let Some(waker) = later.waker.take() {
            waker.wake();
        }
    }

    /// A page is about to be sent: whether anything is pushed with it. What belongs to a page that
    /// was just sent, as a frame does, shares its treatment, and the client is told nothing new.
    fn treat(&self, url: &str, request: &RequestHead) -> (Treatment, bool) {
        if self.is_frame(request)
            && let Some(page) = &mut *self.page.borrow_mut()
        {
            if page.frames.len() < MAX_FRAMES {
                page.frames.push(url.to_owned());
            }
            return (page.treatment, false);
        }
        let held_out = self.pushing.hold_out > 0.0 && random() < self.pushing.hold_out;
        let (treatment, count) = match held_out {
            true => (Treatment::HeldOut, &METRICS.pages_held_out),
            false => (Treatment::Pushed, &METRICS.pages_pushed),
        };
        count.add(1);
        self.hosts.borrow_mut().turn();
        let shown = Shown {
            url: url.to_owned(),
            at: Instant::now(),
            treatment,
            frames: Vec::new(),
        };
        self.page.replace(Some(shown));
        (treatment, true)
    }

    /// Whether what a request asks for, a page itself, is part of the page that was shown last.
    fn is_frame(&self, request: &RequestHead) -> bool {
        let Some(referer) = request.fields.get("referer") else {
            return false;
        };
        let page = self.page.borrow();
        page.as_ref().is_some_and(|page| page.is_cause(referer))
    }

    /// Whether what a request asks for belongs to a page that gets no pushes.
    fn is_held_out(&self) -> bool {
        self.page
            .borrow()
            .as_ref()
            .is_some_and(|page| page.treatment == Treatment::HeldOut)
    }

    /// When a push pays on this session's path, if that is to decide and can be told.
    fn worth(&self) -> Option<Worth> {
        let Measure { round_trip, rate } = self.gauge.as_ref()?.upgrade()?.measure()?;
        Some(Worth::Path { round_trip, rate })
    }

    /// Tells the predictor of an answer and asks what will be needed with it.
    fn learn(&self, url: &str, request: &RequestHead, head: &ResponseHead) -> Vec<Candidate> {
        let Some(learned) = &self.pushing.learned else {
            return Vec::new();
        };
        // What only a login shows is nobody else's, and what depends on more than a browser says by
        // itself helps nobody.
        let particular = request.fields.get("accept").is_some_and(wants_one_format);
        if !has_only_browser_fields(&request.fields) || particular {
            return Vec::new();
        }
        let asked = |name: &str| request.fields.get(name).map(String::from_utf8_lossy);
        let (referer, agent) = (asked("referer"), asked("user-agent"));
        // What a push brings along belongs to its page. Of the push itself the client tells later,
        // in a while.
        let page = referer
            .as_ref()
            .and_then(|referer| self.page_of_push(referer));
        let (destination, accept) = (asked("sec-fetch-dest"), asked("accept"));
        let content_type = head.fields.get("content-type").map(String::from_utf8_lossy);
        // A frame is asked for as its page's images are, and brings what its page needs with it.
        let frame = is_navigation(request) && self.is_frame(request);
        let seen = Seen {
            session: self.peer.session,
            user: self.user,
            now: 0,
            url,
            get: true,
            status: head.status,
            size: content_length(&head.fields).ok().flatten().unwrap_or(0),
            referer: page
                .as_ref()
                .map(|page| page.url.as_str())
                .or(referer.as_deref()),
            agent: agent.as_deref(),
            content_type: content_type.as_deref(),
            destination: destination.as_deref().or_else(|| frame.then_some("iframe")),
            accept: accept.as_deref(),
        };
        if let Some(referer) = &referer {
            learned.note_asker(url, referer);
        }
        learned.sending(&seen, self.worth())
    }
}

impl Drop for SessionState {
    fn drop(&mut self) {
        METRICS
            .pushes_wasted
            .add(self.promised.borrow().len() as u64);
        if let Some(learned) = &self.pushing.learned {
            learned.session_closed(self.peer.session);
        }
    }
}

/// Whether the browser's cache will use an answer again without asking (RFC 9111 section 4.2, the
/// heuristic included).
fn is_reusable(head: &ResponseHead) -> bool {
    let policy = ResponsePolicy::of(head);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let receipt = Receipt {
        at: now.ok().map(|now| now.as_secs()),
        ..Receipt::default()
    };
    let freshness = policy.freshness(CacheRules::BROWSER, receipt);
    !policy.forbids_storage() && !policy.needs_validation() && freshness.is_fresh(Duration::ZERO)
}

/// Whether the browser's cache will hold it at least to validate it (RFC 9111 section 4.3).
fn is_kept(head: &ResponseHead) -> bool {
    let policy = ResponsePolicy::of(head);
    policy.has_validator && !policy.forbids_storage()
}

/// From 0 to 1; whoever could guess it would learn nothing.
fn random() -> f64 {
    use std::hash::BuildHasher;
    let bits = std::hash::RandomState::new().hash_one(0);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// An answer on its way, watched for what it needs.
struct Watched {
    session: Rc<SessionState>,
    asked: Rc<Request>,
    /// Once there is anything to push with it.
    page: Option<Rc<Page>>,
    reply: Reply,
    document: Option<Document>,
    /// What comes after the promises that are ready.
    held: Option<Part>,
    /// Bytes of the body so far, where its head did not say how many there are.
    unsized_body: Option<u64>,
    over: bool,
}

impl Parts for Watched {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        loop {
            // Promises go first: what mentions them comes after them.
            if !self.over
                && let Some(page) = &self.page
                && let Poll::Ready(promise) = page.poll_promise(cx)
            {
                return Poll::Ready(Some(Ok(promise)));
            }
            if let Some(part) = self.held.take() {
                return Poll::Ready(Some(Ok(part)));
            }
            let part = match std::task::ready!(self.reply.poll_part(cx)) {
                Some(Ok(part)) => self.look_at(part),
                end => {
                    self.end(end.is_none());
                    return Poll::Ready(end);
                }
            };
            if self.page.is_none() {
                return Poll::Ready(Some(Ok(part)));
            }
            self.held = Some(part);
        }
    }
}

impl Watched {
    fn look_at(&mut self, mut part: Part) -> Part {
        match &mut part {
            Part::Head(head) => self.on_head(head),
            Part::Data(data) => {
                self.unsized_body = self.unsized_body.map(|size| size + data.len() as u64);
                if let Some(page) = &self.page {
                    page.read(&mut self.document, data);
                }
            }
            _ => {}
        }
        part
    }

    fn end(&mut self, whole: bool) {
        self.over = true;
        if let (true, Some(size), Some(learned)) =
            (whole, self.unsized_body, &self.session.pushing.learned)
        {
            learned.body_sent(&self.asked.url, size);
        }
        if let Some(page) = &self.page {
            page.end_document(&mut self.document);
            page.end();
        }
    }

    fn on_head(&mut self, head: &mut ResponseHead) {
        let (session, asked) = (Rc::clone(&self.session), Rc::clone(&self.asked));
        // It is ours to say, not an origin's.
        head.fields.remove(PUSH_FIELD);
        let mut needs = named::named(&asked.url, head);
        if head.status == 200 {
            session.note_given(&asked.url, head);
        }
        let candidates = session.learn(&asked.url, &asked.head, head);
        self.unsized_body =
            (head.status == 200 && !head.fields.contains("content-length")).then_some(0);
        if !asked.peer.push {
            return;
        }
        let readable = head.status == 200 && Document::is_readable(head);
        let target = redirect(&asked.url, head);
        if (readable && is_page(head)) || (target.is_some() && is_navigation(&asked.head)) {
            let (treatment, new) = session.treat(&asked.url, &asked.head);
            if new {
                head.fields.set(PUSH_FIELD, treatment.as_str());
            }
        }
        // A page that the browser only checks, or loads again, comes with what its cache has, or
        // with nothing from ours.
        let known = validation::is_conditional(&asked.head.fields)
            || RequestPolicy::of(&asked.head.fields).control.no_cache;
        if session.is_held_out() || known {
            return;
        }
        if head.status != 200 {
            needs.clear();
        }
        if !readable && needs.is_empty() && target.is_none() && candidates.is_empty() {
            return;
        }
        let page = Page::new(session, asked);
        self.document = if readable {
            page.document(page.url(), head, Use::Page)
        } else {
            None
        };
        match target {
            Some(target) => page.redirect(page.url(), target),
            None => page.settle(page.url(), head),
        }
        page.promise(needs);
        let learned = page.session.pushing.learned.as_ref();
        let asker = |url: &str| learned.and_then(|learned| learned.own_asker(url));
        page.promise_learned(
            candidates
                .iter()
                .filter_map(|candidate| learned_need(candidate, asker))
                .collect(),
        );
        self.page = Some(page);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut asking = self.session.asking.borrow_mut();
        if let Some(at) = asking.iter().position(|hash| *hash == self.asked.hash) {
            asking.swap_remove(at);
        }
        drop(asking);
        if let Some(page) = self.page.as_ref().filter(|_| !self.over) {
            page.abandon();
        }
    }
}

fn is_page(head: &ResponseHead) -> bool {
    matches!(Sort::of(head), Some(Sort::Html))
}

/// What others needed, as a need, and who asked for it if not the page. A page by itself is the
/// reader's to choose.
fn learned_need(candidate: &Candidate, asker: impl Fn(&str) -> Option<String>) -> Option<Need> {
    let (kind, urgency) = match candidate.kind {
        Learnt::Style => (Kind::Style, 1),
        Learnt::Script => (Kind::Script, 2),
        Learnt::Font => (Kind::Font, 3),
        Learnt::Data => (Kind::Fetch, 3),
        Learnt::Image => (Kind::Image, 4),
        Learnt::Open => (Kind::Other, 4),
        Learnt::Page | Learnt::Download => return None,
    };
    // Data that is named like a page is a frame.
    let frame = kind == Kind::Fetch && Learnt::of_path(parts(&candidate.url).path) == Learnt::Page;
    let kind = if frame { Kind::Document } else { kind };
    // Fonts are fetched by CORS always, data as a rule.
    let anonymous = matches!(kind, Kind::Font | Kind::Fetch);
    let (url, via) = (
        candidate.url.to_string(),
        asker(&candidate.url).map(Arc::from),
    );
    Some(Need {
        url,
        kind,
        urgency,
        anonymous,
        referrer: None,
        via,
        frame: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reusable_follows_the_rules_of_caches() {
        for (fields, reusable) in [
            (&[][..], false),
            (&[("cache-control", "max-age=600")], true),
            (&[("cache-control", "Max-Age=600")], true),
            (&[("cache-control", "max-age=\"600\"")], true),
            (&[("cache-control", "max-age=0")], false),
            (&[("cache-control", "max-age=\"0\"")], false),
            (&[("cache-control", "max-age=600, no-cache")], false),
            (&[("cache-control", "s-maxage=600")], false),
            (&[("expires", "0")], false),
            (&[("expires", "Thu, 01 Jan 1970 00:00:00 GMT")], false),
            (&[("expires", "Fri, 01 Jan 2100 00:00:00 GMT")], true),
            (&[("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT")], true),
            (&[("last-modified", "once")], false),
        ] {
            let head = ResponseHead {
                fields: fields.iter().copied().collect(),
                ..ResponseHead::new(200)
            };
            assert_eq!(is_reusable(&head), reusable, "{fields:?}");
        }
    }
}
