//! The parts of header blocks that `HeaderCompression::Safe` keeps out of the compressor.
//!
//! A page can make a browser send guesses in addresses of its choice. An observer who sees the
//! lengths of frames finds each secret that the compressor matches a guess against (CRIME).

use memchr::memchr;

/// Names whose values are addresses.
const ADDRESSES: [&[u8]; 4] = [b":path", b"referer", b"location", b"content-location"];

/// Registered and common names of which no site makes a credential, in order.
#[rustfmt::skip]
const PUBLIC_NAMES: &[&[u8]] = &[
    b"age", b"allow", b"alt-svc", b"cache-control", b"cache-status", b"cdn-cache-control",
    b"clear-site-data", b"connection", b"content-digest", b"cross-origin-embedder-policy",
    b"cross-origin-opener-policy", b"cross-origin-resource-policy", b"date", b"digest", b"dnt",
    b"early-data", b"etag", b"expect", b"expires", b"from", b"host", b"if-match",
    b"if-modified-since", b"if-none-match", b"if-range", b"if-unmodified-since", b"keep-alive",
    b"last-modified", b"max-forwards", b"nel", b"origin", b"permissions-policy", b"pragma",
    b"priority", b"proxy-status", b"purpose", b"range", b"referrer-policy", b"report-to",
    b"reporting-endpoints", b"repr-digest", b"retry-after", b"save-data", b"server",
    b"server-timing", b"status", b"strict-transport-security", b"te", b"timing-allow-origin",
    b"trailer", b"transfer-encoding", b"upgrade", b"upgrade-insecure-requests", b"user-agent",
    b"vary", b"via", b"want-content-digest", b"want-repr-digest", b"warning", b"x-cache",
    b"x-cache-hits", b"x-content-type-options", b"x-frame-options", b"x-powered-by",
    b"x-requested-with", b"x-robots-tag", b"x-served-by", b"x-ua-compatible", b"x-xss-protection",
];

/// Beginnings of such names.
const PUBLIC_BEGINNINGS: [&[u8]; 7] = [
    b"accept",
    b"access-control-",
    b"content-",
    b"sec-ch-",
    b"sec-fetch-",
    b"sec-gpc",
    b"tandem-",
];

/// The alphanumeric characters in a row that make a token: this many with a digit, or
/// [`LONG_WORD`] without.
const TOKEN: usize = 8;
const LONG_WORD: usize = 20;

/// Returns the index of the first secret byte of a value; the value's length if it has none.
///
/// A field is secret unless its name is known to carry no credential. The query of an address is
/// secret: it carries session ids, search words and one-time codes. So is the rest of a path after
/// the beginning of a name that may be a token.
pub(crate) fn secret_part(name: &[u8], value: &[u8]) -> usize {
    if ADDRESSES.contains(&name) {
        let query = memchr(b'?', value).map_or(value.len(), |at| at + 1);
        return token(&value[..query]).unwrap_or(query);
    }
    // ":authority" has no place in SPDY; ":host" and the other names with a colon are never
    // credentials.
    if name.first() == Some(&b':') || is_public(name) {
        value.len()
    } else {
        0
    }
}

fn is_public(name: &[u8]) -> bool {
    let is_known = || PUBLIC_NAMES.binary_search(&name).is_ok();
    let begins = || PUBLIC_BEGINNINGS.iter().any(|mark| name.starts_with(mark));
    (is_known() || begins()) && !is_credential(name)
}

/// Returns true if the name is that of a credential.
fn is_credential(name: &[u8]) -> bool {
    const MARKS: [&[u8]; 5] = [b"auth", b"cookie", b"key", b"secret", b"token"];
    let begins = |at| MARKS.iter().any(|mark| name[at..].starts_with(mark));
    (0..name.len()).any(begins)
}

/// Returns the index of the first part of a path that may be a token.
fn token(address: &[u8]) -> Option<usize> {
    let path = match memchr(b':', address) {
        Some(colon) if address[colon..].starts_with(b"://") => {
            let host = colon + 3;
            host + memchr(b'/', &address[host..])?
        }
        _ => 0,
    };
    let (mut length, mut has_digit) = (0, false);
    for (at, byte) in address.iter().enumerate().skip(path) {
        if !byte.is_ascii_alphanumeric() {
            (length, has_digit) = (0, false);
            continue;
        }
        length += 1;
        has_digit |= byte.is_ascii_digit();
        if (length >= TOKEN && has_digit) || length >= LONG_WORD {
            return Some(at + 1 - length);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_part_is_the_value_of_unknown_names() {
        for name in [
            "cookie",
            "set-cookie",
            "authorization",
            "proxy-authorization",
            "x-csrf-token",
            "x-api-key",
            "x-password",
            "x-key",
            "x-amz-signature",
            "sec-websocket-key",
            "sec-websocket-protocol",
            "sec-session-response",
            "link",
            "jwt",
        ] {
            assert_eq!(secret_part(name.as_bytes(), b"value"), 0, "{name}");
        }
        for name in [
            "accept",
            "accept-language",
            "content-type",
            "user-agent",
            "via",
            ":status",
        ] {
            assert_eq!(secret_part(name.as_bytes(), b"value"), 5, "{name}");
        }
    }

    #[test]
    fn public_names_are_in_order() {
        assert!(PUBLIC_NAMES.is_sorted());
        assert!(PUBLIC_NAMES.iter().all(|name| is_public(name)));
    }

    #[test]
    fn secrets_of_addresses_begin_with_queries_or_tokens() {
        for (address, public) in [
            ("/a?b=c", "/a?"),
            ("http://a/b", "http://a/b"),
            (
                "http://cdn12345678.example/b",
                "http://cdn12345678.example/b",
            ),
            ("http://cdn12345678.example", "http://cdn12345678.example"),
            ("/reset/Ab3dEf6hIj/now", "/reset/"),
            ("/reset/abcdefghijklmnopqrstuv", "/reset/"),
            ("http://a/reset/Ab3dEf6hIj?x", "http://a/reset/"),
            (
                "/wiki/Barack_Obama/international",
                "/wiki/Barack_Obama/international",
            ),
            ("/2018/05/name-2.html", "/2018/05/name-2.html"),
        ] {
            for name in ADDRESSES {
                let found = secret_part(name, address.as_bytes());
                assert_eq!(&address[..found], public, "{address}");
            }
        }
    }
}
