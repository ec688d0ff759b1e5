//! A fetch: the request that the gateway makes for a push, and the response that it reads on the
//! way.
//!
//! ```text
//!  Waiting ──▶ Fetching ─────────▶ Passing ──▶ Over
//!  promised,   for its  │       ▲  its body
//!  held or     head     ▼       │
//!  queued              Slow ────┘
//!                      without a slot
//! ```

use std::sync::Arc;

use tandem_http::RequestHead;

use super::document::{DocumentReader, Purpose};
use super::fetch_queue::Turn;
use super::table::PageId;
use crate::wire::RequestHashes;

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
}

/// The progress of a push.
pub(super) enum FetchPhase {
    /// The promise has not been taken, or waits for its turn with this request.
    Waiting(RequestHead),
    /// It has a slot of the queue, and no head yet.
    Fetching,
    /// It waits for its head without a slot, because it took too long.
    Slow,
    /// The head was passed on.
    Passing,
    /// It has ended or failed.
    Over,
}

/// The progress of the stream that carries a push to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushStream {
    /// No carrier has taken the promise.
    Unopened,
    /// A carrier has taken the promise, and has not sent it.
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
    /// True if the fetch waits until the browser shows that it lacks the resource.
    pub(super) held: bool,
    pub(super) stream: PushStream,
    /// True if the browser claimed the push while it was held. If caches can keep the response, the
    /// claim shows that the browser has no copy.
    pub(super) is_sign: bool,
    /// True if only the head is requested, with HEAD: the browser has a copy that is too old.
    pub(super) is_check: bool,
    /// True if the resource is a document that may follow the page.
    pub(super) is_next: bool,
    /// True if the fetch begins a moment after its promise, because requests of the browser may
    /// still arrive.
    pub(super) gathers: bool,
    /// True if a check of the same resource has replaced the held fetch. Only a request that waits
    /// for the fetch begins it.
    pub(super) is_superseded: bool,
    /// True if the browser has a copy that it must validate. The head alone may then suffice.
    pub(super) validates: bool,
    /// True if the head was passed on, and the body waits for a request that needs it.
    pub(super) body_held: bool,
    /// True if the head has arrived and is held back: only a request that waits already may get the
    /// response.
    pub(super) head_held: bool,
    /// True if the push serves no request, so that further bytes of its body are wasted.
    pub(super) is_wasted: bool,
    /// True if a request waits for it.
    pub(super) requested: bool,
    /// True if the waiting request has the same cookies as the push, as far as its page shows them.
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

impl Fetch {
    /// Returns whether the fetch, its head or its body waits for a request.
    pub(super) const fn waits(&self) -> bool {
        self.held || self.head_held || self.body_held
    }

    /// Returns whether a claim of another resource may begin the fetch.
    pub(super) const fn is_releasable(&self) -> bool {
        self.held && !self.is_superseded
    }

    /// Returns whether the fetch waits until the browser shows that it lacks the resource.
    pub(super) const fn is_held_back(&self) -> bool {
        self.held && matches!(self.phase, FetchPhase::Waiting(_))
    }
}
