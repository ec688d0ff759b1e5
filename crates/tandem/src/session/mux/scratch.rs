//! The buffer into which the drivers of a thread read input.

use std::cell::RefCell;

/// The number of bytes that a driver reads at a time.
const READ_SIZE: usize = 64 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_SIZE]);
}

/// Runs a function with the buffer, which may hold earlier input. The function reads for one
/// session only, so it never asks for the buffer again.
pub(super) fn with_buffer<R>(read: impl FnOnce(&mut [u8]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| read(scratch))
}
