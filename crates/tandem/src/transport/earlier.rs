//! The knowledge of a client about its earlier connections to a gateway.
//!
//! A gateway can link connections that share such knowledge. It is therefore kept apart for each
//! isolation key and own address, and in memory only. A private address may be the same in two
//! networks, so knowledge that was got at one is used for some minutes only.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use crate::exchange::Isolation;

/// The isolation keys and networks that are remembered.
const MOST_KEYS: usize = 64;
/// The time after the last connection at a private address for which its knowledge is used.
const PRIVATE_AGE: Duration = Duration::from_secs(600);

/// The isolation key of connections, and this machine's address towards the gateway.
type Key = (Isolation, IpAddr);

/// The knowledge about one gateway, from that which was unused for longest.
#[derive(Debug)]
pub struct Memory<T>(VecDeque<(Key, T)>);

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Clone> Memory<T> {
    /// Returns the knowledge for connections of an isolation key from `own`. If there is none, it
    /// begins with `new`.
    pub fn of(&mut self, isolation: &Isolation, own: IpAddr, new: impl FnOnce() -> T) -> T {
        let found = |((key, address), _): &(Key, _)| (key, *address) == (isolation, own);
        let at = self.0.iter().position(found);
        let entry = at.and_then(|at| self.0.remove(at));
        let entry = entry.unwrap_or_else(|| ((isolation.clone(), own), new()));
        if self.0.len() >= MOST_KEYS {
            self.0.pop_front();
        }
        let value = entry.1.clone();
        self.0.push_back(entry);
        value
    }

    /// Returns the knowledge of an isolation key in all networks.
    pub fn of_key(&self, isolation: &Isolation) -> impl Iterator<Item = &T> {
        let of_key = self.0.iter().filter(move |((key, _), _)| key == isolation);
        of_key.map(|(_, value)| value)
    }

    /// Forgets an isolation key.
    pub fn forget(&mut self, isolation: &Isolation) {
        self.0.retain(|((key, _), _)| key != isolation);
    }
}

/// A time on two clocks: one may stop while the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// The clock that never goes back.
    pub monotonic: Instant,
    /// The clock of the system.
    pub system: SystemTime,
}

impl Clocks {
    /// Returns the present time.
    pub fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            system: SystemTime::now(),
        }
    }
}

/// The age of the knowledge of one isolation key in one network.
#[derive(Debug)]
pub struct Age {
    is_private: bool,
    /// The connections that are open.
    open: usize,
    /// The last beginning or end of a connection.
    used: Clocks,
}

impl Age {
    /// Begins with knowledge that was got at a private address, or at a public one.
    pub const fn new(is_private: bool, now: Clocks) -> Self {
        Self {
            is_private,
            open: 0,
            used: now,
        }
    }

    /// Returns true if the knowledge must not be used any more. While a connection is open, only
    /// sleep counts: the machine may wake in another network.
    pub fn is_over(&self, now: Clocks) -> bool {
        let awake = now.monotonic.saturating_duration_since(self.used.monotonic);
        let total = now.system.duration_since(self.used.system);
        let total = total.unwrap_or_default();
        let age = match self.open {
            0 => total.max(awake),
            _ => total.saturating_sub(awake),
        };
        self.is_private && age > PRIVATE_AGE
    }

    /// Notes the beginning of a connection.
    pub const fn begun(&mut self, now: Clocks) {
        self.open += 1;
        self.used = now;
    }

    /// Notes the end of a connection.
    pub const fn ended(&mut self, now: Clocks) {
        self.open = self.open.saturating_sub(1);
        self.used = now;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2));
    const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(8, 8, 4, 4));
    const SECOND: Duration = Duration::from_secs(1);

    fn key(name: &str) -> Isolation {
        Isolation::new(name.as_bytes(), b"")
    }

    #[test]
    fn memory_keeps_keys_and_networks_apart() {
        let mut memory = Memory::default();
        memory.of(&key("a"), HOME, || 1);
        assert_eq!(memory.of(&key("b"), HOME, || 2), 2);
        assert_eq!(memory.of(&Isolation::none(), HOME, || 3), 3);
        assert_eq!(memory.of(&key("a"), PUBLIC, || 4), 4);
        assert_eq!(memory.of(&key("a"), HOME, || 5), 1);
        assert_eq!(memory.of_key(&key("a")).collect::<Vec<_>>(), [&4, &1]);
    }

    #[test]
    fn memory_forgets_one_key_and_the_longest_unused_one() {
        let mut memory = Memory::default();
        memory.of(&key("a"), HOME, || 1);
        memory.of(&key("b"), HOME, || 2);
        memory.forget(&key("a"));
        assert_eq!(memory.of(&key("a"), HOME, || 3), 3);
        for number in 0..MOST_KEYS {
            memory.of(&key(&number.to_string()), HOME, || 4);
        }
        assert_eq!(memory.of(&key("b"), HOME, || 5), 5);
        assert_eq!(memory.0.len(), MOST_KEYS);
    }

    /// Returns the time after some hours awake and asleep.
    fn later(than: Clocks, awake: Duration, asleep: Duration) -> Clocks {
        Clocks {
            monotonic: than.monotonic + awake,
            system: than.system + awake + asleep,
        }
    }

    #[test]
    fn knowledge_of_private_addresses_lasts_some_minutes() {
        let start = Clocks::now();
        let none = Duration::ZERO;
        for (is_private, awake, asleep, is_over) in [
            (true, PRIVATE_AGE, none, false),
            (true, PRIVATE_AGE + SECOND, none, true),
            (true, SECOND, PRIVATE_AGE, true),
            (false, PRIVATE_AGE + SECOND, PRIVATE_AGE, false),
        ] {
            let age = Age::new(is_private, start);
            assert_eq!(age.is_over(later(start, awake, asleep)), is_over);
        }
    }

    #[test]
    fn knowledge_outlasts_a_long_connection_but_no_sleep() {
        let (start, none, long) = (Clocks::now(), Duration::ZERO, PRIVATE_AGE + SECOND);
        for (awake, asleep, is_over) in [(long, none, false), (none, long, true)] {
            let mut age = Age::new(true, start);
            age.begun(start);
            let end = later(start, awake, asleep);
            assert_eq!(age.is_over(end), is_over);
            age.ended(end);
            assert!(!age.is_over(later(end, PRIVATE_AGE, none)));
            assert!(age.is_over(later(end, long, none)));
        }
    }
}
