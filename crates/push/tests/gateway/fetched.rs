//! The answers that fetches bring: the heads that may be passed on, the lessons for the predictor,
//! and the order of promises and bytes.

use std::time::Duration;

use tandem_push::gateway::{
    Audience, Config, FetchId, Order, Output, Predictor, PromiseStream, PushError,
};
use tandem_push::wire::Fate;

use crate::scene::{NAVIGATION, SITE, Scene, head, request};

const NO_STORE: (&str, &str) = ("cache-control", "no-store");

const FRESH: (&str, &str) = ("cache-control", "max-age=600");

const TAG: (&str, &str) = ("etag", "\"1\"");

/// The length of a pushed body that is not too long.
const LONGEST: u64 = 4 << 20;

/// Passes the head of a push, which the predictor sees.
fn pass(
    scene: &mut Scene,
    fetch: FetchId,
    status: u16,
    fields: &[(&str, &str)],
) -> Result<Order, PushError> {
    let predictor = Some(&mut scene.predictor as &mut dyn Predictor);
    let mut head = head(status, fields);
    scene
        .gateway
        .handle_fetch_head(scene.now, fetch, &mut head, predictor)
}

/// Returns the number of promises of a new page that names the first image of the last one, after
/// its stream was closed.
fn promised_again(scene: &mut Scene, first: FetchId) -> usize {
    scene.gateway.release_fetch(scene.now, first);
    let page = scene.ask("/again", NAVIGATION);
    let mut answer = head(200, &[("content-type", "text/html")]);
    scene
        .gateway
        .handle_head(scene.now, page, &mut answer, None);
    scene.gateway.handle_data(page, b"<img src=/0.png>");
    scene.paths(PromiseStream::Response(page)).len()
}

#[test]
fn answer_that_must_not_be_pushed_is_fetched_once() {
    let long = (LONGEST + 1).to_string();
    for fields in [
        ("content-length", long.as_str()),
        ("vary", "cookie"),
        NO_STORE,
    ] {
        let mut scene = Scene::new(Config::default());
        let images = scene.images(1);
        let passed = pass(&mut scene, images[0], 200, &[fields]);
        assert_eq!(passed, Err(PushError::Forbidden), "{fields:?}");
        assert_eq!(promised_again(&mut scene, images[0]), 0, "{fields:?}");
    }
}

#[test]
fn longest_answer_is_pushed_again() {
    let mut scene = Scene::new(Config::default());
    let images = scene.images(1);
    let whole = LONGEST.to_string();
    let passed = pass(&mut scene, images[0], 200, &[("content-length", &whole)]);
    assert_eq!(passed, Ok(Order::Now));
    scene.report(Fate::Wasted, "/0.png");
    assert_eq!(promised_again(&mut scene, images[0]), 1);
}

#[test]
fn validation_wastes_the_bytes_of_the_body() {
    let mut scene = Scene::new(Config::default());
    let fetch = scene.images(1)[0];
    assert_eq!(pass(&mut scene, fetch, 200, &[TAG]), Ok(Order::Now));
    assert_eq!(scene.fetch_data(fetch, 10), Ok(()));
    scene.outputs();
    scene.report(Fate::Validated, "/0.png");
    assert_eq!(scene.outputs(), [Output::Cancel { fetch }]);
    assert_eq!(scene.fetch_data(fetch, 5), Ok(()), "it was under way");
    let counts = scene.gateway.take_counts();
    assert_eq!((counts.validated, counts.wasted_bytes), (1, 15));
}

#[test]
fn body_that_is_too_long_leaves_no_copy() {
    let mut scene = Scene::new(Config::default());
    let fetch = scene.images(1)[0];
    assert_eq!(pass(&mut scene, fetch, 200, &[FRESH]), Ok(Order::Now));
    for _ in 0..8 {
        assert_eq!(scene.fetch_data(fetch, 4 << 20), Ok(()));
    }
    assert_eq!(scene.fetch_data(fetch, 1), Err(PushError::TooLong));
    scene.gateway.release_fetch(scene.now, fetch);
    scene.report(Fate::Cancelled, "/0.png");
    assert_eq!(promised_again(&mut scene, fetch), 1);
}

#[test]
fn answer_beyond_the_budget_is_right_for_another_page() {
    let mut scene = Scene::new(Config::default());
    let images = scene.images(9);
    let whole = LONGEST.to_string();
    for image in &images[1..] {
        let passed = pass(&mut scene, *image, 200, &[("content-length", &whole)]);
        assert_eq!(passed, Ok(Order::Now));
    }
    let passed = pass(&mut scene, images[0], 200, &[("content-length", "1")]);
    assert_eq!(passed, Err(PushError::Forbidden));
    assert_eq!(promised_again(&mut scene, images[0]), 1);
}

#[test]
fn answer_without_storage_needs_a_client_that_reports() {
    let one_user = Config {
        audience: Audience::OneUser,
        ..Config::default()
    };
    for (config, has_companion, status, is_passed) in [
        (Config::default(), false, 200, false),
        (Config::default(), true, 200, true),
        (Config::default(), true, 403, true),
        (Config::default(), true, 503, true),
        (Config::default(), true, 429, true),
        (one_user, true, 503, true),
    ] {
        let mut scene = Scene::new(config);
        if has_companion {
            assert!(scene.gateway.open_companion(true));
        }
        let images = scene.images(1);
        let passed = pass(&mut scene, images[0], status, &[NO_STORE]);
        assert_eq!(passed.is_ok(), is_passed, "{status}");
        assert_eq!(scene.gateway.holds_head(images[0]), is_passed, "{status}");
    }
}

#[test]
fn answer_without_storage_passes_to_a_waiting_request() {
    for is_awaited in [false, true] {
        let mut scene = Scene::new(Config::default());
        assert!(scene.gateway.open_companion(true));
        let fetch = scene.images(1)[0];
        if is_awaited {
            scene.gateway.raise_fetch(scene.now, fetch);
        }
        assert_eq!(pass(&mut scene, fetch, 200, &[NO_STORE]), Ok(Order::Now));
        assert_eq!(scene.gateway.holds_head(fetch), !is_awaited);
        scene.outputs();
        scene.gateway.raise_fetch(scene.now, fetch);
        let body = Output::Body { fetch };
        assert_eq!(scene.outputs().contains(&body), !is_awaited);
        assert!(!scene.gateway.holds_head(fetch));
    }
}

#[test]
fn push_teaches_whether_caches_keep_it() {
    let url = format!("{SITE}/0.png");
    for (status, fields, expected) in [
        (200, &[][..], Some(false)),
        (200, &[FRESH], Some(true)),
        (200, &[FRESH, TAG], None),
        (404, &[], None),
        (200, &[("vary", "cookie")], None),
    ] {
        let mut scene = Scene::new(Config::default());
        let fetch = scene.images(1)[0];
        let _ = pass(&mut scene, fetch, status, fields);
        let expected = expected.map(|is_kept| (url.clone(), is_kept));
        assert_eq!(scene.predictor.kept, Vec::from_iter(expected), "{fields:?}");
    }
}

#[test]
fn used_push_teaches_the_lifetime_of_its_copies() {
    for (fate, is_learned) in [
        (Fate::Used, true),
        (Fate::Late, true),
        (Fate::Wasted, false),
        (Fate::Cancelled, false),
        (Fate::Validated, false),
    ] {
        let mut scene = Scene::new(Config::default());
        let fetch = scene.images(1)[0];
        assert_eq!(pass(&mut scene, fetch, 200, &[FRESH, TAG]), Ok(Order::Now));
        assert!(scene.predictor.lifetimes.is_empty());
        scene.report(fate, "/0.png");
        assert_eq!(scene.predictor.lifetimes.len(), usize::from(is_learned));
    }
}

#[test]
fn answer_teaches_its_lifetime_or_its_use_for_caches() {
    let url = format!("{SITE}/a.png");
    for (status, fields, lifetimes, kept) in [
        (200, &[FRESH, TAG][..], 1, None),
        (200, &[FRESH], 0, Some(true)),
        (200, &[], 0, Some(false)),
        (404, &[], 0, None),
        (304, &[TAG], 0, None),
    ] {
        let mut scene = Scene::new(Config::default());
        let id = scene.ask("/a.png", &[]);
        scene.head(id, &mut head(status, fields));
        assert_eq!(scene.predictor.lifetimes.len(), lifetimes, "{status}");
        let kept = kept.map(|is_kept| (url.clone(), is_kept));
        assert_eq!(scene.predictor.kept, Vec::from_iter(kept), "{status}");
    }
}

#[test]
fn complete_and_plain_answers_are_repeated() {
    let sized = ("content-length", "0");
    for (status, fields, requested, is_repeated) in [
        (200, &[FRESH, sized][..], false, true),
        (200, &[FRESH], false, false),
        (404, &[FRESH, sized], false, false),
        (200, &[FRESH, sized, ("set-cookie", "a=b")], false, false),
        (200, &[FRESH, sized], true, false),
        (200, &[sized], false, false),
    ] {
        let mut scene = Scene::new(Config::default());
        let fetch = scene.images(1)[0];
        if requested {
            scene.gateway.raise_fetch(scene.now, fetch);
        }
        assert_eq!(pass(&mut scene, fetch, status, fields), Ok(Order::Now));
        let fields = [("referer", "http://a.test/page"), ("cookie", "")];
        let asked = request("/0.png", &fields[..1]);
        let repeated = scene.gateway.repeat(scene.now, &asked);
        assert_eq!(repeated.is_some(), is_repeated, "{status} {fields:?}");
    }
}

#[test]
fn report_ends_the_repetition_of_an_answer() {
    let mut scene = Scene::new(Config::default());
    let fetch = scene.images(1)[0];
    let sized = ("content-length", "0");
    assert_eq!(
        pass(&mut scene, fetch, 200, &[FRESH, sized]),
        Ok(Order::Now)
    );
    assert!(scene.gateway.poll_timeout().is_some(), "it is kept");
    scene.report(Fate::Used, "/0.png");
    assert_eq!(scene.gateway.poll_timeout(), None);
}

#[test]
fn promises_on_the_companion_precede_their_bytes() {
    let mut scene = Scene::new(Config::default());
    assert!(scene.gateway.open_companion(true));
    let page = scene.page("<link rel=stylesheet href=/a.css><iframe src=/f></iframe>");
    let fetches = scene.promises(PromiseStream::Response(page));
    scene.end(page);
    let style = [("content-type", "text/css")];
    let (now, style_sheet) = (scene.now, fetches[0]);
    assert_eq!(pass(&mut scene, style_sheet, 200, &style), Ok(Order::Now));
    for (data, order) in [
        (&b"p { background: url(/b.png) }"[..], Order::AfterPromises),
        (b"p { color: red }", Order::Now),
    ] {
        let passed = scene.gateway.handle_fetch_data(now, style_sheet, data);
        assert_eq!(passed, Ok(order));
    }
    let moved = [("location", "/g")];
    let passed = pass(&mut scene, fetches[1], 302, &moved);
    assert_eq!(passed, Ok(Order::AfterPromises));
    assert_eq!(scene.paths(PromiseStream::Companion), ["/b.png", "/g"]);
    scene.gateway.close_companion();
    let data = b"p { background: url(/c.png) }";
    let passed = scene.gateway.handle_fetch_data(now, style_sheet, data);
    assert_eq!(passed, Ok(Order::Now), "no companion takes the promise");
}

#[test]
fn joined_documents_are_remembered_up_to_a_number() {
    let mut scene = Scene::new(Config::default());
    assert!(scene.gateway.open_companion(true));
    let frames: String = (0..17)
        .map(|at| format!("<iframe src=/{at}></iframe>"))
        .collect();
    let page = scene.page(&frames);
    let fetches = scene.promises(PromiseStream::Response(page));
    assert_eq!(fetches.len(), 17);
    for (at, fetch) in fetches.iter().enumerate() {
        assert_eq!(pass(&mut scene, *fetch, 200, &[TAG]), Ok(Order::Now));
        scene.report(Fate::Late, &format!("/{at}"));
    }
    scene.outputs();
    scene.report(Fate::Validated, "/0");
    assert_eq!(scene.outputs(), []);
    scene.report(Fate::Validated, "/1");
    assert_eq!(scene.outputs(), [Output::Cancel { fetch: fetches[1] }]);
}

#[test]
fn cancelled_fetch_frees_its_place() {
    let mut scene = Scene::new(Config {
        fetches: 1,
        ..Config::default()
    });
    let images = scene.images(4);
    assert_eq!(scene.begun(), images[..1]);
    // A fetch that waits is released, and never begins.
    scene.gateway.release_fetch(scene.now, images[1]);
    assert!(scene.begun().is_empty());
    // A slow one has given its slot away already.
    scene.now += Duration::from_secs(2);
    scene.gateway.handle_timeout(scene.now);
    assert_eq!(scene.begun(), images[2..3]);
    scene.gateway.release_fetch(scene.now, images[0]);
    assert!(scene.begun().is_empty());
    scene.gateway.release_fetch(scene.now, images[2]);
    assert_eq!(scene.begun(), images[3..]);
}

#[test]
fn requested_fetch_begins_before_others() {
    let mut scene = Scene::new(Config {
        fetches: 1,
        ..Config::default()
    });
    let images = scene.images(4);
    scene.gateway.raise_fetch(scene.now, images[3]);
    scene.begun();
    scene.gateway.handle_fetch_end(scene.now, images[0]);
    assert_eq!(scene.begun(), images[3..]);
    scene.gateway.handle_fetch_end(scene.now, images[3]);
    assert_eq!(scene.begun(), images[1..2]);
}
