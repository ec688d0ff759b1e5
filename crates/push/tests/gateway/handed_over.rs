//! Scenes of responses that no cache keeps: they serve only a request that waits.

use std::time::Duration;

use tandem_push::gateway::{Audience, Config};

use crate::both::{PROMISES, pair};
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::{NAVIGATION, html};

/// The time after which all messages of a load have arrived, and no held push is given up.
const LOADED: Duration = Duration::from_secs(2);

/// The time after which the promises of a page have arrived, and the heads of its pushes have not.
const PROMISED: Duration = Duration::from_millis(230);

#[test]
fn response_without_storage_serves_a_waiting_request() {
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
fn failing(has_own_fields: bool, audience: Audience, status: u16) -> Pair {
    let config = Config {
        audience,
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
        for (audience, status) in [
            (Audience::OneUser, 503),
            (Audience::OneUser, 429),
            (Audience::OneUser, 403),
            (Audience::Shared, 500),
            (Audience::Shared, 503),
            (Audience::Shared, 429),
        ] {
            for wait in [PROMISED, LOADED] {
                let mut pair = failing(promises, audience, status);
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
        let mut pair = failing(promises, Audience::OneUser, 503);
        pair.get("http://a.test/page", NAVIGATION);
        pair.run();
        let data = "data http://a.test/p.png".to_owned();
        assert!(!pair.received.contains(&data));
        assert_eq!(pair.gateway.records(), [0, 0, 0]);
        let (reply, asked) = pair.get("http://a.test/p.png", &[]);
        assert!(!reply.is_pushed && asked.len() == 1);
    }
}

/// The page and its images are more requests than a browser makes at once.
#[test]
fn refusal_of_many_pushes_reaches_no_browser() {
    let urls: Vec<_> = (0..6).map(|at| format!("http://a.test/{at}.png")).collect();
    for promises in PROMISES {
        let body: String = (0..6).map(|at| format!("<img src={at}.png>")).collect();
        let busy = Page {
            status: 503,
            ..page("text/html", "busy")
        };
        let document = page("text/html", &body).with("etag", "\"1\"");
        let mut pages = vec![("http://a.test/page", document)];
        pages.extend(urls.iter().map(|url| (url.as_str(), busy.clone())));
        let mut pair = pair(promises, &pages);
        pair.browse_for(LOADED, "http://a.test/page", NAVIGATION);
        let (reply, asked) = pair.get(&urls[0], &[]);
        assert!(!reply.is_pushed);
        let first = asked.iter().filter(|url| **url == urls[0]);
        assert_eq!(first.count(), 2);
    }
}

#[test]
fn response_without_storage_waits_for_no_request() {
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
