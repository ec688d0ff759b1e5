//! The choice among several ways to one gateway: sessions by all of them race, and the policy of
//! [`ways`](crate::back::ways) remembers the result.
//!
//! A request waits for the first session that is established. A session that lost the race is
//! observed to its end, since the way may only be slow. Exchanges leave a session over datagrams
//! that falls silent ([`refuge`](super::refuge)), or that the network throttles
//! ([`comparing`](super::comparing)).

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::refuge::DOUBT_MEMORY;
use super::{Gateway, Gateways, InUse, PoolSlot};
use crate::back::throttling::Purpose;
use crate::back::ways::{Network, Ways};
use crate::error::{Error, Kind, Side};
use crate::exchange::Isolation;
use crate::metrics::METRICS;
use crate::session::{Connected, SessionState};
use crate::transport::names::Addresses;

/// The time after which a way without an answer counts as failed. A later answer still counts.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(4);

/// The ways to one gateway, as a range of the pool's entries.
pub(super) struct WayGroup {
    pub(super) first: usize,
    len: usize,
    pub(super) ways: RefCell<Ways>,
    /// True while two of the ways are compared.
    pub(super) comparing: Cell<bool>,
    /// Notified when the network throttles datagrams.
    pub(super) throttled: Notify,
    /// The time of the last doubt about one of the sessions.
    doubted_at: Cell<Option<Instant>>,
}

impl WayGroup {
    /// Returns the groups of all entries.
    pub(super) fn all(gateways: &[Gateway]) -> Vec<Self> {
        let mut first = 0;
        let groups = gateways.chunk_by(|_, next| next.way.is_alternative);
        let groups = groups.map(|ways| {
            let datagrams = ways.iter().map(|it| it.way.is_datagrams).collect();
            let group = Self {
                first,
                len: ways.len(),
                ways: RefCell::new(Ways::new(datagrams)),
                comparing: Cell::new(false),
                throttled: Notify::new(),
                doubted_at: Cell::default(),
            };
            first += ways.len();
            group
        });
        groups.collect()
    }

    /// Returns the entries of the ways.
    pub(super) fn entries(&self) -> Range<usize> {
        self.first..self.first + self.len
    }

    pub(super) fn contains(&self, index: usize) -> bool {
        self.entries().contains(&index)
    }

    /// Notes a doubt about a session. Returns true unless there was another one a short time ago.
    pub(super) fn is_first_doubt(&self) -> bool {
        let before = self.doubted_at.replace(Some(now()));
        before.is_none_or(|before| now() - before >= DOUBT_MEMORY)
    }
}

/// A session, the index of its way, and the guard that counts an exchange on it.
pub(super) type ChosenSession = (Rc<dyn Connected>, usize, Option<InUse>);

type EstablishedSession = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// Sessions that are being opened.
#[derive(Default)]
struct Race(Vec<(EstablishedSession, ChosenSession)>);

impl Race {
    /// Adds a session. With `early`, it suffices that the session takes early requests.
    fn add(&mut self, chosen: ChosenSession, early: bool) {
        let session = Rc::clone(&chosen.0);
        let established = Box::pin(async move {
            match early {
                true => session.takes_early().await,
                false => session.established().await,
            }
        });
        self.0.push((established, chosen));
    }

    /// Resolves when a session is established, or has failed. The session leaves the race.
    async fn next(&mut self) -> (Result<(), Error>, ChosenSession) {
        poll_fn(|cx| {
            for at in 0..self.0.len() {
                if let Poll::Ready(ended) = self.0[at].0.as_mut().poll(cx) {
                    return Poll::Ready((ended, self.0.remove(at).1));
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl Gateways {
    /// Returns the group of the way that answered a key last.
    pub(super) fn preferred_group(&self, isolation: &Isolation) -> usize {
        let preferred = self.preferred(isolation);
        let group = self.groups.iter().position(|it| it.contains(preferred));
        group.unwrap_or(0)
    }

    /// Returns true if there are other ways to the same gateway.
    pub(super) fn has_other_way(&self, index: usize) -> bool {
        self.group(index).is_some_and(|group| group.len > 1)
    }

    pub(super) fn group(&self, index: usize) -> Option<&WayGroup> {
        self.groups.iter().find(|group| group.contains(index))
    }

    /// Returns a session to a gateway. With several ways it waits until one of them is established,
    /// or all have failed. The session has failed in the latter case.
    ///
    /// With `early`, a session of the best way that takes early requests suffices. No other way is
    /// tried then, so that the origin gets the request once. [`Self::leave`] moves the request if
    /// there is no answer.
    pub(super) async fn choose(
        &self,
        isolation: &Isolation,
        group: usize,
        early: bool,
    ) -> ChosenSession {
        let group = &self.groups[group];
        self.find(group).await;
        let begin = |index| {
            let (session, in_use) = self.begin(isolation, index);
            (session, index, in_use)
        };
        if group.len == 1 {
            return begin(group.first);
        }
        let network = self.network(group.first);
        let order = group.ways.borrow_mut().order(network, now());
        if let Some(way) = order.retried.filter(|_| !self.draining.get()) {
            let (session, index, _use) = begin(group.first + way);
            // A session that is open since an earlier trial is not observed again.
            if session.is_established() && group.ways.borrow().is_throttled(network, way) {
                self.compare(isolation, index, Purpose::Return);
            }
        }
        let others = order.others.iter().map(|way| group.first + way);
        let mut others: Vec<usize> = others.collect();
        let first = group.first + order.first;
        let open = self.open_entry(isolation, first, &others);
        let is_datagrams = |index: usize| self.gateways[index].way.is_datagrams;
        if let Some(open) = open
            && (open == first || [open, first].into_iter().all(is_datagrams))
        {
            return begin(open);
        }
        // The best way is dialled beside an open session of another kind.
        let first = begin(first);
        if let Some(open) = open {
            return begin(open);
        }
        let mut race = Race::default();
        others.retain(|index| !self.is_doubted(isolation, *index));
        // A session in doubt is established, and would win each race. It must answer a probe.
        let mut doubted = None;
        if others.is_empty() || !self.is_doubted(isolation, first.1) {
            race.add(first, early);
        } else {
            let others = others.drain(..);
            others.for_each(|index| race.add(begin(index), false));
            doubted = Some(first);
        }
        let answering = doubted.as_ref().map(|(session, ..)| Rc::clone(session));
        let mut answers = std::pin::pin!(until_answers(answering));
        let mut stagger = Box::pin(tokio::time::sleep(order.stagger));
        loop {
            tokio::select! {
                biased;
                (ended, chosen) = race.next() => {
                    if ended.is_ok() {
                        if chosen.0.is_established() {
                            self.prefer(isolation, chosen.1);
                        }
                        return chosen;
                    }
                    if race.0.is_empty() && others.is_empty() {
                        return doubted.unwrap_or(chosen);
                    }
                }
                () = &mut answers, if doubted.is_some() => {
                    if let Some(chosen) = doubted.take() {
                        return chosen;
                    }
                }
                () = &mut stagger, if !others.is_empty() => {}
            }
            others
                .drain(..)
                .for_each(|index| race.add(begin(index), false));
        }
    }

    /// Returns the entry whose session serves a key: the one that [`Self::choose`] returns, or the
    /// preferred way without an open session. Keys differ in the ways that won their races.
    pub(super) fn entry(&self, isolation: &Isolation) -> usize {
        let preferred = self.preferred(isolation);
        let Some(group) = self.group(preferred) else {
            return preferred;
        };
        let is_open = |index: &usize| self.is_open(isolation, *index);
        let mut open = group.entries().filter(is_open);
        let Some(any) = open.next() else {
            return preferred;
        };
        // The network is not asked for without need, since that is a system call.
        if open.next().is_none() {
            return any;
        }
        let network = self.network(group.first);
        let usable = group.ways.borrow().usable(network, now());
        let mut usable = usable.into_iter().map(|way| group.first + way);
        let first = usable.next().unwrap_or(preferred);
        let others: Vec<usize> = usable.collect();
        self.open_entry(isolation, first, &others).unwrap_or(any)
    }

    /// Returns the entry with an open session that takes the requests of a key, of those that the
    /// policy permits. If the first one is over datagrams, so is the result if possible.
    fn open_entry(&self, isolation: &Isolation, first: usize, others: &[usize]) -> Option<usize> {
        let is_open = |index: &usize| self.is_open(isolation, *index);
        let others = others.iter().copied();
        let open = others.clone().chain([first]).filter(is_open);
        if self.gateways[first].way.is_datagrams
            && let Some(open) = self.used_last(isolation, open)
        {
            return Some(open);
        }
        std::iter::once(first).chain(others).find(is_open)
    }

    /// Returns true if the session of an entry takes requests, as far as is known.
    pub(super) fn is_open(&self, isolation: &Isolation, index: usize) -> bool {
        let slots = self.slots.borrow();
        let slot = slots.get(&(isolation.clone(), index));
        let takes = |slot: &PoolSlot| slot.current.is_established() && !slot.current.is_closed();
        slot.is_some_and(|slot| takes(slot) && !slot.doubted.get())
    }

    /// Returns true if the session of an entry is open, but takes no requests for a while.
    fn is_doubted(&self, isolation: &Isolation, index: usize) -> bool {
        let slots = self.slots.borrow();
        let slot = slots.get(&(isolation.clone(), index));
        slot.is_some_and(|slot| slot.doubted.get() && !slot.current.is_closed())
    }

    /// Returns the entry over datagrams whose session a key uses now, or has used last. Another
    /// race does not replace that session, since its pushes would be lost.
    fn used_last(
        &self,
        isolation: &Isolation,
        entries: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        let slots = self.slots.borrow();
        let used = |index: &usize| {
            let usage = &slots.get(&(isolation.clone(), *index))?.usage;
            Some((usage.exchanges.get() > 0, usage.last.get()))
        };
        entries
            .filter(|index| self.gateways[*index].way.is_datagrams)
            .max_by_key(used)
    }

    /// Returns the network on which the gateway is reached.
    pub(super) fn network(&self, index: usize) -> Network {
        let addresses = self.gateways[index].way.addresses.as_ref();
        addresses
            .and_then(Addresses::first)
            .and_then(self.source.get())
    }

    /// Looks up the gateway's name if no way has an address yet. The ways to the gateway then begin
    /// their race at the same time, and on a known network. A way with an address does not wait.
    async fn find(&self, group: &WayGroup) {
        let addresses = |index: usize| self.gateways[index].way.addresses.as_ref();
        let mut ways = group.entries().map(addresses);
        if ways.any(|way| way.is_none_or(|way| way.first().is_some())) {
            return;
        }
        if let Some(addresses) = addresses(group.first) {
            // The dial tells of a failure.
            let _ = addresses.look_up().await;
        }
    }

    /// Drains the sessions for which `matches` returns true, and removes them from their keys.
    pub(super) fn close_all(&self, matches: impl Fn(&Isolation, usize, &PoolSlot) -> bool) {
        let mut slots = self.slots.borrow_mut();
        let closed = slots.extract_if(|(isolation, index), slot| matches(isolation, *index, slot));
        let closed: Vec<_> = closed.map(|(_, slot)| slot).collect();
        drop(slots);
        closed.iter().for_each(|slot| slot.current.drain());
    }

    /// Notes that a session failed that was begun on `begun_on`. After a move to another network
    /// this says nothing about either.
    pub(super) fn way_failed(&self, index: usize, begun_on: Network, error: &Error) {
        // A gateway could refuse the sessions of one key by one way.
        if self.of_keys.are_apart.get() {
            return;
        }
        let Some(group) = self.group(index) else {
            return;
        };
        // The name of the gateway is not known, which says nothing about the way.
        let addresses = self.gateways[index].way.addresses.as_ref();
        if error.kind == Kind::Dns || addresses.is_some_and(|it| it.first().is_none()) {
            return;
        }
        let (network, way) = (self.network(index), index - group.first);
        if network != begun_on {
            return;
        }
        let had_failed = group.ways.borrow().has_failed(network, way);
        let rest = group.ways.borrow_mut().failed(network, way, now());
        METRICS.ways_failed.add(1);
        if had_failed {
            // Each further try would write the same line.
            return;
        }
        let gateway = &self.gateways[index];
        tracing::info!(
            "gateway {}: {} does not work on this network ({}): other ways are used, and this \
             one is tried again after {} s",
            gateway.target.host,
            gateway.announcer.protocol(),
            error.detail,
            rest.as_secs()
        );
    }

    fn way_works(&self, isolation: &Isolation, index: usize, session: &dyn SessionState) {
        let Some(group) = self.group(index) else {
            return;
        };
        let (network, way) = (self.network(index), index - group.first);
        if group.ways.borrow().is_throttled(network, way) {
            return self.compare(isolation, index, Purpose::Return);
        }
        self.way_is_usable(isolation, index, session.answered_in());
    }

    /// Notes that a way works. Its sessions replace those over TCP, and those of a way that has
    /// failed.
    pub(super) fn way_is_usable(
        &self,
        isolation: &Isolation,
        index: usize,
        answered_in: Option<Duration>,
    ) {
        let Some(group) = self.group(index) else {
            return;
        };
        let (network, way) = (self.network(index), index - group.first);
        let mut ways = group.ways.borrow_mut();
        let had_failed = ways.has_failed(network, way);
        ways.succeeded(network, way, answered_in, now());
        drop(ways);
        let gateway = &self.gateways[index];
        if had_failed {
            METRICS.ways_recovered.add(1);
            let (host, protocol) = (&gateway.target.host, gateway.announcer.protocol());
            tracing::info!("gateway {host}: {protocol} works again");
        }
        if !gateway.way.is_datagrams {
            return;
        }
        let preferred = self.preferred.get();
        let is_given_up = |of: usize| {
            let has_failed = group.ways.borrow().has_failed(network, of - group.first);
            !self.gateways[of].way.is_datagrams || has_failed
        };
        if group.contains(preferred) && is_given_up(preferred) {
            self.preferred.set(index);
        }
        let over_tcp = |of: usize| group.contains(of) && !self.gateways[of].way.is_datagrams;
        self.close_all(|of, index, _| of == isolation && over_tcp(index));
    }
}

/// Resolves once a session has answered a probe. Never resolves without a session.
async fn until_answers(session: Option<Rc<dyn Connected>>) {
    if let Some(session) = session
        && session.answers().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Returns the time, which tests control.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Observes a session that was begun on `network` until it is established or has failed, and notes
/// the result for its way.
pub(super) fn observe(
    pool: Weak<Gateways>,
    isolation: Isolation,
    index: usize,
    network: Network,
    session: &Rc<dyn Connected>,
) -> impl Future<Output = ()> + 'static {
    let session = Rc::clone(session);
    async move {
        let mut established = session.established();
        let in_time = tokio::time::timeout(ESTABLISH_TIMEOUT, &mut established).await;
        let late = in_time.is_err();
        let ended = match in_time {
            Ok(ended) => ended,
            Err(_) => {
                let error = Error::new(Kind::Timeout, Side::Peer, "no answer");
                if let Some(pool) = pool.upgrade() {
                    pool.way_failed(index, network, &error);
                }
                established.await
            }
        };
        let Some(pool) = pool.upgrade() else { return };
        match ended {
            Ok(()) if pool.network(index) == network => {
                pool.way_works(&isolation, index, &*session);
            }
            Ok(()) => {}
            // This end may have closed a session that lost the race.
            Err(error) if !late && session.ended().await.is_some() => {
                pool.way_failed(index, network, &error);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
