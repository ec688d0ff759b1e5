//! The limits of connections to the origins of all sessions, each with its policy of growth.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::OriginKey;
use crate::back::growth::{FLOOR, Growth, Pace};
use crate::back::origin::ConnectionLimits;

/// The largest number of origins whose state is kept.
pub(super) const MAX_ORIGINS: usize = 1024;

/// The limits of connections to an origin that has shown nothing.
pub(super) const FLOORS: ConnectionLimits = ConnectionLimits {
    most: FLOOR,
    dials_are_free: false,
    ahead: FLOOR,
};

/// The policies by session and origin.
pub(super) struct Growths {
    known: RefCell<HashMap<OriginKey, Growth>>,
    /// The largest limit of connections to one origin.
    most: usize,
    /// The pace at which the limits grow.
    pace: Pace,
}

impl Growths {
    pub(super) fn new(most: usize, pace: Pace) -> Self {
        Self {
            known: RefCell::default(),
            most,
            pace,
        }
    }

    /// Returns the limit of exchanges with an origin at once.
    pub(super) fn exchanges(&self, key: &OriginKey) -> usize {
        self.of(key, Growth::exchanges).unwrap_or(FLOOR)
    }

    /// Returns the limits of connections to an origin.
    pub(super) fn connections(&self, key: &OriginKey) -> ConnectionLimits {
        let limits = |growth: &Growth| ConnectionLimits {
            most: growth.connections(),
            dials_are_free: false,
            ahead: if growth.is_paused(now()) { 0 } else { FLOOR },
        };
        self.of(key, limits).unwrap_or(FLOORS)
    }

    /// Returns whether an origin gets no early requests, because it has refused requests.
    pub(super) fn refuses_early(&self, key: &OriginKey) -> bool {
        self.of(key, |growth| growth.refuses_early(now())) == Some(true)
    }

    fn of<T>(&self, key: &OriginKey, read: impl FnOnce(&Growth) -> T) -> Option<T> {
        self.known.borrow().get(key).map(read)
    }

    /// Passes an event to the policy of an origin. A place that is given back afterwards hands out
    /// the new ones.
    pub(super) fn note(
        &self,
        key: &OriginKey,
        event: impl FnOnce(&mut Growth, std::time::Instant),
    ) {
        let (now, mut known) = (now(), self.known.borrow_mut());
        if known.len() >= MAX_ORIGINS && !known.contains_key(key) {
            known.retain(|_, growth| !growth.is_forgettable(now));
            if known.len() >= MAX_ORIGINS {
                let unheld = known.iter().filter(|(_, growth)| !growth.is_held());
                // Without its state, an origin that asked to wait gets early requests again.
                let order = |growth: &Growth| (growth.refuses_early(now), growth.seen());
                let oldest = unheld.min_by_key(|(_, growth)| order(growth));
                let oldest = oldest.map(|(key, _)| key.clone());
                oldest.and_then(|key| known.remove(&key));
            }
        }
        let growth = known
            .entry(key.clone())
            .or_insert_with(|| Growth::new(now, self.most, self.pace));
        event(growth, now);
    }

    /// Passes an event to the policy of an origin, unless its session has ended.
    pub(super) fn change(
        &self,
        key: &OriginKey,
        event: impl FnOnce(&mut Growth, std::time::Instant),
    ) {
        if let Some(growth) = self.known.borrow_mut().get_mut(key) {
            event(growth, now());
        }
    }

    /// Releases a hold on the limit of an origin, unless its session has ended.
    pub(super) fn release(&self, key: &OriginKey) {
        self.change(key, |growth, _| growth.release());
    }

    /// Returns the time that a request waits before it ends early requests.
    pub(super) fn patience(&self, key: &OriginKey) -> Duration {
        self.of(key, Growth::patience).unwrap_or_default()
    }

    /// Returns the time until which an origin may count more than `room` requests that have ended
    /// before their responses.
    pub(super) fn abandoned_until(
        &self,
        key: &OriginKey,
        room: usize,
    ) -> Option<std::time::Instant> {
        self.of(key, |growth| growth.abandoned_until(now(), room))?
    }

    /// Forgets the origins of a session.
    pub(super) fn end_session(&self, session: u64) {
        self.known.borrow_mut().retain(|(of, _), _| *of != session);
    }

    /// Returns the number of known origins.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.borrow().len()
    }

    /// Returns whether an origin is known.
    #[cfg(test)]
    pub(super) fn contains(&self, key: &OriginKey) -> bool {
        self.known.borrow().contains_key(key)
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
