//! The move of exchanges from a session over datagrams that has fallen silent to one over TCP, the
//! refuge.
//!
//! ```text
//!  silent ─▶ check of the refuge ─▶ answered, and the path is dead ─▶ doubted ─▶ broken
//!                  └── a datagram arrives: stay, and end the check ◀─────┘
//! ```
//!
//! The refuge is dialled, or probed if it is open. Exchanges move there once it has answered and
//! further probes of the silent session have had no answer. All exchanges of a key share the check.
//! An exchange whose response has begun stays, because the path may come back. If its reader can
//! request the rest, the pool proposes that (`Sink::proposal`), and watches the path on. The reader
//! stays if the rest is refused, and may permit another proposal. The session is only doubted then:
//! two more probes decide whether it takes requests again, or is broken and suspended. A gap of
//! half a second, as between satellites, thus ends no session. A session that is doubted for the
//! third time within a minute is broken too.
//!
//! The last exchange that waits closes a refuge that none of them needed. A network may forget the
//! address of an idle session, so that such a session says nothing about its way.
//!
//! Before a session is established, its first datagrams may be lost. Requests move to the refuge
//! then, and [`observe`](super::choice::observe) decides whether the way works.

mod check;

use std::cell::Cell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::Gateways;
use super::choice::WayGroup;
use crate::back::ways::{Network, STAGGER};
use crate::error::{Error, Kind, Side};
use crate::exchange::Isolation;
use crate::metrics::METRICS;
use crate::session::{Connected, PathWaiter, Probing};
pub(super) use check::Checks;
use check::{AGAIN, Check, Outcome};

/// The probes of a doubted session, each with the time of `Ways::stagger` for its answer.
pub(super) const CONFIRMATIONS: usize = 2;
/// The time within which the third doubt about a session breaks it.
pub(super) const DOUBT_MEMORY: Duration = Duration::from_secs(60);
/// The refuges that one check tries. Each of them replaces one that leads nowhere.
const ATTEMPTS: usize = 3;
/// The shortest and the longest wait for the answer of an open refuge, which has three of its first
/// round trips. These are the limits for a session that was idle, too.
const LEAST_PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const MOST_PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two looks for a datagram on the silent path.
const LOOK: Duration = Duration::from_millis(20);

/// The reason for which an exchange leaves its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The silence of a way over datagrams, while TCP answers.
    Silent,
    /// The network throttles datagrams.
    Throttled,
    /// The session was lost while it was idle.
    Lost,
}

/// An exchange that may move to a refuge. The last one of a check closes the refuge if it is not
/// needed.
struct Waiting<'a> {
    pool: &'a Gateways,
    isolation: &'a Isolation,
    ways: [usize; 2],
    check: &'a Check,
}

impl<'a> Waiting<'a> {
    fn begin(
        pool: &'a Gateways,
        isolation: &'a Isolation,
        ways: [usize; 2],
        check: &'a Check,
    ) -> Self {
        check.waiters.set(check.waiters.get() + 1);
        Self {
            pool,
            isolation,
            ways,
            check,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.check.waiters.set(self.check.waiters.get() - 1);
        self.pool
            .end_unneeded(self.isolation, self.ways, self.check);
    }
}

/// A session over datagrams that takes no requests until it answers a probe.
struct Doubted {
    pool: Weak<Gateways>,
    key: (Isolation, usize),
    session: Rc<dyn Connected>,
    /// The mark of the session's slot.
    doubted: Rc<Cell<bool>>,
    opened_on: Network,
    /// The refuge, if this session has fallen silent itself.
    silent_beside: Option<usize>,
    /// True if the session was idle for long, and a network may have forgotten its address.
    was_idle: bool,
}

impl Doubted {
    /// Probes the session. It takes requests again, or leaves its key.
    async fn confirm(self, limit: Duration) {
        let (isolation, index) = &self.key;
        for _ in 0..CONFIRMATIONS {
            match tokio::time::timeout(limit, self.session.answers()).await {
                Ok(Ok(())) => {
                    self.doubted.set(false);
                    if let (Some(pool), Some(other)) = (self.pool.upgrade(), self.silent_beside) {
                        pool.end_spare(isolation, other);
                        pool.returned(*index, other);
                    }
                    return;
                }
                // The session has ended, which says nothing about the way.
                Ok(Err(_)) => return,
                Err(_) => {}
            }
        }
        // This end may have closed the session since.
        let Some(pool) = self.pool.upgrade() else {
            return;
        };
        if !pool.retire(&self.key, &self.session) {
            return;
        }
        if let Some(other) = self.silent_beside.filter(|_| !self.was_idle) {
            pool.broke(*index, self.opened_on, other);
        }
    }
}

impl Gateways {
    /// Resolves when an exchange should move from a session that has fallen silent: another way, or
    /// another session over TCP, has answered, and `may_move` permits it. `watched` keeps the watch
    /// of the path until the exchange ends.
    pub(super) async fn leave(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
        may_move: impl Fn() -> bool,
        watched: &mut Option<PathWaiter>,
    ) -> Left {
        let Some(other) = self.refuge(index) else {
            self.leave_stalled(isolation, index, session, &may_move, watched)
                .await;
            return Left::Silent;
        };
        let throttled = async {
            self.until_throttled(index).await;
            until_permitted(&may_move).await;
        };
        let silent = self.leave_silence(isolation, [index, other], session, &may_move, watched);
        // Both go on together, so that no verdict is missed.
        tokio::select! {
            () = throttled => Left::Throttled,
            () = silent => Left::Silent,
        }
    }

    /// Resolves as [`Self::leave`] does, once the reader has all parts that have arrived.
    /// `has_part` tells whether one waits for it.
    pub(super) async fn leave_when_read(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
        may_move: impl Fn() -> bool,
        has_part: impl Fn() -> bool,
        watched: &mut Option<PathWaiter>,
    ) -> Left {
        loop {
            let left = self.leave(isolation, index, session, &may_move, watched);
            let left = left.await;
            let before = datagrams(&**session);
            // The reader polls again after each part.
            let read = poll_fn(|_| match has_part() {
                true => Poll::Pending,
                false => Poll::Ready(()),
            });
            read.await;
            // A slow reader may take so long that the path is back.
            if left != Left::Silent || !has_received(&**session, before) {
                return left;
            }
        }
    }

    /// Resolves when an exchange moves from a session that has fallen silent.
    async fn leave_silence(
        &self,
        isolation: &Isolation,
        [index, other]: [usize; 2],
        session: &Rc<dyn Connected>,
        may_move: &impl Fn() -> bool,
        watched: &mut Option<PathWaiter>,
    ) {
        let opened_on = self.opened_on(isolation, index, session);
        loop {
            self.until_silent(index, session, watched).await;
            let before = datagrams(&**session);
            // A response that goes on stays.
            let may_leave = || may_move() && !has_received(&**session, before);
            if self.draining.get() {
                // The refuge may lead to a gateway of a former configuration.
                if session.dies().await && until_left(&**session, &may_leave).await {
                    return;
                }
                continue;
            }
            let check = self.check(isolation, [index, other], session);
            if check.has_failed() {
                self.until_next(&check, other).await;
                continue;
            }
            let _waiting = Waiting::begin(self, isolation, [index, other], &check);
            // The path is watched meanwhile.
            let (answered, is_dead) = tokio::join!(check.answered(), session.dies());
            if !is_dead || has_received(&**session, before) {
                continue;
            }
            if answered {
                self.doubt(isolation, index, session, opened_on, other);
                if may_move() {
                    return;
                }
            }
            self.until_next(&check, other).await;
            let has_left = answered && self.has_left(isolation, index, session);
            if has_left && until_left(&**session, &may_leave).await {
                return;
            }
        }
    }

    /// Waits for the time of the check after `check`, or a move to another network.
    async fn until_next(&self, check: &Check, other: usize) {
        while let Some(rest) = check.rest(self.network(other)) {
            tokio::time::sleep(rest.min(AGAIN)).await;
        }
    }

    /// Returns the check of a refuge that is under way or was made just now, or begins one. It ends
    /// early if the silent session receives a datagram.
    fn check(
        &self,
        isolation: &Isolation,
        [index, other]: [usize; 2],
        silent: &Rc<dyn Connected>,
    ) -> Rc<Check> {
        let key = (isolation.clone(), other);
        let mut checks = self.checks.0.borrow_mut();
        let network = self.network(other);
        // To ask for a network is a system call.
        let mut networks = HashMap::from([(other, network)]);
        checks.retain(|(_, of), check| {
            let network = networks.entry(*of).or_insert_with(|| self.network(*of));
            check.is_remembered(*network)
        });
        let earlier = checks.get(&key);
        if let Some(check) = earlier.filter(|check| check.is_fresh(network)) {
            return Rc::clone(check);
        }
        let check = Rc::new(Check::after(earlier.map(|check| &**check), network));
        checks.insert(key.clone(), Rc::clone(&check));
        let (pool, silent, own) = (self.this.clone(), Rc::clone(silent), Rc::clone(&check));
        tokio::task::spawn_local(async move {
            let before = datagrams(&*silent);
            let result = tokio::select! {
                biased;
                // The key is no longer used, and its sessions are drained.
                _ = own.answered() => return,
                answered = until_answered(&pool, &key) => match answered {
                    true => Outcome::Answered,
                    false => Outcome::Unanswered,
                },
                () = until_received(&*silent, before) => Outcome::Spared,
            };
            own.end(result);
            if let Some(pool) = pool.upgrade() {
                pool.end_unneeded(&key.0, [index, other], &own);
            }
        });
        check
    }

    /// Drains the refuge of a check that has ended, once no exchange waits for it any more. It is
    /// needed if the silent session takes no requests.
    fn end_unneeded(&self, isolation: &Isolation, [index, other]: [usize; 2], check: &Check) {
        let is_over = check.ended.get().is_some() && check.waiters.get() == 0;
        if is_over && self.is_open(isolation, index) {
            self.end_spare(isolation, other);
        }
    }

    /// Drains a refuge that no exchange needed.
    fn end_spare(&self, isolation: &Isolation, other: usize) {
        self.close_all(|of, index, slot| {
            let is_unused = !slot.usage.has_carried.get() && slot.usage.exchanges.get() == 0;
            of == isolation && index == other && slot.is_spare.get() && is_unused
        });
    }

    /// Lets a silent session take no more requests while another way works, until further probes
    /// show whether it is broken. The other sessions over datagrams of the key must answer a probe
    /// too, since the same network carries them.
    fn doubt(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
        opened_on: Network,
        other: usize,
    ) {
        if self.network(index) != opened_on {
            return self.broke(index, opened_on, other);
        }
        // The datagrams of its handshake may be lost, and its way is judged elsewhere.
        if !session.is_established() || self.has_left(isolation, index, session) {
            return;
        }
        let key = (isolation.clone(), index);
        if self.is_doubted_often(&key) {
            // The way may have failed for another key before.
            self.retire(&key, session);
            return self.broke(index, opened_on, other);
        }
        let Some(group) = self.group(index) else {
            return;
        };
        let slots = self.slots.borrow();
        for of in group
            .entries()
            .filter(|of| self.gateways[*of].way.is_datagrams)
        {
            let key = (isolation.clone(), of);
            let Some(slot) = slots.get(&key) else {
                continue;
            };
            let takes = slot.current.is_established() && !slot.current.is_closed();
            if !(of == index || takes) || slot.doubted.replace(true) {
                continue;
            }
            let doubted = Doubted {
                pool: self.this.clone(),
                key,
                session: Rc::clone(&slot.current),
                doubted: Rc::clone(&slot.doubted),
                opened_on,
                silent_beside: (of == index).then_some(other),
                was_idle: slot.current.was_idle(),
            };
            tokio::task::spawn_local(doubted.confirm(self.stagger(of)));
            if of == index && group.is_first_doubt() {
                let protocol = |of: usize| self.gateways[of].announcer.protocol();
                tracing::info!(
                    "gateway {}: nothing arrives by {}, and requests go by {}",
                    self.gateways[index].target.host,
                    protocol(index),
                    protocol(other)
                );
            }
        }
    }

    /// Lets new keys prefer a way over datagrams again, whose session was in doubt.
    fn returned(&self, index: usize, other: usize) {
        let works = |group: &WayGroup| {
            let way = index - group.first;
            !group.ways.borrow().has_failed(self.network(index), way)
        };
        if self.preferred.get() == other && self.group(index).is_some_and(works) {
            self.preferred.set(index);
        }
    }

    /// Removes a session from its key, and drains it. Returns false if the key has it no longer.
    fn retire(&self, key: &(Isolation, usize), session: &Rc<dyn Connected>) -> bool {
        let had = self.forget(key, session).is_some();
        if had {
            session.drain();
        }
        had
    }

    /// Notes another doubt about a session. Returns true for the third one within a minute.
    fn is_doubted_often(&self, key: &(Isolation, usize)) -> bool {
        let slots = self.slots.borrow();
        let Some(slot) = slots.get(key).filter(|slot| !slot.doubted.get()) else {
            return false;
        };
        let now = Instant::now();
        let [before, last] = slot.doubts.get();
        slot.doubts.set([last, Some(now)]);
        before.is_some_and(|before| now - before < DOUBT_MEMORY)
    }

    /// Returns the time for an answer of a way.
    fn stagger(&self, index: usize) -> Duration {
        let network = self.network(index);
        let group = self.group(index);
        group.map_or(STAGGER, |it| it.ways.borrow().stagger(network))
    }

    /// Returns true if a key has another session by this way, or none.
    pub(super) fn has_left(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
    ) -> bool {
        let slots = self.slots.borrow();
        let slot = slots.get(&(isolation.clone(), index));
        slot.is_none_or(|slot| !Rc::ptr_eq(&slot.current, session))
    }

    /// Resolves if a session has fallen silent, or has not answered its early data in time.
    async fn until_silent(
        &self,
        index: usize,
        session: &Rc<dyn Connected>,
        watched: &mut Option<PathWaiter>,
    ) {
        if !session.is_established() {
            let limit = self.stagger(index);
            let established = tokio::time::timeout(limit, session.established());
            if established.await.is_err() {
                return;
            }
        }
        if watched.is_none() {
            *watched = session.watch_path(Probing::Eager);
        }
        session.silent().await;
    }

    /// Returns the way to which exchanges move from a way over datagrams: the first one over TCP.
    pub(super) fn refuge(&self, index: usize) -> Option<usize> {
        let group = self.group(index)?;
        if !self.gateways[index].way.is_datagrams {
            return None;
        }
        let mut all = group.entries();
        all.find(|other| !self.gateways[*other].way.is_datagrams)
    }

    /// Returns the network on which a session was opened.
    fn opened_on(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
    ) -> Network {
        let slots = self.slots.borrow();
        let slot = slots.get(&(isolation.clone(), index));
        let slot = slot.filter(|slot| Rc::ptr_eq(&slot.current, session));
        slot.map_or_else(|| self.network(index), |slot| slot.network)
    }

    /// Notes that a way has fallen silent while another one works. Its sessions take no more
    /// requests. If this machine has moved since the session was opened, only the sessions of other
    /// networks are closed: the way may work on the present one.
    fn broke(&self, index: usize, opened_on: Network, other: usize) {
        let Some(group) = self.group(index) else {
            return;
        };
        let (network, way) = (self.network(index), index - group.first);
        if network != opened_on {
            return self.close_all(|_, of, slot| of == index && slot.network != network);
        }
        if group.ways.borrow().has_failed(network, way) {
            return;
        }
        METRICS.ways_broken.add(1);
        let error = Error::new(Kind::Timeout, Side::Peer, "its path has fallen silent");
        self.way_failed(index, opened_on, &error);
        self.preferred.set(other);
        self.close_all(|_, of, _| of == index);
    }
}

/// Returns true once the refuge of a key has answered, and false if it does not answer. An open one
/// that gives no answer in time, or was opened on another network, is replaced.
async fn until_answered(pool: &Weak<Gateways>, key: &(Isolation, usize)) -> bool {
    let (isolation, other) = (&key.0, key.1);
    for _ in 0..ATTEMPTS {
        let Some(strong) = pool.upgrade().filter(|pool| !pool.draining.get()) else {
            return false;
        };
        let network = strong.network(other);
        strong.close_all(|of, index, slot| {
            of == isolation && index == other && slot.network != network
        });
        let slot_is_open = |slot: &super::PoolSlot| !slot.current.is_closed();
        let is_known = strong.slots.borrow().get(key).is_some_and(slot_is_open);
        let (next, in_use) = strong.begin(isolation, other);
        if let Some(slot) = strong.slots.borrow().get(key).filter(|_| !is_known) {
            slot.is_spare.set(true);
        }
        drop(strong);
        let was_open = next.is_established();
        // A dial has its own limit.
        let limit = was_open.then(|| Instant::now() + probe_timeout(&*next));
        let mut answers = next.answers();
        let ended = loop {
            let look = Instant::now() + AGAIN;
            let until = limit.map_or(look, |limit| limit.min(look));
            match tokio::time::timeout_at(until, &mut answers).await {
                Ok(Ok(())) => return true,
                Ok(Err(_)) => break true,
                Err(_) if limit == Some(until) => break false,
                // Nothing answers if this machine has moved.
                Err(_) => match pool.upgrade() {
                    Some(pool) if pool.network(other) == network => {}
                    _ => break false,
                },
            }
        };
        if ended && !was_open {
            return false;
        }
        drop(in_use);
        let Some(strong) = pool.upgrade() else {
            return false;
        };
        METRICS.sessions_lost.add(1);
        strong.forget(key, &next);
        next.drain();
    }
    false
}

/// Resolves once an exchange may move. Its reader permits that with the head of the response, and
/// polls the exchange again then.
pub(super) async fn until_permitted(may_move: &impl Fn() -> bool) {
    let permitted = poll_fn(|_| match may_move() {
        true => Poll::Ready(()),
        false => Poll::Pending,
    });
    permitted.await;
}

/// Returns true once an exchange may move from a dead path, and false once the path delivers again.
async fn until_left(session: &dyn Connected, may_leave: &impl Fn() -> bool) -> bool {
    tokio::select! {
        biased;
        () = until_permitted(may_leave) => true,
        () = session.recovers() => false,
    }
}

/// Returns the time for the answer of an open refuge.
pub(super) fn probe_timeout(session: &dyn Connected) -> Duration {
    let round_trip = session.answered_in().unwrap_or_default();
    let wait = round_trip.saturating_mul(3);
    wait.clamp(LEAST_PROBE_TIMEOUT, MOST_PROBE_TIMEOUT)
}

/// Resolves once a session has received a datagram since the count was `before`.
async fn until_received(session: &dyn Connected, before: Option<u64>) {
    while !has_received(session, before) {
        tokio::time::sleep(LOOK).await;
    }
}

fn has_received(session: &dyn Connected, before: Option<u64>) -> bool {
    datagrams(session).is_some_and(|count| Some(count) != before)
}

fn datagrams(session: &dyn Connected) -> Option<u64> {
    session.facts()?.datagrams_received()
}
