//! From needs to promises: which resources of a page are promised, and on which stream.

use std::sync::Arc;

use tandem_http::cache::validation::validates_copy;
use tandem_http::{Method, RequestHead};
use tandem_preload::{Kind, Need};

use super::client_cache::SiteNumber;
use super::document::{DocumentReader, Purpose};
use super::fetch::{Fetch, PushStream, PushTarget};
use super::fetch_phase::FetchPhase;
use super::fetch_queue::push_priority;
use super::output::{Output, PromiseStream};
use super::page::{MAX_RESOURCES, Page, Promise, is_lazy};
use super::predictor::Learned;
use super::session::{Gateway, Unreported};
use super::table::{FetchId, PageId, ResponseId};
use crate::fetch_standard::{is_navigation, target_origin};
use crate::url;

/// The source of a need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The page's own bytes name it.
    Page,
    /// Other users needed it.
    Predictor,
}

/// Returns whether the needs of a page are remembered, which those of style sheets and scripts are
/// not.
fn is_visited(page: &Page) -> bool {
    is_navigation(page.request()) && !page.leads_on && page.document_url() == &**page.url()
}

/// The facts about a promise besides its target.
struct PromisedFor {
    page_url: Arc<str>,
    /// The site of its document.
    site: SiteNumber,
    response: ResponseId,
    fetch: FetchId,
    is_check: bool,
    is_next: bool,
    is_part: bool,
    may_have_copy: bool,
    is_likely: bool,
}

impl Gateway {
    /// Reads bytes of a document, and promises the resources that they name. Returns the reader
    /// unless it has read enough.
    pub(super) fn read(
        &mut self,
        page: PageId,
        mut reader: DocumentReader,
        data: &[u8],
    ) -> Option<DocumentReader> {
        let more = reader.read(data);
        if let Some(policy) = reader.policy()
            && let Some(page) = self.pages.get_mut(page)
        {
            page.set_policy(policy);
        }
        self.promise_read(page, &mut reader);
        self.promise_named(page, &mut reader);
        if more {
            return Some(reader);
        }
        self.finish_reading(page, reader);
        None
    }

    /// Promises the last needs of a document. The bytes that it did not read are left for others.
    pub(super) fn finish_reading(&mut self, page: PageId, mut reader: DocumentReader) {
        reader.finish();
        self.promise_read(page, &mut reader);
        if let Some(page) = self.pages.get_mut(page) {
            page.return_bytes(reader.unread());
        }
    }

    /// Promises the needs that a document names, as far as its policies admit them.
    fn promise_read(&mut self, id: PageId, reader: &mut DocumentReader) {
        self.note_hint_elements(id, reader);
        let policies = reader.take_content_policies();
        self.add_meta_policies(id, reader.frame().as_deref(), &policies);
        let mut needs = reader.take_needs();
        if self.visits.is_some()
            && reader.base().is_some()
            && let Some(page) = self.pages.get_mut(id)
        {
            let room = MAX_RESOURCES.saturating_sub(page.named.len());
            let urls = needs.iter().map(|need| need.url.clone());
            page.named.extend(urls.take(room));
        }
        let leaves_redirects = self.config.audience.leaves_redirects();
        if let Some(page) = self.pages.get(id) {
            needs.retain(|need| page.follows(need, leaves_redirects));
        }
        self.promise(id, needs);
    }

    /// Promises the resources that strings of scripts name, if other users needed them.
    fn promise_named(&mut self, id: PageId, reader: &mut DocumentReader) {
        let strings = reader.take_literals();
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        let base = reader.base();
        if let Some(base) = base {
            page.set_base(base);
        }
        if !strings.is_empty() && page.expect_named(&strings, base.is_some()) {
            self.promise_expected(id);
        }
    }

    /// Promises the needs that the page's own bytes name, the most urgent first.
    pub(super) fn promise(&mut self, page: PageId, mut needs: Vec<Need>) {
        needs.sort_by_key(|need| need.urgency);
        let mut names_new_host = false;
        let hosts = self.config.hosts;
        for need in needs {
            if let Some(page) = self.pages.get_mut(page) {
                names_new_host |= page.name_host(url::authority(&need.url), hosts);
                if let Some(part) = page.named_part(&need) {
                    self.named_referrers.note(&need.url, part);
                }
            }
            self.promise_if_wanted(page, need, Source::Page);
        }
        if names_new_host {
            self.end_own_visit(page);
            self.check_copies(false);
            self.promise_expected(page);
        }
    }

    /// Promises the needs of a page's last visit.
    pub(super) fn promise_again(&mut self, page: PageId, needs: Vec<Need>) {
        self.know_frames(page, &needs);
        if let Some(page) = self.pages.get_mut(page) {
            page.series.free_counters();
        }
        for need in needs {
            self.promise_if_wanted(page, need, Source::Predictor);
        }
    }

    /// Promises the needs of other users, now or once the page names their host.
    pub(super) fn promise_learned(&mut self, page: PageId, mut learned: Learned) {
        if let Some(page) = self.pages.get_mut(page) {
            page.with_cookies
                .extend(std::mem::take(&mut learned.with_cookies));
            if !learned.refusing.is_empty() {
                page.refusing = std::mem::take(&mut learned.refusing);
            }
            page.expect(learned);
        }
        self.promise_expected(page);
    }

    /// Promises the needs of other users that may be promised by now.
    pub(super) fn promise_expected(&mut self, page: PageId) {
        let Some(record) = self.pages.get_mut(page) else {
            return;
        };
        for need in record.take_expected() {
            self.promise_if_wanted(page, need, Source::Predictor);
        }
    }

    /// Promises a need unless this client is likely to do without it.
    fn promise_if_wanted(&mut self, id: PageId, need: Need, source: Source) {
        let is_named_only = source == Source::Page && !self.config.audience.trusts_page_names();
        if self.closed || is_named_only || self.is_tunnelled(&need.url) {
            return;
        }
        let is_opened = self.is_opened(&need.url);
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        if page.refuses(&need) {
            return;
        }
        if source == Source::Page && self.config.audience.leaves_lazy_needs() && is_lazy(&need) {
            // The browser may never request it.
            return self.remember(id, &need);
        }
        if source == Source::Page && (page.leaves_font(&need) || !page.admits_lazy(&need)) {
            return;
        }
        // The user has agreed to the gateway's requests to listed hosts.
        if page.is_same_site(&need.url)
            || is_opened
            || page.was_asked(url::authority(&need.url))
            || self
                .hosts
                .admits(id, &need, self.config.audience.waits_for_foreign_hosts())
        {
            self.promise_one(id, need);
        }
    }

    /// Promises a need, unless the client has it, requests it just now, or a limit is reached.
    pub(super) fn promise_one(&mut self, id: PageId, need: Need) {
        if self.closed || self.is_tunnelled(&need.url) {
            return;
        }
        let own_origin_only = self.config.own_origin_only;
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        if page.refuses(&need) {
            return;
        }
        let Some(mut request) = page.request_for(&need, own_origin_only) else {
            return;
        };
        if self.is_outdated(id, &request) || !self.add_hints(id, &need, &mut request) {
            return;
        }
        let target = PushTarget::of(need.url.as_str().into(), &request);
        let is_useless = self
            .pages
            .get(id)
            .is_some_and(|page| page.useless.contains(&target.hash));
        let is_useless = is_useless || self.is_left_by_series(id, &need);
        if self.requested.contains(&target.hash)
            || self.cache.is_unpushable(target.hash)
            || is_useless
            || self.refusals.concern(&need.url)
            || self.waits_for_answer(id, &need)
            || self.waits_for_cookies(id, &need, &request)
        {
            return;
        }
        if self.config.audience.checks_known_copies() && self.cache.is_validatable(target.hash) {
            // The browser will send a conditional request, which a check can answer.
            if self.companion.takes_checks() {
                self.promise_check(id, &need, false);
            }
            return;
        }
        if self.is_held_by_client(&target, &request) {
            return self.skip(id, need);
        }
        if self.unreported.len() >= self.config.unreported {
            return;
        }
        let page = self.pages.get_mut(id);
        if page.is_some_and(|page| page.spend_promise(&need, &request)) {
            let _ = self.add_promise(id, &need, target, request);
        }
    }

    /// Returns whether the client has a resource: its cache can use it again, or a fitting push is
    /// on its way.
    fn is_held_by_client(&self, target: &PushTarget, request: &RequestHead) -> bool {
        let push = self.unreported.get(&target.hash);
        match push.filter(|push| push.url == target.url) {
            Some(push) => push
                .asked
                .fits_referrer(target.asked, &target_origin(request)),
            None => self.cache.is_usable(target.hash),
        }
    }

    /// Remembers a need that the client is thought to have, in case it lacks it.
    fn skip(&mut self, id: PageId, need: Need) {
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        let first = page.skipped.is_empty();
        if page.skipped.len() < MAX_RESOURCES {
            page.skipped.push(need);
        }
        if first && let Some(last) = self.skipping.replace(id).filter(|last| *last != id) {
            self.collect_page(last);
        }
    }

    /// Remembers a need for the next visit to its page, if the session has one user.
    fn remember(&mut self, id: PageId, need: &Need) {
        let (Some(page), Some(visits)) = (self.pages.get(id), &self.visits) else {
            return;
        };
        if is_visited(page) {
            let mut visits = visits.lock();
            visits.note_need(page.url(), page.policy(), need);
            visits.note_cookies(page.url(), || page.cookie_hashes());
            if page.sets_cookies() {
                visits.note_first_change(page.url());
            }
        }
    }

    /// Forgets needs of earlier visits that a page has named, and does not name now that its bytes
    /// were read to their end.
    pub(super) fn forget_unnamed(&self, id: PageId) {
        if let (Some(page), Some(visits)) = (self.pages.get(id), &self.visits)
            && is_visited(page)
            && page.named.len() < MAX_RESOURCES
        {
            let names = |url: &str| page.named.contains(url);
            visits.lock().note_named(page.url(), names);
        }
    }

    /// Creates the fetch of a need, and its promise.
    pub(super) fn add_promise(
        &mut self,
        id: PageId,
        need: &Need,
        target: PushTarget,
        request: RequestHead,
    ) -> Option<FetchId> {
        let is_check = request.method == Method::Head || validates_copy(&request.fields);
        self.remember(id, need);
        let page = self.pages.get_mut(id)?;
        page.know(&need.url);
        if need.kind == Kind::Document {
            page.note_nested(need);
        }
        page.fetches += 1;
        let (page_url, response) = (Arc::clone(page.url()), page.response);
        let site = SiteNumber::of_authority(url::authority(page.document_url()));
        let is_next = page.leads_on;
        let (is_part, may_have_copy) = (need.kind != Kind::Document, page.hold.is_some());
        let priority = push_priority(need.urgency);
        let fetch = self.fetches.insert(Fetch {
            page: id,
            target: target.clone(),
            purpose: Purpose::of(need),
            turn: self.queue.turn(need.urgency),
            phase: FetchPhase::new(request.clone()),
            request: None,
            withheld: None,
            stream: PushStream::Unopened,
            is_sign: false,
            released: None,
            reuse: None,
            is_check,
            is_next,
            validates: self.cache.is_validatable(target.hash),
            is_wasted: false,
            requested: false,
            has_browser_cookies: false,
            reported: false,
            reader: None,
            sized: false,
            received: 0,
        });
        let mut is_likely = false;
        if !is_check {
            is_likely = self.hold_if_doubtful(id, fetch, need.kind);
            self.wait_for_series(id, fetch, need);
        }
        self.note_promise(
            target,
            PromisedFor {
                page_url,
                site,
                response,
                fetch,
                is_check,
                is_next,
                is_part,
                may_have_copy,
                is_likely,
            },
        );
        let promise = Promise {
            fetch,
            request,
            priority,
        };
        match self
            .pages
            .get_mut(id)
            .and_then(|page| page.promises.as_mut())
        {
            Some(promises) => {
                promises.push_back(promise);
                self.outputs
                    .push_back(Output::Promise(PromiseStream::Response(response)));
            }
            None => self.promise_on_companion(promise),
        }
        Some(fetch)
    }

    /// Records a promise that is made.
    fn note_promise(&mut self, target: PushTarget, promised: PromisedFor) {
        let PromisedFor {
            page_url,
            site,
            response,
            fetch,
            is_check,
            is_next,
            is_part,
            may_have_copy,
            is_likely,
        } = promised;
        match is_next {
            true => self.counts.next_promised += 1,
            false => self.counts.promised += 1,
        }
        // A check gives the browser nothing new.
        if !is_check {
            self.cache.note_promise(target.hash, site);
        }
        let push = Unreported {
            url: target.url,
            page_url,
            is_check,
            is_next,
            response,
            superseded: None,
            copy: None,
            needs_waiting: false,
            lifetime: None,
            fetch,
            asked: target.asked,
            promised: None,
            sets: None,
            begun: false,
            is_part,
            is_by_cors: false,
            is_error: false,
            may_have_copy,
            is_likely,
            has_expired: false,
            bytes: 0,
        };
        if let Some(replaced) = self.unreported.insert(target.hash, push) {
            // The client drops the push that is replaced, and does not report it.
            self.counts.wasted += u64::from(!replaced.is_next);
            self.count_waste(&replaced);
        }
    }

    /// Adds a promise of a page whose response stream has ended to those of the companion, which
    /// may open soon.
    pub(super) fn promise_on_companion(&mut self, promise: Promise) {
        if self.closed || !self.companion.has_room() {
            return self.forget_fetch(promise.fetch);
        }
        if self.companion.add(promise) {
            self.outputs
                .push_back(Output::Promise(PromiseStream::Companion));
        }
    }
}
