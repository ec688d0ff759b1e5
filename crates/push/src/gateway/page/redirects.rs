//! The redirects of a page and of its resources.

use std::sync::Arc;

use tandem_http::RequestHead;
use tandem_http::cache::RequestPolicy;
use tandem_preload::{self as scan, Need};

use super::Page;
use crate::fetch_standard::{Metadata, has_metadata};

/// The largest number of redirects in a row that are followed, as in browsers (Fetch standard,
/// "HTTP-redirect fetch").
const MAX_REDIRECTS: u8 = 20;

/// A request that was redirected, as far as the request for the target repeats it.
pub(super) struct Redirected {
    target: Need,
    pub(super) metadata: Option<Metadata>,
    /// True if the request wanted a response that its origin has confirmed. The cache mode of a
    /// browser's request outlasts redirects (Fetch standard, "HTTP-redirect fetch").
    pub(super) is_validated: bool,
}

impl Page {
    /// Follows a redirect from `from` to `target`. If `from` is the page's own location, the page
    /// moves.
    pub(in super::super) fn redirect(&mut self, from: &str, target: &Need) {
        if from != self.location {
            return;
        }
        // The policies of a document do not govern the way to another one.
        self.content = Arc::default();
        let scheme = scan::split(&target.url).map(|(scheme, ..)| scheme);
        if scheme == Some(self.request.scheme.as_str()) {
            self.location.clone_from(&target.url);
        }
    }

    /// Counts a redirect from `from` to `to`. Returns false if too many have led there, so that the
    /// gateway must not follow it.
    pub(in super::super) fn follows_redirect(&mut self, from: &str, to: &str) -> bool {
        let before = self.redirects.get(from).copied().unwrap_or(0);
        let is_followed = before < MAX_REDIRECTS;
        if is_followed {
            let count = self.redirects.entry(to.into()).or_default();
            *count = (*count).max(before + 1);
        }
        is_followed
    }

    /// Lets the request for the target of a redirect repeat fields of the redirected request, as
    /// the browser does: its metadata, within an origin (Fetch Metadata, section 2.3), and the
    /// demand of a reload. Returns false if the metadata are not known. The promise of the target
    /// may have to wait, or be refused.
    pub(in super::super) fn repeat_fields(
        &mut self,
        redirected: &RequestHead,
        target: &Need,
    ) -> bool {
        let metadata = Metadata::of(&redirected.fields);
        let is_validated = RequestPolicy::of(&redirected.fields).wants_validation();
        if metadata.is_some() || is_validated {
            let known = Redirected {
                target: target.clone(),
                metadata,
                is_validated,
            };
            self.redirected.insert(target.url.as_str().into(), known);
        }
        metadata.is_some() || !has_metadata(&redirected.fields)
    }

    /// Returns the facts about the request that was redirected to a need. Another need of the same
    /// URL, such as one that an element names, has none.
    pub(super) fn redirected_to(&self, need: &Need) -> Option<&Redirected> {
        let redirected = self.redirected.get(&*need.url)?;
        (redirected.target == *need).then_some(redirected)
    }
}
