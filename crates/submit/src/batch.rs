//! Batches: the gateways of a store deliver the submissions of several clients together and in
//! random order.
//!
//! The store collects submissions until the [`Rule`] ends their batch. It then makes all of them
//! due at one time, and delivers those of one time in the order of their random identifiers. The
//! batch is in the store, so all gateways share it, and it survives a restart.

use crate::store::{BATCH_RESERVE, Millis};

/// The rule by which a batch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The number of submissions that end a batch at once.
    pub size: u64,
    /// The number of submissions that end a batch after `wait`.
    pub least: u64,
    /// The time for which a batch collects submissions, in milliseconds.
    pub wait: Millis,
    /// The time after which a batch ends with fewer submissions than `least`, in milliseconds.
    pub longest: Millis,
}

impl Rule {
    /// Returns true if a batch of `members` ends. `age` is the time since the first one arrived.
    pub const fn ends(&self, members: u64, age: Millis) -> bool {
        members > 0
            && (members >= self.size
                || (members >= self.least && age >= self.wait)
                || age >= self.longest)
    }

    /// Returns the time at which a submission is due that no gateway has released.
    pub const fn due(&self, arrived: Millis) -> Millis {
        let end = arrived.saturating_add(self.longest);
        end.saturating_add(BATCH_RESERVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_ends_by_size_time_and_bound() {
        let rule = Rule {
            size: 20,
            least: 5,
            wait: 600,
            longest: 6000,
        };
        for (members, age, ends) in [
            (0, 9000, false),
            (1, 600, false),
            (4, 5999, false),
            (1, 6000, true),
            (5, 599, false),
            (5, 600, true),
            (19, 0, false),
            (20, 0, true),
            (900, -1, true),
        ] {
            assert_eq!(rule.ends(members, age), ends, "{members} {age}");
        }
        assert_eq!(rule.due(10), 6010 + BATCH_RESERVE);
    }
}
