//! The tickets and tokens that the gateway of a process has issued, for the connections of all
//! threads.
//!
//! Each ticket is accepted once, so a repeated first flight finds none and its early data is
//! rejected (RFC 8446 section 8.1). Tickets are in memory and unknown after a restart. Each address
//! token is accepted once as well (RFC 9000 section 8.1.4).

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use quinn::{ServerConfig, TokenLog, TokenReuseError, ValidationTokenConfig};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::server::StoresServerSessions;

/// The tickets that are kept. The oldest one makes room.
const MOST_TICKETS: usize = 8192;
/// The used address tokens that are known.
const MOST_USED: usize = 16_384;
/// The time for which an address token is valid.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tickets and tokens of the process.
#[derive(Default)]
pub(crate) struct Issued {
    tickets: Mutex<TicketTable>,
    /// The key of address tokens, once it is needed.
    key: Mutex<Option<Arc<Prk>>>,
    used: Arc<UsedTokens>,
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Issued")
    }
}

impl Issued {
    /// Makes a listener, whose clients may have `max_streams` requests under way, issue and accept
    /// tickets. A reload may permit fewer streams. It then rejects the early data of clients that
    /// know the old number (RFC 9000 section 7.4.1).
    pub(crate) fn tickets(self: &Arc<Self>, max_streams: u32) -> Arc<dyn StoresServerSessions> {
        Arc::new(OfListener {
            issued: Arc::clone(self),
            max_streams,
        })
    }

    /// Makes a listener issue and accept address tokens, so that its first packets to a client that
    /// returns have no limit of amplification.
    pub(crate) fn add_tokens(&self, config: &mut ServerConfig) {
        let Some(key) = self.key() else { return };
        let mut tokens = ValidationTokenConfig::default();
        tokens
            .lifetime(TOKEN_LIFETIME)
            .log(Arc::clone(&self.used) as _)
            .sent(1);
        config.token_key(key).validation_token_config(tokens);
    }

    fn key(&self) -> Option<Arc<Prk>> {
        let mut key = lock(&self.key);
        if key.is_none() {
            let mut random = [0; 32];
            SystemRandom::new().fill(&mut random).ok()?;
            *key = Some(Arc::new(Salt::new(HKDF_SHA256, &[]).extract(&random)));
        }
        key.clone()
    }
}

/// Values with their keys, in the order in which they came.
struct Table<K, V> {
    values: HashMap<K, V>,
    order: VecDeque<K>,
}

type TicketTable = Table<Vec<u8>, (u32, Vec<u8>)>;

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Hash + Eq + Clone, V> Table<K, V> {
    /// Adds a value. The oldest one makes room.
    fn put(&mut self, key: K, value: V, most: usize) {
        while self.order.len() >= most
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
        self.order.push_back(key.clone());
        self.values.insert(key, value);
    }
}

/// The tickets as one listener uses them.
#[derive(Debug)]
struct OfListener {
    issued: Arc<Issued>,
    max_streams: u32,
}

impl StoresServerSessions for OfListener {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let value = (self.max_streams, value);
        lock(&self.issued.tickets).put(key, value, MOST_TICKETS);
        true
    }

    /// Returns nothing, since a ticket may be used once.
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (max_streams, value) = lock(&self.issued.tickets).values.remove(key)?;
        (max_streams <= self.max_streams).then_some(value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// The address tokens that were used.
struct UsedTokens(Mutex<Used>);

struct Used {
    nonces: HashSet<u128>,
    order: VecDeque<(u128, SystemTime)>,
    /// Tokens that were issued until then may have been used.
    forgotten: SystemTime,
}

impl Default for UsedTokens {
    fn default() -> Self {
        Self(Mutex::new(Used {
            nonces: HashSet::new(),
            order: VecDeque::new(),
            forgotten: SystemTime::UNIX_EPOCH,
        }))
    }
}

impl TokenLog for UsedTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        issued: SystemTime,
        _: Duration,
    ) -> Result<(), TokenReuseError> {
        let mut used = lock(&self.0);
        if issued <= used.forgotten || !used.nonces.insert(nonce) {
            return Err(TokenReuseError);
        }
        used.order.push_back((nonce, issued));
        if used.order.len() > MOST_USED
            && let Some((oldest, issued)) = used.order.pop_front()
        {
            used.nonces.remove(&oldest);
            used.forgotten = used.forgotten.max(issued);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_is_accepted_once_by_a_listener_that_fits() {
        let issued = Arc::<Issued>::default();
        let [few, same, more] = [100, 256, 300].map(|streams| issued.tickets(streams));
        for (listener, expected) in [(few, false), (Arc::clone(&same), true), (more, true)] {
            same.put(vec![1], vec![2]);
            assert_eq!(listener.take(&[1]).is_some(), expected);
            assert_eq!(same.take(&[1]), None, "it was shown");
        }
    }

    #[test]
    fn oldest_ticket_makes_room() {
        let issued = Arc::<Issued>::default();
        let tickets = issued.tickets(1);
        for number in 0..=MOST_TICKETS as u32 {
            tickets.put(number.to_be_bytes().to_vec(), Vec::new());
        }
        assert!(tickets.take(&0u32.to_be_bytes()).is_none());
        assert!(tickets.take(&1u32.to_be_bytes()).is_some());
        assert!(lock(&issued.tickets).order.len() <= MOST_TICKETS);
    }

    #[test]
    fn address_token_is_accepted_once_even_if_many_follow() {
        let used = UsedTokens::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let accept = |nonce: u64| {
            let checked = used.check_and_insert(nonce.into(), at(nonce), TOKEN_LIFETIME);
            checked.is_ok()
        };
        assert!(accept(1) && !accept(1));
        for nonce in 2..MOST_USED as u64 + 10 {
            assert!(accept(nonce));
        }
        assert!(!accept(1), "it is forgotten");
        assert!(lock(&used.0).nonces.len() <= MOST_USED);
    }
}
