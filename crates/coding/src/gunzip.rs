//! The decoder of bodies with gzip (RFC 1952), which origins sent.
//!
//! It returns pieces of bounded size, so a body that expands a thousandfold takes no more memory
//! than another.
//!
//! A member is complete at the end of its DEFLATE data. The footer is read but not compared, and
//! may be missing, since browsers show such bodies: Chromium skips eight bytes there. Programs on
//! servers write such footers, for example the Adler-32 checksum of zlib. A body that ends within
//! DEFLATE data is never complete.

use bytes::{Buf, Bytes};
use flate2::{Decompress, FlushDecompress, Status};

use crate::CodingError;

/// The largest piece that a step returns, in bytes.
const MAX_PIECE: usize = 32 << 10;

/// The first bytes of each member, with DEFLATE as its method (RFC 1952 section 2.3).
const MAGIC: [u8; 3] = [0x1f, 0x8b, 0x08];

/// The length of a header without optional fields, in bytes.
const FIXED: usize = 10;

/// The length of a footer in bytes: CRC-32 and length.
const FOOTER: usize = 8;

/// The optional fields of a header in their order, with their bits in the flags.
const OPTIONAL: [(u8, Field); 5] = [
    (0b0_0100, Field::ExtraLength),
    (0b0_0100, Field::Extra),
    (0b0_1000, Field::Name),
    (0b1_0000, Field::Comment),
    (0b0_0010, Field::Checksum),
];

/// Decodes one body, which is a series of members (RFC 1952 section 2.2).
pub struct Gunzip {
    inner: Decompress,
    input: Bytes,
    space: Vec<u8>,
    /// True if decoded data may be left that did not fit into the last piece.
    has_more: bool,
    position: Position,
    taken: u64,
    given: u64,
}

/// The position in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// No byte has been read.
    Start,
    Header(Header),
    /// In the DEFLATE data of a member.
    Data,
    /// In the footer of a member, behind this many bytes.
    Footer(usize),
    /// Behind a member, and behind this many bytes of another one's [`MAGIC`].
    Behind(usize),
    /// Behind the last member.
    End,
}

/// The position in the header of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    field: Field,
    /// The number of bytes of the field that have been read.
    read: usize,
    flags: u8,
    /// The length of the field [`Field::Extra`] in bytes.
    extra: u16,
}

/// A field of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Field {
    Fixed,
    ExtraLength,
    Extra,
    Name,
    Comment,
    Checksum,
}

impl Gunzip {
    /// The memory in bytes that a decoder takes at most: its state and window, and a piece.
    pub const MEMORY: usize = (64 << 10) + MAX_PIECE;

    /// Creates a decoder.
    pub fn new() -> Self {
        Self {
            inner: Decompress::new(false),
            input: Bytes::new(),
            space: Vec::new(),
            has_more: false,
            position: Position::Start,
            taken: 0,
            given: 0,
        }
    }

    /// Adds a piece of the body. All of the previous one must have been decoded. Data behind the
    /// last member that begin no other one are ignored, as browsers do.
    pub fn write(&mut self, data: Bytes) {
        debug_assert!(self.input.is_empty(), "the previous piece is decoded");
        self.taken += data.len() as u64;
        self.input = data;
    }

    /// Returns the next piece of the decoded body, or `None` if that needs more data.
    ///
    /// # Errors
    /// Fails if a header or the DEFLATE data are malformed.
    pub fn read(&mut self) -> Result<Option<&[u8]>, CodingError> {
        while self.has_more || !self.input.is_empty() {
            if self.position != Position::Data {
                self.skip()?;
                continue;
            }
            let (read, written) = self.inflate()?;
            if written > 0 {
                self.given += written as u64;
                return Ok(self.space.get(..written));
            }
            if read == 0 && self.position == Position::Data {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Returns the numbers of bytes before and after the decoding.
    pub const fn counts(&self) -> (u64, u64) {
        (self.taken, self.given)
    }

    /// Decodes a piece of DEFLATE data. Returns the numbers of bytes before and after the decoding.
    fn inflate(&mut self) -> Result<(usize, usize), CodingError> {
        self.space.resize(MAX_PIECE, 0);
        let before = (self.inner.total_in(), self.inner.total_out());
        let status = self
            .inner
            .decompress(&self.input, &mut self.space, FlushDecompress::None)
            .map_err(|error| CodingError::Malformed(error.to_string()))?;
        let read = usize::try_from(self.inner.total_in() - before.0).unwrap_or(usize::MAX);
        let written = usize::try_from(self.inner.total_out() - before.1).unwrap_or(usize::MAX);
        self.input.advance(read.min(self.input.len()));
        let has_ended = status == Status::StreamEnd;
        if has_ended {
            self.position = Position::Footer(0);
        }
        self.has_more = !has_ended && written >= MAX_PIECE;
        Ok((read, written))
    }

    /// Reads a byte outside of DEFLATE data, or all bytes behind the last member.
    fn skip(&mut self) -> Result<(), CodingError> {
        if self.position == Position::End {
            self.input.clear();
        }
        let Some(&byte) = self.input.first() else {
            return Ok(());
        };
        self.input.advance(1);
        self.position = match self.position {
            Position::Start => Header::START.follow(byte)?,
            Position::Header(header) => header.follow(byte)?,
            Position::Footer(read) if read + 1 < FOOTER => Position::Footer(read + 1),
            Position::Footer(_) => Position::Behind(0),
            Position::Behind(read) if MAGIC.get(read) == Some(&byte) => self.behind(read + 1),
            Position::Behind(_) => Position::End,
            other @ (Position::Data | Position::End) => other,
        };
        Ok(())
    }

    /// Returns the position behind a member and `read` bytes of [`MAGIC`], and begins another
    /// member behind the last one.
    fn behind(&mut self, read: usize) -> Position {
        if read < MAGIC.len() {
            return Position::Behind(read);
        }
        self.inner.reset(false);
        Position::Header(Header {
            read,
            ..Header::START
        })
    }

    /// Checks that the body is complete. An empty body is, since some origins name gzip there.
    ///
    /// # Errors
    /// Fails if the body ends within a header or DEFLATE data.
    pub fn finish(&self) -> Result<(), CodingError> {
        match self.position {
            Position::Header(_) | Position::Data => Err(CodingError::Truncated),
            Position::Start | Position::Footer(_) | Position::Behind(_) | Position::End => Ok(()),
        }
    }
}

impl Default for Gunzip {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Gunzip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gunzip")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Header {
    /// The position before the first byte.
    const START: Self = Self {
        field: Field::Fixed,
        read: 0,
        flags: 0,
        extra: 0,
    };

    /// Reads a byte. Returns the position behind it.
    fn follow(mut self, byte: u8) -> Result<Position, CodingError> {
        let at = self.read;
        self.read += 1;
        let is_over = match self.field {
            Field::Fixed => {
                if MAGIC.get(at).is_some_and(|&expected| expected != byte) {
                    return Err(CodingError::Malformed("it has no gzip header".into()));
                }
                if at == MAGIC.len() {
                    self.flags = byte;
                }
                self.read == FIXED
            }
            Field::ExtraLength => {
                self.extra = self.extra >> 8 | u16::from(byte) << 8;
                self.read == 2
            }
            Field::Extra => self.read == usize::from(self.extra),
            Field::Name | Field::Comment => byte == 0,
            Field::Checksum => self.read == 2,
        };
        Ok(if is_over {
            self.next()
        } else {
            Position::Header(self)
        })
    }

    /// Returns the position behind a field.
    fn next(self) -> Position {
        let follows = |&&(flag, field): &&(u8, Field)| {
            let is_empty = field == Field::Extra && self.extra == 0;
            field > self.field && self.flags & flag != 0 && !is_empty
        };
        let next = OPTIONAL.iter().find(follows);
        next.map_or(Position::Data, |&(_, field)| {
            Position::Header(Self {
                field,
                read: 0,
                ..self
            })
        })
    }
}
