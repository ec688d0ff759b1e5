//! Scenes of both halves: the requests that origins receive, and the responses that pushes give.
//! Most run with promises as in HTTP/2, which carry fields, and as in SPDY, which do not.

use std::time::Duration;

use tandem_http::Method;
use tandem_push::gateway::Config;

use crate::pair::{Asked, Page, Pair, page, redirect};
use crate::{FRESH, NAVIGATION, asked_of, fresh_image, html, image, known};

/// The two kinds of promises: with fields, and without.
const PROMISES: [bool; 2] = [true, false];

fn pair(has_own_fields: bool, pages: &[(&str, Page)]) -> Pair {
    Pair::new(pages).with_client(has_own_fields)
}

fn script(body: &str) -> Page {
    page("text/javascript", body)
}

/// Sends requests of the browser that pushes must answer, with no request to an origin.
fn take_pushes(pair: &mut Pair, requests: &[(&str, &[(&str, &str)])]) {
    for (url, fields) in requests {
        let (reply, asked) = pair.get(url, fields);
        assert!(reply.is_pushed, "{url}");
        assert!(asked.is_empty(), "{asked:?}");
    }
}

/// Sends a request of the browser, and returns the requests that origins received.
fn ask(pair: &mut Pair, url: &str, fields: &[(&str, &str)]) -> Vec<Asked> {
    pair.browse(Method::Get, url, fields);
    pair.take_asked()
}

fn field(asked: &[Asked], url: &str, name: &str) -> Option<String> {
    asked_of(asked, url).field(name)
}

#[test]
fn pushes_answer_one_request_each() {
    for promises in PROMISES {
        let body = "<link rel=stylesheet href=a.css><img src=c.png>";
        let mut pair = pair(
            promises,
            &[
                ("http://a.test/page", html(body)),
                (
                    "http://a.test/a.css",
                    page("text/css", "p { background: url(e.png) }"),
                ),
                ("http://a.test/c.png", page("image/png", "c")),
                ("http://a.test/e.png", page("image/png", "e")),
            ],
        );
        let (reply, asked) = pair.get("http://a.test/page", NAVIGATION);
        assert_eq!((reply.body.as_str(), reply.is_pushed), (body, false));
        assert_eq!(asked.len(), 4);
        for name in ["c", "e"] {
            let url = format!("http://a.test/{name}.png");
            let (reply, asked) = pair.get(&url, &[]);
            assert_eq!((reply.body.as_str(), asked.len()), (name, 0));
            assert_eq!(reply.head.fields.get("tandem-asked"), None);
        }
        take_pushes(&mut pair, &[("http://a.test/a.css", &[])]);
        let again = pair.get("http://a.test/c.png", &[]).1;
        assert_eq!(again, ["http://a.test/c.png"], "a push answers one request");
        assert_eq!(pair.gateway.take_counts().used, 3);
        let next = pair.get("http://a.test/page", NAVIGATION).1;
        assert_eq!(next.len(), 4, "the client cannot use them again");
    }
}

/// The time after which all messages of a load have arrived, and no held push is given up.
const LOADED: Duration = Duration::from_secs(2);

/// The time after which the promises of a page have arrived, and the heads of its pushes have not.
const PROMISED: Duration = Duration::from_millis(230);

#[test]
fn answer_without_storage_serves_a_request_that_waits() {
    let long = "x".repeat(5000);
    for (promises, body) in [(true, "x"), (false, "x"), (true, &long), (false, &long)] {
        let pixel = page("image/gif", body).with("cache-control", "no-store");
        let pixel = pixel.with("content-length", &body.len().to_string());
        let pages = [
            ("http://a.test/page", html("<img src=p.gif>")),
            ("http://a.test/p.gif", pixel),
        ];
        let mut pair = pair(promises, &pages);
        pair.browse_for(PROMISED, "http://a.test/page", NAVIGATION);
        let (reply, asked) = pair.get("http://a.test/p.gif", &[]);
        assert!(reply.is_pushed && reply.body == body);
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert_eq!(pair.gateway.take_counts().extra_requests, 0);
    }
}

#[test]
fn head_without_storage_waits_for_its_request() {
    for promises in PROMISES {
        let pixel = page("image/gif", "x").with("cache-control", "no-store");
        let pages = [
            ("http://a.test/page", html("<img src=p.gif>")),
            ("http://a.test/p.gif", pixel),
        ];
        let mut pair = pair(promises, &pages);
        pair.browse_for(Duration::from_secs(2), "http://a.test/page", NAVIGATION);
        assert_eq!(pair.take_asked().len(), 2);
        let (reply, asked) = pair.get("http://a.test/p.gif", &[]);
        assert!(reply.is_pushed && reply.body == "x");
        assert!(asked.is_empty(), "{asked:?}");
        assert_eq!(pair.gateway.take_counts().extra_requests, 0);
    }
}

/// Returns a pair with a page that names an image. The image answers with an error.
fn failing(has_own_fields: bool, has_one_user: bool, status: u16) -> Pair {
    let config = Config {
        has_one_user,
        ..Config::default()
    };
    let failed = Page {
        status,
        ..page("text/html", "sorry")
    };
    // A cookie of the page would have to come back with the image.
    let document = page("text/html", "<img src=p.png>").with("etag", "\"1\"");
    let pages = [
        ("http://a.test/page", document),
        ("http://a.test/p.png", failed),
    ];
    Pair::with(config, &pages).with_client(has_own_fields)
}

#[test]
fn error_serves_the_request_that_waits() {
    for promises in PROMISES {
        for (has_one_user, status) in [(true, 503), (true, 429), (true, 403), (false, 500)] {
            for wait in [PROMISED, LOADED] {
                let mut pair = failing(promises, has_one_user, status);
                pair.browse_for(wait, "http://a.test/page", NAVIGATION);
                let (reply, asked) = pair.get("http://a.test/p.png", &[]);
                assert!(
                    reply.is_pushed && reply.body == "sorry",
                    "{status} {wait:?}"
                );
                assert_eq!(reply.head.status, status);
                let images = asked.iter().filter(|url| url.ends_with(".png"));
                assert_eq!(images.count(), 1, "{status} {wait:?}");
                assert_eq!(pair.gateway.take_counts().extra_requests, 0);
            }
        }
    }
}

#[test]
fn error_without_a_request_is_dropped() {
    for promises in PROMISES {
        let mut pair = failing(promises, true, 503);
        pair.get("http://a.test/page", NAVIGATION);
        pair.run();
        let data = "data http://a.test/p.png".to_owned();
        assert!(!pair.received.contains(&data));
        assert_eq!(pair.gateway.records(), [0, 0, 0]);
        let (reply, asked) = pair.get("http://a.test/p.png", &[]);
        assert!(!reply.is_pushed && asked.len() == 1);
    }
}

#[test]
fn refusal_of_a_push_reaches_no_browser_of_a_gateway() {
    for promises in PROMISES {
        let mut pair = failing(promises, false, 503);
        pair.browse_for(LOADED, "http://a.test/page", NAVIGATION);
        let (reply, asked) = pair.get("http://a.test/p.png", &[]);
        assert!(!reply.is_pushed);
        let images = asked.iter().filter(|url| url.ends_with(".png"));
        assert_eq!(images.count(), 2);
    }
}

#[test]
fn answer_without_storage_waits_for_no_request() {
    let long = "x".repeat(5000);
    for promises in PROMISES {
        let pixel = page("image/gif", &long).with("cache-control", "no-store");
        let pages = [
            ("http://a.test/page", html("<img src=p.gif>")),
            ("http://a.test/p.gif", pixel),
        ];
        let mut pair = pair(promises, &pages);
        assert_eq!(pair.get("http://a.test/page", NAVIGATION).1.len(), 2);
        let body = "data http://a.test/p.gif".to_owned();
        assert!(
            !pair
                .received
                .iter()
                .any(|message| message.starts_with(&body))
        );
        let (reply, asked) = pair.get("http://a.test/p.gif", &[]);
        assert!(!reply.is_pushed && reply.body == long);
        assert_eq!(asked, ["http://a.test/p.gif"]);
        let again = pair.get("http://a.test/page", NAVIGATION).1;
        assert_eq!(again, ["http://a.test/page"], "it is not promised again");
    }
}

#[test]
fn firefox_font_request_takes_its_push() {
    let agent = (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    );
    let accept = (
        "accept",
        "application/font-woff2;q=1.0,application/font-woff;q=0.9,*/*;q=0.8",
    );
    for promises in PROMISES {
        let preload = "<link rel=preload as=font crossorigin href=f.woff2>";
        let pages = [
            ("http://a.test/page", html(preload)),
            ("http://a.test/f.woff2", page("font/woff2", "f")),
        ];
        let mut pair = pair(promises, &pages);
        assert_eq!(pair.get("http://a.test/page", &[agent]).1.len(), 2);
        let referrer = ("referer", "http://a.test/page");
        let fields = [agent, accept, referrer];
        take_pushes(&mut pair, &[("http://a.test/f.woff2", &fields)]);
    }
}

#[test]
fn document_behind_a_redirect_names_its_parts() {
    let pages = [
        ("http://a.test/", redirect("http://b.a.test/page")),
        (
            "http://b.a.test/page",
            html("<link rel=stylesheet href=a.css><img src=c.png>"),
        ),
        (
            "http://b.a.test/a.css",
            page("text/css", "p { background: url(b.png) }"),
        ),
        ("http://b.a.test/b.png", image()),
        ("http://b.a.test/c.png", image()),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        pair.begin_visit("a.test");
        let fields = [("accept", "text/html"), ("cookie", "of=here")];
        let mut asked = ask(&mut pair, "http://a.test/", &fields);
        asked.extend(ask(&mut pair, "http://b.a.test/page", &[]));
        let (by_page, by_sheet) = (
            &[("referer", "http://b.a.test/page")][..],
            &[("referer", "http://b.a.test/a.css")][..],
        );
        let parts = [
            ("http://b.a.test/a.css", by_page),
            ("http://b.a.test/b.png", by_sheet),
            ("http://b.a.test/c.png", by_page),
        ];
        take_pushes(&mut pair, &parts);
        assert_eq!(asked.len(), 5, "each once: {asked:?}");
        let cookie = |url| field(&asked, url, "cookie");
        let referrer = |url| field(&asked, url, "referer");
        assert_eq!(referrer("http://b.a.test/page"), None);
        assert_eq!(cookie("http://b.a.test/page"), None);
        for (url, fields) in parts {
            assert_eq!(referrer(url).as_deref(), Some(fields[0].1));
            assert_eq!(cookie(url), None);
        }
    }
}

#[test]
fn foreign_sheets_and_modules_name_their_parts() {
    const CDN: &str = "http://b.a.test";
    let at = |name: &str| format!("{CDN}/{name}");
    let body = format!(
        "<link rel=stylesheet href={CDN}/a.css><script type=module src={CDN}/m.js></script>"
    );
    let sheet = "p { background: url(b.png) } @font-face { src: url(c.woff2) }";
    let pages = [
        ("http://a.test/page", html(&body)),
        ("http://b.a.test/a.css", page("text/css", sheet)),
        ("http://b.a.test/m.js", script("import './n.js'; run()")),
        ("http://b.a.test/b.png", image()),
        ("http://b.a.test/c.woff2", image()),
        ("http://b.a.test/n.js", script("n")),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        let asked = ask(&mut pair, "http://a.test/page", NAVIGATION);
        assert_eq!(asked.len(), 6, "each once: {asked:?}");
        for (name, referrer, is_cors) in [
            ("a.css", "http://a.test/", false),
            ("m.js", "http://a.test/", true),
            ("b.png", "http://b.a.test/a.css", false),
            ("c.woff2", "http://b.a.test/a.css", true),
            ("n.js", "http://b.a.test/m.js", true),
        ] {
            let url = at(name);
            let origin = is_cors.then_some("http://a.test");
            assert_eq!(field(&asked, &url, "referer").as_deref(), Some(referrer));
            assert_eq!(field(&asked, &url, "origin").as_deref(), origin);
            let mut fields = vec![("referer", referrer)];
            fields.extend(origin.map(|origin| ("origin", origin)));
            take_pushes(&mut pair, &[(&url, &fields)]);
        }
    }
}

#[test]
fn requested_style_sheet_is_a_part_of_its_page() {
    let sheet = "p { background: url(b.png) } @font-face { src: url(c.woff2) } \
                 @font-face { src: url(http://f.b.test/d.woff2) }";
    let pages = [
        ("http://b.test/a.css", page("text/css", sheet)),
        ("http://b.test/b.png", image()),
        ("http://b.test/c.woff2", image()),
        ("http://f.b.test/d.woff2", image()),
    ];
    let cookie = ("cookie", "of=there");
    let origin = ("origin", "http://site.test");
    let by_sheet = ("referer", "http://b.test/a.css");
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        let fields = [("referer", "http://site.test/"), cookie];
        let mut asked = ask(&mut pair, "http://b.test/a.css", &fields);
        let parts = [
            ("http://b.test/b.png", [by_sheet, cookie]),
            ("http://b.test/c.woff2", [by_sheet, origin]),
            (
                "http://f.b.test/d.woff2",
                [("referer", "http://b.test/"), origin],
            ),
        ];
        for (url, fields) in parts {
            asked.extend(ask(&mut pair, url, &fields));
        }
        assert_eq!(asked.len(), 4, "each once: {asked:?}");
        for (url, fields) in parts {
            for name in ["referer", "cookie", "origin"] {
                let expected = fields.iter().find(|(of, _)| *of == name);
                let expected = expected.map(|(_, value)| *value);
                assert_eq!(field(&asked, url, name).as_deref(), expected, "{url}");
            }
        }
    }
}

#[test]
fn font_of_a_second_site_serves_its_page() {
    let font = "<link rel=preload as=font crossorigin href=http://f.test/f.woff2>";
    let pages = [
        ("http://a.test/page", html(font)),
        ("http://b.test/page", html(font)),
        ("http://f.test/f.woff2", page("font/woff2", "f")),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        for page in ["http://a.test/page", "http://b.test/page"] {
            assert_eq!(
                pair.get(page, NAVIGATION).1,
                [page, "http://f.test/f.woff2"]
            );
        }
        let fields = [("referer", "http://b.test/"), ("origin", "http://b.test")];
        take_pushes(&mut pair, &[("http://f.test/f.woff2", &fields)]);
    }
}

#[test]
fn pushed_redirects_lead_to_pushed_document() {
    let pages = [
        ("http://a.test/old", redirect("/older")),
        ("http://a.test/older", redirect("/new")),
        ("http://a.test/new", html("<img src=c.png><img src=d.png>")),
        ("http://a.test/c.png", image()),
        ("http://a.test/d.png", image()),
    ];
    let mut pair = pair(true, &pages);
    let (reply, asked) = pair.get("http://a.test/old", NAVIGATION);
    assert_eq!((reply.head.status, asked.len()), (302, 5));
    let (reply, asked) = pair.get("http://a.test/older", NAVIGATION);
    assert_eq!((reply.head.status, asked.len()), (302, 0));
    take_pushes(
        &mut pair,
        &[
            ("http://a.test/new", NAVIGATION),
            ("http://a.test/c.png", &[]),
            ("http://a.test/d.png", &[]),
        ],
    );
}

/// The time after which a redirect has arrived, and not the head of the document behind it.
const REDIRECTED: Duration = Duration::from_millis(225);

#[test]
fn conditional_request_joins_the_target_of_a_redirect() {
    let pages = [
        ("http://a.test/", redirect("/page")),
        ("http://a.test/page", known("body")),
    ];
    for (tag, status) in [("\"1\"", 304), ("\"2\"", 200)] {
        let mut pair = pair(true, &pages);
        pair.browse_for(REDIRECTED, "http://a.test/", NAVIGATION);
        let fields = [NAVIGATION[0], ("if-none-match", tag)];
        let (reply, asked) = pair.get("http://a.test/page", &fields);
        assert_eq!((reply.head.status, reply.is_pushed), (status, true));
        assert_eq!(asked, ["http://a.test/", "http://a.test/page"]);
        let cancels = pair.received.iter().filter(|it| it.starts_with("reset"));
        assert_eq!((cancels.count(), pair.gateway.unreported()), (0, 0));
    }
}

#[test]
fn unstorable_document_follows_its_redirect() {
    let pages = [
        ("http://a.test/", redirect("/page")),
        (
            "http://a.test/page",
            html("").with("cache-control", "no-store"),
        ),
    ];
    let mut pair = pair(true, &pages);
    pair.browse_for(2 * REDIRECTED, "http://a.test/", NAVIGATION);
    let head = "head http://a.test/page".to_owned();
    assert!(pair.received.contains(&head), "it waits for no report");
    let (reply, asked) = pair.get("http://a.test/page", NAVIGATION);
    assert_eq!((reply.head.status, reply.is_pushed), (200, true));
    assert_eq!(asked, ["http://a.test/", "http://a.test/page"]);
}

#[test]
fn unsafe_request_makes_pushes_too_old() {
    let body = "<script src=/cart></script><script src=/other></script>";
    let pages = [
        ("http://a.test/page", html(body)),
        ("http://a.test/cart", script("cart")),
        ("http://a.test/other", script("other")),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        assert_eq!(pair.get("http://a.test/page", NAVIGATION).1.len(), 3);
        let bought = pair.browse(Method::Post, "http://a.test/buy", &[]);
        assert_eq!((bought.head.status, pair.take_asked().len()), (404, 1));
        let (cart, asked) = pair.get("http://a.test/cart", &[]);
        assert_eq!(asked, ["http://a.test/cart"]);
        assert_eq!((cart.body.as_str(), cart.is_pushed), ("cart", false));
    }
}

#[test]
fn dropped_pushes_are_no_sign_of_a_lost_cache() {
    let pages = [
        ("http://a.test/page", html("<img src=c.png><img src=d.png>")),
        ("http://a.test/c.png", fresh_image()),
        ("http://a.test/d.png", fresh_image()),
        ("http://a.test/form", html("")),
    ];
    let mut pair = pair(true, &pages);
    assert_eq!(pair.get("http://a.test/page", &[]).1.len(), 3);
    take_pushes(&mut pair, &[("http://a.test/d.png", &[])]);
    pair.browse(Method::Post, "http://a.test/form", &[]);
    assert_eq!(pair.take_asked().len(), 1);
    let counts = pair.gateway.take_counts();
    assert_eq!((counts.used, counts.wasted), (1, 1));
    assert_eq!(pair.get("http://a.test/page", &[]).1.len(), 1);
    let asked = pair.get("http://a.test/c.png", &[]).1;
    assert_eq!(
        asked,
        ["http://a.test/c.png"],
        "the other is not sent again"
    );
}

#[test]
fn cookies_and_origins_part_answers() {
    let (anna, bert) = (("cookie", "who=anna"), ("cookie", "who=bert"));
    let elsewhere = ("origin", "http://elsewhere.test");
    let shared = script("all's").with("cache-control", "public, max-age=600");
    let body = "<script src=/own.js></script><script src=/all.js></script>\
                <script src=/open.js></script>";
    let pages = [
        ("http://a.test/page", html(body)),
        ("http://a.test/own.js", script("mine")),
        ("http://a.test/all.js", shared.clone()),
        (
            "http://a.test/open.js",
            shared.with("access-control-allow-origin", "*"),
        ),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        let asked = ask(&mut pair, "http://a.test/page", &[anna]);
        assert_eq!(asked.len(), 4);
        for asked in &asked {
            assert_eq!(asked.field("cookie").as_deref(), Some("who=anna"));
        }
        for (url, fields, is_pushed, reason) in [
            ("http://a.test/own.js", &[bert][..], false, "another cookie"),
            (
                "http://a.test/all.js",
                &[bert, elsewhere],
                false,
                "a CORS request needs its own answer",
            ),
            ("http://a.test/all.js", &[bert], true, "a public answer"),
            (
                "http://a.test/open.js",
                &[elsewhere],
                false,
                "without a cookie the answer may be another",
            ),
        ] {
            let reply = pair.browse(Method::Get, url, fields);
            let asked = pair.take_asked();
            assert_eq!(reply.is_pushed, is_pushed, "{reason}");
            assert_eq!(asked.len(), usize::from(!is_pushed), "{reason}");
            assert_eq!(reply.head.fields.get("tandem-asked"), None);
            assert_eq!(
                reply.body,
                if url.contains("own") { "mine" } else { "all's" }
            );
            for asked in asked {
                let cookie = fields.iter().find(|(name, _)| *name == "cookie");
                let cookie = cookie.map(|(_, value)| (*value).to_owned());
                assert_eq!((asked.url.as_str(), asked.field("cookie")), (url, cookie));
            }
        }
    }
}

#[test]
fn answer_open_to_all_origins_serves_each() {
    let body = "<script src=/open.js></script><script src=/own.js></script>";
    let open = script("all's").with("access-control-allow-origin", "*");
    let pages = [
        ("http://a.test/page", html(body)),
        ("http://a.test/open.js", open),
        ("http://a.test/own.js", script("mine")),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        assert_eq!(pair.get("http://a.test/page", &[]).1.len(), 3);
        let origin = [("origin", "http://elsewhere.test")];
        take_pushes(&mut pair, &[("http://a.test/open.js", &origin)]);
        let own = pair.get("http://a.test/own.js", &origin).1;
        assert_eq!(own, ["http://a.test/own.js"]);
    }
}

#[test]
fn push_for_one_site_does_not_serve_another() {
    let image = "http://i.a.test/p.png";
    let pages = [
        ("http://a.test/page", html(&format!("<img src={image}>"))),
        (image, page("image/png", "no hotlinks")),
    ];
    let mut pair = pair(true, &pages);
    let asked = pair.get("http://a.test/page", NAVIGATION).1;
    assert_eq!(asked, ["http://a.test/page", image]);
    let (reply, asked) = pair.get(image, &[("referer", "http://i.a.test/")]);
    assert!(!reply.is_pushed);
    assert_eq!(asked, [image]);
}

#[test]
fn varying_answers_are_pushed_beyond_redirects() {
    let gzip = |page: Page| page.with("vary", "Accept-Encoding");
    let sheet = page("text/css", "p { background: url(b.png) }");
    let document = html("<link rel=stylesheet href=a.css>");
    let pages = [
        ("http://a.test/old", gzip(redirect("/new"))),
        (
            "http://a.test/new",
            document.with("vary", "Accept-Encoding, User-Agent"),
        ),
        ("http://a.test/a.css", gzip(sheet)),
        ("http://a.test/b.png", image().with("vary", "Accept")),
    ];
    let agent = ("user-agent", "Mozilla/5.0 Chrome/1");
    let coding = ("accept-encoding", "gzip");
    let accept = |value| [agent, coding, ("accept", value)];
    let images = "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8";
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        let (reply, asked) = pair.get("http://a.test/old", &accept("text/html"));
        assert_eq!((reply.head.status, asked.len()), (302, 4));
        take_pushes(
            &mut pair,
            &[
                ("http://a.test/new", &accept("text/html")),
                ("http://a.test/a.css", &accept("text/css,*/*;q=0.1")),
                ("http://a.test/b.png", &accept(images)),
            ],
        );
        pair.get("http://a.test/old", &accept("text/html"));
        let other = [("user-agent", "another"), coding];
        let (reply, asked) = pair.get("http://a.test/new", &other);
        assert!(!reply.is_pushed, "another browser's answer");
        assert!(asked.contains(&"http://a.test/new".to_owned()));
    }
}

#[test]
fn stale_push_is_requested_again() {
    let names = ["check", "long", "nothing", "past", "short"];
    let body: String = names
        .iter()
        .map(|name| format!("<img src=/{name}>"))
        .collect();
    let control = |value| image().with("cache-control", value);
    let past = image()
        .with("date", "Sun, 06 Nov 1994 08:49:37 GMT")
        .with("expires", "0");
    let pages = [
        ("http://a.test/page", html(&body)),
        ("http://a.test/check", control("no-cache")),
        ("http://a.test/long", control("max-age=60")),
        ("http://a.test/nothing", image()),
        ("http://a.test/past", past),
        ("http://a.test/short", control("max-age=4")),
    ];
    for (wait, expected) in [(0, &[][..]), (5, &["check", "past", "short"])] {
        let mut pair = pair(true, &pages);
        assert_eq!(pair.get("http://a.test/page", &[]).1.len(), 6);
        pair.pass(Duration::from_secs(wait));
        let is_stale = |name: &&str| {
            let (reply, asked) = pair.get(&format!("http://a.test/{name}"), &[]);
            assert_eq!(reply.body, "x");
            !asked.is_empty()
        };
        let stale: Vec<&str> = names.into_iter().filter(is_stale).collect();
        assert_eq!(stale, expected, "after {wait} s");
    }
}

/// The gateway judges as the browser's cache does: an answer that expired when it came is pushed
/// with each load, and a request for it does not mean that the cache was emptied.
#[test]
fn expired_answer_is_no_sign_of_a_lost_cache() {
    let expired = ["0", "1", "2", "3"].map(|name| format!("http://a.test/{name}.png"));
    let body: String = expired
        .iter()
        .map(|url| format!("<img src={url}>"))
        .collect();
    let body = body + "<img src=d.png><img src=e.png>";
    let control = |value| image().with("cache-control", value);
    let epoch = "Thu, 01 Jan 1970 00:00:00 GMT";
    let pages = [
        ("http://a.test/page", html(&body)),
        ("http://a.test/0.png", image().with("expires", "0")),
        ("http://a.test/1.png", image().with("expires", epoch)),
        ("http://a.test/2.png", control("max-age=\"0\"")),
        ("http://a.test/3.png", control("Max-Age=0")),
        ("http://a.test/d.png", control(FRESH)),
        ("http://a.test/e.png", control("Max-Age=600")),
    ];
    let mut pair = pair(true, &pages);
    assert_eq!(pair.get("http://a.test/page", &[]).1.len(), 7);
    for url in &expired {
        take_pushes(&mut pair, &[(url, &[])]);
    }
    for url in ["http://a.test/d.png", "http://a.test/e.png"] {
        take_pushes(&mut pair, &[(url, &[])]);
    }
    let again = pair.get("http://a.test/page", &[]).1;
    let sent = expired.iter().cloned();
    let sent: Vec<String> = sent.chain(["http://a.test/page".to_owned()]).collect();
    assert_eq!(again, sent, "the browser has the others");
    for url in &expired {
        take_pushes(&mut pair, &[(url, &[])]);
    }
}

#[test]
fn late_request_raises_a_push_in_the_queue() {
    let images: String = (10..70).map(|i| format!("<img src=/{i}.png>")).collect();
    let config = Config {
        fetches: 1,
        ..Config::default()
    };
    for promises in PROMISES {
        let pages = [
            ("http://a.test/page", html(&images)),
            ("http://a.test/69.png", page("image/png", "late")),
        ];
        let mut pair = Pair::with(config, &pages).with_client(promises);
        pair.send("http://a.test/page", NAVIGATION);
        // The promises are at the client, and nine images were requested.
        pair.run_until_asked(10);
        let late = pair.browse(Method::Get, "http://a.test/69.png", &[]);
        assert_eq!((late.body.as_str(), late.is_pushed), ("late", true));
        let asked = pair.take_asked();
        assert_eq!(asked.len(), 61, "each once");
        let place = asked
            .iter()
            .position(|asked| asked.url.ends_with("/69.png"));
        assert!(place.is_some_and(|place| place < 20), "{place:?}");
        assert_eq!(pair.gateway.take_counts().late, 1);
    }
}
