//! The phases of careful resume (RFC 9959 section 3).
//!
//! ```text
//!  Normal ─offer─▶ Reconnaissance ─fits─▶ Unvalidated ─acknowledged─▶ Validating ─▶ Normal
//!                        │                     │ loss            loss │
//!                        └─▶ Normal            └──────▶ Retreat ◀─────┘ ─────────▶ Normal
//! ```
//!
//! - *Reconnaissance*: the path has to show a round trip between half and twice the saved one.
//! - *Unvalidated*: at most half of the saved window may be in flight. The sender paces it over a
//!   round trip. The phase waits until the sender has that much to send.
//! - *Validating*: the window is the data in flight, and grows as in slow start.
//! - *Retreat*: the window is half of the bytes that arrived. The saved speed is forgotten.

use std::time::Duration;

use crate::{Capacity, SavedSpeed};

/// The most bytes that may be in flight without validation, whatever a saved speed says.
const MAX_JUMP: u64 = 4 << 20;

/// A new beginning of the congestion controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The controller begins with this window in bytes, in slow start.
    Grow(u64),
    /// The controller begins with this window in bytes, and has a congestion event at once.
    Reduce(u64),
}

/// The reaction to a congestion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The controller acts on the event.
    Pass,
    /// The controller begins with this window in bytes, and then acts on the event.
    Restart(u64),
    /// The event belongs to a retreat, and the controller does not see it.
    Absorb,
}

/// The phases. All sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The controller decides.
    Normal,
    /// The offered speed waits for a measured round trip.
    Reconnaissance,
    Unvalidated {
        jump: u64,
        /// Packets that were sent at this time or later are not validated. The time moves on each
        /// round trip while the larger window is not used.
        since: Duration,
        /// The bytes of them that have arrived.
        acked: u64,
        /// The time from which more than the controller's window was certainly in flight.
        used: Option<Duration>,
    },
    Validating {
        window: u64,
        since: Duration,
        /// Packets that were sent up to this time are not validated.
        until: Duration,
        acked: u64,
    },
    Retreat {
        since: Duration,
        until: Duration,
        acked: u64,
    },
}

/// The acknowledgements since the last judgement.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    bytes: u64,
    newest: Option<Duration>,
    round_trip: Option<Duration>,
}

/// The careful resume of one sender.
#[derive(Clone, Debug)]
pub struct CarefulResume {
    phase: Phase,
    initial_window: u64,
    saved: Option<SavedSpeed>,
    capacity: Capacity,
    batch: Batch,
    /// True once the path was congested: a saved speed comes too late then.
    was_congested: bool,
}

impl CarefulResume {
    /// Creates the state of a sender that begins with a window of `initial_window` bytes.
    pub fn new(initial_window: u64) -> Self {
        Self {
            phase: Phase::Normal,
            initial_window,
            saved: None,
            capacity: Capacity::default(),
            batch: Batch::default(),
            was_congested: false,
        }
    }

    /// Offers the speed that an earlier connection observed. `inner` is the controller's window.
    /// Only the first offer counts.
    pub fn offer(&mut self, now: Duration, saved: SavedSpeed, inner: u64) {
        if self.saved.is_some() || self.was_congested || self.phase != Phase::Normal {
            return;
        }
        self.saved = Some(saved);
        self.phase = Phase::Reconnaissance;
        if let Some(round_trip) = self.capacity.round_trip() {
            self.confirm(now, round_trip, inner);
        }
    }

    /// Enters the saved speed if the path has about its round trip.
    fn confirm(&mut self, now: Duration, round_trip: Duration, inner: u64) {
        let fits = |saved: &SavedSpeed| is_near(round_trip, saved.round_trip);
        let Some(saved) = self.saved.filter(fits) else {
            return self.forget();
        };
        let least = SavedSpeed {
            round_trip: round_trip.min(saved.round_trip),
            ..saved
        };
        let jump = (least.window() / 2).min(MAX_JUMP);
        self.phase = if jump > inner {
            Phase::Unvalidated {
                jump,
                since: now,
                acked: 0,
                used: None,
            }
        } else {
            Phase::Normal
        };
    }

    /// Forgets the saved speed, which does not belong to this path.
    fn forget(&mut self) {
        self.saved = None;
        self.phase = Phase::Normal;
    }

    /// Returns the bytes that may be in flight, if the controller permits `inner`.
    pub fn window(&self, inner: u64) -> u64 {
        self.own_window().map_or(inner, |own| match self.phase {
            Phase::Retreat { .. } => own,
            _ => own.max(inner),
        })
    }

    /// Returns the window of the present phase in bytes, which the sender paces over a round trip.
    /// Returns `None` while the controller decides.
    pub fn own_window(&self) -> Option<u64> {
        match self.phase {
            Phase::Normal | Phase::Reconnaissance => None,
            Phase::Unvalidated { jump, .. } => Some(jump),
            Phase::Validating { window, .. } => Some(window),
            Phase::Retreat { acked, .. } => Some((acked / 2).max(self.initial_window)),
        }
    }

    /// Returns the best speed that the path has shown, or the saved one if it is higher and was not
    /// refuted.
    pub fn speed(&self) -> Option<SavedSpeed> {
        let shown = self.capacity.round_trip().map(|round_trip| SavedSpeed {
            rate: self.capacity.rate(),
            round_trip,
        });
        let shown = shown.filter(|shown| shown.rate > 0);
        self.saved.into_iter().chain(shown).max_by_key(|it| it.rate)
    }

    /// Notes that `bytes` sent at `sent` were acknowledged. [`Self::judge`] follows after all
    /// acknowledgements of a datagram.
    pub fn on_ack(&mut self, now: Duration, sent: Duration, bytes: u64, app_limited: bool) {
        self.capacity.on_ack(now, sent, bytes, app_limited);
        self.batch.bytes = self.batch.bytes.saturating_add(bytes);
        self.batch.newest = self.batch.newest.max(Some(sent));
        let sample = now.saturating_sub(sent);
        let least = self.batch.round_trip.map_or(sample, |it| it.min(sample));
        self.batch.round_trip = Some(least);
        match &mut self.phase {
            Phase::Normal | Phase::Reconnaissance => {}
            Phase::Unvalidated { since, acked, .. } => {
                if sent >= *since {
                    *acked += bytes;
                }
            }
            Phase::Validating {
                window,
                since,
                until,
                acked,
            } => {
                if !app_limited {
                    *window = window.saturating_add(bytes);
                }
                if (*since..=*until).contains(&sent) {
                    *acked += bytes;
                }
            }
            Phase::Retreat {
                since,
                until,
                acked,
            } => {
                if (*since..=*until).contains(&sent) {
                    *acked += bytes;
                }
            }
        }
    }

    /// Judges the acknowledgements since the last call. `in_flight` is the number of bytes still in
    /// flight, and `inner` the controller's window. Returns the new beginning of the controller, if
    /// a phase has ended.
    pub fn judge(&mut self, now: Duration, in_flight: u64, inner: u64) -> Option<Restart> {
        let batch = std::mem::take(&mut self.batch);
        let newest = batch.newest?;
        match self.phase {
            Phase::Normal => {}
            Phase::Reconnaissance => {
                if let Some(round_trip) = self.capacity.round_trip().filter(|it| !it.is_zero()) {
                    self.confirm(now, round_trip, inner);
                }
            }
            Phase::Unvalidated { .. } => {
                self.judge_unvalidated(now, (newest, batch), in_flight, inner);
            }
            Phase::Validating { window, until, .. } => {
                if newest > until {
                    self.phase = Phase::Normal;
                    return (window > inner).then_some(Restart::Grow(window));
                }
            }
            Phase::Retreat { until, acked, .. } => {
                if newest > until {
                    self.phase = Phase::Normal;
                    return Some(Restart::Reduce(acked.max(self.initial_window)));
                }
            }
        }
        None
    }

    /// Looks whether the sender has used the larger window for a round trip. `newest` is the time
    /// at which the newest packet of the batch was sent.
    fn judge_unvalidated(
        &mut self,
        now: Duration,
        (newest, batch): (Duration, Batch),
        in_flight: u64,
        inner: u64,
    ) {
        let flight = in_flight.saturating_add(batch.bytes);
        let Phase::Unvalidated {
            jump,
            since,
            acked,
            used,
        } = self.phase
        else {
            return;
        };
        let is_own = newest >= since;
        let over = used.is_some_and(|used| newest >= used);
        if flight > inner {
            self.phase = if is_own && (over || flight >= jump / 2) {
                Phase::Validating {
                    window: flight,
                    since,
                    until: now,
                    acked: batch.bytes,
                }
            } else {
                Phase::Unvalidated {
                    jump,
                    since,
                    acked,
                    used: used.or(Some(now)),
                }
            };
            return;
        }
        if !is_own {
            return;
        }
        // Little was sent so far. The path may have changed since the speed was offered.
        let saved = self.saved.map(|saved| saved.round_trip);
        let measured = saved.zip(batch.round_trip);
        if measured.is_some_and(|(saved, measured)| !is_near(measured, saved)) {
            return self.forget();
        }
        self.phase = if inner >= jump {
            Phase::Normal
        } else {
            Phase::Unvalidated {
                jump,
                since: now,
                acked: 0,
                used: None,
            }
        };
    }

    /// Notes a loss or a congestion mark of a packet that was sent at `sent`.
    pub fn on_congestion(&mut self, now: Duration, sent: Duration) -> Reaction {
        self.was_congested = true;
        match self.phase {
            Phase::Normal => Reaction::Pass,
            // The controller has set the data in flight so far.
            Phase::Reconnaissance | Phase::Unvalidated { used: None, .. } => {
                self.forget();
                Reaction::Pass
            }
            Phase::Unvalidated {
                jump, since, acked, ..
            } => self.retreat(since, now, acked.min(jump)),
            Phase::Validating {
                since,
                until,
                acked,
                ..
            } if sent <= until => self.retreat(since, until, acked),
            Phase::Validating { window, .. } => {
                // The unvalidated packets have arrived: this is the end of a slow start.
                self.phase = Phase::Normal;
                Reaction::Restart(window)
            }
            Phase::Retreat { until, .. } if sent <= until => Reaction::Absorb,
            Phase::Retreat { acked, .. } => {
                self.phase = Phase::Normal;
                Reaction::Restart(acked.max(self.initial_window))
            }
        }
    }

    fn retreat(&mut self, since: Duration, until: Duration, acked: u64) -> Reaction {
        self.saved = None;
        self.capacity = Capacity::default();
        self.phase = Phase::Retreat {
            since,
            until,
            acked,
        };
        Reaction::Absorb
    }

    /// Notes that nothing was acknowledged for so long that everything in flight counts as lost.
    pub fn on_timeout(&mut self) -> Reaction {
        self.was_congested = true;
        let acked = match self.phase {
            Phase::Normal | Phase::Reconnaissance | Phase::Unvalidated { used: None, .. } => None,
            Phase::Unvalidated { jump, acked, .. } => Some(acked.min(jump)),
            Phase::Validating { acked, .. } | Phase::Retreat { acked, .. } => Some(acked),
        };
        self.forget();
        acked.map_or(Reaction::Pass, |acked| {
            Reaction::Restart(acked.max(self.initial_window))
        })
    }
}

/// Returns true if a round trip is between half and twice another one.
fn is_near(round_trip: Duration, other: Duration) -> bool {
    round_trip.saturating_mul(2) >= other && round_trip <= other.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SAVED: SavedSpeed = SavedSpeed {
        rate: 1_000_000,
        round_trip: Duration::from_millis(600),
    };
    const INITIAL: u64 = 12_000;

    /// Returns a sender that has measured this round trip.
    fn sender(round_trip: Duration) -> CarefulResume {
        let mut resume = CarefulResume::new(INITIAL);
        resume.on_ack(round_trip, Duration::ZERO, 1200, true);
        resume.judge(round_trip, 0, INITIAL);
        resume
    }

    /// Returns a sender with `flight` bytes sent after the offer. Their first packet has arrived.
    fn after_first_ack(flight: u64) -> CarefulResume {
        let mut resume = sender(600 * MS);
        resume.offer(600 * MS, SAVED, INITIAL);
        resume.on_ack(1200 * MS, 600 * MS, 1200, false);
        assert_eq!(resume.judge(1200 * MS, flight - 1200, INITIAL), None);
        resume
    }

    #[test]
    fn offer_permits_half_of_the_saved_window() {
        let mut resume = sender(600 * MS);
        assert_eq!(resume.window(INITIAL), INITIAL);
        resume.offer(600 * MS, SAVED, INITIAL);
        assert_eq!(resume.window(INITIAL), 300_000);
    }

    #[test]
    fn offer_waits_for_a_round_trip() {
        let mut resume = CarefulResume::new(INITIAL);
        resume.offer(Duration::ZERO, SAVED, INITIAL);
        assert_eq!(resume.window(INITIAL), INITIAL);
        resume.on_ack(500 * MS, Duration::ZERO, 1200, false);
        resume.judge(500 * MS, 10_800, INITIAL);
        // The shorter one of the round trips counts.
        assert_eq!(resume.window(INITIAL), 250_000);
    }

    #[test]
    fn offer_of_another_round_trip_is_forgotten() {
        for round_trip in [299 * MS, 1201 * MS] {
            let mut resume = sender(round_trip);
            resume.offer(round_trip, SAVED, INITIAL);
            assert_eq!(resume.window(INITIAL), INITIAL);
            assert_ne!(resume.speed(), Some(SAVED));
        }
    }

    #[test]
    fn offer_after_congestion_is_ignored() {
        let mut resume = sender(600 * MS);
        assert_eq!(resume.on_congestion(600 * MS, 300 * MS), Reaction::Pass);
        resume.offer(600 * MS, SAVED, INITIAL);
        assert_eq!(resume.window(INITIAL), INITIAL);
    }

    #[test]
    fn validation_grows_from_the_data_in_flight() {
        let mut resume = after_first_ack(290_000);
        assert_eq!(resume.window(INITIAL), 290_000);
        resume.on_ack(1300 * MS, 700 * MS, 100_000, false);
        assert_eq!(resume.judge(1300 * MS, 290_000, INITIAL), None);
        assert_eq!(resume.window(INITIAL), 390_000);
        resume.on_ack(1900 * MS, 1300 * MS, 10_000, false);
        let restart = resume.judge(1900 * MS, 390_000, INITIAL);
        assert_eq!(restart, Some(Restart::Grow(400_000)));
        assert_eq!(resume.window(400_000), 400_000);
        assert_eq!(resume.speed(), Some(SAVED));
    }

    #[test]
    fn unused_window_waits_for_data() {
        let mut resume = after_first_ack(5000);
        assert_eq!(resume.window(INITIAL), 300_000);
        // Data that fills a little more than the controller's window has another round trip.
        resume.on_ack(2000 * MS, 1400 * MS, 1200, false);
        resume.judge(2000 * MS, 20_000, INITIAL);
        assert_eq!(resume.window(INITIAL), 300_000);
        resume.on_ack(2600 * MS, 2000 * MS, 1200, false);
        resume.judge(2600 * MS, 40_000, INITIAL);
        assert_eq!(resume.window(INITIAL), 41_200);
    }

    #[test]
    fn loss_before_the_window_is_used_is_the_controllers() {
        let mut resume = after_first_ack(5000);
        for round in 3..1000 {
            let sent = 600 * MS * (round - 1);
            resume.on_ack(600 * MS * round, sent, 10_000, true);
            assert_eq!(resume.judge(600 * MS * round, 0, INITIAL), None);
        }
        let reaction = resume.on_congestion(600_000 * MS, 599_000 * MS);
        assert_eq!(reaction, Reaction::Pass);
        assert_eq!(resume.window(INITIAL), INITIAL);
    }

    #[test]
    fn retreat_ignores_data_before_the_last_round_trip() {
        let mut resume = after_first_ack(5000);
        for round in 3..1000 {
            let sent = 600 * MS * (round - 1);
            resume.on_ack(600 * MS * round, sent, 10_000, true);
            assert_eq!(resume.judge(600 * MS * round, 0, INITIAL), None);
        }
        let now = 600_000 * MS;
        resume.on_ack(now, now - 600 * MS, 10_000, false);
        assert_eq!(resume.judge(now, 100_000, INITIAL), None);
        let reaction = resume.on_congestion(now, now - 500 * MS);
        assert_eq!(reaction, Reaction::Absorb);
        assert_eq!(resume.window(INITIAL), INITIAL);
    }

    #[test]
    fn unused_window_ends_when_the_round_trip_changes() {
        let mut resume = after_first_ack(5000);
        resume.on_ack(5000 * MS, 3000 * MS, 1200, true);
        resume.judge(5000 * MS, 0, INITIAL);
        assert_eq!(resume.window(INITIAL), INITIAL);
    }

    #[test]
    fn retreat_halves_the_delivered_bytes() {
        let mut resume = after_first_ack(290_000);
        resume.on_ack(1300 * MS, 700 * MS, 98_800, false);
        assert_eq!(resume.on_congestion(1310 * MS, 650 * MS), Reaction::Absorb);
        assert_eq!(resume.window(INITIAL), 50_000);
        assert_eq!(resume.speed(), None, "the saved speed is gone");
        assert_eq!(resume.on_congestion(1320 * MS, 800 * MS), Reaction::Absorb);
        resume.on_ack(1400 * MS, 900 * MS, 50_000, false);
        assert_eq!(resume.judge(1400 * MS, 60_000, INITIAL), None);
        resume.on_ack(2000 * MS, 1400 * MS, 1200, false);
        let restart = resume.judge(2000 * MS, 60_000, INITIAL);
        assert_eq!(restart, Some(Restart::Reduce(150_000)));
    }

    #[test]
    fn loss_after_validation_is_the_controllers() {
        let mut resume = after_first_ack(290_000);
        resume.on_ack(1300 * MS, 700 * MS, 100_000, false);
        let reaction = resume.on_congestion(1950 * MS, 1300 * MS);
        assert_eq!(reaction, Reaction::Restart(390_000));
        assert_eq!(resume.window(7), 7);
    }

    #[test]
    fn timeout_ends_every_phase() {
        let mut resume = after_first_ack(290_000);
        assert_eq!(resume.on_timeout(), Reaction::Restart(INITIAL));
        assert_eq!(resume.on_timeout(), Reaction::Pass);
        assert_eq!(resume.window(7), 7);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Ack(u64, u64, bool),
        Judge(u64),
        Congestion(u64),
        Timeout,
        Offer(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..2000u64, any::<u64>(), any::<bool>()).prop_map(|(a, b, c)| Step::Ack(a, b, c)),
            any::<u64>().prop_map(Step::Judge),
            (0..2000u64).prop_map(Step::Congestion),
            Just(Step::Timeout),
            (any::<u64>(), 0..5000u64).prop_map(|(rate, rtt)| Step::Offer(rate, rtt)),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        #[test]
        fn any_input_keeps_the_window_bounded(steps in steps()) {
            let mut resume = CarefulResume::new(INITIAL);
            for (turn, step) in steps.into_iter().enumerate() {
                let now = Duration::from_secs(2) + MS * turn as u32 * 100;
                let before = |age| now.saturating_sub(MS * age as u32);
                match step {
                    Step::Ack(age, bytes, limited) => {
                        resume.on_ack(now, before(age), bytes % (1 << 20), limited);
                    }
                    Step::Judge(flight) => {
                        let restart = resume.judge(now, flight % (1 << 22), INITIAL);
                        if let Some(Restart::Grow(window) | Restart::Reduce(window)) = restart {
                            prop_assert!(window >= INITIAL);
                        }
                    }
                    Step::Congestion(age) => {
                        resume.on_congestion(now, before(age));
                    }
                    Step::Timeout => {
                        resume.on_timeout();
                    }
                    Step::Offer(rate, rtt) => {
                        let round_trip = MS * rtt as u32;
                        resume.offer(now, SavedSpeed { rate, round_trip }, INITIAL);
                        if matches!(resume.phase, Phase::Unvalidated { .. }) {
                            prop_assert!(resume.window(INITIAL) <= MAX_JUMP);
                        }
                    }
                }
                prop_assert!(resume.window(INITIAL) >= INITIAL);
                prop_assert!(resume.window(INITIAL) <= 200 << 20);
            }
        }
    }
}
