//! Scenes of learned resources whose elements or scripts forbid the `Referer` of their page.

use std::time::Duration;

use tandem_http::Method;
use tandem_push::gateway::{Config, Predictor as _};

use crate::copies::unmodified;
use crate::needs::Needs;
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::{NAVIGATION, asked_of, html, image, known};

const PAGE: &str = "http://a.test/page";
const OWN: &str = "http://a.test/own.png";
const FOREIGN: &str = "http://b.test/x.png";

/// Returns a pair with the page and its images. Users of the page need both images, as far as
/// `predictor` knows.
fn pair(body: &str, predictor: Option<Needs>) -> Pair {
    let pages = [(PAGE, html(body)), (OWN, image()), (FOREIGN, image())];
    let mut pair = Pair::with(Config::default(), &pages).with_client(true);
    let mut needs = predictor.unwrap_or_else(|| Needs::of_page(PAGE, vec![OWN, FOREIGN]));
    needs.asked_hosts = vec!["b.test"];
    pair.predictor = Some(needs);
    pair
}

/// Returns the `Referer` of the requests that the origins receive for both images at a visit.
fn visit(pair: &mut Pair) -> [Option<String>; 2] {
    pair.send(PAGE, NAVIGATION);
    pair.run();
    let asked = pair.take_asked();
    [OWN, FOREIGN].map(|url| asked_of(&asked, url).field("referer"))
}

const NEITHER: [Option<String>; 2] = [None, None];

fn both() -> [Option<String>; 2] {
    ["http://a.test/page", "http://a.test/"].map(|it| Some(it.to_owned()))
}

#[test]
fn learned_push_has_no_referrer_that_requests_lack() {
    let mut learning = pair("", None);
    for url in [OWN, FOREIGN] {
        learning.browse(Method::Get, url, &[("accept", "image/*")]);
    }
    let mut next = pair("", learning.predictor.take());
    assert_eq!(visit(&mut next), NEITHER);
    assert!(next.get(OWN, &[("accept", "image/*")]).0.is_pushed);
    let mut other = pair("", None);
    assert_eq!(visit(&mut other), both(), "nothing forbids it");
}

/// At the first visit, pushes answer the requests for the elements. Later pushes precede the
/// elements, which may be new.
#[test]
fn elements_teach_the_referrer_of_later_pushes() {
    let forbidding = format!(
        "<img src={OWN} referrerpolicy=no-referrer><img src={FOREIGN} referrerpolicy=no-referrer>"
    );
    let plain = format!("<img src={OWN}><img src={FOREIGN}>");
    let mut first = pair(&plain, None);
    assert_eq!(visit(&mut first), both());
    let mut changed = pair(&forbidding, first.predictor.take());
    visit(&mut changed);
    let mut next = pair(&forbidding, changed.predictor.take());
    assert_eq!(visit(&mut next), NEITHER);
    let mut later = pair(&forbidding, next.predictor.take());
    assert_eq!(visit(&mut later), NEITHER);
}

#[test]
fn one_user_without_referrer_suffices() {
    for (without, is_pushed) in [(1, false), (3, true)] {
        let mut learning = pair("", None);
        for user in 1..4 {
            if let Some(needs) = &mut learning.predictor {
                (needs.is_shared, needs.user) = (true, user);
            }
            let fields = [("accept", "image/*"), ("referer", "http://a.test/")];
            let named = if user == without { 1 } else { 2 };
            learning.browse(Method::Get, FOREIGN, &fields[..named]);
        }
        let mut needs = learning.predictor.take();
        if let Some(needs) = &mut needs {
            needs.is_shared = false;
        }
        let mut later = pair("", needs);
        // While the last request had a `Referer`, the resource is left to the page.
        match is_pushed {
            true => assert_eq!(visit(&mut later)[1], None),
            false => assert_eq!(later.load(PAGE, NAVIGATION), [OWN, PAGE]),
        }
    }
}

/// The state file of an earlier version has no referrers.
#[test]
fn foreign_resource_of_unknown_referrer_is_left() {
    let needs = || {
        let mut needs = Needs::of_page(PAGE, vec![OWN, FOREIGN]);
        needs.is_of_old_state = true;
        Some(needs)
    };
    let mut unnamed = pair("", needs());
    assert_eq!(unnamed.load(PAGE, NAVIGATION), [OWN, PAGE]);
    let body = format!("<img src={FOREIGN} referrerpolicy=no-referrer>");
    let mut named = pair(&body, needs());
    let [_, foreign] = visit(&mut named);
    assert_eq!(foreign, None);
}

/// An origin may refuse requests that name no page.
#[test]
fn error_without_referrer_serves_no_request_with_one() {
    let refused = Page {
        status: 403,
        ..page("text/html", "no page")
    };
    for (part, is_pushed) in [(None, true), (Some(("referer", PAGE)), false)] {
        let body = format!("<img src={FOREIGN} referrerpolicy=no-referrer>");
        let pages = [(PAGE, known(&body)), (FOREIGN, refused.clone())];
        let mut pair = Pair::with(Config::default(), &pages).with_client(true);
        let mut needs = Needs::of_page(PAGE, vec![]);
        needs.asked_hosts = vec!["b.test"];
        pair.predictor = Some(needs);
        pair.browse_for(Duration::from_secs(2), PAGE, NAVIGATION);
        let (reply, _) = pair.get(FOREIGN, part.as_slice());
        assert_eq!(reply.is_pushed, is_pushed, "{part:?}");
    }
}

/// The bytes of a confirmed page are not sent again, and may name a policy. Some origins answer
/// image requests that name no page with another image.
#[test]
fn confirmed_page_names_what_requests_showed() {
    let other = Some("http://a.test/");
    for referrers in [[other; 2], [None; 2], [None, other]] {
        let mut learning = pair("", None);
        for referrer in referrers {
            let referrer = referrer.map(|value| ("referer", value));
            let fields: Vec<_> = [("accept", "image/*")]
                .into_iter()
                .chain(referrer)
                .collect();
            learning.browse(Method::Get, FOREIGN, &fields);
        }
        let mut next = pair("", learning.predictor.take());
        next.serve(PAGE, unmodified());
        let condition = [NAVIGATION[0], ("if-none-match", "\"page\"")];
        next.browse_for(Duration::from_secs(1), PAGE, &condition);
        let last = referrers[1];
        let referrer = last.map(|value| ("referer", value));
        let fields: Vec<_> = [("accept", "*/*")].into_iter().chain(referrer).collect();
        let reply = next.browse(Method::Get, FOREIGN, &fields);
        let asked = next.take_asked();
        let asked = asked.iter().filter(|asked| asked.url == FOREIGN);
        let asked: Vec<_> = asked.map(|asked| asked.field("referer")).collect();
        assert_eq!(asked, [last.map(str::to_owned)], "one request");
        let is_known = referrers[0] == last;
        assert_eq!(reply.is_pushed, is_known, "{referrers:?}");
    }
}

/// A script may fetch the resource of an element as data.
#[test]
fn request_of_a_script_shows_no_mode_of_an_element() {
    for (destination, is_by_cors) in [("empty", false), ("image", true)] {
        let mut learning = pair("", None);
        let fields = [("sec-fetch-mode", "cors"), ("sec-fetch-dest", destination)];
        learning.browse(Method::Get, FOREIGN, &fields);
        let needs = learning.predictor.expect("the scene has a predictor");
        assert_eq!(needs.is_by_cors(FOREIGN), is_by_cors, "{destination}");
    }
}
