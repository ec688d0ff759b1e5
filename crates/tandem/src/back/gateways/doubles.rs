//! The parts that the tests of the pool share.

use std::cell::Cell;
use std::rc::Rc;

use super::{Gateway, PoolLimits, WayEntry};
use crate::back::announce::Announcer;
use crate::session::Session;
use crate::transport::{Target, Transport};

/// The limits of a pool that keeps its sessions.
pub(super) const LIMITS: PoolLimits = PoolLimits {
    max_age: None,
    max_sessions: 10,
    reconnect: false,
    tries: 3,
    compares_ways: false,
};

/// A transport that no session uses.
struct NoTransport;

impl Transport for NoTransport {
    fn below(&self) -> Option<&dyn Transport> {
        None
    }
}

/// Returns a gateway whose sessions are those of `protocol`.
pub(super) fn gateway(protocol: impl Session + 'static, way: WayEntry) -> Gateway {
    Gateway {
        target: Target {
            host: "gateway".into(),
            port: 1,
        },
        transport: Rc::new(NoTransport),
        session: Rc::new(protocol),
        blamed: Cell::default(),
        announcer: Announcer::silent("a protocol".into()),
        has_token: false,
        way,
    }
}

/// Runs a test in virtual time.
pub(super) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}
