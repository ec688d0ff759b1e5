use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tandem_http::{MuxConfig, Role};
use tokio::io::DuplexStream;

use super::*;
use crate::carrier::{Carrier, LocalBoxFuture};
use crate::path::{Facts, Path};
use crate::role_name::RoleName;
use crate::session::SessionEvents;
use crate::session::mux::{Multiplexed, MuxClient, MuxSession};

/// A carrier that has received one datagram.
struct Datagrams;

impl Facts for Datagrams {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn datagrams_received(&self) -> Option<u64> {
        Some(1)
    }

    fn smoothed_round_trip(&self) -> Option<Duration> {
        Some(Duration::from_millis(50))
    }
}

/// Runs a test in virtual time with an established session, and the other end of its path, which
/// never answers.
fn run<F: Future<Output = ()>>(test: impl FnOnce(MuxClient, DuplexStream) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (near, far) = tokio::io::duplex(1 << 20);
        let path = Path::new(near, Rc::new(Datagrams));
        let session = MuxSession::new(
            Multiplexed::H2,
            MuxConfig::new(Role::Client),
            RoleName::Gateway,
        );
        let dialled = std::future::ready(Ok(Carrier::Bytes(path)));
        let client = MuxClient::connect(&session, Box::pin(dialled));
        tokio::task::yield_now().await;
        client.shared.established.set(true);
        test(client, far).await;
    });
}

/// Returns true if a session is found silent, and then dead.
async fn is_found_dead(client: &MuxClient) -> bool {
    let found = async {
        client.silent().await;
        client.dies().await
    };
    let found = tokio::time::timeout(Duration::from_secs(5), found).await;
    found == Ok(true)
}

/// Polls a future once.
async fn poll_once(future: &mut LocalBoxFuture<'_, ()>) {
    let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx)));
    assert!(polled.await.is_pending());
}

/// The reader of a response takes no more of it, and does not poll its exchange any more.
#[test]
fn paused_exchange_does_not_stop_the_watch() {
    run(|client, far| async move {
        let mut paused = client.silent();
        poll_once(&mut paused).await;
        assert!(is_found_dead(&client).await);
        drop((paused, far));
    });
}

#[test]
fn watch_ends_with_its_last_waiter() {
    run(|client, far| async move {
        let watched = client.watch_path().expect("a path");
        let mut paused = client.silent();
        poll_once(&mut paused).await;
        tokio::task::yield_now().await;
        drop(watched);
        assert!(is_found_dead(&client).await, "one waits");
        drop(paused);
        tokio::task::yield_now().await;
        assert_eq!(Rc::strong_count(&client.path_watch), 1);
        drop(far);
    });
}

#[test]
fn watch_ends_with_its_session() {
    run(|client, far| async move {
        let watched = client.watch_path().expect("a path");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Rc::strong_count(&client.path_watch), 3);
        drop(far);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(Rc::strong_count(&client.path_watch), 2);
        assert!(client.watch_path().is_none());
        drop(watched);
    });
}

#[test]
fn ended_session_does_not_answer() {
    run(|client, far| async move {
        let answered = tokio::join!(client.answers(), async { drop(far) });
        assert!(answered.0.is_err());
    });
}
