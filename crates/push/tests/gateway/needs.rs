//! A predictor of scenes: it knows the resources that a scene names, and notes the outcomes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tandem_http::RequestHead;
use tandem_predict::auto::url::{Kind, parts};
use tandem_predict::{Candidate, Exchange};
use tandem_push::cookie_urls::{
    CookieNeeds, CookieSenders, CookieUrl, CookieUrls, CookieUser, path_hash, without_query,
};
use tandem_push::gateway::{CopyLifetime, Predictor};
use tandem_push::gone_urls::GoneTable;
use tandem_push::known_redirects::KnownRedirects;
use tandem_push::likely_budget::LikelyBudget;
use tandem_push::next_pages::NextPage;
use tandem_push::referrers::{NamedPart, ReferrerTable, SeenReferrers};
use tandem_push::refusing_hosts::RefusingHosts;
use tandem_push::scripts::{DataFields, ScriptTable};
use tandem_push::transfers::{KnownTransfers, TransferTable};
use tandem_push::useless_pushes::{Outcome, UselessTable};
use tandem_push::wire::url_hash;

use crate::pair::request;

/// The users that must miss the push of a resource before it is left to browsers.
const MISSING_USERS: u8 = 3;

/// The knowledge of earlier visits to the page.
#[derive(Default)]
pub(crate) struct Needs {
    page: &'static str,
    /// The resources that most visits to `page` request.
    resources: Vec<&'static str>,
    lifetimes: HashMap<String, CopyLifetime>,
    /// The resources that no cache kept.
    unkept: Vec<String>,
    /// The URL of a redirect to the page, and the resources that visits through it needed.
    offered: Option<(&'static str, Vec<&'static str>)>,
    /// True if nearly all visits transferred these resources.
    is_likely: bool,
    /// The resources that some visits to each page request.
    possible: Vec<(&'static str, f64)>,
    /// The documents that follow each page.
    pub(crate) next: Vec<(&'static str, &'static str)>,
    /// The visits without credentials that were recorded.
    pub(crate) visits: Vec<String>,
    /// The outcomes of pushes that were recorded.
    pub(crate) outcomes: Vec<String>,
    /// The fields of requests for data, by the hashes of their URLs, and the user who sends them.
    scripts: ScriptTable,
    referrers: ReferrerTable,
    /// True if nothing is known of the referrers of earlier visits.
    pub(crate) is_of_old_state: bool,
    useless: UselessTable,
    wasted: UselessTable,
    pub(crate) user: u64,
    /// The times for which resources have been known.
    known_for: HashMap<&'static str, Duration>,
    /// The other hosts that the user's earlier visits requested.
    pub(crate) asked_hosts: Vec<&'static str>,
    /// The URLs that were requested by CORS.
    pub(crate) by_cors: HashSet<String>,
    gone: GoneTable,
    cookie_urls: CookieUrls,
    refusing_hosts: Mutex<RefusingHosts>,
    /// The `Accept` for images of another user with the same browser.
    image_accept: Option<&'static str>,
    redirects: KnownRedirects,
    /// The documents that request resources of their own origin.
    pub(crate) own_referrers: HashMap<&'static str, &'static str>,
    pub(crate) likely_budget: LikelyBudget,
    transfers: TransferTable,
    /// True if the gateway has several users.
    pub(crate) is_shared: bool,
    /// The URLs of pushes with the types of their responses.
    pub(crate) types: Vec<String>,
    /// The requests and pushes of pages that were recorded, and whether they were of use.
    pub(crate) asked: Vec<String>,
}

impl Needs {
    /// Returns the knowledge of visits to a page through a redirect at `url`.
    pub(crate) fn of_redirect(url: &'static str, needs: Vec<&'static str>, unkept: &str) -> Self {
        Self {
            offered: Some((url, needs)),
            unkept: vec![unkept.to_owned()],
            ..Self::default()
        }
    }

    /// Returns the knowledge of visits to a page whose resources have these lifetimes in seconds.
    pub(crate) fn of_copies(page: &'static str, resources: &[(&'static str, u64)]) -> Self {
        let lifetime = |seconds| CopyLifetime {
            whole: Duration::from_secs(seconds),
            rest: Duration::from_secs(seconds),
        };
        let lifetimes = resources
            .iter()
            .map(|(url, s)| ((*url).to_owned(), lifetime(*s)));
        Self {
            page,
            resources: resources.iter().map(|(url, _)| *url).collect(),
            lifetimes: lifetimes.collect(),
            ..Self::default()
        }
    }

    /// Returns the knowledge of visits to a page whose resources have been known for these times.
    pub(crate) fn of_known(page: &'static str, resources: &[(&'static str, Duration)]) -> Self {
        Self {
            page,
            resources: resources.iter().map(|(url, _)| *url).collect(),
            known_for: resources.iter().copied().collect(),
            ..Self::default()
        }
    }

    /// Returns the knowledge that visitors go on from pages to documents.
    pub(crate) fn of_next(next: &[(&'static str, &'static str)]) -> Self {
        Self {
            next: next.to_vec(),
            ..Self::default()
        }
    }

    /// Returns the knowledge that these shares of the visits request resources.
    pub(crate) fn of_possible(possible: Vec<(&'static str, f64)>) -> Self {
        Self {
            possible,
            ..Self::default()
        }
    }

    /// Returns the knowledge of visits to a page that nearly all transferred these resources.
    pub(crate) fn of_empty_caches(url: &'static str, needs: Vec<&'static str>) -> Self {
        Self {
            is_likely: true,
            ..Self::of_page(url, needs)
        }
    }

    /// Returns the knowledge of visits to a page that needed these resources.
    pub(crate) fn of_page(url: &'static str, needs: Vec<&'static str>) -> Self {
        Self {
            offered: Some((url, needs)),
            ..Self::default()
        }
    }
}

impl Needs {
    /// Lets another user's browser of the same kind have shown this `Accept` for images.
    pub(crate) fn with_image_accept(mut self, accept: Option<&'static str>) -> Self {
        self.image_accept = accept;
        self
    }
}

impl Predictor for Needs {
    fn sending(&mut self, exchange: &Exchange<'_>) -> Vec<Candidate> {
        let offered = self.offered.iter().filter(|(url, _)| *url == exchange.url);
        let of = |url| Candidate {
            probability: if self.is_likely { 0.9 } else { 0.8 },
            ..candidate(url)
        };
        offered.flat_map(|(_, urls)| urls.iter().map(of)).collect()
    }

    fn note_referrer(&mut self, _: &str, _: &str) {}

    fn own_referrer(&self, url: &str) -> Option<String> {
        self.own_referrers.get(url).map(|&it| it.to_owned())
    }

    fn note_mode(&mut self, url: &str, is_by_cors: bool) {
        match is_by_cors {
            true => self.by_cors.insert(url.to_owned()),
            false => self.by_cors.remove(url),
        };
    }

    fn is_by_cors(&self, url: &str) -> bool {
        self.by_cors.contains(url)
    }

    fn note_gone(&mut self, url: &str, is_plain: bool) {
        self.gone
            .note(Instant::now(), number(url), self.user, is_plain);
    }

    fn note_found(&mut self, url: &str) {
        self.gone.note_found(number(url));
    }

    fn is_gone(&self, url: &str) -> bool {
        self.gone.has(Instant::now(), number(url), MISSING_USERS)
    }

    fn note_cookies(&mut self, page: &str, url: &str, is_new: bool) {
        let by = CookieUser {
            user: self.user,
            is_new,
        };
        let number = number(without_query(url));
        let hash = path_hash(url).expect("a URL");
        let url = CookieUrl { number, hash };
        self.cookie_urls.note(Instant::now(), origin(page), url, by);
    }

    fn cookie_senders(&self, url: &str) -> CookieSenders {
        let number = number(without_query(url));
        self.cookie_urls
            .senders(Instant::now(), number, MISSING_USERS)
    }

    fn note_host(&mut self, host: &str, status: u16) {
        self.refusing_hosts.lock().expect("no other user").note(
            Instant::now(),
            host,
            self.user,
            status,
        );
    }

    fn refusing_hosts(&self) -> Arc<HashSet<String>> {
        self.refusing_hosts
            .lock()
            .expect("no other user")
            .present(Instant::now(), MISSING_USERS)
    }

    fn cookie_needs(&self, page: &str) -> CookieNeeds {
        self.cookie_urls
            .of(Instant::now(), origin(page), MISSING_USERS)
    }

    fn image_accept(&self, _: &RequestHead) -> Option<Arc<[u8]>> {
        self.image_accept.map(|accept| accept.as_bytes().into())
    }

    fn note_named_part(&mut self, url: &str, part: NamedPart) {
        self.referrers.note(number(url), part);
    }

    fn seen_referrers(&self, url: &str) -> Option<SeenReferrers> {
        let of_earlier_visits = SeenReferrers {
            least: NamedPart::Whole,
            last: NamedPart::Whole,
        };
        let seen = self.referrers.seen(number(url));
        seen.or_else(|| Some(of_earlier_visits).filter(|_| !self.is_of_old_state))
    }

    fn body_sent(&mut self, _: &str, _: u64) {}

    fn used(&mut self, _: &str, url: &str) {
        self.outcomes.push(format!("used {url}"));
    }

    fn confirmed(&mut self, _: &str, url: &str) {
        self.outcomes.push(format!("confirmed {url}"));
    }

    fn cancelled(&mut self, url: &str) {
        self.outcomes.push(format!("cancelled {url}"));
    }

    fn note_lifetime(&mut self, url: &str, lifetime: CopyLifetime) {
        self.lifetimes.insert(url.to_owned(), lifetime);
    }

    fn lifetime(&self, url: &str) -> Option<CopyLifetime> {
        self.lifetimes.get(url).copied()
    }

    fn note_kept(&mut self, url: &str, is_kept: bool) {
        self.unkept.retain(|own| own != url);
        if !is_kept {
            self.unkept.push(url.to_owned());
        }
    }

    fn is_unkept(&self, url: &str) -> bool {
        self.unkept.iter().any(|own| own == url)
    }

    fn note_visit(&mut self, document: &str, from: Option<&str>) {
        self.visits
            .push(format!("{} > {document}", from.unwrap_or_default()));
    }

    fn next_pages(&self, page: &str) -> Vec<NextPage> {
        let next = self.next.iter().filter(|(from, _)| *from == page);
        next.map(|(_, url)| NextPage {
            url: Arc::from(*url),
            probability: 0.9,
        })
        .collect()
    }

    fn note_data_fields(&mut self, url: &str, request: &RequestHead) {
        self.scripts.note(number(url), self.user, request);
    }

    fn note_sandbox(&mut self, frame: &str, is_sandboxed: bool) {
        self.scripts
            .note_sandbox(number(frame), self.user, is_sandboxed);
    }

    fn data_fields(&self, url: &str) -> DataFields {
        self.scripts.data_fields(number(url), 2)
    }

    fn is_validated(&self, url: &str) -> bool {
        self.scripts.is_validated(number(url))
    }

    fn note_push(&mut self, page: &str, url: u32, is_useless: bool) {
        let outcome = Outcome {
            page: number(page),
            user: self.user,
            url,
            is_useless,
        };
        self.useless.note(Instant::now(), outcome, MISSING_USERS);
    }

    fn note_waste(&mut self, page: &str, url: &str, is_wasted: bool) {
        if is_wasted && self.resources.contains(&url) {
            return;
        }
        let outcome = Outcome {
            page: number(page),
            user: self.user,
            url: url_hash(&request(url, &[])),
            is_useless: is_wasted,
        };
        self.wasted.note(Instant::now(), outcome, MISSING_USERS);
    }

    fn useless_pushes(&self, page: &str) -> Vec<u32> {
        let (page, now) = (number(page), Instant::now());
        let mut useless = self.useless.of(now, page, MISSING_USERS);
        useless.extend(self.wasted.of(now, page, MISSING_USERS));
        useless
    }

    fn serves_one_user(&self) -> bool {
        !self.is_shared
    }

    fn note_asked_host(&mut self, _: u32, page: &str, url: &str, is_asked: bool) {
        let outcome = format!("{page} > {url} {is_asked}");
        self.asked.push(outcome);
    }

    fn asked_hosts(&self, _: u32, _: &str) -> HashSet<String> {
        self.asked_hosts.iter().map(|&host| host.into()).collect()
    }

    fn push_answered(&mut self, url: &str, content_type: &str) {
        self.types.push(format!("{url} {content_type}"));
    }

    fn note_redirect(&mut self, _: u32, redirect: &str, target: &str, is_known: bool) {
        self.redirects
            .note(number(redirect), number(target), is_known);
    }

    fn begin_transfers(&mut self, _: u32, page: &str) -> u32 {
        self.transfers.begin_visit(number(page))
    }

    fn note_transfer(&mut self, _: u32, page: &str, visit: u32, url: u32) {
        self.transfers.note(number(page), visit, url);
    }

    fn transfers(&self, _: u32, page: &str) -> KnownTransfers {
        self.transfers.of(number(page))
    }

    fn permits_likely(&self) -> bool {
        !self.is_shared && self.likely_budget.permits()
    }

    fn leads_to(&self, _: u32, redirect: &str, target: &str) -> bool {
        self.redirects.leads_to(number(redirect), number(target))
    }

    fn possible(&self, _: &str) -> Vec<Candidate> {
        let of = |(url, probability): &(&'static str, f64)| Candidate {
            probability: *probability,
            ..candidate(url)
        };
        self.possible.iter().map(of).collect()
    }

    fn resources(&self, page: &str) -> Vec<Candidate> {
        let urls = self.resources.iter().filter(|_| page == self.page);
        let known = |url| Candidate {
            known_for: self.known_for.get(url).copied().unwrap_or_default(),
            ..candidate(url)
        };
        urls.map(known).collect()
    }
}

fn candidate(url: &&str) -> Candidate {
    Candidate {
        url: Arc::from(*url),
        kind: Kind::of_path(parts(url).path),
        probability: 0.9,
        expected_size: 1000.0,
        known_for: Duration::ZERO,
    }
}

/// Returns the number of a URL's origin.
fn origin(url: &str) -> u64 {
    let parts: Vec<_> = url.split('/').take(3).collect();
    number(&format!("{}/", parts.join("/")))
}

fn number(url: &str) -> u64 {
    u64::from(url_hash(&request(url, &[])))
}
