//! The policies of documents for their resources ([`ContentSecurity`]), as the session knows them.
//!
//! Documents that the user visits have one table, and the parts of documents another: frames, and
//! the style sheets and scripts that the browser requests. Hence the parts of a page never evict
//! its own policies. If a table has lost policies, those of an unknown URL admit nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use tandem_preload::split;

use crate::fetch_standard::ContentSecurity;

/// The largest number of documents in one table.
const MAX_DOCUMENTS: usize = 128;

/// The largest number of bytes of the URLs and policies in one table.
const MAX_BYTES: usize = 512 << 10;

/// The policies of documents, and of the parts of documents.
#[derive(Default)]
pub(super) struct ContentPolicies {
    documents: Table,
    parts: Table,
    /// The number of responses so far.
    number: u64,
}

/// Policies by URL, the oldest first. Documents without policies are entries too.
#[derive(Default)]
struct Table {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// True if an entry with policies was evicted.
    has_lost: bool,
}

struct Entry {
    url: Box<str>,
    policies: Arc<ContentSecurity>,
    /// The number of the response that showed the policies.
    number: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.url.len() + self.policies.bytes()
    }
}

impl Table {
    fn get(&self, url: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| *entry.url == *url)
    }

    fn set(&mut self, entry: Entry) {
        let old = self.entries.iter().position(|it| it.url == entry.url);
        if let Some(old) = old.and_then(|at| self.entries.remove(at)) {
            self.bytes -= old.bytes();
        }
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
        while self.entries.len() > MAX_DOCUMENTS || self.bytes > MAX_BYTES {
            let Some(evicted) = self.entries.pop_front() else {
                return;
            };
            self.bytes -= evicted.bytes();
            self.has_lost |= !evicted.policies.is_empty();
        }
    }
}

impl ContentPolicies {
    /// Returns the policies of the last response at `url`; `None` if the session has seen none.
    pub(super) fn of(&self, url: &str) -> Option<Arc<ContentSecurity>> {
        let entries = [self.documents.get(url), self.parts.get(url)];
        let last = entries.into_iter().flatten().max_by_key(|it| it.number);
        last.map_or_else(|| self.of_unknown(), |it| Some(Arc::clone(&it.policies)))
    }

    /// Returns the policies of a document that was at `url`, or of a part of one: if it may be
    /// both, those of both.
    pub(super) fn of_each(&self, url: &str) -> Option<Arc<ContentSecurity>> {
        match (self.documents.get(url), self.parts.get(url)) {
            (Some(one), Some(other)) if one.policies != other.policies => {
                let mut both = ContentSecurity::clone(&one.policies);
                both.merge(&other.policies);
                Some(both.into())
            }
            (Some(known), _) | (None, Some(known)) => Some(Arc::clone(&known.policies)),
            (None, None) => self.of_unknown(),
        }
    }

    /// Sets the policies of a document that the user visits.
    pub(super) fn set_document(&mut self, url: &str, policies: Arc<ContentSecurity>) {
        let entry = self.entry(url, policies);
        self.documents.set(entry);
    }

    /// Sets the policies of a frame, or of a style sheet or script that is a referrer.
    pub(super) fn set_part(&mut self, url: &str, policies: Arc<ContentSecurity>) {
        let entry = self.entry(url, policies);
        self.parts.set(entry);
    }

    /// Replaces the policies of the last response at `url`.
    pub(super) fn update(&mut self, url: &str, policies: Arc<ContentSecurity>) {
        let number = |entry: &Entry| entry.number;
        match self.parts.get(url).map(number) > self.documents.get(url).map(number) {
            true => self.set_part(url, policies),
            false => self.set_document(url, policies),
        }
    }

    fn entry(&mut self, url: &str, policies: Arc<ContentSecurity>) -> Entry {
        self.number += 1;
        Entry {
            url: url.into(),
            policies,
            number: self.number,
        }
    }

    /// Returns the policies for a part of the document that `referrer` names. A referrer that is
    /// an origin may stand for all documents of it.
    pub(super) fn of_referrer(&self, referrer: &str) -> Option<Arc<ContentSecurity>> {
        let (scheme, authority, path) = split(referrer)?;
        if path != "/" {
            return self.of_each(referrer);
        }
        self.of_all(|url| split(url).is_some_and(|it| (it.0, it.1) == (scheme, authority)))
    }

    /// Returns the policies of all documents whose URLs are chosen.
    pub(super) fn of_all(&self, is_chosen: impl Fn(&str) -> bool) -> Option<Arc<ContentSecurity>> {
        if self.has_lost() {
            return self.of_unknown();
        }
        let mut all = ContentSecurity::default();
        let entries = self.documents.entries.iter().chain(&self.parts.entries);
        for entry in entries.filter(|entry| is_chosen(&entry.url)) {
            all.merge(&entry.policies);
        }
        (!all.is_empty()).then(|| all.into())
    }

    const fn has_lost(&self) -> bool {
        self.documents.has_lost || self.parts.has_lost
    }

    /// Returns the policies of a URL without an entry.
    fn of_unknown(&self) -> Option<Arc<ContentSecurity>> {
        self.has_lost().then(|| ContentSecurity::closed().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(text: &str) -> Arc<ContentSecurity> {
        let mut policies = ContentSecurity::default();
        policies.add_meta("http://a.test/", text);
        policies.into()
    }

    fn closed() -> Option<Arc<ContentSecurity>> {
        Some(ContentSecurity::closed().into())
    }

    fn url(at: usize) -> String {
        format!("http://a.test/{at}")
    }

    #[test]
    fn lost_policies_admit_nothing() {
        for sets in [ContentPolicies::set_document, ContentPolicies::set_part] {
            let mut known = ContentPolicies::default();
            sets(&mut known, &url(0), policies("img-src 'none'"));
            for at in 1..MAX_DOCUMENTS {
                sets(&mut known, &url(at), policies(""));
            }
            assert_eq!(
                known.of(&url(0)),
                Some(policies("img-src 'none'")),
                "it is still there"
            );
            assert_eq!(known.of("http://b.test/"), None);
            sets(&mut known, &url(MAX_DOCUMENTS), policies(""));
            let entries = known.documents.entries.len() + known.parts.entries.len();
            assert_eq!(entries, MAX_DOCUMENTS);
            let unknown = [url(0), "http://b.test/x".to_owned()];
            for unknown in unknown.iter().map(String::as_str) {
                assert_eq!(known.of(unknown), closed());
                assert_eq!(known.of_each(unknown), closed());
                assert_eq!(known.of_referrer(unknown), closed());
            }
            assert_eq!(known.of_all(|_| true), closed());
            let last = url(MAX_DOCUMENTS);
            assert_eq!(known.of(&last), Some(policies("")), "it has none");
            assert_eq!(known.of_referrer(&last), Some(policies("")));
        }
    }

    #[test]
    fn documents_without_policies_leave_nothing_to_lose() {
        let mut known = ContentPolicies::default();
        for at in 0..2 * MAX_DOCUMENTS {
            known.set_document(&url(at), policies(""));
        }
        assert_eq!(known.documents.entries.len(), MAX_DOCUMENTS);
        assert_eq!(known.of(&url(0)), None);
        assert_eq!(known.of_all(|_| true), None);
    }

    #[test]
    fn parts_never_evict_their_document() {
        let mut known = ContentPolicies::default();
        known.set_document(&url(0), policies("img-src 'none'"));
        for at in 0..10 * MAX_DOCUMENTS {
            let policy = format!("img-src /{at}");
            known.set_part(&url(at), policies(&policy));
        }
        assert_eq!(known.parts.entries.len(), MAX_DOCUMENTS);
        assert_eq!(known.of(&url(0)), Some(policies("img-src 'none'")));
    }

    #[test]
    fn tables_have_bounded_bytes() {
        let mut known = ContentPolicies::default();
        let path = "x".repeat(10_000);
        for at in 0..MAX_DOCUMENTS {
            known.set_part(&url(at), policies(&format!("img-src a.test/{path}{at}")));
            assert!(known.parts.bytes <= MAX_BYTES);
        }
        let entries = &known.parts.entries;
        assert!(entries.len() < MAX_DOCUMENTS && known.parts.has_lost);
        let counted: usize = entries.iter().map(Entry::bytes).sum();
        assert_eq!(known.parts.bytes, counted);
        for at in 0..MAX_DOCUMENTS {
            known.set_part(&url(at), policies(""));
        }
        let urls: usize = (0..MAX_DOCUMENTS).map(|at| url(at).len()).sum();
        assert_eq!(known.parts.bytes, urls);
    }

    #[test]
    fn referrer_finds_its_documents() {
        let mut known = ContentPolicies::default();
        known.set_document("http://a.test/1", policies("img-src 'none'"));
        known.set_part("http://a.test/2", policies("font-src 'none'"));
        known.set_document("http://a.test/", policies(""));
        let found = |referrer| known.of_referrer(referrer);
        assert_eq!(found("http://a.test/1"), Some(policies("img-src 'none'")));
        assert_eq!(
            found("http://a.test/"),
            Some(policies("img-src 'none',font-src 'none'")),
            "it may be the origin of another document"
        );
        assert_eq!(found("http://a.test/3"), None);
        assert_eq!(found("http://b.test/"), None);
        known.set_part("http://a.test/1", policies("font-src 'none'"));
        assert_eq!(
            known.of_referrer("http://a.test/1"),
            Some(policies("img-src 'none',font-src 'none'"))
        );
    }

    #[test]
    fn last_response_counts() {
        let mut known = ContentPolicies::default();
        known.set_document(&url(0), policies("img-src 'none'"));
        known.set_part(&url(0), policies("font-src 'none'"));
        assert_eq!(known.of(&url(0)), Some(policies("font-src 'none'")));
        known.update(&url(0), policies("media-src 'none'"));
        assert_eq!(known.of(&url(0)), Some(policies("media-src 'none'")));
        let each = "img-src 'none',media-src 'none'";
        assert_eq!(known.of_each(&url(0)), Some(policies(each)));
        known.set_document(&url(0), policies(""));
        known.update(&url(0), policies("img-src *"));
        assert_eq!(known.of(&url(0)), Some(policies("img-src *")));
        assert_eq!(known.parts.entries.len(), 1);
    }
}
