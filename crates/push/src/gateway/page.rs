//! A page on its way: its documents, the resources that were promised for it, and its budget.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tandem_http::{Priority, RequestHead, ResponseHead};
use tandem_preload::{self as scan, Kind, Need, Referrer};

use super::budget::Budget;
use super::claims::KnownResources;
use super::client_hints::Delegation;
use super::cookie_hashes::CookieHashes;
use super::document::{DocumentReader, Purpose};
use super::named::PossibleNeeds;
use super::page_hold::Hold;
use super::page_series::PageSeries;
use super::predictor::Learned;
use super::table::{FetchId, ResponseId};
use crate::cookie_urls::CookieNeeds;
use crate::cookies::{CookieChanges, cookies_of};
use crate::fetch_standard::{self, ContentSecurity, ScriptFields, is_own_origin};
use crate::referrers::SeenReferrers;
use crate::site::is_same_site;
use crate::url;
use crate::wire::url_hash_of;

mod frames;
mod policies;
mod redirects;
mod requests;

use frames::Frames;
use redirects::Redirected;
use requests::initiator;

/// The largest number of resources for one page.
pub(super) const MAX_RESOURCES: usize = 2048;

/// The largest number of hosts named by a page that are remembered.
const MAX_NAMED_HOSTS: usize = 1024;

/// The length in bytes above which a cookie does not fit a header table, so that each promise
/// carries it again.
const LONG_COOKIE: usize = 2048;

/// The urgency of the document to which `meta refresh` leads within a second.
const REFRESH: u8 = 0;

/// The largest number of changes of a page's cookies that its early requests follow.
const MAX_FOLLOWED: usize = 8;

/// A promise that waits for the stream that will carry it.
#[derive(Debug)]
pub struct Promise {
    /// The fetch that provides the response.
    pub fetch: FetchId,
    /// The request of the push.
    pub request: RequestHead,
    /// The place of the response in the order of sending.
    pub priority: Priority,
}

/// A page and the resources that go with it.
pub(super) struct Page {
    /// The response that carries the page, while its stream is open.
    pub(super) response: ResponseId,
    /// The browser's request, and its URL.
    request: Arc<RequestHead>,
    url: Arc<str>,
    /// The cookies of the request whose paths are known, and which other requests to its site may
    /// lack.
    pub(super) known_paths: Option<CookieChanges>,
    /// The `Accept` of the browser's earlier requests for images.
    pub(super) image_accept: Option<Arc<[u8]>>,
    /// The changes of the response to the cookies of later requests.
    cookies: Option<CookieChanges>,
    /// True if the response changes the cookies of later requests.
    sets_cookies: bool,
    /// The changes before those of parts of the page, the oldest first.
    earlier_cookies: Vec<Option<CookieChanges>>,
    /// The number of the last change of cookies before the browser's request.
    pub(super) cookies_of: u64,
    /// The URL of the page after all known redirects.
    location: String,
    /// The document that caused the request, if the request is not for a document itself.
    initiator: Option<String>,
    /// The number of redirects that have led to each URL.
    redirects: HashMap<Box<str>, u8>,
    /// The URLs of the page and of all resources that were promised for it.
    known: HashSet<String>,
    /// The promises that wait for the page's own stream, while that is open.
    pub(super) promises: Option<VecDeque<Promise>>,
    /// The needs that the client is thought to have.
    pub(super) skipped: Vec<Need>,
    /// The URLs that the page's own bytes name, if the next visit needs them.
    pub(super) named: HashSet<String>,
    /// The hosts that the page's own bytes name.
    named_hosts: HashSet<String>,
    /// The other hosts that pages of the origin have requested in the user's browser.
    pub(super) asked_hosts: HashSet<String>,
    /// True if the page names more hosts than the settings permit.
    has_too_many_hosts: bool,
    /// The needs of other users, of hosts that the page has not named yet.
    expected: Vec<Need>,
    /// The resources that earlier visits requested too rarely for a promise, unless a script names
    /// them.
    possible: PossibleNeeds,
    /// The fields that scripts choose for requests, by URL.
    scripts: HashMap<String, Arc<ScriptFields>>,
    /// The URLs of data that pages request from its origin, whatever a cache holds.
    validated: HashSet<String>,
    /// The referrers of earlier requests for learned resources, by URL.
    referrers: HashMap<String, SeenReferrers>,
    /// The requests that were redirected, by the URLs of the targets.
    redirected: HashMap<Box<str>, Redirected>,
    /// True if a head that is no redirect has shown the document's location.
    settled: bool,
    /// The referrer policy of the document.
    policy: Referrer,
    /// The other origins whose requests may have client hints.
    pub(super) delegation: Delegation,
    /// The document's policies for its resources, and those of its frames.
    content: Arc<ContentSecurity>,
    frames: HashMap<Box<str>, Arc<ContentSecurity>>,
    /// The sandboxed frames, and those whose heads have arrived.
    nested: Frames,
    /// True if the document's own bytes, which may name a policy, are not sent again.
    is_policy_unknown: bool,
    /// True if the document's head says that requests to other origins have no cookies.
    is_credentialless: bool,
    /// The ages of the resources that earlier visits requested.
    pub(super) known_resources: KnownResources,
    /// The held fetches, unless all fetches begin at once.
    pub(super) hold: Option<Hold>,
    /// The hashes of the URLs with responses that no cache keeps. Their fetches never wait.
    pub(super) unkept: Vec<u32>,
    pub(super) series: PageSeries,
    /// The hashes of the URLs of the fonts that visits requested, if any is known.
    pub(super) fonts: Option<HashSet<u32>>,
    /// The hashes of the URLs whose pushes were of no use to other users.
    pub(super) useless: Vec<u32>,
    /// The resources of other origins whose requests carry unknown cookies.
    pub(super) with_cookies: CookieNeeds,
    /// The hosts that answer different users with failures.
    pub(super) refusing: Arc<HashSet<String>>,
    /// True if the browser has left the page.
    pub(super) abandoned: bool,
    /// True if its promises are documents that may follow the page.
    pub(super) leads_on: bool,
    /// The fetches that belong to the page.
    pub(super) fetches: usize,
    budget: Budget,
}

impl Page {
    pub(super) fn new(response: ResponseId, request: Arc<RequestHead>, url: Arc<str>) -> Self {
        Self {
            response,
            location: url.to_string(),
            initiator: initiator(&request),
            redirects: HashMap::new(),
            known: HashSet::from([url.to_string()]),
            promises: Some(VecDeque::new()),
            skipped: Vec::new(),
            named: HashSet::new(),
            named_hosts: HashSet::new(),
            asked_hosts: HashSet::new(),
            has_too_many_hosts: false,
            expected: Vec::new(),
            possible: PossibleNeeds::default(),
            scripts: HashMap::new(),
            validated: HashSet::new(),
            referrers: HashMap::new(),
            redirected: HashMap::new(),
            settled: false,
            policy: Referrer::default(),
            delegation: Delegation::default(),
            content: Arc::default(),
            frames: HashMap::new(),
            nested: Frames::default(),
            is_policy_unknown: false,
            is_credentialless: false,
            known_resources: KnownResources::default(),
            hold: None,
            unkept: Vec::new(),
            series: PageSeries::default(),
            fonts: None,
            useless: Vec::new(),
            with_cookies: CookieNeeds::default(),
            refusing: Arc::default(),
            abandoned: false,
            leads_on: false,
            fetches: 0,
            known_paths: None,
            image_accept: None,
            cookies: None,
            sets_cookies: false,
            earlier_cookies: Vec::new(),
            cookies_of: 0,
            budget: Budget::new(),
            request,
            url,
        }
    }

    /// Returns the URL that the browser requested.
    pub(super) const fn url(&self) -> &Arc<str> {
        &self.url
    }

    /// Returns the browser's request.
    pub(super) fn request(&self) -> &RequestHead {
        &self.request
    }

    /// Sets the changes of the response to the cookies of later requests. They replace those of a
    /// stale response.
    pub(super) fn set_cookies(&mut self, cookies: Option<CookieChanges>) {
        self.sets_cookies = cookies.is_some();
        self.cookies = cookies;
    }

    /// Returns whether the response changes the cookies of later requests.
    pub(super) const fn sets_cookies(&self) -> bool {
        self.sets_cookies
    }

    /// Returns whether the page is a document, and not a style sheet or script of one.
    pub(super) const fn is_document(&self) -> bool {
        self.initiator.is_none()
    }

    /// Returns the `Cookie` field of the page's requests for a URL of its own origin; `None` if it
    /// is unknown.
    pub(super) fn cookies_for(&self, request: &RequestHead) -> Option<Vec<u8>> {
        self.cookies_after(request, self.cookies.as_ref())
    }

    fn cookies_after(
        &self,
        request: &RequestHead,
        changes: Option<&CookieChanges>,
    ) -> Option<Vec<u8>> {
        let (scheme, authority) = (request.scheme.as_str(), &request.authority);
        let (own_scheme, own_host, _) = scan::split(self.document_url())?;
        let is_own = is_own_origin(&self.request, scheme, authority)
            && is_own_origin(&self.request, own_scheme, own_host);
        if !is_own || !self.is_document() {
            return None;
        }
        let changes = [self.known_paths.as_ref(), changes].into_iter().flatten();
        let before = cookies_of(&self.request.fields).into_owned();
        Some(changes.fold(before, |before, changes| {
            changes.after(&before, scheme, authority, &request.path)
        }))
    }

    /// Returns whether the page has caused a request, as far as its cookies show. The request may
    /// precede new cookies that parts of the page set.
    pub(super) fn may_cause(&self, request: &RequestHead) -> bool {
        let cookies = cookies_of(&request.fields);
        let states = self.earlier_cookies.iter().chain([&self.cookies]);
        let mut states = states.map(|changes| self.cookies_after(request, changes.as_ref()));
        states.any(|state| state.is_some_and(|state| state == *cookies))
    }

    /// Returns whether later requests carry cookies that the page or its parts have set.
    pub(super) const fn adds_cookies(&self) -> bool {
        self.sets_cookies || !self.earlier_cookies.is_empty()
    }

    /// Returns whether the early requests follow a further change of cookies by a part of the page.
    pub(super) const fn follows_cookies(&self) -> bool {
        self.earlier_cookies.len() < MAX_FOLLOWED
    }

    /// Returns the changes of the cookies of later requests, with those of a part of the page;
    /// `None` if the cookies are unknown then.
    pub(super) fn cookies_with(&self, later: &CookieChanges) -> Option<CookieChanges> {
        let before = cookies_of(&self.request.fields);
        match &self.cookies {
            Some(cookies) => cookies.followed_by(later, &before),
            None => Some(later.clone()),
        }
    }

    /// Sets the changes of the cookies of later requests, with new cookies of a part of the page.
    /// `number` is that of the last change.
    pub(super) fn add_cookies(&mut self, cookies: CookieChanges, number: u64) {
        self.earlier_cookies.push(self.cookies.replace(cookies));
        self.cookies_of = number;
    }

    /// Returns the cookies of the page's request, with those that its response has set.
    pub(super) fn cookie_hashes(&self) -> CookieHashes {
        let mut hashes = CookieHashes::of(&self.request);
        if let Some(changes) = &self.cookies {
            let before = cookies_of(&self.request.fields);
            let (scheme, request) = (self.request.scheme.as_str(), &self.request);
            let after = changes.after(&before, scheme, &request.authority, &request.path);
            hashes.add(CookieHashes::of_field(&after));
        }
        hashes
    }

    /// Makes the page one whose load has ended, for promises of the documents that may follow it.
    /// Their bodies may have this number of bytes together.
    pub(super) fn lead_on(&mut self, policy: Referrer, body_bytes: u64) {
        self.leads_on = true;
        self.promises = None;
        self.policy = policy;
        self.budget.body_bytes = body_bytes;
    }

    /// Returns the URL of the document for which all resources are fetched.
    pub(super) fn document_url(&self) -> &str {
        self.initiator.as_deref().unwrap_or(&self.location)
    }

    /// Handles the head of a response at `url` that is no redirect. Returns true for the first head
    /// at the page's own location. Its referrer policy then applies, and the needs of other users
    /// may be pushed.
    pub(super) fn settle(&mut self, url: &str, head: &ResponseHead) -> bool {
        let first = url == self.location && !self.settled;
        if first {
            self.settled = true;
            self.delegation = Delegation::of(head);
            let named = fetch_standard::referrer_policy(head);
            // The page's own bytes, which are not sent again, may name a policy too.
            self.is_policy_unknown = head.status == 304;
            self.is_credentialless = fetch_standard::is_credentialless(url, head);
            self.policy = match self.is_policy_unknown {
                true => named.unwrap_or(self.policy),
                false => named.unwrap_or_default(),
            };
        }
        first
    }

    /// Returns the referrer policy of the document.
    pub(super) const fn policy(&self) -> Referrer {
        self.policy
    }

    /// Sets the referrer policy that the document's own bytes contain.
    pub(super) const fn set_policy(&mut self, policy: Referrer) {
        self.policy = policy;
    }

    /// Returns the URL of the page after all known redirects.
    pub(super) fn location(&self) -> &str {
        &self.location
    }

    /// Returns the document that caused the request, if the request is not for a document itself.
    pub(super) fn initiator(&self) -> Option<&str> {
        self.initiator.as_deref()
    }

    /// Creates a reader for the response at `url`, and reserves the bytes that it may read.
    pub(super) fn reader(
        &mut self,
        url: &str,
        head: &ResponseHead,
        purpose: Purpose,
    ) -> Option<DocumentReader> {
        let purpose = if url == self.location {
            Purpose::Page
        } else {
            purpose
        };
        let accept = self.request.fields.get("accept").unwrap_or_default();
        let left = self.budget.read_bytes;
        let document = self.document_url();
        let mut reader = DocumentReader::of(url, head, purpose, document, accept, left)?;
        self.budget.read_bytes -= reader.limit();
        if !self.possible.is_empty() {
            reader.read_literals();
        }
        Some(reader)
    }

    /// Creates a reader for the page's own response.
    pub(super) fn reader_of_page(&mut self, head: &ResponseHead) -> Option<DocumentReader> {
        let url = Arc::clone(&self.url);
        self.reader(&url, head, Purpose::Page)
    }

    /// Gives the bytes that a reader did not use back to the budget.
    pub(super) const fn return_bytes(&mut self, bytes: usize) {
        self.budget.read_bytes += bytes;
    }

    /// Spends bytes of a body that is announced. Returns false if fewer are left, and then spends
    /// none, since a smaller body may fit.
    pub(super) const fn spend_announced(&mut self, bytes: u64) -> bool {
        match self.budget.body_bytes.checked_sub(bytes) {
            Some(left) => {
                self.budget.body_bytes = left;
                true
            }
            None => false,
        }
    }

    /// Spends bytes of bodies that have arrived. Returns false if fewer are left.
    pub(super) fn spend_body(&mut self, bytes: u64) -> bool {
        let left = self.budget.body_bytes.checked_sub(bytes);
        self.budget.body_bytes = left.unwrap_or(0);
        left.is_some()
    }

    /// Adds a host that the page's own bytes name, and returns whether it is new. Nothing more is
    /// pushed for a page with more hosts than `most`, its own one included.
    pub(super) fn name_host(&mut self, host: &str, most: usize) -> bool {
        if self.named_hosts.len() >= MAX_NAMED_HOSTS || self.named_hosts.contains(host) {
            return false;
        }
        self.named_hosts.insert(host.to_owned());
        let names_itself = self
            .named_hosts
            .contains(url::authority(self.document_url()));
        self.has_too_many_hosts |= self.named_hosts.len() + usize::from(!names_itself) > most;
        true
    }

    /// Sets the needs of other users.
    pub(super) fn expect(&mut self, learned: Learned) {
        self.expected.extend(learned.needs);
        self.scripts.extend(learned.scripts);
        self.validated.extend(learned.validated);
        self.referrers.extend(learned.referrers);
        self.fonts = self.fonts.take().or(learned.fonts);
        self.expect_sandboxed(learned.sandboxed);
    }

    /// Returns whether the request for a URL has fields that scripts choose.
    pub(super) fn is_by_script(&self, url: &str) -> bool {
        self.scripts.contains_key(url)
    }

    /// Sets the resources that are promised if scripts name them.
    pub(super) fn set_possible(&mut self, possible: PossibleNeeds) {
        self.possible = possible;
    }

    /// Reads the strings of scripts that a document has. They may name resources that other users
    /// needed. Returns whether they name any.
    pub(super) fn expect_named(&mut self, strings: &[String], is_own: bool) -> bool {
        let document = self.initiator.as_deref().unwrap_or(&self.location);
        let is_inline = is_own && self.initiator.is_none();
        let named = self.possible.take(document, strings, is_inline);
        let is_any = !named.is_empty();
        self.expected.extend(named);
        is_any
    }

    /// Sets the base URL that the document's own bytes contain.
    pub(super) fn set_base(&mut self, base: &str) {
        if self.initiator.is_none() && !self.possible.is_empty() {
            self.possible.set_base(base);
        }
    }

    /// Takes the needs of other users that may be pushed now: those of the page's own host, of
    /// hosts that the page names itself, and of hosts that pages of its origin have requested in
    /// this user's browser. Anyone could teach the predictor a host of their own, and would see the
    /// visits to the page.
    pub(super) fn take_expected(&mut self) -> Vec<Need> {
        if !self.settled || self.expected.is_empty() {
            return Vec::new();
        }
        let (mut now, later): (Vec<Need>, _) = std::mem::take(&mut self.expected)
            .into_iter()
            .partition(|need| {
                let host = url::authority(&need.url);
                self.names_host(host) || self.was_asked(host)
            });
        self.expected = later;
        let document = url::authority(self.document_url());
        for need in &mut now {
            self.place_in_frame(need);
            // On its own origin the document itself makes the request.
            if url::authority(&need.url).eq_ignore_ascii_case(document) {
                need.via = None;
            }
        }
        now.retain_mut(|need| {
            // The request of a style sheet or script does not show the `Accept` of documents.
            if need.kind == Kind::Document && !self.is_document() {
                return false;
            }
            let seen = self.referrers.get(&need.url);
            self.limit_referrer(need, seen.copied())
        });
        now
    }

    /// Returns whether a font is left to the browser: a style sheet names it, and known visits
    /// have requested other fonts only. Browsers request a font only if text needs it.
    pub(super) fn leaves_font(&self, need: &Need) -> bool {
        let is_face = need.kind == Kind::Font && need.urgency == scan::FACE;
        let hash = || url_hash_of(&need.url);
        is_face
            && self
                .fonts
                .as_ref()
                .is_some_and(|fonts| hash().is_some_and(|hash| !fonts.contains(&hash)))
    }

    /// Returns whether lazy loading permits the push of a need. Lazy images and frames, and
    /// resources for later pages, count against a limit for each page.
    pub(super) const fn admits_lazy(&mut self, need: &Need) -> bool {
        if !is_lazy(need) {
            return true;
        }
        let left = self.budget.lazy;
        self.budget.lazy = left.saturating_sub(1);
        left > 0
    }

    /// Returns whether a document that the page names may be requested early. As the target of a
    /// redirect, the document to which `meta refresh` leads must have the origin of the document
    /// that names it. It is left to the browser if `leaves_redirects` is true. The browser may
    /// never request a lazy frame, so one of another origin is left to it.
    pub(super) fn follows(&self, need: &Need, leaves_redirects: bool) -> bool {
        let is_refresh = need.urgency == REFRESH;
        if need.kind != Kind::Document || !(is_refresh || is_lazy(need)) {
            return true;
        }
        let document = need.frame.as_deref().unwrap_or_else(|| self.document_url());
        !(is_refresh && leaves_redirects) && url::is_same_origin(document, &need.url)
    }

    /// Returns whether a host is the page's own, or one that the page's own bytes name.
    pub(super) fn names_host(&self, host: &str) -> bool {
        host == url::authority(&self.url) || self.named_hosts.contains(host)
    }

    /// Returns whether pages of the origin have requested resources of a host in this browser.
    pub(super) fn was_asked(&self, host: &str) -> bool {
        self.asked_hosts.contains(host)
    }

    /// Returns whether no more resources may be promised for the page.
    pub(super) fn is_closed(&self) -> bool {
        self.known.len() > MAX_RESOURCES
            || self.abandoned
            || self.has_too_many_hosts
            || self.budget.policy_checks == 0
    }

    /// Returns whether a need may not be promised, or was promised before.
    pub(super) fn refuses(&mut self, need: &Need) -> bool {
        let is_known = self.known.contains(&need.url);
        self.is_closed() || is_known || need.kind == Kind::Media || !self.admits_by_policy(need)
    }

    /// Returns whether a URL belongs to the site of the document.
    pub(super) fn is_same_site(&self, url: &str) -> bool {
        is_same_site(url::authority(self.document_url()), url::authority(url))
    }

    /// Charges the promise of a need to the budget. Returns false if the budget for promises is
    /// used up.
    pub(super) fn spend_promise(&mut self, need: &Need, request: &RequestHead) -> bool {
        let cookie = request.fields.get("cookie").map_or(0, <[u8]>::len);
        let repeated = if cookie > LONG_COOKIE { cookie } else { 0 };
        let cost = need.url.len() + repeated;
        let Some(left) = self.budget.promise_bytes.checked_sub(cost) else {
            return false;
        };
        self.budget.promise_bytes = left;
        true
    }

    /// Returns whether a resource was promised for the page.
    pub(super) fn has_part(&self, url: &str) -> bool {
        *url != *self.url && url != self.location && self.known.contains(url)
    }

    /// Adds a URL to those that are known.
    pub(super) fn know(&mut self, url: &str) {
        self.known.insert(url.to_owned());
    }
}

/// Returns whether the browser may request a need later or never: a lazy image or frame, once the
/// user comes near it, or a resource for a later page (`rel=prefetch`).
pub(super) const fn is_lazy(need: &Need) -> bool {
    need.urgency >= scan::LAZY
}

#[cfg(test)]
mod tests;
