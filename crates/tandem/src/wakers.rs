//! The tasks that wait for a change of state on the same thread.

use std::cell::Cell;
use std::fmt;
use std::task::Waker;

/// The waker of the one task that waits for a change, if there is one.
#[derive(Default)]
pub struct WakerCell(Cell<Option<Waker>>);

impl WakerCell {
    /// Notes the task to wake at the next change, in place of the one before.
    pub fn set(&self, waker: &Waker) {
        let known = self.0.take().filter(|known| known.will_wake(waker));
        self.0.set(Some(known.unwrap_or_else(|| waker.clone())));
    }

    /// Wakes the task, and forgets it.
    pub fn wake(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

impl fmt::Debug for WakerCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakerCell")
    }
}

/// The wakers of all tasks that wait for a change.
#[derive(Default)]
pub struct WakerQueue(Cell<Vec<Waker>>);

impl WakerQueue {
    /// Adds a task to wake at the next change.
    pub fn add(&self, waker: &Waker) {
        let mut wakers = self.0.take();
        wakers.push(waker.clone());
        self.0.set(wakers);
    }

    /// Wakes the tasks in the order in which they were added, and forgets them.
    pub fn wake_all(&self) {
        for waker in self.0.take() {
            waker.wake();
        }
    }

    /// Returns true if no task waits.
    pub fn is_empty(&self) -> bool {
        let wakers = self.0.take();
        let is_empty = wakers.is_empty();
        self.0.set(wakers);
        is_empty
    }
}

impl fmt::Debug for WakerQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakerQueue")
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

    fn counted() -> (Arc<Count>, Waker) {
        let count = Arc::<Count>::default();
        (Arc::clone(&count), Waker::from(count))
    }

    #[test]
    fn cell_wakes_the_last_task_once() {
        let ((first, one), (second, other)) = (counted(), counted());
        let cell = WakerCell::default();
        cell.set(&one);
        cell.set(&other);
        cell.set(&other);
        assert_eq!(Arc::strong_count(&first), 2, "the first waker is gone");
        assert_eq!(Arc::strong_count(&second), 3, "the second is kept once");
        cell.wake();
        cell.wake();
        let woken = [first, second].map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(woken, [0, 1]);
    }

    #[test]
    fn queue_wakes_every_task() {
        let ((first, one), (second, other)) = (counted(), counted());
        let queue = WakerQueue::default();
        assert!(queue.is_empty());
        queue.add(&one);
        queue.add(&other);
        assert!(!queue.is_empty());
        queue.wake_all();
        assert!(queue.is_empty());
        queue.wake_all();
        let woken = [first, second].map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(woken, [1, 1]);
    }
}
