//! Detection of peers that ignore flow-control windows.
//!
//! ```text
//! a window is empty, no SETTINGS or WINDOW_UPDATE yet ─¼ s─▶ PING ─▶ answer ─1 s─▶ no windows
//!                  either frame arrives: the peer knows windows, for good
//! ```
//!
//! Frames are read in order, so a peer that answers has read all data that filled the window. A
//! peer with windows would have to leave out SETTINGS as well to be mistaken; it may still reset
//! the stream.

use std::time::{Duration, Instant};

/// The time with an empty window before the PING, which costs little.
const BEFORE_ASKING: Duration = Duration::from_millis(250);
/// The time to wait for credit after the answer.
const CREDIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The knowledge about the peer.
#[derive(Debug)]
pub(super) enum FlowProbe {
    /// The peer counts windows, or is assumed to.
    Counts,
    /// The peer has sent neither SETTINGS nor WINDOW_UPDATE, and no window is empty.
    Silent,
    /// A window is empty; the PING is sent at this time.
    Empty(Option<Instant>),
    /// The PING with this id was sent.
    Asked(u32),
    /// The peer answered; credit is awaited until this time.
    Answered(Instant),
    /// The peer does not count windows.
    Ignores,
}

/// The next action of the session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Ask,
    LiftWindows,
}

impl FlowProbe {
    pub(super) const fn new(enabled: bool) -> Self {
        if enabled { Self::Silent } else { Self::Counts }
    }

    pub(super) const fn ignores(&self) -> bool {
        matches!(self, Self::Ignores)
    }

    /// SETTINGS or WINDOW_UPDATE came.
    pub(super) const fn heard(&mut self) {
        if !self.ignores() {
            *self = Self::Counts;
        }
    }

    /// A window stands empty and something waits for it. `clock`: the time of the last input, if
    /// there was any.
    pub(super) fn blocked(&mut self, clock: Option<Instant>) {
        if matches!(self, Self::Silent) {
            *self = Self::Empty(clock.map(|now| now + BEFORE_ASKING));
        }
    }

    /// A PING of ours came back.
    pub(super) fn pong(&mut self, now: Instant, id: u32) -> bool {
        let ours = matches!(self, Self::Asked(asked) if *asked == id);
        if ours {
            *self = Self::Answered(now + CREDIT_TIMEOUT);
        }
        ours
    }

    /// Starts the timers that were waiting for the time.
    pub(super) fn advance(&mut self, now: Instant) -> Step {
        match *self {
            Self::Empty(None) => *self = Self::Empty(Some(now + BEFORE_ASKING)),
            Self::Empty(Some(at)) if now >= at => return Step::Ask,
            Self::Answered(at) if now >= at => {
                *self = Self::Ignores;
                return Step::LiftWindows;
            }
            _ => {}
        }
        Step::Nothing
    }

    pub(super) const fn asked(&mut self, id: u32) {
        *self = Self::Asked(id);
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        match *self {
            Self::Empty(at) => at,
            Self::Answered(at) => Some(at),
            Self::Counts | Self::Silent | Self::Asked(_) | Self::Ignores => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_asked_then_believed() {
        let start = Instant::now();
        let mut probe = FlowProbe::new(true);
        assert_eq!(probe.advance(start), Step::Nothing);
        probe.blocked(None);
        assert_eq!(probe.advance(start), Step::Nothing);
        assert_eq!(probe.deadline(), Some(start + BEFORE_ASKING));
        assert_eq!(probe.advance(start + BEFORE_ASKING), Step::Ask);
        probe.asked(5);
        assert!(!probe.pong(start, 7));
        assert!(probe.pong(start + CREDIT_TIMEOUT, 5));
        assert_eq!(probe.advance(start + CREDIT_TIMEOUT), Step::Nothing);
        assert_eq!(probe.advance(start + CREDIT_TIMEOUT * 2), Step::LiftWindows);
        assert!(probe.ignores());
    }

    #[test]
    fn one_word_settles_it() {
        let start = Instant::now();
        let mut probe = FlowProbe::new(true);
        probe.heard();
        probe.blocked(Some(start));
        assert_eq!(probe.advance(start), Step::Nothing);
        assert_eq!(probe.deadline(), None);
    }
}
