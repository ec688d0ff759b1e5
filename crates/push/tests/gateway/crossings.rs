//! Scenes of both halves with requests that cross the promises of their resources.

use std::time::Duration;

use tandem_push::wire::OPENED_FIELD;

use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::{NAVIGATION, asked_of, html, image};

const PAGE: &str = "http://a.test/page";
const IMAGE: &str = "http://a.test/i.png";

/// The fields of a browser's request for the image.
const FIELDS: [(&str, &str); 2] = [("accept", "*/*"), ("referer", PAGE)];

/// The time at which the promise is on its way to the client.
const CROSSING: Duration = Duration::from_millis(150);

/// Returns a pair in which a promise of the image is on its way. The client takes references.
fn crossing(image: Page) -> Pair {
    let pages = [(PAGE, html("<img src=i.png>")), (IMAGE, image)];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.gateway.allow_references();
    pair.browse_for(CROSSING, PAGE, NAVIGATION);
    pair
}

/// Returns how often the body of the image was sent to the client.
fn bodies(pair: &Pair) -> usize {
    let data = format!("data {IMAGE}");
    pair.received.iter().filter(|own| **own == data).count()
}

#[test]
fn crossing_request_gets_the_push_alone() {
    for caching in ["max-age=600", "no-cache"] {
        let mut pair = crossing(image().with("cache-control", caching));
        let (reply, asked) = pair.get(IMAGE, &FIELDS);
        assert!(reply.is_pushed && reply.body == "x", "{caching}");
        assert_eq!(asked, [IMAGE, PAGE], "{caching}");
        assert_eq!(bodies(&pair), 1, "{caching}");
        let counts = pair.gateway.take_counts();
        assert_eq!((counts.repeated, counts.wasted_bytes), (1, 0), "{caching}");
        assert_eq!(counts.extra_requests, 0);
    }
}

/// The client adds its list of opened hosts to requests over TLS.
#[test]
fn crossing_request_over_tls_gets_the_push_alone() {
    let (page, picture) = ("https://a.test/page", "https://a.test/i.png");
    let list = (OPENED_FIELD, "a.test");
    let pages = [(page, html("<img src=i.png>")), (picture, image())];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.gateway.allow_references();
    pair.browse_for(CROSSING, page, &[NAVIGATION[0], list]);
    let (reply, asked) = pair.get(picture, &[FIELDS[0], ("referer", page), list]);
    assert!(reply.is_pushed && reply.body == "x");
    assert_eq!(asked, [picture, page]);
}

/// The head of the push would overtake a reference, and the client would drop it.
#[test]
fn unkept_response_is_handed_to_a_crossing_request() {
    let late = ("cookie", "late=1");
    for (field, is_handed_over) in [(None, true), (Some(late), false)] {
        let mut pair = crossing(image().with("cache-control", "no-store"));
        let fields: Vec<_> = FIELDS.into_iter().chain(field).collect();
        let (reply, asked) = pair.get(IMAGE, &fields);
        assert!(!reply.is_pushed && reply.body == "x");
        assert_eq!(asked.len(), 3 - usize::from(is_handed_over), "{asked:?}");
        let counts = pair.gateway.take_counts();
        assert_eq!(counts.repeated, u64::from(is_handed_over));
        assert_eq!(counts.extra_requests, u64::from(!is_handed_over));
        assert_eq!(pair.gateway.records(), [0, 0, 0]);
    }
}

/// Returns the number of requests for a frame, whose response is `no-store`, that the browser
/// requests with other metadata than the gateway. The page has metadata.
fn requests_for_frame(fields: &[(&str, &str)], answer: Page) -> usize {
    let metadata = [
        ("sec-fetch-site", "none"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    let frame = "http://localhost/frame";
    let page = "http://localhost/page";
    let answer = answer.with("cache-control", "no-store");
    let pages = [(page, html("<iframe src=frame>")), (frame, answer)];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.gateway.allow_references();
    let navigation: Vec<_> = NAVIGATION.iter().copied().chain(metadata).collect();
    pair.browse_for(CROSSING, page, &navigation);
    let own = [NAVIGATION[0], ("referer", page)];
    let all: Vec<_> = own.iter().chain(fields).copied().collect();
    pair.send(frame, &all);
    pair.run();
    let asked = pair.take_asked();
    asked.iter().filter(|asked| asked.url == frame).count()
}

/// The client compares the metadata before it gives a request the response of a push.
#[test]
fn hand_over_compares_metadata() {
    let mode = ("sec-fetch-mode", "navigate");
    let own = ("sec-fetch-site", "same-origin");
    let text = || page("text/html", "x");
    for (destination, site, answer, expected) in [
        ("iframe", own, text(), 1),
        ("document", own, text(), 2),
        ("iframe", ("sec-fetch-site", "cross-site"), text(), 2),
        ("iframe", own, text().with("vary", "Sec-Fetch-Site"), 1),
        ("iframe", own, text().with("vary", "*"), 2),
    ] {
        let fields = [("sec-fetch-dest", destination), mode, site];
        let found = requests_for_frame(&fields, answer);
        assert_eq!(found, expected, "{destination} {site:?}");
    }
}

/// `Vary` may name fields that the hashes of requests do not cover.
#[test]
fn hand_over_compares_all_fields_of_vary() {
    for (name, value) in [
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-storage-access", "active"),
        ("sec-purpose", "prefetch"),
        ("accept-charset", "utf-8"),
    ] {
        for (vary, expected) in [("x-other", 1), (name, 2)] {
            let image = image().with("cache-control", "no-store");
            let mut pair = crossing(image.with("vary", vary));
            pair.send(IMAGE, &[FIELDS[0], FIELDS[1], (name, value)]);
            pair.run();
            let asked = pair.take_asked();
            let count = asked.iter().filter(|asked| asked.url == IMAGE).count();
            assert_eq!(count, expected, "{name} {vary}");
        }
    }
}

#[test]
fn unkept_response_is_handed_over_once() {
    let mut pair = crossing(image().with("cache-control", "no-store"));
    for expected in [vec![IMAGE, PAGE], vec![IMAGE]] {
        let (reply, asked) = pair.get(IMAGE, &FIELDS);
        assert!(!reply.is_pushed && reply.body == "x");
        assert_eq!(asked, expected);
    }
}

/// The request has not crossed the promise, so it may be that of another visit.
#[test]
fn old_unkept_response_is_not_handed_over() {
    for (age, is_handed_over) in [(1500, true), (2500, false)] {
        let mut pair = crossing(image().with("cache-control", "no-store"));
        pair.run_for(Duration::from_millis(age));
        pair.take_asked();
        pair.send(IMAGE, &FIELDS);
        pair.run();
        let asked = pair.take_asked().len();
        assert_eq!(asked, usize::from(!is_handed_over), "{age}");
    }
}

/// A page requests the image twice while its promise is on the way.
#[test]
fn both_crossing_requests_are_referred_to_the_push() {
    for (takes_second, fetches) in [(true, 1), (false, 2)] {
        let pages = [(PAGE, html("<img src=i.png>")), (IMAGE, image())];
        let mut pair = Pair::new(&pages);
        pair.gateway.allow_references();
        if takes_second {
            pair.gateway.allow_second_references();
        }
        pair.send(PAGE, NAVIGATION);
        pair.run_for(CROSSING);
        for _ in 0..2 {
            pair.send(IMAGE, &FIELDS);
        }
        pair.run();
        let asked = pair.take_asked();
        let count = asked.iter().filter(|asked| asked.url == IMAGE).count();
        assert_eq!(count, fetches, "second references: {takes_second}");
    }
}

#[test]
fn request_that_found_no_push_gets_no_reference() {
    let mut pair = crossing(image());
    pair.gateway.allow_second_references();
    pair.send(IMAGE, &[FIELDS[0], FIELDS[1], ("tandem-asked-again", "1")]);
    pair.run();
    let asked = pair.take_asked();
    assert_eq!(asked.iter().filter(|asked| asked.url == IMAGE).count(), 2);
}

#[test]
fn unsafe_request_ends_references_to_earlier_pushes() {
    for caching in ["no-cache", "no-store"] {
        let mut pair = crossing(image().with("cache-control", caching));
        pair.gateway.handle_unsafe_request();
        let (reply, asked) = pair.get(IMAGE, &FIELDS);
        assert!(!reply.is_pushed, "{caching}");
        assert_eq!(asked, [IMAGE, IMAGE, PAGE], "{caching}");
    }
}

#[test]
fn client_without_references_gets_a_copy() {
    let pages = [
        (PAGE, html("<img src=i.png>")),
        (IMAGE, image().with("cache-control", "max-age=600")),
    ];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.browse_for(CROSSING, PAGE, NAVIGATION);
    let (reply, _) = pair.get(IMAGE, &FIELDS);
    assert!(!reply.is_pushed && reply.body == "x");
    assert_eq!(bodies(&pair), 2);
}

#[test]
fn request_with_other_fields_gets_no_reference() {
    for field in [
        ("cookie", "a=b"),
        ("x-token", "1"),
        ("if-none-match", "\"1\""),
        ("cache-control", "max-age=0"),
        ("origin", "http://b.test"),
    ] {
        let mut pair = crossing(image());
        let (reply, _) = pair.get(IMAGE, &[FIELDS[0], FIELDS[1], field]);
        assert!(!reply.is_pushed, "{field:?}");
        assert_eq!(reply.head.status, 200);
    }
}

#[test]
fn second_request_is_not_referred_to_the_push() {
    let mut pair = crossing(image());
    assert!(pair.get(IMAGE, &FIELDS).0.is_pushed);
    let (reply, asked) = pair.get(IMAGE, &FIELDS);
    assert!(!reply.is_pushed && reply.body == "x");
    assert_eq!(asked, [IMAGE]);
}

/// A request that arrives later than a round trip after the promise has not crossed it: the client
/// had the push, and asks all the same.
#[test]
fn request_after_the_promise_gets_no_reference() {
    let mut pair = crossing(image());
    pair.run();
    pair.pass(Duration::from_millis(100));
    pair.send(IMAGE, &FIELDS);
    pair.run();
    let asked = pair.take_asked();
    assert_eq!(asked.iter().filter(|asked| asked.url == IMAGE).count(), 2);
}

#[test]
fn reference_releases_a_held_push() {
    let page_of_unknown = page("text/html", "<img src=i.png>");
    let pages = [(PAGE, page_of_unknown), (IMAGE, image())];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.gateway.allow_references();
    let returning = [("accept", "text/html"), ("cookie", "seen=1")];
    pair.browse_for(CROSSING, PAGE, &returning);
    let before = pair.time();
    let (reply, _) = pair.get(IMAGE, &[FIELDS[0], FIELDS[1], ("cookie", "seen=1")]);
    assert!(reply.is_pushed && reply.body == "x");
    let with_report = Duration::from_millis(420);
    assert!(pair.time() - before < with_report, "no report was awaited");
    let asked = pair.take_asked();
    assert!(asked.is_empty() || asked_of(&asked, IMAGE).field("cookie").is_some());
}
