//! Resets, limits on streams, GOAWAY and PING.

use tandem_http::mux::OpenError;
use tandem_http::{Event, Mux, Reason, Role};

use super::{NORMAL, request};
use crate::support::{
    DATA, END_STREAM, GOAWAY, Pair, Raw, body, bytes, client_config, events, get, response,
    server_config,
};

#[test]
fn resets_reach_the_other_side_once() {
    let mut pair = Pair::new();
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, bytes(100_000), false);
    pair.step(Role::Server);
    pair.client.reset(id, Reason::Cancel);
    pair.client.reset(id, Reason::Cancel);
    let (client, server) = pair.run();
    assert!(
        client
            .iter()
            .all(|e| matches!(e, Event::Response { .. } | Event::Data { .. })),
        "only what had come"
    );
    assert!(matches!(server[..], [Event::Reset { id: r, reason: Reason::Cancel }] if r == id));
    assert_eq!(
        (
            pair.client.active(),
            pair.server.active(),
            pair.server.send_room(id)
        ),
        (0, 0, 0)
    );
    let next = pair
        .client
        .open(&get("/next"), true, NORMAL)
        .expect("the session goes on");
    let (_, server) = pair.run();
    assert_eq!(request(&server).0, next);
}

#[test]
fn busy_until_a_stream_closes() {
    let mut config = server_config();
    config.max_streams = 2;
    let mut pair = Pair::with(client_config(), config);
    pair.run();
    let first = pair
        .client
        .open(&get("/1"), true, NORMAL)
        .expect("a stream");
    pair.client
        .open(&get("/2"), true, NORMAL)
        .expect("a stream");
    assert_eq!(
        pair.client.open(&get("/3"), true, NORMAL),
        Err(OpenError::Busy)
    );
    pair.run();
    pair.server.respond(first, &response(204, &[]), true);
    pair.run();
    assert!(pair.client.open(&get("/3"), true, NORMAL).is_ok());
}

#[test]
fn streams_beyond_an_unknown_limit_are_refused() {
    let mut config = server_config();
    config.max_streams = 1;
    let mut pair = Pair::with(client_config(), config);
    pair.client
        .open(&get("/1"), true, NORMAL)
        .expect("a stream");
    let second = pair
        .client
        .open(&get("/2"), true, NORMAL)
        .expect("the limit is not known yet");
    let (client, _) = pair.run();
    assert!(
        client
            .iter()
            .any(|e| matches!(e, Event::Reset { id, reason: Reason::Refused } if *id == second))
    );
}

#[test]
fn goodbye_of_a_server() {
    let mut pair = Pair::new();
    let kept = pair
        .client
        .open(&get("/kept"), true, NORMAL)
        .expect("a stream");
    pair.run();
    pair.server.go_away(Reason::NoError);
    pair.server.go_away(Reason::NoError);
    let late = pair
        .client
        .open(&get("/late"), true, NORMAL)
        .expect("not known yet");
    pair.step(Role::Server);
    let seen = events(&mut pair.client);
    assert!(
        matches!(seen[..], [Event::GoAway { last, reason: Reason::NoError }, Event::Reset { id, reason: Reason::Refused }]
            if last == kept && id == late)
    );
    assert_eq!(
        pair.client.open(&get("/"), true, NORMAL),
        Err(OpenError::Closing)
    );
    assert!(!pair.client.is_open() && !pair.server.is_open());
    let (_, server) = pair.run();
    assert!(server.is_empty(), "the late one is not shown");
    pair.server.respond(kept, &response(200, &[]), false);
    pair.server.send_data(kept, bytes(50_000), true);
    let (client, _) = pair.run();
    assert_eq!(body(&client, kept), (bytes(50_000).to_vec(), true));
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
}

#[test]
fn goodbye_of_a_client_lets_its_requests_finish() {
    let mut pair = Pair::new();
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.client.go_away(Reason::NoError);
    let (_, server) = pair.run();
    assert!(
        server
            .iter()
            .any(|e| matches!(e, Event::GoAway { last: 0, .. }))
    );
    pair.server.respond(id, &response(204, &[]), true);
    let (client, _) = pair.run();
    assert!(matches!(client[..], [Event::Response { end: true, .. }]));
    assert_eq!(
        pair.client.open(&get("/"), true, NORMAL),
        Err(OpenError::Closing)
    );
}

#[test]
fn pings_come_back() {
    let mut pair = Pair::new();
    pair.client.ping(7);
    pair.server.ping(9);
    let (client, server) = pair.run();
    assert!(
        client
            .iter()
            .any(|e| matches!(e, Event::Pong { payload: 7 }))
    );
    assert!(
        server
            .iter()
            .any(|e| matches!(e, Event::Pong { payload: 9 }))
    );
}

#[test]
fn goodbye_spares_a_request_whose_answer_has_begun() {
    let mut raw = Raw::client(client_config());
    raw.core.open(&get("/"), true, NORMAL).expect("a stream");
    raw.frames();
    raw.headers(1, false, &[(":status", "200")])
        .expect("a head");
    raw.send(GOAWAY, 0, 0, &[0; 8]).expect("a goodbye");
    raw.send(DATA, END_STREAM, 1, b"ok").expect("the rest");
    let events = raw.events();
    assert_eq!(body(&events, 1), (b"ok".to_vec(), true));
    assert!(!events.iter().any(|e| matches!(e, Event::Reset { .. })));
}

#[test]
fn reset_after_data_lets_the_beginning_arrive() {
    for length in [0, 10, 300_000] {
        let mut pair = Pair::new();
        let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
        pair.run();
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(length), false);
        pair.server.reset_after_data(id, Reason::Internal);
        pair.server.send_data(id, bytes(5), true);
        let (client, _) = pair.run();
        assert_eq!(body(&client, id), (bytes(length).to_vec(), false));
        assert!(
            matches!(
                client.last(),
                Some(Event::Reset {
                    reason: Reason::Internal,
                    ..
                })
            ),
            "{length}: {client:?}"
        );
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}
