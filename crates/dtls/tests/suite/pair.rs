//! The pair over loopback: a session over dtls between a client and a gateway.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, block_on, request};
use crate::provided::{
    OK, echo_bodies, start_client, start_gateway, start_gateway_everywhere, start_new_pair, stop,
};
use crate::translator::Translator;

#[test]
fn session_carries_heads_bodies_and_trailers() {
    let pair = start_new_pair(|_| {}, |_| {});
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n\
                  5\r\nhello\r\n0\r\nT: end\r\n\r\n";
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            assert_eq!(asked.field("tandem-urgency"), None);
            if asked.line.starts_with("HEAD") {
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
            } else if asked.line.contains("/hint") {
                client.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
                client.send("HTTP/1.1 204 No Content\r\n\r\n");
            } else {
                client.send(answer);
            }
        }
    });
    let mut browser = pair.connect();
    let got = browser.get(&origin.url("/"));
    assert_eq!((got.status, &got.body[..]), (200, &b"hello"[..]));
    assert_eq!(got.trailers.len(), 1);
    assert_eq!(got.trailers[0].1, "end");
    browser.send(request("HEAD", &origin.url("/"), ""));
    let head = browser.answer("HEAD");
    assert_eq!(
        (head.status, head.field("content-length")),
        (200, Some("5"))
    );
    browser.send(request("GET", &origin.url("/hint"), ""));
    assert_eq!(browser.head().unwrap().status, 103);
    assert_eq!(browser.answer("GET").status, 204);
}

#[test]
fn streams_with_their_own_windows_carry_bodies() {
    fn own<T: std::fmt::Display + std::str::FromStr>(endpoint: &T) -> T {
        let changed = format!("{endpoint}&coupling=stream").parse();
        changed.ok().unwrap()
    }
    let pair = start_new_pair(
        |gateway| gateway.listen = gateway.listen.iter().map(own).collect(),
        |client| client.gateway = client.gateway.iter().map(own).collect(),
    );
    let body = |number: usize| vec![number as u8; 300_000 + number];
    echo_bodies(&pair, (0..8).map(body));
}

#[test]
fn request_moves_on_when_its_gateway_has_forgotten() {
    let certificates = Certificates::new("dtls-forgotten");
    let (first, address) = start_gateway(&certificates, 0, |_| {});
    let (second, other) = start_gateway(&certificates, 0, |_| {});
    let translator = Translator::to(address);
    let (client, http) = start_client(&certificates, translator.address, |_| {});
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    // The second gateway knows no associations, like a gateway that was killed and started again.
    *translator.gateway.lock().unwrap() = other;
    translator.rebind.store(true, Ordering::SeqCst);
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    stop([client, first, second]);
}

#[test]
fn download_survives_loss_and_a_new_address() {
    let certificates = Certificates::new("dtls-rebind");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let translator = Translator::to(address);
    let (client, http) = start_client(&certificates, translator.address, |_| {});
    let body: Vec<u8> = (0..1_usize << 20).map(|at| (at * 7 % 251) as u8).collect();
    let (first, second) = body.split_at(body.len() / 2);
    let (first, second) = (first.to_vec(), second.to_vec());
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Scene::new(move |_, mut client| {
        if client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n");
            client.send(&first);
            wait.lock().unwrap().recv().unwrap();
            client.send(&second);
        }
    });
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    let mut got = browser.read_exact(body.len() / 2);
    let before = translator.outer_sockets.load(Ordering::SeqCst);
    translator.rebind.store(true, Ordering::SeqCst);
    go.send(()).unwrap();
    got.extend(browser.read_exact(body.len() / 2));
    assert!(got == body);
    let after = translator.outer_sockets.load(Ordering::SeqCst);
    assert_eq!(after, before + 1, "the address has changed");
    stop([client, gateway]);
}

/// The outer sockets take datagrams of one address of the gateway each.
#[test]
fn association_moves_to_another_gateway_address() {
    let certificates = Certificates::new("dtls-elsewhere");
    let (gateway, port) = start_gateway_everywhere(&certificates);
    let at = |last| SocketAddr::from(([127, 0, 0, last], port));
    let translator = Translator::to(at(2));
    let (client, http) = start_client(&certificates, translator.address, |_| {});
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    for last in [3, 4] {
        let before = translator.outer_sockets.load(Ordering::SeqCst);
        *translator.gateway.lock().unwrap() = at(last);
        translator.rebind.store(true, Ordering::SeqCst);
        assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
        let after = translator.outer_sockets.load(Ordering::SeqCst);
        assert_eq!(after, before + 1, "a second association has begun");
    }
    stop([client, gateway]);
}

#[test]
fn draining_gateway_delivers_its_last_response() {
    let certificates = Certificates::new("dtls-drain");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let translator = Translator::to(address);
    let (client, http) = start_client(&certificates, translator.address, |_| {});
    let (sent, all_sent) = std::sync::mpsc::channel();
    let sent = Mutex::new(sent);
    let origin = Scene::new(move |_, mut origin| {
        while let Some(asked) = origin.request() {
            let length = if asked.line.contains("/long ") {
                30_000
            } else {
                2
            };
            origin.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
            ));
            origin.send(vec![b'x'; length]);
            sent.lock().unwrap().send(()).unwrap();
        }
    });
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"xx");
    all_sent.recv().unwrap();
    translator.hold.store(true, Ordering::SeqCst);
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/long"), ""));
    all_sent.recv().unwrap();
    let (ended, has_ended) = std::sync::mpsc::channel();
    let draining = std::thread::spawn(move || {
        block_on(gateway.drain(PATIENCE));
        ended.send(()).unwrap();
    });
    // A gateway that ends too early does so while its datagrams wait.
    let _ = has_ended.recv_timeout(Duration::from_millis(500));
    translator.hold.store(false, Ordering::SeqCst);
    assert_eq!(browser.head().unwrap().status, 200);
    assert_eq!(browser.read_exact(30_000), vec![b'x'; 30_000]);
    draining.join().unwrap();
    block_on(client.drain(Duration::ZERO));
}

#[test]
fn truncated_response_keeps_its_beginning() {
    let pair = start_new_pair(|_| {}, |_| {});
    let origin = Scene::new(|_, mut origin| {
        if origin.request().is_some() {
            origin.send("HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n");
            origin.send(vec![b'x'; 100_000]);
        }
    });
    let mut browser = pair.connect();
    browser.send(request("GET", &origin.url("/"), ""));
    let head = browser.head().unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(head.field("content-length"), Some("200000"));
    assert_eq!(browser.read_exact(100_000), vec![b'x'; 100_000]);
    let mut rest = Vec::new();
    browser.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "only the missing bytes show the break");
}
