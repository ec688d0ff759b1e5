//! The multiplexed sessions of a gateway or a bridge with origins. An origin gets another session
//! when the streams of the present ones are taken.

use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

use crate::session::Connected;

/// The open sessions with each origin.
pub(super) struct MultiplexedSessions<K>(HashMap<K, Vec<Rc<dyn Connected>>>);

impl<K> Default for MultiplexedSessions<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Clone + Eq + Hash> MultiplexedSessions<K> {
    /// Returns a session for one more exchange, or `None` if another one should be opened. With
    /// `most` sessions, the exchange waits on the one with the fewest exchanges.
    pub(super) fn get(&self, key: &K, most: usize) -> Option<Rc<dyn Connected>> {
        let open = self.0.get(key)?.iter().filter(|session| session.is_ready());
        let free = open.clone().find(|session| session.has_room());
        free.or_else(|| {
            let is_last = open.clone().count() >= most;
            open.min_by_key(|session| session.active())
                .filter(|_| is_last)
        })
        .cloned()
    }

    /// Adds a session, and removes those of the key that have ended.
    pub(super) fn insert(&mut self, key: &K, session: Rc<dyn Connected>) {
        let sessions = self.0.entry(key.clone()).or_default();
        sessions.retain(|session| !session.is_closed());
        sessions.push(session);
    }

    /// Removes the sessions that have ended.
    pub(super) fn sweep(&mut self) {
        self.0.retain(|_, sessions| {
            sessions.retain(|session| !session.is_closed());
            !sessions.is_empty()
        });
    }

    /// Closes the sessions without an exchange under way.
    pub(super) fn close_idle(&mut self) {
        self.0.retain(|_, sessions| {
            for idle in sessions.extract_if(.., |session| session.active() == 0) {
                idle.drain();
            }
            !sessions.is_empty()
        });
    }

    /// Closes the sessions with keys that satisfy `is_meant`, after their exchanges.
    pub(super) fn close(&mut self, is_meant: impl Fn(&K) -> bool) {
        self.0.retain(|key, _| !is_meant(key));
    }

    /// Returns the number of sessions with keys that satisfy `is_counted`.
    pub(super) fn count(&self, is_counted: impl Fn(&K) -> bool) -> usize {
        let counted = self.0.iter().filter(|(key, _)| is_counted(key));
        counted.map(|(_, sessions)| sessions.len()).sum()
    }

    /// Closes the sessions of one key that satisfies `is_meant`, after their exchanges.
    pub(super) fn drain_one(&mut self, is_meant: impl Fn(&K) -> bool) {
        let key = self.0.keys().find(|key| is_meant(key)).cloned();
        let drained = key.and_then(|key| self.0.remove(&key));
        for session in drained.into_iter().flatten() {
            session.drain();
        }
    }
}
