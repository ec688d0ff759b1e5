//! The encoder of one body: a zstd frame, written in pieces.
//!
//! The gateway's stage feeds it, and flushes it as soon as the origin pauses.

use bytes::Bytes;
use zstd::stream::raw::{CParameter, Encoder as Raw, InBuffer, Operation, OutBuffer};

use crate::{CodingError, MAX_WINDOW_LOG};

/// The window of long bodies, and of those with unknown lengths, as a power of two: 256 KiB. With a
/// dictionary it is [`MAX_WINDOW_LOG`].
const WINDOW_LOG: u32 = 18;

/// The size of the encoder's two tables, as a power of two in entries of four bytes.
const TABLE_LOG: u32 = 17;

/// The space in bytes that one step of the encoder writes to.
const STEP: usize = 16 << 10;

/// Encodes one body.
pub struct Encoder {
    raw: Raw<'static>,
    /// The frame up to now that has not been taken.
    output: Vec<u8>,
    /// True if the encoder holds data that the output lacks.
    is_behind: bool,
    taken: u64,
    given: u64,
}

impl Encoder {
    /// Creates an encoder for a body of `length` bytes, if that is known.
    ///
    /// # Errors
    /// Fails if zstd rejects the parameters.
    pub fn new(level: i32, length: Option<u64>) -> Result<Self, CodingError> {
        Self::with_dictionary(level, length, &[])
    }

    /// Creates an encoder as [`Self::new`] does, for a decoder with the same dictionary. An empty
    /// dictionary is none.
    ///
    /// # Errors
    /// Fails if zstd rejects the parameters.
    pub fn with_dictionary(
        level: i32,
        length: Option<u64>,
        dictionary: &[u8],
    ) -> Result<Self, CodingError> {
        let mut raw = Raw::with_dictionary(level, dictionary).map_err(failed)?;
        let (window, has_dictionary) = match dictionary {
            [] => (WINDOW_LOG, false),
            _ => (MAX_WINDOW_LOG, true),
        };
        for parameter in [
            CParameter::WindowLog(window),
            CParameter::HashLog(TABLE_LOG),
            CParameter::ChainLog(TABLE_LOG),
            // A wrong dictionary would otherwise give wrong bytes.
            CParameter::ChecksumFlag(has_dictionary),
        ] {
            raw.set_parameter(parameter).map_err(failed)?;
        }
        raw.set_pledged_src_size(length).map_err(failed)?;
        Ok(Self {
            raw,
            output: Vec::new(),
            is_behind: false,
            taken: 0,
            given: 0,
        })
    }

    /// Returns the memory in bytes that an encoder for a body of `length` bytes takes at most, with
    /// a dictionary of `dictionary` bytes, or 0 without one.
    pub fn memory(length: Option<u64>, dictionary: usize) -> usize {
        if dictionary == 0 {
            return Self::memory_of_window(length);
        }
        let both = length.map(|length| length.saturating_add(dictionary as u64));
        // The dictionary has a copy, and tables as large as those of the body.
        2 * Self::memory_of_window(both) + 2 * dictionary + (1 << WINDOW_LOG)
    }

    /// Returns the memory in bytes of the window, the tables and the blocks.
    fn memory_of_window(length: Option<u64>) -> usize {
        let window = 1usize << WINDOW_LOG.min(MAX_WINDOW_LOG);
        let length = length.and_then(|length| usize::try_from(length).ok());
        let window = length.map_or(window, |length| length.clamp(1 << 10, window));
        let tables = 2 * 4 * (window.next_power_of_two() * 2).min(1 << TABLE_LOG);
        // zstd adds a block of input and one of output to its window.
        2 * window + tables + (512 << 10).min(4 * window) + (64 << 10)
    }

    /// Adds data to the body.
    ///
    /// # Errors
    /// Fails if the body is longer than its stated length.
    pub fn write(&mut self, data: &[u8]) -> Result<(), CodingError> {
        self.taken += data.len() as u64;
        self.is_behind |= !data.is_empty();
        let mut input = InBuffer::around(data);
        while input.pos() < data.len() {
            self.step(|raw, output| raw.run(&mut input, output))?;
        }
        Ok(())
    }

    /// Writes all data so far to the output, if some are missing there.
    ///
    /// # Errors
    /// Fails if zstd fails.
    pub fn flush(&mut self) -> Result<(), CodingError> {
        if std::mem::take(&mut self.is_behind) {
            while self.step(|raw, output| raw.flush(output))? > 0 {}
        }
        Ok(())
    }

    /// Ends the frame.
    ///
    /// # Errors
    /// Fails if the body is shorter than its stated length.
    pub fn finish(&mut self) -> Result<(), CodingError> {
        self.is_behind = false;
        while self.step(|raw, output| raw.finish(output, true))? > 0 {}
        Ok(())
    }

    /// Returns the number of bytes of output that can be taken.
    pub const fn ready(&self) -> usize {
        self.output.len()
    }

    /// Takes the output, or returns `None` if there is none.
    pub fn take(&mut self) -> Option<Bytes> {
        self.given += self.output.len() as u64;
        (!self.output.is_empty()).then(|| std::mem::take(&mut self.output).into())
    }

    /// Returns the numbers of bytes before and after the coding, as far as they were taken.
    pub const fn counts(&self) -> (u64, u64) {
        (self.taken, self.given)
    }

    /// Runs one step of zstd with room for output, and returns its result.
    fn step(
        &mut self,
        run: impl FnOnce(&mut Raw<'static>, &mut OutBuffer<'_, [u8]>) -> std::io::Result<usize>,
    ) -> Result<usize, CodingError> {
        let at = self.output.len();
        self.output.resize(at + STEP, 0);
        let mut space = OutBuffer::around(&mut self.output[at..]);
        let result = run(&mut self.raw, &mut space);
        let written = space.pos();
        self.output.truncate(at + written);
        result.map_err(failed)
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder")
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

fn failed(error: std::io::Error) -> CodingError {
    CodingError::Encode(error.to_string())
}
