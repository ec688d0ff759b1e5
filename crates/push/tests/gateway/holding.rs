//! Single decisions about held fetches: the signs of a visit, the siblings of a resource, and the
//! end of the waiting.

use std::time::Duration;

use tandem_push::gateway::{Config, FetchId, Output, PromiseStream, ResponseId};
use tandem_push::wire::Fate;

use crate::needs::Needs;
use crate::origin::{page, redirect};
use crate::pair::Pair;
use crate::scene::{NAVIGATION, Scene, head};

const KNOWN: &[(&str, &str)] = &[("content-type", "text/html"), ("etag", "\"1\"")];

const NO_STORE: &[(&str, &str)] = &[("cache-control", "no-store")];

const FRESH: &[(&str, &str)] = &[("cache-control", "max-age=600"), ("etag", "\"1\"")];

/// Begins the page of a browser that has been at the site before.
fn begin_returning(scene: &mut Scene, path: &str, body: &str) -> ResponseId {
    let fields = [NAVIGATION[0], ("cookie", "seen=1")];
    let id = scene.ask(path, &fields);
    scene
        .gateway
        .handle_head(scene.now, id, &mut head(200, KNOWN), None);
    scene.gateway.handle_data(id, body.as_bytes());
    id
}

fn with_companion() -> Scene {
    let mut scene = Scene::new(Config::default());
    assert!(scene.gateway.open_companion(true));
    scene
}

/// Takes the promises of a page, and returns their paths and fetches.
fn held(scene: &mut Scene, page: ResponseId) -> Vec<(String, FetchId)> {
    let mut held = Vec::new();
    while let Some(promise) = scene.gateway.take_promise(PromiseStream::Response(page)) {
        scene.gateway.queue_fetch(scene.now, promise.fetch);
        held.push((promise.request.path, promise.fetch));
    }
    held
}

/// Begins a page with 40 images, all of which are held.
fn with_forty_held() -> (Scene, ResponseId, Vec<(String, FetchId)>) {
    let mut scene = Scene::new(Config {
        fetches: 100,
        first_fetches: 100,
        ..Config::default()
    });
    assert!(scene.gateway.open_companion(true));
    let images = (0..40).map(|at| format!("<img src=/{at}>"));
    let page = begin_returning(&mut scene, "/page", &images.collect::<String>());
    let held = held(&mut scene, page);
    (scene, page, held)
}

fn fetch_of(held: &[(String, FetchId)], path: &str) -> FetchId {
    let found = held.iter().find(|(own, _)| own == path);
    found.expect("it was promised").1
}

/// Returns the paths of the fetches that have begun since the last call.
fn begun(scene: &mut Scene) -> Vec<String> {
    let outputs = scene.outputs().into_iter();
    let paths = outputs.filter_map(|output| match output {
        Output::Fetch { request, .. } => Some(request.path),
        _ => None,
    });
    paths.collect()
}

#[test]
fn siblings_share_their_kind_and_directory() {
    let mut scene = with_companion();
    let paths = [
        "/live/1",
        "/live/2",
        "/live/3?of=/other/x",
        "/other/4",
        "/live/5",
    ];
    let images = paths.map(|path| format!("<img src={path}>")).concat();
    let body = images + "<link rel=stylesheet href=/live/s.css>";
    let page = begin_returning(&mut scene, "/page", &body);
    let held = held(&mut scene, page);
    assert_eq!((held.len(), begun(&mut scene).len()), (6, 0));
    for path in ["/live/1", "/live/2"] {
        scene.report(Fate::Late, path);
        assert_eq!(begun(&mut scene), [path]);
        let fetch = fetch_of(&held, path);
        assert_eq!(scene.fetch_head(fetch, NO_STORE), Ok(()));
    }
    assert_eq!(begun(&mut scene), ["/live/3?of=/other/x", "/live/5"]);
}

#[test]
fn held_fetch_is_given_up_in_time() {
    let mut scene = with_companion();
    let page = begin_returning(&mut scene, "/page", "<img src=/a.png>");
    let fetch = held(&mut scene, page)[0].1;
    let due = scene.now + Duration::from_secs(8);
    assert_eq!(scene.gateway.poll_timeout(), Some(due));
    scene.gateway.handle_timeout(due - Duration::from_millis(1));
    assert!(
        scene
            .outputs()
            .iter()
            .all(|it| !matches!(it, Output::Cancel { .. }))
    );
    scene.gateway.handle_timeout(due);
    assert_eq!(scene.outputs(), [Output::Cancel { fetch }]);
    assert_eq!(scene.gateway.poll_timeout(), None);
    let counts = scene.gateway.take_counts();
    assert_eq!((counts.withheld, counts.extra_requests), (1, 0));
}

#[test]
fn document_does_not_wait_for_a_sign() {
    let mut scene = with_companion();
    let page = begin_returning(
        &mut scene,
        "/page",
        "<iframe src=/frame></iframe><img src=/a.png>",
    );
    held(&mut scene, page);
    assert_eq!(begun(&mut scene), ["/frame"]);
}

#[test]
fn cookie_of_an_image_shows_no_first_visit() {
    let mut scene = with_companion();
    let id = scene.ask("/first.png", &[]);
    let mut answer = head(200, &[("set-cookie", "a=b")]);
    scene.gateway.handle_head(scene.now, id, &mut answer, None);
    scene.end(id);
    let page = scene.ask("/page", NAVIGATION);
    let mut answer = head(200, &KNOWN[..1]);
    scene
        .gateway
        .handle_head(scene.now, page, &mut answer, None);
    scene.gateway.handle_data(page, b"<img src=/a.png>");
    assert_eq!(held(&mut scene, page).len(), 1);
    assert!(begun(&mut scene).is_empty());
}

#[test]
fn conditional_request_holds_later_needs_of_a_page() {
    for (has_companion, referrer, is_held) in [
        (true, "http://a.test/page", true),
        (true, "http://b.test/page", false),
        (false, "http://a.test/page", false),
    ] {
        let mut scene = Scene::new(Config::default());
        if has_companion {
            assert!(scene.gateway.open_companion(true));
        }
        let page = scene.page("<img src=/1>");
        held(&mut scene, page);
        assert_eq!(begun(&mut scene), ["/1"], "a first visit");
        let condition = [("if-none-match", "\"1\""), ("referer", referrer)];
        let sheet = scene.ask("/s.css", &condition);
        let mut answer = head(304, &[("etag", "\"1\"")]);
        scene
            .gateway
            .handle_head(scene.now, sheet, &mut answer, None);
        scene.gateway.handle_data(page, b"<img src=/2>");
        held(&mut scene, page);
        assert_eq!(begun(&mut scene).is_empty(), is_held, "{referrer}");
    }
}

#[test]
fn condition_for_a_received_copy_is_no_sign() {
    let mut scene = with_companion();
    let tag = [("cache-control", "no-cache"), ("etag", "\"1\"")];
    let fields = [("referer", "http://a.test/page")];
    for (status, condition) in [(200, None), (304, Some(("if-none-match", "\"1\"")))] {
        let fields: Vec<_> = fields.into_iter().chain(condition).collect();
        let sheet = scene.ask("/s.css", &fields);
        let mut answer = head(status, &tag);
        scene
            .gateway
            .handle_head(scene.now, sheet, &mut answer, None);
        scene.end(sheet);
    }
    let page = scene.page("<img src=/1>");
    held(&mut scene, page);
    assert_eq!(begun(&mut scene), ["/1"], "a first visit");
}

#[test]
fn cookie_behind_a_redirect_shows_a_first_visit() {
    for (cookie, is_first) in [(Some("a=b"), true), (None, false)] {
        let mut body = page("text/html", "<img src=a.png>");
        if let Some(cookie) = cookie {
            body = body.with("set-cookie", cookie);
        }
        let mut pair = Pair::new(&[
            ("http://a.test/", redirect("/page")),
            ("http://a.test/page", body),
            ("http://a.test/a.png", page("image/png", "x")),
        ]);
        pair.send("http://a.test/", NAVIGATION);
        pair.run_for(Duration::from_secs(1));
        let asked: Vec<_> = pair.take_asked().into_iter().map(|it| it.url).collect();
        assert!(
            asked.contains(&"http://a.test/page".to_owned()),
            "{asked:?}"
        );
        let image = "http://a.test/a.png".to_owned();
        assert_eq!(asked.contains(&image), is_first, "{cookie:?}");
    }
}

#[test]
fn copy_of_a_held_resource_needs_no_further_promise() {
    let mut scene = with_companion();
    let page = begin_returning(&mut scene, "/page", "<img src=/a.png>");
    held(&mut scene, page);
    scene.now += Duration::from_secs(8);
    scene.gateway.handle_timeout(scene.now);
    scene.end(page);
    scene.outputs();
    let page = begin_returning(&mut scene, "/other", "<img src=/a.png>");
    assert!(held(&mut scene, page).is_empty());
}

#[test]
fn claims_grow_with_the_signs_of_a_page() {
    let (mut scene, page, held) = with_forty_held();
    for (path, count) in [("/39", 8), ("/38", 16)] {
        scene.report(Fate::Late, path);
        assert_eq!(begun(&mut scene), [path]);
        assert_eq!(scene.fetch_head(fetch_of(&held, path), FRESH), Ok(()));
        assert_eq!(begun(&mut scene).len(), count);
    }
    // Resources that the page names later use the rest of the next claim.
    scene.report(Fate::Late, "/37");
    begun(&mut scene);
    assert_eq!(scene.fetch_head(fetch_of(&held, "/37"), FRESH), Ok(()));
    assert_eq!(begun(&mut scene).len(), 40 - 3 - 24);
    let more = (50..70).map(|at| format!("<img src=/{at}>"));
    let more: String = more.collect();
    scene.gateway.handle_data(page, more.as_bytes());
    self::held(&mut scene, page);
    assert_eq!(begun(&mut scene).len(), 24 - (40 - 3 - 24));
}

#[test]
fn claims_of_one_burst_count_on_both_sides_of_a_head() {
    for (millis, has_head, count) in [
        (0, false, 16),
        (99, false, 16),
        (99, true, 16),
        (100, false, 0),
        (100, true, 0),
    ] {
        let (mut scene, _, held) = with_forty_held();
        let (first, second) = (fetch_of(&held, "/0"), fetch_of(&held, "/1"));
        scene.report(Fate::Late, "/0");
        assert_eq!(begun(&mut scene), ["/0"]);
        assert_eq!(scene.fetch_head(first, FRESH), Ok(()));
        assert_eq!(begun(&mut scene).len(), 8, "one claim");
        scene.now += Duration::from_millis(millis);
        if has_head {
            assert_eq!(scene.fetch_head(second, FRESH), Ok(()));
        }
        scene.report(Fate::Late, "/1");
        if !has_head {
            assert_eq!(begun(&mut scene).len(), 0);
            assert_eq!(scene.fetch_head(second, FRESH), Ok(()));
        }
        let begun = begun(&mut scene).len();
        assert_eq!(begun, count, "{millis} ms, {has_head}");
    }
}

#[test]
fn learned_need_waits_until_the_page_names_its_host() {
    let learned = "http://i.a.test/learned.png";
    for (body, is_named) in [("<img src=http://i.a.test/x.png>", true), ("", false)] {
        let url = "http://a.test/page";
        let document = page("text/html", body).with("set-cookie", "a=b");
        let mut pair = Pair::new(&[(url, document)]);
        pair.predictor = Some(Needs::of_redirect(url, vec![learned], ""));
        let asked = pair.load(url, NAVIGATION);
        assert_eq!(asked.contains(&learned.to_owned()), is_named);
    }
}

#[test]
fn waste_counts_once_claims_have_shown_an_empty_cache() {
    let (mut scene, _, held) = with_forty_held();
    for (claimed, unused, wasted) in [
        ("/39", "/0", 0),
        ("/38", "/1", 0),
        ("/37", "/2", 0),
        ("/36", "/3", 1),
    ] {
        scene.report(Fate::Late, claimed);
        assert_eq!(scene.fetch_head(fetch_of(&held, claimed), FRESH), Ok(()));
        begun(&mut scene);
        scene.report(Fate::Wasted, unused);
        assert_eq!(scene.predictor.wasted.len(), wasted, "{claimed}");
    }
    assert_eq!(scene.predictor.useless_hosts.len(), 4);
}

#[test]
fn waste_of_documents_and_held_fetches_is_none() {
    let mut scene = with_companion();
    let page = scene.page("<iframe src=/frame></iframe><img src=/a.png>");
    held(&mut scene, page);
    begun(&mut scene);
    scene.report(Fate::Wasted, "/frame");
    assert_eq!(
        scene.predictor.wasted, [""; 0],
        "the browser requests it itself"
    );
    scene.report(Fate::Wasted, "/a.png");
    assert_eq!(scene.predictor.wasted, ["http://a.test/a.png"]);
    let (mut scene, ..) = with_forty_held();
    scene.report(Fate::Wasted, "/1");
    assert_eq!(scene.predictor.wasted, [""; 0], "nothing was fetched");
    assert_eq!(scene.predictor.useless_hosts, [""; 0]);
}
