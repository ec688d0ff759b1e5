//! Tests of the requests that browsers make for resources.

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

/// Returns the client of a document's request.
fn client<'a>(request: &'a RequestHead, document: &'a str) -> FetchClient<'a> {
    FetchClient {
        request,
        document,
        is_part: false,
        known_paths: None,
        cookies: None,
        image_accept: None,
        policy: Referrer::default(),
        is_credentialless: false,
        redirected: None,
        leads_on: false,
    }
}

fn request(need: &Need, document: &str, is_part: bool) -> RequestHead {
    let request = browser_request("http://a/page", CHROME);
    let page = FetchClient {
        is_part,
        ..client(&request, document)
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
            cookies: Some(&changes),
            ..client(&request, document)
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
    // The document forbids cookies in requests to other origins, unless CORS permits them.
    for (url, kind, by_cors, expected) in [
        ("http://www.a.test/x", Kind::Image, false, Some("id=1")),
        ("http://img.a.test/x", Kind::Image, false, None),
        ("http://img.a.test/x", Kind::Script, true, Some("id=1")),
        ("http://img.a.test/x", Kind::Document, false, Some("id=1")),
    ] {
        let mut request = browser_request("http://www.a.test/page", CHROME);
        request.fields.remove("cookie");
        let changes = CookieChanges::of(&request, &head, 0).unwrap();
        let page = FetchClient {
            cookies: Some(&changes),
            is_credentialless: true,
            ..client(&request, "http://www.a.test/page")
        };
        let mut need = need(url, kind);
        need.by_cors = by_cors;
        let made = request_for(&need, &page, None).unwrap();
        assert_eq!(text(&made, "cookie"), expected, "{url} {kind:?} {by_cors}");
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
fn request_by_cors_with_credentials_names_the_origin() {
    let mut script = need("http://b/x.js", Kind::Script);
    script.by_cors = true;
    let made = request(&script, "http://a/page", false);
    assert_eq!(text(&made, "origin"), Some("http://a"));
}

#[test]
fn request_by_cors_names_the_origin() {
    let mut font = need("http://b/x.woff2", Kind::Font);
    font.anonymous = true;
    let made = request(&font, "http://a/page", false);
    assert_eq!(text(&made, "origin"), Some("http://a"));
}

#[test]
fn chromium_names_the_origin_to_the_same_origin() {
    for (agent, kind, by_cors, expected) in [
        (CHROME, Kind::Font, true, Some("http://a")),
        (CHROME, Kind::Script, true, Some("http://a")),
        (CHROME, Kind::Script, false, None),
        (CHROME, Kind::Fetch, true, None),
        (FIREFOX, Kind::Font, true, None),
        (FIREFOX, Kind::Script, true, None),
    ] {
        let page = browser_request("http://a/page", agent);
        let mut part = need("http://a/x", kind);
        (part.by_cors, part.anonymous) = (by_cors, false);
        let made = request_for(&part, &client(&page, "http://a/page"), None).unwrap();
        assert_eq!(text(&made, "origin"), expected, "{agent} {kind:?}");
        assert_eq!(text(&made, "cookie"), Some("a=b"));
    }
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
    let page = client(&page_request, "http://a.test/page");
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
    metadata_in(CHROME, need, url, document, own)
}

fn metadata_in(agent: &str, need: &Need, url: &str, document: &str, own: &str) -> Option<String> {
    let mut request = browser_request(url, agent);
    if let Some(own) = Metadata::parse(own.as_bytes()) {
        own.add_to(&mut request.fields);
    }
    let page = FetchClient {
        is_part: url != document,
        ..client(&request, document)
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
    // The referrer may be another style sheet of the same document.
    let foreign = "style no-cors cross-site";
    let of_referrer = of("https://a.test/x", Some(sheet), sheet, page, foreign);
    assert_eq!(of_referrer, None);
    let frame = "https://b.test/frame";
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
        let page = client(&request, "http://a/page");
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

/// Firefox compares the resources of a style sheet with the sheet, and Chromium with the document.
#[test]
fn site_of_a_sheets_resource_depends_on_the_browser() {
    let page = "https://a.test/page";
    let cdn = "https://cdn.test/s.css";
    let own = "https://a.test/s.css";
    let unnamed = "https://cdn.test/style";
    let link = "document navigate none ?1";
    let foreign = "style no-cors cross-site";
    let cross = Some("cross-site");
    let same = Some("same-origin");
    let on_cdn = "https://cdn.test/x";
    for (kind, url, sheet, requested, of_page, in_chrome, in_firefox) in [
        (Kind::Image, on_cdn, cdn, page, link, cross, same),
        (Kind::Style, on_cdn, cdn, page, link, cross, same),
        // The client of a font is unknown in Firefox.
        (Kind::Font, on_cdn, cdn, page, link, cross, None),
        (Kind::Font, on_cdn, own, page, link, cross, cross),
        (
            Kind::Image,
            "https://a.test/x",
            cdn,
            page,
            link,
            same,
            cross,
        ),
        (Kind::Image, "https://a.test/x", own, page, link, same, same),
        // The browser itself requests the style sheet.
        (Kind::Image, on_cdn, cdn, cdn, foreign, cross, same),
        (Kind::Image, on_cdn, unnamed, unnamed, foreign, None, same),
        (Kind::Font, on_cdn, cdn, cdn, foreign, cross, None),
        (Kind::Image, on_cdn, unnamed, page, link, None, None),
    ] {
        let mut need = need(url, kind);
        need.via = Some(sheet.into());
        let of = |agent| metadata_in(agent, &need, requested, page, of_page);
        for (agent, expected) in [(CHROME, in_chrome), (FIREFOX, in_firefox)] {
            let text = of(agent);
            let site = text.as_deref().and_then(|text| text.rsplit(' ').next());
            assert_eq!(site, expected, "{agent} {kind:?} {url} {sheet} {requested}");
        }
    }
}

/// A frame that the browser requests may be sandboxed.
#[test]
fn nested_document_has_foreign_resources_only() {
    let frame = "https://b.test/frame";
    for destination in ["iframe", "frame", "object", "embed", "fencedframe"] {
        let own = format!("{destination} navigate cross-site");
        let of = |url: &str| metadata_of(&need(url, Kind::Image), frame, frame, &own);
        let foreign = of("https://c.test/x");
        assert_eq!(foreign.as_deref(), Some("image no-cors cross-site"));
        for url in ["https://b.test/x", "https://i.b.test/x"] {
            assert_eq!(of(url), None, "{destination} {url}");
        }
        let mut font = need("https://c.test/x", Kind::Font);
        (font.anonymous, font.by_cors) = (true, true);
        assert_eq!(
            metadata_of(&font, frame, frame, &own),
            None,
            "{destination}"
        );
    }
}

#[test]
fn chromium_accepts_jpeg_xl_as_its_own_requests_show() {
    let page = "text/html,image/avif,image/webp,*/*;q=0.8";
    let new_page = "text/html,image/jxl,image/avif,image/webp,*/*;q=0.8";
    let sheet = "text/css,*/*;q=0.1";
    for (own, expected) in [(page, false), (new_page, true), (sheet, false)] {
        let mut request = browser_request("http://a/page", CHROME);
        request.fields.set("accept", own);
        let page = client(&request, "http://a/page");
        let made = request_for(&need("http://a/i.png", Kind::Image), &page, None).unwrap();
        let rest = "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8";
        let expected = match expected {
            true => format!("image/jxl,{rest}"),
            false => rest.to_owned(),
        };
        assert_eq!(text(&made, "accept"), Some(&*expected), "{own}");
    }
}
