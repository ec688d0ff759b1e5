//! A push: the phases from its promise to its end, and the bytes that it holds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tandem_http::cache::validation::validates_copy;
use tandem_http::cache::{CacheRules, Receipt, RequestPolicy, ResponsePolicy};
use tandem_http::{Fields, Method, RequestHead, ResponseHead, Scheme};

use super::lifetime::{Lifetime, MAX_WAIT, PageLoad, VALIDATED_FOR};
use super::matching::{Mismatch, PushFacts};
use super::stored_head::{confirmation, confirms_copy, with_age};
use crate::fetch_standard::{Metadata, is_framed, is_navigation};
use crate::wire::{ASKED_AS_FIELD, ASKED_FIELD, Fate, NEXT_PAGE_FIELD, RequestHashes};

/// The age of a promise without a head up to which a request waits for it. Later requests go to the
/// gateway.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of one push in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PushId(pub(super) u64);

/// The bytes counted for a push beside its fields and its body: entry, task and stream.
const PUSH_OVERHEAD: usize = 1024;

/// The bytes counted for a field beside its text.
const FIELD_OVERHEAD: usize = 16;

/// Returns the bytes counted for fields.
pub(super) fn size_of_fields(fields: &Fields) -> usize {
    fields.text_len() + fields.len() * FIELD_OVERHEAD
}

/// Returns the bytes counted for a promise.
pub(super) fn size_of_promise(request: &RequestHead) -> usize {
    // The target is a key of the store as well.
    let target = 2 * (request.authority.len() + request.path.len());
    size_of_fields(&request.fields) + target + PUSH_OVERHEAD
}

/// The URL of a push.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Target {
    scheme: Scheme,
    authority: String,
    path: String,
}

impl Target {
    pub(super) fn of(request: &RequestHead) -> Self {
        Self {
            scheme: request.scheme,
            authority: request.authority.to_ascii_lowercase(),
            path: request.path.clone(),
        }
    }

    pub(super) fn has_origin_of(&self, other: &Self) -> bool {
        self.scheme == other.scheme && self.authority == other.authority
    }
}

/// A push that is kept, or only read to its end.
#[derive(Debug)]
pub(super) struct Pushed {
    /// The hash of its URL in reports.
    pub(super) url: u32,
    pub(super) phase: Phase,
    /// The body bytes that arrived.
    pub(super) received: u64,
    /// The body bytes that a reader took.
    pub(super) used: u64,
    /// The fate that was reported.
    pub(super) reported: Option<Fate>,
    /// True until the push has ended.
    pub(super) is_arriving: bool,
    /// The copy for another request, and the push of which this one is a copy.
    pub(super) copy: Option<PushId>,
    pub(super) copy_of: Option<PushId>,
}

/// The phases of a push. The large ones are boxed, since a store keeps thousands in one table.
#[derive(Debug)]
pub(super) enum Phase {
    /// The push waits for a request, or for its head.
    Kept(Box<KeptPush>),
    /// A request is answered with the push.
    Claimed(Box<KeptPush>, Box<Reader>),
    /// The browser has a copy, and its request is answered with this 304.
    Confirmed(Option<Box<ResponseHead>>),
    /// The push is of no use. Its fate is this one, unless another was reported before.
    Useless(Fate),
}

/// The reader of a claimed push.
#[derive(Debug)]
pub(super) struct Reader {
    /// The request that is answered.
    pub(super) request: RequestHead,
    /// True if the head has been read.
    pub(super) has_head: bool,
    /// True if the head came alone. The gateway may hold the body and reset the stream, so the head
    /// waits for the body. A request that has got no head can still be sent to the origin.
    pub(super) awaits_body: bool,
}

/// The promise and the parts of its response that have arrived.
#[derive(Clone, Debug)]
pub(super) struct KeptPush {
    pub(super) request: RequestHead,
    /// True if the promise carries the fields of the gateway's own request.
    pub(super) has_own_fields: bool,
    pub(super) promised: Instant,
    /// The number of changes of cookies that the cookies of the push surely contain. They may lack
    /// each later change.
    pub(super) cookies_of: u64,
    /// The change that came after the promise, before the head.
    pub(super) precedes: Option<Change>,
    pub(super) response: Option<ArrivedResponse>,
    pub(super) body: VecDeque<Bytes>,
    pub(super) trailers: Option<Fields>,
    /// The bytes counted for the push now.
    pub(super) held: usize,
}

/// A change of the state of sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// Bytes in a tunnel, which hides the site.
    Hidden,
    /// An unsafe request to the origin of a push, or by a page of that origin.
    OfOrigin,
}

/// The head of a response and the facts that came with it.
#[derive(Clone, Debug)]
pub(super) struct ArrivedResponse {
    pub(super) head: ResponseHead,
    pub(super) hashes: Option<RequestHashes>,
    pub(super) metadata: Option<Metadata>,
    pub(super) arrived: Instant,
    /// The time of the last part so far.
    pub(super) last_part: Instant,
    pub(super) lifetime: Lifetime,
    /// True if the gateway sent the document because it may follow a page.
    pub(super) is_next: bool,
}

impl ArrivedResponse {
    /// Takes the fields for the client out of a head.
    pub(super) fn new(now: Instant, mut head: ResponseHead) -> Self {
        let hashes = head.fields.get(ASKED_FIELD).and_then(RequestHashes::parse);
        let metadata = head.fields.get(ASKED_AS_FIELD).and_then(Metadata::parse);
        let is_next = head.fields.contains(NEXT_PAGE_FIELD);
        head.fields.remove(ASKED_AS_FIELD);
        head.fields.remove(ASKED_FIELD);
        head.fields.remove(NEXT_PAGE_FIELD);
        let lifetime = match Lifetime::of(&head) {
            Lifetime::Validated | Lifetime::Unspecified if is_next => Lifetime::NextPage,
            lifetime => lifetime,
        };
        Self {
            head,
            hashes,
            metadata,
            arrived: now,
            last_part: now,
            lifetime,
            is_next,
        }
    }
}

impl KeptPush {
    /// Creates the record of a promise.
    pub(super) fn new(now: Instant, request: RequestHead, has_own_fields: bool) -> Self {
        Self {
            has_own_fields,
            held: size_of_promise(&request),
            request,
            promised: now,
            cookies_of: 0,
            precedes: None,
            response: None,
            body: VecDeque::new(),
            trailers: None,
        }
    }

    /// Returns whether the push is a check: a promise of HEAD, or of a conditional request. It can
    /// confirm the browser's copy, and serves no other request. A whole response to a conditional
    /// request is a push as any other.
    pub(super) fn is_check(&self) -> bool {
        let is_conditional = || {
            let response = self.response.as_ref();
            self.has_own_fields
                && validates_copy(&self.request.fields)
                && response.is_none_or(|response| response.head.status == 304)
        };
        self.request.method == Method::Head || is_conditional()
    }

    /// Returns whether the push is a document: in a frame, or at the end of a redirect. The browser
    /// requests it at once, and the gateway never waits for a claim of it.
    pub(super) fn is_document(&self) -> bool {
        self.has_own_fields && (is_navigation(&self.request) || is_framed(&self.request))
    }

    /// Returns whether the push is a document that the gateway sent because it may follow a page.
    pub(super) fn is_next(&self) -> bool {
        let response = self.response.as_ref();
        response.is_some_and(|response| response.is_next)
    }

    /// Returns whether the push has waited too long for a request without a condition.
    pub(super) fn is_over(&self, now: Instant, is_arriving: bool, load: &PageLoad) -> bool {
        let Some(response) = &self.response else {
            return now.saturating_duration_since(self.promised) >= MAX_WAIT;
        };
        let ended = (!is_arriving).then_some(response.last_part);
        response
            .lifetime
            .is_over(response.arrived, ended, now, load)
    }

    /// Returns whether the push has waited too long for a conditional request. Its head alone may
    /// answer, so the time of the head counts.
    pub(super) fn is_over_for_condition(&self, now: Instant, load: &PageLoad) -> bool {
        let Some(response) = &self.response else {
            return self.is_over(now, true, load);
        };
        let (arrived, lifetime) = (response.arrived, response.lifetime.for_condition());
        lifetime.is_over(arrived, Some(arrived), now, load)
    }

    /// Returns whether a request would wait longer for the head than it should.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.response.is_none() && now.saturating_duration_since(self.promised) > HEAD_TIMEOUT
    }

    /// Returns whether the response keeps the limits of a request, as one of a cache must (RFC 9111
    /// section 5.2.1). A push without a head counts as one that keeps them, and the head decides
    /// later.
    ///
    /// A response from the origin for the load under way counts as validated while it arrives (RFC
    /// 9113 section 8.4.2), and for a moment after its head. Only such a response serves a reload.
    /// If the request of the push made the same demand, an answer of a cache on the way counts as
    /// well: the browser's request would get that answer too.
    pub(super) fn keeps_limits(
        &self,
        now: Instant,
        asked: &RequestHead,
        is_arriving: bool,
        load: &PageLoad,
    ) -> bool {
        let directives = RequestPolicy::of(&asked.fields);
        let has_limits = !directives.accepts_revalidation_later();
        let Some(response) = self.response.as_ref().filter(|_| has_limits) else {
            return true;
        };
        let has_same_demand =
            self.has_own_fields && RequestPolicy::of(&self.request.fields).wants_validation();
        // A cache on the way has stored a response with an age, if only for less than a second.
        let is_stored = response.head.fields.contains("age") && !has_same_demand;
        let is_new =
            is_arriving || now.saturating_duration_since(response.arrived) <= VALIDATED_FOR;
        let is_validated = is_new && !is_stored && !load.is_after(response.arrived, now);
        if directives.wants_validation() {
            return is_validated;
        }
        let resident = match is_validated {
            true => Duration::ZERO,
            false => now.saturating_duration_since(self.promised),
        };
        let policy = ResponsePolicy::of(&response.head);
        let freshness = policy.freshness(CacheRules::PRIVATE, Receipt::default());
        directives.accepts_age(&freshness, resident)
    }

    /// Returns the 304 that confirms the copy of a conditional request, if the head of the push has
    /// arrived and describes that copy.
    pub(super) fn confirmation(&self, now: Instant, asked: &RequestHead) -> Option<ResponseHead> {
        let head = &self.response.as_ref()?.head;
        let age = now.saturating_duration_since(self.promised);
        confirms_copy(asked, head).then(|| confirmation(asked, &with_age(head, age)))
    }

    /// Decides from the received fields whether the push may serve a request.
    pub(super) fn check(&self, asked: &RequestHead) -> Result<(), Mismatch> {
        self.check_with(asked, false)
    }

    /// Decides the same, and may leave out the cookies.
    pub(super) fn check_with(
        &self,
        asked: &RequestHead,
        ignores_cookies: bool,
    ) -> Result<(), Mismatch> {
        let response = self.response.as_ref();
        let facts = PushFacts {
            request: &self.request,
            has_own_fields: self.has_own_fields,
            hashes: response.and_then(|response| response.hashes),
            metadata: response.and_then(|response| response.metadata),
            head: response.map(|response| &response.head),
            ignores_cookies,
        };
        facts.check(asked)
    }
}

impl Phase {
    /// Returns the parts of a push that are held.
    pub(super) fn kept_mut(&mut self) -> Option<&mut KeptPush> {
        match self {
            Self::Kept(kept) | Self::Claimed(kept, _) => Some(kept),
            Self::Confirmed(_) | Self::Useless(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    #[test]
    fn size_counts_texts_and_overheads() {
        let mut request = RequestHead::get(Scheme::Http, "a.example", "/path");
        assert_eq!(size_of_promise(&request), 2 * (9 + 5) + PUSH_OVERHEAD);
        request.fields.push("accept", "text/css");
        request.fields.push("cookie", "a=1");
        let text = request.fields.text_len();
        assert_eq!(size_of_fields(&request.fields), text + 2 * FIELD_OVERHEAD);
        assert_eq!(
            size_of_promise(&request),
            text + 2 * FIELD_OVERHEAD + 2 * (9 + 5) + PUSH_OVERHEAD
        );
    }
}
