//! Scenes of held fetches, and of requests with other cookies than those of the page.

use std::time::Duration;

use tandem_http::Method;

use crate::fresh_image;
use crate::origin::{Page, page};
use crate::pair::Pair;

const PAGE: &str = "http://a.test/page";
const IMAGE: &str = "http://a.test/i.png";

/// Returns whether a push served the request for a held image, and the cookies of all requests for
/// the image. The page and the image are requested with these cookies.
fn ask_held(
    image: &Page,
    of_page: &'static str,
    of_image: Option<&'static str>,
) -> (bool, Vec<Option<String>>) {
    let document = page("text/html", "<img src=i.png>");
    let pages = [(PAGE, document), (IMAGE, image.clone())];
    let mut pair = Pair::new(&pages).with_client(true);
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
        assert_eq!(ask_held(image, OWN, cookie), expected, "{cookie:?}");
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
        let found = ask_held(&public_image(), of_page, Some(of_image));
        assert_eq!(found, expected, "{of_image}");
    }
}
