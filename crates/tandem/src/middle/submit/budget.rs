//! The memory for bodies of one thread, and the number of its deliveries.
//!
//! Bodies share [`SHARED`] bytes, of which a client gets at most a quarter. A single body that does
//! not fit has space beside them, up to the largest size of a body. A client that sends slowly or
//! much therefore leaves room for the others. Bytes count when they arrive, not when they are
//! announced. Encapsulated requests have a separate budget of this size.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// The bytes that all bodies hold together, except the one beside them.
pub(super) const SHARED: u64 = 64 << 20;

/// The bytes that the bodies of one client hold together, except the one beside them.
pub(super) const CLIENT_SHARE: u64 = SHARED / 4;

/// The bytes that count for each submission beside its body: its head and its delivery.
const OVERHEAD: u64 = 16 << 10;

/// The number of deliveries that start without the queue of the store. With those from the queue,
/// they fit into the connections to one origin.
const DIRECT: usize = 48;

/// The memory and the deliveries of one thread.
#[derive(Debug, Default)]
pub(super) struct Budget {
    shared: Cell<u64>,
    clients: RefCell<HashMap<String, u64>>,
    /// True if a body is held beside the others.
    has_large: Cell<bool>,
    direct: Cell<usize>,
}

/// The memory for one submission, returned when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    budget: Rc<Budget>,
    client: String,
    bytes: u64,
    is_large: bool,
}

/// The right to one delivery, returned when it is dropped.
#[derive(Debug)]
pub(super) struct DeliveryPermit(Rc<Budget>);

impl Budget {
    /// Returns memory for a submission of `client` without its body. Returns `None` if there is
    /// none, or if a body of the announced length would not fit at present.
    pub(super) fn open(self: &Rc<Self>, client: &str, length: Option<u64>) -> Option<Held> {
        let total = OVERHEAD.saturating_add(length.unwrap_or_default());
        let fits = self.fits(client, total) || !self.has_large.get();
        let mut held = Held {
            budget: Rc::clone(self),
            client: client.to_owned(),
            bytes: 0,
            is_large: false,
        };
        (fits && held.add(OVERHEAD)).then_some(held)
    }

    /// Returns the right to a delivery, unless there are too many.
    pub(super) fn deliver(self: &Rc<Self>) -> Option<DeliveryPermit> {
        let direct = self.direct.get();
        (direct < DIRECT).then(|| {
            self.direct.set(direct + 1);
            DeliveryPermit(Rc::clone(self))
        })
    }

    fn fits(&self, client: &str, bytes: u64) -> bool {
        let clients = self.clients.borrow();
        let held = clients.get(client).copied().unwrap_or_default();
        held.saturating_add(bytes) <= CLIENT_SHARE
            && self.shared.get().saturating_add(bytes) <= SHARED
    }

    fn charge(&self, client: &str, bytes: u64) {
        self.shared.set(self.shared.get().saturating_add(bytes));
        let mut clients = self.clients.borrow_mut();
        let held = clients.entry(client.to_owned()).or_default();
        *held = held.saturating_add(bytes);
    }

    fn refund(&self, client: &str, bytes: u64) {
        self.shared.set(self.shared.get().saturating_sub(bytes));
        let mut clients = self.clients.borrow_mut();
        if let Some(held) = clients.get_mut(client) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                clients.remove(client);
            }
        }
    }
}

impl Held {
    /// Adds bytes that arrived. Returns false if there is no memory for them.
    pub(super) fn add(&mut self, bytes: u64) -> bool {
        let budget = &self.budget;
        if !self.is_large {
            if budget.fits(&self.client, bytes) {
                budget.charge(&self.client, bytes);
            } else if budget.has_large.replace(true) {
                return false;
            } else {
                budget.refund(&self.client, self.bytes);
                self.is_large = true;
            }
        }
        self.bytes = self.bytes.saturating_add(bytes);
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.is_large {
            true => self.budget.has_large.set(false),
            false => self.budget.refund(&self.client, self.bytes),
        }
    }
}

impl Drop for DeliveryPermit {
    fn drop(&mut self) {
        let direct = &self.0.direct;
        direct.set(direct.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn budget_leaves_room_for_other_clients() {
        let budget = Rc::<Budget>::default();
        let open = |client, mib| budget.open(client, Some(mib * MIB));
        let (mut one, mut two) = (open("a", 64).expect("room"), open("a", 10).expect("room"));
        let mut three = open("a", 10).expect("announced bytes are free");
        // The first does not fit into the share, and the third has no place beside it.
        assert!((0..64).all(|_| one.add(MIB)));
        assert!(two.add(10 * MIB) && !three.add(10 * MIB));
        assert!(open("a", 7).is_none() && open("b", 64).is_none());
        let mut other = open("b", 7).expect("a share of another client");
        assert!(other.add(7 * MIB));
        drop(one);
        assert!(three.add(10 * MIB) && open("a", 7).is_none());
        drop(two);
        assert!(open("a", 7).is_some());
    }

    #[test]
    fn budget_charges_empty_bodies() {
        let budget = Rc::<Budget>::default();
        let open = |_| budget.open("a", Some(0));
        let held: Vec<_> = (0..5000).map_while(open).collect();
        // One more is held beside them.
        assert_eq!(held.len() as u64, CLIENT_SHARE / OVERHEAD + 1);
        let direct: Vec<_> = (0..1000).map_while(|_| budget.deliver()).collect();
        assert_eq!(direct.len(), DIRECT);
        drop(direct);
        assert!(budget.deliver().is_some());
    }

    proptest! {
        #[test]
        fn budget_is_returned_completely(steps in prop::collection::vec((0usize..4, 0u64..20), 0..40)) {
            let budget = Rc::<Budget>::default();
            let names = ["a", "b", "c", "d"];
            let mut held = Vec::new();
            for (client, mib) in steps {
                if let Some(mut one) = budget.open(names[client], None) {
                    let _ = one.add(mib * MIB);
                    held.push(one);
                }
                prop_assert!(budget.shared.get() <= SHARED);
                prop_assert!(held.iter().filter(|it| it.is_large).count() <= 1);
                let clients = budget.clients.borrow();
                prop_assert!(clients.values().all(|bytes| *bytes <= CLIENT_SHARE));
            }
            held.clear();
            prop_assert_eq!(budget.shared.get(), 0);
            prop_assert!(budget.clients.borrow().is_empty() && !budget.has_large.get());
        }
    }
}
