//! The index of the responses that a cache keeps on a disk, by the names of their targets.
//!
//! The index is in memory and is exact: a response that leaves it is never served again, even if
//! its file still exists. The program deletes such files later. Space and entries are bounded.
//! Above a bound, the oldest response goes that no request has used since its last turn (second
//! chance). No change takes long, since all event loops wait for the lock of the cache.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::names::Name;

/// The unit in which file systems give space to files, in bytes.
const BLOCK: u64 = 4096;

/// The largest number of entries of an index.
const MAX_ENTRIES: usize = 1 << 17;

/// The most entries that get a second chance for one new entry. After them the next ones go, used
/// or not.
const MAX_CHANCES: usize = 64;

/// The index of the files with responses.
#[derive(Debug)]
pub struct Index {
    max_bytes: u64,
    max_entries: usize,
    bytes: u64,
    entries: HashMap<Name, Entry>,
    /// The names of the entries by their turns.
    order: BTreeMap<u64, Name>,
    /// The latest number of an entry, or its latest turn.
    last_number: u64,
    /// The files to delete. None of them is an entry.
    doomed: HashSet<Name>,
    /// The file that the program writes at present.
    writing: Option<Name>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    turn: u64,
    bytes: u64,
    /// A request has used the entry since its last turn.
    is_used: bool,
}

impl Index {
    /// Creates an empty index for files with `max_bytes` in all.
    pub fn new(max_bytes: u64) -> Self {
        let most = usize::try_from(max_bytes / BLOCK).unwrap_or(usize::MAX);
        Self {
            max_bytes,
            max_entries: most.clamp(1, MAX_ENTRIES),
            bytes: 0,
            entries: HashMap::new(),
            order: BTreeMap::new(),
            last_number: 0,
            doomed: HashSet::new(),
            writing: None,
        }
    }

    /// The bytes of all entries on the disk.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a file that holds `bytes`. Other entries go for it, or the new one if it is too long.
    pub fn insert(&mut self, name: Name, bytes: u64) {
        self.remove(&name);
        let bytes = bytes.max(1).next_multiple_of(BLOCK);
        if bytes > self.max_bytes {
            self.doomed.insert(name);
            return;
        }
        let mut chances = MAX_CHANCES;
        while self.bytes + bytes > self.max_bytes || self.entries.len() >= self.max_entries {
            self.evict(&mut chances);
        }
        let number = self.next_number();
        self.bytes += bytes;
        self.doomed.remove(&name);
        self.order.insert(number, name);
        let entry = Entry {
            number,
            turn: number,
            bytes,
            is_used: false,
        };
        self.entries.insert(name, entry);
    }

    const fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Removes the oldest entry without use, after at most so many `chances` of older ones.
    fn evict(&mut self, chances: &mut usize) {
        while let Some((_, name)) = self.order.pop_first() {
            let turn = self.next_number();
            match self.entries.get_mut(&name) {
                Some(entry) if entry.is_used && *chances > 0 => {
                    *chances -= 1;
                    entry.is_used = false;
                    entry.turn = turn;
                    self.order.insert(turn, name);
                }
                _ => {
                    self.remove(&name);
                    return;
                }
            }
        }
    }

    /// Returns the number of an entry that a request wants to use.
    pub(crate) fn find(&mut self, name: &Name) -> Option<u64> {
        let entry = self.entries.get_mut(name)?;
        entry.is_used = true;
        Some(entry.number)
    }

    /// Returns true if the entry with this number is still the one of the name.
    pub(crate) fn holds(&self, name: &Name, number: u64) -> bool {
        let entry = self.entries.get(name);
        entry.is_some_and(|entry| entry.number == number)
    }

    /// Returns true if the name has an entry.
    pub fn contains(&self, name: &Name) -> bool {
        self.entries.contains_key(name)
    }

    /// Removes an entry. A file of this name that is written at present does not become one.
    /// Returns true if there was an entry.
    pub fn remove(&mut self, name: &Name) -> bool {
        if self.writing.as_ref() == Some(name) {
            self.writing = None;
        }
        let Some(entry) = self.entries.remove(name) else {
            return false;
        };
        self.bytes -= entry.bytes;
        self.order.remove(&entry.turn);
        self.doomed.insert(*name);
        true
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.writing = None;
        self.bytes = 0;
        self.order.clear();
        let names = self.entries.drain().map(|(name, _)| name);
        self.doomed.extend(names);
    }

    /// Notes a file that is to be deleted.
    pub fn doom(&mut self, name: Name) {
        if !self.contains(&name) {
            self.doomed.insert(name);
        }
    }

    /// Takes at most `limit` files to delete. The caller deletes them before it writes another
    /// file.
    pub fn take_doomed(&mut self, limit: usize) -> Vec<Name> {
        let names: Vec<_> = self.doomed.iter().take(limit).copied().collect();
        for name in &names {
            self.doomed.remove(name);
        }
        names
    }

    /// Notes that the program begins to write a file.
    pub(crate) const fn begin(&mut self, name: Name) {
        self.writing = Some(name);
    }

    /// Adds the file that was begun. Returns false if its response changed meanwhile: the caller
    /// then deletes the file.
    pub fn finish(&mut self, name: Name, bytes: u64) -> bool {
        let is_current = self.writing.take() == Some(name);
        if is_current {
            self.insert(name, bytes);
        }
        is_current && self.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn name(number: u8) -> Name {
        [number; 16]
    }

    #[test]
    fn entry_without_use_makes_room() {
        let mut index = Index::new(3 * BLOCK);
        (1..=3).for_each(|number| index.insert(name(number), 1));
        assert!(index.find(&name(1)).is_some());
        index.insert(name(4), 1);
        assert!(index.contains(&name(1)) && !index.contains(&name(2)));
        assert_eq!(index.take_doomed(9), [name(2)]);
        // The use of the first one counted once.
        index.insert(name(5), 1);
        index.insert(name(6), 1);
        assert!(!index.contains(&name(1)) && index.contains(&name(4)));
    }

    /// A walk past all used entries would keep the cache locked for milliseconds.
    #[test]
    fn eviction_gives_a_bounded_number_of_chances() {
        let most = 3 * MAX_CHANCES as u64;
        let mut index = Index::new(most * BLOCK);
        let names: Vec<Name> = (0..most).map(|it| u128::from(it).to_be_bytes()).collect();
        for name in &names {
            index.insert(*name, 1);
            assert!(index.find(name).is_some());
        }
        index.insert(name(255), 2 * BLOCK);
        assert_eq!(index.len() as u64, most - 1);
        let is_gone = |at: usize| !index.contains(&names[at]);
        assert!(is_gone(MAX_CHANCES) && is_gone(MAX_CHANCES + 1));
    }

    #[test]
    fn file_above_the_bound_is_deleted() {
        let mut index = Index::new(2 * BLOCK);
        index.insert(name(1), 1);
        index.begin(name(2));
        assert!(!index.finish(name(2), 2 * BLOCK + 1));
        assert!(index.contains(&name(1)));
        assert_eq!(index.take_doomed(9), [name(2)]);
    }

    #[test]
    fn change_during_a_write_prevents_the_entry() {
        let mut index = Index::new(1 << 20);
        for change in [
            |index: &mut Index| {
                index.remove(&name(1));
            },
            |index: &mut Index| index.clear(),
        ] {
            index.begin(name(1));
            change(&mut index);
            assert!(!index.finish(name(1), 1) && index.is_empty());
        }
        index.begin(name(1));
        index.remove(&name(2));
        assert!(index.finish(name(1), 1) && index.len() == 1);
    }

    #[test]
    fn replaced_file_has_another_number() {
        let mut index = Index::new(1 << 20);
        index.insert(name(1), 1);
        let number = index.find(&name(1)).expect("an entry");
        index.insert(name(1), 1);
        assert!(!index.holds(&name(1), number));
        assert!(index.take_doomed(9).is_empty(), "the new file stays");
    }

    proptest::proptest! {
        /// Each file is an entry, or is to be deleted.
        #[test]
        fn random_changes_lose_no_file(
            operations in proptest::collection::vec((0u8..8, 0u8..12, 0u64..12_000), 1..200),
            max_blocks in 1u64..8,
        ) {
            let mut index = Index::new(max_blocks * BLOCK);
            let mut files: HashSet<Name> = HashSet::new();
            for (operation, number, bytes) in operations {
                let name = name(number);
                match operation {
                    0..=2 => {
                        index.begin(name);
                        if operation == 1 {
                            index.remove(&[number / 2; 16]);
                        }
                        files.insert(name);
                        if !index.finish(name, bytes) {
                            files.remove(&name);
                            index.doom(name);
                        }
                    }
                    3 | 4 => {
                        let _ = index.find(&name);
                    }
                    5 => {
                        index.remove(&name);
                    }
                    6 => {
                        for name in index.take_doomed(3) {
                            files.remove(&name);
                        }
                    }
                    _ if number == 0 => index.clear(),
                    _ => {}
                }
                proptest::prop_assert!(index.bytes <= max_blocks * BLOCK);
                proptest::prop_assert!(index.len() as u64 <= max_blocks);
                let sum: u64 = index.entries.values().map(|entry| entry.bytes).sum();
                proptest::prop_assert_eq!(sum, index.bytes);
                proptest::prop_assert_eq!(index.order.len(), index.len());
                for name in &files {
                    let known = [index.contains(name), index.doomed.contains(name)];
                    proptest::prop_assert!(known[0] != known[1]);
                }
                proptest::prop_assert!(index.entries.keys().all(|name| files.contains(name)));
            }
        }
    }
}
