//! Turns: one thread at a time calls the program for a daemon.
//!
//! A thread that stops a daemon waits for the turn of another thread, so that no callback runs once
//! `SPDY_stop_daemon` has returned. A thread that has a turn itself never waits: the turn of the
//! other thread then closes the daemon at its end. Threads that wait therefore hold no turn, and
//! two callbacks may stop each other's daemons.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

thread_local! {
    /// The turns of this thread: it is inside a callback, or about to call one.
    static TURNS: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug, Default)]
struct State {
    taken: bool,
    stopped: bool,
    /// The turn that is taken closes the daemon.
    closes: bool,
}

/// The turns of a daemon.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    free: Condvar,
}

/// The turn of this thread, up to its drop.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    /// Another thread may have the turn by now.
    given_back: bool,
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, mut state: MutexGuard<'_, State>) -> Turn<'_> {
        state.taken = true;
        TURNS.set(TURNS.get() + 1);
        Turn {
            turns: self,
            given_back: false,
        }
    }

    /// Takes the turn for a run. `None` if it is taken, also by this thread, or after a stop.
    pub(super) fn begin(&self) -> Option<Turn<'_>> {
        let state = self.state();
        (!state.taken && !state.stopped).then(|| self.take(state))
    }

    /// Takes the turn to close the daemon. `None` if another turn does so at its end: the one that
    /// this thread is inside, or one that this thread cannot wait for.
    pub(super) fn stop(&self) -> Option<Turn<'_>> {
        let mut state = self.state();
        state.stopped = true;
        if state.taken && TURNS.get() > 0 {
            state.closes = true;
            return None;
        }
        while state.taken {
            state = self
                .free
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Some(self.take(state))
    }
}

impl Turn<'_> {
    /// Ends the turn of a run. Returns it if the daemon has to be closed before.
    pub(super) fn end(mut self) -> Option<Self> {
        let mut state = self.turns.state();
        let closes = std::mem::take(&mut state.closes);
        // A stop sets `closes` only while the turn is taken, so none comes in between.
        if !closes {
            state.taken = false;
            self.given_back = true;
        }
        drop(state);
        closes.then_some(self)
    }
}

/// Ends a turn, even by a panic.
impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.given_back {
            self.turns.state().taken = false;
        }
        self.turns.free.notify_all();
        TURNS.set(TURNS.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn stop_inside_a_turn_closes_at_its_end() {
        let turns = Turns::default();
        let turn = turns.begin().expect("nobody has it");
        assert!(turns.begin().is_none());
        assert!(turns.stop().is_none());
        let closing = turn.end().expect("the daemon was stopped");
        drop(closing);
        assert!(turns.begin().is_none());
        assert_eq!(TURNS.get(), 0);
    }

    #[test]
    fn stop_of_another_thread_waits_for_the_turn() {
        let turns = Turns::default();
        let ended = AtomicBool::new(false);
        let turn = turns.begin().expect("nobody has it");
        std::thread::scope(|scope| {
            let stopper = scope.spawn(|| {
                let closing = turns.stop();
                assert!(ended.load(Ordering::Acquire));
                closing.is_some()
            });
            while !turns.state().stopped {
                std::thread::yield_now();
            }
            ended.store(true, Ordering::Release);
            assert!(turn.end().is_none());
            assert!(stopper.join().expect("no panic"));
        });
    }

    #[test]
    fn thread_with_a_turn_never_waits() {
        let (one, two) = (Turns::default(), Turns::default());
        let turn = one.begin().expect("nobody has it");
        std::thread::scope(|scope| {
            let mine = two.begin().expect("nobody has it");
            let other = scope.spawn(|| {
                let third = Turns::default();
                let _inside = third.begin();
                one.stop().is_none() && two.stop().is_none()
            });
            assert!(other.join().expect("no panic"));
            assert!(mine.end().is_some());
        });
        assert!(turn.end().is_some());
    }
}
