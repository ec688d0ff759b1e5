//! What one direction of a link does to packets.

use std::time::Duration;

use crate::damage::Reset;
use crate::delay::Jitter;
use crate::loss::Loss;
use crate::queue::QueueLimits;
use crate::rate::Rate;

/// Longest delay accepted.
pub const MAX_DELAY: Duration = Duration::from_secs(3600);

/// One direction of a link. The default passes everything on at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// Propagation delay, one way.
    pub delay: Duration,
    /// Variation of the delay.
    pub jitter: Option<Jitter>,
    /// Packets lost before the queue.
    pub loss: Loss,
    /// Bits per second, or a trace.
    pub rate: Rate,
    /// Limits of the packets that wait for the rate.
    pub queue: QueueLimits,
    /// Probability that a packet enters twice.
    pub duplicate: f64,
    /// Probability that a packet has a wrong bit.
    pub corrupt: f64,
    /// Injected TCP resets.
    pub reset: Option<Reset>,
}

/// What is wrong with a description of a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A quantity that cannot be read.
    #[error("{what} {text:?}: expected {expected}")]
    Text {
        /// Kind of quantity.
        what: &'static str,
        /// As given.
        text: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A value out of range.
    #[error("{what} must be {limits}")]
    Range {
        /// Kind of value.
        what: &'static str,
        /// The range.
        limits: &'static str,
    },
    /// A bad line of a trace; line 0 is the file as a whole.
    #[error("trace, line {line}: {problem}")]
    Trace {
        /// Line number from 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No profile of this name.
    #[error("no link profile {0:?}; there are: {all}", all = crate::profile::names().join(", "))]
    Profile(String),
}

impl LinkConfig {
    /// Checks every value; [`crate::Link::new`] does so too.
    pub fn check(&self) -> Result<(), ConfigError> {
        let probability = |p: f64, what| {
            if (0.0..=1.0).contains(&p) { Ok(()) } else { Err(ConfigError::Range { what, limits: "0 to 1" }) }
        };
        self.loss.check()?;
        probability(self.duplicate, "probability of duplication")?;
        probability(self.corrupt, "probability of corruption")?;
        probability(self.reset.map_or(0.0, |reset| reset.probability), "probability of a reset")?;
        if self.delay > MAX_DELAY || self.jitter.is_some_and(|j| j.scale > MAX_DELAY) {
            return Err(ConfigError::Range { what: "delay", limits: "at most an hour" });
        }
        if self.rate == Rate::Constant(0) {
            return Err(ConfigError::Range { what: "rate", limits: "at least 1 bit per second" });
        }
        Ok(())
    }
}
