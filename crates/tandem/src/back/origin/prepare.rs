//! Connections that are opened before their first exchange. The client opens one to the origin of
//! a listed host before it answers the browser's TLS handshake, so that the origin's certificate
//! decides whether the connection is opened. A gateway does the same at the client's request.

use std::rc::Rc;

use tandem_http::Scheme;

use super::{Origin, Pool, PoolKey};
use crate::error::Error;
use crate::exchange::Isolation;
use crate::session::http1::Http1Client;
use crate::transport::Target;

/// A session of a client that will send exchanges to one origin.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The number of the session, as in the peer of its exchanges.
    pub session: u64,
    /// The isolation key of its exchanges.
    pub isolation: Isolation,
    /// The host and port of the origin.
    pub target: Target,
}

impl Origin {
    /// Opens a connection over TLS for the exchanges of a session. It is kept like other idle
    /// connections. Returns true if the origin speaks HTTP/2, which is offered if `is_h2_offered`.
    ///
    /// # Errors
    /// Returns the reason why the origin cannot be reached, or why its certificate is not accepted.
    pub async fn prepare(&self, session: Prepared, is_h2_offered: bool) -> Result<bool, Error> {
        let key = session.key();
        let transport = if is_h2_offered {
            &self.transports.secure
        } else {
            &self.transports.secure_http1
        };
        let part = key.part_of(&key.isolation);
        let path = transport.dial(&key.origin.1, &part).await?;
        let is_h2 = path.facts().alpn() == Some(b"h2");
        if is_h2 {
            let path = Box::pin(std::future::ready(Ok(path.into())));
            let session = self.protocols.multiplexed.connect(path);
            self.pool.borrow_mut().multiplexed.insert(&key, session);
        } else {
            let connection = Http1Client::over(self.protocols.http1.clone(), path);
            self.keep(&key, Rc::new(connection));
        }
        Ok(is_h2)
    }

    /// Returns whether a connection of a session to its origin is open.
    pub fn is_prepared(&self, session: &Prepared) -> bool {
        let key = session.key();
        let has_idle = |pool: &Pool| pool.idle.get(&key).is_some_and(|idle| !idle.is_empty());
        has_idle(&self.pool.borrow()) || self.multiplexed(&key).is_some()
    }

    /// Checks that the certificate of an origin is valid: a connection of the session is open, or
    /// one can be opened.
    ///
    /// # Errors
    /// As for [`Self::prepare`].
    pub async fn verify(&self, session: Prepared) -> Result<(), Error> {
        if self.is_prepared(&session) {
            return Ok(());
        }
        self.make_room(session.session);
        self.prepare(session, true).await.map(drop)
    }
}

impl Prepared {
    fn key(&self) -> PoolKey {
        PoolKey {
            session: self.session,
            isolation: self.isolation.clone(),
            origin: Rc::new((Scheme::Https, self.target.clone())),
        }
    }
}
