//! Congestion control: how many bytes may be in flight, and how fast they leave.
//!
//! A controller belongs to a flow (`crate::flow`): to the tunnel as a whole where the streams are
//! coupled, to one stream otherwise. It sees acknowledgements and losses and answers with a window
//! and a pacing rate.
//!
//! Other senders use a [`Controller`] with a [`Delivery`], such as those of QUIC.

mod bbr;
mod cubic;
mod delivery;

use std::time::Duration;

pub use bbr::Bbr;
pub use cubic::Cubic;
pub use delivery::{Delivered, Delivery, Stamp};
use tandem_resume::Reduced;

/// The initial window in packets on a path of which nothing is known (RFC 6928).
pub const INITIAL_PACKETS: u64 = 10;
/// The largest initial window in packets. On fast paths the first 300 kB over BBR take 0.63 of the
/// time that they take after ten packets, and 1.1 at 250 kbit/s. With 48 packets it is 0.52 and
/// 1.2.
const MOST_PACKETS: u64 = 32;
/// The packets of an initial window for each second of the round trip. They limit the rate of the
/// first flight. At 100 ms and 2 Mbit/s, a queue of 17 packets has room for it.
const PACKETS_PER_SECOND: u64 = 250;

/// Returns the initial window in bytes on a path whose round trip a handshake has shown. The sender
/// paces it over this time.
pub fn initial_window(round_trip: Duration, segment: u64) -> u64 {
    let packets = PACKETS_PER_SECOND as f64 * round_trip.as_secs_f64();
    (packets as u64).clamp(INITIAL_PACKETS, MOST_PACKETS) * segment
}

/// The algorithm of congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// CUBIC (RFC 9438) with HyStart++ (RFC 9406). It takes every loss for congestion.
    #[default]
    Cubic,
    /// BBR: a model of the path's rate and round trip. Random loss does not slow it down.
    Bbr,
}

/// A single acknowledgement, as a controller sees it.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// The time since the start of the connection.
    pub now: Duration,
    /// The bytes that this acknowledgement covers for the first time.
    pub acked: u64,
    /// The bytes in flight after it.
    pub in_flight: u64,
    /// The round trip of the newest segment that it covers.
    pub rtt: Option<Duration>,
    /// The shortest round trip of the path.
    pub min_rtt: Duration,
    /// The smoothed round trip of the path.
    pub smoothed_rtt: Duration,
    /// The rate of delivery in bytes per second, measured over the segment's time in flight.
    pub rate: Option<DeliveryRate>,
    /// True if this acknowledgement begins a new round trip.
    pub round_start: bool,
    /// True if nothing was in flight before the segments that it covers first.
    pub after_idle: bool,
    /// True if the window limits the sender now.
    pub window_limited: bool,
    /// True if the window has limited the sender in this round trip or in the one before, so that
    /// it may grow. A paced sender reaches its window late in each round trip only.
    pub round_limited: bool,
}

/// A measured rate of delivery.
#[derive(Clone, Copy, Debug)]
pub struct DeliveryRate {
    /// The rate.
    pub bytes_per_second: u64,
    /// True if the sender had too little to send, so that the path may carry more.
    pub app_limited: bool,
}

/// A congestion controller. Sizes are bytes.
#[derive(Clone, Debug)]
pub enum Controller {
    /// CUBIC with HyStart++.
    Cubic(Cubic),
    /// BBR.
    // Its filters make it several times larger than CUBIC.
    Bbr(Box<Bbr>),
}

impl Controller {
    /// Creates a controller of this algorithm.
    pub fn new(algorithm: Algorithm, initial_window: u64, segment: u64) -> Self {
        match algorithm {
            Algorithm::Cubic => Self::Cubic(Cubic::new(initial_window, segment)),
            Algorithm::Bbr => Self::Bbr(Box::new(Bbr::new(initial_window, segment))),
        }
    }

    /// Returns the bytes that may be in flight.
    pub fn window(&self) -> u64 {
        match self {
            Self::Cubic(cubic) => cubic.window(),
            Self::Bbr(bbr) => bbr.window(),
        }
    }

    /// Returns the bytes that may be in flight, for a sender that paces at a multiple of its window
    /// over the round trip and takes no rate from the controller.
    pub fn unpaced_window(&self) -> u64 {
        match self {
            Self::Cubic(cubic) => cubic.window(),
            Self::Bbr(bbr) => bbr.unpaced_window(),
        }
    }

    /// Returns the window at which slow start ends, if that is known.
    pub fn threshold(&self) -> Option<u64> {
        match self {
            Self::Cubic(cubic) => cubic.threshold(),
            Self::Bbr(_) => None,
        }
    }

    /// Returns the rate at which segments leave, in bytes per second; `None` before the first round
    /// trip was measured.
    pub fn pacing_rate(&self, smoothed_rtt: Option<Duration>) -> Option<u64> {
        match self {
            Self::Cubic(cubic) => cubic.pacing_rate(smoothed_rtt?),
            Self::Bbr(bbr) => bbr.pacing_rate(),
        }
    }

    /// Takes the acknowledgements that arrived together.
    pub fn on_ack(&mut self, sample: &AckSample) {
        match self {
            Self::Cubic(cubic) => cubic.on_ack(sample),
            Self::Bbr(bbr) => bbr.on_ack(sample),
        }
    }

    /// Notes a loss that begins an episode: at most one for each round trip.
    pub fn on_congestion(&mut self, now: Duration) {
        match self {
            Self::Cubic(cubic) => cubic.on_congestion(now),
            Self::Bbr(bbr) => bbr.on_congestion(),
        }
    }

    /// Notes a congestion mark (ECN) that begins an episode, in place of a loss.
    pub fn on_mark(&mut self, now: Duration) {
        match self {
            Self::Cubic(cubic) => cubic.on_congestion(now),
            Self::Bbr(bbr) => bbr.on_mark(),
        }
    }

    /// Notes lost bytes, within an episode or at its start.
    pub fn on_lost(&mut self, bytes: u64) {
        if let Self::Bbr(bbr) = self {
            bbr.on_lost(bytes);
        }
    }

    /// Notes that no segment was acknowledged for a whole retransmission timeout.
    pub fn on_timeout(&mut self, now: Duration) {
        match self {
            Self::Cubic(cubic) => cubic.on_timeout(now),
            Self::Bbr(bbr) => bbr.on_timeout(),
        }
    }

    /// Restores the state before the episode, whose losses were spurious.
    pub fn undo(&mut self) {
        match self {
            Self::Cubic(cubic) => cubic.undo(),
            Self::Bbr(bbr) => bbr.undo(),
        }
    }

    /// Begins with this initial window instead of the one before, in which nothing was lost.
    pub fn begin(&mut self, initial_window: u64, segment: u64) {
        match self {
            Self::Cubic(cubic) => *cubic = Cubic::new(initial_window, segment),
            Self::Bbr(bbr) => bbr.begin(initial_window),
        }
    }

    /// Begins again with this window, which careful resume has validated.
    pub fn restart(&mut self, window: u64, segment: u64) {
        match self {
            Self::Cubic(cubic) => *cubic = Cubic::new(window, segment),
            // Its measurements of the path stay valid.
            Self::Bbr(bbr) => bbr.raise(window),
        }
    }

    /// Begins again after a retreat of careful resume, without the rates measured before.
    pub fn reduce(&mut self, to: Reduced, segment: u64) {
        match self {
            Self::Cubic(cubic) => *cubic = Cubic::reduced(to, segment),
            Self::Bbr(bbr) => bbr.reduce(to),
        }
    }

    /// Sets the size of segments.
    pub fn set_segment(&mut self, segment: u64) {
        match self {
            Self::Cubic(cubic) => cubic.set_segment(segment),
            Self::Bbr(bbr) => bbr.set_segment(segment),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_window_grows_with_the_round_trip() {
        let packets = |ms| initial_window(Duration::from_millis(ms), 1000) / 1000;
        assert_eq!([0, 40, 60, 100].map(packets), [10, 10, 15, 25]);
        assert_eq!([128, 600, u64::MAX].map(packets), [32, 32, 32]);
    }
}
