//! The needs of a page as the browser's own requests show them.
//!
//! A session with one user remembers the requests that no promise has answered, such as those of
//! scripts. They must be for style sheets, scripts or fonts that a cache can keep, since an image
//! may be a vote or a counter. Their URLs must look like those of files (`static_urls`). Requests
//! after a quiet period follow the user's actions, and are left out. After two of these learned
//! needs of a page were useless, the session learns no more for this page.
//!
//! With `Audience::OwnRequestsOnly`, the session requests nothing because a page names it. At the
//! next visit to a page, it repeats the requests that the browser made for the last one: for style
//! sheets, scripts, images and fonts. The settings of the browser, its extensions and the policies
//! of the site thus hold for early requests too. Only the heads of responses are read, so a body
//! may have any content coding.
//!
//! Only documents of tabs, and not of frames, are pages here. A frame can have another partition of
//! cookies and copies than the same document in a tab.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_http::cache::{SiteData, clears};
use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::{Kind, Need, Referrer};

use super::cookie_hashes::CookieHashes;
use super::document::DocumentReader;
use super::load_end::{is_data_request, is_element, may_have_effects};
use super::page_view::OwnVisit;
use super::predictor::is_learnable;
use super::session::Gateway;
use super::static_urls::may_be_static;
use super::table::{PageId, ResponseId};
use crate::cookies::{Cookies, cookies_of};
use crate::fetch_standard::{
    has_null_origin, is_navigation, is_prefetch, referrer, referrer_policy,
};
use crate::response_rules::{Reuse, browser_reuse, may_be_pushed};
use crate::url::{authority, request_url};
use crate::wire::PUSH_FIELD;

/// The time after the head of a page in which its requests belong to its load. Later ones follow
/// the user's actions.
const LOAD_PERIOD: Duration = Duration::from_secs(30);

/// The referrer policies that give requests a referrer, the most frequent first.
const POLICIES: [Referrer; 3] = [Referrer::OriginToOthers, Referrer::Whole, Referrer::Origin];

impl Gateway {
    /// Begins to remember the requests of a page, if this is its response. If the page is that
    /// of a revisit, its head settles the treatment.
    pub(super) fn note_visit(
        &mut self,
        now: Instant,
        id: ResponseId,
        request: &Arc<RequestHead>,
        head: &mut ResponseHead,
    ) {
        if matches!(head.status, 301..=303 | 307 | 308) && is_top_level(request) {
            self.note_other_head(now, request, head);
            return;
        }
        let is_page = match head.status {
            200 => DocumentReader::is_html(head),
            status => status == 304,
        };
        let takes_pushes = |gateway: &Self| {
            let response = gateway.responses.get(id);
            response.is_some_and(|response| response.takes_pushes)
        };
        if !is_page || !is_top_level(request) || !takes_pushes(self) {
            return;
        }
        let Some(url) = request_url(request) else {
            return;
        };
        let treatment = self.treatment_of(now, id, &url, request);
        let cookies = self.cookies_after(now, request, head);
        let are_cleared = clears(SiteData::Cookies, request, head);
        if are_cleared || cookies != Cookies::Unchanged {
            // Early requests at the next visit would precede these cookies.
            self.end_revisit(now, id);
            let are_deleted = match cookies {
                Cookies::Changed(changes) => changes.delete_any(&cookies_of(&request.fields)),
                _ => false,
            };
            if let Some(visits) = &self.visits {
                let mut visits = visits.lock();
                match are_cleared || are_deleted {
                    // The user may have logged out.
                    true => visits.forget_site(&request.authority),
                    false => visits.forget(&url),
                }
            }
            return;
        }
        if let Some(view) = &mut self.view
            && !self.closed
        {
            view.begin_visit(OwnVisit {
                policy: referrer_policy(head).unwrap_or_default(),
                cookies: CookieHashes::of(request),
                changes_cookies: false,
            });
        }
        let page = self.responses.get(id).and_then(|response| response.page);
        if let Some(page) = page {
            if let Some(treatment) = treatment {
                head.fields.set(PUSH_FIELD, treatment.as_str());
            }
            self.locate(page, &url, head, None);
        }
    }

    /// Forgets the pages of a site if a redirect or the response to a form changes cookies: the
    /// user may have logged out.
    pub(super) fn note_other_head(
        &mut self,
        now: Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) {
        let are_changed = self.changes_of(now, request, head) != Cookies::Unchanged;
        let may_end_login = are_changed || clears(SiteData::Cookies, request, head);
        if may_end_login && let Some(visits) = &self.visits {
            visits.lock().forget_site(&request.authority);
        }
    }

    /// Remembers a resource that the browser itself requests for the page that was loaded last.
    pub(super) fn note_own_need(
        &mut self,
        now: Instant,
        request: &RequestHead,
        head: &ResponseHead,
    ) {
        let (Some(view), Some(visits)) = (&self.view, &self.visits) else {
            return;
        };
        let Some(visit) = view.visit(now, LOAD_PERIOD) else {
            return;
        };
        let unix_time = self.clock.unix_time(now);
        if !is_learnable(request) || has_null_origin(request) || !is_resource(head, unix_time) {
            return;
        }
        let mut visits = visits.lock();
        let reuse = browser_reuse(head, unix_time);
        let is_lasting = || {
            !view.is_quiet()
                && reuse != Reuse::Never
                && may_be_static(&request.path, reuse == Reuse::Fresh)
                && visits.may_learn(view.url())
        };
        if !self.config.audience.learns_all_requests() && !is_lasting() {
            return;
        }
        let knows = |url: &str| visits.knows(view.url(), url);
        let Some(need) = need_of(request, head, view.url(), knows) else {
            return;
        };
        if !self.config.audience.learns_all_requests() && need.kind == Kind::Image {
            return;
        }
        visits.learn_need(view.url(), visit.policy, &need);
        visits.note_cookies(view.url(), || visit.cookies.clone());
        if visit.changes_cookies {
            visits.note_first_change(view.url());
        }
    }

    /// Notes an event of a load. A request after a quiet period no longer belongs to the load of
    /// the last page, unless this page is still arriving.
    pub(super) fn note_load(&mut self, now: Instant) {
        let responses = &self.responses;
        if let Some(view) = &mut self.view {
            view.note_load(now, || responses.values().any(|response| response.is_visit));
        }
    }

    /// Notes a request of the browser. Returns true if its response is an element of the load, and
    /// [`Self::note_element_end`] follows.
    pub(super) fn note_element(&mut self, now: Instant, request: &RequestHead) -> bool {
        if !is_element(request) {
            return false;
        }
        match is_navigation(request) {
            true => self.load.begin(now),
            false => self.load.note(now),
        }
        self.load.arriving += 1;
        true
    }

    /// Notes that the response of an element has ended.
    pub(super) fn note_element_end(&mut self, now: Instant) {
        self.load.note(now);
        self.load.arriving = self.load.arriving.saturating_sub(1);
    }

    /// Notes that a push arrives.
    pub(super) fn note_pushed_element(&mut self, now: Instant) {
        self.load.note(now);
        self.note_load(now);
    }

    /// Notes the round trip of the session's path.
    pub fn note_round_trip(&mut self, round_trip: Duration) {
        self.load.round_trip = Some(round_trip);
    }

    /// Returns whether a request comes after the load, and a click may have caused it. Data after a
    /// change count as such.
    pub(super) fn is_after_load(&self, now: Instant, request: &RequestHead) -> bool {
        let is_changed = || self.load.has_changed(&request.authority) && is_data_request(request);
        (self.load.is_over(now) && may_have_effects(request)) || is_changed()
    }

    /// Begins to remember the requests of a page of one user that no promise answers.
    pub(super) fn begin_own_visit(&mut self, id: PageId, head: &ResponseHead) {
        let (Some(page), Some(view)) = (self.pages.get(id), &mut self.view) else {
            return;
        };
        let is_page = head.status == 200 && DocumentReader::is_html(head);
        if is_page && self.visits.is_some() && view.url() == &**page.url() {
            view.begin_visit(OwnVisit {
                policy: page.policy(),
                cookies: page.cookie_hashes(),
                changes_cookies: page.sets_cookies(),
            });
        }
    }

    /// Stops remembering the requests of a page that names too many hosts.
    pub(super) fn end_own_visit(&mut self, id: PageId) {
        if let (Some(page), Some(view)) = (self.pages.get(id), &mut self.view)
            && page.is_closed()
            && view.url() == &**page.url()
        {
            view.end_visit();
        }
    }
}

/// Returns whether the user of a tab asks for a document, as the browser says. A prefetch is no
/// visit.
pub(super) fn is_top_level(request: &RequestHead) -> bool {
    let names_destination = request.fields.contains("sec-fetch-dest");
    is_navigation(request) && names_destination && !is_prefetch(request)
}

/// Returns whether a response is a resource that may be requested early at the next visit. Counters
/// of visits and other responses that caches must not use again are none.
fn is_resource(head: &ResponseHead, unix_time: u64) -> bool {
    let is_complete = head.status == 200 && may_be_pushed(head);
    let forbids_reuse =
        head.fields.contains("cache-control") && browser_reuse(head, unix_time) == Reuse::Never;
    (is_complete || head.status == 304) && !forbids_reuse && !head.fields.contains("set-cookie")
}

/// Returns the kind and the urgency of the resource that a browser requests. Over plain HTTP most
/// browsers name no destination, so `Accept` and the type of the response decide.
fn kind_of(request: &RequestHead, head: &ResponseHead) -> Option<(Kind, u8)> {
    let accept = request.fields.get("accept").unwrap_or(b"*/*");
    let content_type = head.fields.get("content-type").unwrap_or_default();
    let content_type = content_type.to_ascii_lowercase();
    let is_font = content_type.starts_with(b"font/")
        || content_type.starts_with(b"application/font")
        || content_type.starts_with(b"application/x-font");
    Some(match request.fields.get("sec-fetch-dest") {
        Some(b"style") => (Kind::Style, 1),
        Some(b"script") => (Kind::Script, 2),
        Some(b"font") => (Kind::Font, 3),
        Some(b"image") => (Kind::Image, 4),
        Some(_) => return None,
        None if accept.starts_with(b"text/css") => (Kind::Style, 1),
        None if accept.starts_with(b"image/") => (Kind::Image, 4),
        None if is_font => (Kind::Font, 3),
        None if accept == b"*/*" && DocumentReader::is_script(head) => (Kind::Script, 2),
        None => return None,
    })
}

/// Returns the need of `page` that a browser's request shows, with the head of its response. The
/// page itself or one of its known needs must be the referrer.
fn need_of(
    request: &RequestHead,
    head: &ResponseHead,
    page: &str,
    knows: impl Fn(&str) -> bool,
) -> Option<Need> {
    let (kind, urgency) = kind_of(request, head)?;
    // A prefetch is for another page.
    if is_prefetch(request) {
        return None;
    }
    let url = request_url(request)?;
    let named = std::str::from_utf8(request.fields.get("referer")?).ok()?;
    let of = |source: &str| {
        let fits = |policy: &&Referrer| referrer(**policy, source, &url).as_deref() == Some(named);
        POLICIES.iter().find(fits).copied()
    };
    let (via, policy) = match of(page) {
        Some(policy) => (None, policy),
        None if knows(named) => (Some(Arc::from(named)), of(named)?),
        None => return None,
    };
    let site = request.fields.get("sec-fetch-site");
    let is_same_origin = match site {
        Some(site) => site == b"same-origin",
        None => authority(&url) == authority(page),
    };
    let names_mode = request.fields.get("sec-fetch-mode");
    let is_by_cors = match names_mode {
        Some(mode) => mode == b"cors",
        None => request.fields.contains("origin"),
    };
    let is_cors = !is_same_origin && is_by_cors;
    if !is_same_origin && request.fields.contains("cookie") {
        // The request that is made for a need at another origin has no credentials.
        return None;
    }
    Some(Need {
        url,
        kind,
        urgency,
        anonymous: is_cors,
        by_cors: is_by_cors,
        referrer: Some(policy),
        via,
        frame: None,
        has_nonce: false,
    })
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    const PAGE: &str = "https://a.test/dir/page?q";
    const STYLE: &str = "https://b.test/s.css";

    fn need(host: &str, fields: &[(&str, &str)]) -> Option<Need> {
        let request = RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Https, host, "/x")
        };
        need_of(&request, &ResponseHead::new(200), PAGE, |url| url == STYLE)
    }

    #[test]
    fn kind_without_a_destination_follows_the_types() {
        for (accept, content_type, expected) in [
            (Some("text/css,*/*;q=0.1"), "", Some(Kind::Style)),
            (Some("image/avif,*/*;q=0.8"), "", Some(Kind::Image)),
            (Some("*/*"), "text/javascript", Some(Kind::Script)),
            (None, "Application/JavaScript", Some(Kind::Script)),
            (Some("*/*"), "font/woff2", Some(Kind::Font)),
            (Some("*/*"), "application/json", None),
            (Some("*/*"), "text/html", None),
            (Some("text/html,*/*"), "text/javascript", None),
        ] {
            let accept = accept.map(|accept| ("accept", accept));
            let request = RequestHead {
                fields: accept.into_iter().collect(),
                ..RequestHead::get(Scheme::Http, "a.test", "/x")
            };
            let mut head = ResponseHead::new(200);
            head.fields.push("content-type", content_type);
            let found = kind_of(&request, &head).map(|(kind, _)| kind);
            assert_eq!(found, expected, "{accept:?} {content_type}");
        }
    }

    #[test]
    fn own_request_becomes_a_need_of_its_kind() {
        for (destination, expected) in [
            ("style", Some((Kind::Style, 1))),
            ("script", Some((Kind::Script, 2))),
            ("font", Some((Kind::Font, 3))),
            ("image", Some((Kind::Image, 4))),
            ("empty", None),
            ("document", None),
            ("iframe", None),
            ("video", None),
        ] {
            let fields = [("sec-fetch-dest", destination), ("referer", PAGE)];
            let found = need("a.test", &fields).map(|need| (need.kind, need.urgency));
            assert_eq!(found, expected, "{destination}");
        }
        assert_eq!(need("a.test", &[("referer", PAGE)]), None);
    }

    #[test]
    fn referrer_of_a_need_is_the_page_or_a_known_need() {
        let image = ("sec-fetch-dest", "image");
        for (host, named, expected) in [
            ("a.test", PAGE, Some((Referrer::OriginToOthers, None))),
            (
                "b.test",
                "https://a.test/",
                Some((Referrer::OriginToOthers, None)),
            ),
            ("a.test", "https://a.test/", Some((Referrer::Origin, None))),
            ("b.test", PAGE, Some((Referrer::Whole, None))),
            (
                "b.test",
                STYLE,
                Some((Referrer::OriginToOthers, Some(STYLE))),
            ),
            ("c.test", STYLE, Some((Referrer::Whole, Some(STYLE)))),
            ("b.test", "https://b.test/t.css", None),
            ("a.test", "https://a.test/other", None),
            ("a.test", "no URL", None),
        ] {
            let need = need(host, &[image, ("referer", named)]);
            let found = need
                .as_ref()
                .map(|need| (need.referrer.unwrap(), need.via.as_deref()));
            assert_eq!(found, expected, "{host} {named}");
        }
        assert_eq!(need("a.test", &[image]), None);
    }

    #[test]
    fn need_by_cors_has_no_credentials() {
        let font = [
            ("sec-fetch-dest", "font"),
            ("sec-fetch-mode", "cors"),
            ("referer", "https://a.test/"),
        ];
        let with = |field: (&'static str, &'static str)| {
            let fields = [&font[..], &[field]].concat();
            need("b.test", &fields).map(|need| (need.anonymous, need.by_cors))
        };
        let (foreign, own) = (
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-origin"),
        );
        assert_eq!(with(foreign), Some((true, true)));
        assert_eq!(with(own), Some((false, true)));
        assert_eq!(with(("cookie", "a=b")), None);
    }

    #[test]
    fn only_resources_that_caches_may_keep_are_remembered() {
        for (status, fields, expected) in [
            (200, &[][..], true),
            (200, &[("cache-control", "max-age=60")], true),
            (
                200,
                &[("cache-control", "no-cache"), ("etag", "\"1\"")],
                true,
            ),
            (304, &[], true),
            (200, &[("cache-control", "no-cache")], false),
            (200, &[("cache-control", "no-store")], false),
            (200, &[("set-cookie", "a=b")], false),
            (200, &[("vary", "cookie")], false),
            (204, &[], false),
            (404, &[], false),
        ] {
            let mut head = ResponseHead::new(status);
            head.fields = fields.iter().copied().collect();
            assert_eq!(is_resource(&head, 0), expected, "{status} {fields:?}");
        }
    }
}
