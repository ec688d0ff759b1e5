//! Scenes of the gateway's half over an emulated link in virtual time. They show pages, the
//! requests that origins receive, and the order of messages at the client.

mod asked;
mod both;
mod changed_cookies;
mod checks;
mod client;
mod client_hints;
mod conditional_checks;
mod content_policies;
mod cookies;
mod copies;
mod counters;
mod crossings;
mod decisions;
mod events;
mod fetched;
mod frames;
mod handed_over;
mod held_cookies;
mod holding;
mod known_redirects;
mod likely;
mod limits;
mod machine;
mod metadata;
mod misses;
mod needs;
mod new_cookies;
mod next_pages;
mod origin;
mod own_requests;
mod pages;
mod pair;
mod parts;
mod prefetches;
mod redirects;
mod referrers;
mod repeats;
mod returning;
mod revisits;
mod scene;
mod scripts;
mod second_visits;
mod stale_pages;
mod transfers;
mod unknown_cookies;
mod workers;

use origin::{Page, page};
use pair::Asked;

const NAVIGATION: &[(&str, &str)] = &[("accept", "text/html")];

const FRESH: &str = "max-age=600";

/// A page that shows a first visit: it gives the browser its first cookie, which no request for a
/// resource carries.
fn html(body: &str) -> Page {
    page("text/html", body).with("set-cookie", "first=1; Path=/first")
}

/// A page that shows a first visit by its validator.
fn known(body: &str) -> Page {
    page("text/html", body).with("etag", "\"1\"")
}

fn image() -> Page {
    page("image/png", "x")
}

/// An image that a cache can keep and validate.
fn fresh_image() -> Page {
    expiring_image().with("etag", "\"1\"")
}

/// An image that a cache can keep for ten minutes, and cannot validate.
fn expiring_image() -> Page {
    image().with("cache-control", FRESH)
}

fn asked_of<'a>(asked: &'a [Asked], url: &str) -> &'a Asked {
    let found = asked.iter().find(|asked| asked.url == url);
    found.unwrap_or_else(|| panic!("{url} was not requested"))
}

proptest::proptest! {
    #[test]
    fn gateway_survives_events_in_any_order(
        data in proptest::collection::vec(proptest::num::u8::ANY, 0..600),
    ) {
        events::run(&data);
    }
}

/// The machine promises a HEAD in these events.
#[test]
fn gateway_survives_a_check_among_events() {
    events::run(&[
        0, 0, 4, 0, 0, 0, 0, 0, 0, 109, 0, 39, 0, 144, 216, 6, 42, 0, 29, 5, 0, 0, 20, 0, 0, 58, 0,
        10, 0, 20, 0, 0, 40, 0, 4, 0, 23, 166, 14, 0, 87, 6, 47, 21, 50, 47, 25, 0, 37, 135, 92,
        123, 126, 28, 247, 189, 97, 70, 109, 18, 111, 195, 123, 223, 191, 125, 178, 53, 139, 183,
        153, 161, 245, 98, 161, 255, 115, 147, 188, 119, 181, 35, 1, 212, 158, 126, 76, 218, 99,
        23, 197, 47, 23, 36, 64, 196, 251, 44, 152, 130, 225, 236, 180, 116, 170, 142, 87, 221,
        243, 160, 87, 136, 192, 133, 158, 220, 23, 57, 134, 15, 220, 89, 103, 228, 47, 27, 123,
        207, 21, 247, 24, 152, 150, 228, 197, 154, 122, 136, 189, 38, 207, 142, 16, 251, 180, 170,
        65, 13, 246, 22, 220, 133, 79, 113, 126, 168, 70, 22, 254, 242, 187, 206, 31, 182, 60, 83,
        83, 62, 119, 149, 229, 41, 26, 75, 210, 181, 177, 166, 14, 231, 23, 103, 82, 230, 248, 100,
        56, 31, 34, 50, 185, 211, 182, 151, 192, 114, 195, 147, 121, 48, 177, 211, 228, 241, 9,
        166, 41,
    ]);
}
