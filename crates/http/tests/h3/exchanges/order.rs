//! The order of sending, and streams that wait.

use tandem_http::mux::OpenError;
use tandem_http::{Event, Mux, Priority, Reason, Role};

use super::pushes::promised;
use super::{asked, open};
use crate::support::*;

#[test]
fn h3_client_changes_priorities() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    let push = promised(&mut pair, id);
    pair.run();
    pair.client.core.set_priority(near, Priority(5));
    pair.client.core.set_priority(push, Priority(1));
    let (_, server) = pair.run();
    assert!(
        matches!(server[..], [
        Event::Priority { id: a, priority: Priority(5) },
        Event::Priority { id: b, priority: Priority(1) },
    ] if a == id && b == push),
        "{server:?}"
    );
}

/// The carrier has taken both bodies, and may still hold them.
#[test]
fn h3_client_changes_priorities_of_responses_that_left_the_core() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    let push = promised(&mut pair, id);
    pair.run();
    for id in [push, id] {
        let core = &mut pair.server.core;
        core.respond(id, &response(200, &[]), false);
        core.send_data(id, bytes(1000), true);
    }
    pair.server.drive();
    let push_stream = *pair.server.flights.keys().next_back().expect("a stream");
    pair.server.orders.clear();
    pair.client.core.set_priority(near, Priority(5));
    pair.client.core.set_priority(push, Priority(1));
    while pair.step(Role::Client) {}
    pair.server.drive();
    let expected = [(0, Priority(5)), (push_stream, Priority(1))];
    assert_eq!(pair.server.orders, expected);
}

#[test]
fn h3_urgent_stream_overtakes_a_long_one() {
    let mut pair = Pair::new();
    let (_, slow) = asked(&mut pair);
    let (_, quick) = asked(&mut pair);
    for (id, urgency) in [(slow, 5), (quick, 1)] {
        pair.server.core.set_priority(id, Priority(urgency));
        pair.server.core.respond(id, &response(200, &[]), false);
        pair.server.core.send_data(id, bytes(60_000), true);
    }
    // Both heads leave first.
    let mut order = Vec::new();
    while let Some(stream) = pair.server.core.poll_ready() {
        let mut out = tandem_http::SendBuf::new();
        pair.server.core.poll_output(stream, &mut out, 1200);
        pair.server.core.handle_written(stream);
        order.push(stream);
    }
    let last_quick = order
        .iter()
        .rposition(|stream| *stream == 4)
        .expect("a turn");
    let early_slow = order[..last_quick]
        .iter()
        .filter(|stream| **stream == 0)
        .count();
    assert!(
        early_slow <= 1,
        "only the head of the long response: {early_slow}"
    );
}

#[test]
fn h3_stream_is_not_read_while_much_is_held() {
    let mut config = client_config();
    (config.stream_window, config.receive_budget) = (1000, 3000);
    let mut pair = Pair::with(config, server_config());
    let ids: Vec<(u32, u32)> = (0..4).map(|_| asked(&mut pair)).collect();
    for (_, id) in &ids {
        pair.server.core.respond(*id, &response(200, &[]), false);
        pair.server.core.send_data(*id, bytes(900), false);
    }
    pair.run();
    assert!(
        !pair.client.core.wants_input(0),
        "the session holds its budget"
    );
    for (near, _) in &ids[1..] {
        pair.client.core.release(*near, 900);
    }
    assert!(pair.client.core.wants_input(0) && pair.client.core.poll_resumed().is_some());
    pair.server.core.send_data(ids[0].1, bytes(900), false);
    pair.run();
    assert!(!pair.client.core.wants_input(0) && pair.client.core.wants_input(4));
    while pair.client.core.poll_resumed().is_some() {}
    pair.client.core.release(ids[0].0, 1400);
    assert_eq!(pair.client.core.poll_resumed(), Some(0));
    assert!(pair.client.core.wants_input(0));
}

#[test]
fn h3_requests_wait_for_the_carrier() {
    let mut pair = Pair::new();
    let mut ids = Vec::new();
    while let Ok(id) = pair.client.core.open(&get("/"), true, Priority(3)) {
        ids.push(id);
    }
    assert_eq!(ids.len(), 100);
    assert_eq!(
        pair.client.core.open(&get("/"), true, Priority(3)),
        Err(OpenError::Busy)
    );
    pair.client.core.reset(ids[50], Reason::Cancel);
    let (_, server) = pair.run();
    let requests = server
        .iter()
        .filter(|event| matches!(event, Event::Request { .. }));
    assert_eq!(requests.count(), 99);
    pair.client.core.set_blocked(true);
    assert!(pair.client.core.has_room());
    open(&mut pair, "/");
    assert!(!pair.client.core.has_room());
}
