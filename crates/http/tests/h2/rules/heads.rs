//! Messages (RFC 9113 section 8): malformed heads, lengths, trailers and tunnels.

use tandem_http::{Event, Method, Mux, Priority, Reason, RequestHead};

use super::{GET, List, PROTOCOL, client, get_with, server};
use crate::support::*;

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
        ("http2-settings", "AAMAAABkAAQAAP__"),
        ("cookie", "a=b"),
        ("x", ""),
        ("cookie", "c=d"),
        ("content-length", "0"),
        ("content-length", "0"),
        ("priority", "u=1, i"),
    ]);
    raw.headers(1, true, &fields).expect("a good one");
    let left_out = |name: &str| matches!(name, "host" | "cookie" | "http2-settings");
    fields.retain(|(name, _)| !left_out(name) && !name.starts_with(':'));
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
    let cases: [(&[(&str, &str)], bool); 7] = [
        (&[("x", "1")], false),
        (&[("x", "a\x01b")], true),
        (&[("x", "\x7f")], true),
        (&[("content_length", "1")], true),
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
