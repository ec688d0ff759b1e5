//! Tests of the rules of heads.

use super::*;

#[test]
fn urgencies() {
    let cases: [(&[u8], Option<u8>); 8] = [
        (b"u=1", Some(1)),
        (b"u=5, i", Some(5)),
        (b"i,u=0", Some(0)),
        (b"u=2;x=1", Some(2)),
        (b"u=2, u=4", Some(4)),
        (b"u=8", None),
        (b"u=-1", None),
        (b"i", None),
    ];
    for (value, expected) in cases {
        assert_eq!(urgency(value), expected.map(Priority), "{value:?}");
    }
}

#[test]
fn values() {
    for good in [&b""[..], b"a", b"a b", b"a\tb", b"\xff\x80"] {
        assert_eq!(ValueKind::of(good), ValueKind::Plain, "{good:?}");
    }
    for odd in [&b"\x7f"[..], b"\x01", b"a\x0cb"] {
        assert_eq!(ValueKind::of(odd), ValueKind::Controls, "{odd:?}");
    }
    for bad in [
        &b" a"[..],
        b"a ",
        b"\ta",
        b"a\t",
        b"a\r",
        b"a\nb",
        b"\0",
        b"\x01\n",
    ] {
        assert_eq!(ValueKind::of(bad), ValueKind::Bad, "{bad:?}");
    }
}

#[test]
fn status_codes() {
    assert_eq!(status(b"200"), Some(200));
    for bad in [&b"099"[..], b"20", b"2000", b"2x0", b"+20"] {
        assert_eq!(status(bad), None, "{bad:?}");
    }
}

#[test]
fn paths_beyond_ascii_are_encoded() {
    assert_eq!(
        path(b"/\xc3\xa9?\xff=%41").as_deref(),
        Some("/%C3%A9?%FF=%41")
    );
    for bad in [&b""[..], b"/a b", b"/\x7f", b"/\n\xe9", b"/\xe9#"] {
        assert_eq!(path(bad), None, "{bad:?}");
    }
}
