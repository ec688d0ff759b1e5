//! The process's predictor as one session uses it.

use std::collections::HashSet;
use std::sync::Arc;

use tandem_http::RequestHead;
use tandem_predict::{Candidate, Exchange, Worth};
use tandem_push::cookie_urls::{CookieNeeds, CookieSenders, CookieUser};
use tandem_push::gateway::{CopyLifetime, Predictor};
use tandem_push::next_pages::NextPage;
use tandem_push::referrers::{NamedPart, SeenReferrers};
use tandem_push::scripts::DataFields;
use tandem_push::transfers::KnownTransfers;

use crate::learned::Learned;
use crate::path_speed::{Measure, PathSpeed};

/// The predictor for one event of one session.
pub(super) struct SessionPredictor<'a> {
    pub(super) learned: &'a Arc<Learned>,
    pub(super) session: u64,
    pub(super) user: u64,
    /// The speed of the session's path, if that is to decide which pushes pay.
    pub(super) speed: Option<&'a PathSpeed>,
}

impl SessionPredictor<'_> {
    /// Returns the worth of a push on the session's path, if the path decides which pushes pay.
    fn worth(&self) -> Option<Worth> {
        self.speed
            .and_then(PathSpeed::measure)
            .map(|Measure { round_trip, rate }| Worth::Path { round_trip, rate })
    }
}

impl Predictor for SessionPredictor<'_> {
    fn sending(&mut self, exchange: &Exchange<'_>) -> Vec<Candidate> {
        let worth = self.worth();
        let exchange = Exchange {
            session: self.session,
            user: self.user,
            ..*exchange
        };
        self.learned.sending(&exchange, worth)
    }

    fn note_referrer(&mut self, url: &str, referrer: &str) {
        self.learned.note_asker(url, referrer);
    }

    fn own_referrer(&self, url: &str) -> Option<String> {
        self.learned.own_asker(url)
    }

    fn note_mode(&mut self, url: &str, is_by_cors: bool) {
        self.learned.note_mode(url, is_by_cors);
    }

    fn is_by_cors(&self, url: &str) -> bool {
        self.learned.is_by_cors(url)
    }

    fn note_named_part(&mut self, url: &str, part: NamedPart) {
        self.learned.note_named_part(url, part);
    }

    fn seen_referrers(&self, url: &str) -> Option<SeenReferrers> {
        self.learned.seen_referrers(url)
    }

    fn body_sent(&mut self, url: &str, size: u64) {
        self.learned.body_sent(url, size);
    }

    fn used(&mut self, page: &str, url: &str) {
        self.learned.used(self.session, page, url);
    }

    fn push_answered(&mut self, url: &str, content_type: &str) {
        self.learned.push_answered(url, content_type);
    }

    fn confirmed(&mut self, page: &str, url: &str) {
        self.learned.confirmed(self.session, page, url);
    }

    fn cancelled(&mut self, url: &str) {
        self.learned.cancelled(self.session, url);
    }

    fn note_lifetime(&mut self, url: &str, lifetime: CopyLifetime) {
        self.learned.note_lifetime(url, lifetime);
    }

    fn lifetime(&self, url: &str) -> Option<CopyLifetime> {
        self.learned.lifetime(url)
    }

    fn resources(&self, page: &str) -> Vec<Candidate> {
        self.learned.resources(page)
    }

    fn possible(&self, page: &str) -> Vec<Candidate> {
        self.learned.possible(page)
    }

    fn note_kept(&mut self, url: &str, is_kept: bool) {
        self.learned.note_kept(url, is_kept);
    }

    fn is_unkept(&self, url: &str) -> bool {
        self.learned.is_unkept(url)
    }

    fn note_visit(&mut self, document: &str, from: Option<&str>) {
        self.learned.note_visit(document, from, self.user);
    }

    fn next_pages(&self, page: &str) -> Vec<NextPage> {
        self.learned.next_pages(page, self.worth())
    }

    fn note_push(&mut self, page: &str, url: u32, is_useless: bool) {
        self.learned.note_push(page, self.user, url, is_useless);
    }

    fn note_gone(&mut self, url: &str, is_plain: bool) {
        self.learned.note_gone(self.user, url, is_plain);
    }

    fn note_found(&mut self, url: &str) {
        self.learned.note_found(url);
    }

    fn is_gone(&self, url: &str) -> bool {
        self.learned.is_gone(url)
    }

    fn note_cookies(&mut self, page: &str, url: &str, is_new: bool) {
        let user = self.user;
        self.learned
            .note_cookies(CookieUser { user, is_new }, page, url);
    }

    fn cookie_senders(&self, url: &str) -> CookieSenders {
        self.learned.cookie_senders(url)
    }

    fn note_host(&mut self, host: &str, status: u16) {
        self.learned.note_host(self.user, host, status);
    }

    fn refusing_hosts(&self) -> Arc<HashSet<String>> {
        self.learned.refusing_hosts()
    }

    fn cookie_needs(&self, page: &str) -> CookieNeeds {
        self.learned.cookie_needs(page)
    }

    fn note_waste(&mut self, page: &str, url: &str, is_wasted: bool) {
        self.learned.note_waste(page, self.user, url, is_wasted);
    }

    fn useless_pushes(&self, page: &str) -> Vec<u32> {
        self.learned.useless_pushes(page)
    }

    fn note_data_fields(&mut self, url: &str, request: &RequestHead) {
        self.learned.note_data_fields(url, self.user, request);
    }

    fn note_sandbox(&mut self, frame: &str, is_sandboxed: bool) {
        self.learned.note_sandbox(frame, self.user, is_sandboxed);
    }

    fn data_fields(&self, url: &str) -> DataFields {
        self.learned.data_fields(url)
    }

    fn note_image_accept(&mut self, request: &RequestHead) {
        self.learned.note_image_accept(self.user, request);
    }

    fn image_accept(&self, request: &RequestHead) -> Option<Arc<[u8]>> {
        self.learned.image_accept_of(request)
    }

    fn is_validated(&self, url: &str) -> bool {
        self.learned.is_validated(url)
    }

    fn serves_one_user(&self) -> bool {
        self.learned.serves_one_user()
    }

    fn note_asked_host(&mut self, browser: u32, page: &str, url: &str, is_asked: bool) {
        self.learned.note_asked_host(browser, page, url, is_asked);
    }

    fn asked_hosts(&self, browser: u32, document: &str) -> HashSet<String> {
        self.learned.asked_hosts(browser, document)
    }

    fn note_redirect(&mut self, browser: u32, redirect: &str, target: &str, is_known: bool) {
        self.learned
            .note_redirect(browser, redirect, target, is_known);
    }

    fn begin_transfers(&mut self, browser: u32, page: &str) -> u32 {
        self.learned.begin_transfers(browser, page)
    }

    fn note_transfer(&mut self, browser: u32, page: &str, visit: u32, url: u32) {
        self.learned.note_transfer(browser, page, visit, url);
    }

    fn transfers(&self, browser: u32, page: &str) -> KnownTransfers {
        self.learned.transfers(browser, page)
    }

    fn permits_likely(&self) -> bool {
        self.learned.permits_likely()
    }

    fn leads_to(&self, browser: u32, redirect: &str, target: &str) -> bool {
        self.learned.leads_to(browser, redirect, target)
    }
}
