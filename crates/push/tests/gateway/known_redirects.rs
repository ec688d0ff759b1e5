//! Scenes of redirects to other origins at a gateway with one user. The gateway follows them once
//! it has known the browser's request for the target at three visits in succession.

use std::time::Duration;

use tandem_push::wire::Fate;

use crate::needs::Needs;
use crate::origin::{Page, redirect};
use crate::pair::Pair;
use crate::{NAVIGATION, html, image};

const START: &str = "http://a.test/";
const TARGET: &str = "http://m.a.test/home";
const WITH_COOKIE: &[(&str, &str)] = &[("accept", "text/html"), ("cookie", "seen=1")];

/// The pages of a site whose start leads to another origin.
fn site(start: Page) -> Vec<(&'static str, Page)> {
    vec![
        (START, start),
        ("http://a.test/next", redirect(TARGET)),
        (TARGET, html("<img src=logo.png>")),
        ("http://m.a.test/logo.png", image()),
        ("http://b.test/ad.png", image()),
    ]
}

/// Lets a browser visit the site in a new session: it requests the start with these fields, and
/// then the target with those. Returns the URLs that the start alone has made the gateway request.
fn visit(
    needs: &mut Needs,
    pages: &[(&str, Page)],
    fields: &[(&str, &str)],
    of_target: &[(&str, &str)],
) -> Vec<String> {
    let mut pair = Pair::new(pages);
    pair.predictor = Some(std::mem::take(needs));
    let asked = pair.load(START, fields);
    pair.load(TARGET, of_target);
    *needs = pair.predictor.take().expect("the scene has a predictor");
    asked
}

/// Returns the visits at which the gateway requests the target early, of five.
fn followed(
    needs: &mut Needs,
    start: Page,
    fields: &[(&str, &str)],
    of_target: &[(&str, &str)],
) -> Vec<usize> {
    let pages = site(start);
    let mut is_followed = |_: &usize| {
        let asked = visit(needs, &pages, fields, of_target);
        asked.contains(&TARGET.to_owned())
    };
    (1..=5).filter(|visit| is_followed(visit)).collect()
}

#[test]
fn redirect_is_followed_after_three_visits() {
    for start in [redirect(TARGET), redirect("/next")] {
        let followed = followed(&mut Needs::default(), start, NAVIGATION, NAVIGATION);
        assert_eq!(followed, [4, 5]);
    }
}

#[test]
fn redirect_whose_request_is_not_known_is_left() {
    let sets = redirect(TARGET).with("set-cookie", "a=1; Domain=a.test");
    let metadata: Vec<_> = [
        ("sec-fetch-dest", "document"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-site", "same-origin"),
    ]
    .into_iter()
    .chain(NAVIGATION.iter().copied())
    .collect();
    for (start, fields, of_target) in [
        (redirect(TARGET), NAVIGATION, WITH_COOKIE),
        (redirect(TARGET), WITH_COOKIE, WITH_COOKIE),
        (redirect(TARGET), &metadata, &metadata),
        (sets.clone(), NAVIGATION, NAVIGATION),
        // The gateway's own request would have the cookie too.
        (sets, NAVIGATION, &[NAVIGATION[0], ("cookie", "a=1")]),
    ] {
        let followed = followed(&mut Needs::default(), start, fields, of_target);
        assert_eq!(followed, [0; 0], "{fields:?} {of_target:?}");
    }
}

/// A cookie that the redirect sets for its own host is no part of the request for the target.
#[test]
fn redirect_with_a_cookie_for_its_host_is_followed() {
    for cookie in ["a=1", "a=1; Path=/; Secure", "a=1; Domain=b.test"] {
        let start = redirect(TARGET).with("set-cookie", cookie);
        let followed = followed(&mut Needs::default(), start, NAVIGATION, NAVIGATION);
        assert_eq!(followed, [4, 5], "{cookie}");
    }
}

/// The reload gets no pushes, so its page does not handle the redirect that was looked up.
#[test]
fn redirect_of_a_reload_shows_nothing_about_the_next() {
    let (mut needs, pages) = (Needs::default(), site(redirect(TARGET)));
    for _ in 0..3 {
        visit(&mut needs, &pages, NAVIGATION, NAVIGATION);
    }
    let mut pair = Pair::new(&pages);
    pair.predictor = Some(needs);
    let reload = [NAVIGATION[0], ("cache-control", "no-cache")];
    assert_eq!(pair.load(START, &reload).len(), 1);
    let sets = redirect(TARGET).with("set-cookie", "a=1; Domain=a.test");
    pair.serve(START, sets);
    assert_eq!(pair.load(START, NAVIGATION), [START]);
}

#[test]
fn other_request_for_the_target_ends_the_knowledge() {
    let (mut needs, pages) = (Needs::default(), site(redirect(TARGET)));
    let mut visit = |of_target| visit(&mut needs, &pages, NAVIGATION, of_target).len() > 1;
    let unknown = [WITH_COOKIE, NAVIGATION, NAVIGATION, NAVIGATION];
    let known = [NAVIGATION; 3].into_iter();
    let followed: Vec<bool> = known
        .chain(unknown)
        .chain([NAVIGATION])
        .map(&mut visit)
        .collect();
    let expected = [false, false, false, true, false, false, false, true];
    assert_eq!(followed, expected);
}

/// A browser that has learned to go to another scheme, or has a fresh copy, requests no target.
#[test]
fn unused_target_ends_the_knowledge() {
    for (fate, is_followed) in [
        (Fate::Wasted, false),
        (Fate::Used, true),
        (Fate::Validated, true),
        (Fate::Cancelled, true),
    ] {
        let (mut needs, pages) = (Needs::default(), site(redirect(TARGET)));
        for _ in 0..3 {
            visit(&mut needs, &pages, NAVIGATION, NAVIGATION);
        }
        let mut pair = Pair::new(&pages);
        pair.predictor = Some(needs);
        let asked = pair.load(START, NAVIGATION);
        assert!(asked.contains(&TARGET.to_owned()));
        pair.report(fate, TARGET);
        pair.run();
        let mut needs = pair.predictor.take().expect("the scene has a predictor");
        let asked = visit(&mut needs, &pages, NAVIGATION, NAVIGATION);
        assert_eq!(asked.contains(&TARGET.to_owned()), is_followed, "{fate:?}");
    }
}

/// The page behind the redirect does not name the resource of the other site.
#[test]
fn needs_of_the_target_are_pushed_with_it() {
    for start in [redirect(TARGET), redirect("/next")] {
        let ad = "http://b.test/ad.png";
        let mut needs = Needs::of_known(TARGET, &[(ad, Duration::ZERO)]);
        needs.asked_hosts = vec!["b.test"];
        let pages = site(start);
        for number in 1..=4 {
            let asked = visit(&mut needs, &pages, NAVIGATION, NAVIGATION);
            let is_early = |url: &str| asked.contains(&url.to_owned());
            assert_eq!(is_early(ad), number == 4, "visit {number}");
            assert_eq!(is_early("http://m.a.test/logo.png"), number == 4);
        }
    }
}
