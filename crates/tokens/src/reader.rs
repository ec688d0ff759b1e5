//! Reads the fixed and the counted parts of a message (RFC 8446 section 3).

use crate::token::FormatError;

/// The part of a message that has not been read.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Reads `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let (part, rest) = self.0.split_at_checked(count).ok_or(FormatError::Length)?;
        self.0 = rest;
        Ok(part)
    }

    /// Reads an array.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    /// Reads a number of two bytes.
    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads a vector with a length of two bytes before it.
    pub(crate) fn vector16(&mut self) -> Result<&'a [u8], FormatError> {
        let length = self.u16()?;
        self.bytes(usize::from(length))
    }

    /// Reads a vector with a length of one byte before it.
    pub(crate) fn vector8(&mut self) -> Result<&'a [u8], FormatError> {
        let [length] = self.array()?;
        self.bytes(usize::from(length))
    }

    /// Returns true at the end of the message.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the rest of the message.
    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Checks that the message has been read to its end.
    pub(crate) const fn end(self) -> Result<(), FormatError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(FormatError::Length),
        }
    }
}
