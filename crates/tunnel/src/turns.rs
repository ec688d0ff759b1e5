//! The order of sending: the most urgent stream first, and among equals the one that has sent
//! least.
//!
//! Bytes of the past do not count for ever, or a stream of hours would wait for each new one. The
//! count of a stream that becomes ready is raised to at least the turn of its urgency minus
//! [`LEAD`] bytes. The turn is a virtual time, which advances as if all ready streams shared. A new
//! stream therefore precedes old ones by at most 1 MiB, also if many arrive one after the other.
//! The algorithm is least attained service with a bounded lead, as in the module `sched` of
//! `tandem-http`.

use std::collections::BTreeSet;

/// The bytes by which a stream that becomes ready precedes the one that sent last.
const LEAD: u64 = 1 << 20;

/// The number of urgencies (RFC 9218).
const URGENCIES: usize = 8;

/// The place of a stream: its urgency, and its bytes as they count there.
pub(crate) type Place = (u8, u64);

/// The bytes that a stream has sent for the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentBytes {
    total: u64,
    /// The bytes that count among the streams of `urgency`.
    counted: u64,
    urgency: Option<u8>,
}

impl SentBytes {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.total += bytes;
        self.counted += bytes;
    }
}

/// The streams that have something to send.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    ready: BTreeSet<(u8, u64, u32)>,
    turns: [UrgencyTurn; URGENCIES],
}

/// The turn of an urgency, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct UrgencyTurn {
    /// The most counted bytes of a stream that has sent.
    most: u64,
    /// The bytes of a stream that always was ready: at most [`LEAD`] more.
    now: u64,
}

impl Turns {
    /// Returns the place of a stream that is ready or becomes so.
    pub(crate) fn place(&self, sent: &mut SentBytes, urgency: u8) -> Place {
        let turn = self.turns.get(usize::from(urgency)).map(|turn| turn.now);
        let least = turn.unwrap_or_default().saturating_sub(LEAD);
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

    /// Notes that the stream at a place sends this number of bytes.
    pub(crate) fn on_turn(&mut self, (urgency, counted): Place, bytes: u64) {
        let share = bytes / (self.ready.len() as u64).max(1);
        if let Some(turn) = self.turns.get_mut(usize::from(urgency)) {
            turn.most = turn.most.max(counted);
            turn.now = (turn.now + share).max(counted).min(turn.most + LEAD);
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
