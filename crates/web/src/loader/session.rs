//! An HTTP/2 session of the loader: a task owns the proxy's protocol core, and receives requests
//! from other tasks.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use tandem_http::h2;
use tandem_http::mux::OpenError;
use tandem_http::{
    ByteMux, Event, Mux, MuxConfig, Priority, Reason, RequestHead, ResponseHead, Role, SendBuf,
    StreamId,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

use super::connection::{LoaderConnection, Stream};
use super::metered::Meter;

const READ: usize = 64 << 10;
/// Bytes made ready for one write.
const WRITE: usize = 16 << 10;
/// Sleep of a session that waits for nothing.
const LONG: std::time::Duration = std::time::Duration::from_secs(3600);

/// A session that others send requests to; ends when dropped.
#[derive(Debug)]
pub(super) struct LoaderSession {
    orders: UnboundedSender<Order>,
    pub(super) meter: Meter,
    task: JoinHandle<()>,
}

/// A request, and the channel for its events.
struct Order {
    head: RequestHead,
    priority: Priority,
    to: UnboundedSender<Piece>,
}

/// An event of a request.
#[derive(Debug)]
pub(super) enum Piece {
    /// It was given to the kernel.
    Sent(Instant),
    /// The answer begins.
    Head(ResponseHead, Instant),
    /// Part of its body; true with the last.
    Data(Bytes, bool, Instant),
    /// The stream has failed, and no more events follow.
    Failed(Reason),
}

impl LoaderSession {
    /// Begins a session on a fresh connection.
    pub(super) fn start(connection: LoaderConnection) -> Self {
        let (orders, receiver) = unbounded_channel();
        let meter = connection.meter.clone();
        let (read, write) = tokio::io::split(connection.stream);
        let driver = SessionDriver {
            core: h2::Connection::new(MuxConfig::new(Role::Client)),
            orders: receiver,
            waiting: VecDeque::new(),
            streams: HashMap::new(),
            unsent: Vec::new(),
            output: SendBuf::new(),
        };
        Self {
            orders,
            meter,
            task: tokio::spawn(driver.run(read, write, connection.input)),
        }
    }

    /// Sends a request; its answer comes in pieces. Once the session has ended, none do.
    pub(super) fn request(
        &self,
        head: RequestHead,
        priority: Priority,
    ) -> UnboundedReceiver<Piece> {
        let (to, pieces) = unbounded_channel();
        // The receiver of a lost order finds its sender gone.
        let _ = self.orders.send(Order { head, priority, to });
        pieces
    }
}

impl Drop for LoaderSession {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct SessionDriver {
    core: h2::Connection,
    orders: UnboundedReceiver<Order>,
    /// Orders that the server has no room for yet.
    waiting: VecDeque<Order>,
    streams: HashMap<StreamId, UnboundedSender<Piece>>,
    /// Streams with requests that have not been sent yet.
    unsent: Vec<StreamId>,
    output: SendBuf,
}

impl SessionDriver {
    /// Runs until either side ends the session: then all senders of pieces are dropped.
    async fn run(mut self, read: ReadHalf<Stream>, write: WriteHalf<Stream>, input: BytesMut) {
        // Whoever waits for an answer learns it from the silence.
        let _ = self.drive(read, write, input).await;
    }

    async fn drive(
        &mut self,
        mut read: ReadHalf<Stream>,
        mut write: WriteHalf<Stream>,
        mut input: BytesMut,
    ) -> io::Result<()> {
        loop {
            let received = !input.is_empty();
            if received
                && self
                    .core
                    .handle_input(Instant::now(), &input.split())
                    .is_err()
            {
                self.core.poll_output(&mut self.output, usize::MAX);
                write.write_all_buf(&mut self.output).await?;
                return write.shutdown().await;
            }
            self.advance();
            let wake = self
                .core
                .poll_timeout()
                .unwrap_or_else(|| Instant::now() + LONG);
            input.reserve(READ);
            tokio::select! {
                count = read.read_buf(&mut input) => if count? == 0 {
                    return Ok(());
                },
                written = write.write_buf(&mut self.output), if !self.output.is_empty() => {
                    written?;
                    write.flush().await?;
                    self.tell_sent();
                }
                order = self.orders.recv() => match order {
                    Some(order) => self.waiting.push_back(order),
                    None => return Ok(()),
                },
                () = sleep_until(wake.into()) => self.core.handle_timeout(Instant::now()),
            }
        }
    }

    /// Opens streams within the limits, handles events and makes output.
    fn advance(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            self.waiting.push_back(order);
        }
        while let Some(event) = self.core.poll_event() {
            self.handle_event(event);
        }
        while let Some(order) = self.waiting.front() {
            match self.core.open(&order.head, true, order.priority) {
                Ok(id) => {
                    let Some(order) = self.waiting.pop_front() else {
                        break;
                    };
                    self.streams.insert(id, order.to);
                    self.unsent.push(id);
                }
                Err(OpenError::Busy) => break,
                // Its sender goes, which says enough.
                Err(_) => drop(self.waiting.pop_front()),
            }
        }
        if self.output.len() < WRITE {
            self.core.poll_output(&mut self.output, WRITE);
        }
        while let Some(event) = self.core.poll_event() {
            self.handle_event(event);
        }
    }

    fn tell_sent(&mut self) {
        if !self.output.is_empty() || self.core.wants_output() {
            return;
        }
        let now = Instant::now();
        for id in std::mem::take(&mut self.unsent) {
            self.tell(id, Piece::Sent(now));
        }
    }

    /// Sends an event to a request. The receiver may be gone once another resource has failed.
    fn tell(&self, id: StreamId, piece: Piece) {
        if let Some(to) = self.streams.get(&id) {
            let _ = to.send(piece);
        }
    }

    fn handle_event(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Response { id, head, end } => {
                self.tell(id, Piece::Head(head, now));
                if end {
                    self.end(id, Piece::Data(Bytes::new(), true, now));
                }
            }
            Event::Data { id, data, end } => {
                self.core.release(id, data.len());
                if end {
                    self.end(id, Piece::Data(data, true, now))
                } else {
                    self.tell(id, Piece::Data(data, false, now))
                }
            }
            Event::Trailers { id, .. } => self.end(id, Piece::Data(Bytes::new(), true, now)),
            Event::Reset { id, reason } => self.end(id, Piece::Failed(reason)),
            _ => {}
        }
    }

    fn end(&mut self, id: StreamId, last: Piece) {
        self.tell(id, last);
        self.streams.remove(&id);
    }
}
