//! The conditional requests of browsers, which a pushed head answers with 304 (RFC 9110 section
//! 15.4.5).
//!
//! A check is a promise of HEAD. A conditional request waits for the head of the check, which the
//! gateway has requested already. If the head does not confirm the copy, the request goes to the
//! gateway. A promise of a conditional request is a check too. Its response may be whole, and then
//! answers the request.

use std::time::Instant;

use tandem_http::ResponseHead;

use super::{Output, Phase, PushId, PushStore, Serve};
use crate::wire::Fate;

impl PushStore {
    /// Returns whether the head of a push has arrived.
    pub(super) fn has_head(&self, id: PushId) -> bool {
        match self.pushes.get(&id).map(|pushed| &pushed.phase) {
            Some(Phase::Kept(kept) | Phase::Claimed(kept, _)) => kept.response.is_some(),
            _ => false,
        }
    }

    /// Answers the request that waits for a check. If the browser's copy is not confirmed, the
    /// request is sent to the gateway.
    pub(super) fn end_check(&mut self, now: Instant, id: PushId) {
        if !self.confirm_joined(now, id) {
            self.discard(id, Fate::Cancelled);
        }
    }

    /// Answers the conditional request that has joined a push, if the head confirms the browser's
    /// copy. Returns false if it does not.
    pub(super) fn confirm_joined(&mut self, now: Instant, id: PushId) -> bool {
        let head = match self.pushes.get(&id).map(|pushed| &pushed.phase) {
            Some(Phase::Claimed(kept, reader)) => kept.confirmation(now, &reader.request),
            _ => None,
        };
        let Some(head) = head else {
            return false;
        };
        self.confirm(id, head);
        self.outputs.push_back(Output::WakeReader(id));
        true
    }

    /// Answers the request of a browser that has a copy of the response. The body is of no use.
    pub(super) fn confirm(&mut self, id: PushId, head: ResponseHead) -> Option<Serve> {
        let pushed = self.pushes.get_mut(&id)?;
        let phase = Phase::Confirmed(Some(Box::new(head)));
        if let Phase::Kept(kept) | Phase::Claimed(kept, _) =
            std::mem::replace(&mut pushed.phase, phase)
        {
            self.held -= kept.held;
        }
        pushed.reported = Some(Fate::Validated);
        let url = pushed.url;
        self.report(Fate::Validated, url, true);
        Some(Serve {
            push: id,
            is_complete: true,
        })
    }

    /// Reports that a request has joined a check whose response is whole. Until its head came, the
    /// request might have gone to the gateway.
    pub(super) fn report_late(&mut self, id: PushId) {
        let Some(pushed) = self.pushes.get_mut(&id) else {
            return;
        };
        let cookies = match &pushed.phase {
            Phase::Claimed(kept, reader) => self.later_cookies.unfit_cookies(kept, &reader.request),
            _ => return,
        };
        pushed.reported = Some(Fate::Late);
        let url = pushed.url;
        self.outputs.push_back(Output::Became {
            fate: Fate::Late,
            url,
            tell_gateway: true,
            cookies,
        });
    }

    /// Drops a check that cannot answer the request for its resource.
    pub(super) fn drop_check(&mut self, id: PushId) -> Option<Serve> {
        self.discard(id, Fate::Cancelled);
        self.release(id);
        None
    }
}
