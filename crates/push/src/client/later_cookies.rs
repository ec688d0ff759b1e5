//! Cookies that the parts of a page change while the page loads.
//!
//! A browser requests some parts of a page before such a change, and others after it. The order
//! depends on the number of its connections. An early request has the cookies from before. Its
//! response may still serve the browser's request if a cache could use it again, because caches
//! compare cookies only where `Vary` names them (RFC 9111 section 4.1). The cookies of both
//! requests must differ only by changes that the client has seen. A response to another window,
//! with other cookies, therefore never serves the request.
//!
//! The gateway may promise a resource with the cookies from before a change that the browser has
//! got already, because the change and the promise cross. So all changes of the page load count.
//!
//! Only style sheets, scripts, images and fonts count. After any other response that sets a cookie,
//! such as a document or the answer to an upload, earlier pushes need equal cookies. A cookie that
//! the browser refuses or has already changes nothing.

use std::collections::VecDeque;

use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use super::pushed::KeptPush;
use crate::cookies::{CookieChanges, cookies_of};
use crate::fetch_standard::is_navigation;
use crate::response_rules::is_part_of_page;
use crate::wire::RequestHashes;

/// The largest number of responses whose changes are remembered.
const MAX_CHANGES: usize = 32;

/// The changes of cookies in one session, in the order in which the browser got them.
#[derive(Debug, Default)]
pub(super) struct LaterCookies {
    changes: VecDeque<CookieChanges>,
    /// The number of changes so far, with those that are forgotten.
    count: u64,
    /// The number of changes before the page load under way.
    before_load: u64,
}

impl LaterCookies {
    /// Begins another page load.
    pub(super) const fn begin_load(&mut self) {
        self.before_load = self.count;
    }

    /// Returns the number of changes that the cookies of a new promise surely contain. They may
    /// lack each later change.
    pub(super) fn count_before_promise(&self) -> u64 {
        let forgotten = self.count - self.changes.len() as u64;
        forgotten.max(self.before_load)
    }

    /// Notes a response that the browser gets.
    pub(super) fn note(&mut self, request: &RequestHead, head: &ResponseHead, unix_time: u64) {
        if !head.fields.contains("set-cookie") {
            return;
        }
        let changes = CookieChanges::of(request, head, unix_time);
        let changes = changes.filter(|_| request.method == Method::Get);
        // A browser refuses, for example, a cookie of another host.
        if let Some(changes) = &changes
            && !changes.alter(&cookies_of(&request.fields))
        {
            return;
        }
        let is_part = !is_navigation(request) && is_part_of_page(head);
        let Some(changes) = changes.filter(|_| is_part) else {
            self.changes.clear();
            self.count += 1;
            return;
        };
        if self.changes.len() >= MAX_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(changes);
        self.count += 1;
    }

    /// Returns the index of the first change that the cookies of a push may lack. Returns `None` if
    /// a response other than a part of a page has changed cookies since the push.
    pub(super) fn first_change_after(&self, kept: &KeptPush) -> Option<usize> {
        let later = usize::try_from(self.count - kept.cookies_of).ok()?;
        self.changes.len().checked_sub(later)
    }

    /// Returns whether the cookies of a request differ from those of a push only by changes of its
    /// page load. The gateway may have made its request between two changes.
    pub(super) fn lie_between(&self, kept: &KeptPush, asked: &RequestHead) -> bool {
        let Some(first) = self.first_change_after(kept) else {
            return false;
        };
        let theirs = kept.response.as_ref().and_then(|response| response.hashes);
        let theirs = theirs.unwrap_or_else(|| RequestHashes::of(&kept.request.fields));
        let ours = RequestHashes::of(&asked.fields);
        let (scheme, authority) = (asked.scheme.as_str(), &asked.authority);
        let mut cookies = cookies_of(&kept.request.fields).into_owned();
        let mut is_after = hashes_of(&cookies).has_same_cookie(theirs);
        for changes in self.changes.iter().skip(first) {
            cookies = changes.after(&cookies, scheme, authority, &asked.path);
            let hashes = hashes_of(&cookies);
            if is_after && hashes.has_same_cookie(ours) {
                return true;
            }
            is_after |= hashes.has_same_cookie(theirs);
        }
        false
    }
}

/// Returns the hashes of a request with these cookies alone.
fn hashes_of(cookies: &[u8]) -> RequestHashes {
    let mut fields = Fields::default();
    if !cookies.is_empty() {
        fields.push("cookie", cookies);
    }
    RequestHashes::of(&fields)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tandem_http::Scheme;

    use super::super::pushed::ArrivedResponse;
    use super::*;
    use crate::wire::ASKED_FIELD;

    const STYLE: &str = "text/css";

    fn request(path: &str, cookie: &str) -> RequestHead {
        let fields = [("cookie", cookie)].into_iter();
        RequestHead {
            fields: fields.filter(|(_, value)| !value.is_empty()).collect(),
            ..RequestHead::get(Scheme::Http, "a.test", path)
        }
    }

    fn head(kind: &str, cookie: &str) -> ResponseHead {
        let fields = [("content-type", kind), ("set-cookie", cookie)];
        ResponseHead {
            fields: fields.into_iter().collect(),
            ..ResponseHead::new(200)
        }
    }

    /// A push that was promised with one cookie and requested with another.
    fn kept(promised: &str, fetched: &str, cookies_of: u64) -> KeptPush {
        let asked = RequestHashes::of(&request("/x.png", fetched).fields);
        let mut head = ResponseHead::new(200);
        head.fields.push(ASKED_FIELD, asked.encode());
        KeptPush {
            cookies_of,
            response: Some(ArrivedResponse::new(Instant::now(), head)),
            ..KeptPush::new(Instant::now(), request("/x.png", promised), true)
        }
    }

    fn after(heads: &[ResponseHead]) -> LaterCookies {
        let mut later = LaterCookies::default();
        for head in heads {
            later.note(&request("/first", ""), head, 0);
        }
        later
    }

    #[test]
    fn cookies_differ_by_seen_changes_alone() {
        let later = after(&[
            head(STYLE, "id=1"),
            head("image/png", "id=2; Path=/"),
            head("text/javascript; charset=utf-8", "other=3; Path=/other"),
            head("font/woff2", "last=4"),
        ]);
        for (promised, fetched, asked, expected) in [
            ("", "", "id=1", true),
            ("", "", "id=2", true),
            ("", "", "id=2; last=4", true),
            ("", "id=1", "id=2", true),
            ("old=0", "old=0", "old=0; id=1", true),
            ("", "id=2", "id=1", false),
            ("", "", "id=3", false),
            ("", "", "last=4", false),
            ("old=0", "old=0", "id=1", false),
            ("", "", "old=0; id=1", false),
            ("", "stranger=1", "id=2", false),
        ] {
            let kept = kept(promised, fetched, 0);
            let lie_between = later.lie_between(&kept, &request("/x.png", asked));
            assert_eq!(lie_between, expected, "{promised} {fetched} {asked}");
        }
        let asked = request("/x.png", "id=1");
        assert!(
            !later.lie_between(&kept("", "", 1), &asked),
            "it was promised later"
        );
    }

    #[test]
    fn other_responses_end_the_effect_of_earlier_changes() {
        let asked = request("/x.png", "id=1");
        for (by, head) in [
            (request("/page", ""), head("text/html", "b=1; Path=/other")),
            (
                request("/data", ""),
                head("application/json", "b=1; Path=/other"),
            ),
            (request("/x", ""), head(STYLE, "b=1; expires=soon")),
            (
                RequestHead {
                    method: Method::Post,
                    ..request("/login", "")
                },
                head(STYLE, "b=1; Path=/other"),
            ),
        ] {
            let mut later = after(&[self::head(STYLE, "id=1")]);
            assert!(later.lie_between(&kept("", "", 0), &asked));
            later.note(&by, &head, 0);
            assert!(!later.lie_between(&kept("", "", 0), &asked), "{by:?}");
            later.note(&request("/first", ""), &self::head(STYLE, "id=1"), 0);
            assert!(!later.lie_between(&kept("", "", 0), &asked));
            assert!(later.lie_between(&kept("", "", 2), &asked));
        }
    }

    #[test]
    fn refused_cookie_of_a_frame_leaves_earlier_changes() {
        let asked = request("/x.png", "id=1");
        for (by, cookie, expected) in [
            (request("/frame", ""), "b=1; Domain=other.test", true),
            (request("/frame", "b=1"), "b=1", true),
            (request("/frame", ""), "b=1", false),
            (
                RequestHead {
                    method: Method::Post,
                    ..request("/upload", "")
                },
                "b=1; Domain=other.test",
                false,
            ),
        ] {
            let mut later = after(&[head(STYLE, "id=1")]);
            later.note(&by, &head("text/html", cookie), 0);
            let lie_between = later.lie_between(&kept("", "", 0), &asked);
            assert_eq!(lie_between, expected, "{by:?} {cookie}");
        }
    }

    #[test]
    fn later_cookies_are_bounded() {
        let mut later = LaterCookies::default();
        for number in 0..3 * MAX_CHANGES as u64 {
            later.note(&request("/", ""), &head(STYLE, &format!("id={number}")), 0);
            assert!(later.changes.len() <= MAX_CHANGES);
        }
        let asked = request("/x.png", "id=95");
        assert!(!later.lie_between(&kept("", "", 0), &asked), "forgotten");
        assert!(later.lie_between(&kept("", "", 64), &asked));
        // The same cookie again is no change.
        let count = later.count;
        later.note(&request("/", "id=95"), &head(STYLE, "id=95"), 0);
        assert_eq!(later.count, count);
        assert_eq!(later.count_before_promise(), 64);
    }

    #[test]
    fn promise_may_lack_the_changes_of_its_load() {
        let mut later = after(&[head(STYLE, "id=1")]);
        let asked = request("/x.png", "id=1");
        let serves = |later: &LaterCookies| {
            let kept = kept("", "", later.count_before_promise());
            later.lie_between(&kept, &asked)
        };
        assert!(serves(&later));
        later.begin_load();
        assert!(!serves(&later), "the next page has the cookie");
        later.note(&request("/first", ""), &head(STYLE, "id=1"), 0);
        assert!(serves(&later));
        later.note(&request("/page", ""), &head("text/html", "b=1"), 0);
        assert!(!serves(&later), "a document changes more");
    }
}
