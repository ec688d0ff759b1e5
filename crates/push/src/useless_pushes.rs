//! The pushes of pages that were of no use to several users.
//!
//! Some responses must not be pushed, or serve only a request that waits with the same fields. A
//! push of such a resource often costs its origin a further request. The table counts the users of
//! each page that met such a miss. Once enough different users have met one, the resource is left
//! to the browser for a while. Responses differ between users. Once as many users got a response
//! that may be kept, the count begins again. Fewer users change nothing for the others, so an
//! outcome reveals no visit of a single user.
//!
//! A second table counts the pushes that browsers had no use for, such as images out of sight and
//! the larger ones of several sizes. A request or a used push is the opposite outcome there.

use std::time::{Duration, Instant};

use tandem_predict::crowd::Crowd;
use tandem_predict::ids::IdMap;

/// The time for which a resource is left to the browser after the last miss of another user.
const PERIOD: Duration = Duration::from_hours(1);

/// The same after a push without a use. A request ends it sooner.
const WASTE_PERIOD: Duration = Duration::from_hours(24);

/// The largest number of pages in a table. A full table drops the pages without a counted miss, and
/// starts again if there are none.
const MAX_PAGES: usize = 1 << 12;

/// The largest number of resources that are counted for one page.
const MAX_RESOURCES: usize = 64;

/// The largest number of users that may have to meet a miss.
const MAX_USERS: usize = 4;

/// The useless pushes of pages, by numbers of the pages.
#[derive(Debug)]
pub struct UselessTable {
    pages: IdMap<u64, Vec<Missed>>,
    period: Duration,
}

impl Default for UselessTable {
    fn default() -> Self {
        Self {
            pages: IdMap::default(),
            period: PERIOD,
        }
    }
}

/// A resource whose pushes were of no use.
#[derive(Debug)]
struct Missed {
    /// The [`url_hash`](crate::wire::url_hash) of its URL.
    url: u32,
    /// The users that met a miss, or had no use for a push.
    users: Crowd<MAX_USERS>,
    /// The users that got a response that may be kept, or used the resource, since the first miss.
    served: Crowd<MAX_USERS>,
    until: Instant,
}

/// The outcome of a push that was made for a page.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The number of the page.
    pub page: u64,
    /// The number of the user.
    pub user: u64,
    /// The hash of the URL of the pushed resource.
    pub url: u32,
    /// True if the push cost its origin a request for nothing, or the browser had no use for it.
    pub is_useless: bool,
}

impl UselessTable {
    /// Creates a table of pushes that browsers had no use for.
    pub fn of_waste() -> Self {
        Self {
            period: WASTE_PERIOD,
            ..Self::default()
        }
    }

    /// Notes the outcome of a push. `least_users` different users change an answer, and never
    /// fewer.
    pub fn note(&mut self, now: Instant, outcome: Outcome, least_users: u8) {
        match outcome.is_useless {
            true => self.note_miss(now, outcome),
            false => self.note_served(outcome, least_users),
        }
    }

    fn note_miss(&mut self, now: Instant, outcome: Outcome) {
        let Outcome {
            page, user, url, ..
        } = outcome;
        if self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&page) {
            self.pages
                .retain(|_, missed| missed.iter().any(|it| now < it.until));
            if self.pages.len() >= MAX_PAGES {
                self.pages.clear();
            }
        }
        let missed = self.pages.entry(page).or_default();
        missed.retain(|it| now < it.until);
        let until = now + self.period;
        let at = missed.iter().position(|it| it.url == url);
        let at = at.or_else(|| {
            (missed.len() < MAX_RESOURCES).then(|| {
                missed.push(Missed {
                    url,
                    users: Crowd::default(),
                    served: Crowd::default(),
                    until,
                });
                missed.len() - 1
            })
        });
        if let Some(known) = at.and_then(|at| missed.get_mut(at))
            && known.users.note(user)
        {
            known.until = until;
        }
    }

    fn note_served(&mut self, outcome: Outcome, least_users: u8) {
        let Some(missed) = self.pages.get_mut(&outcome.page) else {
            return;
        };
        missed.retain_mut(|it| {
            it.url != outcome.url || {
                it.served.note(outcome.user);
                it.served.count < least_users
            }
        });
        if missed.is_empty() {
            self.pages.remove(&outcome.page);
        }
    }

    /// Returns the URL hashes of the resources that are not to be pushed for a page, since
    /// `least_users` different users met a miss.
    pub fn of(&self, now: Instant, page: u64, least_users: u8) -> Vec<u32> {
        let missed = self.pages.get(&page).into_iter().flatten();
        missed
            .filter(|it| it.users.count >= least_users && now < it.until)
            .map(|it| it.url)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes the outcome of a push for page 1, where three users change an answer.
    fn note(table: &mut UselessTable, now: Instant, user: u64, url: u32, is_useless: bool) {
        let outcome = Outcome {
            page: 1,
            user,
            url,
            is_useless,
        };
        table.note(now, outcome, 3);
    }

    #[test]
    fn table_names_pushes_that_enough_users_missed() {
        let (mut table, now) = (UselessTable::default(), Instant::now());
        for user in [7, 8, 7, 8, 7] {
            note(&mut table, now, user, 5, true);
            assert_eq!(table.of(now, 1, 3), [], "two users");
        }
        note(&mut table, now, 9, 5, true);
        assert_eq!(table.of(now, 1, 3), [5]);
        assert_eq!(table.of(now, 1, 4), []);
        assert_eq!(table.of(now, 2, 3), [], "another page");
        let end = now + PERIOD;
        note(&mut table, end - Duration::from_secs(1), 7, 5, true);
        assert_eq!(table.of(end - Duration::from_secs(1), 1, 3), [5]);
        assert_eq!(table.of(end, 1, 3), [], "one user prolongs nothing");
        note(&mut table, end, 9, 6, true);
        assert_eq!(table.pages[&1].len(), 1, "old misses are forgotten");
    }

    #[test]
    fn kept_responses_of_enough_users_restart_the_count() {
        let (mut table, now) = (UselessTable::default(), Instant::now());
        for user in 0..9 {
            note(&mut table, now, user, 5, true);
        }
        for user in [1, 2, 1, 2, 1] {
            note(&mut table, now, user, 5, false);
            note(&mut table, now, user + 9, 6, false);
            assert_eq!(table.of(now, 1, 3), [5], "two users");
        }
        note(&mut table, now, 3, 5, false);
        assert!(table.pages.is_empty());
        for user in [1, 2] {
            note(&mut table, now, user, 5, true);
            assert_eq!(table.of(now, 1, 3), []);
        }
    }

    #[test]
    fn useless_pushes_are_bounded() {
        let (mut table, now) = (UselessTable::default(), Instant::now());
        for url in 0..200 {
            note(&mut table, now, 1, url, true);
        }
        assert_eq!(table.pages[&1].len(), MAX_RESOURCES);
        for page in 0..2 * MAX_PAGES as u64 {
            let outcome = Outcome {
                page,
                user: 1,
                url: 1,
                is_useless: true,
            };
            table.note(now, outcome, 3);
            assert!(table.pages.len() <= MAX_PAGES);
        }
    }

    #[test]
    fn waste_counts_for_a_day() {
        let (mut table, now) = (UselessTable::of_waste(), Instant::now());
        for user in [7, 8, 9] {
            note(&mut table, now, user, 5, true);
        }
        assert_eq!(table.of(now + PERIOD, 1, 3), [5]);
        assert_eq!(table.of(now + WASTE_PERIOD, 1, 3), []);
    }

    #[test]
    fn full_table_keeps_pages_with_counted_misses() {
        let (mut table, now) = (UselessTable::default(), Instant::now());
        let miss = |page| Outcome {
            page,
            user: 7,
            url: 5,
            is_useless: true,
        };
        for page in 1..MAX_PAGES as u64 {
            table.note(now, miss(page), 1);
        }
        let later = now + PERIOD / 2;
        table.note(later, miss(0), 1);
        table.note(now + PERIOD, miss(MAX_PAGES as u64), 1);
        assert_eq!(table.of(now + PERIOD, 0, 1), [5]);
        assert_eq!(table.pages.len(), 2);
    }
}
