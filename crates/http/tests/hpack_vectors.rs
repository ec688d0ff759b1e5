//! HPACK against the examples of RFC 7541 appendix C, against itself, and against hostile blocks.

use data_encoding::HEXLOWER;
use proptest::prelude::*;
use tandem_http::fields::Field;
use tandem_http::hpack::{Decoder, Encoder, HpackError};

type List = Vec<(String, String)>;

fn unhex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    HEXLOWER.decode(digits.as_bytes()).expect("hexadecimal")
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<List, HpackError> {
    let mut list = Vec::new();
    decoder.decode(block, |f| {
        list.push((
            String::from_utf8_lossy(f.name).into_owned(),
            String::from_utf8_lossy(f.value).into_owned(),
        ));
    })?;
    Ok(list)
}

fn list(fields: &[(&str, &str)]) -> List {
    fields
        .iter()
        .map(|&(n, v)| (n.to_owned(), v.to_owned()))
        .collect()
}

#[test]
fn single_literals_of_c2() {
    let cases = [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            ("custom-key", "custom-header"),
        ),
        (
            "040c 2f73 616d 706c 652f 7061 7468",
            (":path", "/sample/path"),
        ),
        (
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            ("password", "secret"),
        ),
        ("82", (":method", "GET")),
    ];
    for (block, field) in cases {
        assert_eq!(
            decode(&mut Decoder::new(), &unhex(block)),
            Ok(list(&[field]))
        );
    }
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

#[test]
fn requests_of_c3_and_c4() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new();
        for (block, fields) in blocks.iter().zip(REQUESTS) {
            assert_eq!(decode(&mut decoder, &unhex(block)), Ok(list(fields)));
        }
    }
}

/// An encoder may choose other representations, but this one matches appendix C.4 exactly.
#[test]
fn encoder_writes_c4() {
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    let mut encoder = Encoder::new();
    for (block, fields) in coded.iter().zip(REQUESTS) {
        assert_eq!(encode(&mut encoder, fields), unhex(block));
    }
}

const DATE: &str = "Mon, 21 Oct 2013 20:13:21 GMT";

/// Appendix C.5 and C.6 have a table of 256 bytes; a size update in front makes ours as small.
/// Entries are evicted.
#[test]
fn responses_of_c5_and_c6() {
    let fields: [&[(&str, &str)]; 3] = [
        &[
            (":status", "302"),
            ("cache-control", "private"),
            ("date", DATE),
            ("location", "https://www.example.com"),
        ],
        &[
            (":status", "307"),
            ("cache-control", "private"),
            ("date", DATE),
            ("location", "https://www.example.com"),
        ],
        &[
            (":status", "200"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
            ("location", "https://www.example.com"),
            ("content-encoding", "gzip"),
            (
                "set-cookie",
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ),
        ],
    ];
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d
         546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f
         6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b
         2076 6572 7369 6f6e 3d31",
    ];
    let coded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7
         8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335
         dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new();
        let mut first = unhex("3fe101");
        for (block, fields) in blocks.iter().zip(fields) {
            first.extend(unhex(block));
            assert_eq!(
                decode(&mut decoder, &std::mem::take(&mut first)),
                Ok(list(fields))
            );
        }
    }
}

fn encode(encoder: &mut Encoder, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.begin(&mut out);
    for (name, value) in fields {
        encoder.field(
            &mut out,
            Field {
                name: name.as_bytes(),
                value: value.as_bytes(),
                sensitive: false,
            },
        );
    }
    out
}

#[test]
fn secrets_are_never_indexed() {
    let mut encoder = Encoder::new();
    let secrets = [
        ("authorization", "Basic c2VjcmV0"),
        ("set-cookie", "id=a-long-enough-cookie-value"),
        ("cookie", "a=b"),
    ];
    for field in secrets {
        for _ in 0..3 {
            let block = encode(&mut encoder, &[field]);
            assert_eq!(
                block[0] & 0xf0,
                0x10,
                "{field:?} is a never-indexed literal every time"
            );
        }
    }
    let mut out = Vec::new();
    for _ in 0..2 {
        out.clear();
        encoder.field(
            &mut out,
            Field {
                name: b"x-token",
                value: b"0123456789",
                sensitive: true,
            },
        );
        assert_eq!(out[0], 0x10);
    }
    let mut seen = Vec::new();
    Decoder::new()
        .decode(&out, |f| seen.push(f.sensitive))
        .expect("own block");
    assert_eq!(seen, [true]);
}

#[test]
fn long_cookies_and_repeated_paths_become_one_byte() {
    let mut encoder = Encoder::new();
    let cookie = [("cookie", "session=0123456789abcdef0123456789abcdef")];
    encode(&mut encoder, &cookie);
    assert_eq!(encode(&mut encoder, &cookie).len(), 1);
    let path = [(":path", "/a/rather/long/path?with=query")];
    let first = encode(&mut encoder, &path);
    assert_eq!(first[0] & 0xf0, 0, "a path is not indexed at first sight");
    encode(&mut encoder, &path);
    assert_eq!(encode(&mut encoder, &path).len(), 1, "but at the second");
}

#[test]
fn unique_values_do_not_wash_out_the_table() {
    let mut encoder = Encoder::new();
    let common = [
        ("server", "an origin of some name"),
        ("x-frame-options", "SAMEORIGIN, really"),
    ];
    encode(&mut encoder, &common);
    encode(&mut encoder, &common);
    for number in 0..1000 {
        encode(&mut encoder, &[("x-request-id", &format!("{number:032x}"))]);
    }
    assert_eq!(encode(&mut encoder, &common).len(), 2);
}

#[test]
fn table_size_changes_are_announced() {
    let field = [("x-name", "some value that repeats")];
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let whole = encode(&mut encoder, &field);
    assert_eq!(decode(&mut decoder, &whole), Ok(list(&field)));
    encoder.set_limit(0);
    encoder.set_limit(100);
    let block = encode(&mut encoder, &field);
    assert_eq!(
        block[..3],
        [0x20, 0x3f, 69],
        "down to nothing, then up to 100"
    );
    assert_eq!(decode(&mut decoder, &block), Ok(list(&field)));
    encoder.set_limit(1 << 30);
    let block = encode(&mut encoder, &field);
    assert_eq!(block[..3], [0x3f, 0xe1, 0x1f], "never above 4096");
    assert_eq!(decode(&mut decoder, &block), Ok(list(&field)));
}

#[test]
fn hostile_blocks_are_refused() {
    let cases = [
        ("80", HpackError::Index),
        ("be", HpackError::Index),
        ("7f00 0161", HpackError::Index),
        ("ff ffff ffff ff", HpackError::Integer),
        ("ff", HpackError::Integer),
        ("4005 6162", HpackError::CutOff),
        ("40", HpackError::CutOff),
        ("4001 61", HpackError::CutOff),
        ("3fe2 1f", HpackError::SizeUpdate),
        ("8220", HpackError::SizeUpdate),
    ];
    for (block, error) in cases {
        assert_eq!(
            decode(&mut Decoder::new(), &unhex(block)),
            Err(error),
            "{block}"
        );
    }
    let bad_huffman = decode(&mut Decoder::new(), &unhex("4001 6184 ffff ffff"));
    assert!(matches!(bad_huffman, Err(HpackError::Huffman(_))));
}

/// An entry fills almost the whole table and is then indexed again and again. The sink sees every
/// field, but none is larger than the table, and the decoder copies nothing.
#[test]
fn a_bomb_makes_no_large_field() {
    let mut block = vec![0x40, 1, b'x', 0x7f];
    block.extend([
        0x80 | (4000 - 127) as u8 & 0x7f | 0x80,
        ((4000 - 127) >> 7) as u8,
    ]);
    block.extend(std::iter::repeat_n(b'v', 4000));
    block.extend(std::iter::repeat_n(0xbe, 16_000));
    let (mut count, mut largest) = (0, 0);
    let result = Decoder::new().decode(&block, |f| {
        count += 1;
        largest = largest.max(f.value.len());
    });
    assert_eq!((result, count, largest), (Ok(()), 16_001, 4000));
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            ":path",
            ":authority",
            "accept",
            "cookie",
            "etag",
            "x-a",
            "x-b",
            "location",
            "date"
        ])
        .prop_map(str::to_owned),
        "[a-z-]{1,20}",
    ]
}

fn values() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec!["", "gzip, deflate", "/", "a", "b"]).prop_map(str::to_owned),
        ".{0,40}",
        "[a-z0-9]{100,900}"
    ]
}

proptest! {
    /// Whatever is encoded comes out the same, across many blocks and table sizes, and small tables
    /// stay in step.
    #[test]
    fn round_trip(
        blocks in prop::collection::vec(
            (prop::option::weighted(0.2, 0usize..5000), prop::collection::vec((names(), values(), any::<bool>()), 0..12)),
            1..30,
        )
    ) {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        for (limit, fields) in blocks {
            if let Some(limit) = limit {
                encoder.set_limit(limit);
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            for (name, value, secret) in &fields {
                let sensitive = *secret && name.len() % 3 == 0;
                encoder.field(&mut block, Field { name: name.as_bytes(), value: value.as_bytes(), sensitive });
            }
            let expected: List = fields.into_iter().map(|(n, v, _)| (n, v)).collect();
            prop_assert_eq!(decode(&mut decoder, &block), Ok(expected));
        }
    }

    #[test]
    fn any_block_is_decoded_or_refused(blocks: Vec<Vec<u8>>) {
        let mut decoder = Decoder::new();
        for block in blocks {
            let mut bytes = 0;
            let result = decoder.decode(&block, |f| bytes += f.name.len() + f.value.len());
            prop_assert!(bytes <= block.len() * 4096);
            if result.is_err() {
                break;
            }
        }
    }
}
