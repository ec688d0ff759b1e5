//! Memory for cached bodies that the kernel sends without a copy.
//!
//! A write to a socket copies a body into new memory of the kernel. For a large body, that copy is
//! most of the work of a hit. The process therefore keeps these bodies in a
//! file without a name (`memfd_create`), which it also maps for reading. [`keep`] writes a body to
//! the file. The TCP transport finds the place of a slice by its address ([`tail`]), and lets
//! `sendfile` pass on the pages themselves.
//!
//! No page that a socket may hold changes. A body is written once, to new pages, before anyone
//! reads it. When its last reader has left, its pages leave the file. A socket that still has them
//! keeps their content, and later bodies at the same place get other pages. The kernel would clear
//! a part of a large page in place. The file is therefore used only while the system gives shared
//! memory in pages of 4 KiB.

use std::io::IoSlice;

use bytes::Bytes;

#[cfg(target_os = "linux")]
mod region;
#[cfg(target_os = "linux")]
use region::Region;

#[cfg(target_os = "linux")]
static REGION: std::sync::OnceLock<Option<Region>> = std::sync::OnceLock::new();

/// The size in bytes from which bodies are kept here. For smaller ones, the second system call
/// costs more than the copy.
const SMALLEST: usize = 16 << 10;

/// The size in bytes up to which bodies are kept here, since writing one occupies its thread.
const LARGEST: usize = 1 << 20;

/// The length of the pieces of a body.
const PIECE: usize = 128 << 10;

/// The addresses for each byte of memory that bodies may use. Bodies of different lengths then
/// always find a gap.
const ADDRESSES_PER_BYTE: u64 = 4;

/// The end of a list of slices, as a part of the file.
#[derive(Debug)]
#[cfg(target_os = "linux")]
pub struct BodyTail {
    /// The number of slices before it.
    pub first: usize,
    /// The file.
    pub file: std::os::fd::BorrowedFd<'static>,
    /// The place in the file.
    pub offset: u64,
    /// The length in bytes.
    pub length: usize,
}

/// The part of a cache's memory that evicted bodies may have in addition, while clients read them.
const EVICTED: u64 = 4;

/// Makes room for a cache of `bytes` bytes. Later calls have no effect. Without room, bodies stay
/// in ordinary memory.
pub fn open(bytes: u64) {
    #[cfg(target_os = "linux")]
    REGION.get_or_init(|| {
        let length = bytes.saturating_mul(ADDRESSES_PER_BYTE);
        let region = Region::new(length, bytes.saturating_add(bytes / EVICTED));
        let failure = region.as_ref().err();
        if let Some(error) = failure {
            tracing::debug!(%error, "no memory that the kernel sends without a copy");
        }
        region.ok()
    });
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

/// Moves the pieces of a complete body to this memory. A body that is too small or too large, or
/// finds no place, stays where it is.
pub fn keep(pieces: Vec<Bytes>) -> Vec<Bytes> {
    #[cfg(target_os = "linux")]
    {
        let length = pieces.iter().map(Bytes::len).sum();
        if (SMALLEST..=LARGEST).contains(&length)
            && let Some(Some(region)) = REGION.get()
            && let Some(mut whole) = region.keep(&pieces, length)
        {
            let mut kept = Vec::with_capacity(length.div_ceil(PIECE));
            while !whole.is_empty() {
                kept.push(whole.split_to(PIECE.min(whole.len())));
            }
            return kept;
        }
    }
    pieces
}

/// Returns the last slices if they are neighbours in this memory, and long enough for `sendfile`.
#[cfg(target_os = "linux")]
pub fn tail(slices: &[IoSlice<'_>]) -> Option<BodyTail> {
    let region = REGION.get()?.as_ref()?;
    region.tail(slices).filter(|tail| tail.length >= SMALLEST)
}
