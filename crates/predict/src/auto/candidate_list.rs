//! The candidates of a page while their probabilities are collected.
//!
//! A page view has hundreds of candidates, and most drop out. Each attribute therefore stands in a
//! separate list, and each step is a loop without branches over whole lists, which the compiler
//! can vectorise.

use super::mixer::stretch_all;
use super::store::BACKOFF;

/// A context that does not know the asset.
const UNKNOWN: f32 = -1.0;

/// Candidates, by position in every list.
#[derive(Debug, Default)]
pub(super) struct CandidateList {
    pub(super) urls: Vec<u32>,
    /// The estimates of page, kind and site for each candidate, or [`UNKNOWN`].
    pub(super) chances: [Vec<f32>; 3],
    /// Chance of being asked for later in the session, from the page and from its first asset.
    pub(super) later: [Vec<f32>; 2],
    best: Vec<f32>,
}

impl CandidateList {
    /// Empties the lists and makes room for `most` candidates of which nothing is known.
    pub(super) fn clear(&mut self, most: usize) {
        self.urls.clear();
        self.urls.reserve(most);
        let refill = |list: &mut Vec<f32>, value| {
            list.clear();
            list.resize(most, value);
        };
        self.chances
            .iter_mut()
            .for_each(|list| refill(list, UNKNOWN));
        refill(&mut self.later[0], 0.02);
        refill(&mut self.later[1], 0.1);
        refill(&mut self.best, 0.0);
    }

    /// Fills in the estimates of contexts that do not know an asset. A more general context gives
    /// an estimate, reduced by the number of `loads` that this context has seen. The kind and the
    /// site of a page may have dropped an asset that the page knows, because their lists are short.
    /// Their loads include those of the page, so its share of them is another estimate. Drops
    /// candidates without any estimate of `floor` or more, and those that are not `wanted`.
    pub(super) fn back_off(
        &mut self,
        loads: [f32; 3],
        floor: f32,
        mut wanted: impl FnMut(u32) -> bool,
    ) {
        let length = self.urls.len();
        let [page, kind, site] = &mut self.chances;
        let (page, kind, site) = (
            &mut page[..length],
            &mut kind[..length],
            &mut site[..length],
        );
        let shares = [loads[1], loads[2]].map(|all| (loads[0] / larger(all, 1.0)).min(1.0));
        let [soon, late] = &mut self.later;
        let (soon, late, best) = (
            &mut soon[..length],
            &mut late[..length],
            &mut self.best[..length],
        );
        for at in 0..length {
            let known = larger(page[at], 0.0);
            let specific = if site[at] >= 0.0 {
                site[at]
            } else {
                known * shares[1]
            };
            site[at] = specific;
            let general = larger(BACKOFF * specific / (loads[1] + BACKOFF), known * shares[0]);
            let specific = if kind[at] >= 0.0 { kind[at] } else { general };
            kind[at] = specific;
            let general = BACKOFF * specific / (loads[0] + BACKOFF);
            page[at] = if page[at] >= 0.0 { page[at] } else { general };
            best[at] = larger(larger(page[at], kind[at]), larger(soon[at], late[at]));
        }
        let mut kept = 0;
        for at in 0..length {
            if best[at] >= floor && wanted(self.urls[at]) {
                self.urls[kept] = self.urls[at];
                (page[kept], kind[kept], site[kept]) = (page[at], kind[at], site[at]);
                (soon[kept], late[kept]) = (soon[at], late[at]);
                kept += 1;
            }
        }
        self.urls.truncate(kept);
    }

    /// Returns for each candidate: URL, probability at this page, the estimates of kind and site in
    /// log-odds above it, and the log-odds of later requests. The estimates of similar pages lose
    /// weight as the page becomes better known (`loads`).
    pub(super) fn finish(
        &mut self,
        loads: f32,
        mut tell: impl FnMut(u32, f32, [f32; 2], [f32; 2]),
    ) {
        let doubt = 5.0 / (5.0 + loads);
        let length = self.urls.len();
        let [page, kind, site] = &mut self.chances;
        let [soon, late] = &mut self.later;
        let (kind, site, base) = (
            &mut kind[..length],
            &mut site[..length],
            &mut self.best[..length],
        );
        let (page, soon, late) = (&page[..length], &mut soon[..length], &mut late[..length]);
        base.copy_from_slice(page);
        for list in [&mut *base, &mut *kind, &mut *site, &mut *soon, &mut *late] {
            stretch_all(list);
        }
        for (at, &url) in self.urls.iter().enumerate() {
            let general = [(kind[at] - base[at]) * doubt, (site[at] - base[at]) * doubt];
            tell(url, page[at], general, [soon[at], late[at]]);
        }
    }
}

/// Returns the larger of two numbers. Unlike `f32::max` it does not handle NaN.
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_shares_the_loads_of_its_kind_and_site() {
        for (loads, expected) in [
            ([2.0, 20.0, 40.0], [0.08, 0.04]),
            ([2.0, 2.0, 2.0], [0.8, 0.8]),
            ([0.0, 0.0, 0.0], [0.0, 0.0]),
        ] {
            let mut list = CandidateList::default();
            list.clear(1);
            list.urls.push(7);
            list.chances[0][0] = 0.8;
            list.back_off(loads, 0.01, |_| true);
            let found = [list.chances[1][0], list.chances[2][0]];
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{found} with {loads:?}");
            }
        }
    }
}
