//! Responses that wait in the windows of a connection.

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, block_on, request};
use crate::provided::{start_client, start_gateway, stop};

#[test]
fn client_delivers_a_response_read_after_the_drain() {
    // The sockets take a part of the response, and the windows of the connection hold the rest.
    const SIZE: usize = 7 << 20;
    let certificates = Certificates::new("quic-late");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    let origin = Scene::new(|_, mut origin| {
        while origin.request().is_some() {
            origin.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
            origin.send(vec![b'x'; SIZE]);
        }
    });
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    block_on(gateway.drain(PATIENCE));
    assert!(browser.read_exact(SIZE) == vec![b'x'; SIZE]);
    stop([client]);
}
