//! The parts that the tests of pools and of origins share.

use std::rc::Rc;
use std::time::Duration;

use crate::carrier::{CarrierFuture, LocalBoxFuture};
use crate::error::Error;
use crate::exchange::{Exchange, Isolation, SessionMark, Sink};
use crate::path::{Facts, Path};
use crate::session::{Connect, Connected, PathWaiter, SessionEvents, SessionState};
use crate::transport::{Dial, Target};

/// A session of the tests. The defaults are those of an established session over TCP, which carries
/// no pushes, neither fails nor rests, and answers each probe.
pub(in crate::back) trait FakeSession {
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
        !FakeSession::is_closed(self)
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

/// A protocol whose sessions a function creates.
impl<F: Fn(CarrierFuture<'static>) -> Rc<dyn Connected>> Connect for F {
    fn connect(&self, dial: CarrierFuture<'static>) -> Rc<dyn Connected> {
        self(dial)
    }
}

/// A transport that no session uses.
pub(in crate::back) struct NoTransport;

impl Dial for NoTransport {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(std::future::pending())
    }
}
