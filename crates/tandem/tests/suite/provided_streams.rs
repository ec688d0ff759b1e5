//! Exchanges and tunnels on the streams of a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use socket2::SockRef;

use crate::harness::{Client, Pair, Scene, request};
use crate::provided::{OK, echo_bodies, start_new_pair};

fn pair() -> Pair {
    start_new_pair(|_| {}, |_| {})
}

/// Sends bodies of these sizes at once, and checks that they come back.
fn echo_at_once(sizes: &[usize]) {
    let bodies = sizes.iter().enumerate().map(|(number, &size)| {
        let bytes = (0..size).map(|at| (at * (number + 3) % 253) as u8);
        bytes.collect()
    });
    echo_bodies(&pair(), bodies);
}

#[test]
fn connection_carries_a_hundred_streams() {
    let sizes: Vec<_> = (0..100).map(|number| 20_000 + number).collect();
    echo_at_once(&sizes);
}

#[test]
fn connection_carries_mebibytes_each_way_at_once() {
    echo_at_once(&[1 << 20, 2 << 20, 3 << 20, 4 << 20]);
}

#[test]
fn connection_goes_on_after_a_truncated_response() {
    let pair = pair();
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Scene::new(move |_, mut client| {
        client.request();
        client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        wait.lock().unwrap().recv().unwrap();
    });
    let mut browser = pair.connect();
    browser.send(request("GET", &origin.url("/"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    assert_eq!(browser.read_exact(10), b"5\r\nhello\r\n");
    go.send(()).unwrap();
    let mut rest = Vec::new();
    browser.stream.read_to_end(&mut rest).unwrap();
    assert!(
        rest.is_empty(),
        "only the missing last chunk shows the break"
    );
    let next = Scene::answering(OK);
    assert_eq!(pair.connect().get(&next.url("/")).body, b"ok");
}

/// Opens a tunnel to the origin.
fn tunnel(pair: &Pair, origin: &Scene) -> Client {
    let mut browser = pair.connect();
    let target = origin.address.to_string();
    browser.send(format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
    ));
    assert_eq!(browser.head().unwrap().status, 200);
    browser
}

#[test]
fn tunnel_closes_each_direction_separately() {
    let pair = pair();
    let origin = Scene::new(|_, client| {
        let mut stream = client.stream.into_inner();
        let mut asked = Vec::new();
        stream.read_to_end(&mut asked).unwrap();
        stream.write_all(&asked).unwrap();
    });
    let mut browser = tunnel(&pair, &origin);
    let body = vec![9; 300_000];
    browser.send(&body);
    let stream: &TcpStream = browser.stream.get_ref();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    browser.stream.read_to_end(&mut back).unwrap();
    assert!(back == body);
}

#[test]
fn tunnel_that_the_origin_resets_is_reset() {
    let pair = pair();
    let origin = Scene::new(|_, client| {
        let mut stream = client.stream.into_inner();
        stream.read_to_end(&mut Vec::new()).unwrap();
        SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    });
    let mut browser = tunnel(&pair, &origin);
    let stream: &TcpStream = browser.stream.get_ref();
    stream.shutdown(Shutdown::Write).unwrap();
    let ended = browser.stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
}

/// A browser that reads nothing leaves its response in the windows. Others still get theirs.
#[test]
fn stream_that_is_not_read_delays_no_other() {
    let pair = pair();
    let origin = Scene::new(|_, mut client| {
        client.request();
        let length = 64 << 20;
        client.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
        ));
        let piece = vec![7; 1 << 20];
        // The browser goes away before it has read everything.
        while client.stream.get_mut().write_all(&piece).is_ok() {}
    });
    let stopped: Vec<_> = (0..3)
        .map(|_| {
            let mut browser = pair.connect();
            browser.send(request("GET", &origin.url("/"), ""));
            assert_eq!(browser.head().unwrap().status, 200);
            browser
        })
        .collect();
    let quick = Scene::answering(OK);
    for _ in 0..20 {
        assert_eq!(pair.connect().get(&quick.url("/")).body, b"ok");
    }
    drop(stopped);
}
