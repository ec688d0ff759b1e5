//! A push for several requests.
//!
//! A page may request a resource several times while the promise of its push crosses these
//! requests. The gateway refers all of them to the push. When the first of them claims it, a copy
//! takes its place in the store for the next one, for 16 requests at most. The copy gets all parts
//! that arrive. The outcome of the push is that of the first request, so the copy is not reported.
//! A push is cancelled once all its requests are gone.
//!
//! Only a response with a lifetime and without `Set-Cookie` serves several requests (RFC 9111
//! sections 4 and 7.3): its origin may give each request another token or session. If the head
//! shows another response, the copy is dropped, and its request is sent to the gateway again. A
//! copy is also dropped once no request is left for which it was kept.

use std::time::Instant;

use bytes::Bytes;
use tandem_http::{Fields, RequestHead, ResponseHead};

use super::{ArrivedResponse, Fate, MAX_PUSHES, Output, Phase, PushId, PushStore, Pushed, Target};
use crate::client::lifetime::Lifetime;

/// The largest number of requests that share one push.
const MAX_REQUESTS: usize = 16;

/// Returns whether a response may serve several requests.
pub(super) fn is_shareable(response: &ArrivedResponse) -> bool {
    matches!(response.lifetime, Lifetime::For(_)) && !response.head.fields.contains("set-cookie")
}

impl PushStore {
    /// Keeps a copy of a push that a request has just claimed, for another request of the same kind
    /// that is under way. The caller must not have taken a piece of the push.
    pub fn share(&mut self, id: PushId) {
        let Some(pushed) = self.pushes.get(&id) else {
            return;
        };
        let Phase::Claimed(kept, reader) = &pushed.phase else {
            return;
        };
        let is_untouched = !reader.has_head && pushed.copy.is_none();
        let target = Target::of(&kept.request);
        let of = pushed.copy_of.unwrap_or(id);
        if !is_untouched
            || kept.is_check()
            || !kept.response.as_ref().is_none_or(is_shareable)
            || self.waiting.contains_key(&target)
            || self.held + kept.held > self.limits.memory
            || self.pushes.len() >= MAX_PUSHES
            || self.with_copies(of).count() >= MAX_REQUESTS
        {
            return;
        }
        let copy = PushId(self.next_id);
        let held = kept.held;
        let copied = Pushed {
            url: pushed.url,
            phase: Phase::Kept(kept.clone()),
            received: pushed.received,
            used: 0,
            reported: Some(Fate::Used),
            is_arriving: pushed.is_arriving,
            copy: None,
            copy_of: Some(of),
        };
        self.next_id += 1;
        self.held += held;
        self.waiting.insert(target, copy);
        self.pushes.insert(copy, copied);
        if let Some(pushed) = self.pushes.get_mut(&id) {
            pushed.copy = Some(copy);
        }
        self.outputs.push_back(Output::Copied { push: copy, of });
    }

    /// Drops the copy that waits for a request like this one, since none is under way any more.
    pub fn drop_copy(&mut self, request: &RequestHead) {
        if self.waiting.is_empty() {
            return;
        }
        let waiting = self.waiting.get(&Target::of(request)).copied();
        let is_copy = |id: &PushId| self.pushes.get(id).is_some_and(Pushed::is_copy);
        if let Some(copy) = waiting.filter(is_copy) {
            self.discard(copy, Fate::Cancelled);
            self.release(copy);
        }
    }

    fn copy_of(&self, id: PushId) -> Option<PushId> {
        self.pushes.get(&id)?.copy
    }

    /// Returns a push and its copies.
    fn with_copies(&self, id: PushId) -> impl Iterator<Item = PushId> + '_ {
        std::iter::successors(Some(id), |id| self.copy_of(*id))
    }

    /// Lets the arrival of a useless push go on without its parts. If `is_cancelled` is true, the
    /// arrival ends, unless a copy needs the parts.
    pub(super) fn end_arrival(&mut self, id: PushId, is_cancelled: bool) {
        let of = self.pushes.get(&id).and_then(|pushed| pushed.copy_of);
        let of = of.unwrap_or(id);
        let is_used = self.with_copies(of).any(|id| {
            let phase = self.pushes.get(&id).map(|pushed| &pushed.phase);
            matches!(phase, Some(Phase::Kept(_) | Phase::Claimed(..)))
        });
        self.outputs.push_back(match is_cancelled && !is_used {
            true => Output::Cancel(of),
            false => Output::WakeArrival(of),
        });
    }

    /// Gives a head to the copy of a push.
    pub(super) fn copy_head(&mut self, now: Instant, id: PushId, head: &ResponseHead) {
        let Some(copy) = self.copy_of(id) else {
            return;
        };
        self.on_head(now, copy, head.clone());
        let arrived = self.kept_mut(copy).and_then(|kept| kept.response.as_ref());
        if arrived.is_some_and(|response| !is_shareable(response)) {
            self.discard(copy, Fate::Cancelled);
        }
    }

    /// Gives bytes of the body to the copy of a push.
    pub(super) fn copy_data(&mut self, now: Instant, id: PushId, data: &Bytes) {
        if let Some(copy) = self.copy_of(id) {
            self.on_data(now, copy, data.clone());
        }
    }

    /// Gives the fields after the body to the copy of a push.
    pub(super) fn copy_trailers(&mut self, id: PushId, fields: &Fields) {
        if let Some(copy) = self.copy_of(id) {
            self.on_trailers(copy, fields.clone());
        }
    }

    /// Ends the copy of a push.
    pub(super) fn end_copy(&mut self, id: PushId, is_complete: bool) {
        if let Some(copy) = self.copy_of(id) {
            self.on_end(copy, is_complete);
        }
    }

    /// Returns whether the copy of a push has room for more.
    pub(super) fn copy_has_room(&self, id: PushId) -> bool {
        self.copy_of(id).is_none_or(|copy| self.has_room(copy))
    }
}

impl Pushed {
    /// Returns whether the push is a copy of another one.
    pub(super) const fn is_copy(&self) -> bool {
        self.copy_of.is_some()
    }
}
