//! QPACK: the examples of RFC 9204 appendix B, vectors of ls-qpack, each rule of the RFC, and both
//! halves against each other while their streams are delayed and cut.

use std::collections::VecDeque;

use data_encoding::HEXLOWER;
use proptest::prelude::*;
use tandem_http::fields::Field;
use tandem_http::qpack::{Decoded, Decoder, Encoder, QpackError, TABLE_SIZE};

type Line = (String, String, bool);

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    HEXLOWER.decode(digits.as_bytes()).expect("hexadecimal")
}

fn decode(
    decoder: &mut Decoder,
    stream: u64,
    section: &[u8],
) -> Result<(Decoded, Vec<Line>), QpackError> {
    let mut lines = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let decoded = decoder.decode(stream, section, |field| {
        lines.push((text(field.name), text(field.value), field.sensitive));
    })?;
    Ok((decoded, lines))
}

fn whole(decoder: &mut Decoder, stream: u64, section: &str) -> Vec<Line> {
    let (decoded, lines) = decode(decoder, stream, &hex(section)).expect("a good section");
    assert_eq!(decoded, Decoded::Whole);
    lines
}

fn line(name: &str, value: &str) -> Line {
    (name.into(), value.into(), false)
}

/// Encodes a section without waiting for acknowledgements.
fn encode(
    encoder: &mut Encoder,
    stream: u64,
    lines: &[Line],
    instructions: &mut Vec<u8>,
) -> Vec<u8> {
    let mut section = encoder.begin(stream, true);
    for (name, value, sensitive) in lines {
        let field = Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
            sensitive: *sensitive,
        };
        section.field(field, instructions);
    }
    let mut out = Vec::new();
    section.end(&mut out);
    out
}

#[test]
fn decoder_reads_the_examples_of_appendix_b() {
    let mut decoder = Decoder::new(220, 1);
    assert_eq!(
        whole(&mut decoder, 0, "0000 510b 2f69 6e64 6578 2e68 746d 6c"),
        [line(":path", "/index.html")]
    );
    assert!(!decoder.has_output());
    // Section B.2: the section arrives before its insertions.
    let section = "0381 1011";
    let (decoded, lines) = decode(&mut decoder, 4, &hex(section)).expect("a good section");
    assert_eq!((decoded, lines.len()), (Decoded::Blocked, 0));
    assert_eq!(decoder.poll_unblocked(), None);
    let inserts =
        "3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d c10c 2f73 616d 706c 652f 7061 7468";
    decoder
        .handle_encoder_stream(&hex(inserts))
        .expect("good instructions");
    assert_eq!(decoder.poll_unblocked(), Some(4));
    assert_eq!(
        whole(&mut decoder, 4, section),
        [
            line(":authority", "www.example.com"),
            line(":path", "/sample/path")
        ]
    );
    // The two insertions were acknowledged before the section.
    assert_eq!(decoder.take_output(), hex("02 84"));
    let insert = "4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565";
    decoder
        .handle_encoder_stream(&hex(insert))
        .expect("good instructions");
    assert_eq!(decoder.take_output(), hex("01"));
    // Section B.4: the section waits for a duplicate, and its stream is given up.
    let section = "0500 80c1 81";
    let (decoded, _) = decode(&mut decoder, 8, &hex(section)).expect("a good section");
    assert_eq!(decoded, Decoded::Blocked);
    decoder.cancel(8);
    assert_eq!(decoder.take_output(), hex("48"));
    decoder
        .handle_encoder_stream(&hex("02"))
        .expect("good instructions");
    assert_eq!(decoder.poll_unblocked(), None);
    let authority = line(":authority", "www.example.com");
    assert_eq!(
        whole(&mut decoder, 8, section),
        [
            authority.clone(),
            line(":path", "/"),
            line("custom-key", "custom-value")
        ]
    );
    // Section B.5: an insertion evicts the oldest entry.
    let insert = "810d 6375 7374 6f6d 2d76 616c 7565 32";
    decoder
        .handle_encoder_stream(&hex(insert))
        .expect("good instructions");
    assert_eq!(
        whole(&mut decoder, 12, "0600 80 81 82 83"),
        [
            line("custom-key", "custom-value2"),
            authority,
            line("custom-key", "custom-value"),
            line(":path", "/sample/path")
        ]
    );
    let gone = decode(&mut decoder, 12, &hex("0600 84"));
    assert_eq!(gone, Err(QpackError::Section("dynamic index")));
}

#[test]
fn decoder_refuses_bad_sections() {
    // A table with two entries of three that were inserted.
    let mut decoder = Decoder::new(100, 1);
    decoder
        .handle_encoder_stream(&hex("3f45 4161 0162 4161 0163 4161 0164"))
        .expect("good instructions");
    for (section, what) in [
        ("", "cut off"),
        ("00", "cut off"),
        ("0700", "insert count"),
        ("0400 82", "dynamic index"),
        ("0400 83", "dynamic index"),
        ("0400 10", "dynamic index"),
        ("0300 80 10", "dynamic index"),
        ("0000 80", "dynamic index"),
        ("0000 10", "dynamic index"),
        ("0080", "base"),
        ("0483", "base"),
        ("0000 ff24", "static index"),
        ("0000 5f54 00", "static index"),
        ("0000 51", "cut off"),
        ("0000 5103 6162", "cut off"),
        ("0000 2161", "cut off"),
        ("0000 5181 00", "Huffman code"),
        ("0000 51ff ffff ffff 01", "integer too large"),
        ("0000 ffff ffff ffff 01", "integer too large"),
    ] {
        let result = decode(&mut decoder, 0, &hex(section));
        assert_eq!(result, Err(QpackError::Section(what)), "{section}");
    }
    assert_eq!(
        whole(&mut decoder, 0, "0400 80").len(),
        1,
        "no error changed the table"
    );
}

#[test]
fn decoder_refuses_bad_instructions() {
    for (instructions, what) in [
        ("3f46", "table over its limit"),
        ("4161 0162", "entry larger than the table"),
        ("3f45 4161 3f27", "endless instruction"),
        ("3f45 00", "dynamic index"),
        ("3f45 80 0162", "dynamic index"),
        ("3f45 ff24 0162", "static index"),
        ("3f45 6100 0162", "Huffman code"),
        ("3f45 4161 8100", "Huffman code"),
        ("3fff ffff ffff 01", "integer too large"),
    ] {
        let mut decoder = Decoder::new(100, 1);
        let mut bytes = hex(instructions);
        if what == "endless instruction" {
            bytes = [hex("3f45 4161 7fff 7f"), vec![b'x'; 2000]].concat();
        }
        let result = decoder.handle_encoder_stream(&bytes);
        assert_eq!(
            result,
            Err(QpackError::EncoderStream(what)),
            "{instructions}"
        );
    }
}

#[test]
fn decoder_bounds_the_streams_that_wait() {
    let mut decoder = Decoder::new(100, 2);
    let section = hex("0200 80");
    for stream in [0, 4, 4] {
        let (decoded, _) = decode(&mut decoder, stream, &section).expect("a good section");
        assert_eq!(decoded, Decoded::Blocked);
    }
    let result = decode(&mut decoder, 8, &section);
    assert_eq!(
        result,
        Err(QpackError::Section("too many streams wait for insertions"))
    );
    decoder.cancel(0);
    assert!(decode(&mut decoder, 8, &section).is_ok());
    let mut none = Decoder::new(100, 0);
    assert!(decode(&mut none, 0, &section).is_err());
}

#[test]
fn decoder_stops_for_streams_that_can_go_on() {
    // The section needs the first insertion, which the second evicts.
    let mut decoder = Decoder::new(40, 1);
    let section = hex("0200 80");
    let (decoded, _) = decode(&mut decoder, 0, &section).expect("a section");
    assert_eq!(decoded, Decoded::Blocked);
    let both = hex("3f09 4161 0162 4163 0164");
    decoder
        .handle_encoder_stream(&both)
        .expect("good instructions");
    assert_eq!(decoder.poll_unblocked(), Some(0));
    assert_eq!(
        decode(&mut decoder, 0, &section).expect("a section").1,
        [line("a", "b")]
    );
    decoder
        .handle_encoder_stream(&[])
        .expect("good instructions");
    assert_eq!(whole(&mut decoder, 4, "0100 80"), [line("c", "d")]);
}

#[test]
fn encoder_refers_to_acknowledged_entries_only() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(TABLE_SIZE, 0));
    let mut instructions = Vec::new();
    encoder.set_limits(TABLE_SIZE, 0, &mut instructions);
    let lines = [
        line("user-agent", "a browser of today"),
        line("x-tab", "a value of some length"),
    ];
    let first = encode(&mut encoder, 0, &lines, &mut instructions);
    // Its instructions have not arrived, and it needs none of them.
    assert_eq!(decode(&mut decoder, 0, &first).expect("a section").1, lines);
    let second = encode(&mut encoder, 4, &lines, &mut instructions);
    assert_eq!(second.len(), first.len(), "nothing is acknowledged yet");
    decoder
        .handle_encoder_stream(&instructions)
        .expect("good instructions");
    encoder
        .handle_decoder_stream(&decoder.take_output())
        .expect("good acknowledgements");
    instructions.clear();
    let third = encode(&mut encoder, 8, &lines, &mut instructions);
    assert_eq!((third.len(), instructions.len()), (4, 0), "{third:x?}");
    assert_eq!(decode(&mut decoder, 8, &third).expect("a section").1, lines);
}

#[test]
fn encoder_lets_few_streams_wait() {
    let mut encoder = Encoder::new();
    let mut instructions = Vec::new();
    encoder.set_limits(TABLE_SIZE, 1, &mut instructions);
    let lines = [line("x-tab", "a value of some length")];
    let waits = encode(&mut encoder, 0, &lines, &mut instructions);
    assert_eq!(waits, hex("0280 10"));
    let literal = encode(&mut encoder, 4, &lines, &mut instructions);
    assert!(
        literal.starts_with(&[0, 0]),
        "a second stream must not wait"
    );
    let again = encode(&mut encoder, 0, &lines, &mut instructions);
    assert_eq!(again, hex("0200 80"), "the first stream waits already");
    let mut decoder = Decoder::new(TABLE_SIZE, 1);
    let (decoded, _) = decode(&mut decoder, 0, &waits).expect("a section");
    assert_eq!(decoded, Decoded::Blocked);
    decoder
        .handle_encoder_stream(&instructions)
        .expect("good instructions");
    assert_eq!(decoder.poll_unblocked(), Some(0));
    assert_eq!(decode(&mut decoder, 0, &waits).expect("a section").1, lines);
}

#[test]
fn encoder_never_indexes_secrets() {
    let (mut encoder, mut instructions) = (Encoder::new(), Vec::new());
    encoder.set_limits(TABLE_SIZE, 8, &mut instructions);
    instructions.clear();
    let secrets = [
        line("authorization", "Bearer of a secret"),
        line("proxy-authorization", "Bearer of a secret"),
        line("set-cookie", "session=secret"),
        line("cookie", "short"),
        ("x-key".into(), "secret".into(), true),
    ];
    let section = encode(&mut encoder, 0, &secrets, &mut instructions);
    assert!(instructions.is_empty());
    let lines = decode(&mut Decoder::new(0, 0), 0, &section)
        .expect("a section")
        .1;
    assert!(
        lines.iter().all(|(_, _, sensitive)| *sensitive),
        "{lines:?}"
    );
    assert_eq!(lines.len(), secrets.len());
}

#[test]
fn encoder_refuses_bad_acknowledgements() {
    for bytes in ["80", "00", "01", "3fff ffff ffff ffff ffff 01"] {
        let mut encoder = Encoder::new();
        assert!(
            encoder.handle_decoder_stream(&hex(bytes)).is_err(),
            "{bytes}"
        );
    }
    let (mut encoder, mut instructions) = (Encoder::new(), Vec::new());
    encoder.set_limits(TABLE_SIZE, 0, &mut instructions);
    encode(
        &mut encoder,
        0,
        &[line("x-tab", "value")],
        &mut instructions,
    );
    encoder
        .handle_decoder_stream(&hex("40 44 01"))
        .expect("one insertion");
    assert!(
        encoder.handle_decoder_stream(&hex("01")).is_err(),
        "there was only one"
    );
}

#[test]
fn encoder_keeps_entries_that_are_referred_to() {
    let (mut encoder, mut instructions) = (Encoder::new(), Vec::new());
    encoder.set_limits(120, 0, &mut instructions);
    let first = [line("x-first", "1")];
    encode(&mut encoder, 0, &first, &mut instructions);
    encoder
        .handle_decoder_stream(&hex("01"))
        .expect("an acknowledgement");
    let section = encode(&mut encoder, 4, &first, &mut instructions);
    assert_eq!(section, hex("0200 80"));
    for turn in 0..9 {
        let lines = [line(&format!("x-{turn}"), "a value of some length")];
        encode(&mut encoder, 8, &lines, &mut instructions);
        // The peer acknowledges every insertion, and not the section.
        let _ = encoder.handle_decoder_stream(&hex("01"));
    }
    let mut decoder = Decoder::new(120, 0);
    decoder
        .handle_encoder_stream(&instructions)
        .expect("good instructions");
    assert_eq!(
        decode(&mut decoder, 4, &section).expect("a section").1,
        first
    );
}

#[test]
fn encoder_bounds_sections_without_acknowledgement() {
    let (mut encoder, mut instructions) = (Encoder::new(), Vec::new());
    encoder.set_limits(TABLE_SIZE, 0, &mut instructions);
    let lines = [line("x-tab", "value")];
    encode(&mut encoder, 0, &lines, &mut instructions);
    encoder
        .handle_decoder_stream(&hex("01"))
        .expect("an acknowledgement");
    let refers = |encoder: &mut Encoder, stream: u64| {
        let section = encode(encoder, stream, &lines, &mut Vec::new());
        !section.starts_with(&[0, 0])
    };
    let count = (1..3000)
        .filter(|turn| refers(&mut encoder, turn * 4))
        .count();
    assert_eq!(count, 1024);
    encoder
        .handle_decoder_stream(&hex("84"))
        .expect("the section of stream 4");
    assert!(refers(&mut encoder, 4));
}

/// A line out of few names and values, so that they repeat.
fn lines() -> impl Strategy<Value = Vec<Line>> {
    let name = prop_oneof![
        Just(":path".to_owned()),
        Just("cookie".to_owned()),
        Just("x-frame-options".to_owned()),
        Just("user-agent".to_owned()),
        "x-[a-d]",
    ];
    let value = prop_oneof![3 => "[a-c]{0,3}", 1 => "[ -~]{20,60}"];
    prop::collection::vec((name, value, prop::bool::weighted(0.1)), 0..8)
}

#[test]
fn decoder_reads_sections_of_ls_qpack() {
    for text in [
        include_str!("../../../vectors/qpack/ls-qpack/requests.txt"),
        include_str!("../../../vectors/qpack/ls-qpack/responses.txt"),
        include_str!("../../../vectors/qpack/ls-qpack/literals.txt"),
    ] {
        let mut decoder = Decoder::new(0, 0);
        let (mut lines, mut seen, mut sections) = (Vec::new(), Vec::new(), 0);
        for words in text.lines() {
            let (kind, rest) = words.split_once(' ').expect("a kind and its value");
            let pair = rest.split_once(' ');
            let number = |text: &str| text.parse::<u64>().expect("a number");
            match (kind, pair) {
                ("#", _) => {}
                ("limits", Some((capacity, blocked))) => {
                    decoder = Decoder::new(number(capacity) as usize, number(blocked) as usize);
                }
                ("instructions", None) => decoder
                    .handle_encoder_stream(&hex(rest))
                    .expect("good instructions"),
                ("section", Some((stream, section))) => {
                    let (decoded, fields) =
                        decode(&mut decoder, number(stream), &hex(section)).expect("a section");
                    assert_eq!(decoded, Decoded::Whole);
                    seen.extend(fields.into_iter().map(|(name, value, _)| (name, value)));
                    sections += 1;
                }
                ("field", _) => {
                    let (name, value) = rest.rsplit_once(": ").expect("a field");
                    lines.push((name.to_owned(), value.to_owned()));
                }
                _ => panic!("{words}"),
            }
        }
        assert_eq!(seen, lines);
        assert!(sections >= 6);
    }
}

proptest! {
    /// Sections arrive whole, although each stream is delayed and cut at random.
    #[test]
    fn sections_survive_delayed_streams(
        capacity in prop_oneof![Just(0usize), Just(100), Just(300), Just(4096)],
        blocked in 0usize..4,
        steps in prop::collection::vec((lines(), 0usize..200, 0usize..200, any::<bool>()), 1..60),
    ) {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(capacity, blocked));
        let (mut instructions, mut acknowledgements) = (Vec::new(), Vec::new());
        encoder.set_limits(capacity, blocked, &mut instructions);
        let mut sections: VecDeque<(u64, Vec<u8>, Vec<Line>)> = VecDeque::new();
        let mut waiting: Vec<(u64, Vec<u8>, Vec<Line>)> = Vec::new();
        let last = steps.len();
        for (turn, (list, forward, back, arrives)) in steps.into_iter().enumerate() {
            let stream = turn as u64 * 4;
            let section = encode(&mut encoder, stream, &list, &mut instructions);
            sections.push_back((stream, section, list));
            let end = turn + 1 == last;
            while (arrives || end) && let Some(next) = sections.pop_front() {
                let (decoded, seen) =
                    decode(&mut decoder, next.0, &next.1).expect("a good section");
                match decoded {
                    Decoded::Blocked => waiting.push(next),
                    Decoded::Whole => check(&seen, &next.2)?,
                }
            }
            let count = if end { instructions.len() } else { forward.min(instructions.len()) };
            let part: Vec<u8> = instructions.drain(..count).collect();
            for piece in part.chunks(back.max(1)) {
                decoder.handle_encoder_stream(piece).expect("good instructions");
                while let Some(stream) = decoder.poll_unblocked() {
                    let place = waiting.iter().position(|(other, _, _)| *other == stream);
                    let (_, section, list) = waiting.remove(place.expect("it waits"));
                    let (decoded, seen) =
                        decode(&mut decoder, stream, &section).expect("a good section");
                    prop_assert_eq!(decoded, Decoded::Whole);
                    check(&seen, &list)?;
                    decoder.handle_encoder_stream(&[]).expect("good instructions");
                }
            }
            acknowledgements.extend(decoder.take_output());
            let count = back.min(acknowledgements.len());
            let part: Vec<u8> = acknowledgements.drain(..count).collect();
            encoder.handle_decoder_stream(&part).expect("good acknowledgements");
        }
        prop_assert!(waiting.is_empty());
    }

    /// No input makes a decoder or an encoder panic.
    #[test]
    fn arbitrary_input_never_panics(
        parts in prop::collection::vec((0u8..3, prop::collection::vec(any::<u8>(), 0..60)), 0..30),
    ) {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(200, 2));
        encoder.set_limits(200, 2, &mut Vec::new());
        for (kind, bytes) in parts {
            let _ = match kind {
                0 => decoder.handle_encoder_stream(&bytes).is_ok(),
                1 => decode(&mut decoder, 4, &bytes).is_ok(),
                _ => encoder.handle_decoder_stream(&bytes).is_ok(),
            };
        }
    }
}

/// Short cookies come back as secrets.
fn check(seen: &[Line], sent: &[Line]) -> Result<(), TestCaseError> {
    prop_assert_eq!(seen.len(), sent.len());
    for (seen, sent) in seen.iter().zip(sent) {
        prop_assert_eq!((&seen.0, &seen.1), (&sent.0, &sent.1));
        prop_assert!(seen.2 || !sent.2);
    }
    Ok(())
}
