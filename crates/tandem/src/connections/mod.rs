//! The connections that one thread serves: each is counted against the limits and told when it has
//! to make way. The policy is in `table`.
//!
//! An evicted connection leaves the table at once, but keeps its descriptor until it has ended.
//! Only a few may use that time for a last message, so the descriptors are bounded too.

mod table;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use table::ConnectionLimits;
use table::{Admission, Table};

use crate::metrics::{METRICS, Metric};
use crate::moment;
use crate::path::Facts;
use crate::session::{Drain, Task};
use crate::status::{Opened, SessionStatus};

/// The time in which an evicted connection may still send its last message, such as GOAWAY.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The largest number of evicted connections of a thread that may be open in addition to the limit.
/// The oldest is closed for another.
const MAX_LEAVING: usize = 16;

/// Numbers the connections and sessions of the process. Clones count together, and no number
/// returns while the process runs.
#[derive(Clone, Debug, Default)]
pub struct SessionNumbers(Arc<AtomicU64>);

impl SessionNumbers {
    /// Returns the number of a new connection or session.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The connections of one thread.
#[derive(Debug)]
pub struct Connections {
    state: RefCell<ConnectionsState>,
    /// The number of connections that still run, evicted ones included.
    running: Cell<usize>,
    /// The limit of connections in the table.
    total: usize,
    numbers: SessionNumbers,
    /// The counter of connections that were refused.
    refused: &'static Metric,
    /// Wakes the task that closes new connections in time.
    admitted: Rc<Notify>,
    _expiry: Task,
}

/// The table, and the connections by their numbers.
#[derive(Debug)]
struct ConnectionsState {
    table: Table,
    ends: HashMap<u64, Rc<ConnectionEnd>>,
    /// The evicted connections that may still send, the oldest first.
    leaving: VecDeque<(u64, Rc<ConnectionEnd>)>,
    /// The connections that have finished their handshake.
    established: HashMap<u64, Established>,
}

/// A connection that has finished its handshake.
#[derive(Debug)]
struct Established {
    since: Instant,
    facts: Weak<dyn Facts>,
}

/// The end of one connection.
#[derive(Debug)]
struct ConnectionEnd {
    drain: Drain,
    evicted: Notify,
    /// Ends the connection at once.
    cut: Notify,
}

/// A connection in the table. Dropping it removes it from the table.
#[derive(Debug)]
pub struct Connection {
    connections: Rc<Connections>,
    id: u64,
    listener: usize,
    end: Rc<ConnectionEnd>,
    is_new: Cell<bool>,
}

impl Connections {
    /// Returns an empty table of connections that `numbers` counts. Runs within a local task set.
    pub fn new(limits: ConnectionLimits, numbers: &SessionNumbers) -> Rc<Self> {
        Self::counting(limits, numbers.clone(), &METRICS.connections_refused)
    }

    /// Returns an empty table for a listener of the process itself, such as that of its dashboard.
    pub fn internal(limits: ConnectionLimits) -> Rc<Self> {
        let numbers = SessionNumbers::default();
        Self::counting(limits, numbers, &METRICS.admin_connections_refused)
    }

    fn counting(
        limits: ConnectionLimits,
        numbers: SessionNumbers,
        refused: &'static Metric,
    ) -> Rc<Self> {
        Rc::new_cyclic(|this| {
            let admitted = Rc::<Notify>::default();
            Self {
                state: RefCell::new(ConnectionsState {
                    table: Table::new(limits),
                    ends: HashMap::new(),
                    leaving: VecDeque::new(),
                    established: HashMap::new(),
                }),
                running: Cell::new(0),
                total: limits.total,
                numbers,
                refused,
                _expiry: Task::spawn(expire(this.clone(), Rc::clone(&admitted))),
                admitted,
            }
        })
    }

    /// Returns the connections that have finished their handshake, in no order.
    pub fn status(&self) -> Vec<SessionStatus> {
        let state = self.state.borrow();
        let status = |connection: &Established| {
            let facts = connection.facts.upgrade();
            SessionStatus::new(Opened::There, connection.since.into_std(), facts.as_deref())
        };
        state.established.values().map(status).collect()
    }

    /// Returns the number of a new connection.
    pub fn next_number(&self) -> u64 {
        self.numbers.next()
    }

    /// Returns the number of connections that still run.
    pub fn open(&self) -> usize {
        self.running.get()
    }

    /// Returns whether evicted connections are open in addition to the limit. The caller then lets
    /// them end before it accepts another.
    pub fn is_over_limit(&self) -> bool {
        self.running.get() > self.total
    }

    /// Admits a connection, if need be in the place of another. `drain` ends it gently.
    pub fn admit(
        self: &Rc<Self>,
        id: u64,
        listener: usize,
        client: IpAddr,
        drain: &Drain,
    ) -> Option<Rc<Connection>> {
        let now = Instant::now().into_std();
        let mut state = self.state.borrow_mut();
        let decision = state.table.admit(now, id, listener, client);
        let Admission::Admit { evicted } = decision else {
            self.refused.add(1);
            return None;
        };
        for evicted in evicted {
            METRICS.connections_evicted.add(1);
            state.evict(evicted);
        }
        let end = Rc::new(ConnectionEnd {
            drain: drain.child(),
            evicted: Notify::new(),
            cut: Notify::new(),
        });
        state.ends.insert(id, Rc::clone(&end));
        self.running.set(self.running.get() + 1);
        METRICS.connections_open.add(1);
        self.admitted.notify_one();
        Some(Rc::new(Connection {
            connections: Rc::clone(self),
            id,
            listener,
            end,
            is_new: Cell::new(true),
        }))
    }

    /// Closes the oldest connection without an admitted exchange, else the one that was idle for
    /// longest: the process has no descriptor for a newcomer of this listener. Returns true if that
    /// connection closes at once, without a last message.
    pub fn make_way(&self, listener: usize) -> bool {
        let mut state = self.state.borrow_mut();
        let Some((victim, is_new)) = state.table.give_up(listener) else {
            return false;
        };
        METRICS.connections_evicted.add(1);
        if !is_new {
            state.evict(victim);
        } else if let Some(end) = state.ends.remove(&victim) {
            end.cut.notify_one();
        }
        is_new
    }

    fn evict_expired(&self) {
        let now = Instant::now().into_std();
        let mut state = self.state.borrow_mut();
        while let Some(expired) = state.table.expire(now) {
            METRICS.connections_expired.add(1);
            state.evict(expired);
        }
    }
}

impl ConnectionsState {
    fn evict(&mut self, id: u64) {
        let Some(end) = self.ends.remove(&id) else {
            return;
        };
        // A connection in its handshake has no message to send.
        if !self.established.contains_key(&id) {
            return end.cut.notify_one();
        }
        end.drain.begin();
        end.evicted.notify_one();
        self.leaving.push_back((id, end));
        if self.leaving.len() > MAX_LEAVING
            && let Some((_, oldest)) = self.leaving.pop_front()
        {
            oldest.cut.notify_one();
        }
    }
}

/// Closes connections that do not authenticate in time.
async fn expire(connections: Weak<Connections>, admitted: Rc<Notify>) {
    loop {
        let next = match connections.upgrade() {
            Some(connections) => connections.state.borrow().table.next_expiry(),
            None => return,
        };
        match next {
            None => admitted.notified().await,
            Some(at) => tokio::time::sleep_until(at.into()).await,
        }
        if let Some(connections) = connections.upgrade() {
            connections.evict_expired();
        }
    }
}

impl Connection {
    /// Returns the number of the listener that accepted the connection.
    pub const fn listener(&self) -> usize {
        self.listener
    }

    /// Notes that an exchange of this connection was admitted.
    pub fn authenticate(&self) {
        if self.is_new.replace(false) {
            let now = Instant::now().into_std();
            let mut state = self.connections.state.borrow_mut();
            state.table.authenticate(now, self.id);
            let established = state.established.get(&self.id);
            let facts = established.and_then(|it| it.facts.upgrade());
            drop(state);
            if let Some(facts) = facts {
                facts.admitted();
            }
        }
    }

    /// Lists the connection as one that has finished its handshake.
    pub fn list(&self, facts: &Rc<dyn Facts>) {
        let established = Established {
            since: Instant::now(),
            facts: Rc::downgrade(facts),
        };
        let mut state = self.connections.state.borrow_mut();
        state.established.insert(self.id, established);
    }

    /// Counts an exchange as under way until the guard is dropped.
    pub fn begin_exchange(self: &Rc<Self>) -> ExchangeGuard {
        let mut state = self.connections.state.borrow_mut();
        state.table.begin(self.id);
        ExchangeGuard(Rc::clone(self))
    }

    /// Returns the drain of this connection.
    pub fn drain(&self) -> Drain {
        self.end.drain.clone()
    }

    /// Resolves once the evicted connection must close: at once in its handshake, otherwise after
    /// the time for a last message.
    pub async fn has_to_end(&self) {
        let said = async {
            self.end.evicted.notified().await;
            // The box keeps the timer out of the future of each connection.
            Box::pin(tokio::time::sleep(LAST_WORDS)).await;
        };
        tokio::select! {
            () = said => {}
            () = self.end.cut.notified() => {}
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        METRICS.connections_open.sub(1);
        let connections = &self.connections;
        connections.running.set(connections.running.get() - 1);
        let mut state = connections.state.borrow_mut();
        if state.ends.remove(&self.id).is_none() {
            state.leaving.retain(|(id, _)| *id != self.id);
        }
        state.established.remove(&self.id);
        state.table.remove(self.id);
    }
}

/// An exchange under way on a connection.
#[derive(Debug)]
pub struct ExchangeGuard(Rc<Connection>);

impl Drop for ExchangeGuard {
    fn drop(&mut self) {
        let now = moment::now().into_std();
        let mut state = self.0.connections.state.borrow_mut();
        state.table.end(now, self.0.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Path;

    const LIMITS: ConnectionLimits = ConnectionLimits {
        total: 8,
        per_client: 8,
        listeners: 1,
        head: Duration::from_secs(30),
    };

    /// Admits `count` connections that end only when they have to. With `facts` they have finished
    /// their handshake.
    async fn flood(connections: &Rc<Connections>, count: u64, facts: Option<&Rc<dyn Facts>>) {
        let client = IpAddr::from([192, 0, 2, 1]);
        for id in 0..count {
            let connection = connections
                .admit(id, 0, client, &Drain::new())
                .expect("a new connection makes way");
            if let Some(facts) = facts {
                connection.list(facts);
            }
            tokio::task::spawn_local(async move { connection.has_to_end().await });
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
    }

    #[test]
    fn evicted_connections_are_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let connections = Connections::new(LIMITS, &SessionNumbers::default());
            flood(&connections, 200, None).await;
            assert_eq!(connections.open(), 4, "a handshake ends at once");
            let connections = Connections::new(LIMITS, &SessionNumbers::default());
            let (near, _far) = Path::pair(1);
            flood(&connections, 200, Some(near.facts())).await;
            assert_eq!(connections.open(), 4 + MAX_LEAVING);
            assert!(connections.is_over_limit());
        });
    }
}
