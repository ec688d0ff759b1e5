//! Requests that limit the age of their response, and the end of page loads.

use super::*;
use crate::wire::NEXT_PAGE_FIELD;

const STORED: [(&str, &str); 2] = [("cache-control", "max-age=60"), ("age", "20")];
const YOUNG: [(&str, &str); 2] = [("cache-control", "max-age=60"), ("age", "0")];
const NEW: [(&str, &str); 1] = [("cache-control", "max-age=60")];

/// Returns whether a push that has waited serves a request with these directives.
fn serves(pushed: &[(&str, &str)], wait: Duration, directives: &str) -> bool {
    let mut scene = Scene::new(LIMITS);
    scene.push("/a", pushed, "x");
    scene.poll(wait.as_secs());
    scene
        .ask_with("/a", ("cache-control", directives))
        .is_some()
}

#[test]
fn request_limits_the_age_of_a_push() {
    for (pushed, wait, directives, expected) in [
        (&NEW[..], 0, "max-age=0", true),
        (&NEW, 10, "max-age=0", true),
        (&NEW, 11, "max-age=0", false),
        (&YOUNG, 0, "max-age=0", false),
        (&STORED, 0, "max-age=0", false),
        (&NEW, 10, "max-age=1", true),
        (&NEW, 11, "max-age=10", false),
        (&NEW, 11, "max-age=11", true),
        (&STORED, 0, "max-age=19", false),
        (&STORED, 0, "max-age=20", true),
        (&STORED, 5, "max-age=24", false),
        (&STORED, 5, "max-age=25", true),
        (&STORED, 5, "min-fresh=36", false),
        (&STORED, 5, "min-fresh=35", true),
        (&NEW, 0, "min-fresh=61", false),
        (&STORED, 5, "max-stale", true),
    ] {
        let found = serves(pushed, secs(wait), directives);
        assert_eq!(found, expected, "{pushed:?} {wait} {directives}");
    }
}

/// The cache of the origin's host ignores the demand, as it would for the request itself.
#[test]
fn answer_to_the_same_demand_serves_a_reload() {
    let reload = ("cache-control", "max-age=0");
    for (demand, has_own_fields, expected) in [
        (&[reload][..], true, true),
        (&[reload], false, false),
        (&[("cache-control", "max-age=9")], true, false),
    ] {
        let mut scene = Scene::new(LIMITS);
        let mut request = get("/a");
        for (name, value) in demand {
            request.fields.push(*name, *value);
        }
        let promised = scene.store.on_promise(scene.now, request, has_own_fields);
        let Intake::Read(id) = promised else {
            panic!("the push was cancelled");
        };
        scene.store.on_head(scene.now, id, ok(&STORED));
        scene.store.on_end(id, true);
        let found = scene.ask_with("/a", reload).is_some();
        assert_eq!(found, expected, "{demand:?} {has_own_fields}");
    }
}

#[test]
fn head_with_an_age_breaks_the_join_of_a_reload() {
    for (fields, directives, expected) in [
        (&NEW[..], "max-age=0", true),
        (&YOUNG, "max-age=0", false),
        (&STORED, "max-age=23", false),
        (&STORED, "max-age=24", true),
    ] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.promise("/a");
        let served = scene.ask_with("/a", ("cache-control", directives));
        assert!(served.is_some(), "the head is unknown");
        scene.now += secs(4);
        scene.store.on_head(scene.now, id, ok(fields));
        scene.store.on_data(scene.now, id, Bytes::from("x"));
        let found = matches!(scene.piece(id), Piece::Head(_));
        assert_eq!(found, expected, "{fields:?} {directives}");
        assert_consistent(&scene.store);
    }
}

#[test]
fn response_under_way_serves_a_reload() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.promise("/a");
    scene.store.on_head(scene.now, id, ok(&NEW));
    for _ in 0..5 {
        scene.now += secs(1);
        scene.store.on_data(scene.now, id, Bytes::from("x"));
    }
    let reload = ("cache-control", "max-age=0");
    assert!(scene.ask_with("/a", reload).is_some());
}

impl Scene {
    /// Lets a page make a request in each second, so that its load goes on.
    fn poll(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += secs(1);
            self.ask("/other");
        }
    }
}

/// Returns whether a push that must be validated serves a request 15 s after the page, which the
/// page's other requests have kept loading. A document is requested in between.
fn serves_after(document: &[(&str, &str)], pushed_document: Option<&[(&str, &str)]>) -> bool {
    serves_at(14, document, pushed_document)
}

/// Returns the same for a document that is requested after `wait` seconds.
fn serves_at(
    wait: u64,
    document: &[(&str, &str)],
    pushed_document: Option<&[(&str, &str)]>,
) -> bool {
    let mut scene = Scene::new(LIMITS);
    let id = scene.promise("/a");
    // The response is long, so that it counts as validated.
    scene
        .store
        .on_head(scene.now, id, ok(&[("cache-control", "no-cache")]));
    scene.poll(wait);
    let mut request = get("/document");
    for (name, value) in document {
        request.fields.push(*name, *value);
    }
    if let Some(fields) = pushed_document {
        let Intake::Read(id) = scene.store.on_promise(scene.now, request.clone(), true) else {
            panic!("the document was cancelled");
        };
        scene.store.on_head(scene.now, id, ok(fields));
        scene.store.on_end(id, true);
    }
    let served = scene.store.on_request(scene.now, &request, false);
    assert_eq!(served.is_some(), pushed_document.is_some());
    scene.now += secs(1);
    scene.ask("/a").is_some()
}

#[test]
fn request_for_a_page_ends_the_load_before_it() {
    let plain = [("accept", "text/html")];
    assert!(serves_after(&[], None), "the load goes on");
    assert!(!serves_after(&plain, None));
    assert!(!serves_after(&[("sec-fetch-dest", "document")], None));
    assert!(serves_after(
        &[plain[0], ("sec-fetch-dest", "iframe")],
        None
    ));
    assert!(serves_after(&[plain[0], ("purpose", "prefetch")], None));
    assert!(serves_after(&plain, Some(&[])), "behind a redirect");
    assert!(!serves_after(&plain, Some(&[(NEXT_PAGE_FIELD, "1")])));
}

/// A page of a slow path requests its frames, and a user opens other tabs, while it loads. Over
/// plain HTTP, frames look like pages.
#[test]
fn frame_or_tab_leaves_the_pushes_of_a_load() {
    let plain = ("accept", "text/html");
    for (wait, fields, expected) in [
        (6, &[plain][..], true),
        (10, &[plain], true),
        (11, &[plain], false),
        (6, &[("sec-fetch-dest", "document")], true),
        (3, &[plain, ("cache-control", "max-age=0")], true),
        (4, &[plain, ("cache-control", "max-age=0")], false),
    ] {
        assert_eq!(serves_at(wait, fields, None), expected, "{wait} {fields:?}");
    }
}

#[test]
fn polling_page_keeps_no_old_validations() {
    let control = ("cache-control", "no-cache");
    let tag = ("etag", "\"1\"");
    let style = ("content-type", "text/css");
    let old = ("last-modified", "Thu, 01 Jan 2015 00:00:00 GMT");
    let date = ("date", "Fri, 01 Jan 2016 00:00:00 GMT");
    let copy = ("if-none-match", "\"1\"");
    for (fields, asked, wait, expected) in [
        (&[control][..], ("accept", "*/*"), 10, true),
        (&[control], ("accept", "*/*"), 11, false),
        (&[control, tag], copy, 10, true),
        (&[control, tag], copy, 11, false),
        (&[tag], copy, 10, true),
        (&[tag], copy, 11, false),
        (&[tag], ("accept", "*/*"), 11, false),
        (&[tag, style, old, date], ("accept", "*/*"), 11, true),
        (&[("cache-control", "max-age=60"), tag], copy, 11, true),
        (&[(NEXT_PAGE_FIELD, "1"), tag, control], copy, 11, true),
    ] {
        let mut scene = Scene::new(LIMITS);
        scene.push("/a", fields, "x");
        scene.poll(wait);
        let found = scene.ask_with("/a", asked).is_some();
        assert_eq!(found, expected, "{fields:?} {asked:?} after {wait} s");
    }
}

/// A page on a slow path needs longer than 10 s, and its bodies wait for others.
#[test]
fn response_under_way_counts_as_validated() {
    for (end, ask, expected) in [(19, 29, true), (12, 22, true), (12, 23, false)] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.promise("/a");
        let head = ok(&[("cache-control", "no-cache")]);
        scene.store.on_head(scene.now, id, head);
        scene.poll(end);
        scene.store.on_data(scene.now, id, Bytes::from("x"));
        scene.store.on_end(id, true);
        scene.poll(ask - end);
        assert_eq!(scene.ask("/a").is_some(), expected, "{end} {ask}");
    }
}

#[test]
fn new_visit_to_a_page_ends_the_pushes_of_the_last() {
    let page = ("accept", "text/html");
    let lasting = ("cache-control", "max-age=60");
    for (fields, wait, next, expected) in [
        (("cache-control", "no-cache"), 5, "/page", false),
        (("cache-control", "no-cache"), 3, "/page", true),
        (("cache-control", "no-cache"), 5, "/next", true),
        (("etag", "\"1\""), 5, "/page", false),
        (("etag", "\"1\""), 5, "/next", true),
        (lasting, 5, "/page", true),
    ] {
        let mut scene = Scene::new(LIMITS);
        scene.ask_with("/page", page);
        scene.push("/a", &[fields], "x");
        scene.poll(wait);
        assert_eq!(scene.ask_with(next, page), None);
        let fates: &[_] = match expected {
            true => &[],
            false => &[(Fate::Wasted, true)],
        };
        assert_eq!(scene.fates(), fates, "the gateway pushes it again");
        let found = scene.ask("/a").is_some();
        assert_eq!(found, expected, "{fields:?} {next} after {wait} s");
    }
}

/// A script reads the version of a file, which the origin has changed since the last visit.
#[test]
fn new_visit_to_a_page_ends_the_checks_of_the_last() {
    let page = ("accept", "text/html");
    for (is_visited, expected) in [(true, false), (false, true)] {
        let mut scene = Scene::new(LIMITS);
        scene.ask_with("/page", page);
        let request = RequestHead {
            method: Method::Head,
            ..get("/a")
        };
        let Intake::Read(id) = scene.store.on_promise(scene.now, request, true) else {
            panic!("the check was cancelled");
        };
        let head = ResponseHead {
            status: 304,
            ..ok(&[("etag", "\"1\"")])
        };
        scene.store.on_head(scene.now, id, head);
        scene.store.on_end(id, true);
        scene.poll(5);
        if is_visited {
            scene.ask_with("/page", page);
        }
        let found = scene.ask_with("/a", ("if-none-match", "\"1\""));
        assert_eq!(found.is_some(), expected);
    }
}
