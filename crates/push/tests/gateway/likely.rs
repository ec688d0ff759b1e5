//! Scenes of browsers without a sign of an earlier visit, at pages whose earlier visits had empty
//! caches. The resources that nearly all visits transferred wait for no claim.

use std::time::Duration;

use tandem_push::wire::Fate;

use crate::needs::Needs;
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::{NAVIGATION, expiring_image, fresh_image};

const PAGE: &str = "http://a.test/page";

/// The resources of the page that nearly all visits transferred.
const LIKELY: [&str; 5] = [
    "http://a.test/1.png",
    "http://a.test/2.png",
    "http://a.test/3.png",
    "http://a.test/4.png",
    "http://a.test/5.png",
];

/// The resources of the page that no visit has requested yet.
const NEW: [&str; 3] = [
    "http://a.test/a.png",
    "http://a.test/b.png",
    "http://a.test/c.png",
];

/// The time after which all messages of a load have arrived, and no held fetch is given up.
const LOADED: Duration = Duration::from_secs(1);

/// A page without a sign: it has no validator and sets no cookie.
fn signless(images: &[&str]) -> Page {
    let images = images.iter().map(|url| format!("<img src={url}>"));
    page("text/html", &images.collect::<String>())
}

/// Returns a pair whose gateway has this knowledge of earlier visits.
fn pair(needs: Needs) -> Pair {
    let images = [LIKELY.as_slice(), &NEW].concat();
    let mut pages = vec![(PAGE, signless(&images))];
    pages.extend(images.iter().map(|url| (*url, fresh_image())));
    let mut pair = Pair::new(&pages);
    pair.predictor = Some(needs);
    pair
}

fn pair_of_empty_caches() -> Pair {
    pair(Needs::of_empty_caches(PAGE, LIKELY.to_vec()))
}

/// Requests a page, and returns the number of resources that the gateway fetches with it.
fn fetches_with(pair: &mut Pair, url: &str, fields: &[(&str, &str)]) -> usize {
    pair.send(url, fields);
    pair.run_for(LOADED);
    pair.take_asked().len() - 1
}

#[test]
fn likely_resources_of_a_new_visit_wait_for_no_claim() {
    let cookie = [NAVIGATION[0], ("cookie", "seen=1")];
    let link = [NAVIGATION[0], ("referer", "http://www.a.test/")];
    for (fields, expected) in [(NAVIGATION, LIKELY.len()), (&cookie, 0), (&link, 0)] {
        let fetched = fetches_with(&mut pair_of_empty_caches(), PAGE, fields);
        assert_eq!(fetched, expected, "{fields:?}");
    }
    let mut pair = pair(Needs::of_page(PAGE, LIKELY.to_vec()));
    let fetched = fetches_with(&mut pair, PAGE, NAVIGATION);
    assert_eq!(fetched, 0, "some visits did without them");
    let mut pair = pair_of_empty_caches();
    let needs = pair.predictor.as_mut().expect("the scene has a predictor");
    needs.is_shared = true;
    let fetched = fetches_with(&mut pair, PAGE, NAVIGATION);
    assert_eq!(fetched, 0, "the visits were those of other users");
}

#[test]
fn likely_resources_wait_if_the_browser_has_copies() {
    let mut pair = pair_of_empty_caches();
    pair.load("http://a.test/other.png", &[("if-none-match", "\"1\"")]);
    assert_eq!(fetches_with(&mut pair, PAGE, NAVIGATION), 0);
}

#[test]
fn use_of_a_likely_resource_releases_others() {
    for (fate, released) in [
        (Fate::Used, NEW.len()),
        (Fate::Late, NEW.len()),
        (Fate::Wasted, 0),
    ] {
        let mut pair = pair_of_empty_caches();
        assert_eq!(fetches_with(&mut pair, PAGE, NAVIGATION), LIKELY.len());
        pair.report(fate, LIKELY[0]);
        pair.run_for(LOADED);
        assert_eq!(pair.take_asked().len(), released, "{fate:?}");
    }
}

#[test]
fn unkept_likely_resource_shows_nothing() {
    let mut pair = pair_of_empty_caches();
    pair.serve(LIKELY[0], page("image/png", "x"));
    fetches_with(&mut pair, PAGE, NAVIGATION);
    pair.report(Fate::Used, LIKELY[0]);
    pair.run_for(LOADED);
    assert_eq!(pair.take_asked().len(), 0);
}

/// The next page of the site, whose request shows the first one, waits for no claim either.
#[test]
fn uses_of_likely_resources_count_at_the_next_page() {
    let link = [NAVIGATION[0], ("referer", PAGE)];
    for (fate, fetched) in [(Fate::Used, 1), (Fate::Wasted, 0)] {
        let mut pair = pair_of_empty_caches();
        pair.serve("http://a.test/next", signless(&["next.png"]));
        pair.serve("http://a.test/next.png", fresh_image());
        fetches_with(&mut pair, PAGE, NAVIGATION);
        pair.run();
        for used in &LIKELY[..4] {
            pair.report(fate, used);
        }
        pair.run();
        pair.take_asked();
        let found = fetches_with(&mut pair, "http://a.test/next", &link);
        assert_eq!(found, fetched, "{fate:?}");
    }
}

/// Returns the fetches with the page in the next session, after the fate of a likely push, or the
/// end of the session without one.
fn fetches_after(fate: Option<Fate>) -> usize {
    let mut first = pair_of_empty_caches();
    fetches_with(&mut first, PAGE, NAVIGATION);
    match fate {
        Some(fate) => first.report(fate, LIKELY[0]),
        None => first.gateway.close(),
    }
    first.run();
    let mut needs = first.predictor.take().expect("the scene has a predictor");
    needs.likely_budget.note(&first.gateway.take_counts());
    fetches_with(&mut pair(needs), PAGE, NAVIGATION)
}

#[test]
fn wasted_likely_push_ends_those_of_later_sessions() {
    assert_eq!(fetches_after(Some(Fate::Used)), LIKELY.len());
    for fate in [Some(Fate::Wasted), Some(Fate::Validated), None] {
        assert_eq!(fetches_after(fate), 0, "{fate:?}");
    }
}

/// Pages that are opened together show no cache.
#[test]
fn likely_pushes_of_a_second_page_wait_for_a_report() {
    const SECOND: &str = "http://b.test/";
    const IMAGE: &str = "http://b.test/1.png";
    for (fate, fetched) in [(None, 0), (Some(Fate::Used), 1), (Some(Fate::Wasted), 0)] {
        let mut pair = pair_of_empty_caches();
        pair.serve(SECOND, signless(&[IMAGE]));
        pair.serve(IMAGE, fresh_image());
        fetches_with(&mut pair, PAGE, NAVIGATION);
        if let Some(fate) = fate {
            pair.report(fate, LIKELY[0]);
        }
        pair.run();
        pair.take_asked();
        // This gateway has a budget that nothing was taken from.
        pair.predictor = Some(Needs::of_empty_caches(SECOND, vec![IMAGE]));
        assert_eq!(
            fetches_with(&mut pair, SECOND, NAVIGATION),
            fetched,
            "{fate:?}"
        );
    }
}

/// A first visit to another page needs no likely pushes, and shows nothing about them.
#[test]
fn first_visit_leaves_likely_pushes_to_the_next_page() {
    const FIRST: &str = "http://b.test/";
    const IMAGE: &str = "http://b.test/1.png";
    let mut pair = pair_of_empty_caches();
    pair.serve(FIRST, signless(&[IMAGE]).with("etag", "\"1\""));
    pair.serve(IMAGE, fresh_image());
    let needs = pair
        .predictor
        .replace(Needs::of_empty_caches(FIRST, vec![IMAGE]));
    assert_eq!(fetches_with(&mut pair, FIRST, NAVIGATION), 1);
    pair.predictor = needs;
    assert_eq!(fetches_with(&mut pair, PAGE, NAVIGATION), LIKELY.len());
}

#[test]
fn use_of_an_expired_likely_resource_shows_nothing() {
    let mut pair = pair_of_empty_caches();
    pair.serve(LIKELY[0], expiring_image());
    fetches_with(&mut pair, PAGE, NAVIGATION);
    pair.report(Fate::Used, LIKELY[0]);
    pair.run_for(LOADED);
    assert_eq!(pair.take_asked().len(), 0);
    pair.report(Fate::Used, LIKELY[1]);
    pair.run_for(LOADED);
    assert_eq!(pair.take_asked().len(), NEW.len());
}
