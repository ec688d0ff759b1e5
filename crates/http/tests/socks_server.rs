//! The server's half of SOCKS5: dialogues as lists of bytes, pipelined and cut anywhere.

use proptest::prelude::*;
use tandem_http::socks::{BadSocks, Client, Command, Progress, Reply, Request, Server};

/// Feeds pieces; returns the request, all output and the bytes after the request.
fn feed<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Result<Option<Request>, BadSocks>, Vec<u8>, Vec<u8>) {
    let mut server = Server::new();
    let mut request = None;
    let mut out = Vec::new();
    for piece in pieces {
        match server.handle_input(piece) {
            Ok(got) => request = request.or(got),
            Err(bad) => {
                server.poll_output(&mut out);
                assert_eq!(server.handle_input(b"more"), Err(bad), "an error stays");
                assert_eq!(server.take_rest(), b"");
                return (Err(bad), out, Vec::new());
            }
        }
        server.poll_output(&mut out);
    }
    (Ok(request), out, server.take_rest())
}

fn both_ways(bytes: &[u8]) -> (Result<Option<Request>, BadSocks>, Vec<u8>, Vec<u8>) {
    let whole = feed([bytes]);
    assert_eq!(whole, feed(bytes.chunks(1)), "{bytes:02x?}");
    whole
}

#[test]
fn without_credentials() {
    let (request, out, rest) = both_ways(b"\x05\x01\x00\x05\x01\x00\x03\x09a.example\x01\xbbdata");
    let request = request.expect("valid").expect("whole");
    assert_eq!(
        (request.command, request.target.as_str()),
        (Command::Connect, "a.example:443")
    );
    assert_eq!((request.user, request.password), (None, None));
    assert_eq!((&out[..], &rest[..]), (&b"\x05\x00"[..], &b"data"[..]));
}

#[test]
fn with_credentials_though_none_would_do() {
    let (request, out, rest) = both_ways(
        b"\x05\x02\x00\x02\x01\x04user\x06secret\x05\x01\x00\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\0\x50",
    );
    let request = request.expect("valid").expect("whole");
    assert_eq!(request.target, "[2001:db8::1]:80");
    assert_eq!(
        (request.user.as_deref(), request.password.as_deref()),
        (Some(&b"user"[..]), Some(&b"secret"[..]))
    );
    assert_eq!((&out[..], &rest[..]), (&b"\x05\x02\x01\x00"[..], &b""[..]));
    assert_eq!(
        format!(
            "{:?}",
            Request {
                command: Command::Bind,
                ..request
            }
        ),
        "Request { command: Bind, .. }"
    );
}

#[test]
fn targets() {
    let of = |address: &[u8]| {
        let mut bytes = b"\x05\x01\x00\x05\xf0\x00".to_vec();
        bytes.extend_from_slice(address);
        both_ways(&bytes)
            .0
            .map(|r| r.map(|r| (r.command, r.target)))
    };
    assert_eq!(
        of(b"\x01\xc0\x00\x02\x50\x26\xfc"),
        Ok(Some((Command::Resolve, "192.0.2.80:9980".into())))
    );
    assert_eq!(
        of(b"\x03\x03::1\x00\x50"),
        Ok(Some((Command::Resolve, "[::1]:80".into())))
    );
    assert_eq!(
        of(b"\x03\x05[::1]\x00\x50"),
        Ok(Some((Command::Resolve, "[::1]:80".into())))
    );
    assert_eq!(
        of(b"\x03\x06[A::B]\x00\x50"),
        Ok(Some((Command::Resolve, "[a::b]:80".into()))),
        "an address in brackets has one form"
    );
    assert_eq!(of(b"\x03\x00\x00\x50"), Err(BadSocks::Host));
    assert_eq!(of(b"\x03\x03a:1\x00\x50"), Err(BadSocks::Host));
    assert_eq!(of(b"\x03\x03a b\x00\x50"), Err(BadSocks::Host));
    assert_eq!(of(b"\x03\x02\xc3\xa9\x00\x50"), Err(BadSocks::Host));
    assert_eq!(of(b"\x03\x04a\r\nb\x00\x50"), Err(BadSocks::Host));
}

#[test]
fn refused_and_told_so() {
    let table: &[(&[u8], BadSocks, &[u8])] = &[
        (b"\x04\x01", BadSocks::Version, b""),
        (b"GET / HTTP/1.1\r\n", BadSocks::Version, b""),
        (b"\x05\x01\x01", BadSocks::NoMethod, b"\x05\xff"),
        (b"\x05\x00", BadSocks::NoMethod, b"\x05\xff"),
        (
            b"\x05\x01\x02\x05",
            BadSocks::Credentials,
            b"\x05\x02\x01\x01",
        ),
        (
            b"\x05\x01\x00\x04",
            BadSocks::Version,
            b"\x05\x00\x05\x01\x00\x01\0\0\0\0\0\0",
        ),
        (
            b"\x05\x01\x00\x05\x01\x00\x02",
            BadSocks::AddressType,
            b"\x05\x00\x05\x08\x00\x01\0\0\0\0\0\0",
        ),
        (
            b"\x05\x01\x00\x05\x01\x00\x03\x01/\0\x50",
            BadSocks::Host,
            b"\x05\x00\x05\x01\x00\x01\0\0\0\0\0\0",
        ),
    ];
    for (input, why, told) in table {
        let (result, out, _) = both_ways(input);
        assert_eq!((result, &out[..]), (Err(*why), *told), "{input:02x?}");
    }
}

#[test]
fn replies_once() {
    let mut server = Server::new();
    server.reply(Reply::Succeeded);
    let mut out = Vec::new();
    server.poll_output(&mut out);
    assert_eq!(out, b"", "nothing to answer yet");
    server
        .handle_input(b"\x05\x01\x00\x05\x01\x00\x03\x01a\0\x50early")
        .expect("valid")
        .expect("whole");
    server.reply(Reply::OnionRendezvousFailed);
    server.reply(Reply::Succeeded);
    server.poll_output(&mut out);
    assert_eq!(out, b"\x05\x00\x05\xf3\x00\x01\0\0\0\0\0\0");
    assert_eq!(server.take_rest(), b"early");
}

proptest! {
    /// Both halves together, cut anywhere.
    #[test]
    fn client_and_server(
        host in "([a-z0-9]{1,60}\\.onion|192\\.0\\.2\\.[1-9]|\\[2001:db8::[1-9a-f]\\])",
        port in 1u16..,
        credentials in prop::option::of((prop::collection::vec(any::<u8>(), 0..256), prop::collection::vec(any::<u8>(), 0..256))),
        early in prop::collection::vec(any::<u8>(), 0..50),
        step in 1usize..50,
    ) {
        let pair = credentials.as_ref().map(|(user, password)| (&user[..], &password[..]));
        let mut client = Client::new(&host, port, pair).expect("fits");
        let flight = [client.first_flight(), early.clone()].concat();
        let mut server = Server::new();
        let mut request = None;
        for piece in flight.chunks(step) {
            let got = server.handle_input(piece).expect("valid");
            request = request.or(got);
        }
        let request = request.expect("whole");
        prop_assert_eq!(request.target, format!("{host}:{port}"));
        prop_assert_eq!(request.user.zip(request.password), credentials);
        prop_assert_eq!(server.take_rest(), early);
        server.reply(Reply::Succeeded);
        let mut answer = Vec::new();
        server.poll_output(&mut answer);
        let replies = answer.len();
        answer.extend_from_slice(b"stream");
        let mut read = 0;
        loop {
            let piece = &answer[read..answer.len().min(read + step)];
            match client.handle_input(piece).expect("valid") {
                Progress::Pending => read += piece.len(),
                Progress::Done { consumed } => {
                    prop_assert_eq!(read + consumed, replies);
                    break;
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes(mut bytes in prop::collection::vec(prop::sample::select(&b"\x00\x01\x02\x03\x04\x05a.\xff"[..]), 0..60)) {
        let _ = both_ways(&bytes);
        bytes.splice(0..0, *b"\x05\x01\x00\x05\x01\x00");
        let _ = both_ways(&bytes);
    }
}
