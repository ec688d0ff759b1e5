//! Scenes of browsers with a service worker, which fills a store of its own, and answers the
//! requests of pages from it.

use tandem_push::gateway::{Audience, Config};
use tandem_push::wire::Fate;

use crate::copies::{
    ALWAYS, CONDITIONAL, COPY, LOADED, MINUTE, NAVIGATION, PAGE, PLAIN, asked, get, head, image,
    returning_to, unmodified,
};
use crate::origin::page;
use crate::pair::Pair;
use crate::scene::{Scene, head as answer};
use crate::{fresh_image, html};

const SCRIPT: &str = "http://a.test/sw.js";
const SCRIPT_FIELDS: &[(&str, &str)] = &[
    ("accept", "*/*"),
    ("service-worker", "script"),
    ("referer", PAGE),
];
const BY_WORKER: &[(&str, &str)] = &[("accept", "*/*"), ("referer", SCRIPT)];

/// The request for a page that a worker has passed on.
const PASSED_ON: &[(&str, &str)] = &[
    ("accept", "text/html"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-dest", "empty"),
];

/// Lets the browser install a worker that stores a resource.
fn install(pair: &mut Pair, stored: &str) {
    pair.serve(SCRIPT, page("text/javascript", "run()"));
    pair.load(SCRIPT, SCRIPT_FIELDS);
    pair.load(stored, BY_WORKER);
    pair.take_asked();
}

fn urls(pair: &mut Pair) -> Vec<String> {
    pair.take_asked().into_iter().map(|it| it.url).collect()
}

#[test]
fn request_of_a_worker_teaches_no_need() {
    let mut scene = Scene::new(Config::default());
    for (path, fields) in [
        ("/sw.js", SCRIPT_FIELDS),
        ("/stored.png", BY_WORKER),
        ("/own.png", &[("referer", PAGE)]),
    ] {
        let id = scene.ask(path, fields);
        scene.head(id, &mut answer(200, &[]));
    }
    assert_eq!(scene.recorded(), [format!("http://a.test/own.png {PAGE}")]);
}

#[test]
fn push_of_a_stored_resource_waits_for_its_claim() {
    let stored = "http://a.test/stored.png";
    let body = "<img src=stored.png><img src=other.png>";
    let other = "http://a.test/other.png";
    let mut pair = Pair::new(&[
        (PAGE, html(body)),
        (stored, fresh_image().with("cache-control", "no-cache")),
        (other, fresh_image()),
    ]);
    install(&mut pair, stored);
    pair.send(PAGE, NAVIGATION);
    pair.run_for(LOADED);
    assert_eq!(urls(&mut pair), [PAGE, other]);
    pair.report(Fate::Late, stored);
    pair.run_for(LOADED);
    assert_eq!(urls(&mut pair), [stored]);
}

#[test]
fn copies_that_a_worker_stores_are_not_checked() {
    for (is_stored, is_needed) in [(false, false), (true, false), (true, true)] {
        let mut pair = returning_to(unmodified());
        if is_stored {
            install(&mut pair, ALWAYS);
        }
        if is_needed {
            pair.load(ALWAYS, COPY);
            pair.take_asked();
        }
        pair.browse_for(LOADED, PAGE, CONDITIONAL);
        let is_checked = asked(&mut pair).contains(&head(ALWAYS));
        assert_eq!(is_checked, !is_stored || is_needed, "{is_needed}");
    }
}

#[test]
fn page_through_a_worker_gets_promises_alone() {
    let images = ["http://a.test/1.png", "http://a.test/2.png", MINUTE];
    let body = "<img src=1.png><img src=2.png><img src=minute.png>";
    let mut pages = vec![(PAGE, html(body))];
    pages.extend(images.map(|url| (url, image(60))));
    let mut pair = Pair::new(&pages);
    let link = [PASSED_ON, &[("referer", "http://a.test/before")]].concat();
    pair.send(PAGE, &link);
    pair.run_for(LOADED);
    assert_eq!(urls(&mut pair), [PAGE]);
    // The worker may have the others. The second claim shows that it passes such images on.
    for (claimed, released) in [(0, &images[..1]), (1, &images[1..])] {
        pair.report(Fate::Late, images[claimed]);
        pair.run_for(LOADED);
        let asked = pair.take_asked();
        let urls: Vec<_> = asked.iter().map(|it| it.url.as_str()).collect();
        assert_eq!(urls, released);
        let referrer = Some(PAGE.to_owned());
        assert!(asked.iter().all(|it| it.field("referer") == referrer));
    }
}

#[test]
fn page_through_a_worker_has_no_copies_checked() {
    for (fields, is_checked) in [(NAVIGATION, true), (PASSED_ON, false)] {
        let config = Config {
            audience: Audience::OneUser,
            ..Config::default()
        };
        let document = page("text/html", "<img src=always.png>");
        let mut pair = Pair::with(config, &[(PAGE, document), (ALWAYS, image(0))]);
        pair = pair.with_client(true);
        pair.begin_visit("a.test");
        pair.browse_for(LOADED, PAGE, NAVIGATION);
        pair.get(ALWAYS, PLAIN);
        pair.run();
        pair.take_asked();
        pair.browse_for(LOADED, PAGE, fields);
        let requests = asked(&mut pair);
        assert_eq!(requests.contains(&head(ALWAYS)), is_checked, "{fields:?}");
        assert!(!requests.contains(&get(ALWAYS)));
    }
}
