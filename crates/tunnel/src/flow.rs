//! A flow: the segments that share one congestion controller, one pacer and one measured rate.
//!
//! Coupled streams share the tunnel's flow. Otherwise each stream has its own, as in
//! the thesis about TCP over DTLS (Reardon, 2008).

use std::time::Duration;

use tandem_resume::{CarefulResume, Reaction, Reduced, Restart, SavedSpeed, Trial};

use crate::congestion::{AckSample, Controller, Delivery, Stamp, initial_window};
use crate::rtt::Rtt;

/// The segments that may leave at once at any rate, since timers are not precise.
const BURST_SEGMENTS: u64 = 10;
/// The lateness of a timer for which the pacer makes up at most. A thread with other work runs its
/// timers late, and a burst of this length costs less than the time.
const MOST_LATE: Duration = Duration::from_millis(20);
/// The time within which calls belong to one burst.
const BURST_TIME: Duration = Duration::from_millis(1);
/// The pacing gain over the window of careful resume, and over the initial one (RFC 9002, section
/// 7.7).
const WINDOW_GAIN: f64 = 1.25;

/// Congestion state of one or all streams.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    controller: Controller,
    /// The careful resume of a flow that all streams share.
    resume: Option<Box<CarefulResume>>,
    segment: u64,
    in_flight: u64,
    delivery: Delivery,
    /// True if the window has held a segment back since the last acknowledgement.
    window_limited: bool,
    /// The same for this round trip and for the one before.
    limited_rounds: [bool; 2],
    credit: f64,
    paced_at: Duration,
    /// The time for which the pacer has made a segment wait.
    due: Option<Duration>,
    episode: Option<Episode>,
}

/// The losses of one round trip.
#[derive(Clone, Copy, Debug)]
struct Episode {
    /// The first transmission after the episode began: losses before it belong to the episode.
    next_transmission: u64,
    lost: u32,
    spurious: u32,
}

impl Flow {
    pub(crate) fn new(controller: Controller, segment: u64, now: Duration) -> Self {
        Self {
            controller,
            resume: None,
            segment,
            in_flight: 0,
            delivery: Delivery::new(now),
            window_limited: false,
            limited_rounds: [false; 2],
            credit: (BURST_SEGMENTS * segment) as f64,
            paced_at: now,
            due: None,
            episode: None,
        }
    }

    /// Makes the flow observe the speed of the path, and take the speed of an earlier connection.
    pub(crate) fn with_resume(mut self) -> Self {
        self.resume = Some(Box::new(CarefulResume::new(self.controller.window())));
        self
    }

    /// Begins with the window for this round trip, which a handshake has shown.
    pub(crate) fn begin(&mut self, round_trip: Duration) {
        let window = initial_window(round_trip, self.segment);
        self.controller.begin(window, self.segment);
        if let Some(resume) = &mut self.resume {
            resume.note_round_trip(round_trip);
        }
    }

    /// Offers the speed that an earlier connection observed on this path.
    pub(crate) fn offer(&mut self, now: Duration, saved: SavedSpeed) -> Option<Trial> {
        let inner = self.controller.window();
        self.resume.as_mut()?.offer(now, saved, inner)
    }

    /// Returns the speed that the path has shown.
    pub(crate) fn speed(&self) -> Option<SavedSpeed> {
        self.resume.as_ref()?.speed()
    }

    pub(crate) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(crate) fn window(&self) -> u64 {
        let inner = self.controller.window();
        let resume = self.resume.as_ref();
        resume.map_or(inner, |resume| resume.window(inner))
    }

    /// Returns the rate at which segments leave, in bytes per second.
    fn pacing_rate(&self, rtt: &Rtt) -> Option<u64> {
        let own = self.resume.as_ref().and_then(|resume| resume.own_window());
        let smoothed = rtt.smoothed();
        let first = smoothed.is_none().then(|| self.window());
        match own.or(first) {
            Some(window) => {
                let round_trip = rtt.first()?.as_secs_f64().max(1e-4);
                Some((window as f64 * WINDOW_GAIN / round_trip) as u64)
            }
            None => self.controller.pacing_rate(smoothed),
        }
    }

    pub(crate) fn set_segment(&mut self, segment: u64) {
        self.segment = segment;
        self.controller.set_segment(segment);
    }

    /// Returns whether the window has room for one more segment.
    pub(crate) fn has_room(&mut self) -> bool {
        let room = self.in_flight < self.window();
        if !room {
            // The window holds the next segment back, and not the pacer.
            self.window_limited = true;
            self.due = None;
        }
        room
    }

    /// Returns the time from which the pacer lets a segment leave; `now` or earlier if it may at
    /// once.
    pub(crate) fn paced_until(&mut self, now: Duration, rtt: &Rtt) -> Duration {
        let Some(rate) = self.pacing_rate(rtt) else {
            self.paced_at = now;
            return now;
        };
        let rate = rate.max(1) as f64;
        let elapsed = now.saturating_sub(self.paced_at);
        let late = self.due.take().map(|due| now.saturating_sub(due));
        let late = late.unwrap_or_default().min(MOST_LATE);
        // One millisecond's worth keeps timers few at high rates.
        let most = (BURST_SEGMENTS * self.segment) as f64;
        let most = most.max(rate * BURST_TIME.as_secs_f64()) + rate * late.as_secs_f64();
        let most = if elapsed < BURST_TIME {
            most.max(self.credit)
        } else {
            most
        };
        self.credit = (self.credit + elapsed.as_secs_f64() * rate).min(most);
        self.paced_at = now;
        if self.credit >= 0.0 {
            now
        } else {
            let due = now + Duration::from_secs_f64((-self.credit / rate).min(10.0));
            self.due = Some(due);
            due
        }
    }

    /// Notes that the streams have no more to send than this. No segment waits for the pacer then.
    pub(crate) fn note_app_limited(&mut self) {
        self.due = None;
        if self.in_flight < self.window() {
            self.delivery.note_app_limited(self.in_flight);
        }
    }

    /// Notes a transmission.
    pub(crate) fn on_sent(&mut self, now: Duration, bytes: u64) -> Stamp {
        let stamp = self.delivery.on_sent(now, self.in_flight);
        self.in_flight += bytes;
        self.credit -= bytes as f64;
        stamp
    }

    /// Notes that a transmission arrived. [`Self::finish_acks`] judges all of a datagram together.
    pub(crate) fn on_acked(
        &mut self,
        now: Duration,
        (sent, stamp): (Duration, Stamp),
        bytes: u64,
        rtt: Option<Duration>,
    ) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if let Some(resume) = &mut self.resume {
            // A jump after a pause uses the window whole.
            resume.on_ack(now, sent, bytes, stamp.follows_rest());
        }
        self.delivery.on_acked(now, (sent, stamp), bytes, rtt);
    }

    /// Notes bytes that arrived although their transmission was declared lost.
    pub(crate) fn on_delivered(&mut self, now: Duration, bytes: u64) {
        self.delivery.on_delivered(now, bytes);
    }

    /// Tells the controller of the acknowledgements since the last call.
    pub(crate) fn finish_acks(&mut self, now: Duration, rtt: &Rtt) {
        let min_rtt = rtt.min().or_else(|| rtt.smoothed()).unwrap_or_default();
        let Some(delivered) = self.delivery.finish(now, min_rtt) else {
            return;
        };
        let Some(smoothed_rtt) = rtt.smoothed() else {
            return;
        };
        let window_limited = std::mem::take(&mut self.window_limited);
        self.limited_rounds[0] |= window_limited;
        let round_limited = self.limited_rounds != [false; 2];
        if delivered.round_start {
            self.limited_rounds = [false, self.limited_rounds[0]];
        }
        self.controller.on_ack(&AckSample {
            now,
            acked: delivered.bytes,
            in_flight: self.in_flight,
            rtt: delivered.rtt,
            min_rtt,
            smoothed_rtt,
            rate: delivered.rate,
            round_start: delivered.round_start,
            after_idle: delivered.after_idle,
            window_limited,
            round_limited,
        });
        let inner = self.controller.window();
        let resume = self.resume.as_mut();
        match resume.and_then(|resume| resume.judge(now, self.in_flight, inner)) {
            Some(Restart::Grow(window)) => self.controller.restart(window, self.segment),
            Some(Restart::Reduce(to)) => self.reduce(now, to),
            None => {}
        }
    }

    /// Ends a retreat. The delivery and the losses of its segments say nothing to the controller.
    fn reduce(&mut self, now: Duration, to: Reduced) {
        self.delivery.restart(now);
        self.controller.reduce(to, self.segment);
    }

    /// Returns true if the controller acts on an event, after the new beginning that it may need.
    fn passes(&mut self, now: Duration, reaction: Option<Reaction>) -> bool {
        match reaction {
            None | Some(Reaction::Pass) => true,
            Some(Reaction::Absorb) => false,
            Some(Reaction::Reduce(to)) => {
                self.reduce(now, to);
                true
            }
        }
    }

    /// Takes a transmission out of flight that is sent again as a probe, or is of no use any more.
    pub(crate) fn on_withdrawn(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Notes that the transmission `number`, which was sent at `sent`, was lost.
    /// `next_transmission` is the number of the next one.
    pub(crate) fn on_lost(
        &mut self,
        now: Duration,
        (number, sent): (u64, Duration),
        bytes: u64,
        next_transmission: u64,
    ) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if self.delivery.counts(sent) {
            self.controller.on_lost(bytes);
        }
        self.congestion(now, (number, sent), next_transmission);
        if let Some(episode) = &mut self.episode {
            episode.lost += 1;
        }
    }

    /// Notes a congestion mark on a datagram sent before `next_transmission`.
    pub(crate) fn on_mark(&mut self, now: Duration, next_transmission: u64) {
        let last = next_transmission.saturating_sub(1);
        self.congestion(now, (last, now), next_transmission);
        // A mark is no loss and cannot turn out to be spurious.
        if let Some(episode) = &mut self.episode {
            episode.lost = episode.lost.saturating_add(1 << 16);
        }
    }

    fn congestion(&mut self, now: Duration, lost: (u64, Duration), next_transmission: u64) {
        let (number, sent) = lost;
        let within = |episode: Episode| number < episode.next_transmission;
        if !self.episode.is_some_and(within) {
            let resume = self.resume.as_mut();
            let reaction = resume.map(|resume| resume.on_congestion(now, sent));
            if self.passes(now, reaction) {
                self.controller.on_congestion(now);
            }
            self.episode = Some(Episode {
                next_transmission,
                lost: 0,
                spurious: 0,
            });
        }
    }

    /// Notes that no segment was acknowledged for a whole timeout: everything in flight counts as
    /// lost.
    pub(crate) fn on_timeout(&mut self, now: Duration, lost: u32, next_transmission: u64) {
        self.in_flight = 0;
        let reaction = self.resume.as_mut().map(|resume| resume.on_timeout());
        self.passes(now, reaction);
        self.controller.on_timeout(now);
        self.episode = Some(Episode {
            next_transmission,
            lost,
            spurious: 0,
        });
        self.credit = self.credit.max(0.0);
    }

    /// Notes that `count` losses were spurious. Returns whether the whole episode was undone.
    pub(crate) fn on_spurious(&mut self, count: u32) -> bool {
        let Some(episode) = &mut self.episode else {
            return false;
        };
        episode.spurious = episode.spurious.saturating_add(count);
        if episode.spurious < episode.lost {
            return false;
        }
        self.controller.undo();
        self.episode = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Algorithm;

    const MS: Duration = Duration::from_millis(1);

    fn flow() -> Flow {
        Flow::new(
            Controller::new(Algorithm::Cubic, 10_000, 1000),
            1000,
            Duration::ZERO,
        )
    }

    #[test]
    fn flow_counts_one_episode_for_a_round_trip() {
        let mut flow = flow();
        for _ in 0..10 {
            flow.on_sent(Duration::ZERO, 1000);
        }
        assert!(!flow.has_room());
        flow.on_lost(MS, (3, Duration::ZERO), 1000, 10);
        flow.on_lost(MS, (4, Duration::ZERO), 1000, 10);
        assert_eq!((flow.window(), flow.in_flight()), (7000, 8000));
        flow.on_lost(2 * MS, (10, MS), 1000, 12);
        assert_eq!(
            flow.window(),
            4900,
            "a later transmission begins another episode"
        );
    }

    #[test]
    fn flow_undoes_an_episode_of_spurious_losses() {
        let mut flow = flow();
        for _ in 0..4 {
            flow.on_sent(Duration::ZERO, 1000);
        }
        flow.on_lost(MS, (0, Duration::ZERO), 1000, 4);
        flow.on_lost(MS, (1, Duration::ZERO), 1000, 4);
        assert!(!flow.on_spurious(1));
        assert_eq!(flow.window(), 7000);
        assert!(flow.on_spurious(1));
        assert_eq!(flow.window(), 10_000);
    }

    #[test]
    fn flow_paces_at_the_controllers_rate() {
        let (mut flow, mut rtt) = (flow(), Rtt::default());
        rtt.add(Duration::ZERO, 100 * MS);
        // Slow start: twice 10 kB each 100 ms; a burst of ten segments goes first.
        for _ in 0..11 {
            assert_eq!(flow.paced_until(Duration::ZERO, &rtt), Duration::ZERO);
            flow.on_sent(Duration::ZERO, 1000);
        }
        assert_eq!(flow.paced_until(Duration::ZERO, &rtt), 5 * MS);
        assert_eq!(flow.paced_until(5 * MS, &rtt), 5 * MS);
    }

    #[test]
    fn first_flight_leaves_over_the_round_trip() {
        for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
            let controller = Controller::new(algorithm, 10_000, 1000);
            let mut flow = Flow::new(controller, 1000, Duration::ZERO);
            let mut rtt = Rtt::default();
            rtt.note_handshake(400 * MS);
            flow.begin(400 * MS);
            let (sent, due) = burst(&mut flow, &rtt, Duration::ZERO);
            // 32 segments in four fifths of the round trip.
            assert_eq!((sent, due), (11, 10 * MS), "{algorithm:?}");
            let (sent, _) = burst(&mut flow, &rtt, due);
            assert_eq!((sent, flow.window()), (1, 32_000), "{algorithm:?}");
        }
    }

    /// A flow in slow start with 20 MB in a second, or 20 segments in a millisecond.
    fn fast() -> (Flow, Rtt) {
        let mut rtt = Rtt::default();
        rtt.add(Duration::ZERO, 100 * MS);
        let controller = Controller::new(Algorithm::Cubic, 1_000_000, 1000);
        (Flow::new(controller, 1000, Duration::ZERO), rtt)
    }

    /// Sends segments until the pacer makes one wait. Returns their number and the time of the
    /// next one.
    fn burst(flow: &mut Flow, rtt: &Rtt, now: Duration) -> (u64, Duration) {
        let mut sent = 0;
        loop {
            let until = flow.paced_until(now, rtt);
            if until > now {
                return (sent, until);
            }
            flow.on_sent(now, 1000);
            sent += 1;
        }
    }

    #[test]
    fn pacer_makes_up_for_late_timers() {
        let (mut flow, rtt) = fast();
        let (_, due) = burst(&mut flow, &rtt, Duration::ZERO);
        let (sent, due) = burst(&mut flow, &rtt, due + 5 * MS);
        assert!((100..=122).contains(&sent), "{sent}");
        let (sent, _) = burst(&mut flow, &rtt, due + 500 * MS);
        assert!((400..=422).contains(&sent), "{sent}");
    }

    #[test]
    fn pacer_takes_no_idle_time_for_a_late_timer() {
        for has_more in [false, true] {
            let (mut flow, rtt) = fast();
            let (_, due) = burst(&mut flow, &rtt, Duration::ZERO);
            if has_more {
                flow.on_sent(due, flow.window());
                assert!(!flow.has_room());
                flow.on_withdrawn(flow.window());
                flow.credit = 0.0;
            } else {
                flow.note_app_limited();
            }
            let (sent, _) = burst(&mut flow, &rtt, due + Duration::from_secs(5));
            assert!((1..=22).contains(&sent), "{has_more}: {sent}");
        }
    }
}
