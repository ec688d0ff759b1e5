//! The fetches of pushes: their order, and the responses that they bring.

use std::time::Instant;

use tandem_http::cache::{CacheRules, Receipt, ResponsePolicy};
use tandem_http::message::content_length;
use tandem_http::{RequestHead, ResponseHead, Scheme};
use tandem_preload::{Kind, split};

use super::changed_cookies::ChangedBy;
use super::client_cache::SiteNumber;
use super::document::Purpose;
use super::fetch::{MAX_PUSH_BYTES, PushStream};
use super::fetch_phase::{FetchPhase, Passage, Start};
use super::fetch_queue::Turn;
use super::next_page::is_plain_document;
use super::output::{Order, Output, PushError};
use super::page::Page;
use super::predictor::Predictor;
use super::refusals::is_refusal;
use super::repeats::RepeatablePush;
use super::session::Gateway;
use super::table::FetchId;
use crate::fetch_standard::is_navigation;
use crate::response_rules::{
    KeptCopy, Reuse, browser_reuse, copy_lifetime, is_redirect, may_be_handed_over, may_be_pushed,
    redirect_target,
};
use crate::url::authority;
use crate::wire::{NEXT_PAGE_FIELD, url_hash};

/// The requests that the response of a push may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// Each request for which the rules of caches permit it.
    Kept,
    /// The request that waits for it already, or follows at once. No cache may keep the response.
    HandedOver,
    /// The same, but no request waits yet.
    Withheld,
}

impl Gateway {
    /// Lets a fetch wait for its turn: its promise has been sent.
    pub fn queue_fetch(&mut self, now: Instant, id: FetchId) {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        if fetch.stream != PushStream::Promised {
            // The push was given up after the stream had taken its promise.
            return;
        }
        fetch.stream = PushStream::Open;
        let turn = fetch.turn;
        let start = fetch.phase.start();
        self.note_sent_promise(now, id);
        match start {
            Some(Start::Claim | Start::OwnClaim | Start::Series) => self.begin_hold(now, id),
            Some(Start::Gathered) => self.copies.gather(now, id),
            Some(Start::Promise) | None => {
                self.queue.wait(turn, id);
                self.start_fetches(now);
            }
        }
    }

    /// Handles the head of a push, before it is passed on. `None` as the predictor means that
    /// nothing is learned. Returns whether promises on the companion go before the head.
    ///
    /// # Errors
    /// Fails if the response must not be passed on. The stream of the push is to be reset then.
    pub fn handle_fetch_head(
        &mut self,
        now: Instant,
        id: FetchId,
        head: &mut ResponseHead,
        mut predictor: Option<&mut dyn Predictor>,
    ) -> Result<Order, PushError> {
        if let Some(predictor) = predictor.as_deref_mut() {
            self.named_referrers.teach(predictor);
        }
        let added = self.companion.added();
        self.note_pushed_element(now);
        let changes_cookies = self.note_cookies_of_fetch(now, id, head);
        if let Some(fetch) = self.fetches.get(id) {
            let url = std::sync::Arc::clone(&fetch.target.url);
            self.note_status(now, authority(&url), head.status);
            if let Some(predictor) = predictor.as_deref_mut() {
                predictor.note_host(authority(&url), head.status);
            }
        }
        self.note_presence(id, head, predictor.as_deref_mut());
        self.queue.grow();
        self.end_fetching(now, id, FetchPhase::Passing(Passage::All));
        let Some(fetch) = self.fetches.get(id) else {
            return Ok(Order::Now);
        };
        if fetch.is_next && !fetch.requested && !is_plain_document(head) {
            self.cache.note_unpushable(fetch.target.hash);
            self.fail_fetch(now, id);
            return Err(PushError::Forbidden);
        }
        if fetch.is_check && !self.brings_other_version(id, head) {
            return self.pass_check(now, id, head);
        }
        let Some(delivery) = self.admit(now, id, head, changes_cookies) else {
            self.fail_fetch(now, id);
            return Err(PushError::Forbidden);
        };
        let of_target = self.look_pushed_target_up(now, id, head, predictor.as_deref_mut());
        let reuse = self.note_fetched(now, id, head, delivery, predictor);
        if head.status == 200 {
            let reuse = self.evident_reuse(now, id, head, reuse);
            self.note_reuse(now, id, reuse);
        }
        self.begin_push(now, id, head);
        if let Some((page, of_target)) = of_target {
            self.promise_learned(page, of_target);
        }
        if reuse == Reuse::Fresh {
            self.begin_repeat(now, id, head);
        }
        match delivery {
            Delivery::Withheld => self.hold_head(now, id, head),
            Delivery::Kept | Delivery::HandedOver => self.hold_body(now, id, head),
        }
        if let Some(fetch) = self.fetches.get(id) {
            fetch.target.describe(head);
            if fetch.is_next {
                head.fields.set(NEXT_PAGE_FIELD, "1");
            }
        }
        Ok(self.order(added))
    }

    /// Decides by the head of a push how its response may be passed on. Returns `None` if it must
    /// not be. Also notes a resource that no push can bring.
    fn admit(
        &mut self,
        now: Instant,
        id: FetchId,
        head: &ResponseHead,
        changes_cookies: bool,
    ) -> Option<Delivery> {
        let delivery = self.delivery_of(id, head);
        let fetch = self.fetches.get_mut(id)?;
        let length = content_length(&head.fields).ok().flatten();
        fetch.sized = length.is_some();
        let length = length.unwrap_or(0);
        let is_short = length <= MAX_PUSH_BYTES;
        if !is_short || matches!(delivery, None | Some(Delivery::Withheld)) {
            self.cache.note_unpushable(fetch.target.hash);
        }
        let page = fetch.page;
        let delivery = delivery.filter(|_| is_short);
        match delivery {
            None => self.note_useless(id),
            // The report on the push tells whether the client has used it.
            Some(Delivery::Kept) => {}
            Some(Delivery::HandedOver | Delivery::Withheld) => self.watch_push(now, id),
        }
        let is_kept = delivery == Some(Delivery::Kept);
        self.decide_series(now, id, is_kept, changes_cookies);
        let page = self.pages.get_mut(page)?;
        page.spend_announced(length).then_some(delivery?)
    }

    /// Returns how the response of a push may be passed on, apart from its length.
    fn delivery_of(&self, id: FetchId, head: &ResponseHead) -> Option<Delivery> {
        if may_be_pushed(head) {
            return Some(Delivery::Kept);
        }
        // With many pushes at once, an origin may answer 429 or 503. A gateway then leaves the next
        // attempt to the browser. With one user, the caller repeats such requests.
        let is_provoked = is_refusal(head.status)
            && !self.config.audience.repeats_refused_requests()
            && self.is_of_burst(id);
        // A client without a companion does not report that a request waits.
        if is_provoked || !self.companion.client_reports() || !may_be_handed_over(head) {
            return None;
        }
        // The browser requests the target of a redirect at once.
        let is_requested = self.fetches.get(id).is_some_and(|fetch| fetch.requested);
        Some(match is_requested || self.is_redirected(id) {
            true => Delivery::HandedOver,
            false => Delivery::Withheld,
        })
    }

    /// Records the response of a push that is to be passed on: the use that caches can make of it,
    /// its copy, and its lifetime. Returns that use.
    fn note_fetched(
        &mut self,
        now: Instant,
        id: FetchId,
        head: &ResponseHead,
        delivery: Delivery,
        predictor: Option<&mut dyn Predictor>,
    ) -> Reuse {
        let unix_time = self.clock.unix_time(now);
        let is_kept = delivery == Delivery::Kept;
        let reuse = match is_kept {
            true => browser_reuse(head, unix_time),
            false => Reuse::Never,
        };
        let uses_validators = self.uses_validators();
        let Some(fetch) = self.fetches.get_mut(id) else {
            return reuse;
        };
        fetch.reported = delivery != Delivery::Withheld;
        let copy = KeptCopy::of(head, unix_time).filter(|_| is_kept);
        if let Some(request) = fetch.request.as_ref().filter(|_| uses_validators) {
            self.validators
                .note(fetch.target.hash, request, head, false);
        }
        let page = self.pages.get(fetch.page);
        let document = page.map_or(&*fetch.target.url, Page::document_url);
        let site = SiteNumber::of_authority(authority(document));
        self.cache.note_answer(fetch.target.hash, copy, site);
        if let (Some(page), Some(visits)) = (page, &self.visits) {
            let url = &fetch.target.url;
            visits.lock().note_copy(page.url(), url, copy);
        }
        let lifetime = copy_lifetime(head, unix_time).filter(|_| is_kept);
        if let Some(predictor) = predictor.filter(|_| is_kept && head.status == 200) {
            if let Some(content_type) = head.fields.get("content-type")
                && let Ok(content_type) = std::str::from_utf8(content_type)
            {
                predictor.push_answered(&fetch.target.url, content_type);
            }
            if lifetime.is_none() {
                predictor.note_kept(&fetch.target.url, reuse != Reuse::Never);
            }
        }
        if let Some(push) = self.unreported.get_mut(&fetch.target.hash)
            && push.fetch == id
        {
            push.lifetime = lifetime;
            push.needs_waiting = !is_kept;
            push.is_likely &= reuse != Reuse::Never;
        }
        reuse
    }

    /// Ends the early requests whose cookies the response of a push changes. Returns whether it
    /// changes any.
    fn note_cookies_of_fetch(&mut self, now: Instant, id: FetchId, head: &ResponseHead) -> bool {
        let fetch = self.fetches.get(id);
        let Some(fetch) = fetch.filter(|_| head.fields.contains("set-cookie")) else {
            return false;
        };
        let request = match &fetch.request {
            Some(request) => Some(request.clone()),
            // After a request with an unsafe method, the request of the push is forgotten. The
            // cookies then count as new.
            None => split(&fetch.target.url).and_then(|(scheme, authority, path)| {
                let scheme = Scheme::parse(scheme.as_bytes())?;
                Some(RequestHead::get(scheme, authority, path))
            }),
        };
        request.is_some_and(|request| {
            self.note_changed_cookies(now, ChangedBy::Push(id), &request, head)
        })
    }

    /// Returns whether a push is the document to which the request for its page was redirected.
    pub(super) fn is_redirected(&self, id: FetchId) -> bool {
        let fetch = self.fetches.get(id);
        let page = fetch.and_then(|fetch| self.pages.get(fetch.page));
        let (Some(fetch), Some(page)) = (fetch, page) else {
            return false;
        };
        is_navigation(page.request())
            && **page.url() != *fetch.target.url
            && page.document_url() == &*fetch.target.url
    }

    /// Handles bytes of the body of a push, before they are passed on.
    pub fn handle_fetch_data(
        &mut self,
        now: Instant,
        id: FetchId,
        data: &[u8],
    ) -> Result<Order, PushError> {
        let added = self.companion.added();
        self.note_pushed_element(now);
        let Some(fetch) = self.fetches.get_mut(id) else {
            return Ok(Order::Now);
        };
        self.repeats.add(id, data);
        let length = data.len() as u64;
        fetch.received += length;
        let is_next = fetch.is_next;
        if fetch.is_wasted && is_next {
            self.counts.next_wasted_bytes += length;
        } else if fetch.is_wasted {
            self.counts.wasted_bytes += length;
        } else if let Some(push) = self.unreported.get_mut(&fetch.target.hash)
            && push.fetch == id
        {
            push.bytes += length;
        }
        let fits = fetch.sized
            || self
                .pages
                .get_mut(fetch.page)
                .is_some_and(|page| page.spend_body(length));
        if !fits && (is_next || fetch.received > MAX_PUSH_BYTES) && !fetch.requested {
            self.fail_fetch(now, id);
            return Err(PushError::TooLong);
        }
        let (page, reader) = (fetch.page, fetch.reader.take());
        if let Some(reader) = reader {
            let reader = self.read(page, reader, data);
            if let Some(fetch) = self.fetches.get_mut(id) {
                fetch.reader = reader;
            }
        }
        Ok(self.order(added))
    }

    /// Handles the end of a push, which is complete or has failed.
    pub fn handle_fetch_end(&mut self, now: Instant, id: FetchId) {
        if let Some(fetch) = self.fetches.get(id).filter(|it| it.phase.awaits_head()) {
            let (page, kind) = (fetch.page, fetch.purpose.kind());
            let url = std::sync::Arc::clone(&fetch.target.url);
            self.leave_series(page, id, &url, kind);
        }
        self.end_fetching(now, id, FetchPhase::Over);
        if let Some(fetch) = self.fetches.get_mut(id)
            && let Some(reader) = fetch.reader.take()
        {
            let page = fetch.page;
            self.finish_reading(page, reader);
        }
    }

    /// Forgets a push after its stream was closed.
    pub fn release_fetch(&mut self, now: Instant, id: FetchId) {
        self.forget_fetch(id);
        self.start_fetches(now);
    }

    /// Forgets a push.
    pub(super) fn forget_fetch(&mut self, id: FetchId) {
        self.withdraw(id);
        let Some(fetch) = self.fetches.remove(id) else {
            return;
        };
        self.leave_queue(fetch.turn, &fetch.phase);
        if fetch.phase.awaits_head() {
            self.leave_series(fetch.page, id, &fetch.target.url, fetch.purpose.kind());
        }
        if let Some(page) = self.pages.get_mut(fetch.page) {
            page.fetches -= 1;
            self.collect_page(fetch.page);
        }
    }

    /// Gives up a push. Its stream is reset, unless that was done before. A promise that no stream
    /// has taken is dropped.
    pub(super) fn cancel_fetch(&mut self, id: FetchId) {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        match fetch.stream {
            PushStream::Unopened => return self.forget_fetch(id),
            PushStream::Promised | PushStream::Open => fetch.stream = PushStream::Reset,
            PushStream::Reset => return,
        }
        let (turn, phase) = (
            fetch.turn,
            std::mem::replace(&mut fetch.phase, FetchPhase::Over),
        );
        let (page, kind) = (fetch.page, fetch.purpose.kind());
        let url = std::sync::Arc::clone(&fetch.target.url);
        self.leave_queue(turn, &phase);
        if phase.awaits_head() {
            self.leave_series(page, id, &url, kind);
        }
        self.outputs.push_back(Output::Cancel { fetch: id });
    }

    /// Begins the fetches that are next in order.
    pub(super) fn start_fetches(&mut self, now: Instant) {
        while let Some(id) = self.queue.next() {
            let Some(fetch) = self.fetches.get_mut(id) else {
                self.queue.free_slot();
                continue;
            };
            let is_left = self.pages.get(fetch.page).is_none_or(|page| page.abandoned);
            let is_wanted =
                !is_left || (fetch.requested && self.config.audience.serves_left_pages());
            let phase = std::mem::replace(&mut fetch.phase, FetchPhase::Over);
            match phase {
                FetchPhase::Waiting { request, .. } if is_wanted => {
                    fetch.phase = FetchPhase::Fetching;
                    fetch.request = Some(request.clone());
                    if let Some(push) = self.unreported.get_mut(&fetch.target.hash)
                        && push.fetch == id
                    {
                        push.begun = true;
                    }
                    self.queue.begin(now, id);
                    self.hosts.note_begun(now, &request.authority);
                    self.outputs.push_back(Output::Fetch { fetch: id, request });
                }
                _ => {
                    self.queue.free_slot();
                    self.cancel_fetch(id);
                }
            }
        }
    }

    /// Returns whether a fetch holds a slot and waits for its head.
    fn is_fetching(&self, id: FetchId) -> bool {
        self.fetches
            .get(id)
            .is_some_and(|fetch| fetch.phase.has_slot())
    }

    /// Gives the slot of a slow fetch to another. The fetch goes on.
    pub(super) fn give_slot_away(&mut self, now: Instant, id: FetchId) {
        if self.is_fetching(id) {
            self.end_fetching(now, id, FetchPhase::Slow);
        }
    }

    /// Moves a fetch to its next phase, and frees its place in the queue.
    pub(super) fn end_fetching(&mut self, now: Instant, id: FetchId, next: FetchPhase) {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        let (turn, phase) = (fetch.turn, std::mem::replace(&mut fetch.phase, next));
        self.leave_queue(turn, &phase);
        self.start_fetches(now);
    }

    /// Frees the place of a fetch in the queue. `phase` is the one that it leaves.
    fn leave_queue(&mut self, turn: Turn, phase: &FetchPhase) {
        match phase {
            FetchPhase::Waiting { .. } => self.queue.leave(turn),
            FetchPhase::Fetching => self.queue.free_slot(),
            FetchPhase::Slow | FetchPhase::Passing(_) | FetchPhase::Over => {}
        }
    }

    /// Ends a push whose response must not be passed on.
    pub(super) fn fail_fetch(&mut self, now: Instant, id: FetchId) {
        if let Some(fetch) = self.fetches.get(id) {
            self.cache.forget(fetch.target.hash);
        }
        self.handle_fetch_end(now, id);
    }

    /// Withdraws a promise whose fetch has failed, unless another promise has replaced it.
    pub(super) fn withdraw(&mut self, id: FetchId) {
        let Some(fetch) = self.fetches.get_mut(id).filter(|it| !it.reported) else {
            return;
        };
        fetch.reported = true;
        let hash = fetch.target.hash;
        let push = self.unreported.get(&hash);
        if push.is_none_or(|push| push.fetch == id) {
            if let Some(push) = self.unreported.remove(&hash) {
                self.count_waste(&push);
                if push.is_check && push.begun {
                    // The report on it finds no promise any more.
                    self.bar_check(hash);
                }
            }
            self.cache.forget(hash);
        }
    }

    /// Prepares to read the body of a push, or promises the target of its redirect.
    fn begin_push(&mut self, now: Instant, id: FetchId, head: &ResponseHead) {
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        let (page, url) = (fetch.page, std::sync::Arc::clone(&fetch.target.url));
        let (purpose, is_next) = (fetch.purpose.clone(), fetch.is_next);
        // After a request with an unsafe method it is forgotten.
        let redirected = fetch.request.clone().filter(|_| is_redirect(head));
        self.note_pushed_policies(page, &url, head);
        if self.is_redirected(id) {
            self.note_cookies_of_document(now, id, head);
        }
        if is_next {
            // Its resources are of use only once the browser asks for it.
            return;
        }
        if let Purpose::Frame(_) = purpose {
            let request = self.fetches.get(id).and_then(|it| it.request.clone());
            self.begin_frame(now, page, &url, request.as_ref(), head);
        }
        let Some(fetch) = self.fetches.get_mut(id) else {
            return;
        };
        let document = self.pages.get_mut(page);
        fetch.reader = document
            .filter(|page| !page.is_sandboxed(&url))
            .and_then(|page| page.reader(&url, head, purpose.clone()));
        // The request for the target would lack the fields of the script.
        let is_by_script = |page: &Page| page.is_by_script(&url);
        let redirected = redirected.filter(|_| !self.pages.get(page).is_some_and(is_by_script));
        // The target may accept one request only, and the user's browser may request it too.
        let is_left = self.config.audience.leaves_redirects() && purpose.kind() == Kind::Document;
        // The browser has no cookie of a push that it has not taken.
        let sets_cookie = head.fields.contains("set-cookie");
        let target = redirect_target(&url, head).filter(|_| !is_left && !sets_cookie);
        let target = target.map(|mut target| {
            target.kind = purpose.kind();
            target.frame = frame_of_redirect(&purpose);
            target
        });
        let target = target.map(|target| (target, redirected.as_ref()));
        self.locate(page, &url, head, target);
    }

    /// Keeps a response for a request that crosses its promise. The trailers of such a response are
    /// not kept, and its length must be known.
    fn begin_repeat(&mut self, now: Instant, id: FetchId, head: &ResponseHead) {
        let length = content_length(&head.fields).ok().flatten();
        let receipt = Receipt::at(self.clock.unix_time(now));
        let is_plain = head.status == 200 && !head.fields.contains("set-cookie");
        let Some(fetch) = self.fetches.get_mut(id).filter(|fetch| !fetch.requested) else {
            return;
        };
        if let (true, Some(length), Some(request)) = (is_plain, length, fetch.request.take()) {
            let begun = RepeatablePush {
                fetch: id,
                hash: fetch.target.hash,
                request,
                asked: fetch.target.asked,
                freshness: ResponsePolicy::of(head).freshness(CacheRules::BROWSER, receipt),
            };
            self.repeats.begin(now, begun, head, length);
        }
    }

    /// Handles a request with an unsafe method, or its response: it may change the resources of its
    /// origin (RFC 9111 section 4.4). No response to an earlier fetch is repeated or referred to.
    pub fn handle_unsafe_request(&mut self) {
        self.repeats.clear();
        for push in self.unreported.values_mut() {
            push.promised = None;
        }
        for fetch in self.fetches.values_mut() {
            fetch.request = None;
        }
    }

    /// Returns the response to a request that has crossed the promise of a push. It needs no
    /// request to the origin.
    pub fn repeat(
        &mut self,
        now: Instant,
        request: &RequestHead,
    ) -> Option<(ResponseHead, Vec<u8>)> {
        let repeated = self.repeats.take(now, url_hash(request), request);
        self.counts.repeated += u64::from(repeated.is_some());
        repeated
    }

    /// Returns the order of an event and the promises on the companion. `added` is the number of
    /// promises that an open companion had got before the event.
    const fn order(&self, added: u64) -> Order {
        if self.companion.added() == added {
            Order::Now
        } else {
            Order::AfterPromises
        }
    }
}

/// Returns the frame to which the target of a redirect belongs. A redirected document is a frame
/// itself.
fn frame_of_redirect(purpose: &Purpose) -> Option<std::sync::Arc<str>> {
    purpose
        .frame()
        .cloned()
        .filter(|_| purpose.kind() != Kind::Document)
}
