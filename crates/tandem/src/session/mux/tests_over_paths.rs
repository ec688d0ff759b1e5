//! Tests of sessions over paths within the process: the input that is delivered when a peer closes.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tandem_http::{
    ByteMux, Event, MuxConfig, Reason, RequestHead, ResponseHead, Role, Scheme, SendBuf,
};
use tandem_spdy::Version;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::time::timeout;

use super::core::Core;
use super::{Multiplexed, MuxClient, MuxSession};
use crate::carrier::Carrier;
use crate::error::Error;
use crate::exchange::{Body, Chunk, Chunks, Exchange, Part, Peer, Reply};
use crate::path::{BbrState, Facts, KernelBbr, Path};
use crate::session::{Connected, Drain, Serve, SessionEvents};

fn session(protocol: Multiplexed) -> MuxSession {
    MuxSession::new(
        protocol,
        MuxConfig::new(Role::Client),
        crate::role_name::RoleName::Gateway,
    )
}

fn exchange() -> Exchange {
    Exchange::internal(RequestHead::get(Scheme::Http, "site.example", "/"))
}

/// The runtime drops the driver of an open session, and the session ends for its users.
#[test]
fn dropped_driver_ends_its_session() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let local = tokio::task::LocalSet::new();
        let (near, _far) = Path::pair(1 << 20);
        let client = local.run_until(async {
            let dialled = std::future::ready(Ok(Carrier::Bytes(near)));
            let client = MuxClient::connect(&session(Multiplexed::H2), Box::pin(dialled));
            tokio::task::yield_now().await;
            client
        });
        let client = client.await;
        drop(local);
        let error = client.shared.ended.get().expect("an end");
        assert_eq!(error.detail, "the session was dropped");
    });
}

/// The peer responds, sends GOAWAY and closes at once, while the client has more to send. The write
/// fails, but the response is in the path and is delivered.
#[tokio::test(flavor = "current_thread")]
async fn driver_delivers_an_answer_after_a_failed_write() {
    let protocols = [
        Multiplexed::H2,
        Multiplexed::Spdy(Version::V3),
        Multiplexed::Spdy(Version::V31),
    ];
    for (protocol, segments) in protocols.into_iter().flat_map(|p| [(p, 1), (p, 3)]) {
        let local = tokio::task::LocalSet::new();
        let body = local.run_until(body_before_the_close(session(protocol), segments));
        assert_eq!(
            body.await.as_deref(),
            Ok(&b"a short body"[..]),
            "{protocol:?} {segments}"
        );
    }
}

/// Returns the body that a client reads if its peer responds in a number of segments and closes.
async fn body_before_the_close(session: MuxSession, segments: usize) -> Result<Vec<u8>, Error> {
    let (near, mut far) = Path::pair(1 << 20);
    let client = Rc::new(MuxClient::connect(
        &session,
        Box::pin(std::future::ready(Ok(Carrier::Bytes(near)))),
    ));
    let asking = Rc::clone(&client);
    let mut reply =
        Reply::generate(|mut sink| async move { asking.run(&mut exchange(), &mut sink).await });
    let answer = tokio::task::spawn_local(async move {
        let mut body = Vec::new();
        while let Some(part) = reply.part().await {
            if let Part::Data(data) = part? {
                body.extend_from_slice(&data);
            }
        }
        Ok(body)
    });
    let Core::Bytes(peer) = session.new_core(Role::Server) else {
        panic!("a session over one byte stream");
    };
    let bytes = response_and_goaway(&peer, &mut far).await;
    for segment in bytes.chunks(bytes.len().div_ceil(segments)) {
        far.write_all(segment).await.expect("room");
    }
    // The client has not run since then, and its next turn has something to send.
    client.shared.core.borrow_mut().ping(1);
    drop(far);
    answer.await.expect("no panic")
}

/// Returns the bytes with which a server responds to the first request of `path`, and closes.
async fn response_and_goaway(peer: &RefCell<dyn ByteMux>, path: &mut Path) -> Bytes {
    let id = 'asked: loop {
        let mut buffer = [0; 4096];
        let count = path.read(&mut buffer).await.expect("a client");
        let mut peer = peer.borrow_mut();
        peer.handle_input(Instant::now(), &buffer[..count])
            .expect("a session");
        while let Some(event) = peer.poll_event() {
            if let Event::Request { id, .. } = event {
                break 'asked id;
            }
        }
    };
    let mut peer = peer.borrow_mut();
    peer.respond(id, &ResponseHead::new(200), false);
    peer.send_data(id, Bytes::from_static(b"a short body"), true);
    peer.go_away(Reason::NoError);
    let mut out = SendBuf::new();
    while peer.wants_output() {
        peer.poll_output(&mut out, usize::MAX);
    }
    out.copy_to_bytes(out.remaining())
}

/// The path takes no more bytes, and the driver has some to write.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn session_that_is_given_up_fails_its_exchanges() {
    let local = tokio::task::LocalSet::new();
    let ended = local.run_until(async {
        let (near, _far) = Path::pair(10);
        let dialled = std::future::ready(Ok(Carrier::Bytes(near)));
        let client = MuxClient::connect(&session(Multiplexed::H2), Box::pin(dialled));
        let client = Rc::new(client);
        let asking = Rc::clone(&client);
        let mut reply =
            Reply::generate(|mut sink| async move { asking.run(&mut exchange(), &mut sink).await });
        let second = Duration::from_secs(1);
        assert!(timeout(second, reply.part()).await.is_err());
        client.give_up();
        timeout(second, reply.part()).await
    });
    assert!(matches!(ended.await, Ok(Some(Err(_)))));
}

/// Other input may have been on its way when the machine moved.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn session_answers_by_the_reply_to_its_question() {
    for protocol in [Multiplexed::H2, Multiplexed::Spdy(Version::V31)] {
        let local = tokio::task::LocalSet::new();
        let asking = local.run_until(async {
            let session = session(protocol);
            let (near, mut far) = Path::pair(1 << 20);
            let dialled = std::future::ready(Ok(Carrier::Bytes(near)));
            let client = MuxClient::connect(&session, Box::pin(dialled));
            let Core::Bytes(peer) = session.new_core(Role::Server) else {
                panic!("a session over one byte stream");
            };
            peer.borrow_mut().ping(1);
            pass_output(&peer, &mut far).await;
            client.established().await.expect("a session");
            let mut answers = client.answers();
            let second = Duration::from_secs(1);
            assert!(timeout(second, &mut answers).await.is_err());
            peer.borrow_mut().ping(2);
            pass_output(&peer, &mut far).await;
            assert!(timeout(second, &mut answers).await.is_err());
            let mut buffer = [0; 4096];
            let count = far.read(&mut buffer).await.expect("a client");
            let taken = peer
                .borrow_mut()
                .handle_input(Instant::now(), &buffer[..count]);
            taken.expect("a session");
            pass_output(&peer, &mut far).await;
            let answered = timeout(second, &mut answers).await;
            answered.expect("an answer").expect("a session");
        });
        asking.await;
    }
}

/// Writes the output of a core to its path.
async fn pass_output(peer: &RefCell<dyn ByteMux>, path: &mut Path) {
    let mut out = SendBuf::new();
    while peer.borrow().wants_output() {
        peer.borrow_mut().poll_output(&mut out, usize::MAX);
    }
    let bytes = out.copy_to_bytes(out.remaining());
    path.write_all(&bytes).await.expect("room");
}

/// A stream that counts its writes.
struct Counted {
    stream: DuplexStream,
    writes: Rc<Cell<usize>>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writes.set(self.writes.get() + 1);
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A path without facts.
struct NoFacts;

impl Facts for NoFacts {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }
}

/// Returns the first bytes of a client.
fn preface() -> Bytes {
    let Core::Bytes(client) = session(Multiplexed::H2).new_core(Role::Client) else {
        panic!("a session over one byte stream");
    };
    let mut out = SendBuf::new();
    client.borrow_mut().poll_output(&mut out, usize::MAX);
    out.copy_to_bytes(out.remaining())
}

/// Starts a server of HTTP/2 over a path.
fn serve_over(path: Path) {
    let server = MuxSession::new(
        Multiplexed::H2,
        MuxConfig::new(Role::Server),
        crate::role_name::RoleName::Client,
    );
    let stage = Rc::new(|_: Exchange| Reply::ready(ResponseHead::new(204), Bytes::new()));
    let serving = server.serve(Carrier::Bytes(path), Peer::none(), stage, Drain::new());
    tokio::task::spawn_local(serving);
}

/// An acknowledgement of SETTINGS (RFC 9113 section 6.5).
const ACKNOWLEDGEMENT: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];

/// A packet of its own for the acknowledgement would take a tenth of the initial window.
#[tokio::test(flavor = "current_thread")]
async fn server_acknowledges_settings_in_first_write() {
    let local = tokio::task::LocalSet::new();
    let serving = local.run_until(async {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        far.write_all(&preface()).await.expect("room");
        let writes = Rc::new(Cell::new(0));
        let counted = Counted {
            stream: near,
            writes: Rc::clone(&writes),
        };
        serve_over(Path::new(counted, Rc::new(NoFacts)));
        let mut first = [0; 4096];
        let count = far.read(&mut first).await.expect("settings");
        assert_eq!(writes.get(), 1);
        let has = |bytes: &[u8]| bytes.windows(9).any(|frame| frame == ACKNOWLEDGEMENT);
        assert!(has(&first[..count]), "{:?}", &first[..count]);
    });
    serving.await;
}

/// A path over BBR that counts the looks at its state.
#[derive(Default)]
struct OverBbr {
    looks: Cell<usize>,
}

impl Facts for OverBbr {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn is_over_bbr(&self) -> bool {
        true
    }

    fn kernel_bbr(&self) -> Option<&dyn KernelBbr> {
        Some(self)
    }
}

impl KernelBbr for OverBbr {
    fn state(&self) -> Option<BbrState> {
        self.looks.set(self.looks.get() + 1);
        None
    }

    fn restart(&self, _: u64) -> bool {
        false
    }

    fn lift(&self) {}
}

/// The session looks at the kernel's BBR after a write, but not more often than each 200 ms.
#[tokio::test(flavor = "current_thread")]
async fn driver_watches_the_bbr_of_its_path() {
    let local = tokio::task::LocalSet::new();
    let watching = local.run_until(async {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let facts = Rc::new(OverBbr::default());
        serve_over(Path::new(near, Rc::clone(&facts) as _));
        far.write_all(&preface()).await.expect("room");
        let first = far.read(&mut [0; 4096]).await;
        assert!(first.is_ok_and(|count| count > 0), "settings");
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert_eq!(facts.looks.get(), 0, "no timer");
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        far.write_all(&ping).await.expect("room");
        let reply = far.read(&mut [0; 4096]).await;
        assert_eq!(reply.expect("a reply"), ping.len());
        assert_eq!(facts.looks.get(), 1);
    });
    watching.await;
}

/// The gateway refuses a tunnel whose body is still open. The client ends the stream without a
/// reset, which would spend the flood budget of the session.
#[tokio::test(flavor = "current_thread")]
async fn refused_tunnel_ends_without_a_reset() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let session = session(Multiplexed::H2);
            let (near, mut far) = Path::pair(1 << 20);
            let client = MuxClient::connect(
                &session,
                Box::pin(std::future::ready(Ok(Carrier::Bytes(near)))),
            );
            let mut reply = Reply::generate(|mut sink| async move {
                let mut exchange = Exchange {
                    body: Body::new(Endless, None),
                    ..Exchange::internal(RequestHead::connect("site.example:81"))
                };
                client.run(&mut exchange, &mut sink).await?;
                // The session ends with the client.
                drop(exchange);
                std::future::pending().await
            });
            let reading =
                tokio::task::spawn_local(async move { while reply.part().await.is_some() {} });
            let Core::Bytes(peer) = session.new_core(Role::Server) else {
                panic!("a session over one byte stream");
            };
            loop {
                let mut buffer = [0; 4096];
                let count = far.read(&mut buffer).await.expect("a client");
                let mut out = SendBuf::new();
                if refuse(&mut *peer.borrow_mut(), &buffer[..count], &mut out) {
                    return reading.abort();
                }
                let bytes = out.copy_to_bytes(out.remaining());
                far.write_all(&bytes).await.expect("room");
            }
        })
        .await;
}

/// Refuses the requests in the input of a server. Returns true once one has ended regularly.
fn refuse(peer: &mut dyn ByteMux, input: &[u8], out: &mut SendBuf) -> bool {
    peer.handle_input(Instant::now(), input).expect("a session");
    while let Some(event) = peer.poll_event() {
        match event {
            Event::Request { id, .. } => {
                peer.respond(id, &ResponseHead::new(403), false);
                peer.send_data(id, Bytes::from_static(b"refused"), true);
            }
            Event::Data { end: true, .. } => {
                assert_eq!(peer.active(), 0);
                return true;
            }
            Event::Reset { reason, .. } => panic!("{reason:?}"),
            _ => {}
        }
    }
    while peer.wants_output() {
        peer.poll_output(out, usize::MAX);
    }
    false
}

/// A body without an end.
struct Endless;

impl Chunks for Endless {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        Poll::Pending
    }
}
