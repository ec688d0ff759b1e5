//! The rate of delivery, measured for each transmission over its time in flight
//! (draft-ietf-ccwg-bbr, section 4.1).
//!
//! A sender keeps a [`Stamp`] with each transmission. Acknowledgements that arrive together give
//! one [`Delivered`].

use std::time::Duration;

use super::DeliveryRate;

/// The state of delivery at the time a segment left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    delivered: u64,
    delivered_at: Duration,
    first_sent: Duration,
    app_limited: bool,
    follows_rest: bool,
}

impl Stamp {
    /// Returns true if the segment follows bytes in flight behind which nothing was left to send.
    /// The first flight after a pause does not, whatever its size.
    pub const fn follows_rest(&self) -> bool {
        self.follows_rest
    }
}

/// The delivery that acknowledgements together show.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// The bytes of all transmissions.
    pub bytes: u64,
    /// The round trip of the newest transmission.
    pub rtt: Option<Duration>,
    /// The rate over the time that the newest transmission was on its way.
    pub rate: Option<DeliveryRate>,
    /// Indicates whether a new round trip begins.
    pub round_start: bool,
    /// True for the first delivery after nothing was in flight.
    pub after_idle: bool,
}

/// The transmissions that are acknowledged together.
#[derive(Clone, Copy, Debug)]
struct Acked {
    bytes: u64,
    sent: Duration,
    stamp: Stamp,
    rtt: Option<Duration>,
}

/// The deliveries so far.
#[derive(Clone, Debug)]
pub struct Delivery {
    delivered: u64,
    delivered_at: Duration,
    first_sent: Duration,
    /// Transmissions are limited by the application until more than this is delivered. After a
    /// pause, nothing is in flight, and the first of them follow exactly this much.
    app_limited_until: Option<u64>,
    /// The delivery and the losses of segments that were sent earlier belong to a retreat, and are
    /// no measurement of the path.
    valid_from: Duration,
    next_round: u64,
    /// True if nothing was in flight before the transmissions that none acknowledges yet.
    was_idle: bool,
    acked: Option<Acked>,
}

impl Delivery {
    /// Begins at this time.
    pub const fn new(now: Duration) -> Self {
        Self {
            delivered: 0,
            delivered_at: now,
            first_sent: now,
            app_limited_until: None,
            valid_from: Duration::ZERO,
            next_round: 0,
            was_idle: false,
            acked: None,
        }
    }

    /// Ignores the transmissions so far.
    pub const fn restart(&mut self, now: Duration) {
        self.valid_from = now;
    }

    /// Returns true if a transmission is a measurement of the path.
    pub fn counts(&self, sent: Duration) -> bool {
        sent >= self.valid_from
    }

    /// Notes that nothing more waits to be sent, with `in_flight` bytes on their way.
    pub fn note_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = Some(self.delivered + in_flight);
    }

    /// Notes a transmission that follows `in_flight` bytes.
    pub fn on_sent(&mut self, now: Duration, in_flight: u64) -> Stamp {
        if in_flight == 0 {
            self.first_sent = now;
            self.delivered_at = now;
            self.was_idle = true;
        }
        Stamp {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            app_limited: self.app_limited_until.is_some(),
            follows_rest: self
                .app_limited_until
                .is_some_and(|until| until > self.delivered),
        }
    }

    /// Notes that a transmission arrived. [`Self::finish`] judges the acknowledgements of one
    /// datagram together.
    pub fn on_acked(
        &mut self,
        now: Duration,
        (sent, stamp): (Duration, Stamp),
        bytes: u64,
        rtt: Option<Duration>,
    ) {
        self.on_delivered(now, bytes);
        let acked = self.acked.get_or_insert(Acked {
            bytes: 0,
            sent,
            stamp,
            rtt,
        });
        acked.bytes += bytes;
        if sent >= acked.sent {
            (acked.sent, acked.stamp) = (sent, stamp);
            acked.rtt = rtt.or(acked.rtt);
            self.first_sent = sent;
        }
    }

    /// Notes bytes that arrived, and are no measurement.
    pub const fn on_delivered(&mut self, now: Duration, bytes: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        if let Some(until) = self.app_limited_until
            && self.delivered > until
        {
            self.app_limited_until = None;
        }
    }

    /// Returns the delivery since the last call, on a path with this shortest round trip.
    pub fn finish(&mut self, now: Duration, min_rtt: Duration) -> Option<Delivered> {
        let acked = self.acked.take()?;
        let round_start = acked.stamp.delivered >= self.next_round;
        if round_start {
            self.next_round = self.delivered;
        }
        Some(Delivered {
            bytes: acked.bytes,
            rtt: acked.rtt,
            rate: self.rate(&acked, now, min_rtt),
            round_start,
            after_idle: std::mem::take(&mut self.was_idle),
        })
    }

    fn rate(&self, acked: &Acked, now: Duration, min_rtt: Duration) -> Option<DeliveryRate> {
        let Acked { sent, stamp, .. } = acked;
        let interval = sent
            .saturating_sub(stamp.first_sent)
            .max(now.saturating_sub(stamp.delivered_at));
        // A shorter interval is an artefact of compressed acknowledgements.
        if interval < min_rtt || interval.is_zero() || stamp.delivered_at < self.valid_from {
            return None;
        }
        let bytes = self.delivered - stamp.delivered;
        Some(DeliveryRate {
            bytes_per_second: (bytes as f64 / interval.as_secs_f64()) as u64,
            app_limited: stamp.app_limited,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn delivery_takes_no_rate_from_before_a_restart() {
        let mut delivery = Delivery::new(Duration::ZERO);
        let stamp = delivery.on_sent(Duration::ZERO, 0);
        delivery.restart(50 * MS);
        delivery.on_acked(100 * MS, (Duration::ZERO, stamp), 1000, Some(100 * MS));
        let delivered = delivery.finish(100 * MS, 100 * MS).expect("a delivery");
        assert!(delivered.rate.is_none() && !delivery.counts(Duration::ZERO));
        let stamp = delivery.on_sent(100 * MS, 0);
        delivery.on_acked(200 * MS, (100 * MS, stamp), 1000, Some(100 * MS));
        let delivered = delivery.finish(200 * MS, 100 * MS).expect("a delivery");
        assert!(delivered.rate.is_some() && delivered.round_start);
    }

    #[test]
    fn delivery_measures_the_rate_of_a_round_trip() {
        let mut delivery = Delivery::new(Duration::ZERO);
        let sent = |n: u64| delivery.on_sent(Duration::ZERO, n * 1000);
        let stamps: Vec<Stamp> = (0..10).map(sent).collect();
        for stamp in stamps {
            delivery.on_acked(100 * MS, (Duration::ZERO, stamp), 1000, Some(100 * MS));
        }
        let delivered = delivery.finish(100 * MS, 100 * MS).expect("a delivery");
        let rate = delivered.rate.expect("a whole round trip");
        assert_eq!((rate.bytes_per_second, delivered.bytes), (100_000, 10_000));
    }

    #[test]
    fn delivery_tells_the_first_one_after_nothing_was_in_flight() {
        let mut delivery = Delivery::new(Duration::ZERO);
        let first = delivery.on_sent(10 * MS, 0);
        let second = delivery.on_sent(20 * MS, 1000);
        let mut tells = |now: Duration, sent: Duration, stamp: Stamp| {
            delivery.on_acked(now, (sent, stamp), 1000, Some(100 * MS));
            delivery
                .finish(now, 100 * MS)
                .expect("a delivery")
                .after_idle
        };
        assert!(tells(110 * MS, 10 * MS, first));
        assert!(!tells(120 * MS, 20 * MS, second));
    }

    #[test]
    fn delivery_marks_rates_that_the_sender_limited() {
        let mut delivery = Delivery::new(Duration::ZERO);
        delivery.note_app_limited(2000);
        let limited = delivery.on_sent(Duration::ZERO, 2000);
        for _ in 0..2 {
            delivery.on_acked(100 * MS, (Duration::ZERO, limited), 1000, None);
        }
        assert!(limited.app_limited);
        let after_pause = delivery.on_sent(100 * MS, 0);
        assert!(after_pause.app_limited);
        delivery.on_acked(200 * MS, (100 * MS, after_pause), 1000, None);
        assert!(!delivery.on_sent(200 * MS, 0).app_limited);
    }
}
