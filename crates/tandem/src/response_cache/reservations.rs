//! The memory for bodies that are not complete, and the flights whose clients read slowly.
//!
//! A session may use its share of that memory, and more while half of the memory is free. One
//! session thus cannot stop the cache for all others. If the memory is still short, the flight that
//! has stood still for longest is no longer kept: its clients get their response, and it is not
//! stored. A session above its share causes that for its own flights only. The bytes before the
//! fastest client, 256 KiB at most, then stay without a reservation, as do those of a response that
//! is not stored at all.
//!
//! A complete body that the store has removed stays in memory while clients read it, and counts. If
//! the store has no room because of that, the readings that have stood still for longest end.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::flight::Flight;

/// The part of the memory for incomplete bodies that is the share of a session.
const SESSION_PART: u64 = 4;

/// The time without a byte taken after which the memory of a flight may serve others.
const STALLED: Duration = Duration::from_secs(5);

/// The time without a byte taken after which a reading of a removed body may end. It is that of
/// `write-timeout` by default.
const CUT_AFTER: Duration = Duration::from_secs(60);

/// The time between two searches for readings that may end. Each looks at all of them.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// The memory in use.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    total: u64,
    sessions: HashMap<u64, u64>,
    /// The flights with reservations and their sessions, by the address of the flight.
    flights: HashMap<usize, (u64, Weak<Flight>)>,
    /// The flights with complete bodies that clients read.
    complete: Vec<Weak<Flight>>,
    /// The number of complete flights at which those without readers are removed.
    tidy_at: usize,
    /// The time of the last search for readings that may end.
    searched: Option<Instant>,
}

/// Returns a number of a flight for as long as it exists.
fn number(flight: &Arc<Flight>) -> usize {
    Arc::as_ptr(flight).addr()
}

impl Reservations {
    /// Reserves memory for a part of a body, of `most` bytes in all. Returns false if the session
    /// or all of them use too much.
    pub(super) fn reserve(
        &mut self,
        (session, flight): (u64, &Arc<Flight>),
        bytes: u64,
        most: u64,
        now: Instant,
    ) -> bool {
        let own = self.sessions.get(&session).copied().unwrap_or_default();
        let is_in_share = own + bytes <= most / SESSION_PART;
        let limit = match is_in_share {
            true => most,
            false => most / 2,
        };
        if self.total + bytes > limit {
            let only = (!is_in_share).then_some(session);
            self.give_up_stalled(flight, only, now);
            return false;
        }
        self.total += bytes;
        *self.sessions.entry(session).or_default() += bytes;
        let entry = self.flights.entry(number(flight));
        entry.or_insert_with(|| (session, Arc::downgrade(flight)));
        true
    }

    /// Returns reserved memory of a flight.
    pub(super) fn release(&mut self, (session, flight): (u64, &Arc<Flight>), bytes: u64) {
        self.total -= bytes;
        if let Some(own) = self.sessions.get_mut(&session) {
            *own -= bytes;
            if *own == 0 {
                self.sessions.remove(&session);
            }
        }
        self.flights.remove(&number(flight));
    }

    /// Gives up the flight that has stood still for longest, of all sessions or `only` one. Its
    /// memory is free once its task has run.
    fn give_up_stalled(&mut self, but: &Arc<Flight>, only: Option<u64>, now: Instant) {
        let flights = self.flights.values();
        let flights = flights.filter(|(session, _)| only.is_none_or(|only| only == *session));
        let flights = flights.filter_map(|(_, flight)| flight.upgrade());
        let stalled = flights.filter(|flight| {
            let is_other = !Arc::ptr_eq(flight, but) && !flight.is_given_up();
            is_other && now.duration_since(flight.moved()) >= STALLED
        });
        if let Some(flight) = stalled.min_by_key(|flight| flight.moved()) {
            flight.give_up();
        }
    }

    /// Notes a flight with a complete body that clients still read.
    pub(super) fn note_complete(&mut self, flight: &Arc<Flight>) {
        if self.complete.len() >= self.tidy_at {
            self.complete.retain(|flight| flight.strong_count() > 0);
            self.tidy_at = 2 * self.complete.len() + 64;
        }
        self.complete.push(Arc::downgrade(flight));
    }

    /// Returns the flights that hold removed bodies and have stood still, the longest first, and
    /// the time since which they have. Returns none if the last search was a moment ago.
    pub(super) fn stalled(&mut self, now: Instant) -> (Vec<Arc<Flight>>, Instant) {
        let before = now.checked_sub(CUT_AFTER);
        let is_soon = self.searched.is_some_and(|at| now < at + SEARCH_EVERY);
        let Some(before) = before.filter(|_| !is_soon) else {
            return (Vec::new(), now);
        };
        self.searched = Some(now);
        let flights = self.complete.iter().filter_map(Weak::upgrade);
        let mut stalled: Vec<_> = flights.filter(|it| it.is_stalled(before)).collect();
        // A reader on another thread can take a piece during the sort.
        stalled.sort_by_cached_key(|flight| flight.moved());
        (stalled, before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 4000;

    /// Reserves the share of each of the sessions for a flight that stands still.
    fn stalled(sessions: &[u64]) -> (Reservations, Vec<Arc<Flight>>, Instant) {
        let (mut memory, later) = (Reservations::default(), Instant::now() + STALLED);
        let reserve = |session: &u64| {
            let flight = Arc::new(Flight::new());
            assert!(memory.reserve((*session, &flight), 1000, MOST, later));
            flight
        };
        let flights = sessions.iter().map(reserve).collect();
        (memory, flights, later + STALLED)
    }

    fn given_up(flights: &[Arc<Flight>]) -> Vec<bool> {
        flights.iter().map(|flight| flight.is_given_up()).collect()
    }

    #[test]
    fn session_above_its_share_gives_up_only_its_flights() {
        let (mut memory, flights, now) = stalled(&[1, 2]);
        let next = Arc::new(Flight::new());
        assert!(!memory.reserve((2, &next), 1, MOST, now));
        assert_eq!(given_up(&flights), [false, true]);
        assert!(!memory.reserve((2, &next), 1, MOST, now));
        assert_eq!(given_up(&flights), [false, true]);
    }

    #[test]
    fn session_within_its_share_may_end_another_flight() {
        let (mut memory, flights, now) = stalled(&[1, 2, 3, 4]);
        let next = Arc::new(Flight::new());
        assert!(!memory.reserve((5, &next), 1, MOST, now));
        assert_eq!(given_up(&flights), [true, false, false, false]);
    }
}
