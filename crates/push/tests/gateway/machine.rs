//! Single events of the gateway's half, and the decisions that follow. They concern the predictor,
//! the slots of fetches, the limits of bodies, and the outcomes that the client reports.

use std::sync::Arc;
use std::time::Duration;

use tandem_http::{RequestHead, ResponseHead, Scheme};
use tandem_push::gateway::{Audience, Config, Output, Predictor, PromiseStream, PushError};
use tandem_push::wire::Fate;

use crate::scene::{HTML, NAVIGATION, SITE, Scene, head};

fn one_at_a_time() -> Scene {
    Scene::new(Config {
        fetches: 1,
        ..Config::default()
    })
}

#[test]
fn predictor_names_resources_of_a_page() {
    let mut scene = Scene::new(Config::default());
    let page = scene.ask("/page", NAVIGATION);
    let interest = scene.head(page, &mut head(200, HTML));
    assert!(interest.promises && interest.body);
    let promise = scene.gateway.take_promise(PromiseStream::Response(page));
    let path = promise.map(|promise| promise.request.path.to_string());
    assert_eq!(path.as_deref(), Some("/learned.png"));
    assert_eq!(scene.recorded(), [format!("{SITE}/page -")]);
}

#[test]
fn predictor_knows_the_frames_of_a_page() {
    let mut scene = Scene::new(Config::default());
    scene.page("");
    let page = format!("{SITE}/page");
    let referrer = ("referer", &*page);
    let frame = scene.ask("/frame", &[NAVIGATION[0], referrer]);
    scene.head(frame, &mut head(200, HTML));
    let image = scene.ask("/a.png", &[referrer]);
    scene.head(image, &mut head(200, &[("content-type", "image/png")]));
    let expected = [
        format!("{SITE}/frame {page} in a frame"),
        format!("{SITE}/a.png {page}"),
    ];
    assert_eq!(scene.recorded(), expected);
}

/// A click causes such requests, and they may have effects.
#[test]
fn requests_after_the_load_are_no_needs_of_the_page() {
    let page = format!("{SITE}/page");
    let fields = |destination, mode| {
        let site = ("sec-fetch-site", "same-origin");
        let metadata = [("sec-fetch-dest", destination), ("sec-fetch-mode", mode)];
        [metadata[0], metadata[1], site, ("referer", page.as_str())]
    };
    for (wait, expected) in [(1, 4), (2, 1)] {
        let mut scene = Scene::new(Config::default());
        let id = scene.page("");
        scene.end(id);
        scene.now += Duration::from_secs(wait);
        for (path, destination, mode) in [
            ("/like", "empty", "cors"),
            ("/like.gif?id=3", "image", "no-cors"),
            ("/frame", "iframe", "navigate"),
            ("/lazy.png", "image", "no-cors"),
        ] {
            let id = scene.ask(path, &fields(destination, mode));
            // The origin answers late in both cases.
            scene.now += Duration::from_millis(100);
            scene.head(id, &mut head(200, &[]));
            scene.end(id);
        }
        let recorded = scene.recorded();
        let is_need = |call: &&String| call.ends_with(&page) || call.ends_with("in a frame");
        let needs = recorded.iter().filter(is_need).count();
        assert_eq!(needs, expected, "after {wait} s: {recorded:?}");
    }
}

#[test]
fn confirmed_document_sends_no_further_body() {
    let mut scene = Scene::new(Config::default());
    assert!(scene.gateway.open_companion(true));
    let page = scene.page("<iframe src=/frame></iframe>");
    let fetch = scene.promises(PromiseStream::Response(page))[0];
    assert!(scene.fetch_head(fetch, &[("etag", "\"1\"")]).is_ok());
    assert!(scene.fetch_data(fetch, 100).is_ok());
    scene.report(Fate::Late, "/frame");
    scene.outputs();
    for expected in [vec![Output::Cancel { fetch }], vec![]] {
        scene.report(Fate::Validated, "/frame");
        assert_eq!(scene.outputs(), expected);
    }
    assert!(scene.fetch_data(fetch, 50).is_ok(), "it was under way");
    assert_eq!(scene.gateway.take_counts().wasted_bytes, 150);
}

#[test]
fn failed_response_is_no_copy_in_the_browser() {
    for (status, promised) in [(200, 0), (404, 1)] {
        let mut scene = Scene::new(Config::default());
        let id = scene.ask("/a.png", &[]);
        let fields = [("cache-control", "max-age=600")];
        scene.head(id, &mut head(status, &fields));
        scene.gateway.handle_end(id, true, None);
        scene.gateway.release_response(scene.now, id);
        let page = scene.page("<img src=/a.png>");
        let promises = scene.promises(PromiseStream::Response(page));
        assert_eq!(promises.len(), promised, "{status}");
    }
}

#[test]
fn predictor_learns_lengths_of_whole_bodies() {
    let image = ("content-type", "image/png");
    let sized = ("content-length", "7");
    for (status, fields, complete, learned) in [
        (200, &[image][..], true, true),
        (200, &[image], false, false),
        (200, &[image, sized], true, false),
        (404, &[image], true, false),
    ] {
        let mut scene = Scene::new(Config::default());
        let id = scene.ask("/a.png", &[]);
        let interest = scene.head(id, &mut head(status, fields));
        let is_unsized = status == 200 && fields.len() == 1;
        assert_eq!((interest.promises, interest.body), (false, is_unsized));
        for data in ["xyz", "abcd"] {
            scene.gateway.handle_data(id, data.as_bytes());
        }
        let predictor = Some(&mut scene.predictor as &mut dyn Predictor);
        scene.gateway.handle_end(id, complete, predictor);
        let mut sizes = scene.recorded();
        sizes.retain(|call| call.starts_with("size "));
        let expected = learned.then(|| format!("size {SITE}/a.png 7"));
        assert_eq!(sizes, Vec::from_iter(expected), "{status} {fields:?}");
    }
}

#[test]
fn resources_of_an_unreported_push_belong_to_its_page() {
    let mut scene = Scene::new(Config::default());
    let page = scene.page("<link rel=stylesheet href=/a.css>");
    assert_eq!(scene.promises(PromiseStream::Response(page)).len(), 1);
    let style = format!("{SITE}/a.css");
    let other = format!("{SITE}/b.css");
    let image = [("content-type", "image/png")];
    let referrer = |scene: &mut Scene, from: &str| {
        let id = scene.ask("/a.png", &[("referer", from)]);
        scene.head(id, &mut head(200, &image));
        scene.recorded()
    };
    let learned = |from: &str| [format!("{SITE}/a.png {from}")];
    let page = format!("{SITE}/page");
    assert_eq!(referrer(&mut scene, &style), learned(&page));
    assert_eq!(referrer(&mut scene, &other), learned(&other));
    scene.gateway.open_companion(true);
    scene.report(Fate::Used, "/a.css");
    assert_eq!(scene.recorded(), [format!("used {page} {style}")]);
    assert_eq!(referrer(&mut scene, &style), learned(&style));
}

#[test]
fn treatment_marks_pages_and_their_redirects() {
    let treatment = |path, fields: &[_], mut answer: ResponseHead| {
        let mut scene = Scene::new(Config::default());
        let id = scene.ask(path, fields);
        scene.gateway.handle_head(scene.now, id, &mut answer, None);
        let pages = scene.gateway.take_counts().pages_pushed;
        let is_marked = answer.fields.contains("tandem-push");
        assert_eq!(u64::from(is_marked), pages, "{path}");
        is_marked
    };
    let style = [("content-type", "text/css")];
    let moved = [("location", "/other")];
    assert!(treatment("/page", NAVIGATION, head(200, HTML)));
    assert!(treatment("/page", NAVIGATION, head(302, &moved)));
    assert!(!treatment("/a.png", &[], head(302, &moved)));
    assert!(!treatment("/a.css", &[], head(200, &style)));
    assert!(!treatment("/page", NAVIGATION, head(404, HTML)));
    assert!(!treatment("/page", NAVIGATION, head(304, &[])));
}

#[test]
fn held_out_pages_are_counted_and_get_no_promise() {
    let mut scene = Scene::new(Config {
        hold_out: 1.0,
        ..Config::default()
    });
    let page = scene.page("<img src=/a.png>");
    assert!(scene.promises(PromiseStream::Response(page)).is_empty());
    let counts = scene.gateway.take_counts();
    assert_eq!((counts.pages_held_out, counts.pages_pushed), (1, 0));
}

#[test]
fn reloaded_page_gets_no_promise() {
    let mut scene = Scene::new(Config::default());
    let fields = [("accept", "text/html"), ("cache-control", "no-cache")];
    let page = scene.ask("/page", &fields);
    scene.head(page, &mut head(200, HTML));
    scene.gateway.handle_data(page, b"<img src=/a.png>");
    assert!(scene.promises(PromiseStream::Response(page)).is_empty());
}

#[test]
fn end_of_a_fetch_begins_the_next() {
    let mut scene = one_at_a_time();
    let images = scene.images(3);
    assert_eq!(scene.begun(), images[..1]);
    scene.gateway.handle_fetch_end(scene.now, images[0]);
    assert_eq!(scene.begun(), images[1..2]);
    // A released fetch gives its slot back too.
    scene.gateway.release_fetch(scene.now, images[1]);
    assert_eq!(scene.begun(), images[2..]);
}

#[test]
fn slow_fetch_gives_its_slot_away_once() {
    let mut scene = one_at_a_time();
    let images = scene.images(3);
    assert_eq!(scene.begun(), images[..1]);
    let due = scene.gateway.poll_timeout().expect("a slot is in use");
    assert_eq!(due, scene.now + Duration::from_secs(2));
    scene.now = due;
    scene.gateway.handle_timeout(due);
    assert_eq!(scene.begun(), images[1..2]);
    // The head of the slow one frees no slot: it has none.
    assert_eq!(scene.fetch_head(images[0], &[]), Ok(()));
    assert!(scene.begun().is_empty());
    assert_eq!(scene.fetch_head(images[1], &[]), Ok(()));
    assert_eq!(scene.begun(), images[2..]);
    assert_eq!(scene.fetch_head(images[2], &[]), Ok(()));
    assert_eq!(scene.gateway.poll_timeout(), None, "all heads have come");
}

#[test]
fn long_body_is_refused_by_its_head() {
    let mut scene = Scene::new(Config::default());
    let images = scene.images(2);
    let length = |length: u64| length.to_string();
    let fits = length(4 << 20);
    assert_eq!(
        scene.fetch_head(images[0], &[("content-length", &fits)]),
        Ok(())
    );
    let long = length((4 << 20) + 1);
    let refused = scene.fetch_head(images[1], &[("content-length", &long)]);
    assert_eq!(refused, Err(PushError::Forbidden));
}

#[test]
fn body_beyond_the_budget_of_its_page_is_refused() {
    const MIB: usize = 1 << 20;
    for (sized, requested, result) in [
        (false, false, Err(PushError::TooLong)),
        (false, true, Ok(())),
        (true, false, Ok(())),
    ] {
        let mut scene = Scene::new(Config::default());
        let images = scene.images(2);
        let fields: &[_] = if sized {
            &[("content-length", "1")]
        } else {
            &[]
        };
        assert_eq!(scene.fetch_head(images[0], fields), Ok(()));
        assert_eq!(scene.fetch_head(images[1], &[]), Ok(()));
        if requested {
            scene.gateway.raise_fetch(scene.now, images[0]);
        }
        // The page may spend 32 MiB on bodies.
        for _ in 0..31 {
            assert_eq!(scene.fetch_data(images[0], MIB), Ok(()));
        }
        assert_eq!(scene.fetch_data(images[0], 2 * MIB), result);
        if !sized {
            // Nothing is left of the budget, but a short body is no problem.
            assert_eq!(scene.fetch_data(images[1], 4 * MIB), Ok(()));
            let more = scene.fetch_data(images[1], 1);
            assert_eq!(more, Err(PushError::TooLong));
        }
    }
}

#[test]
fn end_of_a_style_sheet_names_its_last_resource() {
    let mut scene = Scene::new(Config::default());
    let page = scene.page("<link rel=stylesheet href=/a.css>");
    let style = scene.promises(PromiseStream::Response(page))[0];
    let passed = scene.fetch_head(style, &[("content-type", "text/css")]);
    assert_eq!(passed, Ok(()));
    let data = b"p { background: url(/a.png";
    let now = scene.now;
    assert!(scene.gateway.handle_fetch_data(now, style, data).is_ok());
    assert!(scene.promises(PromiseStream::Response(page)).is_empty());
    scene.gateway.handle_fetch_end(now, style);
    assert_eq!(scene.promises(PromiseStream::Response(page)).len(), 1);
}

#[test]
fn wasted_bytes_of_a_push_are_counted_to_its_end() {
    let mut scene = Scene::new(Config::default());
    let images = scene.images(2);
    scene.gateway.open_companion(true);
    assert_eq!(scene.fetch_head(images[0], &[]), Ok(()));
    assert_eq!(scene.fetch_data(images[0], 10), Ok(()));
    scene.report(Fate::Wasted, "/0.png");
    assert_eq!(scene.fetch_data(images[0], 5), Ok(()));
    let counts = scene.gateway.take_counts();
    assert_eq!((counts.wasted_bytes, counts.extra_requests), (15, 1));
}

#[test]
fn fates_are_counted_and_learned() {
    let page = format!("{SITE}/page");
    let used = format!("used {page} {SITE}/0.png");
    let cancelled = format!("cancelled {SITE}/0.png");
    let confirmed = format!("confirmed {page} {SITE}/0.png");
    for (fate, counted, learned) in [
        (Fate::Used, [1, 0, 0, 0], Some(&used)),
        (Fate::Late, [0, 1, 0, 0], Some(&used)),
        (Fate::Wasted, [0, 0, 1, 0], None),
        (Fate::Cancelled, [0, 0, 0, 1], Some(&cancelled)),
        (Fate::Validated, [0, 0, 0, 0], Some(&confirmed)),
    ] {
        let mut scene = Scene::new(Config::default());
        let images = scene.images(1);
        scene.gateway.open_companion(true);
        scene.outputs();
        scene.report(fate, "/0.png");
        scene.report(fate, "/0.png");
        let counts = scene.gateway.take_counts();
        let counts = [counts.used, counts.late, counts.wasted, counts.cancelled];
        assert_eq!(counts, counted, "{fate:?}: a push has one outcome");
        assert_eq!(scene.recorded(), Vec::from_iter(learned.cloned()));
        let raised = Output::Raise { fetch: images[0] };
        assert_eq!(scene.outputs().contains(&raised), fate == Fate::Late);
    }
}

#[test]
fn companion_opens_once_and_takes_waiting_promises() {
    let mut scene = Scene::new(Config::default());
    assert!(scene.gateway.open_companion(true));
    assert!(!scene.gateway.open_companion(true));
    assert!(scene.outputs().is_empty(), "no promise waits");
    scene.gateway.close_companion();
    // The end of the page leaves its promise to the companion.
    let page = scene.page("<img src=/a.png>");
    scene.gateway.handle_end(page, true, None);
    scene.outputs();
    assert!(scene.gateway.open_companion(true));
    let promised = Output::Promise(PromiseStream::Companion);
    assert_eq!(scene.outputs(), [promised]);
    assert_eq!(scene.promises(PromiseStream::Companion).len(), 1);
}

#[test]
fn untaken_promise_of_a_left_page_is_dropped() {
    let mut scene = Scene::new(Config {
        audience: Audience::OneUser,
        ..Config::default()
    });
    let known = [("content-type", "text/html"), ("etag", "\"1\"")];
    let now = scene.now;
    let first = scene.ask("/page", NAVIGATION);
    scene
        .gateway
        .handle_head(now, first, &mut head(200, &known), None);
    scene.gateway.handle_data(first, b"<img src=/a.png>");
    let fetches = scene.promises(PromiseStream::Response(first));
    let image = [("content-type", "image/png")];
    assert_eq!(scene.fetch_head(fetches[0], &image), Ok(()));
    scene.report(Fate::Used, "/a.png");
    scene.gateway.handle_fetch_end(now, fetches[0]);
    scene.gateway.release_fetch(now, fetches[0]);
    scene.gateway.handle_end(first, true, None);
    scene.gateway.release_response(now, first);
    // The same page in two tabs: the second adopts the promise that the first still carries.
    let carrying = scene.ask("/page", NAVIGATION);
    let failing = scene.ask("/page", NAVIGATION);
    assert_eq!(scene.gateway.records(), [2, 2, 1]);
    scene
        .gateway
        .handle_head(now, failing, &mut head(404, &[]), None);
    scene.outputs();
    let other = scene.ask("/other", NAVIGATION);
    scene
        .gateway
        .handle_head(now, other, &mut head(200, &known), None);
    assert_eq!(scene.outputs(), []);
    assert_eq!(scene.gateway.records()[2], 0);
    assert_eq!(scene.promises(PromiseStream::Response(carrying)), []);
}

#[test]
fn error_of_a_request_teaches_no_need() {
    let page = format!("{SITE}/page");
    let of_page = ("referer", page.as_str());
    for (fields, status, expected) in [
        (&[of_page][..], 404, 0),
        (&[of_page], 410, 0),
        (&[of_page], 500, 0),
        (&[of_page], 200, 1),
        (NAVIGATION, 404, 1),
    ] {
        let mut scene = Scene::new(Config::default());
        let id = scene.ask("/x.png", fields);
        scene.head(id, &mut head(status, &[("content-type", "text/html")]));
        let recorded = scene.recorded();
        assert_eq!(recorded.len(), expected, "{status} {recorded:?}");
    }
}

#[test]
fn host_that_failed_for_its_session_answers_first() {
    for (statuses, expected) in [
        (&[500][..], 0),
        (&[500, 404], 1),
        (&[404, 500], 1),
        (&[404], 1),
    ] {
        let mut scene = Scene::new(Config::default());
        let own = Arc::new(RequestHead::get(Scheme::Http, "img.a.test", "/own"));
        for &status in statuses {
            let now = scene.now;
            let id = scene.gateway.handle_request(now, &own, true);
            let id = id.expect("a GET has a number");
            scene.head(id, &mut head(status, &[]));
            scene.end(id);
        }
        let page = scene.page("<img src=//img.a.test/1.png>");
        let paths = scene.paths(PromiseStream::Response(page));
        assert_eq!(paths.len(), expected, "{statuses:?}");
    }
}
