//! Observation points in the data path, which can be watched while the program runs. They measure
//! waiting times and the sizes of pieces.
//!
//! All are off by default and then cost one relaxed load per passage. The control socket
//! (`admin::control`) switches points, singly or by family. The values are kept in a
//! histogram of bounded size ([`recorded`]) and dumped as a cumulative distribution. Each point is
//! also a USDT probe ([`points`]): a tracer that attaches opens the same gate. Points record
//! numbers only, never names.

pub mod points;
pub mod recorded;
pub mod snapshot;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use recorded::Recorded;

pub use points::POINTS;

/// The bit of a gate that is this program's own switch. The half below it is the USDT semaphore, in
/// which the kernel counts tracers.
const SWITCH: u32 = 1 << 16;

/// The unit of a point's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Bytes.
    Bytes,
}

/// An observation point.
// The gate comes first: its address is the point's, and tracers find their semaphore there.
#[repr(C)]
#[derive(Debug)]
pub struct Point {
    gate: AtomicU32,
    unit: Unit,
    family: &'static str,
    name: &'static str,
    help: &'static str,
    /// Passes the tracers' breakpoint, with the value and its index.
    fire: fn(u64, u64),
    kept: Mutex<Option<Recorded>>,
}

/// The time at which a wait began, or none if the point was not watched then.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Stamp(Option<Instant>);

impl Point {
    const fn new(
        family: &'static str,
        name: &'static str,
        unit: Unit,
        help: &'static str,
        fire: fn(u64, u64),
    ) -> Self {
        Self {
            gate: AtomicU32::new(0),
            unit,
            family,
            name,
            help,
            fire,
            kept: Mutex::new(None),
        }
    }

    /// Returns true if the point is watched: its own switch is on or a tracer is attached.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.gate.load(Ordering::Relaxed) != 0
    }

    /// Records a value. `index` identifies its owner, such as a stream, and reaches tracers only.
    #[inline]
    pub fn note(&self, value: u64, index: u32) {
        if self.is_watched() {
            self.keep(value, index);
        }
    }

    /// Returns the present time if the point is watched.
    #[inline]
    pub fn start(&self) -> Stamp {
        Stamp(if self.is_watched() {
            Some(Instant::now())
        } else {
            None
        })
    }

    /// Records the time since `start`.
    #[inline]
    pub fn stop(&self, start: Stamp, index: u32) {
        if let Some(start) = start.0 {
            self.note_time(start.elapsed(), index);
        }
    }

    /// Records the duration of `work`.
    #[inline]
    pub fn time<T>(&self, index: u32, work: impl FnOnce() -> T) -> T {
        let start = self.start();
        let done = work();
        self.stop(start, index);
        done
    }

    /// Records a duration.
    #[inline]
    pub fn note_time(&self, time: Duration, index: u32) {
        self.note(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), index);
    }

    #[cold]
    #[inline(never)]
    fn keep(&self, value: u64, index: u32) {
        if self.is_on()
            && let Some(kept) = &mut *self.kept()
        {
            kept.add(value);
        }
        (self.fire)(value, u64::from(index));
    }

    fn kept(&self) -> MutexGuard<'_, Option<Recorded>> {
        // A panic while the lock is held leaves numbers that are still usable.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the family and the name, joined by a dot.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.family, self.name)
    }

    /// Returns the family.
    pub const fn family(&self) -> &'static str {
        self.family
    }

    /// Returns the name within the family.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns true if the point's own switch is on.
    pub fn is_on(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & SWITCH != 0
    }

    /// Returns the number of tracers attached to the point.
    pub fn tracers(&self) -> u32 {
        self.gate.load(Ordering::Relaxed) & (SWITCH - 1)
    }

    /// Switches the point. The values are kept until the point is next switched on, which drops
    /// them.
    pub fn switch(&self, on: bool) {
        let mut kept = self.kept();
        if !on {
            self.gate.fetch_and(!SWITCH, Ordering::Relaxed);
        } else if !self.is_on() {
            *kept = Some(Recorded::new());
            self.gate.fetch_or(SWITCH, Ordering::Relaxed);
        }
    }
}

impl Stamp {
    /// Takes the stamp and leaves none.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Returns the time since the stamp.
    pub fn elapsed(self) -> Option<Duration> {
        self.0.map(|start| start.elapsed())
    }

    /// Returns true if no time was stamped.
    pub const fn is_none(self) -> bool {
        self.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicU64;

    static FIRED: AtomicU64 = AtomicU64::new(0);

    fn fire(value: u64, index: u64) {
        FIRED.store(value * 100 + index, Ordering::Relaxed);
    }

    #[test]
    fn point_keeps_values_while_it_is_on() {
        static POINT: Point = Point::new("test", "point", Unit::Bytes, "", fire);
        let count = || POINT.kept().as_ref().map_or(0, Recorded::count);
        POINT.note(1, 0);
        POINT.stop(POINT.start(), 0);
        assert!(!POINT.is_watched() && POINT.start().is_none() && count() == 0);
        POINT.switch(true);
        POINT.note(7, 3);
        assert_eq!((count(), FIRED.load(Ordering::Relaxed)), (1, 703));
        POINT.time(0, || {});
        POINT.switch(true);
        assert_eq!(count(), 2, "on again while it is on changes nothing");
        let begun = POINT.start();
        POINT.switch(false);
        POINT.stop(begun, 0);
        assert_eq!(
            count(),
            2,
            "what ends after it was switched off is not kept; what was, still is"
        );
        POINT.switch(true);
        assert_eq!(count(), 0, "a new beginning");
        POINT.switch(false);
    }

    /// The test adds to the lower half of the gate, as the kernel does for a tracer.
    #[test]
    fn tracer_opens_the_gate_without_a_sample() {
        static POINT: Point = Point::new("test", "traced", Unit::Ns, "", fire);
        POINT.gate.fetch_add(2, Ordering::Relaxed);
        POINT.note(9, 1);
        assert!(POINT.is_watched() && !POINT.is_on() && POINT.tracers() == 2);
        assert!(POINT.kept().is_none());
        POINT.switch(true);
        POINT.switch(false);
        assert_eq!(
            POINT.tracers(),
            2,
            "switching leaves the tracers' count alone"
        );
    }

    #[test]
    fn point_names_are_distinct_in_grouped_families() {
        let names: BTreeSet<String> = POINTS.iter().map(|point| point.full_name()).collect();
        assert_eq!(names.len(), POINTS.len());
        for point in POINTS {
            let word = |text: &str| {
                !text.is_empty() && text != "all" && text.bytes().all(|b| b.is_ascii_lowercase())
            };
            assert!(
                word(point.family) && word(point.name),
                "{}",
                point.full_name()
            );
            assert!(!point.help.is_empty());
        }
        let mut families: Vec<_> = POINTS.iter().map(|point| point.family).collect();
        families.dedup();
        assert_eq!(
            families.len(),
            families.iter().collect::<BTreeSet<_>>().len()
        );
    }
}
