//! Statistics of a link: counters, and histograms of times.

use std::time::Duration;

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packet.
    pub bytes: u64,
}

impl Count {
    /// Adds one packet.
    pub fn add(&mut self, len: usize) {
        self.packets += 1;
        self.bytes += len as u64;
    }
}

/// Counters of one direction since its beginning.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Came in.
    pub received: Count,
    /// Went out, copies included.
    pub delivered: Count,
    /// Lost on the line, by [`crate::loss`].
    pub lost: Count,
    /// Found the queue full, or too much on the line.
    pub overflowed: Count,
    /// Dropped by CoDel.
    pub managed: Count,
    /// Copies made.
    pub duplicated: Count,
    /// Sent on with a wrong bit.
    pub corrupted: Count,
    /// Sent on as a TCP reset.
    pub reset: Count,
    /// Most packets that ever waited.
    pub queue_peak: usize,
    /// Waits of packets in the queue, only those that were sent.
    pub queue_delay: Histogram,
}

impl Stats {
    /// Share of received packets that never went out, for whatever reason.
    pub fn effective_loss(&self) -> f64 {
        let dropped = self.lost.packets + self.overflowed.packets + self.managed.packets;
        if self.received.packets == 0 {
            0.0
        } else {
            dropped as f64 / self.received.packets as f64
        }
    }
}

/// Buckets per doubling: quantiles are right to about 1.5 %.
const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
/// Doublings covered: up to 2^44 ns, almost five hours.
const DOUBLINGS: usize = 40;

/// Times in logarithmic buckets.
#[derive(Clone)]
pub struct Histogram {
    buckets: Box<[u64; SUB * DOUBLINGS]>,
    count: u64,
    sum: Duration,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: Box::new([0; SUB * DOUBLINGS]),
            count: 0,
            sum: Duration::ZERO,
            max: Duration::ZERO,
        }
    }
}

impl Histogram {
    /// Adds a time.
    pub fn record(&mut self, time: Duration) {
        self.buckets[bucket(time.as_nanos() as u64)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(time);
        self.max = self.max.max(time);
    }

    /// Times recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the arithmetic mean, or zero without values.
    pub fn mean(&self) -> Duration {
        if self.count == 0 {
            Duration::ZERO
        } else {
            self.sum.div_f64(self.count as f64)
        }
    }

    /// Returns the longest time.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Returns the time below which a share `q` of the values lies, to within a bucket. Returns
    /// zero without values.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (index, n) in self.buckets.iter().enumerate() {
            seen += n;
            if *n > 0 && seen >= rank {
                return Duration::from_nanos(middle(index)).min(self.max);
            }
        }
        self.max
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let quantiles = [0.5, 0.99].map(|q| self.quantile(q));
        write!(
            f,
            "Histogram(n {}, mean {:?}, p50/p99 {quantiles:?}, max {:?})",
            self.count,
            self.mean(),
            self.max
        )
    }
}

/// Values below [`SUB`] have buckets of their own; above, each doubling has [`SUB`].
fn bucket(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    let index = (shift as usize + 1) * SUB + ((ns >> shift) as usize - SUB);
    index.min(SUB * DOUBLINGS - 1)
}

fn middle(index: usize) -> u64 {
    if index < SUB {
        return index as u64;
    }
    let shift = index / SUB - 1;
    let low = ((index % SUB + SUB) as u64) << shift;
    low + (1u64 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_bucket() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        for us in 1..=100_000 {
            histogram.record(Duration::from_micros(us));
        }
        for (q, us) in [
            (0.5, 50_000.0),
            (0.99, 99_000.0),
            (0.001, 100.0),
            (1.0, 100_000.0),
        ] {
            let got = histogram.quantile(q).as_secs_f64() * 1e6;
            assert!((got / us - 1.0).abs() < 0.02, "{q}: {got} against {us}");
        }
        assert_eq!(histogram.mean(), Duration::from_nanos(50_000_500));
        assert_eq!(histogram.max(), Duration::from_millis(100));
    }

    #[test]
    fn every_time_has_a_bucket() {
        let mut histogram = Histogram::default();
        for shift in 0..64 {
            histogram.record(Duration::from_nanos(1 << shift));
        }
        histogram.record(Duration::from_nanos(u64::MAX));
        assert_eq!(histogram.count(), 65);
        assert_eq!(histogram.quantile(0.0), Duration::from_nanos(1));
    }
}
