//! The redirects of a page and of its resources.

use std::sync::Arc;

use tandem_http::RequestHead;
use tandem_preload::{self as scan, Need};

use super::Page;
use crate::fetch_standard::{Metadata, has_metadata};

/// The largest number of redirects in a row that are followed, as in browsers (Fetch standard,
/// "HTTP-redirect fetch").
const MAX_REDIRECTS: u8 = 20;

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

    /// Lets the request for the target of a redirect repeat the metadata of the redirected request,
    /// as it does within an origin (Fetch Metadata, section 2.3). Returns false if these are not
    /// known. The promise of the target may have to wait, or be refused.
    pub(in super::super) fn repeat_metadata(
        &mut self,
        redirected: &RequestHead,
        target: &Need,
    ) -> bool {
        let metadata = Metadata::of(&redirected.fields);
        if let Some(metadata) = metadata {
            let known = (target.clone(), metadata);
            self.redirected.insert(target.url.as_str().into(), known);
        }
        metadata.is_some() || !has_metadata(&redirected.fields)
    }

    /// Returns the metadata of the request that was redirected to a need. Another need of the same
    /// URL, such as one that an element names, does not have them.
    pub(super) fn redirected_metadata(&self, need: &Need) -> Option<Metadata> {
        let (target, metadata) = self.redirected.get(&*need.url)?;
        (target == need).then_some(*metadata)
    }
}
