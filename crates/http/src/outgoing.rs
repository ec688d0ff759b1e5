//! The unsent part of a stream's message, and the map of a session's streams, as HTTP/2 and HTTP/3
//! need them.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bytes::Bytes;

use crate::{Fields, Reason, StreamId};

/// How the body that we send ends.
#[derive(Debug)]
pub(crate) enum Tail {
    /// Not known yet.
    More,
    /// With the last byte.
    End,
    /// With trailers.
    Trailers(Box<Fields>),
    /// With a reset, after an incomplete response.
    Reset(Reason),
    /// The end is out.
    Sent,
}

impl Tail {
    /// Returns the tail of a message with these trailers.
    pub(crate) fn of_trailers(fields: &Fields) -> Self {
        if fields.is_empty() {
            Self::End
        } else {
            Self::Trailers(Box::new(fields.clone()))
        }
    }
}

/// Bodies to be sent, kept as they were given.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    front: Bytes,
    rest: VecDeque<Bytes>,
    len: usize,
}

impl SendQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, data: Bytes) {
        self.len += data.len();
        if self.front.is_empty() {
            self.front = data;
        } else if !data.is_empty() {
            self.rest.push_back(data);
        }
    }

    /// Takes `count` bytes, piece by piece.
    pub(crate) fn take(&mut self, mut count: usize, mut put: impl FnMut(Bytes)) {
        debug_assert!(count <= self.len, "only what is queued is taken");
        self.len -= count;
        while count > 0 {
            if self.front.len() > count {
                put(self.front.split_to(count));
                return;
            }
            count -= self.front.len();
            put(std::mem::replace(
                &mut self.front,
                self.rest.pop_front().unwrap_or_default(),
            ));
        }
    }
}

/// Stream ids come in order, so spreading them is enough; no two sessions need different tables, as
/// no more streams than allowed are ever open.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}

/// A map by stream id.
pub(crate) type ById<T> = HashMap<StreamId, T, BuildHasherDefault<IdHasher>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_cuts_anywhere() {
        let mut queue = SendQueue::default();
        for piece in [&b"ab"[..], b"", b"cdef", b"g"] {
            queue.push(Bytes::from_static(piece));
        }
        let mut all = Vec::new();
        for count in [1, 3, 0, 3] {
            let before = all.len();
            queue.take(count, |piece| all.extend_from_slice(&piece));
            assert_eq!(all.len() - before, count);
        }
        assert_eq!((&all[..], queue.len()), (&b"abcdefg"[..], 0));
    }
}
