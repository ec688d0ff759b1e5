//! Waiting of tests for events, with a limit for broken programs.

use std::time::{Duration, Instant};

use crate::harness::PATIENCE;

/// Waits until a condition holds. `missing` tells what has not come.
pub(crate) fn until(missing: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{missing}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
