//! An HTTP/3 core against a peer that breaks one rule after the other, and against floods.

mod h3_support;

use h3_support::*;
use proptest::prelude::*;
use tandem_http::h3::Code;
use tandem_http::{Event, Method, Mux, MuxConfig, Priority, Reason, SessionError};

fn server() -> Raw {
    Raw::new(server_config())
}

fn client() -> Raw {
    let mut raw = Raw::new(client_config());
    raw.open(&get("/"));
    raw
}

/// Checks that the session ends with this code, and takes nothing more.
fn assert_fatal(mut raw: Raw, result: Result<(), SessionError>, code: Code, case: &str) {
    let error = result.expect_err(case);
    let (seen, detail) = raw.end.core.failure().expect(case);
    assert_eq!((seen, detail), (code, error.detail), "{case}");
    assert_eq!(error.reason, code.reason(), "{case}");
    assert_eq!(raw.part(400, b"x", false), Err(error), "{case}");
    assert_eq!(raw.end.core.poll_ready(), None, "{case}");
}

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
fn h3_malformed_requests_are_reset_and_never_told() {
    let with = |extra: &[(&'static str, &'static str)]| headers(&[&GET[..], extra].concat());
    let cases: Vec<(&str, Vec<u8>, Code)> = vec![
        ("no method", headers(&GET[1..]), Code::MESSAGE_ERROR),
        ("two paths", with(&[(":path", "/")]), Code::MESSAGE_ERROR),
        ("status", with(&[(":status", "200")]), Code::MESSAGE_ERROR),
        ("upper case", with(&[("X-A", "b")]), Code::MESSAGE_ERROR),
        (
            "connection",
            with(&[("connection", "close")]),
            Code::MESSAGE_ERROR,
        ),
        (
            "line break",
            with(&[("x-a", "b\r\nc: d")]),
            Code::MESSAGE_ERROR,
        ),
        ("no head", frame(0x21, b"grease"), Code::REQUEST_INCOMPLETE),
        ("empty", Vec::new(), Code::REQUEST_INCOMPLETE),
    ];
    for (case, bytes, code) in cases {
        let mut raw = server();
        raw.part(0, &bytes, true).expect(case);
        let told = raw.events();
        assert!(matches!(told[..], [Event::Settings]), "{case}: {told:?}");
        let ended = raw.ended();
        assert!(ended.contains(&(0, code)), "{case}: {ended:?}");
        assert_eq!(raw.end.core.active(), 0, "{case}");
        raw.part(4, &headers(&GET), true).expect("another request");
        assert!(
            matches!(raw.events()[..], [Event::Request { end: true, .. }]),
            "{case}"
        );
    }
}

/// Returns true if a stream was reset for an error in the protocol.
fn is_reset(raw: &mut Raw) -> bool {
    let is_reset = |event: &Event| {
        let reason = Reason::Protocol;
        matches!(event, Event::Reset { reason: given, .. } if *given == reason)
    };
    raw.events().iter().any(is_reset)
}

#[test]
fn h3_content_has_the_length_of_its_head() {
    let post = headers(&[&POST[..], &[("content-length", "5")]].concat());
    for (content, good) in [("12345", true), ("1234", false), ("123456", false)] {
        let mut raw = server();
        let bytes = [post.clone(), frame(DATA, content.as_bytes())].concat();
        raw.part(0, &bytes, true).expect("a stream error at most");
        assert_eq!(is_reset(&mut raw), !good, "{content}");
        let mut raw = client();
        let head = headers(&[(":status", "200"), ("content-length", "5")]);
        let bytes = [head, frame(DATA, content.as_bytes())].concat();
        raw.part(0, &bytes, true).expect("a stream error at most");
        assert_eq!(is_reset(&mut raw), !good, "{content}");
    }
}

#[test]
fn h3_malformed_responses_fail_their_request() {
    for (case, bytes) in [
        ("no status", headers(&[("x-a", "b")])),
        ("status 101", headers(&[(":status", "101")])),
        ("no response", Vec::new()),
        ("only an interim one", headers(&[(":status", "103")])),
        (
            "pseudo-header in trailers",
            [headers(&[(":status", "200")]), headers(&[(":path", "/")])].concat(),
        ),
    ] {
        let mut raw = client();
        raw.part(0, &bytes, true).expect(case);
        let events = raw.events();
        assert!(
            matches!(
                events.last(),
                Some(Event::Reset {
                    id: 1,
                    reason: Reason::Protocol
                })
            ),
            "{case}: {events:?}"
        );
        assert_eq!(raw.end.core.active(), 0, "{case}");
    }
}

#[test]
fn h3_large_request_gets_431() {
    let mut config = server_config();
    config.max_header_list = 500;
    let mut raw = Raw::new(config);
    let long = "x".repeat(600);
    raw.part(
        0,
        &headers(&[&GET[..], &[("x-long", &long)]].concat()),
        false,
    )
    .expect("a request");
    assert!(matches!(raw.events()[..], [Event::Settings]));
    let frames = raw.frames(0, 0);
    assert_eq!(
        raw.decode(&frames[0].1),
        [(":status".to_owned(), "431".to_owned())]
    );
    assert_eq!(raw.ended(), [(0, Code::NO_ERROR)]);
    assert_eq!(raw.end.core.active(), 0);
}

#[test]
fn h3_requests_beyond_the_limit_are_rejected() {
    let mut config = server_config();
    config.max_streams = 2;
    let mut raw = Raw::new(config);
    raw.part(0, &headers(&GET), true).expect("a request");
    raw.part(4, &[], false).expect("a stream without a request");
    raw.part(8, &headers(&GET), true)
        .expect("a request too many");
    assert_eq!(raw.ended(), [(8, Code::REQUEST_REJECTED)]);
    raw.end
        .core
        .handle_reset(raw.now, 4, Code::REQUEST_CANCELLED)
        .expect("a reset");
    raw.ended();
    raw.part(12, &headers(&GET), true).expect("a request");
    assert_eq!(raw.ended(), []);
    let requests = raw
        .events()
        .into_iter()
        .filter(|e| matches!(e, Event::Request { .. }));
    assert_eq!(requests.count(), 2);
}

#[test]
fn h3_request_with_a_late_section_waits_for_it() {
    let mut raw = server();
    // The section refers to the first insertion: the field x-a: b.
    let section = [section(&GET)[2..].to_vec(), vec![0x80]].concat();
    let section = [vec![2, 0], section].concat();
    raw.part(0, &frame(HEADERS, &section), true)
        .expect("a request that waits");
    assert!(matches!(raw.events()[..], [Event::Settings]));
    assert!(!raw.end.core.wants_input(0));
    let insert = [&[2, 0x3f, 0xe1, 0x1f, 0x43][..], b"x-a", &[1], b"b"].concat();
    raw.send(raw.uni(3), &insert).expect("an insertion");
    let events = raw.events();
    assert!(
        matches!(
            &events[..],
            [Event::Request { head, end: true, .. }] if head.fields.get("x-a") == Some(b"b")
        ),
        "{events:?}"
    );
    // The decoder stream acknowledges the insertion and the section.
    raw.end.drive();
    let decoder = raw
        .end
        .flights
        .values()
        .find(|flight| flight.bytes.first() == Some(&3));
    assert_eq!(decoder.expect("a decoder stream").bytes, [3, 1, 0x80]);
}

#[test]
fn h3_pushes_are_checked() {
    let promise = |push| numbered(PUSH_PROMISE, push, &section(&GET));
    let other = |push| {
        numbered(
            PUSH_PROMISE,
            push,
            &section(&[GET[0], GET[1], GET[2], (":path", "/b")]),
        )
    };
    let push_stream = |push: u8| [1, push];
    let mut raw = client();
    let result = raw.send(0, &promise(256));
    assert_fatal(raw, result, Code::ID_ERROR, "a promise beyond the limit");
    let mut raw = client();
    let result = raw.send(raw.uni(4), &[1, 0x41, 0]);
    assert_fatal(raw, result, Code::ID_ERROR, "a push beyond the limit");
    let mut raw = client();
    raw.send(0, &promise(0)).expect("a promise");
    let result = raw.send(0, &other(0));
    assert_fatal(
        raw,
        result,
        Code::GENERAL_PROTOCOL_ERROR,
        "another promise of one push",
    );
    for promised in [false, true] {
        let mut raw = client();
        if promised {
            raw.send(0, &promise(0)).expect("a promise");
        }
        raw.send(raw.uni(4), &push_stream(0)).expect("a push");
        let result = raw.send(raw.uni(5), &push_stream(0));
        assert_fatal(raw, result, Code::ID_ERROR, "two streams of one push");
    }
    let mut raw = client();
    raw.send(0, &promise(0)).expect("a promise");
    raw.send(raw.uni(4), &push_stream(0)).expect("a push");
    let result = raw.send(raw.uni(4), &promise(1));
    assert_fatal(raw, result, Code::FRAME_UNEXPECTED, "a promise on a push");
    let mut raw = Raw::new(MuxConfig::new(tandem_http::Role::Client));
    raw.open(&get("/"));
    let result = raw.send(0, &promise(0));
    assert_fatal(
        raw,
        result,
        Code::ID_ERROR,
        "a promise that was not permitted",
    );
    let mut raw = client();
    let result = raw.part(raw.uni(4), &[1], true);
    assert_fatal(raw, result, Code::FRAME_ERROR, "a push without a number");
}

#[test]
fn h3_push_is_promised_once_and_refused_if_unsafe() {
    let mut raw = client();
    let promise = numbered(PUSH_PROMISE, 0, &section(&GET));
    raw.send(0, &[promise.clone(), promise].concat())
        .expect("the same promise twice");
    raw.send(0, &numbered(PUSH_PROMISE, 1, &section(&POST)))
        .expect("an unsafe push");
    let pushes = raw
        .events()
        .into_iter()
        .filter(|e| matches!(e, Event::Push { .. }));
    assert_eq!(pushes.count(), 1);
    raw.end.drive();
    let control = raw.end.flights[&2].bytes.clone();
    assert!(
        control.ends_with(&numbered(CANCEL_PUSH, 1, &[])),
        "{control:x?}"
    );
    // The stream of a refused push is stopped, and its promise may come again.
    raw.send(raw.uni(4), &[1, 1]).expect("a late push");
    assert!(raw.ended().contains(&(raw.uni(4), Code::REQUEST_CANCELLED)));
    raw.send(0, &numbered(PUSH_PROMISE, 1, &section(&GET)))
        .expect("a late promise");
    assert!(raw.events().is_empty());
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

#[test]
fn h3_request_without_content_is_told_at_its_end() {
    let mut raw = server();
    raw.events();
    raw.part(0, &headers(&GET), false).expect("a request");
    assert!(raw.events().is_empty(), "its end may follow");
    raw.part(0, &[], true).expect("its end");
    assert!(matches!(
        raw.events()[..],
        [Event::Request { end: true, .. }]
    ));
    raw.part(4, &headers(&GET), false).expect("a request");
    raw.part(4, &frame(DATA, b"x"), true).expect("its content");
    assert!(matches!(
        raw.events()[..],
        [
            Event::Request { end: false, .. },
            Event::Data { .. },
            Event::Data { end: true, .. }
        ]
    ));
    raw.part(8, &headers(&POST), false).expect("a request");
    assert!(matches!(
        raw.events()[..],
        [Event::Request { end: false, .. }]
    ));
}

#[test]
fn h3_client_gives_its_first_bytes_at_once() {
    let mut raw = Raw::bare(client_config());
    raw.open(&get("/"));
    let control = raw.frames(2, 1);
    assert_eq!(
        control.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
        [SETTINGS, MAX_PUSH_ID]
    );
    assert_eq!(control[1].1, [0x40, 0xff], "as many pushes as streams");
    let request = raw.frames(0, 0);
    assert_eq!(
        raw.decode(&request[0].1)[0],
        (":method".to_owned(), "GET".to_owned())
    );
}

/// Repeats an attack until the session ends, within 5,000 turns.
fn flood(
    case: &str,
    mut raw: Raw,
    mut send: impl FnMut(&mut Raw, u64) -> Result<(), SessionError>,
) {
    for turn in 1..5000 {
        let result = send(&mut raw, turn);
        raw.events();
        raw.ended();
        raw.end.flights.clear();
        if let Err(error) = result {
            assert_eq!(error.reason, Reason::EnhanceYourCalm, "{case}: {error}");
            return;
        }
    }
    panic!("{case} is not bounded");
}

#[test]
fn h3_floods_end_the_session() {
    flood("rapid resets", server(), |raw, turn| {
        raw.part(turn * 4, &headers(&GET), true)?;
        raw.end
            .core
            .handle_reset(raw.now, turn * 4, Code::REQUEST_CANCELLED)?;
        raw.end
            .core
            .handle_stopped(raw.now, turn * 4, Code::REQUEST_CANCELLED)
    });
    flood("resets before the request", server(), |raw, turn| {
        raw.part(turn * 4, &[], false)?;
        raw.end
            .core
            .handle_reset(raw.now, turn * 4, Code::REQUEST_CANCELLED)
    });
    flood("malformed requests", server(), |raw, turn| {
        raw.part(turn * 4, &headers(&GET[1..]), true)
    });
    flood("unknown frames", server(), |raw, _| {
        raw.control(&frame(0x21, &[]))
    });
    flood("permitted pushes", server(), |raw, turn| {
        raw.control(&numbered(MAX_PUSH_ID, turn, &[]))
    });
    flood("priorities", server(), |raw, turn| {
        raw.control(&numbered(PRIORITY_REQUEST, turn * 4, b"u=1"))
    });
    flood("empty content", server(), |raw, turn| {
        if turn == 1 {
            raw.send(0, &headers(&POST))?;
        }
        raw.send(0, &frame(DATA, &[]))
    });
    flood("interim responses", client(), |raw, _| {
        raw.send(0, &headers(&[(":status", "103")]))
    });
    flood("refused pushes", client(), |raw, turn| {
        raw.send(0, &numbered(PUSH_PROMISE, turn - 1, &section(&POST)))
    });
    flood("unknown streams", server(), |raw, turn| {
        raw.send(raw.uni(turn + 3), &[0x21])
    });
    flood("streams without a type", server(), |raw, turn| {
        raw.send(raw.uni(turn + 3), &[])
    });
}

#[test]
fn h3_browser_may_cancel_a_page_of_1300_images() {
    let mut raw = Raw::new(MuxConfig {
        max_streams: 2000,
        ..server_config()
    });
    for turn in 0..1300 {
        raw.part(turn * 4, &headers(&GET), true).expect("a request");
    }
    for turn in 0..1300 {
        raw.end
            .core
            .handle_stopped(raw.now, turn * 4, Code::REQUEST_CANCELLED)
            .expect("a cancelled request");
    }
    raw.part(1300 * 4, &headers(&GET), true)
        .expect("the next page");
}

/// Frames that are mostly right.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![0u64..16, Just(PRIORITY_REQUEST), Just(PRIORITY_PUSH)];
    prop_oneof![
        2 => Just(headers(&GET)),
        1 => Just(headers(&POST)),
        2 => Just(headers(&[(":status", "200")])),
        2 => prop::collection::vec(any::<u8>(), 0..20).prop_map(|payload| frame(DATA, &payload)),
        1 => (0u64..5).prop_map(|push| numbered(PUSH_PROMISE, push, &section(&GET))),
        1 => (kind, prop::collection::vec(any::<u8>(), 0..6))
            .prop_map(|(kind, payload)| frame(kind, &payload)),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ]
}

proptest! {
    /// No peer makes a core panic or leave its bounds, and nothing is told twice.
    #[test]
    fn h3_core_survives_any_peer(
        as_server: bool,
        steps in prop::collection::vec((0u64..12, frames(), 0u8..12), 0..60),
    ) {
        let mut raw = if as_server { server() } else { client() };
        for (place, bytes, action) in steps {
            let stream = match place {
                0..6 => place * 4,
                6 => raw.uni(0),
                _ => raw.uni(place - 4),
            };
            let lead = [(place % 4) as u8, action];
            let bytes = if place > 6 { [&lead[..], &bytes].concat() } else { bytes };
            let result = match action {
                0 => raw.end.core.handle_reset(raw.now, stream, Code::REQUEST_CANCELLED),
                1 => raw.end.core.handle_stopped(raw.now, stream, Code::REQUEST_CANCELLED),
                2 => raw.part(stream, &bytes, true),
                _ => raw.send(stream, &bytes),
            };
            for event in raw.events() {
                match event {
                    Event::Request { id, .. } => {
                        raw.end.core.respond(id, &response(200, &[]), false);
                        let _ = raw.end.core.push(id, &get("/p"), Priority(1));
                        raw.end.core.send_data(id, bytes_of(id), id % 4 == 1);
                    }
                    Event::Data { id, data, .. } => raw.end.core.release(id, data.len()),
                    Event::Push { id, .. } if id % 4 == 0 => raw.end.core.reset(id, Reason::Cancel),
                    _ => {}
                }
            }
            raw.end.drive();
            if result.is_err() {
                return Ok(());
            }
            prop_assert!(raw.end.core.active() <= 600);
        }
    }
}

fn bytes_of(id: u32) -> bytes::Bytes {
    bytes(id as usize * 10)
}
