//! Wakers of several tasks behind one.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// Wakes all tasks that wait for the same event. A future that is polled by several tasks keeps
/// this one waker.
#[derive(Debug, Default)]
pub(crate) struct Wakers(Mutex<Vec<Waker>>);

impl Wakers {
    /// Adds the task of `cx`, and returns the waker for the future.
    pub(crate) fn join(self: &Arc<Self>, cx: &Context<'_>) -> Waker {
        let mut wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Waker::from(Arc::clone(self))
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = std::mem::take(&mut *wakers);
        drop(wakers);
        woken.into_iter().for_each(Waker::wake);
    }
}
