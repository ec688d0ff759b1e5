//! A body passes encoder and decoder unchanged, with and without a dictionary. Another dictionary
//! gives an error and never another body.
//! Gzip in any pieces is refused or gives one body. Any frame from the other proxy is refused or
//! gives a bounded body. Two ways to cut a frame give one body if both complete it: zstd checks the
//! length and the window of a malformed frame in one of them only. Any head is restored or refused.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_coding::decoder::MAX_PIECE;
use tandem_coding::{CodingError, Decoder, Encoder, Gunzip, recode, wire};
use tandem_http::ResponseHead;

/// The number of decoded bytes after which a frame counts as malformed. An error behind them may
/// show before them or not, by the pieces of the frame.
const ENOUGH: usize = 1 << 20;

/// A header of gzip, so that more inputs reach the DEFLATE data behind it.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

fuzz_target!(|data: &[u8]| {
    let Some((&step, data)) = data.split_first() else {
        return;
    };
    let step = usize::from(step) + 1;
    restore(data);
    let whole = decode(data, data.len().max(1), None);
    let cut = decode(data, step, None);
    if let (Ok(whole), Ok(cut)) = (&whole, &cut) {
        assert_eq!(whole, cut);
    }
    if let Ok(body) = cut {
        let length = body.len() as u64;
        assert!(decode(data, step, Some(length)).is_ok());
        assert!(decode(data, step, Some(length + 1)).is_err());
    }
    let headed = [&GZIP_HEADER[..], data].concat();
    for data in [data, &headed] {
        let whole = gunzip(data, data.len().max(1));
        let cut = gunzip(data, step);
        if let (Ok(whole), Ok(cut)) = (whole, cut) {
            assert_eq!(whole, cut);
        }
    }
    let (old, new) = data.split_at(data.len() / 2);
    for (dictionary, body) in [(&[][..], data), (old, new)] {
        // The store keeps no dictionary with tables, which zstd would have to parse.
        if dictionary.starts_with(&[0x37, 0xa4, 0x30, 0xec]) {
            continue;
        }
        let coded = encode(dictionary, body, step);
        let length = Some(body.len() as u64);
        let own = decode_with(dictionary, &coded, step, length);
        assert_eq!(own.as_deref(), Ok(body));
        if let Ok(other) = decode_with(b"another dictionary", &coded, step, length) {
            assert_eq!(other, body);
        }
    }
});

/// Encodes a body in pieces, and flushes after each one if their size is odd.
fn encode(dictionary: &[u8], body: &[u8], step: usize) -> Vec<u8> {
    let length = (step % 3 == 0).then_some(body.len() as u64);
    let mut encoder = Encoder::with_dictionary(3, length, dictionary).expect("valid parameters");
    let mut coded = Vec::new();
    for piece in body.chunks(step * 16) {
        encoder.write(piece).expect("the length is right");
        if step % 2 == 1 {
            encoder.flush().expect("nothing prevents it");
        }
        coded.extend(encoder.take().unwrap_or_default());
    }
    encoder.finish().expect("the length is right");
    coded.extend(encoder.take().unwrap_or_default());
    coded
}

/// Decodes a frame without a dictionary.
fn decode(frame: &[u8], step: usize, length: Option<u64>) -> Result<Vec<u8>, CodingError> {
    decode_with(&[], frame, step, length)
}

/// Decodes a frame in pieces, up to [`ENOUGH`] bytes of its body.
fn decode_with(
    dictionary: &[u8],
    frame: &[u8],
    step: usize,
    length: Option<u64>,
) -> Result<Vec<u8>, CodingError> {
    let mut decoder = Decoder::with_dictionary(length, dictionary).expect("memory");
    let mut body = Vec::new();
    for piece in frame.chunks(step) {
        decoder.write(Bytes::copy_from_slice(piece));
        while let Some(piece) = decoder.read().map_err(kind)? {
            assert!(!piece.is_empty() && piece.len() <= MAX_PIECE);
            body.extend_from_slice(&piece);
            if body.len() >= ENOUGH {
                return Err(CodingError::Malformed(String::new()));
            }
        }
    }
    decoder.finish().map_err(kind)?;
    Ok(body)
}

/// Decodes gzip in pieces, up to [`ENOUGH`] bytes of its body.
fn gunzip(coded: &[u8], step: usize) -> Result<Vec<u8>, CodingError> {
    let mut decoder = Gunzip::new();
    let mut body = Vec::new();
    for piece in coded.chunks(step) {
        decoder.write(Bytes::copy_from_slice(piece));
        while let Some(piece) = decoder.read()? {
            assert!(!piece.is_empty() && piece.len() <= MAX_PIECE);
            body.extend_from_slice(piece);
            if body.len() >= ENOUGH {
                return Err(CodingError::Truncated);
            }
        }
    }
    decoder.finish()?;
    Ok(body)
}

/// Leaves out the text of an error, which depends on the place where zstd found it.
fn kind(error: CodingError) -> CodingError {
    match error {
        CodingError::Malformed(_) | CodingError::Truncated | CodingError::Trailing => {
            CodingError::Malformed(String::new())
        }
        other => other,
    }
}

/// Reads lines as fields of a head.
fn restore(data: &[u8]) {
    let mut head = ResponseHead::new(200);
    for line in data.split(|&byte| byte == b'\n').take(50) {
        let at = line
            .iter()
            .position(|&byte| byte == b':')
            .unwrap_or(line.len());
        let (name, value) = line.split_at(at);
        head.fields.push(name, value.get(1..).unwrap_or_default());
    }
    let original = head.clone();
    match wire::restore(&mut head) {
        Ok(Some(_)) => assert!(!head.fields.contains("tandem-coded")),
        Ok(None) | Err(_) => assert!(head == original),
    }
    let mut decoded = original.clone();
    recode::transform(&mut decoded);
    assert!(!recode::is_gzip(&decoded.fields));
    let mut marked = original.clone();
    if marked.fields.get_all("content-length").count() == 1
        && !marked.fields.contains("tandem-coded")
    {
        wire::mark(&mut marked);
        assert!(!marked.fields.contains("content-length"));
        let _ = wire::restore(&mut marked);
    }
}
