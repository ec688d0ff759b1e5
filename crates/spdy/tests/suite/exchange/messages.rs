//! Requests and responses: bodies, trailers and tunnels.

use bytes::{Buf as _, Bytes};
use tandem_http::mux::OpenError;
use tandem_http::{
    ByteMux as _, Event, Fields, Method, Mux as _, Priority, RequestHead, Scheme, SendBuf,
};
use tandem_spdy::Version;

use super::{BOTH, body_of, pump, request_of};
use crate::support::{Pair, Seen, Wire, body, get, response};

#[test]
fn a_get_and_its_answer() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let mut head = get("/index.html?q=1");
        head.fields.push("accept", "*/*");
        let id = pair.client.open(&head, true, Priority(2)).expect("room");
        pair.settle();
        let events = pair.take_server();
        assert!(
            matches!(
                &events[..],
                [Event::Request {
                    end: true,
                    priority: Priority(2),
                    ..
                }]
            ),
            "{events:?}"
        );
        assert!(request_of(&events).1 == &head);
        pair.server.respond(
            id,
            &response(
                200,
                &[
                    ("content-type", "text/plain"),
                    ("set-cookie", "a=1"),
                    ("set-cookie", "b=2"),
                ],
            ),
            false,
        );
        pair.server.send_data(id, body(100), true);
        pair.settle();
        let events = pair.take_client();
        let [
            Event::Response {
                head, end: false, ..
            },
            Event::Data { end: true, .. },
        ] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(head.status, 200);
        assert_eq!(head.fields.get_all("set-cookie").count(), 2);
        pair.client.release(id, 100);
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}

#[test]
fn first_flight_needs_no_answer() {
    let mut pair = Pair::new(Version::V31);
    pair.client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    let mut out = SendBuf::new();
    pair.client.poll_output(&mut out, usize::MAX);
    let seen = Wire::default().read(&out.copy_to_bytes(out.remaining()));
    assert!(
        matches!(
            &seen[..],
            [
                Seen::Settings(_),
                Seen::WindowUpdate { id: 0, .. },
                Seen::SynStream { id: 1, .. }
            ]
        ),
        "{seen:?}"
    );
}

#[test]
fn large_bodies_both_ways() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let mut head = get("/upload");
        head.method = Method::Post;
        let id = pair
            .client
            .open(&head, false, Priority::default())
            .expect("room");
        pair.settle();
        pair.take_server();
        pair.server.respond(id, &response(200, &[]), false);
        let (up, down) = (body(20 << 20), body(21 << 20));
        let (at_client, at_server) =
            pump(&mut pair, vec![(id, up.clone())], vec![(id, down.clone())]);
        assert!(body_of(&at_server, id) == (up.to_vec(), true));
        assert!(body_of(&at_client, id) == (down.to_vec(), true));
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}

#[test]
fn trailers_follow_the_data() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let id = pair
            .client
            .open(&get("/"), false, Priority::default())
            .expect("room");
        let fields: Fields = [("x-sum", "1"), ("x-sum", "2")].into_iter().collect();
        pair.client.send_data(id, body(10), false);
        pair.client.send_trailers(id, &fields);
        pair.settle();
        let events = pair.take_server();
        let [
            Event::Request { end: false, .. },
            Event::Data { end: false, .. },
            Event::Trailers { fields: read, .. },
        ] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert!(*read == fields);
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_trailers(id, &fields);
        pair.settle();
        assert!(matches!(
            &pair.take_client()[..],
            [Event::Response { .. }, Event::Trailers { .. }]
        ));
        assert_eq!(pair.client.active(), 0);
    }
}

#[test]
fn connect_is_a_tunnel() {
    let mut pair = Pair::new(Version::V31);
    let mut head = RequestHead::get(Scheme::Https, "example.org:443", "");
    head.method = Method::Connect;
    let id = pair
        .client
        .open(&head, false, Priority::default())
        .expect("room");
    pair.settle();
    let events = pair.take_server();
    assert!(request_of(&events).1 == &head);
    pair.server.respond(id, &response(200, &[]), false);
    pair.server
        .send_data(id, Bytes::from_static(b"server speaks"), false);
    pair.client
        .send_data(id, Bytes::from_static(b"client speaks"), true);
    pair.settle();
    assert_eq!(
        body_of(&pair.take_server(), id),
        (b"client speaks".to_vec(), true)
    );
    assert_eq!(
        body_of(&pair.take_client(), id),
        (b"server speaks".to_vec(), false)
    );
    assert_eq!(pair.client.peer_extended_connect(), Some(false));
    head.protocol = Some("websocket".to_owned());
    assert_eq!(
        pair.client.open(&head, false, Priority::default()),
        Err(OpenError::BadHead)
    );
}
