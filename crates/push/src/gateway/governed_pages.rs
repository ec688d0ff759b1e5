//! The events that show the policies of documents, and the pages that they govern.
//!
//! A page has the policies of its last visit until its head arrives. A style sheet or script that
//! the browser requests has those of the document that its `Referer` names. If `Referer` names an
//! origin only, the policies of all its documents hold. Without `Referer`, those of all documents
//! hold.
//!
//! With `used_only`, the session repeats only requests that the browser has made itself under the
//! policies of the page. They need no check here.

use std::sync::Arc;

use tandem_http::ResponseHead;

use super::document::DocumentReader;
use super::session::Gateway;
use super::table::PageId;
use crate::fetch_standard::{CONTENT_SECURITY_POLICY, ContentSecurity, is_navigation};

impl Gateway {
    /// Notes the policies in the head of a response at `url`, if it is a document. A 304 keeps the
    /// policies of the stored document.
    pub(super) fn note_content_policies(&mut self, url: &str, head: &ResponseHead) {
        if self.config.used_only {
            return;
        }
        let policies = ContentSecurity::of(url, head);
        match head.status {
            200 if DocumentReader::is_html(head) => {
                self.content_policies.set(url, policies.into());
            }
            304 if head.fields.contains(CONTENT_SECURITY_POLICY) => {
                let mut all = self.content_policies.of(url).cloned().unwrap_or_default();
                Arc::make_mut(&mut all).merge(&policies);
                self.content_policies.set(url, all);
            }
            _ => {}
        }
    }

    /// Notes the policies of a document in a frame, whose head a push has brought.
    pub(super) fn note_frame_policies(&mut self, id: PageId, url: &str, head: &ResponseHead) {
        self.note_content_policies(url, head);
        if head.status == 200
            && let Some(page) = self.pages.get_mut(id)
            && let Some(policies) = self.content_policies.of(url)
        {
            page.set_frame_policies(url, Arc::clone(policies));
        }
    }

    /// Adds policies of `meta` elements to those of a page, or of a frame in it.
    pub(super) fn add_meta_policies(&mut self, id: PageId, frame: Option<&str>, found: &[String]) {
        let Some(page) = self.pages.get_mut(id).filter(|_| !found.is_empty()) else {
            return;
        };
        let url = frame.unwrap_or_else(|| page.location()).to_owned();
        let mut policies = self.content_policies.of(&url).cloned().unwrap_or_default();
        for list in found {
            Arc::make_mut(&mut policies).add_meta(&url, list);
        }
        self.content_policies.set(&url, Arc::clone(&policies));
        match frame {
            Some(frame) => page.set_frame_policies(frame, policies),
            None => page.set_content_policies(policies),
        }
    }

    /// Sets the policies of a page at its first head, which is that of the response at `url`.
    pub(super) fn govern(&mut self, id: PageId, url: &str, head: &ResponseHead) {
        let Some(page) = self.pages.get_mut(id).filter(|_| !self.config.used_only) else {
            return;
        };
        let is_document = is_navigation(page.request()) || DocumentReader::is_html(head);
        let policies = match (is_document, page.initiator()) {
            (true, _) => self.content_policies.of(url).cloned(),
            (false, Some(referrer)) => self.content_policies.of_referrer(referrer),
            (false, None) => self.content_policies.of_all(|_| true),
        };
        let policies = policies.unwrap_or_default();
        page.set_content_policies(Arc::clone(&policies));
        if !is_document && !policies.is_empty() {
            // A style sheet may be the referrer of others.
            self.content_policies.set(url, policies);
        }
    }
}
