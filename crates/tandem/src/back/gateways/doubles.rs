//! The parts that the tests of the pool share.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::{Gateway, PoolLimits, WayEntry};
use crate::back::announce::Announcer;
use crate::carrier::{Carrier, LocalBoxFuture};
use crate::error::Error;
use crate::exchange::{Exchange, Peer, SessionMark, Sink};
use crate::path::Facts;
use crate::session::{Connected, Drain, PathWaiter, Session, SessionEvents, SessionState};
use crate::stage::Stage;
use crate::transport::{Target, Transport};

/// The limits of a pool that keeps its sessions.
pub(super) const LIMITS: PoolLimits = PoolLimits {
    max_age: None,
    max_sessions: 10,
    reconnect: false,
    tries: 3,
    compares_ways: false,
};

/// A session of the tests. The defaults are those of an established session over TCP, which carries
/// no pushes, neither fails nor rests, and answers each probe.
pub(super) trait FakeSession {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>>;

    fn drain(&self);

    fn is_closed(&self) -> bool;

    fn is_established(&self) -> bool {
        true
    }

    fn active(&self) -> usize {
        0
    }

    fn facts(&self) -> Option<Rc<dyn Facts>> {
        None
    }

    fn has_rested(&self) -> bool {
        false
    }

    fn mark(&self) -> Option<Rc<SessionMark>> {
        None
    }

    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn takes_early<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        FakeSession::established(self)
    }

    fn answers<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        FakeSession::established(self)
    }

    fn silent<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn dies<'a>(&'a self) -> LocalBoxFuture<'a, bool> {
        Box::pin(std::future::pending())
    }
}

impl<S: FakeSession> Connected for S {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        FakeSession::run(self, exchange, sink)
    }

    fn drain(&self) {
        FakeSession::drain(self);
    }
}

impl<S: FakeSession> SessionState for S {
    fn is_ready(&self) -> bool {
        true
    }

    fn has_room(&self) -> bool {
        true
    }

    fn is_closed(&self) -> bool {
        FakeSession::is_closed(self)
    }

    fn is_established(&self) -> bool {
        FakeSession::is_established(self)
    }

    fn active(&self) -> usize {
        FakeSession::active(self)
    }

    fn facts(&self) -> Option<Rc<dyn Facts>> {
        FakeSession::facts(self)
    }

    fn has_rested(&self) -> bool {
        FakeSession::has_rested(self)
    }

    fn mark(&self) -> Option<Rc<SessionMark>> {
        FakeSession::mark(self)
    }

    fn admission(&self) -> Option<bool> {
        None
    }

    fn answered_in(&self) -> Option<Duration> {
        None
    }
}

impl<S: FakeSession> SessionEvents for S {
    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        FakeSession::established(self)
    }

    fn takes_early<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        FakeSession::takes_early(self)
    }

    fn ended(&self) -> LocalBoxFuture<'static, Option<Error>> {
        Box::pin(std::future::pending())
    }

    fn lost<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn answers<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        FakeSession::answers(self)
    }

    fn watch_path(&self) -> Option<PathWaiter> {
        None
    }

    fn silent<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        FakeSession::silent(self)
    }

    fn dies<'a>(&'a self) -> LocalBoxFuture<'a, bool> {
        FakeSession::dies(self)
    }
}

/// A dial that a session begins with.
pub(super) type Dial = LocalBoxFuture<'static, Result<Carrier, Error>>;

/// A protocol whose sessions a function creates.
struct FakeProtocol<F>(F);

impl<F: Fn(Dial) -> Rc<dyn Connected>> Session for FakeProtocol<F> {
    fn connect(&self, dial: Dial) -> Rc<dyn Connected> {
        self.0(dial)
    }

    fn serve(
        &self,
        _: Carrier,
        _: Peer,
        _: Rc<dyn Stage>,
        _: Drain,
    ) -> LocalBoxFuture<'static, Result<(), Error>> {
        unreachable!("the tests have no gateway")
    }
}

/// A transport that no session uses.
struct NoTransport;

impl Transport for NoTransport {
    fn below(&self) -> Option<&dyn Transport> {
        None
    }
}

/// Returns a gateway whose sessions `connect` creates.
pub(super) fn gateway(
    connect: impl Fn(Dial) -> Rc<dyn Connected> + 'static,
    way: WayEntry,
) -> Gateway {
    Gateway {
        target: Target {
            host: "gateway".into(),
            port: 1,
        },
        transport: Rc::new(NoTransport),
        session: Rc::new(FakeProtocol(connect)),
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
