//! The cookies that responses change while the browser loads a page.

use tandem_http::{RequestHead, ResponseHead};

use super::ArrivedResponse;
use super::PushStore;
use super::sharing::is_shareable;
use crate::client::later_cookies::LaterCookies;
use crate::client::lifetime::has_heuristic_lifetime;
use crate::client::matching::Mismatch;
use crate::client::pushed::KeptPush;

impl PushStore {
    /// Notes the head of a response that the browser gets. It may change the cookies of later
    /// requests.
    pub fn note_response(&mut self, request: &RequestHead, head: &ResponseHead, unix_time: u64) {
        self.later_cookies.note(request, head, unix_time);
    }
}

impl LaterCookies {
    /// Decides whether a push may serve a request, whose cookies may be later ones.
    pub(super) fn permit(&self, kept: &KeptPush, asked: &RequestHead) -> bool {
        match kept.check(asked) {
            Err(Mismatch::Cookie) => {
                kept.response.as_ref().is_some_and(may_be_cached)
                    && self.lie_between(kept, asked)
                    && kept.check_with(asked, true).is_ok()
            }
            result => result.is_ok(),
        }
    }
}

/// Returns whether a cache of a browser would use a response for a request with other cookies.
fn may_be_cached(response: &ArrivedResponse) -> bool {
    let has_lifetime = is_shareable(response) || has_heuristic_lifetime(&response.head);
    has_lifetime && !response.head.fields.contains("set-cookie")
}
