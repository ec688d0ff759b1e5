//! Tests of the return to datagrams after a move to TCP.

use super::*;

/// A new page of a key, whose pushes come on the session of the pool that opens for it.
#[test]
fn new_key_prefers_datagrams_once_they_have_returned() {
    run(async {
        let scene = Scene::new([50, 5000, 100]);
        let [first, second] = [b"a", b"b"].map(|user| Isolation::new(user, b""));
        assert_eq!(scene.get(&first).await, QUIC);
        scene.ways[QUIC].is_blocked.set(true);
        assert_eq!(scene.get(&first).await, TLS);
        assert_eq!(scene.pool.preferred.get(), TLS);
        scene.ways[QUIC].is_blocked.set(false);
        tokio::time::sleep(100 * MS).await;
        let opened = ToGateway(Rc::clone(&scene.pool)).open(&second);
        let opened = opened.expect("a session");
        assert_eq!(scene.get(&second).await, QUIC);
        assert!(Rc::ptr_eq(&opened, &scene.slot_mark(&second, QUIC)));
    });
}

/// Requests of a key and its pushes use the same session, whatever the other keys prefer.
#[test]
fn session_for_pushes_is_that_of_requests() {
    run(async {
        let scene = Scene::new([50, 60, 70]);
        let key = Isolation::none();
        for way in [QUIC, DTLS, TLS] {
            open(&scene, &key, way).await;
            tokio::time::sleep(MS).await;
        }
        let network = network_of(([0; 4], 0).into());
        let fail = |way: usize| {
            let error = Error::new(Kind::Timeout, Side::Peer, "no answer");
            scene.pool.way_failed(way, network, &error);
        };
        for failed in [None, Some(DTLS), Some(QUIC)] {
            failed.into_iter().for_each(fail);
            for preferred in [QUIC, DTLS, TLS] {
                scene.pool.preferred.set(preferred);
                let entry = scene.pool.entry(&key);
                assert_eq!(scene.get(&key).await, entry, "{failed:?}, {preferred}");
            }
        }
    });
}
