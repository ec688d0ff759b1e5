//! The consent of gateways to HTTPS of opened hosts, which the mark of a session holds.

use std::rc::Rc;

use crate::exchange::{Isolation, SessionMark};
use crate::stage::SessionPool;

/// Returns whether the session that a request would take now has brought a marked response.
pub fn is_consenting(sessions: &dyn SessionPool, isolation: &Isolation) -> bool {
    present(sessions, isolation).is_some_and(|session| session.consents.get())
}

/// Returns the session that a request would take now; `None` if it has ended or has no identity.
pub(super) fn present(
    sessions: &dyn SessionPool,
    isolation: &Isolation,
) -> Option<Rc<SessionMark>> {
    let session = sessions.current(isolation)?.mark;
    sessions.is_current(isolation, &session).then_some(session)
}
