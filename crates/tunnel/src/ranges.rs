//! A set of disjoint half-open ranges: offsets of data out of order, or identifiers not seen yet.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges that do not touch each other, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    /// The end of each range by its start.
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds a range; returns the number of offsets that were not in the set before.
    pub(crate) fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let (mut start, mut end) = (range.start, range.end);
        let mut added = end - start;
        // The range before may reach into this one or touch it.
        if let Some((&before, &until)) = self.ends.range(..=start).next_back()
            && until >= start
        {
            added -= until.min(end) - start;
            start = before;
            end = end.max(until);
        }
        let mut from = range.start + 1;
        while let Some((&next, &until)) = self.ends.range(from..=end).next() {
            added -= until.min(range.end).saturating_sub(next);
            end = end.max(until);
            self.ends.remove(&next);
            from = next + 1;
        }
        self.ends.insert(start, end);
        added
    }

    /// Removes all offsets before `end`.
    pub(crate) fn remove_before(&mut self, end: u64) {
        while let Some((&start, &until)) = self.ends.first_key_value()
            && start < end
        {
            self.ends.remove(&start);
            if until > end {
                self.ends.insert(end, until);
            }
        }
    }

    /// Removes one offset; returns whether it was in the set.
    pub(crate) fn remove(&mut self, offset: u64) -> bool {
        let Some((&start, &end)) = self.ends.range(..=offset).next_back() else {
            return false;
        };
        if end <= offset {
            return false;
        }
        self.ends.remove(&start);
        if start < offset {
            self.ends.insert(start, offset);
        }
        if offset + 1 < end {
            self.ends.insert(offset + 1, end);
        }
        true
    }

    /// Returns the range that contains `offset`.
    pub(crate) fn containing(&self, offset: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.ends.range(..=offset).next_back()?;
        (offset < end).then_some(start..end)
    }

    /// Returns the ranges from the last to the first.
    pub(crate) fn descending(&self) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().rev().map(|(&start, &end)| start..end)
    }

    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn range_set_equals_a_set_of_offsets(
            steps in prop::collection::vec((0u64..60, 0u64..12, 0u8..8), 1..60),
        ) {
            let (mut set, mut plain) = (RangeSet::default(), BTreeSet::new());
            for (start, len, kind) in steps {
                match kind {
                    0 => {
                        set.remove_before(start);
                        plain.retain(|&offset| offset >= start);
                    }
                    1 => prop_assert_eq!(set.remove(start), plain.remove(&start)),
                    _ => {
                        let added = (start..start + len).filter(|&o| plain.insert(o)).count();
                        prop_assert_eq!(set.insert(start..start + len), added as u64);
                    }
                }
                let all: BTreeSet<u64> = set.descending().flatten().collect();
                prop_assert_eq!(&all, &plain);
                let mut ranges: Vec<_> = set.descending().collect();
                ranges.reverse();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert_eq!(set.containing(start).is_some(), plain.contains(&start));
            }
        }
    }
}
