//! How fast packets leave: a constant rate, or a trace of delivery opportunities.
//!
//! A trace is a text with one opportunity a line, or with one step a line: a time and its rate.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ConfigError;
use crate::text;

/// Bytes that one delivery opportunity of a trace carries: one full packet.
pub const OPPORTUNITY: usize = 1500;

/// Longest trace accepted, in opportunities (80 MB of memory).
const MAX_OPPORTUNITIES: usize = 10_000_000;

/// Longest period of a trace: a week.
const MAX_PERIOD_MS: u64 = 7 * 24 * 3600 * 1000;

/// Rate of one direction. As text: `8mbit` or `unlimited`; traces are read by [`Trace::parse`].
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Rate {
    /// Packets leave as they come; there is no queue.
    #[default]
    Unlimited,
    /// Bits of IP packet per second.
    Constant(u64),
    /// Recorded opportunities, repeated for ever.
    Trace(Arc<Trace>),
}

impl fmt::Display for Rate {
    /// A trace is described by its mean, since its text is long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Constant(rate) => write!(f, "{rate}bit"),
            Self::Trace(trace) => write!(f, "trace with a mean of {:.0}bit", trace.mean_rate()),
        }
    }
}

impl FromStr for Rate {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text.trim() {
            "unlimited" => Ok(Self::Unlimited),
            text => text::bits_per_second(text).map(Self::Constant),
        }
    }
}

/// Moments at which one packet of [`OPPORTUNITY`] bytes may leave, in milliseconds, repeated with
/// the last as period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    times: Vec<u64>,
}

impl Trace {
    /// Reads one time per line, in milliseconds, never decreasing (the format of mahimahi's
    /// traces), or one step per line, such as `250ms 12mbit` or `1s 0`. Lines with `#` do
    /// not count.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let lines = || {
            let lines = text.lines().map(str::trim).enumerate();
            lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        };
        let mut times: Vec<u64> = Vec::new();
        if lines().any(|(_, line)| line.contains(char::is_whitespace)) {
            return Self::of_steps(lines());
        }
        for (index, line) in lines() {
            let wrong = |problem| ConfigError::Trace {
                line: index + 1,
                problem,
            };
            let time: u64 = line
                .parse()
                .map_err(|_| wrong("not a whole number of milliseconds"))?;
            if times.last().is_some_and(|&last| time < last) {
                return Err(wrong("time runs backwards"));
            }
            if time > MAX_PERIOD_MS || times.len() == MAX_OPPORTUNITIES {
                return Err(wrong("trace too long"));
            }
            times.push(time);
        }
        match times.last() {
            None | Some(0) => Err(ConfigError::Trace {
                line: 0,
                problem: "no time after 0: the last one is the period",
            }),
            Some(_) => Ok(Self { times }),
        }
    }

    /// Reads steps. An opportunity comes in the millisecond in which the rates have added up to a
    /// full packet. The last one is the end of all steps, since it is the period.
    fn of_steps<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Self, ConfigError> {
        // A rate times a millisecond.
        const FULL: u64 = OPPORTUNITY as u64 * 8 * 1000;
        let (mut times, mut end, mut saved) = (Vec::new(), 0_u64, 0_u64);
        for (index, line) in lines {
            let wrong = |problem| ConfigError::Trace {
                line: index + 1,
                problem,
            };
            let (time, rate) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| wrong("not a time and a rate"))?;
            let time = text::duration(time).map_err(|_| wrong("not a time and a rate"))?;
            let rate = match rate.trim() {
                "0" => 0,
                rate => text::bits_per_second(rate).map_err(|_| wrong("not a time and a rate"))?,
            };
            let begin = end;
            // At most an hour of at most 10^12 bits per second.
            end += time.as_millis() as u64;
            let total = saved + rate * (end - begin);
            if end > MAX_PERIOD_MS || times.len() as u64 + total / FULL > MAX_OPPORTUNITIES as u64 {
                return Err(wrong("trace too long"));
            }
            let at = |number: u64| begin + (number * FULL - saved).div_ceil(rate.max(1));
            times.extend((1..=total / FULL).map(at));
            saved = total % FULL;
        }
        match times.last() {
            None => Err(ConfigError::Trace {
                line: 0,
                problem: "the rates add up to less than a packet",
            }),
            Some(last) => {
                if *last < end {
                    times.push(end);
                }
                Ok(Self { times })
            }
        }
    }

    /// Mean rate in bits per second.
    pub fn mean_rate(&self) -> f64 {
        (self.times.len() * OPPORTUNITY * 8) as f64 * 1000.0 / self.period() as f64
    }

    fn period(&self) -> u64 {
        *self
            .times
            .last()
            .expect("parse() lets no empty trace through")
    }

    /// When the n-th opportunity of all repetitions comes, in milliseconds.
    fn time(&self, n: u64) -> u64 {
        let len = self.times.len() as u64;
        (n / len)
            .saturating_mul(self.period())
            .saturating_add(self.times[(n % len) as usize])
    }

    /// Number of the first opportunity at or after a time in milliseconds.
    fn first_at(&self, ms: u64) -> u64 {
        // One repetition earlier, because its last opportunity falls on the start of this one.
        let cycle = (ms / self.period()).saturating_sub(1);
        let mut first = cycle * self.times.len() as u64;
        for base in [cycle, cycle + 1] {
            let within = ms.saturating_sub(base * self.period());
            first =
                base * self.times.len() as u64 + self.times.partition_point(|&t| t < within) as u64;
            if first < (base + 1) * self.times.len() as u64 {
                break;
            }
        }
        first
    }
}

/// Says when a packet that begins to leave has left.
#[derive(Clone, Debug)]
pub(crate) enum Server {
    /// Exact: the fraction of a nanosecond that a packet takes is carried over to the next one in a
    /// busy period.
    Constant {
        bits_per_second: u64,
        busy_until: Duration,
        fraction: u128,
    },
    /// The opportunity in use and the bytes left in it.
    Trace {
        trace: Arc<Trace>,
        opportunity: u64,
        left: usize,
    },
}

impl Server {
    pub(crate) fn new(rate: &Rate) -> Option<Self> {
        match rate {
            Rate::Unlimited => None,
            Rate::Constant(rate) => Some(Self::Constant {
                bits_per_second: *rate,
                busy_until: Duration::ZERO,
                fraction: 0,
            }),
            Rate::Trace(trace) => Some(Self::Trace {
                trace: trace.clone(),
                opportunity: 0,
                left: OPPORTUNITY,
            }),
        }
    }

    /// Returns the time at which a packet of `len` bytes has left if its turn begins at `start`.
    /// Turns never overlap.
    pub(crate) fn serve(&mut self, start: Duration, len: usize) -> Duration {
        match self {
            Self::Constant {
                bits_per_second,
                busy_until,
                fraction,
            } => {
                if start > *busy_until {
                    *fraction = 0;
                }
                let rate = u128::from(*bits_per_second);
                let total = len as u128 * 8 * 1_000_000_000 + *fraction;
                *fraction = total % rate;
                *busy_until = start + Duration::from_nanos((total / rate) as u64);
                *busy_until
            }
            Self::Trace {
                trace,
                opportunity,
                left,
            } => {
                if Duration::from_millis(trace.time(*opportunity)) < start {
                    let ms = start.as_nanos().div_ceil(1_000_000) as u64;
                    *opportunity = trace.first_at(ms);
                    *left = OPPORTUNITY;
                }
                let mut rest = len;
                while rest > *left {
                    rest -= *left;
                    *opportunity += 1;
                    *left = OPPORTUNITY;
                }
                *left -= rest;
                Duration::from_millis(trace.time(*opportunity)).max(start)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trace(text: &str) -> Arc<Trace> {
        Arc::new(Trace::parse(text).expect("valid trace"))
    }

    #[test]
    fn trace_errors_name_the_line() {
        let error = |text| Trace::parse(text).expect_err(text);
        assert_eq!(
            error("1\n2\nx\n"),
            ConfigError::Trace {
                line: 3,
                problem: "not a whole number of milliseconds"
            }
        );
        assert_eq!(
            error("5\n4\n"),
            ConfigError::Trace {
                line: 2,
                problem: "time runs backwards"
            }
        );
        for text in ["", "0\n0\n", "# nothing\n", "99999999999\n", "-1"] {
            error(text);
        }
    }

    #[test]
    fn trace_opportunities_fit_small_and_large_packets() {
        let mut server = Server::new(&Rate::Trace(trace("10\n20\n20\n40\n"))).expect("limited");
        let at = |server: &mut Server, start, len| {
            server.serve(Duration::from_millis(start), len).as_millis()
        };
        assert_eq!(at(&mut server, 0, 700), 10);
        assert_eq!(at(&mut server, 10, 700), 10, "fits the rest of the first");
        assert_eq!(
            at(&mut server, 10, 700),
            20,
            "100 bytes in the first, the rest in the second"
        );
        assert_eq!(
            at(&mut server, 21, 3000),
            50,
            "40 and, in the next repetition, 50"
        );
        assert_eq!(at(&mut server, 55, 1500), 60);
    }

    #[test]
    fn an_unused_opportunity_is_gone() {
        let mut server = Server::new(&Rate::Trace(trace("1\n2\n3\n1000\n"))).expect("limited");
        assert_eq!(
            server.serve(Duration::from_millis(4), 100),
            Duration::from_secs(1)
        );
    }

    #[test]
    fn steps_become_opportunities() {
        let trace = Trace::parse("# two steps\n4ms 12mbit\n6ms 0\n4ms 6mbit\n").expect("valid");
        assert_eq!(trace.times, [1, 2, 3, 4, 12, 14]);
        let trace = Trace::parse("3ms 6mbit\n1ms 12mbit\n5ms 0").expect("valid");
        assert_eq!(trace.times, [2, 4, 9], "half a packet is left after 3 ms");
        let error = |text| Trace::parse(text).expect_err(text);
        assert_eq!(
            error("1s 8mbit\n7\n"),
            ConfigError::Trace {
                line: 2,
                problem: "not a time and a rate"
            }
        );
        for text in ["1s fast", "soon 8mbit", "1s 0", "1h 1gbit", "1ms 1kbit"] {
            error(text);
        }
    }

    proptest! {
        #[test]
        fn steps_have_their_rates(
            steps in prop::collection::vec((1u64..500, 0u64..50_000), 1..20),
        ) {
            let lines = steps.iter().map(|(ms, kbit)| match kbit {
                0 => format!("{ms}ms 0\n"),
                kbit => format!("{ms}ms {kbit}kbit\n"),
            });
            let total: u64 = steps.iter().map(|(ms, kbit)| ms * kbit).sum();
            let parsed = Trace::parse(&lines.collect::<String>());
            let packet = OPPORTUNITY as u64 * 8;
            prop_assert_eq!(parsed.is_ok(), total >= packet);
            let Ok(trace) = parsed else { return Ok(()) };
            prop_assert!(trace.times.is_sorted());
            prop_assert_eq!(trace.period(), steps.iter().map(|(ms, _)| ms).sum::<u64>());
            // The opportunities up to the end of each step have the bits of the steps.
            let (mut end, mut bits) = (0, 0);
            for (ms, kbit) in &steps[..steps.len() - 1] {
                (end, bits) = (end + ms, bits + ms * kbit);
                let until = trace.times.partition_point(|time| *time <= end) as u64;
                prop_assert_eq!(until, bits / packet);
            }
        }

        #[test]
        fn first_opportunity_at_a_time_is_found(times in prop::collection::vec(0u64..50, 1..20), ms in 0u64..500) {
            let mut times = times;
            times.sort_unstable();
            times.push(50);
            let trace = Trace { times };
            let expected = (0..).find(|&n| trace.time(n) >= ms).expect("times grow");
            prop_assert_eq!(trace.first_at(ms), expected);
        }

        #[test]
        fn a_busy_constant_rate_never_drifts(rate in 1u64..10_000_000_000, lens in prop::collection::vec(1usize..1500, 1..100)) {
            let mut server = Server::new(&Rate::Constant(rate)).expect("limited");
            let end = lens.iter().fold(Duration::ZERO, |start, &len| server.serve(start, len));
            let bits = lens.iter().sum::<usize>() as u128 * 8;
            prop_assert_eq!(end.as_nanos(), bits * 1_000_000_000 / u128::from(rate));
        }
    }
}
