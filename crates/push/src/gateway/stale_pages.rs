//! Stale pages: the gateway's cache holds the page, and asks the origin whether it has changed.
//! Most pages still need the same resources then. Those that the cache holds fresh are promised
//! during the validation, because they need no origin.

use std::time::Instant;

use tandem_http::cache::validation;
use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::{LAZY, Need};

use super::claims::{KnownSince, Trust};
use super::document::DocumentReader;
use super::output::Interest;
use super::session::Gateway;
use super::table::{PageId, ResponseId};
use super::visitors::is_first_visit;
use crate::cookies::Cookies;
use crate::fetch_standard::{is_navigation, is_prefetch, referrer_policy};
use crate::site::site_of;
use crate::url::{authority, request_url};

/// The bytes of a stale page after which no further piece is read. The validated page is read
/// later.
const MAX_READ: usize = 256 << 10;

impl Gateway {
    /// Handles a stale page that is validated before it serves a request. Promises resources that
    /// the page names, if they are of its site and `is_fresh` holds for their requests. Returns the
    /// events of the response that matter.
    pub fn handle_stale_page(
        &mut self,
        now: Instant,
        id: ResponseId,
        head: &ResponseHead,
        body: impl Iterator<Item: AsRef<[u8]>>,
        is_fresh: &dyn Fn(&RequestHead) -> bool,
    ) -> Interest {
        if let Some(page) = self.begin_stale_page(now, id, head) {
            for need in self.needs_of_stale_page(page, head, body) {
                if self.is_fresh_need(page, &need, is_fresh) {
                    self.promise_one(page, need);
                }
            }
        }
        self.interest_in(id)
    }

    /// Creates the page of a response, if the request is that of a new visitor for a whole page.
    fn begin_stale_page(
        &mut self,
        now: Instant,
        id: ResponseId,
        head: &ResponseHead,
    ) -> Option<PageId> {
        let response = self.responses.get(id)?;
        let is_undecided = response.page.is_none() && response.treatment.is_none();
        let request = response.request.clone()?;
        let is_document = head.status == 200 && DocumentReader::is_html(head);
        let is_off = self.closed || !self.config.audience.trusts_page_names();
        if is_off || !response.takes_pushes || !is_undecided || !is_document {
            return None;
        }
        let is_plain = is_navigation(&request)
            && !is_prefetch(&request)
            && !validation::is_conditional(&request.fields)
            && !self.refuses_pushes(&request)
            && !self.is_frame(now, &request);
        let cookies = self.changes_of(now, &request, head);
        let follows_cookies = self.config.audience.follows_cookies();
        let is_known = cookies == Cookies::Unchanged || !follows_cookies;
        if !is_plain || !is_known {
            return None;
        }
        let url = request_url(&request)?;
        // A returning browser may have the resources.
        let site = site_of(authority(&url));
        let oldest = KnownSince::ALWAYS;
        let is_first_visit = || is_first_visit(&request, head);
        if self.visitors.trust(site, oldest, is_first_visit) != Trust::Full {
            return None;
        }
        let treatment = self.treat(now, &url, &request, &[]);
        if let Some(response) = self.responses.get_mut(id) {
            response.treatment = treatment;
        }
        if self.is_held_out() {
            return None;
        }
        self.note_content_policies(now, &url, &request, head);
        let mut page = self.new_page(id, request, url.into());
        page.set_policy(referrer_policy(head).unwrap_or_default());
        page.set_cookies(cookies.into_changes());
        let page = self.pages.insert(page);
        if let Some(response) = self.responses.get_mut(id) {
            response.page = Some(page);
        }
        Some(page)
    }

    /// Returns the needs that a stale page names, the most urgent first.
    fn needs_of_stale_page(
        &mut self,
        id: PageId,
        head: &ResponseHead,
        body: impl Iterator<Item: AsRef<[u8]>>,
    ) -> Vec<Need> {
        let Some(page) = self.pages.get_mut(id) else {
            return Vec::new();
        };
        let Some(mut reader) = page.reader_of_page(head) else {
            return Vec::new();
        };
        let reserved = reader.limit();
        for piece in body {
            if !reader.read(piece.as_ref()) || reserved - reader.unread() > MAX_READ {
                break;
            }
        }
        reader.finish();
        if let Some(policy) = reader.policy() {
            page.set_policy(policy);
        }
        page.return_bytes(reserved);
        let mut needs = reader.take_needs();
        needs.sort_by_key(|need| need.urgency);
        self.add_meta_policies(id, None, &reader.take_content_policies());
        needs
    }

    /// Returns whether a need of the page's own site can be served without its origin.
    fn is_fresh_need(
        &mut self,
        page: PageId,
        need: &Need,
        is_fresh: &dyn Fn(&RequestHead) -> bool,
    ) -> bool {
        let own_origin_only = self.config.own_origin_only;
        let leaves_redirects = self.config.audience.leaves_redirects();
        let Some(page) = self.pages.get_mut(page) else {
            return false;
        };
        let is_wanted = need.urgency < LAZY
            && page.follows(need, leaves_redirects)
            && !page.refuses(need)
            && page.is_same_site(&need.url);
        let request = is_wanted.then(|| page.request_for(need, own_origin_only));
        request.flatten().is_some_and(|request| is_fresh(&request))
    }
}
