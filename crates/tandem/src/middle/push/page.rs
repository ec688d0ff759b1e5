//! One page on its way: what has been promised for it, and what still may be.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tandem_http::{Fields, Priority, RequestHead, ResponseHead, Scheme};
use tandem_preload::{self as scan, Kind, Need, Referrer};

use tandem_push::fetch_standard::{INHERITED_FIELDS, is_navigation};
use tandem_push::wire::{RequestHashes, url_hash};

use super::document::{Document, Use};
use super::fetch::Fetch;
use super::hosts::is_same_site;
use super::{Limits, Request, SessionState, Target};
use crate::exchange::{Body, Exchange, Part, Reply};
use crate::metrics::METRICS;
use crate::priority::{Precedence, SharedPriority};

/// Bytes of a cookie that do not fit a header table: they are sent again with each promise.
const LONG_COOKIE: usize = 2048;

/// Of what browsers ask for only once it is nearly in sight, so much is likely to be: the first few
/// screens of a page. The rest is pushed where others needed it.
const LAZY: usize = 16;

/// Hosts that a page names, as far as they are remembered.
const MAX_NAMED: usize = 1024;

/// A page and what goes with it.
pub(super) struct Page {
    pub(super) session: Rc<SessionState>,
    pub(super) asked: Rc<Request>,
    place: RefCell<Rc<Place>>,
    /// The document that asked for it, where it is none itself but part of one: a style sheet or a
    /// script that the browser asked for.
    cause: Option<Rc<Place>>,
    /// URLs promised with it, and its own.
    known: RefCell<HashSet<String>>,
    promises: RefCell<Promises>,
    /// Needs that the client was thought to have.
    skipped: RefCell<Vec<Need>>,
    /// Hosts that the page's own bytes name.
    named: RefCell<HashSet<String>>,
    /// What others needed with it, of hosts that it has not named yet.
    expected: RefCell<Vec<Need>>,
    /// Its document is where it was asked for, or where redirects have led: it is known what it is
    /// asked for from.
    settled: Cell<bool>,
    referrer: Cell<Referrer>,
    /// Nobody waits for the page any more.
    abandoned: Cell<bool>,
    left: Left,
}

/// Where a page's document is, as far as redirects have told: what it needs is asked for from
/// there.
struct Place {
    authority: String,
    url: String,
}

impl Place {
    /// That of the document that a request for part of one is made by; of its address, that may be
    /// no more than the origin.
    fn cause(request: &RequestHead) -> Option<Self> {
        if is_navigation(request) {
            return None;
        }
        let fields = ["referer", "origin"]
            .into_iter()
            .filter_map(|name| request.fields.get(name));
        fields
            .filter_map(|url| scan::resolve(std::str::from_utf8(url).ok()?, ""))
            .find_map(|url| {
                let (_, authority, _) = scan::split(&url)?;
                Some(Self {
                    authority: authority.to_owned(),
                    url,
                })
            })
    }
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
    /// Images and frames that the page itself calls lazy.
    lazy: Cell<usize>,
}

#[derive(Default)]
struct Promises {
    ready: VecDeque<Part>,
    /// Its stream is over: what comes now goes with the session's companion.
    over: bool,
    waker: Option<Waker>,
}

impl Page {
    pub(super) fn new(session: Rc<SessionState>, asked: Rc<Request>) -> Rc<Self> {
        Rc::new(Self {
            left: Left {
                bytes: Cell::new(session.limits().page_bytes),
                promises: Cell::new(256 << 10),
                reading: Cell::new(32 << 20),
                foreign: Cell::new(256),
                lazy: Cell::new(LAZY),
            },
            session,
            known: RefCell::new(HashSet::from([asked.url.clone()])),
            place: RefCell::new(Rc::new(Place {
                authority: asked.head.authority.clone(),
                url: asked.url.clone(),
            })),
            cause: Place::cause(&asked.head).map(Rc::new),
            asked,
            promises: RefCell::default(),
            skipped: RefCell::default(),
            named: RefCell::default(),
            expected: RefCell::default(),
            settled: Cell::new(false),
            referrer: Cell::default(),
            abandoned: Cell::new(false),
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.asked.url
    }

    fn place(&self) -> Rc<Place> {
        Rc::clone(&self.place.borrow())
    }

    /// The document that all this is for.
    fn whole(&self) -> Rc<Place> {
        self.cause.clone().unwrap_or_else(|| self.place())
    }

    /// What is at `from` leads elsewhere; where that is the page's document itself, so does the
    /// page.
    pub(super) fn redirect(self: &Rc<Self>, from: &str, mut target: Need) {
        if from == self.place().url {
            // It is no page that sends the browser on.
            target.referrer = Some(Referrer::None);
            if let Some((scheme, authority, _)) = scan::split(&target.url)
                && scheme == self.asked.head.scheme.as_str()
            {
                let (authority, url) = (authority.to_owned(), target.url.clone());
                self.place.replace(Rc::new(Place { authority, url }));
            }
        }
        self.promise(vec![target]);
    }

    /// What is at `url` is an answer, no redirect; where that is the page's document, its head says
    /// how much it tells others, and what others needed with it may come.
    pub(super) fn settle(self: &Rc<Self>, url: &str, head: &ResponseHead) {
        if url == self.place().url && !self.settled.replace(true) {
            self.referrer.set(referrer_policy(head).unwrap_or_default());
            self.promise_expected();
        }
    }

    /// A reader of the answer with this head to a request for `url`, which is this page or belongs
    /// to it. What is asked for as something else than it turns out to be is not read: a browser
    /// would not, either.
    pub(super) fn document(
        &self,
        url: &str,
        head: &ResponseHead,
        purpose: Use,
    ) -> Option<Document> {
        let purpose = if url == self.place().url {
            Use::Page
        } else {
            purpose
        };
        let accept = self.asked.head.fields.get("accept").unwrap_or_default();
        let mut document = Document::of(
            url,
            head,
            purpose,
            &self.whole().url,
            accept,
            self.left.reading.get(),
        )?;
        self.left
            .reading
            .set(self.left.reading.get() - document.limit());
        Some(document)
    }

    /// Reads on in a document, and promises what it names.
    pub(super) fn read(self: &Rc<Self>, document: &mut Option<Document>, data: &[u8]) {
        let Some(reading) = document else { return };
        let more = reading.read(data);
        if let Some(policy) = reading.policy() {
            self.referrer.set(policy);
        }
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
            self.left
                .reading
                .set(self.left.reading.get() + document.unread());
        }
    }

    /// Takes so many bytes of bodies; false if they are not there.
    pub(super) fn spend(&self, bytes: u64) -> bool {
        let left = self.left.bytes.get().checked_sub(bytes);
        self.left.bytes.set(left.unwrap_or(0));
        left.is_some()
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
        let mut news = false;
        for need in needs {
            let of = host(&need.url);
            if self.named.borrow().len() < MAX_NAMED && !self.named.borrow().contains(of) {
                self.named.borrow_mut().insert(of.to_owned());
                news = true;
            }
            self.promise_if(need, false);
        }
        if news {
            self.promise_expected();
        }
    }

    /// The same for what others needed with it: of its own host, or of hosts that it names itself,
    /// once it does. Whoever could have others fetch what he likes would see them come.
    pub(super) fn promise_learned(self: &Rc<Self>, needs: Vec<Need>) {
        self.expected.replace(needs);
        self.promise_expected();
    }

    fn promise_expected(self: &Rc<Self>) {
        if !self.settled.get() {
            return;
        }
        let (now, rest) = self.expected.take().into_iter().partition(|need| {
            let of = host(&need.url);
            of == host(self.url()) || self.named.borrow().contains(of)
        });
        self.expected.replace(rest);
        let now: Vec<Need> = now;
        let whole = self.whole();
        for mut need in now {
            // On its own origin the page itself asks.
            if host(&need.url).eq_ignore_ascii_case(&whole.authority) {
                need.via = None;
            }
            self.promise_if(need, true);
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

    /// What is another site's may be just what this client does without (see [`super::hosts`]).
    fn promise_if(self: &Rc<Self>, need: Need, learned: bool) {
        if self.is_refused(&need) || (!learned && !self.is_near(&need)) {
            return;
        }
        let own = is_same_site(&self.whole().authority, host(&need.url));
        if own || self.session.hosts.borrow_mut().takes(self, &need, learned) {
            self.promise_one(need);
        }
    }

    /// Whether it is likely to be asked for while the page loads; each that is lazy makes the next
    /// less so.
    fn is_near(&self, need: &Need) -> bool {
        if need.urgency < scan::LAZY || !matches!(need.kind, Kind::Image | Kind::Document) {
            return true;
        }
        let left = self.left.lazy.get();
        self.left.lazy.set(left.saturating_sub(1));
        left > 0
    }

    /// Whether it is not to be promised, or has been.
    fn is_refused(&self, need: &Need) -> bool {
        let known = self.known.borrow();
        known.len() > self.session.limits().page_pushes
            || known.contains(&need.url)
            || need.kind == Kind::Media
            || self.is_abandoned()
            || self.session.closed.get()
    }

    pub(super) fn promise_one(self: &Rc<Self>, need: Need) {
        if self.is_refused(&need) {
            return;
        }
        let Some((request, cost)) = self.request_for(&need) else {
            return;
        };
        let target = Target {
            hash: url_hash(&request),
            asked: RequestHashes::of(&request.fields),
            url: need.url.clone(),
        };
        if self.session.is_asked(&target) {
            return;
        }
        if self.session.has(&target, &request) {
            return self.skip(need);
        }
        let Some(left) = self.left.promises.get().checked_sub(cost) else {
            return;
        };
        let priority = SharedPriority::new(Precedence::push(priority(need.urgency)));
        if !self.session.admits(&target, &self.asked, &priority) {
            return;
        }
        self.left.promises.set(left);
        METRICS.pushes_promised.add(1);
        let exchange = Exchange {
            request: request.clone(),
            body: Body::empty(),
            isolation: self.asked.isolation.clone(),
            peer: self.asked.peer,
            priority: priority.clone(),
        };
        let ticket = self.session.gate.ticket(need.urgency);
        let reply = Reply::new(Fetch::new(
            Rc::clone(self),
            ticket,
            exchange,
            target,
            Use::of(&need),
        ));
        self.known.borrow_mut().insert(need.url);
        let promise = Part::Pushed {
            request,
            reply,
            priority,
        };
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

    /// The request that the browser would make, as far as that can be known, and what its promise
    /// costs in bytes.
    fn request_for(&self, need: &Need) -> Option<(RequestHead, usize)> {
        let (scheme, authority, path) = scan::split(&need.url)?;
        let scheme = Scheme::parse(scheme.as_bytes())?;
        let page = &self.asked.head;
        let own = scheme == page.scheme && authority.eq_ignore_ascii_case(&page.authority);
        let whole = self.whole();
        let document = need.frame.as_deref().unwrap_or(&whole.url);
        let (document_scheme, document_host, _) = scan::split(document)?;
        let same_origin =
            scheme.as_str() == document_scheme && authority.eq_ignore_ascii_case(document_host);
        // What is fetched over TLS reaches the gateway as a tunnel only; nobody would ask for it in
        // the clear.
        if (scheme != page.scheme && scheme == Scheme::Https)
            || (!own && self.session.limits().own_origin_only)
        {
            return None;
        }
        // What only a login shows: answers to it are the asker's own, and some logins count their
        // uses.
        if own && page.fields.contains("authorization") {
            return None;
        }
        if !own {
            self.left
                .foreign
                .set(self.left.foreign.get().checked_sub(1)?);
        }
        let mut fields: Fields = page
            .fields
            .iter()
            .filter(|field| {
                // Another origin's document, in a frame or behind a redirect, does not have them
                // sent; that which had them sent for its style sheet does for the images of that.
                let part_of_it = self.cause.is_some() && need.frame.is_none() && !need.anonymous;
                let cookie = own && (same_origin || part_of_it);
                INHERITED_FIELDS
                    .iter()
                    .any(|name| name.as_bytes() == field.name)
                    || (cookie && field.name == b"cookie")
            })
            .map(|field| (field.name, field.value))
            .collect();
        match need.kind {
            Kind::Document => fields.push("accept", page.fields.get("accept").unwrap_or(b"*/*")),
            kind => fields.push(
                "accept",
                accept(kind, page.fields.get("user-agent").unwrap_or_default()),
            ),
        }
        if !same_origin && need.anonymous {
            fields.push("origin", format!("{document_scheme}://{document_host}"));
        }
        // A style sheet and a module ask in their own name.
        let asker = need.via.as_deref().unwrap_or(document);
        let (asker_scheme, asker_host, _) = scan::split(asker)?;
        let to_own = scheme.as_str() == asker_scheme && authority.eq_ignore_ascii_case(asker_host);
        match (need.referrer.unwrap_or_else(|| self.referrer.get()), to_own) {
            (Referrer::OriginToOthers | Referrer::Own, true) | (Referrer::Whole, _) => {
                fields.push("referer", asker)
            }
            (Referrer::OriginToOthers, false) | (Referrer::Origin, _) => {
                fields.push("referer", format!("{asker_scheme}://{asker_host}/"));
            }
            (Referrer::Own, false) | (Referrer::None, _) => {}
        }
        let cookie = fields.get("cookie").map_or(0, <[u8]>::len);
        let cost = need.url.len() + if cookie > LONG_COOKIE { cookie } else { 0 };
        let authority = if own {
            page.authority.clone()
        } else {
            authority.to_owned()
        };
        Some((
            RequestHead {
                fields,
                ..RequestHead::get(scheme, authority, path)
            },
            cost,
        ))
    }
}

/// What a head says of how much its own requests tell others (Referrer Policy section 4.1; the last
/// word that is known counts).
pub(super) fn referrer_policy(head: &ResponseHead) -> Option<Referrer> {
    let values = head.fields.get_all("referrer-policy");
    let words = values
        .flat_map(|value| value.split(|&byte| byte == b','))
        .filter_map(|word| std::str::from_utf8(word).ok());
    words.filter_map(Referrer::parse).last()
}

/// Host and port of a URL.
pub(super) fn host(url: &str) -> &str {
    scan::split(url).map_or("", |(_, authority, _)| authority)
}

/// What a request asks for, as an absolute URL.
pub(super) fn url_of(request: &RequestHead) -> String {
    format!(
        "{}://{}{}",
        request.scheme.as_str(),
        request.authority,
        request.path
    )
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
    let is = |name: &str| {
        agent
            .windows(name.len())
            .any(|part| part == name.as_bytes())
    };
    match kind {
        Kind::Style => "text/css,*/*;q=0.1",
        Kind::Image if is("Chrome/") => {
            "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"
        }
        Kind::Image if is("Firefox/") => {
            "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5"
        }
        Kind::Font if is("Firefox/") => {
            "application/font-woff2;q=1.0,application/font-woff;q=0.9,*/*;q=0.8"
        }
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
