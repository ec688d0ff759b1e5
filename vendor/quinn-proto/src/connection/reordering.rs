//! The tolerance of reordering, which adapts to the path (RFC 9002 section 6.1, RFC 8985)

use std::{cmp, collections::BTreeMap, ops::RangeInclusive};

use super::paths::RttEstimator;
use crate::{Duration, Instant, TIMER_GRANULARITY};

/// The largest time by which the time threshold grows, in quarters of the shortest round trip
const MAX_WIDENED: u32 = 63;

/// The round trips without a spurious loss after which the time threshold is the configured one
/// again (RFC 8985 section 6.2, step 4)
const PERSISTENCE: u32 = 16;

/// The packets declared lost that are remembered at most
const MAX_LOST: usize = 4096;

/// The packets declared lost that are remembered at most while nothing is in flight
const MAX_LOST_IDLE: usize = 64;

/// How long a missing packet of the application data space is waited for
///
/// Once a packet has arrived late, the packet threshold does not apply any more (RFC 8985 section
/// 6.2). Each round trip with a packet that was declared lost and then acknowledged widens the time
/// threshold, up to another round trip.
#[derive(Default)]
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
    /// The packets that were declared lost in the present round trip and the one before, with the
    /// time of this and their sizes
    lost: BTreeMap<u64, (Instant, u16)>,
}

impl Reordering {
    /// Returns the tolerance for another address of the same peer
    ///
    /// The packets that were declared lost stay behind. A peer can change its port with each
    /// packet, and would have them copied each time.
    pub(super) fn without_losses(&self) -> Self {
        Self {
            lost: BTreeMap::new(),
            ..*self
        }
    }

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
    pub(super) fn on_lost(&mut self, now: Instant, packet: u64, size: u16) {
        // A packet without data that count as in flight changes neither threshold nor window.
        if size == 0 {
            return;
        }
        if self.lost.len() == MAX_LOST {
            self.lost.pop_first();
        }
        self.lost.insert(packet, (now, size));
    }

    /// Notes that nothing is in flight, so that an idle connection holds little memory
    pub(super) fn on_idle(&mut self) {
        if self.lost.len() > MAX_LOST_IDLE {
            if let Some(&first) = self.lost.keys().nth_back(MAX_LOST_IDLE - 1) {
                self.lost = self.lost.split_off(&first);
            }
        }
    }

    /// Notes a range of an acknowledgement
    ///
    /// Adds the bytes of its packets that had been declared lost to `spurious`, with the times at
    /// which they were.
    pub(super) fn on_range_acked(
        &mut self,
        range: RangeInclusive<u64>,
        spurious: &mut Vec<(Instant, u64)>,
    ) {
        let mut is_late = false;
        while let Some((&packet, &(declared, size))) = self.lost.range(range.clone()).next() {
            self.lost.remove(&packet);
            is_late = true;
            match spurious.last_mut() {
                Some((last, bytes)) if *last == declared => *bytes += u64::from(size),
                _ => spurious.push((declared, size.into())),
            }
        }
        if is_late {
            self.seen = true;
            if !self.widened_in_round {
                self.widened_in_round = true;
                self.widened = cmp::min(self.widened + 1, MAX_WIDENED);
            }
            self.persistence = PERSISTENCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_path_and_next_address_remember_few_losses() {
        let now = Instant::now();
        let mut path = Reordering::default();
        path.on_lost(now, 0, 0);
        assert!(path.lost.is_empty(), "it was not in flight");
        for packet in 0..2 * MAX_LOST as u64 {
            path.on_lost(now, packet, 1200);
        }
        assert_eq!(path.lost.len(), MAX_LOST);
        path.seen = true;
        let next = path.without_losses();
        assert!(next.lost.is_empty() && !next.counts_packets());
        path.on_idle();
        assert_eq!(path.lost.len(), MAX_LOST_IDLE);
        let newest = 2 * MAX_LOST as u64 - 1;
        assert_eq!(path.lost.keys().next_back(), Some(&newest));
        path.on_idle();
        assert_eq!(path.lost.len(), MAX_LOST_IDLE);
    }

    #[test]
    fn late_packets_have_the_time_of_their_loss() {
        let first = Instant::now();
        let second = first + Duration::from_millis(1);
        let mut path = Reordering::default();
        for (at, packet) in [(first, 1), (first, 2), (second, 4), (second, 9)] {
            path.on_lost(at, packet, 1200);
        }
        let mut spurious = Vec::new();
        path.on_range_acked(5..=8, &mut spurious);
        assert!(spurious.is_empty() && path.counts_packets());
        path.on_range_acked(0..=4, &mut spurious);
        assert_eq!(spurious, [(first, 2400), (second, 1200)]);
        assert_eq!((path.lost.len(), path.widened), (1, 1));
        assert!(!path.counts_packets());
        path.on_range_acked(0..=9, &mut spurious);
        assert_eq!(spurious, [(first, 2400), (second, 2400)]);
        assert_eq!(path.widened, 1, "once in a round trip");
    }
}
