//! The cookies that responses change while the browser loads a page.

use tandem_http::{RequestHead, ResponseHead};

use super::ArrivedResponse;
use super::PushStore;
use super::sharing::is_shareable;
use crate::client::later_cookies::LaterCookies;
use crate::client::lifetime::has_heuristic_lifetime;
use crate::client::matching::{Mismatch, has_cookies_of};
use crate::client::pushed::KeptPush;
use crate::cookies::{cookies_of, name_of, pairs};
use crate::wire::RequestHashes;

impl PushStore {
    /// Notes the head of a response that the browser gets. It may change the cookies of later
    /// requests.
    pub fn note_response(&mut self, request: &RequestHead, head: &ResponseHead, unix_time: u64) {
        self.later_cookies.note(request, head, unix_time);
    }
}

impl LaterCookies {
    /// Decides whether a push may serve a request, whose cookies may be later ones. A document
    /// shows the state of its user, so its cookies must be equal.
    pub(super) fn permit(&self, kept: &KeptPush, asked: &RequestHead) -> bool {
        match kept.check(asked) {
            Err(Mismatch::Cookie) if !kept.is_document() => {
                let may_differ = match &kept.response {
                    Some(response) => may_be_cached(response) && self.lie_between(kept, asked),
                    None => self.may_join(kept, asked),
                };
                may_differ && kept.check_with(asked, true).is_ok()
            }
            result => result.is_ok(),
        }
    }

    /// Returns the hash of the cookies of a request that claims a push, unless they are known to be
    /// those of a browser to which the promise belongs. A response for everyone serves any request,
    /// and the promises of SPDY do not show their cookies.
    pub(super) fn unfit_cookies(&self, kept: &KeptPush, asked: &RequestHead) -> Option<u32> {
        let is_known = kept.has_own_fields
            && (has_cookies_of(asked, &kept.request)
                || self.may_join(kept, asked)
                || self.lie_between(kept, asked));
        (!is_known).then(|| RequestHashes::of(&asked.fields).cookie())
    }

    /// Decides whether a request without all cookies of a promise may join it. A cookie may hold
    /// for a part of the site only, and a script may change a value. One equal cookie then shows
    /// the same user, unless the user may have left a session since the promise.
    fn may_join(&self, kept: &KeptPush, asked: &RequestHead) -> bool {
        let is_known = self.first_change_after(kept).is_some();
        (is_known && has_equal_pair(kept, asked))
            || (keeps_names(kept, asked) && self.lie_between(kept, asked))
    }
}

/// Returns whether a request has a cookie of a promise with the same value.
fn has_equal_pair(kept: &KeptPush, asked: &RequestHead) -> bool {
    let (theirs, ours) = (&kept.request.fields, cookies_of(&asked.fields));
    pairs(&cookies_of(theirs)).any(|pair| pairs(&ours).any(|own| own == pair))
}

/// Returns whether a request has a cookie of each name that the promise has. A fetch that waits for
/// a claim must not use a session that its user has left.
fn keeps_names(kept: &KeptPush, asked: &RequestHead) -> bool {
    let (theirs, ours) = (&kept.request.fields, cookies_of(&asked.fields));
    let is_kept = |name| pairs(&ours).any(|pair| name_of(pair) == name);
    pairs(&cookies_of(theirs)).all(|pair| is_kept(name_of(pair)))
}

/// Returns whether a cache of a browser would use a response for a request with other cookies.
fn may_be_cached(response: &ArrivedResponse) -> bool {
    let has_lifetime = is_shareable(response) || has_heuristic_lifetime(&response.head);
    has_lifetime && !response.head.fields.contains("set-cookie")
}
