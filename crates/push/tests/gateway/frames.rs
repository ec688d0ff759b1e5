//! Scenes of frames: the requests for their documents and resources, and fonts that no visit has
//! requested.

use crate::needs::Needs;
use crate::origin::{Page, page};
use crate::pair::{Asked, Pair};
use crate::scene::{Scene, head};
use crate::{asked_of, html, image};

const PAGE: &str = "https://a.test/page";
const FRAME: &str = "https://a.test/f3";
const PART: &str = "https://a.test/x.png";
const FOREIGN: &str = "https://b.test/f3";

type Field = (&'static str, &'static str);

const NAVIGATION: [Field; 5] = [
    ("accept", "text/html"),
    ("upgrade-insecure-requests", "1"),
    ("sec-fetch-dest", "document"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-site", "none"),
];

const FRAMED: [Field; 5] = [
    ("accept", "text/html"),
    ("referer", PAGE),
    ("sec-fetch-dest", "iframe"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-site", "same-origin"),
];

/// The request of a sandboxed frame for a resource of its own host.
const OF_SANDBOX: [Field; 4] = [
    ("referer", FRAME),
    ("sec-fetch-dest", "image"),
    ("sec-fetch-mode", "no-cors"),
    ("sec-fetch-site", "cross-site"),
];

fn frame(body: &str) -> Page {
    page("text/html", body)
}

/// Loads the page, and returns the requests that origins received.
fn visit(pair: &mut Pair) -> Vec<Asked> {
    pair.take_asked();
    pair.send(PAGE, &NAVIGATION);
    pair.run();
    pair.take_asked()
}

fn urls(asked: &[Asked]) -> Vec<&str> {
    asked.iter().map(|asked| &*asked.url).collect()
}

#[test]
fn frame_at_any_path_is_requested_as_a_document() {
    let mut pair = Pair::new(&[(PAGE, html("")), (FRAME, frame(""))]);
    pair.predictor = Some(Needs::of_page(PAGE, vec![FRAME]));
    pair.load(FRAME, &FRAMED);
    let asked = visit(&mut pair);
    let request = asked_of(&asked, FRAME);
    for (name, expected) in [
        ("accept", Some("text/html")),
        ("upgrade-insecure-requests", Some("1")),
        ("sec-fetch-dest", Some("iframe")),
        ("sec-fetch-mode", Some("navigate")),
        ("sec-fetch-site", Some("same-origin")),
        ("origin", None),
    ] {
        assert_eq!(request.field(name).as_deref(), expected, "{name}");
    }
}

/// Without metadata, a link to data differs from the request for a frame by its time only.
#[test]
fn link_to_data_does_not_make_it_a_frame() {
    const DATA: &str = "https://a.test/d.json";
    const LINK: [Field; 2] = [("accept", "text/html"), ("referer", "https://b.test/")];
    let data = page("application/json", "1");
    let mut pair = Pair::new(&[(PAGE, html("")), (DATA, data)]);
    pair.predictor = Some(Needs::of_page(PAGE, vec![DATA]));
    pair.load(DATA, &LINK);
    assert_eq!(urls(&visit(&mut pair)), [PAGE], "its fields are unknown");
}

#[test]
fn request_of_an_opaque_origin_is_not_learned() {
    let referrer = ("referer", "http://a.test/frame");
    for (fields, expected) in [
        // A style sheet of another site may be the referrer.
        ([referrer, ("sec-fetch-site", "cross-site")], 1),
        ([referrer, ("origin", "null")], 0),
        ([referrer, ("sec-fetch-site", "same-origin")], 1),
    ] {
        let mut scene = Scene::new(tandem_push::gateway::Config::default());
        let id = scene.ask("/x.png", &fields);
        scene.head(id, &mut head(200, &[("content-type", "image/png")]));
        assert_eq!(scene.recorded().len(), expected, "{fields:?}");
    }
}

#[test]
fn resources_of_a_sandboxed_frame_are_left() {
    let of_origin = [OF_SANDBOX[0], ("sec-fetch-site", "same-origin")];
    for (requests, is_sandboxed) in [
        (&[][..], false),
        (&[(1, &OF_SANDBOX[..])], false),
        (&[(1, &OF_SANDBOX), (2, &OF_SANDBOX)], true),
        (
            &[(1, &OF_SANDBOX), (2, &OF_SANDBOX), (3, &of_origin)],
            false,
        ),
    ] {
        let pages = [(PAGE, html("")), (FRAME, frame("<img src=x.png>"))];
        let mut pair = Pair::new(&pages);
        pair.serve(PART, image());
        pair.serve("https://a.test/z.png", image());
        pair.predictor = Some(Needs::of_page(PAGE, vec![FRAME]));
        pair.load(FRAME, &FRAMED);
        for (user, fields) in requests {
            if let Some(needs) = &mut pair.predictor {
                needs.user = *user;
            }
            // The page itself has not requested the resource before.
            pair.load("https://a.test/z.png", fields);
        }
        let asked = visit(&mut pair);
        let expected = [PAGE, FRAME, PART];
        assert_eq!(urls(&asked), expected[..3 - usize::from(is_sandboxed)]);
    }
}

#[test]
fn frame_of_the_page_inside_another_site_is_not_read() {
    let pages = [
        (PAGE, html(&format!("<iframe src={FOREIGN}></iframe>"))),
        (FOREIGN, frame(&format!("<iframe src={FRAME}></iframe>"))),
        (FRAME, frame("<img src=x.png>")),
        ("https://b.test/first", image()),
    ];
    let mut pair = Pair::new(&pages);
    pair.load("https://b.test/first", &[]);
    let asked = visit(&mut pair);
    assert_eq!(urls(&asked), [PAGE, FOREIGN, FRAME]);
}

#[test]
fn resource_of_a_frame_carries_its_cookies() {
    let body = format!("<iframe src={FRAME}></iframe>");
    let document = frame("<img src=x.png>").with("set-cookie", "n=1; Path=/");
    let mut pair = Pair::new(&[(PAGE, html(&body)), (FRAME, document)]);
    let asked = visit(&mut pair);
    let cookie = |url| asked_of(&asked, url).field("cookie");
    assert_eq!(cookie(FRAME), None);
    assert_eq!(cookie(PART).as_deref(), Some("n=1"));
}

/// The browser's cache may answer the frame, so no head of it may come.
#[test]
fn learned_resource_of_a_frame_does_not_wait() {
    let mut pair = Pair::new(&[(PAGE, html("")), (FRAME, frame(""))]);
    pair.serve(PART, image());
    let mut needs = Needs::of_page(PAGE, vec![PART]);
    needs.own_referrers.insert(PART, FRAME);
    pair.predictor = Some(needs);
    pair.load(FRAME, &FRAMED);
    assert_eq!(urls(&visit(&mut pair)), [PAGE, PART]);
}

#[test]
fn cookies_of_a_foreign_frame_leave_its_resources() {
    let agent = |name| [&NAVIGATION[..], &[("user-agent", name)]].concat();
    let (chromium, firefox) = (agent("Chrome/156"), agent("Firefox/156"));
    for (fields, cookie, is_asked) in [
        (&chromium, "c=1; Secure; SameSite=None", false),
        (&chromium, "c=1; Secure; SameSite=None; Partitioned", false),
        (&chromium, "c=1; SameSite=Lax", true),
        (&chromium, "c=1", true),
        (&firefox, "c=1", false),
    ] {
        let body = "<img src=x.png><img src=https://a.test/y.png>";
        let pages = [
            (PAGE, html(&format!("<iframe src={FOREIGN}></iframe>"))),
            (FOREIGN, frame(body).with("set-cookie", cookie)),
            ("https://b.test/first", image()),
        ];
        let mut pair = Pair::new(&pages);
        pair.load("https://b.test/first", &[]);
        pair.take_asked();
        pair.send(PAGE, fields);
        pair.run();
        let asked = pair.take_asked();
        let found = urls(&asked).contains(&"https://b.test/x.png");
        assert_eq!(found, is_asked, "{cookie}");
        assert!(urls(&asked).contains(&"https://a.test/y.png"), "{cookie}");
    }
}

#[test]
fn font_is_left_if_visits_requested_others() {
    const SHEET: &str = "https://a.test/s.css";
    const USED: &str = "https://a.test/used.woff2";
    let faces = "@font-face { font-family: a; src: url(used.woff2) }\
                 @font-face { font-family: b; src: url(other.woff2) }";
    for (known, resource, expected) in [
        ("https://a.test/", USED, 4),
        (PAGE, SHEET, 4),
        (PAGE, USED, 3),
    ] {
        let pages = [
            (PAGE, html("<link rel=stylesheet href=s.css>")),
            (SHEET, page("text/css", faces)),
        ];
        let mut pair = Pair::new(&pages);
        pair.serve("https://a.test/used.woff2", image());
        pair.serve("https://a.test/other.woff2", image());
        pair.predictor = Some(Needs::of_copies(known, &[(resource, 600)]));
        let asked = visit(&mut pair);
        assert_eq!(urls(&asked)[..3], [PAGE, SHEET, USED]);
        assert_eq!(asked.len(), expected, "{known} {resource}");
    }
}

#[test]
fn frame_with_a_lifetime_waits_for_a_claim() {
    for (control, expected) in [("max-age=600", 1), ("no-cache", 2)] {
        let document = frame("")
            .with("cache-control", control)
            .with("etag", "\"1\"");
        let body = format!("<iframe src={FRAME}></iframe>");
        let pages = [(PAGE, frame(&body)), (FRAME, document)];
        let mut first = Pair::new(&pages);
        first.predictor = Some(Needs::of_copies(PAGE, &[(FRAME, 600)]));
        first.load(FRAME, &FRAMED);
        let mut pair = Pair::new(&pages);
        pair.predictor = first.predictor.take();
        let asked = visit(&mut pair);
        assert_eq!(asked.len(), expected, "{control}");
    }
}
