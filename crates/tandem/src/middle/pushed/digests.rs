//! The digests of all isolation keys. Their number is bounded: the digest that was unused for
//! longest makes room for a new one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tandem_push::client::Digest;

use crate::exchange::Isolation;

/// The digests by isolation key.
pub(super) struct Digests {
    /// The largest number of digests.
    most: usize,
    /// The number of uses so far, which orders the digests.
    uses: u64,
    kept: HashMap<Isolation, KeptDigests>,
}

struct KeptDigests {
    digest: Rc<RefCell<Digest>>,
    last_use: u64,
}

impl Digests {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            uses: 0,
            kept: HashMap::new(),
        }
    }

    /// Returns the digest of a key, and counts this as a use.
    pub(super) fn of(&mut self, isolation: &Isolation) -> Rc<RefCell<Digest>> {
        self.uses += 1;
        if let Some(kept) = self.kept.get_mut(isolation) {
            kept.last_use = self.uses;
            return Rc::clone(&kept.digest);
        }
        if self.kept.len() >= self.most {
            self.drop_oldest();
        }
        let digest = Rc::default();
        let kept = KeptDigests {
            digest: Rc::clone(&digest),
            last_use: self.uses,
        };
        self.kept.insert(isolation.clone(), kept);
        digest
    }

    /// Drops the digest that was unused for longest. Only a new key makes this necessary, so a scan
    /// of the few hundred digests is cheap enough.
    fn drop_oldest(&mut self) {
        let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.last_use);
        if let Some(isolation) = oldest.map(|(isolation, _)| isolation.clone()) {
            self.kept.remove(&isolation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_digests_drop_the_longest_unused_key() {
        let key = |name: &str| Isolation::new(name.as_bytes(), b"");
        let mut digests = Digests::new(2);
        let (first, second) = (digests.of(&key("a")), digests.of(&key("b")));
        assert!(Rc::ptr_eq(&digests.of(&key("a")), &first), "used again");
        digests.of(&key("c"));
        assert_eq!(digests.kept.len(), 2);
        assert!(Rc::ptr_eq(&digests.of(&key("a")), &first));
        assert!(!Rc::ptr_eq(&digests.of(&key("b")), &second));
    }
}
