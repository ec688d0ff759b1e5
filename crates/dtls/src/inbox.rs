//! The datagrams that wait for one association, between the thread that has read them and that of
//! the association.
//!
//! An id is no secret: systems on the path see it. Datagrams with the id from another address than
//! the client's therefore wait in a small queue of their own. They cannot displace those of the
//! client, and one that has a new address still passes (RFC 9000, section 9.3).

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tandem::transport::handover::Flow;
use tokio::sync::Notify;

use crate::ends::Ends;
use crate::port::Arrived;

/// The datagrams of the client that wait at most.
pub(crate) const OWN: usize = 1024;
/// The datagrams that wait at most for a client with a cookie, until its handshake is over.
pub(crate) const UNCONNECTED: usize = 32;
/// The datagrams from other addresses that wait at most.
pub(crate) const STRANGE: usize = 32;
/// The bytes of an empty queue's memory that are kept in any case.
const KEPT: usize = 4096;

/// Datagrams that share one memory.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    bytes: Vec<u8>,
    runs: Vec<Run>,
    datagrams: usize,
}

/// Datagrams that have arrived together.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: Ends,
    marked: bool,
    stride: usize,
    len: usize,
}

impl Queue {
    /// Appends datagrams until there are `most`. Returns the number of those that found no room.
    fn push(&mut self, arrived: &Arrived<'_>, most: usize) -> usize {
        let count = arrived.datagrams().count();
        let taken = count.min(most - self.datagrams.min(most));
        if taken > 0 {
            let len = arrived.bytes.len().min(taken * arrived.stride);
            self.bytes.extend_from_slice(&arrived.bytes[..len]);
            self.datagrams += taken;
            self.runs.push(Run {
                from: arrived.from,
                marked: arrived.marked,
                stride: arrived.stride,
                len,
            });
        }
        count - taken
    }

    /// Passes the datagrams to `take` and removes them. Memory that few of them have needed is
    /// freed, so that an idle association has little.
    fn drain(&mut self, mut take: impl FnMut(&Arrived<'_>)) {
        let mut at = 0;
        for run in &self.runs {
            take(&Arrived {
                from: run.from,
                marked: run.marked,
                bytes: &self.bytes[at..at + run.len],
                stride: run.stride,
            });
            at += run.len;
        }
        let (bytes, runs) = (self.bytes.len(), self.runs.len());
        self.bytes.clear();
        self.runs.clear();
        self.datagrams = 0;
        if self.bytes.capacity() > KEPT.max(8 * bytes) {
            self.bytes.shrink_to(2 * bytes);
            self.runs.shrink_to(2 * runs);
        }
    }
}

/// The queues of an association.
#[derive(Debug)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug)]
struct Waiting {
    /// The address of the client.
    client: SocketAddr,
    /// The address of this machine at which the last datagrams of the client have arrived.
    reached: Option<IpAddr>,
    /// A socket for this association only, which it has not taken yet.
    separate: Option<UdpSocket>,
    /// The datagrams of `own` at most.
    most: usize,
    own: Queue,
    strange: Queue,
}

impl Inbox {
    pub(crate) fn new(client: SocketAddr) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                client,
                reached: None,
                separate: None,
                most: UNCONNECTED,
                own: Queue::default(),
                strange: Queue::default(),
            }),
            arrived: Notify::new(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // A panic while the lock is held leaves at worst a part of a queue.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends datagrams. Returns the number of those that found no room.
    pub(crate) fn push(&self, arrived: &Arrived<'_>) -> usize {
        let mut waiting = self.waiting();
        let dropped = if arrived.from.peer == waiting.client {
            let most = waiting.most;
            waiting.reached = arrived.from.own.or(waiting.reached);
            waiting.own.push(arrived, most)
        } else {
            waiting.strange.push(arrived, STRANGE)
        };
        drop(waiting);
        self.arrived.notify_one();
        dropped
    }

    /// Returns the address of the client.
    pub(crate) fn client(&self) -> SocketAddr {
        self.waiting().client
    }

    /// Notes that the client has the address `client` now.
    pub(crate) fn follow(&self, client: SocketAddr) {
        self.waiting().client = client;
    }

    /// Notes that the handshake is over.
    pub(crate) fn widen(&self) {
        self.waiting().most = OWN;
    }

    /// Returns the ends between which the client's datagrams travel.
    pub(crate) fn flow(&self) -> Flow {
        let waiting = self.waiting();
        Flow {
            own: waiting.reached,
            peer: waiting.client,
        }
    }

    /// Gives the association a socket that receives its datagrams from now on.
    pub(crate) fn separate(&self, socket: UdpSocket) {
        self.waiting().separate = Some(socket);
        self.arrived.notify_one();
    }

    /// Takes the socket that was given, if there is one.
    pub(crate) fn take_separate(&self) -> Option<UdpSocket> {
        self.waiting().separate.take()
    }

    /// Waits until datagrams have arrived. The future can be dropped without a loss.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

/// The end of an inbox at its association.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) inbox: std::sync::Arc<Inbox>,
    /// Empty queues, whose memory the next datagrams get.
    spare: [Queue; 2],
}

impl Reader {
    pub(crate) fn new(inbox: std::sync::Arc<Inbox>) -> Self {
        Self {
            inbox,
            spare: Default::default(),
        }
    }

    /// Passes the datagrams that wait to `take`, first those of the client.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(&Arrived<'_>)) {
        let mut waiting = self.inbox.waiting();
        let [own, strange] = &mut self.spare;
        std::mem::swap(own, &mut waiting.own);
        std::mem::swap(strange, &mut waiting.strange);
        drop(waiting);
        own.drain(&mut take);
        strange.drain(&mut take);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn from(port: u16, bytes: &[u8], stride: usize) -> Arrived<'_> {
        Arrived {
            from: address(port).into(),
            marked: port == 2,
            bytes,
            stride,
        }
    }

    fn read(reader: &mut Reader) -> Vec<(u16, bool, Vec<u8>)> {
        let mut read = Vec::new();
        reader.receive(|arrived| {
            for datagram in arrived.datagrams() {
                read.push((arrived.from.peer.port(), arrived.marked, datagram.to_vec()));
            }
        });
        read
    }

    #[test]
    fn datagrams_of_other_addresses_wait_apart() {
        let inbox = Arc::new(Inbox::new(address(1)));
        let mut reader = Reader::new(Arc::clone(&inbox));
        for _ in 0..2 {
            let dropped: usize = (0..1000).map(|_| inbox.push(&from(9, b"forged", 6))).sum();
            assert_eq!(dropped, 1000 - STRANGE);
            assert_eq!(inbox.push(&from(1, b"abcde", 2)), 0);
            let read = read(&mut reader);
            let own: Vec<_> = read[..3].iter().map(|(_, _, bytes)| &bytes[..]).collect();
            assert_eq!(own, [&b"ab"[..], b"cd", b"e"]);
            assert_eq!(read.len(), 3 + STRANGE);
        }
        inbox.follow(address(9));
        inbox.widen();
        assert_eq!(inbox.push(&from(9, &[7; 100], 1)), 0);
    }

    #[test]
    fn queue_cuts_runs_at_its_bound_and_keeps_marks() {
        let inbox = Arc::new(Inbox::new(address(2)));
        inbox.widen();
        let mut reader = Reader::new(Arc::clone(&inbox));
        assert_eq!(inbox.push(&from(2, &[1; 10 * (OWN - 1)], 10)), 0);
        assert_eq!(inbox.push(&from(2, &[2; 25], 10)), 2);
        assert_eq!(inbox.push(&from(2, &[3; 5], 10)), 1);
        let read = read(&mut reader);
        assert_eq!((read.len(), &read[OWN - 1].2[..]), (OWN, &[2; 10][..]));
        assert!(read.iter().all(|(_, marked, _)| *marked));
    }

    #[test]
    fn idle_queue_frees_its_memory() {
        let inbox = Arc::new(Inbox::new(address(1)));
        inbox.widen();
        let mut reader = Reader::new(Arc::clone(&inbox));
        for _ in 0..2 {
            inbox.push(&from(1, &[1; 1_000_000], 1000));
            read(&mut reader);
        }
        for _ in 0..4 {
            inbox.push(&from(1, b"probe", 5));
            read(&mut reader);
        }
        let waiting = inbox.waiting();
        let queues = [&waiting.own, &reader.spare[0]];
        for queue in queues {
            assert!(queue.bytes.capacity() <= KEPT, "{}", queue.bytes.capacity());
        }
    }
}
