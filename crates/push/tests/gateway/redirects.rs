//! Scenes of redirects: only a target of the same origin is requested before the browser asks.

use tandem_push::gateway::{Audience, Config, PromiseStream};

use crate::both::{PROMISES, ask, field};
use crate::origin::{Page, page, redirect};
use crate::pair::{Asked, Pair};
use crate::scene::{self, Scene};
use crate::{NAVIGATION, asked_of, html, image};

/// Returns the `Referer` of the request for a URL.
fn referrer(asked: &[Asked], url: &str) -> Option<String> {
    asked_of(asked, url).field("referer")
}

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
            let mut paths = scene.paths(PromiseStream::Response(page));
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
    assert_eq!(scene.paths(PromiseStream::Response(page)), ["/frame"]);
}

/// The browser may never request a lazy frame, as its user may never come near it.
#[test]
fn foreign_lazy_frame_is_left_to_the_browser() {
    for (host, expected) in [("a.test", vec!["/frame"]), ("app.a.test", vec![])] {
        let mut scene = Scene::new(Config::default());
        let frame = format!("<iframe loading=lazy src=http://{host}/frame></iframe>");
        let page = scene.page(&frame);
        assert_eq!(
            scene.paths(PromiseStream::Response(page)),
            expected,
            "{host}"
        );
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

/// Returns the URL and the cookie of each request after that of `/check/go`, which is redirected
/// with these `Set-Cookie` fields. The user has come from a page of another site.
fn asked_after(
    cookies: &[&str],
    target: &str,
    fields: &[(&str, &str)],
) -> Vec<(String, Option<String>)> {
    let set = |page: Page, cookie: &&str| page.with("set-cookie", cookie);
    let first = cookies.iter().fold(redirect(target), set);
    let body = page("text/html", "<img src=/a.png>").with("set-cookie", "own=2; Path=/");
    let mut pair = Pair::new(&[
        ("http://b.test/page", page("text/html", "")),
        ("http://a.test/check/go", first),
        ("http://a.test/check/new", body),
        ("http://a.test/a.png", image()),
    ]);
    pair.load("http://b.test/page", NAVIGATION);
    pair.send("http://a.test/check/go", fields);
    pair.run();
    let asked = pair.take_asked().into_iter().skip(1);
    asked
        .map(|asked| (asked.url.clone(), asked.field("cookie")))
        .collect()
}

/// The browser may send a cookie to another directory that the request of this one did not have. A
/// query may be good for one request, and the browser may refuse a new cookie.
#[test]
fn redirect_with_cookies_stays_in_its_directory() {
    let (old, both) = (("cookie", "id=0"), ("cookie", "id=0; b=0"));
    for (cookies, target, known, is_followed) in [
        (&["id=1; Path=/"][..], "/check/new", None, true),
        (&["id=1; Path=/"], "/check/deep/new", None, false),
        (&["id=1; Path=/"], "/new", None, false),
        (&["id=1; Path=/"], "/", None, false),
        (&["id=1; Path=/"], "/check/new?once", None, false),
        (&["id=1; Path=/"], "/check/new?once", Some(old), true),
        (&["id=0; Path=/"], "/check/new?once", Some(old), true),
        (&["id=1", "b=1"], "/check/new?once", Some(old), false),
        (&["id=1", "b=1"], "/check/new?once", Some(both), true),
        (&["id=1", "b=1"], "/check/new", Some(old), true),
        (&["id=1; Path=/"], "/check/go?once", None, false),
        (&["id=1; Path=/"], "/check/go?once", Some(old), true),
        (&[], "/new?once", None, true),
    ] {
        let fields: Vec<_> = NAVIGATION.iter().copied().chain(known).collect();
        let asked = asked_after(cookies, target, &fields);
        assert_eq!(!asked.is_empty(), is_followed, "{cookies:?} {target}");
    }
}

/// Many sites set a cookie by a redirect within the origin, to see whether the browser returns it.
#[test]
fn redirect_with_known_cookies_is_followed_with_them() {
    let fields = [NAVIGATION[0], ("cookie", "old=0")];
    for (cookies, expected) in [
        (&["id=1; Path=/"][..], Some("old=0; id=1")),
        (&["id=1"], Some("id=1; old=0")),
        (&["id=1; Path=/check"], Some("id=1; old=0")),
        (&["id=1; SameSite=Lax; Path=/"], Some("old=0; id=1")),
        (&["old=; Max-Age=0"], None),
        (&["old=0"], Some("old=0")),
    ] {
        let asked = asked_after(cookies, "/check/new", &fields);
        let expected = expected.map(str::to_owned);
        let target = ("http://a.test/check/new".to_owned(), expected);
        assert_eq!(asked, [target], "{cookies:?}");
    }
}

#[test]
fn resource_behind_a_redirect_has_the_cookies_of_both() {
    let asked = asked_after(&["id=1; Path=/"], "/check/new", NAVIGATION);
    let cookies: Vec<_> = asked.iter().map(|(_, cookie)| cookie.as_deref()).collect();
    assert_eq!(cookies, [Some("id=1"), Some("id=1; own=2")]);
}

#[test]
fn redirect_with_doubtful_cookies_is_left() {
    let frame = [NAVIGATION[0], ("referer", "http://b.test/page")];
    for (cookie, fields) in [
        ("id=1; SameSite=Strict", NAVIGATION),
        ("id=1; expires=soon", NAVIGATION),
        // An image may be of any site.
        ("id=1", &[("accept", "image/*")]),
        ("id=1", &frame),
    ] {
        let target = "/check/new";
        assert_eq!(asked_after(&[cookie], target, fields), [], "{cookie}");
        let asked = asked_after(&[], target, fields);
        assert!(!asked.is_empty(), "{fields:?} without a cookie");
    }
}

/// A browser that refuses cookies would ask the target again, and each check costs it two requests.
#[test]
fn redirect_with_refused_cookies_is_left() {
    let go = |number| format!("http://a.test/go{number}");
    let urls = [go(0), go(1), go(2)];
    let target = |at| format!("/new{at}");
    let mut pages: Vec<_> = (0..3)
        .map(|at| {
            (
                urls[at].as_str(),
                redirect(&target(at)).with("set-cookie", "id=1"),
            )
        })
        .collect();
    let news = [0, 1, 2].map(|at| format!("http://a.test/new{at}"));
    pages.extend(news.iter().map(|url| (url.as_str(), page("text/html", ""))));
    let mut pair = Pair::new(&pages);
    let returned = [NAVIGATION[0], ("cookie", "id=1")];
    for (at, fields, is_followed) in [
        (0, NAVIGATION, true),
        (1, NAVIGATION, false),
        (2, &returned, true),
    ] {
        let asked = pair.load(&urls[at], fields);
        assert_eq!(asked.len(), 1 + usize::from(is_followed), "{at}");
    }
}

/// The browser returns the new cookie with its request for the target.
#[test]
fn target_of_a_redirect_with_cookies_is_pushed() {
    let pages = [
        (
            "http://a.test/go",
            redirect("/new").with("set-cookie", "id=1"),
        ),
        ("http://a.test/new", page("text/html", "")),
    ];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.get("http://a.test/go", NAVIGATION);
    let fields = [NAVIGATION[0], ("cookie", "id=1")];
    let (reply, asked) = pair.get("http://a.test/new", &fields);
    assert!(reply.is_pushed && asked.is_empty());
}

/// Origins answer a link of their own pages in another way than one from elsewhere.
#[test]
fn target_has_the_referrer_of_the_redirected_request() {
    let link = ("accept", "text/html");
    let script = ("accept", "application/json");
    let (own, other) = ("http://a.test/suite", "http://b.test/page?q");
    for (kind, named, policy, expected) in [
        (link, Some(own), None, Some(own)),
        (script, Some(own), None, Some(own)),
        (link, Some("http://b.test/"), None, Some("http://b.test/")),
        // The policy of the page was `unsafe-url`.
        (link, Some(other), None, Some(other)),
        (link, None, None, None),
        (link, Some(own), Some("origin"), Some("http://a.test/")),
        (link, Some(other), Some("no-referrer"), None),
        (link, None, Some("unsafe-url"), None),
    ] {
        let mut first = redirect("/middle");
        if let Some(policy) = policy {
            first = first.with("referrer-policy", policy);
        }
        let mut pair = Pair::new(&[
            ("http://a.test/old", first),
            ("http://a.test/middle", redirect("/new")),
            ("http://a.test/new", page("text/plain", "x")),
        ]);
        let named = named.map(|named| ("referer", named));
        let fields: Vec<_> = named.into_iter().chain([kind]).collect();
        pair.send("http://a.test/old", &fields);
        pair.run();
        let asked = pair.take_asked();
        for url in ["http://a.test/middle", "http://a.test/new"] {
            assert_eq!(referrer(&asked, url).as_deref(), expected, "{fields:?}");
        }
    }
}

/// The browser repeats such a field, so a request without it would only spend the URL.
#[test]
fn redirect_of_an_unrepeatable_request_is_left() {
    for (field, is_followed) in [
        ("x-custom", false),
        ("x-requested-with", false),
        ("origin", false),
        ("sec-ch-ua-platform-version", false),
        ("dnt", true),
        ("sec-ch-ua-platform", true),
        ("upgrade-insecure-requests", true),
    ] {
        let target = ("http://a.test/once", page("text/plain", "x"));
        let mut pair = Pair::new(&[("http://a.test/go", redirect("/once")), target]);
        pair.send("http://a.test/go", &[("accept", "*/*"), (field, "1")]);
        pair.run();
        let asked = pair.take_asked().len();
        assert_eq!(asked, 1 + usize::from(is_followed), "{field}");
    }
}

/// `Sec-Fetch-Storage-Access` does not come from a script. The client compares it if `Vary` names
/// it.
#[test]
fn redirect_with_storage_access_is_followed() {
    let target = ("http://a.test/once", page("text/plain", "x"));
    let mut pair = Pair::new(&[("http://a.test/go", redirect("/once")), target]);
    let fields = [
        ("accept", "*/*"),
        ("sec-fetch-dest", "image"),
        ("sec-fetch-mode", "no-cors"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-storage-access", "active"),
    ];
    assert_eq!(pair.load("http://a.test/go", &fields).len(), 2);
}

/// Beyond a redirect, a resource has the referrer of its style sheet or element, and a style sheet
/// has its own URL for its images.
#[test]
fn resource_beyond_a_redirect_keeps_its_referrer() {
    let sheet = page("text/css", "p { background: url(/b.png) }");
    let body = "<link rel=stylesheet href=/old.css><img src=/d.png referrerpolicy=origin>\
                <iframe src=/frame referrerpolicy=no-referrer></iframe>";
    let mut pair = Pair::new(&[
        ("http://a.test/page", html(body)),
        ("http://a.test/old.css", redirect("/css/new.css")),
        ("http://a.test/css/new.css", sheet),
        ("http://a.test/b.png", redirect("/c.png")),
        ("http://a.test/c.png", image()),
        ("http://a.test/d.png", redirect("/e.png")),
        ("http://a.test/e.png", image()),
        ("http://a.test/frame", redirect("/framed")),
        ("http://a.test/framed", page("text/html", "")),
    ]);
    pair.send("http://a.test/page", NAVIGATION);
    pair.run();
    let asked = pair.take_asked();
    for (path, expected) in [
        ("/css/new.css", Some("http://a.test/page")),
        ("/b.png", Some("http://a.test/css/new.css")),
        ("/c.png", Some("http://a.test/css/new.css")),
        ("/e.png", Some("http://a.test/")),
        ("/framed", None),
    ] {
        let url = format!("http://a.test{path}");
        assert_eq!(referrer(&asked, &url).as_deref(), expected, "{path}");
    }
}

#[test]
fn redirect_of_unknown_referrer_is_left_to_browsers() {
    for (referrer, policy, is_followed) in [
        ("https://b.test/", "origin", false),
        ("http://b.test/", "origin", true),
        ("android-app://b.test/", "", false),
    ] {
        let first = redirect("/new").with("referrer-policy", policy);
        let mut pair = Pair::new(&[
            ("http://a.test/old", first),
            ("http://a.test/new", html("")),
        ]);
        let fields = [NAVIGATION[0], ("referer", referrer)];
        let asked = pair.load("http://a.test/old", &fields);
        assert_eq!(asked.len(), 1 + usize::from(is_followed), "{referrer}");
    }
}

/// The gateway forgets the requests of its pushes when one with an unsafe method changes the site.
#[test]
fn redirect_after_a_change_is_left_to_the_browser() {
    for is_changed in [false, true] {
        let mut scene = Scene::new(Config::default());
        let page = scene.page("<img src=/a.png>");
        let fetch = scene.promises(PromiseStream::Response(page))[0];
        if is_changed {
            scene.gateway.handle_unsafe_request();
        }
        let mut head = scene::head(302, &[("location", "/b.png")]);
        let now = scene.now;
        let passed = scene.gateway.handle_fetch_head(now, fetch, &mut head, None);
        assert!(passed.is_ok());
        let expected = if is_changed { vec![] } else { vec!["/b.png"] };
        assert_eq!(scene.paths(PromiseStream::Response(page)), expected);
    }
}

/// The cache mode of a reload outlasts redirects, and a stored response of the gateway serves no
/// such request.
#[test]
fn target_has_the_demand_of_a_reload() {
    const DEMAND: (&str, &str) = ("cache-control", "max-age=0");
    const METADATA: &[(&str, &str)] = &[
        NAVIGATION[0],
        ("sec-fetch-dest", "document"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-site", "none"),
    ];
    for has_own_fields in PROMISES {
        for navigation in [NAVIGATION, METADATA] {
            for (demand, expected) in [(None, None), (Some(DEMAND), Some("max-age=0".to_owned()))] {
                let body = "<link rel=stylesheet href=/a.css>";
                let pages = [
                    ("http://a.test/old", redirect("/middle")),
                    ("http://a.test/middle", redirect("/new")),
                    ("http://a.test/new", html(body)),
                    ("http://a.test/a.css", page("text/css", "")),
                ];
                let mut pair = Pair::new(&pages).with_client(has_own_fields);
                let fields: Vec<_> = navigation.iter().copied().chain(demand).collect();
                let asked = ask(&mut pair, "http://a.test/old", &fields);
                for url in ["http://a.test/middle", "http://a.test/new"] {
                    assert_eq!(field(&asked, url, "cache-control"), expected, "{url}");
                }
                let part = field(&asked, "http://a.test/a.css", "cache-control");
                assert_eq!(part, None, "a part is no target");
            }
        }
    }
}

/// The cache of the site has answered the request with the demand.
#[test]
fn pushed_target_serves_a_reload() {
    let fields = [NAVIGATION[0], ("cache-control", "max-age=0")];
    let stored = html("").with("cache-control", "max-age=60");
    let pages = [
        ("http://a.test/old", redirect("/new")),
        ("http://a.test/new", stored.with("age", "20")),
    ];
    let mut pair = Pair::new(&pages).with_client(true);
    pair.get("http://a.test/old", &fields);
    let (reply, asked) = pair.get("http://a.test/new", &fields);
    assert!(reply.is_pushed && asked.is_empty(), "{asked:?}");
}

/// A script or a browser may request the URL without a redirect as well.
#[test]
fn push_without_referrer_serves_no_page_of_its_origin() {
    let url = "http://a.test/new";
    for has_own_fields in PROMISES {
        for (named, is_pushed) in [(None, true), (Some("http://a.test/page"), false)] {
            let pages = [("http://a.test/old", redirect("/new")), (url, html(""))];
            let mut pair = Pair::new(&pages).with_client(has_own_fields);
            pair.get("http://a.test/old", NAVIGATION);
            let named = named.map(|named| ("referer", named));
            let fields: Vec<_> = named.into_iter().chain([NAVIGATION[0]]).collect();
            assert_eq!(pair.get(url, &fields).0.is_pushed, is_pushed, "{named:?}");
        }
        // The request of a link is redirected, and the browser repeats its referrer.
        let pages = [("http://a.test/old", redirect("/new")), (url, html(""))];
        let mut pair = Pair::new(&pages).with_client(has_own_fields);
        let link = [NAVIGATION[0], ("referer", "http://a.test/page")];
        pair.get("http://a.test/old", &link);
        assert!(pair.get(url, &link).0.is_pushed);
    }
}
