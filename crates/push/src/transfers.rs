//! The resources that the visits to a page transfer, at a gateway with one user.
//!
//! A browser with a full cache requests a page and transfers few of its resources. A push of a body
//! is of use only if the visit transfers it. The table counts visits from the first request on,
//! before any redirect. The share of the visits that transfer a resource is thus the probability of
//! a chain: the browser follows the redirects, requests the resource, and gets no 304.
//!
//! The probability is that of the rule of succession, so four visits that all transfer a resource
//! give 5/6. If one visit has not transferred it, nine of ten visits must have.

use tandem_predict::ids::IdMap;

/// The least probability of a transfer at which a resource is sent to a browser that shows no
/// earlier visit.
pub(crate) const LIKELY: f64 = 0.83;

/// The visits to a page whose outcomes are remembered.
const MEMORY: u32 = u16::BITS;

/// The number of pages in a table. A table that is full starts again.
const MAX_PAGES: usize = 1 << 10;

/// The number of resources that are counted for one page.
const MAX_RESOURCES: usize = 512;

/// The transfers of visits, by numbers of browsers and pages.
#[derive(Debug, Default)]
pub struct TransferTable(IdMap<u64, VisitedPage>);

#[derive(Debug, Default)]
struct VisitedPage {
    visits: u32,
    resources: Vec<Transferred>,
}

/// A resource that a visit has transferred.
#[derive(Debug)]
struct Transferred {
    /// The [`url_hash`](crate::wire::url_hash) of its URL.
    url: u32,
    /// The first visit that transferred it.
    first: u32,
    /// The outcomes of the visits up to `last`, whose outcome is the lowest bit.
    outcomes: u16,
    last: u32,
}

impl Transferred {
    /// Returns the outcomes of the last visits, of which `visit` is the lowest bit.
    fn at(&self, visit: u32) -> u16 {
        self.outcomes.checked_shl(visit - self.last).unwrap_or(0)
    }

    /// Returns the visits that transferred the resource, and those that could have.
    fn share(&self, visits: u32) -> (u32, u32) {
        let outcomes = self.at(visits);
        (outcomes.count_ones(), (visits - self.first + 1).min(MEMORY))
    }
}

/// The resources of a page by the probability that a visit transfers them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownTransfers {
    /// The URL hashes of those that nearly all visits transfer.
    pub likely: Vec<u32>,
    /// The URL hashes of those that too many visits did without.
    pub unlikely: Vec<u32>,
}

impl TransferTable {
    /// Notes that a visit to a page begins. Returns its number.
    pub fn begin_visit(&mut self, page: u64) -> u32 {
        if self.0.len() >= MAX_PAGES && !self.0.contains_key(&page) {
            self.0.clear();
        }
        let page = self.0.entry(page).or_default();
        page.visits = page.visits.saturating_add(1);
        page.visits
    }

    /// Notes that a visit has transferred a resource.
    pub fn note(&mut self, page: u64, visit: u32, url: u32) {
        let Some(page) = self.0.get_mut(&page) else {
            return;
        };
        let visits = page.visits;
        // The table may have started again during the visit.
        let Some(bit) = visits
            .checked_sub(visit)
            .and_then(|ago| 1_u16.checked_shl(ago))
        else {
            return;
        };
        let known = page.resources.iter_mut().find(|it| it.url == url);
        if let Some(known) = known {
            known.outcomes = known.at(visits) | bit;
            known.last = visits;
            return;
        }
        if page.resources.len() >= MAX_RESOURCES {
            page.resources.retain(|it| it.at(visits) != 0);
        }
        if page.resources.len() < MAX_RESOURCES {
            page.resources.push(Transferred {
                url,
                first: visit,
                outcomes: bit,
                last: visits,
            });
        }
    }

    /// Returns the resources that the next visit to a page is likely and unlikely to transfer.
    /// Those of which too few visits are known are in neither list.
    pub fn of(&self, page: u64) -> KnownTransfers {
        let mut known = KnownTransfers::default();
        let Some(page) = self.0.get(&page) else {
            return known;
        };
        for resource in &page.resources {
            let (transferred, visits) = resource.share(page.visits);
            let probability = f64::from(transferred + 1) / f64::from(visits + 2);
            if probability >= LIKELY {
                known.likely.push(resource.url);
            } else if transferred < visits {
                known.unlikely.push(resource.url);
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets visits to page 1 transfer resource 7 or not, and returns the state after the last.
    fn after(transfers: &[bool]) -> KnownTransfers {
        let mut table = TransferTable::default();
        for is_transferred in transfers {
            let visit = table.begin_visit(1);
            if *is_transferred {
                table.note(1, visit, 7);
            }
        }
        table.of(1)
    }

    const UNKNOWN: KnownTransfers = KnownTransfers {
        likely: Vec::new(),
        unlikely: Vec::new(),
    };

    fn likely() -> KnownTransfers {
        KnownTransfers {
            likely: vec![7],
            ..UNKNOWN
        }
    }

    fn unlikely() -> KnownTransfers {
        KnownTransfers {
            unlikely: vec![7],
            ..UNKNOWN
        }
    }

    #[test]
    fn four_transfers_make_another_likely() {
        assert_eq!(after(&[]), UNKNOWN);
        assert_eq!(after(&[true; 3]), UNKNOWN);
        assert_eq!(after(&[true; 4]), likely());
        assert_eq!(
            after(&[false, false, true, true, true, true]),
            likely(),
            "the resource may be new"
        );
    }

    #[test]
    fn visit_without_a_transfer_takes_nine_to_outweigh() {
        let mut visits = vec![true, true, true, true, false];
        assert_eq!(after(&visits), unlikely());
        visits.extend([true; 4]);
        assert_eq!(after(&visits), unlikely());
        visits.push(true);
        assert_eq!(after(&visits), likely());
        assert_eq!(after(&[true, false]), unlikely());
    }

    #[test]
    fn old_visits_are_forgotten() {
        let mut visits = vec![true; 100];
        visits.extend([false; 3]);
        assert_eq!(after(&visits), unlikely());
        visits.extend([true; MEMORY as usize]);
        assert_eq!(after(&visits), likely());
        visits.extend([false; 100]);
        assert_eq!(after(&visits), unlikely());
    }

    #[test]
    fn transfers_belong_to_their_visit() {
        let mut table = TransferTable::default();
        for _ in 0..4 {
            let visit = table.begin_visit(1);
            table.note(1, visit, 7);
        }
        let (first, second) = (table.begin_visit(1), table.begin_visit(1));
        table.note(1, second, 7);
        assert_eq!(table.of(1), unlikely(), "the first visit has not");
        table.note(1, first, 7);
        table.note(1, first, 7);
        assert_eq!(table.of(1), likely());
        table.note(1, second + 1, 7);
        table.note(2, 1, 7);
        assert_eq!((table.of(1), table.of(2)), (likely(), UNKNOWN));
    }

    #[test]
    fn transfers_are_bounded() {
        let mut table = TransferTable::default();
        for page in 0..2 * MAX_PAGES as u64 {
            table.begin_visit(page);
            assert!(table.0.len() <= MAX_PAGES);
        }
        for url in 0..2 * MAX_RESOURCES as u32 {
            table.note(MAX_PAGES as u64, 1, url);
        }
        assert_eq!(table.0[&(MAX_PAGES as u64)].resources.len(), MAX_RESOURCES);
        for _ in 0..MEMORY {
            table.begin_visit(MAX_PAGES as u64);
        }
        let visit = table.begin_visit(MAX_PAGES as u64);
        table.note(MAX_PAGES as u64, visit, u32::MAX);
        let resources = &table.0[&(MAX_PAGES as u64)].resources;
        assert_eq!(resources.len(), 1, "old ones make way");
    }
}
