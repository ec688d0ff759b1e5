//! The events that show pushes which cost their origin a request for nothing, and the decisions
//! against such pushes.
//!
//! `misses` holds the outcomes for the predictor, `refusals` the origins that refuse requests, and
//! `page_series` the resources of a page that wait for the first response of their kind.

use std::sync::Arc;
use std::time::Instant;

use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::{Kind, Need};

use super::document::Purpose;
use super::fetch::{Fetch, PushStream};
use super::fetch_phase::Released;
use super::page::Page;
use super::page_series::SeriesNumber;
use super::predictor::Predictor;
use super::session::{Gateway, Unreported};
use super::table::{FetchId, PageId};
use super::unknown_cookies::note_foreign_cookies;
use crate::fetch_standard::{is_by_cors, is_navigation};
use crate::refusing_hosts::is_failure;
use crate::url::authority;
use crate::wire::Fate;

impl Gateway {
    /// Notes the status of an origin's response to the browser or to a push. After the last of a
    /// few refusals in a row, the fetches end that have not begun and that no request waits for.
    pub(super) fn note_status(&mut self, now: Instant, authority: &str, status: u16) {
        match is_failure(status) {
            true => self.hosts.note_failure(authority),
            false => self.hosts.note_answer(now, authority),
        }
        if self.config.audience.repeats_refused_requests()
            || !self.refusals.note(now, authority, status)
        {
            return;
        }
        let is_left = |id: &FetchId| {
            let fetch = self.fetches.get(*id);
            fetch.is_some_and(|fetch| {
                fetch.phase.is_waiting()
                    && !fetch.requested
                    && self.refusals.concern(&fetch.target.url)
            })
        };
        let left: Vec<_> = self.fetches.ids().into_iter().filter(is_left).collect();
        for id in left {
            self.withdraw(id);
            self.cancel_fetch(id);
        }
        self.start_fetches(now);
    }

    /// Returns whether the host of a push has lately got more requests than browsers make at once.
    pub(super) fn is_of_burst(&self, id: FetchId) -> bool {
        let fetch = self.fetches.get(id);
        fetch.is_some_and(|fetch| self.hosts.has_burst(authority(&fetch.target.url)))
    }

    /// Returns whether a need waits until its host has answered this session. The host has answered
    /// the session or enough other users with failures only.
    pub(super) fn waits_for_answer(&mut self, id: PageId, need: &Need) -> bool {
        let host = authority(&need.url);
        let page = self.pages.get(id);
        let refuses = |page: &Page| self.hosts.has_failed(host) || page.refusing.contains(host);
        let waits = page.is_some_and(refuses) && !self.hosts.has_answered(host);
        if waits {
            self.hosts.wait(id, need);
        }
        waits
    }

    /// Notes that the response of a push is of no use to the browser. A client that does not report
    /// gets fewer responses, so its outcomes tell nothing about other users.
    pub(super) fn note_useless(&mut self, id: FetchId) {
        if self.companion.client_reports()
            && let Some((page, url)) = self.page_and_resource(id)
        {
            self.misses.note(page, url, true);
        }
    }

    /// Handles the report on a push whose response may serve a later request.
    pub(super) fn note_use(&mut self, now: Instant, hash: u32, push: &Unreported, fate: Fate) {
        if push.is_check || push.needs_waiting {
            return;
        }
        let page = Arc::clone(&push.page_url);
        match fate {
            Fate::Used | Fate::Late => self.misses.note(page, hash, false),
            Fate::Wasted | Fate::Cancelled if push.begun => {
                self.misses.note_dropped(now, page, hash);
            }
            Fate::Wasted | Fate::Cancelled | Fate::Validated => {}
        }
    }

    /// Notes a request of the browser while a push of its resource is under way.
    pub(super) fn note_double_request(&mut self, now: Instant, hash: u32) {
        let push = self.unreported.get(&hash);
        if push.is_some_and(|push| push.begun && !push.is_check && !push.is_next) {
            self.misses.note_double(now, hash);
        }
    }

    /// Notes the mode of a push, and whether the origin has its resource. The response to HEAD may
    /// differ from that to the browser's request.
    pub(super) fn note_presence(
        &mut self,
        id: FetchId,
        head: &ResponseHead,
        mut predictor: Option<&mut (dyn Predictor + '_)>,
    ) {
        let Some(fetch) = self.fetches.get(id).filter(|fetch| !fetch.is_check) else {
            return;
        };
        if let Some(push) = self.unreported.get_mut(&fetch.target.hash)
            && push.fetch == id
        {
            let request = fetch.request.as_ref();
            push.is_by_cors = request.and_then(is_by_cors) == Some(true);
            push.is_error = push.is_part && head.status >= 400;
        }
        let url = &fetch.target.url;
        if head.fields.contains("set-cookie") {
            self.hosts.note_set_cookie(authority(url));
        }
        let is_part = !fetch.request.as_ref().is_some_and(is_navigation)
            || matches!(fetch.purpose, Purpose::Frame(_));
        if let (Some(predictor), Some(request)) = (predictor.as_deref_mut(), &fetch.request)
            && is_part
        {
            let page = self.pages.get(fetch.page).map(Page::document_url);
            note_foreign_cookies(predictor, (url, request), head, page, false);
        }
        match (head.status, predictor) {
            (200, Some(predictor)) => predictor.note_found(url),
            (404 | 410, Some(predictor)) => {
                let has_cookies = |request: &RequestHead| request.fields.contains("cookie");
                // After a request with an unsafe method, the request of the push is forgotten.
                let is_plain = fetch.request.as_ref().is_some_and(|it| !has_cookies(it));
                predictor.note_gone(url, is_plain);
            }
            _ => {}
        }
    }

    /// Watches for a request of the browser that shows that a push has missed.
    pub(super) fn watch_push(&mut self, now: Instant, id: FetchId) {
        if let Some((page, url)) = self.page_and_resource(id) {
            let fetch = self.fetches.get(id).filter(|fetch| fetch.requested);
            let joined = fetch.map(|fetch| fetch.target.asked);
            self.misses.watch(now, page, url, joined);
        }
    }

    /// Returns the URL of the page for which a push is made, and the hash of the push's own URL.
    /// Returns `None` for checks and for documents that may follow a page.
    fn page_and_resource(&self, id: FetchId) -> Option<(Arc<str>, u32)> {
        let is_resource = |fetch: &&Fetch| !fetch.is_check && !fetch.is_next;
        let fetch = self.fetches.get(id).filter(is_resource)?;
        let page = self.pages.get(fetch.page)?;
        Some((Arc::clone(page.url()), fetch.target.hash))
    }

    /// Returns the series of a resource. Early requests that follow the cookies wait for no other
    /// response than that of a counter.
    fn series_of(&self, url: &str, kind: Kind) -> Option<SeriesNumber> {
        match self.config.audience.follows_cookies() {
            true => SeriesNumber::of_counter(url, kind),
            false => SeriesNumber::of(url, kind),
        }
    }

    /// Returns whether the first response of a need's series has shown that the others are left to
    /// the browser.
    pub(super) fn is_left_by_series(&self, page: PageId, need: &Need) -> bool {
        let series = self.series_of(&need.url, need.kind);
        let page = self.pages.get(page);
        matches!((page, series), (Some(page), Some(series)) if page.series.is_left(series))
    }

    /// Lets a new fetch wait if enough of its series are under way. A client without a companion
    /// does not report that a request waits for it.
    pub(super) fn wait_for_series(&mut self, page: PageId, id: FetchId, need: &Need) {
        if !self.companion.client_reports() {
            return;
        }
        let series = self.series_of(&need.url, need.kind);
        let (Some(page), Some(fetch)) = (self.pages.get_mut(page), self.fetches.get_mut(id)) else {
            return;
        };
        if let Some(series) = series
            && fetch.phase.begins_unclaimed()
            && page.series.add(series, id)
        {
            fetch.phase.wait_for_series();
        }
    }

    /// Handles a response of a series. The fetches that wait for it begin if caches may keep it
    /// (`is_kept`). Those of counters begin if it changes no cookie instead. Otherwise the fetches
    /// that no request waits for end.
    pub(super) fn decide_series(
        &mut self,
        now: Instant,
        id: FetchId,
        is_kept: bool,
        changes_cookies: bool,
    ) {
        let Some(fetch) = self.fetches.get(id) else {
            return;
        };
        let series = self.series_of(&fetch.target.url, fetch.purpose.kind());
        let may_begin = match series {
            Some(SeriesNumber::Counters) => !changes_cookies,
            _ => is_kept,
        };
        let page = self.pages.get_mut(fetch.page);
        let (Some(series), Some(page)) = (series, page) else {
            return;
        };
        for id in page.series.decide(series, may_begin) {
            let waits = |fetch: &Fetch| fetch.phase.waits_for_series();
            if !self.fetches.get(id).is_some_and(waits) {
                continue;
            }
            if may_begin {
                self.release_hold(now, id);
            } else {
                self.withdraw(id);
                self.cancel_fetch(id);
            }
        }
    }

    /// Handles the end of a fetch that has brought no response. Another one of its series takes its
    /// place, and begins when the caller starts fetches.
    pub(super) fn leave_series(&mut self, page: PageId, id: FetchId, target: &str, kind: Kind) {
        let Some(series) = self.series_of(target, kind) else {
            return;
        };
        let mut left = Some(id);
        while let (Some(id), Some(page)) = (left, self.pages.get_mut(page)) {
            left = page.series.leave(series, id);
            if let Some(id) = left
                && let Some(fetch) = self.fetches.get_mut(id)
                && fetch.phase.waits_for_series()
            {
                // Otherwise it waits for its turn once its promise has been sent.
                if fetch.phase.release() == Released::Fetch && fetch.stream == PushStream::Open {
                    self.queue.wait(fetch.turn, id);
                }
                return;
            }
        }
    }
}
