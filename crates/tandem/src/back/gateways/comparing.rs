//! The comparison of a way over datagrams with TCP, where the network may throttle datagrams. The
//! policy is [`throttling`](crate::back::throttling), and [`ways`](crate::back::ways) remembers the
//! result.
//!
//! The flow of a session over datagrams is watched while exchanges are under way. If it is slow,
//! filler bytes are requested by this way and by TCP at once. On a network that throttles
//! datagrams, the sessions over them then take no more requests, and requests without a response
//! move to TCP. After a suspension, a session over datagrams is compared again before it takes a
//! request. A client that wants no filler bytes at all compares no ways.

use std::cell::Cell;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tandem_http::Priority;
use tokio::time::Instant;

use super::choice::now;
use super::{Gateways, InUse, SessionUsage};
use crate::back::throttling::{
    Comparison, DATA, Flow, LEAST_ROUND, Purpose, ROUND_LIMIT, Round, SLOT, Verdict,
};
use crate::exchange::{Exchange, Isolation, Part, Reply};
use crate::metrics::METRICS;
use crate::priority::{Precedence, SharedPriority};
use crate::session::Connected;
use crate::warm_up::measuring;

/// The longest time between two looks at a session that receives no data.
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// The time that a comparison waits for a new session over datagrams.
const ESTABLISH_LIMIT: Duration = Duration::from_secs(8);

impl Gateways {
    /// Watches the flow of a session over datagrams while exchanges are under way, if TCP is
    /// another way to its gateway.
    pub(super) fn watch_flow(
        &self,
        isolation: &Isolation,
        index: usize,
        session: &Rc<dyn Connected>,
        usage: &Rc<SessionUsage>,
    ) {
        if usage.watched.get() {
            return usage.begun.notify_one();
        }
        if !self.limits.compares_ways || self.refuge(index).is_none() {
            return;
        }
        usage.watched.set(true);
        let watcher = Watcher {
            pool: self.this.clone(),
            isolation: isolation.clone(),
            index,
            session: Rc::downgrade(session),
            usage: Rc::clone(usage),
        };
        tokio::task::spawn_local(watcher.run());
    }

    /// Compares a slow way with TCP, unless that was done a short time ago.
    fn suspect(&self, isolation: &Isolation, index: usize) {
        let Some(group) = self.group(index) else {
            return;
        };
        let (network, way) = (self.network(index), index - group.first);
        let mut ways = group.ways.borrow_mut();
        // A comparison that cannot begin now would still begin the pause.
        let may = !group.comparing.get() && !ways.has_failed(network, way);
        let may = may && ways.may_compare(network, way, now());
        drop(ways);
        if may {
            self.compare(isolation, index, Purpose::Leave);
        }
    }

    /// Compares a way over datagrams with TCP, and acts on the verdict.
    pub(super) fn compare(&self, isolation: &Isolation, index: usize, purpose: Purpose) {
        let (Some(group), Some(other)) = (self.group(index), self.refuge(index)) else {
            return;
        };
        if self.draining.get() || group.comparing.replace(true) {
            return;
        }
        METRICS.ways_compared.add(1);
        let network = self.network(index);
        let (this, isolation) = (self.this.clone(), isolation.clone());
        tokio::task::spawn_local(async move {
            let ways = [index, other];
            let begin = |way| Some(this.upgrade()?.begin(&isolation, way));
            let sessions = ways.map(begin);
            let mut compared = compared(&isolation, sessions, purpose).await;
            // A throttled path may fall silent, which ends its session. Exchanges that it still
            // carries move only by a verdict, so new sessions are compared once. They carry no
            // requests, and their success does not end the suspension of the way.
            if compared.is_none() && has_lost(&this, &isolation, index) {
                let open = |way| Some((this.upgrade()?.open_unobserved(&isolation, way), None));
                compared = self::compared(&isolation, ways.map(open), purpose).await;
            }
            let Some(pool) = this.upgrade() else { return };
            if let Some(group) = pool.group(index) {
                group.comparing.set(false);
            }
            // A machine that has moved knows nothing about its new network.
            let compared = compared.filter(|_| pool.network(index) == network);
            match (purpose, compared) {
                (_, Some((Verdict::Throttled, last))) => pool.throttled(index, other, last),
                (Purpose::Return, Some((Verdict::Fine, _))) => {
                    pool.way_is_usable(&isolation, index, None);
                }
                (Purpose::Leave, Some((Verdict::Fine, _))) | (_, None) => {}
            }
        });
    }

    /// Notes that the network throttles datagrams. The sessions over them take no more requests.
    fn throttled(&self, index: usize, other: usize, last: Round) {
        let Some(group) = self.group(index) else {
            return;
        };
        let network = self.network(index);
        let rest = group.ways.borrow_mut().throttled(network, now());
        METRICS.ways_throttled.add(1);
        let gateway = &self.gateways[index];
        tracing::info!(
            "gateway {}: this network throttles {} ({} KiB while TCP brought {}): TCP is used, and \
             UDP is compared again after {} s",
            gateway.target.host,
            gateway.announcer.protocol(),
            last.datagrams >> 10,
            last.tcp >> 10,
            rest.as_secs()
        );
        if group.contains(self.preferred.get()) {
            self.preferred.set(other);
        }
        self.close_all(|_, of, _| group.contains(of) && self.gateways[of].way.is_datagrams);
        group.throttled.notify_waiters();
    }

    /// Resolves once a comparison shows that the network throttles the datagrams of this way.
    pub(super) async fn until_throttled(&self, index: usize) {
        match self.group(index) {
            Some(group) => group.throttled.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// Watches the flow of one session until its last exchange has ended.
struct Watcher {
    pool: Weak<Gateways>,
    isolation: Isolation,
    index: usize,
    session: Weak<dyn Connected>,
    usage: Rc<SessionUsage>,
}

impl Watcher {
    async fn run(self) {
        let (mut flow, mut before, mut wait) = (Flow::default(), 0, SLOT);
        let mut next = Instant::now() + wait;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.usage.begun.notified() => {
                    next = next.min(Instant::now() + SLOT);
                    continue;
                }
            }
            let session = self.session.upgrade();
            let session = session.filter(|_| self.usage.exchanges.get() > 0);
            let Some(session) = session.filter(|session| !session.is_closed()) else {
                return self.usage.watched.set(false);
            };
            let bytes = received(&*session).unwrap_or(before);
            wait = match bytes - before.min(bytes) {
                DATA.. => SLOT,
                _ => (2 * wait).min(LONGEST_WAIT),
            };
            before = bytes;
            next = Instant::now() + wait;
            if flow.look(now(), bytes)
                && let Some(pool) = self.pool.upgrade()
            {
                pool.suspect(&self.isolation, self.index);
            }
        }
    }
}

/// Returns true if a key has sessions, and none by this way takes requests. A pool that drains, and
/// a key that has ended, need no session.
fn has_lost(pool: &Weak<Gateways>, isolation: &Isolation, index: usize) -> bool {
    let pool = pool.upgrade().filter(|pool| !pool.draining.get());
    pool.is_some_and(|pool| {
        let has_sessions = pool.slots.borrow().keys().any(|(of, _)| of == isolation);
        has_sessions && !pool.is_open(isolation, index)
    })
}

/// Returns the bytes that a session has received, if its connection counts them.
fn received(session: &dyn Connected) -> Option<u64> {
    session.facts()?.bytes_received()
}

/// A session that is compared, and the guard that counts an exchange on it if a key has it.
type ComparedSession = (Rc<dyn Connected>, Option<InUse>);

/// Runs the rounds of a comparison between sessions over datagrams and TCP. Returns the verdict
/// with the last round, or `None` if one of them fails or the gateway sends no filler.
async fn compared(
    isolation: &Isolation,
    [near, tcp]: [Option<ComparedSession>; 2],
    purpose: Purpose,
) -> Option<(Verdict, Round)> {
    let ((near, _near_use), (tcp, _tcp_use)) = (near?, tcp?);
    let established = tokio::time::timeout(ESTABLISH_LIMIT, near.established());
    established.await.ok()?.ok()?;
    tcp.established().await.ok()?;
    let measure = tcp.facts().and_then(|facts| facts.measure());
    let round_trip = measure.map(|measure| Duration::from_secs_f64(measure.round_trip));
    let round_trip = round_trip.or_else(|| tcp.answered_in()).unwrap_or_default();
    let mut comparison = Comparison::new(purpose);
    loop {
        let filler = comparison.filler();
        let (before, begun) = (received(&*near)?, Instant::now());
        let tcp_before = received(&*tcp);
        let [by_datagrams, by_tcp] = [Cell::new(0), Cell::new(0)];
        let mut filling = pin!(fill(&near, isolation, filler, &by_datagrams));
        let mut took = None;
        tokio::select! {
            filled = &mut filling => filled?,
            filled = fill(&tcp, isolation, filler, &by_tcp) => {
                filled?;
                took = Some(begun.elapsed());
                let least = begun + LEAST_ROUND;
                if let Ok(filled) = tokio::time::timeout_at(least, &mut filling).await {
                    filled?;
                }
            }
            () = tokio::time::sleep(ROUND_LIMIT) => {}
        }
        // The filler waits for everything else on the session, such as a download.
        let all_by_tcp = received(&*tcp).zip(tcp_before);
        let all_by_tcp = all_by_tcp.map_or(0, |(now, before)| now.saturating_sub(before));
        let round = Round {
            datagrams: received(&*near)?.saturating_sub(before),
            datagrams_took: begun.elapsed(),
            is_filled: by_datagrams.get() >= filler,
            tcp: by_tcp.get().max(all_by_tcp),
            took: took.unwrap_or_else(|| begun.elapsed()),
            round_trip,
        };
        tracing::debug!(?purpose, ?round, "two ways were compared");
        if let Some(verdict) = comparison.end_round(round) {
            return Some((verdict, round));
        }
    }
}

/// Requests filler bytes on a session, behind everything else, and counts those that arrive.
/// Returns `None` after an error, or if the gateway sends fewer bytes.
async fn fill(
    session: &Rc<dyn Connected>,
    isolation: &Isolation,
    bytes: u64,
    arrived: &Cell<u64>,
) -> Option<()> {
    let mut exchange = Exchange {
        isolation: isolation.clone(),
        priority: SharedPriority::new(Precedence::request(Priority(7))),
        ..Exchange::internal(measuring(bytes))
    };
    let session = Rc::clone(session);
    let mut reply =
        Reply::generate(move |mut sink| async move { session.run(&mut exchange, &mut sink).await });
    while let Some(part) = reply.part().await {
        if let Part::Data(data) = part.ok()? {
            arrived.set(arrived.get() + data.len() as u64);
        }
    }
    (arrived.get() >= bytes).then_some(())
}

#[cfg(test)]
mod tests;
