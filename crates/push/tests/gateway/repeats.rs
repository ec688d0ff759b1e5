//! Scenes of requests that cross the promise of their resource.

use std::time::Duration;

use crate::origin::Page;
use crate::pair::Pair;
use crate::{NAVIGATION, expiring_image, html, image};

/// A page whose image of another site was promised, while the browser has not seen the promise.
fn with_promise_on_its_way(image: Page) -> Pair {
    let body = "<img src=http://b.test/c.png><img src=http://b.test/d.png>";
    let mut pair = Pair::new(&[
        ("http://a.test/page", html(body)),
        ("http://b.test/d.png", image),
    ]);
    pair.load("http://a.test/page", NAVIGATION);
    pair.send("http://b.test/c.png", &[("referer", "http://a.test/")]);
    pair.run_until_asked(2);
    let asked: Vec<_> = pair.take_asked().into_iter().map(|it| it.url).collect();
    assert_eq!(asked, ["http://b.test/c.png", "http://b.test/d.png"]);
    pair
}

#[test]
fn request_across_a_promise_gets_its_response() {
    let referrer = [("referer", "http://a.test/")];
    let mut pair = with_promise_on_its_way(expiring_image());
    pair.received.clear();
    let none: [&str; 0] = [];
    assert_eq!(pair.load("http://b.test/d.png", &referrer), none);
    let is_data = |message: &&String| *message == "data http://b.test/d.png";
    assert_eq!(pair.received.iter().filter(is_data).count(), 2);
    assert_eq!(pair.gateway.take_counts().repeated, 1);
    for fields in [
        &[("referer", "http://a.test/"), ("cookie", "a=b")][..],
        &[("referer", "http://a.test/"), ("cache-control", "no-cache")],
        &[
            ("referer", "http://a.test/"),
            ("cache-control", "max-age=0"),
        ],
        &[("referer", "http://a.test/"), ("pragma", "no-cache")],
        &[("referer", "http://a.test/"), ("if-none-match", "\"1\"")],
        &[("referer", "http://a.test/"), ("range", "bytes=0-0")],
    ] {
        let mut pair = with_promise_on_its_way(expiring_image());
        let asked = pair.load("http://b.test/d.png", fields);
        assert_eq!(asked, ["http://b.test/d.png"], "{fields:?}");
    }
}

#[test]
fn copy_is_confirmed_across_a_promise() {
    let condition = [("referer", "http://a.test/"), ("if-none-match", "\"1\"")];
    let mut pair = with_promise_on_its_way(expiring_image().with("etag", "\"1\""));
    let none: [&str; 0] = [];
    assert_eq!(pair.load("http://b.test/d.png", &condition), none);
    assert_eq!(pair.gateway.take_counts().repeated, 1);
}

#[test]
fn response_is_repeated_for_a_short_time() {
    let referrer = [("referer", "http://a.test/")];
    let mut pair = with_promise_on_its_way(expiring_image());
    // The timer drops the response, although no event of the session follows.
    pair.run();
    assert_eq!(pair.gateway.poll_timeout(), None);
    let asked = pair.load("http://b.test/d.png", &referrer);
    assert_eq!(asked, ["http://b.test/d.png"]);
}

#[test]
fn response_is_repeated_if_caches_may_use_it() {
    let referrer = [("referer", "http://a.test/")];
    for (name, value) in [
        ("cache-control", "no-cache"),
        ("cache-control", "max-age=0"),
        ("set-cookie", "a=b"),
    ] {
        let image = match name {
            "set-cookie" => expiring_image().with(name, value),
            _ => image().with(name, value),
        };
        let mut pair = with_promise_on_its_way(image);
        let asked = pair.load("http://b.test/d.png", &referrer);
        assert_eq!(asked, ["http://b.test/d.png"], "{name}: {value}");
    }
    let mut pair = with_promise_on_its_way(expiring_image());
    pair.gateway.handle_unsafe_request();
    let asked = pair.load("http://b.test/d.png", &referrer);
    assert_eq!(asked, ["http://b.test/d.png"], "it may have changed");
}

/// A site clears its responses, such as at a logout.
#[test]
fn no_response_is_repeated_after_a_site_was_cleared() {
    let referrer = [("referer", "http://a.test/")];
    for (cleared, expected) in [("\"storage\"", 0), ("\"cache\"", 1)] {
        let mut pair = with_promise_on_its_way(expiring_image());
        let logout = "https://b.test/logout";
        pair.serve(logout, image().with("clear-site-data", cleared));
        pair.send(logout, &referrer);
        pair.run_for(Duration::from_millis(500));
        assert_eq!(pair.take_asked().len(), 1);
        let asked = pair.load("http://b.test/d.png", &referrer);
        assert_eq!(asked.len(), expected, "{cleared}: {asked:?}");
    }
}
