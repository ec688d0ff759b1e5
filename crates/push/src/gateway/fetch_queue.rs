//! The order in which the pushes of a session are fetched, and their number at a time. Requested
//! ones come first, then the most urgent, then the others in the order of their promises.
//!
//! The number of fetches at a time may begin small and grow with each head that arrives. Requests
//! that have not begun can then still change, for example by a new cookie. Once no fetch is left,
//! the number is small again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tandem_http::Priority;

use super::deadlines::Deadlines;
use super::table::FetchId;

/// The rank of a fetch for which a request waits: before each urgency.
const REQUESTED: u8 = 0;

/// A place in the order: rank, then number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    rank: u8,
    number: u64,
}

/// The time after which a fetch without a head gives its slot to another.
const SLOT_PERIOD: Duration = Duration::from_secs(2);

/// The slots that each head adds.
const GROWTH: usize = 2;

/// The fetches that wait, and the number that may still begin.
pub(super) struct FetchQueue {
    free: usize,
    /// The present number of slots, the first one and the largest one.
    slots: usize,
    first: usize,
    most: usize,
    issued: u64,
    waiting: BTreeMap<Turn, FetchId>,
    /// The fetches that have begun, until they give up their slots.
    begun: Deadlines<FetchId>,
}

impl FetchQueue {
    /// Creates a queue that lets `first` fetches run at a time at first, and `most` later.
    pub(super) fn new(first: usize, most: usize) -> Self {
        let first = first.min(most);
        Self {
            free: first,
            slots: first,
            first,
            most,
            issued: 0,
            waiting: BTreeMap::new(),
            begun: Deadlines::default(),
        }
    }

    /// Returns the turn of a fetch of this urgency (RFC 9218), behind all equal ones.
    pub(super) fn turn(&mut self, urgency: u8) -> Turn {
        self.issued += 1;
        Turn {
            rank: urgency.saturating_add(1),
            number: self.issued,
        }
    }

    /// Lets a fetch wait for its turn.
    pub(super) fn wait(&mut self, turn: Turn, fetch: FetchId) {
        self.waiting.insert(turn, fetch);
    }

    /// Returns the turn of the same fetch once a request waits for it.
    pub(super) fn raise(&mut self, turn: Turn) -> Turn {
        let raised = Turn {
            rank: REQUESTED,
            ..turn
        };
        if let Some(fetch) = self.waiting.remove(&turn) {
            self.waiting.insert(raised, fetch);
        }
        raised
    }

    /// Takes the fetch that begins now, if there is a slot for it.
    pub(super) fn next(&mut self) -> Option<FetchId> {
        if self.free == 0 {
            // A request of the browser does not wait for the first heads.
            let (turn, _) = self.waiting.first_key_value()?;
            if turn.rank != REQUESTED || self.slots >= self.most {
                return None;
            }
            self.slots += 1;
            self.free += 1;
        }
        let (_, fetch) = self.waiting.pop_first()?;
        self.free -= 1;
        Some(fetch)
    }

    /// Notes that the request of a fetch is made now. The fetch has a slot.
    pub(super) fn begin(&mut self, now: Instant, fetch: FetchId) {
        self.begun.add(now + SLOT_PERIOD, fetch);
    }

    /// Returns the time of the next call of [`Self::take_slow`]. Fetches without a slot
    /// (`has_slot`) are forgotten.
    pub(super) fn next_slow(&mut self, has_slot: impl Fn(FetchId) -> bool) -> Option<Instant> {
        self.begun.next_wanted(|fetch| has_slot(*fetch))
    }

    /// Takes a fetch that began so long ago that it gives up its slot, if it still has one.
    pub(super) fn take_slow(&mut self, now: Instant) -> Option<FetchId> {
        self.begun.take_due(now)
    }

    /// Removes a fetch that waits no longer.
    pub(super) fn leave(&mut self, turn: Turn) {
        self.waiting.remove(&turn);
    }

    /// Frees the slot of a fetch that has begun.
    pub(super) fn free_slot(&mut self) {
        self.free += 1;
        if self.free == self.slots && self.waiting.is_empty() {
            (self.free, self.slots) = (self.first, self.first);
        }
    }

    /// Adds slots, because a head has arrived.
    pub(super) fn grow(&mut self) {
        let more = GROWTH.min(self.most - self.slots);
        self.slots += more;
        self.free += more;
    }
}

/// Returns the place of a push in the order of sending: behind all requests, which have urgency 3
/// by default (RFC 9218 section 4.1).
pub(super) const fn push_priority(urgency: u8) -> Priority {
    Priority(match urgency {
        0..=2 => 4,
        3 => 5,
        4..=5 => 6,
        _ => 7,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetch(number: u64) -> FetchId {
        FetchId::from(number)
    }

    #[test]
    fn queue_admits_by_urgency_then_order() {
        let mut queue = FetchQueue::new(1, 1);
        for (number, urgency) in [(0, 6), (1, 4), (2, 4), (3, 0)] {
            let turn = queue.turn(urgency);
            queue.wait(turn, fetch(number));
        }
        for expected in [3, 1, 2, 0] {
            assert_eq!(queue.next(), Some(fetch(expected)));
            assert_eq!(queue.next(), None, "there is one slot");
            queue.free_slot();
        }
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn requested_fetch_needs_no_head_before_it() {
        let mut queue = FetchQueue::new(1, 2);
        let turns = [3, 3, 3, 3].map(|urgency| queue.turn(urgency));
        for (number, turn) in (0..).zip(turns) {
            queue.wait(turn, fetch(number));
        }
        assert_eq!(queue.next(), Some(fetch(0)));
        assert_eq!(queue.next(), None, "the first slot is taken");
        queue.raise(turns[2]);
        assert_eq!(queue.next(), Some(fetch(2)));
        queue.raise(turns[3]);
        assert_eq!(queue.next(), None, "the last slot is taken");
    }

    #[test]
    fn queue_admits_requested_fetches_first() {
        let mut queue = FetchQueue::new(2, 2);
        let turns = [0, 7, 7].map(|urgency| queue.turn(urgency));
        for (number, turn) in (0..).zip(turns) {
            queue.wait(turn, fetch(number));
        }
        let raised = queue.raise(turns[2]);
        queue.raise(turns[1]);
        assert!(raised > queue.raise(turns[1]), "equals keep their order");
        assert_eq!(queue.next(), Some(fetch(1)));
        queue.leave(raised);
        assert_eq!(queue.next(), Some(fetch(0)), "one has left");
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn queue_raises_waiting_fetches_only() {
        let mut queue = FetchQueue::new(1, 1);
        let turn = queue.turn(3);
        let raised = queue.raise(turn);
        assert_eq!(queue.next(), None);
        queue.wait(raised, fetch(9));
        assert_eq!(queue.next(), Some(fetch(9)));
    }

    #[test]
    fn slots_grow_with_each_head_until_the_last_fetch() {
        let mut queue = FetchQueue::new(1, 4);
        for number in 0..9 {
            let turn = queue.turn(3);
            queue.wait(turn, fetch(number));
        }
        let begun = |queue: &mut FetchQueue| std::iter::from_fn(|| queue.next()).count();
        assert_eq!(begun(&mut queue), 1);
        for (heads, expected) in [(1, 3), (2, 3), (0, 2)] {
            for _ in 0..heads {
                queue.grow();
                queue.free_slot();
            }
            if heads == 0 {
                (0..2).for_each(|_| queue.free_slot());
            }
            assert_eq!(begun(&mut queue), expected, "{heads}");
        }
        // No fetch is left.
        (0..4).for_each(|_| queue.free_slot());
        for number in 9..18 {
            let turn = queue.turn(3);
            queue.wait(turn, fetch(number));
        }
        assert_eq!(begun(&mut queue), 1);
    }

    #[test]
    fn fetch_is_slow_after_a_period_if_it_has_a_slot() {
        let (mut queue, now) = (FetchQueue::new(4, 4), Instant::now());
        let second = Duration::from_secs(1);
        for number in 0..3 {
            let at = u32::try_from(number).unwrap();
            queue.begin(now + at * second, fetch(number));
        }
        let next = queue.next_slow(|id| id != fetch(0));
        assert_eq!(next, Some(now + second + SLOT_PERIOD));
        assert_eq!(queue.take_slow(now + SLOT_PERIOD), None);
        assert_eq!(queue.take_slow(now + second + SLOT_PERIOD), Some(fetch(1)));
        assert_eq!(queue.next_slow(|_| false), None);
        assert_eq!(queue.take_slow(now + 9 * SLOT_PERIOD), None);
    }

    #[test]
    fn push_priority_is_behind_requests() {
        let of = |urgency| push_priority(urgency).0;
        assert_eq!([0, 2, 3, 4, 5, 6, 7].map(of), [4, 4, 5, 6, 6, 7, 7]);
    }
}
