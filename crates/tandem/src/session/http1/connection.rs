//! The client's connection as the server session reads it: the bytes read ahead, and the body of
//! the current request. See RFC 9112 sections 6 and 9.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tandem_http::h1::{self, BadRequest, Decoder, Framing, Limits, Request};
use tandem_http::{Fields, Scheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::error::{Error, Kind, Side};
use crate::exchange::{Chunk, Chunks};
use crate::path::{Facts, Path};

/// The number of bytes of a body read at a time, and the most that a pipelining client may send
/// ahead.
const READ_SIZE: usize = 16 << 10;

/// The bytes of leftover input after which a connection is closed regardless. Many programs read
/// the response only after they have sent their whole upload.
const LINGER_BYTES: usize = 16 << 20;

/// The time for reading leftover input.
const LINGER_TIME: Duration = Duration::from_secs(10);

/// The time without leftover input after which a connection is closed.
const LINGER_PAUSE: Duration = Duration::from_secs(2);

/// The time that the client's kernel has to acknowledge the beginning of a truncated response.
const DELIVERY_TIME: Duration = Duration::from_secs(10);

/// The pause between two checks of the socket's send queue. No event reports that it has emptied.
const DELIVERY_PAUSE: Duration = Duration::from_millis(20);

/// A client's connection, shared by the loop that serves it, the writer of the reply, and the body
/// of the current request. No method holds a borrow of it for longer than one poll.
#[derive(Clone)]
pub(super) struct ClientConnection(Rc<RefCell<ConnectionState>>);

struct ConnectionState {
    path: Path,
    buf: BytesMut,
    /// The body of the current request; `None` once it is complete.
    body: Option<Decoder>,
    /// The fields after the body, until they are taken.
    trailers: Option<Fields>,
    /// True once the request became a tunnel. Its body is all input from then on.
    raw: bool,
    /// True once the client has closed its side.
    eof: bool,
}

impl ClientConnection {
    /// Returns a connection over `path`, of which `early` has been read already.
    pub(super) fn new(path: Path, early: BytesMut) -> Self {
        Self(Rc::new(RefCell::new(ConnectionState {
            path,
            buf: early,
            body: None,
            trailers: None,
            raw: false,
            eof: false,
        })))
    }

    /// Returns whether input has been read that no exchange has taken.
    pub(super) fn has_input(&self) -> bool {
        !self.0.borrow().buf.is_empty()
    }

    /// Returns whether the next request is one for a head, as far as it has been read.
    pub(super) fn has_head_request(&self) -> bool {
        self.0.borrow().buf.starts_with(b"HEAD ")
    }

    /// Takes the next request, if its head has been read.
    ///
    /// # Errors
    /// Returns the reason why the input is not a request. The input stays in the buffer.
    pub(super) fn take_request(
        &self,
        scheme: Scheme,
        limits: &Limits,
    ) -> Result<Option<Request>, BadRequest> {
        let mut state = self.0.borrow_mut();
        // An empty line left over after a body is tolerated (RFC 9112 section 2.2).
        if state.buf.starts_with(b"\r\n") {
            state.buf.advance(2);
        }
        if state.buf.is_empty() {
            return Ok(None);
        }
        let Some((request, consumed)) = h1::parse_request(&state.buf, scheme, limits)? else {
            return Ok(None);
        };
        state.buf.advance(consumed);
        Ok(Some(request))
    }

    /// Begins the body of the current request, or a tunnel. Returns `None` if there is no body.
    pub(super) fn begin_body(&self, framing: Framing, is_tunnel: bool) -> Option<ConnectionBody> {
        let mut state = self.0.borrow_mut();
        (state.raw, state.trailers) = (is_tunnel, None);
        if !is_tunnel {
            if matches!(framing, Framing::None | Framing::Length(0)) {
                return None;
            }
            state.body = Some(Decoder::new(framing));
        }
        Some(ConnectionBody(self.clone()))
    }

    /// Returns whether the current request became a tunnel.
    pub(super) fn is_tunnel(&self) -> bool {
        self.0.borrow().raw
    }

    /// Returns whether a part of the current request's body is unread, or may be.
    pub(super) fn has_body(&self) -> bool {
        let state = self.0.borrow();
        state.raw || state.body.is_some()
    }

    /// Reads the rest of a small unread body. Returns false if closing the connection costs less.
    pub(super) async fn skip_body(&self) -> bool {
        let mut source = ConnectionBody(self.clone());
        let mut left = READ_SIZE;
        while self.0.borrow().body.is_some() {
            let next = poll_fn(|cx| source.poll_chunk(cx));
            match tokio::time::timeout(Duration::from_secs(1), next).await {
                Ok(Some(Ok(Chunk::Data(data)))) if data.len() < left => left -= data.len(),
                Ok(Some(Ok(Chunk::Trailers(_))) | None) => {}
                _ => return false,
            }
        }
        true
    }

    /// Reads more input. Returns the number of bytes, 0 at the end.
    pub(super) fn poll_fill(&self, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        self.0.borrow_mut().poll_fill(cx)
    }

    /// Resolves once the client has closed its side while a response is pending. An error means
    /// that the client has gone.
    ///
    /// Pipelined requests are kept, up to a bound. Beyond it no input is read, and the end is
    /// noticed later.
    pub(super) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut state = self.0.borrow_mut();
        while !state.eof {
            if state.buf.len() >= READ_SIZE {
                return Poll::Pending;
            }
            ready!(state.poll_fill(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes bytes to the client: all `slices`, if the path takes several, or the first one.
    pub(super) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        let mut state = self.0.borrow_mut();
        let path = Pin::new(&mut state.path);
        let written = match slices {
            [first, ..] if !path.is_write_vectored() => path.poll_write(cx, first),
            _ => path.poll_write_vectored(cx, slices),
        };
        written.map_err(from_client)
    }

    /// Writes the bytes that wait in the path.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut state = self.0.borrow_mut();
        Pin::new(&mut state.path)
            .poll_flush(cx)
            .map_err(from_client)
    }

    /// Closes this side of the connection.
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut state = self.0.borrow_mut();
        Pin::new(&mut state.path)
            .poll_shutdown(cx)
            .map_err(from_client)
    }

    /// Closes this side of the connection, and reads leftover input within bounds of time and
    /// bytes. Closing a socket with unread input resets the connection, and the client could lose
    /// the response (RFC 9112 section 9.6).
    pub(super) async fn close(&self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_shutdown(cx)).await?;
        if self.0.borrow().has_leftover() {
            // The client loses input that arrives later than this.
            let _ = tokio::time::timeout(LINGER_TIME, self.read_away()).await;
        }
        Ok(())
    }

    /// Reads leftover input up to its end, a pause or the bound, and drops it.
    async fn read_away(&self) {
        let mut scratch = vec![0; READ_SIZE];
        let mut left = LINGER_BYTES;
        while left > 0 {
            let mut buf = ReadBuf::new(&mut scratch);
            let read =
                poll_fn(|cx| Pin::new(&mut self.0.borrow_mut().path).poll_read(cx, &mut buf));
            match tokio::time::timeout(LINGER_PAUSE, read).await {
                Ok(Ok(())) if !buf.filled().is_empty() => {
                    left = left.saturating_sub(buf.filled().len());
                }
                _ => return,
            }
        }
    }

    /// Resets the connection once the client's kernel holds the bytes written so far. A truncated
    /// response then does not look complete, and its beginning is not lost.
    pub(super) async fn break_off(&self) {
        let facts = self.facts();
        let delivered = async {
            while facts.has_unacknowledged() {
                tokio::time::sleep(DELIVERY_PAUSE).await;
            }
        };
        // A client that acknowledges no bytes in this time loses the rest.
        let _ = tokio::time::timeout(DELIVERY_TIME, delivered).await;
        facts.reset_on_close();
    }

    /// Returns the facts about the path.
    pub(super) fn facts(&self) -> Rc<dyn Facts> {
        Rc::clone(self.0.borrow().path.facts())
    }
}

impl ConnectionState {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        self.buf.reserve(READ_SIZE);
        let Self { path, buf, .. } = self;
        let mut read = std::pin::pin!(path.read_buf(buf));
        let count = ready!(read.as_mut().poll(cx)).map_err(from_client)?;
        self.eof |= count == 0;
        Poll::Ready(Ok(count))
    }

    /// Returns true if input is left that no exchange will read.
    fn has_leftover(&self) -> bool {
        !self.raw && (self.body.is_some() || !self.buf.is_empty())
    }
}

fn from_client(error: std::io::Error) -> Error {
    Error::io(&error, Side::Client)
}

/// The body of the current request, read from its connection on demand.
pub(super) struct ConnectionBody(ClientConnection);

impl Chunks for ConnectionBody {
    fn has_arrived(&self) -> bool {
        let state = self.0.0.borrow();
        state.eof || (!state.raw && state.body.is_none())
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let mut state = self.0.0.borrow_mut();
        if state.raw {
            if state.buf.is_empty() && !state.eof {
                ready!(state.poll_fill(cx))?;
            }
            let buf = &mut state.buf;
            return Poll::Ready((!buf.is_empty()).then(|| Ok(Chunk::Data(buf.split().freeze()))));
        }
        loop {
            let ConnectionState {
                buf,
                body,
                trailers,
                ..
            } = &mut *state;
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
            if decoded.consumed == 0 && state.body.is_some() && ready!(state.poll_fill(cx))? == 0 {
                return Poll::Ready(Some(Err(Error::new(
                    Kind::Truncated,
                    Side::Client,
                    "the request's body ended too early",
                ))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;

    /// Returns a connection with an unread body, and the client's end.
    fn uploading() -> (ClientConnection, Path) {
        let (near, far) = Path::pair(1 << 16);
        let connection = ClientConnection::new(far, BytesMut::new());
        connection.begin_body(Framing::Chunked, false);
        (connection, near)
    }

    /// Closes the connection, and drops it as the server does.
    async fn end(connection: ClientConnection) {
        connection.close().await.expect("the client is there");
    }

    #[tokio::test(start_paused = true)]
    async fn early_response_survives_a_large_upload() {
        let (connection, mut near) = uploading();
        let sent = async {
            for _ in 0..300 {
                near.write_all(&[b'u'; 10_000]).await.expect("a reader");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            near.shutdown().await.expect("a reader");
            Instant::now()
        };
        let (sent, ()) = tokio::join!(sent, end(connection));
        assert!(
            Instant::now() == sent,
            "the end of the upload ends the wait"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn client_cannot_hold_a_closed_connection() {
        // The pause between writes, their size, and the time for which they are read.
        for (pause, size, expected) in [
            (Duration::from_secs(60), 1, LINGER_PAUSE),
            (Duration::from_secs(1), 1, LINGER_TIME),
            (Duration::from_millis(1), 1 << 16, Duration::from_secs(1)),
        ] {
            let (connection, mut near) = uploading();
            let begun = Instant::now();
            let mut sent = 0;
            let sends = async {
                let data = vec![b'u'; size];
                loop {
                    tokio::time::sleep(pause).await;
                    if near.write_all(&data).await.is_err() {
                        return;
                    }
                    sent += size;
                }
            };
            let ends = async {
                end(connection).await;
                begun.elapsed()
            };
            let (time, ()) = tokio::join!(ends, sends);
            assert!(time <= expected, "{pause:?}: {time:?}");
            assert!(sent <= LINGER_BYTES + (2 << 16), "{pause:?}: {sent}");
        }
    }
}
