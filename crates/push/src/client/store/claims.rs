//! The choice of a push for a request, and the claim of that push.

use std::time::Instant;

use tandem_http::RequestHead;
use tandem_http::cache::{RequestPolicy, validation::is_conditional};

use super::{KeptPush, Output, Phase, PushId, PushStore, Reader, Serve, Target};
use crate::client::matching::check_request;
use crate::fetch_standard::{is_navigation, is_prefetch};
use crate::wire::{Fate, url_hash};

/// The properties of a request on which the choice depends, beside its fields.
struct RequestTraits<'a> {
    head: &'a RequestHead,
    now: Instant,
    is_conditional: bool,
    /// True for a reload: the request wants a response that its origin has confirmed.
    is_reload: bool,
    /// True if a push serves the request only once its whole response has arrived.
    complete_only: bool,
}

/// Returns whether a request may begin a page, as far as its fields show. Over plain HTTP, the
/// request for a frame looks the same. A document that the browser prefetches begins no page.
fn begins_page(asked: &RequestHead) -> bool {
    is_navigation(asked) && !is_prefetch(asked)
}

impl PushStore {
    /// Looks for a push that answers a request, and claims it. If `complete_only` is true, all of
    /// it must have arrived, since the session may be lost.
    pub fn on_request(
        &mut self,
        now: Instant,
        asked: &RequestHead,
        complete_only: bool,
    ) -> Option<Serve> {
        self.load.note(now);
        let may_begin = begins_page(asked);
        // A pushed document behind a redirect, or in a frame, belongs to the load under way.
        let is_next = may_begin && self.is_next_page(asked);
        let served = self.choose(now, asked, complete_only);
        if may_begin {
            let is_reload = RequestPolicy::of(&asked.fields).wants_validation();
            let is_repeated = self.documents.note(now, url_hash(asked));
            if served.is_none() || is_next {
                self.load.note_page(now, is_reload, is_repeated);
                self.later_cookies.begin_load();
                // The gateway pushes the resources of this page again once it has the reports.
                self.sweep(now);
            }
        }
        served
    }

    /// Returns whether the push that waits for a request is a document that may follow a page.
    fn is_next_page(&self, asked: &RequestHead) -> bool {
        let waiting = self.waiting.get(&Target::of(asked));
        let pushed = waiting.and_then(|id| self.pushes.get(id));
        pushed.is_some_and(|pushed| match &pushed.phase {
            Phase::Kept(kept) => kept.is_next(),
            _ => false,
        })
    }

    fn choose(&mut self, now: Instant, asked: &RequestHead, complete_only: bool) -> Option<Serve> {
        if self.waiting.is_empty() || check_request(asked).is_err() {
            return None;
        }
        let target = Target::of(asked);
        let id = *self.waiting.get(&target)?;
        let asked = RequestTraits {
            head: asked,
            now,
            is_conditional: is_conditional(&asked.fields),
            is_reload: RequestPolicy::of(&asked.fields).wants_validation(),
            complete_only,
        };
        let pushed = self.pushes.get(&id)?;
        let Phase::Kept(kept) = &pushed.phase else {
            return None;
        };
        if kept.is_check() && !asked.is_conditional {
            // The browser has no copy, and the push has no body for it.
            return self.drop_check(id);
        }
        if !self.may_serve(kept, pushed.is_arriving, &asked) {
            return None;
        }
        if let Some(head) = kept.confirmation(now, asked.head) {
            self.waiting.remove(&target);
            return self.confirm(id, head);
        }
        if kept.is_check() && kept.response.is_some() {
            // The browser's copy is another version.
            return self.drop_check(id);
        }
        self.waiting.remove(&target);
        self.claim(id, asked.head)
    }

    /// Returns whether the push of a URL may answer a request for it.
    fn may_serve(&self, kept: &KeptPush, is_arriving: bool, asked: &RequestTraits<'_>) -> bool {
        // A conditional request must not join a push without a head, because the gateway may hold
        // its body back. Checks have no body, and documents are never held.
        let waits_for_head = kept.is_check() || (kept.is_document() && !asked.is_reload);
        let is_unknown = asked.is_conditional && kept.response.is_none() && !waits_for_head;
        let is_over = match asked.is_conditional {
            true => kept.is_over_for_condition(asked.now, &self.load),
            false => kept.is_over(asked.now, is_arriving, &self.load),
        };
        let is_too_late = is_over
            || (kept.is_overdue(asked.now) && !self.is_gateway_local)
            || !kept.keeps_limits(asked.now, asked.head, is_arriving, &self.load);
        let is_missing = asked.complete_only && is_arriving;
        !is_unknown && !is_too_late && !is_missing && self.later_cookies.permit(kept, asked.head)
    }

    /// Lets a request read a push that waits.
    fn claim(&mut self, id: PushId, asked: &RequestHead) -> Option<Serve> {
        let pushed = self.pushes.get_mut(&id)?;
        let useless = Phase::Useless(Fate::Cancelled);
        let cookies = match &pushed.phase {
            Phase::Kept(kept) => self.later_cookies.unfit_cookies(kept, asked),
            _ => None,
        };
        let Phase::Kept(kept) = std::mem::replace(&mut pushed.phase, useless) else {
            return None;
        };
        let response = kept.response.as_ref();
        let begins_page = kept.is_next();
        let is_check = kept.is_check();
        let reader = Reader {
            request: asked.clone(),
            has_head: false,
            awaits_body: response.is_some() && kept.body.is_empty(),
        };
        pushed.phase = Phase::Claimed(kept, Box::new(reader));
        let is_complete = !pushed.is_arriving;
        // The head of a check decides on its fate.
        if !is_check && !pushed.is_copy() {
            let fate = match is_complete {
                true => Fate::Used,
                false => Fate::Late,
            };
            let url = pushed.url;
            pushed.reported = Some(fate);
            self.outputs.push_back(Output::Became {
                fate,
                url,
                tell_gateway: true,
                cookies,
            });
        }
        if begins_page {
            // The gateway promises the resources of the page once it hears of the request.
            self.outputs.push_back(Output::HurryReports);
        }
        if !is_complete {
            self.outputs.push_back(Output::Raise(id));
        }
        Some(Serve {
            push: id,
            is_complete,
        })
    }
}
