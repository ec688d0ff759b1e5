//! Tests of the session that the client opens before any request, and of the warm-up bytes on it.

use std::io::{ErrorKind, Read};
use std::net::TcpListener;

use tandem::config::units::Size;

use crate::harness::{
    Client, PATIENCE, Pair, Scene, Way, block_on, client_options, gateway_options, start_client,
    start_gateway,
};
use crate::patience::until;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The filler of the first three rounds. A slow round, as on a busy machine, can end the warm-up
/// only after them.
const WARM_UP: usize = (8 + 16 + 32) << 10;

/// The filler that comes for each byte of filler that the client sends.
const UPLINK_SHARE: usize = 8;

/// Returns true if connections of this machine can use BBR.
fn has_bbr() -> bool {
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        // If the kernel refuses BBR, the getter below shows it.
        let _ = socket2::SockRef::from(&stream).set_tcp_congestion(b"bbr");
        tandem::transport::tcp::path(stream).facts().is_over_bbr()
    })
}

#[test]
fn client_preconnects_unless_disabled() {
    let gateway = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("h2+tcp://{}", gateway.local_addr().unwrap());
    gateway.set_nonblocking(true).unwrap();
    for (asked, via) in [(Some(false), None), (None, Some("socks5://127.0.0.1:1"))] {
        let mut options = client_options(&to);
        (options.preconnect, options.via) = (asked, via.map(|via| via.parse().unwrap()));
        let (_client, http, _) = start_client(options);
        // The listener's page comes from the same thread that would have connected first.
        assert_eq!(
            Client::to(http)
                .get(&format!("http://{http}/proxy.pac"))
                .status,
            200
        );
        assert_eq!(
            gateway.accept().unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "{asked:?} {via:?}"
        );
    }
    let (_client, ..) = start_client(client_options(&to));
    gateway.set_nonblocking(false).unwrap();
    let (mut session, _) = gateway.accept().unwrap();
    session.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut preface = [0; 24];
    session.read_exact(&mut preface).unwrap();
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
}

#[test]
fn first_request_uses_preconnected_session() {
    for session in ["h2", "spdy3", "spdy3.1"] {
        let origin = Scene::answering(OK);
        let mut options = gateway_options();
        options.listen = vec![crate::harness::endpoint(&format!(
            "{session}+tcp://127.0.0.1:0"
        ))];
        let (_gateway, gateway) = start_gateway(options);
        let way = Way::to(gateway);
        let mut options = client_options(&format!("{session}+tcp://{}", way.address));
        options.warm_up = Some(Size(WARM_UP as u64));
        let (_client, http, _) = start_client(options);
        // Without BBR the gateway answers with an empty body.
        let least = if has_bbr() { WARM_UP } else { 1 };
        until("the filler did not come", || way.down() >= least);
        let least_up = if has_bbr() { WARM_UP / UPLINK_SHARE } else { 1 };
        until("the client sent no filler", || way.up() >= least_up);
        let before = way.down();
        assert!(
            before < least + 2_000,
            "{session}: {before} bytes, and {least} were asked for"
        );
        for _ in 0..3 {
            assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
        }
        assert_eq!(way.connections(), 1, "{session}");
    }
}

#[test]
fn client_retries_gateway_that_starts_later() {
    let origin = Scene::answering(OK);
    let place = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{place}")));
    assert_eq!(
        Client::to(http).get(&origin.url("/")).status,
        502,
        "nobody listens there"
    );
    let mut options = gateway_options();
    options.listen = vec![crate::harness::endpoint(&format!("h2+tcp://{place}"))];
    let (_gateway, _) = start_gateway(options);
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
}

#[test]
fn browser_cannot_request_warm_up_bytes() {
    let pair = Pair::start();
    let answer = pair.connect().get("http://warm-up.tandem.invalid/1000");
    assert!(
        answer.status >= 500 && answer.body.iter().any(|byte| *byte != 0),
        "{answer:?}"
    );
}
