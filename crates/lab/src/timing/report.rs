//! The results of a timing run: means with 95 % Student-t intervals, over seconds, and the seconds
//! themselves.
//!
//! Neighbouring stamps wait behind the same bytes, so they are no independent measurements:
//! intervals are those of the means of seconds.

use std::fmt::Write as _;

use serde::Serialize;

use super::TimingError;
use super::client::{Bulk, Direction, TimingPhase, TimingPlan};
use tandem_net::stats::{Summary, percentile};
use tandem_web::measure::Run;

/// A stamp; all in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// The scheduled time, from the start of the run.
    pub(super) due: f64,
    /// The delay from then until its return.
    pub(super) whole: Option<f64>,
    /// The delays to the server and back.
    pub(super) up: Option<f64>,
    pub(super) down: Option<f64>,
    /// The delay until its connection was open.
    pub(super) connect: Option<f64>,
    pub(super) failed: bool,
}

impl Sample {
    pub(super) fn due(due: f64) -> Self {
        Self {
            due,
            ..Self::default()
        }
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.whole.is_none() && !self.failed
    }
}

/// Results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct TimingReport {
    /// The description of the run.
    pub run: Run,
    /// The server.
    pub server: String,
    /// The way there, without credentials.
    pub via: String,
    /// Bulk streams.
    pub streams: usize,
    /// Their direction.
    pub direction: Direction,
    /// Both ends read the same clock: one-way delays are given.
    pub same_clock: bool,
    /// True if the rate was steady when the measured phase began; `None` if the run did not wait
    /// for that.
    pub steady: Option<bool>,
    /// Bulk in megabits per second, over the seconds that count.
    pub throughput_mbit: Option<Summary>,
    /// Age of bulk blocks as they arrive, over the seconds that count, in milliseconds.
    pub block_age_ms: Option<Summary>,
    /// Stamps without bulk.
    pub base: Option<Latency>,
    /// Stamps of the time that counts.
    pub measured: Latency,
    /// Every second.
    pub seconds: Vec<Second>,
}

/// Delays of the stamps of one phase.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// The round trip on the kept connection.
    pub round_trip: Delays,
    /// The delay to the server.
    pub up: Option<Delays>,
    /// The delay back from the server.
    pub down: Option<Delays>,
    /// The delay until a new connection is open.
    pub connect: Option<Delays>,
    /// The delay from the start of the connection to the return of the stamp.
    pub fresh: Option<Delays>,
    /// Connections that failed.
    pub failed: usize,
}

/// Delays in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delays {
    /// Stamps.
    pub count: usize,
    /// Mean of all.
    pub mean: f64,
    /// Half the width of its 95 % interval, from the means of seconds.
    pub interval: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
    /// Not back at the end; they count with the time that they had waited.
    pub unanswered: usize,
}

/// The results of a second.
#[derive(Clone, Debug, Serialize)]
pub struct Second {
    /// The number of the second, from 1.
    pub second: usize,
    /// The phase.
    pub phase: TimingPhase,
    /// Bulk in megabits per second.
    pub mbit: f64,
    /// Mean age of blocks as they arrived.
    pub block_age_ms: Option<f64>,
    /// Stamps that were due.
    pub stamps: usize,
    /// Mean of their round trips.
    pub round_trip_ms: Option<f64>,
    /// Mean time there.
    pub up_ms: Option<f64>,
    /// Mean time back.
    pub down_ms: Option<f64>,
    /// Stamps with connections of their own: mean time until these stood.
    pub connect_ms: Option<f64>,
    /// And until the stamp was back.
    pub fresh_ms: Option<f64>,
}

/// A function that selects a time of a sample.
type Pick = fn(&Sample) -> Option<f64>;

/// The time at which missing replies are counted with their wait so far, and the seconds of a
/// phase.
struct Window<'a> {
    now: f64,
    bulk: &'a [Bulk],
}

impl Window<'_> {
    fn phase(&self, sample: &Sample) -> Option<TimingPhase> {
        self.bulk
            .get((sample.due / 1e3) as usize)
            .map(|second| second.phase)
    }

    /// The delays of one phase; `None` where there are none.
    fn delays(&self, phase: TimingPhase, samples: &[Sample], pick: Pick) -> Option<Delays> {
        let of: Vec<&Sample> = samples
            .iter()
            .filter(|s| self.phase(s) == Some(phase) && !s.failed)
            .collect();
        let value = |sample: &&Sample| pick(sample).unwrap_or(self.now - sample.due);
        let values: Vec<f64> = of.iter().map(value).collect();
        let means: Vec<f64> = of
            .chunk_by(|a, b| (a.due / 1e3) as u64 == (b.due / 1e3) as u64)
            .map(|second| second.iter().map(value).sum::<f64>() / second.len() as f64)
            .collect();
        let all = Summary::of(&values)?;
        let at = |percent| percentile(&values, percent);
        Some(Delays {
            count: values.len(),
            mean: all.mean,
            interval: Summary::of(&means)?.interval,
            p50: at(50.0)?,
            p90: at(90.0)?,
            p99: at(99.0)?,
            max: all.max,
            unanswered: of.iter().filter(|sample| pick(sample).is_none()).count(),
        })
    }

    fn latency(
        &self,
        phase: TimingPhase,
        same_clock: bool,
        kept: &[Sample],
        fresh: &[Sample],
    ) -> Option<Latency> {
        let one_way = |pick: Pick| {
            if same_clock {
                self.delays(phase, kept, pick)
            } else {
                None
            }
        };
        Some(Latency {
            round_trip: self.delays(phase, kept, |s| s.whole)?,
            up: one_way(|s| s.up),
            down: one_way(|s| s.down),
            connect: self.delays(phase, fresh, |s| s.connect),
            fresh: self.delays(phase, fresh, |s| s.whole),
            failed: fresh
                .iter()
                .filter(|sample| sample.failed && self.phase(sample) == Some(phase))
                .count(),
        })
    }

    fn second(&self, at: usize, kept: &[Sample], fresh: &[Sample]) -> Second {
        let of = |samples: &[Sample]| -> Vec<Sample> {
            samples
                .iter()
                .filter(|sample| (sample.due / 1e3) as usize == at)
                .copied()
                .collect()
        };
        let (kept, fresh) = (of(kept), of(fresh));
        let mean = |samples: &[Sample], pick: Pick| {
            let values: Vec<f64> = samples.iter().filter_map(pick).collect();
            Summary::of(&values).map(|summary| summary.mean)
        };
        Second {
            second: at + 1,
            phase: self.bulk[at].phase,
            mbit: self.bulk[at].mbit,
            block_age_ms: self.bulk[at].age,
            stamps: kept.len(),
            round_trip_ms: mean(&kept, |s| s.whole),
            up_ms: mean(&kept, |s| s.up),
            down_ms: mean(&kept, |s| s.down),
            connect_ms: mean(&fresh, |s| s.connect),
            fresh_ms: mean(&fresh, |s| s.whole),
        }
    }
}

impl TimingReport {
    pub(super) fn new(
        plan: &TimingPlan,
        same_clock: bool,
        steady: Option<bool>,
        bulk: &[Bulk],
        kept: &[Sample],
        fresh: &[Sample],
        now: f64,
    ) -> Result<Self, TimingError> {
        let window = Window { now, bulk };
        let counts = || {
            bulk.iter()
                .filter(|second| second.phase == TimingPhase::Measured)
        };
        let rates: Vec<f64> = counts().map(|second| second.mbit).collect();
        let ages: Vec<f64> = counts().filter_map(|second| second.age).collect();
        let measured = window
            .latency(TimingPhase::Measured, same_clock, kept, fresh)
            .ok_or(TimingError::Nothing)?;
        Ok(Self {
            run: Run::here(0),
            server: plan.server.clone(),
            via: format!("{:?}", plan.via),
            streams: plan.streams,
            direction: plan.direction,
            same_clock,
            steady,
            throughput_mbit: Summary::of(&rates).filter(|_| plan.streams > 0),
            block_age_ms: Summary::of(&ages),
            base: window.latency(TimingPhase::Base, same_clock, kept, fresh),
            measured,
            seconds: (0..bulk.len())
                .map(|at| window.second(at, kept, fresh))
                .collect(),
        })
    }

    /// Formats the seconds as CSV, after a comment with the run's description. A field without
    /// samples is empty.
    pub fn csv(&self) -> String {
        let mut text = self.run.comment();
        text.push_str("second,phase,mbit,block_age_ms,stamps,round_trip_ms,up_ms,down_ms,connect_ms,fresh_ms\n");
        let cell =
            |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
        for s in &self.seconds {
            let (age, trip, up, down) = (
                cell(s.block_age_ms),
                cell(s.round_trip_ms),
                cell(s.up_ms),
                cell(s.down_ms),
            );
            let (connect, fresh) = (cell(s.connect_ms), cell(s.fresh_ms));
            let row = [
                &format!("{:.3}", s.mbit),
                &age,
                &s.stamps.to_string(),
                &trip,
                &up,
                &down,
                &connect,
                &fresh,
            ];
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{},{},{}",
                s.second,
                s.phase.as_str(),
                row.map(String::as_str).join(",")
            );
        }
        text
    }

    /// The results for the eyes.
    pub fn text(&self) -> String {
        let (streams, to) = (
            self.streams,
            if self.direction == Direction::Down {
                "from"
            } else {
                "to"
            },
        );
        let mut text = format!(
            "{streams} bulk stream(s) {to} {} via {}\n",
            self.server, self.via
        );
        if let Some(rate) = &self.throughput_mbit {
            let steady = if self.steady == Some(false) {
                ", never steady"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "throughput {:.3} ± {:.3} Mbit/s over {} s{steady}",
                rate.mean, rate.interval, rate.count
            );
        }
        if let Some(age) = &self.block_age_ms {
            let _ = writeln!(
                text,
                "age of blocks on arrival {:.1} ± {:.1} ms",
                age.mean, age.interval
            );
        }
        let head = [
            "stamps", "count", "mean ms", "±", "p50", "p90", "p99", "max", "lost",
        ];
        let _ = writeln!(
            text,
            "{:<28}{:>8}{:>10}{:>9}{:>10}{:>10}{:>10}{:>10}{:>6}",
            head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7], head[8]
        );
        for (name, latency) in [
            ("alone", self.base.as_ref()),
            ("beside bulk", Some(&self.measured)),
        ] {
            let name = if streams == 0 { "measured" } else { name };
            if let Some(latency) = latency {
                text.push_str(&latency.text(name));
            }
        }
        text
    }
}

impl Latency {
    /// Returns the rows of its delays, each with `name` before it.
    fn text(&self, name: &str) -> String {
        let mut text = String::new();
        let rows = [
            ("round trip", Some(self.round_trip)),
            ("up", self.up),
            ("down", self.down),
            ("connect", self.connect),
            ("new connection", self.fresh),
        ];
        for (what, delays) in rows {
            let Some(d) = delays else { continue };
            let _ = writeln!(
                text,
                "{:<28}{:>8}{:>10.2}{:>9.2}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>6}",
                format!("{name}: {what}"),
                d.count,
                d.mean,
                d.interval,
                d.p50,
                d.p90,
                d.p99,
                d.max,
                d.unanswered
            );
        }
        if self.failed > 0 {
            let _ = writeln!(text, "{name}: {} connections failed", self.failed);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(due: f64, whole: f64) -> Sample {
        Sample {
            whole: Some(whole),
            ..Sample::due(due)
        }
    }

    #[test]
    fn intervals_are_of_the_means_of_seconds() {
        let second = |phase| Bulk {
            phase,
            mbit: 1.0,
            age: None,
        };
        let bulk = [
            second(TimingPhase::Base),
            second(TimingPhase::Measured),
            second(TimingPhase::Measured),
        ];
        let window = Window {
            now: 5_000.0,
            bulk: &bulk,
        };
        let samples = [
            answered(500.0, 90.0),
            answered(1_000.0, 10.0),
            answered(1_500.0, 20.0),
            answered(2_000.0, 30.0),
            Sample {
                failed: true,
                ..Sample::due(2_100.0)
            },
            answered(3_000.0, 70.0),
        ];
        let delays = window
            .delays(TimingPhase::Measured, &samples, |s| s.whole)
            .expect("three stamps");
        assert_eq!(
            (
                delays.count,
                delays.mean,
                delays.p50,
                delays.max,
                delays.unanswered
            ),
            (3, 20.0, 20.0, 30.0, 0)
        );
        // Means of 15 and 30: deviation 10.607, over the root of two, times 12.706.
        assert!((delays.interval - 95.297).abs() < 0.01, "{delays:?}");
        assert_eq!(
            window.delays(TimingPhase::WarmUp, &samples, |s| s.whole),
            None
        );
    }

    #[test]
    fn missing_replies_count_with_their_wait() {
        let bulk = [Bulk {
            phase: TimingPhase::Measured,
            mbit: 1.0,
            age: None,
        }];
        let window = Window {
            now: 4_000.0,
            bulk: &bulk,
        };
        let samples = [answered(0.0, 10.0), Sample::due(500.0)];
        let delays = window
            .delays(TimingPhase::Measured, &samples, |s| s.whole)
            .expect("two stamps");
        assert_eq!(
            (delays.mean, delays.max, delays.unanswered),
            (1_755.0, 3_500.0, 1)
        );
    }
}
