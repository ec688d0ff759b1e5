//! Tests of the stage with scripted parts: the limits, and the ways on which a tunnel is spliced.

use std::cell::RefCell;
use std::path::PathBuf;
use std::task::{Context, Poll, Waker};

use tandem_http::RequestHead;

use super::*;
use crate::exchange::{Body, Chunk, Chunks};
use crate::session::doubles::Unserved;
use crate::stage::doubles::OneSession;
use crate::transport::tls::authority::create;

/// Origins that cannot be reached. They note the sessions that have ended.
#[derive(Default)]
struct Unreachable {
    ended: Cell<usize>,
    forgotten: Cell<usize>,
}

impl VerifiedOrigins for Unreachable {
    fn connect<'a>(
        &'a self,
        _: &'a OpenedConnection,
        _: bool,
    ) -> LocalBoxFuture<'a, Result<bool, Error>> {
        let error = Error::new(Kind::Unreachable, Side::Origin, "no route");
        Box::pin(std::future::ready(Err(error)))
    }

    fn forget(&self, _: &OpenedConnection) {
        self.forgotten.set(self.forgotten.get() + 1);
    }

    fn end(&self, _: u64) {
        self.ended.set(self.ended.get() + 1);
    }
}

/// The stage, the origins, and the bytes of the tunnels that were passed on.
struct Scene {
    stage: OpenedHosts,
    origins: Rc<Unreachable>,
    passed: Rc<RefCell<Vec<Body>>>,
    directory: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Self {
        let name = format!("tandem-opening-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let opened = ["a.test".to_owned()];
        create(&directory, &opened, SystemTime::now()).expect("an authority");
        let (origins, passed) = (Rc::new(Unreachable::default()), Rc::default());
        let bodies: Rc<RefCell<Vec<Body>>> = Rc::clone(&passed);
        let way = Rc::new(OpenedStages {
            origins: Rc::clone(&origins) as _,
            inside: Rc::new(|_| Reply::ready(ResponseHead::new(200), Bytes::new())),
        });
        let stage = OpenedHosts::new(Opening {
            way_of: Box::new(move |host, port| {
                let is_listed = host.ends_with("a.test") && port == 443;
                is_listed.then(|| Rc::clone(&way))
            }),
            leaves: Leaves::watch(&directory, &Default::default()).expect("an authority"),
            h2: Rc::new(Unserved),
            http1: Rc::new(Unserved),
            pools: Rc::new(OneSession {
                is_live: Rc::new(Cell::new(true)),
                is_awake: Rc::new(Cell::new(true)),
                ..OneSession::default()
            }),
            handshake: Duration::from_secs(30),
            numbers: SessionNumbers::default(),
            proxies: Rc::default(),
            drain: Drain::new(),
            next: Rc::new(move |exchange: Exchange| {
                bodies.borrow_mut().push(exchange.body);
                Reply::ready(ResponseHead::new(200), Bytes::from_static(b"far end"))
            }),
        });
        Self {
            stage,
            origins,
            passed,
            directory,
        }
    }

    fn call(&self, authority: &str, body: impl Chunks + 'static) -> Reply {
        self.stage.call(Exchange {
            body: Body::new(body, None),
            ..Exchange::internal(RequestHead::connect(authority))
        })
    }

    fn passed(&self) -> usize {
        self.passed.borrow().len()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A body that yields a piece, and nothing after it.
struct Piece(Option<Bytes>);

impl Chunks for Piece {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        match self.0.take() {
            Some(data) => Poll::Ready(Some(Ok(Chunk::Data(data)))),
            None => Poll::Pending,
        }
    }
}

fn first_bytes(body: &mut Body) -> Option<Bytes> {
    let mut context = Context::from_waker(Waker::noop());
    match body.poll_chunk(&mut context) {
        Poll::Ready(Some(Ok(Chunk::Data(data)))) => Some(data),
        _ => None,
    }
}

/// Returns the data of a reply.
async fn data(reply: &mut Reply) -> Bytes {
    while let Some(part) = reply.part().await {
        if let Part::Data(data) = part.expect("no failure") {
            return data;
        }
    }
    Bytes::new()
}

#[tokio::test]
async fn tunnels_to_other_hosts_pass_at_once() {
    let scene = Scene::new("others");
    for authority in ["b.test:443", "a.test:8443", "a.test"] {
        drop(scene.call(authority, Piece(None)));
    }
    assert_eq!(scene.passed(), 3);
    let plain = RequestHead::get(tandem_http::Scheme::Http, "a.test:443", "/");
    drop(scene.stage.call(Exchange::internal(plain)));
    assert_eq!(scene.passed(), 4);
    // The authority does not cover it.
    drop(scene.call("xa.test:443", Piece(None)));
    assert_eq!((scene.passed(), scene.origins.ended.get()), (5, 0));
}

#[tokio::test]
async fn connections_beyond_the_limit_pass() {
    let scene = Scene::new("limit");
    let mut open: Vec<_> = (0..MAX_OPEN)
        .map(|_| scene.call("a.test:443", Piece(None)))
        .collect();
    assert_eq!(scene.passed(), 0);
    drop(scene.call("a.test:443", Piece(None)));
    assert_eq!(scene.passed(), 1);
    open.pop();
    assert_eq!(scene.origins.ended.get(), 1);
    open.push(scene.call("a.test:443", Piece(None)));
    assert_eq!(scene.passed(), 1, "a place was free");
}

#[tokio::test(start_paused = true)]
async fn silent_tunnel_is_spliced_in_time() {
    let scene = Scene::new("silent");
    let mut reply = scene.call("a.test:443", Piece(None));
    assert_eq!(data(&mut reply).await, "far end");
    assert_eq!((scene.passed(), scene.origins.ended.get()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn spliced_tunnel_begins_with_the_first_bytes() {
    let scene = Scene::new("bytes");
    // The second piece is the beginning of a handshake that never ends.
    for first in [&b"SSH-2.0-x"[..], b"\x16\x03\x01\x01\x00\x01"] {
        let mut reply = scene.call("a.test:443", Piece(Some(Bytes::from_static(first))));
        assert_eq!(data(&mut reply).await, "far end");
        let mut body = scene.passed.borrow_mut().pop().expect("a tunnel");
        assert_eq!(first_bytes(&mut body).as_deref(), Some(first));
    }
}

/// The second connection does not wait for the origin.
#[tokio::test(start_paused = true)]
async fn unreachable_origin_is_spliced_from_then_on() {
    let scene = Scene::new("origin");
    let hello = hello::tests::hello("a.test", &[b"h2", b"http/1.1"]);
    for ended in [1, 1] {
        let piece = Piece(Some(Bytes::from(hello.clone())));
        let mut reply = scene.call("a.test:443", piece);
        assert_eq!(data(&mut reply).await, "far end");
        assert_eq!(scene.origins.ended.get(), ended);
    }
    let piece = Piece(Some(Bytes::from(hello)));
    drop(scene.call("www.a.test:443", piece));
    assert_eq!(scene.origins.ended.get(), 2, "another host has a place");
}

/// A gateway that refuses an exchange gets the tunnels of the next connections.
#[test]
fn refused_exchange_splices_later_connections() {
    let scene = Scene::new("refused");
    let (state, origins) = (&scene.stage.0, &*scene.origins);
    let connection = |host: &str| OpenedConnection {
        session: 1,
        isolation: Isolation::none(),
        host: host.to_owned(),
        port: 443,
        proxy: None,
    };
    for (forgotten, kind, side, is_spliced) in [
        (1, Kind::Unreachable, Side::Origin, false),
        (2, Kind::Forbidden, Side::Peer, true),
        (3, Kind::Tls, Side::Origin, true),
    ] {
        let host = format!("{forgotten}.a.test");
        let error = Error::new(kind, side, "refused");
        let ends = state.exchange_failed(origins, &connection(&host), &error);
        assert_eq!((ends, origins.forgotten.get()), (is_spliced, forgotten));
        let passed = scene.passed();
        let _reply = scene.call(&format!("{host}:443"), Piece(None));
        assert_eq!(scene.passed() > passed, is_spliced, "{kind:?}");
    }
}

/// A program that offers one protocol decides nothing for browsers.
#[tokio::test(start_paused = true)]
async fn one_protocol_is_no_reason_to_remember_a_host() {
    let scene = Scene::new("protocol");
    let hello = hello::tests::hello("a.test", &[b"http/1.1"]);
    for ended in [1, 2] {
        let piece = Piece(Some(Bytes::from(hello.clone())));
        let mut reply = scene.call("a.test:443", piece);
        assert_eq!(data(&mut reply).await, "far end");
        assert_eq!(scene.origins.ended.get(), ended);
    }
}
