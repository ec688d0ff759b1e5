//! The short responses of recent pushes, for requests that cross their promises on the path.
//!
//! A browser that has not received a promise yet requests the resource itself. The gateway then has
//! the response already, and needs no second request to the origin. A response is repeated once, to
//! a request that its push would have answered. Caches must be permitted to use it without a
//! validation (RFC 9111 section 4.2). A request whose condition the response confirms gets 304. The
//! directives of the request count too (RFC 9111 section 5.2.1): a reload goes to the origin. The
//! head of a check answers conditional requests only.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tandem_http::cache::validation::is_conditional;
use tandem_http::cache::{CacheRules, Freshness, RequestPolicy, ResponsePolicy, Reuse};
use tandem_http::{Method, RequestHead, ResponseHead};

use super::table::FetchId;
use crate::client::matching::PushFacts;
use crate::client::{confirmation, confirms_copy};
use crate::wire::RequestHashes;

/// The length in bytes of the longest body that is kept.
const MAX_BODY: usize = 64 << 10;

/// The largest number of bytes of all bodies that are kept.
const MAX_BYTES: usize = 256 << 10;

/// The largest number of responses that are kept.
const MAX_RESPONSES: usize = 64;

/// The time for which a response is kept. A promise reaches the client within the round trip of the
/// path and the time that data ahead of it takes.
const KEEP_PERIOD: Duration = Duration::from_secs(3);

/// The responses of the last pushes, in the order in which they began.
#[derive(Default)]
pub(super) struct Repeats {
    kept: VecDeque<RepeatableResponse>,
    bytes: usize,
}

/// A response, as far as it has arrived.
struct RepeatableResponse {
    fetch: FetchId,
    /// The hash of the URL.
    hash: u32,
    /// The time at which the head arrived.
    began: Instant,
    /// The time at which the response is dropped.
    until: Instant,
    freshness: Freshness,
    request: RequestHead,
    asked: RequestHashes,
    head: ResponseHead,
    /// The bytes of the body so far.
    body: Vec<u8>,
    /// The length of the whole body.
    length: usize,
}

impl RepeatableResponse {
    /// Returns whether only the head was requested.
    fn is_check(&self) -> bool {
        self.request.method == Method::Head
    }

    /// Returns whether the response is complete and right for a request.
    fn serves(&self, now: Instant, asked: &RequestHead) -> bool {
        let facts = PushFacts {
            request: &self.request,
            has_own_fields: true,
            hashes: Some(self.asked),
            metadata: None,
            head: Some(&self.head),
            ignores_cookies: false,
        };
        let directives = RequestPolicy::of(&asked.fields);
        let reuse = directives.reuse(
            CacheRules::BROWSER,
            &ResponsePolicy::of(&self.head),
            &self.freshness,
            now.saturating_duration_since(self.began),
        );
        // The head of a check is new enough: the origin sent it while the request was on its way.
        let is_usable = match self.is_check() {
            true => is_conditional(&asked.fields),
            false => reuse == Reuse::Fresh,
        };
        self.body.len() == self.length
            && facts.check(asked).is_ok()
            && !directives.wants_validation()
            && is_usable
            && (!is_conditional(&asked.fields) || confirms_copy(asked, &self.head))
    }

    /// Returns the response to a request that it serves, with its age (RFC 9111 section 5.1).
    fn into_response(mut self, now: Instant, asked: &RequestHead) -> (ResponseHead, Vec<u8>) {
        let resident = now.saturating_duration_since(self.began);
        let age = self.freshness.age(resident).as_secs();
        self.head.fields.set("age", age.to_string());
        match is_conditional(&asked.fields) {
            true => (confirmation(asked, &self.head), Vec::new()),
            false => (self.head, self.body),
        }
    }
}

/// The push whose response begins.
pub(super) struct RepeatablePush {
    pub(super) fetch: FetchId,
    /// The [`url_hash`](crate::wire::url_hash) of the URL.
    pub(super) hash: u32,
    pub(super) request: RequestHead,
    pub(super) asked: RequestHashes,
    /// The age and the lifetime of the response on its arrival.
    pub(super) freshness: Freshness,
}

impl Repeats {
    /// Keeps the response of a push, whose body has `length` bytes, if it is short.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        begun: RepeatablePush,
        head: &ResponseHead,
        length: u64,
    ) {
        self.expire(now);
        // A request that crosses a check validates a copy, so the lifetime of the response does not
        // matter.
        let lifetime = match begun.request.method {
            Method::Head => Some(KEEP_PERIOD),
            _ => begun.freshness.remaining(Duration::ZERO),
        };
        let Some(lifetime) = lifetime else {
            return;
        };
        let Some(length) = usize::try_from(length).ok().filter(|it| *it <= MAX_BODY) else {
            return;
        };
        while self.kept.len() >= MAX_RESPONSES || self.bytes + length > MAX_BYTES {
            self.drop_oldest();
        }
        self.bytes += length;
        self.kept.push_back(RepeatableResponse {
            fetch: begun.fetch,
            hash: begun.hash,
            began: now,
            until: now + KEEP_PERIOD.min(lifetime),
            freshness: begun.freshness,
            request: begun.request,
            asked: begun.asked,
            head: head.clone(),
            body: Vec::new(),
            length,
        });
    }

    /// Adds bytes to the body of a push.
    pub(super) fn add(&mut self, fetch: FetchId, data: &[u8]) {
        let Some(at) = self.kept.iter().position(|kept| kept.fetch == fetch) else {
            return;
        };
        let kept = &mut self.kept[at];
        if kept.body.len() + data.len() > kept.length {
            // The origin broke its promise of a length, so the body is not to be trusted.
            self.remove(at);
            return;
        }
        kept.body.extend_from_slice(data);
    }

    /// Takes the complete response that answers a request with this URL hash.
    pub(super) fn take(
        &mut self,
        now: Instant,
        hash: u32,
        asked: &RequestHead,
    ) -> Option<(ResponseHead, Vec<u8>)> {
        self.expire(now);
        let serves = |kept: &RepeatableResponse| kept.hash == hash && kept.serves(now, asked);
        let at = self.kept.iter().position(serves)?;
        self.remove(at).map(|kept| kept.into_response(now, asked))
    }

    /// Forgets the response of a URL, because no request can cross its promise any more.
    pub(super) fn forget(&mut self, hash: u32) {
        while let Some(at) = self.kept.iter().position(|kept| kept.hash == hash) {
            self.remove(at);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the time of the next call of [`Self::expire`], while a response is kept.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.kept.iter().map(|kept| kept.until).min()
    }

    /// Drops the responses that have been kept for long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(at) = self.kept.iter().position(|kept| kept.until <= now) {
            self.remove(at);
        }
        if self.kept.is_empty() {
            self.clear();
        }
    }

    fn drop_oldest(&mut self) {
        self.remove(0);
    }

    fn remove(&mut self, at: usize) -> Option<RepeatableResponse> {
        let kept = self.kept.remove(at)?;
        self.bytes -= kept.length;
        Some(kept)
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;
    use tandem_http::cache::Receipt;

    use super::*;

    fn request(path: &str) -> RequestHead {
        RequestHead::get(Scheme::Http, "a.test", path)
    }

    fn begin(repeats: &mut Repeats, now: Instant, number: u64, length: u64) {
        let fields = [("cache-control", "max-age=60")];
        begin_with(repeats, now, number, length, &fields);
    }

    fn begin_with(
        repeats: &mut Repeats,
        now: Instant,
        number: u64,
        length: u64,
        fields: &[(&str, &str)],
    ) {
        let request = request(&format!("/{number}"));
        let head = ResponseHead {
            fields: fields.iter().copied().collect(),
            ..ResponseHead::new(200)
        };
        let policy = ResponsePolicy::of(&head);
        let begun = RepeatablePush {
            fetch: FetchId::from(number),
            hash: u32::try_from(number).unwrap(),
            asked: RequestHashes::of(&request.fields),
            freshness: policy.freshness(CacheRules::BROWSER, Receipt::default()),
            request,
        };
        repeats.begin(now, begun, &head, length);
    }

    /// Takes response 1 for a request with these fields, `after` its arrival.
    fn take_with(
        stored: &[(&str, &str)],
        after: Duration,
        fields: &[(&str, &str)],
    ) -> Option<(ResponseHead, Vec<u8>)> {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        begin_with(&mut repeats, now, 1, 2, stored);
        repeats.add(FetchId::from(1), b"ab");
        let asked = RequestHead {
            fields: fields.iter().copied().collect(),
            ..request("/1")
        };
        repeats.take(now + after, 1, &asked)
    }

    fn take(repeats: &mut Repeats, now: Instant, number: u32) -> Option<Vec<u8>> {
        let asked = request(&format!("/{number}"));
        repeats.take(now, number, &asked).map(|(_, body)| body)
    }

    #[test]
    fn repeats_give_a_complete_response_once() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        begin(&mut repeats, now, 1, 4);
        repeats.add(FetchId::from(1), b"ab");
        assert_eq!(take(&mut repeats, now, 1), None, "it is incomplete");
        repeats.add(FetchId::from(2), b"xx");
        repeats.add(FetchId::from(1), b"cd");
        assert_eq!(repeats.take(now, 1, &request("/2")), None, "another URL");
        assert_eq!(take(&mut repeats, now, 1).as_deref(), Some(&b"abcd"[..]));
        assert_eq!(take(&mut repeats, now, 1), None);
        assert_eq!(repeats.bytes, 0);
    }

    #[test]
    fn repeats_refuse_a_request_with_other_fields() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        begin(&mut repeats, now, 1, 0);
        let mut asked = request("/1");
        asked.fields.push("cookie", "a=b");
        assert_eq!(repeats.take(now, 1, &asked), None);
        let mut asked = request("/1");
        asked.fields.push("range", "bytes=0-1");
        assert_eq!(repeats.take(now, 1, &asked), None);
        assert!(take(&mut repeats, now, 1).is_some());
    }

    #[test]
    fn repeats_confirm_the_copy_of_a_condition() {
        let stored = [("cache-control", "max-age=60"), ("etag", "\"1\"")];
        let at_once = Duration::ZERO;
        let (head, body) = take_with(&stored, at_once, &[("if-none-match", "\"1\"")]).unwrap();
        assert_eq!((head.status, body.len()), (304, 0));
        let (head, body) = take_with(&stored, at_once, &[]).unwrap();
        assert_eq!((head.status, body.len()), (200, 2));
        let other = take_with(&stored, at_once, &[("if-none-match", "\"2\"")]);
        assert_eq!(other, None, "the origin decides");
        let without = take_with(&stored[..1], at_once, &[("if-none-match", "*")]);
        assert_eq!(without, None);
    }

    #[test]
    fn repeats_obey_the_directives_of_requests() {
        let stored = [("cache-control", "max-age=60"), ("age", "20")];
        let second = Duration::from_secs(1);
        for (name, value, serves) in [
            ("cache-control", "max-age=0", false),
            ("cache-control", "no-cache", false),
            ("pragma", "no-cache", false),
            ("cache-control", "max-age=20", false),
            ("cache-control", "max-age=21", true),
            ("cache-control", "min-fresh=40", false),
            ("cache-control", "min-fresh=39", true),
        ] {
            let taken = take_with(&stored, second, &[(name, value)]);
            assert_eq!(taken.is_some(), serves, "{name}: {value}");
        }
        let (head, _) = take_with(&stored, second, &[]).unwrap();
        assert_eq!(head.fields.get("age"), Some(&b"21"[..]));
    }

    #[test]
    fn repeats_end_with_their_lifetime() {
        let stored = [("cache-control", "max-age=1")];
        let after = |millis| take_with(&stored, Duration::from_millis(millis), &[]);
        assert!(after(999).is_some());
        assert_eq!(after(1000), None);
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        begin(&mut repeats, now, 1, 0);
        begin_with(&mut repeats, now, 2, 0, &stored);
        let second = Duration::from_secs(1);
        assert_eq!(repeats.next_timeout(), Some(now + second));
        repeats.expire(now + second);
        assert_eq!(repeats.next_timeout(), Some(now + KEEP_PERIOD));
        repeats.expire(now + KEEP_PERIOD);
        assert_eq!((repeats.next_timeout(), repeats.kept.capacity()), (None, 0));
    }

    #[test]
    fn repeats_are_bounded_in_time_and_bytes() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for number in 0..200 {
            begin(&mut repeats, now, number, 60_000);
            assert!(repeats.bytes <= MAX_BYTES);
        }
        begin(&mut repeats, now, 200, MAX_BODY as u64 + 1);
        begin(&mut repeats, now, 201, u64::MAX);
        assert_eq!(repeats.kept.len(), 4);
        for number in 300..500 {
            begin(&mut repeats, now, number, 0);
        }
        assert_eq!((repeats.kept.len(), repeats.bytes), (MAX_RESPONSES, 0));
        assert!(take(&mut repeats, now + KEEP_PERIOD / 2, 499).is_some());
        assert_eq!(take(&mut repeats, now + KEEP_PERIOD, 498), None);
        assert!(repeats.kept.is_empty());
    }

    #[test]
    fn repeats_forget_reported_and_long_responses() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        begin(&mut repeats, now, 1, 0);
        repeats.forget(1);
        assert_eq!(take(&mut repeats, now, 1), None);
        begin(&mut repeats, now, 2, 1);
        repeats.add(FetchId::from(2), b"ab");
        assert_eq!((repeats.kept.len(), repeats.bytes), (0, 0));
        begin(&mut repeats, now, 3, 0);
        repeats.clear();
        assert_eq!(take(&mut repeats, now, 3), None);
    }
}
