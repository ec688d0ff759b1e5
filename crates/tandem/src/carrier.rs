//! The carrier of a session: one byte stream, or many streams to the same peer.
//!
//! ```text
//!   h1 · h2 · spdy ──▶ Carrier::Bytes(Path)               tcp · tls · socks · tor
//!   h3 · streams   ──▶ Carrier::Streams(Rc<dyn Streams>)  quic · dtls: each stream has its own
//!                                                         order, flow control and priority
//! ```
//!
//! A transport dials or accepts carriers. A session says which kind it runs over, and refuses the
//! other with an error.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tandem_http::Priority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::{Error, Kind, Side};
use crate::path::{Facts, Path};

/// A future that need not move between threads.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A carrier that is being dialled, or whose handshake a listener completes.
pub type CarrierFuture<'a> = LocalBoxFuture<'a, Result<Carrier, Error>>;

/// Carries one session.
#[derive(Debug)]
pub enum Carrier {
    /// A single byte stream in each direction.
    Bytes(Path),
    /// Many streams that do not wait for each other.
    Streams(Rc<dyn Streams>),
}

impl Carrier {
    /// The facts about the connection to the peer.
    pub fn facts(&self) -> &Rc<dyn Facts> {
        match self {
            Self::Bytes(path) => path.facts(),
            Self::Streams(streams) => streams.facts(),
        }
    }

    /// Returns the byte stream. Fails with [`Kind::Internal`] if the carrier has many streams: the
    /// configuration joined a session and a transport that do not fit.
    pub fn into_bytes(self) -> Result<Path, Error> {
        match self {
            Self::Bytes(path) => Ok(path),
            Self::Streams(_) => Err(Error::new(
                Kind::Internal,
                Side::Local,
                "this session runs over one byte stream, and the transport has many",
            )),
        }
    }

    /// Returns the streams. Fails like [`Carrier::into_bytes`] if there is only one.
    pub fn into_streams(self) -> Result<Rc<dyn Streams>, Error> {
        match self {
            Self::Streams(streams) => Ok(streams),
            Self::Bytes(_) => Err(Error::new(
                Kind::Internal,
                Side::Local,
                "this session runs over many streams, and the transport has one",
            )),
        }
    }
}

impl From<Path> for Carrier {
    fn from(path: Path) -> Self {
        Self::Bytes(path)
    }
}

/// An application's error code, as QUIC carries it in RESET_STREAM, STOP_SENDING and
/// CONNECTION_CLOSE (RFC 9000 section 20.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u64);

/// The directions of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Both ends send.
    Bidirectional,
    /// Only the end that opens the stream sends.
    Unidirectional,
}

/// Many streams to one peer. Each has a separate beginning, flow control and failure.
///
/// Several tasks may call these methods at once, and all waiting tasks are woken.
pub trait Streams {
    /// Returns the facts about the connection to the peer.
    fn facts(&self) -> &Rc<dyn Facts>;

    /// Opens a stream. Pending while the peer allows no more in that direction.
    fn poll_open(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
    ) -> Poll<Result<CarrierStream, Error>>;

    /// Returns the next stream that the peer opened, or `None` once the connection has ended
    /// regularly.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Option<CarrierStream>, Error>>;

    /// Returns true once the connection has ended, for any reason.
    fn has_ended(&self) -> bool;

    /// Returns true once the handshake is over. Before that, an attacker can repeat the bytes that
    /// a client sends (RFC 8446 section 8), so that only safe requests may be sent.
    fn is_confirmed(&self) -> bool {
        true
    }

    /// Resolves once the handshake is over, or has failed. Only one task may wait.
    fn poll_confirmed(&self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    /// Waits until few of the bytes that streams have taken are unsent.
    ///
    /// A session asks before it chooses the stream that sends next, so that it chooses late: bytes
    /// that a stream has taken may leave before those of a more urgent stream. The session repeats
    /// the call after the wake, even if it has nothing to send. Only one task may wait.
    ///
    /// A carrier without this method always has room. One that wraps another carrier must pass the
    /// call on, or the session writes early.
    fn poll_room(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Notes the number of streams with data that is not read. Returns true if the data fills the
    /// memory of the connection for it, so that no other stream can go on.
    ///
    /// A carrier with one window for all streams extends it by theirs, up to a bound. A session
    /// calls this about once a second while there are such streams, once after the last one, and
    /// again after it has given one up.
    fn hold_unread(&self, _streams: usize) -> bool {
        false
    }

    /// Sends a probe beside all windows, which the other end's carrier answers at once. Returns
    /// false if the carrier has no such probe. A session without pings then has none either, and
    /// cannot tell that its path delivers nothing.
    fn probe(&self) -> bool;

    /// Closes the connection with all its streams. `reason` is a text for people.
    fn close(&self, code: Code, reason: &str);

    /// Returns the size in bytes of the largest datagram, or `None` if the carrier has no
    /// datagrams.
    fn max_datagram(&self) -> Option<usize> {
        None
    }

    /// Waits until the carrier takes another datagram.
    fn poll_datagram_room(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Sends a datagram, which may get lost. Returns false if it is too large or the carrier has no
    /// datagrams.
    fn send_datagram(&self, _datagram: Bytes) -> bool {
        false
    }

    /// Returns the next datagram, or `None` if the carrier has no datagrams or has ended.
    fn poll_datagram(&self, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
        Poll::Ready(None)
    }
}

/// Opens a bidirectional stream, and returns it as a byte stream. Waits while the peer allows no
/// more streams.
pub async fn open_path(streams: &dyn Streams) -> Result<Path, Error> {
    let stream = std::future::poll_fn(|cx| streams.poll_open(Direction::Bidirectional, cx)).await?;
    let detail = "the stream lacks a direction";
    let missing = || Error::new(Kind::Internal, Side::Local, detail);
    stream.into_path(streams.facts()).ok_or_else(missing)
}

impl fmt::Debug for dyn Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Streams")
    }
}

/// A stream of a carrier. It lacks one half if only one end sends.
pub struct CarrierStream {
    /// The number of the stream, unique within the carrier.
    pub id: u64,
    /// The half that this end sends on.
    pub send: Option<Box<dyn SendStream>>,
    /// The half that this end receives on.
    pub receive: Option<Box<dyn ReceiveStream>>,
}

/// The sending half of a stream. Shutting it down ends it regularly. Dropping it before that resets
/// it, so that a truncated message never looks complete. A write after the peer has stopped the
/// stream fails with a [`StreamStopped`] inside the I/O error.
pub trait SendStream: AsyncWrite + Unpin {
    /// Sets the order of sending among the streams of the carrier.
    fn set_priority(&mut self, priority: Priority);

    /// Ends the stream at once with a code; unsent data is dropped.
    fn reset(&mut self, code: Code);

    /// Returns true if written bytes wait for an acknowledgement by the other end. Returns false if
    /// the carrier does not report this.
    fn has_unacknowledged(&self) -> bool {
        false
    }

    /// Resolves when the peer stops the stream, or with `None` once it has received all of it.
    fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Option<Code>>;
}

/// The receiving half of a stream. Dropping it before its end stops the peer's sending. A read of a
/// stream that the peer has reset fails with a [`StreamReset`] inside the I/O error.
pub trait ReceiveStream: AsyncRead + Unpin {
    /// Asks the peer to stop sending on the stream.
    fn stop(&mut self, code: Code);
}

/// The error of a stream that the peer has reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has reset the stream with code {:#x}", .0.0)]
pub struct StreamReset(pub Code);

/// The error of a stream that the peer has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has stopped the stream with code {:#x}", .0.0)]
pub struct StreamStopped(pub Code);

impl From<StreamReset> for io::Error {
    fn from(reset: StreamReset) -> Self {
        Self::new(io::ErrorKind::ConnectionReset, reset)
    }
}

impl From<StreamStopped> for io::Error {
    fn from(stopped: StreamStopped) -> Self {
        Self::new(io::ErrorKind::BrokenPipe, stopped)
    }
}

impl CarrierStream {
    /// Turns a bidirectional stream into a path, or returns `None` if a half is missing. The facts
    /// are those of the carrier.
    pub fn into_path(self, carrier: &Rc<dyn Facts>) -> Option<Path> {
        let halves = JoinedHalves {
            receive: self.receive?,
            send: self.send?,
        };
        Some(Path::new(halves, Rc::new(PathFacts(Rc::clone(carrier)))))
    }
}

/// The facts of one stream as a path. A stream that is dropped before its end resets itself, and
/// must not reset the connection with it.
struct PathFacts(Rc<dyn Facts>);

impl Facts for PathFacts {
    fn below(&self) -> Option<&dyn Facts> {
        Some(&*self.0)
    }

    fn reset_on_close(&self) {}
}

struct JoinedHalves {
    receive: Box<dyn ReceiveStream>,
    send: Box<dyn SendStream>,
}

impl AsyncRead for JoinedHalves {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().receive).poll_read(cx, buf)
    }
}

impl AsyncWrite for JoinedHalves {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().send).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().send).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.send.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().send).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().send).poll_shutdown(cx)
    }
}
