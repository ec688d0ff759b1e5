//! Writes a reply to an HTTP/1.1 client (RFC 9112 sections 6 and 7.1) for the server session.
//!
//! A truncated response is written as far as it arrived, and its end is never written. The server
//! session then ends the connection.

use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tandem_http::cache::REPAIRED_FIELD;
use tandem_http::h1::{self, Framing, Version};
use tandem_http::message::content_length;
use tandem_http::{Method, ResponseHead, SendBuf};
use tokio::time::Sleep;

use super::Http1Session;
use super::connection::ClientConnection;
use super::half_closed::HalfClosed;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Part, Reply};
use crate::failure;
use crate::role_name::RoleName;
use crate::session::Drain;

/// The number of bytes of a reply that are gathered before they are written.
const GATHER: usize = 64 << 10;

/// The first byte of every status line; see [`super::half_closed`].
const FIRST_BYTE: &[u8] = b"H";

/// Reads a reply and writes it.
pub(super) struct Writer {
    connection: ClientConnection,
    reply: Option<Reply>,
    out: SendBuf,
    version: Version,
    keep_alive: bool,
    head_request: bool,
    connect: bool,
    pub(super) upgrade: Option<String>,
    /// A drain that makes this response the last one of its connection, if it begins before the
    /// head is written.
    pub(super) drain: Option<Drain>,
    /// True if trailers may follow content of known length ([`Http1Session::one_exchange`]).
    pub(super) trailers_after_length: bool,
    /// True if the client is a proxy of the pair, which reads [`REPAIRED_FIELD`].
    is_of_pair: bool,
    /// True if browsers take a body that is shorter than its length for a whole one.
    hides_short_body: bool,
    state: Writing,
    /// The role of this proxy, which its own responses name.
    who: RoleName,
    /// True once the client of a tunnel must be told that no more data will arrive.
    closing: bool,
    /// The error that truncates the response, raised once the bytes before it are written.
    broken: Option<Error>,
    /// The time for which the client may accept no bytes.
    write_timeout: Duration,
    /// A timer that runs while the client does not accept the bytes that wait.
    stuck: Option<Pin<Box<Sleep>>>,
    /// The watch over a client that has closed its side.
    half_closed: Option<HalfClosed>,
    /// True once [`FIRST_BYTE`] of the next head was sent.
    first_byte_sent: bool,
}

/// The state of the response.
#[derive(PartialEq, Eq)]
enum Writing {
    Head,
    /// The number of bytes left of a body of known length.
    Length(u64),
    Chunked,
    UntilClose,
    /// A response without a body.
    Empty,
    Tunnel,
    Done,
}

impl Writer {
    pub(super) fn new(
        connection: ClientConnection,
        reply: Reply,
        method: &Method,
        version: Version,
        keep_alive: bool,
        session: &Http1Session,
    ) -> Self {
        Self {
            who: session.who,
            write_timeout: session.timeouts.write,
            closing: false,
            broken: None,
            stuck: None,
            half_closed: None,
            first_byte_sent: false,
            connection,
            reply: Some(reply),
            out: SendBuf::new(),
            version,
            keep_alive,
            head_request: *method == Method::Head,
            connect: *method == Method::Connect,
            upgrade: None,
            drain: None,
            trailers_after_length: false,
            is_of_pair: session.one_exchange,
            hides_short_body: false,
            state: Writing::Head,
        }
    }

    /// Returns whether the response lets its connection carry another exchange.
    pub(super) const fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// Returns whether the client sees that the body is not complete, when the connection closes
    /// now (RFC 9112 section 8).
    pub(super) const fn shows_break(&self) -> bool {
        match self.state {
            Writing::Chunked => true,
            Writing::Length(left) => left > 0 && !self.hides_short_body,
            _ => false,
        }
    }

    /// Gathers parts until there are many or no more is ready, then writes them in few, large
    /// writes.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            let waiting = self.poll_gather(cx).unwrap_or_else(|error| {
                (self.reply, self.broken) = (None, Some(error));
                false
            });
            if self.poll_write(cx)?.is_pending() {
                return Poll::Pending;
            }
            if let Some(error) = self.broken.take() {
                return Poll::Ready(Err(error));
            }
            if self.reply.is_none() {
                return self.poll_finished(cx);
            }
            if self.closing && self.poll_finished(cx)?.is_ready() {
                (self.closing, self.state) = (false, Writing::Done);
            }
            if waiting {
                if self.poll_gone(cx)?.is_ready() {
                    return Poll::Ready(Err(client_gone()));
                }
                if self.out.is_empty() {
                    return Poll::Pending;
                }
            }
        }
    }

    /// Resolves once the client has gone while the reply is pending.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Error> {
        if self.connection.has_body() {
            return Ok(Poll::Pending);
        }
        match self.connection.poll_end(cx) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(Err(_)) => return Ok(Poll::Ready(())),
            Poll::Ready(Ok(())) => {}
        }
        let before_head = self.state == Writing::Head;
        let half_closed = self.half_closed.get_or_insert_with(|| {
            if before_head {
                self.out.put_slice(FIRST_BYTE);
                self.first_byte_sent = true;
            }
            HalfClosed::watch(&*self.connection.facts())
        });
        Ok(half_closed.poll_gone(cx, !before_head))
    }

    fn poll_finished(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.state {
            Writing::Tunnel => self.connection.poll_shutdown(cx),
            _ => self.connection.poll_flush(cx),
        }
    }

    /// Reads the parts that are ready and fit. Returns true when the reply is pending.
    fn poll_gather(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        while self.out.len() < GATHER {
            let Some(reply) = &mut self.reply else {
                return Ok(false);
            };
            match reply.poll_part(cx) {
                Poll::Pending => return Ok(true),
                Poll::Ready(Some(Ok(part))) => self.put(part)?,
                Poll::Ready(None) => {
                    self.reply = None;
                    self.end()?;
                }
                Poll::Ready(Some(Err(error))) => {
                    if self.state != Writing::Head {
                        return Err(error);
                    }
                    self.reply = None;
                    self.put_failure(&error)?;
                }
            }
        }
        Ok(false)
    }

    /// Writes the error page of a failure.
    fn put_failure(&mut self, error: &Error) -> Result<(), Error> {
        let (head, body) = failure::response(error, self.who);
        self.keep_alive = self.keep_alive && !self.connect && self.upgrade.is_none();
        self.upgrade = None;
        self.put(Part::Head(head))?;
        self.put(Part::Data(body))?;
        self.end()
    }

    fn put(&mut self, part: Part) -> Result<(), Error> {
        match part {
            Part::Hints(head) => {
                if self.version == Version::Http11 {
                    self.write_head(&head, Framing::None, true, None);
                }
            }
            Part::Head(head) => self.put_head(head),
            Part::Data(data) => self.put_data(data)?,
            Part::Trailers(fields) => {
                let follows_length = self.state == Writing::Length(0) && self.trailers_after_length;
                if self.state == Writing::Chunked || follows_length {
                    self.out
                        .put_with(|out| h1::write_last_chunk(out, Some(&fields)));
                    self.state = Writing::Done;
                }
            }
            Part::Closed => self.closing = true,
            // HTTP/1.1 cannot carry a push.
            Part::Pushed(_) => {}
        }
        Ok(())
    }

    fn write_head(
        &mut self,
        head: &ResponseHead,
        framing: Framing,
        keep_alive: bool,
        upgrade: Option<&str>,
    ) {
        let version = self.version;
        let write = |out: &mut BytesMut| {
            h1::write_response(out, head, version, framing, keep_alive, upgrade)
        };
        if std::mem::take(&mut self.first_byte_sent) {
            let mut text = BytesMut::new();
            write(&mut text);
            self.out.put_slice(&text[FIRST_BYTE.len()..]);
        } else {
            self.out.put_with(write);
        }
    }

    fn put_head(&mut self, mut head: ResponseHead) {
        if !self.is_of_pair {
            head.fields.remove(REPAIRED_FIELD);
        }
        let declined = self.upgrade.is_some() && super::restore_declined(&mut head);
        let success = (200..300).contains(&head.status) && !declined;
        if success && (self.connect || self.upgrade.is_some()) {
            self.state = Writing::Tunnel;
            head.fields.remove("content-length");
            let upgrade = self.upgrade.take();
            if upgrade.is_some() {
                head.status = 101;
            }
            self.write_head(&head, Framing::None, true, upgrade.as_deref());
            return;
        }
        // A refused tunnel ends the connection, because the bytes that the client sent ahead were
        // for the far end.
        self.keep_alive &= !self.connect && self.upgrade.is_none();
        // The client would send its next request into the end of the connection.
        self.keep_alive &= !self.drain.as_ref().is_some_and(Drain::has_begun);
        let length = content_length(&head.fields).ok().flatten();
        let bodyless = self.head_request || matches!(head.status, 204 | 304);
        let (framing, state) = match (bodyless, length) {
            (true, _) => (Framing::None, Writing::Empty),
            (false, Some(length)) => (Framing::Length(length), Writing::Length(length)),
            (false, None) if self.version == Version::Http11 => {
                (Framing::Chunked, Writing::Chunked)
            }
            (false, None) => {
                self.keep_alive = false;
                (Framing::UntilClose, Writing::UntilClose)
            }
        };
        self.state = state;
        // Firefox checks the length of no coded content, and only where the status is a success.
        self.hides_short_body = !success || head.fields.contains("content-encoding");
        let keep_alive = self.keep_alive;
        self.write_head(&head, framing, keep_alive, None);
    }

    fn put_data(&mut self, data: Bytes) -> Result<(), Error> {
        match &mut self.state {
            Writing::Length(left) => {
                let fits = usize::try_from(*left).map_or(data.len(), |left| left.min(data.len()));
                *left -= fits as u64;
                self.out.put_bytes(data.slice(..fits));
                if fits < data.len() {
                    return Err(Error::new(
                        Kind::Protocol,
                        Side::Origin,
                        "more body than content-length says",
                    ));
                }
            }
            Writing::Chunked if !data.is_empty() => {
                self.out
                    .put_with(|out| h1::write_chunk_head(out, data.len()));
                self.out.put_bytes(data);
                self.out.put_slice(b"\r\n");
            }
            Writing::UntilClose | Writing::Tunnel => self.out.put_bytes(data),
            Writing::Chunked | Writing::Empty | Writing::Head | Writing::Done => {}
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        match self.state {
            Writing::Chunked => self.out.put_with(|out| h1::write_last_chunk(out, None)),
            Writing::Length(left) if left > 0 => {
                return Err(Error::new(
                    Kind::Truncated,
                    Side::Peer,
                    "the response's body ended too early",
                ));
            }
            Writing::Head => {
                return Err(Error::new(
                    Kind::Internal,
                    Side::Local,
                    "a reply without a head",
                ));
            }
            _ => {}
        }
        Ok(())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Error> {
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); 16];
            let count = self.out.chunks_vectored(&mut slices);
            match self.connection.poll_write(cx, &slices[..count])? {
                Poll::Pending => {
                    let write_timeout = self.write_timeout;
                    let stuck = self
                        .stuck
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep(write_timeout)));
                    if stuck.as_mut().poll(cx).is_ready() {
                        return Err(takes_nothing(Kind::Timeout));
                    }
                    return Ok(Poll::Pending);
                }
                Poll::Ready(0) => return Err(takes_nothing(Kind::Reset)),
                Poll::Ready(written) => {
                    self.out.advance(written);
                    self.stuck = None;
                    if let Some(half_closed) = &mut self.half_closed {
                        half_closed.note_sent();
                    }
                }
            }
        }
        // A flush that waits goes on with the next poll.
        let _: Poll<()> = self.connection.poll_flush(cx)?;
        Ok(Poll::Ready(()))
    }
}

fn client_gone() -> Error {
    Error::new(Kind::Reset, Side::Client, "the client has gone")
}

fn takes_nothing(kind: Kind) -> Error {
    Error::new(kind, Side::Client, "the client takes no bytes")
}
