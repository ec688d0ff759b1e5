//! The end of pushes that no request has claimed.

use std::time::Instant;

use super::{KeptPush, Phase, PushId, PushStore, SWEEP_INTERVAL, Target};
use crate::wire::Fate;

impl PushStore {
    /// Ends all pushes, since their session has ended.
    pub fn close(&mut self) {
        self.drop_waiting(|_, _, _| true);
    }

    pub(super) fn sweep(&mut self, now: Instant) {
        let load = self.load;
        self.drop_waiting(|_, kept, is_arriving| kept.is_over(now, is_arriving, &load));
        self.next_sweep = (!self.waiting.is_empty()).then(|| now + SWEEP_INTERVAL);
    }

    /// Drops the waiting pushes that `is_dropped` chooses by their target, their parts, and whether
    /// more parts are to come.
    pub(super) fn drop_waiting(&mut self, is_dropped: impl Fn(&Target, &KeptPush, bool) -> bool) {
        let mut dropped: Vec<PushId> = Vec::new();
        for (target, id) in &self.waiting {
            let pushed = self.pushes.get(id);
            match pushed.map(|pushed| (&pushed.phase, pushed.is_arriving)) {
                Some((Phase::Kept(kept), is_arriving))
                    if !is_dropped(target, kept, is_arriving) => {}
                _ => dropped.push(*id),
            }
        }
        // In the order of their promises, so that decisions do not depend on the map.
        dropped.sort_unstable();
        for id in dropped {
            self.discard(id, Fate::Wasted);
            self.release(id);
        }
    }
}
