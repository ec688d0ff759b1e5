use std::time::Duration;

use tandem_http::{MuxConfig, Role};

use super::*;
use crate::carrier::Carrier;
use crate::path::{Facts, Path};
use crate::session::SessionEvents;
use crate::session::mux::{Multiplexed, MuxClient, MuxSession};

/// A carrier whose datagrams the test counts.
#[derive(Default)]
struct Datagrams(Cell<u64>);

impl Facts for Datagrams {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn datagrams_received(&self) -> Option<u64> {
        Some(self.0.get())
    }

    fn smoothed_round_trip(&self) -> Option<Duration> {
        Some(Duration::from_millis(50))
    }
}

/// Runs a test in virtual time with an established session. The other end of its path never
/// answers.
fn run<F: Future<Output = ()>>(test: impl FnOnce(MuxClient, Rc<Datagrams>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (near, _far) = tokio::io::duplex(1 << 20);
        let facts = Rc::<Datagrams>::default();
        let path = Path::new(near, Rc::clone(&facts) as _);
        let session = MuxSession::new(Multiplexed::H2, MuxConfig::new(Role::Client), "gateway");
        let dialled = std::future::ready(Ok(Carrier::Bytes(path)));
        let client = MuxClient::connect(&session, Box::pin(dialled));
        tokio::task::yield_now().await;
        client.shared.established.set(true);
        test(client, facts).await;
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

/// The reader of a response takes no more of it, and does not poll its exchange any more.
#[test]
fn paused_exchange_does_not_stop_the_watch() {
    run(|client, _| async move {
        let mut paused = client.silent();
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(paused.as_mut().poll(cx)));
        assert!(polled.await.is_pending());
        assert!(is_found_dead(&client).await);
        drop(paused);
    });
}
