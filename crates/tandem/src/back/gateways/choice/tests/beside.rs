//! Tests of the move from a session over TCP that has stalled to another one by the same way.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Creates a scene in which the session of a client without keys is one over TCP, since no other
/// way answers.
async fn on_tcp() -> (Rc<Scene>, Isolation) {
    let key = Isolation::none();
    let scene = Rc::new(Scene::new([3_600_000, 3_600_000, 50]));
    assert_eq!(scene.get(&key).await, TLS);
    (scene, key)
}

/// Loses the sessions over TCP that are open now.
async fn lose(scene: &Scene) {
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
        free.permit_break();
        lose(&scene).await;
        let waited = tokio::time::timeout(Duration::from_secs(10), bound.part());
        assert!(waited.await.is_err(), "the path may come back");
        let part = tokio::time::timeout(Duration::from_secs(10), free.part());
        let part = part.await.expect("it moves");
        let error = part.and_then(Result::err).expect("an error");
        assert_eq!((error.kind, error.side), (Kind::Timeout, Side::Peer));
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
    run(async {
        let (scene, key) = on_tcp().await;
        lose(&scene).await;
        scene.ways[TLS].is_refused.set(true);
        spawn_requests(&scene, &key, 5);
        tokio::time::sleep(Duration::from_secs(60)).await;
        // After 0, 1, 3, 7, 15, 23, … seconds, beside the first one.
        let dials = scene.ways[TLS].dials.get() - 1;
        assert!((8..=11).contains(&dials), "{dials}");
        scene.ways[TLS].is_refused.set(false);
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(scene.ways[TLS].requests.get(), 6);
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

/// A new circuit has a price, and the acknowledgements are those of the proxy.
#[test]
fn session_through_a_proxy_is_not_replaced() {
    run(async {
        let way = Rc::new(Way::new(50 * MS, false));
        let own = Rc::clone(&way);
        let gateways = vec![gateway(move |_| connect(&own), WayEntry::default())];
        let pool = Gateways::new(gateways, LIMITS, None);
        way.is_blocked.set(true);
        let request = RequestHead::get(Scheme::Http, "site.example", "/");
        let mut reply = ToGateway(pool).call(Exchange::internal(request));
        let waited = tokio::time::timeout(Duration::from_secs(40), reply.part());
        assert!(waited.await.is_err());
        assert_eq!(way.dials.get(), 1);
    });
}
