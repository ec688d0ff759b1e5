//! The client hints of the requests for a page's resources.

use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::{Need, split};

use super::client_hints::{Delegation, Hints, may_have_hints};
use super::document::DocumentReader;
use super::session::Gateway;
use super::table::PageId;
use crate::url::is_same_origin;

impl Gateway {
    /// Notes the hints of a request of the browser. The needs that have waited for them are
    /// promised.
    pub(super) fn note_hints(&mut self, request: &RequestHead) {
        let needs = self.hints.note_request(request);
        let mut pages: Vec<_> = needs.iter().map(|(page, _)| *page).collect();
        pages.dedup();
        for (page, need) in needs {
            self.promise_one(page, need);
        }
        self.collect_pages(pages);
    }

    /// Notes the hints for which the head of a document asks.
    pub(super) fn note_asked_hints(&mut self, request: &RequestHead, head: &ResponseHead) {
        self.hints.note_head(request, head);
    }

    /// Adds the client hints of the browser's request for a need. Returns false if they are
    /// unknown.
    pub(super) fn add_hints(&mut self, id: PageId, need: &Need, request: &mut RequestHead) -> bool {
        let Some(page) = self.pages.get(id) else {
            return false;
        };
        let document = page.document_url();
        let Some((scheme, authority, _)) = split(&need.url) else {
            return false;
        };
        if !may_have_hints(request) {
            return true;
        }
        if !is_same_origin(document, &need.url) {
            return !page.delegation.concerns(&format!("{scheme}://{authority}"));
        }
        let hints = self.hints.for_need(page.request(), request, need);
        let frame = need.frame.as_deref();
        let is_of_frame = frame.is_some_and(|frame| !is_same_origin(frame, document));
        match hints {
            Hints::Known(fields) => {
                let is_any = fields.iter().next().is_some();
                for field in fields.iter() {
                    request.fields.push(field.name, field.value);
                }
                !(is_of_frame && is_any)
            }
            Hints::Awaited if !is_of_frame => {
                self.hints.wait(id, need.clone());
                false
            }
            Hints::Awaited | Hints::Varying => false,
        }
    }

    /// Notes the elements of a document that ask for hints or delegate them.
    pub(super) fn note_hint_elements(&mut self, id: PageId, reader: &mut DocumentReader) {
        let elements = reader.take_hint_elements();
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        if elements.delegate {
            page.delegation = Delegation::Anywhere;
        }
        if elements.ask {
            self.hints.note_element(page.request());
        }
    }
}
