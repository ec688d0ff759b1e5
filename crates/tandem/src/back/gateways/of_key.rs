//! The gateways as each isolation key knows them, behind a proxy.
//!
//! A gateway may refuse the sessions of one key only. If other keys went to another gateway then,
//! the gateway would learn that they belong to the same client. Behind `--via` each key therefore
//! finds out by itself which gateway answers. Without a proxy, all keys come from one address, and
//! share what one of them has found out.
//!
//! If three keys in a row find that a gateway does not answer, it is down, and new keys begin with
//! the next one. They would otherwise wait for it one by one.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::{Gateway, Gateways};
use crate::exchange::Isolation;

/// The largest number of keys with knowledge of their own. Beyond it, a key without a session is
/// like a new one.
const MAX_KEYS: usize = 4096;

/// The number of keys that must lose a gateway in a row for new keys to begin with another one.
const LOST_BY: usize = 3;

/// The knowledge of all keys.
#[derive(Default)]
pub(super) struct OfKeys {
    /// True if keys share nothing else.
    pub(super) are_apart: Cell<bool>,
    /// The index of the gateway with which new keys begin.
    first: Cell<usize>,
    /// The keys that have lost a gateway since it last answered one, by the gateway's index.
    lost: RefCell<HashMap<usize, Vec<Isolation>>>,
    /// The keys that differ from a new one.
    keys: RefCell<HashMap<Isolation, OfKey>>,
}

/// The knowledge of one key.
#[derive(Clone, Copy, Default)]
struct OfKey {
    /// The index of the gateway that answered last.
    preferred: usize,
    /// True if the gateway that was tried last has failed.
    has_failed: bool,
    /// The last failure of a gateway that was reported to its transport, by the gateway's index.
    blamed: Option<(usize, Instant)>,
}

impl OfKeys {
    fn get(&self, isolation: &Isolation) -> OfKey {
        let known = self.keys.borrow().get(isolation).copied();
        known.unwrap_or_else(|| self.new_key())
    }

    fn new_key(&self) -> OfKey {
        OfKey {
            preferred: self.first.get(),
            ..OfKey::default()
        }
    }

    /// Notes that a key has lost a gateway. Returns true if the gateway is down for all keys.
    fn note_lost(&self, isolation: &Isolation, index: usize) -> bool {
        let mut lost = self.lost.borrow_mut();
        let keys = lost.entry(index).or_default();
        if !keys.contains(isolation) {
            keys.push(isolation.clone());
        }
        let is_down = keys.len() >= LOST_BY;
        if is_down {
            keys.clear();
        }
        is_down
    }

    /// Forgets a key.
    pub(super) fn forget(&self, isolation: &Isolation) {
        self.keys.borrow_mut().remove(isolation);
    }
}

impl Gateway {
    /// Reports the failure of a session to the transport, for all keys.
    fn blame(&self, isolation: &Isolation, opened: Instant) {
        if self.blamed.get().is_none_or(|blamed| blamed < opened) {
            self.blamed.set(Some(Instant::now()));
            self.transport.failed(isolation);
        }
    }
}

impl Gateways {
    /// Makes isolation keys share no knowledge of the gateways.
    pub fn keep_keys_apart(&self) {
        self.of_keys.are_apart.set(true);
    }

    /// Returns the index of the gateway that answered last.
    pub(super) fn preferred(&self, isolation: &Isolation) -> usize {
        match self.of_keys.are_apart.get() {
            true => self.of_keys.get(isolation).preferred,
            false => self.preferred.get(),
        }
    }

    /// Notes that a gateway has answered.
    pub(super) fn prefer(&self, isolation: &Isolation, index: usize) {
        if !self.of_keys.are_apart.get() {
            return self.preferred.set(index);
        }
        self.of_keys.lost.borrow_mut().remove(&index);
        let before = self.of_keys.get(isolation);
        // A known key keeps its gateway when new keys begin with another one.
        let is_known = self.of_keys.keys.borrow().contains_key(isolation);
        if !is_known || before.preferred != index || before.has_failed {
            let change = |of_key: &mut OfKey| {
                (of_key.preferred, of_key.has_failed) = (index, false);
            };
            self.change(isolation, change);
        }
    }

    /// Notes that a gateway has answered a key, which may prefer another one.
    pub(super) fn answered(&self, isolation: &Isolation) {
        if self.of_keys.get(isolation).has_failed {
            self.change(isolation, |of_key| of_key.has_failed = false);
        }
    }

    /// Returns true if the gateway of a key has not answered at the last attempt.
    pub(super) fn gateway_has_failed(&self, isolation: &Isolation, index: usize) -> bool {
        match self.of_keys.are_apart.get() {
            true => self.of_keys.get(isolation).has_failed,
            false => self.gateways[index].announcer.has_failed(),
        }
    }

    /// Reports the failure of a session, which was opened at `opened`, to the transport. Sessions
    /// that were opened before the last report do not cause another one.
    pub(super) fn blame(&self, isolation: &Isolation, index: usize, opened: Instant) {
        let gateway = &self.gateways[index];
        if !self.of_keys.are_apart.get() {
            return gateway.blame(isolation, opened);
        }
        let blamed = self.of_keys.get(isolation).blamed;
        let blamed = blamed.filter(|(of, _)| *of == index);
        let is_new = blamed.is_none_or(|(_, blamed)| blamed < opened);
        self.change(isolation, |of_key| {
            of_key.has_failed = true;
            if is_new {
                of_key.blamed = Some((index, Instant::now()));
            }
        });
        if is_new {
            gateway.transport.failed(isolation);
            if self.of_keys.note_lost(isolation, index) {
                gateway.transport.failed_for_all();
                self.begin_after(index);
            }
        }
    }

    /// Lets new keys begin with the gateway after that of an entry, if they begin with that one.
    fn begin_after(&self, index: usize) {
        let Some(at) = self.groups.iter().position(|it| it.contains(index)) else {
            return;
        };
        if self.groups[at].contains(self.of_keys.first.get()) {
            let next = &self.groups[(at + 1) % self.groups.len()];
            self.of_keys.first.set(next.first);
        }
    }

    fn change(&self, isolation: &Isolation, change: impl FnOnce(&mut OfKey)) {
        let mut keys = self.of_keys.keys.borrow_mut();
        if keys.len() >= MAX_KEYS && !keys.contains_key(isolation) {
            let slots = self.slots.borrow();
            let in_use: HashSet<_> = slots.keys().map(|(key, _)| key).collect();
            keys.retain(|key, _| in_use.contains(key));
            if keys.len() >= MAX_KEYS {
                return;
            }
        }
        let of_key = keys.entry(isolation.clone());
        change(of_key.or_insert_with(|| self.of_keys.new_key()));
    }
}

#[cfg(test)]
mod tests;
