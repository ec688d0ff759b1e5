//! Scenes of one user whose early requests repeat those that the browser made for the last visit.

use std::time::Duration;

use tandem_push::gateway::{Audience, Config};
use tandem_push::wire::Fate;

use crate::origin::{Page, page, redirect};
use crate::pair::Pair;
use crate::{asked_of, image, known};

const PAGE: &str = "https://a.test/page";
const DOCUMENT: (&str, &str) = ("sec-fetch-dest", "document");
const NAVIGATION: &[(&str, &str)] = &[("accept", "text/html"), DOCUMENT];
const IMAGE: (&str, &str) = ("sec-fetch-dest", "image");

/// A page that names two images of its own, and one of another site.
fn gallery() -> Page {
    known("<img src=0.png><img src=1.png><img src=https://b.test/2.png>")
}

fn pair(pages: &[(&str, Page)]) -> Pair {
    let config = Config {
        audience: Audience::OwnRequestsOnly,
        ..Config::default()
    };
    let mut pair = Pair::with(config, pages);
    for name in ["0.png", "1.png", "3.png", "data"] {
        pair.serve(&format!("https://a.test/{name}"), image());
    }
    pair.serve("https://b.test/2.png", image());
    pair.serve("https://b.test/f.woff2", page("font/woff2", ""));
    pair
}

/// The fields of a request with `*.test` as the list of opened hosts.
fn opened<'a>(fields: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let list = (tandem_push::wire::OPENED_FIELD, "a.test b.test");
    fields.iter().copied().chain([list]).collect()
}

/// Visits a page. Returns the URLs that the origins received before the browser asks for a part.
fn visit(pair: &mut Pair, cookie: Option<&str>) -> Vec<String> {
    let cookie = cookie.map(|value| ("cookie", value));
    let fields: Vec<_> = NAVIGATION.iter().copied().chain(cookie).collect();
    pair.load(PAGE, &opened(&fields))
}

/// Requests a part as the browser does.
fn part(pair: &mut Pair, url: &str, fields: &[(&str, &str)]) {
    let asked = pair.load(url, &opened(fields));
    assert_eq!(asked, [url]);
}

const OWN: &[(&str, &str)] = &[IMAGE, ("referer", PAGE)];

#[test]
fn only_the_requests_of_the_browser_are_repeated() {
    let mut pair = pair(&[(PAGE, gallery())]);
    assert_eq!(visit(&mut pair, None), [PAGE]);
    part(&mut pair, "https://a.test/0.png", OWN);
    part(
        &mut pair,
        "https://b.test/2.png",
        &[IMAGE, ("referer", "https://a.test/")],
    );
    // A script requests this one, which the page does not name.
    part(&mut pair, "https://a.test/3.png", OWN);
    let expected = ["0.png", "3.png", "page"].map(|path| format!("https://a.test/{path}"));
    let asked = visit(&mut pair, None);
    assert_eq!(asked[..3], expected);
    assert_eq!(asked[3..], ["https://b.test/2.png"]);
    // One that the browser does not use is not requested again.
    pair.report(Fate::Used, "https://a.test/0.png");
    pair.report(Fate::Wasted, "https://a.test/3.png");
    pair.report(Fate::Used, "https://b.test/2.png");
    pair.run();
    let asked = visit(&mut pair, None);
    assert_eq!(
        asked,
        ["https://a.test/0.png", PAGE, "https://b.test/2.png"]
    );
}

#[test]
fn repeated_request_is_that_of_the_browser() {
    let style = "https://b.test/s.css";
    let font = "https://b.test/f.woff2";
    let mut pair = pair(&[
        (PAGE, known("").with("content-encoding", "br")),
        (style, page("text/css", "")),
    ]);
    assert_eq!(visit(&mut pair, None), [PAGE]);
    let of_page = [("sec-fetch-dest", "style"), ("referer", "https://a.test/")];
    part(&mut pair, style, &of_page);
    let by_cors = [
        ("sec-fetch-dest", "font"),
        ("sec-fetch-mode", "cors"),
        ("sec-fetch-site", "cross-site"),
        ("origin", "https://a.test"),
        ("referer", style),
    ];
    part(&mut pair, font, &by_cors);
    pair.send(PAGE, &opened(NAVIGATION));
    pair.run();
    let asked = pair.take_asked();
    let field = |url: &str, name: &str| asked_of(&asked, url).field(name);
    assert_eq!(field(style, "referer").as_deref(), Some("https://a.test/"));
    assert_eq!(field(style, "origin"), None);
    assert_eq!(field(font, "referer").as_deref(), Some(style));
    assert_eq!(field(font, "origin").as_deref(), Some("https://a.test"));
}

#[test]
fn unsuitable_and_late_requests_are_not_repeated() {
    let no_store = || image().with("cache-control", "no-store");
    let mut pair = pair(&[
        (PAGE, gallery()),
        ("https://a.test/count.gif", no_store()),
        ("https://a.test/old", redirect("/page")),
    ]);
    visit(&mut pair, None);
    part(&mut pair, "https://a.test/count.gif", OWN);
    let data = [("sec-fetch-dest", "empty"), ("referer", PAGE)];
    part(&mut pair, "https://a.test/data", &data);
    let elsewhere = [IMAGE, ("referer", "https://a.test/other")];
    part(&mut pair, "https://a.test/0.png", &elsewhere);
    part(&mut pair, "https://a.test/0.png", &[IMAGE]);
    part(&mut pair, "https://a.test/old", NAVIGATION);
    visit(&mut pair, None);
    pair.pass(Duration::from_secs(31));
    part(&mut pair, "https://a.test/0.png", OWN);
    assert_eq!(visit(&mut pair, None), [PAGE]);
}

#[test]
fn only_documents_of_tabs_are_visits() {
    let frame = [("accept", "text/html"), ("sec-fetch-dest", "iframe")];
    let program = [("accept", "text/html")];
    let prefetch = [NAVIGATION[0], DOCUMENT, ("sec-purpose", "prefetch")];
    for fields in [&frame[..], &program, &prefetch] {
        let mut pair = pair(&[(PAGE, gallery())]);
        assert_eq!(pair.load(PAGE, &opened(fields)), [PAGE]);
        part(&mut pair, "https://a.test/0.png", OWN);
        assert_eq!(visit(&mut pair, None), [PAGE]);
        part(&mut pair, "https://a.test/0.png", OWN);
        assert_eq!(pair.load(PAGE, &opened(fields)), [PAGE]);
        assert_eq!(visit(&mut pair, None).len(), 2);
    }
}

/// The user may have deleted the cookies of the site.
#[test]
fn visit_without_the_last_cookies_repeats_nothing() {
    let mut pair = pair(&[(PAGE, gallery())]);
    for (cookie, expected) in [
        (None, 1),
        (Some("id=1"), 2),
        (Some("id=1; more=2"), 2),
        (None, 1),
        (Some("id=2"), 2),
        (Some("id=3"), 1),
    ] {
        assert_eq!(visit(&mut pair, cookie).len(), expected, "{cookie:?}");
        part_with(&mut pair, cookie);
    }
}

/// The cookies of a login and of a language.
const KEPT: (&str, &str) = ("cookie", "id=1; language=en");

/// A cookie that the user keeps, such as one of the language, does not hide a logout.
#[test]
fn response_that_ends_a_login_ends_visits() {
    let fields: Vec<_> = NAVIGATION.iter().copied().chain([KEPT]).collect();
    let deleted = Some("id=; Max-Age=0; Domain=a.test");
    for (host, is_form, is_page, cookie, expected) in [
        ("www.a.test", false, false, deleted, 1),
        ("a.test", true, false, deleted, 1),
        ("a.test", false, false, Some("language=en"), 2),
        ("a.test", true, false, None, 2),
        ("b.test", false, false, Some("id=; Max-Age=0"), 2),
        ("a.test", false, true, deleted, 1),
        ("a.test", false, true, Some("id=2"), 2),
    ] {
        let logout = format!("https://{host}/logout");
        let response = match is_page {
            true => gallery(),
            false => redirect(PAGE),
        };
        let response = match cookie {
            Some(cookie) => response.with("set-cookie", cookie),
            None => response,
        };
        let mut pair = pair(&[(PAGE, gallery()), (&logout, response)]);
        visit(&mut pair, Some(KEPT.1));
        part_with(&mut pair, Some(KEPT.1));
        match is_form {
            true => pair.post(&logout, &opened(&fields)),
            false => pair.send(&logout, &opened(&fields)),
        }
        pair.run();
        pair.take_asked();
        let asked = visit(&mut pair, Some("language=en"));
        assert_eq!(
            asked.len(),
            expected,
            "{logout} {is_form} {is_page} {cookie:?}"
        );
    }
}

/// A site can delete all cookies without their names.
#[test]
fn response_that_clears_cookies_ends_visits() {
    let fields: Vec<_> = NAVIGATION.iter().copied().chain([KEPT]).collect();
    for (is_page, cleared, expected) in [
        (false, "\"cache\", \"cookies\"", 1),
        (true, "\"*\"", 1),
        (false, "\"storage\"", 2),
        (true, "\"storage\"", 2),
    ] {
        let response = match is_page {
            true => gallery(),
            false => redirect(PAGE),
        };
        let response = response.with("clear-site-data", cleared);
        let mut pair = pair(&[(PAGE, gallery()), ("https://a.test/logout", response)]);
        visit(&mut pair, Some(KEPT.1));
        part_with(&mut pair, Some(KEPT.1));
        pair.send("https://a.test/logout", &opened(&fields));
        pair.run();
        pair.take_asked();
        let asked = visit(&mut pair, Some(KEPT.1));
        assert_eq!(asked.len(), expected, "{is_page} {cleared}");
    }
}

/// Requests an image with a cookie.
fn part_with(pair: &mut Pair, cookie: Option<&str>) {
    let cookie = cookie.map(|value| ("cookie", value));
    let fields: Vec<_> = OWN.iter().copied().chain(cookie).collect();
    pair.report(Fate::Used, "https://a.test/0.png");
    pair.load("https://a.test/0.png", &opened(&fields));
}

/// Early requests would precede the cookies of the page.
#[test]
fn page_that_sets_cookies_is_not_remembered() {
    let setting = gallery().with("set-cookie", "id=1");
    let mut pair = pair(&[(PAGE, setting)]);
    assert_eq!(visit(&mut pair, None), [PAGE]);
    part(&mut pair, "https://a.test/0.png", OWN);
    // The browser returns the cookie, and the page changes nothing any more.
    for expected in [1, 2] {
        assert_eq!(visit(&mut pair, Some("id=1")).len(), expected);
        part_with(&mut pair, Some("id=1"));
    }
}
