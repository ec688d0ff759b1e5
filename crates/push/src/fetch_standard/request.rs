//! The request that a browser will make for a resource of a page.

use std::borrow::Cow;

use tandem_http::{Fields, RequestHead, Scheme};
use tandem_preload::{Kind, Need, Referrer, split};

use super::content_security::kind_of;
use super::metadata::{Metadata, has_metadata, site_between};
use super::referrer::referrer;
use super::script_fields::ScriptFields;
use super::{is_framed, is_navigation};
use crate::browser_fields::{INHERITED_FIELDS, REQUESTED_WITH, XML_HTTP_REQUEST};
use crate::cookies::{CookieChanges, cookies_of};
use crate::site::{host_of, is_loopback, is_same_site};

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
    /// The cookies of `request` that not all other requests to its site carry.
    pub known_paths: Option<&'a CookieChanges>,
    /// The changes of the response to the cookies of later requests.
    pub cookies: Option<&'a CookieChanges>,
    /// The `Accept` of the browser's earlier requests for images, if any is known.
    pub image_accept: Option<&'a [u8]>,
    /// The referrer policy of the document.
    pub policy: Referrer,
    /// The metadata of the request that was redirected to the need, if it was one.
    pub(crate) redirected: Option<Metadata>,
    /// True if the needs are documents whose links the user may follow.
    pub(crate) leads_on: bool,
}

/// Returns the request that a browser will make for `need`; `None` if the URL cannot be fetched.
/// `script`: a script makes the request, with these fields.
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
    if !same_origin && need.anonymous {
        // Fetch standard, section 3.1, "append a request `Origin` header", for the mode `cors`.
        fields.push("origin", format!("{document_scheme}://{document_host}"));
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
    let request = page.request;
    let requested = format!("{}://{}/", request.scheme.as_str(), request.authority);
    let document = match &need.frame {
        Some(frame) => frame,
        // The page is the frame itself, and not the document that has caused its request.
        None if is_framed(request) => &*requested,
        None => page.document,
    };
    let site = site_between(document, &need.url)?;
    // The referrer of a part may be another part. The browser's own request then contradicts it.
    let own_site = request.fields.get("sec-fetch-site");
    let is_document_known = need.frame.is_some()
        || is_framed(request)
        || is_navigation(request)
        || own_site == Some(b"none")
        || site_between(document, &requested).map(str::as_bytes) == own_site;
    // The learned referrer of a need may be a style sheet of the document, or a frame. If its path
    // does not tell, the relation to the need must be the same.
    let is_source_known = need.via.as_deref().is_none_or(|via| {
        let is_part = matches!(kind_of(via), Kind::Style | Kind::Script);
        is_part || site_between(via, &need.url) == Some(site)
    });
    if !is_document_known || !is_source_known {
        return None;
    }
    match page.leads_on {
        true => Some(Metadata::of_link(site)),
        false => Metadata::of_need(need, site),
    }
}

/// Returns whether scheme and authority are those of the page's own request.
pub(crate) fn is_own_origin(request: &RequestHead, scheme: &str, authority: &str) -> bool {
    scheme == request.scheme.as_str() && authority.eq_ignore_ascii_case(&request.authority)
}

/// Returns the `Cookie` field of a request; empty if it has none. Cookies of another origin of the
/// site are those that the page sets, if the browser had none before. Behind a redirect to another
/// site there are none.
fn cookies<'a>(need: &Need, page: &FetchClient<'a>, same_origin: bool) -> Cow<'a, [u8]> {
    let Some((scheme, authority, path)) = split(&need.url) else {
        return Cow::default();
    };
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
    let agent = page.fields.get("user-agent").unwrap_or_default();
    let is = |name: &[u8]| agent.windows(name.len()).any(|part| part == name);
    if let (Kind::Image, Some(known)) = (kind, for_images) {
        return known;
    }
    match kind {
        Kind::Document => page.fields.get("accept").unwrap_or(b"*/*"),
        Kind::Style => b"text/css,*/*;q=0.1",
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const CHROME: &str = "Mozilla/5.0 Chrome/140.0.0.0 Safari/537.36";
    const FIREFOX: &str = "Mozilla/5.0 (X11; rv:128.0) Gecko/20100101 Firefox/128.0";

    fn need(url: &str, kind: Kind) -> Need {
        Need {
            url: url.to_owned(),
            kind,
            urgency: 3,
            anonymous: false,
            by_cors: false,
            referrer: None,
            via: None,
            frame: None,
            has_nonce: false,
        }
    }

    fn browser_request(url: &str, agent: &str) -> RequestHead {
        let (scheme, authority, path) = split(url).unwrap();
        RequestHead {
            fields: Fields::from_iter([
                ("user-agent", agent),
                ("accept", "text/html,*/*;q=0.8"),
                ("accept-encoding", "gzip"),
                ("accept-language", "en"),
                ("cookie", "a=b"),
                ("dnt", "1"),
                ("sec-gpc", "1"),
                ("save-data", "on"),
                ("cache-control", "max-age=0"),
            ]),
            ..RequestHead::get(Scheme::parse(scheme.as_bytes()).unwrap(), authority, path)
        }
    }

    fn request(need: &Need, document: &str, is_part: bool) -> RequestHead {
        let request = browser_request("http://a/page", CHROME);
        let page = FetchClient {
            request: &request,
            document,
            is_part,
            known_paths: None,
            cookies: None,
            image_accept: None,
            policy: Referrer::default(),
            redirected: None,
            leads_on: false,
        };
        request_for(need, &page, None).unwrap()
    }

    fn text<'a>(request: &'a RequestHead, name: &str) -> Option<&'a str> {
        let value = request.fields.get(name)?;
        Some(std::str::from_utf8(value).unwrap())
    }

    #[test]
    fn request_inherits_what_browsers_repeat() {
        let made = request(&need("http://a/x.js", Kind::Script), "http://a/page", false);
        assert_eq!(
            (made.authority.as_str(), made.path.as_str()),
            ("a", "/x.js")
        );
        let names: Vec<_> = made
            .fields
            .iter()
            .map(|field| String::from_utf8_lossy(field.name).into_owned())
            .collect();
        let expected = [
            "user-agent",
            "accept-encoding",
            "accept-language",
            "dnt",
            "sec-gpc",
            "save-data",
            "cookie",
            "accept",
            "referer",
        ];
        assert_eq!(names, expected);
        assert_eq!(text(&made, "referer"), Some("http://a/page"));
    }

    #[test]
    fn request_to_another_origin_has_no_cookie() {
        for url in ["http://b/x.js", "http://a:81/x.js"] {
            let made = request(&need(url, Kind::Script), "http://a/page", false);
            assert_eq!(text(&made, "cookie"), None, "{url}");
            assert_eq!(text(&made, "referer"), Some("http://a/"), "{url}");
            assert_eq!(text(&made, "origin"), None, "{url}");
        }
    }

    #[test]
    fn request_of_a_foreign_document_has_no_cookie() {
        let image = need("http://a/x.png", Kind::Image);
        let made = request(&image, "http://b/page", false);
        assert_eq!(text(&made, "cookie"), None, "behind a redirect");
        let mut framed = image.clone();
        framed.frame = Some(Arc::from("http://b/frame"));
        for is_part in [false, true] {
            let made = request(&framed, "http://a/page", is_part);
            assert_eq!(text(&made, "cookie"), None, "in a frame");
            assert_eq!(text(&made, "referer"), Some("http://b/"));
        }
    }

    #[test]
    fn request_has_the_cookies_that_the_page_sets() {
        let mut head = tandem_http::ResponseHead::new(200);
        head.fields.push("set-cookie", "id=1; Domain=a.test");
        let cookie_of = |document: &str, url: &str, is_anonymous: bool, before: Option<&str>| {
            let mut request = browser_request("http://www.a.test/page", CHROME);
            request.fields.remove("cookie");
            if let Some(before) = before {
                request.fields.push("cookie", before);
            }
            let changes = CookieChanges::of(&request, &head, 0).unwrap();
            let page = FetchClient {
                request: &request,
                document,
                is_part: false,
                known_paths: None,
                cookies: Some(&changes),
                image_accept: None,
                policy: Referrer::default(),
                redirected: None,
                leads_on: false,
            };
            let mut need = need(url, Kind::Image);
            need.anonymous = is_anonymous;
            let made = request_for(&need, &page, None).unwrap();
            text(&made, "cookie").map(str::to_owned)
        };
        for (url, is_anonymous, before, expected) in [
            ("http://www.a.test/x", false, None, Some("id=1")),
            ("http://www.a.test/x", true, None, Some("id=1")),
            ("http://www.a.test/x", false, Some("b=2"), Some("b=2; id=1")),
            ("http://img.a.test/x", false, None, Some("id=1")),
            ("http://img.a.test/x", true, None, None),
            // The cookies of the other host are unknown.
            ("http://img.a.test/x", false, Some("b=2"), None),
            ("http://b.test/x", false, None, None),
        ] {
            let made = cookie_of("http://www.a.test/page", url, is_anonymous, before);
            assert_eq!(made.as_deref(), expected, "{url} {before:?}");
        }
        // The page is a redirect.
        let image = "http://img.a.test/x";
        for (document, expected) in [("http://a.test/", Some("id=1")), ("http://b.test/", None)] {
            let made = cookie_of(document, image, false, None);
            assert_eq!(made.as_deref(), expected, "{document}");
        }
    }

    #[test]
    fn request_of_a_style_sheet_has_its_cookie() {
        let mut image = need("http://a/x.png", Kind::Image);
        image.via = Some(Arc::from("http://a/s.css"));
        let made = request(&image, "http://b/page", true);
        assert_eq!(text(&made, "cookie"), Some("a=b"));
        assert_eq!(text(&made, "referer"), Some("http://a/s.css"));
        let mut font = image.clone();
        (font.kind, font.anonymous) = (Kind::Font, true);
        let made = request(&font, "http://b/page", true);
        assert_eq!(text(&made, "cookie"), None, "fonts are anonymous");
        assert_eq!(text(&made, "origin"), Some("http://b"));
    }

    #[test]
    fn request_by_cors_names_the_origin() {
        let mut font = need("http://b/x.woff2", Kind::Font);
        font.anonymous = true;
        let made = request(&font, "http://a/page", false);
        assert_eq!(text(&made, "origin"), Some("http://a"));
        font.url = "http://a/x.woff2".to_owned();
        let made = request(&font, "http://a/page", false);
        assert_eq!(text(&made, "origin"), None, "same origin");
        assert_eq!(text(&made, "cookie"), Some("a=b"));
    }

    #[test]
    fn request_follows_the_policy_of_its_element() {
        let mut image = need("http://b/x.png", Kind::Image);
        image.referrer = Some(Referrer::None);
        let made = request(&image, "http://a/page", false);
        assert_eq!(text(&made, "referer"), None);
        image.referrer = Some(Referrer::Whole);
        let made = request(&image, "http://a/page", false);
        assert_eq!(text(&made, "referer"), Some("http://a/page"));
    }

    #[test]
    fn accept_depends_on_destination_and_browser() {
        let of = |kind, agent| {
            let page = browser_request("http://a/", agent);
            String::from_utf8_lossy(accept(kind, &page, None)).into_owned()
        };
        assert_eq!(of(Kind::Document, CHROME), "text/html,*/*;q=0.8");
        assert_eq!(of(Kind::Style, FIREFOX), "text/css,*/*;q=0.1");
        assert!(of(Kind::Image, CHROME).contains("image/apng"));
        assert!(of(Kind::Image, FIREFOX).contains("image/png,"));
        assert!(of(Kind::Font, FIREFOX).starts_with("application/font-woff2"));
        for (kind, agent) in [
            (Kind::Image, "curl/8"),
            (Kind::Font, CHROME),
            (Kind::Script, CHROME),
            (Kind::Other, FIREFOX),
        ] {
            assert_eq!(of(kind, agent), "*/*", "{kind:?} {agent}");
        }
        let bare = RequestHead::get(Scheme::Http, "a", "/");
        assert_eq!(accept(Kind::Document, &bare, None), b"*/*");
        let known = Some(&b"image/webp"[..]);
        assert_eq!(accept(Kind::Image, &bare, known), b"image/webp");
        assert_eq!(accept(Kind::Font, &bare, known), b"*/*");
    }

    #[test]
    fn request_keeps_the_authority_of_the_page() {
        let page_request = browser_request("http://A.test/page", CHROME);
        let page = FetchClient {
            request: &page_request,
            document: "http://a.test/page",
            is_part: false,
            known_paths: None,
            cookies: None,
            image_accept: None,
            policy: Referrer::default(),
            redirected: None,
            leads_on: false,
        };
        let of = |url: &str| {
            request_for(&need(url, Kind::Image), &page, None)
                .unwrap()
                .authority
        };
        assert_eq!(of("http://a.test/x"), "A.test");
        assert_eq!(of("https://a.test/x"), "a.test");
        assert!(request_for(&need("mailto:a", Kind::Image), &page, None).is_none());
    }

    /// Returns the metadata of a request by a page whose own request for `url` has `own` ones.
    fn metadata_of(need: &Need, url: &str, document: &str, own: &str) -> Option<String> {
        let mut request = browser_request(url, CHROME);
        if let Some(own) = Metadata::parse(own.as_bytes()) {
            own.add_to(&mut request.fields);
        }
        let page = FetchClient {
            request: &request,
            document,
            is_part: url != document,
            known_paths: None,
            cookies: None,
            image_accept: None,
            policy: Referrer::default(),
            redirected: None,
            leads_on: false,
        };
        let made = request_for(need, &page, None)?;
        let metadata = Metadata::of(&made.fields).map(Metadata::encode);
        assert_eq!(metadata.is_some(), has_metadata(&made.fields));
        Some(metadata.unwrap_or_default())
    }

    #[test]
    fn metadata_are_sent_if_the_page_had_them() {
        const LINK: &str = "document navigate none ?1";
        let of = |page: &str, url: &str, own| metadata_of(&need(url, Kind::Image), page, page, own);
        for (page, url, site) in [
            ("https://www.a.test/", "https://www.a.test/x", "same-origin"),
            ("https://www.a.test/", "https://i.a.test/x", "same-site"),
            ("https://www.a.test/", "https://b.test/x", "cross-site"),
            ("http://localhost/", "http://localhost/x", "same-origin"),
            ("http://localhost/", "http://127.0.0.1:81/x", "cross-site"),
            ("http://a.onion/", "http://b.onion/x", "cross-site"),
        ] {
            let expected = format!("image no-cors {site}");
            assert_eq!(of(page, url, LINK), Some(expected), "{page} {url}");
            assert_eq!(of(page, url, ""), Some(String::new()), "{page} {url}");
        }
        // Browsers trust neither host.
        for url in ["http://b.test/x", "http://b.onion/x"] {
            assert_eq!(of("http://localhost/", url, LINK), Some(String::new()));
        }
        let object = need("https://a.test/x", Kind::Object);
        let sent = |own| metadata_of(&object, "https://a.test/", "https://a.test/", own);
        assert_eq!((sent(LINK), sent("")), (None, Some(String::new())));
    }

    #[test]
    fn site_is_that_of_the_document_if_it_is_known() {
        let page = "https://a.test/page";
        let sheet = "https://cdn.test/s.css";
        let of = |url: &str, via: Option<&str>, own_url: &str, document: &str, own| {
            let mut need = need(url, Kind::Image);
            need.via = via.map(Arc::from);
            let text = metadata_of(&need, own_url, document, own)?;
            Some(text.rsplit(' ').next().unwrap().to_owned())
        };
        let image = "https://cdn.test/x";
        let cross = Some("cross-site".to_owned());
        let link = "document navigate none ?1";
        assert_eq!(of(image, Some(sheet), page, page, link), cross);
        // A frame may be the learned source.
        assert_eq!(
            of(image, Some("https://cdn.test/f"), page, page, link),
            None
        );
        let style = |own| of(image, Some(sheet), sheet, page, own);
        assert_eq!(style("style no-cors cross-site"), cross);
        // The document is another one than the referrer of the style sheet.
        assert_eq!(style("style no-cors same-origin"), None);
        let frame = "https://b.test/frame";
        let own = Some("same-origin".to_owned());
        let framed = "iframe navigate cross-site";
        assert_eq!(of("https://b.test/x", None, frame, page, framed), own);
        let mut inner = need("https://b.test/x", Kind::Image);
        inner.frame = Some(frame.into());
        let inner = metadata_of(&inner, page, page, link);
        assert_eq!(inner.as_deref(), Some("image no-cors same-origin"));
    }

    #[test]
    fn request_of_a_script_has_its_fields() {
        let asked = |accept, url: &str, cookie: Option<&str>| {
            let fields = [("accept", accept), (REQUESTED_WITH, "XMLHttpRequest")];
            let (_, authority, path) = split(url).unwrap();
            let script = ScriptFields::of(&RequestHead {
                fields: fields.into_iter().collect(),
                ..RequestHead::get(Scheme::Http, authority, path)
            });
            let mut request = browser_request("http://a/page", CHROME);
            request.fields.remove("cookie");
            if let Some(cookie) = cookie {
                request.fields.push("cookie", cookie);
            }
            let page = FetchClient {
                request: &request,
                document: "http://a/page",
                is_part: false,
                known_paths: None,
                cookies: None,
                image_accept: None,
                policy: Referrer::default(),
                redirected: None,
                leads_on: false,
            };
            request_for(&need(url, Kind::Fetch), &page, script.as_ref())
        };
        let made = asked("application/json", "http://a/x", None).unwrap();
        assert_eq!(text(&made, "accept"), Some("application/json"));
        assert_eq!(text(&made, REQUESTED_WITH), Some("XMLHttpRequest"));
        assert_eq!(asked("application/json", "http://a/x", Some("id=1")), None);
        let foreign = asked("application/json", "http://b/x", Some("id=1")).unwrap();
        assert_eq!(text(&foreign, "accept"), Some("application/json"));
        assert_eq!(text(&foreign, REQUESTED_WITH), None);
    }
}
