//! The interface between `front`, `middle` and `back`: an exchange goes in, and its reply comes
//! back.

#[cfg(test)]
pub(crate) mod doubles;

use std::rc::Rc;

use tandem_http::RequestHead;
use tandem_push::wire::is_reserved;

use crate::carrier::LocalBoxFuture;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Reply, SessionMark};

/// A step of the pipeline, or a connected session. A stage may change the exchange on its way in,
/// watch or change the parts on their way back, or answer the exchange.
pub trait Stage {
    /// Takes the exchange. It never blocks, and reports failures only through the reply.
    fn call(&self, exchange: Exchange) -> Reply;
}

/// Refuses a request for a name that is reserved for the pair of proxies, as if no origin had it.
/// Returns `None` for other requests. A stage calls this after it has taken the reserved requests
/// that it serves.
pub fn refuse_reserved(request: &RequestHead) -> Option<Reply> {
    is_reserved(&request.authority).then(|| {
        Reply::fail(Error::new(
            Kind::Dns,
            Side::Origin,
            "no origin has this name",
        ))
    })
}

/// The session that an exchange would take.
#[derive(Clone, Debug)]
pub struct CurrentSession {
    /// The identity of the session.
    pub mark: Rc<SessionMark>,
    /// True if the session has long been silent, so that its path may be lost.
    pub was_idle: bool,
    /// The number of exchanges under way on the session.
    pub active: usize,
}

/// Informs other stages about the sessions that their exchanges will take.
pub trait SessionPool {
    /// Returns the session of this key, if it is open or being opened.
    fn current(&self, isolation: &Isolation) -> Option<CurrentSession>;

    /// Returns the session of this key, and begins one if there is none. Returns `None` for a
    /// session that carries no pushes.
    fn open(&self, isolation: &Isolation) -> Option<Rc<SessionMark>>;

    /// Returns true if a session takes exchanges of this key.
    fn is_current(&self, isolation: &Isolation, mark: &Rc<SessionMark>) -> bool;

    /// Returns true if an exchange of this key would use a session that has responded to a request
    /// and accepted this client.
    fn is_live(&self, isolation: &Isolation) -> bool;

    /// Returns true if a TLS handshake of this key may be sent before the response to its CONNECT.
    /// The session is live, or it is about to be opened to a gateway that has not failed.
    fn may_agree(&self, isolation: &Isolation) -> bool;

    /// Returns true if that session received input a moment ago, so that its path is certainly
    /// connected. A pool that does not watch its paths returns false.
    fn is_awake(&self, isolation: &Isolation) -> bool;

    /// Returns true if a tunnel to this authority failed a moment ago after it was agreed to.
    fn has_failed(&self, isolation: &Isolation, authority: &str) -> bool;

    /// Notes that a tunnel failed after it was agreed to.
    fn failed(&self, isolation: &Isolation, authority: &str);

    /// Resolves once the session of this key has responded or has failed.
    fn establish<'a>(&'a self, isolation: &'a Isolation) -> LocalBoxFuture<'a, Result<(), Error>>;
}

/// Informs the listeners about the pools of sessions that exchanges will take.
pub trait SessionPools {
    /// Returns the pool for requests to an authority.
    fn of(&self, authority: &str) -> Rc<dyn SessionPool>;
}

impl<F: Fn(Exchange) -> Reply> Stage for F {
    fn call(&self, exchange: Exchange) -> Reply {
        self(exchange)
    }
}
