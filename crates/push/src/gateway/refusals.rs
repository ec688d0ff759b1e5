//! The origins that refuse requests at present, by status 429 or 503.
//!
//! The gateway leaves a refused push to the browser, since many pushes at once may cause refusals.
//! The origin then gets another request for each of them. After a few refusals in a row, to the
//! browser or to pushes, nothing is pushed from the origin for a while, and its fetches that have
//! not begun end. A single resource that always fails has no such effect while others answer.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use tandem_predict::ids::IdMap;

use crate::url;

/// The number of refusals in a row after which nothing is pushed from an origin.
const IN_A_ROW: u8 = 3;

/// The time after the last refusal of a row in which nothing is pushed.
const PAUSE: Duration = Duration::from_secs(30);

/// The largest number of origins that are remembered. A full table starts again.
const MAX_ORIGINS: usize = 256;

/// The last refusals of origins.
#[derive(Default)]
pub(super) struct Refusals {
    /// The secret of the hashes, so that nobody can choose authorities with the same one.
    hasher: RandomState,
    /// The refusals, by the hashes of authorities, which may be long.
    origins: IdMap<u64, Refused>,
}

struct Refused {
    in_a_row: u8,
    last: Instant,
}

/// Returns whether a status is a refusal that may not last.
pub(super) const fn is_refusal(status: u16) -> bool {
    matches!(status, 429 | 503)
}

impl Refusals {
    /// Notes the status of a response. Returns true if nothing is pushed from its origin from now
    /// on.
    pub(super) fn note(&mut self, now: Instant, authority: &str, status: u16) -> bool {
        self.expire(now);
        if !is_refusal(status) {
            if !self.origins.is_empty() {
                let hash = self.hash(authority);
                // A pause lasts its time: an origin that answers one request may refuse many.
                let is_paused = |refused: &Refused| refused.in_a_row >= IN_A_ROW;
                if !self.origins.get(&hash).is_some_and(is_paused) {
                    self.origins.remove(&hash);
                }
            }
            return false;
        }
        let hash = self.hash(authority);
        if self.origins.len() >= MAX_ORIGINS && !self.origins.contains_key(&hash) {
            self.origins.clear();
        }
        let refused = self.origins.entry(hash).or_insert(Refused {
            in_a_row: 0,
            last: now,
        });
        // A resource that is asked for again and again, and always fails, does not prolong a pause.
        if refused.in_a_row >= IN_A_ROW {
            return false;
        }
        refused.last = now;
        refused.in_a_row += 1;
        refused.in_a_row == IN_A_ROW
    }

    /// Forgets the refusals of long ago.
    pub(super) fn expire(&mut self, now: Instant) {
        if !self.origins.is_empty() {
            self.origins.retain(|_, refused| now < refused.last + PAUSE);
        }
    }

    /// Returns whether nothing is pushed from the origin of a URL.
    pub(super) fn concern(&self, url: &str) -> bool {
        !self.origins.is_empty()
            && self
                .origins
                .get(&self.hash(url::authority(url)))
                .is_some_and(|refused| refused.in_a_row >= IN_A_ROW)
    }

    fn hash(&self, authority: &str) -> u64 {
        self.hasher.hash_one(authority.to_ascii_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_in_a_row_stop_pushes_for_a_while() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        for (status, is_last) in [
            (503, false),
            (429, false),
            (200, false),
            (503, false),
            (503, false),
            (503, true),
            (503, false),
        ] {
            assert_eq!(
                refusals.note(start, "A.test:81", status),
                is_last,
                "{status}"
            );
        }
        assert!(refusals.concern("http://a.test:81/x") && !refusals.concern("http://a.test/x"));
        refusals.expire(start + PAUSE - Duration::from_secs(1));
        assert!(refusals.concern("http://a.test:81/x"));
        refusals.expire(start + PAUSE);
        assert!(!refusals.concern("http://a.test:81/x") && refusals.origins.is_empty());
    }

    #[test]
    fn answer_ends_a_row_of_its_origin_but_no_pause() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        for is_last in [false, false, true] {
            assert_eq!(refusals.note(start, "a.test", 429), is_last);
        }
        refusals.note(start, "b.test", 429);
        for host in ["a.test", "b.test"] {
            refusals.note(start + PAUSE / 2, host, 200);
        }
        assert!(refusals.concern("http://a.test/") && !refusals.concern("http://b.test/"));
        assert_eq!(refusals.origins.len(), 1, "the row of b.test has ended");
        // Neither an answer nor another refusal makes the pause longer.
        assert!(!refusals.note(start + PAUSE / 2, "a.test", 429));
        refusals.expire(start + PAUSE);
        assert!(!refusals.concern("http://a.test/"));
    }

    #[test]
    fn refusing_origins_are_bounded() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        for number in 0..3 * MAX_ORIGINS {
            refusals.note(now, &format!("{number}.test"), 503);
            assert!(refusals.origins.len() <= MAX_ORIGINS);
        }
    }
}
