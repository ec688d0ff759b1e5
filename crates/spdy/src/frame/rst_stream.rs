//! RST_STREAM: ends a stream at once, both ways. Draft section 2.6.3.

use bytes::{BufMut as _, BytesMut};

use super::{FrameError, FrameType, put_control_head, u31_at, u32_at};

/// Ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RstStream {
    /// The stream.
    pub stream: u32,
    /// Why: a number of [`crate::status`].
    pub status: u32,
}

impl RstStream {
    /// Reads a payload.
    pub fn load(payload: &[u8]) -> Result<Self, FrameError> {
        if payload.len() != 8 {
            return Err(FrameError::Length);
        }
        Ok(Self {
            stream: u31_at(payload, 0),
            status: u32_at(payload, 4),
        })
    }

    /// Appends the frame.
    pub fn encode(&self, dst: &mut BytesMut) {
        put_control_head(dst, FrameType::RstStream, 0, 8);
        dst.put_u32(self.stream);
        dst.put_u32(self.status);
    }
}
