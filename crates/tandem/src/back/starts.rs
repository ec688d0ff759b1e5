//! The limit on exchanges that all sessions start at once with the one origin of a reverse gateway,
//! and the order of those that wait.
//!
//! ```text
//!   room? ──yes──▶ fresh ──dropped, or after FRESH_FOR──▶ the next session in turn
//!     │              └──after FRESH_FOR──▶ lasting ──above the limit──▶ cancelled
//!     └──no──▶ queue: requests before pushes, sessions in turn,
//!                     by urgency within a session
//! ```
//!
//! Most exchanges end within [`FRESH_FOR`] and leave an idle connection to the next one. Many
//! sessions therefore share few connections. An exchange that lasts longer no longer counts as
//! fresh: it may be an event stream, a long poll, or a response that its client does not read. Such
//! exchanges cannot keep the others from starting. They have a limit that `lasting` applies.

mod by_age;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use tandem_http::Priority;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use self::by_age::ByAge;
use super::lasting::{Exchanging, Lasting};
use crate::error::{Error, Kind, Side};
use crate::exchange::{BodyProgress, Canceller};
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::moment;
use crate::priority::Precedence;

/// The time for which a started exchange counts. It is longer than an exchange with an origin
/// nearby, and short beside the patience of a user whose request waits.
pub(super) const FRESH_FOR: Duration = Duration::from_millis(100);

/// The number of exchanges that a session starts in one turn. Responses that arrive together leave
/// in one write.
const BURST: usize = 16;

/// The time without data after which a lasting exchange counts as stalled: up to twice as long.
const ROUND: Duration = Duration::from_secs(10);

/// The exchanges of all sessions that have started or wait for their start.
pub(super) struct Starts {
    /// The largest number of fresh exchanges.
    most: usize,
    state: RefCell<StartsState>,
    /// Notified when [`Starts::run`] has to act before its alarm.
    sooner: Notify,
    /// The time until which [`Starts::run`] sleeps.
    alarm: Cell<Option<Instant>>,
}

/// An exchange that runs, as the limit on lasting exchanges sees it.
#[derive(Clone, Default)]
pub(super) struct Running {
    /// The number of the client's session.
    pub(super) session: u64,
    /// The handle that ends the reply.
    pub(super) reply: Canceller,
    /// The progress of the request's body, or of the bytes towards a tunnel's target.
    pub(super) body: BodyProgress,
}

/// A lasting exchange, and the progress of its body in the last round.
struct Progressing(Running, usize);

struct StartsState {
    issued: u64,
    /// The fresh exchanges by age.
    fresh: ByAge<Fresh>,
    /// The number of fresh pushes.
    pushes: usize,
    lasting: Lasting<Progressing>,
    /// The end of the present round of `lasting`.
    round_ends: Option<Instant>,
    /// The sessions with waiting exchanges.
    waiting: HashMap<u64, WaitingStarts>,
    /// The sessions with waiting requests, and those with waiting pushes, in turn.
    turns: [BTreeMap<u64, u64>; 2],
}

/// The waiting exchanges of one session.
#[derive(Default)]
struct WaitingStarts {
    queue: BTreeMap<StartNumber, Queued>,
    /// The turns of the session's requests and of its pushes, while there are any.
    turns: [Option<SessionTurn>; 2],
}

/// A waiting exchange.
struct Queued {
    running: Running,
    ready: oneshot::Sender<Start>,
}

/// The turn of a session.
#[derive(Clone, Copy)]
struct SessionTurn {
    /// The number of the turn: the smallest is the next one.
    number: u64,
    /// The number of exchanges that may still start in it.
    left: usize,
}

/// A place in a session's queue: requests precede pushes, and equals go by age.
type StartNumber = (Precedence, u64);

struct Fresh {
    since: Instant,
    push: bool,
    running: Running,
}

/// The right to run an exchange. Dropping it passes the right on.
pub(super) struct Start {
    starts: Rc<Starts>,
    session: u64,
    number: u64,
}

/// A turn in the queue. Dropping it leaves the queue.
struct StartTurn<'a> {
    starts: &'a Starts,
    session: u64,
    number: StartNumber,
}

impl Starts {
    /// Creates the limits: `most` fresh exchanges, and `lasting` ones.
    pub(super) fn new(most: usize, lasting: usize) -> Rc<Self> {
        Rc::new(Self {
            most,
            state: RefCell::new(StartsState::new(lasting)),
            sooner: Notify::new(),
            alarm: Cell::new(None),
        })
    }

    /// Starts an exchange if there is room. Waiting exchanges have none, so this one overtakes none
    /// that could start.
    pub(super) fn try_take(self: &Rc<Self>, push: bool, running: &Running) -> Option<Start> {
        let mut state = self.state.borrow_mut();
        let has_room = state.has_room(self.most, push);
        has_room.then(|| self.start(running, state.start(moment::now(), push, running)))
    }

    /// Waits for the start of an exchange. Dropping the future leaves the queue.
    pub(super) async fn take(self: &Rc<Self>, precedence: Precedence, running: &Running) -> Start {
        if let Some(start) = self.try_take(precedence.push, running) {
            return start;
        }
        let (turn, arrived) = {
            let mut state = self.state.borrow_mut();
            let (ready, arrived) = oneshot::channel();
            let session = running.session;
            let number = state.wait(precedence, running.clone(), ready);
            let turn = StartTurn {
                starts: self,
                session,
                number,
            };
            (turn, arrived)
        };
        self.wake_runner();
        let start = arrived.await;
        drop(turn);
        start.expect("a turn stays in the queue until it is given a start or dropped")
    }

    /// Starts an exchange that lasts from its beginning, such as a WebSocket. It need not wait.
    pub(super) fn enter(self: &Rc<Self>, running: &Running) -> Start {
        let mut state = self.state.borrow_mut();
        state.issued += 1;
        let number = state.issued;
        state.last(number, running.clone(), Instant::now());
        drop(state);
        self.wake_runner();
        self.start(running, number)
    }

    /// Ends the freshness of exchanges that last, whenever others wait for them, and cancels
    /// exchanges above the limit. Runs for as long as it is polled.
    pub(super) async fn run(self: Rc<Self>) {
        loop {
            let sooner = self.sooner.notified();
            let alarm = self.due();
            self.alarm.set(alarm);
            match alarm {
                None => sooner.await,
                Some(due) => tokio::select! {
                    () = sooner => {}
                    () = tokio::time::sleep_until(due) => {}
                },
            }
            self.advance(Instant::now());
        }
    }

    /// Returns the time at which a round of the lasting exchanges ends, or at which the oldest
    /// fresh exchange makes room, if others wait.
    fn due(&self) -> Option<Instant> {
        let state = self.state.borrow();
        let oldest = state.fresh.first();
        let room = oldest
            .filter(|_| !state.waiting.is_empty())
            .map(|fresh| fresh.since + FRESH_FOR);
        room.into_iter().chain(state.round_ends).min()
    }

    /// Wakes [`Self::run`] if it has to act before its alarm.
    fn wake_runner(&self) {
        let is_sooner = |due| self.alarm.get().is_none_or(|alarm| due < alarm);
        let is_above_limit = self.state.borrow().lasting.is_above_limit();
        if is_above_limit || self.due().is_some_and(is_sooner) {
            self.sooner.notify_one();
        }
    }

    fn advance(self: &Rc<Self>, now: Instant) {
        self.state.borrow_mut().expire(now);
        self.hand_out(now);
        self.cancel_surplus();
    }

    fn start(self: &Rc<Self>, running: &Running, number: u64) -> Start {
        Start {
            starts: Rc::clone(self),
            session: running.session,
            number,
        }
    }

    /// Hands the available starts to waiting exchanges: one at a time and without the borrow, since
    /// a start that the receiver drops returns through [`Start::drop`].
    fn hand_out(self: &Rc<Self>, now: Instant) {
        loop {
            let next = self.state.borrow_mut().next(self.most, now);
            let Some((waiting, number)) = next else {
                return;
            };
            drop(waiting.ready.send(self.start(&waiting.running, number)));
        }
    }

    /// Cancels lasting exchanges above their limit: without the borrow, since a cancelled exchange
    /// drops its [`Start`].
    fn cancel_surplus(&self) {
        static WARNED: LogLimit = LogLimit::new();
        loop {
            let surplus = self.state.borrow_mut().lasting.surplus();
            let Some(Progressing(running, _)) = surplus else {
                return;
            };
            METRICS.exchanges_cancelled.add(1);
            if let Some(held_back) = WARNED.admit() {
                tracing::warn!(
                    held_back,
                    "cancelled an exchange: too many last (max-lasting-exchanges)"
                );
            }
            let detail = "too many exchanges with the origin last";
            // It is no refusal: the client would send the request again, and the origin may have
            // processed it.
            let error = Error::new(Kind::Reset, Side::Local, detail);
            running.reply.fail(error);
        }
    }
}

impl Exchanging for Progressing {
    fn has_moved(&mut self) -> bool {
        let bytes = self.0.body.bytes();
        let was_read = std::mem::replace(&mut self.1, bytes) != bytes;
        self.0.reply.take_polled() || was_read
    }
}

impl StartsState {
    fn new(lasting: usize) -> Self {
        Self {
            issued: 0,
            fresh: ByAge::default(),
            pushes: 0,
            lasting: Lasting::new(lasting),
            round_ends: None,
            waiting: HashMap::new(),
            turns: Default::default(),
        }
    }

    fn has_room(&self, most: usize, push: bool) -> bool {
        self.fresh.len() < most && (!push || self.pushes < most / 2)
    }

    fn start(&mut self, now: Instant, push: bool, running: &Running) -> u64 {
        self.issued += 1;
        self.pushes += usize::from(push);
        let fresh = Fresh {
            since: now,
            push,
            running: running.clone(),
        };
        self.fresh.push(self.issued, fresh);
        self.issued
    }

    /// Removes an exchange that has ended.
    fn end(&mut self, session: u64, number: u64) {
        match self.fresh.remove(number) {
            Some(ended) => self.pushes -= usize::from(ended.push),
            None => drop(self.lasting.remove(session, number)),
        }
        if self.lasting.is_empty() {
            self.round_ends = None;
        }
    }

    /// Ends the freshness of exchanges that last, and the round of lasting ones.
    fn expire(&mut self, now: Instant) {
        if self.round_ends.is_some_and(|end| end <= now) {
            self.lasting.end_round();
            self.round_ends = Some(now + ROUND);
        }
        let is_old = |fresh: &Fresh| fresh.since + FRESH_FOR <= now;
        while let Some((number, fresh)) = self.fresh.pop_first_if(is_old) {
            self.pushes -= usize::from(fresh.push);
            self.last(number, fresh.running, now);
        }
    }

    fn last(&mut self, number: u64, running: Running, now: Instant) {
        self.round_ends.get_or_insert(now + ROUND);
        let (session, bytes) = (running.session, running.body.bytes());
        let lasting = Progressing(running, bytes);
        self.lasting.insert(session, number, lasting);
    }

    fn wait(
        &mut self,
        precedence: Precedence,
        running: Running,
        ready: oneshot::Sender<Start>,
    ) -> StartNumber {
        self.issued += 1;
        let (session, number) = (running.session, (precedence, self.issued));
        let waiting = self.waiting.entry(session).or_default();
        waiting.queue.insert(number, Queued { running, ready });
        let kind = usize::from(precedence.push);
        if waiting.turns[kind].is_none() {
            waiting.turns[kind] = Some(SessionTurn::new(self.issued));
            self.turns[kind].insert(self.issued, session);
        }
        number
    }

    /// Returns the next waiting exchange if there is room for it, and starts it.
    fn next(&mut self, most: usize, now: Instant) -> Option<(Queued, u64)> {
        let push = [false, true].into_iter().find(|push| {
            !self.turns[usize::from(*push)].is_empty() && self.has_room(most, *push)
        })?;
        let kind = usize::from(push);
        let (_, &session) = self.turns[kind].first_key_value()?;
        let waiting = self.waiting.get_mut(&session)?;
        let first = waiting.first(push)?;
        let queued = waiting.queue.remove(&first)?;
        let more = waiting.first(push).is_some();
        if let Some(round) = &mut waiting.turns[kind] {
            round.left -= 1;
            if !more || round.left == 0 {
                self.turns[kind].remove(&round.number);
                waiting.turns[kind] = None;
            }
        }
        if more && waiting.turns[kind].is_none() {
            self.issued += 1;
            waiting.turns[kind] = Some(SessionTurn::new(self.issued));
            self.turns[kind].insert(self.issued, session);
        }
        self.forget(session);
        let number = self.start(now, push, &queued.running);
        Some((queued, number))
    }

    /// Takes an exchange that no longer waits out of the queue.
    fn leave(&mut self, session: u64, number: &StartNumber) {
        let Some(waiting) = self.waiting.get_mut(&session) else {
            return;
        };
        let push = number.0.push;
        waiting.queue.remove(number);
        if waiting.first(push).is_none()
            && let Some(round) = waiting.turns[usize::from(push)].take()
        {
            self.turns[usize::from(push)].remove(&round.number);
        }
        self.forget(session);
    }

    fn forget(&mut self, session: u64) {
        let waits = |waiting: &WaitingStarts| !waiting.queue.is_empty();
        if !self.waiting.get(&session).is_some_and(waits) {
            self.waiting.remove(&session);
        }
    }
}

impl SessionTurn {
    const fn new(number: u64) -> Self {
        Self {
            number,
            left: BURST,
        }
    }
}

impl WaitingStarts {
    /// Returns the first of the requests, or the first of the pushes.
    fn first(&self, push: bool) -> Option<StartNumber> {
        let least = Precedence {
            push,
            priority: Priority(0),
        };
        let (number, _) = self.queue.range((least, 0)..).next()?;
        (number.0.push == push).then_some(*number)
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        let mut state = self.starts.state.borrow_mut();
        state.end(self.session, self.number);
        if !state.waiting.is_empty() {
            drop(state);
            self.starts.hand_out(Instant::now());
        }
    }
}

impl Drop for StartTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.starts.state.borrow_mut();
        state.leave(self.session, &self.number);
    }
}

#[cfg(test)]
mod tests;
