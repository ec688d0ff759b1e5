//! Response heads: accepted, repaired and refused input, and the framing of the body.

use tandem_http::h1::{
    BadHead, BadResponse, Framing, Limits, Response, Version, parse_response, response_framing,
};
use tandem_http::{Method, ResponseHead};

fn parse(
    text: impl AsRef<[u8]>,
    method: &Method,
) -> Result<Option<(Response, usize)>, BadResponse> {
    parse_response(text.as_ref(), method, &Limits::default())
}

fn read_for(text: &str, method: &Method) -> Response {
    let (response, used) = parse(text, method).expect("valid").expect("complete");
    assert_eq!(used, text.len());
    for cut in 0..text.len() {
        assert_eq!(
            parse(&text.as_bytes()[..cut], method),
            Ok(None),
            "cut at {cut} of {text:?}"
        );
    }
    response
}

fn read(text: &str) -> Response {
    read_for(text, &Method::Get)
}

#[test]
fn plain() {
    let response = read(
        "HTTP/1.1 200 All right, \u{e9}\r\nContent-Length: 5\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n",
    );
    assert_eq!(
        (response.head.status, response.version),
        (200, Version::Http11)
    );
    assert_eq!(
        (response.framing, response.keep_alive),
        (Framing::Length(5), true)
    );
    assert_eq!(
        response
            .head
            .fields
            .get_all("set-cookie")
            .collect::<Vec<_>>(),
        [b"a", b"b"]
    );
    assert_eq!(response.head.fields.get("content-length"), Some(&b"5"[..]));
    assert_eq!(
        read("HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n")
            .head
            .status,
        404
    );
    assert_eq!(
        read("HTTP/1.1 999 \r\nContent-Length: 0\r\n\r\n")
            .head
            .status,
        999
    );
}

#[test]
fn framing() {
    let chunked = read("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n");
    assert_eq!(
        (
            chunked.framing,
            chunked.keep_alive,
            chunked.head.fields.len()
        ),
        (Framing::Chunked, true, 1)
    );
    for start in ["HTTP/1.1 200 OK", "HTTP/1.0 200 OK"] {
        let open = read(&format!("{start}\r\nConnection: keep-alive\r\n\r\n"));
        assert_eq!(
            (open.framing, open.keep_alive),
            (Framing::UntilClose, false)
        );
    }
    let old = read("HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!((old.framing, old.keep_alive), (Framing::Length(3), true));
    assert!(!read("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n").keep_alive);
    assert!(!read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n").keep_alive);
}

#[test]
fn responses_without_body() {
    let head = read_for(
        "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n",
        &Method::Head,
    );
    assert_eq!((head.framing, head.keep_alive), (Framing::None, true));
    assert_eq!(head.head.fields.get("content-length"), Some(&b"500"[..]));
    let head = read_for(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        &Method::Head,
    );
    assert_eq!((head.framing, head.keep_alive), (Framing::None, true));
    let same = read("HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\nETag: \"x\"\r\n\r\n");
    assert_eq!(
        (same.framing, same.keep_alive, same.head.fields.len()),
        (Framing::None, true, 2)
    );
    for status in ["100 Continue", "103 Early Hints", "204 No Content"] {
        let response = read(&format!("HTTP/1.1 {status}\r\nLink: </a>\r\n\r\n"));
        assert_eq!(
            (response.framing, response.keep_alive),
            (Framing::None, true)
        );
    }
    let odd = read("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(
        (odd.framing, odd.keep_alive),
        (Framing::None, false),
        "what follows may be a body"
    );
    assert!(odd.head.fields.is_empty());
    let tunnel = read_for("HTTP/1.1 200 OK\r\n\r\n", &Method::Connect);
    assert_eq!(tunnel.framing, Framing::None);
    let refusal = read_for(
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\n",
        &Method::Connect,
    );
    assert_eq!(refusal.framing, Framing::Length(2));
}

#[test]
fn switching_protocols() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX: y\r\n\r\n";
    let response = read(switch);
    assert_eq!(
        (response.upgrade.as_deref(), response.framing),
        (Some("websocket"), Framing::None)
    );
    assert_eq!(response.head.fields.len(), 1);
    assert_eq!(read(&switch.replace("101", "200")).upgrade, None);
}

#[test]
fn repaired_as_the_rfc_asks_proxies() {
    let response = read("HTTP/1.1 200 OK\r\nX-Long: a\r\n  b\r\n\tc\r\nContent-Length : 3\r\n\r\n");
    assert_eq!(
        response.head.fields.get("x-long"),
        Some(&b"a    b  \tc"[..])
    );
    assert_eq!(response.framing, Framing::Length(3));
    let odd = read("HTTP/1.1 200 OK\r\nX: a\u{1}b\u{c}\r\nContent-Length: 3\r\n\r\n");
    assert_eq!(
        odd.head.fields.get("x"),
        Some(&b"a\x01b\x0c"[..]),
        "as browsers take it"
    );
}

#[test]
fn refused() {
    use BadResponse::{Head, StatusLine, UnsupportedVersion};
    let ok = "HTTP/1.1 200 OK\r\n";
    let table = [
        (
            format!("{ok}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
            Head(BadHead::BothLengths),
        ),
        (
            format!("{ok}Content-Length: 3\r\nContent-Length: 4\r\n"),
            Head(BadHead::ContentLength),
        ),
        (
            format!("{ok}Content-Length: x\r\n"),
            Head(BadHead::ContentLength),
        ),
        (
            format!("{ok}Transfer-Encoding: gzip, chunked\r\n"),
            Head(BadHead::UnknownCoding),
        ),
        (
            format!("{ok}Transfer-Encoding: chunked\u{c}\r\n"),
            Head(BadHead::TransferEncoding),
        ),
        (
            format!("{ok}Transfer-Encoding: gzip\r\n"),
            Head(BadHead::UnknownCoding),
        ),
        (
            format!("{ok}Transfer-Encoding: chunked, chunked\r\n"),
            Head(BadHead::TransferEncoding),
        ),
        (
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n".into(),
            Head(BadHead::TransferEncoding),
        ),
        (
            format!("{ok} folded: onto nothing\r\n"),
            Head(BadHead::ObsFold),
        ),
        (format!("{ok}X: a\u{0}b\r\n"), Head(BadHead::FieldValue)),
        (
            format!("{ok}X: a\rSet-Cookie: b\r\n"),
            Head(BadHead::LineEnd),
        ),
        (format!("{ok}X: a\rSet-Cookie: b\n"), Head(BadHead::LineEnd)),
        (format!("{ok}X: a\r\r\n"), Head(BadHead::LineEnd)),
        ("HTTP/1.1 200 O\rK\n".into(), Head(BadHead::LineEnd)),
        (format!("{ok}: b\r\n"), Head(BadHead::FieldName)),
        (format!("{ok}X Y: b\r\n"), Head(BadHead::FieldName)),
        ("HTTP/1.1  200 OK\r\n".into(), StatusLine),
        ("HTTP/1.1 20 OK\r\n".into(), StatusLine),
        ("HTTP/1.1 099 OK\r\n".into(), StatusLine),
        ("HTTP/1.1 2000 OK\r\n".into(), StatusLine),
        ("HTTP/1.1\r\n".into(), StatusLine),
        ("HTTP/1.1x200 OK\r\n".into(), StatusLine),
        ("ICY 200 OK\r\n".into(), StatusLine),
        ("HTTP/2.0 200 OK\r\n".into(), UnsupportedVersion),
        ("HTTP/1.1 200 O\u{0}K\r\n".into(), Head(BadHead::LineEnd)),
    ];
    for (text, why) in table {
        assert_eq!(
            parse(format!("{text}\r\n"), &Method::Get),
            Err(why),
            "{text:?}"
        );
    }
    assert_eq!(
        parse("SSH-2.0-", &Method::Get),
        Err(StatusLine),
        "known after one byte"
    );
    let limits = Limits {
        head: 40,
        fields: 200,
    };
    let bad = parse_response(&[b'H'; 0], &Method::Get, &limits);
    assert_eq!(bad, Ok(None));
    let long = format!("{ok}X: {}", "y".repeat(40));
    assert_eq!(
        parse_response(long.as_bytes(), &Method::Get, &limits),
        Err(Head(BadHead::TooLarge))
    );
}

#[test]
fn framing_of_what_is_passed_on() {
    let mut head = ResponseHead::new(200);
    assert_eq!(
        response_framing(&head, &Method::Get, Version::Http11),
        Framing::Chunked
    );
    assert_eq!(
        response_framing(&head, &Method::Get, Version::Http10),
        Framing::UntilClose
    );
    head.fields.push("content-length", "7");
    assert_eq!(
        response_framing(&head, &Method::Get, Version::Http10),
        Framing::Length(7)
    );
    assert_eq!(
        response_framing(&head, &Method::Head, Version::Http11),
        Framing::None
    );
    assert_eq!(
        response_framing(&head, &Method::Connect, Version::Http11),
        Framing::None
    );
    head.status = 304;
    assert_eq!(
        response_framing(&head, &Method::Get, Version::Http11),
        Framing::None
    );
}

#[test]
fn response_loses_framing_fields_with_underscores() {
    let response = read("HTTP/1.1 200 OK\r\nContent_Length: 9\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(response.framing, Framing::Length(0));
    assert!(!response.head.fields.contains("content_length"));
}

/// Old servers end lines with LF alone, and browsers take their responses.
#[test]
fn lines_may_end_with_lf_alone() {
    let usual = read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: a\r\n b\r\n\r\n");
    for text in [
        "HTTP/1.1 200 OK\nContent-Length: 5\nX: a\n b\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\nX: a\n b\r\n\n",
        "HTTP/1.1 200 OK\nContent-Length: 5\r\nX: a\r\n b\n\r\n",
    ] {
        let odd = read(text);
        assert_eq!(odd.framing, usual.framing);
        let values = |response: &Response| {
            let value = response.head.fields.get("x").expect("a value").to_vec();
            value
                .split(|byte| *byte == b' ')
                .map(<[u8]>::to_vec)
                .filter(|it| !it.is_empty())
                .collect::<Vec<_>>()
        };
        assert_eq!(values(&odd), values(&usual), "{text:?}");
    }
    let (bare, used) = parse("HTTP/1.1 200\n\nHTTP/", &Method::Get)
        .expect("valid")
        .expect("complete");
    assert_eq!((bare.head.status, used), (200, 14));
}
