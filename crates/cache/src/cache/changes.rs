//! The times of changes: which targets were invalidated, and which origins got unsafe requests.
//!
//! An unsafe request may change any resource of its origin. A user that has seen its response must
//! not get the response to a request from before it, unless that one was complete before. So no
//! request joins a flight from before the last change of its origin. The changes of all users who
//! share responses count: one person may have several addresses.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::time::Duration;

use tandem_http::RequestHead;

use super::{Cache, Flight, MAX_MARKS};
use crate::key::origin_of;
use crate::{Key, Now};

/// The marks of the changes of one owner. Each owner has its own ones, so that the changes of one
/// never make another one's count as forgotten.
const OWNER_MARKS: usize = 512;

/// The latest times of marked events, in bounded memory. A mark is a hash.
#[derive(Debug)]
pub(super) struct Marks {
    /// The most marks.
    limit: usize,
    newer: HashMap<u64, Duration>,
    /// The marks from before those of `newer`.
    older: HashMap<u64, Duration>,
    /// The latest time of the marks that were forgotten.
    forgotten: Option<Duration>,
}

impl Marks {
    /// Creates an empty table for this many marks.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            newer: HashMap::new(),
            older: HashMap::new(),
            forgotten: None,
        }
    }

    /// Notes an event.
    pub(super) fn note(&mut self, mark: u64, at: Duration) {
        if self.newer.len() >= self.limit / 2 && !self.newer.contains_key(&mark) {
            let newer = std::mem::take(&mut self.newer);
            let old = std::mem::replace(&mut self.older, newer);
            self.forgotten = old.into_values().max().max(self.forgotten);
        }
        self.newer.insert(mark, at);
    }

    /// Returns true if the event happened, or may have happened, at this time or later.
    pub(super) fn may_follow(&self, mark: u64, time: Duration) -> bool {
        let follows = |at: Option<&Duration>| at.is_some_and(|at| *at >= time);
        follows(self.newer.get(&mark))
            || follows(self.older.get(&mark))
            || follows(self.forgotten.as_ref())
    }

    /// The number of marks.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }
}

impl<F: Clone> Cache<F> {
    /// Notes a moment at which an unsafe request may change the resources of its origin: that of
    /// the request, of a part of its response, or of its end. A request without a response counts
    /// too, since its origin may have got it. `owner` is the number in the keys of the user's
    /// responses.
    pub fn note_change(&mut self, now: Now, owner: u64, request: &RequestHead) {
        let mark = self.secret.hash_one(&origin_of(request)[..]);
        let limit = if owner == 0 { MAX_MARKS } else { OWNER_MARKS };
        let marks = self
            .changes
            .entry(owner)
            .or_insert_with(|| Marks::new(limit));
        marks.note(mark, now.elapsed);
    }

    /// Forgets the changes of an owner that sends no more requests.
    pub fn end_owner(&mut self, owner: u64) {
        self.changes.remove(&owner);
    }

    /// Returns true if the origin of a key got, or may have got, an unsafe request since this time.
    pub(super) fn is_changed(&self, key: &Key, started: Duration) -> bool {
        let (owner, origin) = key.origin();
        let marks = self.changes.get(&owner);
        marks.is_some_and(|marks| marks.may_follow(self.secret.hash_one(origin), started))
    }

    /// Returns true if a response from a request of this time was overtaken by a change that its
    /// user may have seen. The lifetime of a response that several users share holds nevertheless,
    /// since a busy origin gets unsafe requests all the time.
    pub(super) fn is_overtaken(&self, key: &Key, started: Duration) -> bool {
        key.has_owner() && self.is_changed(key, started)
    }

    /// Returns true if requests may still join a flight.
    pub(super) fn is_open(&self, key: &Key, flight: &Flight<F>) -> bool {
        self.is_current(key, flight.started) && !self.is_changed(key, flight.started)
    }
}
