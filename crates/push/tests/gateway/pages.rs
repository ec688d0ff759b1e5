//! Scenes of pages: the resources that are pushed with them, once each.

use std::time::Duration;

use tandem_push::gateway::{Config, PromiseStream};
use tandem_push::wire::Fate;

use crate::needs::Needs;
use crate::origin::{page, redirect};
use crate::pair::Pair;
use crate::scene::{Scene, head};
use crate::{FRESH, NAVIGATION, asked_of, fresh_image, html, image};

const OF_PAGE: &[(&str, &str)] = &[("referer", "http://a.test/page")];

/// The path of the style sheet does not show its kind.
#[test]
fn predictor_gets_the_types_of_pushes() {
    let body = "<link rel=stylesheet href=css?f=1><img src=gone.png>";
    let mut pair = Pair::new(&[
        ("http://a.test/page", html(body)),
        ("http://a.test/css?f=1", page("text/css", "")),
    ]);
    pair.predictor = Some(Needs::default());
    pair.load("http://a.test/page", NAVIGATION);
    let needs = pair.predictor.expect("the scene has a predictor");
    assert_eq!(needs.types, ["http://a.test/css?f=1 text/css"]);
}

#[test]
fn page_and_style_sheets_are_pushed_whole() {
    let page_body = "<link rel=stylesheet href=a.css><script src=/b.js></script><img src=c.png>";
    let mut pair = Pair::new(&[
        ("http://a.test/page", html(page_body)),
        (
            "http://a.test/a.css",
            page("text/css", "@import 'd.css'; p { background: url(e.png) }"),
        ),
        (
            "http://a.test/d.css",
            page("text/css", "i { background: url(f.png) }"),
        ),
    ]);
    let asked = pair.load("http://a.test/page", NAVIGATION);
    let names = ["a.css", "b.js", "c.png", "d.css", "e.png", "f.png", "page"];
    assert_eq!(asked, names.map(|name| format!("http://a.test/{name}")));
    assert_eq!(pair.treatment.as_deref(), Some("pushed"));
    for (promise, mention) in [("a.css", "page"), ("d.css", "a.css"), ("f.png", "d.css")] {
        let at = |text: String| pair.received.iter().position(|message| *message == text);
        let promised = at(format!("promise http://a.test/{promise}"));
        let mentioned = at(format!("data http://a.test/{mention}"));
        assert!(promised.is_some() && promised < mentioned, "{promise}");
    }
    for name in &names[..6] {
        pair.report(Fate::Used, &format!("http://a.test/{name}"));
    }
    pair.run();
    assert_eq!(pair.gateway.take_counts().used, 6);
    assert_eq!(pair.gateway.unreported(), 0);
    let again = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(again.len(), 7, "no response may be used again");
    assert_eq!(pair.gateway.records()[0], 0, "no response is left");
}

#[test]
fn head_names_resources() {
    let mut pair = Pair::new(&[(
        "http://a.test/page",
        page("text/plain", "page")
            .with("link", "</a.css>; rel=preload; as=style")
            .with("x-associated-content", "\"/b.js\":2"),
    )]);
    let asked = pair.load("http://a.test/page", &[]);
    let names = ["a.css", "b.js", "page"];
    assert_eq!(asked, names.map(|name| format!("http://a.test/{name}")));
}

#[test]
fn fresh_responses_are_not_sent_again() {
    let mut pair = Pair::new(&[
        ("http://a.test/page", html("<img src=c.png><img src=d.png>")),
        ("http://a.test/c.png", fresh_image()),
        ("http://a.test/d.png", image().with("expires", "0")),
    ]);
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 3);
    for image in ["c", "d"] {
        pair.report(Fate::Used, &format!("http://a.test/{image}.png"));
    }
    pair.run();
    let again = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(again, ["http://a.test/d.png", "http://a.test/page"]);
}

#[test]
fn unreported_push_is_not_sent_again() {
    let mut pair = Pair::new(&[("http://a.test/page", html("<img src=c.png>"))]);
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 2);
    let again = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(again, ["http://a.test/page"]);
}

#[test]
fn lost_cache_is_filled_again() {
    let mut pair = Pair::new(&[
        (
            "http://a.test/page",
            html("<img src=c.png><img src=d.png>").with("etag", "\"1\""),
        ),
        (
            "http://a.test/dynamic",
            html("<img src=c.png><img src=d.png>"),
        ),
        ("http://a.test/c.png", fresh_image()),
        ("http://a.test/d.png", fresh_image()),
    ]);
    let take = |pair: &mut Pair| {
        for image in ["c", "d"] {
            pair.report(Fate::Used, &format!("http://a.test/{image}.png"));
        }
        pair.run();
    };
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 3);
    take(&mut pair);
    let condition = [("accept", "text/html"), ("if-none-match", "\"0\"")];
    let checked = pair.load("http://a.test/page", &condition);
    assert_eq!(
        checked,
        ["http://a.test/page"],
        "a validation shows a cache"
    );
    let plain = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(
        plain.len(),
        3,
        "a plain request for a stored page shows none"
    );
    take(&mut pair);
    let dynamic = pair.load("http://a.test/dynamic", NAVIGATION);
    assert_eq!(dynamic, ["http://a.test/dynamic"]);
    let lost = pair.load("http://a.test/c.png", &[]);
    assert_eq!(
        lost,
        ["http://a.test/c.png", "http://a.test/d.png"],
        "the page's other image follows"
    );
}

/// A page whose script requests data that caches keep for two minutes, without a validator.
fn page_with_data() -> Pair {
    let mut pair = Pair::new(&[
        ("http://a.test/page", html("<img src=c.png>")),
        ("http://a.test/c.png", fresh_image()),
        (
            "http://a.test/data",
            page("application/json", "1").with("cache-control", "max-age=120"),
        ),
    ]);
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 2);
    pair.report(Fate::Used, "http://a.test/c.png");
    pair.load("http://a.test/data", OF_PAGE);
    pair
}

#[test]
fn expired_copy_without_validator_shows_no_lost_cache() {
    for (wait, expected) in [(30, 2), (130, 1)] {
        let mut pair = page_with_data();
        pair.pass(Duration::from_secs(wait));
        pair.load("http://a.test/data", OF_PAGE);
        let again = pair.load("http://a.test/page", NAVIGATION);
        assert_eq!(again.len(), expected, "after {wait} s");
    }
}

/// Browsers keep a cache for each site, so a resource of both sites is requested twice.
#[test]
fn request_for_another_site_shows_no_lost_cache() {
    let shared = "http://cdn.test/lib.js";
    for (referrer, expected) in [("http://a.test/page", 2), ("http://b.test/page", 1)] {
        let mut pair = page_with_data();
        pair.serve(
            shared,
            page("text/javascript", "").with("cache-control", FRESH),
        );
        pair.load(shared, OF_PAGE);
        pair.load(shared, &[("referer", referrer)]);
        let again = pair.load("http://a.test/page", NAVIGATION);
        assert_eq!(again.len(), expected, "{referrer}");
    }
}

#[test]
fn refused_push_shows_no_lost_cache() {
    let mut pair = Pair::new(&[
        ("http://a.test/page", html("<img src=c.png><img src=d.png>")),
        ("http://a.test/c.png", fresh_image()),
        ("http://a.test/d.png", fresh_image()),
    ]);
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 3);
    pair.report(Fate::Wasted, "http://a.test/c.png");
    pair.report(Fate::Used, "http://a.test/d.png");
    pair.run();
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 1);
    assert_eq!(
        pair.load("http://a.test/c.png", &[]),
        ["http://a.test/c.png"]
    );
}

#[test]
fn digest_of_earlier_sessions_spares_pushes() {
    let mut pair = Pair::new(&[("http://a.test/page", html("<img src=c.png><img src=d.png>"))]);
    pair.hold("http://a.test/c.png");
    pair.run();
    let asked = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(asked, ["http://a.test/d.png", "http://a.test/page"]);
}

#[test]
fn held_out_page_gets_no_pushes() {
    let config = Config {
        hold_out: 1.0,
        ..Config::default()
    };
    let pages = [
        ("http://a.test/page", html("<img src=c.png><iframe src=f>")),
        ("http://a.test/f", html("<img src=d.png>")),
    ];
    let mut pair = Pair::with(config, &pages);
    assert_eq!(
        pair.load("http://a.test/page", NAVIGATION),
        ["http://a.test/page"]
    );
    assert_eq!(pair.treatment.take().as_deref(), Some("held-out"));
    let frame = [("accept", "text/html"), ("referer", "http://a.test/page")];
    assert_eq!(pair.load("http://a.test/f", &frame), ["http://a.test/f"]);
    assert_eq!(pair.treatment, None, "a frame is no page of its own");
    assert_eq!(pair.gateway.take_counts().pages_held_out, 1);
}

#[test]
fn redirects_are_followed_once() {
    let mut pair = Pair::new(&[
        ("http://a.test/old", redirect("/older")),
        ("http://a.test/older", redirect("/new")),
        ("http://a.test/new", html("<img src=c.png>")),
    ]);
    let asked = pair.load("http://a.test/old", NAVIGATION);
    let names = ["c.png", "new", "old", "older"];
    assert_eq!(asked, names.map(|name| format!("http://a.test/{name}")));
}

#[test]
fn responses_that_depend_on_the_user_are_reset() {
    for (name, value) in [("vary", "Cookie"), ("vary", "Accept, Authorization")] {
        let mut pair = Pair::new(&[
            ("http://a.test/page", html("<img src=c.png>")),
            ("http://a.test/c.png", image().with(name, value)),
        ]);
        assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 2);
        let reset = "reset http://a.test/c.png".to_owned();
        assert!(pair.received.contains(&reset), "{value}");
        assert_eq!(pair.gateway.unreported(), 0, "the promise is withdrawn");
        let own = pair.load("http://a.test/c.png", &[]);
        assert_eq!(own, ["http://a.test/c.png"]);
        let again = pair.load("http://a.test/page", NAVIGATION);
        assert_eq!(again, ["http://a.test/page"], "{value}: fetched once only");
    }
}

#[test]
fn page_of_another_site_gets_its_own_push() {
    let font = "<link rel=preload as=font crossorigin href=http://f.test/f.woff2>";
    let mut pair = Pair::new(&[
        ("http://a.test/page", html(font)),
        ("http://b.test/page", html(font)),
        ("http://f.test/f.woff2", page("font/woff2", "f")),
    ]);
    for site in ["http://a.test", "http://b.test"] {
        pair.send(&format!("{site}/page"), NAVIGATION);
        pair.run();
        let asked = pair.take_asked();
        let font = asked_of(&asked, "http://f.test/f.woff2");
        assert_eq!(font.field("origin").as_deref(), Some(site));
    }
    assert_eq!(
        pair.gateway.take_counts().wasted,
        1,
        "the first is replaced"
    );
}

#[test]
fn frame_of_another_site_has_nothing_of_the_page() {
    let mut pair = Pair::new(&[
        (
            "http://a.test/page",
            html("<link rel=stylesheet href=http://b.test/s.css><iframe src=http://b.test/frame></iframe>")
                .with("referrer-policy", "no-referrer"),
        ),
        (
            "http://b.test/s.css",
            html("<meta name=referrer content=unsafe-url><img src=/leak.png><img src=http://a.test/delete>"),
        ),
        (
            "http://b.test/frame",
            html("<img src=f.png><img src=http://a.test/private>"),
        ),
    ]);
    pair.begin_visit("a.test");
    pair.send(
        "http://a.test/page",
        &[("accept", "text/html"), ("cookie", "who=anna")],
    );
    pair.run();
    // The client does not block the frame's host.
    pair.send("http://b.test/x", &[("referer", "http://a.test/page")]);
    pair.run();
    let asked = pair.take_asked();
    let urls: Vec<&str> = asked.iter().map(|asked| asked.url.as_str()).collect();
    for never in ["http://b.test/leak.png", "http://a.test/delete"] {
        assert!(
            !urls.contains(&never),
            "a style sheet that is HTML is not read"
        );
    }
    let sheet = asked_of(&asked, "http://b.test/s.css");
    assert_eq!(
        (sheet.field("cookie"), sheet.field("referer")),
        (None, None)
    );
    let page = asked_of(&asked, "http://a.test/page");
    assert_eq!(page.field("cookie").as_deref(), Some("who=anna"));
    let frame = asked_of(&asked, "http://b.test/frame");
    assert_eq!(
        (frame.field("cookie"), frame.field("referer")),
        (None, None)
    );
    let image = asked_of(&asked, "http://b.test/f.png");
    assert_eq!(image.field("cookie"), None);
    assert_eq!(
        image.field("referer").as_deref(),
        Some("http://b.test/frame")
    );
    let private = asked_of(&asked, "http://a.test/private");
    assert_eq!(private.field("cookie"), None);
    assert_eq!(private.field("referer").as_deref(), Some("http://b.test/"));
}

/// A script asks for HTML again and again, long after the page.
#[test]
fn html_for_a_script_is_no_page() {
    let mut scene = Scene::new(Config::default());
    let page = scene.page("<p>text</p>");
    scene.end(page);
    for fields in [
        &[("accept", "*/*")][..],
        &[("sec-fetch-dest", "empty"), ("accept", "text/html")],
        &[
            ("accept", "text/html"),
            ("x-requested-with", "XMLHttpRequest"),
        ],
    ] {
        scene.now += Duration::from_secs(5);
        let referrer = ("referer", "http://a.test/page");
        let fields: Vec<_> = fields.iter().copied().chain([referrer]).collect();
        let part = scene.ask("/part", &fields);
        let mut answer = head(200, &[("content-type", "text/html")]);
        scene.head(part, &mut answer);
        assert!(!answer.fields.contains("tandem-push"), "{fields:?}");
        scene.end(part);
    }
    let counts = scene.gateway.take_counts();
    assert_eq!((counts.pages_pushed, counts.pages_held_out), (1, 0));
}

/// `curl` and `wget` name no purpose. A frame of the page that they load is no page.
#[test]
fn html_for_a_tool_is_a_page() {
    for fields in [
        &[][..],
        &[("user-agent", "curl/8.5.0"), ("accept", "*/*")],
        &[("user-agent", "Wget/1.21"), ("accept", "*/*")],
    ] {
        let mut scene = Scene::new(Config::default());
        for (path, is_page) in [("/page", true), ("/frame", false), ("/other", true)] {
            let id = scene.ask(path, fields);
            let mut answer = head(200, &[("content-type", "text/html")]);
            scene.head(id, &mut answer);
            let treatment = answer.fields.contains("tandem-push");
            assert_eq!(treatment, is_page, "{path} {fields:?}");
            if path == "/page" {
                let body = b"<iframe src=/frame></iframe><img src=/a.png>";
                scene.gateway.handle_data(id, body);
                let found = scene.paths(PromiseStream::Response(id));
                assert_eq!(found, ["/learned.png", "/frame", "/a.png"]);
            }
        }
        let counts = scene.gateway.take_counts();
        assert_eq!(counts.pages_pushed, 2);
    }
}

#[test]
fn formats_of_the_browser_precede_those_of_others() {
    const URL: &str = "http://a.test/page";
    let own = [("accept", "image/own"), ("referer", URL)];
    for (own, others, expected) in [
        (None, None, "*/*"),
        (None, Some("image/others"), "image/others"),
        (Some(&own[..]), Some("image/others"), "image/own"),
    ] {
        let mut pair = Pair::new(&[(URL, html("<img src=/i.png>"))]);
        pair.predictor = Some(Needs::default().with_image_accept(others));
        if let Some(own) = own {
            pair.load("http://a.test/first.png", own);
        }
        pair.send(URL, NAVIGATION);
        pair.run();
        let asked = pair.take_asked();
        let found = asked_of(&asked, "http://a.test/i.png").field("accept");
        assert_eq!(found.as_deref(), Some(expected));
    }
}
