//! Small dense numbers for strings, and the containers keyed by them.
//!
//! Everything hot in this crate works on 32-bit ids. Ids are handed out by this crate, never chosen
//! by a peer, so a multiplicative hash is safe for them; strings that come from outside keep the
//! standard library's keyed hash.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

/// Multiplicative hasher for integer keys that this crate hands out itself.
#[derive(Default, Clone, Copy)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        // The table takes its tag from the high bits and its slot from the low ones; mix the good
        // high bits down.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Map keyed by ids.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Entries up to which a scan beats a hash table.
const SCAN_LIMIT: usize = 24;

/// Insertion-ordered map from an id to a small value, meant for the many that stay tiny and the few
/// that grow large.
#[derive(Debug, Clone)]
pub struct SmallMap<V> {
    keys: Vec<u32>,
    values: Vec<V>,
    /// Once the map is large, the position of each key in a slot near the one that its hash names,
    /// and [`NOWHERE`] elsewhere: a power of two of slots, at most five of eight in use.
    slots: Vec<u32>,
}

/// Marks a slot without a position.
const NOWHERE: u32 = u32::MAX;

impl<V> Default for SmallMap<V> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            values: Vec::new(),
            slots: Vec::new(),
        }
    }
}

impl<V> SmallMap<V> {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn position(&self, key: u32) -> Option<usize> {
        if self.slots.is_empty() {
            return self.keys.iter().position(|&k| k == key);
        }
        let mut slot = self.home(key);
        loop {
            match self.slots[slot] {
                NOWHERE => return None,
                at if self.keys[at as usize] == key => return Some(at as usize),
                _ => slot = self.next(slot),
            }
        }
    }

    /// The slot at which the search for a key begins.
    fn home(&self, key: u32) -> usize {
        let hash = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 32) as usize & (self.slots.len() - 1)
    }

    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The home of the key in a slot, if there is one.
    fn home_of_slot(&self, slot: usize) -> Option<usize> {
        let key = self.keys.get(self.slots[slot] as usize);
        key.map(|&key| self.home(key))
    }

    /// The slot of a position that is in use.
    fn slot_of(&self, at: usize) -> usize {
        let mut slot = self.home(self.keys[at]);
        while self.slots[slot] as usize != at {
            slot = self.next(slot);
        }
        slot
    }

    /// Returns whether `key` is present.
    #[must_use]
    pub fn contains(&self, key: u32) -> bool {
        self.position(key).is_some()
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: u32) -> Option<&V> {
        self.position(key).map(|at| &self.values[at])
    }

    /// The value of `key`, mutably.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut V> {
        self.position(key).map(|at| &mut self.values[at])
    }

    /// The value of `key`, put there first if absent.
    pub fn entry(&mut self, key: u32, default: V) -> &mut V {
        let at = self
            .position(key)
            .unwrap_or_else(|| self.push(key, default));
        &mut self.values[at]
    }

    fn push(&mut self, key: u32, value: V) -> usize {
        let at = self.keys.len();
        self.keys.push(key);
        self.values.push(value);
        if self.slots.is_empty() && at < SCAN_LIMIT {
            return at;
        }
        if self.keys.len() * 8 > self.slots.len() * 5 {
            let slots = (self.keys.len() * 8).div_ceil(5).next_power_of_two();
            self.slots = vec![NOWHERE; slots];
            (0..at).for_each(|at| self.fill_slot(at));
        }
        self.fill_slot(at);
        at
    }

    fn fill_slot(&mut self, at: usize) {
        let mut slot = self.home(self.keys[at]);
        while self.slots[slot] != NOWHERE {
            slot = self.next(slot);
        }
        self.slots[slot] = at as u32;
    }

    /// Removes `key`; the last entry takes its place.
    pub fn remove(&mut self, key: u32) -> Option<V> {
        let at = self.position(key)?;
        let last = self.keys.len() - 1;
        let slots = (!self.slots.is_empty()).then(|| (self.slot_of(at), self.slot_of(last)));
        self.keys.swap_remove(at);
        if let Some((mut gap, last)) = slots {
            self.slots[last] = at as u32;
            let mask = self.slots.len() - 1;
            while let Some(slot) = movable(mask, gap, |slot| self.home_of_slot(slot)) {
                self.slots[gap] = self.slots[slot];
                gap = slot;
            }
            self.slots[gap] = NOWHERE;
        }
        Some(self.values.swap_remove(at))
    }

    /// Keys and values in order of insertion (as long as nothing was removed).
    pub fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        self.keys.iter().copied().zip(&self.values)
    }

    /// The keys in the same order.
    #[must_use]
    pub fn keys(&self) -> &[u32] {
        &self.keys
    }
}

/// A table that finds numbers by strings kept elsewhere, through keyed hashes. The strings come
/// from outside. The key is a secret of the process, so that an attacker cannot choose strings with
/// equal hashes.
///
/// Nearly every look-up in a large table misses the processor's caches. Therefore a slot has eight
/// bytes, and a search goes through neighbouring slots.
#[derive(Debug, Clone, Default)]
pub struct Index {
    secret: RandomState,
    /// A power of two of them, or none.
    slots: Vec<Slot>,
    used: usize,
}

/// A number with the lower half of its string's hash.
#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u32,
    number: u32,
}

impl Slot {
    const EMPTY: Self = Self {
        hash: 0,
        number: u32::MAX,
    };

    fn is_empty(self) -> bool {
        self.number == Self::EMPTY.number
    }
}

/// The hash of a string that is not in an [`Index`].
#[derive(Debug, Clone, Copy)]
pub struct Vacant(u32);

impl Index {
    /// The least number of slots.
    const LEAST: usize = 8;

    fn hash(&self, name: &[u8]) -> u32 {
        // `Hash` would add the length, which matters only if more follows.
        let mut hasher = self.secret.build_hasher();
        hasher.write(name);
        hasher.finish() as u32
    }

    /// The slot at which the search for a hash begins.
    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    /// The home of a slot's content, if it has any.
    fn home_of_slot(&self, at: usize) -> Option<usize> {
        let slot = self.slots[at];
        (!slot.is_empty()).then(|| self.home(slot.hash))
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// The number of `name`, of which `is` tells whether a number is its own, or where it would
    /// stand.
    pub fn find(&self, name: &[u8], is: impl Fn(u32) -> bool) -> Result<u32, Vacant> {
        let hash = self.hash(name);
        if self.slots.is_empty() {
            return Err(Vacant(hash));
        }
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            if slot.is_empty() {
                return Err(Vacant(hash));
            }
            if slot.hash == hash && is(slot.number) {
                return Ok(slot.number);
            }
            at = self.next(at);
        }
    }

    /// Gives the string that `find` did not find a number, which is below `u32::MAX`.
    pub fn insert(&mut self, Vacant(hash): Vacant, number: u32) {
        // Five of eight slots are used at most, so that searches end soon.
        if (self.used + 1) * 8 > self.slots.len() * 5 {
            self.grow();
        }
        self.put(Slot { hash, number });
        self.used += 1;
    }

    /// Makes room for this many further strings.
    pub fn reserve(&mut self, strings: usize) {
        let slots = ((self.used + strings) * 8).div_ceil(5);
        let slots = slots.next_power_of_two().max(Self::LEAST);
        if slots > self.slots.len() {
            self.resize(slots);
        }
    }

    fn grow(&mut self) {
        self.resize((self.slots.len() * 2).max(Self::LEAST));
    }

    /// Moves the content to another number of slots.
    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![Slot::EMPTY; slots]);
        for slot in old.into_iter().filter(|slot| !slot.is_empty()) {
            self.put(slot);
        }
    }

    fn put(&mut self, slot: Slot) {
        let mut at = self.home(slot.hash);
        while !self.slots[at].is_empty() {
            at = self.next(at);
        }
        self.slots[at] = slot;
    }

    /// Gives each string a new number, which stands in `new` at its former number.
    pub fn renumber(&mut self, new: &[u32]) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.is_empty()) {
            slot.number = new[slot.number as usize];
        }
    }

    /// Forgets the number of `name`.
    pub fn remove(&mut self, name: &[u8], number: u32) {
        if self.slots.is_empty() {
            return;
        }
        let mut at = self.home(self.hash(name));
        while self.slots[at].number != number {
            if self.slots[at].is_empty() {
                return;
            }
            at = self.next(at);
        }
        self.used -= 1;
        self.close_gap(at);
    }

    /// Empties a slot. The slots behind it move forward as far as searches require.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.slots.len() - 1;
        while let Some(at) = movable(mask, gap, |at| self.home_of_slot(at)) {
            self.slots[gap] = self.slots[at];
            gap = at;
        }
        self.slots[gap] = Slot::EMPTY;
    }
}

/// Returns the next slot whose content has to move into the empty slot `gap`, so that a search that
/// begins at its home still finds it. `home` returns the home of a slot's content, and `mask` is
/// the last slot.
fn movable(mask: usize, gap: usize, home: impl Fn(usize) -> Option<usize>) -> Option<usize> {
    let mut at = (gap + 1) & mask;
    loop {
        let from_home = at.wrapping_sub(home(at)?) & mask;
        if from_home >= at.wrapping_sub(gap) & mask {
            return Some(at);
        }
        at = (at + 1) & mask;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn small_map_keeps_what_a_map_keeps(
            steps in proptest::collection::vec((0..3_u8, 0..90_u32), 0..600),
        ) {
            let (mut small, mut known) = (SmallMap::default(), HashMap::new());
            for (step, (removes, key)) in (0..).zip(steps) {
                if removes == 0 {
                    prop_assert_eq!(small.remove(key), known.remove(&key));
                } else {
                    prop_assert_eq!(small.entry(key, step), known.entry(key).or_insert(step));
                }
                prop_assert_eq!(small.len(), known.len());
            }
            for key in 0..90 {
                prop_assert_eq!(small.get(key), known.get(&key));
            }
        }
    }

    #[test]
    fn small_map_survives_growth_and_removal() {
        let mut map = SmallMap::default();
        for key in 0..100 {
            *map.entry(key * 7, 0) += key;
        }
        for key in (0..100).step_by(3) {
            assert_eq!(map.remove(key * 7), Some(key));
        }
        for key in 0..100 {
            assert_eq!(
                map.get(key * 7).copied(),
                (key % 3 != 0).then_some(key),
                "{key}"
            );
        }
        assert_eq!(map.len(), 66);
    }

    proptest! {
        #[test]
        fn index_finds_what_a_map_finds(
            steps in proptest::collection::vec((any::<bool>(), 0..60_u32), 0..400),
        ) {
            // The number of a name is its value at first, and later twice that.
            let name = |value: u32| format!("name {value}").into_bytes();
            let (mut index, mut known, mut factor) = (Index::default(), HashMap::new(), 1);
            for (at, (adds, value)) in steps.into_iter().enumerate() {
                if at == 100 {
                    index.reserve(value as usize);
                }
                if at == 200 {
                    index.renumber(&(0..60).map(|number| 2 * number).collect::<Vec<_>>());
                    known.values_mut().for_each(|number| *number *= 2);
                    factor = 2;
                }
                let number = factor * value;
                match index.find(&name(value), |found| found == number) {
                    Ok(found) => prop_assert_eq!(known.get(&value), Some(&found)),
                    Err(vacant) => {
                        prop_assert!(!known.contains_key(&value));
                        if adds {
                            index.insert(vacant, number);
                            known.insert(value, number);
                        }
                    }
                }
                if !adds {
                    index.remove(&name(value), number);
                    known.remove(&value);
                }
            }
            for value in 0..60 {
                let found = index.find(&name(value), |found| found == factor * value).ok();
                prop_assert_eq!(found, known.get(&value).copied());
            }
            prop_assert_eq!(index.used, known.len());
        }
    }

    #[test]
    fn index_needs_no_more_memory_than_a_map_of_hashes() {
        let mut index = Index::default();
        for number in 0..100_000_u32 {
            let name = number.to_le_bytes();
            if let Err(vacant) = index.find(&name, |_| false) {
                index.insert(vacant, number);
            }
            // A map from hashes of 64 bits has a byte besides each entry of 16 bytes. At most
            // seven of eight entries are used, and there are four or more.
            let entries = ((number as usize + 1) * 8)
                .div_ceil(7)
                .next_power_of_two()
                .max(4);
            assert!(
                index.slots.capacity() * size_of::<Slot>() <= entries * 17,
                "{number}"
            );
        }
    }
}
