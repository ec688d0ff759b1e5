//! The policies of documents for their resources ([`ContentSecurity`]), as the session knows them.

use std::collections::VecDeque;
use std::sync::Arc;

use tandem_preload::split;

use crate::fetch_standard::ContentSecurity;

/// The largest number of documents whose policies are remembered.
const MAX_DOCUMENTS: usize = 32;

/// The policies of the documents that have any, the oldest first.
#[derive(Default)]
pub(super) struct ContentPolicies {
    documents: VecDeque<(Box<str>, Arc<ContentSecurity>)>,
}

impl ContentPolicies {
    /// Returns the policies of the document at `url`.
    pub(super) fn of(&self, url: &str) -> Option<&Arc<ContentSecurity>> {
        let mut documents = self.documents.iter();
        documents.find_map(|(known, policies)| (**known == *url).then_some(policies))
    }

    /// Sets the policies of the document at `url`.
    pub(super) fn set(&mut self, url: &str, policies: Arc<ContentSecurity>) {
        self.documents.retain(|(known, _)| **known != *url);
        if policies.is_empty() {
            return;
        }
        if self.documents.len() >= MAX_DOCUMENTS {
            self.documents.pop_front();
        }
        self.documents.push_back((url.into(), policies));
    }

    /// Returns the policies for a part of the document that `referrer` names.
    pub(super) fn of_referrer(&self, referrer: &str) -> Option<Arc<ContentSecurity>> {
        if let Some(policies) = self.of(referrer) {
            return Some(Arc::clone(policies));
        }
        let (scheme, authority, path) = split(referrer)?;
        if path != "/" {
            return None;
        }
        self.of_all(|url| split(url).is_some_and(|it| (it.0, it.1) == (scheme, authority)))
    }

    /// Returns the policies of all documents whose URLs are chosen.
    pub(super) fn of_all(&self, is_chosen: impl Fn(&str) -> bool) -> Option<Arc<ContentSecurity>> {
        let mut all = ContentSecurity::default();
        for (url, policies) in &self.documents {
            if is_chosen(url) {
                all.merge(policies);
            }
        }
        (!all.is_empty()).then(|| all.into())
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

    #[test]
    fn documents_are_bounded() {
        let mut known = ContentPolicies::default();
        for at in 0..=MAX_DOCUMENTS {
            known.set(&format!("http://a.test/{at}"), policies("img-src 'none'"));
        }
        assert_eq!(known.documents.len(), MAX_DOCUMENTS);
        assert!(known.of("http://a.test/0").is_none() && known.of("http://a.test/1").is_some());
        known.set("http://a.test/1", policies(""));
        assert!(known.of("http://a.test/1").is_none());
    }

    #[test]
    fn referrer_finds_its_documents() {
        let mut known = ContentPolicies::default();
        known.set("http://a.test/1", policies("img-src 'none'"));
        known.set("http://a.test/2", policies("font-src 'none'"));
        let found = |referrer| known.of_referrer(referrer);
        assert_eq!(found("http://a.test/1"), Some(policies("img-src 'none'")));
        assert_eq!(
            found("http://a.test/"),
            Some(policies("img-src 'none',font-src 'none'"))
        );
        assert_eq!(found("http://a.test/3"), None);
        assert_eq!(found("http://b.test/"), None);
    }
}
