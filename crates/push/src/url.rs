//! URLs as the gateway compares them: absolute, normalised, without a fragment.

use std::borrow::Cow;

use tandem_http::{RequestHead, Scheme};
use tandem_preload::{MAX_URL, resolve, split};

/// Returns the URL of a request; `None` if it is not a URL that a page can name.
pub(crate) fn request_url(request: &RequestHead) -> Option<String> {
    let RequestHead {
        scheme,
        authority,
        path,
        ..
    } = request;
    let scheme_name = scheme.as_str();
    let mut url = String::with_capacity(scheme_name.len() + 3 + authority.len() + path.len());
    url.push_str(scheme_name);
    url.push_str("://");
    url.push_str(authority);
    url.push_str(path);
    if url.len() <= MAX_URL && is_normal_authority(*scheme, authority) && is_normal_path(path) {
        return Some(url);
    }
    resolve(&url, "")
}

/// Returns host and port of a request in the form in which URLs have them: in lower case, without
/// the default port.
pub(crate) fn request_authority(request: &RequestHead) -> Cow<'_, str> {
    if is_normal_authority(request.scheme, &request.authority) {
        return Cow::Borrowed(&request.authority);
    }
    let root = format!("{}://{}/", request.scheme.as_str(), request.authority);
    match resolve(&root, "") {
        Some(url) => Cow::Owned(authority(&url).to_owned()),
        None => Cow::Borrowed(&request.authority),
    }
}

/// Returns host and port of a URL, or an empty string for other text.
pub(crate) fn authority(url: &str) -> &str {
    split(url).map_or("", |(_, authority, _)| authority)
}

/// Returns a URL or a path before the last slash of the path.
pub(crate) fn directory(url: &str) -> &str {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    path.rsplit_once('/')
        .map_or(path, |(directory, _)| directory)
}

/// Returns whether two URLs have the same origin.
pub(crate) fn is_same_origin(one: &str, other: &str) -> bool {
    let origin = |url| split(url).map(|(scheme, authority, _)| (scheme, authority));
    origin(one).is_some_and(|one| origin(other) == Some(one))
}

/// Returns whether an authority is surely normalised. Such an authority is a domain name in lower
/// case or an IPv4 address, without a port or with one that is not the default. Other hosts need
/// the parser.
fn is_normal_authority(scheme: Scheme, authority: &str) -> bool {
    let colon = authority.bytes().position(|byte| byte == b':');
    let (host, port) = match colon {
        Some(at) => (&authority[..at], &authority[at + 1..]),
        None => (authority, "1"),
    };
    let is_label = |label: &[u8]| {
        !label.is_empty()
            && label
                .iter()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
    };
    let is_dot = |byte: &u8| *byte == b'.';
    // A host whose last label begins with a digit is an address, or is no valid host.
    let last = host.as_bytes().rsplit(is_dot).next().unwrap_or_default();
    let is_host = if last.first().is_some_and(u8::is_ascii_lowercase) {
        host.len() <= 253 && host.as_bytes().split(is_dot).all(is_label)
    } else {
        is_ipv4(host.as_bytes())
    };
    is_host && port_number(port).is_some_and(|port| port != scheme.default_port())
}

/// Returns a port other than 0 in decimal digits, without leading zeros.
fn port_number(text: &str) -> Option<u16> {
    if text.starts_with('0') || !(1..=5).contains(&text.len()) {
        return None;
    }
    let port = text.bytes().try_fold(0, |port, byte| {
        byte.is_ascii_digit()
            .then(|| 10 * port + u32::from(byte - b'0'))
    });
    u16::try_from(port?).ok()
}

/// Returns whether a host is an IPv4 address in the usual form. The parser of the standard library
/// takes three times as long.
fn is_ipv4(host: &[u8]) -> bool {
    let (mut dots, mut number, mut has_digits) = (0, 0, false);
    for byte in host {
        if *byte == b'.' && has_digits {
            dots += 1;
            (number, has_digits) = (0, false);
        } else {
            let digit = u32::from(byte.wrapping_sub(b'0'));
            let has_leading_zero = has_digits && number == 0;
            number = 10 * number + digit;
            has_digits = true;
            if digit > 9 || has_leading_zero || number > 255 {
                return false;
            }
        }
    }
    dots == 3 && has_digits
}

/// Returns whether a path with its query is surely normalised: it has no dot segments, and no bytes
/// that need percent-encoding.
fn is_normal_path(path: &str) -> bool {
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'/' | b'-' | b'_' | b'.' | b'?' | b'=' | b'&' | b'+' | b','
            )
    };
    // The search for a string in a string costs more than the whole check of a short path.
    let mut pairs = path.as_bytes().windows(2);
    path.starts_with('/') && path.bytes().all(is_plain) && !pairs.any(|pair| pair == b"/.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(scheme: Scheme, authority: &str, path: &str) -> RequestHead {
        RequestHead::get(scheme, authority, path)
    }

    #[test]
    fn origin_is_scheme_host_and_port() {
        for (other, expected) in [
            ("http://h.test/b", true),
            ("http://h.test:81/a", false),
            ("https://h.test/a", false),
            ("http://i.h.test/a", false),
            ("nonsense", false),
        ] {
            assert_eq!(
                is_same_origin("http://h.test/a", other),
                expected,
                "{other}"
            );
        }
        assert!(!is_same_origin("nonsense", "nonsense"));
    }

    #[test]
    fn request_url_is_normalised() {
        for (authority, path, url) in [
            ("h.test", "/a/b.css?c=d", "http://h.test/a/b.css?c=d"),
            ("h.test:8080", "/", "http://h.test:8080/"),
            ("H.Test:80", "/a", "http://h.test/a"),
            ("h.test", "/a/../b", "http://h.test/b"),
            ("h.test", "/a#b", "http://h.test/a"),
            ("127.0.0.1:81", "/\u{e9}", "http://127.0.0.1:81/%C3%A9"),
            ("127.0.0.1:81", "/a", "http://127.0.0.1:81/a"),
            ("127.1", "/a", "http://127.0.0.1/a"),
            ("127.0.0.01", "/a", "http://127.0.0.1/a"),
        ] {
            let request = get(Scheme::Http, authority, path);
            assert_eq!(request_url(&request).as_deref(), Some(url));
            assert_eq!(request_authority(&request), super::authority(url));
        }
        for bad in ["", "a..b", "user@h", "1.2.3.4.5"] {
            assert_eq!(request_url(&get(Scheme::Http, bad, "/")), None, "{bad}");
        }
        let long = "a".repeat(MAX_URL);
        assert_eq!(
            request_url(&get(Scheme::Http, "h", &format!("/{long}"))),
            None
        );
    }

    #[test]
    fn default_port_depends_on_the_scheme() {
        assert!(!is_normal_authority(Scheme::Http, "h:80"));
        assert!(is_normal_authority(Scheme::Https, "h:80"));
        assert!(!is_normal_authority(Scheme::Https, "h:443"));
        for odd in ["h:", "h:08", "h:+8", "h:70000", "h.", ".h", "H", "h.1", ""] {
            assert!(!is_normal_authority(Scheme::Http, odd), "{odd}");
        }
    }

    #[test]
    fn plain_path_needs_no_parser() {
        for plain in ["/", "/a-b_c.d/E1?f=g&h+i,2", "/a?b=/c"] {
            assert!(is_normal_path(plain), "{plain}");
        }
        for other in [
            "", "a", "*", "/./a", "/a/..", "/a b", "/%41", "/a#b", "/\u{e9}",
        ] {
            assert!(!is_normal_path(other), "{other}");
        }
    }

    #[test]
    fn ipv4_addresses_are_those_of_the_standard_library() {
        use std::net::Ipv4Addr;

        for host in [
            "127.0.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "256.0.0.1",
            "1.2.3",
            "1.2.3.4.5",
            "01.2.3.4",
            "1.2.3.4.",
            ".1.2.3",
            "1..2.3",
            "",
            "1.2.3.a",
            "1.2.3.1234",
            "00.0.0.0",
            "1.2.3.-4",
        ] {
            let expected = host.parse::<Ipv4Addr>().is_ok();
            assert_eq!(is_ipv4(host.as_bytes()), expected, "{host}");
        }
    }

    proptest::proptest! {
        #[test]
        fn request_url_fast_path_agrees_with_the_parser(
            authority in "[a-z0-9.:-]{1,12}",
            path in "/[a-zA-Z0-9/._?=&+,-]{0,12}",
        ) {
            let request = get(Scheme::Http, &authority, &path);
            let slow = resolve(&format!("http://{authority}{path}"), "");
            proptest::prop_assert_eq!(request_url(&request), slow);
        }
    }
}
