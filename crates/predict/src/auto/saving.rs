//! The knowledge of `auto` as bytes, in the format that `state` reads.
//!
//! A predictor may learn while it is written in parts. A URL or context that is forgotten
//! meanwhile, and learned again under another number, is written once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::mixer::{Mixer, Rate};
use super::model::Model;
use super::state::{NAME, VERSION};
use super::store::{Context, ContextId, FOLLOWERS, Key, NONE, Store, Url};
use super::{Auto, fnv1a};
use crate::ids::IdMap;

/// The knowledge of a predictor that is written in parts.
#[derive(Debug)]
pub struct Saving {
    out: Writer,
    written: Written,
}

impl Saving {
    /// Returns the bytes of all parts.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let mut bytes = self.out.bytes;
        let checksum = fnv1a(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

impl Auto {
    /// Returns everything learned so far that may outlive the sessions.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut saving = self.begin_save();
        while !self.save_part(&mut saving, usize::MAX) {}
        saving.finish()
    }

    /// Begins to write the state in parts; see [`save`](Self::save).
    #[must_use]
    pub fn begin_save(&self) -> Saving {
        let mut out = Writer {
            bytes: NAME.to_vec(),
            has_transfers: true,
        };
        out.u32(VERSION);
        out.model(&self.model);
        let written = Written::begin(&mut out);
        Saving { out, written }
    }

    /// Writes the next part: about `most` URLs, contexts and their assets. Returns whether it was
    /// the last one.
    pub fn save_part(&self, saving: &mut Saving, most: usize) -> bool {
        let Saving { out, written } = saving;
        out.part(written, &self.store, self.config.min_users, most)
    }
}

/// The progress of writing URLs and contexts.
#[derive(Debug)]
struct Written {
    next: Next,
    /// The place of the number of URLs, and then of contexts.
    count_at: usize,
    /// The numbers of the written URLs.
    urls: HashMap<Arc<str>, u32>,
    /// The same by the numbers in the store, with the serial numbers of the URLs.
    numbers: IdMap<u32, (u64, u32)>,
    /// The pages with a written context.
    pages: HashSet<u32>,
    /// The other written contexts.
    kinds: HashSet<Arc<str>>,
    contexts: usize,
}

/// The number in the store at which the next part begins.
#[derive(Clone, Copy, Debug)]
enum Next {
    Url(u32),
    Context(ContextId),
}

impl Written {
    fn begin(out: &mut Writer) -> Self {
        Self {
            next: Next::Url(0),
            count_at: out.count(),
            urls: HashMap::new(),
            numbers: IdMap::default(),
            pages: HashSet::new(),
            kinds: HashSet::new(),
            contexts: 0,
        }
    }

    /// Notes a URL of the store. Returns false if it is written already.
    fn is_new_url(&mut self, id: u32, url: &Url) -> bool {
        let next = self.urls.len() as u32;
        let number = *self.urls.entry(Arc::clone(&url.name)).or_insert(next);
        self.numbers.insert(id, (url.serial, number));
        number == next
    }

    /// Returns the number of a URL of the store, if the URL is written.
    fn number(&self, store: &Store, id: u32) -> Option<u32> {
        let url = store.urls.get(id as usize)?.as_ref()?;
        let &(serial, number) = self.numbers.get(&id)?;
        (serial == url.serial).then_some(number)
    }
}

#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
    /// Indicates whether the rates of transfers are written. Gains do not have them.
    has_transfers: bool,
}

impl Writer {
    fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn f32(&mut self, value: f32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn rate(&mut self, rate: Rate) {
        self.f32(rate.p);
        self.f32(rate.n);
    }

    fn optional(&mut self, rate: Option<Rate>) {
        // No rate has an estimate outside 0 to 1.
        self.rate(rate.unwrap_or(Rate { p: -1.0, n: 0.0 }));
    }

    fn transfers(&mut self, rate: Option<Rate>) {
        if self.has_transfers {
            self.optional(rate);
        }
    }

    fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn mixer<const INPUTS: usize>(&mut self, mixer: &Mixer<INPUTS>) {
        for (weights, &seen) in mixer.weights.iter().zip(&mixer.seen) {
            weights.iter().for_each(|&weight| self.f32(weight));
            self.f32(seen);
        }
    }

    fn model(&mut self, model: &Model) {
        self.mixer(&model.fetch);
        self.mixer(&model.lead);
        self.mixer(&model.asset);
        let points = model
            .reliability
            .iter()
            .flat_map(|reliability| reliability.points);
        let rates = points
            .chain([model.fetches, model.follows])
            .chain(model.circumstances)
            .chain(model.firsts);
        rates.for_each(|rate| self.rate(rate));
        self.mixer(&model.repetition.mixer);
        let points = model.repetition.reliability.points.into_iter();
        points
            .chain(model.repetition.rates)
            .chain(model.repetition.transfers)
            .for_each(|rate| self.rate(rate));
        self.mixer(&model.transfers.mixer);
        self.rate(model.transfers.overall);
        model
            .transfers
            .rates
            .iter()
            .for_each(|&rate| self.rate(rate));
    }

    /// Writes the URLs that may be written, then the contexts with their publishable parts.
    pub(super) fn store(&mut self, store: &Store, min_users: u8) {
        let mut written = Written::begin(self);
        while !self.part(&mut written, store, min_users, usize::MAX) {}
    }

    /// Writes the next URLs or contexts: about `most` of them, where each asset of a context counts
    /// too. Returns whether all are written.
    fn part(&mut self, written: &mut Written, store: &Store, min_users: u8, most: usize) -> bool {
        let mut left = most.max(1);
        while left > 0 {
            left -= 1;
            written.next = match written.next {
                Next::Url(id) => match store.urls.get(id as usize) {
                    None => {
                        self.set_count(written.count_at, written.urls.len());
                        written.count_at = self.count();
                        Next::Context(0)
                    }
                    Some(url) => {
                        let url = url.as_ref().filter(|url| url.crowd.count >= min_users);
                        if let Some(url) = url
                            && written.is_new_url(id, url)
                        {
                            self.url(url);
                        }
                        Next::Url(id + 1)
                    }
                },
                Next::Context(id) => match store.contexts.get(id as usize) {
                    None => {
                        self.set_count(written.count_at, written.contexts);
                        return true;
                    }
                    Some(context) => {
                        // The same rule applies to kinds of pages, sites, and their assets.
                        let context = context.as_ref();
                        let context = context.filter(|context| context.crowd.count >= min_users);
                        if let Some(context) = context {
                            left = left.saturating_sub(context.entries.len());
                            self.context(written, store, context, min_users);
                        }
                        Next::Context(id + 1)
                    }
                },
            };
        }
        false
    }

    /// Writes a context, unless it is that of a page whose URL is not written.
    fn context(&mut self, written: &mut Written, store: &Store, context: &Context, min_users: u8) {
        match &context.key {
            Key::Page(page) => {
                let number = written.number(store, *page);
                let Some(number) = number.filter(|number| written.pages.insert(*number)) else {
                    return;
                };
                self.u32(number);
            }
            Key::Named(name) => {
                // The URL of an asset that was forgotten has no use, and may lack users.
                let asset = name.strip_prefix(FOLLOWERS);
                if asset.is_some_and(|url| !written.urls.contains_key(url)) {
                    return;
                }
                if !written.kinds.insert(Arc::clone(name)) {
                    return;
                }
                self.u32(NONE);
                self.text(name);
            }
        }
        written.contexts += 1;
        self.bytes.push(context.crowd.count);
        self.f32(context.loads);
        self.optional(context.fetches);
        self.transfers(context.transfers);
        let (count_at, mut count) = (self.count(), 0);
        for entry in &context.entries {
            let is_public = entry.crowd.count >= min_users;
            let number = is_public.then(|| written.number(store, entry.url));
            if let Some(number) = number.flatten() {
                self.u32(number);
                self.bytes.push(entry.crowd.count);
                self.rate(entry.rate);
                entry.later.iter().for_each(|&rate| self.rate(rate));
                count += 1;
            }
        }
        self.set_count(count_at, count);
    }

    /// Leaves room for a count, and returns its place.
    fn count(&mut self) -> usize {
        let place = self.bytes.len();
        self.u32(0);
        place
    }

    fn set_count(&mut self, place: usize, count: usize) {
        self.bytes[place..place + 4].copy_from_slice(&(count as u32).to_le_bytes());
    }

    fn url(&mut self, url: &Url) {
        self.text(&url.name);
        self.bytes
            .extend_from_slice(&[url.kind as u8, url.crowd.count]);
        self.u32(url.count);
        [url.size, url.sizes, url.as_page, url.as_asset]
            .iter()
            .for_each(|&value| self.f32(value));
        self.optional(url.leads);
        self.optional(url.again);
        self.transfers(url.transfers);
        self.transfers(url.again_transfers);
    }
}
