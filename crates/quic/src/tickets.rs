//! The knowledge of a client about earlier connections: session tickets of TLS (RFC 8446 section
//! 4.6.1) and address tokens of QUIC (RFC 9000 section 8.1.3).
//!
//! A gateway can link the connections that show its tickets. A ticket is therefore shown once, and
//! only by a connection with the same isolation key and the same own address. A private address may
//! be the same in two networks, so tickets that were got at one are shown for some minutes only. A
//! gateway that rejects the early data of one ticket may have restarted, and the tickets from
//! before that connection are forgotten. Everything is in memory.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use quinn::TokenStore;
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use tandem::back::policy::is_public;
use tandem::exchange::Isolation;

/// The isolation keys and networks that are remembered.
const MOST_KEYS: usize = 64;
/// The tickets, and the tokens, of one key in one network.
const MOST_TICKETS: usize = 4;
/// The time after the last connection at a private address for which its tickets are shown.
const PRIVATE_AGE: Duration = Duration::from_secs(600);

/// The isolation key of connections, and this machine's address towards the gateway.
type Key = (Isolation, IpAddr);

/// The tickets of one gateway, from those that were unused for longest.
#[derive(Default)]
pub(crate) struct Memory(VecDeque<(Key, Arc<Tickets>)>);

impl Memory {
    /// Returns the tickets for connections of an isolation key from `own`.
    pub(crate) fn of(&mut self, isolation: &Isolation, own: IpAddr) -> Arc<Tickets> {
        let found = |((key, address), _): &(Key, _)| (key, *address) == (isolation, own);
        let at = self.0.iter().position(found);
        let entry = at.and_then(|at| self.0.remove(at));
        let entry = entry.unwrap_or_else(|| {
            let key = (isolation.clone(), own);
            (key, Arc::new(Tickets::new(!is_public(own))))
        });
        if self.0.len() >= MOST_KEYS {
            self.0.pop_front();
        }
        let tickets = Arc::clone(&entry.1);
        self.0.push_back(entry);
        tickets
    }

    /// Returns true while early data of an isolation key have no answer. The gateway may then be at
    /// another address, which only a handshake finds. This machine may have another address towards
    /// that one.
    pub(crate) fn are_unanswered(&self, isolation: &Isolation) -> bool {
        let mut of_key = self.0.iter().filter(|((key, _), _)| key == isolation);
        of_key.any(|(_, tickets)| tickets.lock().unanswered > 0)
    }

    /// Forgets the tickets of an isolation key.
    pub(crate) fn forget(&mut self, isolation: &Isolation) {
        self.0.retain(|((key, _), _)| key != isolation);
    }
}

/// The tickets of one isolation key in one network.
pub(crate) struct Tickets(Mutex<State>);

struct State {
    is_private: bool,
    /// The connections that are open.
    open: usize,
    /// The connections whose early data have no answer yet.
    unanswered: usize,
    /// The time of the last beginning or end of a connection, on two clocks: one may stop while the
    /// machine sleeps.
    used: (Instant, SystemTime),
    /// The tickets with their numbers, in the order in which they came.
    tickets: VecDeque<(u64, Tls13ClientSessionValue)>,
    /// The number of the next ticket.
    next: u64,
    tokens: VecDeque<Bytes>,
    group: Option<NamedGroup>,
}

impl State {
    /// Drops values that are too old. While a connection is open, only sleep counts: the machine
    /// may wake in another network.
    fn expire(&mut self) {
        let (monotonic, system) = self.used;
        let (awake, total) = (monotonic.elapsed(), system.elapsed().unwrap_or_default());
        let age = match self.open {
            0 => total.max(awake),
            _ => total.saturating_sub(awake),
        };
        if self.is_private && age > PRIVATE_AGE {
            self.tickets.clear();
            self.tokens.clear();
        }
    }
}

impl Tickets {
    fn new(is_private: bool) -> Self {
        Self(Mutex::new(State {
            is_private,
            open: 0,
            unanswered: 0,
            used: (Instant::now(), SystemTime::now()),
            tickets: VecDeque::new(),
            next: 0,
            tokens: VecDeque::new(),
            group: None,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a mark for [`Self::forget_before`].
    pub(crate) fn mark(&self) -> u64 {
        self.lock().next
    }

    /// Forgets the tickets that came before a mark.
    pub(crate) fn forget_before(&self, mark: u64) {
        self.lock().tickets.retain(|(number, _)| *number >= mark);
    }

    /// Notes early data, whose answer has come or is given up once the value is dropped.
    pub(crate) fn unanswered(self: &Arc<Self>) -> Unanswered {
        self.lock().unanswered += 1;
        Unanswered(Arc::clone(self))
    }

    /// Notes the beginning of a connection.
    pub(crate) fn begun(&self) {
        let mut state = self.lock();
        state.expire();
        state.open += 1;
        state.used = (Instant::now(), SystemTime::now());
    }

    /// Notes the end of a connection.
    pub(crate) fn ended(&self) {
        let mut state = self.lock();
        state.expire();
        state.open = state.open.saturating_sub(1);
        state.used = (Instant::now(), SystemTime::now());
    }
}

/// Early data without an answer.
pub(crate) struct Unanswered(Arc<Tickets>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.lock().unanswered -= 1;
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

/// Appends a value. The oldest one makes room.
fn keep<T>(queue: &mut VecDeque<T>, value: T) {
    if queue.len() >= MOST_TICKETS {
        queue.pop_front();
    }
    queue.push_back(value);
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        keep(&mut state.tickets, (number, ticket));
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let mut state = self.lock();
        state.expire();
        state.tickets.pop_back().map(|(_, ticket)| ticket)
    }
}

impl TokenStore for Tickets {
    fn insert(&self, _: &str, token: Bytes) {
        keep(&mut self.lock().tokens, token);
    }

    fn take(&self, _: &str) -> Option<Bytes> {
        let mut state = self.lock();
        state.expire();
        state.tokens.pop_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 0, 2));
    const PUBLIC: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(8, 8, 4, 4));

    fn key(name: &str) -> Isolation {
        Isolation::new(name.as_bytes(), b"")
    }

    fn put(tickets: &Tickets, token: &'static str) {
        TokenStore::insert(tickets, "", Bytes::from_static(token.as_bytes()));
    }

    #[test]
    fn tickets_of_keys_and_networks_are_kept_apart() {
        let mut memory = Memory::default();
        put(&memory.of(&key("a"), HOME), "token");
        assert!(memory.of(&key("b"), HOME).take("").is_none());
        assert!(memory.of(&Isolation::none(), HOME).take("").is_none());
        assert!(memory.of(&key("a"), PUBLIC).take("").is_none());
        let shown = memory.of(&key("a"), HOME);
        assert_eq!(shown.take("").as_deref(), Some(&b"token"[..]));
        assert!(shown.take("").is_none(), "it is shown once");
    }

    #[test]
    fn tickets_forget_one_key_and_the_longest_unused_one() {
        let mut memory = Memory::default();
        put(&memory.of(&key("a"), HOME), "a");
        put(&memory.of(&key("b"), HOME), "b");
        memory.forget(&key("a"));
        assert!(memory.of(&key("a"), HOME).take("").is_none());
        for number in 0..MOST_KEYS {
            memory.of(&key(&number.to_string()), HOME);
        }
        assert!(memory.of(&key("b"), HOME).take("").is_none());
        assert_eq!(memory.0.len(), MOST_KEYS);
    }

    #[test]
    fn tickets_of_private_addresses_last_some_minutes() {
        for (address, expected) in [(HOME, None), (PUBLIC, Some(Bytes::from_static(b"token")))] {
            let tickets = Memory::default().of(&Isolation::none(), address);
            put(&tickets, "token");
            let past = SystemTime::now() - PRIVATE_AGE - Duration::from_secs(1);
            tickets.lock().used.1 = past;
            assert_eq!(tickets.take(""), expected);
        }
    }

    #[test]
    fn tickets_outlast_a_long_connection_but_no_sleep() {
        let long = PRIVATE_AGE + Duration::from_secs(1);
        let (now, past) = (Instant::now(), SystemTime::now() - long);
        let before = now.checked_sub(long).unwrap();
        let token = Bytes::from_static(b"token");
        for (used, expected) in [((before, past), Some(token)), ((now, past), None)] {
            let tickets = Memory::default().of(&Isolation::none(), HOME);
            tickets.begun();
            put(&tickets, "token");
            tickets.lock().used = used;
            tickets.ended();
            assert_eq!(tickets.take(""), expected);
        }
    }

    #[test]
    fn early_data_without_an_answer_count_in_all_networks() {
        let mut memory = Memory::default();
        let unanswered = memory.of(&key("a"), HOME).unanswered();
        memory.of(&key("a"), PUBLIC);
        memory.of(&key("b"), HOME);
        assert!(memory.are_unanswered(&key("a")));
        assert!(!memory.are_unanswered(&key("b")));
        drop(unanswered);
        assert!(!memory.are_unanswered(&key("a")));
    }

    #[test]
    fn tickets_are_bounded() {
        let tickets = Memory::default().of(&Isolation::none(), PUBLIC);
        (0..9).for_each(|_| put(&tickets, "token"));
        assert_eq!(tickets.lock().tokens.len(), MOST_TICKETS);
    }
}
