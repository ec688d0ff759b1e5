//! The transfers of a session's visits to pages, at a gateway with one user (see
//! [`transfers`](crate::transfers)).
//!
//! A visit begins with the request of a document that shows no earlier visit. Redirects belong to
//! it, and so do the documents to which they lead. A resource counts as transferred if a request
//! for it is answered with a body, or if the browser takes its push. A document whose request shows
//! an earlier visit begins a visit too, but the transfers of that visit do not count.

use std::collections::VecDeque;
use std::sync::Arc;

use tandem_http::{RequestHead, ResponseHead};

use super::predictor::Predictor;
use super::visitors::has_no_sign;
use crate::response_rules::redirect_target;
use crate::transfers::KnownTransfers;
use crate::wire::{RequestHashes, url_hash_of};

/// The largest number of visits of a session, those that do not count included. The oldest makes
/// way.
const MAX_VISITS: usize = 16;

/// The largest number of documents of a visit.
const MAX_DOCUMENTS: usize = 20;

/// The last visits of a session, the latest first.
#[derive(Default)]
pub(super) struct VisitTransfers(VecDeque<Visit>);

struct Visit {
    /// The URL that the browser requested first.
    page: Arc<str>,
    browser: u32,
    /// `None` if its transfers do not count.
    number: Option<u32>,
    /// The URL hashes of that page and of the targets of its redirects.
    documents: Vec<u32>,
    /// The target of the last redirect, unless the browser has requested it.
    awaited: Option<u32>,
    /// The knowledge of the visits before this one.
    known: KnownTransfers,
}

impl Visit {
    /// Notes the target of a redirect. Behind a document that does not count, the target's own
    /// request decides whether it begins a visit.
    fn redirect(&mut self, target: u32) {
        self.awaited = self.number.map(|_| target);
        if self.documents.len() < MAX_DOCUMENTS {
            self.documents.push(target);
        }
    }
}

/// Returns the URL hash of the target of a redirect.
fn target_of(url: &str, head: &ResponseHead) -> Option<u32> {
    url_hash_of(&redirect_target(url, head)?.url)
}

impl VisitTransfers {
    /// Handles the head of a document that the browser has requested, and that is no frame. Returns
    /// the knowledge of earlier visits to its page.
    pub(super) fn visit(
        &mut self,
        url: &Arc<str>,
        hash: u32,
        request: &RequestHead,
        head: &ResponseHead,
        predictor: &mut dyn Predictor,
    ) -> KnownTransfers {
        let target = target_of(url, head);
        if let Some(visit) = self.0.iter_mut().find(|it| it.awaited == Some(hash)) {
            visit.awaited = None;
            target.into_iter().for_each(|target| visit.redirect(target));
            return visit.known.clone();
        }
        let browser = RequestHashes::of(&request.fields).browser();
        let (known, number) = match has_no_sign(request) {
            true => {
                let known = predictor.transfers(browser, url);
                (known, Some(predictor.begin_transfers(browser, url)))
            }
            false => (KnownTransfers::default(), None),
        };
        let mut visit = Visit {
            page: Arc::clone(url),
            browser,
            number,
            documents: vec![hash],
            awaited: None,
            known: known.clone(),
        };
        target.into_iter().for_each(|target| visit.redirect(target));
        self.0.truncate(MAX_VISITS - 1);
        self.0.push_front(visit);
        known
    }

    /// Handles the head of a push at `url` that is a redirect of a page.
    pub(super) fn follow(&mut self, page: &str, url: &str, head: &ResponseHead) {
        let visit = self.0.iter_mut().find(|it| *it.page == *page);
        if let (Some(visit), Some(target)) = (visit, target_of(url, head)) {
            visit.redirect(target);
        }
    }

    /// Notes that the browser has taken the push of a document, and so requests it no more.
    pub(super) fn take_document(&mut self, hash: u32) {
        for visit in &mut self.0 {
            visit.awaited.take_if(|awaited| *awaited == hash);
        }
    }

    /// Notes that the browser has got the body of a resource. Its referrer or its page shows the
    /// visit. Others, such as a style sheet or an origin, show the latest one.
    pub(super) fn note(&self, hash: u32, referrer: Option<&str>, predictor: &mut dyn Predictor) {
        let document = referrer.and_then(url_hash_of);
        let is_of = |it: &&Visit| document.is_some_and(|hash| it.documents.contains(&hash));
        let visit = self.0.iter().find(is_of).or_else(|| self.0.front());
        if let Some(visit) = visit
            && let Some(number) = visit.number
        {
            predictor.note_transfer(visit.browser, &visit.page, number, hash);
        }
    }
}
