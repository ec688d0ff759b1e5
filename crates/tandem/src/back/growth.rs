//! The number of connections that a client without a gateway may use to one origin at once: a pure
//! policy.
//!
//! ```text
//!   floor ──an answer while others wait: +1──▶ most
//!     ▲  ◀──a round brought no throughput─────┘ │
//!     └──────── refusal, or a long silence ──────┘
//! ```
//!
//! The limit starts at the six connections of browsers. It grows by one with each complete answer
//! while other requests wait for a connection, so it doubles in each round of answers. If
//! connections carry several requests, the pace decides ([`Pace`]). If growth has not raised the
//! throughput in two rounds, the limit falls back, and growth pauses. After a refusal by the
//! origin the limit falls to the floor at once, and each further refusal doubles the pause.
//!
//! A connection may carry several requests at once (`origin::pipelining`). The limit of exchanges
//! is the limit of connections, times that number.
//!
//! A request that must not be repeated holds the limit at the floor, since the client could not
//! hide a refusal of it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The connections that browsers use to one origin.
pub(super) const FLOOR: usize = 6;

/// The least growth of throughput over two rounds that justifies more connections.
const GAIN: f64 = 1.2;

/// The largest growth of the limit before two rounds were compared, if each answer adds to it.
const UNMEASURED_GROWTH: usize = 3;

/// The pause of growth after growth that brought nothing.
const USELESS_PAUSE: Duration = Duration::from_secs(10);

/// The pause of growth after the first refusal. Each further refusal doubles it.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// The largest number of doublings of that pause.
const MAX_DOUBLINGS: u32 = 6;

/// The longest pause, whatever a response asks for.
pub(super) const LONGEST_PAUSE: Duration = REFUSED_PAUSE.saturating_mul(1 << MAX_DOUBLINGS);

/// The time without an answer after which the limit starts again: connections are closed by then.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// The pace at which a limit grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The limit grows by one for as many answers as a connection carries requests. The exchanges
    /// double in each round.
    Doubling,
    /// The limit grows by one for each answer, since a round behind a proxy such as Tor is long. It
    /// is at most three times the first one until two rounds were compared.
    EachAnswer,
}

/// The time to the head of a response, until an origin has answered.
const UNKNOWN_TIME: Duration = Duration::from_secs(1);

/// The bounds of that time.
const RESPONSE_TIMES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(3)];

/// The largest number of requests that are remembered after they ended before their responses.
const MAX_ABANDONED: usize = 64;

/// A refusal by an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The origin refused or broke a connection.
    Connection,
    /// The origin answered that it is busy, and asked to wait for this time.
    Response(Duration),
}

/// The throughput of a round of answers.
#[derive(Clone, Copy, Debug)]
struct Throughput {
    /// The limit at the beginning of the round.
    limit: usize,
    /// Answers per second.
    answers: f64,
    /// Bytes of bodies per second.
    bytes: f64,
}

/// A round under way. It ends with as many answers as its first limit permits at once.
#[derive(Clone, Copy, Debug)]
struct Round {
    begun: Instant,
    limit: usize,
    answers: usize,
    bytes: u64,
}

impl Round {
    const fn new(now: Instant, limit: usize) -> Self {
        Self {
            begun: now,
            limit,
            answers: 0,
            bytes: 0,
        }
    }

    fn throughput(&self, now: Instant) -> Throughput {
        let seconds = now
            .saturating_duration_since(self.begun)
            .as_secs_f64()
            .max(1e-6);
        Throughput {
            limit: self.limit,
            answers: self.answers as f64 / seconds,
            bytes: self.bytes as f64 / seconds,
        }
    }
}

/// The limit for one origin.
#[derive(Debug)]
pub(super) struct Growth {
    most: usize,
    pace: Pace,
    limit: usize,
    /// The number of requests that each connection may carry.
    depth: usize,
    /// The answers since the limit grew last.
    since_growth: usize,
    /// The requests under way or waiting that must not be repeated.
    held: usize,
    round: Option<Round>,
    /// The last two rounds.
    rounds: VecDeque<Throughput>,
    /// No two rounds have been compared since the limit was at the floor.
    is_first: bool,
    /// The last round brought no throughput. The limit waits for the next one.
    is_doubtful: bool,
    /// The limit does not grow before this time.
    paused_until: Option<Instant>,
    /// No early requests are made before this time.
    refuses_until: Option<Instant>,
    refusals: u32,
    /// The time to the head of the last response.
    response_time: Duration,
    /// The times until which the origin may count requests that ended before their responses, in
    /// order.
    abandoned: VecDeque<Instant>,
    /// The time of the last event.
    seen: Instant,
}

impl Growth {
    /// Starts at the floor. The limit never exceeds `most`.
    pub(super) fn new(now: Instant, most: usize, pace: Pace) -> Self {
        Self {
            most: most.max(FLOOR),
            pace,
            limit: FLOOR,
            depth: 1,
            since_growth: 0,
            held: 0,
            round: None,
            rounds: VecDeque::new(),
            is_first: true,
            is_doubtful: false,
            paused_until: None,
            refuses_until: None,
            refusals: 0,
            response_time: UNKNOWN_TIME,
            abandoned: VecDeque::new(),
            seen: now,
        }
    }

    /// Returns the number of connections that may be in use if each carries as many requests as it
    /// may.
    pub(super) const fn limit(&self) -> usize {
        if self.held > 0 { FLOOR } else { self.limit }
    }

    /// Returns the number of connections that may be in use, with those of a single request:
    /// nothing follows a document, for example. Behind a proxy, a connection above the floor may
    /// take the place of a second request on another one.
    pub(super) fn connections(&self) -> usize {
        let limit = self.limit();
        if self.pace == Pace::Doubling {
            return limit;
        }
        let single = FLOOR + limit.saturating_sub(FLOOR) * self.depth;
        let most = self.most.min(FLOOR * UNMEASURED_GROWTH);
        single.min(most).max(limit)
    }

    /// Returns the number of exchanges that may be under way.
    pub(super) const fn exchanges(&self) -> usize {
        if self.held > 0 {
            FLOOR
        } else {
            self.limit * self.depth
        }
    }

    /// Sets the number of requests that each connection may carry. It is one after a refusal by a
    /// response, since the origin may count requests.
    pub(super) fn set_depth(&mut self, now: Instant, depth: usize) {
        self.depth = if self.refuses_early(now) {
            1
        } else {
            depth.max(1)
        };
    }

    /// Returns whether nothing is lost if this state is dropped.
    pub(super) fn is_forgettable(&self, now: Instant) -> bool {
        !self.is_held()
            && !self.is_paused(now)
            && now.saturating_duration_since(self.seen) >= FORGET_AFTER
    }

    /// Returns whether the limit does not grow now, because the origin refused requests or growth
    /// brought nothing.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// Returns whether a request that must not be repeated is under way or waits.
    pub(super) const fn is_held(&self) -> bool {
        self.held > 0
    }

    /// Returns the time of the last event.
    pub(super) const fn seen(&self) -> Instant {
        self.seen
    }

    /// Returns whether no early requests are to be made, because the origin was too busy.
    pub(super) fn refuses_early(&self, now: Instant) -> bool {
        self.refuses_until.is_some_and(|until| now < until)
    }

    /// Notes that a request waits for a connection. The first round begins.
    pub(super) fn note_wait(&mut self, now: Instant) {
        self.wake(now);
        if self.may_grow(now) && self.round.is_none() {
            self.round = Some(Round::new(now, self.limit));
        }
    }

    /// Notes a complete answer with a body of `bytes`. `others_wait` is true if a request waits for
    /// a connection to the origin.
    pub(super) fn note_response(&mut self, now: Instant, bytes: u64, others_wait: bool) {
        self.wake(now);
        if !others_wait || !self.may_grow(now) {
            // The limit does not bind, so the throughput says nothing about it.
            self.round = None;
            self.rounds.clear();
            self.is_doubtful = false;
            return;
        }
        let limit = self.limit;
        let round = self.round.get_or_insert_with(|| Round::new(now, limit));
        round.answers += 1;
        round.bytes += bytes;
        self.since_growth += 1;
        let (needed, most) = match self.pace {
            Pace::Doubling => (self.depth, self.most),
            Pace::EachAnswer if self.rounds.len() < 2 => {
                let first = self.rounds.front().map_or(round.limit, |first| first.limit);
                (1, self.most.min(first * UNMEASURED_GROWTH))
            }
            Pace::EachAnswer => (1, self.most),
        };
        if self.since_growth >= needed && !self.is_doubtful {
            self.since_growth = 0;
            self.limit = (limit + 1).min(most).max(limit);
        }
        if round.answers >= round.limit * self.depth {
            let throughput = round.throughput(now);
            self.end_round(now, throughput);
        }
    }

    /// Notes that the origin refused a request or broke a connection. The limit falls to the floor.
    pub(super) fn note_refusal(&mut self, now: Instant, refusal: Refusal) {
        self.wake(now);
        let mut pause = REFUSED_PAUSE * 2u32.pow(self.refusals.min(MAX_DOUBLINGS));
        self.refusals = self.refusals.saturating_add(1);
        if let Refusal::Response(wanted) = refusal {
            pause = pause.max(wanted).min(LONGEST_PAUSE);
            let until = now + pause;
            self.refuses_until = Some(self.refuses_until.map_or(until, |set| set.max(until)));
            self.depth = 1;
        }
        self.fall(now, FLOOR, pause);
    }

    /// Notes the time from a request to the head of its response.
    pub(super) fn note_head(&mut self, time: Duration) {
        let [least, most] = RESPONSE_TIMES;
        self.response_time = time.clamp(least, most);
    }

    /// Notes that a request ended before its response. The origin learns of that within the time
    /// of a response.
    pub(super) fn note_abandoned(&mut self, now: Instant) {
        while self.abandoned.front().is_some_and(|until| *until <= now)
            || self.abandoned.len() >= MAX_ABANDONED
        {
            self.abandoned.pop_front();
        }
        // The time of a response may have become shorter.
        let until = now + self.response_time;
        let at = self.abandoned.partition_point(|other| *other <= until);
        self.abandoned.insert(at, until);
    }

    /// Returns the time until which the origin may count more than `room` of such requests.
    pub(super) fn abandoned_until(&self, now: Instant, room: usize) -> Option<Instant> {
        let until = self.abandoned.iter().rev().nth(room).copied();
        until.filter(|until| *until > now)
    }

    /// Returns the time that a request waits for responses before it ends early requests.
    pub(super) fn patience(&self) -> Duration {
        self.response_time * 2
    }

    /// Holds the limit at the floor for a request that must not be repeated.
    pub(super) const fn hold(&mut self) {
        self.held += 1;
    }

    /// Ends the effect of one [`Self::hold`].
    pub(super) const fn release(&mut self) {
        self.held -= 1;
    }

    /// Starts again after a long time without an event. Refusals are remembered.
    fn wake(&mut self, now: Instant) {
        if now.saturating_duration_since(self.seen) >= FORGET_AFTER {
            self.limit = FLOOR;
            self.is_first = true;
            self.is_doubtful = false;
            self.round = None;
            self.rounds.clear();
        }
        self.seen = now;
    }

    fn may_grow(&self, now: Instant) -> bool {
        self.held == 0 && !self.is_paused(now)
    }

    fn end_round(&mut self, now: Instant, throughput: Throughput) {
        self.round = Some(Round::new(now, self.limit));
        self.rounds.push_back(throughput);
        // The answers over new connections take a round trip longer, so later rounds are compared
        // with the last but one. The first round is the slowest, and suits the second as well.
        let before = match self.rounds.len() {
            0 | 1 => return,
            2 if !self.is_first => return,
            2 => self.rounds.front().copied(),
            _ => self.rounds.pop_front(),
        };
        self.is_first = false;
        let Some(before) = before else { return };
        let has_grown = throughput.limit * 2 >= before.limit * 3;
        let has_gained =
            throughput.answers >= before.answers * GAIN || throughput.bytes >= before.bytes * GAIN;
        if !has_grown || has_gained {
            self.is_doubtful = false;
        } else if self.is_doubtful {
            self.fall(now, (before.limit / 2).max(FLOOR), USELESS_PAUSE);
        } else {
            // One slow round may be a pause of the path, so a second one is compared as well.
            self.is_doubtful = true;
            self.limit = self.limit.min(throughput.limit);
            self.round = Some(Round::new(now, self.limit));
            self.rounds.clear();
            self.rounds.push_back(before);
            self.rounds.push_back(before);
        }
    }

    fn fall(&mut self, now: Instant, limit: usize, pause: Duration) {
        self.limit = self.limit.min(limit);
        self.is_first = self.limit == FLOOR;
        self.is_doubtful = false;
        self.round = None;
        self.rounds.clear();
        let until = now + pause;
        self.paused_until = Some(self.paused_until.map_or(until, |set| set.max(until)));
    }
}

#[cfg(test)]
mod tests;
