//! A fetch: the request that the gateway makes for a push, and the response that it reads on the
//! way.

use std::sync::Arc;
use std::time::Instant;

use tandem_http::{RequestHead, ResponseHead};

use super::document::{DocumentReader, Purpose};
use super::fetch_phase::FetchPhase;
use super::fetch_queue::Turn;
use super::table::PageId;
use crate::fetch_standard::Metadata;
use crate::response_rules::Reuse;
use crate::wire::{ASKED_AS_FIELD, ASKED_FIELD, RequestHashes, url_hash};

/// The length in bytes of one pushed body, beyond which only a request for it keeps it alive.
pub(super) const MAX_PUSH_BYTES: u64 = 4 << 20;

/// The resource for which a push is made.
#[derive(Clone)]
pub(super) struct PushTarget {
    pub(super) url: Arc<str>,
    /// The [`url_hash`](crate::wire::url_hash) of the URL.
    pub(super) hash: u32,
    /// The hashes of the request's fields.
    pub(super) asked: RequestHashes,
    /// The metadata of the request, if it has any.
    pub(super) metadata: Option<Metadata>,
}

impl PushTarget {
    /// Returns the target of a request for `url`.
    pub(super) fn of(url: Arc<str>, request: &RequestHead) -> Self {
        Self {
            url,
            hash: url_hash(request),
            asked: RequestHashes::of(&request.fields),
            metadata: Metadata::of(&request.fields),
        }
    }

    /// Tells the client in the head of the push what the request had, and removes fields of these
    /// names that the origin has sent.
    pub(super) fn describe(&self, head: &mut ResponseHead) {
        head.fields.set(ASKED_FIELD, self.asked.encode());
        match self.metadata {
            Some(metadata) => head.fields.set(ASKED_AS_FIELD, metadata.encode()),
            None => drop(head.fields.remove(ASKED_AS_FIELD)),
        }
    }
}

/// The progress of the stream that carries a push to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushStream {
    /// No stream has taken the promise.
    Unopened,
    /// A stream has taken the promise, and has not sent it.
    Promised,
    /// The promise has been sent.
    Open,
    /// The stream is to be reset: [`Output::Cancel`](super::Output::Cancel) was returned.
    Reset,
}

/// A fetch, from its promise until its stream has closed, or until it is given up.
pub(super) struct Fetch {
    pub(super) page: PageId,
    pub(super) target: PushTarget,
    pub(super) purpose: Purpose,
    pub(super) turn: Turn,
    pub(super) phase: FetchPhase,
    /// The request of the push, once it was made.
    pub(super) request: Option<RequestHead>,
    /// The head of the response, if it waits for a request.
    pub(super) withheld: Option<Box<ResponseHead>>,
    pub(super) stream: PushStream,
    /// True if the browser claimed the push while it was held, or soon after another claim had
    /// released it. If caches can keep the response, the claim shows that the browser has no copy.
    pub(super) is_sign: bool,
    /// The time at which a claim of another resource has released the fetch.
    pub(super) released: Option<Instant>,
    /// The use that caches can make of the response, once its head has arrived with status 200.
    pub(super) reuse: Option<Reuse>,
    /// True if only the head is requested, with HEAD: the browser has a copy that is too old.
    pub(super) is_check: bool,
    /// True if the resource is a document that may follow the page.
    pub(super) is_next: bool,
    /// True if the browser has a copy that it must validate. The head alone may then suffice.
    pub(super) validates: bool,
    /// True if the push serves no request, so that further bytes of its body are wasted.
    pub(super) is_wasted: bool,
    /// True if a request waits for it.
    pub(super) requested: bool,
    /// True if the waiting request has the same cookies as the push, as far as the page shows them.
    pub(super) has_browser_cookies: bool,
    /// True if the push needs no withdrawal: its head was sent, so that the client reports it, or
    /// its promise was withdrawn before.
    pub(super) reported: bool,
    pub(super) reader: Option<DocumentReader>,
    /// True if the head gave the length of the body.
    pub(super) sized: bool,
    /// The bytes of its body so far.
    pub(super) received: u64,
}
