//! The policies of documents for their resources ([`ContentSecurity`]), as the session knows them.
//!
//! Documents that the user visits, frames, and the style sheets and scripts that the browser
//! requests have a table each. Hence the parts of a page never evict its own policies. If a table
//! has lost policies of a host, those of an unknown URL there admit nothing. A lost embedder policy
//! refuses no request, so it does not count.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tandem_preload::split;

use crate::fetch_standard::ContentSecurity;
use crate::url::{authority, is_same_origin};

/// The largest number of documents in one table.
const MAX_DOCUMENTS: usize = 128;

/// The largest number of bytes of memory of the URLs and policies in one table.
const MAX_BYTES: usize = 512 << 10;

/// The largest number of hosts with lost policies that one table distinguishes. With more of them,
/// all hosts count as such.
const MAX_LOST: usize = 1024;

/// The policies of documents, and of the parts of documents.
#[derive(Default)]
pub(super) struct ContentPolicies {
    documents: Table,
    frames: Table,
    /// Style sheets and scripts, with the policies of their documents.
    subresources: Table,
    /// The number of responses so far.
    number: u64,
}

/// Policies by URL, the oldest first. Documents without policies are entries too.
#[derive(Default)]
struct Table {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The hosts of the entries with policies that were evicted.
    lost: LostHosts,
}

struct Entry {
    url: Box<str>,
    policies: Arc<ContentSecurity>,
    /// The number of the response that showed the policies.
    number: u64,
}

/// The hosts with lost policies. Few sessions lose any.
#[derive(Default)]
struct LostHosts(Option<Box<HostHashes>>);

/// The hashes of hosts.
#[derive(Default)]
struct HostHashes {
    hashes: HashSet<u64>,
    hasher: RandomState,
    is_full: bool,
}

impl LostHosts {
    fn add(&mut self, url: &str) {
        let hosts = self.0.get_or_insert_default();
        let hash = hosts.hasher.hash_one(authority(url));
        if hosts.hashes.len() < MAX_LOST {
            hosts.hashes.insert(hash);
        } else {
            hosts.is_full |= !hosts.hashes.contains(&hash);
        }
    }

    fn has_host_of(&self, url: &str) -> bool {
        self.0.as_ref().is_some_and(|hosts| {
            hosts.is_full
                || hosts
                    .hashes
                    .contains(&hosts.hasher.hash_one(authority(url)))
        })
    }

    const fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.url.len() + self.policies.bytes()
    }
}

impl Table {
    fn get(&self, url: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| *entry.url == *url)
    }

    fn set(&mut self, entry: Entry) {
        let old = self.entries.iter().position(|it| it.url == entry.url);
        if let Some(old) = old.and_then(|at| self.entries.remove(at)) {
            self.bytes -= old.bytes();
        }
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
        while self.entries.len() > MAX_DOCUMENTS || self.bytes > MAX_BYTES {
            let Some(evicted) = self.entries.pop_front() else {
                return;
            };
            self.bytes -= evicted.bytes();
            if !evicted.policies.admits_all() {
                self.lost.add(&evicted.url);
            }
        }
    }
}

impl ContentPolicies {
    /// Returns the policies of the last response at `url`; `None` if the session has seen none.
    pub(super) fn of(&self, url: &str) -> Option<Arc<ContentSecurity>> {
        let entries = [self.documents.get(url), self.frames.get(url)];
        let last = entries.into_iter().flatten().max_by_key(|it| it.number);
        match last {
            Some(last) => Some(Arc::clone(&last.policies)),
            None => self.of_unknown(url),
        }
    }

    /// Returns the policies of a document that was at `url`, or of a frame there. If both were
    /// there, returns the policies of both together.
    pub(super) fn of_each(&self, url: &str) -> Option<Arc<ContentSecurity>> {
        match (self.documents.get(url), self.frames.get(url)) {
            (None, None) => self.of_unknown(url),
            (one, other) => {
                let entries = [one, other].into_iter().flatten();
                Some(merged(entries.map(|entry| &entry.policies)))
            }
        }
    }

    /// Sets the policies of a document that the user visits.
    pub(super) fn set_document(&mut self, url: &str, policies: Arc<ContentSecurity>) {
        let entry = self.entry(url, policies);
        self.documents.set(entry);
    }

    /// Sets the policies of a frame.
    pub(super) fn set_frame(&mut self, url: &str, policies: Arc<ContentSecurity>) {
        let entry = self.entry(url, policies);
        self.frames.set(entry);
    }

    /// Sets the policies of the document of a style sheet or script, which may be a referrer.
    pub(super) fn set_subresource(&mut self, url: &str, policies: Arc<ContentSecurity>) {
        let entry = self.entry(url, policies);
        self.subresources.set(entry);
    }

    /// Replaces the policies of the last response at `url`.
    pub(super) fn update(&mut self, url: &str, policies: Arc<ContentSecurity>) {
        let number = |entry: &Entry| entry.number;
        match self.frames.get(url).map(number) > self.documents.get(url).map(number) {
            true => self.set_frame(url, policies),
            false => self.set_document(url, policies),
        }
    }

    fn entry(&mut self, url: &str, policies: Arc<ContentSecurity>) -> Entry {
        self.number += 1;
        Entry {
            url: url.into(),
            policies,
            number: self.number,
        }
    }

    /// Returns the policies for a part of the document that `referrer` names.
    ///
    /// A referrer that is an origin may stand for all documents of it. One that is unknown may be
    /// the URL that a script has given to a document (`history.pushState`), or a style sheet from a
    /// push or a cache. A known style sheet may belong to another document by now. The policies of
    /// the documents at `pages`, which may have caused the request, then hold as well, and so do
    /// those of the last document and the frames after it.
    pub(super) fn of_referrer<'a>(
        &self,
        referrer: &str,
        pages: impl IntoIterator<Item = &'a str>,
    ) -> Option<Arc<ContentSecurity>> {
        let is_whole = split(referrer)?.2 != "/";
        let is_known = |table: &Table| table.get(referrer).is_some();
        if is_whole && (is_known(&self.documents) || is_known(&self.frames)) {
            return self.of_each(referrer);
        }
        let sheet = self.subresources.get(referrer).filter(|_| is_whole);
        if sheet.is_none() && self.has_lost_at(referrer) {
            return Some(ContentSecurity::closed().into());
        }
        let is_possible = |it: &&Entry| sheet.is_none() && is_same_origin(&it.url, referrer);
        let possible = self.entries().filter(is_possible).chain(sheet);
        let last = self.documents.entries.back();
        let since = last.map_or(0, |document| document.number);
        let parts = self.frames.entries.iter().filter(|it| it.number > since);
        let entries = possible.chain(last).chain(parts);
        let mut all = merged(entries.map(|entry| &entry.policies));
        for page in pages {
            if let Some(policies) = self.of(page) {
                all = merged([&all, &policies].into_iter());
            }
        }
        Some(all).filter(|all| !all.is_empty())
    }

    /// Returns the policies of all documents.
    pub(super) fn of_all(&self) -> Option<Arc<ContentSecurity>> {
        // The table of style sheets and scripts repeats policies of documents, so its losses do not
        // count.
        if !self.documents.lost.is_empty() || !self.frames.lost.is_empty() {
            return Some(ContentSecurity::closed().into());
        }
        Some(merged(self.entries().map(|entry| &entry.policies))).filter(|all| !all.is_empty())
    }

    fn tables(&self) -> impl Iterator<Item = &Table> {
        [&self.documents, &self.frames, &self.subresources].into_iter()
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.tables().flat_map(|table| &table.entries)
    }

    /// Returns whether a referrer at this host may have had policies that are lost.
    fn has_lost_at(&self, referrer: &str) -> bool {
        self.tables().any(|table| table.lost.has_host_of(referrer))
    }

    /// Returns the policies of a document without an entry.
    fn of_unknown(&self, url: &str) -> Option<Arc<ContentSecurity>> {
        let mut tables = [&self.documents, &self.frames].into_iter();
        let has_lost = tables.any(|table| table.lost.has_host_of(url));
        has_lost.then(|| ContentSecurity::closed().into())
    }
}

/// Returns the policies of several documents together. Many documents share theirs.
fn merged<'a>(policies: impl Iterator<Item = &'a Arc<ContentSecurity>>) -> Arc<ContentSecurity> {
    let mut seen: Vec<&Arc<ContentSecurity>> = Vec::new();
    let mut all: Arc<ContentSecurity> = Arc::default();
    for policies in policies {
        if all.is_closed() {
            break;
        }
        if policies.is_empty() || seen.iter().any(|it| Arc::ptr_eq(it, policies)) {
            continue;
        }
        match seen.is_empty() {
            true => all = Arc::clone(policies),
            false => Arc::make_mut(&mut all).merge(policies),
        }
        seen.push(policies);
    }
    all
}

#[cfg(test)]
mod tests;
