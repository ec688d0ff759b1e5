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
                format!(
                    "HTTP/1.1 200 OK\r\n{fields_of_assets}Content-Length: {}\r\n\r\n{path}",
                    path.len()
                )
            };
            tell.send(path).unwrap();
            client.send(answer);
        }
    });
    (scene, told)
}

fn wait_for(told: &mpsc::Receiver<String>, count: usize) -> Vec<String> {
    let mut paths: Vec<_> = (0..count)
        .map(|_| told.recv_timeout(PATIENCE).unwrap())
        .collect();
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
fn a_push_belongs_to_its_isolation_key() {
    let (origin, told) = origin("");
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
    assert_eq!(
        wait_for(&told, 1),
        ["/a.css"],
        "another key asks for itself"
    );
    get("/a.css", "one");
    assert!(told.try_recv().is_err());
}

#[test]
fn what_must_not_be_stored_or_differs_is_asked_for() {
    for (fields, request_fields) in [
        ("Cache-Control: no-store\r\n", ""),
        ("Vary: *\r\n", ""),
        ("Vary: X-Kind\r\n", "X-Kind: 1\r\n"),
        ("", "X-Requested-With: XMLHttpRequest\r\n"),
        ("", "Accept: application/json\r\n"),
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
        assert_eq!(
            wait_for(&told, 1),
            ["/a.css"],
            "{fields:?} {request_fields:?}"
        );
    }
}

/// Firefox names formats where it asks for fonts.
#[test]
fn firefox_gets_its_fonts() {
    for session in SESSIONS {
        let answers: &[_] = &[
            (
                "/page",
                "text/html",
                "",
                "<link rel=preload as=font crossorigin href=f.woff2>",
            ),
            ("/f.woff2", "font/woff2", "", "f"),
        ];
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        let agent = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n";
        client.send(request("GET", &origin.url("/page"), agent));
        client.answer("GET");
        assert_eq!(quiet(&told).len(), 2, "{session}");
        let accept =
            "Accept: application/font-woff2;q=1.0,application/font-woff;q=0.9,*/*;q=0.8\r\n";
        client.send(request(
            "GET",
            &origin.url("/f.woff2"),
            &format!("{agent}{accept}Referer: {}\r\n", origin.url("/page")),
        ));
        assert_eq!(client.answer("GET").body, b"f", "{session}");
        assert!(quiet(&told).is_empty(), "{session}");
    }
}

/// SPDY's promises say no fields: what the page was asked with is not what the push was asked with.
#[test]
fn what_a_promise_only_inherits_is_not_what_it_was_asked_with() {
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
        std::thread::sleep(std::time::Duration::from_millis(200));
        load("/a");
    }
}

/// The browser did not take a push, because it had it or was told that something has changed: later
/// it asks for it, which says nothing of what else it has.
#[test]
fn what_was_not_taken_is_no_sign_of_an_empty_cache() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png><img src=d.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
        ("/d.png", "image/png", "Cache-Control: max-age=600\r\n", "d"),
        ("/form", "text/html", "", ""),
    ];
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    let mut load = |method: &str, path: &str| {
        let fields = if method == "POST" {
            "Content-Length: 0\r\n"
        } else {
            ""
        };
        client.send(request(method, &origin.url(path), fields));
        client.answer(method);
        quiet(&told)
    };
    assert_eq!(load("GET", "/page").len(), 3);
    assert_eq!(load("GET", "/d.png"), [""; 0]);
    // The client lets go of what is left and tells so.
    assert_eq!(load("POST", "/form"), ["/form"]);
    assert_eq!(load("GET", "/page"), ["/page"]);
    assert_eq!(
        load("GET", "/c.png"),
        ["/c.png"],
        "the other is not sent again"
    );
}

#[test]
fn pushes_can_be_refused_and_are_bounded() {
    let (origin, told) = origin("");
    let pair = Pair::with("h2", |_| {}, |client| client.push = Some(false));
    pair.connect().get(&origin.url("/page"));
    assert_eq!(wait_for(&told, 1), ["/page"]);
    assert!(
        told.recv_timeout(std::time::Duration::from_millis(300))
            .is_err(),
        "nothing is fetched for who takes no push"
    );

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
    let asked: std::collections::HashSet<_> =
        std::iter::from_fn(|| told.recv_timeout(std::time::Duration::from_secs(1)).ok()).collect();
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

/// An origin with these answers by path: media type, further fields, body. It tells path and cookie
/// of each request.
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
            let status = match fields {
                moved if moved.starts_with("Location") => "302 Found",
                _ if answer.is_none() => "404 Not Found",
                _ => "200 OK",
            };
            client.send(format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    (scene, told)
}

fn gateway_that_always_pushes(session: &str) -> Pair {
    Pair::with(session, |gateway| gateway.hold_out = Some(0.0), |_| {})
}

fn quiet(told: &mpsc::Receiver<String>) -> Vec<String> {
    let mut paths: Vec<_> = std::iter::from_fn(|| {
        told.recv_timeout(std::time::Duration::from_millis(700))
            .ok()
    })
    .collect();
    paths.sort();
    paths
}

#[test]
fn what_a_page_and_its_style_sheets_say_is_pushed() {
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
            "{session}: what the two ends say to each other stays there"
        );
        let all = [
            "/a.css", "/b.js", "/c.png", "/d.css", "/e.png", "/f.png", "/page",
        ];
        assert_eq!(quiet(&told), all, "{session}");
        for (path, _, _, body) in &answers[1..] {
            assert_eq!(
                client.get(&origin.url(path)).body,
                body.as_bytes(),
                "{session} {path}"
            );
        }
        // Meanwhile the gateway is told that all of it was used.
        assert_eq!(
            quiet(&told),
            [""; 0],
            "{session}: what was found late went with the companion"
        );
        client.get(&origin.url("/page"));
        assert_eq!(
            quiet(&told).len(),
            7,
            "{session}: nothing said that it may be used again, so it comes again"
        );
    }
}

#[test]
fn what_the_client_can_use_again_is_not_sent_again() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
    ];
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    for expected in [["/c.png", "/page"].as_slice(), &["/page"]] {
        client.get(&origin.url("/page"));
        assert_eq!(quiet(&told), expected);
    }
}

#[test]
fn who_has_lost_what_he_had_gets_it_again() {
    let answers: &[_] = &[
        (
            "/page",
            "text/html",
            "ETag: \"1\"\r\n",
            "<img src=c.png><img src=d.png>",
        ),
        (
            "/dynamic",
            "text/html",
            "",
            "<img src=c.png><img src=d.png>",
        ),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
        ("/d.png", "image/png", "Cache-Control: max-age=600\r\n", "d"),
    ];
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    let mut load = |page: &str, fields: &str| {
        client.send(request("GET", &origin.url(page), fields));
        client.answer("GET");
        quiet(&told)
    };
    assert_eq!(load("/page", "").len(), 3);
    assert_eq!(
        load("/page", "If-None-Match: \"0\"\r\n"),
        ["/page"],
        "a browser that checks what it has"
    );
    for path in ["/c.png", "/d.png"] {
        assert_eq!(load(path, ""), [""; 0]);
    }
    assert_eq!(
        load("/page", "").len(),
        3,
        "a browser that asks as if it had never seen the page"
    );
    for path in ["/c.png", "/d.png"] {
        assert_eq!(load(path, ""), [""; 0]);
    }
    assert_eq!(
        load("/dynamic", ""),
        ["/dynamic"],
        "nothing tells that it lost the images"
    );
    assert_eq!(
        load("/c.png", ""),
        ["/c.png", "/d.png"],
        "now something does: the other comes along"
    );
    assert_eq!(load("/d.png", ""), [""; 0]);
}

/// The gateway judges as the browser's cache does: an answer that expired when it came is pushed
/// with each load, and a request for it does not mean that the cache was emptied.
#[test]
fn expired_answer_is_no_sign_of_an_empty_cache() {
    let images: String = (0..4).map(|i| format!("<img src=/{i}.png>")).collect();
    let page = Box::leak(format!("{images}<img src=d.png><img src=e.png>").into_boxed_str());
    let answers: &'static [_] = Box::leak(Box::new([
        ("/page", "text/html", "", &*page),
        ("/0.png", "image/png", "Expires: 0\r\n", "0"),
        (
            "/1.png",
            "image/png",
            "Expires: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
            "1",
        ),
        (
            "/2.png",
            "image/png",
            "Cache-Control: max-age=\"0\"\r\n",
            "2",
        ),
        ("/3.png", "image/png", "Cache-Control: Max-Age=0\r\n", "3"),
        ("/d.png", "image/png", "Cache-Control: max-age=600\r\n", "d"),
        ("/e.png", "image/png", "Cache-Control: Max-Age=600\r\n", "e"),
    ]));
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    let expired = ["/0.png", "/1.png", "/2.png", "/3.png"];
    client.get(&origin.url("/page"));
    for path in expired.iter().chain(&["/d.png", "/e.png"]) {
        client.get(&origin.url(path));
    }
    assert_eq!(quiet(&told).len(), 7);
    client.get(&origin.url("/page"));
    for path in expired {
        client.get(&origin.url(path));
    }
    assert_eq!(
        quiet(&told),
        ["/0.png", "/1.png", "/2.png", "/3.png", "/page"],
        "the browser has the others"
    );
}

#[test]
fn answers_say_that_they_were_pushed_only_when_asked_to() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<script src=a.js></script>"),
        ("/a.js", "text/javascript", "", "a"),
    ];
    for asked in [false, true] {
        let (origin, told) = site(answers);
        let pair = Pair::with(
            "h2",
            |gateway| gateway.hold_out = Some(0.0),
            |client| client.cache_status = Some(asked),
        );
        let mut client = pair.connect();
        assert_eq!(client.get(&origin.url("/page")).field("cache-status"), None);
        quiet(&told);
        let pushed = client.get(&origin.url("/a.js"));
        assert_eq!(
            pushed.field("cache-status"),
            asked.then_some("tandem; hit; detail=pushed")
        );
        assert_eq!(client.get(&origin.url("/a.js")).field("cache-status"), None);
    }
}

#[test]
fn cookies_go_to_the_page_s_own_origin_only() {
    let (other, other_told) = site(&[]);
    let elsewhere: &'static str =
        Box::leak(format!("<img src=own.png><img src={}>", other.url("/far.png")).into());
    let answers: &'static [_] = Box::leak(Box::new([
        ("/page", "text/html", "", elsewhere),
        ("/page?2", "text/html", "", elsewhere),
    ]));
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/page"), "Cookie: login=1\r\n"));
    assert_eq!(client.answer("GET").status, 200);
    assert_eq!(quiet(&told), ["/own.pnglogin=1", "/pagelogin=1"]);
    assert_eq!(quiet(&other_told), ["/far.png"]);
    client.send(request(
        "GET",
        &origin.url("/page?2"),
        "Authorization: Basic eDp5\r\n",
    ));
    client.answer("GET");
    assert_eq!(
        quiet(&told),
        ["/page?2"],
        "what takes a login is not asked for in its name"
    );
}

#[test]
fn a_poisoned_page_costs_bounded_work() {
    let mut page =
        "<meta http-equiv=refresh content='0;url=/page'><img src=/page><iframe src=/loop></iframe>"
            .to_owned();
    page += "<img src=http://10.0.0.1/secret><img src=http://169.254.169.254/latest><img src=http://[::1]:22/>";
    page.extend((0..1_000_000).map(|i| format!("<img src=/i{i}>")));
    let answers: &'static [_] = Box::leak(Box::new([
        ("/page", "text/html", "", &*Box::leak(page.into_boxed_str())),
        ("/loop", "text/plain", "Location: /loop\r\n", ""),
    ]));
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.get(&origin.url("/page"));
    let asked = quiet(&told);
    assert!((1000..=2049).contains(&asked.len()), "{}", asked.len());
    for once in ["/page", "/loop"] {
        assert_eq!(
            asked.iter().filter(|path| *path == once).count(),
            1,
            "{once}"
        );
    }
    assert_eq!(
        client.get(&origin.url("/other")).status,
        404,
        "the session goes on"
    );
}

#[test]
fn a_redirect_s_target_comes_with_it() {
    let answers: &[_] = &[
        ("/old", "text/html", "Location: /new\r\n", ""),
        ("/new", "text/html", "", "<img src=c.png>"),
        ("/c.png", "image/png", "", "c"),
    ];
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/old"), "Accept: text/html\r\n"));
    assert_eq!(client.answer("GET").status, 302);
    assert_eq!(quiet(&told), ["/c.png", "/new", "/old"]);
    assert_eq!(client.get(&origin.url("/new")).body, b"<img src=c.png>");
    assert_eq!(client.get(&origin.url("/c.png")).body, b"c");
    assert!(told.try_recv().is_err());
}

/// What an origin was asked for: path, the last part of the Referer, and whether a certain field
/// was there.
type Told = (String, Option<String>, bool);

/// An origin that answers paths with a type and a body, and tells what it was asked for, and
/// whether with this field.
fn telling(
    field: &'static str,
    answer: fn(&str) -> (&'static str, &'static str),
) -> (Scene, mpsc::Receiver<Told>) {
    telling_of(field, move |path| {
        let (kind, body) = answer(path);
        (kind, body.to_owned())
    })
}

/// The same where the body depends on what the test knows.
fn telling_of(
    field: &'static str,
    answer: impl Fn(&str) -> (&'static str, String) + Send + Sync + 'static,
) -> (Scene, mpsc::Receiver<Told>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let referer = asked
                .field("referer")
                .map(|url| url.rsplit('/').next().unwrap().to_owned());
            tell.send((path.clone(), referer, asked.field(field).is_some()))
                .unwrap();
            let (kind, body) = answer(&path);
            let length = body.len();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
            ));
        }
    });
    (scene, told)
}

/// What the document needs is asked for in its own name, wherever redirects have led to it, and
/// without another's cookie.
#[test]
fn what_is_behind_a_redirect_to_another_host_is_of_use() {
    for session in SESSIONS {
        let (there, told) = telling("cookie", |path| match path {
            "/page" => (
                "text/html",
                "<link rel=stylesheet href=a.css><img src=c.png>",
            ),
            "/a.css" => ("text/css", "p { background: url(b.png) }"),
            _ => ("image/png", "image"),
        });
        let moved = format!(
            "HTTP/1.1 301 Moved\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n",
            there.url("/page")
        );
        let here = Scene::answering(moved);
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        client.send(request(
            "GET",
            &here.url("/"),
            "Accept: text/html\r\nCookie: of=here\r\n",
        ));
        assert_eq!(client.answer("GET").status, 301);
        assert_eq!(client.get(&there.url("/page")).status, 200, "{session}");
        let (page, sheet) = (there.url("/page"), there.url("/a.css"));
        for (path, of) in [("/a.css", &page), ("/b.png", &sheet), ("/c.png", &page)] {
            client.send(request(
                "GET",
                &there.url(path),
                &format!("Referer: {of}\r\n"),
            ));
            assert_eq!(client.answer("GET").status, 200, "{session}");
        }
        let asked = all_asked(&told);
        let by = |path: &str, referer: Option<&str>| {
            (path.to_owned(), referer.map(str::to_owned), false)
        };
        let page = Some("page");
        let once = [
            by("/a.css", page),
            by("/b.png", Some("a.css")),
            by("/c.png", page),
            by("/page", None),
        ];
        assert_eq!(asked, once, "{session}");
    }
}

/// Of a page behind a redirect its own policy counts, not that of what led there.
#[test]
fn what_a_page_tells_of_itself_is_its_own_to_say() {
    for (of_redirect, of_page, meta, expected) in [
        ("unsafe-url", "no-referrer", "", None),
        (
            "unsafe-url",
            "",
            "<meta name=referrer content=no-referrer>",
            None,
        ),
        ("no-referrer", "unsafe-url", "", Some("page")),
    ] {
        let (tell, told) = mpsc::channel();
        let there = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                let path = asked.line.split(' ').nth(1).unwrap().to_owned();
                let referer = asked
                    .field("referer")
                    .map(|url| url.rsplit('/').next().unwrap().to_owned());
                tell.send((path.clone(), referer)).unwrap();
                let body = if path == "/page" {
                    format!("{meta}<img src=c.png>")
                } else {
                    String::new()
                };
                let policy = if of_page.is_empty() {
                    String::new()
                } else {
                    format!("Referrer-Policy: {of_page}\r\n")
                };
                let length = body.len();
                client.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{policy}Content-Length: {length}\r\n\r\n{body}"
                ));
            }
        });
        let here = Scene::answering(format!(
            "HTTP/1.1 302 Found\r\nLocation: {}\r\nReferrer-Policy: {of_redirect}\r\nContent-Length: 0\r\n\r\n",
            there.url("/page")
        ));
        let pair = gateway_that_always_pushes("h2");
        let mut client = pair.connect();
        client.send(request("GET", &here.url("/"), "Accept: text/html\r\n"));
        client.answer("GET");
        let asked = all_asked(&told);
        let by = |path: &str, referer: Option<&str>| (path.to_owned(), referer.map(str::to_owned));
        assert_eq!(
            asked,
            [by("/c.png", expected), by("/page", None)],
            "{of_redirect} {of_page} {meta}"
        );
    }
}

/// Style sheets and modules ask in their own name, as browsers have it, and of another host than
/// the page's too.
#[test]
fn what_style_sheets_and_modules_of_another_host_need_is_of_use() {
    for session in SESSIONS {
        let (there, told) = telling("origin", |path| match path {
            "/a.css" => (
                "text/css",
                "p { background: url(b.png) } @font-face { src: url(c.woff2) }",
            ),
            "/m.js" => ("text/javascript", "import './n.js'; run()"),
            _ => ("image/png", "bytes"),
        });
        let page = format!(
            "<link rel=stylesheet href={}><script type=module src={}></script>",
            there.url("/a.css"),
            there.url("/m.js")
        );
        let length = page.len();
        let here = Scene::answering(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n{page}"
        ));
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        // Of that host the client wants something: the rest follows.
        client.send(request("GET", &here.url("/page"), "Accept: text/html\r\n"));
        assert_eq!(client.answer("GET").status, 200);
        let site = here.url("/");
        let (sheet, module) = (there.url("/a.css"), there.url("/m.js"));
        let origin = site.trim_end_matches('/');
        let browser = [
            (&sheet, format!("Referer: {site}\r\n")),
            (&module, format!("Referer: {site}\r\nOrigin: {origin}\r\n")),
            (&there.url("/b.png"), format!("Referer: {sheet}\r\n")),
            (
                &there.url("/c.woff2"),
                format!("Referer: {sheet}\r\nOrigin: {origin}\r\n"),
            ),
            (
                &there.url("/n.js"),
                format!("Referer: {module}\r\nOrigin: {origin}\r\n"),
            ),
        ];
        for (url, fields) in browser {
            client.send(request("GET", url, &fields));
            assert_eq!(client.answer("GET").status, 200, "{session}");
        }
        let asked = all_asked(&told);
        let by =
            |path: &str, referer: &str, cors| (path.to_owned(), Some(referer.to_owned()), cors);
        let once = [
            by("/a.css", "", false),
            by("/b.png", "a.css", false),
            by("/c.woff2", "a.css", true),
            by("/m.js", "", true),
            by("/n.js", "m.js", true),
        ];
        assert_eq!(asked, once, "{session}: each once, as the browser asks");
    }
}

/// What the browser itself asks for of a page's parts is that page's, not one of its own: a page of
/// another host asks for the fonts of its style sheet, with its own origin and without cookies, and
/// for its images as it did for the style sheet.
#[test]
fn what_a_style_sheet_needs_that_the_browser_asked_for_is_its_pages() {
    for session in SESSIONS {
        for field in ["origin", "cookie"] {
            let (fonts, told_of_fonts) = telling(field, |_| ("font/woff2", "bytes"));
            let port = fonts.address.port();
            let (there, told) = telling_of(field, move |path| match path {
                "/a.css" => {
                    let font =
                        format!("@font-face {{ src: url(http://127.0.0.1:{port}/d.woff2) }}");
                    (
                        "text/css",
                        format!(
                            "p {{ background: url(b.png) }} @font-face {{ src: url(c.woff2) }} {font}"
                        ),
                    )
                }
                _ => ("image/png", "bytes".to_owned()),
            });
            let pair = gateway_that_always_pushes(session);
            let mut client = pair.connect();
            let (sheet, site) = (there.url("/a.css"), "http://site.test");
            let browser = [
                (&sheet, format!("Referer: {site}/\r\nCookie: of=there\r\n")),
                (
                    &there.url("/b.png"),
                    format!("Referer: {sheet}\r\nCookie: of=there\r\n"),
                ),
                (
                    &there.url("/c.woff2"),
                    format!("Referer: {sheet}\r\nOrigin: {site}\r\n"),
                ),
                (
                    &fonts.url("/d.woff2"),
                    format!("Referer: {}\r\nOrigin: {site}\r\n", there.url("/")),
                ),
            ];
            for (url, fields) in browser {
                client.send(request("GET", url, &fields));
                assert_eq!(client.answer("GET").status, 200, "{session}");
            }
            let mut asked = all_asked(&told);
            asked.extend(told_of_fonts.try_iter());
            let by = |path: &str, referer: &str, cors: bool| {
                (
                    path.to_owned(),
                    Some(referer.to_owned()),
                    cors == (field == "origin"),
                )
            };
            let once = [
                by("/a.css", "", false),
                by("/b.png", "a.css", false),
                by("/c.woff2", "a.css", true),
                by("/d.woff2", "", true),
            ];
            assert_eq!(
                asked, once,
                "{session}: each once, as the browser asks: {field}"
            );
        }
    }
}

/// A font that one site's page named and nobody asked for is of no use to another's: that gets its
/// own.
#[test]
fn what_was_pushed_for_another_sites_page_makes_way() {
    for session in SESSIONS {
        let (fonts, told) = telling("origin", |_| ("font/woff2", "bytes"));
        let font = fonts.url("/f.woff2");
        let page = format!("<link rel=preload as=font crossorigin href={font}>");
        let length = page.len();
        let site = || {
            Scene::answering(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n{page}"
            ))
        };
        let (one, other) = (site(), site());
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        for (site, so_far) in [(&one, 1), (&other, 1)] {
            client.send(request("GET", &site.url("/page"), "Accept: text/html\r\n"));
            assert_eq!(client.answer("GET").status, 200, "{session}");
            assert_eq!(all_asked(&told).len(), so_far, "{session}: each page's own");
        }
        let site = other.url("/");
        client.send(request(
            "GET",
            &font,
            &format!(
                "Referer: {site}\r\nOrigin: {}\r\n",
                site.trim_end_matches('/')
            ),
        ));
        assert_eq!(client.answer("GET").body, b"bytes", "{session}");
        assert!(all_asked(&told).is_empty(), "{session}: it was there");
    }
}

/// Over SPDY no redirect can be pushed: the client asks for it, and what is behind it is on its way
/// all the same.
#[test]
fn what_is_behind_redirects_comes_once() {
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
        let mut asked = Vec::new();
        for path in ["/old", "/older", "/new"] {
            client.send(request("GET", &origin.url(path), "Accept: text/html\r\n"));
            let status = client.answer("GET").status;
            assert_eq!(
                status,
                if path == "/new" { 200 } else { 302 },
                "{session} {path}"
            );
            asked.extend(quiet(&told));
        }
        for path in ["/c.png", "/d.png"] {
            assert_eq!(client.get(&origin.url(path)).status, 200, "{session}");
        }
        asked.extend(quiet(&told));
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
fn what_depends_on_who_asks_is_not_pushed() {
    for fields in [
        "Vary: Cookie\r\n",
        "Vary: Accept, Authorization\r\n",
        "Cache-Control: no-store\r\n",
    ] {
        let answers: &'static [_] = Box::leak(Box::new([
            ("/page", "text/html", "", "<img src=c.png>"),
            ("/c.png", "image/png", fields, "c"),
        ]));
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes("h2");
        let mut client = pair.connect();
        client.get(&origin.url("/page"));
        assert_eq!(quiet(&told), ["/c.png", "/page"]);
        assert_eq!(client.get(&origin.url("/c.png")).body, b"c");
        assert_eq!(
            quiet(&told),
            ["/c.png"],
            "{fields:?}: asked for by who wanted it"
        );
    }
}

#[test]
fn an_answer_that_may_be_old_is_asked_for_again() {
    let answers: &[_] = &[
        (
            "/page",
            "text/html",
            "",
            "<script src=/cart></script><script src=/other></script>",
        ),
        ("/cart", "text/javascript", "", "cart"),
        ("/other", "text/javascript", "", "other"),
    ];
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.get(&origin.url("/page"));
    quiet(&told);
    client.send(request(
        "POST",
        &origin.url("/buy"),
        "Content-Length: 0\r\n",
    ));
    assert_eq!(client.answer("POST").status, 404);
    client.get(&origin.url("/cart"));
    assert_eq!(
        quiet(&told),
        ["/buy", "/cart"],
        "what was fetched before something was changed is not used"
    );
}

#[test]
fn a_large_gallery_comes_whole() {
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
fn a_full_store_still_serves_who_waits() {
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
fn cookies_and_origins_part_answers() {
    let answers: &[_] = &[
        (
            "/page",
            "text/html",
            "",
            "<script src=/own.js></script><script src=/all.js></script><script src=/open.js></script>",
        ),
        ("/own.js", "text/javascript", "", "mine"),
        (
            "/all.js",
            "text/javascript",
            "Cache-Control: public, max-age=600\r\n",
            "all's",
        ),
        (
            "/open.js",
            "text/javascript",
            "Cache-Control: public, max-age=600\r\nAccess-Control-Allow-Origin: *\r\n",
            "all's",
        ),
    ];
    for session in SESSIONS {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        client.send(request("GET", &origin.url("/page"), "Cookie: who=anna\r\n"));
        client.answer("GET");
        assert_eq!(
            quiet(&told),
            [
                "/all.jswho=anna",
                "/open.jswho=anna",
                "/own.jswho=anna",
                "/pagewho=anna"
            ]
        );
        client.send(request(
            "GET",
            &origin.url("/own.js"),
            "Cookie: who=bert\r\n",
        ));
        let answer = client.answer("GET");
        assert_eq!(
            (answer.body.as_slice(), answer.field("tandem-asked")),
            (b"mine".as_slice(), None)
        );
        assert_eq!(
            quiet(&told),
            ["/own.jswho=bert"],
            "{session}: another's cookie, another's answer"
        );
        client.send(request(
            "GET",
            &origin.url("/all.js"),
            "Cookie: who=bert\r\nOrigin: http://elsewhere.test\r\n",
        ));
        client.answer("GET");
        assert_eq!(
            quiet(&told),
            ["/all.jswho=bert"],
            "{session}: who asks across origins wants to hear that he may"
        );
        let open = origin.url("/open.js");
        client.send(request(
            "GET",
            &origin.url("/all.js"),
            "Cookie: who=bert\r\n",
        ));
        assert_eq!(client.answer("GET").body, b"all's");
        assert_eq!(
            quiet(&told),
            [""; 0],
            "{session}: the same for all, as its origin says"
        );
        client.send(request("GET", &open, "Origin: http://elsewhere.test\r\n"));
        assert_eq!(client.answer("GET").body, b"all's");
        assert_eq!(
            quiet(&told),
            ["/open.js"],
            "{session}: without a cookie it may be another"
        );
    }
}

#[test]
fn what_all_origins_may_read_is_for_each_of_them() {
    let answers: &[_] = &[
        (
            "/page",
            "text/html",
            "",
            "<script src=/open.js></script><script src=/own.js></script>",
        ),
        (
            "/open.js",
            "text/javascript",
            "Access-Control-Allow-Origin: *\r\n",
            "all's",
        ),
        ("/own.js", "text/javascript", "", "mine"),
    ];
    for session in SESSIONS {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        client.get(&origin.url("/page"));
        assert_eq!(quiet(&told), ["/open.js", "/own.js", "/page"]);
        for path in ["/open.js", "/own.js"] {
            client.send(request(
                "GET",
                &origin.url(path),
                "Origin: http://elsewhere.test\r\n",
            ));
            client.answer("GET");
        }
        assert_eq!(quiet(&told), ["/own.js"], "{session}");
    }
}

/// What another site answers where a style sheet was asked for is no document, and what a frame of
/// it names is asked for in the frame's own name: neither the page's cookies nor its address go
/// with that.
#[test]
fn what_another_site_answers_has_nothing_of_the_page_s() {
    let (tell, told) = mpsc::channel();
    // The answers of a site, whose own host and query they are made with.
    let site = |answer: fn(&str, &str, &str) -> String| {
        let tell = tell.clone();
        Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                let target = asked.line.split(' ').nth(1).unwrap();
                let (path, query) = target.split_once('?').unwrap_or((target, ""));
                let referer = asked.field("referer").map(str::to_owned);
                tell.send((path.to_owned(), referer, asked.field("cookie").is_some()))
                    .unwrap();
                let body = answer(path, asked.field("host").unwrap(), query);
                let length = body.len();
                let fields = "Content-Type: text/html\r\nReferrer-Policy: no-referrer\r\n";
                let fields = if path == "/page" {
                    fields
                } else {
                    &fields[..25]
                };
                client.send(format!(
                    "HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
                ));
            }
        })
    };
    let there = site(|path, _, here| match path {
        "/s.css" => format!(
            "<meta name=referrer content=unsafe-url><img src=/leak.png><img src=http://{here}/delete>"
        ),
        "/frame" => format!("<img src=f.png><img src=http://{here}/private>"),
        _ => String::new(),
    });
    let here = site(|path, here, there| match path {
        "/page" => {
            format!(
                "<link rel=stylesheet href={there}/s.css?{here}><iframe src={there}/frame?{here}></iframe>"
            )
        }
        _ => String::new(),
    });
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    let origin = there.url("");
    client.send(request(
        "GET",
        &here.url(&format!("/page?{origin}")),
        "Accept: text/html\r\nCookie: who=anna\r\n",
    ));
    client.answer("GET");
    let asked = all_asked(&told);
    let frame = format!(
        "{origin}/frame?{}",
        here.url("").trim_start_matches("http://")
    );
    let by = |path: &str, referer: Option<&str>, cookie| {
        (path.to_owned(), referer.map(str::to_owned), cookie)
    };
    let expected = [
        by("/f.png", Some(&frame), false),
        by("/frame", None, false),
        by("/page", None, true),
        by("/private", Some(&format!("{origin}/")), false),
        by("/s.css", None, false),
    ];
    assert_eq!(asked, expected);
}

#[test]
fn what_one_site_had_fetched_is_not_another_site_s() {
    let (other, other_told) = site(&[("/p.png", "image/png", "", "no hotlinks")]);
    let page: &'static str = Box::leak(format!("<img src={}>", other.url("/p.png")).into());
    let (origin, _told) = site(Box::leak(Box::new([("/page", "text/html", "", page)])));
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.get(&origin.url("/page"));
    assert_eq!(quiet(&other_told), ["/p.png"]);
    client.send(request(
        "GET",
        &other.url("/p.png"),
        &format!("Referer: {}\r\n", other.url("/")),
    ));
    client.answer("GET");
    assert_eq!(
        quiet(&other_told),
        ["/p.png"],
        "its own page asks for itself"
    );
}

#[test]
fn no_page_reaches_the_companion() {
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
            "{method}: as any name that is nobody's"
        );
    }
}

#[test]
fn a_page_that_was_left_is_not_gone_on_with() {
    let many: String = (0..600).map(|i| format!("<img src=/i{i}>")).collect();
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            tell.send(path.clone()).unwrap();
            if path == "/page" {
                // The rest never comes.
                client
                    .send(format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 99999\r\n\r\n{many}"));
            } else {
                std::thread::sleep(std::time::Duration::from_millis(50));
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx");
            }
        }
    });
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/page"), ""));
    told.recv_timeout(PATIENCE).unwrap();
    drop(client);
    let asked = quiet(&told).len();
    assert!(
        asked < 400,
        "{asked} more requests for a page that nobody waits for"
    );
}

#[test]
fn a_digest_spares_what_an_earlier_session_brought() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png><img src=d.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
        ("/d.png", "image/png", "", "d"),
    ];
    for (digest, expected) in [
        (false, ["/c.png", "/d.png", "/page"].as_slice()),
        (true, &["/d.png", "/page"]),
    ] {
        let (origin, told) = site(answers);
        let pair = Pair::with(
            "h2",
            |gateway| gateway.hold_out = Some(0.0),
            |client| {
                client.push_digest = Some(digest);
                client.max_age = Some("1s".parse().unwrap());
            },
        );
        let mut client = pair.connect();
        for path in ["/page", "/c.png", "/d.png"] {
            client.send(request("GET", &origin.url(path), "Accept: */*\r\n"));
            client.answer("GET");
        }
        quiet(&told);
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let mut client = pair.connect();
        client.send(request(
            "GET",
            &origin.url("/other"),
            "Accept: text/html\r\n",
        ));
        client.answer("GET");
        assert_eq!(quiet(&told), ["/other"]);
        client.send(request("GET", &origin.url("/page"), ""));
        client.answer("GET");
        assert_eq!(quiet(&told), expected, "{digest}");
    }
}

#[test]
fn what_depends_on_the_browser_is_pushed_beyond_redirects_too() {
    let answers: &[_] = &[
        (
            "/old",
            "text/html",
            "Location: /new\r\nVary: Accept-Encoding\r\n",
            "",
        ),
        (
            "/new",
            "text/html",
            "Vary: Accept-Encoding, User-Agent\r\n",
            "<link rel=stylesheet href=a.css>",
        ),
        (
            "/a.css",
            "text/css",
            "Vary: Accept-Encoding\r\n",
            "p { background: url(b.png) }",
        ),
        ("/b.png", "image/png", "Vary: Accept\r\n", "b"),
    ];
    let browser = "User-Agent: Mozilla/5.0 Chrome/1\r\nAccept-Encoding: gzip\r\n";
    let image = "Accept: image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8\r\n";
    for session in SESSIONS {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        client.send(request(
            "GET",
            &origin.url("/old"),
            &format!("{browser}Accept: text/html\r\n"),
        ));
        assert_eq!(client.answer("GET").status, 302);
        assert_eq!(
            quiet(&told),
            ["/a.css", "/b.png", "/new", "/old"],
            "{session}"
        );
        for (path, more) in [
            ("/new", "Accept: text/html\r\n"),
            ("/a.css", "Accept: text/css,*/*;q=0.1\r\n"),
            ("/b.png", image),
        ] {
            client.send(request(
                "GET",
                &origin.url(path),
                &format!("{browser}{more}"),
            ));
            assert_eq!(client.answer("GET").status, 200);
        }
        assert_eq!(quiet(&told), [""; 0], "{session}");
        client.send(request(
            "GET",
            &origin.url("/old"),
            &format!("{browser}Accept: text/html\r\n"),
        ));
        client.answer("GET");
        quiet(&told);
        client.send(request(
            "GET",
            &origin.url("/new"),
            "User-Agent: another\r\nAccept-Encoding: gzip\r\n",
        ));
        client.answer("GET");
        assert!(
            quiet(&told).contains(&"/new".to_owned()),
            "{session}: another browser's answer is its own"
        );
    }
}

#[test]
fn an_answer_without_a_body_is_an_answer() {
    for session in SESSIONS {
        let (tell, told) = mpsc::channel();
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                let path = asked.line.split(' ').nth(1).unwrap().to_owned();
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
                tell.send(path).unwrap();
            }
        });
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        client.get(&origin.url("/page"));
        assert_eq!(
            quiet(&told),
            ["/broken", "/dot", "/page", "/pixel"],
            "{session}"
        );
        for (path, status) in [("/pixel", 204), ("/dot", 200), ("/broken", 500)] {
            assert_eq!(client.get(&origin.url(path)).status, status, "{session}");
        }
        // A SPDY push says its status before its answer has come, so it can only be 200.
        let again: &[_] = if session == "h2" {
            &["/broken"]
        } else {
            &["/broken", "/pixel"]
        };
        assert_eq!(
            quiet(&told),
            again,
            "{session}: only what cannot be pushed is asked for again"
        );
    }
}

/// An origin whose page names 60 images, of which it answers none before it is let: then it tells
/// what it was asked for, in order, and answers. Two connections may be open to it, so one push is
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
fn who_asks_for_what_is_still_to_be_fetched_goes_first() {
    for session in SESSIONS {
        let (pair, origin, told, go) = one_at_a_time(session);
        pair.connect().get(&origin.url("/page"));
        let next = || told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(
            [next(), next()],
            ["/page", "/10.png"],
            "{session}: one push has the place that pushes get"
        );
        let (mut first, mut second) = (pair.connect(), pair.connect());
        first.send(request("GET", &origin.url("/35.png"), ""));
        assert_eq!(
            next(),
            "/35.png",
            "{session}: what is asked for gets the other place, pushed or not"
        );
        // One that is not even among the 32 that wait for a connection. That the gateway has heard
        // of it cannot be seen.
        second.send(request("GET", &origin.url("/69.png"), ""));
        std::thread::sleep(std::time::Duration::from_millis(700));
        for _ in 0..2 {
            go.send(()).unwrap();
        }
        let mut then = [next(), next()];
        then.sort();
        assert_eq!(then, ["/11.png", "/69.png"], "{session}");
    }
}

#[test]
fn what_is_of_no_use_is_read_to_its_end_unless_it_is_to_be_cancelled() {
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

/// An origin at two addresses, which are two sites: the page of one names things of the other. It
/// tells address and path of each request, and its Referer.
fn two_sites(fields_of_page: &'static str) -> (Scene, mpsc::Receiver<(String, Option<String>)>) {
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
                ("text/html", fields_of_page, page)
            } else {
                ("text/plain", "Cache-Control: max-age=600\r\n", path.clone())
            };
            tell.send((
                format!("{host}{path}"),
                asked.field("referer").map(|of| of.replace(port, "*")),
            ))
            .unwrap();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    (scene, told)
}

/// What was asked for until nothing is, in order of names.
fn all_asked<T: Ord>(told: &mpsc::Receiver<T>) -> Vec<T> {
    let mut asked: Vec<_> = std::iter::from_fn(|| {
        told.recv_timeout(std::time::Duration::from_millis(700))
            .ok()
    })
    .collect();
    asked.sort();
    asked
}

#[test]
fn of_another_site_only_what_the_client_wants_at_all_is_pushed() {
    for session in SESSIONS {
        let (origin, told) = two_sites("");
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        let mut load = |address: &str, path: &str| {
            client.get(&format!("http://{address}:{}{path}", origin.address.port()));
            all_asked(&told)
                .into_iter()
                .map(|asked| asked.0)
                .collect::<Vec<_>>()
        };
        let first = load("127.0.0.1", "/page");
        assert_eq!(
            first,
            ["127.0.0.1/own.png", "127.0.0.1/page", "127.0.0.2/a.css"],
            "{session}: styles, and its own"
        );
        let rest = load("127.0.0.2", "/c.png");
        assert_eq!(
            rest,
            ["127.0.0.2/b.js", "127.0.0.2/c.png", "127.0.0.2/d.png"],
            "{session}: it does not block them"
        );
        for path in ["/a.css", "/b.js", "/d.png"] {
            assert_eq!(
                load("127.0.0.2", path),
                [""; 0],
                "{session}: {path} was pushed"
            );
        }
        assert_eq!(
            load("127.0.0.1", "/page?2"),
            ["127.0.0.1/page?2"],
            "{session}: it has them"
        );
    }
}

#[test]
fn pushes_tell_of_their_page_what_it_lets_them() {
    let (page, origin) = (
        Some("http://127.0.0.1:*/page".to_owned()),
        Some("http://127.0.0.1:*/".to_owned()),
    );
    for (fields, own, far) in [
        ("", &page, &origin),
        ("Referrer-Policy: no-referrer\r\n", &None, &None),
        ("Referrer-Policy: same-origin\r\n", &page, &None),
        (
            "Referrer-Policy: unknown, strict-origin\r\n",
            &origin,
            &origin,
        ),
        (
            "Referrer-Policy: no-referrer\r\nReferrer-Policy: unsafe-url\r\n",
            &page,
            &page,
        ),
    ] {
        let (scene, told) = two_sites(fields);
        let pair = gateway_that_always_pushes("h2");
        pair.connect()
            .get(&format!("http://127.0.0.1:{}/page", scene.address.port()));
        let asked = all_asked(&told);
        let of = |path: &str| {
            asked
                .iter()
                .find(|asked| asked.0 == path)
                .map(|asked| asked.1.clone())
        };
        assert_eq!(of("127.0.0.1/own.png").as_ref(), Some(own), "{fields:?}");
        assert_eq!(of("127.0.0.2/a.css").as_ref(), Some(far), "{fields:?}");
    }
    let body = "<meta name=referrer content=no-referrer><img src=a.png><img src=b.png referrerpolicy=origin>";
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            tell.send((
                asked.line.clone(),
                asked.field("referer").map(str::to_owned),
            ))
            .unwrap();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    let pair = gateway_that_always_pushes("h2");
    pair.connect().get(&scene.url("/page"));
    let asked = all_asked(&told);
    let referers: Vec<_> = asked.iter().map(|asked| asked.1.clone()).collect();
    assert_eq!(referers, [None, Some(scene.url("/")), None], "{asked:?}");
}

#[test]
fn what_has_gone_stale_is_asked_for_again() {
    let page = "<img src=/short><img src=/long><img src=/check><img src=/past><img src=/nothing>";
    let answers: &'static [_] = Box::leak(Box::new([
        ("/page", "text/html", "", page),
        ("/short", "image/png", "Cache-Control: max-age=4\r\n", "s"),
        ("/long", "image/png", "Cache-Control: max-age=60\r\n", "l"),
        ("/check", "image/png", "Cache-Control: no-cache\r\n", "c"),
        (
            "/past",
            "image/png",
            "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nExpires: 0\r\n",
            "p",
        ),
        ("/nothing", "image/png", "", "n"),
    ]));
    for wait in [0, 5] {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes("h2");
        let mut client = pair.connect();
        client.get(&origin.url("/page"));
        assert_eq!(quiet(&told).len(), 6);
        std::thread::sleep(std::time::Duration::from_secs(wait));
        for (path, _, _, body) in &answers[1..] {
            assert_eq!(client.get(&origin.url(path)).body, body.as_bytes());
        }
        let again: &[_] = if wait == 0 {
            &[]
        } else {
            &["/check", "/past", "/short"]
        };
        assert_eq!(quiet(&told), again, "after {wait} s");
    }
}

#[test]
fn what_is_pushed_to_one_user_is_nothing_to_another() {
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
    assert_eq!(quiet(&told), ["/a.jswho=anna", "/pagewho=anna"]);
    bert.get(&origin.url("/a.js"));
    assert_eq!(
        quiet(&told),
        ["/a.js"],
        "whoever asks on another session asks for himself"
    );
    anna.send(request("GET", &origin.url("/a.js"), "Cookie: who=anna\r\n"));
    anna.answer("GET");
    assert_eq!(quiet(&told), [""; 0], "hers has waited for her");
    crate::harness::block_on(other_running.drain(std::time::Duration::ZERO));
}

#[test]
fn a_page_cannot_have_the_gateway_s_own_network_asked() {
    let (inside, asked_inside) = two_sites("");
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
    assert_eq!(quiet(&told), ["/d", "/own.png", "/page"]);
    assert!(
        asked_inside.try_recv().is_err(),
        "policy holds for pushes as for requests"
    );
}

/// A gallery of which the reader sees the first rows.
#[test]
fn of_what_is_lazy_the_first_of_a_page_are_pushed() {
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let (kind, body) = if path == "/page" {
                let images =
                    (0..100).map(|number| format!("<img loading=lazy src=/{number:02}.png>"));
                (
                    "text/html",
                    images.chain(["<img src=/seen.png>".to_owned()]).collect(),
                )
            } else {
                tell.send(path).unwrap();
                ("image/png", String::new())
            };
            let length = body.len();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
            ));
        }
    });
    let pair = gateway_that_always_pushes("h2");
    pair.connect().get(&origin.url("/page"));
    let mut expected: Vec<_> = (0..16).map(|number| format!("/{number:02}.png")).collect();
    expected.push("/seen.png".to_owned());
    assert_eq!(all_asked(&told), expected);
}

#[test]
fn a_push_without_end_is_cut_off() {
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

/// What somebody reads is his, however long it is, where it would have come whole without push.
#[test]
fn a_long_answer_that_was_pushed_comes_whole_to_who_asks() {
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
