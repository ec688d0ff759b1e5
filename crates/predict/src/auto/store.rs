//! The memory of `auto` between sessions: URLs, and for each page, kind of page and site the assets
//! that were requested with it.
//!
//! The memory is bounded. If the estimate exceeds the limit, the contexts that were used least
//! recently and least often are dropped, together with the URLs that no context refers to any more.
//! A URL that was seen once is dropped first.

use std::collections::HashMap;
use std::sync::Arc;

use super::mixer::Rate;
use super::transfer::Timing;
use super::url::{Kind, Parts, parts, template};
use crate::ids::{Index, Vacant};

/// Number of a context.
pub(super) type ContextId = u32;

/// No context.
pub(super) const NONE: u32 = u32::MAX;

/// The weight of a more general context's estimate, in observations.
pub(super) const BACKOFF: f32 = 1.0;
/// The page loads that an asset's rate remembers: the speed of forgetting assets that a page no
/// longer needs.
pub(super) const MEMORY: f32 = 60.0;
/// Assets kept per page, kind of page and site.
pub(super) const LIMITS: [usize; 3] = [512, 96, 128];

/// The first letter of the names of contexts that have the followers of an asset.
pub(super) const FOLLOWERS: char = 'F';

/// Users told apart per URL; more need not be counted.
pub(super) const USERS: usize = 4;

/// The position of a URL while it is known. It saves a caller that names the URL often the look-up
/// by name.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    id: u32,
    serial: u64,
}

impl Place {
    /// No URL is here.
    pub const NOWHERE: Self = Self {
        id: NONE,
        serial: 0,
    };
}

/// The knowledge about a URL.
#[derive(Debug, Clone)]
pub(super) struct Url {
    pub(super) name: Arc<str>,
    /// How many were known before it, itself included.
    pub(super) serial: u64,
    pub(super) kind: Kind,
    /// The classification by the path alone.
    pub(super) path_kind: Kind,
    pub(super) has_query: bool,
    /// The time at which it became known, in milliseconds.
    pub(super) known_since: i64,
    /// Requests.
    pub(super) count: u32,
    /// The users that requested it.
    pub(super) crowd: Crowd,
    /// Mean body size.
    pub(super) size: f32,
    pub(super) sizes: f32,
    /// How often a URL of open kind came after a pause, and how often at once.
    pub(super) as_page: f32,
    pub(super) as_asset: f32,
    /// The share of the expected set that followed when this was a load's first asset.
    pub(super) leads: Option<Rate>,
    /// How often sessions that held it asked for it again when a page needed it.
    pub(super) again: Option<Rate>,
    /// The requests by the rule of time.
    pub(super) timing: Timing,
    /// The share of its first requests in sessions that transferred a body.
    pub(super) transfers: Option<Rate>,
    /// The share of its further requests that did.
    pub(super) again_transfers: Option<Rate>,
    /// Contexts as a page, most special first.
    pub(super) contexts: [ContextId; 3],
    /// The context of the assets that follow it when it is a load's first asset.
    pub(super) followers: ContextId,
}

impl Url {
    /// Returns whether the URL is requested by pages rather than as a page.
    pub(super) fn is_mostly_asset(&self) -> bool {
        self.kind.is_asset() || self.as_page < self.as_asset
    }

    /// Takes a body of `size` bytes into the mean.
    pub(super) fn body(&mut self, size: u64) {
        self.sizes = (self.sizes + 1.0).min(50.0);
        self.size += (size as f32 - self.size) / self.sizes;
    }
}

/// A count of different users, up to [`USERS`].
pub(super) type Crowd = crate::crowd::Crowd<USERS>;

/// An asset of a context.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) url: u32,
    /// Share of the context's fetching loads in which it was requested, of those in which it was
    /// not held already.
    pub(super) rate: Rate,
    /// At a site: chance of being requested later in the session, seen from a page and from a
    /// page's first asset.
    pub(super) later: [Rate; 2],
    /// The users that requested it here.
    pub(super) crowd: Crowd,
}

/// The key of a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Page(u32),
    Named(Arc<str>),
}

/// A page, a kind of page, a site, or an asset with its followers.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) key: Key,
    /// Loads in which anything was fetched.
    pub(super) loads: f32,
    /// Share of loads in which anything was fetched.
    pub(super) fetches: Option<Rate>,
    /// At a site: share of the requests for assets that transferred a body.
    pub(super) transfers: Option<Rate>,
    /// Loads open now that have fetched nothing yet.
    pub(super) pending: f32,
    /// Request count when last used.
    pub(super) used: u64,
    /// The users that came here.
    pub(super) crowd: Crowd,
    pub(super) entries: Vec<Entry>,
}

/// URLs and contexts.
#[derive(Debug, Default)]
pub(super) struct Store {
    ids: Index,
    pub(super) urls: Vec<Option<Url>>,
    free_urls: Vec<u32>,
    /// URLs that there have been so far.
    created: u64,
    named: Index,
    pub(super) contexts: Vec<Option<Context>>,
    free_contexts: Vec<ContextId>,
    /// Requests so far: the clock of use.
    pub(super) clock: u64,
    /// The time of the last request in milliseconds.
    pub(super) time: i64,
    bytes: usize,
}

impl Store {
    /// The estimated bytes of a URL without its name.
    pub(super) const LEAST_URL_BYTES: usize = size_of::<Url>() + 64;

    /// Estimated bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes room for this many further URLs.
    pub(super) fn reserve_urls(&mut self, urls: usize) {
        self.ids.reserve(urls);
        self.urls.reserve(urls);
    }

    /// Returns the context of that name, if it exists.
    pub(super) fn find_named(&self, name: &str) -> Option<ContextId> {
        self.seek_named(name).ok()
    }

    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.seek(name).ok()
    }

    fn seek(&self, name: &str) -> Result<u32, Vacant> {
        self.ids.find(name.as_bytes(), |id| {
            self.urls[id as usize]
                .as_ref()
                .is_some_and(|url| *url.name == *name)
        })
    }

    /// Does the same for a caller that remembers the position of the URL.
    pub(super) fn find_near(&self, name: &str, place: Place) -> Option<u32> {
        if self.is_at(place) {
            Some(place.id)
        } else {
            self.find(name)
        }
    }

    /// Returns whether a position still holds the same URL: numbers are reused, and serial numbers
    /// are not.
    fn is_at(&self, place: Place) -> bool {
        let url = self.urls.get(place.id as usize).and_then(Option::as_ref);
        url.is_some_and(|url| url.serial == place.serial)
    }

    /// Returns the position of a URL that is in use.
    pub(super) fn place(&self, id: u32) -> Place {
        Place {
            id,
            serial: self.at(id).serial,
        }
    }

    /// The number of a URL, new if it was never seen.
    pub(super) fn url(&mut self, name: &str) -> u32 {
        self.url_near(name, Place::NOWHERE)
    }

    /// Does the same for a caller that remembers the position of the URL.
    pub(super) fn url_near(&mut self, name: &str, place: Place) -> u32 {
        if self.is_at(place) {
            return place.id;
        }
        let vacant = match self.seek(name) {
            Ok(id) => return id,
            Err(vacant) => vacant,
        };
        let parts = parts(name);
        let name: Arc<str> = name.into();
        self.bytes += url_bytes(&name);
        let kind = Kind::of_path(parts.path);
        self.created += 1;
        let url = Url {
            serial: self.created,
            kind,
            path_kind: kind,
            has_query: parts.query.is_some(),
            name,
            known_since: self.time,
            count: 0,
            crowd: Crowd::default(),
            size: 0.0,
            sizes: 0.0,
            as_page: 0.0,
            as_asset: 0.0,
            leads: None,
            again: None,
            timing: Timing::default(),
            transfers: None,
            again_transfers: None,
            contexts: [NONE; 3],
            followers: NONE,
        };
        let id = put(&mut self.urls, &mut self.free_urls, url);
        self.ids.insert(vacant, id);
        id
    }

    /// A URL that is in use.
    pub(super) fn at(&self, id: u32) -> &Url {
        self.urls[id as usize]
            .as_ref()
            .expect("ids in sessions and contexts are kept alive by `shrink`")
    }

    pub(super) fn at_mut(&mut self, id: u32) -> &mut Url {
        self.urls[id as usize]
            .as_mut()
            .expect("ids in sessions and contexts are kept alive by `shrink`")
    }

    /// A context that is in use.
    pub(super) fn context(&self, id: ContextId) -> &Context {
        self.contexts[id as usize]
            .as_ref()
            .expect("ids in loads and URLs are kept alive by `shrink`")
    }

    pub(super) fn context_mut(&mut self, id: ContextId) -> &mut Context {
        self.contexts[id as usize]
            .as_mut()
            .expect("ids in loads and URLs are kept alive by `shrink`")
    }

    /// Returns whether enough users requested a URL to offer it to others.
    pub(super) fn is_public(&self, id: u32, least_users: u8) -> bool {
        self.at(id).crowd.count >= least_users
    }

    /// The assets of a context that may be told of: where enough users came and asked for them.
    pub(super) fn known(&self, id: ContextId, least_users: u8) -> impl Iterator<Item = &Entry> {
        let context = self.context(id);
        let entries = if context.crowd.count >= least_users {
            &context.entries[..]
        } else {
            &[]
        };
        entries
            .iter()
            .filter(move |entry| entry.crowd.count >= least_users)
    }

    /// The contexts of a page: itself, its kind, its site. A site's error pages are one page.
    pub(super) fn contexts_of(&mut self, page: u32, error: bool) -> [ContextId; 3] {
        let name = self.at(page).name.clone();
        if error {
            let Parts { site, .. } = parts(&name);
            let (page, site) = (
                self.named(format!("E{site}")),
                self.named(format!("S{site}")),
            );
            return self.used([page, page, site]);
        }
        let known = self.at(page).contexts;
        if known[0] != NONE {
            return self.used(known);
        }
        let parts = parts(&name);
        let site = self.named(format!("S{}", parts.site));
        let kind = self.named(format!("T{}", template(&parts)));
        let itself = self.new_context(Key::Page(page));
        self.at_mut(page).contexts = [itself, kind, site];
        self.used([itself, kind, site])
    }

    /// Returns the context of the assets that follow `url`, new if need be.
    pub(super) fn followers_of(&mut self, url: u32) -> ContextId {
        let known = self.at(url).followers;
        let id = if known == NONE {
            let id = self.named(format!("{FOLLOWERS}{}", self.at(url).name));
            self.at_mut(url).followers = id;
            id
        } else {
            known
        };
        self.context_mut(id).used = self.clock;
        id
    }

    /// Ties a context that was read or merged to its asset, if it has followers of one.
    pub(super) fn link_followers(&mut self, id: ContextId) {
        let Key::Named(name) = &self.context(id).key else {
            return;
        };
        let asset = name.strip_prefix(FOLLOWERS);
        if let Some(asset) = asset.and_then(|asset| self.find(asset)) {
            self.at_mut(asset).followers = id;
        }
    }

    fn used(&mut self, contexts: [ContextId; 3]) -> [ContextId; 3] {
        let clock = self.clock;
        for context in contexts {
            self.context_mut(context).used = clock;
        }
        contexts
    }

    /// The context of that name, new if need be.
    pub(super) fn named(&mut self, name: String) -> ContextId {
        match self.seek_named(&name) {
            Ok(id) => id,
            Err(vacant) => {
                self.bytes += name.len() + 48;
                let id = self.new_context(Key::Named(name.into()));
                self.named.insert(vacant, id);
                id
            }
        }
    }

    fn seek_named(&self, name: &str) -> Result<ContextId, Vacant> {
        let is = |key: &Key| matches!(key, Key::Named(known) if **known == *name);
        self.named.find(name.as_bytes(), |id| {
            self.contexts[id as usize]
                .as_ref()
                .is_some_and(|context| is(&context.key))
        })
    }

    /// Returns whether a context of that name exists.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.seek_named(name).is_ok()
    }

    /// A context that nothing refers to yet.
    pub(super) fn new_context(&mut self, key: Key) -> ContextId {
        self.bytes += CONTEXT_BYTES;
        let used = self.clock;
        let context = Context {
            key,
            loads: 0.0,
            fetches: None,
            transfers: None,
            pending: 0.0,
            used,
            crowd: Crowd::default(),
            entries: Vec::new(),
        };
        put(&mut self.contexts, &mut self.free_contexts, context)
    }

    /// Adds an asset to a context; of a full one the least likely asset makes way, if it is
    /// unlikely enough.
    pub(super) fn add_entry(
        &mut self,
        context: ContextId,
        limit: usize,
        url: u32,
        rate: Rate,
        crowd: Crowd,
    ) {
        let context = self.context_mut(context);
        let entry = Entry {
            url,
            rate,
            later: [Rate::prior(0.1); 2],
            crowd,
        };
        if context.entries.len() < limit {
            context.entries.push(entry);
            self.bytes += ENTRY_BYTES;
            return;
        }
        let (mut least, mut at) = (f32::INFINITY, None);
        for (index, entry) in context.entries.iter().enumerate() {
            if entry.rate.p < least {
                (least, at) = (entry.rate.p, Some(index));
            }
        }
        if let Some(at) = at.filter(|_| least < rate.p.max(0.05)) {
            context.entries[at] = entry;
        }
    }

    /// Drops the least recently and least often used contexts, down to about half of `limit` bytes,
    /// except those that `keep` marks.
    pub(super) fn shrink(&mut self, limit: usize, keep_urls: &[u32], keep_contexts: &[ContextId]) {
        let mut kept = vec![false; self.contexts.len()];
        for &id in keep_contexts {
            kept[id as usize] = true;
        }
        let mut order = self.ranked();
        order.retain(|&(_, id)| !kept[id as usize]);
        // Half of the memory may be URLs that only these contexts keep alive, so contexts are
        // dropped by share and not by bytes.
        let share = 1.0 - 0.5 * limit as f64 / self.bytes.max(1) as f64;
        order.truncate((order.len() as f64 * share.clamp(0.1, 1.0)) as usize);
        for &(_, id) in &order {
            self.drop_context(id);
        }
        self.drop_unused_urls(keep_urls);
    }

    /// All contexts, those to be dropped first in front. The more of a site is kept already the
    /// less its next context is worth, so that a crawl of one site displaces that site's own pages
    /// and not everybody else's.
    fn ranked(&self) -> Vec<(f64, ContextId)> {
        let mut by_site: HashMap<&str, Vec<(f64, ContextId)>> = HashMap::new();
        for (id, context) in (0..).zip(&self.contexts) {
            let Some(context) = context else { continue };
            by_site
                .entry(self.site_of(context))
                .or_default()
                .push((context.worth(self.clock), id));
        }
        let mut ranked = Vec::with_capacity(self.contexts.len());
        for mut contexts in by_site.into_values() {
            contexts.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut bytes = 0.0;
            for (worth, id) in contexts {
                ranked.push((worth - 2.0 * f64::ln_1p(bytes / SITE_BYTES), id));
                bytes += (CONTEXT_BYTES + self.context(id).entries.len() * ENTRY_BYTES) as f64;
            }
        }
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ranked
    }

    /// The site that a context belongs to.
    fn site_of<'a>(&'a self, context: &'a Context) -> &'a str {
        match &context.key {
            Key::Page(page) => self.urls[*page as usize]
                .as_ref()
                .map_or("", |url| parts(&url.name).site),
            Key::Named(name) => parts(name.get(1..).unwrap_or("")).site,
        }
    }

    fn drop_context(&mut self, id: ContextId) {
        let Some(context) = self.contexts[id as usize].take() else {
            return;
        };
        self.bytes = self
            .bytes
            .saturating_sub(CONTEXT_BYTES + context.entries.len() * ENTRY_BYTES);
        match context.key {
            Key::Named(name) => {
                self.bytes = self.bytes.saturating_sub(name.len() + 48);
                self.named.remove(name.as_bytes(), id);
            }
            Key::Page(_) => {}
        }
        self.free_contexts.push(id);
    }

    fn drop_unused_urls(&mut self, keep: &[u32]) {
        let mut used = vec![false; self.urls.len()];
        for &id in keep {
            used[id as usize] = true;
        }
        for context in self.contexts.iter().flatten() {
            for entry in &context.entries {
                used[entry.url as usize] = true;
            }
            if let Key::Page(page) = context.key {
                used[page as usize] = true;
            }
        }
        for (id, slot) in self.urls.iter_mut().enumerate() {
            let Some(url) = slot else { continue };
            // A page has three contexts or none: the rest of an incomplete set would point at
            // reused numbers.
            if url
                .contexts
                .iter()
                .any(|&c| c == NONE || self.contexts[c as usize].is_none())
            {
                url.contexts = [NONE; 3];
            }
            let followers = self.contexts.get(url.followers as usize);
            if followers.is_none_or(Option::is_none) {
                url.followers = NONE;
            }
            if !used[id] {
                self.bytes = self.bytes.saturating_sub(url_bytes(&url.name));
                self.ids.remove(url.name.as_bytes(), id as u32);
                *slot = None;
                self.free_urls.push(id as u32);
            }
        }
        // A page context without its page is useless.
        for id in 0..self.contexts.len() as u32 {
            let context = self.contexts[id as usize].as_ref();
            let orphan = match context.map(|context| &context.key) {
                Some(&Key::Page(page)) => self.urls[page as usize]
                    .as_ref()
                    .is_none_or(|url| url.contexts[0] != id),
                _ => false,
            };
            if orphan {
                self.drop_context(id);
            }
        }
    }
}

/// The memory that a site may use before its further contexts lose weight.
const SITE_BYTES: f64 = 16_384.0;
const CONTEXT_BYTES: usize = size_of::<Context>() + 16;
const ENTRY_BYTES: usize = size_of::<Entry>() * 3 / 2;

fn url_bytes(name: &str) -> usize {
    name.len() + Store::LEAST_URL_BYTES
}

fn put<T>(slots: &mut Vec<Option<T>>, free: &mut Vec<u32>, value: T) -> u32 {
    if let Some(id) = free.pop() {
        slots[id as usize] = Some(value);
        return id;
    }
    slots.push(Some(value));
    (slots.len() - 1) as u32
}

impl Context {
    /// How much it is worth keeping: use counts by its logarithm, and fades by half every 50,000
    /// requests.
    fn worth(&self, clock: u64) -> f64 {
        let views = f64::from(self.loads + self.fetches.map_or(0.0, |rate| rate.n));
        let is_site = matches!(&self.key, Key::Named(name) if name.starts_with('S'));
        let general = if is_site { 4.0 } else { 0.0 };
        (1.0 + views).ln() + general - (clock - self.used) as f64 / 50_000.0
    }

    /// Share of loads that fetch anything, loads not yet decided counting half against it.
    pub(super) fn fetching(&self, general: f32) -> f32 {
        match self.fetches {
            Some(rate) => rate.p * (rate.n + 1.0) / (rate.n + 1.0 + 0.5 * self.pending),
            None => general / (1.0 + 0.5 * self.pending),
        }
    }
}
