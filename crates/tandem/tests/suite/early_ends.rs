//! Exchanges and sessions that end while a part of them is under way, in virtual time.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use tandem::carrier::{Carrier, Code, Direction, Streams};
use tandem::exchange::{Body, Chunks, Exchange, Part, Peer, Reply};
use tandem::path::Path;
use tandem::role_name::RoleName;
use tandem::session::mux::{Multiplexed, MuxSession};
use tandem::session::streams::StreamsSession;
use tandem::session::{Connect, Drain, Serve};
use tandem_http::h1::Form;
use tandem_http::{MuxConfig, RequestHead, ResponseHead, Role};
use tandem_spdy::Version;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::h3_carriers::in_virtual_time;
use crate::many_streams::http1;
use crate::many_streams::memory::{Connection, MemoryStreams};

/// The upward direction of a tunnel that stays open without bytes.
struct Silence;

impl Chunks for Silence {
    fn poll_chunk(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<tandem::exchange::Chunk, tandem::error::Error>>> {
        std::task::Poll::Pending
    }
}

/// Both ends of a connection for a protocol.
fn carriers(protocol: Multiplexed) -> (Carrier, Carrier) {
    if protocol == Multiplexed::H3 {
        let (near, far) = Connection::pair();
        let end =
            |end| Carrier::Streams(Rc::new(MemoryStreams::with(end, u64::MAX, Rc::default())));
        return (end(near), end(far));
    }
    let (near, far) = Path::pair(1 << 20);
    (Carrier::Bytes(near), Carrier::Bytes(far))
}

/// A client that no longer reads a tunnel, whose target has closed, gives its stream back.
#[test]
fn dropped_reply_frees_a_half_closed_stream() {
    let protocols = [
        Multiplexed::H2,
        Multiplexed::H3,
        Multiplexed::Spdy(Version::V3),
        Multiplexed::Spdy(Version::V31),
    ];
    for protocol in protocols {
        in_virtual_time(async move {
            let session =
                MuxSession::new(protocol, MuxConfig::new(Role::Client), RoleName::Gateway);
            let (near, far) = carriers(protocol);
            let (told, replies) = tokio::sync::mpsc::unbounded_channel::<()>();
            let stage = Rc::new(move |exchange: Exchange| {
                let alive = told.clone();
                Reply::generate(|mut sink| async move {
                    let _alive = alive;
                    let mut body = exchange.body.share();
                    sink.send(Part::Head(ResponseHead::new(200))).await;
                    sink.send(Part::Closed).await;
                    while let Some(Ok(_)) = poll_fn(|cx| body.poll_chunk(cx)).await {}
                    drop(exchange);
                    Ok(())
                })
            });
            let serving = session.serve(far, Peer::none(), stage, Drain::new());
            tokio::task::spawn_local(serving);
            let client = session.connect(Box::pin(std::future::ready(Ok(near))));
            let asking = Rc::clone(&client);
            let mut exchange = Exchange {
                body: Body::new(Silence, None),
                ..Exchange::internal(RequestHead::connect("site.example:443"))
            };
            let mut reply =
                Reply::generate(
                    |mut sink| async move { asking.run(&mut exchange, &mut sink).await },
                );
            loop {
                let part = reply.part().await.expect("a part").expect("no failure");
                if matches!(part, Part::Closed) {
                    break;
                }
            }
            assert_eq!(client.active(), 1, "{protocol:?}");
            drop(reply);
            assert_eq!(client.active(), 0, "{protocol:?}: at the client");
            // The stage itself holds one sender, and each reply another.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(
                replies.sender_strong_count(),
                1,
                "{protocol:?}: at the gateway"
            );
        });
    }
}

/// A request that crosses the end of a session on the path is refused, so that its client
/// repeats it.
#[test]
fn drained_server_refuses_late_streams() {
    in_virtual_time(async {
        let (near, far) = Connection::pair();
        let server = MemoryStreams::with(near, u64::MAX, Rc::default());
        let client = MemoryStreams::with(far, u64::MAX, Rc::default());
        let stage = Rc::new(|_: Exchange| Reply::ready(ResponseHead::new(200), "late".into()));
        let drain = Drain::new();
        let session = StreamsSession::new(http1(Form::Absolute, RoleName::Gateway), None);
        let carrier = Carrier::Streams(Rc::new(server));
        let serving = session.serve(carrier, Peer::none(), stage, drain.clone());
        let serving = tokio::task::spawn_local(serving);
        tokio::time::sleep(Duration::from_millis(10)).await;
        drain.begin();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let opened = poll_fn(|cx| client.poll_open(Direction::Bidirectional, cx)).await;
        let mut stream = opened.expect("a session that is open for another moment");
        let request = b"POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        let send = stream.send.as_mut().expect("two directions");
        send.write_all(request).await.expect("room");
        let receive = stream.receive.as_mut().expect("two directions");
        let error = receive.read(&mut [0]).await.expect_err("a reset");
        let reset = error.get_ref().and_then(|it| it.downcast_ref());
        let tandem::carrier::StreamReset(code) = reset.expect("the reset of a stream");
        assert_eq!(*code, Code(0x10b), "it was not processed");
        serving.await.expect("no panic").expect("a regular end");
        assert!(client.has_ended());
    });
}
