//! The fixed values of a measurement: page, link, TCP and the number of requests in flight. Values
//! are kept as written, so that a point reads in results and reports as it does in its file.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tandem_link::text;

use super::ExperimentError;
use tandem_net::emulator::topology::LinkText;

/// The value of [`Axis::Shards`] that gives each host of the page an origin under its own name.
const RECORDED: &str = "recorded";
/// Largest number of shards.
const MOST_SHARDS: u32 = 64;
/// Largest number of downloads beside a page.
const MOST_BULK: u32 = 64;
/// Longest value.
const LONGEST: usize = 200;

/// A quantity that experiments vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// The page: built in, or a file.
    Page,
    /// Round trip time.
    Rtt,
    /// Variation of the delay, as `tandem-link --jitter`.
    Jitter,
    /// Loss in each direction, as `tandem-link --loss`.
    Loss,
    /// Rate, as `tandem-link --rate`. The names of traces are relative to the experiment's file.
    Rate,
    /// Queue before the rate, as `tandem-link --queue`.
    Queue,
    /// Gaps in which nothing leaves, as `tandem-link --gaps`.
    Gaps,
    /// TCP's initial window at both ends, in segments.
    InitialWindow,
    /// TCP's congestion control at both ends, where a program does not choose its own.
    Congestion,
    /// The origins: a number of shards that share the page's resources, or `recorded`.
    Shards,
    /// Requests in flight to one origin: connections of HTTP/1.1, streams of HTTP/2.
    Parallel,
    /// Downloads beside the page, by the same way.
    Bulk,
}

impl Axis {
    /// All axes.
    pub const ALL: [Self; 12] = [
        Self::Page,
        Self::Rtt,
        Self::Jitter,
        Self::Loss,
        Self::Rate,
        Self::Queue,
        Self::Gaps,
        Self::InitialWindow,
        Self::Congestion,
        Self::Shards,
        Self::Parallel,
        Self::Bulk,
    ];

    /// Returns the name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Rtt => "rtt",
            Self::Jitter => "jitter",
            Self::Loss => "loss",
            Self::Rate => "rate",
            Self::Queue => "queue",
            Self::Gaps => "gaps",
            Self::InitialWindow => "initial-window",
            Self::Congestion => "congestion",
            Self::Shards => "shards",
            Self::Parallel => "parallel",
            Self::Bulk => "bulk",
        }
    }

    /// Returns the axis with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|axis| axis.name() == name)
    }

    /// A value as a number, where it has one: milliseconds, percent, kilobits per second, counts.
    pub fn number(self, value: &str) -> Option<f64> {
        match self {
            Self::Rtt => text::duration(value)
                .ok()
                .map(|time| time.as_secs_f64() * 1e3),
            Self::Loss => text::probability(value).ok().map(|loss| loss * 100.0),
            Self::Rate => text::bits_per_second(value)
                .ok()
                .map(|rate| rate as f64 / 1e3),
            Self::InitialWindow | Self::Shards | Self::Parallel | Self::Queue | Self::Bulk => {
                value.parse().ok()
            }
            Self::Page | Self::Jitter | Self::Gaps | Self::Congestion => None,
        }
    }
}

/// A point in the space of all axes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Point(BTreeMap<Axis, String>);

/// The origins that serve a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origins {
    /// A number of ports of one address, at least one. All hosts are then one site.
    Shards(usize),
    /// The hosts of the page, under their own names.
    Recorded,
}

/// A point as the stage needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The page.
    pub page: String,
    /// The link.
    pub link: LinkText,
    /// Segments; the kernel's own unless given.
    pub initial_window: Option<u32>,
    /// Congestion control by name; the kernel's own unless given.
    pub congestion: Option<String>,
    /// The origins.
    pub origins: Origins,
    /// Requests in flight, for set-ups that leave it open.
    pub parallel: Option<usize>,
    /// Downloads beside the page.
    pub bulk: usize,
}

impl Point {
    /// The same with one value changed.
    pub fn with(&self, axis: Axis, value: &str) -> Self {
        let mut point = self.clone();
        point.set(axis, value);
        point
    }

    /// Changes a value.
    pub fn set(&mut self, axis: Axis, value: &str) {
        self.0.insert(axis, value.to_owned());
    }

    /// A value.
    pub fn get(&self, axis: Axis) -> Option<&str> {
        self.0.get(&axis).map(String::as_str)
    }

    /// Returns all values.
    pub fn values(&self) -> impl Iterator<Item = (Axis, &str)> {
        self.0.iter().map(|(axis, value)| (*axis, value.as_str()))
    }

    /// Returns true if all values of `part` are also those of this point; numbers are compared by
    /// value, so that `1s` is `1000ms`.
    pub fn lies_in(&self, part: &Self) -> bool {
        let same = |axis: Axis, value: &str, own: &str| {
            own == value
                || axis
                    .number(own)
                    .is_some_and(|number| axis.number(value) == Some(number))
        };
        part.values()
            .all(|(axis, value)| self.get(axis).is_some_and(|own| same(axis, value, own)))
    }

    /// Returns a point with only the values of these axes.
    pub fn only(&self, axes: &[Axis]) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(axis, _)| axes.contains(axis))
                .map(|(a, v)| (*a, v.clone()))
                .collect(),
        )
    }

    /// Returns a point without the values of these axes.
    pub fn without(&self, axes: &[Axis]) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(axis, _)| !axes.contains(axis))
                .map(|(a, v)| (*a, v.clone()))
                .collect(),
        )
    }

    /// Understands the values; `key` is where they stand.
    pub fn conditions(&self, key: &str) -> Result<Conditions, ExperimentError> {
        if let Some((axis, _)) = self
            .values()
            .find(|(_, value)| value.is_empty() || value.len() > LONGEST)
        {
            return Err(ExperimentError::value(
                format!("{key}.{}", axis.name()),
                "empty, or too long",
            ));
        }
        let text = |axis| self.get(axis).map(str::to_owned);
        let link = LinkText {
            rtt: text(Axis::Rtt),
            jitter: text(Axis::Jitter),
            loss: text(Axis::Loss),
            rate: text(Axis::Rate),
            queue: text(Axis::Queue),
            gaps: text(Axis::Gaps),
            ..LinkText::default()
        };
        self.check_link(key)?;
        let page = text(Axis::Page)
            .ok_or_else(|| ExperimentError::value(format!("{key}.page"), "missing"))?;
        Ok(Conditions {
            page,
            link,
            initial_window: self.count(Axis::InitialWindow, key, 1..=1000)?,
            congestion: text(Axis::Congestion),
            origins: self.origins(key)?,
            parallel: self
                .count(Axis::Parallel, key, 1..=2000)?
                .map(|count| count as usize),
            bulk: self
                .count(Axis::Bulk, key, 0..=MOST_BULK)?
                .map_or(0, |count| count as usize),
        })
    }

    /// Checks each value of the link separately, so that an error names the wrong one. Traces are
    /// read when the experiment runs.
    fn check_link(&self, key: &str) -> Result<(), ExperimentError> {
        let any_trace = |_: &str| Ok("1\n".to_owned());
        for (axis, value) in self.values() {
            let mut link = LinkText::default();
            let place = match axis {
                Axis::Rtt => &mut link.rtt,
                Axis::Jitter => &mut link.jitter,
                Axis::Loss => &mut link.loss,
                Axis::Rate => &mut link.rate,
                Axis::Queue => &mut link.queue,
                Axis::Gaps => &mut link.gaps,
                _ => continue,
            };
            *place = Some(value.to_owned());
            link.directions(&format!("{key}.{}", axis.name()), &any_trace)
                .map_err(|error| {
                    ExperimentError::value(format!("{key}.{}", axis.name()), error.to_string())
                })?;
        }
        Ok(())
    }

    fn origins(&self, key: &str) -> Result<Origins, ExperimentError> {
        if self.get(Axis::Shards) == Some(RECORDED) {
            return Ok(Origins::Recorded);
        }
        let count = self.count(Axis::Shards, key, 1..=MOST_SHARDS);
        count
            .map(|count| Origins::Shards(count.map_or(1, |count| count as usize)))
            .map_err(|_| {
                let value = self.get(Axis::Shards).unwrap_or_default();
                let text = format!(
                    "{value:?} is neither {RECORDED:?} nor a number from 1 to {MOST_SHARDS}"
                );
                ExperimentError::value(format!("{key}.{}", Axis::Shards.name()), text)
            })
    }

    fn count(
        &self,
        axis: Axis,
        key: &str,
        range: std::ops::RangeInclusive<u32>,
    ) -> Result<Option<u32>, ExperimentError> {
        let Some(value) = self.get(axis) else {
            return Ok(None);
        };
        let count = value.parse().ok().filter(|count| range.contains(count));
        let what = || {
            format!(
                "{value:?} is not a number from {} to {}",
                range.start(),
                range.end()
            )
        };
        count
            .map(Some)
            .ok_or_else(|| ExperimentError::value(format!("{key}.{}", axis.name()), what()))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (axis, value)) in self.values().enumerate() {
            let gap = if index > 0 { ", " } else { "" };
            write!(f, "{gap}{} {value}", axis.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(values: &[(Axis, &str)]) -> Point {
        Point(
            values
                .iter()
                .map(|(axis, value)| (*axis, (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn conditions_of_a_point() {
        let point = point(&[
            (Axis::Page, "demo"),
            (Axis::Rtt, "100ms"),
            (Axis::Loss, "1%"),
            (Axis::Shards, "3"),
        ]);
        let conditions = point.conditions("base").expect("valid");
        assert_eq!(
            (
                conditions.page.as_str(),
                conditions.origins,
                conditions.parallel
            ),
            ("demo", Origins::Shards(3), None)
        );
        let named = point.with(Axis::Shards, "recorded").conditions("base");
        assert_eq!(named.expect("valid").origins, Origins::Recorded);
        assert_eq!(conditions.link.rtt.as_deref(), Some("100ms"));
        assert_eq!(point.to_string(), "page demo, rtt 100ms, loss 1%, shards 3");
    }

    #[test]
    fn errors_name_the_value() {
        for (axis, value) in [
            (Axis::Rtt, "soon"),
            (Axis::Loss, "200%"),
            (Axis::Rate, "fast"),
            (Axis::Gaps, "1s:2s-3s"),
            (Axis::Bulk, "65"),
            (Axis::Shards, "0"),
            (Axis::Parallel, "many"),
            (Axis::Queue, ""),
        ] {
            let error = point(&[(Axis::Page, "demo"), (axis, value)])
                .conditions("base")
                .expect_err(value)
                .to_string();
            assert!(
                error.starts_with(&format!("base.{}: ", axis.name())),
                "{error}"
            );
        }
        let error = Point::default()
            .conditions("base")
            .expect_err("no page")
            .to_string();
        assert_eq!(error, "base.page: missing");
    }

    #[test]
    fn numbers_compare_as_such() {
        let here = point(&[(Axis::Rtt, "1s"), (Axis::Loss, "1%")]);
        assert!(here.lies_in(&point(&[(Axis::Rtt, "1000ms")])));
        assert!(!here.lies_in(&point(&[(Axis::Rtt, "100ms")])));
        assert!(!here.lies_in(&point(&[(Axis::Rate, "1mbit")])));
        assert!(here.lies_in(&Point::default()));
        assert_eq!(Axis::Rate.number("8mbit"), Some(8000.0));
    }

    #[test]
    fn names_are_those_of_files() {
        for axis in Axis::ALL {
            assert_eq!(Axis::named(axis.name()), Some(axis));
            assert_eq!(
                serde_json::to_string(&axis).expect("text"),
                format!("{:?}", axis.name())
            );
        }
    }
}
