//! The knowledge that a gateway has gained since it last shared any: for each page, kind of page
//! and site, the loads and the requested assets.
//!
//! Several gateways of one operator share it. Each gateway sends its own gains, never those that it
//! has received, and each receiver merges a set of gains once. The order does not matter, except
//! for the speed at which old loads lose weight. The gains contain only URLs and pages that enough
//! users requested, by the rule of the state file.

use super::merge::merge_store;
use super::mixer::Rate;
use super::saving::Writer;
use super::state::{Reader, StateError};
use super::store::{Context, ContextId, Key, MEMORY, NONE, Store};
use super::{Auto, store};
use crate::ids::IdMap;

/// The most assets of all contexts whose counts wait to be shared. They need about 4 MiB.
const MAX_COUNTS: usize = 1 << 18;
/// The most contexts whose counts wait to be shared. They need about 4 MiB.
const MAX_CONTEXTS: usize = 1 << 14;
/// The longest name of a URL or context that is shared, in bytes.
const MAX_SHARED_NAME: usize = 2048;
/// The bytes of a URL, a context and an asset of a context beside their names.
const URL_BYTES: usize = 46;
const CONTEXT_BYTES: usize = 25;
const ENTRY_BYTES: usize = 29;
/// The loads for which a context waits until enough users know its likely assets. Unlisted assets
/// count as absent.
const EARLY_LOADS: f32 = 8.0;
/// A context is shared once its new visits are this part of the visits that it remembers.
const SHARED_PART: f32 = 0.25;

/// The counts since the last time that they were shared.
#[derive(Debug, Default)]
pub(super) struct GainTable {
    contexts: IdMap<ContextId, Gain>,
    counts: usize,
    lost: u64,
}

/// The counts of one context.
#[derive(Debug, Default)]
struct Gain {
    /// Loads whose end is known, and those of them that fetched anything.
    visits: f32,
    fetched: f32,
    /// Loads that fetched anything, and whose assets were counted.
    loads: f32,
    assets: IdMap<u32, Count>,
}

/// The loads that requested an asset, and those that neither requested nor held it.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    requested: f32,
    absent: f32,
}

impl GainTable {
    /// Counts a visit of a context.
    pub(super) fn visited(&mut self, context: ContextId, fetched: bool) {
        if self.has_room(context) {
            let gain = self.contexts.entry(context).or_default();
            gain.visits += 1.0;
            gain.fetched += f32::from(u8::from(fetched));
        }
    }

    /// Counts a load of a context, with its assets and whether the load requested them. Assets that
    /// the session held are not among them.
    pub(super) fn loaded(&mut self, context: ContextId, assets: impl Iterator<Item = (u32, bool)>) {
        if !self.has_room(context) {
            return;
        }
        let gain = self.contexts.entry(context).or_default();
        let before = gain.assets.len();
        let unseen = Count {
            requested: 0.0,
            absent: gain.loads,
        };
        for (url, is_requested) in assets {
            let count = gain.assets.entry(url).or_insert(unseen);
            if is_requested {
                count.requested += 1.0;
            } else {
                count.absent += 1.0;
            }
        }
        gain.loads += 1.0;
        self.counts += gain.assets.len() - before;
    }

    fn has_room(&mut self, context: ContextId) -> bool {
        let has_place = self.contexts.len() < MAX_CONTEXTS || self.contexts.contains_key(&context);
        let has_room = self.counts < MAX_COUNTS && has_place;
        self.lost += u64::from(!has_room);
        has_room
    }

    /// Drops the counts of contexts and assets that the store has dropped: their numbers are used
    /// again.
    pub(super) fn retain_known(&mut self, store: &Store) {
        self.contexts.retain(|&id, gain| {
            let context = store.contexts.get(id as usize).and_then(Option::as_ref);
            context.is_some_and(|context| {
                let assets = std::mem::take(&mut gain.assets);
                let known = context.entries.iter();
                gain.assets = known
                    .filter_map(|entry| Some((entry.url, *assets.get(&entry.url)?)))
                    .collect();
                true
            })
        });
        self.recount();
    }

    /// Makes room, if the table is half full. Contexts that few users know may never be shared, and
    /// leave first. If the others fill half of the table too, those with the fewest visits leave.
    fn make_room(&mut self, store: &Store, least_users: u8) {
        if self.is_half_full() {
            self.contexts
                .retain(|&id, _| is_shareable(store, store.context(id), least_users));
            self.recount();
        }
        if self.is_half_full() {
            let mut visits: Vec<f32> = self.contexts.values().map(Gain::visits).collect();
            let middle = visits.len() / 2;
            let (_, median, _) = visits.select_nth_unstable_by(middle, f32::total_cmp);
            let median = *median;
            let mut dropped = 0;
            self.contexts.retain(|_, gain| {
                let is_dropped = dropped < middle && gain.visits() <= median;
                dropped += usize::from(is_dropped);
                !is_dropped
            });
            self.recount();
        }
    }

    /// Moves the gains of a context that is due to a set of about `limit` bytes.
    fn move_to(
        &mut self,
        gathered: &mut Builder,
        limit: usize,
        store: &Store,
        (id, least_users): (ContextId, u8),
    ) {
        let context = store.contexts.get(id as usize).and_then(Option::as_ref);
        let Some((gain, context)) = self.contexts.get(&id).zip(context) else {
            return;
        };
        let leaves = gain.is_due(context)
            && is_shareable(store, context, least_users)
            && !gain.is_early(store, context, least_users);
        if leaves && let Some(gain) = self.contexts.remove(&id) {
            self.counts -= gain.assets.len();
            gathered.add(store, context, &gain, limit, least_users);
        }
    }

    fn is_half_full(&self) -> bool {
        self.counts > MAX_COUNTS / 2 || self.contexts.len() > MAX_CONTEXTS / 2
    }

    fn recount(&mut self) {
        self.counts = self.contexts.values().map(|gain| gain.assets.len()).sum();
    }
}

impl Gain {
    fn visits(&self) -> f32 {
        self.visits.max(self.loads)
    }

    /// Returns whether the counts would change another gateway's estimates of the context.
    fn is_due(&self, context: &Context) -> bool {
        let remembered = context.fetches.map_or(0.0, |rate| rate.n).min(MEMORY);
        self.visits() >= (SHARED_PART * remembered).max(1.0)
    }

    /// Returns whether few users know an asset that most loads have requested.
    fn is_early(&self, store: &Store, context: &Context, least_users: u8) -> bool {
        let is_likely = |count: &Count| count.requested * 2.0 >= self.loads;
        self.loads < EARLY_LOADS
            && context.entries.iter().any(|entry| {
                !is_known(store, entry, least_users)
                    && self.assets.get(&entry.url).is_some_and(is_likely)
            })
    }
}

/// Gains of a gateway that others can merge.
#[derive(Debug)]
pub struct Gains(Store);

impl Gains {
    /// Writes the gains as bytes, little endian: the URLs, then the contexts.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.store(&self.0, 0);
        out.bytes
    }

    /// Reads gains that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// Returns [`StateError::Damaged`] for other bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, StateError> {
        let mut input = Reader::of_gains(bytes);
        let mut store = input.store()?;
        if !input.rest.is_empty() {
            return Err(StateError::Damaged);
        }
        // No set of gains outweighs the receiver's own knowledge by more than the memory of a rate.
        for context in store.contexts.iter_mut().flatten() {
            context.loads = context.loads.min(MEMORY);
            for entry in &mut context.entries {
                entry.rate.n = entry.rate.n.min(MEMORY);
            }
        }
        Ok(Self(store))
    }

    /// Forgets counts of users that are too few for the receiver. Merged with users of the
    /// receiver, they could count one person twice.
    fn forget_small_crowds(&mut self, least_users: u8) {
        let forget = |crowd: &mut store::Crowd| {
            if crowd.count < least_users {
                *crowd = store::Crowd::default();
            }
        };
        for url in self.0.urls.iter_mut().flatten() {
            forget(&mut url.crowd);
        }
        for context in self.0.contexts.iter_mut().flatten() {
            forget(&mut context.crowd);
            for entry in &mut context.entries {
                forget(&mut entry.crowd);
            }
        }
    }

    /// Divides the gains into sets of about `entries` assets, which are merged one after the other.
    #[must_use]
    pub fn split(self, entries: usize) -> Vec<Self> {
        let all = self.0;
        let mut is_copied = vec![false; all.urls.len()];
        let (mut sets, mut count) = (Vec::new(), entries);
        for context in all.contexts.iter().flatten() {
            if count >= entries {
                sets.push(Self(Store::default()));
                count = 0;
            }
            count += 1 + context.entries.len();
            if let Some(Self(set)) = sets.last_mut() {
                copy_context(set, &all, context, &mut is_copied);
            }
        }
        sets
    }

    /// Returns the number of URLs.
    #[must_use]
    pub fn urls(&self) -> usize {
        self.0.urls.iter().flatten().count()
    }
}

impl Auto {
    /// Begins to count gains, for gateways that share them.
    pub fn count_gains(&mut self) {
        self.gains.get_or_insert_default();
    }

    /// Takes gains of about `limit` bytes. Returns `None` if there is nothing to share at present.
    pub fn take_gains(&mut self, limit: usize) -> Option<Gains> {
        let (mut gathering, least_users) = (self.due_gains(), self.least_users());
        while !self.gather_gains(&mut gathering, limit, usize::MAX) {}
        if let Some(table) = &mut self.gains {
            table.make_room(&self.store, least_users);
        }
        gathering.take()
    }

    /// Returns the contexts with enough new visits. This looks at each waiting context once.
    #[must_use]
    pub fn due_gains(&self) -> Gathering {
        let contexts = self.gains.iter().flat_map(|table| &table.contexts);
        let is_due = |(id, gain): &(&ContextId, &Gain)| gain.is_due(self.store.context(**id));
        Gathering {
            due: contexts.filter(is_due).map(|(&id, _)| id).collect(),
            gathered: Builder::default(),
        }
    }

    /// Gathers the gains of at most `contexts` contexts, up to about `limit` bytes and at most
    /// twice as many. Returns whether the gains are complete: no context is left, or they have
    /// these bytes.
    pub fn gather_gains(
        &mut self,
        gathering: &mut Gathering,
        limit: usize,
        contexts: usize,
    ) -> bool {
        let least_users = self.least_users();
        let Some(table) = self.gains.as_mut() else {
            return true;
        };
        for _ in 0..contexts {
            let is_full = gathering.gathered.bytes >= limit;
            let Some(id) = gathering.due.pop_if(|_| !is_full) else {
                if gathering.due.is_empty() {
                    table.make_room(&self.store, least_users);
                }
                return true;
            };
            table.move_to(
                &mut gathering.gathered,
                limit,
                &self.store,
                (id, least_users),
            );
        }
        false
    }

    /// Merges the gains of another gateway. A set of gains must be merged once only. The number of
    /// users that this predictor requires counts, even if the sender requires fewer.
    pub fn merge_gains(&mut self, mut gains: Gains) {
        gains.forget_small_crowds(self.least_users());
        self.budget.trust();
        merge_store(&mut self.store, &gains.0);
        if self.store.bytes() > self.next_shrink {
            self.bound_memory();
        }
    }

    /// Returns the number of visits and loads that were not counted because the table was full.
    #[must_use]
    pub fn lost_gains(&self) -> u64 {
        self.gains.as_ref().map_or(0, |table| table.lost)
    }
}

/// Returns whether enough users know a context, and its name is short enough.
fn is_shareable(store: &Store, context: &Context, least_users: u8) -> bool {
    let name = match &context.key {
        Key::Page(page) if store.is_public(*page, least_users) => &store.at(*page).name,
        Key::Page(_) => return false,
        Key::Named(name) => name,
    };
    context.crowd.count >= least_users && name.len() <= MAX_SHARED_NAME
}

/// Returns whether enough users know an asset, here and anywhere.
fn is_known(store: &Store, entry: &store::Entry, least_users: u8) -> bool {
    entry.crowd.count >= least_users && store.is_public(entry.url, least_users)
}

/// The contexts that are due to be shared, and the gains that were gathered for one set.
#[derive(Debug, Default)]
pub struct Gathering {
    due: Vec<ContextId>,
    gathered: Builder,
}

impl Gathering {
    /// Takes the gathered gains. Returns `None` if there are none.
    pub fn take(&mut self) -> Option<Gains> {
        let store = std::mem::take(&mut self.gathered).store;
        (store.contexts.iter().flatten().next().is_some()).then_some(Gains(store))
    }

    /// Returns true if no context is left.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.due.is_empty()
    }
}

/// Collects gains in a store, which has the format and the merging of the state file.
#[derive(Debug, Default)]
struct Builder {
    store: Store,
    bytes: usize,
}

impl Builder {
    fn add(&mut self, from: &Store, context: &Context, gain: &Gain, limit: usize, least_users: u8) {
        let began = self.bytes;
        let key = match &context.key {
            Key::Page(page) => Key::Page(self.url(from, *page)),
            Key::Named(name) => {
                self.bytes += name.len();
                Key::Named(name.clone())
            }
        };
        self.bytes += CONTEXT_BYTES;
        let id = match key {
            Key::Named(name) => self.store.named(name.to_string()),
            page @ Key::Page(_) => self.store.new_context(page),
        };
        let mut entries: Vec<&store::Entry> = context
            .entries
            .iter()
            .filter(|entry| {
                is_known(from, entry, least_users)
                    && from.at(entry.url).name.len() <= MAX_SHARED_NAME
            })
            .collect();
        entries.sort_by(|a, b| b.rate.p.total_cmp(&a.rate.p));
        for entry in entries {
            if self.bytes - began >= limit {
                break;
            }
            // An asset that is not listed counts as absent. Sessions held those without a count.
            let count = gain.assets.get(&entry.url).copied().unwrap_or_default();
            let url = self.url(from, entry.url);
            self.bytes += ENTRY_BYTES;
            self.store.context_mut(id).entries.push(store::Entry {
                url,
                rate: count.rate(),
                later: entry.later.map(|rate| vote(rate, gain.loads)),
                crowd: entry.crowd,
            });
        }
        let gained = self.store.context_mut(id);
        gained.loads = gain.loads;
        gained.crowd = context.crowd;
        gained.fetches = (gain.visits > 0.0).then(|| Rate {
            p: gain.fetched / gain.visits,
            n: gain.visits,
        });
    }

    /// Adds a URL. The means and the classification are those of all requests so far, and count as
    /// one more observation of the receiver.
    fn url(&mut self, from: &Store, id: u32) -> u32 {
        let known = from.at(id);
        if let Some(id) = self.store.find(&known.name) {
            return id;
        }
        self.bytes += URL_BYTES + known.name.len();
        let id = self.store.url(&known.name);
        let url = self.store.at_mut(id);
        url.kind = known.kind;
        url.crowd = known.crowd;
        url.count = 1;
        (url.size, url.sizes) = (known.size, known.sizes.min(1.0));
        let is_asset = known.as_asset > known.as_page;
        let votes = f32::from(u8::from(known.as_asset + known.as_page > 0.0));
        url.as_asset = if is_asset { votes } else { 0.0 };
        url.as_page = if is_asset { 0.0 } else { votes };
        url.leads = known.leads.map(|rate| vote(rate, 1.0));
        url.again = known.again.map(|rate| vote(rate, 1.0));
        url.contexts = [NONE; 3];
        id
    }
}

impl Count {
    fn rate(self) -> Rate {
        let n = self.requested + self.absent;
        Rate {
            p: if n > 0.0 { self.requested / n } else { 0.0 },
            n,
        }
    }
}

fn copy_context(set: &mut Store, all: &Store, context: &Context, is_copied: &mut [bool]) {
    let id = match &context.key {
        Key::Named(name) => set.named(name.to_string()),
        Key::Page(page) => {
            let page = copy_url(set, all, *page, is_copied);
            set.new_context(Key::Page(page))
        }
    };
    for entry in &context.entries {
        let url = copy_url(set, all, entry.url, is_copied);
        let copy = store::Entry { url, ..*entry };
        set.context_mut(id).entries.push(copy);
    }
    let copy = set.context_mut(id);
    (copy.loads, copy.crowd) = (context.loads, context.crowd);
    copy.fetches = context.fetches;
}

/// Copies a URL. Only the first copy has counts: each set is merged.
fn copy_url(set: &mut Store, all: &Store, id: u32, is_copied: &mut [bool]) -> u32 {
    let from = all.at(id);
    let copy = set.url(&from.name);
    let url = set.at_mut(copy);
    (url.kind, url.crowd) = (from.kind, from.crowd);
    if !std::mem::replace(&mut is_copied[id as usize], true) {
        (url.count, url.size, url.sizes) = (from.count, from.size, from.sizes);
        (url.as_page, url.as_asset) = (from.as_page, from.as_asset);
        (url.leads, url.again) = (from.leads, from.again);
    }
    copy
}

/// Returns a rate that weighs at most as much as `n` outcomes.
fn vote(rate: Rate, n: f32) -> Rate {
    Rate {
        n: rate.n.min(n),
        ..rate
    }
}

#[cfg(test)]
mod tests;
