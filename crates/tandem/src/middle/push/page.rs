//! One page on its way: what has been promised for it, what still may be, and each push as a reply of its own.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use tandem_http::message::content_length;
use tandem_http::{Fields, Priority, RequestHead, ResponseHead, Scheme};
use tandem_predict::scan::{self, Kind, Need};

use super::document::Document;
use super::gate::Ticket;
use super::{Limits, SessionState};
use crate::error::{Error, Kind as Fault, Side};
use crate::exchange::{Body, Exchange, Isolation, Part, Parts, Peer, Reply};
use crate::metrics::METRICS;
use crate::stage::Stage;

/// Fields of the page's request that a push repeats because the browser would send the same again.
const INHERITED: [&[u8]; 5] = [b"user-agent", b"accept-encoding", b"accept-language", b"dnt", b"sec-gpc"];

/// The same, to the page's own origin only.
const OWN: [&[u8]; 2] = [b"cookie", b"authorization"];

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
    bytes_left: Cell<u64>,
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
            bytes_left: Cell::new(session.limits().page_bytes),
        }))
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// A reader of the answer with this head to a request for `url`, which is this page or belongs to it.
    pub(super) fn document(&self, url: &str, head: &ResponseHead) -> Option<Document> {
        Document::of(url, head, &self.url, self.request.fields.get("accept").unwrap_or_default())
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

    /// Promises what is needed, as far as that is allowed, most urgent first.
    pub(super) fn promise(self: &Rc<Self>, mut needs: Vec<Need>) {
        needs.sort_by_key(|need| need.urgency);
        for need in needs {
            self.promise_one(need);
        }
    }

    /// The client has lost what it was thought to have: it asks for `asked`.
    pub(super) fn promise_skipped(self: &Rc<Self>, asked: &str) {
        let mut needs = self.skipped.take();
        needs.retain(|need| need.url != asked);
        self.promise(needs);
    }

    fn skip(self: &Rc<Self>, need: Need) {
        let mut skipped = self.skipped.borrow_mut();
        if skipped.is_empty() {
            self.session.last.replace(Some(Rc::clone(self)));
        }
        if skipped.len() < self.session.limits().page_pushes {
            skipped.push(need);
        }
    }

    fn promise_one(self: &Rc<Self>, need: Need) {
        let limits = self.session.limits();
        let mut known = self.known.borrow_mut();
        if known.len() > limits.page_pushes || known.contains(&need.url) || need.kind == Kind::Media {
            return;
        }
        let Some(request) = self.request_for(&need) else { return };
        if self.session.has(&need.url) {
            return self.skip(need);
        }
        if !self.session.admits(&request) {
            return;
        }
        METRICS.pushes_promised.add(1);
        let priority = priority(need.urgency);
        let reply = Reply::new(Fetch {
            page: Rc::clone(self),
            ticket: Some(self.session.gate.ticket(need.urgency)),
            exchange: Some(Exchange {
                request: request.clone(),
                body: Body::empty(),
                isolation: self.isolation.clone(),
                peer: self.peer,
                priority,
            }),
            reply: None,
            document: None,
            url: need.url.clone(),
        });
        known.insert(need.url);
        drop(known);
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

    /// The request that the browser would make, as far as that can be known.
    fn request_for(&self, need: &Need) -> Option<RequestHead> {
        let (scheme, rest) = need.url.split_once("://")?;
        let scheme = Scheme::parse(scheme.as_bytes())?;
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let page = &self.request;
        let own = scheme == page.scheme && authority.eq_ignore_ascii_case(&page.authority);
        // What is fetched over TLS reaches the gateway as a tunnel only; nobody would ask for it in the clear.
        if (scheme != page.scheme && scheme == Scheme::Https) || (!own && self.session.limits().own_origin_only) {
            return None;
        }
        let mut fields: Fields = page
            .fields
            .iter()
            .filter(|field| INHERITED.contains(&field.name) || (own && OWN.contains(&field.name)))
            .map(|field| (field.name, field.value))
            .collect();
        fields.push("accept", accept(need.kind, page.fields.get("user-agent").unwrap_or_default()));
        if own {
            fields.push("referer", &self.url);
        } else {
            let origin = format!("{}://{}", page.scheme.as_str(), page.authority);
            if need.anonymous {
                fields.push("origin", &origin);
            }
            fields.push("referer", origin + "/");
        }
        let authority = if own { page.authority.clone() } else { authority.to_owned() };
        Some(RequestHead { fields, ..RequestHead::get(scheme, authority, path) })
    }
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

/// A push: waits for its turn, fetches, and reads on in what it fetched.
struct Fetch {
    page: Rc<Page>,
    ticket: Option<Ticket>,
    exchange: Option<Exchange>,
    reply: Option<Reply>,
    document: Option<Document>,
    url: String,
}

impl Parts for Fetch {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        loop {
            if let Some(exchange) = self.exchange.take_if(|_| self.reply.is_none()) {
                if self.ticket.as_mut().is_some_and(|ticket| ticket.poll_enter(cx).is_pending()) {
                    self.exchange = Some(exchange);
                    return Poll::Pending;
                }
                self.reply = Some(self.page.next.call(exchange));
            }
            let Some(reply) = &mut self.reply else { return Poll::Ready(None) };
            let part = match ready!(reply.poll_part(cx)) {
                Some(Ok(Part::Hints(_) | Part::Pushed { .. })) => continue,
                Some(Ok(part)) => self.pass(part),
                end => {
                    self.end();
                    return Poll::Ready(end);
                }
            };
            if part.is_err() {
                self.end();
            }
            return Poll::Ready(Some(part));
        }
    }
}

impl Fetch {
    fn pass(&mut self, part: Part) -> Result<Part, Error> {
        let limits = self.page.session.limits();
        match &part {
            Part::Head(head) => {
                let length = content_length(&head.fields).ok().flatten().unwrap_or(0);
                if !may_be_pushed(head) || length > limits.asset_bytes.min(self.page.bytes_left.get()) {
                    return Err(Error::new(Fault::Forbidden, Side::Local, "the answer is not to be pushed"));
                }
                self.page.session.note_given(&self.url, head);
                self.document = self.page.document(&self.url, head);
                if let Some(target) = redirect(&self.url, head) {
                    self.page.promise(vec![target]);
                }
            }
            Part::Data(data) => {
                let left = self.page.bytes_left.get().checked_sub(data.len() as u64);
                let left = left.ok_or_else(|| Error::new(Fault::TooLarge, Side::Local, "enough has been pushed"))?;
                self.page.bytes_left.set(left);
                METRICS.push_bytes_sent.add(data.len() as u64);
                self.read(data);
            }
            _ => {}
        }
        Ok(part)
    }

    fn read(&mut self, data: &[u8]) {
        let Some(document) = &mut self.document else { return };
        let more = document.read(data);
        self.page.promise(document.take_needs());
        if !more {
            self.document = None;
        }
    }

    fn end(&mut self) {
        self.reply = None;
        self.ticket = None;
        if let Some(mut document) = self.document.take() {
            document.finish();
            self.page.promise(document.take_needs());
        }
    }
}

/// Whether an answer may go to a client that has not asked for it: nothing that must not be kept, depends on who asks, or
/// is no complete answer to a plain GET.
fn may_be_pushed(head: &ResponseHead) -> bool {
    let varies = ["*", "cookie", "authorization"].iter().any(|name| head.fields.has_token("vary", name));
    matches!(head.status, 200 | 301 | 302 | 303 | 307 | 308 | 404 | 410)
        && !varies
        && !head.fields.has_token("cache-control", "no-store")
}

/// Where a redirect leads.
pub(super) fn redirect(url: &str, head: &ResponseHead) -> Option<Need> {
    if !matches!(head.status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let target = String::from_utf8_lossy(head.fields.get("location")?).into_owned();
    let url = scan::resolve(url, &target)?;
    Some(Need { url, kind: Kind::Document, urgency: 0, anonymous: false })
}

/// Bounds that hold for every page.
impl Limits {
    pub(super) const fn new(own_origin_only: bool) -> Self {
        Self {
            page_pushes: 2048,
            page_bytes: 16 << 20,
            asset_bytes: 4 << 20,
            session_pushes: 4096,
            fetches: 32,
            own_origin_only,
        }
    }
}
