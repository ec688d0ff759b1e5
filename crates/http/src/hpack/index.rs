//! The dynamic table of an encoder, with an index by name and value, and the choice of the fields
//! that are worth an entry (RFC 7541 sections 2.3 and 7.1.3). HPACK's and QPACK's encoders use it.
//!
//! The index learns the likely names. If the last entry of a name was never used again, as with
//! request numbers, a value of that name gets an entry only after it occurred twice.

use std::collections::VecDeque;

use super::table::{ENTRY_OVERHEAD, Table};

/// Cookies shorter than this could be guessed byte by byte through the table (RFC 7541 section
/// 7.1.3).
const SHORT_COOKIE: usize = 20;
/// Chains of dynamic entries by hash of name.
const BUCKETS: usize = 64;
/// Hashes of fields that were seen but not indexed.
const SEEN: usize = 64;
/// The number of these hashes in each slot. It exceeds the number of fields of a response that
/// vary, so that they cannot displace each other for ever.
const SEEN_IN_SLOT: usize = 4;

/// The known behaviour of a static name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Values repeat.
    Repeats,
    /// Values are mostly different: indexed at second sight.
    Varies,
    /// Credentials: never indexed.
    Secret,
    /// Never indexed when short.
    Cookie,
}

impl Habit {
    /// Returns true if a field with this value must never enter a table.
    pub(crate) const fn is_secret(self, value: &[u8]) -> bool {
        match self {
            Self::Secret => true,
            Self::Cookie => value.len() < SHORT_COOKIE,
            Self::Repeats | Self::Varies => false,
        }
    }
}

/// The dynamic table of an encoder and its index.
#[derive(Debug)]
pub(crate) struct Index {
    table: Table,
    /// A link for each entry of the table, oldest first.
    links: VecDeque<Link>,
    /// Number of the newest entry of each chain; empty until the first entry.
    buckets: Vec<u16>,
    /// Number that the next entry gets, from 1 (wrapping). The table never holds so many entries
    /// that a number comes twice.
    next: u16,
    /// A part of the hashes of the last fields in each slot, newest first. If fields agree in it,
    /// one of them is indexed too early.
    seen: Vec<[u16; SEEN_IN_SLOT]>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    /// The hash of name and value.
    hash: u32,
    /// Number of the next older entry of the chain.
    older: u16,
    used: bool,
}

/// The dynamic entries for a field, by their ages.
#[derive(Clone, Copy)]
pub(crate) struct Entries {
    /// An equal field.
    pub(crate) field: Option<usize>,
    /// The newest field of the same name.
    pub(crate) name: Option<usize>,
}

impl Index {
    /// An empty table of at most `max` bytes; allocates nothing.
    pub(crate) const fn new(max: usize) -> Self {
        Self {
            table: Table::new(max),
            links: VecDeque::new(),
            buckets: Vec::new(),
            next: 1,
            seen: Vec::new(),
        }
    }

    pub(crate) const fn table(&self) -> &Table {
        &self.table
    }

    /// Changes the bound of the table.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.table.set_max(max);
        self.links.drain(..self.links.len() - self.table.len());
    }

    /// Marks the entries as used. Returns the habit of a name, given that of a static table and the
    /// use of the name's newest entry.
    pub(crate) fn learn(&mut self, habit: Habit, entries: Entries) -> Habit {
        if let Some(age) = entries.field {
            self.link(age).used = true;
        }
        let wasted = entries.name.is_some_and(|age| !self.link(age).used);
        if habit == Habit::Repeats && wasted {
            Habit::Varies
        } else {
            habit
        }
    }

    fn link(&mut self, age: usize) -> &mut Link {
        let place = self.links.len() - 1 - age;
        &mut self.links[place]
    }

    /// Returns the number of the entry at `age`.
    pub(crate) const fn number(&self, age: usize) -> u16 {
        self.next.wrapping_sub(1).wrapping_sub(age as u16)
    }

    /// Returns the age of the entry with a [number](Self::number), which counts as used, if it has
    /// this name and value.
    pub(crate) fn reuse(&mut self, number: u16, name: &[u8], value: &[u8]) -> Option<usize> {
        let age = usize::from(self.next.wrapping_sub(number).wrapping_sub(1));
        // Values differ more often than names.
        let is_equal =
            |(known_name, known_value): (&[u8], &[u8])| known_value == value && known_name == name;
        if !self.table.get(age).is_some_and(is_equal) {
            return None;
        }
        self.link(age).used = true;
        Some(age)
    }

    /// Returns the entries for a field.
    pub(crate) fn find(&self, name: &[u8], value: &[u8], name_hash: u32) -> Entries {
        let mut entries = Entries {
            field: None,
            name: None,
        };
        let Some(&newest) = self.buckets.get(name_hash as usize % BUCKETS) else {
            return entries;
        };
        let field_hash = mix(name_hash, hash(value));
        let (mut number, mut from) = (newest, 0);
        loop {
            // Entries are numbered in turn, so a number tells its age; a chain ends with one that
            // has been dropped.
            let age = self.next.wrapping_sub(number).wrapping_sub(1) as usize;
            let Some((known_name, known_value)) = self.table.get(age).filter(|_| age >= from)
            else {
                return entries;
            };
            let link = self.links[self.links.len() - 1 - age];
            if known_name == name {
                entries.name = entries.name.or(Some(age));
                if link.hash == field_hash && known_value == value {
                    entries.field = Some(age);
                    return entries;
                }
            }
            (number, from) = (link.older, age + 1);
        }
    }

    /// Returns true if a field of this habit should get an entry.
    pub(crate) fn is_worth_inserting(
        &mut self,
        habit: Habit,
        name_hash: u32,
        name: &[u8],
        value: &[u8],
    ) -> bool {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        if size > self.table.max() * 3 / 4 {
            return false;
        }
        if habit != Habit::Varies {
            return true;
        }
        if self.seen.is_empty() {
            self.seen = vec![[0; SEEN_IN_SLOT]; SEEN / SEEN_IN_SLOT];
        }
        let field_hash = mix(name_hash, hash(value));
        let slot = &mut self.seen[field_hash as usize % (SEEN / SEEN_IN_SLOT)];
        let part = (field_hash >> 16) as u16;
        if slot.contains(&part) {
            return true;
        }
        slot.rotate_right(1);
        slot[0] = part;
        false
    }

    /// Adds an entry after evicting old ones. An entry larger than the table only empties it.
    pub(crate) fn insert(&mut self, name_hash: u32, name: &[u8], value: &[u8]) {
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

/// A static table by hash, with open addressing. Each slot holds the place of an entry plus one, or
/// 0.
pub(crate) struct StaticIndex<const SLOTS: usize> {
    names: [u8; SLOTS],
    fields: [u8; SLOTS],
}

impl<const SLOTS: usize> StaticIndex<SLOTS> {
    /// Returns the index of a table, which has fewer entries than `SLOTS` and than 255.
    pub(crate) const fn of<const N: usize>(table: &[(&[u8], &[u8]); N]) -> Self {
        let (mut names, mut fields) = ([0; SLOTS], [0; SLOTS]);
        let mut place = 0;
        while place < N {
            let (name, value) = table[place];
            let name_hash = hash(name);
            if place == 0 || !same(name, table[place - 1].0) {
                fill(&mut names, name_hash, place);
            }
            fill(&mut fields, mix(name_hash, hash(value)), place);
            place += 1;
        }
        Self { names, fields }
    }

    /// Returns the place of the first entry with this name.
    pub(crate) fn name(
        &self,
        table: &[(&[u8], &[u8])],
        name: &[u8],
        name_hash: u32,
    ) -> Option<usize> {
        places(&self.names, name_hash).find(|place| table[*place].0 == name)
    }

    /// Returns the place of an equal field.
    pub(crate) fn field(
        &self,
        table: &[(&[u8], &[u8])],
        name: &[u8],
        value: &[u8],
        name_hash: u32,
    ) -> Option<usize> {
        places(&self.fields, mix(name_hash, hash(value)))
            .find(|place| table[*place] == (name, value))
    }
}

const fn fill<const SLOTS: usize>(slots: &mut [u8; SLOTS], hash: u32, place: usize) {
    let mut slot = hash as usize % SLOTS;
    while slots[slot] != 0 {
        slot = (slot + 1) % SLOTS;
    }
    slots[slot] = place as u8 + 1;
}

/// Returns the places of the entries that may have this hash, in the order of the table.
fn places<const SLOTS: usize>(slots: &[u8; SLOTS], hash: u32) -> impl Iterator<Item = usize> + '_ {
    (0..SLOTS)
        .map(move |step| slots[(hash as usize + step) % SLOTS])
        .take_while(|slot| *slot != 0)
        .map(|slot| usize::from(slot) - 1)
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

/// Returns the habits of the names of a static table.
pub(crate) const fn habits<const N: usize>(table: &[(&[u8], &[u8]); N]) -> [Habit; N] {
    let mut habits = [Habit::Repeats; N];
    let mut place = 0;
    while place < N {
        habits[place] = habit(table[place].0);
        place += 1;
    }
    habits
}

/// Returns the habit of a name, if its use has shown nothing else.
pub(crate) const fn habit(name: &[u8]) -> Habit {
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
pub(crate) const fn hash(text: &[u8]) -> u32 {
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

/// Combines the hashes of a name and a value.
const fn mix(name: u32, value: u32) -> u32 {
    (name.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_remembers_fields_that_take_turns() {
        let slot_of = |value: &String| {
            let field_hash = mix(hash(b"etag"), hash(value.as_bytes()));
            field_hash as usize % (SEEN / SEEN_IN_SLOT)
        };
        for slot in 0..SEEN / SEEN_IN_SLOT {
            let mut index = Index::new(4096);
            let values = (0..).map(|number| format!("value {number}"));
            let of_slot = values.filter(|value| slot_of(value) == slot);
            let values: Vec<String> = of_slot.take(4).collect();
            for is_known in [false, true] {
                for value in &values {
                    let is_worth = index.is_worth_inserting(
                        Habit::Varies,
                        hash(b"etag"),
                        b"etag",
                        value.as_bytes(),
                    );
                    assert_eq!(is_worth, is_known, "{value}");
                }
            }
        }
    }
}
