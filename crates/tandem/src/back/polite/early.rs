//! The early requests under way, as long as no request of the browser has joined them.
//!
//! An early request ends if it makes no progress, and if a request that must not be repeated needs
//! its connection. A later request of the browser for the same resource is sent as usual.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Canceller, Part, Reply};
use crate::priority::SharedPriority;

/// The time without progress after which an early request ends.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// The early requests under way, by number. The newest has the highest number.
pub(super) struct EarlyRequests<K> {
    issued: Cell<u64>,
    under_way: RefCell<BTreeMap<u64, EarlyEntry<K>>>,
}

struct EarlyEntry<K> {
    key: K,
    priority: SharedPriority,
    canceller: Canceller,
}

impl<K> Default for EarlyRequests<K> {
    fn default() -> Self {
        Self {
            issued: Cell::default(),
            under_way: RefCell::default(),
        }
    }
}

impl<K: Clone + PartialEq> EarlyRequests<K> {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.borrow().is_empty()
    }

    /// Adds a request, if it is an early one. `canceller` ends its reply.
    pub(super) fn add(
        self: &Rc<Self>,
        key: &K,
        priority: &SharedPriority,
        canceller: Canceller,
    ) -> Option<EarlyRequest<K>> {
        if !priority.get().push {
            return None;
        }
        let number = self.issued.get();
        self.issued.set(number + 1);
        let entry = EarlyEntry {
            key: key.clone(),
            priority: priority.clone(),
            canceller,
        };
        self.under_way.borrow_mut().insert(number, entry);
        Some(EarlyRequest {
            requests: Rc::clone(self),
            number,
            priority: priority.clone(),
        })
    }

    /// Ends the newest early requests of a key that no request has joined, up to a number.
    pub(super) fn end(&self, key: &K, count: usize) {
        // The end of a reply removes its entry, so the table must not be borrowed then.
        let ended: Vec<Canceller> = {
            let under_way = self.under_way.borrow();
            let of_key = under_way.values().rev().filter(|it| it.key == *key);
            let unjoined = of_key.filter(|it| it.priority.get().push);
            unjoined
                .map(|it| it.canceller.clone())
                .take(count)
                .collect()
        };
        for canceller in ended {
            canceller.fail(gave_up("an early request gave way to another request"));
        }
    }
}

/// An early request under way.
pub(super) struct EarlyRequest<K> {
    requests: Rc<EarlyRequests<K>>,
    number: u64,
    priority: SharedPriority,
}

impl<K> EarlyRequest<K> {
    /// Returns the next part of the reply.
    ///
    /// # Errors
    /// Fails if the request makes no progress while no request waits for it.
    pub(super) async fn part(
        &self,
        reply: &mut Reply,
    ) -> Result<Option<Result<Part, Error>>, Error> {
        loop {
            match tokio::time::timeout(PROGRESS_TIMEOUT, reply.part()).await {
                Ok(part) => return Ok(part),
                Err(_) if !self.priority.get().push => {}
                Err(_) => return Err(gave_up("an early request made no progress")),
            }
        }
    }
}

impl<K> Drop for EarlyRequest<K> {
    fn drop(&mut self) {
        self.requests.under_way.borrow_mut().remove(&self.number);
    }
}

fn gave_up(detail: &'static str) -> Error {
    Error::new(Kind::Reset, Side::Local, detail)
}
