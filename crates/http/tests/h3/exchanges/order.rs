//! The order of sending, and streams that wait.

use bytes::Buf;
use tandem_http::h3::{Command, Connection, Direction};
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
fn h3_client_reprioritises_responses_past_the_core() {
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
        order.push((stream, out.remaining()));
    }
    let last_quick = order
        .iter()
        .rposition(|(stream, _)| *stream == 4)
        .expect("a turn");
    let early_slow: Vec<usize> = order[..last_quick]
        .iter()
        .filter_map(|(stream, bytes)| (*stream == 0).then_some(*bytes))
        .collect();
    assert!(
        matches!(early_slow[..], [head] if head < 100),
        "only the head of the long response: {early_slow:?}"
    );
}

/// Opens the streams that the server wants, from number `next` on.
fn open_all(pair: &mut Pair, next: &mut u64) -> usize {
    let core = &mut pair.server.core;
    let before = *next;
    while core.wants_stream(Direction::Unidirectional) {
        core.handle_opened(Direction::Unidirectional, *next << 2 | 3);
        *next += 1;
    }
    (*next - before) as usize
}

/// A stream that is open and sends nothing exists for the client once a later one sends.
#[test]
fn h3_server_opens_few_push_streams_before_they_send() {
    let mut pair = Pair::new();
    let (_, page) = asked(&mut pair);
    pair.server.core.set_priority(page, Priority(1));
    pair.server.core.respond(page, &response(200, &[]), false);
    pair.server.core.send_data(page, bytes(60_000), false);
    pair.run();
    pair.server.core.send_data(page, bytes(60_000), false);
    let pushes: Vec<u32> = (0..101).map(|_| promised(&mut pair, page)).collect();
    for push in &pushes[..100] {
        pair.server.core.respond(*push, &response(200, &[]), false);
        pair.server.core.send_data(*push, bytes(1000), true);
    }
    let mut next = 100;
    assert_eq!(open_all(&mut pair, &mut next), 16);
    assert_eq!(pair.server.core.next_place(), Some(0), "promises");
    let write = |pair: &mut Pair, stream| {
        let mut out = tandem_http::SendBuf::new();
        pair.server.core.poll_output(stream, &mut out, 16 << 10);
        pair.server.core.handle_written(stream);
    };
    let send = |pair: &mut Pair| {
        while let Some(stream) = pair.server.core.poll_critical() {
            write(pair, stream);
        }
        let stream = pair.server.core.poll_ready().expect("a stream");
        write(pair, stream);
        stream
    };
    while pair.server.core.next_place() < Some(5) {
        assert_eq!(send(&mut pair), 0, "no push sends before the page");
        assert_eq!(open_all(&mut pair, &mut next), 0);
    }
    // More urgent pushes have places of their own.
    let urgent = pushes[100];
    pair.server.core.set_priority(urgent, Priority(2));
    pair.server.core.respond(urgent, &response(200, &[]), false);
    pair.server.core.send_data(urgent, bytes(1000), true);
    assert_eq!(open_all(&mut pair, &mut next), 1);
    assert_eq!(send(&mut pair), (next - 1) << 2 | 3);
    pair.server.core.set_priority(pushes[99], Priority(2));
    assert_eq!(open_all(&mut pair, &mut next), 1);
    assert_eq!(send(&mut pair), (next - 1) << 2 | 3);
    // Each push that sends, or ends early, lets another one open.
    send(&mut pair);
    assert_eq!(open_all(&mut pair, &mut next), 1);
    pair.server.core.reset(pushes[5], Reason::Cancel);
    assert_eq!(open_all(&mut pair, &mut next), 1);
    let mut opened = next;
    while pair.server.core.next_place().is_some() {
        send(&mut pair);
        open_all(&mut pair, &mut next);
        assert!(next - opened <= 1);
        opened = next;
    }
    assert_eq!(next - 100, 101);
    assert_eq!(pair.server.core.active(), 1, "the page has not ended");
}

/// Writes up to `most` bytes of the stream that sends next. Returns the stream and the bytes.
fn write_next(core: &mut Connection, most: usize) -> Option<(u64, usize)> {
    let stream = core.poll_ready()?;
    let mut out = tandem_http::SendBuf::new();
    core.poll_output(stream, &mut out, most);
    core.handle_written(stream);
    Some((stream, out.remaining()))
}

/// A tunnel that has carried much, and a new download.
#[test]
fn h3_old_stream_does_not_wait_for_a_new_one() {
    let mut pair = Pair::new();
    let (_, old) = asked(&mut pair);
    let (_, new) = asked(&mut pair);
    let core = &mut pair.server.core;
    core.respond(old, &response(200, &[]), false);
    core.send_data(old, bytes(8 << 20), false);
    while write_next(core, 16 << 10).is_some() {}
    core.respond(new, &response(200, &[]), false);
    core.send_data(new, bytes(8 << 20), false);
    let mut first = 0;
    while first < (1 << 20) + (64 << 10) {
        let (stream, sent) = write_next(core, 16 << 10).expect("a stream");
        assert_eq!(stream, 4);
        first += sent;
    }
    for _ in 0..50 {
        core.send_data(old, bytes(10_000), false);
        let next: Vec<_> = (0..2).map(|_| write_next(core, 16 << 10)).collect();
        assert!(
            next.iter().flatten().any(|(stream, _)| *stream == 0),
            "{next:?}"
        );
    }
}

/// A browser requests a download as urgently as a page.
#[test]
fn h3_long_response_ranks_with_ordinary_ones() {
    let mut pair = Pair::new();
    let (_, download) = asked(&mut pair);
    let (_, page) = asked(&mut pair);
    for (id, urgency, size) in [(download, 0, 2 << 20), (page, 3, 60_000)] {
        pair.server.core.set_priority(id, Priority(urgency));
        pair.server.core.respond(id, &response(200, &[]), false);
        pair.server.core.send_data(id, bytes(size), true);
    }
    while pair.server.core.poll_command().is_some() {}
    let (mut sent, mut order) = (0, Vec::new());
    while let Some(stream) = pair.server.core.poll_ready() {
        let mut out = tandem_http::SendBuf::new();
        let end = pair.server.core.poll_output(stream, &mut out, 16 << 10);
        pair.server.core.handle_written(stream);
        sent += out.remaining();
        if end {
            order.push((stream, sent >> 20));
        }
    }
    assert_eq!(order, [(4, 1), (0, 2)], "the page ends after 1 MiB");
    let command = pair.server.core.poll_command();
    let Some(Command::Prioritise { stream, priority }) = command else {
        panic!("the carrier is told: {command:?}")
    };
    assert_eq!((stream, priority), (0, Priority(3)));
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
fn h3_streams_that_are_not_read_stop_no_others() {
    let mut config = client_config();
    (config.stream_window, config.session_window) = (256 << 10, 512 << 10);
    (config.receive_budget, config.max_streams) = (2 << 20, 32);
    let mut pair = Pair::with(config, server_config());
    // A carrier keeps the bytes of streams that the client does not read.
    let send = |pair: &mut Pair, (near, id): (u32, u32), carrier: u64, count: usize| {
        for sent in 0..count {
            if !pair.client.core.wants_input(carrier) {
                return sent;
            }
            if sent == 0 {
                pair.server.core.respond(id, &response(200, &[]), false);
            }
            pair.server.core.send_data(id, bytes(8 << 10), false);
            let (client, _) = pair.run();
            assert_eq!(body(&client, near).0.len(), 8 << 10);
        }
        count
    };
    let mut held = 0;
    for number in 0..31 {
        let ids = asked(&mut pair);
        let sent = send(&mut pair, ids, 4 * number, 64);
        assert!(sent >= 2, "a least window");
        held += sent << 13;
    }
    assert!((1 << 20..2 << 20).contains(&held), "{held}");
    let ids = asked(&mut pair);
    for _ in 0..20 {
        assert_eq!(send(&mut pair, ids, 4 * 31, 1), 1);
        pair.client.core.release(ids.0, 8 << 10);
    }
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
