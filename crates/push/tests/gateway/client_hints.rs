//! Scenes of origins that ask the browser for client hints.

use tandem_http::Method;
use tandem_push::gateway::Config;

use crate::both::PROMISES;
use crate::needs::Needs;
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::{asked_of, html, image};

type Field = (&'static str, &'static str);

const PAGE: &str = "https://a.test/page";
const IMAGE: &str = "https://a.test/i.png";
const SHEET: &str = "https://a.test/s.css";
const FOREIGN: &str = "https://b.test/s.css";
const BODY: &str = "<link rel=stylesheet href=/s.css><img src=/i.png>\
                    <link rel=stylesheet href=https://b.test/s.css>";
const BRAND: Field = ("sec-ch-ua", "\"Chromium\";v=\"150\"");
const HINTS: [Field; 2] = [("device-memory", "8"), ("sec-ch-dpr", "1.5")];
const ASKED: &str = "Sec-CH-DPR, device-memory, Sec-CH-UA-Platform";

fn navigation(hints: &[Field]) -> Vec<Field> {
    let own = [
        BRAND,
        ("accept", "text/html"),
        ("sec-fetch-dest", "document"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-site", "none"),
    ];
    [&own, hints].concat()
}

fn part(destination: &'static str, hints: &[Field]) -> Vec<Field> {
    let own = [
        BRAND,
        ("accept", "*/*"),
        ("referer", PAGE),
        ("sec-fetch-dest", destination),
        ("sec-fetch-mode", "no-cors"),
        ("sec-fetch-site", "same-origin"),
    ];
    [&own, hints].concat()
}

fn pair(document: Page) -> Pair {
    let sheet = || page("text/css", "p {}");
    Pair::new(&[
        (PAGE, document),
        (SHEET, sheet()),
        (IMAGE, image()),
        (FOREIGN, sheet()),
    ])
    .with_client(true)
}

fn asking() -> Page {
    html(BODY).with("accept-ch", ASKED)
}

/// Returns the URLs that the origins are asked for after a request for the page.
fn visit(pair: &mut Pair, fields: &[Field]) -> Vec<String> {
    pair.browse(Method::Get, PAGE, fields);
    let asked = pair.take_asked();
    let mut urls: Vec<_> = asked.into_iter().map(|asked| asked.url).collect();
    urls.sort();
    urls
}

#[test]
fn pushes_have_the_hints_of_the_page() {
    for has_own_fields in PROMISES {
        let mut pair = pair(asking()).with_client(has_own_fields);
        pair.browse(Method::Get, PAGE, &navigation(&HINTS));
        let asked = pair.take_asked();
        for url in [SHEET, IMAGE] {
            let push = asked_of(&asked, url);
            for (name, value) in HINTS {
                assert_eq!(push.field(name).as_deref(), Some(value), "{url}");
            }
        }
        let foreign = asked_of(&asked, FOREIGN);
        assert_eq!(foreign.field("sec-ch-dpr"), None, "another origin");
        let (reply, asked) = pair.get(SHEET, &part("style", &HINTS));
        assert!(reply.is_pushed && asked.is_empty());
        let other = [HINTS[0], ("sec-ch-dpr", "2")];
        assert!(!pair.get(IMAGE, &part("image", &other)).0.is_pushed);
    }
}

/// The browser sends the hints from now on, and only its requests show the values.
#[test]
fn resources_wait_for_the_first_request_with_hints() {
    let mut pair = pair(asking());
    assert_eq!(visit(&mut pair, &navigation(&[])), [PAGE, FOREIGN]);
    let (reply, asked) = pair.get(SHEET, &part("style", &HINTS));
    assert!(!reply.is_pushed);
    assert!(asked.contains(&SHEET.to_owned()), "{asked:?}");
    let (reply, asked) = pair.get(IMAGE, &part("image", &HINTS));
    assert!(
        reply.is_pushed && !asked.contains(&SHEET.to_owned()),
        "{asked:?}"
    );
}

/// The browser remembers the list, and its request for the next page shows the values.
#[test]
fn hints_of_earlier_pages_hold_for_later_ones() {
    let mut pair = pair(asking());
    visit(&mut pair, &navigation(&[]));
    pair.serve(PAGE, html(BODY));
    pair.browse(Method::Get, PAGE, &navigation(&HINTS));
    let asked = pair.take_asked();
    let push = asked_of(&asked, IMAGE);
    assert_eq!(push.field("device-memory").as_deref(), Some("8"));
}

/// Other browsers send no hints, and plain HTTP has none.
#[test]
fn request_without_brand_has_no_hints() {
    let mut fields = navigation(&[]);
    fields.retain(|field| *field != BRAND);
    let mut pair = pair(asking());
    assert_eq!(visit(&mut pair, &fields), [IMAGE, PAGE, SHEET, FOREIGN]);
}

#[test]
fn resources_with_hints_that_vary_are_left_out() {
    for (asked, expected) in [
        ("Width", &[PAGE, SHEET, FOREIGN][..]),
        ("Sec-CH-Width", &[PAGE, SHEET, FOREIGN]),
        ("RTT", &[PAGE, FOREIGN]),
        ("Downlink", &[PAGE, FOREIGN]),
        (
            "Sec-CH-UA, Sec-CH-UA-Mobile",
            &[IMAGE, PAGE, SHEET, FOREIGN],
        ),
    ] {
        let mut pair = pair(html(BODY).with("accept-ch", asked));
        assert_eq!(visit(&mut pair, &navigation(&[])), expected, "{asked}");
    }
}

/// A frame has its own size, which its document and no other shows.
#[test]
fn parts_of_frames_wait_if_hints_tell_the_size() {
    for (name, is_pushed) in [("sec-ch-viewport-width", false), ("sec-ch-dpr", true)] {
        let mut pair = pair(html("<iframe src=/frame></iframe><img src=/i.png>"));
        pair.serve(
            "https://a.test/frame",
            page("text/html", "<img src=/j.png>"),
        );
        pair.serve(PAGE, html("<img src=/i.png>").with("accept-ch", name));
        pair.browse(Method::Get, PAGE, &navigation(&[(name, "780")]));
        pair.get(SHEET, &part("style", &[(name, "300")]));
        pair.serve(PAGE, html("<iframe src=/frame></iframe><img src=/k.png>"));
        pair.browse(Method::Get, PAGE, &navigation(&[(name, "780")]));
        let asked = pair.take_asked();
        let has_part = asked.iter().any(|it| it.url == "https://a.test/j.png");
        assert_eq!(has_part, is_pushed, "{name}");
        let own = asked_of(&asked, "https://a.test/k.png");
        assert_eq!(own.field(name).as_deref(), Some("780"));
    }
}

#[test]
fn resources_of_delegated_origins_are_left_out() {
    for (policy, is_pushed) in [
        ("geolocation=*, camera=(\"https://b.test\")", true),
        ("ch-dpr=(self)", true),
        ("ch-dpr=(self \"https://c.test\")", true),
        ("geolocation=(), ch-dpr=(self \"https://b.test\")", false),
        ("ch-device-memory=*", false),
    ] {
        let mut pair = pair(asking().with("permissions-policy", policy));
        let asked = visit(&mut pair, &navigation(&HINTS));
        assert_eq!(asked.contains(&FOREIGN.to_owned()), is_pushed, "{policy}");
    }
}

#[test]
fn elements_ask_for_hints_and_delegate_them() {
    for (element, expected) in [
        (
            "<meta http-equiv=accept-ch content=dpr>",
            &[PAGE, FOREIGN][..],
        ),
        (
            "<meta http-equiv=delegate-ch content='sec-ch-dpr https://b.test'>",
            &[PAGE],
        ),
    ] {
        let mut pair = pair(html(&format!("{element}{BODY}")));
        pair.predictor = Some(Needs::of_page(PAGE, vec![]));
        assert_eq!(visit(&mut pair, &navigation(&[])), expected, "{element}");
        pair.predictor = Some(Needs::of_page(PAGE, vec![IMAGE]));
        let again = visit(&mut pair, &navigation(&[]));
        assert!(!again.contains(&IMAGE.to_owned()), "the element is known");
        let (reply, _) = pair.get(SHEET, &part("style", &HINTS[1..]));
        assert!(!reply.is_pushed);
        assert!(pair.get(IMAGE, &part("image", &HINTS[1..])).0.is_pushed);
    }
}

/// A list of hints for which the browser has no value changes nothing.
#[test]
fn unknown_hints_are_awaited_once() {
    let document = || html(BODY).with("accept-ch", "Sec-CH-DPR, Sec-CH-Unknown");
    let mut pair = Pair::with(Config::default(), &[]).with_client(true);
    for (url, page) in [
        (PAGE, document()),
        (SHEET, page("text/css", "")),
        (IMAGE, image()),
    ] {
        pair.serve(url, page);
    }
    let hints = &HINTS[1..];
    let asked = visit(&mut pair, &navigation(hints));
    assert!(!asked.contains(&SHEET.to_owned()));
    pair.get(SHEET, &part("style", hints));
    pair.serve("https://a.test/next", document());
    pair.browse(Method::Get, "https://a.test/next", &navigation(hints));
    pair.serve(
        "https://a.test/next2",
        html("<img src=/j.png>").with("accept-ch", "Sec-CH-DPR, Sec-CH-Unknown"),
    );
    pair.browse(Method::Get, "https://a.test/next2", &navigation(hints));
    let asked = pair.take_asked();
    let push = asked_of(&asked, "https://a.test/j.png");
    assert_eq!(push.field("sec-ch-dpr").as_deref(), Some("1.5"));
}
