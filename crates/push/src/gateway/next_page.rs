//! The documents that may follow the page that the user looks at.
//!
//! When the load of a page has ended and the session has been idle for a moment, the documents that
//! other visitors of the page asked for next are promised on the companion:
//!
//! - If the browser has a copy that it must validate, only the head is fetched (HEAD) and pushed,
//!   as in `copies`.
//! - Otherwise the document itself is pushed, within a budget, if the client takes bodies. Its
//!   resources are promised when the browser asks for it.
//!
//! The client says which of them it takes ([`NextPush`]). The fetches carry no credentials. So a
//! page whose request or response has credentials gets no next documents, and documents of another
//! origin are not promised. A document that sets a cookie is not pushed, unless a request waits for
//! it already. A page also gets no next documents if the browser asks for few bytes (`Save-Data`).
//! A document whose request may have effects is left to the browser ([`may_act`]). An account
//! bounds the pushes that nobody used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_preload::{self as scan, Kind, Need};

use super::action_urls::may_act;
use super::document::DocumentReader;
use super::fetch::PushTarget;
use super::output::Output;
use super::page::Page;
use super::page_view::PageView;
use super::predictor::{self, Context, Predictor};
use super::session::{Gateway, Unreported};
use super::table::{PageId, ResponseId};
use super::viewed_page::ViewedPage;
use crate::fetch_standard::{is_navigation, is_prefetch, referrer_policy};
use crate::next_pages::NextPage;
use crate::response_rules::may_be_pushed;
use crate::url;
use crate::wire::{Fate, NextPush, Treatment, url_hash};

/// The time after which a page that still loads gets no next documents.
const MAX_LOAD: Duration = Duration::from_secs(30);

/// The largest number of documents that are promised for one page.
const MAX_DOCUMENTS: usize = 3;

/// The largest number of bytes of bodies for one page. A document of a median site has 30 kB.
const BODY_BYTES: u64 = 256 << 10;

/// The prices of a body and of a head. A document that is used pays 1.
const BODY_PRICE: f64 = 0.5;
const HEAD_PRICE: f64 = 0.1;

impl Gateway {
    /// Lets the gateway push documents for the next page, since the client takes them.
    pub fn allow_next_pages(&mut self, taken: NextPush) {
        self.next.taken = taken;
    }

    /// Handles the start of a request with an unsafe method. The session is not idle until its end,
    /// and a navigation leaves the page.
    pub fn begin_change(&mut self, now: Instant, request: &RequestHead) {
        self.next.begin_change(now);
        self.load.note_change(request);
        if is_navigation(request) && !self.is_frame(now, request) {
            self.next.leave();
        }
    }

    /// Handles the end of such a request, whether it has a response or not.
    pub fn end_change(&mut self, now: Instant) {
        self.next.end_change(now);
    }

    /// Handles the head of a document that the browser has asked for. Visits without credentials
    /// teach the predictor, and may lead to other documents.
    pub(super) fn view_page(
        &mut self,
        now: Instant,
        id: ResponseId,
        url: &Arc<str>,
        request: &Arc<RequestHead>,
        head: &ResponseHead,
        predictor: &mut dyn Predictor,
    ) {
        let is_document = head.status == 304 || is_plain_document(head);
        if !is_navigation(request)
            || is_prefetch(request)
            || self.is_frame(now, request)
            || has_credentials(request)
            || head.fields.contains("set-cookie")
            || !is_document
        {
            return;
        }
        predictor.note_visit(url, referring_page(request));
        self.lead_on(now, id, url, request, head, predictor);
    }

    /// Remembers a page and the documents that may follow it.
    fn lead_on(
        &mut self,
        now: Instant,
        id: ResponseId,
        url: &Arc<str>,
        request: &Arc<RequestHead>,
        head: &ResponseHead,
        predictor: &dyn Predictor,
    ) {
        self.next.earn();
        if self.next.taken == NextPush::Off
            || self.closed
            || saves_data(request)
            || self.upgrades(url)
        {
            return;
        }
        let documents = predictor.next_pages(url);
        let page = (!documents.is_empty()).then(|| ViewedPage {
            response: id,
            cookies_of: self.cookies_of(id),
            request: Arc::clone(request),
            url: Arc::clone(url),
            policy: referrer_policy(head).unwrap_or_default(),
            documents,
            since: now,
            due: now,
        });
        self.next.view(now, page);
    }

    /// Returns whether the browser follows links of a page over TLS only.
    fn upgrades(&self, url: &str) -> bool {
        let policies = self.content_policies.of(url);
        policies.is_some_and(|it| it.upgrades(url))
    }

    /// Promises the next documents if the load of the page has ended.
    pub(super) fn end_load(&mut self, now: Instant) {
        let Some(page) = self.next.take_due(now) else {
            return;
        };
        if !self.is_busy() {
            self.refusals.expire(now);
            self.promise_next_pages(page);
        } else if now.saturating_duration_since(page.since) < MAX_LOAD {
            self.next.view(now, Some(page));
        }
    }

    /// Returns whether a response, a fetch or a request with an unsafe method is under way.
    fn is_busy(&self) -> bool {
        let fetches = self.fetches.ids().into_iter();
        let mut fetches = fetches.filter_map(|id| self.fetches.get(id));
        self.responses.len() > 0
            || self.next.is_changing()
            || fetches.any(|fetch| fetch.phase.is_under_way())
    }

    fn promise_next_pages(&mut self, viewed: ViewedPage) {
        if self.closed || !self.companion.is_open() || self.is_held_out() {
            return;
        }
        self.next.promised.clear();
        let mut page = Page::new(viewed.response, viewed.request, viewed.url);
        page.cookies_of = viewed.cookies_of;
        page.lead_on(viewed.policy, BODY_BYTES);
        let page = self.pages.insert(page);
        let documents = viewed.documents.into_iter();
        let documents = documents.filter(|it| !may_act(&it.url));
        for document in documents.take(MAX_DOCUMENTS) {
            self.promise_next_page(page, &document);
        }
        self.collect_page(page);
    }

    fn promise_next_page(&mut self, id: PageId, document: &NextPage) {
        if self.is_tunnelled(&document.url) || self.refusals.concern(&document.url) {
            return;
        }
        let need = Need {
            url: document.url.to_string(),
            kind: Kind::Document,
            urgency: scan::LAZY,
            anonymous: false,
            by_cors: false,
            referrer: None,
            via: None,
            frame: None,
            has_nonce: false,
        };
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        if page.refuses(&need) {
            return;
        }
        let Some(mut request) = page.request_for(&need, true) else {
            return;
        };
        let hash = url_hash(&request);
        let is_known = self.requested.contains(&hash) || self.unreported.contains_key(&hash);
        let Some((method, price)) = self.next_method(hash).filter(|_| !is_known) else {
            return;
        };
        if !self.next.covers(price) || self.unreported.len() >= self.config.unreported {
            return;
        }
        let target = PushTarget::of(Arc::clone(&document.url), &request);
        request.method = method;
        let page = self.pages.get_mut(id);
        if page.is_none_or(|page| !page.spend_promise(&need, &request)) {
            return;
        }
        let asked = RequestHead {
            method: Method::Get,
            ..request.clone()
        };
        self.next.pay(price, asked);
        let _ = self.add_promise(id, &need, target, request);
    }

    /// Returns the method of the push of a document, and the price of the push. Returns `None` if
    /// the browser can use its copy, or if the client takes no such push.
    fn next_method(&self, hash: u32) -> Option<(Method, f64)> {
        if self.cache.is_unpushable(hash) {
            return None;
        }
        let is_validated = self.cache.is_validatable(hash);
        let takes_heads = self.companion.takes_checks() && !self.cache.is_uncheckable(hash);
        if is_validated && takes_heads {
            return Some((Method::Head, HEAD_PRICE));
        }
        let takes_body = self.next.taken == NextPush::Bodies && !is_validated;
        (takes_body && !self.cache.is_usable(hash)).then_some((Method::Get, BODY_PRICE))
    }

    /// Handles the report on the push of a document for the next page.
    pub(super) fn handle_next_fate(
        &mut self,
        now: Instant,
        fate: Fate,
        hash: u32,
        push: &Unreported,
        predictor: Option<&mut (dyn Predictor + '_)>,
    ) {
        match fate {
            Fate::Used | Fate::Late | Fate::Validated => {}
            Fate::Wasted | Fate::Cancelled => {
                self.count_waste(push);
                return match push.is_check {
                    true => self.cache.note_uncheckable(hash),
                    false => self.cache.note_refusal(hash),
                };
            }
        }
        self.counts.next_used += 1;
        self.next.win();
        self.cache.note_pushable(hash);
        self.note_wanted(now, url::authority(&push.url), hash);
        if fate == Fate::Validated {
            self.note_validation(now, hash, push);
        } else {
            self.note_joined(hash, push.fetch);
            self.raise_fetch(now, push.fetch);
            self.outputs.push_back(Output::Raise { fetch: push.fetch });
        }
        self.open_next_page(now, hash, push, predictor);
    }

    /// Begins the page whose document the browser has taken from the client.
    fn open_next_page(
        &mut self,
        now: Instant,
        hash: u32,
        push: &Unreported,
        predictor: Option<&mut (dyn Predictor + '_)>,
    ) {
        let mut promised = std::mem::take(&mut self.next.promised).into_iter();
        let Some(request) = promised.find(|request| url_hash(request) == hash) else {
            return;
        };
        let waiting = self.hosts.begin_page();
        self.collect_pages(waiting);
        let view = PageView::new(now, &push.url, Treatment::Pushed);
        self.view = Some(Box::new(view));
        self.load.begin(now);
        let Some(predictor) = predictor.filter(|_| !self.closed) else {
            return;
        };
        let mut head = ResponseHead::new(200);
        head.fields.push("content-type", "text/html");
        let context = Context {
            is_after_load: false,
            url: &push.url,
            page: None,
            is_frame: false,
            document: None,
            named_by_scripts: 0,
        };
        let learned = predictor::learn(predictor, context, &request, &head);
        predictor.note_visit(&push.url, Some(&push.page_url));
        let response = push.response;
        let mut page = self.new_page(response, Arc::clone(&request), Arc::clone(&push.url));
        page.promises = None;
        page.asked_hosts = predictor.asked_hosts(push.asked.browser(), &push.url);
        let page = self.pages.insert(page);
        self.locate(page, &push.url, &head, None);
        self.promise_learned(page, learned);
        self.collect_page(page);
        self.next.leave();
        self.lead_on(now, response, &push.url, &request, &head, predictor);
    }
}

/// Returns whether a document may be sent to a browser that has not asked for it, and that may have
/// other cookies by then.
pub(super) fn is_plain_document(head: &ResponseHead) -> bool {
    head.status == 200
        && DocumentReader::is_html(head)
        && !head.fields.contains("set-cookie")
        && may_be_pushed(head)
}

fn has_credentials(request: &RequestHead) -> bool {
    request.fields.contains("cookie") || request.fields.contains("authorization")
}

/// Returns whether the browser asks for few bytes, as on a path that is paid by the byte.
fn saves_data(request: &RequestHead) -> bool {
    request.fields.has_token("save-data", "on")
}

/// Returns the page of the same origin whose link led to a request.
fn referring_page(request: &RequestHead) -> Option<&str> {
    let referrer = std::str::from_utf8(request.fields.get("referer")?).ok()?;
    let (scheme, authority, _) = scan::split(referrer)?;
    let is_own =
        scheme == request.scheme.as_str() && authority.eq_ignore_ascii_case(&request.authority);
    is_own.then_some(referrer)
}
