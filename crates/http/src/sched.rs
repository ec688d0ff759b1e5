//! The order of sending: the most urgent stream first, and among equals the one that has sent
//! least.
//!
//! Least-attained-service order lets a small response overtake a large one without knowing sizes in
//! advance, and shares the path fairly among equally large ones. Both session cores ([`crate::h2`]
//! and SPDY's) keep their ready streams here and choose as late as the socket permits. Urgency is
//! that of RFC 9218 and SPDY: 0 to 7, 0 first.

use std::collections::BTreeSet;

/// Ready streams in sending order. A stream is in it exactly while it could send something now.
#[derive(Default, Debug)]
pub struct Sched {
    ready: BTreeSet<Key>,
}

/// The position of a stream in the order, as passed to [`Sched::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// 0 (first) to 7.
    pub urgency: u8,
    /// Quanta of bytes sent so far, so that streams that differ by less than one keep their order.
    pub attained: u64,
    /// Stream id: older first.
    pub id: u32,
}

impl Sched {
    /// An empty order.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a ready stream.
    pub fn insert(&mut self, key: Key) {
        self.ready.insert(key);
    }

    /// Takes a stream out, with the very key that it was inserted with.
    pub fn remove(&mut self, key: Key) -> bool {
        self.ready.remove(&key)
    }

    /// Takes out the stream that sends next.
    pub fn pop(&mut self) -> Option<Key> {
        self.ready.pop_first()
    }

    /// Returns the position of the stream that sends next.
    pub fn first(&self) -> Option<Key> {
        self.ready.first().copied()
    }

    /// Returns true if no stream is ready.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}
