//! The phases of careful resume (RFC 9959 section 3).
//!
//! ```text
//!  Normal ─offer─▶ Reconnaissance ─fits─▶ Unvalidated ─acknowledged─▶ Validating ─▶ Normal
//!                        │                     │ loss            loss │
//!                        └─▶ Normal            └──────▶ Retreat ◀─────┘
//!                                                          └─acknowledged─▶ Normal
//! ```
//!
//! - *Reconnaissance*: the path has to show a round trip of more than half the saved one, and at
//!   most twice that.
//! - *Unvalidated*: at most half of the saved window may be in flight. The sender paces it over a
//!   round trip. The phase waits until the sender has that much to send.
//! - *Validating*: the window is the data in flight, and grows as in slow start. The last losses of
//!   unvalidated packets can come to light up to a round trip after its end, and lead to a retreat.
//! - *Retreat*: the window is half of the bytes that had arrived at its start, and does not grow.
//!   The saved speed is forgotten. Afterwards the window grows as in slow start up to
//!   [`BETA`] of the unvalidated bytes that have arrived.
//!
//! The RFC lets the larger window begin once the initial data are acknowledged. Here these are the
//! packets behind the first measured round trip. Over QUIC they are those of the handshake, which
//! contains the server's certificate.
//!
//! A sender without a saved speed enters the rate of its first packet train, with a window of at
//! most [`TRAIN_GROWTH`] times the controller's. Slow start would double it. The larger window ends
//! with the first loss, which the controller sees as any other.

use std::time::Duration;

use crate::train::Train;
use crate::{Capacity, Outcome, SavedSpeed, Trial};

/// The most bytes that may be in flight without validation, whatever a saved speed says.
const MAX_JUMP: u64 = 4 << 20;

/// The largest window after a packet train, as a factor of the controller's window. The train is a
/// guess of the rate. A browser that opens six connections to each of two hosts begins with as
/// many packets.
const TRAIN_GROWTH: u64 = 4;

/// The share of the delivered unvalidated bytes up to which slow start goes on after a retreat: the
/// factor of CUBIC (RFC 9438, section 4.6).
const BETA: f64 = 0.7;

/// The state of a congestion controller after a retreat. The rates that it measured before are not
/// valid, since the unvalidated packets displaced those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduced {
    /// The window in bytes.
    pub window: u64,
    /// The window in bytes at which slow start ends.
    pub threshold: u64,
}

impl Reduced {
    fn new(window: u64, acked: u64) -> Self {
        let threshold = ((acked as f64 * BETA) as u64).max(window);
        Self { window, threshold }
    }
}

/// A new beginning of the congestion controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The controller begins with this window in bytes, in slow start.
    Grow(u64),
    /// The controller begins after a retreat.
    Reduce(Reduced),
}

/// The reaction to a congestion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The controller acts on the event.
    Pass,
    /// The controller begins after a retreat, and then acts on the event.
    Reduce(Reduced),
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
        window: u64,
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
        jump: Jump,
    },
    /// The controller decides. Losses of unvalidated packets may still come to light, until a
    /// packet is acknowledged that was sent after `end`.
    Settling {
        jump: Jump,
        end: Duration,
        /// True until the next judgement. The losses that the same datagram shows may be reported
        /// by the time of the last one only.
        is_new: bool,
    },
    Retreat {
        window: u64,
        jump: Jump,
    },
    /// The controller decides. Losses of unvalidated packets may still come to light, until a
    /// packet is acknowledged that was sent after `end`.
    Retreated {
        until: Duration,
        end: Duration,
    },
}

/// The packets that were sent with the larger window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Jump {
    since: Duration,
    /// Packets that were sent up to this time are not validated.
    until: Duration,
    /// The bytes of them that have arrived.
    acked: u64,
}

impl Jump {
    fn on_ack(&mut self, sent: Duration, bytes: u64) {
        if (self.since..=self.until).contains(&sent) {
            self.acked = self.acked.saturating_add(bytes);
        }
    }
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
    /// The round trip of the speed that is tried, whether it was saved or shown by a train.
    expected: Option<Duration>,
    trial: Trial,
    capacity: Capacity,
    batch: Batch,
    /// `None` once a train was judged.
    train: Option<Train>,
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
            expected: None,
            trial: Trial::default(),
            capacity: Capacity::default(),
            batch: Batch::default(),
            train: Some(Train::default()),
            was_congested: false,
        }
    }

    /// Notes the round trip that a handshake has shown. A saved speed waits for no other sample.
    pub fn note_round_trip(&mut self, round_trip: Duration) {
        self.capacity.note_round_trip(round_trip);
    }

    /// Offers the speed that an earlier connection observed. `inner` is the controller's window.
    /// Only the first offer counts, and none after a packet train was judged. Returns `None` if the
    /// speed is not tried.
    pub fn offer(&mut self, now: Duration, saved: SavedSpeed, inner: u64) -> Option<Trial> {
        let is_late = self.train.is_none() || self.was_congested;
        if self.saved.is_some() || is_late || self.phase != Phase::Normal {
            return None;
        }
        self.saved = Some(saved);
        self.phase = Phase::Reconnaissance;
        if let Some(round_trip) = self.capacity.round_trip() {
            self.confirm(now, round_trip, inner);
        }
        (self.phase != Phase::Normal).then(|| self.trial.clone())
    }

    /// Ends the trial of the saved speed.
    fn end(&mut self) {
        if self.trial.outcome() != Outcome::Failed {
            self.trial.set(Outcome::Done);
        }
        self.phase = Phase::Normal;
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
        if !self.jump(now, least.window() / 2, saved.round_trip, inner) {
            return self.end();
        }
        self.train = None;
    }

    /// Permits this window while the round trip stays near the given one. Returns false if the
    /// controller's is larger.
    fn jump(&mut self, now: Duration, window: u64, round_trip: Duration, inner: u64) -> bool {
        let window = window.min(MAX_JUMP);
        if window <= inner {
            return false;
        }
        self.expected = Some(round_trip);
        self.phase = Phase::Unvalidated {
            window,
            since: now,
            acked: 0,
            used: None,
        };
        true
    }

    /// Enters the rate of the first packet train.
    fn follow_train(&mut self, now: Duration, inner: u64) {
        let rate = self.train.as_ref().and_then(Train::rate);
        let (Some(rate), Some(round_trip)) = (rate, self.capacity.round_trip()) else {
            return;
        };
        self.train = None;
        if !self.was_congested {
            // A saved speed that was not entered has no part in this.
            (self.saved, self.trial) = (None, Trial::default());
            let half = SavedSpeed { rate, round_trip }.window() / 2;
            let most = inner.saturating_mul(TRAIN_GROWTH);
            self.jump(now, half.min(most), round_trip, inner);
        }
    }

    /// Forgets the saved speed, which does not belong to this path.
    fn forget(&mut self) {
        self.saved = None;
        self.end();
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
            Phase::Normal
            | Phase::Reconnaissance
            | Phase::Settling { .. }
            | Phase::Retreated { .. } => None,
            Phase::Unvalidated { window, .. }
            | Phase::Validating { window, .. }
            | Phase::Retreat { window, .. } => Some(window),
        }
    }

    /// Returns the best speed that the path has shown, or the saved one if it is higher, and was
    /// confirmed or not used. Returns `None` during the trial of the saved speed.
    pub fn speed(&self) -> Option<SavedSpeed> {
        let is_unused = self.trial.outcome() == Outcome::Unused;
        match self.phase {
            Phase::Normal | Phase::Retreated { .. } => {}
            Phase::Unvalidated { used: None, .. } if is_unused => {}
            _ => return None,
        }
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
        // A retreat shows the rate at which unvalidated packets displace those of others.
        if !matches!(self.phase, Phase::Retreat { .. }) {
            self.capacity.on_ack(now, sent, bytes, app_limited);
        }
        if let Some(train) = &mut self.train {
            train.on_ack(now, sent, bytes);
        }
        self.batch.bytes = self.batch.bytes.saturating_add(bytes);
        self.batch.newest = self.batch.newest.max(Some(sent));
        let sample = now.saturating_sub(sent);
        let least = self.batch.round_trip.map_or(sample, |it| it.min(sample));
        self.batch.round_trip = Some(least);
        match &mut self.phase {
            Phase::Normal | Phase::Reconnaissance | Phase::Retreated { .. } => {}
            Phase::Unvalidated { since, acked, .. } => {
                if sent >= *since {
                    *acked = acked.saturating_add(bytes);
                }
            }
            Phase::Validating { window, jump } => {
                if !app_limited {
                    *window = window.saturating_add(bytes);
                }
                jump.on_ack(sent, bytes);
            }
            Phase::Settling { jump, .. } | Phase::Retreat { jump, .. } => jump.on_ack(sent, bytes),
        }
    }

    /// Judges the acknowledgements since the last call. `in_flight` is the number of bytes still in
    /// flight, and `inner` the controller's window. Returns the new beginning of the controller, if
    /// a phase has ended.
    pub fn judge(&mut self, now: Duration, in_flight: u64, inner: u64) -> Option<Restart> {
        let batch = std::mem::take(&mut self.batch);
        let newest = batch.newest?;
        // All packets have arrived, or their loss is known.
        let is_empty = in_flight == 0;
        match self.phase {
            Phase::Normal => self.follow_train(now, inner),
            Phase::Reconnaissance => {
                if let Some(round_trip) = self.capacity.round_trip().filter(|it| !it.is_zero()) {
                    self.confirm(now, round_trip, inner);
                }
            }
            Phase::Unvalidated { .. } => {
                self.judge_unvalidated(now, (newest, batch), in_flight, inner);
            }
            Phase::Validating { window, jump } if is_empty || newest > jump.until => {
                if is_empty {
                    self.end();
                } else {
                    self.phase = Phase::Settling {
                        jump,
                        end: now,
                        is_new: true,
                    };
                }
                return (window > inner).then_some(Restart::Grow(window));
            }
            Phase::Retreat { window, jump } if is_empty || newest > jump.until => {
                self.phase = Phase::Retreated {
                    until: jump.until,
                    end: now,
                };
                return Some(Restart::Reduce(Reduced::new(window, jump.acked)));
            }
            Phase::Settling { end, .. } if is_empty || newest > end => self.end(),
            Phase::Retreated { end, .. } if newest > end => self.phase = Phase::Normal,
            Phase::Settling { jump, end, .. } => {
                let is_new = false;
                self.phase = Phase::Settling { jump, end, is_new };
            }
            Phase::Validating { .. } | Phase::Retreat { .. } | Phase::Retreated { .. } => {}
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
            window,
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
            self.trial.set(Outcome::Pending);
            self.phase = if is_own && (over || flight >= window / 2) {
                Phase::Validating {
                    window: flight,
                    jump: Jump {
                        since,
                        until: now,
                        acked: batch.bytes,
                    },
                }
            } else {
                Phase::Unvalidated {
                    window,
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
        let measured = self.expected.zip(batch.round_trip);
        if measured.is_some_and(|(expected, measured)| !is_near(measured, expected)) {
            return self.forget();
        }
        if inner >= window {
            return self.end();
        }
        self.trial.set(Outcome::Unused);
        self.phase = Phase::Unvalidated {
            window,
            since: now,
            acked: 0,
            used: None,
        };
    }

    /// Notes a loss or a congestion mark of a packet that was sent at `sent`.
    pub fn on_congestion(&mut self, now: Duration, sent: Duration) -> Reaction {
        self.was_congested = true;
        self.leave_train();
        match self.phase {
            Phase::Normal => Reaction::Pass,
            // The controller has set the data in flight so far.
            Phase::Reconnaissance | Phase::Unvalidated { used: None, .. } => {
                self.forget();
                Reaction::Pass
            }
            Phase::Unvalidated {
                window,
                since,
                acked,
                ..
            } => self.retreat(Jump {
                since,
                until: now,
                acked: acked.min(window),
            }),
            Phase::Validating { jump, .. } => self.retreat(jump),
            Phase::Settling { jump, is_new, .. } if is_new || sent <= jump.until => {
                self.retreat(jump)
            }
            Phase::Retreat { jump, .. } if sent <= jump.until => Reaction::Absorb,
            Phase::Retreated { until, .. } if sent <= until => Reaction::Absorb,
            Phase::Settling { .. } => {
                self.end();
                Reaction::Pass
            }
            Phase::Retreated { .. } => {
                self.phase = Phase::Normal;
                Reaction::Pass
            }
            Phase::Retreat { window, jump } => {
                self.phase = Phase::Normal;
                Reaction::Reduce(Reduced::new(window, jump.acked))
            }
        }
    }

    /// Ends the larger window behind a train. It is a faster slow start, so that its losses are the
    /// controller's. A retreat would take random losses for congestion.
    fn leave_train(&mut self) {
        let is_larger = matches!(
            self.phase,
            Phase::Unvalidated { .. } | Phase::Validating { .. } | Phase::Settling { .. }
        );
        if is_larger && self.saved.is_none() {
            self.end();
        }
    }

    /// Returns the window of a retreat.
    fn half(&self, acked: u64) -> u64 {
        (acked / 2).max(self.initial_window)
    }

    fn retreat(&mut self, jump: Jump) -> Reaction {
        self.saved = None;
        self.trial.set(Outcome::Failed);
        self.capacity = Capacity::default();
        self.phase = Phase::Retreat {
            window: self.half(jump.acked),
            jump,
        };
        Reaction::Absorb
    }

    /// Notes that nothing was acknowledged for so long that everything in flight counts as lost.
    pub fn on_timeout(&mut self) -> Reaction {
        self.was_congested = true;
        self.leave_train();
        let acked = match self.phase {
            Phase::Normal
            | Phase::Reconnaissance
            | Phase::Unvalidated { used: None, .. }
            | Phase::Settling { .. }
            | Phase::Retreated { .. } => None,
            Phase::Unvalidated { window, acked, .. } => Some(acked.min(window)),
            Phase::Validating { jump, .. } | Phase::Retreat { jump, .. } => Some(jump.acked),
        };
        self.forget();
        acked.map_or(Reaction::Pass, |acked| {
            self.trial.set(Outcome::Failed);
            Reaction::Reduce(Reduced::new(self.half(acked), acked))
        })
    }
}

/// Returns true if a round trip is more than half of another one, and at most twice that.
fn is_near(round_trip: Duration, other: Duration) -> bool {
    round_trip.saturating_mul(2) > other && round_trip <= other.saturating_mul(2)
}

#[cfg(test)]
mod tests;
