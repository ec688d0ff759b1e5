//! The cookies that a page sets: the requests of its resources carry them.
//!
//! The promises of a page have the cookies that its response has just set, as the browser's own
//! requests will have. If the browser has not returned a cookie that a host has set, it may refuse
//! cookies, and none are added until it returns one. Some cookies are unknown ([`CookieChanges`]).
//! A client without a gateway then requests nothing early, because each resource would be requested
//! twice. A gateway promises the resources without them, since responses for everyone still fit.
//!
//! Without a gateway, later responses can change cookies too: those of style sheets, images, frames
//! and redirects, and of requests that are not early. The early requests that carry such a cookie
//! end then (`changed_cookies`), unless it is a new one of a part of the page (`new_cookies`). Some
//! changes are not seen: those by `document.cookie`, by another program, and by responses in
//! tunnels, of upgrades, and to requests that take no pushes. An early request with such an old
//! cookie goes out, and its response fits no request of the browser unless it is for everyone.

use std::sync::Arc;
use std::time::Instant;

use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::split;

use super::changed_cookies::ChangedBy;
use super::page::Page;
use super::session::Gateway;
use super::table::{FetchId, PageId, ResponseId};
use super::visitors::comes_from_site;
use crate::cookies::{CookieChanges, CookieScope, Cookies, cookies_of, sets_strict_cookie};
use crate::fetch_standard::is_navigation;
use crate::response_rules::is_part_of_page;
use crate::url::directory;

impl Gateway {
    /// Handles the head of a response to a request with an unsafe method, which may change cookies.
    pub fn handle_unsafe_head(&mut self, now: Instant, request: &RequestHead, head: &ResponseHead) {
        self.note_changed_cookies(now, ChangedBy::Other, request, head);
    }

    /// Ends the early requests whose cookies a response changes, or lets them carry its new ones.
    /// Returns whether it changes cookies of later requests.
    pub(super) fn note_changed_cookies(
        &mut self,
        now: Instant,
        by: ChangedBy,
        request: &RequestHead,
        head: &ResponseHead,
    ) -> bool {
        if !self.config.audience.follows_cookies() || !head.fields.contains("set-cookie") {
            return false;
        }
        let before = cookies_of(&request.fields);
        let changes = CookieChanges::of(request, head, self.clock.unix_time(now));
        let scopes: Vec<_> = match &changes {
            Some(changes) => changes.altered(&before).cloned().collect(),
            None => vec![CookieScope::of_site(&request.authority)],
        };
        // The browser gets the cookies of other early responses with the resource, or never.
        let has_browser = match by {
            ChangedBy::Push(id) => self
                .fetches
                .get(id)
                .is_some_and(|fetch| fetch.has_browser_cookies),
            ChangedBy::Browser(_) | ChangedBy::Other => true,
        };
        if let Some(changes) = changes.as_ref().filter(|_| has_browser) {
            self.cookies.note_paths(changes);
        }
        if scopes.is_empty() {
            return false;
        }
        let is_part = !is_navigation(request) && is_part_of_page(head);
        let new = changes.filter(|changes| is_part && changes.only_create(&before));
        let new = new.and_then(|changes| self.new_cookies(by, request, changes));
        if let (ChangedBy::Push(id), Some(new), false) = (by, &new, has_browser) {
            self.keep_new_cookies(id, new.clone());
            return true;
        }
        let new = new.map(|new| (self.knows_changes(new.page), new));
        let own = match by {
            ChangedBy::Browser(response) => Some(response),
            ChangedBy::Push(_) | ChangedBy::Other => None,
        };
        self.cookies.note_changes(own, scopes);
        if let Some((knows_changes, new)) = new {
            self.follow_new_cookies(&new, knows_changes);
        }
        self.end_outdated_fetches(now);
        true
    }

    /// Ends the fetches that have not begun and whose requests have old cookies, unless a request
    /// of the browser waits for them.
    pub(super) fn end_outdated_fetches(&mut self, now: Instant) {
        for id in self.outdated_fetches() {
            self.withdraw(id);
            self.cancel_fetch(id);
        }
        self.start_fetches(now);
    }

    /// Returns the fetches that have not begun and whose requests have old cookies, unless a
    /// request of the browser waits for them.
    fn outdated_fetches(&self) -> Vec<FetchId> {
        let is_outdated = |id: &FetchId| {
            self.fetches.get(*id).is_some_and(|fetch| {
                let page = self.pages.get(fetch.page);
                matches!((fetch.phase.waiting_request(), page), (Some(request), Some(page))
                    if !fetch.requested && self.cookies.outdate(page, request))
            })
        };
        self.fetches.ids().into_iter().filter(is_outdated).collect()
    }

    /// Creates the page of a response to a request of the browser.
    pub(super) fn new_page(
        &self,
        id: ResponseId,
        request: Arc<RequestHead>,
        url: Arc<str>,
    ) -> Page {
        let mut page = Page::new(id, request, url);
        if let Some(policies) = self.content_policies.of(page.url()) {
            // The policies of the last visit hold until the head arrives.
            page.set_content_policies(policies);
        }
        page.cookies_of = self.cookies_of(id);
        page.known_paths = self.cookies.limited_by_paths(page.request());
        page.image_accept = self.image_accept.of(page.request(), 1);
        page
    }

    /// Returns the number of the last change of cookies before the request for a response. It is
    /// zero for a response that has gone, so that each change counts as a later one.
    pub(super) fn cookies_of(&self, id: ResponseId) -> u64 {
        let response = self.responses.get(id);
        response.map_or(0, |response| response.cookies_of)
    }

    /// Returns whether an early request for a page would have old cookies.
    pub(super) fn is_outdated(&self, page: PageId, request: &RequestHead) -> bool {
        let page = self.pages.get(page);
        page.is_none_or(|page| self.cookies.outdate(page, request))
    }

    /// Returns the cookies of the requests that a page causes.
    pub(super) fn cookies_after(
        &mut self,
        now: Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) -> Cookies {
        let changes = self.changes_of(now, request, head);
        self.cookies.after(request, changes)
    }

    /// Returns whether the cookies of the request for a redirect's target are known. `head` is the
    /// redirect of the browser's request to a `target` of its origin. If it sets cookies, the
    /// browser must return them. One that has returned none of the host's cookies may refuse these
    /// too. Behind a link of another site, browsers hold strict cookies back.
    ///
    /// The paths of the browser's older cookies are unknown. Those that go to the target, but not
    /// with the redirected request, would be missing. So both must be in one directory. A query may
    /// be good for one request, and the browser must then have returned all cookies that change.
    pub(super) fn knows_cookies_of_target(
        &self,
        now: Instant,
        request: &RequestHead,
        head: &ResponseHead,
        target: &str,
    ) -> bool {
        if !head.fields.contains("set-cookie") {
            return true;
        }
        let Some((_, _, path)) = split(target) else {
            return false;
        };
        let returns_all = match self.changes_of(now, request, head) {
            Cookies::Unknown => return false,
            Cookies::Unchanged => true,
            Cookies::Changed(changes) => changes.only_replace(&cookies_of(&request.fields)),
        };
        !sets_strict_cookie(head)
            && !self.cookies.may_be_refused(request)
            && directory(path) == directory(&request.path)
            && (returns_all || !path.contains('?'))
    }

    /// Notes the cookies that a page's document sets, which is pushed behind a redirect. The
    /// browser gets them before it requests the page's resources. Unknown cookies are left out, as
    /// those of other pages are.
    pub(super) fn note_cookies_of_document(
        &mut self,
        now: Instant,
        id: FetchId,
        head: &ResponseHead,
    ) {
        let Some(fetch) = self.fetches.get(id) else {
            return;
        };
        let (page, Some(request)) = (fetch.page, fetch.request.clone()) else {
            return;
        };
        if let Cookies::Changed(changes) = self.cookies_after(now, &request, head)
            && let Some(page) = self.pages.get_mut(page)
            && let Some(later) = page.cookies_with(&changes)
        {
            page.set_cookies(Some(later));
        }
    }

    /// Returns the changes that a response makes to the cookies of later requests.
    pub(super) fn changes_of(
        &self,
        now: Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) -> Cookies {
        if !head.fields.contains("set-cookie") {
            return Cookies::Unchanged;
        }
        // Browsers may refuse the cookies of a frame of another site.
        let is_foreign_frame = self.is_frame(now, request) && !comes_from_site(request);
        if !is_navigation(request) || is_foreign_frame {
            return Cookies::Unknown;
        }
        let before = cookies_of(&request.fields);
        match CookieChanges::of(request, head, self.clock.unix_time(now)) {
            None => Cookies::Unknown,
            Some(changes) if changes.alter(&before) => Cookies::Changed(changes),
            Some(_) => Cookies::Unchanged,
        }
    }
}
