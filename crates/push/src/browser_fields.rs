//! The fields of requests that browsers set without a script's help.

use tandem_http::RequestHead;

/// The fields that a browser sends alike with a page's request and with the requests that the page
/// causes (Fetch standard, section 4.6, "HTTP-network-or-cache fetch").
pub const INHERITED_FIELDS: [&str; 9] = [
    "user-agent",
    "accept-encoding",
    "accept-language",
    "dnt",
    "sec-gpc",
    "save-data",
    "sec-ch-ua",
    "sec-ch-ua-mobile",
    "sec-ch-ua-platform",
];

/// The client hints without a common beginning of their names.
const OLD_HINTS: [&str; 7] = [
    "device-memory",
    "downlink",
    "dpr",
    "ect",
    "rtt",
    "viewport-width",
    "width",
];

/// Returns whether a field is a client hint that browsers send only to origins that ask for it.
pub(crate) fn is_hint(name: &[u8]) -> bool {
    let is_of = |list: &[&str]| list.iter().any(|it| it.as_bytes() == name);
    (name.starts_with(b"sec-ch-") && !is_of(&INHERITED_FIELDS)) || is_of(&OLD_HINTS)
}

/// The field by which script libraries mark their requests, and its value.
pub(crate) const REQUESTED_WITH: &str = "x-requested-with";
pub(crate) const XML_HTTP_REQUEST: &[u8] = b"XMLHttpRequest";

/// The fields that browsers set themselves, except those with names that begin with `sec-`.
pub(crate) const BROWSER_FIELDS: [&str; 21] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "cookie",
    "dnt",
    "if-modified-since",
    "if-none-match",
    "intervention",
    "origin",
    "pragma",
    "priority",
    "purpose",
    "referer",
    "save-data",
    "te",
    "upgrade-insecure-requests",
    "user-agent",
    "via",
    "x-moz",
];

/// The other fields that the gateway's request for the target of a redirect repeats.
const REPEATED_FIELDS: [&str; 7] = [
    "accept",
    "cookie",
    "referer",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "sec-fetch-user",
];

/// The fields that the request for the target need not repeat. Browsers do not repeat conditions,
/// and of the directives of caches the gateway repeats `max-age=0` (see `Page::repeat_fields`).
/// Responses depend on the others only if `Vary` says so.
const UNREPEATED_FIELDS: [&str; 9] = [
    "cache-control",
    "if-modified-since",
    "if-none-match",
    "pragma",
    "priority",
    "sec-fetch-storage-access",
    "te",
    "upgrade-insecure-requests",
    "via",
];

/// Returns the names of the fields that a request may have so that the gateway can make the one for
/// the target of its redirect. The browser repeats any other field, such as `Origin` or a client
/// hint that the origin has asked for.
pub(crate) fn repeatable_fields() -> impl Iterator<Item = &'static str> {
    let lists = [&INHERITED_FIELDS[..], &REPEATED_FIELDS, &UNREPEATED_FIELDS];
    lists.into_iter().flatten().copied()
}

/// Returns whether `User-Agent` has this part.
pub(crate) fn is_by(request: &RequestHead, part: &[u8]) -> bool {
    let agent = request.fields.get("user-agent").unwrap_or_default();
    agent.windows(part.len()).any(|it| it == part)
}
