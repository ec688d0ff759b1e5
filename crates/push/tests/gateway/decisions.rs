//! Decisions about promises: the requests, answers and limits that permit or forbid them.

use std::sync::Arc;
use std::time::Duration;

use tandem_http::{RequestHead, ResponseHead, Scheme};
use tandem_push::gateway::{Audience, Config, Output, PromiseStream};
use tandem_push::wire::{Fate, OPENED_FIELD};

use crate::scene::{NAVIGATION, SITE, Scene, head, request};

/// The head of a page that shows a first visit by its validator.
const KNOWN: &[(&str, &str)] = &[("content-type", "text/html"), ("etag", "\"1\"")];

const IMAGE: &[(&str, &str)] = &[("content-type", "image/png")];

const FRESH: &[(&str, &str)] = &[
    ("content-type", "image/png"),
    ("cache-control", "max-age=600"),
];

const ONE_USER: Config = Config {
    own_origin_only: false,
    hosts: usize::MAX,
    audience: Audience::OneUser,
    caches_are_new: false,
    hold_out: 0.0,
    fetches: 32,
    first_fetches: 32,
    unreported: 4096,
    named_by_scripts: 0,
    seed: 0,
};

/// Begins a page at a path. It stays under way.
fn begin(scene: &mut Scene, path: &str, body: &str) -> PromiseStream {
    let id = scene.ask(path, NAVIGATION);
    scene
        .gateway
        .handle_head(scene.now, id, &mut head(200, KNOWN), None);
    scene.gateway.handle_data(id, body.as_bytes());
    PromiseStream::Response(id)
}

/// Passes the answer to a request for a resource.
fn receive(scene: &mut Scene, path: &str, status: u16, fields: &[(&str, &str)]) {
    let id = scene.ask(path, &[]);
    scene
        .gateway
        .handle_head(scene.now, id, &mut head(status, fields), None);
    scene.end(id);
}

/// A session with one user that has loaded a page and used its image.
fn visited() -> Scene {
    let mut scene = Scene::new(ONE_USER);
    let now = scene.now;
    let page = scene.ask("/page", NAVIGATION);
    scene
        .gateway
        .handle_head(now, page, &mut head(200, KNOWN), None);
    scene.gateway.handle_data(page, b"<img src=/a.png>");
    let fetches = scene.promises(PromiseStream::Response(page));
    assert_eq!(scene.fetch_head(fetches[0], IMAGE), Ok(()));
    scene.report(Fate::Used, "/a.png");
    scene.gateway.handle_fetch_end(now, fetches[0]);
    scene.gateway.release_fetch(now, fetches[0]);
    scene.end(page);
    scene.outputs();
    scene
}

#[test]
fn early_promises_follow_a_plain_navigation_only() {
    let frame = ("referer", "http://a.test/page");
    for (fields, is_promised) in [
        (&[][..], true),
        (&[("if-none-match", "\"1\"")], false),
        (&[("cache-control", "no-cache")], false),
        (&[("sec-fetch-dest", "image")], false),
        (&[frame], false),
        (&[frame, ("sec-fetch-dest", "document")], true),
    ] {
        let mut scene = visited();
        let page = scene.ask("/page", &[NAVIGATION, fields].concat());
        let interest = scene.gateway.interest_in(page);
        assert_eq!(interest.promises, is_promised, "{fields:?}");
    }
    let mut scene = visited();
    let other = scene.ask("/other", NAVIGATION);
    assert!(!scene.gateway.interest_in(other).promises);
    let request = Arc::new(request("/page", NAVIGATION));
    let learned = scene.gateway.handle_request(scene.now, &request, false);
    let learned = learned.expect("it teaches the predictor");
    assert!(!scene.gateway.interest_in(learned).promises);
    scene.gateway.close();
    let page = scene.ask("/page", NAVIGATION);
    assert!(!scene.gateway.interest_in(page).promises);
}

#[test]
fn early_promises_belong_to_the_page_alone() {
    for (answer, is_promised) in [
        (head(200, KNOWN), true),
        (head(404, KNOWN), false),
        (head(200, IMAGE), false),
        (head(302, &[("location", "/other")]), false),
    ] {
        let mut scene = visited();
        let page = scene.ask("/page", NAVIGATION);
        let now = scene.now;
        let status = answer.status;
        scene
            .gateway
            .handle_head(now, page, &mut answer.clone(), None);
        let paths = scene.paths(PromiseStream::Response(page));
        assert_eq!(
            paths.contains(&"/a.png".to_owned()),
            is_promised,
            "{status}"
        );
    }
}

#[test]
fn early_promises_have_no_page_without_its_head() {
    let mut scene = visited();
    let page = scene.ask("/page", NAVIGATION);
    assert_eq!(scene.gateway.records(), [1, 1, 1]);
    scene.gateway.handle_end(page, true, None);
    assert_eq!(scene.gateway.records(), [1, 0, 0]);
    // A head after the end begins no page.
    let interest = scene.head(page, &mut head(200, KNOWN));
    assert_eq!((interest.promises, interest.body), (false, false));
}

#[test]
fn answer_of_another_client_is_no_copy() {
    let mut scene = Scene::new(Config::default());
    let asked = Arc::new(request("/a.png", &[]));
    let id = scene.gateway.handle_request(scene.now, &asked, false);
    let id = id.expect("it teaches the predictor");
    scene.head(id, &mut head(200, FRESH));
    scene.end(id);
    let page = begin(&mut scene, "/page", "<img src=/a.png>");
    assert_eq!(scene.paths(page), ["/a.png"]);
}

#[test]
fn confirmed_copy_needs_a_named_lifetime() {
    let tag = ("etag", "\"1\"");
    for (fields, is_promised) in [
        (&[tag, ("cache-control", "max-age=600")][..], false),
        (&[tag], true),
    ] {
        let mut scene = Scene::new(Config::default());
        receive(&mut scene, "/a.png", 304, fields);
        let page = begin(&mut scene, "/page", "<img src=/a.png>");
        assert_eq!(scene.paths(page).len(), usize::from(is_promised));
    }
}

#[test]
fn private_or_passing_answers_are_not_learned() {
    let no_store = ("cache-control", "no-store");
    for (asked, answered, is_learned) in [
        (&[][..], IMAGE[0], true),
        (&[("x-own", "1")], IMAGE[0], false),
        (&[], no_store, false),
    ] {
        let mut scene = Scene::new(Config::default());
        let id = scene.ask("/a.png", asked);
        scene.head(id, &mut head(200, &[answered]));
        assert_eq!(scene.recorded().len(), usize::from(is_learned), "{asked:?}");
    }
}

#[test]
fn unmodified_page_names_no_resources() {
    let mut scene = Scene::new(Config::default());
    assert!(scene.gateway.open_companion(true));
    let link = ("link", "</a.css>; rel=preload; as=style");
    for (status, count) in [(304, 0), (200, 1)] {
        let page = scene.ask("/page", NAVIGATION);
        let mut head = head(status, &[link, ("etag", "\"1\"")]);
        scene.gateway.handle_head(scene.now, page, &mut head, None);
        assert_eq!(
            scene.paths(PromiseStream::Response(page)).len(),
            count,
            "{status}"
        );
    }
}

#[test]
fn needs_of_a_host_wait_for_a_moment() {
    let mut scene = Scene::new(Config::default());
    let images = ["1", "2", "3"].map(|name| format!("<img src=http://b.test/{name}>"));
    let page = begin(&mut scene, "/page", &images.concat());
    assert!(scene.paths(page).is_empty());
    let ask = |scene: &mut Scene, path: &str| {
        let request = Arc::new(RequestHead::get(Scheme::Http, "b.test", path));
        scene.gateway.handle_request(scene.now, &request, true);
    };
    ask(&mut scene, "/1");
    let due = scene.now + Duration::from_millis(10);
    assert_eq!(scene.gateway.poll_timeout(), Some(due));
    scene.now += Duration::from_millis(9);
    scene.gateway.handle_timeout(scene.now);
    ask(&mut scene, "/2");
    assert!(scene.paths(page).is_empty());
    scene.gateway.handle_timeout(due);
    assert_eq!(scene.paths(page), ["/3"]);
    assert_eq!(scene.gateway.poll_timeout(), None);
}

#[test]
fn promises_without_a_report_are_bounded() {
    let mut scene = Scene::new(Config {
        unreported: 2,
        ..Config::default()
    });
    let page = begin(&mut scene, "/page", "<img src=/1><img src=/2><img src=/3>");
    assert_eq!(scene.paths(page), ["/1", "/2"]);
    assert_eq!(scene.gateway.unreported(), 2);
    scene.report(Fate::Wasted, "/1");
    assert_eq!(scene.gateway.unreported(), 1);
    scene
        .gateway
        .handle_data(answer(page), b"<img src=/4><img src=/5>");
    assert_eq!(scene.paths(page), ["/4"]);
}

fn answer(stream: PromiseStream) -> tandem_push::gateway::ResponseId {
    match stream {
        PromiseStream::Response(id) => id,
        PromiseStream::Companion => panic!("it is the stream of an answer"),
    }
}

#[test]
fn resource_under_request_is_not_promised() {
    let mut scene = Scene::new(Config::default());
    let own = [scene.ask("/a.png", &[]), scene.ask("/a.png", &[])];
    for (done, expected) in [(None, 0), (Some(own[0]), 0), (Some(own[1]), 1)] {
        if let Some(id) = done {
            scene.gateway.release_response(scene.now, id);
        }
        let page = begin(&mut scene, "/page", "<img src=/a.png>");
        assert_eq!(scene.paths(page).len(), expected);
        scene.end(answer(page));
    }
}

#[test]
fn browser_of_one_user_validates_its_copies_itself() {
    let stale = [("cache-control", "no-cache"), ("etag", "\"1\"")];
    for (config, count) in [(ONE_USER, 0), (Config::default(), 1)] {
        let mut scene = Scene::new(config);
        // The client takes no checks.
        assert!(scene.gateway.open_companion(false));
        receive(&mut scene, "/a.png", 200, &stale);
        let page = begin(&mut scene, "/page", "<img src=/a.png>");
        assert_eq!(scene.paths(page).len(), count);
    }
}

#[test]
fn last_page_with_spared_needs_is_remembered() {
    let mut scene = Scene::new(Config::default());
    receive(&mut scene, "/a.png", 200, FRESH);
    receive(&mut scene, "/b.png", 200, FRESH);
    for path in ["/one", "/two"] {
        let page = begin(&mut scene, path, "<img src=/a.png><img src=/b.png>");
        assert!(scene.paths(page).is_empty());
        scene.end(answer(page));
        assert_eq!(scene.gateway.records(), [0, 1, 0], "{path}");
    }
    // A plain request shows a lost cache.
    let lost = scene.ask("/a.png", &[]);
    assert_eq!(scene.paths(PromiseStream::Companion), ["/b.png"]);
    scene.end(lost);
}

#[test]
fn own_origin_option_excludes_other_origins() {
    let body = "<link rel=stylesheet href=http://i.a.test/s.css><img src=/a.png>";
    for (own_origin_only, expected) in [(true, &["/a.png"][..]), (false, &["/s.css", "/a.png"])] {
        let mut scene = Scene::new(Config {
            own_origin_only,
            ..Config::default()
        });
        let page = begin(&mut scene, "/page", body);
        assert_eq!(scene.paths(page), expected);
    }
}

#[test]
fn list_of_opened_hosts_decides_on_tls() {
    let mut scene = Scene::new(Config::default());
    let mut request = RequestHead::get(Scheme::Https, "www.a.test", "/page");
    request.fields.push("accept", "text/html");
    request.fields.push(OPENED_FIELD, "*.a.test b.test");
    let id = scene
        .gateway
        .handle_request(scene.now, &request.into(), true);
    let id = id.expect("a page");
    scene
        .gateway
        .handle_head(scene.now, id, &mut head(200, KNOWN), None);
    let body = "<link rel=stylesheet href=https://c.test/tunnel.css><img src=https://b.test/listed>\
                <img src=/own>";
    scene.gateway.handle_data(id, body.as_bytes());
    assert_eq!(
        scene.paths(PromiseStream::Response(id)),
        ["/listed", "/own"]
    );
}

#[test]
fn fetch_of_a_left_page_begins_for_one_user_who_waits() {
    for (config, begins) in [(ONE_USER, true), (Config::default(), false)] {
        let mut scene = Scene::new(Config {
            fetches: 1,
            ..config
        });
        let page = begin(&mut scene, "/page", "<img src=/1><img src=/2><img src=/3>");
        let fetches = scene.promises(page);
        scene.gateway.raise_fetch(scene.now, fetches[2]);
        scene.outputs();
        scene.gateway.release_response(scene.now, answer(page));
        scene.gateway.handle_fetch_end(scene.now, fetches[0]);
        let outputs = scene.outputs();
        let is_begun = |output: &Output| matches!(output, Output::Fetch { .. });
        assert_eq!(outputs.iter().any(is_begun), begins);
        let cancelled = |at: usize| {
            let fetch = fetches[at];
            outputs.contains(&Output::Cancel { fetch })
        };
        assert_eq!((cancelled(1), cancelled(2)), (!begins, !begins));
    }
}

#[test]
fn page_is_left_for_another_page_only() {
    let style = [("accept", "text/css")];
    for (config, fields, is_left) in [
        (ONE_USER, NAVIGATION, true),
        (ONE_USER, &style, false),
        (Config::default(), NAVIGATION, false),
    ] {
        let mut scene = Scene::new(Config {
            fetches: 1,
            ..config
        });
        let page = begin(&mut scene, "/page", "<img src=/1><img src=/2>");
        let fetches = scene.promises(page);
        scene.end(answer(page));
        scene.outputs();
        let next = scene.ask("/next", fields);
        let content_type = fields[0].1;
        let mut answer = head(200, &[("content-type", content_type), KNOWN[1]]);
        scene
            .gateway
            .handle_head(scene.now, next, &mut answer, None);
        let outputs = scene.outputs();
        let [running, waiting] = [0, 1].map(|at| Output::Cancel { fetch: fetches[at] });
        assert_eq!(outputs.contains(&waiting), is_left);
        assert!(!outputs.contains(&running), "it has begun");
    }
}

#[test]
fn held_fetch_outlives_its_page() {
    let mut scene = Scene::new(ONE_USER);
    assert!(scene.gateway.open_companion(true));
    let returning = [NAVIGATION[0], ("cookie", "seen=1")];
    let page = scene.ask("/page", &returning);
    scene
        .gateway
        .handle_head(scene.now, page, &mut head(200, KNOWN), None);
    scene.gateway.handle_data(page, b"<img src=/1>");
    let fetch = scene.promises(PromiseStream::Response(page))[0];
    scene.end(page);
    begin(&mut scene, "/next", "");
    let outputs = scene.outputs();
    assert!(!outputs.contains(&Output::Cancel { fetch }));
    scene.report(Fate::Late, "/1");
    assert_eq!(scene.begun(), [fetch]);
}

#[test]
fn conditional_page_needs_bodies_that_can_wait() {
    let tag = ("if-none-match", "\"1\"");
    let reload = ("cache-control", "max-age=0");
    let html = NAVIGATION[0];
    for (has_companion, fields, is_promised) in [
        (true, &[html, tag][..], true),
        (false, &[html, tag], false),
        (true, &[html, tag, reload], false),
        (true, &[html, reload], true),
        (true, &[("accept", "*/*"), tag], false),
        (true, &[("accept", "*/*")], true),
    ] {
        let mut scene = Scene::new(Config::default());
        if has_companion {
            assert!(scene.gateway.open_companion(true));
        }
        let page = scene.ask("/page", fields);
        scene
            .gateway
            .handle_head(scene.now, page, &mut head(200, KNOWN), None);
        scene.gateway.handle_data(page, b"<img src=/1>");
        let promised = scene.paths(PromiseStream::Response(page)).len();
        assert_eq!(promised, usize::from(is_promised), "{fields:?}");
    }
}

#[test]
fn closed_session_makes_no_promise() {
    let mut scene = Scene::new(Config::default());
    assert!(scene.gateway.open_companion(true));
    let first = begin(&mut scene, "/page", "<img src=/1>");
    scene.gateway.close();
    // The promise that no stream had taken does not move to the companion.
    scene.gateway.handle_end(answer(first), true, None);
    assert!(scene.paths(PromiseStream::Companion).is_empty());
    let body = "<img src=/2><img src=http://b.test/3>";
    let page = begin(&mut scene, "/other", body);
    assert!(scene.paths(page).is_empty());
    assert_eq!(scene.gateway.unreported(), 0);
    scene.end(answer(page));
    scene.end(answer(first));
    assert_eq!(scene.gateway.records(), [0, 0, 0], "no need waits");
}

#[test]
fn head_of_any_status_reaches_the_machine_once() {
    let mut scene = Scene::new(Config::default());
    let id = scene.ask("/page", NAVIGATION);
    let mut answer = ResponseHead::new(200);
    answer.fields.push("content-type", "text/html");
    assert!(scene.head(id, &mut answer).body);
    let again = scene.head(id, &mut answer);
    assert_eq!((again.promises, again.body), (false, false));
    assert_eq!(scene.recorded(), [format!("{SITE}/page -")]);
}
