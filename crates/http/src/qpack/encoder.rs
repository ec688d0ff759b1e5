//! Encodes field sections and the instructions of the encoder stream (RFC 9204 sections 2.1, 3.2.3,
//! 4.3 and 4.5).
//!
//! ```text
//! in the static table ─────────────────▶ indexed
//! secret ──────────────────────────────▶ literal, never indexed
//! acknowledged in the dynamic table ───▶ indexed; duplicated when it is about to be evicted
//! on its way to the dynamic table ─────▶ literal, or indexed if the stream may wait for it
//! worth an entry, and one is free ─────▶ inserted, then as above
//! otherwise ───────────────────────────▶ literal
//! ```
//!
//! An entry is evicted only after its insertion and all sections that refer to it were
//! acknowledged.

use std::collections::{BTreeMap, VecDeque};

use super::TABLE_SIZE;
use super::static_table::STATIC;
use crate::fields::Field;
use crate::hpack::index::{Habit, Index, StaticIndex, habit, hash};
use crate::hpack::integer::{self, BadInteger};
use crate::hpack::string;
use crate::hpack::table::ENTRY_OVERHEAD;

/// The sections without acknowledgement above which no more are remembered, and thus none refers to
/// the dynamic table.
const MAX_SECTIONS: usize = 1024;

static BY_HASH: StaticIndex<256> = StaticIndex::of(&STATIC);

/// The peer's decoder stream breaks a rule of RFC 9204 section 4.4. The session must end with
/// QPACK_DECODER_STREAM_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecoderStreamError(&'static str);

/// The sending half of one direction of a session.
#[derive(Debug)]
pub struct Encoder {
    index: Index,
    /// The number of entries that the peer's limit allows (RFC 9204 section 3.2.2).
    max_entries: u64,
    /// The streams that may wait for insertions at once.
    max_blocked: usize,
    /// The number of insertions so far.
    inserted: u64,
    /// The insertions that the peer has acknowledged.
    known: u64,
    /// The sections that the peer has not acknowledged, by stream.
    outstanding: BTreeMap<u64, VecDeque<Reference>>,
    sections: usize,
    /// The number of outstanding sections by their oldest entry.
    pinned: BTreeMap<u64, usize>,
    /// The lines of the section that is being written.
    lines: Vec<u8>,
    /// An instruction of the peer that is not complete yet.
    partial: Vec<u8>,
}

/// The entries that a section refers to.
#[derive(Clone, Copy, Debug)]
struct Reference {
    /// The Required Insert Count.
    required: u64,
    /// The number of the oldest entry.
    oldest: u64,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Creates an encoder without a dynamic table, as before the peer's SETTINGS.
    pub const fn new() -> Self {
        Self {
            index: Index::new(0),
            max_entries: 0,
            max_blocked: 0,
            inserted: 0,
            known: 0,
            outstanding: BTreeMap::new(),
            sections: 0,
            pinned: BTreeMap::new(),
            lines: Vec::new(),
            partial: Vec::new(),
        }
    }

    /// Takes over the peer's limits: the bytes of its dynamic table, and the streams that may wait
    /// for insertions. Appends the instruction that sets the size of the table. A session calls
    /// this once.
    pub fn set_limits(&mut self, capacity: usize, max_blocked: usize, instructions: &mut Vec<u8>) {
        self.max_entries = (capacity / ENTRY_OVERHEAD) as u64;
        self.max_blocked = max_blocked;
        let size = capacity.min(TABLE_SIZE);
        if size != self.index.table().max() {
            self.index.set_max(size);
            integer::encode(instructions, 0x20, 5, size);
        }
    }

    /// Begins a field section on a stream. Without `insert` the dynamic table stays as it is.
    pub fn begin(&mut self, stream: u64, insert: bool) -> Section<'_> {
        self.lines.clear();
        Section {
            base: self.inserted,
            required: 0,
            oldest: u64::MAX,
            insert: insert && self.index.table().max() > 0,
            refers: self.sections < MAX_SECTIONS,
            waits: self.may_wait(stream),
            stream,
            encoder: self,
        }
    }

    /// Returns true if a section of the stream may refer to entries without acknowledgement.
    fn may_wait(&self, stream: u64) -> bool {
        if self.max_blocked == 0 {
            return false;
        }
        let waits = |sections: &VecDeque<Reference>| {
            sections.iter().any(|section| section.required > self.known)
        };
        self.outstanding.get(&stream).is_some_and(waits)
            || self.outstanding.values().filter(|s| waits(s)).count() < self.max_blocked
    }

    /// Takes bytes of the peer's decoder stream, cut anywhere.
    ///
    /// # Errors
    ///
    /// The peer acknowledges sections or insertions that do not exist.
    pub fn handle_decoder_stream(&mut self, bytes: &[u8]) -> Result<(), DecoderStreamError> {
        let mut input = std::mem::take(&mut self.partial);
        input.extend_from_slice(bytes);
        let mut done = 0;
        while let Some(&first) = input.get(done) {
            let mut at = done;
            let bits = match first {
                0x80.. => 7,
                _ => 6,
            };
            let value = match integer::read(&input, &mut at, bits, 8) {
                Ok(value) => value as u64,
                Err(BadInteger::CutOff) => break,
                Err(BadInteger::TooLong) => return Err(DecoderStreamError("integer too large")),
            };
            match first {
                0x80.. => self.acknowledge(value)?,
                0x40.. => self.forget(value),
                _ => self.increment(value)?,
            }
            done = at;
        }
        input.drain(..done);
        if !input.is_empty() {
            self.partial = input;
        }
        Ok(())
    }

    /// Handles Section Acknowledgment (RFC 9204 section 4.4.1).
    fn acknowledge(&mut self, stream: u64) -> Result<(), DecoderStreamError> {
        let unknown = DecoderStreamError("acknowledgement of a section that does not exist");
        let sections = self.outstanding.get_mut(&stream).ok_or(unknown)?;
        let section = sections.pop_front().ok_or(unknown)?;
        if sections.is_empty() {
            self.outstanding.remove(&stream);
        }
        self.unpin(section);
        self.known = self.known.max(section.required);
        Ok(())
    }

    /// Handles Stream Cancellation (RFC 9204 section 4.4.2).
    fn forget(&mut self, stream: u64) {
        for section in self.outstanding.remove(&stream).into_iter().flatten() {
            self.unpin(section);
        }
    }

    /// Handles Insert Count Increment (RFC 9204 section 4.4.3).
    fn increment(&mut self, count: u64) -> Result<(), DecoderStreamError> {
        if count == 0 || count > self.inserted - self.known {
            return Err(DecoderStreamError("insert count increment out of range"));
        }
        self.known += count;
        Ok(())
    }

    fn unpin(&mut self, section: Reference) {
        self.sections -= 1;
        if let Some(count) = self.pinned.get_mut(&section.oldest) {
            *count -= 1;
            if *count == 0 {
                self.pinned.remove(&section.oldest);
            }
        }
    }

    /// Returns true if an entry of this size fits without evicting entries that the peer may still
    /// need. `oldest` is the oldest entry of the section that is being written.
    fn has_place(&self, size: usize, oldest: u64) -> bool {
        let Some(evicted) = self.index.table().evicted_by(size) else {
            return false;
        };
        let pinned = self.pinned.first_key_value();
        let needed = pinned.map_or(u64::MAX, |(oldest, _)| *oldest);
        let end = self.first() + evicted as u64;
        evicted == 0 || end <= self.known.min(needed).min(oldest)
    }

    /// Returns the number of the oldest entry in the table.
    fn first(&self) -> u64 {
        self.inserted - self.index.table().len() as u64
    }

    fn insert(&mut self, name_hash: u32, name: &[u8], value: &[u8]) {
        self.index.insert(name_hash, name, value);
        self.inserted += 1;
    }
}

/// A name by its place in a table.
#[derive(Clone, Copy)]
enum Name {
    Static(usize),
    /// The age of a dynamic entry.
    Dynamic(usize),
    Literal,
}

/// A field section that is being written.
#[derive(Debug)]
pub struct Section<'a> {
    encoder: &'a mut Encoder,
    stream: u64,
    /// The number of insertions at the beginning.
    base: u64,
    required: u64,
    oldest: u64,
    insert: bool,
    refers: bool,
    waits: bool,
}

impl Section<'_> {
    /// Appends one field. Insertions go to the end of `instructions`, the encoder stream.
    pub fn field(&mut self, field: Field<'_>, instructions: &mut Vec<u8>) {
        let Field {
            name,
            value,
            sensitive,
        } = field;
        let name_hash = hash(name);
        let place = BY_HASH.name(&STATIC, name, name_hash);
        let habit = habit(name);
        let fixed = place.map(Name::Static);
        if sensitive || habit.is_secret(value) {
            return self.literal(true, fixed.unwrap_or(Name::Literal), name, value);
        }
        if let Some(place) = BY_HASH.field(&STATIC, name, value, name_hash) {
            return integer::encode(&mut self.encoder.lines, 0xc0, 6, place);
        }
        let entries = self.encoder.index.find(name, value, name_hash);
        let habit = self.encoder.index.learn(habit, entries);
        let by_name = fixed.or_else(|| entries.name.map(Name::Dynamic));
        let by_name = by_name.unwrap_or(Name::Literal);
        if let Some(age) = entries.field {
            if self.can_refer(age) {
                self.refer(age);
                self.renew(age, name_hash, name, value, instructions);
            } else {
                self.literal(false, by_name, name, value);
            }
        } else if self.is_worth_inserting(habit, name_hash, name, value) {
            put_insertion(instructions, by_name, name, value);
            self.encoder.insert(name_hash, name, value);
            if self.can_refer(0) {
                self.refer(0);
            } else {
                // The new entry has shifted the ages.
                self.literal(false, fixed.unwrap_or(Name::Literal), name, value);
            }
        } else {
            self.literal(false, by_name, name, value);
        }
    }

    /// Ends the section: appends its prefix and lines to `out` (RFC 9204 section 4.5.1).
    pub fn end(self, out: &mut Vec<u8>) {
        let encoder = self.encoder;
        if self.required == 0 {
            out.extend_from_slice(&[0, 0]);
        } else {
            let wrapped = self.required % (2 * encoder.max_entries) + 1;
            integer::encode(out, 0, 8, wrapped as usize);
            match self.required.checked_sub(self.base + 1) {
                Some(delta) => integer::encode(out, 0x80, 7, delta as usize),
                None => integer::encode(out, 0, 7, (self.base - self.required) as usize),
            }
            let section = Reference {
                required: self.required,
                oldest: self.oldest,
            };
            let sections = encoder.outstanding.entry(self.stream).or_default();
            sections.push_back(section);
            encoder.sections += 1;
            *encoder.pinned.entry(self.oldest).or_default() += 1;
        }
        out.extend_from_slice(&encoder.lines);
        if encoder.lines.capacity() > 1024 {
            encoder.lines = Vec::new();
        }
    }

    fn number(&self, age: usize) -> u64 {
        self.encoder.inserted - 1 - age as u64
    }

    fn can_refer(&self, age: usize) -> bool {
        self.refers && (self.waits || self.number(age) < self.encoder.known)
    }

    fn note(&mut self, number: u64) {
        self.required = self.required.max(number + 1);
        self.oldest = self.oldest.min(number);
    }

    /// Writes an indexed field line (RFC 9204 sections 4.5.2 and 4.5.3).
    fn refer(&mut self, age: usize) {
        let number = self.number(age);
        self.note(number);
        let lines = &mut self.encoder.lines;
        match self.base.checked_sub(number + 1) {
            Some(index) => integer::encode(lines, 0x80, 6, index as usize),
            None => integer::encode(lines, 0x10, 4, (number - self.base) as usize),
        }
    }

    /// Duplicates an entry of the oldest quarter of the table, so that its use does not keep the
    /// table from changing (RFC 9204 section 2.1.1.1).
    fn renew(
        &mut self,
        age: usize,
        name_hash: u32,
        name: &[u8],
        value: &[u8],
        instructions: &mut Vec<u8>,
    ) {
        let table = self.encoder.index.table();
        let is_old = table
            .size_since(age)
            .is_some_and(|size| size > table.max() / 4 * 3);
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        if is_old && self.insert && self.encoder.has_place(size, self.oldest) {
            integer::encode(instructions, 0x00, 5, age);
            self.encoder.insert(name_hash, name, value);
        }
    }

    fn is_worth_inserting(
        &mut self,
        habit: Habit,
        name_hash: u32,
        name: &[u8],
        value: &[u8],
    ) -> bool {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        self.insert
            && self.encoder.has_place(size, self.oldest)
            && self
                .encoder
                .index
                .is_worth_inserting(habit, name_hash, name, value)
    }

    /// Writes a literal field line (RFC 9204 sections 4.5.4 to 4.5.6).
    fn literal(&mut self, never: bool, by: Name, name: &[u8], value: &[u8]) {
        let flag = |bit: u8| if never { bit } else { 0 };
        match by {
            Name::Static(place) => {
                integer::encode(&mut self.encoder.lines, 0x50 | flag(0x20), 4, place);
            }
            Name::Dynamic(age) if self.can_refer(age) => {
                let number = self.number(age);
                self.note(number);
                let lines = &mut self.encoder.lines;
                match self.base.checked_sub(number + 1) {
                    Some(index) => integer::encode(lines, 0x40 | flag(0x20), 4, index as usize),
                    None => integer::encode(lines, flag(0x08), 3, (number - self.base) as usize),
                }
            }
            Name::Dynamic(_) | Name::Literal => {
                string::encode(&mut self.encoder.lines, 0x20 | flag(0x10), 3, name);
            }
        }
        string::encode(&mut self.encoder.lines, 0, 7, value);
    }
}

/// Appends the instruction that inserts a field (RFC 9204 sections 4.3.2 and 4.3.3).
fn put_insertion(out: &mut Vec<u8>, by: Name, name: &[u8], value: &[u8]) {
    match by {
        Name::Static(place) => integer::encode(out, 0xc0, 6, place),
        Name::Dynamic(age) => integer::encode(out, 0x80, 6, age),
        Name::Literal => string::encode(out, 0x40, 5, name),
    }
    string::encode(out, 0, 7, value);
}
