//! A record of a fleet: no bytes are accepted that a gateway with the key did not write. The
//! plaintext of a record, the learned statistics and the reports of users in it are refused, or
//! safe to merge.
#![no_main]

use std::sync::LazyLock;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_cache::Incoming;
use tandem_fleet::{Content, FleetKey, GatewayId, Inbox, Refusal, Sightings, record};
use tandem_predict::{Auto, AutoConfig, Exchange, Gains};

static KEY: LazyLock<FleetKey> = LazyLock::new(|| FleetKey::new(&[7; 32]).expect("32 bytes"));

fuzz_target!(|input: &[u8]| {
    let refusal = Inbox::new(KEY.clone(), GatewayId([0; 16]), 0).accept(0, input);
    assert!(matches!(refusal, Err(Refusal::Foreign | Refusal::Forged)));
    merge(input);
    // A response that another gateway lends.
    let _ = Incoming::read(&Bytes::copy_from_slice(input));
    match record::decode(input) {
        Some((_, Content::Gains(gains))) => merge(&gains),
        Some((_, Content::Users(reports))) => count(&reports),
        _ => count(input),
    }
});

/// Merges learned statistics twice, and uses the result.
fn merge(bytes: &[u8]) {
    let Ok(gains) = Gains::read(bytes) else {
        return;
    };
    let again = Gains::read(&gains.write()).expect("the bytes were written by `write`");
    let mut auto = Auto::new(AutoConfig {
        min_users: 1,
        max_memory: 1 << 20,
        ..AutoConfig::default()
    });
    auto.count_gains();
    auto.merge_gains(gains);
    auto.merge_gains(again);
    for (session, now) in [(1, 0), (2, 700_000)] {
        for (url, referer) in [("http://h/", None), ("http://h/a.css", Some("http://h/"))] {
            auto.sending(&Exchange {
                session,
                user: session,
                now,
                url,
                get: true,
                status: 200,
                referer,
                ..Exchange::default()
            });
        }
        auto.session_closed(session);
    }
    while let Some(gains) = auto.take_gains(1 << 12) {
        Gains::read(&gains.write()).expect("the bytes were written by `write`");
    }
}

/// Notes reports of users.
fn count(reports: &[u8]) {
    let mut sightings = Sightings::new(KEY.of_names());
    if let Some(users) = sightings.heard(0, reports) {
        assert!(users.known.is_empty(), "no name is known");
    }
}
