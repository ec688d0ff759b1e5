//! Scenes with a gateway and pages that set cookies: the promises carry them, as the browser's
//! requests do.

use crate::origin::{Page, page};
use crate::pair::{Asked, Pair};
use crate::{NAVIGATION, asked_of, fresh_image};

const PAGE: &str = "http://www.a.example/page";
const IMAGE: &str = "http://www.a.example/i.png";

fn setting(cookie: &str, body: &str) -> Page {
    page("text/html", body).with("set-cookie", cookie)
}

/// Returns the cookies of the requests that origins received.
fn cookies_of(asked: &[Asked], urls: &[&str]) -> Vec<Option<String>> {
    let field = |url: &&str| asked_of(asked, url).field("cookie");
    urls.iter().map(field).collect()
}

/// The browser returns the cookie with its first request for a resource.
#[test]
fn first_visit_uses_the_pushes_of_its_host() {
    let body = "<img src=i.png>";
    let pages = [(PAGE, setting("id=1", body)), (IMAGE, fresh_image())];
    let mut pair = Pair::new(&pages).with_client(true);
    let (_, asked) = pair.get(PAGE, NAVIGATION);
    assert_eq!(asked, [IMAGE, PAGE]);
    let fields = [("accept", "*/*"), ("referer", PAGE), ("cookie", "id=1")];
    let (reply, asked) = pair.get(IMAGE, &fields);
    assert!(reply.is_pushed && asked.is_empty());
}

#[test]
fn promises_carry_the_cookies_that_cover_them() {
    const FAR: &str = "http://img.a.example/far.css";
    const SHOP: &str = "http://www.a.example/shop/s.png";
    const FOREIGN: &str = "http://b.example/b.css";
    let body = "<img src=i.png><img src=/shop/s.png><link rel=stylesheet href=//b.example/b.css>\
                <link rel=stylesheet href=//img.a.example/far.css>";
    let document = setting("wide=1; Domain=a.example", body)
        .with("set-cookie", "shop=2; Path=/shop")
        .with("set-cookie", "gone=3; Domain=b.example");
    let mut pair = Pair::new(&[(PAGE, document)]);
    pair.send(PAGE, NAVIGATION);
    pair.run();
    let found = cookies_of(&pair.take_asked(), &[IMAGE, SHOP, FAR, FOREIGN]);
    let wide = Some("wide=1".to_owned());
    let both = Some("shop=2; wide=1".to_owned());
    assert_eq!(found, [wide.clone(), both, wide, None]);
}

/// A browser that has not returned a cookie may refuse cookies, until it returns one.
#[test]
fn cookies_follow_the_browser() {
    let mut pair = Pair::new(&[(PAGE, setting("id=1", "<img src=i.png>"))]);
    let mut visit = |sent: Option<&str>| {
        let cookie = sent.map(|cookie| ("cookie", cookie));
        let fields: Vec<_> = NAVIGATION.iter().copied().chain(cookie).collect();
        pair.send(PAGE, &fields);
        pair.run();
        pair.report(tandem_push::wire::Fate::Wasted, IMAGE);
        pair.run();
        asked_of(&pair.take_asked(), IMAGE).field("cookie")
    };
    let id = Some("id=1".to_owned());
    assert_eq!(visit(None), id);
    assert_eq!(visit(None), None);
    assert_eq!(visit(Some("id=0")), id);
    assert_eq!(visit(None), id, "another window, which is new to the host");
}

/// A response for everyone still serves the browser.
#[test]
fn unknown_cookies_leave_promises_as_they_are() {
    let mut pair = Pair::new(&[(PAGE, setting("id=1; expires=soon", "<img src=i.png>"))]);
    pair.send(PAGE, NAVIGATION);
    pair.run();
    assert_eq!(cookies_of(&pair.take_asked(), &[IMAGE]), [None]);
}

/// Over plain HTTP, a frame of another site looks like a link to it.
#[test]
fn frames_of_other_sites_set_no_cookies() {
    const FRAME: &str = "http://b.example/frame";
    let pages = [
        (PAGE, page("text/html", "")),
        (FRAME, setting("id=1", "<img src=i.png>")),
    ];
    let mut pair = Pair::new(&pages);
    pair.load(PAGE, NAVIGATION);
    pair.send(FRAME, &[NAVIGATION[0], ("referer", PAGE)]);
    pair.run();
    let found = cookies_of(&pair.take_asked(), &["http://b.example/i.png"]);
    assert_eq!(found, [None]);
}

/// Browsers send no cookies from such a document to other origins without CORS. Over plain HTTP
/// they ignore the field, except on the computer itself.
#[test]
fn credentialless_page_sends_no_cookies_elsewhere() {
    let body = "<img src=i.png><link rel=stylesheet href=//img.DOMAIN/far.css>";
    for (scheme, domain, policy, has_cookie) in [
        ("https", "a.example", "unsafe-none", true),
        ("https", "a.example", "require-corp", true),
        ("https", "a.example", "credentialless, unsafe-none", true),
        ("https", "a.example", "credentialless", false),
        (
            "https",
            "a.example",
            "credentialless; report-to=\"x\"",
            false,
        ),
        ("http", "a.example", "credentialless", true),
        ("http", "a.localhost", "credentialless", false),
    ] {
        let of = |host: &str, path: &str| format!("{scheme}://{host}.{domain}/{path}");
        let (location, image) = (of("www", "page"), of("www", "i.png"));
        let far = of("img", "far.css");
        let cookie = format!("id=1; Domain={domain}");
        let document = setting(&cookie, &body.replace("DOMAIN", domain));
        let document = document.with("cross-origin-embedder-policy", policy);
        let mut pair = Pair::new(&[(&location, document)]);
        pair.send(&location, NAVIGATION);
        pair.run();
        let found = cookies_of(&pair.take_asked(), &[&image, &far]);
        let cookie = Some("id=1".to_owned());
        let far = cookie.clone().filter(|_| has_cookie);
        assert_eq!(found, [cookie, far], "{scheme} {domain} {policy}");
    }
}
