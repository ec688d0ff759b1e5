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
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::BodyTail;

/// The size of a page. With larger pages of the system, the memory of a body returns later.
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
}

/// A body in the file, as the owner of its bytes.
struct KeptBody {
    region: &'static Region,
    place: u64,
    length: usize,
}

impl Region {
    /// Makes a file for `length` bytes. It takes memory only for the bodies in it.
    pub(super) fn new(length: u64) -> io::Result<Self> {
        let end = length.next_multiple_of(PAGE);
        let too_long = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let length = usize::try_from(end).map_err(too_long)?;
        let file = memfd_create("bodies", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, end)?;
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
        Ok(Self {
            file,
            start: start.expose_provenance(),
            length,
            places: Mutex::new(BodyPlaces {
                used: BTreeMap::new(),
                next: 0,
                end,
            }),
        })
    }

    /// Writes a body of `length` bytes to the file. Returns `None` if there is no place or memory.
    pub(super) fn keep(&'static self, pieces: &[Bytes], length: usize) -> Option<Bytes> {
        let place = self.places().take(pages(length))?;
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
        Some(Bytes::from_owner(kept))
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
                    self.next += length;
                    return Some(place);
                }
            }
        }
        None
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
            self.region.places().used.remove(&self.place);
        }
    }
}

/// Returns the length of the whole pages for `length` bytes.
const fn pages(length: usize) -> u64 {
    (length as u64).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(pages: u64) -> &'static Region {
        Box::leak(Box::new(
            Region::new(pages * PAGE).expect("a file in memory"),
        ))
    }

    fn kept(region: &'static Region, byte: u8, length: usize) -> Option<Bytes> {
        let body = Bytes::from(vec![byte; length]);
        let pieces = [body.slice(..length / 3), body.slice(length / 3..)];
        region.keep(&pieces, length)
    }

    #[test]
    fn body_is_kept_at_a_place_of_its_own() {
        let region = region(16);
        let bodies: Vec<_> = (0..5)
            .map(|byte| kept(region, byte, 3 * 4096 - 5).expect("a place"))
            .collect();
        assert!(kept(region, 9, 4097).is_none(), "one page is left");
        for (byte, body) in (0..5).zip(&bodies) {
            assert!(body.len() == 3 * 4096 - 5 && body.iter().all(|at| *at == byte));
        }
    }

    #[test]
    fn place_is_free_once_its_last_reader_has_left() {
        let region = region(4);
        for byte in 0..100 {
            let body = kept(region, byte, 4 * 4096).expect("a place");
            let reader = body.slice(5..9000);
            drop(body);
            assert!(kept(region, 9, 9000).is_none(), "a reader is left");
            assert!(reader.iter().all(|at| *at == byte));
        }
        assert!(region.places().used.is_empty());
    }

    #[test]
    fn region_without_a_body_has_no_memory() {
        let region = region(1 << 10);
        let blocks = || rustix::fs::fstat(&region.file).expect("a file").st_blocks;
        let body = kept(region, 1, 1 << 20);
        assert!(blocks() >= 1 << 11, "{} blocks", blocks());
        drop(body);
        assert_eq!(blocks(), 0);
    }

    #[test]
    fn body_in_a_socket_does_not_change_with_its_place() {
        use std::io::Read;
        use std::net::{TcpListener, TcpStream};

        let region = region(4);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut far = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (near, _) = listener.accept().expect("accepts");
        for byte in 0..8 {
            let body = kept(region, byte, 4 * 4096).expect("a place");
            let tail = region.tail(&[IoSlice::new(&body)]).expect("in the file");
            let mut offset = tail.offset;
            let sent = rustix::fs::sendfile(&near, tail.file, Some(&mut offset), tail.length);
            assert_eq!(sent, Ok(4 * 4096), "the socket has room for all");
        }
        drop(near);
        let mut read = Vec::new();
        far.read_to_end(&mut read).expect("an end");
        assert!((0..8 * 4 * 4096).all(|at| read[at] == (at / (4 * 4096)) as u8));
    }

    #[test]
    fn region_finds_the_slices_at_the_end_only() {
        let region = region(16);
        let body = kept(region, 1, 20_000).expect("a place");
        let other = kept(region, 1, 9_000).expect("a place");
        let head = [0; 9];
        let slices = [
            IoSlice::new(&head),
            IoSlice::new(&body[100..8000]),
            IoSlice::new(&body[8000..19_000]),
            IoSlice::new(&other),
            IoSlice::new(&head),
        ];
        let tail = region.tail(&slices[..3]).expect("the body");
        assert_eq!((tail.first, tail.offset, tail.length), (1, 100, 18_900));
        assert_eq!(region.tail(&slices[2..3]).expect("a piece").first, 0);
        assert!(region.tail(&slices[..4]).is_none(), "no neighbours");
        assert!(region.tail(&slices[3..]).is_none(), "not the end");
        assert!(region.tail(&slices[..1]).is_none(), "ordinary memory");
    }
}
