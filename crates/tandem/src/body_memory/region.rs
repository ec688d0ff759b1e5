//! A file in memory, its mapping, and the places in it that are in use.

#![expect(
    unsafe_code,
    reason = "a mapping of memory; each comment gives the reason for which it is sound"
)]

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SeekFrom, fallocate, fstat, ftruncate, memfd_create, seek,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use super::BodyTail;

/// The size of a page. Bodies begin and end with one, so that they share none.
const PAGE: u64 = 4096;

/// The number of gaps that are tried for a body.
const TRIES: usize = 64;

/// A file in memory, mapped for reading until the process ends.
#[derive(Debug)]
pub(super) struct Region {
    file: OwnedFd,
    /// The address of the mapping.
    start: usize,
    length: usize,
    places: Mutex<BodyPlaces>,
}

/// The places that are in use.
#[derive(Debug)]
struct BodyPlaces {
    /// Their lengths, by their beginnings.
    used: BTreeMap<u64, u64>,
    /// The place to try next. It is never within a used one.
    next: u64,
    end: u64,
    /// The sum of the lengths, and its limit.
    bytes: u64,
    most: u64,
}

/// A body in the file, as the owner of its bytes.
struct KeptBody {
    region: &'static Region,
    place: u64,
    length: usize,
}

impl Region {
    /// Makes a file with `length` bytes of addresses, for bodies of `most` bytes altogether. It
    /// takes memory only for the bodies in it.
    pub(super) fn new(length: u64, most: u64) -> io::Result<Self> {
        Self::over(memfd_create("bodies", MemfdFlags::CLOEXEC)?, length, most)
    }

    /// Uses an empty file of a file system in memory.
    fn over(file: OwnedFd, length: u64, most: u64) -> io::Result<Self> {
        let end = length.next_multiple_of(PAGE);
        let too_long = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let length = usize::try_from(end).map_err(too_long)?;
        ftruncate(&file, end)?;
        // The size of the file may decide on large pages.
        if !has_small_pages(&file) {
            let reason = "shared memory has pages of another size";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        // SAFETY: the kernel chooses addresses that nothing else uses.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                0,
            )?
        };
        // The kernel must not join small pages later. A kernel without large pages refuses this.
        // SAFETY: the mapping is this one, and the advice changes none of its bytes.
        let _ = unsafe { madvise(start, length, Advice::LinuxNoHugepage) };
        Ok(Self {
            file,
            start: start.expose_provenance(),
            length,
            places: Mutex::new(BodyPlaces {
                used: BTreeMap::new(),
                next: 0,
                end,
                bytes: 0,
                most,
            }),
        })
    }

    /// Writes a body of `length` bytes to the file. Returns `None` if there is no place or memory,
    /// or if the system has changed to large pages.
    pub(super) fn keep(&'static self, pieces: &[Bytes], length: usize) -> Option<Bytes> {
        if !has_small_pages(&self.file) {
            return None;
        }
        let place = self.places().take(pages(length))?;
        // A place with pages stays taken, since a socket may hold them.
        if !is_hole(&self.file, place, pages(length)) {
            return None;
        }
        // It gives the place back if a write fails.
        let kept = KeptBody {
            region: self,
            place,
            length,
        };
        let mut at = place;
        for piece in pieces {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let written = rustix::io::pwrite(&self.file, rest, at).ok()?;
                at += written as u64;
                rest = rest.get(written..).filter(|_| written > 0)?;
            }
        }
        has_small_pages(&self.file).then(|| Bytes::from_owner(kept))
    }

    /// Returns the last slices if they are neighbours in the file.
    pub(super) fn tail(&'static self, slices: &[IoSlice<'_>]) -> Option<BodyTail> {
        let end = self.start + self.length;
        let within = |slice: &IoSlice<'_>| (self.start..end).contains(&slice.as_ptr().addr());
        let first = slices.iter().position(within)?;
        let begin = slices[first].as_ptr().addr();
        let mut at = begin;
        for slice in &slices[first..] {
            if slice.as_ptr().addr() != at {
                return None;
            }
            at += slice.len();
        }
        Some(BodyTail {
            first,
            file: self.file.as_fd(),
            offset: (begin - self.start) as u64,
            length: at - begin,
        })
    }

    fn places(&self) -> MutexGuard<'_, BodyPlaces> {
        // Each change of the table is complete before it can panic.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BodyPlaces {
    /// Takes a free place of this length.
    fn take(&mut self, length: u64) -> Option<u64> {
        if self.bytes + length > self.most {
            return None;
        }
        for _ in 0..TRIES {
            if self.next + length > self.end {
                self.next = 0;
            }
            let following = self.used.range(self.next..).next();
            match following {
                Some((begin, used)) if *begin < self.next + length => self.next = begin + used,
                _ if self.next + length > self.end => return None,
                _ => {
                    let place = self.next;
                    self.used.insert(place, length);
                    self.bytes += length;
                    self.next += length;
                    return Some(place);
                }
            }
        }
        None
    }

    /// Frees a place.
    fn give_back(&mut self, place: u64) {
        self.bytes -= self.used.remove(&place).unwrap_or_default();
    }
}

impl AsRef<[u8]> for KeptBody {
    fn as_ref(&self) -> &[u8] {
        let at = std::ptr::with_exposed_provenance(self.region.start + self.place as usize);
        // SAFETY: the place is in the mapping, which stays until the process ends. It belongs to
        // this body, whose bytes were written before and do not change.
        unsafe { std::slice::from_raw_parts(at, self.length) }
    }
}

/// Returns the memory of a body to the system when its last reader leaves.
impl Drop for KeptBody {
    fn drop(&mut self) {
        let (file, length) = (&self.region.file, pages(self.length));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A place whose pages stay in the file is never used again, since a socket may hold them.
        if fallocate(file, flags, self.place, length).is_ok() {
            self.region.places().give_back(self.place);
        }
    }
}

/// Returns true if each new page of the file has the size [`PAGE`]. Of a larger page, the kernel
/// clears the part that a body leaves, also if a socket still has to send it. The system's setting
/// for large pages of shared memory may change at any time.
fn has_small_pages(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|stat| u64::try_from(stat.st_blksize) == Ok(PAGE))
}

/// Returns true if the file has no page in this range.
fn is_hole(file: &OwnedFd, place: u64, length: u64) -> bool {
    match seek(file, SeekFrom::Data(place)) {
        Ok(data) => data >= place + length,
        Err(error) => error == Errno::NXIO,
    }
}

/// Returns the length of the whole pages for `length` bytes.
const fn pages(length: usize) -> u64 {
    (length as u64).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests;
