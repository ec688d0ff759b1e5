//! WINDOW_UPDATE: more bytes may be sent. Draft section 2.6.8.

use bytes::{BufMut as _, BytesMut};

use super::{FrameError, FrameType, put_control_head, u31_at};

/// Gives credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowUpdate {
    /// The stream; 0 means the session (SPDY/3.1 only).
    pub stream: u32,
    /// Bytes more; 0 is an error.
    pub delta: u32,
}

impl WindowUpdate {
    /// Reads a payload.
    pub fn load(payload: &[u8]) -> Result<Self, FrameError> {
        if payload.len() != 8 {
            return Err(FrameError::Length);
        }
        Ok(Self {
            stream: u31_at(payload, 0),
            delta: u31_at(payload, 4),
        })
    }

    /// Appends the frame.
    pub fn encode(&self, dst: &mut BytesMut) {
        put_control_head(dst, FrameType::WindowUpdate, 0, 8);
        dst.put_u32(self.stream);
        dst.put_u32(self.delta);
    }
}
