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

#[cfg(test)]
mod tests {
    use super::super::doubles::{FakeSession, LIMITS, gateway, run};
    use super::super::{Gateways, WayEntry};
    use super::*;
    use crate::carrier::LocalBoxFuture;
    use crate::error::Error;
    use crate::exchange::{Exchange, Isolation, Sink};
    use crate::session::Connected;

    /// A session with a number of exchanges, which takes none once it drains.
    #[derive(Default)]
    struct Counted {
        exchanges: Rc<Cell<usize>>,
        drains: Cell<bool>,
    }

    impl FakeSession for Counted {
        fn run<'a>(
            &'a self,
            _: &'a mut Exchange,
            _: &'a mut Sink,
        ) -> LocalBoxFuture<'a, Result<(), Error>> {
            Box::pin(std::future::pending())
        }

        fn drain(&self) {
            self.drains.set(true);
        }

        fn is_closed(&self) -> bool {
            self.drains.get()
        }

        fn active(&self) -> usize {
            self.exchanges.get()
        }
    }

    #[test]
    fn drained_pool_lists_sessions_until_their_end() {
        run(async {
            let exchanges = Rc::new(Cell::new(0));
            let counted = Rc::clone(&exchanges);
            let connect = move |_| -> Rc<dyn Connected> {
                Rc::new(Counted {
                    exchanges: Rc::clone(&counted),
                    ..Counted::default()
                })
            };
            let gateways = vec![gateway(connect, WayEntry::default())];
            let pool = Gateways::new(gateways, LIMITS, None);
            let listed = || pool.status().len();
            pool.session(&Isolation::none(), 0);
            assert_eq!(listed(), 1, "an idle session");
            exchanges.set(1);
            pool.drain();
            assert_eq!(listed(), 1, "a download");
            exchanges.set(0);
            assert_eq!(listed(), 0, "its end");
        });
    }
}
