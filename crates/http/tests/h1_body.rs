//! Bodies: every framing, every cut, every way a chunked body can be wrong.

use bytes::BytesMut;
use proptest::prelude::*;
use tandem_http::Fields;
use tandem_http::h1::{BadBody, Decoder, Framing, write_chunk_head, write_last_chunk};

/// Feeds pieces; returns the body and the unused input once it is done.
fn decode<'a>(
    framing: Framing,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Outcome, BadBody> {
    let mut decoder = Decoder::new(framing);
    let mut outcome = Outcome::default();
    for piece in pieces {
        let mut rest = piece;
        while !rest.is_empty() && !decoder.is_done() {
            let decoded = decoder.decode(rest)?;
            assert!(decoded.consumed > 0 && decoded.data.end <= decoded.consumed);
            outcome.body.extend_from_slice(&rest[decoded.data.clone()]);
            assert_eq!(decoded.done, decoder.is_done());
            rest = &rest[decoded.consumed..];
        }
        outcome.left.extend_from_slice(rest);
    }
    outcome.done = decoder.is_done();
    outcome.trailers = decoder.trailers();
    Ok(outcome)
}

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    body: Vec<u8>,
    left: Vec<u8>,
    done: bool,
    trailers: Option<Fields>,
}

fn chunked(text: &str) -> Result<Outcome, BadBody> {
    let whole = decode(Framing::Chunked, [text.as_bytes()]);
    let bytewise = decode(Framing::Chunked, text.as_bytes().chunks(1));
    assert_eq!(whole, bytewise, "{text:?}");
    whole
}

#[test]
fn delimited_by_length() {
    let outcome = decode(Framing::Length(5), [&b"hel"[..], b"lo, next"]).expect("valid");
    assert_eq!(
        (&outcome.body[..], &outcome.left[..], outcome.done),
        (&b"hello"[..], &b", next"[..], true)
    );
    let mut decoder = Decoder::new(Framing::Length(5));
    decoder.decode(b"hell").expect("valid");
    assert_eq!(decoder.finish(), Err(BadBody::Truncated));
    assert_eq!(
        decoder.decode(b"o"),
        Err(BadBody::Truncated),
        "an error stays"
    );
    assert!(Decoder::new(Framing::Length(0)).is_done());
    assert!(Decoder::new(Framing::None).is_done());
    assert_eq!(Decoder::new(Framing::None).finish(), Ok(()));
    let decoded = Decoder::new(Framing::None).decode(b"GET").expect("valid");
    assert_eq!(
        (decoded.consumed, decoded.data, decoded.done),
        (0, 0..0, true)
    );
}

#[test]
fn delimited_by_close() {
    let mut decoder = Decoder::new(Framing::UntilClose);
    let decoded = decoder.decode(b"abc").expect("valid");
    assert_eq!(
        (decoded.consumed, decoded.data, decoded.done),
        (3, 0..3, false)
    );
    assert_eq!(decoder.finish(), Ok(()));
    assert!(decoder.is_done());
}

#[test]
fn chunks() {
    let outcome =
        chunked("5\r\nhello\r\n0000A;name=\"v\" ; x\r\n, world!!!\r\n0\r\n\r\nGET").expect("valid");
    assert_eq!(outcome.body, b"hello, world!!!");
    assert_eq!(
        (&outcome.left[..], outcome.done, outcome.trailers),
        (&b"GET"[..], true, None)
    );
    assert_eq!(
        chunked("3  \r\nabc\r\n0 \r\n\r\n")
            .expect("padding is ignored")
            .body,
        b"abc"
    );
}

#[test]
fn one_call_takes_data_and_the_framing_after_it() {
    let mut decoder = Decoder::new(Framing::Chunked);
    let input = b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n";
    let decoded = decoder.decode(input).expect("valid");
    assert_eq!(
        (decoded.consumed, decoded.data, decoded.done),
        (input.len(), 3..6, true)
    );
    assert_eq!(
        decoder
            .trailers()
            .and_then(|t| t.get("x-sum").map(<[u8]>::to_vec)),
        Some(b"1".to_vec())
    );
    assert_eq!(decoder.trailers(), None, "given once");
}

#[test]
fn decoder_gives_the_data_before_a_fault() {
    let input = b"3\r\nabc\r\nx\r\n";
    let mut decoder = Decoder::new(Framing::Chunked);
    let decoded = decoder.decode(input).expect("the data is good");
    assert_eq!((&input[decoded.data], decoded.done), (&b"abc"[..], false));
    assert_eq!(
        decoder.decode(&input[decoded.consumed..]),
        Err(BadBody::ChunkSize)
    );
    assert_eq!(decoder.decode(b"1\r\n"), Err(BadBody::ChunkSize));
}

#[test]
fn trailers_that_come_too_late_are_dropped() {
    let outcome = chunked(
        "0\r\nContent-Length: 3\r\nTransfer_Encoding: x\r\nTransfer-Encoding: chunked\r\nHost: b\r\nX-Sum: 1\r\nSet-Cookie: a\r\n\
         Connection: close\r\nContent-Type: a/b\r\nIf-Match: *\r\nETag: \"x\"\r\nAuthorization: b\r\n\r\n",
    )
    .expect("valid");
    let names: Vec<_> = outcome
        .trailers
        .iter()
        .flat_map(Fields::iter)
        .map(|f| f.name.to_vec())
        .collect();
    assert_eq!(names, [&b"x-sum"[..], b"etag"]);
}

#[test]
fn refused() {
    use BadBody::{ChunkExtension, ChunkSize, LineEnd, Trailers};
    let long_extension = format!("1;{}\r\n", "e".repeat(2000));
    let long_trailers = format!("0\r\n{}", "x: y\r\n".repeat(4000));
    let many_trailers = format!("0\r\n{}\r\n", "x: y\r\n".repeat(101));
    let table = [
        ("\r\n", ChunkSize),
        ("g\r\n", ChunkSize),
        ("0x5\r\nhello", ChunkSize),
        ("-1\r\n", ChunkSize),
        ("+1\r\n", ChunkSize),
        (" 5\r\nhello", ChunkSize),
        ("5,\r\nhello", ChunkSize),
        ("5\nhello", ChunkSize),
        ("\u{0}5\r\n", ChunkSize),
        ("ffffffffffffffff\r\n", ChunkSize),
        ("10000000000000000\r\n", ChunkSize),
        ("00000000000000001\r\n", ChunkSize),
        ("5\rXhello", LineEnd),
        ("5\r\rhello", LineEnd),
        ("5\r\nhello\n", LineEnd),
        ("5\r\nhelloX\r\n", LineEnd),
        ("5\r\nhello\rX", LineEnd),
        ("3\r\nhello\r\n", LineEnd),
        ("5;a\nhello", LineEnd),
        ("5;a\u{0}\r\n", ChunkExtension),
        ("5;a\rb\r\n", LineEnd),
        (&long_extension, ChunkExtension),
        ("0\r\nX: a\n\r\n", LineEnd),
        ("0\r\n\n", LineEnd),
        ("0\r\nX : a\r\n\r\n", Trailers),
        ("0\r\n a: b\r\n\r\n", Trailers),
        ("0\r\nX: a\r\n b\r\n\r\n", Trailers),
        ("0\r\nno colon\r\n\r\n", Trailers),
        ("0\r\nX: \u{0}\r\n\r\n", Trailers),
        (&long_trailers, Trailers),
        (&many_trailers, Trailers),
    ];
    for (text, why) in table {
        assert_eq!(chunked(text), Err(why), "{text:?}");
    }
}

#[test]
fn truncated_anywhere() {
    let text = b"5;x\r\nhello\r\n0\r\nA: b\r\n\r\n";
    for cut in 0..text.len() {
        let mut decoder = Decoder::new(Framing::Chunked);
        let mut rest = &text[..cut];
        while !rest.is_empty() {
            rest = &rest[decoder.decode(rest).expect("valid so far").consumed..];
        }
        assert_eq!(decoder.finish(), Err(BadBody::Truncated), "cut at {cut}");
    }
}

#[test]
fn chunk_heads() {
    for len in [1usize, 9, 10, 15, 16, 255, 256, 65535, 1 << 20, usize::MAX] {
        let mut out = BytesMut::new();
        write_chunk_head(&mut out, len);
        assert_eq!(out, format!("{len:x}\r\n").as_bytes());
    }
}

proptest! {
    #[test]
    fn decoder_reads_written_body_in_any_pieces(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..8),
        trailers in prop::collection::vec(("x-[a-z]{1,8}", "[!-~]{0,12}"), 0..4),
        after in prop::collection::vec(any::<u8>(), 0..20),
        cuts in prop::collection::vec(1usize..60, 1..40),
    ) {
        let trailers: Fields = trailers.into_iter().collect();
        let mut wire = BytesMut::new();
        for chunk in &chunks {
            write_chunk_head(&mut wire, chunk.len());
            wire.extend_from_slice(chunk);
            wire.extend_from_slice(b"\r\n");
        }
        write_last_chunk(&mut wire, Some(&trailers));
        wire.extend_from_slice(&after);
        let mut pieces = Vec::new();
        let mut rest = &wire[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, more) = rest.split_at(rest.len().min(*cut));
            pieces.push(piece);
            rest = more;
        }
        let outcome = decode(Framing::Chunked, pieces).expect("own writing");
        prop_assert_eq!(outcome.body, chunks.concat());
        prop_assert_eq!(outcome.left, after);
        prop_assert!(outcome.done);
        prop_assert_eq!(outcome.trailers.unwrap_or_default(), trailers);
    }

    /// Arbitrary bytes never panic, and give the same however they are cut.
    #[test]
    fn arbitrary_chunked(bytes in prop::collection::vec(prop::sample::select(&b"0123af;=\"\r\n\r\n x:\x00\xff"[..]), 0..200)) {
        let whole = decode(Framing::Chunked, [&bytes[..]]);
        let bytewise = decode(Framing::Chunked, bytes.chunks(1));
        prop_assert_eq!(whole, bytewise);
    }
}
