//! Pushed responses without a body, and the limits of the store.

use std::sync::mpsc;

use super::{gateway_that_always_pushes, received, site};
use crate::harness::{PATIENCE, Pair, Scene, wait_for};
use crate::pairs::SESSIONS;

#[test]
fn full_store_still_serves_requests() {
    let image: &'static str = Box::leak("x".repeat(300_000).into_boxed_str());
    let answers: &'static [_] = Box::leak(Box::new([
        (
            "/page",
            "text/html",
            "",
            "<img src=/1.jpg><img src=/2.jpg><img src=/3.jpg>",
        ),
        ("/1.jpg", "image/jpeg", "", image),
        ("/2.jpg", "image/jpeg", "", image),
        ("/3.jpg", "image/jpeg", "", image),
    ]));
    let (origin, _told) = site(answers);
    let pair = Pair::with(
        "h2",
        |gateway| gateway.hold_out = Some(0.0),
        |client| client.push_memory = Some("100KiB".parse().unwrap()),
    );
    let mut client = pair.connect();
    client.get(&origin.url("/page"));
    for path in ["/3.jpg", "/2.jpg", "/1.jpg"] {
        assert_eq!(client.get(&origin.url(path)).body.len(), image.len());
    }
}

#[test]
fn response_without_a_body_is_pushed() {
    for session in SESSIONS {
        let (tell, told) = mpsc::channel();
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                let path = asked.line.split(' ').nth(1).unwrap().to_owned();
                tell.send(path.clone()).unwrap();
                client.send(match path.as_str() {
                    "/page" => {
                        let page = "<img src=/pixel><img src=/dot><img src=/broken>";
                        format!(
                            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}",
                            page.len()
                        )
                    }
                    "/pixel" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
                    "/dot" => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
                    _ => "HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\n?".to_owned(),
                });
            }
        });
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        client.get(&origin.url("/page"));
        assert_eq!(
            wait_for(&told, 4),
            ["/broken", "/dot", "/page", "/pixel"],
            "{session}"
        );
        for (path, status) in [("/pixel", 204), ("/dot", 200), ("/broken", 500)] {
            assert_eq!(client.get(&origin.url(path)).status, status, "{session}");
        }
        // The status of a SPDY push is sent before the response is known, so it can only be 200.
        let again: &[_] = match session.starts_with("spdy") {
            true => &["/pixel"],
            false => &[],
        };
        let mut asked = received(&told);
        // An error is dropped if it comes before the companion, which tells of waiting requests.
        asked.retain(|path| path != "/broken");
        assert_eq!(
            asked, again,
            "{session}: only responses that cannot be pushed are requested again"
        );
    }
}

#[test]
fn endless_push_is_cut_off() {
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            if asked.line.contains("/page") {
                client.send("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<img src=/endl>");
                continue;
            }
            client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
            let mut sent = 0usize;
            while std::io::Write::write_all(client.stream.get_mut(), &chunk).is_ok() {
                sent += 0x10000;
            }
            tell.send(sent).unwrap();
            return;
        }
    });
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.get(&origin.url("/page"));
    let sent = told.recv_timeout(PATIENCE * 3).unwrap();
    assert!((32 << 20..64 << 20).contains(&sent), "{sent} bytes");
}

/// A request takes a push of any length, since the response would be whole without push.
#[test]
fn long_push_is_served_whole_to_a_request() {
    const LONG: usize = 40 << 20;
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            if asked.line.contains("/page") {
                client.send("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<img src=/long>");
                continue;
            }
            tell.send(()).unwrap();
            client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
            for _ in 0..LONG / 0x10000 {
                client.send(&chunk);
            }
            client.send("0\r\n\r\n");
        }
    });
    for session in SESSIONS {
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        client.get(&origin.url("/page"));
        assert_eq!(
            client.get(&origin.url("/long")).body.len(),
            LONG,
            "{session}"
        );
        assert_eq!(told.try_iter().count(), 1, "{session}");
    }
}
