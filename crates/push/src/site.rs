//! Sites: the hosts of one registrable domain (HTML standard, "same site", without the scheme).

use std::net::{Ipv4Addr, Ipv6Addr};

/// Returns whether two authorities belong to the same site: they name the same host, whatever the
/// port, or hosts below the same registrable domain of the Public Suffix List.
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

/// Returns an authority without its port and without the dot of the root.
fn host(authority: &str) -> &str {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}

fn is_address(host: &str) -> bool {
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    bracketed.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
        || host.parse::<Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
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
}
