//! The budget of pushes that wait for no claim, because nearly all visits of the gateway's one user
//! transferred their resources.
//!
//! A browser with a full cache gets such bodies for nothing. The bytes of such bodies may be a
//! small part of the bytes of all pushes that were of use. The first page that exceeds this part
//! ends these pushes, until later pushes that are of use have earned the excess. A gateway without
//! experience permits them.

use crate::gateway::Counts;

/// The bytes of use that earn one wasted byte: 5 % of them.
const BYTES_FOR_ONE: u64 = 20;

/// The bytes of pushes that were of use, and of likely ones that were not.
#[derive(Debug, Default)]
pub struct LikelyBudget {
    used: u64,
    wasted: u64,
}

impl LikelyBudget {
    /// Notes the counts of a session.
    pub const fn note(&mut self, counts: &Counts) {
        self.used = self.used.saturating_add(counts.used_bytes);
        self.wasted = self.wasted.saturating_add(counts.likely_wasted_bytes);
    }

    /// Returns whether likely pushes may leave.
    pub const fn permits(&self) -> bool {
        self.wasted.saturating_mul(BYTES_FOR_ONE) <= self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waste_ends_likely_pushes_until_it_is_earned() {
        let mut budget = LikelyBudget::default();
        assert!(budget.permits());
        for (used_bytes, likely_wasted_bytes, permits) in [
            (0, 1000, false),
            (19_999, 0, false),
            (1, 0, true),
            (0, u64::MAX, false),
        ] {
            budget.note(&Counts {
                used_bytes,
                likely_wasted_bytes,
                ..Counts::default()
            });
            assert_eq!(budget.permits(), permits, "{used_bytes}");
        }
    }
}
