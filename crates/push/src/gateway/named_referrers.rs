//! The `Referer` of the requests for which a page's own bytes ask, until the predictor is told.
//!
//! A push may answer such a request, which then does not reach the gateway. The predictor has to
//! know the `Referer` of this request too: the next visit's push leaves before these bytes are
//! read.

use super::predictor::Predictor;
use crate::referrers::NamedPart;

/// The largest number of resources that wait for the predictor.
const MAX_NAMED: usize = 2048;

/// The resources that pages name, and the parts of the pages' URLs that their requests name.
#[derive(Default)]
pub(super) struct NamedReferrers(Vec<(String, NamedPart)>);

impl NamedReferrers {
    pub(super) fn note(&mut self, url: &str, part: NamedPart) {
        if self.0.len() < MAX_NAMED {
            self.0.push((url.to_owned(), part));
        }
    }

    /// Tells the predictor the resources since the last call.
    pub(super) fn teach(&mut self, predictor: &mut dyn Predictor) {
        for (url, part) in std::mem::take(&mut self.0) {
            predictor.note_named_part(&url, part);
        }
    }

    /// Forgets the resources, if nothing is learned.
    pub(super) fn clear(&mut self) {
        self.0 = Vec::new();
    }
}
