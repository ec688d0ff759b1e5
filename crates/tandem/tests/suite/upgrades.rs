//! Tests of extended CONNECT (RFC 8441) at a gateway: a tunnel begins only for a known protocol to
//! which the origin has agreed.

use std::sync::mpsc;

use tandem_http::{Event, Method, Priority, RequestHead, ResponseHead, Scheme};

use crate::harness::{Asked, Scene, gateway_options, start_gateway};
use crate::limits::Peer;

fn upgrade(protocol: &str, answer: &'static str) -> (ResponseHead, Option<Asked>) {
    upgrade_that(protocol, answer, false)
}

/// Sends an extended CONNECT through a gateway to an origin with this response. With `ends`, the
/// client sends nothing into the tunnel. Returns the head of the gateway's response, and the
/// request as the origin got it.
fn upgrade_that(protocol: &str, answer: &'static str, ends: bool) -> (ResponseHead, Option<Asked>) {
    let (told, asked) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        told.send(client.request().unwrap()).unwrap();
        client.send(answer);
    });
    let (_running, gateway) = start_gateway(gateway_options());
    let mut peer = Peer::to(gateway, "h2");
    let mut head = RequestHead {
        method: Method::Connect,
        protocol: Some(protocol.into()),
        ..RequestHead::get(Scheme::Http, origin.address.to_string(), "/chat")
    };
    // The gateway adds a missing key, and then requires the proof of it.
    head.fields
        .push("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    head.fields.push("http2-settings", "AAMAAABkAAQAAP__");
    head.fields.push("x-kept", "1");
    peer.core.open(&head, ends, Priority::default()).unwrap();
    let head = loop {
        match peer.event() {
            Event::Response { head, .. } => break head,
            Event::Reset { reason, .. } => panic!("reset: {reason:?}"),
            _ => {}
        }
    };
    // A gateway that sends the request does so before its response.
    (head, asked.try_recv().ok())
}

/// Such a tunnel would take requests for hosts that the gateway refuses to the origin.
#[test]
fn unknown_protocol_is_refused_before_the_origin() {
    for protocol in ["h2c", "H2C", "foo", "tls"] {
        let agreed =
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n";
        let (head, asked) = upgrade(protocol, agreed);
        assert_eq!((head.status, asked.is_none()), (501, true), "{protocol}");
    }
}

#[test]
fn origin_must_change_to_the_named_protocol() {
    for (fields, status) in [
        ("Upgrade: WebSocket\r\nConnection: Upgrade\r\n", 200),
        ("Upgrade: h2c\r\nConnection: Upgrade\r\n", 502),
        ("Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n", 502),
        ("", 502),
    ] {
        let answer = format!("HTTP/1.1 101 Switching Protocols\r\n{fields}\r\n");
        let (head, asked) = upgrade("websocket", answer.leak());
        assert_eq!(head.status, status, "{fields}");
        let asked = asked.expect("a request at the origin");
        assert_eq!(asked.field("upgrade"), Some("websocket"));
        assert_eq!(asked.field("http2-settings"), None);
        assert_eq!(asked.field("x-kept"), Some("1"));
    }
}

/// A success would mean that the tunnel is open.
#[test]
fn ordinary_response_is_no_agreement() {
    for (answer, status, marked) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain",
            501,
            Some("200"),
        ),
        ("HTTP/1.1 204 No Content\r\n\r\n", 501, Some("204")),
        (
            "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n",
            426,
            None,
        ),
        (
            "HTTP/1.1 404 Not Found\r\nUpgrade-Declined: 204\r\nContent-Length: 0\r\n\r\n",
            404,
            None,
        ),
        (
            "HTTP/1.1 501 Not Implemented\r\nUpgrade-Declined: 204\r\nContent-Length: 0\r\n\r\n",
            501,
            None,
        ),
    ] {
        for ends in [false, true] {
            let (head, _) = upgrade_that("websocket", answer, ends);
            let mark = head.fields.get("upgrade-declined");
            let mark = mark.map(|value| String::from_utf8_lossy(value).into_owned());
            assert_eq!((head.status, mark.as_deref()), (status, marked), "{answer}");
        }
    }
    // The origin cannot make an agreement look like an ordinary response.
    let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                  Connection: Upgrade\r\nUpgrade-Declined: 1\r\n\r\n";
    let (head, _) = upgrade("websocket", answer);
    assert_eq!(
        (head.status, head.fields.contains("upgrade-declined")),
        (200, false)
    );
}
