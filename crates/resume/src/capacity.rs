//! The capacity of a path: the best rate of the last round trips in which the sender had enough to
//! send.
//!
//! A round begins when the previous one ends, and ends with the first acknowledgement of a packet
//! that was sent within it. The rate of a round contains the time in queues, so a long queue does
//! not raise it.

use std::time::Duration;

/// The rounds that count.
const ROUNDS: usize = 8;
/// The bytes of a round below which its rate means little: about an initial window (RFC 6928).
const LEAST: u64 = 12 << 10;

/// Observes the rate of delivery.
#[derive(Clone, Debug, Default)]
pub struct Capacity {
    began: Duration,
    delivered: u64,
    is_limited: bool,
    rates: [u64; ROUNDS],
    next: usize,
    round_trip: Option<Duration>,
}

impl Capacity {
    /// Notes a round trip.
    pub(crate) fn note_round_trip(&mut self, sample: Duration) {
        if !sample.is_zero() {
            self.round_trip = Some(self.round_trip.map_or(sample, |least| least.min(sample)));
        }
    }

    /// Notes that `bytes` sent at `sent` were acknowledged. `app_limited` is true if the sender had
    /// too little to send.
    pub fn on_ack(&mut self, now: Duration, sent: Duration, bytes: u64, app_limited: bool) {
        let sample = now.saturating_sub(sent);
        self.note_round_trip(sample);
        self.delivered = self.delivered.saturating_add(bytes);
        self.is_limited |= app_limited;
        if sent < self.began {
            return;
        }
        let elapsed = now.saturating_sub(self.began).as_secs_f64();
        if elapsed > 0.0 && self.delivered >= LEAST {
            let rate = (self.delivered as f64 / elapsed) as u64;
            if !self.is_limited || rate > self.rate() {
                self.rates[self.next] = rate;
                self.next = (self.next + 1) % ROUNDS;
            }
        }
        (self.began, self.delivered, self.is_limited) = (now, 0, false);
    }

    /// Returns the best rate in bytes per second, or 0 if no round has shown one.
    pub fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or(0)
    }

    /// Returns the shortest round trip.
    pub const fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Acknowledges 10 kB each 10 ms for a second, after a round trip of 100 ms.
    fn steady(capacity: &mut Capacity, from: u32, app_limited: bool) {
        for tick in from..from + 100 {
            let sent = 10 * MS * tick;
            capacity.on_ack(sent + 100 * MS, sent, 10_000, app_limited);
        }
    }

    #[test]
    fn capacity_is_the_rate_of_delivery() {
        let mut capacity = Capacity::default();
        steady(&mut capacity, 0, false);
        let rate = capacity.rate();
        assert!((900_000..1_200_000).contains(&rate), "{rate}");
        assert_eq!(capacity.round_trip(), Some(100 * MS));
    }

    #[test]
    fn capacity_keeps_its_rate_while_little_is_sent() {
        let mut capacity = Capacity::default();
        steady(&mut capacity, 0, false);
        let rate = capacity.rate();
        for tick in 0..100 {
            let sent = Duration::from_secs(2 + tick);
            capacity.on_ack(sent + 100 * MS, sent, 20_000, true);
        }
        assert_eq!(capacity.rate(), rate);
    }

    #[test]
    fn capacity_falls_with_the_path() {
        let mut capacity = Capacity::default();
        steady(&mut capacity, 0, false);
        for tick in 0..200 {
            let sent = Duration::from_secs(2) + 100 * MS * tick;
            capacity.on_ack(sent + 100 * MS, sent, 20_000, false);
        }
        assert!(capacity.rate() <= 200_000, "{}", capacity.rate());
    }

    #[test]
    fn capacity_ignores_a_few_bytes() {
        let mut capacity = Capacity::default();
        capacity.on_ack(100 * MS, 99 * MS, 1000, false);
        assert_eq!(capacity.rate(), 0);
    }
}
