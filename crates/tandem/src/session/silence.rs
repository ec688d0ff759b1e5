//! The detection of a path that delivers nothing while exchanges are under way: pure, with time as
//! an argument.
//!
//! ```text
//!  datagram ─▶ probe ─▶ probe · probe · … ─▶ silent: dial ─▶ dead: exchanges may move
//!       quiet                             limit         PROBES without an answer
//! ```
//!
//! If the network drops all datagrams, a session over them gets no error. An exchange therefore
//! probes a quiet path. The path is silent after 240 ms or two round trips, and another way is
//! dialled then. Exchanges leave it only once it is dead: each of six probes has had the time for
//! an answer, so that neither jitter nor some lost datagrams move an exchange. This time is the
//! smoothed round trip and four times its variation, as in RFC 6298, and the delay of an
//! acknowledgement.
//!
//! Probes go on after that, so that the path is found again soon after a gap.
//!
//! A request is the first probe, since the carrier acknowledges it. Each answered probe doubles the
//! time before the next one, so that a long poll costs little.

use std::time::{Duration, Instant};

/// The least time without a datagram after which a path is silent, if another way is dialled then.
const LEAST: Duration = Duration::from_millis(240);
/// The least time if there is no other way. Probes follow each other after an eighth of it. They
/// only find out whether the other end still knows the connection. A gateway that restarts refuses
/// them for a moment, and the third refusal ends the connection.
const LEAST_ALONE: Duration = Duration::from_secs(8);
/// The longest time before a probe.
const MOST: Duration = Duration::from_secs(20);
/// The most datagrams of a carrier that keeps the path alive.
const KEEP_ALIVE: u64 = 2;
/// The probes without an answer that show a dead path. At a loss of 10 % in each direction, all are
/// lost in one of 20,000 cases.
const PROBES: u32 = 6;
/// The time for which the other end may hold an acknowledgement back (RFC 9000 section 18.2).
const ACK_DELAY: Duration = Duration::from_millis(25);
/// The longest time between the probes of a dead path.
const RARELY: Duration = Duration::from_secs(1);
/// The time for which a path stays dead without further probes.
const DEAD_MEMORY: Duration = Duration::from_secs(5);

/// The purpose of the probes of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Probing {
    /// Exchanges move to another way once the path is dead.
    #[default]
    Eager,
    /// The client looks for a sign that the gateway has lost the connection, which responds to a
    /// probe. No other way could carry the exchanges.
    Alone,
}

/// The state of a path, as far as its probes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathState {
    /// Datagrams arrive, or none is due.
    Alive,
    /// No datagram has arrived for a while. Another way may be needed.
    Silent,
    /// Probes without an answer rule out that only some datagrams were lost.
    Dead,
}

/// The result of a look at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) state: PathState,
    /// True if the caller sends a probe now.
    pub(super) probe: bool,
    /// The time before the next look.
    pub(super) wait: Duration,
}

/// The observation of one path, which all exchanges of a session share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// The datagrams that had arrived at the last look.
    count: u64,
    /// The time at which the count last changed, or at which a request began.
    since: Instant,
    looked_at: Instant,
    /// The time of the next look.
    due: Instant,
    /// The time without a datagram before a probe.
    quiet: Duration,
    /// The time until which datagrams may answer probes.
    settles: Instant,
    probes: Probes,
    round_trip: RoundTrip,
}

/// The probes since the last datagram.
#[derive(Clone, Copy, Debug, Default)]
struct Probes {
    sent: u32,
    /// The time from which the limit counts.
    from: Option<Instant>,
    second: Option<Instant>,
    /// The time of the one whose answer decides.
    decisive: Option<Instant>,
    last: Option<Instant>,
    /// True if one of them was no request.
    is_extra: bool,
}

/// The round trip of the path.
#[derive(Clone, Copy, Debug, Default)]
struct RoundTrip {
    smoothed: Duration,
    variation: Duration,
    probing: Probing,
}

impl RoundTrip {
    /// Returns the least time without a datagram after which the path is silent.
    const fn least(self) -> Duration {
        match self.probing {
            Probing::Eager => LEAST,
            Probing::Alone => LEAST_ALONE,
        }
    }

    /// Notes the smoothed round trip that the carrier has measured. A new sample moves it by an
    /// eighth of the sample's deviation (RFC 6298 section 2).
    fn note(&mut self, smoothed: Duration) {
        if self.smoothed.is_zero() {
            self.variation = smoothed / 8;
        } else if smoothed != self.smoothed {
            let deviation = (8 * smoothed.abs_diff(self.smoothed)).min(smoothed);
            self.variation = (3 * self.variation + deviation) / 4;
        }
        self.smoothed = smoothed;
    }

    /// Returns the time within which a probe is answered.
    fn answer(self) -> Duration {
        self.smoothed + (4 * self.variation).max(self.smoothed / 8) + ACK_DELAY
    }

    /// Returns the shortest time without a datagram before a probe, and between probes.
    fn step(self) -> Duration {
        self.least().max(2 * self.smoothed) / 8
    }

    /// Returns the time after which a path without datagrams is silent.
    fn limit(self) -> Duration {
        (2 * self.smoothed)
            .max(self.answer() + 2 * self.step())
            .max(self.least())
    }
}

impl Silence {
    /// Begins an observation.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            count: 0,
            since: now,
            looked_at: now,
            due: now,
            quiet: Duration::ZERO,
            settles: now,
            probes: Probes::default(),
            round_trip: RoundTrip::default(),
        }
    }

    /// Notes that an exchange begins, whose request reaches the carrier now. Requests beside others
    /// do not delay the verdict.
    pub(super) fn expect(&mut self, now: Instant, round_trip: Duration, probing: Probing) {
        self.round_trip.note(round_trip);
        self.round_trip.probing = probing;
        if self.missed_a_look(now) {
            self.probes = Probes::default();
        }
        self.quiet = self.round_trip.step();
        // The memory of a dead path does not become longer.
        if self.probes.sent < PROBES {
            self.due = now;
        }
        if self.probes.sent == 0 {
            self.since = now;
            self.sent(now);
        }
    }

    /// Looks at the path. `count` is the number of datagrams that have arrived so far.
    pub(super) fn look(&mut self, now: Instant, count: u64, round_trip: Duration) -> Look {
        self.round_trip.note(round_trip);
        let step = self.round_trip.step();
        let missed_a_look = self.missed_a_look(now);
        let is_alone = self.round_trip.probing == Probing::Alone;
        if count != self.count || missed_a_look {
            let few = count.wrapping_sub(self.count) <= KEEP_ALIVE;
            self.quiet = match self.probes.last {
                _ if missed_a_look => step,
                Some(_) if self.probes.is_extra => (2 * self.quiet).min(MOST).max(step),
                // The carrier keeps an idle tunnel alive, and further probes would be of no use.
                None if few && is_alone => self.quiet,
                _ if self.looked_at < self.settles => self.quiet,
                _ => (self.quiet / 2).max(step),
            };
            (self.count, self.since, self.probes) = (count, now, Probes::default());
        }
        self.looked_at = now;
        let probe = now >= self.next_probe();
        if probe {
            self.probes.is_extra = true;
            self.sent(now);
        }
        let state = self.state(now);
        let next = self.next_event(state);
        // A datagram is noticed late by half of the time before a probe at most. An idle tunnel
        // wakes nothing for that if there is no other way.
        let mut wait = next.saturating_duration_since(now);
        if self.probes.sent == 0 && (!is_alone || self.quiet <= step) {
            wait = wait.min(self.quiet.max(step) / 2);
        } else if state == PathState::Dead && self.settles > now {
            wait = wait.min(self.settles - now);
        }
        self.due = now + wait;
        Look { state, probe, wait }
    }

    /// Notes a probe or a request that leaves now.
    fn sent(&mut self, now: Instant) {
        let probes = &mut self.probes;
        if probes.sent == 0 {
            let from = now.checked_sub(self.round_trip.step());
            probes.from = Some(from.map_or(now, |from| self.since.max(from)));
        }
        if probes.sent == 1 {
            probes.second = Some(now);
        }
        probes.last = Some(now);
        probes.sent = probes.sent.saturating_add(1);
        if probes.sent == PROBES {
            probes.decisive = Some(now);
        }
        self.settles = now + self.round_trip.answer();
    }

    /// Returns true if nothing looked when it was due: no exchange was under way, or this process
    /// did not run and may have datagrams to read. A dead path stays so while another way is
    /// dialled.
    fn missed_a_look(&self, now: Instant) -> bool {
        let late = match self.probes.sent < PROBES {
            true => self.round_trip.least().max(2 * self.round_trip.smoothed) / 2,
            false => DEAD_MEMORY,
        };
        now > self.due + late
    }

    /// Returns the time of the next probe. The second one has the time for an answer before the
    /// path is silent. A dead path is probed after each quarter of the time since it delivered. It
    /// thus returns before a connection over TCP, whose repetitions are ever rarer.
    fn next_probe(&self) -> Instant {
        let (probes, step) = (self.probes, self.round_trip.step());
        let (Some(from), Some(last)) = (probes.from, probes.last) else {
            return self.since + self.quiet;
        };
        let (limit, answer) = (self.round_trip.limit(), self.round_trip.answer());
        match probes.sent {
            // Beside a long poll, there is time for an answer.
            1 if self.quiet > limit => last + answer,
            // An earlier one is of use only if the first was due to be answered.
            1 => (from + limit - answer).min(last + answer).max(last + step),
            ..PROBES => last + step,
            _ => {
                let quarter = last.saturating_duration_since(from) / 4;
                last + quarter.min(RARELY).max(step).max(answer)
            }
        }
    }

    /// Returns the times at which the path is silent and dead, if nothing arrives.
    fn verdicts(&self) -> (Option<Instant>, Option<Instant>) {
        let (probes, answer) = (self.probes, self.round_trip.answer());
        let limit = self.round_trip.limit();
        let silent = probes.from.zip(probes.second);
        let silent = silent.map(|(from, second)| (from + limit).max(second + answer));
        let dead = silent.zip(probes.decisive);
        (silent, dead.map(|(silent, sent)| silent.max(sent + answer)))
    }

    fn state(&self, now: Instant) -> PathState {
        match self.verdicts() {
            (_, Some(dead)) if now >= dead => PathState::Dead,
            (Some(silent), _) if now >= silent => PathState::Silent,
            _ => PathState::Alive,
        }
    }

    /// Returns the time of the next probe or change of the state.
    fn next_event(&self, state: PathState) -> Instant {
        let (silent, dead) = self.verdicts();
        let silent = silent.filter(|_| state < PathState::Silent);
        let dead = dead.filter(|_| state < PathState::Dead);
        let verdicts = [silent, dead].into_iter().flatten();
        verdicts.fold(self.next_probe(), Instant::min)
    }
}

#[cfg(test)]
mod tests;
