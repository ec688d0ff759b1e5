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
//! requests of the same visit carry them. A response that must not be stored serves none of these,
//! and saves no round trip anyway. It is left to the browser if earlier new browsers sent cookies
//! for it. The page's own cookies do not count here, because early requests carry them. Other
//! responses arrive before the browser gets the cookies, and then its request has none either.

use std::time::Instant;

use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::Need;

use super::predictor::Predictor;
use super::session::Gateway;
use super::table::PageId;
use crate::cookie_urls::path_hash;
use crate::fetch_standard::{is_navigation, is_own_origin};
use crate::response_rules::{is_for_everyone, may_be_pushed};
use crate::url::{authority, is_same_origin};

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

    /// Returns whether a new browser has sent cookies that its page does not set, and the response
    /// must not be stored.
    pub(super) fn is_of_new_browser(&self, request: &RequestHead, head: &ResponseHead) -> bool {
        !may_be_pushed(head) && self.cookies.are_of_new_browser(request)
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
