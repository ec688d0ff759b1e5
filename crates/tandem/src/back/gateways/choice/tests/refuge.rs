//! Tests of the move from a silent session over datagrams to one over TCP.

use super::*;

#[test]
fn stale_tcp_session_is_replaced() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        open(&scene, &key, TLS).await;
        tokio::time::sleep(MS).await;
        let now = tokio::time::Instant::now();
        scene.ways[TLS].lost_before.set(Some(now));
        scene.ways[QUIC].is_blocked.set(true);
        let got = tokio::time::timeout(Duration::from_secs(3), scene.get(&key));
        assert_eq!(got.await, Ok(TLS));
        assert_eq!(scene.ways[TLS].dials.get(), 2);
    });
}

#[test]
fn tcp_session_of_another_network_is_replaced() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        open(&scene, &key, TLS).await;
        tokio::time::sleep(MS).await;
        NETWORK.set(2);
        let begun = tokio::time::Instant::now();
        scene.ways[TLS].lost_before.set(Some(begun));
        let got = tokio::time::timeout(200 * MS, scene.get(&key));
        assert_eq!(got.await, Ok(TLS));
    });
}

#[test]
fn doubted_session_ends_after_another_failure() {
    run(async {
        let scene = Scene::new([50, 9000, 40]);
        let [first, second] = [b"a", b"b"].map(|user| Isolation::new(user, b""));
        assert_eq!(scene.get(&first).await, QUIC);
        // The next session by this way is too slow. It counts as failed while the first is doubted.
        scene.ways[QUIC].takes.set(Duration::from_secs(9));
        assert_eq!(scene.get(&second).await, TLS);
        tokio::time::sleep(3500 * MS).await;
        scene.ways[QUIC].is_blocked.set(true);
        assert_eq!(scene.get(&first).await, TLS);
        let network = network_of(([0; 4], 0).into());
        let ways = &scene.pool.groups[0].ways;
        assert!(!ways.borrow().has_failed(network, QUIC));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(ways.borrow().has_failed(network, QUIC));
        assert!(!scene.pool.slots.borrow().contains_key(&(first, QUIC)));
    });
}

#[test]
fn request_prefers_tcp_to_other_datagrams() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 60, 100]).await;
        open(&scene, &key, DTLS).await;
        for way in [QUIC, DTLS] {
            scene.ways[way].is_blocked.set(true);
        }
        assert_eq!(scene.get(&key).await, TLS);
        let runs = [QUIC, DTLS].map(|way| scene.ways[way].runs.get());
        assert_eq!(runs.iter().sum::<usize>(), 2, "{runs:?}");
        // The other way over datagrams takes requests once it has answered.
        scene.ways[DTLS].is_blocked.set(false);
        tokio::time::sleep(5 * MS).await;
        assert_eq!(scene.get(&key).await, DTLS);
    });
}

#[test]
fn ended_session_in_doubt_does_not_break_its_way() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].ends_at_probe.set(true);
        scene.ways[QUIC].is_blocked.set(true);
        assert_eq!(scene.get(&key).await, TLS);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let network = network_of(([0; 4], 0).into());
        let ways = &scene.pool.groups[0].ways;
        assert!(!ways.borrow().has_failed(network, QUIC));
    });
}

#[test]
fn exchanges_of_a_key_share_the_probe_of_their_refuge() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        open(&scene, &key, TLS).await;
        scene.ways[TLS].answers_in.set(40 * MS);
        scene.ways[QUIC].is_blocked.set(true);
        spawn_requests(&scene, &key, 100);
        tokio::time::sleep(200 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), 100);
        assert_eq!(scene.ways[TLS].probes.get(), 1);
    });
}

#[test]
fn exchanges_of_a_key_share_refused_dials() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[TLS].is_refused.set(true);
        scene.ways[QUIC].is_blocked.set(true);
        for _ in 0..10 {
            spawn_requests(&scene, &key, 10);
            tokio::time::sleep(30 * MS).await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let dials = scene.ways[TLS].dials.get();
        assert!((3..=5).contains(&dials), "{dials}");
    });
}

#[test]
fn refuge_that_no_exchange_needed_is_closed() {
    run(async {
        let scene = Rc::new(Scene::new([50, 5000, 500]));
        let key = Isolation::none();
        scene.ways[QUIC].datagrams.set(Some(1));
        assert_eq!(scene.get(&key).await, QUIC);
        // A late datagram arrives while TCP is dialled.
        scene.ways[QUIC].is_blocked.set(true);
        spawn_requests(&scene, &key, 2);
        tokio::time::sleep(100 * MS).await;
        assert!(scene.pool.slots.borrow().contains_key(&(key.clone(), TLS)));
        scene.ways[QUIC].is_blocked.set(false);
        scene.ways[QUIC].datagrams.set(Some(2));
        tokio::time::sleep(30 * MS).await;
        assert_eq!(scene.ways[QUIC].requests.get(), 3);
        assert!(!scene.pool.slots.borrow().contains_key(&(key.clone(), TLS)));
        // An open session over TCP that had another reason stays.
        open(&scene, &key, TLS).await;
        scene.ways[TLS].answers_in.set(100 * MS);
        scene.ways[QUIC].is_blocked.set(true);
        spawn_requests(&scene, &key, 1);
        tokio::time::sleep(50 * MS).await;
        scene.ways[QUIC].is_blocked.set(false);
        scene.ways[QUIC].datagrams.set(Some(3));
        tokio::time::sleep(50 * MS).await;
        assert_eq!(scene.ways[QUIC].requests.get(), 4);
        assert!(scene.pool.slots.borrow().contains_key(&(key, TLS)));
    });
}

#[test]
fn request_waits_until_the_silent_path_is_dead() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].dies_in.set(400 * MS);
        scene.ways[QUIC].is_blocked.set(true);
        let begun = tokio::time::Instant::now();
        let moved = METRICS.exchanges_moved.value();
        assert_eq!(scene.get(&key).await, TLS);
        assert!(begun.elapsed() >= 400 * MS, "TCP had answered before");
        assert!(METRICS.exchanges_moved.value() > moved);
    });
}

#[test]
fn request_stays_if_datagrams_arrive_late() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].dies_in.set(400 * MS);
        scene.ways[QUIC].is_blocked.set(true);
        spawn_requests(&scene, &key, 2);
        tokio::time::sleep(300 * MS).await;
        assert!(scene.pool.is_open(&key, TLS), "it has answered");
        scene.ways[QUIC].is_blocked.set(false);
        tokio::time::sleep(5 * MS).await;
        assert_eq!(scene.ways[QUIC].requests.get(), 3);
        assert_eq!(scene.ways[TLS].runs.get(), 0);
        assert!(scene.pool.is_open(&key, QUIC), "it is not doubted");
        assert!(!scene.pool.slots.borrow().contains_key(&(key, TLS)));
    });
}

#[test]
fn request_stays_on_datagrams_while_tcp_is_dead_too() {
    run(async {
        for is_open in [false, true] {
            let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
            if is_open {
                open(&scene, &key, TLS).await;
            }
            let mark = scene.slot_mark(&key, QUIC);
            for way in [QUIC, TLS] {
                scene.ways[way].is_blocked.set(true);
            }
            scene.ways[TLS].takes.set(Duration::from_secs(3600));
            spawn_requests(&scene, &key, 3);
            tokio::time::sleep(Duration::from_secs(60)).await;
            let runs = scene.ways[QUIC].runs.get();
            assert_eq!(
                (runs, scene.ways[TLS].runs.get()),
                (4, 0),
                "none is repeated"
            );
            scene.ways[QUIC].is_blocked.set(false);
            tokio::time::sleep(5 * MS).await;
            assert_eq!(scene.ways[QUIC].requests.get(), 4);
            assert!(Rc::ptr_eq(&mark, &scene.slot_mark(&key, QUIC)));
        }
    });
}

#[test]
fn unsafe_request_is_not_repeated_over_tcp() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].is_blocked.set(true);
        let post = spawn(&scene, Method::Post, &key);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(scene.ways[TLS].runs.get(), 0, "it waits for the path");
        // Later requests do not.
        assert_eq!(scene.ask(Method::Post, &key).await, TLS);
        scene.ways[QUIC].is_blocked.set(false);
        assert_eq!(post.await.expect("it ended"), QUIC);
        assert_eq!(scene.ways[QUIC].runs.get(), 2);
    });
}

#[test]
fn throttled_way_is_left_without_silence() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        // Datagrams arrive, and the response takes long.
        scene.ways[QUIC].responds_in.set(Duration::from_secs(60));
        spawn_requests(&scene, &key, 1);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(scene.ways[TLS].dials.get(), 0, "the path is not silent");
        let network = network_of(([0; 4], 0).into());
        let group = &scene.pool.groups[0];
        group.ways.borrow_mut().throttled(network, now());
        group.throttled.notify_waiters();
        tokio::time::sleep(200 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), 1);
    });
}

#[test]
fn checks_of_a_refuge_without_answer_are_ever_rarer() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[TLS].is_refused.set(true);
        scene.ways[QUIC].is_blocked.set(true);
        spawn_requests(&scene, &key, 5);
        let mut dials = Vec::new();
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(15)).await;
            dials.push(scene.ways[TLS].dials.get());
        }
        // After 0, 1, 3, 7, 15, 23, … seconds, and up to a second later each.
        assert!((4..=5).contains(&dials[0]), "{dials:?}");
        assert!(dials[3] <= 11, "{dials:?}");
        // The refuge is found once it works.
        scene.ways[TLS].is_refused.set(false);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(scene.ways[TLS].requests.get(), 5);
    });
}

#[test]
fn path_that_comes_and_goes_dials_once_a_second() {
    run(async {
        let scene = Rc::new(Scene::new([50, 5000, 500]));
        let key = Isolation::none();
        scene.ways[QUIC].datagrams.set(Some(1));
        assert_eq!(scene.get(&key).await, QUIC);
        scene.ways[QUIC].is_blocked.set(true);
        spawn_requests(&scene, &key, 2);
        for datagram in 2..52 {
            tokio::time::sleep(200 * MS).await;
            scene.ways[QUIC].datagrams.set(Some(datagram));
        }
        let dials = scene.ways[TLS].dials.get();
        // After 0, 0.25 and 0.75 s, and after each second.
        assert!((8..=12).contains(&dials), "{dials}");
        assert_eq!(scene.ways[TLS].runs.get(), 0);
    });
}

#[test]
fn failed_check_does_not_count_on_another_network() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[TLS].is_refused.set(true);
        scene.ways[QUIC].is_blocked.set(true);
        spawn_requests(&scene, &key, 2);
        // Checks follow each other after eight seconds now.
        tokio::time::sleep(15_500 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), 0);
        let dials = scene.ways[TLS].dials.get();
        scene.ways[TLS].is_refused.set(false);
        NETWORK.set(2);
        tokio::time::sleep(1200 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), 2);
        assert_eq!(scene.ways[TLS].dials.get(), dials + 1);
    });
}

/// The first datagrams of a connection are lost, and the carrier repeats them.
#[test]
fn session_without_handshake_is_not_doubted() {
    run(async {
        let scene = Scene::new([50, 5000, 100]);
        let [first, second] = [b"a", b"b"].map(|user| Isolation::new(user, b""));
        assert_eq!(scene.get(&first).await, QUIC);
        scene.ways[QUIC].is_early.set(true);
        scene.ways[QUIC].takes.set(1500 * MS);
        let begun = tokio::time::Instant::now();
        assert_eq!(scene.get(&second).await, TLS);
        assert!(begun.elapsed() <= STAGGER + 110 * MS);
        assert_eq!(scene.ways[QUIC].runs.get(), 2, "it has moved");
        let mark = scene.slot_mark(&second, QUIC);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let network = network_of(([0; 4], 0).into());
        let ways = &scene.pool.groups[0].ways;
        let (dials, probes) = (&scene.ways[QUIC].dials, &scene.ways[QUIC].probes);
        assert_eq!((dials.get(), probes.get()), (2, 0));
        assert!(!ways.borrow().has_failed(network, QUIC));
        assert!(scene.pool.is_open(&first, QUIC));
        assert_eq!(scene.get(&second).await, QUIC);
        assert!(Rc::ptr_eq(&mark, &scene.slot_mark(&second, QUIC)));
    });
}

#[test]
fn late_datagram_delays_the_next_check_for_a_moment() {
    run(async {
        let scene = Rc::new(Scene::new([50, 5000, 500]));
        let key = Isolation::none();
        scene.ways[QUIC].datagrams.set(Some(1));
        assert_eq!(scene.get(&key).await, QUIC);
        scene.ways[QUIC].is_blocked.set(true);
        spawn_requests(&scene, &key, 1);
        tokio::time::sleep(100 * MS).await;
        scene.ways[QUIC].datagrams.set(Some(2));
        // The first check ends soon. The second one begins after 250 ms.
        tokio::time::sleep(700 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), 1);
    });
}

#[test]
fn third_doubt_within_a_minute_breaks_the_way() {
    run(async {
        for (pause, is_broken) in [(5, true), (40, false)] {
            let scene = Scene::new([50, 5000, 100]);
            let key = Isolation::none();
            let network = network_of(([0; 4], 0).into());
            let ways = &scene.pool.groups[0].ways;
            for _ in 0..3 {
                assert_eq!(scene.get(&key).await, QUIC);
                assert!(!ways.borrow().has_failed(network, QUIC));
                scene.ways[QUIC].is_blocked.set(true);
                assert_eq!(scene.get(&key).await, TLS);
                scene.ways[QUIC].is_blocked.set(false);
                tokio::time::sleep(Duration::from_secs(pause)).await;
            }
            assert_eq!(ways.borrow().has_failed(network, QUIC), is_broken);
        }
    });
}

#[test]
fn only_other_ways_race_against_a_doubted_session() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].is_blocked.set(true);
        assert_eq!(scene.get(&key).await, TLS);
        scene.pool.close_all(|_, index, _| index == TLS);
        let begun = tokio::time::Instant::now();
        assert_eq!(scene.get(&key).await, TLS);
        assert!(begun.elapsed() <= 110 * MS, "{:?}", begun.elapsed());
        assert_eq!(scene.ways[QUIC].runs.get(), 2);
        // It takes part in a race by its answer to a probe.
        scene.pool.close_all(|_, index, _| index == TLS);
        scene.ways[QUIC].is_blocked.set(false);
        assert_eq!(scene.get(&key).await, QUIC);
    });
}

#[test]
fn throttled_way_is_left_between_two_checks() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].responds_in.set(Duration::from_secs(60));
        scene.ways[TLS].is_refused.set(true);
        scene.ways[QUIC].is_blocked.set(true);
        spawn_requests(&scene, &key, 1);
        tokio::time::sleep(200 * MS).await;
        assert_eq!(scene.ways[TLS].dials.get(), 1);
        for way in [QUIC, TLS] {
            scene.ways[way].is_blocked.set(false);
            scene.ways[way].is_refused.set(false);
        }
        let network = network_of(([0; 4], 0).into());
        let group = &scene.pool.groups[0];
        group.ways.borrow_mut().throttled(network, now());
        group.throttled.notify_waiters();
        tokio::time::sleep(200 * MS).await;
        assert_eq!(scene.ways[TLS].requests.get(), 1);
    });
}

#[test]
fn checks_of_an_ended_key_are_forgotten() {
    run(async {
        let scene = Scene::new([50, 5000, 100]);
        let key = Isolation::new(b"a", b"");
        assert_eq!(scene.get(&key).await, QUIC);
        scene.ways[QUIC].is_blocked.set(true);
        assert_eq!(scene.get(&key).await, TLS);
        assert!(!scene.pool.checks.is_empty());
        scene.pool.end(&key);
        assert!(scene.pool.checks.is_empty());
    });
}
