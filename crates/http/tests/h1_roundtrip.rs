//! Written messages are read back the same, and arbitrary bytes are read the same in any pieces.

use bytes::BytesMut;
use proptest::prelude::*;
use tandem_http::h1::{
    Form, Framing, Limits, Version, parse_request, parse_response, response_framing, write_request,
    write_response,
};
use tandem_http::{Fields, Method, RequestHead, ResponseHead, Scheme};

fn fields() -> impl Strategy<Value = Fields> {
    prop::collection::vec(
        (
            "(x-[a-z0-9-]{1,20}|accept|user-agent|set-cookie)",
            "([!-~]([ -~]{0,40}[!-~])?)?",
        ),
        0..12,
    )
    .prop_map(|list| list.into_iter().collect())
}

fn authority() -> impl Strategy<Value = String> {
    "([a-z0-9]{1,10}\\.example|192\\.0\\.2\\.[1-9]|\\[2001:db8::[0-9a-f]{1,4}\\])(:[1-9][0-9]{0,3})?"
}

fn methods() -> impl Strategy<Value = Method> {
    "(GET|HEAD|POST|PUT|DELETE|TRACE|PATCH|PURGE)"
        .prop_map(|m| Method::parse(m.as_bytes()).expect("token"))
}

fn framings() -> impl Strategy<Value = Framing> {
    prop_oneof![
        Just(Framing::None),
        Just(Framing::Chunked),
        (0u64..1 << 50).prop_map(Framing::Length)
    ]
}

prop_compose! {
    fn request_heads()(
        method in methods(),
        https in any::<bool>(),
        authority in authority(),
        path in "/[!-\"$-~]{0,40}",
        fields in fields(),
        te in any::<bool>(),
    ) -> RequestHead {
        let mut fields = fields;
        if te {
            fields.push("te", "trailers");
        }
        let scheme = if https { Scheme::Https } else { Scheme::Http };
        RequestHead { method, scheme, authority, path, protocol: None, fields }
    }
}

/// Fields without those that the writer makes from the framing.
fn without_length(fields: &Fields) -> Fields {
    let mut fields = fields.clone();
    fields.remove("content-length");
    fields
}

/// Returns the lines of a head. Those whose bit in `bare` is set end with LF alone.
fn with_bare_lines(head: &[u8], bare: u16) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, line) in head.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match line.strip_suffix(b"\r\n") {
            Some(text) if bare >> (number % 16) & 1 == 1 => {
                out.extend_from_slice(text);
                out.push(b'\n');
            }
            _ => out.extend_from_slice(line),
        }
    }
    out
}

proptest! {
    #[test]
    fn requests(head in request_heads(), absolute in any::<bool>(), framing in framings(), upgrade in any::<bool>()) {
        let form = if absolute { Form::Absolute } else { Form::Origin };
        let upgrade = upgrade.then_some("websocket");
        let mut wire = BytesMut::new();
        write_request(&mut wire, &head, form, framing, upgrade);
        let (read, used) = parse_request(&wire, head.scheme, &Limits::default()).expect("own writing").expect("whole");
        prop_assert_eq!(used, wire.len());
        prop_assert_eq!(read.form, form);
        prop_assert_eq!(read.upgrade.as_deref(), upgrade);
        prop_assert!(read.keep_alive);
        let usual = matches!(head.method, Method::Post | Method::Put | Method::Patch);
        let expected = if framing == Framing::None && usual { Framing::Length(0) } else { framing };
        prop_assert_eq!(read.framing, expected);
        prop_assert_eq!(without_length(&read.head.fields), head.fields.clone());
        prop_assert_eq!(RequestHead { fields: Fields::new(), ..read.head }, RequestHead { fields: Fields::new(), ..head });
    }

    #[test]
    fn responses(
        status in 100u16..=999,
        fields in fields(),
        framing in framings(),
        keep_alive in any::<bool>(),
        old in any::<bool>(),
        bare in any::<u16>(),
    ) {
        let version = if old { Version::Http10 } else { Version::Http11 };
        let bodiless = status < 200 || status == 204 || status == 304;
        let framing = match framing {
            _ if bodiless => Framing::None,
            Framing::None => Framing::UntilClose,
            Framing::Chunked if old => Framing::UntilClose,
            framing => framing,
        };
        let head = ResponseHead { status, fields };
        let mut wire = BytesMut::new();
        write_response(&mut wire, &head, version, framing, keep_alive, None);
        let (read, used) = parse_response(&wire, &Method::Get, &Limits::default()).expect("own writing").expect("whole");
        prop_assert_eq!(used, wire.len());
        prop_assert_eq!((read.version, read.framing), (version, framing));
        if status >= 200 {
            prop_assert_eq!(read.keep_alive, keep_alive && framing != Framing::UntilClose);
        }
        prop_assert_eq!(without_length(&read.head.fields), head.fields);
        prop_assert_eq!(read.head.status, status);
        let odd = with_bare_lines(&wire, bare);
        let again = parse_response(&odd, &Method::Get, &Limits::default());
        let (again, used) = again.expect("LF may end a line").expect("whole");
        prop_assert_eq!(used, odd.len());
        prop_assert_eq!(again, read);
    }

    /// A response that breaks the rules is passed on clear, and framed as it was read.
    #[test]
    fn repaired_responses(
        fields in fields(),
        length in prop::option::of("(5|5, 5|05|5\r\nContent-Length: 5)"),
        coding in prop::option::of("(chunked|identity|chunked, chunked|identity, chunked)"),
        colon in "( |\t|)",
        junk in prop::collection::vec("( |)[a-z(-]{1,9}[ (]?[a-z-]{0,9}(: x)?", 0..4),
        blank in "(\r\n|\n|)",
        start in "(HTTP/1[.]1 200 OK|HTTP/1[.]1  200|http/1[.]1\t200 OK)",
    ) {
        let mut text = format!("{blank}{start}\r\n");
        for line in &junk {
            text += &format!("{line}\r\n");
        }
        for field in fields.iter() {
            let [name, value] = [field.name, field.value].map(String::from_utf8_lossy);
            text += &format!("{name}: {value}\r\n");
        }
        if let Some(length) = &length {
            text += &format!("Content-Length{colon}: {length}\r\n");
        }
        if let Some(coding) = &coding {
            text += &format!("Transfer-Encoding{colon}: {coding}\r\n");
        }
        text += "\r\n";
        let limits = Limits::RESPONSE;
        let read = parse_response(text.as_bytes(), &Method::Get, &limits);
        let (read, used) = read.expect("repaired").expect("whole");
        prop_assert_eq!(used, text.len());
        let chunked = coding.as_ref().is_some_and(|coding| coding.ends_with("chunked"));
        let expected = match &length {
            _ if chunked => Framing::Chunked,
            Some(_) => Framing::Length(5),
            None => Framing::UntilClose,
        };
        prop_assert_eq!(read.framing, expected);
        let is_odd = (chunked && length.is_some())
            || coding.as_ref().is_some_and(|coding| coding != "chunked")
            || (!colon.is_empty() && (length.is_some() || coding.is_some()))
            || !blank.is_empty();
        prop_assert!(read.is_repaired || !is_odd);
        prop_assert!(!(read.is_repaired && read.keep_alive));
        for cut in 0..text.len() {
            let part = parse_response(&text.as_bytes()[..cut], &Method::Get, &limits);
            prop_assert_eq!(part, Ok(None));
        }
        let framing = response_framing(&read.head, &Method::Get, Version::Http11);
        let mut wire = BytesMut::new();
        write_response(&mut wire, &read.head, Version::Http11, framing, true, None);
        let again = parse_response(&wire, &Method::Get, &limits);
        let (again, _) = again.expect("own writing").expect("whole");
        prop_assert!(!again.is_repaired && again.keep_alive);
        let closes = read.framing == Framing::UntilClose;
        prop_assert_eq!(again.framing, if closes { Framing::Chunked } else { read.framing });
        prop_assert_eq!(without_length(&again.head.fields), without_length(&read.head.fields));
    }

    /// A prefix is never understood otherwise than the whole: it waits, or it fails as the whole
    /// does.
    #[test]
    fn cuts(noise in prop::collection::vec(prop::sample::select(
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\nTE:content-length,chunked 01\t\x00\xff(\n\n"[..]
    ), 0..120), at in 0usize..120) {
        let start = b"GET / HTTP/1.1\r\nHost: a\r\n";
        for text in [noise.clone(), [&start[..], &noise].concat(), [&b"HTTP/1.1 200 OK\r\n"[..], &noise].concat()] {
            let at = at.min(text.len());
            let limits = Limits { head: 100, fields: 5 };
            let whole = parse_request(&text, Scheme::Http, &limits);
            let part = parse_request(&text[..at], Scheme::Http, &limits);
            prop_assert!(part == Ok(None) || part == whole, "{:?} then {:?}", part, whole);
            let whole = parse_response(&text, &Method::Get, &limits);
            let part = parse_response(&text[..at], &Method::Get, &limits);
            prop_assert!(part == Ok(None) || part == whole, "{:?} then {:?}", part, whole);
        }
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let limits = Limits::default();
        let _ = parse_request(&bytes, Scheme::Http, &limits);
        let _ = parse_response(&bytes, &Method::Get, &limits);
    }
}

/// A value that another codec left unchecked cannot end a line here.
#[test]
fn nothing_can_be_injected() {
    let mut head = RequestHead::get(Scheme::Http, "a\r\nX: y", "/ HTTP/1.1\r\nX: y\r\n\r\nGET /");
    head.fields.push("x-bad", "1\r\nX: y");
    head.fields.push("connection", "close");
    head.fields.push("transfer-encoding", "chunked");
    head.fields.push("content-length", "7");
    let mut wire = BytesMut::new();
    write_request(&mut wire, &head, Form::Origin, Framing::None, None);
    let path = "/%20HTTP/1.1%0D%0AX:%20y%0D%0A%0D%0AGET%20/";
    assert_eq!(
        wire,
        format!("GET {path} HTTP/1.1\r\nHost: a%0D%0AX:%20y\r\n\r\n")
    );
}

#[test]
fn requests_look_as_expected() {
    let mut head = RequestHead::get(Scheme::Http, "a.example", "/x");
    for (name, value) in [
        ("cookie", "a=1"),
        ("user-agent", "t"),
        ("cookie", "b=2"),
        ("te", "trailers"),
    ] {
        head.fields.push(name, value);
    }
    let written = |head: &RequestHead, form, framing, upgrade| {
        let mut wire = BytesMut::new();
        write_request(&mut wire, head, form, framing, upgrade);
        String::from_utf8(wire.to_vec()).expect("text")
    };
    assert_eq!(
        written(&head, Form::Absolute, Framing::None, Some("websocket")),
        "GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\nCookie: a=1; b=2\r\nUser-Agent: t\r\nTe: trailers\r\n\
         Connection: Upgrade, TE\r\nUpgrade: websocket\r\n\r\n"
    );
    let tunnel = RequestHead::connect("a:443");
    assert_eq!(
        written(&tunnel, Form::Authority, Framing::None, None),
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"
    );
    let star = RequestHead {
        method: Method::Options,
        ..RequestHead::get(Scheme::Http, "a", "*")
    };
    assert_eq!(
        written(&star, Form::Asterisk, Framing::None, None),
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"
    );
    assert_eq!(
        written(&star, Form::Absolute, Framing::None, None),
        "OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n"
    );
    let mut head = RequestHead::get(Scheme::Http, "a", "/");
    head.fields.push("expect", "100-continue");
    assert_eq!(
        written(&head, Form::Origin, Framing::None, None),
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "a request without content expects nothing"
    );
    let has_expectation =
        |framing| written(&head, Form::Origin, framing, None).contains("Expect: 100");
    assert!(has_expectation(Framing::Length(1)) && has_expectation(Framing::Chunked));
    assert!(!has_expectation(Framing::Length(0)));
}

#[test]
fn responses_look_as_expected() {
    let written = |head: &ResponseHead, version, framing, keep_alive, upgrade| {
        let mut wire = BytesMut::new();
        write_response(&mut wire, head, version, framing, keep_alive, upgrade);
        String::from_utf8(wire.to_vec()).expect("text")
    };
    let mut head = ResponseHead::new(200);
    head.fields.push("content-length", "9");
    head.fields.push("etag", "\"x\"");
    assert_eq!(
        written(&head, Version::Http11, Framing::None, true, None),
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nEtag: \"x\"\r\n\r\n",
        "to HEAD"
    );
    assert_eq!(
        written(&head, Version::Http11, Framing::Chunked, false, None),
        "HTTP/1.1 200 OK\r\nEtag: \"x\"\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        written(&head, Version::Http10, Framing::Length(9), true, None),
        "HTTP/1.0 200 OK\r\nEtag: \"x\"\r\nContent-Length: 9\r\nConnection: keep-alive\r\n\r\n"
    );
    head.status = 204;
    assert_eq!(
        written(&head, Version::Http11, Framing::Length(9), true, None),
        "HTTP/1.1 204 No Content\r\nEtag: \"x\"\r\n\r\n"
    );
    let switch = ResponseHead::new(101);
    assert_eq!(
        written(
            &switch,
            Version::Http11,
            Framing::None,
            true,
            Some("websocket")
        ),
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    assert_eq!(
        written(
            &ResponseHead::new(599),
            Version::Http11,
            Framing::Length(0),
            true,
            None
        )
        .lines()
        .next(),
        Some("HTTP/1.1 599 ")
    );
}
