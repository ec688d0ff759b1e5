//! Gateways of a fleet that do not fit together, and records that an intruder of the engine made.

use std::time::{SystemTime, UNIX_EPOCH};

use tandem::fleet::{FleetCounts, LOG_KEY};
use tandem_fleet::{Content, FleetKey, GatewayId, Sealer};

use crate::at_once::at_once;
use crate::fleet::{KEY, KeyFile, append, await_lesson, counts, knows, learn, teach, wait_until};
use crate::learning::{Gateway, origin};
use crate::redis_server::RedisServer;

fn gateway(key: &KeyFile, server: &RedisServer, users: u8) -> Gateway {
    Gateway::start_with("h2", |options| {
        options.hold_out = Some(0.0);
        options.predict_users = Some(users);
        options.share = Some(server.url());
        options.share_key = Some(key.0.clone());
    })
}

#[test]
fn receiver_requires_its_own_predict_users() {
    let (server, key) = (RedisServer::start(), KeyFile::new("least", KEY));
    let [few, many] = [2, 4].map(|users| gateway(&key, &server, users));
    let (origin, _) = origin();
    learn(&few, &origin, 2);
    wait_until("the gains", &few, |counts| counts.sent.value() >= 2);
    let sent = counts(&few).sent.value();
    wait_until("records", &many, |counts| counts.received.value() >= sent);
    assert!(knows(&few, &origin) && !knows(&many, &origin));
    learn(&few, &origin, 8);
    await_lesson(&many, &origin, 0.8);
}

#[test]
fn record_of_a_wrong_clock_is_ignored() {
    let (server, key) = (RedisServer::start(), KeyFile::new("clock", KEY));
    let gateways = [3, 3].map(|users| gateway(&key, &server, users));
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let fleet_key = FleetKey::new(KEY.as_bytes()).unwrap();
    let at = |gateway: u8, time: u64| {
        let mut sealer = Sealer::new(&fleet_key, GatewayId([gateway; 16]));
        let record = sealer.seal(time, &Content::Users(vec![])).unwrap();
        append(&server, &record);
    };
    // A clock of an hour ahead, one of two days ago, and one that is wrong by less than allowed.
    at(1, now + 3600);
    at(2, now - 2 * 24 * 3600);
    at(3, now + 120);
    for gateway in &gateways {
        wait_until("the record in time", gateway, |counts| {
            counts.received.value() == 1
        });
        assert_eq!(
            counts(gateway).refused.value(),
            1,
            "an expired one is not counted"
        );
    }
}

/// Appends an entry that is longer than any response of the engine may be.
fn append_giant(server: &RedisServer, id: &str) {
    let _: String = redis::cmd("XADD")
        .arg(LOG_KEY)
        .arg(&[id, "r"])
        .arg(vec![b'x'; 9 << 20])
        .query(&mut server.connection())
        .unwrap();
}

#[test]
fn giant_entry_does_not_end_the_sharing() {
    at_once(
        [("giant", "*"), ("giant-of-the-future", "9999999999999-5")],
        |(name, id)| {
            let (server, key) = (RedisServer::start(), KeyFile::new(name, KEY));
            let (one, other) = (gateway(&key, &server, 3), gateway(&key, &server, 3));
            for gateway in [&one, &other] {
                wait_until("the engine", gateway, FleetCounts::is_up);
            }
            append_giant(&server, id);
            let has_passed = |counts: &FleetCounts| counts.failures.value() > 1 && counts.is_up();
            for gateway in [&one, &other] {
                wait_until("the way past the entry", gateway, has_passed);
            }
            let (origin, _) = origin();
            teach(&one, &[&other], &origin);
            // A gateway that starts later passes by the entry too.
            let later = gateway(&key, &server, 3);
            wait_until("the way past the entry", &later, has_passed);
            let (origin, _) = crate::learning::origin();
            teach(&one, &[&later], &origin);
        },
    );
}
