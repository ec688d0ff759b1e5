//! The use of the sessions of the pool, which [`Gateways`](super::Gateways) counts.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The use of a session. The companion of a session does not count.
pub(super) struct SessionUsage {
    /// The number of exchanges under way.
    pub(super) exchanges: Cell<usize>,
    /// The time of the last request, or the end of the last exchange.
    pub(super) last: Cell<Instant>,
    /// Notified when an exchange begins.
    pub(super) begun: Notify,
    /// Notified when an exchange ends.
    pub(super) ended: Notify,
    /// True while the flow of the session is watched.
    pub(super) watched: Cell<bool>,
    /// True once a request was sent on the session.
    pub(super) has_carried: Cell<bool>,
}

impl SessionUsage {
    /// Creates the record of a session that begins now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            exchanges: Cell::new(0),
            last: Cell::new(now),
            begun: Notify::new(),
            ended: Notify::new(),
            watched: Cell::new(false),
            has_carried: Cell::new(false),
        }
    }
}

/// An exchange under way on a session of the pool.
pub(super) struct InUse(Rc<SessionUsage>);

impl InUse {
    /// Counts an exchange until the guard is dropped.
    pub(super) fn begin(usage: &Rc<SessionUsage>) -> Self {
        usage.exchanges.set(usage.exchanges.get() + 1);
        Self(Rc::clone(usage))
    }

    /// Notes that the session carries a request.
    pub(super) fn carries(&self) {
        self.0.has_carried.set(true);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.exchanges.set(self.0.exchanges.get() - 1);
        self.0.last.set(Instant::now());
        self.0.ended.notify_one();
    }
}
