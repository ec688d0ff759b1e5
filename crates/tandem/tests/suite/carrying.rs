//! Tests that the pair carries HTTP messages unchanged.

use crate::harness::{Client, Pair, Scene, request};
use crate::pairs::{CARRYING, carrying_pair};

#[test]
fn pair_preserves_order_and_repetition_of_fields() {
    for session in CARRYING {
        let origin = Scene::new(|_, mut client| {
            let asked = client.request().unwrap();
            let names: Vec<_> = asked
                .fields
                .iter()
                .map(|(n, v)| format!("{}={v}", n.to_lowercase()))
                .collect();
            let body = format!("{}|{}", asked.line, names.join("|"));
            client.send(format!(
                "HTTP/1.1 200 Fine\r\nSet-Cookie: a=1; Path=/\r\nX-One: 1\r\nSet-Cookie: b=2\r\nConnection: x-hop\r\nX-Hop: secret\r\n\
                 Keep-Alive: timeout=5\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        });
        let pair = carrying_pair(session);
        let mut client = pair.connect();
        let fields = "Accept: a\r\nCookie: c=1; d=2\r\nX-Twice: 1\r\nX-Twice: 2\r\nConnection: keep-alive, X-Private\r\nX-Private: 1\r\n\
                      Proxy-Connection: keep-alive\r\nTE: gzip\r\nUpgrade: nonsense\r\n";
        client.send(request("GET", &origin.url("/p?q=%20x"), fields));
        let answer = client.answer("GET");
        assert_eq!(
            answer.all("set-cookie"),
            ["a=1; Path=/", "b=2"],
            "{session}"
        );
        assert!(
            answer.field("x-hop").is_none()
                && answer.field("keep-alive").is_none()
                && answer.field("via").is_none()
        );
        let seen = String::from_utf8(answer.body).unwrap();
        assert!(
            seen.starts_with("GET /p?q=%20x HTTP/1.1|"),
            "{session}: {seen}"
        );
        assert!(
            seen.contains("x-twice=1|x-twice=2") || seen.contains("x-twice=1, 2"),
            "{session}: {seen}"
        );
        assert!(seen.contains("cookie=c=1; d=2"), "{session}: {seen}");
        for gone in [
            "x-private",
            "proxy-connection",
            "te=",
            "upgrade",
            "via",
            "forwarded",
            "proxy-authorization",
        ] {
            assert!(!seen.contains(gone), "{session}: {gone} in {seen}");
        }
    }
}

#[test]
fn pair_carries_bodies_in_both_directions() {
    for session in CARRYING {
        let origin = Scene::new(|_, mut client| {
            while let Some(asked) = client.request() {
                let length: usize = asked.field("content-length").unwrap().parse().unwrap();
                let body = client.read_exact(length);
                client.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
                ));
                client.send(&body);
            }
        });
        let pair = carrying_pair(session);
        let mut client = pair.connect();
        for size in [1, 65_536, 3_000_000] {
            let body: Vec<u8> = (0..size).map(|i: usize| (i * 7 % 253) as u8).collect();
            client.send(request(
                "POST",
                &origin.url("/"),
                &format!("Content-Length: {size}\r\n"),
            ));
            let mut writing = client.stream.get_ref().try_clone().unwrap();
            let sent = body.clone();
            let writer =
                std::thread::spawn(move || std::io::Write::write_all(&mut writing, &sent).unwrap());
            assert!(client.answer("POST").body == body, "{session}, {size}");
            writer.join().unwrap();
        }
    }
}

#[test]
fn pair_keeps_trailers_of_chunked_bodies() {
    for session in CARRYING {
        let origin = Scene::new(|_, mut client| {
            let asked = client.request().unwrap();
            assert_eq!(asked.field("transfer-encoding"), Some("chunked"));
            let mut body = String::new();
            loop {
                let mut line = String::new();
                std::io::BufRead::read_line(&mut client.stream, &mut line).unwrap();
                body.push_str(&line);
                if line == "\r\n" && body.contains("\r\n0\r\n") {
                    break;
                }
            }
            assert!(body.to_lowercase().contains("x-sum: 9"), "{body:?}");
            client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-After\r\n\r\n5\r\nhello\r\n0\r\nX-After: 1\r\n\r\n");
        });
        let pair = carrying_pair(session);
        let mut client = pair.connect();
        client.send(request(
            "POST",
            &origin.url("/"),
            "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n",
        ));
        client.send("3\r\nabc\r\n0\r\nX-Sum: 9\r\n\r\n");
        let answer = client.answer("POST");
        assert_eq!(answer.body, b"hello");
        assert_eq!(answer.trailers.len(), 1, "{session}");
        assert!(answer.trailers[0].0.eq_ignore_ascii_case("x-after"));
    }
}

#[test]
fn pair_adds_no_body_to_bodiless_responses() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            let (method, path) = asked.line.split_once(' ').unwrap();
            client.send(match path.split(' ').next().unwrap() {
                "/204" => "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
                "/304" => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 77\r\n\r\n",
                _ if method == "HEAD" => "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n",
                _ => "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2-4/10\r\nContent-Length: 3\r\n\r\ncde",
            });
        }
    });
    let pair = Pair::start();
    let mut client = pair.connect();
    assert_eq!(client.get(&origin.url("/204")).status, 204);
    client.send(request(
        "GET",
        &origin.url("/304"),
        "If-None-Match: \"x\"\r\n",
    ));
    assert_eq!(client.answer("GET").status, 304);
    client.send(request("HEAD", &origin.url("/"), ""));
    assert_eq!(client.answer("HEAD").field("content-length"), Some("12345"));
    client.send(request("GET", &origin.url("/r"), "Range: bytes=2-4\r\n"));
    let answer = client.answer("GET");
    assert_eq!(
        (
            answer.status,
            answer.field("content-range"),
            &answer.body[..]
        ),
        (206, Some("bytes 2-4/10"), &b"cde"[..])
    );
}

#[test]
fn pair_forwards_interim_responses_first() {
    // SPDY has no interim responses.
    let sessions = CARRYING.into_iter();
    for session in sessions.filter(|session| !session.starts_with("spdy")) {
        let origin = Scene::new(|_, mut client| {
            let asked = client.request().unwrap();
            assert_eq!(asked.field("expect"), Some("100-continue"));
            client.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
            assert_eq!(client.read_exact(4), b"body");
            client.send("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
        });
        let pair = carrying_pair(session);
        let mut client = pair.connect();
        client.send(request(
            "POST",
            &origin.url("/"),
            "Content-Length: 4\r\nExpect: 100-continue\r\n",
        ));
        let hints = client.head().unwrap();
        assert_eq!(
            (hints.status, hints.field("link")),
            (103, Some("</a.css>; rel=preload")),
            "{session}"
        );
        assert_eq!(client.head().unwrap().status, 100, "{session}");
        client.send("body");
        assert_eq!(client.answer("POST").status, 201, "{session}");
    }
}

#[test]
fn client_answers_an_expectation_that_spdy_cannot() {
    let sessions = CARRYING.into_iter();
    for session in sessions.filter(|session| session.starts_with("spdy")) {
        let origin = Scene::new(|_, mut client| {
            client.request().unwrap();
            client.send("HTTP/1.1 100 Continue\r\n\r\n");
            assert_eq!(client.read_exact(4), b"body");
            client.send("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
        });
        let pair = carrying_pair(session);
        let mut client = pair.connect();
        let fields = "Content-Length: 4\r\nExpect: 100-continue\r\n";
        client.send(request("POST", &origin.url("/"), fields));
        assert_eq!(client.head().unwrap().status, 100, "{session}");
        client.send("body");
        assert_eq!(client.answer("POST").status, 201, "{session}");
    }
}

#[test]
fn client_answers_pipelined_requests_in_order() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}",
                path.len()
            ));
        }
    });
    let pair = Pair::start();
    let mut client = pair.connect();
    let all: String = (0..20)
        .map(|i| request("GET", &origin.url(&format!("/{i}")), ""))
        .collect();
    client.send(all);
    for i in 0..20 {
        assert_eq!(client.answer("GET").body, format!("/{i}").as_bytes());
    }
}

#[test]
fn http_1_0_client_gets_response_until_close() {
    let origin = Scene::answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    let pair = Pair::start();
    let mut client = pair.connect();
    client.send(format!("GET {} HTTP/1.0\r\n\r\n", origin.url("/")));
    let answer = client.answer("GET");
    assert_eq!(
        (answer.field("transfer-encoding"), &answer.body[..]),
        (None, &b"hello"[..])
    );
}

#[test]
fn client_refuses_ambiguous_request_framing() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let pair = Pair::start();
    let url = origin.url("/");
    let host = origin.address;
    for (what, bytes) in [
        (
            "both lengths",
            format!(
                "POST {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
        ),
        (
            "two lengths",
            format!(
                "POST {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"
            ),
        ),
        (
            "folded line",
            format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nX-A: 1\r\n b\r\n\r\n"),
        ),
        (
            "bare CR",
            format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nX-A: 1\rX-B: 2\r\n\r\n"),
        ),
        ("bare LF", format!("GET {url} HTTP/1.1\nHost: {host}\n\n")),
        (
            "space before colon",
            format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nX-A : 1\r\n\r\n"),
        ),
        (
            "two Hosts",
            format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n"),
        ),
        ("no Host", format!("GET {url} HTTP/1.1\r\n\r\n")),
        (
            "chunked in HTTP/1.0",
            format!(
                "POST {url} HTTP/1.0\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
        ),
    ] {
        let mut client = pair.connect();
        client.send(bytes);
        let answer = client.answer("GET");
        assert_eq!(answer.status, 400, "{what}");
        assert!(client.is_closed(), "{what}");
    }
    let mut client = pair.connect();
    client.send(format!(
        "POST {url} HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n3x\r\nabc\r\n0\r\n\r\n"
    ));
    assert!(
        client
            .try_answer("POST")
            .map_or(true, |answer| answer.status >= 400),
        "bad chunk size"
    );
}

#[test]
fn listener_serves_its_own_paths_only() {
    let pair = Pair::start();
    let own = pair.http;
    let ask = |head: String| {
        let mut client = Client::to(own);
        client.send(head);
        client.answer("GET")
    };
    let pac = ask(format!("GET /proxy.pac HTTP/1.1\r\nHost: {own}\r\n\r\n"));
    assert_eq!(pac.status, 200);
    assert!(
        String::from_utf8(pac.body)
            .unwrap()
            .contains(&format!("PROXY {own}"))
    );
    assert!(
        pac.fields
            .iter()
            .all(|(name, _)| !name.to_lowercase().starts_with("access-control"))
    );
    for other in [
        format!(
            "GET /proxy.pac HTTP/1.1\r\nHost: attacker.example:{}\r\n\r\n",
            own.port()
        ),
        format!("GET /proxy.pac HTTP/1.1\r\nHost: {own}\r\nSec-Fetch-Site: cross-site\r\n\r\n"),
        format!(
            "GET /proxy.pac HTTP/1.1\r\nHost: {own}\r\nOrigin: http://attacker.example\r\n\r\n"
        ),
        format!("GET /nothing HTTP/1.1\r\nHost: {own}\r\n\r\n"),
    ] {
        let answer = ask(other.clone());
        assert!(answer.status >= 400, "{other}");
        let text = format!(
            "{:?}{}",
            answer.fields,
            String::from_utf8_lossy(&answer.body)
        )
        .to_lowercase();
        assert!(
            !text.contains("tandem") && !text.contains(env!("CARGO_PKG_VERSION")),
            "{text}"
        );
    }
}

/// Some origins send control bytes in field values, and browsers accept them, so the pair does too.
#[test]
fn pair_keeps_control_bytes_in_field_values() {
    for session in CARRYING {
        let origin = Scene::answering(
            "HTTP/1.1 200 OK\r\nX-Odd: a\u{7f}b\u{1}c\r\nContent-Length: 2\r\n\r\nok",
        );
        let answer = carrying_pair(session).connect().get(&origin.url("/"));
        assert_eq!(
            (answer.status, answer.field("x-odd")),
            (200, Some("a\u{7f}b\u{1}c")),
            "{session}"
        );
    }
}
