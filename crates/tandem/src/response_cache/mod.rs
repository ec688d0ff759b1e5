//! The gateway's HTTP cache: one for all threads, kept across a reload without its content.
//!
//! [`tandem_cache`] decides under a mutex that is held for microseconds. The bodies are shared
//! bytes outside it. A [`flight`] is a request under way whose response several requests read.

pub mod flight;
pub mod link;
mod reservations;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use tandem_cache::{Cache, Config, Fetch, Group, Index, Key, Namer, Now, Pending, Stored};
use tandem_http::Fields;

use crate::body_memory;
use crate::metrics::METRICS;
use flight::Flight;
use link::Link;
use reservations::Reservations;

/// A cache that threads share.
pub struct ResponseCache {
    cache: Mutex<Cache<Arc<Flight>>>,
    config: Config,
    /// The memory for bodies that are not complete.
    reservations: Mutex<Reservations>,
    /// The way to the fleet, once the cache takes part in one.
    link: OnceLock<Arc<Link>>,
    /// The way to the disk, once the cache has one.
    disk: OnceLock<Arc<Link>>,
    began: tokio::time::Instant,
}

/// Shows only the operator's settings: the content is private.
impl std::fmt::Debug for ResponseCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseCache")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Returns true if stored responses serve many users. Only then are there enough hits to write each
/// body to memory that the kernel sends without a copy.
const fn is_for_many(config: &Config) -> bool {
    !config.sharing.is_private()
}

impl ResponseCache {
    /// Creates an empty cache.
    pub fn new(config: Config) -> Self {
        if is_for_many(&config) {
            body_memory::open(config.memory);
        }
        Self {
            cache: Mutex::new(Cache::new(config.clone())),
            config,
            reservations: Mutex::default(),
            link: OnceLock::new(),
            disk: OnceLock::new(),
            began: tokio::time::Instant::now(),
        }
    }

    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the cache. The caller keeps the lock for one decision.
    pub fn lock(&self) -> MutexGuard<'_, Cache<Arc<Flight>>> {
        // A decision that panics leaves complete entries only.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present time.
    pub fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Now {
            elapsed: self.began.elapsed(),
            unix: unix.ok().map(|time| time.as_secs()),
        }
    }

    /// Empties the cache, and makes it take part in a fleet. Without a `namer` it no longer does.
    pub fn join_fleet(&self, namer: Option<Namer>, link: &Arc<Link>) {
        if namer.is_some() {
            self.link.get_or_init(|| Arc::clone(link));
        }
        let now = self.now();
        self.lock().join_fleet(now, namer);
    }

    /// Returns an empty cache in place of this one, which no longer takes part in a fleet or uses a
    /// disk. The invalidations that wait for the fleet go along, and so does the disk.
    pub fn successor(&self, config: Config) -> Self {
        let next = Self::new(config);
        let mut old = self.lock();
        next.lock().inherit(next.now(), &mut old);
        old.join_fleet(self.now(), None);
        drop(old);
        next
    }

    /// Returns the way to the fleet.
    pub fn link(&self) -> Option<&Arc<Link>> {
        self.link.get()
    }

    /// Empties the cache, and makes it use a disk with the files of this index.
    pub fn open_disk(&self, index: Index, namer: Namer) {
        let now = self.now();
        self.lock().open_disk(now, index, namer);
    }

    /// Empties the cache and its disk, and gives targets other names there.
    pub fn rename_disk(&self, namer: Namer) {
        let now = self.now();
        let mut cache = self.lock();
        if let Some(mut index) = cache.close_disk() {
            index.clear();
            cache.open_disk(now, index, namer);
        }
    }

    /// Makes requests ask the disk in this way. Only the first one counts.
    pub fn ask_disk(&self, link: &Arc<Link>) {
        self.disk.get_or_init(|| Arc::clone(link));
    }

    /// Returns the way to the disk.
    pub fn disk(&self) -> Option<&Arc<Link>> {
        self.disk.get()
    }

    /// Changes the index of the disk. Returns `None` without a disk.
    pub fn with_disk<T>(&self, change: impl FnOnce(&mut Index) -> T) -> Option<T> {
        self.lock().disk_mut().map(change)
    }

    /// Ends the use of the disk, and returns the index.
    pub fn close_disk(&self) -> Option<Index> {
        self.lock().close_disk()
    }

    /// Ends the flight of a fetch.
    pub fn end_flight(&self, fetch: &Fetch) {
        self.lock().end_flight(fetch);
    }

    /// Ends the flight of a fetch if it has no readers, and returns whether that is so. A request
    /// joins under the same lock: it is a reader before, or finds no flight after.
    pub fn end_unread(&self, fetch: &Fetch, flight: &Flight) -> bool {
        let mut cache = self.lock();
        let is_unread = !flight.has_readers();
        if is_unread {
            cache.end_flight(fetch);
        }
        is_unread
    }

    /// Stores a complete response and ends its flight, so that each request finds one of them.
    pub fn finish(
        &self,
        fetch: &Fetch,
        pending: Pending,
        body: Vec<Bytes>,
        trailers: Option<Fields>,
    ) -> Option<Arc<Stored>> {
        let body = match is_for_many(&self.config) {
            true => body_memory::keep(body),
            false => body,
        };
        let mut cache = self.lock();
        let stored = cache.finish(pending, body, trailers);
        cache.end_flight(fetch);
        METRICS.cache_evicted.add(cache.take_evicted());
        stored
    }

    /// Removes the responses of a user.
    pub fn remove_group(&self, group: &Group) {
        self.lock().remove_group(group);
    }

    /// Removes the responses of an owner whose session has ended, and forgets its changes.
    pub fn end_owner(&self, owner: u64, group: &Group) {
        let mut cache = self.lock();
        cache.remove_group(group);
        cache.end_owner(owner);
    }

    /// Removes all responses, since a new configuration may forbid their origins.
    pub fn clear(&self) {
        let now = self.now();
        self.lock().clear(now);
    }

    fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.reservations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves memory for a part of the body of a session's flight. Returns false if too much is
    /// in use.
    pub fn reserve(&self, of: (u64, &Arc<Flight>), bytes: u64) -> bool {
        let (most, now) = (self.config.max_incomplete(), tokio::time::Instant::now());
        self.reservations().reserve(of, bytes, most, now)
    }

    /// Returns the reserved memory of a session's flight.
    pub fn release(&self, of: (u64, &Arc<Flight>), bytes: u64) {
        self.reservations().release(of, bytes);
    }

    /// Notes a flight whose clients read a complete body.
    pub fn note_complete(&self, flight: &Arc<Flight>) {
        self.reservations().note_complete(flight);
    }

    /// Ends readings that stand still while the store has no room because of them.
    pub fn make_room(&self) {
        if self.lock().has_room() {
            return;
        }
        let now = tokio::time::Instant::now();
        let (stalled, before) = self.reservations().stalled(now);
        for flight in stalled {
            flight.cut(before);
            if self.lock().has_room() {
                return;
            }
        }
    }
}

/// The number of the user and the place of its responses.
#[derive(Clone, Debug)]
pub struct ResponseOwner {
    /// The number that separates the responses of users from each other; 0 if users share them.
    pub number: u64,
    /// The number of the user, for the count of users that know a resource.
    pub user: u64,
}

impl ResponseOwner {
    /// Returns the group of keys that the response to a request to `authority` belongs to.
    pub fn group(&self, authority: &str) -> Group {
        match self.number {
            0 => Group::Origin(authority.to_ascii_lowercase().into()),
            number => Group::Owner(number),
        }
    }
}

/// The key and the group of a request.
#[derive(Clone, Debug)]
pub struct CacheAddress {
    /// The key.
    pub key: Key,
    /// The group.
    pub group: Group,
}
