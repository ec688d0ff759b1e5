//! The buffer into which the drivers of a thread read input.

use std::cell::Cell;

/// The number of bytes that a driver reads at a time.
const READ_SIZE: usize = 64 << 10;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs a function with the buffer, which may hold earlier input.
pub(super) fn with_buffer<R>(read: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut scratch = SCRATCH.take();
    // It is empty at the first use.
    scratch.resize(READ_SIZE, 0);
    let result = read(&mut scratch);
    SCRATCH.set(scratch);
    result
}
