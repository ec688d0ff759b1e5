//! The redirects to other origins that a gateway with one user may follow.
//!
//! A gateway usually leaves such a redirect to the browser. It does not know the cookies of the
//! other origin, and a target may be good for one request only. At a gateway with one user, earlier
//! visits show the cookies and the target. A visit counts if the redirect led to the same target as
//! before, and if the browser's request for it was the one that the gateway would have made.

use tandem_predict::ids::IdMap;

/// The visits in succession after which a redirect is followed.
const ENOUGH_VISITS: u8 = 3;

/// The largest number of redirects in a table. A table that is full starts again.
const MAX_REDIRECTS: usize = 1 << 13;

/// The targets of redirects, by numbers of browsers and URLs.
#[derive(Debug, Default)]
pub struct KnownRedirects(IdMap<u64, KnownTarget>);

#[derive(Debug)]
struct KnownTarget {
    /// The number of the target.
    target: u64,
    /// The number of visits in succession at which the gateway knew the browser's request for it.
    visits: u8,
}

impl KnownRedirects {
    /// Notes that the browser has requested the target of a redirect. `is_known` tells whether the
    /// gateway would have made the same request.
    pub fn note(&mut self, redirect: u64, target: u64, is_known: bool) {
        if self.0.len() >= MAX_REDIRECTS && !self.0.contains_key(&redirect) {
            self.0.clear();
        }
        let new = KnownTarget { target, visits: 0 };
        let known = self.0.entry(redirect).or_insert(new);
        let before = match known.target == target && is_known {
            true => known.visits,
            false => 0,
        };
        *known = KnownTarget {
            target,
            visits: before.saturating_add(u8::from(is_known)),
        };
    }

    /// Returns whether the browser's request for the target of a redirect is known.
    pub fn leads_to(&self, redirect: u64, target: u64) -> bool {
        let known = self.0.get(&redirect);
        known.is_some_and(|known| known.target == target && known.visits >= ENOUGH_VISITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_is_known_after_three_equal_visits() {
        let mut table = KnownRedirects::default();
        for visits in 1..5 {
            table.note(1, 7, true);
            assert_eq!(table.leads_to(1, 7), visits >= 3, "{visits}");
            assert!(!table.leads_to(1, 8) && !table.leads_to(2, 7));
        }
    }

    #[test]
    fn other_target_or_request_ends_the_knowledge() {
        for (target, is_known, left) in [(7, false, 3), (8, true, 2), (8, false, 3)] {
            let mut table = KnownRedirects::default();
            (0..4).for_each(|_| table.note(1, 7, true));
            table.note(1, target, is_known);
            assert!(!table.leads_to(1, 7) && !table.leads_to(1, target));
            (0..left).for_each(|_| table.note(1, target, true));
            assert!(table.leads_to(1, target), "{target} {is_known}");
        }
    }

    #[test]
    fn redirects_are_bounded() {
        let mut table = KnownRedirects::default();
        for redirect in 0..2 * MAX_REDIRECTS as u64 {
            table.note(redirect, 7, true);
            assert!(table.0.len() <= MAX_REDIRECTS);
        }
    }
}
