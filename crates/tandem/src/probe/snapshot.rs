//! The state and values of points in serializable form.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Point, Unit};

/// The present state of a point.
#[derive(Debug, Serialize, Deserialize)]
pub struct PointState {
    /// The family and name.
    pub point: String,
    /// The unit of the numbers.
    pub unit: Unit,
    /// True if the point is switched on.
    pub on: bool,
    /// The number of tracers attached to the USDT probe.
    pub tracers: u32,
    /// The number of values since the point was last switched on.
    pub count: u64,
    /// The description of the point.
    pub help: Cow<'static, str>,
}

/// The values that one point has recorded.
#[derive(Debug, Serialize, Deserialize)]
pub struct Distribution {
    /// The family and name.
    pub point: String,
    /// The unit of the numbers.
    pub unit: Unit,
    /// The number of values since the point was last switched on.
    pub count: u64,
    /// The smallest of all values.
    pub min: u64,
    /// The largest of all values.
    pub max: u64,
    /// The mean of all values.
    pub mean: f64,
    /// The cumulative distribution: each value, to within a thousandth, with the share of values up
    /// to it.
    pub distribution: Vec<(u64, f64)>,
}

impl Point {
    /// Returns the present state of the point.
    pub fn state(&self) -> PointState {
        PointState {
            point: self.full_name(),
            unit: self.unit,
            on: self.is_on(),
            tracers: self.tracers(),
            count: self.kept().as_ref().map_or(0, |kept| kept.count()),
            help: self.help.into(),
        }
    }

    /// Returns the recorded values, or `None` if there are none.
    pub fn dumped(&self) -> Option<Distribution> {
        // The distribution is computed outside the lock, because data paths wait for it.
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
