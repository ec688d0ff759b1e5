//! Encodes fields as header blocks and chooses the representation of each field (RFC 7541 sections
//! 2.3, 6 and 7.1.3).
//!
//! ```text
//! in a table with its value ──▶ indexed
//! secret ──────────────────────▶ literal, never indexed
//! likely to come again ────────▶ literal, indexed
//! seen once already ───────────▶ literal, indexed
//! otherwise ───────────────────▶ literal, not indexed (and remembered as seen)
//! ```
//!
//! [`super::index`] decides which fields are likely to come again.

use super::index::{Habit, Index, StaticIndex, habits, hash};
use super::table::STATIC;
use super::{DEFAULT_TABLE_SIZE, integer, string};
use crate::fields::Field;

/// The sending half of one direction: writes header blocks that must go out in the order they were
/// written.
#[derive(Debug)]
pub struct Encoder {
    index: Index,
    /// Smallest size since the last block when an update must be sent (RFC 7541 section 4.2).
    lowest: Option<usize>,
}

/// The entries of the tables for a field.
struct Found {
    /// Index of an equal field.
    field: Option<usize>,
    /// Index of a field of the same name.
    name: usize,
    habit: Habit,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder with an empty table of [`DEFAULT_TABLE_SIZE`].
    pub fn new() -> Self {
        Self {
            index: Index::new(DEFAULT_TABLE_SIZE),
            lowest: None,
        }
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE. Takes effect with the next block.
    pub fn set_limit(&mut self, limit: usize) {
        let size = limit.min(DEFAULT_TABLE_SIZE);
        if size != self.index.table().max() {
            self.lowest = Some(self.lowest.map_or(size, |lowest| lowest.min(size)));
            self.index.set_max(size);
        }
    }

    /// Begins a header block. Nothing but [`Encoder::field`] may write to `out` until it ends.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(lowest) = self.lowest.take() {
            if lowest < self.index.table().max() {
                integer::encode(out, 0x20, 5, lowest);
            }
            integer::encode(out, 0x20, 5, self.index.table().max());
        }
    }

    /// Appends one field to the block.
    pub fn field(&mut self, out: &mut Vec<u8>, field: Field<'_>) {
        let Field {
            name,
            value,
            sensitive,
        } = field;
        let name_hash = hash(name);
        let found = self.find(name, value, name_hash);
        if sensitive || found.habit.is_secret(value) {
            literal(out, 0x10, 4, found.name, name, value);
        } else if let Some(index) = found.field {
            integer::encode(out, 0x80, 7, index);
        } else if self
            .index
            .is_worth_inserting(found.habit, name_hash, name, value)
        {
            literal(out, 0x40, 6, found.name, name, value);
            self.index.insert(name_hash, name, value);
        } else {
            literal(out, 0x00, 4, found.name, name, value);
        }
    }

    fn find(&mut self, name: &[u8], value: &[u8], name_hash: u32) -> Found {
        let place = BY_HASH.name(&STATIC, name, name_hash);
        let habit = place.map_or(Habit::Repeats, |place| HABITS[place]);
        let fixed = place.map(|place| place + 1);
        // A name without a value in its first entry has no other entry.
        let may_equal = |place: usize| !STATIC[place].1.is_empty() || value.is_empty();
        if let Some(first) = place
            && may_equal(first)
            && let Some(place) = BY_HASH.field(&STATIC, name, value, name_hash)
        {
            return Found {
                field: Some(place + 1),
                name: first + 1,
                habit,
            };
        }
        let entries = self.index.find(name, value, name_hash);
        let habit = self.index.learn(habit, entries);
        let index = |age: usize| STATIC.len() + 1 + age;
        Found {
            field: entries.field.map(index),
            name: fixed.or_else(|| entries.name.map(index)).unwrap_or(0),
            habit,
        }
    }
}

/// A literal (RFC 7541 section 6.2): the name by index where there is one.
fn literal(out: &mut Vec<u8>, pattern: u8, prefix: u8, index: usize, name: &[u8], value: &[u8]) {
    integer::encode(out, pattern, prefix, index);
    if index == 0 {
        string::encode(out, 0, 7, name);
    }
    string::encode(out, 0, 7, value);
}

/// For each static entry.
static HABITS: [Habit; STATIC.len()] = habits(&STATIC);

/// The static table by name and by field.
static BY_HASH: StaticIndex<128> = StaticIndex::of(&STATIC);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoder_finds_each_static_entry() {
        for (place, &(name, value)) in STATIC.iter().enumerate() {
            let found = Encoder::new().find(name, value, hash(name));
            assert_eq!(found.field, Some(place + 1));
        }
    }

    #[test]
    fn every_static_name_is_found() {
        for (place, (name, value)) in STATIC.iter().enumerate() {
            let first = BY_HASH
                .name(&STATIC, name, hash(name))
                .expect("a static name");
            assert!(first <= place && STATIC[first].0 == *name);
            assert_eq!(BY_HASH.field(&STATIC, name, value, hash(name)), Some(place));
        }
        assert_eq!(
            BY_HASH.name(&STATIC, b"x-unknown", hash(b"x-unknown")),
            None
        );
    }
}
