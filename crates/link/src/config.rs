//! Configuration of one direction of a link.

use std::fmt;
use std::time::Duration;

use crate::damage::Reset;
use crate::delay::Jitter;
use crate::gaps::Gaps;
use crate::loss::Loss;
use crate::queue::QueueLimits;
use crate::rate::Rate;
use crate::text;

/// Longest delay accepted.
pub const MAX_DELAY: Duration = Duration::from_secs(3600);

/// The configuration of one direction of a link. The default passes every packet on at once.
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
    /// Times in which nothing leaves.
    pub gaps: Option<Gaps>,
    /// Probability that a packet enters twice.
    pub duplicate: f64,
    /// Probability that a packet has a wrong bit.
    pub corrupt: f64,
    /// Injected TCP resets.
    pub reset: Option<Reset>,
}

impl fmt::Display for LinkConfig {
    /// Writes the differences from a link that passes every packet on at once, in the notation that
    /// the parsers read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut parts = Vec::new();
        let mut part = |differs: bool, name, value: &dyn fmt::Display| {
            if differs {
                parts.push(format!("{name} {value}"));
            }
        };
        part(
            self.delay != default.delay,
            "delay",
            &text::Time(self.delay),
        );
        self.jitter
            .iter()
            .for_each(|jitter| part(true, "jitter", jitter));
        part(self.loss != default.loss, "loss", &self.loss);
        part(self.rate != default.rate, "rate", &self.rate);
        part(self.queue != default.queue, "queue", &self.queue);
        self.gaps.iter().for_each(|gaps| part(true, "gaps", gaps));
        part(self.duplicate > 0.0, "duplicate", &self.duplicate);
        part(self.corrupt > 0.0, "corrupt", &self.corrupt);
        self.reset
            .iter()
            .for_each(|reset| part(true, "reset", reset));
        f.write_str(&if parts.is_empty() {
            "nothing".into()
        } else {
            parts.join(", ")
        })
    }
}

/// The error of a link's description.
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
        /// The accepted notation.
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
        /// The problem with the line.
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
            if (0.0..=1.0).contains(&p) {
                Ok(())
            } else {
                Err(ConfigError::Range {
                    what,
                    limits: "0 to 1",
                })
            }
        };
        self.loss.check()?;
        self.gaps.map_or(Ok(()), |gaps| gaps.check())?;
        probability(self.duplicate, "probability of duplication")?;
        probability(self.corrupt, "probability of corruption")?;
        probability(
            self.reset.map_or(0.0, |reset| reset.probability),
            "probability of a reset",
        )?;
        if self.delay > MAX_DELAY || self.jitter.is_some_and(|j| j.scale > MAX_DELAY) {
            return Err(ConfigError::Range {
                what: "delay",
                limits: "at most an hour",
            });
        }
        if self.rate == Rate::Constant(0) {
            return Err(ConfigError::Range {
                what: "rate",
                limits: "at least 1 bit per second",
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_read_back_as_what_they_describe() {
        for jitter in ["normal:5ms", "exp:1.5ms,reorder"] {
            assert_eq!(
                jitter.parse::<Jitter>().map(|parsed| parsed.to_string()),
                Ok(jitter.into())
            );
        }
        for loss in ["0.01", "ge:0.01,0.25,0,0.5", "every:7", "exp:0.001", "0"] {
            assert_eq!(
                loss.parse::<Loss>().map(|parsed| parsed.to_string()),
                Ok(loss.into())
            );
        }
        for rate in ["8000000bit", "unlimited"] {
            assert_eq!(
                rate.parse::<Rate>().map(|parsed| parsed.to_string()),
                Ok(rate.into())
            );
        }
        for queue in ["256", "64000B", "20,64000B,codel:5ms:100ms", "unlimited"] {
            assert_eq!(
                queue
                    .parse::<QueueLimits>()
                    .map(|parsed| parsed.to_string()),
                Ok(queue.into())
            );
        }
        for reset in ["443:after=1000,p=1", "0:after=0,p=0.01"] {
            assert_eq!(
                reset.parse::<Reset>().map(|parsed| parsed.to_string()),
                Ok(reset.into())
            );
        }
    }

    #[test]
    fn only_what_differs_is_described() {
        assert_eq!(LinkConfig::default().to_string(), "nothing");
        let config = LinkConfig {
            delay: Duration::from_millis(50),
            rate: Rate::Constant(1_000_000),
            corrupt: 0.5,
            ..LinkConfig::default()
        };
        assert_eq!(
            config.to_string(),
            "delay 50ms, rate 1000000bit, corrupt 0.5"
        );
    }
}
