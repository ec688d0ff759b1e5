//! The sessions whose gateway has shown that it consents to HTTPS of opened hosts.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::exchange::{Isolation, SessionMark};
use crate::stage::SessionPool;

/// The open sessions that have brought a marked response.
#[derive(Debug, Default)]
pub struct ConsentingSessions(RefCell<Vec<Weak<SessionMark>>>);

impl ConsentingSessions {
    /// Notes a session that has brought a marked response.
    pub fn note(&self, session: &Rc<SessionMark>) {
        if self.contains(session) {
            return;
        }
        let mut sessions = self.0.borrow_mut();
        // The limit of open sessions thus bounds the list.
        sessions.retain(|known| known.strong_count() > 0);
        sessions.push(Rc::downgrade(session));
    }

    /// Returns whether the session that a request would take now has brought a marked response.
    pub fn has_present(&self, sessions: &dyn SessionPool, isolation: &Isolation) -> bool {
        present(sessions, isolation).is_some_and(|session| self.contains(&session))
    }

    fn contains(&self, session: &Rc<SessionMark>) -> bool {
        let sessions = self.0.borrow();
        sessions
            .iter()
            .any(|known| std::ptr::eq(known.as_ptr(), Rc::as_ptr(session)))
    }
}

/// Returns the session that a request would take now; `None` if it has ended or has no identity.
pub(super) fn present(
    sessions: &dyn SessionPool,
    isolation: &Isolation,
) -> Option<Rc<SessionMark>> {
    let session = sessions.current(isolation)?.mark;
    sessions.is_current(isolation, &session).then_some(session)
}
