//! Tests of parts of responses.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::*;
use crate::respond;

const WHOLE: &[u8] = b"0123456789";

/// A cache, and the number of requests that reached the origin.
struct Parts {
    world: World,
    asked: usize,
    user: u64,
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
        Self::with_users(1)
    }

    /// Creates a cache in which several users must fetch a resource before it serves others.
    fn with_users(min_users: u8) -> Self {
        Self {
            world: World::new(Sharing::Origin, min_users),
            asked: 0,
            user: 1,
        }
    }

    /// Requests with these fields. The origin responds with this head and body if it is asked.
    fn get(&mut self, fields: &[(&str, &str)], origin: (ResponseHead, &[u8])) -> (u16, Vec<u8>) {
        let (now, request) = (self.world.now(), get(fields));
        let key = Key::new(0, b"", &request, false).expect("a plain request");
        let group = Group::Origin("h".into());
        let cache = &mut self.world.cache;
        match cache.lookup(now, &key, group, self.user, &request, None) {
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

    /// Returns the stored response that serves a request.
    fn stored(&mut self, fields: &[(&str, &str)]) -> Arc<Stored> {
        match self.world.lookup(self.user, &get(fields)) {
            Lookup::Hit(stored) => stored,
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

#[test]
fn part_with_all_bytes_is_the_whole() {
    let mut parts = Parts::new();
    assert!(parts.range(0, 10));
    assert!(!parts.whole());
}

/// An origin that reuses a tag for another body must not cause a mixture of both.
#[test]
fn parts_that_contradict_each_other_do_not_join() {
    let mut parts = Parts::new();
    assert!(parts.range(0, 6));
    let other = (part_head(4, 10, &[]), &b"abcdef"[..]);
    parts.get(&[("range", "bytes=4-9")], other);
    assert!(parts.whole());
    for field in [
        ("content-encoding", "br"),
        ("content-type", "text/html"),
        ("content-language", "de"),
    ] {
        let mut parts = Parts::new();
        assert!(parts.range(0, 5) && parts.range_of(5, 10, &[field]));
        assert!(parts.whole(), "{field:?}");
    }
}

/// RFC 9110 section 15.3.7.2: the range of such a response stands in its body.
#[test]
fn several_ranges_in_one_response_are_not_stored() {
    let fields = [("content-type", "multipart/byteranges; boundary=a")];
    let mut parts = Parts::new();
    parts.range_of(0, 5, &fields);
    assert!(parts.range_of(0, 5, &fields));
}

/// A digest of the content of one part is wrong for other parts (RFC 9530 section 2).
#[test]
fn stored_part_has_no_digest_of_its_content() {
    let mut parts = Parts::new();
    let digest = ("content-digest", "sha-256=:AAAA:");
    parts.range_of(0, 5, &[digest, ("repr-digest", "sha-256=:BBBB:")]);
    let part = parts.stored(&[("range", "bytes=0-1")]);
    assert!(!part.head.fields.contains("content-digest"));
    assert!(part.head.fields.contains("repr-digest"));
}

/// A user that gets another user's bytes early learns that the other one requested them.
#[test]
fn parts_of_a_user_tell_others_nothing() {
    let mut parts = Parts::with_users(2);
    assert!(parts.range(0, 5));
    parts.user = 2;
    assert!(parts.range(5, 10));
    assert!(parts.range(0, 5), "a part of user 1");
    // Without the first user, the second request is the same.
    let second_request = |has_other: bool| {
        let mut parts = Parts::with_users(2);
        if has_other {
            parts.whole();
        }
        parts.user = 2;
        parts.range(0, 5);
        parts.range(0, 5)
    };
    assert_eq!(second_request(true), second_request(false));
}

#[test]
fn parts_of_a_known_resource_serve_all_users() {
    let mut parts = Parts::with_users(2);
    for user in 1..9 {
        parts.user = user;
        parts.whole();
    }
    parts.world.seconds += 61;
    assert!(parts.range_of(0, 5, &[("etag", "\"2\"")]));
    parts.user = 9;
    assert!(!parts.range(0, 5));
}

/// A cut of a large piece keeps the whole piece in memory, which no bound would count.
#[test]
fn overlapping_parts_keep_no_other_bytes_in_memory() {
    const KIB: usize = 1 << 10;
    let mut parts = Parts::new();
    let body: Vec<u8> = (0..60 * KIB).map(|at| (at % 251) as u8).collect();
    let mut total = 0;
    for (start, end) in [(0, 40), (20, 60)] {
        let (start, end) = (start * KIB, end * KIB);
        let (range, last) = (format!("bytes={start}-{}", end - 1), end - 1);
        let content = format!("bytes {start}-{last}/{}", 60 * KIB);
        let head = part_head(0, 1, &[("content-range", &content)]);
        parts.get(&[("range", &range)], (head, &body[start..end]));
        total = end;
    }
    let joined = parts.stored(&[]);
    let pieces: Vec<Bytes> = joined.body.slice(0, joined.body.len()).collect();
    assert_eq!(pieces.concat(), body);
    drop(joined);
    parts.world.cache.clear(parts.world.now());
    // A piece counts as a whole while a slice of it exists.
    let counted = || parts.world.cache.bodies.load(Ordering::Relaxed);
    assert_eq!(counted(), total as u64);
    drop(pieces);
    assert_eq!(counted(), 0);
}

/// A response to credentials must not travel as one without them.
#[test]
fn joined_part_has_the_credentials_of_both() {
    let mut parts = Parts::new();
    let public = ("cache-control", "public, max-age=60");
    let origin = (part_head(0, 5, &[public]), &WHOLE[..5]);
    let asked = [("range", "bytes=0-4"), ("authorization", "Basic YQ==")];
    parts.get(&asked, origin);
    parts.range_of(5, 10, &[public]);
    let whole = parts.stored(&[]);
    assert!(whole.extent.is_none() && !whole.is_anonymous);
}
