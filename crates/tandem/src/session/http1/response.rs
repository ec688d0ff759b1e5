//! Reads the response to one request from an HTTP/1.1 connection: interim heads, the final head and
//! the body (RFC 9112 sections 4, 6 and 7).

#![expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` holds its arguments twice"
)]

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tandem_http::cache::REPAIRED_FIELD;
use tandem_http::h1::{self, BadResponse, Decoder, Framing, Limits};
use tandem_http::{Fields, Method, ResponseHead};
use tokio::io::AsyncRead;
use tokio::time::{Instant, Sleep};

use super::content::Progress;
use super::decode::decode_part;
use super::{Http1Session, buffers};
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Part, Sink};
use crate::moment;
use crate::session::Interim;

/// The time limit of the trailers behind content of known length. A peer sends them with the end of
/// the content.
const LAST_CHUNK_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit of the reads on one connection.
///
/// The timer is not set again for each read, because that costs more than the read's other work.
/// It keeps an earlier deadline, and moves on only when that has passed.
#[derive(Debug, Default)]
pub(super) struct ReadTimer(Option<Pin<Box<Sleep>>>);

impl ReadTimer {
    /// Awaits a read until `limit` after now, or after `asked` if that is later.
    fn limit<'t, T>(
        &'t mut self,
        limit: Duration,
        asked: Option<&'t Cell<Instant>>,
        mut read: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<T>> + 't,
    ) -> impl Future<Output = Result<T, Error>> + 't {
        let begun = moment::now();
        let until = move || asked.map_or(begun, |asked| begun.max(asked.get())) + limit;
        std::future::poll_fn(move |cx| {
            if let Poll::Ready(read) = read(cx) {
                return Poll::Ready(read.map_err(|error| {
                    Error::io_of_request(&error, Side::Origin, Retry::IfIdempotent)
                }));
            }
            let sleep = self
                .0
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until())));
            while sleep.as_mut().poll(cx).is_ready() {
                let until = until();
                if until <= Instant::now() {
                    let detail = "no answer in time";
                    return Poll::Ready(Err(Error::new(Kind::Timeout, Side::Origin, detail)));
                }
                sleep.as_mut().reset(until);
            }
            Poll::Pending
        })
    }
}

/// The state of reading the response to one request.
pub(super) struct ResponseReader<'a> {
    pub(super) method: &'a Method,
    /// The connection has had a response before. Late bytes of that one, such as content behind a
    /// response to HEAD, may lie before the response.
    pub(super) is_reused: bool,
    /// True if the framing of a head so far was repaired.
    pub(super) is_repaired: bool,
    pub(super) limits: &'a Limits,
    /// The time for the head, and for the pause between two pieces of the body.
    pub(super) timeout: Duration,
    pub(super) timer: &'a mut ReadTimer,
    /// The progress of the request's content, if that takes a while.
    pub(super) progress: Option<Rc<Progress>>,
    /// The bytes that were read and belong to the rest of the response.
    pub(super) input: Bytes,
    /// The interim heads that the caller passes on with the final one, if they wait for that.
    pub(super) held: Option<Vec<ResponseHead>>,
    /// True if trailers may follow content of known length
    /// ([`Http1Session::one_exchange`](super::Http1Session::one_exchange)).
    pub(super) trailers_after_length: bool,
}

impl<'a> ResponseReader<'a> {
    /// Creates the state before the first byte of a response.
    pub(super) const fn new(
        session: &'a Http1Session,
        method: &'a Method,
        is_reused: bool,
        timer: &'a mut ReadTimer,
    ) -> Self {
        Self {
            method,
            is_reused,
            is_repaired: false,
            limits: &session.response_limits,
            timeout: session.response_timeout,
            timer,
            progress: None,
            input: Bytes::new(),
            held: None,
            trailers_after_length: false,
        }
    }
}

impl ResponseReader<'_> {
    /// Reads the interim heads, which it passes on or holds, and the final head.
    pub(super) fn heads<R: AsyncRead + Unpin>(
        &mut self,
        path: &mut R,
        sink: &mut Sink,
    ) -> impl Future<Output = Result<h1::Response, Error>> {
        async move {
            let mut interim = Interim::default();
            let mut is_first = true;
            loop {
                // No head is there during the waits, which would hold its memory.
                let sent = match self.parse_head(&mut interim, &mut is_first)? {
                    Some(response) if !is_interim(&response) => return Ok(response),
                    Some(response) => match &mut self.held {
                        Some(held) => {
                            held.push(response.head);
                            continue;
                        }
                        None => Some(sink.send(Part::Hints(response.head))),
                    },
                    None => None,
                };
                match sent {
                    Some(sent) => sent.await,
                    None => {
                        let more = self.read(path, buffers::ReadSize::First).await?;
                        if more.is_empty() {
                            return Err(self.ended_before_head());
                        }
                        self.append(more);
                    }
                }
            }
        }
    }

    /// Removes the next head from the input. Returns `None` if more input is needed.
    fn parse_head(
        &mut self,
        interim: &mut Interim,
        is_first: &mut bool,
    ) -> Result<Option<h1::Response>, Error> {
        if self.input.is_empty() {
            return Ok(None);
        }
        // Empty lines may also be the late end of an earlier response.
        if self.is_reused && *is_first && matches!(self.input[0], b'\r' | b'\n') {
            return Err(self.bad_response(BadResponse::StatusLine, true));
        }
        let parsed = h1::parse_response(&self.input, self.method, self.limits)
            .map_err(|bad| self.bad_response(bad, *is_first))?;
        let Some((mut response, consumed)) = parsed else {
            return Ok(None);
        };
        self.is_repaired |= response.is_repaired;
        if self.is_repaired {
            mark(&mut response);
        }
        self.input.advance(consumed);
        *is_first = false;
        if is_interim(&response) {
            interim.add(consumed, Side::Origin)?;
            if let Some(progress) = &self.progress {
                progress.note_interim(response.head.status);
            }
        }
        Ok(Some(response))
    }

    /// Passes on the head and reads the body to its end.
    pub(super) async fn rest<R: AsyncRead + Unpin>(
        &mut self,
        path: &mut R,
        response: h1::Response,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let mut decoder = self.decoder(&response)?;
        sink.send(Part::Head(response.head)).await;
        self.body(path, &mut decoder, sink).await
    }

    /// Returns the decoder of a response's content.
    pub(super) fn decoder(&mut self, response: &h1::Response) -> Result<Decoder, Error> {
        check_no_upgrade(response)?;
        self.trailers_after_length &= matches!(response.framing, Framing::Length(_));
        Ok(Decoder::new(response.framing))
    }

    /// Reads the body to its end. If its last part is the end of the exchange, the connection is
    /// free as soon as the reader gets that part.
    pub(super) fn body<R: AsyncRead + Unpin>(
        &mut self,
        path: &mut R,
        decoder: &mut Decoder,
        sink: &mut Sink,
    ) -> impl Future<Output = Result<(), Error>> {
        async move {
            while !decoder.is_done() {
                if self.input.is_empty() {
                    self.input = self.read(path, buffers::ReadSize::Later).await?;
                    if self.input.is_empty() {
                        return decoder.finish().map_err(|_| ended_in_body());
                    }
                }
                // No piece is there during the waits, which would hold its memory.
                let sent = {
                    let data = decode_part(decoder, &mut self.input).map_err(bad)?;
                    (!data.is_empty()).then(|| sink.send(Part::Data(data)))
                };
                if let Some(sent) = sent {
                    if !decoder.is_over() || self.trailers_after_length || self.progress.is_some() {
                        sent.await;
                    }
                } else if !self.input.is_empty() && !decoder.is_done() {
                    // The input ends within a chunk header: more must be read first.
                    let more = self.read(path, buffers::ReadSize::Later).await?;
                    if more.is_empty() {
                        return Err(ended_in_body());
                    }
                    self.append(more);
                }
            }
            let trailers = match self.trailers_after_length {
                true => Box::pin(self.last_chunk(path)).await?,
                false => decoder.trailers(),
            };
            if let Some(trailers) = trailers.filter(|fields| !fields.is_empty()) {
                sink.send(Part::Trailers(trailers)).await;
            }
            Ok(())
        }
    }

    /// Reads the trailers that follow content of known length, as a last chunk. The content is
    /// whole already, so the end of the stream or a long wait in its place means that there are
    /// none.
    async fn last_chunk<R: AsyncRead + Unpin>(
        &mut self,
        path: &mut R,
    ) -> Result<Option<Fields>, Error> {
        let mut decoder = Decoder::new(Framing::Chunked);
        let mut has_begun = false;
        self.timeout = self.timeout.min(LAST_CHUNK_TIMEOUT);
        *self.timer = ReadTimer::default();
        while !decoder.is_done() {
            if self.input.is_empty() {
                self.input = match self.read(path, buffers::ReadSize::Later).await {
                    Err(error) if error.kind == Kind::Timeout && !has_begun => return Ok(None),
                    read => read?,
                };
            }
            match self.input.is_empty() {
                true if has_begun => return Err(ended_in_body()),
                true => return Ok(None),
                false => has_begun = true,
            }
            let data = decode_part(&mut decoder, &mut self.input).map_err(bad)?;
            if !data.is_empty() {
                let detail = "more body than content-length says";
                return Err(Error::new(Kind::Protocol, Side::Origin, detail));
            }
        }
        Ok(decoder.trailers())
    }

    /// Reads once, within the time limit. Returns no bytes at the end of the connection.
    fn read<'r, R: AsyncRead + Unpin>(
        &'r mut self,
        path: &'r mut R,
        size: buffers::ReadSize,
    ) -> impl Future<Output = Result<Bytes, Error>> + 'r {
        let asked = self.progress.as_ref().map(|progress| &progress.asked);
        let read = move |cx: &mut Context<'_>| buffers::poll_read(path, size, cx);
        self.timer.limit(self.timeout, asked, read)
    }

    /// Appends bytes to the input, which is mostly empty then.
    fn append(&mut self, more: Bytes) {
        if self.input.is_empty() {
            self.input = more;
            return;
        }
        let mut joined = std::mem::take(&mut self.input)
            .try_into_mut()
            .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        joined.extend_from_slice(&more);
        self.input = joined.freeze();
    }

    /// Returns the error of a head that cannot be read. If the bytes may belong to an earlier
    /// response, a new connection shows the response to this request.
    fn bad_response(&self, bad: BadResponse, is_first: bool) -> Error {
        let is_late = self.is_reused && is_first && bad == BadResponse::StatusLine;
        let retry = if is_late {
            Retry::IfIdempotent
        } else {
            Retry::Never
        };
        Error::new(Kind::Protocol, Side::Origin, bad.to_string()).with_retry(retry)
    }

    fn ended_before_head(&self) -> Error {
        let retry = if self.input.is_empty() {
            Retry::IfIdempotent
        } else {
            Retry::Never
        };
        let detail = "the connection was closed before the response";
        Error::new(Kind::Truncated, Side::Origin, detail).with_retry(retry)
    }
}

/// Returns whether another head follows this one.
fn is_interim(response: &h1::Response) -> bool {
    response.head.is_informational() && response.head.status != 101
}

/// Marks a response whose framing, or that of a head before it, was repaired. It is the last one of
/// its connection.
fn mark(response: &mut h1::Response) {
    response.head.fields.set(REPAIRED_FIELD, "1");
    (response.is_repaired, response.keep_alive) = (true, false);
}

/// Refuses a response that switches protocols. No request asks for that but an upgrade.
fn check_no_upgrade(response: &h1::Response) -> Result<(), Error> {
    if response.head.status == 101 {
        let detail = "an upgrade that was not asked for";
        return Err(Error::new(Kind::Protocol, Side::Origin, detail));
    }
    Ok(())
}

/// Refuses a change to another protocol than the one that the request named (RFC 9110 section
/// 7.8).
pub(super) fn check_upgrade(response: &h1::Response, asked: &str) -> Result<(), Error> {
    let named = response.upgrade.as_deref();
    if named.is_some_and(|named| named.eq_ignore_ascii_case(asked)) {
        return Ok(());
    }
    let detail = "the origin changed to another protocol than the request named";
    Err(Error::new(Kind::Protocol, Side::Origin, detail))
}

fn bad(error: h1::BadBody) -> Error {
    Error::new(Kind::Protocol, Side::Origin, error.to_string())
}

fn ended_in_body() -> Error {
    let detail = "the response's body ended too early";
    Error::new(Kind::Truncated, Side::Origin, detail)
}

#[cfg(test)]
mod tests {
    use tandem_http::h1::Form;
    use tandem_http::{RequestHead, Scheme};
    use tokio::io::AsyncWriteExt as _;

    use super::super::client::{CarrierState, Http1Client};
    use super::*;
    use crate::exchange::{Body, Chunk, Chunks, Exchange, Reply};
    use crate::path::Path;
    use crate::role_name::RoleName;

    /// Returns whether the connection is idle as soon as its reader has the last byte of a body,
    /// and the number of parts that follow.
    async fn is_idle_with_last_byte(response: &str) -> (bool, usize) {
        let session = Http1Session::new(Form::Origin, RoleName::Gateway);
        let exchange = Exchange::internal(RequestHead::get(Scheme::Http, "a.example", "/"));
        is_idle_after(session, exchange, response, || ()).await
    }

    /// Does the same with a session and an exchange. `after` is called when the reader has the last
    /// byte.
    async fn is_idle_after(
        session: Http1Session,
        mut exchange: Exchange,
        response: &str,
        after: impl FnOnce(),
    ) -> (bool, usize) {
        let (near, mut far) = Path::pair(1 << 16);
        let client = Rc::new(Http1Client::over(session, near));
        let used = Rc::clone(&client);
        let mut reply =
            Reply::generate(
                |mut sink| async move { used.exchange(&mut exchange, &mut sink).await },
            );
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(reply.poll_part(&mut cx).is_pending(), "the request leaves");
        // The task of an upload sends the content.
        tokio::task::yield_now().await;
        let write = far.write_all(response.as_bytes());
        write.await.expect("the client reads");
        assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
        assert!(matches!(reply.part().await, Some(Ok(Part::Data(data))) if data == "body"));
        let is_idle = matches!(&*client.state.borrow(), CarrierState::Idle(..));
        after();
        tokio::task::yield_now().await;
        let mut more = 0;
        while let Some(part) = reply.part().await {
            part.expect("no failure");
            more += 1;
        }
        assert!(matches!(&*client.state.borrow(), CarrierState::Idle(..)));
        (is_idle, more)
    }

    #[tokio::test]
    async fn connection_is_free_with_the_last_part() {
        let of = is_idle_with_last_byte;
        let ok = "HTTP/1.1 200 OK\r\n";
        let length = format!("{ok}Content-Length: 4\r\n\r\nbody");
        assert_eq!(of(&length).await, (true, 0));
        let chunked = format!("{ok}Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n");
        assert_eq!(of(&format!("{chunked}\r\n")).await, (true, 0));
        assert_eq!(of(&format!("{chunked}X-Sum: 1\r\n\r\n")).await, (false, 1));
    }

    /// The trailers may be there when the content is passed on, and must not displace it.
    #[tokio::test]
    async fn trailers_follow_content_of_known_length() {
        let mut session = Http1Session::new(Form::Origin, RoleName::Gateway);
        session.one_exchange = true;
        let mut request = RequestHead::get(Scheme::Http, "a.example", "/");
        request.fields.push("te", "trailers");
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
        let response = format!("{head}body0\r\nX-Sum: 1\r\n\r\n");
        let exchange = Exchange::internal(request);
        let read = is_idle_after(session, exchange, &response, || ());
        assert_eq!(read.await, (false, 1));
    }

    /// An upload has left whole, but its end may come while the reader has the last part.
    #[tokio::test]
    async fn exchange_awaits_the_end_of_its_upload() {
        let upload = async {
            let session = Http1Session::new(Form::Origin, RoleName::Gateway);
            let mut request = RequestHead::get(Scheme::Http, "a.example", "/");
            request.method = Method::Post;
            let mut exchange = Exchange::internal(request);
            let is_over = Rc::new(Cell::new(false));
            let pieces = LateEnd(Some(Bytes::from_static(b"content")), Rc::clone(&is_over));
            exchange.body = Body::new(pieces, Some(7));
            let response = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
            is_idle_after(session, exchange, response, || is_over.set(true)).await
        };
        let tasks = tokio::task::LocalSet::new();
        assert_eq!(tasks.run_until(upload).await, (false, 0));
    }

    /// A body of one piece, which ends when its cell says so.
    struct LateEnd(Option<Bytes>, Rc<Cell<bool>>);

    impl Chunks for LateEnd {
        fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            match (self.0.take(), self.1.get()) {
                (Some(piece), _) => Poll::Ready(Some(Ok(Chunk::Data(piece)))),
                (None, true) => Poll::Ready(None),
                (None, false) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        }
    }

    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn read_timer_moves_on_for_the_next_read() {
        let mut timer = ReadTimer::default();
        let late = timer.limit(SHORT, None, |_| Poll::<std::io::Result<()>>::Pending);
        assert_eq!(late.await.map_err(|error| error.kind), Err(Kind::Timeout));
        // The deadline of the first read has passed, and this read is pending at first.
        let mut polls = 0;
        let read = move |cx: &mut Context<'_>| {
            polls += 1;
            if polls == 1 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(Ok(7))
        };
        assert_eq!(timer.limit(LONG, None, read).await, Ok(7));
    }

    #[tokio::test]
    async fn read_timer_counts_from_the_end_of_the_upload() {
        let mut timer = ReadTimer::default();
        let asked = Cell::new(Instant::now() + LONG);
        let late = timer.limit(SHORT, Some(&asked), |_| {
            Poll::<std::io::Result<()>>::Pending
        });
        let waited = tokio::time::timeout(2 * SHORT, late).await;
        assert!(waited.is_err(), "an hour is left");
    }
}
