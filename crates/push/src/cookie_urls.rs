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
//!
//! A browser that requests its page without cookies is likely to be new, and has none for other
//! origins either. Some origins set cookies while the page loads, and later requests of the same
//! visit carry them. A second count is of the users whose browsers were new and sent such cookies.
//! Only responses that must not be stored count there.
//!
//! A page may name resources that the predictor does not know, such as counters. The table
//! therefore also keeps the URLs that the pages of each origin have requested so.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tandem_predict::crowd::Crowd;
use tandem_predict::ids::IdMap;

use crate::wire::url_hash_of;

/// The time after the last user with cookies for which a URL is remembered.
const PERIOD: Duration = Duration::from_hours(24);

/// The largest number of URLs in a table. A table that is full starts again.
const MAX_URLS: usize = 1 << 14;

/// The largest number of URLs that are kept for the pages of one origin. Beyond it, the URL whose
/// last request with cookies is the oldest makes way.
const MAX_OF_ORIGIN: usize = 256;

/// The largest number of users that may have to send cookies.
const MAX_USERS: usize = 4;

/// The URLs whose requests carry cookies, by numbers.
#[derive(Debug, Default)]
pub struct CookieUrls {
    urls: IdMap<u64, Known>,
    /// The URLs that the pages of an origin have requested with cookies, in the order of the last
    /// requests.
    origins: IdMap<u64, Vec<CookieUrl>>,
    /// The number of URLs in `origins`.
    of_origins: usize,
}

#[derive(Debug)]
struct Known {
    /// The users whose requests carried cookies.
    users: Crowd<MAX_USERS>,
    /// The users among them whose browsers were new.
    new_users: Crowd<MAX_USERS>,
    until: Instant,
}

/// A URL without its query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieUrl {
    /// The number of the URL in the table.
    pub number: u64,
    /// The [`path_hash`] of the URL.
    pub hash: u32,
}

/// The browser whose request carried cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieUser {
    /// The number of the user.
    pub user: u64,
    /// True if the browser has requested its page without cookies, and the response must not be
    /// stored.
    pub is_new: bool,
}

/// The browsers whose requests for a URL carry cookies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CookieSenders {
    /// True for browsers in general.
    pub any: bool,
    /// True for new browsers too.
    pub new: bool,
}

/// The resources whose requests carry cookies, by the [`path_hash`] of their URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CookieNeeds {
    /// The resources for browsers in general.
    pub of_any: HashSet<u32>,
    /// The resources for new browsers.
    pub of_new: HashSet<u32>,
}

impl CookieNeeds {
    /// Adds the resource at a URL.
    pub fn add(&mut self, url: &str, senders: CookieSenders) {
        let hash = path_hash(url);
        self.of_any.extend(hash.filter(|_| senders.any));
        self.of_new.extend(hash.filter(|_| senders.new));
    }

    /// Adds the resources of another page.
    pub fn extend(&mut self, other: Self) {
        self.of_any.extend(other.of_any);
        self.of_new.extend(other.of_new);
    }
}

impl CookieUrls {
    /// Notes that a user's request for a URL carried cookies. `origin` is the number of its page's
    /// origin.
    pub fn note(&mut self, now: Instant, origin: u64, url: CookieUrl, by: CookieUser) {
        let is_known = self.urls.contains_key(&url.number);
        if (self.urls.len() >= MAX_URLS && !is_known) || self.of_origins >= MAX_URLS {
            *self = Self::default();
        }
        let until = now + PERIOD;
        let known = self.urls.entry(url.number).or_insert_with(|| Known {
            users: Crowd::default(),
            new_users: Crowd::default(),
            until,
        });
        if known.until <= now {
            known.users = Crowd::default();
            known.new_users = Crowd::default();
        }
        known.users.note(by.user);
        if by.is_new {
            known.new_users.note(by.user);
        }
        known.until = until;
        let of_origin = self.origins.entry(origin).or_default();
        let is_full = of_origin.len() >= MAX_OF_ORIGIN;
        match of_origin.iter().position(|it| *it == url) {
            Some(at) => drop(of_origin.remove(at)),
            None if is_full => drop(of_origin.remove(0)),
            None => self.of_origins += 1,
        }
        of_origin.push(url);
    }

    /// Returns the browsers whose requests carry cookies, as those of `least_users` different users
    /// have shown.
    pub fn senders(&self, now: Instant, url: u64, least_users: u8) -> CookieSenders {
        let least = least_users.min(MAX_USERS as u8);
        let known = self.urls.get(&url).filter(|known| now < known.until);
        known.map_or_else(CookieSenders::default, |known| CookieSenders {
            any: known.users.count >= least,
            new: known.new_users.count >= least,
        })
    }

    /// Returns the URLs that the pages of an origin have requested with cookies.
    pub fn of(&self, now: Instant, origin: u64, least_users: u8) -> CookieNeeds {
        let mut needs = CookieNeeds::default();
        for url in self.origins.get(&origin).into_iter().flatten() {
            let senders = self.senders(now, url.number, least_users);
            needs.of_any.extend(senders.any.then_some(url.hash));
            needs.of_new.extend(senders.new.then_some(url.hash));
        }
        needs
    }
}

/// Returns the part of a URL that the table counts: it ends before the query.
pub fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

/// Returns the hash by which sessions know a URL without its query; `None` for other text.
pub fn path_hash(url: &str) -> Option<u32> {
    url_hash_of(without_query(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: u64 = 77;

    fn note(table: &mut CookieUrls, now: Instant, number: u64, user: u64, is_new: bool) {
        let hash = number as u32;
        let by = CookieUser { user, is_new };
        table.note(now, ORIGIN, CookieUrl { number, hash }, by);
    }

    fn has(table: &CookieUrls, now: Instant, url: u64, least_users: u8) -> (bool, bool) {
        let CookieSenders { any, new } = table.senders(now, url, least_users);
        (any, new)
    }

    #[test]
    fn enough_users_with_cookies_mark_a_url() {
        let (mut table, now) = (CookieUrls::default(), Instant::now());
        for (user, expected) in [(7, false), (7, false), (8, false), (9, true)] {
            note(&mut table, now, 1, user, false);
            assert_eq!(has(&table, now, 1, 3), (expected, false), "{user}");
        }
        assert!(!has(&table, now, 2, 3).0, "another URL");
        note(&mut table, now + PERIOD / 2, 1, 7, false);
        assert!(has(&table, now + PERIOD, 1, 3).0);
        let late = now + 2 * PERIOD;
        assert!(!has(&table, late, 1, 3).0, "nobody came for a day");
        note(&mut table, late, 1, 7, false);
        assert!(!has(&table, late, 1, 3).0, "the count begins again");
    }

    #[test]
    fn new_browsers_with_cookies_are_counted_apart() {
        let (mut table, now) = (CookieUrls::default(), Instant::now());
        for (user, is_new, expected) in [
            (7, true, (false, false)),
            (8, false, (true, false)),
            (8, true, (true, true)),
        ] {
            note(&mut table, now, 1, user, is_new);
            assert_eq!(has(&table, now, 1, 2), expected, "{user} {is_new}");
        }
        note(&mut table, now, 2, 7, true);
        let needs = table.of(now, ORIGIN, 2);
        assert_eq!(needs.of_any, HashSet::from([1]));
        assert_eq!(needs.of_new, HashSet::from([1]));
        assert_eq!(table.of(now, ORIGIN + 1, 2), CookieNeeds::default());
        assert_eq!(table.of(now + PERIOD, ORIGIN, 2), CookieNeeds::default());
    }

    #[test]
    fn path_hash_leaves_the_query_out() {
        let hash = path_hash("http://a.test/i.gif?b");
        assert!(hash.is_some() && hash == path_hash("http://a.test/i.gif"));
        assert_ne!(hash, path_hash("http://a.test/j.gif?b"));
    }

    #[test]
    fn cookie_urls_are_bounded() {
        let (mut table, now) = (CookieUrls::default(), Instant::now());
        for url in 0..MAX_URLS as u64 + 9 {
            note(&mut table, now, url, 1, false);
            assert!(table.urls.len() <= MAX_URLS);
            assert!(table.origins.values().all(|it| it.len() <= MAX_OF_ORIGIN));
        }
        assert!(has(&table, now, MAX_URLS as u64 + 8, 1).0 && !has(&table, now, 0, 1).0);
        let url = CookieUrl { number: 1, hash: 1 };
        let by = CookieUser {
            user: 1,
            is_new: false,
        };
        for origin in 0..MAX_URLS as u64 + 9 {
            table.note(now, origin, url, by);
            assert!(table.of_origins <= MAX_URLS && table.origins.len() <= MAX_URLS);
        }
    }

    #[test]
    fn oldest_url_of_an_origin_makes_way() {
        let (mut table, now) = (CookieUrls::default(), Instant::now());
        let most = MAX_OF_ORIGIN as u64;
        for url in (0..most).chain([0, most, most + 1]) {
            note(&mut table, now, url, 1, false);
        }
        let kept = table.of(now, ORIGIN, 1).of_any;
        assert_eq!(kept.len(), MAX_OF_ORIGIN);
        for (url, is_kept) in [(0, true), (1, false), (2, false), (3, true), (most, true)] {
            assert_eq!(kept.contains(&(url as u32)), is_kept, "{url}");
        }
        assert_eq!(table.of_origins, MAX_OF_ORIGIN);
    }
}
