//! Scenes of one user's second visit: the checks of copies, lazy resources, and visits that another
//! session has saved.

use std::time::Duration;

use tandem_push::gateway::{Config, VisitsError};

use crate::copies::{asked, get, head};
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::{FRESH, NAVIGATION, image, known};

const PAGE: &str = "http://a.test/page";
const IMAGE: &str = "http://a.test/i.png";
const PLAIN: &[(&str, &str)] = &[("referer", PAGE)];
const COPY: &[(&str, &str)] = &[("referer", PAGE), ("if-none-match", "\"1\"")];
const CONDITIONAL: &[(&str, &str)] = &[("accept", "text/html"), ("if-none-match", "\"1\"")];

/// The time in which all messages of a load arrive.
const LOADED: Duration = Duration::from_secs(1);

/// An image that each visit validates.
fn validated() -> Page {
    image()
        .with("etag", "\"1\"")
        .with("cache-control", "no-cache")
}

fn pair(pages: &[(&str, Page)]) -> Pair {
    let config = Config {
        has_one_user: true,
        ..Config::default()
    };
    let mut pair = Pair::with(config, pages).with_client(true);
    pair.begin_visit("a.test");
    pair.take_asked();
    pair
}

/// Loads a page and its image as a browser without copies does. Returns the requests of the
/// origins.
fn visit(pair: &mut Pair) -> Vec<(bool, String)> {
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    pair.get(IMAGE, PLAIN);
    pair.run();
    asked(pair)
}

#[test]
fn copies_are_checked_at_the_second_visit() {
    let mut unmodified = known("");
    unmodified.status = 304;
    // The next request for a page without a validator shows nothing about the cache.
    let plain = page("text/html", "<img src=i.png>");
    for (first, again, fields) in [
        (plain.clone(), plain, NAVIGATION),
        (known("<img src=i.png>"), unmodified, CONDITIONAL),
    ] {
        let mut pair = pair(&[(PAGE, first), (IMAGE, validated())]);
        visit(&mut pair);
        pair.serve(PAGE, again);
        pair.browse_for(LOADED, PAGE, fields);
        let mut requests = asked(&mut pair);
        requests.sort();
        assert_eq!(requests, [get(PAGE), head(IMAGE)]);
        let (reply, requests) = pair.get(IMAGE, COPY);
        assert!(reply.is_pushed && requests.is_empty(), "{requests:?}");
        assert_eq!((reply.head.status, reply.body.as_str()), (304, ""));
        // The third visit checks again.
        pair.browse_for(LOADED, PAGE, fields);
        assert!(asked(&mut pair).contains(&head(IMAGE)));
    }
}

#[test]
fn changed_resource_is_checked_for_nothing_once() {
    let document = page("text/html", "<img src=i.png>");
    let mut pair = pair(&[(PAGE, document), (IMAGE, validated())]);
    visit(&mut pair);
    pair.serve(
        IMAGE,
        image()
            .with("etag", "\"2\"")
            .with("cache-control", "no-cache"),
    );
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    let (reply, _) = pair.get(IMAGE, COPY);
    assert_eq!((reply.head.status, reply.body.as_str()), (200, "x"));
    pair.take_asked();
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert_eq!(asked(&mut pair), [get(PAGE)]);
}

#[test]
fn reload_requests_nothing_early() {
    let mut pair = pair(&[(PAGE, known("<img src=i.png>")), (IMAGE, validated())]);
    visit(&mut pair);
    let reload = [CONDITIONAL, &[("cache-control", "max-age=0")]].concat();
    pair.browse_for(LOADED, PAGE, &reload);
    assert_eq!(asked(&mut pair), [get(PAGE)]);
}

#[test]
fn lazy_resource_is_requested_early_once_it_was_used() {
    let document = page(
        "text/html",
        "<img loading=lazy src=i.png><img loading=lazy src=far.png>",
    );
    let mut pair = pair(&[(PAGE, document), (IMAGE, image())]);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert_eq!(asked(&mut pair), [get(PAGE)]);
    assert!(!pair.get(IMAGE, PLAIN).0.is_pushed);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    let mut requests = asked(&mut pair);
    requests.sort();
    assert_eq!(requests, [get(IMAGE), get(PAGE)]);
}

#[test]
fn saved_visits_serve_another_session() {
    let document = page("text/html", "<img src=i.png>");
    for (served, expected) in [
        (image(), vec![get(IMAGE), get(PAGE)]),
        (validated(), vec![get(PAGE), head(IMAGE)]),
        (image().with("cache-control", FRESH), vec![get(PAGE)]),
    ] {
        let pages = [(PAGE, document.clone()), (IMAGE, served)];
        let mut first = pair(&pages);
        assert_eq!(first.gateway.save_visits(), None);
        visit(&mut first);
        let saved = first.gateway.save_visits().expect("a visit");
        assert_eq!(first.gateway.save_visits(), None, "nothing has changed");
        let mut second = pair(&pages);
        second
            .gateway
            .recall_visits(&saved)
            .expect("it was written");
        second.browse_for(LOADED, PAGE, NAVIGATION);
        let mut requests = asked(&mut second);
        requests.sort();
        assert_eq!(requests, expected);
    }
}

#[test]
fn damaged_visits_leave_a_session_as_it_is() {
    let mut pair = pair(&[]);
    let error = pair.gateway.recall_visits("tandem visits 2\nend\n");
    assert_eq!(error, Err(VisitsError::Version));
}
