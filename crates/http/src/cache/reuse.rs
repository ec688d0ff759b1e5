//! Reuse of a stored response for a request (RFC 9111 sections 4 and 5.2.1).

use std::time::Duration;

use super::{CacheControl, CacheRules, Freshness, ResponsePolicy, Staleness};
use crate::Fields;

/// The use that a request permits of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The response is fresh and may be used.
    Fresh,
    /// The response is stale, and the request accepts that.
    Stale,
    /// The response must be validated with its origin first.
    Validate,
}

/// The directives of a request that concern stored responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPolicy {
    /// The directives; a `Pragma: no-cache` without `Cache-Control` counts as `no-cache`
    /// (RFC 9111 section 5.4).
    pub control: CacheControl,
}

impl RequestPolicy {
    /// Reads the fields of a request.
    pub fn of(fields: &Fields) -> Self {
        let mut control = CacheControl::of(fields);
        control.no_cache |= !control.is_present && fields.has_token("pragma", "no-cache");
        Self { control }
    }

    /// Returns true if the request asks for a response from its origin, like a reload in a browser.
    pub fn wants_validation(&self) -> bool {
        self.control.no_cache || self.control.max_age == Some(Duration::ZERO)
    }

    /// Returns true if the request sets no limit that a stale response would exceed, so that a
    /// response may serve it while that response is validated (RFC 5861 section 3).
    pub fn accepts_revalidation_later(&self) -> bool {
        let control = &self.control;
        !control.no_cache && control.max_age.is_none() && control.min_fresh.is_none()
    }

    /// Returns true if a response that has been stored for `resident` keeps the limits `max-age`
    /// and `min-fresh` of the request (RFC 9111 sections 5.2.1.1 and 5.2.1.3).
    pub fn accepts_age(&self, freshness: &Freshness, resident: Duration) -> bool {
        let Self { control } = self;
        let age = freshness.age(resident);
        let remaining = freshness.remaining(resident).unwrap_or_default();
        control.max_age.is_none_or(|most| age <= most)
            && control.min_fresh.is_none_or(|least| remaining >= least)
    }

    /// Decides about a response that has been stored for `resident`.
    pub fn reuse(
        &self,
        rules: CacheRules,
        policy: &ResponsePolicy,
        freshness: &Freshness,
        resident: Duration,
    ) -> Reuse {
        let control = &self.control;
        if control.no_cache || policy.needs_validation() {
            return Reuse::Validate;
        }
        if !self.accepts_age(freshness, resident) {
            return Reuse::Validate;
        }
        if freshness.is_fresh(resident) {
            return Reuse::Fresh;
        }
        let accepted = match control.max_stale {
            None => false,
            Some(Staleness::Any) => true,
            Some(Staleness::UpTo(most)) => freshness.staleness(resident) <= most,
        };
        if accepted && !policy.forbids_stale_use(rules) {
            Reuse::Stale
        } else {
            Reuse::Validate
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Receipt;
    use super::*;
    use crate::ResponseHead;

    fn reuse(rules: CacheRules, asked: &[(&str, &str)], says: &str, resident: u64) -> Reuse {
        let head = ResponseHead {
            fields: [("cache-control", says)].into_iter().collect(),
            ..ResponseHead::new(200)
        };
        let policy = ResponsePolicy::of(&head);
        let freshness = policy.freshness(rules, Receipt::default());
        let asked = RequestPolicy::of(&asked.iter().copied().collect());
        asked.reuse(rules, &policy, &freshness, Duration::from_secs(resident))
    }

    #[test]
    fn request_directives_decide_about_reuse() {
        use Reuse::{Fresh, Stale, Validate};
        // Each row: directives of the request and the response, seconds stored, the decision.
        for (asked, says, resident, expected) in [
            ("", "max-age=60", 59, Fresh),
            ("", "max-age=60", 60, Validate),
            ("", "", 0, Validate),
            ("", "max-age=60, no-cache", 0, Validate),
            ("no-cache", "max-age=60", 0, Validate),
            ("max-age=10", "max-age=60", 10, Fresh),
            ("max-age=10", "max-age=60", 11, Validate),
            ("max-age=0", "max-age=60", 1, Validate),
            ("min-fresh=10", "max-age=60", 50, Fresh),
            ("min-fresh=10", "max-age=60", 51, Validate),
            ("min-fresh=soon", "max-age=60", 0, Validate),
            ("max-stale", "max-age=60", 9999, Stale),
            ("max-stale=10", "max-age=60", 70, Stale),
            ("max-stale=10", "max-age=60", 71, Validate),
            ("max-stale, max-age=65", "max-age=60", 66, Validate),
            ("max-stale", "max-age=60, must-revalidate", 61, Validate),
            ("max-stale", "max-age=60, proxy-revalidate", 61, Stale),
            ("max-stale", "max-age=60, s-maxage=60", 61, Stale),
        ] {
            let fields = [("cache-control", asked)];
            let fields = if asked.is_empty() { &[][..] } else { &fields };
            let found = reuse(CacheRules::PRIVATE, fields, says, resident);
            assert_eq!(found, expected, "{asked} | {says} | {resident}");
        }
        for says in ["max-age=60, proxy-revalidate", "max-age=60, s-maxage=60"] {
            let asked = [("cache-control", "max-stale")];
            assert_eq!(
                reuse(CacheRules::SHARED, &asked, says, 61),
                Validate,
                "{says}"
            );
        }
    }

    #[test]
    fn pragma_counts_without_cache_control_only() {
        let pragma = ("pragma", "No-Cache");
        let both = [pragma, ("cache-control", "max-age=9")];
        let rules = CacheRules::PRIVATE;
        assert_eq!(reuse(rules, &[pragma], "max-age=60", 0), Reuse::Validate);
        assert_eq!(reuse(rules, &both, "max-age=60", 0), Reuse::Fresh);
        assert_eq!(
            reuse(rules, &[("pragma", "x")], "max-age=60", 0),
            Reuse::Fresh
        );
    }

    #[test]
    fn reload_wants_validation() {
        let wants = |fields: &[(&str, &str)]| {
            RequestPolicy::of(&fields.iter().copied().collect()).wants_validation()
        };
        assert!(wants(&[("cache-control", "Max-Age=\"0\"")]));
        assert!(wants(&[("cache-control", "no-cache")]));
        assert!(wants(&[("pragma", "no-cache")]));
        assert!(!wants(&[]));
        assert!(!wants(&[("cache-control", "max-age=1, no-store")]));
    }
}
