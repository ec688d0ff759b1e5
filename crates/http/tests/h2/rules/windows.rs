//! Flow control (RFC 9113 sections 5.2 and 6.9): windows that a peer exceeds or changes.

use tandem_http::{Mux, MuxConfig, Reason};

use super::{FLOW_CONTROL, assert_fatal, server};
use crate::support::*;

#[test]
fn stream_windows_are_enforced() {
    let mut config = server_config();
    config.stream_window = 70_000;
    let mut raw = Raw::server(config);
    raw.frames();
    raw.request(1, false).expect("headers");
    for _ in 0..4 {
        raw.send(DATA, 0, 1, &[0; 16_384])
            .expect("within the window");
    }
    raw.send(DATA, 0, 1, &[0; 4_464])
        .expect("the last of the window");
    assert!(raw.resets().is_empty());
    raw.send(DATA, 0, 1, &[0])
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(1, FLOW_CONTROL)]);
}

#[test]
fn a_small_window_holds_from_the_acknowledgement_on() {
    let mut config = server_config();
    config.stream_window = 1000;
    let mut raw = Raw::server(config);
    raw.frames();
    raw.request(1, false).expect("headers");
    raw.send(DATA, 0, 1, &[0; 16_000])
        .expect("the peer may not know better");
    raw.send(SETTINGS, ACK, 0, &[]).expect("now it does");
    raw.request(3, false).expect("headers");
    raw.send(DATA, 0, 3, &[0; 1000]).expect("within the window");
    assert!(raw.resets().is_empty());
    raw.send(DATA, 0, 3, &[0; 1])
        .expect("only the stream is wrong");
    raw.send(DATA, 0, 1, &[0; 1])
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(3, FLOW_CONTROL), (1, FLOW_CONTROL)]);
}

#[test]
fn the_session_window_is_enforced() {
    let mut config = server_config();
    (config.session_window, config.receive_budget) = (65_535, 0);
    let mut raw = Raw::server(config);
    raw.frames();
    raw.request(1, false).expect("headers");
    for _ in 0..3 {
        raw.send(DATA, 0, 1, &[0; 16_384])
            .expect("within the window");
    }
    raw.send(DATA, 0, 1, &[0; 16_383])
        .expect("the last of the window");
    assert_fatal(&mut raw, DATA, 0, 1, &[0], Reason::FlowControl);
}

#[test]
fn an_initial_window_that_overflows_ends_the_session() {
    let mut raw = server();
    raw.request(1, true).expect("headers");
    raw.send(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0, 0])
        .expect("just below the limit");
    assert_fatal(
        &mut raw,
        SETTINGS,
        0,
        0,
        &[0, 4, 0x7f, 0, 0, 0],
        Reason::FlowControl,
    );
}

#[test]
fn shrinking_the_initial_window_holds_data_back() {
    let mut raw = server();
    raw.request(1, true).expect("headers");
    raw.core.respond(1, &response(200, &[]), false);
    raw.core.send_data(1, bytes(50_000), true);
    raw.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])
        .expect("a window of nothing");
    let kinds: Vec<u8> = raw.frames().iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [HEADERS, SETTINGS], "no empty DATA either");
    assert!(!raw.core.wants_output());
    raw.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0x75, 0x30])
        .expect("30,000");
    let sent: usize = raw.frames_of(DATA).iter().map(|f| f.payload.len()).sum();
    assert_eq!(sent, 30_000);
    raw.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])
        .expect("30,000 below nothing");
    raw.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0x75, 0x30])
        .expect("back to nothing");
    assert!(raw.frames_of(DATA).is_empty());
    raw.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0x75, 0x30])
        .expect("30,000");
    let frames = raw.frames_of(DATA);
    assert_eq!(
        frames.iter().map(|f| f.payload.len()).sum::<usize>(),
        20_000
    );
    assert_eq!(frames.last().map(|f| f.flags), Some(END_STREAM));
}

fn small() -> MuxConfig {
    let mut config = server_config();
    (config.stream_window, config.session_window) = (64 << 10, 128 << 10);
    config.receive_budget = 512 << 10;
    config
}

fn send_chunks(raw: &mut Raw, id: u32, count: usize) {
    for _ in 0..count {
        raw.send(DATA, 0, id, &[0; 16 << 10]).expect("data");
    }
}

/// Firefox 153 keeps the window of a tunnel that it opened before our SETTINGS.
#[test]
fn peer_may_keep_an_older_and_wider_window() {
    let mut raw = Raw::server(small());
    raw.frames();
    raw.send(SETTINGS, ACK, 0, &[]).expect("an acknowledgement");
    for id in [1, 3, 5, 7] {
        raw.request(id, false).expect("headers");
    }
    for id in [1, 3, 5] {
        send_chunks(&mut raw, id, 4);
    }
    assert!(raw.frames_of(SETTINGS).is_empty());
    send_chunks(&mut raw, 7, 1);
    let announced = raw.frames_of(SETTINGS);
    assert_eq!(announced.len(), 1, "a smaller window");
    assert_eq!(announced[0].payload, [0, 4, 0, 0, 0x80, 0]);
    send_chunks(&mut raw, 7, 2);
    raw.send(SETTINGS, ACK, 0, &[]).expect("an acknowledgement");
    send_chunks(&mut raw, 7, 1);
    assert!(raw.resets().is_empty());
    raw.send(DATA, 0, 7, &[0])
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(7, FLOW_CONTROL)]);
}

#[test]
fn window_grows_only_after_acknowledgements() {
    let mut raw = Raw::server(small());
    raw.frames();
    let mut told = 0;
    for round in 0..20 {
        let ids: Vec<u32> = (0..6).map(|number| 12 * round + 2 * number + 1).collect();
        for &id in &ids {
            raw.request(id, false).expect("headers");
            send_chunks(&mut raw, id, 3);
            told += raw.frames_of(SETTINGS).len();
        }
        for id in ids {
            raw.core.reset(id, Reason::Cancel);
        }
    }
    assert_eq!(told, 2, "to the half, and to the least");
    for _ in 0..3 {
        assert!(raw.frames_of(SETTINGS).is_empty());
        raw.send(SETTINGS, ACK, 0, &[]).expect("an acknowledgement");
    }
    let announced = raw.frames_of(SETTINGS);
    assert_eq!(announced.len(), 1);
    assert_eq!(announced[0].payload, [0, 4, 0, 1, 0, 0], "all of it");
}
