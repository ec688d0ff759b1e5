//! Scenes of redirects: only a target of the same origin is requested before the browser asks.

use tandem_push::gateway::{Audience, Carrier, Config};

use crate::origin::redirect;
use crate::pair::Pair;
use crate::scene::Scene;
use crate::{NAVIGATION, html, image};

/// An identity provider sends the browser back to the application with a code that is good for one
/// request. The application compares the code with its own cookie, which the gateway does not know.
#[test]
fn target_of_another_origin_is_left_to_the_browser() {
    for (target, is_followed) in [
        ("http://a.test/callback?code=1&state=2", true),
        ("http://app.a.test/callback?code=1&state=2", false),
        ("http://a.test:81/callback?code=1&state=2", false),
        ("http://b.test/callback?code=1&state=2", false),
    ] {
        let mut pair = Pair::new(&[
            ("http://a.test/login", redirect(target)),
            (target, html("welcome")),
        ]);
        // The client has requested something from each host.
        for host in ["a.test", "app.a.test", "a.test:81", "b.test"] {
            pair.begin_visit(host);
        }
        let asked = pair.load("http://a.test/login", NAVIGATION);
        let is_asked = asked.contains(&target.to_owned());
        assert_eq!(is_asked, is_followed, "{target}");
        let own = pair.load(target, NAVIGATION);
        assert!(is_followed || own == [target], "the browser's own request");
    }
}

#[test]
fn resource_of_another_origin_is_left_to_the_browser() {
    let mut pair = Pair::new(&[
        (
            "http://a.test/page",
            html("<img src=/a.png><img src=/b.png>"),
        ),
        ("http://a.test/a.png", redirect("/c.png")),
        ("http://a.test/b.png", redirect("http://i.a.test/d.png")),
        ("http://a.test/c.png", redirect("http://i.a.test/e.png")),
        ("http://i.a.test/d.png", image()),
        ("http://i.a.test/e.png", image()),
    ]);
    let asked = pair.load("http://a.test/page", NAVIGATION);
    let names = ["a.png", "b.png", "c.png", "page"];
    assert_eq!(asked, names.map(|name| format!("http://a.test/{name}")));
}

#[test]
fn refresh_is_followed_within_its_origin() {
    for (content, is_followed) in [
        ("0; url=/next", true),
        ("1; url=http://a.test/next", true),
        ("3; url=/next", true),
        ("0; url=http://app.a.test/next", false),
        ("3; url=http://app.a.test/next", false),
    ] {
        for audience in [Audience::Shared, Audience::OneUser] {
            let mut scene = Scene::new(Config {
                audience,
                ..Config::default()
            });
            let refresh = format!("<meta http-equiv=refresh content='{content}'><img src=/a.png>");
            let page = scene.page(&refresh);
            let expected = match is_followed && audience == Audience::Shared {
                true => vec!["/a.png", "/next"],
                false => vec!["/a.png"],
            };
            let mut paths = scene.paths(Carrier::Response(page));
            paths.sort();
            assert_eq!(paths, expected, "{content} {audience:?}");
        }
    }
}

/// A frame is no redirect, whatever its origin.
#[test]
fn frame_of_another_origin_is_requested() {
    let mut scene = Scene::new(Config::default());
    let page = scene.page("<iframe src=http://app.a.test/frame></iframe>");
    assert_eq!(scene.paths(Carrier::Response(page)), ["/frame"]);
}

/// The browser may never request a lazy frame, as its user may never come near it.
#[test]
fn foreign_lazy_frame_is_left_to_the_browser() {
    for (host, expected) in [("a.test", vec!["/frame"]), ("app.a.test", vec![])] {
        let mut scene = Scene::new(Config::default());
        let frame = format!("<iframe loading=lazy src=http://{host}/frame></iframe>");
        let page = scene.page(&frame);
        assert_eq!(scene.paths(Carrier::Response(page)), expected, "{host}");
    }
}

#[test]
fn at_most_20_redirects_in_a_row_are_followed() {
    let urls: Vec<String> = (0..40)
        .flat_map(|at| {
            [
                format!("http://a.test/r{at}"),
                format!("http://a.test/i{at}"),
            ]
        })
        .collect();
    let mut pages = vec![("http://a.test/page", html("<img src=/i0><img src=/c.png>"))];
    for at in 0..39 {
        pages.push((&urls[2 * at], redirect(&urls[2 * at + 2])));
        pages.push((&urls[2 * at + 1], redirect(&urls[2 * at + 3])));
    }
    pages.push(("http://a.test/c.png", image()));
    let mut pair = Pair::new(&pages);
    let asked = pair.load("http://a.test/r0", NAVIGATION);
    assert_eq!(asked.len(), 1 + 20, "{asked:?}");
    let asked = pair.load("http://a.test/page", NAVIGATION);
    assert_eq!(asked.len(), 3 + 20, "{asked:?}");
}
