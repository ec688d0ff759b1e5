//! The fetches that are held back, because the browser may have their resources already.
//!
//! A held fetch is promised, which costs about 100 bytes, and is not begun. The browser's request
//! for the resource (a claim) begins the fetch. If caches keep such responses, the claim shows that
//! the browser's cache lacks them, and further fetches of the page begin (see `claims`). Fetches
//! that no claim begins are given up after [`HOLD_PERIOD`].
//!
//! A claim of a response that no cache keeps says nothing about the browser's copies of other
//! resources. From the second such claim on, each claim begins fetches of the same directory and
//! kind: eight, then sixteen, and so on. This needs at least eight such claims in that directory
//! for each response that a cache can keep.
//!
//! A browser requests a resource without a validator again once its copy has expired. The claim of
//! such a resource counts like that of a response that no cache keeps (see `copies`). If a service
//! worker has passed on the request for a page, all claims of the page count so: the worker may
//! answer the other requests.
//!
//! A resource that no cache could keep at earlier visits is not held, since browsers request it at
//! each visit.
//!
//! If the browser must validate a copy that the session brought, only the head is sent. The client
//! answers the conditional request with 304, and the body follows if it is needed. The head of a
//! response that must not be stored waits for a request too. A client can use such a response only
//! if a request waits when the head arrives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_http::cache::validation;
use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::Kind;

use super::claims::{Claimant, Claims, KnownSince, RELEASED_PER_CLAIM, Trust};
use super::client_cache::SiteNumber;
use super::fetch::{Fetch, PushStream};
use super::fetch_phase::{FetchPhase, Released};
use super::output::Output;
use super::page::Page;
use super::page_hold::{Hold, Siblings};
use super::session::{Gateway, Unreported};
use super::table::{FetchId, PageId};
use super::visitors::{gets_first_cookie, has_no_sign, is_first_visit, visited_site};
use crate::fetch_standard::{is_navigation, is_through_worker};
use crate::response_rules::{KeptCopy, Reuse};
use crate::site::{is_same_site, site_of};
use crate::url;
use crate::wire::{RequestHashes, url_hash_of};

/// The time after which a held fetch is given up. Requests join a push without a head during 5 s
/// after its promise. A held fetch outlasts that by the round trip of the slowest path.
const HOLD_PERIOD: Duration = Duration::from_secs(8);

/// The largest number of joined documents that are remembered.
const MAX_JOINED: usize = 16;

/// The time in which the browser makes the requests of a page that it has just read. Those of one
/// burst may arrive before or after the response to the first of them, which an origin close to the
/// gateway sends within a millisecond.
const BURST: Duration = Duration::from_millis(100);

/// Returns true if a claim belongs to the burst of the claim that has released its fetch. The
/// browser has then made it without regard to the release.
fn is_of_burst(now: Instant, released: Option<Instant>) -> bool {
    released.is_some_and(|at| now.saturating_duration_since(at) < BURST)
}

impl Gateway {
    /// Records the signs of earlier visits in a request and its response. After a sign, the site's
    /// pages are held from now on. `hash` is that of the URL.
    pub(super) fn note_signs(&mut self, request: &RequestHead, hash: u32, head: &ResponseHead) {
        if validation::validates_copy(&request.fields) {
            if !self.has_sent(hash, request) {
                let site = visited_site(request);
                // A client without a companion would never release the bodies.
                if self.companion.client_reports() {
                    self.hold_pages(&site);
                }
                self.visitors.note_return(site);
            }
        } else if is_navigation(request) && gets_first_cookie(request, head) {
            self.visitors.note_first_visit(site_of(&request.authority));
        }
    }

    /// Holds back the bodies of a site's pages from now on.
    fn hold_pages(&mut self, site: &str) {
        for page in self.pages.values_mut() {
            if site_of(url::authority(page.document_url())) == site {
                page.hold.get_or_insert_default();
            }
        }
        let is_of_site = |push: &&mut Unreported| site_of(url::authority(&push.page_url)) == site;
        let pushes = self.unreported.values_mut().filter(is_of_site);
        pushes.for_each(|push| push.may_have_copy = true);
    }

    /// Records whether the browser may have the resources of a page in its cache.
    fn note_doubt(&mut self, page_url: &str, may_have_copies: bool) {
        let is_of_page = |push: &&mut Unreported| *push.page_url == *page_url;
        let pushes = self.unreported.values_mut().filter(is_of_page);
        pushes.for_each(|push| push.may_have_copy = may_have_copies);
    }

    /// Decides whether the bodies of a page are held back. `url` and `head` are those of the
    /// response that is the page. A client without a companion cannot report claims, and gets all
    /// at once.
    pub(super) fn judge_visit(&mut self, id: PageId, url: &str, head: &ResponseHead) {
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        let request = page.request();
        let is_through_worker = is_through_worker(request);
        if !self.companion.client_reports() || !(is_navigation(request) || is_through_worker) {
            return;
        }
        // A page behind a redirect answers the gateway's own request, which has no condition and,
        // at another site, no cookies. It therefore shows less about the browser.
        let is_own_answer = page.url().as_ref() == url;
        let is_own_site = is_same_site(url::authority(page.url()), url::authority(url));
        let is_new = self.config.caches_are_new && has_no_sign(request);
        let oldest = page.known_resources.oldest();
        let trust = self
            .visitors
            .trust(site_of(url::authority(url)), oldest, || {
                let is_first = (is_own_answer && is_first_visit(request, head))
                    || (is_own_site && (is_new || gets_first_cookie(request, head)));
                is_first && !is_through_worker
            });
        let trust = match is_through_worker {
            // The worker may answer the requests of this page, whatever earlier ones have shown.
            true => Trust::After(Claims::default()),
            false => trust,
        };
        if trust != Trust::Full {
            self.counts.pages_returning += 1;
        }
        page.hold = match trust {
            Trust::Full => None,
            Trust::After(claims) => Some(Hold::after(claims)),
        };
        // Needs of the last visit may have been promised before the head.
        if page.hold.is_some() {
            let page_url = Arc::clone(page.url());
            self.note_doubt(&page_url, true);
        }
    }

    /// Holds a new fetch back if its page demands it. Documents are exempt, since browsers request
    /// most of them on each visit, unless caches use a copy without a request. Returns true if the
    /// fetch begins for one reason only: nearly all visits transfer its resource.
    pub(super) fn hold_if_doubtful(&mut self, of: PageId, id: FetchId, kind: Kind) -> bool {
        let Some(page) = self.pages.get_mut(of) else {
            return false;
        };
        if let Some(fetch) = self.fetches.get_mut(id)
            && kind != Kind::Document
            && self.companion.client_reports()
            && self.workers.may_answer(fetch.target.hash)
        {
            // Claims of other resources do not show that the worker lacks this one.
            fetch.phase.hold();
            return false;
        }
        let site = site_of(url::authority(page.document_url()));
        let Some(hold) = page.hold.as_mut() else {
            return false;
        };
        let Some(fetch) = self.fetches.get_mut(id) else {
            return false;
        };
        if kind == Kind::Document && !self.copies.contain_lasting(fetch.target.hash) {
            return false;
        }
        if page.unkept.contains(&fetch.target.hash) {
            return false;
        }
        let unreported = &self.unreported;
        if page.known_resources.is_likely(fetch.target.hash)
            && !self.visitors.has_returned(&site)
            && self
                .likely
                .permits(of, || unreported.values().any(|it| it.is_likely))
        {
            return true;
        }
        let has_old_copies = self.visitors.age(&site).is_some();
        let is_kept = fetch.validates || (has_old_copies && self.copies.contain(fetch.target.hash));
        let known_since = page.known_resources.of(fetch.target.hash);
        if is_kept || !hold.admit(known_since, fetch) {
            fetch.phase.hold();
            hold.waiting.push_back(id);
        }
        false
    }

    /// Begins the wait of a held fetch, because its promise has been sent.
    pub(super) fn begin_hold(&mut self, now: Instant, id: FetchId) {
        self.holds.add(now + HOLD_PERIOD, id);
    }

    /// Holds the head of a push back until a request waits for it. The client could not keep the
    /// response, and would request the resource again.
    pub(super) fn hold_head(&mut self, now: Instant, id: FetchId, head: &ResponseHead) {
        if let Some(fetch) = self.fetches.get_mut(id) {
            fetch.phase.hold_head();
            fetch.withheld = Some(Box::new(head.clone()));
            self.holds.add(now + HOLD_PERIOD, id);
        }
    }

    /// Returns whether the head of a push must not be passed on yet. [`Output::Body`] follows when
    /// it may.
    pub fn holds_head(&self, id: FetchId) -> bool {
        self.fetches
            .get(id)
            .is_some_and(|fetch| fetch.phase.holds_head())
    }

    /// Holds the body of a push back if the browser must validate its copy, since the head suffices
    /// to answer 304.
    pub(super) fn hold_body(&mut self, now: Instant, id: FetchId, head: &ResponseHead) {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        let has_validator = head.fields.contains("etag") || head.fields.contains("last-modified");
        let suffices = fetch.validates && head.status == 200 && has_validator;
        if suffices && !fetch.requested && self.companion.client_reports() {
            fetch.phase.hold_body();
            self.holds.add(now + HOLD_PERIOD, id);
        }
    }

    /// Returns whether the body of a push must not be read yet. [`Output::Body`] follows when it
    /// may.
    pub fn holds_body(&self, id: FetchId) -> bool {
        self.fetches
            .get(id)
            .is_some_and(|fetch| fetch.phase.holds_body())
    }

    /// Handles the report that the head of a push has confirmed the browser's copy. The rest of the
    /// push is cancelled.
    pub(super) fn note_validation(&mut self, now: Instant, hash: u32, push: &Unreported) {
        self.counts.validated += u64::from(!push.is_next);
        match push.is_next {
            true => self.counts.next_wasted_bytes += push.bytes,
            false => self.counts.wasted_bytes += push.bytes,
        }
        if push.is_likely {
            self.counts.likely_wasted_bytes += push.bytes;
            self.likely.note(false);
        }
        // The browser's copy is as good as the response that confirmed it.
        let copy = push.copy.unwrap_or(KeptCopy::OLD);
        let site = SiteNumber::of_authority(url::authority(&push.page_url));
        self.cache.note_answer(hash, Some(copy), site);
        // A report on a head that was not sent is wrong, and its promise may still wait for a
        // stream.
        let fetch = self.fetches.get_mut(push.fetch);
        let Some(fetch) = fetch.filter(|fetch| fetch.reported) else {
            return;
        };
        fetch.is_wasted = true;
        self.cancel_fetch(push.fetch);
        self.start_fetches(now);
    }

    /// Remembers that a request has joined a document, because its head may confirm the browser's
    /// copy.
    pub(super) fn note_joined(&mut self, hash: u32, id: FetchId) {
        let fetch = self.fetches.get(id);
        if fetch.is_some_and(|fetch| fetch.purpose.kind() == Kind::Document) {
            self.joined.truncate(MAX_JOINED - 1);
            self.joined.insert(0, (hash, id));
        }
    }

    /// Handles the report that the head of a document has confirmed the browser's copy for the
    /// request that had joined it. The rest of the body is of no use.
    pub(super) fn confirm_joined(&mut self, now: Instant, hash: u32) {
        let Some(at) = self.joined.iter().position(|(own, _)| *own == hash) else {
            return;
        };
        let (_, id) = self.joined.remove(at);
        let fetch = self.fetches.get_mut(id);
        let Some(fetch) = fetch.filter(|fetch| matches!(fetch.phase, FetchPhase::Passing(_)))
        else {
            return;
        };
        self.counts.wasted_bytes += fetch.received;
        fetch.is_wasted = true;
        self.cancel_fetch(id);
        self.start_fetches(now);
    }

    /// Raises a push for a waiting request: it is fetched before all pushes without one.
    pub fn raise_fetch(&mut self, now: Instant, id: FetchId) {
        // The client compares the cookies before the head arrives. Later, a response for everyone
        // serves any request, and only the report shows its cookies.
        let is_held = self.fetches.get(id).is_some_and(|it| it.phase.is_held());
        let claimant = if is_held {
            Claimant::User
        } else {
            Claimant::Stranger
        };
        self.raise_for(now, id, claimant);
    }

    /// Raises a push for a waiting request of this browser.
    pub(super) fn raise_for(&mut self, now: Instant, id: FetchId, claimant: Claimant) {
        if let Some(fetch) = self.fetches.get_mut(id) {
            fetch.requested = true;
            fetch.turn = self.queue.raise(fetch.turn);
            // A frame has a lifetime of its own, and tells little about other resources.
            let is_part = fetch.purpose.kind() != Kind::Document;
            let is_new = is_part
                && claimant == Claimant::User
                && !fetch.is_sign
                && (fetch.phase.is_held() || is_of_burst(now, fetch.released));
            fetch.is_sign |= is_new;
            let (page, reuse) = (fetch.page, fetch.reuse.filter(|_| is_new));
            self.release_hold(now, id);
            // The head has come before the claim.
            if let Some(reuse) = reuse {
                self.note_sign(now, page, id, reuse);
            }
        }
    }

    /// Withdraws a push that another user's request has joined, if its fetch has not begun or its
    /// head is held. The client then sends the request. Returns whether the push was withdrawn.
    pub(super) fn refuse_claim(&mut self, hash: u32, push: &Unreported) -> bool {
        let fetch = self.fetches.get_mut(push.fetch);
        let is_refused = |it: &&mut Fetch| it.phase.is_waiting() || it.phase.holds_head();
        let Some(fetch) = fetch.filter(is_refused) else {
            return false;
        };
        fetch.reported = true;
        self.counts.withheld += u64::from(!push.is_next);
        self.cache.forget(hash);
        self.cancel_fetch(push.fetch);
        true
    }

    /// Lets a held fetch begin when its turn comes, and a held body follow its head.
    pub(super) fn release_hold(&mut self, now: Instant, id: FetchId) {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        match fetch.phase.release() {
            Released::Nothing => {}
            Released::Fetch => {
                // Otherwise it waits for its turn once its promise has been sent.
                if fetch.stream == PushStream::Open {
                    let turn = fetch.turn;
                    self.queue.wait(turn, id);
                    self.start_fetches(now);
                }
            }
            Released::Response => {
                // The client gets the head now, and reports on it.
                fetch.reported = true;
                fetch.withheld = None;
                self.outputs.push_back(Output::Body { fetch: id });
            }
            Released::Body => self.outputs.push_back(Output::Body { fetch: id }),
        }
    }

    /// Handles the news of the use that caches can make of a response. If the browser has claimed
    /// the push, other held fetches may begin.
    pub(super) fn note_reuse(&mut self, now: Instant, id: FetchId, reuse: Reuse) {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        fetch.reuse = Some(reuse);
        let (page, is_sign) = (fetch.page, fetch.is_sign);
        let hold = self.pages.get_mut(page).and_then(|page| page.hold.as_mut());
        let Some(hold) = hold else {
            return;
        };
        if reuse != Reuse::Never {
            hold.seen.entry(Siblings::of(fetch)).or_default().kept += 1;
        }
        if is_sign {
            self.note_sign(now, page, id, reuse);
        }
    }

    /// Handles a claim that shows a lack of the browser's cache, once the head has shown the use
    /// that caches can make of the response.
    pub(super) fn note_sign(&mut self, now: Instant, page: PageId, id: FetchId, reuse: Reuse) {
        if reuse != Reuse::Never {
            if let Some(fetch) = self.fetches.get(id) {
                let claimed = (fetch.target.hash, fetch.target.asked);
                self.note_claim(now, page, claimed);
            }
            return;
        }
        if let Some(fetch) = self.fetches.get(id) {
            let has_cookies = fetch.target.asked.has_cookies();
            let siblings = Siblings::of(fetch);
            self.release_siblings(now, page, siblings, has_cookies);
        }
    }

    /// Lets held fetches begin because of a claim of another resource.
    fn release_all(&mut self, now: Instant, released: Vec<FetchId>) {
        for id in released {
            if let Some(fetch) = self.fetches.get_mut(id) {
                fetch.released = Some(now);
            }
            self.release_hold(now, id);
        }
    }

    /// Counts a claim of a response that no cache keeps, and begins held fetches of its siblings.
    /// The first claim releases none, since a page often has one such image among others.
    fn release_siblings(
        &mut self,
        now: Instant,
        id: PageId,
        siblings: Siblings,
        has_cookies: bool,
    ) {
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        let Some(mut hold) = page.hold.take() else {
            return;
        };
        let seen = hold.seen.get(&siblings).copied().unwrap_or_default();
        let mut allowance = match seen.are_unkept() {
            true => seen.claims * RELEASED_PER_CLAIM,
            false => 0,
        };
        let released = self.take_released(&mut hold, |_, fetch| {
            let speaks = has_cookies || !fetch.target.asked.has_cookies();
            let is_released = allowance > 0 && speaks && siblings.contain(fetch);
            allowance -= usize::from(is_released);
            is_released
        });
        hold.seen.entry(siblings).or_default().claims += 1;
        if let Some(page) = self.pages.get_mut(id) {
            page.hold = Some(hold);
        }
        self.release_all(now, released);
    }

    /// Takes the fetches that `is_released` accepts out of those that wait.
    fn take_released(
        &self,
        hold: &mut Hold,
        mut is_released: impl FnMut(&mut Hold, &Fetch) -> bool,
    ) -> Vec<FetchId> {
        let mut released = Vec::new();
        for id in std::mem::take(&mut hold.waiting) {
            // A fetch that was claimed or given up meanwhile takes no allowance.
            let Some(fetch) = self.fetches.get(id).filter(|it| it.phase.is_releasable()) else {
                continue;
            };
            match is_released(hold, fetch) {
                true => released.push(id),
                false => hold.waiting.push_back(id),
            }
        }
        released
    }

    /// Begins more held fetches of a page: a claim has shown that the browser lacks a resource that
    /// its cache could have kept. `claimed` is the resource, and the hashes of its request.
    fn note_claim(&mut self, now: Instant, id: PageId, claimed: (u32, RequestHashes)) {
        let (claimed, has_cookies) = (claimed.0, claimed.1.has_cookies());
        let hold = self.pages.get_mut(id).and_then(|page| page.hold.take());
        let (Some(mut hold), Some(page)) = (hold, self.pages.get(id)) else {
            return;
        };
        let site = site_of(url::authority(page.document_url()));
        let has_old_copies = self.visitors.age(&site).is_some();
        let known = &page.known_resources;
        let age = known.of_claimed(claimed);
        let trust = self.visitors.note_claim(&site, age, known.oldest());
        // The other fetches keep waiting while the browser may have copies.
        let is_held = has_old_copies || trust != Trust::Full || !has_cookies;
        hold.add_claim(trust, age, has_cookies);
        let released = self.take_released(&mut hold, |hold, fetch| {
            let hash = fetch.target.hash;
            // The browser sends a conditional request for a copy that the session has brought.
            let is_kept = fetch.validates || (has_old_copies && self.copies.contain(hash));
            !is_kept && hold.admit(known.of(hash), fetch)
        });
        if let Some(page) = self.pages.get_mut(id) {
            let page_url = Arc::clone(page.url());
            page.hold = is_held.then_some(hold);
            if !is_held {
                self.note_doubt(&page_url, false);
            }
        }
        self.release_all(now, released);
    }

    /// Handles the use of a push that did not wait for claims, because nearly all visits transfer
    /// its resource. Like a claim, it shows that the browser's cache lacks the resource.
    pub(super) fn note_likely_use(&mut self, now: Instant, push: &Unreported) {
        let mut pages = self.pages.ids().into_iter();
        let is_held = |page: &Page| page.hold.is_some() && *page.url() == push.page_url;
        let page = pages.find(|id| self.pages.get(*id).is_some_and(is_held));
        if let (Some(page), Some(hash)) = (page, url_hash_of(&push.url)) {
            return self.note_claim(now, page, (hash, push.asked));
        }
        let site = site_of(url::authority(&push.page_url));
        let always = KnownSince::ALWAYS;
        self.visitors.note_claim(&site, always, always);
    }

    /// Returns the time at which the next held fetch is given up.
    pub(super) fn next_hold_end(&mut self) -> Option<Instant> {
        let fetches = &self.fetches;
        let is_held = |id: &FetchId| fetches.get(*id).is_some_and(awaits_request);
        self.holds.next_wanted(is_held)
    }

    /// Gives up the fetches that were held for too long.
    pub(super) fn end_holds(&mut self, now: Instant) {
        while let Some(id) = self.holds.take_due(now) {
            self.end_hold(id);
        }
    }

    /// Gives up all held fetches.
    pub(super) fn end_all_holds(&mut self) {
        for id in self.holds.take_all() {
            self.end_hold(id);
        }
    }

    /// Gives up a fetch that is still held. The browser is thought to have the resource, so that
    /// the next page does not promise it again.
    fn end_hold(&mut self, id: FetchId) {
        let Some(fetch) = self
            .fetches
            .get_mut(id)
            .filter(|fetch| fetch.phase.awaits_request())
        else {
            return;
        };
        // The client has no report to make on it.
        fetch.reported = true;
        let (hash, has_head) = (fetch.target.hash, fetch.phase.holds_head());
        if has_head {
            self.note_useless(id);
        }
        let push = self.unreported.get(&hash);
        if push.is_some_and(|push| push.fetch == id)
            && let Some(push) = self.unreported.remove(&hash)
        {
            self.counts.withheld += 1;
            self.count_waste(&push);
            self.cache.note_refusal(hash);
        }
        self.cancel_fetch(id);
    }
}

/// Returns whether a fetch or a part of its response waits for a request.
const fn awaits_request(fetch: &Fetch) -> bool {
    fetch.phase.awaits_request()
}
