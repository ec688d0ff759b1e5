//! The paths of cookies that responses of a session have set.
//!
//! A request shows the names and values of its cookies, but not their paths. The response that sets
//! a cookie shows its path. So a cookie for a part of a site stays out of early requests for the
//! other parts, at later visits too.

use std::collections::VecDeque;

use tandem_http::RequestHead;

use super::{
    Change, CookieChanges, CookieScope, MAX_COOKIES as MAX_OF_REQUEST, cookies_of, name_of, pairs,
};

/// The largest number of cookies whose paths are known. The oldest makes way.
const MAX_COOKIES: usize = 64;

/// The largest length in bytes of a name with its path. Longer ones remain unknown.
const MAX_LENGTH: usize = 1024;

/// The cookies whose paths are known, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct KnownPaths(VecDeque<KnownCookie>);

#[derive(Debug)]
struct KnownCookie {
    name: Vec<u8>,
    scope: CookieScope,
}

impl KnownPaths {
    /// Notes the cookies that a response sets and removes.
    pub(crate) fn note(&mut self, changes: &CookieChanges) {
        for change in &changes.changes {
            let is_same = |known: &KnownCookie| {
                known.name == change.name
                    && known.scope.domain == change.scope.domain
                    && known.scope.path == change.scope.path
            };
            self.0.retain(|known| !is_same(known));
            let is_short = change.name.len() + change.scope.path.len() <= MAX_LENGTH;
            // A cookie for all paths is noted only if one of the same name for a part is known.
            let is_of_part = change.scope.path != "/";
            let is_of_use = is_of_part || self.0.iter().any(|known| known.name == change.name);
            if change.value.is_none() || !is_short || !is_of_use {
                continue;
            }
            if self.0.len() >= MAX_COOKIES {
                self.0.pop_front();
            }
            self.0.push_back(KnownCookie {
                name: change.name.clone(),
                scope: change.scope.clone(),
            });
        }
    }

    /// Returns the cookies of a request that other requests to its site do not always carry. They
    /// have the form of changes that leave the values as they are. A name that the request has
    /// twice is left out.
    pub(crate) fn of(&self, request: &RequestHead) -> Option<CookieChanges> {
        let field = cookies_of(&request.fields);
        let cookies: Vec<_> = pairs(&field).take(MAX_OF_REQUEST + 1).collect();
        if self.0.is_empty() || cookies.len() > MAX_OF_REQUEST {
            return None;
        }
        let count = |name: &[u8]| cookies.iter().filter(|pair| name_of(pair) == name).count();
        let changes: Vec<_> = cookies
            .iter()
            .filter(|pair| count(name_of(pair)) == 1)
            .filter_map(|pair| self.change_of(pair, request))
            .collect();
        (!changes.is_empty()).then_some(CookieChanges {
            changes,
            renews: false,
        })
    }

    /// Returns a cookie of a request with its scope: the widest one that it can have.
    fn change_of(&self, pair: &[u8], request: &RequestHead) -> Option<Change> {
        let name = name_of(pair);
        let of_name = self.0.iter().filter(|known| known.name == name);
        let scopes = of_name.map(|known| &known.scope);
        let scope = scopes
            .filter(|scope| scope.covers_request(request))
            .min_by_key(|scope| scope.path.len())?;
        let at = pair.iter().position(|byte| *byte == b'=')?;
        Some(Change {
            name: name.to_vec(),
            value: Some(pair[at + 1..].to_vec()),
            scope: scope.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::{ResponseHead, Scheme};

    use super::*;

    fn request(path: &str, cookie: &str) -> RequestHead {
        RequestHead {
            fields: [("cookie", cookie)].into_iter().collect(),
            ..RequestHead::get(Scheme::Http, "a.test", path)
        }
    }

    /// The paths after a response to a request for `/wiki/page` without cookies.
    fn known(cookies: &[&str]) -> KnownPaths {
        let mut known = KnownPaths::default();
        note(&mut known, cookies);
        known
    }

    fn note(known: &mut KnownPaths, cookies: &[&str]) {
        let head = ResponseHead {
            fields: cookies.iter().map(|value| ("set-cookie", *value)).collect(),
            ..ResponseHead::new(200)
        };
        let request = RequestHead::get(Scheme::Http, "a.test", "/wiki/page");
        known.note(&CookieChanges::of(&request, &head, 0).expect("clear cookies"));
    }

    /// Returns the cookies of a request for `path`, made for `/wiki/page` with `cookie`.
    fn sent(known: &KnownPaths, cookie: &str, path: &str) -> String {
        let changes = known.of(&request("/wiki/page", cookie));
        let after = changes.map(|it| it.after(cookie.as_bytes(), "http", "a.test", path));
        let after = after.unwrap_or_else(|| cookie.into());
        String::from_utf8(after).expect("text")
    }

    #[test]
    fn cookie_of_a_path_stays_out_of_other_paths() {
        let known = known(&["part=1", "whole=2; Path=/", "own=3; Path=/wiki/page"]);
        for (path, expected) in [
            ("/wiki/image", "old=0; part=1; whole=2"),
            ("/wiki/page/x?y", "old=0; part=1; own=3; whole=2"),
            ("/image", "old=0; whole=2"),
            ("/wikis", "old=0; whole=2"),
        ] {
            let cookie = "old=0; part=1; own=3; whole=2";
            assert_eq!(sent(&known, cookie, path), expected, "{path}");
        }
        // The value at the next visit counts, and other hosts have other cookies.
        assert_eq!(sent(&known, "part=9", "/wiki/x"), "part=9");
        assert_eq!(sent(&known, "part=9", "/"), "");
        let other = RequestHead {
            authority: "b.test".into(),
            ..request("/wiki/page", "part=1")
        };
        assert!(known.of(&other).is_none());
    }

    #[test]
    fn doubtful_paths_change_nothing() {
        for cookies in [
            &["a=1", "a=2; Path=/"][..],
            &["a=1; Path=/"],
            &["a=1; Path=/other"],
            &["a=1", "a=1; Max-Age=0"],
        ] {
            assert_eq!(sent(&known(cookies), "a=1", "/"), "a=1", "{cookies:?}");
        }
        assert_eq!(sent(&known(&["a=1"]), "a=1; a=2", "/"), "a=1; a=2");
    }

    #[test]
    fn known_paths_are_bounded() {
        let mut known = KnownPaths::default();
        for number in 0..3 * MAX_COOKIES {
            note(&mut known, &[&format!("c{number}=1")]);
            assert!(known.0.len() <= MAX_COOKIES);
        }
        assert_eq!(
            sent(&known, "c0=1; c191=1", "/"),
            "c0=1",
            "the oldest is unknown"
        );
        let long = format!("{}=1", "x".repeat(MAX_LENGTH));
        assert_eq!(sent(&self::known(&[&long]), &long, "/"), long);
    }
}
