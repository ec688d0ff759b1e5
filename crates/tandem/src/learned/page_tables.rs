//! The knowledge about the pushes of pages beside the predictor: those of no use and those of
//! resources that have gone, and the other hosts that pages request.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use tandem_preload::split;
use tandem_push::asked_hosts::AskedHosts;
use tandem_push::cookie_urls::{
    CookieNeeds, CookieSenders, CookieUrl, CookieUrls, CookieUser, path_hash, without_query,
};
use tandem_push::gateway::Counts;
use tandem_push::gone_urls::GoneTable;
use tandem_push::known_redirects::KnownRedirects;
use tandem_push::likely_budget::LikelyBudget;
use tandem_push::referrers::{NamedPart, ReferrerTable, SeenReferrers};
use tandem_push::refusing_hosts::RefusingHosts;
use tandem_push::transfers::{KnownTransfers, TransferTable};
use tandem_push::useless_pushes::{Outcome, UselessTable};
use tandem_push::wire::url_hash_of;

use super::{Learned, is_of_same_origin};

impl Learned {
    /// Notes the part of its page's URL that a request for a URL names.
    pub fn note_named_part(&self, url: &str, part: NamedPart) {
        let number = self.secret.hash_one(url);
        self.referrer_table().note(number, part);
    }

    /// Returns what the requests for a URL have named in `Referer`, if any has come.
    pub fn seen_referrers(&self, url: &str) -> Option<SeenReferrers> {
        self.referrer_table().seen(self.secret.hash_one(url))
    }

    fn referrer_table(&self) -> MutexGuard<'_, ReferrerTable> {
        self.referrers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the outcome of a push that was made for a user's page. `url` is the hash of its URL.
    pub fn note_push(&self, page: &str, user: u64, url: u32, is_useless: bool) {
        self.note_outcome(self.useless_table(), page, (user, url), is_useless);
    }

    /// Notes whether a user's browser had no use for a resource of a page. Resources that visits to
    /// the page usually request are no waste.
    pub fn note_waste(&self, page: &str, user: u64, url: &str, is_wasted: bool) {
        let Some(hash) = url_hash_of(url) else {
            return;
        };
        if is_wasted && self.lock().needed(page).any(|needed| needed == url) {
            return;
        }
        self.note_outcome(self.wasted_table(), page, (user, hash), is_wasted);
    }

    /// Notes the outcome of a push for a user, and the hash of its URL.
    fn note_outcome(
        &self,
        mut table: MutexGuard<'_, UselessTable>,
        page: &str,
        (user, url): (u64, u32),
        is_useless: bool,
    ) {
        let outcome = Outcome {
            page: self.secret.hash_one(page),
            user,
            url,
            is_useless,
        };
        table.note(Instant::now(), outcome, self.config.min_users);
    }

    /// Returns the hashes of the URLs whose pushes were of no use to enough users of a page.
    pub fn useless_pushes(&self, page: &str) -> Vec<u32> {
        let (number, now) = (self.secret.hash_one(page), Instant::now());
        let least_users = self.config.min_users;
        let mut useless = self.useless_table().of(now, number, least_users);
        let mut wasted = self.wasted_table().of(now, number, least_users);
        if !wasted.is_empty() {
            // The Referer of a request may be a style sheet or an origin. The predictor knows the
            // page nevertheless.
            let auto = self.lock();
            let needed: HashSet<u32> = auto.needed(page).filter_map(url_hash_of).collect();
            wasted.retain(|hash| !needed.contains(hash));
        }
        useless.extend(wasted);
        useless
    }

    /// Notes that the origin has answered the push of a URL for a user with 404 or 410.
    pub fn note_gone(&self, user: u64, url: &str, is_plain: bool) {
        let number = self.secret.hash_one(url);
        self.gone_table()
            .note(Instant::now(), number, user, is_plain);
    }

    /// Notes that an origin has a resource at a URL.
    pub fn note_found(&self, url: &str) {
        self.gone_table().note_found(self.secret.hash_one(url));
    }

    /// Returns whether the resource at a URL has gone.
    pub fn is_gone(&self, url: &str) -> bool {
        let number = self.secret.hash_one(url);
        self.gone_table()
            .has(Instant::now(), number, self.config.min_users)
    }

    /// Notes that a user's request for a URL carried cookies of another origin than its page's.
    pub fn note_cookies(&self, by: CookieUser, page: &str, url: &str) {
        let number = self.secret.hash_one(without_query(url));
        if let (Some(origin), Some(hash)) = (self.origin(page), path_hash(url)) {
            let url = CookieUrl { number, hash };
            self.cookie_urls().note(Instant::now(), origin, url, by);
        }
    }

    /// Returns the browsers whose requests for a URL carry such cookies, as enough users show.
    pub fn cookie_senders(&self, url: &str) -> CookieSenders {
        let number = self.secret.hash_one(without_query(url));
        let least_users = self.config.min_users;
        self.cookie_urls()
            .senders(Instant::now(), number, least_users)
    }

    /// Returns the resources that the pages of an origin request with such cookies.
    pub fn cookie_needs(&self, page: &str) -> CookieNeeds {
        let least_users = self.config.min_users;
        let origin = self.origin(page);
        origin.map_or_else(CookieNeeds::default, |origin| {
            self.cookie_urls().of(Instant::now(), origin, least_users)
        })
    }

    /// Returns the number of a URL's origin.
    fn origin(&self, url: &str) -> Option<u64> {
        let (scheme, authority, _) = split(url)?;
        let authority = authority.to_ascii_lowercase();
        Some(self.secret.hash_one((scheme, authority)))
    }

    /// Notes the status with which a host has answered a user.
    pub fn note_host(&self, user: u64, host: &str, status: u16) {
        self.refusing_table()
            .note(Instant::now(), host, user, status);
    }

    /// Returns the hosts that refuse requests, as enough users show.
    pub fn refusing_hosts(&self) -> Arc<HashSet<String>> {
        let least_users = self.config.min_users;
        self.refusing_table().present(Instant::now(), least_users)
    }

    fn refusing_table(&self) -> MutexGuard<'_, RefusingHosts> {
        let refusing_hosts = self.refusing_hosts.lock();
        refusing_hosts.unwrap_or_else(PoisonError::into_inner)
    }

    fn cookie_urls(&self) -> MutexGuard<'_, CookieUrls> {
        let cookie_urls = self.cookie_urls.lock();
        cookie_urls.unwrap_or_else(PoisonError::into_inner)
    }

    fn gone_table(&self) -> MutexGuard<'_, GoneTable> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wasted_table(&self) -> MutexGuard<'_, UselessTable> {
        let wasted_pushes = self.wasted_pushes.lock();
        wasted_pushes.unwrap_or_else(PoisonError::into_inner)
    }

    fn useless_table(&self) -> MutexGuard<'_, UselessTable> {
        let useless_pushes = self.useless_pushes.lock();
        useless_pushes.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether all sessions belong to one user.
    pub const fn serves_one_user(&self) -> bool {
        self.config.min_users <= 1
    }

    /// Notes whether a page had use for a URL of another origin, if all sessions are of one user.
    /// `browser` is a number that a browser's requests share.
    pub fn note_asked_host(&self, browser: u32, page: &str, url: &str, is_asked: bool) {
        if !self.serves_one_user() || is_of_same_origin(url, page) {
            return;
        }
        if let (Some((scheme, authority, _)), Some((_, host, _))) = (split(page), split(url)) {
            let origin = self.secret.hash_one((browser, scheme, authority));
            let mut table = self.asked_table();
            match is_asked {
                true => table.note_asked(origin, host),
                false => table.note_useless(origin, host),
            }
        }
    }

    /// Returns the other hosts from which a document is expected to request resources, if all
    /// sessions belong to one user.
    pub fn asked_hosts(&self, browser: u32, document: &str) -> HashSet<String> {
        let Some((scheme, authority, _)) = split(document).filter(|_| self.serves_one_user())
        else {
            return HashSet::new();
        };
        let origin = self.secret.hash_one((browser, scheme, authority));
        self.asked_table().of(origin).map(str::to_owned).collect()
    }

    /// Notes a browser's request for the target of a redirect, if all sessions are of one user.
    /// `is_known` tells whether the gateway would have made the same request.
    pub fn note_redirect(&self, browser: u32, redirect: &str, target: &str, is_known: bool) {
        if self.serves_one_user() {
            let [redirect, target] = [redirect, target].map(|url| self.number(browser, url));
            self.redirect_table().note(redirect, target, is_known);
        }
    }

    /// Returns whether the browser's request for the target of a redirect is known.
    pub fn leads_to(&self, browser: u32, redirect: &str, target: &str) -> bool {
        let [redirect, target] = [redirect, target].map(|url| self.number(browser, url));
        self.redirect_table().leads_to(redirect, target)
    }

    /// Notes that a browser visits a page, if all sessions are of one user. Returns the number of
    /// the visit.
    pub fn begin_transfers(&self, browser: u32, page: &str) -> u32 {
        match self.serves_one_user() {
            true => self
                .transfer_table()
                .begin_visit(self.number(browser, page)),
            false => 0,
        }
    }

    /// Notes that such a visit has transferred a resource. `url` is the hash of its URL.
    pub fn note_transfer(&self, browser: u32, page: &str, visit: u32, url: u32) {
        if self.serves_one_user() {
            let page = self.number(browser, page);
            self.transfer_table().note(page, visit, url);
        }
    }

    /// Returns the resources that the next visit is likely and unlikely to transfer.
    pub fn transfers(&self, browser: u32, page: &str) -> KnownTransfers {
        self.transfer_table().of(self.number(browser, page))
    }

    fn transfer_table(&self) -> MutexGuard<'_, TransferTable> {
        let transfers = self.transfers.lock();
        transfers.unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the counts of a session's pushes.
    pub fn note_counts(&self, counts: &Counts) {
        if self.serves_one_user() && (counts.used_bytes, counts.likely_wasted_bytes) != (0, 0) {
            self.likely_budget().note(counts);
        }
    }

    /// Returns whether resources that nearly all visits transfer wait for no claim.
    pub fn permits_likely(&self) -> bool {
        self.serves_one_user() && self.likely_budget().permits()
    }

    fn likely_budget(&self) -> MutexGuard<'_, LikelyBudget> {
        let likely_budget = self.likely_budget.lock();
        likely_budget.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number for a URL in a browser.
    fn number(&self, browser: u32, url: &str) -> u64 {
        self.secret.hash_one((browser, url))
    }

    fn redirect_table(&self) -> MutexGuard<'_, KnownRedirects> {
        let known_redirects = self.known_redirects.lock();
        known_redirects.unwrap_or_else(PoisonError::into_inner)
    }

    fn asked_table(&self) -> MutexGuard<'_, AskedHosts> {
        let asked_hosts = self.asked_hosts.lock();
        asked_hosts.unwrap_or_else(PoisonError::into_inner)
    }
}
