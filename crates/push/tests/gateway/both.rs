//! Scenes of both halves: the requests that origins receive, and the responses that pushes give.
//! Most run with promises as in HTTP/2, which carry fields, and as in SPDY, which do not.

use std::time::Duration;

use tandem_http::Method;
use tandem_push::gateway::Config;

use crate::origin::{Page, page, redirect};
use crate::pair::{Asked, Pair};
use crate::{FRESH, NAVIGATION, asked_of, fresh_image, html, image, known};

/// The two kinds of promises: with fields, and without.
pub(crate) const PROMISES: [bool; 2] = [true, false];

pub(crate) fn pair(has_own_fields: bool, pages: &[(&str, Page)]) -> Pair {
    Pair::new(pages).with_client(has_own_fields)
}

pub(crate) fn script(body: &str) -> Page {
    page("text/javascript", body)
}

/// Sends requests of the browser that pushes must answer, with no request to an origin.
pub(crate) fn take_pushes(pair: &mut Pair, requests: &[(&str, &[(&str, &str)])]) {
    for (url, fields) in requests {
        let (reply, asked) = pair.get(url, fields);
        assert!(reply.is_pushed, "{url}");
        assert!(asked.is_empty(), "{asked:?}");
    }
}

/// Sends a request of the browser, and returns the requests that origins received.
pub(crate) fn ask(pair: &mut Pair, url: &str, fields: &[(&str, &str)]) -> Vec<Asked> {
    pair.browse(Method::Get, url, fields);
    pair.take_asked()
}

pub(crate) fn field(asked: &[Asked], url: &str, name: &str) -> Option<String> {
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

/// A page sends statistics while it loads.
#[test]
fn unsafe_request_leaves_what_caches_keep() {
    let pages = [
        ("http://a.test/page", html("<img src=i.png>")),
        ("http://a.test/i.png", fresh_image()),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        assert_eq!(pair.get("http://a.test/page", NAVIGATION).1.len(), 2);
        pair.browse(Method::Post, "http://a.test/stats", &[]);
        assert_eq!(pair.take_asked().len(), 1);
        let (image, asked) = pair.get("http://a.test/i.png", &[]);
        assert!(image.is_pushed && asked.is_empty());
    }
}

/// A style sheet sets a cookie at the first visit, and the browser sends it with later requests.
#[test]
fn cookie_of_a_style_sheet_leaves_what_caches_keep() {
    let style = page("text/css", "x { background: url(late.png) }").with("set-cookie", "id=1");
    let pages = [
        (
            "http://a.test/page",
            html("<link rel=stylesheet href=s.css><img src=i.png><img src=n.png>"),
        ),
        ("http://a.test/s.css", style),
        ("http://a.test/i.png", fresh_image()),
        ("http://a.test/n.png", image()),
        ("http://a.test/late.png", fresh_image()),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        pair.get("http://a.test/page", NAVIGATION);
        pair.get("http://a.test/s.css", &[]);
        for (url, cookie, expected) in [
            ("http://a.test/i.png", "id=2", false),
            ("http://a.test/n.png", "id=1", false),
            ("http://a.test/i.png", "id=1", true),
            ("http://a.test/late.png", "id=1", true),
        ] {
            let referrer = ("referer", "http://a.test/page");
            let (reply, _) = pair.get(url, &[referrer, ("cookie", cookie)]);
            assert_eq!(reply.is_pushed, expected, "{url} {cookie} {promises}");
        }
    }
}

#[test]
fn dropped_pushes_are_no_sign_of_a_lost_cache() {
    let pages = [
        ("http://a.test/page", html("<img src=c.png><img src=d.png>")),
        ("http://a.test/c.png", fresh_image()),
        ("http://a.test/d.png", fresh_image()),
    ];
    let mut pair = pair(true, &pages);
    assert_eq!(pair.get("http://a.test/page", &[]).1.len(), 3);
    take_pushes(&mut pair, &[("http://a.test/d.png", &[])]);
    pair.browse(Method::Post, "http://a.test/c.png", &[]);
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
fn cookies_and_origins_part_responses() {
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
                "a CORS request needs its own response",
            ),
            ("http://a.test/all.js", &[bert], true, "a public response"),
            (
                "http://a.test/open.js",
                &[elsewhere],
                false,
                "without a cookie the response may be another",
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
fn response_open_to_all_origins_serves_each() {
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
fn varying_responses_are_pushed_beyond_redirects() {
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
        assert!(!reply.is_pushed, "another browser's response");
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
    for (wait, expected) in [(0, &[][..]), (5, &["check", "nothing", "past", "short"])] {
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

/// The gateway judges as the browser's cache does. A response that expired when it came is pushed
/// with each load, and a request for it does not mean that the cache was emptied.
#[test]
fn expired_response_is_no_sign_of_a_lost_cache() {
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
