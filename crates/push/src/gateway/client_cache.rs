//! The gateway's picture of the browser's cache: which URLs the client received on this session or
//! holds from earlier ones. URLs are known by their [`url_hash`](crate::wire::url_hash).

use std::collections::{HashMap, HashSet};

use crate::response_rules::Reuse;

/// The number of URLs of this session in each of two generations. The older generation is dropped
/// when the younger one is full.
const GENERATION: usize = 4096;

/// The largest number of URLs that a client may report from earlier sessions.
const MAX_EARLIER: usize = 4096;

/// The state of a URL in the browser's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holding {
    /// The browser can use it without a request.
    Reusable,
    /// The browser can use it after a validation.
    Validatable,
    /// The browser did not use the push: it has the resource already, or does not want it.
    Unsure,
}

/// The URLs that the browser is thought to hold. The tables are allocated with the first of them: a
/// client that takes no pushes needs none.
#[derive(Default)]
pub(super) struct ClientCache {
    tables: Option<Box<Tables>>,
}

#[derive(Default)]
struct Tables {
    recent: HashMap<u32, Holding>,
    rare: Option<Box<RareTables>>,
}

/// The tables that few sessions need.
#[derive(Default)]
struct RareTables {
    older: HashMap<u32, Holding>,
    earlier: HashSet<u32>,
    /// The URLs whose responses must not be pushed, so that each is fetched for nothing once only.
    unpushable: HashSet<u32>,
    /// The URLs whose copies were checked for nothing. Each is checked for nothing once only.
    uncheckable: HashSet<u32>,
}

impl ClientCache {
    pub(super) fn is_empty(&self) -> bool {
        let has_none = |rare: &RareTables| rare.older.is_empty() && rare.earlier.is_empty();
        let recent = self.tables.as_ref().map(|tables| &tables.recent);
        recent.is_none_or(HashMap::is_empty) && self.rare().is_none_or(has_none)
    }

    /// Returns whether the browser needs no push of this URL.
    pub(super) fn is_usable(&self, url: u32) -> bool {
        matches!(self.get(url), Some(Holding::Reusable | Holding::Unsure)) || self.is_earlier(url)
    }

    /// Returns whether the browser can use this URL after a validation.
    pub(super) fn is_validatable(&self, url: u32) -> bool {
        self.get(url) == Some(Holding::Validatable)
    }

    /// Returns whether the browser surely received this URL, so that a plain request for it shows
    /// that the cache was lost.
    pub(super) fn has_received(&self, url: u32) -> bool {
        self.get(url)
            .is_some_and(|holding| holding != Holding::Unsure)
            || self.is_earlier(url)
    }

    /// Records that a push of this URL is promised.
    pub(super) fn note_promise(&mut self, url: u32) {
        self.insert(url, Holding::Reusable);
    }

    /// Records that the browser receives a response of which its cache can make this use.
    pub(super) fn note_answer(&mut self, url: u32, reuse: Reuse) {
        match reuse {
            Reuse::Fresh => self.insert(url, Holding::Reusable),
            Reuse::Validate => self.insert(url, Holding::Validatable),
            Reuse::Never => self.forget(url),
        }
    }

    /// Records that the response of this URL must not be pushed. A full set is cleared first.
    pub(super) fn note_unpushable(&mut self, url: u32) {
        insert_bounded(&mut self.rare_mut().unpushable, url);
    }

    /// Records that a push of this URL served a request.
    pub(super) fn note_pushable(&mut self, url: u32) {
        let tables = self.tables.as_mut();
        if let Some(rare) = tables.and_then(|tables| tables.rare.as_mut()) {
            rare.unpushable.remove(&url);
        }
    }

    pub(super) fn is_unpushable(&self, url: u32) -> bool {
        self.rare()
            .is_some_and(|rare| rare.unpushable.contains(&url))
    }

    /// Records that a check of this URL confirmed no copy. A full set is cleared first.
    pub(super) fn note_uncheckable(&mut self, url: u32) {
        insert_bounded(&mut self.rare_mut().uncheckable, url);
    }

    pub(super) fn is_uncheckable(&self, url: u32) -> bool {
        self.rare()
            .is_some_and(|rare| rare.uncheckable.contains(&url))
    }

    /// Records that the browser did not use a push.
    pub(super) fn note_refusal(&mut self, url: u32) {
        if self.get(url).is_some() {
            self.insert(url, Holding::Unsure);
        }
    }

    /// Records that the client holds this URL from an earlier session.
    pub(super) fn note_earlier(&mut self, url: u32) {
        let earlier = &mut self.rare_mut().earlier;
        if earlier.len() < MAX_EARLIER {
            earlier.insert(url);
        }
    }

    pub(super) fn forget(&mut self, url: u32) {
        if let Some(tables) = &mut self.tables {
            tables.recent.remove(&url);
            if let Some(rare) = &mut tables.rare {
                rare.older.remove(&url);
            }
        }
    }

    fn tables_mut(&mut self) -> &mut Tables {
        self.tables.get_or_insert_default()
    }

    fn rare_mut(&mut self) -> &mut RareTables {
        self.tables_mut().rare.get_or_insert_default()
    }

    fn rare(&self) -> Option<&RareTables> {
        self.tables.as_ref()?.rare.as_deref()
    }

    fn is_earlier(&self, url: u32) -> bool {
        self.rare().is_some_and(|rare| rare.earlier.contains(&url))
    }

    fn get(&self, url: u32) -> Option<Holding> {
        let recent = self.tables.as_ref()?.recent.get(&url);
        recent.or_else(|| self.rare()?.older.get(&url)).copied()
    }

    fn insert(&mut self, url: u32, holding: Holding) {
        let tables = self.tables_mut();
        if tables.recent.len() >= GENERATION {
            let recent = std::mem::take(&mut tables.recent);
            tables.rare.get_or_insert_default().older = recent;
        }
        tables.recent.insert(url, holding);
    }
}

/// Adds a URL to a set. A full set is cleared first.
fn insert_bounded(set: &mut HashSet<u32>, url: u32) {
    if set.len() >= GENERATION {
        set.clear();
    }
    set.insert(url);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_lets_unreusable_urls_be_pushed_again() {
        let mut cache = ClientCache::default();
        assert!(cache.is_empty());
        for (url, reuse, usable, received) in [
            (1, Reuse::Fresh, true, true),
            (2, Reuse::Validate, false, true),
            (3, Reuse::Never, false, false),
        ] {
            cache.note_promise(url);
            assert!(cache.is_usable(url) && cache.has_received(url));
            cache.note_answer(url, reuse);
            assert_eq!(cache.is_usable(url), usable, "{reuse:?}");
            assert_eq!(cache.has_received(url), received, "{reuse:?}");
        }
        assert!(!cache.is_empty() && !cache.is_usable(4));
    }

    #[test]
    fn cache_is_unsure_of_refused_pushes() {
        let mut cache = ClientCache::default();
        cache.note_refusal(1);
        assert!(cache.is_empty(), "an unknown URL stays unknown");
        cache.note_answer(1, Reuse::Fresh);
        cache.note_refusal(1);
        assert!(cache.is_usable(1), "it is not sent again");
        assert!(!cache.has_received(1), "a request for it shows nothing");
        cache.forget(1);
        assert!(cache.is_empty());
    }

    #[test]
    fn cache_includes_urls_of_earlier_sessions() {
        let mut cache = ClientCache::default();
        for url in 0..5000 {
            cache.note_earlier(url);
        }
        assert!(cache.is_usable(0) && cache.has_received(4095) && !cache.is_empty());
        assert!(!cache.is_usable(4096), "the list is bounded");
        cache.forget(0);
        assert!(cache.is_usable(0), "only this session's part is forgotten");
    }

    #[test]
    fn cache_forgets_the_older_generation() {
        let mut cache = ClientCache::default();
        for url in 0..8192 {
            cache.note_promise(url);
        }
        assert!(cache.is_usable(0), "two generations fit");
        cache.note_promise(8192);
        assert!(!cache.is_usable(4095) && cache.is_usable(4096));
        cache.forget(4096);
        assert!(!cache.is_usable(4096), "in the older generation, too");
        let tables = cache.tables.unwrap();
        let older = tables.rare.unwrap().older;
        assert_eq!(tables.recent.len() + older.len(), 4096);
    }

    #[test]
    fn full_set_of_useless_urls_starts_again() {
        let mut cache = ClientCache::default();
        for url in 0..GENERATION as u32 {
            cache.note_unpushable(url);
            cache.note_uncheckable(url);
        }
        assert!(cache.is_unpushable(0) && cache.is_uncheckable(0));
        cache.note_unpushable(9999);
        cache.note_uncheckable(9999);
        assert!(!cache.is_unpushable(0) && !cache.is_uncheckable(0));
        assert!(cache.is_unpushable(9999) && cache.is_uncheckable(9999));
        cache.note_pushable(9999);
        assert!(!cache.is_unpushable(9999) && cache.is_uncheckable(9999));
    }

    #[test]
    fn cache_without_urls_has_no_tables() {
        let mut cache = ClientCache::default();
        cache.forget(1);
        cache.note_pushable(1);
        cache.note_refusal(1);
        assert!(!cache.is_usable(1) && !cache.is_validatable(1) && !cache.has_received(1));
        assert!(!cache.is_unpushable(1) && !cache.is_uncheckable(1) && cache.is_empty());
        assert!(cache.tables.is_none());
        cache.note_answer(1, Reuse::Fresh);
        assert!(cache.rare().is_none(), "one answer needs one table");
        cache.forget(1);
        cache.note_uncheckable(1);
        assert!(cache.is_uncheckable(1) && cache.is_empty());
    }
}
