//! The answering end of one HTTP/1.1 connection: reads a request, hands the exchange on, writes its
//! reply.
//!
//! Used beside the browser (absolute-form, CONNECT, upgrades) and by gateways that listen for
//! HTTP/1.1. A response that cannot be completed is never ended as if it were: the connection is
//! reset instead.

use std::cell::RefCell;
use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tandem_http::h1::{self, BadRequest, Decoder, Form, Framing, Request, Version};
use tandem_http::message::content_length;
use tandem_http::{Fields, Method, ResponseHead, Scheme, SendBuf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::Http1Session;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Peer, Reply};
use crate::failure;
use crate::path::Path;
use crate::priority::SharedPriority;
use crate::session::Drain;
use crate::stage::Stage;

/// Bytes of a reply gathered before they are written.
const GATHER: usize = 64 << 10;

/// Bytes of a body read at a time; also the most that a pipelining client may send ahead.
const READ_SIZE: usize = 16 << 10;

/// Which origin-form requests (`GET /path` with a Host field) a server takes; a forward proxy must
/// not become a transparent one by accident.
#[derive(Clone, Debug)]
pub enum OriginForm {
    /// All: the server stands for the origins themselves.
    Any,
    /// Only those that name one of these authorities: the listener itself.
    Only(Rc<[String]>),
}

/// One connection being served.
pub struct Http1Server {
    session: Http1Session,
    io: Rc<RefCell<Io>>,
    peer: Peer,
    stage: Rc<dyn Stage>,
}

/// The connection, shared by the loop that serves it and the body of the request under way.
struct Io {
    path: Path,
    buf: BytesMut,
    /// The body of the request under way; `None` once it is complete.
    body: Option<Decoder>,
    /// What came after the body and has not been taken yet.
    trailers: Option<Fields>,
    /// The request became a tunnel: all that comes is its body.
    raw: bool,
    eof: bool,
}

impl Http1Server {
    /// Serves `path`.
    pub fn new(session: Http1Session, path: Path, peer: Peer, stage: Rc<dyn Stage>) -> Self {
        Self::with_early(session, path, peer, stage, BytesMut::new())
    }

    /// Serves `path`, of which `early` has been read already.
    pub fn with_early(
        session: Http1Session,
        path: Path,
        peer: Peer,
        stage: Rc<dyn Stage>,
        early: BytesMut,
    ) -> Self {
        let io = Io {
            path,
            buf: early,
            body: None,
            trailers: None,
            raw: false,
            eof: false,
        };
        Self {
            session,
            io: Rc::new(RefCell::new(io)),
            peer,
            stage,
        }
    }

    /// Runs until the connection ends, or the drain lets it end between two exchanges.
    pub async fn run(self, drain: Drain) -> Result<(), Error> {
        let mut draining = Box::pin(drain.begun());
        loop {
            let request = {
                let mut next = std::pin::pin!(self.next_request());
                let raced = std::future::poll_fn(|cx| {
                    if let Poll::Ready(request) = next.as_mut().poll(cx) {
                        return Poll::Ready(Some(request));
                    }
                    // Between two exchanges a drain ends the connection at once.
                    if self.io.borrow().buf.is_empty() && draining.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                    Poll::Pending
                });
                match raced.await {
                    Some(request) => request?,
                    None => None,
                }
            };
            let Some(request) = request else {
                return self.close().await;
            };
            let keep_alive = request.keep_alive && !drain.has_begun();
            if !self.serve_one(request, keep_alive).await? {
                return self.close().await;
            }
        }
    }

    async fn close(&self) -> Result<(), Error> {
        std::future::poll_fn(|cx| Pin::new(&mut self.io.borrow_mut().path).poll_shutdown(cx))
            .await
            .map_err(|error| Error::io(&error, Side::Client))
    }

    /// The next request; `None` when the client has closed. A malformed one is answered here.
    async fn next_request(&self) -> Result<Option<Request>, Error> {
        let timeouts = &self.session.timeouts;
        let mut begun = None;
        loop {
            let parsed = {
                let mut io = self.io.borrow_mut();
                // A line end left over after a body is tolerated (RFC 9112 section 2.2).
                if io.buf.starts_with(b"\r\n") {
                    io.buf.advance(2);
                }
                if io.buf.is_empty() {
                    Ok(None)
                } else {
                    h1::parse_request(&io.buf, Scheme::Http, &self.session.limits)
                }
            };
            match parsed {
                Ok(Some((request, consumed))) => {
                    self.io.borrow_mut().buf.advance(consumed);
                    return Ok(Some(request));
                }
                Ok(None) => {}
                Err(bad) => return Err(self.refuse(&bad).await),
            }
            if begun.is_none() && !self.io.borrow().buf.is_empty() {
                begun = Some(Instant::now());
            }
            // One time for the whole head, however few bytes come at a time.
            let limit = begun.map_or(timeouts.idle, |begun| {
                timeouts.head.saturating_sub(begun.elapsed())
            });
            match tokio::time::timeout(
                limit,
                std::future::poll_fn(|cx| self.io.borrow_mut().poll_fill(cx)),
            )
            .await
            {
                Ok(Ok(0)) if self.io.borrow().buf.is_empty() => return Ok(None),
                Ok(Ok(0)) => {
                    return Err(Error::new(
                        Kind::Truncated,
                        Side::Client,
                        "the client closed within a request's head",
                    ));
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) if begun.is_some() => {
                    let error = Error::new(
                        Kind::Timeout,
                        Side::Client,
                        "the request's head did not arrive in time",
                    );
                    self.answer(ResponseHead::new(408), Bytes::new()).await?;
                    return Err(error);
                }
                Err(_) => return Ok(None),
            }
        }
    }

    async fn refuse(&self, bad: &BadRequest) -> Error {
        let mut head = ResponseHead::new(bad.status());
        head.fields.push("content-type", "text/plain");
        let body = Bytes::from(format!("{bad}\n"));
        match self.answer(head, body).await {
            Ok(()) => Error::new(Kind::BadRequest, Side::Client, bad.to_string()),
            Err(error) => error,
        }
    }

    /// Writes a last answer; the connection closes after it.
    async fn answer(&self, mut head: ResponseHead, body: Bytes) -> Result<(), Error> {
        head.fields.set("content-length", body.len().to_string());
        let reply = Reply::ready(head, body);
        let mut writer = Writer::new(
            Rc::clone(&self.io),
            reply,
            &Method::Get,
            Version::Http11,
            false,
            self.session.timeouts.write,
        );
        std::future::poll_fn(|cx| writer.poll(cx)).await?;
        self.close().await?;
        // What the client still sends is read away for a moment, or its stack would drop the answer
        // with a reset.
        let mut sink = [0; 4096];
        let linger = async {
            for _ in 0..64 {
                let mut buf = ReadBuf::new(&mut sink);
                let read = |cx: &mut Context<'_>| {
                    Pin::new(&mut self.io.borrow_mut().path).poll_read(cx, &mut buf)
                };
                std::future::poll_fn(read).await.ok();
                if buf.filled().is_empty() {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), linger).await;
        Ok(())
    }

    /// Serves one exchange; says whether the connection can carry another.
    async fn serve_one(&self, request: Request, keep_alive: bool) -> Result<bool, Error> {
        let Request {
            mut head,
            form,
            version,
            framing,
            upgrade,
            ..
        } = request;
        // What else may be offered need not be taken (RFC 9110 section 7.8), and a body would have
        // nowhere to go.
        let plain = head.method == Method::Get && matches!(framing, Framing::None);
        let upgrade =
            upgrade.filter(|protocol| plain && protocol.eq_ignore_ascii_case("websocket"));
        if let (Form::Origin | Form::Asterisk, OriginForm::Only(own)) =
            (&form, &self.session.origin_form)
            && !own
                .iter()
                .any(|authority| authority.eq_ignore_ascii_case(&head.authority))
        {
            let mut refusal = ResponseHead::new(421);
            refusal.fields.push("content-type", "text/plain");
            self.answer(refusal, Bytes::from_static(b"Misdirected request.\n"))
                .await?;
            return Ok(false);
        }
        let method = head.method.clone();
        let tunnel = head.is_connect() || upgrade.is_some();
        if let Some(protocol) = &upgrade {
            head.method = Method::Connect;
            head.protocol = Some(protocol.clone());
        }
        let body = self.request_body(&head, framing, tunnel);
        let exchange = Exchange {
            request: head,
            body,
            isolation: Isolation::none(),
            peer: self.peer,
            priority: SharedPriority::default(),
        };
        let reply = self.stage.call(exchange);
        let patience = self.session.timeouts.write;
        let mut writer = Writer::new(
            Rc::clone(&self.io),
            reply,
            &method,
            version,
            keep_alive,
            patience,
        );
        writer.upgrade = upgrade;
        writer.who = self.session.who;
        let written = std::future::poll_fn(|cx| writer.poll(cx)).await;
        let tunnelled = writer.is_tunnel();
        drop(writer);
        if let Err(error) = written {
            self.io.borrow().path.facts().reset_on_close();
            return Err(error);
        }
        if tunnelled {
            return Ok(false);
        }
        // A body that nobody wanted stands between this exchange and the next.
        Ok(keep_alive && self.skip_body().await)
    }

    fn request_body(
        &self,
        head: &tandem_http::RequestHead,
        framing: Framing,
        tunnel: bool,
    ) -> Body {
        let mut io = self.io.borrow_mut();
        io.raw = tunnel;
        io.trailers = None;
        if tunnel {
            return Body::new(
                ConnectionBody {
                    io: Rc::clone(&self.io),
                },
                None,
            );
        }
        match framing {
            Framing::None | Framing::Length(0) => Body::empty(),
            framing => {
                io.body = Some(Decoder::new(framing));
                let length = content_length(&head.fields).ok().flatten();
                Body::new(
                    ConnectionBody {
                        io: Rc::clone(&self.io),
                    },
                    length,
                )
            }
        }
    }

    /// Reads away what is left of a small unread body; false where the connection had better be
    /// closed.
    async fn skip_body(&self) -> bool {
        let mut source = ConnectionBody {
            io: Rc::clone(&self.io),
        };
        let mut left = READ_SIZE;
        while self.io.borrow().body.is_some() {
            let next = std::future::poll_fn(|cx| source.poll_chunk(cx));
            match tokio::time::timeout(Duration::from_secs(1), next).await {
                Ok(Some(Ok(Chunk::Data(data)))) if data.len() < left => left -= data.len(),
                Ok(Some(Ok(Chunk::Trailers(_))) | None) => {}
                _ => return false,
            }
        }
        !self.io.borrow().eof
    }
}

impl Io {
    /// Reads more into the buffer; 0 at the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        self.buf.reserve(READ_SIZE);
        let Self { path, buf, .. } = self;
        let mut read = std::pin::pin!(path.read_buf(buf));
        let count =
            ready!(read.as_mut().poll(cx)).map_err(|error| Error::io(&error, Side::Client))?;
        self.eof |= count == 0;
        Poll::Ready(Ok(count))
    }

    /// Whether the client has gone while it should be waiting for an answer. What it pipelines
    /// meanwhile is kept, up to a bound; beyond it nothing is read, and its going is noticed later.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.eof && self.buf.len() < READ_SIZE {
            match ready!(self.poll_fill(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
        if self.eof {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// The body of the request under way, read off its connection when it is wanted.
struct ConnectionBody {
    io: Rc<RefCell<Io>>,
}

impl Chunks for ConnectionBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let mut io = self.io.borrow_mut();
        if io.raw {
            if io.buf.is_empty() && !io.eof {
                ready!(io.poll_fill(cx))?;
            }
            return Poll::Ready(
                (!io.buf.is_empty()).then(|| Ok(Chunk::Data(io.buf.split().freeze()))),
            );
        }
        loop {
            let Io {
                buf,
                body,
                trailers,
                ..
            } = &mut *io;
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
            if decoded.consumed == 0 && io.body.is_some() && ready!(io.poll_fill(cx))? == 0 {
                return Poll::Ready(Some(Err(Error::new(
                    Kind::Truncated,
                    Side::Client,
                    "the request's body ended too early",
                ))));
            }
        }
    }
}

/// Pulls a reply and writes it.
struct Writer {
    io: Rc<RefCell<Io>>,
    reply: Option<Reply>,
    out: SendBuf,
    version: Version,
    keep_alive: bool,
    head_request: bool,
    connect: bool,
    upgrade: Option<String>,
    state: Writing,
    /// What this proxy calls itself in its own answers.
    who: &'static str,
    /// The client of a tunnel is to be told that nothing more will come.
    closing: bool,
    /// How long the client may take no bytes.
    patience: Duration,
    /// Runs while bytes wait that the client does not take.
    stuck: Option<Pin<Box<Sleep>>>,
}

#[derive(PartialEq, Eq)]
enum Writing {
    Head,
    /// Bytes left of a body of known length.
    Length(u64),
    Chunked,
    UntilClose,
    /// A response that has no body.
    Empty,
    Tunnel,
    Done,
}

impl Writer {
    fn new(
        io: Rc<RefCell<Io>>,
        reply: Reply,
        method: &Method,
        version: Version,
        keep_alive: bool,
        patience: Duration,
    ) -> Self {
        Self {
            who: "client",
            patience,
            closing: false,
            stuck: None,
            io,
            reply: Some(reply),
            out: SendBuf::new(),
            version,
            keep_alive,
            head_request: *method == Method::Head,
            connect: *method == Method::Connect,
            upgrade: None,
            state: Writing::Head,
        }
    }

    fn is_tunnel(&self) -> bool {
        self.io.borrow().raw
    }

    /// Gathers parts until they are many or none comes, then writes: few, large writes.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            let waiting = self.poll_gather(cx)?;
            if self.poll_write(cx)?.is_pending() {
                return Poll::Pending;
            }
            if self.reply.is_none() {
                return self.poll_finished(cx);
            }
            if self.closing && self.poll_finished(cx)?.is_ready() {
                (self.closing, self.state) = (false, Writing::Done);
            }
            if waiting {
                let mut io = self.io.borrow_mut();
                if io.body.is_none() && !io.raw && io.poll_gone(cx).is_ready() {
                    return Poll::Ready(Err(Error::new(
                        Kind::Reset,
                        Side::Client,
                        "the client has gone",
                    )));
                }
                return Poll::Pending;
            }
        }
    }

    fn poll_finished(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut io = self.io.borrow_mut();
        if self.state == Writing::Tunnel {
            return Pin::new(&mut io.path)
                .poll_shutdown(cx)
                .map_err(|error| Error::io(&error, Side::Client));
        }
        Pin::new(&mut io.path)
            .poll_flush(cx)
            .map_err(|error| Error::io(&error, Side::Client))
    }

    /// Takes parts while they come and fit; true when the reply has to be waited for.
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
                    let (head, body) = failure::response(&error, self.who);
                    self.keep_alive = self.keep_alive && !self.connect && self.upgrade.is_none();
                    self.upgrade = None;
                    self.put(Part::Head(head))?;
                    self.put(Part::Data(body))?;
                    self.reply = None;
                    self.end()?;
                }
            }
        }
        Ok(false)
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
                if self.state == Writing::Chunked {
                    self.out
                        .put_with(|out| h1::write_last_chunk(out, Some(&fields)));
                    self.state = Writing::Done;
                }
            }
            Part::Closed => self.closing = true,
            // Nothing in HTTP/1.1 can carry it.
            Part::Pushed { .. } => {}
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
        self.out
            .put_with(|out| h1::write_response(out, head, version, framing, keep_alive, upgrade));
    }

    fn put_head(&mut self, mut head: ResponseHead) {
        let declined = self.upgrade.is_some() && head.fields.remove(super::DECLINED);
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
        // A tunnel that was refused ends the connection: what the client sent ahead belongs to
        // nobody.
        self.keep_alive &= !self.connect && self.upgrade.is_none();
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
        let keep_alive = self.keep_alive;
        self.write_head(&head, framing, keep_alive, None);
    }

    fn put_data(&mut self, data: Bytes) -> Result<(), Error> {
        match &mut self.state {
            Writing::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or_else(|| {
                    Error::new(
                        Kind::Protocol,
                        Side::Origin,
                        "more body than content-length says",
                    )
                })?;
                self.out.put_bytes(data);
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
        let mut io = self.io.borrow_mut();
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); 16];
            let count = self.out.chunks_vectored(&mut slices);
            let polled = if io.path.is_write_vectored() {
                Pin::new(&mut io.path).poll_write_vectored(cx, &slices[..count])
            } else {
                Pin::new(&mut io.path).poll_write(cx, self.out.chunk())
            };
            match polled {
                Poll::Pending => {
                    let patience = self.patience;
                    let stuck = self
                        .stuck
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                    if stuck.as_mut().poll(cx).is_ready() {
                        return Err(Error::new(
                            Kind::Timeout,
                            Side::Client,
                            "the client takes no bytes",
                        ));
                    }
                    return Ok(Poll::Pending);
                }
                Poll::Ready(Ok(0)) => {
                    return Err(Error::new(
                        Kind::Reset,
                        Side::Client,
                        "the client takes no bytes",
                    ));
                }
                Poll::Ready(Ok(written)) => {
                    self.out.advance(written);
                    self.stuck = None;
                }
                Poll::Ready(Err(error)) => return Err(Error::io(&error, Side::Client)),
            }
        }
        if let Poll::Ready(Err(error)) = Pin::new(&mut io.path).poll_flush(cx) {
            return Err(Error::io(&error, Side::Client));
        }
        Ok(Poll::Ready(()))
    }
}
