//! The needs of the pages that the session has loaded, for their next visits.
//!
//! A client without a gateway has the session and its user to itself. It requests these resources
//! together with the page, and saves the round trip until the page names them. It remembers every
//! promised need and each lazy need that the page names. It also remembers some requests of the
//! browser that no promise has answered (`own_needs`). Only those that the browser has used are
//! requested early, and one that it does not use is forgotten.
//!
//! If a visit has none of the last visit's cookies, the last visit is forgotten. The user may have
//! deleted the site's cookies, and early requests must not tell the site which browser it is. The
//! file holds no cookies, so this does not cover the first visit after a restart.
//!
//! If a page changed cookies, requests that leave with it would carry the old ones. The client then
//! requests its needs when the head of the page has come. They leave with the page again after one
//! visit without a change, unless its cookies have changed at several visits.
//!
//! Once the bytes of a page were read to their end, the needs that it named at an earlier visit and
//! does not name now are forgotten. If these were most of them, the page is *renewed*: only needs
//! that it named at two visits, or never, leave with the next request for it.
//!
//! With each need there is the copy that the browser's cache may have. Sessions of one user can
//! share the pages (`visits`). `saved_visits` writes them to a text and reads them again, for users
//! who keep them in a file. A file keeps a page for [`MAX_AGE`] seconds after its last visit.

use std::collections::{HashMap, VecDeque};

use tandem_http::RequestHead;
use tandem_preload::{Need, Referrer, split};

use super::cookie_hashes::CookieHashes;
use super::page::MAX_RESOURCES;
use crate::response_rules::KeptCopy;
use crate::site::is_same_site;

/// The largest number of pages that are remembered.
pub(super) const MAX_PAGES: usize = 64;

/// The largest number of bytes of URLs that are remembered.
pub(super) const MAX_BYTES: usize = 256 << 10;

/// The number of useless learned needs from which a page learns no more requests of its scripts.
const MAX_USELESS: u8 = 2;

/// The time after the last visit to a page for which a file keeps it, in seconds.
pub(super) const MAX_AGE: u64 = 30 * 86_400;

/// The used needs of a page, with the copies that the browser may have.
pub(super) type UsedNeeds = Vec<(Need, Option<KeptCopy>)>;

/// The pages that a session has loaded, by URL.
#[derive(Default)]
pub(super) struct Revisits {
    pages: HashMap<String, LastVisit>,
    /// The URLs of the pages, in the order of their last visits.
    order: VecDeque<String>,
    bytes: usize,
    /// The time of the last event, in seconds since 1970, UTC.
    unix_time: u64,
    /// True if the pages differ from those that were saved last.
    has_changed: bool,
}

/// The last visit to a page.
#[derive(Default)]
pub(super) struct LastVisit {
    /// The time of the visit, in seconds since 1970, UTC.
    pub(super) time: u64,
    pub(super) policy: Referrer,
    pub(super) needs: Vec<UsedNeed>,
    /// The cookies of the request for the page, with those that the page has set, if they are
    /// known.
    cookies: Option<CookieHashes>,
    /// The number of visits that changed cookies.
    cookie_changes: u8,
    /// True if the last visit changed cookies.
    is_changing: bool,
    /// The number of learned needs that were of no use. A visit that used its learned needs halves
    /// it.
    useless: u8,
    /// True if a learned need was of use at the last visit.
    has_useful: bool,
    /// True if a learned need was of no use at the last visit.
    has_useless: bool,
    /// True if most of the needs that the page named before were gone at the last visit.
    is_renewed: bool,
}

/// A need of a page.
pub(super) struct UsedNeed {
    pub(super) need: Need,
    /// True if the browser used the resource.
    pub(super) is_used: bool,
    /// True if only a request of the browser has shown the need.
    pub(super) is_learned: bool,
    /// The number of visits at which the bytes of the page named it.
    pub(super) named: u8,
    /// The copy of the resource that the browser's cache may have.
    pub(super) copy: Option<KeptCopy>,
}

impl LastVisit {
    fn bytes(&self) -> usize {
        self.needs.iter().map(|it| it.need.url.len()).sum()
    }

    /// Takes the learned needs of the last visit into account.
    const fn judge_learned(&mut self) {
        if self.has_useful && !self.has_useless {
            self.useless /= 2;
        }
        self.has_useful = false;
        self.has_useless = false;
    }

    fn has_used_needs(&self) -> bool {
        self.needs.iter().any(|it| it.is_used)
    }

    /// Returns whether the needs leave only after the head of the page.
    const fn waits_for_head(&self) -> bool {
        self.is_changing || self.cookie_changes > 1
    }

    /// Returns whether the page has changed cookies.
    pub(super) const fn changes_cookies(&self) -> bool {
        self.cookie_changes > 0
    }

    /// Returns the referrer policy and the used needs, if there are any.
    fn used_needs(&self) -> Option<(Referrer, UsedNeeds)> {
        let may_stay = |it: &&UsedNeed| !self.is_renewed || it.named != 1;
        let used = self.needs.iter().filter(|it| it.is_used).filter(may_stay);
        let needs: Vec<_> = used.map(|it| (it.need.clone(), it.copy)).collect();
        (!needs.is_empty()).then_some((self.policy, needs))
    }
}

impl Revisits {
    /// Notes the time of the next events, in seconds since 1970, UTC.
    pub(super) const fn set_time(&mut self, unix_time: u64) {
        self.unix_time = unix_time;
    }

    /// Notes another visit to a page. Returns the referrer policy and the used needs of the last
    /// visit, with the copies that the browser may have, unless they wait for the head.
    pub(super) fn visit(&mut self, page: &str) -> Option<(Referrer, UsedNeeds)> {
        self.note_visit(page);
        let visit = self.pages.get(page)?;
        visit.used_needs().filter(|_| !visit.waits_for_head())
    }

    /// Notes the head of a page, and whether it changes cookies. Returns the needs that may leave
    /// now, because requests that left before would carry old cookies.
    pub(super) fn note_head(&mut self, page: &str, changes: bool) -> Option<(Referrer, UsedNeeds)> {
        let visit = self.pages.get_mut(page)?;
        let waited = visit.waits_for_head();
        visit.cookie_changes = visit.cookie_changes.saturating_add(u8::from(changes));
        visit.is_changing = changes;
        visit.used_needs().filter(|_| waited || changes)
    }

    /// Notes that the first visit to a page changes cookies.
    pub(super) fn note_first_change(&mut self, page: &str) {
        if let Some(visit) = self.pages.get_mut(page) {
            visit.cookie_changes = visit.cookie_changes.max(1);
            visit.is_changing = true;
        }
    }

    /// Adds the cookies that a page has set to those of its request.
    pub(super) fn add_cookies(&mut self, page: &str, cookies: CookieHashes) {
        let visit = self.pages.get_mut(page);
        if let Some(known) = visit.and_then(|visit| visit.cookies.as_mut()) {
            known.add(cookies);
        }
    }

    /// Returns the pages with their last visits, in the order of these.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &LastVisit)> {
        let pages = self.order.iter();
        pages.filter_map(|page| Some((page.as_str(), self.pages.get(page)?)))
    }

    /// Returns whether the pages have changed since the last call.
    pub(super) const fn take_change(&mut self) -> bool {
        std::mem::replace(&mut self.has_changed, false)
    }

    /// Notes that the last change was not saved.
    pub(super) const fn note_unsaved(&mut self) {
        self.has_changed = true;
    }

    /// Begins another visit to a page by this request. Forgets the last visit if it had cookies and
    /// none of them is left.
    pub(super) fn begin_visit(&mut self, page: &str, request: &RequestHead) {
        let Some(visit) = self.pages.get_mut(page) else {
            return;
        };
        let cookies = CookieHashes::of(request);
        let last = visit.cookies.as_ref();
        if last.is_none_or(|last| last.may_precede(&cookies)) {
            visit.cookies = Some(cookies);
            visit.judge_learned();
        } else {
            self.forget(page);
        }
    }

    /// Records the cookies of a page's request, unless they are known.
    pub(super) fn note_cookies(&mut self, page: &str, cookies: impl FnOnce() -> CookieHashes) {
        if let Some(visit) = self.pages.get_mut(page) {
            visit.cookies.get_or_insert_with(cookies);
        }
    }

    /// Returns whether a URL is a need of a page.
    pub(super) fn knows(&self, page: &str, url: &str) -> bool {
        let visit = self.pages.get(page);
        visit.is_some_and(|visit| visit.needs.iter().any(|it| it.need.url == url))
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
        self.pages.entry(page.to_owned()).or_default();
        self.note_visit(page);
        let Some(visit) = self.pages.get_mut(page) else {
            return;
        };
        visit.policy = policy;
        let is_known = visit.needs.iter().any(|it| it.need.url == need.url);
        if is_known || visit.needs.len() >= MAX_RESOURCES {
            return;
        }
        self.bytes += need.url.len();
        visit.needs.push(UsedNeed {
            need: Need {
                // The next response has another nonce.
                has_nonce: false,
                ..need.clone()
            },
            is_used: false,
            is_learned: false,
            named: 0,
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

    /// Makes a known page the latest one.
    fn note_visit(&mut self, page: &str) {
        let Some(visit) = self.pages.get_mut(page) else {
            return;
        };
        self.has_changed |= visit.time != self.unix_time && visit.has_used_needs();
        visit.time = self.unix_time;
        if self.order.back().is_none_or(|last| last != page)
            && let Some(at) = self.order.iter().position(|known| known == page)
            && let Some(page) = self.order.remove(at)
        {
            self.order.push_back(page);
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

    /// Notes the resources that the bytes of a page name, which were read to their end. Forgets the
    /// needs that they named before and do not name now.
    pub(super) fn note_named(&mut self, page: &str, names: impl Fn(&str) -> bool) {
        let Some(visit) = self.pages.get_mut(page) else {
            return;
        };
        let (bytes, count) = (visit.bytes(), visit.needs.len());
        let known = visit.needs.iter().filter(|it| it.named > 0).count();
        visit.needs.retain_mut(|it| {
            let is_named = names(&it.need.url);
            let is_gone = it.named > 0 && !is_named;
            it.named = it.named.saturating_add(u8::from(is_named));
            !is_gone
        });
        let gone = count - visit.needs.len();
        visit.is_renewed = gone * 2 > known;
        self.bytes -= bytes - visit.bytes();
        self.has_changed |= gone > 0;
    }

    /// Remembers a need of a page that only a request of the browser has shown.
    pub(super) fn learn_need(&mut self, page: &str, policy: Referrer, need: &Need) {
        let is_known = self.knows(page, &need.url);
        self.note_need(page, policy, need);
        if let Some(learned) = self.need_mut(page, &need.url) {
            learned.is_learned |= !is_known;
        }
        self.note_use(page, &need.url, true);
    }

    /// Records whether the early request for a resource of a page was of use.
    pub(super) fn note_fate(&mut self, page: &str, url: &str, is_used: bool) {
        let is_learned = self.need_mut(page, url).is_some_and(|need| need.is_learned);
        if let Some(visit) = self.pages.get_mut(page).filter(|_| is_learned) {
            visit.has_useful |= is_used;
            visit.has_useless |= !is_used;
            visit.useless = visit.useless.saturating_add(u8::from(!is_used));
        }
        self.note_use(page, url, is_used);
    }

    fn need_mut(&mut self, page: &str, url: &str) -> Option<&mut UsedNeed> {
        let needs = &mut self.pages.get_mut(page)?.needs;
        needs.iter_mut().find(|it| it.need.url == url)
    }

    /// Returns whether a request that nothing but the browser shows may become a need of a page.
    pub(super) fn may_learn(&self, page: &str) -> bool {
        let visit = self.pages.get(page);
        visit.is_none_or(|visit| visit.useless < MAX_USELESS)
    }

    /// Records the copy of a page's resource that the browser's cache can now have.
    pub(super) fn note_copy(&mut self, page: &str, url: &str, copy: Option<KeptCopy>) {
        if let Some(need) = self.need_mut(page, url) {
            let is_changed = need.is_used && need.copy != copy;
            need.copy = copy;
            self.has_changed |= is_changed;
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

    /// Forgets the pages of the site that an authority belongs to.
    pub(super) fn forget_site(&mut self, authority: &str) {
        let is_other = |page: &str| split(page).is_none_or(|it| !is_same_site(it.1, authority));
        self.retain_pages(|page, _| is_other(page));
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.order.front().cloned() {
            self.forget(&oldest);
        }
    }

    /// Forgets the pages that were visited last more than [`MAX_AGE`] seconds before `unix_time`. A
    /// visit after `unix_time` keeps its time: a clock that is behind, and is set right later, must
    /// not make all visits look old.
    pub(super) fn forget_old(&mut self, unix_time: u64) {
        let oldest = unix_time.saturating_sub(MAX_AGE);
        self.retain_pages(|_, visit| visit.time >= oldest);
    }

    /// Keeps the pages and needs whose URLs and documents are all permitted.
    pub(super) fn retain(&mut self, permits: impl Fn(&str) -> bool) {
        self.retain_pages(|page, _| permits(page));
        for visit in self.pages.values_mut() {
            let (bytes, count) = (visit.bytes(), visit.needs.len());
            visit.needs.retain(|UsedNeed { need, .. }| {
                let documents = [&need.via, &need.frame].into_iter().flatten();
                permits(&need.url) && documents.into_iter().all(|url| permits(url))
            });
            self.bytes -= bytes - visit.bytes();
            self.has_changed |= visit.needs.len() != count;
        }
    }

    fn retain_pages(&mut self, keeps: impl Fn(&str, &LastVisit) -> bool) {
        let is_gone = |page: &&String| !self.pages.get(*page).is_some_and(|it| keeps(page, it));
        let gone: Vec<_> = self.order.iter().filter(is_gone).cloned().collect();
        for page in gone {
            self.forget(&page);
        }
    }
}

#[cfg(test)]
mod tests;
