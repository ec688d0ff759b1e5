//! The tolerance of reordering, which adapts to the path (RFC 9002 section 6.1, RFC 8985)

use std::{cmp, collections::BTreeMap, ops::RangeInclusive};

use super::paths::RttEstimator;
use crate::{Duration, TIMER_GRANULARITY};

/// The largest time by which the time threshold grows, in quarters of the shortest round trip
const MAX_WIDENED: u32 = 63;

/// The round trips without a spurious loss after which the time threshold is the configured one
/// again (RFC 8985 section 6.2, step 4)
const PERSISTENCE: u32 = 16;

/// The packets declared lost that are remembered at most
const MAX_LOST: usize = 4096;

/// How long a missing packet of the application data space is waited for
///
/// Once a packet has arrived late, the packet threshold does not apply any more (RFC 8985 section
/// 6.2). Each round trip with a packet that was declared lost and then acknowledged widens the time
/// threshold, up to another round trip.
#[derive(Clone, Default)]
pub(super) struct Reordering {
    /// Whether a packet was acknowledged after a later one
    seen: bool,
    /// The time by which the time threshold has grown, in quarters of the shortest round trip
    widened: u32,
    /// Round trips until the time threshold shrinks
    persistence: u32,
    /// First packet of the present round trip
    this_round: u64,
    /// First packet of the next round trip
    next_round: u64,
    /// Whether the time threshold has grown in this round trip
    widened_in_round: bool,
    /// Sizes of the packets that were declared lost in the present round trip and the one before
    lost: BTreeMap<u64, u16>,
}

impl Reordering {
    /// Returns whether the packet threshold applies
    pub(super) fn counts_packets(&self) -> bool {
        !self.seen
    }

    /// Returns the time after which a packet is lost that was sent before an acknowledged one
    pub(super) fn loss_delay(&self, rtt: &RttEstimator, time_threshold: f32) -> Duration {
        let delay = rtt.conservative().mul_f32(time_threshold);
        let widened = cmp::min(rtt.min() / 4 * self.widened, rtt.get());
        cmp::max(delay + widened, TIMER_GRANULARITY)
    }

    /// Notes the first acknowledgement of packets. `prev_largest` is the largest packet that had
    /// been acknowledged before, and the next one to be sent is `next_packet`.
    pub(super) fn on_acked(
        &mut self,
        newly_acked: RangeInclusive<u64>,
        prev_largest: Option<u64>,
        next_packet: u64,
    ) {
        self.seen |= prev_largest.is_some_and(|largest| *newly_acked.start() < largest);
        if *newly_acked.end() < self.next_round {
            return;
        }
        self.lost = self.lost.split_off(&self.this_round);
        self.this_round = self.next_round;
        self.next_round = next_packet;
        self.widened_in_round = false;
        self.persistence = self.persistence.saturating_sub(1);
        if self.persistence == 0 {
            self.widened = 0;
        }
    }

    /// Notes a packet that is declared lost
    pub(super) fn on_lost(&mut self, packet: u64, size: u16) {
        if self.lost.len() == MAX_LOST {
            self.lost.pop_first();
        }
        self.lost.insert(packet, size);
    }

    /// Notes a range of an acknowledgement
    ///
    /// Returns the bytes of its packets that had been declared lost.
    pub(super) fn on_range_acked(&mut self, range: RangeInclusive<u64>) -> u64 {
        let mut bytes = 0;
        while let Some((&packet, &size)) = self.lost.range(range.clone()).next() {
            self.lost.remove(&packet);
            bytes += u64::from(size);
        }
        if bytes > 0 {
            self.seen = true;
            if !self.widened_in_round {
                self.widened_in_round = true;
                self.widened = cmp::min(self.widened + 1, MAX_WIDENED);
            }
            self.persistence = PERSISTENCE;
        }
        bytes
    }
}
