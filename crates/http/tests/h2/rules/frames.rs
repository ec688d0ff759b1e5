//! Prefaces, frames and header blocks (RFC 9113 sections 3.4, 4 and 6), and arbitrary input.

use proptest::prelude::*;
use tandem_http::{Event, Mux, Priority, Reason};

use super::{GET, assert_fatal, server};
use crate::support::*;

#[test]
fn prefaces() {
    let mut raw = Raw::bare(server_config());
    assert_eq!(
        raw.input(b"GET / HTTP/1.1\r\n")
            .expect_err("no preface")
            .reason,
        Reason::Protocol
    );
    assert_eq!(raw.frames().last().map(|f| f.kind), Some(GOAWAY));
    let mut raw = Raw::bare(server_config());
    raw.input(PREFACE).expect("the preface");
    assert_fatal(&mut raw, PING, 0, 0, &[0; 8], Reason::Protocol);
    let mut raw = Raw::bare(client_config());
    assert_fatal(&mut raw, SETTINGS, ACK, 0, &[], Reason::Protocol);
}

#[test]
fn frames_that_end_the_session() {
    let setting = |name: u16, value: u32| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    type Case = (&'static str, u8, u8, u32, Vec<u8>, Reason);
    let cases: Vec<Case> = vec![
        ("DATA on 0", DATA, 0, 0, vec![0], Reason::Protocol),
        ("DATA on idle", DATA, 0, 9, vec![0], Reason::Protocol),
        (
            "DATA on an idle push",
            DATA,
            0,
            2,
            vec![0],
            Reason::Protocol,
        ),
        (
            "DATA with too much padding",
            DATA,
            PADDED,
            1,
            vec![1],
            Reason::Protocol,
        ),
        (
            "DATA without the pad length",
            DATA,
            PADDED,
            1,
            vec![],
            Reason::FrameSize,
        ),
        (
            "HEADERS on 0",
            HEADERS,
            END_HEADERS,
            0,
            vec![0x82],
            Reason::Protocol,
        ),
        (
            "HEADERS on a push",
            HEADERS,
            END_HEADERS,
            2,
            vec![0x82],
            Reason::Protocol,
        ),
        (
            "HEADERS with too much padding",
            HEADERS,
            END_HEADERS | PADDED,
            3,
            vec![9, 0x82],
            Reason::Protocol,
        ),
        (
            "HEADERS cut before the priority",
            HEADERS,
            END_HEADERS | 0x20,
            3,
            vec![0; 4],
            Reason::FrameSize,
        ),
        (
            "a bad header block",
            HEADERS,
            END_HEADERS,
            3,
            vec![0xff],
            Reason::Compression,
        ),
        (
            "PRIORITY on 0",
            PRIORITY,
            0,
            0,
            vec![0; 5],
            Reason::Protocol,
        ),
        (
            "PRIORITY of four bytes",
            PRIORITY,
            0,
            1,
            vec![0; 4],
            Reason::FrameSize,
        ),
        (
            "RST_STREAM on 0",
            RST_STREAM,
            0,
            0,
            vec![0; 4],
            Reason::Protocol,
        ),
        (
            "RST_STREAM on idle",
            RST_STREAM,
            0,
            9,
            vec![0; 4],
            Reason::Protocol,
        ),
        (
            "RST_STREAM of three bytes",
            RST_STREAM,
            0,
            1,
            vec![0; 3],
            Reason::FrameSize,
        ),
        (
            "SETTINGS on a stream",
            SETTINGS,
            0,
            1,
            vec![],
            Reason::Protocol,
        ),
        (
            "SETTINGS of five bytes",
            SETTINGS,
            0,
            0,
            vec![0; 5],
            Reason::FrameSize,
        ),
        (
            "an acknowledgement with settings",
            SETTINGS,
            ACK,
            0,
            vec![0; 6],
            Reason::FrameSize,
        ),
        (
            "ENABLE_PUSH of 2",
            SETTINGS,
            0,
            0,
            setting(2, 2),
            Reason::Protocol,
        ),
        (
            "a window over 2^31-1",
            SETTINGS,
            0,
            0,
            setting(4, 1 << 31),
            Reason::FlowControl,
        ),
        (
            "frames under 16,384",
            SETTINGS,
            0,
            0,
            setting(5, 16_383),
            Reason::Protocol,
        ),
        (
            "frames over 2^24-1",
            SETTINGS,
            0,
            0,
            setting(5, 1 << 24),
            Reason::Protocol,
        ),
        (
            "CONNECT_PROTOCOL of 2",
            SETTINGS,
            0,
            0,
            setting(8, 2),
            Reason::Protocol,
        ),
        (
            "NO_RFC7540_PRIORITIES of 2",
            SETTINGS,
            0,
            0,
            setting(9, 2),
            Reason::Protocol,
        ),
        (
            "PUSH_PROMISE to a server",
            PUSH_PROMISE,
            END_HEADERS,
            1,
            vec![0, 0, 0, 2, 0x82],
            Reason::Protocol,
        ),
        ("PING on a stream", PING, 0, 1, vec![0; 8], Reason::Protocol),
        (
            "PING of seven bytes",
            PING,
            0,
            0,
            vec![0; 7],
            Reason::FrameSize,
        ),
        (
            "GOAWAY on a stream",
            GOAWAY,
            0,
            1,
            vec![0; 8],
            Reason::Protocol,
        ),
        (
            "GOAWAY of seven bytes",
            GOAWAY,
            0,
            0,
            vec![0; 7],
            Reason::FrameSize,
        ),
        (
            "WINDOW_UPDATE of nothing",
            WINDOW_UPDATE,
            0,
            0,
            vec![0; 4],
            Reason::Protocol,
        ),
        (
            "WINDOW_UPDATE of three bytes",
            WINDOW_UPDATE,
            0,
            0,
            vec![0; 3],
            Reason::FrameSize,
        ),
        (
            "WINDOW_UPDATE on idle",
            WINDOW_UPDATE,
            0,
            9,
            vec![0, 0, 0, 1],
            Reason::Protocol,
        ),
        (
            "session window over 2^31-1",
            WINDOW_UPDATE,
            0,
            0,
            vec![0x7f, 255, 255, 255],
            Reason::FlowControl,
        ),
        (
            "CONTINUATION of nothing",
            CONTINUATION,
            END_HEADERS,
            1,
            vec![0x82],
            Reason::Protocol,
        ),
        (
            "PRIORITY_UPDATE on a stream",
            PRIORITY_UPDATE,
            0,
            1,
            b"\0\0\0\x01u=1".to_vec(),
            Reason::Protocol,
        ),
        (
            "PRIORITY_UPDATE of 0",
            PRIORITY_UPDATE,
            0,
            0,
            b"\0\0\0\0u=1".to_vec(),
            Reason::Protocol,
        ),
        (
            "a frame too large",
            0x77,
            0,
            0,
            vec![0; 16_385],
            Reason::FrameSize,
        ),
    ];
    for (what, kind, flags, id, payload, reason) in cases {
        let mut raw = server();
        raw.request(1, false).expect(what);
        assert_fatal(&mut raw, kind, flags, id, &payload, reason);
    }
}

#[test]
fn settings_that_only_a_server_gets_wrong() {
    for payload in [[0, 2, 0, 0, 0, 1], [0, 2, 0, 0, 0, 3]] {
        let mut raw = Raw::bare(client_config());
        assert_fatal(&mut raw, SETTINGS, 0, 0, &payload, Reason::Protocol);
    }
    let mut raw = Raw::bare(client_config());
    raw.send(SETTINGS, 0, 0, &[0, 8, 0, 0, 0, 1])
        .expect("extended CONNECT");
    assert_eq!(raw.core.peer_extended_connect(), Some(true));
    assert_fatal(
        &mut raw,
        SETTINGS,
        0,
        0,
        &[0, 8, 0, 0, 0, 0],
        Reason::Protocol,
    );
}

#[test]
fn nothing_comes_between_the_parts_of_a_header_block() {
    for (kind, id, payload) in [
        (PING, 0, &[0; 8][..]),
        (CONTINUATION, 3, &[0x84]),
        (HEADERS, 1, &[0x84]),
        (0x77, 0, &[]),
    ] {
        let mut raw = server();
        raw.send(HEADERS, 0, 1, &[0x82]).expect("a part");
        assert_fatal(&mut raw, kind, END_HEADERS, id, payload, Reason::Protocol);
    }
}

#[test]
fn header_blocks_in_parts_and_padded() {
    let mut raw = server();
    let block = raw.block(&GET);
    let (first, rest) = block.split_at(2);
    let padded = [&[3, 0x80, 0, 0, 9, 7][..], first, &[0; 3]].concat();
    raw.send(HEADERS, END_STREAM | PADDED | 0x20, 1, &padded)
        .expect("a part");
    for byte in rest {
        raw.send(CONTINUATION, 0, 1, &[*byte]).expect("a part");
    }
    raw.send(CONTINUATION, END_HEADERS, 1, &[])
        .expect("the end");
    assert!(
        matches!(&raw.events()[..], [Event::Request { id: 1, head, end: true, .. }] if head.authority == "a.example")
    );
}

#[test]
fn unknown_frames_and_settings_are_ignored() {
    let mut raw = server();
    raw.send(0x77, 0xff, 5, b"grease").expect("ignored");
    raw.send(SETTINGS, 0, 0, &[0x0a, 0x0a, 1, 2, 3, 4])
        .expect("ignored");
    raw.request(1, true).expect("headers");
    assert_eq!(raw.events().len(), 1);
}

#[test]
fn errors_are_told_once_and_nothing_after() {
    let mut raw = server();
    raw.request(1, true).expect("headers");
    raw.core.respond(1, &response(200, &[]), false);
    raw.core.send_data(1, bytes(100_000), true);
    raw.send(DATA, 0, 0, &[]).expect_err("a session error");
    let kinds: Vec<u8> = raw.frames().iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [HEADERS, GOAWAY]);
    raw.core.go_away(Reason::NoError);
    raw.core.send_data(1, bytes(10), true);
    raw.core.ping(1);
    assert!(raw.frames().is_empty());
}

/// Frames that are nearly right.
pub(super) fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        Just(vec![0x82, 0x87, 0x84, 0x41, 0x01, b'a']),
        Just(vec![0x88]),
        Just(vec![0, 0, 0, 2, 0x82, 0x87, 0x84, 0x41, 0x01, b'a']),
        Just(vec![0, 4, 0, 0, 1, 0]),
        (0u32..100_000).prop_map(|n| n.to_be_bytes().to_vec()),
    ];
    (
        0u8..18,
        prop::sample::select(vec![0, 1, 4, 5, 8, 0x2d, 0xff]),
        0u32..8,
        payload,
    )
        .prop_map(|(kind, flags, id, payload)| frame(kind, flags, id, &payload))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// No input and no command at any time makes a core panic, and its output is well formed.
    #[test]
    fn nothing_panics(
        as_server: bool,
        input in prop::collection::vec(frames(), 0..60),
        commands in prop::collection::vec((0u8..12, 0u32..8), 0..60),
        cut in 1usize..200,
    ) {
        let mut config = if as_server { server_config() } else { client_config() };
        (config.push, config.stream_window, config.session_window, config.receive_budget) = (true, 3000, 70_000, 5000);
        let mut raw = if as_server { Raw::server(config) } else { Raw::client(config) };
        let wire = input.concat();
        let mut commands = commands.into_iter();
        for part in wire.chunks(cut) {
            let alive = raw.input(part).is_ok();
            let core = &mut raw.core;
            if let Some((what, id)) = commands.next() {
                match what {
                    0 => drop(core.open(&get("/"), id % 2 == 0, Priority(id as u8))),
                    1 => core.respond(id, &response(200, &[]), id == 3),
                    2 => core.send_data(id, bytes(3000 * id as usize), id == 5),
                    3 => core.send_trailers(id, &fields(&[("x", "y")])),
                    4 => core.reset(id, Reason::Cancel),
                    5 => core.release(id, 1000 * id as usize),
                    6 => core.set_priority(id, Priority(id as u8)),
                    7 => core.inform(id, &response(103, &[])),
                    8 => drop(core.push(id, &get("/"), Priority(2))),
                    9 => {
 core.ping(id);
 }
                    10 => core.go_away(Reason::NoError),
                    _ => {}
                }
                prop_assert!(core.send_room(id) <= 65_536);
            }
            raw.events();
            for frame in raw.frames() {
                prop_assert!(frame.payload.len() <= 16_384 && frame.kind <= PRIORITY_UPDATE);
            }
            if !alive {
                break;
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(as_server: bool, parts: Vec<Vec<u8>>) {
        let mut raw = if as_server { Raw::server(server_config()) } else { Raw::client(client_config()) };
        for part in parts {
            if raw.input(&part).is_err() {
                break;
            }
        }
        raw.frames();
    }
}
