//! Scenes of cookies that change between an early request and the browser's own.

use super::*;

const FRESH: (&str, &str) = ("cache-control", "max-age=600");
const COOKIE: (&str, &str) = ("cookie", "new=1");
/// The fields of a file that changes rarely. Caches reuse it, although it names no lifetime.
const OLD: (&str, &str) = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
const DATE: (&str, &str) = ("date", "Mon, 30 Nov 2026 07:00:00 GMT");
const RECENT: (&str, &str) = ("last-modified", "Mon, 30 Nov 2026 06:58:00 GMT");
const IMAGE: (&str, &str) = ("content-type", "image/png");

/// Lets the browser get a style sheet that sets a cookie.
fn set_cookie(scene: &mut Scene, cookie: &str) {
    let head = ok(&[("content-type", "text/css"), ("set-cookie", cookie)]);
    scene.store.note_response(&get("/style"), &head, 0);
}

#[test]
fn new_cookie_leaves_responses_that_caches_reuse() {
    let private = [("cache-control", "private, max-age=600")];
    for (fields, cookie, is_served) in [
        (&[FRESH][..], "new=1", true),
        (&private, "new=1", true),
        (&[FRESH, ("vary", "accept")], "new=1", true),
        (&[FRESH], "new=2", false),
        (&[FRESH, ("vary", "cookie")], "new=1", false),
        (&[FRESH, ("set-cookie", "own=1")], "new=1", false),
        (&[("cache-control", "no-cache")], "new=1", false),
        (&[("etag", "\"1\"")], "new=1", false),
        (&[IMAGE, OLD, DATE], "new=1", true),
        (&[IMAGE, RECENT, DATE], "new=1", false),
        (&[OLD, DATE], "new=1", false),
        (
            &[IMAGE, OLD, DATE, ("cache-control", "no-cache")],
            "new=1",
            false,
        ),
        (&[IMAGE, OLD, DATE, ("set-cookie", "own=1")], "new=1", false),
    ] {
        let mut scene = Scene::new(LIMITS);
        scene.push("/a", fields, "body");
        assert_eq!(scene.ask_with("/a", COOKIE), None, "nothing has changed");
        set_cookie(&mut scene, cookie);
        let served = scene.ask_with("/a", COOKIE);
        assert_eq!(served.is_some(), is_served, "{fields:?} {cookie}");
    }
}

#[test]
fn request_joins_an_early_one_from_before_its_cookie() {
    for (is_changed, fate) in [(true, Fate::Late), (false, Fate::Cancelled)] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.promise("/a");
        if is_changed {
            set_cookie(&mut scene, "new=1");
        }
        assert!(scene.ask_with("/a", COOKIE).is_some());
        scene.store.on_head(scene.now, id, ok(&[FRESH]));
        let is_head = matches!(scene.piece(id), Piece::Head(_));
        assert_eq!(is_head, is_changed, "{fate:?}");
    }
}

/// The gateway pushes the resources of a style sheet with the cookies of the page.
#[test]
fn promise_may_follow_the_new_cookie() {
    for (is_next_page, is_served) in [(false, true), (true, false)] {
        let mut scene = Scene::new(LIMITS);
        set_cookie(&mut scene, "new=1");
        if is_next_page {
            scene.ask_with("/page", ("accept", "text/html"));
        }
        scene.push("/a", &[FRESH], "body");
        let served = scene.ask_with("/a", COOKIE);
        assert_eq!(served.is_some(), is_served);
    }
}

/// The gateway may hold the fetch until a request claims it.
#[test]
fn request_joins_a_promise_with_its_cookies_only() {
    const BOTH: &str = "sid=1; _ga=1";
    let part = |cookie| Some((Method::Get, "text/css", cookie));
    let document = |cookie| Some((Method::Get, "text/html", cookie));
    let answer = |cookie| Some((Method::Post, "text/css", cookie));
    for (promised, change, asked, joins) in [
        ("sid=1", None, "sid=1", true),
        ("sid=1", None, "a=2; sid=1", true),
        ("sid=1", None, "sid=2", false),
        ("sid=1", None, "a=2", false),
        ("sid=1", None, "", false),
        ("sid=1", part("sid=2"), "sid=2", true),
        ("sid=1", part("sid=2"), "sid=3", false),
        ("sid=1", part("sid=; Max-Age=0"), "", false),
        // A cookie for a part of the site, and one whose value a script changes.
        (BOTH, None, "sid=1", true),
        (BOTH, None, "_ga=2; sid=1", true),
        (BOTH, None, "_ga=2; sid=2", false),
        (BOTH, part("other=1"), "_ga=2; sid=1", true),
        (BOTH, document("sid=2"), "_ga=1; sid=2", false),
        (BOTH, document("sid=2"), BOTH, true),
        (BOTH, answer("sid=; Max-Age=0"), "_ga=1", false),
    ] {
        let mut scene = Scene::new(LIMITS);
        let mut request = get("/a");
        request.fields.push("cookie", promised);
        let intake = scene.store.on_promise(scene.now, request.clone(), true);
        assert!(matches!(intake, Intake::Read(_)));
        if let Some((method, kind, cookie)) = &change {
            let head = ok(&[("content-type", *kind), ("set-cookie", *cookie)]);
            let request = RequestHead {
                method: method.clone(),
                ..request
            };
            scene.store.note_response(&request, &head, 0);
        }
        let served = match asked.is_empty() {
            true => scene.ask("/a"),
            false => scene.ask_with("/a", ("cookie", asked)),
        };
        assert_eq!(served.is_some(), joins, "{promised} {change:?} {asked}");
    }
}

/// A frame may show the state of the user, which another frame of the page has just changed.
#[test]
fn frame_with_later_cookies_is_requested_again() {
    for (destination, is_served) in [("iframe", false), ("image", true)] {
        let mut scene = Scene::new(LIMITS);
        let mut request = get("/a");
        request.fields.push("sec-fetch-dest", destination);
        let intake = scene.store.on_promise(scene.now, request.clone(), true);
        let Intake::Read(id) = intake else {
            panic!("the push was cancelled");
        };
        scene.store.on_head(scene.now, id, ok(&[FRESH]));
        scene.store.on_end(id, true);
        set_cookie(&mut scene, "new=1");
        request.fields.push(COOKIE.0, COOKIE.1);
        let served = scene.store.on_request(scene.now, &request, false);
        assert_eq!(served.is_some(), is_served, "{destination}");
    }
}
