//! The rate of a packet train: the first packets that a sender sent without a pause, and whose
//! acknowledgements came apart.
//!
//! The slowest link of the path spreads such packets. The time between the first and the last
//! acknowledgement therefore shows the rate of this link, which a window of ten packets in each
//! round trip does not. Other traffic, acknowledgements that wait and a shaper that lets bursts
//! pass all falsify it, so a caller must treat it as a guess.

use std::time::Duration;

/// The pause of the sender that ends a train.
const PAUSE: Duration = Duration::from_millis(2);
/// The least spread of the acknowledgements that counts. Timers and the receiver's system are not
/// more precise.
const LEAST_SPREAD: Duration = Duration::from_millis(1);
/// The bytes behind the first acknowledgement that a train needs: about six packets.
const LEAST: u64 = 7 << 10;

/// Observes the trains of a sender.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Train {
    /// The packets of the present train, oldest and newest: when they left.
    left: Option<(Duration, Duration)>,
    /// The first and the last acknowledgement of the train.
    arrived: (Duration, Duration),
    /// The bytes behind those that the first acknowledgement covers.
    bytes: u64,
}

impl Train {
    /// Notes that `bytes` sent at `sent` were acknowledged.
    pub(crate) fn on_ack(&mut self, now: Duration, sent: Duration, bytes: u64) {
        match &mut self.left {
            Some((_, newest)) if (*newest..=*newest + PAUSE).contains(&sent) => {
                *newest = sent;
                self.arrived.1 = now;
                if now > self.arrived.0 {
                    self.bytes = self.bytes.saturating_add(bytes);
                }
            }
            // A packet that was overtaken says nothing about the others.
            Some((_, newest)) if sent < *newest => {}
            _ => {
                *self = Self {
                    left: Some((sent, sent)),
                    arrived: (now, now),
                    bytes: 0,
                }
            }
        }
    }

    /// Returns the rate in bytes per second that the train shows, once it is long enough.
    pub(crate) fn rate(&self) -> Option<u64> {
        let (oldest, newest) = self.left.filter(|_| self.bytes >= LEAST)?;
        let spread = self.arrived.1.saturating_sub(self.arrived.0);
        let spread = spread.max(newest.saturating_sub(oldest)).max(LEAST_SPREAD);
        Some((self.bytes as f64 / spread.as_secs_f64()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the rate after packets of 1200 bytes that left `gap` apart and arrived `spread`
    /// apart.
    fn rate(packets: u32, gap: Duration, spread: Duration) -> Option<u64> {
        let mut train = Train::default();
        for at in 0..packets {
            train.on_ack(400 * MS + spread * at, gap * at, 1200);
        }
        train.rate()
    }

    #[test]
    fn train_shows_the_spread_of_its_packets() {
        assert_eq!(rate(10, Duration::ZERO, MS), Some(1_200_000));
        assert_eq!(rate(10, Duration::ZERO, 5 * MS), Some(240_000));
        assert_eq!(rate(10, MS, MS / 2), Some(1_200_000), "the sender's own");
    }

    #[test]
    fn train_needs_packets_without_a_pause() {
        assert_eq!(rate(5, Duration::ZERO, MS), None);
        assert_eq!(rate(30, 3 * MS, MS), None);
        assert_eq!(rate(30, Duration::ZERO, Duration::ZERO), None);
    }

    #[test]
    fn train_ignores_overtaken_packets() {
        let mut train = Train::default();
        for at in 0..10 {
            train.on_ack(400 * MS + MS * at, MS, 1200);
            train.on_ack(400 * MS + MS * at, Duration::ZERO, 1200);
        }
        assert_eq!(train.rate(), Some(1_200_000));
    }
}
