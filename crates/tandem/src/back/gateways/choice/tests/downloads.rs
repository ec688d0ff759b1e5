//! Tests of responses that have begun when their session falls silent.

use std::task::Poll;

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

/// Resolves once a reply without a next part proposes to request its rest elsewhere.
pub(super) async fn proposal(reply: &mut Reply) {
    let proposed = std::future::poll_fn(|cx| {
        assert!(reply.poll_part(cx).is_pending(), "it goes on");
        match reply.proposes_move() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    proposed.await;
}

#[test]
fn response_that_may_move_leaves_a_dead_session() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].dies_in.set(400 * MS);
        let mut reply = begin(&scene, &key).await;
        reply.permit_move();
        let begun = tokio::time::Instant::now();
        proposal(&mut reply).await;
        assert!(begun.elapsed() < 410 * MS, "{:?}", begun.elapsed());
        assert_eq!(
            scene.ways[TLS].runs.get(),
            0,
            "its reader requests the rest"
        );
        assert_eq!(scene.get(&key).await, TLS);
        // The rest may be there no more, and the path may come back.
        scene.ways[QUIC].is_blocked.set(false);
        assert!(matches!(reply.part().await, Some(Ok(Part::Data(_)))));
        assert!(reply.part().await.is_none());
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
fn response_that_may_move_stays_in_a_gap() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].dies_in.set(400 * MS);
        let mut reply = begin(&scene, &key).await;
        reply.permit_move();
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
fn response_that_may_move_stays_while_no_way_works() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[TLS].is_refused.set(true);
        let mut reply = begin(&scene, &key).await;
        reply.permit_move();
        let waited = tokio::time::timeout(Duration::from_secs(20), reply.part());
        assert!(waited.await.is_err(), "a datagram may still arrive");
        scene.ways[QUIC].is_blocked.set(false);
        assert!(matches!(reply.part().await, Some(Ok(Part::Data(_)))));
    });
}

/// A slow reader gets the bytes that arrived before the path died.
#[test]
fn response_that_may_move_is_read_before_it_moves() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].parts.set(20);
        let mut reply = begin(&scene, &key).await;
        reply.permit_move();
        for _ in 0..20 {
            tokio::time::sleep(100 * MS).await;
            assert!(matches!(reply.part().await, Some(Ok(Part::Data(_)))));
        }
        proposal(&mut reply).await;
    });
}

/// The verdict may come while the head waits for its reader, who permits the move with it.
#[test]
fn response_leaves_a_throttled_way_once_it_may_move() {
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
        reply.permit_move();
        proposal(&mut reply).await;
        assert!(scene.pool.is_open(&key, QUIC), "it stays for others");
    });
}

/// The session has left its key by then, so that no other verdict about it follows.
#[test]
fn response_leaves_a_broken_session_once_it_may_move() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        let mut reply = begin(&scene, &key).await;
        let waited = tokio::time::timeout(Duration::from_secs(20), reply.part());
        assert!(waited.await.is_err(), "its rest cannot be requested");
        assert!(!scene.pool.is_open(&key, QUIC), "it is broken");
        reply.permit_move();
        let proposed = tokio::time::timeout(MS, proposal(&mut reply));
        assert_eq!(proposed.await, Ok(()));
    });
}

/// The reader permits another proposal after a move that it declined.
#[test]
fn response_on_a_silent_session_may_be_proposed_again() {
    run(async {
        for is_broken in [false, true] {
            let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
            let quic = &scene.ways[QUIC];
            quic.datagrams.set(Some(1));
            quic.body_takes.set(Duration::from_secs(600));
            let mut reply = begin(&scene, &key).await;
            reply.permit_move();
            proposal(&mut reply).await;
            if is_broken {
                let waited = tokio::time::timeout(Duration::from_secs(20), reply.part());
                assert!(waited.await.is_err(), "the reader stays");
                assert!(!scene.pool.is_open(&key, QUIC));
            }
            assert!(reply.proposes_move());
            // The path may be dead on.
            reply.permit_move();
            proposal(&mut reply).await;
            // It may also come back, and fall silent again.
            quic.is_blocked.set(false);
            quic.datagrams.set(Some(2));
            reply.permit_move();
            let waited = tokio::time::timeout(Duration::from_secs(5), proposal(&mut reply));
            assert!(waited.await.is_err(), "the path delivers");
            quic.is_blocked.set(true);
            let proposed = tokio::time::timeout(Duration::from_secs(10), proposal(&mut reply));
            assert_eq!(proposed.await, Ok(()), "{is_broken}");
        }
    });
}

/// Others of the session depend on the watch: a dead one takes no more requests.
#[test]
fn silent_session_is_watched_after_a_proposal() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        let quic = &scene.ways[QUIC];
        quic.body_takes.set(Duration::from_secs(600));
        let mut reply = begin(&scene, &key).await;
        quic.is_blocked.set(false);
        reply.permit_move();
        let group = &scene.pool.groups[0];
        let _ = tokio::time::timeout(100 * MS, reply.part()).await;
        group.throttled.notify_waiters();
        proposal(&mut reply).await;
        assert!(scene.pool.is_open(&key, QUIC));
        quic.is_blocked.set(true);
        let waited = tokio::time::timeout(Duration::from_secs(20), reply.part());
        assert!(waited.await.is_err(), "the reader stays");
        assert!(!scene.pool.is_open(&key, QUIC), "it is broken");
    });
}
