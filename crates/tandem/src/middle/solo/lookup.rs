//! The sessions without a gateway as the other stages see them.

use std::rc::Rc;

use super::ToSolo;
use crate::carrier::LocalBoxFuture;
use crate::error::Error;
use crate::exchange::{Isolation, SessionMark};
use crate::stage::{CurrentSession, SessionPool};

impl SessionPool for ToSolo {
    fn current(&self, isolation: &Isolation) -> Option<CurrentSession> {
        let sessions = self.0.sessions.borrow();
        let session = sessions.get(isolation)?;
        Some(CurrentSession {
            mark: Rc::clone(&session.mark),
            was_idle: false,
            active: session.active.get(),
        })
    }

    fn open(&self, isolation: &Isolation) -> Option<Rc<SessionMark>> {
        Some(Rc::clone(&self.0.session(isolation)?.mark))
    }

    fn is_current(&self, isolation: &Isolation, mark: &Rc<SessionMark>) -> bool {
        let sessions = self.0.sessions.borrow();
        let session = sessions.get(isolation);
        session.is_some_and(|session| Rc::ptr_eq(&session.mark, mark))
    }

    /// Returns false: the client agrees to a tunnel once its connection is begun.
    fn is_live(&self, _: &Isolation) -> bool {
        false
    }

    fn may_agree(&self, _: &Isolation) -> bool {
        false
    }

    /// Returns false: there is no path to a gateway.
    fn is_awake(&self, _: &Isolation) -> bool {
        false
    }

    /// Returns false: no tunnel is agreed to before its connection is begun.
    fn has_failed(&self, _: &Isolation, _: &str) -> bool {
        false
    }

    fn failed(&self, _: &Isolation, _: &str) {}

    fn establish<'a>(&'a self, _: &'a Isolation) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
