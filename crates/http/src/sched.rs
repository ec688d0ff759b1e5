//! The order of sending: the most urgent stream first, and among equals the one that has sent
//! least.
//!
//! The algorithm is least attained service with a bounded lead. A small response overtakes a large
//! one although sizes are unknown, and equally large ones share the path. All session cores
//! ([`crate::h2`], [`crate::h3`] and SPDY's) keep their ready streams here and choose as late as
//! the socket permits. Urgency is that of RFC 9218 and SPDY: 0 to 7, 0 first.
//!
//! Bytes of the past do not count for ever, or a tunnel of hours would wait for each new download.
//! The count of a stream that becomes ready is raised to at least the turn of its urgency minus
//! `LEAD` quanta. The turn is a virtual time, which advances as if all ready streams shared. A new
//! stream therefore precedes old ones by at most 1 MiB, also if many arrive one after the other.
//! The module `turns` of `tandem-tunnel` does the same for the streams of a tunnel.

use std::collections::VecDeque;

/// The difference in sent bytes below which streams keep their order.
pub const QUANTUM: u64 = 16_384;

/// The quanta, 1 MiB in total, by which a stream that becomes ready precedes the one that sent
/// last.
const LEAD: u64 = 64;

/// The classes of urgency: eight, and one more that a core may put before them.
const CLASSES: usize = 9;

/// Ready streams in sending order. A stream is in it exactly while it could send something now.
#[derive(Default, Debug)]
pub struct Sched {
    /// The streams in order. Most become ready in their order, at the end of this queue. A tree
    /// costs five times as much for them.
    ready: VecDeque<Key>,
    turns: [ClassTurn; CLASSES],
}

/// The turn of a class, in bytes.
#[derive(Clone, Copy, Default, Debug)]
struct ClassTurn {
    /// The most bytes of a stream that has sent.
    most: u64,
    /// The bytes of a stream that always was ready: at most [`LEAD`] quanta more.
    now: u64,
}

/// The position of a stream in the order, as passed to [`Sched::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// 0 (first) to 8.
    pub urgency: u8,
    /// Quanta of bytes sent so far, so that streams that differ by less than one keep their order.
    pub attained: u64,
    /// Stream id: older first.
    pub id: u32,
}

/// The bytes that a stream has sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    total: u64,
    /// The bytes that count in the order of `urgency`.
    counted: u64,
    urgency: Option<u8>,
}

impl Sent {
    /// Adds bytes that the stream sends.
    pub fn add(&mut self, count: usize) {
        self.total += count as u64;
        self.counted += count as u64;
    }

    /// Returns the number of bytes.
    pub const fn total(&self) -> u64 {
        self.total
    }
}

impl Sched {
    /// An empty order.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the position of a stream that is ready or becomes so.
    pub fn key(&self, sent: &mut Sent, urgency: u8, id: u32) -> Key {
        let turn = self.turns.get(usize::from(urgency)).map(|turn| turn.now);
        let least = turn.unwrap_or_default().saturating_sub(LEAD * QUANTUM);
        sent.counted = if sent.urgency == Some(urgency) {
            sent.counted.max(least)
        } else {
            least + sent.total.min(LEAD * QUANTUM)
        };
        sent.urgency = Some(urgency);
        Key {
            urgency,
            attained: sent.counted / QUANTUM,
            id,
        }
    }

    /// Adds a ready stream.
    pub fn insert(&mut self, key: Key) {
        match self.ready.back() {
            Some(last) if *last >= key => {
                if let Err(at) = self.ready.binary_search(&key) {
                    self.ready.insert(at, key);
                }
            }
            _ => self.ready.push_back(key),
        }
    }

    /// Takes a stream out, with the very key that it was inserted with.
    pub fn remove(&mut self, key: Key) -> bool {
        let found = self.ready.binary_search(&key);
        let removed = found.is_ok_and(|at| self.ready.remove(at).is_some());
        self.release_if_empty();
        removed
    }

    /// Takes out the stream that sends next.
    pub fn pop(&mut self) -> Option<Key> {
        let key = self.ready.pop_front()?;
        self.release_if_empty();
        let share = QUANTUM / (self.ready.len() as u64 + 1);
        if let Some(turn) = self.turns.get_mut(usize::from(key.urgency)) {
            let attained = key.attained * QUANTUM;
            turn.most = turn.most.max(attained);
            let now = (turn.now + share).max(attained);
            turn.now = now.min(turn.most + LEAD * QUANTUM);
        }
        Some(key)
    }

    /// Releases the memory of an empty queue, so that an idle session holds none. A small block
    /// that stays also keeps the allocator from joining the larger ones around it.
    fn release_if_empty(&mut self) {
        if self.ready.is_empty() {
            self.ready = VecDeque::new();
        }
    }

    /// Returns the position of the stream that sends next.
    pub fn first(&self) -> Option<Key> {
        self.ready.front().copied()
    }

    /// Returns true if no stream is ready.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams that send one quantum at a time, by their ids.
    #[derive(Default)]
    struct Scene {
        sched: Sched,
        sent: Vec<Sent>,
    }

    impl Scene {
        fn ready(&mut self, id: u32, urgency: u8) {
            let index = id as usize;
            self.sent
                .resize(self.sent.len().max(index + 1), Sent::default());
            let key = self.sched.key(&mut self.sent[index], urgency, id);
            self.sched.insert(key);
        }

        /// Sends the next quantum; the stream stays ready. Returns its id.
        fn send(&mut self) -> u32 {
            let key = self.sched.pop().expect("a ready stream");
            self.sent[key.id as usize].add(QUANTUM as usize);
            self.ready(key.id, key.urgency);
            key.id
        }

        fn send_many(&mut self, turns: std::ops::Range<u64>) {
            for _ in turns {
                self.send();
            }
        }

        fn stop(&mut self, id: u32, urgency: u8) {
            let key = self.sched.key(&mut self.sent[id as usize], urgency, id);
            assert!(self.sched.remove(key));
        }
    }

    proptest::proptest! {
        #[test]
        fn order_of_ready_streams_is_that_of_their_keys(
            steps: Vec<(u8, (u8, u8, u8))>,
        ) {
            let (mut sched, mut tree) = (Sched::new(), std::collections::BTreeSet::new());
            for (step, (urgency, attained, id)) in steps {
                let (urgency, attained) = (urgency % 3, u64::from(attained % 4));
                let key = Key { urgency, attained, id: u32::from(id % 16) };
                match step % 4 {
                    0 | 1 => {
                        sched.insert(key);
                        tree.insert(key);
                    }
                    2 => proptest::prop_assert_eq!(sched.remove(key), tree.remove(&key)),
                    _ => proptest::prop_assert_eq!(sched.pop(), tree.pop_first()),
                }
                proptest::prop_assert_eq!(sched.first(), tree.first().copied());
                proptest::prop_assert_eq!(sched.is_empty(), tree.is_empty());
            }
        }
    }

    #[test]
    fn empty_order_keeps_no_memory() {
        let mut sched = Sched::new();
        for id in 0..1000 {
            let (urgency, attained) = (3, 0);
            sched.insert(Key {
                urgency,
                attained,
                id,
            });
        }
        assert!((0..1000).all(|id| sched.pop().is_some_and(|key| key.id == id)));
        assert_eq!(sched.ready.capacity(), 0);
        let key = Key {
            urgency: 3,
            attained: 0,
            id: 0,
        };
        sched.insert(key);
        assert!(sched.remove(key));
        assert_eq!(sched.ready.capacity(), 0);
    }

    #[test]
    fn new_stream_precedes_an_old_one_by_the_lead_only() {
        let mut scene = Scene::default();
        scene.ready(0, 3);
        scene.send_many(0..2000);
        scene.ready(1, 3);
        let first: Vec<_> = (0..LEAD + 20).map(|_| scene.send()).collect();
        let new = first.iter().filter(|id| **id == 1).count() as u64;
        assert!((LEAD..=LEAD + 11).contains(&new), "{new}");
    }

    /// A tunnel that has carried much and is idle for most of the time.
    #[test]
    fn old_stream_with_little_does_not_wait_for_a_new_one() {
        let mut scene = Scene::default();
        scene.ready(0, 3);
        scene.send_many(0..2000);
        scene.stop(0, 3);
        scene.ready(1, 3);
        scene.send_many(0..LEAD);
        for round in 0..100 {
            scene.ready(0, 3);
            let turns = (0..3).position(|_| scene.send() == 0);
            assert!(turns.is_some(), "round {round}");
            scene.stop(0, 3);
            (0..10).for_each(|_| assert_eq!(scene.send(), 1));
        }
    }

    /// Images that come one after the other beside a tunnel that has carried much.
    #[test]
    fn old_stream_does_not_wait_for_a_run_of_new_ones() {
        let mut scene = Scene::default();
        scene.ready(0, 3);
        scene.send_many(0..2000);
        let mut served = 0;
        for id in 1..200 {
            scene.ready(id, 3);
            served += (0..10).filter(|_| scene.send() == 0).count();
            scene.stop(id, 3);
        }
        // Half of them, but for the lead of the first ones.
        assert!(served > 800, "{served}");
    }

    #[test]
    fn idle_time_gives_no_more_than_the_lead() {
        let mut scene = Scene::default();
        scene.ready(0, 3);
        scene.ready(1, 3);
        scene.stop(1, 3);
        scene.send_many(0..2000);
        scene.ready(1, 3);
        let turns = (0..2 * LEAD).filter(|_| scene.send() == 0).count() as u64;
        assert!(turns > LEAD / 3, "{turns}");
    }

    #[test]
    fn stream_of_another_urgency_counts_at_most_the_lead() {
        let mut scene = Scene::default();
        scene.ready(0, 1);
        scene.send_many(0..2000);
        scene.stop(0, 1);
        scene.ready(0, 5);
        scene.ready(1, 5);
        (0..LEAD).for_each(|_| assert_eq!(scene.send(), 1));
        assert!((0..3).any(|_| scene.send() == 0));
    }

    #[test]
    fn small_stream_overtakes_a_large_one() {
        let mut scene = Scene::default();
        scene.ready(0, 3);
        scene.send_many(0..10);
        scene.ready(1, 3);
        (0..10).for_each(|_| assert_eq!(scene.send(), 1));
    }
}
