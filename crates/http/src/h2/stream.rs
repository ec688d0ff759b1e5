//! A stream: its state (RFC 9113 section 5.1), its unsent data and its windows.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bytes::Bytes;

use super::flow::{SendWindow, StreamCredit};
use crate::sched::Key;
use crate::{Fields, Priority, Reason, StreamId};

/// The difference in sent bytes below which streams keep their order (see [`crate::sched`]).
const QUANTUM: u64 = 16_384;

/// States of RFC 9113 section 5.1. Idle and closed streams are not kept.
///
/// ```text
///                    push sent                 push received
///            ┌──────── idle ─────────────────────────┐
///            ▼           │ HEADERS                   ▼
///      ReservedLocal     ▼                    ReservedRemote
///            │          Open                         │
///    HEADERS │     ours │ │ theirs                   │ HEADERS
///            │      end │ │ end                      │
///            ▼          ▼ ▼                          ▼
///      HalfClosedRemote     HalfClosedLocal ◀────────┘
///            │ our end          │ their end
///            └────▶ closed ◀────┘      (RST_STREAM leads there from anywhere)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    ReservedLocal,
    ReservedRemote,
    Open,
    HalfClosedLocal,
    HalfClosedRemote,
    Closed,
}

impl State {
    /// Returns true if we may still send.
    pub(super) const fn may_send(self) -> bool {
        matches!(
            self,
            Self::Open | Self::HalfClosedRemote | Self::ReservedLocal
        )
    }

    /// Returns true if the peer may still send.
    pub(super) const fn may_receive(self) -> bool {
        matches!(
            self,
            Self::Open | Self::HalfClosedLocal | Self::ReservedRemote
        )
    }

    const fn sent_end(self) -> Self {
        if matches!(self, Self::Open) {
            Self::HalfClosedLocal
        } else {
            Self::Closed
        }
    }

    const fn received_end(self) -> Self {
        if matches!(self, Self::Open) {
            Self::HalfClosedRemote
        } else {
            Self::Closed
        }
    }
}

/// How the body that we send ends.
#[derive(Debug)]
pub(super) enum Tail {
    /// Not known yet.
    More,
    /// With the last byte.
    End,
    /// With trailers.
    Trailers(Box<Fields>),
    /// With RST_STREAM, after an incomplete response.
    Reset(Reason),
    /// END_STREAM is out.
    Sent,
}

/// Bodies to be sent, kept as they were given.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    front: Bytes,
    rest: VecDeque<Bytes>,
    len: usize,
}

impl SendQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, data: Bytes) {
        self.len += data.len();
        if self.front.is_empty() {
            self.front = data;
        } else if !data.is_empty() {
            self.rest.push_back(data);
        }
    }

    /// Takes `count` bytes, piece by piece.
    pub(super) fn take(&mut self, mut count: usize, mut put: impl FnMut(Bytes)) {
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

/// A stream that is neither idle nor closed.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) state: State,
    /// True if our final head was sent; `head_received` is the same for the peer.
    pub(super) head_sent: bool,
    pub(super) head_received: bool,
    /// The request was HEAD: its answer has no body, whatever its content-length says.
    pub(super) head_request: bool,
    /// CONNECT: lengths mean nothing once it is a tunnel.
    pub(super) connect: bool,
    /// True if an event told the user of this stream.
    pub(super) announced: bool,
    /// Content that is still to come, where the length was given.
    pub(super) expected: Option<u64>,
    pub(super) credit: StreamCredit,
    /// True if the stream's credit may go along with other frames.
    pub(super) riding: bool,
    pub(super) window: SendWindow,
    pub(super) queue: SendQueue,
    pub(super) tail: Tail,
    /// True if `send_room` was 0 and the user was not told since that there is room.
    pub(super) full: bool,
    pub(super) priority: Priority,
    attained: u64,
    /// The position among the ready streams, if the stream is one of them.
    pub(super) ready: Option<Key>,
    /// It waits to send an end without data.
    pub(super) ending: bool,
}

impl Stream {
    pub(super) fn new(state: State, priority: Priority, window: u32, credit: StreamCredit) -> Self {
        Self {
            state,
            head_sent: false,
            head_received: false,
            head_request: false,
            connect: false,
            announced: false,
            expected: None,
            credit,
            riding: false,
            window: SendWindow::new(window),
            queue: SendQueue::default(),
            tail: Tail::More,
            full: false,
            priority,
            attained: 0,
            ready: None,
            ending: false,
        }
    }

    /// Returns the position among the ready streams.
    pub(super) fn key(&self, id: StreamId) -> Key {
        Key {
            urgency: self.priority.0.min(7),
            attained: self.attained / QUANTUM,
            id,
        }
    }

    /// Returns true if the stream has data and the window for some of it.
    pub(super) fn has_sendable_data(&self) -> bool {
        self.queue.len() > 0 && self.window.open() > 0
    }

    pub(super) fn sent(&mut self, count: usize) {
        self.window.spend(count);
        self.attained += count as u64;
    }

    pub(super) fn sent_end(&mut self) {
        self.tail = Tail::Sent;
        self.state = self.state.sent_end();
    }

    pub(super) fn received_end(&mut self) {
        self.state = self.state.received_end();
    }
}

/// Stream ids come in order, so spreading them is enough; no two sessions need different tables, as
/// no more streams than allowed are ever open.
#[derive(Default)]
pub(super) struct IdHasher(u64);

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
pub(super) type ById<T> = HashMap<StreamId, T, BuildHasherDefault<IdHasher>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_of_a_stream() {
        use State::{
            Closed, HalfClosedLocal, HalfClosedRemote, Open, ReservedLocal, ReservedRemote,
        };
        let table = [
            (Open, HalfClosedLocal, HalfClosedRemote),
            (HalfClosedLocal, Closed, Closed),
            (HalfClosedRemote, Closed, Closed),
            (ReservedLocal, Closed, Closed),
            (ReservedRemote, Closed, Closed),
        ];
        for (state, sent, received) in table {
            assert_eq!(
                (state.sent_end(), state.received_end()),
                (sent, received),
                "{state:?}"
            );
        }
        assert!(!Closed.may_send() && !Closed.may_receive());
    }

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
