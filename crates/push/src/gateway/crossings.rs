//! The requests that cross the promises of their resources on the path.
//!
//! A browser requests a resource while its promise is on the way. The client then has both a
//! request and a push for one resource, and a second copy of the body would cost its bytes again.
//! Therefore the gateway answers the request with a reference to the push, and the client gives the
//! browser the push. This needs no second request to the origin either. A client says that it
//! takes references.
//!
//! Only a request that the client has sent before the promise arrived gets a reference: within a
//! round trip of the promise. After that the client has used the push for another request, or has
//! refused it. A page may request a resource twice in that time. A client that can give one push to
//! several requests gets a reference for each of them. If a request with a reference still finds no
//! push, the client repeats it with a mark. Any other client gets one reference to a push.
//!
//! A response that no cache may keep, and whose head has come, gets no reference. The push would
//! overtake the reference, and the client drops such a push unless a request waits for it. The
//! gateway still holds this response, and gives it to the request itself. The push ends then. The
//! client's own check comes first ([`PushFacts`]), so the request gets the same response as one
//! that has joined the push.

use std::time::{Duration, Instant};

use tandem_http::cache::{RequestPolicy, validation};
use tandem_http::{RequestHead, ResponseHead};

use super::claims::Claimant;
use super::fetch::Fetch;
use super::output::Output;
use super::session::{Gateway, Unreported};
use super::table::FetchId;
use crate::client::matching::{PushFacts, check_request};
use crate::url::{request_authority, request_url};
use crate::wire::{ASKED_AGAIN_FIELD, CROSSED_FIELD, RequestHashes, url_hash};

/// The time after its promise in which a response that no cache may keep is handed over to a
/// request that has not joined its push. Promises may wait behind other data.
const HANDING_OVER: Duration = Duration::from_secs(2);

/// Returns whether a push can answer a request as far as the directives and conditions of the
/// request are concerned.
fn is_plain(request: &RequestHead) -> bool {
    check_request(request).is_ok()
        && !validation::is_conditional(&request.fields)
        && RequestPolicy::of(&request.fields).accepts_revalidation_later()
}

/// Returns whether the response of a push whose head is held is right for a request.
fn serves_withheld(fetch: &Fetch, request: &RequestHead) -> bool {
    let (Some(promised), Some(head)) = (&fetch.request, &fetch.withheld) else {
        return false;
    };
    let facts = PushFacts {
        request: promised,
        has_own_fields: true,
        hashes: Some(fetch.target.asked),
        metadata: fetch.target.metadata,
        head: Some(head),
        ignores_cookies: false,
    };
    facts.check(request).is_ok()
}

/// Returns whether the request of a push has the URL and the field hashes of the browser's request.
fn is_alike(push: &Unreported, request: &RequestHead) -> bool {
    push.asked == RequestHashes::of(&request.fields)
        && request_url(request).is_some_and(|url| *url == *push.url)
}

impl Gateway {
    /// Lets the gateway refer requests to pushes, since the client takes references.
    pub const fn allow_references(&mut self) {
        self.companion.allow_references();
    }

    /// Lets the gateway refer several requests to one push.
    pub const fn allow_second_references(&mut self) {
        self.companion.allow_second_references();
    }

    /// Notes that the promise of a fetch has been sent.
    pub(super) fn note_sent_promise(&mut self, now: Instant, id: FetchId) {
        let hash = self.fetches.get(id).map(|fetch| fetch.target.hash);
        if let Some(push) = hash.and_then(|hash| self.unreported.get_mut(&hash))
            && push.fetch == id
        {
            push.promised = Some(now);
        }
    }

    /// Handles a request of the client that may have crossed the promise of its resource. Returns
    /// the reference to the push, which answers the request. If it returns `None`, the caller
    /// passes the request to [`Self::handle_request`]. `round_trip` is that of the path to the
    /// client.
    pub fn refer(
        &mut self,
        now: Instant,
        request: &RequestHead,
        round_trip: Duration,
    ) -> Option<ResponseHead> {
        let is_refused = request.fields.contains(ASKED_AGAIN_FIELD);
        if !self.companion.takes_references() || self.unreported.is_empty() || is_refused {
            return None;
        }
        let hash = url_hash(request);
        let push = self.unreported.get_mut(&hash)?;
        // The promise waits behind other data for a moment.
        let limit = round_trip + round_trip / 4;
        let is_crossing = push
            .promised
            .is_some_and(|at| now.saturating_duration_since(at) < limit);
        let fits = !push.is_check && !push.needs_waiting && is_alike(push, request);
        if !is_crossing || !is_plain(request) || !fits {
            return None;
        }
        if !self.companion.takes_second_references() {
            push.promised = None;
        }
        let fetch = push.fetch;
        self.counts.repeated += 1;
        self.repeats.forget(hash);
        self.note_wanted(now, &request_authority(request), hash);
        if self.fetches.get(fetch).is_some() {
            self.raise_for(now, fetch, Claimant::User);
            self.outputs.push_back(Output::Raise { fetch });
        }
        let mut head = ResponseHead::new(204);
        head.fields.push(CROSSED_FIELD, "1");
        Some(head)
    }

    /// Handles a request whose resource a push has brought, if no cache may keep the response. The
    /// head of the push waits for such a request. Returns the push whose response the caller passes
    /// on as that of the request, before [`Self::handle_request`]. The push itself ends. A request
    /// of a client that has refused the push gets nothing.
    pub fn hand_over(&mut self, now: Instant, request: &RequestHead) -> Option<FetchId> {
        if request.fields.contains(ASKED_AGAIN_FIELD) {
            return None;
        }
        let hash = url_hash(request);
        let push = self.unreported.get(&hash)?;
        let (id, promised) = (push.fetch, push.promised?);
        let is_new = now.saturating_duration_since(promised) < HANDING_OVER;
        let fetch = self.fetches.get_mut(id)?;
        let is_withheld = push.needs_waiting && fetch.phase.holds_head();
        let fits = is_plain(request) && is_alike(push, request);
        if !is_new || !is_withheld || !fits || !serves_withheld(fetch, request) {
            return None;
        }
        fetch.reported = true;
        self.unreported.remove(&hash);
        self.counts.repeated += 1;
        self.cache.note_pushable(hash);
        self.misses.forget(hash);
        self.cancel_fetch(id);
        Some(id)
    }
}
