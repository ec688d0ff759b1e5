//! Scenes of pages whose requests have metadata (`Sec-Fetch-*`): the gateway's requests have those
//! of the browser's requests.

use std::time::Duration;

use tandem_http::{Fields, Method};
use tandem_push::gateway::{Config, PromiseStream};
use tandem_push::wire::{ASKED_AS_FIELD, Fate, NextPush};

use crate::both::PROMISES;
use crate::needs::Needs;
use crate::origin::{page, redirect};
use crate::pair::{Asked, Pair};
use crate::scene::{self, Scene};
use crate::{asked_of, html, image};

const PAGE: &str = "https://a.test/page";

type Field = (&'static str, &'static str);

/// Returns fields with these metadata.
fn with(destination: &'static str, mode: &'static str, site: &'static str) -> Vec<Field> {
    vec![
        ("sec-fetch-dest", destination),
        ("sec-fetch-mode", mode),
        ("sec-fetch-site", site),
    ]
}

/// Returns the fields of a navigation that the user begins.
fn navigation() -> Vec<Field> {
    let mut fields = with("document", "navigate", "none");
    fields.extend([("sec-fetch-user", "?1"), ("accept", "text/html")]);
    fields
}

/// Returns the metadata among fields, as a text.
fn metadata(fields: &Fields) -> String {
    let all = fields.iter();
    let own = all.filter(|field| field.name.starts_with(b"sec-fetch-"));
    let values: Vec<_> = own
        .map(|field| String::from_utf8_lossy(field.value))
        .collect();
    values.join(" ")
}

fn metadata_of(asked: &[Asked], url: &str) -> String {
    metadata(&asked_of(asked, url).fields)
}

#[test]
fn resources_have_the_metadata_of_their_use() {
    let body = "<link rel=stylesheet href=/a.css><script src=/b.js></script>\
                <script type=module src=/c.js></script><img src=https://i.a.test/d.png>\
                <link rel=preload as=fetch href=/e crossorigin><iframe src=/f></iframe>\
                <link rel=preload as=font crossorigin href=https://b.test/g.woff2>\
                <link rel=prefetch as=script href=/h.js><img src=/i.png crossorigin>\
                <object data=/j></object>";
    let sheet = page("text/css", "p { background: url(k.png) }");
    let pages = [
        (PAGE, html(body)),
        ("https://a.test/a.css", sheet),
        ("https://a.test/f", page("text/html", "<img src=/l.png>")),
    ];
    for (fields, has_metadata) in [(navigation(), true), (vec![("accept", "text/html")], false)] {
        let mut pair = Pair::new(&pages);
        pair.serve("https://i.a.test/first", image());
        pair.load("https://i.a.test/first", &[]);
        pair.send(PAGE, &fields);
        pair.run();
        let asked = pair.take_asked();
        for (url, expected) in [
            ("https://a.test/a.css", "style no-cors same-origin"),
            ("https://a.test/b.js", "script no-cors same-origin"),
            ("https://a.test/c.js", "script cors same-origin"),
            ("https://i.a.test/d.png", "image no-cors same-site"),
            ("https://a.test/e", "empty cors same-origin"),
            ("https://a.test/f", "iframe navigate same-origin"),
            ("https://b.test/g.woff2", "font cors cross-site"),
            ("https://a.test/h.js", "empty no-cors same-origin"),
            ("https://a.test/i.png", "image cors same-origin"),
            ("https://a.test/k.png", "image no-cors same-origin"),
            ("https://a.test/l.png", "image no-cors same-origin"),
        ] {
            let expected = if has_metadata { expected } else { "" };
            assert_eq!(metadata_of(&asked, url), expected, "{url}");
        }
        // The use of an object is unknown.
        let mut urls = asked.iter().map(|asked| asked.url.as_str());
        let has_object = urls.any(|url| url == "https://a.test/j");
        assert_eq!(has_object, !has_metadata);
    }
}

/// A frame that the browser requests is the document of its resources, and not the page around it.
#[test]
fn resources_of_a_requested_frame_name_the_frame() {
    let frame = "https://a.test/frame";
    let body = "<img src=https://b.test/x.png><img src=/own.png>";
    let mut pair = Pair::new(&[(frame, html(body))]);
    pair.serve("https://b.test/first", image());
    pair.load("https://b.test/first", &[]);
    let mut fields = with("iframe", "navigate", "same-site");
    let page = "https://b.a.test/page";
    fields.extend([
        ("accept", "text/html"),
        ("referer", page),
        ("cookie", "a=b"),
    ]);
    pair.send(frame, &fields);
    pair.run();
    let asked = pair.take_asked();
    let urls: Vec<_> = asked.iter().map(|asked| asked.url.as_str()).collect();
    assert_eq!(urls, [frame, "https://b.test/x.png"]);
    let image = asked_of(&asked, "https://b.test/x.png");
    assert_eq!(image.field("referer").as_deref(), Some("https://a.test/"));
    assert_eq!(metadata(&image.fields), "image no-cors cross-site");
}

/// Frames, later refreshes and documents for later pages differ in their metadata.
#[test]
fn late_document_is_left_to_the_browser() {
    let body = "<iframe loading=lazy src=/a></iframe><meta http-equiv=refresh content='3; url=/b'>\
                <link rel=prefetch as=document href=/c><link rel=prefetch as=image href=/d>\
                <img loading=lazy src=/e>";
    let mut pair = Pair::new(&[(PAGE, html(body))]);
    pair.send(PAGE, &navigation());
    pair.run();
    let asked = pair.take_asked();
    let found = asked[1..].iter().map(|asked| asked.url.as_str());
    assert_eq!(
        Vec::from_iter(found),
        ["https://a.test/d", "https://a.test/e"]
    );
    let of = |url| metadata_of(&asked, url);
    assert_eq!(of("https://a.test/d"), "empty no-cors same-origin");
    assert_eq!(of("https://a.test/e"), "image no-cors same-origin");
}

/// The gateway forgets the request of a push when one with an unsafe method changes the site. A
/// field of the origin with that name is removed.
#[test]
fn head_of_a_push_tells_its_metadata() {
    for (fields, expected) in [
        (navigation(), Some("image no-cors same-origin")),
        (vec![("accept", "text/html")], None),
    ] {
        for is_changed in [false, true] {
            let mut scene = Scene::new(Config::default());
            let page = scene.ask("/page", &fields);
            scene.head(page, &mut scene::head(200, scene::HTML));
            scene.gateway.handle_data(page, b"<img src=/a.png>");
            let fetch = scene.promises(PromiseStream::Response(page))[0];
            if is_changed {
                scene.gateway.handle_unsafe_request();
            }
            let mut head = scene::head(200, &[(ASKED_AS_FIELD, "style no-cors none")]);
            let now = scene.now;
            let passed = scene.gateway.handle_fetch_head(now, fetch, &mut head, None);
            assert!(passed.is_ok());
            let told = head.fields.get(ASKED_AS_FIELD);
            assert_eq!(told, expected.map(str::as_bytes), "{is_changed}");
        }
    }
}

#[test]
fn redirects_repeat_the_metadata() {
    let link = navigation();
    let mut by_link = with("document", "navigate", "cross-site");
    by_link.push(("accept", "text/html"));
    let script = with("empty", "cors", "same-origin");
    let image = with("image", "no-cors", "cross-site");
    for fields in [link, by_link, script, image] {
        let expected = metadata(&fields.iter().copied().collect());
        let mut pair = Pair::new(&[
            ("https://a.test/old", redirect("/middle")),
            ("https://a.test/middle", redirect("/new")),
            ("https://a.test/new", page("text/plain", "x")),
        ]);
        pair.send("https://a.test/old", &fields);
        pair.run();
        let asked = pair.take_asked();
        for url in ["https://a.test/middle", "https://a.test/new"] {
            assert_eq!(metadata_of(&asked, url), expected, "{url}");
        }
    }
}

#[test]
fn resource_beyond_a_redirect_keeps_its_metadata() {
    let mut pair = Pair::new(&[
        (PAGE, html("<script type=module src=/old.js></script>")),
        ("https://a.test/old.js", redirect("/new.js")),
        ("https://a.test/new.js", page("text/javascript", "")),
    ]);
    pair.send(PAGE, &navigation());
    pair.run();
    let asked = pair.take_asked();
    let script = metadata_of(&asked, "https://a.test/new.js");
    assert_eq!(script, "script cors same-origin");
}

/// The browser's own request does not tell the metadata of the next one.
#[test]
fn redirect_of_unknown_metadata_is_left_to_browsers() {
    for field in [("sec-fetch-dest", "video-x"), ("sec-fetch-site", "none")] {
        let mut pair = Pair::new(&[
            ("https://a.test/old", redirect("/new")),
            ("https://a.test/new", page("text/plain", "x")),
        ]);
        let asked = pair.load("https://a.test/old", &[field]);
        assert_eq!(asked, ["https://a.test/old"], "{field:?}");
    }
}

#[test]
fn next_document_is_requested_as_by_a_link() {
    let document = || page("text/html", "<p>text").with("cache-control", "max-age=60");
    let next = "https://a.test/next";
    let pages = [(PAGE, document()), (next, document())];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.gateway.allow_next_pages(NextPush::Bodies);
    pair.predictor = Some(Needs::of_next(&[(PAGE, next)]));
    pair.browse_for(Duration::from_secs(2), PAGE, &navigation());
    let asked = pair.take_asked();
    let expected = "document navigate same-origin ?1";
    assert_eq!(metadata_of(&asked, next), expected);
    let mut link = with("document", "navigate", "same-origin");
    link.extend([("accept", "text/html"), ("referer", PAGE)]);
    assert!(pair.get(next, &link).0.is_pushed);
}

/// Some origins refuse frames, and some show a page around an image that is opened by itself.
#[test]
fn push_serves_requests_of_its_use() {
    let frame = "https://a.test/frame";
    let script = "https://a.test/a.js";
    let body = "<iframe src=/frame></iframe><script src=/a.js></script>";
    let varied = page("text/javascript", "x").with("vary", "Sec-Fetch-Dest");
    let pages = [
        (PAGE, html(body)),
        (frame, page("text/html", "")),
        (script, varied),
    ];
    let html = ("accept", "text/html");
    for has_own_fields in PROMISES {
        for (url, metadata, accept, is_pushed) in [
            (frame, with("iframe", "navigate", "same-origin"), html, true),
            (
                frame,
                with("document", "navigate", "same-origin"),
                html,
                false,
            ),
            (
                script,
                with("script", "no-cors", "same-origin"),
                ("accept", "*/*"),
                true,
            ),
            (
                script,
                with("empty", "cors", "same-origin"),
                ("accept", "*/*"),
                false,
            ),
        ] {
            let mut pair = Pair::new(&pages).with_client(has_own_fields);
            pair.browse(Method::Get, PAGE, &navigation());
            let own = [accept, ("referer", PAGE)];
            let fields = [&metadata[..], &own].concat();
            let (reply, _) = pair.get(url, &fields);
            assert_eq!(reply.is_pushed, is_pushed, "{url} {metadata:?}");
            let leaks = reply
                .head
                .fields
                .iter()
                .any(|it| it.name.starts_with(b"tandem-asked"));
            assert!(!leaks);
        }
    }
}

/// The images of a style sheet of another site are those of its page.
#[test]
fn images_of_foreign_style_sheets_serve_their_page() {
    let sheet = page("text/css", "p { background: url(b.png) }");
    let pages = [
        (
            PAGE,
            html("<link rel=stylesheet href=https://b.test/s.css>"),
        ),
        ("https://b.test/s.css", sheet),
        ("https://b.test/b.png", image()),
    ];
    for has_own_fields in PROMISES {
        let mut pair = Pair::new(&pages).with_client(has_own_fields);
        pair.serve("https://b.test/first", image());
        pair.browse(Method::Get, "https://b.test/first", &[]);
        pair.browse(Method::Get, PAGE, &navigation());
        let mut fields = with("image", "no-cors", "cross-site");
        fields.push(("referer", "https://b.test/s.css"));
        assert!(pair.get("https://b.test/b.png", &fields).0.is_pushed);
    }
}

#[test]
fn learned_push_has_the_mode_of_the_last_request() {
    const SHEET: &str = "http://cdn.test/a.css";
    let referrer = ("referer", "http://a.test/");
    let origin = ("origin", "http://a.test");
    for (fields, expected) in [
        (&[referrer, origin][..], Some("http://a.test")),
        (&[referrer], None),
        (&[referrer, origin, ("sec-fetch-mode", "no-cors")], None),
    ] {
        let plain = "http://a.test/page";
        let pages = [(plain, html("")), (SHEET, page("text/css", ""))];
        let mut first = Pair::new(&pages);
        let mut needs = Needs::of_page(plain, vec![SHEET]);
        needs.asked_hosts = vec!["cdn.test"];
        first.predictor = Some(needs);
        first.load(SHEET, fields);
        let mut pair = Pair::new(&pages);
        pair.predictor = first.predictor.take();
        pair.send(plain, &[("accept", "text/html")]);
        pair.run();
        let asked = pair.take_asked();
        let found = asked_of(&asked, SHEET).field("origin");
        assert_eq!(found.as_deref(), expected, "{fields:?}");
    }
}

/// The page names the resource at the first visit, and the browser makes no request of its own.
#[test]
fn used_push_teaches_its_mode() {
    const SHEET: &str = "http://cdn.test/a.css";
    const PLAIN: &str = "http://a.test/page";
    for (attribute, expected) in [("crossorigin", Some("http://a.test")), ("", None)] {
        let body = format!("<link rel=stylesheet {attribute} href={SHEET}>");
        let mut needs = Needs::of_page(PLAIN, vec![SHEET]);
        needs.asked_hosts = vec!["cdn.test"];
        let mut predictor = Some(Needs::default());
        for body in [&*body, ""] {
            let mut pair = Pair::new(&[(PLAIN, html(body)), (SHEET, page("text/css", ""))]);
            pair.predictor = predictor.take();
            pair.send(PLAIN, &[("accept", "text/html")]);
            pair.run();
            let asked = pair.take_asked();
            let found = asked_of(&asked, SHEET).field("origin");
            assert_eq!(found.as_deref(), expected, "{body}");
            pair.report(Fate::Used, SHEET);
            pair.run();
            needs.by_cors = pair.predictor.take().unwrap_or_default().by_cors;
            predictor = Some(std::mem::take(&mut needs));
        }
    }
}
