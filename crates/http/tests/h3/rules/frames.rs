//! Streams and frames (RFC 9114 sections 6 and 7) that are out of place or unknown.

use tandem_http::h3::Code;
use tandem_http::{Method, Mux, Priority};

use super::{assert_fatal, client, server};
use crate::support::*;

#[test]
fn h3_control_stream_rules_end_the_session() {
    let settings = |entries: &[u8]| [&[0][..], &frame(SETTINGS, entries)].concat();
    let after = |bytes: Vec<u8>| [settings(&[]), bytes].concat();
    let cases: Vec<(&str, Vec<u8>, Code)> = vec![
        (
            "no settings",
            [&[0][..], &numbered(GOAWAY, 0, &[])].concat(),
            Code::MISSING_SETTINGS,
        ),
        (
            "unknown frame first",
            [&[0][..], &frame(0x21, &[])].concat(),
            Code::MISSING_SETTINGS,
        ),
        (
            "settings twice",
            after(frame(SETTINGS, &[])),
            Code::FRAME_UNEXPECTED,
        ),
        (
            "setting twice",
            settings(&[6, 1, 6, 1]),
            Code::SETTINGS_ERROR,
        ),
        ("setting of http/2", settings(&[2, 0]), Code::SETTINGS_ERROR),
        (
            "another setting of http/2",
            settings(&[5, 0]),
            Code::SETTINGS_ERROR,
        ),
        ("not a boolean", settings(&[8, 2]), Code::SETTINGS_ERROR),
        (
            "datagrams are not a boolean",
            settings(&[0x33, 2]),
            Code::SETTINGS_ERROR,
        ),
        ("settings cut short", settings(&[6]), Code::FRAME_ERROR),
        ("data", after(frame(DATA, b"x")), Code::FRAME_UNEXPECTED),
        ("headers", after(headers(&GET)), Code::FRAME_UNEXPECTED),
        (
            "promise",
            after(numbered(PUSH_PROMISE, 0, &section(&GET))),
            Code::FRAME_UNEXPECTED,
        ),
        (
            "ping of http/2",
            after(frame(6, &[])),
            Code::FRAME_UNEXPECTED,
        ),
        (
            "long goaway",
            after(numbered(GOAWAY, 0, &[0])),
            Code::FRAME_ERROR,
        ),
        ("empty goaway", after(frame(GOAWAY, &[])), Code::FRAME_ERROR),
        (
            "goaway rises",
            after([numbered(GOAWAY, 4, &[]), numbered(GOAWAY, 8, &[])].concat()),
            Code::ID_ERROR,
        ),
        (
            "large goaway",
            after([&[7, 0x80, 1, 0, 0][..]].concat()),
            Code::EXCESSIVE_LOAD,
        ),
        ("control twice", vec![], Code::STREAM_CREATION_ERROR),
    ];
    for (case, bytes, code) in &cases {
        for config in [server_config(), client_config()] {
            let mut raw = Raw::bare(config);
            let control = raw.uni(0);
            let result = if bytes.is_empty() {
                raw.send(control, &settings(&[])).expect("settings");
                raw.send(raw.uni(5), &[0])
            } else {
                raw.send(control, bytes)
            };
            assert_fatal(raw, result, *code, case);
        }
    }
}

#[test]
fn h3_control_frames_are_checked_by_role() {
    let cases: Vec<(&str, bool, Vec<u8>, Code)> = vec![
        (
            "max push id at a client",
            false,
            numbered(MAX_PUSH_ID, 1, &[]),
            Code::FRAME_UNEXPECTED,
        ),
        (
            "priority at a client",
            false,
            numbered(PRIORITY_REQUEST, 0, b"u=1"),
            Code::FRAME_UNEXPECTED,
        ),
        (
            "goaway of no request",
            false,
            numbered(GOAWAY, 3, &[]),
            Code::ID_ERROR,
        ),
        (
            "cancels no push",
            false,
            numbered(CANCEL_PUSH, 256, &[]),
            Code::ID_ERROR,
        ),
        (
            "cancels an unpromised push",
            true,
            numbered(CANCEL_PUSH, 0, &[]),
            Code::ID_ERROR,
        ),
        (
            "max push id falls",
            true,
            [numbered(MAX_PUSH_ID, 9, &[]), numbered(MAX_PUSH_ID, 8, &[])].concat(),
            Code::ID_ERROR,
        ),
        (
            "priority of a push stream",
            true,
            numbered(PRIORITY_REQUEST, 3, b"u=1"),
            Code::ID_ERROR,
        ),
        (
            "priority of no push",
            true,
            numbered(PRIORITY_PUSH, 0, b"u=1"),
            Code::ID_ERROR,
        ),
        (
            "empty priority",
            true,
            frame(PRIORITY_PUSH, &[]),
            Code::FRAME_ERROR,
        ),
    ];
    for (case, at_server, bytes, code) in cases {
        let mut raw = if at_server { server() } else { client() };
        let result = raw.control(&bytes);
        assert_fatal(raw, result, code, case);
    }
}

#[test]
fn h3_message_frames_out_of_place_end_the_session() {
    let post = headers(&POST);
    let cases: Vec<(&str, Vec<u8>, bool, Code)> = vec![
        (
            "data first",
            frame(DATA, b"x"),
            false,
            Code::FRAME_UNEXPECTED,
        ),
        (
            "settings",
            frame(SETTINGS, &[]),
            false,
            Code::FRAME_UNEXPECTED,
        ),
        (
            "goaway",
            [post.clone(), numbered(GOAWAY, 0, &[])].concat(),
            false,
            Code::FRAME_UNEXPECTED,
        ),
        (
            "promise of a client",
            [post.clone(), numbered(PUSH_PROMISE, 0, &section(&GET))].concat(),
            false,
            Code::FRAME_UNEXPECTED,
        ),
        (
            "window update of http/2",
            frame(8, &[]),
            false,
            Code::FRAME_UNEXPECTED,
        ),
        (
            "headers after trailers",
            [
                post.clone(),
                headers(&[("x-a", "b")]),
                headers(&[("x-a", "b")]),
            ]
            .concat(),
            false,
            Code::FRAME_UNEXPECTED,
        ),
        (
            "data after trailers",
            [post.clone(), headers(&[("x-a", "b")]), frame(DATA, b"x")].concat(),
            false,
            Code::FRAME_UNEXPECTED,
        ),
        ("ends in a head", vec![1], true, Code::FRAME_ERROR),
        (
            "ends in a payload",
            [post.clone(), vec![0, 9, 1]].concat(),
            true,
            Code::FRAME_ERROR,
        ),
        (
            "bad section",
            frame(HEADERS, &[0, 0, 0xff, 0x24]),
            false,
            Code::QPACK_DECOMPRESSION_FAILED,
        ),
        (
            "unknown entry",
            frame(HEADERS, &[0xff, 0x2d, 0, 0x80]),
            false,
            Code::QPACK_DECOMPRESSION_FAILED,
        ),
        (
            "huge section",
            vec![1, 0x80, 4, 0, 0],
            false,
            Code::EXCESSIVE_LOAD,
        ),
    ];
    for (case, bytes, end, code) in cases {
        let mut raw = server();
        let result = raw.part(0, &bytes, end);
        assert_fatal(raw, result, code, case);
    }
}

#[test]
fn h3_tunnel_has_only_content() {
    let connect = [(":method", "CONNECT"), (":authority", "a.example:443")];
    let trailers = headers(&[("x-a", "b")]);
    let mut raw = server();
    raw.send(0, &headers(&connect)).expect("a tunnel");
    raw.send(0, &frame(DATA, b"x")).expect("its content");
    let result = raw.send(0, &trailers);
    assert_fatal(raw, result, Code::FRAME_UNEXPECTED, "trailers of a tunnel");
    for (status, fatal) in [("200", true), ("502", false)] {
        let mut raw = Raw::new(client_config());
        let mut head = get("");
        (head.method, head.path) = (Method::Connect, String::new());
        raw.end
            .core
            .open(&head, false, Priority(3))
            .expect("room for a request");
        raw.end.drive();
        raw.send(0, &headers(&[(":status", status)]))
            .expect("a response");
        let result = raw.send(0, &trailers);
        if fatal {
            assert_fatal(raw, result, Code::FRAME_UNEXPECTED, "trailers of a tunnel");
        } else {
            assert_eq!(result, Ok(()), "an error page may have trailers");
        }
    }
}

#[test]
fn h3_streams_out_of_place_end_the_session() {
    let mut raw = server();
    let result = raw.send(raw.uni(3), &[1, 0]);
    assert_fatal(
        raw,
        result,
        Code::STREAM_CREATION_ERROR,
        "push stream of a client",
    );
    let mut raw = client();
    let result = raw.send(1, &headers(&GET));
    assert_fatal(
        raw,
        result,
        Code::STREAM_CREATION_ERROR,
        "request of a server",
    );
    for (kind, code) in [
        (2, Code::QPACK_ENCODER_STREAM_ERROR),
        (3, Code::QPACK_DECODER_STREAM_ERROR),
    ] {
        let mut raw = server();
        let result = raw.send(raw.uni(3), &[kind, 0x00, 0xff, 0xff]);
        assert_fatal(raw, result, code, "bad QPACK instruction");
        let mut raw = server();
        raw.send(raw.uni(3), &[kind]).expect("a first stream");
        let result = raw.send(raw.uni(4), &[kind]);
        assert_fatal(
            raw,
            result,
            Code::STREAM_CREATION_ERROR,
            "second QPACK stream",
        );
        let mut raw = server();
        let result = raw.part(raw.uni(3), &[kind], true);
        assert_fatal(
            raw,
            result,
            Code::CLOSED_CRITICAL_STREAM,
            "QPACK stream ends",
        );
    }
    let mut raw = server();
    let control = raw.uni(0);
    let result = raw.part(control, &[], true);
    assert_fatal(raw, result, Code::CLOSED_CRITICAL_STREAM, "control ends");
    let mut raw = server();
    let control = raw.uni(0);
    let result = raw.end.core.handle_reset(raw.now, control, Code::NO_ERROR);
    assert_fatal(
        raw,
        result,
        Code::CLOSED_CRITICAL_STREAM,
        "control is reset",
    );
    let mut raw = server();
    raw.end.drive();
    let own = *raw.end.flights.keys().next().expect("our control stream");
    let result = raw.end.core.handle_stopped(raw.now, own, Code::NO_ERROR);
    assert_fatal(
        raw,
        result,
        Code::CLOSED_CRITICAL_STREAM,
        "our control is stopped",
    );
}

#[test]
fn h3_unknown_input_is_ignored() {
    let mut raw = server();
    raw.control(&[frame(0x21, b"grease"), frame(0x40_21, &[0; 300])].concat())
        .expect("unknown frames");
    raw.send(raw.uni(5), &[0x21, 1, 2, 3])
        .expect("an unknown stream");
    assert_eq!(raw.ended(), [(raw.uni(5), Code::STREAM_CREATION_ERROR)]);
    raw.send(raw.uni(5), &[4, 5]).expect("more of it");
    let request = [
        frame(0x21, b"g"),
        headers(&POST),
        frame(0x42, &[]),
        frame(DATA, b"ab"),
        frame(0x21, b"g"),
    ]
    .concat();
    raw.part(0, &request, true).expect("a request with grease");
    assert_eq!(body(&raw.events(), 1), (b"ab".to_vec(), true));
    let mut raw = Raw::bare(server_config());
    raw.send(
        raw.uni(0),
        &[&[0][..], &frame(SETTINGS, &[0x21, 7, 0x33, 1])].concat(),
    )
    .expect("unknown settings");
}
