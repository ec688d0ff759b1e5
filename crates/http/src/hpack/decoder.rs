//! From header blocks to fields (RFC 7541 sections 3 and 6).

use super::integer::BadInteger;
use super::string::Text;
use super::table::{STATIC, Table};
use super::{DEFAULT_TABLE_SIZE, huffman, integer, string};
use crate::fields::Field;

/// A header block that breaks RFC 7541. The table is out of step from then on, so the session must
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// An index with nothing behind it (section 2.3.3).
    #[error("index out of range")]
    Index,
    /// A cut off or far too large integer (section 5.1).
    #[error("bad integer")]
    Integer,
    /// A string literal longer than the block.
    #[error("string literal cut off")]
    CutOff,
    /// Bad Huffman code or padding (section 5.2).
    #[error(transparent)]
    Huffman(#[from] huffman::BadHuffman),
    /// A table size update too large or in the wrong place (sections 4.2 and 6.3).
    #[error("bad table size update")]
    SizeUpdate,
}

/// The receiving half of one direction: reads header blocks, in the order of the wire.
///
/// The work for a block is linear in its bytes, apart from the work of `sink`. A field passed to
/// `sink` is never longer than the table or 8/5 of the block. `sink` must bound the sum itself.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The limit in bytes for the peer's encoder.
    limit: usize,
    /// The strings of the current field that the block does not contain literally.
    scratch: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder with an empty table of [`DEFAULT_TABLE_SIZE`].
    pub fn new() -> Self {
        Self {
            table: Table::new(DEFAULT_TABLE_SIZE),
            limit: DEFAULT_TABLE_SIZE,
            scratch: Vec::new(),
        }
    }

    /// Reads one whole header block and hands its fields over in order. `sensitive` is set for
    /// literals that must never be indexed (section 6.2.3).
    pub fn decode(
        &mut self,
        block: &[u8],
        mut sink: impl FnMut(Field<'_>),
    ) -> Result<(), HpackError> {
        let mut at = self.size_updates(block)?;
        while let Some(&first) = block.get(at) {
            if first & 0x80 != 0 {
                let index = integer::decode(block, &mut at, 7).ok_or(HpackError::Integer)?;
                let (name, value) = self.entry(index)?;
                sink(Field {
                    name,
                    value,
                    sensitive: false,
                });
            } else if first & 0xe0 == 0x20 {
                return Err(HpackError::SizeUpdate);
            } else {
                self.literal(block, &mut at, &mut sink)?;
            }
        }
        Ok(())
    }

    /// Size updates come before the first field only (section 4.2). Returns where that is.
    fn size_updates(&mut self, block: &[u8]) -> Result<usize, HpackError> {
        let mut at = 0;
        while block.get(at).is_some_and(|first| first & 0xe0 == 0x20) {
            let size = integer::decode(block, &mut at, 5).ok_or(HpackError::Integer)?;
            if size > self.limit {
                return Err(HpackError::SizeUpdate);
            }
            self.table.set_max(size);
        }
        Ok(at)
    }

    fn literal(
        &mut self,
        block: &[u8],
        at: &mut usize,
        sink: &mut impl FnMut(Field<'_>),
    ) -> Result<(), HpackError> {
        let first = block[*at];
        let (indexed, prefix) = if first & 0x40 != 0 {
            (true, 6)
        } else {
            (false, 4)
        };
        self.scratch.clear();
        let name = match integer::decode(block, at, prefix).ok_or(HpackError::Integer)? {
            0 => self.string(block, at)?,
            index if index <= STATIC.len() => Text::Known(STATIC[index - 1].0),
            index => self.copy_name(index)?,
        };
        let value = self.string(block, at)?;
        let (name, value) = (name.bytes(&self.scratch), value.bytes(&self.scratch));
        sink(Field {
            name,
            value,
            sensitive: first & 0xf0 == 0x10,
        });
        if indexed {
            self.table.insert(name, value);
        }
        Ok(())
    }

    /// A name out of the dynamic table is copied, as its entry may be dropped when the new one goes
    /// in.
    fn copy_name(&mut self, index: usize) -> Result<Text<'static>, HpackError> {
        let (name, _) = self
            .table
            .get(index - STATIC.len() - 1)
            .ok_or(HpackError::Index)?;
        self.scratch.extend_from_slice(name);
        Ok(Text::Scratch(0, name.len()))
    }

    /// A string literal (section 5.2).
    fn string<'a>(&mut self, block: &'a [u8], at: &mut usize) -> Result<Text<'a>, HpackError> {
        let literal = string::read(block, at, 7).map_err(|bad| match bad {
            BadInteger::CutOff => HpackError::CutOff,
            BadInteger::TooLong => HpackError::Integer,
        })?;
        Ok(literal.decode(&mut self.scratch)?)
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        let place = index.checked_sub(1).ok_or(HpackError::Index)?;
        match STATIC.get(place) {
            Some(&pair) => Ok(pair),
            None => self
                .table
                .get(place - STATIC.len())
                .ok_or(HpackError::Index),
        }
    }

    /// Gives back memory that only a large block needed.
    pub(crate) fn shrink(&mut self) {
        if self.scratch.capacity() > 1024 {
            self.scratch = Vec::new();
        }
    }
}
