//! Unread streams, and the others of their session.

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem::config::ClientOptions;

use crate::harness::{Client, Gate, PATIENCE, Pair, Scene, request, wait_for};
use crate::provided::{echo_bodies, start_new_pair};
use crate::tunnel_scenes::{echo, endless, open_tunnel, tunnel};

/// The downloads that are not read: more than the base of a client's window holds.
const DOWNLOADS: usize = 9;
/// The uploads that are not read: more than the base of a gateway's window holds.
const UPLOADS: usize = 3;
/// The bytes that each of them fills: the window of a stream.
const STREAM_WINDOW: usize = 8 << 20;
/// The size in bytes of a new response or request.
const SIZE: usize = 1 << 20;

/// Lets a client wait for browsers that take nothing.
fn patient(options: &mut ClientOptions) {
    options.write_timeout = Some("1h".parse().unwrap());
}

/// Uses an old tunnel and a new one, and downloads and uploads something.
fn check(pair: &Pair, old: &mut Client, echo: &Scene) {
    old.send("pong");
    assert_eq!(old.read_exact(4), b"pong");
    tunnel(pair.http, echo);
    let origin = Scene::new(|_, mut origin| {
        while origin.request().is_some() {
            origin.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
            origin.send(vec![b'x'; SIZE]);
        }
    });
    let answer = Client::to(pair.http).get(&origin.url("/"));
    assert!(answer.status == 200 && answer.body == vec![b'x'; SIZE]);
    echo_bodies(pair, [vec![b'y'; SIZE]].into_iter());
}

#[test]
fn unread_downloads_stop_no_others() {
    let ((full, told), echo) = (endless(STREAM_WINDOW), echo());
    let pair = start_new_pair(|_| {}, patient);
    let mut old = tunnel(pair.http, &echo);
    let unread: Vec<_> = (0..DOWNLOADS)
        .map(|_| open_tunnel(pair.http, &full))
        .collect();
    wait_for(&told, DOWNLOADS);
    check(&pair, &mut old, &echo);
    drop(unread);
}

/// Sends on all connections until the windows of their streams are filled, and none of them takes a
/// byte for a while.
fn fill(uploads: &mut [Client]) {
    for upload in &mut *uploads {
        upload.stream.get_ref().set_nonblocking(true).unwrap();
    }
    let end = Instant::now() + PATIENCE;
    let (mut sent, mut pauses) = (0, 0);
    while sent <= uploads.len() * STREAM_WINDOW || pauses < 100 {
        assert!(Instant::now() < end, "{sent} bytes after {pauses} pauses");
        let before = sent;
        for upload in &mut *uploads {
            match upload.stream.get_mut().write(&[7; 64 << 10]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
        if sent == before {
            pauses += 1;
            std::thread::sleep(Duration::from_millis(10));
        } else {
            pauses = 0;
        }
    }
}

#[test]
fn unread_uploads_stop_no_others() {
    let gate = Arc::new(Gate::default());
    let deaf = {
        let gate = Arc::clone(&gate);
        Scene::new(move |_, origin| {
            gate.wait();
            drop(origin);
        })
    };
    let echo = echo();
    let pair = start_new_pair(|_| {}, patient);
    let mut old = tunnel(pair.http, &echo);
    let mut unread: Vec<_> = (0..UPLOADS)
        .map(|number| match number % 2 {
            0 => open_tunnel(pair.http, &deaf),
            _ => {
                let mut client = Client::to(pair.http);
                let length = format!("Content-Length: {}\r\n", 1 << 30);
                client.send(request("POST", &deaf.url("/"), &length));
                client
            }
        })
        .collect();
    fill(&mut unread);
    check(&pair, &mut old, &echo);
    drop(unread);
    gate.open();
}
