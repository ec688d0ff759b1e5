//! Scenes of the gateway's half: pages, the requests that origins receive, and the order of
//! messages at the client, over an emulated link in virtual time.

mod both;
mod client;
mod copies;
mod events;
mod machine;
mod pair;
mod returning;

use pair::{Asked, Pair, page, redirect, request};
use tandem_push::gateway::{Carrier, Config, Output};
use tandem_push::wire::Fate;

const NAVIGATION: &[(&str, &str)] = &[("accept", "text/html")];

const FRESH: &str = "max-age=600";

/// A page that shows a first visit: it gives the browser its first cookie.
fn html(body: &str) -> pair::Page {
    page("text/html", body).with("set-cookie", "first=1")
}

/// A page that shows a first visit by its validator.
fn known(body: &str) -> pair::Page {
    page("text/html", body).with("etag", "\"1\"")
}

fn image() -> pair::Page {
    page("image/png", "x")
}

fn fresh_image() -> pair::Page {
    image().with("cache-control", FRESH)
}

fn asked_of<'a>(asked: &'a [Asked], url: &str) -> &'a Asked {
    let found = asked.iter().find(|asked| asked.url == url);
    found.unwrap_or_else(|| panic!("{url} was not requested"))
}

#[test]
fn page_and_style_sheets_are_pushed_whole() {
    let page_body = "<link rel=stylesheet href=a.css><script src=/b.js></script><img src=c.png>";
    let mut pair = Pair::new(&[
        ("http://a.test/page", html(page_body)),
        (
            "http://a.test/a.css",
            page("text/css", "@import 'd.css'; p { background: url(e.png) }"),
        ),
        (
            "http://a.test/d.css",
            page("text/css", "i { background: url(f.png) }"),
        ),
    ]);
    let asked = pair.load("http://a.test/page", NAVIGATION);
    let names = ["a.css", "b.js", "c.png", "d.css", "e.png", "f.png", "page"];
    assert_eq!(asked, names.map(|name| format!("http://a.test/{name}")));
    assert_eq!(pair.treatment.as_deref(), Some("pushed"));
    for (promise, mention) in [("a.css", "page"), ("d.css", "a.css"), ("f.png", "d.css")] {
        let at = |text: String| pair.received.iter().position(|message| *message == text);
        let promised = at(format!("promise http://a.test/{promise}"));
        let mentioned = at(format!("data http://a.test/{mention}"));
        assert!(promised.is_some() && promised < mentioned, "{promise}");
    }
    for name in &names[..6] {
        pair.report(Fate::Used, &format!("http://a.test/{name}"));
    }
    pair.run();
    assert_eq!(pair.gateway.take_counts().used, 6);
    assert_eq!(pair.gateway.unreported(), 0);
    let again = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(again.len(), 7, "no answer may be used again");
    assert_eq!(pair.gateway.records()[0], 0, "no answer is left");
}

#[test]
fn head_names_resources() {
    let mut pair = Pair::new(&[(
        "http://a.test/page",
        page("text/plain", "page")
            .with("link", "</a.css>; rel=preload; as=style")
            .with("x-associated-content", "\"/b.js\":2"),
    )]);
    let asked = pair.load("http://a.test/page", &[]);
    let names = ["a.css", "b.js", "page"];
    assert_eq!(asked, names.map(|name| format!("http://a.test/{name}")));
}

#[test]
fn fresh_answers_are_not_sent_again() {
    let mut pair = Pair::new(&[
        ("http://a.test/page", html("<img src=c.png><img src=d.png>")),
        ("http://a.test/c.png", fresh_image()),
        ("http://a.test/d.png", image().with("expires", "0")),
    ]);
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 3);
    for image in ["c", "d"] {
        pair.report(Fate::Used, &format!("http://a.test/{image}.png"));
    }
    pair.run();
    let again = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(again, ["http://a.test/d.png", "http://a.test/page"]);
}

#[test]
fn unreported_push_is_not_sent_again() {
    let mut pair = Pair::new(&[("http://a.test/page", html("<img src=c.png>"))]);
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 2);
    let again = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(again, ["http://a.test/page"]);
}

#[test]
fn lost_cache_is_filled_again() {
    let mut pair = Pair::new(&[
        (
            "http://a.test/page",
            html("<img src=c.png><img src=d.png>").with("etag", "\"1\""),
        ),
        (
            "http://a.test/dynamic",
            html("<img src=c.png><img src=d.png>"),
        ),
        ("http://a.test/c.png", fresh_image()),
        ("http://a.test/d.png", fresh_image()),
    ]);
    let take = |pair: &mut Pair| {
        for image in ["c", "d"] {
            pair.report(Fate::Used, &format!("http://a.test/{image}.png"));
        }
        pair.run();
    };
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 3);
    take(&mut pair);
    let condition = [("accept", "text/html"), ("if-none-match", "\"0\"")];
    let checked = pair.load("http://a.test/page", &condition);
    assert_eq!(
        checked,
        ["http://a.test/page"],
        "a validation shows a cache"
    );
    let plain = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(
        plain.len(),
        3,
        "a plain request for a stored page shows none"
    );
    take(&mut pair);
    let dynamic = pair.load("http://a.test/dynamic", NAVIGATION);
    assert_eq!(dynamic, ["http://a.test/dynamic"]);
    let lost = pair.load("http://a.test/c.png", &[]);
    assert_eq!(
        lost,
        ["http://a.test/c.png", "http://a.test/d.png"],
        "the page's other image follows"
    );
}

#[test]
fn refused_push_shows_no_lost_cache() {
    let mut pair = Pair::new(&[
        ("http://a.test/page", html("<img src=c.png><img src=d.png>")),
        ("http://a.test/c.png", fresh_image()),
        ("http://a.test/d.png", fresh_image()),
    ]);
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 3);
    pair.report(Fate::Wasted, "http://a.test/c.png");
    pair.report(Fate::Used, "http://a.test/d.png");
    pair.run();
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 1);
    assert_eq!(
        pair.load("http://a.test/c.png", &[]),
        ["http://a.test/c.png"]
    );
}

#[test]
fn digest_of_earlier_sessions_spares_pushes() {
    let mut pair = Pair::new(&[("http://a.test/page", html("<img src=c.png><img src=d.png>"))]);
    pair.hold("http://a.test/c.png");
    pair.run();
    let asked = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(asked, ["http://a.test/d.png", "http://a.test/page"]);
}

#[test]
fn needs_of_the_last_visit_are_promised_with_the_page() {
    let config = Config {
        has_one_user: true,
        ..Config::default()
    };
    let mut pair = Pair::with(
        config,
        &[
            (
                "http://a.test/page",
                known("<img src=used.png><img src=not.png>"),
            ),
            ("http://a.test/used.png", image()),
        ],
    );
    let first = [
        "http://a.test/not.png",
        "http://a.test/page",
        "http://a.test/used.png",
    ];
    assert_eq!(pair.load("http://a.test/page", NAVIGATION), first);
    pair.report(Fate::Used, "http://a.test/used.png");
    pair.report(Fate::Wasted, "http://a.test/not.png");
    pair.run();
    let id = pair.gateway.handle_request(
        pair.time(),
        &request("http://a.test/page", NAVIGATION).into(),
        true,
    );
    let id = id.expect("a page");
    assert!(pair.gateway.interest_in(id).promises);
    let promise = pair
        .gateway
        .take_promise(Carrier::Answer(id))
        .expect("a promise");
    assert_eq!(promise.request.path, "/used.png");
    assert!(pair.gateway.take_promise(Carrier::Answer(id)).is_none());
    // Another answer than the page gives the fetch up.
    let mut head = tandem_http::ResponseHead::new(404);
    pair.gateway.handle_head(pair.time(), id, &mut head, None);
    pair.gateway.queue_fetch(pair.time(), promise.fetch);
    let cancelled = std::iter::from_fn(|| pair.gateway.poll_output());
    let cancel = Output::Cancel {
        fetch: promise.fetch,
    };
    assert!(cancelled.into_iter().any(|output| output == cancel));
    pair.gateway.release_fetch(pair.time(), promise.fetch);
    pair.gateway.handle_end(id, true, None);
    pair.gateway.release_answer(pair.time(), id);
    assert_eq!(pair.gateway.records(), [0, 0, 0]);
}

fn images(count: usize) -> String {
    let images = (0..count).map(|number| format!("<img src={number}.png>"));
    images.collect()
}

fn one_user(fetches: usize) -> Config {
    Config {
        has_one_user: true,
        fetches,
        ..Config::default()
    }
}

#[test]
fn early_requests_carry_the_cookies_of_the_page() {
    let body = "<img src=own.png><img src=//i.a.test/far.png>";
    let mut pair = Pair::with(one_user(9), &[("http://a.test/page", html(body))]);
    let mut cookies = |sent: Option<&str>| {
        let cookie = sent.map(|cookie| ("cookie", cookie));
        let fields: Vec<_> = NAVIGATION.iter().copied().chain(cookie).collect();
        pair.send("http://a.test/page", &fields);
        pair.run();
        let asked = pair.take_asked();
        pair.report(Fate::Wasted, "http://a.test/own.png");
        asked_of(&asked, "http://a.test/own.png").field("cookie")
    };
    assert_eq!(cookies(None).as_deref(), Some("first=1"));
    assert_eq!(cookies(None), None, "the browser did not return the cookie");
    let other = cookies(Some("x=y; first=0"));
    assert_eq!(other.as_deref(), Some("x=y; first=1"));
}

#[test]
fn page_with_unknown_cookies_is_left_alone() {
    let body = "<img src=c.png>";
    let mut secure = html(body);
    secure.fields[1].1 = "first=1; Secure".to_owned();
    let mut pair = Pair::with(
        one_user(9),
        &[
            ("http://a.test/page", secure.clone()),
            ("http://a.test/old", redirect("/page")),
        ],
    );
    assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 1);
    let moved = pair.load("http://a.test/old", NAVIGATION);
    assert_eq!(moved, ["http://a.test/old", "http://a.test/page"]);
    let mut pair = Pair::new(&[("http://a.test/page", secure)]);
    assert_eq!(
        pair.load("http://a.test/page", NAVIGATION).len(),
        2,
        "a pair"
    );
}

#[test]
fn revisit_waits_for_the_cookies_of_the_page() {
    let body = "<img src=c.png>";
    let mut pair = Pair::with(one_user(9), &[("http://a.test/page", html(body))]);
    for cookie in [("cookie", "first=0"), ("cookie", "first=0")] {
        let fields: Vec<_> = NAVIGATION.iter().copied().chain([cookie]).collect();
        pair.load("http://a.test/page", &fields);
        pair.report(Fate::Used, "http://a.test/c.png");
        pair.run();
        let again = request("http://a.test/page", &fields).into();
        let id = pair.gateway.handle_request(pair.time(), &again, true);
        let id = id.expect("a page");
        assert!(!pair.gateway.interest_in(id).promises);
        pair.gateway.handle_end(id, false, None);
        pair.gateway.release_answer(pair.time(), id);
    }
}

#[test]
fn only_documents_are_revisited() {
    let mut pair = Pair::with(
        one_user(9),
        &[
            ("http://a.test/", redirect("/home")),
            ("http://a.test/home", known("<img src=c.png>")),
            (
                "http://a.test/s.css",
                page("text/css", "i { background: url(d.png) }"),
            ),
        ],
    );
    let part = [("accept", "text/css"), ("referer", "http://a.test/home")];
    for (url, fields) in [
        ("http://a.test/", NAVIGATION),
        ("http://a.test/s.css", &part),
    ] {
        assert!(pair.load(url, fields).len() > 1, "{url}");
        for name in ["c.png", "d.png", "home"] {
            pair.report(Fate::Used, &format!("http://a.test/{name}"));
        }
        pair.run();
        let again = request(url, NAVIGATION).into();
        let id = pair.gateway.handle_request(pair.time(), &again, true);
        let id = id.expect("an answer");
        assert!(!pair.gateway.interest_in(id).promises, "{url}");
        pair.gateway.handle_end(id, false, None);
        pair.gateway.release_answer(pair.time(), id);
    }
}

#[test]
fn fetches_of_a_left_page_do_not_begin() {
    let first = images(100);
    let mut pair = Pair::with(
        one_user(2),
        &[
            ("http://a.test/one", html(&first)),
            ("http://a.test/two", html("<img src=98.png>")),
        ],
    );
    pair.begin_visit("a.test");
    pair.send("http://a.test/one", NAVIGATION);
    pair.run_until_asked(5);
    pair.report(Fate::Late, "http://a.test/97.png");
    let link = [
        ("accept", "text/html"),
        ("sec-fetch-dest", "document"),
        ("referer", "http://a.test/one"),
    ];
    pair.send("http://a.test/two", &link);
    pair.run();
    let asked = pair.take_asked();
    let count = |url: &str| asked.iter().filter(|asked| asked.url == url).count();
    assert!(asked.len() < 50, "{}", asked.len());
    assert_eq!(count("http://a.test/97.png"), 1, "a request waits for it");
    assert_eq!(count("http://a.test/98.png"), 1, "the new page names it");
    assert_eq!(count("http://a.test/99.png"), 0);
    assert_eq!(pair.gateway.records()[2], 0);
}

#[test]
fn arriving_page_is_not_left() {
    let mut first = html(&images(20));
    first.is_unfinished = true;
    let mut pair = Pair::with(
        one_user(1),
        &[
            ("http://a.test/one", first),
            ("http://a.test/two", html("")),
        ],
    );
    pair.begin_visit("a.test");
    pair.send("http://a.test/one", NAVIGATION);
    pair.run_until_asked(2);
    pair.send("http://a.test/two", NAVIGATION);
    pair.run();
    assert_eq!(pair.take_asked().len(), 22);
}

#[test]
fn revisited_page_adopts_waiting_fetches() {
    let mut pair = Pair::with(
        one_user(1),
        &[
            ("http://a.test/one", known("<img src=used.png>")),
            (
                "http://a.test/two",
                known(&(images(60) + "<img src=used.png>")),
            ),
            ("http://a.test/used.png", image()),
        ],
    );
    pair.load("http://a.test/one", NAVIGATION);
    pair.report(Fate::Used, "http://a.test/used.png");
    pair.run();
    pair.send("http://a.test/two", NAVIGATION);
    pair.run_until_asked(2);
    pair.send("http://a.test/one", NAVIGATION);
    pair.run();
    let asked = pair.take_asked();
    let used = "http://a.test/used.png";
    assert_eq!(asked.iter().filter(|asked| asked.url == used).count(), 1);
    assert!(asked.len() < 40, "{}", asked.len());
    assert_eq!(pair.gateway.records()[2], 0);
}

#[test]
fn page_with_too_many_hosts_gets_no_more_pushes() {
    let config = Config {
        foreign_after_request: true,
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
fn held_out_page_gets_no_pushes() {
    let config = Config {
        hold_out: 1.0,
        ..Config::default()
    };
    let pages = [
        ("http://a.test/page", html("<img src=c.png><iframe src=f>")),
        ("http://a.test/f", html("<img src=d.png>")),
    ];
    let mut pair = Pair::with(config, &pages);
    assert_eq!(
        pair.load("http://a.test/page", NAVIGATION),
        ["http://a.test/page"]
    );
    assert_eq!(pair.treatment.take().as_deref(), Some("held-out"));
    let frame = [("accept", "text/html"), ("referer", "http://a.test/page")];
    assert_eq!(pair.load("http://a.test/f", &frame), ["http://a.test/f"]);
    assert_eq!(pair.treatment, None, "a frame is no page of its own");
    assert_eq!(pair.gateway.take_counts().pages_held_out, 1);
}

#[test]
fn cookies_stay_at_the_origin_of_the_page() {
    let body = "<link rel=stylesheet href=http://b.test/far.css><img src=own.png>";
    let mut pair = Pair::new(&[("http://a.test/page", html(body))]);
    pair.begin_visit("a.test");
    pair.send(
        "http://a.test/page",
        &[("accept", "text/html"), ("cookie", "login=1")],
    );
    pair.run();
    let asked = pair.take_asked();
    let cookie = |url| asked_of(&asked, url).field("cookie");
    assert_eq!(cookie("http://a.test/own.png").as_deref(), Some("login=1"));
    assert_eq!(cookie("http://b.test/far.css"), None);
    let login = [("accept", "text/html"), ("authorization", "Basic eDp5")];
    let asked = pair.load("http://a.test/page", &login);
    assert!(
        !asked.contains(&"http://a.test/own.png".to_owned()),
        "{asked:?}"
    );
}

#[test]
fn referrer_policy_of_the_page_holds_for_pushes() {
    let body = "<link rel=stylesheet href=http://b.test/a.css><img src=/own.png>";
    let (whole, origin) = (Some("http://a.test/page"), Some("http://a.test/"));
    for (policy, own, far) in [
        (None, whole, origin),
        (Some("no-referrer"), None, None),
        (Some("same-origin"), whole, None),
        (Some("unknown, strict-origin"), origin, origin),
        (Some("unsafe-url"), whole, whole),
        // Two fields.
        (Some("no-referrer\nunsafe-url"), whole, whole),
    ] {
        let mut answer = html(body);
        for policy in policy.iter().flat_map(|policies| policies.lines()) {
            answer = answer.with("referrer-policy", policy);
        }
        let mut pair = Pair::new(&[("http://a.test/page", answer)]);
        pair.send("http://a.test/page", NAVIGATION);
        pair.run();
        let asked = pair.take_asked();
        let referrer = |url| asked_of(&asked, url).field("referer");
        assert_eq!(
            referrer("http://a.test/own.png").as_deref(),
            own,
            "{policy:?}"
        );
        assert_eq!(
            referrer("http://b.test/a.css").as_deref(),
            far,
            "{policy:?}"
        );
    }
}

#[test]
fn meta_and_element_policies_hold_for_pushes() {
    let body = "<meta name=referrer content=no-referrer><img src=a.png>\
                <img src=b.png referrerpolicy=origin>";
    let mut pair = Pair::new(&[("http://a.test/page", html(body))]);
    pair.send("http://a.test/page", NAVIGATION);
    pair.run();
    let asked = pair.take_asked();
    assert_eq!(asked.len(), 3);
    for (name, expected) in [
        ("page", None),
        ("a.png", None),
        ("b.png", Some("http://a.test/")),
    ] {
        let asked = asked_of(&asked, &format!("http://a.test/{name}"));
        assert_eq!(asked.field("referer").as_deref(), expected, "{name}");
    }
}

#[test]
fn policy_of_the_document_replaces_the_redirects() {
    for (of_redirect, of_page, meta, expected) in [
        ("unsafe-url", Some("no-referrer"), "", None),
        (
            "unsafe-url",
            None,
            "<meta name=referrer content=no-referrer>",
            None,
        ),
        (
            "no-referrer",
            Some("unsafe-url"),
            "",
            Some("http://b.test/page"),
        ),
    ] {
        let mut there = html(&format!("{meta}<img src=c.png>"));
        if let Some(policy) = of_page {
            there = there.with("referrer-policy", policy);
        }
        let here = redirect("http://b.test/page").with("referrer-policy", of_redirect);
        let mut pair = Pair::new(&[("http://a.test/", here), ("http://b.test/page", there)]);
        pair.begin_visit("a.test");
        pair.begin_visit("b.test");
        pair.send(
            "http://a.test/",
            &[("accept", "text/html"), ("cookie", "of=a")],
        );
        pair.run();
        let asked = pair.take_asked();
        // Of another host a document behind a redirect waits for the client's own request.
        pair.send("http://b.test/page", NAVIGATION);
        pair.run();
        let later = pair.take_asked();
        let all: Vec<Asked> = asked.into_iter().chain(later).collect();
        let image = asked_of(&all, "http://b.test/c.png");
        assert_eq!(image.field("referer").as_deref(), expected, "{of_redirect}");
        assert_eq!(image.field("cookie"), None);
    }
}

#[test]
fn redirects_are_followed_once() {
    let mut pair = Pair::new(&[
        ("http://a.test/old", redirect("/older")),
        ("http://a.test/older", redirect("/new")),
        ("http://a.test/new", html("<img src=c.png>")),
    ]);
    let asked = pair.load("http://a.test/old", NAVIGATION);
    let names = ["c.png", "new", "old", "older"];
    assert_eq!(asked, names.map(|name| format!("http://a.test/{name}")));
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

/// A page whose image of another site was promised, while the browser has not seen the promise.
fn with_promise_on_its_way(image: pair::Page) -> Pair {
    let body = "<img src=http://b.test/c.png><img src=http://b.test/d.png>";
    let mut pair = Pair::new(&[
        ("http://a.test/page", html(body)),
        ("http://b.test/d.png", image),
    ]);
    pair.load("http://a.test/page", NAVIGATION);
    pair.send("http://b.test/c.png", &[("referer", "http://a.test/")]);
    pair.run_until_asked(2);
    let asked: Vec<_> = pair.take_asked().into_iter().map(|it| it.url).collect();
    assert_eq!(asked, ["http://b.test/c.png", "http://b.test/d.png"]);
    pair
}

#[test]
fn request_across_a_promise_gets_its_response() {
    let referrer = [("referer", "http://a.test/")];
    let mut pair = with_promise_on_its_way(fresh_image());
    pair.received.clear();
    let none: [&str; 0] = [];
    assert_eq!(pair.load("http://b.test/d.png", &referrer), none);
    let is_data = |message: &&String| *message == "data http://b.test/d.png";
    assert_eq!(pair.received.iter().filter(is_data).count(), 2);
    assert_eq!(pair.gateway.take_counts().repeated, 1);
    for fields in [
        &[("referer", "http://a.test/"), ("cookie", "a=b")][..],
        &[("referer", "http://a.test/"), ("cache-control", "no-cache")],
        &[
            ("referer", "http://a.test/"),
            ("cache-control", "max-age=0"),
        ],
        &[("referer", "http://a.test/"), ("pragma", "no-cache")],
        &[("referer", "http://a.test/"), ("if-none-match", "\"1\"")],
        &[("referer", "http://a.test/"), ("range", "bytes=0-0")],
    ] {
        let mut pair = with_promise_on_its_way(fresh_image());
        let asked = pair.load("http://b.test/d.png", fields);
        assert_eq!(asked, ["http://b.test/d.png"], "{fields:?}");
    }
}

#[test]
fn copy_is_confirmed_across_a_promise() {
    let condition = [("referer", "http://a.test/"), ("if-none-match", "\"1\"")];
    let mut pair = with_promise_on_its_way(fresh_image().with("etag", "\"1\""));
    let none: [&str; 0] = [];
    assert_eq!(pair.load("http://b.test/d.png", &condition), none);
    assert_eq!(pair.gateway.take_counts().repeated, 1);
}

#[test]
fn response_is_repeated_for_a_short_time() {
    let referrer = [("referer", "http://a.test/")];
    let mut pair = with_promise_on_its_way(fresh_image());
    // The timer drops the response, although no event of the session follows.
    pair.run();
    assert_eq!(pair.gateway.poll_timeout(), None);
    let asked = pair.load("http://b.test/d.png", &referrer);
    assert_eq!(asked, ["http://b.test/d.png"]);
}

#[test]
fn response_is_repeated_if_caches_may_use_it() {
    let referrer = [("referer", "http://a.test/")];
    for (name, value) in [
        ("cache-control", "no-cache"),
        ("cache-control", "max-age=0"),
        ("set-cookie", "a=b"),
    ] {
        let image = match name {
            "set-cookie" => fresh_image().with(name, value),
            _ => image().with(name, value),
        };
        let mut pair = with_promise_on_its_way(image);
        let asked = pair.load("http://b.test/d.png", &referrer);
        assert_eq!(asked, ["http://b.test/d.png"], "{name}: {value}");
    }
    let mut pair = with_promise_on_its_way(fresh_image());
    pair.gateway.handle_unsafe_request();
    let asked = pair.load("http://b.test/d.png", &referrer);
    assert_eq!(asked, ["http://b.test/d.png"], "it may have changed");
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
fn answers_that_depend_on_the_user_are_reset() {
    for (name, value) in [("vary", "Cookie"), ("vary", "Accept, Authorization")] {
        let mut pair = Pair::new(&[
            ("http://a.test/page", html("<img src=c.png>")),
            ("http://a.test/c.png", image().with(name, value)),
        ]);
        assert_eq!(pair.load("http://a.test/page", NAVIGATION).len(), 2);
        let reset = "reset http://a.test/c.png".to_owned();
        assert!(pair.received.contains(&reset), "{value}");
        assert_eq!(pair.gateway.unreported(), 0, "the promise is withdrawn");
        let own = pair.load("http://a.test/c.png", &[]);
        assert_eq!(own, ["http://a.test/c.png"]);
        let again = pair.load("http://a.test/page", NAVIGATION);
        assert_eq!(again, ["http://a.test/page"], "{value}: fetched once only");
    }
}

#[test]
fn page_of_another_site_gets_its_own_push() {
    let font = "<link rel=preload as=font crossorigin href=http://f.test/f.woff2>";
    let mut pair = Pair::new(&[
        ("http://a.test/page", html(font)),
        ("http://b.test/page", html(font)),
        ("http://f.test/f.woff2", page("font/woff2", "f")),
    ]);
    for site in ["http://a.test", "http://b.test"] {
        pair.send(&format!("{site}/page"), NAVIGATION);
        pair.run();
        let asked = pair.take_asked();
        let font = asked_of(&asked, "http://f.test/f.woff2");
        assert_eq!(font.field("origin").as_deref(), Some(site));
    }
    assert_eq!(
        pair.gateway.take_counts().wasted,
        1,
        "the first is replaced"
    );
}

#[test]
fn frame_of_another_site_has_nothing_of_the_page() {
    let mut pair = Pair::new(&[
        (
            "http://a.test/page",
            html("<link rel=stylesheet href=http://b.test/s.css><iframe src=http://b.test/frame></iframe>")
                .with("referrer-policy", "no-referrer"),
        ),
        (
            "http://b.test/s.css",
            html("<meta name=referrer content=unsafe-url><img src=/leak.png><img src=http://a.test/delete>"),
        ),
        (
            "http://b.test/frame",
            html("<img src=f.png><img src=http://a.test/private>"),
        ),
    ]);
    pair.begin_visit("a.test");
    pair.send(
        "http://a.test/page",
        &[("accept", "text/html"), ("cookie", "who=anna")],
    );
    pair.run();
    // The client does not block the frame's host.
    pair.send("http://b.test/x", &[("referer", "http://a.test/page")]);
    pair.run();
    let asked = pair.take_asked();
    let urls: Vec<&str> = asked.iter().map(|asked| asked.url.as_str()).collect();
    for never in ["http://b.test/leak.png", "http://a.test/delete"] {
        assert!(
            !urls.contains(&never),
            "a style sheet that is HTML is not read"
        );
    }
    let sheet = asked_of(&asked, "http://b.test/s.css");
    assert_eq!(
        (sheet.field("cookie"), sheet.field("referer")),
        (None, None)
    );
    let page = asked_of(&asked, "http://a.test/page");
    assert_eq!(page.field("cookie").as_deref(), Some("who=anna"));
    let frame = asked_of(&asked, "http://b.test/frame");
    assert_eq!(
        (frame.field("cookie"), frame.field("referer")),
        (None, None)
    );
    let image = asked_of(&asked, "http://b.test/f.png");
    assert_eq!(image.field("cookie"), None);
    assert_eq!(
        image.field("referer").as_deref(),
        Some("http://b.test/frame")
    );
    let private = asked_of(&asked, "http://a.test/private");
    assert_eq!(private.field("cookie"), None);
    assert_eq!(private.field("referer").as_deref(), Some("http://b.test/"));
}

#[test]
fn records_do_not_outlive_their_use() {
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

#[test]
fn page_that_was_left_is_not_pushed_on() {
    let body: String = (0..600).map(|i| format!("<img src=/i{i}>")).collect();
    let mut endless = html(&body);
    endless.is_unfinished = true;
    let mut pair = Pair::new(&[("http://a.test/page", endless)]);
    pair.send("http://a.test/page", NAVIGATION);
    pair.run_until_asked(50);
    pair.leave();
    pair.run();
    let asked = pair.take_asked().len();
    assert!((50..100).contains(&asked), "{asked} requests");
}

proptest::proptest! {
    #[test]
    fn gateway_survives_events_in_any_order(
        data in proptest::collection::vec(proptest::num::u8::ANY, 0..600),
    ) {
        events::run(&data);
    }
}

/// The machine promises a HEAD in these events.
#[test]
fn gateway_survives_a_check_among_events() {
    events::run(&[
        0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 109, 0, 39, 0, 144, 216, 6, 42, 0, 29, 5, 0, 0, 20, 0, 0, 58,
        0, 10, 0, 20, 0, 0, 40, 0, 4, 0, 23, 166, 14, 0, 87, 6, 47, 21, 50, 47, 25, 0, 37, 135, 92,
        123, 126, 28, 247, 189, 97, 70, 109, 18, 111, 195, 123, 223, 191, 125, 178, 53, 139, 183,
        153, 161, 245, 98, 161, 255, 115, 147, 188, 119, 181, 35, 1, 212, 158, 126, 76, 218, 99,
        23, 197, 47, 23, 36, 64, 196, 251, 44, 152, 130, 225, 236, 180, 116, 170, 142, 87, 221,
        243, 160, 87, 136, 192, 133, 158, 220, 23, 57, 134, 15, 220, 89, 103, 228, 47, 27, 123,
        207, 21, 247, 24, 152, 150, 228, 197, 154, 122, 136, 189, 38, 207, 142, 16, 251, 180, 170,
        65, 13, 246, 22, 220, 133, 79, 113, 126, 168, 70, 22, 254, 242, 187, 206, 31, 182, 60, 83,
        83, 62, 119, 149, 229, 41, 26, 75, 210, 181, 177, 166, 14, 231, 23, 103, 82, 230, 248, 100,
        56, 31, 34, 50, 185, 211, 182, 151, 192, 114, 195, 147, 121, 48, 177, 211, 228, 241, 9,
        166, 41,
    ]);
}
