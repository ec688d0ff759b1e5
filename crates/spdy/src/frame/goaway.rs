//! GOAWAY: the sender takes no new streams. Draft section 2.6.6.

use bytes::{BufMut as _, BytesMut};

use super::{FrameError, FrameType, put_control_head, u31_at, u32_at};

/// Takes leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoAway {
    /// Highest stream of the receiver that the sender may have processed; 0 for none.
    pub last: u32,
    /// Why: a number of [`crate::status`].
    pub status: u32,
}

impl GoAway {
    /// Reads a payload.
    pub fn load(payload: &[u8]) -> Result<Self, FrameError> {
        if payload.len() != 8 {
            return Err(FrameError::Length);
        }
        Ok(Self {
            last: u31_at(payload, 0),
            status: u32_at(payload, 4),
        })
    }

    /// Appends the frame.
    pub fn encode(&self, dst: &mut BytesMut) {
        put_control_head(dst, FrameType::GoAway, 0, 8);
        dst.put_u32(self.last);
        dst.put_u32(self.status);
    }
}
