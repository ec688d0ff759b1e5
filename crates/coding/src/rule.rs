//! The rule for compression: a body that may mix a secret of the user with text of an attacker is
//! never compressed.
//!
//! The session hides the bytes from an observer of the path, but not their number. A page may
//! repeat text of its URL beside a secret. An attacker can make the browser request such a page
//! with many guesses, and the length of the compressed body shows the right one (BREACH). The
//! attack needs a body that depends on the browser's credentials, since the attacker can request
//! any other body without the browser. A body is therefore not compressed in these cases:
//!
//! - The request has `Authorization`, or its caller knows of other credentials.
//! - The request has cookies. Exceptions are responses with `public` or `s-maxage`, and style
//!   sheets and scripts, if their lifetime is above zero. A script with a query may repeat text of
//!   it beside the user's data (JSONP), so its lifetime must be a day.
//! - The response sets a cookie without `public`, says `private` or `no-store`, or varies by
//!   cookie, by authorization or by everything.
//!
//! Each body is compressed alone. Data of different URLs or users never meet in one frame.

use std::time::Duration;

use tandem_http::cache::{ResponsePolicy, vary};
use tandem_http::message::{content_length, media_type_essence};
use tandem_http::{Method, RequestHead, ResponseHead};

use crate::recode;

/// The length in bytes below which a body is not compressed: the fields of the coding take as much.
pub const MIN_LENGTH: usize = 256;

/// The least lifetime of a style sheet or a script whose URL has a query.
const QUERY_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The credentials of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The request has none.
    None,
    /// The request has cookies.
    Cookies,
    /// The request has a password, a token or something unknown.
    Other,
}

impl Credentials {
    /// Returns the credentials of a request.
    pub fn of(request: &RequestHead) -> Self {
        let has = |name| request.fields.contains(name);
        if has("authorization") || has("proxy-authorization") {
            Self::Other
        } else if has("cookie") || has("cookie2") {
            Self::Cookies
        } else {
            Self::None
        }
    }
}

/// Returns whether the body of a response may be compressed.
pub fn may_compress(request: &RequestHead, asked: Credentials, head: &ResponseHead) -> bool {
    let codings = head.fields.get_all("content-encoding");
    let is_identity = codings
        .filter(|coding| !coding.is_empty())
        .all(|coding| coding.eq_ignore_ascii_case(b"identity"));
    request.method == Method::Get && is_identity && is_suitable(request, asked, head)
}

/// Returns whether the body of a response may be decoded from gzip and compressed. The response to
/// HEAD has the fields of one that may.
pub fn may_recode(request: &RequestHead, asked: Credentials, head: &ResponseHead) -> bool {
    matches!(request.method, Method::Get | Method::Head)
        && recode::is_gzip(&head.fields)
        && recode::is_permitted(request, head)
        && is_suitable(request, asked, head)
}

/// Returns whether a response has a whole text, long enough and not personal.
fn is_suitable(request: &RequestHead, asked: Credentials, head: &ResponseHead) -> bool {
    request.protocol.is_none()
        && matches!(head.status, 200 | 404 | 410)
        && !head.fields.contains("content-range")
        && is_long_enough(head)
        && is_public(request, asked, head)
}

fn is_long_enough(head: &ResponseHead) -> bool {
    match content_length(&head.fields) {
        Ok(length) => length.is_none_or(|length| length >= MIN_LENGTH as u64),
        Err(_) => false,
    }
}

/// The kind of text in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    /// A style sheet or a script: a file, as a rule.
    File,
    /// Any other text, such as a page.
    Other,
}

impl Text {
    /// Returns the kind of a body by its media type, or `None` if it is no text. An event stream is
    /// none, because its encoder would be kept for hours.
    fn of(head: &ResponseHead) -> Option<Self> {
        let media = media_type_essence(head.fields.get("content-type")?);
        let media = std::str::from_utf8(media).ok()?.to_ascii_lowercase();
        let (kind, name) = media.split_once('/')?;
        match (kind, name) {
            ("text", "css" | "javascript" | "ecmascript" | "x-javascript")
            | ("application", "javascript" | "x-javascript" | "ecmascript") => Some(Self::File),
            ("text", "event-stream") => None,
            ("text", _) | ("application", "json" | "xml") => Some(Self::Other),
            _ if name.ends_with("+xml") || name.ends_with("+json") => Some(Self::Other),
            _ => None,
        }
    }
}

/// Returns whether a body is text that does not depend on the credentials of its request.
fn is_public(request: &RequestHead, asked: Credentials, head: &ResponseHead) -> bool {
    let Some(text) = Text::of(head) else {
        return false;
    };
    let policy = ResponsePolicy::of(head);
    let control = &policy.control;
    let is_personal = control.private
        || control.no_store
        || policy.varies_on_anything
        || vary::depends_on(&head.fields, "cookie")
        || vary::depends_on(&head.fields, "authorization")
        || (head.fields.contains("set-cookie") && !control.public);
    !is_personal
        && match asked {
            Credentials::None => true,
            Credentials::Cookies => {
                let lifetime = lifetime(&policy);
                let is_file = text == Text::File
                    && (!request.path.contains('?') || lifetime >= QUERY_LIFETIME);
                let is_for_all = control.public || control.s_maxage.is_some();
                lifetime > Duration::ZERO && (is_for_all || is_file)
            }
            Credentials::Other => false,
        }
}

/// Returns the time for which the origin permits a shared cache to use the response without it.
fn lifetime(policy: &ResponsePolicy) -> Duration {
    let control = &policy.control;
    if control.no_cache {
        return Duration::ZERO;
    }
    let stated = control.s_maxage.or(control.max_age);
    stated.unwrap_or_else(|| match (policy.expires, policy.date) {
        (Some(expires), Some(date)) => Duration::from_secs(expires.saturating_sub(date)),
        _ => Duration::ZERO,
    })
}

#[cfg(test)]
mod tests {
    use tandem_http::{Fields, Scheme};

    use super::*;

    fn decides(request: &[(&str, &str)], response: &[(&str, &str)]) -> bool {
        let request = RequestHead {
            fields: request.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "own.example", "/")
        };
        let head = ResponseHead {
            status: 200,
            fields: response.iter().copied().collect(),
        };
        may_compress(&request, Credentials::of(&request), &head)
    }

    const HTML: (&str, &str) = ("content-type", "text/html; charset=utf-8");
    const CSS: (&str, &str) = ("content-type", "Text/CSS");
    const COOKIE: (&str, &str) = ("cookie", "a=b");
    const DAY: (&str, &str) = ("cache-control", "max-age=86400");

    fn control(value: &'static str) -> (&'static str, &'static str) {
        ("cache-control", value)
    }

    #[test]
    fn text_without_credentials_is_compressed() {
        for media in [
            "text/html",
            "text/css",
            "application/javascript",
            "application/json",
            "application/manifest+json",
            "image/svg+xml",
            "application/xhtml+xml;charset=utf-8",
        ] {
            assert!(decides(&[], &[("content-type", media)]), "{media}");
        }
        for media in ["image/png", "text/event-stream", "application/zip", "x", ""] {
            assert!(!decides(&[], &[("content-type", media)]), "{media}");
        }
        assert!(!decides(&[], &[]), "the type is unknown");
    }

    #[test]
    fn personal_text_is_not_compressed() {
        for field in [
            control("private"),
            control("no-store"),
            ("vary", "Cookie"),
            ("vary", "Accept, Authorization"),
            ("vary", "*"),
            ("set-cookie", "a=b"),
        ] {
            assert!(!decides(&[], &[HTML, field]), "{field:?}");
        }
        let said = [HTML, ("set-cookie", "a=b"), control("public")];
        assert!(decides(&[], &said));
    }

    #[test]
    fn text_for_cookies_must_be_public() {
        for (fields, expected) in [
            (&[HTML][..], false),
            (&[HTML, DAY], false),
            (&[HTML, control("public, max-age=60")], true),
            (&[HTML, control("s-maxage=60")], true),
            // Platforms send these with every page, personal or not.
            (&[HTML, control("public")], false),
            (
                &[HTML, control("public, max-age=0, must-revalidate")],
                false,
            ),
            (&[HTML, control("public, no-cache")], false),
            (&[HTML, control("public, max-age=60, s-maxage=0")], false),
            (&[CSS], false),
            (&[CSS, DAY], true),
            (&[CSS, control("max-age=0")], false),
            (&[CSS, control("max-age=60, no-cache")], false),
            (&[CSS, control("max-age=60, private")], false),
            (&[CSS, DAY, ("vary", "cookie")], false),
            (&[CSS, DAY, ("set-cookie", "a=b")], false),
            (
                &[
                    CSS,
                    ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
                    ("expires", "Sun, 06 Nov 1994 09:49:37 GMT"),
                ],
                true,
            ),
            (&[CSS, ("expires", "0")], false),
        ] {
            assert_eq!(decides(&[COOKIE], fields), expected, "{fields:?}");
        }
        for (lifetime, expected) in [("max-age=3600", false), ("max-age=86400", true)] {
            let request = RequestHead {
                fields: [COOKIE].into_iter().collect(),
                ..RequestHead::get(Scheme::Http, "own.example", "/me?callback=guess")
            };
            let head = ResponseHead {
                status: 200,
                fields: [CSS, ("cache-control", lifetime)].into_iter().collect(),
            };
            let asked = Credentials::of(&request);
            assert_eq!(may_compress(&request, asked, &head), expected, "{lifetime}");
        }
        let login = ("authorization", "Basic eDp5");
        assert!(!decides(&[login], &[CSS, control("public, max-age=60")]));
    }

    #[test]
    fn gzip_is_recoded_if_both_sides_permit_it() {
        const GZIP: (&str, &str) = ("content-encoding", "gzip");
        let recodes = |request: &[(&str, &str)], response: &[(&str, &str)], method| {
            let accepts = ("accept-encoding", "br, gzip");
            let mut fields: Fields = request.iter().copied().collect();
            if !fields.contains(accepts.0) {
                fields.push(accepts.0, accepts.1);
            }
            let request = RequestHead {
                method,
                fields,
                ..RequestHead::get(Scheme::Http, "own.example", "/")
            };
            let head = ResponseHead {
                status: 200,
                fields: response.iter().copied().collect(),
            };
            may_recode(&request, Credentials::of(&request), &head)
        };
        for method in [Method::Get, Method::Head] {
            assert!(recodes(&[], &[HTML, GZIP], method));
        }
        assert!(!recodes(&[], &[HTML, GZIP], Method::Post));
        assert!(recodes(
            &[],
            &[HTML, ("content-encoding", "X-GZip")],
            Method::Get
        ));
        for field in [
            ("accept-encoding", "GZIP"),
            ("accept-encoding", "gzip;q=1.0, identity; q=0.5, *;q=0"),
        ] {
            assert!(recodes(&[field], &[HTML, GZIP], Method::Get), "{field:?}");
        }
        for field in [
            ("accept-encoding", ""),
            ("accept-encoding", "identity"),
            ("accept-encoding", "gzip;q=0"),
            ("accept-encoding", "gzip, identity;q=0"),
            ("accept-encoding", "gzip, * ; Q=0.000"),
            ("cache-control", "max-age=0, no-transform"),
            ("range", "bytes=0-9"),
            COOKIE,
        ] {
            assert!(!recodes(&[field], &[HTML, GZIP], Method::Get), "{field:?}");
        }
        for field in [
            control("no-transform"),
            control("private"),
            ("content-encoding", "gzip"),
            ("content-digest", "sha-256=:AAAA:"),
            ("repr-digest", "sha-256=:AAAA:"),
            ("digest", "sha-256=AAAA"),
            ("content-md5", "AAAA"),
            ("signature", "a=:AAAA:"),
            ("signature-input", "a=()"),
            ("content-range", "bytes 0-9/10"),
            ("content-length", "255"),
        ] {
            assert!(
                !recodes(&[], &[HTML, GZIP, field], Method::Get),
                "{field:?}"
            );
        }
        for coding in ["br", "gzip, br", "identity", ""] {
            assert!(
                !recodes(&[], &[HTML, ("content-encoding", coding)], Method::Get),
                "{coding}"
            );
        }
    }

    #[test]
    fn coded_partial_and_short_bodies_stay_as_they_are() {
        for field in [
            ("content-encoding", "gzip"),
            ("content-range", "bytes 0-9/10"),
            ("content-length", "255"),
            ("content-length", "x"),
        ] {
            assert!(!decides(&[], &[HTML, field]), "{field:?}");
        }
        for field in [("content-encoding", "identity"), ("content-length", "256")] {
            assert!(decides(&[], &[HTML, field]), "{field:?}");
        }
        let get = RequestHead::get(Scheme::Http, "own.example", "/");
        let post = RequestHead {
            method: Method::Post,
            ..get.clone()
        };
        let of = |request: &RequestHead, status| {
            let fields = [HTML].into_iter().collect();
            may_compress(request, Credentials::None, &ResponseHead { status, fields })
        };
        assert!(!of(&post, 200));
        for status in [204, 206, 301, 304, 500] {
            assert!(!of(&get, status), "{status}");
        }
    }
}
