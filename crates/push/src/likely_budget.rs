//! The budget of pushes that wait for no claim, because nearly all visits of the gateway's one user
//! transferred their resources.
//!
//! A browser with a full cache gets such bodies for nothing. Their bytes may be a small part of the
//! bytes of all pushes that were of use. The first page that exceeds it ends these pushes until
//! later pushes have earned it. A gateway without experience permits them.

/// The bytes of use that earn one wasted byte: 5 % of them.
const BYTES_FOR_ONE: u64 = 20;

/// The bytes of pushes that were of use, and of likely ones that were not.
#[derive(Debug, Default)]
pub struct LikelyBudget {
    used: u64,
    wasted: u64,
}

impl LikelyBudget {
    /// Notes the bytes of a push that was of use, or of a likely one that was not.
    pub fn note(&mut self, bytes: u64, is_used: bool) {
        let sum = match is_used {
            true => &mut self.used,
            false => &mut self.wasted,
        };
        *sum = sum.saturating_add(bytes);
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
        budget.note(1000, false);
        assert!(!budget.permits());
        budget.note(19_999, true);
        assert!(!budget.permits());
        budget.note(1, true);
        assert!(budget.permits());
        budget.note(u64::MAX, false);
        assert!(!budget.permits());
    }
}
