//! The memory of a client for the bodies that gateways compressed. Each isolation key has a share.
//!
//! The gateway sees whether a request offers a coding, and which version of a body it names. No key
//! may therefore take memory from another one: a gateway could recognise by it that two keys belong
//! to the same client. A bound of the whole is so far away that only many keys with full shares
//! reach it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tandem_coding::dictionary::{MAX_DICTIONARY, Memory};
use tandem_coding::{Budget, Decoder};

use crate::exchange::Isolation;

/// The memory in bytes of one body: its decoder, and its content for a later version.
pub(super) const MEMORY: usize = Decoder::memory() + MAX_DICTIONARY;

/// The number of bodies that requests without a key may receive at once.
const BODIES: usize = 128;

/// The memory in bytes for the former versions of bodies of requests without a key.
const VERSIONS: usize = 32 << 20;

/// The number of bodies that all keys may receive at once. It bounds the memory of a client whose
/// gateway is hostile.
const ALL_BODIES: usize = 512;

/// The divisor of the shares above that gives the share of a key. A key is usually one site, and
/// requests without a key are those for all sites.
const OF_KEY: usize = 4;

/// The memory for coded bodies of all isolation keys. Clones share it.
#[derive(Clone)]
pub struct DecodingMemory {
    keys: Rc<RefCell<HashMap<Isolation, Rc<KeyMemory>>>>,
    whole: Budget,
    bodies: usize,
}

/// The memory of one isolation key.
pub(super) struct KeyMemory {
    /// The memory of bodies under way.
    pub(super) decoders: Budget,
    /// The memory of the former versions of bodies.
    pub(super) versions: Memory,
}

impl Default for DecodingMemory {
    fn default() -> Self {
        Self::new(BODIES)
    }
}

impl DecodingMemory {
    /// Creates memory for a number of bodies without a key.
    pub(super) fn new(bodies: usize) -> Self {
        Self {
            keys: Rc::default(),
            whole: Budget::new(ALL_BODIES * MEMORY),
            bodies,
        }
    }

    /// Returns the memory of a key.
    pub(super) fn of(&self, isolation: &Isolation) -> Rc<KeyMemory> {
        let mut keys = self.keys.borrow_mut();
        if let Some(memory) = keys.get(isolation) {
            return Rc::clone(memory);
        }
        keys.retain(|_, memory| Rc::strong_count(memory) > 1 || !memory.versions.is_empty());
        let part = match *isolation == Isolation::none() {
            true => 1,
            false => OF_KEY,
        };
        let memory = Rc::new(KeyMemory {
            decoders: self.whole.part(self.bodies.div_ceil(part) * MEMORY),
            versions: Memory::new(VERSIONS / part),
        });
        keys.insert(isolation.clone(), Rc::clone(&memory));
        memory
    }
}

#[cfg(test)]
mod tests {
    use tandem_coding::Name;
    use tandem_coding::dictionary::{Dictionaries, Dictionary};

    use super::*;

    fn key(number: usize) -> Isolation {
        Isolation::new(&number.to_be_bytes(), b"")
    }

    fn version() -> Dictionary {
        Dictionary {
            name: Name::of_hash(&[1; 32]).expect("long enough"),
            body: vec![1; 600].into(),
        }
    }

    #[test]
    fn shares_of_keys_are_bounded_and_apart() {
        let all = DecodingMemory::default();
        let (one, other, none) = (all.of(&key(1)), all.of(&key(2)), all.of(&Isolation::none()));
        let taken: Vec<_> = std::iter::from_fn(|| one.decoders.reserve(MEMORY)).collect();
        assert_eq!(taken.len(), BODIES / OF_KEY);
        assert!(all.of(&key(1)).decoders.reserve(MEMORY).is_none());
        assert_eq!(other.decoders.left(), BODIES / OF_KEY * MEMORY);
        assert_eq!(none.decoders.left(), BODIES * MEMORY);
    }

    /// A request that names no version any more would show the load of the other key.
    #[test]
    fn versions_of_a_key_stay_whatever_other_keys_do() {
        let all = DecodingMemory::default();
        let session = Dictionaries::default();
        session.insert("a".into(), version(), &all.of(&key(1)).versions);
        let long = Dictionary {
            body: vec![1; MAX_DICTIONARY].into(),
            ..version()
        };
        let others: Vec<_> = (0..64).map(|_| Dictionaries::default()).collect();
        for other in &others {
            for name in 0..8 {
                let versions = &all.of(&key(2)).versions;
                other.insert(name.to_string(), long.clone(), versions);
            }
        }
        assert!(session.get("a").is_some());
    }

    #[test]
    fn unused_keys_leave_no_entry() {
        let all = DecodingMemory::default();
        let (session, held) = (Dictionaries::default(), all.of(&key(1)));
        session.insert("a".into(), version(), &all.of(&key(2)).versions);
        for number in 3..9 {
            all.of(&key(number));
        }
        // The memory of the latest key stays until the next one comes.
        assert_eq!(all.keys.borrow().len(), 3);
        drop((session, held));
        all.of(&key(9));
        assert_eq!(all.keys.borrow().len(), 1);
    }
}
