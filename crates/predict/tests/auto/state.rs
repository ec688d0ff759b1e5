//! The state of the predictor, saved and loaded.

use tandem_predict::{Auto, StateError};

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
