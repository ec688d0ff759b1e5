//! The cookies that a page sets: the requests of its resources carry them (RFC 6265 section 5).
//!
//! A session with one user adds cookies of a simple kind to the early requests of a page. They are
//! for its host and all paths, without `Domain`, `Secure` and prefixes. If the browser has not
//! returned a cookie that a host has set, it refuses cookies, and none are added. Nothing is
//! requested early for a page that sets other cookies, because its resources would be requested
//! twice.

use tandem_http::cache::unix_seconds;
use tandem_http::{RequestHead, ResponseHead};

use super::session::Gateway;
use crate::fetch_standard::is_navigation;

/// The largest number of hosts that are known to set cookies.
const MAX_HOSTS: usize = 1024;

/// The length in bytes of a name with its value above which browsers ignore a cookie.
const MAX_LENGTH: usize = 4096;

/// The cookies of requests that follow a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cookies {
    /// The response changes none.
    Unchanged,
    /// The response changes the `Cookie` field to this value. It is removed if that is empty.
    Changed(Vec<u8>),
    /// The response sets cookies that are not of the simple kind.
    Unknown,
}

impl Gateway {
    /// Returns the cookies of the requests that a page causes.
    pub(super) fn cookies_after(
        &mut self,
        request: &RequestHead,
        head: &ResponseHead,
        unix_time: u64,
    ) -> Cookies {
        if !self.config.has_one_user || !head.fields.contains("set-cookie") {
            return Cookies::Unchanged;
        }
        if !is_navigation(request) {
            return Cookies::Unknown;
        }
        let cookies = apply(request, head, unix_time);
        if matches!(cookies, Cookies::Changed(_)) {
            let host = request.authority.to_ascii_lowercase();
            if self.cookie_hosts.len() >= MAX_HOSTS {
                self.cookie_hosts.clear();
            }
            let is_known = !self.cookie_hosts.insert(host);
            if is_known && !request.fields.contains("cookie") {
                return Cookies::Unchanged;
            }
        }
        cookies
    }
}

/// A cookie that a response sets or removes.
struct Change<'a> {
    name: &'a [u8],
    /// `None` removes the cookie.
    value: Option<&'a [u8]>,
}

/// Applies the `Set-Cookie` fields of a response to the `Cookie` field of its request.
fn apply(request: &RequestHead, head: &ResponseHead, unix_time: u64) -> Cookies {
    let field = request.fields.get("cookie").unwrap_or_default();
    let pairs = field.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let mut cookies: Vec<Vec<u8>> = pairs
        .filter(|pair| !pair.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    let mut is_changed = false;
    let fields = head.fields.iter();
    for field in fields.filter(|field| field.name == b"set-cookie") {
        let Some(Change { name, value }) = change(field.value, &request.path, unix_time) else {
            return Cookies::Unknown;
        };
        let pair = value.map(|value| [name, b"=", value].concat());
        let is_named = |pair: &[u8]| pair.split(|byte| *byte == b'=').next() == Some(name);
        let mut found = (0..cookies.len()).filter(|at| is_named(&cookies[*at]));
        let at = found.next();
        if found.next().is_some() {
            // Two cookies of one name belong to different paths or domains.
            return Cookies::Unknown;
        }
        match (at, pair) {
            (Some(at), Some(pair)) => {
                is_changed |= cookies[at] != pair;
                cookies[at] = pair;
            }
            (Some(at), None) => {
                is_changed = true;
                cookies.remove(at);
            }
            // The newest cookie with the shortest path is the last one.
            (None, Some(pair)) => {
                is_changed = true;
                cookies.push(pair);
            }
            (None, None) => {}
        }
    }
    if is_changed {
        Cookies::Changed(cookies.join(&b"; "[..]))
    } else {
        Cookies::Unchanged
    }
}

/// Parses a `Set-Cookie` field of the simple kind. `path` is that of the request.
fn change<'a>(field: &'a [u8], path: &str, unix_time: u64) -> Option<Change<'a>> {
    let mut parts = field.split(|byte| *byte == b';');
    let (name, value) = split(parts.next()?)?;
    let is_good = !name.is_empty()
        && name.len() + value.len() <= MAX_LENGTH
        && !name.starts_with(b"__")
        && !field.iter().any(u8::is_ascii_control);
    if !is_good {
        return None;
    }
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let (mut has_all_paths, mut max_age, mut expires) = (is_in_root(path), None, None);
    for part in parts {
        let (name, value) = split(part).unwrap_or_else(|| (part.trim_ascii(), b""));
        match name.to_ascii_lowercase().as_slice() {
            b"path" if value.starts_with(b"/") => has_all_paths = value == b"/",
            b"path" => has_all_paths = is_in_root(path),
            b"domain" if value.is_empty() => {}
            b"samesite" if !value.eq_ignore_ascii_case(b"none") => {}
            b"domain" | b"samesite" | b"secure" | b"partitioned" => return None,
            b"max-age" => max_age = has_time(value).or(max_age),
            b"expires" => expires = Some(date(value)? > unix_time),
            _ => {}
        }
    }
    let is_kept = max_age.or(expires).unwrap_or(true);
    has_all_paths.then_some(Change {
        name,
        value: is_kept.then_some(value),
    })
}

/// Splits a name from its value.
fn split(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((pair[..at].trim_ascii(), pair[at + 1..].trim_ascii()))
}

/// Returns whether the default path of a cookie is `/` (RFC 6265 section 5.1.4).
fn is_in_root(path: &str) -> bool {
    path.rfind('/').is_none_or(|at| at == 0)
}

/// Returns whether a `Max-Age` is positive; `None` if it is invalid, and ignored.
fn has_time(value: &[u8]) -> Option<bool> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let is_positive = digits.len() == value.len() && digits.iter().any(|digit| *digit != b'0');
    is_number.then_some(is_positive)
}

/// Returns the time of an `Expires`. Many servers write it with hyphens and a long year.
fn date(value: &[u8]) -> Option<u64> {
    unix_seconds(value).or_else(|| {
        let mut spaced = value.to_vec();
        for byte in spaced.iter_mut().filter(|byte| **byte == b'-') {
            *byte = b' ';
        }
        unix_seconds(&spaced)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tandem_http::Scheme;

    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn after(path: &str, cookie: Option<&str>, set: &[&str]) -> Cookies {
        let mut request = RequestHead::get(Scheme::Http, "a.test", path);
        if let Some(cookie) = cookie {
            request.fields.push("cookie", cookie);
        }
        let mut head = ResponseHead::new(200);
        for set in set {
            head.fields.push("set-cookie", *set);
        }
        apply(&request, &head, NOW)
    }

    fn changed(cookie: &str) -> Cookies {
        Cookies::Changed(cookie.into())
    }

    #[test]
    fn simple_cookie_follows_those_of_the_request() {
        for (cookie, set, expected) in [
            (None, &["sid=1; path=/; HttpOnly"][..], "sid=1"),
            (None, &["a=1", "b=2=3; SameSite=Lax; Path=/"], "a=1; b=2=3"),
            (Some("x=y"), &["sid = 1 ; Max-Age=60"], "x=y; sid=1"),
            (Some("sid=0; x=y"), &["sid=1"], "sid=1; x=y"),
            (Some("sid=0; x=y"), &["sid=; Max-Age=0"], "x=y"),
            (Some("sid=0"), &["sid=; Max-Age=-1"], ""),
            (
                Some("sid=0; x=y"),
                &["sid=; expires=Thu, 01-Jan-1970 00:00:01 GMT"],
                "x=y",
            ),
            (
                None,
                &["a=1; expires=Sun, 06-Nov-2094 08:49:37 GMT; path=/"],
                "a=1",
            ),
            (
                None,
                &["a=1; expires=Thu, 01 Jan 1970 00:00:01 GMT; max-age=5"],
                "a=1",
            ),
            (None, &["a=1", "a=2"], "a=2"),
            (None, &["a=1; Path=x"], "a=1"),
            (None, &["a=1; Path=/x; Path="], "a=1"),
            (None, &["a=1; Domain="], "a=1"),
            (
                Some("sid=0"),
                &["sid=; expires=Tue, 14 Nov 2023 22:13:20 GMT"],
                "",
            ),
            (
                Some("sid=0"),
                &["sid=; Max-Age=x; expires=Thu, 01 Jan 1970 00:00:01 GMT"],
                "",
            ),
        ] {
            assert_eq!(
                after("/page?x=/", cookie, set),
                changed(expected),
                "{set:?}"
            );
        }
    }

    #[test]
    fn long_cookie_is_unknown() {
        let name = "n".repeat(100);
        for (length, is_known) in [(MAX_LENGTH, true), (MAX_LENGTH + 1, false)] {
            let value = "v".repeat(length - name.len());
            let cookie = format!("{name}={value}");
            let expected = match is_known {
                true => changed(&cookie),
                false => Cookies::Unknown,
            };
            assert_eq!(after("/", None, &[&cookie]), expected);
        }
    }

    #[test]
    fn same_cookie_changes_nothing() {
        assert_eq!(after("/", Some("a=1;b=2"), &["a=1"]), Cookies::Unchanged);
        assert_eq!(
            after("/", Some("b=2"), &["a=; max-age=0"]),
            Cookies::Unchanged
        );
        assert_eq!(after("/", None, &[]), Cookies::Unchanged);
    }

    #[test]
    fn other_cookies_are_unknown() {
        for set in [
            "a=1; Domain=a.test",
            "a=1; Secure",
            "a=1; SameSite=None",
            "a=1; Partitioned",
            "a=1; Path=/x",
            "a=1; expires=soon",
            "__Host-a=1; Path=/",
            "a",
            "=1",
            "a=\u{7f}",
        ] {
            assert_eq!(after("/page", None, &[set]), Cookies::Unknown, "{set}");
        }
        assert_eq!(after("/x/page", None, &["a=1"]), Cookies::Unknown);
        assert_eq!(after("/x/page", None, &["a=1; path=/"]), changed("a=1"));
        let two = after("/", Some("a=1; a=2"), &["a=3"]);
        assert_eq!(two, Cookies::Unknown);
    }

    proptest! {
        #[test]
        fn cookies_take_any_text(cookie in "[ -~]{0,40}", set in "[ -~]{0,60}") {
            let cookies = after("/", Some(&cookie), &[&set]);
            if let Cookies::Changed(value) = cookies {
                prop_assert!(value.len() <= cookie.len() * 2 + set.len() + 2);
            }
        }
    }
}
