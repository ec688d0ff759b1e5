//! The later visits of one user to a page: the resources that the last visit needed are requested
//! together with the page. If the page changes cookies, they are requested when its head arrives.
//!
//! A conditional request for the page counts as a visit, but a reload does not. Neither do the
//! requests of a script, a frame or a prefetch, by which another site could cause early requests.
//! If the browser must validate a resource, only its head is requested (`copies`).

use std::sync::Arc;
use std::time::Instant;

use tandem_http::RequestHead;
use tandem_preload::{Need, Referrer};

use super::client_cache::SiteNumber;
use super::own_needs::is_top_level;
use super::revisits::UsedNeeds;
use super::session::Gateway;
use super::table::{FetchId, PageId, ResponseId};
use super::visits::Visits;
use crate::cookies::Cookies;
use crate::fetch_standard::{is_navigation, is_prefetch};
use crate::response_rules::KeptCopy;
use crate::url::{authority, request_url};
use crate::wire::url_hash_of;

impl Gateway {
    /// Uses the visits of other sessions of the same user, in place of those so far. A session of
    /// several users uses none.
    pub fn share_visits(&mut self, visits: Visits) {
        if let Some(own) = &mut self.visits {
            *own = visits;
        }
    }

    /// Promises the resources that the last visit to a page needed, before the page itself has
    /// arrived.
    pub(super) fn begin_revisit(
        &mut self,
        now: Instant,
        id: ResponseId,
        request: &Arc<RequestHead>,
    ) {
        let is_plain = is_navigation(request)
            && !is_prefetch(request)
            && (is_top_level(request) || !self.config.audience.visits_in_tabs_only())
            && !self.refuses_pushes(request)
            && !self.is_frame(now, request);
        let Some(url) = request_url(request).filter(|_| is_plain && !self.closed) else {
            return;
        };
        let Some(visits) = &self.visits else {
            return;
        };
        if let Some(response) = self.responses.get_mut(id) {
            response.is_visit = true;
        }
        let needs = {
            let mut visits = visits.lock();
            visits.begin_visit(&url, request);
            visits.visit(&url)
        };
        let Some((policy, needs)) = needs else {
            return;
        };
        let needs = self.note_copies(&url, needs);
        let treatment = self.treat(now, &url, request, &needs);
        if let Some(response) = self.responses.get_mut(id) {
            response.treatment = treatment;
        }
        if self.is_held_out() {
            return;
        }
        let page = self.new_page(id, Arc::clone(request), url.into());
        let page = self.pages.insert(page);
        self.adopt(page, &needs);
        if let Some(page) = self.pages.get_mut(page) {
            page.set_policy(policy);
        }
        if let Some(response) = self.responses.get_mut(id) {
            response.page = Some(page);
        }
        self.promise_again(page, needs);
    }

    /// Returns whether the user of a tab visits a page with the request for a response. Only then
    /// may the needs of the last visit leave, and only then were the cookies checked.
    pub(super) fn is_visit(&self, id: ResponseId) -> bool {
        let response = self.responses.get(id);
        response.is_some_and(|response| response.is_visit)
    }

    /// Notes the copies that the browser may have of the needs of a last visit.
    fn note_copies(&mut self, page: &str, needs: UsedNeeds) -> Vec<Need> {
        let site = SiteNumber::of_authority(authority(page));
        for (need, copy) in &needs {
            if let (Some(hash), Some(copy)) = (url_hash_of(&need.url), copy) {
                self.cache.note_answer(hash, Some(*copy), site);
            }
        }
        needs.into_iter().map(|(need, _)| need).collect()
    }

    /// Handles the cookies that the head of a page changes. Promises that left before carry the old
    /// ones. They are given up unless their responses are here or the browser waits for them.
    /// Returns the policy and needs of the last visit that may leave now.
    pub(super) fn end_old_revisit(
        &mut self,
        now: Instant,
        id: ResponseId,
        url: &str,
        cookies: &Cookies,
    ) -> Option<(Referrer, UsedNeeds)> {
        if self.visits.is_some() && *cookies != Cookies::Unchanged {
            let page = self.responses.get(id).and_then(|response| response.page);
            for fetch in page.map_or_else(Vec::new, |page| self.unanswered_fetches(page)) {
                // The page may promise the same resource again, with the new cookies.
                self.withdraw(fetch);
                self.cancel_fetch(fetch);
            }
            self.end_revisit(now, id);
        }
        if !self.is_visit(id) {
            return None;
        }
        let mut visits = self.visits.as_ref()?.lock();
        if *cookies == Cookies::Unknown {
            visits.forget(url);
        }
        visits.note_head(url, *cookies != Cookies::Unchanged)
    }

    /// Returns the fetches of a page that have no response yet, and for which no request waits.
    fn unanswered_fetches(&self, page: PageId) -> Vec<FetchId> {
        let is_unanswered = |id: &FetchId| {
            self.fetches.get(*id).is_some_and(|fetch| {
                fetch.page == page && !fetch.requested && fetch.phase.awaits_head()
            })
        };
        self.fetches
            .ids()
            .into_iter()
            .filter(is_unanswered)
            .collect()
    }

    /// Promises the needs of a page's last visit that waited for its head.
    pub(super) fn promise_last_visit(&mut self, id: PageId, last: Option<(Referrer, UsedNeeds)>) {
        let Some((policy, needs)) = last else { return };
        let Some(url) = self.pages.get(id).map(|page| Arc::clone(page.url())) else {
            return;
        };
        let mut needs = self.note_copies(&url, needs);
        let Some(page) = self.pages.get(id) else {
            return;
        };
        if let Some(visits) = &self.visits {
            visits.lock().add_cookies(page.url(), page.cookie_hashes());
        }
        if page.policy() == Referrer::default() {
            // The page's own bytes may name the policy.
            for need in &mut needs {
                need.referrer.get_or_insert(policy);
            }
        }
        self.promise_again(id, needs);
    }

    /// Notes that the browser itself requests a resource of the last page.
    pub(super) fn note_own_request(&mut self, request: &RequestHead) {
        if let (Some(view), Some(visits)) = (&self.view, &self.visits)
            && !is_navigation(request)
            && !is_prefetch(request)
            && let Some(url) = request_url(request)
        {
            visits.lock().note_use(view.url(), &url, true);
        }
    }

    /// Notes the copy that the browser's cache can have of a response to its own request.
    pub(super) fn note_own_copy(&mut self, request: &RequestHead, copy: Option<KeptCopy>) {
        if let (Some(view), Some(visits)) = (&self.view, &self.visits)
            && let Some(url) = request_url(request)
        {
            visits.lock().note_copy(view.url(), &url, copy);
        }
    }

    /// Gives up the promises of a response that is not the expected page.
    pub(super) fn end_revisit(&mut self, now: Instant, id: ResponseId) {
        let page = self
            .responses
            .get_mut(id)
            .and_then(|response| response.page.take());
        if let Some(page) = page {
            self.abandon(now, page);
        }
    }
}
