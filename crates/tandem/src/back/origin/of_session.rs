//! The way to origins of one client's session, as the last stage of a gateway or a bridge.

use std::rc::Rc;

use super::{Origin, ToOrigin};
use crate::exchange::{Exchange, Reply};
use crate::stage::Stage;

/// The way to origins of one session. Dropping it closes the idle connections of the session.
pub struct OriginsOfSession {
    session: u64,
    next: ToOrigin,
}

impl OriginsOfSession {
    /// Creates the stage of the session with this number.
    pub fn new(session: u64, origin: &Rc<Origin>) -> Self {
        let next = ToOrigin(Rc::clone(origin));
        Self { session, next }
    }
}

impl Stage for OriginsOfSession {
    fn call(&self, exchange: Exchange) -> Reply {
        self.next.call(exchange)
    }
}

impl Drop for OriginsOfSession {
    fn drop(&mut self) {
        self.next.0.end_session(self.session);
    }
}
