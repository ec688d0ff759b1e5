//! Buffers for reading responses, which are used again as soon as the last piece of their content
//! has left.
//!
//! Without them each read would allocate memory, and the allocator would return the pages to the
//! kernel and fetch them again. The buffer that was given back last is used first, while it is
//! still in the processor's cache.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

/// The size of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadSize {
    /// The first read of a response, which holds the head and body of most responses.
    First,
    /// A later read, of the rest of a body.
    Later,
}

impl ReadSize {
    /// Returns the size of the buffer in bytes.
    const fn bytes(self) -> usize {
        match self {
            Self::First => 16 << 10,
            Self::Later => 64 << 10,
        }
    }
}

/// The size of the smallest buffer in bytes. A read of at most half of it is allocated instead,
/// since the allocator serves such sizes fast.
const SMALLEST: usize = 1 << 10;

/// The number of sizes of buffers. Each is twice the one before.
const SIZES: usize = 7;

/// The number of free buffers of the sizes of reads that a thread keeps.
const KEPT: usize = 192;

/// The number of bytes in free buffers of each other size that a thread keeps.
const KEPT_BYTES: usize = 512 << 10;

thread_local! {
    /// The free buffers by size.
    static FREE: [Cell<Vec<Box<[u8]>>>; SIZES] =
        const { [const { Cell::new(Vec::new()) }; SIZES] };
}

/// Returns the position of the smallest size that holds `len` bytes.
const fn position(len: usize) -> usize {
    let size = if len <= SMALLEST {
        SMALLEST
    } else {
        len.next_power_of_two()
    };
    (size / SMALLEST).trailing_zeros() as usize
}

/// Returns the number of free buffers of a size in bytes that a thread keeps.
const fn kept(size: usize) -> usize {
    if size == ReadSize::First.bytes() || size == ReadSize::Later.bytes() {
        KEPT
    } else {
        KEPT_BYTES / size
    }
}

/// Returns a buffer of at least `len` bytes.
fn take(len: usize) -> Box<[u8]> {
    let position = position(len);
    let free = FREE.with(|free| {
        let mut buffers = free[position].take();
        let buffer = buffers.pop();
        free[position].set(buffers);
        buffer
    });
    free.unwrap_or_else(|| vec![0; SMALLEST << position].into())
}

fn give_back(buffer: Box<[u8]>) {
    // A thread that is ending keeps no buffers.
    let _ = FREE.try_with(|free| {
        let free = &free[position(buffer.len())];
        let mut buffers = free.take();
        if buffers.len() < kept(buffer.len()) {
            buffers.push(buffer);
        }
        free.set(buffers);
    });
}

/// A buffer that becomes free when its last piece is dropped.
struct Filled {
    buffer: Box<[u8]>,
    len: usize,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.buffer));
    }
}

/// Returns the first `len` bytes of a buffer. A read of less than half of the buffer is copied into
/// a smaller one: the reads of a slow origin must not hold a large buffer each. A queue of bodies
/// thus uses at most twice the memory of its bytes.
fn into_bytes(buffer: Box<[u8]>, len: usize) -> Bytes {
    if len >= buffer.len() / 2 {
        return Bytes::from_owner(Filled { buffer, len });
    }
    let read = &buffer[..len];
    let bytes = if len <= SMALLEST / 2 {
        Bytes::copy_from_slice(read)
    } else {
        let mut small = take(len);
        small[..len].copy_from_slice(read);
        Bytes::from_owner(Filled { buffer: small, len })
    };
    give_back(buffer);
    bytes
}

/// Reads at most one buffer. Returns no bytes at the end of the input. No buffer is held while no
/// input is ready.
pub(super) async fn read<R: AsyncRead + Unpin>(from: &mut R, size: ReadSize) -> io::Result<Bytes> {
    poll_fn(|cx| poll_read(from, size, cx)).await
}

/// Polls for [`read`].
pub(super) fn poll_read<R: AsyncRead + Unpin>(
    from: &mut R,
    size: ReadSize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Bytes>> {
    let mut buffer = take(size.bytes());
    let mut into = ReadBuf::new(&mut buffer);
    let polled = Pin::new(from).poll_read(cx, &mut into);
    let len = into.filled().len();
    match polled {
        Poll::Ready(Ok(())) => Poll::Ready(Ok(into_bytes(buffer, len))),
        polled => {
            give_back(buffer);
            polled.map_ok(|()| Bytes::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut cx) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("memory is always ready"),
        }
    }

    const SIZE: usize = ReadSize::Later.bytes();

    const HALF: usize = SIZE / 2;

    /// Returns the number of free buffers of a size in bytes.
    fn free(size: usize) -> usize {
        FREE.with(|free| {
            let free = &free[position(size)];
            let buffers = free.take();
            let count = buffers.len();
            free.set(buffers);
            count
        })
    }

    #[test]
    fn buffer_is_freed_with_its_last_piece() {
        let body = vec![7; SIZE + HALF];
        let mut from = &body[..];
        let first = now(read(&mut from, ReadSize::Later)).expect("memory");
        let second = now(read(&mut from, ReadSize::Later)).expect("memory");
        assert_eq!((first.len(), second.len(), free(SIZE)), (SIZE, HALF, 0));
        let piece = first.slice(10..20);
        drop(first);
        assert_eq!(free(SIZE), 0);
        drop((piece, second));
        assert_eq!(free(SIZE), 2);
        assert!(
            now(read(&mut from, ReadSize::Later))
                .expect("memory")
                .is_empty()
        );
        assert_eq!(free(SIZE), 2);
    }

    #[test]
    fn short_reads_hold_a_buffer_of_their_size() {
        for (len, held) in [(512, 0), (513, 1024), (1024, 1024), (1025, 2048)] {
            let crumb = now(read(&mut &vec![1; len][..], ReadSize::Later)).expect("memory");
            assert_eq!((crumb.len(), free(SIZE)), (len, 1));
            drop(crumb);
            let sizes: Vec<usize> = (0..SIZES - 1)
                .map(|position| SMALLEST << position)
                .filter(|size| free(*size) > 0)
                .collect();
            assert_eq!(sizes, if held > 0 { vec![held] } else { Vec::new() });
            FREE.with(|free| free[..SIZES - 1].iter().for_each(|free| drop(free.take())));
        }
        let long = now(read(&mut &[1; HALF - 1][..], ReadSize::Later)).expect("memory");
        assert_eq!((long.len(), free(SIZE), free(HALF)), (HALF - 1, 1, 0));
        drop(long);
        assert_eq!(free(HALF), 1);
    }

    #[test]
    fn thread_keeps_few_free_buffers() {
        for (len, most) in [(SIZE, KEPT), (8 << 10, 64), (1024, 512)] {
            let pieces: Vec<Bytes> = (0..most + 3)
                .map(|_| now(read(&mut &vec![1; len][..], ReadSize::Later)).expect("memory"))
                .collect();
            drop(pieces);
            assert_eq!(free(len), most, "{len} bytes");
        }
    }

    #[test]
    fn first_and_later_reads_share_no_buffers() {
        let body = vec![7; SIZE];
        let first = now(read(&mut &body[..], ReadSize::First)).expect("memory");
        assert_eq!(first.len(), ReadSize::First.bytes());
        let first_size = first.len();
        drop(first);
        assert_eq!((free(first_size), free(SIZE)), (1, 0));
        let rest = now(read(&mut &body[..], ReadSize::Later)).expect("memory");
        assert_eq!(rest.len(), SIZE);
    }
}
