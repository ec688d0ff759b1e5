//! The order of sending: the most urgent stream first, and among equals the one that has sent
//! least.
//!
//! Bytes of the past do not count for ever, or a stream of hours would wait for each new one. A
//! stream that becomes ready joins at most [`LEAD`] bytes before the one that sent last. So a new
//! stream precedes old ones by at most that much, and equals then share.

use std::collections::BTreeSet;

/// The bytes by which a stream that becomes ready precedes the one that sent last.
const LEAD: u64 = 1 << 20;

/// The number of urgencies (RFC 9218).
const URGENCIES: usize = 8;

/// The place of a stream: its urgency, and its bytes as they count there.
pub(crate) type Place = (u8, u64);

/// The bytes that a stream has sent for the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    total: u64,
    /// The bytes that count among the streams of `urgency`.
    counted: u64,
    urgency: Option<u8>,
}

impl Sent {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.total += bytes;
        self.counted += bytes;
    }
}

/// The streams that have something to send.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    ready: BTreeSet<(u8, u64, u32)>,
    /// For each urgency, the most counted bytes of a stream that has sent.
    last: [u64; URGENCIES],
}

impl Turns {
    /// Returns the place of a stream that is ready or becomes so.
    pub(crate) fn place(&self, sent: &mut Sent, urgency: u8) -> Place {
        let last = self.last.get(usize::from(urgency)).copied();
        let least = last.unwrap_or_default().saturating_sub(LEAD);
        sent.counted = if sent.urgency == Some(urgency) {
            sent.counted.max(least)
        } else {
            least + sent.total.min(LEAD)
        };
        sent.urgency = Some(urgency);
        (urgency, sent.counted)
    }

    pub(crate) fn insert(&mut self, (urgency, counted): Place, id: u32) {
        self.ready.insert((urgency, counted, id));
    }

    pub(crate) fn remove(&mut self, (urgency, counted): Place, id: u32) {
        self.ready.remove(&(urgency, counted, id));
    }

    /// Notes that the stream at a place sends.
    pub(crate) fn on_turn(&mut self, (urgency, counted): Place) {
        if let Some(last) = self.last.get_mut(usize::from(urgency)) {
            *last = counted.max(*last);
        }
    }

    /// Returns the streams in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.ready.iter().map(|(_, _, id)| *id)
    }

    /// Returns whether no stream has anything to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.ready.clear();
    }
}
