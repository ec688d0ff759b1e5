//! The client's connection as the server session reads it: the bytes read ahead, and the body of
//! the current request. See RFC 9112 sections 6 and 9.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tandem_http::Fields;
use tandem_http::h1::Decoder;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::error::{Error, Kind, Side};
use crate::exchange::{Chunk, Chunks};
use crate::path::Path;

/// The number of bytes of a body read at a time, and the most that a pipelining client may send
/// ahead.
pub(super) const READ_SIZE: usize = 16 << 10;

/// The number of reads of leftover input, each of at most 4 KiB, before a connection is closed
/// regardless.
const LINGER_READS: usize = 64;

/// The time for reading leftover input.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// The time that the client's kernel has to acknowledge the beginning of a truncated response.
const DELIVERY_TIME: Duration = Duration::from_secs(10);

/// The pause between two checks of the socket's send queue. No event reports that it has emptied.
const DELIVERY_PAUSE: Duration = Duration::from_millis(20);

/// A client's connection, shared by the loop that serves it and the body of the current request.
pub(super) struct ClientConnection {
    pub(super) path: Path,
    pub(super) buf: BytesMut,
    /// The body of the current request; `None` once it is complete.
    pub(super) body: Option<Decoder>,
    /// The fields after the body, until they are taken.
    pub(super) trailers: Option<Fields>,
    /// True once the request became a tunnel. Its body is all input from then on.
    pub(super) raw: bool,
    /// True once the client has closed its side.
    pub(super) eof: bool,
}

impl ClientConnection {
    /// Returns a connection over `path`, of which `early` has been read already.
    pub(super) fn new(path: Path, early: BytesMut) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            path,
            buf: early,
            body: None,
            trailers: None,
            raw: false,
            eof: false,
        }))
    }

    /// Reads more input into the buffer. Returns the number of bytes, 0 at the end.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        self.buf.reserve(READ_SIZE);
        let Self { path, buf, .. } = self;
        let mut read = std::pin::pin!(path.read_buf(buf));
        let count =
            ready!(read.as_mut().poll(cx)).map_err(|error| Error::io(&error, Side::Client))?;
        self.eof |= count == 0;
        Poll::Ready(Ok(count))
    }

    /// Resolves once the client has closed its side while a response is pending. An error means
    /// that the client has gone.
    ///
    /// Pipelined requests are kept, up to a bound. Beyond it no input is read, and the end is
    /// noticed later.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while !self.eof {
            if self.buf.len() >= READ_SIZE {
                return Poll::Pending;
            }
            ready!(self.poll_fill(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Returns true if input is left that no exchange will read.
    fn has_leftover(&self) -> bool {
        !self.raw && (self.body.is_some() || !self.buf.is_empty())
    }
}

/// Closes this side of the connection, and reads leftover input for a moment. Closing a socket with
/// unread input resets the connection, and the client could lose the response (RFC 9112 section
/// 9.6).
pub(super) async fn close(connection: &RefCell<ClientConnection>) -> Result<(), Error> {
    std::future::poll_fn(|cx| Pin::new(&mut connection.borrow_mut().path).poll_shutdown(cx))
        .await
        .map_err(|error| Error::io(&error, Side::Client))?;
    if connection.borrow().has_leftover() {
        // The client loses input that arrives later than this.
        let _ = tokio::time::timeout(LINGER_TIME, read_away(connection)).await;
    }
    Ok(())
}

async fn read_away(connection: &RefCell<ClientConnection>) {
    let mut scratch = [0; 4096];
    for _ in 0..LINGER_READS {
        let mut buf = ReadBuf::new(&mut scratch);
        let read = std::future::poll_fn(|cx| {
            Pin::new(&mut connection.borrow_mut().path).poll_read(cx, &mut buf)
        });
        if read.await.is_err() || buf.filled().is_empty() {
            return;
        }
    }
}

/// Resets the connection once the client's kernel holds the bytes written so far. A truncated
/// response then does not look complete, and its beginning is not lost.
pub(super) async fn break_off(connection: &RefCell<ClientConnection>) {
    let delivered = async {
        while connection.borrow().path.facts().has_unacknowledged() {
            tokio::time::sleep(DELIVERY_PAUSE).await;
        }
    };
    // A client that acknowledges no bytes in this time loses the rest.
    let _ = tokio::time::timeout(DELIVERY_TIME, delivered).await;
    connection.borrow().path.facts().reset_on_close();
}

/// The body of the current request, read from its connection on demand.
pub(super) struct ConnectionBody {
    pub(super) connection: Rc<RefCell<ClientConnection>>,
}

impl Chunks for ConnectionBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let mut connection = self.connection.borrow_mut();
        if connection.raw {
            if connection.buf.is_empty() && !connection.eof {
                ready!(connection.poll_fill(cx))?;
            }
            let buf = &mut connection.buf;
            return Poll::Ready((!buf.is_empty()).then(|| Ok(Chunk::Data(buf.split().freeze()))));
        }
        loop {
            let ClientConnection {
                buf,
                body,
                trailers,
                ..
            } = &mut *connection;
            let Some(decoder) = body else {
                return Poll::Ready(trailers.take().map(|fields| Ok(Chunk::Trailers(fields))));
            };
            let decoded = decoder
                .decode(buf)
                .map_err(|error| Error::new(Kind::BadRequest, Side::Client, error.to_string()))?;
            let piece = buf.split_to(decoded.consumed).freeze();
            if decoder.is_done() {
                *trailers = decoder.trailers().filter(|fields| !fields.is_empty());
                *body = None;
            }
            if !decoded.data.is_empty() {
                return Poll::Ready(Some(Ok(Chunk::Data(piece.slice(decoded.data)))));
            }
            if decoded.consumed == 0
                && connection.body.is_some()
                && ready!(connection.poll_fill(cx))? == 0
            {
                return Poll::Ready(Some(Err(Error::new(
                    Kind::Truncated,
                    Side::Client,
                    "the request's body ended too early",
                ))));
            }
        }
    }
}
