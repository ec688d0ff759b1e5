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
            format!("{ok}Content-Length: 3\r\nContent-Length: 4\r\n"),
            Head(BadHead::ContentLength),
        ),
        (
            format!("{ok}Content-Length: 3, 4\r\nTransfer-Encoding: chunked\r\n"),
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
            format!("{ok}Transfer-Encoding: chunked, identity\r\n"),
            Head(BadHead::TransferEncoding),
        ),
        (
            format!("{ok}Transfer-Encoding: identity, gzip\r\n"),
            Head(BadHead::UnknownCoding),
        ),
        (
            format!("{ok}Transfer-Encoding:\r\n"),
            Head(BadHead::TransferEncoding),
        ),
        (
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n".into(),
            Head(BadHead::TransferEncoding),
        ),
        (format!("{ok}X: a\u{0}b\r\n"), Head(BadHead::FieldValue)),
        (
            format!("{ok}X: a\rSet-Cookie: b\r\n"),
            Head(BadHead::LineEnd),
        ),
        (format!("{ok}X: a\rSet-Cookie: b\n"), Head(BadHead::LineEnd)),
        (format!("{ok}X: a\r\r\n"), Head(BadHead::LineEnd)),
        ("HTTP/1.1 200 O\rK\n".into(), Head(BadHead::LineEnd)),
        (format!("{ok}X Y: a\u{0}b\r\n"), Head(BadHead::FieldValue)),
        (format!("{ok}X Y: a\rb\r\n"), Head(BadHead::LineEnd)),
        ("\r\n\r\n\r\nHTTP/1.1 200 OK\r\n".into(), StatusLine),
        ("\r\n\rHTTP/1.1 200 OK\r\n".into(), StatusLine),
        (" HTTP/1.1 200 OK\r\n".into(), StatusLine),
        ("HTTP/1.1 20 OK\r\n".into(), StatusLine),
        ("HTTP/1.1 099 OK\r\n".into(), StatusLine),
        ("HTTP/1.1 2000 OK\r\n".into(), StatusLine),
        ("HTTP/1.1\r\n".into(), StatusLine),
        ("HTTP/1.1x200 OK\r\n".into(), StatusLine),
        ("ICY 200 OK\r\n".into(), StatusLine),
        ("HTTP/1. 200 OK\r\n".into(), StatusLine),
        ("HTTP/1.1\u{c}200 OK\r\n".into(), StatusLine),
        ("HTTP/2.0 200 OK\r\n".into(), UnsupportedVersion),
        ("HTTP/2 200 OK\r\n".into(), UnsupportedVersion),
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

/// Reads a response with these lines besides a content length of 3.
fn with_lines(lines: &str) -> Response {
    read(&format!(
        "HTTP/1.1 200 OK\r\n{lines}Content-Length: 3\r\n\r\n"
    ))
}

/// Chunked overrides the length, which does not go on (RFC 9112 section 6.3).
#[test]
fn chunked_overrides_a_length() {
    let both = with_lines("Transfer-Encoding: chunked\r\nX: y\r\n");
    assert_eq!(both.framing, Framing::Chunked);
    assert!(both.is_repaired && !both.keep_alive);
    assert!(!both.head.fields.contains("content-length"));
    assert_eq!(both.head.fields.len(), 1);
    for method in [Method::Get, Method::Head] {
        let text = "HTTP/1.1 304 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n";
        let odd = read_for(text, &method);
        assert_eq!((odd.framing, odd.keep_alive), (Framing::None, false));
        assert!(odd.head.fields.is_empty());
    }
}

#[test]
fn codings_count_as_in_browsers() {
    for (codings, framing, is_repaired) in [
        ("chunked", Framing::Chunked, false),
        ("Chunked ", Framing::Chunked, false),
        ("chunked, chunked", Framing::Chunked, true),
        (
            "chunked\r\nTransfer-Encoding: chunked",
            Framing::Chunked,
            true,
        ),
        ("identity, chunked", Framing::Chunked, true),
        ("identity", Framing::UntilClose, true),
    ] {
        let response = read(&format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: {codings}\r\n\r\n"
        ));
        let read = (response.framing, response.is_repaired);
        assert_eq!(read, (framing, is_repaired), "{codings}");
        assert_eq!(response.keep_alive, !is_repaired, "{codings}");
    }
    for version in ["1.1", "1.0"] {
        let identity = read(&format!(
            "HTTP/{version} 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 3\r\n\r\n"
        ));
        assert_eq!(identity.framing, Framing::Length(3));
        assert!(identity.is_repaired && !identity.keep_alive);
    }
}

#[test]
fn lines_that_are_no_fields_are_left_out() {
    for line in [
        "X Powered By: x",
        "X(A): b",
        "garbage",
        ": b",
        "a,b: c",
        "\u{e9}: c",
        "garbage\r\n with a fold",
        " folded: onto nothing",
        &format!("{}: y", "x".repeat(300)),
    ] {
        let response = with_lines(&format!("{line}\r\nX-A: b\r\n"));
        assert_eq!(response.framing, Framing::Length(3), "{line}");
        assert!(response.keep_alive && !response.is_repaired, "{line}");
        assert_eq!(response.head.fields.len(), 2, "{line}");
        assert_eq!(response.head.fields.get("x-a"), Some(&b"b"[..]), "{line}");
    }
}

/// The origin may have meant a field that other readers see.
#[test]
fn left_out_lines_about_framing_end_the_connection() {
    for line in [
        "Content Length: 5",
        " Content-Length: 5",
        "Transfer-Encoding chunked",
        "Transfer-Encoding(x): chunked",
        "Cache Control: no-store",
        "Set Cookie: a=b",
        "\u{b}Vary: a",
        "private, no-store",
        "ETag \"1\"",
    ] {
        let response = with_lines(&format!("{line}\r\n"));
        assert_eq!(response.framing, Framing::Length(3), "{line}");
        assert!(response.is_repaired && !response.keep_alive, "{line}");
        assert_eq!(response.head.fields.len(), 1, "{line}");
    }
}

/// Some browsers overlook such fields.
#[test]
fn odd_framing_fields_end_the_connection() {
    for line in [
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\t: chunked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding: chunked\r\n ",
    ] {
        let response = read(&format!("HTTP/1.1 200 OK\r\nX: y\r\n{line}\r\n\r\n"));
        assert_eq!(response.framing, Framing::Chunked, "{line}");
        assert!(response.is_repaired && !response.keep_alive, "{line}");
    }
    let other = with_lines("X-A : b\r\nX-B: c\r\n d\r\n");
    assert!(other.keep_alive && !other.is_repaired);
    assert_eq!(other.head.fields.get("x-a"), Some(&b"b"[..]));
}

#[test]
fn empty_lines_before_a_head_are_skipped() {
    for blank in ["\r\n", "\n", "\r\n\r\n", "\n\n\n"] {
        let text = format!("{blank}HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n");
        let response = read(&text);
        assert_eq!(response.framing, Framing::Length(3), "{blank:?}");
        assert!(response.is_repaired && !response.keep_alive, "{blank:?}");
    }
}

#[test]
fn odd_status_lines() {
    for (line, version) in [
        ("HTTP/1 200 OK", Version::Http10),
        ("HTTP/1.0\t200", Version::Http10),
        ("HTTP/1.1  200  OK", Version::Http11),
        ("HTTP/1.1 200\tOK", Version::Http11),
        ("HTTP/1.1 \t 200 ", Version::Http11),
        ("http/1.1 200 OK", Version::Http11),
        ("HTTP/1.2 200 OK", Version::Http11),
    ] {
        let response = read(&format!("{line}\r\nContent-Length: 3\r\n\r\n"));
        assert_eq!(response.head.status, 200, "{line:?}");
        assert_eq!(response.version, version, "{line:?}");
        assert_eq!(response.framing, Framing::Length(3), "{line:?}");
        assert_eq!(response.keep_alive, version == Version::Http11, "{line:?}");
        assert!(!response.is_repaired, "{line:?}");
    }
}

#[test]
fn upgrade_without_names_counts_for_nothing() {
    let response = with_lines("Connection: upgrade\r\nUpgrade: \u{1}\r\n");
    assert_eq!((response.upgrade, response.keep_alive), (None, true));
}

#[test]
fn lines_of_a_head_are_bounded() {
    let limits = Limits {
        head: 1 << 20,
        fields: 10,
    };
    let begun = format!("HTTP/1.1 200 OK\r\n{}", "junk\r\n".repeat(12));
    let bad = parse_response(begun.as_bytes(), &Method::Get, &limits);
    assert_eq!(bad, Err(BadResponse::Head(BadHead::TooManyFields)));
    let large = format!(
        "HTTP/1.1 200 OK\r\nX: {}\r\n{}\r\n",
        "x".repeat(200 << 10),
        "Set-Cookie: a=b\r\n".repeat(900)
    );
    let read = parse_response(large.as_bytes(), &Method::Get, &Limits::RESPONSE);
    let (read, _) = read.expect("within the limits").expect("whole");
    assert_eq!(read.head.fields.len(), 901);
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
