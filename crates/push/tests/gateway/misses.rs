//! Scenes of pushes that cost their origin a request for nothing, and of those that are not made
//! for that reason.

use std::sync::Arc;
use std::time::Duration;

use tandem_http::{RequestHead, Scheme};
use tandem_push::gateway::{Config, FetchId, Output, Predictor, PromiseStream};
use tandem_push::wire::Fate;

use crate::needs::Needs;
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::scene::{self, NAVIGATION, Scene};
use crate::{html, image};

const PAGE: &str = "http://a.test/page";
const PIXEL: &str = "http://a.test/p.gif";

/// The time after which the promises of a page have arrived, and the heads of its pushes have not.
const PROMISED: Duration = Duration::from_millis(230);

fn refused() -> Page {
    Page {
        status: 503,
        ..page("text/html", "busy")
    }
}

fn no_store() -> Page {
    page("image/gif", "x").with("cache-control", "no-store")
}

#[test]
fn origin_that_refuses_pushes_gets_few_of_them() {
    let body: String = (0..9).map(|at| format!("<img src=/{at}.png>")).collect();
    let urls: Vec<_> = (0..9).map(|at| format!("http://a.test/{at}.png")).collect();
    for (answer, expected) in [(refused(), 3), (image(), 9)] {
        let mut pages = vec![(PAGE, html(&body))];
        pages.extend(urls.iter().map(|url| (url.as_str(), answer.clone())));
        let one_at_a_time = Config {
            fetches: 1,
            first_fetches: 1,
            ..Config::default()
        };
        let mut pair = Pair::with(one_at_a_time, &pages);
        let asked = pair.load(PAGE, NAVIGATION);
        assert_eq!(asked.len(), 1 + expected, "{asked:?}");
    }
}

#[test]
fn origin_that_refuses_the_browser_gets_no_pushes() {
    for (statuses, expected) in [
        (&[503, 503, 429][..], 0),
        (&[503, 503, 200], 2),
        // An answer does not end the pause.
        (&[503, 503, 503, 200], 0),
        (&[404, 404, 404], 2),
    ] {
        let mut scene = Scene::new(Config::default());
        let own = Arc::new(RequestHead::get(Scheme::Http, "b.test", "/own"));
        for &status in statuses {
            let now = scene.now;
            let id = scene.gateway.handle_request(now, &own, true);
            let id = id.expect("a GET has a number");
            scene.head(id, &mut scene::head(status, &[]));
            scene.end(id);
        }
        let page = scene.page("<img src=//b.test/1.png><img src=//b.test/2.png>");
        let paths = scene.paths(PromiseStream::Response(page));
        assert_eq!(paths.len(), expected, "{statuses:?}");
    }
}

/// The URLs of a host that is down may change with each visit.
#[test]
fn host_that_failed_for_other_users_answers_first() {
    const FIRST: &str = "http://img.a.test/first.png";
    const NEXT: &str = "http://img.a.test/next.png";
    let pages = |answer: Page| {
        [
            (PAGE, html("<img src=//img.a.test/next.png>")),
            (FIRST, answer.clone()),
            (NEXT, answer),
        ]
    };
    for (users, earlier, now, expected) in [
        (0..3, refused(), refused(), [1, 1]),
        (0..3, refused(), image(), [1, 2]),
        (0..1, refused(), image(), [2, 1]),
        (0..3, image(), image(), [2, 1]),
    ] {
        let mut needs = Some(Needs::of_page(PAGE, vec![]));
        for user in users {
            let mut pair = Pair::new(&pages(earlier.clone()));
            needs.as_mut().expect("no load is under way").user = user;
            pair.predictor = needs.take();
            pair.load(FIRST, &[("accept", "*/*")]);
            needs = pair.predictor.take();
        }
        let mut pair = Pair::new(&pages(now));
        pair.predictor = needs;
        let of_page = pair.load(PAGE, NAVIGATION).len();
        let of_first = pair.load(FIRST, &[("accept", "*/*")]).len();
        assert_eq!([of_page, of_first], expected);
    }
}

/// A push for which a request waits is the browser's own request.
#[test]
fn refusals_end_no_push_that_is_awaited() {
    let mut scene = Scene::new(Config {
        fetches: 1,
        ..Config::default()
    });
    let fetches = scene.images(6);
    let now = scene.now;
    for awaited in &fetches[2..] {
        scene.gateway.raise_fetch(now, *awaited);
    }
    for at in [0, 2, 3] {
        let mut head = scene::head(503, &[]);
        let passed = scene
            .gateway
            .handle_fetch_head(now, fetches[at], &mut head, None);
        assert!(passed.is_err());
    }
    let outputs = scene.outputs();
    let begins = |output: &Output| matches!(output, Output::Fetch { .. });
    assert_eq!(outputs.iter().filter(|output| begins(output)).count(), 4);
    let cancelled = outputs.iter().filter_map(|output| match output {
        Output::Cancel { fetch } => Some(*fetch),
        _ => None,
    });
    assert_eq!(cancelled.collect::<Vec<_>>(), [fetches[1]]);
}

/// The promise may wait behind other data, and the request overtakes it.
#[test]
fn own_request_ends_a_push_that_has_not_begun() {
    for is_taken in [false, true] {
        let mut scene = Scene::new(Config::default());
        let page = scene.page("<img src=/1.png>");
        let stream = PromiseStream::Response(page);
        let promise = is_taken
            .then(|| scene.gateway.take_promise(stream))
            .flatten();
        let own = scene.ask("/1.png", &[("referer", "http://a.test/page")]);
        scene.head(own, &mut scene::head(200, &[("content-type", "image/png")]));
        scene.end(own);
        if let Some(promise) = promise {
            let (now, fetch) = (scene.now, promise.fetch);
            assert!(scene.outputs().contains(&Output::Cancel { fetch }));
            scene.gateway.queue_fetch(now, fetch);
        }
        assert_eq!(scene.promises(stream), []);
        assert_eq!(scene.begun(), []);
    }
}

/// Returns the numbers of requests for the image of a page in sessions of different users. Each
/// browser asks for the image with these fields once the promise has arrived.
fn requests_by_users(
    users: impl IntoIterator<Item = u64>,
    answer: &Page,
    fields: &[(&str, &str)],
) -> Vec<usize> {
    let pages = [(PAGE, html("<img src=p.gif>")), (PIXEL, answer.clone())];
    let mut predictor = Needs::default();
    let mut counts = Vec::new();
    for user in users {
        let mut pair = Pair::new(&pages).with_client(true);
        predictor.user = user;
        pair.predictor = Some(predictor);
        pair.browse_for(PROMISED, PAGE, NAVIGATION);
        let (reply, asked) = pair.get(PIXEL, fields);
        assert_eq!(reply.body, answer.body);
        counts.push(asked.iter().filter(|url| *url == PIXEL).count());
        predictor = pair.predictor.take().expect("the scene has a predictor");
    }
    counts
}

#[test]
fn push_that_enough_users_missed_is_not_made() {
    // The browser has got a cookie meanwhile.
    let late: &[_] = &[("cookie", "late=1")];
    let (missed, kept) = ([2, 2, 2, 1, 1, 1], [2; 6]);
    for (answer, fields, expected) in [
        (refused(), &[][..], [1; 6]),
        (no_store(), late, missed),
        (no_store(), &[], [1; 6]),
        // Other users may have the cookies of the push.
        (image(), late, kept),
    ] {
        let found = requests_by_users(0..6, &answer, fields);
        assert_eq!(found, expected, "{} {fields:?}", answer.status);
    }
}

/// Otherwise one person could find out by two sessions whether another one has visited a page.
#[test]
fn misses_of_two_users_change_no_push() {
    let late: &[_] = &[("cookie", "late=1")];
    let found = requests_by_users([7, 8, 7, 8, 7, 8], &no_store(), late);
    assert_eq!(found, [2; 6]);
}

/// The gateway sends such a client fewer responses than it sends others.
#[test]
fn client_without_reports_teaches_no_misses() {
    for (reports, expected) in [(false, 4), (true, 3)] {
        let mut predictor = Needs::default();
        let mut promised = 0;
        for user in 0..4 {
            let mut scene = Scene::new(Config::default());
            if reports {
                scene.gateway.open_companion(true);
            }
            predictor.user = user;
            for _ in 0..2 {
                let page = scene.ask("/page", NAVIGATION);
                let mut answer = scene::head(200, scene::HTML);
                let now = scene.now;
                let teacher = Some(&mut predictor as &mut dyn Predictor);
                scene.gateway.handle_head(now, page, &mut answer, teacher);
                scene.gateway.handle_data(page, b"<img src=/p.gif>");
                for fetch in scene.promises(PromiseStream::Response(page)) {
                    promised += 1;
                    let mut private = scene::head(200, &[("vary", "cookie")]);
                    let passed = scene
                        .gateway
                        .handle_fetch_head(now, fetch, &mut private, None);
                    assert!(passed.is_err());
                }
                scene.end(page);
            }
        }
        assert_eq!(promised, expected);
    }
}

/// The second request is another one: a page may request a resource again.
#[test]
fn push_that_served_a_request_is_no_miss() {
    let pages = [(PAGE, html("<img src=p.gif>")), (PIXEL, no_store())];
    let mut predictor = Needs::default();
    for user in 0..6 {
        let mut pair = Pair::new(&pages).with_client(true);
        predictor.user = user;
        pair.predictor = Some(predictor);
        // In one half of the sessions, the request joins the push. In the others, the head waits.
        let before = match user % 2 {
            0 => PROMISED,
            _ => Duration::from_secs(2),
        };
        pair.browse_for(before, PAGE, NAVIGATION);
        let (reply, _) = pair.get(PIXEL, &[]);
        assert!(reply.is_pushed, "{user}");
        pair.pass(Duration::from_secs(5));
        let (reply, asked) = pair.get(PIXEL, &[("cookie", "late=1")]);
        assert!(!reply.is_pushed && asked == [PIXEL], "{user}");
        pair.get("http://a.test/next", NAVIGATION);
        predictor = pair.predictor.take().expect("the scene has a predictor");
    }
}

/// A page may also request a resource twice at once.
#[test]
fn second_request_at_once_is_no_miss() {
    let found: Vec<_> = requests_twice_by_users(&no_store()).collect();
    assert_eq!(found, [true; 5]);
}

/// Returns whether the push of each user serves the first of two equal requests.
fn requests_twice_by_users(answer: &Page) -> impl Iterator<Item = bool> {
    let pages = [(PAGE, html("<img src=p.gif>")), (PIXEL, answer.clone())];
    let mut predictor = Some(Needs::default());
    (0..5).map(move |user| {
        let mut pair = Pair::new(&pages).with_client(true);
        pair.predictor = predictor.take();
        pair.predictor.as_mut().expect("it came back").user = user;
        pair.browse_for(PROMISED, PAGE, NAVIGATION);
        let fields = [("accept", "*/*"), ("referer", PAGE)];
        let (reply, _) = pair.get(PIXEL, &fields);
        pair.get(PIXEL, &fields);
        predictor = pair.predictor.take();
        reply.is_pushed
    })
}

#[test]
fn unkept_response_that_nobody_requests_is_a_miss() {
    let pages = [(PAGE, html("<img src=p.gif>")), (PIXEL, no_store())];
    let mut predictor = Needs::default();
    for user in 0..4 {
        let mut pair = Pair::new(&pages);
        predictor.user = user;
        pair.predictor = Some(predictor);
        let asked = pair.load(PAGE, NAVIGATION).len();
        assert_eq!(asked, if user < 3 { 2 } else { 1 }, "{user}");
        pair.load("http://a.test/next", NAVIGATION);
        predictor = pair.predictor.take().expect("the scene has a predictor");
    }
}

/// Scripts report visits by images whose URLs differ in their queries. No cache may keep them, and
/// the first response often sets a cookie.
#[test]
fn series_waits_for_its_first_response() {
    let body: String = (0..9).map(|at| format!("<img src=p.gif?{at}>")).collect();
    let urls: Vec<_> = (0..9).map(|at| format!("{PIXEL}?{at}")).collect();
    for (answer, expected) in [(no_store(), 2), (refused(), 2), (image(), 9)] {
        let mut pages = vec![(PAGE, html(&body))];
        pages.extend(urls.iter().map(|url| (url.as_str(), answer.clone())));
        let mut pair = Pair::new(&pages);
        let asked = pair.load(PAGE, NAVIGATION);
        assert_eq!(asked.len(), 1 + expected, "{asked:?}");
        assert_eq!(pair.gateway.records(), [0, 0, 0]);
    }
}

#[test]
fn request_begins_a_fetch_that_waits_for_its_series() {
    let body: String = (0..8).map(|at| format!("<img src=p.gif?{at}>")).collect();
    let mut scene = Scene::new(Config::default());
    scene.gateway.open_companion(true);
    let page = scene.page(&body);
    let fetches = scene.promises(PromiseStream::Response(page));
    assert_eq!(scene.begun(), fetches[..2]);
    scene.report(Fate::Late, "/p.gif?7");
    assert_eq!(scene.begun(), [fetches[7]]);
    let pixel = [("content-type", "image/gif"), ("cache-control", "no-store")];
    scene.fetch_head(fetches[0], &pixel).expect("it waits");
    let cancelled = fetches[2..7].iter().map(|id| Output::Cancel { fetch: *id });
    assert_eq!(scene.outputs(), cancelled.collect::<Vec<_>>());
    scene
        .gateway
        .handle_data(page, b"<img src=p.gif?9><img src=q.gif?9>");
    assert_eq!(scene.paths(PromiseStream::Response(page)), ["/q.gif?9"]);
}

/// A client without reports does not tell that a request waits, so no fetch would ever begin.
#[test]
fn series_of_a_client_without_reports_does_not_wait() {
    let body: String = (0..5).map(|at| format!("<img src=p.gif?{at}>")).collect();
    for (reports, expected) in [(false, 5), (true, 2)] {
        let mut scene = Scene::new(Config::default());
        if reports {
            scene.gateway.open_companion(true);
        }
        let page = scene.page(&body);
        scene.promises(PromiseStream::Response(page));
        assert_eq!(scene.begun().len(), expected);
    }
}

/// Returns a scene in which a series is promised, of which so many fetches have begun.
fn series(begun: usize, config: Config) -> (Scene, Vec<FetchId>) {
    let body: String = (0..6).map(|at| format!("<img src=p.gif?{at}>")).collect();
    let mut scene = Scene::new(config);
    scene.gateway.open_companion(true);
    let page = scene.page(&body);
    let fetches = scene.promises(PromiseStream::Response(page));
    assert_eq!(scene.begun(), fetches[..begun]);
    (scene, fetches)
}

#[test]
fn failed_fetch_of_a_series_makes_room() {
    for is_released_only in [false, true] {
        let (mut scene, fetches) = series(2, Config::default());
        let (now, mut expected) = (scene.now, fetches[2..].iter());
        for failed in &fetches {
            if !is_released_only {
                scene.gateway.handle_fetch_end(now, *failed);
            }
            scene.gateway.release_fetch(now, *failed);
            assert_eq!(scene.begun().first(), expected.next());
        }
    }
}

/// The second fetch of the series waits for its turn behind the first.
#[test]
fn own_request_in_a_series_makes_room() {
    let one_at_a_time = Config {
        fetches: 1,
        first_fetches: 1,
        ..Config::default()
    };
    let (mut scene, fetches) = series(1, one_at_a_time);
    scene.ask("/p.gif?1", &[("referer", PAGE)]);
    let cancelled = [Output::Cancel { fetch: fetches[1] }];
    assert_eq!(scene.outputs(), cancelled);
    let now = scene.now;
    scene.gateway.release_fetch(now, fetches[1]);
    scene.gateway.handle_fetch_end(now, fetches[0]);
    assert_eq!(scene.begun(), [fetches[2]]);
}

/// The promise is dropped before its stream has taken it.
#[test]
fn untaken_promise_of_a_series_makes_room() {
    let (mut scene, body) = (Scene::new(Config::default()), "<img src=p.gif?0>");
    scene.gateway.open_companion(true);
    let page = scene.page(body);
    let first = scene.promises(PromiseStream::Response(page));
    assert_eq!(scene.begun(), first);
    scene
        .gateway
        .handle_data(page, b"<img src=p.gif?1><img src=p.gif?2>");
    let stream = PromiseStream::Response(page);
    scene.ask("/p.gif?1", &[("referer", PAGE)]);
    let others = scene.promises(stream);
    assert_eq!(others.len(), 1);
    assert_eq!(scene.begun(), others);
}

/// Returns the resources that are pushed to a new visitor, after visits of `users` other users
/// whose browsers used the first image only.
fn pushed_after(
    users: u64,
    fate: Fate,
    known: &[(&'static str, u64)],
    later: &[(&str, &str)],
) -> Vec<String> {
    let body = "<img src=/used.png><img src=/big.png loading=lazy><img src=/rare.png>";
    let names = ["used.png", "big.png", "rare.png"].map(|name| format!("http://a.test/{name}"));
    let images = names.iter().map(|url| (url.as_str(), image()));
    let pages: Vec<_> = images.chain([(PAGE, html(body))]).collect();
    let mut needs = Needs::of_copies(PAGE, known);
    for user in 0..users {
        let mut pair = Pair::new(&pages);
        needs.user = user;
        pair.predictor = Some(needs);
        pair.load(PAGE, NAVIGATION);
        pair.report(Fate::Used, "http://a.test/used.png");
        for unused in ["big.png", "rare.png"] {
            pair.report(fate, &format!("http://a.test/{unused}"));
        }
        // The user goes on in the page. A request during the load would count as a miss.
        pair.run();
        pair.pass(Duration::from_secs(20));
        for (url, referer) in later {
            pair.load(url, &[("referer", referer), ("accept", "image/*")]);
        }
        pair.run();
        needs = pair.predictor.expect("it was set above");
    }
    let mut pair = Pair::new(&pages);
    needs.user = users;
    pair.predictor = Some(needs);
    let mut asked = pair.load(PAGE, NAVIGATION);
    asked.retain(|url| url != PAGE);
    asked
}

#[test]
fn resources_that_no_browser_uses_are_left_to_it() {
    let all = ["big.png", "rare.png", "used.png"].map(|name| format!("http://a.test/{name}"));
    assert_eq!(
        pushed_after(2, Fate::Wasted, &[], &[]),
        all,
        "too few users"
    );
    assert_eq!(
        pushed_after(3, Fate::Wasted, &[], &[]),
        ["http://a.test/used.png"]
    );
    let cancelled = pushed_after(3, Fate::Cancelled, &[], &[]);
    assert_eq!(cancelled, all, "the clients had no room");
    let known = [("http://a.test/rare.png", 60)];
    assert_eq!(
        pushed_after(3, Fate::Wasted, &known, &[]),
        all[1..].to_vec(),
        "browsers may hold it"
    );
    let requests = [("http://a.test/big.png", PAGE)];
    assert_eq!(
        pushed_after(3, Fate::Wasted, &[], &requests),
        [all[0].clone(), all[2].clone()],
        "it was requested"
    );
}

/// A page posts to its own site while it loads, and the client drops the pushes of the site. The
/// report on that comes after the request or before it.
#[test]
fn push_that_clients_drop_is_left_to_the_browser() {
    const STATE: &str = "http://a.test/state.png";
    let asked_as = [("referer", PAGE), ("accept", "image/*")];
    let state = image().with("cache-control", "no-cache");
    let pages = [(PAGE, html("<img src=/state.png>")), (STATE, state)];
    for (before, after, expected) in [(true, false, 0), (false, true, 0), (false, false, 1)] {
        let mut needs = Needs::of_copies(PAGE, &[(STATE, 60)]);
        for user in 0..3 {
            let mut pair = Pair::new(&pages);
            needs.user = user;
            pair.predictor = Some(needs);
            assert_eq!(pair.load(PAGE, NAVIGATION).len(), 2);
            if before {
                pair.load(STATE, &asked_as);
            }
            pair.report(Fate::Wasted, STATE);
            if after {
                pair.load(STATE, &asked_as);
            }
            pair.report(Fate::Used, "http://a.test/other");
            pair.run();
            needs = pair.predictor.expect("it was set above");
        }
        let mut pair = Pair::new(&pages);
        needs.user = 3;
        pair.predictor = Some(needs);
        let pushed = pair.load(PAGE, NAVIGATION).len() - 1;
        assert_eq!(pushed, expected, "{before} {after}");
    }
}

/// Returns the number of requests for a learned resource with each visit of one of these users.
/// Each visit has a session of its own.
fn visits_of_users(users: &[u64], answer: &Page, cookie: &str) -> Vec<usize> {
    const OLD: &str = "http://a.test/old.js";
    let document = page("text/html", "").with("set-cookie", cookie);
    let mut needs = Some(Needs::of_page(PAGE, vec![OLD]));
    let visits = users.iter().map(|user| {
        let mut pair = Pair::new(&[(PAGE, document.clone()), (OLD, answer.clone())]);
        pair.predictor = needs.take();
        if let Some(needs) = &mut pair.predictor {
            needs.user = *user;
        }
        let asked = pair.load(PAGE, NAVIGATION);
        needs = pair.predictor.take();
        asked.iter().filter(|url| *url == OLD).count()
    });
    visits.collect()
}

fn error(status: u16) -> Page {
    Page {
        status,
        ..page("text/html", "error")
    }
}

#[test]
fn resource_that_has_gone_is_pushed_once() {
    const OTHER_PATH: &str = "first=1; Path=/first";
    let script = page("text/javascript", "");
    for (answer, expected) in [
        (error(404), [1, 0, 0]),
        (error(410).with("cache-control", "no-store"), [1, 0, 0]),
        (error(503), [1, 1, 1]),
        (script, [1, 1, 1]),
    ] {
        for users in [[1, 1, 1], [1, 2, 3]] {
            let found = visits_of_users(&users, &answer, OTHER_PATH);
            assert_eq!(found, expected, "{}", answer.status);
        }
    }
}

/// The pushes carry the cookie that the page has set.
#[test]
fn resource_has_gone_once_enough_users_miss_it() {
    let found = |users: &[u64]| visits_of_users(users, &error(404), "id=1; Path=/");
    assert_eq!(found(&[1, 1, 1, 1, 2, 2]), [1; 6]);
    assert_eq!(found(&[1, 2, 3, 4, 5]), [1, 1, 1, 0, 0]);
}

#[test]
fn error_of_a_push_teaches_no_need() {
    for (status, expected) in [(404, 0), (410, 0), (403, 0), (200, 1)] {
        for fate in [Fate::Used, Fate::Late] {
            let mut scene = Scene::new(Config::default());
            let fetch = scene.images(1)[0];
            let mut head = scene::head(status, &[("cache-control", "max-age=60")]);
            let now = scene.now;
            let predictor = Some(&mut scene.predictor as &mut dyn Predictor);
            let passed = scene
                .gateway
                .handle_fetch_head(now, fetch, &mut head, predictor);
            scene.report(fate, "/0.png");
            let used = scene.recorded();
            let used = used.iter().filter(|call| call.starts_with("used "));
            assert_eq!(used.count(), expected, "{status} {fate:?} {passed:?}");
        }
    }
}
