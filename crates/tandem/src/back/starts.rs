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

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use tandem_http::Priority;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::lasting::{Exchanging, Lasting};
use crate::error::{Error, Kind, Side};
use crate::exchange::{BodyProgress, Canceller};
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
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
    state: RefCell<State>,
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

struct State {
    issued: u64,
    /// The fresh exchanges by age.
    fresh: BTreeMap<u64, Fresh>,
    /// The number of fresh pushes.
    pushes: usize,
    lasting: Lasting<Progressing>,
    /// The end of the present round of `lasting`.
    round_ends: Option<Instant>,
    /// The sessions with waiting exchanges.
    waiting: HashMap<u64, Waiting>,
    /// The sessions with waiting requests, and those with waiting pushes, in turn.
    turns: [BTreeMap<u64, u64>; 2],
}

/// The waiting exchanges of one session.
#[derive(Default)]
struct Waiting {
    queue: BTreeMap<Number, Queued>,
    /// The turns of the session's requests and of its pushes, while there are any.
    turns: [Option<Round>; 2],
}

/// A waiting exchange.
struct Queued {
    running: Running,
    ready: oneshot::Sender<Start>,
}

/// The turn of a session.
#[derive(Clone, Copy)]
struct Round {
    /// The number of the turn: the smallest is the next one.
    number: u64,
    /// The number of exchanges that may still start in it.
    left: usize,
}

/// A place in a session's queue: requests precede pushes, and equals go by age.
type Number = (Precedence, u64);

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
struct Turn<'a> {
    starts: &'a Starts,
    session: u64,
    number: Number,
}

impl Starts {
    /// Creates the limits: `most` fresh exchanges, and `lasting` ones.
    pub(super) fn new(most: usize, lasting: usize) -> Rc<Self> {
        Rc::new(Self {
            most,
            state: RefCell::new(State::new(lasting)),
            sooner: Notify::new(),
            alarm: Cell::new(None),
        })
    }

    /// Starts an exchange if there is room. Waiting exchanges have none, so this one overtakes none
    /// that could start.
    pub(super) fn try_take(self: &Rc<Self>, push: bool, running: &Running) -> Option<Start> {
        let mut state = self.state.borrow_mut();
        let has_room = state.has_room(self.most, push);
        has_room.then(|| self.start(running, state.start(Instant::now(), push, running)))
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
            let turn = Turn {
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
        let oldest = state.fresh.values().next();
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

impl State {
    fn new(lasting: usize) -> Self {
        Self {
            issued: 0,
            fresh: BTreeMap::new(),
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
        self.fresh.insert(self.issued, fresh);
        self.issued
    }

    /// Removes an exchange that has ended.
    fn end(&mut self, session: u64, number: u64) {
        match self.fresh.remove(&number) {
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
        while let Some(fresh) = self.fresh.first_entry()
            && fresh.get().since + FRESH_FOR <= now
        {
            let (number, fresh) = fresh.remove_entry();
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
    ) -> Number {
        self.issued += 1;
        let (session, number) = (running.session, (precedence, self.issued));
        let waiting = self.waiting.entry(session).or_default();
        waiting.queue.insert(number, Queued { running, ready });
        let kind = usize::from(precedence.push);
        if waiting.turns[kind].is_none() {
            waiting.turns[kind] = Some(Round::new(self.issued));
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
            waiting.turns[kind] = Some(Round::new(self.issued));
            self.turns[kind].insert(self.issued, session);
        }
        self.forget(session);
        let number = self.start(now, push, &queued.running);
        Some((queued, number))
    }

    /// Takes an exchange that no longer waits out of the queue.
    fn leave(&mut self, session: u64, number: &Number) {
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
        let waits = |waiting: &Waiting| !waiting.queue.is_empty();
        if !self.waiting.get(&session).is_some_and(waits) {
            self.waiting.remove(&session);
        }
    }
}

impl Round {
    const fn new(number: u64) -> Self {
        Self {
            number,
            left: BURST,
        }
    }
}

impl Waiting {
    /// Returns the first of the requests, or the first of the pushes.
    fn first(&self, push: bool) -> Option<Number> {
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

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.starts.state.borrow_mut();
        state.leave(self.session, &self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use proptest::prelude::*;
    use tandem_http::{Reason, ResponseHead};

    use super::*;
    use crate::error::Retry;
    use crate::exchange::{Part, Reply};

    const LATE: Duration = Duration::from_millis(1);

    type Taking = Pin<Box<dyn Future<Output = Start>>>;

    fn running(session: u64) -> Running {
        Running {
            session,
            ..Running::default()
        }
    }

    fn ask(starts: &Rc<Starts>, session: u64, push: bool) -> Taking {
        let starts = Rc::clone(starts);
        let precedence = Precedence {
            push,
            ..Precedence::default()
        };
        Box::pin(async move { starts.take(precedence, &running(session)).await })
    }

    fn poll(future: &mut Taking) -> Option<Start> {
        let mut cx = Context::from_waker(Waker::noop());
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(start) => Some(start),
            Poll::Pending => None,
        }
    }

    fn take(starts: &Rc<Starts>, session: u64) -> Start {
        poll(&mut ask(starts, session, false)).expect("there is room")
    }

    #[test]
    fn sessions_start_in_turn() {
        let starts = Starts::new(1, 99);
        let first = take(&starts, 1);
        let mut greedy: Vec<_> = (0..2 * BURST).map(|_| ask(&starts, 1, false)).collect();
        assert!(greedy.iter_mut().all(|future| poll(future).is_none()));
        let mut modest = ask(&starts, 2, false);
        assert!(poll(&mut modest).is_none());
        drop(first);
        for future in &mut greedy[..BURST] {
            drop(poll(future).expect("the first session's turn"));
        }
        assert!(poll(&mut greedy[BURST]).is_none());
        drop(poll(&mut modest).expect("the other session's turn"));
        for future in &mut greedy[BURST..] {
            drop(poll(future).expect("the first session's turn"));
        }
        assert!(starts.state.borrow().waiting.is_empty());
    }

    #[test]
    fn requests_start_before_pushes() {
        let starts = Starts::new(2, 99);
        let push = poll(&mut ask(&starts, 1, true)).expect("there is room");
        let mut second_push = ask(&starts, 1, true);
        assert!(poll(&mut second_push).is_none(), "pushes get half");
        let request = take(&starts, 1);
        let mut waiting = ask(&starts, 2, false);
        assert!(poll(&mut waiting).is_none());
        drop(push);
        assert!(poll(&mut second_push).is_none());
        let waiting = poll(&mut waiting).expect("its turn");
        drop((request, waiting));
        poll(&mut second_push).expect("no request waits");
    }

    #[test]
    fn lasting_exchanges_make_room() {
        let starts = Starts::new(2, 99);
        let lasting = [take(&starts, 1), take(&starts, 1)];
        assert_eq!(starts.due(), None, "nothing waits");
        let mut waiting = ask(&starts, 2, false);
        assert!(poll(&mut waiting).is_none());
        let due = starts.due().expect("one waits");
        starts.advance(due - LATE);
        assert!(poll(&mut waiting).is_none());
        starts.advance(due + LATE);
        let honest = poll(&mut waiting).expect("the lasting ones no longer count");
        assert_eq!(starts.state.borrow().round_ends, Some(due + ROUND + LATE));
        drop(lasting);
        assert_eq!(starts.state.borrow().round_ends, None, "none lasts");
        let other = take(&starts, 2);
        assert!(poll(&mut ask(&starts, 2, false)).is_none());
        drop((honest, other));
    }

    /// Returns a reply that sends its head and then waits, with its start.
    fn endless(starts: &Rc<Starts>, session: u64) -> Reply {
        let starts = Rc::clone(starts);
        let mut reply = Reply::generate(|mut sink| async move {
            let running = Running {
                session,
                reply: sink.canceller(),
                ..Running::default()
            };
            let _start = starts.try_take(false, &running).expect("there is room");
            sink.send(Part::Head(ResponseHead::new(200))).await;
            std::future::pending().await
        });
        assert!(matches!(part(&mut reply), Poll::Ready(Some(Ok(_)))));
        reply
    }

    fn part(reply: &mut Reply) -> Poll<Option<Result<Part, Error>>> {
        reply.poll_part(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn unread_exchanges_above_the_limit_are_cancelled() {
        let starts = Starts::new(9, 4);
        let mut unread = [endless(&starts, 1), endless(&starts, 1)];
        let mut moving = [endless(&starts, 2), endless(&starts, 2)];
        let expired = Instant::now() + FRESH_FOR;
        starts.advance(expired);
        starts.advance(expired + ROUND);
        assert!(moving.iter_mut().all(|reply| part(reply).is_pending()));
        starts.advance(expired + 2 * ROUND);
        assert!(unread.iter_mut().all(|reply| part(reply).is_pending()));
        let mut fifth = endless(&starts, 3);
        starts.advance(expired + 2 * ROUND + FRESH_FOR);
        let cancelled = part(&mut unread[0]);
        let Poll::Ready(Some(Err(error))) = cancelled else {
            panic!("{cancelled:?}");
        };
        // The origin may have processed the request, so the client must not repeat it.
        assert_eq!(
            (error.retry, error.reason()),
            (Retry::Never, Reason::Internal)
        );
        let mut others = unread[1..].iter_mut().chain(&mut moving);
        assert!(others.all(|reply| part(reply).is_pending()));
        assert!(part(&mut fifth).is_pending());
    }

    #[test]
    fn runner_wakes_for_the_first_due_time() {
        let starts = Starts::new(1, 9);
        let mut run = Box::pin(Rc::clone(&starts).run());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let begun = Instant::now();
            let stream = starts.enter(&running(1));
            let lasting = take(&starts, 1);
            let mut waiting = ask(&starts, 2, false);
            let started = tokio::select! {
                biased;
                () = &mut run => unreachable!("the runner has no end"),
                start = &mut waiting => start,
            };
            assert_eq!(begun.elapsed(), FRESH_FOR, "the round ends later");
            drop((stream, lasting, started));
        });
    }

    #[test]
    fn cancelled_exchanges_leave_the_queue() {
        let starts = Starts::new(1, 99);
        let first = take(&starts, 1);
        let mut waiting: Vec<_> = (0..3).map(|_| ask(&starts, 2, false)).collect();
        assert!(waiting.iter_mut().all(|future| poll(future).is_none()));
        drop(waiting.remove(1));
        drop(first);
        // The next future got a start and is dropped before it is polled.
        drop(waiting.remove(0));
        drop(poll(&mut waiting[0]).expect("its turn"));
        for _ in 0..3 {
            let held = take(&starts, 3);
            let mut cancelled = ask(&starts, 2, false);
            assert!(poll(&mut cancelled).is_none());
            drop((cancelled, held));
        }
        let state = starts.state.borrow();
        assert!(state.waiting.is_empty() && state.turns.iter().all(BTreeMap::is_empty));
        assert!(state.fresh.is_empty() && state.pushes == 0);
    }

    fn step() -> impl Strategy<Value = (u8, u64, bool, prop::sample::Index)> {
        (0u8..4, 0u64..3, any::<bool>(), any::<prop::sample::Index>())
    }

    proptest! {
        /// Random arrivals, ends and expiries exceed no limit and leave no exchange waiting that
        /// has room. At the end no state remains.
        #[test]
        fn limits_hold_and_room_is_used(
            steps in proptest::collection::vec(step(), 1..120),
            most in 2usize..6,
        ) {
            let starts = Starts::new(most, 9);
            let mut waiting: Vec<(bool, Taking)> = Vec::new();
            let mut held: Vec<Start> = Vec::new();
            for (action, session, push, index) in steps {
                match action {
                    0 => waiting.push((push, ask(&starts, session, push))),
                    1 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                    2 if !waiting.is_empty() => {
                        drop(waiting.swap_remove(index.index(waiting.len())));
                    }
                    3 => starts.advance(Instant::now() + FRESH_FOR),
                    _ => {}
                }
                let mut still = Vec::new();
                for (push, mut future) in waiting {
                    match poll(&mut future) {
                        Some(start) => held.push(start),
                        None => still.push((push, future)),
                    }
                }
                waiting = still;
                let state = starts.state.borrow();
                let pushes = state.fresh.values().filter(|fresh| fresh.push).count();
                prop_assert!(state.fresh.len() <= most && pushes <= most / 2);
                prop_assert_eq!(state.pushes, pushes);
                prop_assert!(waiting.iter().all(|(push, _)| !state.has_room(most, *push)));
                let listed: usize = state.turns.iter().map(BTreeMap::len).sum();
                prop_assert!(listed <= 2 * state.waiting.len());
            }
            waiting.clear();
            held.clear();
            let state = starts.state.borrow();
            prop_assert!(state.waiting.is_empty() && state.turns.iter().all(BTreeMap::is_empty));
            prop_assert!(state.fresh.is_empty() && state.pushes == 0);
            prop_assert!(state.lasting.is_empty() && state.round_ends.is_none());
        }
    }
}
