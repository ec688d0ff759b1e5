//! The URLs whose requests carry cookies that their page's request does not show.
//!
//! A page names resources of other origins. Their requests carry the cookies that the browser has
//! for those origins. The gateway sees them only in the browser's own requests, so an early request
//! goes without them. Its response serves no request with cookies, unless it is for everyone. The
//! origin then gets two requests, and the browser's own leaves a round trip later.
//!
//! The table counts the users whose requests for a URL carried cookies of another origin than their
//! page's. Only responses that are not for everyone count. Queries are left out of the URLs. Once
//! enough different users are counted, the requests of later users are taken to carry cookies too.
//! Fewer users change nothing for the others.

use std::hash::Hash;
use std::time::{Duration, Instant};

use tandem_predict::crowd::Crowd;
use tandem_predict::ids::IdMap;

/// The time after the last user with cookies for which a URL is remembered.
const PERIOD: Duration = Duration::from_hours(24);

/// The largest number of URLs in a table. A table that is full starts again.
const MAX_URLS: usize = 1 << 14;

/// The largest number of users that may have to send cookies.
const MAX_USERS: usize = 4;

/// The URLs whose requests carry cookies, by numbers.
#[derive(Debug, Default)]
pub struct CookieUrls {
    urls: IdMap<u64, Known>,
}

#[derive(Debug)]
struct Known {
    /// The users whose requests carried cookies.
    users: Crowd<MAX_USERS>,
    until: Instant,
}

impl CookieUrls {
    /// Notes that a user's request for a URL carried cookies.
    pub fn note(&mut self, now: Instant, url: u64, user: u64) {
        if self.urls.len() >= MAX_URLS && !self.urls.contains_key(&url) {
            self.urls.clear();
        }
        let until = now + PERIOD;
        let known = self.urls.entry(url).or_insert_with(|| Known {
            users: Crowd::default(),
            until,
        });
        if known.until <= now {
            known.users = Crowd::default();
        }
        known.users.note(user);
        known.until = until;
    }

    /// Returns whether the requests of `least_users` different users carried cookies.
    pub fn has(&self, now: Instant, url: u64, least_users: u8) -> bool {
        let least = least_users.min(MAX_USERS as u8);
        let is_known = |known: &Known| known.users.count >= least && now < known.until;
        self.urls.get(&url).is_some_and(is_known)
    }
}

/// Returns the part of a URL that the table counts: it ends before the query.
pub fn without_query(url: &str) -> impl Hash + '_ {
    url.split(['?', '#']).next().unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_users_with_cookies_mark_a_url() {
        let (mut table, now) = (CookieUrls::default(), Instant::now());
        for (user, expected) in [(7, false), (7, false), (8, false), (9, true)] {
            table.note(now, 1, user);
            assert_eq!(table.has(now, 1, 3), expected, "{user}");
        }
        assert!(!table.has(now, 2, 3), "another URL");
        table.note(now + PERIOD / 2, 1, 7);
        assert!(table.has(now + PERIOD, 1, 3));
        let late = now + 2 * PERIOD;
        assert!(!table.has(late, 1, 3), "nobody came for a day");
        table.note(late, 1, 7);
        assert!(!table.has(late, 1, 3), "the count begins again");
    }

    #[test]
    fn cookie_urls_are_bounded() {
        let (mut table, now) = (CookieUrls::default(), Instant::now());
        for url in 0..MAX_URLS as u64 + 9 {
            table.note(now, url, 1);
            assert!(table.urls.len() <= MAX_URLS);
        }
        assert!(table.has(now, MAX_URLS as u64 + 8, 1) && !table.has(now, 0, 1));
    }
}
