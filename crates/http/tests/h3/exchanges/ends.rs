//! Resets and GOAWAY.

use bytes::Bytes;
use tandem_http::mux::OpenError;
use tandem_http::{Event, Mux, Priority, Reason};

use super::{asked, open, open_upload, request};
use crate::support::*;

#[test]
fn h3_resets_reach_the_other_end_once() {
    for reason in [
        Reason::Cancel,
        Reason::Refused,
        Reason::Connect,
        Reason::EnhanceYourCalm,
    ] {
        let mut pair = Pair::new();
        let (near, id) = asked(&mut pair);
        pair.server.core.reset(id, reason);
        let (client, server) = pair.run();
        assert!(server.is_empty());
        assert!(matches!(
            client[..],
            [Event::Reset { id, reason: seen }] if id == near && seen == reason
        ));
        let mut pair = Pair::new();
        let (near, id) = asked(&mut pair);
        pair.client.core.reset(near, reason);
        let (client, server) = pair.run();
        assert!(client.is_empty());
        assert!(matches!(server[..], [Event::Reset { id: seen, .. }] if seen == id));
        assert_eq!(
            (pair.client.core.active(), pair.server.core.active()),
            (0, 0)
        );
    }
}

#[test]
fn h3_response_survives_a_stopped_request() {
    let mut pair = Pair::new();
    let (near, server) = open_upload(&mut pair);
    let (id, ..) = request(&server);
    pair.server.core.respond(id, &response(413, &[]), true);
    pair.server.core.send_data(id, Bytes::new(), true);
    pair.server.drive();
    pair.server.core.reset(id, Reason::NoError);
    pair.client.core.send_data(near, bytes(10), false);
    let (client, _) = pair.run();
    assert!(
        client
            .iter()
            .any(|event| matches!(event, Event::Response { head, .. } if head.status == 413))
    );
    assert_eq!(body(&client, near), (Vec::new(), true));
    assert!(
        !client
            .iter()
            .any(|event| matches!(event, Event::Reset { .. }))
    );
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

#[test]
fn h3_goaway_refuses_what_comes_after_it() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    pair.server.core.go_away(Reason::NoError);
    let late = open(&mut pair, "/late");
    let (client, server) = pair.run();
    assert!(
        client
            .iter()
            .any(|event| matches!(event, Event::GoAway { last, .. } if *last == near))
    );
    assert!(client.iter().any(|event| matches!(event,
        Event::Reset { id, reason: Reason::Refused } if *id == late)));
    assert!(
        server
            .iter()
            .all(|event| !matches!(event, Event::Request { .. }))
    );
    assert!(!pair.client.core.is_open());
    assert_eq!(
        pair.client.core.open(&get("/"), true, Priority(3)),
        Err(OpenError::Closing)
    );
    pair.server.core.respond(id, &response(200, &[]), true);
    pair.run();
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

#[test]
fn h3_goaway_of_a_client_lets_its_requests_finish() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    pair.client.core.go_away(Reason::NoError);
    let (_, server) = pair.run();
    assert!(matches!(server[..], [Event::GoAway { .. }]));
    assert_eq!(
        pair.server.core.push(id, &get("/p"), Priority(3)),
        Err(OpenError::Closing)
    );
    pair.server.core.respond(id, &response(200, &[]), true);
    let (client, _) = pair.run();
    assert_eq!(body(&client, near), (Vec::new(), true));
}
