//! Tests of HTTP at the edges of the pair: malformed requests, half-closed clients, `Max-Forwards`,
//! the pair's internal fields, and truncated responses.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tandem_http::{ByteMux, Event, MuxConfig, Reason, ResponseHead, Role, SendBuf};

use crate::certificates::Certificates;
use crate::harness::{
    Asked, Client, PATIENCE, Pair, Scene, Way, client_options, endpoint, gateway_options, request,
    start_client, start_gateway,
};
use crate::pairs::SESSIONS;
use crate::patience::until;

/// The sessions over one byte stream, which deliver the data before a reset. A reset of a
/// stream of QUIC discards it (RFC 9000 section 3.2).
const BYTE_STREAMS: [&str; 3] = ["h2", "spdy3", "spdy3.1"];

/// Starts an origin that answers `ok` and passes on the requests that it receives.
fn recording() -> (Scene, mpsc::Receiver<Asked>) {
    let (tell, seen) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            tell.send(asked).unwrap();
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    (origin, seen)
}

#[test]
fn client_refuses_bad_chunking_with_400() {
    let origin = Scene::new(|_, mut client| {
        // The proxy waits for the whole body, which never arrives.
        let mut rest = Vec::new();
        let _ = client.stream.read_to_end(&mut rest);
    });
    for session in SESSIONS {
        let pair = Pair::with(session, |_| {}, |_| {});
        for body in [
            "zz\r\nab\r\n",
            "3\r\nabc\r\n-1\r\n",
            "2\r\nabcd\r\n0\r\n\r\n",
        ] {
            let mut client = pair.connect();
            client.send(request(
                "POST",
                &origin.url("/"),
                "Transfer-Encoding: chunked\r\n",
            ));
            client.send(body);
            assert_eq!(client.answer("POST").status, 400, "{session} {body:?}");
            assert!(client.is_closed(), "{session} {body:?}");
        }
    }
}

#[test]
fn refusal_of_a_head_request_has_no_content() {
    let pair = Pair::with("h2", |_| {}, |_| {});
    let mut client = pair.connect();
    client.send("HEAD http://site.example/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer("HEAD").status, 400);
    assert!(client.is_closed(), "bytes follow the head");
}

#[test]
fn gateway_refuses_bad_chunking_with_400() {
    let origin = Scene::new(|_, mut client| {
        let mut rest = Vec::new();
        let _ = client.stream.read_to_end(&mut rest);
    });
    let mut options = gateway_options();
    options.listen = vec![endpoint("http+tcp://127.0.0.1:0")];
    let (_running, gateway) = start_gateway(options);
    let mut client = Client::to(gateway);
    client.send(request(
        "POST",
        &origin.url("/"),
        "Transfer-Encoding: chunked\r\n",
    ));
    client.send("3\r\nabc\r\nzz\r\n");
    assert_eq!(client.answer("POST").status, 400);
}

#[test]
fn client_refuses_framing_fields_with_underscores() {
    let (origin, seen) = recording();
    let pair = Pair::start();
    let mut client = pair.connect();
    client.send(request(
        "POST",
        &origin.url("/"),
        "Content-Length: 0\r\nTransfer_Encoding: chunked\r\n",
    ));
    assert_eq!(client.answer("POST").status, 400);
    assert!(seen.try_recv().is_err(), "nothing went out");
}

#[test]
fn each_proxy_decrements_max_forwards() {
    for session in SESSIONS.into_iter().chain(["relayed"]) {
        let left = if session == "relayed" { "1" } else { "3" };
        let (origin, seen) = recording();
        let pair = Pair::with(session, |_| {}, |_| {});
        for method in ["TRACE", "OPTIONS"] {
            let ask = |number: &str| {
                let mut client = pair.connect();
                client.send(request(
                    method,
                    &origin.url("/path"),
                    &format!("Max-Forwards: {number}\r\nCookie: id=secret\r\nX-A: b\r\n"),
                ));
                client.answer(method)
            };
            for (number, echoed) in [("0", "0"), ("1", "0")] {
                let answer = ask(number);
                assert_eq!(answer.status, 200, "{session} {method} {number}");
                assert_eq!(answer.field("tandem-version"), None, "{session}");
                assert!(answer.field("date").is_some(), "{session}");
                let body = String::from_utf8(answer.body.clone()).unwrap();
                if method == "TRACE" {
                    assert_eq!(answer.field("content-type"), Some("message/http"));
                    assert!(body.contains("X-A: b"), "{body}");
                    assert!(body.contains(&format!("Max-Forwards: {echoed}")), "{body}");
                    assert!(!body.contains("secret"), "{body}");
                } else {
                    assert!(answer.field("allow").unwrap().contains("OPTIONS"));
                    assert_eq!(body, "");
                }
            }
            assert!(seen.try_recv().is_err(), "{session} {method}: it went on");
            assert_eq!(ask("5").body, b"ok");
            let asked = seen.recv_timeout(PATIENCE).unwrap();
            let field = asked.field("max-forwards");
            assert_eq!(field, Some(left), "{session} {method}");
            assert_eq!(ask("many").status, 400);
        }
        let mut client = pair.connect();
        client.send(request("GET", &origin.url("/"), "Max-Forwards: 0\r\n"));
        assert_eq!(client.answer("GET").body, b"ok", "GET is not bound by it");
    }
}

#[test]
fn pair_removes_its_internal_fields_at_edges() {
    let (tell, seen) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            tell.send(asked).unwrap();
            client.send(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTandem-Asked: 0\r\n\
                 Tandem-Push: pushed\r\nTandem-New: 1\r\nX-Kept: 1\r\n\r\n\
                 2\r\nok\r\n0\r\nTandem-Push: x\r\nX-Sum: 1\r\n\r\n",
            );
        }
    });
    for session in SESSIONS {
        let pair = Pair::with(session, |_| {}, |_| {});
        let mut client = pair.connect();
        client.send(request(
            "GET",
            &origin.url("/"),
            "TE: trailers\r\nTandem-Push: pushed\r\nTandem-Asked: 00\r\nX-Kept: 1\r\n",
        ));
        let answer = client.answer("GET");
        assert_eq!(answer.body, b"ok", "{session}");
        let own = |(name, _): &&(String, String)| name.to_lowercase().starts_with("tandem-");
        let asked = seen.recv_timeout(PATIENCE).unwrap();
        assert_eq!(asked.fields.iter().find(own), None, "{session}");
        assert_eq!(asked.field("x-kept"), Some("1"));
        assert_eq!(answer.fields.iter().find(own), None, "{session}");
        assert_eq!(answer.field("x-kept"), Some("1"));
        assert_eq!(answer.trailers.iter().find(own), None, "{session}");
        assert_eq!(answer.trailers.len(), 1, "{session}");
    }
}

/// SOCKS carries the address as bytes, and the browser writes it in another textual form than the
/// client.
#[test]
fn socks_serves_http_to_a_mapped_address() {
    let pair = Pair::with("h2", |gateway| gateway.allow_dest = Vec::new(), |_| {});
    let mut client = Client::to(pair.socks);
    client.send([5, 1, 0]);
    client.read_exact(2);
    let mut flight = vec![5, 1, 0, 4];
    flight.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
    flight.extend(80_u16.to_be_bytes());
    client.send(flight);
    assert_eq!(client.read_exact(10)[1], 0);
    client.send("GET / HTTP/1.1\r\nHost: [::ffff:7f00:1]\r\n\r\n");
    assert_eq!(client.answer("GET").status, 403);
}

/// The client has ended its side when the origin answers: the first byte of the response shows that
/// the proxy has seen the end.
#[test]
fn client_serves_half_closed_browser() {
    for session in SESSIONS {
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                if asked.line.contains("/slow") {
                    wait.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                }
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
                client.send(vec![b'x'; 100_000]);
            }
        });
        let pair = Pair::with(session, |_| {}, |_| {});
        for version in ["1.0", "1.1"] {
            let mut client = pair.connect();
            let ask = |path: &str| {
                let url = origin.url(path);
                format!(
                    "GET {url} HTTP/{version}\r\nHost: {}\r\nConnection: keep-alive\r\n\r\n",
                    origin.address
                )
            };
            client.send(ask("/slow") + &ask("/next"));
            client.stream.get_ref().shutdown(Shutdown::Write).unwrap();
            let mut first = [0];
            client.stream.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"H");
            go.send(()).unwrap();
            let rest = client.answer("GET");
            assert_eq!((rest.status, rest.body.len()), (200, 100_000), "{session}");
            let next = client.answer("GET");
            assert_eq!((next.status, next.body.len()), (200, 100_000), "{session}");
            assert!(client.is_closed());
        }
    }
}

/// Reads until the end of the connection; returns the bytes, and true if the connection broke.
fn read_to_break(client: &mut Client) -> (Vec<u8>, bool) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        match client.stream.read(&mut buffer) {
            Ok(0) => return (bytes, false),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                return (bytes, true);
            }
        }
    }
}

/// Returns the data of a chunked body, which may be truncated.
fn dechunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        assert!(size > 0, "the body has an end");
        let rest = &bytes[end + 2..];
        data.extend_from_slice(&rest[..size.min(rest.len())]);
        bytes = rest.get(size + 2..).unwrap_or_default();
    }
    data
}

/// Returns the body bytes that an origin sends before its connection breaks.
fn prefix(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// Reads a truncated response, and checks that no byte before the break is missing.
fn check_prefix(client: &mut Client, length: usize, what: &str) {
    let head = client.head().unwrap();
    assert_eq!(head.status, 200, "{what}");
    let chunked = head.field("transfer-encoding").is_some();
    let is_short = head
        .field("content-length")
        .is_some_and(|whole| whole.parse::<usize>().unwrap() > length);
    assert!(chunked || is_short, "{what}: an end would look whole");
    let (bytes, reset) = read_to_break(client);
    let data = if chunked { dechunk(&bytes) } else { bytes };
    assert_eq!(data.len(), length, "{what}");
    assert!(data == prefix(length), "{what}");
    assert!(!reset, "{what}: browsers show nothing after a reset");
}

/// The end of the connection would end the body of a response to HTTP/1.0.
#[test]
fn body_that_a_close_would_end_is_reset() {
    let origin = breaking("chunked", 5);
    let pair = Pair::with("h2", |_| {}, |_| {});
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/"), "").replace("HTTP/1.1", "HTTP/1.0"));
    let head = client.head().unwrap();
    assert_eq!(head.field("transfer-encoding"), None);
    assert_eq!(read_to_break(&mut client), (prefix(5), true));
}

/// Firefox does not compare the length of such bodies with the bytes that arrived.
#[test]
fn short_body_of_an_unchecked_length_is_reset() {
    for (status, field, is_reset) in [
        ("200 OK", "X-A: b", false),
        ("206 Partial Content", "Content-Range: bytes 0-8/90", false),
        ("200 OK", "Content-Encoding: gzip", true),
        ("404 Not Found", "X-A: b", true),
    ] {
        let head = format!("HTTP/1.1 {status}\r\n{field}\r\nContent-Length: 9\r\n\r\n");
        let origin = Scene::new(move |_, mut client| {
            client.request();
            client.send(&head);
            client.send(prefix(5));
        });
        let pair = Pair::with("h2", |_| {}, |_| {});
        let mut client = pair.connect();
        client.send(request("GET", &origin.url("/"), ""));
        assert_eq!(client.head().unwrap().field("content-length"), Some("9"));
        let ended = read_to_break(&mut client);
        assert_eq!(ended, (prefix(5), is_reset), "{status} {field}");
    }
}

/// The ways in which an origin breaks off a response.
const BREAKS: [&str; 4] = ["length", "chunked", "malformed", "reset"];

/// Starts an origin that sends `length` bytes of a body and then breaks off.
fn breaking(kind: &'static str, length: usize) -> Scene {
    Scene::new(move |_, mut client| {
        client.request();
        let body = prefix(length);
        if matches!(kind, "length" | "reset") {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n");
            client.send(body);
        } else {
            let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            write!(answer, "{length:x}\r\n").unwrap();
            answer.extend(body);
            answer.extend(if kind == "malformed" {
                &b"\r\nzz"[..]
            } else {
                b"\r\n"
            });
            client.send(answer);
        }
        if kind == "reset" {
            // The reset follows after the peer has read everything: it would discard the sender's
            // unsent bytes.
            let _ = client.stream.get_ref().shutdown(Shutdown::Write);
            client.request_ends();
        }
    })
}

#[test]
fn pair_delivers_truncated_responses_to_the_break() {
    for session in BYTE_STREAMS {
        let pair = Pair::with(session, |_| {}, |_| {});
        for kind in BREAKS {
            for length in [5, 300_000] {
                let origin = breaking(kind, length);
                let mut client = pair.connect();
                client.send(request("GET", &origin.url("/"), ""));
                check_prefix(&mut client, length, &format!("{session} {kind} {length}"));
            }
        }
    }
}

#[test]
fn http_1_listener_forwards_truncated_response() {
    let mut options = gateway_options();
    options.listen = vec![endpoint("http+tcp://127.0.0.1:0")];
    let (_running, gateway) = start_gateway(options);
    for kind in BREAKS {
        let origin = breaking(kind, 300_000);
        let mut client = Client::to(gateway);
        client.send(request("GET", &origin.url("/"), ""));
        check_prefix(&mut client, 300_000, kind);
    }
}

/// The origin is a gateway in reverse mode, so that it serves HTTP/2 over TLS.
#[test]
fn http_2_origin_response_is_forwarded_to_the_break() {
    let certificates = Arc::new(Certificates::new("prefix"));
    for kind in BREAKS {
        let behind = breaking(kind, 300_000);
        let mut origin = gateway_options();
        origin.listen = vec![endpoint(&format!(
            "h2+tls://127.0.0.1:0?{}",
            certificates.identity()
        ))];
        let target = format!("reverse=http://{}", behind.address);
        origin.mode = Some(target.parse().unwrap());
        origin.allow_host = vec!["*".parse().unwrap()];
        let (_origin, address) = start_gateway(origin);
        for session in BYTE_STREAMS {
            let pair = Pair::with(
                session,
                |gateway| {
                    gateway.mode = Some(format!("reverse=https://{address}").parse().unwrap());
                    gateway.allow_host = vec!["site.example".parse().unwrap()];
                    gateway.origin_ca = Some(certificates.path("ca.pem"));
                },
                |_| {},
            );
            let mut client = pair.connect();
            client.send(request("GET", "http://site.example/", ""));
            check_prefix(&mut client, 300_000, &format!("{session} {kind}"));
        }
    }
}

/// A browser that reads late receives the beginning too: the reset does not discard it.
#[test]
fn slow_reader_receives_bytes_before_the_reset() {
    let origin = breaking("length", 800_000);
    let (_gateway, gateway) = start_gateway(gateway_options());
    let way = Way::to(gateway);
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{}", way.address)));
    let mut client = Client::to(http);
    client.send(request("GET", &origin.url("/"), ""));
    until("the client got no whole beginning", || way.down() > 800_000);
    check_prefix(&mut client, 800_000, "slow");
}

/// The way in which a scripted gateway ends its connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Fin,
    Reset,
}

/// Starts a gateway that answers the first request of a session, sends GOAWAY and closes.
fn leaving(session: &'static str, segments: usize, end: End) -> Scene {
    Scene::new(move |_, mut client| {
        let config = MuxConfig::new(Role::Server);
        let mut core: Box<dyn ByteMux> = match session {
            "h2" => Box::new(tandem_http::h2::Connection::new(config)),
            _ => Box::new(tandem_spdy::Connection::new(tandem_spdy::Config::new(
                config,
                tandem_spdy::Version::V31,
            ))),
        };
        let mut buffer = [0; 4096];
        let id = 'asked: loop {
            let count = client.stream.read(&mut buffer).unwrap();
            core.handle_input(Instant::now(), &buffer[..count]).unwrap();
            while let Some(event) = core.poll_event() {
                if let Event::Request { id, .. } = event {
                    break 'asked id;
                }
            }
        };
        core.respond(id, &ResponseHead::new(200), false);
        core.send_data(id, Bytes::from(prefix(2000)), true);
        core.go_away(Reason::NoError);
        let mut out = SendBuf::new();
        while core.wants_output() {
            core.poll_output(&mut out, usize::MAX);
        }
        let bytes = out.copy_to_bytes(out.remaining());
        // A reset discards the bytes that the sender's kernel still holds.
        client.stream.get_ref().set_nodelay(true).unwrap();
        for segment in bytes.chunks(bytes.len().div_ceil(segments)) {
            client.send(segment);
        }
        if end == End::Reset {
            let socket = socket2::SockRef::from(client.stream.get_ref());
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        }
    })
}

#[test]
fn client_delivers_responses_before_goaway() {
    for session in ["h2", "spdy3.1"] {
        for segments in [1, 3] {
            for end in [End::Fin, End::Reset] {
                let gateway = leaving(session, segments, end);
                let options = client_options(&format!("{session}+tcp://{}", gateway.address));
                let (_running, http, _) = start_client(options);
                for round in 0..20 {
                    let mut client = Client::to(http);
                    let answer = client.get("http://site.example/");
                    assert!(
                        answer.status == 200 && answer.body == prefix(2000),
                        "{session} {segments} {end:?} {round}: {}",
                        answer.status
                    );
                }
            }
        }
    }
}
