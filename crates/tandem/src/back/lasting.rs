//! The limit on exchanges that last, for all sessions of a reverse gateway together.
//!
//! `starts` moves an exchange to this table when it no longer counts as fresh. Event streams, long
//! polls and WebSockets last, and so does a response that its client does not read. Above the limit
//! the table gives up one exchange:
//!
//! ```text
//!   sessions with more than one ─▶ the most stalled ones ─▶ the most of all
//!                                        ─▶ within the session: stalled for longest, then oldest
//! ```
//!
//! The limit is at least the largest number of sessions. A table above it therefore has a session
//! with more than one exchange, and no session loses its only one.

use std::collections::{BTreeMap, BTreeSet};

/// An exchange that lasts.
pub(super) trait Exchanging {
    /// Returns whether the exchange has moved data since the last call.
    fn has_moved(&mut self) -> bool;
}

/// The lasting exchanges of all sessions.
pub(super) struct Lasting<E> {
    most: usize,
    count: usize,
    sessions: BTreeMap<u64, Group<E>>,
    /// The sessions in the order in which they give up exchanges: the last is first.
    order: BTreeSet<Rank>,
}

/// The lasting exchanges of one session.
struct Group<E> {
    exchanges: BTreeMap<u64, LastingExchange<E>>,
    /// The number of exchanges that moved no data in the last round.
    stalled: usize,
}

struct LastingExchange<E> {
    exchange: E,
    /// The number of rounds without data.
    rounds: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    has_several: bool,
    stalled: usize,
    count: usize,
    session: u64,
}

impl<E: Exchanging> Lasting<E> {
    /// Creates an empty table for `most` exchanges.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            most,
            count: 0,
            sessions: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) const fn is_above_limit(&self) -> bool {
        self.count > self.most
    }

    /// Adds an exchange. Larger numbers are younger.
    pub(super) fn insert(&mut self, session: u64, number: u64, exchange: E) {
        self.change(session, |group| {
            let entry = LastingExchange {
                exchange,
                rounds: 0,
            };
            group.exchanges.insert(number, entry);
        });
        self.count += 1;
    }

    /// Removes an exchange, if the table has it.
    pub(super) fn remove(&mut self, session: u64, number: u64) -> Option<E> {
        let entry = self.change(session, |group| {
            let entry = group.exchanges.remove(&number)?;
            group.stalled -= usize::from(entry.rounds > 0);
            Some(entry)
        })?;
        self.count -= 1;
        Some(entry.exchange)
    }

    /// Ends a round: notes which exchanges moved no data in it.
    pub(super) fn end_round(&mut self) {
        self.order.clear();
        for (session, group) in &mut self.sessions {
            for entry in group.exchanges.values_mut() {
                let moved = entry.exchange.has_moved();
                entry.rounds = if moved { 0 } else { entry.rounds + 1 };
            }
            let stalled = group.exchanges.values().filter(|entry| entry.rounds > 0);
            group.stalled = stalled.count();
            self.order.insert(group.rank(*session));
        }
    }

    /// Removes and returns an exchange that has to end, if there are more than the limit.
    pub(super) fn surplus(&mut self) -> Option<E> {
        let session = self.order.last().filter(|_| self.is_above_limit())?.session;
        let exchanges = &self.sessions.get(&session)?.exchanges;
        let (number, _) = exchanges
            .iter()
            .rev()
            .max_by_key(|(_, entry)| entry.rounds)?;
        self.remove(session, *number)
    }

    /// Changes the exchanges of a session, and its place in the order.
    fn change<T>(&mut self, session: u64, change: impl FnOnce(&mut Group<E>) -> T) -> T {
        let group = self.sessions.entry(session).or_insert_with(|| Group {
            exchanges: BTreeMap::new(),
            stalled: 0,
        });
        self.order.remove(&group.rank(session));
        let result = change(group);
        if group.exchanges.is_empty() {
            self.sessions.remove(&session);
        } else {
            self.order.insert(group.rank(session));
        }
        result
    }
}

impl<E> Group<E> {
    fn rank(&self, session: u64) -> Rank {
        let count = self.exchanges.len();
        Rank {
            has_several: count > 1,
            stalled: self.stalled,
            count,
            session,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An exchange of a session, and whether it moves data.
    #[derive(Debug, PartialEq, Eq)]
    struct Sample {
        session: u64,
        number: u64,
        moves: bool,
    }

    impl Exchanging for Sample {
        fn has_moved(&mut self) -> bool {
            self.moves
        }
    }

    fn insert(lasting: &mut Lasting<Sample>, session: u64, number: u64, moves: bool) {
        let sample = Sample {
            session,
            number,
            moves,
        };
        lasting.insert(session, number, sample);
    }

    fn given_up(lasting: &mut Lasting<Sample>) -> Option<(u64, u64)> {
        let sample = lasting.surplus()?;
        Some((sample.session, sample.number))
    }

    #[test]
    fn exchanges_up_to_the_limit_stay() {
        let mut lasting = Lasting::new(2);
        insert(&mut lasting, 1, 1, false);
        insert(&mut lasting, 1, 2, false);
        lasting.end_round();
        assert_eq!(given_up(&mut lasting), None);
        insert(&mut lasting, 2, 3, true);
        assert_eq!(given_up(&mut lasting), Some((1, 1)), "the oldest of two");
        assert_eq!(given_up(&mut lasting), None);
    }

    #[test]
    fn session_with_most_stalled_ones_loses_first() {
        let mut lasting = Lasting::new(7);
        for number in 0..4 {
            insert(&mut lasting, 1, number, true);
        }
        for number in 4..7 {
            insert(&mut lasting, 2, number, number == 4);
        }
        insert(&mut lasting, 3, 7, false);
        lasting.end_round();
        assert_eq!(given_up(&mut lasting), Some((2, 5)), "4 moves data");
        insert(&mut lasting, 3, 8, false);
        lasting.end_round();
        assert_eq!(given_up(&mut lasting), Some((3, 7)), "two stalled ones");
    }

    #[test]
    fn session_with_most_loses_if_all_move() {
        let mut lasting = Lasting::new(3);
        insert(&mut lasting, 1, 1, true);
        for number in 2..5 {
            insert(&mut lasting, 2, number, true);
        }
        lasting.end_round();
        assert_eq!(given_up(&mut lasting), Some((2, 2)));
    }

    #[test]
    fn longest_stalled_exchange_of_a_session_ends() {
        let mut lasting = Lasting::new(2);
        insert(&mut lasting, 1, 2, false);
        lasting.end_round();
        insert(&mut lasting, 1, 1, false);
        insert(&mut lasting, 1, 3, false);
        lasting.end_round();
        assert_eq!(given_up(&mut lasting), Some((1, 2)));
    }

    proptest! {
        /// The order and the counts agree with the exchanges after random changes, the limit holds,
        /// and no session loses its only exchange while another has several.
        #[test]
        fn counts_agree_with_exchanges(
            steps in proptest::collection::vec((0u8..5, 0u64..4, any::<bool>()), 1..80),
            most in 4usize..8,
        ) {
            let mut lasting = Lasting::new(most);
            for (number, (action, session, moves)) in (0u64..).zip(steps) {
                match action {
                    0..3 => insert(&mut lasting, session, number, moves),
                    3 => lasting.end_round(),
                    _ => {
                        let group = lasting.sessions.get(&session);
                        let first = group.and_then(|group| group.exchanges.keys().next().copied());
                        if let Some(number) = first {
                            prop_assert!(lasting.remove(session, number).is_some());
                        }
                        prop_assert_eq!(lasting.remove(session, u64::MAX), None);
                    }
                }
                while let Some(lost) = lasting.surplus() {
                    prop_assert!(lasting.sessions.contains_key(&lost.session));
                }
                let groups = lasting.sessions.values();
                let count: usize = groups.map(|group| group.exchanges.len()).sum();
                prop_assert_eq!(lasting.count, count);
                prop_assert!(lasting.count <= most);
                let ranks = lasting.sessions.iter().map(|(session, group)| {
                    let rounds = |entry: &&LastingExchange<Sample>| entry.rounds > 0;
                    let stalled = group.exchanges.values().filter(rounds).count();
                    assert_eq!(stalled, group.stalled);
                    group.rank(*session)
                });
                prop_assert!(ranks.collect::<BTreeSet<_>>() == lasting.order);
            }
        }
    }
}
