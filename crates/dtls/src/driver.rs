//! The task of one association, which moves its datagrams and wakes its streams.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tandem::error::{Error, Kind};
use tandem::metrics::METRICS;

use crate::batch::Batch;
use crate::carrier::{LINGER, Shared};
use crate::facts::AssociationFacts;
use crate::kept::Keeping;
use crate::port::Arrived;
use crate::socket::{After, Socket};

/// The datagrams that are sent before other tasks of the thread run.
const BATCH: usize = 64;
/// The failures of the socket in a row, without a datagram between them, that end an association.
const MAX_FAILURES: u32 = 3;
/// The least time without an answer after which a client probes the path, and looks whether its
/// address has changed. It is also the least time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two moves after looks without an answer between them. A machine with
/// several paths may choose another address each time.
const FOLLOW_AGAIN: Duration = Duration::from_secs(8);

thread_local! {
    /// The memory of outgoing datagrams, which the associations of a thread share.
    static SPARE: Cell<Batch> = Cell::default();
}

/// Moves the datagrams of one association.
pub(crate) struct Driver {
    pub(crate) shared: Rc<Shared>,
    pub(crate) socket: Socket,
    pub(crate) facts: Rc<AssociationFacts>,
    /// True once the tasks that wait for the handshake were woken.
    pub(crate) announced: bool,
    pub(crate) dropped_at: Option<Instant>,
    pub(crate) failures: u32,
    /// The last look for a change of the address.
    pub(crate) looked_at: Option<Instant>,
    /// The last look after which the association moved.
    pub(crate) followed_at: Option<Instant>,
    /// The place for the gateway's tokens, if a client keeps them.
    pub(crate) keeping: Option<Keeping>,
}

impl Drop for Driver {
    /// Tells the peer if the task ends with its thread.
    fn drop(&mut self) {
        self.keep_round_trip();
        self.shared.association.borrow_mut().close(0);
        let mut batch = Batch::default();
        self.gather(&mut batch);
        self.socket.send_now(&mut batch);
    }
}

impl Driver {
    /// Keeps the round trip for the next association.
    fn keep_round_trip(&self) {
        let round_trip = self.shared.association.borrow_mut().tunnel().first_rtt();
        if let (Some(keeping), Some(round_trip)) = (&self.keeping, round_trip) {
            keeping.note_round_trip(round_trip);
        }
    }

    pub(crate) async fn run(mut self) {
        METRICS.dtls_associations.add(1);
        loop {
            let all = self.send().await;
            self.shared.dispatch();
            let (ended, wake_at, remote, connected, certified) = {
                let association = self.shared.association.borrow();
                if let Some(error) = association.ended() {
                    self.shared.end(error);
                }
                let ended = association.ended().is_some();
                let (remote, connected) = (association.remote(), association.is_connected());
                let certified = connected && association.has_peer_certificate();
                (
                    ended,
                    association.poll_timeout(),
                    remote,
                    connected,
                    certified,
                )
            };
            if self.facts.peer.replace(remote) != remote {
                self.socket.follow(remote);
            }
            self.facts.has_peer_certificate.set(certified);
            if connected && !self.announced {
                self.announced = true;
                self.socket.connected();
                self.shared.wake_waiting();
            }
            if ended || self.shared.ended.borrow().is_some() {
                break;
            }
            let now = Instant::now();
            if self.shared.is_done(&mut self.dropped_at, now) {
                let mut association = self.shared.association.borrow_mut();
                if !association.is_connected() {
                    drop(association);
                    let detail = "the handshake was given up";
                    self.shared
                        .fail(Error::new(Kind::Reset, self.shared.side, detail));
                    break;
                }
                association.close(0);
                continue;
            }
            self.wait(all, wake_at).await;
        }
        METRICS.dtls_associations.sub(1);
    }

    /// Sends the datagrams that are due. Returns false if more of them wait, as they do after a
    /// change of the network.
    async fn send(&mut self) -> bool {
        let mut batch = SPARE.take();
        let mut all = self.gather(&mut batch);
        loop {
            let before = batch.progress();
            let Err(error) = self.socket.send(&mut batch).await else {
                break;
            };
            all &= !self.on_failure(&error);
            // A socket that fails before any datagram was tried would do so again.
            if batch.progress() == before {
                break;
            }
        }
        METRICS.dtls_datagrams_sent.add(batch.clear());
        SPARE.set(batch);
        all
    }

    /// Gathers the datagrams that are due. Returns false if more of them wait.
    fn gather(&self, batch: &mut Batch) -> bool {
        let mut association = self.shared.association.borrow_mut();
        while batch.len() < BATCH {
            let Some(to) = association.poll_output(Instant::now(), &mut batch.bytes) else {
                return true;
            };
            if association.is_path_probe() {
                batch.end_alone(to);
            } else {
                batch.end(to, association.permits_marks());
            }
        }
        false
    }

    /// Acts on an error of the socket. A datagram that could not be sent counts as lost. Returns
    /// true if the socket was replaced, since the tunnel then repeats its flight at once.
    fn on_failure(&mut self, error: &io::Error) -> bool {
        match self.socket.after(error) {
            After::Ignore => {}
            After::Moved => {
                self.note_move();
                return true;
            }
            After::Refused => {
                self.failures += 1;
                let connected = self.shared.association.borrow().is_connected();
                if !connected || self.failures >= MAX_FAILURES {
                    self.shared.fail(Error::io(error, self.shared.side));
                }
            }
        }
        false
    }

    /// Has everything in flight repeated from the new socket. A probe leaves too, since the peer
    /// may owe the reply to a probe only.
    fn note_move(&self) {
        let mut association = self.shared.association.borrow_mut();
        let now = association.tunnel_time(Instant::now());
        association.tunnel().path_changed(now);
        association.tunnel().probe();
    }

    /// Returns the time at which a client probes the path, if an answer is missing.
    fn next_look(&self) -> Option<Instant> {
        let Socket::Own { .. } = self.socket else {
            return None;
        };
        let mut association = self.shared.association.borrow_mut();
        let since = association.unanswered_since()?;
        let round_trip = association.tunnel().first_rtt().unwrap_or_default();
        let since = self.looked_at.map_or(since, |at| at.max(since));
        Some(since + LOOK.max(round_trip.saturating_mul(2)))
    }

    /// Returns false soon after a look that moved the association, if no answer has come since.
    fn may_follow(&self, now: Instant) -> bool {
        let since = self.shared.association.borrow().unanswered_since();
        let unconfirmed = self.followed_at.filter(|at| since <= Some(*at));
        unconfirmed.is_none_or(|at| now >= at + FOLLOW_AGAIN)
    }

    /// Probes the path, if that is due, and follows a change of the machine's address. The time
    /// between two timeouts of the tunnel doubles, so that it would notice late that the path is
    /// back.
    fn look(&mut self, now: Instant) {
        if self.next_look().is_some_and(|at| at <= now) {
            self.looked_at = Some(now);
            if self.may_follow(now) && self.socket.follow_route() {
                self.followed_at = Some(now);
                self.note_move();
            } else {
                self.shared.association.borrow_mut().tunnel().probe();
            }
        }
    }

    /// Waits for a datagram, a call of a stream or a timer.
    async fn wait(&mut self, all_sent: bool, wake_at: Option<Instant>) {
        if !all_sent {
            tokio::task::yield_now().await;
        }
        let linger = self.dropped_at.map(|at| at + LINGER);
        let expiry = self.shared.next_expiry();
        let wake_at = if all_sent {
            let look = self.next_look();
            let later = linger.into_iter().chain(expiry).chain(look);
            wake_at.into_iter().chain(later).min()
        } else {
            Some(Instant::now())
        };
        let timer = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let shared = Rc::clone(&self.shared);
        let arrived = tokio::select! {
            biased;
            arrived = self.socket.arrived() => Some(arrived),
            () = shared.work.notified() => None,
            () = timer => None,
        };
        match arrived.map(|arrived| arrived.and_then(|()| self.receive())) {
            Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                self.on_failure(&error);
                // The socket may fail at once for each time.
                tokio::task::yield_now().await;
            }
            _ => {}
        }
        let now = Instant::now();
        self.look(now);
        shared.association.borrow_mut().handle_timeout(now);
        shared.expire_unknown(now);
    }

    /// Takes the datagrams that have arrived.
    fn receive(&mut self) -> io::Result<()> {
        let mut association = self.shared.association.borrow_mut();
        let (mut count, mut bytes) = (0, 0);
        let read = self.socket.receive(|arrived: &Arrived<'_>| {
            let now = Instant::now();
            for datagram in arrived.datagrams() {
                association.handle_datagram(now, arrived.from, datagram, arrived.marked);
                count += 1;
            }
            bytes += arrived.bytes.len() as u64;
        });
        let token = association.take_token();
        drop(association);
        if let (Some(keeping), Some(token)) = (&mut self.keeping, token)
            && let Some(own) = self.socket.own_address()
        {
            keeping.keep(own, token);
            self.keep_round_trip();
        }
        METRICS.dtls_datagrams_received.add(count);
        let facts = &self.facts;
        facts.received.set(facts.received.get() + count);
        facts.received_bytes.set(facts.received_bytes.get() + bytes);
        if count > 0 {
            self.failures = 0;
            self.shared.unknown.borrow_mut().hear(Instant::now());
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
    use std::time::Duration;

    use bytes::Bytes;
    use socket2::{Domain, Type};
    use tandem::error::Side;
    use tandem_tunnel::Config;

    use super::*;
    use crate::association::{Association, Settings};
    use crate::carrier::driver;
    use crate::certificates::anonymous;
    use crate::cookie::Cookies;
    use crate::envelope::Envelope;
    use crate::port::Port;

    /// Returns the client's end of an association with the gateway at this address.
    fn connected(gateway: SocketAddr) -> Association {
        let config = Config {
            max_datagram: 1200,
            ..Config::default()
        };
        let patience = Duration::from_secs(30);
        let settings = Settings::new(config, patience, false).expect("settings");
        let identity = || anonymous().expect("an identity");
        let (now, client) = (Instant::now(), SocketAddr::from(([192, 0, 2, 1], 1)));
        let accept = Box::new(|_: &[u8]| Ok(true));
        let mut own = Association::connect(&settings, identity(), gateway, accept, now);
        let (cookies, mut other, mut out) = (Cookies::new(&[1; 32]), None, Vec::new());
        for _ in 0..20 {
            while own.poll_output(now, &mut out).is_some() {
                let datagram = std::mem::take(&mut out);
                if let Ok(Envelope::Hello { nonce }) = Envelope::decode(&datagram) {
                    let (id, cookie) = cookies.make(Duration::ZERO, client, &nonce);
                    let (settings, ends) = (&settings, client.into());
                    other = Some(Association::accept(
                        settings,
                        identity(),
                        None,
                        id,
                        ends,
                        now,
                    ));
                    let mut retry = Vec::new();
                    Envelope::Retry { nonce, id, cookie }.encode(&mut retry);
                    own.handle_datagram(now, gateway.into(), &retry, false);
                } else if let Some(other) = &mut other {
                    other.handle_datagram(now, client.into(), &datagram, false);
                }
            }
            let Some(other) = &mut other else { continue };
            while other.poll_output(now, &mut out).is_some() {
                let datagram = std::mem::take(&mut out);
                own.handle_datagram(now, gateway.into(), &datagram, false);
            }
        }
        assert!(own.is_connected(), "no handshake");
        own
    }

    /// Returns the socket of a client whose machine has lost the socket's address.
    fn stale(remote: SocketAddr) -> Socket {
        let socket = socket2::Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        socket.set_freebind_v4(true).expect("the option");
        let lost = SocketAddr::from(([192, 0, 2, 77], 0));
        socket.bind(&lost.into()).expect("the address");
        Socket::Own {
            port: Port::new(socket.into()).expect("a port"),
            remote,
            moved: None,
        }
    }

    /// Writes a request on a new stream.
    fn ask(association: &mut Association) {
        let now = association.tunnel_time(Instant::now());
        let tunnel = association.tunnel();
        let id = tunnel.open(now).expect("a stream");
        tunnel
            .write(id, &mut Bytes::from_static(b"question"))
            .expect("room");
    }

    /// Returns a gateway's socket, and its address.
    fn gateway() -> (UdpSocket, SocketAddr) {
        let gateway = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let patience = Some(Duration::from_secs(20));
        gateway.set_read_timeout(patience).expect("a timeout");
        let address = gateway.local_addr().expect("an address");
        (gateway, address)
    }

    /// The tunnel has no timer then, so the task would sleep until the next keep-alive.
    #[tokio::test]
    async fn flight_is_repeated_at_once_from_a_new_address() {
        let (gateway, address) = gateway();
        let mut association = connected(address);
        ask(&mut association);
        let mut driver = driver(association, stale(address), Side::Peer, 1);
        assert!(!driver.send().await, "the lost flight waits");
        while !driver.send().await {}
        let (size, from) = gateway.recv_from(&mut [0; 2000]).expect("a datagram");
        assert!(size > 0 && from.ip() == Ipv4Addr::LOCALHOST);
    }

    /// Otherwise the gateway would learn the new address with the next look only.
    #[tokio::test]
    async fn lost_probe_is_repeated_at_once_from_a_new_address() {
        let (gateway, address) = gateway();
        let mut association = connected(address);
        association.tunnel().probe();
        let mut driver = driver(association, stale(address), Side::Peer, 1);
        assert!(!driver.send().await, "the lost probe waits");
        while !driver.send().await {}
        let (_, from) = gateway.recv_from(&mut [0; 2000]).expect("a datagram");
        assert_eq!(from.ip(), Ipv4Addr::LOCALHOST);
    }

    /// Returns the socket of a client whose machine has the address 127.0.0.2 still, but would send
    /// from another one now. It stands for that of a network that is no longer the default.
    fn earlier(gateway: SocketAddr) -> Socket {
        let earlier = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).expect("a port");
        earlier.connect(gateway).expect("a route");
        Socket::Own {
            port: Port::new(earlier).expect("a port"),
            remote: gateway,
            moved: None,
        }
    }

    /// Returns the sources of the datagrams that wait at a gateway.
    fn sources(gateway: &UdpSocket) -> Vec<IpAddr> {
        gateway.set_nonblocking(true).expect("the mode");
        let next = || gateway.recv_from(&mut [0; 2000]).ok();
        let from = std::iter::from_fn(next).map(|(_, from)| from.ip());
        from.collect()
    }

    /// Drives a client until `is_over`. Returns the time since `begun`.
    async fn drive(
        driver: &mut Driver,
        begun: Instant,
        mut is_over: impl FnMut() -> bool,
    ) -> Duration {
        while !is_over() {
            let spent = begun.elapsed();
            assert!(spent < Duration::from_secs(20), "it does not happen");
            let all = driver.send().await;
            let wake_at = driver.shared.association.borrow().poll_timeout();
            let soon = Instant::now() + Duration::from_millis(50);
            let wake_at = wake_at.map_or(soon, |at| at.min(soon));
            driver.wait(all, Some(wake_at)).await;
        }
        begun.elapsed()
    }

    #[tokio::test]
    async fn unanswered_flight_leaves_from_the_present_address() {
        for only_probes in [false, true] {
            let (gateway, address) = gateway();
            let mut association = connected(address);
            if only_probes {
                association.tunnel().probe();
            } else {
                ask(&mut association);
            }
            let mut driver = driver(association, earlier(address), Side::Peer, 1);
            let has_moved = || sources(&gateway).contains(&Ipv4Addr::LOCALHOST.into());
            let moved_after = drive(&mut driver, Instant::now(), has_moved).await;
            // An answer might come before, and with the next look the client would be late.
            let times = LOOK..LOOK * 2;
            assert!(
                times.contains(&moved_after),
                "{only_probes}: {moved_after:?}"
            );
        }
    }

    /// The tunnel itself has no timer for probes, and doubles that for data.
    #[tokio::test]
    async fn unanswered_client_probes_once_a_second() {
        let (gateway, address) = gateway();
        let mut association = connected(address);
        association.tunnel().probe();
        let socket = Socket::connect(address).expect("a socket");
        let mut driver = driver(association, socket, Side::Peer, 1);
        let mut count = 0;
        let has_probed = || {
            count += sources(&gateway).len();
            count >= 5
        };
        let spent = drive(&mut driver, Instant::now(), has_probed).await;
        assert_eq!(count, 5);
        assert!((LOOK * 4..LOOK * 6).contains(&spent), "{spent:?}");
    }

    /// The first answer over a long path takes longer than a second.
    #[tokio::test]
    async fn first_look_waits_for_a_long_round_trip() {
        let (_gateway, address) = gateway();
        let mut association = connected(address);
        association.tunnel().note_handshake(LOOK * 3 / 2);
        ask(&mut association);
        let socket = Socket::connect(address).expect("a socket");
        let mut driver = driver(association, socket, Side::Peer, 1);
        driver.send().await;
        let since = driver.shared.association.borrow().unanswered_since();
        let since = since.expect("a datagram has left");
        assert_eq!(driver.next_look(), Some(since + LOOK * 3));
    }

    /// A machine with several paths may choose another address each time.
    #[tokio::test]
    async fn unanswered_client_moves_again_after_a_pause_only() {
        let (gateway, address) = gateway();
        let mut association = connected(address);
        association.tunnel().probe();
        let mut driver = driver(association, earlier(address), Side::Peer, 1);
        let came = |from: [u8; 4]| sources(&gateway).contains(&IpAddr::from(from));
        drive(&mut driver, Instant::now(), || came([127, 0, 0, 1])).await;
        driver.socket = earlier(address);
        let begun = Instant::now();
        let mut has_moved = false;
        let is_over = || {
            has_moved |= came([127, 0, 0, 1]);
            begun.elapsed() > LOOK * 5 / 2
        };
        drive(&mut driver, begun, is_over).await;
        assert!(!has_moved, "it moved again");
        let again = driver.followed_at.expect("a move") + FOLLOW_AGAIN;
        assert!(!driver.may_follow(again - Duration::from_millis(1)));
        assert!(driver.may_follow(again));
    }

    #[tokio::test]
    async fn socket_with_the_present_address_stays() {
        let (_gateway, address) = gateway();
        let mut socket = Socket::connect(address).expect("a socket");
        assert!(!socket.follow_route());
    }
}
