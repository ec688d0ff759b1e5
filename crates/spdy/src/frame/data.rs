//! DATA: part of a body. Draft section 2.2.2.
//!
//! Only the head is a value: the payload goes through as it arrives, never gathered.

use bytes::{BufMut as _, BytesMut};

use super::FLAG_FIN;

/// The head of a data frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The stream identifier.
    pub stream: u32,
    /// The sender's last frame on this stream.
    pub fin: bool,
    /// Bytes of payload, below 2^24.
    pub len: u32,
}

impl Data {
    /// Appends the head; the payload follows.
    pub fn encode(&self, dst: &mut BytesMut) {
        debug_assert!(self.len < 1 << 24, "payload within the 24-bit length");
        dst.put_u32(self.stream);
        dst.put_u32(
            if self.fin {
                u32::from(FLAG_FIN) << 24
            } else {
                0
            } | self.len,
        );
    }
}
