//! The bodies that one end of a session holds as dictionaries for later versions of the same
//! resource: the mechanism of RFC 9842 within a session.
//!
//! Both ends keep the bodies that crossed a session compressed. The client names the version that
//! it holds, by a hash of its content. The gateway uses it if it holds the same version for the
//! same session and URL, and says so in the response. A dictionary therefore never crosses origins,
//! sessions or isolation keys, and its content obeyed the rule for compression ([`crate::rule`]).
//!
//! The stores of all sessions share a [`Budget`]. A store takes no more than a part of the bytes
//! that the budget has left, so a new session finds memory although others have filled theirs.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use bytes::Bytes;

use crate::{Budget, Reservation};

/// The smallest and the largest body that is kept, in bytes.
const KEPT: std::ops::RangeInclusive<usize> = 512..=MAX_DICTIONARY;

/// The largest dictionary in bytes. Both versions must fit into one window.
pub const MAX_DICTIONARY: usize = 256 << 10;

/// The divisor of the bytes that are left, which gives the share of one session.
const PART: usize = 8;

/// The bookkeeping of an entry in bytes, besides its key and its body.
const OVERHEAD: usize = 256;

/// The first bytes of a zstd dictionary with tables (RFC 8878 section 5).
const FORMATTED: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];

/// The name of a dictionary: the first half of the SHA-256 hash of its content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name([u8; 16]);

impl Name {
    /// Creates the name of a content from its SHA-256 hash.
    pub fn of_hash(hash: &[u8]) -> Option<Self> {
        hash.first_chunk().copied().map(Self)
    }

    /// Returns the name as 32 hexadecimal digits.
    pub fn encode(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// Reads 32 hexadecimal digits.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let is_valid = text.len() == 32 && text.iter().all(u8::is_ascii_hexdigit);
        let digits = std::str::from_utf8(text).ok().filter(|_| is_valid)?;
        let number = u128::from_str_radix(digits, 16).ok()?;
        Some(Self(number.to_be_bytes()))
    }
}

/// Shows no content: the name tells which version of a page someone has.
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Name")
    }
}

/// A body with its name.
#[derive(Clone, PartialEq, Eq)]
pub struct Dictionary {
    /// The name.
    pub name: Name,
    /// The content.
    pub body: Bytes,
}

/// Shows no content.
impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionary").finish_non_exhaustive()
    }
}

/// Returns whether a body of `length` bytes may be kept.
pub fn may_keep(length: usize) -> bool {
    KEPT.contains(&length)
}

/// The latest bodies of one session by key, bounded in bytes. The entry that was unused for longest
/// makes way.
#[derive(Default)]
pub struct Dictionaries {
    entries: HashMap<String, Entry>,
    /// The keys by the time of their last use.
    order: BTreeMap<u64, String>,
    bytes: usize,
    clock: u64,
}

struct Entry {
    dictionary: Dictionary,
    used: u64,
    memory: Reservation,
}

impl Dictionaries {
    /// Keeps a body as the latest version for `key`, with memory of `all`. It keeps nothing if the
    /// length or the content of the body prevents that, or if no memory is left.
    pub fn insert(&mut self, key: String, dictionary: Dictionary, all: &Budget) {
        self.remove(&key);
        if !may_keep(dictionary.body.len()) || dictionary.body.starts_with(&FORMATTED) {
            return;
        }
        let cost = cost(&key, &dictionary);
        while self.bytes + cost > all.left() / PART {
            let Some((_, oldest)) = self.order.pop_first() else {
                return;
            };
            self.remove(&oldest);
        }
        let Some(memory) = all.reserve(cost) else {
            return;
        };
        self.bytes += cost;
        self.clock += 1;
        let used = self.clock;
        self.order.insert(used, key.clone());
        let entry = Entry {
            dictionary,
            used,
            memory,
        };
        self.entries.insert(key, entry);
    }

    /// Returns the latest version for a key.
    pub fn get(&mut self, key: &str) -> Option<Dictionary> {
        let entry = self.entries.get_mut(key)?;
        self.clock += 1;
        if let Some(key) = self.order.remove(&entry.used) {
            self.order.insert(self.clock, key);
        }
        entry.used = self.clock;
        Some(entry.dictionary.clone())
    }

    fn remove(&mut self, key: &str) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.bytes -= entry.memory.bytes();
        }
    }
}

impl fmt::Debug for Dictionaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionaries")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Returns the bytes that an entry counts for. Two collections hold its key.
const fn cost(key: &str, dictionary: &Dictionary) -> usize {
    dictionary.body.len() + 2 * key.len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(letter: u8, length: usize) -> Dictionary {
        Dictionary {
            name: Name([letter; 16]),
            body: vec![letter; length].into(),
        }
    }

    /// Returns the cost of a body with a key of one letter.
    const fn entry(length: usize) -> usize {
        length + 2 + OVERHEAD
    }

    #[test]
    fn name_is_read_as_written() {
        let name = Name::of_hash(&[0x0f; 32]).expect("long enough");
        assert_eq!(name.encode(), "0f".repeat(16));
        assert_eq!(Name::parse(name.encode().as_bytes()), Some(name));
        assert_eq!(Name::of_hash(&[0; 15]), None);
        for bad in ["", "0f", &"+f".repeat(16), &"0f".repeat(17)] {
            assert_eq!(Name::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn latest_version_replaces_the_former() {
        let all = Budget::new(1 << 20);
        let mut store = Dictionaries::default();
        store.insert("a".into(), body(1, 600), &all);
        store.insert("a".into(), body(2, 700), &all);
        assert_eq!(store.get("a"), Some(body(2, 700)));
        assert_eq!(all.left(), (1 << 20) - entry(700));
        store.insert("a".into(), body(3, 1), &all);
        assert_eq!(store.get("a"), None, "the former one is out of date");
        assert_eq!((store.bytes, all.left()), (0, 1 << 20));
    }

    #[test]
    fn memory_returns_with_the_session() {
        let all = Budget::new(1 << 20);
        let mut store = Dictionaries::default();
        store.insert("a".into(), body(1, 600), &all);
        drop(store);
        assert_eq!(all.left(), 1 << 20);
    }

    #[test]
    fn unsuitable_bodies_are_not_kept() {
        let all = Budget::new(1 << 20);
        let mut store = Dictionaries::default();
        store.insert("short".into(), body(1, 511), &all);
        store.insert("long".into(), body(1, MAX_DICTIONARY + 1), &all);
        let formatted = Dictionary {
            name: Name([0; 16]),
            body: [&FORMATTED[..], &[0; 600]].concat().into(),
        };
        store.insert("formatted".into(), formatted, &all);
        assert_eq!(all.left(), 1 << 20);
    }

    #[test]
    fn unused_entry_makes_way() {
        // Three entries are an eighth of the rest, and four are more.
        let all = Budget::new(30 * entry(1000));
        let mut store = Dictionaries::default();
        for key in ["a", "b", "c"] {
            store.insert(key.into(), body(1, 1000), &all);
        }
        assert!(store.get("a").is_some());
        store.insert("d".into(), body(1, 1000), &all);
        assert!(store.get("b").is_none() && store.get("a").is_some());
    }

    #[test]
    fn full_stores_leave_memory_for_another() {
        let all = Budget::new(1 << 20);
        let mut stores: Vec<Dictionaries> = Vec::new();
        for _ in 0..20 {
            let mut store = Dictionaries::default();
            for key in 0..100 {
                store.insert(key.to_string(), body(1, 2000), &all);
            }
            assert!(store.bytes > 0, "the store {} has memory", stores.len());
            stores.push(store);
        }
    }

    proptest! {
        #[test]
        fn store_stays_within_its_limit(
            events in proptest::collection::vec((0u8..8, 0usize..3000, any::<bool>()), 0..60),
        ) {
            let all = Budget::new(60_000);
            let mut store = Dictionaries::default();
            for (key, length, is_read) in events {
                let letter = char::from(b'a' + key).to_string();
                if is_read {
                    let found = store.get(&letter);
                    prop_assert_eq!(found.is_some(), store.entries.contains_key(&letter));
                } else {
                    store.insert(letter, body(key, length), &all);
                }
                let entries = store.entries.iter();
                let sum: usize = entries.map(|(key, entry)| cost(key, &entry.dictionary)).sum();
                prop_assert_eq!((store.bytes, all.left()), (sum, 60_000 - sum));
                prop_assert!(sum <= 60_000 / PART);
                prop_assert_eq!(store.order.len(), store.entries.len());
                for (used, key) in &store.order {
                    prop_assert_eq!(store.entries.get(key).map(|entry| entry.used), Some(*used));
                }
            }
        }
    }
}
