//! Sessions of HTTP/3 over carriers that are slow or full, in virtual time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tandem::carrier::{Carrier, CarrierStream, Code, Direction, Streams};
use tandem::error::{Error, Kind, Retry, Side};
use tandem::exchange::{Exchange, Part, Peer, Reply};
use tandem::path::Facts;
use tandem::role_name::RoleName;
use tandem::session::mux::{Multiplexed, MuxSession};
use tandem::session::{Connect, Connected, Drain, Serve};
use tandem_http::{Method, MuxConfig, RequestHead, ResponseHead, Role, Scheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::many_streams::memory::{Connection, MemoryFacts, MemoryStreams};

/// A control stream with empty SETTINGS.
pub(crate) const CONTROL: [u8; 3] = [0x00, 0x04, 0x00];
/// HEADERS of a GET request for `https://a/` (RFC 9204 appendix A).
pub(crate) const REQUEST: [u8; 10] = [0x01, 0x08, 0, 0, 0xd1, 0xd7, 0xc1, 0x50, 0x01, b'a'];

pub(crate) fn session() -> MuxSession {
    MuxSession::new(
        Multiplexed::H3,
        MuxConfig::new(Role::Client),
        RoleName::Gateway,
    )
}

/// Runs a scene in virtual time.
pub(crate) fn in_virtual_time(scene: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, scene);
}

pub(crate) async fn open(
    streams: &MemoryStreams,
    direction: Direction,
    bytes: &[u8],
) -> CarrierStream {
    let opened = poll_fn(|cx| streams.poll_open(direction, cx)).await;
    let mut stream = opened.unwrap();
    let send = stream.send.as_mut().unwrap();
    send.write_all(bytes).await.unwrap();
    stream
}

/// A server that drains while its client has not received the response.
struct Draining {
    client: MemoryStreams,
    response: CarrierStream,
    _control: CarrierStream,
    facts: Rc<MemoryFacts>,
}

async fn draining() -> Draining {
    let (near, far) = Connection::pair();
    let facts = Rc::<MemoryFacts>::default();
    let server = MemoryStreams::with(near, u64::MAX, Rc::clone(&facts));
    let client = MemoryStreams::with(far, u64::MAX, Rc::default());
    let stage = Rc::new(|_: Exchange| {
        Reply::generate(|mut sink| async move {
            sink.send(Part::Head(ResponseHead::new(200))).await;
            sink.send(Part::Data(Bytes::from_static(&[7; 10_000])))
                .await;
            Ok(())
        })
    });
    let drain = Drain::new();
    let carrier = Carrier::Streams(Rc::new(server));
    let serving = session().serve(carrier, Peer::none(), stage, drain.clone());
    tokio::task::spawn_local(serving);
    let control = open(&client, Direction::Unidirectional, &CONTROL).await;
    let mut response = open(&client, Direction::Bidirectional, &REQUEST).await;
    response.send.as_mut().unwrap().shutdown().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    drain.begin();
    Draining {
        client,
        response,
        _control: control,
        facts,
    }
}

#[test]
fn drained_server_waits_while_data_is_acknowledged() {
    in_virtual_time(async {
        let mut scene = draining().await;
        for number in 1..20 {
            scene.facts.acknowledgements.set(number);
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(!scene.client.has_ended(), "closed after {} s", 2 * number);
        }
        let mut bytes = Vec::new();
        let receive = scene.response.receive.as_mut().unwrap();
        receive.read_to_end(&mut bytes).await.unwrap();
        assert!(bytes.ends_with(&[7; 10_000]));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(scene.client.has_ended(), "everything has arrived");
    });
}

#[test]
fn drained_server_leaves_a_client_that_is_gone() {
    in_virtual_time(async {
        let scene = draining().await;
        scene.facts.acknowledgements.set(1);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(scene.client.has_ended());
    });
}

/// A carrier whose handshake fails while the session opens a stream.
struct Failing {
    streams: MemoryStreams,
    failed: Cell<bool>,
}

impl Streams for Failing {
    fn facts(&self) -> &Rc<dyn Facts> {
        self.streams.facts()
    }

    fn poll_open(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
    ) -> Poll<Result<CarrierStream, Error>> {
        if direction == Direction::Unidirectional {
            return self.streams.poll_open(direction, cx);
        }
        self.failed.set(true);
        Poll::Ready(Err(rejected()))
    }

    fn poll_accept(&self, _: &mut Context<'_>) -> Poll<Result<Option<CarrierStream>, Error>> {
        match self.failed.get() {
            true => Poll::Ready(Ok(None)),
            false => Poll::Pending,
        }
    }

    fn has_ended(&self) -> bool {
        self.failed.get()
    }

    fn is_confirmed(&self) -> bool {
        false
    }

    fn poll_confirmed(&self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.failed.get() {
            true => Poll::Ready(Err(rejected())),
            false => Poll::Pending,
        }
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.streams.poll_room(cx)
    }

    fn probe(&self) -> bool {
        self.streams.probe()
    }

    fn close(&self, code: Code, reason: &str) {
        self.streams.close(code, reason);
    }
}

/// A server's carrier, whose handshake ends when the test says so.
struct Early {
    streams: MemoryStreams,
    confirmed: Rc<Cell<bool>>,
}

impl Streams for Early {
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

    fn is_confirmed(&self) -> bool {
        self.confirmed.get()
    }

    fn poll_confirmed(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.confirmed.get() {
            return Poll::Ready(Ok(()));
        }
        // Virtual time passes between the looks.
        let waker = cx.waker().clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            waker.wake();
        });
        Poll::Pending
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.streams.poll_room(cx)
    }

    fn probe(&self) -> bool {
        self.streams.probe()
    }

    fn close(&self, code: Code, reason: &str) {
        self.streams.close(code, reason);
    }
}

/// HEADERS of a POST request, and of a GET request with `early-data: 1`.
pub(crate) const POST: [u8; 10] = [0x01, 0x08, 0, 0, 0xd4, 0xd7, 0xc1, 0x50, 0x01, b'a'];
const MARKED: [u8; 12] = [
    0x01, 0x0a, 0, 0, 0xd1, 0xd7, 0xc1, 0x50, 0x01, b'a', 0xff, 0x17,
];

#[test]
fn server_acts_on_safe_early_requests_only() {
    in_virtual_time(async {
        let (near, far) = Connection::pair();
        let confirmed = Rc::<Cell<bool>>::default();
        let server = Early {
            streams: MemoryStreams::with(near, u64::MAX, Rc::default()),
            confirmed: Rc::clone(&confirmed),
        };
        let client = MemoryStreams::with(far, u64::MAX, Rc::default());
        let seen = Rc::<RefCell<Vec<(Method, bool)>>>::default();
        let noted = Rc::clone(&seen);
        let stage = Rc::new(move |exchange: Exchange| {
            let early = exchange.request.fields.contains("early-data");
            noted
                .borrow_mut()
                .push((exchange.request.method.clone(), early));
            let status = if early { 425 } else { 200 };
            Reply::ready(ResponseHead::new(status), Bytes::new())
        });
        let carrier = Carrier::Streams(Rc::new(server));
        let serving = session().serve(carrier, Peer::none(), stage, Drain::new());
        tokio::task::spawn_local(serving);
        let _control = open(&client, Direction::Unidirectional, &CONTROL).await;
        let mut streams = Vec::new();
        for request in [&REQUEST[..], &POST, &MARKED] {
            let mut stream = open(&client, Direction::Bidirectional, request).await;
            stream.send.as_mut().unwrap().shutdown().await.unwrap();
            streams.push(stream);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Only the sender of a marked request may repeat it.
        let before = [(Method::Get, true), (Method::Get, true)];
        assert_eq!(seen.borrow()[..], before);
        confirmed.set(true);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut after = seen.borrow()[2..].to_vec();
        after.sort_by_key(|(method, _)| *method == Method::Post);
        assert_eq!(after, [(Method::Get, false), (Method::Post, false)]);
    });
}

fn rejected() -> Error {
    Error::new(Kind::Reset, Side::Peer, "rejected").with_retry(Retry::Safe)
}

/// Sends a request, and returns its error.
fn refused(
    client: &Rc<dyn Connected>,
    method: Method,
) -> tokio::task::JoinHandle<Result<(), Error>> {
    let client = Rc::clone(client);
    tokio::task::spawn_local(async move {
        let mut head = RequestHead::get(Scheme::Http, "site.example", "/");
        head.method = method;
        let mut exchange = Exchange::internal(head);
        let mut reply =
            Reply::generate(|mut sink| async move { client.run(&mut exchange, &mut sink).await });
        reply.part().await.expect("a part").map(drop)
    })
}

#[test]
fn failed_handshake_lets_waiting_requests_repeat() {
    in_virtual_time(async {
        let (near, _far) = Connection::pair();
        let carrier: Rc<dyn Streams> = Rc::new(Failing {
            streams: MemoryStreams::with(near, u64::MAX, Rc::default()),
            failed: Cell::new(false),
        });
        let dialled = Box::pin(std::future::ready(Ok(Carrier::Streams(carrier))));
        let client = session().connect(dialled);
        let requests = [Method::Post, Method::Get].map(|method| refused(&client, method));
        for request in requests {
            let done = tokio::time::timeout(Duration::from_secs(60), request).await;
            let error = done.expect("a limit").unwrap().unwrap_err();
            assert_eq!(error.retry, Retry::Safe, "{error:?}");
        }
    });
}

#[test]
fn client_refuses_requests_that_get_no_stream() {
    in_virtual_time(async {
        let (near, _far) = Connection::pair();
        let carrier: Rc<dyn Streams> = Rc::new(MemoryStreams::with(near, 0, Rc::default()));
        let dialled = Box::pin(std::future::ready(Ok(Carrier::Streams(carrier))));
        let client = session().connect(dialled);
        let requests = [(); 3].map(|()| refused(&client, Method::Get));
        for request in requests {
            let done = tokio::time::timeout(Duration::from_secs(60), request).await;
            let error: Error = done.expect("a limit").unwrap().unwrap_err();
            assert_eq!((error.kind, error.retry), (Kind::Full, Retry::Safe));
        }
        assert_eq!(client.active(), 0);
    });
}
