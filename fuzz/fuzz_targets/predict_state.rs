//! A state file of any bytes under a right name, version and checksum: refused, or as good as one
//! that was saved.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_predict::{Auto, AutoConfig, Exchange};

/// Name and version, as they are written today.
const PREFIX: usize = 20;

fuzz_target!(|data: &[u8]| {
    let config = AutoConfig {
        min_users: 1,
        max_memory: 1 << 20,
        ..AutoConfig::default()
    };
    let mut bytes = [&Auto::new(config.clone()).save()[..PREFIX], data].concat();
    let checksum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    bytes.extend_from_slice(&checksum.to_le_bytes());
    let Ok(mut auto) = Auto::load(&bytes, config.clone()) else {
        return;
    };
    let url = "http://h.example/a/b.html";
    for (session, now) in [(1, 0), (2, 700_000)] {
        auto.sending(&Exchange {
            session,
            user: session,
            now,
            url,
            get: true,
            status: 200,
            ..Exchange::default()
        });
        auto.session_closed(session);
    }
    let saved = auto.save();
    let mut again = Auto::load(&saved, config.clone()).expect("what was saved loads");
    let mut merged = Auto::new(config);
    merged.merge(&again);
    again.merge(&merged);
});
