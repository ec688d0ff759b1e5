//! The parts that the tests of pools and of origins share.

use std::rc::Rc;
use std::time::Duration;

use crate::carrier::{CarrierFuture, LocalBoxFuture};
use crate::error::Error;
use crate::exchange::{Exchange, Part, Reply, SessionMark, Sink};
use crate::path::Facts;
use crate::session::{Connect, Connected, PathWaiter, Probing, SessionEvents, SessionState};
use crate::transport::Dial;
use crate::transport::doubles::FakeDial;

/// A session of the tests. The defaults are those of an established session over TCP, which carries
/// no pushes, neither fails nor becomes idle, and answers each probe.
pub(in crate::back) trait FakeSession {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>>;

    fn drain(&self);

    fn give_up(&self) {}

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

    fn was_idle(&self) -> bool {
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

    fn recovers<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
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

    fn replaced(&self) {
        FakeSession::drain(self);
    }

    fn give_up(&self) {
        FakeSession::give_up(self);
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

    fn was_idle(&self) -> bool {
        FakeSession::was_idle(self)
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

    fn watch_path(&self, _: Probing) -> Option<PathWaiter> {
        None
    }

    fn silent<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        FakeSession::silent(self)
    }

    fn dies<'a>(&'a self) -> LocalBoxFuture<'a, bool> {
        FakeSession::dies(self)
    }

    fn recovers<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        FakeSession::recovers(self)
    }
}

/// A protocol whose sessions a function creates.
impl<F: Fn(CarrierFuture<'static>) -> Rc<dyn Connected>> Connect for F {
    fn connect(&self, dial: CarrierFuture<'static>) -> Rc<dyn Connected> {
        self(dial)
    }
}

/// Returns a transport that no session uses.
pub(in crate::back) fn no_transport() -> Rc<dyn Dial> {
    FakeDial::new(|_| std::future::pending())
}

/// Returns the whole body of a reply.
pub(in crate::back) async fn body_of(mut reply: Reply) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(part) = reply.part().await {
        if let Part::Data(data) = part? {
            body.extend_from_slice(&data);
        }
    }
    Ok(body)
}

/// Runs a test in virtual time.
pub(in crate::back) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// The facts about a path on which HTTP/2 was negotiated.
pub(in crate::back) struct Negotiated;

impl Facts for Negotiated {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn alpn(&self) -> Option<&[u8]> {
        Some(b"h2")
    }
}
