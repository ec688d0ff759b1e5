//! The parts of their pages' URLs that the requests for a URL name in `Referer`.
//!
//! An element or a script may forbid the `Referer` that the policy of its page permits. The gateway
//! requests a learned resource before it has read the element, so it must not send more than such
//! requests did.

use tandem_predict::ids::IdMap;
use tandem_preload::{Referrer, split};

use crate::fetch_standard::referrer;
use crate::url::is_same_origin;

/// The largest number of URLs in a table. A table that is full starts again.
const MAX_URLS: usize = 1 << 16;

/// The requests in succession with more than the smallest part that end its effect. One page of
/// several may forbid the `Referer`, or one browser of many may not send it.
const ENOUGH: u8 = 8;

/// The part of the URL of its page, style sheet or module that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedPart {
    /// The request has no `Referer`.
    Nothing,
    /// The request names the origin.
    Origin,
    /// The request names the whole URL.
    Whole,
}

impl NamedPart {
    /// Returns the part that a browser's request for `url` names in `Referer`. Within an origin,
    /// the URL of the first page cannot be told from the origin alone, and counts as whole.
    pub fn of(referrer: Option<&str>, url: &str) -> Self {
        match referrer.and_then(split) {
            None => Self::Nothing,
            Some((scheme, authority, "/"))
                if !is_same_origin(&format!("{scheme}://{authority}/"), url) =>
            {
                Self::Origin
            }
            Some(_) => Self::Whole,
        }
    }

    /// Returns the part that a request for `url` names by a policy. `source` is the document, style
    /// sheet or module that makes the request.
    pub(crate) fn by_policy(policy: Referrer, source: &str, url: &str) -> Self {
        match policy {
            _ if referrer(policy, source, url).is_none() => Self::Nothing,
            Referrer::Origin => Self::Origin,
            Referrer::OriginToOthers if !is_same_origin(source, url) => Self::Origin,
            _ => Self::Whole,
        }
    }
}

/// The parts that the requests for one URL have named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenReferrers {
    /// The smallest part, until several requests in succession have named more.
    pub least: NamedPart,
    /// The part that the last request has named.
    pub last: NamedPart,
}

/// The parts that requests have named, by numbers of the URLs.
#[derive(Debug, Default)]
pub struct ReferrerTable {
    /// The parts, and the number of the last requests in succession with more than the smallest.
    urls: IdMap<u64, (SeenReferrers, u8)>,
}

impl ReferrerTable {
    /// Notes a request for a URL.
    pub fn note(&mut self, url: u64, part: NamedPart) {
        if let Some((seen, more)) = self.urls.get_mut(&url) {
            *more = if part > seen.least { *more + 1 } else { 0 };
            if part < seen.least || *more == ENOUGH {
                (seen.least, *more) = (part, 0);
            }
            seen.last = part;
            return;
        }
        if self.urls.len() >= MAX_URLS {
            self.urls.clear();
        }
        let seen = SeenReferrers {
            least: part,
            last: part,
        };
        self.urls.insert(url, (seen, 0));
    }

    /// Returns the parts that requests for a URL have named, if any request has come.
    pub fn seen(&self, url: u64) -> Option<SeenReferrers> {
        self.urls.get(&url).map(|(seen, _)| *seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_is_that_of_the_referrer() {
        let url = "https://a.test/x";
        for (referrer, expected) in [
            (None, NamedPart::Nothing),
            (Some(""), NamedPart::Nothing),
            (Some("https://b.test/"), NamedPart::Origin),
            (Some("https://b.test/?q"), NamedPart::Whole),
            (Some("https://b.test/p"), NamedPart::Whole),
            (Some("https://a.test/"), NamedPart::Whole),
            (Some("https://a.test/p"), NamedPart::Whole),
        ] {
            assert_eq!(NamedPart::of(referrer, url), expected, "{referrer:?}");
        }
    }

    #[test]
    fn part_by_policy_depends_on_the_origin() {
        let (own, other) = ("https://a.test/x", "https://b.test/x");
        for (policy, to_own, to_other) in [
            (Referrer::None, NamedPart::Nothing, NamedPart::Nothing),
            (Referrer::Own, NamedPart::Whole, NamedPart::Nothing),
            (Referrer::Origin, NamedPart::Origin, NamedPart::Origin),
            (
                Referrer::OriginToOthers,
                NamedPart::Whole,
                NamedPart::Origin,
            ),
            (Referrer::Whole, NamedPart::Whole, NamedPart::Whole),
        ] {
            let of = |url| NamedPart::by_policy(policy, "https://a.test/", url);
            assert_eq!([of(own), of(other)], [to_own, to_other], "{policy:?}");
        }
    }

    #[test]
    fn smallest_part_ends_after_eight_requests_with_more() {
        let mut table = ReferrerTable::default();
        let least = |table: &ReferrerTable| table.seen(1).map(|seen| seen.least);
        let whole = |table: &mut ReferrerTable, count| {
            (0..count).for_each(|_| table.note(1, NamedPart::Whole));
        };
        table.note(1, NamedPart::Nothing);
        whole(&mut table, 7);
        table.note(1, NamedPart::Nothing);
        whole(&mut table, 7);
        assert_eq!(least(&table), Some(NamedPart::Nothing));
        whole(&mut table, 1);
        assert_eq!(least(&table), Some(NamedPart::Whole));
    }

    #[test]
    fn table_keeps_the_least_and_the_last_part() {
        let mut table = ReferrerTable::default();
        assert_eq!(table.seen(1), None);
        for (part, least) in [
            (NamedPart::Whole, NamedPart::Whole),
            (NamedPart::Nothing, NamedPart::Nothing),
            (NamedPart::Origin, NamedPart::Nothing),
        ] {
            table.note(1, part);
            let expected = SeenReferrers { least, last: part };
            assert_eq!(table.seen(1), Some(expected));
        }
    }

    #[test]
    fn referrer_table_is_bounded() {
        let mut table = ReferrerTable::default();
        for url in 0..MAX_URLS as u64 + 9 {
            table.note(url, NamedPart::Whole);
            assert!(table.urls.len() <= MAX_URLS);
        }
        assert_eq!(table.seen(0), None);
    }
}
