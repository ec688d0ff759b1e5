//! The `Referer` of requests (Referrer Policy standard).

use std::sync::Arc;

use tandem_http::{RequestHead, ResponseHead, Scheme};
use tandem_preload::{Referrer, split};

use crate::site::{host_of, is_loopback, may_be_trusted};

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

/// The referrer of the request that follows a redirect: the source, if there is one, and the policy
/// (see [`referrer`]).
pub(crate) type RedirectReferrer = (Option<Arc<str>>, Referrer);

/// Returns the referrer of the request for the target of a redirect within one origin. A response
/// with this head has redirected `request`. The browser repeats the `Referer` of that request, cut
/// to the policy that the head names (Fetch standard, section 4.4, "HTTP-redirect fetch"). Without
/// one, the policy stays the same, and so does its result for the same origin. Returns `None` if
/// the referrer is unknown.
pub(crate) fn referrer_after_redirect(
    request: &RequestHead,
    head: &ResponseHead,
) -> Option<RedirectReferrer> {
    let mut values = request.fields.get_all("referer");
    let Some(value) = values.next() else {
        return Some((None, Referrer::None));
    };
    let source = std::str::from_utf8(value).ok()?;
    let (scheme, authority, _) = split(source)?;
    let policy = referrer_policy(head);
    // `Referrer` does not distinguish the policies that differ in requests to less secure origins.
    let is_downgrade = request.scheme == Scheme::Http
        && (scheme == "https" || may_be_trusted(host_of(authority)))
        && !is_loopback(host_of(&request.authority))
        && !(scheme == "http" && authority.eq_ignore_ascii_case(&request.authority));
    let is_known = values.next().is_none() && !(is_downgrade && policy.is_some());
    is_known.then(|| (Some(source.into()), policy.unwrap_or(Referrer::Whole)))
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
    fn redirect_repeats_the_referrer_of_its_request() {
        let of = |host: &str, named: &str, policy: Option<&str>| {
            let request = RequestHead {
                fields: [("referer", named)].into_iter().collect(),
                ..RequestHead::get(Scheme::Http, host, "/old")
            };
            let mut head = ResponseHead::new(302);
            if let Some(policy) = policy {
                head.fields.push("referrer-policy", policy);
            }
            let (source, policy) = referrer_after_redirect(&request, &head)?;
            Some(referrer(policy, &source?, &format!("http://{host}/new")))
        };
        let whole = |url: &str| Some(Some(url.to_owned()));
        for (named, policy, expected) in [
            ("http://a/b?c", None, whole("http://a/b?c")),
            ("http://b/c", None, whole("http://b/c")),
            ("http://b/", None, whole("http://b/")),
            ("https://b/c", None, whole("https://b/c")),
            ("http://a/b", Some("nonsense"), whole("http://a/b")),
            ("http://a/b", Some("origin"), whole("http://a/")),
            ("http://a/b", Some("no-referrer"), Some(None)),
            ("http://b/c", Some("same-origin"), Some(None)),
            (
                "http://b/c",
                Some("strict-origin-when-cross-origin"),
                whole("http://b/"),
            ),
            ("http://b/", Some("unsafe-url"), whole("http://b/")),
            // The policies differ in what they tell a less secure origin.
            ("https://b/c", Some("origin"), None),
            ("http://b.onion/c", Some("origin"), None),
            ("http://localhost:8080/c", Some("unsafe-url"), None),
            // These are no URLs of pages.
            ("android-app://b/", None, None),
            ("about:blank", None, None),
        ] {
            assert_eq!(of("a", named, policy), expected, "{named} {policy:?}");
        }
        let local = "http://localhost/b";
        assert_eq!(
            of("localhost", local, Some("origin")),
            whole("http://localhost/")
        );
        let onion = "http://a.onion/b";
        assert_eq!(of("a.onion", onion, Some("unsafe-url")), whole(onion));
    }

    #[test]
    fn redirected_request_without_referrer_leads_to_none() {
        let mut request = RequestHead::get(Scheme::Http, "a", "/old");
        let mut head = ResponseHead::new(302);
        head.fields.push("referrer-policy", "unsafe-url");
        let found = referrer_after_redirect(&request, &head);
        assert_eq!(found, Some((None, Referrer::None)));
        request.fields.push("referer", "http://a/1");
        request.fields.push("referer", "http://a/2");
        assert_eq!(referrer_after_redirect(&request, &head), None);
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
