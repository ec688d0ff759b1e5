//! An HTTP/2 connection of the origin: the proxy's protocol core handles it, with an independent
//! response on every stream.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use tandem_http::h2::Connection;
use tandem_http::{
    ByteMux, Event, Fields, Method, Mux, MuxConfig, Reason, RequestHead, ResponseHead, Role,
    SendBuf, StreamId,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::sleep_until;

use super::Shared;
use super::answer::{AnswerBody, reply};
use super::connection::next_piece;
use super::target::{Target, What};

const READ: usize = 16 << 10;
/// Bytes made ready for one write.
const WRITE: usize = 64 << 10;
/// Streams at once: no page has more to ask for.
const MAX_STREAMS: u32 = 2048;

/// Serves a session until either side ends it; `input` was read from it already. Failures are the
/// client's to see.
pub(super) async fn serve<S: AsyncRead + AsyncWrite>(
    stream: S,
    input: BytesMut,
    shared: Arc<Shared>,
) {
    let (read, write) = tokio::io::split(stream);
    let core = Connection::new(MuxConfig {
        max_streams: MAX_STREAMS,
        ..MuxConfig::new(Role::Server)
    });
    let mut session = OriginSession {
        core,
        shared,
        output: SendBuf::new(),
        exchanges: HashMap::new(),
        due: BinaryHeap::new(),
        active: Instant::now(),
    };
    let _ = session.run(read, write, input).await;
}

struct OriginSession {
    core: Connection,
    shared: Arc<Shared>,
    output: SendBuf,
    exchanges: HashMap<StreamId, Exchange>,
    /// Answers that wait for their time.
    due: BinaryHeap<Reverse<(Instant, StreamId)>>,
    /// When something last happened.
    active: Instant,
}

/// A request that is not answered in full.
struct Exchange {
    request: RequestHead,
    target: Target,
    /// Bytes of the request's body so far, and those among them that more may follow for only once
    /// there is room.
    received: u64,
    held: usize,
    /// The rest of the response's body, once its head is out.
    answer: Option<Left>,
}

/// The rest of an answer's body, and how much of it may go out before the stream is cut.
struct Left {
    body: AnswerBody,
    cut: u64,
}

impl OriginSession {
    async fn run<S: AsyncRead + AsyncWrite>(
        &mut self,
        mut read: ReadHalf<S>,
        mut write: WriteHalf<S>,
        mut input: BytesMut,
    ) -> io::Result<()> {
        loop {
            let ended = !input.is_empty()
                && self
                    .core
                    .handle_input(Instant::now(), &input.split())
                    .is_err();
            self.advance();
            if ended || (!self.core.is_open() && self.core.active() == 0) {
                return self.say_goodbye(&mut write).await;
            }
            let wake = self.next_wake();
            input.reserve(READ);
            tokio::select! {
                count = read.read_buf(&mut input) => {
                    if count? == 0 {
                        return Ok(());
                    }
                    self.active = Instant::now();
                }
                written = write.write_buf(&mut self.output), if !self.output.is_empty() => {
                    written?;
                    write.flush().await?;
                    self.active = Instant::now();
                }
                () = sleep_until(wake.into()) => self.handle_time(),
            }
        }
    }

    /// Sends the last frames of the connection.
    async fn say_goodbye<S: AsyncWrite>(&mut self, write: &mut WriteHalf<S>) -> io::Result<()> {
        self.core.poll_output(&mut self.output, usize::MAX);
        write.write_all_buf(&mut self.output).await?;
        write.shutdown().await
    }

    fn next_wake(&self) -> Instant {
        let idle = self.active + self.shared.idle;
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        [Some(idle), due, self.core.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(idle)
    }

    fn handle_time(&mut self) {
        let now = Instant::now();
        self.core.handle_timeout(now);
        while self.due.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, id))) = self.due.pop() else {
                break;
            };
            self.respond(id);
        }
        if now >= self.active + self.shared.idle {
            self.core.go_away(Reason::NoError);
        }
    }

    /// Handles events and makes output until neither brings anything new.
    fn advance(&mut self) {
        loop {
            while let Some(event) = self.core.poll_event() {
                self.handle_event(event);
            }
            if self.output.len() < WRITE {
                self.core.poll_output(&mut self.output, WRITE);
            }
            match self.core.poll_event() {
                Some(event) => self.handle_event(event),
                None => return,
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Request { id, head, end, .. } => self.begin(id, head, end),
            Event::Data { id, data, end } => self.data(id, data, end),
            Event::Trailers { id, fields } => self.end(id, Some(&fields)),
            Event::Writable { id } => self.room(id),
            Event::Reset { id, .. } => drop(self.exchanges.remove(&id)),
            _ => {}
        }
    }

    fn begin(&mut self, id: StreamId, request: RequestHead, end: bool) {
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        let target = Target::parse(&request.path, &self.shared);
        let echo = request.method == Method::Post && target.what == What::Echo;
        self.exchanges.insert(
            id,
            Exchange {
                request,
                target,
                received: 0,
                held: 0,
                answer: None,
            },
        );
        if echo {
            self.begin_echo(id, end);
        }
        if end {
            self.end(id, None);
        }
    }

    /// `/echo` answers before it knows all: `end` says that there is nothing to know.
    fn begin_echo(&mut self, id: StreamId, end: bool) {
        let Some(exchange) = self.exchanges.get(&id) else {
            return;
        };
        let mut head = ResponseHead::new(exchange.target.status.unwrap_or(200));
        for name in ["content-type", "content-length"] {
            if let Some(value) = exchange.request.fields.get(name) {
                head.fields.push(name, value);
            }
        }
        self.core.respond(id, &head, end);
    }

    fn data(&mut self, id: StreamId, data: Bytes, end: bool) {
        let len = data.len();
        let Some(exchange) = self.exchanges.get_mut(&id) else {
            return self.core.release(id, len);
        };
        exchange.received += len as u64;
        exchange.held += len;
        if exchange.is_echo() {
            self.shared
                .body_bytes
                .fetch_add(len as u64, Ordering::Relaxed);
            self.core.send_data(id, data, false);
        }
        if !exchange.is_echo() || self.core.send_room(id) > 0 {
            self.core.release(id, std::mem::take(&mut exchange.held));
        }
        if end {
            self.end(id, None);
        }
    }

    /// Continues an echo or a response after the stream has room again.
    fn room(&mut self, id: StreamId) {
        let Some(exchange) = self.exchanges.get_mut(&id) else {
            return;
        };
        self.core.release(id, std::mem::take(&mut exchange.held));
        self.fill(id);
    }

    /// The request is complete.
    fn end(&mut self, id: StreamId, trailers: Option<&Fields>) {
        let Some(exchange) = self.exchanges.get(&id) else {
            return;
        };
        if exchange.is_echo() {
            match trailers {
                Some(fields) => self.core.send_trailers(id, fields),
                None => self.core.send_data(id, Bytes::new(), true),
            }
            self.exchanges.remove(&id);
        } else if exchange.target.delay.is_zero() {
            self.respond(id);
        } else {
            self.due
                .push(Reverse((Instant::now() + exchange.target.delay, id)));
        }
    }

    fn respond(&mut self, id: StreamId) {
        let Some(exchange) = self.exchanges.get_mut(&id) else {
            return;
        };
        let Exchange {
            request,
            target,
            received,
            ..
        } = &*exchange;
        let (mut head, body) =
            reply(&self.shared, request, target).unwrap_or_else(|| sink(*received));
        head.status = target.status.unwrap_or(head.status);
        let none = matches!(head.status, 204 | 304);
        let body = if none { AnswerBody::None } else { body };
        if !none && target.framing.is_none() {
            head.fields.push("content-length", body.len().to_string());
        }
        let body = if request.method == Method::Head {
            AnswerBody::None
        } else {
            body
        };
        let cut = target.cut.unwrap_or(u64::MAX);
        self.core.respond(id, &head, body.len() == 0 && cut > 0);
        if body.len() == 0 && cut > 0 {
            self.exchanges.remove(&id);
        } else {
            exchange.answer = Some(Left { body, cut });
            self.fill(id);
        }
    }

    /// Writes as much of the body as the stream has room for.
    fn fill(&mut self, id: StreamId) {
        let Some(left) = self
            .exchanges
            .get_mut(&id)
            .and_then(|exchange| exchange.answer.as_mut())
        else {
            return;
        };
        while left.cut > 0 && self.core.send_room(id) > 0 {
            let Some(mut piece) = next_piece(&mut left.body, &self.shared.answers.filler) else {
                break;
            };
            piece.truncate(usize::try_from(left.cut).unwrap_or(usize::MAX));
            left.cut -= piece.len() as u64;
            self.shared
                .body_bytes
                .fetch_add(piece.len() as u64, Ordering::Relaxed);
            let end = left.body.len() == 0 && left.cut > 0;
            self.core.send_data(id, piece, end);
            if end {
                self.exchanges.remove(&id);
                return;
            }
        }
        if left.cut == 0 {
            // A reset would drop the queued output, so that output leaves first.
            self.core.poll_output(&mut self.output, usize::MAX);
            self.core.reset(id, Reason::Internal);
            self.exchanges.remove(&id);
        }
    }
}

impl Exchange {
    fn is_echo(&self) -> bool {
        self.request.method == Method::Post && self.target.what == What::Echo
    }
}

/// `/sink`: says how much came.
fn sink(received: u64) -> (ResponseHead, AnswerBody) {
    let mut head = ResponseHead::new(200);
    head.fields.push("content-type", "application/json");
    (
        head,
        AnswerBody::Whole(format!("{{\"bytes\":{received}}}\n").into()),
    )
}
