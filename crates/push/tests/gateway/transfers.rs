//! Scenes of the transfers of visits at a gateway with one user. The pages show no earlier visit,
//! and the start of the site leads to a page of another origin.

use std::time::Duration;

use tandem_push::wire::Fate;

use crate::copies::unmodified;
use crate::needs::Needs;
use crate::origin::{Page, page, redirect};
use crate::pair::Pair;
use crate::{NAVIGATION, fresh_image};

const START: &str = "http://a.test/";
const TARGET: &str = "http://m.a.test/home";
const IMAGES: [&str; 3] = [
    "http://m.a.test/1.png",
    "http://m.a.test/2.png",
    "http://m.a.test/3.png",
];

/// The time after which all messages of a load have arrived, and no held fetch is given up.
const LOADED: Duration = Duration::from_secs(1);

/// The browser of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Browser {
    /// A browser with an empty cache, which transfers all images.
    Empty,
    /// A browser whose cache has the images.
    Full,
    /// A browser with copies that it validates.
    Validating,
    /// A browser that does not follow the redirect.
    Leaving,
}

use Browser::{Empty, Full, Leaving, Validating};

/// The images of the target, whose request shows no earlier visit.
fn target() -> Page {
    let images = IMAGES.map(|url| format!("<img src={url}>"));
    page("text/html", &images.concat())
}

/// Lets a browser visit a page in a new session. Returns the number of images that the gateway
/// fetches before the browser shows that it lacks them.
fn visit(needs: &mut Needs, start: &Page, fields: &[(&str, &str)], browser: Browser) -> usize {
    let mut pair = Pair::new(&[(START, start.clone()), (TARGET, target())]);
    for url in IMAGES {
        pair.serve(url, fresh_image());
    }
    pair.predictor = Some(std::mem::take(needs));
    pair.send(START, fields);
    pair.run_for(LOADED);
    let mut asked: Vec<_> = pair.take_asked().into_iter().map(|it| it.url).collect();
    if browser == Leaving {
        pair.report(Fate::Wasted, TARGET);
    } else if asked.contains(&TARGET.to_owned()) {
        pair.report(Fate::Used, TARGET);
    } else if start.status != 200 {
        let of_target: Vec<_> = fields
            .iter()
            .copied()
            .filter(|it| it.0 != "user-agent")
            .collect();
        pair.send(TARGET, &of_target);
        pair.run_for(LOADED);
        asked.extend(pair.take_asked().into_iter().map(|it| it.url));
    }
    let is_early = |url: &&str| asked.contains(&(*url).to_owned());
    let early = IMAGES.iter().filter(|url| is_early(url)).count();
    for url in IMAGES {
        match (browser, is_early(&url)) {
            (Empty, false) => pair.report(Fate::Late, url),
            (Empty, true) => pair.report(Fate::Used, url),
            (Validating, false) => {
                pair.serve(url, unmodified());
                pair.send(url, &[("if-none-match", "\"1\""), ("referer", TARGET)]);
            }
            (_, true) => pair.report(Fate::Wasted, url),
            (_, false) => {}
        }
    }
    pair.run_for(LOADED);
    pair.gateway.close();
    let counts = pair.gateway.take_counts();
    *needs = pair.predictor.take().expect("the scene has a predictor");
    needs.likely_budget.note(&counts);
    early
}

/// Returns the images that each visit gets before it shows that it lacks them.
fn early(start: &Page, browsers: &[Browser]) -> Vec<usize> {
    let mut needs = Needs::default();
    let browsers = browsers.iter();
    browsers
        .map(|browser| visit(&mut needs, start, NAVIGATION, *browser))
        .collect()
}

#[test]
fn four_visits_free_resources_behind_a_redirect() {
    let leads_on = redirect(TARGET);
    assert_eq!(early(&leads_on, &[Empty; 6]), [0, 0, 0, 0, 3, 3]);
}

#[test]
fn four_visits_free_resources_of_a_page() {
    assert_eq!(early(&target(), &[Empty; 6]), [0, 0, 0, 0, 3, 3]);
}

/// A request without a transfer does not count, nor does a visit that ends at the redirect.
#[test]
fn visits_without_transfers_let_resources_wait() {
    for browser in [Full, Validating, Leaving] {
        let mut browsers = [Empty; 6];
        browsers[2] = browser;
        let early = early(&redirect(TARGET), &browsers);
        assert_eq!(early, [0; 6], "{browser:?}");
    }
}

#[test]
fn full_cache_gets_resources_behind_a_redirect_once() {
    let mut browsers = vec![Empty; 4];
    browsers.extend([Full; 5]);
    let early = early(&redirect(TARGET), &browsers);
    assert_eq!(early, [0, 0, 0, 0, 3, 0, 0, 0, 0]);
}

/// The gateway does not know the fields of the request for the target, and so leaves it.
#[test]
fn requested_target_belongs_to_the_visit() {
    let of_start = [NAVIGATION[0], ("user-agent", "x")];
    let (mut needs, start) = (Needs::default(), redirect(TARGET));
    for (browser, expected) in [(Empty, [0, 0, 0, 0, 3]), (Full, [3, 0, 0, 0, 0])] {
        let visits = expected.map(|_| visit(&mut needs, &start, &of_start, browser));
        assert_eq!(visits, expected, "{browser:?}");
    }
}

#[test]
fn transfers_of_several_users_show_nothing() {
    let mut needs = Needs::default();
    needs.is_shared = true;
    for _ in 0..6 {
        let early = visit(&mut needs, &redirect(TARGET), NAVIGATION, Empty);
        assert_eq!(early, 0);
    }
}

/// A browser with cookies has probably been at the site, and its visits show nothing about others.
#[test]
fn visits_that_show_a_return_neither_count_nor_gain() {
    let cookie = [NAVIGATION[0], ("cookie", "seen=1")];
    let (mut needs, start) = (Needs::default(), redirect(TARGET));
    for _ in 0..5 {
        assert_eq!(visit(&mut needs, &start, &cookie, Empty), 0);
    }
    let mut early = |fields| visit(&mut needs, &start, fields, Empty);
    let visits: Vec<usize> = (0..5).map(|_| early(NAVIGATION)).collect();
    assert_eq!(visits, [0, 0, 0, 0, 3]);
    assert_eq!(early(&cookie), 0);
}

/// The browser has fresh copies of the images at its visit, and transfers them only with a later
/// page of the site, whose request shows the return.
#[test]
fn transfers_of_a_return_do_not_belong_to_the_visit() {
    let later = "http://a.test/later";
    let mut needs = Needs::default();
    for number in 1..=6 {
        let mut pair = Pair::new(&[(START, target()), (later, target())]);
        for url in IMAGES {
            pair.serve(url, fresh_image());
        }
        pair.predictor = Some(needs);
        pair.send(START, NAVIGATION);
        pair.run_for(LOADED);
        let asked: Vec<_> = pair.take_asked().into_iter().map(|it| it.url).collect();
        assert_eq!(asked, [START], "visit {number}");
        pair.send(later, &[NAVIGATION[0], ("cookie", "seen=1")]);
        pair.run_for(LOADED);
        for url in IMAGES {
            pair.send(url, &[("referer", later)]);
        }
        pair.run_for(LOADED);
        needs = pair.predictor.take().expect("the scene has a predictor");
    }
}

/// The page of another site, whose resources are likely as well.
const OTHER: &str = "http://b.test/";
const PHOTO: &str = "http://b.test/photo.png";

/// Lets a browser load two pages in one session, whose resources nearly all visits transfer. It
/// reports this on the images of the first page, or nothing. Returns whether the resource of the
/// second page is sent before it is claimed.
fn is_tried_again(fate: Option<Fate>) -> bool {
    let mut needs = Needs::default();
    for _ in 0..4 {
        visit(&mut needs, &target(), NAVIGATION, Empty);
        let mut pair = Pair::new(&[(OTHER, page("text/html", "<img src=photo.png>"))]);
        pair.serve(PHOTO, fresh_image());
        pair.predictor = Some(std::mem::take(&mut needs));
        pair.send(OTHER, NAVIGATION);
        pair.run_for(LOADED);
        pair.report(Fate::Late, PHOTO);
        pair.run_for(LOADED);
        needs = pair.predictor.take().expect("the scene has a predictor");
    }
    let pages = [
        (START, target()),
        (OTHER, page("text/html", "<img src=photo.png>")),
    ];
    let mut pair = Pair::new(&pages);
    for url in IMAGES.into_iter().chain([PHOTO]) {
        pair.serve(url, fresh_image());
    }
    pair.predictor = Some(needs);
    pair.send(START, NAVIGATION);
    pair.run_for(LOADED);
    assert_eq!(pair.take_asked().len(), 4, "the images are sent early");
    for url in IMAGES {
        fate.into_iter().for_each(|fate| pair.report(fate, url));
    }
    pair.run_for(LOADED);
    pair.send(OTHER, NAVIGATION);
    pair.run_for(LOADED);
    pair.take_asked().iter().any(|it| it.url == PHOTO)
}

#[test]
fn trial_passes_on_if_its_pushes_are_cancelled() {
    assert!(is_tried_again(Some(Fate::Cancelled)));
    assert!(is_tried_again(Some(Fate::Used)));
    for fate in [None, Some(Fate::Wasted), Some(Fate::Validated)] {
        assert!(!is_tried_again(fate), "{fate:?}");
    }
}
