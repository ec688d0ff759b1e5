//! The caching policy of one response: whether it may be stored (RFC 9111 section 3) and for how
//! long it stays fresh (section 4.2).

use std::time::Duration;

use super::control::{MAX_SECONDS, delta_seconds, members};
use super::{CacheControl, CacheRules, REPAIRED_FIELD, unix_seconds, vary};
use crate::{Fields, Method, RequestHead, ResponseHead};

/// The part of a lifetime's basis that a heuristic grants: one tenth (RFC 9111 section 4.2.2).
const HEURISTIC_DIVISOR: u32 = 10;

/// The longest heuristic lifetime. A tenth of the age of an old file is months, in which a shared
/// cache would serve all users the version before a change. Section 4.2.2 leaves the bound open.
const MAX_HEURISTIC: Duration = Duration::from_secs(24 * 3600);

/// The circumstances in which a response arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The time of arrival in seconds since 1970, where there is a clock to trust. Without one,
    /// only the response's own `Age` counts, and `Expires` needs a `Date` beside it.
    pub at: Option<u64>,
    /// The time from the request to its response; it counts as age (RFC 9111 section 4.2.3).
    pub delay: Duration,
}

impl Receipt {
    /// A receipt at this time, without delay.
    pub const fn at(unix_seconds: u64) -> Self {
        Self {
            at: Some(unix_seconds),
            delay: Duration::ZERO,
        }
    }
}

/// The fields of a response that decide about its storage and reuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponsePolicy {
    /// The status code.
    pub status: u16,
    /// The `Cache-Control` directives.
    pub control: CacheControl,
    /// `Expires` in seconds since 1970; an invalid date counts as 1970 (RFC 9111 section 5.3).
    pub expires: Option<u64>,
    /// `Date` in seconds since 1970.
    pub date: Option<u64>,
    /// `Last-Modified` in seconds since 1970.
    pub last_modified: Option<u64>,
    /// `Age`, the first value of all; a malformed one counts as none (RFC 9111 section 5.1).
    pub age: Duration,
    /// The response has a validator, so that it can be checked (RFC 9110 section 8.8).
    pub has_validator: bool,
    /// `Vary` lists `*`: no other request can be known to match (RFC 9110 section 12.5.5).
    pub varies_on_anything: bool,
    is_partial: bool,
    is_repaired: bool,
}

impl ResponsePolicy {
    /// Reads the policy of a response.
    pub fn of(head: &ResponseHead) -> Self {
        let fields = &head.fields;
        let date = |name: &str| fields.get(name).and_then(unix_seconds);
        let expires = fields.get_all("expires");
        let last_modified = date("last-modified");
        Self {
            status: head.status,
            control: CacheControl::of(fields),
            // The earliest of several, since the strictest counts.
            expires: expires.map(|value| unix_seconds(value).unwrap_or(0)).min(),
            date: date("date"),
            last_modified,
            age: age(fields),
            has_validator: last_modified.is_some() || fields.contains("etag"),
            varies_on_anything: vary::is_any(fields),
            // `Content-Range` means nothing with another status (RFC 9110 section 14.4).
            is_partial: head.status == 206,
            is_repaired: fields.contains(REPAIRED_FIELD),
        }
    }

    /// Reads the policy of a response for a cache that a targeted field is meant for (RFC 9213). A
    /// valid `CDN-Cache-Control` takes the place of `Cache-Control` and `Expires`.
    pub fn of_targeted(head: &ResponseHead) -> Self {
        let mut policy = Self::of(head);
        if let Some(control) = CacheControl::targeted(&head.fields, "cdn-cache-control") {
            policy.control = control;
            policy.expires = None;
        }
        policy
    }

    /// Returns true if a cache may store the response to `request` (RFC 9111 section 3). This cache
    /// stores only complete responses to GET.
    pub fn is_storable(&self, request: &RequestHead, rules: CacheRules) -> bool {
        let control = &self.control;
        if request.method != Method::Get || CacheControl::of(&request.fields).no_store {
            return false;
        }
        if self.forbids_storage() || (control.must_understand && !is_understood(self.status)) {
            return false;
        }
        if rules.shared && (control.private || !self.is_shared_despite_login(request)) {
            return false;
        }
        control.public
            || (control.private && !rules.shared)
            || self.explicit_lifetime(rules, None).is_some()
            || (rules.heuristics
                && is_heuristically_cacheable(self.status)
                && !self.control.is_malformed)
    }

    /// Returns true if no cache may store the response, whatever the request and its lifetime are.
    /// The reason is `no-store`, `Vary: *`, a status that is not final or not complete, or framing
    /// that was repaired.
    pub fn forbids_storage(&self) -> bool {
        // `must-understand` takes the place of `no-store` where the status is understood (RFC 9111
        // section 5.2.2.3).
        let obeys_no_store = !(self.control.must_understand && is_understood(self.status));
        let no_store = self.control.no_store && obeys_no_store;
        no_store
            || self.status < 200
            || self.status == 304
            || self.is_partial
            || self.is_repaired
            || self.varies_on_anything
    }

    /// Returns true if a shared cache may store the response to a request with credentials (RFC
    /// 9111 section 3.5).
    fn is_shared_despite_login(&self, request: &RequestHead) -> bool {
        let control = &self.control;
        !request.fields.contains("authorization")
            || control.public
            || control.must_revalidate
            || control.s_maxage.is_some()
    }

    /// Returns true if the stored response must be validated with its origin before each use (RFC
    /// 9111 section 5.2.2.4).
    pub const fn needs_validation(&self) -> bool {
        self.control.no_cache
    }

    /// Returns true if the response must not be used once it is stale (RFC 9111 section 4.2.4).
    pub const fn forbids_stale_use(&self, rules: CacheRules) -> bool {
        let control = &self.control;
        control.no_cache
            || control.must_revalidate
            || (rules.shared && (control.proxy_revalidate || control.s_maxage.is_some()))
    }

    /// Returns true if a cache may use the response, which has been stale for `staleness`, while it
    /// validates the response (RFC 5861 section 3).
    pub fn permits_stale_while_revalidating(&self, rules: CacheRules, staleness: Duration) -> bool {
        self.left_while_revalidating(rules, staleness).is_some()
    }

    /// Returns the time for which a cache may still do so, or `None` if it may not.
    pub fn left_while_revalidating(
        &self,
        rules: CacheRules,
        staleness: Duration,
    ) -> Option<Duration> {
        let left = self.control.stale_while_revalidate?.checked_sub(staleness);
        left.filter(|_| !self.forbids_stale_use(rules))
    }

    /// Returns true if a cache may use the response, which has been stale for `staleness`, in place
    /// of an error of its origin (RFC 5861 section 4).
    pub fn permits_stale_if_error(&self, rules: CacheRules, staleness: Duration) -> bool {
        let window = self.control.stale_if_error;
        window.is_some_and(|window| staleness <= window) && !self.forbids_stale_use(rules)
    }

    /// Returns true if the response itself names its lifetime (RFC 9111 section 4.2.1).
    pub fn names_lifetime(&self, rules: CacheRules) -> bool {
        self.explicit_lifetime(rules, None).is_some()
    }

    /// Returns the response's freshness for a cache that received it so.
    pub fn freshness(&self, rules: CacheRules, receipt: Receipt) -> Freshness {
        let lifetime = self
            .explicit_lifetime(rules, receipt.at)
            .or_else(|| self.heuristic_lifetime(rules, receipt.at));
        let apparent = match (receipt.at, self.date) {
            (Some(at), Some(date)) => Duration::from_secs(at.saturating_sub(date)),
            _ => Duration::ZERO,
        };
        Freshness {
            lifetime,
            age: apparent.max(self.age.saturating_add(receipt.delay)),
        }
    }

    /// The lifetime that the response names (RFC 9111 section 4.2.1).
    fn explicit_lifetime(&self, rules: CacheRules, received: Option<u64>) -> Option<Duration> {
        let control = &self.control;
        let shared = control.s_maxage.filter(|_| rules.shared);
        shared.or(control.max_age).or_else(|| {
            let expires = self.expires?;
            // Without any clock, a date alone tells nothing: the response counts as stale.
            let date = self.date.or(received).unwrap_or(u64::MAX);
            Some(Duration::from_secs(
                expires.saturating_sub(date).min(MAX_SECONDS),
            ))
        })
    }

    fn heuristic_lifetime(&self, rules: CacheRules, received: Option<u64>) -> Option<Duration> {
        // A field that cannot be read may have been meant to forbid the use.
        let may = (is_heuristically_cacheable(self.status) || self.control.public)
            && !self.control.is_malformed;
        let modified = self.last_modified.filter(|_| rules.heuristics && may)?;
        let unchanged = self.date.or(received)?.saturating_sub(modified);
        Some((Duration::from_secs(unchanged) / HEURISTIC_DIVISOR).min(MAX_HEURISTIC))
    }
}

/// The `Age` of a message: the first member of all (RFC 9111 section 5.1).
fn age(fields: &Fields) -> Duration {
    let first = fields.get_all("age").flat_map(members).next();
    first.and_then(delta_seconds).unwrap_or_default()
}

/// Returns true if a response with this status may have a heuristic lifetime (RFC 9110 section
/// 15.1). 206 is left out, since partial responses are not supported.
pub const fn is_heuristically_cacheable(status: u16) -> bool {
    matches!(
        status,
        200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501
    )
}

/// Returns true if this cache meets the caching requirements of the status (RFC 9111 section 3).
const fn is_understood(status: u16) -> bool {
    is_heuristically_cacheable(status) || matches!(status, 302 | 303 | 307)
}

/// The age of a response when it arrived, and the time for which it stays fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// The lifetime from the response's origin; `None` where neither the response nor a heuristic
    /// names one.
    pub lifetime: Option<Duration>,
    age: Duration,
}

impl Freshness {
    /// Creates the freshness of a response that has this age now.
    pub const fn new(lifetime: Option<Duration>, age: Duration) -> Self {
        Self { lifetime, age }
    }

    /// Returns the response's age after it was stored for `resident` (RFC 9111 section 4.2.3).
    pub const fn age(&self, resident: Duration) -> Duration {
        self.age.saturating_add(resident)
    }

    /// Returns the time for which the response stays fresh after `resident` in the store: zero once
    /// it is stale, `None` where no lifetime is known.
    pub fn remaining(&self, resident: Duration) -> Option<Duration> {
        let lifetime = self.lifetime?;
        Some(lifetime.saturating_sub(self.age(resident)))
    }

    /// Returns true if the response is fresh; a response without a lifetime never is (RFC 9111
    /// section 4.2).
    pub fn is_fresh(&self, resident: Duration) -> bool {
        self.remaining(resident).is_some_and(|left| !left.is_zero())
    }

    /// Returns the time since the response became stale, or zero for one that is fresh.
    pub fn staleness(&self, resident: Duration) -> Duration {
        let lifetime = self.lifetime.unwrap_or_default();
        self.age(resident).saturating_sub(lifetime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scheme;

    const SENT: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    const SENT_AT: u64 = 784_111_777;

    fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
        ResponseHead {
            fields: fields.iter().copied().collect(),
            ..ResponseHead::new(status)
        }
    }

    fn of(fields: &[(&str, &str)]) -> ResponsePolicy {
        ResponsePolicy::of(&head(200, fields))
    }

    const fn seconds(count: u64) -> Option<Duration> {
        Some(Duration::from_secs(count))
    }

    #[test]
    fn lifetime_takes_s_maxage_max_age_expires_in_order() {
        let later = ("expires", "Sun, 06 Nov 1994 08:50:37 GMT");
        let control = |value| ("cache-control", value);
        for (fields, private, shared) in [
            (&[][..], None, None),
            (&[control("max-age=9")], seconds(9), seconds(9)),
            (&[control("s-maxage=60")], None, seconds(60)),
            (&[control("s-maxage=0, max-age=9")], seconds(9), seconds(0)),
            (&[SENT, later], seconds(60), seconds(60)),
            (&[SENT, later, control("max-age=9")], seconds(9), seconds(9)),
            (
                &[SENT, later, control("s-maxage=5")],
                seconds(60),
                seconds(5),
            ),
            (
                &[SENT, later, control("max-age=soon")],
                seconds(0),
                seconds(0),
            ),
        ] {
            let lifetime = |rules| of(fields).freshness(rules, Receipt::default()).lifetime;
            assert_eq!(lifetime(CacheRules::PRIVATE), private, "{fields:?}");
            assert_eq!(lifetime(CacheRules::SHARED), shared, "{fields:?}");
        }
    }

    #[test]
    fn expires_counts_from_date_or_receipt() {
        let lifetime = |fields: &[_], at| {
            let receipt = Receipt {
                at,
                ..Receipt::default()
            };
            of(fields).freshness(CacheRules::PRIVATE, receipt).lifetime
        };
        let (soon, past) = (
            ("expires", "Sun, 06 Nov 1994 08:50:37 GMT"),
            ("expires", "Sat, 05 Nov 1994 08:50:37 GMT"),
        );
        assert_eq!(lifetime(&[SENT, soon], None), seconds(60));
        assert_eq!(lifetime(&[SENT, soon], Some(SENT_AT + 999)), seconds(60));
        assert_eq!(lifetime(&[soon], Some(SENT_AT)), seconds(60));
        assert_eq!(lifetime(&[soon], None), seconds(0), "no clock at all");
        let bad_date = ("date", "yesterday");
        assert_eq!(lifetime(&[bad_date, soon], Some(SENT_AT)), seconds(60));
        for stale in [past, ("expires", "0"), ("expires", "-1"), ("expires", "")] {
            for at in [None, Some(SENT_AT)] {
                assert_eq!(lifetime(&[SENT, stale], at), seconds(0), "{stale:?}");
                assert_eq!(lifetime(&[stale], at), seconds(0), "{stale:?}");
                assert_eq!(lifetime(&[SENT, soon, stale], at), seconds(0), "{stale:?}");
            }
        }
    }

    #[test]
    fn heuristic_is_a_tenth_of_the_time_unchanged() {
        let changed = ("last-modified", "Sun, 06 Nov 1994 08:32:57 GMT");
        let lifetime = |status, fields: &[_], rules| {
            let policy = ResponsePolicy::of(&head(status, fields));
            policy.freshness(rules, Receipt::at(SENT_AT)).lifetime
        };
        let browser = CacheRules::BROWSER;
        assert_eq!(lifetime(200, &[SENT, changed], browser), seconds(100));
        assert_eq!(lifetime(200, &[changed], browser), seconds(100));
        assert_eq!(lifetime(404, &[SENT, changed], browser), seconds(100));
        assert_eq!(lifetime(200, &[SENT, changed], CacheRules::PRIVATE), None);
        assert_eq!(lifetime(200, &[SENT], browser), None);
        assert_eq!(lifetime(302, &[SENT, changed], browser), None);
        let public = ("cache-control", "public");
        assert_eq!(
            lifetime(302, &[SENT, changed, public], browser),
            seconds(100)
        );
        let named = ("cache-control", "max-age=5");
        assert_eq!(lifetime(200, &[SENT, changed, named], browser), seconds(5));
        let future = ("last-modified", "Mon, 07 Nov 1994 08:32:57 GMT");
        assert_eq!(lifetime(200, &[SENT, future], browser), seconds(0));
        let old = ("last-modified", "Sun, 06 Nov 1984 08:32:57 GMT");
        assert_eq!(lifetime(200, &[SENT, old], browser), Some(MAX_HEURISTIC));
        let malformed = ("cache-control", "no-transform; x");
        assert_eq!(lifetime(200, &[SENT, changed, malformed], browser), None);
    }

    #[test]
    fn age_counts_field_delay_and_clock() {
        let age = |fields: &[_], at, delay| {
            let delay = Duration::from_secs(delay);
            let freshness = of(fields).freshness(CacheRules::PRIVATE, Receipt { at, delay });
            freshness.age(Duration::from_secs(5)).as_secs()
        };
        assert_eq!(age(&[], None, 0), 5);
        assert_eq!(age(&[("age", "20")], None, 3), 28);
        assert_eq!(age(&[SENT, ("age", "20")], Some(SENT_AT + 100), 3), 105);
        assert_eq!(age(&[SENT, ("age", "200")], Some(SENT_AT + 100), 3), 208);
        assert_eq!(age(&[SENT], Some(SENT_AT - 100), 0), 5, "a clock behind");
        for age_field in ["30, 20", "30, x", ", 30", "30"] {
            assert_eq!(age(&[("age", age_field)], None, 0), 35, "{age_field}");
        }
        assert_eq!(age(&[("age", "30"), ("age", "99")], None, 0), 35);
        for bad in ["x", "-1", "1.5", "x, 20", "1 2", "20;x"] {
            assert_eq!(age(&[("age", bad)], None, 0), 5, "{bad}");
        }
        let huge = of(&[("cache-control", "max-age=9999"), ("age", "99999999999")]);
        let freshness = huge.freshness(CacheRules::PRIVATE, Receipt::default());
        assert!(!freshness.is_fresh(Duration::ZERO));
    }

    #[test]
    fn freshness_ends_when_age_reaches_the_lifetime() {
        let policy = of(&[("cache-control", "max-age=60"), ("age", "20")]);
        let freshness = policy.freshness(CacheRules::PRIVATE, Receipt::default());
        let after = Duration::from_secs;
        assert_eq!(freshness.remaining(after(0)), seconds(40));
        assert!(freshness.is_fresh(after(39)) && !freshness.is_fresh(after(40)));
        assert_eq!(freshness.remaining(after(99)), seconds(0));
        assert_eq!(freshness.staleness(after(39)), after(0));
        assert_eq!(freshness.staleness(after(50)), after(10));
        let unknown = of(&[]).freshness(CacheRules::PRIVATE, Receipt::default());
        assert_eq!(unknown.remaining(after(0)), None);
        assert!(!unknown.is_fresh(after(0)));
    }

    #[test]
    fn storage_needs_permission_and_a_lifetime() {
        let control = |value| ("cache-control", value);
        // Each row: status, fields, then PRIVATE, BROWSER and SHARED.
        for (status, fields, expected) in [
            (200, &[][..], [false, true, false]),
            (200, &[control("max-age=0")], [true, true, true]),
            (200, &[control("s-maxage=9")], [false, true, true]),
            (200, &[control("public")], [true, true, true]),
            (200, &[control("private")], [true, true, false]),
            (
                200,
                &[control("private=\"a\", max-age=9")],
                [true, true, false],
            ),
            (200, &[control("no-store, max-age=9")], [false; 3]),
            (
                200,
                &[control("no-store, must-understand, max-age=9")],
                [true; 3],
            ),
            (599, &[control("must-understand, max-age=9")], [false; 3]),
            (599, &[control("max-age=9")], [true; 3]),
            (200, &[("expires", "0")], [true; 3]),
            (302, &[], [false; 3]),
            (302, &[control("max-age=9")], [true; 3]),
            (206, &[control("max-age=9")], [false; 3]),
            (304, &[control("max-age=9")], [false; 3]),
            (103, &[control("max-age=9")], [false; 3]),
            (200, &[control("max-age=9"), ("vary", "*")], [false; 3]),
            (200, &[control("max-age=9"), ("vary", "a, *")], [false; 3]),
            (
                200,
                &[control("public, max-age=9"), (REPAIRED_FIELD, "1")],
                [false; 3],
            ),
            (
                200,
                &[control("max-age=9"), ("content-range", "bytes 0-0/1")],
                [true; 3],
            ),
        ] {
            let policy = ResponsePolicy::of(&head(status, fields));
            let request = RequestHead::get(Scheme::Http, "h", "/");
            let storable = [CacheRules::PRIVATE, CacheRules::BROWSER, CacheRules::SHARED]
                .map(|rules| policy.is_storable(&request, rules));
            assert_eq!(storable, expected, "{status} {fields:?}");
        }
    }

    #[test]
    fn storage_depends_on_the_request() {
        let request = |fields: &[(&str, &str)]| RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "h", "/")
        };
        let fresh = of(&[("cache-control", "max-age=9")]);
        let no_store = request(&[("cache-control", "no-store")]);
        assert!(!fresh.is_storable(&no_store, CacheRules::PRIVATE));
        let post = RequestHead {
            method: Method::Post,
            ..request(&[])
        };
        assert!(!fresh.is_storable(&post, CacheRules::PRIVATE));
        let login = request(&[("authorization", "Basic eA==")]);
        assert!(fresh.is_storable(&login, CacheRules::PRIVATE));
        assert!(!fresh.is_storable(&login, CacheRules::SHARED));
        for leave in ["public", "must-revalidate", "s-maxage=9"] {
            let policy = of(&[("cache-control", "max-age=9"), ("cache-control", leave)]);
            assert!(policy.is_storable(&login, CacheRules::SHARED), "{leave}");
        }
    }

    #[test]
    fn stale_use_ends_with_revalidation_directives() {
        for (control, private, shared) in [
            ("max-age=1", false, false),
            ("must-revalidate", true, true),
            ("no-cache", true, true),
            ("proxy-revalidate", false, true),
            ("s-maxage=1", false, true),
        ] {
            let policy = of(&[("cache-control", control)]);
            let forbids = |rules| policy.forbids_stale_use(rules);
            assert_eq!(forbids(CacheRules::PRIVATE), private, "{control}");
            assert_eq!(forbids(CacheRules::SHARED), shared, "{control}");
        }
    }

    proptest::proptest! {
        #[test]
        fn freshness_never_grows_with_time(
            control in "(max-age=[0-9]{1,12})?", age in "[0-9a]{0,12}",
            at in 0u64..1 << 40, first in 0u64..1 << 33, more in 0u64..1 << 33,
        ) {
            let policy = of(&[("cache-control", &control), ("age", &age), SENT]);
            for rules in [CacheRules::PRIVATE, CacheRules::BROWSER, CacheRules::SHARED] {
                let freshness = policy.freshness(rules, Receipt::at(at));
                let (early, late) =
                    (Duration::from_secs(first), Duration::from_secs(first + more));
                proptest::prop_assert!(freshness.remaining(late) <= freshness.remaining(early));
                proptest::prop_assert!(freshness.is_fresh(early) || !freshness.is_fresh(late));
            }
        }
    }
}
