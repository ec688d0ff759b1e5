//! The limits of the work that the gateway does for one page.

use tandem_preload::Scanner;

/// The largest number of bytes of bodies for one page.
pub(super) const MAX_BODY_BYTES: u64 = 32 << 20;

/// The largest number of bytes of promises for one page. No flow control holds promises back.
const MAX_PROMISE_BYTES: usize = 256 << 10;

/// The largest number of bytes of documents that are read for one page.
const MAX_READ_BYTES: usize = 32 << 20;

/// The largest number of resources of other origins for one page.
pub(super) const MAX_FOREIGN: usize = 256;

/// The largest number of lazy images and frames that are pushed: those of the first few screens.
/// Further ones are pushed only if other users needed them.
pub(super) const MAX_LAZY: usize = 16;

/// The cost of a check of a document's policies that refuses a resource. A check that admits one
/// costs 1.
pub(super) const REFUSAL: usize = 4;

/// The sum of these costs after which nothing more is promised for one page. It permits as many
/// refusals as the scanner lists resources of one document.
pub(super) const MAX_POLICY_CHECKS: usize = REFUSAL * Scanner::MAX_NEEDS;

/// The amounts that may still be spent on one page.
pub(super) struct Budget {
    pub(super) body_bytes: u64,
    pub(super) promise_bytes: usize,
    pub(super) read_bytes: usize,
    pub(super) foreign: usize,
    pub(super) lazy: usize,
    pub(super) policy_checks: usize,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self {
            body_bytes: MAX_BODY_BYTES,
            promise_bytes: MAX_PROMISE_BYTES,
            read_bytes: MAX_READ_BYTES,
            foreign: MAX_FOREIGN,
            lazy: MAX_LAZY,
            policy_checks: MAX_POLICY_CHECKS,
        }
    }
}
