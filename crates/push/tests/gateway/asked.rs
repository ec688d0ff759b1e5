//! Scenes of the fields in the gateway's requests: cookies and referrers.

use crate::origin::{page, redirect};
use crate::pair::Pair;
use crate::{NAVIGATION, asked_of, html};

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
        // The response has the field twice.
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

/// A module inherits the policy of its document, and a style sheet does not.
#[test]
fn style_sheets_have_a_policy_of_their_own() {
    let body = "<link rel=stylesheet href=/s.css><link rel=stylesheet href=/t.css>\
                <script type=module src=/m.js></script>";
    let sheet = |image: &str| page("text/css", &format!("p {{ background: url({image}) }}"));
    let mut pair = Pair::new(&[
        (
            "http://a.test/page",
            html(body).with("referrer-policy", "no-referrer"),
        ),
        ("http://a.test/s.css", sheet("s.png")),
        (
            "http://a.test/t.css",
            sheet("t.png").with("referrer-policy", "origin"),
        ),
        (
            "http://a.test/m.js",
            page("text/javascript", "import './n.js'"),
        ),
    ]);
    pair.send("http://a.test/page", NAVIGATION);
    pair.run();
    let asked = pair.take_asked();
    for (name, expected) in [
        ("s.css", None),
        ("s.png", Some("http://a.test/s.css")),
        ("t.png", Some("http://a.test/")),
        ("n.js", None),
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
            Some("http://a.test/page"),
        ),
    ] {
        let mut there = html(&format!("{meta}<img src=c.png>"));
        if let Some(policy) = of_page {
            there = there.with("referrer-policy", policy);
        }
        let here = redirect("/page").with("referrer-policy", of_redirect);
        let mut pair = Pair::new(&[("http://a.test/", here), ("http://a.test/page", there)]);
        pair.begin_visit("a.test");
        pair.send(
            "http://a.test/",
            &[("accept", "text/html"), ("cookie", "of=a")],
        );
        pair.run();
        let asked = pair.take_asked();
        let image = asked_of(&asked, "http://a.test/c.png");
        assert_eq!(image.field("referer").as_deref(), expected, "{of_redirect}");
        assert_eq!(image.field("cookie").as_deref(), Some("of=a"));
    }
}

#[test]
fn images_are_requested_as_the_browser_did_before() {
    const SAFARI: (&str, &str) = ("user-agent", "Mozilla/5.0 Version/18.5 Safari/605.1.15");
    let accept = |pair: &mut Pair, agent| {
        pair.send("http://a.test/page", &[("accept", "text/html"), agent]);
        pair.run();
        let asked = pair.take_asked();
        asked_of(&asked, "http://a.test/i.png").field("accept")
    };
    for agent in [SAFARI, ("user-agent", "Other/1")] {
        let mut pair = Pair::new(&[("http://a.test/page", html("<img src=i.png>"))]);
        pair.begin_visit("a.test");
        let image = [SAFARI, ("accept", "image/webp,*/*")];
        pair.send("http://a.test/other.png", &image);
        pair.run();
        pair.take_asked();
        let expected = if agent == SAFARI {
            "image/webp,*/*"
        } else {
            "*/*"
        };
        assert_eq!(accept(&mut pair, agent).as_deref(), Some(expected));
    }
}
