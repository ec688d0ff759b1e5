//! Pushes end to end, over sockets and each session protocol. The decisions of the two halves have
//! their scenes in `tandem-push`, in virtual time.

use std::sync::mpsc;

use crate::harness::{
    Client, PATIENCE, Pair, Scene, Way, client_options, gateway_options, request, start_client,
    start_gateway, wait_for,
};
use crate::pairs::SESSIONS;

/// An origin with a page that names `/a.css` and `/b.js`. It records the paths of its requests.
fn origin() -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let answer = if path == "/page" {
                "HTTP/1.1 200 OK\r\nLink: </a.css>; rel=preload; as=style\r\nX-Associated-Content: \"/b.js\":2\r\n\
                 Content-Length: 4\r\n\r\npage"
                    .to_owned()
            } else {
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}",
                    path.len()
                )
            };
            tell.send(path).unwrap();
            client.send(answer);
        }
    });
    (scene, told)
}

/// Returns the requests that the origin has received. After a response to a request that went to
/// the origin, that request is among them.
fn received(told: &mpsc::Receiver<String>) -> Vec<String> {
    told.try_iter().collect()
}

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
fn push_belongs_to_its_isolation_key() {
    let (origin, told) = origin();
    let pair = Pair::start();
    let get = |path: &str, key: &str| {
        let mut client = Client::to(pair.http);
        client.send(request(
            "GET",
            &origin.url(path),
            &format!("Proxy-Authorization: Key {key}\r\n"),
        ));
        assert_eq!(client.answer("GET").status, 200);
    };
    get("/page", "one");
    wait_for(&told, 3);
    get("/a.css", "two");
    assert_eq!(wait_for(&told, 1), ["/a.css"], "another key gets no push");
    get("/a.css", "one");
    assert!(told.try_recv().is_err());
}

/// A SPDY promise has no fields, so the fields of the page's request are not those of the push.
#[test]
fn push_with_inherited_fields_must_fit_them() {
    for session in SESSIONS {
        let (tell, told) = mpsc::channel();
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                let path = asked.line.split(' ').nth(1).unwrap().to_owned();
                let saves = asked.field("save-data").is_some();
                tell.send(path).unwrap();
                let body = if saves { "small" } else { "large" };
                client.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nLink: </a>; rel=preload; as=fetch\r\nVary: Save-Data\r\nContent-Length: 5\r\n\r\n{body}"
                ));
            }
        });
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        let mut load = |path: &str| {
            client.send(request("GET", &origin.url(path), "Save-Data: on\r\n"));
            assert_eq!(client.answer("GET").body, b"small", "{session}: {path}");
        };
        load("/page");
        wait_for(&told, 2);
        load("/a");
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
    let many: String = (0..1000)
        .map(|i| format!("</{i}>; rel=preload, "))
        .collect();
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let links = if asked.line.contains("/page") {
                format!("Link: {many}\r\n")
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

/// An origin with these responses: path, media type, further fields, body. It tells the path and
/// the cookie of each request.
fn site(
    answers: &'static [(&'static str, &'static str, &'static str, &'static str)],
) -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            tell.send(path.clone() + asked.field("cookie").unwrap_or_default())
                .unwrap();
            let answer = answers.iter().find(|(of, ..)| *of == path);
            let (_, kind, fields, body) =
                answer.copied().unwrap_or(("", "text/plain", "", "nothing"));
            // A page that shows a first visit: it sets the browser's first cookie.
            let cookie = match (kind, fields) {
                ("text/html", "") => "Set-Cookie: first=1\r\n",
                _ => "",
            };
            let status = match fields {
                moved if moved.starts_with("Location") => "302 Found",
                _ if answer.is_none() => "404 Not Found",
                _ => "200 OK",
            };
            client.send(format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{cookie}{fields}Content-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    (scene, told)
}

fn gateway_that_always_pushes(session: &str) -> Pair {
    Pair::with(session, |gateway| gateway.hold_out = Some(0.0), |_| {})
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
fn browser_cannot_reach_the_companion() {
    let pair = gateway_that_always_pushes("h2");
    for method in ["POST", "GET"] {
        let mut client = pair.connect();
        client.send(request(
            method,
            "http://push.tandem.invalid/",
            "Content-Length: 0\r\n",
        ));
        assert_eq!(
            client.answer(method).status,
            502,
            "{method}: as for a name without a host"
        );
    }
}

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
fn digest_of_an_earlier_session_spares_pushes() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png><img src=d.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
        ("/d.png", "image/png", "", "d"),
    ];
    for (digest, expected) in [
        (Some(false), ["/c.png", "/d.png", "/page"].as_slice()),
        (None, &["/d.png", "/page"]),
    ] {
        let (origin, told) = site(answers);
        let mut options = gateway_options();
        options.hold_out = Some(0.0);
        let (_gateway, gateway) = start_gateway(options);
        let way = Way::to(gateway);
        let mut options = client_options(&format!("h2+tcp://{}", way.address));
        options.push_digest = digest;
        let (_client, http, _) = start_client(options);
        let mut client = Client::to(http);
        for path in ["/page", "/c.png", "/d.png"] {
            client.send(request("GET", &origin.url(path), "Accept: */*\r\n"));
            client.answer("GET");
        }
        wait_for(&told, 3);
        way.close();
        // The digest is sent with the first of these requests.
        for _ in 0..4 {
            let fields = "Accept: text/html\r\n";
            client.send(request("GET", &origin.url("/other"), fields));
            client.answer("GET");
        }
        assert_eq!(received(&told), ["/other"; 4]);
        client.send(request("GET", &origin.url("/page"), ""));
        client.answer("GET");
        assert_eq!(wait_for(&told, expected.len()), expected, "{digest:?}");
        assert!(way.connections() > 1, "a later session");
    }
}

/// A browser with a cookie has visited the site, so its bodies wait. Its cache answers most
/// requests, and the gateway fetches a resource once the browser lacks it.
#[test]
fn returning_browser_is_sent_bodies_on_demand() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png><img src=p.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
        ("/p.png", "image/png", "", "p"),
    ];
    let elsewhere = Scene::at("127.0.0.2", |_, mut client| {
        while client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    for session in SESSIONS {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let cookie = "Cookie: first=1\r\n";
        let navigation = format!("Accept: text/html\r\n{cookie}");
        let mut client = pair.connect();
        // The companion comes with the first page, and over HTTP/3 perhaps after its response.
        client.send(request("GET", &elsewhere.url("/"), &navigation));
        assert_eq!(client.answer("GET").body, b"ok");
        client.send(request("GET", &origin.url("/page"), &navigation));
        assert_eq!(client.answer("GET").status, 200);
        let get = |client: &mut Client, path: &str, fields: &str| {
            client.send(request("GET", &origin.url(path), fields));
            client.answer("GET").body
        };
        // A request for another resource goes to the origin behind all fetches that have begun.
        assert_eq!(get(&mut client, "/else", ""), b"nothing");
        assert_eq!(
            received(&told),
            ["/pagefirst=1", "/else"],
            "{session}: nothing is fetched for the cache of the browser"
        );
        assert_eq!(get(&mut client, "/p.png", cookie), b"p");
        assert_eq!(wait_for(&told, 1), ["/p.pngfirst=1"], "{session}");
        assert_eq!(get(&mut client, "/c.png", cookie), b"c");
        assert_eq!(wait_for(&told, 1), ["/c.pngfirst=1"], "{session}");
    }
}

#[test]
fn digest_stays_within_its_isolation_key() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
    ];
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let get = |path: &str, key: &str, accept: &str| {
        let mut client = Client::to(pair.http);
        let fields = format!("Proxy-Authorization: Key {key}\r\nAccept: {accept}\r\n");
        client.send(request("GET", &origin.url(path), &fields));
        assert_eq!(client.answer("GET").status, 200);
    };
    get("/c.png", "one", "*/*");
    assert_eq!(wait_for(&told, 1), ["/c.png"]);
    get("/page", "two", "text/html");
    assert_eq!(wait_for(&told, 2), ["/c.png", "/page"]);
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

/// An origin with a page that names 60 images. It records the paths of its requests in order, and
/// answers an image after permission. The gateway may have two connections to it, so one push is
/// fetched at a time.
fn one_at_a_time(session: &str) -> (Pair, Scene, mpsc::Receiver<String>, mpsc::SyncSender<()>) {
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::sync_channel(0);
    let gone = std::sync::Mutex::new(gone);
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let page: String = (10..70).map(|i| format!("<img src=/{i}.png>")).collect();
            let (kind, body) = if path == "/page" {
                ("text/html", page)
            } else {
                ("image/png", path.clone())
            };
            let _ = tell.send(path.clone());
            if path != "/page" {
                gone.lock().unwrap().recv().unwrap();
            }
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    let pair = Pair::with(
        session,
        |gateway| {
            gateway.hold_out = Some(0.0);
            gateway.max_connections_per_origin = Some(2);
        },
        |_| {},
    );
    (pair, origin, told, go)
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
                    client
                        .stream
                        .get_ref()
                        .set_read_timeout(Some(std::time::Duration::from_secs(3)))
                        .unwrap();
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

/// An origin at two addresses, which are two sites. The page of one names resources of the other.
/// The origin tells the address and the path of each request.
fn two_sites() -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::at("0.0.0.0", move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let (host, port) = asked.field("host").unwrap().rsplit_once(':').unwrap();
            let far = format!("http://127.0.0.2:{port}");
            let (kind, fields, body) = if path.starts_with("/page") {
                let page = format!(
                    "<link rel=stylesheet href={far}/a.css><img src=/own.png><script src={far}/b.js></script>\
                     <img src={far}/c.png><img src={far}/d.png>"
                );
                ("text/html", "", page)
            } else {
                ("text/plain", "Cache-Control: max-age=600\r\n", path.clone())
            };
            tell.send(format!("{host}{path}")).unwrap();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    (scene, told)
}

#[test]
fn foreign_resources_wait_for_their_host() {
    for session in SESSIONS {
        let (origin, told) = two_sites();
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        let mut load = |address: &str, path: &str, count: usize| {
            client.get(&format!("http://{address}:{}{path}", origin.address.port()));
            let mut asked = wait_for(&told, count);
            asked.extend(received(&told));
            asked
        };
        let first = load("127.0.0.1", "/page", 3);
        assert_eq!(
            first,
            ["127.0.0.1/own.png", "127.0.0.1/page", "127.0.0.2/a.css"],
            "{session}: style sheets, and the page's own resources"
        );
        let rest = load("127.0.0.2", "/c.png", 3);
        assert_eq!(
            rest,
            ["127.0.0.2/b.js", "127.0.0.2/c.png", "127.0.0.2/d.png"],
            "{session}: the browser does not block the host"
        );
        for path in ["/a.css", "/b.js", "/d.png"] {
            assert_eq!(
                load("127.0.0.2", path, 0),
                [""; 0],
                "{session}: {path} was pushed"
            );
        }
        assert_eq!(
            load("127.0.0.1", "/page?2", 1),
            ["127.0.0.1/page?2"],
            "{session}: the client has them"
        );
    }
}

#[test]
fn push_to_one_user_serves_no_other() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<script src=a.js></script>"),
        (
            "/a.js",
            "text/javascript",
            "Cache-Control: public, max-age=600\r\n",
            "a",
        ),
    ];
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let (other_running, other, _) = crate::harness::start_client(crate::harness::client_options(
        &format!("h2+tcp://{}", pair.gateway),
    ));
    let (mut anna, mut bert) = (pair.connect(), Client::to(other));
    anna.send(request("GET", &origin.url("/page"), "Cookie: who=anna\r\n"));
    anna.answer("GET");
    assert_eq!(wait_for(&told, 2), ["/a.jswho=anna", "/pagewho=anna"]);
    bert.get(&origin.url("/a.js"));
    assert_eq!(received(&told), ["/a.js"], "another session gets no push");
    anna.send(request("GET", &origin.url("/a.js"), "Cookie: who=anna\r\n"));
    anna.answer("GET");
    assert_eq!(received(&told), [""; 0], "the push waited for its user");
    crate::harness::block_on(other_running.drain(std::time::Duration::ZERO));
}

#[test]
fn pushes_obey_the_destination_policy() {
    let (inside, asked_inside) = two_sites();
    let port = inside.address.port();
    let page = format!(
        "<link rel=stylesheet href=http://127.0.0.2:{port}/a.css><link rel=stylesheet href=http://localhost:{port}/b.css>\
         <meta http-equiv=refresh content='0;url=http://127.0.0.3:{port}/c'><img src=/own.png>"
    );
    let answers: &'static [_] = Box::leak(Box::new([
        ("/page", "text/html", "", &*Box::leak(page.into_boxed_str())),
        ("/own.png", "image/png", "Location: /d\r\n", ""),
    ]));
    let (origin, told) = site(answers);
    let only = format!("{}", origin.address);
    let pair = Pair::with(
        "h2",
        |gateway| {
            gateway.hold_out = Some(0.0);
            gateway.allow_dest = vec![only.replace("127.0.0.1", "127.0.0.1/32").parse().unwrap()];
        },
        |_| {},
    );
    pair.connect().get(&origin.url("/page"));
    assert_eq!(wait_for(&told, 3), ["/d", "/own.png", "/page"]);
    assert!(
        asked_inside.try_recv().is_err(),
        "the policy holds for pushes"
    );
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
