//! The part of a cache that other caches of the same operator take in its decisions: they count
//! users together, pass on small responses that enough users know, and invalidate together.
//!
//! The program moves the changes between the caches. Without names, as in a private cache, there is
//! nothing to move.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use tandem_http::{Method, RequestHead};
use tandem_predict::crowd::{Crowd, tag};

use super::{Cache, Fetch};
use crate::credentials::has_login;
use crate::names::{Name, Namer, Names};
use crate::stored::{Body, Stored};
use crate::travel::{Incoming, MAX_BODY, Outgoing};
use crate::{Key, Now};

/// The most counted users, and the most invalidated targets, that wait.
const MAX_WAITING: usize = 1 << 14;

/// The most responses that wait to be passed on.
const MAX_DUE: usize = 1 << 10;

/// The time since the last news of invalidations after which responses of others are not wanted.
const MAX_DEAF: Duration = Duration::from_secs(3);

/// The changes of this cache that the others have not heard of.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    users: Vec<(Name, u16)>,
    due: VecDeque<Name>,
    invalidated: Vec<Name>,
    /// The number of invalidated targets that the others will not hear of.
    lost: u64,
}

impl Outbox {
    fn push_due(&mut self, name: Name) {
        if self.due.len() < MAX_DUE && !self.due.contains(&name) {
            self.due.push_back(name);
        }
    }

    /// Returns an outbox with the invalidations of this one, and takes them from it.
    fn take_invalidations(&mut self) -> Self {
        Self {
            invalidated: std::mem::take(&mut self.invalidated),
            lost: self.lost,
            ..Self::default()
        }
    }
}

impl<F: Clone> Cache<F> {
    /// Begins to take part in a fleet, with an empty store. A private cache takes no part. The
    /// invalidated targets that wait still do, since other caches may hold their responses.
    pub fn join_fleet(&mut self, now: Now, namer: Option<Namer>) {
        self.clear(now);
        let namer = namer.filter(|_| !self.config.sharing.is_private());
        let invalidations = match &namer {
            Some(_) => self.outbox.take_invalidations(),
            None => Outbox::default(),
        };
        self.is_in_fleet = namer.is_some();
        let own = || self.disk.as_ref().map(|disk| disk.namer.clone());
        let names = namer.or_else(own).map(Names::new);
        self.store.set_names(names);
        self.outbox = invalidations;
    }

    /// Takes over the invalidated targets that wait in a cache which this one replaces, and its
    /// disk without the content.
    pub fn inherit(&mut self, now: Now, old: &mut Self) {
        self.outbox = old.outbox.take_invalidations();
        if let Some(mut disk) = old.disk.take() {
            disk.clear();
            self.open_disk(now, disk.index, disk.namer);
        }
    }

    /// Notes that all invalidations of other caches up to this time are known.
    pub fn note_heard(&mut self, now: Now) {
        self.heard = Some(now.elapsed);
    }

    /// Returns the name of the target of a request to the origin, if another cache may have its
    /// response. A cache that does not hear of invalidations wants none.
    pub fn wanted(&self, now: Now, fetch: &Fetch) -> Option<Name> {
        let is_current = |heard| now.elapsed.saturating_sub(heard) <= MAX_DEAF;
        let is_hearing = self.is_in_fleet && self.heard.is_some_and(is_current);
        is_hearing.then(|| self.lent_name(now, fetch)).flatten()
    }

    /// Returns the name of the target of a request to the origin, if a response that any user may
    /// get can take the place of the origin's.
    pub(super) fn lent_name(&self, now: Now, fetch: &Fetch) -> Option<Name> {
        let pass = self.passes.get(&self.secret.hash_one(fetch.key.bytes()));
        if pass.is_some_and(|end| *end > now.elapsed) || has_login(&fetch.asked.fields) {
            return None;
        }
        let is_plain = fetch.asked.method == Method::Get && !fetch.key.has_overrides();
        let asks = tandem_http::cache::RequestPolicy::of(&fetch.asked.fields);
        let is_wanted = is_plain && asks.accepts_revalidation_later() && !asks.control.no_store;
        is_wanted.then(|| self.name(&fetch.key)).flatten()
    }

    pub(super) fn name(&self, key: &Key) -> Option<Name> {
        self.store.names()?.namer().name(key)
    }

    /// Notes a response that was stored or validated for a user.
    pub(super) fn note_fetch(&mut self, key: &Key, user: u64, is_counted: bool) {
        self.renew_on_disk(key);
        let Some(resource) = self.store.peek(key).filter(|_| !key.has_overrides()) else {
            return;
        };
        let Some(name) = resource.name.filter(|_| self.is_in_fleet) else {
            return;
        };
        let (count, needed) = (resource.crowd.count, self.needed(key, Some(name)));
        if is_counted && count <= needed && needed > 0 && self.outbox.users.len() < MAX_WAITING {
            self.outbox.users.push((name, tag(user)));
        }
        if count >= needed {
            self.outbox.push_due(name);
        }
    }

    /// Takes at most `limit` counted users that the other caches have not heard of.
    pub fn take_users(&mut self, limit: usize) -> Vec<(Name, u16)> {
        let rest = self
            .outbox
            .users
            .split_off(self.outbox.users.len().min(limit));
        std::mem::replace(&mut self.outbox.users, rest)
    }

    /// Counts users of other caches. Unknown names are ignored.
    pub fn note_users(&mut self, users: &[(Name, u16)]) {
        for (name, tag) in users {
            let Some(key) = self
                .store
                .names()
                .and_then(|names| names.key(name))
                .cloned()
            else {
                continue;
            };
            let needed = self.needed(&key, Some(*name));
            let crowd = self.store.note_tag(&key, *tag);
            if crowd.is_some_and(|crowd| crowd.count >= needed) {
                self.outbox.push_due(*name);
                self.write_to_disk(*name);
            }
        }
    }

    /// Takes responses that may now be passed on, with bodies of about `bytes` in all.
    pub fn take_due(&mut self, now: Now, bytes: u64) -> Vec<Outgoing> {
        let (mut due, mut sum) = (Vec::new(), 0);
        while sum < bytes
            && let Some(name) = self.outbox.due.pop_front()
        {
            let Some(outgoing) = self.outgoing(now, name, MAX_BODY) else {
                continue;
            };
            sum += outgoing.stored.weight();
            due.push(outgoing);
        }
        due
    }

    /// Returns the newest response of a target, if it may be passed on. `max_body` is the longest
    /// body.
    pub(super) fn outgoing(&self, now: Now, name: Name, max_body: u64) -> Option<Outgoing> {
        let key = self.store.names()?.key(&name)?;
        let resource = self.store.peek(key)?;
        let stored = resource.newest();
        let stored = stored.filter(|stored| stored.may_travel(now, max_body))?;
        let is_known = resource.crowd.count >= self.needed(key, Some(name));
        is_known.then(|| Outgoing {
            name,
            remaining: stored.remaining(now),
            stored: Arc::clone(stored),
            tags: resource.crowd.tags().to_vec(),
        })
    }

    pub(super) fn note_invalidation(&mut self, key: &Key) {
        let Some(name) = self.name(key).filter(|_| self.is_in_fleet) else {
            return;
        };
        if self.outbox.invalidated.len() < MAX_WAITING {
            self.outbox.invalidated.push(name);
        } else {
            self.outbox.lost += 1;
        }
    }

    /// Takes at most `limit` invalidated targets that the other caches have not heard of.
    pub fn take_invalidated(&mut self, limit: usize) -> Vec<Name> {
        let waiting = &mut self.outbox.invalidated;
        let rest = waiting.split_off(waiting.len().min(limit));
        std::mem::replace(waiting, rest)
    }

    /// Returns the number of invalidated targets that were not reported because too many waited.
    pub const fn lost_invalidations(&self) -> u64 {
        self.outbox.lost
    }

    /// Removes the responses that another cache has invalidated.
    pub fn hear_invalidated(&mut self, now: Now, names: &[Name]) {
        for name in names {
            if let Some(key) = self
                .store
                .names()
                .and_then(|names| names.key(name))
                .cloned()
            {
                self.store.remove_target(&key);
            }
            self.forget_on_disk(name);
            self.invalidated.note(mark_of(name), now.elapsed);
        }
    }

    /// Returns the mark of a key's target in the list of invalidated targets.
    pub(super) fn mark(&self, key: &Key) -> u64 {
        match self.name(key) {
            Some(name) => mark_of(&name),
            None => self.secret.hash_one(key.base()),
        }
    }

    /// Stores the response of another cache in place of a request to the origin. Returns whether
    /// the response may serve the user of the request.
    pub fn adopt(&mut self, now: Now, fetch: &Fetch, incoming: Incoming) -> bool {
        self.adopt_within(now, fetch, incoming, MAX_BODY)
    }

    /// Stores a response as [`Self::adopt`] does. `max_body` is the longest body.
    pub(super) fn adopt_within(
        &mut self,
        now: Now,
        fetch: &Fetch,
        incoming: Incoming,
        max_body: u64,
    ) -> bool {
        let Some(name) = self.name(&fetch.key) else {
            return false;
        };
        let mut crowd = Crowd::default();
        for tag in &incoming.tags {
            crowd.note_tag(*tag);
        }
        let Some((freshness, started)) = incoming.times(now) else {
            return false;
        };
        let started = now.elapsed.saturating_sub(started);
        let policy = self.policy(&incoming.head);
        let get = RequestHead {
            fields: incoming.request.clone(),
            ..RequestHead::get(fetch.asked.scheme, "", "/")
        };
        let may_store = policy.is_storable(&get, self.config.rules())
            && incoming.body.len() as u64 <= self.config.max_body()
            && self.has_room();
        if crowd.count < self.needed(&fetch.key, Some(name))
            || !may_store
            || !self.is_current(&fetch.key, fetch.started)
            || self.is_invalidated(&fetch.key, started)
        {
            return false;
        }
        // One with cookies travels if it is `public`.
        let had_no_credentials = !policy.control.public;
        let stored = Stored {
            asker: incoming.asker(),
            user: None,
            policy,
            freshness,
            trailers: None,
            body: Body::counted(vec![incoming.body], &self.bodies),
            extent: None,
            request: incoming.request,
            head: incoming.head,
            since: now.elapsed,
            started,
            is_anonymous: true,
            had_no_credentials,
        };
        if !stored.may_travel(now, max_body) {
            return false;
        }
        let fits = stored.fits(&fetch.asked.fields);
        let (key, group) = (fetch.key.clone(), fetch.group.clone());
        self.store.insert_of(key, group, crowd, Arc::new(stored));
        let is_visible = |cache: &Self| {
            cache
                .visible(&fetch.key, fetch.user, &fetch.asked)
                .is_some()
        };
        fits && is_visible(self)
    }
}

/// Returns the mark of a target with a name.
fn mark_of(name: &Name) -> u64 {
    let (first, _) = name.split_at(8);
    first
        .iter()
        .fold(0, |mark, byte| mark << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests;
