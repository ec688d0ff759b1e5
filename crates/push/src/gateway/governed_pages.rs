//! The events that show the policies of documents, and the pages that they govern.
//!
//! A page has the policies of its last visit until its head arrives. A style sheet or script that
//! the browser requests has those of the document that its `Referer` names. If `Referer` names only
//! an origin, or an unknown URL, the policies of all documents at that origin hold, and those of
//! the last page. Without `Referer`, those of all documents hold. The policies are unknown for a
//! document that the browser has shown from its cache since before the session.
//!
//! With `Audience::OwnRequestsOnly`, the session repeats only requests that the browser has made
//! itself under the policies of the page. They need no check here.

use std::sync::Arc;
use std::time::Instant;

use tandem_http::message::media_type_essence;
use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::Need;

use super::document::DocumentReader;
use super::page_view::PageView;
use super::session::Gateway;
use super::table::PageId;
use crate::fetch_standard::{ContentSecurity, forbids_framing, is_framed, is_navigation};
use crate::wire::url_hash_of;

impl Gateway {
    /// Notes the policies in the head of the response to a browser's request for `url`, if it is a
    /// document. Browsers show documents of all statuses.
    pub(super) fn note_content_policies(
        &mut self,
        now: Instant,
        url: &str,
        request: &RequestHead,
        head: &ResponseHead,
    ) {
        if !self.config.audience.applies_policies() {
            return;
        }
        let is_navigation = is_navigation(request);
        let Some(policies) = self.policies_of(url, head, is_navigation) else {
            return;
        };
        match is_navigation && !self.is_frame(now, request) {
            true => self.content_policies.set_document(url, policies),
            false => self.content_policies.set_frame(url, policies),
        }
    }

    /// Returns the policies of a document by the head of its response. Returns `None` if the
    /// response is no document, or if the document keeps the known policies. A 304 keeps those of
    /// the stored document. After a response without a document, or with an attachment, the browser
    /// still shows the last document.
    fn policies_of(
        &self,
        url: &str,
        head: &ResponseHead,
        is_navigation: bool,
    ) -> Option<Arc<ContentSecurity>> {
        if matches!(head.status, 204 | 205) {
            return None;
        }
        let policies = ContentSecurity::of(url, head);
        if head.status == 304 || is_attachment(head) {
            if policies.is_empty() {
                return None;
            }
            let mut all = self.content_policies.of_each(url).unwrap_or_default();
            Arc::make_mut(&mut all).merge(&policies);
            return Some(all);
        }
        let leads_on =
            matches!(head.status, 301..=303 | 307 | 308) && head.fields.contains("location");
        let is_document = is_navigation || DocumentReader::is_html(head);
        (is_document && !leads_on).then(|| policies.into())
    }

    /// Notes the policies of a document whose head a push has brought: the page behind a redirect,
    /// the next page, or a frame.
    pub(super) fn note_pushed_policies(&mut self, id: PageId, url: &str, head: &ResponseHead) {
        if !self.config.audience.applies_policies() {
            return;
        }
        let Some(policies) = self.policies_of(url, head, false) else {
            return;
        };
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        if page.leads_on || page.location() == url {
            return self.content_policies.set_document(url, policies);
        }
        if forbids_framing(head) {
            page.set_frame_policies(url, ContentSecurity::closed().into());
        } else if !policies.is_empty() || page.frame_policies(url).is_some() {
            page.set_frame_policies(url, Arc::clone(&policies));
        }
        self.content_policies.set_frame(url, policies);
    }

    /// Gives a page the known policies of the frames that needs of its last visit belong to. They
    /// hold until the heads of the frames arrive.
    pub(super) fn know_frames(&mut self, id: PageId, needs: &[Need]) {
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        for frame in needs.iter().filter_map(|need| need.frame.as_deref()) {
            if page.frame_policies(frame).is_none()
                && let Some(policies) = self.content_policies.of(frame)
            {
                page.set_frame_policies(frame, policies);
            }
        }
    }

    /// Adds policies of `meta` elements to those of a page, or of a frame in it.
    pub(super) fn add_meta_policies(&mut self, id: PageId, frame: Option<&str>, found: &[String]) {
        if found.is_empty() || !self.config.audience.applies_policies() {
            return;
        }
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        let url = frame.unwrap_or_else(|| page.location()).to_owned();
        let mut policies = match frame {
            Some(frame) if page.is_closed_frame(frame) => return,
            Some(frame) => self.content_policies.of(frame).unwrap_or_default(),
            None => Arc::clone(page.content_policies()),
        };
        for list in found {
            Arc::make_mut(&mut policies).add_meta(&url, list);
        }
        match frame {
            Some(frame) => page.set_frame_policies(frame, Arc::clone(&policies)),
            None => page.set_content_policies(Arc::clone(&policies)),
        }
        self.content_policies.update(&url, policies);
    }

    /// Returns the page of the push that the referrer of a request names, until the client has
    /// reported that push.
    pub(super) fn page_of_referrer(&self, request: &RequestHead) -> Option<Arc<str>> {
        if self.unreported.is_empty() {
            return None;
        }
        let referrer = std::str::from_utf8(request.fields.get("referer")?).ok()?;
        let push = self.unreported.get(&url_hash_of(referrer)?)?;
        (*push.url == *referrer).then(|| Arc::clone(&push.page_url))
    }

    /// Sets the policies of a page at its first head, which is that of the response at `url`.
    pub(super) fn govern(&mut self, id: PageId, url: &str, head: &ResponseHead) {
        let applies_policies = self.config.audience.applies_policies();
        let Some(page) = self.pages.get(id).filter(|_| applies_policies) else {
            return;
        };
        let is_document = is_navigation(page.request()) || DocumentReader::is_html(head);
        let policies = match (is_document, page.initiator()) {
            (true, _) => self.content_policies.of(url),
            (false, Some(referrer)) => {
                let viewed = self.view.as_deref().map(PageView::url);
                let of_push = self.page_of_referrer(page.request());
                let pages = viewed.into_iter().chain(of_push.as_deref());
                self.content_policies.of_referrer(referrer, pages)
            }
            (false, None) => self.content_policies.of_all(),
        };
        let policies = policies.unwrap_or_default();
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        if is_document && is_framed(page.request()) && forbids_framing(head) {
            return page.set_content_policies(ContentSecurity::closed().into());
        }
        page.set_content_policies(Arc::clone(&policies));
        if !is_document {
            // A style sheet may be the referrer of others.
            self.content_policies.set_subresource(url, policies);
        }
    }
}

/// Returns whether browsers save a response, and do not show it.
fn is_attachment(head: &ResponseHead) -> bool {
    let disposition = head.fields.get("content-disposition").unwrap_or_default();
    media_type_essence(disposition).eq_ignore_ascii_case(b"attachment")
}
