//! Loss detection over all streams of a tunnel: RACK (RFC 8985) on one record of transmissions.
//!
//! All streams share the path, so an acknowledgement on any of them tells that earlier
//! transmissions of the others are late. Losses of a stream that sends little are thus repaired as
//! fast as those of a busy one, where TCP would wait for a timer.

use std::collections::VecDeque;
use std::time::Duration;

use crate::congestion::Stamp;
use crate::rtt::Rtt;

/// The datagrams after which one that did not arrive is lost, while nothing was reordered lately
/// (RFC 8985, section 6.2, step 4).
const REORDER_DATAGRAMS: u64 = 3;
/// The largest factor of the reordering window, which is a quarter of the shortest round trip.
const MAX_WINDOW_FACTOR: u32 = 64;
/// The round trips without a spurious loss after which the reordering window shrinks (section 6.2,
/// step 4). After as many in which nothing seemed reordered, datagrams count again.
/// Acknowledgements that are lost in a row look like reordering too.
const WINDOW_PERSISTENCE: u32 = 16;

/// A single segment on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmission {
    pub(crate) stream: u32,
    /// The offset of its first byte; for a reset, `u64::MAX`.
    pub(crate) offset: u64,
    /// The bytes that count as in flight.
    pub(crate) bytes: u32,
    pub(crate) sent: Duration,
    pub(crate) datagram: u64,
    pub(crate) stamp: Stamp,
    pub(crate) retransmission: bool,
    /// True for the first segment after a timer had ended: nothing had arrived for long.
    pub(crate) after_timer: bool,
    pub(crate) in_flight: bool,
}

/// The offset under which a reset is recorded.
pub(crate) const RESET_OFFSET: u64 = u64::MAX;

/// The transmissions of a tunnel in the order in which they left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    /// The number of the first entry.
    base: u64,
    log: VecDeque<Transmission>,
    in_flight: usize,
    /// The newest transmission that arrived.
    newest: Option<(u64, Transmission)>,
    /// The number of the newest one before this datagram's acknowledgements.
    newest_before: u64,
    /// The further round trips for which the path counts as one that reorders.
    reorders: u32,
    window_factor: u32,
    /// The round trips that the present factor lasts, and the transmission that ends this one.
    persistence: u32,
    round_end: u64,
}

impl Recovery {
    /// Returns the number of the next transmission.
    pub(crate) fn next_number(&self) -> u64 {
        self.base + self.log.len() as u64
    }

    /// Records a transmission; returns its number.
    pub(crate) fn push(&mut self, transmission: Transmission) -> u64 {
        let number = self.next_number();
        self.log.push_back(transmission);
        self.in_flight += 1;
        number
    }

    /// Returns the number of transmissions in flight.
    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the newest transmission in flight.
    pub(crate) fn last_in_flight(&self) -> Option<&Transmission> {
        self.log.iter().rev().find(|entry| entry.in_flight)
    }

    /// Takes a transmission out of flight; `None` if it is not in flight.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Transmission> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let entry = self.log.get_mut(index).filter(|entry| entry.in_flight)?;
        entry.in_flight = false;
        let entry = *entry;
        self.in_flight -= 1;
        while self.log.front().is_some_and(|entry| !entry.in_flight) {
            self.log.pop_front();
            self.base += 1;
        }
        Some(entry)
    }

    /// Notes that a transmission arrived, which [`Self::remove`] returned.
    pub(crate) fn on_arrived(
        &mut self,
        now: Duration,
        number: u64,
        transmission: Transmission,
        rtt: &Rtt,
    ) {
        // The acknowledgement of a retransmitted segment may be that of its first copy. It tells
        // nothing if it comes too early (RFC 8985, section 6.2, step 2). After a silence, it is
        // more likely that the route has become shorter.
        let may_be_first = transmission.retransmission && !transmission.after_timer;
        let passed = now.saturating_sub(transmission.sent);
        if may_be_first && rtt.min().is_some_and(|min| passed < min) {
            return;
        }
        // A datagram acknowledges streams in any order.
        if number < self.newest_before && !transmission.retransmission {
            self.reorders = WINDOW_PERSISTENCE;
        }
        if self.newest.is_none_or(|(newest, _)| newest < number) {
            self.newest = Some((number, transmission));
        }
        if number >= self.round_end {
            self.round_end = self.next_number();
            self.reorders = self.reorders.saturating_sub(1);
            self.persistence = self.persistence.saturating_sub(1);
            if self.persistence == 0 {
                self.window_factor = 1;
            }
        }
    }

    /// Notes that all acknowledgements of a datagram were taken.
    pub(crate) fn end_datagram(&mut self) {
        self.newest_before = self.newest.map_or(0, |(number, _)| number);
    }

    /// Widens the reordering window: a segment that was declared lost had arrived.
    pub(crate) fn on_spurious(&mut self) {
        self.reorders = WINDOW_PERSISTENCE;
        self.window_factor = (self.window_factor.max(1) + 1).min(MAX_WINDOW_FACTOR);
        self.persistence = WINDOW_PERSISTENCE;
    }

    /// Forgets the state of the path: it is another one.
    pub(crate) fn clear_path(&mut self) {
        (self.newest, self.newest_before) = (None, 0);
        self.reorders = 0;
        self.window_factor = 1;
    }

    fn reordering_window(&self, rtt: &Rtt) -> Duration {
        let Some((min, smoothed)) = rtt.min().zip(rtt.smoothed()) else {
            return Duration::ZERO;
        };
        (min / 4 * self.window_factor.max(1)).min(smoothed)
    }

    /// Returns the number of a transmission that is lost by `now`, or the time at which the next
    /// one will be.
    pub(crate) fn next_loss(&self, now: Duration, rtt: &Rtt) -> Result<u64, Option<Duration>> {
        let Some((newest, arrived)) = &self.newest else {
            return Err(None);
        };
        let slowest = rtt.latest().max(rtt.smoothed()).unwrap_or_default();
        let time_limit = slowest + self.reordering_window(rtt);
        // Entries stand in the order of their deadlines.
        let before = usize::try_from(newest.saturating_sub(self.base)).unwrap_or(usize::MAX);
        let oldest = self
            .log
            .iter()
            .take(before)
            .position(|entry| entry.in_flight);
        let Some(index) = oldest else {
            return Err(None);
        };
        let entry = &self.log[index];
        let passed = arrived.datagram.saturating_sub(entry.datagram) >= REORDER_DATAGRAMS;
        let deadline = entry.sent + time_limit;
        if (passed && self.reorders == 0) || deadline <= now {
            Ok(self.base + index as u64)
        } else {
            Err(Some(deadline))
        }
    }

    /// Returns the numbers of all transmissions in flight.
    pub(crate) fn all_in_flight(&self) -> Vec<u64> {
        (self.base..)
            .zip(&self.log)
            .filter(|(_, entry)| entry.in_flight)
            .map(|(number, _)| number)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn sent(recovery: &mut Recovery, at: Duration, datagram: u64) -> u64 {
        recovery.push(Transmission {
            stream: 0,
            offset: datagram * 1000,
            bytes: 1000,
            sent: at,
            datagram,
            stamp: Stamp::default(),
            retransmission: false,
            after_timer: false,
            in_flight: true,
        })
    }

    fn arrive(recovery: &mut Recovery, number: u64) {
        let transmission = recovery.remove(number).expect("in flight");
        recovery.on_arrived(200 * MS, number, transmission, &rtt());
    }

    fn rtt() -> Rtt {
        let mut rtt = Rtt::default();
        rtt.add(Duration::ZERO, 100 * MS);
        rtt
    }

    #[test]
    fn recovery_waits_a_quarter_of_a_round_trip() {
        let (mut recovery, rtt) = (Recovery::default(), rtt());
        let first = sent(&mut recovery, Duration::ZERO, 0);
        let second = sent(&mut recovery, MS, 1);
        assert_eq!(
            recovery.next_loss(500 * MS, &rtt),
            Err(None),
            "nothing newer arrived"
        );
        arrive(&mut recovery, second);
        assert_eq!(recovery.next_loss(101 * MS, &rtt), Err(Some(125 * MS)));
        assert_eq!(recovery.next_loss(125 * MS, &rtt), Ok(first));
        recovery.remove(first);
        assert_eq!((recovery.in_flight(), recovery.next_number()), (0, 2));
        assert!(recovery.log.is_empty());
    }

    #[test]
    fn recovery_ignores_early_acks_of_repeated_segments() {
        let (mut recovery, rtt) = (Recovery::default(), rtt());
        let first = sent(&mut recovery, MS, 0);
        (1..8).for_each(|n| _ = sent(&mut recovery, MS, n));
        let mut repeated = recovery.log[0];
        (repeated.retransmission, repeated.sent, repeated.datagram) = (true, 110 * MS, 8);
        recovery.remove(first);
        let number = recovery.push(repeated);
        let repeated = recovery.remove(number).expect("in flight");
        recovery.on_arrived(111 * MS, number, repeated, &rtt);
        assert_eq!(recovery.next_loss(111 * MS, &rtt), Err(None));
        recovery.on_arrived(210 * MS, number, repeated, &rtt);
        assert_eq!(recovery.next_loss(210 * MS, &rtt), Ok(first + 1));
    }

    #[test]
    fn recovery_counts_datagrams_until_one_was_reordered() {
        let (mut recovery, rtt) = (Recovery::default(), rtt());
        let numbers: Vec<u64> = (0..8).map(|n| sent(&mut recovery, MS, n)).collect();
        arrive(&mut recovery, numbers[3]);
        assert_eq!(recovery.next_loss(2 * MS, &rtt), Ok(numbers[0]));
        arrive(&mut recovery, numbers[1]);
        assert_eq!(recovery.reorders, 0, "one datagram acknowledges both");
        recovery.end_datagram();
        arrive(&mut recovery, numbers[0]);
        assert!(recovery.reorders > 0);
        assert_eq!(recovery.next_loss(2 * MS, &rtt), Err(Some(126 * MS)));
    }

    #[test]
    fn recovery_counts_datagrams_again_after_a_while() {
        let (mut recovery, rtt) = (Recovery::default(), rtt());
        let numbers: Vec<u64> = (0..2).map(|n| sent(&mut recovery, MS, n)).collect();
        for number in numbers.into_iter().rev() {
            arrive(&mut recovery, number);
            recovery.end_datagram();
        }
        for round in 1..20 {
            let numbers: Vec<u64> = (0..5).map(|n| sent(&mut recovery, MS, n)).collect();
            arrive(&mut recovery, numbers[4]);
            let is_lost = recovery.next_loss(2 * MS, &rtt) == Ok(numbers[0]);
            assert_eq!(
                is_lost,
                round >= WINDOW_PERSISTENCE,
                "after {round} round trips"
            );
            numbers[..4]
                .iter()
                .for_each(|number| arrive(&mut recovery, *number));
            recovery.end_datagram();
        }
    }

    #[test]
    fn recovery_widens_its_window_after_spurious_losses() {
        let (mut recovery, rtt) = (Recovery::default(), rtt());
        assert_eq!(recovery.reordering_window(&rtt), 25 * MS);
        recovery.on_spurious();
        assert_eq!(recovery.reordering_window(&rtt), 50 * MS);
        (0..80).for_each(|_| recovery.on_spurious());
        assert_eq!(
            recovery.reordering_window(&rtt),
            100 * MS,
            "at most a round trip"
        );
        for n in 0..20 {
            let number = sent(&mut recovery, MS, n);
            arrive(&mut recovery, number);
        }
        assert_eq!(recovery.reordering_window(&rtt), 25 * MS);
    }
}
