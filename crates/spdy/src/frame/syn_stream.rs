//! SYN_STREAM: opens a stream with the head of a request, or announces a push. Draft section 2.6.1.

use bytes::{BufMut as _, BytesMut};

use super::{FLAG_FIN, FLAG_UNIDIRECTIONAL, FrameError, FrameType, put_control_head, u31_at};

/// Opens a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynStream<'a> {
    /// The new stream.
    pub stream: u32,
    /// The stream that a push belongs to; 0 for none.
    pub associated: u32,
    /// 0 (first) to 7.
    pub priority: u8,
    /// Index of a client certificate (SPDY/3); reserved in SPDY/3.1. We write 0 and read nothing
    /// from it.
    pub slot: u8,
    /// No data follows from the sender.
    pub fin: bool,
    /// The receiver sends nothing on this stream.
    pub unidirectional: bool,
    /// Compressed header block.
    pub block: &'a [u8],
}

impl<'a> SynStream<'a> {
    /// Reads a payload.
    pub fn load(flags: u8, payload: &'a [u8]) -> Result<Self, FrameError> {
        if payload.len() < 10 {
            return Err(FrameError::Length);
        }
        Ok(Self {
            stream: u31_at(payload, 0),
            associated: u31_at(payload, 4),
            priority: payload[8] >> 5,
            slot: payload[9],
            fin: flags & FLAG_FIN != 0,
            unidirectional: flags & FLAG_UNIDIRECTIONAL != 0,
            block: &payload[10..],
        })
    }

    /// Appends the frame.
    pub fn encode(&self, dst: &mut BytesMut) {
        let fin = if self.fin { FLAG_FIN } else { 0 };
        let unidirectional = if self.unidirectional {
            FLAG_UNIDIRECTIONAL
        } else {
            0
        };
        put_control_head(
            dst,
            FrameType::SynStream,
            fin | unidirectional,
            10 + self.block.len(),
        );
        dst.put_u32(self.stream);
        dst.put_u32(self.associated);
        dst.put_u8(self.priority << 5);
        dst.put_u8(self.slot);
        dst.put_slice(self.block);
    }
}
