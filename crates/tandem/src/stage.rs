//! The one interface between `front`, `middle` and `back`: an exchange goes in, its reply comes
//! back.

use std::rc::Rc;

use crate::carrier::LocalBoxFuture;
use crate::error::Error;
use crate::exchange::{Exchange, Isolation, Reply, SessionMark};

/// A step of the pipeline, or a connected session. A stage changes the exchange on its way in,
/// watches or changes the parts on their way back, or answers by itself.
pub trait Stage {
    /// Takes the exchange; never blocks, never fails but through the reply.
    fn call(&self, exchange: Exchange) -> Reply;
}

/// The session that an exchange would take.
#[derive(Clone, Debug)]
pub struct CurrentSession {
    /// The identity of the session.
    pub mark: Rc<SessionMark>,
    /// The path may have been lost: nothing has been heard on it for long.
    pub has_rested: bool,
    /// The exchanges under way on it.
    pub active: usize,
}

/// Tells other stages about the sessions that their exchanges will take.
pub trait SessionPool {
    /// Returns the session of this key, if it stands or is being opened.
    fn current(&self, isolation: &Isolation) -> Option<CurrentSession>;

    /// Returns the session of this key, and begins one if there is none; `None` for a session that
    /// carries no pushes.
    fn open(&self, isolation: &Isolation) -> Option<Rc<SessionMark>>;

    /// Returns whether a session takes exchanges of this key.
    fn is_current(&self, isolation: &Isolation, mark: &Rc<SessionMark>) -> bool;

    /// Returns whether an exchange of this key would find a session that has answered a request
    /// before, and was let in.
    fn is_live(&self, isolation: &Isolation) -> bool;

    /// Returns whether that session was heard of a moment ago, so that its path surely stands.
    fn is_awake(&self, isolation: &Isolation) -> bool;

    /// Returns whether a tunnel to this authority failed a moment ago after it was agreed to.
    fn has_failed(&self, isolation: &Isolation, authority: &str) -> bool;

    /// Notes that a tunnel failed after it was agreed to.
    fn failed(&self, isolation: &Isolation, authority: &str);

    /// Resolves once the session of this key has answered, or cannot be had.
    fn establish<'a>(&'a self, isolation: &'a Isolation) -> LocalBoxFuture<'a, Result<(), Error>>;
}

impl<F: Fn(Exchange) -> Reply> Stage for F {
    fn call(&self, exchange: Exchange) -> Reply {
        self(exchange)
    }
}
