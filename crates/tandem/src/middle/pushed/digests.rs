//! The digests of all isolation keys. Their number is bounded: the digest that was unused for
//! longest makes room for a new one. The digest of requests without a key may be in a file.

use std::collections::HashMap;

use crate::digest_file::SharedDigest;
use crate::exchange::Isolation;

/// The digests by isolation key.
pub(super) struct Digests {
    /// The largest number of digests.
    most: usize,
    /// The number of uses so far, which orders the digests.
    uses: u64,
    kept: HashMap<Isolation, KeptDigests>,
    /// The digest of requests without a key, if a file keeps it.
    in_file: Option<SharedDigest>,
}

struct KeptDigests {
    digest: SharedDigest,
    last_use: u64,
}

impl Digests {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            uses: 0,
            kept: HashMap::new(),
            in_file: None,
        }
    }

    /// Uses `digest` for requests without a key.
    pub(super) fn keep_in_file(&mut self, digest: SharedDigest) {
        self.in_file = Some(digest);
    }

    /// Returns the digest of a key, and counts this as a use.
    pub(super) fn of(&mut self, isolation: &Isolation) -> SharedDigest {
        if let Some(digest) = &self.in_file
            && *isolation == Isolation::none()
        {
            return digest.clone();
        }
        self.uses += 1;
        if let Some(kept) = self.kept.get_mut(isolation) {
            kept.last_use = self.uses;
            return kept.digest.clone();
        }
        if self.kept.len() >= self.most {
            self.drop_oldest();
        }
        let digest = SharedDigest::default();
        let kept = KeptDigests {
            digest: digest.clone(),
            last_use: self.uses,
        };
        self.kept.insert(isolation.clone(), kept);
        digest
    }

    /// Drops the digests of the parts of keys that belong to a connection of a browser.
    pub(super) fn end_parts_of(&mut self, connection: u64) {
        self.kept.retain(|key, _| key.connection() != connection);
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
        assert!(digests.of(&key("a")).is_same(&first), "used again");
        digests.of(&key("c"));
        assert_eq!(digests.kept.len(), 2);
        assert!(digests.of(&key("a")).is_same(&first));
        assert!(!digests.of(&key("b")).is_same(&second));
    }

    #[test]
    fn digest_of_a_connection_ends_with_it() {
        let key = Isolation::new(b"a", b"");
        let parts = [key.clone(), key.within(1), key.within(2)];
        let mut digests = Digests::new(9);
        let first = parts.each_ref().map(|part| digests.of(part));
        digests.end_parts_of(1);
        let kept: Vec<_> = parts.iter().zip(&first).collect();
        let kept = kept
            .into_iter()
            .map(|(part, first)| digests.of(part).is_same(first));
        assert_eq!(kept.collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn file_keeps_the_digest_of_requests_without_a_key() {
        let in_file = SharedDigest::default();
        let mut digests = Digests::new(2);
        digests.keep_in_file(in_file.clone());
        assert!(digests.of(&Isolation::none()).is_same(&in_file));
        for name in [&b""[..], b"a"] {
            assert!(!digests.of(&Isolation::new(name, b"")).is_same(&in_file));
        }
    }
}
