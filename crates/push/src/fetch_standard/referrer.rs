//! The `Referer` of requests (Referrer Policy standard).

use tandem_http::ResponseHead;
use tandem_preload::{Referrer, split};

/// Returns the policy in a response's head. It is the last known token of all `Referrer-Policy`
/// fields (Referrer Policy, section 8.1, "parse a referrer policy from a `Referrer-Policy`
/// header").
pub fn referrer_policy(head: &ResponseHead) -> Option<Referrer> {
    let values = head.fields.get_all("referrer-policy");
    let words = values
        .flat_map(|value| value.split(|&byte| byte == b','))
        .filter_map(|word| std::str::from_utf8(word).ok());
    words.filter_map(Referrer::parse).last()
}

/// Returns the referrer of a request for `target` (Referrer Policy, section 8.3, "determine
/// request's Referrer"). `source` is the document, style sheet or module that makes the request.
/// Both are normalised URLs without a fragment. The gateway makes no request that goes from TLS to
/// plain text, so policies that differ only in such requests are treated alike.
pub fn referrer(policy: Referrer, source: &str, target: &str) -> Option<String> {
    let (scheme, host, _) = split(source)?;
    let (target_scheme, target_host, _) = split(target)?;
    let same_origin = scheme == target_scheme && host.eq_ignore_ascii_case(target_host);
    let origin = || Some(format!("{scheme}://{host}/"));
    match (policy, same_origin) {
        (Referrer::None, _) | (Referrer::Own, false) => None,
        (Referrer::Origin, _) | (Referrer::OriginToOthers, false) => origin(),
        (Referrer::Whole, _) | (Referrer::Own | Referrer::OriginToOthers, true) => {
            Some(source.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn referrer_depends_on_policy_and_origin() {
        let (url, origin) = (Some("http://a/b?c"), Some("http://a/"));
        for (policy, same_origin, cross_origin) in [
            ("no-referrer", None, None),
            ("same-origin", url, None),
            ("origin", origin, origin),
            ("strict-origin", origin, origin),
            ("origin-when-cross-origin", url, origin),
            ("strict-origin-when-cross-origin", url, origin),
            ("no-referrer-when-downgrade", url, url),
            ("unsafe-url", url, url),
        ] {
            let policy = Referrer::parse(policy).unwrap();
            let to = |target| referrer(policy, "http://a/b?c", target);
            assert_eq!(to("http://A/x").as_deref(), same_origin, "{policy:?}");
            for other in ["http://b/x", "http://a:81/x", "https://a/x"] {
                assert_eq!(to(other).as_deref(), cross_origin, "{policy:?} {other}");
            }
        }
        assert_eq!(referrer(Referrer::Whole, "about:blank", "http://a/"), None);
        assert_eq!(referrer(Referrer::Whole, "http://a/", "about:blank"), None);
    }

    #[test]
    fn referrer_policy_is_the_last_known_token() {
        let of = |values: &[&str]| {
            let mut head = ResponseHead::new(200);
            for value in values {
                head.fields.push("referrer-policy", value);
            }
            referrer_policy(&head)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["unknown"]), None);
        assert_eq!(of(&["no-referrer, nonsense"]), Some(Referrer::None));
        assert_eq!(of(&["no-referrer", "unsafe-url"]), Some(Referrer::Whole));
        assert_eq!(of(&["origin, same-origin"]), Some(Referrer::Own));
    }
}
