//! Pushes that are raised, useless, or left by their page.

use std::sync::mpsc;
use std::time::Duration;

use super::{gateway_that_always_pushes, one_at_a_time, received};
use crate::harness::{PATIENCE, Pair, Scene, request};
use crate::pairs::SESSIONS;

#[test]
fn request_for_a_page_ends_with_its_browser() {
    let images: String = (0..600).map(|i| format!("<img src=/i{i}>")).collect();
    let (tell, told) = mpsc::channel();
    let (tell_end, ended) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        let Some(asked) = client.request() else {
            return;
        };
        let path = asked.line.split(' ').nth(1).unwrap().to_owned();
        let is_page = path == "/page";
        tell.send(path).unwrap();
        if is_page {
            // The rest of the page is never sent.
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 99999";
            client.send(format!("{head}\r\n\r\n{images}"));
        }
        // A push has no response before its connection ends.
        let is_over = client.request_ends();
        if is_page {
            tell_end.send(is_over).unwrap();
        }
    });
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/page"), ""));
    told.recv_timeout(PATIENCE).unwrap();
    drop(client);
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true));
    let asked = received(&told).len();
    assert!(asked < 400, "{asked} pushes for a page without a browser");
}

#[test]
fn late_push_is_raised() {
    for session in SESSIONS {
        let (pair, origin, told, go) = one_at_a_time(session);
        pair.connect().get(&origin.url("/page"));
        let next = || told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(
            [next(), next()],
            ["/page", "/10.png"],
            "{session}: pushes have one connection"
        );
        let mut first = pair.connect();
        first.send(request("GET", &origin.url("/35.png"), ""));
        assert_eq!(
            next(),
            "/35.png",
            "{session}: a requested push gets the other connection"
        );
        for _ in 0..2 {
            go.send(()).unwrap();
        }
        assert_eq!(next(), "/11.png", "{session}");
    }
}

/// The time in which the gateway would hang up if it did not read on.
const SILENCE: Duration = Duration::from_secs(1);

#[test]
fn useless_push_is_read_to_its_end_unless_set() {
    for session in SESSIONS {
        for cancel in [false, true] {
            let (tell, told) = mpsc::channel();
            let origin = Scene::new(move |_, mut client| {
                while let Some(asked) = client.request() {
                    if asked.line.contains("/page") {
                        let page = "<img src=/large.jpg>";
                        client.send(format!(
                            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}",
                            page.len()
                        ));
                        continue;
                    }
                    // More than the client keeps; and then nothing, until somebody hangs up.
                    client.send("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n");
                    client.send(vec![b'x'; 250_000]);
                    let silence = if cancel { PATIENCE } else { SILENCE };
                    let socket = client.stream.get_ref();
                    socket.set_read_timeout(Some(silence)).unwrap();
                    tell.send(client.request_ends()).unwrap();
                }
            });
            let pair = Pair::with(
                session,
                |gateway| gateway.hold_out = Some(0.0),
                |client| {
                    client.push_memory = Some("100KiB".parse().unwrap());
                    client.cancel_pushes = Some(cancel);
                },
            );
            let mut client = pair.connect();
            client.get(&origin.url("/page"));
            assert_eq!(told.recv_timeout(PATIENCE), Ok(cancel), "{session}");
        }
    }
}
