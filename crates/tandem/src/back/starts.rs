//! The limit on exchanges that all sessions start at once with the one origin of a reverse gateway,
//! and the order of those that wait.
//!
//! ```text
//!   room? ──yes──▶ Start ──dropped, or fresh for FRESH_FOR──▶ the next session in turn
//!     └──no──▶ queue: requests before pushes, sessions in turn, by urgency within a session
//! ```
//!
//! Most exchanges end within [`FRESH_FOR`] and leave an idle connection to the next one. Many
//! sessions therefore share few connections. An exchange that lasts longer no longer counts: it may
//! be an event stream, a long poll, or a response that its client does not read. Such exchanges
//! count towards the limits of their own session only (`places`), so they cannot keep the others
//! from starting.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use tandem_http::Priority;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::priority::Precedence;

/// The time for which a started exchange counts. It is longer than an exchange with an origin
/// nearby, and short beside the patience of a user whose request waits.
pub(super) const FRESH_FOR: Duration = Duration::from_millis(100);

/// The number of exchanges that a session starts in one turn. Responses that arrive together leave
/// in one write.
const BURST: usize = 16;

/// The exchanges of all sessions that have just started or wait for their start.
pub(super) struct Starts {
    /// The largest number of fresh exchanges.
    most: usize,
    state: RefCell<State>,
    /// Notified when the queue gets its first entry.
    queued: Notify,
}

#[derive(Default)]
struct State {
    issued: u64,
    /// The fresh exchanges by age.
    fresh: BTreeMap<u64, Fresh>,
    /// The number of fresh pushes.
    pushes: usize,
    /// The sessions with waiting exchanges.
    waiting: HashMap<u64, Waiting>,
    /// The sessions with waiting requests, and those with waiting pushes, in turn.
    turns: [BTreeMap<u64, u64>; 2],
}

/// The waiting exchanges of one session.
#[derive(Default)]
struct Waiting {
    queue: BTreeMap<Number, oneshot::Sender<Start>>,
    /// The turns of the session's requests and of its pushes, while there are any.
    turns: [Option<Round>; 2],
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
}

/// The right to start an exchange. Dropping it passes the right on.
pub(super) struct Start {
    starts: Rc<Starts>,
    number: u64,
}

/// A turn in the queue. Dropping it leaves the queue.
struct Turn<'a> {
    starts: &'a Starts,
    session: u64,
    number: Number,
}

impl Starts {
    pub(super) fn new(most: usize) -> Rc<Self> {
        Rc::new(Self {
            most,
            state: RefCell::default(),
            queued: Notify::new(),
        })
    }

    /// Starts an exchange if there is room. Waiting exchanges have none, so this one overtakes none
    /// that could start.
    pub(super) fn try_take(self: &Rc<Self>, push: bool) -> Option<Start> {
        let mut state = self.state.borrow_mut();
        let has_room = state.has_room(self.most, push);
        has_room.then(|| self.start(state.start(Instant::now(), push)))
    }

    /// Waits for the start of an exchange. Dropping the future leaves the queue.
    pub(super) async fn take(self: &Rc<Self>, session: u64, precedence: Precedence) -> Start {
        if let Some(start) = self.try_take(precedence.push) {
            return start;
        }
        let (turn, arrived) = {
            let mut state = self.state.borrow_mut();
            let (ready, arrived) = oneshot::channel();
            let number = state.wait(session, precedence, ready);
            let turn = Turn {
                starts: self,
                session,
                number,
            };
            (turn, arrived)
        };
        self.queued.notify_one();
        let start = arrived.await;
        drop(turn);
        start.expect("a turn stays in the queue until it is given a start or dropped")
    }

    /// Ends the freshness of exchanges that last, whenever others wait for them. Runs for as long
    /// as it is polled.
    pub(super) async fn run(self: Rc<Self>) {
        loop {
            let queued = self.queued.notified();
            match self.due() {
                None => queued.await,
                Some(due) => tokio::time::sleep_until(due).await,
            }
            self.expire(Instant::now());
        }
    }

    /// Returns the time at which the oldest fresh exchange makes room, if others wait.
    fn due(&self) -> Option<Instant> {
        let state = self.state.borrow();
        let oldest = state.fresh.values().next();
        oldest
            .filter(|_| !state.waiting.is_empty())
            .map(|fresh| fresh.since + FRESH_FOR)
    }

    fn expire(self: &Rc<Self>, now: Instant) {
        self.state.borrow_mut().expire(now);
        self.hand_out(now);
    }

    fn start(self: &Rc<Self>, number: u64) -> Start {
        Start {
            starts: Rc::clone(self),
            number,
        }
    }

    /// Hands the available starts to waiting exchanges: one at a time and without the borrow, since
    /// a start that the receiver drops returns through [`Start::drop`].
    fn hand_out(self: &Rc<Self>, now: Instant) {
        loop {
            let next = self.state.borrow_mut().next(self.most, now);
            let Some((ready, number)) = next else { return };
            drop(ready.send(self.start(number)));
        }
    }
}

impl State {
    fn has_room(&self, most: usize, push: bool) -> bool {
        self.fresh.len() < most && (!push || self.pushes < most / 2)
    }

    fn start(&mut self, now: Instant, push: bool) -> u64 {
        self.issued += 1;
        self.pushes += usize::from(push);
        self.fresh.insert(self.issued, Fresh { since: now, push });
        self.issued
    }

    /// Ends the freshness of an exchange, if it has not ended before.
    fn end(&mut self, number: u64) {
        let ended = self.fresh.remove(&number);
        self.pushes -= usize::from(ended.is_some_and(|fresh| fresh.push));
    }

    fn expire(&mut self, now: Instant) {
        while let Some((&number, fresh)) = self.fresh.first_key_value()
            && fresh.since + FRESH_FOR <= now
        {
            self.end(number);
        }
    }

    fn wait(
        &mut self,
        session: u64,
        precedence: Precedence,
        ready: oneshot::Sender<Start>,
    ) -> Number {
        self.issued += 1;
        let number = (precedence, self.issued);
        let waiting = self.waiting.entry(session).or_default();
        waiting.queue.insert(number, ready);
        let kind = usize::from(precedence.push);
        if waiting.turns[kind].is_none() {
            waiting.turns[kind] = Some(Round::new(self.issued));
            self.turns[kind].insert(self.issued, session);
        }
        number
    }

    /// Returns the next waiting exchange if there is room for it, and starts it.
    fn next(&mut self, most: usize, now: Instant) -> Option<(oneshot::Sender<Start>, u64)> {
        let push = [false, true].into_iter().find(|push| {
            !self.turns[usize::from(*push)].is_empty() && self.has_room(most, *push)
        })?;
        let kind = usize::from(push);
        let (_, &session) = self.turns[kind].first_key_value()?;
        let waiting = self.waiting.get_mut(&session)?;
        let first = waiting.first(push)?;
        let ready = waiting.queue.remove(&first)?;
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
        Some((ready, self.start(now, push)))
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
        state.end(self.number);
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

    use super::*;

    type Taking = Pin<Box<dyn Future<Output = Start>>>;

    fn ask(starts: &Rc<Starts>, session: u64, push: bool) -> Taking {
        let starts = Rc::clone(starts);
        let precedence = Precedence {
            push,
            ..Precedence::default()
        };
        Box::pin(async move { starts.take(session, precedence).await })
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
        let starts = Starts::new(1);
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
        let starts = Starts::new(2);
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
        let starts = Starts::new(2);
        let lasting = [take(&starts, 1), take(&starts, 1)];
        assert_eq!(starts.due(), None, "nothing waits");
        let mut waiting = ask(&starts, 2, false);
        assert!(poll(&mut waiting).is_none());
        let due = starts.due().expect("one waits");
        starts.expire(due - Duration::from_millis(1));
        assert!(poll(&mut waiting).is_none());
        starts.expire(due + Duration::from_millis(1));
        let honest = poll(&mut waiting).expect("the lasting ones no longer count");
        drop(lasting);
        let other = take(&starts, 2);
        assert!(poll(&mut ask(&starts, 2, false)).is_none());
        drop((honest, other));
    }

    #[test]
    fn cancelled_exchanges_leave_the_queue() {
        let starts = Starts::new(1);
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

    proptest! {
        /// Random arrivals, ends and expiries exceed no limit and leave no exchange waiting that
        /// has room. At the end no state remains.
        #[test]
        fn limits_hold_and_room_is_used(
            steps in proptest::collection::vec((0u8..4, 0u64..3, any::<bool>(), any::<prop::sample::Index>()), 1..120),
            most in 2usize..6,
        ) {
            let starts = Starts::new(most);
            let mut waiting: Vec<(bool, Taking)> = Vec::new();
            let mut held: Vec<Start> = Vec::new();
            for (action, session, push, index) in steps {
                match action {
                    0 => waiting.push((push, ask(&starts, session, push))),
                    1 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                    2 if !waiting.is_empty() => drop(waiting.swap_remove(index.index(waiting.len()))),
                    3 => starts.expire(Instant::now() + FRESH_FOR),
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
        }
    }
}
