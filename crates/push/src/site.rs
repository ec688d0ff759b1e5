//! Sites: the hosts of one registrable domain (HTML standard, "same site", without the scheme).

use std::net::{Ipv4Addr, Ipv6Addr};

use tandem_http::RequestHead;

/// Returns whether two authorities belong to the same site. Such authorities name the same host,
/// whatever the port, or hosts below the same registrable domain of the Public Suffix List.
pub fn is_same_site(one: &str, other: &str) -> bool {
    let (one, other) = (host(one), host(other));
    if one.eq_ignore_ascii_case(other) {
        return true;
    }
    if is_address(one) || is_address(other) {
        return false;
    }
    let (one, other) = (one.to_ascii_lowercase(), other.to_ascii_lowercase());
    match (psl::domain_str(&one), psl::domain_str(&other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// Returns the site of an authority: its registrable domain, or its host if that is an address or
/// no name of the Public Suffix List.
pub fn site_of(authority: &str) -> String {
    let host = host(authority).to_ascii_lowercase();
    match psl::domain_str(&host) {
        Some(domain) if !is_address(&host) => domain.to_owned(),
        _ => host,
    }
}

/// Returns the first-party site of a request: that of its page, or its own site if the user or the
/// same site caused it. Returns `None` if the request does not show it.
pub fn first_party(request: &RequestHead) -> Option<String> {
    let url = |name: &str| {
        let value = std::str::from_utf8(request.fields.get(name)?).ok()?;
        value.split_once("://").map(|(_, rest)| {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            site_of(&rest[..end])
        })
    };
    let own = || {
        let from = request.fields.get("sec-fetch-site")?;
        matches!(from, b"none" | b"same-origin" | b"same-site").then(|| site_of(&request.authority))
    };
    url("referer").or_else(|| url("origin")).or_else(own)
}

/// Returns whether a host, in lower case, is a suffix of the Public Suffix List: its names belong
/// to different owners.
pub(crate) fn is_public_suffix(host: &str) -> bool {
    !is_address(host) && psl::domain_str(host).is_none()
}

/// Returns an authority without its port.
pub(crate) fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Returns an authority without its port and without the dot of the root.
fn host(authority: &str) -> &str {
    let host = host_of(authority);
    host.strip_suffix('.').unwrap_or(host)
}

/// Returns whether a host is the computer itself (Secure Contexts, section 3.1).
pub(crate) fn is_loopback(host: &str) -> bool {
    let is_address = || host.parse().is_ok_and(|it: Ipv4Addr| it.is_loopback());
    host == "localhost" || host.ends_with(".localhost") || host == "[::1]" || is_address()
}

/// Returns whether some browsers take plain HTTP of a host for secure.
pub(crate) fn may_be_trusted(host: &str) -> bool {
    is_loopback(host) || host.ends_with(".onion")
}

pub(crate) fn is_address(host: &str) -> bool {
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    bracketed.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
        || host.parse::<Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    #[test]
    fn same_site_is_one_registrable_domain() {
        for (one, other) in [
            ("a.test", "a.test:8080"),
            ("www.shop.example", "img.shop.example"),
            ("shop.example", "a.b.shop.example:81"),
            ("www.bbc.co.uk", "static.bbc.co.uk"),
            ("a.github.io", "x.a.github.io"),
            ("Shop.Example.", "www.shop.example"),
            ("10.0.0.1:1", "10.0.0.1:2"),
            ("[2001:db8::1]:1", "[2001:db8::1]"),
            ("localhost", "localhost:9"),
            ("cdn.abc.onion", "abc.onion"),
        ] {
            assert!(is_same_site(one, other), "{one} {other}");
            assert!(is_same_site(other, one), "{other} {one}");
        }
    }

    #[test]
    fn other_site_is_another_registrable_domain() {
        for (one, other) in [
            ("a.test", "b.test"),
            ("a.co.uk", "b.co.uk"),
            ("a.github.io", "b.github.io"),
            ("github.io", "a.github.io"),
            ("shop.example", "shopping.example"),
            ("localhost", "a.localhost.example"),
            ("10.0.0.1", "10.0.1.1"),
            ("192.0.2.1", "198.0.2.1"),
            ("1.0.0.1", "9.0.0.1"),
            ("[2001:db8::1]", "[2001:db8::2]"),
            ("", "a.test"),
            ("abc.onion", "abd.onion"),
        ] {
            assert!(!is_same_site(one, other), "{one} {other}");
            assert!(!is_same_site(other, one), "{other} {one}");
        }
    }

    #[test]
    fn site_is_a_domain_or_an_address() {
        for (authority, site) in [
            ("WWW.Shop.Example.:81", "shop.example"),
            ("a.b.co.uk", "b.co.uk"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[2001:db8::1]:80", "[2001:db8::1]"),
            ("localhost", "localhost"),
            ("co.uk", "co.uk"),
        ] {
            assert_eq!(site_of(authority), site, "{authority}");
        }
    }

    #[test]
    fn first_party_comes_from_the_page() {
        let of = |fields: &[(&str, &str)]| {
            first_party(&RequestHead {
                fields: fields.iter().copied().collect(),
                ..RequestHead::get(Scheme::Http, "img.own.example:8080", "/")
            })
        };
        let page = ("referer", "http://www.page.example/a?b");
        assert_eq!(of(&[page]).as_deref(), Some("page.example"));
        assert_eq!(
            of(&[("origin", "http://a.b.example")]).as_deref(),
            Some("b.example")
        );
        assert_eq!(
            of(&[page, ("origin", "null")]).as_deref(),
            Some("page.example")
        );
        for own in ["none", "same-origin", "same-site"] {
            assert_eq!(
                of(&[("sec-fetch-site", own)]).as_deref(),
                Some("own.example")
            );
        }
        for unknown in [
            &[][..],
            &[("sec-fetch-site", "cross-site")],
            &[("origin", "null")],
        ] {
            assert_eq!(of(unknown), None, "{unknown:?}");
        }
    }
}
