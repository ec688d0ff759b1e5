//! The knowledge of a client about earlier connections: session tickets of TLS (RFC 8446 section
//! 4.6.1), address tokens of QUIC (RFC 9000 section 8.1.3), and the round trip.
//!
//! A gateway can link the connections that show its tickets. A ticket is therefore shown once, and
//! only by a connection with the same isolation key and the same own address
//! ([`tandem::transport::earlier`]). A gateway that rejects the early data of one ticket may have
//! restarted, and the tickets from before that connection are forgotten.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, TokenStore};
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use tandem::back::policy::is_public;
use tandem::exchange::Isolation;
use tandem::transport::earlier::{self, Age, Clocks};

/// The tickets, and the tokens, of one key in one network.
const MOST_TICKETS: usize = 4;

/// The tickets of one gateway.
#[derive(Default)]
pub(crate) struct Memory(earlier::Memory<Arc<Tickets>>);

impl Memory {
    /// Returns the tickets for connections of an isolation key from `own`.
    pub(crate) fn of(&mut self, isolation: &Isolation, own: IpAddr) -> Arc<Tickets> {
        let new = || Arc::new(Tickets::new(!is_public(own)));
        self.0.of(isolation, own, new)
    }

    /// Returns true while early data of an isolation key have no answer. The gateway may then be at
    /// another address, which only a handshake finds. This machine may have another address towards
    /// that one.
    pub(crate) fn are_unanswered(&self, isolation: &Isolation) -> bool {
        let mut of_key = self.0.of_key(isolation);
        of_key.any(|tickets| tickets.lock().unanswered > 0)
    }

    /// Forgets the tickets of an isolation key.
    pub(crate) fn forget(&mut self, isolation: &Isolation) {
        self.0.forget(isolation);
    }
}

/// The tickets of one isolation key in one network.
pub(crate) struct Tickets(Mutex<State>);

struct State {
    age: Age,
    /// The connections whose early data have no answer yet.
    unanswered: usize,
    /// The tickets with their numbers, in the order in which they came.
    tickets: VecDeque<(u64, Tls13ClientSessionValue)>,
    /// The number of the next ticket.
    next: u64,
    tokens: VecDeque<Bytes>,
    group: Option<NamedGroup>,
    /// The round trip of the last handshake.
    round_trip: Option<Duration>,
}

impl State {
    /// Drops values that are too old.
    fn expire(&mut self, now: Clocks) {
        if self.age.is_over(now) {
            self.tickets.clear();
            self.tokens.clear();
            self.round_trip = None;
        }
    }
}

impl Tickets {
    fn new(is_private: bool) -> Self {
        Self(Mutex::new(State {
            age: Age::new(is_private, Clocks::now()),
            unanswered: 0,
            tickets: VecDeque::new(),
            next: 0,
            tokens: VecDeque::new(),
            group: None,
            round_trip: None,
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

    /// Returns the round trip of the last handshake, if it is known.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        let mut state = self.lock();
        state.expire(Clocks::now());
        state.round_trip
    }

    /// Notes the round trip of a connection, if it was measured.
    pub(crate) fn measured(&self, connection: &Connection) {
        // quinn returns an assumed one before.
        if connection.stats().frame_rx.acks > 0 {
            self.lock().round_trip = Some(connection.rtt());
        }
    }

    /// Notes the beginning of a connection.
    pub(crate) fn begun(&self) {
        let (mut state, now) = (self.lock(), Clocks::now());
        state.expire(now);
        state.age.begun(now);
    }

    /// Notes the end of a connection.
    pub(crate) fn ended(&self) {
        let (mut state, now) = (self.lock(), Clocks::now());
        state.expire(now);
        state.age.ended(now);
    }
}

/// Notes the round trip of a connection at the end of its handshake.
pub(crate) struct Measured {
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) connection: Connection,
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.tickets.measured(&self.connection);
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
        state.expire(Clocks::now());
        state.tickets.pop_back().map(|(_, ticket)| ticket)
    }
}

impl TokenStore for Tickets {
    fn insert(&self, _: &str, token: Bytes) {
        keep(&mut self.lock().tokens, token);
    }

    fn take(&self, _: &str) -> Option<Bytes> {
        let mut state = self.lock();
        state.expire(Clocks::now());
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
    fn tickets_of_a_forgotten_key_are_not_shown() {
        let mut memory = Memory::default();
        put(&memory.of(&key("a"), HOME), "a");
        put(&memory.of(&key("b"), HOME), "b");
        memory.forget(&key("a"));
        assert!(memory.of(&key("a"), HOME).take("").is_none());
        assert!(memory.of(&key("b"), HOME).take("").is_some());
    }

    #[test]
    fn tickets_of_a_private_address_last_some_minutes() {
        for (address, expected) in [(HOME, None), (PUBLIC, Some(Bytes::from_static(b"token")))] {
            let tickets = Memory::default().of(&Isolation::none(), address);
            put(&tickets, "token");
            let mut past = Clocks::now();
            past.system -= Duration::from_secs(601);
            tickets.lock().age = Age::new(address == HOME, past);
            assert_eq!(tickets.take(""), expected);
        }
    }

    #[test]
    fn round_trip_is_kept_as_tickets_are() {
        const RTT: Option<Duration> = Some(Duration::from_millis(90));
        for (address, expected) in [(HOME, None), (PUBLIC, RTT)] {
            let mut memory = Memory::default();
            let tickets = memory.of(&key("a"), address);
            assert_eq!(tickets.round_trip(), None);
            tickets.lock().round_trip = RTT;
            assert_eq!(memory.of(&key("a"), address).round_trip(), RTT);
            assert_eq!(memory.of(&key("b"), address).round_trip(), None);
            let mut past = Clocks::now();
            past.system -= Duration::from_secs(601);
            tickets.lock().age = Age::new(address == HOME, past);
            assert_eq!(tickets.round_trip(), expected);
        }
    }

    #[test]
    fn tickets_outlast_a_long_connection() {
        let tickets = Memory::default().of(&Isolation::none(), HOME);
        tickets.begun();
        put(&tickets, "token");
        let mut past = Clocks::now();
        past.system -= Duration::from_secs(601);
        let long = past.monotonic.checked_sub(Duration::from_secs(601));
        past.monotonic = long.expect("a machine that runs for longer");
        let mut age = Age::new(true, past);
        age.begun(past);
        tickets.lock().age = age;
        tickets.ended();
        assert!(tickets.take("").is_some());
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
