//! A UDP socket whose system calls carry many datagrams each, with their marks of congestion.
//!
//! The kernel cuts outgoing bytes into datagrams and joins arriving ones of equal size (generic
//! segmentation and receive offload). quinn-udp has the system calls and knows their support.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::batch::Batch;
use crate::ends::Ends;

/// The size of receive buffers in bytes, where the kernel permits it: several windows of a fast
/// path arrive at once.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The messages that one system call reads at most. Each may hold several datagrams.
const MESSAGES: usize = 8;
/// The bytes of a message at most.
const MESSAGE: usize = 1 << 16;
/// The bytes that one system call should read. More of them would leave the processor's cache
/// before their streams were read.
const READ: usize = 2 * MESSAGE;

/// Datagrams of equal size that have arrived together. The last one may be smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    pub(crate) from: Ends,
    /// True if a router has marked them instead of dropping one (RFC 3168).
    pub(crate) marked: bool,
    pub(crate) bytes: &'a [u8],
    /// The size of each datagram.
    pub(crate) stride: usize,
}

impl<'a> Arrived<'a> {
    /// Returns one datagram without a mark.
    #[cfg(test)]
    pub(crate) fn one(from: SocketAddr, bytes: &'a [u8]) -> Self {
        Self {
            from: from.into(),
            marked: false,
            bytes,
            stride: bytes.len(),
        }
    }

    /// Returns the datagrams.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks(self.stride.max(1))
    }
}

/// The memory for one system call that reads. The ports of a thread share it.
struct Room {
    bytes: Vec<u8>,
    metas: [RecvMeta; MESSAGES],
}

thread_local! {
    static ROOM: Cell<Option<Box<Room>>> = const { Cell::new(None) };
}

/// A socket of one thread.
#[derive(Debug)]
pub(crate) struct Port {
    socket: UdpSocket,
    state: UdpSocketState,
    /// The datagrams that one system call may send.
    segments: Cell<usize>,
    /// The messages that the next system call reads at most.
    messages: Cell<usize>,
}

/// Returns the messages to read after a system call that has read this.
fn next_messages(count: usize, bytes: usize) -> usize {
    let each = bytes.checked_div(count).unwrap_or_default();
    let fitting = READ.checked_div(each);
    fitting.map_or(MESSAGES, |fitting| fitting.min(MESSAGES))
}

impl Port {
    /// Takes a socket, and enlarges its receive buffer as far as the kernel permits.
    pub(crate) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        // A smaller buffer only makes bursts more likely to be lost.
        let _ = SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER);
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            segments: Cell::new(state.max_gso_segments()),
            messages: Cell::new(MESSAGES),
            socket: UdpSocket::from_std(socket)?,
            state,
        })
    }

    /// Returns the IP address of the socket.
    ///
    /// # Errors
    /// The error of the system call.
    pub(crate) fn own_address(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip())
    }

    /// Sends the datagrams, and waits while the socket is full. With `only`, all go there.
    ///
    /// # Errors
    /// See [`Batch::send`].
    pub(crate) async fn send(&self, batch: &mut Batch, only: Option<SocketAddr>) -> io::Result<()> {
        loop {
            self.socket.writable().await?;
            match self.try_send(batch, only) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
        }
    }

    /// Sends the datagrams that the socket takes now, and removes all. With `only`, all go there.
    pub(crate) fn send_now(&self, batch: &mut Batch, only: Option<SocketAddr>) {
        while let Err(error) = self.try_send(batch, only) {
            if error.kind() == io::ErrorKind::WouldBlock {
                break;
            }
        }
        batch.clear();
    }

    fn try_send(&self, batch: &mut Batch, only: Option<SocketAddr>) -> io::Result<()> {
        self.socket.try_io(Interest::WRITABLE, || {
            batch.send(&self.segments, |transmit| {
                let transmit = Transmit {
                    destination: only.unwrap_or(transmit.destination),
                    ..transmit.clone()
                };
                self.state.try_send((&self.socket).into(), &transmit)
            })
        })
    }

    /// Waits until datagrams have arrived. The future can be dropped without a loss.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Passes the datagrams of one system call to `take`.
    ///
    /// # Errors
    /// The error of the system call, `WouldBlock` if no datagram has arrived.
    pub(crate) fn receive(&self, mut take: impl FnMut(&Arrived<'_>)) -> io::Result<()> {
        let mut room = ROOM.take().unwrap_or_else(|| {
            Box::new(Room {
                bytes: vec![0; MESSAGES * MESSAGE],
                metas: [RecvMeta::default(); MESSAGES],
            })
        });
        let Room { bytes, metas } = &mut *room;
        let read = self.socket.try_io(Interest::READABLE, || {
            let mut parts = bytes.chunks_mut(MESSAGE);
            let mut messages: [IoSliceMut<'_>; MESSAGES] =
                std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
            let socket = (&self.socket).into();
            let most = self.messages.get();
            self.state.recv(socket, &mut messages[..most], metas)
        });
        if let Ok(count) = read {
            let read = metas.iter().take(count).map(|meta| meta.len).sum();
            self.messages.set(next_messages(count, read));
            for (meta, bytes) in metas.iter().zip(bytes.chunks(MESSAGE)).take(count) {
                take(&Arrived {
                    from: Ends {
                        peer: meta.addr,
                        own: meta.dst_ip,
                    },
                    marked: meta.ecn == Some(EcnCodepoint::Ce),
                    bytes: &bytes[..meta.len],
                    stride: meta.stride,
                });
            }
        }
        ROOM.set(Some(room));
        read.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket as StdSocket};
    use std::time::Duration;

    use super::*;

    /// The time that loopback needs for a datagram at most.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn on_loopback() -> StdSocket {
        let socket = StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket
    }

    fn port(socket: StdSocket) -> (Port, SocketAddr) {
        let address = socket.local_addr().expect("an address");
        (Port::new(socket).expect("a port"), address)
    }

    /// Datagrams of 1,400 bytes, and a shorter one after them.
    fn five(to: SocketAddr, permits_marks: bool) -> (Batch, Vec<Vec<u8>>) {
        let datagrams: Vec<_> = (0..5_u8)
            .map(|at| vec![at; if at == 4 { 300 } else { 1400 }])
            .collect();
        let mut batch = Batch::default();
        for datagram in &datagrams {
            batch.bytes.extend_from_slice(datagram);
            batch.end(to.into(), permits_marks);
        }
        (batch, datagrams)
    }

    async fn read(port: &Port, count: usize) -> Vec<(Vec<u8>, bool)> {
        let mut read = Vec::new();
        while read.len() < count {
            let ready = tokio::time::timeout(PATIENCE, port.readable()).await;
            ready.expect("in time").expect("a socket");
            let received = port.receive(|arrived| {
                for datagram in arrived.datagrams() {
                    read.push((datagram.to_vec(), arrived.marked));
                }
            });
            if let Err(error) = received {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            }
        }
        read
    }

    /// Reads `count` datagrams. Returns the codepoints of the messages that held them.
    async fn codepoints(port: &Port, count: usize) -> Vec<Option<EcnCodepoint>> {
        let (mut found, mut datagrams) = (Vec::new(), 0);
        while datagrams < count {
            let ready = tokio::time::timeout(PATIENCE, port.readable()).await;
            ready.expect("in time").expect("a socket");
            let (mut bytes, mut metas) = (vec![0; MESSAGE], [RecvMeta::default()]);
            let read = port.socket.try_io(Interest::READABLE, || {
                let mut messages = [IoSliceMut::new(&mut bytes)];
                let socket = (&port.socket).into();
                port.state.recv(socket, &mut messages, &mut metas)
            });
            if read.is_ok() {
                datagrams += metas[0].len.div_ceil(metas[0].stride);
                found.push(metas[0].ecn);
            }
        }
        found
    }

    #[test]
    fn port_reads_few_large_messages_at_once() {
        assert_eq!(next_messages(0, 0), MESSAGES);
        assert_eq!(next_messages(MESSAGES, MESSAGES * 1400), MESSAGES);
        assert_eq!(next_messages(2, 2 * 40_000), 3);
        assert_eq!(next_messages(MESSAGES, MESSAGES * MESSAGE), 2);
    }

    #[tokio::test]
    async fn datagrams_of_one_call_arrive_with_their_sizes() {
        let (receiver, plain) = (port(on_loopback()), on_loopback());
        let (sender, from) = port(on_loopback());
        for permits_marks in [false, true] {
            let to = plain.local_addr().expect("an address");
            let (mut batch, datagrams) = five(to, permits_marks);
            sender.send(&mut batch, None).await.expect("sent");
            assert_eq!(batch.clear(), 5);
            let mut buf = [0; 2000];
            for datagram in &datagrams {
                let (size, source) = plain.recv_from(&mut buf).expect("a datagram");
                assert_eq!((&buf[..size], source), (&datagram[..], from));
            }
            let (mut batch, _) = five(to, permits_marks);
            // A client sends nothing to another address than its gateway's.
            let only = Some(receiver.1);
            sender.send(&mut batch, only).await.expect("sent");
            let read = read(&receiver.0, 5).await;
            let expected: Vec<_> = datagrams.into_iter().map(|bytes| (bytes, false)).collect();
            assert_eq!(read, expected);
            let (mut batch, _) = five(receiver.1, permits_marks);
            sender.send(&mut batch, None).await.expect("sent");
            let codepoint = permits_marks.then_some(EcnCodepoint::Ect0);
            let found = codepoints(&receiver.0, 5).await;
            assert!(found.iter().all(|of| *of == codepoint), "{found:?}");
        }
        plain.set_nonblocking(true).expect("a socket");
        assert!(
            plain.recv(&mut [0; 2000]).is_err(),
            "a datagram went astray"
        );
    }

    #[tokio::test]
    async fn port_tells_marked_datagrams_from_others() {
        const ECT0: u32 = 2;
        const CE: u32 = 3;
        let (receiver, to) = port(on_loopback());
        let sender = on_loopback();
        for tos in [0, CE, ECT0] {
            SockRef::from(&sender).set_tos_v4(tos).expect("a codepoint");
            sender.send_to(&[tos as u8], to).expect("sent");
        }
        let expected = [0, CE, ECT0].map(|tos| (vec![tos as u8], tos == CE));
        assert_eq!(read(&receiver, 3).await, expected);
    }
}
