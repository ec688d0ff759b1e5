//! A single stream of a tunnel, and the numbers that streams have.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::flow::Flow;
use crate::ranges::RangeSet;
use crate::recv::RecvHalf;
use crate::send::SendHalf;
use crate::turns::{Place, SentBytes};

/// The ended streams whose fate is remembered, for segments that arrive late.
const MAX_ENDED: usize = 512;

/// The end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that began. Its streams have even numbers.
    Client,
    /// The other end. Its streams have odd numbers.
    Server,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// The number of a stream, which is used once in a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u32);

impl StreamId {
    pub(crate) const fn new(side: Side, index: u32) -> Self {
        Self(index << 1 | side as u32)
    }

    /// Returns the number of streams that its opener has numbered before it.
    pub(crate) const fn index(self) -> u32 {
        self.0 >> 1
    }

    /// Returns the end that opened the stream.
    pub const fn opener(self) -> Side {
        if self.0 & 1 == 0 {
            Side::Client
        } else {
            Side::Server
        }
    }

    /// Returns the number as it stands on the wire.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A reset of this end that the peer has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resetting {
    pub(crate) code: u32,
    /// The last transmission; `None` if the reset has to be sent.
    pub(crate) number: Option<u64>,
}

/// A single stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) send: SendHalf,
    pub(crate) recv: RecvHalf,
    /// The stream's own flow, where streams are not coupled.
    pub(crate) flow: Option<Box<Flow>>,
    pub(crate) urgency: u8,
    pub(crate) sent: SentBytes,
    /// The place in the order of sending, while there is something to send.
    pub(crate) ready: Option<Place>,
    pub(crate) resetting: Option<Resetting>,
    /// The application waits for room to write.
    pub(crate) wants_room: bool,
    /// The application knows that there is something to read.
    pub(crate) told_readable: bool,
    /// The application has read the end of the peer's data.
    pub(crate) told_end: bool,
    pub(crate) told_finished: bool,
    /// The time of the next zero-window probe, and the probes so far.
    pub(crate) persist: Option<(std::time::Duration, u32)>,
}

impl Stream {
    pub(crate) fn new(send: SendHalf, recv: RecvHalf, flow: Option<Box<Flow>>) -> Self {
        Self {
            send,
            recv,
            flow,
            urgency: 3,
            sent: SentBytes::default(),
            ready: None,
            resetting: None,
            wants_room: false,
            told_readable: false,
            told_end: false,
            told_finished: false,
            persist: None,
        }
    }

    /// Returns whether both directions have ended, and the application knows.
    pub(crate) fn is_over(&self) -> bool {
        self.resetting.is_none() && self.send.is_complete() && self.told_end
    }
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Everything arrived, up to this offset.
    Complete(u64),
    /// It was reset by us or the peer.
    Reset(u32),
}

/// The streams that ended last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    fates: BTreeMap<u32, Fate>,
    order: VecDeque<u32>,
}

impl Ended {
    pub(crate) fn insert(&mut self, id: StreamId, fate: Fate) {
        if self.order.len() >= MAX_ENDED
            && let Some(oldest) = self.order.pop_front()
        {
            self.fates.remove(&oldest);
        }
        if self.fates.insert(id.0, fate).is_none() {
            self.order.push_back(id.0);
        }
    }

    pub(crate) fn get(&self, id: StreamId) -> Option<Fate> {
        self.fates.get(&id.0).copied()
    }
}

/// The numbers that the peer has used.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerIds {
    next: u64,
    /// Numbers below `next` that were not seen: their segments are still on the way.
    unseen: RangeSet,
    /// The count of these numbers.
    missing: u64,
}

/// The most numbers that may be missing before the last one. The set of them needs about 500 kB
/// if no two of them are neighbours.
const MAX_MISSING: u64 = 1 << 14;

impl PeerIds {
    /// Returns whether a number was seen.
    pub(crate) fn has_seen(&self, id: StreamId) -> bool {
        let index = u64::from(id.index());
        index < self.next && self.unseen.containing(index).is_none()
    }

    /// Notes a number; returns whether it is a new one, or `None` if too many are missing before
    /// it.
    pub(crate) fn see(&mut self, id: StreamId) -> Option<bool> {
        let index = u64::from(id.index());
        if index < self.next {
            let is_new = self.unseen.remove(index);
            self.missing -= u64::from(is_new);
            return Some(is_new);
        }
        let missing = self.missing + (index - self.next);
        if missing > MAX_MISSING {
            return None;
        }
        self.missing = missing;
        self.unseen.insert(self.next..index);
        self.next = index + 1;
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_stream_takes_at_most_2_kib() {
        // In the thesis it has 10 MB. With nodes of maps and the allocator, it stays below 4 kB.
        let size = size_of::<Stream>() + size_of::<Flow>();
        assert!(size <= 2048, "{size} bytes");
    }

    #[test]
    fn peer_ids_are_new_once_in_any_order() {
        let mut ids = PeerIds::default();
        let mut see = |index| ids.see(StreamId::new(Side::Server, index));
        assert_eq!(see(2), Some(true));
        assert_eq!(see(0), Some(true));
        assert_eq!(see(2), Some(false));
        assert_eq!(see(0), Some(false));
        assert_eq!(see(1), Some(true));
        assert_eq!(see(1), Some(false));
        assert_eq!(see(1 << 30), None);
    }

    #[test]
    fn peer_ids_bound_all_gaps_together() {
        let mut ids = PeerIds::default();
        let seen = (0..200_000).map_while(|n| ids.see(StreamId::new(Side::Client, 2 * n + 1)));
        assert_eq!(seen.count() as u64, MAX_MISSING);
        assert_eq!(ids.unseen.len() as u64, MAX_MISSING);
        // A number that was on the way makes room for another gap.
        let mut see = |index| ids.see(StreamId::new(Side::Client, index));
        assert_eq!(see(0), Some(true));
        assert_eq!(see(2 * MAX_MISSING as u32 + 1), Some(true));
        assert_eq!(see(2 * MAX_MISSING as u32 + 3), None);
    }

    #[test]
    fn ended_streams_are_forgotten_in_order() {
        let mut ended = Ended::default();
        for index in 0..MAX_ENDED as u32 + 1 {
            ended.insert(StreamId::new(Side::Client, index), Fate::Reset(index));
        }
        assert_eq!(ended.get(StreamId::new(Side::Client, 0)), None);
        assert_eq!(
            ended.get(StreamId::new(Side::Client, 1)),
            Some(Fate::Reset(1))
        );
        assert_eq!(ended.fates.len(), MAX_ENDED);
    }
}
