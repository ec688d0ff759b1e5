//! Tests of the rest of a response, also against origins of any behaviour.

use proptest::prelude::*;

use super::*;
use crate::Scheme;

const DAY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const SAME_MINUTE: &str = "Sun, 06 Nov 1994 08:50:36 GMT";
const LATER: &str = "Sun, 06 Nov 1994 08:50:37 GMT";

fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    ResponseHead {
        fields: fields.iter().copied().collect(),
        ..ResponseHead::new(status)
    }
}

fn asked(fields: &[(&str, &str)]) -> RequestHead {
    RequestHead {
        fields: fields.iter().copied().collect(),
        ..RequestHead::get(Scheme::Http, "own.example", "/file")
    }
}

const TAG: (&str, &str) = ("etag", "\"1\"");
const TEN: (&str, &str) = ("content-length", "10");

/// The rest of a response of ten bytes of which four have arrived.
fn six() -> Rest {
    let first = head(200, &[TAG, TEN, ("content-type", "text/css")]);
    let mut rest = Rest::of(&asked(&[]), &first).expect("it can be continued");
    assert!(rest.received(4));
    rest
}

#[test]
fn response_without_strong_validator_has_no_rest() {
    let dated = |date| [("last-modified", DAY), ("date", date), TEN];
    for (fields, expected) in [
        (&[TAG, TEN][..], true),
        (&[("etag", "\"\""), TEN], true),
        (&[("etag", "W/\"1\""), TEN], false),
        (&[("etag", "1"), TEN], false),
        (&[("etag", "\"1"), TEN], false),
        (&[("etag", "\""), TEN], false),
        (&[("etag", "\"1\", \"2\""), TEN], false),
        (&[TAG, TAG, TEN], false),
        (&[TEN], false),
        (&[TAG], false),
        (&[TAG, ("content-length", "x")], false),
        (&[TAG, TEN, ("content-range", "bytes 0-9/10")], false),
        (&dated(LATER), true),
        (&dated(SAME_MINUTE), false),
        (&dated("soon"), false),
        (&[("last-modified", DAY), TEN], false),
        (
            &[
                ("last-modified", DAY),
                ("date", LATER),
                ("etag", "W/\"1\""),
                TEN,
            ],
            false,
        ),
        (&[TAG, TEN, ("accept-ranges", "bytes")], true),
        (&[TAG, TEN, ("accept-ranges", "none")], false),
        (&[TAG, TEN, ("accept-ranges", "lines, Bytes")], true),
    ] {
        let rest = Rest::of(&asked(&[]), &head(200, fields));
        assert_eq!(rest.is_some(), expected, "{fields:?}");
    }
    for status in [203, 204, 206, 304, 404] {
        let rest = Rest::of(&asked(&[]), &head(status, &[TAG, TEN]));
        assert_eq!(rest, None, "{status}");
    }
    let mut post = asked(&[]);
    post.method = Method::Post;
    assert_eq!(Rest::of(&post, &head(200, &[TAG, TEN])), None);
    let mut upgrade = asked(&[]);
    upgrade.protocol = Some("websocket".to_owned());
    assert_eq!(Rest::of(&upgrade, &head(200, &[TAG, TEN])), None);
}

#[test]
fn credentials_for_one_request_exclude_a_rest() {
    for (credentials, expected) in [
        ("Basic YQ==", true),
        ("Bearer x", true),
        ("Digest username=\"a\", nc=00000001", false),
        ("digest nc=1", false),
        ("NTLM YQ==", false),
        ("Negotiate YQ==", false),
    ] {
        let request = asked(&[("authorization", credentials)]);
        let rest = Rest::of(&request, &head(200, &[TAG, TEN]));
        assert_eq!(rest.is_some(), expected, "{credentials}");
    }
}

#[test]
fn request_is_for_the_missing_bytes_and_the_validator() {
    let conditions = [
        ("accept", "*/*"),
        ("if-none-match", "\"0\""),
        ("if-modified-since", DAY),
        ("cookie", "a=b"),
    ];
    let expected = [
        ("accept", "*/*"),
        ("cookie", "a=b"),
        ("range", "bytes=4-"),
        ("if-range", "\"1\""),
    ];
    assert_eq!(six().request(&asked(&conditions)), asked(&expected));
    let dated = head(200, &[("last-modified", DAY), ("date", LATER), TEN]);
    let rest = Rest::of(&asked(&[]), &dated).expect("a strong date");
    let expected = [("range", "bytes=0-"), ("if-range", DAY)];
    assert_eq!(rest.request(&asked(&[])), asked(&expected));
}

#[test]
fn rest_of_a_part_ends_with_the_part() {
    let own = asked(&[("range", "bytes=2-7"), ("if-range", "\"1\"")]);
    let part = [TAG, ("content-range", "bytes 2-7/10")];
    let mut rest = Rest::of(&own, &head(206, &part)).expect("one part");
    assert!(rest.received(1) && rest.left() == 5);
    let expected = asked(&[("range", "bytes=3-7"), ("if-range", "\"1\"")]);
    assert_eq!(rest.request(&own), expected);
    let second = |range| head(206, &[TAG, ("content-range", range)]);
    assert_eq!(rest.skipped(&second("bytes 3-7/10")), Some(0));
    assert_eq!(rest.skipped(&second("bytes 3-9/10")), None);
    assert_eq!(rest.skipped(&head(200, &[TAG, TEN])), None);
    for bad in [
        &[TAG, ("content-range", "bytes 2-7/*")][..],
        &[TAG],
        &[
            TAG,
            ("content-range", "bytes 2-7/10"),
            ("content-type", "multipart/byteranges; boundary=x"),
        ],
    ] {
        assert_eq!(Rest::of(&own, &head(206, bad)), None, "{bad:?}");
    }
}

#[test]
fn rest_takes_exactly_the_missing_bytes() {
    let range = ("content-range", "bytes 4-9/10");
    for (status, fields, expected) in [
        (206, &[TAG, range][..], Some(0)),
        (206, &[TAG, range, ("content-type", "text/css")], Some(0)),
        (206, &[TAG, range, ("content-type", "text/html")], None),
        (206, &[TAG, range, ("content-language", "en")], None),
        (206, &[TAG, range, ("content-encoding", "gzip")], None),
        (206, &[TAG, range, ("content-length", "6")], Some(0)),
        (206, &[TAG, range, ("content-length", "5")], None),
        (206, &[range], None),
        (206, &[("etag", "\"2\""), range], None),
        (206, &[("etag", "W/\"1\""), range], None),
        (206, &[TAG, TAG, range], None),
        (206, &[TAG, range, range], None),
        (206, &[TAG], None),
        (206, &[TAG, ("content-range", "bytes 3-9/10")], None),
        (206, &[TAG, ("content-range", "bytes 5-9/10")], None),
        (206, &[TAG, ("content-range", "bytes 4-8/10")], None),
        (206, &[TAG, ("content-range", "bytes 4-9/11")], None),
        (206, &[TAG, ("content-range", "bytes 4-10/11")], None),
        (206, &[TAG, ("content-range", "bytes 4-9/*")], None),
        (200, &[TAG, TEN], Some(4)),
        (200, &[TAG, ("content-length", "11")], None),
        (200, &[TAG], None),
        (200, &[("etag", "\"2\""), TEN], None),
        (200, &[("etag", "W/\"1\""), TEN], None),
        (200, &[TAG, TEN, ("content-encoding", "gzip")], None),
        (416, &[TAG, ("content-range", "bytes */10")], None),
        (304, &[TAG], None),
        (502, &[TAG, TEN], None),
    ] {
        let skipped = six().skipped(&head(status, fields));
        assert_eq!(skipped, expected, "{status} {fields:?}");
    }
}

#[test]
fn long_beginning_is_not_received_again() {
    let length = (2 * MAX_SKIPPED).to_string();
    let whole = head(200, &[TAG, ("content-length", &length)]);
    let mut rest = Rest::of(&asked(&[]), &whole).expect("it can be continued");
    assert!(rest.received(MAX_SKIPPED));
    assert_eq!(rest.skipped(&whole), Some(MAX_SKIPPED));
    assert!(rest.received(1));
    assert_eq!(rest.skipped(&whole), None);
}

#[test]
fn bytes_beyond_the_length_are_refused() {
    let mut rest = six();
    assert!(!rest.received(7) && rest.left() == 6);
    assert!(rest.received(6) && rest.left() == 0 && !rest.received(1));
}

/// A response of an origin that tells the truth about its bytes, and does anything else.
#[derive(Clone, Debug)]
struct Told {
    /// The version of the file, whose bytes and strong tag differ from those of the other.
    version: usize,
    status: u16,
    range: (usize, usize),
    has_tag: bool,
    is_weak: bool,
    /// Another coding of the bytes. A careless origin gives it the same tag.
    is_coded: bool,
    has_length: bool,
    has_date: bool,
    /// The bytes that arrive before the response breaks off again.
    arrives: usize,
}

fn told() -> impl Strategy<Value = Told> {
    let status = prop_oneof![
        Just(206),
        Just(206),
        Just(200),
        Just(416),
        Just(304),
        Just(503)
    ];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let weak = prop_oneof![4 => Just(false), 1 => Just(true)];
    (
        0..2usize,
        status,
        (0..80usize, 0..80usize),
        flags,
        weak,
        0..80usize,
    )
        .prop_map(|(version, status, range, flags, is_weak, arrives)| Told {
            version,
            status,
            range,
            has_tag: flags.0 || flags.1,
            is_weak,
            is_coded: flags.1 && flags.2,
            has_length: flags.2 || flags.3,
            has_date: flags.3,
            arrives,
        })
}

impl Told {
    /// Answers a request for the bytes from `wanted` on. The range of the response may be another.
    fn answer(&self, files: &[Vec<u8>; 2], wanted: Option<usize>) -> (ResponseHead, Vec<u8>) {
        let mut file = files[self.version].clone();
        if self.is_coded {
            file.iter_mut().for_each(|byte| *byte ^= 0xff);
        }
        let mut fields = Fields::new();
        if self.has_tag {
            let weak = if self.is_weak { "W/" } else { "" };
            fields.push("etag", format!("{weak}\"{}\"", self.version));
        }
        if self.has_date {
            fields.push("last-modified", [DAY, SAME_MINUTE][self.version]);
            fields.push("date", "Mon, 07 Nov 1994 08:49:37 GMT");
        }
        if self.is_coded {
            fields.push("content-encoding", "x-inverted");
        }
        let total = file.len();
        let (start, end) = match wanted {
            // Most origins do as they are asked.
            Some(wanted) if !self.range.0.is_multiple_of(4) => (wanted.min(total), total),
            _ => (self.range.0.min(total), self.range.1.min(total)),
        };
        let body = match self.status {
            206 => {
                let last = end as i64 - 1;
                fields.push("content-range", format!("bytes {start}-{last}/{total}"));
                file.get(start..end).unwrap_or_default().to_vec()
            }
            _ => file,
        };
        if self.has_length {
            fields.push("content-length", body.len().to_string());
        }
        let head = ResponseHead {
            status: self.status,
            fields,
        };
        (head, body)
    }
}

/// Reads a response and continues it. Returns the bytes that the reader gets, and whether they end
/// as a complete body.
fn read(files: &[Vec<u8>; 2], own_range: bool, first: &Told, others: &[Told]) -> (Vec<u8>, bool) {
    let fields = [("range", "bytes=0-")];
    let request = asked(if own_range { &fields } else { &[] });
    let (head, body) = first.answer(files, None);
    let mut got = body[..first.arrives.min(body.len())].to_vec();
    let Some(mut rest) = Rest::of(&request, &head) else {
        return (got, false);
    };
    assert!(
        rest.received(got.len() as u64),
        "the origin tells the truth"
    );
    for told in others {
        if rest.left() == 0 {
            break;
        }
        let asked = rest.request(&request);
        assert_eq!(asked.fields.get_all("if-range").count(), 1);
        let (head, body) = told.answer(files, Some(rest.next as usize));
        let Some(skipped) = rest.skipped(&head) else {
            return (got, false);
        };
        let arrived = &body[..told.arrives.min(body.len())];
        let new = arrived.get(skipped as usize..).unwrap_or_default();
        if !rest.received(new.len() as u64) {
            return (got, false);
        }
        got.extend_from_slice(new);
    }
    (got, rest.left() == 0)
}

/// Each response of a good origin breaks off, and the next one brings a part of the rest.
#[test]
fn body_in_many_parts_is_complete() {
    let files = [(0..60).collect::<Vec<u8>>(), vec![1; 60]];
    let good = Told {
        version: 0,
        status: 206,
        range: (1, 60),
        has_tag: true,
        is_weak: false,
        is_coded: false,
        has_length: true,
        has_date: true,
        arrives: 9,
    };
    let first = Told {
        status: 200,
        ..good.clone()
    };
    let (got, is_complete) = read(&files, false, &first, &vec![good.clone(); 5]);
    assert_eq!((got.len(), is_complete), (54, false));
    let mut others = vec![good.clone(); 6];
    assert_eq!(
        read(&files, false, &first, &others),
        (files[0].clone(), true)
    );
    // The origin sends the whole file once, and later another one.
    others[2] = Told {
        arrives: 40,
        ..first.clone()
    };
    assert_eq!(
        read(&files, false, &first, &others),
        (files[0].clone(), true)
    );
    others[2].version = 1;
    assert_eq!(
        read(&files, false, &first, &others),
        ((0..27).collect(), false)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// The bytes are those of one representation, or the body ends with an error.
    #[test]
    fn continued_body_is_the_representation_or_incomplete(
        lengths in (1..64usize, 1..64usize),
        seed: u8,
        own_range: bool,
        first in told(),
        others in proptest::collection::vec(told(), 0..6),
    ) {
        let file = |length, salt: u8| -> Vec<u8> {
            (0..length as u8).map(|at| at.wrapping_mul(37) ^ seed ^ salt).collect()
        };
        let files = [file(lengths.0, 0), file(lengths.1, 0x80)];
        let (got, is_complete) = read(&files, own_range, &first, &others);
        let (head, whole) = first.answer(&files, None);
        prop_assert!(whole.starts_with(&got), "{head:?}");
        prop_assert!(!is_complete || got == whole, "{head:?}");
    }

    /// Heads of any text are refused, or name exactly the missing bytes.
    #[test]
    fn accepted_head_names_the_missing_bytes(
        status in prop_oneof![Just(200u16), Just(206), any::<u16>()],
        fields in proptest::collection::vec(
            (
                prop_oneof![
                    Just("etag"), Just("content-range"), Just("content-length"),
                    Just("content-encoding"), Just("last-modified"), Just("content-type"),
                ],
                "(\"1\"|W/\"1\"|bytes [0-9]{1,3}-[0-9]{1,3}/[0-9]{1,3}|[ -~]{0,12}|bytes 4-9/10)",
            ),
            0..6,
        ),
    ) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let head = head(status, &fields);
        if let Some(skipped) = six().skipped(&head) {
            prop_assert_eq!(head.fields.get("etag"), Some(&b"\"1\""[..]));
            match status {
                206 => prop_assert!(skipped == 0 && extent(&head).is_some_and(|it| it.start == 4)),
                _ => prop_assert_eq!(skipped, 4),
            }
        }
    }
}
