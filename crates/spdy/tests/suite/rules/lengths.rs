//! Responses and pushes whose content differs from their `content-length`.

use tandem_http::{Event, Method, Mux as _, Priority, RequestHead, Scheme};
use tandem_spdy::status;

use super::{BOTH, client_with_response, reset};
use crate::support::{OK, Peer, data};

/// Returns true if the events show the end of a response.
fn is_complete(events: &[Event]) -> bool {
    events.iter().any(|event| {
        matches!(
            event,
            Event::Data { end: true, .. } | Event::Response { end: true, .. }
        )
    })
}

fn client(method: Method) -> Peer {
    let mut peer = Peer::client(tandem_spdy::Version::V31);
    let mut head = RequestHead::get(Scheme::Http, "example.org", "/");
    head.method = method;
    let opened = peer.session.open(&head, true, Priority::default());
    assert_eq!(opened, Ok(1));
    peer.output();
    peer
}

#[test]
fn response_with_a_wrong_length_never_completes() {
    for version in BOTH {
        for bodies in [
            &[&b"12345"[..]][..],
            &[b"12", b"345"],
            &[b"123"],
            &[b"1", b"2", b""],
            &[],
        ] {
            let mut peer = Peer::client(version);
            peer.open(true);
            let head = [OK[0], OK[1], ("content-length", "4")];
            let reply = peer.script.syn_reply(1, bodies.is_empty(), &head);
            let mut seen = peer.told(&reply);
            for (at, body) in bodies.iter().enumerate() {
                seen.extend(peer.told(&data(1, at + 1 == bodies.len(), body)));
            }
            assert_eq!(seen, reset(1, status::PROTOCOL_ERROR), "{bodies:?}");
            let events = peer.events();
            assert!(!is_complete(&events), "{events:?}");
            assert!(
                matches!(events.last(), Some(Event::Reset { id: 1, .. })),
                "{events:?}"
            );
        }
    }
}

#[test]
fn push_with_a_wrong_length_never_completes() {
    let push = [
        (":scheme", "http"),
        (":host", "example.org"),
        (":path", "/a"),
        OK[0],
        OK[1],
        ("content-length", "4"),
    ];
    for version in BOTH {
        for bodies in [&[&b"12345"[..]][..], &[b"12", b"345"], &[b"123"], &[b""]] {
            let mut peer = client_with_response(version);
            let frame = peer.script.push(2, 1, &push);
            let mut seen = peer.told(&frame);
            for (at, body) in bodies.iter().enumerate() {
                seen.extend(peer.told(&data(2, at + 1 == bodies.len(), body)));
            }
            assert_eq!(seen, reset(2, status::PROTOCOL_ERROR), "{bodies:?}");
            let events = peer.events();
            assert!(!is_complete(&events), "{events:?}");
        }
        let mut peer = client_with_response(version);
        let frame = peer.script.push(2, 1, &push);
        assert_eq!(peer.told(&frame), []);
        let end = peer.script.headers(2, true, &[("x", "y")]);
        assert_eq!(peer.told(&end), reset(2, status::PROTOCOL_ERROR));
        let mut peer = client_with_response(version);
        let frame = peer.script.push(2, 1, &push);
        assert_eq!(peer.told(&[frame, data(2, true, b"1234")].concat()), []);
        assert!(is_complete(&peer.events()));
    }
}

#[test]
fn lengths_without_content_are_no_error() {
    let with_length = |status| [(":status", status), OK[1], ("content-length", "4")];
    for (method, status) in [
        (Method::Head, "200"),
        (Method::Get, "304"),
        (Method::Get, "204"),
    ] {
        let mut peer = client(method);
        let reply = peer.script.syn_reply(1, true, &with_length(status));
        assert_eq!(peer.told(&reply), [], "{status}");
        assert!(is_complete(&peer.events()), "{status}");
    }
    let mut peer = client(Method::Get);
    let reply = peer.script.syn_reply(1, false, &with_length("200"));
    assert_eq!(peer.told(&[reply, data(1, true, b"1234")].concat()), []);
    assert!(is_complete(&peer.events()));
}

#[test]
fn responses_without_content_take_no_data() {
    for (method, status) in [
        (Method::Head, "200"),
        (Method::Get, "304"),
        (Method::Get, "204"),
    ] {
        for length in [&[][..], &[("content-length", "4")]] {
            let head = [&[(":status", status), OK[1]], length].concat();
            let mut peer = client(method.clone());
            let reply = peer.script.syn_reply(1, false, &head);
            assert_eq!(peer.told(&[reply, data(1, true, b"")].concat()), []);
            assert!(is_complete(&peer.events()), "{status}");
            let mut peer = client(method.clone());
            let reply = peer.script.syn_reply(1, false, &head);
            let seen = peer.told(&[reply, data(1, true, b"1234")].concat());
            assert_eq!(seen, reset(1, status::PROTOCOL_ERROR), "{status}");
            assert!(!is_complete(&peer.events()), "{status}");
        }
    }
}

#[test]
fn bad_length_is_an_error_without_content() {
    for (method, status) in [(Method::Head, "200"), (Method::Get, "304")] {
        let mut peer = client(method);
        let head = [(":status", status), OK[1], ("content-length", "4x")];
        let reply = peer.script.syn_reply(1, true, &head);
        assert_eq!(peer.told(&reply), reset(1, status::PROTOCOL_ERROR));
    }
}

#[test]
fn tunnel_has_no_length() {
    let mut peer = Peer::client(tandem_spdy::Version::V31);
    let mut head = RequestHead::get(Scheme::Http, "example.org:443", "");
    head.method = Method::Connect;
    peer.session
        .open(&head, false, Priority::default())
        .expect("a tunnel");
    peer.output();
    let head = [OK[0], OK[1], ("content-length", "0")];
    let reply = peer.script.syn_reply(1, false, &head);
    assert_eq!(peer.told(&[reply, data(1, true, b"bytes")].concat()), []);
    assert!(is_complete(&peer.events()));
}
