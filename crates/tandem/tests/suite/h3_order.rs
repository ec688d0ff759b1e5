//! The order in which a session of HTTP/3 writes on the streams of its carrier, in virtual time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tandem::carrier::{Carrier, CarrierStream, Code, Direction, SendStream, Streams};
use tandem::error::Error;
use tandem::exchange::{Exchange, Part, Peer, Reply};
use tandem::path::Facts;
use tandem::priority::Precedence;
use tandem::role_name::RoleName;
use tandem::session::mux::{Multiplexed, MuxSession};
use tandem::session::{Drain, Serve};
use tandem_http::{MuxConfig, Priority, ResponseHead, Role};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::h3_carriers::in_virtual_time;
use crate::many_streams::memory::{Connection, MemoryStreams};

/// A control stream with empty SETTINGS.
const CONTROL: [u8; 3] = [0x00, 0x04, 0x00];
/// HEADERS of a GET request for `https://a/` (RFC 9204 appendix A).
const REQUEST: [u8; 10] = [0x01, 0x08, 0, 0, 0xd1, 0xd7, 0xc1, 0x50, 0x01, b'a'];
/// The bytes of each response.
const SIZE: usize = 512 << 10;

/// The way in which a carrier limits the bytes that it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// It has no room while bytes are unsent, and takes each write whole.
    Room,
    /// It always has room, and its streams take no more than a number of bytes together.
    Writes,
}

/// The bytes that a carrier takes now, and those of each stream that it has taken, in order.
struct Path {
    limit: Limit,
    free: Cell<usize>,
    /// True while the streams that the carrier opens take nothing.
    blocks_own: Cell<bool>,
    /// The stream whose own window is full.
    full: Cell<Option<u64>>,
    taken: RefCell<Vec<(u64, usize)>>,
    wakers: RefCell<Vec<Waker>>,
}

impl Path {
    fn wait<T>(&self, cx: &Context<'_>) -> Poll<T> {
        self.wakers.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }

    /// Lets the carrier take more.
    fn give(&self, bytes: usize) {
        self.free.set(bytes);
        self.wakers.take().into_iter().for_each(Waker::wake);
    }
}

/// A stream whose bytes leave at once.
struct Sending {
    id: u64,
    /// True if the carrier has opened the stream.
    is_own: bool,
    path: Rc<Path>,
    half: Box<dyn SendStream>,
}

impl AsyncWrite for Sending {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let is_full = self.path.full.get() == Some(self.id);
        if is_full || (self.is_own && self.path.blocks_own.get()) {
            return self.path.wait(cx);
        }
        let free = self.path.free.get();
        let count = match self.path.limit {
            _ if self.is_own => buf.len(),
            Limit::Room => buf.len(),
            Limit::Writes if free == 0 => return self.path.wait(cx),
            Limit::Writes => buf.len().min(free),
        };
        if !self.is_own {
            self.path.free.set(free.saturating_sub(count));
        }
        self.path.taken.borrow_mut().push((self.id, count));
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl SendStream for Sending {
    fn set_priority(&mut self, _: Priority) {}

    fn reset(&mut self, code: Code) {
        self.half.reset(code);
    }

    fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Option<Code>> {
        self.half.poll_stopped(cx)
    }
}

/// A server's carrier with a narrow path.
struct Narrow {
    streams: MemoryStreams,
    path: Rc<Path>,
}

impl Narrow {
    /// Puts the path before a stream.
    fn narrow(&self, mut stream: CarrierStream, is_own: bool) -> CarrierStream {
        stream.send = stream.send.map(|half| {
            Box::new(Sending {
                id: stream.id,
                is_own,
                path: Rc::clone(&self.path),
                half,
            }) as _
        });
        stream
    }
}

impl Streams for Narrow {
    fn facts(&self) -> &Rc<dyn Facts> {
        self.streams.facts()
    }

    fn poll_open(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
    ) -> Poll<Result<CarrierStream, Error>> {
        let opened = self.streams.poll_open(direction, cx);
        opened.map_ok(|stream| self.narrow(stream, true))
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Option<CarrierStream>, Error>> {
        let accepted = self.streams.poll_accept(cx);
        accepted.map_ok(|stream| stream.map(|stream| self.narrow(stream, false)))
    }

    fn has_ended(&self) -> bool {
        self.streams.has_ended()
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.path.limit == Limit::Room && self.path.free.get() == 0 {
            return self.path.wait(cx);
        }
        Poll::Ready(())
    }

    fn probe(&self) -> bool {
        self.streams.probe()
    }

    fn close(&self, code: Code, reason: &str) {
        self.streams.close(code, reason);
    }
}

async fn send(streams: &MemoryStreams, direction: Direction, bytes: &[u8]) -> CarrierStream {
    let opened = poll_fn(|cx| streams.poll_open(direction, cx)).await;
    let mut stream = opened.expect("a stream");
    let half = stream.send.as_mut().expect("a half");
    half.write_all(bytes).await.expect("room");
    stream
}

/// A response of [`SIZE`] bytes, which the application has at once.
fn response() -> Reply {
    Reply::generate(|mut sink| async move {
        sink.send(Part::Head(ResponseHead::new(200))).await;
        for _ in 0..SIZE / (16 << 10) {
            let data = Bytes::from_static(&[7; 16 << 10]);
            sink.send(Part::Data(data)).await;
        }
        Ok(())
    })
}

/// A server on a narrow path, and its client.
struct Served {
    path: Rc<Path>,
    client: MemoryStreams,
    _control: CarrierStream,
}

impl Served {
    /// Begins a session in which the fifth request is more urgent than others.
    async fn begin(limit: Limit, blocks_own: bool) -> Self {
        let (near, far) = Connection::pair();
        let path = Rc::new(Path {
            limit,
            free: Cell::new(0),
            blocks_own: Cell::new(blocks_own),
            full: Cell::new(None),
            taken: RefCell::default(),
            wakers: RefCell::default(),
        });
        let server = Narrow {
            streams: MemoryStreams::with(near, u64::MAX, Rc::default()),
            path: Rc::clone(&path),
        };
        let client = MemoryStreams::with(far, u64::MAX, Rc::default());
        let asked = Cell::new(0);
        let stage = Rc::new(move |exchange: Exchange| {
            let is_last = asked.replace(asked.get() + 1) == 4;
            let urgency = Priority(if is_last { 1 } else { 5 });
            exchange.priority.set(Precedence::request(urgency));
            response()
        });
        let session = MuxSession::new(
            Multiplexed::H3,
            MuxConfig::new(Role::Client),
            RoleName::Gateway,
        );
        let carrier = Carrier::Streams(Rc::new(server));
        tokio::task::spawn_local(session.serve(carrier, Peer::none(), stage, Drain::new()));
        let _control = send(&client, Direction::Unidirectional, &CONTROL).await;
        Self {
            path,
            client,
            _control,
        }
    }

    /// Sends a request. Its response has begun when this returns.
    async fn ask(&self) -> CarrierStream {
        let mut stream = send(&self.client, Direction::Bidirectional, &REQUEST).await;
        let half = stream.send.as_mut().expect("a half");
        half.shutdown().await.expect("an end");
        tokio::time::sleep(Duration::from_millis(1)).await;
        stream
    }

    /// Lets the carrier take more, and the session write it.
    async fn give(&self, bytes: usize) {
        self.path.give(bytes);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Four responses are under way when a more urgent one begins. The carrier takes `bytes` in each
/// millisecond. Returns the number of the urgent stream, and the writes from its first one on: the
/// number of the stream and the bytes.
async fn taken(limit: Limit, bytes: usize) -> (u64, Vec<(u64, usize)>) {
    let session = Served::begin(limit, false).await;
    let mut streams = Vec::new();
    for number in 0..5 {
        streams.push(session.ask().await);
        if number == 3 {
            session.give(bytes).await;
        }
    }
    let urgent = streams[4].id;
    session.path.taken.take();
    for _ in 0..5 * SIZE / bytes + 5 {
        session.give(bytes).await;
    }
    let mut taken = session.path.taken.take();
    let begin = taken.iter().position(|(id, _)| *id == urgent);
    taken.drain(..begin.expect("an urgent response"));
    (urgent, taken)
}

#[test]
fn urgent_response_writes_before_others_until_its_end() {
    for limit in [Limit::Room, Limit::Writes] {
        // A session holds at most 64 KiB of a response.
        for bytes in [5_000, 16 << 10, 200_000] {
            in_virtual_time(async {
                let (urgent, taken) = taken(limit, bytes).await;
                let count = |is_urgent: bool, taken: &[(u64, usize)]| -> usize {
                    let of = taken.iter().filter(|(id, _)| (*id == urgent) == is_urgent);
                    of.map(|(_, count)| count).sum()
                };
                let last = taken.iter().rposition(|(id, _)| *id == urgent);
                let until_its_end = &taken[..=last.expect("an urgent response")];
                assert!(count(true, until_its_end) > SIZE);
                assert_eq!(count(false, until_its_end), 0, "{limit:?} {bytes}");
                assert!(count(false, &taken) > SIZE, "the others go on");
            });
        }
    }
}

/// Others depend on the streams of the session itself, such as those of QPACK.
#[test]
fn blocked_stream_of_the_session_needs_no_room() {
    in_virtual_time(async {
        let session = Served::begin(Limit::Room, true).await;
        let _stream = session.ask().await;
        session.path.blocks_own.set(false);
        session.give(0).await;
        let taken = session.path.taken.take();
        // Only SETTINGS leave: the response has no room.
        let is_own = |id: &u64| id & 2 != 0;
        assert!(
            !taken.is_empty() && taken.iter().all(|(id, _)| is_own(id)),
            "{taken:?}"
        );
    });
}

/// An urgent stream that cannot write keeps no other from writing.
#[test]
fn others_write_while_an_urgent_stream_cannot() {
    for limit in [Limit::Room, Limit::Writes] {
        in_virtual_time(async {
            let session = Served::begin(limit, false).await;
            let mut streams = Vec::new();
            for _ in 0..5 {
                streams.push(session.ask().await);
            }
            let urgent = streams[4].id;
            let wrote = async || {
                session.path.taken.take();
                for _ in 0..4 {
                    session.give(16 << 10).await;
                }
                let taken = session.path.taken.take();
                let urgent = taken.iter().filter(|(id, _)| *id == urgent).count();
                [urgent > 0, taken.len() > urgent]
            };
            assert!(wrote().await[0], "the urgent one writes");
            assert_eq!(wrote().await, [true, false], "{limit:?}");
            session.path.full.set(Some(urgent));
            assert_eq!(wrote().await, [false, true], "{limit:?}: full");
            session.path.full.set(None);
            assert_eq!(wrote().await, [true, false], "{limit:?}: not full");
            let receive = streams[4].receive.as_mut().expect("a half");
            receive.stop(Code(0x10c));
            session.give(0).await;
            assert_eq!(wrote().await, [false, true], "{limit:?}: stopped");
        });
    }
}
