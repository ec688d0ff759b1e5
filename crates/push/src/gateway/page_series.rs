//! The series of one page: its resources whose URLs differ in their queries only. Without a
//! gateway, all images that look like counters are one series.
//!
//! Many pages report visits by such images, and no cache may keep them. A push of one serves only a
//! request that waits with the same cookies, and the first response often sets a cookie. The pushes
//! of the others then cost their origin requests for nothing. So two of a series are requested at
//! first, and one of the counters. If caches may keep the first response, the others begin.
//! Otherwise their promises are withdrawn, and no more of them are made. For counters, the cookies
//! of the first response decide instead: the others begin if it changes no cookie. A fetch that
//! ends without a response makes room for the next one.

use std::collections::{HashMap, VecDeque};

use tandem_preload::Kind;

use super::table::FetchId;
use crate::wire::url_hash_of;

/// The endings of names of pictures. Counters are GIF images or have another ending.
const PICTURES: [&str; 9] = [
    "avif", "bmp", "ico", "jpeg", "jpg", "jxl", "png", "svg", "webp",
];

/// The series of a page, by their numbers.
#[derive(Default)]
pub(super) struct PageSeries(HashMap<SeriesNumber, Series>);

/// The number of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SeriesNumber {
    /// The resources whose URLs without queries have this hash.
    Path(u32),
    /// The images that look like counters.
    Counters,
}

/// A series.
#[derive(Default)]
struct Series {
    /// The fetches that did not wait, and of which one may bring the first response.
    begun: Vec<FetchId>,
    /// The fetches that wait for the first response.
    waiting: VecDeque<FetchId>,
    /// True if the others may begin after the first response, once that is known.
    may_begin: Option<bool>,
}

impl SeriesNumber {
    /// Returns the series of a resource. Style sheets, scripts and documents belong to none: the
    /// page waits for them.
    pub(super) fn of(url: &str, kind: Kind) -> Option<Self> {
        let (path, _) = url.split_once('?')?;
        let may_report = matches!(kind, Kind::Image | Kind::Fetch | Kind::Other);
        let hash = url_hash_of(path).filter(|_| may_report);
        hash.map(Self::Path)
    }

    /// Returns the series of an image whose URL looks like that of a counter: it has a query, and
    /// does not name a picture.
    pub(super) fn of_counter(url: &str, kind: Kind) -> Option<Self> {
        let (path, _) = url.split_once('?')?;
        let (_, name) = path.rsplit_once('/')?;
        let ending = name.rsplit_once('.').map(|(_, ending)| ending);
        let is_own = |picture: &str| ending.is_some_and(|own| own.eq_ignore_ascii_case(picture));
        let names_picture = PICTURES.iter().any(|picture| is_own(picture));
        (kind == Kind::Image && !names_picture).then_some(Self::Counters)
    }

    /// Returns the number of resources that are requested before the first response.
    const fn at_once(self) -> usize {
        match self {
            Self::Path(_) => 2,
            Self::Counters => 1,
        }
    }
}

impl PageSeries {
    /// Returns whether no more fetches of a series may begin.
    pub(super) fn is_left(&self, series: SeriesNumber) -> bool {
        let series = self.0.get(&series);
        series.is_some_and(|series| series.may_begin == Some(false))
    }

    /// Lets all counters begin at once. The browser requested them at its last visit, so it has
    /// their cookies.
    pub(super) fn free_counters(&mut self) {
        let counters = self.0.entry(SeriesNumber::Counters).or_default();
        counters.may_begin.get_or_insert(true);
    }

    /// Adds a fetch to a series. Returns whether it waits for the first response.
    pub(super) fn add(&mut self, number: SeriesNumber, id: FetchId) -> bool {
        let series = self.0.entry(number).or_default();
        if series.may_begin.is_some() {
            return false;
        }
        let waits = series.begun.len() >= number.at_once();
        match waits {
            true => series.waiting.push_back(id),
            false => series.begun.push(id),
        }
        waits
    }

    /// Removes a fetch that ends without a response. If it did not wait, returns the one that takes
    /// its place.
    pub(super) fn leave(&mut self, series: SeriesNumber, id: FetchId) -> Option<FetchId> {
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

    /// Notes whether the other fetches of a series may begin after its first response. Returns
    /// those that wait for it.
    pub(super) fn decide(&mut self, series: SeriesNumber, may_begin: bool) -> VecDeque<FetchId> {
        let Some(series) = self.0.get_mut(&series) else {
            return VecDeque::new();
        };
        series.may_begin.get_or_insert(may_begin);
        series.begun.clear();
        std::mem::take(&mut series.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: SeriesNumber = SeriesNumber::Path(1);

    #[test]
    fn series_has_one_path_and_several_queries() {
        let of = |url| SeriesNumber::of(url, Kind::Image);
        assert!(of("http://a.test/x.gif?1").is_some());
        assert_eq!(of("http://a.test/x.gif?1"), of("http://a.test/x.gif?2"));
        assert_ne!(of("http://a.test/x.gif?1"), of("http://a.test/y.gif?1"));
        assert_eq!(of("http://a.test/x.gif"), None);
        for kind in [Kind::Style, Kind::Script, Kind::Font, Kind::Document] {
            assert_eq!(SeriesNumber::of("http://a.test/x?1", kind), None);
        }
    }

    #[test]
    fn counters_have_queries_and_name_no_pictures() {
        let of = |url, kind| SeriesNumber::of_counter(url, kind).is_some();
        for (url, expected) in [
            ("http://a.test/count?1", true),
            ("http://a.test/a.b/?url=/x.png", true),
            ("http://a.test/count.gif?1", true),
            ("http://a.test/matomo.php?idsite=1", true),
            ("http://a.test/x.JPG?w=300", false),
            ("http://a.test/x.webp?v=2", false),
            ("http://a.test/count.gif", false),
            ("http://a.test/count", false),
        ] {
            assert_eq!(of(url, Kind::Image), expected, "{url}");
            assert!(!of(url, Kind::Fetch), "{url}");
        }
    }

    #[test]
    fn one_counter_comes_first() {
        let mut all = PageSeries::default();
        let counters = SeriesNumber::Counters;
        assert!(!all.add(counters, FetchId::from(1)));
        assert!(all.add(counters, FetchId::from(2)));
        assert!(!all.is_left(counters));
        assert_eq!(all.decide(counters, false), [FetchId::from(2)]);
        assert!(all.is_left(counters));
    }

    #[test]
    fn first_response_decides_on_a_series() {
        for may_begin in [true, false] {
            let mut all = PageSeries::default();
            let waits = (0..8).map(|number| all.add(FIRST, FetchId::from(number)));
            let waiting = waits.filter(|waits| *waits).count();
            assert_eq!(waiting, 6);
            assert!(
                !all.add(SeriesNumber::Path(2), FetchId::from(9)),
                "another series"
            );
            let expected = [2, 3, 4, 5, 6, 7].map(FetchId::from);
            assert_eq!(all.decide(FIRST, may_begin), expected);
            assert_eq!(all.decide(FIRST, !may_begin), [], "the first one decides");
            assert_eq!(all.0[&FIRST].may_begin, Some(may_begin));
            assert!(!all.add(FIRST, FetchId::from(10)), "none waits any more");
        }
    }

    #[test]
    fn fetch_without_a_response_makes_room_for_the_next() {
        let mut all = PageSeries::default();
        for number in 0..5 {
            all.add(FIRST, FetchId::from(number));
        }
        let mut leave = |number| all.leave(FIRST, FetchId::from(number));
        assert_eq!(leave(3), None, "it waits");
        assert_eq!(leave(0), Some(FetchId::from(2)));
        assert_eq!(leave(0), None, "it has left");
        assert_eq!(leave(1), Some(FetchId::from(4)), "3 has left");
        assert_eq!(leave(2), None);
        assert!(!all.add(FIRST, FetchId::from(6)), "one is under way");
        assert!(all.add(FIRST, FetchId::from(7)));
        assert_eq!(all.decide(FIRST, true), [FetchId::from(7)]);
        assert_eq!(all.leave(FIRST, FetchId::from(4)), None);
    }
}
