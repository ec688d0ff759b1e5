//! The pool as the other stages see it: the present session of an isolation key.

use std::rc::Rc;

use super::ToGateway;
use crate::carrier::LocalBoxFuture;
use crate::error::Error;
use crate::exchange::{Isolation, SessionMark};
use crate::stage::{CurrentSession, SessionPool};

impl SessionPool for ToGateway {
    fn current(&self, isolation: &Isolation) -> Option<CurrentSession> {
        let entry = self.0.entry(isolation);
        let slots = self.0.slots.borrow();
        let slot = slots.get(&(isolation.clone(), entry))?;
        Some(CurrentSession {
            mark: slot.current.mark()?,
            was_idle: slot.current.was_idle(),
            active: slot.current.active(),
        })
    }

    fn open(&self, isolation: &Isolation) -> Option<Rc<SessionMark>> {
        self.0.session(isolation, self.0.entry(isolation)).mark()
    }

    fn is_current(&self, isolation: &Isolation, mark: &Rc<SessionMark>) -> bool {
        let slots = self.0.slots.borrow();
        (0..self.0.gateways.len()).any(|gateway| {
            let slot = slots.get(&(isolation.clone(), gateway));
            slot.filter(|slot| !slot.current.is_closed())
                .and_then(|slot| slot.current.mark())
                .is_some_and(|current| Rc::ptr_eq(&current, mark))
        })
    }

    fn is_live(&self, isolation: &Isolation) -> bool {
        let key = (isolation.clone(), self.0.entry(isolation));
        let slots = self.0.slots.borrow();
        slots.get(&key).is_some_and(|slot| {
            slot.current.is_established()
                && slot.current.admission() == Some(true)
                && !slot.current.is_closed()
        })
    }

    fn may_agree(&self, isolation: &Isolation) -> bool {
        // A failure is known until an exchange has ended, and tunnels last for minutes.
        if self.is_live(isolation) {
            return true;
        }
        let entry = self.0.entry(isolation);
        if self.0.gateways.is_empty() {
            return false;
        }
        let slots = self.0.slots.borrow();
        let slot = slots.get(&(isolation.clone(), entry));
        let is_refused = slot.is_some_and(|slot| slot.current.admission() == Some(false));
        !is_refused && !self.0.gateway_has_failed(isolation, entry)
    }

    fn is_awake(&self, isolation: &Isolation) -> bool {
        let key = (isolation.clone(), self.0.entry(isolation));
        let slots = self.0.slots.borrow();
        slots.get(&key).is_some_and(|slot| !slot.current.was_idle())
    }

    fn has_failed(&self, isolation: &Isolation, authority: &str) -> bool {
        self.0.failures.contains(isolation, authority)
    }

    fn failed(&self, isolation: &Isolation, authority: &str) {
        self.0.failures.note(isolation, authority);
    }

    fn establish<'a>(&'a self, isolation: &'a Isolation) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            // If a fallback exists, the exchange itself finds out whether the destination is
            // reachable.
            self.0.establish(isolation).await.or_else(|error| {
                if self.0.fallback.is_some() {
                    Ok(())
                } else {
                    Err(error)
                }
            })
        })
    }
}
