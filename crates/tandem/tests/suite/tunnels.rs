//! Tests of CONNECT, upgrades and SOCKS.

use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use crate::browser::websocket_scene;
use crate::harness::{
    Client, PATIENCE, Pair, Scene, Way, block_on, client_options, endpoint, gateway_options,
    request, start_client, start_gateway,
};

/// The fields of a request for a WebSocket.
const WEBSOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Starts a server that echoes until the client closes its half, then sends a farewell.
fn echo() -> Scene {
    Scene::new(|_, mut client| {
        let mut all = Vec::new();
        let mut byte = [0; 1];
        while std::io::Read::read(&mut client.stream, &mut byte).unwrap_or(0) == 1 {
            all.push(byte[0]);
            client.send(byte);
        }
        client.send(format!("bye {}", all.len()));
    })
}

#[test]
fn full_session_is_followed_by_another() {
    const MOST: u32 = 4;
    let echo = Scene::new(|_, mut client| {
        loop {
            let bytes = client.read_exact(4);
            client.send(bytes);
        }
    });
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let pair = Pair::with("h2", |gateway| gateway.max_streams = Some(MOST), |_| {});
    let mut tunnels: Vec<_> = (0..MOST)
        .map(|_| {
            let (mut client, to) = (pair.connect(), echo.address);
            client.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n"));
            assert_eq!(client.head().unwrap().status, 200);
            client.send("ping");
            assert_eq!(client.read_exact(4), b"ping");
            client
        })
        .collect();
    assert_eq!(pair.connect().get(&origin.url("/")).body, b"ok");
    for tunnel in &mut tunnels {
        tunnel.send("pong");
        assert_eq!(tunnel.read_exact(4), b"pong");
    }
}

#[test]
fn tunnel_carries_both_directions_and_half_close() {
    for session in ["h2", "h3", "spdy3.1", "relayed"] {
        let echo = echo();
        let pair = Pair::with(session, |_| {}, |_| {});
        let mut client = pair.connect();
        client.send(format!(
            "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n",
            echo.address
        ));
        assert_eq!(client.head().unwrap().status, 200);
        client.send("ping");
        assert_eq!(client.read_exact(4), b"ping");
        client.stream.get_ref().shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read_exact(5), b"bye 4", "{session}");
        assert!(client.is_closed());
    }
}

#[test]
fn socks_tunnel_carries_server_greeting_first() {
    let origin = Scene::new(|_, mut client| {
        client.send("220 hello\r\n");
        assert_eq!(client.read_exact(4), b"QUIT");
        client.send("221 bye\r\n");
    });
    let pair = Pair::start();
    let mut client = Client::to(pair.socks);
    assert_eq!(client.socks(&origin.address.to_string(), None), 0);
    assert_eq!(client.read_exact(11), b"220 hello\r\n");
    client.send("QUIT");
    assert_eq!(client.read_exact(9), b"221 bye\r\n");
}

/// A reader that waits for the end of the server's bytes gets it at once, and may still send.
#[test]
fn tunnel_survives_server_half_close() {
    for (session, way) in [
        ("h2", "http"),
        ("h2", "socks"),
        ("h2", "websocket"),
        ("relayed", "http"),
        ("relayed", "websocket"),
        ("spdy3.1", "http"),
        ("spdy3.1", "socks"),
    ] {
        let (tell, told) = std::sync::mpsc::channel();
        let origin = Scene::new(move |_, mut client| {
            if way == "websocket" {
                client.request().unwrap();
                client.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
            }
            client.send("all of it");
            client.stream.get_ref().shutdown(Shutdown::Write).unwrap();
            let mut rest = String::new();
            std::io::Read::read_to_string(&mut client.stream, &mut rest).unwrap();
            tell.send(rest).unwrap();
        });
        let pair = Pair::with(session, |_| {}, |_| {});
        let mut client = match way {
            "socks" => {
                let mut client = Client::to(pair.socks);
                assert_eq!(client.socks(&origin.address.to_string(), None), 0);
                client
            }
            "http" => {
                let mut client = pair.connect();
                client.send(format!(
                    "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n",
                    origin.address
                ));
                assert_eq!(client.head().unwrap().status, 200);
                client
            }
            _ => {
                let mut client = pair.connect();
                client.send(request("GET", &origin.url("/"), WEBSOCKET));
                assert_eq!(client.head().unwrap().status, 101);
                client
            }
        };
        assert_eq!(client.read_exact(9), b"all of it", "{session} {way}");
        assert!(client.is_closed(), "{session} {way}");
        client.send("thanks");
        client.stream.get_ref().shutdown(Shutdown::Write).unwrap();
        assert_eq!(
            told.recv_timeout(PATIENCE).as_deref(),
            Ok("thanks"),
            "{session} {way}"
        );
    }
}

#[test]
fn socks_listener_recognises_http() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}",
                asked.line.len(),
                asked.line
            ));
        }
    });
    let pair = Pair::start();
    let mut client = Client::to(pair.socks);
    assert_eq!(client.socks(&origin.address.to_string(), None), 0);
    for path in ["/one", "/two"] {
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n",
            origin.address
        ));
        assert_eq!(
            client.answer("GET").body,
            format!("GET {path} HTTP/1.1").as_bytes()
        );
    }
    // A later request cannot reach another host than the one that SOCKS named.
    client.send("GET /three HTTP/1.1\r\nHost: other.example\r\n\r\n");
    assert_eq!(client.answer("GET").status, 400);
}

#[test]
fn socks_listener_tunnels_other_protocols() {
    let echo = echo();
    let pair = Pair::start();
    let mut client = Client::to(pair.socks);
    assert_eq!(client.socks(&echo.address.to_string(), None), 0);
    client.send(b"\x16\x03\x01not really tls");
    assert_eq!(client.read_exact(17), b"\x16\x03\x01not really tls");
}

#[test]
fn pair_carries_websockets() {
    let origin = Scene::new(|_, mut client| {
        let asked = client.request().unwrap();
        assert_eq!(asked.line, "GET /chat HTTP/1.1");
        assert_eq!(asked.field("upgrade"), Some("websocket"));
        assert_eq!(
            asked.field("sec-websocket-key"),
            Some("dGhlIHNhbXBsZSBub25jZQ==")
        );
        client.send(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\nfirst",
        );
        assert_eq!(client.read_exact(3), b"abc");
        client.send("xyz");
    });
    let pair = Pair::start();
    let mut client = pair.connect();
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    client.send(request("GET", &origin.url("/chat"), fields));
    let answer = client.head().unwrap();
    assert_eq!(answer.status, 101);
    assert_eq!(answer.field("upgrade"), Some("websocket"));
    assert_eq!(
        answer.field("sec-websocket-accept"),
        Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
    );
    assert_eq!(client.read_exact(5), b"first");
    client.send("abc");
    assert_eq!(client.read_exact(3), b"xyz");
}

/// A browser over HTTP/2 or HTTP/3 sends no key (RFC 8441 section 5), and the origin over HTTP/1.1
/// requires one. The gateway adds it, and checks the proof.
#[test]
fn gateway_adds_the_key_of_a_websocket() {
    for session in ["h2", "h3"] {
        let origin = websocket_scene();
        let pair = Pair::with(session, |_| {}, |_| {});
        let mut client = pair.connect();
        let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
        client.send(request("GET", &origin.url("/chat"), fields));
        let answer = client.head().unwrap();
        let proof = answer.field("sec-websocket-accept");
        assert_eq!((answer.status, proof), (101, None), "{session}");
        assert_eq!(client.read_exact(5), b"first", "{session}");
        client.send("abc");
        assert_eq!(client.read_exact(3), b"xyz", "{session}");
    }
}

#[test]
fn refused_upgrade_is_an_ordinary_response() {
    let origin = Scene::answering("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno");
    let pair = Pair::start();
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/"), WEBSOCKET));
    let answer = client.answer("GET");
    assert_eq!((answer.status, &answer.body[..]), (426, &b"no"[..]));
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain");
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/"), WEBSOCKET));
    let answer = client.answer("GET");
    assert_eq!(
        (
            answer.status,
            &answer.body[..],
            answer.field("upgrade-declined")
        ),
        (200, &b"plain"[..], None)
    );
}

/// SPDY cannot carry an upgrade; the session survives the refusal.
#[test]
fn spdy_session_refuses_websocket_and_stays_open() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let pair = Pair::with("spdy3.1", |_| {}, |_| {});
    let mut client = pair.connect();
    client.send(request(
        "GET",
        &origin.url("/"),
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
    ));
    assert_eq!(client.answer("GET").status, 400);
    assert_eq!(pair.connect().get(&origin.url("/")).body, b"ok");
}

/// An offer of another protocol makes no tunnel: the request is forwarded unchanged, with its body.
#[test]
fn client_ignores_upgrades_to_other_protocols() {
    for session in ["h2", "h3", "spdy3.1"] {
        let origin = Scene::new(|_, mut client| {
            while let Some(asked) = client.request() {
                let length = asked
                    .field("content-length")
                    .map_or(0, |length| length.parse().unwrap());
                let body = client.read_exact(length);
                let said = format!("{} {}", asked.line, String::from_utf8(body).unwrap());
                client.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{said}",
                    said.len()
                ));
            }
        });
        let pair = Pair::with(session, |_| {}, |_| {});
        let mut client = pair.connect();
        for protocols in ["h2c", "TLS/1.0, HTTP/1.1", "a/1"] {
            let fields = format!("Connection: Upgrade\r\nUpgrade: {protocols}\r\n");
            client.send(request(
                "POST",
                &origin.url("/"),
                &format!("{fields}Content-Length: 4\r\n"),
            ));
            client.send("body");
            assert_eq!(
                client.answer("POST").body,
                b"POST / HTTP/1.1 body",
                "{session} {protocols}"
            );
            client.send(request("GET", &origin.url("/"), &fields));
            assert_eq!(
                client.answer("GET").body,
                b"GET / HTTP/1.1 ",
                "{session} {protocols}"
            );
        }
    }
}

#[test]
fn forbidden_tunnel_is_refused_with_reason() {
    // An early agreement would be reset; `messages.rs` tests that case.
    let pair = Pair::with(
        "h2",
        |gateway| gateway.allow_dest = Vec::new(),
        |client| client.early_connect = Some(false),
    );
    for (target, kind) in [
        ("127.0.0.1:80", "loopback"),
        ("169.254.169.254:80", "metadata"),
        ("93.184.216.34:25", "mail port"),
    ] {
        let mut client = pair.connect();
        client.send(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
        ));
        let answer = client.answer("CONNECT");
        assert_eq!(answer.status, 403, "{kind}");
        assert!(
            answer
                .field("proxy-status")
                .unwrap()
                .contains("destination_ip_prohibited"),
            "{kind}"
        );
        let mut client = pair.connect();
        assert_eq!(
            client.get(&format!("http://{target}/")).status,
            403,
            "{kind}"
        );
    }
}

#[test]
fn socks_reply_names_the_failure() {
    // The port has no listener: the test binds it once, so that it is free, and then closes it.
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (_running, http, socks) = start_client(client_options(&format!("h2+tcp://{nowhere}")));
    let mut client = Client::to(socks);
    assert_eq!(
        client.socks("site.example:22", None),
        5,
        "connection refused"
    );
    let mut client = Client::to(http);
    let answer = client.get("http://site.example/");
    assert_eq!(answer.status, 502);
    assert_eq!(
        answer.field("proxy-status").unwrap().split(';').next(),
        Some("client")
    );
    assert!(
        String::from_utf8(answer.body)
            .unwrap()
            .contains("gateway cannot be reached")
    );
    // The listener does not support SOCKS BIND.
    let mut client = Client::to(socks);
    client.send([5, 1, 0, 5, 2, 0, 1, 127, 0, 0, 1, 0, 80]);
    assert_eq!(client.read_exact(4)[3], 7);
}

#[test]
fn socks_waits_for_gateway_without_early_connect() {
    let pair = Pair::with(
        "h2",
        |gateway| gateway.allow_dest = Vec::new(),
        |client| client.early_connect = Some(false),
    );
    // The session is known to be alive after this.
    assert_eq!(pair.connect().get("http://127.0.0.1/").status, 403);
    for target in ["127.0.0.1:443", "127.0.0.1:22"] {
        let mut client = Client::to(pair.socks);
        assert_eq!(client.socks(target, None), 2, "{target}: not allowed");
    }
}

#[test]
fn socks_attempt_after_failed_tunnel_waits() {
    let pair = Pair::with(
        "h2",
        |gateway| gateway.allow_dest = Vec::new(),
        |client| client.probe_after = Some("40ms".parse().unwrap()),
    );
    assert_eq!(pair.connect().get("http://127.0.0.1/").status, 403);
    // The session has been silent for half of `probe-after`, so only the SOCKS front agrees early.
    std::thread::sleep(Duration::from_millis(60));
    let mut client = Client::to(pair.socks);
    assert_eq!(client.socks("127.0.0.1:22", None), 0, "agreed early");
    assert!(client.is_closed());
    let mut client = Client::to(pair.socks);
    assert_eq!(client.socks("127.0.0.1:22", None), 2, "not allowed");
}

/// A reload drains the session that a SOCKS connection waits for.
#[test]
fn reload_lets_a_waiting_socks_connection_through() {
    let origin = echo();
    for session in ["h2", "spdy3.1"] {
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        let (_gateway, gateway) = start_gateway(options);
        let way = Way::to(gateway);
        way.lose_first(1);
        let mut options = client_options(&format!("{session}+tcp://{}", way.address));
        options.preconnect = Some(false);
        let (mut running, _, socks) = start_client(options.clone());
        let target = origin.address.to_string();
        let waiting = std::thread::spawn(move || {
            let mut client = Client::to(socks);
            assert_eq!(client.socks(&target, None), 0);
            client.send("a");
            client.read_exact(1)
        });
        while way.connections() == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        options.listen = vec![
            endpoint("http://127.0.0.1:0"),
            endpoint("socks5://127.0.0.2:0"),
        ];
        block_on(running.reload(Arc::new(options.typed().unwrap()))).unwrap();
        assert_eq!(waiting.join().unwrap(), b"a", "{session}");
        assert_eq!(way.connections(), 2, "{session}");
    }
}
