//! A stored response: its head, the request that it was a response to, and its body.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tandem_http::cache::range::Extent;
use tandem_http::cache::{Freshness, ResponsePolicy, validation, vary};
use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use crate::Now;
use crate::asker::Asker;

/// The bytes of memory that an entry needs besides its texts.
const OVERHEAD: usize = 512;

/// The bytes of memory that a piece of a body needs besides its text.
const PIECE_OVERHEAD: usize = 64;

/// The length from which a body counts as whole pages, as a program may keep it.
const IN_PAGES: u64 = 16 << 10;

/// The size of a page of memory.
const PAGE: u64 = 4 << 10;

/// The size below which the pieces of a body are joined.
const SMALL_PIECE: usize = 16 << 10;

/// The size of joined pieces. A slow client keeps the pieces in memory that it has not read yet.
const JOINED_PIECE: usize = 128 << 10;

/// The size from which a piece counts as memory in use by itself.
const LARGE_PIECE: usize = 4 << 10;

/// The fields by which origins choose an error response, often without `Vary`.
const OF_ERRORS: [&str; 4] = ["accept", "accept-language", "content-type", "user-agent"];

/// Returns true if a response may be one for the site that `Origin` names, often without `Vary`.
fn is_for_site(response: &ResponseHead) -> bool {
    let mut permitted = response.fields.get_all("access-control-allow-origin");
    permitted.any(|site| site != b"*")
}

/// A complete body in pieces, shared by all its readers.
#[derive(Clone, Debug, Default)]
pub struct Body {
    pieces: Arc<Pieces>,
    len: u64,
}

/// The pieces of a body, which count as memory in use until the last reader has left. A large piece
/// counts until its last slice has gone, since a session may queue slices after that.
#[derive(Debug, Default)]
struct Pieces {
    pieces: Vec<Bytes>,
    /// The counter with the bytes of the small pieces.
    counted: Option<(Arc<AtomicU64>, u64)>,
    /// The number of responses in a store that have this body.
    kept: AtomicUsize,
}

/// A place in a body, from which the search for the next piece begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct PiecePlace {
    index: usize,
    /// The position of the first byte of the piece.
    begin: u64,
}

/// A large piece, which counts as memory in use.
struct CountedPiece {
    bytes: Bytes,
    counter: Arc<AtomicU64>,
}

impl AsRef<[u8]> for CountedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedPiece {
    fn drop(&mut self) {
        self.counter
            .fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Makes a large piece count as memory in use.
fn counted(bytes: Bytes, counter: &Arc<AtomicU64>) -> Bytes {
    if bytes.len() < LARGE_PIECE {
        return bytes;
    }
    counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    let counter = Arc::clone(counter);
    Bytes::from_owner(CountedPiece { bytes, counter })
}

impl Drop for Pieces {
    fn drop(&mut self) {
        if let Some((counter, bytes)) = self.counted.take() {
            counter.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Body {
    /// Creates a body of these pieces. Many small pieces become few. The body adds its bytes to
    /// `counter` for as long as the store or a reader has it.
    pub fn counted(pieces: Vec<Bytes>, counter: &Arc<AtomicU64>) -> Self {
        let pieces = joined(pieces).into_iter();
        Self::of_counted(
            pieces.map(|piece| counted(piece, counter)).collect(),
            counter,
        )
    }

    /// Creates a body of new pieces before and after those of another body.
    pub(crate) fn around(
        before: impl Iterator<Item = Bytes>,
        own: &Self,
        after: impl Iterator<Item = Bytes>,
        counter: &Arc<AtomicU64>,
    ) -> Self {
        let count = |piece| counted(piece, counter);
        let before: Vec<_> = joined(before.collect()).into_iter().map(count).collect();
        let after: Vec<_> = joined(after.collect()).into_iter().map(count).collect();
        let own = own.pieces.pieces.iter().cloned();
        let all: Vec<Bytes> = before.into_iter().chain(own).chain(after).collect();
        let len: usize = all.iter().map(Bytes::len).sum();
        // Many small parts would need more memory for their places than for their bytes.
        match all.len() > 1 && len / all.len() < LARGE_PIECE {
            true => Self::counted(all, counter),
            false => Self::of_counted(all, counter),
        }
    }

    /// Creates a body of pieces of which the large ones are counted.
    fn of_counted(mut pieces: Vec<Bytes>, counter: &Arc<AtomicU64>) -> Self {
        // A list that has grown piece by piece has room for at least four.
        pieces.shrink_to_fit();
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        let small = pieces
            .iter()
            .map(Bytes::len)
            .filter(|len| *len < LARGE_PIECE);
        let small = small.map(|len| len as u64).sum();
        counter.fetch_add(small, Ordering::Relaxed);
        let counted = Some((Arc::clone(counter), small));
        let kept = AtomicUsize::new(0);
        let pieces = Arc::new(Pieces {
            pieces,
            counted,
            kept,
        });
        Self { pieces, len }
    }

    /// Creates a body of these pieces. Many small pieces become few.
    pub fn new(pieces: Vec<Bytes>) -> Self {
        Self::counted(pieces, &Arc::default())
    }

    /// The length in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the body has no byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the rest of the piece with the byte at `position`. The search begins at `place`, the
    /// place of an earlier piece of this body, which then becomes that of the piece found.
    pub fn rest_of_piece(&self, position: u64, place: &mut PiecePlace) -> Option<Bytes> {
        if position < place.begin {
            *place = PiecePlace::default();
        }
        loop {
            let piece = self.pieces.pieces.get(place.index)?;
            let from = position - place.begin;
            if from < piece.len() as u64 {
                // The difference is below the length of the piece, which is in memory.
                return Some(piece.slice(from as usize..));
            }
            place.index += 1;
            place.begin += piece.len() as u64;
        }
    }

    /// Notes that a store holds one more response with this body.
    pub(crate) fn enter_store(&self) {
        self.pieces.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a store has removed a response with this body.
    pub(crate) fn leave_store(&self) {
        self.pieces.kept.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns true if a store holds a response with this body.
    pub fn is_kept(&self) -> bool {
        self.pieces.kept.load(Ordering::Relaxed) > 0
    }

    /// Returns the bytes from `start` up to `end`, in pieces that share the stored bytes.
    pub fn slice(&self, start: u64, end: u64) -> impl Iterator<Item = Bytes> + use<> {
        let pieces = Arc::clone(&self.pieces);
        let (mut at, mut index) = (0u64, 0);
        std::iter::from_fn(move || {
            loop {
                let piece = pieces.pieces.get(index)?;
                let (begin, length) = (at, piece.len() as u64);
                index += 1;
                at += length;
                let from = start.max(begin).min(at) - begin;
                let to = end.max(begin).min(at) - begin;
                if from < to {
                    // Both are at most the length of the piece, which is in memory.
                    return Some(piece.slice(from as usize..to as usize));
                }
            }
        })
    }
}

/// Joins many small pieces.
fn joined(pieces: Vec<Bytes>) -> Vec<Bytes> {
    let mut left: usize = pieces.iter().map(Bytes::len).sum();
    if pieces.len() < 2 || left / pieces.len() >= SMALL_PIECE {
        return pieces;
    }
    let (mut all, mut next) = (Vec::new(), BytesMut::new());
    for mut piece in pieces {
        while !piece.is_empty() {
            if next.is_empty() {
                next = BytesMut::with_capacity(left.min(JOINED_PIECE));
            }
            let fits = piece.len().min(JOINED_PIECE - next.len());
            next.extend_from_slice(&piece.split_to(fits));
            left -= fits;
            if next.len() == JOINED_PIECE || left == 0 {
                all.push(std::mem::take(&mut next).freeze());
            }
        }
    }
    all
}

/// A stored response.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The head as its origin sent it, or as the last validation updated it.
    pub head: ResponseHead,
    /// The fields after the body.
    pub trailers: Option<Fields>,
    /// The complete body, or a part of it.
    pub body: Body,
    /// The place of a part in the body.
    pub(crate) extent: Option<Extent>,
    /// The policy of the head.
    pub policy: ResponsePolicy,
    pub(crate) freshness: Freshness,
    /// The fields of the original request that select the response.
    pub(crate) request: Fields,
    pub(crate) asker: Asker,
    /// The user of the request, or of the last validation. `None` for a response of another cache.
    pub(crate) user: Option<u64>,
    /// The time of arrival, or of the last validation.
    pub(crate) since: Duration,
    /// The time of the request to the origin, or of the last validation.
    pub(crate) started: Duration,
    /// The request had no credentials, and no cookies unless the response is `public`.
    pub(crate) is_anonymous: bool,
    /// The request is known to have had neither credentials nor cookies.
    pub(crate) had_no_credentials: bool,
}

impl Stored {
    /// The time that the response has been stored.
    pub(crate) fn resident(&self, now: Now) -> Duration {
        now.elapsed.saturating_sub(self.since)
    }

    /// The age of the response (RFC 9111 section 4.2.3).
    pub fn age(&self, now: Now) -> Duration {
        self.freshness.age(self.resident(now))
    }

    /// The time for which the response stays fresh, or zero.
    pub fn remaining(&self, now: Now) -> Duration {
        let remaining = self.freshness.remaining(self.resident(now));
        remaining.unwrap_or_default()
    }

    /// The time since the response became stale, or zero.
    pub fn staleness(&self, now: Now) -> Duration {
        self.freshness.staleness(self.resident(now))
    }

    /// Returns true if all users may know of the response, or only `only` and it is that user's.
    pub(crate) fn is_open_to(&self, only: Option<u64>) -> bool {
        only.is_none() || self.user == only
    }

    /// Returns true if the response was made for a request like one with these fields, by `Vary`
    /// and by the fields that origins read without naming them there.
    pub fn fits(&self, asked: &Fields) -> bool {
        let response = &self.head.fields;
        let is_equal = |name: &&str| vary::is_equal(name, &self.request, asked);
        vary::selects(response, &self.request, asked)
            && (self.head.status < 400 || OF_ERRORS.iter().all(is_equal))
            && (!is_for_site(&self.head) || is_equal(&"origin"))
            && self.asker.is_like(asked, response)
    }

    /// Returns true if `newer`, the response to a later request with the fields `asked`, shows that
    /// this response is out of date: both have the same credentials, browser, format, coding and
    /// fields of `Vary`, and other validators. Requests of a browser and of a push can differ in
    /// further fields (RFC 9111 section 4: a cache uses the most recent response).
    pub(crate) fn is_outdated_by(&self, newer: &Self, asked: &Fields) -> bool {
        let (old, new) = (&self.head, &newer.head);
        let differs = |name| match (old.fields.get(name), new.fields.get(name)) {
            (Some(before), Some(after)) => before != after,
            _ => false,
        };
        let is_same = |name| old.fields.get(name) == new.fields.get(name);
        self.started <= newer.started
            && old.status < 400
            && new.status < 400
            && is_same("content-encoding")
            && is_same("vary")
            && is_for_site(old) == is_for_site(new)
            && (differs("etag") || (!old.fields.contains("etag") && differs("last-modified")))
            && vary::selects(&old.fields, &self.request, asked)
            && self.asker.has_credentials_of(asked)
            && self.asker.has_version_of(asked)
    }

    /// Returns true if the response, which has just arrived, may serve another request that waited
    /// for it (RFC 9111 section 4).
    pub fn serves_waiting(&self, request: &RequestHead, now: Now) -> bool {
        let fields = &request.fields;
        let plain = !validation::is_conditional(fields) && !fields.contains("range");
        let fresh = !self.policy.control.no_cache && !self.remaining(now).is_zero();
        plain && fresh && request.method == Method::Get && self.fits(fields)
    }

    /// The bytes of memory that the response needs.
    pub fn weight(&self) -> u64 {
        let texts = [
            Some(&self.head.fields),
            Some(&self.request),
            self.trailers.as_ref(),
        ];
        let texts: usize = texts
            .into_iter()
            .flatten()
            .map(|fields| fields.text_len() + fields.len() * 16)
            .sum();
        let pieces = self.body.pieces.pieces.len() * PIECE_OVERHEAD;
        let body = match self.body.len {
            len if len < IN_PAGES => len,
            len => len.next_multiple_of(PAGE),
        };
        body + (texts + pieces + OVERHEAD) as u64
    }
}

/// Returns the fields of a request that select its response: those that `Vary` lists, those that
/// may cause an error, and the site to which a response is open.
pub(crate) fn selecting(response: &ResponseHead, request: &Fields) -> Fields {
    let listed = |name: &[u8]| {
        let of_errors = || OF_ERRORS.iter().any(|field| field.as_bytes() == name);
        vary::names(&response.fields).any(|it| it.eq_ignore_ascii_case(name))
            || (response.status >= 400 && of_errors())
            || (name == b"origin" && is_for_site(response))
    };
    request
        .iter()
        .filter(|field| listed(field.name))
        .map(|field| (field.name, field.value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_of_a_body_are_joined() {
        let small = Body::new(vec![Bytes::from_static(b"ab"), Bytes::from_static(b"cd")]);
        assert_eq!(small.pieces.pieces.len(), 1);
        let mut grown = Vec::with_capacity(4);
        grown.push(Bytes::from_static(b"ab"));
        assert_eq!(
            Body::new(grown).pieces.pieces.capacity(),
            1,
            "no spare room"
        );
        let large = Bytes::from(vec![1; SMALL_PIECE]);
        assert_eq!(Body::new(vec![large.clone(), large]).pieces.pieces.len(), 2);
        assert!(Body::new(Vec::new()).is_empty());
        let many = Body::new(vec![Bytes::from(vec![1; 1000]); 400]);
        let lengths: Vec<usize> = many.pieces.pieces.iter().map(Bytes::len).collect();
        let rest = 400_000 - 3 * JOINED_PIECE;
        assert_eq!(lengths, [JOINED_PIECE, JOINED_PIECE, JOINED_PIECE, rest]);
    }

    /// A session queues slices, and the body may be evicted before they leave.
    #[test]
    fn slice_of_a_large_piece_counts_without_its_body() {
        let counter = Arc::new(AtomicU64::new(0));
        let now = || counter.load(Ordering::Relaxed);
        let body = Body::counted(vec![Bytes::from(vec![1; 20_000]); 2], &counter);
        assert_eq!(now(), 40_000);
        let first = body.slice(0, 10).next();
        drop(body);
        assert_eq!(now(), 20_000);
        drop(first);
        assert_eq!(now(), 0);
        let small = Body::counted(vec![Bytes::from_static(b"ab")], &counter);
        assert_eq!(now(), 2);
        let (before, after) = (Bytes::from(vec![2; 5_000]), Bytes::new());
        let around = Body::around([before].into_iter(), &small, [after].into_iter(), &counter);
        drop(small);
        assert_eq!((around.len(), now()), (5_002, 5_002));
        drop(around);
        assert_eq!(now(), 0);
    }

    proptest::proptest! {
        #[test]
        fn slice_returns_the_wanted_bytes(
            sizes in proptest::collection::vec(0usize..40_000, 0..6), start: u16, length: u16,
            earlier: u16, is_second: bool,
        ) {
            let mut next = 0u8;
            let pieces: Vec<Bytes> = sizes.iter().map(|&size| {
                (0..size).map(|_| { next = next.wrapping_add(7); next }).collect::<Vec<_>>().into()
            }).collect();
            let whole = pieces.concat();
            let body = Body::new(pieces);
            let all: Vec<u8> = body.slice(0, body.len()).flatten().collect();
            proptest::prop_assert_eq!(&all, &whole);
            let mut place = PiecePlace::default();
            if is_second {
                body.rest_of_piece(u64::from(earlier), &mut place);
            }
            let rest = body.rest_of_piece(u64::from(start), &mut place);
            match whole.get(usize::from(start)..).filter(|rest| !rest.is_empty()) {
                Some(left) => proptest::prop_assert!(left.starts_with(&rest.expect("a piece"))),
                None => proptest::prop_assert_eq!(rest, None),
            }
            let start = usize::from(start).min(whole.len());
            let end = (start + usize::from(length)).min(whole.len());
            let part: Vec<u8> = body.slice(start as u64, end as u64).flatten().collect();
            proptest::prop_assert_eq!(&part[..], &whole[start..end]);
        }
    }
}
