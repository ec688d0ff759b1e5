//! The pushes of pages that were of no use to several users.
//!
//! Some responses must not be pushed, or serve only a request that waits with the same fields. A
//! push of such a resource often costs its origin a further request. The table counts these misses
//! for each page. Once different users have met them, the resource is left to the browser for a
//! while. A push whose response may be kept takes back one miss, since responses differ between
//! users.

use std::time::{Duration, Instant};

use tandem_predict::ids::IdMap;

/// The misses, of different users, after which a resource is not pushed.
const MISSES: u8 = 2;

/// The time for which a resource is left to the browser after the last miss.
const PERIOD: Duration = Duration::from_hours(1);

/// The number of pages in a table. A table that is full starts again.
const MAX_PAGES: usize = 1 << 12;

/// The number of resources that are counted for one page.
const MAX_RESOURCES: usize = 64;

/// The useless pushes of pages, by numbers of the pages.
#[derive(Debug, Default)]
pub struct UselessTable {
    pages: IdMap<u64, Vec<Missed>>,
}

/// A resource whose pushes were of no use.
#[derive(Debug)]
struct Missed {
    /// The [`url_hash`](crate::wire::url_hash) of its URL.
    url: u32,
    misses: u8,
    /// The last user with a miss.
    user: u64,
    until: Instant,
}

impl UselessTable {
    /// Notes the outcome of a push that was made for a page. `url` is the hash of the URL of its
    /// resource.
    pub fn note(&mut self, now: Instant, page: u64, user: u64, url: u32, is_useless: bool) {
        match is_useless {
            true => self.note_miss(now, page, user, url),
            false => self.take_back(page, url),
        }
    }

    fn note_miss(&mut self, now: Instant, page: u64, user: u64, url: u32) {
        if self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&page) {
            self.pages.clear();
        }
        let missed = self.pages.entry(page).or_default();
        missed.retain(|it| now < it.until);
        let until = now + PERIOD;
        let Some(at) = missed.iter().position(|it| it.url == url) else {
            if missed.len() < MAX_RESOURCES {
                missed.push(Missed {
                    url,
                    misses: 1,
                    user,
                    until,
                });
            }
            return;
        };
        let known = &mut missed[at];
        if known.user != user {
            known.misses = known.misses.saturating_add(1).min(MISSES);
            (known.user, known.until) = (user, until);
        }
    }

    fn take_back(&mut self, page: u64, url: u32) {
        let Some(missed) = self.pages.get_mut(&page) else {
            return;
        };
        for known in missed.iter_mut().filter(|it| it.url == url) {
            known.misses -= 1;
        }
        missed.retain(|it| it.misses > 0);
        if missed.is_empty() {
            self.pages.remove(&page);
        }
    }

    /// Returns the URL hashes of the resources that are not to be pushed for a page.
    pub fn of(&self, now: Instant, page: u64) -> Vec<u32> {
        let missed = self.pages.get(&page).into_iter().flatten();
        missed
            .filter(|it| it.misses >= MISSES && now < it.until)
            .map(|it| it.url)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_pushes_that_several_users_missed() {
        let (mut table, now) = (UselessTable::default(), Instant::now());
        for _ in 0..3 {
            table.note(now, 1, 7, 5, true);
            assert_eq!(table.of(now, 1), [], "one user");
        }
        table.note(now, 1, 8, 5, true);
        assert_eq!(table.of(now, 1), [5]);
        assert_eq!(table.of(now, 2), [], "another page");
        let end = now + PERIOD;
        assert_eq!(table.of(end - Duration::from_secs(1), 1), [5]);
        assert_eq!(table.of(end, 1), []);
        table.note(end, 1, 9, 6, true);
        assert_eq!(table.pages[&1].len(), 1, "old misses are forgotten");
    }

    #[test]
    fn push_that_may_be_kept_takes_back_a_miss() {
        let (mut table, now) = (UselessTable::default(), Instant::now());
        for user in 0..9 {
            table.note(now, 1, user, 5, true);
        }
        table.note(now, 1, 9, 6, false);
        assert_eq!(table.of(now, 1), [5]);
        table.note(now, 1, 9, 5, false);
        assert_eq!(table.of(now, 1), []);
        table.note(now, 1, 10, 5, true);
        assert_eq!(table.of(now, 1), [5]);
        for _ in 0..2 {
            table.note(now, 1, 9, 5, false);
        }
        table.note(now, 1, 9, 5, false);
        assert!(table.pages.is_empty());
    }

    #[test]
    fn useless_pushes_are_bounded() {
        let (mut table, now) = (UselessTable::default(), Instant::now());
        for url in 0..200 {
            table.note(now, 1, 1, url, true);
        }
        assert_eq!(table.pages[&1].len(), MAX_RESOURCES);
        for page in 0..2 * MAX_PAGES as u64 {
            table.note(now, page, 1, 1, true);
            assert!(table.pages.len() <= MAX_PAGES);
        }
    }
}
