//! Scenes of browsers whose copies are too old: the gateway checks them, and the client answers the
//! conditional requests.

use std::sync::Arc;
use std::time::Duration;

use tandem_http::{Method, ResponseHead};
use tandem_push::gateway::{Audience, Clock, Config, Gateway, Output, Promise, PromiseStream};
use tandem_push::wire::Fate;

use crate::needs::Needs;
use crate::origin::{Page, page};
use crate::pair::{Pair, request};

/// The time after which all messages of a load have arrived, and no held fetch is given up.
pub(crate) const LOADED: Duration = Duration::from_secs(1);

/// The time from a request of the browser to its response. The head of a check takes the time of an
/// origin longer.
const ROUND_TRIP: Duration = Duration::from_millis(220);

pub(crate) const PAGE: &str = "http://a.test/page";

pub(crate) const NAVIGATION: &[(&str, &str)] = &[("accept", "text/html")];

pub(crate) const CONDITIONAL: &[(&str, &str)] =
    &[("accept", "text/html"), ("if-none-match", "\"page\"")];

pub(crate) const HOUR: u64 = 3600;

/// The resources of the page: the name and the lifetime in seconds.
const RESOURCES: [(&str, u64); 5] = [
    ("http://a.test/always.png", 0),
    ("http://a.test/minute.png", 60),
    ("http://a.test/hour.png", HOUR),
    ("http://a.test/week.png", 168 * HOUR),
    ("http://cdn.test/always.png", 0),
];

pub(crate) const ALWAYS: &str = RESOURCES[0].0;
pub(crate) const MINUTE: &str = RESOURCES[1].0;
pub(crate) const HOURLY: &str = RESOURCES[2].0;
pub(crate) const FOREIGN: &str = RESOURCES[4].0;

#[test]
fn resource_that_no_cache_keeps_does_not_wait() {
    let body = "<img src=always.png><img src=minute.png>";
    let images = [(ALWAYS, image(0)), (MINUTE, page("image/png", "live"))];
    let returning = [("accept", "text/html"), ("cookie", "seen=1")];
    for is_known in [false, true] {
        let pages = [(PAGE, page("text/html", body)), images[0].clone()];
        let mut pair = Pair::new(&[&pages[..], &images[1..]].concat());
        pair.predictor = Some(Needs::of_copies(PAGE, &RESOURCES));
        if is_known {
            pair.load(MINUTE, &[]);
        }
        pair.send(PAGE, &returning);
        pair.run_for(LOADED);
        let asked = pair.take_asked();
        let is_asked = |url: &str| asked.iter().any(|asked| asked.url == url);
        assert!(!is_asked(ALWAYS), "the browser may have it");
        assert_eq!(is_asked(MINUTE), is_known);
    }
}

pub(crate) fn image(seconds: u64) -> Page {
    let image = page("image/png", "body").with("etag", "\"1\"");
    image.with("cache-control", &format!("max-age={seconds}"))
}

/// A page that was not modified.
pub(crate) fn unmodified() -> Page {
    let mut page = page("text/html", "").with("etag", "\"page\"");
    page.status = 304;
    page.with("cache-control", "no-cache")
}

/// The pair, whose gateway knows the page.
pub(crate) fn returning_to(document: Page) -> Pair {
    returning_with(Config::default(), document)
}

pub(crate) fn returning_with(config: Config, document: Page) -> Pair {
    let images = RESOURCES.map(|(url, seconds)| (url, image(seconds)));
    let mut pages = vec![(PAGE, document)];
    pages.extend(images);
    let mut pair = Pair::with(config, &pages);
    pair.predictor = Some(Needs::of_copies(PAGE, &RESOURCES));
    pair.with_client(true)
}

/// The fields of a conditional request for an image of the page.
pub(crate) const COPY: &[(&str, &str)] = &[("if-none-match", "\"1\""), ("referer", PAGE)];

pub(crate) const PLAIN: &[(&str, &str)] = &[("referer", PAGE)];

/// Takes the requests that origins received: HEAD or GET, and the URL.
pub(crate) fn asked(pair: &mut Pair) -> Vec<(bool, String)> {
    let asked = pair.take_asked().into_iter();
    asked.map(|it| (it.is_head, it.url)).collect()
}

pub(crate) fn head(url: &str) -> (bool, String) {
    (true, url.to_owned())
}

pub(crate) fn get(url: &str) -> (bool, String) {
    (false, url.to_owned())
}

#[test]
fn copies_that_this_load_brought_are_not_checked() {
    const OTHER: &str = "http://cdn.test/other.png";
    let body = format!("<img src=always.png><img src={OTHER}>");
    let document = page("text/html", &body).with("set-cookie", "first=1; Path=/first");
    let mut pair = returning_to(document);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert!(pair.get(ALWAYS, PLAIN).0.is_pushed);
    pair.browse_for(LOADED, OTHER, PLAIN);
    assert_eq!(asked(&mut pair), [get(OTHER)], "its copy is new");
}

#[test]
fn validated_page_has_its_old_copies_checked() {
    let mut pair = returning_to(unmodified());
    pair.browse_for(LOADED, PAGE, CONDITIONAL);
    assert_eq!(asked(&mut pair), [get(PAGE), head(ALWAYS)]);
    let (reply, requests) = pair.get(ALWAYS, COPY);
    assert!(reply.is_pushed && requests.is_empty(), "{requests:?}");
    assert_eq!((reply.head.status, reply.body.as_str()), (304, ""));
    assert_eq!(reply.head.fields.get("etag"), Some(&b"\"1\""[..]));
    let counts = pair.gateway.take_counts();
    assert_eq!((counts.validated, counts.extra_requests), (1, 0));
    assert_eq!((counts.wasted, counts.wasted_bytes), (0, 0));
    let outcomes = pair.predictor.map(|needs| needs.outcomes);
    assert_eq!(outcomes, Some(vec![format!("confirmed {ALWAYS}")]));
}

#[test]
fn conditional_request_waits_for_its_check() {
    let mut pair = returning_to(unmodified());
    pair.browse_for(ROUND_TRIP, PAGE, CONDITIONAL);
    assert!(!pair.received.contains(&format!("head {ALWAYS}")));
    let (reply, _) = pair.get(ALWAYS, COPY);
    assert!(reply.is_pushed && reply.head.status == 304);
    assert_eq!(pair.gateway.take_counts().validated, 1);
}

#[test]
fn waiting_request_is_sent_if_its_check_fails() {
    let mut other = image(0);
    other = other.with("vary", "cookie");
    let newer = page("image/png", "newer").with("etag", "\"2\"");
    for (served, status, body) in [(other, 200, "body"), (newer, 200, "newer")] {
        let mut pair = returning_to(unmodified());
        pair.serve(ALWAYS, served);
        pair.browse_for(ROUND_TRIP, PAGE, CONDITIONAL);
        pair.take_asked();
        let (reply, requests) = pair.get(ALWAYS, COPY);
        assert!(!reply.is_pushed);
        assert_eq!((reply.head.status, reply.body.as_str()), (status, body));
        assert_eq!(requests.last().map(String::as_str), Some(ALWAYS));
        assert_eq!(pair.gateway.take_counts().extra_requests, 1);
    }
}

#[test]
fn browser_without_the_copy_gets_the_resource() {
    for wait in [ROUND_TRIP, LOADED] {
        for fields in [PLAIN, &[("if-none-match", "\"old\""), ("referer", PAGE)]] {
            let mut pair = returning_to(unmodified());
            pair.browse_for(wait, PAGE, CONDITIONAL);
            pair.take_asked();
            let (reply, _) = pair.get(ALWAYS, fields);
            assert_eq!((reply.head.status, reply.body.as_str()), (200, "body"));
            assert!(!reply.is_pushed, "{fields:?}");
        }
    }
}

#[test]
fn one_old_copy_shows_the_age_of_others() {
    let mut pair = returning_to(page("text/html", ""));
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert_eq!(asked(&mut pair), [get(PAGE)], "no age is known");
    pair.browse_for(Duration::from_millis(105), HOURLY, COPY);
    assert_eq!(asked(&mut pair), [get(HOURLY)], "other requests may follow");
    pair.run_for(LOADED);
    assert_eq!(asked(&mut pair), [head(ALWAYS), head(MINUTE)]);
    for url in [ALWAYS, MINUTE] {
        let (reply, requests) = pair.get(url, COPY);
        assert!(reply.is_pushed && reply.head.status == 304 && requests.is_empty());
    }
}

#[test]
fn promise_of_a_check_precedes_the_revealing_response() {
    let mut pair = returning_to(page("text/html", ""));
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    pair.received.clear();
    pair.browse_for(LOADED, HOURLY, COPY);
    let at = |text: String| pair.received.iter().position(|received| *received == text);
    assert!(at(format!("promise {MINUTE}")) < at(format!("head {HOURLY}")));
}

#[test]
fn browsers_own_request_cancels_its_check() {
    for fields in [COPY, PLAIN] {
        let mut pair = returning_to(page("text/html", ""));
        pair.browse_for(LOADED, PAGE, NAVIGATION);
        pair.take_asked();
        pair.send(HOURLY, COPY);
        pair.send(MINUTE, fields);
        pair.run_for(LOADED);
        let requests = asked(&mut pair);
        assert_eq!(requests, [get(HOURLY), get(MINUTE), head(ALWAYS)]);
        let counts = pair.gateway.take_counts();
        assert_eq!((counts.withheld, counts.extra_requests), (1, 0));
    }
}

#[test]
fn reload_shows_no_age() {
    for control in ["max-age=0", "no-cache"] {
        let mut pair = returning_to(page("text/html", ""));
        pair.browse_for(LOADED, PAGE, NAVIGATION);
        pair.take_asked();
        let reload = [
            ("if-none-match", "\"1\""),
            ("referer", PAGE),
            ("cache-control", control),
        ];
        pair.browse_for(LOADED, HOURLY, &reload);
        assert_eq!(asked(&mut pair), [get(HOURLY)], "{control}");
    }
}

#[test]
fn host_of_no_request_of_the_page_is_not_asked() {
    let mut pair = returning_to(unmodified());
    pair.browse_for(LOADED, PAGE, CONDITIONAL);
    // Another page's request to the host tells nothing about this one.
    let other = [("referer", "http://other.test/")];
    pair.browse_for(LOADED, "http://cdn.test/other.png", &other);
    assert!(pair.take_asked().iter().all(|it| it.url != FOREIGN));
    pair.browse_for(LOADED, "http://cdn.test/first.png", PLAIN);
    let asked = pair.take_asked();
    let check = asked.iter().find(|it| it.url == FOREIGN);
    let check = check.expect("the page caused a request to the host");
    assert!(check.is_head);
    let referrer = check.field("referer");
    assert_eq!(
        referrer.as_deref(),
        Some("http://a.test/"),
        "as earlier ones"
    );
    let (reply, _) = pair.get(FOREIGN, COPY);
    assert!(reply.is_pushed && reply.head.status == 304);
}

#[test]
fn confirmed_copy_is_fresh_again() {
    let mut pair = returning_to(page("text/html", ""));
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    pair.browse_for(LOADED, HOURLY, COPY);
    assert!(pair.get(MINUTE, COPY).0.is_pushed);
    pair.run();
    pair.take_asked();
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    // The image without a lifetime was not requested, so its check is not repeated.
    assert_eq!(asked(&mut pair), [get(PAGE)]);
}

#[test]
fn origins_304_makes_a_copy_fresh_again() {
    let mut confirmed = image(60);
    confirmed.status = 304;
    let mut pair = returning_to(page("text/html", ""));
    pair.serve(MINUTE, confirmed);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    pair.browse_for(LOADED, MINUTE, COPY);
    pair.take_asked();
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    pair.browse_for(LOADED, HOURLY, COPY);
    let asked = asked(&mut pair);
    assert!(!asked.contains(&head(MINUTE)), "{asked:?}");
}

#[test]
fn failed_check_is_not_repeated() {
    for (name, value) in [("cache-control", "no-store"), ("vary", "cookie")] {
        let mut pair = returning_to(unmodified());
        let image = page("image/png", "body").with("etag", "\"1\"");
        pair.serve(ALWAYS, image.with(name, value));
        pair.browse_for(LOADED, PAGE, CONDITIONAL);
        assert!(asked(&mut pair).contains(&head(ALWAYS)));
        pair.browse_for(LOADED, PAGE, CONDITIONAL);
        assert!(!asked(&mut pair).contains(&head(ALWAYS)), "{name}");
    }
}

#[test]
fn unused_check_counts_as_an_extra_request() {
    let mut pair = returning_to(unmodified());
    pair.browse_for(LOADED, PAGE, CONDITIONAL);
    pair.report(Fate::Wasted, ALWAYS);
    pair.run_for(LOADED);
    let counts = pair.gateway.take_counts();
    assert_eq!((counts.wasted, counts.extra_requests), (1, 1));
    pair.take_asked();
    pair.browse_for(LOADED, PAGE, CONDITIONAL);
    assert_eq!(asked(&mut pair), [get(PAGE)]);
}

#[test]
fn check_takes_the_place_of_a_held_promise() {
    let body = "<img src=always.png><img src=minute.png><img src=new.png>";
    let mut pair = returning_to(page("text/html", body));
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert_eq!(asked(&mut pair), [get(PAGE)], "the bodies are held");
    pair.browse_for(LOADED, HOURLY, COPY);
    let requests = asked(&mut pair);
    assert_eq!(requests, [get(HOURLY), head(ALWAYS), head(MINUTE)]);
    assert_eq!(pair.gateway.take_counts().withheld, 2);
    assert!(pair.get(MINUTE, COPY).0.is_pushed);
    // The rest is given up without a request.
    pair.run();
    assert!(asked(&mut pair).is_empty());
    assert_eq!(pair.gateway.records(), [0, 1, 0], "other copies may follow");
    pair.gateway.close();
    assert_eq!(pair.gateway.records(), [0; 3], "all records are gone");
}

#[test]
fn claim_that_crosses_a_check_gets_the_body() {
    // The claim reaches the gateway before the check has begun, while it runs, and after its end.
    for (pause, begun) in [(0, 0), (20, 1), (150, 1)] {
        let mut pair = returning_to(page("text/html", "<img src=minute.png>"));
        pair.browse_for(LOADED, PAGE, NAVIGATION);
        pair.take_asked();
        pair.gateway.take_counts();
        pair.send(HOURLY, COPY);
        pair.run_for(Duration::from_millis(pause));
        // The client has the promise of the body only, and reports that a request waits for it.
        let (reply, requests) = pair.get(MINUTE, PLAIN);
        assert_eq!((reply.head.status, reply.body.as_str()), (200, "body"));
        assert!(reply.is_pushed && requests.contains(&MINUTE.to_owned()));
        let counts = pair.gateway.take_counts();
        assert_eq!((counts.cancelled, counts.extra_requests), (begun, begun));
        assert_eq!(counts.withheld, 2 - begun, "after {pause} ms");
    }
}

/// A claim of data whose copy has expired shows no lack of the images, whose copies have not.
#[test]
fn claim_of_an_expired_copy_releases_no_bodies() {
    const DATA: &str = "http://a.test/data.js";
    const LONG: &str = "http://a.test/long.png";
    let long = page("image/png", "x").with("cache-control", "max-age=31536000");
    for (lifetime, released) in [("max-age=3600", 0), ("max-age=31536000", 1)] {
        let body = "<script src=data.js></script><img src=long.png><img src=hour.png>";
        let mut pair = returning_to(page("text/html", body).with("etag", "\"new\""));
        let data = page("text/javascript", "").with("cache-control", lifetime);
        pair.serve(DATA, data);
        pair.serve(LONG, long.clone());
        pair.browse_for(LOADED, PAGE, CONDITIONAL);
        pair.browse_for(LOADED, HOURLY, COPY);
        pair.take_asked();
        pair.report(Fate::Late, DATA);
        pair.run_for(LOADED);
        let asked = asked(&mut pair);
        let bodies = asked.iter().filter(|it| **it == get(LONG)).count();
        assert_eq!(bodies, released, "{lifetime}: {asked:?}");
    }
}

#[test]
fn lost_cache_ends_all_checks() {
    let mut pair = returning_to(unmodified());
    pair.browse_for(LOADED, "http://a.test/week.png", PLAIN);
    pair.browse_for(LOADED, PAGE, CONDITIONAL);
    pair.take_asked();
    pair.browse_for(LOADED, "http://a.test/week.png", PLAIN);
    pair.take_asked();
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert!(asked(&mut pair).iter().all(|(is_head, _)| !is_head));
}

#[test]
fn condition_across_a_check_gets_its_result() {
    let reload = [
        ("if-none-match", "\"1\""),
        ("referer", PAGE),
        ("cache-control", "max-age=0"),
    ];
    for (fields, cookie, repeated) in [
        (COPY, None, 1),
        (PLAIN, None, 0),
        (&reload, None, 0),
        (COPY, Some("a=b"), 0),
    ] {
        let mut pair = returning_to(unmodified());
        if let Some(cookie) = cookie {
            pair.serve(ALWAYS, image(0).with("set-cookie", cookie));
        }
        pair.browse_for(LOADED, PAGE, CONDITIONAL);
        pair.take_asked();
        pair.send(ALWAYS, fields);
        pair.run_for(LOADED);
        assert_eq!(pair.take_asked().len(), 1 - repeated, "{fields:?}");
        let count = u64::try_from(repeated).expect("it is 0 or 1");
        assert_eq!(pair.gateway.take_counts().repeated, count);
    }
}

#[test]
fn page_without_pushes_has_no_checks() {
    let held_out = Config {
        hold_out: 1.0,
        ..Config::default()
    };
    let one_user = Config {
        audience: Audience::OneUser,
        ..Config::default()
    };
    for (config, treatment) in [(held_out, "held-out"), (one_user, "pushed")] {
        let mut pair = returning_with(config, unmodified());
        pair.browse_for(LOADED, PAGE, CONDITIONAL);
        assert_eq!(asked(&mut pair), [get(PAGE)]);
        assert_eq!(pair.treatment.as_deref(), Some(treatment));
    }
}

/// Requests the page and a copy, at a gateway whose companion was or was not opened.
pub(crate) fn machine(companion: Option<bool>) -> (Gateway, Needs, std::time::Instant) {
    let now = std::time::Instant::now();
    let clock = Clock {
        instant: now,
        unix_time: 1_700_000_000,
    };
    let mut gateway = Gateway::new(Config::default(), clock);
    if let Some(takes_checks) = companion {
        assert!(gateway.open_companion(takes_checks));
    }
    (gateway, Needs::of_copies(PAGE, &RESOURCES), now)
}

pub(crate) fn pass(
    gateway: &mut Gateway,
    needs: &mut Needs,
    url: &str,
    fields: &[(&str, &str)],
    head: &Page,
) {
    let now = std::time::Instant::now();
    let request = Arc::new(request(url, fields));
    let id = gateway.handle_request(now, &request, true);
    let id = id.expect("a GET has a number");
    let mut answer = ResponseHead::new(head.status);
    for (name, value) in &head.fields {
        answer.fields.push(name, value.as_str());
    }
    gateway.handle_head(now, id, &mut answer, Some(needs));
    gateway.handle_data(id, head.body.as_bytes());
    gateway.handle_end(id, true, None);
    gateway.release_response(now, id);
}

pub(crate) fn promises(gateway: &mut Gateway) -> Vec<Promise> {
    std::iter::from_fn(|| gateway.take_promise(PromiseStream::Companion)).collect()
}

#[test]
fn clients_that_cannot_take_checks_get_none() {
    for companion in [None, Some(false)] {
        let (mut gateway, mut needs, now) = machine(companion);
        let body = page("text/html", "<img src=minute.png>").with("etag", "\"page\"");
        pass(&mut gateway, &mut needs, PAGE, NAVIGATION, &body);
        pass(&mut gateway, &mut needs, HOURLY, COPY, &image(HOUR));
        let promises = promises(&mut gateway);
        assert!(promises.iter().all(|it| it.request.method == Method::Get));
        // A client that reports nothing gets each body at once.
        let fetches = promises.len();
        for promise in promises {
            gateway.queue_fetch(now, promise.fetch);
        }
        let begun = std::iter::from_fn(|| gateway.poll_output())
            .filter(|output| matches!(output, Output::Fetch { .. }))
            .count();
        if companion.is_none() {
            assert_eq!((fetches, begun), (1, 1));
        }
    }
}

#[test]
fn withdrawn_promise_is_sent_to_no_stream() {
    for taken in [false, true] {
        let (mut gateway, mut needs, now) = machine(Some(true));
        pass(
            &mut gateway,
            &mut needs,
            PAGE,
            NAVIGATION,
            &page("text/html", ""),
        );
        // The age of this copy has the others checked.
        let revealing = Arc::new(request(HOURLY, COPY));
        gateway.handle_request(now, &revealing, true);
        let early = if taken {
            promises(&mut gateway)
        } else {
            Vec::new()
        };
        let own = Arc::new(request(MINUTE, COPY));
        gateway.handle_request(now, &own, true);
        let late = promises(&mut gateway);
        let of_url = |it: &&Promise| it.request.path == "/minute.png";
        assert_eq!(late.iter().filter(of_url).count(), 0);
        if let Some(promise) = early.iter().find(of_url) {
            gateway.queue_fetch(now, promise.fetch);
            let cancel = Output::Cancel {
                fetch: promise.fetch,
            };
            let outputs: Vec<_> = std::iter::from_fn(|| gateway.poll_output()).collect();
            assert!(outputs.contains(&cancel), "the stream of the push ends");
        }
    }
}
