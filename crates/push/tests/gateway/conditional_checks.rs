//! Scenes of checks whose validators are known: they are conditional requests, and bring a newer
//! version to the browser.

use std::time::Duration;

use tandem_http::Method;
use tandem_push::wire::Fate;

use crate::copies::{LOADED, PAGE};
use crate::needs::Needs;
use crate::origin::{Asked, Page, page, redirect};
use crate::pair::Pair;

const IMAGE: &str = "http://a.test/always.png";

const OWN: (&str, &str) = ("cookie", "sid=carol");

const VISIT: &[(&str, &str)] = &[("accept", "text/html"), OWN];

/// The request for the image, with the validator of the first version.
const COPY: &[(&str, &str)] = &[("if-none-match", "\"1\""), ("referer", PAGE), OWN];

fn image(version: &str) -> Page {
    let image = page("image/png", version).with("etag", &format!("\"{version}\""));
    image.with("cache-control", "no-cache")
}

/// Returns a pair whose gateway knows the image.
fn pair() -> Pair {
    let document = page("text/html", "").with("cache-control", "no-store");
    let pages = [(PAGE, document), (IMAGE, image("1"))];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.predictor = Some(Needs::of_copies(PAGE, &[(IMAGE, 0)]));
    pair
}

/// Requests the page and its image.
fn visit(mut pair: Pair) -> Pair {
    pair.browse_for(LOADED, PAGE, VISIT);
    pair.browse_for(LOADED, IMAGE, &[("referer", PAGE), OWN]);
    pair.take_asked();
    pair
}

/// Returns a pair whose session has brought the image, and whose client takes conditional checks.
fn after_visit() -> Pair {
    let mut pair = pair();
    pair.gateway.allow_conditional_checks();
    visit(pair)
}

/// Returns the request for the image: the method and the validator.
fn of_image(asked: &[Asked]) -> Vec<(bool, Option<String>)> {
    let of_image = asked.iter().filter(|it| it.url == IMAGE);
    of_image
        .map(|it| (it.is_head, it.field("if-none-match")))
        .collect()
}

#[test]
fn check_with_a_validator_confirms_the_copy() {
    let mut pair = after_visit();
    pair.browse_for(LOADED, PAGE, VISIT);
    let (reply, asked) = (pair.browse(Method::Get, IMAGE, COPY), pair.take_asked());
    assert_eq!(of_image(&asked), [(false, Some("\"1\"".to_owned()))]);
    assert!(reply.is_pushed && reply.head.status == 304);
    assert_eq!(reply.head.fields.get("etag"), Some(&b"\"1\""[..]));
    let counts = pair.gateway.take_counts();
    assert_eq!((counts.validated, counts.extra_requests), (1, 0));
}

#[test]
fn check_brings_the_version_of_a_deploy() {
    for wait in [LOADED, Duration::from_millis(220)] {
        let mut pair = after_visit();
        pair.serve(IMAGE, image("2"));
        pair.browse_for(wait, PAGE, VISIT);
        let (reply, asked) = (pair.browse(Method::Get, IMAGE, COPY), pair.take_asked());
        assert_eq!(of_image(&asked).len(), 1, "one request suffices");
        assert!(reply.is_pushed && reply.head.status == 200);
        assert_eq!(reply.body, "2");
        let counts = pair.gateway.take_counts();
        assert_eq!(counts.used + counts.late, 1);
        assert_eq!((counts.cancelled, counts.extra_requests), (0, 0));
    }
}

/// Another window, with other cookies, must not show its origin the validators of this one.
#[test]
fn check_names_no_validator_of_another_window() {
    let other = ("cookie", "sid=dave");
    for fields in [
        &[("accept", "text/html"), other][..],
        &[("accept", "text/html")],
        &[("accept", "text/html"), ("if-none-match", "\"page\"")],
    ] {
        let mut pair = after_visit();
        pair.browse_for(LOADED, PAGE, fields);
        let asked = pair.take_asked();
        assert!(
            of_image(&asked).iter().all(|(_, tag)| tag.is_none()),
            "{asked:?}"
        );
    }
}

#[test]
fn check_for_an_older_client_is_a_head_request() {
    let mut pair = visit(pair());
    pair.browse_for(LOADED, PAGE, VISIT);
    assert_eq!(of_image(&pair.take_asked()), [(true, None)]);
}

/// The validators of idle sessions would take much memory.
#[test]
fn validators_are_kept_for_conditional_checks_only() {
    let mut pair = visit(pair());
    pair.gateway.allow_conditional_checks();
    pair.browse_for(LOADED, PAGE, VISIT);
    assert_eq!(of_image(&pair.take_asked()), [(true, None)]);
}

#[test]
fn check_that_answers_no_request_is_made_once() {
    let mut pair = after_visit();
    for is_checked in [true, false] {
        pair.browse_for(LOADED, PAGE, VISIT);
        let asked = of_image(&pair.take_asked());
        assert_eq!(asked.len(), usize::from(is_checked), "{asked:?}");
        // The browser has lost its copy.
        pair.browse_for(LOADED, IMAGE, &[("referer", PAGE), OWN]);
        pair.take_asked();
    }
}

/// The client drops it, or the origin breaks the connection.
#[test]
fn check_that_ends_without_a_head_is_made_once() {
    for takes_conditions in [true, false] {
        let mut pair = match takes_conditions {
            true => after_visit(),
            false => visit(pair()),
        };
        pair.browse_for(Duration::ZERO, PAGE, VISIT);
        pair.run_until_asked(2);
        assert_eq!(of_image(&pair.take_asked()).len(), 1);
        pair.reset_fetches();
        pair.report(Fate::Cancelled, IMAGE);
        pair.run_for(LOADED);
        // The browser has lost its copy.
        pair.browse_for(LOADED, IMAGE, &[("referer", PAGE), OWN]);
        pair.take_asked();
        pair.browse_for(LOADED, PAGE, VISIT);
        assert_eq!(of_image(&pair.take_asked()), []);
    }
}

/// A new window has none of the copies that the session has brought.
#[test]
fn first_visit_of_a_window_causes_no_check() {
    for (set_cookie, is_checked) in [("sid=new", false), ("", true)] {
        let mut pair = visit(pair());
        let document = page("text/html", "").with("cache-control", "no-store");
        let of_window = match set_cookie {
            "" => document,
            value => document.with("set-cookie", value),
        };
        pair.serve(PAGE, of_window);
        pair.browse_for(LOADED, PAGE, &[("accept", "text/html")]);
        let asked = of_image(&pair.take_asked());
        assert_eq!(asked.len(), usize::from(is_checked), "{asked:?}");
    }
}

/// The copies of the former user are other versions than those of the next one.
#[test]
fn login_ends_the_checks_of_earlier_copies() {
    const LOGIN: &str = "http://a.test/login";
    for (set_cookie, is_checked) in [("sid=dave", false), ("sid=carol", true)] {
        let mut pair = after_visit();
        let login = redirect(PAGE).with("set-cookie", set_cookie);
        pair.serve(LOGIN, login);
        pair.post(LOGIN, VISIT);
        pair.run_for(LOADED);
        pair.take_asked();
        pair.browse_for(
            LOADED,
            PAGE,
            &[("accept", "text/html"), ("cookie", set_cookie)],
        );
        let asked = pair.take_asked();
        assert_eq!(of_image(&asked).len(), usize::from(is_checked));
    }
}

/// The client lets conditional requests pass promises of bodies.
#[test]
fn claim_begins_no_fetch_of_an_old_copy() {
    const OTHER: &str = "http://a.test/other.png";
    let tags = page("text/html", "<img src=other.png><img src=always.png>");
    let other = page("image/png", "other").with("cache-control", "max-age=600");
    let pages = [(PAGE, tags), (IMAGE, image("1")), (OTHER, other)];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.browse_for(LOADED, IMAGE, &[("referer", PAGE), OWN]);
    pair.browse_for(LOADED, PAGE, VISIT);
    pair.take_asked();
    let (_, asked) = pair.get(OTHER, &[("referer", PAGE), OWN]);
    assert_eq!(asked, [OTHER], "the fetch of the old copy waits");
    let (reply, asked) = pair.get(IMAGE, COPY);
    assert_eq!(asked, [IMAGE]);
    assert!(!reply.is_pushed);
}
