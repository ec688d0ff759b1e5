//! The needs of the pages that the session has loaded, for their next visits.
//!
//! A client without a gateway has the session and its user to itself. It requests these resources
//! together with the page, and saves the round trip until the page names them. Every promised need
//! is remembered, and each lazy one that the page names. Only those that the browser has used are
//! requested early, and one that it does not use is forgotten.
//!
//! With each need there is the copy that the browser's cache may have. `saved_visits` writes the
//! pages to a text and reads them again, for users who keep them in a file.

use std::collections::{HashMap, VecDeque};

use tandem_preload::{Need, Referrer};

use super::page::MAX_RESOURCES;
use crate::response_rules::KeptCopy;

/// The largest number of pages that are remembered.
pub(super) const MAX_PAGES: usize = 64;

/// The largest number of bytes of URLs that are remembered.
pub(super) const MAX_BYTES: usize = 256 << 10;

/// The used needs of a page, with the copies that the browser may have.
pub(super) type UsedNeeds = Vec<(Need, Option<KeptCopy>)>;

/// The pages that a session has loaded, by URL.
#[derive(Default)]
pub(super) struct Revisits {
    pages: HashMap<String, LastVisit>,
    /// The URLs of the pages, oldest first.
    order: VecDeque<String>,
    bytes: usize,
    /// True if the pages differ from those that were saved last.
    has_changed: bool,
}

/// The last visit to a page.
#[derive(Default)]
pub(super) struct LastVisit {
    pub(super) policy: Referrer,
    pub(super) needs: Vec<UsedNeed>,
}

/// A need of a page.
pub(super) struct UsedNeed {
    pub(super) need: Need,
    /// True if the browser used the resource.
    pub(super) is_used: bool,
    /// The copy of the resource that the browser's cache may have.
    pub(super) copy: Option<KeptCopy>,
}

impl LastVisit {
    fn bytes(&self) -> usize {
        self.needs.iter().map(|it| it.need.url.len()).sum()
    }
}

impl Revisits {
    /// Returns the referrer policy and the used needs of the last visit to a page, with the copies
    /// that the browser may have.
    pub(super) fn of(&self, page: &str) -> Option<(Referrer, UsedNeeds)> {
        let visit = self.pages.get(page)?;
        let used = visit.needs.iter().filter(|it| it.is_used);
        let needs: Vec<_> = used.map(|it| (it.need.clone(), it.copy)).collect();
        (!needs.is_empty()).then_some((visit.policy, needs))
    }

    /// Returns the pages, oldest first, with their last visits.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &LastVisit)> {
        let pages = self.order.iter();
        pages.filter_map(|page| Some((page.as_str(), self.pages.get(page)?)))
    }

    /// Returns whether the pages have changed since the last call.
    pub(super) const fn take_change(&mut self) -> bool {
        std::mem::replace(&mut self.has_changed, false)
    }

    /// Remembers a need of a page.
    pub(super) fn note_need(&mut self, page: &str, policy: Referrer, need: &Need) {
        if !self.pages.contains_key(page) {
            if self.order.len() >= MAX_PAGES {
                self.forget_oldest();
            }
            self.bytes += page.len();
            self.order.push_back(page.to_owned());
        }
        let visit = self.pages.entry(page.to_owned()).or_default();
        visit.policy = policy;
        let is_known = visit.needs.iter().any(|it| it.need.url == need.url);
        if is_known || visit.needs.len() >= MAX_RESOURCES {
            return;
        }
        self.bytes += need.url.len();
        visit.needs.push(UsedNeed {
            need: need.clone(),
            is_used: false,
            copy: None,
        });
        while self.bytes > MAX_BYTES && self.order.len() > 1 {
            self.forget_oldest();
        }
        if self.bytes > MAX_BYTES {
            // A single page with so many needs is not remembered.
            self.forget_oldest();
        }
    }

    /// Records whether the browser used a resource of a page. A need that it did not use is
    /// forgotten.
    pub(super) fn note_use(&mut self, page: &str, url: &str, is_used: bool) {
        let Some(visit) = self.pages.get_mut(page) else {
            return;
        };
        let Some(at) = visit.needs.iter().position(|it| it.need.url == url) else {
            return;
        };
        self.has_changed = true;
        if is_used {
            visit.needs[at].is_used = true;
        } else {
            self.bytes -= url.len();
            visit.needs.remove(at);
        }
    }

    /// Records the copy of a page's resource that the browser's cache can now have.
    pub(super) fn note_copy(&mut self, page: &str, url: &str, copy: Option<KeptCopy>) {
        let visit = self.pages.get_mut(page);
        let need = visit.and_then(|visit| visit.needs.iter_mut().find(|it| it.need.url == url));
        if let Some(need) = need {
            self.has_changed |= need.is_used && need.copy != copy;
            need.copy = copy;
        }
    }

    /// Forgets all copies, since the browser has lost its cache.
    pub(super) fn forget_copies(&mut self) {
        for need in self.pages.values_mut().flat_map(|visit| &mut visit.needs) {
            self.has_changed |= need.copy.take().is_some();
        }
    }

    /// Forgets a page.
    pub(super) fn forget(&mut self, page: &str) {
        if let Some(visit) = self.pages.remove(page) {
            self.bytes -= page.len() + visit.bytes();
            self.order.retain(|known| known != page);
            self.has_changed = true;
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.order.pop_front()
            && let Some(visit) = self.pages.remove(&oldest)
        {
            self.bytes -= oldest.len() + visit.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_preload::Kind;

    use super::*;

    fn need(url: &str) -> Need {
        Need {
            url: url.to_owned(),
            kind: Kind::Image,
            urgency: 4,
            anonymous: false,
            referrer: None,
            via: None,
            frame: None,
        }
    }

    fn urls(revisits: &Revisits, page: &str) -> Vec<String> {
        let needs = revisits.of(page).map_or_else(Vec::new, |(_, needs)| needs);
        needs.into_iter().map(|(need, _)| need.url).collect()
    }

    #[test]
    fn revisits_return_used_needs_only() {
        let mut revisits = Revisits::default();
        for url in ["a", "b", "c", "a"] {
            revisits.note_need("page", Referrer::None, &need(url));
        }
        assert!(revisits.of("page").is_none());
        revisits.note_use("page", "a", true);
        revisits.note_use("page", "b", true);
        assert_eq!(urls(&revisits, "page"), ["a", "b"]);
        assert_eq!(
            revisits.of("page").map(|(policy, _)| policy),
            Some(Referrer::None)
        );
        revisits.note_use("page", "b", false);
        revisits.note_use("other", "a", true);
        assert_eq!(urls(&revisits, "page"), ["a"]);
        assert_eq!(revisits.bytes, "page".len() + 2);
    }

    #[test]
    fn revisits_know_the_copies_of_needs() {
        let mut revisits = Revisits::default();
        assert!(!revisits.take_change());
        revisits.note_need("page", Referrer::None, &need("a"));
        let copy = Some(KeptCopy {
            until: 7,
            has_validator: true,
        });
        revisits.note_copy("page", "a", copy);
        revisits.note_copy("page", "b", copy);
        revisits.note_copy("other", "a", copy);
        assert!(!revisits.take_change(), "nothing is used");
        revisits.note_use("page", "a", true);
        assert!(revisits.take_change() && !revisits.take_change());
        let (_, needs) = revisits.of("page").expect("a visit");
        assert_eq!(needs, [(need("a"), copy)]);
        revisits.forget_copies();
        assert!(revisits.take_change());
        let (_, needs) = revisits.of("page").expect("a visit");
        assert_eq!(needs, [(need("a"), None)]);
    }

    #[test]
    fn revisits_bound_the_needs_of_a_page() {
        let mut revisits = Revisits::default();
        for number in 0..=MAX_RESOURCES {
            revisits.note_need("page", Referrer::None, &need(&number.to_string()));
        }
        let needs = revisits.iter().map(|(_, visit)| visit.needs.len());
        assert_eq!(needs.collect::<Vec<_>>(), [MAX_RESOURCES]);
    }

    #[test]
    fn revisits_stay_within_their_bounds() {
        let mut revisits = Revisits::default();
        for number in 0..2 * MAX_PAGES {
            let page = format!("page{number}");
            revisits.note_need(&page, Referrer::default(), &need("a"));
            revisits.note_use(&page, "a", true);
        }
        assert_eq!(
            (revisits.pages.len(), revisits.order.len()),
            (MAX_PAGES, MAX_PAGES)
        );
        assert!(urls(&revisits, "page0").is_empty());
        let long = "x".repeat(MAX_BYTES / 4);
        for number in 0..9 {
            let url = format!("{long}{number}");
            revisits.note_need("long", Referrer::default(), &need(&url));
            assert!(revisits.bytes <= MAX_BYTES);
        }
        revisits.forget("long");
        revisits.forget("unknown");
        assert_eq!(revisits.pages.len(), revisits.order.len());
        let sum: usize = revisits.order.iter().map(String::len).sum();
        let needs: usize = revisits.pages.values().map(LastVisit::bytes).sum();
        assert_eq!(revisits.bytes, sum + needs);
    }

    #[test]
    fn revisits_fill_their_memory_to_the_last_byte() {
        let mut revisits = Revisits::default();
        revisits.note_need("a", Referrer::default(), &need("1"));
        let rest = "x".repeat(MAX_BYTES - 3);
        revisits.note_need("b", Referrer::default(), &need(&rest));
        assert_eq!((revisits.pages.len(), revisits.bytes), (2, MAX_BYTES));
        revisits.note_need("b", Referrer::default(), &need("2"));
        assert!(!revisits.pages.contains_key("a") && revisits.pages.contains_key("b"));
    }
}
