//! Scenes of one user's page with images that look like counters: one of them is requested before
//! the others, and its cookies decide on these.

use std::time::Duration;

use tandem_push::gateway::{Audience, Config, PromiseStream};

use crate::copies::{asked, get};
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::scene::Scene;
use crate::{NAVIGATION, image};

const PAGE: &str = "http://a.test/page";
const COUNTERS: [&str; 3] = [
    "http://a.test/a?1",
    "http://a.test/b.gif?1",
    "http://a.test/c.php?1",
];
const PICTURE: &str = "http://a.test/d.png?1";

/// The time in which all messages of a load arrive.
const LOADED: Duration = Duration::from_secs(2);

/// The time in which the requests of a visit reach the origin, and no response leaves it.
const BEFORE_RESPONSES: Duration = Duration::from_millis(101);

/// A counter whose response no cache may keep.
fn counter() -> Page {
    image().with("cache-control", "no-store")
}

/// The pair with a page that has three counters and a picture.
fn pair(first: Page) -> Pair {
    let config = Config {
        audience: Audience::OneUser,
        ..Config::default()
    };
    let document = "<img src=a?1><img src=b.gif?1><img src=c.php?1><img src=d.png?1>";
    let pages = [
        (PAGE, page("text/html", document)),
        (COUNTERS[0], first),
        (COUNTERS[1], counter()),
        (COUNTERS[2], counter()),
        (PICTURE, image()),
    ];
    let mut pair = Pair::with(config, &pages).with_client(true);
    pair.begin_visit("a.test");
    pair.take_asked();
    pair
}

#[test]
fn counter_without_a_new_cookie_releases_the_others() {
    // Browsers refuse the cookie of another host.
    for first in [
        counter(),
        counter().with("set-cookie", "id=1; Domain=b.test"),
    ] {
        let mut pair = pair(first);
        pair.browse_for(LOADED, PAGE, NAVIGATION);
        let order = [PAGE, COUNTERS[0], PICTURE, COUNTERS[1], COUNTERS[2]];
        assert_eq!(asked(&mut pair), order.map(get));
    }
}

#[test]
fn counters_behind_a_new_cookie_are_requested_once() {
    let mut pair = pair(counter().with("set-cookie", "id=1"));
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert_eq!(asked(&mut pair), [PAGE, COUNTERS[0], PICTURE].map(get));
    let (reply, requests) = pair.get(COUNTERS[0], &[("referer", PAGE)]);
    assert!(reply.is_pushed && requests.is_empty(), "{requests:?}");
    for url in &COUNTERS[1..] {
        let fields = [("referer", PAGE), ("cookie", "id=1")];
        let (reply, requests) = pair.get(url, &fields);
        assert!(!reply.is_pushed, "{url}");
        assert_eq!(requests, [*url]);
    }
}

#[test]
fn counters_of_the_last_visit_do_not_wait() {
    let mut pair = pair(counter().with("set-cookie", "id=1"));
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    for (at, url) in COUNTERS.iter().enumerate() {
        let cookie = ("cookie", "id=1");
        let fields = [("referer", PAGE), cookie];
        pair.get(url, if at == 0 { &fields[..1] } else { &fields });
    }
    pair.take_asked();
    let fields = [NAVIGATION[0], ("cookie", "id=1")];
    pair.browse_for(BEFORE_RESPONSES, PAGE, &fields);
    let mut requests = asked(&mut pair);
    requests.sort();
    let mut expected = [PAGE, COUNTERS[0], COUNTERS[1], COUNTERS[2]].map(get);
    expected.sort();
    assert_eq!(requests, expected);
}

#[test]
fn counter_that_is_named_after_a_new_cookie_is_left() {
    let mut scene = Scene::new(Config {
        audience: Audience::OneUser,
        ..Config::default()
    });
    assert!(scene.gateway.open_companion(true));
    let page = scene.page("<img src=/a?1><img src=/b?1>");
    let stream = PromiseStream::Response(page);
    let fetches = scene.promises(stream);
    assert_eq!(scene.begun(), fetches[..1]);
    let fields = [("content-type", "image/gif"), ("set-cookie", "id=1")];
    scene
        .fetch_head(fetches[0], &fields)
        .expect("it may be passed on");
    scene
        .gateway
        .handle_data(page, b"<img src=/late?1><img src=/late.png?1>");
    assert_eq!(scene.paths(stream), ["/late.png?1"]);
}
