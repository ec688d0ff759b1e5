//! SYN_REPLY: accepts a stream with the head of a response. Draft section 2.6.2.

use bytes::{BufMut as _, BytesMut};

use super::{FLAG_FIN, FrameError, FrameType, put_control_head, u31_at};

/// Accepts a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynReply<'a> {
    /// The stream that is answered.
    pub stream: u32,
    /// No data follows from the sender.
    pub fin: bool,
    /// Compressed header block.
    pub block: &'a [u8],
}

impl<'a> SynReply<'a> {
    /// Reads a payload.
    pub fn load(flags: u8, payload: &'a [u8]) -> Result<Self, FrameError> {
        if payload.len() < 4 {
            return Err(FrameError::Length);
        }
        Ok(Self {
            stream: u31_at(payload, 0),
            fin: flags & FLAG_FIN != 0,
            block: &payload[4..],
        })
    }

    /// Appends the frame.
    pub fn encode(&self, dst: &mut BytesMut) {
        put_control_head(
            dst,
            FrameType::SynReply,
            if self.fin { FLAG_FIN } else { 0 },
            4 + self.block.len(),
        );
        dst.put_u32(self.stream);
        dst.put_slice(self.block);
    }
}
