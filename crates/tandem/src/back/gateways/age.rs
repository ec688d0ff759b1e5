//! The age of sessions, at which others replace them.

use std::rc::{Rc, Weak};

use super::Gateways;
use super::ready::introduce;
use crate::exchange::Isolation;
use crate::metrics::METRICS;
use crate::session::Task;

impl Gateways {
    /// Returns the task that replaces a session when it is old.
    pub(super) fn rotation(&self, key: (Isolation, usize)) -> Option<Task> {
        let age = self.limits.max_age?;
        let this = self.this.clone();
        Some(Task::spawn(async move {
            tokio::time::sleep(age).await;
            // The rotation runs in a separate task, because the swap ends this one.
            tokio::task::spawn_local(rotate(this, key));
        }))
    }
}

/// Opens the next session before the old one, which is still in use, stops taking requests.
async fn rotate(pool: Weak<Gateways>, key: (Isolation, usize)) {
    let Some(pool) = pool.upgrade() else { return };
    let Some(old) = pool
        .slots
        .borrow()
        .get(&key)
        .map(|slot| Rc::clone(&slot.current))
    else {
        return;
    };
    METRICS.sessions_rotated.add(1);
    if old.active() > 0 {
        let next = pool.open(&key.0, key.1);
        if introduce(Rc::clone(&next)).await.is_ok() {
            let slot = pool.slot(next, key.clone());
            let mut slots = pool.slots.borrow_mut();
            if slots
                .get(&key)
                .is_some_and(|slot| Rc::ptr_eq(&slot.current, &old))
            {
                slots.insert(key, slot);
            }
        } else {
            pool.forget(&key, &old);
        }
    } else {
        pool.forget(&key, &old);
    }
    old.drain();
}
