//! The documents that the visitors of a page ask for next, as visits of several users show them.
//!
//! Only visits without credentials count: their documents are the same for all users. A document is
//! named once enough users have followed a link to it from this page.

use std::sync::Arc;

use tandem_predict::crowd::Crowd;
use tandem_predict::ids::IdMap;

/// The largest number of pages in a table. A table that is full starts again.
const MAX_PAGES: usize = 1 << 12;

/// The largest number of documents that are counted for one page.
const MAX_DOCUMENTS: usize = 8;

/// The length in bytes of the longest URL that is counted.
const MAX_URL: usize = 512;

/// The largest number of users that may have to know a document.
const MAX_USERS: usize = 4;

/// The number of visits after which all counts of a page are halved, so that they follow changes.
const RECENT_VISITS: u32 = 256;

/// A document that may follow a page.
#[derive(Clone, Debug, PartialEq)]
pub struct NextPage {
    /// The URL of the document.
    pub url: Arc<str>,
    /// The share of the visits to the page that went on to the document.
    pub probability: f64,
}

/// The documents that follow pages, by numbers of the pages.
#[derive(Debug, Default)]
pub struct NextTable {
    pages: IdMap<u64, Departures>,
}

/// The visits to a page, and the documents that followed.
#[derive(Debug, Default)]
struct Departures {
    visits: u32,
    documents: Vec<Followed>,
}

/// A document that followed a page.
#[derive(Debug)]
struct Followed {
    url: Arc<str>,
    count: u32,
    users: Crowd<MAX_USERS>,
}

impl NextTable {
    /// Notes a visit to a page.
    pub fn note_visit(&mut self, page: u64) {
        if self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&page) {
            self.pages.clear();
        }
        let departures = self.pages.entry(page).or_default();
        departures.visits += 1;
        if departures.visits >= RECENT_VISITS {
            departures.halve();
        }
    }

    /// Notes that a user followed a link of a page to a document. Pages without a noted visit are
    /// unknown.
    pub fn note_next(&mut self, page: u64, url: &str, user: u64) {
        let Some(departures) = self.pages.get_mut(&page) else {
            return;
        };
        if url.len() > MAX_URL {
            return;
        }
        if let Some(known) = departures.documents.iter_mut().find(|it| *it.url == *url) {
            known.count += 1;
            known.users.note(user);
        } else if departures.has_room() {
            let mut users = Crowd::default();
            users.note(user);
            departures.documents.push(Followed {
                url: url.into(),
                count: 1,
                users,
            });
        }
    }

    /// Returns the documents that followed a page and are known to `least_users` different users,
    /// most probable first.
    pub fn of(&self, page: u64, least_users: u8) -> Vec<NextPage> {
        let Some(departures) = self.pages.get(&page) else {
            return Vec::new();
        };
        // One more visit that goes nowhere keeps a new page from certainty.
        let visits = f64::from(departures.visits) + 1.0;
        let least_users = least_users.clamp(1, MAX_USERS as u8);
        let known = departures.documents.iter();
        let mut next: Vec<_> = known
            .filter(|it| it.users.count >= least_users)
            .map(|it| NextPage {
                url: Arc::clone(&it.url),
                probability: (f64::from(it.count) / visits).min(1.0),
            })
            .collect();
        next.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        next
    }
}

impl Departures {
    /// Returns whether another document can be counted. If not, the rarest one loses a count, and
    /// makes room once it has none.
    fn has_room(&mut self) -> bool {
        if self.documents.len() < MAX_DOCUMENTS {
            return true;
        }
        let rarest = self.documents.iter_mut().enumerate();
        let Some((at, rarest)) = rarest.min_by_key(|(_, it)| it.count) else {
            return false;
        };
        rarest.count -= 1;
        let is_free = rarest.count == 0;
        if is_free {
            self.documents.swap_remove(at);
        }
        is_free
    }

    fn halve(&mut self) {
        self.visits /= 2;
        for document in &mut self.documents {
            document.count /= 2;
        }
        self.documents.retain(|it| it.count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(table: &mut NextTable, url: &str, users: std::ops::Range<u64>) {
        for user in users {
            table.note_visit(1);
            table.note_next(1, url, user);
        }
    }

    fn of(table: &NextTable, least_users: u8) -> Vec<(String, f64)> {
        let next = table.of(1, least_users).into_iter();
        next.map(|it| (it.url.to_string(), it.probability))
            .collect()
    }

    #[test]
    fn table_names_documents_that_enough_users_know() {
        let mut table = NextTable::default();
        for _ in 0..9 {
            follow(&mut table, "http://h/own?id=7", 1..2);
        }
        follow(&mut table, "http://h/a", 1..3);
        assert_eq!(of(&table, 3), []);
        follow(&mut table, "http://h/a", 3..4);
        assert_eq!(of(&table, 3), [("http://h/a".to_owned(), 3.0 / 13.0)]);
        assert_eq!(of(&table, 1).len(), 2);
        assert_eq!(of(&table, 0), of(&table, 1), "a user at least");
        assert!(table.of(2, 1).is_empty(), "another page");
    }

    #[test]
    fn visits_that_go_elsewhere_lower_the_probability() {
        let mut table = NextTable::default();
        table.note_next(1, "http://h/a", 1);
        assert_eq!(of(&table, 1), [], "the page is unknown");
        follow(&mut table, "http://h/a", 0..3);
        assert_eq!(of(&table, 3), [("http://h/a".to_owned(), 0.75)]);
        for _ in 0..4 {
            table.note_visit(1);
        }
        assert_eq!(of(&table, 3), [("http://h/a".to_owned(), 0.375)]);
    }

    #[test]
    fn next_page_table_is_bounded_and_follows_changes() {
        let mut table = NextTable::default();
        let long = format!("http://h/{}", "x".repeat(MAX_URL));
        follow(&mut table, &long, 0..3);
        assert_eq!(of(&table, 1), []);
        for number in 0..100 {
            follow(&mut table, &format!("http://h/{number}"), 0..3);
            assert!(table.pages[&1].documents.len() <= MAX_DOCUMENTS);
        }
        follow(&mut table, "http://h/new", 0..400);
        assert_eq!(of(&table, 3)[0].0, "http://h/new");
        assert!(of(&table, 3)[0].1 > 0.8 && table.pages[&1].visits < RECENT_VISITS);
        for page in 0..MAX_PAGES as u64 + 9 {
            table.note_visit(page);
            assert!(table.pages.len() <= MAX_PAGES);
        }
    }
}
