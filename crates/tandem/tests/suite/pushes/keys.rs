//! Bounds between users, browsers and sites: keys, fields, hosts and the destination policy.

use std::sync::mpsc;

use super::{gateway_that_always_pushes, origin, received, site, two_sites};
use crate::harness::{Client, Pair, Scene, request, wait_for};
use crate::pairs::SESSIONS;

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

/// A style sheet sets a cookie while the page loads, and comes as a push or as an answer.
#[test]
fn push_with_a_lifetime_outlasts_a_new_cookie() {
    const STYLE: &str = "Set-Cookie: id=1\r\n";
    const FRESH: &str = "Cache-Control: max-age=600\r\n";
    let answers: &[_] = &[
        (
            "/page",
            "text/html",
            "",
            "<link rel=stylesheet href=pushed.css><script src=a.js></script>",
        ),
        ("/pushed.css", "text/css", STYLE, "s"),
        ("/asked.css", "text/css", STYLE, "s"),
        ("/a.js", "text/javascript", FRESH, "a"),
    ];
    for session in SESSIONS {
        for (style, requests) in [("/pushed.css", 3), ("/asked.css", 4)] {
            let (origin, told) = site(answers);
            let pair = gateway_that_always_pushes(session);
            let mut client = pair.connect();
            client.get(&origin.url("/page"));
            wait_for(&told, 3);
            client.get(&origin.url(style));
            client.send(request("GET", &origin.url("/a.js"), "Cookie: id=1\r\n"));
            assert_eq!(client.answer("GET").body, b"a", "{session} {style}");
            let others = received(&told).len();
            assert_eq!(3 + others, requests, "{session} {style}");
        }
    }
}
