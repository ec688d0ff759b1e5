//! Tests of sessions over paths within the process: the input that is delivered when a peer closes.

use std::rc::Rc;
use std::time::Instant;

use bytes::{Buf, Bytes};
use tandem_http::{Event, MuxConfig, Reason, RequestHead, ResponseHead, Role, Scheme, SendBuf};
use tandem_spdy::Version;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::core::Core;
use super::{Multiplexed, MuxClient, MuxSession};
use crate::carrier::Carrier;
use crate::error::Error;
use crate::exchange::{Exchange, Part, Reply};
use crate::path::Path;
use crate::session::Connected;

fn session(protocol: Multiplexed) -> MuxSession {
    MuxSession::new(protocol, MuxConfig::new(Role::Client), "gateway")
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
        let ended = client.shared.ended.borrow();
        let error = ended.as_ref().expect("an end");
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
        let answered = local.run_until(async move {
            let session = session(protocol);
            let (near, mut far) = Path::pair(1 << 20);
            let client = Rc::new(MuxClient::connect(
                &session,
                Box::pin(std::future::ready(Ok(Carrier::Bytes(near)))),
            ));
            let asking = Rc::clone(&client);
            let mut reply =
                Reply::generate(
                    |mut sink| async move { asking.run(&mut exchange(), &mut sink).await },
                );
            let answer = tokio::task::spawn_local(async move {
                let mut body = Vec::new();
                while let Some(part) = reply.part().await {
                    if let Part::Data(data) = part? {
                        body.extend_from_slice(&data);
                    }
                }
                Ok::<_, Error>(body)
            });
            let Core::Bytes(peer) = session.new_core(Role::Server) else {
                panic!("a session over one byte stream");
            };
            let mut out = SendBuf::new();
            let id = 'asked: loop {
                let mut buffer = [0; 4096];
                let count = far.read(&mut buffer).await.expect("a client");
                let mut peer = peer.borrow_mut();
                peer.handle_input(Instant::now(), &buffer[..count])
                    .expect("a session");
                while let Some(event) = peer.poll_event() {
                    if let Event::Request { id, .. } = event {
                        break 'asked id;
                    }
                }
            };
            {
                let mut peer = peer.borrow_mut();
                peer.respond(id, &ResponseHead::new(200), false);
                peer.send_data(id, Bytes::from_static(b"a short body"), true);
                peer.go_away(Reason::NoError);
                while peer.wants_output() {
                    peer.poll_output(&mut out, usize::MAX);
                }
            }
            let bytes = out.copy_to_bytes(out.remaining());
            for segment in bytes.chunks(bytes.len().div_ceil(segments)) {
                far.write_all(segment).await.expect("room");
            }
            // The client has not run since then, and its next turn has something to send.
            client.shared.core.borrow_mut().ping(1);
            drop(far);
            answer.await.expect("no panic")
        });
        let answered = answered.await;
        assert_eq!(
            answered.as_deref(),
            Ok(&b"a short body"[..]),
            "{protocol:?} {segments}"
        );
    }
}
