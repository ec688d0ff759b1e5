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
//! The encoder learns the likely names. If the last entry of a name was never used again, as with
//! request numbers, a value of that name is indexed only after it occurred twice.

use std::collections::VecDeque;

use super::table::{ENTRY_OVERHEAD, STATIC, Table};
use super::{DEFAULT_TABLE_SIZE, huffman, integer};
use crate::fields::Field;

/// Cookies shorter than this could be guessed byte by byte through the table (RFC 7541 section
/// 7.1.3).
const SHORT_COOKIE: usize = 20;
/// Chains of dynamic entries by hash of name.
const BUCKETS: usize = 64;
/// Hashes of fields that were seen but not indexed.
const SEEN: usize = 64;

/// The known behaviour of a static name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// Values repeat.
    Repeats,
    /// Values are mostly different: indexed at second sight.
    Varies,
    /// Credentials: never indexed.
    Secret,
    /// Never indexed when short.
    Cookie,
}

/// The sending half of one direction: writes header blocks that must go out in the order they were
/// written.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// A link for each entry of the table, oldest first.
    links: VecDeque<Link>,
    /// Number of the newest entry of each chain; empty until the first entry.
    buckets: Vec<u16>,
    /// Number that the next entry gets, from 1 (wrapping). The table never holds so many entries
    /// that a number comes twice.
    next: u16,
    /// A part of the hash of the last field in each slot. If two fields agree in it, one of them is
    /// indexed too early.
    seen: Vec<u16>,
    /// Smallest size since the last block when an update must be sent (RFC 7541 section 4.2).
    lowest: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    /// The hash of name and value.
    hash: u32,
    /// Number of the next older entry of the chain.
    older: u16,
    used: bool,
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
            table: Table::new(DEFAULT_TABLE_SIZE),
            links: VecDeque::new(),
            buckets: Vec::new(),
            next: 1,
            seen: Vec::new(),
            lowest: None,
        }
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE. Takes effect with the next block.
    pub fn set_limit(&mut self, limit: usize) {
        let size = limit.min(DEFAULT_TABLE_SIZE);
        if size != self.table.max() {
            self.lowest = Some(self.lowest.map_or(size, |lowest| lowest.min(size)));
            self.table.set_max(size);
            self.links.drain(..self.links.len() - self.table.len());
        }
    }

    /// Begins a header block. Nothing but [`Encoder::field`] may write to `out` until it ends.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(lowest) = self.lowest.take() {
            if lowest < self.table.max() {
                integer::encode(out, 0x20, 5, lowest);
            }
            integer::encode(out, 0x20, 5, self.table.max());
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
        let secret = sensitive
            || found.habit == Habit::Secret
            || (found.habit == Habit::Cookie && value.len() < SHORT_COOKIE);
        if secret {
            literal(out, 0x10, 4, found.name, name, value);
        } else if let Some(index) = found.field {
            integer::encode(out, 0x80, 7, index);
        } else if self.worth_indexing(&found, name_hash, name, value) {
            literal(out, 0x40, 6, found.name, name, value);
            self.insert(name_hash, name, value);
        } else {
            literal(out, 0x00, 4, found.name, name, value);
        }
    }

    fn find(&mut self, name: &[u8], value: &[u8], name_hash: u32) -> Found {
        let fixed = static_name(name, name_hash);
        let habit = fixed.map_or(Habit::Repeats, |index| HABITS[index - 1]);
        if let Some(first) = fixed {
            let mut same = STATIC[first - 1..]
                .iter()
                .take_while(|(other, _)| *other == name);
            if let Some(offset) = same.position(|(_, known)| *known == value) {
                return Found {
                    field: Some(first + offset),
                    name: first,
                    habit,
                };
            }
        }
        let (field, newest) = self.find_dynamic(name, value, name_hash);
        if let Some(age) = field {
            self.link(age).used = true;
        }
        let wasted = newest.is_some_and(|age| !self.link(age).used);
        let habit = if habit == Habit::Repeats && wasted {
            Habit::Varies
        } else {
            habit
        };
        let index = |age: usize| STATIC.len() + 1 + age;
        Found {
            field: field.map(index),
            name: fixed.or_else(|| newest.map(index)).unwrap_or(0),
            habit,
        }
    }

    fn link(&mut self, age: usize) -> &mut Link {
        let place = self.links.len() - 1 - age;
        &mut self.links[place]
    }

    /// Ages of an equal field and of the newest one of that name in the dynamic table.
    fn find_dynamic(
        &self,
        name: &[u8],
        value: &[u8],
        name_hash: u32,
    ) -> (Option<usize>, Option<usize>) {
        let Some(&newest) = self.buckets.get(name_hash as usize % BUCKETS) else {
            return (None, None);
        };
        let field_hash = mix(name_hash, hash(value));
        let (mut number, mut named, mut from) = (newest, None, 0);
        loop {
            // Entries are numbered in turn, so a number tells its age; a chain ends with one that
            // has been dropped.
            let age = self.next.wrapping_sub(number).wrapping_sub(1) as usize;
            let Some((known_name, known_value)) = self.table.get(age).filter(|_| age >= from)
            else {
                return (None, named);
            };
            let link = self.links[self.links.len() - 1 - age];
            if known_name == name {
                named = named.or(Some(age));
                if link.hash == field_hash && known_value == value {
                    return (Some(age), named);
                }
            }
            (number, from) = (link.older, age + 1);
        }
    }

    fn worth_indexing(&mut self, found: &Found, name_hash: u32, name: &[u8], value: &[u8]) -> bool {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        if size > self.table.max() * 3 / 4 {
            return false;
        }
        if found.habit != Habit::Varies {
            return true;
        }
        if self.seen.is_empty() {
            self.seen = vec![0; SEEN];
        }
        let field_hash = mix(name_hash, hash(value));
        let slot = &mut self.seen[field_hash as usize % SEEN];
        let part = (field_hash >> 16) as u16;
        std::mem::replace(slot, part) == part
    }

    fn insert(&mut self, name_hash: u32, name: &[u8], value: &[u8]) {
        if !self.table.insert(name, value) {
            self.links.clear();
            return;
        }
        self.links.drain(..self.links.len() + 1 - self.table.len());
        if self.buckets.is_empty() {
            self.buckets = vec![0; BUCKETS];
        }
        let bucket = &mut self.buckets[name_hash as usize % BUCKETS];
        self.links.push_back(Link {
            hash: mix(name_hash, hash(value)),
            older: *bucket,
            used: false,
        });
        *bucket = self.next;
        self.next = self.next.wrapping_add(1);
    }
}

/// A literal (RFC 7541 section 6.2): the name by index where there is one.
fn literal(out: &mut Vec<u8>, pattern: u8, prefix: u8, index: usize, name: &[u8], value: &[u8]) {
    integer::encode(out, pattern, prefix, index);
    if index == 0 {
        string(out, name);
    }
    string(out, value);
}

/// A string literal (RFC 7541 section 5.2), whichever way is shorter.
fn string(out: &mut Vec<u8>, text: &[u8]) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::encode(out, 0x80, 7, coded);
        huffman::encode(out, text);
    } else {
        integer::encode(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
}

/// For each static entry.
static HABITS: [Habit; STATIC.len()] = {
    let mut habits = [Habit::Repeats; STATIC.len()];
    let mut place = 0;
    while place < STATIC.len() {
        habits[place] = habit(STATIC[place].0);
        place += 1;
    }
    habits
};

const fn habit(name: &[u8]) -> Habit {
    match name {
        b"authorization" | b"proxy-authorization" | b"set-cookie" => Habit::Secret,
        b"cookie" => Habit::Cookie,
        b":path" | b"age" | b"content-length" | b"content-range" | b"etag"
        | b"if-modified-since" | b"if-none-match" | b"if-range" | b"last-modified"
        | b"location" | b"range" => Habit::Varies,
        _ => Habit::Repeats,
    }
}

/// A hash of length, beginning, middle and end: enough to tell fields apart, in constant time.
const fn hash(text: &[u8]) -> u32 {
    let (mut a, mut b, mut middle) = (0u64, 0u64, 0u64);
    if let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        a = u64::from_le_bytes(*first);
        b = u64::from_le_bytes(*last);
        if text.len() > 16 {
            let (_, half) = text.split_at(text.len() / 2 - 4);
            if let Some(chunk) = half.first_chunk::<8>() {
                middle = u64::from_le_bytes(*chunk);
            }
        }
    } else {
        let mut at = 0;
        while at < text.len() {
            a = a << 8 | text[at] as u64;
            at += 1;
        }
    }
    let word = (a ^ (text.len() as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (word.rotate_left(29) ^ b).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = (word.rotate_left(31) ^ middle).wrapping_mul(0xa076_1d64_78bd_642f);
    (word >> 32) as u32
}

const fn mix(name: u32, value: u32) -> u32 {
    (name.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9)
}

const SLOTS: usize = 128;

/// Static names by hash with open addressing: the index of the first entry of that name, or 0.
static BY_NAME: [u8; SLOTS] = by_name();

const fn by_name() -> [u8; SLOTS] {
    let mut slots = [0; SLOTS];
    let mut place = 0;
    while place < STATIC.len() {
        let name = STATIC[place].0;
        if place == 0 || !same(name, STATIC[place - 1].0) {
            let mut slot = hash(name) as usize % SLOTS;
            while slots[slot] != 0 {
                slot = (slot + 1) % SLOTS;
            }
            slots[slot] = place as u8 + 1;
        }
        place += 1;
    }
    slots
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    a.len() == b.len()
}

/// Index of the first static entry of this name.
fn static_name(name: &[u8], name_hash: u32) -> Option<usize> {
    let mut slot = name_hash as usize % SLOTS;
    while BY_NAME[slot] != 0 {
        let index = usize::from(BY_NAME[slot]);
        if STATIC[index - 1].0 == name {
            return Some(index);
        }
        slot = (slot + 1) % SLOTS;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_static_name_is_found() {
        for (place, (name, _)) in STATIC.iter().enumerate() {
            let index = static_name(name, hash(name)).expect("a static name");
            assert!(index <= place + 1 && STATIC[index - 1].0 == *name);
        }
        assert_eq!(static_name(b"x-unknown", hash(b"x-unknown")), None);
    }
}
