//! The place of an exchange in the queues on its way, as one cell that all of its stages share.
//!
//! ```text
//!   client: PRIORITY_UPDATE ─▶ session ─┐                     ┌─▶ the queue for origin connections
//!   client: "asked for" ──▶ companion ──┼─▶ SharedPriority ───┼─▶ the queue of pushes to fetch
//!   client: a request joins a push ─────┘   (wakes watchers)  └─▶ the order of sending (sched)
//! ```
//!
//! The cell travels with the exchange and not with its reply, so a stage that wraps a reply has
//! nothing to forward. Urgencies follow RFC 9218 section 4.1.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tandem_http::Priority;

/// A place in a queue. The smallest is first: requests before pushes, then by urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    /// True for a push that no request waits for.
    pub push: bool,
    /// The urgency.
    pub priority: Priority,
}

impl Precedence {
    /// Returns the precedence of a request.
    pub const fn request(priority: Priority) -> Self {
        Self {
            push: false,
            priority,
        }
    }

    /// Returns the precedence of a push that no request waits for.
    pub const fn push(priority: Priority) -> Self {
        Self {
            push: true,
            priority,
        }
    }
}

impl Default for Precedence {
    fn default() -> Self {
        Self::request(Priority::default())
    }
}

/// The precedence of one exchange. Clones share it.
#[derive(Clone, Default)]
pub struct SharedPriority(Rc<PriorityState>);

#[derive(Default)]
struct PriorityState {
    now: Cell<Precedence>,
    wakers: Cell<Wakers>,
}

/// The tasks to wake at the next change. All stages of an exchange mostly run in one task, so the
/// first place suffices and nothing is allocated.
#[derive(Default)]
struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    fn add(&mut self, waker: &Waker) {
        let mut known = self.first.iter().chain(&self.more);
        if known.any(|known| known.will_wake(waker)) {
            return;
        }
        if self.first.is_none() {
            self.first = Some(waker.clone());
        } else {
            self.more.push(waker.clone());
        }
    }
}

impl SharedPriority {
    /// A cell that holds `precedence`.
    pub fn new(precedence: Precedence) -> Self {
        let this = Self::default();
        this.0.now.set(precedence);
        this
    }

    /// Returns the present precedence.
    pub fn get(&self) -> Precedence {
        self.0.now.get()
    }

    /// Changes the precedence and wakes the tasks that watch it.
    pub fn set(&self, precedence: Precedence) {
        if self.0.now.replace(precedence) == precedence {
            return;
        }
        let wakers = self.0.wakers.take();
        for waker in wakers.first.into_iter().chain(wakers.more) {
            waker.wake();
        }
    }

    /// Returns a watch that reports changes from now on.
    pub fn watch(&self) -> PriorityWatch {
        PriorityWatch {
            seen: self.get(),
            shared: self.clone(),
        }
    }

    /// Returns whether both handles belong to one exchange.
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    fn wake_at_change(&self, waker: &Waker) {
        let mut wakers = self.0.wakers.take();
        wakers.add(waker);
        self.0.wakers.set(wakers);
    }
}

impl fmt::Debug for SharedPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A reader of a [`SharedPriority`] that remembers the last value.
#[derive(Debug)]
pub struct PriorityWatch {
    shared: SharedPriority,
    seen: Precedence,
}

impl PriorityWatch {
    /// Returns a handle to the cell that is watched.
    pub const fn shared(&self) -> &SharedPriority {
        &self.shared
    }

    /// Returns the present precedence. It still counts as unseen.
    pub fn get(&self) -> Precedence {
        self.shared.get()
    }

    /// Changes the precedence for all other watches; this one does not report the change.
    pub fn set(&mut self, precedence: Precedence) {
        self.seen = precedence;
        self.shared.set(precedence);
    }

    /// Ready with the present precedence once it differs from the one seen last. The task is woken
    /// at the next change in both cases.
    pub fn poll_changed(&mut self, cx: &Context<'_>) -> Poll<Precedence> {
        self.shared.wake_at_change(cx.waker());
        let now = self.shared.get();
        if now == self.seen {
            return Poll::Pending;
        }
        self.seen = now;
        Poll::Ready(now)
    }

    /// Waits for a change; cancel safe.
    pub async fn changed(&mut self) -> Precedence {
        std::future::poll_fn(|cx| self.poll_changed(cx)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn precedence_puts_any_request_before_any_push() {
        let lazy = Precedence::request(Priority(7));
        assert!(lazy < Precedence::push(Priority(0)));
        assert!(Precedence::default() < lazy);
    }

    #[test]
    fn watch_reports_changes_made_by_others() {
        let cx = Context::from_waker(Waker::noop());
        let shared = SharedPriority::default();
        let (mut one, mut other) = (shared.watch(), shared.watch());
        let urgent = Precedence::request(Priority(0));
        one.set(urgent);
        assert!(one.poll_changed(&cx).is_pending());
        assert_eq!(other.poll_changed(&cx), Poll::Ready(urgent));
        assert!(other.poll_changed(&cx).is_pending());
        assert!(shared.watch().poll_changed(&cx).is_pending());
    }

    #[test]
    fn set_wakes_each_watching_task_once() {
        let counts = [(); 3].map(|()| Arc::<Count>::default());
        let wakers = counts.clone().map(Waker::from);
        let shared = SharedPriority::new(Precedence::push(Priority(5)));
        for waker in wakers.iter().chain(&wakers) {
            let polled = shared.watch().poll_changed(&Context::from_waker(waker));
            assert!(polled.is_pending());
        }
        shared.set(Precedence::push(Priority(5)));
        let woken = |expected| {
            let woken = |count: &Arc<Count>| count.0.load(Ordering::Relaxed) == expected;
            counts.iter().all(woken)
        };
        assert!(woken(0), "nothing has changed");
        shared.set(Precedence::default());
        shared.set(Precedence::push(Priority(1)));
        assert!(woken(1), "a wake-up is asked for with each poll");
    }

    #[test]
    fn watch_that_reports_a_change_wakes_at_the_next() {
        let count = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&count));
        let shared = SharedPriority::default();
        let mut watch = shared.watch();
        shared.set(Precedence::push(Priority(5)));
        assert!(watch.poll_changed(&Context::from_waker(&waker)).is_ready());
        shared.set(Precedence::default());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
