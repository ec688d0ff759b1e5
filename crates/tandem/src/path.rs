//! A connected byte stream to the other end, and the facts that are known about it.
//!
//! Transports create paths, and sessions run on them. A layer such as TLS wraps the stream of
//! another path and adds facts to those of the layer below ([`Facts::below`]). The dynamic call for
//! each read or write costs little beside the system call behind it.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tandem_resume::{SavedSpeed, Trial};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// A byte stream in both directions.
pub trait Io: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Io for T {}

/// An estimate of a path's speed, as the connection below measures it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// The shortest round trip, in seconds.
    pub round_trip: f64,
    /// The delivery rate, in bytes per second.
    pub rate: f64,
}

/// The state of the kernel's BBR (version 1) on a connection over TCP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BbrState {
    /// The phase of the control.
    pub phase: BbrPhase,
    /// The bandwidth estimate in bytes per second.
    pub bandwidth: u64,
    /// The smoothed round trip.
    pub round_trip: Duration,
    /// The shortest round trip of the last minutes.
    pub least_round_trip: Duration,
    /// True if no data are unsent, or data were missing for the best or last rate sample
    /// (application-limited).
    pub starved: bool,
    /// True if no packet is missing.
    pub intact: bool,
    /// True if the rate is limited, by [`KernelBbr::restart`] or another program.
    pub limited: bool,
    /// The segments with data that were sent so far.
    pub sent: u32,
    /// The segments that were sent again so far.
    pub sent_again: u32,
}

/// A phase of BBR.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BbrPhase {
    /// `STARTUP` or `DRAIN`: the bandwidth is not known yet.
    Starting,
    /// `PROBE_BW`: the connection sends at the known bandwidth.
    Steady,
    /// `PROBE_RTT`: only four packets are in flight.
    ProbingRoundTrip,
}

/// Controls the kernel's BBR (version 1) of a connection over TCP.
pub trait KernelBbr {
    /// Returns the state of the control, or `None` if it is another control or version.
    fn state(&self) -> Option<BbrState>;

    /// Restarts the control. It keeps its congestion window, takes the shortest round trip of the
    /// last minutes, and sends at most `rate` bytes per second. Returns false if the system refuses
    /// this.
    fn restart(&self, rate: u64) -> bool;

    /// Removes the limit of [`KernelBbr::restart`].
    fn lift(&self);
}

/// The facts known about a path.
///
/// Each method asks the layer below by default, so a layer overrides only those that it can answer.
pub trait Facts {
    /// Returns the facts of the layer below, or `None` at the lowest layer.
    fn below(&self) -> Option<&dyn Facts>;

    /// Returns the address of the other end of the connection.
    fn peer_address(&self) -> Option<SocketAddr> {
        self.below()?.peer_address()
    }

    /// Returns the present estimate of round trip and rate, or `None` if the system gives none.
    fn measure(&self) -> Option<Measure> {
        self.below()?.measure()
    }

    /// Returns the smoothed round trip of a connection over datagrams (RFC 6298 section 2).
    fn smoothed_round_trip(&self) -> Option<Duration> {
        self.below()?.smoothed_round_trip()
    }

    /// Returns the speed that this connection has shown, for a later connection on the same path.
    /// Returns `None` if the connection could not begin with such a speed, or tries one.
    fn speed(&self) -> Option<SavedSpeed> {
        self.below()?.speed()
    }

    /// Offers the speed that an earlier connection has shown on this path. The connection enters it
    /// carefully (RFC 9959), or returns `None`.
    fn resume(&self, saved: SavedSpeed) -> Option<Trial> {
        self.below()?.resume(saved)
    }

    /// Returns true if the congestion control is BBR, which keeps its estimate while the connection
    /// is idle.
    fn is_over_bbr(&self) -> bool {
        self.below().is_some_and(Facts::is_over_bbr)
    }

    /// Returns the kernel's BBR of a connection over TCP, or `None` if the system has no access.
    fn kernel_bbr(&self) -> Option<&dyn KernelBbr> {
        self.below()?.kernel_bbr()
    }

    /// Returns the number of unsent bytes that the connection holds before it reports itself full.
    /// Returns `None` if that cannot be limited.
    fn unsent_limit(&self) -> Option<u32> {
        self.below()?.unsent_limit()
    }

    /// Sets [`Facts::unsent_limit`]. A connection that rejects the limit keeps its old one.
    fn limit_unsent(&self, bytes: u32) {
        if let Some(below) = self.below() {
            below.limit_unsent(bytes);
        }
    }

    /// Returns true if the connection ends at a proxy, so that its measures are those of a part of
    /// the path.
    fn is_to_proxy(&self) -> bool {
        self.below().is_some_and(Facts::is_to_proxy)
    }

    /// Waits until less than half of [`Facts::unsent_limit`] is unsent.
    ///
    /// A session asks before it chooses the stream that sends next, so that it chooses late. Only
    /// the task that writes may wait. A connection that cannot tell always has room.
    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.below()
            .map_or(Poll::Ready(()), |below| below.poll_room(cx))
    }

    /// Returns the application protocol that the handshake agreed on (ALPN, RFC 7301).
    fn alpn(&self) -> Option<&[u8]> {
        self.below()?.alpn()
    }

    /// Returns true if the other end proved its identity with a certificate.
    fn has_peer_certificate(&self) -> bool {
        self.below().is_some_and(Facts::has_peer_certificate)
    }

    /// Returns the SHA-256 hash of the certificate with which the other end proved its identity.
    fn peer_certificate(&self) -> Option<[u8; 32]> {
        self.below()?.peer_certificate()
    }

    /// Returns true if written bytes wait for an acknowledgement by the other end's kernel. Returns
    /// false if the system does not report this.
    fn has_unacknowledged(&self) -> bool {
        self.below().is_some_and(Facts::has_unacknowledged)
    }

    /// Returns the number of datagrams that have arrived from the other end. Returns `None` if the
    /// connection does not count them.
    fn datagrams_received(&self) -> Option<u64> {
        self.below()?.datagrams_received()
    }

    /// Returns the bytes that have arrived from the other end. Returns `None` if the connection
    /// does not count them.
    fn bytes_received(&self) -> Option<u64> {
        self.below()?.bytes_received()
    }

    /// Returns the bytes that the kernel of the other end has acknowledged. Returns `None` if the
    /// connection does not count them.
    fn bytes_acknowledged(&self) -> Option<u64> {
        self.below()?.bytes_acknowledged()
    }

    /// Returns the number of acknowledgements that have arrived from the other end. Returns `None`
    /// if the connection does not count them.
    fn acknowledgements(&self) -> Option<u64> {
        self.below()?.acknowledgements()
    }

    /// Notes that the other end was admitted. The connection may then hold more of its unread data.
    fn admitted(&self) {
        if let Some(below) = self.below() {
            below.admitted();
        }
    }

    /// Returns a future that resolves once the other end has reset the connection, even without
    /// reads or writes. Returns `None` if that cannot be watched.
    fn broken(&self) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
        self.below()?.broken()
    }

    /// Makes the connection end with a reset when it is dropped, so that a truncated message does
    /// not look complete.
    fn reset_on_close(&self) {
        if let Some(below) = self.below() {
            below.reset_on_close();
        }
    }
}

/// A byte stream to the other end with its facts.
pub struct Path {
    io: Box<dyn Io>,
    facts: Rc<dyn Facts>,
}

impl Path {
    /// Creates a path from a stream and the facts about it.
    pub fn new(io: impl Io + 'static, facts: Rc<dyn Facts>) -> Self {
        Self {
            io: Box::new(io),
            facts,
        }
    }

    /// Creates both ends of a path within the process; each direction holds `capacity` bytes.
    pub fn pair(capacity: usize) -> (Self, Self) {
        let (near, far) = tokio::io::duplex(capacity);
        let (here, there) = (Rc::new(InMemory::default()), Rc::new(InMemory::default()));
        let end = |io, own: &Rc<InMemory>, peer: &Rc<InMemory>| {
            let peer = Rc::clone(peer);
            Self::new(InMemoryIo { io, peer }, Rc::clone(own) as _)
        };
        (end(near, &here, &there), end(far, &there, &here))
    }

    /// Returns the facts about the path. They are valid as long as the path exists. Code that keeps
    /// them longer holds a [`std::rc::Weak`] reference.
    pub fn facts(&self) -> &Rc<dyn Facts> {
        &self.facts
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Path")
    }
}

impl AsyncRead for Path {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Path {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

/// The facts of one end of [`Path::pair`].
#[derive(Default)]
struct InMemory {
    reset: Cell<bool>,
}

impl Facts for InMemory {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn reset_on_close(&self) {
        self.reset.set(true);
    }
}

/// An end of [`Path::pair`].
struct InMemoryIo {
    io: DuplexStream,
    /// The facts of the other end, which hold how it closes.
    peer: Rc<InMemory>,
}

impl AsyncRead for InMemoryIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let at_end = buf.filled().len() == filled && buf.remaining() > 0;
        Poll::Ready(if at_end && self.peer.reset.get() {
            Err(io::ErrorKind::ConnectionReset.into())
        } else {
            Ok(())
        })
    }
}

impl AsyncWrite for InMemoryIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    struct Layer(Rc<dyn Facts>);

    impl Facts for Layer {
        fn below(&self) -> Option<&dyn Facts> {
            Some(&*self.0)
        }

        fn alpn(&self) -> Option<&[u8]> {
            Some(b"h2")
        }
    }

    #[tokio::test]
    async fn in_memory_path_ends_regularly_or_by_reset() {
        for reset in [false, true] {
            let (mut near, mut far) = Path::pair(100);
            far.write_all(b"all").await.expect("there is room");
            // A layer that does not override resets passes the call on.
            let layer = Layer(Rc::clone(far.facts()));
            if reset {
                layer.reset_on_close();
            }
            drop((layer, far));
            let mut bytes = Vec::new();
            let read = near.read_to_end(&mut bytes).await;
            assert_eq!((read.is_err(), &bytes[..]), (reset, &b"all"[..]));
        }
    }

    #[test]
    fn layer_answers_for_itself_and_the_layer_below() {
        let socket: Rc<dyn Facts> = Rc::new(InMemory::default());
        let layer = Layer(Rc::clone(&socket));
        assert_eq!((layer.alpn(), socket.alpn()), (Some(&b"h2"[..]), None));
        assert!(layer.peer_address().is_none() && !layer.has_peer_certificate());
    }
}
