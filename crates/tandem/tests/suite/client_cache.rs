//! The client's cache: responses that serve again without the gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tandem::config::client_cache::ClientCache;
use tandem::config::gateway::CacheOption;

use crate::caching::{fresh, with_fields};
use crate::harness::{Client, Pair, Scene, request};

/// The field of a browser that opens a page itself.
const PAGE: &str = "Sec-Fetch-Site: none\r\n";

/// A pair whose client has a cache, and an origin that counts its requests.
struct Caching {
    origin: Scene,
    requests: Arc<AtomicUsize>,
    pair: Pair,
}

impl Caching {
    fn start(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let origin = Scene::new(move |_, mut client| {
            while client.request().is_some() {
                client.send(answer(count.fetch_add(1, Ordering::SeqCst) + 1));
            }
        });
        let pair = Pair::with(
            "h2",
            |gateway| gateway.cache = Some(CacheOption::Off),
            |client| {
                client.cache = Some(ClientCache::Private);
                client.cache_status = Some(true);
            },
        );
        Self {
            origin,
            requests,
            pair,
        }
    }

    /// Requests a URL as a browser. Returns the body and the status of the cache.
    fn get(&self, browser: &mut Client, fields: &str) -> (Vec<u8>, String) {
        browser.send(request("GET", &self.origin.url("/"), fields));
        let answer = browser.answer("GET");
        let status = answer.all("cache-status").join(", ");
        (answer.body, status)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

#[test]
fn stored_response_serves_another_browser() {
    let caching = Caching::start(|number| fresh(&number.to_string()));
    let (mut one, mut other) = (caching.pair.connect(), caching.pair.connect());
    let (body, status) = caching.get(&mut one, PAGE);
    assert_eq!(body, b"1");
    assert!(status.contains("tandem-client; fwd=uri-miss"), "{status}");
    let (body, status) = caching.get(&mut other, PAGE);
    assert_eq!(body, b"1");
    assert!(status.contains("tandem-client; hit"), "{status}");
    assert_eq!(caching.requests(), 1);
    assert_eq!(caching.get(&mut other, "").0, b"2", "of an unknown site");
    let cookie = format!("{PAGE}Cookie: user=1\r\n");
    assert_eq!(caching.get(&mut other, &cookie).0, b"3", "of another user");
}

#[test]
fn stale_response_is_validated_at_the_origin() {
    let caching = Caching::start(|number| match number {
        1 => with_fields("ETag: \"1\"\r\nCache-Control: no-cache\r\n", "first"),
        _ => "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n".to_owned(),
    });
    let mut browser = caching.pair.connect();
    for number in 1..4 {
        browser.send(request("GET", &caching.origin.url("/"), PAGE));
        let answer = browser.answer("GET");
        assert_eq!(answer.body, b"first");
        assert_eq!(answer.field("age"), None, "the origin has confirmed it");
        assert_eq!(caching.requests(), number);
    }
}

#[test]
fn successful_post_removes_the_stored_response() {
    let caching = Caching::start(|number| fresh(&number.to_string()));
    let mut browser = caching.pair.connect();
    assert_eq!(caching.get(&mut browser, PAGE).0, b"1");
    let post = format!("{PAGE}Content-Length: 0\r\n");
    browser.send(request("POST", &caching.origin.url("/"), &post));
    assert_eq!(browser.answer("POST").body, b"2");
    assert_eq!(caching.get(&mut browser, PAGE).0, b"3");
}
