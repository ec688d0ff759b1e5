//! Reads field sections and the peer's encoder stream (RFC 9204 sections 2.2, 4.3, 4.4 and 4.5).

use std::collections::BTreeMap;

use super::static_table::STATIC;
use crate::fields::Field;
use crate::hpack::huffman::BadHuffman;
use crate::hpack::integer::{self, BadInteger};
use crate::hpack::string::{self, Text};
use crate::hpack::table::{ENTRY_OVERHEAD, Table};

/// A violation of RFC 9204, after which the session must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QpackError {
    /// A field section cannot be read: QPACK_DECOMPRESSION_FAILED.
    #[error("bad field section: {0}")]
    Section(&'static str),
    /// The encoder stream cannot be read: QPACK_ENCODER_STREAM_ERROR.
    #[error("bad encoder stream: {0}")]
    EncoderStream(&'static str),
}

/// The result of [`Decoder::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All fields were handed over.
    Whole,
    /// The section refers to insertions that have not arrived. The stream waits until
    /// [`Decoder::poll_unblocked`] returns its number, and the section is then passed again.
    Blocked,
}

/// The receiving half of one direction of a session.
///
/// The work for a section is linear in its bytes and its references, apart from the work of `sink`.
/// A field passed to `sink` is never longer than the table or 8/5 of the section. `sink` must bound
/// the sum itself.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The limit in bytes for the peer's encoder.
    max_capacity: usize,
    max_blocked: usize,
    /// The number of insertions so far.
    inserted: u64,
    /// The insertions that our acknowledgements cover.
    acknowledged: u64,
    /// The streams that wait for insertions, and the number of insertions that each needs.
    blocked: BTreeMap<u64, u64>,
    /// An instruction that is not complete yet.
    partial: Vec<u8>,
    /// The strings of the current field that the input does not contain literally.
    scratch: Vec<u8>,
    /// Our decoder stream.
    output: Vec<u8>,
}

impl Decoder {
    /// Creates a decoder for a peer that may use up to `max_capacity` bytes of dynamic table, less
    /// than 64 KiB, and have up to `max_blocked` streams wait for insertions.
    pub const fn new(max_capacity: usize, max_blocked: usize) -> Self {
        Self {
            table: Table::new(0),
            max_capacity,
            max_blocked,
            inserted: 0,
            acknowledged: 0,
            blocked: BTreeMap::new(),
            partial: Vec::new(),
            scratch: Vec::new(),
            output: Vec::new(),
        }
    }

    /// Takes the instructions for our decoder stream.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns true if [`Decoder::take_output`] has something to take.
    pub const fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Takes bytes of the peer's encoder stream, cut anywhere. It stops before the rest of the
    /// input when a stream can go on, since a later instruction could evict its entries. The caller
    /// then drains [`Decoder::poll_unblocked`], and calls this again without input.
    ///
    /// # Errors
    ///
    /// An instruction is malformed, exceeds the table, or refers to an entry that does not exist.
    pub fn handle_encoder_stream(&mut self, bytes: &[u8]) -> Result<(), QpackError> {
        let mut input = std::mem::take(&mut self.partial);
        input.extend_from_slice(bytes);
        let (mut done, mut needs_more) = (0, false);
        while done < input.len() && !needs_more && !self.has_unblocked() {
            match self.instruction(&input, done) {
                Ok(at) => done = at,
                Err(SectionFlaw::CutOff) => needs_more = true,
                Err(SectionFlaw::Bad(what)) => return Err(QpackError::EncoderStream(what)),
            }
        }
        input.drain(..done);
        // The longest code of a byte has 30 bits.
        if needs_more && input.len() > 32 + 8 * self.max_capacity {
            return Err(QpackError::EncoderStream("endless instruction"));
        }
        if !input.is_empty() {
            self.partial = input;
        }
        if self.inserted > self.acknowledged {
            let count = self.inserted - self.acknowledged;
            integer::encode(&mut self.output, 0x00, 6, count as usize);
            self.acknowledged = self.inserted;
        }
        self.shrink();
        Ok(())
    }

    fn has_unblocked(&self) -> bool {
        self.blocked.values().any(|needed| *needed <= self.inserted)
    }

    /// Executes the instruction at `at` (RFC 9204 section 4.3). Returns the place behind it.
    fn instruction(&mut self, input: &[u8], mut at: usize) -> Result<usize, SectionFlaw> {
        let first = input[at];
        self.scratch.clear();
        match first {
            0x80.. => {
                let index = integer::read(input, &mut at, 6, 4)?;
                let name = if first & 0x40 != 0 {
                    let (name, _) = STATIC.get(index).ok_or(SectionFlaw::Bad("static index"))?;
                    Text::Known(name)
                } else {
                    self.copy_name(index)?
                };
                let value = string::read(input, &mut at, 7)?.decode(&mut self.scratch)?;
                self.insert(name, value)?;
            }
            0x40.. => {
                let name = string::read(input, &mut at, 5)?.decode(&mut self.scratch)?;
                let value = string::read(input, &mut at, 7)?.decode(&mut self.scratch)?;
                self.insert(name, value)?;
            }
            0x20.. => {
                let size = integer::read(input, &mut at, 5, 4)?;
                if size > self.max_capacity {
                    return Err(SectionFlaw::Bad("table over its limit"));
                }
                self.table.set_max(size);
            }
            _ => {
                let age = integer::read(input, &mut at, 5, 4)?;
                let name = self.copy_name(age)?;
                let (_, value) = self
                    .table
                    .get(age)
                    .ok_or(SectionFlaw::Bad("dynamic index"))?;
                let from = self.scratch.len();
                self.scratch.extend_from_slice(value);
                let value = Text::Scratch(from, self.scratch.len());
                self.insert(name, value)?;
            }
        }
        Ok(at)
    }

    /// Copies the name of an entry, which the insertion may evict.
    fn copy_name(&mut self, age: usize) -> Result<Text<'static>, SectionFlaw> {
        let (name, _) = self
            .table
            .get(age)
            .ok_or(SectionFlaw::Bad("dynamic index"))?;
        self.scratch.extend_from_slice(name);
        Ok(Text::Scratch(0, name.len()))
    }

    fn insert(&mut self, name: Text<'_>, value: Text<'_>) -> Result<(), SectionFlaw> {
        let (name, value) = (name.bytes(&self.scratch), value.bytes(&self.scratch));
        if name.len() + value.len() + ENTRY_OVERHEAD > self.table.max() {
            return Err(SectionFlaw::Bad("entry larger than the table"));
        }
        self.table.insert(name, value);
        self.inserted += 1;
        Ok(())
    }

    /// Reads a whole field section and hands its fields over in order. `sensitive` is set for
    /// literals that must never be indexed.
    ///
    /// # Errors
    ///
    /// The section is malformed, refers to an entry that does not exist, or too many streams wait.
    pub fn decode(
        &mut self,
        stream: u64,
        section: &[u8],
        sink: impl FnMut(Field<'_>),
    ) -> Result<Decoded, QpackError> {
        let decoded = self
            .section(stream, section, sink)
            .map_err(|flaw| match flaw {
                SectionFlaw::CutOff => QpackError::Section("cut off"),
                SectionFlaw::Bad(what) => QpackError::Section(what),
            });
        self.shrink();
        decoded
    }

    fn section(
        &mut self,
        stream: u64,
        section: &[u8],
        mut sink: impl FnMut(Field<'_>),
    ) -> Result<Decoded, SectionFlaw> {
        let mut at = 0;
        let prefix = self.prefix(section, &mut at)?;
        if prefix.required > self.inserted {
            if !self.blocked.contains_key(&stream) && self.blocked.len() >= self.max_blocked {
                return Err(SectionFlaw::Bad("too many streams wait for insertions"));
            }
            self.blocked.insert(stream, prefix.required);
            return Ok(Decoded::Blocked);
        }
        self.blocked.remove(&stream);
        while at < section.len() {
            self.line(section, &mut at, &prefix, &mut sink)?;
        }
        if prefix.required > 0 {
            integer::encode(&mut self.output, 0x80, 7, stream as usize);
            self.acknowledged = self.acknowledged.max(prefix.required);
        }
        Ok(Decoded::Whole)
    }

    /// Reads the prefix of a section (RFC 9204 section 4.5.1).
    fn prefix(&self, section: &[u8], at: &mut usize) -> Result<Prefix, SectionFlaw> {
        let wrapped = integer::read(section, at, 8, 8)? as u64;
        let required = self
            .required(wrapped)
            .ok_or(SectionFlaw::Bad("insert count"))?;
        let negative = section.get(*at).is_some_and(|byte| byte & 0x80 != 0);
        let delta = integer::read(section, at, 7, 8)? as u64;
        let base = if negative {
            required.checked_sub(delta + 1)
        } else {
            Some(required + delta)
        };
        Ok(Prefix {
            required,
            base: base.ok_or(SectionFlaw::Bad("base"))?,
            inserted: self.inserted,
        })
    }

    /// Reconstructs the Required Insert Count (RFC 9204 section 4.5.1.1).
    fn required(&self, wrapped: u64) -> Option<u64> {
        let max_entries = (self.max_capacity / ENTRY_OVERHEAD) as u64;
        let range = 2 * max_entries;
        if wrapped == 0 {
            return Some(0);
        }
        if wrapped > range {
            return None;
        }
        let most = self.inserted + max_entries;
        let required = most / range * range + wrapped - 1;
        let required = if required > most {
            required.checked_sub(range)?
        } else {
            required
        };
        (required > 0).then_some(required)
    }

    /// Reads one field line (RFC 9204 sections 4.5.2 to 4.5.6).
    fn line(
        &mut self,
        section: &[u8],
        at: &mut usize,
        prefix: &Prefix,
        sink: &mut impl FnMut(Field<'_>),
    ) -> Result<(), SectionFlaw> {
        let first = section[*at];
        self.scratch.clear();
        let (name, never) = match first {
            0x80.. => {
                let index = integer::read(section, at, 6, 4)?;
                let (name, value) = if first & 0x40 != 0 {
                    *STATIC.get(index).ok_or(SectionFlaw::Bad("static index"))?
                } else {
                    prefix.entry_before(&self.table, index)?
                };
                sink(Field {
                    name,
                    value,
                    sensitive: false,
                });
                return Ok(());
            }
            0x40.. => {
                let index = integer::read(section, at, 4, 4)?;
                let name = if first & 0x10 != 0 {
                    Text::Known(STATIC.get(index).ok_or(SectionFlaw::Bad("static index"))?.0)
                } else {
                    let (name, _) = prefix.entry_before(&self.table, index)?;
                    Text::Known(name)
                };
                (name, first & 0x20 != 0)
            }
            0x20.. => {
                let name = string::read(section, at, 3)?.decode(&mut self.scratch)?;
                (name, first & 0x10 != 0)
            }
            0x10.. => {
                let index = integer::read(section, at, 4, 4)?;
                let (name, value) = prefix.entry_after(&self.table, index)?;
                sink(Field {
                    name,
                    value,
                    sensitive: false,
                });
                return Ok(());
            }
            _ => {
                let index = integer::read(section, at, 3, 4)?;
                let (name, _) = prefix.entry_after(&self.table, index)?;
                (Text::Known(name), first & 0x08 != 0)
            }
        };
        let value = string::read(section, at, 7)?.decode(&mut self.scratch)?;
        sink(Field {
            name: name.bytes(&self.scratch),
            value: value.bytes(&self.scratch),
            sensitive: never,
        });
        Ok(())
    }

    /// Returns a stream whose section can be read now.
    pub fn poll_unblocked(&mut self) -> Option<u64> {
        let ready = self
            .blocked
            .iter()
            .find(|(_, needed)| **needed <= self.inserted);
        let stream = *ready?.0;
        self.blocked.remove(&stream);
        Some(stream)
    }

    /// Gives up the sections of a stream that is reset or is not read any more (RFC 9204 section
    /// 2.2.2.2).
    pub fn cancel(&mut self, stream: u64) {
        self.blocked.remove(&stream);
        if self.max_capacity > 0 {
            integer::encode(&mut self.output, 0x40, 6, stream as usize);
        }
    }

    /// Gives back memory that only a large section needed.
    fn shrink(&mut self) {
        if self.scratch.capacity() > 1024 {
            self.scratch = Vec::new();
        }
    }
}

/// The prefix of a field section.
struct Prefix {
    required: u64,
    base: u64,
    /// The insertions so far.
    inserted: u64,
}

impl Prefix {
    /// Returns the entry at `index` before the base.
    fn entry_before<'a>(
        &self,
        table: &'a Table,
        index: usize,
    ) -> Result<NameValue<'a>, SectionFlaw> {
        let number = self.base.checked_sub(index as u64 + 1);
        self.entry(table, number.ok_or(SectionFlaw::Bad("dynamic index"))?)
    }

    /// Returns the entry at `index` from the base on.
    fn entry_after<'a>(
        &self,
        table: &'a Table,
        index: usize,
    ) -> Result<NameValue<'a>, SectionFlaw> {
        self.entry(table, self.base + index as u64)
    }

    /// Returns the entry with this number, which the section's insert count must cover.
    fn entry<'a>(&self, table: &'a Table, number: u64) -> Result<NameValue<'a>, SectionFlaw> {
        let age = self.inserted.checked_sub(number + 1);
        age.filter(|_| number < self.required)
            .and_then(|age| table.get(usize::try_from(age).ok()?))
            .ok_or(SectionFlaw::Bad("dynamic index"))
    }
}

/// Name and value of an entry.
type NameValue<'a> = (&'a [u8], &'a [u8]);

/// The reason for which input could not be read.
enum SectionFlaw {
    CutOff,
    Bad(&'static str),
}

impl From<BadInteger> for SectionFlaw {
    fn from(bad: BadInteger) -> Self {
        match bad {
            BadInteger::CutOff => Self::CutOff,
            BadInteger::TooLong => Self::Bad("integer too large"),
        }
    }
}

impl From<BadHuffman> for SectionFlaw {
    fn from(_: BadHuffman) -> Self {
        Self::Bad("Huffman code")
    }
}
