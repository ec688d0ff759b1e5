//! Propagation delay: a fixed part, and jitter on top.
//!
//! Independent jitter reorders packets. If order were enforced, its distribution would change: each
//! packet would wait for the slowest one before it, and the mean would rise with the packet rate.
//! Jitter in order is therefore a continuous process in time. Its distribution at every moment is
//! the configured one, and it moves too slowly for a packet to overtake another.

use std::f64::consts::FRAC_PI_2;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::config::ConfigError;
use crate::random::{Purpose, Random};
use crate::text;

/// Distribution of the varying part of the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A normal distribution around the fixed delay. A packet that would arrive before it was sent
    /// arrives at once.
    Normal,
    /// Exponential on top of the fixed delay, which is then the minimum.
    Exponential,
}

/// Variation of the delay. As text: `normal:5ms`, `exp:5ms`, either with `,reorder`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// Distribution.
    pub shape: Shape,
    /// Standard deviation (normal) or mean (exponential).
    pub scale: Duration,
    /// Indicates whether each packet draws independently and may overtake others.
    pub reorder: bool,
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = match self.shape {
            Shape::Normal => "normal",
            Shape::Exponential => "exp",
        };
        write!(
            f,
            "{shape}:{}{}",
            text::Time(self.scale),
            if self.reorder { ",reorder" } else { "" }
        )
    }
}

impl FromStr for Jitter {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::Text {
            what: "jitter",
            text: text.into(),
            expected: "normal:TIME or exp:TIME, then ,reorder",
        };
        let (shape, rest) = text.split_once(':').ok_or_else(wrong)?;
        let shape = match shape.trim() {
            "normal" => Shape::Normal,
            "exp" | "exponential" => Shape::Exponential,
            _ => return Err(wrong()),
        };
        let (scale, reorder) = match rest.split_once(',') {
            None => (rest, false),
            Some((scale, option)) if option.trim() == "reorder" => (scale, true),
            Some(_) => return Err(wrong()),
        };
        Ok(Self {
            shape,
            scale: text::duration(scale)?,
            reorder,
        })
    }
}

/// Delays of one direction.
#[derive(Clone, Debug)]
pub(crate) struct Delay {
    fixed: Duration,
    jitter: Option<Jitter>,
    seed: u64,
}

impl Delay {
    pub(crate) fn new(fixed: Duration, jitter: Option<Jitter>, seed: u64) -> Self {
        Self {
            fixed,
            jitter: jitter.filter(|j| !j.scale.is_zero()),
            seed,
        }
    }

    /// Returns whether packets can overtake each other.
    pub(crate) fn reorders(&self) -> bool {
        self.jitter.is_some_and(|jitter| jitter.reorder)
    }

    /// Delay of the packet with this number that enters the line at `at`.
    pub(crate) fn of(&self, packet: u64, at: Duration) -> Duration {
        let Some(jitter) = self.jitter else {
            return self.fixed;
        };
        let (first, second) = if jitter.reorder {
            Random::of(self.seed, Purpose::Jitter, packet).normals()
        } else {
            self.slow_normals(at, slot(jitter))
        };
        let scale = jitter.scale.as_secs_f64();
        let seconds = match jitter.shape {
            Shape::Normal => self.fixed.as_secs_f64() + scale * first,
            // Half the sum of two squared normals is exponential with mean 1.
            Shape::Exponential => {
                self.fixed.as_secs_f64() + scale * (first * first + second * second) / 2.0
            }
        };
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// Two independent standard normal processes at time `at`. Each slot boundary has its own pair;
    /// in between they are blended by sine and cosine, which keeps the variance 1 everywhere.
    fn slow_normals(&self, at: Duration, slot: Duration) -> (f64, f64) {
        let slots = at.as_secs_f64() / slot.as_secs_f64();
        let (sin, cos) = (slots.fract() * FRAC_PI_2).sin_cos();
        let pair = |index: u64| Random::of(self.seed, Purpose::Jitter, index).normals();
        let (from, to) = (pair(slots as u64), pair(slots as u64 + 1));
        (cos * from.0 + sin * to.0, cos * from.1 + sin * to.1)
    }
}

/// Time between independent values: long enough for the delay to fall by less than the time that
/// passes.
fn slot(jitter: Jitter) -> Duration {
    let factor = match jitter.shape {
        Shape::Normal => 8,
        // Its far tail moves faster: the slope grows with the square root of the value.
        Shape::Exponential => 16,
    };
    (jitter.scale * factor).max(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn in_order_jitter_hardly_ever_needs_to_be_held_back() {
        for shape in [Shape::Normal, Shape::Exponential] {
            for scale in [MS, 5 * MS, 50 * MS] {
                let delay = Delay::new(
                    400 * MS,
                    Some(Jitter {
                        shape,
                        scale,
                        reorder: false,
                    }),
                    5,
                );
                let step = Duration::from_micros(100);
                let arrival = |n: u32| step * n + delay.of(0, step * n);
                let overtaking = (1..500_000)
                    .filter(|&n| arrival(n) < arrival(n - 1))
                    .count();
                assert!(
                    overtaking < 500,
                    "{shape:?} {scale:?}: {overtaking} of 500000"
                );
            }
        }
    }

    #[test]
    fn parses() {
        let parsed: Jitter = "exp:5ms,reorder".parse().expect("valid");
        assert_eq!(
            parsed,
            Jitter {
                shape: Shape::Exponential,
                scale: 5 * MS,
                reorder: true
            }
        );
        for text in ["", "5ms", "gamma:5ms", "normal:5ms,sometimes", "normal:"] {
            text.parse::<Jitter>().expect_err(text);
        }
    }
}
