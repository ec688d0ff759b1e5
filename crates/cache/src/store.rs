//! The memory store: resources by key, each with the responses that `Vary` tells apart.
//!
//! `quick_cache` chooses the resource to evict when the store is full (Clock-PRO with an admission
//! of new keys as cold). Each group of keys, such as an origin, has a bound besides. Above it the
//! oldest resource of the group goes, so that one group cannot evict all others.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use quick_cache::{Lifecycle, OptionsBuilder, Weighter, unsync};
use tandem_http::Fields;
use tandem_predict::crowd::Crowd;

use crate::Key;
use crate::kept::Kept;
use crate::names::{Name, Names};
use crate::stored::Stored;

/// The maximum number of stored responses for one key.
const MAX_VARIANTS: usize = 16;

/// The bytes of memory that a resource needs besides its key and responses.
const OVERHEAD: u64 = 384;

/// The bytes of memory that the name of a resource needs.
const NAME_OVERHEAD: u64 = 128;

/// The bytes of memory for each resource that the store expects.
const EXPECTED_WEIGHT: u64 = 16 << 10;

/// Keys that share a bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// The responses of one user.
    Owner(u64),
    /// The responses of one origin.
    Origin(Arc<str>),
}

/// The stored responses for one key.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    group: Group,
    /// The users for which the resource was fetched.
    pub(crate) crowd: Crowd<8>,
    /// The responses, with the newest one last.
    variants: Vec<Kept>,
    weight: u64,
    /// The name of the target for other caches of the operator.
    pub(crate) name: Option<Name>,
}

/// The memory store.
pub struct Store {
    resources: unsync::Cache<Key, Resource, Weigh, RandomState, Evict>,
    groups: HashMap<Group, Members>,
    /// The stored keys with overrides, by the base that they share with the key of the plain
    /// target.
    overridden: HashMap<Box<[u8]>, HashSet<Key>>,
    names: Option<Names>,
    group_capacity: u64,
    /// The largest weight of a resource.
    max_weight: u64,
    evicted: u64,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("resources", &self.resources.len())
            .field("weight", &self.weight())
            .finish_non_exhaustive()
    }
}

/// The keys of a group, with the oldest one first. Some may have been removed from the store.
#[derive(Default)]
struct Members {
    keys: VecDeque<Key>,
    count: usize,
    weight: u64,
}

#[derive(Clone)]
struct Weigh;

impl Weighter<Key, Resource> for Weigh {
    fn weight(&self, _: &Key, resource: &Resource) -> u64 {
        resource.weight
    }
}

/// Collects the resources that are evicted.
#[derive(Clone)]
struct Evict;

impl Lifecycle<Key, Resource> for Evict {
    type RequestState = Vec<(Key, Resource)>;

    fn on_evict(&self, state: &mut Self::RequestState, key: Key, resource: Resource) {
        state.push((key, resource));
    }
}

impl Store {
    /// Creates a store for `capacity` bytes, of which a group may hold `group_capacity`.
    ///
    /// The store evicts the resources that are used least. A group above its bound loses its oldest
    /// ones. A resource has nine tenths of the store at most.
    pub fn new(capacity: u64, group_capacity: u64) -> Self {
        let items = usize::try_from(capacity / EXPECTED_WEIGHT).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new()
            .weight_capacity(capacity)
            .estimated_items_capacity(items.max(64))
            .shards(1)
            .build()
            .expect("both capacities are set");
        Self {
            resources: unsync::Cache::with_options(options, Weigh, RandomState::new(), Evict),
            groups: HashMap::new(),
            overridden: HashMap::new(),
            names: None,
            group_capacity,
            max_weight: group_capacity.min(capacity / 10 * 9),
            evicted: 0,
        }
    }

    /// The bytes of memory in use.
    pub fn weight(&self) -> u64 {
        self.resources.weight()
    }

    /// The number of resources.
    pub fn len(&self) -> usize {
        self.resources.len()
    }

    /// Returns true if nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// Returns the number of resources that were evicted since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Resource> {
        self.resources.get(key)
    }

    pub(crate) fn peek(&self, key: &Key) -> Option<&Resource> {
        self.resources.peek(key)
    }

    /// Sets the names of an empty store.
    pub(crate) fn set_names(&mut self, names: Option<Names>) {
        debug_assert!(self.is_empty(), "a store without resources");
        self.names = names;
    }

    pub(crate) const fn names(&self) -> Option<&Names> {
        self.names.as_ref()
    }

    /// Counts a user of another cache for a resource. Returns the users that were counted, or
    /// `None` if nothing is stored.
    pub(crate) fn note_tag(&mut self, key: &Key, tag: u16) -> Option<Crowd<8>> {
        let mut resource = self.resources.peek_mut(key)?;
        resource.crowd.note_tag(tag);
        Some(resource.crowd)
    }

    /// Stores the response of another cache, which counted these users.
    pub(crate) fn insert_of(
        &mut self,
        key: Key,
        group: Group,
        crowd: Crowd<8>,
        stored: Arc<Stored>,
    ) {
        let mut resource = self.resource(&key, group);
        for tag in crowd.tags() {
            resource.crowd.note_tag(*tag);
        }
        let asked = stored.request.clone();
        self.add(key, resource, &asked, None, stored);
    }

    /// Stores a response for `user`. Responses that fit `asked`, the fields of its request, are
    /// removed. Below `needed` users, those of other users stay. Returns whether the user was
    /// counted.
    pub(crate) fn insert(
        &mut self,
        key: Key,
        group: Group,
        (user, needed): (u64, u8),
        asked: &Fields,
        stored: Arc<Stored>,
    ) -> bool {
        let mut resource = self.resource(&key, group);
        let is_counted = resource.crowd.note(user);
        let only = (resource.crowd.count < needed).then_some(user);
        self.add(key, resource, asked, only, stored);
        is_counted
    }

    /// Returns a copy of a resource, or a new one of this group.
    fn resource(&self, key: &Key, group: Group) -> Resource {
        let new = || Resource {
            group,
            crowd: Crowd::default(),
            // Few resources have more than one.
            variants: Vec::with_capacity(1),
            weight: 0,
            name: self
                .names
                .as_ref()
                .and_then(|names| names.namer().name(key)),
        };
        self.resources.peek(key).cloned().unwrap_or_else(new)
    }

    /// Adds a response in place of those that fit `asked`, or of one user's that do.
    fn add(
        &mut self,
        key: Key,
        mut resource: Resource,
        asked: &Fields,
        only: Option<u64>,
        stored: Arc<Stored>,
    ) {
        let is_replaced = |it: &Kept| {
            it.is_open_to(only) && (it.fits(asked) || it.is_outdated_by(&stored, asked))
        };
        resource.variants.retain(|variant| !is_replaced(variant));
        if resource.variants.len() >= MAX_VARIANTS {
            resource.variants.remove(0);
        }
        resource.variants.push(Kept::new(stored));
        self.put(key, resource);
    }

    /// Replaces one response of a resource by an updated one, if it is still stored. Returns
    /// whether the user was counted.
    pub(crate) fn update(
        &mut self,
        key: &Key,
        user: u64,
        old: &Arc<Stored>,
        new: Arc<Stored>,
    ) -> bool {
        let Some(mut resource) = self.resources.peek(key).cloned() else {
            return false;
        };
        let same = |variant: &Kept| Arc::ptr_eq(variant, old);
        let Some(at) = resource.variants.iter().position(same) else {
            return false;
        };
        resource.variants.remove(at);
        resource.variants.push(Kept::new(new));
        let is_counted = resource.crowd.note(user);
        self.put(key.clone(), resource);
        is_counted
    }

    /// Inserts or replaces a resource, and keeps all bounds. A resource above the bound of its
    /// group is not stored.
    fn put(&mut self, key: Key, mut resource: Resource) {
        loop {
            let variants: u64 = resource.variants.iter().map(|it| it.weight()).sum();
            // The key is in the store once. One with overrides has its base in another list.
            let listed = if key.has_overrides() { 2 } else { 1 };
            let named = if resource.name.is_some() {
                NAME_OVERHEAD
            } else {
                0
            };
            resource.weight = OVERHEAD + named + (listed * key.len()) as u64 + variants;
            if resource.weight <= self.max_weight {
                break;
            }
            if resource.variants.len() <= 1 {
                self.remove(&key);
                return;
            }
            resource.variants.remove(0);
        }
        let group = resource.group.clone();
        let is_new = !self.resources.contains_key(&key);
        let members = self.groups.entry(group.clone()).or_default();
        members.count += 1;
        members.weight += resource.weight;
        if is_new {
            if members.keys.is_empty() {
                // Many users store one response.
                members.keys.reserve_exact(1);
            }
            members.keys.push_back(key.clone());
            if let (Some(names), Some(name)) = (&mut self.names, resource.name) {
                names.enter(name, &key);
            }
            if key.has_overrides() {
                let keys = self.overridden.entry(key.base().into()).or_default();
                keys.insert(key.clone());
            }
        }
        // The old resource of a key that is replaced is reported as evicted.
        let mut evicted = Vec::new();
        let replaced = self
            .resources
            .replace_with_lifecycle(key, resource, true, &mut evicted);
        if let Err((key, resource)) = replaced {
            self.resources
                .insert_with_lifecycle(key, resource, &mut evicted);
        }
        self.evicted += (evicted.len() as u64).saturating_sub(u64::from(!is_new));
        for (key, resource) in evicted {
            self.leave(&key, &resource);
        }
        self.keep_bound(&group);
    }

    /// Removes the oldest resources of a group above its bound.
    fn keep_bound(&mut self, group: &Group) {
        while let Some(members) = self.groups.get_mut(group) {
            // A key appears once more for each time that it was removed and stored again.
            if members.keys.len() > 2 * members.count + 16 {
                let keys = std::mem::take(&mut members.keys);
                let kept = unique(keys, |key| self.resources.contains_key(key));
                if let Some(members) = self.groups.get_mut(group) {
                    members.keys = kept;
                }
                continue;
            }
            if members.weight <= self.group_capacity {
                return;
            }
            let Some(oldest) = members.keys.pop_front() else {
                return;
            };
            self.evicted += u64::from(self.remove(&oldest));
        }
    }

    /// Removes a resource; returns true if it was stored.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        let removed = self.resources.remove(key);
        if let Some((key, resource)) = &removed {
            self.leave(key, resource);
        }
        removed.is_some()
    }

    /// Removes the resources of a target with any overrides.
    pub(crate) fn remove_target(&mut self, key: &Key) {
        self.remove(&key.plain());
        let keys = self.overridden.get(key.base()).cloned();
        for key in keys.into_iter().flatten() {
            self.remove(&key);
        }
    }

    /// Subtracts a removed resource from its group, and its key from the others of its target.
    fn leave(&mut self, key: &Key, resource: &Resource) {
        if key.has_overrides()
            && !self.resources.contains_key(key)
            && let Some(keys) = self.overridden.get_mut(key.base())
        {
            keys.remove(key);
            if keys.is_empty() {
                self.overridden.remove(key.base());
            }
        }
        if let Some(name) = &resource.name
            && !self.resources.contains_key(&key.plain())
            && !self.overridden.contains_key(key.base())
            && let Some(names) = &mut self.names
        {
            names.leave(name);
        }
        if let Entry::Occupied(mut group) = self.groups.entry(resource.group.clone()) {
            let members = group.get_mut();
            members.weight -= resource.weight;
            members.count -= 1;
            if members.count == 0 {
                group.remove();
            }
        }
    }

    /// Removes all resources of a group.
    pub fn remove_group(&mut self, group: &Group) {
        let keys = self
            .groups
            .get_mut(group)
            .map(|members| std::mem::take(&mut members.keys));
        for key in keys.into_iter().flatten() {
            self.remove(&key);
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.resources.clear();
        self.groups.clear();
        self.overridden.clear();
        if let Some(names) = &mut self.names {
            names.clear();
        }
    }
}

/// Keeps the last of equal keys, and only those that are stored.
fn unique(keys: VecDeque<Key>, is_stored: impl Fn(&Key) -> bool) -> VecDeque<Key> {
    let mut seen = HashSet::new();
    let mut kept: VecDeque<Key> = VecDeque::new();
    for key in keys.into_iter().rev() {
        if is_stored(&key) && seen.insert(key.clone()) {
            kept.push_front(key);
        }
    }
    kept
}

impl Resource {
    /// Returns the newest response.
    pub(crate) fn newest(&self) -> Option<&Arc<Stored>> {
        self.variants.last().map(Kept::response)
    }

    /// Returns true if there is a response of this user's own.
    pub(crate) fn has_own(&self, user: u64) -> bool {
        self.variants.iter().any(|it| it.is_open_to(Some(user)))
    }

    /// Returns the newest complete response that fits a request with these fields. With `only`, it
    /// is one of this user's own.
    pub(crate) fn select(&self, asked: &Fields, only: Option<u64>) -> Option<&Arc<Stored>> {
        let mut newest_first = self.variants.iter().map(Kept::response).rev();
        newest_first.find(|it| it.extent.is_none() && it.is_open_to(only) && it.fits(asked))
    }

    /// Returns the newest part of a response that fits a request with these fields. With `only`, it
    /// is one of this user's own.
    pub(crate) fn select_part(&self, asked: &Fields, only: Option<u64>) -> Option<&Arc<Stored>> {
        let mut newest_first = self.variants.iter().map(Kept::response).rev();
        newest_first.find(|it| it.extent.is_some() && it.is_open_to(only) && it.fits(asked))
    }
}

#[cfg(test)]
mod tests;
