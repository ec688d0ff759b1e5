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
//! [`super::index`] decides which fields are likely to come again. Heads in a row tend to have
//! equal fields at equal places, so the entry that a place had in the block before is tried first.

use super::index::{Habit, Index, StaticIndex, habits, hash};
use super::table::STATIC;
use super::{DEFAULT_TABLE_SIZE, integer, string};
use crate::fields::Field;

/// The sending half of one direction: writes header blocks that must go out in the order they were
/// written.
#[derive(Debug)]
pub struct Encoder {
    index: Index,
    /// The entries that the first fields of the last block had.
    before: [Entry; PLACES],
    /// The place of the next field in its block.
    place: usize,
    /// Smallest size since the last block when an update must be sent (RFC 7541 section 4.2).
    lowest: Option<usize>,
}

/// The number of fields of a block whose entries are tried first in the next block.
const PLACES: usize = 16;

/// An entry of one of the tables.
#[derive(Clone, Copy, Debug)]
enum Entry {
    /// The place in the static table.
    Static(u8),
    /// The number in the dynamic table.
    Dynamic(u16),
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
            before: [Entry::Dynamic(0); PLACES],
            place: 0,
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
        self.place = 0;
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
        let place = self.place;
        self.place += 1;
        // No secret is in a table, but a field may have become one.
        if !sensitive
            && let Some(&entry) = self.before.get(place)
            && let Some(index) = self.reuse(entry, name, value)
        {
            return integer::encode(out, 0x80, 7, index);
        }
        let name_hash = hash(name);
        let found = self.find(name, value, name_hash);
        if sensitive || found.habit.is_secret(value) {
            literal(out, 0x10, 4, found.name, name, value);
        } else if let Some(index) = found.field {
            integer::encode(out, 0x80, 7, index);
            self.remember(place, index);
        } else if self
            .index
            .is_worth_inserting(found.habit, name_hash, name, value)
        {
            literal(out, 0x40, 6, found.name, name, value);
            self.index.insert(name_hash, name, value);
            self.remember(place, STATIC.len() + 1);
        } else {
            literal(out, 0x00, 4, found.name, name, value);
        }
    }

    /// Returns the index of an entry if it has this name and value.
    fn reuse(&mut self, entry: Entry, name: &[u8], value: &[u8]) -> Option<usize> {
        match entry {
            Entry::Static(place) => {
                let place = usize::from(place);
                (STATIC[place] == (name, value)).then_some(place + 1)
            }
            Entry::Dynamic(number) => {
                let age = self.index.reuse(number, name, value)?;
                Some(STATIC.len() + 1 + age)
            }
        }
    }

    /// Remembers the index of the field at this place of the block.
    fn remember(&mut self, place: usize, index: usize) {
        if let Some(entry) = self.before.get_mut(place) {
            *entry = match index.checked_sub(STATIC.len() + 1) {
                Some(age) => Entry::Dynamic(self.index.number(age)),
                None => Entry::Static(index as u8 - 1),
            };
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

    /// Encodes fields of few names and values in blocks of varying order. With `tries_first`, the
    /// encoder tries the entries of the block before.
    fn blocks(tries_first: bool) -> Vec<Vec<u8>> {
        let names = [
            "server",
            "etag",
            "x-a",
            "authorization",
            "cookie",
            ":status",
            "x-b",
        ];
        let (mut encoder, mut state) = (Encoder::new(), 1_u32);
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        let block = |number: u32| {
            let mut block = Vec::new();
            if number.is_multiple_of(97) {
                encoder.set_limit(200 + random(4000) as usize);
            }
            encoder.begin(&mut block);
            for place in 0..20 {
                let name = match random(4) {
                    0 => names[random(7) as usize],
                    _ => names[place % 7],
                };
                let value = match name {
                    ":status" => ["200", "304", "299"][random(3) as usize].to_owned(),
                    _ => "v".repeat(random(3) as usize * 10) + &random(3).to_string(),
                };
                encoder.place = match tries_first {
                    true => place,
                    false => PLACES,
                };
                encoder.field(
                    &mut block,
                    Field {
                        name: name.as_bytes(),
                        value: value.as_bytes(),
                        sensitive: random(30) == 0,
                    },
                );
            }
            block
        };
        (0..2000).map(block).collect()
    }

    #[test]
    fn entries_of_the_block_before_change_no_byte() {
        let (fast, slow) = (blocks(true), blocks(false));
        let differs = fast.iter().zip(&slow).position(|(fast, slow)| fast != slow);
        assert_eq!(differs, None);
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
