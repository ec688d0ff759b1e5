//! Messages that break off: their content arrives, and they never look complete.

use tandem_http::h3::Code;
use tandem_http::{Event, Method, Mux, Priority, Reason};

use super::{asked, open_upload, request};
use crate::support::*;

/// Returns the reasons of the resets of a stream.
fn resets(events: &[Event], stream: u32) -> Vec<Reason> {
    let reason = |event: &Event| match event {
        Event::Reset { id, reason } if *id == stream => Some(*reason),
        _ => None,
    };
    events.iter().filter_map(reason).collect()
}

#[test]
fn h3_content_of_a_broken_response_arrives() {
    for (sent_before, choices) in [(true, vec![]), (false, vec![]), (false, vec![3, 5, 0, 2])] {
        for (length, size) in [(None, 0), (Some("9001"), 9000), (None, 60_000)] {
            let mut pair = Pair::new();
            let (near, id) = asked(&mut pair);
            pair.choices = choices.clone();
            let fields: Vec<_> = length.iter().map(|it| ("content-length", *it)).collect();
            pair.server.core.respond(id, &response(200, &fields), false);
            pair.server.core.send_data(id, bytes(size), false);
            if sent_before {
                pair.server.drive();
            }
            pair.server.core.reset_after_data(id, Reason::Internal);
            let (client, server) = pair.run();
            assert!(
                client
                    .iter()
                    .any(|event| matches!(event, Event::Response { .. }))
            );
            assert_eq!(body(&client, near), (bytes(size).to_vec(), false));
            assert_eq!(resets(&client, near), [Reason::Internal]);
            assert!(matches!(client.last(), Some(Event::Reset { .. })));
            assert!(server.is_empty());
            let active = (pair.client.core.active(), pair.server.core.active());
            assert_eq!(active, (0, 0));
            // The session goes on.
            let (near, id) = asked(&mut pair);
            pair.server.core.respond(id, &response(204, &[]), true);
            let (client, _) = pair.run();
            assert_eq!(body(&client, near), (Vec::new(), true));
        }
    }
}

#[test]
fn h3_broken_response_ends_the_upload() {
    let mut pair = Pair::new();
    let (near, server) = open_upload(&mut pair);
    let (id, ..) = request(&server);
    pair.server.core.respond(id, &response(200, &[]), false);
    pair.server.core.send_data(id, bytes(100), false);
    pair.server.core.reset_after_data(id, Reason::Internal);
    let (client, server) = pair.run();
    assert_eq!(body(&client, near), (bytes(100).to_vec(), false));
    assert_eq!(resets(&client, near), [Reason::Internal]);
    assert!(server.is_empty(), "{server:?}");
    let active = (pair.client.core.active(), pair.server.core.active());
    assert_eq!(active, (0, 0));
}

#[test]
fn h3_content_of_a_broken_push_arrives() {
    let mut pair = Pair::new();
    let (_, id) = asked(&mut pair);
    let push = pair.server.core.push(id, &get("/style.css"), Priority(4));
    let push = push.expect("a client that takes pushes");
    pair.run();
    pair.server.core.respond(push, &response(200, &[]), false);
    pair.server.core.send_data(push, bytes(700), false);
    pair.server.drive();
    pair.server.core.reset_after_data(push, Reason::Internal);
    let (client, _) = pair.run();
    assert_eq!(body(&client, push), (bytes(700).to_vec(), false));
    assert_eq!(resets(&client, push), [Reason::Internal]);
    pair.server.core.respond(id, &response(204, &[]), true);
    pair.run();
    let active = (pair.client.core.active(), pair.server.core.active());
    assert_eq!(active, (0, 0));
}

#[test]
fn h3_content_of_a_broken_request_arrives() {
    let mut pair = Pair::new();
    let mut head = get("/upload");
    head.method = Method::Post;
    let near = pair
        .client
        .core
        .open(&head, false, Priority(3))
        .expect("room");
    pair.client.core.send_data(near, bytes(500), false);
    pair.run();
    pair.client.core.reset_after_data(near, Reason::Cancel);
    let (client, server) = pair.run();
    assert!(client.is_empty());
    assert!(matches!(
        server[..],
        [Event::Reset {
            reason: Reason::Cancel,
            ..
        }]
    ));
    let active = (pair.client.core.active(), pair.server.core.active());
    assert_eq!(active, (0, 0));
}

/// A peer that does not know our frame would take its end for a regular one.
#[test]
fn h3_other_peers_get_a_reset() {
    for size in [0, 9000] {
        let mut raw = Raw::new(server_config());
        raw.part(0, &headers(&GET), true).expect("a request");
        let events = raw.events();
        let (id, ..) = request(&events);
        raw.end.core.respond(id, &response(200, &[]), false);
        raw.end.core.send_data(id, bytes(size), false);
        raw.end.core.reset_after_data(id, Reason::Internal);
        assert!(raw.ended().contains(&(0, Code::INTERNAL_ERROR)));
    }
}
