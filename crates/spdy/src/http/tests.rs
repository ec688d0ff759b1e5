//! Tests of messages in header blocks.

use super::*;

use crate::header_block::{Decoder, Encoder, HeaderCompression};

fn message<T>(block: &Block, read: impl FnOnce(Message<'_>) -> T) -> T {
    let mut wire = Vec::new();
    Encoder::new(HeaderCompression::Off).encode(block, &mut wire);
    let mut decoder = Decoder::new(1 << 16);
    let pairs = decoder.decode(&wire).expect("in step").expect("legal");
    read(Message::load(&pairs))
}

fn read_request(pairs: &[(&str, &str)]) -> Option<RequestHead> {
    let mut block = Block::new();
    for (name, value) in pairs {
        block.push(name.as_bytes(), &[value.as_bytes()], 0, false);
    }
    message(&block, |message| message.into_request())
}

fn sample() -> RequestHead {
    let mut head = RequestHead::get(Scheme::Https, "example.org:8443", "/a?b=c");
    for (name, value) in [
        ("accept", "x"),
        ("cookie", "a=1"),
        ("accept", "y"),
        ("cookie", "b=2"),
        ("x-empty", ""),
    ] {
        head.fields.push(name, value);
    }
    head
}

#[test]
fn request_path_has_no_fragment() {
    for path in ["/a#b", "http://site.example/a#b", "http://site.example#b"] {
        let pairs = [
            (":method", "GET"),
            (":path", path),
            (":version", "HTTP/1.1"),
            (":host", "site.example"),
            (":scheme", "http"),
        ];
        assert_eq!(read_request(&pairs), None, "{path}");
    }
}

#[test]
fn request_path_beyond_ascii_is_encoded() {
    for path in ["/\u{e9}?%41", "http://site.example/\u{e9}?%41"] {
        let pairs = [
            (":method", "GET"),
            (":path", path),
            (":version", "HTTP/1.1"),
            (":host", "site.example"),
            (":scheme", "http"),
        ];
        let read = read_request(&pairs).expect("a request");
        assert_eq!(read.path, "/%C3%A9?%41");
        assert_eq!(read.authority, "site.example");
    }
}

#[test]
fn request_has_no_control_bytes() {
    for (value, is_good) in [("a\tb", true), ("a\x01b", false), ("\x7f", false)] {
        for method in ["GET", "CONNECT"] {
            let pairs = [
                (":method", method),
                (
                    ":path",
                    if method == "GET" {
                        "/"
                    } else {
                        "site.example:80"
                    },
                ),
                (":version", "HTTP/1.1"),
                (":host", "site.example:80"),
                (":scheme", "http"),
                ("x", value),
            ];
            assert_eq!(
                read_request(&pairs).is_some(),
                is_good,
                "{value:?} {method}"
            );
        }
    }
}

#[test]
fn request_loses_framing_fields_with_underscores() {
    let read = read_request(&[
        (":method", "GET"),
        (":path", "/"),
        (":version", "HTTP/1.1"),
        (":host", "site.example"),
        (":scheme", "http"),
        ("transfer_encoding", "chunked"),
        ("accept", "x"),
    ]);
    let fields = read.expect("a request").fields;
    assert_eq!((fields.len(), fields.get("accept")), (1, Some(&b"x"[..])));
}

#[test]
fn request_keeps_te_for_trailers_only() {
    for (written, kept) in [
        ("trailers", Some("trailers")),
        ("chunked, Trailers", Some("trailers")),
        ("gzip\0trailers", Some("trailers")),
        ("gzip", None),
        ("chunked;q=0.5, trailers-not", None),
        ("", None),
    ] {
        let read = read_request(&[
            (":method", "POST"),
            (":path", "/"),
            (":version", "HTTP/1.1"),
            (":host", "site.example"),
            (":scheme", "http"),
            ("te", written),
            ("http2-settings", "AAMAAABkAAQAAP__"),
        ]);
        let fields = read.expect("a request").fields;
        let kept: Fields = kept.map(|value| ("te", value)).into_iter().collect();
        assert!(fields == kept, "{written:?} {fields:?}");
    }
}

#[test]
fn only_options_asks_about_a_whole_server() {
    let path_of = |method: &str, path: &str| {
        let read = read_request(&[
            (":method", method),
            (":path", path),
            (":version", "HTTP/1.1"),
            (":host", "site.example"),
            (":scheme", "http"),
        ]);
        read.map(|head| head.path)
    };
    for (method, path, read) in [
        ("OPTIONS", "*", Some("*")),
        ("OPTIONS", "http://site.example", Some("*")),
        ("OPTIONS", "http://site.example?", Some("/?")),
        ("GET", "*", None),
        ("POST", "*", None),
        ("GET", "http://site.example", Some("/")),
    ] {
        assert_eq!(path_of(method, path).as_deref(), read, "{method} {path}");
    }
}

#[test]
fn a_request_comes_back() {
    for full_url in [false, true] {
        let block = request_block(&sample(), full_url, 1 << 16).expect("writable");
        let read = message(&block, |message| message.into_request()).expect("complete");
        assert_eq!(
            (read.scheme, &*read.authority, &*read.path),
            (Scheme::Https, "example.org:8443", "/a?b=c")
        );
        let expected: Fields = [
            ("accept", "x"),
            ("accept", "y"),
            ("cookie", "a=1; b=2"),
            ("x-empty", ""),
        ]
        .into_iter()
        .collect();
        assert!(read.fields == expected, "{:?}", read.fields);
    }
}

#[test]
fn a_response_keeps_its_cookies_apart() {
    let mut head = ResponseHead::new(404);
    for value in ["a=1", "b=2"] {
        head.fields.push("set-cookie", value);
    }
    head.fields.push("connection", "close");
    let block = response_block(&head, 1 << 16).expect("writable");
    let read = message(&block, |message| message.into_response()).expect("complete");
    assert_eq!(read.status, 404);
    assert_eq!(
        read.fields
            .iter()
            .map(|field| field.value)
            .collect::<Vec<_>>(),
        [b"a=1", b"b=2"]
    );
}

#[test]
fn status_with_and_without_words() {
    for (text, status) in [
        ("200", Some(200)),
        ("200 OK", Some(200)),
        ("20", None),
        ("2000", None),
        ("100", None),
        ("abc", None),
    ] {
        let message = Message {
            status: Some(text.as_bytes()),
            ..Message::default()
        };
        assert_eq!(message.status(), status, "{text}");
    }
}

#[test]
fn all_five_are_required() {
    let five = [
        (":method", "GET"),
        (":path", "/"),
        (":version", "HTTP/1.1"),
        (":host", "a"),
        (":scheme", "http"),
    ];
    assert!(read_request(&five).is_some());
    for missing in 0..five.len() {
        let mut four = five.to_vec();
        four.remove(missing);
        assert!(read_request(&four).is_none(), "{missing}");
    }
    for (at, senseless) in [
        (0, "G T"),
        (1, "nowhere"),
        (1, "/a b"),
        (1, "/a#b"),
        (1, "http://a#b"),
        (3, "a/b"),
        (3, "u@a"),
        (4, "ftp"),
    ] {
        let mut pairs = five;
        pairs[at].1 = senseless;
        assert!(read_request(&pairs).is_none(), "{senseless}");
    }
}

#[test]
fn a_full_url_overrides() {
    let head = read_request(&[
        (":method", "GET"),
        (":path", "https://user@real.example?q"),
        (":version", "HTTP/1.1"),
        (":host", "proxy"),
        (":scheme", "http"),
    ])
    .expect("complete");
    assert_eq!(
        (head.scheme, &*head.authority, &*head.path),
        (Scheme::Https, "real.example", "/?q")
    );
}

#[test]
fn connect_both_ways() {
    let mut head = RequestHead::get(Scheme::Https, "example.org:443", "");
    head.method = Method::Connect;
    let block = request_block(&head, true, 1 << 16).expect("writable");
    assert!(message(&block, |message| message.into_request()) == Some(head.clone()));
    let short = read_request(&[(":method", "CONNECT"), (":host", "example.org:443")]);
    assert!(short == Some(head.clone()));
    assert!(read_request(&[(":method", "CONNECT"), (":host", "h"), (":path", "/")]).is_none());
    head.protocol = Some("websocket".to_owned());
    assert_eq!(request_block(&head, false, 1 << 16), Err(Unwritable));
}

#[test]
fn nothing_smuggles_a_field() {
    let mut head = sample();
    head.fields.push("x", "a\0b");
    assert_eq!(request_block(&head, false, 1 << 16), Err(Unwritable));
    let mut head = sample();
    head.fields.push(":path", "/other");
    assert_eq!(request_block(&head, false, 1 << 16), Err(Unwritable));
    assert_eq!(request_block(&sample(), false, 200), Err(Unwritable));
}
