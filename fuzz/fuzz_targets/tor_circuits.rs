//! Circuits of any text, and relays that may share one: fingerprints are whole, and the order of
//! two relays does not matter.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem::fuzzing::{circuit_paths, may_share_circuit};

const A: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const B: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";

fuzz_target!(|text: &str| {
    for hop in circuit_paths(text).into_iter().flatten() {
        assert!(hop.len() == 40 && text.to_ascii_uppercase().contains(&hop));
    }
    let mut parts = text.split('\0');
    let mut next = || {
        parts
            .next()
            .unwrap_or("r one id digest 2026-01-01 00:00:00 198.18.1.1 5001 0")
    };
    let (a, b) = ((A, next(), next()), (B, next(), next()));
    for distinct in [false, true] {
        if let Some([one, other]) = may_share_circuit([a, b], distinct) {
            assert_eq!(one, other);
            assert!(
                !one || may_share_circuit([a, b], false) == Some([true, true]),
                "stricter rules allow no more"
            );
        }
        assert_ne!(
            may_share_circuit([a, a], distinct),
            Some([true, true]),
            "a relay twice"
        );
    }
});
