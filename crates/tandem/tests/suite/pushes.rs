//! What the origin names is pushed, kept for its own session only, and given once.

use std::sync::mpsc;

use crate::harness::{Client, PATIENCE, Pair, Scene, request};

const SESSIONS: [&str; 3] = ["h2", "spdy3", "spdy3.1"];

/// An origin whose page names `/a.css` and `/b.js`; it tells which paths it is asked for.
fn origin(fields_of_assets: &'static str) -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let answer = if path == "/page" {
                "HTTP/1.1 200 OK\r\nLink: </a.css>; rel=preload; as=style\r\nX-Associated-Content: \"/b.js\":2\r\n\
                 Content-Length: 4\r\n\r\npage"
                    .to_owned()
            } else {
                format!("HTTP/1.1 200 OK\r\n{fields_of_assets}Content-Length: {}\r\n\r\n{path}", path.len())
            };
            tell.send(path).unwrap();
            client.send(answer);
        }
    });
    (scene, told)
}

fn wait_for(told: &mpsc::Receiver<String>, count: usize) -> Vec<String> {
    let mut paths: Vec<_> = (0..count).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect();
    paths.sort();
    paths
}

#[test]
fn what_a_page_names_is_there_before_it_is_asked_for() {
    for session in SESSIONS {
        let (origin, told) = origin("");
        let pair = Pair::with(session, |_| {}, |_| {});
        let mut client = pair.connect();
        let page = client.get(&origin.url("/page"));
        assert_eq!((&page.body[..], page.field("x-associated-content")), (&b"page"[..], None), "{session}");
        assert!(page.field("link").is_some());
        assert_eq!(wait_for(&told, 3), ["/a.css", "/b.js", "/page"], "{session}");
        for path in ["/a.css", "/b.js"] {
            assert_eq!(client.get(&origin.url(path)).body, path.as_bytes(), "{session}");
        }
        assert!(told.try_recv().is_err(), "{session}: the origin was not asked again");
        assert_eq!(client.get(&origin.url("/a.css")).body, b"/a.css");
        assert_eq!(wait_for(&told, 1), ["/a.css"], "{session}: a push answers one request");
    }
}

#[test]
fn a_push_belongs_to_its_isolation_key() {
    let (origin, told) = origin("");
    let pair = Pair::start();
    let get = |path: &str, key: &str| {
        let mut client = Client::to(pair.http);
        client.send(request("GET", &origin.url(path), &format!("Tor-Stream-Isolation: {key}\r\n")));
        assert_eq!(client.answer("GET").status, 200);
    };
    get("/page", "one");
    wait_for(&told, 3);
    get("/a.css", "two");
    assert_eq!(wait_for(&told, 1), ["/a.css"], "another key asks for itself");
    get("/a.css", "one");
    assert!(told.try_recv().is_err());
}

#[test]
fn what_must_not_be_stored_or_differs_is_asked_for() {
    for (fields, request_fields) in [
        ("Cache-Control: no-store\r\n", ""),
        ("Vary: *\r\n", ""),
        ("Vary: X-Kind\r\n", "X-Kind: 1\r\n"),
        ("", "Cookie: login=1\r\n"),
        ("", "Range: bytes=0-1\r\n"),
        ("", "Cache-Control: no-cache\r\n"),
    ] {
        let (origin, told) = origin(fields);
        let pair = Pair::start();
        let mut client = pair.connect();
        client.get(&origin.url("/page"));
        wait_for(&told, 3);
        // The answers of the pushes have to arrive before the question is a fair one.
        std::thread::sleep(std::time::Duration::from_millis(200));
        client.send(request("GET", &origin.url("/a.css"), request_fields));
        assert_eq!(client.answer("GET").body, b"/a.css");
        assert_eq!(wait_for(&told, 1), ["/a.css"], "{fields:?} {request_fields:?}");
    }
}

#[test]
fn pushes_can_be_refused_and_are_bounded() {
    let (origin, told) = origin("");
    let pair = Pair::with("h2", |_| {}, |client| client.push = Some(false));
    pair.connect().get(&origin.url("/page"));
    assert_eq!(wait_for(&told, 1), ["/page"]);
    assert!(
        told.recv_timeout(std::time::Duration::from_millis(300)).is_err(),
        "nothing is fetched for who takes no push"
    );

    let many: String = (0..1000).map(|i| format!("</{i}>; rel=preload, ")).collect();
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let links = if asked.line.contains("/page") { format!("Link: {many}\r\n") } else { String::new() };
            tell.send(asked.line.split(' ').nth(1).unwrap().to_owned()).unwrap();
            client.send(format!("HTTP/1.1 200 OK\r\n{links}Content-Length: 1\r\n\r\nx"));
        }
    });
    let pair = Pair::start();
    pair.connect().get(&origin.url("/page"));
    let asked: std::collections::HashSet<_> =
        std::iter::from_fn(|| told.recv_timeout(std::time::Duration::from_secs(1)).ok()).collect();
    let missing: Vec<_> = (0..1000).map(|i| format!("/{i}")).filter(|path| !asked.contains(path)).collect();
    assert!(missing.is_empty() && asked.len() == 1001, "{missing:?} of {}", asked.len());
}
