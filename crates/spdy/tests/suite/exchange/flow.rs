//! The order of sending, limits on streams, and the memory that a session holds.

use bytes::Buf as _;
use tandem_http::mux::OpenError;
use tandem_http::{ByteMux as _, Event, Mux as _, Priority, Reason, Role, SendBuf};
use tandem_spdy::Version;

use super::{body_of, feed, pump};
use crate::support::{Pair, Seen, Wire, body, config, get, response};

#[test]
fn an_urgent_answer_overtakes_a_large_one() {
    let mut pair = Pair::new(Version::V31);
    let large = pair
        .client
        .open(&get("/large"), true, Priority(7))
        .expect("room");
    let small = pair
        .client
        .open(&get("/small"), true, Priority(0))
        .expect("room");
    pair.settle();
    pair.server.respond(large, &response(200, &[]), false);
    pair.server.send_data(large, body(1 << 20), true);
    let mut out = SendBuf::new();
    pair.server.poll_output(&mut out, 16 << 10);
    let mut wire = Wire::default();
    wire.read(&out.copy_to_bytes(out.remaining()));
    pair.server.respond(small, &response(200, &[]), false);
    pair.server.send_data(small, body(5000), true);
    pair.server.poll_output(&mut out, 16 << 10);
    let seen = wire.read(&out.copy_to_bytes(out.remaining()));
    assert!(
        matches!(&seen[..], [Seen::SynReply { .. }, Seen::Data { id, fin: true, .. }, ..] if *id == small),
        "{seen:?}"
    );
}

#[test]
fn equals_share() {
    let mut pair = Pair::new(Version::V31);
    let ids: Vec<_> = (0..4)
        .map(|_| {
            pair.client
                .open(&get("/"), true, Priority(3))
                .expect("room")
        })
        .collect();
    pair.settle();
    for &id in &ids {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, body(1 << 20), true);
    }
    let mut out = SendBuf::new();
    pair.server.poll_output(&mut out, 512 << 10);
    let mut sent = [0; 4];
    for seen in Wire::default().read(&out.copy_to_bytes(out.remaining())) {
        if let Seen::Data { id, bytes, .. } = seen {
            sent[ids.iter().position(|&other| other == id).expect("ours")] += bytes.len();
        }
    }
    let (least, most) = (
        sent.iter().min().expect("four"),
        sent.iter().max().expect("four"),
    );
    assert!(most - least <= 24 << 10, "{sent:?}");
}

#[test]
fn the_peers_stream_limit_is_kept() {
    let mut server = config(Role::Server, Version::V31);
    server.mux.max_streams = 2;
    let mut pair = Pair::with(config(Role::Client, Version::V31), server);
    pair.settle();
    let first = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    assert_eq!(
        pair.client.open(&get("/"), true, Priority::default()),
        Err(OpenError::Busy)
    );
    pair.settle();
    pair.server.respond(first, &response(204, &[]), true);
    pair.settle();
    assert!(
        pair.client
            .open(&get("/"), true, Priority::default())
            .is_ok()
    );
}

#[test]
fn streams_beyond_an_unknown_limit_are_refused() {
    let mut server = config(Role::Server, Version::V31);
    server.mux.max_streams = 2;
    let mut pair = Pair::with(config(Role::Client, Version::V31), server);
    let ids: Vec<_> = (0..3)
        .map(|_| {
            pair.client
                .open(&get("/"), true, Priority::default())
                .expect("not yet told")
        })
        .collect();
    pair.settle();
    let events = pair.take_client();
    assert!(
        matches!(&events[..], [Event::Reset { id, reason: Reason::Refused }] if *id == ids[2]),
        "{events:?}"
    );
}

#[test]
fn a_stopped_stream_does_not_stop_its_neighbour() {
    let mut pair = Pair::new(Version::V31);
    let stopped = pair
        .client
        .open(&get("/a"), true, Priority(3))
        .expect("room");
    let moving = pair
        .client
        .open(&get("/b"), true, Priority(3))
        .expect("room");
    pair.settle();
    for id in [stopped, moving] {
        pair.server.respond(id, &response(200, &[]), false);
    }
    // The first is never released: its own window runs out, the session's does not.
    let mut down = vec![(stopped, body(12 << 20)), (moving, body(30 << 20))];
    let mut received = [0; 2];
    loop {
        feed(&mut pair.server, &mut down);
        if !pair.step(64 << 10) {
            break;
        }
        for event in pair.take_client() {
            if let Event::Data { id, data, .. } = event {
                if id == moving {
                    pair.client.release(id, data.len());
                }
                received[usize::from(id == moving)] += data.len();
            }
        }
    }
    assert_eq!(received, [8 << 20, 30 << 20]);
}

/// SPDY/3 has no session window: only the windows of streams hold bytes back.
#[test]
fn unread_streams_stop_no_others() {
    for version in [Version::V3, Version::V31] {
        let mut client = config(Role::Client, version);
        client.mux.stream_window = 256 << 10;
        client.mux.session_window = 512 << 10;
        (client.mux.receive_budget, client.mux.max_streams) = (2 << 20, 32);
        let mut server = config(Role::Server, version);
        server.mux.max_streams = 32;
        let mut pair = Pair::with(client, server);
        let open = |pair: &mut Pair| {
            let opened = pair.client.open(&get("/"), true, Priority(3));
            opened.expect("room")
        };
        let (mut unread, mut held) = (Vec::new(), Vec::new());
        // Its credit is too little to be returned while the window is wide.
        let read = open(&mut pair);
        pair.settle();
        pair.server.respond(read, &response(200, &[]), false);
        pair.server.send_data(read, body(15 << 10), false);
        pump(&mut pair, Vec::new(), Vec::new());
        for _ in 0..30 {
            let id = open(&mut pair);
            pair.settle();
            pair.server.respond(id, &response(200, &[]), false);
            pair.server.send_data(id, body(256 << 10), true);
            unread.push(id);
            pair.settle();
            held.extend(pair.take_client());
        }
        let size = |&id: &u32| body_of(&held, id).0.len();
        let sizes: Vec<usize> = unread.iter().map(size).collect();
        let total: usize = sizes.iter().sum();
        assert!(total < 2 << 20, "{version:?}: {total}");
        assert!(sizes.iter().all(|size| *size >= 16 << 10), "{version:?}");
        let moving = open(&mut pair);
        pair.settle();
        pair.server.respond(moving, &response(200, &[]), false);
        let (more, _) = pump(&mut pair, Vec::new(), vec![(moving, body(3 << 20))]);
        let (whole, end) = body_of(&more, moving);
        assert!(
            whole == body(3 << 20) && end,
            "{version:?}: {}",
            whole.len()
        );
        held.extend(more);
        let resets = held
            .iter()
            .filter(|event| matches!(event, Event::Reset { .. }));
        assert_eq!(resets.count(), 0, "{version:?}");
        for (&id, size) in unread.iter().zip(sizes) {
            pair.client.release(id, size);
        }
        let (rest, _) = pump(&mut pair, Vec::new(), Vec::new());
        held.extend(rest);
        for id in unread {
            assert!(
                body_of(&held, id) == (body(256 << 10).to_vec(), true),
                "{version:?}"
            );
        }
    }
}

#[test]
fn the_budget_bounds_what_is_held() {
    let mut client = config(Role::Client, Version::V31);
    client.mux.receive_budget = 4 << 20;
    client.mux.session_window = 2 << 20;
    let mut pair = Pair::with(client, config(Role::Server, Version::V31));
    let ids: Vec<_> = (0..10)
        .map(|_| {
            pair.client
                .open(&get("/"), true, Priority(3))
                .expect("room")
        })
        .collect();
    pair.settle();
    let mut down = Vec::new();
    for &id in &ids {
        pair.server.respond(id, &response(200, &[]), false);
        down.push((id, body(4 << 20)));
    }
    let mut held = Vec::new();
    loop {
        feed(&mut pair.server, &mut down);
        if !pair.step(64 << 10) {
            break;
        }
        held.extend(pair.take_client());
    }
    let total: usize = ids.iter().map(|&id| body_of(&held, id).0.len()).sum();
    assert!(total <= 6 << 20, "{total}");
    assert!(total > 4 << 20, "{total}");
    for event in &held {
        if let Event::Data { id, data, .. } = event {
            pair.client.release(*id, data.len());
        }
    }
    let (more, _) = pump(&mut pair, Vec::new(), down);
    held.extend(more);
    for id in ids {
        assert!(body_of(&held, id) == (body(4 << 20).to_vec(), true), "{id}");
    }
}

#[test]
fn ten_thousand_requests_keep_no_memory() {
    let mut pair = Pair::new(Version::V31);
    for round in 0..10_000 {
        let id = pair
            .client
            .open(&get(&format!("/{round}")), true, Priority::default())
            .expect("room");
        pair.settle();
        pair.server.respond(id, &response(200, &[]), true);
        pair.settle();
        pair.take_client();
        pair.take_server();
    }
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    // HTTP/1.1 would write much more.
    assert!(pair.bytes_up < 10_000 * 60, "{}", pair.bytes_up);
}
