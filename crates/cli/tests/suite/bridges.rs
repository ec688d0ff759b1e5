//! The matrix of `tandem bridge`: each protocol towards clients with each towards origins, one test
//! for each cell.

mod chains;
mod ends;
mod loops;
mod origin;
mod without_content;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tandem::config::bridge::{BackOption, BridgeMode};
use tandem::exchange::{Body, Chunk, Part, Reply};
use tandem_http::{Method, RequestHead, Scheme};
use tokio::task::LocalSet;

use crate::harness::{Scene, block_on};
use ends::{
    Answer, DRAIN, Pieces, Visitor, authority, bridge, content, read, server, start_origin, within,
};
use origin::{AT_ONCE, Script, trailers};

/// A cell of the matrix.
#[derive(Clone, Copy)]
struct Cell {
    /// The protocol towards clients.
    front: &'static str,
    /// The protocol towards origins.
    back: &'static str,
}

/// Defines the cells of one protocol towards clients.
macro_rules! row {
    ($row:ident $front:literal: $($cell:ident $back:literal)*) => {
        mod $row {
            $(#[test]
            fn $cell() {
                super::Cell { front: $front, back: $back }.check();
            })*
        }
    };
}

/// Defines the matrix, with the same columns in each row.
macro_rules! matrix {
    ($($row:ident $front:literal)*) => {
        $(row!($row $front:
            to_http "http"
            to_http_tls "http+tls"
            to_h2 "h2+tcp"
            to_h2_tls "h2+tls"
            to_spdy3 "spdy3"
            to_spdy3_tls "spdy3+tls"
            to_spdy31 "spdy3.1"
            to_spdy31_tls "spdy3.1+tls"
            to_h3 "h3+quic"
        );)*
    };
}

matrix! {
    bridge_from_http "http"
    bridge_from_http_tls "http+tls"
    bridge_from_h2 "h2+tcp"
    bridge_from_h2_tls "h2+tls"
    bridge_from_spdy3 "spdy3"
    bridge_from_spdy3_tls "spdy3+tls"
    bridge_from_spdy31 "spdy3.1"
    bridge_from_spdy31_tls "spdy3.1+tls"
    bridge_from_h3 "h3+quic"
}

impl Cell {
    fn check(self) {
        let script = Arc::new(Script::new());
        let (origin, address) = start_origin(self.back, &script);
        let local = LocalSet::new();
        block_on(local.run_until(async {
            self.reverse(address, &script).await;
            self.forward(address).await;
            self.proxy(address).await;
        }));
        drop(origin);
    }

    /// Checks the scenes with one origin behind the bridge.
    async fn reverse(self, address: SocketAddr, script: &Script) {
        let (running, front) = started(self.front, |options| {
            options.mode = Some(BridgeMode::Reverse(server(self.back, address)));
            options.allow_host = vec!["site.example".parse().unwrap()];
        });
        let visitor = Visitor::new(self.front, front, false);
        self.messages(&visitor).await;
        self.bodies(&visitor).await;
        together(&visitor).await;
        self.breaks(&visitor, script).await;
        let refused = read(visitor.send(connect("site.example:443"), tunnelled())).await;
        assert_eq!(refused.status, 403, "one origin has no tunnels");
        let other = read(get(&visitor, "other.example", "/page")).await;
        assert_eq!(other.status, 421);
        drop(visitor);
        running.drain(DRAIN).await;
    }

    /// Checks heads: GET, HEAD, 304 and 103.
    async fn messages(self, visitor: &Visitor) {
        let answer = read(get(visitor, "site.example", "/page")).await;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"page"[..]));
        assert_eq!(answer.field("seen-authority"), Some("site.example"));
        assert_eq!(answer.field("seen-test"), Some("1"));
        assert_eq!(answer.field("seen-pair"), Some(""), "not the origin's");
        let via = answer.field("seen-via").expect("the page tells it");
        assert!(
            via.starts_with(&format!("{} tandem-", received(self.front))),
            "{via}"
        );
        let scheme = if is_secure(self.back) {
            "https"
        } else {
            "http"
        };
        assert_eq!(answer.field("seen-scheme"), Some(scheme));
        let mut request = page("site.example", "/page");
        request.method = Method::Head;
        let answer = read(visitor.send(request, Body::empty())).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0));
        assert_eq!(answer.field("content-length"), Some("4"));
        let mut request = page("site.example", "/page");
        request.fields.push("if-none-match", "\"1\"");
        let answer = read(visitor.send(request, Body::empty())).await;
        assert_eq!((answer.status, answer.body.len()), (304, 0));
        assert_eq!(answer.field("etag"), Some("\"1\""));
        let answer = read(get(visitor, "site.example", "/hints")).await;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"page"[..]));
        // SPDY has no interim responses.
        let hints = usize::from(!is_spdy(self.front) && !is_spdy(self.back));
        assert_eq!(answer.hints.len(), hints);
        assert!(answer.hints.iter().all(|head| head.status == 103));
    }

    /// Checks bodies and trailers in both directions.
    async fn bodies(self, visitor: &Visitor) {
        for (length, known) in [(0, true), (5, true), (5, false), (1 << 20, false)] {
            let bytes = content(length);
            let answer = read(post(visitor, bytes.clone(), known)).await;
            assert_eq!((answer.status, answer.is_broken), (200, false));
            assert!(answer.body == bytes, "{length}: {}", answer.body.len());
            let expected = if known { 0 } else { 1 };
            assert_eq!(answer.trailers.len(), expected, "{length}");
        }
        let answer = read(get(visitor, "site.example", "/large")).await;
        assert!(answer.body == content(1 << 20), "{}", answer.body.len());
    }

    /// Breaks an exchange off half-way, from each side.
    async fn breaks(self, visitor: &Visitor, script: &Script) {
        let answer = read(get(visitor, "site.example", "/half")).await;
        let seen = (answer.status, &answer.body[..]);
        if is_h3(self.front) || is_h3(self.back) {
            // A reset of HTTP/3 discards the data before it. Without a head, the bridge
            // answers 502.
            assert!(answer.is_broken || answer.status == 502, "{seen:?}");
        } else {
            assert!(
                answer.is_broken,
                "a truncated response looks complete: {seen:?}"
            );
            assert_eq!(seen, (200, &b"half1"[..]));
        }
        let mut reply = get(visitor, "site.example", "/endless");
        loop {
            let part = within(reply.part()).await;
            let part = part.expect("no end").expect("no failure");
            if matches!(part, Part::Data(_)) {
                break;
            }
        }
        drop(reply);
        within(script.cancellation()).await;
        let answer = read(get(visitor, "site.example", "/page")).await;
        assert_eq!(answer.status, 200, "other exchanges continue");
    }

    /// Checks requests and tunnels with the origins that requests name.
    async fn forward(self, address: SocketAddr) {
        let (running, front) = started(self.front, |options| {
            options.back = Some(option(self.back));
            options.allow_dest = vec!["127.0.0.0/8".parse().unwrap()];
            options.origin_ca = Some(authority().to_owned());
        });
        let visitor = Visitor::new(self.front, front, true);
        let mut request = page(&address.to_string(), "/page");
        if is_secure(self.back) {
            request.scheme = Scheme::Https;
        }
        let answer = read(visitor.send(request, Body::empty())).await;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"page"[..]));
        let echoing = Scene::new(|_, mut client| {
            let bytes = client.read_exact(4);
            client.send(bytes);
        });
        let request = connect(&echoing.address.to_string());
        check_tunnel(visitor.send(request, tunnelled())).await;
        drop(visitor);
        running.drain(DRAIN).await;
    }

    /// Checks requests and tunnels with another proxy behind the bridge.
    async fn proxy(self, address: SocketAddr) {
        let (running, front) = started(self.front, |options| {
            options.mode = Some(BridgeMode::Proxy(server(self.back, address)));
        });
        let visitor = Visitor::new(self.front, front, true);
        let answer = read(get(&visitor, "any.example", "/page")).await;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"page"[..]));
        assert_eq!(answer.field("seen-authority"), Some("any.example"));
        let request = connect("any.example:443");
        check_tunnel(visitor.send(request, tunnelled())).await;
        drop(visitor);
        running.drain(DRAIN).await;
    }
}

/// Starts a bridge from within a runtime.
fn started(
    front: &'static str,
    change: impl FnOnce(&mut tandem::config::BridgeOptions) + Send,
) -> (tandem::runtime::Running, SocketAddr) {
    std::thread::scope(|scope| scope.spawn(|| bridge(front, change)).join())
        .expect("the bridge starts")
}

fn is_secure(scheme: &str) -> bool {
    scheme.ends_with("+tls") || scheme.ends_with("+quic")
}

fn is_h3(scheme: &str) -> bool {
    scheme.starts_with("h3")
}

fn is_spdy(scheme: &str) -> bool {
    scheme.starts_with("spdy")
}

/// Returns the protocol that `Via` names.
fn received(scheme: &str) -> &'static str {
    match scheme.split('+').next() {
        Some("http") => "1.1",
        Some("h2") => "2.0",
        Some("h3") => "3.0",
        Some("spdy3") => "SPDY/3",
        _ => "SPDY/3.1",
    }
}

/// Returns the option `back` for the session of a scheme.
fn option(scheme: &str) -> BackOption {
    match scheme.split('+').next() {
        Some("http") => BackOption::Http,
        Some("h2") => BackOption::H2,
        Some("h3") => BackOption::H3,
        Some("spdy3") => BackOption::Spdy3,
        _ => BackOption::Spdy31,
    }
}

fn page(authority: &str, path: &str) -> RequestHead {
    let mut request = RequestHead::get(Scheme::Http, authority, path);
    request.fields.push("x-test", "1");
    request.fields.push("tandem-test", "1");
    request
}

fn get(visitor: &Visitor, authority: &str, path: &str) -> Reply {
    visitor.send(page(authority, path), Body::empty())
}

fn post(visitor: &Visitor, bytes: Bytes, known: bool) -> Reply {
    let mut request = page("site.example", "/echo");
    request.method = Method::Post;
    request.fields.push("te", "trailers");
    let length = bytes.len();
    let pieces = bytes.chunks(10_000);
    let mut chunks: std::collections::VecDeque<_> = pieces
        .map(|piece| Chunk::Data(Bytes::copy_from_slice(piece)))
        .collect();
    if !known {
        chunks.push_back(Chunk::Trailers(trailers()));
        return visitor.send(request, Body::new(Pieces(chunks), None));
    }
    request.fields.push("content-length", length.to_string());
    visitor.send(request, Body::new(Pieces(chunks), Some(length as u64)))
}

/// Sends many requests, all of which the origin holds until the last one has come.
async fn together(visitor: &Visitor) {
    let asked: Vec<_> = (0..AT_ONCE)
        .map(|_| tokio::task::spawn_local(read(get(visitor, "site.example", "/together"))))
        .collect();
    for answer in asked {
        let answer: Answer = answer.await.expect("no panic");
        assert_eq!((answer.status, &answer.body[..]), (200, &b"together"[..]));
    }
}

fn connect(authority: &str) -> RequestHead {
    let mut request = RequestHead::get(Scheme::Http, authority, "");
    request.method = Method::Connect;
    request
}

/// Returns the bytes into a tunnel, and its end.
fn tunnelled() -> Body {
    let bytes = Chunk::Data(Bytes::from_static(b"ping"));
    Body::new(Pieces([bytes].into()), None)
}

async fn check_tunnel(reply: Reply) {
    let answer = read(reply).await;
    assert_eq!((answer.status, answer.is_broken), (200, false));
    assert_eq!(answer.body, b"ping");
}

/// Runs a scene with an origin of one protocol.
fn scene<F: Future<Output = ()>>(back: &str, play: impl FnOnce(SocketAddr) -> F) {
    let (origin, address) = start_origin(back, &Arc::new(Script::new()));
    block_on(LocalSet::new().run_until(play(address)));
    drop(origin);
}

#[test]
fn bridge_admits_by_token() {
    let file = std::env::temp_dir().join(format!("tandem-bridge-token-{}", std::process::id()));
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    scene("http", |address| async move {
        let (_running, front) = started("h2+tcp", |options| {
            options.open = None;
            options.auth = vec![format!("token-file={}", file.display())];
            options.allow_dest = vec!["127.0.0.0/8".parse().unwrap()];
        });
        let authority = address.to_string();
        for (token, status) in [("wrong", 407), ("0123456789abcdef", 200)] {
            let visitor = Visitor::new("h2+tcp", front, true);
            let mut request = page(&authority, "/page");
            let credentials = format!("Bearer {token}");
            request.fields.push("proxy-authorization", credentials);
            let answer = read(visitor.send(request, Body::empty())).await;
            assert_eq!(answer.status, status);
            let passed_on = answer.field("seen-credentials").unwrap_or_default();
            assert_eq!(passed_on, "", "the token ends at the bridge");
            if status == 407 {
                let refused = read(visitor.send(connect(&authority), tunnelled())).await;
                assert_eq!(refused.status, 407);
            }
        }
    });
}

#[test]
fn bridge_refuses_private_destinations() {
    scene("h2+tcp", |address| async move {
        for back in [BackOption::Auto, BackOption::H2, BackOption::Spdy31] {
            let (_running, front) = started("http", |options| options.back = Some(back));
            let visitor = Visitor::new("http", front, true);
            let authority = address.to_string();
            let answer = read(get(&visitor, &authority, "/page")).await;
            assert_eq!(answer.status, 403, "{back:?}");
            let answer = read(visitor.send(connect(&authority), tunnelled())).await;
            assert_eq!(answer.status, 403, "{back:?}");
        }
    });
}

#[test]
fn bridge_verifies_origins() {
    for back in ["http+tls", "h2+tls", "spdy3.1+tls", "h3+quic"] {
        scene(back, |address| async move {
            // The authorities of the public web did not sign the certificate.
            let (_running, front) = started("http", |options| {
                let url = format!("reverse={back}://{address}");
                options.mode = Some(url.parse().unwrap());
            });
            let visitor = Visitor::new("http", front, false);
            let answer = read(get(&visitor, &address.to_string(), "/page")).await;
            assert_eq!(answer.status, 502, "{back}");
        });
    }
}

#[test]
fn bridge_requires_the_negotiated_protocol() {
    scene("http+tls", |address| async move {
        for back in ["h2+tls", "spdy3.1+tls"] {
            let (_running, front) = started("http", |options| {
                options.mode = Some(BridgeMode::Reverse(server(back, address)));
            });
            let visitor = Visitor::new("http", front, false);
            let answer = read(get(&visitor, &address.to_string(), "/page")).await;
            assert_eq!(answer.status, 502, "{back}");
        }
    });
}

#[test]
fn bridge_never_sends_http_over_quic() {
    scene("http", |address| async move {
        let (_running, front) = started("http", |options| {
            options.back = Some(BackOption::H3);
            options.allow_dest = vec!["127.0.0.0/8".parse().unwrap()];
        });
        let visitor = Visitor::new("http", front, true);
        let answer = read(get(&visitor, &address.to_string(), "/page")).await;
        assert_eq!(answer.status, 400);
        assert!(answer.field("proxy-status").unwrap().starts_with("bridge;"));
    });
}

#[test]
fn bridge_serves_http_1_beside_h2_on_tls() {
    scene("h2+tcp", |address| async move {
        let (_running, front) = started("h2+tls", |options| {
            options.mode = Some(BridgeMode::Reverse(server("h2+tcp", address)));
        });
        for scheme in ["http+tls", "h2+tls"] {
            let visitor = Visitor::new(scheme, front, false);
            let answer = read(get(&visitor, &address.to_string(), "/page")).await;
            assert_eq!(answer.status, 200, "{scheme}");
        }
    });
}

#[test]
fn bridge_carries_websockets_from_http_1_to_h2() {
    scene("h2+tcp", |address| async move {
        let (_running, front) = started("http", |options| {
            options.mode = Some(BridgeMode::Reverse(server("h2+tcp", address)));
        });
        let visitor = Visitor::new("http", front, false);
        let mut request = page(&address.to_string(), "/socket");
        request.method = Method::Connect;
        request.protocol = Some("websocket".into());
        // The key and the proof of RFC 6455 section 1.3.
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        request.fields.push("sec-websocket-key", key);
        let answer = read(visitor.send(request, tunnelled())).await;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"ping"[..]));
        let proof = answer.field("sec-websocket-accept");
        assert_eq!(proof, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    });
}

#[test]
fn bridge_reuses_no_tunnel_for_requests() {
    scene("http", |address| async move {
        let (_running, front) = started("h2+tcp", |options| {
            options.mode = Some(BridgeMode::Proxy(server("http", address)));
        });
        let visitor = Visitor::new("h2+tcp", front, true);
        // The client's direction of this tunnel ends with the request.
        let answer = read(visitor.send(connect("any.example:443"), Body::empty())).await;
        assert_eq!(answer.status, 200);
        for _ in 0..3 {
            let answer = read(get(&visitor, "any.example", "/page")).await;
            assert_eq!((answer.status, &answer.body[..]), (200, &b"page"[..]));
        }
    });
}

#[test]
fn bridge_reads_the_authority_of_quic_at_its_start() {
    let url = "reverse=h3+quic://127.0.0.1:9?ca=/nonexistent/ca.pem";
    let options = tandem::config::BridgeOptions {
        listen: vec!["http://127.0.0.1:0".parse().unwrap()],
        mode: Some(url.parse().unwrap()),
        open: Some(true),
        ..tandem::config::BridgeOptions::default()
    };
    let config = options.typed_with(&ends::transports()).unwrap();
    let started = block_on(tandem::runtime::Running::start(Arc::new(config)));
    let error = started.expect_err("the file is missing").to_string();
    assert!(error.contains("/nonexistent/ca.pem"), "{error}");
}
