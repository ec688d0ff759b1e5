//! UDP of programs in datagrams of QUIC (RFC 9297): a lost one is not repeated.

use std::net::{SocketAddr, UdpSocket};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, request};
use crate::paths::Forwarder;
use crate::provided::{start_client, start_gateway, stop};

/// Sends back each datagram.
fn echo() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let server = socket.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((count, from)) = server.recv_from(&mut buffer) {
            let _ = server.send_to(&buffer[..count], from);
        }
    });
    (socket, port)
}

/// Opens a tunnel of UDP through the client's HTTP listener.
fn tunnel(http: SocketAddr, port: u16) -> Client {
    let mut program = Client::to(http);
    program.send(format!(
        "GET http://proxy.test/.well-known/masque/udp/127.0.0.1/{port}/ HTTP/1.1\r\n\
         Host: proxy.test\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n\
         Capsule-Protocol: ?1\r\n\r\n"
    ));
    assert_eq!(program.head().unwrap().status, 101);
    program
}

/// Returns the address of a path to the gateway. The way back passes `rate` bytes in a second, and
/// drops the datagrams that find 32 others waiting.
fn narrow(gateway: SocketAddr, rate: u32) -> SocketAddr {
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.connect(gateway).unwrap();
    let address = near.local_addr().unwrap();
    let (client, told) = mpsc::channel();
    let (queue, waiting) = mpsc::sync_channel(32);
    let (back, out) = (far.try_clone().unwrap(), near.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((count, from)) = near.recv_from(&mut buffer) {
            // The other threads may have ended.
            let _ = (client.send(from), far.send(&buffer[..count]));
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok(count) = back.recv(&mut buffer) {
            // A full queue loses the datagram.
            let _ = queue.try_send(buffer[..count].to_vec());
        }
    });
    std::thread::spawn(move || {
        let client = told.recv().unwrap();
        let mut free_at = Instant::now();
        while let Ok(datagram) = waiting.recv() {
            let _ = out.send_to(&datagram, client);
            let time = Duration::from_secs(1) * datagram.len() as u32 / rate;
            free_at = free_at.max(Instant::now() - Duration::from_millis(5)) + time;
            std::thread::sleep(free_at.saturating_duration_since(Instant::now()));
        }
    });
    address
}

/// The program receives twice the bytes that the path carries.
#[test]
fn response_arrives_beside_a_flood_of_datagrams() {
    const SIZE: usize = 1 << 20;
    const RATE: u32 = 1 << 20;
    let certificates = Certificates::new("quic-flood");
    let (gateway, address) = start_gateway(&certificates, 0, |options| options.udp = Some(true));
    let (client, http) = start_client(&certificates, narrow(address, RATE), |_| {});
    let source = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut program = tunnel(http, source.local_addr().unwrap().port());
    program.send(b"\0\x06\0begin");
    let (_, to) = source.recv_from(&mut [0; 16]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, received) = (Arc::clone(&stop), Arc::<AtomicUsize>::default());
    let flood = std::thread::spawn(move || {
        let begun = Instant::now();
        let mut sent = 0;
        while !stopped.load(Ordering::SeqCst) {
            let due = begun.elapsed().as_millis() as usize * (2 * RATE as usize) / 1000;
            while sent < due {
                // A full buffer loses the datagram.
                let _ = source.send_to(&[7; 1000], to);
                sent += 1000;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let count = Arc::clone(&received);
    let reader = std::thread::spawn(move || {
        // The stop of the client ends the tunnel.
        while std::panic::catch_unwind(AssertUnwindSafe(|| program.read_exact(1000))).is_ok() {
            count.fetch_add(1000, Ordering::SeqCst);
        }
    });
    while received.load(Ordering::SeqCst) < SIZE / 4 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let origin = Scene::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n{}",
        "x".repeat(SIZE)
    ));
    let before = received.load(Ordering::SeqCst);
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    assert_eq!(browser.read_exact(SIZE).len(), SIZE);
    let beside = received.load(Ordering::SeqCst) - before;
    // The flood lasted as long as the response.
    assert!(!flood.is_finished());
    stop.store(true, Ordering::SeqCst);
    flood.join().unwrap();
    assert!(beside > SIZE / 16, "datagrams go on as well: {beside}");
    crate::provided::stop([client, gateway]);
    reader.join().unwrap();
}

#[test]
fn lost_datagram_is_not_repeated() {
    let certificates = Certificates::new("quic-datagrams");
    let (gateway, address) = start_gateway(&certificates, 0, |options| options.udp = Some(true));
    let forwarder = Forwarder::to(address);
    let (client, http) = start_client(&certificates, forwarder.address, |_| {});
    let (_, port) = echo();
    let mut program = tunnel(http, port);
    program.send(b"\0\x04\0one");
    assert_eq!(program.read_exact(6), b"\0\x04\0one");
    forwarder.blocked.store(true, Ordering::SeqCst);
    // No other datagram of the connection has this size: probes of the path are larger, and
    // acknowledgements smaller.
    program.send([&b"\0\x42\xbd\0"[..], &[b'2'; 700]].concat());
    let lost = || {
        let mut dropped = forwarder.dropped.lock().unwrap().clone().into_iter();
        dropped.any(|size| (700..900).contains(&size))
    };
    let begun = Instant::now();
    while !lost() {
        assert!(begun.elapsed() < PATIENCE, "the client sends the datagram");
        std::thread::sleep(Duration::from_millis(5));
    }
    forwarder.blocked.store(false, Ordering::SeqCst);
    program.send(b"\0\x06\0three");
    assert_eq!(program.read_exact(8), b"\0\x06\0three");
    stop([client, gateway]);
}
