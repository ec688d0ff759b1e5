//! The move of this machine to another network, as sessions over TCP notice it.
//!
//! ```text
//!  other source address ─▶ another session is dialled, and gets all new requests
//!                      └─▶ the former one is asked ─▶ it answers: its exchanges stay
//!                                                 └─▶ no answer, and the other one works: it ends
//! ```
//!
//! TCP does not follow a move, and reports nothing. A tunnel cannot continue on another session, so
//! its browser has to connect again, and does so once the tunnel has ended. A browser without a
//! proxy ends its connections at each such change. But the former network may still work, for
//! example after a machine has got another address beside the first one. So the session is asked
//! before it ends. A machine without a network keeps its sessions, since its address may come back.
//!
//! This is for direct connections only. A proxy on this machine does not move. It ends its
//! connections when its own path is lost, and a new circuit has a price. Sessions that are asked at
//! the same time would also show gateways which isolation keys belong to one machine.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::beside::MOST_AGAIN;
use super::refuge::probe_timeout;
use super::{Gateways, SessionUsage};
use crate::back::ways::Network;
use crate::exchange::Isolation;
use crate::metrics::METRICS;
use crate::session::{Connected, Task};

/// The time between two looks at the source address of a session that is in use.
const LOOK: Duration = Duration::from_secs(1);
/// The age of the last look at which a request looks again. A look takes some microseconds.
const REQUEST_LOOK: Duration = Duration::from_millis(100);
/// The polling interval for the progress of a session that was asked.
const PROGRESS_LOOK: Duration = Duration::from_millis(250);
/// The least time between the first two moves that count. It doubles with each further move, and a
/// quiet time of twice [`MOST_PAUSE`] resets it.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// The most time between two moves that count. The source address may also change all the time, for
/// example with two default routes of equal cost.
const MOST_PAUSE: Duration = Duration::from_secs(64);

/// The source address of a session, as the looks have found it.
#[derive(Default)]
pub(super) struct Source {
    /// The address from which this machine sends to the other end, if it has been seen.
    address: Cell<Network>,
    looked: Cell<Option<Instant>>,
    /// The time of the last move, and the time before another one counts.
    moved: Cell<Option<(Instant, Duration)>>,
    /// Notified when an exchange begins.
    used: Notify,
}

impl Source {
    /// Notes that the session carries another exchange.
    pub(super) fn is_used(&self) {
        self.used.notify_one();
    }

    /// Returns true if another address is a move, and notes it. One that is too early for that is
    /// still another address at a later look.
    fn has_moved(&self, address: Network) -> bool {
        let before = self.address.get();
        let has_moved = before.is_some() && before != address;
        if has_moved {
            let pause = match self.moved.get() {
                Some((at, pause)) if at.elapsed() < pause => return false,
                Some((at, pause)) if at.elapsed() < 2 * MOST_PAUSE => (2 * pause).min(MOST_PAUSE),
                _ => LEAST_PAUSE,
            };
            self.moved.set(Some((Instant::now(), pause)));
        }
        self.address.set(address);
        has_moved
    }
}

impl Gateways {
    /// Returns the task that looks for a move while a direct session over TCP is in use.
    pub(super) fn follow_moves(
        &self,
        key: &(Isolation, usize),
        session: &Rc<dyn Connected>,
        usage: &Rc<SessionUsage>,
        source: &Rc<Source>,
    ) -> Option<Task> {
        let way = &self.gateways[key.1].way;
        if way.is_datagrams || way.addresses.is_none() {
            return None;
        }
        let (pool, key, session) = (self.this.clone(), key.clone(), Rc::clone(session));
        let (usage, source) = (Rc::clone(usage), Rc::clone(source));
        Some(Task::spawn(async move {
            if session.established().await.is_err() {
                return;
            }
            drop(session);
            while let Some(pool) = pool.upgrade() {
                pool.look_for_move(&key);
                drop(pool);
                while usage.exchanges.get() == 0 {
                    source.used.notified().await;
                }
                sleep(LOOK).await;
            }
        }))
    }

    /// Looks for a move before a request takes the session of a key, unless that was done just now.
    pub(super) fn look_before_request(&self, key: &(Isolation, usize)) {
        let slots = self.slots.borrow();
        let looked = slots.get(key).and_then(|slot| slot.source.looked.get());
        drop(slots);
        if looked.is_some_and(|looked| looked.elapsed() >= REQUEST_LOOK) {
            self.look_for_move(key);
        }
    }

    /// Looks whether this machine sends from another address to the other end of a session now.
    fn look_for_move(&self, key: &(Isolation, usize)) {
        let slots = self.slots.borrow();
        let Some(slot) = slots.get(key) else { return };
        let facts = slot.current.facts();
        let Some(peer) = facts.and_then(|facts| facts.peer_address()) else {
            return;
        };
        slot.source.looked.set(Some(Instant::now()));
        let address = (self.source.get())(peer);
        if address.is_some() && slot.source.has_moved(address) {
            let former = Rc::clone(&slot.current);
            drop(slots);
            self.moved(key, former);
        }
    }

    /// Gives the place of a session to another one, and asks the former one. A pool that drains
    /// only asks.
    fn moved(&self, key: &(Isolation, usize), former: Rc<dyn Connected>) {
        tracing::debug!("this machine has moved to another network");
        if !self.draining.get() {
            let next = self.open(&key.0, key.1);
            let slot = self.slot(next, key.clone());
            let mut slots = self.slots.borrow_mut();
            if let Some(before) = slots.get(key) {
                slot.is_spare.set(before.is_spare.get());
                slot.source.moved.set(before.source.moved.get());
            }
            slots.insert(key.clone(), slot);
        }
        if former.active() == 0 {
            return former.give_up();
        }
        let (pool, key) = (self.this.clone(), key.clone());
        tokio::task::spawn_local(async move {
            let is_lost = tokio::select! {
                biased;
                // A session that has ended itself needs no answer.
                _ = former.answers() => false,
                () = async {
                    until_unanswered(&*former).await;
                    until_open(&pool, &key, &*former).await;
                } => true,
            };
            if is_lost {
                METRICS.sessions_lost.add(1);
                tracing::debug!("a connection does not work on the present network");
                return former.give_up();
            }
            // The client connects again if it has no session.
            until_open(&pool, &key, &*former).await;
            former.drain();
        });
    }
}

/// Resolves once a session has had enough time for an answer. Progress shows a path that is slow or
/// has long queues, in which the PING or its answer waits. Bytes that were on their way soon end.
async fn until_unanswered(session: &dyn Connected) {
    let progress = || {
        let facts = session.facts()?;
        Some(facts.bytes_received()? + facts.bytes_acknowledged()?)
    };
    let limit = probe_timeout(session);
    let (mut since, mut before) = (Instant::now(), progress());
    while since.elapsed() < limit {
        sleep(PROGRESS_LOOK).await;
        let count = progress();
        if count != before {
            (since, before) = (Instant::now(), count);
        }
    }
}

/// Resolves once a session of a key works on the present network, or the former one has no
/// exchange.
async fn until_open(pool: &Weak<Gateways>, key: &(Isolation, usize), former: &dyn Connected) {
    let mut pause = LOOK;
    while let Some(strong) = pool.upgrade().filter(|pool| !pool.draining.get())
        && former.active() > 0
    {
        if strong.has_open_way(&key.0, key.1) {
            return;
        }
        let (next, again) = (strong.session(&key.0, key.1), Instant::now() + pause);
        drop(strong);
        match timeout(LOOK, next.established()).await {
            Ok(Ok(())) if !next.is_closed() => {}
            // A dial is under way.
            Err(_) => {}
            _ => {
                sleep_until(again).await;
                pause = (2 * pause).min(MOST_AGAIN);
            }
        }
    }
}
