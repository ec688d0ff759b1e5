//! The datagrams of one listening socket, which all threads of the gateway read: each goes to the
//! thread of its association.
//!
//! ```text
//!            ┌─ Hello ──▶ Retry, without any state
//!  socket ───┼─ Initial with a valid cookie or token ─▶ a new association of this thread
//!            ├─ Initial with another one ─▶ Retry, as for a hello
//!            └─ Data ──▶ the queue of the association with that id
//! ```
//!
//! Without a listener, as during a drain, nothing new begins, and neither a Retry nor a token is
//! sent. The address of the socket is handed over to the next process
//! ([`tandem::transport::handover`]), and each association gets a socket of its own. If that fails,
//! clients repeat their hellos until the process has ended.

mod returning;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use ring::rand::{SecureRandom, SystemRandom};
use tandem::metrics::METRICS;
use tandem::transport::handover::{self, Flow, hand_over};
use tandem::users::subscriber;
use tokio::sync::mpsc;

use crate::batch::Batch;
use crate::cookie::Cookies;
use crate::ends::Ends;
use crate::envelope::{AssociationId, DATA_HEADER, Envelope, HELLO_SIZE, LARGEST, Nonce, tail};
use crate::inbox::Inbox;
use crate::port::Arrived;
use crate::token::{AddressToken, Shown, Tokens};

use returning::Returning;
pub(crate) use returning::Unproved;

/// The new associations that wait for one thread at most.
const NEWCOMERS: usize = 32;
/// The most of them with one IPv4 address, or in one IPv6 network.
const NEWCOMERS_OF_ONE: usize = 4;

/// Shared by the listeners of one socket.
#[derive(Debug)]
pub(crate) struct Hub {
    cookies: Cookies,
    tokens: Tokens,
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
    returning: Returning,
}

/// A client that has shown a cookie, or a token.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) ends: Ends,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) route: Route,
    /// The place of the association among those that wait.
    pub(crate) place: Place,
    /// The place of a client that has shown a token, until the end of its handshake.
    pub(crate) unproved: Option<Unproved>,
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
        handover::check(socket)?;
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
            tokens: Tokens::new(&secret),
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
                let id = self.cookies.check(now, from.peer, &nonce, &cookie);
                let returns = || self.tokens.check(now, from.peer.ip(), &nonce, &cookie);
                if let Some(id) = id {
                    self.pass(id, run) || self.begin(number, id, run, None)
                } else if let Some(token) = returns()
                    && self.begin(number, token.id, run, Some(&token))
                {
                    true
                } else {
                    // The cookie or token is of another process, or of another address of the
                    // client. A forged source address gains no amplification.
                    if datagram.len() >= HELLO_SIZE {
                        self.retry(from, nonce, replies);
                    }
                    false
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

    /// Returns a token with which the client at an address may return, or `None` once no client
    /// can: the next process has other tokens.
    pub(crate) fn token(&self, address: IpAddr) -> Option<AddressToken> {
        let is_open = !self.state().listeners.is_empty();
        is_open.then(|| self.tokens.make(self.start.elapsed(), address))
    }

    /// Begins an association on the thread that has read the datagram, or on another one if that
    /// thread no longer accepts. Returns false if it cannot begin, or not with this `token`.
    fn begin(
        self: &Arc<Self>,
        number: u64,
        id: AssociationId,
        run: &Arrived<'_>,
        token: Option<&Shown>,
    ) -> bool {
        let mut state = self.state();
        if let Some(inbox) = state.routes.get(&id) {
            // A token does not depend on the port, and its owner may choose the nonce. The datagram
            // may therefore be for an association of another client.
            if token.is_some() && inbox.client() != run.from.peer {
                return false;
            }
            // Another thread has read a datagram of the client's first flight before this one, or
            // the client repeats it.
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
        if state.waiting.get(&of) == Some(&NEWCOMERS_OF_ONE)
            || token.is_some_and(|token| !state.returning.admit(token, of.1))
        {
            return false;
        }
        *state.waiting.entry(of).or_default() += 1;
        let inbox = Arc::new(Inbox::new(run.from.peer));
        inbox.push(run);
        state.routes.insert(id, Arc::clone(&inbox));
        drop(state);
        let unproved = token.map(|_| Unproved::new(self, of.1));
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
            unproved,
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
mod tests;
