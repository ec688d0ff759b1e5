//! The order of look-ups: which session begins the next one. It is pure and grants places through
//! channels.

use std::collections::{BTreeSet, HashMap, VecDeque};

use tokio::sync::oneshot;

/// The part of the free places that a session may have: about fifteen look-ups for the only session
/// that asks, and at least one for each of the first 69.
const SHARE: usize = 16;

/// The look-ups that are under way, and those that wait.
pub(super) struct Turns {
    /// The number of look-ups that may be under way.
    places: usize,
    running: usize,
    sessions: HashMap<u64, OfSession>,
    /// The sessions that wait: by the number of their look-ups under way, and then by turn.
    order: BTreeSet<(usize, u64, u64)>,
    issued: u64,
}

/// The look-ups of one session. There is at least one.
#[derive(Default)]
struct OfSession {
    running: usize,
    /// The look-ups that wait, by ascending number.
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
    /// The turn of the session while it waits.
    turn: u64,
}

impl Turns {
    pub(super) fn new(places: usize) -> Self {
        Self {
            places,
            running: 0,
            sessions: HashMap::new(),
            order: BTreeSet::new(),
            issued: 0,
        }
    }

    /// Adds a look-up of a session. Returns its number, and the grant of its place to come.
    pub(super) fn enter(&mut self, session: u64) -> (u64, oneshot::Receiver<()>) {
        self.issued += 1;
        let number = self.issued;
        let (ready, granted) = oneshot::channel();
        let own = self.sessions.entry(session).or_default();
        own.waiting.push_back((number, ready));
        if own.waiting.len() == 1 {
            own.turn = number;
            self.order.insert((own.running, own.turn, session));
        }
        self.grant();
        (number, granted)
    }

    /// Removes a look-up that has ended, or one that waits no longer.
    pub(super) fn leave(&mut self, session: u64, number: u64) {
        let Some(own) = self.sessions.get_mut(&session) else {
            return;
        };
        self.order.remove(&(own.running, own.turn, session));
        match own.waiting.binary_search_by_key(&number, |(it, _)| *it) {
            Ok(at) => drop(own.waiting.remove(at)),
            Err(_) => {
                own.running -= 1;
                self.running -= 1;
            }
        }
        self.line_up(session);
        self.grant();
    }

    /// Grants the places that are free. A session gets one only while it has none, or while its
    /// look-ups under way are fewer than its share.
    fn grant(&mut self) {
        while let Some((running, _, session)) = self.order.first().copied() {
            let free = self.places - self.running;
            if free == 0 || running >= (free / SHARE).max(1) {
                return;
            }
            self.order.pop_first();
            self.issued += 1;
            if let Some(own) = self.sessions.get_mut(&session)
                && let Some((_, ready)) = own.waiting.pop_front()
            {
                own.turn = self.issued;
                own.running += 1;
                self.running += 1;
                // The receiver leaves the queue before it is dropped.
                let _ = ready.send(());
            }
            self.line_up(session);
        }
    }

    /// Puts a session that waits into the order, and forgets one without look-ups.
    fn line_up(&mut self, session: u64) {
        let Some(own) = self.sessions.get(&session) else {
            return;
        };
        if !own.waiting.is_empty() {
            self.order.insert((own.running, own.turn, session));
        } else if own.running == 0 {
            self.sessions.remove(&session);
        }
    }

    /// Returns the number of look-ups under way.
    #[cfg(test)]
    pub(super) const fn running(&self) -> usize {
        self.running
    }

    /// Returns true if there is no look-up.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.order.is_empty() && self.running == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_granted(granted: &mut oneshot::Receiver<()>) -> bool {
        granted.try_recv().is_ok()
    }

    #[test]
    fn sessions_share_the_places_that_are_free() {
        let mut turns = Turns::new(256);
        let count = |turns: &mut Turns, session| {
            let mut asked: Vec<_> = (0..50).map(|_| turns.enter(session).1).collect();
            let granted = asked
                .iter_mut()
                .filter_map(|it| is_granted(it).then_some(()));
            granted.count()
        };
        let granted: Vec<_> = (1..=80).map(|session| count(&mut turns, session)).collect();
        assert_eq!(granted[..4], [15, 14, 13, 12]);
        let served = granted.iter().filter(|count| **count > 0);
        assert_eq!((served.count(), turns.running()), (69, 256));
    }

    #[test]
    fn free_place_goes_to_the_session_with_the_fewest() {
        let mut turns = Turns::new(2);
        let (first, mut granted) = turns.enter(1);
        assert!(is_granted(&mut granted));
        let (_, mut own_second) = turns.enter(1);
        let (other, mut granted) = turns.enter(2);
        assert!(is_granted(&mut granted) && !is_granted(&mut own_second));
        let (_, mut third) = turns.enter(3);
        assert!(!is_granted(&mut third));
        turns.leave(2, other);
        assert!(is_granted(&mut third) && !is_granted(&mut own_second));
        turns.leave(1, first);
        assert!(is_granted(&mut own_second));
    }

    proptest! {
        /// Whatever comes and goes: the places suffice, no place stays free while a session
        /// without a look-up waits, and in the end nothing is left.
        #[test]
        fn places_are_bounded_and_none_is_lost(
            steps in prop::collection::vec(
                (any::<bool>(), 0_u64..4, any::<prop::sample::Index>()),
                1..200,
            ),
            places in 1_usize..6,
        ) {
            let (mut turns, mut inside) = (Turns::new(places), Vec::new());
            for (enters, session, index) in steps {
                if enters || inside.is_empty() {
                    let (number, granted) = turns.enter(session);
                    inside.push((session, number, granted));
                } else {
                    let (session, number, _granted) = inside.swap_remove(index.index(inside.len()));
                    turns.leave(session, number);
                }
                prop_assert!(turns.running <= places);
                let running: usize = turns.sessions.values().map(|own| own.running).sum();
                prop_assert_eq!(running, turns.running);
                let idle_waits = turns.sessions.values().any(|own| own.running == 0);
                prop_assert!(!idle_waits || turns.running == places);
            }
            for (session, number, _granted) in inside {
                turns.leave(session, number);
            }
            prop_assert!(turns.is_empty());
        }
    }
}
