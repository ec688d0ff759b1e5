//! The order of sending, windows, and the memory that a session holds.

use tandem_http::mux::{Unsent, Window};
use tandem_http::{Event, Mux, Priority, Reason, Role};

use super::NORMAL;
use crate::support::{
    self, Pair, body, bytes, client_config, get, output, parse, response, server_config,
};

#[test]
fn small_and_urgent_overtake() {
    let mut pair = Pair::new();
    let large = pair
        .client
        .open(&get("/large"), true, NORMAL)
        .expect("a stream");
    let small = pair
        .client
        .open(&get("/small"), true, NORMAL)
        .expect("a stream");
    let urgent = pair
        .client
        .open(&get("/urgent"), true, Priority(0))
        .expect("a stream");
    let (_, server) = pair.run();
    let priorities: Vec<u8> = server
        .iter()
        .filter_map(|e| {
            if let Event::Request { priority, .. } = e {
                Some(priority.0)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(priorities, [3, 3, 0], "the field carries it");
    pair.server.respond(large, &response(200, &[]), false);
    pair.server.send_data(large, bytes(1 << 20), true);
    assert!(pair.step(Role::Server), "the large one has begun");
    for id in [small, urgent] {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(2000), true);
    }
    let order: Vec<u32> = parse(&output(&mut pair.server, 30_000))
        .iter()
        .filter(|f| f.kind == support::DATA)
        .map(|f| f.id)
        .collect();
    assert_eq!(order, [urgent, small, large, large]);
}

/// A browser requests a download as urgently as a page.
#[test]
fn long_response_ranks_with_ordinary_ones() {
    let mut pair = Pair::new();
    let [download, page] = [Priority(0), NORMAL].map(|priority| {
        let opened = pair.client.open(&get("/"), true, priority);
        opened.expect("a stream")
    });
    pair.run();
    for (id, size) in [(download, 2 << 20), (page, 60_000)] {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(size), true);
    }
    let frames = parse(&output(&mut pair.server, 4 << 20));
    let data: Vec<u32> = frames
        .iter()
        .filter(|frame| frame.kind == support::DATA)
        .map(|frame| frame.id)
        .collect();
    let end = data.iter().rposition(|id| *id == page).expect("a turn");
    let before = data[..end].iter().filter(|id| **id == download).count();
    assert!((64..70).contains(&before), "{before} of 16 KiB");
}

#[test]
fn a_client_can_change_its_mind_about_priority() {
    let mut pair = Pair::new();
    let first = pair
        .client
        .open(&get("/1"), true, NORMAL)
        .expect("a stream");
    let second = pair
        .client
        .open(&get("/2"), true, NORMAL)
        .expect("a stream");
    pair.run();
    for id in [first, second] {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(30_000), true);
    }
    pair.client.set_priority(second, Priority(1));
    pair.client.set_priority(second, Priority(1));
    pair.step(Role::Client);
    let told = support::events(&mut pair.server);
    assert!(
        matches!(told[..], [Event::Priority { id, priority: Priority(1) }] if id == second),
        "once: {told:?}"
    );
    let data = parse(&output(&mut pair.server, 500))
        .into_iter()
        .find(|f| f.kind == support::DATA);
    assert_eq!(data.map(|f| f.id), Some(second));
}

#[test]
fn windows_hold_back_and_release_lets_on() {
    let mut config = client_config();
    config.stream_window = 20_000;
    let mut pair = Pair::with(config, server_config());
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, bytes(50_000), true);
    assert_eq!(
        pair.server.unsent(id),
        Unsent {
            bytes: 50_000,
            shut: None
        }
    );
    let (client, _) = pair.run();
    assert_eq!(body(&client, id), (bytes(50_000)[..20_000].to_vec(), false));
    assert_eq!(
        pair.server.unsent(id),
        Unsent {
            bytes: 30_000,
            shut: Some(Window::Stream)
        }
    );
    pair.client.release(id, 2_000);
    assert!(
        !pair.client.wants_output(),
        "an eighth of a window at least, even when it is shut"
    );
    pair.client.release(id, 8_000);
    assert!(pair.client.wants_output());
    let (client, _) = pair.run();
    assert_eq!(body(&client, id).0.len(), 10_000);
    pair.client.release(id, 20_000);
    let (client, _) = pair.run();
    assert_eq!(
        (body(&client, id).0.len(), body(&client, id).1),
        (20_000, true)
    );
    assert_eq!(pair.server.unsent(id), Unsent::default());
}

#[test]
fn a_stopped_stream_does_not_stop_its_neighbours() {
    let mut config = client_config();
    (config.stream_window, config.session_window) = (100_000, 100_000);
    let mut pair = Pair::with(config, server_config());
    let stuck = pair
        .client
        .open(&get("/stuck"), true, NORMAL)
        .expect("a stream");
    let other = pair
        .client
        .open(&get("/other"), true, NORMAL)
        .expect("a stream");
    pair.run();
    for id in [stuck, other] {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(100_000), true);
    }
    let (client, _) = pair.run();
    assert_eq!(body(&client, stuck).0.len(), 100_000);
    assert_eq!(body(&client, other), (bytes(100_000).to_vec(), true));
}

#[test]
fn receive_budget_counts_bytes_of_finished_streams() {
    let mut config = client_config();
    (
        config.stream_window,
        config.session_window,
        config.receive_budget,
    ) = (100_000, 100_000, 150_000);
    let mut pair = Pair::with(config, server_config());
    let ids: Vec<u32> = (0..16)
        .map(|u| {
            pair.client
                .open(&get("/"), true, Priority(u / 2))
                .expect("a stream")
        })
        .collect();
    pair.run();
    for &id in &ids {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(30_000), true);
    }
    let (client, _) = pair.run();
    let held: usize = ids.iter().map(|&id| body(&client, id).0.len()).sum();
    assert!((150_000..=250_000).contains(&held), "{held}");
    let finished: Vec<u32> = ids
        .iter()
        .copied()
        .filter(|&id| body(&client, id).1)
        .collect();
    assert!(finished.len() > 1, "{finished:?}");
    let half = finished.len() / 2;
    for &id in &finished[..half] {
        pair.client.release(id, 30_000);
    }
    for &id in &finished[half..] {
        pair.client.reset(id, Reason::Cancel);
    }
    let (more, _) = pair.run();
    assert!(!more.is_empty(), "released and forgotten bytes make room");
}

#[test]
fn send_room_and_writable() {
    let mut config = client_config();
    config.stream_window = 10_000;
    let mut pair = Pair::with(config, server_config());
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    assert_eq!(pair.server.send_room(id), 65_536);
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, bytes(70_000), false);
    assert_eq!(pair.server.send_room(id), 0);
    let mut sent = 0;
    loop {
        let (client, server) = pair.run();
        sent += body(&client, id).0.len();
        if sent < 70_000 - 32_768 {
            assert!(server.is_empty(), "still more than half full");
        } else {
            assert!(matches!(server[..], [Event::Writable { .. }]));
            break;
        }
        pair.client.release(id, 10_000);
    }
}

#[test]
fn credit_rides_along() {
    let mut config = client_config();
    config.stream_window = 40_000;
    let mut pair = Pair::with(config, server_config());
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, bytes(30_000), false);
    pair.run();
    pair.client.release(id, 7_500);
    assert!(!pair.client.wants_output());
    pair.client.ping(1);
    let kinds: Vec<(u8, u32)> = parse(&output(&mut pair.client, 1000))
        .iter()
        .map(|f| (f.kind, f.id))
        .collect();
    assert_eq!(kinds, [(support::PING, 0), (support::WINDOW_UPDATE, id)]);
}
