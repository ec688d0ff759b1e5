//! Tests of responses that have begun when their session falls silent.

use super::*;

/// Begins a response over QUIC, and blocks that way once its head has come.
async fn begin(scene: &Scene, key: &Isolation) -> Reply {
    scene.ways[QUIC].has_body.set(true);
    let exchange = Exchange {
        isolation: key.clone(),
        ..Exchange::internal(RequestHead::get(Scheme::Http, "site.example", "/"))
    };
    let mut reply = ToGateway(Rc::clone(&scene.pool)).call(exchange);
    assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
    scene.ways[QUIC].is_blocked.set(true);
    reply
}

/// Returns the error of the next part.
async fn failure(reply: &mut Reply) -> (Kind, Side) {
    match reply.part().await {
        Some(Err(error)) => (error.kind, error.side),
        other => panic!("{other:?}"),
    }
}

#[test]
fn response_that_may_break_leaves_a_dead_session() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].dies_in.set(400 * MS);
        let mut reply = begin(&scene, &key).await;
        reply.permit_break();
        let begun = tokio::time::Instant::now();
        assert_eq!(failure(&mut reply).await, (Kind::Timeout, Side::Peer));
        assert!(begun.elapsed() < 410 * MS, "{:?}", begun.elapsed());
        assert_eq!(
            scene.ways[TLS].runs.get(),
            0,
            "its reader requests the rest"
        );
        assert_eq!(scene.get(&key).await, TLS);
    });
}

#[test]
fn response_without_a_rest_waits_for_its_path() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        let mut reply = begin(&scene, &key).await;
        let waited = tokio::time::timeout(Duration::from_secs(10), reply.part());
        assert!(waited.await.is_err());
        scene.ways[QUIC].is_blocked.set(false);
        assert!(matches!(reply.part().await, Some(Ok(Part::Data(_)))));
        assert!(reply.part().await.is_none());
    });
}

#[test]
fn response_that_may_break_stays_in_a_gap() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].dies_in.set(400 * MS);
        let mut reply = begin(&scene, &key).await;
        reply.permit_break();
        let ways = scene.ways.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(350 * MS).await;
            ways[QUIC].is_blocked.set(false);
        });
        assert!(matches!(reply.part().await, Some(Ok(Part::Data(_)))));
        assert!(reply.part().await.is_none());
    });
}

#[test]
fn response_that_may_break_stays_while_no_way_works() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[TLS].is_refused.set(true);
        let mut reply = begin(&scene, &key).await;
        reply.permit_break();
        let waited = tokio::time::timeout(Duration::from_secs(20), reply.part());
        assert!(waited.await.is_err(), "a datagram may still arrive");
        scene.ways[QUIC].is_blocked.set(false);
        assert!(matches!(reply.part().await, Some(Ok(Part::Data(_)))));
    });
}

/// A slow reader gets the bytes that arrived before the path died.
#[test]
fn response_that_may_break_is_read_before_it_moves() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].parts.set(20);
        let mut reply = begin(&scene, &key).await;
        reply.permit_break();
        for _ in 0..20 {
            tokio::time::sleep(100 * MS).await;
            assert!(matches!(reply.part().await, Some(Ok(Part::Data(_)))));
        }
        assert_eq!(failure(&mut reply).await, (Kind::Timeout, Side::Peer));
    });
}

/// The verdict may come while the head waits for its reader, who permits the break with it.
#[test]
fn response_leaves_a_throttled_way_once_it_may_break() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        let mut reply = begin(&scene, &key).await;
        scene.ways[QUIC].is_blocked.set(false);
        let group = &scene.pool.groups[0];
        let network = network_of(([0; 4], 0).into());
        group.ways.borrow_mut().throttled(network, now());
        group.throttled.notify_waiters();
        let waited = tokio::time::timeout(100 * MS, reply.part());
        assert!(waited.await.is_err(), "its rest cannot be requested");
        reply.permit_break();
        assert_eq!(failure(&mut reply).await, (Kind::Timeout, Side::Peer));
        assert!(scene.pool.is_open(&key, QUIC), "it stays for others");
    });
}

/// The session has left its key by then, so that no other verdict about it follows.
#[test]
fn response_leaves_a_broken_session_once_it_may_break() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        let mut reply = begin(&scene, &key).await;
        let waited = tokio::time::timeout(Duration::from_secs(20), reply.part());
        assert!(waited.await.is_err(), "its rest cannot be requested");
        assert!(!scene.pool.is_open(&key, QUIC), "it is broken");
        reply.permit_break();
        let ended = tokio::time::timeout(MS, failure(&mut reply));
        assert_eq!(ended.await, Ok((Kind::Timeout, Side::Peer)));
    });
}
