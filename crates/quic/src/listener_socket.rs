//! The socket of a listening endpoint. After its address was handed over to the next process, each
//! connection has another socket, which receives its datagrams.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

/// The socket that the listeners share, and those of the connections that go on.
#[derive(Debug)]
pub(crate) struct ListenerSocket {
    shared: Arc<dyn AsyncUdpSocket>,
    separate: Mutex<Separate>,
}

#[derive(Debug, Default)]
struct Separate {
    sockets: Vec<(u64, Arc<dyn AsyncUdpSocket>)>,
    /// The socket that is read first the next time.
    first: usize,
    /// The task of the endpoint.
    reader: Option<Waker>,
}

impl ListenerSocket {
    /// Takes the socket that the listeners share.
    pub(crate) fn new(shared: Arc<dyn AsyncUdpSocket>) -> Self {
        Self {
            shared,
            separate: Mutex::default(),
        }
    }

    fn separate(&self) -> MutexGuard<'_, Separate> {
        self.separate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the socket of connection `number`.
    pub(crate) fn add(&self, number: u64, socket: Arc<dyn AsyncUdpSocket>) {
        let mut separate = self.separate();
        separate.sockets.push((number, socket));
        if let Some(reader) = separate.reader.take() {
            reader.wake();
        }
    }

    /// Closes the socket of connection `number`, if it has one.
    pub(crate) fn remove(&self, number: u64) {
        self.separate().sockets.retain(|(of, _)| *of != number);
    }
}

impl AsyncUdpSocket for ListenerSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.shared).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.shared.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(read) = self.shared.poll_recv(cx, bufs, meta) {
            return Poll::Ready(read);
        }
        let mut separate = self.separate();
        separate.reader = Some(cx.waker().clone());
        let count = separate.sockets.len();
        for step in 0..count {
            let at = (separate.first + step) % count;
            let read = separate.sockets[at].1.poll_recv(cx, bufs, meta);
            // An error concerns one connection, whose timers end it.
            if let Poll::Ready(Ok(read)) = read {
                separate.first = at + 1;
                return Poll::Ready(Ok(read));
            }
        }
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.shared.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.shared.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.shared.max_receive_segments()
    }
}
