//! Tests of the admission of exchanges that start.

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
    assert!(state.fresh.len() == 0 && state.pushes == 0);
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
        prop_assert!(state.fresh.len() == 0 && state.pushes == 0);
        prop_assert!(state.lasting.is_empty() && state.round_ends.is_none());
    }
}
