//! Unread streams beside streams that are read: the memory of a session, and its
//! window of streams.

use tandem_http::{ByteMux, Event, Mux, MuxConfig, Role};

use super::NORMAL;
use crate::support::{Pair, SETTINGS, body, bytes, client_config, get, output, parse, response};

/// A client with room for eight stream windows.
fn small() -> MuxConfig {
    MuxConfig {
        stream_window: 256 << 10,
        session_window: 512 << 10,
        receive_budget: 2 << 20,
        max_streams: 32,
        ..client_config()
    }
}

fn joined() -> Pair {
    let server = MuxConfig {
        max_streams: 32,
        ..MuxConfig::new(Role::Server)
    };
    Pair::with(small(), server)
}

/// Requests `count` bodies of `size` bytes, and has the server send them.
fn download(pair: &mut Pair, count: usize, size: usize) -> Vec<u32> {
    let open = |pair: &mut Pair| pair.client.open(&get("/"), true, NORMAL).expect("room");
    let ids: Vec<u32> = (0..count).map(|_| open(pair)).collect();
    pair.run();
    for &id in &ids {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(size), true);
    }
    ids
}

/// Returns the number of bytes of data among events.
fn arrived(events: &[Event]) -> usize {
    let sizes = events.iter().map(|event| match event {
        Event::Data { data, .. } => data.len(),
        _ => 0,
    });
    sizes.sum()
}

/// Reads a stream as its bytes arrive. Returns the body, and all other events.
fn read(pair: &mut Pair, id: u32) -> (Vec<u8>, bool, Vec<Event>) {
    let (mut all, mut others) = (Vec::new(), Vec::new());
    loop {
        let (events, _) = pair.run();
        let (part, end) = body(&events, id);
        all.extend_from_slice(&part);
        others.extend(
            events
                .into_iter()
                .filter(|event| !matches!(event, Event::Data { id: other, .. } if *other == id)),
        );
        pair.client.release(id, part.len());
        if end || part.is_empty() {
            return (all, end, others);
        }
    }
}

#[test]
fn unread_streams_stop_no_others() {
    for together in [true, false] {
        let mut pair = joined();
        let (mut unread, mut held) = (Vec::new(), Vec::new());
        for _ in 0..if together { 1 } else { 31 } {
            let count = if together { 31 } else { 1 };
            unread.extend(download(&mut pair, count, 1 << 20));
            held.extend(pair.run().0);
        }
        assert!(arrived(&held) < 2 << 20, "{}", arrived(&held));
        for &id in &unread {
            assert!(body(&held, id).0.len() >= 16 << 10, "a least window");
        }
        let moving = download(&mut pair, 1, 3 << 20)[0];
        let (whole, end, more) = read(&mut pair, moving);
        assert!(whole == bytes(3 << 20) && end, "{}", whole.len());
        held.extend(more);
        assert!(arrived(&held) < 2 << 20, "{}", arrived(&held));
        // All are read in the end, and the window is as wide as at first.
        for &id in &unread {
            pair.client.release(id, body(&held, id).0.len());
        }
        loop {
            let (more, _) = pair.run();
            if more.is_empty() {
                break;
            }
            for event in &more {
                if let Event::Data { id, data, .. } = event {
                    pair.client.release(*id, data.len());
                }
            }
            held.extend(more);
        }
        for &id in &unread {
            assert!(body(&held, id) == (bytes(1 << 20).to_vec(), true));
        }
        let last = download(&mut pair, 1, 256 << 10)[0];
        let (events, _) = pair.run();
        assert_eq!(body(&events, last).0.len(), 256 << 10);
    }
}

#[test]
fn unreleased_streams_that_ended_stop_no_others() {
    let mut pair = joined();
    let mut held = Vec::new();
    for _ in 0..10 {
        download(&mut pair, 1, 256 << 10);
        held.extend(pair.run().0);
    }
    assert!(arrived(&held) > 1 << 20, "{}", arrived(&held));
    assert!(arrived(&held) < 2 << 20, "{}", arrived(&held));
    let moving = download(&mut pair, 1, 1 << 20)[0];
    let (whole, end, _) = read(&mut pair, moving);
    assert!(whole == bytes(1 << 20) && end, "{}", whole.len());
}

/// Returns the windows that the client announces while a stream is read as its bytes arrive.
fn announced_while_reading(pair: &mut Pair, id: u32) -> usize {
    let mut settings = 0;
    while pair.server.unsent(id).bytes > 0 {
        let out = output(&mut pair.client, 1 << 20);
        let frames = parse(&out);
        settings += frames
            .iter()
            .filter(|frame| frame.kind == SETTINGS && frame.flags == 0)
            .count();
        pair.server.handle_input(pair.now, &out).expect("frames");
        pair.step(Role::Server);
        while let Some(event) = pair.client.poll_event() {
            match event {
                Event::Data {
                    id: other, data, ..
                } if other == id => {
                    pair.client.release(id, data.len());
                }
                _ => {}
            }
        }
    }
    settings
}

#[test]
fn reader_near_a_limit_changes_the_window_once() {
    for (unread, windows) in [(0, 0), (2, 0), (3, 1)] {
        let mut pair = joined();
        download(&mut pair, unread, 256 << 10);
        pair.run();
        let moving = download(&mut pair, 1, 4 << 20)[0];
        assert_eq!(announced_while_reading(&mut pair, moving), windows);
    }
}

/// The credit of the stream was too little to be returned while the window was wide.
#[test]
fn stream_that_was_read_goes_on_in_a_smaller_window() {
    for first in [10, 30 << 10, 60 << 10, 250 << 10] {
        for unread in [3, 8, 30] {
            let mut pair = joined();
            let moving = pair.client.open(&get("/"), true, NORMAL).expect("room");
            pair.run();
            pair.server.respond(moving, &response(200, &[]), false);
            pair.server.send_data(moving, bytes(first), false);
            let (whole, _, _) = read(&mut pair, moving);
            assert_eq!(whole.len(), first);
            for _ in 0..unread {
                download(&mut pair, 1, 1 << 20);
                pair.run();
            }
            pair.server.send_data(moving, bytes(1 << 20), true);
            let (whole, end, _) = read(&mut pair, moving);
            assert!(end, "{first} {unread}: {}", whole.len());
        }
    }
}
