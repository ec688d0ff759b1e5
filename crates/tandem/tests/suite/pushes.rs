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

/// An origin with these answers by path: media type, further fields, body. It tells path and cookie of each request.
fn site(
    answers: &'static [(&'static str, &'static str, &'static str, &'static str)],
) -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            tell.send(path.clone() + asked.field("cookie").unwrap_or_default()).unwrap();
            let answer = answers.iter().find(|(of, ..)| *of == path);
            let (_, kind, fields, body) = answer.copied().unwrap_or(("", "text/plain", "", "nothing"));
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
    let mut paths: Vec<_> =
        std::iter::from_fn(|| told.recv_timeout(std::time::Duration::from_millis(700)).ok()).collect();
    paths.sort();
    paths
}

#[test]
fn what_a_page_and_its_style_sheets_say_is_pushed() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<link rel=stylesheet href=a.css><script src=/b.js></script><img src=c.png>"),
        ("/a.css", "text/css", "", "@import 'd.css'; p { background: url(e.png) }"),
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
        assert_eq!(page.field("tandem-push"), None, "{session}: what the two ends say to each other stays there");
        let all = ["/a.css", "/b.js", "/c.png", "/d.css", "/e.png", "/f.png", "/page"];
        assert_eq!(quiet(&told), all, "{session}");
        for (path, _, _, body) in &answers[1..] {
            assert_eq!(client.get(&origin.url(path)).body, body.as_bytes(), "{session} {path}");
        }
        assert!(told.try_recv().is_err(), "{session}: what was found late went with the companion");
        client.get(&origin.url("/page"));
        assert_eq!(quiet(&told).len(), 7, "{session}: nothing said that it may be used again, so it comes again");
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
        ("/page", "text/html", "ETag: \"1\"\r\n", "<img src=c.png><img src=d.png>"),
        ("/dynamic", "text/html", "", "<img src=c.png><img src=d.png>"),
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
    assert_eq!(load("/page", "If-None-Match: \"0\"\r\n"), ["/page"], "a browser that checks what it has");
    for path in ["/c.png", "/d.png"] {
        assert_eq!(load(path, ""), [""; 0]);
    }
    assert_eq!(load("/page", "").len(), 3, "a browser that asks as if it had never seen the page");
    for path in ["/c.png", "/d.png"] {
        assert_eq!(load(path, ""), [""; 0]);
    }
    assert_eq!(load("/dynamic", ""), ["/dynamic"], "nothing tells that it lost the images");
    assert_eq!(load("/c.png", ""), ["/c.png", "/d.png"], "now something does: the other comes along");
    assert_eq!(load("/d.png", ""), [""; 0]);
}

#[test]
fn answers_say_that_they_were_pushed_only_when_asked_to() {
    let answers: &[_] =
        &[("/page", "text/html", "", "<script src=a.js></script>"), ("/a.js", "text/javascript", "", "a")];
    for asked in [false, true] {
        let (origin, told) = site(answers);
        let pair = Pair::with("h2", |gateway| gateway.hold_out = Some(0.0), |client| client.cache_status = Some(asked));
        let mut client = pair.connect();
        assert_eq!(client.get(&origin.url("/page")).field("cache-status"), None);
        quiet(&told);
        let pushed = client.get(&origin.url("/a.js"));
        assert_eq!(pushed.field("cache-status"), asked.then_some("tandem; hit; detail=pushed"));
        assert_eq!(client.get(&origin.url("/a.js")).field("cache-status"), None);
    }
}

#[test]
fn cookies_go_to_the_page_s_own_origin_only() {
    let (other, other_told) = site(&[]);
    let elsewhere: &'static str = Box::leak(format!("<img src=own.png><img src={}>", other.url("/far.png")).into());
    let answers: &'static [_] =
        Box::leak(Box::new([("/page", "text/html", "", elsewhere), ("/page?2", "text/html", "", elsewhere)]));
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/page"), "Cookie: login=1\r\n"));
    assert_eq!(client.answer("GET").status, 200);
    assert_eq!(quiet(&told), ["/own.pnglogin=1", "/pagelogin=1"]);
    assert_eq!(quiet(&other_told), ["/far.png"]);
    client.send(request("GET", &origin.url("/page?2"), "Authorization: Basic eDp5\r\n"));
    client.answer("GET");
    assert_eq!(quiet(&told), ["/page?2"], "what takes a login is not asked for in its name");
}

#[test]
fn a_poisoned_page_costs_bounded_work() {
    let mut page =
        "<meta http-equiv=refresh content='0;url=/page'><img src=/page><iframe src=/loop></iframe>".to_owned();
    page += "<img src=http://10.0.0.1/secret><img src=http://169.254.169.254/latest><img src=http://[::1]:22/>";
    page.extend((0..200_000).map(|i| format!("<img src=/i{i}>")));
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
        assert_eq!(asked.iter().filter(|path| *path == once).count(), 1, "{once}");
    }
    assert_eq!(client.get(&origin.url("/other")).status, 404, "the session goes on");
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

#[test]
fn what_depends_on_who_asks_is_not_pushed() {
    for fields in ["Vary: Cookie\r\n", "Vary: Accept, Authorization\r\n", "Cache-Control: no-store\r\n"] {
        let answers: &'static [_] =
            Box::leak(Box::new([("/page", "text/html", "", "<img src=c.png>"), ("/c.png", "image/png", fields, "c")]));
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes("h2");
        let mut client = pair.connect();
        client.get(&origin.url("/page"));
        assert_eq!(quiet(&told), ["/c.png", "/page"]);
        assert_eq!(client.get(&origin.url("/c.png")).body, b"c");
        assert_eq!(quiet(&told), ["/c.png"], "{fields:?}: asked for by who wanted it");
    }
}

#[test]
fn an_answer_that_may_be_old_is_asked_for_again() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<script src=/cart></script><script src=/other></script>"),
        ("/cart", "text/javascript", "", "cart"),
        ("/other", "text/javascript", "", "other"),
    ];
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let mut client = pair.connect();
    client.get(&origin.url("/page"));
    quiet(&told);
    client.send(request("POST", &origin.url("/buy"), "Content-Length: 0\r\n"));
    assert_eq!(client.answer("POST").status, 404);
    client.get(&origin.url("/cart"));
    assert_eq!(quiet(&told), ["/buy", "/cart"], "what was fetched before something was changed is not used");
}

#[test]
fn a_large_gallery_comes_whole() {
    let image: &'static str = Box::leak("x".repeat(3_900_000).into_boxed_str());
    let mut answers = vec![("/page", "text/html", "", {
        let page: String = (0..12).map(|i| format!("<img src=/{i}.jpg>")).collect();
        &*Box::leak(page.into_boxed_str())
    })];
    answers.extend((0..12).map(|i| (&*Box::leak(format!("/{i}.jpg").into_boxed_str()), "image/jpeg", "", image)));
    let (origin, _told) = site(Box::leak(answers.into_boxed_slice()));
    let pair = gateway_that_always_pushes("h2");
    pair.connect().get(&origin.url("/page"));
    for i in 0..12 {
        assert_eq!(pair.connect().get(&origin.url(&format!("/{i}.jpg"))).body.len(), image.len(), "{i}");
    }
}

#[test]
fn a_full_store_still_serves_who_waits() {
    let image: &'static str = Box::leak("x".repeat(300_000).into_boxed_str());
    let answers: &'static [_] = Box::leak(Box::new([
        ("/page", "text/html", "", "<img src=/1.jpg><img src=/2.jpg><img src=/3.jpg>"),
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
        ("/page", "text/html", "", "<script src=/own.js></script><script src=/all.js></script>"),
        ("/own.js", "text/javascript", "", "mine"),
        ("/all.js", "text/javascript", "Cache-Control: public, max-age=600\r\n", "all's"),
    ];
    for session in SESSIONS {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        client.send(request("GET", &origin.url("/page"), "Cookie: who=anna\r\n"));
        client.answer("GET");
        assert_eq!(quiet(&told), ["/all.jswho=anna", "/own.jswho=anna", "/pagewho=anna"]);
        client.send(request("GET", &origin.url("/own.js"), "Cookie: who=bert\r\n"));
        let answer = client.answer("GET");
        assert_eq!((answer.body.as_slice(), answer.field("tandem-asked")), (b"mine".as_slice(), None));
        assert_eq!(quiet(&told), ["/own.jswho=bert"], "{session}: another's cookie, another's answer");
        client.send(request("GET", &origin.url("/all.js"), "Cookie: who=bert\r\nOrigin: http://elsewhere.test\r\n"));
        client.answer("GET");
        assert_eq!(quiet(&told), ["/all.jswho=bert"], "{session}: who asks across origins wants to hear that he may");
        client.send(request("GET", &origin.url("/all.js"), "Cookie: who=bert\r\n"));
        assert_eq!(client.answer("GET").body, b"all's");
        assert_eq!(quiet(&told), [""; 0], "{session}: the same for all, as its origin says");
    }
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
    client.send(request("GET", &other.url("/p.png"), &format!("Referer: {}\r\n", other.url("/"))));
    client.answer("GET");
    assert_eq!(quiet(&other_told), ["/p.png"], "its own page asks for itself");
}

#[test]
fn no_page_reaches_the_companion() {
    let pair = gateway_that_always_pushes("h2");
    for method in ["POST", "GET"] {
        let mut client = pair.connect();
        client.send(request(method, "http://push.tandem.invalid/", "Content-Length: 0\r\n"));
        assert_eq!(client.answer(method).status, 502, "{method}: as any name that is nobody's");
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
    assert!(asked < 400, "{asked} more requests for a page that nobody waits for");
}

#[test]
fn a_digest_spares_what_an_earlier_session_brought() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png><img src=d.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
        ("/d.png", "image/png", "", "d"),
    ];
    for (digest, expected) in [(false, ["/c.png", "/d.png", "/page"].as_slice()), (true, &["/d.png", "/page"])] {
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
        client.send(request("GET", &origin.url("/other"), "Accept: text/html\r\n"));
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
        ("/old", "text/html", "Location: /new\r\nVary: Accept-Encoding\r\n", ""),
        ("/new", "text/html", "Vary: Accept-Encoding, User-Agent\r\n", "<link rel=stylesheet href=a.css>"),
        ("/a.css", "text/css", "Vary: Accept-Encoding\r\n", "p { background: url(b.png) }"),
        ("/b.png", "image/png", "Vary: Accept\r\n", "b"),
    ];
    let browser = "User-Agent: Mozilla/5.0 Chrome/1\r\nAccept-Encoding: gzip\r\n";
    let image = "Accept: image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8\r\n";
    for session in SESSIONS {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        client.send(request("GET", &origin.url("/old"), &format!("{browser}Accept: text/html\r\n")));
        assert_eq!(client.answer("GET").status, 302);
        assert_eq!(quiet(&told), ["/a.css", "/b.png", "/new", "/old"], "{session}");
        for (path, more) in
            [("/new", "Accept: text/html\r\n"), ("/a.css", "Accept: text/css,*/*;q=0.1\r\n"), ("/b.png", image)]
        {
            client.send(request("GET", &origin.url(path), &format!("{browser}{more}")));
            assert_eq!(client.answer("GET").status, 200);
        }
        assert_eq!(quiet(&told), [""; 0], "{session}");
        client.send(request("GET", &origin.url("/old"), &format!("{browser}Accept: text/html\r\n")));
        client.answer("GET");
        quiet(&told);
        client.send(request("GET", &origin.url("/new"), "User-Agent: another\r\nAccept-Encoding: gzip\r\n"));
        client.answer("GET");
        assert!(quiet(&told).contains(&"/new".to_owned()), "{session}: another browser's answer is its own");
    }
}
