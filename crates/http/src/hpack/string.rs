//! String literals (RFC 7541 section 5.2). QPACK also uses shorter prefixes for their lengths (RFC
//! 9204 section 4.1.2).

use super::{huffman, integer};

/// Appends `text`, Huffman coded if that is shorter. The length has a prefix of `bits` bits, the
/// bit above it marks coded text, and `pattern` fills the bits above that.
pub(crate) fn encode(out: &mut Vec<u8>, pattern: u8, bits: u8, text: &[u8]) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::encode(out, pattern | 1 << bits, bits, coded);
        huffman::encode(out, text);
    } else {
        integer::encode(out, pattern, bits, text.len());
        out.extend_from_slice(text);
    }
}

/// A string literal as it stands on the wire.
pub(crate) struct Literal<'a> {
    /// The text, or its Huffman code.
    pub(crate) raw: &'a [u8],
    pub(crate) coded: bool,
}

/// Reads the string literal that begins at `*at`; moves `*at` behind it. Fails if the literal is
/// cut off, or if its length is 2^28 or more.
pub(crate) fn read<'a>(
    block: &'a [u8],
    at: &mut usize,
    bits: u8,
) -> Result<Literal<'a>, integer::BadInteger> {
    let first = *block.get(*at).ok_or(integer::BadInteger::CutOff)?;
    let length = integer::read(block, at, bits, 4)?;
    let raw = block[*at..]
        .get(..length)
        .ok_or(integer::BadInteger::CutOff)?;
    *at += length;
    Ok(Literal {
        raw,
        coded: first & 1 << bits != 0,
    })
}

impl<'a> Literal<'a> {
    /// Decodes the text. Coded text goes to the end of `scratch`.
    pub(crate) fn decode(self, scratch: &mut Vec<u8>) -> Result<Text<'a>, huffman::BadHuffman> {
        if !self.coded {
            return Ok(Text::Known(self.raw));
        }
        let from = scratch.len();
        huffman::decode(scratch, self.raw)?;
        Ok(Text::Scratch(from, scratch.len()))
    }
}

/// The location of a string of the current field.
#[derive(Clone, Copy)]
pub(crate) enum Text<'a> {
    Known(&'a [u8]),
    /// Range of the scratch buffer.
    Scratch(usize, usize),
}

impl<'a> Text<'a> {
    pub(crate) fn bytes(self, scratch: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Known(text) => text,
            Self::Scratch(from, to) => &scratch[from..to],
        }
    }
}
