//! Tests that count the round trips before a response, instead of measuring times.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use crate::at_once::at_once;
use crate::harness::{
    Client, PATIENCE, Scene, client_options, gateway_options, request, start_client, start_gateway,
};
use crate::isolation::socks_proxy;

/// A path that delays all bytes by half a second each way, and counts the lumps of bytes upwards:
/// bytes that are sent without waiting for a response leave in one lump.
pub(crate) struct Lumps {
    pub(crate) address: SocketAddr,
    pub(crate) up: Arc<AtomicUsize>,
}

const HOLD: Duration = Duration::from_millis(500);

pub(crate) fn lumps(to: SocketAddr) -> Lumps {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let up = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&up);
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            let far = TcpStream::connect(to).unwrap();
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let counter = Arc::clone(&counter);
            std::thread::spawn(move || hold(near, far, Some(&counter)));
            std::thread::spawn(move || hold(far_too, near_too, None));
        }
    });
    Lumps { address, up }
}

/// The delayed bytes, and true if they are the last.
type Held = (Vec<u8>, bool);

/// Forwards the bytes of one delay as one lump; a lump begins with the first byte after the
/// previous one left.
fn hold(mut from: TcpStream, mut to: TcpStream, count: Option<&AtomicUsize>) {
    let held: Arc<(Mutex<Held>, Condvar)> = Arc::default();
    let filling = Arc::clone(&held);
    std::thread::spawn(move || {
        let mut buf = [0; 65_536];
        loop {
            let read = from.read(&mut buf).unwrap_or(0);
            let mut state = filling.0.lock().unwrap();
            state.0.extend_from_slice(&buf[..read]);
            state.1 |= read == 0;
            filling.1.notify_one();
            if read == 0 {
                return;
            }
        }
    });
    loop {
        let mut state = held.0.lock().unwrap();
        while state.0.is_empty() && !state.1 {
            state = held.1.wait(state).unwrap();
        }
        if state.0.is_empty() {
            let _ = to.shutdown(std::net::Shutdown::Write);
            return;
        }
        drop(state);
        std::thread::sleep(HOLD);
        let lump = std::mem::take(&mut held.0.lock().unwrap().0);
        if let Some(count) = count {
            count.fetch_add(1, Ordering::SeqCst);
        }
        if to.write_all(&lump).is_err() {
            return;
        }
    }
}

#[test]
fn first_request_leaves_with_session_handshake() {
    at_once(["h2", "spdy3", "spdy3.1"], |session| {
        // The origin records the number of lumps that had gone up when a request reached it.
        let up: Arc<OnceLock<Arc<AtomicUsize>>> = Arc::default();
        let (tell, told) = mpsc::channel();
        let counter = Arc::clone(&up);
        let origin = Scene::new(move |_, mut client| {
            while client.request().is_some() {
                tell.send(counter.get().unwrap().load(Ordering::SeqCst))
                    .unwrap();
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        });
        let mut options = gateway_options();
        options.listen = vec![crate::harness::endpoint(&format!(
            "{session}+tcp://127.0.0.1:0"
        ))];
        let (_gateway, gateway) = start_gateway(options);
        let path = lumps(gateway);
        up.set(Arc::clone(&path.up)).unwrap();
        let mut options = client_options(&format!("{session}+tcp://{}", path.address));
        options.preconnect = Some(false);
        let (_client, http, _) = start_client(options);
        let mut client = Client::to(http);
        assert_eq!(client.get(&origin.url("/")).body, b"ok");
        assert_eq!(
            told.recv(),
            Ok(1),
            "{session}: preface, settings and request in one lump"
        );
        // After this pause, other frames such as the acknowledgement of SETTINGS have been sent.
        std::thread::sleep(HOLD * 3);
        let before = path.up.load(Ordering::SeqCst);
        assert!(before <= 3, "{session}: {before} lumps for one answer");
        assert_eq!(client.get(&origin.url("/")).body, b"ok");
        assert_eq!(
            told.recv(),
            Ok(before + 1),
            "{session}: one lump for a request over an open session"
        );
    });
}

#[test]
fn socks_handshake_carries_first_request() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (_gateway, gateway) = start_gateway(gateway_options());
    let (proxy, asked) = socks_proxy(gateway);
    for credentials in ["", "Proxy-Authorization: Basic YTpi\r\n"] {
        let mut options = client_options("h2+tcp://gateway.example:9980");
        options.via = Some(format!("socks5://{proxy}").parse().unwrap());
        options.preconnect = Some(false);
        let (_client, http, _) = start_client(options);
        let mut client = Client::to(http);
        client.send(request("GET", &origin.url("/"), credentials));
        assert_eq!(client.answer("GET").body, b"ok");
        let early = asked.recv_timeout(PATIENCE).unwrap().early;
        assert!(
            early.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            "the session's preface came with the handshake"
        );
        // The loop walks the frames; the types are SETTINGS 4, WINDOW_UPDATE 8 and HEADERS 1.
        let mut at = 24;
        let mut types = Vec::new();
        while at + 9 <= early.len() {
            types.push(early[at + 3]);
            at += 9
                + usize::from(early[at]) * 65_536
                + usize::from(early[at + 1]) * 256
                + usize::from(early[at + 2]);
        }
        assert_eq!(at, early.len(), "whole frames");
        assert!(
            types.starts_with(&[4]) && types.contains(&1),
            "settings and request: {types:?}"
        );
    }
}

#[test]
fn tls_handshake_leaves_with_session_handshake() {
    // The gateway of this test never sends a byte. All bytes that it receives left without a round
    // trip beyond that of TCP.
    const HELLO: &[u8] = b"\x16\x03\x01 client hello";
    for (session, is_preconnected, over_socks) in [
        ("h2", true, false),
        ("h2", false, false),
        ("h2", true, true),
        ("h2", false, true),
        ("spdy3.1", false, false),
    ] {
        let gateway = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("{session}+tcp://{}", gateway.local_addr().unwrap());
        let mut options = client_options(&to);
        options.preconnect = Some(is_preconnected);
        let (_client, http, socks) = start_client(options);
        let mut client = Client::to(if over_socks { socks } else { http });
        if over_socks {
            assert_eq!(client.socks("site.example:443", None), 0);
        } else {
            client.send("CONNECT site.example:443 HTTP/1.1\r\nHost: site.example:443\r\n\r\n");
            assert_eq!(client.head().unwrap().status, 200);
        }
        client.send(HELLO);
        let (mut path, _) = gateway.accept().unwrap();
        path.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut received = Vec::new();
        while !received.windows(HELLO.len()).any(|part| part == HELLO) {
            let mut buf = [0; 4096];
            let count = path.read(&mut buf).unwrap();
            assert!(count > 0, "{session}: {received:?}");
            received.extend_from_slice(&buf[..count]);
        }
    }
}

#[test]
fn failed_gateway_is_known_before_the_next_tunnel() {
    let place = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let (_client, http, socks) =
        start_client(client_options(&format!("h2+tcp://{}", place.unwrap())));
    // Its failure is known from now on, so that a tunnel gets the reason instead of a reset.
    assert_eq!(Client::to(http).get("http://site.example/").status, 502);
    let mut client = Client::to(http);
    client.send("CONNECT site.example:443 HTTP/1.1\r\nHost: site.example:443\r\n\r\n");
    assert_eq!(client.answer("CONNECT").status, 502);
    assert_ne!(Client::to(socks).socks("site.example:443", None), 0);
}

#[test]
fn early_connect_carries_first_tunnel_bytes() {
    // Over an open session, TLS to port 443 must not wait for the gateway's response: the client
    // agrees at once.
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (_gateway, gateway) = start_gateway(gateway_options());
    let path = lumps(gateway);
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{}", path.address)));
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    let mut client = Client::to(http);
    let begin = Instant::now();
    client.send("CONNECT 127.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1:443\r\n\r\n");
    assert_eq!(client.head().unwrap().status, 200);
    // This is no benchmark: a response from beyond the path cannot come before two delays have
    // passed.
    assert!(
        begin.elapsed() < HOLD * 2,
        "answered on this side of the path"
    );
}
