//! Tests of the windows of a server that widens each stream by WINDOW_UPDATE (RFC 9113 section
//! 6.9).

use std::time::Instant;

use tandem_http::h2::Connection;
use tandem_http::{ByteMux, Event, Mux, MuxConfig};

use crate::support::*;

const DEFAULT: usize = 65_535;
const WINDOW: u32 = 1 << 20;
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];

fn widening() -> MuxConfig {
    MuxConfig {
        stream_window: WINDOW,
        widens_streams: true,
        ..server_config()
    }
}

/// Returns the increments of the WINDOW_UPDATE frames for a stream.
fn increments(frames: &[Frame], id: u32) -> Vec<u32> {
    let of_stream = frames
        .iter()
        .filter(|frame| frame.kind == WINDOW_UPDATE && frame.id == id);
    let number = |frame: &Frame| {
        let payload = frame.payload[..].try_into().expect("four bytes");
        u32::from_be_bytes(payload)
    };
    of_stream.map(number).collect()
}

/// Firefox 153 keeps the default window for a tunnel that it opens before our SETTINGS.
#[test]
fn server_widens_each_request_with_a_body() {
    let mut raw = Raw::server(widening());
    raw.request(1, false).expect("headers");
    raw.request(3, true).expect("headers");
    let frames = raw.frames();
    let settings = frames.iter().find(|frame| frame.kind == SETTINGS);
    let (entries, _) = settings.expect("SETTINGS").payload.as_chunks::<6>();
    let window = entries
        .iter()
        .find(|entry| entry[..2] == INITIAL_WINDOW_SIZE);
    assert_eq!(window, Some(&[0, 4, 0, 0, 255, 255]));
    assert_eq!(increments(&frames, 1), [WINDOW - DEFAULT as u32]);
    assert!(increments(&frames, 3).is_empty(), "it has no body");
    let mut left = WINDOW as usize;
    while left > 0 {
        let chunk = left.min(16_384);
        raw.send(DATA, 0, 1, &vec![0; chunk]).expect("within it");
        left -= chunk;
    }
    assert!(raw.resets().is_empty());
    let received = raw.events().into_iter().map(|event| match event {
        Event::Data { data, .. } => data.len(),
        _ => 0,
    });
    assert_eq!(received.sum::<usize>(), WINDOW as usize);
    raw.send(DATA, 0, 1, b"x")
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(1, 3)], "beyond the window");
}

/// Firefox 153 loses what a proxy sends before its first request.
#[test]
fn server_is_silent_before_the_settings_of_the_client() {
    let mut core = Connection::new(widening());
    assert!(!core.wants_output());
    assert!(output(&mut core, 1 << 20).is_empty());
    let mut hello = PREFACE.to_vec();
    hello.extend(frame(SETTINGS, 0, 0, &[]));
    core.handle_input(Instant::now(), &hello).expect("a client");
    assert!(core.wants_output());
    let frames = parse(&output(&mut core, 1 << 20));
    let kinds: Vec<_> = frames.iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, [SETTINGS, WINDOW_UPDATE, SETTINGS]);
}

/// A window below the default is announced as it is.
#[test]
fn server_widens_no_window_below_the_default() {
    let mut raw = Raw::server(MuxConfig {
        stream_window: 20_000,
        ..widening()
    });
    raw.request(1, false).expect("headers");
    let frames = raw.frames();
    assert!(increments(&frames, 1).is_empty());
}
