//! Bridges with a destination that leads back to them.

use std::net::TcpListener;

use tandem::config::bridge::BridgeMode;
use tandem::exchange::Body;
use tandem_http::{RequestHead, Scheme};
use tokio::task::LocalSet;

use super::ends::{Visitor, bridge, read, server};
use crate::harness::{Client, Way, block_on, request};

#[test]
fn request_that_comes_back_to_a_bridge_ends() {
    for protocol in ["http", "h2+tcp", "spdy3.1"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let next = listener.local_addr().unwrap();
        let (_running, entry) = bridge(protocol, |options| {
            options.mode = Some(BridgeMode::Proxy(server(protocol, next)));
        });
        // The bridge cannot know that the way to this address leads back to it.
        let way = Way::from(listener, entry);
        let local = LocalSet::new();
        block_on(local.run_until(async {
            let visitor = Visitor::new(protocol, entry, true);
            let mut request = RequestHead::get(Scheme::Http, "site.example", "/");
            request.fields.push("via", "1.1 first");
            let answer = read(visitor.send(request, Body::empty())).await;
            assert_eq!(answer.status, 502, "{protocol}");
        }));
        assert_eq!(way.connections(), 1, "{protocol}");
    }
}

#[test]
fn bridge_does_not_dial_its_own_listener() {
    let (_running, address) = bridge("http", |options| {
        options.allow_dest = vec!["127.0.0.0/8".parse().unwrap()];
    });
    let mut client = Client::to(address);
    client.send(request("GET", &format!("http://{address}/"), ""));
    let answer = client.answer("GET");
    let body = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.status, 502, "{body}");
    assert!(body.contains("this proxy itself"), "{body}");
    client.send(format!(
        "CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n"
    ));
    assert_eq!(client.head().unwrap().status, 502);
}
