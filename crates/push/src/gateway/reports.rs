//! The companion of the session: the reports of the client.

use std::time::Instant;

use super::claims::Claimant;
use super::output::{Output, PromiseStream};
use super::predictor::Predictor;
use super::session::Gateway;
use crate::url;
use crate::wire::{Fate, Report};

impl Gateway {
    /// Opens the companion. If `takes_checks` is true, its client takes promises of HEAD. Returns
    /// false if the session has a companion already.
    pub fn open_companion(&mut self, takes_checks: bool) -> bool {
        if !self.companion.open(takes_checks) {
            return false;
        }
        self.knows_client = true;
        if self.companion.has_promises() {
            self.outputs
                .push_back(Output::Promise(PromiseStream::Companion));
        }
        true
    }

    /// Lets checks be conditional requests, since the client takes their promises. A client in the
    /// same process makes its requests itself, and its checks are HEAD requests.
    pub const fn allow_conditional_checks(&mut self) {
        if !self.config.audience.is_in_one_process() {
            self.companion.allow_conditional_checks();
        }
    }

    /// Takes bytes of the companion's body.
    pub fn handle_reports(
        &mut self,
        now: Instant,
        bytes: &[u8],
        mut predictor: Option<&mut dyn Predictor>,
    ) {
        if let Some(predictor) = predictor.as_deref_mut() {
            self.misses.teach(predictor);
            self.named_referrers.teach(predictor);
        }
        for report in self.companion.read(bytes) {
            match report {
                Report::Holds(url) => self.cache.note_earlier(url),
                Report::Became(fate, url) => {
                    self.handle_fate(now, fate, url, None, predictor.as_deref_mut());
                }
                Report::Claimed { fate, url, cookies } => {
                    let cookies = Some(cookies);
                    self.handle_fate(now, fate, url, cookies, predictor.as_deref_mut());
                }
            }
        }
    }

    /// Closes the companion. Promises that it has not taken wait for the next.
    pub fn close_companion(&mut self) {
        self.companion.close();
    }

    /// Handles the outcome of a push. `cookies` is the hash of the cookies of the request that
    /// takes the push, unless the client knows that they fit.
    fn handle_fate(
        &mut self,
        now: Instant,
        fate: Fate,
        hash: u32,
        cookies: Option<u32>,
        predictor: Option<&mut (dyn Predictor + '_)>,
    ) {
        // The client has the promise, so no request crosses it any more.
        self.repeats.forget(hash);
        if fate == Fate::Used {
            self.misses.forget(hash);
        }
        let Some(push) = self.unreported.remove(&hash) else {
            if fate == Fate::Validated {
                self.confirm_joined(now, hash);
            }
            return;
        };
        self.copies.forget(hash);
        if push.is_next {
            return self.handle_next_fate(now, fate, hash, &push, predictor);
        }
        let claimant = Claimant::of(cookies, push.asked);
        self.note_use(now, hash, &push, fate);
        if push.is_check && matches!(fate, Fate::Used | Fate::Late) {
            return self.prefer_superseded(now, &push, claimant);
        }
        if claimant == Claimant::Stranger && self.refuse_claim(hash, &push) {
            return;
        }
        match fate {
            Fate::Used => self.counts.used += 1,
            Fate::Late => {
                self.counts.late += 1;
                self.misses.join(now, hash, push.asked);
                self.note_joined(hash, push.fetch);
                if claimant == Claimant::User {
                    self.compare_cookies(push.fetch);
                }
                self.raise_for(now, push.fetch, claimant);
                self.outputs.push_back(Output::Raise { fetch: push.fetch });
            }
            Fate::Wasted => self.counts.wasted += 1,
            Fate::Cancelled => self.counts.cancelled += 1,
            Fate::Validated => self.note_validation(now, hash, &push),
        }
        match fate {
            Fate::Used | Fate::Late | Fate::Validated => {
                self.cache.note_pushable(hash);
                self.workers.note_need(hash);
                if fate != Fate::Validated {
                    self.counts.used_bytes += push.bytes;
                }
                self.deliver_new_cookies(now, &push);
                if push.is_likely && fate != Fate::Validated {
                    self.likely.note(true);
                    if !push.has_expired && claimant == Claimant::User {
                        self.note_likely_use(now, &push);
                    }
                }
                self.note_wanted(now, url::authority(&push.url), hash)
            }
            Fate::Wasted | Fate::Cancelled => {
                self.count_waste(&push);
                // A cancelled push may have had no room at the client.
                if push.is_likely && push.begun && fate == Fate::Wasted {
                    self.likely.note(false);
                }
                match push.is_check {
                    true => self.bar_check(hash),
                    false => self.cache.note_refusal(hash),
                }
            }
        }
        // A check that has confirmed no copy tells nothing about the use of the resource.
        if let Some(visits) = &self.visits
            && !(push.is_check && fate == Fate::Cancelled)
        {
            let is_used = matches!(fate, Fate::Used | Fate::Late | Fate::Validated);
            let is_used = is_used && !push.is_error;
            let mut visits = visits.lock();
            visits.note_fate(&push.page_url, &push.url, is_used);
        }
        if !push.is_part
            && let Some(targets) = &mut self.targets
        {
            targets.visits.take_document(hash);
        }
        let Some(predictor) = predictor else {
            return;
        };
        if push.is_by_cors && matches!(fate, Fate::Used | Fate::Late) {
            predictor.note_mode(&push.url, true);
        }
        // An error is of no use to the page, even if the browser has requested it.
        let is_needed = !push.is_error;
        if is_needed && push.is_part && !push.is_check && matches!(fate, Fate::Used | Fate::Late) {
            self.note_transfer(hash, Some(&push.page_url), predictor);
        }
        if fate != Fate::Cancelled && !push.is_check {
            self.note_target_fate(hash, fate != Fate::Wasted, predictor);
        }
        if let (Fate::Used | Fate::Late, Some(lifetime)) = (fate, push.lifetime)
            && is_needed
        {
            predictor.note_lifetime(&push.url, lifetime);
        }
        // A cancelled push shows no need: the client refused it, or could not use it.
        let is_asked = matches!(fate, Fate::Used | Fate::Late | Fate::Validated);
        // A full cache that wastes likely pushes says nothing about their hosts.
        let is_left = fate == Fate::Wasted && push.begun && !push.is_check && !push.is_likely;
        if is_asked || is_left {
            let browser = push.asked.browser();
            predictor.note_asked_host(browser, &push.page_url, &push.url, is_asked);
        }
        // A response that serves a waiting request only is counted by `misses`.
        let shows_need = push.is_part && !push.may_have_copy && !push.needs_waiting;
        if (is_asked && is_needed) || (is_left && shows_need) {
            predictor.note_waste(&push.page_url, &push.url, !is_asked);
        }
        match fate {
            Fate::Used | Fate::Late | Fate::Validated if push.is_error => {}
            Fate::Used | Fate::Late => predictor.used(&push.page_url, &push.url),
            // The browser needed the resource. The origin would have answered 304, so a push of the
            // body was a mistake.
            Fate::Validated => predictor.confirmed(&push.page_url, &push.url),
            Fate::Cancelled if push.is_check => {}
            Fate::Cancelled => predictor.cancelled(&push.url),
            Fate::Wasted => {}
        }
    }
}
