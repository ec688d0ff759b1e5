//! Tests of page models and their bodies: files of every shape, normalised, rendered, and with
//! errors.

use std::collections::HashSet;

use proptest::prelude::*;
use tandem_web::har::{Entry, Har};
use tandem_web::page::{Page, PageError, ResourceKind, Site};

fn site(page: Page) -> Site {
    Site::new(page, &["origin.example:8080"]).expect("a valid page")
}

/// Every resource is mentioned once, by its parent, in full, and where the site says.
fn check_references(site: &Site) {
    let page = site.page();
    let mut seen = HashSet::new();
    for (index, resource) in page.resources.iter().enumerate() {
        let asset = site.asset(index);
        for reference in &asset.references {
            let child = &page.resources[reference.child];
            assert_eq!(child.parent, Some(index));
            assert!(
                seen.insert(reference.child),
                "{} is mentioned twice",
                child.path
            );
            let before = String::from_utf8_lossy(&asset.body[..reference.end]);
            // Attributes are escaped, scripts within a document are not.
            let in_attribute = matches!(
                child.kind,
                ResourceKind::Html | ResourceKind::Css | ResourceKind::Script | ResourceKind::Image
            );
            let url = if resource.is_redirect()
                || (resource.kind == ResourceKind::Html && in_attribute)
            {
                child.path.replace('&', "&amp;")
            } else {
                child.path.clone()
            };
            assert!(
                before.contains(&url),
                "{} does not mention {url}",
                resource.path
            );
        }
    }
    let caused = page.resources.iter().filter(|r| r.parent.is_some()).count();
    assert_eq!(seen.len(), caused);
}

#[test]
fn built_in_pages() {
    for name in [
        "demo",
        "thesis",
        "twitter",
        "youtube",
        "imgur",
        "uniform:100x2000",
        "gallery:20x300",
    ] {
        let page = Page::open(name).expect(name);
        let count = page.resources.len();
        let site = site(page);
        check_references(&site);
        assert_eq!(site.page().resources.len(), count);
    }
    let thesis = site(Page::thesis());
    assert_eq!(thesis.bytes(), 3_560_921);
    assert_eq!(thesis.asset(0).body.len(), 385_024);
    let demo = Page::demo().expect("committed");
    assert_eq!((demo.resources.len(), demo.hosts.len()), (111, 3));
}

#[test]
fn rendering_is_deterministic() {
    let [one, two] = [(); 2].map(|()| site(Page::demo().expect("committed")));
    for index in 0..one.page().resources.len() {
        assert_eq!(one.asset(index).body, two.asset(index).body);
        assert_eq!(one.asset(index).etag, two.asset(index).etag);
    }
}

#[test]
fn text_is_not_trivially_compressible() {
    let site = site(Page::thesis());
    let text = &site.asset(1).body;
    let mut counts = [0usize; 256];
    for &byte in &text[..] {
        counts[usize::from(byte)] += 1;
    }
    let entropy: f64 = counts
        .iter()
        .filter(|&&n| n > 0)
        .map(|&n| n as f64 / text.len() as f64)
        .map(|share| -share * share.log2())
        .sum();
    assert!(entropy > 5.5, "{entropy} bits a byte");
}

#[test]
fn shards_share_the_hosts() {
    let page = Page::demo().expect("committed");
    let site = Site::new(page, &["a.example", "b.example:81"]).expect("valid");
    let on_b = site
        .page()
        .resources
        .iter()
        .position(|r| r.host == 1)
        .expect("three hosts");
    assert_eq!(site.authority(on_b), "b.example:81");
    let html = String::from_utf8_lossy(&site.asset(0).body).into_owned();
    assert!(
        html.contains("\"http://b.example:81/"),
        "foreign hosts are named"
    );
    assert!(html.contains("href=\"/"), "the own one is not");
    assert_eq!(site.find(&site.page().resources[on_b].path), Some(on_b));
}

#[test]
fn bad_authorities() {
    let page = Page::uniform(1, 100);
    assert!(
        matches!(Site::new(page.clone(), &["a b"]), Err(PageError::Authority(bad)) if bad == "a b")
    );
    assert!(matches!(
        Site::new(page, &[] as &[&str]),
        Err(PageError::Authority(_))
    ));
}

#[test]
fn recorded_pages() {
    let text = r##"{"name": "r", "entries": [
        {"url": "http://a.example/", "status": 301, "type": "html", "body": 0, "parent": null},
        {"url": "https://www.a.example/x?y#z", "status": 200, "type": "html", "mime": "text/html; charset=x", "body": 900, "parent": 0},
        {"url": "data:image/png;base64,xyz", "status": 200, "type": "image", "body": 3, "parent": 1},
        {"url": "https://www.a.example/s.css", "status": 200, "type": "css", "mime": "text/plain", "body": 300, "parent": 0},
        {"url": "https://cdn.example/s.css", "status": 304, "type": "css", "mime": "text/css", "body": 0, "parent": 3},
        {"url": "https://cdn.example/a b\"<i>.js", "status": 200, "type": "js", "mime": "application/javascript", "body": 100, "parent": 4},
        {"url": "https://cdn.example/i", "status": 200, "type": "image", "mime": "image/gif", "body": 43, "parent": 2},
        {"url": "https://cdn.example/gone", "status": 404, "type": "xhr", "mime": "", "body": -1, "parent": 77},
        {"url": "https://cdn.example/nowhere", "status": 302, "type": "image", "mime": "", "body": 5, "parent": 5}
    ]}"##;
    let page = Page::from_json("x", text.as_bytes()).expect("valid");
    let rows: Vec<_> = page
        .resources
        .iter()
        .map(|r| (r.path.as_str(), r.kind, r.status, r.size, r.parent))
        .collect();
    assert_eq!(
        rows,
        [
            ("/", ResourceKind::Html, 301, 0, None),
            ("/x?y", ResourceKind::Html, 200, 900, Some(0)),
            ("/s.css", ResourceKind::Css, 200, 300, Some(1)),
            ("/s.css?again=2", ResourceKind::Css, 200, 0, Some(2)),
            (
                "/a%20b%22%3Ci%3E.js",
                ResourceKind::Script,
                200,
                100,
                Some(1)
            ),
            ("/i", ResourceKind::Image, 200, 43, Some(1)),
            ("/gone", ResourceKind::Fetch, 404, 0, Some(1)),
            ("/nowhere", ResourceKind::Image, 200, 5, Some(4)),
        ]
    );
    assert_eq!(page.resources[1].mime, "text/html");
    assert_eq!(
        page.resources[2].mime, "text/css",
        "or no browser would take it"
    );
    let site = site(page);
    check_references(&site);
    let script = String::from_utf8_lossy(&site.asset(4).body).into_owned();
    assert!(script.contains("new Image().src=\"/nowhere\";"));
}

/// Whatever causes whatever in a recording: the page is valid, and every body mentions its own
/// children.
#[test]
fn any_recording_makes_a_page() {
    let mut state = 1u64;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..300 {
        let entries = (0..1 + draw(40)).map(|index| {
            let kind = ["html", "css", "js", "image", "font", "xhr", "other"][draw(7) as usize];
            let status = [200, 200, 200, 301, 302, 204, 304, 404, 0, -7, 99_999][draw(11) as usize];
            let parent = [draw(index + 1) as i64, draw(50) as i64][draw(2) as usize];
            let host = draw(3);
            let path = ["/", "/a", "", "/a?b&c", "//x", "?q", "/\u{e9} <"][draw(7) as usize];
            let body = draw(3000) as i64 - 100;
            serde_json::json!({"url": format!("http://h{host}{path}"), "status": status, "type": kind, "mime": "",
                "body": body, "parent": (draw(8) > 0).then_some(parent)})
        });
        let entries: Vec<_> = entries.collect();
        let text = serde_json::json!({"name": "any", "entries": entries}).to_string();
        let page = Page::from_json("any", text.as_bytes())
            .unwrap_or_else(|error| panic!("{round}: {error}: {text}"));
        assert_eq!(page.resources.len(), entries.len());
        check_references(&Site::new(page, &["a.example", "b.example"]).expect("valid"));
    }
}

#[test]
fn har_files() {
    let text = r#"{"log": {"version": "1.2", "entries": [
        {"request": {"method": "GET", "url": "http://a.example/", "headers": []},
         "response": {"status": 302, "redirectURL": "/home", "bodySize": 0, "content": {"size": 0, "mimeType": ""}}},
        {"request": {"method": "GET", "url": "http://a.example/home", "headers": []},
         "response": {"status": 200, "redirectURL": "", "bodySize": 700, "content": {"size": 900, "mimeType": "text/html"}}},
        {"request": {"method": "GET", "url": "http://a.example/a.js", "headers": []}, "_initiator": {"type": "parser", "url": "http://a.example/home"},
         "response": {"status": 200, "bodySize": -1, "_transferSize": 550, "headersSize": 150, "content": {"size": 900, "mimeType": "text/javascript"}}},
        {"request": {"method": "GET", "url": "http://a.example/b.png", "headers": []},
         "_initiator": {"type": "script", "stack": {"callFrames": [{"url": "http://a.example/a.js"}]}},
         "response": {"status": 200, "bodySize": -1, "content": {"size": 120, "mimeType": "image/png"}}},
        {"request": {"method": "GET", "url": "http://a.example/c.json", "headers": [{"name": "referer", "value": "http://a.example/home"}]},
         "_resourceType": "xhr", "response": {"status": 200, "content": {"size": 1000, "mimeType": "application/json"}}}
    ]}}"#;
    let page = Page::from_json("h", text.as_bytes()).expect("valid");
    let rows: Vec<_> = page
        .resources
        .iter()
        .map(|r| (r.kind, r.status, r.size, r.parent))
        .collect();
    assert_eq!(
        rows,
        [
            (ResourceKind::Html, 302, 0, None),
            (ResourceKind::Html, 200, 700, Some(0)),
            (ResourceKind::Script, 200, 400, Some(1)),
            (ResourceKind::Image, 200, 120, Some(2)),
            (ResourceKind::Fetch, 200, 300, Some(1)),
        ]
    );
    check_references(&site(page));
}

/// Changes the parts of a path that browsers would change.
#[test]
fn paths_that_stay_as_they_are() {
    let entry = |path: &str| {
        format!(
            r#"{{"url": "http://a.example{path}", "status": 200, "type": "image", "body": 50}}"#
        )
    };
    let paths = [
        "/",
        "/a/../b",
        "/./c/%2E%2e?x=/../y",
        "/d/.",
        "/...",
        "/e'f|g\\\\h",
        "?q",
        "/i?",
    ];
    let entries = paths.map(entry).join(",");
    let page =
        Page::from_json("x", format!(r#"{{"entries": [{entries}]}}"#).as_bytes()).expect("valid");
    let read: Vec<&str> = page.resources.iter().map(|r| r.path.as_str()).collect();
    assert_eq!(
        read,
        [
            "/",
            "/a/.._/b",
            "/._/c/%2E%2e_?x=/../y",
            "/d/._",
            "/...",
            "/e%27f|g%5Ch",
            "/?q",
            "/i?"
        ]
    );
    assert!(matches!(
        Page::from_json(
            "",
            br#"{"name": "m", "hosts": ["a"], "resources": [["/..", 0, "a/b", "html", 9, null]]}"#
        ),
        Err(PageError::Resource { .. })
    ));
}

/// A page that was recorded from its redirect on has one beginning.
#[test]
fn a_redirect_leads_to_the_document() {
    let text = br#"{"entries": [
        {"url": "http://a.example/", "status": 301, "type": "html"},
        {"url": "http://a.example/home", "status": 200, "type": "html", "body": 900},
        {"url": "http://a.example/i", "status": 200, "type": "image", "body": 90}]}"#;
    let page = Page::from_json("x", text).expect("valid");
    let rows: Vec<_> = page
        .resources
        .iter()
        .map(|r| (r.status, r.parent))
        .collect();
    assert_eq!(rows, [(301, None), (200, Some(0)), (200, Some(1))]);
    page.check_browsable().expect("a browser can load it");
    assert!(
        matches!(Page::uniform(2, 100).check_browsable(), Err(PageError::NotBrowsable { path }) if path == "/images/0000.png")
    );
}

/// Recorders name the kind of an empty response in their own way.
#[test]
fn redirect_has_the_kind_of_its_target() {
    let text = br#"{"entries": [
        {"url": "http://a.example/", "status": 302, "type": "html"},
        {"url": "http://b.example/go", "status": 302, "type": "other", "parent": 0},
        {"url": "http://a.example/home", "status": 200, "type": "html", "body": 9, "parent": 1},
        {"url": "http://a.example/s", "status": 200, "type": "css", "body": 90, "parent": 2},
        {"url": "http://a.example/f", "status": 302, "type": "html", "parent": 3},
        {"url": "http://a.example/g", "status": 200, "type": "font", "body": 9, "parent": 4}]}"#;
    let page = Page::from_json("x", text).expect("valid");
    let kinds: Vec<_> = page.resources.iter().map(|it| it.kind).collect();
    let (html, font) = (ResourceKind::Html, ResourceKind::Font);
    assert_eq!(kinds, [html, html, html, ResourceKind::Css, font, font]);
}

/// Sizes and numbers that do not fit anywhere.
#[test]
fn unreasonable_files() {
    let huge = u64::MAX;
    let rows =
        format!(r#"["/", 0, "a/b", "html", {huge}, null], ["/b", 0, "a/b", "image", {huge}, 0]"#);
    let model = format!(r#"{{"name": "m", "hosts": ["a"], "resources": [{rows}]}}"#);
    assert!(matches!(
        Page::from_json("", model.as_bytes()),
        Err(PageError::TooLarge)
    ));
    let entry = format!(
        r#"{{"url": "http://a.example/", "status": 200, "body": {}}}"#,
        i64::MAX
    );
    let twice = format!(r#"{{"entries": [{entry}, {entry}, {entry}]}}"#);
    assert!(matches!(
        Page::from_json("", twice.as_bytes()),
        Err(PageError::TooLarge)
    ));
    let many: Vec<String> = (0..20_001)
        .map(|n| format!(r#"{{"url": "http://h{n}.example/"}}"#))
        .collect();
    let many = format!(r#"{{"entries": [{}]}}"#, many.join(","));
    assert!(matches!(
        Page::from_json("", many.as_bytes()),
        Err(PageError::TooLarge)
    ));
}

/// Newer types of image come by `srcset`.
#[test]
fn images_by_srcset() {
    let mut page = Page::gallery(2, 500);
    page.resources[1].mime = "image/webp".into();
    let site = site(page);
    let html = String::from_utf8_lossy(&site.asset(0).body).into_owned();
    assert!(
        html.contains("<source srcset=\"/images/0000.png 1x\">")
            && html.contains("<img src=\"/images/0001.png\"")
    );
    check_references(&site);
}

#[test]
fn models_survive_writing() {
    for name in ["demo", "twitter"] {
        let page = Page::open(name).expect(name);
        assert_eq!(
            Page::from_json("", page.to_json().as_bytes()).expect("own writing"),
            page
        );
    }
}

#[test]
fn bad_files() {
    let of = |text: &str| {
        Page::from_json("x", text.as_bytes())
            .expect_err(text)
            .to_string()
    };
    assert!(of("{").starts_with("not a page: "));
    assert!(of("{}").starts_with("neither"));
    assert!(of("[]").starts_with("neither"));
    assert!(of(r#"{"entries": 3}"#).starts_with("not a page: "));
    assert!(of(r#"{"log": {}}"#).starts_with("not a page: "));
    assert_eq!(
        of(r#"{"entries": []}"#),
        "the page has no http or https resource"
    );
    assert_eq!(
        of(r#"{"entries": [{"url": "about:blank"}]}"#),
        "the page has no http or https resource"
    );
    let model = |rows: &str| {
        of(&format!(
            r#"{{"name": "m", "hosts": ["a"], "resources": [{rows}]}}"#
        ))
    };
    let html = r#"["/", 0, "text/html", "html", 9, null]"#;
    assert_eq!(model(""), "the page has no http or https resource");
    assert_eq!(
        model(&format!("{html}, {html}")),
        "resource 1: the path is there twice"
    );
    assert_eq!(
        model(r#"["/", 1, "text/html", "html", 9, null]"#),
        "resource 0: its host is not in the list"
    );
    assert_eq!(
        model(r#"["/", 0, "text/html", "html", 9, 0]"#),
        "resource 0: its parent does not stand before it"
    );
    assert_eq!(
        model(r#"["/", 0, "text/html", "html", 9, 7]"#),
        "resource 0: its parent does not stand before it"
    );
    assert_eq!(
        model(r#"["/\r\nX: y", 0, "a/b", "html", 9, null]"#),
        "resource 0: the path has bytes that must be escaped"
    );
    assert_eq!(
        model(r#"["/", 0, "a\r\nX: y", "html", 9, null]"#),
        "resource 0: the type is not valid"
    );
    assert_eq!(
        model(r#"["/", 0, "a/b", "html", 9, null, 100]"#),
        "resource 0: the status is not within 200 to 599"
    );
    let image = r#"["/i", 0, "image/png", "image", 9, null]"#;
    assert_eq!(
        model(&format!(r#"{image}, ["/", 0, "a/b", "css", 9, 0]"#)),
        "resource 1: its parent cannot name it"
    );
    assert!(
        model(r#"["/", 0, "a/b", "image", 99999999999, null]"#)
            .starts_with("the page has more than")
    );
    let no_page = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let error = Page::open(no_page).expect_err("no page").to_string();
    assert!(error.starts_with(no_page), "{error}");
    assert!(matches!(
        Page::open("no-such-page"),
        Err(PageError::Unknown(_))
    ));
    assert!(matches!(
        Page::open("uniform:3"),
        Err(PageError::Unknown(_))
    ));
    assert!(matches!(
        Page::open("uniform:99999999x1"),
        Err(PageError::TooLarge)
    ));
}

/// Generates HAR entries: valid values of recorders, and invalid ones.
fn har_entry() -> impl Strategy<Value = serde_json::Value> {
    let url = prop_oneof![
        "https?://(a|b|c)\\.example(/[a-d]{0,2}){0,3}(\\?[a-z=&%,|]{0,6})?(#x)?",
        "https?://[a-z@:\\[\\]0-9é ]{0,8}(/[ -~]{0,8})?",
        "(data|blob|about|ws|chrome):[a-z,;/]{0,9}",
        "[ -~]{0,12}",
    ];
    let kind = prop::sample::select(vec![
        "document",
        "stylesheet",
        "script",
        "image",
        "font",
        "xhr",
        "other",
        "",
        "??",
    ]);
    let mime = prop::sample::select(vec![
        "text/html; charset=utf-8",
        "text/css",
        "image/png",
        "x-unknown",
        "",
        "\r\n/",
    ]);
    let size = prop_oneof![
        Just(-1),
        Just(0),
        0i64..5000,
        Just(i64::MAX),
        Just(i64::MIN)
    ];
    let status = prop_oneof![
        Just(200i64),
        Just(301),
        Just(302),
        Just(204),
        Just(404),
        -5i64..1000
    ];
    let entry = (
        url.clone(),
        kind,
        mime,
        (size.clone(), size.clone(), size),
        status,
        url.clone(),
        url,
    );
    entry.prop_map(|(url, kind, mime, (body, transfer, content), status, to, by)| {
        serde_json::json!({
            "request": {"url": url, "headers": [{"name": "Referer", "value": by.clone()}]},
            "response": {"status": status, "bodySize": body, "_transferSize": transfer, "redirectURL": to,
                "headersSize": 100, "content": {"size": content, "mimeType": mime}},
            "_resourceType": kind, "_initiator": {"type": "parser", "url": by},
        })
    })
}

/// HAR 1.2 has numbers, not integers. Some recorders write `null` for members that they lack.
#[test]
fn har_may_have_fractions_and_nulls() {
    let har = serde_json::json!({"log": {"entries": [
        {"request": {"url": "http://a.example/", "headers": [{"name": "Referer", "value": null}]},
         "response": {"status": 302.0, "bodySize": 0.0, "redirectURL": "/b"}},
        {"request": {"url": "http://a.example/b"},
         "response": {"status": 200.0, "bodySize": 1000.0, "_transferSize": null,
            "redirectURL": null, "content": {"size": 1e3, "mimeType": "text/html"}}},
    ]}});
    let page = Page::from_json("har", har.to_string().as_bytes()).expect("a page");
    assert_eq!(page.bytes(), 1000);
}

proptest! {
    /// Any HAR gives an error or a valid page: it refers to all its resources and survives writing.
    #[test]
    fn any_har_is_a_page_or_an_error(entries in prop::collection::vec(har_entry(), 0..25)) {
        let text = serde_json::json!({"log": {"version": "1.2", "entries": entries}}).to_string();
        match Page::from_json("har", text.as_bytes()) {
            Err(error) => prop_assert!(matches!(error, PageError::Empty | PageError::TooLarge), "{error}"),
            Ok(page) => {
                prop_assert_eq!(&Page::from_json("", page.to_json().as_bytes()).expect("own writing"), &page);
                if page.bytes() < 1 << 20 {
                    check_references(&Site::new(page, &["a.example", "b.example:81"]).expect("valid"));
                }
            }
        }
    }

    /// Our HAR files contain the kinds, sizes, hosts and causes that a page needs.
    #[test]
    fn own_har_files_are_read(sizes in prop::collection::vec((0usize..3, 1u64..9000, 0usize..9), 1..20)) {
        let kinds = [("Stylesheet", "text/css"), ("Script", "text/javascript"), ("Image", "image/png")];
        let url = |index: usize| format!("http://h{}.example/r{index}", index % 3);
        let entry = |index: usize, kind: (&str, &str), body, by: Option<String>| Entry {
            url: url(index),
            method: "GET".into(),
            status: 200,
            kind: kind.0.into(),
            mime: kind.1.into(),
            body,
            initiator: by,
            ..Entry::default()
        };
        let mut entries = vec![entry(0, ("Document", "text/html"), 500, None)];
        for (at, &(kind, body, by)) in sizes.iter().enumerate() {
            entries.push(entry(at + 1, kinds[kind], body, Some(url(by.min(at)))));
        }
        let har = Har { entries, ..Har::default() }.to_json(&serde_json::Value::Null);
        let page = Page::from_json("own", har.to_string().as_bytes()).expect("a page");
        prop_assert_eq!(page.resources.len(), sizes.len() + 1);
        for (resource, &(kind, body, by)) in page.resources[1..].iter().zip(&sizes) {
            prop_assert_eq!(resource.kind, [ResourceKind::Css, ResourceKind::Script, ResourceKind::Image][kind]);
            prop_assert_eq!(resource.size as u64, body);
            let cause = resource.parent.expect("something loads it");
            // A resource that cannot load it passes it on to one that can.
            prop_assert!(cause <= by);
        }
    }
}
