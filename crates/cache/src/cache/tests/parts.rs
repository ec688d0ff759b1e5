//! Tests of parts of responses.

use bytes::Bytes;

use super::*;
use crate::respond;

const WHOLE: &[u8] = b"0123456789";

/// A cache, and the number of requests that reached the origin.
struct Parts {
    world: World,
    asked: usize,
}

/// The head of a part, with more fields.
fn part_head(start: usize, end: usize, fields: &[(&str, &str)]) -> ResponseHead {
    let range = format!("bytes {start}-{}/{}", end - 1, WHOLE.len());
    let own = [
        ("cache-control", "max-age=60"),
        ("etag", "\"1\""),
        ("content-range", &range),
    ];
    let kept = own
        .iter()
        .filter(|(name, _)| !fields.iter().any(|(it, _)| it == name));
    let all: Vec<_> = kept.chain(fields).copied().collect();
    head(206, &all)
}

impl Parts {
    fn new() -> Self {
        Self {
            world: World::new(Sharing::Origin, 1),
            asked: 0,
        }
    }

    /// Requests with these fields. The origin responds with this head and body if it is asked.
    fn get(&mut self, fields: &[(&str, &str)], origin: (ResponseHead, &[u8])) -> (u16, Vec<u8>) {
        let (now, request) = (self.world.now(), get(fields));
        let key = Key::new(0, b"", &request, false).expect("a plain request");
        let group = Group::Origin("h".into());
        let cache = &mut self.world.cache;
        match cache.lookup(now, &key, group, 1, &request, None) {
            Lookup::Hit(stored) => {
                let response = respond(&stored, &request, now).expect("a range");
                let body: Vec<u8> = response.body(&stored).flatten().collect();
                let length = response
                    .head
                    .fields
                    .get("content-length")
                    .map(<[u8]>::to_vec);
                assert_eq!(length, Some(body.len().to_string().into_bytes()));
                (response.head.status, body)
            }
            Lookup::Fetch(fetch, _) => {
                self.asked += 1;
                let (head, body) = origin;
                if let Received::Store(pending) = cache.receive(now, &fetch, &head) {
                    cache.finish(*pending, vec![Bytes::copy_from_slice(body)], None);
                }
                (head.status, body.to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    /// Requests a range from `start` up to `end`. Returns whether the origin was asked.
    fn range(&mut self, start: usize, end: usize) -> bool {
        self.range_of(start, end, &[])
    }

    fn range_of(&mut self, start: usize, end: usize, fields: &[(&str, &str)]) -> bool {
        let (before, range) = (self.asked, format!("bytes={start}-{}", end - 1));
        let origin = (part_head(start, end, fields), &WHOLE[start..end]);
        let (status, body) = self.get(&[("range", &range)], origin);
        assert_eq!((status, &body[..]), (206, &WHOLE[start..end]));
        self.asked > before
    }

    /// Requests the whole. Returns whether the origin was asked.
    fn whole(&mut self) -> bool {
        let before = self.asked;
        let fields = [("cache-control", "max-age=60"), ("etag", "\"1\"")];
        let (status, body) = self.get(&[], (head(200, &fields), WHOLE));
        assert_eq!((status, &body[..]), (200, WHOLE));
        self.asked > before
    }
}

#[test]
fn part_serves_ranges_within_it() {
    let mut parts = Parts::new();
    assert!(parts.range(2, 6));
    for (start, end) in [(2, 6), (3, 5), (2, 3), (5, 6)] {
        assert!(!parts.range(start, end), "{start}..{end}");
    }
    for (start, end) in [(1, 3), (8, 9)] {
        let mut other = Parts::new();
        other.range(2, 6);
        assert!(other.range(start, end), "{start}..{end}");
    }
    assert!(parts.whole(), "a part is not the whole");
}

#[test]
fn parts_join_to_the_whole() {
    for order in [
        [(0, 4), (4, 10)],
        [(4, 10), (0, 4)],
        [(0, 7), (3, 10)],
        [(3, 10), (0, 7)],
    ] {
        let mut parts = Parts::new();
        for (start, end) in order {
            assert!(parts.range(start, end));
        }
        assert!(!parts.range(2, 9), "{order:?}");
        assert!(!parts.whole(), "{order:?}");
        assert_eq!(parts.asked, 2);
    }
}

#[test]
fn parts_with_a_gap_do_not_join() {
    let mut parts = Parts::new();
    assert!(parts.range(0, 3) && parts.range(4, 10));
    assert!(!parts.range(4, 10) && parts.whole());
}

/// RFC 9110 section 15.3.7.3: only parts with the same strong validator are combined.
#[test]
fn parts_of_other_versions_do_not_join() {
    let mut parts = Parts::new();
    assert!(parts.range(0, 5) && parts.range_of(5, 10, &[("etag", "\"2\"")]));
    assert!(parts.range(0, 5), "the older version made way");
    for fields in [
        &[("etag", "W/\"1\"")][..],
        &[("etag", "")],
        &[("content-range", "bytes 0-4/*")],
        &[("content-range", "bytes 0-4/4")],
        &[("content-range", "lines 0-4/10")],
        &[("content-length", "4")],
        &[("cache-control", "no-store")],
        &[("vary", "*")],
    ] {
        let mut parts = Parts::new();
        parts.range_of(0, 5, fields);
        assert!(parts.range_of(0, 5, fields), "{fields:?}");
    }
}

#[test]
fn stale_part_serves_nothing() {
    let mut parts = Parts::new();
    assert!(parts.range(0, 5));
    parts.world.seconds += 61;
    assert!(parts.range(0, 5));
}

#[test]
fn part_with_another_length_is_not_stored() {
    let mut parts = Parts::new();
    let short = (part_head(0, 5, &[]), &WHOLE[..4]);
    parts.get(&[("range", "bytes=0-4")], short);
    assert!(parts.range(0, 5));
}

#[test]
fn part_leaves_the_stored_whole() {
    let mut parts = Parts::new();
    assert!(parts.whole());
    let ranges = [("range", "bytes=0-4"), ("cache-control", "no-cache")];
    parts.get(&ranges, (part_head(0, 5, &[]), &WHOLE[..5]));
    assert_eq!(parts.asked, 2);
    assert!(!parts.whole());
}

#[test]
fn condition_of_a_range_needs_the_tag_of_the_part() {
    let mut parts = Parts::new();
    parts.range(0, 5);
    for (tag, is_asked) in [("\"1\"", false), ("\"2\"", true)] {
        let before = parts.asked;
        let fields = [("range", "bytes=0-2"), ("if-range", tag)];
        parts.get(&fields, (head(200, &[]), WHOLE));
        assert_eq!(parts.asked > before, is_asked, "{tag}");
    }
}
