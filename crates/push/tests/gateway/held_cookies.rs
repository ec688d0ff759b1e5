//! Scenes of held fetches, and of requests with other cookies than those of the page.

use std::time::Duration;

use tandem_http::Method;

use crate::fresh_image;
use crate::origin::page;
use crate::pair::Pair;

const PAGE: &str = "http://a.test/page";
const IMAGE: &str = "http://a.test/i.png";
const OWN: (&str, &str) = ("cookie", "sid=carol");

/// A private window, another browser or a logout leaves the client's session as it is. The fetch
/// would show the origin a use of the first user's cookies.
#[test]
fn held_fetch_waits_for_the_cookies_of_its_page() {
    let cached = fresh_image();
    let public = fresh_image().with("cache-control", "public, max-age=600");
    for (image, cookie, expected) in [
        (&cached, Some("sid=carol"), (true, &[Some("sid=carol")][..])),
        (
            &public,
            Some("a=1; sid=carol"),
            (true, &[Some("sid=carol")]),
        ),
        (&cached, None, (false, &[None])),
        (&public, None, (false, &[None])),
        (&public, Some("sid=dave"), (false, &[Some("sid=dave")])),
    ] {
        let document = page("text/html", "<img src=i.png>");
        let pages = [(PAGE, document), (IMAGE, image.clone())];
        let mut pair = Pair::new(&pages).with_client(true);
        let returning = [("accept", "text/html"), OWN];
        pair.browse_for(Duration::from_secs(1), PAGE, &returning);
        assert_eq!(pair.take_asked().len(), 1, "the image is held");
        let cookie = cookie.map(|value| ("cookie", value));
        let fields: Vec<_> = [("referer", PAGE)].into_iter().chain(cookie).collect();
        let reply = pair.browse(Method::Get, IMAGE, &fields);
        let asked = pair.take_asked();
        let asked: Vec<_> = asked.iter().map(|asked| asked.field("cookie")).collect();
        let asked: Vec<_> = asked.iter().map(Option::as_deref).collect();
        assert_eq!((reply.is_pushed, &asked[..]), expected, "{cookie:?}");
        assert_eq!(reply.body, "x");
    }
}
