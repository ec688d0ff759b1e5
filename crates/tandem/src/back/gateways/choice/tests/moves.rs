//! Tests of sessions over TCP whose machine moves to another network.

use super::beside::{begin, lose, on_tcp, through_a_proxy};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Creates a scene whose session over TCP carries a response that does not end, and returns that
/// response after its head.
async fn with_tunnel() -> (Rc<Scene>, Isolation, Reply) {
    let (scene, key) = on_tcp().await;
    let way = &scene.ways[TLS];
    way.answers_at.set(Some(([192, 0, 2, 99], 1).into()));
    way.has_body.set(true);
    way.body_takes.set(3600 * SECOND);
    // A stall is noticed later than a move.
    way.stalls_in.set(3 * SECOND);
    let tunnel = begin(&scene, &key).await;
    // The source address has been seen.
    tokio::time::sleep(2 * SECOND).await;
    (scene, key, tunnel)
}

/// Returns true if a response fails within some seconds.
async fn fails(tunnel: &mut Reply, seconds: u32) -> bool {
    match tokio::time::timeout(seconds * SECOND, tunnel.part()).await {
        Ok(Some(Err(_))) => true,
        Err(_) => false,
        Ok(_) => panic!("the response goes on"),
    }
}

#[test]
fn tunnel_ends_after_a_move_without_an_answer() {
    run(async {
        let (scene, key, mut tunnel) = with_tunnel().await;
        lose(&scene).await;
        NETWORK.set(2);
        assert!(fails(&mut tunnel, 5).await);
        assert_eq!(scene.ways[TLS].dials.get(), 2);
        assert!(scene.pool.is_open(&key, TLS));
    });
}

/// The machine has got another address beside the first one.
#[test]
fn tunnel_stays_if_its_session_answers_after_a_move() {
    run(async {
        let (scene, key, mut tunnel) = with_tunnel().await;
        let mark = scene.slot_mark(&key, TLS);
        scene.ways[TLS].answers_in.set(1500 * MS);
        NETWORK.set(2);
        assert!(!fails(&mut tunnel, 100).await);
        assert_eq!(scene.ways[TLS].probes.get(), 1);
        assert_eq!(scene.ways[TLS].dials.get(), 2);
        let next = scene.slot_mark(&key, TLS);
        assert!(!Rc::ptr_eq(&mark, &next), "new requests go by another one");
    });
}

/// The PING waits behind an upload in a long queue, whose bytes are acknowledged meanwhile.
#[test]
fn tunnel_stays_while_its_session_makes_progress() {
    run(async {
        let (scene, _key, mut tunnel) = with_tunnel().await;
        let way = Rc::clone(&scene.ways[TLS]);
        way.acknowledged.set(Some(0));
        way.answers_in.set(20 * SECOND);
        NETWORK.set(2);
        tokio::task::spawn_local(async move {
            for count in 1..20 {
                tokio::time::sleep(SECOND).await;
                way.acknowledged.set(Some(count));
            }
        });
        assert!(!fails(&mut tunnel, 100).await);
        assert_eq!(scene.ways[TLS].probes.get(), 1);
    });
}

/// Two default routes may have an equal cost.
#[test]
fn changing_source_causes_ever_fewer_dials() {
    run(async {
        let (scene, key, mut tunnel) = with_tunnel().await;
        let way = &scene.ways[TLS];
        assert!(!fails(&mut tunnel, 1).await);
        way.has_body.set(false);
        for second in 0..600_u16 {
            NETWORK.set(1 + u8::from(second % 2 == 0));
            assert_eq!(scene.ask(Method::Post, &key).await, TLS);
            tokio::time::sleep(SECOND).await;
        }
        let dials = way.dials.get();
        assert!((8..20).contains(&dials), "{dials}");
        assert!(!fails(&mut tunnel, 200).await);
        for moves in 1..3 {
            NETWORK.set(3 - NETWORK.get());
            assert_eq!(scene.ask(Method::Post, &key).await, TLS);
            assert_eq!(way.dials.get(), dials + moves);
            tokio::time::sleep(3 * SECOND).await;
        }
    });
}

#[test]
fn request_after_a_move_gets_a_new_session() {
    run(async {
        let (scene, key, _tunnel) = with_tunnel().await;
        scene.ways[TLS].has_body.set(false);
        lose(&scene).await;
        NETWORK.set(2);
        tokio::time::sleep(100 * MS).await;
        let answered = tokio::time::timeout(SECOND / 2, scene.ask(Method::Post, &key));
        assert_eq!(answered.await, Ok(TLS));
    });
}

#[test]
fn idle_session_is_replaced_after_a_move() {
    run(async {
        let (scene, key) = on_tcp().await;
        scene.ways[TLS]
            .answers_at
            .set(Some(([192, 0, 2, 99], 1).into()));
        assert_eq!(scene.get(&key).await, TLS);
        tokio::time::sleep(60 * SECOND).await;
        LOOKS.set(0);
        // The dials by the other ways end after an hour.
        tokio::time::sleep(3000 * SECOND).await;
        assert_eq!(LOOKS.get(), 0, "an idle session costs nothing");
        lose(&scene).await;
        NETWORK.set(2);
        let answered = tokio::time::timeout(SECOND / 2, scene.ask(Method::Post, &key));
        assert_eq!(answered.await, Ok(TLS));
        assert_eq!(scene.ways[TLS].dials.get(), 2);
    });
}

#[test]
fn session_stays_if_its_address_comes_back() {
    run(async {
        let (scene, _key, mut tunnel) = with_tunnel().await;
        NETWORK.set(0);
        tokio::time::sleep(10 * SECOND).await;
        NETWORK.set(1);
        assert!(!fails(&mut tunnel, 100).await);
        assert_eq!(scene.ways[TLS].dials.get(), 1);
        assert_eq!(scene.ways[TLS].probes.get(), 0);
    });
}

/// Neither network may deliver anything for a while.
#[test]
fn unanswered_session_stays_until_another_works() {
    run(async {
        for returns in [true, false] {
            NETWORK.set(1);
            let (scene, _key, mut tunnel) = with_tunnel().await;
            lose(&scene).await;
            scene.ways[TLS].takes.set(20 * SECOND);
            NETWORK.set(2);
            assert!(!fails(&mut tunnel, 19).await);
            if returns {
                scene.ways[TLS].lost_before.set(None);
            }
            assert_eq!(fails(&mut tunnel, 19).await, !returns);
        }
    });
}

/// A pool of a former configuration opens no session, and its tunnels end nevertheless.
#[test]
fn pool_that_drains_asks_its_sessions_after_a_move() {
    run(async {
        let (scene, _key, mut tunnel) = with_tunnel().await;
        scene.pool.drain();
        lose(&scene).await;
        NETWORK.set(2);
        assert!(fails(&mut tunnel, 5).await);
        assert_eq!(scene.ways[TLS].dials.get(), 1);
    });
}

/// The proxy is on this machine, and finds the move out itself.
#[test]
fn session_through_a_proxy_is_not_asked_after_a_move() {
    run(async {
        let (way, pool) = through_a_proxy();
        pool.source.set(network_of);
        way.answers_at.set(Some(([127, 0, 0, 1], 9050).into()));
        way.has_body.set(true);
        way.body_takes.set(3600 * SECOND);
        let request = RequestHead::get(Scheme::Http, "site.example", "/");
        let mut tunnel = ToGateway(pool).call(Exchange::internal(request));
        assert!(matches!(tunnel.part().await, Some(Ok(Part::Head(_)))));
        tokio::time::sleep(2 * SECOND).await;
        NETWORK.set(2);
        assert!(!fails(&mut tunnel, 100).await);
        assert_eq!((way.probes.get(), way.dials.get()), (0, 1));
    });
}
