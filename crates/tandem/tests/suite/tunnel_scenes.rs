//! Tunnels through a client, and their origins.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use crate::harness::{Client, Scene};

/// Opens a tunnel to an origin.
pub(crate) fn open_tunnel(http: SocketAddr, origin: &Scene) -> Client {
    let (mut client, to) = (Client::to(http), origin.address);
    client.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n"));
    assert_eq!(client.head().unwrap().status, 200);
    client
}

/// Opens a tunnel to an echo and uses it once.
pub(crate) fn tunnel(http: SocketAddr, echo: &Scene) -> Client {
    let mut client = open_tunnel(http, echo);
    client.send("ping");
    assert_eq!(client.read_exact(4), b"ping");
    client
}

pub(crate) fn echo() -> Scene {
    Scene::new(|_, mut client| {
        let mut bytes = [0; 4];
        while std::io::Read::read_exact(&mut client.stream, &mut bytes).is_ok() {
            client.send(bytes);
        }
    })
}

/// Returns an origin that sends to each tunnel until `least` bytes are sent and none is taken for a
/// while, and then tells.
pub(crate) fn endless(least: usize) -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        let stream = client.stream.get_mut();
        let limit = Some(Duration::from_millis(500));
        stream.set_write_timeout(limit).unwrap();
        let mut sent = 0;
        loop {
            match stream.write(&[7; 16 << 10]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock && sent < least => {}
                Err(_) => break,
            }
        }
        tell.send(String::new()).unwrap();
        client.request_ends();
    });
    (origin, told)
}
