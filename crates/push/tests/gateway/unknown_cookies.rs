//! Scenes of resources of other origins whose requests carry cookies that the gateway has not seen.

use crate::needs::Needs;
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::{FRESH, NAVIGATION, fresh_image, html, image};

const PAGE: &str = "http://www.a.example/page";
const OWN: &str = "http://www.a.example/own.png";
const FAR: &str = "http://img.a.example/far.png";
const OTHER: &str = "http://img.a.example/other.png";
const BACK: &[(&str, &str)] = &[("accept", "text/html"), ("cookie", "id=1")];
const FROM_PAGE: (&str, &str) = ("referer", PAGE);

fn pages(far: Page) -> Vec<(&'static str, Page)> {
    vec![
        (
            PAGE,
            html("<img src=own.png><img src=//img.a.example/far.png>"),
        ),
        (OWN, fresh_image()),
        (FAR, far),
        (OTHER, fresh_image()),
    ]
}

/// Returns the knowledge after three users have requested the far image with cookies of their own.
/// The fourth user comes next.
fn needs(far: &Page) -> Needs {
    let mut needs = Needs::of_page(PAGE, vec![FAR]);
    for user in 1..=3 {
        needs.user = user;
        let mut pair = Pair::new(&pages(far.clone()));
        pair.predictor = Some(needs);
        pair.load(FAR, &[("accept", "*/*"), FROM_PAGE, ("cookie", "far=1")]);
        needs = pair.predictor.take().expect("the scene has a predictor");
    }
    needs.user = 4;
    needs
}

/// Returns a pair in which the site is known to the session, after these earlier users.
fn pair(far: Page) -> Pair {
    let needs = needs(&far);
    let mut pair = Pair::new(&pages(far));
    pair.predictor = Some(needs);
    pair.begin_visit("www.a.example");
    pair
}

fn has(asked: &[String], url: &str) -> bool {
    asked.iter().any(|asked| asked == url)
}

#[test]
fn resource_waits_until_the_host_sees_no_cookie() {
    for (fields, is_pushed) in [
        (&[("accept", "*/*"), FROM_PAGE][..], true),
        (&[("accept", "*/*"), FROM_PAGE, ("cookie", "far=1")], false),
    ] {
        let mut pair = pair(fresh_image());
        let asked = pair.load(PAGE, BACK);
        assert!(has(&asked, OWN) && !has(&asked, FAR), "{asked:?}");
        let asked = pair.load(OTHER, fields);
        assert_eq!(has(&asked, FAR), is_pushed, "{fields:?}");
        // The browser's cookies count at the next page too.
        let asked = pair.load("http://www.a.example/page?2", BACK);
        assert!(!has(&asked, FAR) || is_pushed, "{asked:?}");
    }
}

#[test]
fn resource_for_everyone_does_not_wait() {
    for (control, waits) in [("public, max-age=600", false), (FRESH, true)] {
        let mut pair = pair(image().with("cache-control", control));
        let asked = pair.load(PAGE, BACK);
        assert_eq!(!has(&asked, FAR), waits, "{control}");
    }
}

#[test]
fn resource_of_a_new_browser_does_not_wait() {
    let mut pair = pair(fresh_image());
    let asked = pair.load(PAGE, NAVIGATION);
    assert!(has(&asked, OWN) && has(&asked, FAR), "{asked:?}");
}

#[test]
fn request_without_credentials_does_not_wait() {
    let mut pair = pair(fresh_image());
    let body = "<img src=//img.a.example/far.png crossorigin>";
    pair.serve(PAGE, html(body));
    assert!(has(&pair.load(PAGE, BACK), FAR));
}

/// Pages of one origin know the cookies of their own requests.
#[test]
fn own_requests_of_an_origin_teach_nothing() {
    let mut needs = Needs::of_page(PAGE, vec![FAR]);
    for user in 1..=3 {
        needs.user = user;
        let mut pair = Pair::new(&pages(fresh_image()));
        pair.predictor = Some(needs);
        let own = ("referer", "http://img.a.example/page");
        pair.load(FAR, &[("accept", "*/*"), own, ("cookie", "far=1")]);
        needs = pair.predictor.take().expect("the scene has a predictor");
    }
    let mut pair = Pair::new(&pages(fresh_image()));
    pair.predictor = Some(needs);
    pair.begin_visit("www.a.example");
    assert!(has(&pair.load(PAGE, BACK), FAR));
}

#[test]
fn pushes_with_cookies_of_their_page_teach_too() {
    const STYLE: &str = "http://img.a.example/far.css";
    let body = "<link rel=stylesheet href=//img.a.example/far.css>";
    let style = page("text/css", "").with("cache-control", FRESH);
    let setting = page("text/html", body).with("set-cookie", "id=1; Domain=a.example");
    let mut needs = Needs::of_page(PAGE, vec![]);
    for user in 1..=3 {
        needs.user = user;
        let mut pair = Pair::new(&[(PAGE, setting.clone()), (STYLE, style.clone())]);
        pair.predictor = Some(needs);
        let asked = pair.load(PAGE, NAVIGATION);
        assert!(has(&asked, STYLE), "{asked:?}");
        needs = pair.predictor.take().expect("the scene has a predictor");
    }
    // The browser has the cookie from an earlier visit.
    needs.user = 4;
    let mut pair = Pair::new(&[(PAGE, page("text/html", body)), (STYLE, style)]);
    pair.predictor = Some(needs);
    assert!(!has(&pair.load(PAGE, BACK), STYLE));
}

/// A request by CORS makes the host a wanted one, and shows no cookies.
#[test]
fn resource_waits_at_a_host_that_is_wanted() {
    for (fields, is_pushed) in [
        (&[("accept", "*/*"), FROM_PAGE][..], true),
        (&[("accept", "*/*"), FROM_PAGE, ("cookie", "far=1")], false),
    ] {
        let mut pair = pair(fresh_image());
        let origin = ("origin", "http://www.a.example");
        pair.load(
            "http://img.a.example/f.woff2",
            &[("accept", "*/*"), FROM_PAGE, origin],
        );
        let asked = pair.load(PAGE, BACK);
        assert!(has(&asked, OWN) && !has(&asked, FAR), "{asked:?}");
        let asked = pair.load(OTHER, fields);
        assert_eq!(has(&asked, FAR), is_pushed, "{fields:?}");
    }
}

#[test]
fn link_shows_no_cookies_of_resources() {
    const LINKED: &str = "http://img.a.example/linked";
    let link = [("accept", "text/html"), FROM_PAGE, ("cookie", "lax=1")];
    let mut pair = pair(fresh_image());
    pair.serve(LINKED, html(""));
    pair.load(LINKED, &link);
    assert!(!has(&pair.load(PAGE, BACK), FAR));
    let asked = pair.load(OTHER, &[("accept", "*/*"), FROM_PAGE]);
    assert!(has(&asked, FAR), "{asked:?}");
    // Nor do links of earlier users.
    let mut needs = Needs::of_page(PAGE, vec![FAR]);
    for user in 1..=3 {
        needs.user = user;
        let mut pair = Pair::new(&pages(fresh_image()));
        pair.predictor = Some(needs);
        pair.load(FAR, &link);
        needs = pair.predictor.take().expect("the scene has a predictor");
    }
    let mut pair = Pair::new(&pages(fresh_image()));
    pair.predictor = Some(needs);
    pair.begin_visit("www.a.example");
    assert!(has(&pair.load(PAGE, BACK), FAR));
}

#[test]
fn new_cookie_of_the_host_lets_resources_wait_again() {
    let mut pair = pair(fresh_image());
    pair.serve(OTHER, image().with("set-cookie", "far=1"));
    pair.load(OTHER, &[("accept", "*/*"), FROM_PAGE]);
    let asked = pair.load(PAGE, BACK);
    assert!(has(&asked, OWN) && !has(&asked, FAR), "{asked:?}");
}

/// The URLs of a counter at the visits of three users, and at the next one.
const COUNTERS: [&str; 4] = [
    "http://img.a.example/c.gif?1",
    "http://img.a.example/c.gif?2",
    "http://img.a.example/c.gif?3",
    "http://img.a.example/c.gif?4",
];

/// Returns a page that names the counter of a visit.
fn counting(visit: usize) -> Page {
    let url = COUNTERS[visit];
    let body = format!("<img src={url}><img src=own.png>");
    page("text/html", &body).with("set-cookie", "site=1; Domain=a.example")
}

/// Returns a pair after the visits of three users. They have requested their counters with these
/// cookies, after a page with these fields. If browsers return, the session knows the site.
fn counted(counter: &Page, fields: &[(&str, &str)], cookie: &str) -> Pair {
    let mut needs = Needs::of_page(PAGE, vec![]);
    let pair_of = |mut needs: Needs, visit: usize| {
        needs.user = visit as u64;
        let pages = [
            (PAGE, counting(visit)),
            (OWN, fresh_image()),
            (COUNTERS[visit], counter.clone()),
        ];
        let mut pair = Pair::new(&pages);
        pair.predictor = Some(needs);
        if fields == BACK {
            pair.begin_visit("www.a.example");
        }
        pair
    };
    for (visit, counter) in COUNTERS.iter().enumerate().take(3) {
        let mut pair = pair_of(needs, visit);
        pair.load(PAGE, fields);
        // Other origins get the origin of the page only.
        let referrer = ("referer", "http://www.a.example/");
        let cookie = ("cookie", cookie);
        pair.load(counter, &[("accept", "*/*"), referrer, cookie]);
        needs = pair.predictor.take().expect("the scene has a predictor");
    }
    pair_of(needs, 3)
}

/// The predictor knows no response that must not be stored.
#[test]
fn counter_of_a_page_waits_for_its_cookies() {
    let pixel = image().with("cache-control", "no-store");
    let mut pair = counted(&pixel, BACK, "far=1");
    let asked = pair.load(PAGE, BACK);
    assert!(has(&asked, OWN) && !has(&asked, COUNTERS[3]), "{asked:?}");
}

#[test]
fn counter_with_new_cookies_is_left_to_browsers() {
    let pixel = image().with("cache-control", "no-store");
    for (counter, cookie, is_pushed) in [
        (&pixel, "site=1; far=1", false),
        (&pixel, "far=1", false),
        // Early requests carry the cookies that the page sets.
        (&pixel, "site=1", true),
        // Other responses may arrive before the browser gets the cookies.
        (&fresh_image(), "site=1; far=1", true),
        (&image().with("cache-control", "no-cache"), "far=1", true),
    ] {
        let mut pair = counted(counter, NAVIGATION, cookie);
        let asked = pair.load(PAGE, NAVIGATION);
        assert!(has(&asked, OWN), "{asked:?}");
        assert_eq!(has(&asked, COUNTERS[3]), is_pushed, "{cookie} {asked:?}");
    }
}

/// Browsers that return have cookies from earlier visits.
#[test]
fn cookies_of_returning_browsers_concern_no_new_one() {
    let pixel = image().with("cache-control", "no-store");
    let mut pair = counted(&pixel, BACK, "far=1");
    let asked = pair.load(PAGE, NAVIGATION);
    assert!(has(&asked, COUNTERS[3]), "{asked:?}");
}

#[test]
fn frame_of_a_returning_browser_waits_for_its_cookies() {
    const FRAME: &str = "http://img.a.example/frame";
    let frame = ("sec-fetch-dest", "iframe");
    let mode = ("sec-fetch-mode", "navigate");
    let pages = [
        (PAGE, html("<iframe src=//img.a.example/frame></iframe>")),
        (FRAME, html("").with("cache-control", "no-cache")),
    ];
    let mut needs = Needs::of_page(PAGE, vec![]);
    for (user, is_pushed) in [(1, true), (2, true), (3, true), (4, false)] {
        needs.user = user;
        let mut pair = Pair::new(&pages);
        pair.predictor = Some(needs);
        pair.begin_visit("www.a.example");
        let asked = pair.load(PAGE, BACK);
        assert_eq!(has(&asked, FRAME), is_pushed, "{user} {asked:?}");
        let accept = ("accept", "text/html");
        let cookie = ("cookie", "far=1");
        pair.load(FRAME, &[accept, FROM_PAGE, cookie, frame, mode]);
        needs = pair.predictor.take().expect("the scene has a predictor");
    }
}
