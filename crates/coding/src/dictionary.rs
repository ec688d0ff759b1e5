//! The bodies that one end of a session holds as dictionaries for later versions of the same
//! resource: the mechanism of RFC 9842 within a session.
//!
//! Both ends keep the bodies that crossed a session compressed. The client names the version that
//! it holds, by a hash of its content. The gateway uses it if it holds the same version for the
//! same session and URL, and says so in the response. A dictionary therefore never crosses origins,
//! sessions or isolation keys, and its content obeyed the rule for compression ([`crate::rule`]).
//!
//! All sessions share one [`Memory`]. A session holds at most an eighth of it. If it is full, the
//! entry of any session that was unused for longest makes way, so idle sessions keep nothing from
//! new ones.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

/// The smallest and the largest body that is kept, in bytes.
const KEPT: std::ops::RangeInclusive<usize> = 512..=MAX_DICTIONARY;

/// The largest dictionary in bytes. Both versions must fit into one window.
pub const MAX_DICTIONARY: usize = 256 << 10;

/// The divisor of the memory that gives the share of one session.
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
        HEXLOWER.encode(&self.0)
    }

    /// Reads 32 hexadecimal digits.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let name = HEXLOWER_PERMISSIVE.decode(text).ok()?;
        name.try_into().ok().map(Self)
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

/// The memory of the bodies of all sessions.
#[derive(Clone, Debug)]
pub struct Memory(Rc<RefCell<Whole>>);

/// The bodies of all sessions.
struct Whole {
    limit: usize,
    bytes: usize,
    clock: u64,
    next_session: u64,
    sessions: HashMap<u64, Session>,
    /// The sessions of all entries by the time of the last use.
    order: BTreeMap<u64, u64>,
}

/// The bodies of one session.
#[derive(Default)]
struct Session {
    entries: HashMap<String, Entry>,
    /// The keys by the time of their last use.
    order: BTreeMap<u64, String>,
    bytes: usize,
}

struct Entry {
    dictionary: Dictionary,
    used: u64,
    cost: usize,
}

/// The latest bodies of one session by key, which end with it.
#[derive(Default)]
pub struct Dictionaries {
    /// The memory and the number of the session there, once it has held a body.
    session: OnceCell<(Memory, u64)>,
}

impl Memory {
    /// Creates memory of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self(Rc::new(RefCell::new(Whole {
            limit,
            bytes: 0,
            clock: 0,
            next_session: 0,
            sessions: HashMap::new(),
            order: BTreeMap::new(),
        })))
    }

    /// Returns true if it has no session that has held a body.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().sessions.is_empty()
    }

    /// Begins an empty session.
    fn session(&self) -> (Self, u64) {
        let mut whole = self.0.borrow_mut();
        let number = whole.next_session;
        whole.next_session += 1;
        whole.sessions.insert(number, Session::default());
        (self.clone(), number)
    }
}

impl Dictionaries {
    /// Keeps a body as the latest version for `key`, in `memory`. It keeps nothing if the length or
    /// the content of the body prevents that, or if the body exceeds the share of a session.
    pub fn insert(&self, key: String, dictionary: Dictionary, memory: &Memory) {
        let (memory, number) = self.session.get_or_init(|| memory.session());
        let mut whole = memory.0.borrow_mut();
        whole.remove(*number, &key);
        if may_keep(dictionary.body.len()) && !dictionary.body.starts_with(&FORMATTED) {
            whole.insert(*number, key, dictionary);
        }
    }

    /// Returns the latest version for a key.
    pub fn get(&self, key: &str) -> Option<Dictionary> {
        let (memory, number) = self.session.get()?;
        memory.0.borrow_mut().get(*number, key)
    }
}

impl Drop for Dictionaries {
    fn drop(&mut self) {
        if let Some((memory, number)) = self.session.get() {
            memory.0.borrow_mut().end(*number);
        }
    }
}

impl Whole {
    fn insert(&mut self, number: u64, key: String, dictionary: Dictionary) {
        let cost = cost(&key, &dictionary);
        let share = self.limit / PART;
        if cost > share {
            return;
        }
        while let Some(session) = self.sessions.get(&number)
            && session.bytes + cost > share
            && let Some(&used) = session.order.keys().next()
        {
            self.evict(used);
        }
        while self.bytes + cost > self.limit
            && let Some(&used) = self.order.keys().next()
        {
            self.evict(used);
        }
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        self.clock += 1;
        let used = self.clock;
        self.bytes += cost;
        self.order.insert(used, number);
        session.bytes += cost;
        session.order.insert(used, key.clone());
        let entry = Entry {
            dictionary,
            used,
            cost,
        };
        session.entries.insert(key, entry);
    }

    fn get(&mut self, number: u64, key: &str) -> Option<Dictionary> {
        let session = self.sessions.get_mut(&number)?;
        let entry = session.entries.get_mut(key)?;
        self.clock += 1;
        let former = std::mem::replace(&mut entry.used, self.clock);
        self.order.remove(&former);
        self.order.insert(self.clock, number);
        if let Some(key) = session.order.remove(&former) {
            session.order.insert(self.clock, key);
        }
        Some(entry.dictionary.clone())
    }

    /// Removes the entry that was last used at this time.
    fn evict(&mut self, used: u64) {
        let Some(number) = self.order.remove(&used) else {
            return;
        };
        let session = self.sessions.get_mut(&number);
        if let Some(key) = session.and_then(|it| it.order.remove(&used)) {
            self.remove(number, &key);
        }
    }

    fn remove(&mut self, number: u64, key: &str) {
        if let Some(session) = self.sessions.get_mut(&number)
            && let Some(entry) = session.entries.remove(key)
        {
            session.order.remove(&entry.used);
            session.bytes -= entry.cost;
            self.order.remove(&entry.used);
            self.bytes -= entry.cost;
        }
    }

    /// Removes all entries of a session.
    fn end(&mut self, number: u64) {
        if let Some(session) = self.sessions.remove(&number) {
            self.bytes -= session.bytes;
            for used in session.order.keys() {
                self.order.remove(used);
            }
        }
    }
}

/// Shows no content.
impl fmt::Debug for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Whole")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Shows no content.
impl fmt::Debug for Dictionaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionaries").finish_non_exhaustive()
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

    fn bytes(memory: &Memory) -> usize {
        memory.0.borrow().bytes
    }

    #[test]
    fn latest_version_replaces_the_former() {
        let memory = Memory::new(1 << 20);
        let store = Dictionaries::default();
        store.insert("a".into(), body(1, 600), &memory);
        store.insert("a".into(), body(2, 700), &memory);
        assert_eq!(store.get("a"), Some(body(2, 700)));
        assert_eq!(bytes(&memory), entry(700));
        store.insert("a".into(), body(3, 1), &memory);
        assert_eq!(store.get("a"), None, "the former one is out of date");
        assert_eq!(bytes(&memory), 0);
    }

    #[test]
    fn memory_returns_with_the_session() {
        let memory = Memory::new(1 << 20);
        let stores = [(); 2].map(|()| Dictionaries::default());
        for store in &stores {
            store.insert("a".into(), body(1, 600), &memory);
        }
        let [first, second] = stores;
        drop(first);
        assert_eq!(bytes(&memory), entry(600));
        assert!(second.get("a").is_some());
        assert!(!memory.is_empty());
        drop(second);
        assert!(memory.is_empty());
        let whole = memory.0.borrow();
        assert!(whole.bytes == 0 && whole.order.is_empty() && whole.sessions.is_empty());
    }

    #[test]
    fn unsuitable_bodies_are_not_kept() {
        let memory = Memory::new(8 << 20);
        let store = Dictionaries::default();
        store.insert("short".into(), body(1, 511), &memory);
        store.insert("long".into(), body(1, MAX_DICTIONARY + 1), &memory);
        let formatted = Dictionary {
            name: Name([0; 16]),
            body: [&FORMATTED[..], &[0; 600]].concat().into(),
        };
        store.insert("formatted".into(), formatted, &memory);
        assert_eq!(bytes(&memory), 0);
    }

    #[test]
    fn unused_entry_makes_way() {
        // Three entries are an eighth.
        let memory = Memory::new(8 * 3 * entry(1000));
        let store = Dictionaries::default();
        for key in ["a", "b", "c"] {
            store.insert(key.into(), body(1, 1000), &memory);
        }
        assert!(store.get("a").is_some());
        store.insert("d".into(), body(1, 1000), &memory);
        assert!(store.get("b").is_none() && store.get("a").is_some());
    }

    #[test]
    fn body_above_the_share_evicts_nothing() {
        let memory = Memory::new(8 * entry(2000));
        let store = Dictionaries::default();
        store.insert("a".into(), body(1, 1000), &memory);
        store.insert("b".into(), body(1, 2001), &memory);
        assert!(store.get("a").is_some() && store.get("b").is_none());
    }

    #[test]
    fn idle_sessions_make_way_for_new_ones() {
        let memory = Memory::new(1 << 20);
        let mut stores: Vec<Dictionaries> = Vec::new();
        for number in 0..100 {
            let store = Dictionaries::default();
            for key in 0..100 {
                store.insert(format!("{key:02}"), body(1, 2000), &memory);
            }
            let kept = (0..100).filter(|key| store.get(&format!("{key:02}")).is_some());
            assert_eq!(
                kept.count(),
                (1 << 20) / PART / (entry(2000) + 2),
                "{number}"
            );
            stores.push(store);
        }
        assert!(stores[0].get("99").is_none(), "the idle one has made way");
        assert!(bytes(&memory) <= 1 << 20);
    }

    proptest! {
        #[test]
        fn stores_stay_within_their_limits(
            events in proptest::collection::vec(
                (0usize..12, 0u8..8, 0usize..3000, 0u8..8),
                0..80,
            ),
        ) {
            let memory = Memory::new(60_000);
            let mut stores: Vec<_> = (0..12).map(|_| Dictionaries::default()).collect();
            for (number, key, length, kind) in events {
                let letter = char::from(b'a' + key).to_string();
                match kind {
                    0 => stores[number] = Dictionaries::default(),
                    1 | 2 => drop(stores[number].get(&letter)),
                    _ => {
                        stores[number].insert(letter.clone(), body(key, length), &memory);
                        let found = stores[number].get(&letter);
                        prop_assert_eq!(found.is_some(), may_keep(length));
                    }
                }
                let whole = memory.0.borrow();
                let mut sum = 0;
                for (number, session) in &whole.sessions {
                    let costs = session.entries.iter().map(|(key, it)| cost(key, &it.dictionary));
                    prop_assert_eq!(session.bytes, costs.sum::<usize>());
                    prop_assert!(session.bytes <= 60_000 / PART);
                    prop_assert_eq!(session.order.len(), session.entries.len());
                    for (used, key) in &session.order {
                        prop_assert_eq!(session.entries[key].used, *used);
                        prop_assert_eq!(whole.order.get(used), Some(number));
                    }
                    sum += session.bytes;
                }
                prop_assert!(sum == whole.bytes && sum <= 60_000);
                let entries = whole.sessions.values().map(|it| it.entries.len());
                prop_assert_eq!(whole.order.len(), entries.sum::<usize>());
            }
        }
    }
}
