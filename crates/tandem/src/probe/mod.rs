//! Points in the data path that can be watched while the program runs: how long what waits where,
//! and how large the pieces are.
//!
//! Off by default, at the cost of one relaxed load for each passage. The control socket
//! (`admin::control`) switches points, singly or by family; what passes then is kept as a uniform sample
//! of bounded size ([`reservoir`]) and dumped as a cumulative distribution. Each point is a USDT
//! probe too ([`points`]): a tracer that attaches opens the same gate. They hold numbers only,
//! never names.

pub mod points;
pub mod reservoir;
pub mod snapshot;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use reservoir::Reservoir;

pub use points::POINTS;

/// Our own switch within a gate. The half below it is the USDT semaphore, in which the kernel
/// counts tracers.
const SWITCH: u32 = 1 << 16;

/// What a point's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Bytes.
    Bytes,
}

/// One point of observation.
// The gate comes first: its address is the point's, and the tracers' semaphore is found there.
#[repr(C)]
#[derive(Debug)]
pub struct Point {
    gate: AtomicU32,
    unit: Unit,
    family: &'static str,
    name: &'static str,
    help: &'static str,
    /// Passes over the place that a tracer puts its breakpoint on, with the value and its index.
    fire: fn(u64, u64),
    kept: Mutex<Option<Reservoir>>,
}

/// When something began to wait; nothing where nobody watched then.
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

    /// Whether anybody watches: our own switch is on or a tracer is attached.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.gate.load(Ordering::Relaxed) != 0
    }

    /// Notes a value. `index` tells apart what the values belong to (a stream's number) and reaches
    /// tracers only.
    #[inline]
    pub fn note(&self, value: u64, index: u32) {
        if self.is_watched() {
            self.keep(value, index);
        }
    }

    /// Now, if anybody watches.
    #[inline]
    pub fn start(&self) -> Stamp {
        Stamp(if self.is_watched() {
            Some(Instant::now())
        } else {
            None
        })
    }

    /// Notes the time since `start`.
    #[inline]
    pub fn stop(&self, start: Stamp, index: u32) {
        if let Some(start) = start.0 {
            self.note_time(start.elapsed(), index);
        }
    }

    /// Notes how long `work` takes.
    #[inline]
    pub fn time<T>(&self, index: u32, work: impl FnOnce() -> T) -> T {
        let start = self.start();
        let done = work();
        self.stop(start, index);
        done
    }

    /// Notes a length of time.
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

    fn kept(&self) -> MutexGuard<'_, Option<Reservoir>> {
        // Numbers cannot be left half written in a way that matters.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The family, a dot, and its name therein.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.family, self.name)
    }

    /// The family.
    pub const fn family(&self) -> &'static str {
        self.family
    }

    /// The name within the family.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether our own switch is on.
    pub fn is_on(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & SWITCH != 0
    }

    /// Tracers attached to it.
    pub fn tracers(&self) -> u32 {
        self.gate.load(Ordering::Relaxed) & (SWITCH - 1)
    }

    /// Switches it. What was kept stays until it is switched on the next time, which begins anew.
    pub fn switch(&self, on: bool) {
        let mut kept = self.kept();
        if !on {
            self.gate.fetch_and(!SWITCH, Ordering::Relaxed);
        } else if !self.is_on() {
            *kept = Some(Reservoir::new(seed(self.family, self.name)));
            self.gate.fetch_or(SWITCH, Ordering::Relaxed);
        }
    }
}

impl Stamp {
    /// Takes the stamp, leaving nothing.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Time since then.
    pub fn elapsed(self) -> Option<Duration> {
        self.0.map(|start| start.elapsed())
    }

    /// Whether there is nothing.
    pub const fn is_none(self) -> bool {
        self.0.is_none()
    }
}

/// Each point draws its own sample, the same in every run (FNV-1a of its name).
fn seed(family: &str, name: &str) -> u64 {
    let bytes = family.bytes().chain(*b".").chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
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
    fn keeps_what_passes_while_it_is_on() {
        static POINT: Point = Point::new("test", "point", Unit::Bytes, "", fire);
        let count = || POINT.kept().as_ref().map_or(0, Reservoir::count);
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

    /// The kernel adds to the lower half of the gate, here in its stead.
    #[test]
    fn tracers_open_the_gate_and_nothing_is_kept_for_them() {
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
    fn names_are_distinct_words_in_families_that_stand_together() {
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
