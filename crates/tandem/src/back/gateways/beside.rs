//! The move of exchanges from a session over TCP that has stalled to another one by the same way.
//!
//! ```text
//!  stalled ─▶ another session is dialled ─▶ established: it takes the place of the old one
//!                  └── the old one delivers again: stay, and end the other
//! ```
//!
//! TCP reports nothing if the address of this machine has changed, or if a translator has forgotten
//! the connection. The path of a stalled connection may also be interrupted for some seconds only.
//! So the old session stays until the other one has answered, and exchanges that cannot move stay
//! on it. If it still delivers nothing after twice the time of its silence, it ends with them. All
//! exchanges of a session share the other one. After a move of this machine to another network, the
//! module [`moves`](super::moves) does not wait for a stall.
//!
//! A pool that drains dials nothing, since its gateways may be those of a former configuration.
//!
//! A session whose early data have no answer after two seconds is replaced likewise. Early data
//! leave before the address has answered, so that the dial cannot tell that the gateway has moved.
//! The other session sends none, and its dial tries all addresses of the gateway's name.
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
use crate::session::{Connected, PathWaiter, Probing};
use crate::transport::addresses::NEXT_ADDRESS;

/// The least time between two dials beside a session, and between two looks for a move of this
/// machine to another network.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest time between two dials. It doubles while no dial succeeds.
pub(super) const MOST_AGAIN: Duration = Duration::from_secs(8);

/// A session that is opened beside one that has stalled.
struct Beside {
    session: Rc<dyn Connected>,
    /// The network on which it was dialled.
    network: Network,
    has_failed: Cell<bool>,
}

/// The last dial beside a session.
#[derive(Clone, Copy)]
struct LastDial {
    begun: Instant,
    network: Network,
    /// The time before another dial on the same network.
    pause: Duration,
}

/// The dials beside one session. The exchanges that wait for one of them keep it.
#[derive(Default)]
pub(super) struct Dials {
    current: Cell<Weak<Beside>>,
    last: Cell<Option<LastDial>>,
}

impl Dials {
    /// Returns the dial that is under way.
    fn current(&self) -> Option<Rc<Beside>> {
        let current = self.current.take();
        self.current.set(Weak::clone(&current));
        current.upgrade().filter(|it| !it.has_failed.get())
    }

    /// Returns the pause after a dial that begins now, or the rest of the present pause as an
    /// error. A pause is over when this machine moves to another network.
    fn pause(&self, network: Network) -> Result<Duration, Duration> {
        let last = self.last.get().filter(|last| last.network == network);
        let Some(last) = last else { return Ok(AGAIN) };
        let elapsed = last.begun.elapsed();
        match last.pause.saturating_sub(elapsed) {
            // The session has delivered since.
            Duration::ZERO if elapsed > 2 * MOST_AGAIN => Ok(AGAIN),
            Duration::ZERO => Ok((2 * last.pause).min(MOST_AGAIN)),
            rest => Err(rest),
        }
    }
}

impl Gateways {
    /// Resolves when an exchange moves from a session over TCP that has stalled, or from one whose
    /// early data have no answer. A session over datagrams without another way is only probed once
    /// it is established.
    pub(super) async fn leave_stalled(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
        may_move: &impl Fn() -> bool,
        watched: &mut Option<PathWaiter>,
    ) {
        let way = &self.gateways[index].way;
        if way.addresses.is_none() {
            return std::future::pending().await;
        }
        tokio::select! {
            biased;
            established = session.established() => if established.is_err() {
                // A session that fails tells its exchanges.
                return std::future::pending().await;
            },
            () = self.until_answered_elsewhere(isolation, index, session) => {
                return until_permitted(may_move).await;
            }
        }
        if watched.is_none() {
            *watched = session.watch_path(Probing::Alone);
        }
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

    /// Resolves once another session has taken the place of one whose early data have no answer, if
    /// the user permits the look-up of the gateway's name. A given address stays the same.
    pub(super) async fn until_answered_elsewhere(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
    ) {
        let way = &self.gateways[index].way;
        let addresses = way.addresses.as_ref();
        let has_name = addresses.is_some_and(|it| it.as_given().is_none());
        if has_name && way.is_datagrams && session.takes_early().await.is_ok() {
            if !session.is_established() {
                tokio::time::sleep(NEXT_ADDRESS).await;
            }
            let facts = session.facts();
            let received = facts.and_then(|facts| facts.datagrams_received());
            if !session.is_established() && received.is_none_or(|count| count == 0) {
                return self.until_replaced(isolation, index, session).await;
            }
        }
        std::future::pending().await
    }

    /// Resolves once another session that is established has taken the place of one that has
    /// stalled. A pool that drains dials nothing, and resolves at once: responses whose rest goes
    /// by the next configuration leave then.
    async fn until_replaced(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
    ) {
        while !self.draining.get() {
            if self.has_left(isolation, index, session) {
                if self.has_open_way(isolation, index) {
                    return;
                }
                let next = self.session(isolation, index);
                let _ = tokio::time::timeout(AGAIN, next.established()).await;
                if !self.has_open_way(isolation, index) {
                    tokio::time::sleep(AGAIN).await;
                }
                continue;
            }
            match self.beside(isolation, index, session) {
                Ok(beside) => {
                    if self.is_established(index, &beside).await {
                        self.replace(isolation, index, session, &beside.session);
                    }
                }
                Err(rest) => tokio::time::sleep(rest.min(AGAIN)).await,
            }
        }
    }

    /// Returns true if a session by any way to the gateway takes the requests of a key.
    pub(super) fn has_open_way(&self, isolation: &Isolation, index: usize) -> bool {
        let group = self.group(index);
        group.is_some_and(|group| group.entries().any(|of| self.is_open(isolation, of)))
    }

    /// Returns the session that is opened beside another one, and dials it if there is none.
    /// Returns the time before the next dial as an error.
    fn beside(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
    ) -> Result<Rc<Beside>, Duration> {
        let key = (isolation.clone(), index);
        let (slots, network) = (self.slots.borrow(), self.network(index));
        let slot = slots.get(&key);
        let slot = slot.filter(|slot| Rc::ptr_eq(&slot.current, session));
        let dials = &slot.ok_or(AGAIN)?.dials;
        if let Some(current) = dials.current() {
            return Ok(current);
        }
        let pause = dials.pause(network)?;
        if !session.is_established() {
            // The next address comes first now, and the name is looked up again.
            self.gateways[index].transport.failed(isolation);
        }
        let beside = Rc::new(Beside {
            network,
            session: self.open(isolation, index),
            has_failed: Cell::new(false),
        });
        dials.current.set(Rc::downgrade(&beside));
        dials.last.set(Some(LastDial {
            begun: Instant::now(),
            network,
            pause,
        }));
        Ok(beside)
    }

    /// Returns true once a session is established, and false if it fails. A dial from an address
    /// that this machine has no longer gets no answer.
    async fn is_established(&self, index: usize, beside: &Beside) -> bool {
        let mut established = beside.session.established();
        let is_established = loop {
            match tokio::time::timeout(AGAIN, &mut established).await {
                Ok(established) => break established.is_ok(),
                Err(_) if self.draining.get() => break false,
                Err(_) if self.network(index) != beside.network => break false,
                Err(_) if beside.has_failed.get() => break false,
                Err(_) => {}
            }
        };
        if !is_established && !beside.has_failed.replace(true) {
            METRICS.sessions_failed.add(1);
            tracing::debug!("no other connection to the gateway works");
        }
        is_established
    }

    /// Gives the place of a session to another one, unless that has happened or the pool drains.
    fn replace(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
        next: &Rc<dyn Connected>,
    ) {
        if self.draining.get() || self.has_left(isolation, index, session) {
            return;
        }
        METRICS.sessions_lost.add(1);
        tracing::debug!("a connection delivers nothing, and another one to the gateway works");
        let key = (isolation.clone(), index);
        let slot = self.slot(Rc::clone(next), key.clone());
        self.slots.borrow_mut().insert(key, slot);
        session.replaced();
    }
}
