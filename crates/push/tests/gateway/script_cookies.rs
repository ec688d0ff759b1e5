//! Scenes of pages whose scripts set cookies while they load.

use std::time::Duration;

use tandem_http::Method;

use crate::fresh_image;
use crate::origin::{Page, page};
use crate::pair::Pair;

const PAGE: &str = "https://www.a.test/page";
const IMAGE: &str = "https://www.a.test/i.png";
const OTHER: &str = "https://i.a.test/o.png";

/// The fields of a request of the page.
fn fields(cookie: &str) -> [(&str, &str); 2] {
    [("referer", PAGE), ("cookie", cookie)]
}

/// Returns an image that has not changed for years.
fn file() -> Page {
    fresh_image()
        .with("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        .with("date", "Mon, 30 Nov 2026 07:00:00 GMT")
}

/// Visits a page, and requests an image with the cookie of a script, and then one of another host.
/// Returns for both whether a push served them, and the number of requests for images.
fn visit(images: &Page, of_page: &str, has_own_fields: bool) -> ([bool; 2], usize) {
    let tags = format!("<img src={IMAGE}><img src={OTHER}>");
    let document = page("text/html", &tags).with("etag", "\"1\"");
    let pages = [
        (PAGE, document),
        (IMAGE, images.clone()),
        (OTHER, images.clone()),
    ];
    let mut pair = Pair::new(&pages).with_client(has_own_fields);
    let first = [("accept", "text/html"), ("cookie", of_page)];
    let first = &first[..1 + usize::from(!of_page.is_empty())];
    pair.browse_for(Duration::from_secs(1), PAGE, first);
    let cookie = match of_page.is_empty() {
        true => "_pk=1".to_owned(),
        false => format!("{of_page}; _pk=1"),
    };
    let served = [IMAGE, OTHER].map(|url| {
        let reply = pair.browse(Method::Get, url, &fields(&cookie));
        assert_eq!(reply.body, "x");
        reply.is_pushed
    });
    (served, pair.take_asked().len() - 1)
}

#[test]
fn script_cookie_costs_a_first_visit_no_request() {
    let private = file().with("cache-control", "private, max-age=600");
    for (images, served, requests) in [
        (file(), [true, true], 2),
        (fresh_image(), [false, false], 4),
        (private, [false, false], 4),
    ] {
        for has_own_fields in [true, false] {
            let expected = (served, requests);
            assert_eq!(visit(&images, "", has_own_fields), expected);
        }
    }
}

/// Early requests to another host lack the cookies of the site that the browser has.
#[test]
fn login_of_a_returning_browser_needs_its_own_responses() {
    assert_eq!(
        visit(&file(), "sid=1", true),
        ([true, false], 3),
        "the page's host alone got its cookies"
    );
}
