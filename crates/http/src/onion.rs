//! The names of onion services (RFC 7686).

/// Returns true if only Tor can resolve `host` (RFC 7686), in any case and with or without dots at
/// the end.
pub fn is_onion(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    let Some((before, last)) = host.as_bytes().split_last_chunk::<5>() else {
        return false;
    };
    last.eq_ignore_ascii_case(b"onion") && matches!(before.last(), None | Some(b'.'))
}

/// Returns the name of the onion service at `host`, such as `a.onion` for `www.A.onion.`.
pub fn onion_service(host: &str) -> Option<String> {
    let host = host.trim_end_matches('.');
    let service = host.rsplit('.').nth(1).filter(|it| !it.is_empty())?;
    is_onion(host).then(|| format!("{}.onion", service.to_ascii_lowercase()))
}

/// Returns true if both hosts are names of one onion service: subdomains share its address.
pub fn is_same_onion(a: &str, b: &str) -> bool {
    onion_service(a).is_some_and(|service| Some(service) == onion_service(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_same_onion_compares_services() {
        for (a, b, expected) in [
            ("a.onion", "A.onion.", true),
            ("a.onion", "www.a.onion..", true),
            ("www.a.onion", "a.b.a.onion", true),
            ("a.onion", "b.onion", false),
            ("a.onion", "ba.onion", false),
            ("a.onion.example", "a.onion.example", false),
            ("onion", "onion", false),
            (".onion", ".onion", false),
        ] {
            assert_eq!(is_same_onion(a, b), expected, "{a} {b}");
            assert_eq!(is_same_onion(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn is_onion_ignores_case_and_root() {
        for (host, expected) in [
            ("a.onion", true),
            ("www.A.ONION.", true),
            ("a.onion..", true),
            ("onion", true),
            ("onion.", true),
            ("a.onion.example", false),
            ("aonion", false),
            ("", false),
        ] {
            assert_eq!(is_onion(host), expected, "{host}");
        }
    }
}
