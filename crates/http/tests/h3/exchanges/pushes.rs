//! Pushes: their promises, their streams, their limits, and their ends.

use bytes::Bytes;
use tandem_http::mux::OpenError;
use tandem_http::{Event, Method, Mux, MuxConfig, Priority, Reason, Role};

use super::asked;
use crate::support::*;

/// Promises `/style.css` on the request, and returns its number.
pub(super) fn promised(pair: &mut Pair, id: u32) -> u32 {
    let push = pair.server.core.push(id, &get("/style.css"), Priority(4));
    push.expect("a client that takes pushes")
}

#[test]
fn h3_push_arrives_with_its_promise() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    assert!(pair.server.core.peer_takes_pushes());
    pair.server.core.respond(id, &response(200, &[]), false);
    let push = promised(&mut pair, id);
    pair.server
        .core
        .send_data(id, Bytes::from_static(b"<link>"), true);
    pair.server.core.respond(push, &response(200, &[]), false);
    pair.server
        .core
        .send_data(push, Bytes::from_static(b"p {}"), true);
    let (client, _) = pair.run();
    let place =
        |wanted: &dyn Fn(&Event) -> bool| client.iter().position(wanted).expect("the event");
    let promise = place(&|e| {
        matches!(e, Event::Push { parent, id, request }
        if *parent == near && *id == push && *request == get("/style.css"))
    });
    let content = place(&|e| matches!(e, Event::Data { id, .. } if *id == near));
    assert!(
        promise < content,
        "the promise precedes the content that mentions it"
    );
    assert_eq!(body(&client, push), (b"p {}".to_vec(), true));
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

#[test]
fn h3_push_stream_waits_for_its_promise() {
    let mut pair = Pair::new();
    let (_, id) = asked(&mut pair);
    pair.server.core.respond(id, &response(200, &[]), false);
    let push = promised(&mut pair, id);
    pair.server.core.respond(push, &response(200, &[]), false);
    pair.server
        .core
        .send_data(push, Bytes::from_static(b"p {}"), true);
    pair.server.drive();
    let stream = *pair.server.flights.keys().max().expect("the push stream");
    assert_eq!(stream & 3, 3);
    let flight = pair
        .server
        .flights
        .remove(&stream)
        .expect("the push stream");
    pair.client
        .take(pair.now, stream, &flight)
        .expect("an early push");
    assert!(events(&mut pair.client.core).is_empty());
    assert!(!pair.client.core.wants_input(stream));
    let (client, _) = pair.run();
    assert!(matches!(client[1], Event::Push { .. }), "{client:?}");
    assert_eq!(body(&client, push), (b"p {}".to_vec(), true));
}

/// The heads of many pushes can be in one packet, and a lost one delays the first bytes of many.
#[test]
fn h3_client_takes_many_push_streams_without_bytes() {
    let mut pair = Pair::new();
    let (_, id) = asked(&mut pair);
    pair.server.core.respond(id, &response(200, &[]), false);
    let pushes: Vec<u32> = (0..100).map(|_| promised(&mut pair, id)).collect();
    for push in &pushes {
        pair.server.core.respond(*push, &response(200, &[]), false);
        let body = Bytes::from_static(b"p {}");
        pair.server.core.send_data(*push, body, true);
    }
    pair.server.drive();
    let streams: Vec<u64> = pair.server.flights.keys().copied().collect();
    let push_streams = streams.iter().filter(|stream| **stream & 3 == 3);
    assert!(push_streams.clone().count() >= 100);
    for stream in push_streams {
        let taken = pair.client.take(pair.now, *stream, &Flight::default());
        taken.expect("a stream whose first bytes come later");
    }
    let (client, _) = pair.run();
    for push in pushes {
        assert_eq!(body(&client, push), (b"p {}".to_vec(), true));
    }
}

#[test]
fn h3_push_can_be_cancelled_by_either_end() {
    for arrived in [false, true] {
        let mut pair = Pair::new();
        let (_, id) = asked(&mut pair);
        let push = promised(&mut pair, id);
        if arrived {
            pair.server.core.respond(push, &response(200, &[]), false);
        }
        pair.run();
        pair.client.core.reset(push, Reason::Cancel);
        let (client, server) = pair.run();
        assert!(client.is_empty());
        assert!(matches!(server[..], [Event::Reset { id, reason: Reason::Cancel }] if id == push));
        // The server may not know yet that the push is over.
        let mut pair = Pair::new();
        let (_, id) = asked(&mut pair);
        let push = promised(&mut pair, id);
        if arrived {
            pair.server.core.respond(push, &response(200, &[]), false);
        }
        pair.run();
        pair.server.core.reset(push, Reason::Cancel);
        let (client, _) = pair.run();
        assert!(matches!(client[..], [Event::Reset { id, reason: Reason::Cancel }] if id == push));
        assert_eq!(
            (pair.client.core.active(), pair.server.core.active()),
            (1, 1)
        );
    }
}

#[test]
fn h3_pushes_are_limited_and_permitted_again() {
    let mut config = client_config();
    config.max_streams = 4;
    let mut pair = Pair::with(config, server_config());
    let (_, id) = asked(&mut pair);
    pair.server.core.respond(id, &response(200, &[]), false);
    for turn in 0..40 {
        let mut pushes = Vec::new();
        loop {
            match pair.server.core.push(id, &get("/p"), Priority(3)) {
                Ok(push) => pushes.push(push),
                Err(error) => {
                    assert_eq!(error, OpenError::Busy);
                    break;
                }
            }
        }
        assert!((2..=4).contains(&pushes.len()), "{turn}: {pushes:?}");
        for push in pushes {
            pair.server.core.respond(push, &response(200, &[]), true);
        }
        pair.run();
    }
}

#[test]
fn h3_push_needs_a_client_that_permits_it() {
    let mut pair = Pair::with(MuxConfig::new(Role::Client), server_config());
    let (_, id) = asked(&mut pair);
    assert!(!pair.server.core.peer_takes_pushes());
    assert_eq!(
        pair.server.core.push(id, &get("/p"), Priority(3)),
        Err(OpenError::NoPush)
    );
    let mut pair = Pair::new();
    let (_, id) = asked(&mut pair);
    let mut post = get("/p");
    post.method = Method::Post;
    assert_eq!(
        pair.server.core.push(id, &post, Priority(3)),
        Err(OpenError::BadHead)
    );
    assert_eq!(
        pair.server.core.push(id + 2, &get("/p"), Priority(3)),
        Err(OpenError::NoPush)
    );
}
