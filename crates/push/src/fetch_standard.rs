//! The requests of browsers, as the Fetch standard defines them.
//!
//! This file reads the purpose of a request from its fields. `request` makes the request that a
//! browser will make for a resource, `referrer` its referrer, and `metadata` its `Sec-Fetch-*`
//! fields. `content_security` reads the policies that forbid requests.

mod content_security;
mod metadata;
mod referrer;
mod request;
mod script_fields;

use tandem_http::cache::{RequestPolicy, validation};
use tandem_http::{Fields, RequestHead};
use tandem_preload::split;

pub use crate::browser_fields::INHERITED_FIELDS;
use crate::browser_fields::{
    BROWSER_FIELDS, REQUESTED_WITH, XML_HTTP_REQUEST, is_hint, repeatable_fields,
};
use crate::wire::OPENED_FIELD;
pub(crate) use content_security::{
    ContentSecurity, content_policies, forbids_framing, is_credentialless, permits_base,
    policy_nonce,
};
#[cfg(test)]
pub(crate) use content_security::{MAX_HOSTS, comparisons};
pub(crate) use metadata::{Metadata, has_metadata};
pub(crate) use referrer::referrer_after_redirect;
pub use referrer::{referrer, referrer_policy};
pub(crate) use request::is_own_origin;
pub use request::{FetchClient, request_for};
pub use script_fields::ScriptFields;

/// Returns whether a request navigates to a document. Such a request has the destination
/// `document`, or, if the browser sends no metadata, it prefers HTML and no script library has
/// marked it (Fetch standard, section 4.1, "main fetch").
pub fn is_navigation(request: &RequestHead) -> bool {
    match request.fields.get("sec-fetch-dest") {
        Some(destination) => destination == b"document",
        None => {
            request
                .fields
                .get("accept")
                .is_some_and(|accept| accept.starts_with(b"text/html"))
                && request.fields.get(REQUESTED_WITH) != Some(XML_HTTP_REQUEST)
        }
    }
}

/// Returns whether a browser requests the script of a service worker (Service Workers, section
/// "Update").
pub(crate) fn is_worker_script(request: &RequestHead) -> bool {
    request.fields.get("service-worker") == Some(b"script")
        || request.fields.get("sec-fetch-dest") == Some(b"serviceworker")
}

/// Returns whether a service worker has passed a navigation on, or could have. A request that a
/// worker passes on keeps its mode, and has no destination.
pub(crate) fn is_through_worker(request: &RequestHead) -> bool {
    let field = |name| request.fields.get(name);
    let is_passed_on =
        field("sec-fetch-mode") == Some(b"navigate") && field("sec-fetch-dest") == Some(b"empty");
    is_passed_on || request.fields.contains("service-worker-navigation-preload")
}

/// Returns whether a request surely asks for a document in a frame.
pub(crate) fn is_framed(request: &RequestHead) -> bool {
    let destination = request.fields.get("sec-fetch-dest");
    matches!(destination, Some(b"iframe" | b"frame"))
}

/// Returns whether a request surely asks for a document or object inside another document. It may
/// be sandboxed, by the element or by a document around it, which the request does not show.
pub(crate) fn is_nested(request: &RequestHead) -> bool {
    let destination = request.fields.get("sec-fetch-dest");
    let is_element = matches!(destination, Some(b"object" | b"embed" | b"fencedframe"));
    is_element || is_framed(request)
}

/// Returns whether a request was made by CORS; `None` if its fields do not tell. Without metadata,
/// `Origin` shows the mode of a request for another origin (Fetch standard, section 3.1, "append a
/// request `Origin` header").
pub(crate) fn is_by_cors(request: &RequestHead) -> Option<bool> {
    let fields = &request.fields;
    if let Some(mode) = fields.get("sec-fetch-mode") {
        return match mode {
            b"cors" => Some(true),
            b"no-cors" => Some(false),
            _ => None,
        };
    }
    if let Some(origin) = fields.get("origin") {
        return (origin != b"null").then_some(true);
    }
    let referrer = std::str::from_utf8(fields.get("referer")?).ok()?;
    let (scheme, authority, _) = split(referrer)?;
    (!is_navigation(request) && !is_own_origin(request, scheme, authority)).then_some(false)
}

/// Returns whether a request surely comes from a document with an opaque origin, such as that of a
/// sandboxed frame, or was redirected by another site.
pub(crate) fn has_null_origin(request: &RequestHead) -> bool {
    !is_navigation(request) && !is_nested(request) && request.fields.get("origin") == Some(b"null")
}

/// Returns whether a browser takes a request for one of another site, and its `Referer` names a
/// document, style sheet or script of the URL's own origin. A document has an opaque origin then. A
/// style sheet or script belongs to a document of another site.
pub(crate) fn is_foreign_to_referrer(request: &RequestHead) -> bool {
    if request.fields.get("sec-fetch-site") != Some(b"cross-site") {
        return false;
    }
    let referrer = request.fields.get("referer").map(std::str::from_utf8);
    let parts = referrer.and_then(|it| split(it.ok()?));
    parts.is_some_and(|(scheme, authority, _)| is_own_origin(request, scheme, authority))
        && !is_navigation(request)
        && !is_nested(request)
}

/// Returns whether the browser requests a resource for a page that the user may never open.
pub(crate) fn is_prefetch(request: &RequestHead) -> bool {
    let mut names = ["sec-purpose", "purpose", "x-moz"].into_iter();
    names.any(|name| request.fields.contains(name))
}

/// Returns whether a request comes from a tool such as `curl`, as far as its fields show. Such a
/// request takes any type, and names no page and no purpose. The requests of scripts name the page,
/// unless its policy forbids that.
pub(crate) fn is_of_tool(request: &RequestHead) -> bool {
    let accept = request.fields.get("accept");
    let mut names = ["sec-fetch-dest", "referer", "origin", REQUESTED_WITH].into_iter();
    accept.is_none_or(|accept| accept == b"*/*") && !names.any(|name| request.fields.contains(name))
}

/// Returns whether a request has only fields that browsers set themselves, and the client's list of
/// opened hosts. A response may depend on any field that a script or a tool adds, whatever `Vary`
/// says.
pub fn has_only_browser_fields(fields: &Fields) -> bool {
    fields.iter().all(|field| is_browser_field(field.name))
}

/// Returns whether the gateway can make the request that follows a redirect of a request with these
/// fields.
pub(crate) fn is_repeatable(fields: &Fields) -> bool {
    let may_be = |name: &[u8]| repeatable_fields().any(|it| it.as_bytes() == name);
    let mut fields = fields.iter();
    fields.all(|field| field.name == OPENED_FIELD.as_bytes() || may_be(field.name))
}

/// Returns whether browsers set a field themselves, or the client sets it for the gateway.
pub(crate) fn is_browser_field(name: &[u8]) -> bool {
    name.starts_with(b"sec-")
        || is_hint(name)
        || name == OPENED_FIELD.as_bytes()
        || BROWSER_FIELDS.iter().any(|own| own.as_bytes() == name)
}

/// Returns whether `Accept` selects one of several formats of a resource, as requests of scripts
/// for data do. Firefox names formats of fonts as well, but a font has one format.
pub fn wants_one_format(accept: &[u8]) -> bool {
    let is = |prefix: &[u8]| accept.starts_with(prefix);
    (is(b"application/") && !is(b"application/font-"))
        || (is(b"text/") && !is(b"text/css") && !is(b"text/html"))
}

/// Returns whether a request asks to check or to reload a response. Such a request has a condition,
/// or forbids the use of stored responses (Fetch standard, section 4.6, "HTTP-network-or-cache
/// fetch", on the cache modes `no-cache` and `reload`).
pub fn is_revalidation(request: &RequestHead) -> bool {
    validation::is_conditional(&request.fields)
        || RequestPolicy::of(&request.fields).control.no_cache
}

/// Returns the origin of a request's URL in the form of an `Origin` field (HTML standard,
/// "serialization of an origin").
pub fn target_origin(request: &RequestHead) -> String {
    format!("{}://{}", request.scheme.as_str(), request.authority)
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "h:81", "/")
        }
    }

    #[test]
    fn navigation_is_told_by_destination_then_accept() {
        for fields in [
            &[("sec-fetch-dest", "document"), ("accept", "*/*")][..],
            &[("accept", "text/html,*/*;q=0.8")],
        ] {
            assert!(is_navigation(&request(fields)), "{fields:?}");
        }
        for fields in [
            &[][..],
            &[("accept", "*/*")],
            &[("sec-fetch-dest", "iframe"), ("accept", "text/html")],
            &[
                ("accept", "text/html, */*; q=0.01"),
                (REQUESTED_WITH, "XMLHttpRequest"),
            ],
        ] {
            assert!(!is_navigation(&request(fields)), "{fields:?}");
        }
    }

    #[test]
    fn mode_of_a_request_shows_in_its_fields() {
        let mode = |mode| ("sec-fetch-mode", mode);
        let (far, own) = (("referer", "http://b/"), ("referer", "http://h:81/p"));
        let origin = ("origin", "http://b");
        for (fields, expected) in [
            (&[mode("cors"), own][..], Some(true)),
            (&[mode("no-cors"), far], Some(false)),
            (&[mode("navigate"), far], None),
            (&[origin, far], Some(true)),
            (&[("origin", "null"), far], None),
            (&[far], Some(false)),
            (&[far, ("accept", "text/html")], None),
            (&[own], None),
            (&[], None),
        ] {
            assert_eq!(is_by_cors(&request(fields)), expected, "{fields:?}");
        }
    }

    #[test]
    fn opaque_origin_shows_in_fields() {
        let own = ("referer", "http://h:81/p");
        let site = |site| ("sec-fetch-site", site);
        let frame = ("sec-fetch-dest", "iframe");
        let null = ("origin", "null");
        for (fields, has_null, is_foreign) in [
            (&[null][..], true, false),
            (&[own, site("cross-site")], false, true),
            (&[own, site("same-origin")], false, false),
            (&[own], false, false),
            (
                &[("referer", "http://b/"), site("cross-site")],
                false,
                false,
            ),
            (&[site("cross-site")], false, false),
            (&[own, site("cross-site"), frame], false, false),
            (&[null, ("accept", "text/html")], false, false),
        ] {
            let request = request(fields);
            assert_eq!(has_null_origin(&request), has_null, "{fields:?}");
            assert_eq!(is_foreign_to_referrer(&request), is_foreign, "{fields:?}");
        }
    }

    #[test]
    fn requests_of_tools_show_no_purpose() {
        for fields in [
            &[][..],
            &[("user-agent", "curl/8.5.0"), ("accept", "*/*")],
            &[("user-agent", "Wget/1.21"), ("accept-encoding", "identity")],
            &[("user-agent", "Mozilla/5.0"), ("accept", "*/*")],
        ] {
            assert!(is_of_tool(&request(fields)), "{fields:?}");
        }
        for field in [
            ("accept", "application/json"),
            ("sec-fetch-dest", "empty"),
            ("referer", "http://h/"),
            ("origin", "http://h"),
            (REQUESTED_WITH, "XMLHttpRequest"),
        ] {
            assert!(!is_of_tool(&request(&[field])), "{field:?}");
        }
    }

    #[test]
    fn browser_fields_exclude_those_of_scripts() {
        let all = BROWSER_FIELDS.map(|name| (name, "1"));
        assert!(has_only_browser_fields(&request(&all).fields));
        let metadata = [
            ("sec-fetch-mode", "cors"),
            ("sec-ch-ua", "x"),
            ("device-memory", "8"),
        ];
        assert!(has_only_browser_fields(&request(&metadata).fields));
        for other in ["x-requested-with", "authorization", "range", "xsec-a"] {
            let fields = request(&[("accept", "*/*"), (other, "1")]).fields;
            assert!(!has_only_browser_fields(&fields), "{other}");
        }
    }

    #[test]
    fn one_format_is_wanted_of_data_only() {
        for accept in ["application/json", "text/plain", "application/xml, */*"] {
            assert!(wants_one_format(accept.as_bytes()), "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "image/webp,*/*",
            "text/html,application/xml",
            "text/css,*/*;q=0.1",
            "application/font-woff2;q=1.0,*/*",
        ] {
            assert!(!wants_one_format(accept.as_bytes()), "{accept}");
        }
    }

    #[test]
    fn revalidation_is_condition_or_reload() {
        for fields in [
            ("if-none-match", "\"1\""),
            ("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("cache-control", "no-cache"),
        ] {
            assert!(is_revalidation(&request(&[fields])), "{fields:?}");
        }
        assert!(!is_revalidation(&request(&[(
            "cache-control",
            "max-age=0"
        )])));
        assert!(!is_revalidation(&request(&[])));
    }

    #[test]
    fn target_origin_has_scheme_host_and_port() {
        assert_eq!(target_origin(&request(&[])), "http://h:81");
    }
}
