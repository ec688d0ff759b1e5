//! The trial of a saved speed, which the owner of the speed observes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The result of a trial so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// The larger window may be in use. Its packets are not confirmed.
    Pending,
    /// The sender has had too little to send, and has not used the larger window so far.
    Unused,
    /// The path has carried the larger window, or does not fit the saved speed.
    Done,
    /// The path did not carry the larger window.
    Failed,
}

/// A handle to the trial of a saved speed. A copy is with the sender that tries the speed.
#[derive(Clone, Debug)]
pub struct Trial(Arc<AtomicU8>);

impl Default for Trial {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(Outcome::Pending as u8)))
    }
}

impl Trial {
    /// Returns the result so far.
    pub fn outcome(&self) -> Outcome {
        let outcomes = [Outcome::Unused, Outcome::Done, Outcome::Failed];
        let now = self.0.load(Ordering::Relaxed);
        let found = outcomes.into_iter().find(|it| *it as u8 == now);
        found.unwrap_or(Outcome::Pending)
    }

    /// Notes the result so far.
    pub fn set(&self, outcome: Outcome) {
        self.0.store(outcome as u8, Ordering::Relaxed);
    }

    /// Returns true if this handle is the last one: the sender is gone.
    pub fn is_orphaned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}
