//! The allocator of the program on Linux: mimalloc, which saves instructions in each request (see
//! "Cost of the proxies" in the manual).

#![expect(
    unsafe_code,
    reason = "mimalloc and its options are functions of a C library"
)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_void};

use libmimalloc_sys::{mi_malloc, mi_option_eager_commit_delay, mi_option_set, mi_option_t};
use mimalloc::MiMalloc;
use rustix::mm::{Advice, madvise};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The greatest alignment that each block of mimalloc has.
const EVERY_ALIGNMENT: usize = align_of::<usize>();

/// mimalloc, with its short way to blocks of an ordinary alignment.
///
/// The crate asks for an alignment in each call, which takes twice as many instructions. A block
/// of more than 1 KiB then takes five times as many.
struct Allocator;

// SAFETY: all blocks are those of one allocator, which the crate implements soundly. A block of
// `mi_malloc` has the alignment of a word at least.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match layout.align() <= EVERY_ALIGNMENT {
            // SAFETY: the function takes any size, and returns null if there is no memory.
            true => unsafe { mi_malloc(layout.size()) }.cast(),
            // SAFETY: the caller keeps the contract of this trait.
            false => unsafe { MiMalloc.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(block, layout, size) }
    }
}

/// The time in milliseconds after which free memory returns to the system. The bindings have no
/// name for this option; in `mimalloc.h` it follows the delay of commits.
const PURGE_DELAY: mi_option_t = mi_option_eager_commit_delay + 1;

/// The time in milliseconds by which each free part of a segment extends the delay of the others.
const PURGE_EXTENSION: mi_option_t = PURGE_DELAY + 10;

/// The number of the region that mimalloc reserves at its start, of 1 GiB.
const FIRST_ARENA: c_int = 1;

unsafe extern "C" {
    /// Returns the start and the size of a region of the heap. It is in `mimalloc.h`, and the
    /// bindings lack it.
    fn mi_arena_area(arena: c_int, size: *mut usize) -> *mut c_void;
}

/// Lets free memory return to the system at once.
///
/// With mimalloc's own delay of 10 ms, a sender that fills a bounded store quickly makes the
/// process larger than the bound: its replaced contents are free, but still counted.
pub(crate) fn return_free_memory_at_once() {
    // SAFETY: the option exists (see the test). `main` calls this before other threads run.
    unsafe { mi_option_set(PURGE_DELAY, 0) }
}

/// Lets free memory return to the system after 10 ms, however much memory becomes free meanwhile.
/// Whole segments return after ten times as long.
///
/// A gateway uses the memory of each exchange again within that time, and has hardly any page
/// faults then. By default, a steady load delays the return further and further.
pub(crate) fn return_free_memory_soon() {
    // SAFETY: as above.
    unsafe {
        mi_option_set(PURGE_DELAY, 10);
        mi_option_set(PURGE_EXTENSION, 0);
    }
}

/// Lets the heap have large pages, and keeps its free memory.
///
/// A command that fills much memory and ends soon then has a tenth of the page faults, and fewer
/// misses of the processor's cache of addresses. Without large pages in the system, or beyond the
/// first arena, the pages are small.
pub(crate) fn keep_memory_in_large_pages() {
    // A part that returns to the system would split its large page.
    // SAFETY: as above. With a negative delay, no memory returns.
    unsafe { mi_option_set(PURGE_DELAY, -1) }
    let mut size = 0;
    // SAFETY: the declaration is that of `mimalloc.h`. The function writes only the size.
    let start = unsafe { mi_arena_area(FIRST_ARENA, &raw mut size) };
    if !start.is_null() {
        // SAFETY: mimalloc never unmaps an arena, and the advice changes none of its bytes.
        let _ = unsafe { madvise(start, size, Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use libmimalloc_sys::mi_option_get;

    use super::*;

    fn purge_delay() -> std::ffi::c_long {
        // SAFETY: no other test of this program changes the options of the allocator.
        unsafe { mi_option_get(PURGE_DELAY) }
    }

    /// Returns the extension of the delay, and its neighbour in the list.
    fn purge_extension() -> [std::ffi::c_long; 2] {
        // SAFETY: as above.
        [PURGE_EXTENSION, PURGE_EXTENSION - 1].map(|option| unsafe { mi_option_get(option) })
    }

    /// The flags of the kernel for the mapping that holds an address.
    fn flags_of_mapping(address: usize) -> String {
        let maps = fs::read_to_string("/proc/self/smaps").expect("readable");
        let mut is_here = false;
        for line in maps.lines() {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((start, end)) = range.and_then(|(a, b)| number(a).zip(number(b))) {
                is_here = (start..end).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
                return flags.to_owned();
            }
        }
        panic!("no mapping holds {address:x}");
    }

    #[test]
    fn allocator_aligns_each_block() {
        for power in 0..13 {
            let align = 1 << power;
            for size in (1..40).chain([100, 1000, 1024, 1025, 5000, 70_000, 3 << 20]) {
                let layout = Layout::from_size_align(size, align).expect("a small size");
                // SAFETY: the size is not zero, and each block is freed with its layout.
                let blocks = [0; 3].map(|_| unsafe { Allocator.alloc(layout) });
                for block in blocks {
                    assert!(!block.is_null());
                    assert_eq!(block.addr() % align, 0, "{size} bytes, aligned to {align}");
                    // SAFETY: as above.
                    unsafe {
                        block.write_bytes(7, size);
                        Allocator.dealloc(block, layout);
                    }
                }
            }
        }
    }

    /// Tests all settings in a row, since they belong to the process.
    #[test]
    fn allocator_keeps_or_returns_free_memory() {
        // The default of 10 ms tells this option from its neighbours in the list.
        assert_eq!(purge_delay(), 10, "mimalloc's list of options has changed");
        return_free_memory_at_once();
        assert_eq!(purge_delay(), 0);
        assert_eq!(
            purge_extension(),
            [1, 10],
            "mimalloc's list of options has changed"
        );
        let body = vec![1_u8; 1 << 16];
        let is_large = || {
            let flags = flags_of_mapping(body.as_ptr().addr());
            flags.split(' ').any(|flag| flag == "hg")
        };
        assert!(!is_large(), "the feature no_thp of mimalloc is off");

        return_free_memory_soon();
        assert_eq!((purge_delay(), purge_extension()), (10, [0, 10]));

        keep_memory_in_large_pages();
        assert_eq!(purge_delay(), -1);
        let has_large_pages = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(is_large(), has_large_pages);
    }
}
