//! Message bodies: where they end, and the chunked transfer coding. RFC 9112 sections 6 and 7.

use std::ops::Range;

use super::Framing;
use super::head::{MAX_NAME, Sender, parse_field};
use super::hop::is_hop_by_hop;
use crate::Fields;
use crate::message::is_framing_lookalike;

/// Bytes between a chunk's size and its line end.
const MAX_EXTENSION: usize = 1024;
/// Bytes of a whole trailer section.
const MAX_TRAILERS: usize = 16 << 10;
/// Fields of a trailer section.
const MAX_TRAILER_FIELDS: usize = 100;
/// Hexadecimal digits of a chunk size, leading zeros included.
const MAX_SIZE_DIGITS: u8 = 16;

/// Takes the framing off a body. After an error it gives the same error for ever.
#[derive(Debug)]
pub struct Decoder {
    state: BodyState,
    /// They are rare, so they are boxed.
    trailers: Option<Box<Fields>>,
}

#[derive(Debug)]
enum BodyState {
    Length(u64),
    UntilClose,
    Chunk(Chunk),
    /// Line begun and bytes of the section so far.
    Trailers(Box<TrailerLines>),
    Done,
    Failed(BadBody),
}

/// The position within a chunk (RFC 9112 section 7.1).
#[derive(Clone, Copy, Debug)]
enum Chunk {
    Size { value: u64, digits: u8 },
    Extension { size: u64, len: usize },
    SizeLf { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
}

#[derive(Debug, Default)]
struct TrailerLines {
    line: Vec<u8>,
    total: usize,
    fields: Fields,
}

/// The result of [`Decoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes of the input that are done with; 0 only for an empty input or a body that has ended.
    pub consumed: usize,
    /// The part of the input that is body; may be empty.
    pub data: Range<usize>,
    /// True if the body has ended: the rest of the input belongs to the next message.
    pub done: bool,
}

/// Why a body cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadBody {
    /// A chunk size that is no number, or too large a one.
    #[error("a chunk has no valid size")]
    ChunkSize,
    /// A chunk extension that is too long or holds control bytes.
    #[error("a chunk extension is not valid")]
    ChunkExtension,
    /// A line or a chunk's data that does not end with CR LF.
    #[error("a chunk does not end with CR LF")]
    LineEnd,
    /// Trailer fields that are malformed, or too many.
    #[error("the trailer section is not valid")]
    Trailers,
    /// The connection ended before the body did.
    #[error("the connection ended within the body")]
    Truncated,
}

impl Decoder {
    /// A decoder for one body.
    pub const fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::None | Framing::Length(0) => BodyState::Done,
            Framing::Length(left) => BodyState::Length(left),
            Framing::Chunked => BodyState::Chunk(Chunk::Size {
                value: 0,
                digits: 0,
            }),
            Framing::UntilClose => BodyState::UntilClose,
        };
        Self {
            state,
            trailers: None,
        }
    }

    /// Reads one run of body bytes and the framing around it.
    ///
    /// The caller repeats it with the bytes after `consumed`, until all are consumed or `done` is
    /// set. Bytes of the body that precede a fault are returned; the next call gives the error.
    pub fn decode(&mut self, input: &[u8]) -> Result<Decoded, BadBody> {
        let result = self.decode_run(input);
        if let Err(bad) = result {
            self.state = BodyState::Failed(bad);
        }
        result
    }

    fn decode_run(&mut self, input: &[u8]) -> Result<Decoded, BadBody> {
        let start = self.skip_framing(input, 0)?;
        let end = start + self.take_data(input.len() - start);
        let consumed = match self.skip_framing(input, end) {
            Ok(consumed) => consumed,
            Err(bad) if start == end => return Err(bad),
            Err(bad) => {
                // At least the byte at fault is left over, so the caller comes back for the error.
                self.state = BodyState::Failed(bad);
                end
            }
        };
        Ok(Decoded {
            consumed,
            data: start..end,
            done: self.is_done(),
        })
    }

    /// Takes up to `available` bytes of body from where the input stands.
    fn take_data(&mut self, available: usize) -> usize {
        match &mut self.state {
            BodyState::Length(left) => {
                let taken = clamp(*left, available);
                *left -= taken as u64;
                if *left == 0 {
                    self.state = BodyState::Done;
                }
                taken
            }
            BodyState::Chunk(Chunk::Data { left }) => {
                let taken = clamp(*left, available);
                *left -= taken as u64;
                if *left == 0 {
                    self.state = BodyState::Chunk(Chunk::DataCr);
                }
                taken
            }
            BodyState::UntilClose => available,
            BodyState::Chunk(_)
            | BodyState::Trailers(_)
            | BodyState::Done
            | BodyState::Failed(_) => 0,
        }
    }

    /// Reads framing from `at` on until body bytes are next, the body has ended or the input has.
    fn skip_framing(&mut self, input: &[u8], mut at: usize) -> Result<usize, BadBody> {
        while let Some(&byte) = input.get(at) {
            match &mut self.state {
                BodyState::Failed(bad) => return Err(*bad),
                BodyState::Length(_)
                | BodyState::UntilClose
                | BodyState::Done
                | BodyState::Chunk(Chunk::Data { .. }) => break,
                BodyState::Chunk(chunk) => match chunk.step(byte)? {
                    Some(next) => *chunk = next,
                    None => self.state = BodyState::Trailers(Box::default()),
                },
                BodyState::Trailers(lines) => {
                    if lines.step(byte)? {
                        let fields = std::mem::take(&mut lines.fields);
                        self.trailers = (!fields.is_empty()).then(|| Box::new(fields));
                        self.state = BodyState::Done;
                    }
                }
            }
            at += 1;
        }
        Ok(at)
    }

    /// Returns true if the body has ended.
    pub fn is_done(&self) -> bool {
        matches!(self.state, BodyState::Done)
    }

    /// Returns true if the body has ended, and no [trailers](Self::trailers) follow it.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, BodyState::Done) && self.trailers.is_none()
    }

    /// The peer closed the connection: right where closing ends the body and after its end, an
    /// error within it.
    pub fn finish(&mut self) -> Result<(), BadBody> {
        match self.state {
            BodyState::Done => Ok(()),
            BodyState::UntilClose => {
                self.state = BodyState::Done;
                Ok(())
            }
            BodyState::Failed(bad) => Err(bad),
            BodyState::Length(_) | BodyState::Chunk(_) | BodyState::Trailers(_) => {
                self.state = BodyState::Failed(BadBody::Truncated);
                Err(BadBody::Truncated)
            }
        }
    }

    /// The trailer fields, once, after the end; `None` when there were none. Fields that have no
    /// business in a trailer section (RFC 9110 section 6.5.1) are not among them.
    pub fn trailers(&mut self) -> Option<Fields> {
        self.trailers.take().map(|fields| *fields)
    }
}

fn clamp(left: u64, available: usize) -> usize {
    usize::try_from(left).map_or(available, |left| left.min(available))
}

impl Chunk {
    /// Takes one byte of framing; `None` when the last chunk's line has ended and trailers follow.
    fn step(self, byte: u8) -> Result<Option<Self>, BadBody> {
        Ok(Some(match self {
            Self::Size { value, digits } => match (hex(byte), byte) {
                (Some(_), _) if digits == MAX_SIZE_DIGITS || value >> 59 != 0 => {
                    return Err(BadBody::ChunkSize);
                }
                (Some(digit), _) => Self::Size {
                    value: value << 4 | digit,
                    digits: digits + 1,
                },
                _ if digits == 0 => return Err(BadBody::ChunkSize),
                (None, b'\r') => Self::SizeLf { size: value },
                (None, b';' | b' ' | b'\t') => Self::Extension {
                    size: value,
                    len: 1,
                },
                _ => return Err(BadBody::ChunkSize),
            },
            Self::Extension { size, .. } if byte == b'\r' => Self::SizeLf { size },
            Self::Extension { .. } if byte == b'\n' => return Err(BadBody::LineEnd),
            Self::Extension { size, len } => {
                if len == MAX_EXTENSION || (byte < 0x20 && byte != b'\t') || byte == 0x7f {
                    return Err(BadBody::ChunkExtension);
                }
                Self::Extension { size, len: len + 1 }
            }
            Self::SizeLf { size } if byte == b'\n' => match size {
                0 => return Ok(None),
                left => Self::Data { left },
            },
            Self::DataCr if byte == b'\r' => Self::DataLf,
            Self::DataLf if byte == b'\n' => Self::Size {
                value: 0,
                digits: 0,
            },
            Self::SizeLf { .. } | Self::DataCr | Self::DataLf => return Err(BadBody::LineEnd),
            Self::Data { .. } => unreachable!("data is taken in runs, never as framing"),
        }))
    }
}

fn hex(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

impl TrailerLines {
    /// Takes one byte of the trailer section; returns true at its end.
    fn step(&mut self, byte: u8) -> Result<bool, BadBody> {
        self.total += 1;
        if self.total > MAX_TRAILERS {
            return Err(BadBody::Trailers);
        }
        if byte != b'\n' {
            self.line.push(byte);
            return Ok(false);
        }
        if self.line.pop() != Some(b'\r') {
            return Err(BadBody::LineEnd);
        }
        if self.line.is_empty() {
            return Ok(true);
        }
        let mut lower = [0; MAX_NAME];
        let field = parse_field(&self.line, Sender::Client, &mut lower);
        let (name, value) = field.map_err(|_| BadBody::Trailers)?;
        if self.fields.len() == MAX_TRAILER_FIELDS {
            return Err(BadBody::Trailers);
        }
        if may_be_trailer(name) {
            self.fields.push_lower(name, value, false);
        }
        self.line.clear();
        Ok(false)
    }
}

/// Returns true if a field (lower-case name) may appear in a trailer section (RFC 9110 section
/// 6.5.1). Fields for framing, routing, request modifiers, authentication and content format come
/// too late there.
pub(super) fn may_be_trailer(name: &[u8]) -> bool {
    if is_hop_by_hop(name)
        || is_framing_lookalike(name)
        || name.starts_with(b"if-")
        || name.starts_with(b"content-")
    {
        return false;
    }
    !matches!(
        name,
        b"age"
            | b"authorization"
            | b"cache-control"
            | b"cookie"
            | b"date"
            | b"expect"
            | b"expires"
            | b"host"
            | b"location"
            | b"max-forwards"
            | b"pragma"
            | b"proxy-authenticate"
            | b"proxy-authorization"
            | b"range"
            | b"retry-after"
            | b"set-cookie"
            | b"te"
            | b"trailer"
            | b"vary"
            | b"www-authenticate"
    )
}
