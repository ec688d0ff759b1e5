//! A pool of sessions for the tests of the stages that ask for one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::{CurrentSession, SessionPool, SessionPools};
use crate::carrier::LocalBoxFuture;
use crate::error::Error;
use crate::exchange::{Isolation, SessionMark};

/// A pool with one session for all keys, or none. It opens no other one.
#[derive(Clone, Default)]
pub(crate) struct OneSession {
    pub(crate) mark: Rc<RefCell<Option<Rc<SessionMark>>>>,
    pub(crate) is_live: Rc<Cell<bool>>,
    pub(crate) is_awake: Rc<Cell<bool>>,
}

impl OneSession {
    /// Returns a pool with a session that carries pushes.
    pub(crate) fn of(mark: Rc<SessionMark>) -> Self {
        let pool = Self::default();
        pool.mark.replace(Some(mark));
        pool
    }
}

impl SessionPool for OneSession {
    fn current(&self, _: &Isolation) -> Option<CurrentSession> {
        let mark = self.mark.borrow().clone()?;
        Some(CurrentSession {
            mark,
            was_idle: false,
            active: 1,
        })
    }

    fn open(&self, _: &Isolation) -> Option<Rc<SessionMark>> {
        None
    }

    fn is_current(&self, _: &Isolation, mark: &Rc<SessionMark>) -> bool {
        let current = self.mark.borrow();
        current.as_ref().is_some_and(|it| Rc::ptr_eq(it, mark))
    }

    fn is_live(&self, _: &Isolation) -> bool {
        self.is_live.get()
    }

    fn may_agree(&self, _: &Isolation) -> bool {
        self.is_live.get()
    }

    fn is_awake(&self, _: &Isolation) -> bool {
        self.is_awake.get()
    }

    fn has_failed(&self, _: &Isolation, _: &str) -> bool {
        false
    }

    fn failed(&self, _: &Isolation, _: &str) {}

    fn establish<'a>(&'a self, _: &'a Isolation) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl SessionPools for OneSession {
    fn of(&self, _: &str) -> Rc<dyn SessionPool> {
        Rc::new(self.clone())
    }
}
