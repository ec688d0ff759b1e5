//! Malformed messages (RFC 9114 section 4.1.2), and requests that wait for field sections.

use tandem_http::h3::Code;
use tandem_http::{Event, Mux, Reason};

use super::{client, server};
use crate::support::*;

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

#[test]
fn h3_trailers_of_a_request_have_no_control_bytes() {
    for (value, is_good) in [("a\tb", true), ("a\x01b", false), ("\x7f", false)] {
        let mut raw = server();
        let bytes = [headers(&GET), headers(&[("x-a", value)])].concat();
        raw.part(0, &bytes, true).expect(value);
        let told = raw.events();
        let has_trailers = matches!(told.last(), Some(Event::Trailers { .. }));
        assert_eq!(has_trailers, is_good, "{value:?} {told:?}");
        let is_refused = raw.ended().contains(&(0, Code::MESSAGE_ERROR));
        assert_eq!(is_refused, !is_good, "{value:?}");
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

/// Servers of WebDAV refuse an MKCOL with content, and a request that is told before its end may
/// have some.
#[test]
fn h3_webdav_request_is_told_at_its_end() {
    let mut raw = server();
    raw.events();
    let names = ["OPTIONS", "MKCOL", "PROPFIND", "UNLOCK", "QUERY"];
    for (carrier, name) in (0..).step_by(4).zip(names) {
        let fields = [&[(":method", name)], &GET[1..]].concat();
        raw.part(carrier, &headers(&fields), false).expect(name);
        assert!(raw.events().is_empty(), "{name}: its end may follow");
        raw.part(carrier, &[], true).expect(name);
        let told = raw.events();
        assert!(
            matches!(told[..], [Event::Request { end: true, .. }]),
            "{name}: {told:?}"
        );
    }
    let asking = [
        &[(":method", "PROPFIND")],
        &GET[1..],
        &[("expect", "100-continue")],
    ]
    .concat();
    raw.part(40, &headers(&asking), false).expect("a request");
    let told = raw.events();
    assert!(
        matches!(told[..], [Event::Request { end: false, .. }]),
        "its client waits: {told:?}"
    );
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

#[test]
fn h3_message_breaks_off_once_and_behind_its_head() {
    let ok = headers(&[(":status", "200")]);
    let mark = numbered(BROKEN, 0x102, &[]);
    let trailers = headers(&[("x-a", "b")]);
    let data = frame(DATA, b"more");
    let (no_code, two_codes) = (frame(BROKEN, &[]), frame(BROKEN, &[1, 2]));
    let large = frame(BROKEN, &[0; 9]);
    let unexpected = Code::FRAME_UNEXPECTED;
    for (case, parts, code) in [
        ("no head", vec![&mark], unexpected),
        ("twice", vec![&ok, &mark, &mark], unexpected),
        ("then content", vec![&ok, &mark, &data], unexpected),
        ("then trailers", vec![&ok, &mark, &trailers], unexpected),
        ("after trailers", vec![&ok, &trailers, &mark], unexpected),
        ("no code", vec![&ok, &no_code], Code::FRAME_ERROR),
        ("two codes", vec![&ok, &two_codes], Code::FRAME_ERROR),
        ("large", vec![&ok, &large], Code::EXCESSIVE_LOAD),
    ] {
        let mut raw = client();
        let bytes: Vec<u8> = parts.into_iter().flatten().copied().collect();
        raw.part(0, &bytes, true).expect_err(case);
        let failure = raw.end.core.failure().map(|(code, _)| code);
        assert_eq!(failure, Some(code), "{case}");
    }
    // The code of a regular end does not make the message complete.
    let mut raw = client();
    let bytes = [ok, data, numbered(BROKEN, 0x100, &[])].concat();
    raw.part(0, &bytes, true).expect("a broken response");
    let events = raw.events();
    let is_end = |event: &Event| matches!(event, Event::Data { end: true, .. });
    assert!(!events.iter().any(is_end), "{events:?}");
    assert!(matches!(
        events.last(),
        Some(Event::Reset {
            reason: Reason::Internal,
            ..
        })
    ));
}
