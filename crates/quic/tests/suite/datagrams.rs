//! UDP of programs in datagrams of QUIC (RFC 9297): a lost one is not repeated.

use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::certificates::Certificates;
use crate::harness::Client;
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

#[test]
fn lost_datagram_is_not_repeated() {
    let certificates = Certificates::new("quic-datagrams");
    let (gateway, address) = start_gateway(&certificates, 0, |options| options.udp = Some(true));
    let forwarder = Forwarder::to(address);
    let (client, http) = start_client(&certificates, forwarder.address, |_| {});
    let (_, port) = echo();
    let mut program = Client::to(http);
    program.send(format!(
        "GET http://proxy.test/.well-known/masque/udp/127.0.0.1/{port}/ HTTP/1.1\r\n\
         Host: proxy.test\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n\
         Capsule-Protocol: ?1\r\n\r\n"
    ));
    assert_eq!(program.head().unwrap().status, 101);
    program.send(b"\0\x04\0one");
    assert_eq!(program.read_exact(6), b"\0\x04\0one");
    forwarder.blocked.store(true, Ordering::SeqCst);
    program.send(b"\0\x04\0two");
    // The client sends the datagram within this time.
    std::thread::sleep(Duration::from_secs(1));
    forwarder.blocked.store(false, Ordering::SeqCst);
    program.send(b"\0\x06\0three");
    assert_eq!(program.read_exact(8), b"\0\x06\0three");
    stop([client, gateway]);
}
