//! The pages that responses begin: whether resources are pushed with them, and which ones first.

use std::sync::Arc;
use std::time::Instant;

use tandem_http::cache::{RequestPolicy, validation};
use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::Need;

use super::claims::KnownResources;
use super::document::DocumentReader;
use super::page_view::PageView;
use super::predictor::Learned;
use super::returning::Returning;
use super::session::Gateway;
use super::table::{PageId, ResponseId};
use super::visitors::{has_no_sign, is_first_visit};
use crate::cookies::Cookies;
use crate::fetch_standard::{
    has_metadata, is_navigation, is_of_tool, is_prefetch, is_repeatable, is_through_worker,
    referrer_after_redirect,
};
use crate::response_rules::redirect_target;
use crate::url::is_same_origin;
use crate::wire::{PUSH_FIELD, Treatment};

/// The needs of a page that its head and other users name.
pub(super) struct Needs {
    pub(super) named: Vec<Need>,
    pub(super) learned: Learned,
    /// The resources whose treatment depends on the cache of a returning browser.
    pub(super) returning: Returning,
}

impl Gateway {
    /// Creates the page of a response, if there is anything to push with it. A prefetched document
    /// is no page: the user may never open it, and looks at another one.
    pub(super) fn begin_page(
        &mut self,
        now: Instant,
        id: ResponseId,
        url: Arc<str>,
        request: Arc<RequestHead>,
        head: &mut ResponseHead,
        needs: Needs,
    ) {
        if is_prefetch(&request) {
            return;
        }
        let Needs {
            named,
            mut learned,
            returning,
        } = needs;
        let readable = head.status == 200 && DocumentReader::is_readable(head);
        // One user's browser requests the target of its own request at once, as a page of its own.
        let is_left = self.config.audience.leaves_redirects() && is_navigation(&request);
        let target = redirect_target(&url, head).filter(|target| {
            let is_predictable = self.has_looked_up(&url, &target.url);
            let knows_cookies = || self.knows_cookies_of_target(now, &request, head, &target.url);
            !is_left && (is_predictable || knows_cookies())
        });
        let is_page = readable && DocumentReader::is_html(head);
        let is_bodiless = head.status == 304 || target.is_some();
        // A script that asks for HTML opens no page, nor does a request for a part of a page. The
        // frames of a page are parts of it.
        let is_navigation = is_navigation(&request);
        let is_part = || self.pages.values().any(|page| page.has_part(&url));
        let is_document = (is_of_tool(&request) && !is_part()) || self.is_frame(now, &request);
        let may_be_page = is_navigation || (is_page && is_document);
        if (is_page || is_bodiless)
            && may_be_page
            && let Some(treatment) = self.treatment_of(now, id, &url, &request)
        {
            head.fields.set(PUSH_FIELD, treatment.as_str());
        }
        let refuses = self.refuses_pushes(&request);
        let is_begun = self.responses.get(id).is_some_and(|it| it.page.is_some());
        let is_confirmed = head.status == 304 && is_begun;
        let nothing = !(readable || is_confirmed)
            && named.is_empty()
            && learned.needs.is_empty()
            && returning.copies.is_empty()
            && target.is_none();
        if self.is_held_out() || refuses || nothing {
            return self.end_revisit(now, id);
        }
        let cookies = self.cookies_after(now, &request, head);
        let again = self.end_old_revisit(now, id, &url, &cookies);
        if cookies == Cookies::Unknown {
            return;
        }
        let begun = self.responses.get(id).and_then(|response| response.page);
        let page = match begun {
            Some(page) => page,
            None => {
                let page = self.new_page(id, Arc::clone(&request), Arc::clone(&url));
                self.pages.insert(page)
            }
        };
        if let Some(page) = self.pages.get_mut(page) {
            page.set_possible(std::mem::take(&mut learned.possible));
            page.useless = std::mem::take(&mut learned.useless);
            page.with_cookies = returning.with_cookies;
            page.with_cookies
                .extend(std::mem::take(&mut learned.with_cookies));
            page.refusing = std::mem::take(&mut learned.refusing);
            page.image_accept = page
                .image_accept
                .take()
                .or_else(|| learned.image_accept.take());
            page.asked_hosts = std::mem::take(&mut learned.hosts);
            let changes = cookies.into_changes();
            self.cookies.note_page(&url, &request, changes.as_ref());
            page.set_cookies(changes);
            // A browser that shows no earlier visit is likely to be new. All its claims count.
            page.known_resources = match has_no_sign(&request) && !is_through_worker(&request) {
                true => KnownResources::of_new_visit(std::mem::take(&mut learned.likely)),
                false => KnownResources::new(self.clock.unix_time(now), returning.known),
            };
        }
        if let Some(response) = self.responses.get_mut(id) {
            response.page = Some(page);
            response.reader = readable
                .then(|| self.pages.get_mut(page)?.reader_of_page(head))
                .flatten();
        }
        self.locate(page, &url, head, target.map(|need| (need, Some(&*request))));
        if let Some(page) = self.pages.get_mut(page) {
            page.unkept = returning.unkept;
        }
        let is_first = is_first_visit(&request, head);
        self.watch_copies(page, returning.copies, is_first);
        if self.is_visit(id) {
            self.begin_own_visit(page, head);
        }
        self.promise_last_visit(page, again);
        self.promise(page, named);
        self.promise_learned(page, learned);
        debug_assert!(self.pages.get(page).is_some(), "its stream is open");
    }

    /// Returns true if nothing may be pushed with the response to this request. A browser that
    /// reloads a page requests each resource again. A browser that validates a page has its
    /// resources, and takes pushes only if the gateway can hold their bodies back.
    pub(super) fn refuses_pushes(&self, request: &RequestHead) -> bool {
        let policy = RequestPolicy::of(&request.fields);
        let may_hold = is_navigation(request) && self.companion.client_reports();
        let is_conditional = validation::is_conditional(&request.fields);
        policy.control.no_cache || (is_conditional && (policy.wants_validation() || !may_hold))
    }

    /// Handles the head of the response at `url`. The target of a redirect is promised if the
    /// request that was redirected is known and can be repeated. The target must have the same
    /// origin, or earlier visits must have shown its request (`known_targets`): cookies of other
    /// origins are unknown. A request that lacks a field can spend a URL that is good for one
    /// request. The first other head of the page lets the needs of other users be promised.
    pub(super) fn locate(
        &mut self,
        page: PageId,
        url: &str,
        head: &ResponseHead,
        target: Option<(Need, Option<&RequestHead>)>,
    ) {
        let Some(record) = self.pages.get_mut(page) else {
            return;
        };
        match target {
            Some((mut target, redirected)) => {
                record.redirect(url, &target);
                let may_repeat = |it: &&RequestHead| is_repeatable(&it.fields);
                if let Some(redirected) = redirected.filter(may_repeat)
                    && let Some((source, policy)) = referrer_after_redirect(redirected, head)
                    && record.follows_redirect(url, &target.url)
                {
                    (target.via, target.referrer) = (source, Some(policy));
                    if is_same_origin(url, &target.url) {
                        if record.repeat_fields(redirected, &target) {
                            self.promise(page, vec![target]);
                        }
                    } else {
                        if !has_metadata(&redirected.fields) {
                            record.repeat_fields(redirected, &target);
                        }
                        self.note_other_origin(page, url, target);
                    }
                }
            }
            None if record.settle(url, head) => {
                self.govern(page, url, head);
                self.judge_visit(page, url, head);
                self.promise_expected(page);
            }
            None => {}
        }
    }

    /// Returns the treatment of a page, which may be decided already.
    pub(super) fn treatment_of(
        &mut self,
        now: Instant,
        id: ResponseId,
        url: &str,
        request: &RequestHead,
    ) -> Option<Treatment> {
        let decided = self
            .responses
            .get_mut(id)
            .and_then(|response| response.treatment.take());
        decided.or_else(|| self.treat(now, url, request, &[]))
    }

    /// Decides whether resources are pushed with a new page. The browser leaves the previous page
    /// for it. Returns `None` for a frame, which has the treatment of its page. Fetches of `kept`
    /// resources are not given up.
    pub(super) fn treat(
        &mut self,
        now: Instant,
        url: &str,
        request: &RequestHead,
        kept: &[Need],
    ) -> Option<Treatment> {
        if self.is_frame(now, request)
            && let Some(view) = &mut self.view
        {
            view.add_frame(url);
            return None;
        }
        self.leave_pages(request, kept);
        let treatment = if self.random.chance(self.config.hold_out) {
            self.counts.pages_held_out += 1;
            Treatment::HeldOut
        } else {
            self.counts.pages_pushed += 1;
            Treatment::Pushed
        };
        let waiting = self.hosts.begin_page();
        self.collect_pages(waiting);
        self.view = Some(Box::new(PageView::new(now, url, treatment)));
        Some(treatment)
    }

    /// Returns whether the document that a request asks for is a part of the last page.
    pub(super) fn is_frame(&self, now: Instant, request: &RequestHead) -> bool {
        let (Some(view), Some(referrer)) = (&self.view, request.fields.get("referer")) else {
            return false;
        };
        // Fetch Metadata distinguishes a frame from a link. Without it, a request so soon after the
        // page is taken for a frame.
        request.fields.get("sec-fetch-dest") != Some(b"document") && view.causes(now, referrer)
    }

    /// Returns whether the last page gets no pushes.
    pub(super) fn is_held_out(&self) -> bool {
        self.view
            .as_ref()
            .is_some_and(|view| view.treatment() == Treatment::HeldOut)
    }
}
