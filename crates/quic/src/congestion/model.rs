//! The controllers of the tunnel, fed with the events of quinn.
//!
//! quinn paces at 1.25 times the window over the round trip, and takes no other rate. The phases
//! of BBR therefore change the window only ([`Controller::unpaced_window`]). quinn shows an
//! acknowledged packet by the time at which it left, so the stamps of delivery are kept by that
//! time.
//!
//! The CUBIC of quinn has no HyStart++ (RFC 9406). Its slow start ends with the loss of every
//! second packet, and quinn ends a connection that misses 1,024 parts of a stream at once. Here
//! slow start is also limited to [`SLOW_START`] times the product of the measured rate and the
//! round trip.

use std::collections::VecDeque;
use std::time::Duration;

use quinn_proto::RttEstimator;
use tandem_resume::Reduced;
use tandem_tunnel::congestion::{
    AckSample, Algorithm, Controller, Delivery, INITIAL_PACKETS, Stamp, initial_window,
};

/// The transmissions whose stamps are kept at most: 0.3 s at 1 Gbit/s. Packets that left together
/// have one stamp.
const STAMPS: usize = 4096;
/// The factor of the window over the bandwidth-delay product in slow start. A sender that doubles
/// its rate in each round trip needs two.
const SLOW_START: f64 = 2.0;

/// A controller of one path. Times count from the beginning of the connection.
#[derive(Clone, Debug)]
pub(super) struct Model {
    controller: Controller,
    segment: u64,
    initial_window: u64,
    /// True once the initial window is that of a measured round trip.
    has_begun: bool,
    /// The largest rate so far, in bytes per second.
    rate: u64,
    /// The limit of the window in slow start.
    limit: u64,
    delivery: Delivery,
    /// The transmissions that may still be acknowledged, oldest first.
    stamps: VecDeque<(Duration, Stamp)>,
    in_flight: u64,
    /// The last episode of losses.
    episode: Option<Episode>,
}

/// An episode of losses.
#[derive(Clone, Copy, Debug)]
struct Episode {
    /// The time at which it was noticed. Packets that left earlier belong to it.
    begun: Duration,
    /// The bytes that were declared lost. `None` if it has another cause, which has no undo.
    lost: Option<u64>,
}

impl Episode {
    /// Returns an episode that is no loss of single packets.
    const fn other(begun: Duration) -> Self {
        Self { begun, lost: None }
    }
}

impl Model {
    pub(super) fn new(algorithm: Algorithm, mtu: u16) -> Self {
        let segment = u64::from(mtu);
        let initial_window = INITIAL_PACKETS * segment;
        Self {
            controller: Controller::new(algorithm, initial_window, segment),
            segment,
            initial_window,
            has_begun: false,
            rate: 0,
            limit: u64::MAX,
            delivery: Delivery::new(Duration::ZERO),
            stamps: VecDeque::new(),
            in_flight: 0,
            episode: None,
        }
    }

    pub(super) fn window(&self) -> u64 {
        let window = self.controller.unpaced_window();
        match self.is_in_slow_start() {
            true => window.min(self.limit),
            false => window,
        }
    }

    /// Returns true in the slow start of CUBIC. BBR has its own limit.
    fn is_in_slow_start(&self) -> bool {
        let below = |threshold| self.controller.window() < threshold;
        matches!(self.controller, Controller::Cubic(_))
            && self.controller.threshold().is_none_or(below)
    }

    pub(super) const fn is_bbr(&self) -> bool {
        matches!(self.controller, Controller::Bbr(_))
    }

    /// Returns the size of a full packet.
    pub(super) const fn segment(&self) -> u64 {
        self.segment
    }

    pub(super) const fn initial_window(&self) -> u64 {
        self.initial_window
    }

    /// Returns the window at which slow start ends, if that is known.
    pub(super) fn threshold(&self) -> Option<u64> {
        self.controller.threshold()
    }

    pub(super) fn set_mtu(&mut self, mtu: u16) {
        self.segment = mtu.into();
        self.controller.set_segment(self.segment);
    }

    /// Goes on with this window, which careful resume has validated.
    pub(super) fn restart(&mut self, window: u64) {
        self.limit = self.limit.max(window);
        self.controller.restart(window, self.segment);
    }

    /// Begins again after a retreat of careful resume.
    pub(super) fn reduce(&mut self, now: Duration, to: Reduced) {
        self.delivery.restart(now);
        self.rate = 0;
        self.limit = u64::MAX;
        self.episode = Some(Episode::other(now));
        self.controller.reduce(to, self.segment);
    }

    pub(super) fn on_sent(&mut self, now: Duration, bytes: u64) {
        let stamp = self.delivery.on_sent(now, self.in_flight);
        self.in_flight += bytes;
        if self.stamps.back().is_none_or(|(sent, _)| *sent != now) {
            if self.stamps.len() == STAMPS {
                self.stamps.pop_front();
            }
            self.stamps.push_back((now, stamp));
        }
    }

    pub(super) fn on_ack(&mut self, now: Duration, sent: Duration, bytes: u64) {
        let index = self.stamps.binary_search_by_key(&sent, |(sent, _)| *sent);
        let Ok(index) = index else {
            self.delivery.on_delivered(now, bytes);
            return;
        };
        let stamp = self.stamps[index].1;
        let rtt = Some(now.saturating_sub(sent));
        self.delivery.on_acked(now, (sent, stamp), bytes, rtt);
    }

    /// Takes the acknowledgements of one packet, after which `in_flight` bytes are on their way.
    pub(super) fn on_end_acks(
        &mut self,
        now: Duration,
        in_flight: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.set_in_flight(in_flight);
        if app_limited {
            self.delivery.note_app_limited(in_flight);
        }
        let (min_rtt, smoothed_rtt) = (rtt.min(), rtt.get());
        let Some(mut delivered) = self.delivery.finish(now, min_rtt) else {
            return;
        };
        if let Some(round_trip) = delivered.rtt {
            self.begin(round_trip);
        }
        if let Some(rate) = &mut delivered.rate {
            // quinn notices only after a transmission that no data were left behind it.
            rate.app_limited |= app_limited;
            self.rate = self.rate.max(rate.bytes_per_second);
            let product = self.rate as f64 * min_rtt.as_secs_f64();
            let limit = (SLOW_START * product) as u64 + 3 * self.segment;
            self.limit = limit.max(self.initial_window);
        }
        let is_held = self.is_in_slow_start() && self.controller.window() > self.limit;
        let window_limited = !app_limited && !is_held;
        self.controller.on_ack(&AckSample {
            now,
            acked: delivered.bytes,
            in_flight,
            rtt: delivered.rtt,
            min_rtt,
            smoothed_rtt,
            rate: delivered.rate,
            round_start: delivered.round_start,
            after_idle: delivered.after_idle,
            window_limited,
            // quinn counts a sender that is paced as one that is limited.
            round_limited: window_limited,
        });
        // Packets that were lost longer ago are not acknowledged any more.
        let oldest = now.saturating_sub(4 * smoothed_rtt + Duration::from_millis(100));
        let old = self.stamps.partition_point(|(sent, _)| *sent < oldest);
        self.stamps.drain(..old);
    }

    /// Begins with the window for the first measured round trip, which is that of the handshake.
    fn begin(&mut self, round_trip: Duration) {
        if !std::mem::replace(&mut self.has_begun, true) && self.episode.is_none() {
            self.initial_window = initial_window(round_trip, self.segment);
            self.controller.begin(self.initial_window, self.segment);
        }
    }

    /// Sets the bytes on their way. Without any, no stamp is needed, and an idle connection holds
    /// no memory for them.
    fn set_in_flight(&mut self, in_flight: u64) {
        self.in_flight = in_flight;
        if in_flight == 0 {
            self.stamps = VecDeque::new();
        }
    }

    /// Notes the loss of packets, or a mark of congestion, which loses no bytes. The last of the
    /// packets left at `sent`.
    pub(super) fn on_congestion(&mut self, now: Duration, sent: Duration, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if self.delivery.counts(sent) {
            self.controller.on_lost(bytes);
        }
        if self.episode.is_none_or(|episode| sent > episode.begun) {
            match bytes {
                0 => self.controller.on_mark(now),
                _ => self.controller.on_congestion(now),
            }
            self.episode = Some(Episode {
                begun: now,
                lost: (bytes > 0).then_some(0),
            });
        }
        if let Some(lost) = self
            .episode
            .as_mut()
            .and_then(|episode| episode.lost.as_mut())
        {
            *lost += bytes;
        }
    }

    /// Notes that the controller did not see a loss. The last episode has no undo any more, since
    /// the arrival of the lost packets would count for it.
    pub(super) fn keep_reduction(&mut self) {
        if let Some(episode) = &mut self.episode {
            episode.lost = None;
        }
    }

    /// Notes that packets of `bytes` bytes have arrived that were declared lost at this time. The
    /// last episode is undone once all of its packets have arrived. Those of earlier episodes do
    /// not count for it.
    pub(super) fn on_spurious(&mut self, declared: Duration, bytes: u64) {
        let Some(episode) = self.episode.as_mut().filter(|it| declared >= it.begun) else {
            return;
        };
        let Some(lost) = &mut episode.lost else {
            return;
        };
        *lost = lost.saturating_sub(bytes);
        if *lost == 0 {
            episode.lost = None;
            self.controller.undo();
        }
    }

    /// Notes that all packets of a long time were lost.
    pub(super) fn on_timeout(&mut self, now: Duration) {
        self.episode = Some(Episode::other(now));
        self.controller.on_timeout(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_begins_once_and_not_after_a_loss() {
        let round_trip = Duration::from_millis(400);
        for is_lossy in [false, true] {
            let mut model = Model::new(Algorithm::Bbr, 1200);
            if is_lossy {
                model.on_congestion(round_trip, Duration::ZERO, 1200);
            }
            model.begin(round_trip);
            let packets = if is_lossy { 10 } else { 32 };
            assert_eq!(model.initial_window(), packets * 1200);
            model.begin(Duration::from_millis(40));
            assert_eq!(model.initial_window(), packets * 1200);
        }
    }

    #[test]
    fn model_undoes_an_episode_that_was_no_loss() {
        let late = Duration::from_millis(400);
        let mut model = Model::new(Algorithm::Cubic, 1200);
        let window = model.window();
        model.on_congestion(late, Duration::from_millis(100), 2400);
        let reduced = model.window();
        assert!(reduced < window);
        model.on_spurious(late, 1200);
        assert_eq!(model.window(), reduced, "one packet is still lost");
        model.on_spurious(late, 1200);
        assert_eq!(model.window(), window);
        model.on_congestion(2 * late, late + late / 2, 0);
        let marked = model.window();
        model.on_spurious(2 * late, 1200);
        assert_eq!(model.window(), marked, "a mark is no loss");
    }

    #[test]
    fn model_keeps_an_episode_if_older_packets_arrive() {
        let (first, second) = (Duration::from_millis(400), Duration::from_millis(800));
        let mut model = Model::new(Algorithm::Cubic, 1200);
        model.on_congestion(first, first / 2, 2400);
        let once = model.window();
        model.on_congestion(second, first + first / 2, 1200);
        let twice = model.window();
        assert!(twice < once);
        model.on_spurious(first, 2400);
        assert_eq!(model.window(), twice, "an earlier episode");
        let mut absorbed = model.clone();
        absorbed.keep_reduction();
        absorbed.on_spurious(second, 1200);
        assert_eq!(absorbed.window(), twice, "losses that were absorbed");
        model.on_spurious(second, 1200);
        assert_eq!(model.window(), once);
    }

    #[test]
    fn model_keeps_few_stamps_and_none_of_an_idle_path() {
        let mut model = Model::new(Algorithm::Bbr, 1200);
        for time in 0..3 * STAMPS as u64 {
            model.on_sent(Duration::from_micros(time), 1200);
        }
        assert!(model.stamps.capacity() <= STAMPS);
        model.set_in_flight(1200);
        assert_eq!(model.stamps.len(), STAMPS);
        model.set_in_flight(0);
        assert_eq!(model.stamps.capacity(), 0);
    }
}
