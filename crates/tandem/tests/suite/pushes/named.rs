//! Resources that heads, pages and style sheets name.

use std::sync::mpsc;

use super::{gateway_that_always_pushes, origin, received, site};
use crate::harness::{PATIENCE, Pair, Scene, request, wait_for};
use crate::pairs::SESSIONS;

#[test]
fn resources_named_by_a_head_are_pushed() {
    for session in SESSIONS.into_iter().chain(["relayed"]) {
        let (origin, told) = origin();
        let pair = Pair::with(session, |_| {}, |_| {});
        let mut client = pair.connect();
        let page = client.get(&origin.url("/page"));
        assert_eq!(
            (&page.body[..], page.field("x-associated-content")),
            (&b"page"[..], None),
            "{session}"
        );
        assert!(page.field("link").is_some());
        assert_eq!(
            wait_for(&told, 3),
            ["/a.css", "/b.js", "/page"],
            "{session}"
        );
        for path in ["/a.css", "/b.js"] {
            assert_eq!(
                client.get(&origin.url(path)).body,
                path.as_bytes(),
                "{session}"
            );
        }
        assert!(
            told.try_recv().is_err(),
            "{session}: the origin was not asked again"
        );
        assert_eq!(client.get(&origin.url("/a.css")).body, b"/a.css");
        assert_eq!(
            wait_for(&told, 1),
            ["/a.css"],
            "{session}: a push answers one request"
        );
    }
}

#[test]
fn client_without_push_gets_none() {
    for session in ["h2", "relayed"] {
        let (origin, told) = origin();
        let pair = Pair::with(session, |_| {}, |client| client.push = Some(false));
        pair.connect().get(&origin.url("/page"));
        for path in ["/a.css", "/b.js", "/page"] {
            pair.connect().get(&origin.url(path));
        }
        assert_eq!(
            received(&told),
            ["/page", "/a.css", "/b.js", "/page"],
            "{session}: the origin gets no other request"
        );
    }
}

#[test]
fn large_number_of_named_resources_is_pushed() {
    let many: String = (0..1000).map(|i| format!("\"/{i}\", ")).collect();
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let links = if asked.line.contains("/page") {
                format!("X-Associated-Content: {many}\r\n")
            } else {
                String::new()
            };
            tell.send(asked.line.split(' ').nth(1).unwrap().to_owned())
                .unwrap();
            client.send(format!(
                "HTTP/1.1 200 OK\r\n{links}Content-Length: 1\r\n\r\nx"
            ));
        }
    });
    let pair = Pair::start();
    pair.connect().get(&origin.url("/page"));
    let asked: std::collections::HashSet<_> = wait_for(&told, 1001).into_iter().collect();
    let missing: Vec<_> = (0..1000)
        .map(|i| format!("/{i}"))
        .filter(|path| !asked.contains(path))
        .collect();
    assert!(
        missing.is_empty() && asked.len() == 1001,
        "{missing:?} of {}",
        asked.len()
    );
}

#[test]
fn page_and_style_sheets_are_pushed_whole() {
    let answers: &[_] = &[
        (
            "/page",
            "text/html",
            "",
            "<link rel=stylesheet href=a.css><script src=/b.js></script><img src=c.png>",
        ),
        (
            "/a.css",
            "text/css",
            "",
            "@import 'd.css'; p { background: url(e.png) }",
        ),
        ("/d.css", "text/css", "", "i { background: url(f.png) }"),
        ("/b.js", "text/javascript", "", "b"),
        ("/c.png", "image/png", "", "c"),
        ("/e.png", "image/png", "", "e"),
        ("/f.png", "image/png", "", "f"),
    ];
    for session in SESSIONS {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        let page = client.get(&origin.url("/page"));
        assert_eq!(
            page.field("tandem-push"),
            None,
            "{session}: the field stays between the proxies"
        );
        let all = [
            "/a.css", "/b.js", "/c.png", "/d.css", "/e.png", "/f.png", "/page",
        ];
        assert_eq!(wait_for(&told, 7), all, "{session}");
        for (path, _, _, body) in &answers[1..] {
            assert_eq!(
                client.get(&origin.url(path)).body,
                body.as_bytes(),
                "{session} {path}"
            );
        }
        assert_eq!(
            received(&told),
            [""; 0],
            "{session}: late promises came with the companion"
        );
        // The companion carries the reports. When they have come, the page is pushed again, since
        // no response may be used again.
        let deadline = std::time::Instant::now() + PATIENCE;
        while !received(&told).contains(&"/a.css".to_owned()) {
            assert!(
                std::time::Instant::now() < deadline,
                "{session}: the gateway received no report"
            );
            client.get(&origin.url("/page"));
        }
    }
}

#[test]
fn cache_status_names_pushes_where_enabled() {
    let answers: &[_] = &[
        (
            "/page",
            "text/html",
            "",
            "<script src=a.js></script><script src=b.js></script>",
        ),
        ("/a.js", "text/javascript", "", "a"),
        ("/b.js", "text/javascript", "", "b"),
    ];
    for asked in [false, true] {
        let (origin, told) = site(answers);
        let pair = Pair::with(
            "h2",
            |gateway| {
                gateway.hold_out = Some(0.0);
                gateway.max_connections_per_origin = Some(2);
            },
            |client| client.cache_status = Some(asked),
        );
        let mut client = pair.connect();
        assert_eq!(client.get(&origin.url("/page")).field("cache-status"), None);
        // Pushes have one connection, so the first has ended at the gateway when the second is
        // requested, and at the client when a later request was answered.
        wait_for(&told, 3);
        client.get(&origin.url("/other"));
        let pushed = client.get(&origin.url("/a.js"));
        assert_eq!(
            pushed.field("cache-status"),
            asked.then_some("tandem; hit; detail=pushed")
        );
        assert_eq!(client.get(&origin.url("/a.js")).field("cache-status"), None);
    }
}

/// SPDY cannot push a redirect. The client requests it, and its target is pushed all the same.
#[test]
fn targets_of_redirects_are_pushed_once() {
    let answers: &[_] = &[
        ("/old", "text/html", "Location: /older\r\n", ""),
        ("/older", "text/html", "Location: /new\r\n", ""),
        ("/new", "text/html", "", "<img src=c.png><img src=d.png>"),
        ("/c.png", "image/png", "", "c"),
        ("/d.png", "image/png", "", "d"),
    ];
    for session in SESSIONS {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        let mut asked: Vec<String> = Vec::new();
        let has_both = |asked: &[String]| {
            ["/c.png", "/d.png"]
                .iter()
                .all(|path| asked.iter().any(|a| a == path))
        };
        for path in ["/old", "/older", "/new"] {
            client.send(request("GET", &origin.url(path), "Accept: text/html\r\n"));
            let status = client.answer("GET").status;
            assert_eq!(
                status,
                if path == "/new" { 200 } else { 302 },
                "{session} {path}"
            );
            while path == "/new" && !has_both(&asked) {
                asked.push(told.recv_timeout(PATIENCE).unwrap());
            }
        }
        for path in ["/c.png", "/d.png"] {
            assert_eq!(client.get(&origin.url(path)).status, 200, "{session}");
        }
        asked.extend(received(&told));
        for image in ["/c.png", "/d.png"] {
            assert_eq!(
                asked.iter().filter(|path| *path == image).count(),
                1,
                "{session}: {asked:?}"
            );
        }
    }
}

#[test]
fn large_gallery_is_pushed_whole() {
    let image: &'static str = Box::leak("x".repeat(3_900_000).into_boxed_str());
    let mut answers = vec![("/page", "text/html", "", {
        let page: String = (0..12).map(|i| format!("<img src=/{i}.jpg>")).collect();
        &*Box::leak(page.into_boxed_str())
    })];
    answers.extend((0..12).map(|i| {
        (
            &*Box::leak(format!("/{i}.jpg").into_boxed_str()),
            "image/jpeg",
            "",
            image,
        )
    }));
    let (origin, _told) = site(Box::leak(answers.into_boxed_slice()));
    let pair = gateway_that_always_pushes("h2");
    pair.connect().get(&origin.url("/page"));
    for i in 0..12 {
        assert_eq!(
            pair.connect()
                .get(&origin.url(&format!("/{i}.jpg")))
                .body
                .len(),
            image.len(),
            "{i}"
        );
    }
}
