//! Records by number, oldest first. Their numbers rise.
//!
//! Most records are removed soon and in nearly the order of their numbers, so a queue with gaps
//! costs a fraction of a tree.

use std::collections::VecDeque;

/// The number of gaps that a queue may have besides as many as it has records.
const SPARE: usize = 16;

/// Records in the order of their numbers.
pub(super) struct ByAge<T> {
    /// The records, and a gap for each that was removed. The first is no gap.
    queue: VecDeque<(u64, Option<T>)>,
    /// The number of records.
    len: usize,
}

impl<T> Default for ByAge<T> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> ByAge<T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds a record, whose number is larger than all earlier ones.
    pub(super) fn push(&mut self, number: u64, record: T) {
        debug_assert!(
            self.queue.back().is_none_or(|(last, _)| *last < number),
            "numbers rise"
        );
        self.queue.push_back((number, Some(record)));
        self.len += 1;
    }

    /// Removes the record with this number.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let at = self
            .queue
            .binary_search_by_key(&number, |(known, _)| *known);
        let record = self.queue[at.ok()?].1.take()?;
        self.len -= 1;
        self.tidy();
        Some(record)
    }

    /// Returns the oldest record.
    pub(super) fn first(&self) -> Option<&T> {
        self.queue.front()?.1.as_ref()
    }

    #[cfg(test)]
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.queue.iter().filter_map(|(_, record)| record.as_ref())
    }

    /// Removes the oldest record if it meets the condition. Returns it with its number.
    pub(super) fn pop_first_if(&mut self, meets: impl Fn(&T) -> bool) -> Option<(u64, T)> {
        self.first().filter(|record| meets(record))?;
        let (number, record) = self.queue.pop_front()?;
        self.len -= 1;
        self.tidy();
        Some((number, record?))
    }

    /// Removes the gaps at the front, and all gaps if there are many.
    fn tidy(&mut self) {
        while let Some((_, None)) = self.queue.front() {
            self.queue.pop_front();
        }
        if self.queue.len() > 2 * self.len + SPARE {
            self.queue.retain(|(_, record)| record.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn by_age_agrees_with_a_tree(
            steps in prop::collection::vec((0u8..4, 0u64..80), 1..300),
        ) {
            let (mut records, mut tree) = (ByAge::default(), BTreeMap::new());
            let mut issued = 0;
            for (step, value) in steps {
                match step {
                    0 | 1 => {
                        issued += 1 + value % 3;
                        records.push(issued, value);
                        tree.insert(issued, value);
                    }
                    2 => prop_assert_eq!(records.remove(value), tree.remove(&value)),
                    _ => {
                        let first = tree.first_entry().filter(|first| *first.get() < 40);
                        let first = first.map(|first| first.remove_entry());
                        prop_assert_eq!(records.pop_first_if(|value| *value < 40), first);
                    }
                }
                prop_assert_eq!(records.len(), tree.len());
                prop_assert_eq!(records.first(), tree.values().next());
                prop_assert!(records.queue.len() <= 2 * tree.len() + SPARE);
            }
        }
    }

    #[test]
    fn by_age_bounds_its_gaps_behind_an_old_record() {
        let mut records = ByAge::default();
        records.push(0, ());
        for number in 1..10_000 {
            records.push(number, ());
            assert!(records.remove(number).is_some());
        }
        assert_eq!(records.len(), 1);
        assert!(records.queue.len() <= 2 + SPARE);
    }
}
