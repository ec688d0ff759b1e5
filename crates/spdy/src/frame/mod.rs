//! Frames on the wire: one file for each type, and the eight-byte head that they share. Draft
//! section 2.2.
//!
//! ```text
//! control  |1| version:15 |    type:16    |
//!          |  flags:8  |     length:24    |  payload
//! data     |0|        stream-id:31        |
//!          |  flags:8  |     length:24    |  payload
//! ```
//!
//! `load` reads a payload that is complete, `encode` appends a whole frame. Header blocks stay
//! compressed here: they belong to [`crate::header_block`]. Reserved bits are masked when read and
//! written as 0.

mod data;
mod goaway;
mod headers;
mod ping;
mod reader;
mod rst_stream;
mod settings;
mod syn_reply;
mod syn_stream;
mod window_update;

use bytes::{BufMut as _, BytesMut};

pub use data::Data;
pub use goaway::GoAway;
pub use headers::Headers;
pub use ping::Ping;
pub use reader::{FrameReader, Piece};
pub use rst_stream::RstStream;
pub use settings::{Setting, SettingId, Settings};
pub use syn_reply::SynReply;
pub use syn_stream::SynStream;
pub use window_update::WindowUpdate;

/// Bytes of the head of every frame.
pub const HEAD_LEN: usize = 8;

/// The version field of every control frame; SPDY/3.1 writes 3 as well.
pub const WIRE_VERSION: u16 = 3;

/// Largest number of a stream, largest window and largest delta.
pub const MAX_31: u32 = 0x7fff_ffff;

/// The sender's last frame on this stream.
pub const FLAG_FIN: u8 = 0x01;

/// On SYN_STREAM: the receiver sends nothing on this stream.
pub const FLAG_UNIDIRECTIONAL: u8 = 0x02;

/// Types of control frames that carry something; all others are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the draft's")]
pub enum FrameType {
    SynStream = 1,
    SynReply = 2,
    RstStream = 3,
    Settings = 4,
    Ping = 6,
    GoAway = 7,
    Headers = 8,
    WindowUpdate = 9,
}

impl FrameType {
    /// The type with this number. NOOP (5), CREDENTIAL (10) and unknown numbers are none: they
    /// change nothing and carry no compression state, so all known peers skip them.
    pub const fn from_wire(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::SynStream,
            2 => Self::SynReply,
            3 => Self::RstStream,
            4 => Self::Settings,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::Headers,
            9 => Self::WindowUpdate,
            _ => return None,
        })
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The head of a control frame.
    Control(ControlHead),
    /// The head of a DATA frame.
    Data(Data),
}

/// The head of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlHead {
    /// 3, unless the peer speaks something else.
    pub version: u16,
    /// See [`FrameType::from_wire`].
    pub number: u16,
    /// Flags; their meaning depends on the type.
    pub flags: u8,
    /// Bytes of payload.
    pub len: u32,
}

impl Head {
    /// Reads a head.
    pub fn load(bytes: &[u8; HEAD_LEN]) -> Self {
        let [a, b, c, d, flags, e, f, g] = *bytes;
        let len = u32::from_be_bytes([0, e, f, g]);
        if a & 0x80 == 0 {
            return Self::Data(Data {
                stream: u32::from_be_bytes([a, b, c, d]),
                fin: flags & FLAG_FIN != 0,
                len,
            });
        }
        let version = u16::from_be_bytes([a & 0x7f, b]);
        Self::Control(ControlHead {
            version,
            number: u16::from_be_bytes([c, d]),
            flags,
            len,
        })
    }
}

/// A control frame that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each holds the frame of its name")]
pub enum Frame<'a> {
    SynStream(SynStream<'a>),
    SynReply(SynReply<'a>),
    RstStream(RstStream),
    Settings(Settings),
    Ping(Ping),
    GoAway(GoAway),
    Headers(Headers<'a>),
    WindowUpdate(WindowUpdate),
}

impl<'a> Frame<'a> {
    /// Reads a whole payload of this type.
    pub fn load(kind: FrameType, flags: u8, payload: &'a [u8]) -> Result<Self, FrameError> {
        Ok(match kind {
            FrameType::SynStream => Self::SynStream(SynStream::load(flags, payload)?),
            FrameType::SynReply => Self::SynReply(SynReply::load(flags, payload)?),
            FrameType::RstStream => Self::RstStream(RstStream::load(payload)?),
            FrameType::Settings => Self::Settings(Settings::load(flags, payload)?),
            FrameType::Ping => Self::Ping(Ping::load(payload)?),
            FrameType::GoAway => Self::GoAway(GoAway::load(payload)?),
            FrameType::Headers => Self::Headers(Headers::load(flags, payload)?),
            FrameType::WindowUpdate => Self::WindowUpdate(WindowUpdate::load(payload)?),
        })
    }
}

/// A payload that is no frame of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The payload is shorter or longer than its type allows.
    #[error("payload length does not fit the frame type")]
    Length,
    /// SETTINGS announces another number of entries than it has.
    #[error("SETTINGS count does not fit its length")]
    Count,
}

/// Appends the head of a control frame of our version. Payloads are far below 2^24: the callers'
/// limits see to it.
fn put_control_head(dst: &mut BytesMut, kind: FrameType, flags: u8, len: usize) {
    debug_assert!(len < 1 << 24, "payload within the 24-bit length");
    dst.put_u16(0x8000 | WIRE_VERSION);
    dst.put_u16(kind as u16);
    dst.put_u32(u32::from(flags) << 24 | len as u32);
}

/// Reads a big-endian number at `at`; the caller has checked the length.
fn u32_at(payload: &[u8], at: usize) -> u32 {
    payload[at..]
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The same without the reserved bit.
fn u31_at(payload: &[u8], at: usize) -> u32 {
    u32_at(payload, at) & MAX_31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_both_kinds() {
        let control = Head::load(&[0x80, 3, 0, 1, 2, 0, 1, 0]);
        assert_eq!(
            control,
            Head::Control(ControlHead {
                version: 3,
                number: 1,
                flags: 2,
                len: 256
            })
        );
        let data = Head::load(&[0x7f, 0xff, 0xff, 0xff, 1, 0, 0, 5]);
        assert_eq!(
            data,
            Head::Data(Data {
                stream: MAX_31,
                fin: true,
                len: 5
            })
        );
    }

    #[test]
    fn wrong_lengths_are_refused() {
        for kind in 1..=9 {
            let Some(kind) = FrameType::from_wire(kind) else {
                continue;
            };
            for len in [0, 3] {
                assert_eq!(
                    Frame::load(kind, 0, &vec![0; len]),
                    Err(FrameError::Length),
                    "{kind:?} {len}"
                );
            }
        }
        for kind in [
            FrameType::RstStream,
            FrameType::Ping,
            FrameType::GoAway,
            FrameType::WindowUpdate,
        ] {
            assert_eq!(
                Frame::load(kind, 0, &[0; 9]),
                Err(FrameError::Length),
                "{kind:?}"
            );
        }
    }
}
