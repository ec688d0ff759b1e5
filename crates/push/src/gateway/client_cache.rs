//! The gateway's picture of the browser's cache: the URLs that the client received on this session,
//! or has from earlier ones. URLs are known by their [`url_hash`](crate::wire::url_hash).
//!
//! A copy that has expired needs a validation. Without a validator it is of no use, and the browser
//! requests the resource as if it had none. Browsers keep a separate cache for each site whose
//! pages the user visits. A plain request shows that the cache was lost only if the copy came for a
//! page of the same site.

use std::collections::{HashMap, HashSet};

use crate::response_rules::{KeptCopy, Reuse};
use crate::site::site_of;
use crate::wire::fnv1a;

/// The number of URLs of this session in each of two generations. The older generation is dropped
/// when the younger one is full.
const GENERATION: usize = 4096;

/// The largest number of URLs that a client may report from earlier sessions.
const MAX_EARLIER: usize = 4096;

/// The time before the end of a copy's lifetime in which a plain request shows nothing, in seconds.
/// The clocks of browsers and origins differ.
const CLOCK_TOLERANCE: u64 = 60;

/// The knowledge about a URL in the browser's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holding {
    /// A push of the URL was promised.
    Promised,
    /// The browser has a copy. Its cache uses it up to `until`, in seconds since 1970, UTC, and
    /// after a validation later.
    Copy { until: u32, has_validator: bool },
    /// The browser did not use the push: it has the resource already, or does not want it.
    Unsure,
}

impl Holding {
    /// Returns the use that the browser can make of the URL at a time, in seconds since 1970, UTC.
    const fn reuse(self, unix_time: u64) -> Reuse {
        match self {
            Self::Promised | Self::Unsure => Reuse::Fresh,
            Self::Copy {
                until,
                has_validator,
            } => KeptCopy {
                until: until as u64,
                has_validator,
            }
            .reuse(unix_time),
        }
    }
}

/// The number of a site. Two sites may share a number. A lost cache may then be found too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SiteNumber(u32);

impl SiteNumber {
    /// Returns the number of a site, as [`site_of`] names it.
    pub(super) fn of(site: &str) -> Self {
        Self(fnv1a(site.bytes()))
    }

    /// Returns the number of the site of an authority.
    pub(super) fn of_authority(authority: &str) -> Self {
        Self::of(&site_of(authority))
    }
}

/// A URL, and the site of the page for which it was sent last.
#[derive(Clone, Copy, Debug)]
struct Entry {
    holding: Holding,
    site: SiteNumber,
}

/// The URLs that the browser is thought to have. The tables are allocated with the first of them: a
/// client that takes no pushes needs none.
#[derive(Default)]
pub(super) struct ClientCache {
    tables: Option<Box<Tables>>,
}

#[derive(Default)]
struct Tables {
    recent: HashMap<u32, Entry>,
    /// The time of the last request, in seconds since 1970, UTC. It is zero in new tables, whose
    /// copies are new too.
    unix_time: u64,
    rare: Option<Box<RareTables>>,
}

/// The tables that few sessions need.
#[derive(Default)]
struct RareTables {
    older: HashMap<u32, Entry>,
    earlier: HashSet<u32>,
    /// The URLs whose responses must not be pushed, so that each is fetched for nothing once only.
    unpushable: HashSet<u32>,
    /// The URLs whose copies were checked for nothing. Each is checked for nothing once only.
    uncheckable: HashSet<u32>,
}

impl ClientCache {
    /// Notes the time of the next events, in seconds since 1970, UTC.
    pub(super) fn set_time(&mut self, unix_time: u64) {
        if let Some(tables) = &mut self.tables {
            tables.unix_time = unix_time;
        }
    }

    /// Forgets all URLs, except those that were checked for nothing.
    pub(super) fn clear(&mut self) {
        let rare = self.tables.take().and_then(|tables| tables.rare);
        if let Some(rare) = rare.filter(|rare| !rare.uncheckable.is_empty()) {
            self.rare_mut().uncheckable = rare.uncheckable;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let has_none = |rare: &RareTables| rare.older.is_empty() && rare.earlier.is_empty();
        let recent = self.tables.as_ref().map(|tables| &tables.recent);
        recent.is_none_or(HashMap::is_empty) && self.rare().is_none_or(has_none)
    }

    /// Returns whether the browser needs no push of this URL.
    pub(super) fn is_usable(&self, url: u32) -> bool {
        self.reuse(url) == Some(Reuse::Fresh) || self.is_earlier(url)
    }

    /// Returns whether the browser can use this URL after a validation.
    pub(super) fn is_validatable(&self, url: u32) -> bool {
        self.reuse(url) == Some(Reuse::Validate)
    }

    /// Returns whether the browser surely received this URL for a page of this site, and still has
    /// a copy. A plain request for it then shows that the cache was lost.
    pub(super) fn has_received(&self, url: u32, site: impl FnOnce() -> SiteNumber) -> bool {
        let entry = self.kept(url);
        entry.is_some_and(|entry| entry.site == site()) || self.is_earlier(url)
    }

    /// Returns whether the browser surely received this URL for a page of any site, and still has a
    /// copy.
    pub(super) fn was_sent(&self, url: u32) -> bool {
        self.kept(url).is_some() || self.is_earlier(url)
    }

    fn kept(&self, url: u32) -> Option<Entry> {
        let later = self.unix_time() + CLOCK_TOLERANCE;
        self.get(url).filter(|entry| {
            entry.holding != Holding::Unsure && entry.holding.reuse(later) != Reuse::Never
        })
    }

    /// Records that a push of this URL is promised for a page of this site.
    pub(super) fn note_promise(&mut self, url: u32, site: SiteNumber) {
        let holding = Holding::Promised;
        self.insert(url, Entry { holding, site });
    }

    /// Records that the browser receives a response for a page of this site, of which its cache
    /// keeps this copy.
    pub(super) fn note_answer(&mut self, url: u32, copy: Option<KeptCopy>, site: SiteNumber) {
        let Some(copy) = copy else {
            return self.forget(url);
        };
        let holding = Holding::Copy {
            until: u32::try_from(copy.until).unwrap_or(u32::MAX),
            has_validator: copy.has_validator,
        };
        self.insert(url, Entry { holding, site });
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
        if let Some(entry) = self.get(url) {
            let holding = Holding::Unsure;
            self.insert(url, Entry { holding, ..entry });
        }
    }

    /// Records that the client has this URL from an earlier session.
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

    /// Returns the use that the browser can make of a URL now, if it is known.
    fn reuse(&self, url: u32) -> Option<Reuse> {
        Some(self.get(url)?.holding.reuse(self.unix_time()))
    }

    fn unix_time(&self) -> u64 {
        self.tables.as_ref().map_or(0, |tables| tables.unix_time)
    }

    fn get(&self, url: u32) -> Option<Entry> {
        let recent = self.tables.as_ref()?.recent.get(&url);
        recent.or_else(|| self.rare()?.older.get(&url)).copied()
    }

    fn insert(&mut self, url: u32, entry: Entry) {
        let tables = self.tables_mut();
        if tables.recent.len() >= GENERATION {
            let recent = std::mem::take(&mut tables.recent);
            tables.rare.get_or_insert_default().older = recent;
        }
        tables.recent.insert(url, entry);
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

    const SITE: SiteNumber = SiteNumber(7);
    const FRESH: Option<KeptCopy> = Some(KeptCopy {
        until: u64::MAX,
        has_validator: false,
    });

    fn has_received(cache: &ClientCache, url: u32) -> bool {
        cache.has_received(url, || SITE)
    }

    #[test]
    fn cache_lets_unreusable_urls_be_pushed_again() {
        let mut cache = ClientCache::default();
        assert!(cache.is_empty());
        for (url, copy, usable, received) in [
            (1, FRESH, true, true),
            (2, Some(KeptCopy::OLD), false, true),
            (3, None, false, false),
        ] {
            cache.note_promise(url, SITE);
            assert!(cache.is_usable(url) && has_received(&cache, url));
            cache.note_answer(url, copy, SITE);
            assert_eq!(cache.is_usable(url), usable, "{copy:?}");
            assert_eq!(has_received(&cache, url), received, "{copy:?}");
        }
        assert!(!cache.is_empty() && !cache.is_usable(4));
    }

    #[test]
    fn copy_ends_with_its_lifetime() {
        let copy = |has_validator| KeptCopy {
            until: 1000,
            has_validator,
        };
        for (time, reuse, received) in [
            (900, [true, true], [true, true]),
            (950, [true, true], [false, true]),
            (1000, [false, false], [false, true]),
        ] {
            let mut cache = ClientCache::default();
            cache.note_answer(0, Some(copy(false)), SITE);
            cache.note_answer(1, Some(copy(true)), SITE);
            cache.set_time(time);
            assert_eq!([0, 1].map(|url| cache.is_usable(url)), reuse, "at {time}");
            assert_eq!(cache.is_validatable(1), time >= 1000);
            let found = [0, 1].map(|url| has_received(&cache, url));
            assert_eq!(found, received, "at {time}");
            assert!(!cache.is_validatable(0));
        }
    }

    #[test]
    fn copy_for_another_site_shows_nothing() {
        let mut cache = ClientCache::default();
        cache.note_answer(1, FRESH, SITE);
        cache.note_promise(2, SITE);
        let other = || SiteNumber::of("other.test");
        assert!(!cache.has_received(1, other) && !cache.has_received(2, other));
        assert!(has_received(&cache, 1) && has_received(&cache, 2));
        cache.note_answer(1, FRESH, other());
        assert!(cache.has_received(1, other) && !has_received(&cache, 1));
    }

    #[test]
    fn cache_is_unsure_of_refused_pushes() {
        let mut cache = ClientCache::default();
        cache.note_refusal(1);
        assert!(cache.is_empty(), "an unknown URL stays unknown");
        cache.note_answer(1, FRESH, SITE);
        cache.note_refusal(1);
        assert!(cache.is_usable(1), "it is not sent again");
        assert!(!has_received(&cache, 1), "a request for it shows nothing");
        cache.forget(1);
        assert!(cache.is_empty());
    }

    #[test]
    fn cache_includes_urls_of_earlier_sessions() {
        let mut cache = ClientCache::default();
        for url in 0..5000 {
            cache.note_earlier(url);
        }
        assert!(cache.is_usable(0) && has_received(&cache, 4095) && !cache.is_empty());
        assert!(!cache.is_usable(4096), "the list is bounded");
        cache.forget(0);
        assert!(cache.is_usable(0), "only this session's part is forgotten");
    }

    #[test]
    fn cache_forgets_the_older_generation() {
        let mut cache = ClientCache::default();
        for url in 0..8192 {
            cache.note_promise(url, SITE);
        }
        assert!(cache.is_usable(0), "two generations fit");
        cache.note_promise(8192, SITE);
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
    fn lost_cache_keeps_the_checks_for_nothing() {
        let mut cache = ClientCache::default();
        cache.note_uncheckable(1);
        cache.note_unpushable(2);
        cache.note_answer(3, FRESH, SITE);
        cache.clear();
        assert!(cache.is_uncheckable(1) && cache.is_empty());
        assert!(!cache.is_unpushable(2) && !cache.is_usable(3));
    }

    #[test]
    fn cache_without_urls_has_no_tables() {
        let mut cache = ClientCache::default();
        cache.forget(1);
        cache.note_pushable(1);
        cache.note_refusal(1);
        assert!(!cache.is_usable(1) && !cache.is_validatable(1) && !has_received(&cache, 1));
        assert!(!cache.is_unpushable(1) && !cache.is_uncheckable(1) && cache.is_empty());
        assert!(cache.tables.is_none());
        cache.note_answer(1, FRESH, SITE);
        assert!(cache.rare().is_none(), "one answer needs one table");
        cache.forget(1);
        cache.note_uncheckable(1);
        assert!(cache.is_uncheckable(1) && cache.is_empty());
    }
}
