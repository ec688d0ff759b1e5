//! Tests with raw frames: one for each rule of RFC 9113 that a peer can break, and for each bound
//! on the peer's cost.

mod h2_support;

use bytes::Bytes;
use h2_support::*;
use proptest::prelude::*;
use tandem_http::mux::OpenError;
use tandem_http::{Event, Method, Mux, Priority, Reason, RequestHead};

const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const REFUSED: u32 = 7;
const CANCEL: u32 = 8;

fn server() -> Raw {
    let mut raw = Raw::server(server_config());
    raw.frames();
    raw.events();
    raw
}

/// A client core that waits for the answer on stream 1.
fn client(head: &RequestHead) -> Raw {
    let mut raw = Raw::client(client_config());
    raw.core.open(head, true, Priority(3)).expect("a stream");
    raw.frames();
    raw.events();
    raw
}

/// The session ends with `reason`, the peer is told, and nothing more is taken.
fn assert_fatal(raw: &mut Raw, kind: u8, flags: u8, id: u32, payload: &[u8], reason: Reason) {
    let error = raw
        .send(kind, flags, id, payload)
        .expect_err("a session error");
    assert_eq!(error.reason, reason, "{}", error.detail);
    let frames = raw.frames();
    assert_eq!(
        frames.last().map(|f| f.kind),
        Some(GOAWAY),
        "{}",
        error.detail
    );
    assert_eq!(raw.send(PING, 0, 0, &[0; 8]), Err(error));
    assert!(!raw.core.wants_output());
}

type List = &'static [(&'static str, &'static str)];

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];

fn get_with(extra: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    GET.iter().chain(extra).copied().collect()
}

#[test]
fn malformed_requests_are_reset_and_never_shown() {
    let cases: Vec<(&str, Vec<(&str, &str)>)> = vec![
        ("upper case", get_with(&[("X-Upper", "1")])),
        ("space in a name", get_with(&[("x y", "1")])),
        ("colon in a name", get_with(&[("x:y", "1")])),
        ("empty name", get_with(&[("", "1")])),
        ("non-ASCII name", get_with(&[("x-\u{e9}", "1")])),
        ("CR", get_with(&[("x", "a\rb")])),
        ("LF", get_with(&[("x", "a\nb: c")])),
        ("NUL", get_with(&[("x", "a\0b")])),
        ("control", get_with(&[("x", "a\x01b")])),
        ("DEL", get_with(&[("x", "\x7f")])),
        ("leading space", get_with(&[("x", " a")])),
        ("trailing tab", get_with(&[("x", "a\t")])),
        ("connection", get_with(&[("connection", "close")])),
        ("keep-alive", get_with(&[("keep-alive", "5")])),
        (
            "proxy-connection",
            get_with(&[("proxy-connection", "keep-alive")]),
        ),
        (
            "transfer-encoding",
            get_with(&[("transfer-encoding", "chunked")]),
        ),
        (
            "transfer_encoding",
            get_with(&[("transfer_encoding", "chunked")]),
        ),
        ("upgrade", get_with(&[("upgrade", "websocket")])),
        ("te", get_with(&[("te", "gzip")])),
        ("other host", get_with(&[("host", "b.example")])),
        (
            "two hosts",
            get_with(&[("host", "a.example"), ("host", "a.example")]),
        ),
        (
            "two lengths",
            get_with(&[("content-length", "0"), ("content-length", "1")]),
        ),
        ("bad length", get_with(&[("content-length", "+1")])),
        (
            "length without content",
            get_with(&[("content-length", "1")]),
        ),
        ("unknown pseudo-header", get_with(&[(":unknown", "1")])),
        ("status in a request", get_with(&[(":status", "200")])),
        ("twice the path", get_with(&[(":path", "/")])),
        ("twice the method", get_with(&[(":method", "GET")])),
        (
            "protocol without CONNECT",
            get_with(&[(":protocol", "websocket")]),
        ),
        (
            "late pseudo-header",
            vec![GET[0], GET[1], GET[2], ("x", "1"), GET[3]],
        ),
        (
            "late after a cookie",
            vec![GET[0], GET[1], GET[2], ("cookie", "1"), GET[3]],
        ),
        ("no method", GET[1..].to_vec()),
        ("no scheme", vec![GET[0], GET[2], GET[3]]),
        ("no path", GET[..3].to_vec()),
        ("no authority", vec![GET[0], GET[1], GET[3]]),
        ("empty path", vec![GET[0], GET[1], GET[2], (":path", "")]),
        (
            "path without slash",
            vec![GET[0], GET[1], GET[2], (":path", "x")],
        ),
        (
            "path with a fragment",
            vec![GET[0], GET[1], GET[2], (":path", "/x#y")],
        ),
        ("star for GET", vec![GET[0], GET[1], GET[2], (":path", "*")]),
        (
            "space in the path",
            vec![GET[0], GET[1], GET[2], (":path", "/a b")],
        ),
        (
            "line feed in the path",
            vec![GET[0], GET[1], GET[2], (":path", "/\nx")],
        ),
        (
            "other scheme",
            vec![GET[0], (":scheme", "ftp"), GET[2], GET[3]],
        ),
        (
            "bad method",
            vec![(":method", "G T"), GET[1], GET[2], GET[3]],
        ),
        (
            "empty authority",
            vec![GET[0], GET[1], (":authority", ""), GET[3]],
        ),
        (
            "user information",
            vec![GET[0], GET[1], (":authority", "u@a.example"), GET[3]],
        ),
        (
            "slash in the authority",
            vec![GET[0], GET[1], (":authority", "a/b"), GET[3]],
        ),
        (
            "CONNECT with path",
            vec![(":method", "CONNECT"), GET[2], GET[3]],
        ),
        (
            "CONNECT with scheme",
            vec![(":method", "CONNECT"), GET[1], GET[2]],
        ),
        ("CONNECT without authority", vec![(":method", "CONNECT")]),
        (
            "extended CONNECT without path",
            vec![(":method", "CONNECT"), (":protocol", "w"), GET[1], GET[2]],
        ),
    ];
    let mut raw = server();
    let mut id = 1;
    for (what, fields) in cases {
        raw.headers(id, true, &fields)
            .expect("only the stream is wrong");
        assert_eq!(raw.resets(), [(id, PROTOCOL)], "{what}");
        assert!(raw.events().is_empty(), "{what}");
        id += 2;
    }
    raw.headers(id, true, &GET).expect("a good one");
    assert!(
        matches!(raw.events()[..], [Event::Request { .. }]),
        "compression stayed in step"
    );
}

#[test]
fn requests_that_are_all_right() {
    let mut raw = server();
    let mut fields = get_with(&[
        ("host", "A.example"),
        ("te", "trailers"),
        ("cookie", "a=b"),
        ("x", ""),
        ("cookie", "c=d"),
        ("content-length", "0"),
        ("content-length", "0"),
        ("priority", "u=1, i"),
    ]);
    raw.headers(1, true, &fields).expect("a good one");
    fields.retain(|(name, _)| !matches!(*name, "host" | "cookie") && !name.starts_with(':'));
    let [
        Event::Request {
            head,
            priority: Priority(1),
            end: true,
            ..
        },
    ] = &raw.events()[..]
    else {
        panic!("a request")
    };
    let seen: Vec<(&[u8], &[u8])> = head.fields.iter().map(|f| (f.name, f.value)).collect();
    let mut expected: Vec<(&[u8], &[u8])> = fields
        .iter()
        .map(|(n, v)| (n.as_bytes(), v.as_bytes()))
        .collect();
    expected.push((b"cookie", b"a=b; c=d"));
    assert_eq!(seen, expected);

    raw.headers(3, true, &[GET[0], GET[1], GET[3], ("host", "b.example")])
        .expect("host stands in for authority");
    raw.headers(
        5,
        true,
        &[(":method", "OPTIONS"), GET[1], GET[2], (":path", "*")],
    )
    .expect("the star");
    raw.headers(
        7,
        false,
        &[(":method", "CONNECT"), (":authority", "c.example:443")],
    )
    .expect("a tunnel");
    let events = raw.events();
    let heads: Vec<(&Method, &str, &str)> = events
        .iter()
        .map(|e| match e {
            Event::Request { head, .. } => {
                (&head.method, head.authority.as_str(), head.path.as_str())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (&Method::Get, "b.example", "/"),
        (&Method::Options, "a.example", "*"),
        (&Method::Connect, "c.example:443", ""),
    ];
    assert_eq!(heads, expected);
}

#[test]
fn extended_connect_only_where_it_was_offered() {
    let mut config = server_config();
    config.extended_connect = false;
    let mut raw = Raw::server(config);
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        GET[1],
        GET[2],
        GET[3],
    ];
    raw.headers(1, false, &fields)
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(1, PROTOCOL)]);
}

#[test]
fn content_length_is_the_sum_of_the_data() {
    let post = [
        (":method", "POST"),
        GET[1],
        GET[2],
        GET[3],
        ("content-length", "5"),
    ];
    type Pieces = &'static [(&'static [u8], bool)];
    let cases: [(Pieces, bool); 6] = [
        (&[(b"hello", true)], true),
        (&[(b"he", false), (b"llo", false), (b"", true)], true),
        (&[(b"hell", true)], false),
        (&[(b"hello!", false)], false),
        (&[(b"hello", false), (b"!", true)], false),
        (&[(b"", true)], false),
    ];
    for (data, good) in cases {
        let mut raw = server();
        raw.headers(1, false, &post).expect("headers");
        for (bytes, end) in data {
            raw.send(DATA, u8::from(*end), 1, bytes).expect("data");
        }
        let events = raw.events();
        assert_eq!(raw.resets().is_empty(), good, "{data:?}");
        let ended = events
            .iter()
            .any(|e| matches!(e, Event::Data { end: true, .. }));
        let reset = events.iter().any(|e| {
            matches!(
                e,
                Event::Reset {
                    id: 1,
                    reason: Reason::Protocol
                }
            )
        });
        assert_eq!((ended, reset), (good, !good), "{data:?}");
    }
    let mut raw = server();
    raw.headers(1, false, &post).expect("headers");
    raw.headers(1, true, &[("x-sum", "1")])
        .expect("trailers instead of five bytes");
    assert_eq!(raw.resets(), [(1, PROTOCOL)]);
}

#[test]
fn malformed_trailers() {
    let cases: [(&[(&str, &str)], bool); 4] = [
        (&[("x", "1")], false),
        (&[(":status", "200")], true),
        (&[(":path", "/")], true),
        (&[("connection", "close")], true),
    ];
    for (fields, end) in cases {
        let mut raw = server();
        raw.request(1, false).expect("headers");
        raw.headers(1, end, fields)
            .expect("only the stream is wrong");
        assert_eq!(raw.resets(), [(1, PROTOCOL)], "{fields:?}");
        assert!(matches!(
            raw.events().last(),
            Some(Event::Reset {
                id: 1,
                reason: Reason::Protocol
            })
        ));
    }
}

#[test]
fn malformed_responses() {
    let cases: [(&str, bool, List); 9] = [
        ("no status", true, &[("x", "1")]),
        ("two digits", true, &[(":status", "20")]),
        ("letters", true, &[(":status", "2xx")]),
        ("twice", true, &[(":status", "200"), (":status", "200")]),
        (
            "request pseudo-header",
            true,
            &[(":status", "200"), (":path", "/")],
        ),
        ("switching protocols", false, &[(":status", "101")]),
        ("interim that ends", true, &[(":status", "103")]),
        (
            "length without content",
            true,
            &[(":status", "200"), ("content-length", "1")],
        ),
        (
            "transfer-encoding",
            false,
            &[(":status", "200"), ("transfer-encoding", "chunked")],
        ),
    ];
    for (what, end, fields) in cases {
        let mut raw = client(&get("/"));
        raw.headers(1, end, fields)
            .expect("only the stream is wrong");
        assert_eq!(raw.resets(), [(1, PROTOCOL)], "{what}");
        assert!(
            matches!(
                raw.events()[..],
                [Event::Reset {
                    id: 1,
                    reason: Reason::Protocol
                }]
            ),
            "{what}"
        );
    }
}

#[test]
fn responses_without_content() {
    let head = RequestHead {
        method: Method::Head,
        ..get("/")
    };
    for (request, status) in [(&head, "200"), (&get("/"), "304"), (&get("/"), "204")] {
        let mut raw = client(request);
        raw.headers(1, true, &[(":status", status), ("content-length", "10")])
            .expect("a response");
        assert!(
            matches!(raw.events()[..], [Event::Response { end: true, .. }]),
            "{status}"
        );
        let mut raw = client(request);
        raw.headers(1, false, &[(":status", status), ("content-length", "10")])
            .expect("a response");
        raw.send(DATA, END_STREAM, 1, &[0; 10])
            .expect("only the stream is wrong");
        assert_eq!(raw.resets(), [(1, PROTOCOL)], "{status}");
    }
}

#[test]
fn lengths_mean_nothing_in_a_tunnel() {
    let tunnel = RequestHead {
        method: Method::Connect,
        path: String::new(),
        ..get("")
    };
    let mut raw = Raw::client(client_config());
    raw.core
        .open(&tunnel, false, Priority(3))
        .expect("a stream");
    raw.headers(1, false, &[(":status", "200"), ("content-length", "1")])
        .expect("a response");
    raw.send(DATA, 0, 1, b"more than one").expect("data");
    assert!(raw.resets().is_empty());
}

#[test]
fn data_before_the_response() {
    let mut raw = client(&get("/"));
    raw.send(DATA, 0, 1, b"x")
        .expect("only the stream is wrong");
    assert_eq!(raw.resets(), [(1, PROTOCOL)]);
}

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
    let frames = raw.frames();
    assert_eq!(
        frames,
        [Frame {
            kind: WINDOW_UPDATE,
            flags: 0,
            id: 0,
            payload: 32_768u32.to_be_bytes().to_vec()
        }]
    );
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
fn frames() -> impl Strategy<Value = Vec<u8>> {
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
