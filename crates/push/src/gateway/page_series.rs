//! The series of one page: its resources whose URLs differ in their queries only.
//!
//! Many pages report visits by such images, and no cache may keep them. A push of one serves only a
//! request that waits with the same cookies, and the first response often sets a cookie. The pushes
//! of the others then cost their origin requests for nothing. So two of a series are requested at
//! first. If caches may keep the first response, the others begin. Otherwise their promises are
//! withdrawn, and no more of them are made. A fetch that ends without a response makes room for the
//! next one.

use std::collections::{HashMap, VecDeque};

use tandem_preload::{Kind, Need};

use super::table::FetchId;
use crate::wire::url_hash_of;

/// The resources of a series that are requested before the first response.
const AT_ONCE: usize = 2;

/// The series of a page, by the hashes of their URLs without queries.
#[derive(Default)]
pub(super) struct PageSeries(HashMap<u32, Series>);

/// A series.
#[derive(Default)]
struct Series {
    /// The fetches that did not wait, and of which one may bring the first response.
    begun: Vec<FetchId>,
    /// The fetches that wait for the first response.
    waiting: VecDeque<FetchId>,
    /// True if caches may keep the first response, once that is known.
    is_kept: Option<bool>,
}

/// Returns the series of a resource. Style sheets, scripts and documents belong to none: the page
/// waits for them.
pub(super) fn series_of(url: &str, kind: Kind) -> Option<u32> {
    let (path, _) = url.split_once('?')?;
    let may_report = matches!(kind, Kind::Image | Kind::Fetch | Kind::Other);
    may_report.then(|| url_hash_of(path)).flatten()
}

impl PageSeries {
    /// Returns whether no cache may keep the responses of a need's series.
    pub(super) fn is_unkept(&self, need: &Need) -> bool {
        !self.0.is_empty()
            && series_of(&need.url, need.kind)
                .and_then(|series| self.0.get(&series))
                .is_some_and(|series| series.is_kept == Some(false))
    }

    /// Adds a fetch to a series. Returns whether it waits for the first response.
    pub(super) fn add(&mut self, series: u32, id: FetchId) -> bool {
        let series = self.0.entry(series).or_default();
        if series.is_kept.is_some() {
            return false;
        }
        let waits = series.begun.len() >= AT_ONCE;
        match waits {
            true => series.waiting.push_back(id),
            false => series.begun.push(id),
        }
        waits
    }

    /// Removes a fetch that ends without a response. If it did not wait, returns the one that takes
    /// its place.
    pub(super) fn leave(&mut self, series: u32, id: FetchId) -> Option<FetchId> {
        let series = self.0.get_mut(&series)?;
        let Some(at) = series.begun.iter().position(|begun| *begun == id) else {
            series.waiting.retain(|waiting| *waiting != id);
            return None;
        };
        series.begun.swap_remove(at);
        let next = series.waiting.pop_front()?;
        series.begun.push(next);
        Some(next)
    }

    /// Notes whether caches may keep the first response of a series. Returns the fetches that wait
    /// for it.
    pub(super) fn decide(&mut self, series: u32, is_kept: bool) -> VecDeque<FetchId> {
        let Some(series) = self.0.get_mut(&series) else {
            return VecDeque::new();
        };
        series.is_kept.get_or_insert(is_kept);
        series.begun.clear();
        std::mem::take(&mut series.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_has_one_path_and_several_queries() {
        let of = |url| series_of(url, Kind::Image);
        assert!(of("http://a.test/x.gif?1").is_some());
        assert_eq!(of("http://a.test/x.gif?1"), of("http://a.test/x.gif?2"));
        assert_ne!(of("http://a.test/x.gif?1"), of("http://a.test/y.gif?1"));
        assert_eq!(of("http://a.test/x.gif"), None);
        for kind in [Kind::Style, Kind::Script, Kind::Font, Kind::Document] {
            assert_eq!(series_of("http://a.test/x?1", kind), None);
        }
    }

    #[test]
    fn first_response_decides_on_a_series() {
        for is_kept in [true, false] {
            let mut all = PageSeries::default();
            let waits = (0..8).map(|number| all.add(1, FetchId::from(number)));
            let waiting = waits.filter(|waits| *waits).count();
            assert_eq!(waiting, 6);
            assert!(!all.add(2, FetchId::from(9)), "another series");
            let expected = [2, 3, 4, 5, 6, 7].map(FetchId::from);
            assert_eq!(all.decide(1, is_kept), expected);
            assert_eq!(all.decide(1, !is_kept), [], "the first one decides");
            assert_eq!(all.0[&1].is_kept, Some(is_kept));
            assert!(!all.add(1, FetchId::from(10)), "none waits any more");
        }
    }

    #[test]
    fn fetch_without_a_response_makes_room_for_the_next() {
        let mut all = PageSeries::default();
        for number in 0..5 {
            all.add(1, FetchId::from(number));
        }
        let mut leave = |number| all.leave(1, FetchId::from(number));
        assert_eq!(leave(3), None, "it waits");
        assert_eq!(leave(0), Some(FetchId::from(2)));
        assert_eq!(leave(0), None, "it has left");
        assert_eq!(leave(1), Some(FetchId::from(4)), "3 has left");
        assert_eq!(leave(2), None);
        assert!(!all.add(1, FetchId::from(6)), "one is under way");
        assert!(all.add(1, FetchId::from(7)));
        assert_eq!(all.decide(1, true), [FetchId::from(7)]);
        assert_eq!(all.leave(1, FetchId::from(4)), None);
    }
}
