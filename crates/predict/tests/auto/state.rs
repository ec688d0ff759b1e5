//! The state of the predictor, saved and loaded.

use tandem_predict::{Auto, AutoConfig, StateError};

use crate::{PAGE, config, taught, visit};

#[test]
fn saved_loaded_and_merged() {
    let auto = taught(3, 40);
    let bytes = auto.save();
    let mut loaded = Auto::load(&bytes, config(3)).expect("its own bytes");
    assert_eq!(loaded.save(), bytes, "nothing is lost on the way");
    assert_eq!(visit(&mut loaded, 1, 1, 0, PAGE, &[]).len(), 3);
    let mut merged = Auto::new(config(3));
    merged.merge(&auto);
    assert_eq!(visit(&mut merged, 1, 1, 0, PAGE, &[]).len(), 3);
}

/// A predictor learns while its state is written in small parts, and forgets for lack of memory.
#[test]
fn state_written_in_parts_is_whole() {
    let mut auto = taught(3, 40);
    let (whole, mut saving) = (auto.save(), auto.begin_save());
    let mut parts = 1;
    while !auto.save_part(&mut saving, 2) {
        parts += 1;
    }
    assert!(parts > 3, "{parts} parts");
    assert_eq!(saving.finish(), whole);

    let small = AutoConfig {
        max_memory: 40_000,
        ..config(1)
    };
    auto = Auto::new(small.clone());
    let visits = |auto: &mut Auto, numbers: std::ops::Range<u64>| {
        for number in numbers {
            let site = format!("http://h{}.example", number % 60);
            let pages = [format!("{site}/"), format!("{site}/a.css")];
            let now = number as i64 * 60_000;
            visit(auto, number, number, now, &pages[0], &[&pages[1]]);
        }
    };
    visits(&mut auto, 0..120);
    let mut again = 0;
    for start in (1000..4000).step_by(300) {
        let (mut saving, mut number) = (auto.begin_save(), start);
        while !auto.save_part(&mut saving, 5) {
            visits(&mut auto, number..number + 5);
            number += 5;
        }
        let loaded = Auto::load(&saving.finish(), small.clone()).expect("a whole state");
        again += usize::from(loaded.save() != auto.save());
    }
    assert!(again > 0, "the predictor learned and forgot meanwhile");
}

#[test]
fn bytes_that_are_no_state_are_refused() {
    let bytes = taught(3, 5).save();
    assert_eq!(Auto::load(b"", config(3)).err(), Some(StateError::Foreign));
    assert_eq!(
        Auto::load(&bytes[..bytes.len() - 1], config(3)).err(),
        Some(StateError::Damaged)
    );
    let mut newer = bytes.clone();
    newer[16] = 9;
    assert_eq!(
        Auto::load(&newer, config(3)).err(),
        Some(StateError::Version(9))
    );
    for at in (20..bytes.len()).step_by(97) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert_eq!(
            Auto::load(&changed, config(3)).err(),
            Some(StateError::Damaged),
            "byte {at}"
        );
    }
}

/// Earlier versions wrote the files after the visits of `taught(3, 40)`.
#[test]
fn state_of_earlier_versions_keeps_what_was_learned() {
    let files: [(u8, &[u8]); 2] = [
        (3, include_bytes!("version-3.state")),
        (4, include_bytes!("version-4.state")),
    ];
    for (version, bytes) in files {
        assert_eq!(bytes[16], version);
        let mut loaded = Auto::load(bytes, config(3)).expect("an earlier version");
        let upgraded = loaded.save();
        assert_eq!(upgraded[16], 5);
        let again = Auto::load(&upgraded, config(3)).expect("its own bytes");
        assert_eq!(again.save(), upgraded);
        assert_eq!(visit(&mut loaded, 1, 1, 0, PAGE, &[]).len(), 3);
        let damaged = Auto::load(&bytes[..bytes.len() - 1], config(3));
        assert_eq!(damaged.err(), Some(StateError::Damaged));
    }
}
