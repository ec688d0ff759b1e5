//! Scenes of both halves with requests that scripts make: pushes with the fields that other users'
//! scripts sent.

use tandem_http::Method;
use tandem_push::gateway::Config;

use crate::needs::Needs;
use crate::origin::{Page, page, redirect};
use crate::pair::Pair;
use crate::{NAVIGATION, html};

const PAGE: &str = "http://a.test/page";
const ITEMS: &str = "http://a.test/items";
const FOREIGN: &str = "http://b.test/items";

const JSON: (&str, &str) = ("accept", "application/json, text/plain, */*");
const MARK: (&str, &str) = ("x-requested-with", "XMLHttpRequest");

fn data() -> Page {
    page("application/json", "{}")
}

/// Returns a pair in which two users have requested data of a page with these fields.
fn taught(has_own_fields: bool, url: &'static str, fields: &[(&str, &str)]) -> Pair {
    let pages = [
        (PAGE, html("<img src=http://b.test/image.png>")),
        (url, data()),
    ];
    let mut pair = Pair::new(&pages).with_client(has_own_fields);
    pair.predictor = Some(Needs::of_page(PAGE, vec![url]));
    for user in [1, 2] {
        if let Some(needs) = &mut pair.predictor {
            needs.user = user;
        }
        pair.browse(Method::Get, url, fields);
    }
    pair.take_asked();
    pair
}

#[test]
fn data_is_pushed_with_the_fields_of_scripts() {
    for promises in [true, false] {
        for fields in [&[JSON][..], &[JSON, MARK], &[("accept", "*/*"), MARK]] {
            let mut pair = taught(promises, ITEMS, fields);
            pair.get(PAGE, NAVIGATION);
            let (reply, asked) = pair.get(ITEMS, fields);
            assert!(reply.is_pushed && reply.body == "{}", "{fields:?}");
            assert_eq!(asked.len(), 0);
        }
    }
}

#[test]
fn data_is_validated_if_the_last_requests_wanted_that() {
    const DEMAND: (&str, &str) = ("cache-control", "max-age=0");
    for promises in [true, false] {
        for (fields, demanded) in [
            (&[("accept", "*/*")][..], false),
            (&[("accept", "*/*"), DEMAND], true),
            (&[JSON, DEMAND], true),
        ] {
            let mut pair = taught(promises, "http://a.test/items.json", fields);
            pair.serve("http://a.test/items.json", data());
            pair.send(PAGE, NAVIGATION);
            pair.run();
            let asked = pair.take_asked();
            let push = asked.iter().find(|asked| asked.url.ends_with(".json"));
            let directives = push.expect("it is pushed").field("cache-control");
            assert_eq!(directives.is_some(), demanded, "{fields:?}");
            assert!(!demanded || directives.as_deref() == Some("max-age=0"));
            let (reply, asked) = pair.get("http://a.test/items.json", fields);
            assert!(reply.is_pushed && asked.is_empty(), "{fields:?}");
        }
    }
}

/// The cache of a site ignores the demand, as it would for the script's own request.
#[test]
fn validated_data_of_a_cached_site_is_pushed_once() {
    const URL: &str = "http://a.test/items.json";
    let fields = [("accept", "*/*"), ("cache-control", "max-age=0")];
    let mut pair = taught(true, URL, &fields);
    let aged = data().with("cache-control", "max-age=60").with("age", "20");
    pair.serve(URL, aged);
    pair.get(PAGE, NAVIGATION);
    let (reply, asked) = pair.get(URL, &fields);
    assert!(reply.is_pushed && asked.is_empty());
}

/// A browser that reloads a page demands validated data, and its script does not.
#[test]
fn reload_of_one_user_changes_no_push_for_others() {
    const URL: &str = "http://a.test/items.json";
    const DEMAND: (&str, &str) = ("cache-control", "max-age=0");
    let plain = [("accept", "*/*")];
    for (reloading, demanded) in [(1, false), (5, true)] {
        let mut pair = taught(true, URL, &plain);
        for user in 3..3 + reloading {
            if let Some(needs) = &mut pair.predictor {
                needs.user = user;
            }
            pair.browse(Method::Get, URL, &[plain[0], DEMAND]);
        }
        pair.take_asked();
        pair.send(PAGE, NAVIGATION);
        pair.run();
        let asked = pair.take_asked();
        let push = asked.iter().find(|asked| asked.url == URL);
        let directive = push.expect("it is pushed").field("cache-control");
        assert_eq!(directive.is_some(), demanded, "{reloading} users");
    }
}

/// The request for the target would have another `Accept`.
#[test]
fn redirect_of_pushed_data_is_left_to_the_browser() {
    let mut pair = taught(true, ITEMS, &[JSON]);
    pair.serve(ITEMS, redirect("/v2/items"));
    let (_, asked) = pair.get(PAGE, NAVIGATION);
    assert!(asked.contains(&ITEMS.to_owned()), "{asked:?}");
    let target = "http://a.test/v2/items".to_owned();
    assert!(!asked.contains(&target), "{asked:?}");
}

/// Scripts, fonts and others that a page requests from another origin by CORS have `Origin`.
#[test]
fn redirect_of_a_push_by_cors_is_left_to_the_browser() {
    let body = "<script src=http://b.test/old.js crossorigin></script><script src=/c.js></script>";
    let mut pair = Pair::new(&[
        (PAGE, html(body)),
        ("http://b.test/old.js", redirect("/new.js")),
        ("http://a.test/c.js", redirect("/d.js")),
    ]);
    pair.begin_visit("b.test");
    let asked = pair.load(PAGE, NAVIGATION);
    assert!(
        asked.contains(&"http://b.test/old.js".to_owned()),
        "{asked:?}"
    );
    assert!(
        asked.contains(&"http://a.test/d.js".to_owned()),
        "{asked:?}"
    );
    assert!(
        !asked.contains(&"http://b.test/new.js".to_owned()),
        "{asked:?}"
    );
}

#[test]
fn pushed_data_serves_no_request_with_other_fields() {
    for promises in [true, false] {
        for other in [
            &[("accept", "text/plain")][..],
            &[("accept", "*/*")],
            &[JSON],
        ] {
            let mut pair = taught(promises, ITEMS, &[JSON, MARK]);
            pair.get(PAGE, NAVIGATION);
            let (reply, asked) = pair.get(ITEMS, other);
            assert!(!reply.is_pushed, "{other:?}");
            assert_eq!(asked, [ITEMS]);
        }
        let mut pair = taught(promises, ITEMS, &[("accept", "*/*")]);
        pair.get(PAGE, NAVIGATION);
        let (reply, _) = pair.get(ITEMS, &[("accept", "*/*"), MARK]);
        assert!(!reply.is_pushed, "the push has no mark");
    }
}

#[test]
fn data_with_fields_of_one_user_is_not_pushed() {
    let mut pair = Pair::new(&[(PAGE, html("")), (ITEMS, data())]).with_client(true);
    pair.predictor = Some(Needs::of_page(PAGE, vec!["http://a.test/items.json"]));
    for _ in 0..2 {
        pair.browse(Method::Get, "http://a.test/items.json", &[JSON]);
    }
    pair.take_asked();
    assert_eq!(pair.get(PAGE, NAVIGATION).1, [PAGE]);
}

#[test]
fn fields_with_secrets_are_not_learned() {
    for secret in [
        ("authorization", "Bearer 17"),
        ("x-csrf-token", "17"),
        ("accept", "application/x.user17"),
    ] {
        let mut pair = taught(true, ITEMS, &[JSON, MARK, secret]);
        pair.send(PAGE, NAVIGATION);
        pair.run();
        for asked in pair.take_asked().iter().filter(|asked| asked.url == ITEMS) {
            assert_eq!(asked.field("accept").as_deref(), Some("*/*"));
            assert_eq!(asked.field(secret.0).filter(|_| secret.0 != "accept"), None);
            assert_eq!(asked.field("x-requested-with"), None);
        }
    }
}

#[test]
fn other_origin_gets_no_field_that_needs_a_preflight() {
    let cors = [JSON, ("origin", "http://a.test")];
    let mut pair = taught(true, FOREIGN, &cors);
    pair.get("http://b.test/first", &[]);
    pair.get(PAGE, NAVIGATION);
    let (reply, _) = pair.get(FOREIGN, &cors);
    assert!(reply.is_pushed);
    let mut pair = taught(true, FOREIGN, &[JSON, MARK, ("origin", "http://a.test")]);
    pair.get("http://b.test/first", &[]);
    pair.send(PAGE, NAVIGATION);
    pair.run();
    let asked = pair.take_asked();
    assert!(asked.iter().all(|asked| asked.field(MARK.0).is_none()));
}

/// Returns a configuration that reads the strings of scripts.
fn with_scripts() -> Config {
    Config {
        named_by_scripts: 32,
        ..Config::default()
    }
}

/// Returns the requests that the origin receives for a page with this body. Two users have
/// requested the items, as this share of the visits to the page does.
fn asked_with_literals(config: Config, body: &str, script: &str, share: f64) -> Vec<String> {
    let pages = [
        (PAGE, html(body)),
        ("http://a.test/app.js", page("text/javascript", script)),
        (ITEMS, data()),
        ("http://a.test/base/items", data()),
    ];
    let mut pair = Pair::with(config, &pages).with_client(true);
    pair.predictor = Some(Needs::of_possible(vec![(ITEMS, share)]));
    for user in [1, 2] {
        if let Some(needs) = &mut pair.predictor {
            needs.user = user;
        }
        pair.browse(Method::Get, ITEMS, &[JSON]);
    }
    pair.take_asked();
    pair.send(PAGE, NAVIGATION);
    pair.run();
    let asked = pair.take_asked();
    let items = asked.iter().find(|asked| asked.url == ITEMS);
    let accept = items.and_then(|asked| asked.field("accept"));
    assert!(
        accept.is_none_or(|accept| accept == JSON.1),
        "learned field"
    );
    asked.iter().map(|asked| asked.url.clone()).collect()
}

#[test]
fn data_that_a_script_names_is_pushed() {
    const SCRIPT: &str = "<script src=app.js></script>";
    for (body, script, share, is_pushed) in [
        (SCRIPT, "a = 1; fetch('/items')", 0.4, true),
        (SCRIPT, "a = 1; fetch('./items#1')", 0.4, true),
        (SCRIPT, "a = 1; fetch('/items')", 0.3, false),
        (SCRIPT, "a = 1; fetch('/others')", 0.4, false),
        (SCRIPT, "a = '/items", 0.4, false),
        ("<script>fetch('/items')</script>", "", 0.1, true),
        ("<script>fetch('/others')</script>", "", 0.4, false),
        ("<a href='/items'>\"/items\"</a>", "", 0.9, false),
        (
            "<base href=/base/><script>fetch('./items')</script>",
            "",
            0.9,
            false,
        ),
        (
            "<base href=/base/><script>fetch('../items')</script>",
            "",
            0.9,
            true,
        ),
        (
            "<base href=/><script src=app.js></script>",
            "fetch('./items')",
            0.4,
            true,
        ),
    ] {
        let asked = asked_with_literals(with_scripts(), body, script, share);
        let found = asked.iter().any(|url| url == ITEMS);
        assert_eq!(found, is_pushed, "{body} {script} {share}: {asked:?}");
        assert!(!asked.iter().any(|url| url.ends_with("/base/items")));
    }
}

#[test]
fn strings_of_scripts_are_not_read_by_default() {
    for (body, script) in [
        ("<script src=app.js></script>", "fetch('/items')"),
        ("<script>fetch('/items')</script>", ""),
    ] {
        let asked = asked_with_literals(Config::default(), body, script, 0.4);
        assert!(asked.iter().all(|url| url != ITEMS), "{body}: {asked:?}");
    }
}

#[test]
fn data_that_a_script_names_waits_for_its_host() {
    // A predictor that anyone can teach must not name a host of its own.
    let pages = [
        (PAGE, html("<script>fetch('//b.test/items')</script>")),
        (FOREIGN, data()),
    ];
    let mut pair = Pair::with(with_scripts(), &pages).with_client(true);
    pair.predictor = Some(Needs::of_possible(vec![(FOREIGN, 0.9)]));
    for user in [1, 2] {
        if let Some(needs) = &mut pair.predictor {
            needs.user = user;
        }
        pair.browse(Method::Get, FOREIGN, &[JSON]);
    }
    pair.take_asked();
    pair.get("http://b.test/first", &[]);
    assert_eq!(pair.get(PAGE, NAVIGATION).1, [PAGE]);
}
