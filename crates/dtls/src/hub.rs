//! The datagrams of one listening socket, which all threads of the gateway read: each goes to the
//! thread of its association.
//!
//! ```text
//!            ┌─ Hello ──▶ Retry, without any state
//!  socket ───┼─ Initial with a valid cookie ─▶ a new association of this thread
//!            ├─ Initial with another cookie ─▶ Retry, as for a hello
//!            └─ Data ──▶ the queue of the association with that id
//! ```
//!
//! Without a listener, as during a drain, nothing new begins and no Retry is sent. The address of
//! the socket is handed over to the next process ([`tandem::transport::handover`]), and each
//! association gets a socket of its own. If that fails, clients repeat their hellos until the
//! process has ended.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use ring::rand::{SecureRandom, SystemRandom};
use tandem::metrics::METRICS;
use tandem::transport::handover::{Flow, hand_over};
use tandem::users::subscriber;
use tokio::sync::mpsc;

use crate::batch::Batch;
use crate::cookie::Cookies;
use crate::ends::Ends;
use crate::envelope::{AssociationId, DATA_HEADER, Envelope, HELLO_SIZE, LARGEST, Nonce, tail};
use crate::inbox::Inbox;
use crate::port::Arrived;

/// The new associations that wait for one thread at most.
const NEWCOMERS: usize = 32;
/// The most of them with one IPv4 address, or in one IPv6 network.
const NEWCOMERS_OF_ONE: usize = 4;

/// Shared by the listeners of one socket.
#[derive(Debug)]
pub(crate) struct Hub {
    cookies: Cookies,
    start: Instant,
    state: Mutex<State>,
    /// The socket, which is handed over after the last listener.
    bound: UdpSocket,
}

#[derive(Debug, Default)]
struct State {
    routes: HashMap<AssociationId, Arc<Inbox>>,
    listeners: Vec<(u64, mpsc::Sender<Newcomer>)>,
    next_listener: u64,
    /// The new associations that wait for each listener, by their networks.
    waiting: HashMap<(u64, IpAddr), usize>,
    /// True once the address of the socket was handed over.
    handed_over: bool,
}

/// A client that has shown a cookie.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) ends: Ends,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) route: Route,
    /// The place of the association among those that wait.
    pub(crate) place: Place,
}

/// The place of a newcomer, which another one may take when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    hub: Arc<Hub>,
    of: (u64, IpAddr),
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        if let Some(count) = state.waiting.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                state.waiting.remove(&self.of);
            }
        }
    }
}

/// The entry by which the hub finds one association. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct Route {
    hub: Arc<Hub>,
    pub(crate) id: AssociationId,
}

impl Drop for Route {
    fn drop(&mut self) {
        self.hub.state().routes.remove(&self.id);
    }
}

/// The hubs of all listening sockets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hubs(Arc<Mutex<HashMap<SocketAddr, Weak<Hub>>>>);

impl Hubs {
    /// Returns the hub of a socket, and creates it if there is none or its address was handed over.
    pub(crate) fn of(&self, socket: &UdpSocket) -> io::Result<Arc<Hub>> {
        let address = socket.local_addr()?;
        let mut hubs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        let present = hubs.get(&address).and_then(Weak::upgrade);
        if let Some(hub) = present.filter(|hub| !hub.state().handed_over) {
            return Ok(hub);
        }
        let hub = Arc::new(Hub::new(socket.try_clone()?));
        hubs.insert(address, Arc::downgrade(&hub));
        Ok(hub)
    }

    /// Returns the socket of the hub with this address, if it has one.
    pub(crate) fn bound(&self, address: SocketAddr) -> Option<UdpSocket> {
        let hubs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hub = hubs.get(&address).and_then(Weak::upgrade)?;
        let is_free = hub.state().handed_over;
        (!is_free).then(|| hub.bound.try_clone().ok()).flatten()
    }
}

impl Hub {
    fn new(bound: UdpSocket) -> Self {
        let mut secret = [0; 32];
        SystemRandom::new()
            .fill(&mut secret)
            .expect("the system has random numbers");
        Self {
            cookies: Cookies::new(&secret),
            start: Instant::now(),
            state: Mutex::default(),
            bound,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a single step, so that a panic elsewhere leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener. Returns its number and the queue of its new clients.
    pub(crate) fn add_listener(&self) -> (u64, mpsc::Receiver<Newcomer>) {
        let (sender, receiver) = mpsc::channel(NEWCOMERS);
        let mut state = self.state();
        let number = state.next_listener;
        state.next_listener += 1;
        state.listeners.push((number, sender));
        (number, receiver)
    }

    /// Removes a listener. After the last one, the address is free for the next process.
    pub(crate) fn remove_listener(&self, number: u64) {
        let mut state = self.state();
        state.listeners.retain(|(own, _)| *own != number);
        if !state.listeners.is_empty() || state.handed_over {
            return;
        }
        let inboxes: Vec<_> = state.routes.values().collect();
        let flows: Vec<Flow> = inboxes.iter().map(|inbox| inbox.flow()).collect();
        match hand_over(&self.bound, &flows) {
            Ok(sockets) => {
                for (inbox, socket) in inboxes.into_iter().zip(sockets) {
                    if let Some(socket) = socket {
                        inbox.separate(socket);
                    }
                }
                state.handed_over = true;
            }
            Err(error) => {
                tracing::warn!(%error, "the UDP address is taken until the last connection ends");
            }
        }
    }

    /// Takes datagrams that the thread of listener `number` has read. Replies are appended to
    /// `replies`.
    pub(crate) fn handle(
        self: &Arc<Self>,
        number: u64,
        arrived: &Arrived<'_>,
        replies: &mut Batch,
    ) {
        // No datagram can be sent to port 0, so whoever forged it wants a system call to fail.
        if arrived.stride > LARGEST || arrived.from.peer.port() == 0 {
            let count = arrived.datagrams().count();
            METRICS.dtls_datagrams_dropped.add(count as u64);
            return;
        }
        let mut rest = *arrived;
        while !rest.bytes.is_empty() {
            let (first, after) = rest.bytes.split_at(leading(&rest));
            let run = Arrived {
                bytes: first,
                ..rest
            };
            self.handle_run(number, &run, replies);
            rest.bytes = after;
        }
    }

    /// Takes datagrams of one association, or one of another kind.
    fn handle_run(self: &Arc<Self>, number: u64, run: &Arrived<'_>, replies: &mut Batch) {
        let from = run.from;
        let datagram = &run.bytes[..run.stride.min(run.bytes.len())];
        let taken = match Envelope::decode(datagram) {
            Ok(Envelope::Hello { nonce }) => self.retry(from, nonce, replies),
            Ok(Envelope::Initial { nonce, cookie, .. }) => {
                let now = self.start.elapsed();
                match self.cookies.check(now, from.peer, &nonce, &cookie) {
                    Some(id) => self.pass(id, run) || self.begin(number, id, run),
                    // It is of another process, or of another address of the client.
                    None => {
                        // A forged source address gains no amplification.
                        if datagram.len() >= HELLO_SIZE {
                            self.retry(from, nonce, replies);
                        }
                        false
                    }
                }
            }
            Ok(Envelope::Data { id, .. }) => {
                let known = self.pass(id, run);
                // A single reply suffices for the whole run.
                if !known && let Some(tail) = tail(datagram) {
                    Envelope::Unknown { tail }.append(&mut replies.bytes);
                    replies.end(from, false);
                }
                known
            }
            Ok(Envelope::Retry { .. } | Envelope::Unknown { .. }) | Err(_) => false,
        };
        if !taken {
            let count = run.datagrams().count();
            METRICS.dtls_datagrams_dropped.add(count as u64);
        }
    }

    /// Sends a client its cookie, if it could begin an association with it. Returns false if not.
    fn retry(&self, from: Ends, nonce: Nonce, replies: &mut Batch) -> bool {
        if self.state().listeners.is_empty() {
            return false;
        }
        let (id, cookie) = self.cookies.make(self.start.elapsed(), from.peer, &nonce);
        Envelope::Retry { nonce, id, cookie }.append(&mut replies.bytes);
        replies.end(from, false);
        true
    }

    /// Passes datagrams to an association. Returns false if there is none.
    fn pass(&self, id: AssociationId, run: &Arrived<'_>) -> bool {
        let inbox = self.state().routes.get(&id).map(Arc::clone);
        let Some(inbox) = inbox else {
            return false;
        };
        let dropped = inbox.push(run);
        METRICS.dtls_datagrams_dropped.add(dropped as u64);
        true
    }

    /// Begins an association on the thread that has read the datagram, or on another one if that
    /// thread no longer accepts.
    fn begin(self: &Arc<Self>, number: u64, id: AssociationId, run: &Arrived<'_>) -> bool {
        let mut state = self.state();
        if let Some(inbox) = state.routes.get(&id) {
            // Another thread has read a datagram of the client's first flight before this one.
            let dropped = inbox.push(run);
            METRICS.dtls_datagrams_dropped.add(dropped as u64);
            return true;
        }
        let own = state.listeners.iter().find(|(own, _)| *own == number);
        let Some(listener) = own.or_else(|| state.listeners.first()) else {
            return false;
        };
        let Ok(permit) = listener.1.clone().try_reserve_owned() else {
            return false;
        };
        let of = (listener.0, subscriber(run.from.peer.ip()));
        let waiting = state.waiting.entry(of).or_default();
        if *waiting == NEWCOMERS_OF_ONE {
            return false;
        }
        *waiting += 1;
        let inbox = Arc::new(Inbox::new(run.from.peer));
        inbox.push(run);
        state.routes.insert(id, Arc::clone(&inbox));
        drop(state);
        permit.send(Newcomer {
            ends: run.from,
            inbox,
            route: Route {
                hub: Arc::clone(self),
                id,
            },
            place: Place {
                hub: Arc::clone(self),
                of,
            },
        });
        true
    }
}

/// Returns the number of bytes at the front that are datagrams of one association, or one datagram
/// of another kind.
fn leading(arrived: &Arrived<'_>) -> usize {
    let mut datagrams = arrived.datagrams();
    let Some(first) = datagrams.next() else {
        return arrived.bytes.len();
    };
    let is_data = matches!(Envelope::decode(first), Ok(Envelope::Data { .. }));
    let same = |other: &&[u8]| is_data && other.get(..DATA_HEADER) == first.get(..DATA_HEADER);
    let others: usize = datagrams.take_while(same).map(<[u8]>::len).sum();
    first.len() + others
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    use crate::inbox::{OWN, Reader, STRANGE, UNCONNECTED};

    const NONCE: [u8; 8] = [5; 8];

    /// Brings a datagram to the hub, and returns its reply.
    fn handle(hub: &Arc<Hub>, number: u64, from: SocketAddr, datagram: &[u8]) -> Vec<u8> {
        let mut replies = Batch::default();
        hub.handle(number, &Arrived::one(from, datagram), &mut replies);
        replies.bytes
    }

    fn hello(hub: &Arc<Hub>, from: SocketAddr) -> (AssociationId, [u8; 12]) {
        let mut hello = Vec::new();
        Envelope::Hello { nonce: NONCE }.encode(&mut hello);
        let reply = handle(hub, 0, from, &hello);
        assert!(reply.len() <= hello.len(), "no amplification");
        match Envelope::decode(&reply) {
            Ok(Envelope::Retry { id, cookie, .. }) => (id, cookie),
            other => panic!("no retry: {other:?}"),
        }
    }

    fn initial(cookie: [u8; 12]) -> Vec<u8> {
        let mut datagram = Vec::new();
        let records = b"records";
        Envelope::Initial {
            nonce: NONCE,
            cookie,
            records,
        }
        .encode(&mut datagram);
        datagram
    }

    /// Returns the bytes that wait for a newcomer.
    fn waiting(newcomer: &Newcomer) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut reader = Reader::new(Arc::clone(&newcomer.inbox));
        reader.receive(|arrived| bytes.extend_from_slice(arrived.bytes));
        bytes
    }

    fn socket() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").expect("a port")
    }

    #[test]
    fn hub_keeps_state_only_after_a_cookie() {
        let hub = Arc::new(Hub::new(socket()));
        let (number, mut newcomers) = hub.add_listener();
        let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
        let other: SocketAddr = "192.0.2.8:1000".parse().expect("an address");
        let (id, cookie) = hello(&hub, from);
        for (address, cookie) in [(from, [0; 12]), (other, cookie)] {
            let sent = initial(cookie);
            let reply = handle(&hub, number, address, &sent);
            let reply = Envelope::decode(&reply);
            assert!(matches!(reply, Ok(Envelope::Retry { .. })), "{reply:?}");
            // A shorter datagram gets nothing, so that no reply is longer than its question.
            assert!(handle(&hub, number, address, &sent[..24]).is_empty());
            assert!(newcomers.try_recv().is_err() && hub.state().routes.is_empty());
        }
        for _ in 0..2 {
            assert!(handle(&hub, number, from, &initial(cookie)).is_empty());
        }
        let newcomer = newcomers.try_recv().expect("one association");
        assert_eq!((newcomer.ends.peer, newcomer.route.id), (from, id));
        assert!(
            newcomers.try_recv().is_err(),
            "the repetition is the same client"
        );
        assert_eq!(waiting(&newcomer), [&initial(cookie)[..]; 2].concat());
        drop(newcomer);
        assert!(hub.state().routes.is_empty());
    }

    /// A gateway that drains answers nothing, so that the client finds the next process.
    #[test]
    fn hub_without_listeners_sends_no_cookie() {
        let hub = Arc::new(Hub::new(socket()));
        let (number, _newcomers) = hub.add_listener();
        let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
        let (_, cookie) = hello(&hub, from);
        hub.remove_listener(number);
        let mut datagram = Vec::new();
        Envelope::Hello { nonce: NONCE }.encode(&mut datagram);
        for sent in [datagram, initial(cookie), initial([0; 12])] {
            assert!(handle(&hub, number, from, &sent).is_empty());
        }
    }

    #[test]
    fn hub_ignores_datagrams_that_it_cannot_answer() {
        let hub = Arc::new(Hub::new(socket()));
        let _newcomers = hub.add_listener();
        let from = SocketAddr::from(([192, 0, 2, 7], 0));
        let (mut datagram, id) = (Vec::new(), AssociationId::new([1; 4]));
        for envelope in [
            Envelope::Hello { nonce: NONCE },
            Envelope::Data {
                id,
                records: &[7; 40],
            },
        ] {
            envelope.encode(&mut datagram);
            assert!(handle(&hub, 0, from, &datagram).is_empty());
            let answered = SocketAddr::new(from.ip(), 1);
            assert!(!handle(&hub, 0, answered, &datagram).is_empty());
        }
    }

    /// Replies of the hub and those of an association leave from the address that has got the
    /// datagram before them.
    #[test]
    fn replies_leave_from_the_address_of_the_question() {
        let hub = Arc::new(Hub::new(socket()));
        let (number, mut newcomers) = hub.add_listener();
        let peer: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
        let ends = ["198.51.100.1", "198.51.100.2"].map(|own| Ends {
            peer,
            own: Some(own.parse().expect("an address")),
        });
        let (mut datagram, id) = (Vec::new(), AssociationId::new([1; 4]));
        let records = &[7; 40];
        let mut replies = Batch::default();
        for envelope in [
            Envelope::Hello { nonce: NONCE },
            Envelope::Data { id, records },
        ] {
            envelope.encode(&mut datagram);
            for from in ends {
                let arrived = Arrived {
                    from,
                    ..Arrived::one(peer, &datagram)
                };
                hub.handle(number, &arrived, &mut replies);
            }
        }
        let mut sent = Vec::new();
        replies
            .send(&Cell::new(64), |transmit| {
                sent.push((transmit.destination, transmit.src_ip));
                Ok(())
            })
            .expect("no error");
        let [first, second] = ends.map(|ends| (ends.peer, ends.own));
        assert_eq!(sent, [first, second, first, second]);
        // The cookie is good at each address.
        let (_, cookie) = hello(&hub, peer);
        let initial = initial(cookie);
        let arrived = Arrived {
            from: ends[1],
            ..Arrived::one(peer, &initial)
        };
        hub.handle(number, &arrived, &mut Batch::default());
        assert_eq!(newcomers.try_recv().expect("one").ends, ends[1]);
    }

    /// Two threads read the datagrams of one flight, and neither knows the association yet.
    #[test]
    fn threads_that_begin_at_once_share_an_association() {
        let hub = Arc::new(Hub::new(socket()));
        let listeners = [hub.add_listener(), hub.add_listener()];
        let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
        let (id, cookie) = hello(&hub, from);
        for (number, _) in &listeners {
            assert!(hub.begin(*number, id, &Arrived::one(from, &initial(cookie))));
        }
        let newcomers = listeners.map(|(_, mut newcomers)| newcomers.try_recv().ok());
        let mut newcomers: Vec<_> = newcomers.into_iter().flatten().collect();
        assert_eq!(newcomers.len(), 1);
        let first_flight = [&initial(cookie)[..]; 2].concat();
        assert_eq!(waiting(&newcomers[0]), first_flight);
        newcomers.clear();
        assert!(hub.state().routes.is_empty());
    }

    #[test]
    fn hub_bounds_newcomers_and_queues() {
        let hub = Arc::new(Hub::new(socket()));
        let (number, mut newcomers) = hub.add_listener();
        for last in 0..100 {
            let from = SocketAddr::from(([192, 0, 2, last], 1));
            let (_, cookie) = hello(&hub, from);
            handle(&hub, number, from, &initial(cookie));
        }
        assert_eq!(hub.state().routes.len(), NEWCOMERS);
        let newcomer = newcomers.try_recv().expect("an association");
        let mut data = Vec::new();
        let (id, records) = (newcomer.route.id, &b"records"[..]);
        Envelope::Data { id, records }.encode(&mut data);
        waiting(&newcomer);
        let other = SocketAddr::from(([192, 0, 2, 200], 1));
        let own = newcomer.ends.peer;
        for (address, most) in [(other, STRANGE), (own, UNCONNECTED), (own, OWN)] {
            if most == OWN {
                newcomer.inbox.widen();
            }
            for _ in 0..2 * OWN {
                handle(&hub, number, address, &data);
            }
            assert_eq!(waiting(&newcomer).len(), most * data.len());
        }
        hub.remove_listener(number);
        drop((newcomers, newcomer));
        let state = hub.state();
        assert!(state.routes.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn hub_keeps_places_from_a_network_that_has_its_share() {
        let hub = Arc::new(Hub::new(socket()));
        let (number, mut newcomers) = hub.add_listener();
        let all = |from: &str, count: u16| {
            for port in 1..=count {
                let address = format!("{from}:{port}").parse().expect("an address");
                let (_, cookie) = hello(&hub, address);
                handle(&hub, number, address, &initial(cookie));
            }
            hub.state().routes.len()
        };
        assert_eq!(all("192.0.2.1", 10), NEWCOMERS_OF_ONE);
        assert_eq!(all("[::ffff:192.0.2.1]", 10), NEWCOMERS_OF_ONE);
        assert_eq!(all("[::ffff:192.0.2.2]", 1), NEWCOMERS_OF_ONE + 1);
        assert_eq!(all("[2001:db8:0:1::1]", 3), NEWCOMERS_OF_ONE + 4);
        assert_eq!(all("[2001:db8:0:1::2]", 3), 2 * NEWCOMERS_OF_ONE + 1);
        // An association that was begun leaves its place, and keeps its route.
        let newcomer = newcomers.try_recv().expect("an association");
        drop(newcomer.place);
        assert_eq!(all("192.0.2.1", 10), 2 * NEWCOMERS_OF_ONE + 2);
    }

    /// The kernel joins datagrams of equal size, whichever their associations are.
    #[test]
    fn hub_separates_datagrams_that_have_arrived_together() {
        let hub = Arc::new(Hub::new(socket()));
        let (number, mut newcomers) = hub.add_listener();
        let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
        let (id, cookie) = hello(&hub, from);
        handle(&hub, number, from, &initial(cookie));
        let newcomer = newcomers.try_recv().expect("one association");
        waiting(&newcomer);
        let unknown = AssociationId::new([id.to_bytes()[0] ^ 1, 2, 3, 4]);
        let mut joined = Vec::new();
        for (id, last) in [(id, 1), (id, 2), (unknown, 3), (unknown, 4), (id, 5)] {
            let records = &[last; 20][..];
            Envelope::Data { id, records }.append(&mut joined);
        }
        joined.truncate(joined.len() - 7);
        let mut replies = Batch::default();
        let arrived = Arrived {
            stride: 24,
            ..Arrived::one(from, &joined)
        };
        hub.handle(number, &arrived, &mut replies);
        assert_eq!(replies.len(), 1);
        let tail = [3; 16];
        assert_eq!(
            Envelope::decode(&replies.bytes),
            Ok(Envelope::Unknown { tail })
        );
        let expected = [&joined[..48], &joined[96..]].concat();
        assert_eq!(waiting(&newcomer), expected);
    }
}
