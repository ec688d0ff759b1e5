//! The move of exchanges from a session over TCP that has stalled to another one by the same way.
//!
//! ```text
//!  stalled ─▶ another session is dialled ─▶ established: it takes the place of the old one
//!                  └── the old one delivers again: stay, and end the other
//! ```
//!
//! TCP reports nothing if the address of this machine has changed, or if a translator has forgotten
//! the connection. A connection that has stalled may also be one whose path rests for some seconds.
//! So the old session stays until the other one has answered, and exchanges that cannot move stay
//! on it. All exchanges of a session share the other one.
//!
//! This is for direct connections only. Behind a proxy, the kernel sees the acknowledgements of the
//! proxy, and a new circuit has a price.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::Gateways;
use super::refuge::until_permitted;
use crate::back::ways::Network;
use crate::exchange::Isolation;
use crate::metrics::METRICS;
use crate::session::{Connected, Probing};

/// The least time between two dials beside a session, and between two looks for a move of this
/// machine to another network.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest time between two dials. It doubles while no dial succeeds.
const MOST_AGAIN: Duration = Duration::from_secs(8);

/// A session that is opened beside one that has stalled.
pub(super) struct Beside {
    session: Rc<dyn Connected>,
    /// The network on which it was dialled.
    network: Network,
    begun: Instant,
    /// The time before another dial.
    pause: Duration,
    has_failed: Cell<bool>,
}

impl Gateways {
    /// Resolves when an exchange moves from a session over TCP that has stalled. A session over
    /// datagrams without another way is only probed.
    pub(super) async fn leave_stalled(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
        may_move: &impl Fn() -> bool,
    ) {
        let way = &self.gateways[index].way;
        // A session that fails tells its exchanges.
        if way.address.is_none() || session.established().await.is_err() {
            return std::future::pending().await;
        }
        let _watched = session.watch_path(Probing::Alone);
        if way.is_datagrams {
            return std::future::pending().await;
        }
        loop {
            session.silent().await;
            tokio::select! {
                biased;
                () = session.recovers() => {}
                () = self.until_replaced(isolation, index, session) => {
                    tokio::select! {
                        biased;
                        () = session.recovers() => {}
                        () = until_permitted(may_move) => return,
                    }
                }
            }
        }
    }

    /// Resolves once another session has taken the place of one that has stalled.
    async fn until_replaced(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
    ) {
        while !self.has_left(isolation, index, session) {
            let Some(beside) = self.beside(isolation, index, session) else {
                return;
            };
            if self.is_established(index, &beside).await {
                self.replace(isolation, index, session, &beside.session);
            } else {
                // The others who wait see this dial until then.
                tokio::time::sleep_until(beside.begun + beside.pause).await;
            }
        }
    }

    /// Returns the session that is opened beside another one, and dials it if there is none.
    fn beside(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
    ) -> Option<Rc<Beside>> {
        let key = (isolation.clone(), index);
        let earlier = {
            let slots = self.slots.borrow();
            let slot = slots.get(&key)?;
            let earlier = slot.beside.take();
            slot.beside.set(Weak::clone(&earlier));
            earlier.upgrade()
        };
        let is_current = |it: &Rc<Beside>| !it.has_failed.get() || it.begun.elapsed() < it.pause;
        if let Some(current) = earlier.as_ref().filter(|it| is_current(it)) {
            return Some(Rc::clone(current));
        }
        let pause = earlier.map_or(AGAIN, |it| (2 * it.pause).min(MOST_AGAIN));
        let beside = Rc::new(Beside {
            network: self.network(index),
            session: self.open(isolation, index),
            begun: Instant::now(),
            pause,
            has_failed: Cell::new(false),
        });
        let slots = self.slots.borrow();
        let slot = slots.get(&key);
        let slot = slot.filter(|slot| Rc::ptr_eq(&slot.current, session))?;
        slot.beside.set(Rc::downgrade(&beside));
        Some(beside)
    }

    /// Returns true once a session is established, and false if it fails. A dial from an address
    /// that this machine has no longer gets no answer.
    async fn is_established(&self, index: usize, beside: &Beside) -> bool {
        let mut established = beside.session.established();
        let is_established = loop {
            match tokio::time::timeout(AGAIN, &mut established).await {
                Ok(established) => break established.is_ok(),
                Err(_) if self.network(index) != beside.network => break false,
                Err(_) if beside.has_failed.get() => break false,
                Err(_) => {}
            }
        };
        beside.has_failed.set(!is_established);
        is_established
    }

    /// Gives the place of a session to another one, unless that has happened.
    fn replace(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
        next: &Rc<dyn Connected>,
    ) {
        if self.has_left(isolation, index, session) {
            return;
        }
        METRICS.sessions_lost.add(1);
        tracing::debug!("a connection delivers nothing, and another one to the gateway works");
        let key = (isolation.clone(), index);
        let slot = self.slot(Rc::clone(next), key.clone());
        self.slots.borrow_mut().insert(key, slot);
        session.drain();
    }
}
