//! Access logs of any bytes: lines of every format, the order of the entries, and their replay.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_predict::{Auto, AutoConfig};
use tandem_replay::log::{AccessLog, Filter};
use tandem_replay::{Algorithm, AutoReplay, Options, Sessions, replay, replay_basic};

fuzz_target!(|data: &[u8]| {
    let mut log = AccessLog::default();
    for line in data.split(|&byte| byte == b'\n') {
        log.push_line(
            line,
            Filter {
                noise: data.len() % 2 == 0,
            },
        );
    }
    log.finish();
    assert!(log.records.is_sorted_by_key(|record| record.time));
    let options = Options {
        algorithm: Algorithm::BasicMore,
        threshold: 0.1,
        keep_history: true,
        ..Options::default()
    };
    let tally = replay_basic(&log, &options, 180_000, |_| {});
    assert_eq!(tally.pushes, tally.hits + tally.mistakes);
    let sessions = Sessions::cut(&log, &log.records, 3_600_000, false);
    let auto = Auto::new(AutoConfig {
        min_users: 1,
        max_memory: 100_000,
        ..AutoConfig::default()
    });
    let tally = replay(
        &log,
        &log.records,
        &sessions,
        &mut AutoReplay::new(&log, &options, auto),
        |_| {},
    );
    assert_eq!(tally.pushes, tally.hits + tally.mistakes);
    assert_eq!(tally.considered, tally.pages + tally.assets);
});
