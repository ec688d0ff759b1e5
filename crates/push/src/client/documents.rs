//! The documents that the browser has requested in one session. Another request for one of them is
//! a new visit to the same page, and wants newer responses than those of the visit before.

use std::collections::VecDeque;
use std::time::Instant;

use super::lifetime::LOAD_GAP;

/// The largest number of documents that are remembered.
const MAX_DOCUMENTS: usize = 64;

/// The last documents, each with the time of its last request. The last requested comes last.
#[derive(Debug, Default)]
pub(super) struct RequestedDocuments(VecDeque<(u32, Instant)>);

impl RequestedDocuments {
    /// Notes the request for a document with this URL hash. Returns whether the browser visits the
    /// page again. A request shortly after the last one belongs to the same visit: a redirect may
    /// lead back to its own URL, and a page may have equal frames.
    pub(super) fn note(&mut self, now: Instant, url: u32) -> bool {
        let known = self.0.iter().position(|(known, _)| *known == url);
        let last = known.and_then(|at| self.0.remove(at));
        if self.0.len() >= MAX_DOCUMENTS {
            self.0.pop_front();
        }
        self.0.push_back((url, now));
        last.is_some_and(|(_, at)| now.saturating_duration_since(at) > LOAD_GAP)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn document_is_repeated_after_a_pause() {
        let start = Instant::now();
        let mut documents = RequestedDocuments::default();
        for (second, url, expected) in [
            (0, 1, false),
            (3, 1, false),
            (4, 2, false),
            (7, 1, true),
            (8, 2, true),
        ] {
            let now = start + Duration::from_secs(second);
            assert_eq!(documents.note(now, url), expected, "{url} after {second} s");
        }
    }

    #[test]
    fn documents_are_bounded() {
        let start = Instant::now();
        let mut documents = RequestedDocuments::default();
        for url in 0..=64 {
            documents.note(start, url);
        }
        assert_eq!(documents.0.len(), MAX_DOCUMENTS);
        let later = start + Duration::from_secs(4);
        assert!(!documents.note(later, 0) && documents.note(later, 64));
    }
}
