//! Round-trip time: smoothed value, variation and minimum (RFC 6298, RFC 8985 section 6.1).

use std::collections::VecDeque;
use std::time::Duration;

/// The shortest retransmission timeout. RFC 6298 says one second; Linux uses this value.
pub(crate) const MIN_RTO: Duration = Duration::from_millis(200);
/// The longest retransmission timeout.
pub(crate) const MAX_RTO: Duration = Duration::from_secs(20);
/// The timeout before the first sample (RFC 6298, section 2.1).
const INITIAL_RTO: Duration = Duration::from_secs(1);
/// The time for which a minimum counts.
const MIN_WINDOW: Duration = Duration::from_secs(10);

/// An estimator of one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rtt {
    /// The round trip that a handshake before the tunnel has shown.
    handshake: Option<Duration>,
    estimate: Option<Estimate>,
    /// Candidates for the minimum: times rise, round trips rise.
    minima: VecDeque<(Duration, Duration)>,
    /// The time of the last sample.
    sampled: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: Duration,
    variation: Duration,
    latest: Duration,
}

impl Rtt {
    /// Notes the round trip of a handshake before the tunnel. It is no sample, since computations
    /// of the peer are part of it.
    pub(crate) const fn note_handshake(&mut self, round_trip: Duration) {
        self.handshake = Some(round_trip);
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, now: Duration, sample: Duration) {
        let sample = sample.max(Duration::from_micros(1));
        self.sampled = now;
        self.estimate = Some(match self.estimate {
            None => Estimate {
                smoothed: sample,
                variation: sample / 2,
                latest: sample,
            },
            Some(Estimate {
                smoothed,
                variation,
                ..
            }) => Estimate {
                variation: (variation * 3 + smoothed.abs_diff(sample)) / 4,
                smoothed: (smoothed * 7 + sample) / 8,
                latest: sample,
            },
        });
        while self.minima.back().is_some_and(|(_, rtt)| *rtt >= sample) {
            self.minima.pop_back();
        }
        self.minima.push_back((now, sample));
        while self.minima.len() > 1 && self.minima[0].0 + MIN_WINDOW < now {
            self.minima.pop_front();
        }
        // A slow rise would keep one candidate for each sample.
        if self.minima.len() > 64 {
            self.minima.remove(1);
        }
    }

    /// Forgets everything: the path is another one.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the smoothed round trip, if there was a sample.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.smoothed)
    }

    /// Returns the smoothed round trip, or that of the handshake before the first sample.
    pub(crate) fn first(&self) -> Option<Duration> {
        self.smoothed().or(self.handshake)
    }

    /// Returns true if there was no sample for two timeouts.
    pub(crate) fn is_stale(&self, now: Duration) -> bool {
        now.saturating_sub(self.sampled) >= self.timeout() * 2
    }

    /// Returns the last sample.
    pub(crate) fn latest(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.latest)
    }

    /// Returns the shortest round trip of the last ten seconds.
    pub(crate) fn min(&self) -> Option<Duration> {
        self.minima.front().map(|(_, rtt)| *rtt)
    }

    /// Returns the retransmission timeout without back-off.
    pub(crate) fn timeout(&self) -> Duration {
        self.estimate.map_or(INITIAL_RTO, |estimate| {
            (estimate.smoothed + estimate.variation * 4).clamp(MIN_RTO, MAX_RTO)
        })
    }

    /// Returns the retransmission timeout after `backoff` doublings.
    pub(crate) fn timeout_after(&self, backoff: u32) -> Duration {
        (self.timeout() * 2u32.saturating_pow(backoff.min(10))).min(MAX_RTO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn rtt_estimator_follows_rfc_6298() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), INITIAL_RTO);
        rtt.add(MS, 100 * MS);
        assert_eq!((rtt.smoothed(), rtt.timeout()), (Some(100 * MS), 300 * MS));
        rtt.add(2 * MS, 180 * MS);
        assert_eq!(rtt.smoothed(), Some(110 * MS));
        // Variation: (3 x 50 + 80) / 4 ms.
        assert_eq!(rtt.timeout(), 110 * MS + Duration::from_micros(57_500) * 4);
        assert_eq!(rtt.timeout_after(30), MAX_RTO);
    }

    #[test]
    fn rtt_minimum_is_forgotten_after_its_window() {
        let mut rtt = Rtt::default();
        rtt.add(Duration::ZERO, 50 * MS);
        for second in 1..=10 {
            rtt.add(Duration::from_secs(second), 80 * MS);
            assert_eq!(rtt.min(), Some(50 * MS));
        }
        rtt.add(Duration::from_secs(11), 90 * MS);
        assert_eq!(rtt.min(), Some(80 * MS));
        rtt.add(Duration::from_secs(12), 60 * MS);
        assert_eq!(rtt.min(), Some(60 * MS));
    }
}
