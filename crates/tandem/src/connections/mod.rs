//! The connections that one thread serves: each is counted against the limits and told when it has
//! to make way. The policy is in `table`.

mod table;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use table::ConnectionLimits;
use table::{Decision, Table};

use crate::metrics::METRICS;
use crate::path::Facts;
use crate::session::{Drain, Task};
use crate::status::{Opened, SessionStatus};

/// The time that a connection which makes way has for its last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The connections of one thread.
#[derive(Debug)]
pub struct Connections {
    table: RefCell<Table>,
    ends: RefCell<HashMap<u64, Rc<End>>>,
    /// The connections that have finished their handshake.
    established: RefCell<HashMap<u64, Established>>,
    /// Connections that still run, those that make way included.
    running: Cell<usize>,
    /// Wakes the task that closes new connections in time.
    admitted: Rc<Notify>,
    _expiry: Task,
}

/// A connection that has finished its handshake.
#[derive(Debug)]
struct Established {
    since: Instant,
    facts: Weak<dyn Facts>,
}

/// The end of one connection.
#[derive(Debug)]
struct End {
    drain: Drain,
    evicted: Notify,
}

/// A connection in the table. Dropping it removes it from the table.
#[derive(Debug)]
pub struct Connection {
    connections: Rc<Connections>,
    id: u64,
    end: Rc<End>,
    is_new: Cell<bool>,
}

impl Connections {
    /// Returns an empty table. Runs within a local task set.
    pub fn new(limits: ConnectionLimits) -> Rc<Self> {
        Rc::new_cyclic(|this| {
            let admitted = Rc::<Notify>::default();
            Self {
                table: RefCell::new(Table::new(limits)),
                ends: RefCell::default(),
                established: RefCell::default(),
                running: Cell::new(0),
                _expiry: Task::spawn(expire(this.clone(), Rc::clone(&admitted))),
                admitted,
            }
        })
    }

    /// Returns the connections that have finished their handshake, in no order.
    pub fn status(&self) -> Vec<SessionStatus> {
        let established = self.established.borrow();
        let status = |connection: &Established| {
            let facts = connection.facts.upgrade();
            SessionStatus::new(Opened::There, connection.since.into_std(), facts.as_deref())
        };
        established.values().map(status).collect()
    }

    /// Returns the number of connections that still run.
    pub fn open(&self) -> usize {
        self.running.get()
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
        let decision = self.table.borrow_mut().admit(now, id, listener, client);
        let Decision::Admit { evicted } = decision else {
            METRICS.connections_refused.add(1);
            return None;
        };
        for evicted in evicted {
            METRICS.connections_evicted.add(1);
            self.evict(evicted);
        }
        let end = Rc::new(End {
            drain: drain.child(),
            evicted: Notify::new(),
        });
        self.ends.borrow_mut().insert(id, Rc::clone(&end));
        self.running.set(self.running.get() + 1);
        METRICS.connections_open.add(1);
        self.admitted.notify_one();
        Some(Rc::new(Connection {
            connections: Rc::clone(self),
            id,
            end,
            is_new: Cell::new(true),
        }))
    }

    fn evict_expired(&self) {
        let now = Instant::now().into_std();
        loop {
            let expired = self.table.borrow_mut().expire(now);
            let Some(expired) = expired else { return };
            METRICS.connections_expired.add(1);
            self.evict(expired);
        }
    }

    fn evict(&self, id: u64) {
        if let Some(end) = self.ends.borrow_mut().remove(&id) {
            end.drain.begin();
            end.evicted.notify_one();
        }
    }
}

/// Closes connections that do not authenticate in time.
async fn expire(connections: Weak<Connections>, admitted: Rc<Notify>) {
    loop {
        let next = match connections.upgrade() {
            Some(connections) => connections.table.borrow().next_expiry(),
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
    /// Notes that an exchange of this connection was admitted.
    pub fn authenticate(&self) {
        if self.is_new.replace(false) {
            let now = Instant::now().into_std();
            self.connections
                .table
                .borrow_mut()
                .authenticate(now, self.id);
        }
    }

    /// Lists the connection as one that has finished its handshake.
    pub fn list(&self, facts: &Rc<dyn Facts>) {
        let established = Established {
            since: Instant::now(),
            facts: Rc::downgrade(facts),
        };
        let mut all = self.connections.established.borrow_mut();
        all.insert(self.id, established);
    }

    /// Counts an exchange as under way until the guard is dropped.
    pub fn begin_exchange(self: &Rc<Self>) -> ExchangeGuard {
        self.connections.table.borrow_mut().begin(self.id);
        ExchangeGuard(Rc::clone(self))
    }

    /// Returns the drain of this connection.
    pub fn drain(&self) -> Drain {
        self.end.drain.clone()
    }

    /// Resolves a moment after the connection was told to make way.
    pub async fn has_to_end(&self) {
        self.end.evicted.notified().await;
        tokio::time::sleep(LAST_WORDS).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        METRICS.connections_open.sub(1);
        let connections = &self.connections;
        connections.running.set(connections.running.get() - 1);
        connections.ends.borrow_mut().remove(&self.id);
        connections.established.borrow_mut().remove(&self.id);
        connections.table.borrow_mut().remove(self.id);
    }
}

/// An exchange under way on a connection.
#[derive(Debug)]
pub struct ExchangeGuard(Rc<Connection>);

impl Drop for ExchangeGuard {
    fn drop(&mut self) {
        let now = Instant::now().into_std();
        self.0.connections.table.borrow_mut().end(now, self.0.id);
    }
}
