//! Who sends next: the most urgent stream first, and among equals the one that has sent least.
//!
//! Least-attained-service order lets a small answer overtake a large one without knowing sizes in
//! advance, and turns into fair sharing among equally large ones. Both session cores ([`crate::h2`]
//! and SPDY's) keep their ready streams here and decide as late as the socket lets them. Urgency is
//! RFC 9218's (and SPDY's) 0 to 7, 0 first.

use std::collections::BTreeSet;

/// Ready streams in sending order. A stream is in it exactly while it could send something now.
#[derive(Default, Debug)]
pub struct Sched {
    ready: BTreeSet<Key>,
}

/// Place of a stream in the order: what [`Sched::insert`] was given.
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

    /// Whether no stream is ready.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}
