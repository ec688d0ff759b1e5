//! Requests and responses: bodies, trailers, tunnels, and the dynamic table.

use bytes::Bytes;
use tandem_http::{Event, Method, Mux, Priority, Reason, RequestHead, Scheme};

use super::{open, open_upload, request};
use crate::support::*;

#[test]
fn h3_request_gets_its_response() {
    let mut pair = Pair::new();
    let near = open(&mut pair, "/page");
    let (_, server) = pair.run();
    let (id, head, end, priority) = request(&server);
    assert_eq!(
        (head, end, priority),
        (&get("/page").with_urgency("u=2"), true, Priority(2))
    );
    pair.server
        .core
        .respond(id, &response(200, &[("x-a", "b")]), false);
    pair.server.core.send_data(id, bytes(100_000), true);
    let (client, _) = pair.run();
    assert!(client.iter().any(|event| matches!(event,
        Event::Response { id, head, .. } if *id == near && head.fields.get("x-a") == Some(b"b"))));
    assert_eq!(body(&client, near), (bytes(100_000).to_vec(), true));
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

trait WithUrgency {
    fn with_urgency(self, value: &str) -> Self;
}

impl WithUrgency for RequestHead {
    fn with_urgency(mut self, value: &str) -> Self {
        self.fields.push("priority", value);
        self
    }
}

#[test]
fn h3_bodies_and_trailers_pass_both_ways() {
    let mut pair = Pair::new();
    let (near, server) = open_upload(&mut pair);
    let (id, _, end, _) = request(&server);
    assert!(!end, "a POST is told before its content");
    pair.client.core.send_data(near, bytes(70_000), false);
    pair.client
        .core
        .send_trailers(near, &[("x-sum", "1")].into_iter().collect());
    pair.server
        .core
        .inform(id, &response(103, &[("link", "</a>")]));
    let (client, server) = pair.run();
    assert_eq!(body(&server, id), (bytes(70_000).to_vec(), true));
    assert!(
        matches!(&client[..], [.., Event::Informational { head, .. }] if head.status == 103),
        "{client:?}"
    );
    pair.server.core.respond(id, &response(200, &[]), false);
    pair.server.core.send_data(id, bytes(9), false);
    pair.server
        .core
        .send_trailers(id, &[("x-end", "2")].into_iter().collect());
    let (client, _) = pair.run();
    assert_eq!(body(&client, near), (bytes(9).to_vec(), true));
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

#[test]
fn h3_connect_is_told_before_its_content() {
    let mut pair = Pair::new();
    let head = RequestHead {
        method: Method::Connect,
        path: String::new(),
        authority: "a.example:443".into(),
        scheme: Scheme::Http,
        ..get("/")
    };
    let near = pair
        .client
        .core
        .open(&head, false, Priority(3))
        .expect("room");
    let (_, server) = pair.run();
    let (id, seen, end, _) = request(&server);
    assert_eq!((seen, end), (&head, false));
    pair.server.core.respond(id, &response(200, &[]), false);
    pair.server
        .core
        .send_data(id, Bytes::from_static(b"down"), false);
    pair.client
        .core
        .send_data(near, Bytes::from_static(b"up"), true);
    let (client, server) = pair.run();
    assert_eq!(body(&client, near), (b"down".to_vec(), false));
    assert_eq!(body(&server, id), (b"up".to_vec(), true));
}

#[test]
fn h3_extended_connect_needs_the_setting() {
    let head = RequestHead {
        method: Method::Connect,
        protocol: Some("websocket".into()),
        ..get("/chat")
    };
    for enabled in [true, false] {
        let mut server = server_config();
        server.extended_connect = enabled;
        let mut pair = Pair::with(client_config(), server);
        assert_eq!(pair.client.core.peer_extended_connect(), None);
        pair.run();
        assert_eq!(pair.client.core.peer_extended_connect(), Some(enabled));
        let near = pair
            .client
            .core
            .open(&head, false, Priority(3))
            .expect("room");
        let (client, server) = pair.run();
        if enabled {
            assert_eq!(request(&server).1, &head);
        } else {
            assert!(
                matches!(client[..], [Event::Reset { id, reason: Reason::Protocol }] if id == near)
            );
        }
    }
}

#[test]
fn h3_repeated_fields_use_the_dynamic_table() {
    let mut pair = Pair::new();
    let mut sizes = Vec::new();
    for turn in 0..4 {
        let mut head = get(&format!("/{turn}"));
        head.fields
            .push("user-agent", "a browser with a long name and version");
        pair.client
            .core
            .open(&head, true, Priority(3))
            .expect("room");
        pair.client.drive();
        sizes.push(pair.client.flights[&(turn * 4)].bytes.len());
        pair.run();
    }
    assert!(sizes[3] + 30 < sizes[0], "{sizes:?}");
}
