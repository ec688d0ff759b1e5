//! The decoder of one body: a zstd frame from the other proxy, which may lie about everything.
//!
//! The window is bounded ([`MAX_WINDOW_LOG`]), and each step returns a bounded piece. A frame that
//! expands a thousandfold therefore takes no more memory than another, and its reader decides how
//! much of it is decoded.

use bytes::{Buf, Bytes};
use zstd::stream::raw::{DParameter, Decoder as Raw, InBuffer, Operation, OutBuffer};

use crate::dictionary::MAX_DICTIONARY;
use crate::{CodingError, MAX_WINDOW_LOG};

/// The largest piece that a step returns, in bytes.
pub const MAX_PIECE: usize = 32 << 10;

/// Decodes one body.
pub struct Decoder {
    raw: Raw<'static>,
    input: Bytes,
    space: Vec<u8>,
    /// True if zstd may hold decoded data that did not fit into the last piece.
    has_more: bool,
    has_ended: bool,
    length: Option<u64>,
    taken: u64,
    given: u64,
}

impl Decoder {
    /// Creates a decoder for a body that has `length` bytes when it is decoded, if that is known.
    ///
    /// # Errors
    /// Fails if zstd cannot allocate its state.
    pub fn new(length: Option<u64>) -> Result<Self, CodingError> {
        Self::with_dictionary(length, &[])
    }

    /// Creates a decoder as [`Self::new`] does, for a frame that needs a dictionary. An empty one
    /// is none.
    ///
    /// # Errors
    /// Fails if zstd cannot allocate its state.
    pub fn with_dictionary(length: Option<u64>, dictionary: &[u8]) -> Result<Self, CodingError> {
        let mut raw = Raw::with_dictionary(dictionary).map_err(malformed)?;
        raw.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))
            .map_err(malformed)?;
        Ok(Self {
            raw,
            input: Bytes::new(),
            space: Vec::new(),
            has_more: false,
            has_ended: false,
            length,
            taken: 0,
            given: 0,
        })
    }

    /// Returns the memory in bytes that a decoder takes at most.
    pub const fn memory() -> usize {
        // zstd adds a block of input, one of output and its tables to the window, and a copy of the
        // dictionary.
        (1 << MAX_WINDOW_LOG) + (512 << 10) + MAX_DICTIONARY
    }

    /// Adds a piece of the frame. All of the previous one must have been decoded.
    pub fn write(&mut self, data: Bytes) {
        debug_assert!(self.input.is_empty(), "the previous piece is decoded");
        self.taken += data.len() as u64;
        self.input = data;
    }

    /// Returns the next piece of the body, or `None` if that needs more of the frame.
    ///
    /// # Errors
    /// Fails if the frame is malformed or asks for too large a window, if data follow it, or if the
    /// body is longer than stated.
    pub fn read(&mut self) -> Result<Option<Bytes>, CodingError> {
        while self.has_more || !self.input.is_empty() {
            if self.has_ended {
                return Err(CodingError::Trailing);
            }
            self.space.resize(MAX_PIECE, 0);
            let mut input = InBuffer::around(&self.input);
            let mut output = OutBuffer::around(&mut self.space[..]);
            let rest = self.raw.run(&mut input, &mut output).map_err(malformed)?;
            let (read, written) = (input.pos(), output.pos());
            self.input.advance(read);
            self.has_ended = rest == 0;
            self.has_more = !self.has_ended && written == MAX_PIECE;
            if written > 0 {
                return self.piece(written).map(Some);
            }
        }
        Ok(None)
    }

    fn piece(&mut self, length: usize) -> Result<Bytes, CodingError> {
        self.given += length as u64;
        if self.length.is_some_and(|length| self.given > length) {
            return Err(CodingError::Length);
        }
        self.space.truncate(length);
        // A short piece keeps no large allocation alive.
        let piece = if length < MAX_PIECE / 2 {
            Bytes::copy_from_slice(&self.space)
        } else {
            std::mem::take(&mut self.space).into()
        };
        Ok(piece)
    }

    /// Checks that the body is complete.
    ///
    /// # Errors
    /// Fails if the frame has not ended, or if the body is shorter than stated.
    pub fn finish(&self) -> Result<(), CodingError> {
        if !self.has_ended || !self.input.is_empty() {
            return Err(CodingError::Truncated);
        }
        match self.length {
            Some(length) if length != self.given => Err(CodingError::Length),
            _ => Ok(()),
        }
    }

    /// Returns the numbers of bytes after and before the decoding.
    pub const fn counts(&self) -> (u64, u64) {
        (self.given, self.taken)
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}

fn malformed(error: std::io::Error) -> CodingError {
    CodingError::Malformed(error.to_string())
}
