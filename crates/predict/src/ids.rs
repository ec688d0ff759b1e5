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
    index: Option<IdMap<u32, u32>>,
}

impl<V> Default for SmallMap<V> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            values: Vec::new(),
            index: None,
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
        match &self.index {
            Some(index) => index.get(&key).map(|&at| at as usize),
            None => self.keys.iter().position(|&k| k == key),
        }
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
        match &mut self.index {
            Some(index) => {
                index.insert(key, at as u32);
            }
            None if at >= SCAN_LIMIT => {
                self.index = Some(
                    self.keys
                        .iter()
                        .enumerate()
                        .map(|(at, &key)| (key, at as u32))
                        .collect(),
                );
            }
            None => {}
        }
        at
    }

    /// Removes `key`; the last entry takes its place.
    pub fn remove(&mut self, key: u32) -> Option<V> {
        let at = self.position(key)?;
        if let Some(index) = &mut self.index {
            index.remove(&key);
            if let Some(&last) = self.keys.last().filter(|&&last| last != key) {
                index.insert(last, at as u32);
            }
        }
        self.keys.swap_remove(at);
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
#[derive(Debug, Clone, Default)]
pub struct Index {
    secret: RandomState,
    numbers: IdMap<u64, u32>,
}

/// The position at which a string that is not in an [`Index`] would be inserted.
#[derive(Debug, Clone, Copy)]
pub struct Vacant(u64);

impl Index {
    /// The number of `name`, of which `is` tells whether a number is its own, or where it would
    /// stand.
    pub fn find(&self, name: &[u8], is: impl Fn(u32) -> bool) -> Result<u32, Vacant> {
        let mut place = self.secret.hash_one(name);
        while let Some(&number) = self.numbers.get(&place) {
            if is(number) {
                return Ok(number);
            }
            place = place.wrapping_add(1);
        }
        Err(Vacant(place))
    }

    /// Gives the string that `find` did not find a number.
    pub fn insert(&mut self, at: Vacant, number: u32) {
        self.numbers.insert(at.0, number);
    }

    /// Gives each string a new number, which stands in `new` at its former number.
    pub fn renumber(&mut self, new: &[u32]) {
        for number in self.numbers.values_mut() {
            *number = new[*number as usize];
        }
    }

    /// Forgets the number of `name`.
    pub fn remove(&mut self, name: &[u8], number: u32) {
        let mut place = self.secret.hash_one(name);
        while let Some(&other) = self.numbers.get(&place) {
            if other == number {
                self.numbers.remove(&place);
                return;
            }
            place = place.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
