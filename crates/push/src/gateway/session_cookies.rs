//! The cookies of a session, as far as its requests and responses show them.
//!
//! A proxy sees no cookie jar. It sees which hosts set cookies and get them back, which cookies
//! have changed since the request for a page, and the paths of the cookies that responses set.

use tandem_http::RequestHead;

use super::audience::Audience;
use super::changed_cookies::ChangedCookies;
use super::cookie_hosts::CookieHosts;
use super::new_browsers::NewPages;
use super::page::Page;
use super::table::ResponseId;
use crate::cookies::{CookieChanges, CookieScope, Cookies, KnownPaths};

/// The knowledge of a session about the cookies of its browser.
pub(super) struct SessionCookies {
    audience: Audience,
    hosts: CookieHosts,
    /// The cookies of the session's browser, once responses have changed any.
    own: Option<Box<OwnCookies>>,
}

/// The knowledge about the cookies of a user.
#[derive(Default)]
struct OwnCookies {
    /// The changes that outdate early requests.
    changed: ChangedCookies,
    /// The paths of cookies that responses have set.
    paths: KnownPaths,
    /// The last pages that were requested without cookies.
    new_pages: NewPages,
}

impl SessionCookies {
    /// Returns the cookies of a session that has seen no request.
    pub(super) fn new(audience: Audience) -> Self {
        Self {
            audience,
            hosts: CookieHosts::default(),
            own: None,
        }
    }

    /// Notes the cookies of a browser's request.
    pub(super) fn note_request(&mut self, request: &RequestHead) {
        self.hosts.note_request(request);
    }

    /// Returns the cookies of the requests that a page causes, whose response makes these changes.
    /// A browser that has never returned a cookie to the host may refuse the new ones too. With
    /// several users, the requests leave out unknown cookies.
    pub(super) fn after(&mut self, request: &RequestHead, changes: Cookies) -> Cookies {
        match changes {
            Cookies::Changed(_) if !self.hosts.set(request) => Cookies::Unchanged,
            Cookies::Unknown if !self.audience.follows_cookies() => Cookies::Unchanged,
            changes => changes,
        }
    }

    /// Notes the page at a URL, whose response makes these changes to cookies.
    pub(super) fn note_page(
        &mut self,
        url: &str,
        request: &RequestHead,
        changes: Option<&CookieChanges>,
    ) {
        if self.own.is_some() || !request.fields.contains("cookie") {
            let own = self.own.get_or_insert_default();
            own.new_pages.note(url, request, changes);
        }
    }

    /// Returns whether a new browser sends cookies that its page has not set.
    pub(super) fn are_of_new_browser(&self, request: &RequestHead) -> bool {
        let own = self.own.as_ref();
        own.is_some_and(|own| own.new_pages.have_caused_others(request))
    }

    /// Notes that a part of a page sets cookies.
    pub(super) fn note_set_by_part(&mut self, request: &RequestHead) {
        self.hosts.note_set(request);
    }

    /// Returns whether the browser may refuse the cookies of a request's host.
    pub(super) fn may_be_refused(&self, request: &RequestHead) -> bool {
        self.hosts.may_refuse(request)
    }

    /// Notes the paths of cookies that the browser gets.
    pub(super) fn note_paths(&mut self, changes: &CookieChanges) {
        self.own.get_or_insert_default().paths.note(changes);
    }

    /// Returns the cookies of a page's request whose paths are known, and which the page's other
    /// requests may lack.
    pub(super) fn limited_by_paths(&self, request: &RequestHead) -> Option<CookieChanges> {
        self.own.as_ref()?.paths.of(request)
    }

    /// Notes changes of cookies. `by` is the response to the browser's own request that makes them.
    pub(super) fn note_changes(
        &mut self,
        by: Option<ResponseId>,
        scopes: impl IntoIterator<Item = CookieScope>,
    ) {
        for scope in scopes {
            self.own.get_or_insert_default().changed.add(by, scope);
        }
    }

    /// Notes the cookies of an early response that the browser gets now. `before` are those of the
    /// early request.
    pub(super) fn note_delivered(&mut self, changes: &CookieChanges, before: &[u8]) {
        self.note_paths(changes);
        self.note_changes(None, changes.altered(before).cloned());
    }

    /// Returns the number of the last change. A page keeps the number at the time of its request.
    pub(super) fn last_change(&self) -> u64 {
        self.own.as_ref().map_or(0, |own| own.changed.last())
    }

    /// Returns whether all changes since the request for a page are those of the page.
    pub(super) fn knows_changes_of(&self, page: &Page) -> bool {
        let changed = self.own.as_ref().map(|own| &own.changed);
        changed.is_none_or(|changed| changed.are_of(page.cookies_of, page.response))
    }

    /// Returns whether an early request for a page carries cookies that have changed meanwhile.
    pub(super) fn outdate(&self, page: &Page, request: &RequestHead) -> bool {
        let changed = self.own.as_ref().map(|own| &own.changed);
        changed.is_some_and(|changed| changed.outdate(page.cookies_of, page.response, request))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandem_http::{ResponseHead, Scheme};

    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn request(cookie: Option<&str>) -> RequestHead {
        RequestHead {
            fields: cookie
                .map(|cookie| ("cookie", cookie))
                .into_iter()
                .collect(),
            ..RequestHead::get(Scheme::Http, "a.test", "/")
        }
    }

    fn changes(request: &RequestHead, cookie: &str) -> CookieChanges {
        let mut head = ResponseHead::new(200);
        head.fields.push("set-cookie", cookie);
        CookieChanges::of(request, &head, NOW).expect("a plain cookie is known")
    }

    fn page(cookies_of: u64) -> Page {
        let url = Arc::from("http://a.test/");
        let mut page = Page::new(ResponseId::from(1), Arc::new(request(None)), url);
        page.cookies_of = cookies_of;
        page
    }

    #[test]
    fn browser_that_returns_no_cookie_gets_none() {
        let mut cookies = SessionCookies::new(Audience::Shared);
        let asked = request(None);
        let changed = || Cookies::Changed(changes(&asked, "a=1"));
        assert_eq!(cookies.after(&asked, changed()), changed(), "the first one");
        assert!(cookies.may_be_refused(&asked));
        assert_eq!(cookies.after(&asked, changed()), Cookies::Unchanged);
        cookies.note_request(&request(Some("a=1")));
        assert_eq!(cookies.after(&asked, changed()), changed());
        assert!(!cookies.may_be_refused(&asked));
    }

    #[test]
    fn unknown_cookies_matter_with_one_user() {
        for (audience, expected) in [
            (Audience::Shared, Cookies::Unchanged),
            (Audience::OneUser, Cookies::Unknown),
            (Audience::OwnRequestsOnly, Cookies::Unknown),
        ] {
            let mut cookies = SessionCookies::new(audience);
            assert_eq!(cookies.after(&request(None), Cookies::Unknown), expected);
        }
    }

    #[test]
    fn delivered_cookie_outdates_earlier_pages() {
        let mut cookies = SessionCookies::new(Audience::OneUser);
        let asked = request(None);
        let earlier = page(cookies.last_change());
        assert!(cookies.knows_changes_of(&earlier) && !cookies.outdate(&earlier, &asked));
        cookies.note_delivered(&changes(&asked, "a=1; path=/b"), b"");
        assert!(!cookies.knows_changes_of(&earlier));
        let inside = RequestHead::get(Scheme::Http, "a.test", "/b/c");
        assert!(cookies.outdate(&earlier, &inside) && !cookies.outdate(&earlier, &asked));
        let later = page(cookies.last_change());
        assert!(cookies.knows_changes_of(&later) && !cookies.outdate(&later, &inside));
        for (cookie, is_limited) in [("a=1", true), ("b=1", false)] {
            let asked = RequestHead {
                path: "/b/c".to_owned(),
                ..request(Some(cookie))
            };
            let limited = cookies.limited_by_paths(&asked);
            assert_eq!(limited.is_some(), is_limited, "{cookie}");
        }
    }

    #[test]
    fn page_knows_its_own_changes() {
        let mut cookies = SessionCookies::new(Audience::OneUser);
        let page = page(cookies.last_change());
        let scope = || [CookieScope::of_site("a.test")];
        cookies.note_changes(Some(page.response), scope());
        assert!(cookies.knows_changes_of(&page) && !cookies.outdate(&page, &request(None)));
        cookies.note_changes(Some(ResponseId::from(2)), scope());
        assert!(!cookies.knows_changes_of(&page) && cookies.outdate(&page, &request(None)));
    }
}
