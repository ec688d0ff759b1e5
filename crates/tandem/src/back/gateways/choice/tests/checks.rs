//! Tests of the checks of a refuge, and of the end of those that no exchange needs.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::*;
use crate::exchange::{Body, Chunk, Chunks};

#[test]
fn open_refuge_is_replaced_on_another_network() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        open(&scene, &key, TLS).await;
        tokio::time::sleep(MS).await;
        let now = tokio::time::Instant::now();
        scene.ways[TLS].lost_before.set(Some(now));
        scene.ways[QUIC].is_blocked.set(true);
        let request = spawn(&scene, Method::Get, &key);
        tokio::time::sleep(300 * MS).await;
        assert_eq!(scene.ways[TLS].dials.get(), 1, "it is being probed");
        NETWORK.set(2);
        // The limit of the probe is two seconds.
        assert_eq!(request.await.expect("it ended"), TLS);
        assert!(now.elapsed() <= 1200 * MS, "{:?}", now.elapsed());
    });
}

/// To ask for the network is a system call.
#[test]
fn check_asks_for_the_network_once() {
    run(async {
        let scene = Rc::new(Scene::new([50, 5000, 9000]));
        let keys: Vec<_> = (0..50).map(|user| Isolation::new(&[user], b"")).collect();
        for key in &keys {
            assert_eq!(scene.get(key).await, QUIC);
        }
        scene.ways[QUIC].is_blocked.set(true);
        keys.iter()
            .skip(1)
            .for_each(|key| spawn_requests(&scene, key, 1));
        tokio::time::sleep(10 * MS).await;
        LOOKS.set(0);
        let dials = scene.ways[TLS].dials.get();
        spawn_requests(&scene, &keys[0], 1);
        tokio::time::sleep(5 * MS).await;
        assert_eq!(scene.ways[TLS].dials.get(), dials + 1);
        assert!(LOOKS.get() <= 10, "{}", LOOKS.get());
    });
}

#[test]
fn check_ends_with_its_key() {
    run(async {
        let scene = Rc::new(Scene::new([50, 5000, 100]));
        let key = Isolation::new(b"a", b"");
        assert_eq!(scene.get(&key).await, QUIC);
        open(&scene, &key, TLS).await;
        for way in [QUIC, TLS] {
            scene.ways[way].is_blocked.set(true);
        }
        let request = spawn(&scene, Method::Get, &key);
        tokio::time::sleep(300 * MS).await;
        assert_eq!(scene.ways[TLS].probes.get(), 1);
        request.abort();
        scene.pool.end(&key);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let (dials, probes) = (&scene.ways[TLS].dials, &scene.ways[TLS].probes);
        assert_eq!((dials.get(), probes.get()), (1, 1));
        assert!(scene.pool.slots.borrow().is_empty());
    });
}

#[test]
fn refuge_ends_with_the_last_exchange_that_waits() {
    run(async {
        // The first request ends while TCP is dialled, and the second one after that.
        for end in [50 * MS, 200 * MS] {
            let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
            scene.ways[QUIC].dies_in.set(400 * MS);
            scene.ways[QUIC].is_blocked.set(true);
            let requests = [0; 2].map(|_| spawn(&scene, Method::Get, &key));
            tokio::time::sleep(end).await;
            requests[0].abort();
            tokio::task::yield_now().await;
            let is_kept = || scene.pool.slots.borrow().contains_key(&(key.clone(), TLS));
            assert!(is_kept(), "one waits");
            requests[1].abort();
            tokio::time::sleep(100 * MS).await;
            assert!(!is_kept());
            assert!(scene.pool.is_open(&key, QUIC));
        }
    });
}

#[test]
fn refuge_stays_while_the_silent_session_is_doubted() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].is_blocked.set(true);
        let post = spawn(&scene, Method::Post, &key);
        tokio::time::sleep(150 * MS).await;
        assert!(!scene.pool.is_open(&key, QUIC), "it is doubted");
        post.abort();
        tokio::time::sleep(100 * MS).await;
        assert!(scene.pool.is_open(&key, TLS));
    });
}

#[test]
fn third_doubt_ends_a_session_of_a_failed_way() {
    run(async {
        let scene = Rc::new(Scene::new([50, 5000, 100]));
        let key = Isolation::none();
        for _ in 0..2 {
            assert_eq!(scene.get(&key).await, QUIC);
            scene.ways[QUIC].is_blocked.set(true);
            assert_eq!(scene.get(&key).await, TLS);
            scene.ways[QUIC].is_blocked.set(false);
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        scene.ways[QUIC].responds_in.set(Duration::from_secs(60));
        spawn_requests(&scene, &key, 1);
        tokio::time::sleep(MS).await;
        // Another key has found that the way fails.
        let network = network_of(([0; 4], 0).into());
        let error = Error::new(Kind::Timeout, Side::Peer, "no answer");
        scene.pool.way_failed(QUIC, network, &error);
        let requests = scene.ways[TLS].requests.get();
        scene.ways[QUIC].is_blocked.set(true);
        tokio::time::sleep(200 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), requests + 1);
        assert!(!scene.pool.slots.borrow().contains_key(&(key, QUIC)));
    });
}

/// A network forgets the address of an idle session. The way may work nevertheless.
#[test]
fn idle_session_does_not_break_its_way() {
    run(async {
        for was_idle in [true, false] {
            let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
            tokio::time::sleep(MS).await;
            scene.ways[QUIC].was_idle.set(was_idle);
            let now = tokio::time::Instant::now();
            scene.ways[QUIC].lost_before.set(Some(now));
            assert_eq!(scene.get(&key).await, TLS);
            tokio::time::sleep(CONFIRMATIONS as u32 * STAGGER + MS).await;
            assert!(!scene.pool.slots.borrow().contains_key(&(key.clone(), QUIC)));
            let network = network_of(([0; 4], 0).into());
            let has_failed = scene.pool.groups[0].ways.borrow().has_failed(network, QUIC);
            assert_eq!(has_failed, !was_idle);
            // The next session by the way replaces TCP.
            assert_eq!(scene.get(&key).await, TLS);
            tokio::time::sleep(100 * MS).await;
            let way = scene.get(&key).await;
            assert_eq!(way == QUIC, was_idle, "{way}");
        }
    });
}

/// A body that is too long to be sent again.
struct LongBody(bool);

impl Chunks for LongBody {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let is_first = std::mem::replace(&mut self.0, false);
        Poll::Ready(is_first.then(|| Ok(Chunk::Data(Bytes::from(vec![0; 1 << 20])))))
    }
}

#[test]
fn request_that_is_not_repeated_does_not_count() {
    run(async {
        // Other tests may count at the same time.
        for _ in 0..100 {
            let (scene, _) = Scene::on_quic([50, 5000, 100]).await;
            scene.ways[QUIC].is_blocked.set(true);
            let mut body = Body::new(LongBody(true), None);
            let mut read = body.share();
            poll_fn(|cx| read.poll_chunk(cx)).await;
            let request = RequestHead::get(Scheme::Http, "site.example", "/".to_owned());
            let exchange = Exchange {
                body: std::mem::take(&mut body),
                ..Exchange::internal(request)
            };
            let moved = METRICS.exchanges_moved.value();
            let mut reply = ToGateway(Rc::clone(&scene.pool)).call(exchange);
            let waited = tokio::time::timeout(2000 * MS, reply.part());
            assert!(waited.await.is_err(), "the path may come back");
            scene.ways[QUIC].is_blocked.set(false);
            assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
            assert_eq!(scene.ways[TLS].runs.get(), 0);
            if METRICS.exchanges_moved.value() == moved {
                return;
            }
        }
        panic!("each of them counted");
    });
}

/// The name may be known in a moment, and the ways then work.
#[test]
fn unknown_name_of_a_gateway_fails_no_way() {
    run(async {
        let names = Names::new(|_| Err(std::io::Error::other("no such name")));
        let named = names.addresses("gw.example", 1);
        let given = Addresses::given(([192, 0, 2, 99], 1).into());
        let scene = Scene::at_each([named, given.clone(), given], [50, 50, 50]);
        for (way, kind, has_failed) in [
            (QUIC, Kind::Dns, false),
            (QUIC, Kind::Timeout, false),
            (DTLS, Kind::Dns, false),
            (DTLS, Kind::Timeout, true),
        ] {
            let network = scene.pool.network(way);
            let error = Error::new(kind, Side::Peer, "no");
            scene.pool.way_failed(way, network, &error);
            let ways = &scene.pool.group(way).expect("a group").ways;
            let noted = ways.borrow().has_failed(network, way);
            assert_eq!(noted, has_failed, "{way} {kind:?}");
        }
    });
}

/// The dial ends before that, and the look-up of a portal must not replace the address.
#[test]
fn answer_to_early_data_counts_for_its_address() {
    run(async {
        let names = Names::new(|_| Ok(vec![([192, 0, 2, 98], 0).into()]));
        let named = names.addresses("gw.example", 1);
        named.look_up_now().expect("an address");
        let scene = Scene::at(&named, [50, 5000, 5000]);
        let at = SocketAddr::from(([192, 0, 2, 97], 1));
        scene.ways[QUIC].is_early.set(true);
        scene.ways[QUIC].answers_at.set(Some(at));
        assert!(!named.is_former(at));
        assert_eq!(scene.get(&Isolation::none()).await, QUIC);
        assert!(named.is_former(at) && named.known().contains(&at));
    });
}
