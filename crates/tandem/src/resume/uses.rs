//! The trials of saved speeds in each network: one at a time, and none of a speed that has failed
//! (RFC 9959, "Using saved_cwnd" and "Removing saved information").
//!
//! The table is bounded, and holds nothing but the network, the time and the result of a trial.

use std::collections::HashMap;
use std::time::Duration;

use tandem_resume::{Outcome, Trial};

use super::token::{ClientNetwork, LIFETIME, SavedPath};

/// The networks that are remembered.
const MAX_NETWORKS: usize = 4096;
/// The time for which an unused speed keeps others from a trial.
const UNUSED: Duration = Duration::from_secs(10);

/// The last trial in a network.
#[derive(Debug)]
struct Use {
    trial: Trial,
    since: Duration,
}

impl Use {
    /// Returns true if a saved path may be tried after this trial.
    fn permits(&self, now: Duration, saved: &SavedPath) -> bool {
        let is_over = self.trial.is_orphaned();
        match self.trial.outcome() {
            Outcome::Done => true,
            Outcome::Unused => is_over || now >= self.since + UNUSED,
            Outcome::Pending if !is_over => false,
            // A session that ended during its trial has probably overloaded the path.
            Outcome::Pending | Outcome::Failed => saved.expires > self.since + LIFETIME,
        }
    }
}

/// The last trials by network.
#[derive(Debug, Default)]
pub struct Uses(HashMap<ClientNetwork, Use>);

impl Uses {
    /// Tries the speed of a saved path by `begin`, unless another session of the network tries one,
    /// or a speed of that age has failed. Returns true if `begin` was called.
    pub fn attempt(
        &mut self,
        now: Duration,
        network: ClientNetwork,
        saved: &SavedPath,
        begin: impl FnOnce() -> Option<Trial>,
    ) -> bool {
        let last = self.0.get(&network);
        if last.is_some_and(|last| !last.permits(now, saved)) {
            return false;
        }
        let Some(trial) = begin() else { return true };
        self.0.remove(&network);
        if self.0.len() >= MAX_NETWORKS {
            let oldest = self.0.iter().min_by_key(|(_, last)| last.since);
            if let Some(oldest) = oldest.map(|(network, _)| *network) {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(network, Use { trial, since: now });
        true
    }
}

#[cfg(test)]
mod tests {
    use tandem_resume::SavedSpeed;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOME: ClientNetwork = [4, 192, 0, 2, 0, 0, 0];

    /// A saved path whose speed was measured at this second.
    fn saved(measured: u32) -> SavedPath {
        SavedPath {
            speed: SavedSpeed {
                rate: 2_000_000,
                round_trip: SECOND,
            },
            expires: SECOND * measured + LIFETIME,
        }
    }

    /// Tries a saved path. Returns the sender's handle if that is permitted.
    fn attempt(
        uses: &mut Uses,
        now: u32,
        network: ClientNetwork,
        saved: &SavedPath,
    ) -> Option<Trial> {
        let trial = Trial::default();
        let begin = || Some(trial.clone());
        let is_permitted = uses.attempt(SECOND * now, network, saved, begin);
        is_permitted.then_some(trial)
    }

    #[test]
    fn speed_is_tried_by_one_session_of_a_network() {
        let mut uses = Uses::default();
        let first = attempt(&mut uses, 100, HOME, &saved(1)).expect("the first one");
        assert!(attempt(&mut uses, 101, HOME, &saved(2)).is_none());
        let other = [4, 198, 51, 100, 0, 0, 0];
        assert!(attempt(&mut uses, 101, other, &saved(2)).is_some());
        first.set(Outcome::Done);
        assert!(attempt(&mut uses, 102, HOME, &saved(1)).is_some());
    }

    #[test]
    fn unused_speed_makes_room_after_some_seconds() {
        let mut uses = Uses::default();
        let first = attempt(&mut uses, 100, HOME, &saved(1)).expect("the first one");
        first.set(Outcome::Unused);
        assert!(attempt(&mut uses, 105, HOME, &saved(1)).is_none());
        assert!(attempt(&mut uses, 110, HOME, &saved(1)).is_some());
    }

    #[test]
    fn failed_speed_is_not_tried_again() {
        for is_lost in [false, true] {
            let mut uses = Uses::default();
            let first = attempt(&mut uses, 100, HOME, &saved(1)).expect("the first one");
            if !is_lost {
                first.set(Outcome::Failed);
            }
            drop(first);
            assert!(attempt(&mut uses, 200, HOME, &saved(99)).is_none());
            assert!(attempt(&mut uses, 200, HOME, &saved(150)).is_some());
        }
    }

    #[test]
    fn oldest_network_makes_room() {
        let mut uses = Uses::default();
        for number in 0..=MAX_NETWORKS as u32 {
            let [_, _, high, low] = number.to_be_bytes();
            attempt(&mut uses, number, [4, 10, high, low, 0, 0, 0], &saved(1));
        }
        assert_eq!(uses.0.len(), MAX_NETWORKS);
        assert!(!uses.0.contains_key(&[4, 10, 0, 0, 0, 0, 0]));
    }
}
