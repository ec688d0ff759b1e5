//! The cookies that responses have changed during a session with one user.
//!
//! An early request has the cookies of the request for its page, with the changes of the page. If
//! another response changes one of them, the browser's own request differs. The early request would
//! serve nothing, and could spend a cookie that is good for one request. The early requests of
//! earlier pages therefore end if they would carry the changed cookie.

use std::sync::Arc;

use tandem_http::RequestHead;

use super::table::{FetchId, PageId, ResponseId};
use crate::cookies::{CookieChanges, CookieScope};

/// The largest number of changes that are remembered. Beyond it, only the sites of the changes are
/// known. With changes at as many sites, all are forgotten, and no earlier page makes early
/// requests.
const MAX_CHANGES: usize = 64;

/// The request whose response changes cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangedBy {
    /// The browser's own request.
    Browser(ResponseId),
    /// The early request of a push.
    Push(FetchId),
    /// A request whose response has no number.
    Other,
}

/// The cookies that a response creates, and the page that it is a part of.
#[derive(Clone)]
pub(super) struct NewCookies {
    pub(super) page: PageId,
    pub(super) request: Arc<RequestHead>,
    pub(super) changes: CookieChanges,
}

/// The changes of cookies, each with its number.
#[derive(Default)]
pub(super) struct ChangedCookies {
    changes: Vec<ChangedCookie>,
    /// The number of the last change.
    last: u64,
    /// The number of the last change that was forgotten.
    forgotten: u64,
}

struct ChangedCookie {
    number: u64,
    /// The response of the browser's own request that changed the cookie.
    by: Option<ResponseId>,
    scope: CookieScope,
}

impl ChangedCookies {
    /// Returns the number of the last change.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// Returns whether all changes after the number `since` are those of one response.
    pub(super) fn are_of(&self, since: u64, response: ResponseId) -> bool {
        let is_other =
            |change: &ChangedCookie| change.number > since && change.by != Some(response);
        since >= self.forgotten && !self.changes.iter().any(is_other)
    }

    /// Adds the change of a cookie. `by` is the response to the browser's own request that has made
    /// it.
    pub(super) fn add(&mut self, by: Option<ResponseId>, scope: CookieScope) {
        self.last += 1;
        let is_same = |change: &ChangedCookie| change.by == by && change.scope == scope;
        self.changes.retain(|change| !is_same(change));
        if self.changes.len() >= MAX_CHANGES {
            self.merge_sites();
        }
        if self.changes.len() >= MAX_CHANGES {
            self.changes.clear();
            self.forgotten = self.last;
        }
        self.changes.push(ChangedCookie {
            number: self.last,
            by,
            scope,
        });
    }

    /// Merges the changes of each site to one of all its cookies.
    fn merge_sites(&mut self) {
        let mut merged: Vec<ChangedCookie> = Vec::new();
        // The later changes come last, so the last number of a site counts.
        for change in std::mem::take(&mut self.changes) {
            let scope = change.scope.of_whole_site();
            let at = merged.iter().position(|known| known.scope == scope);
            let by = match at.map(|at| merged.remove(at).by) {
                Some(other) if other != change.by => None,
                _ => change.by,
            };
            merged.push(ChangedCookie {
                by,
                scope,
                ..change
            });
        }
        self.changes = merged;
    }

    /// Returns whether cookies have changed that a request carries. The request is for the page of
    /// `response`, whose own request was made after the change with the number `since`. The changes
    /// of the page itself are known.
    pub(super) fn outdate(&self, since: u64, response: ResponseId, request: &RequestHead) -> bool {
        let is_new = |change: &&ChangedCookie| change.number > since && change.by != Some(response);
        since < self.forgotten
            || self
                .changes
                .iter()
                .filter(is_new)
                .any(|change| change.scope.covers_request(request))
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(host: &str) -> RequestHead {
        RequestHead::get(Scheme::Http, host, "/x")
    }

    #[test]
    fn change_outdates_earlier_pages_of_its_site() {
        let mut cookies = ChangedCookies::default();
        let (own, other) = (ResponseId::from(1), ResponseId::from(2));
        let before = cookies.last();
        cookies.add(Some(own), CookieScope::of_site("www.a.test:81"));
        for (since, page, host, expected) in [
            (before, other, "www.a.test", true),
            (before, other, "A.test:81", true),
            (before, other, "b.test", false),
            (before, own, "www.a.test", false),
            (cookies.last(), other, "www.a.test", false),
        ] {
            let is_outdated = cookies.outdate(since, page, &request(host));
            assert_eq!(is_outdated, expected, "{since} {page:?} {host}");
        }
        cookies.add(None, CookieScope::of_site("a.test"));
        assert!(cookies.outdate(before, own, &request("a.test")));
    }

    #[test]
    fn changes_of_one_response_are_told_from_others() {
        let mut cookies = ChangedCookies::default();
        let (own, other) = (ResponseId::from(1), ResponseId::from(2));
        assert!(cookies.are_of(0, own));
        cookies.add(Some(own), CookieScope::of_site("a.test"));
        assert!(cookies.are_of(0, own) && !cookies.are_of(0, other));
        assert!(cookies.are_of(cookies.last(), other), "it came before");
        cookies.add(None, CookieScope::of_site("b.test"));
        assert!(!cookies.are_of(0, own));
    }

    #[test]
    fn many_changes_of_a_site_outdate_no_other_page() {
        let mut cookies = ChangedCookies::default();
        let page = ResponseId::from(0);
        cookies.add(None, CookieScope::of_site("c.test"));
        for number in 1..=3 * MAX_CHANGES as u64 {
            let by = Some(ResponseId::from(number));
            cookies.add(by, CookieScope::of_site("a.test"));
            assert!(cookies.changes.len() <= MAX_CHANGES);
        }
        for (host, expected) in [("b.test", false), ("a.test", true), ("c.test", true)] {
            assert_eq!(cookies.outdate(0, page, &request(host)), expected, "{host}");
        }
        assert!(!cookies.outdate(cookies.last(), page, &request("a.test")));
        assert!(
            !cookies.outdate(1, page, &request("c.test")),
            "an old change"
        );
    }

    #[test]
    fn changed_cookies_are_bounded() {
        let mut cookies = ChangedCookies::default();
        let page = ResponseId::from(1);
        for _ in 0..3 * MAX_CHANGES {
            cookies.add(None, CookieScope::of_site("a.test"));
        }
        assert!(!cookies.outdate(0, page, &request("b.test")), "one cookie");
        for number in 0..MAX_CHANGES {
            cookies.add(None, CookieScope::of_site(&format!("{number}.test")));
            assert!(cookies.changes.len() <= MAX_CHANGES);
        }
        assert!(cookies.outdate(0, page, &request("b.test")));
        assert!(!cookies.outdate(cookies.last(), page, &request("b.test")));
    }
}
