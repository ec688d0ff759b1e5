//! Tests of the move from a session over TCP that has stalled to another one by the same way.

use super::downloads::proposal;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Creates a scene in which the session of a client without keys is one over TCP, since no other
/// way answers.
pub(super) async fn on_tcp() -> (Rc<Scene>, Isolation) {
    let key = Isolation::none();
    let scene = Rc::new(Scene::new([3_600_000, 3_600_000, 50]));
    assert_eq!(scene.get(&key).await, TLS);
    (scene, key)
}

/// Loses the sessions over TCP that are open now.
pub(super) async fn lose(scene: &Scene) {
    tokio::time::sleep(MS).await;
    let now = tokio::time::Instant::now();
    scene.ways[TLS].lost_before.set(Some(now));
}

#[test]
fn requests_share_the_session_beside_a_stalled_one() {
    run(async {
        let (scene, key) = on_tcp().await;
        lose(&scene).await;
        spawn_requests(&scene, &key, 100);
        tokio::time::sleep(100 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), 101);
        assert_eq!(scene.ways[TLS].dials.get(), 2);
        assert!(scene.pool.is_open(&key, TLS));
    });
}

#[test]
fn session_that_delivers_again_stays() {
    run(async {
        let (scene, key) = on_tcp().await;
        let mark = scene.slot_mark(&key, TLS);
        scene.ways[TLS].takes.set(500 * MS);
        scene.ways[TLS].is_blocked.set(true);
        spawn_requests(&scene, &key, 2);
        tokio::time::sleep(200 * MS).await;
        assert_eq!(scene.ways[TLS].dials.get(), 2);
        scene.ways[TLS].is_blocked.set(false);
        tokio::time::sleep(HOUR / 60).await;
        assert_eq!(scene.ways[TLS].requests.get(), 3);
        assert_eq!(scene.ways[TLS].dials.get(), 2);
        assert!(Rc::ptr_eq(&mark, &scene.slot_mark(&key, TLS)));
    });
}

#[test]
fn response_without_a_rest_stays_on_a_stalled_session() {
    run(async {
        let (scene, key) = on_tcp().await;
        scene.ways[TLS].has_body.set(true);
        let exchange = || Exchange {
            isolation: key.clone(),
            ..Exchange::internal(RequestHead::get(Scheme::Http, "site.example", "/"))
        };
        let begin = async || {
            let mut reply = ToGateway(Rc::clone(&scene.pool)).call(exchange());
            assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
            reply
        };
        let (mut bound, mut free) = (begin().await, begin().await);
        free.permit_move();
        lose(&scene).await;
        let waited = tokio::time::timeout(Duration::from_secs(10), bound.part());
        assert!(waited.await.is_err(), "the path may come back");
        let proposed = tokio::time::timeout(Duration::from_secs(10), proposal(&mut free));
        proposed.await.expect("it moves");
        // The first one goes on, though others use another session now.
        scene.ways[TLS].lost_before.set(None);
        assert!(matches!(bound.part().await, Some(Ok(Part::Data(_)))));
        assert!(bound.part().await.is_none());
    });
}

#[test]
fn unsafe_request_stays_on_a_stalled_session() {
    run(async {
        let (scene, key) = on_tcp().await;
        lose(&scene).await;
        let post = spawn(&scene, Method::Post, &key);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(scene.ways[TLS].runs.get(), 2, "it is not repeated");
        // Later requests go by another session.
        let later = tokio::time::timeout(Duration::from_secs(10), scene.ask(Method::Post, &key));
        assert_eq!(later.await, Ok(TLS));
        assert_eq!(scene.ways[TLS].dials.get(), 2);
        scene.ways[TLS].lost_before.set(None);
        assert_eq!(post.await.expect("it ended"), TLS);
    });
}

#[test]
fn dials_beside_a_stalled_session_are_ever_rarer() {
    for count in [1, 5] {
        run(async {
            let (scene, key) = on_tcp().await;
            lose(&scene).await;
            scene.ways[TLS].is_refused.set(true);
            spawn_requests(&scene, &key, count);
            tokio::time::sleep(Duration::from_secs(60)).await;
            // After 0, 1, 3, 7, 15, 23, … seconds, beside the first one.
            let dials = scene.ways[TLS].dials.get() - 1;
            assert!((8..=11).contains(&dials), "{dials} for {count}");
            scene.ways[TLS].is_refused.set(false);
            tokio::time::sleep(Duration::from_secs(9)).await;
            assert_eq!(scene.ways[TLS].requests.get(), 1 + count);
        });
    }
}

#[test]
fn request_stays_at_its_last_attempt() {
    run(async {
        let (scene, key) = on_tcp().await;
        scene.ways[TLS].responds_in.set(10_000 * MS);
        let get = spawn(&scene, Method::Get, &key);
        for moves in 1..=3 {
            lose(&scene).await;
            tokio::time::sleep(100 * MS).await;
            assert_eq!(scene.ways[TLS].dials.get(), 1 + moves);
        }
        assert_eq!(scene.ways[TLS].runs.get(), 4, "it has three attempts");
        // The path comes back.
        scene.ways[TLS].lost_before.set(None);
        assert_eq!(get.await.expect("it ended"), TLS);
    });
}

#[test]
fn request_stays_until_a_later_session_answers() {
    run(async {
        let (scene, key) = on_tcp().await;
        scene.ways[TLS].takes.set(5000 * MS);
        scene.ways[TLS].responds_in.set(50 * MS);
        spawn_requests(&scene, &key, 1);
        tokio::time::sleep(10 * MS).await;
        scene.pool.close_all(|_, index, _| index == TLS);
        lose(&scene).await;
        tokio::time::sleep(1000 * MS).await;
        scene.ways[TLS].lost_before.set(None);
        tokio::time::sleep(10 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), 2);
        assert_eq!(scene.ways[TLS].runs.get(), 2, "it was not repeated");
    });
}

/// Begins a request whose response has a rest, and returns the reply after its head.
pub(super) async fn begin(scene: &Scene, key: &Isolation) -> Reply {
    let exchange = Exchange {
        isolation: key.clone(),
        ..Exchange::internal(RequestHead::get(Scheme::Http, "site.example", "/"))
    };
    let mut reply = ToGateway(Rc::clone(&scene.pool)).call(exchange);
    assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
    reply
}

/// The gateway may be one of the former configuration only.
#[test]
fn pool_that_drains_dials_nothing_beside_a_session() {
    for way in [QUIC, TLS] {
        run(async {
            let key = Isolation::none();
            let takes = [QUIC, DTLS, TLS].map(|of| if of == way { 50 } else { 3_600_000 });
            let scene = Rc::new(Scene::new(takes));
            assert_eq!(scene.get(&key).await, way);
            scene.ways[way].has_body.set(true);
            let (mut bound, mut free) = (begin(&scene, &key).await, begin(&scene, &key).await);
            free.permit_move();
            scene.ways[way].responds_in.set(1000 * MS);
            let get = spawn(&scene, Method::Get, &key);
            tokio::time::sleep(100 * MS).await;
            let dials = || scene.ways.clone().map(|way| way.dials.get());
            let before = dials();
            scene.pool.drain();
            scene.ways[way].is_blocked.set(true);
            let proposed = tokio::time::timeout(Duration::from_secs(10), proposal(&mut free));
            proposed
                .await
                .expect("its rest goes by another configuration");
            tokio::time::sleep(Duration::from_secs(50)).await;
            assert_eq!(dials(), before);
            scene.ways[way].is_blocked.set(false);
            assert!(matches!(bound.part().await, Some(Ok(Part::Data(_)))));
            assert_eq!(get.await.expect("it ended"), way);
        });
    }
}

/// A session that was dialled before the drain is established after it.
#[test]
fn pool_that_drains_takes_no_session_from_a_dial() {
    run(async {
        let (scene, key) = on_tcp().await;
        lose(&scene).await;
        scene.ways[TLS].takes.set(500 * MS);
        spawn_requests(&scene, &key, 2);
        tokio::time::sleep(100 * MS).await;
        assert_eq!(scene.ways[TLS].dials.get(), 2);
        scene.pool.drain();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!scene.pool.is_open(&key, TLS));
        assert_eq!(scene.ways[TLS].requests.get(), 1);
        scene.ways[TLS].lost_before.set(None);
        tokio::time::sleep(10 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), 3);
    });
}

#[test]
fn dial_from_a_lost_network_is_repeated() {
    run(async {
        let (scene, key) = on_tcp().await;
        lose(&scene).await;
        scene.ways[TLS].takes.set(HOUR);
        let begun = tokio::time::Instant::now();
        spawn_requests(&scene, &key, 2);
        tokio::time::sleep(3500 * MS).await;
        assert_eq!(scene.ways[TLS].dials.get(), 2);
        NETWORK.set(2);
        scene.ways[TLS].takes.set(50 * MS);
        while scene.ways[TLS].requests.get() < 3 {
            tokio::time::sleep(10 * MS).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(6));
        assert_eq!(scene.ways[TLS].dials.get(), 3);
    });
}

/// Returns a way through a proxy, which has no address of its gateway, and a pool of it alone.
pub(super) fn through_a_proxy() -> (Rc<Way>, Rc<Gateways>) {
    let way = Rc::new(Way::new(50 * MS, false));
    let own = Rc::clone(&way);
    let gateways = vec![gateway(move |_| connect(&own), WayEntry::default())];
    (way, Gateways::new(gateways, LIMITS, None))
}

/// A new circuit has a price, and the acknowledgements are those of the proxy.
#[test]
fn session_through_a_proxy_is_not_replaced() {
    run(async {
        let (way, pool) = through_a_proxy();
        way.is_blocked.set(true);
        let request = RequestHead::get(Scheme::Http, "site.example", "/");
        let mut reply = ToGateway(pool).call(Exchange::internal(request));
        let waited = tokio::time::timeout(Duration::from_secs(40), reply.part());
        assert!(waited.await.is_err());
        assert_eq!(way.dials.get(), 1);
    });
}
