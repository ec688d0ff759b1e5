//! Tables of records by number. No number is used twice, so a stale number finds no record. A
//! table without records holds no memory.

use std::hash::Hash;

use tandem_predict::ids::IdMap;

/// The number of a record.
pub(super) trait Id: Copy + Eq + Hash + From<u64> {}

/// Defines the numbers of the kinds of records.
macro_rules! ids {
    ($($(#[$doc:meta])* $visibility:vis $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
            $visibility struct $name(u64);

            impl From<u64> for $name {
                fn from(number: u64) -> Self {
                    Self(number)
                }
            }

            impl Id for $name {}
        )*
    };
}

ids! {
    /// The number of a response to a request of the client.
    pub ResponseId;
    /// The number of a fetch, which is the gateway's side of a push.
    pub FetchId;
    /// The number of a page.
    pub(super) PageId;
}

/// The records of one kind.
pub(super) struct Table<I, T> {
    next: u64,
    records: IdMap<I, T>,
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Self {
            next: 0,
            records: IdMap::default(),
        }
    }
}

impl<I: Id, T> Table<I, T> {
    /// Adds a record and returns its number.
    pub(super) fn insert(&mut self, record: T) -> I {
        let id = I::from(self.next);
        self.next += 1;
        self.records.insert(id, record);
        id
    }

    pub(super) fn get(&self, id: I) -> Option<&T> {
        self.records.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.records.get_mut(&id)
    }

    /// Returns the numbers of all records, oldest first.
    pub(super) fn ids(&self) -> Vec<I>
    where
        I: Ord,
    {
        let mut ids: Vec<I> = self.records.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.records.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.records.values_mut()
    }

    pub(super) fn remove(&mut self, id: I) -> Option<T> {
        let record = self.records.remove(&id);
        if self.records.is_empty() {
            self.records = IdMap::default();
        }
        record
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_never_reuses_a_number() {
        let mut table: Table<PageId, char> = Table::default();
        let (a, b) = (table.insert('a'), table.insert('b'));
        assert_eq!(table.remove(b), Some('b'));
        let c = table.insert('c');
        assert_ne!(b, c);
        assert_eq!(
            (table.get(a), table.get(b), table.get(c)),
            (Some(&'a'), None, Some(&'c'))
        );
        if let Some(record) = table.get_mut(a) {
            *record = 'x';
        }
        assert_eq!((table.get(a), table.len()), (Some(&'x'), 2));
        assert_eq!(table.ids(), [a, c]);
        assert_eq!(table.remove(b), None);
    }
}
