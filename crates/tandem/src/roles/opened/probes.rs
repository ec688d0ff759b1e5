//! The probes under way for origins of opened hosts. A browser opens several connections to a host
//! at once, and these wait for one probe.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::OnceCell;

use crate::error::Error;
use crate::exchange::Isolation;

/// An isolation key, host and port.
pub(super) type ProbedOrigin = (Isolation, String, u16);

/// The probes by origin. The limit of open connections bounds them.
#[derive(Debug, Default)]
pub(super) struct SharedProbes(RefCell<HashMap<ProbedOrigin, Rc<ProbeOutcome>>>);

type ProbeOutcome = OnceCell<Result<(), Error>>;

impl SharedProbes {
    /// Returns the outcome of the probe that is under way for an origin, or else of `probe`. If the
    /// caller that sends the probe is dropped, another one sends its own.
    pub(super) async fn join<F: Future<Output = Result<(), Error>>>(
        &self,
        origin: ProbedOrigin,
        probe: impl FnOnce() -> F,
    ) -> Result<(), Error> {
        let outcome = Rc::clone(self.0.borrow_mut().entry(origin.clone()).or_default());
        let joined = Joined {
            probes: self,
            origin,
            outcome,
        };
        joined.outcome.get_or_init(probe).await.clone()
    }
}

/// A caller that waits for a probe. The last one, or the first with an outcome, removes the probe.
struct Joined<'a> {
    probes: &'a SharedProbes,
    origin: ProbedOrigin,
    outcome: Rc<ProbeOutcome>,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        let mut probes = self.probes.0.borrow_mut();
        let is_own = |known: &Rc<ProbeOutcome>| Rc::ptr_eq(known, &self.outcome);
        // The table has one count, and this caller another.
        let is_over = self.outcome.initialized() || Rc::strong_count(&self.outcome) <= 2;
        if is_over && probes.get(&self.origin).is_some_and(is_own) {
            probes.remove(&self.origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use super::*;
    use crate::error::{Kind, Side};

    fn origin() -> ProbedOrigin {
        (Isolation::none(), "a.test".into(), 443)
    }

    #[tokio::test]
    async fn connections_share_one_probe() {
        let (probes, sent) = (SharedProbes::default(), Cell::new(0));
        let failure = || Err(Error::new(Kind::Tls, Side::Origin, "expired"));
        let probe = || async {
            sent.set(sent.get() + 1);
            tokio::task::yield_now().await;
            failure()
        };
        let outcomes = tokio::join!(
            probes.join(origin(), probe),
            probes.join(origin(), probe),
            probes.join((Isolation::new(b"u", b""), "a.test".into(), 443), probe),
        );
        assert_eq!(outcomes, (failure(), failure(), failure()));
        assert_eq!(sent.get(), 2, "keys share nothing");
        assert_eq!(probes.join(origin(), probe).await, failure());
        assert_eq!(sent.get(), 3, "an outcome serves those who waited");
        assert!(probes.0.borrow().is_empty());
    }

    #[tokio::test]
    async fn dropped_probe_is_sent_by_another_connection() {
        let probes = SharedProbes::default();
        let first = probes.join(origin(), pending);
        let mut first = Box::pin(first);
        let second = probes.join(origin(), || async { Ok(()) });
        let mut second = Box::pin(second);
        let waits = tokio::time::timeout(std::time::Duration::ZERO, &mut first).await;
        assert!(waits.is_err());
        let waits = tokio::time::timeout(std::time::Duration::ZERO, &mut second).await;
        assert!(waits.is_err());
        drop(first);
        assert_eq!(second.await, Ok(()));
        assert!(probes.0.borrow().is_empty());
    }
}
