//! Tests of responses that break the rules of HTTP/1.1 and that browsers show. The pair and a
//! client without a gateway pass them on without ambiguity. Those with
//! repaired framing are never stored.

use std::net::SocketAddr;
use std::sync::mpsc;

use tandem::config::client::SoloMode;
use tandem::config::units::Size;

use crate::caching::Caching;
use crate::harness::{Client, Pair, Scene, request, start_client};
use crate::pairs::{CARRYING, SESSIONS, carrying_pair};
use crate::solo;

/// A response, and whether its framing is in doubt.
const ODD: [(&str, bool); 12] = [
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n\
         4\r\nfine\r\n0\r\n\r\n",
        true,
    ),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nX-A: b\r\nContent-Length: 4\r\n\r\nfine",
        true,
    ),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\nX-A: b\r\n\r\n\
         4\r\nfine\r\n0\r\n\r\n",
        true,
    ),
    (
        "\r\nHTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 4\r\n\r\nfine",
        true,
    ),
    (
        "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length : 4\r\n\r\nfine",
        true,
    ),
    (
        "HTTP/1.1 200 OK\r\nX-A: b\r\nCache Control: private\r\nContent-Length: 4\r\n\r\nfine",
        true,
    ),
    (
        "HTTP/1.1 200 OK\r\nX Powered By: x\r\nX-A: b\r\nContent-Length: 4\r\n\r\nfine",
        false,
    ),
    (
        "HTTP/1.1 200 OK\r\nX(A): x\r\ngarbage\r\n fold\r\nX-A : b\r\n\
         Content-Length: 4\r\n\r\nfine",
        false,
    ),
    (
        "HTTP/1.1 200 OK\r\n folded\r\nX-A: b\r\nContent-Length: 4\r\n\r\nfine",
        false,
    ),
    (
        "HTTP/1.1  200  OK\r\nX-A: b\r\nContent-Length: 4\r\n\r\nfine",
        false,
    ),
    (
        "HTTP/1 200 OK\r\nConnection: keep-alive\r\nX-A: b\r\nContent-Length: 4\r\n\r\nfine",
        false,
    ),
    ("HTTP/1.1 200 OK\nX-A: b\nContent-Length: 4\n\nfine", false),
];

/// Starts an origin that answers with these bytes. It tells the number of the connection of each
/// request.
fn origin(answer: impl AsRef<[u8]> + Send + Sync + 'static) -> (Scene, mpsc::Receiver<usize>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |number, mut client| {
        while client.request().is_some() {
            let _ = tell.send(number);
            client.send(&answer);
        }
    });
    (scene, told)
}

/// Checks the response to two requests of one client.
fn check(http: SocketAddr, answer: &'static str, is_repaired: bool, what: &str) {
    let (origin, told) = origin(answer);
    let mut client = Client::to(http);
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let received = client.get(&origin.url("/"));
        let body = String::from_utf8_lossy(&received.body).into_owned();
        assert_eq!(
            (received.status, &*body),
            (200, "fine"),
            "{what} {answer:?}"
        );
        assert_eq!(received.field("x-a"), Some("b"), "{what} {answer:?}");
        let lengths = received.all("content-length").len();
        let codings = received.all("transfer-encoding").len();
        assert_eq!(lengths + codings, 1, "{what} {answer:?}");
        assert_eq!(received.field("tandem-repaired"), None, "{what} {answer:?}");
        numbers.push(told.recv().unwrap());
    }
    let is_apart = numbers[0] != numbers[1];
    assert_eq!(is_apart, is_repaired, "{what} {answer:?}: connections");
}

#[test]
fn pair_passes_on_odd_responses() {
    for session in SESSIONS {
        let pair = Pair::with(session, |_| {}, |_| {});
        for (answer, is_repaired) in ODD {
            check(pair.http, answer, is_repaired, session);
        }
    }
}

#[test]
fn solo_passes_on_odd_responses() {
    let (_running, http, _) = start_client(solo::options(SoloMode::Direct));
    for (answer, is_repaired) in ODD {
        check(http, answer, is_repaired, "solo");
    }
}

#[test]
fn cache_stores_no_response_with_repaired_framing() {
    for (field, is_stored) in [
        ("X-A: b", true),
        ("X Powered By: x", true),
        ("Transfer-Encoding: identity", false),
        ("Vary Accept", false),
    ] {
        let caching = Caching::start(move |number, _| {
            format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\n{field}\r\n\
                 Content-Length: 1\r\n\r\n{number}"
            )
        });
        let bodies = [0, 1].map(|_| {
            let received = caching.connect().get(&caching.origin.url("/"));
            assert_eq!(received.field("tandem-repaired"), None, "{field}");
            received.body
        });
        assert_eq!(bodies[0] == bodies[1], is_stored, "{field}");
    }
}

/// Returns a response with a head of at least `size` bytes.
fn large(size: usize) -> String {
    let line = "Set-Cookie: name=0123456789012345678901234567890123456789; Path=/\r\n";
    let many = line.repeat(500);
    let rest = "x".repeat(size - many.len());
    format!("HTTP/1.1 200 OK\r\n{many}X-A: {rest}\r\nContent-Length: 4\r\n\r\nfine")
}

#[test]
fn large_heads_of_responses_reach_the_browser() {
    for session in CARRYING {
        let pair = carrying_pair(session);
        let (origin, _told) = origin(large(250_000));
        let received = pair.connect().get(&origin.url("/"));
        let cookies = received.all("set-cookie").len();
        assert_eq!((received.status, cookies), (200, 500), "{session}");
        assert!(received.field("x-a").unwrap().len() > 200_000, "{session}");
    }
}

#[test]
fn heads_of_responses_are_bounded() {
    for (most, size, status) in [
        (None, 300_000, 502),
        (Some("400KiB"), 350_000, 502),
        (Some("16KiB"), 250_000, 200),
    ] {
        let pair = Pair::with(
            "h2",
            |gateway| gateway.max_head = most.map(|most| most.parse::<Size>().unwrap()),
            |_| {},
        );
        let (origin, _told) = origin(large(size));
        let mut client = pair.connect();
        client.send(request("GET", &origin.url("/"), ""));
        assert_eq!(client.answer("GET").status, status, "{most:?} {size}");
    }
}
