use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::*;
use crate::carrier::LocalBoxFuture;
use crate::error::{Kind, Side};

/// A path whose other end never answers.
#[derive(Default)]
struct Mute {
    facts: Rc<Datagrams>,
    has_ended: Cell<bool>,
    probes: Cell<u32>,
}

/// The facts of a path that carries datagrams, of which one has arrived.
#[derive(Default)]
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

impl WatchedPath for Mute {
    fn facts(&self) -> Option<Rc<dyn Facts>> {
        (!self.has_ended.get()).then(|| Rc::clone(&self.facts) as _)
    }

    fn ended(&self) -> Option<Error> {
        let ended = || Error::new(Kind::Reset, Side::Peer, "the session has ended");
        self.has_ended.get().then(ended)
    }

    fn heard(&self) -> Option<Heard> {
        None
    }

    fn answered_in(&self) -> Duration {
        Duration::ZERO
    }

    fn probe(&self) -> bool {
        self.probes.set(self.probes.get() + 1);
        true
    }
}

/// Runs a test in virtual time with a mute path and its watch.
fn run<F: Future<Output = ()>>(test: impl FnOnce(Rc<Mute>, Rc<PathWatch>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let path = Rc::new(Mute::default());
        let watch = PathWatch::new(Rc::clone(&path) as _);
        test(path, watch).await;
    });
}

/// Returns true if a path is found silent, and then dead.
async fn is_found_dead(watch: &Rc<PathWatch>) -> bool {
    let found = async {
        watch.until_silent().await;
        watch.until_dead().await
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
    run(|path, watch| async move {
        let mut paused: LocalBoxFuture<'_, ()> = Box::pin(watch.until_silent());
        poll_once(&mut paused).await;
        assert!(is_found_dead(&watch).await);
        assert!(path.probes.get() >= 6);
    });
}

#[test]
fn watch_ends_with_its_last_waiter() {
    run(|_path, watch| async move {
        let watched = watch.expect(Probing::Eager).expect("a path");
        let mut paused: LocalBoxFuture<'_, ()> = Box::pin(watch.until_silent());
        poll_once(&mut paused).await;
        tokio::task::yield_now().await;
        drop(watched);
        assert!(is_found_dead(&watch).await, "one waits");
        drop(paused);
        tokio::task::yield_now().await;
        assert_eq!(Rc::strong_count(&watch), 1);
    });
}

#[test]
fn watch_ends_with_its_session() {
    run(|path, watch| async move {
        let watched = watch.expect(Probing::Eager).expect("a path");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Rc::strong_count(&watch), 3);
        path.has_ended.set(true);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(Rc::strong_count(&watch), 2);
        assert!(watch.expect(Probing::Eager).is_none());
        drop(watched);
    });
}

#[test]
fn ended_session_does_not_answer() {
    run(|path, watch| async move {
        let ended = async { path.has_ended.set(true) };
        let answered = tokio::join!(watch.until_answered(), ended);
        assert!(answered.0.is_err());
    });
}
