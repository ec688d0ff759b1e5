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

    fn heard(&self) -> Option<InputTime> {
        None
    }

    fn answered_in(&self) -> Duration {
        Duration::ZERO
    }

    fn probe(&self) -> bool {
        self.probes.set(self.probes.get() + 1);
        true
    }

    fn give_up(&self) {}
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

/// A connection over TCP, and its facts.
#[derive(Default)]
struct Tcp(Rc<Bytes>);

#[derive(Default)]
struct Bytes {
    count: Cell<u64>,
    is_given_up: Cell<bool>,
    /// True while bytes wait for an acknowledgement.
    waits: Cell<bool>,
    /// The time of the last bytes of the other end.
    heard: Cell<Option<Instant>>,
    probes: Cell<u32>,
}

impl Bytes {
    /// Delivers a PING within TLS, and its answer.
    fn answer(&self) {
        self.count.set(self.count.get() + 2 * 39);
        self.heard.set(Some(now()));
    }
}

impl Facts for Bytes {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn bytes_received(&self) -> Option<u64> {
        Some(1)
    }

    fn bytes_acknowledged(&self) -> Option<u64> {
        Some(self.count.get())
    }

    fn has_unacknowledged(&self) -> bool {
        self.waits.get()
    }
}

impl WatchedPath for Tcp {
    fn facts(&self) -> Option<Rc<dyn Facts>> {
        Some(Rc::clone(&self.0) as _)
    }

    fn ended(&self) -> Option<Error> {
        None
    }

    fn heard(&self) -> Option<InputTime> {
        None
    }

    fn answered_in(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn probe(&self) -> bool {
        self.0.probes.set(self.0.probes.get() + 1);
        if !self.0.waits.get() {
            self.0.answer();
        }
        true
    }

    fn give_up(&self) {
        self.0.is_given_up.set(true);
    }
}

/// Runs a test with a connection over TCP and its watch.
fn run_tcp<F: Future<Output = ()>>(test: impl FnOnce(Rc<Bytes>, Rc<PathWatch>) -> F) {
    run(|_, _| async {
        let path = Tcp::default();
        let bytes = Rc::clone(&path.0);
        let watch = PathWatch::new(Rc::new(path));
        test(bytes, watch).await;
    });
}

#[test]
fn unacknowledged_request_stalls_over_tcp() {
    run_tcp(|bytes, watch| async move {
        bytes.waits.set(true);
        let _watched = watch.expect(Probing::Alone).expect("a path");
        let begun = now();
        watch.until_silent().await;
        assert_eq!(now() - begun, Duration::from_secs(3));
        assert_eq!(bytes.probes.get(), 0, "the request is the probe");
        bytes.waits.set(false);
        bytes.answer();
        let alive = tokio::time::timeout(Duration::from_secs(1), watch.until_alive());
        assert!(alive.await.is_ok());
    });
}

/// The session has no stream for the request yet.
#[test]
fn request_that_waits_finds_no_stall_over_tcp() {
    run_tcp(|bytes, watch| async move {
        let _watched = watch.expect(Probing::Alone).expect("a path");
        let found = tokio::time::timeout(Duration::from_secs(10), watch.until_silent());
        assert!(found.await.is_err());
        assert!((1..=3).contains(&bytes.probes.get()));
    });
}

/// The session sends a PING if it has heard nothing for 20 seconds, and looks every ten.
#[test]
fn idle_tunnel_over_tcp_is_probed_by_its_session() {
    run_tcp(|bytes, watch| async move {
        let _watched = watch.expect(Probing::Alone).expect("a path");
        bytes.answer();
        let mut pings = 0;
        for _ in 0..360 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let heard = bytes.heard.get().expect("a time");
            if now() - heard >= Duration::from_secs(20) {
                bytes.answer();
                pings += 1;
            }
        }
        println!("{pings} PINGs of the session, {} more", bytes.probes.get());
        assert!(bytes.probes.get() <= 5, "{}", bytes.probes.get());
    });
}

#[test]
fn replaced_session_ends_if_its_path_stays_silent() {
    for returns in [false, true] {
        run_tcp(|bytes, watch| async move {
            bytes.waits.set(true);
            let _watched = watch.expect(Probing::Alone).expect("a path");
            watch.until_silent().await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!bytes.is_given_up.get(), "no other session works");
            watch.replaced();
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!bytes.is_given_up.get(), "the kernel repeats its segments");
            if returns {
                bytes.waits.set(false);
                bytes.answer();
            }
            tokio::time::sleep(Duration::from_secs(120)).await;
            assert_eq!(bytes.is_given_up.get(), !returns);
        });
    }
}

/// A later silence may be one of the whole network, in which the other session delivers nothing
/// either.
#[test]
fn replaced_session_that_delivers_again_stays() {
    run_tcp(|bytes, watch| async move {
        bytes.waits.set(true);
        let _watched = watch.expect(Probing::Alone).expect("a path");
        watch.until_silent().await;
        watch.replaced();
        bytes.waits.set(false);
        bytes.answer();
        watch.until_alive().await;
        bytes.waits.set(true);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!bytes.is_given_up.get());
    });
}

#[test]
fn given_up_path_is_left_before_its_session_ends() {
    run_tcp(|bytes, watch| async move {
        let silent = tokio::time::timeout(Duration::from_millis(200), watch.until_silent());
        let given_up = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            watch.give_up();
        };
        assert!(tokio::join!(silent, given_up).0.is_ok());
        assert!(!bytes.is_given_up.get());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(bytes.is_given_up.get());
    });
}
