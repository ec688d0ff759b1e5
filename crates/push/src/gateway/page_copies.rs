//! The records of the copies that the browser may have of the last pages' resources (see `copies`).

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use tandem_http::RequestHead;

use super::deadlines::{Deadlines, GATHER_PERIOD};
use super::returning::CachedCopy;
use super::table::{FetchId, PageId};
use super::visitors::referring_authority;
use crate::fetch_standard::is_navigation;
use crate::response_rules::CopyLifetime;
use crate::site::site_of;
use crate::url::request_authority;
use crate::wire::url_hash_of;

/// The largest number of pages of which copies are remembered. A page may have frames with copies
/// too.
const MAX_PAGES: usize = 4;

/// The largest number of copies of a page that are remembered.
const MAX_COPIES: usize = 512;

/// The largest number of hosts of a page that are remembered.
const MAX_HOSTS: usize = 256;

/// The copies that the browser may have of the resources of a page.
pub(super) struct PageCopies {
    pub(super) page: PageId,
    pub(super) site: String,
    /// The authority of the document.
    document: String,
    /// The copies that were not checked, with the hashes of their URLs.
    pub(super) unchecked: Vec<(u32, CachedCopy)>,
    /// True if the page has shown a first visit.
    pub(super) is_first: bool,
    /// The hosts of requests that the page caused.
    pub(super) hosts: HashSet<String>,
}

impl PageCopies {
    /// Creates the record of a page, whose document has the authority `document`.
    pub(super) fn new(page: PageId, document: &str, copies: Vec<CachedCopy>) -> Self {
        let with_hash = |copy: CachedCopy| Some((url_hash_of(&copy.need.url)?, copy));
        let unchecked = copies.into_iter().filter_map(with_hash).take(MAX_COPIES);
        Self {
            page,
            site: site_of(document),
            document: document.to_owned(),
            unchecked: unchecked.collect(),
            is_first: false,
            hosts: HashSet::new(),
        }
    }

    /// Takes the copy of a resource that the browser requests. Returns its lifetime.
    pub(super) fn take(&mut self, hash: u32) -> Option<CopyLifetime> {
        let at = self.unchecked.iter().position(|(own, _)| *own == hash)?;
        Some(self.unchecked.swap_remove(at).1.lifetime)
    }

    /// Remembers the host of a request, if the page caused the request. Returns whether it is new.
    pub(super) fn note_host(&mut self, request: &RequestHead) -> bool {
        !is_navigation(request)
            && referring_authority(request) == Some(self.document.as_str())
            && self.hosts.len() < MAX_HOSTS
            && self.hosts.insert(request_authority(request).into_owned())
    }
}

/// The copies that the browser may have of the resources of the last pages, and the checks of them
/// that begin soon.
#[derive(Default)]
pub(super) struct Copies {
    /// The copies of each page, those of the oldest page first.
    pages: VecDeque<PageCopies>,
    checks: Deadlines<FetchId>,
}

impl Copies {
    /// Adds the copies of a new page. Returns the page whose copies are forgotten for them.
    pub(super) fn push(&mut self, copies: PageCopies) -> Option<PageId> {
        self.pages.push_back(copies);
        let oldest = (self.pages.len() > MAX_PAGES).then(|| self.pages.pop_front())?;
        oldest.map(|copies| copies.page)
    }

    /// Returns the copies of all pages.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PageCopies> {
        self.pages.iter_mut()
    }

    /// Forgets all copies. Returns their pages.
    pub(super) fn clear(&mut self) -> Vec<PageId> {
        self.pages.drain(..).map(|copies| copies.page).collect()
    }

    /// Returns whether copies of the resources of a page may still be checked.
    pub(super) fn need(&self, page: PageId) -> bool {
        self.pages.iter().any(|copies| copies.page == page)
    }

    /// Forgets the old copies of a resource of which the browser has used a push.
    pub(super) fn forget(&mut self, hash: u32) {
        for copies in &mut self.pages {
            copies.take(hash);
        }
    }

    /// Lets a check wait for requests that arrive in the next moment.
    pub(super) fn gather(&mut self, now: Instant, check: FetchId) {
        self.checks.add(now + GATHER_PERIOD, check);
    }

    /// Returns the time of the next call of [`Self::take_check`].
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.checks.next()
    }

    /// Takes a check for which the moment is over.
    pub(super) fn take_check(&mut self, now: Instant) -> Option<FetchId> {
        self.checks.take_due(now)
    }

    /// Forgets the checks that wait for a moment, since the session is over.
    pub(super) fn drop_checks(&mut self) {
        self.checks.clear();
    }

    /// Returns whether the browser may have a copy of a resource that its cache uses for a while.
    pub(super) fn contain_lasting(&self, hash: u32) -> bool {
        let mut all = self.pages.iter().flat_map(|copies| &copies.unchecked);
        all.any(|(own, copy)| *own == hash && !copy.lifetime.whole.is_zero())
    }

    /// Returns whether the browser may have a copy of a resource.
    pub(super) fn contain(&self, hash: u32) -> bool {
        let mut all = self.pages.iter().flat_map(|copies| &copies.unchecked);
        all.any(|(own, _)| *own == hash)
    }
}
