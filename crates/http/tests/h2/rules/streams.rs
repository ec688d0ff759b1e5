//! States of streams (RFC 9113 section 5.1): numbers, resets, limits, pushes and GOAWAY.

use bytes::Bytes;
use tandem_http::mux::OpenError;
use tandem_http::{Event, Mux, Priority, Reason};

use super::{
    CANCEL, FLOW_CONTROL, GET, PROTOCOL, REFUSED, STREAM_CLOSED, client, get_with, server,
};
use crate::support::*;

#[test]
fn stream_errors() {
    let mut raw = server();
    raw.request(1, false).expect("headers");
    raw.send(WINDOW_UPDATE, 0, 1, &[0; 4])
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(1, PROTOCOL)]);
    raw.request(3, false).expect("headers");
    raw.send(WINDOW_UPDATE, 0, 3, &[0x7f, 255, 255, 255])
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(3, FLOW_CONTROL)]);
    raw.request(5, true).expect("headers");
    raw.send(DATA, 0, 5, b"x")
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(5, STREAM_CLOSED)]);
    raw.request(7, true).expect("headers");
    raw.headers(7, true, &[("x", "1")])
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(7, STREAM_CLOSED)]);
    let reset: Vec<u32> = raw
        .events()
        .iter()
        .filter_map(|e| {
            if let Event::Reset { id, .. } = e {
                Some(*id)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(reset, [1, 3, 5, 7]);
}

#[test]
fn stream_numbers_only_grow() {
    // Identifiers that were skipped, are in use by a finished request, or were reset by the peer.
    for (id, ended) in [(3, true), (5, true), (5, false)] {
        let mut raw = server();
        raw.request(5, ended).expect("headers");
        if ended {
            raw.core.respond(5, &response(200, &[]), true);
        } else {
            raw.send(RST_STREAM, 0, 5, &[0; 4]).expect("a reset");
        }
        raw.frames();
        let error = raw.request(id, true).expect_err("a session error");
        assert_eq!(error.reason, Reason::Protocol, "{id}");
        assert_eq!(raw.frames().last().map(|frame| frame.kind), Some(GOAWAY));
    }
}

#[test]
fn late_headers_of_reset_streams_are_no_error() {
    let mut raw = server();
    for number in 0..1100 {
        raw.request(2 * number + 1, false).expect("headers");
        raw.core.reset(2 * number + 1, Reason::Cancel);
    }
    raw.events();
    raw.frames();
    for id in [1, 2199] {
        raw.headers(id, true, &[("x", "late trailers")])
            .expect("headers on their way");
    }
    assert_eq!(raw.resets(), [(1, STREAM_CLOSED)], "only what is forgotten");
    assert!(raw.events().is_empty());
}

#[test]
fn frames_in_flight_after_reset_are_only_credited() {
    let mut config = server_config();
    (config.session_window, config.receive_budget) = (65_535, 0);
    let mut raw = Raw::server(config);
    raw.frames();
    raw.request(1, false).expect("headers");
    raw.core.reset(1, Reason::Cancel);
    assert_eq!(raw.resets(), [(1, CANCEL)]);
    raw.events();
    for _ in 0..2 {
        raw.send(DATA, 0, 1, &[0; 16_384]).expect("late data");
    }
    raw.headers(1, true, &[("x", "late trailers")])
        .expect("late trailers");
    raw.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])
        .expect("late credit");
    raw.send(RST_STREAM, 0, 1, &[0; 4]).expect("a late reset");
    let credit = |frame: Frame| {
        assert_eq!((frame.kind, frame.id), (WINDOW_UPDATE, 0));
        u32::from_be_bytes(frame.payload[..].try_into().expect("four bytes"))
    };
    assert_eq!(raw.frames().into_iter().map(credit).sum::<u32>(), 32_768);
    assert!(raw.events().is_empty());
    raw.headers(3, true, &get_with(&[("x", "late trailers")]))
        .expect("compression is in step");
    assert!(
        matches!(&raw.events()[..], [Event::Request { head, .. }] if head.fields.contains("x"))
    );
}

#[test]
fn a_reset_is_never_answered_with_one() {
    let mut raw = server();
    raw.request(1, false).expect("headers");
    raw.send(RST_STREAM, 0, 1, &[0, 0, 0, 8]).expect("a reset");
    assert!(matches!(
        raw.events().last(),
        Some(Event::Reset {
            id: 1,
            reason: Reason::Cancel
        })
    ));
    raw.core.reset(1, Reason::Internal);
    raw.core.respond(1, &response(200, &[]), true);
    raw.core.send_data(1, Bytes::from_static(b"x"), true);
    assert!(
        raw.frames().iter().all(|f| f.kind == SETTINGS),
        "nothing is said on it any more"
    );
}

#[test]
fn too_many_streams_are_refused() {
    let mut config = server_config();
    config.max_streams = 2;
    let mut raw = Raw::server(config);
    raw.frames();
    raw.events();
    for id in [1, 3, 5] {
        raw.request(id, true).expect("headers");
    }
    assert_eq!(raw.resets(), [(5, REFUSED)]);
    assert_eq!(raw.events().len(), 2);
}

#[test]
fn pushes_are_checked() {
    let mut config = client_config();
    (config.push, config.max_streams) = (true, 1);
    let mut raw = Raw::client(config);
    raw.core
        .open(&get("/"), true, Priority(3))
        .expect("a stream");
    raw.frames();
    raw.events();
    let promise = |raw: &mut Raw, parent: u32, id: u32, fields: &[(&str, &str)]| {
        let payload = [&id.to_be_bytes()[..], &raw.block(fields)].concat();
        raw.send(PUSH_PROMISE, END_HEADERS, parent, &payload)
    };
    promise(
        &mut raw,
        1,
        2,
        &[(":method", "POST"), GET[1], GET[2], GET[3]],
    )
    .expect("only the push is wrong");
    assert_eq!(raw.resets(), [(2, PROTOCOL)]);
    promise(&mut raw, 1, 4, &GET[1..]).expect("only the push is wrong");
    assert_eq!(raw.resets(), [(4, PROTOCOL)]);
    promise(&mut raw, 1, 6, &GET).expect("a push");
    promise(&mut raw, 1, 8, &GET).expect("one too many");
    assert_eq!(raw.resets(), [(8, REFUSED)]);
    assert!(matches!(raw.events()[..], [Event::Push { id: 6, .. }]));
    raw.core.reset(1, Reason::Cancel);
    raw.frames();
    promise(&mut raw, 1, 10, &GET).expect("its parent was reset");
    assert_eq!(raw.resets(), [(10, CANCEL)]);
    for (parent, id) in [(3, 12), (1, 11), (1, 6), (1, 0)] {
        let mut config = client_config();
        config.push = true;
        let mut raw = Raw::client(config);
        raw.core
            .open(&get("/"), true, Priority(3))
            .expect("a stream");
        promise(&mut raw, 1, 6, &GET).expect("a push");
        assert_eq!(
            promise(&mut raw, parent, id, &GET)
                .expect_err("a session error")
                .reason,
            Reason::Protocol
        );
    }
    let mut raw = client(&get("/"));
    assert_eq!(
        promise(&mut raw, 1, 2, &GET)
            .expect_err("pushes are off")
            .reason,
        Reason::Protocol
    );
}

#[test]
fn a_goaway_only_ever_lowers_its_promise() {
    let mut raw = Raw::client(client_config());
    for _ in 0..3 {
        raw.core
            .open(&get("/"), true, Priority(3))
            .expect("a stream");
    }
    raw.events();
    let goaway = |last: u32| [last.to_be_bytes(), [0; 4]].concat();
    raw.send(GOAWAY, 0, 0, &goaway(0x7fff_ffff))
        .expect("a warning");
    assert!(matches!(
        raw.events()[..],
        [Event::GoAway {
            last: 0x7fff_ffff,
            reason: Reason::NoError
        }]
    ));
    assert_eq!(
        raw.core.open(&get("/"), true, Priority(3)),
        Err(OpenError::Closing)
    );
    raw.send(GOAWAY, 0, 0, &goaway(3)).expect("the word");
    assert!(matches!(
        raw.events()[..],
        [
            Event::GoAway { last: 3, .. },
            Event::Reset {
                id: 5,
                reason: Reason::Refused
            }
        ]
    ));
    raw.send(GOAWAY, 0, 0, &goaway(5))
        .expect("no more than before");
    assert!(matches!(raw.events()[..], [Event::GoAway { last: 3, .. }]));
    assert_eq!(raw.core.active(), 2);
}

#[test]
fn a_decompression_bomb_is_one_refused_stream() {
    let mut raw = server();
    let value = "v".repeat(3000);
    let block = raw.block(&get_with(&[]));
    raw.send(HEADERS, END_HEADERS | END_STREAM, 1, &block)
        .expect("a request");
    let mut bomb = block;
    bomb.extend([0x40, 1, b'x', 0x7f, 0xb9, 0x16]);
    bomb.extend(value.as_bytes());
    bomb.extend(std::iter::repeat_n(0xbe, 10_000));
    raw.frames();
    raw.events();
    raw.send(HEADERS, END_HEADERS | END_STREAM, 3, &bomb)
        .expect("30 MB in 13 kB");
    assert!(raw.events().is_empty());
    let frames = raw.frames_of(HEADERS);
    assert_eq!(
        raw.decode(&frames[0].payload),
        [(":status".to_owned(), "431".to_owned())]
    );
}
