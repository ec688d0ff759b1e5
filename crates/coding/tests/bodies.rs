//! Bodies of any content and any division into pieces pass encoder and decoder unchanged.

use std::io::Write as _;

use bytes::Bytes;
use proptest::prelude::*;
use tandem_coding::decoder::MAX_PIECE;
use tandem_coding::{CodingError, Decoder, Encoder, Gunzip};

/// Encodes a body of known or unknown length, and flushes after each piece if `flushes`.
fn encode(pieces: &[Vec<u8>], has_length: bool, flushes: bool) -> Vec<u8> {
    let length = pieces.iter().map(|piece| piece.len() as u64).sum();
    let mut encoder = Encoder::new(5, has_length.then_some(length)).expect("valid parameters");
    let mut coded = Vec::new();
    for piece in pieces {
        encoder.write(piece).expect("the length is right");
        if flushes {
            encoder.flush().expect("nothing prevents it");
            coded.extend(encoder.take().unwrap_or_default());
        }
    }
    encoder.finish().expect("the length is right");
    coded.extend(encoder.take().unwrap_or_default());
    assert_eq!(encoder.counts(), (length, coded.len() as u64));
    coded
}

/// Decodes a frame in pieces of `step` bytes.
fn decode(coded: &[u8], step: usize, length: Option<u64>) -> Result<Vec<u8>, CodingError> {
    let mut decoder = Decoder::new(length).expect("memory");
    let mut body = Vec::new();
    for piece in coded.chunks(step) {
        decoder.write(Bytes::copy_from_slice(piece));
        while let Some(piece) = decoder.read()? {
            assert!(!piece.is_empty() && piece.len() <= MAX_PIECE);
            body.extend(piece);
        }
    }
    decoder.finish()?;
    assert_eq!(decoder.counts(), (body.len() as u64, coded.len() as u64));
    Ok(body)
}

/// Returns pieces of text with repetitions.
fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let piece = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..2000),
        (0usize..60_000).prop_map(|length| b"<li class=\"entry\">".repeat(length / 18)),
    ];
    proptest::collection::vec(piece, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn body_passes_unchanged(
        pieces in pieces(),
        has_length: bool,
        flushes: bool,
        step in 1usize..5000,
    ) {
        let body = pieces.concat();
        let coded = encode(&pieces, has_length, flushes);
        let length = Some(body.len() as u64);
        prop_assert_eq!(decode(&coded, step, length), Ok(body.clone()));
        prop_assert_eq!(decode(&coded, step, None), Ok(body));
    }

    #[test]
    fn truncated_frame_never_looks_complete(pieces in pieces(), cut in 1usize..200) {
        let coded = encode(&pieces, false, false);
        let kept = coded.len().saturating_sub(cut);
        prop_assert_eq!(decode(&coded[..kept], 1000, None), Err(CodingError::Truncated));
    }

    #[test]
    fn arbitrary_frame_is_refused_or_bounded(frame in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode(&frame, 100, Some(1000));
    }
}

#[test]
fn flushed_data_can_be_decoded_at_once() {
    let mut encoder = Encoder::new(9, None).expect("valid parameters");
    let mut decoder = Decoder::new(None).expect("memory");
    for part in ["<title>One</title>", "<p>Two", "</p>"] {
        encoder.write(part.as_bytes()).expect("no length");
        encoder.flush().expect("nothing prevents it");
        decoder.write(encoder.take().expect("flushed"));
        assert_eq!(
            decoder.read(),
            Ok(Some(Bytes::from_static(part.as_bytes())))
        );
        assert_eq!(decoder.read(), Ok(None));
    }
    encoder.flush().expect("nothing prevents it");
    assert_eq!(encoder.take(), None, "nothing is left to flush");
}

#[test]
fn decoder_refuses_a_wrong_length_and_more_data() {
    let coded = encode(&[b"four".repeat(100)], true, false);
    for wrong in [399, 401] {
        assert_eq!(decode(&coded, 7, Some(wrong)), Err(CodingError::Length));
    }
    for trailing in [&b"x"[..], &coded] {
        let both = [&coded, trailing].concat();
        for step in [1, both.len()] {
            assert_eq!(decode(&both, step, None), Err(CodingError::Trailing));
        }
    }
    assert_eq!(decode(b"", 1, None), Err(CodingError::Truncated));
}

#[test]
fn encoder_refuses_a_body_of_another_length() {
    for (length, body) in [(5, &b"four"[..]), (3, b"four")] {
        let mut encoder = Encoder::new(5, Some(length)).expect("valid parameters");
        let written = encoder.write(body);
        assert!(written.and_then(|()| encoder.finish()).is_err(), "{length}");
    }
}

#[test]
fn decoder_refuses_a_large_window() {
    // Magic number, then a frame header with a window of 2^20 bytes (RFC 8878 section 3.1.1.1).
    let frame = |window: u8| [0x28, 0xb5, 0x2f, 0xfd, 0x00, window << 3, 0x01, 0x00, 0x00];
    assert_eq!(
        decode(&frame(9), 20, None),
        Ok(Vec::new()),
        "2^19 is allowed"
    );
    assert!(matches!(
        decode(&frame(10), 20, None),
        Err(CodingError::Malformed(_))
    ));
}

#[test]
fn difference_to_a_dictionary_is_short() {
    let line = |n: u32| {
        format!(
            "<p id=\"{:08x}\">{}</p>",
            n.wrapping_mul(0x9e37_79b9),
            n * n
        )
    };
    let version = |from| (from..from + 3000).map(line).collect::<String>();
    let (old, new) = (version(0), version(3));
    let with = |dictionary: &[u8], body: &str| {
        let length = body.len() as u64;
        let mut encoder =
            Encoder::with_dictionary(9, Some(length), dictionary).expect("valid parameters");
        encoder.write(body.as_bytes()).expect("the length is right");
        encoder.finish().expect("the length is right");
        encoder.take().expect("a frame")
    };
    let (alone, difference) = (with(b"", &new), with(old.as_bytes(), &new));
    assert!(difference.len() * 20 < alone.len(), "{}", difference.len());
    let read = |dictionary: &[u8]| {
        let mut decoder = Decoder::with_dictionary(None, dictionary).expect("memory");
        decoder.write(difference.clone());
        let mut body = Vec::new();
        while let Some(piece) = decoder.read()? {
            body.extend(piece);
        }
        decoder.finish().map(|()| body)
    };
    assert!(read(old.as_bytes()).as_deref() == Ok(new.as_bytes()));
    let other = old.replace("<p", "<q");
    assert!(read(other.as_bytes()).is_err(), "the checksum differs");
    assert!(read(b"").is_err(), "no dictionary");
}

#[test]
fn expanding_frame_is_decoded_in_small_pieces() {
    let coded = encode(&vec![vec![0; 1 << 20]; 8], false, false);
    assert!(coded.len() < 10_000, "{}", coded.len());
    let mut decoder = Decoder::new(None).expect("memory");
    decoder.write(coded.into());
    let mut total = 0;
    while let Some(piece) = decoder.read().expect("a valid frame") {
        assert!(piece.len() <= MAX_PIECE);
        total += piece.len();
    }
    assert_eq!((total, decoder.finish()), (8 << 20, Ok(())));
}

/// The length of the footer of gzip in bytes (RFC 1952 section 2.3.1).
const FOOTER: usize = 8;

/// Compresses a body as an origin does.
fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(body).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

/// Decodes gzip in pieces of `step` bytes.
fn gunzip(coded: &[u8], step: usize) -> Result<Vec<u8>, CodingError> {
    let (mut decoder, mut body) = (Gunzip::new(), Vec::new());
    for piece in coded.chunks(step) {
        decoder.write(Bytes::copy_from_slice(piece));
        while let Some(piece) = decoder.read()? {
            assert!(!piece.is_empty() && piece.len() <= MAX_PIECE);
            body.extend_from_slice(piece);
        }
    }
    decoder.finish().map(|()| body)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn gzip_is_decoded_in_any_pieces(pieces in pieces(), step in 1usize..5000) {
        let body = pieces.concat();
        let coded = gzip(&body);
        prop_assert_eq!(gunzip(&coded, step), Ok(body.clone()));
        let followed = [&coded[..], b"ignored"].concat();
        prop_assert_eq!(gunzip(&followed, step), Ok(body));
    }

    #[test]
    fn members_of_gzip_are_one_body(pieces in pieces(), step in 1usize..5000) {
        let members = std::iter::once(gzip(b"first")).chain(pieces.iter().map(|it| gzip(it)));
        let coded = members.collect::<Vec<_>>().concat();
        let body = [&b"first"[..], &pieces.concat()].concat();
        prop_assert_eq!(gunzip(&coded, step), Ok(body.clone()));
        let followed = [&coded[..], &[0x1f, 0x8b]].concat();
        prop_assert_eq!(gunzip(&followed, step), Ok(body));
    }

    #[test]
    fn truncated_member_never_looks_complete(
        pieces in pieces(),
        kept in 3usize..18,
        step in 1usize..50,
    ) {
        let cut = [gzip(&pieces.concat()), gzip(b"the last")[..kept].to_vec()].concat();
        prop_assert_eq!(gunzip(&cut, step), Err(CodingError::Truncated));
    }

    #[test]
    fn truncated_gzip_never_looks_complete(pieces in pieces(), cut in 1usize..200) {
        let coded = gzip(&pieces.concat());
        let kept = coded.len().saturating_sub(FOOTER + cut);
        let expected = if kept == 0 { Ok(Vec::new()) } else { Err(CodingError::Truncated) };
        prop_assert_eq!(gunzip(&coded[..kept], 1000), expected);
    }

    #[test]
    fn any_header_of_gzip_is_read(
        extra in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..600)),
        name in proptest::option::of("[a-z]{0,40}"),
        comment in proptest::option::of("[a-z]{0,40}"),
        step in 1usize..40,
    ) {
        let mut builder = flate2::GzBuilder::new();
        builder = extra.into_iter().fold(builder, flate2::GzBuilder::extra);
        builder = name.into_iter().fold(builder, flate2::GzBuilder::filename);
        builder = comment.into_iter().fold(builder, flate2::GzBuilder::comment);
        let mut encoder = builder.write(Vec::new(), flate2::Compression::new(6));
        encoder.write_all(b"text").expect("a vector takes all");
        let coded = encoder.finish().expect("a vector takes all");
        prop_assert_eq!(gunzip(&coded, step), Ok(b"text".to_vec()));
        for kept in 1..coded.len() - FOOTER {
            prop_assert_eq!(gunzip(&coded[..kept], step), Err(CodingError::Truncated));
        }
    }
}

#[test]
fn footer_of_gzip_is_not_compared() {
    let coded = gzip(b"text");
    let (data, footer) = coded.split_at(coded.len() - FOOTER);
    for kept in 0..FOOTER {
        assert_eq!(
            gunzip(&[data, &footer[..kept]].concat(), 3).as_deref(),
            Ok(&b"text"[..])
        );
    }
    let adler = [0x05, 0x9b, 0x01, 0xc2];
    for footer in [&adler[..], &[0; FOOTER]] {
        assert_eq!(
            gunzip(&[data, footer].concat(), 3).as_deref(),
            Ok(&b"text"[..])
        );
    }
    // The header has a checksum (FHCRC).
    let checked = [&data[..3], &[2], &data[4..10], &[0, 0], &data[10..], footer].concat();
    assert_eq!(gunzip(&checked, 1).as_deref(), Ok(&b"text"[..]));
}

#[test]
fn damaged_gzip_is_refused() {
    let coded = gzip(&b"text ".repeat(1000));
    // The magic number, the method, and the kind of the first DEFLATE block.
    for at in [0, 1, 2, 10] {
        let mut damaged = coded.clone();
        damaged[at] = 0xff;
        let refused = gunzip(&damaged, 7);
        assert!(matches!(refused, Err(CodingError::Malformed(_))), "{at}");
    }
    assert!(gunzip(b"plain text", 3).is_err());
}

#[test]
fn expanding_gzip_is_decoded_in_small_pieces() {
    let coded = gzip(&vec![0; 8 << 20]);
    assert!(coded.len() < 20_000, "{}", coded.len());
    assert_eq!(
        gunzip(&coded, coded.len()).map(|body| body.len()),
        Ok(8 << 20)
    );
}
