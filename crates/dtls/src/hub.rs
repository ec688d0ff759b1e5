//! The datagrams of one listening socket, which all threads of the gateway read: each goes to the
//! thread of its association.
//!
//! ```text
//!            ┌─ Hello ──▶ Retry, without any state
//!  socket ───┼─ Initial with a valid cookie ─▶ a new association of this thread
//!            └─ Data ──▶ the queue of the association with that id
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use ring::rand::{SecureRandom, SystemRandom};
use tandem::metrics::METRICS;
use tokio::sync::mpsc;

use crate::cookie::Cookies;
use crate::envelope::{AssociationId, Envelope, tail};
use crate::socket::Datagram;

/// The datagrams that wait for one association at most.
const INBOX: usize = 512;
/// The new associations that wait for one thread at most.
const NEWCOMERS: usize = 128;

/// Shared by the listeners of one socket.
#[derive(Debug)]
pub(crate) struct Hub {
    cookies: Cookies,
    start: Instant,
    state: Mutex<State>,
    /// The socket, for listeners that begin while associations of earlier ones live.
    bound: UdpSocket,
}

#[derive(Debug, Default)]
struct State {
    routes: HashMap<AssociationId, mpsc::Sender<Datagram>>,
    listeners: Vec<(u64, mpsc::Sender<Newcomer>)>,
    next_listener: u64,
}

/// A client that has shown a cookie.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) address: SocketAddr,
    pub(crate) inbox: mpsc::Receiver<Datagram>,
    pub(crate) route: Route,
}

/// The way of datagrams to one association, which ends when it is dropped.
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
    /// Returns the hub of a socket, and creates it if there is none.
    pub(crate) fn of(&self, socket: &UdpSocket) -> io::Result<Arc<Hub>> {
        let address = socket.local_addr()?;
        let mut hubs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.get(&address).and_then(Weak::upgrade) {
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
        hub.bound.try_clone().ok()
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

    pub(crate) fn remove_listener(&self, number: u64) {
        self.state().listeners.retain(|(own, _)| *own != number);
    }

    /// Takes a datagram that the thread of listener `number` has read. Returns true if `reply` is
    /// to be sent back.
    pub(crate) fn handle(
        self: &Arc<Self>,
        number: u64,
        from: SocketAddr,
        datagram: &[u8],
        reply: &mut Vec<u8>,
    ) -> bool {
        let taken = match Envelope::decode(datagram) {
            Ok(Envelope::Hello { nonce }) => {
                let now = self.start.elapsed();
                let (id, cookie) = self.cookies.make(now, from, &nonce);
                Envelope::Retry { nonce, id, cookie }.encode(reply);
                return true;
            }
            Ok(Envelope::Initial { nonce, cookie, .. }) => {
                let now = self.start.elapsed();
                self.cookies
                    .check(now, from, &nonce, &cookie)
                    .is_some_and(|id| {
                        self.pass(id, from, datagram) || self.begin(number, id, from, datagram)
                    })
            }
            Ok(Envelope::Data { id, .. }) => {
                let known = self.pass(id, from, datagram);
                if !known && let Some(tail) = tail(datagram) {
                    METRICS.dtls_datagrams_dropped.add(1);
                    Envelope::Unknown { tail }.encode(reply);
                    return true;
                }
                known
            }
            Ok(Envelope::Retry { .. } | Envelope::Unknown { .. }) | Err(_) => false,
        };
        if !taken {
            METRICS.dtls_datagrams_dropped.add(1);
        }
        false
    }

    /// Passes a datagram to an association. Returns false if there is none.
    fn pass(&self, id: AssociationId, from: SocketAddr, datagram: &[u8]) -> bool {
        let state = self.state();
        let Some(inbox) = state.routes.get(&id) else {
            return false;
        };
        if inbox.try_send((from, datagram.to_vec())).is_err() {
            METRICS.dtls_datagrams_dropped.add(1);
        }
        true
    }

    /// Begins an association on the thread that has read the datagram, or on another one if that
    /// thread no longer accepts.
    fn begin(
        self: &Arc<Self>,
        number: u64,
        id: AssociationId,
        from: SocketAddr,
        datagram: &[u8],
    ) -> bool {
        let (sender, inbox) = mpsc::channel(INBOX);
        // The queue is new, so it has room.
        let _ = sender.try_send((from, datagram.to_vec()));
        let mut state = self.state();
        if let Some(inbox) = state.routes.get(&id) {
            // Another thread has read a datagram of the client's first flight before this one.
            if inbox.try_send((from, datagram.to_vec())).is_err() {
                METRICS.dtls_datagrams_dropped.add(1);
            }
            return true;
        }
        let own = state.listeners.iter().find(|(own, _)| *own == number);
        let Some(listener) = own.or_else(|| state.listeners.first()) else {
            return false;
        };
        let Ok(permit) = listener.1.clone().try_reserve_owned() else {
            return false;
        };
        state.routes.insert(id, sender);
        drop(state);
        permit.send(Newcomer {
            address: from,
            inbox,
            route: Route {
                hub: Arc::clone(self),
                id,
            },
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; 8] = [5; 8];

    fn hello(hub: &Arc<Hub>, from: SocketAddr) -> (AssociationId, [u8; 12]) {
        let (mut hello, mut reply) = (Vec::new(), Vec::new());
        Envelope::Hello { nonce: NONCE }.encode(&mut hello);
        assert!(hub.handle(0, from, &hello, &mut reply));
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

    fn socket() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").expect("a port")
    }

    #[test]
    fn hub_keeps_state_only_after_a_cookie() {
        let hub = Arc::new(Hub::new(socket()));
        let (number, mut newcomers) = hub.add_listener();
        let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
        let other: SocketAddr = "192.0.2.8:1000".parse().expect("an address");
        let mut reply = Vec::new();
        let (id, cookie) = hello(&hub, from);
        for (address, cookie) in [(from, [0; 12]), (other, cookie)] {
            assert!(!hub.handle(number, address, &initial(cookie), &mut reply));
            assert!(newcomers.try_recv().is_err() && hub.state().routes.is_empty());
        }
        for _ in 0..2 {
            assert!(!hub.handle(number, from, &initial(cookie), &mut reply));
        }
        let mut newcomer = newcomers.try_recv().expect("one association");
        assert_eq!((newcomer.address, newcomer.route.id), (from, id));
        assert!(
            newcomers.try_recv().is_err(),
            "the repetition is the same client"
        );
        assert!(newcomer.inbox.try_recv().is_ok() && newcomer.inbox.try_recv().is_ok());
        drop(newcomer);
        assert!(hub.state().routes.is_empty());
    }

    /// Two threads read the datagrams of one flight, and neither knows the association yet.
    #[test]
    fn threads_that_begin_at_once_share_an_association() {
        let hub = Arc::new(Hub::new(socket()));
        let listeners = [hub.add_listener(), hub.add_listener()];
        let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
        let (id, cookie) = hello(&hub, from);
        for (number, _) in &listeners {
            assert!(hub.begin(*number, id, from, &initial(cookie)));
        }
        let newcomers = listeners.map(|(_, mut newcomers)| newcomers.try_recv().ok());
        let mut newcomers: Vec<_> = newcomers.into_iter().flatten().collect();
        assert_eq!(newcomers.len(), 1);
        assert_eq!(newcomers[0].inbox.len(), 2);
        newcomers.clear();
        assert!(hub.state().routes.is_empty());
    }

    #[test]
    fn hub_bounds_newcomers_and_queues() {
        let hub = Arc::new(Hub::new(socket()));
        let (number, mut newcomers) = hub.add_listener();
        let mut reply = Vec::new();
        for port in 1..1000 {
            let from = SocketAddr::from(([192, 0, 2, 1], port));
            let (_, cookie) = hello(&hub, from);
            hub.handle(number, from, &initial(cookie), &mut reply);
        }
        assert_eq!(hub.state().routes.len(), NEWCOMERS);
        let newcomer = newcomers.try_recv().expect("an association");
        let mut data = Vec::new();
        let (id, records) = (newcomer.route.id, &b"records"[..]);
        Envelope::Data { id, records }.encode(&mut data);
        for _ in 0..2 * INBOX {
            hub.handle(number, newcomer.address, &data, &mut reply);
        }
        assert_eq!(newcomer.inbox.len(), INBOX);
        hub.remove_listener(number);
        drop((newcomers, newcomer));
        assert!(hub.state().routes.is_empty());
    }
}
