//! Resources of other origins whose requests carry cookies that the gateway does not know.
//!
//! The cookies of a page's own origin show in its request. Those of other origins show in the
//! browser's first request to each of them. If earlier users sent cookies for a resource
//! ([`cookie_urls`](crate::cookie_urls)), it waits for that request. A browser that sends none gets
//! the push then. The resources of one that sends cookies are left to it: early requests carry no
//! cookies of other origins. A later response of the host may set a cookie, and the next request
//! to the host decides then.
//!
//! A page's request without cookies is likely to be that of a new browser. Hosts that set cookies
//! have not seen it, and no resource waits. Some hosts set cookies while the page loads, and later
//! requests of the same visit carry them. A push serves such a request only if caches may use its
//! response for a time. Other resources are left to the browser if earlier new browsers sent
//! cookies for them. The page's own cookies do not count here, because early requests carry them.

use std::collections::VecDeque;
use std::time::Instant;

use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::Need;

use super::predictor::Predictor;
use super::session::Gateway;
use super::table::PageId;
use crate::cookie_urls::path_hash;
use crate::cookies::{CookieChanges, cookies_of};
use crate::fetch_standard::{is_navigation, is_own_origin};
use crate::response_rules::{Reuse, browser_reuse, is_for_everyone, may_be_pushed};
use crate::url::{authority, is_same_origin};

/// The largest number of pages that are remembered.
const MAX_PAGES: usize = 16;

/// The last pages of a session that were requested without cookies.
#[derive(Default)]
pub(super) struct NewPages(VecDeque<NewPage>);

/// A page that was requested without cookies.
struct NewPage {
    url: Box<str>,
    /// The cookies that the page sets.
    changes: Option<CookieChanges>,
}

impl NewPages {
    /// Notes the page at a URL, whose response makes these changes to cookies. A page with cookies
    /// takes the place of an earlier one.
    pub(super) fn note(
        &mut self,
        url: &str,
        request: &RequestHead,
        changes: Option<&CookieChanges>,
    ) {
        if !is_navigation(request) {
            return;
        }
        self.0.retain(|page| !is_same_origin(&page.url, url));
        if !request.fields.contains("cookie") {
            self.0.truncate(MAX_PAGES - 1);
            self.0.push_front(NewPage {
                url: url.into(),
                changes: changes.cloned(),
            });
        }
    }

    /// Returns whether a request for a resource of another origin has other cookies than its page
    /// has set, and its page was requested without cookies. The referrer may be the page's origin.
    pub(super) fn have_caused_others(&self, request: &RequestHead) -> bool {
        let referrer = request.fields.get("referer");
        let referrer = referrer.and_then(|referrer| std::str::from_utf8(referrer).ok());
        let is_source = |page: &&NewPage| referrer.is_some_and(|it| is_same_origin(&page.url, it));
        self.0.iter().find(is_source).is_some_and(|page| {
            let (scheme, host) = (request.scheme.as_str(), &request.authority);
            let changes = page.changes.as_ref();
            let own = changes.map(|changes| changes.after(b"", scheme, host, &request.path));
            own.unwrap_or_default() != *cookies_of(&request.fields)
        })
    }
}

/// The knowledge about the cookies that a browser's request for a need carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CookieKnowledge {
    /// The gateway's request has the same cookies, as far as it can tell.
    Known,
    /// The browser's first request to the host will show them.
    Awaited,
    /// The browser's request carries cookies, and the gateway's carries none.
    Differ,
}

impl Gateway {
    /// Returns whether a push of a need is left out because the cookies of the browser's request
    /// are unknown. If the browser may show that it has none, the need waits for that.
    pub(super) fn waits_for_cookies(
        &mut self,
        id: PageId,
        need: &Need,
        request: &RequestHead,
    ) -> bool {
        let knowledge = self.cookie_knowledge(id, need, request);
        if knowledge == CookieKnowledge::Awaited {
            self.hosts.wait(id, need);
        }
        knowledge != CookieKnowledge::Known
    }

    /// Compares the cookies of the gateway's request for a need with those of the browser's.
    pub(super) fn cookie_knowledge(
        &self,
        id: PageId,
        need: &Need,
        request: &RequestHead,
    ) -> CookieKnowledge {
        let Some(page) = self.pages.get(id) else {
            return CookieKnowledge::Known;
        };
        let Some(hash) = path_hash(&need.url) else {
            return CookieKnowledge::Known;
        };
        let is_own = is_own_origin(page.request(), request.scheme.as_str(), &request.authority);
        if is_own || need.anonymous {
            return CookieKnowledge::Known;
        }
        if !page.request().fields.contains("cookie") {
            return match page.with_cookies.of_new.contains(&hash) {
                true => CookieKnowledge::Differ,
                false => CookieKnowledge::Known,
            };
        }
        let has_cookies = request.fields.contains("cookie");
        if has_cookies || !page.with_cookies.of_any.contains(&hash) {
            return CookieKnowledge::Known;
        }
        match self.hosts.sends_cookies(authority(&need.url)) {
            Some(true) => CookieKnowledge::Differ,
            Some(false) => CookieKnowledge::Known,
            None => CookieKnowledge::Awaited,
        }
    }

    /// Returns whether a new browser has sent cookies that its page does not set, and a push would
    /// serve no such request. The client compares cookies only where a cache may use the response.
    pub(super) fn is_of_new_browser(
        &self,
        now: Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) -> bool {
        let unix_time = self.clock.unix_time(now);
        let serves_others = may_be_pushed(head)
            && !head.fields.contains("set-cookie")
            && browser_reuse(head, unix_time) == Reuse::Fresh;
        !serves_others && self.cookies.are_of_new_browser(request)
    }

    /// Notes whether the browser has cookies for the host of a request. A request by CORS may go
    /// without those that it has. A navigation may carry cookies that requests for resources of
    /// other sites lack (`SameSite=Lax`).
    pub(super) fn note_host_cookies(&mut self, now: Instant, request: &RequestHead) {
        if is_navigation(request) {
            return;
        }
        let has_cookies = request.fields.contains("cookie");
        let is_of_other = request.fields.get("referer").is_some_and(|referrer| {
            let host = std::str::from_utf8(referrer).map(authority);
            host.is_ok_and(|host| !host.eq_ignore_ascii_case(&request.authority))
        });
        if is_of_other && (has_cookies || !request.fields.contains("origin")) {
            self.hosts
                .note_cookies(now, &request.authority, has_cookies);
        }
    }
}

/// Tells the predictor of a request with cookies that the page of its referrer does not show.
/// `page` is a URL of the referrer's origin. A response for everyone serves other requests as well.
/// `is_new` is the result of [`Gateway::is_of_new_browser`]. The caller leaves out navigations
/// other than those of frames: they may carry cookies that a request for a resource lacks.
pub(super) fn note_foreign_cookies(
    predictor: &mut dyn Predictor,
    (url, request): (&str, &RequestHead),
    head: &ResponseHead,
    page: Option<&str>,
    is_new: bool,
) {
    if let Some(page) = page.filter(|page| !is_same_origin(page, url))
        && request.fields.contains("cookie")
        && matches!(head.status, 200 | 204)
        && !is_for_everyone(head)
    {
        predictor.note_cookies(page, url, is_new);
    }
}
