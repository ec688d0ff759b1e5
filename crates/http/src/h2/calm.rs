//! A bound on frames that cost work and move nothing (RFC 9113 section 10.5): SETTINGS, PING,
//! PRIORITY, resets, empty DATA, small WINDOW_UPDATEs, refused streams. Useful progress and time
//! pay for them.

use std::time::{Duration, Instant};

use crate::{Reason, SessionError};

/// What one frame costs, in bytes of useful progress.
const COST: u64 = 1024;
/// Frames in one go that nothing has paid for.
const FULL: u64 = 2048 * COST;
/// Frames that each second pays for.
const PER_SECOND: u64 = 64 * COST;
/// What an exchange that ran to its end pays for.
const EXCHANGE: u64 = 8 * COST;
/// Answers that may wait for the socket to take them.
const MAX_UNSENT: u32 = 2048;

const FLOOD: SessionError = SessionError {
    reason: Reason::EnhanceYourCalm,
    detail: "too many idle frames",
};

/// The budget of one session.
#[derive(Debug)]
pub(super) struct Calm {
    left: u64,
    last: Option<Instant>,
    unsent: u32,
}

impl Calm {
    pub(super) const fn new() -> Self {
        Self {
            left: FULL,
            last: None,
            unsent: 0,
        }
    }

    /// Time pays.
    pub(super) fn tick(&mut self, now: Instant) {
        let passed = now
            .saturating_duration_since(*self.last.get_or_insert(now))
            .min(Duration::from_secs(3600));
        if passed >= Duration::from_millis(100) {
            self.last = Some(now);
            self.earn(passed.as_millis() as u64 * PER_SECOND / 1000);
        }
    }

    /// `bytes` of bodies went either way.
    pub(super) fn earn(&mut self, bytes: u64) {
        self.left = (self.left + bytes).min(FULL);
    }

    /// An exchange ran to its end.
    pub(super) fn finished(&mut self) {
        self.earn(EXCHANGE);
    }

    /// A frame that moves nothing arrived.
    pub(super) fn spend(&mut self) -> Result<(), SessionError> {
        self.left = self.left.checked_sub(COST).ok_or(FLOOD)?;
        Ok(())
    }

    /// ... and is answered by a frame of ours.
    pub(super) fn spend_on_answer(&mut self) -> Result<(), SessionError> {
        self.unsent += 1;
        if self.unsent > MAX_UNSENT {
            return Err(FLOOD);
        }
        self.spend()
    }

    /// All answers are on their way.
    pub(super) fn sent(&mut self) {
        self.unsent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend_all(calm: &mut Calm) -> usize {
        std::iter::from_fn(|| calm.spend().ok()).count()
    }

    #[test]
    fn progress_and_time_pay() {
        let start = Instant::now();
        let mut calm = Calm::new();
        calm.tick(start);
        assert_eq!(spend_all(&mut calm), 2048);
        calm.earn(3 * COST);
        assert_eq!(spend_all(&mut calm), 3);
        calm.finished();
        assert_eq!(spend_all(&mut calm), 8);
        calm.tick(start + Duration::from_secs(2));
        assert_eq!(spend_all(&mut calm), 128);
        calm.tick(start + Duration::from_secs(1_000_000));
        assert_eq!(spend_all(&mut calm), 2048, "never more than a full budget");
    }

    #[test]
    fn unsent_answers_are_bounded_whatever_pays() {
        let mut calm = Calm::new();
        for _ in 0..MAX_UNSENT {
            calm.earn(COST);
            assert_eq!(calm.spend_on_answer(), Ok(()));
        }
        calm.earn(COST);
        assert_eq!(calm.spend_on_answer(), Err(FLOOD));
    }
}
