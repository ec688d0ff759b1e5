//! New cookies that the parts of a page set while the page loads.
//!
//! If the browser gets a style sheet, script, image or font that sets a cookie of a new name, its
//! later requests carry that cookie. So do the early requests of the page that have not begun. The
//! browser gets the cookie of an early response only when it requests the resource. Until then the
//! early requests do without it.
//!
//! This holds for cookies that the request for the part did not have. A cookie that changes at each
//! response may be good for one request, and the early requests end then (`changed_cookies`). The
//! request for the part must have had the cookies of the page's other requests, and the user must
//! have no other page of this URL: the cookie may otherwise be that of another window. A browser
//! that may refuse the cookies of the host gets no such early requests either.
//!
//! A page follows a few changes. The next one ends its early requests that have not begun, so the
//! cookies of a hostile page cost little time.

use std::sync::Arc;
use std::time::Instant;

use tandem_http::RequestHead;

use super::changed_cookies::{ChangedBy, NewCookies};
use super::fetch::Fetch;
use super::fetch_phase::FetchPhase;
use super::page::Page;
use super::session::{Gateway, Unreported};
use super::table::{FetchId, PageId};
use crate::cookies::{CookieChanges, cookies_of};
use crate::wire::RequestHashes;

impl Gateway {
    /// Returns the new cookies of a response, if the page's early requests may carry them.
    /// `changes` are those of a part of a page, and only create cookies.
    pub(super) fn new_cookies(
        &self,
        by: ChangedBy,
        request: &RequestHead,
        changes: CookieChanges,
    ) -> Option<NewCookies> {
        let page = match by {
            ChangedBy::Browser(_) => self.page_of_part(request)?,
            ChangedBy::Push(fetch) => self.fetches.get(fetch)?.page,
            ChangedBy::Other => return None,
        };
        let record = self.pages.get(page)?;
        let may_refuse = !record.adds_cookies() && self.cookies.may_be_refused(request);
        let is_of_page = self.is_only_page(page) && record.may_cause(request);
        (is_of_page && !may_refuse).then(|| NewCookies {
            page,
            request: Arc::new(request.clone()),
            changes,
        })
    }

    /// Returns the page that the referrer of a request names.
    fn page_of_part(&self, request: &RequestHead) -> Option<PageId> {
        let referrer = request.fields.get("referer")?;
        let is_named = |id: &PageId| {
            let page = self.pages.get(*id);
            page.is_some_and(|page| {
                page.document_url().as_bytes() == referrer && page.is_document()
            })
        };
        self.pages.ids().into_iter().rfind(is_named)
    }

    /// Returns whether the user has no other page of the same URL.
    fn is_only_page(&self, id: PageId) -> bool {
        let Some(page) = self.pages.get(id).filter(|page| !page.abandoned) else {
            return false;
        };
        let is_same = |other: &&Page| {
            !other.abandoned && other.is_document() && other.document_url() == page.document_url()
        };
        self.pages.values().filter(is_same).count() == 1
    }

    /// Notes whether the browser's request for a push has the same cookies as the early one. If it
    /// has later ones, it does not get a response that sets cookies.
    pub(super) fn compare_cookies(&mut self, id: FetchId) {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        let waiting = fetch.phase.waiting_request();
        let request = waiting.or(fetch.request.as_ref());
        let (Some(request), Some(page)) = (request, self.pages.get(fetch.page)) else {
            return;
        };
        let model = page.cookies_for(request);
        fetch.has_browser_cookies =
            model.is_some_and(|model| model == *cookies_of(&request.fields));
    }

    /// Remembers the new cookies of a push until the browser gets it.
    pub(super) fn keep_new_cookies(&mut self, id: FetchId, cookies: NewCookies) {
        let hash = self.fetches.get(id).map(|fetch| fetch.target.hash);
        let push = hash.and_then(|hash| self.unreported.get_mut(&hash));
        if let Some(push) = push.filter(|push| push.fetch == id) {
            push.sets = Some(Box::new(cookies));
        }
    }

    /// Handles the new cookies of a push that the browser gets now.
    pub(super) fn deliver_new_cookies(&mut self, now: Instant, push: &Unreported) {
        let Some(cookies) = push.sets.as_deref() else {
            return;
        };
        let NewCookies {
            page,
            request,
            changes,
        } = cookies.clone();
        let before = cookies_of(&request.fields);
        let knows_changes = self.knows_changes(page);
        self.cookies.note_delivered(&changes, &before);
        let may_cause = self
            .pages
            .get(page)
            .is_some_and(|it| it.may_cause(&request));
        if may_cause && self.is_only_page(page) {
            self.cookies.note_set_by_part(&request);
            self.follow(page, &changes, knows_changes);
        }
        self.end_outdated_fetches(now);
    }

    /// Returns whether all changes of cookies since the page's request are those of the page.
    pub(super) fn knows_changes(&self, id: PageId) -> bool {
        let page = self.pages.get(id);
        page.is_some_and(|page| self.cookies.knows_changes_of(page))
    }

    /// Lets the later requests of a page carry new cookies. `knows_changes` is true if no other
    /// page changed a cookie before.
    pub(super) fn follow_new_cookies(&mut self, cookies: &NewCookies, knows_changes: bool) {
        self.cookies.note_set_by_part(&cookies.request);
        self.follow(cookies.page, &cookies.changes, knows_changes);
    }

    fn follow(&mut self, id: PageId, changes: &CookieChanges, knows_changes: bool) {
        let Some(page) = self.pages.get(id).filter(|page| page.follows_cookies()) else {
            return;
        };
        let Some(later) = page.cookies_with(changes) else {
            return;
        };
        let is_affected = |fetch: &Fetch| {
            let request = fetch.phase.waiting_request();
            fetch.page == id
                && !fetch.requested
                && request.is_some_and(|request| changes.concern(request))
        };
        let affected = |id: &FetchId| self.fetches.get(*id).is_some_and(is_affected);
        let affected: Vec<_> = self.fetches.ids().into_iter().filter(affected).collect();
        let mut others = Vec::new();
        for id in affected {
            if !self.add_cookies(id, changes) {
                others.push(id);
            }
        }
        let last = self.cookies.last_change();
        if let Some(page) = self.pages.get_mut(id) {
            // The changes of other pages still end its early requests.
            let number = if knows_changes { last } else { page.cookies_of };
            page.add_cookies(later, number);
        }
        for id in others {
            self.withdraw(id);
            self.cancel_fetch(id);
        }
    }

    /// Adds new cookies to the request of a fetch that waits. Returns false if they are unknown for
    /// this request.
    fn add_cookies(&mut self, id: FetchId, changes: &CookieChanges) -> bool {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return false;
        };
        let (Some(page), FetchPhase::Waiting { request, .. }) =
            (self.pages.get(fetch.page), &mut fetch.phase)
        else {
            return false;
        };
        let before = cookies_of(&request.fields).into_owned();
        let is_known = page
            .cookies_for(request)
            .is_some_and(|model| model == before);
        if !is_known || fetch.purpose.frame().is_some() {
            return false;
        }
        let scheme = request.scheme.as_str();
        let after = changes.after(&before, scheme, &request.authority, &request.path);
        request.fields.remove("cookie");
        if !after.is_empty() {
            request.fields.push("cookie", after);
        }
        fetch.target.asked = RequestHashes::of(&request.fields);
        let push = self.unreported.get_mut(&fetch.target.hash);
        if let Some(push) = push.filter(|push| push.fetch == id) {
            push.asked = fetch.target.asked;
        }
        true
    }
}
