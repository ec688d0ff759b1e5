//! Points and the values that they kept, in a form that can be sent.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Point, Unit};

/// One point now.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    /// Family and name.
    pub point: String,
    /// What its numbers are.
    pub unit: Unit,
    /// Whether it is on.
    pub on: bool,
    /// Tracers attached to its USDT probe.
    pub tracers: u32,
    /// Values since it was last switched on.
    pub count: u64,
    /// What it says.
    pub help: Cow<'static, str>,
}

/// What was kept of one point.
#[derive(Debug, Serialize, Deserialize)]
pub struct Distribution {
    /// Family and name.
    pub point: String,
    /// What its numbers are.
    pub unit: Unit,
    /// Values since it was last switched on.
    pub count: u64,
    /// The smallest of all.
    pub min: u64,
    /// The largest of all.
    pub max: u64,
    /// Of all.
    pub mean: f64,
    /// Of a uniform sample: each value with the share of values up to it.
    pub distribution: Vec<(u64, f64)>,
}

impl Point {
    /// The point as it is now.
    pub fn state(&self) -> State {
        State {
            point: self.full_name(),
            unit: self.unit,
            on: self.is_on(),
            tracers: self.tracers(),
            count: self.kept().as_ref().map_or(0, |kept| kept.count()),
            help: self.help.into(),
        }
    }

    /// The values that were kept; `None` where nothing passed.
    pub fn dumped(&self) -> Option<Distribution> {
        // Sorted outside the lock: who passes must not wait for that.
        let kept = self.kept().clone()?;
        let ((min, max), mean) = kept.range().zip(kept.mean())?;
        let distribution = kept.distribution();
        Some(Distribution {
            point: self.full_name(),
            unit: self.unit,
            count: kept.count(),
            min,
            max,
            mean,
            distribution,
        })
    }
}
