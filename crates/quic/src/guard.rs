//! The watch over a client's connection, for events of the network that quinn does not act on.
//!
//! ```text
//!  socket ─▶ [`Watch`] ─▶ [`Guard`], a task of the I/O thread
//!                           ├─ no answer: a probe, then a new socket
//!                           ├─ no route: a new socket, once there is a route
//!                           ├─ no answer, and the route has changed: a new socket
//!                           └─ refused three times: the end of the connection
//! ```
//!
//! quinn doubles the time between its probes without a bound. A path that is back after half a
//! minute would be found after a whole one, when the connection is lost. A client that only reads
//! sends no probes at all, so it would notice a new address of a translator with the next
//! keep-alive only. With a new socket the connection moves to another path of the client (RFC 9000
//! section 9), and the gateway sends there at once.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use quinn::{AsyncUdpSocket, Endpoint, VarInt};
use tokio::sync::{Notify, oneshot};

use crate::congestion::Resuming;
use crate::socket::{ClientSocket, own_address};

/// The times without an answer before the first probe, and before each further one.
const WAITS: [Duration; 3] = [
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];
/// The time between two attempts to create a socket while the machine has no route.
const MOVE_AGAIN: Duration = Duration::from_secs(1);
/// The refusals in a row, without a datagram between them, that end a connection.
const MAX_REFUSALS: u32 = 3;
/// The least time between two of these refusals. A gateway that restarts refuses datagrams for a
/// moment, in which quinn may repeat a probe several times.
const REFUSE_AGAIN: Duration = Duration::from_secs(1);
/// The time without an answer after which the guard looks whether the machine would send from
/// another address now, and the time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The most bytes of a datagram that only acknowledges.
const SMALL: usize = 64;
/// The most bytes that answer a probe.
const TRAFFIC: u64 = 1000;

/// The events of the sockets of one connection.
#[derive(Debug)]
pub(crate) struct Watch {
    start: Instant,
    /// The time at which the first datagram was sent since one has arrived, in nanoseconds after
    /// `start`, plus one. It is 0 if none was sent.
    asked: AtomicU64,
    /// The bytes that have arrived since the last probe.
    traffic: AtomicU64,
    has_asked: Notify,
    refusals: AtomicU32,
    /// The time of the last refusal that counts, in milliseconds after `start`, plus one. It is 0
    /// if a datagram has arrived since.
    refused_at: AtomicU64,
    refused: Notify,
    /// True if the machine had no route for a datagram.
    is_lost: AtomicBool,
    failed: Notify,
    /// True if the connection has ended because the peer's system refuses datagrams.
    has_ended: AtomicBool,
    /// The congestion controller of the connection, once that exists.
    controller: OnceLock<Resuming>,
}

impl Watch {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            asked: AtomicU64::new(0),
            traffic: AtomicU64::new(0),
            has_asked: Notify::new(),
            refusals: AtomicU32::new(0),
            refused_at: AtomicU64::new(0),
            refused: Notify::new(),
            is_lost: AtomicBool::new(false),
            failed: Notify::new(),
            has_ended: AtomicBool::new(false),
            controller: OnceLock::new(),
        })
    }

    /// Takes the controller of the connection.
    pub(crate) fn control(&self, connection: &quinn::Connection) {
        if let Some(controller) = Resuming::of(connection) {
            self.controller.get_or_init(|| controller);
        }
    }

    /// Notes that `bytes` are sent. A small datagram asks for nothing, since it may acknowledge
    /// the answer to a probe. After other traffic, the peer may have more to send.
    pub(crate) fn sent(&self, bytes: usize) {
        let asks = || bytes > SMALL || self.traffic.load(Ordering::Relaxed) > TRAFFIC;
        if self.asked.load(Ordering::Relaxed) == 0 && asks() {
            let elapsed = u64::try_from(self.start.elapsed().as_nanos());
            let at = elapsed.unwrap_or(u64::MAX - 1) + 1;
            self.asked.store(at, Ordering::Relaxed);
            self.has_asked.notify_one();
        }
    }

    /// Notes that datagrams with this many bytes have arrived.
    pub(crate) fn heard(&self, bytes: usize) {
        self.traffic.fetch_add(bytes as u64, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        self.refusals.store(0, Ordering::Relaxed);
        self.refused_at.store(0, Ordering::Relaxed);
    }

    /// Counts a refusal at a time after `start`, unless another one came shortly before.
    fn note_refusal(&self, at: Duration) {
        let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX - 1) + 1;
        let last = self.refused_at.load(Ordering::Relaxed);
        let since = Duration::from_millis(at.saturating_sub(last));
        if last == 0 || since >= REFUSE_AGAIN {
            self.refused_at.store(at, Ordering::Relaxed);
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes an error of a socket. A datagram that was not sent for another reason counts as lost.
    pub(crate) fn failed(&self, error: &io::Error) {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused => {
                self.note_refusal(self.start.elapsed());
                self.refused.notify_one();
            }
            Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::AddrNotAvailable
            | Kind::InvalidInput => self.is_lost.store(true, Ordering::Relaxed),
            _ => return,
        }
        self.failed.notify_one();
    }

    /// Resolves once the peer's system has reported that no program listens there.
    pub(crate) async fn refused(&self) {
        while self.refusals.load(Ordering::Relaxed) == 0 {
            self.refused.notified().await;
        }
    }

    /// Returns true if the connection has ended because the peer's system refuses datagrams.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    fn asked(&self) -> Option<Instant> {
        let at = self.asked.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.start + Duration::from_nanos(at))
    }
}

/// The probes of a path without an answer.
#[derive(Debug, Default)]
struct Silence {
    /// The last probe, and the number of them since a datagram has arrived.
    probed: Option<(Instant, usize)>,
}

impl Silence {
    /// Returns the time of the next probe, if a datagram was sent at `asked` and none has arrived
    /// since.
    fn due(&mut self, asked: Option<Instant>) -> Option<Instant> {
        let asked = asked?;
        if self.probed.is_some_and(|(at, _)| at < asked) {
            self.probed = None;
        }
        let (since, count) = self.probed.unwrap_or((asked, 0));
        Some(since + WAITS[count.min(WAITS.len() - 1)])
    }

    /// Notes a probe. Returns true if it should leave from a new socket.
    fn probe(&mut self, now: Instant) -> bool {
        let count = self.probed.map_or(0, |(_, count)| count);
        self.probed = Some((now, count + 1));
        count > 0
    }
}

/// The task that watches one connection.
pub(crate) struct Guard {
    pub(crate) watch: Arc<Watch>,
    pub(crate) endpoint: Endpoint,
    pub(crate) socket: Arc<ClientSocket>,
    pub(crate) remote: SocketAddr,
    /// True if silence may move the connection to a new socket.
    pub(crate) may_move: bool,
    /// Resolves at the end of the handshake. A client may not move before.
    pub(crate) confirmed: oneshot::Receiver<()>,
}

impl Guard {
    /// Watches until the connection has ended.
    pub(crate) async fn run(mut self) {
        let watch = Arc::clone(&self.watch);
        tokio::select! {
            biased;
            () = self.endpoint.wait_idle() => return,
            () = self.socket.note_errors() => {}
            _ = &mut self.confirmed => {}
        }
        let (mut silence, mut move_at, mut moved) = (Silence::default(), None, None);
        let mut looked = None;
        loop {
            if watch.refusals.load(Ordering::Relaxed) >= MAX_REFUSALS {
                watch.has_ended.store(true, Ordering::Relaxed);
                self.endpoint.close(VarInt::from_u32(0), b"");
                return;
            }
            if watch.is_lost.swap(false, Ordering::Relaxed) {
                let earliest = moved.map(|at: Instant| at + MOVE_AGAIN);
                move_at = move_at.or(earliest).or_else(|| Some(Instant::now()));
            }
            let asked = silence.due(watch.asked());
            let look = watch
                .asked()
                .map(|at| looked.map_or(at, |last: Instant| last.max(at)) + LOOK);
            let due = [asked, look, move_at].into_iter().flatten().min();
            tokio::select! {
                biased;
                () = self.endpoint.wait_idle() => return,
                () = self.socket.note_errors() => {}
                () = watch.failed.notified() => continue,
                () = watch.has_asked.notified(), if asked.is_none() => continue,
                () = sleep_until(due) => {}
            }
            let now = Instant::now();
            if look.is_some_and(|at| at <= now) {
                looked = Some(now);
                // An answer may have come since, and another datagram may have left.
                let is_unanswered = watch.asked().is_some_and(|at| at + LOOK <= now);
                if is_unanswered && self.may_move && self.has_moved() {
                    move_at = move_at.or(Some(now));
                }
            }
            let is_silent = silence.due(watch.asked()).is_some_and(|at| at <= now);
            let moves = move_at.is_some_and(|at| at <= now);
            if is_silent || moves {
                watch.traffic.store(0, Ordering::Relaxed);
            }
            let stays = is_silent && !(silence.probe(now) && self.may_move);
            if stays && !moves {
                // A change of the socket, even to the same one, sends a probe.
                self.rebind(Arc::clone(&self.socket));
            } else if is_silent || moves {
                moved = Some(now);
                move_at = match ClientSocket::connect(self.remote, &watch) {
                    Ok(new) => {
                        self.rebind(new);
                        None
                    }
                    Err(_) => Some(now + MOVE_AGAIN),
                };
            }
        }
    }

    /// Returns true if a new socket would have another address than the present one. A socket keeps
    /// its address while the machine has that, even after another network has become the default.
    /// Its datagrams leave by that network then, which drops foreign addresses.
    fn has_moved(&self) -> bool {
        let own = AsyncUdpSocket::local_addr(&*self.socket).map(|address| address.ip());
        match (own, own_address(self.remote)) {
            (Ok(own), Ok(present)) => own != present,
            _ => false,
        }
    }

    /// Gives the connection a socket, which sends a probe. Bytes that wait for acknowledgements may
    /// fill the window of congestion control meanwhile.
    fn rebind(&mut self, socket: Arc<ClientSocket>) {
        if let Some(controller) = self.watch.controller.get() {
            controller.permit_probe();
        }
        if let Err(error) = self.endpoint.rebind_abstract(Arc::clone(&socket) as _) {
            // The old socket stays.
            tracing::debug!(%error, "cannot use another socket");
            return;
        }
        self.socket = socket;
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn probes_follow_each_other_at_bounded_times() {
        let begun = Instant::now();
        let (mut silence, mut probes) = (Silence::default(), Vec::new());
        assert_eq!(silence.due(None), None, "nothing was sent");
        while let Some(at) = silence
            .due(Some(begun))
            .filter(|at| *at < begun + 50 * SECOND)
        {
            probes.push(((at - begun).as_secs(), silence.probe(at)));
        }
        let (first, new) = (probes[0], &probes[1..]);
        assert_eq!(
            first,
            (2, false),
            "the first probe leaves from the same socket"
        );
        assert!(new.iter().all(|(_, is_new)| *is_new));
        let times: Vec<_> = new.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [6, 14, 22, 30, 38, 46]);
        // An answer has arrived, and another datagram was sent.
        let asked = begun + 60 * SECOND;
        assert_eq!(silence.due(Some(asked)), Some(asked + 2 * SECOND));
        assert!(!silence.probe(asked + 2 * SECOND));
    }

    #[test]
    fn watch_counts_refusals_in_a_row() {
        let watch = Watch::new();
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        watch.sent(1200);
        watch.failed(&refused);
        // Those of one moment count once.
        for (millis, count) in [(10, 1), (500, 1), (1900, 2), (2000, 2), (3500, 3)] {
            watch.note_refusal(Duration::from_millis(millis));
            assert_eq!(watch.refusals.load(Ordering::Relaxed), count, "{millis} ms");
        }
        assert!(watch.asked().is_some());
        watch.heard(100);
        assert_eq!(watch.refusals.load(Ordering::Relaxed), 0);
        assert!(watch.asked().is_none() && !watch.is_lost.load(Ordering::Relaxed));
        watch.failed(&io::ErrorKind::NetworkUnreachable.into());
        assert!(watch.is_lost.load(Ordering::Relaxed));
    }

    /// Otherwise each probe would cause another one, as long as nobody uses the connection.
    #[test]
    fn answer_to_a_probe_is_the_last_of_a_pause() {
        let watch = Watch::new();
        watch.heard(200);
        watch.sent(40);
        assert_eq!(watch.asked(), None);
        watch.heard(1200);
        watch.sent(40);
        assert!(watch.asked().is_some(), "the end of a download");
        watch.traffic.store(0, Ordering::Relaxed);
        watch.heard(200);
        watch.sent(100);
        assert!(watch.asked().is_some(), "a request");
    }
}
