//! Scenes of requests that change a site while pushes of it wait.

use super::*;

const LASTING: (&str, &str) = ("cache-control", "max-age=600");
const FONT: (&str, &str) = ("content-type", "font/woff2");
const HTML: (&str, &str) = ("content-type", "text/html");
const JSON: (&str, &str) = ("content-type", "application/json");
const OLD: (&str, &str) = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");

fn post(path: &str) -> RequestHead {
    RequestHead {
        method: Method::Post,
        authority: "H.test".to_owned(),
        ..get(path)
    }
}

/// The promised request for a resource with this use.
fn get_for(destination: &str) -> RequestHead {
    let mut request = get("/a");
    if !destination.is_empty() {
        request.fields.push("sec-fetch-dest", destination);
        request.fields.push("sec-fetch-mode", "no-cors");
        request.fields.push("sec-fetch-site", "same-origin");
    }
    request
}

#[test]
fn cleared_origin_loses_all_waiting_responses() {
    let mut scene = Scene::new(LIMITS);
    scene.push("/a", &[], "x");
    let arriving = scene.promise("/b");
    let elsewhere = RequestHead {
        authority: "other.test".to_owned(),
        ..get("/a")
    };
    let other = scene.store.on_promise(scene.now, elsewhere.clone(), true);
    let post = RequestHead {
        method: Method::Post,
        authority: "H.test".to_owned(),
        ..get("/buy")
    };
    scene.store.clear_origin(&post);
    assert_eq!((scene.ask("/a"), scene.ask("/b")), (None, None));
    let served = scene.store.on_request(scene.now, &elsewhere, false);
    assert_eq!(served.map(|serve| Intake::Read(serve.push)), Some(other));
    scene.store.on_end(arriving, true);
    let wasted = (Fate::Wasted, true);
    assert_eq!(scene.fates(), [wasted, (Fate::Late, true), wasted]);
}

/// A page reports to its site while it loads, such as with `navigator.sendBeacon`.
#[test]
fn unsafe_request_leaves_lasting_parts_of_pages() {
    let no_cache = ("cache-control", "no-cache");
    let cookie = ("set-cookie", "a=b");
    for (fields, destination, target, expected) in [
        (&[LASTING, FONT][..], "", "/stats", true),
        (&[LASTING, FONT], "font", "/stats", true),
        (&[LASTING, FONT], "font", "/a", false),
        (&[LASTING, FONT], "empty", "/stats", false),
        (&[LASTING, FONT, cookie], "font", "/stats", false),
        (&[LASTING, JSON], "", "/stats", false),
        (&[LASTING, HTML], "", "/stats", false),
        (&[no_cache, FONT], "font", "/stats", false),
        (&[OLD, FONT], "font", "/stats", false),
        (&[FONT], "font", "/stats", false),
    ] {
        let what = format!("{fields:?} {destination} {target}");
        let request = get_for(destination);
        // The head of the response comes before the unsafe request or after it.
        for is_early in [true, false] {
            let mut scene = Scene::new(LIMITS);
            let intake = scene.store.on_promise(scene.now, request.clone(), true);
            let Intake::Read(id) = intake else {
                panic!("the push was cancelled");
            };
            if is_early {
                scene.store.on_head(scene.now, id, ok(fields));
                scene.store.note_unsafe_request(&post(target));
            } else {
                scene.store.note_unsafe_request(&post(target));
                scene.store.on_head(scene.now, id, ok(fields));
            }
            assert_consistent(&scene.store);
            let served = scene.store.on_request(scene.now, &request, false);
            assert_eq!(served.is_some(), expected, "{what} {is_early}");
            scene.store.on_end(id, true);
        }
    }
}

#[test]
fn request_that_joins_an_outdated_push_is_sent_again() {
    for (fields, expected) in [(&[LASTING, FONT][..], true), (&[FONT], false)] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.promise("/a");
        scene.store.note_unsafe_request(&post("/stats"));
        assert!(scene.ask("/a").is_some(), "the head decides");
        scene.store.on_head(scene.now, id, ok(fields));
        scene.store.on_data(scene.now, id, Bytes::from("x"));
        let found = matches!(scene.piece(id), Piece::Head(_));
        assert_eq!(found, expected, "{fields:?}");
        assert_consistent(&scene.store);
    }
}

#[test]
fn unsafe_request_leaves_other_origins() {
    let mut scene = Scene::new(LIMITS);
    scene.push("/a", &[], "x");
    let elsewhere = RequestHead {
        authority: "other.test".to_owned(),
        ..get("/stats")
    };
    scene.store.note_unsafe_request(&elsewhere);
    assert!(scene.ask("/a").is_some());
}

/// A page has its API at another host.
#[test]
fn unsafe_request_of_a_page_ends_data_of_its_origin() {
    let tag = ("etag", "\"1\"");
    for (named, value, ends) in [
        ("origin", "http://h.test", true),
        ("origin", "http://H.test", true),
        ("origin", "https://h.test", false),
        ("origin", "http://h.test:81", false),
        ("origin", "null", false),
        ("referer", "http://h.test/page?x", true),
        ("referer", "http://other.test/http://h.test/", false),
    ] {
        for is_early in [true, false] {
            let what = format!("{named} {value} {is_early}");
            let mut scene = Scene::new(LIMITS);
            scene.push("/font", &[LASTING, FONT], "x");
            let data = scene.promise("/data");
            let elsewhere = RequestHead {
                authority: "api.test".to_owned(),
                fields: [(named, value)].into_iter().collect(),
                ..post("/data")
            };
            if is_early {
                scene.store.on_head(scene.now, data, ok(&[JSON, tag]));
            }
            scene.store.note_unsafe_request(&elsewhere);
            if !is_early {
                scene.store.on_head(scene.now, data, ok(&[JSON, tag]));
            }
            assert_consistent(&scene.store);
            assert_eq!(scene.ask("/data").is_none(), ends, "{what}");
            assert!(scene.ask("/font").is_some(), "{what}");
        }
    }
}

#[test]
fn bytes_in_a_tunnel_end_momentary_data() {
    let no_cache = ("cache-control", "no-cache");
    for (fields, destination, ends) in [
        (&[no_cache, JSON][..], "empty", true),
        (&[JSON], "empty", true),
        (&[JSON], "", true),
        (&[no_cache, HTML], "empty", true),
        (&[LASTING, JSON], "empty", false),
        (&[no_cache, FONT], "font", false),
        (&[FONT], "", false),
        (&[no_cache, HTML], "iframe", false),
    ] {
        for is_early in [true, false] {
            let what = format!("{fields:?} {destination} {is_early}");
            let request = get_for(destination);
            let mut scene = Scene::new(LIMITS);
            let take = |scene: &mut Scene| match scene.store.on_promise(
                scene.now,
                request.clone(),
                true,
            ) {
                Intake::Read(id) => id,
                Intake::Cancel => panic!("the push was cancelled"),
            };
            assert!(!scene.store.awaits_hidden_change());
            let first = take(&mut scene);
            if is_early {
                scene.store.on_head(scene.now, first, ok(fields));
            }
            assert!(scene.store.awaits_hidden_change());
            scene.store.note_hidden_change();
            assert!(!scene.store.awaits_hidden_change(), "nothing is left to do");
            if !is_early {
                scene.store.on_head(scene.now, first, ok(fields));
            }
            assert_consistent(&scene.store);
            let served = scene.store.on_request(scene.now, &request, false);
            assert_eq!(served.is_none(), ends, "{what}");
            scene.store.on_end(first, true);
            let second = take(&mut scene);
            scene.store.on_head(scene.now, second, ok(fields));
            scene.store.on_end(second, true);
            let served = scene.store.on_request(scene.now, &request, false);
            assert!(served.is_some(), "a later push: {what}");
        }
    }
}

#[test]
fn newer_response_of_another_version_ends_a_push() {
    let tag = |tag| [LASTING, ("etag", tag)];
    let reload = ("cache-control", "no-cache");
    let directives = ("cache-control", "no-transform, Max-Age=0");
    let (first, second) = (tag("\"1\""), tag("\"2\""));
    let weak = tag("W/\"1\"");
    for (pushed, newer, status, asked, is_kept) in [
        (&first[..], &second[..], 200, &[][..], false),
        (&first, &first, 200, &[reload], true),
        (&first, &weak, 200, &[reload], true),
        (&first, &[LASTING, OLD], 200, &[], true),
        (&first, &[LASTING], 200, &[reload], false),
        (&[LASTING], &[LASTING], 200, &[], true),
        (&[LASTING], &[LASTING], 200, &[reload], false),
        (&[LASTING], &[LASTING], 200, &[directives], false),
        (
            &[LASTING],
            &[LASTING],
            200,
            &[("pragma", "no-cache")],
            false,
        ),
        (&first, &second, 304, &[], false),
        (&first, &first, 304, &[reload], true),
        (&first, &[LASTING], 304, &[reload], true),
        (&first, &second, 206, &[], true),
        (&first, &first, 204, &[], false),
        (&first, &[], 301, &[], false),
        (&first, &[], 404, &[], false),
        (&first, &[], 410, &[], false),
        (&first, &second, 500, &[], true),
        (&first, &second, 103, &[], true),
    ] {
        for is_later in [true, false] {
            let mut scene = Scene::new(LIMITS);
            let before = scene.now;
            scene.pass(Duration::from_secs(1));
            scene.push("/a", pushed, "x");
            scene.push("/b", pushed, "x");
            let request = RequestHead {
                fields: asked.iter().copied().collect(),
                ..get("/a")
            };
            let sent = if is_later { scene.now } else { before };
            let head = ResponseHead {
                status,
                ..ok(newer)
            };
            scene.store.note_newer_response(sent, &request, &head);
            assert_consistent(&scene.store);
            let is_served = scene.ask("/a").is_some();
            assert_eq!(
                is_served,
                is_kept || !is_later,
                "{pushed:?} {newer:?} {status} {asked:?}"
            );
            assert!(scene.ask("/b").is_some(), "another URL");
        }
    }
}
