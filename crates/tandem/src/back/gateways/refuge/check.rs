//! The record of the checks of refuges: their results, and the pauses between them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::back::ways::Network;
use crate::exchange::Isolation;

/// The wait before another look at a silent path that exchanges cannot leave, and the least time
/// between checks without an answer.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// The least time between checks if the first one ended because a datagram arrived.
const AGAIN_AFTER_DATAGRAM: Duration = Duration::from_millis(250);
/// The longest time between checks of a refuge that does not answer.
const MOST_AGAIN: Duration = Duration::from_secs(8);
/// The time for which the answer of a refuge holds.
const FRESH: Duration = Duration::from_millis(200);

/// The checks of refuges, by key and way.
#[derive(Default)]
pub(in crate::back::gateways) struct Checks(
    pub(super) RefCell<HashMap<(Isolation, usize), Rc<Check>>>,
);

impl Checks {
    /// Ends and forgets the checks of a key that is no longer used.
    pub(in crate::back::gateways) fn forget(&self, isolation: &Isolation) {
        let mut checks = self.0.borrow_mut();
        for (_, check) in checks.extract_if(|(of, _), _| of == isolation) {
            check.end(Outcome::Unanswered);
        }
    }

    #[cfg(test)]
    pub(in crate::back::gateways) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

/// A check of whether a refuge answers, which all exchanges of a key share.
pub(super) struct Check {
    /// The network on which it was begun.
    network: Network,
    begun: Instant,
    /// The result, and its time.
    pub(super) ended: Cell<Option<(Outcome, Instant)>>,
    done: Notify,
    /// The number of exchanges that may move.
    pub(super) waiters: Cell<usize>,
    /// The result of the check before it, and the pause that followed.
    earlier: Option<(Outcome, Duration)>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    Unanswered,
    /// The silent session has received a datagram.
    Spared,
}

impl Check {
    /// Begins a check after an earlier one.
    pub(super) fn after(earlier: Option<&Self>, network: Network) -> Self {
        let ended = earlier.and_then(|it| Some((it, it.ended.get()?.0)));
        Self {
            network,
            begun: Instant::now(),
            ended: Cell::default(),
            done: Notify::new(),
            waiters: Cell::new(0),
            earlier: ended.map(|(it, result)| (result, it.pause(result))),
        }
    }

    /// Returns the time before another check. It doubles after each equal result.
    fn pause(&self, result: Outcome) -> Duration {
        let equal = self.earlier.filter(|(of, _)| *of == result);
        let doubled = equal.map(|(_, pause)| 2 * pause);
        match result {
            Outcome::Answered => AGAIN,
            Outcome::Unanswered => doubled.unwrap_or(AGAIN).min(MOST_AGAIN),
            Outcome::Spared => doubled.unwrap_or(AGAIN_AFTER_DATAGRAM).min(AGAIN),
        }
    }

    /// Returns the rest of the pause after this check. Returns `None` once it is over, or on
    /// another network.
    pub(super) fn rest(&self, network: Network) -> Option<Duration> {
        let (result, ended) = self.ended.get().filter(|_| self.network == network)?;
        let from = match result {
            Outcome::Answered => ended,
            Outcome::Unanswered | Outcome::Spared => self.begun,
        };
        let rest = (from + self.pause(result)).saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    /// Returns true if another exchange may use the result, or wait for it.
    pub(super) fn is_fresh(&self, network: Network) -> bool {
        match self.ended.get() {
            None => true,
            Some((Outcome::Answered, ended)) => self.network == network && ended.elapsed() < FRESH,
            Some(_) => self.rest(network).is_some(),
        }
    }

    /// Returns true if the next check of the key depends on this one.
    pub(super) fn is_remembered(&self, network: Network) -> bool {
        let is_recent = |(result, ended): (Outcome, Instant)| {
            ended.elapsed() < 2 * self.pause(result).max(AGAIN)
        };
        let is_recent = self.ended.get().is_none_or(is_recent);
        self.is_fresh(network) || (self.network == network && is_recent)
    }

    /// Returns true if the refuge is not needed, or does not answer.
    pub(super) fn has_failed(&self) -> bool {
        let ended = self.ended.get();
        ended.is_some_and(|(result, _)| result != Outcome::Answered)
    }

    /// Ends the check, unless it has a result.
    pub(super) fn end(&self, result: Outcome) {
        if self.ended.get().is_none() {
            self.ended.set(Some((result, Instant::now())));
            self.done.notify_waiters();
        }
    }

    /// Returns true once the refuge has answered, and false if it does not answer, or need not.
    pub(super) async fn answered(&self) -> bool {
        loop {
            let done = self.done.notified();
            if let Some((result, _)) = self.ended.get() {
                return result == Outcome::Answered;
            }
            done.await;
        }
    }
}
