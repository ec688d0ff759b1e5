//! The part of a cache that a disk takes in its decisions: which responses are written, which
//! requests look there, and which responses from there serve requests.
//!
//! Only a response that all users may know of is written, under the name of its target. Each change
//! of a target in memory removes its entry from the index at once. The disk therefore never holds
//! an older response than memory does, or did before an eviction.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Cache, Fetch};
use crate::disk::Index;
use crate::names::{Name, Namer, Names};
use crate::travel::{Incoming, MAX_BODY_ON_DISK, Outgoing};
use crate::{Key, Now};

/// The most responses that wait to be written. Others are not written.
const MAX_DUE: usize = 1 << 10;

/// The time for which a response must stay fresh to be worth a write.
const LEAST_LIFE: Duration = Duration::from_secs(60);

/// The disk of a cache.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) index: Index,
    /// The targets whose newest responses wait to be written.
    due: VecDeque<Name>,
    /// The names of a cache that takes no part in a fleet.
    pub(super) namer: Namer,
}

/// A response on the disk that may serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// The name of its target, which is the name of its file.
    pub name: Name,
    number: u64,
}

impl Disk {
    pub(super) fn clear(&mut self) {
        self.index.clear();
        self.due.clear();
    }
}

impl<F: Clone> Cache<F> {
    /// Begins to use a disk, with an empty store. Targets get their names from `namer`, unless the
    /// cache takes part in a fleet. A private cache uses no disk.
    pub fn open_disk(&mut self, now: Now, index: Index, namer: Namer) {
        if self.config.sharing.is_private() {
            return;
        }
        self.clear(now);
        if !self.is_in_fleet {
            self.store.set_names(Some(Names::new(namer.clone())));
        }
        self.disk = Some(Disk {
            index,
            due: VecDeque::new(),
            namer,
        });
    }

    /// Ends the use of the disk. Returns the index.
    pub fn close_disk(&mut self) -> Option<Index> {
        self.disk.take().map(|disk| disk.index)
    }

    /// The index of the disk.
    pub fn disk(&self) -> Option<&Index> {
        self.disk.as_ref().map(|disk| &disk.index)
    }

    /// The index of the disk, to report changes of its files.
    pub fn disk_mut(&mut self) -> Option<&mut Index> {
        self.disk.as_mut().map(|disk| &mut disk.index)
    }

    /// Notes that the response for a key has changed in memory: the disk has an older one.
    pub(super) fn renew_on_disk(&mut self, key: &Key) {
        let name = self.disk.as_ref().and_then(|_| self.name(key));
        if let Some(name) = name.filter(|_| !key.has_overrides()) {
            self.forget_on_disk(&name);
            self.write_to_disk(name);
        }
    }

    /// Notes a response that may now be written.
    pub(super) fn write_to_disk(&mut self, name: Name) {
        if let Some(disk) = &mut self.disk
            && disk.due.len() < MAX_DUE
        {
            disk.due.push_back(name);
        }
    }

    /// Removes the response of a target from the disk.
    pub(super) fn forget_on_disk(&mut self, name: &Name) {
        if let Some(disk) = &mut self.disk {
            disk.index.remove(name);
        }
    }

    /// Returns the response on the disk that may serve a request. Memory has no response for its
    /// target then.
    pub fn on_disk(&mut self, now: Now, fetch: &Fetch) -> Option<OnDisk> {
        self.disk.as_ref()?;
        let name = self.lent_name(now, fetch)?;
        if self.store.peek(&fetch.key).is_some() {
            return None;
        }
        let number = self.disk_mut()?.find(&name)?;
        Some(OnDisk { name, number })
    }

    /// Stores a response from the disk in place of a request to the origin. Returns whether the
    /// response may serve the user of the request. A response that no request can use any more,
    /// such as a stale one, leaves the index.
    pub fn adopt_from_disk(
        &mut self,
        now: Now,
        fetch: &Fetch,
        found: OnDisk,
        incoming: Incoming,
    ) -> bool {
        let is_current = self
            .disk()
            .is_some_and(|index| index.holds(&found.name, found.number));
        if !is_current || self.store.peek(&fetch.key).is_some() || !self.has_room() {
            return false;
        }
        let may_serve = self.adopt_within(now, fetch, incoming, MAX_BODY_ON_DISK);
        if self.store.peek(&fetch.key).is_none() {
            self.forget_on_disk(&found.name);
        }
        may_serve
    }

    /// Takes the next response that is to be written. The caller reports the end of the write with
    /// [`Index::finish`].
    pub fn take_write(&mut self, now: Now) -> Option<Outgoing> {
        while let Some(name) = self.disk.as_mut()?.due.pop_front() {
            let is_held = self.disk()?.contains(&name);
            let outgoing = self.outgoing(now, name, MAX_BODY_ON_DISK);
            let outgoing = outgoing.filter(|it| !is_held && it.remaining >= LEAST_LIFE);
            if outgoing.is_some() {
                self.disk_mut()?.begin(name);
                return outgoing;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
