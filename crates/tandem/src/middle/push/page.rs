//! One page on its way: what has been promised for it, and what still may be.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tandem_http::{Fields, Priority, RequestHead, ResponseHead, Scheme};
use tandem_predict::scan::{self, Kind, Need};

use super::document::Document;
use super::fetch::Fetch;
use super::{Limits, SessionState};
use crate::companion::INHERITED;
use crate::exchange::{Body, Exchange, Isolation, Part, Peer, Reply};
use crate::metrics::METRICS;
use crate::stage::Stage;

/// Bytes of a cookie that do not fit a header table: they are sent again with each promise.
const LONG_COOKIE: usize = 2048;

/// A page and what goes with it.
pub(super) struct Page {
    pub(super) session: Rc<SessionState>,
    request: RequestHead,
    url: String,
    peer: Peer,
    isolation: Isolation,
    next: Rc<dyn Stage>,
    /// URLs promised with it, and its own.
    known: RefCell<HashSet<String>>,
    promises: RefCell<Promises>,
    /// Needs that the client was thought to have.
    skipped: RefCell<Vec<Need>>,
    /// Hosts that the page's own bytes name.
    named: RefCell<HashSet<String>>,
    referrer: Cell<Referrer>,
    /// Nobody waits for the page any more.
    abandoned: Cell<bool>,
    left: Left,
}

/// What may still be spent on the page.
struct Left {
    /// Bytes of bodies.
    bytes: Cell<u64>,
    /// Bytes of promises, which no flow control holds back.
    promises: Cell<usize>,
    /// Bytes of documents to read.
    reading: Cell<usize>,
    /// Resources of other origins.
    foreign: Cell<usize>,
}

/// What the page lets others know of it (Referrer Policy, as far as it is told in its head).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Referrer {
    /// Its URL to its own origin, its origin to others.
    #[default]
    Default,
    /// Its origin only.
    Origin,
    /// Nothing to others.
    Own,
    /// Nothing.
    None,
}

#[derive(Default)]
struct Promises {
    ready: VecDeque<Part>,
    /// Its stream is over: what comes now goes with the session's companion.
    over: bool,
    waker: Option<Waker>,
}

impl Page {
    pub(super) fn new(session: &Rc<SessionState>, exchange: &Exchange, next: &Rc<dyn Stage>) -> Option<Rc<Self>> {
        let request = exchange.request.clone();
        let url = scan::resolve(&url_of(&request), "")?;
        Some(Rc::new(Self {
            session: Rc::clone(session),
            peer: exchange.peer,
            isolation: exchange.isolation.clone(),
            next: Rc::clone(next),
            known: RefCell::new(HashSet::from([url.clone()])),
            url,
            request,
            promises: RefCell::default(),
            skipped: RefCell::default(),
            named: RefCell::default(),
            referrer: Cell::default(),
            abandoned: Cell::new(false),
            left: Left {
                bytes: Cell::new(session.limits().page_bytes),
                promises: Cell::new(256 << 10),
                reading: Cell::new(32 << 20),
                foreign: Cell::new(256),
            },
        }))
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// A reader of the answer with this head to a request for `url`, which is this page or belongs to it.
    pub(super) fn document(&self, url: &str, head: &ResponseHead) -> Option<Document> {
        let accept = self.request.fields.get("accept").unwrap_or_default();
        let mut document = Document::of(url, head, &self.url, accept, self.left.reading.get())?;
        self.left.reading.set(self.left.reading.get() - document.limit());
        Some(document)
    }

    /// Reads on in a document, and promises what it names.
    pub(super) fn read(self: &Rc<Self>, document: &mut Option<Document>, data: &[u8]) {
        let Some(reading) = document else { return };
        let more = reading.read(data);
        self.promise(reading.take_needs());
        if !more {
            self.end_document(document);
        }
    }

    /// A document is over: what was not read of it is left for others.
    pub(super) fn end_document(self: &Rc<Self>, document: &mut Option<Document>) {
        if let Some(mut document) = document.take() {
            document.finish();
            self.promise(document.take_needs());
            self.left.reading.set(self.left.reading.get() + document.unread());
        }
    }

    /// Takes so many bytes of bodies; false if they are not there.
    pub(super) fn spend(&self, bytes: u64) -> bool {
        let left = self.left.bytes.get().checked_sub(bytes);
        self.left.bytes.set(left.unwrap_or(0));
        left.is_some()
    }

    /// What its head says of how much it tells others (Referrer Policy section 4.1; the last word that is known counts).
    pub(super) fn mind_referrer(&self, head: &ResponseHead) {
        for value in head.fields.get_all("referrer-policy") {
            for word in value.split(|&byte| byte == b',') {
                match word.trim_ascii().to_ascii_lowercase().as_slice() {
                    b"no-referrer" => self.referrer.set(Referrer::None),
                    b"same-origin" => self.referrer.set(Referrer::Own),
                    b"origin" | b"strict-origin" => self.referrer.set(Referrer::Origin),
                    b"strict-origin-when-cross-origin" | b"origin-when-cross-origin" | b"unsafe-url" => {
                        self.referrer.set(Referrer::Default);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.get()
    }

    /// The browser has left it: what is not under way yet does not begin.
    pub(super) fn abandon(&self) {
        self.abandoned.set(true);
        let mut promises = self.promises.borrow_mut();
        promises.over = true;
        let rest = std::mem::take(&mut promises.ready);
        drop(promises);
        drop(rest);
    }

    /// The next promise, if there is one; else `cx` is woken when there is.
    pub(super) fn poll_promise(&self, cx: &Context<'_>) -> Poll<Part> {
        let mut promises = self.promises.borrow_mut();
        match promises.ready.pop_front() {
            Some(promise) => Poll::Ready(promise),
            None => {
                promises.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The page's own stream ends.
    pub(super) fn end(&self) {
        let mut promises = self.promises.borrow_mut();
        promises.over = true;
        let rest = std::mem::take(&mut promises.ready);
        drop(promises);
        for promise in rest {
            self.session.promise_later(promise);
        }
    }

    /// Promises what its own bytes say that it needs, as far as that is allowed, most urgent first.
    pub(super) fn promise(self: &Rc<Self>, mut needs: Vec<Need>) {
        needs.sort_by_key(|need| need.urgency);
        for need in needs {
            self.named.borrow_mut().insert(host(&need.url).to_owned());
            self.promise_one(need);
        }
    }

    /// The same for what others needed with it: of its own host, or of hosts that it names itself. Whoever could have others
    /// fetch what he likes would see them come.
    pub(super) fn promise_learned(self: &Rc<Self>, needs: Vec<Need>) {
        for need in needs {
            let named = host(&need.url) == host(&self.url) || self.named.borrow().contains(host(&need.url));
            if named {
                self.promise_one(need);
            }
        }
    }

    /// The client has lost what it was thought to have: it asks for `asked`.
    pub(super) fn promise_skipped(self: &Rc<Self>, asked: &str) {
        let mut needs = self.skipped.take();
        needs.retain(|need| need.url != asked);
        self.promise(needs);
    }

    fn skip(self: &Rc<Self>, need: Need) {
        if self.session.closed.get() {
            return;
        }
        let mut skipped = self.skipped.borrow_mut();
        if skipped.is_empty() {
            self.session.last.replace(Some(Rc::clone(self)));
        }
        if skipped.len() < self.session.limits().page_pushes {
            skipped.push(need);
        }
    }

    fn promise_one(self: &Rc<Self>, need: Need) {
        let full = self.known.borrow().len() > self.session.limits().page_pushes;
        if full || self.is_abandoned() || need.kind == Kind::Media || self.known.borrow().contains(&need.url) {
            return;
        }
        let Some((request, cost)) = self.request_for(&need) else { return };
        if self.session.has(&need.url, &request) {
            return self.skip(need);
        }
        let Some(left) = self.left.promises.get().checked_sub(cost) else { return };
        if !self.session.admits(&request) {
            return;
        }
        self.left.promises.set(left);
        METRICS.pushes_promised.add(1);
        let priority = priority(need.urgency);
        let exchange = Exchange {
            request: request.clone(),
            body: Body::empty(),
            isolation: self.isolation.clone(),
            peer: self.peer,
            priority,
        };
        let ticket = self.session.gate.ticket(need.urgency);
        let reply = Reply::new(Fetch::new(Rc::clone(self), ticket, exchange, Rc::clone(&self.next), need.url.clone()));
        self.known.borrow_mut().insert(need.url);
        let promise = Part::Pushed { request, reply, priority };
        let mut promises = self.promises.borrow_mut();
        if promises.over {
            drop(promises);
            return self.session.promise_later(promise);
        }
        promises.ready.push_back(promise);
        if let Some(waker) = promises.waker.take() {
            waker.wake();
        }
    }

    /// The request that the browser would make, as far as that can be known, and what its promise costs in bytes.
    fn request_for(&self, need: &Need) -> Option<(RequestHead, usize)> {
        let (scheme, authority, path) = scan::split(&need.url)?;
        let scheme = Scheme::parse(scheme.as_bytes())?;
        let page = &self.request;
        let own = scheme == page.scheme && authority.eq_ignore_ascii_case(&page.authority);
        // What is fetched over TLS reaches the gateway as a tunnel only; nobody would ask for it in the clear.
        if (scheme != page.scheme && scheme == Scheme::Https) || (!own && self.session.limits().own_origin_only) {
            return None;
        }
        // What only a login shows: answers to it are the asker's own, and some logins count their uses.
        if own && page.fields.contains("authorization") {
            return None;
        }
        if !own {
            self.left.foreign.set(self.left.foreign.get().checked_sub(1)?);
        }
        let mut fields: Fields = page
            .fields
            .iter()
            .filter(|field| {
                INHERITED.iter().any(|name| name.as_bytes() == field.name) || (own && field.name == b"cookie")
            })
            .map(|field| (field.name, field.value))
            .collect();
        match need.kind {
            Kind::Document => fields.push("accept", page.fields.get("accept").unwrap_or(b"*/*")),
            kind => fields.push("accept", accept(kind, page.fields.get("user-agent").unwrap_or_default())),
        }
        let origin = format!("{}://{}", page.scheme.as_str(), page.authority);
        if !own && need.anonymous {
            fields.push("origin", &origin);
        }
        match (self.referrer.get(), own) {
            (Referrer::Default | Referrer::Own, true) => fields.push("referer", &self.url),
            (Referrer::Default, false) | (Referrer::Origin, _) => fields.push("referer", origin + "/"),
            (Referrer::Own, false) | (Referrer::None, _) => {}
        }
        let cookie = fields.get("cookie").map_or(0, <[u8]>::len);
        let cost = need.url.len() + if cookie > LONG_COOKIE { cookie } else { 0 };
        let authority = if own { page.authority.clone() } else { authority.to_owned() };
        Some((RequestHead { fields, ..RequestHead::get(scheme, authority, path) }, cost))
    }
}

/// Host and port of a URL.
fn host(url: &str) -> &str {
    scan::split(url).map_or("", |(_, authority, _)| authority)
}

/// What a request asks for, as an absolute URL.
pub(super) fn url_of(request: &RequestHead) -> String {
    format!("{}://{}{}", request.scheme.as_str(), request.authority, request.path)
}

/// After everything that was asked for, whose default is 3.
fn priority(urgency: u8) -> Priority {
    Priority(match urgency {
        0..=2 => 4,
        3 => 5,
        4..=5 => 6,
        _ => 7,
    })
}

/// What browsers say they accept where answers may differ by it (Fetch standard, section 4.1).
fn accept(kind: Kind, agent: &[u8]) -> &'static str {
    let is = |name: &str| agent.windows(name.len()).any(|part| part == name.as_bytes());
    match kind {
        Kind::Style => "text/css,*/*;q=0.1",
        Kind::Image if is("Chrome/") => "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8",
        Kind::Image if is("Firefox/") => "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5",
        _ => "*/*",
    }
}

/// Bounds that hold for every page.
impl Limits {
    pub(super) const fn new(own_origin_only: bool) -> Self {
        Self {
            page_pushes: 2048,
            page_bytes: 32 << 20,
            asset_bytes: 4 << 20,
            session_pushes: 4096,
            fetches: 32,
            own_origin_only,
        }
    }
}
