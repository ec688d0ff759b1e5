//! PING frames: the receiver returns them unchanged. Draft section 2.6.5.

use bytes::{BufMut as _, BytesMut};

use super::{FrameError, FrameType, put_control_head, u32_at};

/// A PING frame, which tests that the peer still responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// The identifier: odd in pings of the client, even in those of the server.
    pub id: u32,
}

impl Ping {
    /// Reads a payload.
    pub fn load(payload: &[u8]) -> Result<Self, FrameError> {
        if payload.len() != 4 {
            return Err(FrameError::Length);
        }
        Ok(Self {
            id: u32_at(payload, 0),
        })
    }

    /// Appends the frame.
    pub fn encode(&self, dst: &mut BytesMut) {
        put_control_head(dst, FrameType::Ping, 0, 4);
        dst.put_u32(self.id);
    }
}
