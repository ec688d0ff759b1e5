//! The copies in the browser's cache that are too old, and the checks of them.
//!
//! A conditional request shows that the browser has a copy, and that the copy is at least as old as
//! its lifetime. The other copies of the site are assumed to be from the same visit. Copies with
//! that lifetime or a shorter one are too old as well, and the browser will validate them. The
//! gateway promises their heads at once, with HEAD. The browser's conditional requests then wait
//! for them at the client instead of crossing the path. The gateway then requests the heads and
//! sends each as a 304. If it knows the validator of a copy, the request is conditional instead.
//! The response of another version then becomes a push (see `validators`).
//!
//! A check takes the place of the browser's own request. Resources with an unknown lifetime are not
//! checked. Those of another site are checked only if the page names their host, or has caused a
//! request to it. Otherwise anyone could teach the predictor a host, and would see the visits to
//! the page.

use std::time::{Duration, Instant};

use tandem_http::cache::{CacheRules, Receipt, RequestPolicy, ResponsePolicy, validation};
use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_preload::Need;

use super::claims::Claimant;
use super::client_cache::SiteNumber;
use super::fetch::{PushStream, PushTarget};
use super::output::{Order, Output, PushError};
use super::page_copies::PageCopies;
use super::repeats::RepeatablePush;
use super::returning::CachedCopy;
use super::session::{Gateway, Unreported};
use super::table::{FetchId, PageId};
use super::unknown_cookies::CookieKnowledge;
use super::validators::confirm;
use super::visitors::visited_site;
use crate::client::not_modified;
use crate::cookies::{CookieChanges, cookies_of};
use crate::fetch_standard::is_through_worker;
use crate::response_rules::{CopyLifetime, KeptCopy, Reuse, is_redirect, may_be_pushed};
use crate::site::site_of;
use crate::url;
use crate::wire::{NEXT_PAGE_FIELD, url_hash};

/// The fraction of a lifetime (1/8) by which a copy may seem younger than it is. The clocks of
/// origins differ a little, and a load takes some time.
const TOLERANCE: u32 = 8;

/// The age from which copies are assumed to be twice as old as requests show. Requests show the
/// least age only. Few visitors return between one and two days, weeks or months after their last
/// visit.
const LONG_ABSENCE: Duration = Duration::from_hours(24);

/// The least age that copies are assumed to have if one has expired that cannot be validated.
/// Requests show a lower bound only. The claim of a copy that expires within 64 hours thus shows
/// no empty cache. If the cache is empty, a resource that lasts longer is claimed as well.
const ASSUMED_AGE: Duration = LONG_ABSENCE;

/// Returns whether a copy is likely to need a validation, given the least age of the copies of its
/// site.
fn is_old(lifetime: CopyLifetime, age: Duration) -> bool {
    let tolerated = age + lifetime.whole / TOLERANCE;
    let likely = match tolerated < LONG_ABSENCE {
        true => tolerated,
        false => 2 * tolerated,
    };
    likely >= lifetime.whole
}

impl Gateway {
    /// Remembers the copies that the browser may have of the resources of a page. If the page shows
    /// a first visit (`is_first`), the copies that the session has brought are those of another
    /// window or browser, until a request shows one.
    pub(super) fn watch_copies(&mut self, id: PageId, mut copies: Vec<CachedCopy>, is_first: bool) {
        let Some(page) = self.pages.get(id) else {
            return;
        };
        copies.retain_mut(|copy| page.limit_referrer(&mut copy.need, copy.referrers));
        if copies.is_empty() || self.config.audience.remembers_visits() {
            return;
        }
        let mut copies = PageCopies::new(id, url::authority(page.document_url()), copies);
        copies.is_first = is_first;
        if let Some(oldest) = self.copies.push(copies) {
            self.collect_page(oldest);
        }
        self.check_copies(false);
    }

    /// Returns the use of a push's response that a claim shows. A copy without a validator that is
    /// as old as the others of its site has expired. The browser requests the resource then,
    /// whatever else it has, as if no cache could keep it. The others count as at least
    /// [`ASSUMED_AGE`] old. A service worker of the page may have passed this request on, and may
    /// answer others. The claim then shows nothing about others either.
    pub(super) fn evident_reuse(
        &mut self,
        now: Instant,
        id: FetchId,
        head: &ResponseHead,
        reuse: Reuse,
    ) -> Reuse {
        let unix_time = self.clock.unix_time(now);
        let copy = KeptCopy::of(head, unix_time).filter(|copy| !copy.has_validator);
        let fetch = self.fetches.get(id);
        let page = fetch.and_then(|fetch| self.pages.get(fetch.page));
        if page.is_some_and(|page| is_through_worker(page.request())) {
            return Reuse::Never;
        }
        let (Some(copy), Some(page)) = (copy, page) else {
            return reuse;
        };
        let site = site_of(url::authority(page.document_url()));
        let rest = Duration::from_secs(copy.until.saturating_sub(unix_time));
        let lifetime = CopyLifetime { whole: rest, rest };
        let age = self.visitors.age(&site).unwrap_or_default();
        if !is_old(lifetime, age.max(ASSUMED_AGE)) {
            return reuse;
        }
        if let Some(fetch) = fetch
            && let Some(push) = self.unreported.get_mut(&fetch.target.hash)
            && push.fetch == id
        {
            push.has_expired = true;
        }
        Reuse::Never
    }

    /// Forgets all copies.
    pub(super) fn forget_copies(&mut self) {
        let pages = self.copies.clear();
        self.collect_pages(pages);
    }

    /// Handles a request of the browser for a resource, whose copy needs no check any more. The
    /// request may show the age of the other copies, and a host of the page.
    pub(super) fn note_request(&mut self, request: &RequestHead, hash: u32) {
        let is_conditional = validation::is_conditional(&request.fields);
        self.withdraw_for_request(hash, is_conditional);
        let (mut lifetime, mut names_host) = (None, false);
        for copies in self.copies.iter_mut() {
            let taken = copies.take(hash);
            lifetime = lifetime.or(taken);
            names_host |= copies.note_host(request);
        }
        let is_evidence = validation::validates_copy(&request.fields)
            && !self.has_sent(hash, request)
            && !RequestPolicy::of(&request.fields).wants_validation();
        let age = lifetime.filter(|_| is_evidence).map(|it| it.rest);
        let is_older = age.is_some_and(|age| self.visitors.note_age(&visited_site(request), age));
        if is_older || names_host {
            self.check_copies(true);
        }
    }

    /// Records the least age of the copies of a site, which the response to a conditional request
    /// shows. Copies that are too old are checked. A reload shows no age.
    pub(super) fn note_age(&mut self, site: &str, request: &RequestHead, age: Duration) {
        let is_reload = RequestPolicy::of(&request.fields).wants_validation();
        if !is_reload && self.visitors.note_age(site, age) {
            self.check_copies(true);
        }
    }

    /// Promises checks of those copies that are too old. If `gathers` is true, the checks begin a
    /// moment later, because requests of the browser may still arrive.
    pub(super) fn check_copies(&mut self, gathers: bool) {
        let mut due = Vec::new();
        for copies in self.copies.iter_mut() {
            let page = self.pages.get(copies.page);
            let Some(page) = page.filter(|_| gathers || !copies.is_first) else {
                continue;
            };
            let (cache, hosts, unreported) = (&self.cache, &self.hosts, &self.unreported);
            let age = self.visitors.age(&copies.site);
            let own_hosts = &copies.hosts;
            let is_due = |(hash, copy): &mut (u32, CachedCopy)| {
                let host = url::authority(&copy.need.url);
                let is_received = cache.has_received(*hash, || SiteNumber::of(&copies.site))
                    && !unreported.contains_key(hash);
                let is_stale = match is_received {
                    true => cache.is_validatable(*hash),
                    false => age.is_some_and(|age| is_old(copy.lifetime, age)),
                };
                let is_named = page.names_host(host) || own_hosts.contains(host);
                is_stale
                    && (page.is_same_site(&copy.need.url) || (is_named && hosts.is_wanted(host)))
            };
            let id = copies.page;
            let taken = copies.unchecked.extract_if(.., is_due);
            due.extend(taken.map(|(_, copy)| (id, copy)));
        }
        due.sort_by_key(|(_, copy)| copy.need.urgency);
        for (page, copy) in due {
            self.promise_check(page, &copy.need, gathers);
        }
    }

    /// Promises the head of a resource. A held promise of its body gives way.
    pub(super) fn promise_check(&mut self, id: PageId, need: &Need, gathers: bool) {
        let own_origin_only = self.config.own_origin_only;
        let is_over = self.closed || self.is_tunnelled(&need.url);
        let page = self.pages.get_mut(id);
        let Some(page) = page.filter(|page| !is_over && !page.is_closed()) else {
            return;
        };
        if !page.admits_by_policy(need) || is_through_worker(page.request()) {
            return;
        }
        let Some(mut request) = page.request_for(need, own_origin_only) else {
            return;
        };
        if self.is_outdated(id, &request) || !self.add_hints(id, need, &mut request) {
            return;
        }
        let target = PushTarget::of(need.url.as_str().into(), &request);
        let is_conditional = self.make_check(id, target.hash, &mut request);
        if self.requested.contains(&target.hash)
            || (!is_conditional && self.cache.is_uncheckable(target.hash))
            || self.validators.is_of_former_user(target.hash)
            || self.workers.may_answer(target.hash)
            || self.refusals.concern(&need.url)
            || self.unreported.len() >= self.config.unreported
            || self.cookie_knowledge(id, need, &request) != CookieKnowledge::Known
        {
            return;
        }
        let push = self.unreported.get(&target.hash).map(|push| push.fetch);
        let is_held = |id| self.fetches.get(id).is_some_and(|it| it.phase.is_held());
        if push.is_some_and(|push| !is_held(push)) {
            return;
        }
        let page = self.pages.get_mut(id);
        if page.is_none_or(|page| !page.spend_promise(need, &request)) {
            return;
        }
        let superseded = push.filter(|push| self.supersede(*push));
        let fetch = self.add_promise(id, need, target.clone(), request);
        if gathers && let Some(fetch) = fetch.and_then(|fetch| self.fetches.get_mut(fetch)) {
            fetch.phase.gather();
        }
        if let Some(push) = self.unreported.get_mut(&target.hash) {
            push.superseded = superseded;
        }
    }

    /// Notes a response that changes cookies as a login does: a redirect, or the response to a
    /// form.
    pub(super) fn note_login(&mut self, now: Instant, request: &RequestHead, head: &ResponseHead) {
        let may_be_login = request.method != Method::Get || is_redirect(head);
        if !may_be_login || !head.fields.contains("set-cookie") {
            return;
        }
        let changes = CookieChanges::of(request, head, self.clock.unix_time(now));
        if changes.is_none_or(|changes| changes.alter(&cookies_of(&request.fields))) {
            self.validators
                .note_other_user(&site_of(&request.authority));
        }
    }

    /// Makes a request one for a check: conditional if the validator of the copy is known, and HEAD
    /// otherwise. Returns whether it is conditional.
    fn make_check(&self, id: PageId, hash: u32, request: &mut RequestHead) -> bool {
        let takes_conditions = self.companion.takes_conditional_checks();
        let page = self.pages.get(id).filter(|_| takes_conditions);
        let page = page.map(|page| url_hash(page.request()));
        let condition = page.and_then(|page| self.validators.condition(hash, request, page));
        let Some(condition) = condition else {
            request.method = Method::Head;
            return false;
        };
        request.fields.push(condition.name, &*condition.value);
        true
    }

    /// Returns whether the response to a conditional check is another version than that of the
    /// browser. The response then becomes a push of the resource, under the rules of all pushes.
    pub(super) fn brings_other_version(&mut self, id: FetchId, head: &mut ResponseHead) -> bool {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return false;
        };
        let request = fetch.request.as_ref();
        let Some(request) = request.filter(|it| it.method == Method::Get) else {
            return false;
        };
        let is_confirmed = confirm(request, head);
        if head.status == 304 {
            return false;
        }
        fetch.is_check = false;
        fetch.validates = is_confirmed;
        let hash = fetch.target.hash;
        if head.status != 200 {
            self.bar_check(hash);
        }
        if let Some(push) = self.unreported.get_mut(&hash)
            && push.fetch == id
        {
            push.is_check = false;
        }
        true
    }

    /// Lets a check take the place of a held fetch of the same resource. Returns whether the client
    /// may have the promise of the held fetch, so that a report may still name it.
    fn supersede(&mut self, id: FetchId) -> bool {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return false;
        };
        fetch.phase.supersede();
        fetch.reported = true;
        let is_unopened = fetch.stream == PushStream::Unopened;
        let hash = fetch.target.hash;
        self.unreported.remove(&hash);
        self.cache.forget(hash);
        self.counts.withheld += 1;
        if is_unopened {
            self.forget_fetch(id);
        }
        !is_unopened
    }

    /// Begins a check once the requests that the browser made meanwhile have arrived.
    pub(super) fn begin_checks(&mut self, now: Instant) {
        while let Some(id) = self.copies.take_check(now) {
            if let Some(fetch) = self.fetches.get_mut(id)
                && fetch.phase.end_gathering()
            {
                self.queue.wait(fetch.turn, id);
            }
        }
        self.start_fetches(now);
    }

    /// Withdraws the promise of a resource that the browser requests itself, if its fetch has not
    /// begun. The promise may still wait for its stream, or the fetch for its turn.
    fn withdraw_for_request(&mut self, hash: u32, is_conditional: bool) {
        let Some(push) = self.unreported.get(&hash) else {
            return;
        };
        let (id, is_check) = (push.fetch, push.is_check);
        let waiting = self.fetches.get(id).filter(|it| it.phase.is_waiting());
        match waiting.map(|fetch| fetch.requested) {
            // The browser has no copy. Its report on the check may still be on its way.
            None if is_check && !is_conditional => self.note_useless_check(hash),
            Some(false) => self.withdraw_promise(id),
            _ => {}
        }
    }

    /// Withdraws a promise whose fetch has not begun.
    fn withdraw_promise(&mut self, id: FetchId) {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        let hash = fetch.target.hash;
        fetch.reported = true;
        if let Some(push) = self.unreported.remove(&hash) {
            self.counts.withheld += u64::from(!push.is_next);
            self.cache.forget(hash);
        }
        self.cancel_fetch(id);
    }

    /// Passes the head of a check on as a 304, if it can confirm a copy.
    pub(super) fn pass_check(
        &mut self,
        now: Instant,
        id: FetchId,
        head: &mut ResponseHead,
    ) -> Result<Order, PushError> {
        let has_validator = head.fields.contains("etag") || head.fields.contains("last-modified");
        if head.status == 304 {
            // It describes the response that HEAD would bring.
            head.status = 200;
        }
        let is_right = head.status == 200 && has_validator && may_be_pushed(head);
        let Some(fetch) = self.fetches.get_mut(id).filter(|_| is_right) else {
            self.fail_check(now, id);
            return Err(PushError::Forbidden);
        };
        fetch.reported = true;
        let (target, is_next) = (fetch.target.clone(), fetch.is_next);
        let (hash, asked) = (target.hash, target.asked);
        let unix_time = self.clock.unix_time(now);
        let (copy, receipt) = (KeptCopy::of(head, unix_time), Receipt::at(unix_time));
        if let Some(push) = self.unreported.get_mut(&hash)
            && push.fetch == id
        {
            push.copy = copy;
        }
        if let Some(mut request) = fetch.request.take()
            && !head.fields.contains("set-cookie")
        {
            request.method = Method::Head;
            let begun = RepeatablePush {
                fetch: id,
                hash,
                request,
                asked,
                freshness: ResponsePolicy::of(head).freshness(CacheRules::BROWSER, receipt),
            };
            self.repeats.begin(now, begun, head, 0);
        }
        *head = not_modified(head);
        target.describe(head);
        if is_next {
            head.fields.set(NEXT_PAGE_FIELD, "1");
        }
        Ok(Order::Now)
    }

    /// Ends a check whose response confirms no copy, and remembers that.
    fn fail_check(&mut self, now: Instant, id: FetchId) {
        if let Some(fetch) = self.fetches.get(id) {
            self.bar_check(fetch.target.hash);
        }
        self.fail_fetch(now, id);
    }

    /// Returns whether the session may use the validators of responses: the client takes
    /// conditional checks, or its own checks depend on the user of the last response.
    pub(super) fn uses_validators(&self) -> bool {
        self.companion.takes_conditional_checks() || self.config.audience.checks_known_copies()
    }

    /// Notes that a check was of no use. It is not repeated before the browser shows a copy.
    pub(super) fn bar_check(&mut self, hash: u32) {
        self.cache.note_uncheckable(hash);
        self.validators.bar(hash);
    }

    /// Handles a check that has confirmed no copy. Its URL is not checked again.
    pub(super) fn note_useless_check(&mut self, hash: u32) {
        self.bar_check(hash);
        if let Some(push) = self.unreported.remove(&hash) {
            self.counts.cancelled += u64::from(!push.is_next);
            self.count_waste(&push);
        }
    }

    /// Handles the report that a request waits for a resource whose promise a check has superseded.
    /// The browser has no copy, so the check is of no use. The fetch of another user's page begins
    /// for no stranger.
    pub(super) fn prefer_superseded(
        &mut self,
        now: Instant,
        check: &Unreported,
        claimant: Claimant,
    ) {
        let fetch = self.fetches.get(check.fetch);
        if fetch.is_some_and(|fetch| fetch.phase.is_waiting()) {
            self.counts.withheld += 1;
            self.withdraw_promise(check.fetch);
        } else {
            // A check that has ended has no record any more.
            self.counts.cancelled += 1;
            self.count_waste(check);
        }
        match check.superseded {
            Some(fetch) if claimant == Claimant::Stranger => self.cancel_fetch(fetch),
            Some(fetch) => {
                self.raise_fetch(now, fetch);
                self.outputs.push_back(Output::Raise { fetch });
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_is_old_after_its_lifetime() {
        let hours = Duration::from_hours;
        let of = |whole: u64, age: u64| {
            let lifetime = CopyLifetime {
                whole: hours(whole),
                rest: Duration::ZERO,
            };
            is_old(lifetime, hours(age))
        };
        assert!(of(0, 0) && of(8, 8) && of(8, 7) && !of(8, 6));
        assert!(!of(20, 16) && of(20, 18), "after less than a day");
        assert!(of(2 * 168, 168) && of(30, 23), "after a long absence");
        assert!(of(48, 18), "one day is long");
        assert!(!of(720, 168) && !of(8766, 720));
    }
}
