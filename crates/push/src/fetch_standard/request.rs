//! The request that a browser will make for a resource of a page.

use std::borrow::Cow;

use tandem_http::{Fields, RequestHead, Scheme};
use tandem_preload::{Kind, Need, Referrer, split};

use super::content_security::kind_of;
use super::metadata::{CROSS_SITE, Metadata, has_metadata, site_between};
use super::referrer::referrer;
use super::script_fields::ScriptFields;
use super::{is_navigation, is_nested};
use crate::browser_fields::{INHERITED_FIELDS, REQUESTED_WITH, XML_HTTP_REQUEST, is_by};
use crate::cookies::{CookieChanges, cookies_of};
use crate::site::{host_of, is_loopback, is_same_site};

/// The field with which browsers request documents (Upgrade Insecure Requests, section 3.2.1).
const UPGRADE: &str = "upgrade-insecure-requests";

/// The page that fetches resources, as far as requests depend on it: the "client" of the requests
/// in terms of the Fetch standard.
#[derive(Clone, Copy, Debug)]
pub struct FetchClient<'a> {
    /// The browser's own request: for the document, or for a style sheet or script of it.
    pub request: &'a RequestHead,
    /// The URL of the document after all known redirects.
    pub document: &'a str,
    /// True if `request` was made for a part of the document, and not for the document itself.
    pub is_part: bool,
    /// The cookies of `request` whose paths are known, and which other requests to its site may
    /// lack.
    pub known_paths: Option<&'a CookieChanges>,
    /// The changes of the response to the cookies of later requests.
    pub cookies: Option<&'a CookieChanges>,
    /// The `Accept` of the browser's earlier requests for images, if any is known.
    pub image_accept: Option<&'a [u8]>,
    /// The referrer policy of the document.
    pub policy: Referrer,
    /// True if requests of the need's document to other origins without CORS have no cookies.
    pub is_credentialless: bool,
    /// The metadata of the request that was redirected to the need, if it was one.
    pub(crate) redirected: Option<Metadata>,
    /// True if the needs are documents that may follow the page, by links that the user may choose.
    pub(crate) leads_on: bool,
}

/// Returns the request that a browser will make for `need`; `None` if the URL cannot be fetched. If
/// a script makes the request, `script` holds the fields that it chose.
pub fn request_for(
    need: &Need,
    page: &FetchClient<'_>,
    script: Option<&ScriptFields>,
) -> Option<RequestHead> {
    let (scheme, authority, path) = split(&need.url)?;
    let document = need.frame.as_deref().unwrap_or(page.document);
    let (document_scheme, document_host, _) = split(document)?;
    let same_origin = scheme == document_scheme && authority.eq_ignore_ascii_case(document_host);
    let own = is_own_origin(page.request, scheme, authority);
    let cookies = cookies(need, page, same_origin);
    let mut fields: Fields = page
        .request
        .fields
        .iter()
        .filter(|field| {
            INHERITED_FIELDS
                .iter()
                .any(|name| name.as_bytes() == field.name)
        })
        .map(|field| (field.name, field.value))
        .collect();
    if need.kind == Kind::Document
        && let Some(value) = page.request.fields.get(UPGRADE)
    {
        fields.push(UPGRADE, value);
    }
    if !cookies.is_empty() {
        fields.push("cookie", cookies);
    }
    match script {
        Some(script) => fields.push("accept", script.accept()),
        None => fields.push("accept", accept(need.kind, page.request, page.image_accept)),
    }
    // A request to another origin with this field is preceded by a preflight, which the gateway
    // does not send.
    if same_origin && script.is_some_and(ScriptFields::is_xml_http_request) {
        // Servers take the mark beside cookies for a sign that the user's own script asks.
        if fields.contains("cookie") {
            return None;
        }
        fields.push(REQUESTED_WITH, XML_HTTP_REQUEST);
    }
    let is_cors = need.by_cors || need.anonymous;
    if is_cors && (!same_origin || names_own_origin(need, page.request)) {
        // Fetch standard, section 3.1, "append a request `Origin` header", for the mode `cors`,
        // with credentials or without.
        fields.push("origin", format!("{document_scheme}://{document_host}"));
    }
    if need.by_cors && is_nested(page.request) {
        // The origin of a sandboxed document is `null`.
        return None;
    }
    // The referrer of a request by a style sheet or module is that sheet or module (Fetch standard,
    // "fetch a CSS style resource"; HTML standard, "fetch the descendants of a module script").
    let source = need.via.as_deref().unwrap_or(document);
    let policy = need.referrer.unwrap_or(page.policy);
    if let Some(referrer) = referrer(policy, source, &need.url) {
        fields.push("referer", referrer);
    }
    if has_metadata(&page.request.fields) && gets_metadata(page.request, scheme, authority) {
        let metadata = page.redirected.or_else(|| metadata(need, page));
        metadata?.add_to(&mut fields);
    }
    let authority = if own {
        page.request.authority.clone()
    } else {
        authority.to_owned()
    };
    Some(RequestHead {
        fields,
        ..RequestHead::get(Scheme::parse(scheme.as_bytes())?, authority, path)
    })
}

/// Returns whether the browser names the origin of the document in a request to the same origin by
/// CORS. The standard leaves `Origin` out. Chromium sends it with the requests of elements and
/// style sheets, and not with those of `fetch` and `XMLHttpRequest`. Firefox never does.
fn names_own_origin(need: &Need, page: &RequestHead) -> bool {
    let is_of_element = matches!(
        need.kind,
        Kind::Style | Kind::Script | Kind::Image | Kind::Font
    );
    is_of_element && is_by(page, b"Chrome/")
}

/// Returns whether a browser sends metadata with a request to an origin: whether its URL is
/// potentially trustworthy (Secure Contexts, section 3.1). The page's own request had metadata.
fn gets_metadata(page: &RequestHead, scheme: &str, authority: &str) -> bool {
    // Tor Browser trusts onion services.
    let is_onion = |authority| host_of(authority).ends_with(".onion");
    is_own_origin(page, scheme, authority)
        || scheme == "https"
        || is_loopback(host_of(authority))
        || (is_onion(&page.authority) && is_onion(authority))
}

/// Returns the metadata of the request for a need; `None` if they are unknown.
fn metadata(need: &Need, page: &FetchClient<'_>) -> Option<Metadata> {
    let site = match style_sheet(need, page.request) {
        Some(sheet) if is_by(page.request, b"Firefox/") => site_in_firefox(need, page, sheet),
        _ => site_to_document(need, page),
    }?;
    // A sandboxed document is another site for all resources, whose requests have no cookies with
    // `SameSite`.
    if is_nested(page.request) && site != CROSS_SITE {
        return None;
    }
    match page.leads_on {
        true => Some(Metadata::of_link(site)),
        false => Metadata::of_need(need, site, is_nested(page.request)),
    }
}

/// Returns the URL of the style sheet that makes the request for a need, if that surely is one.
fn style_sheet<'a>(need: &'a Need, request: &RequestHead) -> Option<&'a str> {
    let via = need.via.as_deref()?;
    let is_requested = split(via).is_some_and(|(scheme, authority, path)| {
        is_own_origin(request, scheme, authority) && path == request.path
    });
    let is_own = is_requested && request.fields.get("sec-fetch-dest") == Some(b"style");
    (is_own || kind_of(via) == Kind::Style).then_some(via)
}

/// Returns the relation of a need of a style sheet to its client in Firefox. That is the sheet for
/// images and `@import`. For other resources, such as fonts, it is the sheet or the document, so
/// both must have the same relation.
fn site_in_firefox(need: &Need, page: &FetchClient<'_>, sheet: &str) -> Option<&'static str> {
    let by_sheet = site_between(sheet, &need.url)?;
    let is_of_sheet = matches!(need.kind, Kind::Image | Kind::Style);
    (is_of_sheet || site_to_document(need, page) == Some(by_sheet)).then_some(by_sheet)
}

/// Returns the relation of a need to its document; `None` if the document is unknown.
fn site_to_document(need: &Need, page: &FetchClient<'_>) -> Option<&'static str> {
    let request = page.request;
    let requested = format!("{}://{}/", request.scheme.as_str(), request.authority);
    let document = need.frame.as_deref().unwrap_or(page.document);
    let site = site_between(document, &need.url)?;
    // The referrer of a part may be another part. The browser's own request then contradicts it.
    let own_site = request.fields.get("sec-fetch-site");
    let is_document_known = need.frame.is_some()
        || is_nested(request)
        || is_navigation(request)
        || own_site == Some(b"none")
        || site_between(document, &requested).map(str::as_bytes) == own_site;
    // The learned referrer of a need may be a style sheet of the document, or a frame. If its path
    // does not tell, the relation to the need must be the same.
    let is_source_known = need.via.as_deref().is_none_or(|via| {
        let is_part = matches!(kind_of(via), Kind::Style | Kind::Script);
        is_part || site_between(via, &need.url) == Some(site)
    });
    // The referrer of a foreign style sheet or script may be another foreign one, whose resources
    // are not those of the document.
    let is_foreign_part = page.is_part && own_site == Some(CROSS_SITE.as_bytes());
    let is_certain = !is_foreign_part || site == CROSS_SITE;
    (is_document_known && is_source_known && is_certain).then_some(site)
}

/// Returns whether scheme and authority are those of the page's own request.
pub(crate) fn is_own_origin(request: &RequestHead, scheme: &str, authority: &str) -> bool {
    scheme == request.scheme.as_str() && authority.eq_ignore_ascii_case(&request.authority)
}

/// Returns the `Cookie` field of a request; empty if it has none. A request to another origin of
/// the site carries the cookies that the page sets, if the browser had none before. Behind a
/// redirect to another site it carries none, and neither does one to another origin without CORS if
/// the document is `credentialless`.
fn cookies<'a>(need: &Need, page: &FetchClient<'a>, same_origin: bool) -> Cow<'a, [u8]> {
    let Some((scheme, authority, path)) = split(&need.url) else {
        return Cow::default();
    };
    if page.is_credentialless && !same_origin && !need.by_cors && !is_navigated(need.kind) {
        return Cow::default();
    }
    let before = cookies_of(&page.request.fields);
    let own = is_own_origin(page.request, scheme, authority);
    let has_cookies = match own {
        true => has_credentials(need, page, same_origin),
        false => {
            let is_of_page = need.frame.is_none() && !page.is_part && !need.anonymous;
            let is_of_site = |host: &str| is_same_site(host, authority);
            is_of_page
                && before.is_empty()
                && is_of_site(&page.request.authority)
                && split(page.document).is_some_and(|(_, host, _)| is_of_site(host))
        }
    };
    if !has_cookies {
        return Cow::default();
    }
    let changes = [page.known_paths, page.cookies].into_iter().flatten();
    changes.fold(before, |before, changes| {
        changes.after(&before, scheme, authority, path).into()
    })
}

/// Returns whether requests for resources of this kind are navigations.
const fn is_navigated(kind: Kind) -> bool {
    matches!(kind, Kind::Document | Kind::Object)
}

/// Returns whether a request to the origin that received the page's cookies carries them as well
/// (Fetch standard, section 2.2.5, "credentials mode"). Requests of a document of another origin
/// (in a frame, or behind a redirect) carry none, because `SameSite` may forbid them. If the
/// request for a style sheet carried cookies, those for its images do too.
fn has_credentials(need: &Need, page: &FetchClient<'_>, same_origin: bool) -> bool {
    same_origin || (page.is_part && need.frame.is_none() && !need.anonymous)
}

/// Returns the value of `Accept` by destination, as far as responses may differ by it (Fetch
/// standard, section 4.1, "main fetch"). The values of images and fonts are those of the browser in
/// `User-Agent`, unless the browser has shown its value for images.
fn accept<'a>(kind: Kind, page: &'a RequestHead, for_images: Option<&'a [u8]>) -> &'a [u8] {
    let is = |name| is_by(page, name);
    if let (Kind::Image, Some(known)) = (kind, for_images) {
        return known;
    }
    match kind {
        Kind::Document => page.fields.get("accept").unwrap_or(b"*/*"),
        Kind::Style => b"text/css,*/*;q=0.1",
        Kind::Image if is(b"Chrome/") && has_jpeg_xl(page) => {
            b"image/jxl,image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"
        }
        Kind::Image if is(b"Chrome/") => {
            b"image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"
        }
        Kind::Image if is(b"Firefox/") => {
            b"image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5"
        }
        Kind::Font if is(b"Firefox/") => {
            b"application/font-woff2;q=1.0,application/font-woff;q=0.9,*/*;q=0.8"
        }
        _ => b"*/*",
    }
}

/// Returns whether the Chromium that has sent a request accepts JPEG XL, as its request for a
/// document says. A push without the format is refused, but one with it could not be shown.
fn has_jpeg_xl(page: &RequestHead) -> bool {
    let accept = page.fields.get("accept").unwrap_or_default();
    accept.windows(9).any(|it| it == b"image/jxl")
}

#[cfg(test)]
mod tests;
