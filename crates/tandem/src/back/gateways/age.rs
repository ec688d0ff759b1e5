//! The age of sessions, at which others replace them.
//!
//! Each session has an age of its own. Sessions of the same age would give each key a rhythm, by
//! which a gateway could recognise the key over several circuits.

use std::rc::{Rc, Weak};
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};

use super::Gateways;
use super::ready::introduce;
use crate::exchange::Isolation;
use crate::metrics::METRICS;
use crate::session::Task;

/// The largest difference from the configured age, as a part of it.
const SPREAD: f64 = 0.2;

/// Returns an age near the configured one, at random.
pub(super) fn near(age: Duration) -> Duration {
    let mut random = [0; 4];
    // Without random numbers of the system, TLS fails as well.
    let _ = SystemRandom::new().fill(&mut random);
    spread(age, u32::from_be_bytes(random))
}

fn spread(age: Duration, random: u32) -> Duration {
    let place = f64::from(random) / f64::from(u32::MAX);
    age.mul_f64(1.0 + SPREAD * (2.0 * place - 1.0))
}

impl Gateways {
    /// Returns the task that replaces a session when it is old.
    pub(super) fn rotation(&self, key: (Isolation, usize)) -> Option<Task> {
        let age = near(self.limits.max_age?);
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
    // A pool that drains opens no session for later requests.
    let is_needed = old.active() > 0 && !pool.draining.get();
    let next = is_needed.then(|| pool.open(&key.0, key.1));
    let next = match next {
        Some(next) if introduce(Rc::clone(&next)).await.is_ok() => Some(next),
        _ => None,
    };
    match next {
        Some(next) if !pool.draining.get() => {
            let slot = pool.slot(next, key.clone());
            let mut slots = pool.slots.borrow_mut();
            if slots
                .get(&key)
                .is_some_and(|slot| Rc::ptr_eq(&slot.current, &old))
            {
                slots.insert(key, slot);
            }
        }
        next => {
            next.iter().for_each(|next| next.drain());
            pool.forget(&key, &old);
        }
    }
    old.drain();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_within_their_bounds() {
        let age = Duration::from_secs(1000);
        assert_eq!(spread(age, 0), Duration::from_secs(800));
        assert_eq!(spread(age, u32::MAX), Duration::from_secs(1200));
        let ages: Vec<_> = (0..16).map(|_| near(age)).collect();
        assert!(ages.iter().any(|other| *other != ages[0]), "{ages:?}");
    }
}
