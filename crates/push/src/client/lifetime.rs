//! The time for which a pushed response may wait for its request.
//!
//! A push counts as validated while it arrives (RFC 9113 section 8.4.2) and shortly after, but not
//! beyond the page load for which it came. A response with a lifetime waits as long as RFC 9111
//! permits. With a lifetime under 10 s, it also counts as validated, as it would without one.

use std::time::{Duration, Instant};

use tandem_http::ResponseHead;
use tandem_http::cache::{CacheRules, Receipt, ResponsePolicy};

use crate::response_rules::{
    is_part_of_page, is_pushable_status, may_be_handed_over, stored_policy,
};

/// The time after which no response is used, however long it stays fresh.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(300);

/// The time after which a response without a lifetime is not used.
pub(super) const MAX_UNSPECIFIED_WAIT: Duration = Duration::from_secs(30);

/// The time after its end for which a response of an origin counts as validated. A page on a slow
/// path needs several seconds to request its resources.
pub(super) const VALIDATED_FOR: Duration = Duration::from_secs(10);

/// The time for which a document that must not be stored waits for its request.
const MAX_HANDING_OVER: Duration = Duration::from_secs(2);

/// The silence that ends a page load: no request and no push.
pub(super) const LOAD_GAP: Duration = Duration::from_secs(3);

/// The time for which pushes outlast the request for another document. It may be a frame or the
/// target of a redirect, and another tab may still load. A page on a slow path takes several
/// seconds.
const PAGE_GRACE: Duration = Duration::from_secs(10);

/// The use that a response permits without another request to its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// The response may be used for this time after its arrival.
    For(Duration),
    /// The response must be validated before each use.
    Validated,
    /// A cache on the way sent the response although it is stale, and validates it meanwhile (RFC
    /// 5861 section 3). The response may be used for this time.
    Stale(Duration),
    /// The response names no lifetime, but a browser's cache assumes one.
    Unspecified,
    /// The response is a document that may follow a page. The page load for which it came has not
    /// begun.
    NextPage,
    /// The response must not be stored. It serves only the request for which it was promised.
    HandedOver,
}

impl Lifetime {
    /// Returns the lifetime of a response. The client's clock may be wrong, so only the times in
    /// the response itself count.
    pub(super) fn of(head: &ResponseHead) -> Self {
        if !may_wait(head) && !is_confirmation(head) {
            return Self::HandedOver;
        }
        let policy = ResponsePolicy::of(head);
        let freshness = policy.freshness(CacheRules::PRIVATE, Receipt::default());
        match freshness.remaining(Duration::ZERO) {
            _ if policy.needs_validation() => Self::Validated,
            None if has_heuristic_lifetime(head) => Self::Unspecified,
            // A browser's cache would validate the response before each use.
            None => Self::Validated,
            // A cache has stored the response, and the origin may not have confirmed it since.
            Some(Duration::ZERO) if head.fields.contains("age") => {
                let staleness = freshness.staleness(Duration::ZERO);
                let left = policy.left_while_revalidating(CacheRules::PRIVATE, staleness);
                left.map_or(Self::Validated, Self::Stale)
            }
            Some(Duration::ZERO) => Self::Validated,
            Some(time) => Self::For(time),
        }
    }

    /// Returns the lifetime of the same response for a conditional request. The browser wants a
    /// validation, as for each use of [`Lifetime::Validated`].
    pub(super) const fn for_condition(self) -> Self {
        match self {
            Self::Unspecified => Self::Validated,
            other => other,
        }
    }

    /// Returns whether a response whose head arrived at `arrived` has waited too long. `ended` is
    /// the time of its end, unless more of it is to come.
    pub(super) fn is_over(
        self,
        arrived: Instant,
        ended: Option<Instant>,
        now: Instant,
        load: &PageLoad,
    ) -> bool {
        let waited = now.saturating_duration_since(arrived);
        match self {
            // A response that the origin has just sent is no older than one without a lifetime.
            Self::For(time) => {
                let is_of_load = || !Self::Validated.is_over(arrived, ended, now, load);
                waited >= time.min(MAX_WAIT) && !is_of_load()
            }
            Self::Unspecified => {
                waited >= MAX_UNSPECIFIED_WAIT || load.is_of_earlier_visit(arrived)
            }
            Self::NextPage => waited >= MAX_UNSPECIFIED_WAIT,
            Self::Stale(time) => waited > time.min(MAX_UNSPECIFIED_WAIT),
            Self::Validated => {
                let is_late = |ended| now.saturating_duration_since(ended) > VALIDATED_FOR;
                let is_old = waited >= MAX_UNSPECIFIED_WAIT || ended.is_some_and(is_late);
                is_old || load.is_after(arrived, now)
            }
            Self::HandedOver => waited >= MAX_HANDING_OVER,
        }
    }
}

/// Returns whether a response may wait for its request. The status need not be one that caches
/// keep, because the request is expected at once.
pub(super) fn may_wait(head: &ResponseHead) -> bool {
    is_pushable_status(head.status) && !ResponsePolicy::of(head).forbids_storage()
}

/// Returns whether a response can serve a request: one that waits already or is about to come
/// (`is_awaited`), or a later one.
pub(super) fn is_of_use(head: &ResponseHead, is_awaited: bool) -> bool {
    may_wait(head) || (is_awaited && may_be_handed_over(head))
}

/// Returns whether the response to a promise of HEAD can confirm a copy. The gateway sends it as a
/// 304.
pub(super) fn is_confirmation(head: &ResponseHead) -> bool {
    let policy = stored_policy(head);
    head.status == 304 && policy.has_validator && !policy.forbids_storage()
}

/// Returns whether a browser's cache uses a part of a page without another request because it
/// changes rarely, although its origin names no lifetime (RFC 9111 section 4.2.2). The response
/// stays fresh for as long as a push without a lifetime may wait.
pub(super) fn has_heuristic_lifetime(head: &ResponseHead) -> bool {
    let policy = ResponsePolicy::of(head);
    let freshness = policy.freshness(CacheRules::BROWSER, Receipt::default());
    is_part_of_page(head)
        && may_wait(head)
        && !policy.needs_validation()
        && freshness.is_fresh(MAX_UNSPECIFIED_WAIT)
}

/// Returns the time for which a browser's cache can use a response without another request, if its
/// origin names one.
pub fn fresh_for(head: &ResponseHead) -> Option<Duration> {
    match Lifetime::of(head) {
        Lifetime::For(time) if head.status == 200 && may_wait(head) => Some(time),
        _ => None,
    }
}

/// The page load under way, as far as requests and pushes show it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageLoad {
    began: Instant,
    last: Instant,
    /// The time of the last request for a document.
    page: Option<Instant>,
    /// The time of the last reload, or of the last visit to a page that was visited before.
    repeated: Option<Instant>,
}

impl PageLoad {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            began: now,
            last: now,
            page: None,
            repeated: None,
        }
    }

    /// Records a request or a push. After a silence, it begins another page load.
    pub(super) fn note(&mut self, now: Instant) {
        if now.saturating_duration_since(self.last) > LOAD_GAP {
            self.began = now;
        }
        self.last = self.last.max(now);
    }

    /// Records the request for a document that no push of this load has answered. The request ends
    /// the load for earlier responses, even if an earlier page still makes requests. A reload, or
    /// another visit to the same page (`is_repeated`), wants newer responses than those of the page
    /// before. Neither counts as such shortly after the load has begun, and a visit does not
    /// shortly after another document either: the document may then be the target of a redirect.
    /// The load keeps responses of the last ten seconds, which a slow redirect may have brought. A
    /// reload keeps none, and another visit to the page keeps those of the last three seconds.
    pub(super) fn note_page(&mut self, now: Instant, is_reload: bool, is_repeated: bool) {
        let is_old = |time: Instant| now.saturating_duration_since(time) > LOAD_GAP;
        let follows = !is_reload && self.page.is_some_and(|page| !is_old(page));
        self.page = Some(now);
        let grace = match (is_reload, is_repeated) {
            _ if follows || !is_old(self.began) => PAGE_GRACE,
            (true, _) => Duration::ZERO,
            (false, true) => LOAD_GAP,
            (false, false) => PAGE_GRACE,
        };
        let Some(began) = now.checked_sub(grace) else {
            return;
        };
        if grace < PAGE_GRACE {
            self.repeated = Some(began);
        }
        self.began = self.began.max(began);
    }

    /// Returns whether a response that arrived at `arrived` belongs to a visit before the last one
    /// to the same page.
    fn is_of_earlier_visit(&self, arrived: Instant) -> bool {
        self.repeated.is_some_and(|repeated| arrived < repeated)
    }

    /// Returns whether the load of a response that arrived at `arrived` has ended.
    pub(super) fn is_after(&self, arrived: Instant, now: Instant) -> bool {
        arrived < self.began || now.saturating_duration_since(self.last) > LOAD_GAP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
        ResponseHead {
            fields: fields.iter().copied().collect(),
            ..ResponseHead::new(status)
        }
    }

    const fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn lifetime_follows_the_response() {
        let control = |value| [("cache-control", value)];
        let of = |fields: &[_]| Lifetime::of(&head(200, fields));
        let style = ("content-type", "text/css");
        let old = ("last-modified", "Thu, 01 Jan 2015 00:00:00 GMT");
        let date = ("date", "Fri, 01 Jan 2016 00:00:00 GMT");
        assert_eq!(of(&[style, old, date]), Lifetime::Unspecified);
        for other in ["application/json", "text/html", "text/plain"] {
            assert_eq!(
                of(&[("content-type", other), old, date]),
                Lifetime::Validated,
                "{other}"
            );
        }
        assert_eq!(of(&[style]), Lifetime::Validated);
        assert_eq!(of(&control("max-age=60")), Lifetime::For(secs(60)));
        let shared = [("cache-control", "s-maxage=60"), style, old, date];
        assert_eq!(of(&shared), Lifetime::Unspecified);
        for validated in ["max-age=0", "no-cache", "max-age=60, no-cache", "max-age=x"] {
            assert_eq!(of(&control(validated)), Lifetime::Validated, "{validated}");
        }
        assert_eq!(of(&[("expires", "0")]), Lifetime::Validated);
        let aged = [("cache-control", "max-age=60"), ("age", "20")];
        assert_eq!(of(&aged), Lifetime::For(secs(40)));
        let stale = |control, age| of(&[("cache-control", control), ("age", age)]);
        let window = "max-age=60, stale-while-revalidate=30";
        assert_eq!(stale(window, "70"), Lifetime::Stale(secs(20)));
        assert_eq!(stale(window, "90"), Lifetime::Stale(secs(0)));
        // The time in seconds may have been rounded down.
        assert_eq!(
            stale("max-age=0, stale-while-revalidate=3", "0"),
            Lifetime::Stale(secs(3))
        );
        // The origin could not be reached.
        assert_eq!(stale(window, "91"), Lifetime::Validated);
        assert_eq!(stale("max-age=60", "70"), Lifetime::Validated);
        let from_origin = "max-age=0, stale-while-revalidate=30";
        assert_eq!(of(&control(from_origin)), Lifetime::Validated);
    }

    #[test]
    fn wait_ends_with_lifetime_limit_or_load() {
        let start = Instant::now();
        let mut load = PageLoad::new(start);
        let over = |lifetime: Lifetime, load: &PageLoad, after| {
            lifetime.is_over(start, Some(start), start + after, load)
        };
        let (long, short) = (Lifetime::For(secs(9000)), Lifetime::For(secs(4)));
        assert!(!over(long, &load, secs(299)) && over(long, &load, secs(300)));
        assert!(!over(short, &load, secs(3)) && over(short, &load, secs(4)));
        let unspecified = Lifetime::Unspecified;
        assert!(!over(unspecified, &load, secs(29)) && over(unspecified, &load, secs(30)));
        let stale = Lifetime::Stale(secs(2));
        assert!(!over(stale, &load, secs(2)) && over(stale, &load, secs(3)));
        // The next page is requested after the load of the present one.
        let long = Lifetime::Stale(secs(9000));
        assert!(!over(long, &load, secs(30)) && over(long, &load, secs(31)));
        let validated = Lifetime::Validated;
        assert!(!over(validated, &load, secs(3)) && over(validated, &load, secs(4)));
        for second in (2..40).step_by(2) {
            load.note(start + secs(second));
        }
        assert!(!over(validated, &load, secs(10)), "the load goes on");
        assert!(over(validated, &load, secs(11)));
        let ends = |ended, after| validated.is_over(start, ended, start + after, &load);
        assert!(!ends(None, secs(29)) && ends(None, secs(30)), "it arrives");
        let late = Some(start + secs(12));
        assert!(!ends(late, secs(22)) && ends(late, secs(23)));
    }

    /// On a slow path, a lifetime of a second ends before the browser's request comes.
    #[test]
    fn short_lifetime_ends_no_sooner_than_none() {
        let start = Instant::now();
        let mut load = PageLoad::new(start);
        (0..20).for_each(|second| load.note(start + secs(second)));
        for time in [1, 9, 12] {
            let lifetime = Lifetime::For(secs(time));
            let over = |after, load: &PageLoad| {
                lifetime.is_over(start, Some(start), start + secs(after), load)
            };
            let last = time.saturating_sub(1).max(10);
            assert!(!over(last, &load) && over(last + 1, &load), "{time}");
            let mut next = load;
            next.note_page(start + secs(19), true, false);
            assert!(over(20, &next));
        }
    }

    #[test]
    fn repeated_visit_ends_responses_without_a_lifetime() {
        let start = Instant::now();
        let mut load = PageLoad::new(start);
        let over = |lifetime: Lifetime, load: &PageLoad| {
            lifetime.is_over(start, Some(start), start + secs(4), load)
        };
        for second in 0..=4 {
            load.note(start + secs(second));
        }
        let mut first = load;
        first.note_page(start + secs(4), false, false);
        assert!(!over(Lifetime::Unspecified, &first) && !over(Lifetime::Validated, &first));
        first.note_page(start + secs(4), false, true);
        assert!(!over(Lifetime::Validated, &first), "a redirect led there");
        load.note_page(start + secs(4), false, true);
        assert!(over(Lifetime::Unspecified, &load) && over(Lifetime::Validated, &load));
        assert!(!over(Lifetime::For(secs(60)), &load) && !over(Lifetime::NextPage, &load));
    }

    #[test]
    fn load_begins_after_a_silence() {
        let start = Instant::now();
        let mut load = PageLoad::new(start);
        load.note(start + secs(3));
        assert!(!load.is_after(start, start + secs(5)));
        load.note(start + secs(9));
        assert!(load.is_after(start, start + secs(9)), "another load");
        assert!(!load.is_after(start + secs(9), start + secs(9)));
    }

    #[test]
    fn page_ends_the_load_of_old_responses() {
        let start = Instant::now();
        let mut load = PageLoad::new(start);
        for (second, is_reload, began) in [
            (4, false, 0),
            (10, false, 0),
            (13, false, 3),
            (14, true, 14),
            (17, true, 14),
            (18, true, 18),
        ] {
            let now = start + secs(second);
            // Other requests keep the load going.
            for second in 0..=second {
                load.note(start + secs(second));
            }
            load.note_page(now, is_reload, false);
            assert_eq!(load.began, start + secs(began), "after {second} s");
        }
        let end = start + secs(18);
        assert!(load.is_after(start + secs(17), end) && !load.is_after(end, end));
    }

    #[test]
    fn waiting_needs_a_status_and_permission() {
        assert!(may_wait(&head(200, &[])) && may_wait(&head(302, &[])));
        for status in [206, 401, 500, 304] {
            assert!(!may_wait(&head(status, &[])), "{status}");
        }
        for field in [("cache-control", "no-store"), ("vary", "*")] {
            assert!(!may_wait(&head(200, &[field])), "{field:?}");
        }
        // The field means nothing beside 200 (RFC 9110 section 14.4).
        let range = ("content-range", "bytes 0-0/1");
        assert!(may_wait(&head(200, &[range])) && !may_wait(&head(206, &[range])));
    }

    #[test]
    fn confirmation_is_a_304_with_a_validator() {
        let tag = ("etag", "\"1\"");
        assert!(is_confirmation(&head(304, &[tag])));
        assert!(!is_confirmation(&head(304, &[])) && !is_confirmation(&head(200, &[tag])));
        for field in [("cache-control", "no-store"), ("vary", "*")] {
            assert!(!is_confirmation(&head(304, &[tag, field])), "{field:?}");
        }
    }

    #[test]
    fn browser_keeps_named_lifetimes_of_whole_responses() {
        let fresh = [("cache-control", "max-age=60")];
        assert_eq!(fresh_for(&head(200, &fresh)), Some(secs(60)));
        assert_eq!(fresh_for(&head(301, &fresh)), None);
        assert_eq!(fresh_for(&head(200, &[])), None);
        let stored = [("cache-control", "max-age=60, no-store")];
        assert_eq!(fresh_for(&head(200, &stored)), None);
    }
}
