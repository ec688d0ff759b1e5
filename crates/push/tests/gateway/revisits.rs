//! Scenes of a second visit to a page, and of pages that the browser leaves.

use tandem_push::gateway::{Audience, Config, Output, PromiseStream};
use tandem_push::wire::Fate;

use crate::origin::{Page, page, redirect};
use crate::pair::{Pair, request};
use crate::scene::{Scene, head};
use crate::{NAVIGATION, asked_of, html, image, known};

#[test]
fn needs_of_the_last_visit_are_promised_with_the_page() {
    let config = Config {
        audience: Audience::OneUser,
        ..Config::default()
    };
    let mut pair = Pair::with(
        config,
        &[
            (
                "http://a.test/page",
                known("<img src=used.png><img src=not.png>"),
            ),
            ("http://a.test/used.png", image()),
        ],
    );
    let first = [
        "http://a.test/not.png",
        "http://a.test/page",
        "http://a.test/used.png",
    ];
    assert_eq!(pair.load("http://a.test/page", NAVIGATION), first);
    pair.report(Fate::Used, "http://a.test/used.png");
    pair.report(Fate::Wasted, "http://a.test/not.png");
    pair.run();
    let id = pair.gateway.handle_request(
        pair.time(),
        &request("http://a.test/page", NAVIGATION).into(),
        true,
    );
    let id = id.expect("a page");
    assert!(pair.gateway.interest_in(id).promises);
    let promise = pair
        .gateway
        .take_promise(PromiseStream::Response(id))
        .expect("a promise");
    assert_eq!(promise.request.path, "/used.png");
    assert!(
        pair.gateway
            .take_promise(PromiseStream::Response(id))
            .is_none()
    );
    // Another response than the page gives the fetch up.
    let mut head = tandem_http::ResponseHead::new(404);
    pair.gateway.handle_head(pair.time(), id, &mut head, None);
    pair.gateway.queue_fetch(pair.time(), promise.fetch);
    let cancelled = std::iter::from_fn(|| pair.gateway.poll_output());
    let cancel = Output::Cancel {
        fetch: promise.fetch,
    };
    assert!(cancelled.into_iter().any(|output| output == cancel));
    pair.gateway.release_fetch(pair.time(), promise.fetch);
    pair.gateway.handle_end(id, true, None);
    pair.gateway.release_response(pair.time(), id);
    assert_eq!(pair.gateway.records(), [0, 0, 0]);
}

fn images(count: usize) -> String {
    let images = (0..count).map(|number| format!("<img src={number}.png>"));
    images.collect()
}

fn one_user(fetches: usize) -> Config {
    Config {
        audience: Audience::OneUser,
        fetches,
        ..Config::default()
    }
}

/// A page that sets a cookie for all requests to its host.
fn setting(body: &str) -> Page {
    page("text/html", body).with("set-cookie", "first=1")
}

#[test]
fn early_requests_carry_the_cookies_of_the_page() {
    let body = "<img src=own.png><img src=//i.a.test/far.png>";
    let mut pair = Pair::with(one_user(9), &[("http://a.test/page", setting(body))]);
    let mut cookies = |sent: Option<&str>| {
        let cookie = sent.map(|cookie| ("cookie", cookie));
        let fields: Vec<_> = NAVIGATION.iter().copied().chain(cookie).collect();
        pair.send("http://a.test/page", &fields);
        pair.run();
        let asked = pair.take_asked();
        pair.report(Fate::Wasted, "http://a.test/own.png");
        asked_of(&asked, "http://a.test/own.png").field("cookie")
    };
    assert_eq!(cookies(None).as_deref(), Some("first=1"));
    assert_eq!(cookies(None), None, "the browser did not return the cookie");
    let other = cookies(Some("x=y; first=0"));
    assert_eq!(other.as_deref(), Some("x=y; first=1"));
}

#[test]
fn page_with_unknown_cookies_is_left_alone() {
    let body = "<img src=c.png>";
    let undated = page("text/html", body).with("set-cookie", "first=1; expires=soon");
    let mut pair = Pair::with(one_user(9), &[("http://a.test/page", undated.clone())]);
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 1);
    let mut pair = Pair::new(&[("http://a.test/page", undated)]);
    assert_eq!(
        pair.load("http://a.test/page", NAVIGATION).len(),
        2,
        "a pair"
    );
}

#[test]
fn revisit_waits_for_the_cookies_of_the_page() {
    let body = "<img src=c.png>";
    let mut pair = Pair::with(one_user(9), &[("http://a.test/page", setting(body))]);
    for cookie in [("cookie", "first=0"), ("cookie", "first=0")] {
        let fields: Vec<_> = NAVIGATION.iter().copied().chain([cookie]).collect();
        pair.load("http://a.test/page", &fields);
        pair.report(Fate::Used, "http://a.test/c.png");
        pair.run();
        let again = request("http://a.test/page", &fields).into();
        let id = pair.gateway.handle_request(pair.time(), &again, true);
        let id = id.expect("a page");
        assert!(!pair.gateway.interest_in(id).promises);
        pair.gateway.handle_end(id, false, None);
        pair.gateway.release_response(pair.time(), id);
    }
}

/// Visits a page whose image the browser uses. Returns the cookies of the early requests for it:
/// those that leave with the request for the page, and those that leave with its head. The former
/// are queued before the head comes.
fn visit(scene: &mut Scene, cookie: &str, set: &[&str], body: &str) -> [Vec<String>; 2] {
    let cookie = Some(("cookie", cookie)).filter(|(_, value)| !value.is_empty());
    let fields: Vec<_> = NAVIGATION.iter().copied().chain(cookie).collect();
    let page = scene.ask("/page", &fields);
    let mut fetches = Vec::new();
    let now = scene.now;
    let mut promised = |scene: &mut Scene| {
        let promises =
            std::iter::from_fn(|| scene.gateway.take_promise(PromiseStream::Response(page)));
        let promises: Vec<_> = promises.collect();
        for promise in &promises {
            scene.gateway.queue_fetch(now, promise.fetch);
        }
        fetches.extend(promises.iter().map(|promise| promise.fetch));
        let cookie =
            |field: Option<&[u8]>| String::from_utf8_lossy(field.unwrap_or_default()).into();
        let cookies = promises
            .iter()
            .map(|promise| promise.request.fields.get("cookie"));
        cookies.map(cookie).collect::<Vec<String>>()
    };
    let with_request = promised(scene);
    let mut answer = head(200, &[("content-type", "text/html"), ("etag", "\"1\"")]);
    set.iter()
        .for_each(|set| answer.fields.push("set-cookie", *set));
    scene.gateway.handle_head(now, page, &mut answer, None);
    let with_head = promised(scene);
    scene.gateway.handle_data(page, body.as_bytes());
    promised(scene);
    if let Some(fetch) = fetches.pop() {
        assert_eq!(
            scene.fetch_head(fetch, &[("content-type", "image/png")]),
            Ok(())
        );
        scene.report(Fate::Used, "/c.png");
        scene.gateway.handle_fetch_end(now, fetch);
        scene.gateway.release_fetch(now, fetch);
    }
    for fetch in fetches {
        scene.gateway.release_fetch(now, fetch);
    }
    scene.end(page);
    scene.outputs();
    assert_eq!(scene.gateway.records(), [0, 0, 0]);
    [with_request, with_head]
}

#[test]
fn needs_wait_for_the_head_that_changes_cookies() {
    // The early requests have begun when the head comes, or wait for their turn.
    for fetches in [9, 0] {
        needs_wait_for_cookies(fetches);
    }
}

fn needs_wait_for_cookies(fetches: usize) {
    let mut scene = Scene::new(one_user(fetches));
    let body = "<img src=c.png>";
    for (cookie, set, with_request, with_head) in [
        ("", &["id=1"][..], &[][..], &[][..]),
        ("id=1", &[], &[], &["id=1"]),
        ("id=1", &["id=1"], &["id=1"], &[]),
        ("id=1", &["id=2"], &["id=1"], &["id=2"]),
        ("id=2", &[], &[], &["id=2"]),
        // The cookies change from time to time.
        ("id=2", &[], &[], &["id=2"]),
        ("id=2", &["id=3"], &[], &["id=3"]),
        // Browsers differ in their treatment of the date.
        ("id=3", &["id=4; expires=soon"], &[], &[]),
        ("id=4", &[], &[], &[]),
    ] {
        let found = visit(&mut scene, cookie, set, body);
        let expected = [with_request, with_head];
        assert_eq!(found, expected, "{cookie} {set:?} {fetches}");
    }
}

#[test]
fn page_without_its_cookies_is_another_one() {
    for (cookie, expected) in [("id=1", 1), ("x=1; id=1", 1), ("x=1", 0), ("", 0)] {
        let mut scene = Scene::new(one_user(9));
        visit(&mut scene, "", &["id=1"], "<img src=c.png>");
        let [_, with_head] = visit(&mut scene, cookie, &[], "");
        assert_eq!(with_head.len(), expected, "{cookie}");
    }
}

/// Another site can embed a page, fetch it or prefetch it. Its needs then do not leave, neither
/// with the request nor with the head, and the cookies of the next visit are still checked.
#[test]
fn only_visits_release_the_needs_of_a_page() {
    let other = ("referer", "http://b.test/");
    let cookie = ("cookie", "id=1");
    for (fields, expected) in [
        (&[NAVIGATION[0], cookie][..], 1),
        (&[NAVIGATION[0], cookie, other], 1),
        (&[("accept", "*/*"), cookie, other], 0),
        (&[("accept", "image/avif,*/*;q=0.8"), cookie, other], 0),
        (&[NAVIGATION[0], cookie, ("sec-purpose", "prefetch")], 0),
        (&[NAVIGATION[0], cookie, ("purpose", "prefetch")], 0),
        (&[NAVIGATION[0], cookie, ("sec-fetch-dest", "iframe")], 0),
        (
            &[NAVIGATION[0], cookie, ("referer", "http://a.test/page")],
            0,
        ),
        (&[NAVIGATION[0], cookie, ("cache-control", "no-cache")], 0),
        (&[("accept", "*/*"), other], 0),
        (&[NAVIGATION[0], ("sec-fetch-dest", "iframe")], 0),
        (NAVIGATION, 0),
    ] {
        let mut scene = Scene::new(one_user(9));
        visit(&mut scene, "", &["id=1"], "<img src=c.png>");
        let page = scene.ask("/page", fields);
        assert_eq!(
            scene.paths(PromiseStream::Response(page)).len(),
            0,
            "{fields:?}"
        );
        let mut answer = head(200, &[("content-type", "text/html"), ("etag", "\"1\"")]);
        let now = scene.now;
        scene.gateway.handle_head(now, page, &mut answer, None);
        let released = scene.paths(PromiseStream::Response(page)).len();
        assert_eq!(released, expected, "{fields:?}");
        scene.end(page);
    }
}

/// A script polls its own page, which has changed its cookies at several visits.
#[test]
fn polling_script_repeats_no_needs() {
    let mut scene = Scene::new(one_user(9));
    let body = "<img src=c.png>";
    visit(&mut scene, "", &["id=1"], body);
    visit(&mut scene, "id=1", &["id=2"], body);
    visit(&mut scene, "id=2", &["id=3"], body);
    for _ in 0..3 {
        let poll = scene.ask("/page", &[("accept", "*/*"), ("cookie", "id=3")]);
        let mut answer = head(200, &[("content-type", "text/html")]);
        let now = scene.now;
        scene.gateway.handle_head(now, poll, &mut answer, None);
        assert!(scene.paths(PromiseStream::Response(poll)).is_empty());
        scene.end(poll);
    }
    let [_, with_head] = visit(&mut scene, "id=3", &[], "");
    assert_eq!(with_head, ["id=3"]);
}

#[test]
fn only_documents_are_revisited() {
    let url = "http://a.test/s.css";
    let style = page("text/css", "i { background: url(d.png) }");
    let mut pair = Pair::with(one_user(9), &[(url, style)]);
    let part = [("accept", "text/css"), ("referer", "http://a.test/home")];
    assert_eq!(pair.load(url, &part).len(), 2);
    pair.report(Fate::Used, "http://a.test/d.png");
    pair.run();
    let again = request(url, NAVIGATION).into();
    let id = pair.gateway.handle_request(pair.time(), &again, true);
    let id = id.expect("a response");
    assert!(!pair.gateway.interest_in(id).promises, "{url}");
}

/// A redirect can lead to a URL that is good for one request. The browser makes it.
#[test]
fn redirect_of_a_document_is_left_to_the_browser() {
    let home = "http://a.test/home";
    let frame = "http://a.test/frame";
    let pages = [
        ("http://a.test/", redirect("/home")),
        (home, known("<img src=c.png><iframe src=frame></iframe>")),
        ("http://a.test/c.png", image()),
        (frame, redirect("/ticket?1")),
    ];
    let mut pair = Pair::with(one_user(9), &pages);
    let image = "http://a.test/c.png";
    assert_eq!(pair.load("http://a.test/", NAVIGATION), ["http://a.test/"]);
    assert_eq!(pair.load(home, NAVIGATION), [image, frame, home]);
    pair.report(Fate::Used, image);
    pair.run();
    // The needs of the target leave with the browser's request for it.
    assert_eq!(pair.load("http://a.test/", NAVIGATION), ["http://a.test/"]);
    let again = request(home, NAVIGATION).into();
    let id = pair.gateway.handle_request(pair.time(), &again, true);
    let promise = pair
        .gateway
        .take_promise(PromiseStream::Response(id.expect("a page")));
    let promise = promise.expect("a promise of the last visit");
    assert_eq!(promise.request.path, "/c.png");
}

#[test]
fn fetches_of_a_left_page_do_not_begin() {
    let first = images(100);
    let mut pair = Pair::with(
        one_user(2),
        &[
            ("http://a.test/one", html(&first)),
            ("http://a.test/two", html("<img src=98.png>")),
        ],
    );
    pair.begin_visit("a.test");
    pair.send("http://a.test/one", NAVIGATION);
    pair.run_until_asked(5);
    pair.report(Fate::Late, "http://a.test/97.png");
    let link = [
        ("accept", "text/html"),
        ("sec-fetch-dest", "document"),
        ("referer", "http://a.test/one"),
    ];
    pair.send("http://a.test/two", &link);
    pair.run();
    let asked = pair.take_asked();
    let count = |url: &str| asked.iter().filter(|asked| asked.url == url).count();
    assert!(asked.len() < 50, "{}", asked.len());
    assert_eq!(count("http://a.test/97.png"), 1, "a request waits for it");
    assert_eq!(count("http://a.test/98.png"), 1, "the new page names it");
    assert_eq!(count("http://a.test/99.png"), 0);
    assert_eq!(pair.gateway.records()[2], 0);
}

#[test]
fn arriving_page_is_not_left() {
    let mut first = html(&images(20));
    first.is_unfinished = true;
    let mut pair = Pair::with(
        one_user(1),
        &[
            ("http://a.test/one", first),
            ("http://a.test/two", html("")),
        ],
    );
    pair.begin_visit("a.test");
    pair.send("http://a.test/one", NAVIGATION);
    pair.run_until_asked(2);
    pair.send("http://a.test/two", NAVIGATION);
    pair.run();
    assert_eq!(pair.take_asked().len(), 22);
}

#[test]
fn revisited_page_adopts_waiting_fetches() {
    let mut pair = Pair::with(
        one_user(1),
        &[
            ("http://a.test/one", known("<img src=used.png>")),
            (
                "http://a.test/two",
                known(&(images(60) + "<img src=used.png>")),
            ),
            ("http://a.test/used.png", image()),
        ],
    );
    pair.load("http://a.test/one", NAVIGATION);
    pair.report(Fate::Used, "http://a.test/used.png");
    pair.run();
    pair.send("http://a.test/two", NAVIGATION);
    pair.run_until_asked(2);
    pair.send("http://a.test/one", NAVIGATION);
    pair.run();
    let asked = pair.take_asked();
    let used = "http://a.test/used.png";
    assert_eq!(asked.iter().filter(|asked| asked.url == used).count(), 1);
    assert!(asked.len() < 40, "{}", asked.len());
    assert_eq!(pair.gateway.records()[2], 0);
}

#[test]
fn left_page_gets_no_further_pushes() {
    let body: String = (0..600).map(|i| format!("<img src=/i{i}>")).collect();
    let mut endless = html(&body);
    endless.is_unfinished = true;
    let mut pair = Pair::new(&[("http://a.test/page", endless)]);
    pair.send("http://a.test/page", NAVIGATION);
    pair.run_until_asked(50);
    pair.leave();
    pair.run();
    let asked = pair.take_asked().len();
    assert!((50..100).contains(&asked), "{asked} requests");
}
