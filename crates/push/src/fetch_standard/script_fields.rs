//! The fields that a script chooses for a request of the mode `cors` or `same-origin`: `Accept`
//! (Fetch standard, section 4.1, "main fetch") and the `X-Requested-With` of script libraries.
//!
//! The gateway sends a learned value in the name of other users. So each value is one of a fixed
//! grammar, in which no token, name or number of a user fits.

use std::sync::Arc;

use tandem_http::{Fields, RequestHead};

use super::{is_browser_field, target_origin, wants_one_format};
use crate::browser_fields::{REQUESTED_WITH, XML_HTTP_REQUEST};

/// The length in bytes of the longest learned `Accept`.
const MAX_ACCEPT: usize = 128;

/// The media ranges that a learned `Accept` may list.
const MEDIA_RANGES: [&str; 24] = [
    "*/*",
    "application/*",
    "application/atom+xml",
    "application/ecmascript",
    "application/geo+json",
    "application/graphql-response+json",
    "application/hal+json",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/octet-stream",
    "application/problem+json",
    "application/rss+xml",
    "application/vnd.api+json",
    "application/wasm",
    "application/x-ecmascript",
    "application/x-javascript",
    "application/xhtml+xml",
    "application/xml",
    "text/*",
    "text/html",
    "text/javascript",
    "text/plain",
    "text/xml",
];

/// The fields of a request by which it differs from other requests for data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFields {
    /// The value of `Accept`, unless it is `*/*`.
    accept: Option<Arc<str>>,
    /// `X-Requested-With: XMLHttpRequest` is among the fields.
    is_xml_http_request: bool,
}

impl ScriptFields {
    /// Returns the fields that a script chose for a request. Returns `None` if none did, and for
    /// each field or value that must not be learned.
    pub fn of(request: &RequestHead) -> Option<Self> {
        let fields = &request.fields;
        // Most requests have no such field, and the checks of all their fields cost more.
        if !fields.contains(REQUESTED_WITH) && !fields.get("accept").is_some_and(wants_one_format) {
            return None;
        }
        let is_known = |name| is_browser_field(name) || name == REQUESTED_WITH.as_bytes();
        if !fields.iter().all(|field| is_known(field.name)) || !may_be_of_script(fields) {
            return None;
        }
        let is_xml_http_request = match single(fields, REQUESTED_WITH)? {
            None => false,
            Some(XML_HTTP_REQUEST) if is_same_origin(request) => true,
            Some(_) => return None,
        };
        let accept = single(fields, "accept")?.unwrap_or(b"*/*");
        if !is_xml_http_request && !wants_one_format(accept) {
            return None;
        }
        let accept = std::str::from_utf8(accept).ok().filter(|it| is_plain(it))?;
        Some(Self {
            accept: (accept != "*/*").then(|| Arc::from(accept)),
            is_xml_http_request,
        })
    }

    /// Returns the value of `Accept`.
    pub fn accept(&self) -> &str {
        self.accept.as_deref().unwrap_or("*/*")
    }

    /// Returns whether the request has the field `X-Requested-With: XMLHttpRequest`.
    pub const fn is_xml_http_request(&self) -> bool {
        self.is_xml_http_request
    }
}

/// Returns the value of a field that is there at most once.
fn single<'a>(fields: &'a Fields, name: &'a str) -> Option<Option<&'a [u8]>> {
    let mut values = fields.get_all(name);
    let value = values.next();
    values.next().is_none().then_some(value)
}

/// Returns whether the browser's own fields allow that a script made the request.
fn may_be_of_script(fields: &Fields) -> bool {
    let destination = fields.get("sec-fetch-dest");
    let mode = fields.get("sec-fetch-mode");
    destination.is_none_or(|it| it == b"empty")
        && mode.is_none_or(|it| it == b"cors" || it == b"same-origin")
}

/// Returns whether a page of the target's own origin made the request. Another page would have sent
/// a preflight for the field, and the gateway sends none.
fn is_same_origin(request: &RequestHead) -> bool {
    let origin = request.fields.get("origin");
    let site = request.fields.get("sec-fetch-site");
    origin.is_none_or(|it| it == target_origin(request).as_bytes())
        && site.is_none_or(|it| it == b"same-origin")
}

/// Returns whether a value of `Accept` lists known media ranges, each with a weight at most (RFC
/// 9110 section 12.5.1).
fn is_plain(accept: &str) -> bool {
    let is_known = |range: &str| {
        let mut parts = range.split(';').map(|part| part.trim_matches(' '));
        let media_type = parts.next().unwrap_or_default();
        let weight = parts.next();
        MEDIA_RANGES.contains(&media_type) && weight.is_none_or(is_weight) && parts.next().is_none()
    };
    accept.len() <= MAX_ACCEPT && !accept.contains("  ") && accept.split(',').all(is_known)
}

/// Returns whether a text is a weight of at most two decimals (RFC 9110 section 12.4.2).
fn is_weight(text: &str) -> bool {
    let digits = text.strip_prefix("q=0.").unwrap_or_default();
    text == "q=1" || (1..=2).contains(&digits.len()) && digits.bytes().all(|it| it.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn of(fields: &[(&str, &str)]) -> Option<(String, bool)> {
        let request = RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "a.test", "/data")
        };
        let fields = ScriptFields::of(&request)?;
        Some((fields.accept().to_owned(), fields.is_xml_http_request()))
    }

    #[test]
    fn script_fields_are_those_of_common_libraries() {
        for accept in [
            "application/json",
            "application/json, text/plain, */*",
            "application/json, text/javascript, */*; q=0.01",
            "application/xml, text/xml, */*;q=0.01",
            "text/plain",
        ] {
            let expected = Some((accept.to_owned(), false));
            assert_eq!(of(&[("accept", accept)]), expected);
        }
        let requested_with = ("x-requested-with", "XMLHttpRequest");
        for accept in ["*/*", "text/html, */*; q=0.01"] {
            let expected = Some((accept.to_owned(), true));
            assert_eq!(of(&[("accept", accept), requested_with]), expected);
        }
        assert_eq!(of(&[requested_with]), Some(("*/*".to_owned(), true)));
    }

    #[test]
    fn requests_without_script_choices_have_no_fields() {
        for accept in ["*/*", "text/html,*/*;q=0.8", "image/webp,*/*", "text/css"] {
            assert_eq!(of(&[("accept", accept)]), None, "{accept}");
        }
        assert_eq!(of(&[]), None);
        let json = ("accept", "application/json");
        for (name, value) in [
            ("sec-fetch-dest", "manifest"),
            ("sec-fetch-dest", "document"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-mode", "websocket"),
        ] {
            assert_eq!(of(&[json, (name, value)]), None, "{name}: {value}");
        }
        let metadata = [
            json,
            ("sec-fetch-dest", "empty"),
            ("sec-fetch-mode", "cors"),
        ];
        assert!(of(&metadata).is_some());
    }

    #[test]
    fn values_that_could_name_a_user_are_not_learned() {
        for accept in [
            "application/json; user=17",
            "application/x.user17",
            "application/json;q=0.1234567",
            "application/json;q=0.5;q=0.6",
            "application/json,  text/plain",
            "APPLICATION/JSON",
            "application/json\t",
        ] {
            assert_eq!(of(&[("accept", accept)]), None, "{accept}");
        }
        let long = ["application/json"; 9].join(",");
        assert_eq!(of(&[("accept", &long)]), None);
        let json = ("accept", "application/json");
        assert_eq!(of(&[json, json]), None, "the field is there twice");
        for (name, value) in [
            ("authorization", "Bearer 17"),
            ("x-csrf-token", "17"),
            ("x-requested-with", "com.example.browser"),
            ("range", "bytes=0-"),
        ] {
            assert_eq!(of(&[json, (name, value)]), None, "{name}");
        }
    }

    #[test]
    fn field_with_preflight_is_learned_within_an_origin() {
        let requested_with = ("x-requested-with", "XMLHttpRequest");
        let with = |name, value| of(&[requested_with, (name, value)]);
        assert!(with("origin", "http://a.test").is_some());
        assert_eq!(with("origin", "http://b.test"), None);
        assert_eq!(with("sec-fetch-site", "same-site"), None);
        let json = ("accept", "application/json");
        assert!(of(&[json, ("origin", "http://b.test")]).is_some());
    }
}
