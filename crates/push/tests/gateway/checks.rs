//! The conditions of checks: the copies that are too old, and the requests that show their age.

use std::sync::Arc;
use std::time::Duration;

use tandem_push::wire::ASKED_AS_FIELD;

use crate::copies::{
    ALWAYS, CONDITIONAL, COPY, FOREIGN, HOUR, HOURLY, LOADED, MINUTE, NAVIGATION, PAGE, PLAIN,
    asked, get, head, image, machine, pass, promises, returning_to, unmodified,
};
use crate::origin::page;
use crate::pair::request;

#[test]
fn plain_request_shows_no_age() {
    let mut pair = returning_to(page("text/html", ""));
    // Its answer names no lifetime that a 304 could extend.
    let unnamed = page("image/png", "body");
    pair.serve(HOURLY, unnamed);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    pair.browse_for(LOADED, HOURLY, PLAIN);
    assert_eq!(asked(&mut pair), [get(PAGE), get(HOURLY)]);
}

#[test]
fn recorded_lifetime_shows_the_age_of_copies() {
    let mut confirmed = page("image/png", "").with("etag", "\"1\"");
    confirmed.status = 304;
    let mut pair = returning_to(page("text/html", ""));
    pair.serve(HOURLY, confirmed);
    pair.browse_for(LOADED, HOURLY, COPY);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    let checks = [ALWAYS, MINUTE, HOURLY].map(head);
    let requests = [get(HOURLY), get(PAGE)].into_iter().chain(checks);
    assert_eq!(asked(&mut pair), requests.collect::<Vec<_>>());
}

#[test]
fn part_of_a_page_has_no_copies() {
    let mut pair = returning_to(page("text/html", ""));
    pair.browse_for(LOADED, PAGE, &[("accept", "*/*")]);
    pair.browse_for(LOADED, HOURLY, COPY);
    assert_eq!(asked(&mut pair), [get(PAGE), get(HOURLY)]);
}

#[test]
fn push_under_way_needs_no_check() {
    let document = page("text/html", "<img src=minute.png>").with("set-cookie", "first=1");
    let mut pair = returning_to(document);
    // The gateway has requested the image when the age of another one shows.
    pair.browse_for(Duration::from_millis(25), PAGE, NAVIGATION);
    pair.send(HOURLY, COPY);
    pair.run_for(LOADED);
    let requests = [get(PAGE), get(MINUTE), get(HOURLY), head(ALWAYS)];
    assert_eq!(asked(&mut pair), requests);
}

#[test]
fn answer_that_confirms_nothing_is_checked_once() {
    let mut missing = image(0);
    missing.status = 404;
    let without_validator = page("image/png", "body").with("cache-control", "max-age=0");
    for served in [missing, without_validator] {
        let mut pair = returning_to(unmodified());
        pair.serve(ALWAYS, served);
        for is_checked in [true, false] {
            pair.browse_for(LOADED, PAGE, CONDITIONAL);
            assert_eq!(asked(&mut pair).contains(&head(ALWAYS)), is_checked);
        }
    }
}

/// A page of another site requests images of the host before, which refuses them.
#[test]
fn refusing_origin_gets_no_checks() {
    let images = [0, 1, 2].map(|at| format!("http://cdn.test/{at}.png"));
    for (status, is_checked) in [(404, true), (503, false)] {
        let mut pair = returning_to(unmodified());
        pair.browse_for(LOADED, PAGE, CONDITIONAL);
        for url in &images {
            let mut busy = page("text/html", "busy");
            busy.status = status;
            pair.serve(url, busy);
            pair.browse_for(LOADED, url, &[("referer", "http://other.test/")]);
        }
        pair.browse_for(LOADED, "http://cdn.test/first.png", PLAIN);
        assert_eq!(asked(&mut pair).contains(&head(FOREIGN)), is_checked);
    }
}

#[test]
fn copies_of_the_last_pages_are_remembered() {
    let (mut gateway, mut needs, _) = machine(Some(true));
    let empty = page("text/html", "");
    for count in [1, 2, 3, 4, 4, 4] {
        pass(&mut gateway, &mut needs, PAGE, NAVIGATION, &empty);
        assert_eq!(gateway.records(), [0, count, 0]);
    }
    gateway.close();
    assert_eq!(gateway.records(), [0, 0, 0]);
}

#[test]
fn resource_under_request_is_not_checked() {
    let (mut gateway, mut needs, now) = machine(Some(true));
    let own = Arc::new(request(ALWAYS, COPY));
    gateway.handle_request(now, &own, true);
    pass(&mut gateway, &mut needs, PAGE, CONDITIONAL, &unmodified());
    assert!(promises(&mut gateway).is_empty());
}

#[test]
fn closed_session_checks_no_copies() {
    let (mut gateway, mut needs, _) = machine(Some(true));
    gateway.close();
    pass(&mut gateway, &mut needs, PAGE, CONDITIONAL, &unmodified());
    assert_eq!(gateway.unreported(), 0);
    assert_eq!(gateway.take_counts().promised, 0);
}

#[test]
fn claim_releases_resources_without_copies_only() {
    let body = "<img src=week.png><img src=new1.png><img src=new2.png>";
    let mut pair = returning_to(page("text/html", body));
    for name in ["http://a.test/new1.png", "http://a.test/new2.png"] {
        pair.serve(name, image(HOUR));
    }
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    pair.browse_for(LOADED, HOURLY, COPY);
    pair.take_asked();
    pair.send("http://a.test/other.png", PLAIN);
    pair.report(tandem_push::wire::Fate::Late, "http://a.test/new1.png");
    pair.run_for(LOADED);
    let requests = asked(&mut pair);
    assert!(
        requests.contains(&get("http://a.test/new2.png")),
        "{requests:?}"
    );
    assert!(!requests.contains(&get("http://a.test/week.png")));
}

#[test]
fn request_without_a_copy_ends_its_check() {
    let mut pair = returning_to(unmodified());
    // The gateway has requested the head when the browser's request arrives.
    pair.browse_for(Duration::from_millis(25), PAGE, CONDITIONAL);
    pair.send(ALWAYS, PLAIN);
    pair.run_for(LOADED);
    let counts = pair.gateway.take_counts();
    assert_eq!((counts.cancelled, counts.extra_requests), (1, 1));
    assert_eq!(pair.gateway.unreported(), 0);
}

#[test]
fn check_waits_for_requests_of_the_same_moment() {
    let (mut gateway, mut needs, now) = machine(Some(true));
    let empty = page("text/html", "");
    pass(&mut gateway, &mut needs, PAGE, NAVIGATION, &empty);
    let revealing = Arc::new(request(HOURLY, COPY));
    gateway.handle_request(now, &revealing, true);
    for promise in promises(&mut gateway) {
        gateway.queue_fetch(now, promise.fetch);
    }
    let due = now + Duration::from_millis(10);
    assert_eq!(gateway.poll_timeout(), Some(due));
    while gateway.poll_output().is_some() {}
    gateway.handle_timeout(now + Duration::from_millis(9));
    assert_eq!(gateway.poll_output(), None);
    gateway.handle_timeout(due);
    assert!(gateway.poll_output().is_some());
}

#[test]
fn failed_check_is_passed_to_no_stream() {
    let tag = ("etag", "\"1\"");
    for (status, field, is_passed) in [
        (200, tag, true),
        (404, tag, false),
        (200, ("content-type", "image/png"), false),
        (200, ("vary", "cookie"), false),
    ] {
        let (mut gateway, mut needs, now) = machine(Some(true));
        pass(&mut gateway, &mut needs, PAGE, CONDITIONAL, &unmodified());
        let checks = promises(&mut gateway);
        assert_eq!(checks.len(), 1);
        gateway.queue_fetch(now, checks[0].fetch);
        let mut response = tandem_http::ResponseHead::new(status);
        response.fields.push(field.0, field.1);
        let passed = gateway.handle_fetch_head(now, checks[0].fetch, &mut response, None);
        assert_eq!(passed.is_ok(), is_passed, "{status} {field:?}");
    }
}

/// In SPDY the client learns the metadata of a request from the head of its push.
#[test]
fn head_of_a_check_tells_its_metadata() {
    let page = [
        ("sec-fetch-dest", "document"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-site", "none"),
    ];
    for (fields, expected) in [
        (
            [&page[..], CONDITIONAL].concat(),
            Some("image no-cors same-origin"),
        ),
        (CONDITIONAL.to_vec(), None),
    ] {
        let (mut gateway, mut needs, now) = machine(Some(true));
        pass(&mut gateway, &mut needs, PAGE, &fields, &unmodified());
        let checks = promises(&mut gateway);
        gateway.queue_fetch(now, checks[0].fetch);
        let mut response = tandem_http::ResponseHead::new(200);
        response.fields.push("etag", "\"1\"");
        response.fields.push(ASKED_AS_FIELD, "style no-cors none");
        let passed = gateway.handle_fetch_head(now, checks[0].fetch, &mut response, None);
        assert!(passed.is_ok());
        let told = response.fields.get(ASKED_AS_FIELD);
        assert_eq!(told, expected.map(str::as_bytes));
    }
}
