//! How many pushes of a session are fetched at once, and in which order: the most urgent first,
//! then as they were named.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Before every urgency that a need can have.
const ASKED_FOR: u8 = 0;

/// Lets a number of tickets through at once.
pub(super) struct Gate(RefCell<State>);

struct State {
    free: usize,
    issued: u64,
    /// By urgency, then by number.
    waiting: BTreeMap<(u8, u64), Waker>,
}

impl State {
    fn wake_first(&self) {
        if self.free > 0
            && let Some((_, waker)) = self.waiting.first_key_value()
        {
            waker.wake_by_ref();
        }
    }
}

impl Gate {
    pub(super) fn new(free: usize) -> Rc<Self> {
        Rc::new(Self(RefCell::new(State {
            free,
            issued: 0,
            waiting: BTreeMap::new(),
        })))
    }

    pub(super) fn ticket(self: &Rc<Self>, urgency: u8) -> Ticket {
        let mut state = self.0.borrow_mut();
        state.issued += 1;
        Ticket {
            gate: Rc::clone(self),
            place: (urgency.saturating_add(1), state.issued),
            inside: false,
        }
    }
}

/// A place in the queue, then a place inside; dropping it leaves either.
pub(super) struct Ticket {
    gate: Rc<Gate>,
    place: (u8, u64),
    inside: bool,
}

impl Ticket {
    /// Ready once inside.
    pub(super) fn poll_enter(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.inside {
            return Poll::Ready(());
        }
        let mut state = self.gate.0.borrow_mut();
        let first = state
            .waiting
            .first_key_value()
            .is_none_or(|(first, _)| *first >= self.place);
        if state.free == 0 || !first {
            state.waiting.insert(self.place, cx.waker().clone());
            return Poll::Pending;
        }
        state.free -= 1;
        state.waiting.remove(&self.place);
        self.inside = true;
        state.wake_first();
        Poll::Ready(())
    }
}

impl Ticket {
    /// Somebody waits for what it is for: it goes before all that nobody has asked for. Poll it
    /// again afterwards.
    pub(super) fn hurry(&mut self) {
        let mut state = self.gate.0.borrow_mut();
        let waited = state.waiting.remove(&self.place).is_some();
        self.place.0 = ASKED_FOR;
        if waited {
            // Who comes before nobody else now is to look.
            state.wake_first();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.gate.0.borrow_mut();
        state.waiting.remove(&self.place);
        state.free += usize::from(self.inside);
        state.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_the_most_urgent_in_first() {
        let cx = Context::from_waker(Waker::noop());
        let gate = Gate::new(1);
        let (mut first, mut late, mut urgent) = (gate.ticket(6), gate.ticket(6), gate.ticket(4));
        assert!(first.poll_enter(&cx).is_ready());
        assert!(late.poll_enter(&cx).is_pending() && urgent.poll_enter(&cx).is_pending());
        drop(first);
        assert!(late.poll_enter(&cx).is_pending());
        assert!(urgent.poll_enter(&cx).is_ready());
        drop(urgent);
        assert!(late.poll_enter(&cx).is_ready());
    }

    #[test]
    fn what_is_asked_for_goes_before_what_is_not() {
        let cx = Context::from_waker(Waker::noop());
        let gate = Gate::new(1);
        let mut first = gate.ticket(0);
        assert!(first.poll_enter(&cx).is_ready());
        let (mut urgent, mut asked, mut also_asked) =
            (gate.ticket(0), gate.ticket(7), gate.ticket(7));
        assert!(
            [&mut urgent, &mut also_asked, &mut asked]
                .into_iter()
                .all(|ticket| ticket.poll_enter(&cx).is_pending())
        );
        also_asked.hurry();
        asked.hurry();
        assert!(also_asked.poll_enter(&cx).is_pending() && asked.poll_enter(&cx).is_pending());
        drop(first);
        assert!(urgent.poll_enter(&cx).is_pending() && also_asked.poll_enter(&cx).is_pending());
        assert!(asked.poll_enter(&cx).is_ready());
        drop(asked);
        assert!(urgent.poll_enter(&cx).is_pending());
        assert!(also_asked.poll_enter(&cx).is_ready());
        drop(also_asked);
        assert!(urgent.poll_enter(&cx).is_ready());
    }
}
