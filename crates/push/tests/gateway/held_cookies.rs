//! Scenes of held fetches, and of requests with other cookies than those of the page.

use std::time::Duration;

use tandem_http::Method;

use crate::fresh_image;
use crate::origin::{Page, page};
use crate::pair::Pair;

const PAGE: &str = "http://a.test/page";
const IMAGE: &str = "http://a.test/i.png";

/// Returns whether a push served the request for a held image, and the cookies of all requests for
/// the image. The page and the image are requested with these cookies. Promises show their cookies
/// in HTTP/2, and not in SPDY.
fn ask_held(
    image: &Page,
    of_page: &'static str,
    of_image: Option<&'static str>,
    shows_cookies: bool,
) -> (bool, Vec<Option<String>>) {
    let document = page("text/html", "<img src=i.png>");
    let pages = [(PAGE, document), (IMAGE, image.clone())];
    let mut pair = Pair::new(&pages).with_client(shows_cookies);
    let returning = [("accept", "text/html"), ("cookie", of_page)];
    pair.browse_for(Duration::from_secs(1), PAGE, &returning);
    assert_eq!(pair.take_asked().len(), 1, "the image is held");
    let cookie = of_image.map(|value| ("cookie", value));
    let fields: Vec<_> = [("referer", PAGE)].into_iter().chain(cookie).collect();
    let reply = pair.browse(Method::Get, IMAGE, &fields);
    assert_eq!(reply.body, "x");
    let asked = pair.take_asked();
    let cookies = asked.iter().map(|asked| asked.field("cookie"));
    (reply.is_pushed, cookies.collect())
}

/// Returns an image that caches keep for all users.
fn public_image() -> Page {
    fresh_image().with("cache-control", "public, max-age=600")
}

/// A private window, another browser or a logout leaves the client's session as it is. The fetch
/// would show the origin a use of the first user's cookies.
#[test]
fn held_fetch_waits_for_the_cookies_of_its_page() {
    const OWN: &str = "sid=carol";
    let (cached, public) = (fresh_image(), public_image());
    for (image, cookie, is_pushed, of_fetch) in [
        (&cached, Some(OWN), true, Some(OWN)),
        (&public, Some("a=1; sid=carol"), true, Some(OWN)),
        (&cached, None, false, None),
        (&public, None, false, None),
        (&public, Some("sid=dave"), false, Some("sid=dave")),
    ] {
        let expected = (is_pushed, vec![of_fetch.map(str::to_owned)]);
        for shows_cookies in [true, false] {
            // SPDY compares all cookies.
            let cookie = cookie.filter(|_| shows_cookies || !is_pushed).or(of_fetch);
            let found = ask_held(image, OWN, cookie, shows_cookies);
            assert_eq!(found, expected, "{cookie:?} {shows_cookies}");
        }
    }
}

/// The page has a cookie for its own part of the site, or a script changes a value while it runs.
#[test]
fn held_fetch_may_have_further_cookies_of_the_page() {
    for (of_page, of_image) in [
        ("cart=1; sid=carol", "sid=carol"),
        ("_ga=old; sid=c", "_ga=new; sid=c"),
    ] {
        let expected = (true, vec![Some(of_page.to_owned())]);
        let found = ask_held(&public_image(), of_page, Some(of_image), true);
        assert_eq!(found, expected, "{of_image}");
    }
}

/// A private window that loads the page requests its parts at other hosts without cookies too.
#[test]
fn claim_without_cookies_releases_none_with_cookies() {
    const IMAGES: [&str; 3] = [
        "http://a.test/1.png",
        "http://i.a.test/2.png",
        "http://i.a.test/3.png",
    ];
    let tags = IMAGES.map(|url| format!("<img src={url}>")).concat();
    let mut pages = vec![(PAGE, page("text/html", &tags))];
    pages.extend(IMAGES.map(|url| (url, fresh_image())));
    for (claimed, cookie, released) in [
        (IMAGES[1], "", &IMAGES[1..]),
        (IMAGES[0], "sid=carol", &IMAGES[..]),
    ] {
        let mut pair = Pair::new(&pages).with_client(true);
        let returning = [("accept", "text/html"), ("cookie", "sid=carol")];
        pair.browse_for(Duration::from_secs(1), PAGE, &returning);
        assert_eq!(pair.take_asked().len(), 1, "the images are held");
        let fields = [("referer", PAGE), ("cookie", cookie)];
        let fields = &fields[..1 + usize::from(!cookie.is_empty())];
        let (reply, asked) = pair.get(claimed, fields);
        assert!(reply.is_pushed, "{claimed}");
        assert_eq!(asked, released);
    }
}
