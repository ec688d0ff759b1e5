//! The requests of the client, and the responses to them: pages, parts of pages, and all others.
//! `new_pages` begins the pages.

use std::sync::Arc;
use std::time::Instant;

use tandem_http::cache::{RequestPolicy, SiteData, clears, validation};
use tandem_http::{Method, RequestHead, ResponseHead};

use super::changed_cookies::ChangedBy;
use super::client_cache::SiteNumber;
use super::document::DocumentReader;
use super::learning::{has_unknown_length, note_copies, take_named};
use super::new_pages::Needs;
use super::output::Interest;
use super::predictor::{self, Context, Document, Learned, Predictor, is_learnable, is_reusable};
use super::returning::Returning;
use super::session::{Gateway, Response};
use super::table::{PageId, ResponseId};
use super::unknown_cookies::note_foreign_cookies;
use super::visitors::visited_site;
use crate::fetch_standard::{is_framed, is_navigation, is_prefetch, is_revalidation};
use crate::hints::names_resources;
use crate::response_rules::{CopyLifetime, KeptCopy, copy_lifetime, is_redirect};
use crate::transfers::KnownTransfers;
use crate::url::{request_authority, request_url};
use crate::wire::{RequestHashes, url_hash, url_hash_of};

/// A response to GET, whose head has arrived.
struct Answer<'a> {
    id: ResponseId,
    /// The hash of the request's URL.
    hash: u32,
    request: &'a Arc<RequestHead>,
    /// The lifetime of copies of the response, if its head shows it.
    lifetime: Option<CopyLifetime>,
    /// True if the client takes pushes.
    takes_pushes: bool,
    /// True if the request shows a copy from before the session. That copy is as old as its
    /// lifetime at least.
    shows_age: bool,
}

impl Gateway {
    /// Handles a request. If `takes_pushes` is true, the client gets the resources of the response.
    /// Otherwise the response only teaches the predictor. Returns the number of the response, under
    /// which the caller passes its head, body and end. Returns `None` if the response can be
    /// neither a page nor a part of one.
    pub fn handle_request(
        &mut self,
        now: Instant,
        request: &Arc<RequestHead>,
        takes_pushes: bool,
    ) -> Option<ResponseId> {
        if request.protocol.is_some() {
            return None;
        }
        if request.method != Method::Get {
            // Its response may be a document with policies, or change cookies.
            let is_frame = self.config.audience.applies_policies() && is_framed(request);
            let is_watched = takes_pushes && (is_navigation(request) || is_frame);
            return is_watched.then(|| self.insert_response(request, url_hash(request), true));
        }
        self.note_opened(request);
        self.next.note_activity(now);
        let hash = url_hash(request);
        if takes_pushes {
            self.knows_client = true;
            self.cache.set_time(self.clock.unix_time(now));
            let is_visit = is_navigation(request) && !is_prefetch(request);
            if is_visit && !self.is_frame(now, request) {
                self.next.leave();
                self.misses.begin_page();
                let left = self.hints.leave();
                self.collect_pages(left);
            }
            self.requested.push(hash);
            self.workers.note_request(request, hash);
            self.note_hints(request);
            self.note_wanted(now, &request_authority(request), hash);
            self.note_request(request, hash);
            // A promise that gives way makes room for others.
            self.start_fetches(now);
            self.misses.note_request(now, hash, request);
            self.note_double_request(now, hash);
            self.refusals.expire(now);
            self.cookies.note_request(request);
            self.note_host_cookies(now, request);
            self.hosts.note_begun(now, &request.authority);
            self.image_accept.note(0, request);
            if let Some(visits) = &self.visits {
                visits.lock().set_time(self.clock.unix_time(now));
            }
            self.detect_cache_loss(request, hash);
            self.note_load(now);
            if !self.workers.have_caused(request) {
                self.note_own_request(request);
            }
        } else if !is_learnable(request) {
            return None;
        }
        let id = self.insert_response(request, hash, takes_pushes);
        let is_after_load = self.is_after_load(now, request);
        let is_element = self.note_element(now, request);
        if let Some(response) = self.responses.get_mut(id) {
            response.is_element = is_element;
            response.is_after_load = is_after_load;
        }
        if takes_pushes {
            self.begin_revisit(now, id, request);
        }
        Some(id)
    }

    fn insert_response(
        &mut self,
        request: &Arc<RequestHead>,
        hash: u32,
        takes_pushes: bool,
    ) -> ResponseId {
        self.responses.insert(Response {
            hash,
            is_requested: takes_pushes && request.method == Method::Get,
            request: Some(Arc::clone(request)),
            takes_pushes,
            url: None,
            page: None,
            is_visit: false,
            cookies_of: self.cookies.last_change(),
            treatment: None,
            reader: None,
            unsized_body: None,
            is_after_load: false,
            is_element: false,
            ended: false,
        })
    }

    /// Gives up the fetches of a page that have not begun, and starts waiting fetches of other
    /// pages.
    pub(super) fn abandon(&mut self, now: Instant, id: PageId) {
        self.give_up(id);
        self.start_fetches(now);
    }

    /// Gives up the fetches of a page that have not begun.
    pub(super) fn give_up(&mut self, id: PageId) {
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        page.abandoned = true;
        for promise in page.promises.take().unwrap_or_default() {
            self.forget_fetch(promise.fetch);
        }
        self.collect_page(id);
    }

    /// Handles the head of a response, before it is passed on. The fields that are meant for the
    /// gateway are removed, and the treatment of a page is added. `None` as the predictor means
    /// that nothing is learned. Returns the events of the response that still matter.
    pub fn handle_head(
        &mut self,
        now: Instant,
        id: ResponseId,
        head: &mut ResponseHead,
        mut predictor: Option<&mut dyn Predictor>,
    ) -> Interest {
        match predictor.as_deref_mut() {
            Some(predictor) => {
                self.misses.teach(predictor);
                self.named_referrers.teach(predictor);
            }
            None => self.named_referrers.clear(),
        }
        self.forget_looked_up();
        let Some(response) = self.responses.get_mut(id) else {
            return Interest::default();
        };
        let (takes_pushes, hash) = (response.takes_pushes, response.hash);
        let Some(request) = response.request.take() else {
            return Interest::default();
        };
        let is_page = response.page.is_some();
        if clears(SiteData::Cache, &request, head) {
            // No response from before is repeated.
            self.handle_unsafe_request();
        }
        if request.method != Method::Get {
            self.note_head_of_change(now, &request, head);
            return Interest::default();
        }
        let is_confirmed = head.status == 304 && is_page;
        if !is_confirmed && (head.status != 200 || !DocumentReader::is_html(head)) {
            self.end_revisit(now, id);
        }
        let is_by_worker = self.workers.have_caused(&request);
        if is_by_worker {
            // It is no need of a page.
            predictor = None;
        }
        if let Some(predictor) = predictor.as_deref_mut() {
            self.compare_with_target(hash, &request, predictor);
            let is_whole = matches!(head.status, 200 | 204);
            if takes_pushes && is_whole && !is_navigation(&request) {
                let referrer = request.fields.get("referer");
                let referrer = referrer.and_then(|referrer| std::str::from_utf8(referrer).ok());
                self.note_transfer(hash, referrer, predictor);
            }
            let is_part = !is_navigation(&request) || self.is_frame(now, &request);
            if takes_pushes && is_part && request.fields.contains("cookie") {
                let referrer = request.fields.get("referer");
                let referrer = referrer.and_then(|referrer| std::str::from_utf8(referrer).ok());
                let url = request_url(&request).unwrap_or_default();
                let is_new = self.is_of_new_browser(&request, head);
                note_foreign_cookies(predictor, (&url, &request), head, referrer, is_new);
            }
        }
        let answer = Answer {
            id,
            hash,
            request: &request,
            lifetime: copy_lifetime(head, self.clock.unix_time(now)),
            takes_pushes,
            shows_age: takes_pushes
                && validation::validates_copy(&request.fields)
                && !self.has_sent(hash, &request),
        };
        if takes_pushes {
            self.note_answer(now, &answer, head);
        }
        if let Some(predictor) = predictor.as_deref_mut() {
            predictor.note_host(&request.authority, head.status);
        }
        if !self.config.audience.trusts_page_names() {
            self.note_visit(now, id, &request, head);
            return self.interest_in(id);
        }
        let predictor = predictor.filter(|_| is_learnable(&request) && is_reusable(&request, head));
        let may_be_page = takes_pushes && may_name_resources(head);
        if predictor.is_none() && !may_be_page && !names_resources(head) && !is_confirmed {
            return Interest::default();
        }
        let Some(url) = request_url(&request).map(Arc::<str>::from) else {
            return Interest::default();
        };
        let named = take_named(&url, &request, head);
        let (learned, returning) = match predictor {
            Some(predictor) => self.learn_answer(now, &answer, &url, head, predictor),
            None => (Learned::default(), Returning::default()),
        };
        if takes_pushes && !is_by_worker {
            let needs = Needs {
                named,
                learned,
                returning,
            };
            self.begin_page(now, id, url, request, head, needs);
        }
        self.interest_in(id)
    }

    /// Handles the head of a response to a request with another method than GET.
    fn note_head_of_change(&mut self, now: Instant, request: &RequestHead, head: &ResponseHead) {
        self.note_login(now, request, head);
        if !self.config.audience.applies_policies() {
            self.note_other_head(now, request, head);
        } else if let Some(url) = request_url(request) {
            self.note_content_policies(now, &url, request, head);
        }
    }

    /// Records the facts about the browser that a response to it shows: signs of earlier visits,
    /// cookies, copies in its cache, and the policies of a document.
    fn note_answer(&mut self, now: Instant, answer: &Answer<'_>, head: &ResponseHead) {
        let (request, hash) = (answer.request, answer.hash);
        self.note_status(now, &request.authority, head.status);
        self.note_asked_hints(request, head);
        if is_navigation(request) {
            self.validators.note_page(hash, request);
        }
        if self.uses_validators() {
            self.validators.note(hash, request, head, true);
        }
        self.note_login(now, request, head);
        self.note_signs(request, hash, head);
        if head.fields.contains("set-cookie") {
            self.hosts.note_set_cookie(&request.authority);
        }
        self.note_changed_cookies(now, ChangedBy::Browser(answer.id), request, head);
        if let Some(lifetime) = answer.lifetime.filter(|_| answer.shows_age) {
            self.note_age(&visited_site(request), request, lifetime.rest);
        }
        if head.status == 200 || (head.status == 304 && answer.lifetime.is_some()) {
            let unix_time = self.clock.unix_time(now);
            let copy = KeptCopy::of(head, unix_time);
            let site = SiteNumber::of(&visited_site(request));
            self.cache.note_answer(hash, copy, site);
            let response = self.responses.get(answer.id);
            if !response.is_some_and(|response| response.is_after_load) {
                self.note_own_need(now, request, head);
            }
            self.note_own_copy(request, copy);
        }
        if let Some(url) = request_url(request) {
            self.note_content_policies(now, &url, request, head);
        }
    }

    /// Teaches the predictor a response. Returns the needs of other users, and the resources whose
    /// treatment depends on the browser's cache.
    fn learn_answer(
        &mut self,
        now: Instant,
        answer: &Answer<'_>,
        url: &Arc<str>,
        head: &ResponseHead,
        predictor: &mut dyn Predictor,
    ) -> (Learned, Returning) {
        let (id, request) = (answer.id, answer.request);
        if answer.shows_age
            && answer.lifetime.is_none()
            && let Some(known) = predictor.lifetime(url)
        {
            self.note_age(&visited_site(request), request, known.rest);
        }
        let unix_time = self.clock.unix_time(now);
        note_copies(predictor, url, head, answer.lifetime, unix_time);
        if answer.takes_pushes {
            self.view_page(now, id, url, request, head, predictor);
        }
        let mut learned = self.learn(now, id, url, request, head, predictor);
        let mut returning = Returning::default();
        if !answer.takes_pushes {
            return (learned, returning);
        }
        learned.fonts = self.fonts_of(url, request, head, predictor);
        if is_navigation(request) || may_name_resources(head) {
            learned.with_cookies.extend(predictor.cookie_needs(url));
            learned.refusing = predictor.refusing_hosts();
        }
        learned.useless = predictor.useless_pushes(url);
        learned.image_accept = predictor.image_accept(request);
        if predictor.serves_one_user() && is_navigation(request) {
            let browser = RequestHashes::of(&request.fields).browser();
            learned.hosts = predictor.asked_hosts(browser, url);
            let known = self.note_document(now, answer, url, head, predictor);
            learned.note_transfers(known, predictor.permits_likely());
        }
        if let Some(of_target) = self.look_target_up(now, url, request, head, predictor) {
            learned.append(of_target);
        }
        if self.companion.takes_checks() && is_navigation(request) {
            returning = Returning::of(predictor, url);
            returning.add_learned(predictor, &learned);
        }
        (learned, returning)
    }

    /// Records a document of a visit, if all sessions belong to one user. Returns the knowledge of
    /// earlier visits.
    fn note_document(
        &mut self,
        now: Instant,
        answer: &Answer<'_>,
        url: &Arc<str>,
        head: &ResponseHead,
        predictor: &mut dyn Predictor,
    ) -> KnownTransfers {
        let (request, hash) = (answer.request, answer.hash);
        if is_prefetch(request) || self.is_frame(now, request) {
            return KnownTransfers::default();
        }
        let targets = self.targets.get_or_insert_default();
        targets.visits.visit(url, hash, request, head, predictor)
    }

    /// Returns the events of a response that matter now. Promises may precede its head.
    pub fn interest_in(&self, id: ResponseId) -> Interest {
        let Some(response) = self.responses.get(id) else {
            return Interest::default();
        };
        Interest {
            promises: response.page.is_some(),
            body: response.reader.is_some() || response.unsized_body.is_some(),
        }
    }

    /// Handles bytes of the body of a response, before they are passed on.
    pub fn handle_data(&mut self, id: ResponseId, data: &[u8]) {
        let Some(response) = self.responses.get_mut(id) else {
            return;
        };
        if let Some(size) = &mut response.unsized_body {
            *size += data.len() as u64;
        }
        let (Some(page), Some(reader)) = (response.page, response.reader.take()) else {
            return;
        };
        let reader = self.read(page, reader, data);
        if let Some(response) = self.responses.get_mut(id) {
            response.reader = reader;
        }
    }

    /// Handles the end of a response, which is `complete` or has failed. Promises that its stream
    /// has not taken move to the companion.
    pub fn handle_end(
        &mut self,
        id: ResponseId,
        complete: bool,
        predictor: Option<&mut dyn Predictor>,
    ) {
        let Some(response) = self.responses.get_mut(id) else {
            return;
        };
        response.ended = true;
        // A head after the end begins no page, because nothing would remove that page.
        let had_head = response.request.take().is_none();
        if let (true, Some(size), Some(url), Some(predictor)) =
            (complete, response.unsized_body, &response.url, predictor)
        {
            predictor.body_sent(url, size);
        }
        let (Some(page), reader) = (response.page, response.reader.take()) else {
            return;
        };
        if !had_head {
            // Promises may precede a head that never comes.
            return self.give_up(page);
        }
        if let Some(reader) = reader {
            self.finish_reading(page, reader);
            if complete {
                self.forget_unnamed(page);
            }
        }
        let Some(record) = self.pages.get_mut(page) else {
            return;
        };
        for promise in record.promises.take().unwrap_or_default() {
            self.promise_on_companion(promise);
        }
        self.collect_page(page);
    }

    /// Forgets a response. If it has not ended, the browser has left the page: fetches that have
    /// not begun never do.
    pub fn release_response(&mut self, now: Instant, id: ResponseId) {
        self.note_load(now);
        let Some(response) = self.responses.remove(id) else {
            return;
        };
        if response.is_element {
            self.note_element_end(now);
        }
        self.next.note_activity(now);
        let is_own = |hash: &u32| response.is_requested && *hash == response.hash;
        if let Some(at) = self.requested.iter().position(is_own) {
            self.requested.swap_remove(at);
        }
        match response.page.filter(|_| !response.ended) {
            Some(page) => self.abandon(now, page),
            // A promise without room on the companion makes room for others.
            None => self.start_fetches(now),
        }
    }

    /// Returns whether the browser received a URL in this session for the site of a request, and
    /// has a copy.
    pub(super) fn has_sent(&self, hash: u32, request: &RequestHead) -> bool {
        let site = || SiteNumber::of(&visited_site(request));
        self.cache.has_received(hash, site)
    }

    /// Handles a plain request for a resource that the client has received: the client has lost its
    /// cache, or is another browser. All resources may then be sent again, including those that the
    /// last page did without.
    fn detect_cache_loss(&mut self, request: &RequestHead, hash: u32) {
        let revalidates =
            || is_revalidation(request) || RequestPolicy::of(&request.fields).wants_validation();
        if self.cache.is_empty() || revalidates() {
            return;
        }
        // Without a report, the promise was lost on the way, as promises of redirects are over
        // SPDY. The browser's cache is intact.
        if self.cache.was_sent(hash) && self.unreported.remove(&hash).is_some() {
            self.cache.forget(hash);
            return;
        }
        if !self.has_sent(hash, request) {
            return;
        }
        self.cache.clear();
        self.validators.bar_all();
        if let Some(visits) = &self.visits {
            visits.lock().forget_copies();
        }
        self.visitors.forget_ages();
        self.forget_copies();
        let Some(id) = self.skipping.take() else {
            return;
        };
        if let Some(page) = self.pages.get_mut(id) {
            let mut needs = std::mem::take(&mut page.skipped);
            needs.retain(|need| url_hash_of(&need.url) != Some(hash));
            match self.config.audience.trusts_page_names() {
                true => self.promise(id, needs),
                false => self.promise_again(id, needs),
            }
        }
        self.collect_page(id);
    }

    /// Records a response with the predictor, and returns the needs of other users.
    fn learn(
        &mut self,
        now: Instant,
        id: ResponseId,
        url: &Arc<str>,
        request: &RequestHead,
        head: &ResponseHead,
        predictor: &mut dyn Predictor,
    ) -> Learned {
        if let Some(response) = self.responses.get_mut(id) {
            response.unsized_body = has_unknown_length(head).then_some(0);
            response.url = Some(Arc::clone(url));
        }
        // A pushed document is not recorded yet, because the client reports it later. Requests that
        // it causes belong to the page of the push.
        let page = self.page_of_referrer(request);
        let context = Context {
            url,
            page: page.as_deref(),
            // To the predictor, a frame is a resource of its page, like an image.
            is_frame: is_navigation(request) && self.is_frame(now, request),
            is_after_load: self.responses.get(id).is_some_and(|it| it.is_after_load),
            document: self.document_of_scripts(id, request, head),
            named_by_scripts: self.config.named_by_scripts,
        };
        let referrer = request.fields.get("referer");
        let referrer = referrer.and_then(|referrer| std::str::from_utf8(referrer).ok());
        if let Some(page) = page.as_deref().or(referrer)
            && (!is_navigation(request) || context.is_frame)
            && !context.is_after_load
        {
            predictor.note_waste(page, url, false);
        }
        predictor::learn(predictor, context, request, head)
    }

    /// Returns the document whose scripts a response has, if they are read for strings.
    fn document_of_scripts(
        &self,
        id: ResponseId,
        request: &RequestHead,
        head: &ResponseHead,
    ) -> Option<Document> {
        let takes_pushes = |it: &Response| it.takes_pushes;
        if self.config.named_by_scripts == 0 || !self.responses.get(id).is_some_and(takes_pushes) {
            return None;
        }
        if is_navigation(request) {
            return Some(Document::Itself);
        }
        let is_script = head.status == 200 && DocumentReader::is_script(head);
        is_script.then_some(Document::Referrer)
    }
}

/// Returns whether a response may be a page, a part of one that names resources, or a redirect.
fn may_name_resources(head: &ResponseHead) -> bool {
    (head.status == 200 && DocumentReader::is_readable(head))
        || is_redirect(head)
        || names_resources(head)
}
