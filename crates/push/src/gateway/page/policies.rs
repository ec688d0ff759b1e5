//! The policies of a page and its frames, and the needs that they admit.

use std::sync::Arc;

use tandem_preload::Need;

use super::super::budget::REFUSAL;
use super::Page;
use crate::fetch_standard::ContentSecurity;

/// The largest number of frames whose policies are remembered.
const MAX_FRAMES: usize = 64;

impl Page {
    /// Returns the document's policies for its resources.
    pub(in super::super) const fn content_policies(&self) -> &Arc<ContentSecurity> {
        &self.content
    }

    /// Sets the document's policies for its resources.
    pub(in super::super) fn set_content_policies(&mut self, policies: Arc<ContentSecurity>) {
        self.content = policies;
    }

    /// Sets the policies of a frame. Resources of frames without a place get no promises.
    pub(in super::super) fn set_frame_policies(
        &mut self,
        frame: &str,
        policies: Arc<ContentSecurity>,
    ) {
        if self.frames.len() < MAX_FRAMES || self.frames.contains_key(frame) {
            self.frames.insert(frame.into(), policies);
        }
    }

    /// Returns whether the requests of a need's document to other origins have no cookies, unless
    /// they are made by CORS.
    pub(super) fn is_credentialless_for(&self, need: &Need) -> bool {
        match need.frame.as_deref() {
            None => self.is_credentialless || self.content.is_credentialless(),
            Some(frame) => self
                .frame_policies(frame)
                .is_some_and(|policies| policies.is_credentialless()),
        }
    }

    /// Returns the policies of a frame, if they are known.
    pub(in super::super) fn frame_policies(&self, frame: &str) -> Option<&Arc<ContentSecurity>> {
        self.frames.get(frame)
    }

    /// Returns whether nothing of a frame is admitted.
    pub(in super::super) fn is_closed_frame(&self, frame: &str) -> bool {
        self.frame_policies(frame).is_some_and(|it| it.is_closed())
    }

    /// Returns whether the policies of the need's document plainly admit the request. Each check
    /// costs a part of the page's budget, and a refusal costs more. Without budget, the page is
    /// closed.
    pub(in super::super) fn admits_by_policy(&mut self, need: &Need) -> bool {
        let policies = match &need.frame {
            None => Some(&self.content),
            // The upgrade holds in frames too.
            Some(_) if self.content.upgrades(&need.url) => return false,
            Some(frame) => self.frames.get(&**frame),
        };
        let Some(policies) = policies else {
            return self.frames.len() < MAX_FRAMES;
        };
        if policies.is_empty() {
            return true;
        }
        let is_admitted = policies.admits(need);
        let cost = if is_admitted { 1 } else { REFUSAL };
        self.budget.policy_checks = self.budget.policy_checks.saturating_sub(cost);
        is_admitted
    }
}
