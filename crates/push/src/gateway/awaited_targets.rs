//! The targets of redirects to other origins that the browser of a session is expected to request
//! (see `known_targets`).

use std::collections::VecDeque;
use std::sync::Arc;

use super::fetch::PushTarget;
use super::visit_transfers::VisitTransfers;

/// The targets of redirects of a session, and its visits.
#[derive(Default)]
pub(super) struct KnownTargets {
    /// The redirect that was looked up last, until its page handles it.
    pub(super) looked_up: Option<LookedUp>,
    /// The redirects whose targets the browser is expected to request.
    pub(super) awaited: VecDeque<AwaitedTarget>,
    /// The last visits.
    pub(super) visits: VisitTransfers,
}

impl KnownTargets {
    /// Takes the first awaited target that a condition holds for.
    pub(super) fn take(&mut self, is_it: impl Fn(&AwaitedTarget) -> bool) -> Option<AwaitedTarget> {
        let at = self.awaited.iter().position(is_it)?;
        self.awaited.remove(at)
    }
}

/// A redirect to another origin.
pub(super) struct LookedUp {
    pub(super) redirect: Arc<str>,
    pub(super) target: String,
    /// True if earlier visits have shown the browser's request for the target.
    pub(super) is_known: bool,
}

/// A redirect, and the request for its target that the gateway makes or would make.
pub(super) struct AwaitedTarget {
    pub(super) redirect: Arc<str>,
    pub(super) target: PushTarget,
    /// True if the gateway has followed the redirect.
    pub(super) is_followed: bool,
}
