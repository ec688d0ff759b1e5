//! The pool as the other stages see it: the present session of an isolation key.

use std::rc::Rc;

use super::choice::ChosenSession;
use super::{Gateways, ToGateway, unauthorized};
use crate::carrier::LocalBoxFuture;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Isolation, SessionMark};
use crate::stage::{CurrentSession, SessionPool};

impl Gateways {
    /// Opens the session of a key if the key has none, and waits until a gateway has answered.
    pub(super) async fn establish(&self, isolation: &Isolation) -> Result<(), Error> {
        let mut last = Error::new(Kind::Unreachable, Side::Peer, "no gateway is configured");
        for attempt in 0..self.groups.len() {
            let group = (self.preferred_group(isolation) + attempt) % self.groups.len();
            let (mut established, mut chosen) = self.open_established(isolation, group).await;
            for _ in 1..self.limits.tries {
                // A reload drains sessions that wait for their gateway too.
                if established.is_ok() || chosen.0.ended().await.is_some() {
                    break;
                }
                (established, chosen) = self.open_established(isolation, group).await;
            }
            let (session, index, in_use) = chosen;
            drop(in_use);
            match established {
                Ok(()) => {
                    if session.admission() == Some(false) {
                        return Err(unauthorized(self.gateways[index].has_token));
                    }
                    self.gateways[index].answered(&*session);
                    self.answered(isolation);
                    return Ok(());
                }
                Err(error) => {
                    self.gateways[index].announcer.down(&error);
                    if let Some(opened) = self.forget(&(isolation.clone(), index), &session) {
                        self.blame(isolation, index, opened);
                    }
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// Chooses a session to a gateway, and waits until it is established or has failed.
    async fn open_established(
        &self,
        isolation: &Isolation,
        group: usize,
    ) -> (Result<(), Error>, ChosenSession) {
        loop {
            let chosen = self.choose(isolation, group, false).await;
            tokio::select! {
                biased;
                established = chosen.0.established() => return (established, chosen),
                () = self.until_answered_elsewhere(isolation, chosen.1, &chosen.0) => {}
            }
        }
    }
}

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
