//! Connections that do not authenticate cannot keep out those that do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc;

use tandem::config::{ClientOptions, GatewayOptions};
use tandem_http::{Priority, RequestHead, Scheme};

use crate::admission::secret;
use crate::certificates::Certificates;
use crate::harness::{
    Client, PATIENCE, Pair, Scene, Way, client_options, endpoint, gateway_options, request,
    start_client, start_gateway,
};
use crate::limits::Peer;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

const TOKEN: &str = "correct-horse-battery-staple\n";

/// Connections that the gateway may have.
const MOST: usize = 50;

/// A gateway that asks for the token and admits few connections.
fn with_token(gateway: &mut GatewayOptions, token: &Path) {
    gateway.open = None;
    gateway.auth = vec![format!("token-file={}", token.display())];
    gateway.max_connections = Some(MOST);
    gateway.max_connections_per_client = Some(MOST);
}

/// The first bytes of a session that goes no further, in turn those of several kinds.
fn begin(gateway: SocketAddr, session: &str, number: usize) -> TcpStream {
    if number.is_multiple_of(2) {
        // Preface and settings, and a request without the token.
        let mut peer = Peer::to(gateway, session);
        let head = RequestHead::get(Scheme::Http, "site.example", "/");
        if number.is_multiple_of(4) {
            peer.core.open(&head, true, Priority::default()).unwrap();
        }
        peer.flush();
        return peer.socket;
    }
    let mut socket = TcpStream::connect(gateway).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let bytes: &[u8] = match session {
        "h2" => b"PRI * HTTP",
        _ => &[0x80, 3, 0, 4],
    };
    socket.write_all(bytes).unwrap();
    socket
}

/// Waits until the gateway has closed a connection.
fn is_closed(socket: &mut TcpStream) -> bool {
    loop {
        match socket.read(&mut [0; 4096]) {
            Ok(1..) => {}
            Ok(0) => return true,
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn half_open_sessions_leave_room_for_users() {
    let token = secret("half-open", TOKEN);
    let origin = Scene::answering(OK);
    for session in ["h2", "spdy3.1"] {
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        with_token(&mut options, &token);
        let (_gateway, gateway) = start_gateway(options);
        let flood = |count: usize| -> Vec<_> {
            (0..count)
                .map(|number| begin(gateway, session, number))
                .collect()
        };
        let mut before = flood(MOST);
        let way = Way::to(gateway);
        let options = ClientOptions {
            token_file: Some(token.display().to_string()),
            ..client_options(&format!("{session}+tcp://{}", way.address))
        };
        let (_client, http, _) = start_client(options);
        assert_eq!(
            Client::to(http).get(&origin.url("/")).status,
            200,
            "{session}"
        );
        let after = flood(3 * MOST);
        // The oldest made way, and the user's session, which is idle now, did not.
        assert!(is_closed(&mut before[0]), "{session}");
        assert_eq!(
            Client::to(http).get(&origin.url("/")).status,
            200,
            "{session}"
        );
        assert_eq!(way.connections(), 1, "{session}");
        drop((before, after));
    }
    std::fs::remove_file(token).unwrap();
}

/// Tor connects from this machine for all visitors of an onion service.
#[test]
fn visitors_of_an_onion_service_share_no_limit() {
    let token = secret("onion", TOKEN);
    let origin = Scene::answering(OK);
    for session in ["h2", "spdy3.1"] {
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        with_token(&mut options, &token);
        options.max_connections = Some(4 * MOST);
        options.max_connections_per_client = Some(2);
        let (_gateway, gateway) = start_gateway(options);
        let users: Vec<_> = (0..3)
            .map(|_| {
                let way = Way::to(gateway);
                let options = ClientOptions {
                    token_file: Some(token.display().to_string()),
                    ..client_options(&format!("{session}+tcp://{}", way.address))
                };
                let (client, http, _) = start_client(options);
                assert_eq!(Client::to(http).get(&origin.url("/")).status, 200);
                (way, client, http)
            })
            .collect();
        // The first request of this user is slow to arrive.
        let mut slow = Peer::to(gateway, session);
        slow.flush();
        let flood: Vec<_> = (0..MOST)
            .map(|number| begin(gateway, session, number))
            .collect();
        for (way, _client, http) in &users {
            assert_eq!(Client::to(*http).get(&origin.url("/")).status, 200);
            assert_eq!(way.connections(), 1, "{session}");
        }
        let mut head = RequestHead::get(Scheme::Http, origin.address.to_string(), "/");
        let token = format!("Bearer {}", TOKEN.trim());
        head.fields.push("proxy-authorization", token);
        slow.core.open(&head, true, Priority::default()).unwrap();
        slow.wait_for_response();
        drop(flood);
    }
    std::fs::remove_file(token).unwrap();
}

#[test]
fn half_done_tls_handshakes_leave_room_for_users() {
    let token = secret("half-tls", TOKEN);
    let origin = Scene::answering(OK);
    let certificates = Certificates::new("half-tls");
    let mut options = gateway_options();
    options.listen = vec![endpoint(&format!(
        "h2+tls://127.0.0.1:0?cert={}&key={}",
        certificates.path("gateway.pem"),
        certificates.path("gateway.key")
    ))];
    with_token(&mut options, &token);
    let (_gateway, gateway) = start_gateway(options);
    let flood: Vec<_> = (0..2 * MOST)
        .map(|_| {
            let mut socket = TcpStream::connect(gateway).unwrap();
            // The head of a ClientHello's record.
            socket.write_all(&[0x16, 3, 1, 1, 0, 1, 0]).unwrap();
            socket
        })
        .collect();
    let options = ClientOptions {
        token_file: Some(token.display().to_string()),
        ..client_options(&format!(
            "h2+tls://gw.example:{}?ip=127.0.0.1&ca={}",
            gateway.port(),
            certificates.path("ca.pem")
        ))
    };
    let (_client, http, _) = start_client(options);
    assert_eq!(Client::to(http).get(&origin.url("/")).status, 200);
    drop(flood);
    std::fs::remove_file(token).unwrap();
}

#[test]
fn session_without_token_ends_after_head_time() {
    let token = secret("head-time", TOKEN);
    let origin = Scene::answering(OK);
    for session in ["h2", "spdy3.1"] {
        let pair = Pair::with(
            session,
            |gateway| {
                with_token(gateway, &token);
                gateway.head_timeout = Some("500ms".parse().unwrap());
            },
            |client| client.token_file = Some(token.display().to_string()),
        );
        let mut way_in = pair.connect();
        assert_eq!(way_in.get(&origin.url("/")).status, 200, "{session}");
        for number in 0..4 {
            let mut socket = begin(pair.gateway, session, number);
            assert!(is_closed(&mut socket), "{session}");
        }
        assert_eq!(way_in.get(&origin.url("/")).status, 200, "{session}");
    }
    std::fs::remove_file(token).unwrap();
}

#[test]
fn newcomer_takes_place_of_longest_idle_connection() {
    let (told, asked) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let origin = Scene::new(move |_, mut client| {
        while let Some(request) = client.request() {
            if request.line.contains("/held") {
                told.send(()).unwrap();
                released.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
            client.send(OK);
        }
    });
    let pair = Pair::with("h2", |_| {}, |client| client.max_connections = Some(3));
    let mut open: Vec<_> = (0..3)
        .map(|_| {
            let mut client = pair.connect();
            assert_eq!(client.get(&origin.url("/")).body, b"ok");
            client
        })
        .collect();
    let mut newcomer = pair.connect();
    assert_eq!(newcomer.get(&origin.url("/")).body, b"ok");
    assert!(open.remove(0).is_closed(), "the one idle for longest");
    open.push(newcomer);
    for client in &mut open {
        client.send(request("GET", &origin.url("/held"), ""));
        asked.recv_timeout(PATIENCE).unwrap();
    }
    assert!(pair.connect().is_closed(), "all are in use");
    // The origin's threads take the releases in any order.
    for _ in &open {
        release.send(()).unwrap();
    }
    for client in &mut open {
        assert_eq!(client.answer("GET").body, b"ok");
    }
    assert_eq!(pair.connect().get(&origin.url("/")).body, b"ok");
}
