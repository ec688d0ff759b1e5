//! The policy of connection limits: which connection is admitted, and which one makes way for it.
//!
//! ```text
//!   New ──first authenticated exchange──▶ Idle ◀──▶ Busy
//!    └─ closed after the time for a head, or for a newcomer
//! ```
//!
//! New connections of a listener use at most half of the listener's share of places, and those of
//! one client at most half of the client's limit. The other half is reserved for authenticated
//! connections, so that peers without a token cannot keep out those with one.
//!
//! A client is an IPv4 address or an IPv6 network of 64 bits, whose holder can connect from any
//! address in it. The limits of one client do not apply to loopback addresses. A program on the
//! same machine, such as Tor, connects from there for many clients.
//!
//! The table is pure: times come in as arguments, and decisions come out.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tandem_predict::ids::IdMap;

use crate::users::subscriber;

/// How many connections may be open, and how long one may stay new.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Open connections in all.
    pub total: usize,
    /// Open connections of one client, unless it is at a loopback address.
    pub per_client: usize,
    /// Listeners that share the places.
    pub listeners: usize,
    /// The time from the connection to the first exchange that is let in.
    pub head: Duration,
}

/// The answer to a newcomer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is admitted. The connections named here have left the table and are to be closed.
    Admit { evicted: Vec<u64> },
    /// All places are in use.
    Refuse,
}

/// A limit that is reached, and the connections that may make way.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    Client(IpAddr),
    NewOfClient(IpAddr),
    NewOfListener(usize),
    Total,
}

/// The open connections, by number. A later connection has a larger number.
#[derive(Debug)]
pub(super) struct Table {
    limits: ConnectionLimits,
    open: IdMap<u64, ConnectionEntry>,
    /// Connections that have not authenticated, the oldest first.
    new: BTreeSet<u64>,
    by_client: HashMap<IpAddr, Count>,
    new_by_listener: HashMap<usize, usize>,
}

#[derive(Debug)]
struct ConnectionEntry {
    listener: usize,
    client: IpAddr,
    phase: Phase,
    /// The beginning of the phase.
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Idle,
    /// The connection has this number of exchanges under way.
    Busy(usize),
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: usize,
    new: usize,
}

impl Table {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            open: IdMap::default(),
            new: BTreeSet::new(),
            by_client: HashMap::new(),
            new_by_listener: HashMap::new(),
        }
    }

    /// Decides about a connection that has just been accepted, and adds it if it is admitted.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        id: u64,
        listener: usize,
        address: IpAddr,
    ) -> Admission {
        let client = subscriber(address);
        let whole = Obstacle::Client(client);
        if self.stands(whole) && self.victim(whole).is_none() {
            return Admission::Refuse;
        }
        let mut evicted = Vec::new();
        // The narrowest comes first: its victim often satisfies the others.
        for obstacle in [
            Obstacle::NewOfClient(client),
            Obstacle::NewOfListener(listener),
            whole,
            Obstacle::Total,
        ] {
            if !self.stands(obstacle) {
                continue;
            }
            // Only the last has no victim, and then no other limit was reached.
            let Some(victim) = self.victim(obstacle) else {
                return Admission::Refuse;
            };
            self.remove(victim);
            evicted.push(victim);
        }
        let entry = ConnectionEntry {
            listener,
            client,
            phase: Phase::New,
            since: now,
        };
        self.open.insert(id, entry);
        self.new.insert(id);
        let count = self.by_client.entry(client).or_default();
        count.all += 1;
        count.new += 1;
        *self.new_by_listener.entry(listener).or_default() += 1;
        Admission::Admit { evicted }
    }

    /// Removes and returns the connection that makes way for a newcomer of a listener, if there is
    /// one. It is of the same listener if possible: connections over UDP have no descriptors. The
    /// second value is true if none of its exchanges was let in.
    pub(super) fn give_up(&mut self, listener: usize) -> Option<(u64, bool)> {
        let own = self.victim(Obstacle::NewOfListener(listener));
        let victim = own.or_else(|| self.victim(Obstacle::Total))?;
        let is_new = self.new.contains(&victim);
        self.remove(victim);
        Some((victim, is_new))
    }

    /// Returns whether a limit is reached, so that a newcomer would exceed it.
    fn stands(&self, obstacle: Obstacle) -> bool {
        let limits = &self.limits;
        let of_client = |client| self.by_client.get(&client).copied().unwrap_or_default();
        match obstacle {
            Obstacle::NewOfClient(client) | Obstacle::Client(client) if is_shared(client) => false,
            Obstacle::NewOfClient(client) => {
                of_client(client).new >= (limits.per_client / 2).max(1)
            }
            Obstacle::NewOfListener(listener) => {
                let new = self.new_by_listener.get(&listener).copied().unwrap_or(0);
                new >= (limits.total / 2 / limits.listeners.max(1)).max(1)
            }
            Obstacle::Client(client) => of_client(client).all >= limits.per_client,
            Obstacle::Total => self.open.len() >= limits.total,
        }
    }

    /// Returns the connection that makes way: the oldest new one, else the one idle for longest.
    fn victim(&self, obstacle: Obstacle) -> Option<u64> {
        let concerns = |entry: &ConnectionEntry| match obstacle {
            Obstacle::Client(client) | Obstacle::NewOfClient(client) => entry.client == client,
            Obstacle::NewOfListener(listener) => entry.listener == listener,
            Obstacle::Total => true,
        };
        let new = self.new.iter().find(|id| concerns(&self.open[id]));
        let idle = || {
            self.open
                .iter()
                .filter(|(_, entry)| entry.phase == Phase::Idle && concerns(entry))
                .min_by_key(|(id, entry)| (entry.since, **id))
                .map(|(id, _)| *id)
        };
        new.copied().or_else(idle)
    }

    /// Notes that an exchange of the connection was let in.
    pub(super) fn authenticate(&mut self, now: Instant, id: u64) {
        if !self.new.remove(&id) {
            return;
        }
        let entry = self
            .open
            .get_mut(&id)
            .expect("a new connection is in the table");
        (entry.phase, entry.since) = (Phase::Idle, now);
        let (client, listener) = (entry.client, entry.listener);
        self.count_new_down(client, listener);
    }

    /// Notes that an exchange has begun.
    pub(super) fn begin(&mut self, id: u64) {
        if let Some(entry) = self.open.get_mut(&id) {
            entry.phase = match entry.phase {
                Phase::Busy(count) => Phase::Busy(count + 1),
                Phase::New | Phase::Idle => Phase::Busy(1),
            };
        }
    }

    /// Notes that an exchange has ended.
    pub(super) fn end(&mut self, now: Instant, id: u64) {
        if let Some(entry) = self.open.get_mut(&id)
            && let Phase::Busy(count) = entry.phase
        {
            (entry.phase, entry.since) = match count {
                0 | 1 => (Phase::Idle, now),
                _ => (Phase::Busy(count - 1), entry.since),
            };
        }
    }

    /// Removes a connection that has ended; one that was evicted is gone already.
    pub(super) fn remove(&mut self, id: u64) {
        let Some(entry) = self.open.remove(&id) else {
            return;
        };
        if self.new.remove(&id) {
            self.count_new_down(entry.client, entry.listener);
        }
        if let Some(count) = self.by_client.get_mut(&entry.client) {
            count.all -= 1;
            if count.all == 0 {
                self.by_client.remove(&entry.client);
            }
        }
    }

    fn count_new_down(&mut self, client: IpAddr, listener: usize) {
        if let Some(count) = self.by_client.get_mut(&client) {
            count.new -= 1;
        }
        if let Some(count) = self.new_by_listener.get_mut(&listener) {
            *count -= 1;
        }
    }

    /// Returns the time at which the oldest new connection has had its time.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let oldest = self.new.first()?;
        Some(self.open[oldest].since + self.limits.head)
    }

    /// Removes and returns a new connection that has had its time.
    pub(super) fn expire(&mut self, now: Instant) -> Option<u64> {
        self.next_expiry().filter(|at| *at <= now)?;
        let oldest = self.new.first().copied()?;
        self.remove(oldest);
        Some(oldest)
    }
}

/// Returns whether many clients may share an address: that of a program on this machine.
const fn is_shared(client: IpAddr) -> bool {
    client.is_loopback()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: Duration = Duration::from_secs(30);

    fn table(total: usize, per_client: usize, listeners: usize) -> Table {
        Table::new(ConnectionLimits {
            total,
            per_client,
            listeners,
            head: HEAD,
        })
    }

    fn client(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    fn admitted(evicted: Option<u64>) -> Admission {
        let evicted = Vec::from_iter(evicted);
        Admission::Admit { evicted }
    }

    /// The other listener's connections may be over UDP, and end no lack of descriptors.
    #[test]
    fn lack_of_descriptors_evicts_from_the_same_listener() {
        let (mut table, start) = (table(50, 50, 2), Instant::now());
        for (id, listener) in [(1, 0), (2, 1), (3, 1), (4, 0)] {
            table.admit(start, id, listener, client(1));
        }
        table.authenticate(start, 2);
        let given_up: Vec<_> = (0..5).map(|_| table.give_up(1)).collect();
        let expected = [(3, true), (2, false), (1, true), (4, true)];
        assert_eq!(given_up, [&expected.map(Some)[..], &[None]].concat());
    }

    #[test]
    fn half_open_flood_evicts_its_own_oldest() {
        let (mut table, start) = (table(50, 50, 1), Instant::now());
        for id in 0_u64..50 {
            let evicted = id.checked_sub(25);
            assert_eq!(table.admit(start, id, 0, client(1)), admitted(evicted));
        }
        for user in 100..130 {
            // The user is over the same path, as through Tor, and authenticates at once.
            let Admission::Admit { .. } = table.admit(start, user, 0, client(1)) else {
                panic!("a user was refused");
            };
            table.authenticate(start, user);
            table.begin(user);
        }
        assert!(table.open.len() <= 50);
        let users = (100..130).filter(|id| table.open.contains_key(id)).count();
        assert_eq!(users, 30, "no flood has closed a session in use");
    }

    #[test]
    fn full_table_evicts_new_then_longest_idle() {
        let (mut table, start) = (table(4, 4, 1), Instant::now());
        for id in 0..4 {
            table.admit(start, id, 0, client(1));
            table.authenticate(start + Duration::from_secs(10 - id), id);
        }
        table.begin(3);
        assert_eq!(table.admit(start, 4, 0, client(1)), admitted(Some(2)));
        assert_eq!(table.admit(start, 5, 0, client(1)), admitted(Some(4)));
        for id in [0, 1, 5] {
            table.authenticate(start, id);
            table.begin(id);
        }
        assert_eq!(table.admit(start, 6, 0, client(1)), Admission::Refuse);
        table.begin(0);
        table.end(start, 0);
        assert_eq!(table.admit(start, 6, 0, client(1)), Admission::Refuse);
        table.end(start, 0);
        assert_eq!(table.admit(start, 6, 0, client(1)), admitted(Some(0)));
    }

    #[test]
    fn listener_share_keeps_other_listeners_free() {
        let (mut table, start) = (table(8, 8, 2), Instant::now());
        assert_eq!(table.admit(start, 0, 1, client(2)), admitted(None));
        for id in 1..10 {
            table.admit(start, id, 0, client(1));
        }
        assert!(table.open.contains_key(&0), "the other listener's is left");
        assert_eq!(table.open.len(), 3);
    }

    #[test]
    fn client_bound_evicts_within_that_client() {
        let (mut table, start) = (table(100, 4, 1), Instant::now());
        table.admit(start, 0, 0, client(2));
        for id in 1..=2 {
            assert_eq!(table.admit(start, id, 0, client(1)), admitted(None));
        }
        assert_eq!(table.admit(start, 3, 0, client(1)), admitted(Some(1)));
        for id in [2, 3] {
            table.authenticate(start, id);
        }
        for id in [4, 5] {
            assert_eq!(table.admit(start, id, 0, client(1)), admitted(None));
            table.authenticate(start, id);
        }
        assert_eq!(table.admit(start, 6, 0, client(1)), admitted(Some(2)));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let (mut table, start) = (table(100, 8, 1), Instant::now());
        let address =
            |network: u16, host: u16| IpAddr::from([0x2a02, 0x1234, 5, network, 0, 0, 0, host]);
        for host in 0..40_u16 {
            let id = u64::from(host);
            table.admit(start, id, 0, address(1, host));
            table.authenticate(start, id);
        }
        assert_eq!(table.open.len(), 8);
        assert_eq!(table.admit(start, 40, 0, address(2, 1)), admitted(None));
        // An IPv4 address in the form of IPv6 is the same client.
        for id in 41..61 {
            let mapped = IpAddr::from(std::net::Ipv4Addr::new(9, 9, 9, 9).to_ipv6_mapped());
            let plain = IpAddr::from([9, 9, 9, 9]);
            table.admit(start, id, 0, if id % 2 == 0 { mapped } else { plain });
            table.authenticate(start, id);
        }
        assert_eq!((table.open.len(), table.by_client.len()), (17, 3));
    }

    #[test]
    fn loopback_peers_have_no_limit_per_address() {
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let local: IpAddr = local.parse().unwrap();
            let (mut table, start) = (table(200, 2, 1), Instant::now());
            for user in 0..3 {
                assert_eq!(table.admit(start, user, 0, local), admitted(None));
                table.authenticate(start, user);
            }
            for id in 3..53 {
                assert_eq!(table.admit(start, id, 0, local), admitted(None));
            }
            assert!((0..53).all(|id| table.open.contains_key(&id)), "{local}");
            // The limit of new connections of the listener still applies.
            for id in 53..203 {
                assert_ne!(table.admit(start, id, 0, local), Admission::Refuse);
            }
            assert_eq!((table.new.len(), table.open.len()), (100, 103));
        }
    }

    #[test]
    fn new_connection_expires_whatever_it_sent() {
        let (mut table, start) = (table(9, 9, 1), Instant::now());
        let second = Duration::from_secs(1);
        table.admit(start, 0, 0, client(1));
        table.admit(start + second, 1, 0, client(1));
        table.admit(start + second, 2, 0, client(1));
        table.authenticate(start + second, 1);
        assert_eq!(table.next_expiry(), Some(start + HEAD));
        assert_eq!(table.expire(start + HEAD - second), None);
        assert_eq!(table.expire(start + HEAD), Some(0));
        assert_eq!(table.expire(start + HEAD), None);
        assert_eq!(table.expire(start + HEAD + second), Some(2));
        assert_eq!((table.open.len(), table.next_expiry()), (1, None));
    }

    proptest! {
        /// Whatever comes and goes: no limit is exceeded, no connection in use is closed, and in
        /// the end nothing is left.
        #[test]
        fn limits_hold_and_busy_connections_stay(
            steps in proptest::collection::vec((0u8..5, 0usize..2, 0u8..3, any::<prop::sample::Index>()), 1..200),
            total in 1usize..8,
            per_client in 1usize..6,
        ) {
            let (mut table, start) = (table(total, per_client, 2), Instant::now());
            let mut ids: Vec<u64> = Vec::new();
            for (number, (step, listener, address, index)) in steps.into_iter().enumerate() {
                let (id, now) = (number as u64, start + Duration::from_secs(number as u64));
                let chosen = (!ids.is_empty()).then(|| ids[index.index(ids.len())]);
                match (step, chosen) {
                    (0 | 1, _) => {
                        let busy: Vec<_> = table.open.iter()
                            .filter(|(_, entry)| matches!(entry.phase, Phase::Busy(_)))
                            .map(|(id, _)| *id).collect();
                        if table.admit(now, id, listener, client(address)) != Admission::Refuse {
                            ids.push(id);
                        }
                        prop_assert!(busy.iter().all(|id| table.open.contains_key(id)));
                    }
                    (2, Some(id)) => {
                        table.authenticate(now, id);
                        table.begin(id);
                    }
                    (3, Some(id)) => table.end(now, id),
                    (4, Some(id)) => table.remove(id),
                    _ => {}
                }
                ids.retain(|id| table.open.contains_key(id));
                prop_assert!(table.open.len() <= total);
                prop_assert!(table.by_client.values().all(|count| count.all <= per_client && count.new <= count.all));
                let new = table.new_by_listener.values().sum::<usize>();
                prop_assert_eq!(new, table.new.len());
                prop_assert!(table.new_by_listener.values().all(|new| *new <= (total / 4).max(1)));
            }
            for id in ids {
                table.remove(id);
            }
            prop_assert!(table.by_client.is_empty() && table.new.is_empty() && table.open.is_empty());
        }
    }
}
