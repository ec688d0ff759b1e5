//! The parts that the tests of the pool share.

use std::cell::Cell;
use std::rc::Rc;

use super::{Gateway, PoolLimits, WayEntry};
use crate::back::announce::Announcer;
use crate::back::doubles::no_transport;
pub(super) use crate::back::doubles::{FakeSession, run};
use crate::carrier::CarrierFuture;
use crate::session::Connected;
use crate::transport::Target;

/// The limits of a pool that keeps its sessions.
pub(super) const LIMITS: PoolLimits = PoolLimits {
    max_age: None,
    max_sessions: 10,
    reconnect: false,
    tries: 3,
    compares_ways: false,
};

/// Returns a gateway whose sessions `connect` creates.
pub(super) fn gateway(
    connect: impl Fn(CarrierFuture<'static>) -> Rc<dyn Connected> + 'static,
    way: WayEntry,
) -> Gateway {
    Gateway {
        target: Target::new("gateway".into(), 1),
        transport: no_transport(),
        session: Rc::new(connect),
        blamed: Cell::default(),
        announcer: Announcer::silent("a protocol".into()),
        has_token: false,
        way,
    }
}
