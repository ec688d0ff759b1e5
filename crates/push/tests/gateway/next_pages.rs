//! Scenes with the documents that may follow a page, which are pushed once its load has ended.

use std::time::Duration;

use tandem_http::ResponseHead;
use tandem_push::gateway::{Config, PromiseStream};
use tandem_push::wire::{Fate, NextPush};

use crate::NAVIGATION;
use crate::needs::Needs;
use crate::origin::{Page, page};
use crate::pair::{Pair, request};

const FIRST: &str = "http://a.test/first";
const SECOND: &str = "http://a.test/second";
const THIRD: &str = "http://a.test/third";
const STYLE: &str = "http://a.test/s.css";

/// The fields of a request for a document, by a link of the first page.
const LINK: &[(&str, &str)] = &[("accept", "text/html"), ("referer", FIRST)];

/// The time after which a load has ended, and a document that follows has arrived.
const IDLE: Duration = Duration::from_secs(2);

fn document() -> Page {
    page("text/html", "<p>text</p>").with("cache-control", "max-age=60")
}

/// Returns a pair whose visitors go on from the first page to the second. The client takes these
/// pushes.
fn pair(taken: NextPush, pages: &[(&str, Page)]) -> Pair {
    let mut pair = Pair::new(pages).with_client(true);
    pair.gateway.allow_next_pages(taken);
    pair.predictor = Some(Needs::of_next(&[(FIRST, SECOND), (SECOND, THIRD)]));
    pair
}

fn pages(second: Page) -> Vec<(&'static str, Page)> {
    vec![(FIRST, document()), (SECOND, second), (THIRD, document())]
}

/// Returns the requests that origins received, with a mark for HEAD.
fn asked(pair: &mut Pair) -> Vec<String> {
    let mark = |is_head| if is_head { "HEAD " } else { "" };
    let asked = pair.take_asked().into_iter();
    asked
        .map(|it| format!("{}{}", mark(it.is_head), it.url))
        .collect()
}

/// Loads the first page with these fields, and returns the requests for documents that followed.
fn next_of_first(pair: &mut Pair, fields: &[(&str, &str)]) -> Vec<String> {
    pair.browse_for(IDLE, FIRST, fields);
    asked(pair).split_off(1)
}

#[test]
fn next_document_is_pushed_after_the_load() {
    let mut pair = pair(NextPush::Bodies, &pages(document()));
    pair.browse_for(Duration::from_millis(1100), FIRST, NAVIGATION);
    assert_eq!(asked(&mut pair), [FIRST], "the load may go on");
    pair.run_for(IDLE);
    assert_eq!(asked(&mut pair), [SECOND]);
    let (reply, requests) = pair.get(SECOND, LINK);
    assert!(reply.is_pushed && reply.body.contains("text"));
    assert_eq!(requests, [THIRD], "the page leads on");
    let counts = pair.gateway.take_counts();
    assert_eq!((counts.next_promised, counts.next_used), (2, 1));
    assert_eq!((counts.promised, counts.used, counts.late), (0, 0, 0));
}

/// The browser requests images of the page meanwhile, which the origin refuses.
#[test]
fn next_document_of_a_refusing_origin_is_left() {
    let images = [0, 1, 2].map(|at| format!("http://a.test/{at}.png"));
    for (status, is_left) in [(404, false), (503, true)] {
        let answer = Page {
            status,
            ..page("text/html", "busy")
        };
        let mut pages = pages(document());
        pages.extend(images.iter().map(|url| (url.as_str(), answer.clone())));
        let mut pair = pair(NextPush::Bodies, &pages);
        pair.browse_for(Duration::from_millis(500), FIRST, NAVIGATION);
        for url in &images {
            pair.send(url, &[("referer", FIRST)]);
        }
        pair.run_for(IDLE);
        let asked = asked(&mut pair);
        assert_eq!(asked.contains(&SECOND.to_owned()), !is_left, "{status}");
    }
}

/// Other visitors have voted, or have left the site.
#[test]
fn next_document_with_effects_is_left_to_clicks() {
    for url in ["http://a.test/vote?id=3", "http://a.test/users/sign_out"] {
        let mut pair = pair(NextPush::Bodies, &[(FIRST, document()), (url, document())]);
        pair.predictor = Some(Needs::of_next(&[(FIRST, url)]));
        assert!(next_of_first(&mut pair, NAVIGATION).is_empty(), "{url}");
    }
}

#[test]
fn next_document_needs_a_client_that_takes_it() {
    for taken in [NextPush::Off, NextPush::Validators] {
        let mut pair = pair(taken, &pages(document()));
        assert!(next_of_first(&mut pair, NAVIGATION).is_empty(), "{taken:?}");
    }
}

#[test]
fn stale_document_waits_for_the_next_page() {
    let mut pair = pair(
        NextPush::Bodies,
        &pages(document().with("cache-control", "no-cache")),
    );
    assert_eq!(next_of_first(&mut pair, NAVIGATION), [SECOND]);
    pair.pass(Duration::from_secs(20));
    assert!(pair.get(SECOND, LINK).0.is_pushed);
    pair.browse_for(IDLE, FIRST, LINK);
    pair.pass(Duration::from_secs(60));
    pair.take_asked();
    assert!(!pair.get(SECOND, LINK).0.is_pushed, "it is too old");
}

#[test]
fn copy_in_the_browser_is_validated_ahead() {
    let tagged = page("text/html", "x")
        .with("cache-control", "no-cache")
        .with("etag", "\"1\"");
    for taken in [NextPush::Validators, NextPush::Bodies] {
        let mut pair = pair(taken, &pages(tagged.clone()));
        pair.browse_for(IDLE, SECOND, NAVIGATION);
        pair.take_asked();
        assert_eq!(
            next_of_first(&mut pair, NAVIGATION),
            [format!("HEAD {SECOND}")]
        );
        let conditional = [LINK[0], LINK[1], ("if-none-match", "\"1\"")];
        let (reply, _) = pair.get(SECOND, &conditional);
        assert!(reply.is_pushed && reply.head.status == 304, "{taken:?}");
        let counts = pair.gateway.take_counts();
        assert_eq!((counts.next_used, counts.validated), (1, 0));
    }
}

#[test]
fn page_with_credentials_gets_no_next_documents() {
    for field in [("cookie", "a=b"), ("authorization", "Basic eA==")] {
        let mut pair = pair(NextPush::Bodies, &pages(document()));
        assert!(next_of_first(&mut pair, &[NAVIGATION[0], field]).is_empty());
        let needs = pair.predictor.as_ref().expect("the scene has one");
        assert!(needs.visits.is_empty(), "{field:?}");
    }
    let mut pages = pages(document());
    pages[0].1 = document().with("set-cookie", "a=b");
    let mut of_cookie = pair(NextPush::Bodies, &pages);
    assert!(next_of_first(&mut of_cookie, NAVIGATION).is_empty());
}

#[test]
fn unsuitable_document_is_fetched_once_and_not_sent() {
    let missing = Page {
        status: 404,
        ..document()
    };
    let long = page("text/html", &"x".repeat(300_000)).with("cache-control", "max-age=60");
    for unsuitable in [
        document().with("set-cookie", "a=b"),
        document().with("cache-control", "no-store"),
        page("image/png", "x"),
        missing,
        long,
    ] {
        let mut pair = pair(NextPush::Bodies, &pages(unsuitable));
        assert_eq!(next_of_first(&mut pair, NAVIGATION), [SECOND]);
        assert!(!pair.received.contains(&format!("data {SECOND}")));
        assert_eq!(pair.gateway.unreported(), 0);
    }
}

#[test]
fn document_of_another_origin_is_not_pushed() {
    let mut pair = pair(NextPush::Bodies, &pages(document()));
    pair.predictor = Some(Needs::of_next(&[
        (FIRST, "http://b.test/"),
        (FIRST, "https://a.test/second"),
        (FIRST, FIRST),
    ]));
    assert!(next_of_first(&mut pair, NAVIGATION).is_empty());
}

#[test]
fn loading_page_gets_no_next_documents() {
    let mut pages = pages(document());
    pages[0].1.is_unfinished = true;
    let mut pair = pair(NextPush::Bodies, &pages);
    assert!(next_of_first(&mut pair, NAVIGATION).is_empty());
    pair.run_for(Duration::from_secs(60));
    pair.leave();
    pair.run();
    assert!(asked(&mut pair).is_empty());
}

#[test]
fn unsafe_request_under_way_delays_the_next_document() {
    let mut pair = pair(NextPush::Bodies, &pages(document()));
    pair.browse_for(Duration::from_millis(500), FIRST, NAVIGATION);
    let beacon = request("http://b.test/beacon", &[("accept", "*/*")]);
    pair.gateway.begin_change(pair.time(), &beacon);
    pair.run_for(Duration::from_secs(5));
    assert_eq!(asked(&mut pair), [FIRST]);
    pair.gateway.end_change(pair.time());
    pair.run_for(IDLE);
    assert_eq!(asked(&mut pair), [SECOND]);
}

#[test]
fn form_that_is_sent_leaves_the_page() {
    let mut pair = pair(NextPush::Bodies, &pages(document()));
    pair.browse_for(Duration::from_millis(500), FIRST, NAVIGATION);
    pair.gateway
        .begin_change(pair.time(), &request(SECOND, NAVIGATION));
    pair.gateway.end_change(pair.time());
    pair.run_for(IDLE);
    assert_eq!(asked(&mut pair), [FIRST]);
}

/// A browser prefetches a document while the user still looks at the page.
#[test]
fn prefetched_document_leaves_no_page() {
    let mut pair = pair(NextPush::Bodies, &pages(document()));
    pair.browse_for(Duration::from_millis(500), FIRST, NAVIGATION);
    let prefetch = [LINK[0], ("sec-purpose", "prefetch")];
    pair.browse_for(Duration::from_millis(500), THIRD, &prefetch);
    pair.run_for(IDLE);
    assert_eq!(asked(&mut pair), [FIRST, THIRD, SECOND]);
}

#[test]
fn browser_that_saves_data_gets_no_next_document() {
    for (value, is_pushed) in [("on", false), ("off", true)] {
        let mut pair = pair(NextPush::Bodies, &pages(document()));
        let next = next_of_first(&mut pair, &[NAVIGATION[0], ("save-data", value)]);
        assert_eq!(!next.is_empty(), is_pushed, "{value}");
        let needs = pair.predictor.as_ref().expect("the scene has one");
        assert_eq!(needs.visits.len(), 1, "the visit counts");
    }
}

/// The response is that to the same request, so the browser need not ask again.
#[test]
fn request_that_waits_gets_an_unsuitable_document() {
    for is_awaited in [false, true] {
        let mut pair = pair(NextPush::Bodies, &pages(document()));
        pair.browse_for(Duration::from_millis(1000), FIRST, NAVIGATION);
        let now = pair.time() + Duration::from_secs(1);
        pair.gateway.handle_timeout(now);
        let promise = pair.gateway.take_promise(PromiseStream::Companion);
        let fetch = promise.expect("the load has ended").fetch;
        pair.gateway.queue_fetch(now, fetch);
        if is_awaited {
            pair.gateway.raise_fetch(now, fetch);
        }
        let mut head = ResponseHead::new(200);
        head.fields.push("content-type", "text/html");
        head.fields.push("set-cookie", "a=b");
        let passed = pair.gateway.handle_fetch_head(now, fetch, &mut head, None);
        assert_eq!(passed.is_ok(), is_awaited);
    }
}

/// An origin may answer HEAD in another way than GET.
#[test]
fn head_that_confirms_nothing_is_requested_once() {
    let tagged = page("text/html", "x")
        .with("cache-control", "no-cache")
        .with("etag", "\"1\"");
    let refused = Page {
        status: 405,
        ..tagged.clone()
    };
    let mut pages = pages(tagged.clone());
    // A request for a page that caches keep would show that the browser has lost its cache.
    pages[0].1 = page("text/html", "x");
    let mut pair = pair(NextPush::Validators, &pages);
    for expected in [&[format!("HEAD {SECOND}")][..], &[]] {
        pair.serve(SECOND, tagged.clone());
        let conditional = [NAVIGATION[0], ("if-none-match", "\"1\"")];
        pair.browse_for(IDLE, SECOND, &conditional);
        pair.take_asked();
        pair.serve(SECOND, refused.clone());
        assert_eq!(next_of_first(&mut pair, NAVIGATION), expected);
    }
}

#[test]
fn held_out_page_gets_no_next_documents() {
    let config = Config {
        hold_out: 1.0,
        ..Config::default()
    };
    let mut pair = Pair::with(config, &pages(document())).with_client(true);
    pair.gateway.allow_next_pages(NextPush::Bodies);
    pair.predictor = Some(Needs::of_next(&[(FIRST, SECOND)]));
    assert!(next_of_first(&mut pair, NAVIGATION).is_empty());
}

#[test]
fn unused_next_documents_end_further_ones() {
    let mut pair = Pair::new(&pages(document()));
    pair.gateway.allow_next_pages(NextPush::Bodies);
    let names: Vec<&'static str> = (0..30)
        .map(|number| &*Box::leak(format!("http://a.test/{number}").into_boxed_str()))
        .collect();
    let next: Vec<_> = names.iter().map(|name| (FIRST, *name)).collect();
    let mut pushed = 0;
    for documents in next.chunks(3) {
        pair.predictor = Some(Needs::of_next(documents));
        for (_, url) in documents {
            pair.serve(url, document());
        }
        pair.load(FIRST, NAVIGATION);
        let counts = pair.gateway.take_counts();
        pushed += counts.next_promised;
        for (_, url) in documents {
            pair.report(Fate::Wasted, url);
        }
        pair.run();
    }
    assert!((4..=6).contains(&pushed), "{pushed}");
    assert!(pair.gateway.take_counts().next_wasted_bytes > 0);
}

#[test]
fn resources_are_promised_once_the_document_is_taken() {
    let mut pages = pages(document());
    pages.push((
        STYLE,
        page("text/css", "").with("cache-control", "max-age=60"),
    ));
    // The validator shows a first visit.
    pages[0].1 = document().with("etag", "\"1\"");
    let mut pair = pair(NextPush::Bodies, &pages);
    let mut needs = Needs::of_page(SECOND, vec![STYLE]);
    needs.next = vec![(FIRST, SECOND)];
    pair.predictor = Some(needs);
    assert_eq!(next_of_first(&mut pair, NAVIGATION), [SECOND]);
    let (_, requests) = pair.get(SECOND, LINK);
    assert_eq!(requests, [STYLE]);
    let fields = [("accept", "text/css,*/*;q=0.1"), ("referer", SECOND)];
    assert!(pair.get(STYLE, &fields).0.is_pushed);
}

#[test]
fn visits_teach_the_predictor_which_documents_follow() {
    let mut pair = pair(NextPush::Off, &pages(document()));
    pair.browse_for(IDLE, FIRST, NAVIGATION);
    // So soon after the page, a document might be a frame of it.
    pair.pass(Duration::from_secs(4));
    pair.browse_for(IDLE, SECOND, LINK);
    pair.browse_for(IDLE, THIRD, &[NAVIGATION[0], ("referer", "http://b.test/")]);
    let needs = pair.predictor.as_ref().expect("the scene has one");
    let expected = [
        format!(" > {FIRST}"),
        format!("{FIRST} > {SECOND}"),
        format!(" > {THIRD}"),
    ];
    assert_eq!(needs.visits, expected);
}
