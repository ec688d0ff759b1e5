//! Tests of faults: the pair reports failures, retries safe requests, and never presents a
//! truncated response as complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tandem::config::units::Span;

use crate::at_once::at_once;
use crate::harness::{
    Client, Gate, PATIENCE, Pair, Scene, Way, client_options, endpoint, gateway_options, request,
    start_client, start_gateway,
};

#[test]
fn truncated_response_is_never_complete() {
    for session in ["h2", "h3", "spdy3.1"] {
        for head in [
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        ] {
            let origin = Scene::new(move |_, mut client| {
                client.request();
                client.send(head);
            });
            let pair = Pair::with(session, |_| {}, |_| {});
            let mut client = pair.connect();
            client.send(request("GET", &origin.url("/"), ""));
            match client.try_answer("GET") {
                // The reset of a stream may discard the response's head.
                Ok(answer) if session == "h3" => assert_eq!(answer.status, 502),
                answered => assert!(answered.is_err(), "{session}: {head:?}"),
            }
        }
    }
}

#[test]
fn origin_close_without_response_gives_502() {
    let origin = Scene::new(|_, mut client| {
        client.request();
    });
    let pair = Pair::start();
    let answer = pair.connect().get(&origin.url("/"));
    assert_eq!(answer.status, 502);
    assert!(
        answer
            .field("proxy-status")
            .unwrap()
            .starts_with("gateway; error=http_response_incomplete")
    );
}

#[test]
fn malformed_origin_response_gives_502() {
    for nonsense in [
        "SSH-2.0-x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    ] {
        let origin = Scene::answering(nonsense);
        let answer = Pair::start().connect().get(&origin.url("/"));
        assert_eq!(answer.status, 502, "{nonsense:?}");
        assert!(
            answer
                .field("proxy-status")
                .unwrap()
                .contains("http_protocol_error")
        );
    }
}

#[test]
fn slow_origin_times_out() {
    let origin = Scene::new(|_, mut client| {
        client.request();
        // The gateway gives up, and closes the connection.
        client.request();
    });
    let pair = Pair::with(
        "h2",
        |gateway| gateway.response_timeout = Some("200ms".parse().unwrap()),
        |_| {},
    );
    let answer = pair.connect().get(&origin.url("/"));
    assert_eq!(answer.status, 504);
}

#[test]
fn gateway_replaces_stale_origin_connection() {
    // The first connection ends after its first response, at the moment of the second request.
    let origin = Scene::new(|number, mut client| {
        while client.request().is_some() {
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}"
            ));
            if number == 0 {
                client.request();
                return;
            }
        }
    });
    let pair = Pair::start();
    let mut client = pair.connect();
    assert_eq!(client.get(&origin.url("/")).body, b"0");
    assert_eq!(
        client.get(&origin.url("/")).body,
        b"1",
        "a GET is sent again"
    );
}

#[test]
fn gateway_does_not_repeat_unsafe_requests() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let origin = Scene::new(move |number, mut client| {
        while client.request().is_some() {
            if number == 0 && counter.fetch_add(1, Ordering::SeqCst) == 0 {
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                continue;
            }
            return;
        }
    });
    let pair = Pair::start();
    let mut client = pair.connect();
    assert_eq!(client.get(&origin.url("/")).status, 200);
    client.send(request("POST", &origin.url("/"), "Content-Length: 0\r\n"));
    assert_eq!(client.answer("POST").status, 502);
    assert_eq!(seen.load(Ordering::SeqCst), 2, "one GET and one POST");
}

#[test]
fn client_disconnect_cancels_origin_request() {
    for session in ["h2", "spdy3"] {
        let (tell, told) = mpsc::channel();
        let origin = Scene::new(move |_, mut client| {
            client.request();
            tell.send("asked").unwrap();
            assert!(client.request().is_none());
            tell.send("cancelled").unwrap();
        });
        let pair = Pair::with(session, |_| {}, |_| {});
        let mut client = pair.connect();
        client.send(request("GET", &origin.url("/"), ""));
        assert_eq!(told.recv_timeout(PATIENCE), Ok("asked"));
        drop(client);
        assert_eq!(told.recv_timeout(PATIENCE), Ok("cancelled"), "{session}");
    }
}

#[test]
fn client_recovers_after_gateway_restart() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            if asked.line.contains("/long") {
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nstart");
                // The thread waits until the test is over.
                let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
            } else {
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        }
    });
    let mut pair = Pair::start();
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/long"), ""));
    assert_eq!(client.head().unwrap().status, 200);
    assert_eq!(client.read_exact(5), b"start");
    let address = pair.gateway;
    pair.stop_gateway();
    let mut rest = Vec::new();
    let ended = std::io::Read::read_to_end(&mut client.stream, &mut rest);
    assert!(ended.is_err() || rest.len() < 99_995, "truncated");
    let mut options = gateway_options();
    options.listen = vec![endpoint(&format!("h2+tcp://{address}"))];
    let (_running, _) = start_gateway(options);
    assert_eq!(pair.connect().get(&origin.url("/short")).body, b"ok");
    drop(go);
}

#[test]
fn slow_reader_does_not_block_other_streams() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            if asked.line.contains("/endless") {
                client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                let chunk = format!("10000\r\n{}\r\n", "x".repeat(65_536));
                while std::io::Write::write_all(client.stream.get_mut(), chunk.as_bytes()).is_ok() {
                    counter.fetch_add(65_536, Ordering::SeqCst);
                }
                return;
            }
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let pair = Pair::start();
    let mut stopped = pair.connect();
    stopped.send(request("GET", &origin.url("/endless"), ""));
    stopped.head().unwrap();
    // The count stops growing: every buffer between the ends is bounded.
    let mut last = usize::MAX;
    for _ in 0..100 {
        let now = sent.load(Ordering::SeqCst);
        if now == last {
            break;
        }
        last = now;
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(sent.load(Ordering::SeqCst), last, "the origin is held back");
    assert!(last < 64 << 20, "{last} bytes buffered");
    let mut neighbour = pair.connect();
    for _ in 0..20 {
        assert_eq!(neighbour.get(&origin.url("/")).body, b"ok");
    }
}

#[test]
fn client_detects_silent_gateway() {
    // The gateway accepts the connection and sends no bytes.
    let silent = Scene::new(|_, mut client| {
        while std::io::Read::read(&mut client.stream, &mut [0; 1024]).unwrap_or(0) > 0 {}
    });
    let mut options = client_options(&format!("h2+tcp://{}", silent.address));
    options.probe_after = Some("100ms".parse().unwrap());
    options.probe_timeout = Some("200ms".parse().unwrap());
    let (_running, http, socks) = start_client(options);
    let answer = Client::to(http).get("http://site.example/");
    assert_eq!(answer.status, 504);
    assert!(
        answer
            .field("proxy-status")
            .unwrap()
            .contains("connection_timeout")
    );
    assert_eq!(
        Client::to(socks).socks("site.example:22", None),
        6,
        "TTL expired is SOCKS for a time-out"
    );
}

#[test]
fn head_time_and_size_are_limited() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let pair = Pair::with(
        "h2",
        |_| {},
        |client| client.head_timeout = Some("300ms".parse().unwrap()),
    );
    let mut slow = pair.connect();
    slow.send("GET http://site.example/ HTTP/1.1\r\nHost: site");
    assert_eq!(slow.answer("GET").status, 408);
    assert!(slow.is_closed());
    let mut large = pair.connect();
    large.send(request(
        "GET",
        &origin.url("/"),
        &format!("X-Large: {}\r\n", "x".repeat(100_000)),
    ));
    assert_eq!(large.answer("GET").status, 431);
    let mut many = pair.connect();
    many.send(request(
        "GET",
        &origin.url("/"),
        &"X-Many: 1\r\n".repeat(5000),
    ));
    assert_eq!(many.answer("GET").status, 431);
}

#[test]
fn response_may_precede_end_of_request_body() {
    let end = Arc::new(Gate::default());
    let held = Arc::clone(&end);
    let origin = Scene::new(move |_, mut client| {
        client.request();
        client.send("HTTP/1.1 413 Too Much\r\nContent-Length: 4\r\nConnection: close\r\n\r\nless");
        // The origin does not read the rest of the body.
        held.wait();
    });
    for session in ["h2", "h3", "spdy3.1"] {
        let pair = Pair::with(session, |_| {}, |_| {});
        let mut client = pair.connect();
        client.send(request(
            "POST",
            &origin.url("/"),
            "Content-Length: 50000000\r\n",
        ));
        client.send(vec![b'x'; 100_000]);
        let answer = client.answer("POST");
        assert_eq!(
            (answer.status, &answer.body[..]),
            (413, &b"less"[..]),
            "{session}"
        );
    }
    end.open();
}

#[test]
fn pair_serves_after_a_hundred_aborted_clients() {
    let origin = Scene::new(|_, mut client| {
        while client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
            client.send(vec![b'y'; 50_000]);
            std::thread::sleep(Duration::from_millis(20));
            client.send(vec![b'y'; 50_000]);
        }
    });
    let pair = Pair::start();
    for i in 0..100 {
        let mut client = pair.connect();
        client.send(request("GET", &origin.url("/"), ""));
        if i % 2 == 0 {
            client.head().unwrap();
        }
    }
    let mut client = pair.connect();
    assert_eq!(client.get(&origin.url("/")).body.len(), 100_000);
}

#[test]
fn head_request_gets_error_without_body() {
    let pair = Pair::with("h2", |gateway| gateway.allow_dest = Vec::new(), |_| {});
    let mut client = pair.connect();
    for _ in 0..2 {
        client.send(request("HEAD", "http://127.0.0.1/", ""));
        assert_eq!(client.answer("HEAD").status, 403);
    }
}

#[test]
fn broken_tunnel_is_reset() {
    let origin = Scene::new(|_, mut client| {
        client.send("half of it");
        // The test resets the connection: a FIN would be an orderly end.
        client.read_exact(1);
        socket2::SockRef::from(client.stream.get_ref())
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    });
    for over_socks in [true, false] {
        let pair = Pair::start();
        let mut client = if over_socks {
            let mut client = Client::to(pair.socks);
            assert_eq!(client.socks(&origin.address.to_string(), None), 0);
            client
        } else {
            let mut client = pair.connect();
            client.send(format!(
                "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n",
                origin.address
            ));
            assert_eq!(client.head().unwrap().status, 200);
            client
        };
        assert_eq!(client.read_exact(10), b"half of it");
        client.send("x");
        let mut rest = Vec::new();
        let ended = std::io::Read::read_to_end(&mut client.stream, &mut rest);
        assert_eq!(
            ended.map_err(|error| error.kind()),
            Err(std::io::ErrorKind::ConnectionReset),
            "SOCKS: {over_socks}"
        );
    }
}

/// The silence after which these tests take a session to have been idle.
const IDLE: Duration = Duration::from_millis(400);

/// The path is lost as after a suspend or a change of network: bytes are dropped without an error.
#[test]
fn client_replaces_lost_idle_session() {
    at_once(["h2", "spdy3.1"], |session| {
        let posts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&posts);
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                if asked.line.starts_with("POST") {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        });
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        let (_gateway, gateway) = start_gateway(options);
        let way = Way::to(gateway);
        let mut options = client_options(&format!("{session}+tcp://{}", way.address));
        // The next session is to the same gateway: the second endpoint has no listener.
        let nobody = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        options
            .gateway
            .push(endpoint(&format!("{session}+tcp://{nobody}")).into());
        // A companion would keep an exchange open, and the session would be probed all the time.
        options.push_digest = Some(false);
        // The test would fail if a request waited for its response this long.
        (options.probe_after, options.probe_timeout) =
            (Some(Span(IDLE)), Some(Span(10 * PATIENCE)));
        let (_client, http, socks) = start_client(options);
        let lose = || {
            assert_eq!(
                Client::to(http).get(&origin.url("/")).body,
                b"ok",
                "{session}"
            );
            std::thread::sleep(IDLE);
            way.lose();
        };
        lose();
        assert_eq!(
            Client::to(http).get(&origin.url("/")).body,
            b"ok",
            "{session}"
        );
        assert_eq!(way.connections(), 2, "{session}");
        lose();
        let mut tunnel = Client::to(http);
        tunnel.send(format!(
            "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n",
            origin.address
        ));
        assert_eq!(tunnel.head().unwrap().status, 200, "{session}");
        tunnel.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(tunnel.answer("GET").body, b"ok", "{session}");
        assert_eq!(way.connections(), 3, "{session}");
        lose();
        // SOCKS agrees at once: the first bytes have left, and may have arrived.
        let mut early = Client::to(socks);
        assert_eq!(
            early.socks(&origin.address.to_string(), None),
            0,
            "{session}"
        );
        early.send("POST / HTTP/1.1\r\nHost: another\r\nContent-Length: 0\r\n\r\n");
        let mut post = Client::to(http);
        post.send(request("POST", &origin.url("/"), "Content-Length: 0\r\n"));
        assert_eq!(
            Client::to(http).get(&origin.url("/")).body,
            b"ok",
            "{session}"
        );
        assert_eq!(
            (way.connections(), posts.load(Ordering::SeqCst)),
            (4, 0),
            "{session}: what changes something stays"
        );
    });
}

/// A half-received push on a lost session: a request for its resource does not wait for the rest.
#[test]
fn client_refetches_half_pushed_resource() {
    at_once(["h2", "spdy3.1"], |session| {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                if asked.line.contains("/page") {
                    client.send(
                        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<img src=c.png>",
                    );
                    continue;
                }
                let begun =
                    "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 2\r\n\r\n";
                client.send(begun);
                if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                    // The rest of the body is never sent.
                    client.send("o");
                    let _ = client.request();
                    return;
                }
                client.send("ok");
            }
        });
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        options.hold_out = Some(0.0);
        let (_gateway, gateway) = start_gateway(options);
        let way = Way::to(gateway);
        let mut options = client_options(&format!("{session}+tcp://{}", way.address));
        // The session counts as idle after half of the probe interval; the path is lost in between.
        let asked_after = Duration::from_secs(4);
        (options.probe_after, options.probe_timeout) =
            (Some(Span(asked_after)), Some(Span(10 * PATIENCE)));
        let (_client, http, _) = start_client(options);
        let mut browser = Client::to(http);
        assert_eq!(browser.get(&origin.url("/page")).status, 200, "{session}");
        while asked.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(asked_after * 5 / 8);
        way.lose();
        assert_eq!(browser.get(&origin.url("/c.png")).body, b"ok", "{session}");
        assert_eq!(
            (way.connections(), asked.load(Ordering::SeqCst)),
            (2, 2),
            "{session}"
        );
    });
}
