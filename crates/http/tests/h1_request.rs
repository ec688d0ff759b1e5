//! Request heads: accepted and refused input, the status of each refusal, and arbitrary cuts.

use tandem_http::h1::{
    BadHead, BadRequest, Form, Framing, Limits, Request, Version, parse_request,
};
use tandem_http::{Method, Scheme};

fn parse(text: impl AsRef<[u8]>) -> Result<Option<(Request, usize)>, BadRequest> {
    parse_request(text.as_ref(), Scheme::Http, &Limits::default())
}

fn read(text: &str) -> Request {
    let (request, used) = parse(text).expect("valid").expect("complete");
    assert_eq!(used, text.len(), "all of the head is used");
    for cut in 0..text.len() {
        assert_eq!(
            parse(&text.as_bytes()[..cut]),
            Ok(None),
            "cut at {cut} of {text:?}"
        );
    }
    request
}

/// Refuses `text`, however it is cut, as soon as it is whole and never for another reason.
fn refused(text: &str) -> BadRequest {
    let bad = parse(text).expect_err(text);
    for cut in 0..text.len() {
        match parse(&text.as_bytes()[..cut]) {
            Ok(None) => {}
            other => assert_eq!(other, Err(bad), "cut at {cut} of {text:?}"),
        }
    }
    bad
}

fn field<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request
        .head
        .fields
        .get(name)
        .map(|v| std::str::from_utf8(v).expect("text"))
}

#[test]
fn origin_form() {
    let request = read(
        "GET /a?b=c|{} HTTP/1.1\r\nHost: example.com:8080\r\nAccept:\t */* \r\nX-Empty:\r\n\r\n",
    );
    assert_eq!(request.head.method, Method::Get);
    assert_eq!(request.head.scheme, Scheme::Http);
    assert_eq!(request.head.authority, "example.com:8080");
    assert_eq!(request.head.path, "/a?b=c|{}");
    assert_eq!(
        (request.form, request.version, request.framing),
        (Form::Origin, Version::Http11, Framing::None)
    );
    assert!(request.keep_alive && !request.expect_continue && request.upgrade.is_none());
    assert_eq!(field(&request, "accept"), Some("*/*"));
    assert_eq!(field(&request, "x-empty"), Some(""));
    assert_eq!(request.head.fields.len(), 2);
}

#[test]
fn absolute_form() {
    let request = read("GET HTTPS://Example.com HTTP/1.1\r\nhost: example.com:443\r\n\r\n");
    assert_eq!(
        (request.form, request.head.scheme),
        (Form::Absolute, Scheme::Https)
    );
    assert_eq!(
        (request.head.authority.as_str(), request.head.path.as_str()),
        ("Example.com", "/")
    );
    assert_eq!(
        read("GET http://a?q=//b HTTP/1.1\r\nHost: a\r\n\r\n")
            .head
            .path,
        "/?q=//b"
    );
    assert_eq!(
        read("OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n")
            .head
            .path,
        "*"
    );
    let request = read("GET http://[2001:DB8::1]:81/x HTTP/1.0\r\n\r\n");
    assert_eq!(request.head.authority, "[2001:DB8::1]:81");
    assert!(!request.keep_alive);
}

/// Programs send the bytes of other scripts as they are.
#[test]
fn targets_beyond_ascii_are_encoded() {
    for target in ["/\u{e9}?\u{20ac}=%41", "http://a/\u{e9}?\u{20ac}=%41"] {
        let request = read(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(request.head.path, "/%C3%A9?%E2%82%AC=%41");
        assert_eq!(request.head.authority, "a");
    }
    for target in ["http://\u{e9}/", "\u{e9}:443"] {
        let method = if target.contains('/') {
            "GET"
        } else {
            "CONNECT"
        };
        let text = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let bad = parse_request(text.as_bytes(), Scheme::Http, &Limits::default());
        assert_eq!(bad, Err(BadRequest::Authority), "{text}");
    }
}

#[test]
fn other_forms() {
    let request =
        read("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(
        (request.form, request.framing),
        (Form::Authority, Framing::None)
    );
    assert_eq!(
        (request.head.authority.as_str(), request.head.path.as_str()),
        ("a.example:443", "")
    );
    assert!(request.head.fields.is_empty());
    let request = read("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(
        (request.form, request.head.path.as_str()),
        (Form::Asterisk, "*")
    );
    let request = read("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(
        (request.version, request.head.authority.as_str()),
        (Version::Http10, "")
    );
    let request = read("BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(request.head.method.as_str(), "BREW");
}

#[test]
fn an_empty_line_before_the_request_line() {
    let text = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nGET /next";
    let (_, used) = parse(text).expect("valid").expect("complete");
    assert_eq!(&text[used..], "GET /next");
    assert_eq!(parse("\r"), Ok(None));
    assert_eq!(parse("\r\n\r"), Err(BadRequest::Method));
    assert_eq!(parse("\n"), Err(BadRequest::Method));
}

#[test]
fn framing() {
    let of = |fields: &str| read(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    assert_eq!(of("").framing, Framing::None);
    assert_eq!(of("Content-Length: 0\r\n").framing, Framing::Length(0));
    let repeated = of("Content-Length: 005, 5\r\nContent-length: 5\r\n");
    assert_eq!(repeated.framing, Framing::Length(5));
    assert_eq!(
        repeated
            .head
            .fields
            .get_all("content-length")
            .collect::<Vec<_>>(),
        [b"5"]
    );
    let chunked = of("Transfer-Encoding: CHUNKED\r\nTrailer: x-sum\r\n");
    assert_eq!(chunked.framing, Framing::Chunked);
    assert_eq!(
        chunked
            .head
            .fields
            .iter()
            .map(|f| f.name)
            .collect::<Vec<_>>(),
        [b"trailer"]
    );
}

#[test]
fn hop_by_hop_fields_stay_behind() {
    let request = read(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Keep-Alive, X-Hop,te\r\nX-Hop: 1\r\nProxy-Connection: keep-alive\r\n\
         Keep-Alive: timeout=9\r\nTE: trailers, deflate\r\nProxy-Authorization: Basic eDp5\r\nUpgrade: h2c\r\nX-End: 2\r\n\r\n",
    );
    let names: Vec<_> = request
        .head
        .fields
        .iter()
        .map(|f| String::from_utf8_lossy(f.name).into_owned())
        .collect();
    assert_eq!(names, ["te", "proxy-authorization", "x-end"]);
    assert_eq!(field(&request, "te"), Some("trailers"));
    assert_eq!(request.upgrade, None, "connection does not name it");
    let sensitive: Vec<_> = request
        .head
        .fields
        .iter()
        .filter(|f| f.sensitive)
        .map(|f| f.name)
        .collect();
    assert_eq!(sensitive, [b"proxy-authorization"]);
    let request = read(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: content-length, host\r\nContent-Length: 3\r\n\r\n",
    );
    assert_eq!(
        (request.framing, field(&request, "content-length")),
        (Framing::Length(3), Some("3"))
    );
}

#[test]
fn upgrade_and_expect() {
    let text = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nUpgrade: a/1\r\n\r\n";
    assert_eq!(read(text).upgrade.as_deref(), Some("websocket, a/1"));
    assert_eq!(read(&text.replace("HTTP/1.1", "HTTP/1.0")).upgrade, None);
    let text = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n";
    assert!(read(text).expect_continue);
    assert!(!read(&text.replace("HTTP/1.1", "HTTP/1.0")).expect_continue);
    assert!(
        !read(&text.replace("Length: 3", "Length: 0")).expect_continue,
        "no body to wait with"
    );
}

#[test]
fn persistence() {
    let of = |version: &str, connection: &str| {
        read(&format!(
            "GET / HTTP/{version}\r\nHost: a\r\nConnection: {connection}\r\n\r\n"
        ))
        .keep_alive
    };
    assert!(of("1.1", "x"));
    assert!(!of("1.1", "keep-alive, Close"));
    assert!(!of("1.0", "x"));
    assert!(of("1.0", "Keep-Alive"));
}

#[test]
fn refused_with_400_because_two_readers_could_differ() {
    use BadHead::{
        BothLengths, ContentLength, FieldName, FieldValue, LineEnd, ObsFold, SpaceBeforeColon,
        TransferEncoding, Underscore, Upgrade,
    };
    let table: &[(&str, BadHead)] = &[
        (
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            BothLengths,
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
            BothLengths,
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
            BothLengths,
        ),
        ("Content-Length: 3\r\nContent-Length: 4\r\n", ContentLength),
        ("Content-Length: 3, 4\r\n", ContentLength),
        ("Content-Length: 3,\r\n", ContentLength),
        ("Content-Length:\r\n", ContentLength),
        ("Content-Length: +3\r\n", ContentLength),
        ("Content-Length: -3\r\n", ContentLength),
        ("Content-Length: 0x3\r\n", ContentLength),
        ("Content-Length: 3 3\r\n", ContentLength),
        ("Content-Length: 3;\r\n", ContentLength),
        ("Content-Length: 18446744073709551619\r\n", ContentLength),
        ("Transfer-Encoding: chunked, chunked\r\n", TransferEncoding),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            TransferEncoding,
        ),
        ("Transfer-Encoding: chunked, gzip\r\n", TransferEncoding),
        ("Transfer-Encoding: chunked, identity\r\n", TransferEncoding),
        ("Transfer-Encoding:\r\n", TransferEncoding),
        ("Transfer-Encoding: ,chunked\r\n", TransferEncoding),
        ("Transfer-Encoding: \"chunked\"\r\n", TransferEncoding),
        ("Transfer-Encoding: chunked;q=1\r\n", TransferEncoding),
        ("Transfer-Encoding: chunk ed\r\n", TransferEncoding),
        ("Transfer-Encoding: \u{b}chunked\r\n", FieldValue),
        ("Transfer-Encoding: chunked\u{0}\r\n", FieldValue),
        ("Transfer_Encoding: chunked\r\n", Underscore),
        ("Content-Length: 3\r\nContent_Length: 4\r\n", Underscore),
        ("Proxy_Connection: keep-alive\r\n", Underscore),
        ("Transfer-Encoding : chunked\r\n", SpaceBeforeColon),
        ("Transfer-Encoding\t: chunked\r\n", SpaceBeforeColon),
        ("Transfer-Encoding:\r\n chunked\r\n", ObsFold),
        ("X: y\r\n\tz\r\n", ObsFold),
        ("X: y\r\n \r\n", ObsFold),
        ("X: y\nTransfer-Encoding: chunked\r\n", LineEnd),
        ("X: y\n\r\n", LineEnd),
        ("X: y\rTransfer-Encoding: chunked\r\n", LineEnd),
        ("X: y\r\r\n", LineEnd),
        ("\u{a0}Content-Length: 3\r\n", FieldName),
        ("Content\u{0}-Length: 3\r\n", FieldName),
        ("Content-Length\r\n", FieldName),
        (": x\r\n", FieldName),
        ("X(y): z\r\n", FieldName),
        ("\"Host\": b\r\n", FieldName),
        ("X: a\u{7f}\r\n", FieldValue),
        ("X: a\u{0}b\r\n", FieldValue),
        ("X: \u{1b}[2J\r\n", FieldValue),
        ("Connection: upgrade\r\nUpgrade: \u{e9}\r\n", Upgrade),
        ("Connection: upgrade\r\nUpgrade:\r\n", Upgrade),
    ];
    for (fields, why) in table {
        let bad = refused(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        assert_eq!(
            (bad, bad.status()),
            (BadRequest::Head(*why), 400),
            "{fields:?}"
        );
    }
    assert_eq!(
        refused("GET / HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n"),
        BadRequest::Head(ObsFold)
    );
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(refused(old), BadRequest::Head(TransferEncoding));
    let tunnel = "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n";
    assert_eq!(
        refused(&format!("{tunnel}Content-Length: 5\r\n\r\n")),
        BadRequest::Head(ContentLength)
    );
    assert_eq!(
        refused(&format!("{tunnel}Transfer-Encoding: chunked\r\n\r\n")),
        BadRequest::Head(TransferEncoding)
    );
}

#[test]
fn codings_that_are_not_implemented() {
    for codings in [
        "gzip, chunked",
        "xchunked",
        "identity",
        "gzip",
        "gzip\r\nTransfer-Encoding: chunked",
    ] {
        let bad = refused(&format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {codings}\r\n\r\n"
        ));
        assert_eq!(
            (bad, bad.status()),
            (BadRequest::Head(BadHead::UnknownCoding), 501),
            "{codings:?}"
        );
    }
}

#[test]
fn request_lines_refused() {
    use BadRequest::{Authority, Method, Scheme, Target, UnsupportedVersion, Version};
    let table = [
        (" / HTTP/1.1", Method),
        ("GE\tT / HTTP/1.1", Method),
        ("GET\t/ HTTP/1.1", Method),
        ("G(T / HTTP/1.1", Method),
        ("\u{16}\u{3}\u{1}\u{2}", Method),
        ("GET  / HTTP/1.1", Version),
        ("GET / HTTP/1.1 ", Version),
        ("GET /a b HTTP/1.1", Version),
        ("GET /", Version),
        ("GET / http/1.1", Version),
        ("GET / HTTP/1.10", Version),
        ("GET / HTTP/11", Version),
        ("GET / HTTP/2.0", UnsupportedVersion),
        ("GET / HTTP/1.2", UnsupportedVersion),
        ("GET / HTTP/0.9", UnsupportedVersion),
        ("PRI * HTTP/2.0", UnsupportedVersion),
        ("GET /a#b HTTP/1.1", Target),
        ("GET a HTTP/1.1", Target),
        ("GET * HTTP/1.1", Target),
        ("GET /\u{1} HTTP/1.1", Target),
        ("GET /\u{7f} HTTP/1.1", Target),
        ("GET http:/a HTTP/1.1", Target),
        ("GET a:80 HTTP/1.1", Target),
        ("GET ftp://a/ HTTP/1.1", Scheme),
        ("GET ://a/ HTTP/1.1", Scheme),
        ("GET http:// HTTP/1.1", Authority),
        ("GET http:///x HTTP/1.1", Authority),
        ("GET http://u@a/ HTTP/1.1", Authority),
        ("GET http://u:p@a/ HTTP/1.1", Authority),
        ("GET http://a:x/ HTTP/1.1", Authority),
        ("GET http://a:99999/ HTTP/1.1", Authority),
        ("GET http://a\\b/ HTTP/1.1", Authority),
        ("GET http://[::1/ HTTP/1.1", Authority),
        ("CONNECT a HTTP/1.1", Authority),
        ("CONNECT a: HTTP/1.1", Authority),
        ("CONNECT / HTTP/1.1", Authority),
        ("CONNECT http://a:443/ HTTP/1.1", Authority),
        ("CONNECT u@a:443 HTTP/1.1", Authority),
    ];
    for (line, why) in table {
        let bad = refused(&format!("{line}\r\nHost: a\r\n\r\n"));
        let status = if why == UnsupportedVersion { 505 } else { 400 };
        assert_eq!((bad, bad.status()), (why, status), "{line:?}");
    }
    assert_eq!(
        refused("GET /a\rb HTTP/1.1\r\nHost: a\r\n\r\n"),
        BadRequest::Head(BadHead::LineEnd)
    );
}

#[test]
fn empty_port_is_left_out() {
    for head in [
        "GET http://a:/x HTTP/1.1\r\nHost: a",
        "GET http://a/x HTTP/1.1\r\nHost: a:",
        "GET http://a:/x HTTP/1.1\r\nHost: a:80",
        "GET /x HTTP/1.1\r\nHost: a:",
    ] {
        let request = read(&format!("{head}\r\n\r\n"));
        let found = (&*request.head.authority, &*request.head.path);
        assert_eq!(found, ("a", "/x"), "{head}");
    }
    let literal = read("GET http://[::1]:/ HTTP/1.1\r\nHost: [::1]:\r\n\r\n");
    assert_eq!(literal.head.authority, "[::1]");
    for head in [
        "GET http://:/ HTTP/1.1\r\nHost: a",
        "GET http://a::/ HTTP/1.1\r\nHost: a",
        "GET / HTTP/1.1\r\nHost: :",
        "GET / HTTP/1.1\r\nHost: a::",
    ] {
        assert_eq!(refused(&format!("{head}\r\n\r\n")), BadRequest::Authority);
    }
}

#[test]
fn host_is_ignored_beside_an_absolute_target() {
    for (line, host, authority) in [
        ("GET http://a/ HTTP/1.1", "b", "a"),
        ("GET http://a/ HTTP/1.0", "b", "a"),
        ("GET http://a:81/ HTTP/1.1", "a", "a:81"),
        ("GET http://a/ HTTP/1.1", "a:443", "a"),
        ("GET https://a/ HTTP/1.1", "a:80", "a"),
    ] {
        let request = read(&format!("{line}\r\nHost: {host}\r\n\r\n"));
        assert_eq!(request.head.authority, authority, "{line} {host}");
        assert!(!request.head.fields.contains("host"), "{line} {host}");
    }
}

#[test]
fn hosts_refused() {
    let table = [
        ("GET / HTTP/1.1\r\n\r\n", BadRequest::HostMissing),
        ("GET http://a/ HTTP/1.1\r\n\r\n", BadRequest::HostMissing),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", BadRequest::HostMissing),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
            BadRequest::HostRepeated,
        ),
        (
            "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
            BadRequest::HostRepeated,
        ),
        (
            "GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            BadRequest::HostRepeated,
        ),
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: a:80\r\n\r\n",
            BadRequest::HostConflict,
        ),
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: b\r\n\r\n",
            BadRequest::HostConflict,
        ),
        ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", BadRequest::Authority),
        (
            "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
            BadRequest::Authority,
        ),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", BadRequest::Authority),
        (
            "GET / HTTP/1.1\r\nHost: a:80:81\r\n\r\n",
            BadRequest::Authority,
        ),
        (
            "GET / HTTP/1.1\r\nHost: http://a\r\n\r\n",
            BadRequest::Authority,
        ),
    ];
    for (text, why) in table {
        let bad = refused(text);
        assert_eq!((bad, bad.status()), (why, 400), "{text:?}");
    }
}

#[test]
fn limits() {
    let limits = Limits {
        head: 100,
        fields: 3,
    };
    let parse = |text: &str| parse_request(text.as_bytes(), Scheme::Http, &limits);
    let fits = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(68));
    assert_eq!(fits.len(), 100);
    assert!(matches!(parse(&fits), Ok(Some((_, 100)))));
    let over = fits.replace("X: ", "X: y");
    let bad = parse(&over).expect_err("too large");
    assert_eq!(
        (bad, bad.status()),
        (BadRequest::Head(BadHead::TooLarge), 431)
    );
    assert_eq!(parse(&over[..100]), Err(bad), "no need to wait for more");
    let bad = parse(&format!("GET /{}", "a".repeat(100))).expect_err("too long");
    assert_eq!((bad, bad.status()), (BadRequest::TargetTooLong, 414));
    let bad =
        parse("GET / HTTP/1.1\r\nHost: a\r\nB: c\r\nD: e\r\nF: g\r\n\r\n").expect_err("too many");
    assert_eq!(
        (bad, bad.status()),
        (BadRequest::Head(BadHead::TooManyFields), 431)
    );
    let named = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n",
        "a,".repeat(4)
    );
    assert_eq!(parse(&named), Err(BadRequest::Head(BadHead::TooManyFields)));
    let wide = Limits {
        head: 1 << 20,
        fields: 1 << 15,
    };
    for (options, expected) in [(200, true), (201, false)] {
        let connection = "a,".repeat(options);
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\n\r\n");
        let parsed = parse_request(text.as_bytes(), Scheme::Http, &wide);
        assert_eq!(
            parsed.is_ok(),
            expected,
            "each option is compared with each field"
        );
    }
    let name = format!(
        "GET / HTTP/1.1\r\nHost: a\r\n{}: b\r\n\r\n",
        "n".repeat(300)
    );
    assert_eq!(refused(&name), BadRequest::Head(BadHead::TooLarge));
}

/// Debug output goes to logs: it hides the destination and the credentials.
#[test]
fn debug_output_is_discreet() {
    let request = read(
        "GET http://secret.example/path HTTP/1.1\r\nHost: secret.example\r\nCookie: hush\r\n\r\n",
    );
    let shown = format!("{request:?}");
    assert!(
        shown.contains("cookie")
            && !shown.contains("secret")
            && !shown.contains("path")
            && !shown.contains("hush")
    );
}
