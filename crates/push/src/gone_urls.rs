//! The URLs that have gone, as the responses to pushes show.
//!
//! After a change of the site, the predictor still expects the resources of the old pages. Their
//! origin answers 404 or 410, and further pushes of them would cost it requests for nothing.
//!
//! Some origins answer so to users without permission. A response to a request without cookies is
//! the same for all users, and counts at once. Otherwise as many users must get such a response as
//! must know a URL before it is pushed. One response that has the resource ends the knowledge.

use std::time::{Duration, Instant};

use tandem_predict::crowd::Crowd;
use tandem_predict::ids::IdMap;

/// The time after the last response without the resource for which its URL counts as gone. The
/// visits of this time without a request for it lower its probability.
const PERIOD: Duration = Duration::from_hours(24);

/// The largest number of URLs in a table. A table that is full starts again.
const MAX_URLS: usize = 1 << 14;

/// The largest number of users that may have to get such a response.
const MAX_USERS: usize = 4;

/// The URLs that have gone, by numbers.
#[derive(Debug, Default)]
pub struct GoneTable {
    urls: IdMap<u64, Gone>,
}

#[derive(Debug)]
struct Gone {
    /// The users whose requests with cookies were answered so.
    users: Crowd<MAX_USERS>,
    /// True if a request without cookies was answered so.
    is_plain: bool,
    until: Instant,
}

impl GoneTable {
    /// Notes that the origin has no resource at a URL. `is_plain` tells that the user's request had
    /// no cookies.
    pub fn note(&mut self, now: Instant, url: u64, user: u64, is_plain: bool) {
        if self.urls.len() >= MAX_URLS && !self.urls.contains_key(&url) {
            self.urls.clear();
        }
        let until = now + PERIOD;
        let gone = self.urls.entry(url).or_insert_with(|| Gone {
            users: Crowd::default(),
            is_plain: false,
            until,
        });
        let is_new = gone.users.note(user);
        if is_new || is_plain {
            gone.until = until;
        }
        gone.is_plain |= is_plain;
    }

    /// Notes that the origin has a resource at a URL.
    pub fn note_found(&mut self, url: u64) {
        self.urls.remove(&url);
    }

    /// Returns whether the resource at a URL has gone, as one plain request or the requests of
    /// `least_users` different users show.
    pub fn has(&self, now: Instant, url: u64, least_users: u8) -> bool {
        self.urls.get(&url).is_some_and(|gone| {
            let are_enough = gone.users.count >= least_users.min(MAX_USERS as u8);
            (gone.is_plain || are_enough) && now < gone.until
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_gone_after_a_plain_request_or_enough_users() {
        let (mut table, now) = (GoneTable::default(), Instant::now());
        table.note(now, 1, 7, true);
        assert!(table.has(now, 1, 3) && !table.has(now, 2, 3));
        for (user, expected) in [(7, false), (7, false), (8, false), (9, true)] {
            table.note(now, 2, user, false);
            assert_eq!(table.has(now, 2, 3), expected, "{user}");
        }
        table.note_found(1);
        assert!(!table.has(now, 1, 3) && table.has(now, 2, 3));
        table.note(now + PERIOD / 2, 2, 7, false);
        assert!(!table.has(now + PERIOD, 2, 3), "one user prolongs nothing");
    }

    #[test]
    fn gone_urls_are_bounded() {
        let (mut table, now) = (GoneTable::default(), Instant::now());
        for url in 0..MAX_URLS as u64 + 9 {
            table.note(now, url, 1, true);
            assert!(table.urls.len() <= MAX_URLS);
        }
        assert!(table.has(now, MAX_URLS as u64 + 8, 3) && !table.has(now, 0, 3));
    }
}
