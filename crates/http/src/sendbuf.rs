//! Bytes on their way to a socket: small pieces copied together, large ones kept as they are for a
//! vectored write.
//!
//! Session cores append frames in `poll_output`; the driving task writes them out as a
//! [`bytes::Buf`].

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Below this a piece is copied: a copy costs less than another entry of a vectored write.
const COPY_BELOW: usize = 4096;

/// A queue of bytes to be written.
#[derive(Default, Debug)]
pub struct SendBuf {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl SendBuf {
    /// An empty queue; allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends by copying.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends without copying where that is cheaper.
    pub fn put_bytes(&mut self, bytes: Bytes) {
        if bytes.len() < COPY_BELOW {
            self.put_slice(&bytes);
        } else {
            self.flush_tail();
            self.len += bytes.len();
            self.chunks.push_back(bytes);
        }
    }

    /// Appends the output of `write`, for encoders that need a vector.
    pub fn put_with<R>(&mut self, write: impl FnOnce(&mut BytesMut) -> R) -> R {
        let before = self.tail.len();
        let result = write(&mut self.tail);
        self.len += self.tail.len() - before;
        result
    }

    /// Gives memory back when empty: an idle session keeps none.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    fn flush_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }
}

impl Buf for SendBuf {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&self.tail[..], |c| &c[..])
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "advance within what waits");
        self.len -= count;
        while count > 0 {
            let Some(front) = self.chunks.front_mut() else {
                self.tail.advance(count);
                return;
            };
            if front.len() > count {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.chunks.pop_front();
        }
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        let mut filled = 0;
        for (slot, chunk) in dst
            .iter_mut()
            .zip(self.chunks.iter().map(|c| &c[..]).chain(tail))
        {
            *slot = IoSlice::new(chunk);
            filled += 1;
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_across_kinds() {
        let mut buf = SendBuf::new();
        buf.put_slice(b"head");
        buf.put_bytes(Bytes::from(vec![7; COPY_BELOW]));
        buf.put_bytes(Bytes::from_static(b"small"));
        assert_eq!(buf.len(), 4 + COPY_BELOW + 5);
        let mut all = Vec::new();
        while buf.has_remaining() {
            let n = buf.chunk().len().min(3);
            all.extend_from_slice(&buf.chunk()[..n]);
            buf.advance(n);
        }
        assert_eq!(&all[..4], b"head");
        assert_eq!(&all[4 + COPY_BELOW..], b"small");
        buf.shrink();
        assert!(buf.is_empty());
    }
}
