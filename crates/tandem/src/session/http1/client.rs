//! The client end of one HTTP/1.1 connection. It carries one exchange at a time, or several in turn
//! (`pipeline`), and stays open in between.

#![expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` holds its arguments twice"
)]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tandem_http::h1::{self, Form, Framing};
use tandem_http::{Method, RequestHead};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::Instant;

use super::content::{Progress, SentContent};
use super::pipeline::Line;
use super::response::{ReadTimer, ResponseReader, check_upgrade};
use super::tunnel::{Patience, tunnel};
use super::{Http1Session, small_body};
use crate::carrier::{Carrier, CarrierFuture, LocalBoxFuture};
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Body, Chunk, Exchange, Part, SessionMark, Sink};
use crate::path::{Facts, Path};
use crate::session::{
    Connected, PathWaiter, Probing, SessionEvents, SessionState, Task, check_protocol,
};

/// The client end of one HTTP/1.1 connection.
pub struct Http1Client {
    pub(super) session: Http1Session,
    pub(super) state: RefCell<CarrierState>,
    /// The number of responses.
    pub(super) answered: Cell<usize>,
    /// The number of the last request, if it may be pipelined.
    pub(super) sent: Cell<usize>,
    /// True if a request left before the response to another one.
    pub(super) is_pipelined: Cell<bool>,
    /// The number of exchanges under way.
    busy: Cell<usize>,
}

pub(super) enum CarrierState {
    Dialing(CarrierFuture<'static>),
    Idle(Path, ReadTimer),
    /// In use by an exchange, or used up.
    Taken,
    /// In use by exchanges that others may follow.
    Pipelined(Line),
}

impl CarrierState {
    /// Returns whether another exchange may take the path, once no exchange is under way.
    const fn has_path(&self) -> bool {
        matches!(self, Self::Dialing(_) | Self::Idle(..))
    }
}

impl std::fmt::Debug for Http1Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http1Client")
            .field("busy", &self.busy.get())
            .finish_non_exhaustive()
    }
}

impl Http1Client {
    /// Returns a connection that is dialled at its first use.
    pub fn connect(session: Http1Session, dial: CarrierFuture<'static>) -> Self {
        Self::new(session, CarrierState::Dialing(dial))
    }

    /// Returns a connection over a path that is already connected.
    pub fn over(session: Http1Session, path: Path) -> Self {
        Self::new(session, CarrierState::Idle(path, ReadTimer::default()))
    }

    fn new(session: Http1Session, state: CarrierState) -> Self {
        Self {
            session,
            state: RefCell::new(state),
            answered: Cell::new(0),
            sent: Cell::new(0),
            is_pipelined: Cell::new(false),
            busy: Cell::new(0),
        }
    }

    /// Takes the state, unless exchanges are under way in turn.
    fn take_state(&self) -> CarrierState {
        let mut state = self.state.borrow_mut();
        match state.has_path() {
            true => std::mem::replace(&mut *state, CarrierState::Taken),
            false => CarrierState::Taken,
        }
    }

    /// Takes the path, after a check that it was not closed while idle.
    pub(super) async fn take_path(&self) -> Result<(Path, ReadTimer), Error> {
        match self.take_state() {
            CarrierState::Dialing(dial) => {
                let carrier = dial.await.and_then(Carrier::into_bytes);
                let path = carrier.map_err(|error| error.with_retry(Retry::Never))?;
                Ok((path, ReadTimer::default()))
            }
            CarrierState::Idle(mut path, timer) => {
                if is_quiet(&mut path) {
                    return Ok((path, timer));
                }
                Err(Error::new(
                    Kind::Reset,
                    Side::Origin,
                    "the kept connection had been closed",
                )
                .with_retry(Retry::Safe))
            }
            CarrierState::Taken | CarrierState::Pipelined(_) => {
                Err(
                    Error::new(Kind::Reset, Side::Origin, "the connection is used up")
                        .with_retry(Retry::Safe),
                )
            }
        }
    }

    /// Counts an exchange until the result is dropped.
    pub(super) fn enter(&self) -> Busy<'_> {
        self.busy.set(self.busy.get() + 1);
        Busy(&self.busy)
    }

    /// Runs an exchange like [`Connected::run`], without a box for the future.
    pub fn exchange(
        &self,
        exchange: &mut Exchange,
        sink: &mut Sink,
    ) -> impl Future<Output = Result<(), Error>> {
        async move {
            let _busy = self.enter();
            check_protocol(&exchange.request)?;
            let (mut path, mut timer) = self.take_path().await?;
            let tunnel = exchange.request.is_connect();
            // Only the tunnel's code tells an agreement from an ordinary response.
            let upgrade = exchange.request.protocol.is_some();
            if !exchange.request.is_connect() {
                exchange.body.settle()?;
            }
            let framing = request_framing(exchange);
            let has_small_body = {
                let small_body = small_body::take(&mut exchange.body, framing)?;
                let body = small_body.as_deref().unwrap_or_default();
                let form = self.session.form;
                let rest = send_head(&mut path, &exchange.request, form, framing, body)
                    .map_err(sent_error)?;
                if !rest.is_empty() {
                    path.write_all(&rest).await.map_err(sent_error)?;
                }
                small_body.is_some()
            };
            path.flush().await.map_err(sent_error)?;
            let is_reused = self.answered.get() > 0;
            let mut reader = ResponseReader {
                trailers_after_length: self.session.one_exchange
                    && exchange.request.fields.has_token("te", "trailers"),
                ..ResponseReader::new(
                    &self.session,
                    &exchange.request.method,
                    is_reused,
                    &mut timer,
                )
            };
            // The rare cases are boxed, so that they do not enlarge the future of each exchange.
            let path = if !upgrade && (exchange.body.is_empty() || has_small_body) {
                let content = SentContent::of(&exchange.request, framing);
                let keep = reader.whole(&mut path, content, sink).await?;
                keep.then_some(path)
            } else if tunnel {
                // Only an origin, which is the target, takes requests in this form.
                let patience = match self.session.form {
                    Form::Origin => Patience::Limited,
                    _ => Patience::Unlimited,
                };
                Box::pin(reader.tunnel(path, exchange, sink, patience)).await?;
                None
            } else {
                let body = exchange.body.share();
                let content = SentContent::of(&exchange.request, framing);
                Box::pin(reader.with_upload(path, body, content, sink)).await?
            };
            // The bytes after a CONNECT belong to its tunnel, also if the client sent none into it.
            if let Some(path) = path.filter(|_| !tunnel) {
                self.answered.set(self.answered.get() + 1);
                self.state.replace(CarrierState::Idle(path, timer));
            }
            Ok(())
        }
    }
}

/// An exchange under way, for as long as it exists.
pub(super) struct Busy<'a>(&'a Cell<usize>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Returns true if neither bytes nor an end have arrived on an idle path.
fn is_quiet(path: &mut Path) -> bool {
    let mut byte = [0; 1];
    let mut buf = ReadBuf::new(&mut byte);
    let mut cx = Context::from_waker(std::task::Waker::noop());
    Pin::new(path).poll_read(&mut cx, &mut buf).is_pending()
}

pub(super) fn sent_error(error: std::io::Error) -> Error {
    Error::io_of_request(&error, Side::Origin, Retry::IfIdempotent)
}

fn request_framing(exchange: &Exchange) -> Framing {
    if exchange.body.is_empty() || exchange.request.is_connect() {
        return Framing::None;
    }
    exchange
        .body
        .length()
        .map_or(Framing::Chunked, Framing::Length)
}

thread_local! {
    /// The memory for the head of a request, which mostly leaves in one write.
    static HEAD: Cell<BytesMut> = Cell::new(BytesMut::new());
}

/// The size of a head in bytes above which its memory is freed.
const KEPT_HEAD: usize = 16 << 10;

/// Writes the head of a request and the `body` that is there, as far as the path accepts them at
/// once. Returns the rest.
pub(super) fn send_head<W: AsyncWrite + Unpin>(
    path: &mut W,
    request: &RequestHead,
    form: Form,
    framing: Framing,
    body: &[u8],
) -> std::io::Result<Bytes> {
    let mut out = HEAD.take();
    write_head(&mut out, request, form, framing);
    out.extend_from_slice(body);
    // The waker is registered by the write of the rest.
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let written = match Pin::new(path).poll_write(&mut cx, &out) {
        Poll::Ready(written) => written?,
        Poll::Pending => 0,
    };
    let rest = Bytes::copy_from_slice(&out[written..]);
    out.clear();
    if out.capacity() <= KEPT_HEAD {
        HEAD.set(out);
    }
    Ok(rest)
}

fn write_head(out: &mut BytesMut, request: &RequestHead, form: Form, framing: Framing) {
    match &request.protocol {
        // An extended CONNECT of HTTP/2 is an upgrade in HTTP/1.1 (RFC 8441 section 5).
        Some(protocol) => {
            let upgraded = RequestHead {
                method: Method::Get,
                protocol: None,
                ..request.clone()
            };
            h1::write_request(out, &upgraded, form, Framing::None, Some(protocol));
        }
        None if request.is_connect() => {
            h1::write_request(out, request, Form::Authority, Framing::None, None)
        }
        None => h1::write_request(out, request, form, framing, None),
    }
}

impl ResponseReader<'_> {
    /// Reads the response to a request that was sent whole. Returns true if another exchange may
    /// use the path. The future of an `async fn` would hold its arguments twice.
    fn whole(
        &mut self,
        path: &mut Path,
        content: SentContent,
        sink: &mut Sink,
    ) -> impl Future<Output = Result<bool, Error>> {
        async move {
            let (mut decoder, keep, sent) = {
                let response = self.heads(path, sink).await?;
                let decoder = self.decoder(&response)?;
                let keep = response.keep_alive && content.may_be_followed(&response.head, None);
                // The response must not be there during the wait, which would hold its memory.
                (decoder, keep, sink.send(Part::Head(response.head)))
            };
            sent.await;
            self.body(path, &mut decoder, sink).await?;
            Ok(keep && self.input.is_empty())
        }
    }

    /// Reads the response while a separate task sends the request body. A response may arrive
    /// before the request is complete.
    async fn with_upload(
        mut self,
        path: Path,
        body: Body,
        content: SentContent,
        sink: &mut Sink,
    ) -> Result<Option<Path>, Error> {
        let (mut read, write) = tokio::io::split(path);
        let (done, mut uploaded) = tokio::sync::oneshot::channel();
        let progress = Rc::new(Progress::new());
        self.progress = Some(Rc::clone(&progress));
        let (framing, sent) = (content.framing, Rc::clone(&progress));
        let _task = Task::spawn(async move {
            // If this fails, the receiver was dropped with its exchange.
            let _ = done.send(upload(write, body, framing, &sent).await);
        });
        let (response, sent) = self
            .heads_or_failed_upload(&mut read, &mut uploaded, sink)
            .await?;
        let keep = response.keep_alive && content.may_be_followed(&response.head, Some(&progress));
        self.rest(&mut read, response, sink).await?;
        let sent = sent.or_else(|| uploaded.try_recv().ok()?.ok());
        let sent = sent.filter(|_| keep && self.input.is_empty());
        Ok(sent.map(|write| read.unsplit(write)))
    }

    /// Reads the head of the response. Returns it with the write half of the path, if the request
    /// is complete.
    async fn heads_or_failed_upload(
        &mut self,
        read: &mut ReadHalf<Path>,
        uploaded: &mut tokio::sync::oneshot::Receiver<Result<WriteHalf<Path>, Error>>,
        sink: &mut Sink,
    ) -> Result<(h1::Response, Option<WriteHalf<Path>>), Error> {
        let mut heads = std::pin::pin!(self.heads(read, sink));
        let (mut failed, mut sent) = (None, None);
        let mut finished = false;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(result) = heads.as_mut().poll(cx) {
                return Poll::Ready(match (result, failed.take()) {
                    (Err(_), Some(error)) => Err(error),
                    (result, _) => result.map(|response| (response, sent.take())),
                });
            }
            if !finished && let Poll::Ready(result) = Pin::new(&mut *uploaded).poll(cx) {
                finished = true;
                match result {
                    // A fault of the client ends the exchange. On other errors the origin may have
                    // responded before it stopped reading.
                    Ok(Err(error)) if error.side == Side::Client => return Poll::Ready(Err(error)),
                    Ok(Err(error)) => failed = Some(error),
                    Ok(Ok(write)) => sent = Some(write),
                    Err(_) => {}
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Serves CONNECT and upgrades: carries bytes both ways once the other end has agreed.
    async fn tunnel(
        mut self,
        path: Path,
        exchange: &Exchange,
        sink: &mut Sink,
        patience: Patience,
    ) -> Result<(), Error> {
        let upgrade = exchange.request.protocol.is_some();
        let facts = Rc::clone(path.facts());
        let (mut read, write) = tokio::io::split(path);
        let get = Method::Get;
        if upgrade {
            self.method = &get;
        }
        let mut response = self.heads(&mut read, sink).await?;
        // The mark of an origin would change the status behind the gateway.
        response.head.fields.remove(super::DECLINED);
        let agreed = if upgrade {
            response.head.status == 101
        } else {
            (200..300).contains(&response.head.status)
        };
        if !agreed {
            if upgrade && (200..300).contains(&response.head.status) {
                super::decline(&mut response.head);
            }
            return self.rest(&mut read, response, sink).await;
        }
        if let Some(protocol) = &exchange.request.protocol {
            check_upgrade(&response, protocol)?;
        }
        response.head.status = 200;
        sink.send(Part::Head(response.head)).await;
        tunnel(
            read,
            write,
            facts,
            (exchange.body.share(), std::mem::take(&mut self.input)),
            sink,
            patience,
        )
        .await
    }
}

/// Sends a request's body, and notes its progress. Returns the write half when the body is
/// complete.
async fn upload(
    mut write: WriteHalf<Path>,
    mut body: Body,
    framing: Framing,
    progress: &Progress,
) -> Result<WriteHalf<Path>, Error> {
    let chunked = matches!(framing, Framing::Chunked);
    let mut left = body.length().filter(|_| !chunked);
    let mut out = BytesMut::new();
    loop {
        match std::future::poll_fn(|cx| body.poll_chunk(cx)).await {
            Some(Ok(Chunk::Data(data))) => {
                if let Some(left) = &mut left {
                    *left = left.checked_sub(data.len() as u64).ok_or_else(|| {
                        Error::new(
                            Kind::BadRequest,
                            Side::Client,
                            "more body than content-length says",
                        )
                    })?;
                }
                if chunked {
                    h1::write_chunk_head(&mut out, data.len());
                    out.extend_from_slice(&data);
                    out.extend_from_slice(b"\r\n");
                    write.write_all(&out.split()).await.map_err(sent_error)?;
                } else {
                    write.write_all(&data).await.map_err(sent_error)?;
                }
                progress.asked.set(Instant::now());
                // The end of the body may come later.
                progress.was_sent.set(left == Some(0));
            }
            Some(Ok(Chunk::Trailers(fields))) if chunked => {
                h1::write_last_chunk(&mut out, Some(&fields));
                write.write_all(&out).await.map_err(sent_error)?;
                progress.was_sent.set(true);
                write.flush().await.map_err(sent_error)?;
                return Ok(write);
            }
            // A body of known length cannot carry trailers.
            Some(Ok(Chunk::Trailers(_))) => {}
            Some(Err(error)) => return Err(error),
            None => {
                if chunked {
                    h1::write_last_chunk(&mut out, None);
                    write.write_all(&out).await.map_err(sent_error)?;
                    progress.was_sent.set(true);
                } else if left.is_some_and(|left| left > 0) {
                    return Err(Error::new(
                        Kind::Truncated,
                        Side::Client,
                        "the request's body ended too early",
                    ));
                }
                write.flush().await.map_err(sent_error)?;
                return Ok(write);
            }
        }
    }
}

impl Connected for Http1Client {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(self.exchange(exchange, sink))
    }

    fn drain(&self) {
        if self.busy.get() == 0 {
            self.state.replace(CarrierState::Taken);
        }
    }

    fn replaced(&self) {
        self.drain();
    }

    /// The connection of an exchange ends with it. HTTP/1.1 has no question that shows a loss.
    fn give_up(&self) {
        self.drain();
    }
}

impl SessionState for Http1Client {
    fn is_ready(&self) -> bool {
        self.busy.get() == 0 && self.state.borrow().has_path()
    }

    fn has_room(&self) -> bool {
        self.is_ready()
    }

    fn is_closed(&self) -> bool {
        self.busy.get() == 0 && !self.state.borrow().has_path()
    }

    fn is_established(&self) -> bool {
        matches!(&*self.state.borrow(), CarrierState::Idle(..))
    }

    fn active(&self) -> usize {
        self.busy.get()
    }

    /// A path in use belongs to its exchanges.
    fn facts(&self) -> Option<Rc<dyn Facts>> {
        None
    }

    /// The pool of origins closes idle connections.
    fn was_idle(&self) -> bool {
        false
    }

    fn mark(&self) -> Option<Rc<SessionMark>> {
        None
    }

    /// Origins admit all clients, and none of them is a gateway.
    fn admission(&self) -> Option<bool> {
        None
    }

    fn answered_in(&self) -> Option<Duration> {
        None
    }
}

/// A connection shows its failure to the exchange that uses it, and is used to origins only.
impl SessionEvents for Http1Client {
    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn takes_early<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        self.established()
    }

    fn ended(&self) -> LocalBoxFuture<'static, Option<Error>> {
        Box::pin(std::future::pending())
    }

    fn lost<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn answers<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        self.established()
    }

    fn watch_path(&self, _: Probing) -> Option<PathWaiter> {
        None
    }

    fn silent<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn dies<'a>(&'a self) -> LocalBoxFuture<'a, bool> {
        Box::pin(std::future::pending())
    }

    fn recovers<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}
