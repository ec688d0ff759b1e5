//! Scenes of the limits of pushes: hosts, numbers and records.

use tandem_push::gateway::{Audience, Config};
use tandem_push::wire::Fate;

use crate::needs::Needs;
use crate::origin::redirect;
use crate::pair::Pair;
use crate::{NAVIGATION, html, image};

const PAGE: &str = "http://a.test/page";

#[test]
fn page_with_too_many_hosts_gets_no_more_pushes() {
    let config = Config {
        audience: Audience::OneUser,
        hosts: 2,
        ..Config::default()
    };
    let two = "<img src=a.png><img src=//i.a.test/b.png><img src=c.png>";
    let three = "<img src=d.png><img src=//i.a.test/e.png><link rel=stylesheet href=//c.test/s>\
                 <img src=f.png>";
    let mut pair = Pair::with(
        config,
        &[
            ("http://a.test/two", html(two)),
            ("http://a.test/three", html(three)),
        ],
    );
    let asked = pair.load("http://a.test/two", NAVIGATION);
    assert_eq!(
        asked,
        [
            "http://a.test/a.png",
            "http://a.test/c.png",
            "http://a.test/two",
            "http://i.a.test/b.png"
        ]
    );
    let asked = pair.load("http://a.test/three", NAVIGATION);
    assert!(!asked.contains(&"http://c.test/s".to_owned()), "{asked:?}");
    assert!(
        !asked.contains(&"http://a.test/f.png".to_owned()),
        "{asked:?}"
    );
}

#[test]
fn foreign_resources_wait_for_their_host() {
    let body = "<link rel=stylesheet href=http://b.test/a.css><script src=http://b.test/b.js></script>\
                <img src=http://b.test/c.png><img src=http://b.test/d.png><img src=http://i.a.test/e.png>";
    let mut pair = Pair::new(&[("http://a.test/page", html(body))]);
    let first = pair.load("http://a.test/page", NAVIGATION);
    let own = [
        "http://a.test/page",
        "http://b.test/a.css",
        "http://i.a.test/e.png",
    ];
    assert_eq!(first, own, "style sheets, and hosts of the same site");
    let rest = pair.load("http://b.test/c.png", &[("referer", "http://a.test/")]);
    let rest_expected = [
        "http://b.test/b.js",
        "http://b.test/c.png",
        "http://b.test/d.png",
    ];
    assert_eq!(rest, rest_expected, "the client does not block the host");
}

#[test]
fn hosts_of_the_users_earlier_visits_do_not_wait() {
    let body = "<img src=http://b.test/b.png><img src=http://c.test/c.png>";
    let by_script = [
        "http://b.test/b.js",
        "http://c.test/c.js",
        "http://d.test/d.js",
    ];
    let load = |hosts: &[&'static str]| {
        let mut pair = Pair::new(&[(PAGE, html(body))]);
        let mut needs = Needs::of_page(PAGE, by_script.to_vec());
        needs.asked_hosts = hosts.to_vec();
        pair.predictor = Some(needs);
        pair.load(PAGE, NAVIGATION)
    };
    assert_eq!(load(&[]), [PAGE]);
    let expected = [
        PAGE,
        "http://b.test/b.js",
        "http://b.test/b.png",
        "http://d.test/d.js",
    ];
    assert_eq!(
        load(&["b.test", "d.test"]),
        expected,
        "d.test is not named by the page"
    );
}

#[test]
fn link_field_names_resources_of_known_hosts() {
    let page = html("").with("link", "<http://b.test/b.png>; rel=preload; as=image");
    let mut pair = Pair::new(&[(PAGE, page)]);
    let mut needs = Needs::default();
    needs.asked_hosts = vec!["b.test"];
    pair.predictor = Some(needs);
    assert_eq!(pair.load(PAGE, NAVIGATION), [PAGE, "http://b.test/b.png"]);
}

#[test]
fn requests_and_pushes_of_pages_show_the_hosts() {
    let body = "<link rel=stylesheet href=//b.test/1.css><link rel=stylesheet href=//b.test/2.css>";
    let mut pair = Pair::new(&[(PAGE, html(body)), ("http://c.test/i.png", image())]);
    pair.predictor = Some(Needs::default());
    pair.load(PAGE, NAVIGATION);
    pair.report(Fate::Used, "http://b.test/1.css");
    pair.report(Fate::Wasted, "http://b.test/2.css");
    let referer = ("referer", PAGE);
    pair.load("http://c.test/link", &[NAVIGATION, &[referer]].concat());
    let prefetch = [referer, ("purpose", "prefetch"), ("accept", "*/*")];
    pair.load("http://c.test/later", &prefetch);
    pair.load("http://c.test/i.png", &[referer, ("accept", "image/*")]);
    let asked = pair.predictor.unwrap().asked;
    let expected = [
        "http://a.test/page > http://b.test/1.css true",
        "http://a.test/page > http://b.test/2.css false",
        "http://a.test/page > http://c.test/i.png true",
    ];
    assert_eq!(asked, expected);
}

#[test]
fn hosts_of_a_public_suffix_are_foreign() {
    let body = "<img src=http://b.github.io/x.png><img src=http://i.a.github.io/y.png>";
    let mut pair = Pair::new(&[("http://a.github.io/page", html(body))]);
    let asked = pair.load("http://a.github.io/page", NAVIGATION);
    assert_eq!(
        asked,
        ["http://a.github.io/page", "http://i.a.github.io/y.png"]
    );
}

#[test]
fn lazy_images_are_pushed_up_to_a_number() {
    let images = (0..100).map(|number| format!("<img loading=lazy src=/{number:02}.png>"));
    let body: String = images.chain(["<img src=/seen.png>".to_owned()]).collect();
    let mut pair = Pair::new(&[("http://a.test/page", html(&body))]);
    let asked = pair.load("http://a.test/page", NAVIGATION);
    let lazy = (0..16).map(|number| format!("http://a.test/{number:02}.png"));
    let mut expected: Vec<String> = lazy.collect();
    expected.extend(["page", "seen.png"].map(|name| format!("http://a.test/{name}")));
    assert_eq!(asked, expected);
}

#[test]
fn poisoned_page_costs_bounded_work() {
    let mut body = "<meta http-equiv=refresh content='0;url=/page'><img src=/page>\
                    <iframe src=/loop></iframe><img src=http://10.0.0.1/secret>\
                    <img src=http://169.254.169.254/latest><img src=http://[::1]:22/>"
        .to_owned();
    body.extend((0..100_000).map(|number| format!("<img src=/i{number}>")));
    let mut pair = Pair::new(&[
        ("http://a.test/page", html(&body)),
        ("http://a.test/loop", redirect("/loop")),
    ]);
    let asked = pair.load("http://a.test/page", NAVIGATION);
    assert!((1000..=2049).contains(&asked.len()), "{}", asked.len());
    for once in ["http://a.test/page", "http://a.test/loop"] {
        assert_eq!(asked.iter().filter(|url| *url == once).count(), 1, "{once}");
    }
    let is_foreign = |url: &String| !url.starts_with("http://a.test/");
    assert!(!asked.iter().any(is_foreign), "{asked:?}");
    assert_eq!(
        pair.load("http://a.test/other", &[]),
        ["http://a.test/other"],
        "the session goes on"
    );
}

#[test]
fn records_end_with_their_responses() {
    let body = "<img src=/own.png><img src=http://b.test/x.png><img src=http://c.test/y.png>";
    let mut pair = Pair::new(&[("http://a.test/page", html(body))]);
    for _ in 0..5 {
        pair.load("http://a.test/page", NAVIGATION);
        pair.report(Fate::Used, "http://a.test/own.png");
        pair.load("http://b.test/x.png", &[]);
    }
    let [answers, pages, fetches] = pair.gateway.records();
    assert_eq!((answers, fetches), (0, 0));
    assert!(pages <= 1, "only the last page waits for a host");
    pair.gateway.close();
    assert_eq!(pair.gateway.records(), [0, 0, 0]);
}
