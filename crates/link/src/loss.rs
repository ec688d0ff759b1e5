//! Loss of packets on the line, before the queue.

use std::fmt;
use std::str::FromStr;

use crate::config::ConfigError;
use crate::random::{Purpose, Random};
use crate::text;

/// Which packets are lost. As text: `1%`, `ge:P,R[,LOSS_GOOD,LOSS_BAD]`, `every:N`, `exp:1%`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// No loss.
    #[default]
    Never,
    /// Each packet with this probability, whatever happened to others.
    Independent(f64),
    /// Two states (Gilbert-Elliott), a step per packet, then a draw with the state's own
    /// probability.
    GilbertElliott {
        /// From the good state to the bad one.
        worsen: f64,
        /// From the bad state to the good one.
        recover: f64,
        /// Probability of loss in the good state.
        good: f64,
        /// Probability of loss in the bad state.
        bad: f64,
    },
    /// Packets n, 2n, 3n, …
    EveryNth(u64),
    /// Gaps between losses are exponential in packets, with this share of packets lost.
    ExponentialGaps(f64),
}

impl Loss {
    /// Share of packets lost in the long run.
    pub fn expected(&self) -> f64 {
        match *self {
            Self::Never => 0.0,
            Self::Independent(p) | Self::ExponentialGaps(p) => p,
            Self::GilbertElliott {
                worsen: 0.0, good, ..
            } => good,
            Self::GilbertElliott {
                worsen,
                recover,
                good,
                bad,
            } => (bad * worsen + good * recover) / (worsen + recover),
            Self::EveryNth(n) => 1.0 / n as f64,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let probabilities = match *self {
            Self::Never => [0.0; 4],
            Self::Independent(p) | Self::ExponentialGaps(p) => [p; 4],
            Self::GilbertElliott {
                worsen,
                recover,
                good,
                bad,
            } => [worsen, recover, good, bad],
            Self::EveryNth(0) => {
                return Err(ConfigError::Range {
                    what: "interval of lost packets",
                    limits: "at least 1",
                });
            }
            Self::EveryNth(_) => [0.0; 4],
        };
        let valid = probabilities.iter().all(|p| (0.0..=1.0).contains(p));
        if valid {
            Ok(())
        } else {
            Err(ConfigError::Range {
                what: "probability of loss",
                limits: "0 to 1",
            })
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("0"),
            Self::Independent(1.0) => f.write_str("100%"),
            Self::Independent(p) => write!(f, "{p}"),
            Self::GilbertElliott {
                worsen,
                recover,
                good,
                bad,
            } => write!(f, "ge:{worsen},{recover},{good},{bad}"),
            Self::EveryNth(n) => write!(f, "every:{n}"),
            Self::ExponentialGaps(share) => write!(f, "exp:{share}"),
        }
    }
}

impl FromStr for Loss {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let Some((kind, rest)) = text.split_once(':') else {
            // Some programs read `1` as 1 %, which here would lose every packet.
            if !text.contains('%') && text.trim().parse() == Ok(1.0) {
                return Err(ConfigError::Text {
                    what: "loss",
                    text: text.into(),
                    expected: "1% for one packet of a hundred, or 100% for all",
                });
            }
            let p = text::probability(text)?;
            return Ok(if p == 0.0 {
                Self::Never
            } else {
                Self::Independent(p)
            });
        };
        match kind.trim() {
            "every" => Ok(Self::EveryNth(text::count(
                rest,
                "interval of lost packets",
            )?)),
            "exp" => Ok(Self::ExponentialGaps(text::probability(rest)?)),
            "ge" => {
                let values: Vec<f64> = rest
                    .split(',')
                    .map(text::probability)
                    .collect::<Result<_, _>>()?;
                match values[..] {
                    [worsen, recover] => Ok(Self::GilbertElliott {
                        worsen,
                        recover,
                        good: 0.0,
                        bad: 1.0,
                    }),
                    [worsen, recover, good, bad] => Ok(Self::GilbertElliott {
                        worsen,
                        recover,
                        good,
                        bad,
                    }),
                    _ => Err(Self::wrong(text)),
                }
            }
            _ => Err(Self::wrong(text)),
        }
    }
}

impl Loss {
    fn wrong(text: &str) -> ConfigError {
        ConfigError::Text {
            what: "loss",
            text: text.into(),
            expected: "1%, ge:P,R[,GOOD,BAD], every:N or exp:1%",
        }
    }
}

/// The running state of one direction's losses.
#[derive(Clone, Debug)]
pub(crate) struct Losses {
    model: Loss,
    seed: u64,
    bad: bool,
    /// The packet number at which the next exponential gap ends.
    gap_end: f64,
    gaps: u64,
}

impl Losses {
    pub(crate) fn new(model: Loss, seed: u64) -> Self {
        let mut losses = Self {
            model,
            seed,
            bad: false,
            gap_end: 0.0,
            gaps: 0,
        };
        if let Loss::ExponentialGaps(share) = model {
            losses.draw_gap(share);
        }
        losses
    }

    /// Returns whether the packet with this number is lost. Numbers start at 0, and each is queried
    /// once, in order.
    pub(crate) fn takes(&mut self, packet: u64) -> bool {
        let mut random = Random::of(self.seed, Purpose::Loss, packet);
        match self.model {
            Loss::Never => false,
            Loss::Independent(p) => random.chance(p),
            Loss::GilbertElliott {
                worsen,
                recover,
                good,
                bad,
            } => {
                let flips = random.chance(if self.bad { recover } else { worsen });
                self.bad ^= flips;
                random.chance(if self.bad { bad } else { good })
            }
            Loss::EveryNth(n) => (packet + 1).is_multiple_of(n),
            Loss::ExponentialGaps(share) => {
                let lost = self.gap_end <= (packet + 1) as f64;
                if lost {
                    self.draw_gap(share);
                }
                lost
            }
        }
    }

    /// Adds a gap to the last end, not to the packet lost: so the share comes out exactly although
    /// packets are whole.
    fn draw_gap(&mut self, share: f64) {
        let gap = Random::of(self.seed, Purpose::Loss, self.gaps).exponential();
        self.gap_end += gap / share;
        self.gaps += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_checks() {
        assert_eq!("1%".parse(), Ok(Loss::Independent(0.01)));
        assert_eq!("0".parse(), Ok(Loss::Never));
        assert_eq!("every:10".parse(), Ok(Loss::EveryNth(10)));
        assert_eq!("exp:0.1%".parse(), Ok(Loss::ExponentialGaps(0.001)));
        let burst = Loss::GilbertElliott {
            worsen: 0.01,
            recover: 0.25,
            good: 0.0,
            bad: 0.5,
        };
        assert_eq!("ge:1%,25%,0,50%".parse(), Ok(burst));
        assert!((burst.expected() - 0.5 * 0.01 / 0.26).abs() < 1e-12);
        let all = Loss::Independent(1.0);
        assert_eq!(all.to_string().parse(), Ok(all));
        for text in [
            "1", "1.0", "ge:1%", "every:0", "every:x", "exp:2", "often:1", "110%",
        ] {
            text.parse::<Loss>().expect_err(text);
        }
        Loss::EveryNth(0).check().expect_err("zero");
        Loss::Independent(f64::NAN)
            .check()
            .expect_err("not a number");
    }

    #[test]
    fn every_nth_is_exactly_that() {
        let mut losses = Losses::new(Loss::EveryNth(7), 1);
        let lost: Vec<u64> = (0..30).filter(|&n| losses.takes(n)).collect();
        assert_eq!(lost, [6, 13, 20, 27]);
    }

    #[test]
    fn no_exponential_gap_ends_when_none_is_lost() {
        let mut losses = Losses::new(Loss::ExponentialGaps(0.0), 1);
        assert!((0..10_000).all(|n| !losses.takes(n)));
    }
}
