//! The second visit of one user to a page: the resources that the first one needed are requested
//! together with the page.
//!
//! A conditional request for the page counts as a visit, but a reload does not. Of a resource that
//! the browser must validate, only the head is requested (`copies`).

use std::sync::Arc;
use std::time::Instant;

use tandem_http::RequestHead;

use super::page::Page;
use super::revisits::Revisits;
use super::saved_visits::VisitsError;
use super::session::Gateway;
use super::table::ResponseId;
use crate::fetch_standard::is_navigation;
use crate::response_rules::KeptCopy;
use crate::url::request_url;
use crate::wire::url_hash_of;

impl Gateway {
    /// Takes over the visits that another session has saved, as [`Self::save_visits`] wrote them.
    ///
    /// # Errors
    /// Returns the reason for which the text cannot be read.
    pub fn recall_visits(&mut self, text: &str) -> Result<(), VisitsError> {
        self.revisits = Revisits::read(text)?;
        Ok(())
    }

    /// Returns the visits as a text, if they have changed since the last call.
    pub fn save_visits(&mut self) -> Option<String> {
        let has_changed = self.revisits.take_change();
        has_changed.then(|| self.revisits.to_text())
    }

    /// Promises the resources that the last visit to a page needed, before the page itself has
    /// arrived.
    pub(super) fn begin_revisit(
        &mut self,
        now: Instant,
        id: ResponseId,
        request: &Arc<RequestHead>,
    ) {
        let is_plain =
            is_navigation(request) && !self.refuses_pushes(request) && !self.is_frame(now, request);
        let Some(url) = request_url(request).filter(|_| is_plain && !self.closed) else {
            return;
        };
        let Some((policy, needs)) = self.revisits.of(&url) else {
            return;
        };
        let unix_time = self.clock.unix_time(now);
        for (need, copy) in &needs {
            if let (Some(hash), Some(copy)) = (url_hash_of(&need.url), copy) {
                self.cache.note_answer(hash, copy.reuse(unix_time));
            }
        }
        let needs: Vec<_> = needs.into_iter().map(|(need, _)| need).collect();
        let treatment = self.treat(now, &url, request, &needs);
        if let Some(response) = self.responses.get_mut(id) {
            response.treatment = treatment;
        }
        if self.is_held_out() {
            return;
        }
        let page = self
            .pages
            .insert(Page::new(id, Arc::clone(request), url.into()));
        self.adopt(page, &needs);
        if let Some(page) = self.pages.get_mut(page) {
            page.set_policy(policy);
        }
        if let Some(response) = self.responses.get_mut(id) {
            response.page = Some(page);
        }
        self.promise_again(page, needs);
    }

    /// Notes that the browser itself requests a resource of the last page.
    pub(super) fn note_own_request(&mut self, request: &RequestHead) {
        let view = self.view.as_ref().filter(|_| self.config.has_one_user);
        if let Some(view) = view
            && !is_navigation(request)
            && let Some(url) = request_url(request)
        {
            self.revisits.note_use(view.url(), &url, true);
        }
    }

    /// Notes the copy that the browser's cache can have of a response to its own request.
    pub(super) fn note_own_copy(&mut self, request: &RequestHead, copy: Option<KeptCopy>) {
        let view = self.view.as_ref().filter(|_| self.config.has_one_user);
        if let Some(view) = view
            && let Some(url) = request_url(request)
        {
            self.revisits.note_copy(view.url(), &url, copy);
        }
    }

    /// Gives up the promises of a response that is not the expected page.
    pub(super) fn end_revisit(&mut self, now: Instant, id: ResponseId) {
        let page = self
            .responses
            .get_mut(id)
            .and_then(|response| response.page.take());
        if let Some(page) = page {
            self.abandon(now, page);
        }
    }
}
