//! Unread streams of HTTP/3, over a carrier with one window for all, in virtual time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tandem::carrier::{Carrier, CarrierStream, Code, Direction, Streams};
use tandem::error::{Error, Kind, Side};
use tandem::exchange::{Body, Chunk, Exchange, Part, Peer, Reply};
use tandem::metrics::METRICS;
use tandem::path::Facts;
use tandem::session::mux::MuxSession;
use tandem::session::{Connect, Serve};
use tandem_http::{RequestHead, ResponseHead, Scheme};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep};

use crate::h3_carriers::{CONTROL, POST, REQUEST, in_virtual_time, open, session};
use crate::many_streams::memory::{Connection, MemoryStreams};

/// The time without a read after which a stream may be given up, and the time between two looks.
const IDLE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_secs(1);
/// The bytes of a stream that the session holds. A stream of the carrier holds 32 KiB.
const HELD: u32 = 16 << 10;
/// HEADERS of a response with status 200.
const RESPONSE: [u8; 5] = [0x01, 0x03, 0, 0, 0xd9];
/// The code of a stream that is given up (H3_EXCESSIVE_LOAD).
const GIVEN_UP: Code = Code(0x107);

/// A carrier whose memory for unread data may be full.
struct Shared {
    streams: MemoryStreams,
    memory: Rc<Memory>,
}

/// The state of the memory, and the numbers of unread streams that the session has told.
#[derive(Default)]
struct Memory {
    is_full: Cell<bool>,
    told: RefCell<Vec<usize>>,
}

impl Streams for Shared {
    fn facts(&self) -> &Rc<dyn Facts> {
        self.streams.facts()
    }

    fn poll_open(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
    ) -> Poll<Result<CarrierStream, Error>> {
        self.streams.poll_open(direction, cx)
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Option<CarrierStream>, Error>> {
        self.streams.poll_accept(cx)
    }

    fn has_ended(&self) -> bool {
        self.streams.has_ended()
    }

    fn hold_unread(&self, streams: usize) -> bool {
        self.memory.told.borrow_mut().push(streams);
        self.memory.is_full.get()
    }

    fn probe(&self) -> bool {
        self.streams.probe()
    }

    fn close(&self, code: Code, reason: &str) {
        self.streams.close(code, reason);
    }
}

fn small_session() -> MuxSession {
    let mut session = session();
    session.config.stream_window = HELD;
    session
}

/// Returns both ends of a connection. The first one is the carrier of a session.
fn ends() -> (Carrier, Rc<MemoryStreams>, Rc<Memory>) {
    let (near, far) = Connection::pair();
    let memory = Rc::<Memory>::default();
    let carrier = Carrier::Streams(Rc::new(Shared {
        streams: MemoryStreams::with(near, u64::MAX, Rc::default()),
        memory: Rc::clone(&memory),
    }));
    (carrier, MemoryStreams::new(far), memory)
}

/// Returns a DATA frame.
fn data(length: u16) -> Vec<u8> {
    let mut frame = vec![0];
    frame.extend_from_slice(&(length | 0x4000).to_be_bytes());
    frame.resize(frame.len() + usize::from(length), 7);
    frame
}

/// Serves uploads by `stage`, and returns the client of them.
async fn serve(stage: impl Fn(Exchange) -> Reply + 'static) -> (Uploads, Rc<Memory>) {
    serve_by(small_session(), stage).await
}

async fn serve_by(
    session: MuxSession,
    stage: impl Fn(Exchange) -> Reply + 'static,
) -> (Uploads, Rc<Memory>) {
    let (carrier, client, memory) = ends();
    let serving = session.serve(carrier, Peer::none(), Rc::new(stage), Default::default());
    tokio::task::spawn_local(serving);
    let control = open(&client, Direction::Unidirectional, &CONTROL).await;
    let uploads = Uploads {
        client,
        _control: control,
    };
    (uploads, memory)
}

struct Uploads {
    client: Rc<MemoryStreams>,
    _control: CarrierStream,
}

/// An upload, and the code with which it was stopped.
type Upload = Rc<Cell<Option<Code>>>;

impl Uploads {
    /// Begins an upload that sends as much as the other end takes.
    async fn begin(&self) -> Upload {
        let stream = open(&self.client, Direction::Bidirectional, &POST).await;
        let stopped = Upload::default();
        let noted = Rc::clone(&stopped);
        tokio::task::spawn_local(async move {
            // The receiving half stays open.
            let mut stream = stream;
            let send = stream.send.as_mut().unwrap();
            let frame = data(4 << 10);
            while send.write_all(&frame).await.is_ok() {}
            noted.set(poll_fn(|cx| send.poll_stopped(cx)).await);
        });
        stopped
    }
}

/// Returns a reply that never reads the body of its request.
fn unread(exchange: Exchange) -> Reply {
    Reply::generate(|_| async move {
        let _held = exchange;
        std::future::pending().await
    })
}

async fn next(body: &mut Body) -> Option<usize> {
    match poll_fn(|cx| body.poll_chunk(cx)).await? {
        Ok(Chunk::Data(data)) => Some(data.len()),
        other => panic!("{other:?}"),
    }
}

/// Returns a reply that reads a piece of the request's body every `pause`.
fn slowly(pause: Duration, pieces: Rc<Cell<usize>>) -> impl Fn(Exchange) -> Reply {
    move |exchange| {
        let pieces = Rc::clone(&pieces);
        Reply::generate(move |_| async move {
            let mut body = exchange.body.share();
            while next(&mut body).await.is_some() {
                pieces.set(pieces.get() + 1);
                sleep(pause).await;
            }
            Ok(())
        })
    }
}

#[test]
fn longest_unread_stream_is_given_up_first() {
    in_virtual_time(async {
        let begin = Instant::now();
        let (uploads, memory) = serve(unread).await;
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(uploads.begin().await);
            sleep(LOOK * 10).await;
        }
        let given_up = || all.iter().map(|it| it.get()).collect::<Vec<_>>();
        // Without a full carrier nothing is given up, however long it waits.
        tokio::time::sleep_until(begin + IDLE * 9).await;
        assert_eq!(given_up(), [None; 3]);
        assert_eq!(memory.told.borrow().last(), Some(&3));
        let before = METRICS.exchanges_given_up.value();
        memory.is_full.set(true);
        sleep(LOOK).await;
        memory.is_full.set(false);
        sleep(LOOK * 5).await;
        assert_eq!(given_up(), [Some(GIVEN_UP), None, None]);
        assert_eq!(memory.told.borrow().last(), Some(&2));
        assert!(METRICS.exchanges_given_up.value() > before);
        memory.is_full.set(true);
        sleep(LOOK * 2).await;
        assert_eq!(given_up(), [Some(GIVEN_UP), Some(GIVEN_UP), Some(GIVEN_UP)]);
        assert_eq!(memory.told.borrow().last(), Some(&0));
    });
}

#[test]
fn full_carrier_waits_until_a_stream_is_idle() {
    in_virtual_time(async {
        let (uploads, memory) = serve(unread).await;
        memory.is_full.set(true);
        let upload = uploads.begin().await;
        sleep(IDLE - LOOK).await;
        assert_eq!(upload.get(), None);
        sleep(LOOK * 3).await;
        assert_eq!(upload.get(), Some(GIVEN_UP));
    });
}

#[test]
fn slow_reader_is_never_given_up() {
    in_virtual_time(async {
        let pieces = Rc::<Cell<usize>>::default();
        let (uploads, memory) = serve(slowly(IDLE - LOOK * 10, Rc::clone(&pieces))).await;
        memory.is_full.set(true);
        let upload = uploads.begin().await;
        sleep(IDLE * 40).await;
        assert_eq!(upload.get(), None);
        assert!(pieces.get() > 40 && !memory.told.borrow().is_empty());
    });
}

#[test]
fn session_looks_only_while_streams_are_unread() {
    in_virtual_time(async {
        let pieces = Rc::<Cell<usize>>::default();
        let (uploads, memory) = serve(slowly(Duration::from_millis(1), Rc::clone(&pieces))).await;
        memory.is_full.set(true);
        let mut upload = open(&uploads.client, Direction::Bidirectional, &POST).await;
        let send = upload.send.as_mut().unwrap();
        for _ in 0..100 {
            send.write_all(&data(4 << 10)).await.unwrap();
        }
        send.shutdown().await.unwrap();
        sleep(IDLE * 3).await;
        assert_eq!(pieces.get(), 100);
        let told = memory.told.borrow();
        assert!(told.last().is_none_or(|last| *last == 0), "{told:?}");
        assert!(told.len() < 10, "{told:?}");
    });
}

#[test]
fn session_without_memory_gives_an_unread_stream_up() {
    in_virtual_time(async {
        let mut session = small_session();
        session.config.receive_budget = 3 * HELD as usize;
        let (number, pieces) = (Cell::new(0), Rc::<Cell<usize>>::default());
        let reads = slowly(LOOK, Rc::clone(&pieces));
        let (uploads, memory) = serve_by(session, move |exchange| {
            match number.replace(number.get() + 1) {
                0..2 => unread(exchange),
                _ => reads(exchange),
            }
        })
        .await;
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(uploads.begin().await);
            sleep(LOOK / 10).await;
        }
        sleep(IDLE - LOOK * 2).await;
        assert!(all.iter().all(|it| it.get().is_none()) && pieces.get() == 0);
        sleep(LOOK * 9).await;
        assert!(all[0].get() == Some(GIVEN_UP) && pieces.get() > 0);
        sleep(IDLE * 3).await;
        assert_eq!(all[2].get(), None, "it is read");
        let told = memory.told.borrow();
        assert!(told.iter().all(|told| *told <= 2), "{told:?}");
    });
}

/// A response that waits for the client is not one that waits for its reader here.
#[test]
fn stream_that_waits_to_send_is_not_unread() {
    in_virtual_time(async {
        let (uploads, memory) = serve(|_| {
            Reply::generate(|mut sink| async move {
                sink.send(Part::Head(ResponseHead::new(200))).await;
                for _ in 0..1000 {
                    let data = Bytes::from_static(&[7; 16 << 10]);
                    sink.send(Part::Data(data)).await;
                }
                Ok(())
            })
        })
        .await;
        memory.is_full.set(true);
        let mut download = open(&uploads.client, Direction::Bidirectional, &REQUEST).await;
        let send = download.send.as_mut().unwrap();
        send.shutdown().await.unwrap();
        sleep(IDLE * 3).await;
        assert!(memory.told.borrow().is_empty());
        assert!(!uploads.client.has_ended());
    });
}

#[test]
fn unread_response_ends_with_an_error() {
    in_virtual_time(async {
        let (carrier, server, memory) = ends();
        let client = small_session().connect(Box::pin(std::future::ready(Ok(carrier))));
        let mut reply = Reply::generate(|mut sink| async move {
            let head = RequestHead::get(Scheme::Http, "site.example", "/");
            client.run(&mut Exchange::internal(head), &mut sink).await
        });
        tokio::task::spawn_local(async move {
            let mut streams = Vec::new();
            while let Ok(Some(mut stream)) = poll_fn(|cx| server.poll_accept(cx)).await {
                if let Some(mut send) = stream.send.take() {
                    send.write_all(&RESPONSE).await.unwrap();
                    while send.write_all(&data(4 << 10)).await.is_ok() {}
                }
                streams.push(stream);
            }
        });
        assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
        memory.is_full.set(true);
        sleep(IDLE + LOOK * 2).await;
        let error = loop {
            match reply.part().await.expect("no regular end") {
                Ok(Part::Data(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind, error.side), (Kind::Timeout, Side::Local));
        assert!(error.detail.contains("not read for two minutes"), "{error}");
    });
}

#[test]
fn body_tells_that_its_end_has_arrived() {
    in_virtual_time(async {
        let bodies = Rc::<RefCell<Vec<Exchange>>>::default();
        let kept = Rc::clone(&bodies);
        let (uploads, _) = serve(move |exchange| {
            let body = exchange.body.share();
            kept.borrow_mut().push(exchange);
            Reply::generate(|_| async move {
                let _held = body;
                std::future::pending().await
            })
        })
        .await;
        let mut upload = open(&uploads.client, Direction::Bidirectional, &POST).await;
        let send = upload.send.as_mut().unwrap();
        send.write_all(&data(1000)).await.unwrap();
        sleep(LOOK).await;
        let mut body = bodies.borrow()[0].body.share();
        assert!(!body.has_arrived());
        send.shutdown().await.unwrap();
        sleep(LOOK).await;
        assert!(body.has_arrived());
        assert_eq!(next(&mut body).await, Some(1000));
        assert_eq!(next(&mut body).await, None);
        assert!(body.has_arrived());
    });
}
