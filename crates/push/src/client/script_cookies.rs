//! Cookies that scripts of a page set while the page loads.
//!
//! Counters and consent banners set cookies by `document.cookie`. The later requests of the page
//! carry them, and the early requests did not. No response shows such a cookie, so the first
//! request with it decides. The request for a page shows the cookies that the browser has for its
//! host, also those of a login. A further one in a request of the page to the same host is that of
//! a script, unless a response of the session has set a cookie of its name for the site. It may
//! belong to the whole site, and requests to other hosts then carry it too.
//!
//! These cookies are left out of the comparison for a response that a shared cache could give to
//! all users (RFC 9111 sections 3 and 4.1): a style sheet, script, image or font with a lifetime,
//! without `private`, `Set-Cookie` and `Vary: Cookie`. A browser's own cache does the same with its
//! responses. Some scripts choose the variant of a resource by a cookie, such as the size of an
//! image, and their sites say `private`. Others give out a session, and origins may make responses
//! for it without any of these fields. So the response must also be a file that is older than the
//! cookie, as `Last-Modified` shows.
//!
//! A script may receive the token of a login as the response to its own request. After an unsafe
//! request by a page of the site, and after bytes in a tunnel, earlier pushes therefore need equal
//! cookies.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use tandem_http::cache::ResponsePolicy;
use tandem_http::{RequestHead, ResponseHead};

use crate::cookies::{cookies_of, name_of, pairs};
use crate::fetch_standard::{is_navigation, is_nested, is_through_worker};
use crate::response_rules::is_part_of_page;
use crate::site::site_of;
use crate::url::authority;

/// The number of cookies and names after which the older ones are forgotten.
const MAX_COOKIES: usize = 1024;

/// The seconds since its last change after which a file is older than the cookies of a page load.
const AGE_OF_FILES: u64 = 3600;

/// The text that stands for a page of a site. No cookie has a semicolon.
const PAGE: &[u8] = b";page";

/// The cookies of a session, by the kind of their first request.
#[derive(Debug, Default)]
pub(super) struct ScriptCookies {
    /// The cookies and the names, by the hash of the site and the text.
    recent: HashMap<u64, Origin>,
    /// Those that no request has carried since `recent` was full.
    older: HashMap<u64, Origin>,
    /// The number of page loads so far.
    load: u64,
    /// The host and the cookies of the last request, by their hash, and whether a page of the host
    /// made it.
    last: Option<(u64, bool)>,
}

/// The origin of a cookie, as far as the session shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A script has set it in the page load of this number.
    Script(u64),
    /// A response has set it, or the browser had it before it requested a document.
    Other,
}

impl ScriptCookies {
    /// Begins another page load.
    pub(super) const fn begin_load(&mut self) {
        self.load += 1;
    }

    /// Returns the number of the page load under way; 0 if the session has shown no page yet.
    pub(super) const fn load(&self) -> u64 {
        self.load
    }

    /// Notes the cookies of a request of the browser. Before the first page of a site, the session
    /// does not show which cookies are new.
    pub(super) fn note_request(&mut self, request: &RequestHead) {
        let is_document = begins_page(request) || is_nested(request);
        let is_own = is_own_part(request);
        if !request.fields.contains("cookie") && !begins_page(request) {
            return;
        }
        let field = cookies_of(&request.fields);
        let all = Some((hash_of(&request.authority, &field), is_own));
        if !is_document && std::mem::replace(&mut self.last, all) == all {
            return;
        }
        let site = site_of(&request.authority);
        let page = hash_of(&site, PAGE);
        if begins_page(request) {
            self.note(page, Origin::Other);
        }
        let is_shown = self.origin_of(page).is_some();
        let origin = match (is_own, is_document) {
            (true, _) if is_shown => Some(Origin::Script(self.load)),
            (true, _) | (false, true) => Some(Origin::Other),
            (false, false) => None,
        };
        for pair in pairs(&field) {
            let hash = hash_of(&site, pair);
            if let Some(origin) = self.origin_of(hash).or(origin) {
                self.note(hash, origin);
            }
        }
        if is_shown {
            self.note(page, Origin::Other);
        }
    }

    /// Notes the cookies that a response sets.
    pub(super) fn note_response(&mut self, request: &RequestHead, head: &ResponseHead) {
        let site = site_of(&request.authority);
        for field in head.fields.get_all("set-cookie") {
            let pair = field.split(|byte| *byte == b';').next();
            let name = name_of(pair.unwrap_or_default().trim_ascii());
            self.note(hash_of(&site, name), Origin::Other);
        }
    }

    /// Remembers the first origin of a cookie.
    fn note(&mut self, hash: u64, origin: Origin) {
        let origin = self.older.remove(&hash).unwrap_or(origin);
        if self.recent.len() >= MAX_COOKIES && !self.recent.contains_key(&hash) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.entry(hash).or_insert(origin);
    }

    fn origin_of(&self, hash: u64) -> Option<Origin> {
        self.recent.get(&hash).or(self.older.get(&hash)).copied()
    }

    /// Returns the names of those cookies of a request that scripts have set since this page load
    /// began.
    pub(super) fn names_since(&self, load: u64, request: &RequestHead) -> Vec<Vec<u8>> {
        if load == 0 {
            return Vec::new();
        }
        let site = site_of(&request.authority);
        let is_by_script = |pair: &&[u8]| {
            let is_new = matches!(
                self.origin_of(hash_of(&site, pair)),
                Some(Origin::Script(since)) if since >= load
            );
            is_new && self.origin_of(hash_of(&site, name_of(pair))).is_none()
        };
        let field = cookies_of(&request.fields);
        let names = pairs(&field).filter(is_by_script);
        names.map(|pair| name_of(pair).to_vec()).collect()
    }
}

/// Returns whether a response is a file that a shared cache could give to all users, whatever their
/// cookies are. The caller compares the lifetime.
pub(super) fn ignores_cookies(head: &ResponseHead) -> bool {
    let policy = ResponsePolicy::of(head);
    let unchanged = match (policy.date, policy.last_modified) {
        (Some(date), Some(modified)) => date.saturating_sub(modified),
        _ => 0,
    };
    unchanged >= AGE_OF_FILES && is_part_of_page(head) && !policy.control.private
}

fn begins_page(request: &RequestHead) -> bool {
    is_navigation(request) || is_through_worker(request)
}

/// Returns whether a page requests a part of it, or a frame, from its own host.
fn is_own_part(request: &RequestHead) -> bool {
    let is_same_origin = match request.fields.get("sec-fetch-site") {
        Some(site) => site == b"same-origin",
        None => {
            let referrer = request.fields.get("referer").unwrap_or_default();
            let referrer = std::str::from_utf8(referrer).unwrap_or_default();
            authority(referrer).eq_ignore_ascii_case(&request.authority)
        }
    };
    is_same_origin && !begins_page(request)
}

fn hash_of(site: &str, text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (site, text).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(host: &str, fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Https, host, "/x")
        }
    }

    /// A request of a page to its own host.
    fn part(host: &str, cookie: &str) -> RequestHead {
        let referrer = format!("https://{host}/page");
        request(host, &[("cookie", cookie), ("referer", &referrer)])
    }

    /// A session whose browser has requested a page of a site.
    fn with_page() -> ScriptCookies {
        let mut cookies = ScriptCookies::default();
        cookies.note_request(&request("www.a.test", &[("accept", "text/html")]));
        cookies.begin_load();
        cookies
    }

    fn names(cookies: &ScriptCookies, load: u64, request: &RequestHead) -> Vec<String> {
        let names = cookies.names_since(load, request).into_iter();
        let names = names.map(|name| String::from_utf8(name).expect("a name in ASCII"));
        names.collect()
    }

    #[test]
    fn first_request_tells_the_origin_of_a_cookie() {
        let to = |destination| ("sec-fetch-dest", destination);
        let site = |site| ("sec-fetch-site", site);
        let navigates = ("sec-fetch-mode", "navigate");
        let cookie = ("cookie", "a=1");
        let page = ("referer", "https://www.a.test/page");
        let other_page = ("referer", "https://a.test/page");
        for (fields, expected) in [
            (&[cookie, page][..], &["a"][..]),
            (&[cookie, site("same-origin")], &["a"]),
            (&[cookie], &[]),
            (&[cookie, other_page], &[]),
            (&[cookie, page, site("same-site")], &[]),
            (&[cookie, page, ("accept", "text/html")], &[]),
            (&[cookie, page, navigates, to("document")], &[]),
            (&[cookie, page, navigates, to("empty")], &[]),
            (&[cookie, page, navigates, to("iframe")], &["a"]),
            (&[cookie, other_page, navigates, to("iframe")], &[]),
        ] {
            let mut cookies = with_page();
            cookies.note_request(&request("www.a.test", fields));
            let asked = part("i.a.test", "b=2; a=1");
            assert_eq!(names(&cookies, 1, &asked), expected, "{fields:?}");
            assert!(names(&cookies, 0, &asked).is_empty(), "before the page");
            assert!(names(&cookies, 2, &asked).is_empty(), "an earlier load");
            let other = part("b.test", "a=1");
            assert!(names(&cookies, 1, &other).is_empty(), "another site");
        }
    }

    #[test]
    fn page_shows_the_cookies_of_its_site() {
        let mut cookies = with_page();
        let other = part("www.b.test", "a=1");
        cookies.note_request(&other);
        let mut page = request("www.b.test", &[("accept", "text/html"), ("cookie", "b=1")]);
        cookies.note_request(&page);
        cookies.note_request(&part("www.b.test", "a=1; b=1; c=1"));
        let asked = part("i.b.test", "a=1; b=1; c=1; d=1");
        assert_eq!(names(&cookies, 1, &asked), ["c"], "later than the page");
        page.fields.set("cookie", "d=1");
        cookies.note_request(&page);
        cookies.note_request(&part("www.b.test", "d=1"));
        assert_eq!(names(&cookies, 1, &asked), ["c"]);
    }

    #[test]
    fn name_that_a_response_sets_is_none_of_a_script() {
        let mut cookies = with_page();
        let asked = part("www.a.test", "sid=2; b=1");
        cookies.note_request(&asked);
        assert_eq!(names(&cookies, 1, &asked), ["sid", "b"]);
        let mut head = ResponseHead::new(200);
        head.fields.push("set-cookie", "sid=1; Path=/; HttpOnly");
        cookies.note_response(&request("login.a.test", &[]), &head);
        assert_eq!(names(&cookies, 1, &asked), ["b"]);
    }

    #[test]
    fn cookies_in_use_are_kept_among_many() {
        let mut cookies = with_page();
        let login = part("a.test", "login=1");
        cookies.note_request(&request(
            "a.test",
            &[("cookie", "login=1"), ("accept", "text/html")],
        ));
        for number in 0..4 * MAX_COOKIES {
            cookies.note_request(&part("a.test", &format!("n={number}")));
            if number % (MAX_COOKIES / 2) == 0 {
                cookies.note_request(&login);
            }
            assert!(cookies.recent.len() <= MAX_COOKIES && cookies.older.len() <= MAX_COOKIES);
        }
        assert!(names(&cookies, 1, &login).is_empty());
    }
}
