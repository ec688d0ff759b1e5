//! The allocator of the program on Linux: mimalloc, which saves instructions in each request (see
//! "Cost of the proxies" in the manual).

#![expect(
    unsafe_code,
    reason = "the options of mimalloc are functions of a C library"
)]

use libmimalloc_sys::{mi_option_eager_commit_delay, mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The time in milliseconds after which free memory returns to the system. The bindings have no
/// name for this option; in `mimalloc.h` it follows the delay of commits.
const PURGE_DELAY: mi_option_t = mi_option_eager_commit_delay + 1;

/// Lets free memory return to the system at once.
///
/// With mimalloc's own delay of 10 ms, a sender that fills a bounded store quickly makes the
/// process larger than the bound: its replaced contents are free, but still counted.
pub(crate) fn return_free_memory_at_once() {
    // SAFETY: the option exists (see the test). `main` calls this before other threads run.
    unsafe { mi_option_set(PURGE_DELAY, 0) }
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::mi_option_get;

    use super::*;

    fn purge_delay() -> std::ffi::c_long {
        // SAFETY: no other test of this program changes the options of the allocator.
        unsafe { mi_option_get(PURGE_DELAY) }
    }

    /// The default of 10 ms tells this option from its neighbours in the list.
    #[test]
    fn purge_delay_is_the_option_that_is_set() {
        assert_eq!(purge_delay(), 10, "mimalloc's list of options has changed");
        return_free_memory_at_once();
        assert_eq!(purge_delay(), 0);
    }
}
