//! Late binding of plain connections. An exchange that dials takes a connection that becomes idle
//! before its own is open. The dial goes on, and its connection serves a later exchange.
//!
//! ```text
//!   exchange ──dials──▶ waits for its path, or for an idle connection
//!                          │ idle connection first: the dial becomes a spare
//!   exchange ──────────────┴▶ waits without a dial while there is a spare for it
//! ```
//!
//! A warm connection saves a round trip and has a larger congestion window. The number of
//! connections does not grow: each spare is a dial that an exchange would have used. Only a page
//! of a client without a gateway adds spares (`preconnect`).

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{IDLE_FOR, Idle, Origin, PoolKey};
use crate::error::Error;
use crate::exchange::Exchange;
use crate::path::Path;
use crate::session::Task;
use crate::session::http1::Http1Client;
use crate::transport::LocalBoxFuture;

/// The time for which a connection is kept that has carried no request. Some servers close such a
/// connection early, with a response that no request asked for.
const UNUSED_FOR: Duration = Duration::from_secs(5);

/// A dial that may outlive its exchange.
pub(super) type OwnDial = LocalBoxFuture<'static, Result<Path, Error>>;

/// The connection of an exchange.
pub(super) enum Bound {
    /// A connection that was open already.
    Kept(Rc<Http1Client>),
    /// A new path.
    New(Path),
}

/// The exchanges that wait for connections, and the spare dials.
#[derive(Default)]
pub(super) struct Binding {
    lines: HashMap<PoolKey, WaitingLine>,
    issued: u64,
}

#[derive(Default)]
struct WaitingLine {
    /// The oldest first.
    waiting: VecDeque<WaitingExchange>,
    /// The dials whose exchanges have other connections.
    spares: HashMap<u64, Task>,
    /// The exchanges that have been handed a connection, and whose dials are not yet spares.
    handed: usize,
}

struct WaitingExchange {
    number: u64,
    ready: oneshot::Sender<Rc<Http1Client>>,
    /// True if the exchange relies on a spare dial.
    relies_on_spare: bool,
}

impl WaitingLine {
    /// The number of spare dials beyond those that exchanges rely on. It is negative if a dial has
    /// failed.
    fn free_spares(&self) -> isize {
        let relying = self.waiting.iter().filter(|it| it.relies_on_spare);
        (self.spares.len() + self.handed) as isize - relying.count() as isize
    }

    /// Lets an exchange dial itself if it relies on a dial that is no more.
    fn release(&mut self) {
        if self.free_spares() < 0 {
            let last = self.waiting.iter().rposition(|it| it.relies_on_spare);
            last.and_then(|at| self.waiting.remove(at));
        }
    }
}

impl Binding {
    /// Ends the spare dials of a session.
    pub(super) fn end_session(&mut self, session: u64) {
        self.lines.retain(|key, _| key.session != session);
    }

    fn number(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }

    fn forget_if_empty(&mut self, key: &PoolKey) {
        let line = self.lines.get(key);
        let is_empty = |line: &WaitingLine| {
            line.waiting.is_empty() && line.spares.is_empty() && line.handed == 0
        };
        if line.is_some_and(is_empty) {
            self.lines.remove(key);
        }
    }

    /// Hands a connection to the exchange that has waited longest. Returns it if none waits.
    pub(super) fn offer(
        &mut self,
        key: &PoolKey,
        mut connection: Rc<Http1Client>,
    ) -> Option<Rc<Http1Client>> {
        let Some(line) = self.lines.get_mut(key) else {
            return Some(connection);
        };
        while let Some(first) = line.waiting.pop_front() {
            match first.ready.send(connection) {
                Ok(()) => {
                    line.handed += usize::from(!first.relies_on_spare);
                    return None;
                }
                Err(back) => connection = back,
            }
        }
        Some(connection)
    }

    /// Returns the number of spare dials to an origin.
    pub(super) fn spares(&self, key: &PoolKey) -> usize {
        self.lines.get(key).map_or(0, |line| line.spares.len())
    }

    /// Removes a spare dial that has failed. An exchange that has relied on it dials itself.
    fn fail_spare(&mut self, key: &PoolKey, number: u64) {
        if let Some(line) = self.lines.get_mut(key) {
            line.spares.remove(&number);
            line.release();
        }
        self.forget_if_empty(key);
    }
}

/// A turn of an exchange that waits for a connection. Dropping it gives up the turn.
struct Turn<'a> {
    origin: &'a Origin,
    key: &'a PoolKey,
    number: u64,
    relies_on_spare: bool,
    arrived: oneshot::Receiver<Rc<Http1Client>>,
}

impl<'a> Turn<'a> {
    /// Takes a turn. It relies on a spare dial if there is one for it and `may_rely` is true.
    fn new(origin: &'a Origin, key: &'a PoolKey, may_rely: bool) -> Self {
        let mut pool = origin.pool.borrow_mut();
        let number = pool.binding.number();
        let line = pool.binding.lines.entry(key.clone()).or_default();
        let relies_on_spare = may_rely && line.free_spares() > 0;
        let (ready, arrived) = oneshot::channel();
        line.waiting.push_back(WaitingExchange {
            number,
            ready,
            relies_on_spare,
        });
        Self {
            origin,
            key,
            number,
            relies_on_spare,
            arrived,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let arrived = self.arrived.try_recv().ok();
        let mut pool = self.origin.pool.borrow_mut();
        if let Some(line) = pool.binding.lines.get_mut(self.key) {
            line.waiting.retain(|it| it.number != self.number);
            if arrived.is_some() && !self.relies_on_spare {
                // The dial ends with the exchange.
                line.handed = line.handed.saturating_sub(1);
                line.release();
            }
        }
        pool.binding.forget_if_empty(self.key);
        drop(pool);
        if let Some(connection) = arrived {
            self.origin.keep(self.key, connection);
        }
    }
}

impl Origin {
    /// Returns a connection for an exchange that found none idle: a new one, or one that becomes
    /// idle earlier.
    pub(super) async fn bind(
        self: &Rc<Self>,
        exchange: &Exchange,
        key: &PoolKey,
    ) -> Result<Bound, Error> {
        let mut turn = Turn::new(self, key, true);
        if turn.relies_on_spare {
            if let Ok(connection) = (&mut turn.arrived).await {
                return Ok(Bound::Kept(connection));
            }
            drop(turn);
            turn = Turn::new(self, key, false);
        }
        let mut dial = self.own_dial(exchange, key);
        tokio::select! {
            biased;
            Ok(connection) = &mut turn.arrived => {
                self.spare(key, dial);
                Ok(Bound::Kept(connection))
            }
            path = &mut dial => path.map(Bound::New),
        }
    }

    /// Returns a dial that does not end with the exchange.
    pub(super) fn own_dial(&self, exchange: &Exchange, key: &PoolKey) -> OwnDial {
        let (transport, wanted) = (Rc::clone(&self.transports.plain), Rc::clone(&key.origin));
        let isolation = key.part_of(&exchange.isolation);
        Box::pin(async move { transport.dial(&wanted.1, &isolation).await })
    }

    /// Continues the dial of an exchange that has got another connection, for a later exchange.
    fn spare(self: &Rc<Self>, key: &PoolKey, dial: OwnDial) {
        self.add_spare(key, dial);
        let mut pool = self.pool.borrow_mut();
        if let Some(line) = pool.binding.lines.get_mut(key) {
            line.handed = line.handed.saturating_sub(1);
        }
    }

    /// Continues a dial for a later exchange.
    pub(super) fn add_spare(self: &Rc<Self>, key: &PoolKey, dial: OwnDial) {
        let (origin, own) = (Rc::downgrade(self), key.clone());
        let mut pool = self.pool.borrow_mut();
        let number = pool.binding.number();
        let task = Task::spawn(async move {
            let path = dial.await;
            let Some(origin) = origin.upgrade() else {
                return;
            };
            match path {
                Ok(path) if path.facts().alpn() != Some(b"h2") => {
                    origin.keep_spare(&own, number, path);
                }
                _ => origin.pool.borrow_mut().binding.fail_spare(&own, number),
            }
            origin.pipelines.wake(&own);
        });
        let line = pool.binding.lines.entry(key.clone()).or_default();
        line.spares.insert(number, task);
    }

    /// Hands the connection of a spare dial on, or keeps it for a short time.
    fn keep_spare(&self, key: &PoolKey, number: u64, path: Path) {
        let connection = Rc::new(Http1Client::over(self.protocols.http1.clone(), path));
        let mut pool = self.pool.borrow_mut();
        let offered = pool.binding.offer(key, connection);
        if let Some(line) = pool.binding.lines.get_mut(key) {
            line.spares.remove(&number);
        }
        pool.binding.forget_if_empty(key);
        if let Some(connection) = offered {
            let now = tokio::time::Instant::now();
            let since = now.checked_sub(IDLE_FOR - UNUSED_FOR).unwrap_or(now);
            let idle = pool.idle.entry(key.clone()).or_default();
            // The newest connection serves first, and warm ones are better.
            idle.insert(0, Idle { connection, since });
        }
    }
}

#[cfg(test)]
mod tests;
